//! The transports of this crate, set up for the conformance suite.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::conformance::{Player, Rig, join};
use super::lock::Mutex;
use super::{InterfaceOptions, shm, sim, tcp, verbs};
use crate::conformance;
use crate::error::Loss;
use crate::membership::{Arrival, JobMemory};
use crate::memory::layout::SlotLayout;
use crate::memory::node::{NodeMemory, Slots};
use crate::settings::Settings;

/// The system's allocator, with counts for each thread: they show a leak even if other tests allocate meanwhile.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this thread so far, those that only grew included.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread has allocated and not freed.
pub(crate) fn held() -> isize {
    HELD.get()
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.set(HELD.get() + size as isize - layout.size() as isize);
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller guarantees it.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the caller guarantees it.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Shared memory, with shallow lanes. `EMULATE`: puts, gets and atomics over its messages.
struct Shm<const EMULATE: bool> {
    job: Arc<JobMemory>,
    devices: Vec<shm::Device>,
}

impl<const EMULATE: bool> Drop for Shm<EMULATE> {
    fn drop(&mut self) {
        one_after_the_other();
    }
}

/// Orders the end of one test before the start of the next that gets its addresses. The kernel does so, but the thread
/// sanitizer does not see memory come and go.
fn one_after_the_other() {
    static TURN: Mutex<()> = Mutex::new(());
    drop(TURN.lock());
}

struct Thread {
    rank: usize,
    start: Instant,
}

impl Player for Thread {
    fn rank(&self) -> usize {
        self.rank
    }
    fn idle(&self) {
        std::thread::yield_now();
    }
    fn pass(&self) {
        std::thread::yield_now();
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl<const EMULATE: bool> Rig for Shm<EMULATE> {
    type Transport = shm::Device;
    const SHORTEN: usize = if cfg!(bellwether_tsan) { 20 } else { 1 };
    const ATOMICS: usize = if EMULATE { 500 } else { 100_000 };

    fn new(ranks: usize) -> Self {
        let settings = Settings::default();
        let job = Arc::new(JobMemory::create(ranks, &settings).expect("a job"));
        let slots = Slots::of(&job, false);
        let node = Arc::new(NodeMemory::map(job.fd(), slots).expect("mapped"));
        let layout = SlotLayout::new(ranks, ranks, 1 << job.stride_log2(), Some(16));
        let devices = (0..ranks)
            .map(|rank| {
                let len = layout.control_len.next_multiple_of(node.granule(0));
                node.commit(rank, 0, len, ranks, "memory to start", "").expect("memory");
                job.arrive(rank, Arrival { base: node.origin() as usize, build: 0, shape: 0 }).expect("arrives");
                let (job, node) = (Arc::clone(&job), Arc::clone(&node));
                let message_memory = 4 << 20;
                let place = shm::NodeRank { rank, job, node, layout, message_memory, cross_memory_attach: true };
                shm::Device::new(place, layout.heap..layout.heap + (16 << 20))
            })
            .collect();
        one_after_the_other();
        Shm { job, devices }
    }

    fn transport(&self, rank: usize) -> shm::Device {
        self.devices[rank].clone()
    }

    fn options() -> InterfaceOptions {
        InterfaceOptions {
            emulate: EMULATE,
            max_zcopy: 1 << 20,
            max_bcopy: 16 << 10,
            max_iov: 8,
            window: 8,
            ..InterfaceOptions::default()
        }
    }

    fn held() -> Option<isize> {
        Some(HELD.get())
    }

    fn kill(&self, rank: usize) {
        self.job.mark_lost(rank, Loss::Exited(1));
    }

    fn ranks(&self, program: &(dyn Fn(&dyn Player) + Sync)) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let start = |rank| scope.spawn(move || program(&Thread { rank, start }));
            join((0..self.devices.len()).map(start).collect());
        });
    }
}

/// The first RDMA device there is; each rank opens it for itself. `EMULATE` as above.
struct Verbs<const EMULATE: bool>(Vec<verbs::Device>);

impl<const EMULATE: bool> Rig for Verbs<EMULATE> {
    type Transport = verbs::Device;
    const BY_ITSELF: bool = true;
    // Under emulation a round trip takes a tenth of a millisecond.
    const SHORTEN: usize = 50;

    fn new(ranks: usize) -> Self {
        let wanted = std::env::var("BELLWETHER_VERBS_DEVICE").ok();
        let offers = verbs::offers(wanted.as_deref()).expect("an RDMA device");
        Verbs((0..ranks).map(|rank| verbs::Device::new(rank, ranks, &offers[0]).expect("opens")).collect())
    }

    fn transport(&self, rank: usize) -> verbs::Device {
        self.0[rank].clone()
    }

    fn options() -> InterfaceOptions {
        Shm::<EMULATE>::options()
    }

    fn kill(&self, rank: usize) {
        self.0[rank].kill();
    }

    fn ranks(&self, program: &(dyn Fn(&dyn Player) + Sync)) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let start = |rank| scope.spawn(move || program(&Thread { rank, start }));
            join((0..self.0.len()).map(start).collect());
        });
    }
}

/// TCP over the loopback interface, with shallow queues. `EMULATE` as above. `ENCRYPT`: frames are encrypted.
struct Tcp<const EMULATE: bool, const ENCRYPT: bool>(Vec<tcp::Device>);

impl<const EMULATE: bool, const ENCRYPT: bool> Rig for Tcp<EMULATE, ENCRYPT> {
    type Transport = tcp::Device;
    const BY_ITSELF: bool = true;
    const SHORTEN: usize = 50;

    /// Threads of the device allocate for themselves.
    fn held() -> Option<isize> {
        Some(HELD.get())
    }

