//! Closing segments: the owner asks the ranks that may hold an entry to forget it, and they answer. `engine/segments.rs` has
//! the protocol and its race.

use std::rc::Rc;
use std::time::Duration;

use super::{Messages, id, words};
use crate::error::{Error, Loss, Result};
use crate::sleep;

/// How often an owner polls, after a rank was lost, for the answers of those that live: they may be about to end, too.
const POLLS: usize = 10_000;
/// Between two polls; where time is virtual, that of an idle poll.
const PAUSE: Duration = Duration::from_millis(1);

/// Asking: the header is the segment's number, the payload its generation; so is the answer.
pub(super) fn install(messages: &Rc<Messages>) {
    messages.set_handler(id::REVOKE, |messages, message| {
        let Some(([number, generation], _)) = words::<2>(message.data()) else {
            return messages.fault(message.from, "a segment that is closed without its number");
        };
        let (engine, owner) = (&messages.engine, message.from);
        engine.forget_segment(owner, number as u32, generation);
        // Also to an owner that has left its world and still closes. Ordered after all that this rank has posted there: by then
        // nothing is under way to the segment.
        if engine.job.loss(owner).is_none_or(|loss| loss == Loss::Left) {
            engine.send_unasked(owner, id::REVOKED, number, &generation.to_ne_bytes());
        }
    });
    messages.set_handler(id::REVOKED, |messages, message| match words::<2>(message.data()) {
        Some(([number, generation], _)) => messages.engine.acknowledge(message.from, number as u32, generation),
        None => messages.fault(message.from, "an answer about a segment without its number"),
    });
}

impl Messages {
    /// Closes a segment of this rank: when this returns without an error, nobody reaches its memory any more. On an error
    /// somebody may: the memory stays registered, and must stay as it is.
    ///
    /// # Errors
    /// [`Error::InsideHandler`], [`Error::Forked`]; [`Error::PeerLost`] if a rank was lost, and another one that lives does
    /// not answer; [`Error::Standstill`].
    pub fn close_segment(&self, number: u32, generation: u64) -> Result<()> {
        const NAME: &str = "closing a segment";
        let engine = &self.engine;
        engine.check_outside_handler(NAME)?;
        for rank in engine.begin_close(number, generation) {
            // A rank that is gone uses nothing.
            let _ = engine.send_or_keep(rank, id::REVOKE, u64::from(number), &generation.to_ne_bytes());
        }
        let mut polls = 0;
        loop {
            match engine.wait_together(NAME, || engine.is_unused(number, generation)) {
                Ok(()) => break,
                Err(_) if engine.is_unused(number, generation) => break,
                Err(Error::PeerLost { .. }) if polls < POLLS => {
                    polls += 1;
                    match engine.pace() {
                        Some(pace) => pace.pause(PAUSE),
                        None => sleep::nap(PAUSE),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        engine.end_close(number, generation);
        Ok(())
    }
}
