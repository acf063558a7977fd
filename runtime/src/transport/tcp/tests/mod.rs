//! Tests with interfaces on this host: connections that break, and strangers (callers that do not prove that they are ranks of the job).

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::address::Address;
use super::calls::STRANGERS;
use super::handshake::{HELLO, Hello, NONCE, Position};
use super::*;
use crate::error::Loss;
use crate::settings::Settings;
use crate::transport::conformance::wait;
use crate::transport::{
    AtomicOp, Completion, Directions, Domain as _, Endpoint as _, Events, Flush, Interface as _, InterfaceOptions, Iov,
    Posted, Resume, Worker,
};

/// All objects of one rank.
struct End {
    device: Device,
    domain: port::Domain<Device>,
    interface: Rc<port::Interface<TcpWire>>,
    worker: Worker<port::Interface<TcpWire>>,
}

impl End {
    fn open(device: Device) -> End {
        let domain = super::super::Transport::open(&device, &port::Device::resource(&device)).expect("opens");
        let worker = Worker::new();
        let interface = domain.open_interface(&worker, InterfaceOptions::default()).expect("opens");
        interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
        End { device, domain, interface, worker }
    }

    fn pair() -> [End; 2] {
        End::pair_that([false; 2])
    }

    /// Two ranks. `encrypts` says for each whether it encrypts.
    fn pair_that(encrypts: [bool; 2]) -> [End; 2] {
        [0, 1].map(|rank| End::open(Device::shallow(rank, 2, encrypts[rank])))
    }

    fn shared(&self) -> &Arc<shared::Shared> {
        self.interface.wire().shared()
    }

    fn connect(&self, to: &End) -> port::Endpoint<TcpWire> {
        self.interface.connect(&to.interface.address()).expect("connects")
    }

    fn port(&self) -> u16 {
        Address::decode(&self.interface.address()).expect("its own").port
    }

    /// Breaks the connection to the rank `peer`.
    fn cut(&self, peer: u32) {
        self.shared().lock().cut(peer);
    }
}

fn turn(ends: &[End]) {
    for end in ends {
        end.worker.progress();
    }
}

#[test]
fn connections_that_break_lose_and_repeat_nothing() {
    [false, true].into_iter().for_each(breaks);
}

fn breaks(encrypts: bool) {
    const ROUNDS: u64 = 3000;
    let ends = End::pair_that([encrypts; 2]);
    let came = [0, 1].map(|_| Rc::new(RefCell::new(Vec::new())));
    for (end, came) in ends.iter().zip(&came) {
        let list = Rc::clone(came);
        let note =
            move |message: &crate::transport::Message<'_>| list.borrow_mut().push(message.short().expect("short").0);
        end.interface.set_handler(0, Some(Box::new(note))).expect("an id");
    }
    let counter = [const { AtomicU64::new(0) }; 1000];
    // SAFETY: the memory outlives the region, and is only touched through atomics.
    let region = unsafe { ends[1].domain.register(counter.as_ptr().cast_mut().cast(), 8000) }.expect("registers");
    // SAFETY: packed by a peer whose region lives as long as the key is used.
    let key = unsafe { ends[0].domain.unpack_key(&ends[1].domain.pack_key(&region)) }.expect("a key");
    let to = [ends[0].connect(&ends[1]), ends[1].connect(&ends[0])];
    let large = vec![0x77u8; 7000];
    let put = Arc::new(AtomicU64::new(0));
    let mut sent = [0, 0];
    let (mut added, mut puts, mut cuts) = (0, 0, 0);
    let start = Instant::now();
    while came.iter().any(|came| came.borrow().len() < ROUNDS as usize) {
        assert!(start.elapsed() < Duration::from_secs(60), "{sent:?} sent, {cuts} cuts");
        for end in [0, 1] {
            if sent[end] < ROUNDS && to[end].am_short(0, sent[end], &[]).is_ok() {
                sent[end] += 1;
                if sent[end].is_multiple_of(200) {
                    ends[(cuts % 2) as usize].cut(1 - cuts % 2);
                    cuts += 1;
                }
            }
        }
        if to[0].atomic_post(AtomicOp::Add, 1u64, key.address(), &key).is_ok() {
            added += 1;
        }
        if puts - put.load(Relaxed) < 2 {
            let done = Arc::clone(&put);
            let completion = Completion::new(1, move |status| {
                assert_eq!(status, Ok(()));
                done.fetch_add(1, Relaxed);
            });
            // SAFETY: the bytes outlive the flush below.
            let posted = unsafe { to[0].put_zcopy(&[Iov::read(&large)], key.address() + 64, &key, Some(&completion)) };
            puts += u64::from(posted.is_ok());
        }
        turn(&ends);
    }
    wait("a flush", || to[0].flush(Flush::REMOTE, None) == Ok(Posted::Done), || turn(&ends));
    assert!(cuts >= 20, "{cuts} cuts");
    for came in &came {
        assert_eq!(*came.borrow(), Vec::from_iter(0..ROUNDS), "in order, each once");
    }
    assert_eq!((counter[0].load(Relaxed), put.load(Relaxed)), (added, puts));
    assert_eq!(counter[8].load(Relaxed), u64::from_ne_bytes([0x77; 8]));
    assert!(to.iter().all(|end| end.check().is_ok()));
}

