//! Sorting.

use std::any::TypeId;
use std::cmp::Ordering;

use bellwether_runtime::{Pod, Result, World};

use super::index::Region;
use super::{GlobalArray, Local};

/// Samples of the rank that has most elements; the others give samples in proportion to their elements.
const SAMPLES: usize = 64;

/// From this length on integers are sorted by radix. Chosen: a pass counts 256 values.
const BY_RADIX: usize = 1024;

/// Bytes of neighbouring lines of the array that are sorted together where a line is not contiguous in memory, so that whole
/// cache lines are used.
const TILE: usize = 256;

impl<T: Pod> GlobalArray<T, 1, Local> {
    /// A new array with the layout and the ghost layers of this one, and the elements in order. Ranks sort their own integers by radix,
    /// and elements of other types by comparisons. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::sort_by`].
    #[track_caller]
    pub fn sort(&self, world: &World) -> Result<GlobalArray<T, 1>>
    where
        T: Ord,
    {
        world.within("sort", || self.sort_line(world, T::cmp, sort_in_natural_order))
    }

    /// As [`GlobalArray::sort`], in the order of the elements' keys; elements of equal keys keep their order. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::sort_by`].
    #[track_caller]
    pub fn sort_by_key<K: Ord>(&self, world: &World, key: impl Fn(&T) -> K) -> Result<GlobalArray<T, 1>> {
        world.within("sort_by_key", || self.sort_by(world, |a, b| key(a).cmp(&key(b))))
    }

    /// As [`GlobalArray::sort`], in the order that `compare` says, a total one; elements that it calls equal keep their
    /// order. So the result does not depend on the number of ranks. For floating-point numbers:
    /// `array.sort_by(&world, f64::total_cmp)`. Ghost layers are zeros until they are exchanged. Collective.
    ///
    /// Sample sort (Frazer and McKellar, 1970): each rank sorts its own elements, and sends them to the rank of the range
    /// that they are in, which merges them. Ranges are chosen from samples; among equal elements rank and place decide,
    /// so that many equal ones are spread too. Takes memory for the elements two times more.
    ///
    /// # Errors
    /// As [`GlobalArray::new`] and [`World::allgather`].
    #[track_caller]
    pub fn sort_by(&self, world: &World, compare: impl Fn(&T, &T) -> Ordering) -> Result<GlobalArray<T, 1>> {
        world.within("sort_by", || self.sort_line(world, &compare, |elements| elements.sort_by(&compare)))
    }
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// A new array with the layout and the ghost layers of this one, and each line along `axis` in order:
    /// `numpy.sort(array, axis)`. Integers are sorted as by [`GlobalArray::sort`]. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::sort_along_by`].
    ///
    /// # Examples
    /// The middle of each column.
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let layout = Layout::block([5, 4], world.size())?;
    /// let plane = GlobalArray::from_fn(world, layout.clone(), |[i, j]| (3 * i + j) % 5)?;
    /// let sorted = plane.sort_along(world, 0)?;
    /// assert!(sorted.view([2..3, 0..4])?.iter().all(|(_, middle)| *middle == 2));
    /// assert_eq!(*sorted.layout(), layout);
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    #[track_caller]
    pub fn sort_along(&self, world: &World, axis: usize) -> Result<GlobalArray<T, D>>
    where
        T: Ord,
    {
        world.within("sort_along", || self.sort_lines_along(world, axis, T::cmp, sort_in_natural_order))
    }

