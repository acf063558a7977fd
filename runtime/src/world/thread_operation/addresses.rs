//! Operations of a context on memory by its address at the target, with events.

use super::{Fetched, ThreadOperation, check_one_value, checked};
use crate::engine::{BY_ADDRESS, Stream};
use crate::error::{Placed, Result};
use crate::transport::AtomicOp;
use crate::world::addresses::ATOMIC;
use crate::world::{AtomicElement, ThreadSegment};

/// # By address
/// These calls reach the same memory as [`ThreadContext::put_address`](crate::ThreadContext::put_address).
impl ThreadOperation<'_> {
    /// Copies `source` to address `to` of `rank`, as [`ThreadContext::put_address`](crate::ThreadContext::put_address).
    ///
    /// # Safety
    /// As for [`World::put_address`](crate::World::put_address).
    ///
    /// # Errors
    /// As [`ThreadContext::put_address`](crate::ThreadContext::put_address); as [`ThreadOperation::put`].
    #[track_caller]
    pub unsafe fn put_address(self, rank: usize, to: usize, source: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            const DOING: &str = "put to an address";
            let context = self.context;
            let stream = context.stream();
            let events = checked(self.events, stream.identity())?;
            // SAFETY: the caller's.
            unsafe { context.put_address(rank, to, source) }?;
            stream.track_put(rank, DOING, events);
            Ok(())
        })()
        .placed_here()
    }

    /// Copies `len` bytes from address `from` of `rank` to byte `at` of `into`, a segment of this rank. The effect event says that the bytes
    /// are in `into`; if the kernel or the processor copies, the event comes before the call returns. Closing `into` waits for the bytes.
    ///
    /// # Safety
    /// The bytes at `from` may be read: nobody at `rank` holds a unique reference to them.
    ///
    /// # Errors
    /// As [`ThreadContext::put_address`](crate::ThreadContext::put_address); as [`ThreadOperation::get_segment`] of `into`; as
    /// [`ThreadOperation::put`].
    #[track_caller]
    pub unsafe fn get_address(
        self,
        rank: usize,
        from: usize,
        into: &ThreadSegment<'_>,
        at: usize,
        len: usize,
    ) -> Result<()> {
        let place = (rank, BY_ADDRESS, from);
        self.get_located(Stream::locate_address, "get from an address", place, into, [at, len]).placed_here()
    }

    /// Does an atomic with `value`, any but [`AtomicOp::CompareSwap`], on the word at `address` of `rank`, as
    /// [`ThreadContext::fetch_address`](crate::ThreadContext::fetch_address). The effect event says that the result holds the former value.
    ///
    /// # Safety
    /// As for [`World::fetch_address`](crate::World::fetch_address).
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_address`](crate::ThreadContext::fetch_address); as [`ThreadOperation::put`].
    #[track_caller]
    pub unsafe fn fetch_address<T: AtomicElement>(
        self,
        op: AtomicOp,
        rank: usize,
        address: usize,
        value: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            check_one_value(op)?;
            let (place, values) = ((rank, BY_ADDRESS, address), [value, T::zeroed()]);
            self.change_located(Stream::locate_address, ATOMIC, op, place, values)
        })()
        .placed_here()
    }

    /// Stores `new` in the word at `address` of `rank` if the word is `expected`. Otherwise as [`ThreadOperation::fetch_address`].
    ///
    /// # Safety
    /// As for [`World::fetch_address`](crate::World::fetch_address).
    ///
    /// # Errors
    /// As [`ThreadOperation::fetch_address`].
    #[track_caller]
    pub unsafe fn compare_swap_address<T: AtomicElement>(
        self,
        rank: usize,
        address: usize,
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        let (place, values) = ((rank, BY_ADDRESS, address), [new, expected]);
        self.change_located(Stream::locate_address, ATOMIC, AtomicOp::CompareSwap, place, values).placed_here()
    }
}
