//! Gets and atomics over a network that are under way while their asker does something else.
//!
//! What a future asks for may be posted long after the future was made: in the next window of a long get, in the next step of
//! an update, or when the network has room. A [`Claim`] is checked before each of these, so that nothing reaches memory whose
//! phase or allocation has ended. What was posted before is waited for by whoever ends them ([`Engine::quiet`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::far::{Answer, Asked};
use super::pending::Work;
use crate::error::{Error, Result};
use crate::memory::copy;

/// Requests of one get that are under way at a time, at most; the rest of a long one is asked for as these are answered.
const WINDOW: usize = 128;
/// So many of the longest requests, at most, or shorter ones of as many bytes.
const LONGEST: usize = 16;

/// A block of the symmetric heap, in the phase that it was in when a future was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    block: usize,
    changes: u64,
}

/// Bytes that lie together in the slot of a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// A get of bytes of other ranks' slots, in as many requests as the network needs.
#[derive(Debug)]
pub(crate) struct FarGet {
    /// `None`: memory that stays as it is until the get has ended.
    claim: Option<Claim>,
    /// What has not come. The first ones are under way.
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    place: Place,
    /// Where in the result its bytes go.
    start: usize,
    /// None, where there was no room to ask yet.
    answer: Option<Arc<Answer>>,
}

impl FarGet {
    /// Of what lies at these places, one after the other. Nothing is asked for yet.
    pub(crate) fn new(engine: &Engine, claim: Option<Claim>, places: impl IntoIterator<Item = Place>) -> FarGet {
        let step = engine.far().expect("only made for a network").largest_get();
        let (mut requests, mut start): (Vec<Request>, _) = (Vec::new(), 0);
        for Place { rank, mut offset, len } in places {
            let end = start + len;
            while start < end {
                let len = step.min(end - start);
                requests.push(Request { place: Place { rank, offset, len }, start, answer: None });
                (offset, start) = (offset + len, start + len);
            }
        }
        FarGet { claim, requests }
    }

    /// Asks for what there is room for, writes what has come to `into`, and tells whether that is all.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::PhaseOver`] if there is more to ask for.
    pub(crate) fn advance(&mut self, engine: &Engine, doing: &'static str, into: &mut [u8]) -> Result<bool> {
        let most = LONGEST * engine.far().expect("only made for a network").largest_get();
        // Requests and bytes that are under way, and the last rank that has no room.
        let (mut at, mut bytes, mut full) = (0, 0, None);
        while at < self.requests.len().min(WINDOW) && bytes < most {
            let request = &mut self.requests[at];
            match request.came(engine, doing, self.claim, into, &mut full)? {
                0 => {
                    bytes += request.place.len;
                    at += 1;
                }
                // One of those that wait takes its place.
                came if came == request.place.len => drop(self.requests.swap_remove(at)),
                came => {
                    // A registration ended there.
                    let Request { place, start, answer } = request;
                    (place.offset, *start, place.len) = (place.offset + came, *start + came, place.len - came);
                    *answer = None;
                }
            }
        }
        Ok(self.requests.is_empty())
    }
}

impl Request {
    /// Asks, if that is still to do and there is room, writes what came, and tells how much.
    fn came(
        &mut self,
        engine: &Engine,
        doing: &'static str,
        claim: Option<Claim>,
        into: &mut [u8],
        full: &mut Option<usize>,
    ) -> Result<usize> {
        let Request { place: Place { rank, offset, len }, start, answer } = self;
        let into = &mut into[*start..*start + *len];
        if answer.is_none() {
            engine.check_claim(claim, doing, *rank)?;
        }
        if engine.is_near(*rank) {
            // SAFETY: a mapped slot, in bounds as checked when this was made; `check_claim` found its phase not ended.
            unsafe { copy::get(into.as_mut_ptr(), engine.node.slot(*rank).add(*offset), *len) };
            return Ok(*len);
        }
        if answer.is_none() && *full != Some(*rank) {
            let far = engine.far().expect("only made for a network");
            *answer = engine.try_ask(doing, *rank, || far.get(*rank, *offset, *len))?;
            if answer.is_none() {
                *full = Some(*rank);
            }
        }
        match answer {
            Some(answer) if engine.answered(doing, *rank, answer)? => {
                let came = answer.bytes().expect("data comes before its completion");
                into[..came.len()].copy_from_slice(came);
                Ok(came.len())
            }
            _ => Ok(0),
        }
    }
}