    /// As [`GlobalArray::sort_along`], in the order of the elements' keys; elements of equal keys keep their order.
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::sort_along_by`].
    #[track_caller]
    pub fn sort_along_by_key<K: Ord>(
        &self,
        world: &World,
        axis: usize,
        key: impl Fn(&T) -> K,
    ) -> Result<GlobalArray<T, D>> {
        world.within("sort_along_by_key", || self.sort_along_by(world, axis, |a, b| key(a).cmp(&key(b))))
    }

    /// As [`GlobalArray::sort_along`], in the order that `compare` says, a total one; elements that it calls equal keep their
    /// order. So the result is the same on any number of ranks. Ghost layers are zeros until they are exchanged. Collective.
    ///
    /// Where the axis is shared out, all elements travel to a layout in which each line is at one rank, as evenly as the
    /// number of lines allows, and back: that takes memory for the elements twice more, and a line has to fit at a rank. An
    /// array of one dimension, which has one line, is sorted by all ranks, as [`GlobalArray::sort_by`] does.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument), with both numbers, for an axis that the array does not have, and
    /// [`RanksDiffer`](crate::Error::RanksDiffer) for ranks that give different ones, on all ranks; as
    /// [`GlobalArray::relayout`].
    #[track_caller]
    pub fn sort_along_by(
        &self,
        world: &World,
        axis: usize,
        compare: impl Fn(&T, &T) -> Ordering,
    ) -> Result<GlobalArray<T, D>> {
        world.within("sort_along_by", || {
            self.sort_lines_along(world, axis, &compare, |elements| elements.sort_by(&compare))
        })
    }

    /// `sort` sorts as `compare` says, and lets equal elements keep their order.
    fn sort_lines_along(
        &self,
        world: &World,
        axis: usize,
        compare: impl Fn(&T, &T) -> Ordering,
        sort: impl Fn(&mut [T]),
    ) -> Result<GlobalArray<T, D>> {
        self.check_axis(world, "sort_along_by", axis)?;
        if D == 1 {
            return self.sort_line(world, compare, sort);
        }
        if self.layout.axis(axis).parts() == 1 {
            let mut result = self.copy(world)?;
            result.sort_lines(axis, sort);
            return Ok(result);
        }
        let mut whole = self.relayout(world, self.layout.whole_along(axis))?;
        whole.sort_lines(axis, sort);
        whole.copy_into(world, self.like(world)?)
    }

    /// Sorts this rank's lines along an axis, which it has whole.
    fn sort_lines(&mut self, axis: usize, sort: impl Fn(&mut [T])) {
        if axis == D - 1 {
            return self.lines_mut().for_each(|(_, line)| sort(line));
        }
        let (count, width) = (self.own[axis], self.own[D - 1]);
        let stride: usize = self.local_extents()[axis + 1..].iter().product();
        let most = (TILE / size_of::<T>()).clamp(1, width.max(1));
        let mut tile = vec![T::zeroed(); most * count];
        for first in (Region { start: self.ghost, extents: self.across(axis) }).lines() {
            for left in (0..width).step_by(most) {
                let corner = self.place(&first) + left;
                let all = &mut self.local_mut()[corner..];
                let columns = most.min(width - left);
                for (row, line) in all.chunks(stride).take(count).enumerate() {
                    line.iter().take(columns).enumerate().for_each(|(i, element)| tile[i * count + row] = *element);
                }
                tile.chunks_exact_mut(count).take(columns).for_each(&sort);
                for (row, line) in all.chunks_mut(stride).take(count).enumerate() {
                    line.iter_mut().take(columns).enumerate().for_each(|(i, element)| *element = tile[i * count + row]);
                }
            }
        }
    }

    /// Sorts the one line of an array of one dimension. `sort_own` sorts as `compare` says, and lets equal elements keep their order.
    fn sort_line(
        &self,
        world: &World,
        compare: impl Fn(&T, &T) -> Ordering,
        sort_own: impl FnOnce(&mut [T]),
    ) -> Result<GlobalArray<T, D>> {
        let result = self.like(world)?;
        let relaid;
        let ordered = if self.layout.axis(0).is_contiguous() {
            self
        } else {
            relaid = self.relayout(world, self.layout.in_blocks(0))?;
            &relaid
        };
        let mut mine = Vec::new();
        ordered.lines().for_each(|(_, line)| mine.extend_from_slice(line));
        sort_own(&mut mine);
        let ends = ends_of_ranges(world, &mine, &compare)?;
        let (came, counts) = exchange(world, &mine, &ends)?;
        drop(mine);
        // Elements of one rank are in order, and those of lower ranks come first: so equal elements keep their order.
        let merged = merge_runs(came, counts, &compare);
        let before: u64 = world.allgather(&[merged.len() as u64])?[..world.rank()].iter().sum();
        result.put_region(Region { start: [before as usize; D], extents: [merged.len(); D] }, &merged)?;
        result.meet(world)?;
        Ok(result)
    }
}

/// Sorts elements in the order of their type; equal ones keep theirs.
fn sort_in_natural_order<T: Pod + Ord>(elements: &mut [T]) {
    macro_rules! by_radix {
        ($($integer:ty),*) => {
            $(if TypeId::of::<T>() == TypeId::of::<$integer>() {
                return radsort::sort(bytemuck::cast_slice_mut::<T, $integer>(elements));
            })*
        };
    }
    if elements.len() >= BY_RADIX {
        by_radix!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);
    }
    elements.sort();
}

/// For each rank, where its range ends in `mine`, which is sorted.
fn ends_of_ranges<T: Pod>(world: &World, mine: &[T], compare: impl Fn(&T, &T) -> Ordering) -> Result<Vec<usize>> {
    let (rank, n) = (world.rank(), world.size());
    let lengths = world.allgather(&[mine.len() as u64])?;
    let most = lengths.iter().copied().max().unwrap_or(0) as usize;
    // A sample from the middle of each stretch; the rest of the board is not looked at.
    let count = |len: usize| (len * SAMPLES).div_ceil(most.max(1)).min(len);
    let place = |len: usize, sample: usize| (2 * sample + 1) * len / (2 * count(len));
    let mut board = [T::zeroed(); SAMPLES];
    for (sample, shown) in board.iter_mut().enumerate().take(count(mine.len())) {
        *shown = mine[place(mine.len(), sample)];
    }
    let boards = world.allgather(&board)?;
    let mut samples = Vec::with_capacity(n * SAMPLES);
    for (other, len) in lengths.into_iter().enumerate() {
        let shown = &boards[other * SAMPLES..][..count(len as usize)];
        samples.extend(shown.iter().enumerate().map(|(sample, shown)| (*shown, other, place(len as usize, sample))));
    }
    let order = |a: &(T, usize, usize), b: &(T, usize, usize)| compare(&a.0, &b.0).then((a.1, a.2).cmp(&(b.1, b.2)));
    samples.sort_by(order);
    let mut ends = Vec::with_capacity(n);
    let mut before = 0;
    for range in 1..n {
        let splitter = &samples[range * samples.len() / n];
        // The first element that is not before the splitter.
        let (mut low, mut high) = (before, mine.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if order(&(mine[middle], rank, middle), splitter) == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        before = low;
        ends.push(before);
    }
    ends.push(mine.len());
    Ok(ends)
}

/// Sends each rank its range of `mine`, and returns what came, in the order of the ranks it came from, and how much came from each.
fn exchange<T: Pod>(world: &World, mine: &[T], ends: &[usize]) -> Result<(Vec<T>, Vec<usize>)> {
    let (rank, n) = (world.rank(), world.size());
    // At each rank: how much comes from each, and where this rank's part goes at each.
    let table = world.alloc_withheld::<u64>(2 * n)?;
    let range = |to: usize| if to == 0 { 0..ends[0] } else { ends[to - 1]..ends[to] };
    for to in (0..n).map(|step| (rank + step) % n) {
        table.put(to, rank, range(to).len() as u64)?;
    }
    world.barrier()?;
    let mut total = 0;
    let mut counts = Vec::with_capacity(n);
    for from in 0..n {
        let count = table.load(from);
        counts.push(count as usize);
        table.put(from, n + rank, total)?;
        total += count;
    }
    let mut most = [total];
    world.allreduce(&mut most, u64::max)?;
    let inbox = world.alloc_withheld::<T>(most[0] as usize)?;
    for to in (0..n).map(|step| (rank + step) % n) {
        inbox.put_slice(to, table.load(n + to) as usize, &mine[range(to)])?;
    }
    world.barrier()?;
    let mut came = vec![T::zeroed(); total as usize];
    inbox.read(0, &mut came);
    Ok((came, counts))
}

/// Merges runs of these lengths, each of which is in order, pair by pair until there is one. Of equal elements those of the earlier run
/// come first.
fn merge_runs<T: Pod>(mut elements: Vec<T>, mut lengths: Vec<usize>, compare: impl Fn(&T, &T) -> Ordering) -> Vec<T> {
    lengths.retain(|length| *length > 0);
    let mut other = if lengths.len() > 1 { vec![T::zeroed(); elements.len()] } else { Vec::new() };
    while lengths.len() > 1 {
        let mut start = 0;
        let merge_pair = |pair: &[usize]| {
            let all = start..start + pair.iter().sum::<usize>();
            start = all.end;
            let (from, to) = (&elements[all.clone()], &mut other[all.clone()]);
            let (first, second) = from.split_at(pair[0]);
            merge(first, second, to, &compare);
            all.len()
        };
        lengths = lengths.chunks(2).map(merge_pair).collect();
        std::mem::swap(&mut elements, &mut other);
    }
    elements
}

/// Merges two runs, the lower and the upper half of the result in turns: each element waits for the comparison before it, and so two of
/// them are under way at a time. Of equal elements those of `first` come first.
fn merge<T: Copy>(first: &[T], second: &[T], to: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let is_before = |of_second: &T, of_first: &T| compare(of_second, of_first) == Ordering::Less;
    // How many of `first` are in the lower half.
    let half = to.len() / 2;
    let (mut cut, mut high) = (half.saturating_sub(second.len()), half.min(first.len()));
    while cut < high {
        let middle = cut + (high - cut) / 2;
        if is_before(&second[half - middle - 1], &first[middle]) {
            high = middle;
        } else {
            cut = middle + 1;
        }
    }
    let (a, c) = first.split_at(cut);
    let (b, d) = second.split_at(half - cut);
    let (lower, upper) = to.split_at_mut(half);
    let step = |a: &[T], b: &[T], to: &mut [T], (i, j): &mut (usize, usize)| {
        let is_second = is_before(&b[*j], &a[*i]);
        to[*i + *j] = std::hint::select_unpredictable(is_second, b[*j], a[*i]);
        (*i, *j) = (*i + usize::from(!is_second), *j + usize::from(is_second));
    };
    let is_left = |a: &[T], b: &[T], (i, j): (usize, usize)| i < a.len() && j < b.len();
    let (mut low, mut up) = ((0, 0), (0, 0));
    while is_left(a, b, low) && is_left(c, d, up) {
        step(a, b, lower, &mut low);
        step(c, d, upper, &mut up);
    }
    for (a, b, to, at) in [(a, b, lower, &mut low), (c, d, upper, &mut up)] {
        while is_left(a, b, *at) {
            step(a, b, to, at);
        }
        let (i, j) = *at;
        let (rest, last) = to[i + j..].split_at_mut(a.len() - i);
        rest.copy_from_slice(&a[i..]);
        last.copy_from_slice(&b[j..]);
    }
}
