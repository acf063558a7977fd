//! The three events of an operation: its source may be reused, it is in effect at the target, the target's program has handled it.
//!
//! An operation without events costs nothing. One with events is [`Tracked`] from the moment that the network has it: each turn of
//! its stream's progress looks whether the next event has happened. Over a network that is a flush of the connection with a
//! completion of its own, so later operations do not delay it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::claim::Claim;
use super::super::far::Answer;
use super::{Atomic, Get, Issuer};
use crate::error::{Error, Result};
use crate::transport::lock::Mutex;

/// What is done when an event happens.
pub(crate) enum Event {
    /// Adds one to a counter of this process.
    Count(Arc<AtomicU64>),
    /// Rings a bell.
    Ring(Ring),
    /// Calls a function with the outcome.
    Call(Box<dyn FnOnce(Result<()>) + Send>),
    /// Ends one operation of a group.
    End(Member),
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Event::Count(_) => "Count",
            Event::Ring(_) => "Ring",
            Event::Call(_) => "Call",
            Event::End(_) => "End",
        })
    }
}

/// A ring of the bell in a block of the symmetric heap, at `rank`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    pub(crate) rank: usize,
    /// Offsets in every slot of the words that processors and that the network add to; see `Words::for_contexts`.
    pub(crate) words: [usize; 2],
    /// A bell that was dropped meanwhile is not rung: its memory may be somebody else's.
    pub(crate) claim: Claim,
}

/// Operations that end together.
#[derive(Debug, Default)]
pub(crate) struct Group {
    open: AtomicU64,
    /// The first error of one.
    error: Mutex<Option<Error>>,
}

impl Group {
    /// Whether all have ended; the first error of one, once.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        // Pairs with the Release in the drop of a member.
        if self.open.load(Ordering::Acquire) != 0 {
            return None;
        }
        Some(self.error.lock().take().map_or(Ok(()), Err))
    }
}

/// One operation of a group, until it is dropped.
#[derive(Debug)]
pub(crate) struct Member(Arc<Group>);

impl Member {
    pub(crate) fn new(group: &Arc<Group>) -> Member {
        group.open.fetch_add(1, Ordering::Relaxed);
        Member(Arc::clone(group))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Pairs with the Acquire load in `Group::outcome`.
        self.0.open.fetch_sub(1, Ordering::Release);
    }
}

impl Event {
    /// Does what is to be done. An error that nobody else hears of comes back, as does that of `ring`.
    pub(in super::super) fn happen(self, outcome: Result<()>, ring: impl FnOnce(Ring) -> Result<()>) -> Result<()> {
        match self {
            Event::Count(count) => {
                outcome?;
                // Pairs with the Acquire load of whoever looks at the counter.
                count.fetch_add(1, Ordering::Release);
            }
            Event::Ring(bell) => {
                outcome?;
                ring(bell)?;
            }
            Event::Call(call) => call(outcome),
            Event::End(member) => {
                if let Err(error) = outcome {
                    member.0.error.lock().get_or_insert(error);
                }
            }
        }
        Ok(())
    }
}

/// The events that somebody asked for, of one operation.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The source may be reused.
    pub(crate) source: Vec<Event>,
    /// It is in effect at the target.
    pub(crate) effect: Vec<Event>,
    /// The target's program has handled it.
    pub(crate) handled: Vec<Event>,
}

/// The messages whose handlers other ranks are to run, by the number that comes back when one has. Contexts' too: the rank's own
/// thread gets what comes back, and does what is to be done then.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Owed>>,
}

#[derive(Debug)]
struct Owed {
    rank: usize,
    events: Vec<Event>,
    /// Its rank was found lost once, and may have answered before.
    lost: bool,
}

/// Set in the number of a receipt, and not in that of a call.
pub(crate) const RECEIPT: u64 = 1 << 63;

impl Receipts {
    /// The number of one that `rank` owes.
    pub(crate) fn open(&self, rank: usize, events: Vec<Event>) -> u64 {
        // Only unique, so no order is needed.
        let number = self.last.fetch_add(1, Ordering::Relaxed) | RECEIPT;
        self.open.lock().insert(number, Owed { rank, events, lost: false });
        number
    }

    /// Takes the events of one that `rank` owed, if it did.
    pub(crate) fn close(&self, number: u64, rank: usize) -> Option<Vec<Event>> {
        let mut open = self.open.lock();
        open.get(&number).filter(|owed| owed.rank == rank)?;
        open.remove(&number).map(|owed| owed.events)
    }

    /// Whether any is owed.
    pub(in super::super) fn are_open(&self) -> bool {
        !self.open.lock().is_empty()
    }

    /// Takes those that never come: of ranks for which `lost` has an error two times in turn.
    pub(in super::super) fn take_lost(&self, lost: impl Fn(usize) -> Option<Error>, due: &mut Vec<Due>) {
        self.open.lock().retain(|_, owed| {
            let Some(error) = lost(owed.rank) else { return true };
            if !std::mem::replace(&mut owed.lost, true) {
                return true;
            }
            happened(std::mem::take(&mut owed.events), Err(error), due);
            false
        });
    }
}

