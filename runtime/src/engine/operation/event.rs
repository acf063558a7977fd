//! The three events of an operation: its source may be reused; it is in effect at the target; the target's program has handled it.
//!
//! An operation without events costs nothing. One with events is [`Tracked`] once it is handed to the network: each poll of its
//! stream advances its [`Step`], and when the step ends the events happen. The step of a put is a flush of the connection with a
//! completion of its own, so later operations do not delay it.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use super::super::claim::Claim;
use super::super::remote_access::Answer;
use super::super::straight::InFlight;
use super::{Atomic, Filled, Issuer, Transfer};
use crate::error::{Error, Result};
use crate::transport::lock::Mutex;

/// An action that runs when an event happens.
pub(crate) enum Event {
    /// Adds one to a counter of this process.
    Count(Arc<AtomicU64>),
    /// Rings a bell.
    Ring(Ring),
    /// Calls a function with the outcome.
    Call(Box<dyn FnOnce(Result<()>) + Send>),
    /// Ends one operation of a group.
    End(Member),
    /// Drops the buffer that the operation owned. The drop may run the program's code.
    GiveUp(InFlight),
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Event::Count(_) => "Count",
            Event::Ring(_) => "Ring",
            Event::Call(_) => "Call",
            Event::End(_) => "End",
            Event::GiveUp(_) => "GiveUp",
        })
    }
}

/// A ring of a bell at `rank`. The bell is in a block of the symmetric heap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    pub(crate) rank: usize,
    /// Offsets in a slot of the bell's two words: processors add to the first, networks to the second. See `Words::for_contexts`.
    pub(crate) words: [usize; 2],
    /// A bell that was dropped in the meantime is not rung: its memory may have been allocated again.
    pub(crate) claim: Claim,
}

/// Operations that one `Completion` waits for.
#[derive(Debug, Default)]
pub(crate) struct Group {
    open: AtomicU64,
    /// The first error.
    error: Mutex<Option<Error>>,
    /// Waker of the task that waits until all operations have ended.
    waiting: Mutex<Option<Waker>>,
}

impl Group {
    /// Whether all operations have ended.
    pub(crate) fn has_ended(&self) -> bool {
        // Pairs with the Release in the drop of a member.
        self.open.load(Ordering::Acquire) == 0
    }

    /// `None` while an operation has not ended. After that the first error, if there is one, in the first call; `Ok` in later calls.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        if !self.has_ended() {
            return None;
        }
        Some(self.error.lock().take().map_or(Ok(()), Err))
    }

    /// Registers the waker of a task that is woken when all operations have ended. The caller then checks once more whether they have: the
    /// last one may have ended before this call.
    pub(crate) fn wake_at_end(&self, waker: &Waker) {
        let waker = waker.clone();
        let former = self.waiting.lock().replace(waker);
        // The drop of a waker may run the program's code, so it is not under the lock.
        drop(former);
    }
}

/// One operation of a group. The drop ends it. A member that is dropped without an outcome stands for an operation that was not begun, and
/// gives its group an error.
#[derive(Debug)]
pub(crate) struct Member {
    group: Arc<Group>,
    has_outcome: bool,
}

impl Member {
    pub(crate) fn new(group: &Arc<Group>) -> Member {
        group.open.fetch_add(1, Ordering::Relaxed);
        Member { group: Arc::clone(group), has_outcome: false }
    }

    /// Ends the operation with this outcome.
    pub(in super::super) fn end(mut self, outcome: Result<()>) {
        self.has_outcome = true;
        self.note(outcome);
    }

