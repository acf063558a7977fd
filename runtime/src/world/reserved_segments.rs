//! The symmetric heap and the static data by the numbers of their segments.

use bytemuck::Pod;

use super::located::{Access, Located, LookUp};
use super::operation::check_one_value;
use super::{AtomicElement, Symmetric, World};
use crate::engine::{ADDRESS, Engine, HEAP, STATICS};
use crate::error::{CalledAt, Error, Result, check_range};
use crate::memory::copy;
use crate::transport::AtomicOp;

/// The two reserved segments of every rank: 0, the symmetric heap, and 1, the symmetric static data
/// ([`Builder::static_data`](crate::Builder::static_data)). Made by [`World::reserved_segments`], whose caller guarantees that its accesses are
/// valid. The calls of [`World`] that take the number of a segment refuse these two.
///
/// [`Symmetric::segment_offset`] and [`World::static_offset`] give offsets in them, which are the same at all ranks. The network reaches both
/// at all times, so puts and gets need no progress at the target.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::AtomicOp;
/// bellwether::threads(2, |world| {
///     let numbers = world.alloc::<u64>(4)?;
///     // SAFETY: all accesses below are to `numbers`, of which any bits are valid.
///     let reserved = unsafe { world.reserved_segments() };
///     let other = 1 - world.rank();
///     reserved.put(other, 0, numbers.segment_offset(2), &7u64.to_ne_bytes())?;
///     let before: u64 = reserved.fetch(AtomicOp::Add, other, 0, numbers.segment_offset(2), 1)?;
///     assert_eq!(before, 7);
///     world.barrier()?;
///     assert_eq!(numbers.load(2), 8);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[derive(Debug)]
pub struct ReservedSegments<'w> {
    world: &'w World,
}

/// How bytes of a reserved segment are reached.
pub(super) enum Reserved {
    /// By loads and stores here.
    Here(*mut u8),
    /// Over the network, which takes this offset.
    Network(usize),
}

impl ReservedSegments<'_> {
    /// # Errors
    /// [`Error::InvalidArgument`] if it is another world's.
    pub(super) fn check_of(&self, engine: &Engine) -> Result<()> {
        if self.world.engine().identity() == engine.identity() {
            return Ok(());
        }
        let why = "the reserved segments are of another world".into();
        Err(Error::InvalidArgument { operation: "an operation with events", why })
    }

    /// Copies `source` to byte `offset` of segment 0 or 1 of `rank`. As [`World::put_segment`]; on the same node a store.
    /// Over a network 256 KiB and more are not copied: this waits until the network has read them.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::NoSegment`] for another number, and for 1 if static data is not symmetric; [`Error::OutOfBounds`];
    /// [`Error::PeerLost`]; inside a handler [`Error::InsideHandler`] for segment 1 of a rank where this rank has used no segment before, and
    /// [`Error::WouldBlock`].
    #[track_caller]
    pub fn put(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        const NAME: &str = "put to a reserved segment";
        let (world, engine) = (self.world, self.world.engine());
        engine.at(|| {
            engine.poll()?;
            let located = world.locate_reserved(NAME, (rank, number), offset, source.len(), Engine::find_segment)?;
            self.put_located(NAME, (rank, number), located, source)
        })
    }

    /// As [`ReservedSegments::put`], but does not wait for room, as [`Symmetric::try_put_slice`]. Makes no progress. The first use of segment 1
    /// of a rank over a network reads that rank's table of segments, and waits for the table.
    ///
    /// # Errors
    /// As [`ReservedSegments::put`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        const NAME: &str = "try_put of a reserved segment";
        let (world, engine) = (self.world, self.world.engine());
        engine.at(|| {
            let located = world.locate_reserved(NAME, (rank, number), offset, source.len(), Engine::find_segment)?;
            engine.put_at_once(NAME, rank, source.len(), || self.put_located(NAME, (rank, number), located, source))
        })
    }

    fn put_located(&self, name: &'static str, at: (usize, u32), located: Located, source: &[u8]) -> Result<()> {
        let (world, rank) = (self.world, at.0);
        match world.access_reserved(name, at, located, source.len())? {
            Reserved::Network(remote) => world.put_registered(name, rank, remote, source),
            Reserved::Here(to) => {
                // SAFETY: inside the segment; the maker of this value guarantees that the bytes there may be written.
                unsafe { copy::put(to, source.as_ptr(), source.len()) };
                world.engine().stored(rank);
                Ok(())
            }
        }
    }

    /// Copies bytes from `offset` of segment 0 or 1 of `rank` to `into`. Blocks until the bytes have arrived.
    ///
    /// # Errors
    /// As [`ReservedSegments::put`]; [`Error::InsideHandler`].
    #[track_caller]
    pub fn get(&self, rank: usize, number: u32, offset: usize, into: &mut [u8]) -> Result<()> {
        const NAME: &str = "get from a reserved segment";
        let (world, engine) = (self.world, self.world.engine());
        engine.at(|| {
            engine.check_outside_handler(NAME)?;
            engine.poll()?;
            let located = world.locate_reserved(NAME, (rank, number), offset, into.len(), Engine::find_segment)?;
            match world.access_reserved(NAME, (rank, number), located, into.len())? {
                Reserved::Network(remote) => world.get_registered(NAME, rank, remote, into),
                Reserved::Here(from) => {
                    // SAFETY: inside the segment; the maker of this value guarantees that the bytes there may be read.
                    unsafe { copy::get(into.as_mut_ptr(), from, into.len()) };
                    Ok(())
                }
            }
        })
    }

    /// Does an atomic on an aligned word of segment 0 or 1 of `rank`, as [`World::fetch_segment`]. On the heap it is atomic to those of
    /// [`Symmetric`].
    ///
    /// # Errors
    /// As [`World::fetch_segment`].
    #[track_caller]
    pub fn fetch<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        number: u32,
        offset: usize,
        value: T,
    ) -> Result<T> {
        self.world.engine().at(|| {
            check_one_value(op)?;
            self.world.change_segment(World::locate_reserved, op, (rank, number, offset), [value, T::zeroed()])
        })
    }

    /// Stores `new` in an aligned word of segment 0 or 1 of `rank` if that is `expected`, and returns what it held before. As
    /// [`ReservedSegments::fetch`].
    ///
    /// # Errors
    /// As [`World::fetch_segment`].
    #[track_caller]
    pub fn compare_swap<T: AtomicElement>(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        expected: T,
        new: T,
    ) -> Result<T> {
        let (at, values) = ((rank, number, offset), [new, expected]);
        let change = || self.world.change_segment(World::locate_reserved, AtomicOp::CompareSwap, at, values);
        self.world.engine().at(change)
    }
}