#[test]
fn of_two_connections_made_at_once_one_stays() {
    for _ in 0..20 {
        let ends = End::pair();
        let came = Rc::new(Cell::new(0));
        for end in &ends {
            let count = Rc::clone(&came);
            end.interface.set_handler(0, Some(Box::new(move |_| count.set(count.get() + 1)))).expect("an id");
        }
        let to = [ends[0].connect(&ends[1]), ends[1].connect(&ends[0])];
        to.iter().for_each(|end| assert_eq!(end.am_short(0, 0, &[]), Ok(())));
        wait("both messages", || came.get() == 2, || turn(&ends));
        let both = |count| ends.iter().all(|end| end.shared().lock().connections() == count);
        wait("one connection", || both(1), || turn(&ends));
    }
}

#[test]
fn a_link_on_which_all_is_well_is_not_missing_however_quiet_it_is() {
    let ends = End::pair();
    let came = Rc::new(Cell::new(0));
    for end in &ends {
        let count = Rc::clone(&came);
        end.interface.set_handler(0, Some(Box::new(move |_| count.set(count.get() + 1)))).expect("an id");
    }
    let to = [ends[0].connect(&ends[1]), ends[1].connect(&ends[0])];
    let is_missing = |end: usize| ends[end].shared().lock().core.peer(1 - end as u32).missing_since.is_some();
    let epoch = |end: usize| ends[end].shared().lock().core.peer(1 - end as u32).link.epoch();
    // A message over the first connection; a break with nothing in flight; a message over the new connection; a message in flight when its
    // sender or its receiver breaks the connection, so that it is sent again.
    for (sender, cutter) in [(Some(0), None), (None, Some(0)), (Some(1), None), (Some(0), Some(0)), (Some(1), Some(0))]
    {
        let before = came.get();
        let epochs = [0, 1].map(epoch);
        if let Some(sender) = sender {
            assert_eq!(to[sender].am_short(0, 0, &[]), Ok(()));
        }
        if let Some(cutter) = cutter {
            ends[cutter].cut(1 - cutter as u32);
        }
        if sender.is_some() {
            wait("the message", || came.get() > before, || turn(&ends));
        }
        if cutter.is_some() {
            wait("another connection", || [0, 1].iter().all(|end| epoch(*end) > epochs[*end]), || turn(&ends));
        }
        wait("a quiet link", || !is_missing(0) && !is_missing(1), || turn(&ends));
        assert!(to.iter().all(|end| end.check().is_ok()), "the peer is lost");
    }
}