    fn new(ranks: usize) -> Self {
        Tcp((0..ranks).map(|rank| tcp::Device::shallow(rank, ranks, ENCRYPT)).collect())
    }

    fn transport(&self, rank: usize) -> tcp::Device {
        self.0[rank].clone()
    }

    fn options() -> InterfaceOptions {
        Shm::<EMULATE>::options()
    }

    fn kill(&self, rank: usize) {
        self.0[rank].kill();
    }

    fn ranks(&self, program: &(dyn Fn(&dyn Player) + Sync)) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let start = |rank| scope.spawn(move || program(&Thread { rank, start }));
            join((0..self.0.len()).map(start).collect());
        });
    }
}

/// TCP between hosts: ranks are dealt out to the network namespaces that `BELLWETHER_TEST_NAMESPACES` names.
struct Hosts(Tcp<false, false>);

impl Rig for Hosts {
    type Transport = tcp::Device;
    const BY_ITSELF: bool = true;
    const SHORTEN: usize = 50;

    fn held() -> Option<isize> {
        Some(HELD.get())
    }

    fn new(ranks: usize) -> Self {
        static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
            let names = std::env::var("BELLWETHER_TEST_NAMESPACES").expect("names of namespaces");
            names.split(' ').map(str::to_owned).collect()
        });
        let device =
            |rank: usize| tcp::Device::shallow_in(Some(NAMES[rank % NAMES.len()].as_str()), rank, ranks, false);
        Hosts(Tcp((0..ranks).map(device).collect()))
    }

    fn transport(&self, rank: usize) -> tcp::Device {
        self.0.transport(rank)
    }

    fn options() -> InterfaceOptions {
        Shm::<false>::options()
    }

    fn kill(&self, rank: usize) {
        self.0.kill(rank);
    }

    fn ranks(&self, program: &(dyn Fn(&dyn Player) + Sync)) {
        self.0.ranks(program);
    }
}

thread_local!(static SEED: Cell<u64> = const { Cell::new(1) });

const PLAIN: u8 = 0;
const WILD: u8 = 1;
const TINY: u8 = 2;
const NATIVE: u8 = 3;
const POSTED: u8 = 4;
const NO_ATOMICS: u8 = 5;

/// The simulated network, in one of its moods.
struct Sim<const MOOD: u8>(sim::Network);

struct Simulated<'a>(&'a sim::Turn);

impl Player for Simulated<'_> {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn idle(&self) {
        self.0.block_until_event().expect("something is under way");
    }
    fn pass(&self) {
        // A moment, so that frames in flight can arrive.
        self.0.compute(100).expect("time passes");
    }
    fn sleep(&self, time: Duration) {
        self.0.compute(time.as_nanos() as u64).expect("time passes");
    }
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now())
    }
}

impl<const MOOD: u8> Rig for Sim<MOOD> {
    type Transport = sim::Node;
    const SHORTEN: usize = if MOOD == TINY { 500 } else { 50 };

    fn new(ranks: usize) -> Self {
        let mut config = sim::Config::new(ranks, SEED.get());
        config.flow.slots = 8;
        config.flow.credits = 8;
        config.flow.message = 16 << 10;
        let config = match MOOD {
            WILD => config.wild(),
            TINY => config.wild().tiny(),
            POSTED => sim::Config { memory: crate::transport::Memory::Posted, ..config }.wild(),
            NO_ATOMICS => sim::Config { memory: crate::transport::Memory::Posted, native_atomics: false, ..config },
            NATIVE => sim::Config { memory: crate::transport::Memory::Direct, needs_region: false, ..config },
            _ => config,
        };
        Sim(sim::Network::new(config))
    }

    fn transport(&self, rank: usize) -> sim::Node {
        self.0.node(rank)
    }

    fn options() -> InterfaceOptions {
        let (max_bcopy, window) = if MOOD == TINY { (700, 2) } else { (16 << 10, 8) };
        InterfaceOptions { max_zcopy: 300_000, max_bcopy, max_iov: 8, window, ..InterfaceOptions::default() }
    }

    fn turn(&self) -> bool {
        self.0.step().is_some()
    }

    fn held() -> Option<isize> {
        Some(HELD.get())
    }

    fn kill(&self, rank: usize) {
        self.0.kill(rank);
    }

    fn ranks(&self, program: &(dyn Fn(&dyn Player) + Sync)) {
        sim::run(&self.0, |turn| program(&Simulated(turn))).expect("no rank is left waiting");
    }

    fn repeat(name: &str, test: fn()) {
        sim::check(name, if MOOD == TINY { 2 } else { 3 }, |seed| {
            SEED.set(seed);
            test();
        });
    }
}

conformance!(shm_between_threads, Shm<false>);
conformance!(shm_over_messages, Shm<true>);
conformance!(verbs_device, Verbs<false>, ignore = "needs an RDMA device: ci/softroce");
conformance!(verbs_over_messages, Verbs<true>, ignore = "needs an RDMA device: ci/softroce");
conformance!(tcp_on_this_host, Tcp<false, false>);
conformance!(tcp_over_messages, Tcp<true, false>);
conformance!(tcp_encrypted, Tcp<false, true>);
conformance!(tcp_between_hosts, Hosts, ignore = "needs two network namespaces: ci/netns");
conformance!(sim_in_order, Sim<PLAIN>);
conformance!(sim_wild, Sim<WILD>);
conformance!(sim_tiny, Sim<TINY>);
conformance!(sim_native_memory, Sim<NATIVE>);
conformance!(sim_posted_memory, Sim<POSTED>);
conformance!(sim_without_atomics, Sim<NO_ATOMICS>);

#[test]
fn no_arming_before_what_waits() {
    super::conformance::no_arming_before_what_waits::<Shm<false>>();
}
