//! Gets: in as many requests as the network needs, while the caller does something else.
//!
//! A request may be posted long after the get was begun: in the next window of a long get, or when the network has room. A
//! [`Claim`] is checked before each, so that no request reads memory whose phase or allocation has ended. The call that ends a phase or an
//! allocation waits for the requests that were posted before ([`Engine::quiet`]).

use std::sync::Arc;

use super::super::Engine;
use super::super::claim::Claim;
use super::super::remote_access::Answer;
use super::Issuer;
use crate::error::Result;
use crate::memory::copy;

/// Requests of one get that are under way at a time, at most; the rest of a long one is asked for as these are answered.
const WINDOW: usize = 128;
/// So many of the longest requests, at most, or shorter ones of as many bytes.
const LONGEST: usize = 16;

/// Bytes that lie together in the slot of a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeapRange {
    pub(crate) rank: usize,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// A get of bytes of other ranks' slots, in as many requests as the network needs.
#[derive(Debug)]
pub(crate) struct Get {
    /// `None`: memory that stays as it is until the get has ended.
    claim: Option<Claim>,
    /// Requests that are not answered. The first ones are in flight.
    requests: Vec<RangeRead>,
}

#[derive(Debug)]
struct RangeRead {
    range: HeapRange,
    /// Where in the result its bytes go.
    start: usize,
    /// None, where there was no room to ask yet.
    answer: Option<Arc<Answer>>,
}

impl Get {
    /// A get of the bytes of these ranges, one after the other, in requests of at most `largest` bytes. Nothing is posted yet.
    pub(crate) fn new(largest: usize, claim: Option<Claim>, ranges: impl IntoIterator<Item = HeapRange>) -> Get {
        let (mut requests, mut start): (Vec<RangeRead>, _) = (Vec::new(), 0);
        for HeapRange { rank, mut offset, len } in ranges {
            let end = start + len;
            while start < end {
                let len = largest.min(end - start);
                requests.push(RangeRead { range: HeapRange { rank, offset, len }, start, answer: None });
                (offset, start) = (offset + len, start + len);
            }
        }
        Get { claim, requests }
    }

    /// Posts requests as far as there is room, and writes the bytes that have arrived to `into`. Returns whether the get is complete.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::PhaseOver`] if there is more to ask for.
    pub(crate) fn advance(&mut self, issuer: &mut impl Issuer, doing: &'static str, into: &mut [u8]) -> Result<bool> {
        let most = LONGEST * issuer.largest_get();
        // Requests and bytes that are under way, and the last rank that has no room.
        let (mut at, mut bytes, mut full) = (0, 0, None);
        while at < self.requests.len().min(WINDOW) && bytes < most {
            let request = &mut self.requests[at];
            match request.came(issuer, doing, self.claim, into, &mut full)? {
                0 => {
                    bytes += request.range.len;
                    at += 1;
                }
                // One of those that wait takes its place.
                came if came == request.range.len => drop(self.requests.swap_remove(at)),
                came => {
                    // A registration ended there.
                    let RangeRead { range, start, answer } = request;
                    (range.offset, *start, range.len) = (range.offset + came, *start + came, range.len - came);
                    *answer = None;
                }
            }
        }
        Ok(self.requests.is_empty())
    }
}

impl RangeRead {
    /// Posts the request if it is not posted and there is room. Writes the bytes that came, and returns their number.
    fn came(
        &mut self,
        issuer: &mut impl Issuer,
        doing: &'static str,
        claim: Option<Claim>,
        into: &mut [u8],
        full: &mut Option<usize>,
    ) -> Result<usize> {
        let RangeRead { range: HeapRange { rank, offset, len }, start, answer } = self;
        let into = &mut into[*start..*start + *len];
        if answer.is_none() {
            issuer.check_claim(claim, doing, *rank)?;
        }
        if let Some(slot) = issuer.mapped(*rank) {
            // SAFETY: a mapped slot, in bounds as checked when this was made; `check_claim` found its phase not ended.
            unsafe { copy::get(into.as_mut_ptr(), slot.add(*offset), *len) };
            return Ok(*len);
        }
        if answer.is_none() && *full != Some(*rank) {
            *answer = issuer.request(doing, *rank, &|network| network.get(*rank, *offset, *len))?;
            if answer.is_none() {
                *full = Some(*rank);
            }
        }
        match answer {
            Some(answer) if issuer.is_answered(doing, *rank, answer)? => {
                let came = answer.bytes().expect("data comes before its completion");
                into[..came.len()].copy_from_slice(came);
                Ok(came.len())
            }
            _ => Ok(0),
        }
    }
}

impl Engine {
    /// Reads what lies at these ranges, one after the other, into `into`, which is as long. Waits for the network.
    ///
    /// # Errors
    /// As [`Engine::remote_get`].
    pub(crate) fn remote_gather(
        &self,
        doing: &'static str,
        ranges: impl IntoIterator<Item = HeapRange>,
        into: &mut [u8],
    ) -> Result<()> {
        self.check_outside_handler(doing)?;
        let mut get = Get::new(self.networks.largest_get(), None, ranges);
        let mut outcome = Ok(false);
        self.wait_together(doing, || {
            outcome = get.advance(&mut &*self, doing, into);
            !matches!(outcome, Ok(false))
        })?;
        outcome.map(drop)
    }
}