#[test]
fn a_peer_that_is_gone_is_lost_and_its_operations_end() {
    let ends = End::pair();
    let to = ends[0].connect(&ends[1]);
    let heard = Rc::new(Cell::new(0));
    let count = Rc::clone(&heard);
    ends[0].interface.set_error_handler(Some(Box::new(move |_, _| count.set(count.get() + 1))));
    assert_eq!(to.am_short(0, 0, &[]), Ok(()));
    wait("a flush", || to.flush(Flush::REMOTE, None) == Ok(Posted::Done), || turn(&ends));
    ends[1].device.kill();
    let start = Instant::now();
    wait("the loss", || heard.get() == 1, || turn(&ends[..1]));
    assert!(start.elapsed() < TUNING.times.limit, "nobody listens there: there is nothing to wait for");
    assert_eq!(to.am_short(0, 0, &[]), Err(Error::ConnectionReset));
}

/// Two ends. `caller` has connected to the other and sent a message; all frames are acknowledged. The first end gives up a stopped peer
/// after the time `stopped`.
fn acquainted(stopped: Duration, caller: usize) -> ([End; 2], port::Endpoint<TcpWire>, Rc<Cell<u32>>) {
    let device = |rank: usize| {
        let times = Times { stopped: if rank == 0 { stopped } else { TUNING.times.stopped }, ..TUNING.times };
        Device::with(rank, 2, [0x5c; KEY], &offer(None).expect("an interface"), Tuning { times, ..TUNING })
            .expect("two ranks")
    };
    let ends = [0, 1].map(|rank| End::open(device(rank)));
    let came = Rc::new(Cell::new(0));
    for end in &ends {
        let count = Rc::clone(&came);
        let add = move |_: &crate::transport::Message<'_>| count.set(count.get() + 1);
        end.interface.set_handler(3, Some(Box::new(add))).expect("an id");
    }
    let to = [ends[0].connect(&ends[1]), ends[1].connect(&ends[0])];
    to[caller].am_short(3, 1, &[]).expect("there is room");
    wait("the first", || came.get() == 1, || turn(&ends));
    let is_quiet = |end: usize| {
        let mut state = ends[end].shared().lock();
        let peer = state.core.peer(1 - end as u32);
        peer.missing_since.is_none() && peer.is_settled()
    };
    wait("a quiet link", || is_quiet(0) && is_quiet(1), || turn(&ends));
    let [to, _] = to;
    (ends, to, came)
}

/// Makes progress on rank 0's call to rank 1 until the kernel has made the connection and the greeting is sent. Rank 1 does not answer,
/// since the test holds its lock.
fn until_taken(state: &mut state::State) {
    let start = Instant::now();
    while !state.is_taken(1) {
        assert!(start.elapsed() < Duration::from_secs(60), "the kernel does not take the call");
        for number in state.calls.set.clone().wait(Some(Duration::from_millis(1))) {
            // Only events of rank 0's own calls are served, not those of callers or of the thread's wake-up.
            if number >= calls::DIAL {
                state.call_event(number, start);
            }
        }
    }
}

// The following tests make up their times, and hold the lock so that the thread does nothing: their assertions do not depend on a clock.

#[test]
fn a_peer_that_is_stopped_on_a_host_that_answers_is_not_lost() {
    let times = TUNING.times;
    // The connection that breaks was made by either end.
    for caller in [0, 1] {
        let (ends, to, came) = acquainted(times.stopped, caller);
        // The lock keeps rank 1 from accepting and reading, as if its process were stopped.
        let stopped = ends[1].shared().lock();
        let mut state = ends[0].shared().lock();
        let begun = Instant::now();
        state.broken(1, begun);
        state.keep_time(begun, None);
        until_taken(&mut state);
        let call = state.calls_from(1).expect("it is being called");
        for turn in 1..=20 {
            let now = begun + turn * times.attempt;
            state.keep_time(now, Some(now));
            assert_eq!(state.core.losses, 0, "after {:?}", turn * times.attempt);
            assert_eq!(state.core.peer(1).stopped_at, Some(now));
            assert_eq!(state.core.peer(1).ends_at(&times), Some(now + times.limit));
            assert_eq!(state.calls_from(1), Some(call), "one call waits at the process that is stopped");
        }
        drop(state);
        to.am_short(3, 2, &[]).expect("there is room");
        drop(stopped);
        wait("the second", || came.get() == 2, || turn(&ends));
    }
}

