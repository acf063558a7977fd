//! Messages of busy peers, through rings: their order, and how a ring comes and goes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::across::offer;
use super::credits::{End, ends, send};
use crate::transport::attributes::Events;
use crate::transport::conformance::{join, wait};
use crate::transport::key::{MemoryKind, Opaque};
use crate::transport::verbs::link::{BUSY, RingEnds};
use crate::transport::verbs::ring::{HEAD, Head, RINGS, Remote, seal};
use crate::transport::verbs::wire::FLOW;
use crate::transport::verbs::{Device, VerbsWire};
use crate::transport::wire::{Channel, Wire};
use crate::transport::{Error, RemoteKey};

/// The events that a sleeping rank waits for.
const ALL: Events = Events::RECEIVE.and(Events::SEND_COMPLETION);

/// Two ranks, of which `near` writes into a ring of `far`'s, and has just written.
fn busy_ends() -> [End; 2] {
    let [near, mut far] = ends(FLOW);
    let mut number = 0u64;
    let mut next = || {
        if near.send(Channel::Message, &number.to_ne_bytes()).is_ok() {
            number += 1;
        }
        near.wire.push();
        near.wire.receive(&mut |_| {});
        far.wire.push();
        far.take();
    };
    wait("a ring", || near.wire.written(near.peer).is_some_and(|written| written > 0), &mut next);
    let is_next = |(at, bytes): (usize, &Vec<u8>)| bytes[..] == (at as u64).to_ne_bytes();
    let mut rest = || {
        near.wire.receive(&mut |_| {});
        far.wire.push();
        far.take();
        far.came[0].len()
    };
    let start = std::time::Instant::now();
    while rest() < number as usize {
        assert!(start.elapsed().as_secs() < 20);
    }
    assert!(far.came[0].iter().enumerate().all(is_next), "in order");
    assert_eq!(far.wire.rings_lent(), 1);
    [near, far]
}

/// Whether the descriptor becomes readable within so many milliseconds.
fn wakes(wire: &VerbsWire, milliseconds: i64) -> bool {
    let limit = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    let descriptor = wire.event_descriptor().expect("there is one");
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)).expect("polls") > 0
}

