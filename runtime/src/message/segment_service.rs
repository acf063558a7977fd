//! Closing segments: the owner asks the ranks that may hold an entry to forget it, and they answer. `engine/segments.rs` has
//! the protocol and its race.
//!
//! Atomics on segments that only their owner reaches, since ranks of one node have not mapped each other's: a message, whose handler
//! does the atomic, and whose receipt brings the result.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::calls::Bytes;
use super::closure::{CLOSED, DONE};
use super::{Messages, id, words};
use crate::engine::{Answering, Change, Event, Found};
use crate::error::{Error, Result};
use crate::sleep;
use crate::transport::{Atomic, AtomicOp, Width};

/// How often an owner polls, after a rank was lost, for the answers of those that live: they may be about to end, too.
const POLLS: usize = 10_000;
/// Between two polls; where time is virtual, that of an idle poll.
const PAUSE: Duration = Duration::from_millis(1);

const NAME: &str = "closing a segment";
/// In place of an atomic: no change. The receipt then says that everything that the sender sent before was handled.
const NOTHING: u64 = u64::MAX;

/// Asking: the header is the segment's number, the payload its generation; so is the answer.
pub(super) fn install(messages: &Rc<Messages>) {
    messages.set_handler(id::REVOKE, |messages, message| {
        let Some(([number, generation], _)) = words::<2>(message.data()) else {
            return messages.fault(message.from, "a segment that is closed without its number");
        };
        let number = number as u32;
        messages.engine.forget_segment(Answering { owner: message.from, id: id::REVOKED, number, generation });
    });
    messages.set_handler(id::SEGMENT_ATOMIC, |messages, message| {
        let (engine, from) = (&messages.engine, message.from);
        let Some(([number, receipt, offset, kind, value, compare], _)) = words::<6>(message.data()) else {
            return messages.fault(from, "an atomic on a segment without its numbers");
        };
        let op = AtomicOp::from_number(kind as u8).zip(Width::from_bytes((kind >> 8) as u8));
        let mut answer = Bytes::from_slice(&[DONE]);
        match op {
            _ if kind == NOTHING => {}
            None => return messages.fault(from, format!("an atomic on a segment of a kind that is none: {kind:#x}")),
            Some((op, width)) => match engine.segments.word(number as u32, offset as usize, width) {
                Some(at) => {
                    // SAFETY: an aligned word of an open segment of ours. Peers may change it at any time, so this rank keeps its
                    // own accesses apart, or makes them atomics and copies.
                    let before = unsafe { Atomic { op, width, value, compare }.perform(at) };
                    answer.extend_from_slice(&before.to_ne_bytes());
                }
                None => answer = Bytes::from_slice(&[CLOSED]),
            },
        }
        engine.answer(from, || engine.send_or_keep(from, id::ANSWER, receipt, &answer));
    });
    messages.set_handler(id::REVOKED, |messages, message| match words::<2>(message.data()) {
        Some(([number, generation], _)) => {
            messages.engine.segments.acknowledge(message.from, number as u32, generation)
        }
        None => messages.fault(message.from, "an answer about a segment without its number"),
    });
}

impl Messages {
    /// Asks `to` to do `change` at `offset` of its segment `number`, or nothing, after everything that this rank has sent there before.
    /// With [`BY_ADDRESS`](crate::engine::BY_ADDRESS) as number the offset is an address. When `to` has done so, the result goes to
    /// `found`, and `events` happen. Inside a handler the message may be kept. Elsewhere this blocks until there is room if it asks for a
    /// change; a message that asks for none is kept.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; then no event happens.
    pub(crate) fn ask_owner(
        &self,
        to: usize,
        (number, offset): (u32, usize),
        change: Option<Change>,
        found: Option<Arc<Found>>,
        events: Vec<Event>,
    ) -> Result<()> {
        let kind = change.map_or(NOTHING, |change| change.op as u64 | (change.width as u64) << 8);
        let [value, compare] = change.map_or([0; 2], |change| [change.value, change.compare]);
        let receipt = self.engine.open_atomic(to, found, events)?;
        let payload = [receipt, offset as u64, kind, value, compare].map(u64::to_ne_bytes);
        let (number, payload) = (u64::from(number), payload.as_flattened());
        let sent = match change {
            Some(_) => self.send(to, id::SEGMENT_ATOMIC, number, payload),
            // It tells of messages before it, which a network may otherwise deliver later.
            None => self.engine.try_send_unasked(to, id::SEGMENT_ATOMIC, number, payload),
        };
        sent.inspect_err(|error| self.engine.contexts.receipts().refuse(receipt, to, error))
    }

    /// Closes a segment of this rank: when this returns without an error, nobody reaches its memory any more. On an error
    /// somebody may: the memory stays registered, and must stay as it is.
    ///
    /// # Errors
    /// [`Error::InsideHandler`], [`Error::Forked`]; [`Error::PeerLost`] if a rank was lost, and another one that lives does
    /// not answer; [`Error::Standstill`].
    pub fn close_segment(&self, number: u32, generation: u64) -> Result<()> {
        self.begin_close_segment(number, generation)?;
        self.end_close_segment(number, generation)
    }

    /// Asks all ranks that may use a segment of this rank to stop using it. Their later puts fail. Their answers arrive as this rank makes
    /// progress.
    ///
    /// # Errors
    /// [`Error::InsideHandler`].
    pub(crate) fn begin_close_segment(&self, number: u32, generation: u64) -> Result<()> {
        let engine = &self.engine;
        engine.check_outside_handler(NAME)?;
        for rank in engine.begin_close(number, generation) {
            // A rank that is gone uses nothing.
            let _ = engine.send_or_keep(rank, id::REVOKE, u64::from(number), &generation.to_ne_bytes());
        }
        Ok(())
    }

    /// Waits for the answers to [`Messages::begin_close_segment`].
    ///
    /// # Errors
    /// As [`Messages::close_segment`].
    pub(crate) fn end_close_segment(&self, number: u32, generation: u64) -> Result<()> {
        let engine = &self.engine;
        engine.check_outside_handler(NAME)?;
        let mut polls = 0;
        loop {
            match engine.wait_together(NAME, || engine.is_unused(number, generation)) {
                Ok(()) => break,
                Err(_) if engine.is_unused(number, generation) => break,
                Err(Error::PeerLost { .. }) if polls < POLLS => {
                    polls += 1;
                    // A wait that one lost rank ends at once does not look for others.
                    engine.failures.enter(&engine.networks);
                    match engine.networks.pace() {
                        Some(pace) => pace.pause(PAUSE),
                        None => sleep::nap(PAUSE),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        engine.segments.end_close(number, generation);
        Ok(())
    }
}