#[test]
fn a_peer_that_was_stopped_before_it_proved_an_address_is_not_lost_while_others_are_tried() {
    let times = TUNING.times;
    let ends = End::pair();
    let _to = ends[0].connect(&ends[1]);
    let _stopped = ends[1].shared().lock();
    let mut state = ends[0].shared().lock();
    // No host has an address of the network for documentation (192.0.2.0/24, RFC 5737).
    let peer = state.core.peer(1);
    let mut address = peer.address.expect("it is known");
    address.hosts = [[0; 16]; address::HOST_ADDRESSES];
    address.hosts[0] = address::octets(Ipv4Addr::LOCALHOST.into());
    for host in 1..=4 {
        address.hosts[usize::from(host)] = address::octets(Ipv4Addr::new(192, 0, 2, host).into());
    }
    peer.address = Some(address);
    let begun = Instant::now();
    (peer.missing_since, peer.call_at) = (Some(begun), Some(begun));
    state.keep_time(begun, None);
    until_taken(&mut state);
    let taken = begun + times.attempt;
    state.keep_time(taken, Some(taken));
    let ends_at = taken + 4 * times.attempt + times.limit;
    assert_eq!(state.core.peer(1).ends_at(&times), Some(ends_at), "four addresses are tried before it is called again");
}

#[test]
fn a_peer_that_is_stopped_for_longer_than_allowed_is_lost() {
    let times = Times { stopped: Duration::from_secs(12), ..TUNING.times };
    let (ends, _to, _) = acquainted(times.stopped, 0);
    let stopped = ends[1].shared().lock();
    let mut state = ends[0].shared().lock();
    let begun = Instant::now();
    state.broken(1, begun);
    state.keep_time(begun, None);
    until_taken(&mut state);
    for (seconds, losses) in [(3, 0), (6, 0), (9, 0), (11, 0), (12, 1)] {
        let now = begun + Duration::from_secs(seconds);
        state.keep_time(now, Some(now));
        assert_eq!(state.core.losses, losses, "after {seconds} s");
    }
    drop(state);
    drop(stopped);
}

#[test]
fn time_in_which_a_rank_did_not_run_itself_loses_no_peer() {
    let ends = End::pair();
    let _to = ends[0].connect(&ends[1]);
    let mut state = ends[0].shared().lock();
    let Times { limit, attempt, .. } = TUNING.times;
    let (begun, hour) = (Instant::now(), Duration::from_secs(3600));
    let mut out = |since: Duration, at: Duration, due: Duration| {
        state.core.peer(1).missing_since = Some(begun + since);
        let next = state.keep_time(begun + at, Some(begun + due));
        assert_eq!(state.core.losses, 0, "out of reach since {since:?}, now {at:?}, expected {due:?}");
        (state.core.peer(1).missing_since.expect("it is missing"), next.expect("it is missing"))
    };
    let zero = Duration::ZERO;
    assert_eq!(out(zero, hour, limit / 2).0, begun + hour - limit / 2, "it was out of reach for half the limit");
    // The turn that would lose the peer runs late, so a call of the peer may be waiting: the peer gets the time of one more call.
    let (since, next) = out(zero, limit + 2 * state::PAUSE, limit);
    assert_eq!(since + limit, begun + limit + 2 * state::PAUSE + attempt);
    // The next turn is soon, so that a pause of this process is noticed.
    assert!(next <= begun + limit + 3 * state::PAUSE, "the next turn");
    // A time that the program has set after this turn began stays as it is.
    assert_eq!(out(limit, limit / 2, zero).0, begun + limit);
    state.core.peer(1).missing_since = Some(begun);
    state.keep_time(begun + limit, Some(begun + limit));
    assert_eq!(state.core.losses, 1);
}