impl World {
    /// The symmetric heap and the static data of all ranks, by the numbers of their segments. Not collective; peers do nothing.
    ///
    /// # Safety
    /// The caller guarantees for each access by the value returned that all its bytes belong to one block of the heap that the target has
    /// allocated, or to one variable; that nobody holds a reference to the bytes that it writes there, nor a unique reference to the
    /// bytes that it reads; and that it writes valid values. Memory that the library has allocated for itself, in bells for example, is
    /// not accessed.
    pub unsafe fn reserved_segments(&self) -> ReservedSegments<'_> {
        ReservedSegments { world: self }
    }

    /// Where bytes of a reserved segment are. As [`World::locate_segment_by`]; only calls that take [`ReservedSegments`] may call it.
    pub(super) fn locate_reserved(
        &self,
        operation: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        find: LookUp,
    ) -> Result<Located> {
        let engine = self.engine();
        engine.check_own(operation)?;
        engine.check_rank(rank, operation)?;
        let none = Error::NoSegment { operation, rank, number, place: CalledAt::default() };
        match number {
            HEAP => {
                let heap = engine.segments.mapped().heap(rank);
                check_range(operation, rank, offset, len, heap.len)?;
                Ok(Located { address: heap.start + offset, remote: engine.layout.heap + offset })
            }
            STATICS => {
                let found = find(engine, operation, rank, number)?.ok_or(none)?;
                check_range(operation, rank, offset, len, found.len)?;
                Ok(Located { address: found.start + offset, remote: ADDRESS + found.start + offset })
            }
            _ => Err(none),
        }
    }

    /// How located bytes of a reserved segment are reached.
    ///
    /// # Errors
    /// [`Error::NoSegment`] if `rank` is mapped and its segment is not here.
    pub(super) fn access_reserved(
        &self,
        operation: &'static str,
        (rank, number): (usize, u32),
        located: Located,
        len: usize,
    ) -> Result<Reserved> {
        match self.access(rank, located, len) {
            Access::Network(remote) => Ok(Reserved::Network(remote)),
            Access::Here(place) => Ok(Reserved::Here(place)),
            Access::Elsewhere => Err(Error::NoSegment { operation, rank, number, place: CalledAt::default() }),
        }
    }

    /// The offset of `variable`, which is static, in segment 1. `None` if static data is not symmetric here, or it lies elsewhere: on the
    /// stack, on the program's own heap, in a library, or in data that is read-only.
    pub fn static_offset<T>(&self, variable: *const T) -> Option<usize> {
        let (found, _) = self.engine.segments.find(STATICS)?;
        let offset = variable.addr().checked_sub(found.start)?;
        (offset <= found.len && size_of::<T>() <= found.len - offset).then_some(offset)
    }
}

impl<T: Pod> Symmetric<T> {
    /// The offset of element `index` in segment 0, the symmetric heap; the same at all ranks. See
    /// [`World::reserved_segments`].
    ///
    /// # Panics
    /// If the index is beyond the length.
    #[track_caller]
    pub fn segment_offset(&self, index: usize) -> usize {
        assert!(index <= self.len(), "element {index} of {}", self.len());
        self.offset() - self.engine().layout.heap + index * size_of::<T>()
    }
}