/// An operation whose events have not all happened.
#[derive(Debug)]
pub(crate) struct Tracked {
    rank: usize,
    doing: &'static str,
    step: Step,
    /// What is done when the step has ended.
    events: Vec<Event>,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// The connection is to be flushed: `effect`, until all is in effect at the target, else until sources may be reused.
    Flush { effect: bool },
    /// It is being flushed.
    Flushing(Arc<Answer>),
    /// A message that may be in a queue of this rank; then a flush.
    Message,
    /// A get is to fill bytes of this rank's own slot.
    Get { get: Get, bytes: Vec<u8>, offset: usize, claim: Claim },
    /// An atomic is to find a word.
    Atomic { atomic: Atomic, found: Arc<Found> },
}

/// What an atomic has found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    word: AtomicU64,
    is_known: std::sync::atomic::AtomicBool,
}

impl Found {
    pub(crate) fn set(&self, word: u64) {
        self.word.store(word, Ordering::Relaxed);
        // Pairs with the Acquire load in `get`.
        self.is_known.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<u64> {
        // Pairs with the Release store in `set`.
        self.is_known.load(Ordering::Acquire).then(|| self.word.load(Ordering::Relaxed))
    }
}

/// Events that have happened, and how their operation ended.
pub(crate) type Due = (Event, Result<()>);

impl Tracked {
    pub(in super::super) fn new(rank: usize, doing: &'static str, step: Step, events: Vec<Event>) -> Tracked {
        Tracked { rank, doing, step, events }
    }

    /// Goes on as far as it can. `Some` when the step has ended.
    fn advance(&mut self, issuer: &mut impl Issuer) -> Option<Result<()>> {
        let Tracked { rank, doing, step, .. } = self;
        let (rank, doing) = (*rank, *doing);
        loop {
            match step {
                Step::Message if issuer.keeps(rank) => return None,
                Step::Message if issuer.has_lane(rank) => return Some(Ok(())),
                Step::Message => *step = Step::Flush { effect: true },
                Step::Flush { effect } => match issuer.request(doing, rank, &|far| far.flush_connection(rank, *effect))
                {
                    Ok(Some(answer)) => *step = Step::Flushing(answer),
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error)),
                },
                Step::Flushing(answer) => return ended(issuer.is_answered(doing, rank, answer)),
                Step::Get { get, bytes, offset, claim } => {
                    let outcome = ended(get.advance(issuer, doing, bytes));
                    if let Some(Ok(())) = outcome {
                        if let Err(error) = issuer.check_claim(Some(*claim), doing, rank) {
                            return Some(Err(error));
                        }
                        issuer.store(*offset, bytes);
                    }
                    return outcome;
                }
                Step::Atomic { atomic, found } => match atomic.advance(issuer, doing) {
                    Ok(None) => return None,
                    Ok(Some(word)) => {
                        found.set(word);
                        return Some(Ok(()));
                    }
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }

    /// Goes on with all of `tracked`, and moves the events of those that have ended to `due`. Tells how many ended.
    pub(in super::super) fn advance_all(
        tracked: &mut Vec<Tracked>,
        issuer: &mut impl Issuer,
        due: &mut Vec<Due>,
    ) -> usize {
        let before = tracked.len();
        tracked.retain_mut(|one| match one.advance(issuer) {
            None => true,
            Some(outcome) => {
                happened(std::mem::take(&mut one.events), outcome, due);
                false
            }
        });
        before - tracked.len()
    }
}

/// Adds events that have happened.
pub(in super::super) fn happened(events: Vec<Event>, outcome: Result<()>, due: &mut Vec<Due>) {
    let mut events = events.into_iter();
    let Some(last) = events.next_back() else { return };
    due.extend(events.map(|event| (event, outcome.as_ref().map_or_else(|error| Err(again(error)), |()| Ok(())))));
    due.push((last, outcome));
}

fn ended(outcome: Result<bool>) -> Option<Result<()>> {
    match outcome {
        Ok(true) => Some(Ok(())),
        Ok(false) => None,
        Err(error) => Some(Err(error)),
    }
}

/// The same error for another listener.
pub(crate) fn again(error: &Error) -> Error {
    match error {
        Error::PeerLost { rank, cause, doing } => Error::PeerLost { rank: *rank, cause: *cause, doing: *doing },
        Error::PhaseOver { operation, rank } => Error::PhaseOver { operation, rank: *rank },
        Error::HandlerPanicked { rank, handler, why, place } => {
            Error::HandlerPanicked { rank: *rank, handler: handler.clone(), why: why.clone(), place: place.clone() }
        }
        other => Error::InvalidArgument { operation: "an operation", why: other.to_string() },
    }
}