/// An atomic on a word of another rank's slot.
#[derive(Debug)]
pub(crate) struct FarAtomic {
    claim: Claim,
    rank: usize,
    offset: usize,
    asked: Asked,
    answer: Option<Arc<Answer>>,
}

impl FarAtomic {
    /// At `offset` of the slot of `rank`. Nothing is asked yet.
    pub(crate) fn new(claim: Claim, rank: usize, offset: usize, asked: Asked) -> FarAtomic {
        FarAtomic { claim, rank, offset, asked, answer: None }
    }

    /// Asks, if there is room, and gives the word's former value when it has come.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::PhaseOver`] if it was not asked for yet.
    pub(crate) fn advance(&mut self, engine: &Engine, doing: &'static str) -> Result<Option<u64>> {
        let far = engine.far().expect("only made for a network");
        if self.answer.is_none() {
            engine.check_claim(Some(self.claim), doing, self.rank)?;
            self.answer = engine.try_ask(doing, self.rank, || far.atomic(self.rank, self.offset, self.asked))?;
        }
        match &self.answer {
            Some(answer) if engine.answered(doing, self.rank, answer)? => Ok(Some(answer.word.load(Ordering::Relaxed))),
            _ => Ok(None),
        }
    }

    /// Nobody waits for it any more: it happens nevertheless, as soon as there is room, if its phase lasts.
    pub(crate) fn let_go(&self, engine: &Engine) {
        // A forked child has a copy of this value, but its parent asks.
        if self.answer.is_none() && engine.is_own() && engine.check_claim(Some(self.claim), "", self.rank).is_ok() {
            engine.do_unasked(self.rank, Work::Atomic { offset: self.offset, asked: self.asked });
        }
    }
}

impl Engine {
    /// The block of this number, in its present phase.
    pub(crate) fn claim(&self, block: usize) -> Claim {
        Claim { block, changes: self.blocks.changes(block) }
    }

    /// # Errors
    /// [`Error::PhaseOver`] if the block is in another phase than when it was claimed, or is another one.
    pub(super) fn check_claim(&self, claim: Option<Claim>, doing: &'static str, rank: usize) -> Result<()> {
        match claim {
            Some(Claim { block, changes }) if self.blocks.changes(block) != changes => {
                Err(Error::PhaseOver { operation: doing, rank })
            }
            _ => Ok(()),
        }
    }

    /// Queues the release of a block for the next [`Engine::hand_back`]: a drop neither blocks nor fails, and a ring over a network
    /// may do both. `offset` is the word in rank 0's slot that counts the ranks that dropped the block.
    pub(crate) fn release(&self, offset: usize) {
        self.releases.borrow_mut().push(offset);
    }

    /// Tells rank 0 which blocks were dropped here. Operations on them may be in flight: the exchange that follows waits for these
    /// and for the rings, before rank 0 counts.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn hand_back(&self) -> Result<()> {
        self.quiet_contexts("allocation")?;
        let releases = self.releases.take();
        releases.into_iter().try_for_each(|offset| self.far_ring(0, offset))
    }

    /// Reads what lies at these places, one after the other, into `into`, which is as long. Waits for the network.
    ///
    /// # Errors
    /// As [`Engine::far_get`].
    pub(crate) fn far_gather(
        &self,
        doing: &'static str,
        places: impl IntoIterator<Item = Place>,
        into: &mut [u8],
    ) -> Result<()> {
        self.check_outside_handler(doing)?;
        let mut get = FarGet::new(self, None, places);
        let mut outcome = Ok(false);
        self.wait_together(doing, || {
            outcome = get.advance(self, doing, into);
            !matches!(outcome, Ok(false))
        })?;
        outcome.map(drop)
    }
}
