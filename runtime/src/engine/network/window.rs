//! Flow control of messages from program to program: a sender may have so many messages, or so many bytes of them, at a peer
//! whose program has not handled them yet. The room that the network itself has for messages comes back when they are in the
//! receiver's queue, so without this a receiver that does not run handlers would queue without limit.
//!
//! Both ends count. The receiver returns room when half of a window is handled, by a message of its own that is not counted.
//! So the receiver always holds back less than half a window. A sender that has as much in flight need not ask for room: the
//! receiver still has to handle some of it, and then returns it. A sender with less in flight has to ask if its next message does
//! not fit into the rest: the receiver may have handled everything, and returns room at once when it is asked.
//!
//! The messages in flight never have more bytes than a window. A message longer than a window goes alone.
//!
//! The bound is one for each sender: a receiver of `n` senders that all send at once may queue `n` windows. One bound for all
//! would need a receiver that gives room out to senders that have asked first, a round trip before the first message.
//!
//! The contexts of a rank have one such window together at each peer (`engine/context/window.rs`). No rank sends to a context, so there
//! the sender reads what the receiver has counted.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Messages of one sender that a receiver queues. Chosen: as many as lanes of mapped memory have by default.
pub(super) const MESSAGES: u32 = 64;
/// Bytes of one sender's messages that a receiver queues, unless it is one message that is longer. Chosen: two messages of 256 KiB.
pub(super) const BYTES: u32 = 512 << 10;

/// Messages, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) struct Load {
    pub(super) messages: u32,
    pub(super) bytes: u32,
}

impl Load {
    /// Asks the receiver to return room as soon as it has handled a message. A load of 0 is never returned, so it can mean this.
    pub(super) const QUESTION: Load = Load { messages: 0, bytes: 0 };

    /// Whether a sender with so much in flight may send a message of `len` bytes.
    #[inline]
    pub(in super::super) fn leaves_room(self, len: usize) -> bool {
        self.messages < MESSAGES && (self.bytes == 0 || self.bytes as usize + len <= BYTES as usize)
    }

    #[inline]
    pub(super) fn with(self, len: usize) -> Load {
        // Messages of a network have fewer bytes than a `u32` counts.
        Load { messages: self.messages + 1, bytes: self.bytes.saturating_add(len as u32) }
    }

    /// The load that is left when the peer has returned so much.
    pub(super) fn without(self, returned: Load) -> Load {
        Load {
            messages: self.messages.saturating_sub(returned.messages),
            bytes: self.bytes.saturating_sub(returned.bytes),
        }
    }

    /// As a count that never falls: it wraps, and only the difference of two of them means something.
    pub(in super::super) fn wrapping_with(self, len: usize) -> Load {
        Load { messages: self.messages.wrapping_add(1), bytes: self.bytes.wrapping_add(len as u32) }
    }

    /// The load that was counted since `before`.
    pub(in super::super) fn since(self, before: Load) -> Load {
        Load { messages: self.messages.wrapping_sub(before.messages), bytes: self.bytes.wrapping_sub(before.bytes) }
    }

    /// Whether it is no more than `other`, in messages and in bytes.
    pub(in super::super) fn is_within(self, other: Load) -> bool {
        self.messages <= other.messages && self.bytes <= other.bytes
    }

    /// Whether a receiver that has handled so much returns it without being asked.
    pub(super) fn is_due(self) -> bool {
        self.messages >= MESSAGES / 2 || self.bytes >= BYTES / 2
    }

    /// As it travels.
    pub(in super::super) fn to_word(self) -> u64 {
        u64::from(self.messages) << 32 | u64::from(self.bytes)
    }

    pub(in super::super) fn from_word(word: u64) -> Load {
        Load { messages: (word >> 32) as u32, bytes: word as u32 }
    }
}

/// The messages that this rank has handled, by sender, and whose room it has not returned.
#[derive(Debug, Default)]
pub(super) struct Handled {
    loads: RefCell<BTreeMap<usize, Load>>,
    /// Senders to which room is due.
    due: RefCell<Vec<usize>>,
    /// Senders that asked for room when nothing of them was handled.
    asked: RefCell<Vec<usize>>,
}

