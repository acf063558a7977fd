//! Transfers of a context from and to memory of the caller's, without a copy or with one.

use std::sync::Arc;

use super::super::operation::{Event, HeapRange, Operation, Step, Transfer};
use super::super::remote_access::Answer;
use super::super::straight::{
    Drive, InFlight, Lasting, Local, PAUSE, PostStraight, PutsBuffers, STRAIGHT, put_buffer, register,
};
use super::Stream;
use super::operations::Driving;
use super::wait::Ends;
use crate::error::Result;
use crate::memory::copy;
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

impl PutsBuffers for Stream {
    fn post_request(&self, doing: &'static str, rank: usize, post: PostStraight<'_>) -> Result<(Arc<Answer>, usize)> {
        self.insist(doing, rank, post)
    }

    fn track_buffer(&self, doing: &'static str, rank: usize, flight: InFlight, events: Vec<Event>) {
        self.track(rank, doing, Step::Buffer(flight), events);
    }
}

impl Stream {
    /// Registers memory for a transfer with `rank` that copies nothing. `None`: copy it. It is short, or cannot be registered, or
    /// nothing may wait here, or this is a forked child, whose interfaces are the parent's.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    pub(super) unsafe fn register(&self, rank: usize, start: *mut u8, len: usize) -> Option<Region> {
        let in_handler = || self.home.engine().is_some_and(|engine| engine.check_outside_handler("").is_err());
        if len < STRAIGHT || !self.node.is_own() || in_handler() {
            return None;
        }
        // SAFETY: the caller's.
        unsafe { register(&self.driven().networks, rank, start, len) }
    }

    /// Puts `len` bytes at `from` to `offset` of `rank` (which is reached over the network): long ones without a copy. All is posted on
    /// return. When the bytes may be changed, `hold` is dropped and `events` happen, which are taken then. If they are left, the bytes were
    /// copied, and the caller lets the events happen when it has tracked the effect: a function may panic.
    ///
    /// # Safety
    /// The memory is readable, and nobody changes it, until `hold` is dropped. That is when the flight ends: before `events` happen, and
    /// before this context is quiet.
    ///
    /// # Errors
    /// As [`Stream::wait`]; then no event happens.
    pub(crate) unsafe fn post_put(
        &self,
        doing: &'static str,
        HeapRange { rank, offset, len }: HeapRange,
        from: *const u8,
        hold: Box<dyn Send>,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        self.check_own(doing)?;
        self.check_reachable(rank, doing)?;
        // SAFETY: the caller's.
        if let Some(region) = unsafe { self.register(rank, from.cast_mut(), len) } {
            // SAFETY: the caller's.
            return unsafe { put_buffer(self, doing, (rank, offset), region, hold, std::mem::take(events)) };
        }
        // SAFETY: the caller's.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) };
        self.perform(doing, rank, Operation::Put { offset, bytes, done: 0, after: false, tell: false })?;
        drop(hold);
        Ok(())
    }

    /// Puts `len` bytes at `own` of this rank's slot to `offset` of the slot of `rank`, all in bounds. Over the network long ones are not
    /// copied. When they may be changed, `events` happen; they are left if that is on return, as by [`Stream::post_put`].
    ///
    /// # Errors
    /// As [`Stream::put`]; then no event happens.
    pub(crate) fn put_own(
        &self,
        doing: &'static str,
        [rank, offset, own, len]: [usize; 4],
        events: &mut Vec<Event>,
    ) -> Result<()> {
        self.check_own(doing)?;
        // SAFETY: in bounds of the own slot.
        let from = unsafe { self.node.slot(self.rank).add(own) };
        if let Some(slot) = self.mapped_slot(rank) {
            // SAFETY: in bounds of a mapped slot.
            let to = unsafe { slot.add(offset) };
            // SAFETY: both ranges are mapped, and only touched by copies and atomics. They may overlap.
            unsafe { copy::between(to, from, len) };
            self.announce(rank);
            return Ok(());
        }
        self.check_reachable(rank, doing)?;
        // SAFETY: the slot is mapped as long as the context lives.
        if let Some(region) = unsafe { self.register(rank, from, len) } {
            // SAFETY: as above. Bytes that change meanwhile arrive with their old or new value. A call that ends the phase or the
            // allocation drains the context before.
            return unsafe { put_buffer(self, doing, (rank, offset), region, Box::new(()), std::mem::take(events)) };
        }
        let mut bytes = vec![0; len];
        // SAFETY: in bounds of the own slot, only touched by copies and atomics.
        unsafe { copy::get(bytes.as_mut_ptr(), from, len) };
        self.put(doing, rank, offset, &bytes)
    }

    /// As [`Stream::put_own`], if there is room for the first part now. Over the network the bytes are copied.
    ///
    /// # Errors
    /// As [`Stream::try_put`].
    pub(crate) fn try_put_own(&self, doing: &'static str, [rank, offset, own, len]: [usize; 4]) -> Result<()> {
        if self.is_mapped(rank) {
            // On mapped memory there are no events to take.
            return self.put_own(doing, [rank, offset, own, len], &mut Vec::new());
        }
        self.check_own(doing)?;
        // SAFETY: in bounds of the own slot.
        let from = unsafe { self.node.slot(self.rank).add(own) };
        let mut bytes = vec![0; len];
        // SAFETY: in bounds of the own slot, only touched by copies and atomics.
        unsafe { copy::get(bytes.as_mut_ptr(), from, len) };
        self.try_put(doing, rank, Some((offset, &bytes)), None)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::engine::HeapRange;
    use crate::transport::Memory;
    use crate::transport::sim::Config;
    use crate::{Error, Result, Simulated, World};

    /// A thread that holds the lock in the parent never releases it in the child.
    #[test]
    fn long_puts_of_a_context_in_a_forked_child_take_no_lock_and_register_nothing() {
        let program = |world: &World| -> Result<()> {
            const LEN: usize = 1 << 20;
            let numbers = world.alloc::<u8>(LEN)?;
            if world.rank() == 0 {
                let (stream, bytes) = (world.engine().open_context()?, vec![7; LEN]);
                let driven = stream.driven();
                // SAFETY: the child calls what takes no lock of another thread, and ends at once.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the child, should it wait for the lock.
                    unsafe { libc::alarm(20) };
                    let (to, hold) = (HeapRange { rank: 1, offset: 0, len: LEN }, Box::new(()));
                    // SAFETY: the bytes live until the child ends.
                    let posted = unsafe { stream.post_put("a test", to, bytes.as_ptr(), hold, &mut Vec::new()) };
                    let put = stream.put("a test", 1, 0, &bytes);
                    let refused = [posted, put].iter().all(|outcome| matches!(outcome, Err(Error::Forked { .. })));
                    // SAFETY: ends this process without running anything of the parent's.
                    unsafe { libc::_exit(i32::from(!refused)) };
                }
                let mut status = -1;
                // SAFETY: our own child, and a place for its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "14: the child waited for the lock; 256: it was not refused");
                drop(driven);
            }
            world.barrier()?;
            drop(numbers);
            Ok(())
        };
        let outcomes = Simulated::new(Config { memory: Memory::Posted, ..Config::new(2, 1) }).run(program);
        outcomes.expect("runs").into_iter().for_each(|outcome| outcome.expect("is well"));
    }
}
