//! Gets and atomics over a network that are under way while their asker does something else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::far::{Answer, Asked};
use crate::error::Result;
use crate::memory::copy;

/// Requests of one get that are under way at a time, at most; the rest of a long one is asked for as these are answered.
const WINDOW: usize = 128;
/// So many of the longest requests, at most, or shorter ones of as many bytes.
const LONGEST: usize = 16;

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
    pub(crate) fn new(engine: &Engine, places: impl IntoIterator<Item = Place>) -> FarGet {
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
        FarGet { requests }
    }

    /// Asks for what there is room for, writes what has come to `into`, and tells whether that is all.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub(crate) fn advance(&mut self, engine: &Engine, doing: &'static str, into: &mut [u8]) -> Result<bool> {
        let most = LONGEST * engine.far().expect("only made for a network").largest_get();
        // Requests and bytes that are under way, and the last rank that has no room.
        let (mut at, mut bytes, mut full) = (0, 0, None);
        while at < self.requests.len().min(WINDOW) && bytes < most {
            let request = &mut self.requests[at];
            match request.came(engine, doing, into, &mut full)? {
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
        into: &mut [u8],
        full: &mut Option<usize>,
    ) -> Result<usize> {
        let Request { place: Place { rank, offset, len }, start, answer } = self;
        let into = &mut into[*start..*start + *len];
        if engine.is_near(*rank) {
            // SAFETY: a mapped slot, in bounds by the word of who made this.
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
    rank: usize,
    offset: usize,
    asked: Asked,
    answer: Option<Arc<Answer>>,
}

impl FarAtomic {
    /// At `offset` of the slot of `rank`. Nothing is asked yet.
    pub(crate) fn new(rank: usize, offset: usize, asked: Asked) -> FarAtomic {
        FarAtomic { rank, offset, asked, answer: None }
    }

    /// Asks, if there is room, and gives the word's former value when it has come.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub(crate) fn advance(&mut self, engine: &Engine, doing: &'static str) -> Result<Option<u64>> {
        let far = engine.far().expect("only made for a network");
        if self.answer.is_none() {
            self.answer = engine.try_ask(doing, self.rank, || far.atomic(self.rank, self.offset, self.asked))?;
        }
        match &self.answer {
            Some(answer) if engine.answered(doing, self.rank, answer)? => Ok(Some(answer.word.load(Ordering::Relaxed))),
            _ => Ok(None),
        }
    }
}

impl Engine {
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
        let mut get = FarGet::new(self, places);
        let mut outcome = Ok(false);
        self.wait_together(doing, || {
            outcome = get.advance(self, doing, into);
            !matches!(outcome, Ok(false))
        })?;
        outcome.map(drop)
    }
}
