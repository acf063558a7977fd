//! The trait by which tests set a transport up, and a pair of connected ends.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::transport::lock::Mutex;
use crate::transport::*;

/// A transport's memory domain.
pub type Dom<R> = <<R as Rig>::Transport as Transport>::Domain;
/// A transport's interface.
pub type If<R> = <Dom<R> as Domain>::Interface;
/// A transport's endpoint.
pub type Ep<R> = <If<R> as Interface>::Endpoint;

/// A rank of a test that runs as ranks.
pub trait Player {
    /// Which.
    fn rank(&self) -> usize;
    /// Lets others run; nothing was done since the last call. May block until something happens here.
    fn idle(&self);
    /// Lets others run, without waiting for anything here.
    fn pass(&self);
    /// Sleeps without any call into the transport.
    fn sleep(&self, time: Duration);
    /// The time.
    fn now(&self) -> Duration;
}

/// How a transport is set up for tests: a network of its own for each test, with shallow queues.
pub trait Rig: Sized + Sync {
    /// The transport under test.
    type Transport: Transport;
    /// A device works by itself: a transfer may be complete before the peer dies, and a death shows only in later sends.
    const BY_ITSELF: bool = false;
    /// Long loops are shortened by this.
    const SHORTEN: usize;

    /// A network of so many ranks.
    fn new(ranks: usize) -> Self;
    /// A rank's transport.
    fn transport(&self, rank: usize) -> Self::Transport;
    /// Options with which interfaces are opened.
    fn options() -> InterfaceOptions {
        InterfaceOptions { max_zcopy: 1 << 20, max_bcopy: 16 << 10, max_iov: 8, ..InterfaceOptions::default() }
    }
    /// Lets the network move on, where it does not by itself. Whether it did.
    fn turn(&self) -> bool {
        false
    }
    /// Ends a rank.
    fn kill(&self, rank: usize);
    /// Runs `program` as every rank, concurrently.
    fn ranks(&self, program: &(dyn Fn(&dyn Player) + Sync));
    /// Runs a test as often as makes sense, saying how to repeat a failure.
    fn repeat(_name: &str, test: fn()) {
        test();
    }

    /// Bytes of the heap that this thread holds, where the test program counts them.
    fn held() -> Option<isize> {
        None
    }

    /// Atomics that a rank posts in a row: fewer where each is a message, of which shallow lanes take a few each time that their
    /// receiver gets a processor.
    const ATOMICS: usize = 100_000;

    /// So many rounds of a long loop.
    fn rounds(many: usize) -> usize {
        (many / Self::SHORTEN).max(4)
    }
}

/// Calls `turn` until `ready`.
///
/// # Panics
/// After 60 seconds, saying what was waited for.
pub fn wait(what: &str, mut ready: impl FnMut() -> bool, mut turn: impl FnMut()) {
    wait_for(what, &mut ready, &mut turn);
}

/// As [`wait`], once for all callers: copies for each took much of the time to compile the suite.
fn wait_for(what: &str, ready: &mut dyn FnMut() -> bool, turn: &mut dyn FnMut()) {
    let start = Instant::now();
    let mut rounds = 0u32;
    while !ready() {
        turn();
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(256) {
            assert!(start.elapsed() < Duration::from_secs(60), "still waiting for {what}");
            std::thread::yield_now();
        }
    }
}

/// Waits for threads one by one: the thread sanitizer sees a join, but not how a scope ends.
///
/// # Panics
/// With the first panic of a thread.
pub fn join(threads: Vec<ScopedJoinHandle<'_, ()>>) {
    for thread in threads {
        if let Err(panic) = thread.join() {
            resume_unwind(panic);
        }
    }
}

/// One end: everything from domain to an endpoint towards the other end.
pub struct Side<R: Rig> {
    /// The endpoint; dropped first.
    pub ep: Option<Ep<R>>,
    /// The interface.
    pub interface: Rc<If<R>>,
    /// The worker.
    pub worker: Worker<If<R>>,
    /// The domain.
    pub domain: Dom<R>,
}

// SAFETY: the interfaces under test are confined, a domain and a worker are used along with them under one lock, and
// tests set only handlers that may run on any thread.
unsafe impl<R: Rig> Confined for Side<R> {}

/// Both directions.
pub const BOTH: Directions = Directions::SEND.and(Directions::RECEIVE);

impl<R: Rig> Side<R> {
    /// Opens rank `rank`, with progress enabled.
    pub fn open(rig: &R, rank: usize, options: InterfaceOptions) -> Side<R> {
        let transport = rig.transport(rank);
        let resource = transport.resources().remove(0);
        let domain = transport.open(&resource).expect("opens");
        let worker = Worker::new();
        let interface = domain.open_interface(&worker, options).expect("opens");
        interface.progress_enable(BOTH);
        Side { ep: None, interface, worker, domain }
    }

    /// The endpoint.
    pub fn ep(&self) -> &Ep<R> {
        self.ep.as_ref().expect("connected")
    }

    /// Connects to the interface at `address`.
    pub fn connect(&self, address: &[u8]) -> Ep<R> {
        self.interface.connect(address).expect("connects")
    }

    /// Whether the interface has `capability`.
    pub fn can(&self, capability: Capabilities) -> bool {
        self.interface.attributes().capabilities.has(capability)
    }