    fn note(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.group.error.lock().get_or_insert(error);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.has_outcome {
            let why = "it was not begun: its call failed, or was never made".into();
            self.note(Err(Error::InvalidArgument { operation: "an operation with events", why }));
        }
        // Pairs with the Acquire load in `Group::has_ended`.
        if self.group.open.fetch_sub(1, Ordering::Release) == 1 {
            // A task that waits has set its waker before this takes the lock, or else checks after this and finds that all have ended.
            let waiting = self.group.waiting.lock().take();
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl Event {
    /// Runs the action. Returns the operation's error if the action has no way to report it (counters and bells), and the error
    /// of `ring`.
    pub(crate) fn happen(self, outcome: Result<()>, ring: impl FnOnce(Ring) -> Result<()>) -> Result<()> {
        match self {
            Event::Count(count) => {
                outcome?;
                // Pairs with the Acquire load in `Counter::value`.
                count.fetch_add(1, Ordering::Release);
            }
            Event::Ring(bell) => {
                outcome?;
                ring(bell)?;
            }
            Event::Call(call) => call(outcome),
            Event::End(member) => member.end(outcome),
            Event::GiveUp(buffer) => drop(buffer),
        }
        Ok(())
    }
}

/// The requested events of one operation.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The source may be reused.
    pub(crate) source: Vec<Event>,
    /// It is in effect at the target.
    pub(crate) effect: Vec<Event>,
    /// The target's program has handled it.
    pub(crate) handled: Vec<Event>,
}

/// Messages of this rank whose handlers have not run at their targets yet, by the number of the receipt that the target sends back after
/// the handler. Receipts arrive at the rank's own thread, which runs the events' actions.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    last: AtomicU64,
    owed: Mutex<AllOwed>,
}

#[derive(Debug, Default)]
struct AllOwed {
    open: HashMap<u64, Owed>,
    /// The engine is gone, and takes no receipt any more.
    ended: bool,
}

#[derive(Debug)]
struct Owed {
    rank: usize,
    /// For an atomic: where its result goes.
    found: Option<Arc<Found>>,
    events: Vec<Event>,
    /// A poll has found the rank lost. The receipt may have arrived before and still be in a queue, so only the next poll gives it up.
    lost: bool,
}

/// Bit that is set in the number of a receipt and not in that of a call. Both come back as answers.
pub(crate) const RECEIPT: u64 = 1 << 63;

impl Receipts {
    /// Adds a receipt that `rank` has to send, and returns its number.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the world has ended: nobody takes receipts any more.
    pub(crate) fn open(&self, rank: usize, events: Vec<Event>) -> Result<u64> {
        self.open_with(rank, None, events)
    }

    /// As [`Receipts::open`], for an atomic whose result goes to `found`.
    ///
    /// # Errors
    /// As [`Receipts::open`].
    pub(crate) fn open_with(&self, rank: usize, found: Option<Arc<Found>>, events: Vec<Event>) -> Result<u64> {
        // Relaxed: the number only has to be unique.
        let number = self.last.fetch_add(1, Ordering::Relaxed) | RECEIPT;
        let mut owed = self.owed.lock();
        if !owed.ended {
            owed.open.insert(number, Owed { rank, found, events, lost: false });
            return Ok(number);
        }
        drop(owed);
        let why = "its world has ended, which takes the receipts of messages".into();
        let error = Error::InvalidArgument { operation: "an operation with events", why };
        refuse(events, &error);
        Err(error)
    }

    /// Removes a receipt that `rank` had to send, and returns its events. `None`: there is no such receipt.
    pub(crate) fn close(&self, number: u64, rank: usize) -> Option<Vec<Event>> {
        let mut owed = self.owed.lock();
        owed.open.get(&number).filter(|owed| owed.rank == rank)?;
        owed.open.remove(&number).map(|owed| owed.events)
    }

    /// Stores the result of an atomic, which came with its receipt. The caller closes the receipt after this.
    pub(crate) fn found(&self, number: u64, rank: usize, word: u64) {
        let owed = self.owed.lock();
        if let Some(found) =
            owed.open.get(&number).filter(|owed| owed.rank == rank).and_then(|owed| owed.found.as_ref())
        {
            found.set(word);
        }
    }

    /// Removes the receipt of a message that was not sent because of `error`. The message's futures end with that error.
    pub(crate) fn refuse(&self, number: u64, rank: usize, error: &Error) {
        let events = self.close(number, rank);
        refuse(events.unwrap_or_default(), error);
    }

    /// Whether a receipt is still to come.
    pub(in super::super) fn are_open(&self) -> bool {
        !self.owed.lock().open.is_empty()
    }

