//! Typed symmetric memory: every rank has a part of the same length at the same offset.

use std::hint::cold_path;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use bytemuck::Pod;

use super::allocate::Block;
use super::{Bell, OneThread, PlainData, Progress, World};
use crate::engine::{Claim, Engine, Local};
use crate::error::{CalledAt, Error, Placed, Result};
use crate::memory::copy;
use crate::memory::layout::LINE;
use crate::team::title::{Asked, Kind};

/// An array of `len` elements at every rank, that every rank can read and write, one-sided.
///
/// On one node a put is a bounds check and a store: no lock, no system call, and the target need not make progress. Over
/// a network the target's NIC writes the data, or, if the network does not support that, the target as it makes progress.
/// A put returns when its source may be changed; [`World::fence`] says when the put is visible at the target.
/// Elements are zero at first. Dropping the handle is a local operation. The memory is reused by the next allocation
/// after all ranks have dropped their handles; an allocation that reuses it first waits for operations in flight to it.
///
/// The array is shared, so no call gives a slice: [`load`](Self::load), [`read`](Self::read) and their
/// counterparts copy. If two ranks write the same element without a bell, message or barrier between them, the element
/// ends with one of the two values, or, if it is larger than 8 bytes, possibly with a mixture.
pub struct Symmetric<T> {
    block: Block,
    engine: OneThread<Rc<Engine>, World>,
    /// This array in the slot of rank 0.
    base: OneThread<*mut T, World>,
    stride: usize,
    /// How many ranks, from 0 on, have memory that is mapped here and may be changed by atomics of the processor: all or none.
    reach: usize,
    /// The ranks whose part this process stores to and loads from directly: the first rank, and the number of ranks.
    mapped: [usize; 2],
    /// This array at each rank that is in `mapped`, if those begin with rank 0: a put or get of one element takes one load in place of a
    /// multiplication and an addition. Empty where `mapped` does not begin with rank 0, and in an array that a pointer borrows.
    parts: OneThread<Box<[*mut T]>, World>,
    len: usize,
    elements: PhantomData<T>,
}

impl World {
    /// Allocates `len` zeroed elements at every rank. Collective: every rank asks for the same type and length. On one node, an
    /// allocation of up to 64 KiB may not yet reuse memory that other ranks dropped just before it, unless no other memory is free.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], on all ranks, with what was asked, what is free and the setting that changes it;
    /// [`Error::RanksDiffer`] if a rank asks for another type, length or alignment.
    #[track_caller]
    pub fn alloc<T: PlainData>(&self, len: usize) -> Result<Symmetric<T>> {
        self.alloc_aligned(len, LINE)
    }

    /// As [`World::alloc`], at an address that is a multiple of `align` bytes: a power of two, at least a cache line (64)
    /// and at most a page. As OpenSHMEM's `shmem_align`.
    ///
    /// # Errors
    /// As [`World::alloc`]; [`Error::InvalidArgument`] for another alignment.
    #[track_caller]
    pub fn alloc_aligned<T: PlainData>(&self, len: usize, align: usize) -> Result<Symmetric<T>> {
        Ok(self.alloc_withheld_aligned(len, align)?.show())
    }

    /// As [`World::alloc`], but before [`World::offer`] or a change of phase no global pointer reaches the elements, whatever its bits are.
    /// For the library's own data: its soundness may depend on them.
    #[doc(hidden)]
    #[track_caller]
    pub fn alloc_withheld<T: Pod>(&self, len: usize) -> Result<Symmetric<T>> {
        self.alloc_withheld_aligned(len, LINE)
    }

    /// [`World::alloc_withheld`] with the alignment of [`World::alloc_aligned`].
    #[doc(hidden)]
    #[track_caller]
    pub fn alloc_withheld_aligned<T: Pod>(&self, len: usize, align: usize) -> Result<Symmetric<T>> {
        let wrong = |why| Error::InvalidArgument { operation: "alloc", why };
        let page = crate::memory::limits::page_size();
        if !align.is_power_of_two() || !(LINE..=page).contains(&align) {
            return Err(wrong(format!("aligned to {align} bytes; it is a power of two from {LINE} to {page}")));
        }
        let asked = Asked::data::<T>(Kind::Allocate, len);
        let block = self.allocate_aligned(asked, bytes_of::<T>(len).map_err(wrong)?, align, "alloc")?;
        Ok(Symmetric::over(block, Rc::clone(self.engine()), len).with_parts())
    }
}

