//! Closing segments: the owner asks the ranks that may hold an entry to forget it, and they answer. `engine/segments.rs` has
//! the protocol and its race.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::{Messages, id, words};
use crate::engine::{Background, Forgotten};
use crate::error::{Error, Loss, Result};

/// How often an owner looks, after a rank was lost, for the answers of those that live: they may be about to end, too.
const LOOKS: usize = 10_000;
/// Between two looks; where time is virtual, that of an idle poll.
const PAUSE: Duration = Duration::from_millis(1);

/// Answers that this rank owes: each when nothing of its own is under way to that segment any more.
struct Debts {
    messages: Weak<Messages>,
    list: RefCell<Vec<Debt>>,
}

struct Debt {
    owner: usize,
    number: u32,
    generation: u64,
    state: Forgotten,
}

impl Background for Debts {
    fn is_owed(&self) -> bool {
        true
    }

    fn advance(&self) -> bool {
        let Some(messages) = self.messages.upgrade() else { return false };
        // Out of its place: an answer that finds no room may deliver messages.
        let mut list = self.list.take();
        list.retain_mut(|debt| {
            if matches!(debt.state, Forgotten::Again) {
                debt.state = messages.engine.forget_segment(debt.owner, debt.number, debt.generation);
            }
            let is_over = debt.state.is_over();
            if is_over {
                answer(&messages, debt);
            }
            !is_over
        });
        let mut added = self.list.borrow_mut();
        added.append(&mut list);
        !added.is_empty()
    }
}

fn answer(messages: &Messages, debt: &Debt) {
    let (header, payload) = (u64::from(debt.number), debt.generation.to_ne_bytes());
    // Also to an owner that has left its world and still closes.
    if messages.engine.job.loss(debt.owner).is_none_or(|loss| loss == Loss::Left) {
        messages.engine.send_unasked(debt.owner, id::REVOKED, header, &payload);
    }
}

/// Asking: the header is the segment's number, the payload its generation; so is the answer.
pub(super) fn install(messages: &Rc<Messages>) {
    let debts = Rc::new(Debts { messages: Rc::downgrade(messages), list: RefCell::default() });
    messages.set_handler(id::REVOKE, move |messages, message| {
        let Some(([number, generation], _)) = words::<2>(message.data()) else {
            return messages.fault(message.from, "a segment that is closed without its number");
        };
        let (owner, number) = (message.from, number as u32);
        let state = messages.engine.forget_segment(owner, number, generation);
        let debt = Debt { owner, number, generation, state };
        if debt.state.is_over() {
            return answer(messages, &debt);
        }
        let mut list = debts.list.borrow_mut();
        if list.is_empty() {
            let task: Rc<dyn Background> = Rc::<Debts>::clone(&debts);
            messages.engine.add_background(Rc::downgrade(&task));
        }
        list.push(debt);
    });
    messages.set_handler(id::REVOKED, move |messages, message| match words::<2>(message.data()) {
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
        let mut looks = 0;
        loop {
            match engine.wait_together(NAME, || engine.is_unused(number, generation)) {
                Ok(()) => break,
                Err(_) if engine.is_unused(number, generation) => break,
                Err(Error::PeerLost { .. }) if looks < LOOKS => {
                    looks += 1;
                    match engine.pace() {
                        Some(pace) => pace.pause(PAUSE),
                        None => std::thread::sleep(PAUSE),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        engine.end_close(number, generation);
        Ok(())
    }
}
