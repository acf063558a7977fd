//! Operations with events on memory by its address at the target.

use super::{Fetched, Operation, check_one_value};
use crate::engine::{BY_ADDRESS, Events, HeapRange};
use crate::error::{Placed, Result};
use crate::transport::AtomicOp;
use crate::world::addresses::ATOMIC;
use crate::world::{AtomicElement, Segment};

/// # By address
/// What reaches the memory, and what needs progress of its rank, is as for [`World::put_address`](crate::World::put_address).
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::{AtomicOp, Completion};
/// bellwether::threads(2, |world| {
///     let (own, back) = (world.segment(64)?, world.segment(64)?);
///     let there = world.exchange_addresses(own.as_ptr())?;
///     let other = 1 - world.rank();
///     let (put, got, added) = (Completion::new(), Completion::new(), Completion::new());
///     // SAFETY: bytes of a segment, which nobody refers to.
///     unsafe { world.operation().effect(&put).put_address(other, there[other] + 8, &[7; 8]) }?;
///     world.wait_completion(&put)?;
///     // SAFETY: as above.
///     unsafe { world.operation().effect(&got).get_address(other, there[other] + 8, &back, 0, 8) }?;
///     // SAFETY: as above.
///     let ticket = unsafe { world.operation().effect(&added).fetch_address(AtomicOp::Add, other, there[other], 1u64) }?;
///     world.wait_completion(&got)?;
///     world.wait_completion(&added)?;
///     let mut came = [0; 8];
///     back.read(0, &mut came)?;
///     assert_eq!((came, ticket.value()), ([7; 8], Some(0)));
///     world.barrier()?;
///     own.close()?;
///     back.close()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
impl Operation<'_> {
    /// Copies `source` to address `to` of `rank`. `source` may be changed on return. On the same node it is in effect on return, unless the
    /// kernel allows no cross-memory attach. Where a message does the work, the effect comes when the target has handled it, whether or
    /// not the address was good: [`Error::BadAddress`](crate::Error::BadAddress) is then an error of a later call.
    ///
    /// # Safety
    /// As of [`World::put_address`](crate::World::put_address).
    ///
    /// # Errors
    /// As [`World::put_address`](crate::World::put_address); as [`Operation::put`].
    #[track_caller]
    pub unsafe fn put_address(self, rank: usize, to: usize, source: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            let world = self.world;
            let events = self.events(world.engine().identity())?;
            // SAFETY: the caller's.
            let carried = unsafe { world.put_address_by(rank, to, source) }?;
            world.track_carried(rank, "put to an address", carried, events)
        })()
        .placed_here()
    }

    /// Copies `len` bytes from address `from` of `rank` to byte `at` of `into`, a segment of this rank, where they are at the effect event.
    /// The call does not wait for bytes that the network reads; closing `into` does. All other bytes are here on return: the call waits for
    /// a system call or a message that brings them. A message needs progress of `rank`.
    ///
    /// # Safety
    /// What lies at `from` may be read: nobody there holds a unique reference to it.
    ///
    /// # Errors
    /// As [`World::get_address`](crate::World::get_address), and where a message does the work, [`Error::BadAddress`](crate::Error::BadAddress)
    /// and [`Error::InsideHandler`](crate::Error::InsideHandler); as [`Operation::get_segment`] of `into`.
    #[track_caller]
    pub unsafe fn get_address(self, rank: usize, from: usize, into: &Segment, at: usize, len: usize) -> Result<()> {
        (|| -> Result<()> {
            const NAME: &str = "get from an address";
            let world = self.world;
            let engine = world.engine();
            let (to, filled) = into.destination(NAME, engine, at, len)?;
            let Events { source, effect, handled } = self.events(engine.identity())?;
            let all = source.into_iter().chain(effect).chain(handled).collect();
            // SAFETY: bytes of an open segment of this rank; the caller's.
            match unsafe { world.get_address_by(rank, from, to, len) }? {
                None => engine.happened(all, Ok(())),
                Some(offset) => {
                    let range = HeapRange { rank, offset, len };
                    // SAFETY: in bounds of an open segment, whose close waits for this.
                    unsafe { engine.get_into(NAME, range, to, [None; 2], Some(filled), all) }
                }
            }
            Ok(())
        })()
        .placed_here()
    }

    /// Does an atomic with `value`, not [`AtomicOp::CompareSwap`], on the word at `address` of `rank`, as
    /// [`World::fetch_address`](crate::World::fetch_address). At the effect event the result has the former value.
    ///
    /// # Safety
    /// As of [`World::fetch_address`](crate::World::fetch_address).
    ///
    /// # Errors
    /// As [`World::fetch_address`](crate::World::fetch_address), and inside a handler [`Error::InsideHandler`](crate::Error::InsideHandler) only
    /// for memory that this rank has not used before. Where `rank` is asked by message, it tells of other memory by the error of the
    /// effect event. As [`Operation::put`].
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
            // SAFETY: the caller's.
            unsafe { self.change_address(op, rank, address, [value, T::zeroed()]) }
        })()
        .placed_here()
    }

    /// Stores `new` in the word at `address` of `rank` if that is `expected`. As [`Operation::fetch_address`].
    ///
    /// # Safety
    /// As of [`World::fetch_address`](crate::World::fetch_address).
    ///
    /// # Errors
    /// As [`Operation::fetch_address`].
    #[track_caller]
    pub unsafe fn compare_swap_address<T: AtomicElement>(
        self,
        rank: usize,
        address: usize,
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        // SAFETY: the caller's.
        unsafe { self.change_address(AtomicOp::CompareSwap, rank, address, [new, expected]) }.placed_here()
    }

    /// # Safety
    /// As of [`World::fetch_address`](crate::World::fetch_address).
    unsafe fn change_address<T: AtomicElement>(
        self,
        op: AtomicOp,
        rank: usize,
        address: usize,
        values: [T; 2],
    ) -> Result<Fetched<T>> {
        self.change_word(ATOMIC, (rank, BY_ADDRESS, address), |world| {
            // SAFETY: the caller's.
            unsafe { world.begin_change_address(op, rank, address, values) }
        })
    }
}