#[test]
fn time_before_the_first_call_loses_no_peer() {
    let (ends, _to, _) = acquainted(TUNING.times.stopped, 0);
    let mut state = ends[0].shared().lock();
    let (begun, limit) = (Instant::now(), TUNING.times.limit);
    // The program finds the break. The thread looks at it late, since nothing was due earlier.
    state.broken(1, begun);
    state.keep_time(begun + 2 * limit, None);
    assert_eq!(state.core.losses, 0);
    assert_eq!(state.core.peer(1).missing_since, Some(begun + 2 * limit));
    assert!(state.calls_from(1).is_some(), "it is called");
}

#[test]
fn a_break_that_a_flush_finds_wakes_the_thread() {
    let (ends, to, _) = acquainted(TUNING.times.stopped, 0);
    let shared = ends[0].shared();
    let threads = Arc::strong_count(shared);
    shared.stop();
    wait("the end of the thread", || Arc::strong_count(shared) < threads, || _ = shared.lock());
    let stopped = ends[1].shared().lock();
    to.am_short(3, 2, &[]).expect("there is room");
    while shared.was_woken() {}
    ends[0].cut(1);
    assert_ne!(to.flush(Flush::REMOTE, None), Ok(Posted::Done));
    assert!(shared.lock().core.peer(1).call_at.is_some(), "the flush has found the break");
    assert!(shared.was_woken(), "only the thread calls");
    drop(stopped);
    ends[0].device.kill();
}

/// The rank called, and nobody here knows where it could be called: so it is with the contexts of other ranks.
#[test]
fn a_rank_that_has_ended_keeps_no_interface_from_closing() {
    let offer = offer(None).expect("an interface");
    for (loss, waits) in [(Loss::Left, true), (Loss::Signaled(9), false)] {
        let job = Arc::new(JobMemory::create(2, &Settings::default()).expect("a job"));
        let ends = [0, 1].map(|rank| End::open(Device::new(rank, &job, &offer).expect("two ranks")));
        let to = ends[1].connect(&ends[0]);
        assert_eq!(to.am_short(0, 0, &[]), Ok(()));
        wait("a flush", || to.flush(Flush::REMOTE, None) == Ok(Posted::Done), || turn(&ends));
        let mut state = ends[0].shared().lock();
        assert!(state.core.peer(1).address.is_none());
        // Under the lock nothing comes that acknowledges it, as if the rank had been killed.
        state.core.peer(1).link.push(&frame::Body::Taken(1), None, link::NO_POST);
        job.mark_lost(1, loss);
        assert!(state.is_owed(), "{loss:?}: it may take what a connection carries");
        state.broken(1, Instant::now());
        assert_eq!(state.is_owed(), waits, "{loss:?}");
    }
}

/// Two ends, and a word of the second end that the first can put to.
struct Served {
    ends: [End; 2],
    to: port::Endpoint<TcpWire>,
    key: crate::transport::key::RemoteKey,
    _region: crate::transport::memory::Region,
    word: Box<AtomicU64>,
    puts: Cell<u64>,
}

impl Served {
    fn new() -> Served {
        let ends = End::pair();
        let to = ends[0].connect(&ends[1]);
        let word = Box::new(AtomicU64::new(0));
        // SAFETY: the fields are dropped in their order, the memory after the region; it is only touched through atomics.
        let region = unsafe { ends[1].domain.register(word.as_ptr().cast(), 8) }.expect("registers");
        // SAFETY: packed by a peer whose region lives as long as the key is used.
        let key = unsafe { ends[0].domain.unpack_key(&ends[1].domain.pack_key(&region)) }.expect("a key");
        Served { ends, to, key, _region: region, word, puts: Cell::new(0) }
    }

    /// Puts to the word, and waits until it has the value. The second end's thread serves the put; if `polls`, its program polls too.
    fn put(&self, polls: bool) {
        self.puts.set(self.puts.get() + 1);
        let bytes = self.puts.get().to_ne_bytes();
        let put = || self.to.put_short(&bytes, self.key.address(), &self.key) == Ok(());
        let turns = || turn(&self.ends[..1 + usize::from(polls)]);
        wait("room", put, turns);
        wait("the put", || self.word.load(Relaxed) == self.puts.get(), turns);
    }

