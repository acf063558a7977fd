//! How the segments of other processes are found: the wait of a post for a look-up over a network, and places in mapped memory.

use std::time::{Duration, Instant};

use super::codes;
use super::shared::Shared;
use super::types::{Code, Result, SegmentId, Timeout};
use crate::world::{Memo, Reached};

/// Least time that a post allows for the first look-up of a segment, or for room in messages: a few round trips to a process that need make
/// no call. Programs expect that a post with `GASPI_TEST` does not time out. Chosen.
const LOOK_UP: Duration = Duration::from_millis(100);
/// Checks before a wait for a look-up sleeps, and how long it sleeps between two checks. Chosen.
const YIELDS: u32 = 200;
const NAP: Duration = Duration::from_micros(100);

/// The time limit of a post that has to wait.
pub(super) fn of_post(timeout: Timeout) -> Timeout {
    match timeout {
        Timeout::Block => Timeout::Block,
        Timeout::Test => Timeout::After(LOOK_UP),
        Timeout::After(limit) => Timeout::After(limit.max(LOOK_UP)),
    }
}

/// The wait of a post for the look-up of a segment.
pub(super) struct LookUp {
    limit: Option<Duration>,
    /// Its begin: an instant, or virtual time.
    begun: Option<(Instant, Option<Duration>)>,
    tries: u32,
}

impl LookUp {
    pub(super) fn new(timeout: Timeout) -> LookUp {
        let limit = if let Timeout::After(limit) = of_post(timeout) { Some(limit) } else { None };
        LookUp { limit, begun: None, tries: 0 }
    }

    /// Lets a little time pass.
    ///
    /// # Errors
    /// [`codes::TIMEOUT`].
    #[cold]
    pub(super) fn pause(&mut self, now: Option<Duration>) -> Result<()> {
        let (instant, virtual_time) = *self.begun.get_or_insert_with(|| (Instant::now(), now));
        let elapsed = match now.zip(virtual_time) {
            Some((now, begun)) => now.saturating_sub(begun),
            None => instant.elapsed(),
        };
        if self.limit.is_some_and(|limit| elapsed >= limit) {
            return Err(Code(codes::TIMEOUT));
        }
        self.tries += 1;
        match now {
            // The look has let virtual time pass.
            Some(_) => {}
            None if self.tries < YIELDS => std::thread::yield_now(),
            None => std::thread::sleep(NAP),
        }
        Ok(())
    }
}

/// Where a range of a segment of `rank` is in mapped memory, if this process may reach the segment. The entry in `memo` was checked before.
#[inline(always)]
pub(super) fn place(
    shared: &Shared,
    reached: &Reached<'_>,
    memo: &mut Memo,
    (rank, segment): (usize, SegmentId),
    number: u32,
    (offset, len): (usize, usize),
) -> Option<*mut u8> {
    match reached.place_known(memo, number, offset, len) {
        None => new_place(shared, reached, memo, (rank, segment), number, (offset, len)),
        known => known,
    }
}

#[inline(never)]
fn new_place(
    shared: &Shared,
    reached: &Reached<'_>,
    memo: &mut Memo,
    (rank, segment): (usize, SegmentId),
    number: u32,
    (offset, len): (usize, usize),
) -> Option<*mut u8> {
    let may_reach = reached.is_own() || shared.is_registered(rank, segment);
    if may_reach { reached.place_again(memo, number, offset, len) } else { None }
}
