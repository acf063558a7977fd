//! The simulator by itself: same seed, same run; virtual time against formulas; a thousand ranks; failures.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::transport::stream::FRAME_HEADER;
use crate::transport::*;

type Net = port::Interface<SimWire>;

/// A rank with its interface, as a machine's base.
struct Rank {
    me: usize,
    interface: Rc<Net>,
    _domain: port::Domain<Node>,
}

fn open(network: &Network, me: usize) -> Rank {
    let node = network.node(me);
    let domain = node.open(&node.resources()[0]).expect("opens");
    let interface = domain.open_interface(&Worker::new(), InterfaceOptions::default()).expect("opens");
    interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
    Rank { me, interface, _domain: domain }
}

/// The address of a rank, known by the rule that makes it.
fn address(rank: usize) -> Vec<u8> {
    [*b"bwsi", (rank as u32).to_le_bytes()].concat()
}

/// Bytes on the wire of a message of a header and nothing else.
const SMALL: usize = FRAME_HEADER + 8;

/// Dissemination (Hensgen, Finkel, Manber 1988): in round k rank i tells rank i + 2^k.
struct Barrier {
    rank: Rank,
    ranks: usize,
    heard: Rc<RefCell<u64>>,
    round: u32,
    done_at: Rc<Cell<Option<Time>>>,
    network: Network,
    told: bool,
}

fn rounds(ranks: usize) -> u32 {
    ranks.next_power_of_two().ilog2()
}

impl Barrier {
    fn new(network: &Network, me: usize) -> Barrier {
        let rank = open(network, me);
        let heard = Rc::new(RefCell::new(0u64));
        let bits = Rc::clone(&heard);
        let note = move |m: &Message<'_>| *bits.borrow_mut() |= 1 << m.short().expect("a header").0;
        rank.interface.set_handler(0, Some(Box::new(note))).expect("id");
        let (ranks, network) = (network.ranks(), network.clone());
        Barrier { rank, ranks, heard, round: 0, done_at: Rc::default(), network, told: false }
    }
}

impl Machine for Barrier {
    fn poll(&mut self) -> Step {
        while self.rank.interface.progress() > 0 {}
        while self.round < rounds(self.ranks) {
            if !self.told {
                let to = (self.rank.me + (1 << self.round)) % self.ranks;
                let ep = self.rank.interface.connect(&address(to)).expect("connects");
                ep.am_short(0, self.round.into(), &[]).expect("room");
                self.told = true;
            }
            if *self.heard.borrow() >> self.round & 1 == 0 {
                return Step::Waiting;
            }
            self.round += 1;
            self.told = false;
        }
        if self.done_at.get().is_none() {
            self.done_at.set(Some(self.network.now()));
        }
        Step::Done
    }
}

fn barrier(config: Config) -> (Network, Vec<Time>) {
    let network = Network::new(config);
    let mut machines: Vec<_> = (0..network.ranks()).map(|me| Barrier::new(&network, me)).collect();
    drive(&network, &mut machines).expect("ends");
    let times = machines.iter().map(|machine| machine.done_at.get().expect("done")).collect();
    (network, times)
}

#[test]
fn a_barrier_takes_what_the_formula_says() {
    for ranks in [1, 2, 3, 4, 7, 16, 100, 1000] {
        let config = Config::new(ranks, 1);
        let expected = u64::from(rounds(ranks)) * (config.latency + config.busy(SMALL));
        let (_, times) = barrier(config);
        assert!(times.iter().all(|time| *time == expected), "{ranks} ranks: {times:?}, expected {expected}");
    }
}

#[test]
fn a_slow_rank_slows_the_barrier_but_nobody_passes_it_early() {
    check("a_slow_rank_slows_the_barrier", 5, |seed| {
        let config = Config::new(9, seed).wild();
        let floor = config.latency;
        let network = Network::new(config);
        network.slow(4, 1000);
        let mut machines: Vec<_> = (0..9).map(|me| Barrier::new(&network, me)).collect();
        drive(&network, &mut machines).expect("ends");
        assert!(machines.iter().all(|machine| machine.done_at.get().expect("done") >= 4 * floor));
    });
}

/// Binomial broadcast from rank 0, largest subtree first: in its turn k a rank that has the value tells rank + 2^k'.
struct Broadcast {
    rank: Rank,
    ranks: usize,
    value: Rc<Cell<Option<u64>>>,
    sent: bool,
    at: Option<Time>,
    network: Network,
}

