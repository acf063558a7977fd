//! Atomics whose result is fetched while the caller does something else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::Engine;
use super::super::claim::Claim;
use super::super::remote_access::Answer;
use super::{Change, Issuer, Operation};
use crate::error::Result;

/// An atomic on a word of another rank's slot.
#[derive(Debug)]
pub(crate) struct Atomic {
    /// `None`: memory that stays as it is until the atomic has ended.
    claim: Option<Claim>,
    rank: usize,
    offset: usize,
    change: Change,
    answer: Option<Arc<Answer>>,
}

impl Atomic {
    /// At `offset` of the slot of `rank`. Nothing is posted yet.
    pub(crate) fn new(claim: Claim, rank: usize, offset: usize, change: Change) -> Atomic {
        Atomic { claim: Some(claim), rank, offset, change, answer: None }
    }

    /// At `offset` of memory that stays as it is until the atomic has ended, or of a segment, which may be closed before it is posted:
    /// that is an error then. Nothing is posted yet.
    pub(crate) fn unclaimed(rank: usize, offset: usize, change: Change) -> Atomic {
        Atomic { claim: None, rank, offset, change, answer: None }
    }

    /// An atomic that was posted; its answer is in flight.
    pub(crate) fn posted(rank: usize, offset: usize, change: Change, answer: Arc<Answer>) -> Atomic {
        Atomic { claim: None, rank, offset, change, answer: Some(answer) }
    }

    /// Posts it, if there is room, and gives the word's former value when it has come.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`]; [`crate::Error::PhaseOver`] if it was not posted yet.
    pub(crate) fn advance(&mut self, issuer: &mut impl Issuer, doing: &'static str) -> Result<Option<u64>> {
        if self.answer.is_none() {
            issuer.check_claim(self.claim, doing, self.rank)?;
            let Atomic { rank, offset, change, .. } = *self;
            self.answer = issuer.request(doing, rank, &|network| network.atomic(rank, offset, change))?;
        }
        match &self.answer {
            Some(answer) if issuer.is_answered(doing, self.rank, answer)? => {
                Ok(Some(answer.word.load(Ordering::Relaxed)))
            }
            _ => Ok(None),
        }
    }

    /// Whether it waits for room.
    pub(super) fn is_unposted(&self) -> bool {
        self.answer.is_none()
    }

    /// Called when the caller no longer waits for the result. The atomic is still done, as soon as there is room, if its phase lasts.
    pub(crate) fn let_go(&self, engine: &Engine) {
        // A forked child has a copy of this value, but its parent asks.
        if self.answer.is_none()
            && engine.is_own()
            && self.claim.is_none_or(|claim| claim.check(&engine.blocks, "", self.rank).is_ok())
        {
            engine.do_unasked(self.rank, Operation::<&[u8]>::Change { offset: self.offset, change: self.change });
        }
    }
}
