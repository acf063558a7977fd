//! The same elements in another layout.

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Error, Pod, Reach, Result, World};

use super::index::{Region, volume};
use super::layout::{Axis, Run};
use super::local::own_index;
use super::{GlobalArray, Layout, Local};
use crate::team::Team;

/// Bytes of a piece from which on it is put for itself over a network.
const LONG: usize = 4096;

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// A new array of the same elements in another layout, without ghost layers. Collective. Each rank puts what it has
    /// to where it goes: piece by piece of what lies together in both layouts; over a network, where these are short, all
    /// that goes to a rank at once. For so long that takes memory for the elements once more on either side, a word for
    /// each piece of a line where there are several lines, and two for each rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the extents are not the same; as [`GlobalArray::new`].
    pub fn relayout(&self, world: &World, layout: Layout<D>) -> Result<GlobalArray<T, D>> {
        world.within("relayout", || {
            self.check_extents("relayout", layout.extents(), self.extents())?;
            world.check_own(&self.memory, "relayout")?;
            let to = GlobalArray::new(world, layout)?;
            self.move_all(world, to)
        })
    }

    /// Copies all elements to an array of the same extents, in whatever layout, and gives that back. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::relayout`]; then the other array is gone.
    pub fn copy_into(&self, world: &World, to: GlobalArray<T, D>) -> Result<GlobalArray<T, D>> {
        world.within("copy_into", || {
            self.check_extents("copy_into", to.extents(), self.extents())?;
            to.meet(world)?;
            self.move_all(world, to)
        })
    }

    fn move_all(&self, world: &World, mut to: GlobalArray<T, D>) -> Result<GlobalArray<T, D>> {
        // Both are the same on every rank, as the layouts are.
        if to.memory.mapped().is_none() && self.piece_length(&to.layout) * size_of::<T>() < LONG {
            self.exchange_all(world, &mut to)?;
        } else {
            self.put_all(&to)?;
            to.meet(world)?;
        }
        Ok(to)
    }

    /// How many elements the pieces have that lie together in both layouts, to judge by the first ones.
    fn piece_length(&self, to: &Layout<D>) -> usize {
        const ENOUGH: usize = 100;
        let (from, to) = (self.layout.axis(D - 1), to.axis(D - 1));
        let runs = from.runs(0..from.extent());
        let pieces = runs.flat_map(|run| to.runs(run.global..run.global + run.count)).take(ENOUGH);
        let (count, elements) = pieces.fold((0, 0), |(count, elements), piece| (count + 1, elements + piece.count));
        elements / count
    }

    /// All that goes from one rank to another is packed, in the order of the indices, which is that of memory on both sides.
    fn exchange_all(&self, world: &World, to: &mut GlobalArray<T, D>) -> Result<()> {
        let longest = std::array::from_fn(|d| to.layout.axis(d).longest());
        let arrived = world.alloc::<T>(volume::<D>(&longest).expect("as many as the array has memory for"))?;
        let layout = to.layout.clone();
        let mut outgoing = Deal::new(&self.layout, self.rank, &layout);
        let mut incoming = Deal::new(&layout, self.rank, &self.layout);
        // Where each rank's elements begin is known where they go.
        let there = Team::world(world)?.alltoall(&incoming.next)?;
        let start = outgoing.next.clone();
        let mut packed = vec![T::zeroed(); self.own.iter().product()];
        for (local, line) in self.lines() {
            outgoing.line(own_index(local, self.ghost), |at, from, count| match count {
                1 => packed[at] = line[from],
                _ => packed[at..at + count].copy_from_slice(&line[from..from + count]),
            });
        }
        // Each begins with another rank.
        for target in (0..world.size()).map(|step| (self.rank + step) % world.size()) {
            // All that was packed for it.
            let mine = &packed[start[target]..outgoing.next[target]];
            if !mine.is_empty() {
                arrived.put_slice(target, there[target], mine)?;
            }
        }
        // A put has copied what it was given.
        drop((outgoing, packed));
        to.meet(world)?;
        let own = to.own.iter().product();
        // SAFETY: as long as the largest part; after the meeting nobody writes it, and any bits are a `T`.
        let unpacked = unsafe { std::slice::from_raw_parts(arrived.as_ptr_range().start, own) };
        let ghost = to.ghost;
        for (local, line) in to.lines_mut() {
            incoming.line(own_index(local, ghost), |at, into, count| match count {
                1 => line[into] = unpacked[at],
                _ => line[into..into + count].copy_from_slice(&unpacked[at..at + count]),
            });
        }
        Ok(())
    }

    /// Waits until every rank does something to this array that begins or ends here, and all that was put into it is
    /// there. No rank has a slice of it meanwhile: each has taken the array in, and gives it back after the last meeting.
    pub(super) fn meet(&self, world: &World) -> Result<()> {
        world.change_reach(&self.memory, Reach::Handle)
    }

    fn put_all(&self, to: &GlobalArray<T, D>) -> Result<()> {
        let place = self.layout.place_of(self.rank);
        // To find one place is then less than to find where a piece ends.
        let single = D == 1 && self.piece_length(&to.layout) < 4;
        for (local, line) in self.lines() {
            let mut start: [usize; D] =
                std::array::from_fn(|d| self.layout.axis(d).global(place[d], local[d] - self.ghost[d]));
            for run in self.layout.axis(D - 1).runs_of(place[D - 1], 0..self.own[D - 1]) {
                if single {
                    let mut elements = line[run.local..run.local + run.count].iter().enumerate();
                    elements.try_for_each(|(i, element)| to.put_one(run.global + i, *element))?;
                    continue;
                }
                start[D - 1] = run.global;
                let extents = std::array::from_fn(|d| if d == D - 1 { run.count } else { 1 });
                to.put_region(Region { start, extents }, &line[run.local..run.local + run.count])?;
            }
        }
        Ok(())
    }

    /// Writes the element at an index of one dimension, which is inside.
    #[inline(always)]
    fn put_one(&self, index: usize, value: T) -> Result<()> {
        match self.flat.straight(index).or_else(|| self.flat.address(index)) {
            // SAFETY: an element of ours in mapped memory, of which nobody has a slice, as for `put_region`.
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

/// What a rank has in one layout, dealt out by another: what each rank has in common with it, one rank's after the other's.
struct Deal<'a, const D: usize> {
    mine: &'a Layout<D>,
    other: &'a Layout<D>,
    place: [usize; D],
    /// Pieces of each line, where there are several lines: part in the other layout, and how many elements.
    pieces: Vec<(u32, u32)>,
    /// Where the next element of each rank goes: at first, where its share begins.
    next: Vec<usize>,
}

impl<'a, const D: usize> Deal<'a, D> {
    fn new(mine: &'a Layout<D>, rank: usize, other: &'a Layout<D>) -> Deal<'a, D> {
        let place = mine.place_of(rank);
        // In each dimension, for each part of the other layout, how many indices both have.
        let mut common: [Vec<usize>; D] = std::array::from_fn(|d| vec![0; other.axis(d).parts()]);
        let mut kept = Vec::new();
        for d in 0..D {
            for piece in pieces(mine.axis(d), place[d], other.axis(d)) {
                common[d][piece.part] += piece.count;
                if D > 1 && d == D - 1 {
                    kept.extend(in_words(piece.count).map(|count| (piece.part as u32, count)));
                }
            }
        }
        let count = |rank: usize| {
            let theirs = other.place_of(rank);
            (0..D).map(|d| common[d][theirs[d]]).product::<usize>()
        };
        let counts = (0..other.ranks()).map(count);
        let next = counts.scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
        Deal { mine, other, place, pieces: kept, next }
    }

    /// Calls `copy` for each piece of a line: its place among the packed elements, in the line, and its length. Lines come in
    /// the order of memory.
    fn line(&mut self, own: [usize; D], mut copy: impl FnMut(usize, usize, usize)) {
        let base = (0..D - 1).fold(0, |rank, d| {
            let (part, _) = self.other.axis(d).locate(self.mine.axis(d).global(self.place[d], own[d]));
            (rank + part) * self.other.axis(d + 1).parts()
        });
        let mut at = 0;
        let mut each = |part: usize, count: usize| {
            let next = &mut self.next[base + part];
            copy(*next, at, count);
            (*next, at) = (*next + count, at + count);
        };
        if D == 1 {
            // One line: what it is made of is looked for once more, not kept.
            pieces(self.mine.axis(0), self.place[0], self.other.axis(0))
                .for_each(|piece| each(piece.part, piece.count));
        } else {
            self.pieces.iter().for_each(|(part, count)| each(*part as usize, *count as usize));
        }
    }
}

/// What `part` of one axis has, in its order, in pieces that lie together in a part of the other axis too.
fn pieces(mine: &Axis, part: usize, other: &Axis) -> impl Iterator<Item = Run> {
    mine.runs_of(part, 0..mine.len(part)).flat_map(|run| other.runs(run.global..run.global + run.count))
}

/// A count, in as many numbers as it takes.
fn in_words(mut count: usize) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let some = u32::try_from(count).unwrap_or(u32::MAX);
        count -= some as usize;
        (some > 0).then_some(some)
    })
}
