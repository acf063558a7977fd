//! Rows of the transport contract between two processes: rank 0 is the test, rank 1 a second copy of this program.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use bellwether_runtime::membership::{Arrival, JobMemory};
use bellwether_runtime::memory::copy;
use bellwether_runtime::memory::layout::SlotLayout;
use bellwether_runtime::memory::node::{NodeMemory, Slots};
use bellwether_runtime::transport::shm::{self, ShmWire};
use bellwether_runtime::transport::*;
use bellwether_runtime::{Loss, Settings};
use rustix::event::{PollFd, PollFlags};

const FD_VARIABLE: &str = "TRANSPORT_TEST_FD";
const LEN: usize = 1 << 16;

/// Messages from the first process to the second, by id.
const ECHO: u8 = 0;
const SLEEP: u8 = 1;
const ARM: u8 = 2;
const ADD: u8 = 3;
const FENCED: u8 = 4;
const NOTHING: u8 = 9;
const ROUNDS: u64 = 20_000;

type Net = port::Interface<ShmWire>;

struct Rank {
    interface: Rc<Net>,
    worker: Worker<Net>,
    domain: port::Domain<shm::Device>,
    memory: Allocation,
    job: Arc<JobMemory>,
}

impl Rank {
    fn open(job: JobMemory, rank: usize) -> Rank {
        let job = Arc::new(job);
        let slots = Slots::of(&job, false);
        let node = Arc::new(NodeMemory::map(job.fd(), slots).expect("mapped"));
        let layout = SlotLayout::new(2, 2, 1 << job.stride_log2(), Some(16));
        let len = layout.control_len.next_multiple_of(node.granule(0));
        node.commit(rank, 0, len, 2, "memory to start", "").expect("memory");
        job.arrive(rank, Arrival { base: node.origin() as usize, build: 0, shape: 0 }).expect("arrives");
        job.await_all().expect("both arrive");
        let (own, message_memory) = (Arc::clone(&job), 4 << 20);
        let place = shm::NodeRank { rank, job: own, node, layout, message_memory, cross_memory_attach: true };
        let device = shm::Device::new(place, layout.heap..layout.heap + (16 << 20));
        let domain = device.open(&device.resources()[0]).expect("opens");
        let worker = Worker::new();
        let interface = domain.open_interface(&worker, InterfaceOptions::default()).expect("opens");
        interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
        let memory = domain.allocate(LEN, &[Method::Domain]).expect("memory");
        Rank { interface, worker, domain, memory, job }
    }

    fn until(&self, what: &str, mut ready: impl FnMut() -> bool) {
        let start = Instant::now();
        while !ready() {
            if self.worker.progress() == 0 {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "still waiting for {what}");
        }
    }

    fn word(&self, index: usize) -> u64 {
        assert!(index < LEN / 8);
        // SAFETY: inside our allocation, changed by peers through the runtime's copies and atomics only.
        unsafe { copy::load(self.memory.address().cast::<u64>().add(index)) }
    }

