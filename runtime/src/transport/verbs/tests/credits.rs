//! Credits of messages: they come back along with messages of the other way, or in messages of their own.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::across::offer;
use crate::transport::conformance::{join, wait};
use crate::transport::stream::FlowLimits;
use crate::transport::verbs::wire::FLOW;
use crate::transport::verbs::{Device, VerbsWire};
use crate::transport::wire::{Channel, Wire};
use crate::transport::{Error, Result};

const CHANNELS: [Channel; 3] = [Channel::Message, Channel::Request, Channel::Reply];

/// A rank's wire, to one other.
pub(super) struct End {
    pub(super) wire: VerbsWire,
    pub(super) peer: u32,
    /// Messages that came, by channel.
    pub(super) came: [Vec<Vec<u8>>; 3],
}

/// Two ranks that can send to each other.
pub(super) fn ends(flow: FlowLimits) -> [End; 2] {
    let wires =
        [0, 1].map(|rank| VerbsWire::open(&Device::new(rank, 2, &offer()).expect("opens"), flow).expect("opens"));
    let peers = [1, 0].map(|other: usize| wires[other].address());
    let mut peers = peers.iter().zip(&wires).map(|(address, wire)| wire.resolve(address).expect("a good address"));
    let peers = [(); 2].map(|()| peers.next().expect("two"));
    let mut which = peers.into_iter();
    let ends = wires.map(|wire| End { wire, peer: which.next().expect("two"), came: Default::default() });
    let ready = || ends.iter().all(|end| end.wire.has_room(end.peer, Channel::Message));
    wait("a connection", ready, || ends.iter().for_each(|end| _ = end.wire.receive(&mut |_| {})));
    ends
}

pub(super) fn send(wire: &VerbsWire, peer: u32, channel: Channel, bytes: &[u8]) -> Result<usize> {
    let fill = |buffer: &mut [u8]| {
        buffer[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    };
    wire.send(peer, channel, 7, bytes.len(), fill)
}

impl End {
    pub(super) fn send(&self, channel: Channel, bytes: &[u8]) -> Result<usize> {
        send(&self.wire, self.peer, channel, bytes)
    }

    /// Handles the messages that came. Credits that are due stay due: none goes in a message of its own before a push.
    pub(super) fn take(&mut self) {
        let came = &mut self.came;
        self.wire.receive(&mut |arrival| came[arrival.channel as usize].push(arrival.data.to_vec()));
    }

    /// Sends so many, and `to` has taken them.
    fn pass(&self, channel: Channel, count: usize, to: &mut End) {
        let before = to.came[channel as usize].len();
        for number in 0..count {
            // Inside the request, and by way of a buffer.
            let message = vec![number as u8; if number % 2 == 0 { 8 } else { 3000 }];
            assert_eq!(self.send(channel, &message), Ok(message.len()), "{channel:?}: message {number} of {count}");
        }
        to.takes(channel, before + count);
        // So that nothing but credits can be short.
        wait("reports", || self.wire.arrived(self.peer, self.wire.sent(self.peer)), || {});
    }

    pub(super) fn takes(&mut self, channel: Channel, count: usize) {
        let start = std::time::Instant::now();
        while self.came[channel as usize].len() < count {
            assert!(start.elapsed().as_secs() < 60, "{channel:?}: still waiting for {count} messages");
            self.take();
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn messages_carry_the_credits_of_the_other_way() {
    const CREDITS: usize = 8;
    let [mut near, mut far] = ends(FlowLimits { credits: CREDITS as u32, ..FLOW });
    for channel in CHANNELS {
        for _ in 0..10 {
            near.pass(channel, 3, &mut far);
            far.pass(channel, 1, &mut near);
        }
        // All are back, and no more than that.
        near.pass(channel, 3, &mut far);
        far.pass(channel, 1, &mut near);
        for _ in 0..CREDITS {
            near.send(channel, b"one of them").expect("a credit");
        }
        assert_eq!(near.send(channel, b"too many"), Err(Error::NoResource), "{channel:?}");
        // These messages have not been taken, and none is given twice.
        far.pass(channel, 1, &mut near);
        assert_eq!(near.send(channel, b"too many"), Err(Error::NoResource), "{channel:?}");
        far.takes(channel, 11 * 3 + CREDITS);
        far.pass(channel, 1, &mut near);
        near.pass(channel, CREDITS, &mut far);
        far.pass(channel, 1, &mut near);
    }
}

/// Both send whenever there is room, and neither is done before it has all of the other's.
fn flood(flow: FlowLimits) {
    const COUNT: usize = 60;
    let message = |channel: Channel, from: usize, number: usize| {
        let lens = [0, 8, flow.fragment, flow.fragment + 1, flow.fragment * 3];
        vec![(number * 6 + from * 3 + channel as usize) as u8; lens[number % lens.len()]]
    };
    let finished = AtomicUsize::new(0);
    let run = |rank: usize, mut end: End| {
        let mut sent = [0; 3];
        let done = |end: &End, sent: &[usize; 3]| {
            *sent == [COUNT; 3]
                && end.came.iter().all(|came| came.len() == COUNT)
                && end.wire.arrived(end.peer, end.wire.sent(end.peer))
        };
        let mut told = false;
        let start = std::time::Instant::now();
        // A rank that has all messages goes on, since the other may need its progress.
        while finished.load(Ordering::SeqCst) < 2 {
            for channel in CHANNELS {
                let sent = &mut sent[channel as usize];
                while *sent < COUNT {
                    match end.send(channel, &message(channel, rank, *sent)) {
                        Ok(_) => *sent += 1,
                        Err(Error::NoResource) => break,
                        Err(error) => panic!("{flow:?}: {error}"),
                    }
                }
            }
            end.wire.push();
            end.take();
            if !told && done(&end, &sent) {
                told = true;
                finished.fetch_add(1, Ordering::SeqCst);
            }
            let came = end.came.each_ref().map(Vec::len);
            assert!(start.elapsed().as_secs() < 60, "{flow:?}: rank {rank} sent {sent:?} and has {came:?} of {COUNT}");
            std::thread::yield_now();
        }
        for channel in CHANNELS {
            let whole: Vec<_> = (0..COUNT).map(|number| message(channel, 1 - rank, number)).collect();
            assert!(end.came[channel as usize] == whole, "{flow:?}: what came on {channel:?} is not what was sent");
        }
    };
    std::thread::scope(|scope| {
        let run = &run;
        let sides = ends(flow).into_iter().enumerate();
        join(sides.map(|(rank, end)| scope.spawn(move || run(rank, end))).collect());
    });
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn two_that_flood_each_other_with_few_credits_do_not_lock_up() {
    for (credits, slots, fragment) in [(1, 1, 1), (1, 16, 40), (2, 1, 1000), (3, 2, 16), (FLOW.credits, 16, 64)] {
        flood(FlowLimits { slots, credits, fragment, ..FLOW });
    }
}
