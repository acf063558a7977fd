//! Prefix sums.

use std::ops::Add;

use bellwether_runtime::{Pod, Result, World};

use super::{GlobalArray, Layout, Local};

impl<T: Pod> GlobalArray<T, 1, Local> {
    /// A new array of the same layout whose element `i` is elements `0..=i` joined from the left by `combine`, which is
    /// associative. Collective.
    ///
    /// The same layout gives the same bits: each rank joins its own elements, then the ranks' totals are joined in order.
    ///
    /// # Errors
    /// As [`GlobalArray::new`] and [`World::allgather`].
    pub fn scan(&self, world: &World, combine: impl Fn(T, T) -> T) -> Result<GlobalArray<T, 1>> {
        world.within("scan", || self.scan_with(world, None, combine))
    }

    /// As [`GlobalArray::scan`], of elements `0..i`: the first one is `start`, and all others are joined to it.
    ///
    /// # Errors
    /// As [`GlobalArray::scan`].
    pub fn exclusive_scan(&self, world: &World, start: T, combine: impl Fn(T, T) -> T) -> Result<GlobalArray<T, 1>> {
        world.within("exclusive_scan", || self.scan_with(world, Some(start), combine))
    }

    /// A new array of the same layout whose element `i` is the sum of elements `0..=i`. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::scan`].
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
    pub fn exclusive_prefix_sum(&self, world: &World) -> Result<GlobalArray<T, 1>>
    where
        T: Add<Output = T>,
    {
        world.within("exclusive_prefix_sum", || self.exclusive_scan(world, T::zeroed(), |a, b| a + b))
    }

    fn scan_with(&self, world: &World, start: Option<T>, combine: impl Fn(T, T) -> T) -> Result<GlobalArray<T, 1>> {
        let mut result = self.in_order(world)?;
        let own = result.interior().range(0);
        let elements = &mut result.local_mut()[own];
        let total = elements.iter().copied().reduce(&combine);
        // Of the ranks before this one that have any.
        let totals = world.allgather(&[total.unwrap_or(T::zeroed())])?;
        let present = world.allgather(&[u8::from(total.is_some())])?;
        let before = totals[..world.rank()].iter().zip(present).filter(|(_, present)| *present != 0);
        let mut sum = before.map(|(total, _)| *total).fold(start, |sum, total| join(&combine, sum, total));
        for element in elements {
            let with = join(&combine, sum, *element);
            // Exclusive: what was before it; there is always something.
            *element = match (start, sum) {
                (Some(_), Some(sum)) => sum,
                _ => with.expect("an element was joined"),
            };
            sum = with;
        }
        if self.layout == result.layout {
            return Ok(result);
        }
        result.relayout(world, self.layout.clone())
    }

    /// A copy of this array in which each rank has neighbouring elements, in the order of the ranks.
    pub(super) fn in_order(&self, world: &World) -> Result<GlobalArray<T, 1>> {
        if self.layout.axis(0).is_contiguous() {
            return self.map(world, |element| element);
        }
        self.relayout(world, Layout::block(self.extents(), world.size())?)
    }
}

fn join<T>(combine: impl Fn(T, T) -> T, sum: Option<T>, element: T) -> Option<T> {
    Some(match sum {
        Some(sum) => combine(sum, element),
        None => element,
    })
}