/// Bytes of so many elements, or why there cannot be as many.
pub(super) fn bytes_of<T>(len: usize) -> std::result::Result<usize, String> {
    let bytes = len.checked_mul(size_of::<T>());
    bytes.ok_or_else(|| format!("{len} elements of {} bytes exceed the address space", size_of::<T>()))
}

impl<T> Symmetric<T> {
    /// An array of `len` elements over `block`, which has room for at least as many. Allocates nothing: each use of a global pointer
    /// makes one.
    #[inline(always)]
    pub(super) fn over(block: Block, engine: Rc<Engine>, len: usize) -> Symmetric<T> {
        const { assert!(align_of::<T>() <= LINE, "elements are aligned to at most a cache line") };
        let base: *mut T = engine.node.origin().wrapping_add(block.offset).cast();
        let (stride, reach, mapped) =
            (1 << engine.node.stride_log2(), engine.routes.processor_atomics(), engine.routes.stores());
        let parts = Box::default();
        let mapped = [mapped.start, mapped.len()];
        let elements = PhantomData;
        let (engine, base, parts) = (OneThread::new(engine), OneThread::new(base), OneThread::new(parts));
        Symmetric { block, engine, base, stride, reach, mapped, parts, len, elements }
    }

    /// An array of `len` elements over the whole of `block`, which pointers reach from now on.
    pub(super) fn shown(block: Block, engine: Rc<Engine>, len: usize) -> Symmetric<T> {
        Symmetric::over(block, engine, len).with_parts().show()
    }

    /// The same, which pointers reach from now on.
    fn show(self) -> Symmetric<T> {
        self.block.show();
        self
    }

    /// With the addresses of the parts, where the mapped ranks begin with rank 0.
    fn with_parts(mut self) -> Symmetric<T> {
        let [first, count] = self.mapped;
        if first == 0 {
            let parts = (0..count).map(|rank| self.base.wrapping_byte_add(rank * self.stride)).collect();
            self.parts = OneThread::new(parts);
        }
        self
    }