impl Machine for Broadcast {
    fn poll(&mut self) -> Step {
        while self.rank.interface.progress() > 0 {}
        let Some(value) = self.value.get() else { return Step::Waiting };
        if !self.sent {
            self.sent = true;
            self.at = Some(self.network.now());
            let me = self.rank.me;
            let lowest = if me == 0 { rounds(self.ranks) } else { me.trailing_zeros() };
            for bit in (0..lowest).rev().filter(|bit| me + (1 << bit) < self.ranks) {
                let ep = self.rank.interface.connect(&address(me + (1 << bit))).expect("connects");
                ep.am_short(0, value, &[]).expect("room");
            }
        }
        Step::Done
    }
}

#[test]
fn a_broadcast_takes_what_the_formula_says() {
    for ranks in [1, 2, 3, 5, 8, 13, 100, 1000] {
        let config = Config::new(ranks, 1);
        let (latency, busy) = (config.latency, config.busy(SMALL));
        let network = Network::new(config);
        let mut machines: Vec<_> = (0..ranks)
            .map(|me| {
                let rank = open(&network, me);
                let value = Rc::new(Cell::new((me == 0).then_some(7)));
                let got = Rc::clone(&value);
                let note = move |m: &Message<'_>| got.set(Some(m.short().expect("a header").0));
                rank.interface.set_handler(0, Some(Box::new(note))).expect("id");
                Broadcast { rank, ranks, value, sent: false, at: None, network: network.clone() }
            })
            .collect();
        drive(&network, &mut machines).expect("ends");
        // A hop costs the latency and the parent's sends up to and with this one.
        let mut expected = vec![0; ranks];
        for parent in 0..ranks {
            let lowest = if parent == 0 { rounds(ranks) } else { parent.trailing_zeros() };
            let mut at = expected[parent];
            for bit in (0..lowest).rev().filter(|bit| parent + (1 << bit) < ranks) {
                at += busy;
                expected[parent + (1 << bit)] = at + latency;
            }
        }
        if ranks.is_power_of_two() {
            let depth = u64::from(rounds(ranks));
            assert_eq!(expected.iter().max(), Some(&(depth * (latency + busy))), "the formula's longest path");
        }
        let times: Vec<_> = machines.iter().map(|machine| machine.at.expect("reached")).collect();
        assert_eq!(times, expected, "{ranks} ranks");
    }
}

/// Every rank sends one message to every other.
struct AllToAll {
    rank: Rank,
    ranks: usize,
    next: usize,
    got: Rc<Cell<(usize, u64)>>,
}

impl Machine for AllToAll {
    fn poll(&mut self) -> Step {
        while self.rank.interface.progress() > 0 {}
        while self.next < self.ranks {
            let to = (self.rank.me + self.next) % self.ranks;
            let ep = self.rank.interface.connect(&address(to)).expect("connects");
            match ep.am_short(0, self.rank.me as u64, &[]) {
                Ok(()) => self.next += 1,
                Err(Error::NoResource) => return Step::Waiting,
                Err(error) => panic!("{error}"),
            }
        }
        if self.got.get().0 == self.ranks - 1 { Step::Done } else { Step::Waiting }
    }
}

fn all_to_all(config: Config) -> Network {
    let network = Network::new(config);
    let ranks = network.ranks();
    let mut machines: Vec<_> = (0..ranks)
        .map(|me| {
            let rank = open(&network, me);
            let got = Rc::new(Cell::new((0, 0)));
            let count = Rc::clone(&got);
            let note = move |m: &Message<'_>| {
                let (messages, sum) = count.get();
                count.set((messages + 1, sum + m.short().expect("a header").0));
            };
            rank.interface.set_handler(0, Some(Box::new(note))).expect("id");
            AllToAll { rank, ranks, next: 1, got }
        })
        .collect();
    drive(&network, &mut machines).expect("ends");
    let all = (ranks * (ranks - 1) / 2) as u64;
    for (me, machine) in machines.iter().enumerate() {
        assert_eq!(machine.got.get(), (ranks - 1, all - me as u64));
    }
    network
}

