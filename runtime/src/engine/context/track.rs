//! Operations of a context that are waited for by nobody but their events.

use std::sync::Arc;

use super::super::operation::{Event, Events, Ring, Step, Tracked};
use super::operations::Driving;
use super::{Driven, Shared, Stream};
use crate::error::{Error, Result};

impl Stream {
    /// What tells the rank and world from all others.
    pub(crate) fn identity(&self) -> *const Shared {
        Arc::as_ptr(&self.home.shared)
    }

    /// Does at `events` what is to be done, once `step` has ended at `rank`, which is reached over the network.
    pub(crate) fn track(&self, rank: usize, doing: &'static str, step: Step, events: Vec<Event>) {
        self.driven().tracking.operations.push(Tracked::new(rank, doing, step, events));
    }

    /// The events of a put to `rank` that this context has begun, whose source was copied.
    pub(crate) fn track_put(&self, rank: usize, doing: &'static str, events: Events) {
        let Events { source, mut effect, handled } = events;
        self.happened(source);
        effect.extend(handled);
        if self.is_mapped(rank) {
            self.happened(effect);
        } else if !effect.is_empty() {
            self.track(rank, doing, Step::Flush { effect: true }, effect);
        }
    }

    /// Does what is to be done at events that have happened.
    pub(crate) fn happened(&self, events: Vec<Event>) {
        events.into_iter().for_each(|event| self.happen(event, Ok(())));
    }

    fn happen(&self, event: Event, outcome: Result<()>) {
        let ring = |Ring { rank, words: [mapped, remote], .. }| self.ring("ringing a bell", rank, mapped, remote);
        if let Err(error) = event.happen(outcome, ring)
            && self.network.is_some()
        {
            self.driven().faults.push_back(error);
        }
    }

    /// Does what is due, without the lock: it may use the context.
    pub(super) fn happen_due(&self) {
        let due = std::mem::take(&mut self.driven().tracking.due);
        due.into_iter().for_each(|(event, outcome)| self.happen(event, outcome));
    }

    /// Makes progress until `ready` holds, which events of this context make it do.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died; [`Error::InsideHandler`]; as [`Stream::check_own`].
    pub(crate) fn wait_events(&self, doing: &'static str, mut ready: impl FnMut() -> bool) -> Result<()> {
        self.check_own(doing)?;
        if ready() {
            return Ok(());
        }
        if self.network.is_some() {
            return self.wait_for(doing, ready);
        }
        let home = self.home.engine();
        if let Some(engine) = &home {
            engine.check_outside_handler(doing)?;
        }
        while !ready() {
            if let Some((rank, cause)) = self.job.first_lost() {
                return Err(Error::PeerLost { rank, cause, doing: doing.into() });
            }
            if home.as_ref().is_none_or(|engine| engine.turn() == 0) {
                rustix::thread::sched_yield();
            }
        }
        Ok(())
    }
}

impl Driven {
    /// Goes on with what is tracked. What has happened then is due.
    pub(super) fn advance_tracked(&mut self, stream: &Stream) -> usize {
        if self.tracking.operations.is_empty() {
            return 0;
        }
        let (mut operations, mut due) = (std::mem::take(&mut self.tracking.operations), Vec::new());
        let done = Tracked::advance_all(&mut operations, &mut Driving { stream, driven: self }, &mut due);
        self.tracking.operations.append(&mut operations);
        self.tracking.due.append(&mut due);
        done
    }
}