    /// Removes the receipts that will never come: those of ranks for which `is_lost` holds in two consecutive calls. Moves their events to
    /// `due`, with `error` of the rank as the outcome.
    pub(in super::super) fn take_lost(
        &self,
        is_lost: impl Fn(usize) -> bool,
        error: impl Fn(usize) -> Error,
        due: &mut VecDeque<Due>,
    ) {
        let never_comes = |owed: &mut Owed| is_lost(owed.rank) && std::mem::replace(&mut owed.lost, true);
        let lost: Vec<Owed> =
            self.owed.lock().open.extract_if(|_, owed| never_comes(owed)).map(|(_, owed)| owed).collect();
        // Not under the lock: `error` may use the receipts.
        lost.into_iter().for_each(|Owed { rank, events, .. }| happened(events, Err(error(rank)), due));
    }

    /// Gives up all open receipts, as [`give_up`] does with their events. No receipt can be opened after this.
    #[must_use]
    pub(in super::super) fn give_up(&self) -> Vec<Event> {
        let open = {
            let mut owed = self.owed.lock();
            owed.ended = true;
            std::mem::take(&mut owed.open)
        };
        give_up(open.into_values().flat_map(|owed| owed.events))
    }
}

/// An operation whose events have not all happened.
#[derive(Debug)]
pub(crate) struct Tracked {
    rank: usize,
    doing: &'static str,
    step: Step,
    /// They happen when the step has ended.
    events: Vec<Event>,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// A flush of the connection that is not posted yet. It ends when all earlier operations are in effect at the target if `effect`, else
    /// when their sources may be reused.
    Flush { effect: bool },
    /// A flush that is posted.
    Flushing(Arc<Answer>),
    /// A message that may wait in a queue of this rank. Once it has left the queue, it is in the target's memory if it went through a lane;
    /// over a network a flush follows.
    Message,
    /// A put out of a buffer that the operation owns. The buffer is given up when the step has ended.
    Buffer(InFlight),
    /// A get into this rank's own slot, or into a segment of its own.
    Transfer(Transfer),
    /// An atomic whose result goes to `found`.
    Atomic { atomic: Atomic, found: Arc<Found> },
}

/// The result of an atomic: the former value of its word, once it is here.
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
    /// Whether it is an operation on `rank`.
    pub(crate) fn is_of(&self, rank: usize) -> bool {
        self.rank == rank
    }

    pub(in super::super) fn new(rank: usize, doing: &'static str, step: Step, events: Vec<Event>) -> Tracked {
        Tracked { rank, doing, step, events }
    }

    /// Called when the step has ended. Moves the buffer that the operation owned, then the events, to `due`.
    pub(in super::super) fn end(&mut self, outcome: Result<()>, due: &mut VecDeque<Due>) {
        due.extend(self.take_buffer().map(|buffer| (buffer, Ok(()))));
        happened(std::mem::take(&mut self.events), outcome, due);
    }

    fn take_buffer(&mut self) -> Option<Event> {
        match std::mem::replace(&mut self.step, Step::Message) {
            Step::Buffer(buffer) => Some(Event::GiveUp(buffer)),
            _ => None,
        }
    }

    /// The events, which will not happen, and the buffer that the operation owned.
    pub(in super::super) fn give_up(mut self) -> impl Iterator<Item = Event> {
        let buffer = self.take_buffer();
        self.events.into_iter().chain(buffer)
    }

    /// Whether this is a get or an atomic that is not all posted yet, for lack of room.
    pub(in super::super) fn is_unposted(&self) -> bool {
        match &self.step {
            Step::Transfer(transfer) => transfer.is_unposted(),
            Step::Atomic { atomic, .. } => atomic.is_unposted(),
            _ => false,
        }
    }

    /// Whether this operation reads or fills any of the `len` bytes of this rank's memory at `start`.
    pub(in super::super) fn touches(&self, start: *const u8, len: usize) -> bool {
        match &self.step {
            Step::Buffer(flight) => flight.touches(start, len),
            Step::Transfer(transfer) => transfer.touches(start, len),
            _ => false,
        }
    }

    /// Whether this is a get that fills `segment`, a segment of this rank.
    pub(in super::super) fn fills(&self, segment: Filled) -> bool {
        matches!(&self.step, Step::Transfer(transfer) if transfer.fills(segment))
    }