#[test]
fn a_thousand_ranks_run_a_barrier_and_an_all_to_all() {
    barrier(Config::new(1000, 3).wild());
    let network = all_to_all(Config::new(1000, 3).wild());
    assert!(network.delivered() >= 999_000);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let network = all_to_all(Config::new(20, seed).wild().tiny());
        (network.digest(), network.now(), network.delivered())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    let threads = |seed| {
        let network = Network::new(Config::new(7, seed).wild());
        let order = crate::transport::lock::Mutex::new(Vec::new());
        super::run(&network, |turn| exchange(&network, turn, &order)).expect("ends");
        (network.digest(), network.now(), order.into_inner())
    };
    assert_eq!(threads(5), threads(5));
    assert_ne!(threads(5), threads(6));
}

#[test]
fn ranks_share_a_core_and_know_all_that_they_may_use() {
    let before = crate::thread::allowed_cores().expect("told");
    let look = |_: &Turn| {
        let now = rustix::thread::sched_getaffinity(None).expect("told");
        (now.count(), crate::thread::allowed_cores().expect("told") == before)
    };
    // Also where a rank runs a job of its own, whose threads inherit the binding.
    let both = |turn: &Turn| (look(turn), super::run(&Network::new(Config::new(2, 1)), look).expect("ends"));
    let found = super::run(&Network::new(Config::new(2, 1)), both).expect("ends");
    assert_eq!(found, vec![((1, true), vec![(1, true); 2]); 2]);
}

/// An ordinary blocking program: three rounds of telling everyone and waiting for everyone.
fn exchange(network: &Network, turn: &Turn, order: &crate::transport::lock::Mutex<Vec<(usize, u64)>>) {
    let (rank, ranks) = (open(network, turn.rank()), network.ranks());
    let got = Rc::new(RefCell::new(Vec::new()));
    let list = Rc::clone(&got);
    rank.interface
        .set_handler(0, Some(Box::new(move |m| list.borrow_mut().push(m.short().expect("a header").0))))
        .expect("id");
    for round in 1..=3 {
        for other in (0..ranks).filter(|other| *other != rank.me) {
            let ep = rank.interface.connect(&address(other)).expect("connects");
            ep.am_short(0, rank.me as u64, &[]).expect("room");
        }
        while got.borrow().len() < round * (ranks - 1) {
            if rank.interface.progress() == 0 {
                turn.block_until_event().expect("messages are under way");
            }
        }
    }
    order.lock().extend(got.borrow().iter().map(|from| (rank.me, *from)));
}

#[test]
fn time_passes_only_while_all_are_blocked() {
    let network = Network::new(Config::new(3, 1));
    let ends = super::run(&network, |turn| {
        turn.compute(1_000_000 * (turn.rank() as u64 + 1)).expect("time passes");
        turn.now()
    });
    assert_eq!(ends.expect("ends"), [1_000_000, 2_000_000, 3_000_000]);
}

#[test]
fn waiting_for_nothing_is_told_with_the_seed() {
    let network = Network::new(Config::new(3, 42));
    let stalled = super::run(&network, |turn| {
        if turn.rank() != 1 {
            let _ = turn.block_until_event();
        }
    })
    .expect_err("two wait for ever");
    assert_eq!((stalled.waiting.clone(), stalled.seed), (vec![0, 2], 42));
    assert!(stalled.to_string().contains("seed 42"));
}

#[test]
#[should_panic(expected = "on purpose")]
fn a_panic_comes_through() {
    let _ = super::run(&Network::new(Config::new(2, 1)), |turn| {
        assert!(turn.rank() == 0, "on purpose");
        let _ = turn.block_until_event();
    });
}

/// Two ends and the numbers that came to the second.
fn pair(network: &Network) -> (Rank, Rank, port::Endpoint<SimWire>, Rc<RefCell<Vec<u64>>>) {
    let (a, b) = (open(network, 0), open(network, 1));
    let ep = a.interface.connect(&address(1)).expect("connects");
    let got = Rc::new(RefCell::new(Vec::new()));
    let list = Rc::clone(&got);
    let note = move |m: &Message<'_>| list.borrow_mut().push(m.short().expect("a header").0);
    b.interface.set_handler(0, Some(Box::new(note))).expect("id");
    (a, b, ep, got)
}