    /// The progress of the rank that holds this.
    #[doc(hidden)]
    #[inline]
    pub fn progress(&self) -> Progress {
        Progress::of(&self.engine)
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    pub(super) fn engine_handle(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// The block in its present phase, for a future that may outlive this handle.
    pub(super) fn claim(&self) -> Claim {
        Claim::new(&self.engine.blocks, self.block.number)
    }
}

impl<T: Pod> Symmetric<T> {
    /// Elements at each rank.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// This array in the slot of `rank`: slots lie a stride apart, and the array at the same offset in each.
    #[inline(always)]
    fn part(&self, rank: usize) -> *mut T {
        self.base.wrapping_byte_add(rank * self.stride)
    }

    /// # Safety
    /// `rank` is below the number of ranks, and `index` at most the length.
    #[inline(always)]
    unsafe fn at(&self, rank: usize, index: usize) -> *mut T {
        // SAFETY: inside the array, or at its end.
        unsafe { self.part(rank).add(index) }
    }

    /// Writes one element at `rank`.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`].
    #[track_caller]
    #[inline(always)]
    pub fn put(&self, rank: usize, index: usize, value: T) -> Result<()> {
        // Each check has a cold call of its own. The compiler would merge branches to the same call, which adds instructions to the hot path.
        let part = if let Some(part) = self.parts.get(rank) {
            *part
        } else {
            cold_path();
            if !self.is_mapped(rank) {
                return self.put_one_remote(rank, index, value).map_or(Ok(()), |error| Err(*error));
            }
            self.part(rank)
        };
        if index >= self.len {
            return Err(*self.beyond("put", rank, index));
        }
        // SAFETY: in range, as just checked; elements are aligned and only touched through `copy`.
        unsafe { copy::store(part.add(index), value) };
        Ok(())
    }

    /// Reads one element of `rank`.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`].
    #[track_caller]
    #[inline(always)]
    pub fn get(&self, rank: usize, index: usize) -> Result<T> {
        // Two cold calls, as in `put`.
        let part = if let Some(part) = self.parts.get(rank) {
            *part
        } else {
            cold_path();
            if !self.is_mapped(rank) {
                return self.get_one_remote(rank, index).map_err(|error| *error);
            }
            self.part(rank)
        };
        if index >= self.len {
            return Err(*self.beyond("get", rank, index));
        }
        // SAFETY: as in `put`.
        Ok(unsafe { copy::load(part.add(index)) })
    }

    /// Writes one element at `rank`, then rings `bell` there: a rank that sees the ring sees the element.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`].
    #[track_caller]
    #[inline(always)]
    pub fn put_bell(&self, rank: usize, index: usize, value: T, bell: &Bell) -> Result<()> {
        // An index out of bounds takes this way too, so that its error names `put_bell`.
        if rank >= self.reach || index >= self.len {
            return self.put_ring_remote("put_bell", rank, index, &[value], bell);
        }
        self.put(rank, index, value)?;
        bell.ring(rank)
    }

    /// Writes `values` at `rank`, from element `start`. Over a network, 256 KiB and more are not copied: the call registers the memory of
    /// `values` and waits until the network has read it. Inside a handler it copies.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`]; then nothing was written. Over a network [`Error::PeerLost`].
    #[track_caller]
    #[inline]
    pub fn put_slice(&self, rank: usize, start: usize, values: &[T]) -> Result<()> {
        if !self.is_mapped_range(rank, start, values.len()) {
            return self.put_slice_remote(rank, start, values).map_or(Ok(()), |error| Err(*error));
        }
        // SAFETY: in range, as just checked; `values` is borrowed, so it is no part of what this call writes.
        unsafe { copy::copy(self.at(rank, start).cast(), values.as_ptr().cast(), size_of_val(values)) };
        Ok(())
    }

    /// Writes elements `from` of this rank's own part of `source`, which may be this array, at `rank`, from element `start`.
    ///
    /// Where memory is mapped, this is [`Symmetric::put_slice`]. Over a network, the device reads 8 KiB and more directly from the
    /// source, without a copy. Do not change the source until the put is complete ([`World::fence`], a barrier): the target may
    /// otherwise receive bytes from after the change. Blocks while the network has no room; inside a handler it copies instead.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`], for both ranges; [`Error::InvalidArgument`] if `source` is another world's.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(2, |world| {
    ///     let (plate, halo) = (world.alloc::<f64>(4096)?, world.alloc::<f64>(1024)?);
    ///     plate.store(4095, 2.5);
    ///     halo.put_from(1 - world.rank(), 0, &plate, 3072..4096)?;
    ///     world.barrier()?;
    ///     assert_eq!(halo.load(1023), 2.5);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn put_from(&self, rank: usize, start: usize, source: &Symmetric<T>, from: Range<usize>) -> Result<()> {
        (|| -> Result<()> {
            const NAME: &str = "put_from";
            let (engine, count) = (&self.engine, from.len());
            if !Rc::ptr_eq(engine, &source.engine) {
                return Err(Error::InvalidArgument { operation: NAME, why: "the source is of another world".into() });
            }
            let own = source.range(NAME, engine.rank, from.start, count)?;
            let offset = self.range(NAME, rank, start, count)?;
            if rank == engine.rank {
                // The two ranges may overlap.
                let mut values = vec![T::zeroed(); count];
                source.read(from.start, &mut values);
                self.write(start, &values);
            } else if self.is_mapped(rank) {
                // SAFETY: both are in range, as just checked; they belong to different ranks, so they do not overlap.
                unsafe {
                    copy::copy(
                        self.at(rank, start).cast(),
                        source.at(engine.rank, from.start).cast(),
                        count * size_of::<T>(),
                    )
                };
            } else {
                engine.remote_put_own(rank, offset, own, count * size_of::<T>())?;
            }
            Ok(())
        })()
        .placed_here()
    }

    /// Writes `values` at `rank`, then rings `bell` there: a rank that sees the ring sees all values.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`]; then the bell is not rung.
    #[track_caller]
    #[inline]
    pub fn put_slice_bell(&self, rank: usize, start: usize, values: &[T], bell: &Bell) -> Result<()> {
        if rank >= self.reach || !self.is_mapped_range(rank, start, values.len()) {
            return self.put_ring_remote("put_slice_bell", rank, start, values, bell);
        }
        self.put_slice(rank, start, values)?;
        bell.ring(rank)
    }

    /// Reads elements of `rank`, from `start`, into `values`.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`]; then `values` is unchanged. Over a network [`Error::PeerLost`], and
    /// [`Error::InsideHandler`], since a handler cannot wait for the data; the same holds for [`Symmetric::get`] and the atomics.
    #[track_caller]
    #[inline]
    pub fn get_slice(&self, rank: usize, start: usize, values: &mut [T]) -> Result<()> {
        if !self.is_mapped_range(rank, start, values.len()) {
            return self.get_remote("get_slice", rank, start, values);
        }
        // SAFETY: as in `put_slice`.
        unsafe { copy::copy(values.as_mut_ptr().cast(), self.at(rank, start).cast(), size_of_val(values)) };
        Ok(())
    }

    /// This rank's own element. Reads memory and makes no progress: on a simulated network a loop of loads alone never ends, since time
    /// passes only while ranks wait ([`super::World::wait_until`]).
    ///
    /// # Panics
    /// If the index is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn load(&self, index: usize) -> T {
        assert!(index < self.len, "element {index} of {}", self.len);
        // SAFETY: in range, as just checked.
        unsafe { copy::load(self.at(self.engine.rank, index)) }
    }