    /// Advances as far as possible without waiting. `Some` when the step has ended.
    pub(in super::super) fn advance(&mut self, issuer: &mut impl Issuer) -> Option<Result<()>> {
        let Tracked { rank, doing, step, .. } = self;
        let (rank, doing) = (*rank, *doing);
        loop {
            match step {
                Step::Message if issuer.keeps(rank) => return None,
                Step::Message if issuer.has_lane(rank) => return Some(Ok(())),
                Step::Message => *step = Step::Flush { effect: true },
                Step::Flush { effect } => match issuer.request(doing, rank, &|to| to.flush_connection(rank, *effect)) {
                    Ok(Some(answer)) => *step = Step::Flushing(answer),
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error)),
                },
                Step::Flushing(answer) => return ended(issuer.is_answered(doing, rank, answer)),
                Step::Buffer(flight) if flight.is_over() => {
                    let failed = flight.answers().find_map(|answer| issuer.is_answered(doing, rank, answer).err());
                    return Some(failed.map_or(Ok(()), Err));
                }
                Step::Buffer(_) => return None,
                Step::Transfer(transfer) => return ended(transfer.advance(issuer, doing)),
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

    /// Advances all of `tracked`, and moves the events of those that have ended to `due`. Returns how many ended.
    pub(in super::super) fn advance_all(
        tracked: &mut Vec<Tracked>,
        issuer: &mut impl Issuer,
        due: &mut VecDeque<Due>,
    ) -> usize {
        let before = tracked.len();
        tracked.retain_mut(|one| match one.advance(issuer) {
            None => true,
            Some(outcome) => {
                one.end(outcome, due);
                false
            }
        });
        before - tracked.len()
    }
}

/// Adds events that have happened to `due`, each with the outcome.
pub(in super::super) fn happened(events: Vec<Event>, outcome: Result<()>, due: &mut VecDeque<Due>) {
    let mut events = events.into_iter();
    let Some(last) = events.next_back() else { return };
    due.extend(events.map(|event| (event, outcome.as_ref().map_or_else(|error| Err(again(error)), |()| Ok(())))));
    due.push_back((last, outcome));
}

/// Ends futures with an error, since their operations have not ended. Returns the other events. The caller passes them to [`drop_all`]
/// after all futures have been ended: a future that was not would take its operation for done.
#[must_use]
pub(in super::super) fn give_up(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut others = Vec::new();
    for event in events {
        match event {
            Event::End(member) => {
                let why = "its world or its context ended before it did".into();
                member.end(Err(Error::InvalidArgument { operation: "an operation with events", why }));
            }
            other => others.push(other),
        }
    }
    others
}

/// Ends the futures of an operation whose call failed with `error` before it was begun. Its other events do not happen.
pub(crate) fn refuse(events: Vec<Event>, error: &Error) {
    let (futures, others): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| matches!(event, Event::End(_)));
    for future in futures {
        if let Event::End(member) = future {
            member.end(Err(again(error)));
        }
    }
    drop_all(others);
}

/// Drops events that will not happen. Functions are not called. The drop of a function or a buffer runs the program's code: if one panics,
/// the others are still dropped, and then the first panic is resumed.
pub(in super::super) fn drop_all(events: Vec<Event>) {
    let mut first = None;
    for event in events {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(event))) {
            first.get_or_insert(panic);
        }
    }
    if let Some(panic) = first
        && !std::thread::panicking()
    {
        resume_unwind(panic)
    }
}

fn ended(outcome: Result<bool>) -> Option<Result<()>> {
    match outcome {
        Ok(true) => Some(Ok(())),
        Ok(false) => None,
        Err(error) => Some(Err(error)),
    }
}

/// A copy of an error for a further event. Kinds that are not listed here become [`Error::InvalidArgument`] with the same text.
pub(crate) fn again(error: &Error) -> Error {
    match error {
        Error::PeerLost { rank, cause, doing } => Error::PeerLost { rank: *rank, cause: *cause, doing: *doing },
        Error::PhaseOver { operation, rank, place } => Error::PhaseOver { operation, rank: *rank, place: *place },
        Error::BadMessage { from, why } => Error::BadMessage { from: *from, why: why.clone() },
        Error::HandlerPanicked { rank, handler, why, place } => {
            Error::HandlerPanicked { rank: *rank, handler: handler.clone(), why: why.clone(), place: place.clone() }
        }
        other => Error::InvalidArgument { operation: "an operation", why: other.to_string() },
    }
}
