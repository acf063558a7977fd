//! Connections that break: nothing that was acknowledged is lost, and nothing crashes or hangs.

use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::across::offer;
use super::credits::send;
use crate::transport::attributes::Events;
use crate::transport::conformance::wait;
use crate::transport::key::{MemoryKind, Opaque};
use crate::transport::verbs::address::Address;
use crate::transport::verbs::wire::FLOW;
use crate::transport::verbs::{Device, VerbsWire};
use crate::transport::wire::{Channel, Wire};
use crate::transport::{Error, RemoteKey};

/// The events that a sleeping rank waits for.
const ALL: Events = Events::RECEIVE.and(Events::SEND_COMPLETION);

/// Two ranks, then the second's number for the first, and the first's number for the second.
fn two() -> ([Device; 2], [VerbsWire; 2], [u32; 2]) {
    let devices = [0, 1].map(|rank| Device::new(rank, 2, &offer()).expect("opens"));
    let [far, near] = devices.each_ref().map(open);
    let peer = near.resolve(&far.address()).expect("a good address");
    let back = far.resolve(&near.address()).expect("a good address");
    (devices, [far, near], [peer, back])
}

fn open(device: &Device) -> VerbsWire {
    VerbsWire::open(device, FLOW).expect("opens")
}

fn say(wire: &VerbsWire, peer: u32, bytes: &[u8]) {
    wait(
        "room",
        || send(wire, peer, Channel::Message, bytes).is_ok(),
        || {
            wire.push();
            wire.receive(&mut |_| {});
        },
    );
}

