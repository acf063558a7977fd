//! How a member waits for others, and its barriers.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::head::{Head, Kind};
use super::super::meeting::{Found, count};
use super::super::record::Said;
use super::{Context, GIVEN_UP, Step};
use crate::error::{Error, Result};

/// A wait checks the other members' records each time this has passed.
const LONG: Duration = Duration::from_millis(20);
/// Polls of a wait before it reads the clock.
const POLLS: u32 = 64;
/// The same with more ranks than cores, where a wait soon sleeps between polls.
const POLLS_CROWDED: u32 = 16;

/// How long a wait has lasted.
#[derive(Default)]
struct Patience {
    polls: u32,
    /// When it last read its peers' records.
    since: Option<Instant>,
}

/// What a member waits for.
const WAITING: &str = "waiting for a signal";

impl Context {
    /// Waits for `count` signals.
    #[inline]
    pub(in crate::team) async fn heard(&self, step: Step, port: usize, count: usize) -> Result<()> {
        self.heard_word(step.port(port), count).await
    }

    pub(in crate::team) async fn heard_word(&self, word: usize, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let word = self.hub.word(self.slot, word);
        let (at, expected) = (self.hub.signal(word), self.hub.expected(word, count));
        self.until(|| Ok(self.hub.memory.signals(at) >= expected)).await?;
        self.hub.saw(word, count);
        Ok(())
    }

    /// Waits until other members have made `came` true.
    pub(in crate::team) async fn until(&self, mut came: impl FnMut() -> Result<bool>) -> Result<()> {
        let mut patience = Patience::default();
        std::future::poll_fn(|context| {
            match self.hub.engine.poll_ready(WAITING, context, || Ok(came()?.then_some(()))) {
                Poll::Pending => {
                    self.check_wait(&mut patience).map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
                }
                ready => ready,
            }
        })
        .await
    }

    /// Between two polls of a wait. Fails if other members are known to be in another collective, or to have failed.
    #[inline]
    fn check_wait(&self, patience: &mut Patience) -> Result<()> {
        if let Some(rank) = if self.is_mapped() { None } else { self.told() } {
            let why = "a team's collective failed or panicked there, and its own error says how".into();
            return Err(Error::Agreed { rank, why });
        }
        self.check_members()?;
        patience.polls = patience.polls.saturating_add(1);
        let few = if self.hub.engine.waiting.patience().crowded { POLLS_CROWDED } else { POLLS };
        let may_wait = patience.polls < few && !self.hub.engine.waiting.is_shown_as_collective();
        if may_wait { Ok(()) } else { self.check_peers(&mut patience.since) }
    }

    /// A barrier: by the counter, where all are mapped, or by dissemination. Over a network the flags of the last one are in effect.
    pub(in crate::team) async fn assemble(&self, counter: bool) -> Result<()> {
        let outcome = match self.enter(counter) {
            Ok(()) => self.until(|| self.have_entered()).await,
            entered => entered,
        };
        self.assembled(outcome)
    }

    #[inline]
    fn enter(&self, counter: bool) -> Result<()> {
        let engine = &self.hub.engine;
        if counter { self.meeting.enter_counter(engine, 0, || ()) } else { self.meeting.enter(engine, 0, 0) }
    }

    /// Whether all members have entered the barrier that this one is in.
    #[inline]
    fn have_entered(&self) -> Result<bool> {
        match self.meeting.go_on(&self.hub.engine)? {
            Found::Waits => Ok(false),
            Found::Done => Ok(true),
            Found::Differs { member, kind } => {
                let why = format!("a flag of a team's barrier with kind {kind}, which no member writes");
                Err(Error::BadMessage { from: self.world(member), why })
            }
        }
    }

    /// After the wait in a barrier.
    #[inline]
    fn assembled(&self, outcome: Result<()>) -> Result<()> {
        if outcome.is_err() {
            self.meeting.give_up();
        }
        outcome?;
        if self.is_mapped() {
            return Ok(());
        }
        // Push out flags that met backpressure. They would otherwise stay here until this rank's next call.
        self.meeting.partners().try_for_each(|rank| self.hub.engine.remote_hand_over(Kind::Barrier.doing(), rank))
    }

