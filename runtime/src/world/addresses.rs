//! Atomics on words by their address at the target.

use super::World;
use super::atomics::AtomicElement;
use super::operation::check_one_value;
use super::segment_atomics::{Begun, Home};
use crate::engine::{ADDRESS, BY_ADDRESS, not_registered};
use crate::error::{CalledAt, Error, Result};
use crate::transport::AtomicOp;

/// The name of the operation in errors.
pub(super) const ATOMIC: &str = "an atomic on an address";

impl World {
    /// Does an atomic with `value`, any but [`AtomicOp::CompareSwap`], on the word at `address` of `rank`, and returns the word's former
    /// value. The word lies in the symmetric heap, in symmetric static data or in a segment of that rank. It has 4 or 8 bytes, as `T` has,
    /// and its address is a multiple of that. Whether the processor, the network or a message does it, and whether `rank` must make
    /// progress, is as for [`World::fetch_segment`]; on the heap it is atomic with respect to the atomics of arrays. If `rank` does it by
    /// message, `rank` searches all its segments for the address.
    ///
    /// # Safety
    /// The program means this word to be changed: it is of a type of which any bits are valid, and nobody holds a reference to it but as
    /// an atomic. A segment that holds it stays open until this has returned.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::BadAddress`]; [`Error::Misaligned`]; [`Error::InvalidArgument`] for a compare-and-swap, and for
    /// other memory than said above; [`Error::PeerLost`]; [`Error::InsideHandler`] unless the word is changed at once.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::AtomicOp;
    /// bellwether::threads(3, |world| {
    ///     let own = world.segment(64)?;
    ///     let all = world.exchange_addresses(own.as_ptr())?;
    ///     // SAFETY: a word of a segment, which all ranks change by atomics.
    ///     let ticket: u64 = unsafe { world.fetch_address(AtomicOp::Add, 0, all[0] + 8, 1) }?;
    ///     let mut tickets = world.allgather(&[ticket])?;
    ///     tickets.sort();
    ///     assert_eq!(tickets, [0, 1, 2]);
    ///     own.close()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub unsafe fn fetch_address<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        address: usize,
        value: T,
    ) -> Result<T> {
        self.engine.at(|| {
            check_one_value(op)?;
            // SAFETY: the caller's.
            unsafe { self.change_address(op, rank, address, [value, T::zeroed()]) }
        })
    }

    /// Stores `new` in the word at `address` of `rank` if that is `expected`, and returns what it held before. As
    /// [`World::fetch_address`].
    ///
    /// # Safety
    /// As of [`World::fetch_address`].
    ///
    /// # Errors
    /// As [`World::fetch_address`].
    #[track_caller]
    pub unsafe fn compare_swap_address<T: AtomicElement>(
        &self,
        rank: usize,
        address: usize,
        expected: T,
        new: T,
    ) -> Result<T> {
        // SAFETY: the caller's.
        self.engine.at(|| unsafe { self.change_address(AtomicOp::CompareSwap, rank, address, [new, expected]) })
    }

    /// # Safety
    /// As of [`World::fetch_address`].
    unsafe fn change_address<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        address: usize,
        values: [T; 2],
    ) -> Result<T> {
        // SAFETY: the caller's.
        let begun = unsafe { self.begin_change_address(op, rank, address, values) }?;
        self.end_change(ATOMIC, (rank, BY_ADDRESS, address), begun)
    }

    /// Does an atomic on the word at an address, if this processor can. Otherwise tells what has to do it.
    ///
    /// # Safety
    /// As of [`World::fetch_address`].
    ///
    /// # Errors
    /// As [`World::fetch_address`].
    pub(super) unsafe fn begin_change_address<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        address: usize,
        values: [T; 2],
    ) -> Result<Begun<T>> {
        let home = self.home_of_address(rank, address, size_of::<T>())?;
        // SAFETY: aligned, and in mapped memory; the caller means it to be changed.
        Ok(unsafe { home.begin(op, values) })
    }

    /// Finds where an atomic on the word of `width` bytes at an address of `rank` is done: for each word what does it for arrays, or for
    /// calls that name the segment.
    fn home_of_address(&self, rank: usize, address: usize, width: usize) -> Result<Home> {
        let (engine, operation) = (&self.engine, ATOMIC);
        engine.check_own(operation)?;
        engine.check_rank(rank, operation)?;
        let segments = engine.segments.mapped();
        let bad = || Error::BadAddress { operation, rank, address, length: width };
        let missing = || {
            let instead = "atomics need one of them, so make the memory a segment there (World::segment_at)";
            not_registered(operation, rank, address, instead)
        };
        let is_memory = address != 0 && address.checked_add(width).is_some();
        if !is_memory || segments.is_closed_to_peers(rank, address, width) {
            return Err(bad());
        }
        if !address.is_multiple_of(width) {
            return Err(Error::Misaligned { operation, rank, address, alignment: width, place: CalledAt::default() });
        }
        match segments.in_heaps(rank, address, width) {
            // An address in this process's mapping of a third rank's memory: the atomics there are those of that rank.
            Some((slot, _)) if slot != rank => return Err(bad()),
            Some((_, offset)) if !engine.routes.all_mapped() => return Ok(Home::Network(offset)),
            Some(_) => {}
            None if engine.networks.change_segments_of(rank) => {
                return match engine.find_address(operation, rank, address, width)? {
                    true => Ok(Home::Network(ADDRESS + address)),
                    false => Err(missing()),
                };
            }
            None => {}
        }
        match segments.at_address(rank, address, width) {
            Some(here) => Ok(Home::Here(here)),
            // The address lies in a slot, in a part without memory behind it.
            None if engine.routes.is_mapped(rank) && segments.slot_of(rank, address).is_some() => Err(bad()),
            None if rank != engine.rank => Ok(Home::Owner),
            None if segments.owns(address, width) => Ok(Home::Here(address as *mut u8)),
            None => Err(missing()),
        }
    }
}