    /// Writes this rank's own element.
    ///
    /// # Panics
    /// If the index is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn store(&self, index: usize, value: T) {
        assert!(index < self.len, "element {index} of {}", self.len);
        // SAFETY: in range, as just checked.
        unsafe { copy::store(self.at(self.engine.rank, index), value) };
    }

    /// Copies this rank's own elements, from `start`, into `values`.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[track_caller]
    pub fn read(&self, start: usize, values: &mut [T]) {
        self.get_slice(self.engine.rank, start, values).expect("a range inside the array");
    }

    /// Copies `values` to this rank's own elements, from `start`.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[track_caller]
    pub fn write(&self, start: usize, values: &[T]) {
        self.put_slice(self.engine.rank, start, values).expect("a range inside the array");
    }

    /// The addresses of this rank's own elements, for calls that take raw memory. An empty array gives an empty range.
    pub fn as_ptr_range(&self) -> Range<*mut T> {
        // SAFETY: the array's bounds.
        unsafe { self.at(self.engine.rank, 0)..self.at(self.engine.rank, self.len) }
    }

    /// Address, in this process, of the array at `rank`: a direct pointer for calls that take raw memory, as
    /// OpenSHMEM's `shmem_ptr`. `None` if that rank's memory cannot be mapped here, or does not exist. Where some ranks are on
    /// other nodes, atomics of the processor at this address are not atomic with respect to [atomics of ranks](Self::fetch_add). On a
    /// simulated network, a store to this address does not wake a rank that waits for it.
    pub fn ptr(&self, rank: usize) -> Option<*mut T> {
        // SAFETY: an existing rank.
        (rank < self.engine.size && self.engine.routes.is_mapped(rank)).then(|| unsafe { self.at(rank, 0) })
    }

    /// As [`Symmetric::ptr`], for stores that announce nothing to a rank that waits for them. In virtual time such a store would be missed:
    /// then this is `None` for every rank but this one.
    #[doc(hidden)]
    pub fn ptr_unannounced(&self, rank: usize) -> Option<*mut T> {
        let announced = self.engine.networks.pace().is_some();
        self.ptr(rank).filter(|_| !announced || rank == self.engine.rank)
    }

    /// Whether this process stores to and loads from that rank's part directly. One comparison checks both bounds.
    #[inline(always)]
    fn is_mapped(&self, rank: usize) -> bool {
        rank.wrapping_sub(self.mapped[0]) < self.mapped[1]
    }

    /// The address of the element, if it exists and is mapped here for stores and for atomics of the processor.
    #[inline(always)]
    pub(super) fn element(&self, rank: usize, index: usize) -> Option<*mut T> {
        // SAFETY: in range, as just checked.
        (rank < self.reach && index < self.len).then(|| unsafe { self.at(rank, index) })
    }

    pub(super) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// Offset of the array in every rank's segment, in bytes.
    pub fn offset(&self) -> usize {
        self.block.offset
    }

    /// Whether these elements exist and this process stores to and loads from them directly.
    #[inline(always)]
    pub(super) fn is_mapped_range(&self, rank: usize, start: usize, count: usize) -> bool {
        self.is_mapped(rank) && start <= self.len && count <= self.len - start
    }

    /// The offset of these elements in the slot of `rank`; an error if they do not exist.
    pub(super) fn range(&self, operation: &'static str, rank: usize, start: usize, count: usize) -> Result<usize> {
        self.engine.check_rank(rank, operation)?;
        if start > self.len || count > self.len - start {
            return Err(Error::OutOfBounds {
                operation,
                rank,
                start,
                count,
                available: self.len,
                place: CalledAt::default(),
            });
        }
        Ok(self.block.offset + start * size_of::<T>())
    }

    /// A put to elements for which `is_mapped_range` is false: goes over the network, or fails.
    #[cold]
    #[track_caller]
    fn put_remote(&self, operation: &'static str, rank: usize, start: usize, values: &[T]) -> Result<()> {
        self.engine.at(|| {
            let offset = self.range(operation, rank, start, values.len())?;
            let bytes = bytemuck::cast_slice::<T, u8>(values);
            let local = Local::From(bytes.as_ptr());
            // SAFETY: borrowed until this returns.
            if unsafe { self.engine.remote_straight(operation, rank, offset, local, bytes.len()) }? {
                return Ok(());
            }
            self.engine.remote_put(rank, offset, bytes)
        })
    }

    /// As [`Symmetric::put_remote`]. Arguments and result fit in registers, so that a loop of puts keeps its variables in registers.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_slice_remote(&self, rank: usize, start: usize, values: &[T]) -> Option<Box<Error>> {
        self.put_remote("put_slice", rank, start, values).err().map(Box::new)
    }

    /// The error for an index out of bounds. Arguments and result fit in registers.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn beyond(&self, operation: &'static str, rank: usize, index: usize) -> Box<Error> {
        Box::new(Error::OutOfBounds {
            operation,
            rank,
            start: index,
            count: 1,
            available: self.len,
            place: CalledAt::default(),
        })
        .placed_here()
    }

    /// As [`Symmetric::put_slice_remote`], for one element.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_one_remote(&self, rank: usize, index: usize, value: T) -> Option<Box<Error>> {
        self.put_remote("put", rank, index, &[value]).err().map(Box::new)
    }

    /// As [`Symmetric::get_remote`], for one element. Arguments and result fit in registers.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_one_remote(&self, rank: usize, index: usize) -> Result<T, Box<Error>> {
        let mut value = [T::zeroed()];
        self.get_remote("get", rank, index, &mut value).map(|()| value[0]).map_err(Box::new)
    }

    /// As [`Symmetric::put_remote`], with a bell.
    #[cold]
    #[track_caller]
    fn put_ring_remote(
        &self,
        operation: &'static str,
        rank: usize,
        start: usize,
        values: &[T],
        bell: &Bell,
    ) -> Result<()> {
        self.engine.at(|| {
            let offset = self.range(operation, rank, start, values.len())?;
            bell.words.put_ring_remote(&self.engine, rank, offset, bytemuck::cast_slice(values))
        })
    }

    /// A get of elements for which `is_mapped_range` is false: goes over the network, or fails.
    #[cold]
    #[track_caller]
    fn get_remote(&self, operation: &'static str, rank: usize, start: usize, values: &mut [T]) -> Result<()> {
        self.engine.at(|| {
            let offset = self.range(operation, rank, start, values.len())?;
            self.engine.remote_get(operation, rank, offset, bytemuck::cast_slice_mut(values))
        })
    }
}

impl<T> std::fmt::Debug for Symmetric<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Symmetric<{}>({} at each of {} ranks)", std::any::type_name::<T>(), self.len, self.engine.size)
    }
}
