//! Transfers of a context from and to memory of the caller's, without a copy or with one.

use super::super::operation::{HeapRange, Transfer};
use super::super::straight::{Drive, Lasting, Local, PAUSE, STRAIGHT};
use super::Stream;
use super::operations::Driving;
use super::wait::Ends;
use crate::error::Result;
use crate::transport::Region;

impl Drive for Stream {
    fn drive(&self) {
        // Peers send their requests to the rank's own interface.
        let served = self.home.engine().map_or(0, |engine| engine.networks.progress().0);
        let driven = self.driven();
        if driven.networks.progress().0 + served == 0 {
            match driven.networks.pace() {
                Some(pace) => pace.pause(PAUSE),
                None => {
                    drop(driven);
                    std::thread::yield_now();
                }
            }
        }
    }

    fn cancel_if_lost(&self, rank: usize) {
        if self.job.loss(rank).is_some() || self.cuts.contains(rank) {
            self.driven().networks.to(rank).cancel(rank);
        }
    }
}

impl Stream {
    /// Registers memory for a transfer with `rank` that copies nothing. `None`: copy it. It is short, or cannot be registered, or
    /// nothing may wait here.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    pub(super) unsafe fn register(&self, rank: usize, start: *mut u8, len: usize) -> Option<Region> {
        let in_handler = || self.home.engine().is_some_and(|engine| engine.check_outside_handler("").is_err());
        if len < STRAIGHT || in_handler() {
            return None;
        }
        let driven = self.driven();
        // SAFETY: the caller's.
        let registered = unsafe { driven.networks.to(rank).register(start, len) };
        registered.map(|(region, _)| region).ok()
    }

    /// Puts or gets `len` bytes at `offset` of `rank` (which is reached over the network), and waits for that. `false`: nothing was
    /// done; copy it.
    ///
    /// # Safety
    /// The memory is valid for `len` bytes, for writing where it is filled, and only this call touches it.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(super) unsafe fn straight(
        &self,
        doing: &'static str,
        rank: usize,
        offset: usize,
        local: Local,
        len: usize,
    ) -> Result<bool> {
        // SAFETY: the caller's; the region ends with this call.
        let Some(region) = (unsafe { self.register(rank, local.start(), len) }) else { return Ok(false) };
        // SAFETY: the caller's.
        unsafe { self.transfer(doing, HeapRange { rank, offset, len }, local, Some(region)) }.map(|()| true)
    }

    /// Puts or gets, and waits for that. Without a region it is a get, which the network copies once.
    ///
    /// # Safety
    /// As [`Stream::straight`]; the region, if there is one, covers the memory.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(super) unsafe fn transfer(
        &self,
        doing: &'static str,
        remote: HeapRange,
        local: Local,
        region: Option<Region>,
    ) -> Result<()> {
        // SAFETY: the caller's; `Lasting` ends with this call, and what uses the memory before.
        let transfer = unsafe { Transfer::new(remote, local, [None; 2], region, None) };
        let mut lasting = Lasting { driver: self, transfer };
        self.wait_unless(doing, Ends::Of(remote.rank), |driven| {
            lasting.transfer.advance(&mut Driving { stream: self, driven }, doing)
        })
    }

    /// Reads a few bytes at `offset` of the slot of `rank`, in bounds, which is reached over the network: copied once.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(super) fn get_short(&self, doing: &'static str, rank: usize, offset: usize, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let to = &mut into[done..];
            // SAFETY: borrowed until this returns, and so until what is lent is taken back.
            let (lent, count) = self.insist(doing, rank, |network| unsafe {
                network.get_lent(rank, offset + done, to.as_mut_ptr(), to.len())
            })?;
            self.wait_unless(doing, Ends::Of(rank), |driven| self.answered(driven, doing, rank, &lent.0))?;
            done += count;
        }
        Ok(())
    }
}