#[test]
fn a_partition_delays_and_keeps_order() {
    check("a_partition_delays_and_keeps_order", 10, |seed| {
        let network = Network::new(Config { jitter: 3000, ..Config::new(2, seed) });
        let (_a, b, ep, got) = pair(&network);
        let mut number = 0;
        let mut send = || {
            ep.am_short(0, number, &[]).expect("room");
            number += 1;
        };
        send();
        network.partition(&[0], 100_000);
        (0..5).for_each(|_| send());
        network.timer(1, 99_000);
        while network.now() < 99_000 {
            network.step();
        }
        b.interface.progress();
        assert_eq!(got.borrow().len(), 0, "nothing passes");
        (0..5).for_each(|_| send());
        network.settle();
        while b.interface.progress() > 0 {}
        assert!(got.borrow().iter().copied().eq(0..11), "{got:?}");
        assert!(network.now() >= 100_000);
    });
}

#[test]
fn a_lost_connection_is_heard_of_at_both_ends_and_leaves_others_alone() {
    let network = Network::new(Config::new(3, 1));
    let (a, b, ep, got) = pair(&network);
    let third = open(&network, 2);
    let to_b = third.interface.connect(&address(1)).expect("connects");
    let heard = Rc::new(Cell::new(0));
    let count = Rc::clone(&heard);
    a.interface.set_error_handler(Some(Box::new(move |_, error| {
        assert_eq!(error, Error::ConnectionReset);
        count.set(count.get() + 1);
    })));
    ep.am_short(0, 1, &[]).expect("room");
    network.disconnect(0, 1);
    to_b.am_short(0, 2, &[]).expect("room");
    network.settle();
    a.interface.progress();
    b.interface.progress();
    assert_eq!((heard.get(), got.borrow().clone()), (1, vec![2]));
    assert_eq!(ep.am_short(0, 1, &[]), Err(Error::ConnectionReset));
    assert!(b.interface.connect(&address(0)).expect("creating is no error").check().is_err());
    assert_eq!(to_b.check(), Ok(()));
}

#[test]
fn without_a_serving_nic_the_target_must_progress() {
    let network = Network::new(Config { served_asleep: false, ..Config::new(2, 1) });
    let (a, b, ep, _) = pair(&network);
    assert!(a.interface.attributes().needs_target_progress);
    let memory = b._domain.allocate(8, &[Method::Heap]).expect("memory");
    // SAFETY: the region lives to the end of the test.
    let key = unsafe { a._domain.unpack_key(&b._domain.pack_key(memory.region())) }.expect("a key");
    ep.put_short(&[1; 8], key.address, &key).expect("room");
    network.settle();
    a.interface.progress();
    assert_eq!(ep.flush(Flush::REMOTE, None), Ok(Posted::InProgress));
    b.interface.serve();
    network.settle();
    a.interface.progress();
    assert_eq!(ep.flush(Flush::REMOTE, None), Ok(Posted::Done));
}

#[test]
fn a_withdrawn_registration_ends_the_operation_with_an_error() {
    let network = Network::new(Config::new(2, 1));
    let (a, b, ep, _) = pair(&network);
    let memory = b._domain.allocate(8, &[Method::Heap]).expect("memory");
    // SAFETY: the region lives to the end of the test.
    let key = unsafe { a._domain.unpack_key(&b._domain.pack_key(memory.region())) }.expect("a key");
    drop(memory);
    let heard = Rc::new(Cell::new(None));
    let slot = Rc::clone(&heard);
    a.interface.set_error_handler(Some(Box::new(move |_, error| slot.set(Some(error)))));
    ep.put_short(&[1; 8], key.address, &key).expect("room");
    network.settle();
    while a.interface.progress() > 0 {}
    assert_eq!(heard.get(), Some(Error::Rejected));
    assert_eq!(ep.put_short(&[1; 8], key.address, &key), Err(Error::Rejected));
}

#[test]
fn a_nic_of_an_interface_that_is_closed_is_used_again() {
    let network = Network::new(Config::new(2, 1));
    let [here, there] = [open(&network, 0), open(&network, 1)];
    for _ in 0..100 {
        let interface = here._domain.open_private().expect("opens");
        interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
        let endpoint = interface.connect(&address(there.me)).expect("connects");
        endpoint.am_short(1, 7, &[]).expect("sends");
        network.settle();
    }
    assert_eq!(network.state().nics(), 3);
    // A rank that ends takes all of its NICs along.
    let interface = here._domain.open_private().expect("opens");
    interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
    let endpoint = interface.connect(&address(there.me)).expect("connects");
    network.kill(there.me);
    network.settle();
    interface.progress();
    assert_eq!(endpoint.am_short(1, 7, &[]), Err(Error::ConnectionReset));
}
