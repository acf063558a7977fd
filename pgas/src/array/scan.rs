//! Prefix sums.

use std::ops::Add;

use bellwether_runtime::{Pod, Result, Team, World};

use super::index::offset;
use super::local::own_index;
use super::{GlobalArray, Local};

impl<T: Pod> GlobalArray<T, 1, Local> {
    /// A new array of the same layout whose element `i` is elements `0..=i` joined from the left by `combine`, which is
    /// associative: [`GlobalArray::scan_along`] the only axis. Collective.
    ///
    /// The same layout gives the same bits: each rank joins its own elements, then the ranks' totals are joined in order.
    ///
    /// # Errors
    /// As [`GlobalArray::new`] and [`Team::alltoallv`].
    #[track_caller]
    pub fn scan(&self, world: &World, combine: impl Fn(T, T) -> T) -> Result<GlobalArray<T, 1>> {
        world.within("scan", || self.scan_with(world, 0, None, combine))
    }

    /// As [`GlobalArray::scan`], of elements `0..i`: the first one is `start`, and all others are joined to it.
    ///
    /// # Errors
    /// As [`GlobalArray::scan`].
    #[track_caller]
    pub fn exclusive_scan(&self, world: &World, start: T, combine: impl Fn(T, T) -> T) -> Result<GlobalArray<T, 1>> {
        world.within("exclusive_scan", || self.scan_with(world, 0, Some(start), combine))
    }

    /// A new array of the same layout whose element `i` is the sum of elements `0..=i`. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::scan`].
    #[track_caller]
    pub fn prefix_sum(&self, world: &World) -> Result<GlobalArray<T, 1>>
    where
        T: Add<Output = T>,
    {
        world.within("prefix_sum", || self.scan(world, |a, b| a + b))
    }

    /// A new array of the same layout whose element `i` is the sum of elements `0..i`. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::scan`].
    #[track_caller]
    pub fn exclusive_prefix_sum(&self, world: &World) -> Result<GlobalArray<T, 1>>
    where
        T: Add<Output = T>,
    {
        world.within("exclusive_prefix_sum", || self.exclusive_scan(world, T::zeroed(), |a, b| a + b))
    }
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// A new array with the layout and the ghost layers of this one, in which each line along `axis` holds its prefixes: each
    /// element is the combination, from the left, of all elements of its line up to this one. `combine` is associative.
    /// Collective; ghost layers are zeros until they are exchanged.
    ///
    /// Only totals travel between the ranks that share a line, one for each line. If the axis is cyclic or block-cyclic, all
    /// elements travel to blocks and back.
    ///
    /// Integers are the same on any number of ranks. So are floating-point numbers if one rank has the whole axis: then each
    /// line is combined from its first element on. Otherwise the same layout gives the same bits: a rank combines its elements of
    /// a line, and the totals of the ranks are combined in order.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument), with both numbers, for an axis that the array does not have, and
    /// [`RanksDiffer`](crate::Error::RanksDiffer) for ranks that give different ones, on all ranks; as [`GlobalArray::new`]
    /// and [`Team::alltoallv`].
    ///
    /// # Examples
    /// The highest so far in each row.
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let layout = Layout::block([4, 5], world.size())?;
    /// let plane = GlobalArray::from_fn(world, layout, |[i, j]| (i + 3 * j) % 5)?;
    /// let highest = plane.scan_along(world, 1, usize::max)?;
    /// assert!(highest.to_root(world, 0)?.is_none_or(|all| all[..5] == [0, 3, 3, 4, 4]));
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    #[track_caller]
    pub fn scan_along(&self, world: &World, axis: usize, combine: impl Fn(T, T) -> T) -> Result<GlobalArray<T, D>> {
        world.within("scan_along", || {
            self.check_axis(world, "scan_along", axis)?;
            self.scan_with(world, axis, None, combine)
        })
    }

    /// As [`GlobalArray::scan_along`], but over the elements before each element: the first result of each line is `start`, and the
    /// elements are joined to it.
    ///
    /// # Errors
    /// As [`GlobalArray::scan_along`].
    #[track_caller]
    pub fn exclusive_scan_along(
        &self,
        world: &World,
        axis: usize,
        start: T,
        combine: impl Fn(T, T) -> T,
    ) -> Result<GlobalArray<T, D>> {
        world.within("exclusive_scan_along", || {
            self.check_axis(world, "exclusive_scan_along", axis)?;
            self.scan_with(world, axis, Some(start), combine)
        })
    }

    /// The sums along `axis` up to each element, that one included: `numpy.cumsum(array, axis)`. As
    /// [`GlobalArray::scan_along`]. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::scan_along`].
    ///
    /// # Examples
    /// Sums of all rectangles that begin in the corner.
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let ones = GlobalArray::from_fn(world, Layout::block([6, 7], world.size())?, |_| 1)?;
    /// let areas = ones.prefix_sum_along(world, 0)?.prefix_sum_along(world, 1)?;
    /// assert!(areas.iter().all(|([i, j], area)| *area == (i + 1) * (j + 1)));
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    #[track_caller]
    pub fn prefix_sum_along(&self, world: &World, axis: usize) -> Result<GlobalArray<T, D>>
    where
        T: Add<Output = T>,
    {
        world.within("prefix_sum_along", || self.scan_along(world, axis, |a, b| a + b))
    }