    fn put<E: Endpoint>(&self, ep: &E, word: u64, at: u64, key: &RemoteKey) {
        self.until("room", || ep.put_short(&word.to_ne_bytes(), key.address() + at, key).is_ok());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16).expect("hex") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The second process. It ends when it is killed.
#[test]
#[ignore = "started by the other test of this file"]
fn second_rank() {
    let Ok(fd) = std::env::var(FD_VARIABLE) else { return };
    // SAFETY: the descriptor was left open for this process by the one that started it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd.parse().expect("a number")) };
    let rank = Rank::open(JobMemory::from_fd(fd, 2).expect("a job"), 1);
    let mut heap = vec![0u64; 64];
    // SAFETY: the buffer lives as long as the process.
    let region = unsafe { rank.domain.register(heap.as_mut_ptr().cast(), 512) }.expect("registers");
    let keys = [rank.domain.pack_key(rank.memory.region()), rank.domain.pack_key(&region)];
    println!("\nhello {} {} {}", hex(&rank.interface.address()), hex(&keys[0]), hex(&keys[1]));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let mut words = line.split_whitespace().map(unhex);
    let ep = Rc::new(rank.interface.connect(&words.next().expect("an address")).expect("connects"));
    let key = unpack(&rank.domain, &words.next().expect("a key")).expect("a key");
    let orders = Rc::new(RefCell::new(Vec::new()));
    for id in [SLEEP, ARM, ADD, FENCED] {
        let list = Rc::clone(&orders);
        rank.interface.set_handler(id, Some(Box::new(move |_| list.borrow_mut().push(id)))).expect("id");
    }
    let back = Rc::clone(&ep);
    let echo = move |m: &Message<'_>| {
        let data = m.data();
        let pack = |to: &mut [u8]| {
            to.copy_from_slice(data);
            data.len()
        };
        back.am_bcopy(ECHO, data.len(), pack).expect("one at a time finds room");
    };
    rank.interface.set_handler(ECHO, Some(Box::new(echo))).expect("id");
    loop {
        if rank.worker.progress() == 0 {
            std::thread::yield_now();
        }
        let Some(order) = orders.borrow_mut().pop() else { continue };
        match order {
            SLEEP => {
                rank.put(&*ep, 1, 0, &key);
                // It makes no progress until a put says that all is done.
                let start = Instant::now();
                while rank.word(7) != 1 && start.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                rank.put(&*ep, 2, 0, &key);
            }
            ARM => {
                let fd = rank.interface.event_descriptor().expect("a descriptor");
                while rank.interface.arm(Events::RECEIVE).is_err() {
                    rank.worker.progress();
                }
                rank.put(&*ep, 3, 0, &key);
                let limit = rustix::fs::Timespec { tv_sec: 20, tv_nsec: 0 };
                let ready = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("polls");
                rank.put(&*ep, if ready == 1 { 4 } else { 99 }, 0, &key);
            }
            ADD => {
                for _ in 0..ROUNDS {
                    ep.atomic_post(AtomicOp::Add, 1u64, key.address() + 8, &key).expect("adds");
                }
                rank.put(&*ep, 5, 0, &key);
            }
            _ => {
                for round in 1..=ROUNDS {
                    rank.until("the flag", || rank.word(1) == round);
                    fence(Ordering::Acquire);
                    assert!((2..100).all(|index| rank.word(index) == round), "the flag overtook its data");
                    rank.put(&*ep, round, 16, &key);
                }
            }
        }
    }
}