impl Handled {
    /// Notes a message that was handled. Returns whether room is due to its sender.
    pub(super) fn note(&self, from: usize, len: usize) -> bool {
        let mut loads = self.loads.borrow_mut();
        let load = loads.entry(from).or_default();
        *load = load.with(len);
        let is_due = load.is_due() || self.asked.borrow().contains(&from);
        if is_due && !self.due.borrow().contains(&from) {
            self.due.borrow_mut().push(from);
        }
        is_due
    }

    /// The sender asks for room: it is due now or, if nothing is handled, with its next message.
    pub(super) fn ask(&self, from: usize) {
        let list = if self.loads.borrow().contains_key(&from) { &self.due } else { &self.asked };
        if !list.borrow().contains(&from) {
            list.borrow_mut().push(from);
        }
    }

    /// Returns room that is due: `send` tells whether it went, else it is tried again later.
    pub(super) fn give_back(&self, mut send: impl FnMut(usize, Load) -> bool) {
        if self.due.borrow().is_empty() {
            return;
        }
        let mut loads = self.loads.borrow_mut();
        self.due.borrow_mut().retain(|from| {
            let load = loads.get(from).copied().unwrap_or_default();
            let sent = send(*from, load);
            if sent {
                loads.remove(from);
                self.asked.borrow_mut().retain(|asked| asked != from);
            }
            !sent
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Simulated;
    use crate::transport::sim::Config;
    use crate::transport::{Memory, Sent};

    /// A sender and a receiver that handles everything, with messages of these lengths in turn. Returns the most bytes in flight, and
    /// how often the sender had to ask for room.
    fn all_go(lengths: &[usize]) -> (u32, usize) {
        let (mut out, handled) = (Load::default(), Handled::default());
        let (mut sent, mut most, mut questions) = (0, 0, 0);
        while sent < 10_000 {
            let mut queue = Vec::new();
            while sent < 10_000 && out.leaves_room(lengths[sent % lengths.len()]) {
                let len = lengths[sent % lengths.len()];
                out = out.with(len);
                queue.push(len);
                sent += 1;
            }
            if queue.is_empty() {
                assert!(!out.is_due(), "all was handled and so much never came back, after {sent} messages");
                handled.ask(3);
                questions += 1;
                assert!(questions <= sent, "a question brought no room");
            }
            most = most.max(out.bytes);
            for len in queue {
                handled.note(3, len);
            }
            handled.give_back(|from, load| {
                assert_eq!(from, 3);
                out = out.without(Load::from_word(load.to_word()));
                true
            });
        }
        (most, questions)
    }

    #[test]
    fn room_comes_back_whatever_the_lengths() {
        const WINDOW: usize = BYTES as usize;
        for lengths in [
            &[0][..],
            &[8],
            &[100 << 10],
            &[WINDOW / 2],
            &[WINDOW],
            &[120 << 10, 200 << 10, 450 << 10],
            &[1, 4000, 4 << 20],
            &[WINDOW / 2 - 1, WINDOW / 2 + 2],
            &[WINDOW + 1, 8],
        ] {
            let (most, questions) = all_go(lengths);
            let longest = lengths.iter().max().copied().unwrap_or_default();
            assert!(most as usize <= WINDOW.max(longest), "{most} bytes in flight with {lengths:?}");
            assert!(questions == 0 || longest > WINDOW / 2, "{lengths:?}: enough was handled, and did not come back");
        }
    }

    #[test]
    fn a_question_is_answered_with_the_next_message_if_nothing_is_handled() {
        let handled = Handled::default();
        let given = || {
            let mut given = Vec::new();
            handled.give_back(|from, load| {
                given.push((from, load.messages));
                true
            });
            given
        };
        handled.ask(1);
        handled.ask(1);
        assert_eq!(given(), []);
        assert!(!handled.note(2, 8), "another one asked");
        assert!(handled.note(1, 8));
        assert_eq!(given(), [(1, 1)]);
        assert!(!handled.note(1, 8), "the question was answered");
        handled.ask(1);
        assert_eq!((given(), given()), (vec![(1, 1)], vec![]));
    }

    #[test]
    fn room_that_finds_no_way_back_is_returned_later() {
        let handled = Handled::default();
        for number in 0..MESSAGES {
            assert_eq!(handled.note(1, 10), number + 1 >= MESSAGES / 2);
        }
        handled.give_back(|_, _| false);
        let mut given = Vec::new();
        handled.give_back(|from, load| {
            given.push((from, load));
            true
        });
        handled.give_back(|_, _| unreachable!("all was returned"));
        assert_eq!(given, [(1, Load { messages: MESSAGES, bytes: 10 * MESSAGES })]);
    }

    /// Rank 1 makes progress and runs no handler, as a rank that waits for the network alone does.
    #[test]
    fn a_receiver_that_runs_no_handler_queues_a_window() {
        /// As `message::id` has it: a kind of message whose payload is kept by its header.
        const BROADCAST: u8 = 10;
        let plain = Config::new(2, 5);
        let posted = Config { memory: Memory::Posted, ..plain.clone() };
        let mut long = plain.clone();
        long.flow.message = 1 << 20;
        let alone = [BYTES as usize + 8; 2];
        for (config, lens) in [
            (plain.clone(), [8, 8]),
            (posted, [8, 8]),
            (plain.clone(), [30_000, 30_000]),
            (plain.tiny(), [100, 100]),
            // The second does not fit beside the first, which no receiver returns unasked.
            (long.clone(), [200_000, 400_000]),
            (long, alone),
        ] {
            let len = |number: u64| lens[number as usize % 2];
            let many = if lens[1] > 100_000 { 8 } else { 1000 };
            let job = Simulated::new(config);
            let sent = job.run(|world| {
                let engine = world.engine();
                let told = world.alloc::<u64>(1).expect("it fits");
                world.barrier().expect("all are here");
                let (mut sent, network) = (0, engine.networks.to(1 - world.rank()));
                if world.rank() == 0 {
                    let payload = |number| vec![1; len(number)];
                    // Far longer than a refused message would take to arrive.
                    for _ in 0..2000 {
                        if sent < many && engine.send(1, BROADCAST, sent, &payload(sent)).expect("alive") == Sent::Done
                        {
                            sent += 1;
                        }
                        engine.turn();
                        world.sleep(Duration::from_micros(1));
                    }
                    told.put(1, 0, 1).expect("in range");
                    for number in sent..many {
                        world.messages().pass_broadcast(1, number, &payload(number)).expect("alive");
                    }
                } else {
                    while told.load(0) == 0 {
                        network.progress();
                        world.sleep(Duration::from_micros(1));
                    }
                    for number in 0..many {
                        let mut bytes = None;
                        let came = || {
                            bytes = world.messages().take_broadcast(number);
                            bytes.is_some()
                        };
                        world.wait_until(came).expect("comes");
                        assert_eq!(bytes.map(|bytes| bytes.len()), Some(len(number)));
                    }
                }
                sent
            });
            let sent = sent.expect("runs")[0];
            let bytes = (0..sent).map(len).sum::<usize>();
            let most = (BYTES as usize).max(lens[0]);
            assert!(
                (1..=u64::from(MESSAGES)).contains(&sent) && bytes <= most,
                "{sent} messages of {lens:?} bytes, {bytes} bytes in all"
            );
        }
    }

    /// Rank 1 catches the panics of its handlers, and goes on: the room of those messages goes back, too.
    #[test]
    fn room_of_messages_whose_handlers_panic_goes_back() {
        const MANY: u64 = 4 * MESSAGES as u64;
        // `ci/test full` sets the variable.
        for seed in 0..if std::env::var_os("ROWS_FULL").is_some() { 3 } else { 1 } {
            let job = Simulated::new(Config::new(2, seed));
            let outcomes = job.run(|world| -> crate::Result<()> {
                world.barrier()?;
                if world.rank() == 0 {
                    let panics =
                        |_: &crate::Context<'_>, ()| -> u8 { std::panic::resume_unwind(Box::new("a handler")) };
                    for _ in 0..MANY {
                        let outcome = world.call(1, (), panics)?.wait();
                        assert!(matches!(outcome, Err(crate::Error::HandlerPanicked { .. })), "{outcome:?}");
                    }
                } else {
                    let wait = || world.wait_until(|| false);
                    for _ in 0..MANY {
                        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
                        assert!(outcome.is_err(), "{outcome:?}");
                    }
                }
                Ok(())
            });
            outcomes.expect("starts").into_iter().collect::<crate::Result<()>>().expect("runs");
        }
    }
}