    /// Polls until the thread of the second end leaves frames to the program.
    fn nap(&self) {
        wait("a nap", || self.ends[1].shared().naps(), || self.put(true));
    }
}

#[test]
fn a_rank_that_polled_and_then_computes_is_served() {
    let served = Served::new();
    for _ in 0..5 {
        served.nap();
        served.put(false);
    }
}

#[test]
fn a_rank_is_served_while_the_set_of_its_thread_has_no_room() {
    let served = Served::new();
    let shared = served.ends[1].shared();
    let calls = loop {
        served.nap();
        let state = shared.lock();
        // Under the lock: the thread also changes its set under it.
        if shared.naps() {
            // The set takes a descriptor only once, so the thread cannot add its sockets again.
            state.calls.set.add(&state.data, u64::MAX, sockets::Interest::Nothing).expect("there is room for one");
            break state.calls.set.clone();
        }
    };
    for _ in 0..5 {
        served.put(false);
    }
    assert!(shared.naps());
    calls.remove(&shared.lock().data);
    wait("the end of the nap", || !shared.naps(), || _ = served.ends[1].shared().lock());
    served.put(false);
}

#[test]
fn a_sleeper_is_woken_by_a_put_and_by_a_message() {
    let ends = End::pair();
    let to = ends[0].connect(&ends[1]);
    let word = AtomicU64::new(0);
    // SAFETY: the memory outlives the region, and is only touched through atomics.
    let region = unsafe { ends[1].domain.register(word.as_ptr().cast(), 8) }.expect("registers");
    // SAFETY: packed by a peer whose region lives as long as the key is used.
    let key = unsafe { ends[0].domain.unpack_key(&ends[1].domain.pack_key(&region)) }.expect("a key");
    assert_eq!(ends[1].interface.arm(Events::RECEIVE), Ok(()));
    let readable = |patience: i64| {
        let fd = ends[1].interface.event_descriptor().expect("a descriptor");
        let limit = rustix::event::Timespec { tv_sec: patience / 1000, tv_nsec: patience % 1000 * 1_000_000 };
        rustix::event::poll(&mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)], Some(&limit)) == Ok(1)
    };
    assert_eq!(to.put_short(&[1; 8], key.address(), &key), Ok(()));
    wait("the put", || word.load(Relaxed) == u64::from_ne_bytes([1; 8]), || turn(&ends[..1]));
    assert!(readable(20_000), "a put came");
    wait("rest", || ends[1].interface.arm(Events::RECEIVE) == Ok(()), || turn(&ends));
    // A poll between arming and sleep that finds nothing.
    assert_eq!(ends[1].interface.progress(), 0);
    assert_eq!(to.am_short(0, 0, &[]), Ok(()));
    assert!(readable(20_000), "a message came");
    assert_eq!(ends[1].interface.arm(Events::RECEIVE), Err(Error::Busy));
}

/// The program may look once more between arming and sleep. If that look finds the event, the program may sleep on it all the same.
#[test]
fn a_poll_of_the_sleeper_itself_wakes_it() {
    let served = Served::new();
    let own = &served.ends[1];
    // Over a connection: only its thread takes one.
    served.put(false);
    let shared = own.shared();
    // Its thread cannot take the frame.
    let mut state = shared.lock();
    shared.arm();
    assert_eq!(served.to.put_short(&[1; 8], served.key.address(), &served.key), Ok(()));
    wait(
        "the put",
        || served.word.load(Relaxed) == u64::from_ne_bytes([1; 8]),
        || {
            turn(&served.ends[..1]);
            shared.poll(&mut state);
        },
    );
    drop(state);
    let fd = own.interface.event_descriptor().expect("a descriptor");
    let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1));
}

/// A stranger's connection to `port` on this host, which has sent `bytes`.
fn call(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let _ = stream.write_all(bytes);
    stream
}