/// Arms until it may sleep; nothing comes meanwhile.
fn arm(end: &mut End) {
    let mut turns = 0;
    while end.wire.arm(ALL) == Err(Error::Busy) {
        end.take();
        end.wire.push();
        turns += 1;
        assert!(turns < 10_000, "it may never sleep");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn what_is_written_and_what_is_sent_come_in_order() {
    const COUNT: usize = 600;
    let [near, far] = busy_ends();
    // Small ones go through the ring; others, by other channels too, are sent, and some in fragments.
    let sizes = [8, 8, 0, 200, 8, 3000, 8, 8, 10_000, 16, 195, 8];
    let channel = |number: usize| match number % 7 {
        3 => Channel::Reply,
        5 => Channel::Request,
        _ => Channel::Message,
    };
    let message = |number: usize| {
        let mut message = vec![number as u8; sizes[number % sizes.len()].max(4)];
        message[..4].copy_from_slice(&(number as u32).to_ne_bytes());
        message
    };
    let before = near.wire.written(near.peer).expect("a ring");
    let mut sent = 0;
    let mut came = Vec::new();
    let start = std::time::Instant::now();
    while came.len() < COUNT {
        assert!(start.elapsed().as_secs() < 60, "{} of {COUNT} came", came.len());
        while sent < COUNT && send(&near.wire, near.peer, channel(sent), &message(sent)).is_ok() {
            sent += 1;
        }
        near.wire.push();
        near.wire.receive(&mut |_| {});
        far.wire.receive(&mut |arrival| came.push((arrival.channel, arrival.data.to_vec())));
        far.wire.push();
    }
    let of = |wanted: Channel| {
        let sent: Vec<_> = (0..COUNT).filter(|number| channel(*number) == wanted).map(message).collect();
        let came: Vec<_> =
            came.iter().filter(|(channel, _)| *channel == wanted).map(|(_, bytes)| bytes.clone()).collect();
        assert!(came == sent, "{wanted:?}");
    };
    [Channel::Message, Channel::Request, Channel::Reply].into_iter().for_each(of);
    let written = near.wire.written(near.peer).expect("still") - before;
    println!("busy: {written} of {COUNT} through the ring");
    assert!((COUNT as u32 / 2..COUNT as u32).contains(&written), "{written}");
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_message_waits_for_frames_that_were_sent_before_it() {
    let [near, far] = busy_ends();
    // All counts wrap on the way.
    wait("acknowledgement", || near.wire.arrived(near.peer, near.wire.sent(near.peer)), || {});
    let (here, there) = (near.wire.link_to(near.peer), far.wire.link_to(far.peer));
    let shift = (u32::MAX - 150) / 32 * 32;
    RingEnds::pass(&here.rings, &there.rings, shift);
    for turn in 0..200u32 {
        // Of other channels, so that only the count of frames keeps the order.
        for (channel, number) in
            [(Channel::Request, 0u32), (Channel::Message, 1), (Channel::Reply, 2), (Channel::Message, 3)]
        {
            let bytes = (turn * 4 + number).to_ne_bytes();
            wait(
                "room",
                || send(&near.wire, near.peer, channel, &bytes).is_ok(),
                || {
                    near.wire.push();
                    near.wire.receive(&mut |_| {});
                    far.wire.push();
                },
            );
        }
        let mut came = Vec::new();
        let start = std::time::Instant::now();
        while came.len() < 4 {
            assert!(start.elapsed().as_secs() < 20);
            far.wire.receive(&mut |arrival| came.push(u32::from_ne_bytes(arrival.data.try_into().expect("a word"))));
            far.wire.push();
        }
        assert_eq!(came, Vec::from_iter(turn * 4..turn * 4 + 4));
    }
}

/// Where `near` may put zeros: a slot of the peer's ring that is empty, and stays so.
fn empty_slot(near: &End) -> (RemoteKey, u64) {
    let ring = near.wire.link_to(near.peer).rings.remote().expect("a ring");
    let (address, len) = (ring.address, 32 * 256);
    let key = RemoteKey {
        owner: 1,
        memory: MemoryKind::Outside,
        id: 0,
        address,
        len,
        device: Opaque::number(ring.key.into()),
    };
    (key, Remote { written: ring.written + 20, ..ring }.next())
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_message_behind_a_put_is_sent() {
    let [near, _far] = busy_ends();
    let acknowledged = || wait("acknowledgement", || near.wire.arrived(near.peer, near.wire.sent(near.peer)), || {});
    acknowledged();
    let written = near.wire.written(near.peer).expect("a ring");
    let (key, slot) = empty_slot(&near);
    near.wire.post_packed(near.peer, &key, slot, 8, |bytes| bytes.len()).expect("is posted");
    near.send(Channel::Message, b"behind it").expect("room");
    assert_eq!(near.wire.written(near.peer), Some(written));
    acknowledged();
    near.send(Channel::Message, b"later on").expect("room");
    assert_eq!(near.wire.written(near.peer), Some(written + 1));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn who_sleeps_has_its_ring_back_and_is_woken() {
    let [near, mut far] = busy_ends();
    near.wire.push();
    wait("quiet", || !far.wire.has_arrivals(), || _ = far.wire.receive(&mut |_| {}));
    let before = near.wire.written(near.peer);
    near.send(Channel::Message, b"you stay").expect("room");
    let written = near.wire.written(near.peer);
    assert!(written > before, "through the ring");
    wait("arrival", || near.wire.arrived(near.peer, near.wire.sent(near.peer)), || {});
    let before = far.came[0].len();
    assert!(far.wire.has_arrivals());
    assert_eq!(far.wire.arm(ALL), Err(Error::Busy));
    far.takes(Channel::Message, before + 1);
    assert_eq!(far.came[0].last().map(Vec::as_slice), Some(&b"you stay"[..]));
    arm(&mut far);
    let question = near.wire.sent(near.peer);
    // The question is there when it is acknowledged.
    wait("the question", || far.wire.arrived(far.peer, far.wire.sent(far.peer)), || {});
    // This rank makes no progress, and looks all the same.
    near.send(Channel::Message, b"wake up!").expect("room");
    assert_eq!((near.wire.written(near.peer), near.wire.sent(near.peer)), (None, question + 1), "{written:?}");
    assert!(wakes(&far.wire, 5000));
    let before = far.came[0].len();
    far.takes(Channel::Message, before + 1);
    assert_eq!(far.came[0].last().map(Vec::as_slice), Some(&b"wake up!"[..]));
    assert_eq!(far.wire.rings_lent(), 1, "not yet back");
    near.wire.receive(&mut |_| {});
    near.wire.push();
    wait("the ring", || far.wire.rings_lent() == 0, || _ = far.wire.receive(&mut |_| {}));
    // Only a late event ends a sleep.
    let sleeps = |_| {
        arm(&mut far);
        !wakes(&far.wire, 100)
    };
    assert!((0..20).any(sleeps));
    // And then it is lent again.
    let ends = [near, far];
    let [near, far] = &ends;
    let lent = || near.wire.written(near.peer).is_some();
    wait("another ring", lent, || {
        let _ = near.send(Channel::Message, b"again");
        for end in &ends {
            end.wire.push();
            end.wire.receive(&mut |_| {});
        }
    });
    assert_eq!(far.wire.rings_lent(), 1);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn what_crosses_the_question_is_found_after_a_nap() {
    let [near, mut far] = busy_ends();
    let link = near.wire.link_to(near.peer);
    let ring = link.rings.remote().expect("a ring");
    arm(&mut far);
    let before = far.came[0].len();
    // As if it had looked just before the question came.
    let mut slot = [[0; HEAD], *b"crossed the word"].concat();
    seal(&mut slot, ring.written, Head { id: 7, credits: 0, after: link.rings.frames_sent() });
    near.wire.write_to_ring(near.peer, link, ring, &slot).expect("is posted");
    let start = std::time::Instant::now();
    while far.came[0].len() == before {
        assert!(wakes(&far.wire, 5000), "it sleeps, and its message lies there");
        far.take();
        if far.came[0].len() == before {
            let _ = far.wire.arm(ALL);
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(far.came[0].last().map(Vec::as_slice), Some(&b"crossed the word"[..]));
}

/// The report that is room may be read by any poll before the caller goes to sleep.
#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn who_was_refused_does_not_sleep_when_there_is_room() {
    let [near, _far] = busy_ends();
    let (key, slot) = empty_slot(&near);
    for polls in [true, false] {
        near.wire.refuse();
        assert!(near.wire.arm(ALL).is_ok() || near.wire.arm(ALL).is_ok(), "nothing has come");
        near.wire.refuse();
        // Some of so many report.
        for _ in 0..10 {
            near.wire.post_packed(near.peer, &key, slot, 8, |bytes| bytes.len()).expect("is posted");
        }
        std::thread::sleep(Duration::from_secs(3));
        if polls {
            assert_eq!(near.wire.receive(&mut |_| {}), 0);
            // A sleeper that waits for messages only is not woken by the room, and leaves it to be reported.
            assert!(near.wire.arm(Events::RECEIVE).is_ok(), "no message has come");
        }
        assert_eq!(near.wire.arm(ALL), Err(Error::Busy), "it would sleep, and there is room");
    }
}

/// A wire of rank 0, and one of each of `count` other ranks, which send to rank 0.
fn crowd(count: usize) -> (VerbsWire, Vec<(VerbsWire, u32)>) {
    let open = |rank| VerbsWire::open(&Device::new(rank, count + 1, &offer()).expect("opens"), FLOW).expect("opens");
    let far = open(0);
    let others: Vec<_> = (1..=count)
        .map(|rank| {
            let near = open(rank);
            let peer = near.resolve(&far.address()).expect("a good address");
            far.resolve(&near.address()).expect("a good address");
            (near, peer)
        })
        .collect();
    (far, others)
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn rings_are_few_and_go_to_who_is_busy() {
    let (far, others) = crowd(RINGS + 1);
    let came = std::cell::Cell::new(0);
    let turn = |senders: &[(VerbsWire, u32)]| {
        for (near, peer) in senders {
            let _ = send(near, *peer, Channel::Message, b"a message");
            near.push();
            near.receive(&mut |_| {});
        }
        far.receive(&mut |_| came.set(came.get() + 1));
        far.push();
        assert!(far.rings_lent() <= RINGS);
    };
    let (last, first) = others.split_last().expect("some");
    wait("all rings", || far.rings_lent() == RINGS, || turn(first));
    // All but one go on: its ring goes to the last.
    let rest = &others[1..];
    wait(
        "the last one's",
        || last.0.written(last.1).is_some(),
        || {
            turn(rest);
            others[0].0.push();
            others[0].0.receive(&mut |_| {});
        },
    );
    assert_eq!(others[0].0.written(others[0].1), None);
    let before = came.get();
    wait("messages", || came.get() > before + 200, || turn(&others));
}

/// Three ranks send to each other in bursts, compute without progress, and sleep when there is nothing else to do.
#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn who_sends_computes_and_sleeps_misses_nothing() {
    const RANKS: usize = 3;
    const COUNT: u32 = 3000;
    let wires = [0, 1, 2]
        .map(|rank| VerbsWire::open(&Device::new(rank, RANKS, &offer()).expect("opens"), FLOW).expect("opens"));
    let addresses = wires.each_ref().map(Wire::address);
    let [finished, sleeps, written] = [(); 3].map(|()| AtomicUsize::new(0));
    let run = |rank: usize, wire: VerbsWire| {
        let peers = addresses.each_ref().map(|address| wire.resolve(address).expect("a good address"));
        let others: Vec<usize> = (0..RANKS).filter(|other| *other != rank).collect();
        let mut state = 0x9e37_79b9 + rank as u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize
        };
        let message = |from: usize, number: u32| {
            let lens = [4, 8, 8, 40, 8, 180, 8, 8, 300, 8, 8, 4100];
            let mut message = vec![(number as usize * 3 + from) as u8; lens[number as usize % lens.len()]];
            message[..4].copy_from_slice(&number.to_ne_bytes());
            message
        };
        let (mut sent, mut came) = ([0; RANKS], [0; RANKS]);
        let mut told = false;
        while finished.load(Ordering::SeqCst) < RANKS {
            let (mut burst, mut stuck) = (random() % 100, true);
            for other in &others {
                while burst > 0 && sent[*other] < COUNT {
                    let before = wire.written(peers[*other]);
                    match send(&wire, peers[*other], Channel::Message, &message(rank, sent[*other])) {
                        Ok(_) => {
                            (sent[*other], burst) = (sent[*other] + 1, burst - 1);
                            let after = wire.written(peers[*other]);
                            written.fetch_add((after.is_some() && after > before).into(), Ordering::Relaxed);
                        }
                        Err(Error::NoResource) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                stuck &= burst > 0;
            }
            if random() % 4 == 0 {
                // Computes.
                std::thread::sleep(Duration::from_micros(random() as u64 % 3000));
            }
            // An arrival may be credit to send more.
            stuck &= wire.receive(&mut |arrival| {
                let from = peers.iter().position(|peer| *peer == arrival.from).expect("one of them");
                assert!(arrival.data == message(from, came[from]), "rank {rank}: number {} of {from}", came[from]);
                came[from] += 1;
            }) == 0;
            wire.push();
            let all = others.iter().all(|other| sent[*other] == COUNT && came[*other] == COUNT);
            if all && wire.is_idle() {
                if !std::mem::replace(&mut told, true) {
                    finished.fetch_add(1, Ordering::SeqCst);
                }
                std::thread::yield_now();
            } else if !all && stuck && wire.arm(ALL).is_ok() {
                sleeps.fetch_add(1, Ordering::Relaxed);
                assert!(wakes(&wire, 10_000), "rank {rank} sleeps; it sent {sent:?} and has {came:?}");
            } else if !all && random() % 2 == 0 && wire.arm(ALL).is_ok() {
                sleeps.fetch_add(1, Ordering::Relaxed);
                wakes(&wire, 2);
            }
        }
    };
    std::thread::scope(|scope| {
        let run = &run;
        let ranks = wires.into_iter().enumerate();
        join(ranks.map(|(rank, wire)| scope.spawn(move || run(rank, wire))).collect());
    });
    let [written, sleeps] = [&written, &sleeps].map(|count| count.load(Ordering::Relaxed));
    println!("busy: {written} messages through rings, {sleeps} sleeps");
    assert!(written > 100 && sleeps > 10);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn arming_that_is_refused_keeps_the_rings() {
    let [near, mut far] = busy_ends();
    let before = far.came[1].len();
    for _ in 0..12 {
        near.send(Channel::Request, b"request!").expect("room");
        wait("acknowledgement", || near.wire.arrived(near.peer, near.wire.sent(near.peer)), || {});
        assert_eq!(far.wire.arm(ALL), Err(Error::Busy));
        far.take();
    }
    far.takes(Channel::Request, before + 12);
    near.wire.receive(&mut |_| {});
    assert!(near.wire.written(near.peer).is_some());
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn who_does_not_use_a_ring_gets_the_next_one_later() {
    let [near, mut far] = ends(FLOW);
    for doubled in 0..4 {
        let mut sent = 0;
        while near.wire.written(near.peer).is_none() {
            let before = far.came[0].len();
            near.send(Channel::Message, b"message!").expect("room");
            sent += 1;
            far.takes(Channel::Message, before + 1);
            far.wire.push();
            wait("acknowledgement", || far.wire.arrived(far.peer, far.wire.sent(far.peer)), || {});
            near.wire.receive(&mut |_| {});
        }
        assert_eq!(sent, BUSY << doubled);
        arm(&mut far);
        wait("the question", || near.wire.written(near.peer).is_none(), || _ = near.wire.receive(&mut |_| {}));
        near.wire.push();
        wait("the ring", || far.wire.rings_lent() == 0, || _ = far.wire.receive(&mut |_| {}));
    }
}
