//! Between two machines: one process on each, told its part by `BELLWETHER_ACROSS=serve:PORT` or `ask:HOST:PORT`. Both
//! do everything to each other at the same time. Also: one connection fails, and others go on.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::transport::conformance::wait;
use crate::transport::verbs::{Device, Offer, offers};
use crate::transport::{
    Allocation, AtomicOp, Completion, Directions, Domain as _, Endpoint as _, Error, Flush, Interface as _,
    InterfaceOptions, Iov, Method, Opaque, Posted, RemoteKey, Result, Transport, Word, Worker,
};

type Step = (&'static str, fn(&mut Pair));
type Domain = <Device as Transport>::Domain;
type Interface = <Domain as crate::transport::Domain>::Interface;
pub(super) type Endpoint = <Interface as crate::transport::Interface>::Endpoint;

// Offsets in the memory of each side. The other side writes all of it but SOURCE.
const SHORT: u64 = 0;
const EIGHT: u64 = 64;
const PACKED: u64 = 4 << 10;
const STRAIGHT: u64 = 128 << 10;
const SOURCE: u64 = 256 << 10;
const WORDS: u64 = 384 << 10;
const DATA: u64 = 400 << 10;
const FLAG: u64 = 420 << 10;
const SIZE: usize = 512 << 10;

const LARGE: usize = 64 << 10;
const STRAIGHT_LEN: usize = 100_000;
const HELD: u64 = 0x0123_4567_89ab_cdef;

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ salt.wrapping_mul(97) ^ (i >> 8)) as u8).collect()
}

pub(super) fn offer() -> Offer {
    let wanted = std::env::var("BELLWETHER_VERBS_DEVICE").ok();
    offers(wanted.as_deref()).expect("an RDMA device").remove(0)
}

/// A rank on its device.
pub(super) struct Side {
    pub(super) interface: Rc<Interface>,
    pub(super) worker: Worker<Interface>,
    pub(super) domain: Domain,
    pub(super) memory: Allocation,
    pub(super) device: Device,
}

impl Side {
    fn open(rank: usize, ranks: usize) -> Side {
        Side::on(&Device::new(rank, ranks, &offer()).expect("opens"))
    }

    /// An interface of its own on that device, and memory.
    pub(super) fn on(device: &Device) -> Side {
        let device = device.clone();
        let domain = device.open(&device.resources()[0]).expect("opens");
        let worker = Worker::new();
        let interface = domain.open_interface(&worker, InterfaceOptions::default()).expect("opens");
        interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
        let memory = domain.allocate(SIZE, &[Method::Heap]).expect("memory");
        Side { interface, worker, domain, memory, device }
    }

    pub(super) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        assert!(at as usize + len <= SIZE);
        let mut copy = vec![0; len];
        // SAFETY: inside our memory; the peer that writes there has told that it is done.
        unsafe { crate::memory::copy::copy(copy.as_mut_ptr(), self.memory.address().add(at as usize), len) };
        copy
    }

    fn fill(&self, at: u64, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= SIZE);
        // SAFETY: inside our memory, before a peer has a key to it.
        unsafe { crate::memory::copy::copy(self.memory.address().add(at as usize), bytes.as_ptr(), bytes.len()) };
    }
}

/// This side of a pair of machines.
struct Pair {
    endpoint: Endpoint,
    side: Side,
    address: Vec<u8>,
    key: RemoteKey,
    tcp: TcpStream,
    mine: usize,
    theirs: usize,
}

impl Pair {
    fn meet(mut tcp: TcpStream, rank: usize) -> Pair {
        tcp.set_nonblocking(true).expect("a socket");
        tcp.set_nodelay(true).expect("a socket");
        let side = Side::open(rank, 2);
        let (mine, theirs) = (rank + 1, 2 - rank);
        side.fill(SOURCE, &pattern(LARGE, mine));
        (0..512).for_each(|word| side.fill(WORDS + word * 8, &HELD.to_ne_bytes()));
        let progress = || _ = side.worker.progress();
        let address = swap(&mut tcp, "the interface's address", &side.interface.address(), progress);
        let packed = swap(&mut tcp, "the key", &side.domain.pack_key(side.memory.region()), progress);
        assert!(side.interface.is_reachable(&address));
        // SAFETY: the peer's memory lives until both have finished.
        let key = unsafe { side.domain.unpack_key(&packed) }.expect("a good key");
        let endpoint = side.interface.connect(&address).expect("connects");
        Pair { endpoint, side, address, key, tcp, mine, theirs }
    }