fn acknowledged(wire: &VerbsWire, peer: u32) {
    wait("acknowledgements", || wire.arrived(peer, wire.sent(peer)), || {});
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn what_has_arrived_is_handed_over_though_its_sender_is_lost() {
    for by_ring in [false, true] {
        let (devices, [far, near], [peer, back]) = two();
        let turn = |times: usize| {
            let came = std::cell::Cell::new(0);
            let turn = || {
                near.push();
                near.receive(&mut |_| {});
                far.push();
                far.receive(&mut |_| came.set(came.get() + 1));
            };
            for _ in 0..times {
                wait("room", || send(&near, peer, Channel::Message, b"at first").is_ok(), turn);
            }
            wait("messages", || came.get() == times, turn);
        };
        turn(if by_ring { 20 } else { 1 });
        let settle = || {
            far.push();
            near.receive(&mut |_| {});
        };
        wait("a way", || near.written(peer).is_some() == by_ring, settle);
        let messages: Vec<Vec<u8>> = [8, 3000, 9, 10_000, 10].map(|len| vec![len as u8; len]).into();
        for message in &messages {
            wait("room", || send(&near, peer, Channel::Message, message).is_ok(), || _ = near.push());
        }
        near.push();
        wait("arrival", || near.arrived(peer, near.sent(peer)), || {});
        devices[0].board().fail(Address::decode(&near.address()).expect("an address").peer());
        send(&far, back, Channel::Message, b"never comes").expect("is posted");
        let mut came = Vec::new();
        let start = std::time::Instant::now();
        while far.loss(back).is_none() || came.len() < messages.len() {
            assert!(start.elapsed().as_secs() < 20, "by a ring: {by_ring}; {} came", came.len());
            if far.loss(back).is_none() {
                // The loss is seen before any message is handled.
                far.arrived(back, far.sent(back));
                continue;
            }
            assert!(far.has_arrivals());
            far.receive(&mut |arrival| came.push((arrival.from, arrival.data.to_vec())));
        }
        assert!(came.iter().all(|(from, _)| *from == back));
        assert!(came.into_iter().map(|(_, bytes)| bytes).eq(messages), "by a ring: {by_ring}");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_peer_that_is_lost_leaves_its_ring() {
    let (devices, [far, near], [peer, back]) = two();
    let turn = || {
        let _ = send(&near, peer, Channel::Message, b"a message");
        for wire in [&near, &far] {
            wire.push();
            wire.receive(&mut |_| {});
        }
    };
    wait("a ring", || near.written(peer).is_some_and(|written| written > 3), turn);
    devices[0].board().fail(Address::decode(&near.address()).expect("an address").peer());
    wait("the loss", || far.loss(back).is_some() && near.loss(peer).is_some(), turn);
    assert_eq!((far.rings_lent(), near.written(peer)), (0, None));
    assert_eq!(send(&near, peer, Channel::Message, b"more"), Err(Error::ConnectionReset));
    assert!([near.link_to(peer), far.link_to(back)].iter().all(|link| link.rings.lent().is_none()));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_handler_that_finds_the_loss_takes_no_message_along() {
    let (devices, [far, near], [peer, back]) = two();
    let turn = || {
        for (wire, peer) in [(&near, peer), (&far, back)] {
            let _ = send(wire, peer, Channel::Message, b"at first");
            wire.push();
            wire.receive(&mut |_| {});
        }
    };
    let written = || near.written(peer).is_some_and(|written| written > 0);
    wait("rings", || written() && far.written(back).is_some(), turn);
    let came = std::cell::Cell::new(0);
    let rest = || {
        near.receive(&mut |_| {});
        far.receive(&mut |_| came.set(came.get() + 1));
    };
    say(&near, peer, b"the last");
    acknowledged(&near, peer);
    let quiet = || {
        let before = came.get();
        rest();
        before == came.get() && !far.has_arrivals()
    };
    wait("quiet", quiet, || {});
    // Through the ring, by a send, and through the ring.
    let messages = [vec![1; 8], vec![2; 1000], vec![3; 8]];
    messages.iter().for_each(|message| say(&near, peer, message));
    acknowledged(&near, peer);
    let mut came = Vec::new();
    let start = Instant::now();
    while came.len() < messages.len() {
        assert!(start.elapsed().as_secs() < 20, "{came:?}");
        far.receive(&mut |arrival| {
            came.push(arrival.data.to_vec());
            if came.len() == 1 {
                devices[0].board().fail(back);
                let answered = || send(&far, back, Channel::Message, b"answer") == Err(Error::ConnectionReset);
                wait("the loss", answered, || {});
            }
        });
    }
    assert_eq!(came, messages);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_full_queue_whose_connection_broke_is_an_error() {
    let (devices, [_far, near], [peer, _]) = two();
    say(&near, peer, b"hello");
    acknowledged(&near, peer);
    devices[1].board().fail(peer);
    let channels = [Channel::Message, Channel::Request, Channel::Reply];
    let lost = || channels.iter().any(|channel| send(&near, peer, *channel, b"more") == Err(Error::ConnectionReset));
    // Nothing but sends looks at completions.
    wait("the loss", lost, || {});
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_put_that_finds_the_loss_is_an_error() {
    let (_devices, [_far, near], [peer, _]) = two();
    say(&near, peer, b"hello");
    acknowledged(&near, peer);
    let key = RemoteKey {
        owner: 0,
        memory: MemoryKind::Outside,
        id: 0,
        address: 4096,
        len: 1 << 20,
        device: Opaque::number(0x0bad_0bad),
    };
    let mut posted = 0;
    let lost = || match near.post_packed(peer, &key, 4096, 10_000, |bytes| bytes.len()) {
        Ok(_) => {
            posted += 1;
            false
        }
        Err(error) => error == Error::ConnectionReset,
    };
    // Only the target knows that it is refused.
    wait("the loss", lost, || {});
    assert!(posted > 0);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn messages_of_an_interface_come_though_the_next_has_its_number() {
    let (_devices, [far, near], [peer, _]) = two();
    let mut came: Vec<Vec<u8>> = Vec::new();
    say(&near, peer, b"hello");
    wait("hello", || far.receive(&mut |arrival| came.push(arrival.data.to_vec())) > 0, || {});
    [b"one", b"two"].into_iter().for_each(|message| say(&near, peer, message));
    acknowledged(&near, peer);
    let address = Address::decode(&near.address()).expect("an address");
    drop(near);
    let device = Device::new(1, 2, &offer()).expect("opens");
    let again = open(&device);
    assert_eq!(Address::decode(&again.address()).expect("an address").peer(), address.peer());
    let peer = again.resolve(&far.address()).expect("a good address");
    // The rank `far` makes no progress; its connecting thread answers.
    say(&again, peer, b"three");
    acknowledged(&again, peer);
    let start = Instant::now();
    while came.len() < 4 {
        assert!(start.elapsed().as_secs() < 20, "{came:?}");
        far.receive(&mut |arrival| came.push(arrival.data.to_vec()));
    }
    assert_eq!(came, [&b"hello"[..], b"one", b"two", b"three"]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_peer_that_counts_as_lost_and_asks_again_learns_of_it() {
    let (devices, [far, near], [peer, back]) = two();
    say(&near, peer, b"hello");
    wait("hello", || far.receive(&mut |_| {}) > 0, || {});
    devices[0].board().fail(back);
    let _posted = send(&far, back, Channel::Message, b"never comes");
    wait("the loss", || far.loss(back).is_some(), || _ = far.receive(&mut |_| {}));
    drop(near);
    let device = Device::new(1, 2, &offer()).expect("opens");
    let again = open(&device);
    let peer = again.resolve(&far.address()).expect("a good address");
    let turn = || {
        let _ = send(&again, peer, Channel::Message, b"message!");
        for wire in [&again, &far] {
            wire.push();
            wire.receive(&mut |_| {});
        }
    };
    wait("the loss", || again.loss(peer).is_some(), turn);
    assert_eq!((far.loss(back), far.rings_lent()), (Some(Error::ConnectionReset), 0));
    // Nothing of it keeps this rank awake.
    let sleeps = |_| {
        while far.arm(ALL) == Err(Error::Busy) {
            far.push();
            far.receive(&mut |_| {});
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let descriptor = far.event_descriptor().expect("there is one");
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)).expect("polls") == 0
    };
    assert!((0..20).any(sleeps));
}