struct Second(Child);

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_processes_keep_the_contract() {
    let job = JobMemory::create(2, &Settings::default()).expect("a job");
    // A copy without close-on-exec, which the second process inherits.
    let passed = rustix::io::dup(job.fd()).expect("a descriptor");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "second_rank", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FD_VARIABLE, passed.as_raw_fd().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(passed);
    let mut stdin = child.stdin.take().expect("piped");
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut child = Second(child);
    let rank = Rank::open(job, 0);
    let hello = stdout.lines().map_while(Result::ok).find(|line| line.starts_with("hello ")).expect("a greeting");
    let words: Vec<Vec<u8>> = hello.split_whitespace().skip(1).map(unhex).collect();
    let own_key = rank.domain.pack_key(rank.memory.region());
    writeln!(stdin, "{} {}", hex(&rank.interface.address()), hex(&own_key)).expect("a line");
    let ep = rank.interface.connect(&words[0]).expect("connects");
    let key = unpack(&rank.domain, &words[1]).expect("a key");
    let outside = unpack(&rank.domain, &words[2]).expect("a key");

    // U25, U26: messages in lines and in blocks, there and back.
    let got = Rc::new(RefCell::new(Vec::new()));
    let into = Rc::clone(&got);
    rank.interface.set_handler(ECHO, Some(Box::new(move |m| into.borrow_mut().push(m.data().to_vec())))).expect("id");
    for len in [0usize, 8, 56, 57, 1000, 100_000] {
        let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let pack = |to: &mut [u8]| {
            to.copy_from_slice(&data);
            len
        };
        rank.until("room", || ep.am_bcopy(ECHO, len, pack).is_ok());
        rank.until("the echo", || !got.borrow().is_empty());
        assert_eq!(got.borrow_mut().pop(), Some(data));
    }

    // U42: a pointer into the other process's segment; U4: get what was stored through it.
    let pointer = rank.domain.key_pointer(&key, key.address() + 40).expect("shared memory has one");
    // SAFETY: inside the peer's allocation.
    unsafe { copy::store(pointer.cast::<u64>(), 4711) };
    let mut back = [0; 8];
    ep.get_short(&mut back, key.address() + 40, &key).expect("gets");
    assert_eq!(u64::from_ne_bytes(back), 4711);

    // U41: the other process's heap, where the kernel allows it.
    match ep.put_short(&[7; 16], outside.address() + 8, &outside) {
        Ok(()) => {
            ep.get_short(&mut back, outside.address() + 16, &outside).expect("gets");
            assert_eq!(back, [7; 8]);
        }
        Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
    }
    // Atomics outside segments are not offered, as the attributes say.
    assert!(rank.interface.attributes().atomics_on_allocated_only);
    let refused = ep.atomic_post(AtomicOp::Add, 1u64, outside.address(), &outside);
    assert!(matches!(refused, Err(Error::Unsupported(_))));

    // U34: everything while the target sleeps.
    ep.am_short(SLEEP, 0, &[]).expect("room");
    rank.until("its sleep", || rank.word(0) == 1);
    rank.put(&ep, 6, 48, &key);
    let mut found = 0u64;
    // SAFETY: the result outlives the flush.
    let posted = unsafe { ep.atomic_compare_swap(6, 7, &raw mut found, key.address() + 48, &key, None) };
    assert_eq!((posted, found), (Ok(Posted::Done), 6));
    assert_eq!(ep.flush(Flush::REMOTE, None), Ok(Posted::Done));
    assert_eq!(rank.word(0), 1, "it has slept all the time");
    rank.put(&ep, 1, 56, &key);
    rank.until("its awakening", || rank.word(0) == 2);

    // U54: it sleeps in poll(2) until a message comes.
    ep.am_short(ARM, 0, &[]).expect("room");
    rank.until("arming", || rank.word(0) == 3);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rank.word(0), 3, "it sleeps");
    ep.am_short(NOTHING, 0, &[]).expect("room");
    rank.until("the event", || rank.word(0) >= 4);
    assert_eq!(rank.word(0), 4);

    // U5: both add to one word of this process.
    let own = unpack(&rank.domain, &own_key).expect("a key");
    let to_self = rank.interface.connect(&rank.interface.address()).expect("connects");
    ep.am_short(ADD, 0, &[]).expect("room");
    for _ in 0..ROUNDS {
        to_self.atomic_post(AtomicOp::Add, 1u64, own.address() + 8, &own).expect("adds");
    }
    rank.until("the other's adds", || rank.word(0) == 5);
    assert_eq!(rank.word(1), 2 * ROUNDS);

    // U17: data, fence, flag.
    ep.am_short(FENCED, 0, &[]).expect("room");
    for round in 1..=ROUNDS {
        let bytes: Vec<u8> = [round; 98].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let pack = |to: &mut [u8]| {
            to.copy_from_slice(&bytes);
            to.len()
        };
        ep.put_bcopy(bytes.len(), pack, key.address() + 16, &key).expect("puts");
        ep.fence().expect("fences");
        rank.put(&ep, round, 8, &key);
        rank.until("the answer", || rank.word(2) == round);
    }

    // U10, U46: it is killed; the endpoint hears of it, once.
    let heard = Rc::new(Cell::new(0));
    let count = Rc::clone(&heard);
    let note = move |_, error| {
        assert_eq!(error, Error::ConnectionReset);
        count.set(count.get() + 1);
    };
    rank.interface.set_error_handler(Some(Box::new(note)));
    child.0.kill().expect("ends");
    assert!(!child.0.wait().expect("ended").success());
    rank.job.mark_lost(1, Loss::Signaled(9));
    rank.until("the loss", || heard.get() == 1);
    for _ in 0..300 {
        rank.worker.progress();
    }
    assert_eq!(heard.get(), 1);
    assert_eq!(ep.put_short(&[1; 8], key.address(), &key), Err(Error::ConnectionReset));
    assert_eq!(to_self.check(), Ok(()));
}

fn unpack(domain: &impl Domain, bytes: &[u8]) -> Result<RemoteKey> {
    // SAFETY: every key here was packed by the other process, whose region lives until both have ended.
    unsafe { domain.unpack_key(bytes) }
}