    fn turn(&self) {
        self.side.worker.progress();
    }

    /// Calls `send` until there is room.
    fn insist<T>(&self, what: &str, mut send: impl FnMut() -> Result<T>) -> T {
        let mut sent = None;
        let ready = || match send() {
            Err(Error::NoResource) => false,
            other => {
                sent = Some(other.unwrap_or_else(|error| panic!("{what}: {error}")));
                true
            }
        };
        wait(&format!("room for {what}"), ready, || self.turn());
        sent.expect("set when ready")
    }

    /// Does `post`, and waits for its completion.
    fn complete(&self, what: &str, mut post: impl FnMut(&Completion) -> Result<Posted>) {
        let done = Completion::new(1, |_| {});
        if self.insist(what, || post(&done)) == Posted::InProgress {
            wait(what, || done.count() == 0, || self.turn());
        }
        done.status().unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    fn flush(&self, what: &str) {
        self.complete(&format!("the flush after {what}"), |done| self.endpoint.flush(Flush::REMOTE, Some(done)));
    }

    fn put(&self, what: &str, bytes: &[u8], at: u64) {
        let pack = |buffer: &mut [u8]| {
            buffer[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        self.insist(what, || self.endpoint.put_bcopy(bytes.len(), pack, self.remote(at), &self.key));
    }

    fn get(&self, what: &str, at: u64, len: usize) -> Vec<u8> {
        let got = Rc::new(RefCell::new(Vec::new()));
        self.complete(what, |done| {
            let to = Rc::clone(&got);
            let unpack = move |bytes: &[u8]| *to.borrow_mut() = bytes.to_vec();
            self.endpoint.get_bcopy(len, unpack, self.remote(at), &self.key, Some(done))
        });
        got.take()
    }

    fn remote(&self, at: u64) -> u64 {
        self.key.address() + at
    }

    /// Waits until the other side has come to the same place.
    fn together(&mut self, what: &str) {
        let worker = &self.side.worker;
        let heard = swap(&mut self.tcp, what, what.as_bytes(), || _ = worker.progress());
        assert_eq!(String::from_utf8_lossy(&heard), what, "the other side is elsewhere");
    }
}

/// Gives `bytes` to the other process and takes what it gives.
fn swap(tcp: &mut TcpStream, what: &str, bytes: &[u8], progress: impl Fn()) -> Vec<u8> {
    tcp.write_all(&(bytes.len() as u32).to_le_bytes()).expect("the other process listens");
    tcp.write_all(bytes).expect("the other process listens");
    let mut take = |len: usize| {
        let (mut taken, mut have) = (vec![0; len], 0);
        let ready = || {
            if have < len {
                match tcp.read(&mut taken[have..]) {
                    Ok(0) => panic!("the other process ended; waited for {what}"),
                    Ok(count) => have += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{what}: {error}"),
                }
            }
            have == len
        };
        wait(&format!("{what} of the other process"), ready, &progress);
        taken
    };
    let len = take(4);
    take(u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize)
}

fn dial(host: &str) -> TcpStream {
    // Not by `wait`, which looks at the clock only now and then: an attempt may take seconds.
    let start = Instant::now();
    let address = host.parse().expect("an address and a port");
    loop {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(tcp) => return tcp,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "nobody listens at {host}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn listen(port: &str) -> TcpStream {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let mut tcp = None;
    let ready = || {
        tcp = listener.accept().ok();
        tcp.is_some()
    };
    wait("somebody who asks", ready, || std::thread::sleep(Duration::from_millis(10)));
    tcp.expect("set when ready").0
}

#[test]
#[ignore = "needs two machines with RDMA devices: ci/softroce.d/two"]
fn two_machines() {
    let Ok(part) = std::env::var("BELLWETHER_ACROSS") else {
        return eprintln!("BELLWETHER_ACROSS is not set: nothing is tried");
    };
    let mut pair = match part.split_once(':') {
        Some(("serve", port)) => Pair::meet(listen(port), 0),
        Some(("ask", host)) => Pair::meet(dial(host), 1),
        _ => panic!("BELLWETHER_ACROSS={part}: expected serve:PORT or ask:HOST:PORT"),
    };
    let steps: [Step; 8] = [
        ("puts", puts),
        ("gets", gets),
        ("atomics of 8 bytes", |pair| atomics::<u64>(pair, WORDS)),
        ("atomics of 4 bytes", |pair| atomics::<u32>(pair, WORDS + 1024)),
        ("messages", messages),
        ("fence", fences),
        ("drops", drops),
        ("bytes that leave the host", traffic),
    ];
    for (what, step) in steps {
        let start = Instant::now();
        step(&mut pair);
        pair.together(what);
        println!("across: {what}: ok, {:.1} s", start.elapsed().as_secs_f64());
    }
}

fn puts(pair: &mut Pair) {
    let (mine, theirs) = (pattern(LARGE, pair.mine), pattern(LARGE, pair.theirs));
    pair.insist("a short put", || pair.endpoint.put_short(&mine[..40], pair.remote(SHORT), &pair.key));
    pair.put("a packed put of 8 bytes", &mine[..8], EIGHT);
    pair.put("a packed put of 64 KiB", &mine, PACKED);
    let from = pair.side.domain.allocate(STRAIGHT_LEN, &[Method::Heap]).expect("memory");
    let straight = pattern(STRAIGHT_LEN, pair.mine);
    // SAFETY: fresh memory of that length.
    unsafe { std::ptr::copy_nonoverlapping(straight.as_ptr(), from.address(), STRAIGHT_LEN) };
    pair.complete("a straight put", |done| {
        // SAFETY: the memory is left alone until the completion.
        unsafe { pair.endpoint.put_zcopy(&[whole(&from)], pair.remote(STRAIGHT), &pair.key, Some(done)) }
    });
    pair.flush("puts");
    pair.together("all is put");
    assert_eq!(pair.side.bytes(SHORT, 40), theirs[..40]);
    assert_eq!(pair.side.bytes(EIGHT, 8), theirs[..8]);
    assert!(pair.side.bytes(PACKED, LARGE) == theirs, "64 KiB are not what was put");
    assert!(pair.side.bytes(STRAIGHT, STRAIGHT_LEN) == pattern(STRAIGHT_LEN, pair.theirs), "a straight put differs");
}

fn whole(memory: &Allocation) -> Iov<'_> {
    let (pointer, length) = (memory.address(), memory.region().len());
    Iov { pointer, length, stride: length, count: 1, region: Some(memory.region()) }
}

fn gets(pair: &mut Pair) {
    let theirs = pattern(LARGE, pair.theirs);
    assert_eq!(pair.get("a packed get of 8 bytes", SOURCE, 8), theirs[..8]);
    assert!(pair.get("a packed get of 64 KiB", SOURCE, LARGE) == theirs, "a packed get differs");
    let to = pair.side.domain.allocate(LARGE, &[Method::Heap]).expect("memory");
    pair.complete("a straight get", |done| {
        // SAFETY: the memory is left alone until the completion.
        unsafe { pair.endpoint.get_zcopy(&[whole(&to)], pair.remote(SOURCE), &pair.key, Some(done)) }
    });
    // SAFETY: the get is complete.
    let got = unsafe { std::slice::from_raw_parts(to.address(), LARGE) };
    assert!(got == theirs, "a straight get differs");
}

/// Each on a word of its own, which the peer's processor does not touch meanwhile.
fn atomics<T: Word>(pair: &mut Pair, words: u64) {
    let value = T::narrow(0xf0f0_f0f0_1234_5678);
    let result = |op, held: T| {
        let (held, value) = (held.widen(), value.widen());
        T::narrow(match op {
            AtomicOp::Add => held.wrapping_add(value),
            AtomicOp::And => held & value,
            AtomicOp::Or => held | value,
            AtomicOp::Xor => held ^ value,
            AtomicOp::Swap | AtomicOp::CompareSwap => value,
        })
    };
    for op in AtomicOp::ALL {
        let at = words + op as u64 * 8;
        let (what, remote, start) = (format!("{op:?} of {} bytes", size_of::<T>()), pair.remote(at), T::narrow(HELD));
        let found = Box::leak(Box::new(T::narrow(0)));
        let swap = |compare: T, found: &mut T| {
            pair.complete(&what, |done| {
                // SAFETY: the result is left alone until the completion.
                unsafe { pair.endpoint.atomic_compare_swap(compare, value, found, remote, &pair.key, Some(done)) }
            });
        };
        let mut holds = result(op, start);
        if op == AtomicOp::CompareSwap {
            swap(T::narrow(1), found);
            assert_eq!(*found, start, "{what} with another comparand");
            swap(start, found);
        } else {
            pair.complete(&what, |done| {
                // SAFETY: as above.
                unsafe { pair.endpoint.atomic_fetch(op, value, found, remote, &pair.key, Some(done)) }
            });
        }
        assert_eq!(*found, start, "{what}: the result");
        if AtomicOp::POST & 1 << op as u32 != 0 {
            holds = result(op, holds);
            pair.insist(&what, || pair.endpoint.atomic_post(op, value, remote, &pair.key));
        }
        pair.flush(&what);
        let word = pair.get("a word", at, size_of::<T>());
        assert_eq!(word, holds.widen().to_le_bytes()[..word.len()], "{what}: what the word holds");
    }
}

fn messages(pair: &mut Pair) {
    const SHORTS: u64 = 50;
    const LONGS: usize = 5;
    const LONG: usize = 100 << 10;
    let (short, long) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    for (id, came) in [(1, &short), (2, &long)] {
        let came = Rc::clone(came);
        let handler = move |message: &crate::transport::Message<'_>| came.borrow_mut().push(message.data().to_vec());
        pair.side.interface.set_handler(id, Some(Box::new(handler))).expect("a good id");
    }
    pair.together("handlers are set");
    for number in 0..SHORTS {
        pair.insist("a short message", || pair.endpoint.am_short(1, number, &pattern(16, pair.mine)));
    }
    for number in 0..LONGS {
        let bytes = pattern(LONG, pair.mine + number);
        let pack = |buffer: &mut [u8]| {
            buffer[..LONG].copy_from_slice(&bytes);
            LONG
        };
        pair.insist("a long message", || pair.endpoint.am_bcopy(2, LONG, pack));
    }
    wait("short messages", || short.borrow().len() as u64 == SHORTS, || pair.turn());
    wait("long messages", || long.borrow().len() == LONGS, || pair.turn());
    pair.flush("messages");
    for (number, data) in short.borrow().iter().enumerate() {
        assert_eq!(data[..8], (number as u64).to_ne_bytes(), "in order");
        assert_eq!(data[8..], pattern(16, pair.theirs));
    }
    for (number, data) in long.borrow().iter().enumerate() {
        assert!(*data == pattern(LONG, pair.theirs + number), "long message {number} differs");
    }
}

fn fences(pair: &mut Pair) {
    // SAFETY: inside our memory and aligned; the peer's device writes it whole.
    let flag = unsafe { &*pair.side.memory.address().add(FLAG as usize).cast::<AtomicU64>() };
    for round in 1..=20u64 {
        pair.put("data", &[round as u8; 10_000], DATA);
        pair.endpoint.fence().expect("fences");
        let word = round.to_ne_bytes();
        pair.insist("a flag", || pair.endpoint.put_short(&word, pair.remote(FLAG), &pair.key));
        // Acquire: the data, which was put before the flag, is read after the flag.
        wait("the flag", || flag.load(Ordering::Acquire) == round, || pair.turn());
        assert!(pair.side.bytes(DATA, 10_000).iter().all(|byte| *byte == round as u8), "the flag overtook the data");
        pair.together("data was read");
    }
}

/// After an endpoint is dropped its user's memory is free again, and other endpoints go on. Here operations take a while.
fn drops(pair: &mut Pair) {
    let to = pair.side.domain.allocate(LARGE, &[Method::Heap]).expect("memory");
    for round in 0..4 {
        let goes = pair.side.interface.connect(&pair.address).expect("connects");
        for _ in 0..4 {
            // SAFETY: the memory is left alone until the endpoint is gone.
            let get = || unsafe { goes.get_zcopy(&[whole(&to)], pair.remote(SOURCE), &pair.key, None) };
            assert_eq!(pair.insist("a straight get", get), Posted::InProgress);
        }
        pair.put("a put of the endpoint that stays", &[round; 8], EIGHT);
        drop(goes);
        // SAFETY: our memory, which no device uses any more.
        unsafe { std::ptr::write_bytes(to.address(), 0xee, LARGE) };
        assert_eq!(pair.get("a get of the endpoint that stays", SOURCE, 8), pattern(8, pair.theirs));
        pair.flush("a put");
        // SAFETY: as above.
        let left = unsafe { std::slice::from_raw_parts(to.address(), LARGE) };
        assert!(left.iter().all(|byte| *byte == 0xee), "memory was written after the endpoint had gone");
    }
    pair.together("all is dropped");
    assert_eq!(pair.side.bytes(EIGHT, 8), [3; 8]);
    assert_eq!(pair.endpoint.check(), Ok(()));
}

/// The bytes of puts leave by the network interface: checked with a counter of the kernel, which counts soft-RoCE's packets too.
fn traffic(pair: &mut Pair) {
    const PUTS: usize = 16;
    let offer = offer();
    let interface =
        format!("/sys/class/infiniband/{}/ports/{}/gid_attrs/ndevs/{}", offer.device, offer.port, offer.gid_index);
    let interface = std::fs::read_to_string(interface).expect("the device's network interface");
    let counter = format!("/sys/class/net/{}/statistics/tx_bytes", interface.trim());
    let left = || -> u64 { std::fs::read_to_string(&counter).expect("a counter").trim().parse().expect("a number") };
    let before = left();
    for _ in 0..PUTS {
        pair.put("a packed put", &pattern(LARGE, 3), PACKED);
    }
    pair.flush("puts");
    let (sent, grew) = ((PUTS * LARGE) as u64, left() - before);
    println!("across: {sent} bytes were put, and {grew} left by {}", interface.trim());
    // More: headers, the answers to the other side, and what was sent twice.
    assert!((sent..sent * 3).contains(&grew), "{sent} bytes were put, but {grew} left the host");
}

/// A rank connected to two others, in one process.
struct Trio {
    sides: [Side; 3],
    others: [(Endpoint, RemoteKey); 2],
    heard: Rc<RefCell<Vec<(u32, Error)>>>,
}

impl Trio {
    /// One put has come to each.
    fn meet() -> Trio {
        let sides = [0, 1, 2].map(|rank| Side::open(rank, 3));
        let asker = &sides[0];
        let heard = Rc::new(RefCell::new(Vec::new()));
        let told = Rc::clone(&heard);
        let handler = move |endpoint, error| told.borrow_mut().push((endpoint, error));
        asker.interface.set_error_handler(Some(Box::new(handler)));
        let others = [1, 2].map(|rank: usize| {
            let packed = sides[rank].domain.pack_key(sides[rank].memory.region());
            // SAFETY: the memory lives as long as the sides do.
            let key = unsafe { asker.domain.unpack_key(&packed) }.expect("a key");
            (asker.interface.connect(&sides[rank].interface.address()).expect("connects"), key)
        });
        let trio = Trio { sides, others, heard };
        for rank in [1, 2] {
            trio.put(rank, 6 + rank as u64).expect("is allowed");
            trio.arrives(rank, 6 + rank as u64);
        }
        trio
    }

    fn turn(&self) {
        self.sides.iter().for_each(|side| _ = side.worker.progress());
    }

    fn put_with(&self, rank: usize, key: &RemoteKey, value: u64) -> Result<()> {
        let outcome = Cell::new(None);
        let ready = || {
            outcome.set(Some(self.others[rank - 1].0.put_short(&value.to_ne_bytes(), key.address(), key)));
            outcome.get() != Some(Err(Error::NoResource))
        };
        wait("room for a put", ready, || self.turn());
        outcome.get().expect("set when ready")
    }

    fn put(&self, rank: usize, value: u64) -> Result<()> {
        self.put_with(rank, &self.others[rank - 1].1, value)
    }

    fn arrives(&self, rank: usize, value: u64) {
        wait("a put", || self.sides[rank].bytes(0, 8) == value.to_ne_bytes(), || self.turn());
    }

    /// The error handler is told that the connection to rank 1 is lost. The connection to rank 2 stays.
    fn first_is_lost(&self) {
        let (bad, good) = (&self.others[0].0, &self.others[1].0);
        let told = || {
            let _ = bad.flush(Flush::REMOTE, None);
            !self.heard.borrow().is_empty()
        };
        wait("the error handler", told, || self.turn());
        assert_eq!(*self.heard.borrow(), [(bad.index(), Error::ConnectionReset)]);
        assert_eq!(bad.check(), Err(Error::ConnectionReset));
        assert_eq!(self.put(1, 10), Err(Error::ConnectionReset));

        assert_eq!(good.check(), Ok(()));
        for value in 11..30 {
            self.put(2, value).expect("goes on");
            self.arrives(2, value);
        }
        assert_eq!(self.sides[1].bytes(0, 8), 7u64.to_ne_bytes(), "nothing more came there");
        assert_eq!(self.heard.borrow().len(), 1, "told once");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_refused_access_ends_one_connection_and_no_other() {
    let trio = Trio::meet();
    // A key that the target's device never gave out.
    let key = trio.others[0].1;
    let wrong = RemoteKey { device: Opaque::number(key.device.as_number() ^ 0x5a_5a00), ..key };
    trio.put_with(1, &wrong, 9).expect("only the target knows");
    trio.first_is_lost();
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_flood_of_puts_that_are_refused_ends_in_an_error() {
    for large in [false, true] {
        let trio = Trio::meet();
        let (end, key) = &trio.others[0];
        let wrong = RemoteKey { device: Opaque::number(key.device.as_number() ^ 0x5a_5a00), ..*key };
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed().as_secs() < 20, "still no error");
            let outcome = match large {
                true => end.put_bcopy(10_000, |room| room.len(), wrong.address(), &wrong).map(drop),
                false => end.put_short(&7u64.to_ne_bytes(), wrong.address(), &wrong),
            };
            match outcome {
                Ok(()) => {}
                Err(Error::NoResource) => trio.turn(),
                Err(error) => break error,
            }
        };
        assert_eq!(error, Error::ConnectionReset);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_queue_pair_driven_to_error_ends_one_connection_and_no_other() {
    let trio = Trio::meet();
    trio.sides[0].device.board().fail(1);
    trio.put(1, 9).expect("the device tells later");
    trio.first_is_lost();
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_flush_that_finds_the_loss_is_not_done() {
    let trio = Trio::meet();
    let end = &trio.others[0].0;
    trio.sides[0].device.board().fail(1);
    trio.put(1, 9).expect("the device tells later");
    let lost = || {
        assert_ne!(end.flush(Flush::REMOTE, None), Ok(Posted::Done), "of a put that never came");
        end.check().is_err()
    };
    wait("the loss", lost, || {});
    let told = Completion::new(1, |_| {});
    assert_eq!(end.flush(Flush::REMOTE, Some(&told)), Ok(Posted::InProgress));
    wait("the end of the flush", || told.count() == 0, || trio.turn());
    assert_eq!(told.status(), Err(Error::ConnectionReset));
    assert_eq!(end.flush(Flush::REMOTE, None), Err(Error::ConnectionReset));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_device_that_fails_ends_every_connection() {
    let trio = Trio::meet();
    trio.sides[0].device.board().hear_fault(rdma_core_sys::IBV_EVENT_DEVICE_FATAL);
    wait("the error handler", || trio.heard.borrow().len() == 2, || trio.turn());
    for (rank, (endpoint, _)) in (1..).zip(&trio.others) {
        assert_eq!(endpoint.check(), Err(Error::ConnectionReset));
        assert_eq!(trio.put(rank, 10), Err(Error::ConnectionReset));
        assert!(trio.heard.borrow().contains(&(endpoint.index(), Error::ConnectionReset)));
    }
}

/// Bytes of queues that this process shares with devices.
fn queues() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
    let hex = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    let len = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some(hex(to) - hex(from))
    };
    maps.lines().filter(|line| line.contains("/infiniband/")).filter_map(len).sum()
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_peer_takes_what_is_told_and_nothing_before_it_is_talked_to() {
    let sides = [0, 1].map(|rank| Side::open(rank, 2));
    let [asker, asked] = &sides;
    let turn = || sides.iter().for_each(|side| _ = side.worker.progress());
    let told = asker.interface.attributes().memory_per_peer;
    assert!(told <= 16 << 10, "{told}");
    let before = queues();
    let endpoint = asker.interface.connect(&asked.interface.address()).expect("connects");
    turn();
    assert_eq!(queues(), before, "an endpoint alone takes no queue");
    assert_eq!(asker.interface.wire().peers_in_use(), 0);

    // SAFETY: the memory lives until the end of the test.
    let key = unsafe { asker.domain.unpack_key(&asked.domain.pack_key(asked.memory.region())) }.expect("a key");
    let sent = || endpoint.put_short(&7u64.to_ne_bytes(), key.address(), &key) != Err(Error::NoResource);
    wait("room for a put", sent, turn);
    wait("a put", || asked.bytes(0, 8) == 7u64.to_ne_bytes(), turn);
    assert_eq!(asker.interface.wire().peers_in_use(), 1);
    // Both sides are in this process.
    let each = (queues() - before) / 2;
    println!("a peer: {told} bytes told, of them {each} of queues");
    assert!(each > 0 && each + size_of::<crate::transport::verbs::link::Link>() <= told, "{each} of {told}");
}
