//! Transfers between a peer and memory of this rank that stays where it is until they have ended: no buffer lies in between.
//!
//! Long memory is registered for the time of the transfer, and the network's device reads or writes it. Into shorter memory the network
//! copies the bytes that have come, once.
//!
//! A transfer is over when all its requests have ended, also those of a transfer that failed: until then the network may touch the
//! memory.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::super::claim::Claim;
use super::super::remote_access::{Answer, Lent};
use super::super::straight::{LONGEST, Local, overlap};
use super::{HeapRange, Issuer};
use crate::error::{Error, Result};
use crate::transport::Region;

/// Requests of one transfer that are in flight at a time, at most. Chosen: enough that a stream does not pause.
const WINDOW: usize = 16;

/// A segment of this rank that is filled; its close waits for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) number: u32,
    pub(crate) generation: u64,
}

/// A put from, or a get into, memory of this rank.
pub(crate) struct Transfer {
    remote: HeapRange,
    local: Local,
    /// The claims on the remote and on the local memory. They are checked before each request.
    claims: [Option<Claim>; 2],
    /// The local memory. `None`: it is short, and this is a get.
    region: Option<ManuallyDrop<Region>>,
    filled: Option<Filled>,
    /// Bytes of which requests are posted.
    posted: usize,
    in_flight: Vec<InTransit>,
    error: Option<Error>,
}

enum InTransit {
    /// Of registered memory.
    Straight(Arc<Answer>),
    Copied(Lent),
}

impl InTransit {
    fn answer(&self) -> &Arc<Answer> {
        match self {
            InTransit::Straight(answer) => answer,
            InTransit::Copied(lent) => &lent.0,
        }
    }
}

// SAFETY: the memory is not bound to a thread; the thread that advances the transfer has exclusive access.
unsafe impl Send for Transfer {}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transfer({} of {} bytes posted)", self.posted, self.remote.len)
    }
}

impl Transfer {
    /// A transfer between `remote` and `local`, which is `region` if that is registered. Nothing is posted yet.
    ///
    /// # Safety
    /// The local memory has as many bytes, is valid, also for writing if it is filled, and only this and copies of the runtime touch
    /// it, until all requests have ended. Without a region it is filled.
    pub(crate) unsafe fn new(
        remote: HeapRange,
        local: Local,
        claims: [Option<Claim>; 2],
        region: Option<Region>,
        filled: Option<Filled>,
    ) -> Transfer {
        let region = region.map(ManuallyDrop::new);
        Transfer { remote, local, claims, region, filled, posted: 0, in_flight: Vec::new(), error: None }
    }

    /// The rank that has the remote memory.
    pub(crate) fn peer(&self) -> usize {
        self.remote.rank
    }

    /// Whether the network no longer touches the memory, unless more is posted. Lent buffers can be taken back at any time.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.iter().all(|request| match request {
            InTransit::Straight(answer) => Answer::is_idle(answer),
            InTransit::Copied(_) => true,
        })
    }

    /// Whether a part of the transfer waits for room.
    pub(super) fn is_unposted(&self) -> bool {
        self.posted < self.remote.len && self.error.is_none()
    }

    /// Whether its local memory is among `len` bytes from `start` on, in part.
    pub(super) fn touches(&self, start: *const u8, len: usize) -> bool {
        overlap((self.local.start(), self.remote.len), (start, len))
    }

    /// Whether this transfer fills `segment`, a segment of this rank.
    pub(crate) fn fills(&self, segment: Filled) -> bool {
        self.filled == Some(segment)
    }

    /// Posts requests as far as there is room, and takes in requests that have ended. Returns whether the transfer is complete.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::PhaseOver`]; only when nothing is in flight any more.
    pub(crate) fn advance(&mut self, issuer: &mut impl Issuer, doing: &'static str) -> Result<bool> {
        loop {
            self.take_ended(issuer, doing);
            if !self.is_unposted() || self.in_flight.len() == WINDOW || !self.post(issuer, doing) {
                break;
            }
        }
        if !self.in_flight.is_empty() || self.is_unposted() {
            return Ok(false);
        }
        self.error.take().map_or(Ok(true), Err)
    }

    fn take_ended(&mut self, issuer: &mut impl Issuer, doing: &'static str) {
        let (rank, error) = (self.remote.rank, &mut self.error);
        self.in_flight.retain(|request| match request.answer().outcome() {
            None => true,
            Some(_) => match issuer.is_answered(doing, rank, request.answer()) {
                Ok(ended) => !ended,
                Err(failed) => {
                    error.get_or_insert(failed);
                    false
                }
            },
        });
    }

    /// One request; whether one was posted.
    fn post(&mut self, issuer: &mut impl Issuer, doing: &'static str) -> bool {
        let HeapRange { rank, offset, len } = self.remote;
        let (at, left) = (self.posted, (len - self.posted).min(LONGEST));
        let (local, region) = (self.local, self.region.as_deref());
        let checked = self.claims.iter().try_for_each(|claim| issuer.check_claim(*claim, doing, rank));
        let (count, lent) = (Cell::new(0), Cell::new(None));
        let posted = checked.and_then(|()| {
            issuer.request(doing, rank, &|network| match region {
                Some(region) => {
                    // SAFETY: inside the memory of this transfer, which the region covers, and which stays until all requests have ended.
                    let posted = unsafe { network.post_straight(rank, offset + at, local, region, at, left) }?;
                    Ok(posted.map(|(answer, posted)| {
                        count.set(posted);
                        answer
                    }))
                }
                None => {
                    // SAFETY: inside the memory of this transfer, which is filled and stays as long as it is lent.
                    let posted = unsafe { network.get_lent(rank, offset + at, local.start().add(at), left) }?;
                    Ok(posted.map(|(memory, posted)| {
                        count.set(posted);
                        let answer = Arc::clone(&memory.0);
                        lent.set(Some(memory));
                        answer
                    }))
                }
            })
        });
        match posted {
            Ok(Some(answer)) => {
                let request = lent.take().map_or(InTransit::Straight(answer), InTransit::Copied);
                self.in_flight.push(request);
                self.posted += count.get();
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let is_idle = self.is_idle();
        // Else the network may still touch the memory: its registration is leaked.
        if let Some(region) = &mut self.region
            && is_idle
        {
            // SAFETY: the region is not used after this.
            unsafe { ManuallyDrop::drop(region) };
        }
    }
}