    /// The barrier as a collective of its own, without a future. Members are mapped, and no collective of this team is in flight.
    pub(in crate::team) fn barrier_now(&self, counter: bool) -> Result<()> {
        let doing = Kind::Barrier.doing();
        self.collective_now(Head::new::<()>(Kind::Barrier, 0), "", |context| {
            let entered = context.hub.engine.quiet(doing).and_then(|()| context.enter(counter));
            let outcome = entered.and_then(|()| context.wait_now(doing, || context.have_entered()));
            context.met();
            context.assembled(outcome)
        })
    }

    /// As [`Context::collective`], without a future.
    #[inline]
    pub(in crate::team) fn collective_now(
        &self,
        head: Head,
        of: &'static str,
        body: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        self.called_at.set(self.hub.engine.calls.current().map(|call| call.place));
        self.begin(head, of)?;
        // A handler's panic may come out of the wait.
        let mut unfinished = super::Unfinished(Some(self));
        let outcome = body(self);
        unfinished.0 = None;
        self.end(&outcome);
        outcome
    }

    /// Waits until other members have made `came` true, without a future.
    #[inline]
    pub(in crate::team) fn wait_now(&self, doing: &'static str, mut came: impl FnMut() -> Result<bool>) -> Result<()> {
        let (mut patience, mut outcome) = (Patience::default(), Ok(()));
        self.hub.engine.wait_together(doing, || {
            outcome = match came() {
                Ok(true) => return true,
                Ok(false) => self.check_wait(&mut patience),
                Err(error) => Err(error),
            };
            outcome.is_err()
        })?;
        outcome
    }

    /// Adds one to this step's counter, at member 0, where all are mapped. Whether this member was the last.
    pub(in crate::team) fn count(&self, step: Step) -> bool {
        let at = self.hub.memory.in_slot(self.hub.signal(self.hub.word(self.slot, step.counter())));
        count(&self.hub.engine, self.world(0), at, self.size())
    }

    /// In a long wait, where records are mapped: fails if another member is in a different collective, or has failed.
    fn check_peers(&self, since: &mut Option<Instant>) -> Result<()> {
        let now = Instant::now();
        let begun = *since.get_or_insert(now);
        // Where no rank can go on, another may have been told so, and has failed for that reason: this wait is about to be told too.
        if !self.is_mapped() || self.hub.engine.is_deadlocked() {
            return Ok(());
        }
        // A rank that shows its wait has to find each time it wakes whatever can end that.
        if now - begun < LONG && !self.hub.engine.waiting.is_shown_as_collective() {
            return Ok(());
        }
        *since = Some(now);
        let ours = self.head.get();
        for (member, rank) in self.members.iter().map(|rank| *rank as usize).enumerate() {
            if member == self.rank {
                continue;
            }
            match self.said(rank, self.number.get()) {
                Said::Begun(head) if !head.agrees(ours) => return Err(self.differ(member, head)),
                Said::Failed(why) => return Err(self.failed_there(rank, why)),
                Said::Lost(rank, cause) => {
                    return Err(Error::PeerLost { rank, cause, doing: ours.doing().into() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The error of a collective that has failed at `rank`: the loss of a rank, if it was given up there because of that. A handler's
    /// panic takes a rank out of its collective before it ends the rank.
    #[cold]
    fn failed_there(&self, rank: usize, why: String) -> Error {
        let cause = if why.contains(GIVEN_UP) { self.hub.engine.failures.cause() } else { None };
        match cause {
            Some((rank, cause)) => Error::PeerLost { rank, cause, doing: self.head.get().doing().into() },
            None => Error::Agreed { rank, why },
        }
    }

    /// A barrier. Boxed, so that [`Context::step`] can await it.
    pub(in crate::team) fn meet(&self) -> Pin<Box<dyn Future<Output = Result<()>> + '_>> {
        Box::pin(async move {
            // Flags have no order among puts.
            self.hub.quiet(self.head().doing()).await?;
            super::super::barrier::enter(self).await?;
            self.met();
            Ok(())
        })
    }
}