/// Whether the other end closes the connection after at most `most` bytes.
fn is_closed_after(mut stream: TcpStream, most: usize) -> bool {
    let mut bytes = [0; 4096];
    let mut came = 0;
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return came <= most,
            Ok(count) => came += count,
            Err(error) => return came <= most && error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn a_stranger_reaches_nothing() {
    let ends = End::pair();
    let (port, address) = (ends[1].port(), Address::decode(&ends[1].interface.address()).expect("its own"));
    let from = Address::decode(&ends[0].interface.address()).expect("its own");
    let hello = Hello {
        from: (from.peer(), from.nonce),
        to: (address.peer(), address.nonce),
        position: Position { epoch: 0, received: 0 },
        nonce: [4; NONCE],
    }
    .encode();
    let mut random = crate::transport::sim::Random::new(7);
    let mut noise = |len: usize| (0..len).map(|_| random.number() as u8).collect::<Vec<u8>>();
    // Noise of several lengths instead of a greeting: the rank closes the connection.
    for len in [HELLO, HELLO + 1, 1000, 100_000] {
        assert!(is_closed_after(call(port, &noise(len)), 0), "{len} bytes of noise");
    }
    // A valid greeting, as in a replay, then a wrong proof (32 bytes), also with more bytes behind it.
    for len in [32, 33, 500] {
        let mut stream = call(port, &hello);
        let mut challenge = [0; 80];
        stream.read_exact(&mut challenge).expect("anybody may ask");
        stream.write_all(&noise(len)).expect("nobody has closed it");
        assert!(is_closed_after(stream, 0), "a proof of {len} bytes of noise");
    }
    // A greeting that is cut off.
    for len in [0, 1, HELLO - 1] {
        drop(call(port, &hello[..len]));
    }
    assert_eq!(ends[1].shared().lock().connections(), 0);
    assert!(!ends[1].shared().lock().core.peers.contains_key(&from.peer()), "what a caller says is not believed");
    let to = ends[0].connect(&ends[1]);
    assert_eq!(to.am_short(0, 0, &[]), Ok(()));
    wait("a flush", || to.flush(Flush::REMOTE, None) == Ok(Posted::Done), || turn(&ends));
}

/// Checks that the second rank refuses calls of the first.
fn is_refused(ends: &[End; 2]) {
    let to = ends[0].connect(&ends[1]);
    assert_eq!(to.am_short(0, 0, &[]), Ok(()));
    wait("two refusals", || ends[0].shared().lock().calls.refusals() >= 2, || turn(ends));
    assert_eq!(ends[1].shared().lock().connections(), 0);
    assert_eq!(ends[0].shared().lock().connections(), 0);
    assert_ne!(to.flush(Flush::REMOTE, None), Ok(Posted::Done));
    assert!(to.pending_add(Box::new(|| Resume::Done)).is_err(), "there is room");
    ends[0].device.kill();
}

#[test]
fn another_job_reaches_nothing() {
    is_refused(&[0, 1].map(|rank| {
        let offer = offer(None).expect("an interface");
        End::open(Device::with(rank, 2, [rank as u8; KEY], &offer, TUNING).expect("opens"))
    }));
}

#[test]
fn ranks_of_which_one_encrypts_do_not_connect() {
    for encrypts in [[true, false], [false, true]] {
        is_refused(&End::pair_that(encrypts));
    }
}

#[test]
fn strangers_that_say_nothing_take_a_bounded_number_of_places_and_hold_up_nobody() {
    let ends = End::pair();
    let port = ends[1].port();
    let silent: Vec<TcpStream> = (0..3 * STRANGERS).map(|_| call(port, &[])).collect();
    let to = ends[0].connect(&ends[1]);
    assert_eq!(to.am_short(0, 0, &[]), Ok(()));
    wait("a flush", || to.flush(Flush::REMOTE, None) == Ok(Posted::Done), || turn(&ends));
    assert!(ends[1].shared().lock().strangers() <= STRANGERS);
    drop(silent);
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let refused = offer(Some("nonesuch0")).expect_err("no such interface");
    assert!(refused.contains("nonesuch0") && refused.contains("lo"), "{refused}");
    let forced = offer(Some("lo")).expect("the loopback interface");
    let device = Device::with(0, 1, [0; KEY], &forced, TUNING).expect("opens");
    let address = Address::decode(&End::open(device).interface.address()).expect("its own");
    assert!(address.targets(address.stack).iter().all(|target| target.ip().is_loopback()));
}

/// Set in the process of an [`Other`]. A run of all ignored tests leaves its functions out: they end their process.
const OTHER: &str = "BELLWETHER_TEST_OTHER";

/// The other process of a test: this rank 1 of two, with its own limit on descriptors. It ends with its standard input.
struct Other {
    process: std::process::Child,
    address: Vec<u8>,
}

impl Other {
    fn start(test: &str) -> Other {
        use std::io::BufRead;
        let mut process = std::process::Command::new(std::env::current_exe().expect("it runs"))
            .args(["--ignored", "--exact", "--nocapture"])
            .env(OTHER, "1")
            .arg(format!("{}::{test}", module_path!().split_once("::").expect("a module of this crate").1))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdout = std::io::BufReader::new(process.stdout.take().expect("piped"));
        let mut lines = stdout.lines().map_while(std::io::Result::ok);
        let hex =
            lines.find_map(|line| Some(line.split_once("address ")?.1.to_owned())).expect("it says where it listens");
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..][..2], 16).expect("written below");
        Other { process, address: (0..hex.len() / 2).map(byte).collect() }
    }

    fn port(&self) -> u16 {
        Address::decode(&self.address).expect("an address").port
    }

    /// Sends a message there, and waits until it has been taken.
    fn takes_a_message(&self) {
        let own = End::open(Device::shallow(0, 2, false));
        let to = own.interface.connect(&self.address).expect("connects");
        assert_eq!(to.am_short(0, 7, &[]), Ok(()));
        let done = || to.flush(Flush::REMOTE, None) == Ok(Posted::Done);
        wait("a message to a rank that has had no descriptors", done, || turn(std::slice::from_ref(&own)));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// In the other process: rank 1 with `more` descriptors beyond those that it has now. `turn` is called until the test ends.
fn with_few_descriptors(more: u64, mut turn: impl FnMut(&End)) {
    if std::env::var_os(OTHER).is_none() {
        return;
    }
    let end = End::open(Device::shallow(1, 2, false));
    let open = std::fs::read_dir("/proc/self/fd").expect("Linux has it").count() as u64;
    let limit = rustix::process::Rlimit { current: Some(open + more), maximum: Some(open + more) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("a lower limit");
    // Before anybody can call: `turn` may take all descriptors.
    turn(&end);
    println!("address {}", end.interface.address().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(300) {
        turn(&end);
        end.worker.progress();
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "the other process of strangers_that_hold_all_descriptors_keep_no_peer_out"]
fn rank_with_few_descriptors() {
    with_few_descriptors(12, |_| {});
}

#[test]
fn strangers_that_hold_all_descriptors_keep_no_peer_out() {
    let other = Other::start("rank_with_few_descriptors");
    // Fewer find room than places are allowed.
    let silent: Vec<TcpStream> = (0..3 * STRANGERS).map(|_| call(other.port(), &[])).collect();
    other.takes_a_message();
    drop(silent);
}

#[test]
#[ignore = "the other process of a_rank_without_descriptors_takes_calls_when_there_are_some"]
fn rank_without_descriptors_for_a_while() {
    use std::os::fd::AsFd;
    let mut taken = None;
    with_few_descriptors(12, |end| {
        let all = || std::iter::from_fn(|| std::io::stdin().as_fd().try_clone_to_owned().ok()).collect::<Vec<_>>();
        let taken = taken.get_or_insert_with(all);
        // The call of rank 0 has found none.
        if end.shared().lock().calls.is_paused() {
            taken.clear();
        }
    });
}

#[test]
fn a_rank_without_descriptors_takes_calls_when_there_are_some() {
    Other::start("rank_without_descriptors_for_a_while").takes_a_message();
}