    /// Zeroed memory that peers reach, atomics included.
    pub fn memory(&self, len: usize) -> Allocation {
        self.domain.allocate(len, &[Method::Domain, Method::Heap]).expect("memory")
    }

    /// The key that the other end makes of `region`.
    pub fn key(&self, region: &Region, other: &Side<R>) -> RemoteKey {
        unpack(&other.domain, &self.domain.pack_key(region)).expect("a good key")
    }
}

/// Two connected ends in one thread.
pub struct Duo<R: Rig> {
    /// Rank 0.
    pub a: Side<R>,
    /// Rank 1.
    pub b: Side<R>,
    /// Their network.
    pub rig: R,
}

impl<R: Rig> Default for Duo<R> {
    fn default() -> Self {
        Duo::new()
    }
}

impl<R: Rig> Duo<R> {
    /// Two ends with the rig's options.
    pub fn new() -> Duo<R> {
        Duo::with(R::options())
    }

    /// Two ends, the first with these options.
    pub fn with(options: InterfaceOptions) -> Duo<R> {
        let mut duo = Duo::<R>::unconnected(options);
        duo.a.ep = Some(duo.a.connect(&duo.b.interface.address()));
        duo.b.ep = Some(duo.b.connect(&duo.a.interface.address()));
        // Where connections are made on first use, this is it.
        for end in [&duo.a, &duo.b].into_iter().filter(|end| end.can(Capabilities::PENDING)) {
            duo.until("the connection", || {
                let refused = end.ep().pending_add(Box::new(|| Resume::Done)).err();
                refused.is_some_and(|refused| refused.error == Error::Busy)
            });
        }
        duo
    }

    /// Two ends without endpoints.
    pub fn unconnected(options: InterfaceOptions) -> Duo<R> {
        let rig = R::new(2);
        Duo { a: Side::open(&rig, 0, options), b: Side::open(&rig, 1, R::options()), rig }
    }

    /// Lets everything move.
    pub fn turn(&self) {
        self.a.worker.progress();
        self.b.worker.progress();
        self.rig.turn();
    }

    /// Lets everything move until `ready`.
    pub fn until(&self, what: &str, mut ready: impl FnMut() -> bool) {
        self.until_ready(what, &mut ready);
    }

    fn until_ready(&self, what: &str, ready: &mut dyn FnMut() -> bool) {
        wait_for(what, ready, &mut || self.turn());
    }

    /// Lets everything move for a while.
    pub fn settle(&self) {
        let mut idle = 0;
        while idle < 3 {
            let done = self.a.worker.progress() + self.b.worker.progress();
            idle = if self.rig.turn() || done > 0 { 0 } else { idle + 1 };
        }
    }

    /// Calls `send` until there is room.
    pub fn insist<T>(&self, mut send: impl FnMut() -> Result<T>) -> T {
        let mut result = Err(Error::NoResource);
        self.until_ready("room to send", &mut || {
            result = send();
            !matches!(result, Err(Error::NoResource))
        });
        result.expect("sends")
    }

    /// Waits until everything from `a` is in effect at `b`.
    pub fn flush(&self) {
        self.until("a flush", || matches!(self.a.ep().flush(Flush::REMOTE, None), Ok(Posted::Done)));
    }

    /// Memory of the other end, with a key to it.
    pub fn remote(&self, len: usize) -> (Allocation, RemoteKey) {
        let memory = self.b.memory(len);
        let key = self.b.key(memory.region(), &self.a);
        (memory, key)
    }
}

/// The bytes of `memory`.
pub fn bytes(memory: &Allocation) -> Vec<u8> {
    let mut copy = vec![0; memory.region().len()];
    // SAFETY: the allocation's own bytes; the runtime's copy may race with nothing here but other copies.
    unsafe { crate::memory::copy::copy(copy.as_mut_ptr(), memory.address(), copy.len()) };
    copy
}

/// A pattern of `len` bytes.
pub fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ salt.wrapping_mul(97) ^ (i >> 8)) as u8).collect()
}

/// Bytes that ranks of one test exchange on the side.
#[derive(Debug, Default)]
pub struct Board(Mutex<HashMap<(usize, &'static str), Vec<u8>>>);

impl Board {
    /// Publishes `bytes` under `name` of `rank`.
    pub fn post(&self, rank: usize, name: &'static str, bytes: Vec<u8>) {
        self.0.lock().insert((rank, name), bytes);
    }

    /// Waits until `rank` has published `name`, and returns the bytes.
    pub fn read(&self, player: &dyn Player, rank: usize, name: &'static str) -> Vec<u8> {
        let look = || self.0.lock().get(&(rank, name)).cloned();
        wait(name, || look().is_some(), || player.pass());
        look().expect("just seen")
    }
}

impl Board {
    /// Whether `rank` has published `name`.
    pub fn has(&self, rank: usize, name: &'static str) -> bool {
        self.0.lock().contains_key(&(rank, name))
    }
}

/// The key in `bytes`.
pub fn unpack(domain: &impl Domain, bytes: &[u8]) -> Result<RemoteKey> {
    // SAFETY: keys of this suite were packed by a peer whose region lives as long as they are used, or belong to regions
    // whose owner refuses accesses to them.
    unsafe { domain.unpack_key(bytes) }
}
