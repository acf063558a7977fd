//! Long transfers over a network from and to memory of the caller's, without a copy: the memory is registered for the time of
//! the transfer.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::far::{Answer, Far};
use super::networks::Networks;
use crate::error::Result;
use crate::transport::Region;

/// From so many bytes on a registration, some ten microseconds and one more for each few pages, costs less than the copy and
/// the requests that it saves.
pub(crate) const STRAIGHT: usize = 256 << 10;
/// Most bytes of one request: requests of devices have 32 bits for them.
pub(super) const LONGEST: usize = 1 << 30;
/// Between two looks at what cannot be left alone, where time is virtual.
const PAUSE: Duration = Duration::from_micros(10);

/// Memory of the caller's.
#[derive(Clone, Copy)]
pub(crate) enum Local {
    /// That is put.
    From(*const u8),
    /// That is filled.
    Into(*mut u8),
}

impl Local {
    pub(super) fn start(self) -> *mut u8 {
        match self {
            Local::From(start) => start.cast_mut(),
            Local::Into(start) => start,
        }
    }
}

/// Waits for the end of a request, whatever else happens: the network uses the caller's memory until then.
struct Lasting<'a>(&'a Networks, Arc<Answer>);

impl Drop for Lasting<'_> {
    fn drop(&mut self) {
        while self.1.outcome().is_none() {
            if self.0.progress().0 == 0 {
                match self.0.pace() {
                    Some(pace) => pace.pause(PAUSE),
                    None => std::thread::yield_now(),
                }
            }
        }
    }
}

impl Engine {
    /// Puts or gets `len` bytes at `offset` of `rank` (which is reached over a network), and waits for that. `false`: nothing
    /// was done, since this memory cannot be registered, or nothing may wait; copy it.
    ///
    /// # Safety
    /// The memory is valid for `len` bytes, for writing where it is filled, and only this call touches it.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`]; as [`Engine::far_get`].
    pub(crate) unsafe fn far_straight(
        &self,
        doing: &'static str,
        rank: usize,
        offset: usize,
        local: Local,
        len: usize,
    ) -> Result<bool> {
        if len < STRAIGHT || self.interface.delivering() || !self.is_own() {
            return Ok(false);
        }
        let far = self.network(rank);
        // SAFETY: the caller's; the region ends with this call, and what uses it before.
        let Ok((region, _)) = (unsafe { far.register(local.start(), len) }) else {
            tracing::debug!(rank, len, "memory that cannot be registered: is copied");
            return Ok(false);
        };
        let mut done = 0;
        while done < len {
            done += self.part(far, (doing, rank), offset + done, local, &region, done..len)?;
        }
        Ok(true)
    }

    /// One request; tells how many bytes it was.
    fn part(
        &self,
        far: &dyn Far,
        (doing, rank): (&'static str, usize),
        offset: usize,
        local: Local,
        region: &Region,
        left: std::ops::Range<usize>,
    ) -> Result<usize> {
        let (mut asked, mut count) = (Ok(None), 0);
        let most = left.len().min(LONGEST);
        self.wait_together(doing, || {
            asked = self.try_ask(doing, rank, || {
                // SAFETY: `left` is inside the caller's memory, which the region covers. Both stay until the answer has come:
                // nothing between here and `Lasting` can fail once there is one.
                let posted = unsafe { far.post_straight(rank, offset, local, region, left.start, most) }?;
                Ok(posted.map(|(answer, posted)| {
                    count = posted;
                    answer
                }))
            });
            !matches!(asked, Ok(None))
        })?;
        let answer = asked?.expect("the wait ends with a request");
        let lasting = Lasting(&self.networks, Arc::clone(&answer));
        let mut outcome = Ok(false);
        self.wait_together(doing, || {
            outcome = self.answered(doing, rank, &answer);
            !matches!(outcome, Ok(false))
        })?;
        drop(lasting);
        outcome.map(|_| count)
    }
}
