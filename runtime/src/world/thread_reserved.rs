//! The reserved segments through contexts.

use super::operation::check_one_value;
use super::{AtomicElement, ThreadContext};
use crate::engine::Stream;
use crate::error::{Placed, Result};
use crate::transport::AtomicOp;

/// The name of the operation in errors.
const ATOMIC: &str = "an atomic on a reserved segment";

/// Segments 0 and 1 of every rank, the symmetric heap and the symmetric static data, through a context. The counterpart for the world's thread
/// is [`ReservedSegments`](super::ReservedSegments). Made by [`ThreadContext::reserved_segments`], whose caller guarantees that all accesses
/// are valid.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// bellwether::threads(2, |world| {
///     let numbers = world.alloc::<u64>(4)?;
///     let (context, other, offset) = (world.context()?, 1 - world.rank(), numbers.segment_offset(2));
///     std::thread::scope(|scope| {
///         scope.spawn(move || {
///             // SAFETY: all accesses are to `numbers`, of which any bits are valid.
///             let reserved = unsafe { context.reserved_segments() };
///             reserved.put(other, 0, offset, &7u64.to_ne_bytes())?;
///             context.flush(other)
///         }).join().expect("does not panic")
///     })?;
///     world.barrier()?;
///     assert_eq!(numbers.load(2), 7);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[derive(Debug)]
pub struct ThreadReservedSegments<'c> {
    pub(super) context: &'c ThreadContext,
}

impl ThreadContext {
    /// The symmetric heap and the static data of all ranks, by the numbers of their segments. A local call: it sends nothing.
    ///
    /// # Safety
    /// As for [`World::reserved_segments`](super::World::reserved_segments). A put of this context is in flight until the context is flushed;
    /// until then, the bytes at the target must belong to the same block or variable.
    pub unsafe fn reserved_segments(&self) -> ThreadReservedSegments<'_> {
        ThreadReservedSegments { context: self }
    }
}

impl ThreadReservedSegments<'_> {
    /// Copies `source` to byte `offset` of segment 0 or 1 of `rank`. As [`ThreadContext::put_segment`].
    /// Over a network, a source of 256 KiB or more is not copied: the call waits until the network has read it.
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`]; [`Error::NoSegment`](crate::Error::NoSegment) for another number, and for 1 if static data is not
    /// symmetric.
    #[track_caller]
    pub fn put(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            let (stream, doing) = (self.context.stream(), "put to a reserved segment");
            stream.put_segment(Stream::locate_reserved, doing, (rank, number), offset, source)?;
            stream.tell_stored(rank);
            Ok(())
        })()
        .placed_here()
    }

    /// Copies bytes from `offset` of segment 0 or 1 of `rank` to `into`. Blocks until the bytes have arrived.
    ///
    /// # Errors
    /// As [`ThreadReservedSegments::put`].
    #[track_caller]
    pub fn get(&self, rank: usize, number: u32, offset: usize, into: &mut [u8]) -> Result<()> {
        let (stream, doing) = (self.context.stream(), "get from a reserved segment");
        stream.get_segment(Stream::locate_reserved, doing, (rank, number), offset, into).placed_here()
    }

    /// Does an atomic with `value`, any but [`AtomicOp::CompareSwap`], on an aligned word of segment 0 or 1, and returns the word's former value.
    /// On the heap it is atomic with respect to the atomics of arrays.
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_segment`].
    #[track_caller]
    pub fn fetch<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        number: u32,
        offset: usize,
        value: T,
    ) -> Result<T> {
        (|| -> Result<T> {
            check_one_value(op)?;
            let (at, values) = ((rank, number, offset), [value, T::zeroed()]);
            self.context.change_segment(Stream::locate_reserved, ATOMIC, op, at, values)
        })()
        .placed_here()
    }

    /// Stores `new` in an aligned word of segment 0 or 1 if the word is `expected`, and returns the word's former value.
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_segment`].
    #[track_caller]
    pub fn compare_swap<T: AtomicElement>(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        expected: T,
        new: T,
    ) -> Result<T> {
        let (op, at, values) = (AtomicOp::CompareSwap, (rank, number, offset), [new, expected]);
        self.context.change_segment(Stream::locate_reserved, ATOMIC, op, at, values).placed_here()
    }
}
