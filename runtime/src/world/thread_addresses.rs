//! Memory by address through contexts.

use super::addresses::ATOMIC;
use super::operation::check_one_value;
use super::{AtomicElement, ThreadContext};
use crate::engine::{BY_ADDRESS, Stream};
use crate::error::{Placed, Result};
use crate::transport::AtomicOp;

/// On memory of ranks by its address there. The symmetric heap, symmetric static data and segments are reached as by number: on mapped
/// memory by a store or load, else by the network. To other memory of a rank of this node the kernel copies. Memory that only a message
/// reaches (other memory over a network, and memory that the kernel does not copy) is an error here; only the world's calls reach it
/// ([`World::put_address`](super::World::put_address)).
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::AtomicOp;
/// bellwether::threads(2, |world| {
///     let own = world.segment(64)?;
///     let (there, other) = (world.exchange_addresses(own.as_ptr())?, 1 - world.rank());
///     let (context, at) = (world.context()?, there[other]);
///     std::thread::scope(|scope| {
///         scope.spawn(move || -> bellwether::Result<()> {
///             // SAFETY: bytes of a segment, which nobody refers to.
///             unsafe { context.put_address(other, at, &7u64.to_ne_bytes()) }?;
///             context.flush(other)?;
///             // SAFETY: as above.
///             assert_eq!(unsafe { context.fetch_address(AtomicOp::Add, other, at, 1u64) }?, 7);
///             Ok(())
///         }).join().expect("does not panic")
///     })?;
///     world.barrier()?;
///     own.close()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
impl ThreadContext {
    /// Copies `source` to address `to` of `rank`. `source` may be changed on return. In effect there as a put of
    /// [`ThreadContext::put_segment`] is.
    ///
    /// # Safety
    /// As of [`World::put_address`](super::World::put_address).
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`](crate::Error::RankOutOfRange); [`Error::BadAddress`](crate::Error::BadAddress);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where only a message reaches the memory; as [`ThreadContext::put`].
    #[track_caller]
    pub unsafe fn put_address(&self, rank: usize, to: usize, source: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            let (stream, doing) = (self.stream(), "put to an address");
            stream.put_segment(Stream::locate_address, doing, (rank, BY_ADDRESS), to, source)?;
            stream.tell_stored(rank);
            Ok(())
        })()
        .placed_here()
    }

    /// Copies bytes from address `from` of `rank` to `into`. Blocks until the bytes have arrived.
    ///
    /// # Safety
    /// What lies at `from` may be read: nobody there holds a unique reference to it.
    ///
    /// # Errors
    /// As [`ThreadContext::put_address`].
    #[track_caller]
    pub unsafe fn get_address(&self, rank: usize, from: usize, into: &mut [u8]) -> Result<()> {
        let (stream, doing) = (self.stream(), "get from an address");
        stream.get_segment(Stream::locate_address, doing, (rank, BY_ADDRESS), from, into).placed_here()
    }

    /// Does an atomic with `value`, not [`AtomicOp::CompareSwap`], on the word at `address` of `rank`, and returns what it held before. As
    /// [`World::fetch_address`](super::World::fetch_address).
    ///
    /// # Safety
    /// As of [`World::fetch_address`](super::World::fetch_address).
    ///
    /// # Errors
    /// As [`ThreadContext::put_address`]; [`Error::Misaligned`](crate::Error::Misaligned); as [`ThreadContext::fetch_segment`].
    #[track_caller]
    pub unsafe fn fetch_address<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        address: usize,
        value: T,
    ) -> Result<T> {
        (|| -> Result<T> {
            check_one_value(op)?;
            let (at, values) = ((rank, BY_ADDRESS, address), [value, T::zeroed()]);
            self.change_segment(Stream::locate_address, ATOMIC, op, at, values)
        })()
        .placed_here()
    }

    /// Stores `new` in the word at `address` of `rank` if that is `expected`, and returns what it held before.
    ///
    /// # Safety
    /// As of [`World::fetch_address`](super::World::fetch_address).
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_address`].
    #[track_caller]
    pub unsafe fn compare_swap_address<T: AtomicElement>(
        &self,
        rank: usize,
        address: usize,
        expected: T,
        new: T,
    ) -> Result<T> {
        let (op, at, values) = (AtomicOp::CompareSwap, (rank, BY_ADDRESS, address), [new, expected]);
        self.change_segment(Stream::locate_address, ATOMIC, op, at, values).placed_here()
    }
}
