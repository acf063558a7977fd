//! The same elements in another layout, and boxes of them in another array.

use std::borrow::Cow;

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Error, Pod, Reach, Result, Team, World};

use super::index::{Region, offset, volume};
use super::layout::{Axis, Run};
use super::local::own_index;
use super::{GlobalArray, Layout, Local, Phase};

/// Bytes of a piece from which on it is put for itself over a network.
const LONG: usize = 4096;

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// A new array of the same elements in another layout, without ghost layers. Collective. Each rank puts its elements to
    /// their new places, one put for each piece that is contiguous in both layouts. Over a network, if these pieces are short, a
    /// rank sends all elements for another rank at once. During the call that takes memory for the elements a second time on both
    /// sides, a word for each piece of a line if there are several lines, and two words for each rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the extents are not the same; as [`GlobalArray::new`].
    #[track_caller]
    pub fn relayout(&self, world: &World, layout: Layout<D>) -> Result<GlobalArray<T, D>> {
        world.within("relayout", || {
            self.check_extents("relayout", layout.extents(), self.extents())?;
            world.check_own(&self.memory, "relayout")?;
            let to = GlobalArray::new(world, layout)?;
            self.whole().move_all(world, to)
        })
    }

    /// Copies all elements to an array of the same extents, in whatever layout, and gives that back. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::relayout`]; then the other array is gone.
    #[track_caller]
    pub fn copy_into(&self, world: &World, to: GlobalArray<T, D>) -> Result<GlobalArray<T, D>> {
        world.within("copy_into", || {
            self.check_extents("copy_into", to.extents(), self.extents())?;
            to.meet(world)?;
            self.whole().move_all(world, to)
        })
    }

    fn whole(&self) -> Part<'_, T, D> {
        Part::borrowed(self, Region { start: [0; D], extents: self.extents() })
    }

    /// Waits until every rank has come to this point with this array, and all puts into the array are visible. Between two
    /// meetings no rank has a slice of the array: the collective call owns it.
    pub(super) fn meet(&self, world: &World) -> Result<()> {
        world.change_reach(&self.memory, Reach::Handle)
    }

    /// Writes the element at an index of one dimension, which is inside.
    #[inline(always)]
    fn put_one(&self, index: usize, value: T) -> Result<()> {
        match self.flat.straight(index).or_else(|| self.flat.address(index)) {
            // SAFETY: an element of ours in mapped memory, of which no code has a slice, as for `put_region`.
            Some(at) => unsafe { copy::store(at, value) },
            None => {
                let (part, local) = self.layout.axis(0).locate(index);
                self.memory.put(part, local + self.ghost[0], value)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_extents(&self, operation: &'static str, to: [usize; D], wanted: [usize; D]) -> Result<()> {
        if to == wanted {
            return Ok(());
        }
        let why = format!("from {:?} elements to {to:?} elements; they must be {wanted:?}", self.extents());
        Err(Error::InvalidArgument { operation, why })
    }
}

/// A rank's elements of a box of an array, to be copied elsewhere.
pub struct Part<'a, T: Pod, const D: usize> {
    from: Sector<'a, D>,
    rank: usize,
    /// Which of the rank's own elements they are.
    own: Region<D>,
    /// A box of `extents`, in which they begin at `start`.
    elements: Cow<'a, [T]>,
    extents: [usize; D],
    start: [usize; D],
}

impl<'a, T: Pod, const D: usize> Part<'a, T, D> {
    /// The elements themselves. The box is inside, here and below.
    pub fn borrowed(array: &'a GlobalArray<T, D>, region: Region<D>) -> Part<'a, T, D> {
        let own = array.layout.locals(array.rank, region);
        let start = std::array::from_fn(|d| own.start[d] + array.ghost[d]);
        let (elements, extents) = (array.local().into(), array.local_extents());
        Part { from: Sector { layout: &array.layout, region }, rank: array.rank, own, elements, extents, start }
    }

    /// A copy of elements that others may write meanwhile.
    pub fn read<P: Phase>(array: &'a GlobalArray<T, D, P>, region: Region<D>) -> Part<'a, T, D> {
        let own = array.layout.locals(array.rank, region);
        let mut elements = vec![T::zeroed(); own.len()];
        let lines = array.in_local_box(own).lines();
        for (local, line) in lines.zip(elements.chunks_exact_mut(own.extents[D - 1].max(1))) {
            array.memory.read(array.place(&local), line);
        }
        let (elements, extents, start) = (elements.into(), own.extents, [0; D]);
        Part { from: Sector { layout: &array.layout, region }, rank: array.rank, own, elements, extents, start }
    }

    /// Lines along the last dimension, and where each begins among the rank's own elements.
    fn lines(&self) -> impl Iterator<Item = ([usize; D], &[T])> {
        let count = self.own.extents[D - 1];
        self.own.lines().map(move |own| {
            let at = std::array::from_fn(|d| own[d] - self.own.start[d] + self.start[d]);
            (own, &self.elements[offset(&self.extents, &at)..][..count])
        })
    }

    /// To an array of the same extents that no rank has a slice of: made just now, or taken in by all.
    pub(super) fn move_all(&self, world: &World, mut to: GlobalArray<T, D>) -> Result<GlobalArray<T, D>> {
        // Both are the same on every rank, as the layouts are.
        if to.memory.mapped().is_none() && self.piece_length(&to.layout) * size_of::<T>() < LONG {
            let all = Region { start: [0; D], extents: to.extents() };
            self.exchange(world, &mut to, all)?;
        } else {
            self.put_all(&to)?;
            to.meet(world)?;
        }
        Ok(to)
    }

    /// The mean number of elements of the pieces that are contiguous in both layouts, estimated from the first pieces.
    fn piece_length(&self, to: &Layout<D>) -> usize {
        const ENOUGH: usize = 100;
        let (from, to, range) = (self.from.layout.axis(D - 1), to.axis(D - 1), self.from.region.range(D - 1));
        let first = range.start;
        let pieces = from.runs(range).flat_map(|run| to.runs(run.global - first..run.global - first + run.count));
        let (count, elements) =
            pieces.take(ENOUGH).fold((0, 0), |(count, elements), piece| (count + 1, elements + piece.count));
        elements / count
    }

    /// Copies to a box of an array, of the same extents. Each rank packs all elements for another rank, in the order of the
    /// indices, which is the order of memory on both sides. They arrive in separate memory, so that even after an error only the rank
    /// itself writes its slice. Collective.
    pub(super) fn exchange(&self, world: &World, to: &mut GlobalArray<T, D>, region: Region<D>) -> Result<()> {
        let longest = std::array::from_fn(|d| {
            let axis = to.layout.axis(d);
            (0..axis.parts()).map(|part| axis.locals(part, region.range(d)).len()).max().unwrap_or(0)
        });
        let volume = volume::<D>(&longest).expect("as many as the array has memory for");
        let arrived = world.alloc_withheld::<T>(volume)?;
        let layout = to.layout.clone();
        let there = Sector { layout: &layout, region };
        let mut outgoing = Deal::new(self.from, self.rank, there);
        let mut incoming = Deal::new(there, self.rank, self.from);
        // The receiver knows where each rank's elements begin in its memory, and tells that rank.
        let first = Team::world(world)?.alltoall(&incoming.next)?;
        let start = outgoing.next.clone();
        let mut packed = vec![T::zeroed(); self.own.len()];
        for (own, line) in self.lines() {
            outgoing.line(own, |at, from, count| match count {
                1 => packed[at] = line[from],
                _ => packed[at..at + count].copy_from_slice(&line[from..from + count]),
            });
        }
        // Each begins with another rank.
        for target in (0..world.size()).map(|step| (self.rank + step) % world.size()) {
            // All elements that were packed for `target`.
            let mine = &packed[start[target]..outgoing.next[target]];
            if !mine.is_empty() {
                arrived.put_slice(target, first[target], mine)?;
            }
        }
        // A put has copied what it was given.
        drop((outgoing, packed));
        to.meet(world)?;
        let own = layout.locals(self.rank, region);
        // SAFETY: as long as the largest part; after the meeting no rank writes it, and any bits are a `T`.
        let unpacked = unsafe { std::slice::from_raw_parts(arrived.as_ptr_range().start, own.len()) };
        let ghost = to.ghost;
        for (local, line) in to.lines_of_mut(to.in_local_box(own)) {
            incoming.line(own_index(local, ghost), |at, into, count| match count {
                1 => line[into] = unpacked[at],
                _ => line[into..into + count].copy_from_slice(&unpacked[at..at + count]),
            });
        }
        Ok(())
    }

    fn put_all(&self, to: &GlobalArray<T, D>) -> Result<()> {
        let Sector { layout, region } = self.from;
        let place = layout.place_of(self.rank);
        // To find one place is then less than to find where a piece ends.
        let single = D == 1 && self.piece_length(&to.layout) < 4;
        for (own, line) in self.lines() {
            let mut start: [usize; D] =
                std::array::from_fn(|d| layout.axis(d).global(place[d], own[d]) - region.start[d]);
            for run in layout.axis(D - 1).runs_of(place[D - 1], self.own.range(D - 1)) {
                let from = run.local - self.own.start[D - 1];
                let piece = &line[from..from + run.count];
                start[D - 1] = run.global - region.start[D - 1];
                if single {
                    let mut elements = piece.iter().enumerate();
                    elements.try_for_each(|(i, element)| to.put_one(start[0] + i, *element))?;
                    continue;
                }
                let extents = std::array::from_fn(|d| if d == D - 1 { run.count } else { 1 });
                to.put_region(Region { start, extents }, piece)?;
            }
        }
        Ok(())
    }
}

impl<T: Pod, const D: usize, P: Phase> GlobalArray<T, D, P> {
    /// A box of this rank's own elements, as one of [`GlobalArray::local_extents`].
    pub(super) fn in_local_box(&self, own: Region<D>) -> Region<D> {
        Region { start: std::array::from_fn(|d| own.start[d] + self.ghost[d]), ..own }
    }
}

/// A box of an array with this layout.
#[derive(Clone, Copy)]
struct Sector<'a, const D: usize> {
    layout: &'a Layout<D>,
    region: Region<D>,
}

/// A rank's elements of one box, split by the layout of another box of the same extents: the elements that each rank has there, one
/// rank's after the other's.
struct Deal<'a, const D: usize> {
    mine: Sector<'a, D>,
    other: Sector<'a, D>,
    place: [usize; D],
    /// Pieces of each line, where there are several lines: part in the other layout, and how many elements.
    pieces: Vec<(u32, u32)>,
    /// Where the next element of each rank goes: at first, where its share begins.
    next: Vec<usize>,
}

impl<'a, const D: usize> Deal<'a, D> {
    fn new(mine: Sector<'a, D>, rank: usize, other: Sector<'a, D>) -> Deal<'a, D> {
        let place = mine.layout.place_of(rank);
        // In each dimension, for each part of the other layout, how many indices both have.
        let mut common: [Vec<usize>; D] = std::array::from_fn(|d| vec![0; other.layout.axis(d).parts()]);
        let mut kept = Vec::new();
        for (d, common) in common.iter_mut().enumerate() {
            for piece in pieces(mine, place, other, d) {
                common[piece.part] += piece.count;
                if D > 1 && d == D - 1 {
                    kept.extend(in_words(piece.count).map(|count| (piece.part as u32, count)));
                }
            }
        }
        let count = |rank: usize| {
            let theirs = other.layout.place_of(rank);
            (0..D).map(|d| common[d][theirs[d]]).product::<usize>()
        };
        let counts = (0..other.layout.ranks()).map(count);
        let next = counts.scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
        Deal { mine, other, place, pieces: kept, next }
    }

    /// Calls `copy` for each piece of a line: its place among the packed elements, in the line, and its length. Lines come in
    /// the order of memory.
    fn line(&mut self, own: [usize; D], mut copy: impl FnMut(usize, usize, usize)) {
        let (mine, other) = (self.mine, self.other);
        let base = (0..D - 1).fold(0, |rank, d| {
            let index = mine.layout.axis(d).global(self.place[d], own[d]) - mine.region.start[d];
            let (part, _) = other.layout.axis(d).locate(other.region.start[d] + index);
            (rank + part) * other.layout.axis(d + 1).parts()
        });
        let mut at = 0;
        let mut each = |part: usize, count: usize| {
            let next = &mut self.next[base + part];
            copy(*next, at, count);
            (*next, at) = (*next + count, at + count);
        };
        if D == 1 {
            // One line: what it is made of is looked for once more, not kept.
            pieces(mine, self.place, other, 0).for_each(|piece| each(piece.part, piece.count));
        } else {
            self.pieces.iter().for_each(|(part, count)| each(*part as usize, *count as usize));
        }
    }
}

/// The indices of the first box along one dimension that the rank at a place has, in its order, in pieces that are contiguous in
/// a part of the other box too.
fn pieces<'a, const D: usize>(
    mine: Sector<'a, D>,
    place: [usize; D],
    other: Sector<'a, D>,
    d: usize,
) -> impl Iterator<Item = Run> + use<'a, D> {
    let (from, to): (&Axis, &Axis) = (mine.layout.axis(d), other.layout.axis(d));
    from.runs_of(place[d], from.locals(place[d], mine.region.range(d))).flat_map(move |run| {
        let start = run.global - mine.region.start[d] + other.region.start[d];
        to.runs(start..start + run.count)
    })
}

/// A count, in as many numbers as it takes.
fn in_words(mut count: usize) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let some = u32::try_from(count).unwrap_or(u32::MAX);
        count -= some as usize;
        (some > 0).then_some(some)
    })
}