    /// The sums along `axis` of the elements before each element; see [`GlobalArray::scan_along`]. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::scan_along`].
    #[track_caller]
    pub fn exclusive_prefix_sum_along(&self, world: &World, axis: usize) -> Result<GlobalArray<T, D>>
    where
        T: Add<Output = T>,
    {
        world.within("exclusive_prefix_sum_along", || self.exclusive_scan_along(world, axis, T::zeroed(), |a, b| a + b))
    }

    /// Exclusive if there is a start.
    fn scan_with(
        &self,
        world: &World,
        axis: usize,
        start: Option<T>,
        combine: impl Fn(T, T) -> T,
    ) -> Result<GlobalArray<T, D>> {
        let in_order = self.layout.axis(axis).is_contiguous();
        let mut work = if in_order { self.copy(world)? } else { self.relayout(world, self.layout.in_blocks(axis))? };
        let before = work.before(world, axis, start, &combine)?;
        work.scan_lines(axis, start.is_some(), before, combine);
        if in_order {
            return Ok(work);
        }
        work.copy_into(world, self.like(world)?)
    }

    /// For each line of this rank, `start` and the elements that other ranks have before this rank's, joined; `None` if there are
    /// none. One of the ranks of a line joins the totals of all of them; the ranks divide their lines among themselves for that. So
    /// memory grows with the lines of a rank, not with the number of ranks. Collective.
    fn before(
        &self,
        world: &World,
        axis: usize,
        start: Option<T>,
        combine: impl Fn(T, T) -> T,
    ) -> Result<Option<Vec<T>>> {
        let (shared, place) = (self.layout.axis(axis), self.layout.place_of(self.rank));
        let (parts, count) = (shared.parts(), self.across(axis).iter().product::<usize>());
        if parts == 1 {
            return Ok(start.map(|start| vec![start; count]));
        }
        let share = |part: usize| (part + 1) * count / parts - part * count / parts;
        let rank_of = |part: usize| {
            let mut place = place;
            place[axis] = part;
            self.layout.rank_at(place).expect("a place of the grid")
        };
        let team = Team::world(world)?;
        let mut counts = vec![0; world.size()];
        let totals = if self.own[axis] == 0 { Vec::new() } else { self.totals(axis, &combine) };
        (0..parts).filter(|_| !totals.is_empty()).for_each(|part| counts[rank_of(part)] = share(part));
        let (totals, _) = team.alltoallv(&totals, &counts)?;

        let mine = share(place[axis]);
        let (mut joined, mut sent): (Option<Vec<T>>, _) = (start.map(|start| vec![start; mine]), Vec::new());
        counts.fill(0);
        // From each that has any, in their order.
        let with_any = (0..parts).filter(|part| shared.len(*part) > 0);
        for (part, totals) in with_any.zip(totals.chunks_exact(mine.max(1))) {
            joined = Some(match joined {
                None => totals.to_vec(),
                Some(joined) => {
                    counts[rank_of(part)] = mine;
                    sent.extend_from_slice(&joined);
                    joined.iter().zip(totals).map(|(joined, total)| combine(*joined, *total)).collect()
                }
            });
        }
        let (before, _) = team.alltoallv(&sent, &counts)?;
        Ok((!before.is_empty()).then_some(before))
    }

    /// This rank's elements of each of its lines, joined. Each of these lines has at least one element here.
    fn totals(&self, axis: usize, combine: impl Fn(T, T) -> T) -> Vec<T> {
        let across = self.across(axis);
        let mut totals = vec![T::zeroed(); across.iter().product()];
        for (local, line) in self.lines() {
            let mut own = own_index(local, self.ghost);
            let first = std::mem::take(&mut own[axis]) == 0;
            let totals = &mut totals[offset(&across, &own)..];
            if axis == D - 1 {
                totals[0] = line.iter().copied().reduce(&combine).expect("a line has elements");
            } else if first {
                totals[..line.len()].copy_from_slice(line);
            } else {
                totals.iter_mut().zip(line).for_each(|(total, element)| *total = combine(*total, *element));
            }
        }
        totals
    }

    /// Turns this rank's elements of each line into prefixes, joined to the value of the elements before them. An exclusive scan
    /// always has such a value.
    fn scan_lines(&mut self, axis: usize, exclusive: bool, before: Option<Vec<T>>, combine: impl Fn(T, T) -> T) {
        let (across, ghost) = (self.across(axis), self.ghost);
        let begun = before.is_some();
        let mut sums = before.unwrap_or_else(|| vec![T::zeroed(); across.iter().product()]);
        let step = |element: &mut T, sum: &mut T, begun: bool| {
            let with = if begun { combine(*sum, *element) } else { *element };
            *element = if exclusive { *sum } else { with };
            *sum = with;
        };
        for (local, line) in self.lines_mut() {
            let mut own = own_index(local, ghost);
            let begun = begun || own[axis] > 0;
            own[axis] = 0;
            let sums = &mut sums[offset(&across, &own)..];
            if axis == D - 1 {
                let mut sum = sums[0];
                line.iter_mut().enumerate().for_each(|(i, element)| step(element, &mut sum, begun || i > 0));
            } else {
                line.iter_mut().zip(sums).for_each(|(element, sum)| step(element, sum, begun));
            }
        }
    }
}
