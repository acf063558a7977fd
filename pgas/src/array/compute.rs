//! Element by element, and to one value.

use std::ops::{Add, Mul};

use bellwether_runtime::{Placed, Pod, Result, World};

use super::{Element, GlobalArray, Local};

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// Sets this rank's own elements to `value`. Local: an array is filled when every rank has called it.
    pub fn fill(&mut self, value: T) {
        self.lines_mut().for_each(|(_, line)| line.fill(value));
    }

    /// Changes this rank's own elements. Local.
    pub fn update(&mut self, mut change: impl FnMut(&mut T)) {
        self.lines_mut().for_each(|(_, line)| line.iter_mut().for_each(&mut change));
    }

    /// A new array of the same layout, without ghost layers, whose elements are the results of `function` on each element. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    #[track_caller]
    pub fn map<U: Element>(&self, world: &World, mut function: impl FnMut(T) -> U) -> Result<GlobalArray<U, D>> {
        world.within("map", || {
            let mut result = GlobalArray::new(world, self.layout.clone())?;
            for ((_, to), (_, from)) in result.lines_mut().zip(self.lines()) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = function(*from));
            }
            Ok(result)
        })
    }

    /// A new array of the same layout, without ghost layers, whose elements are the results of `function` on the elements of
    /// both arrays at the same index. Collective.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the layouts are not equal; as [`GlobalArray::new`].
    #[track_caller]
    pub fn zip_map<U: Element, V: Element>(
        &self,
        world: &World,
        other: &GlobalArray<U, D>,
        mut function: impl FnMut(T, U) -> V,
    ) -> Result<GlobalArray<V, D>> {
        world.within("zip_map", || {
            self.layout.check_same(&other.layout, "zip_map")?;
            let mut result = GlobalArray::new(world, self.layout.clone())?;
            for (((_, to), (_, a)), (_, b)) in result.lines_mut().zip(self.lines()).zip(other.lines()) {
                to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to = function(*a, *b));
            }
            Ok(result)
        })
    }

    /// Changes this rank's own elements, each with that of the other array at the same index. Local.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the layouts are not equal; then nothing was changed.
    #[track_caller]
    pub fn zip_update<U: Pod>(&mut self, other: &GlobalArray<U, D>, mut change: impl FnMut(&mut T, U)) -> Result<()> {
        (|| -> Result<()> {
            self.layout.check_same(&other.layout, "zip_update")?;
            for ((_, to), (_, from)) in self.lines_mut().zip(other.lines()) {
                to.iter_mut().zip(from).for_each(|(to, from)| change(to, *from));
            }
            Ok(())
        })()
        .placed_here()
    }

    /// Folds all elements to one value, the same on every rank. Collective.
    ///
    /// Each rank folds its own elements, from `start`, in the order of memory; then `combine` joins the ranks' values in
    /// the order of the ranks. So the same layout gives the same bits, and with operations that are not associative
    /// another layout may give others.
    ///
    /// # Errors
    /// As [`World::allreduce`].
    #[track_caller]
    pub fn reduce<U: Element>(
        &self,
        world: &World,
        start: U,
        mut fold: impl FnMut(U, T) -> U,
        combine: impl Fn(U, U) -> U,
    ) -> Result<U> {
        world.within("reduce", || {
            let here = || self.lines().fold(start, |value, (_, line)| line.iter().copied().fold(value, &mut fold));
            self.reduce_from(world, here, combine)
        })
    }

    /// Reduces to one value the values that the ranks made from their own elements.
    pub(super) fn reduce_from<U: Pod>(
        &self,
        world: &World,
        here: impl FnOnce() -> U,
        combine: impl Fn(U, U) -> U,
    ) -> Result<U> {
        world.check_own(&self.memory, "reduce")?;
        let mut value = [here()];
        world.allreduce(&mut value, combine)?;
        Ok(value[0])
    }

    /// The sum of all elements, the same on every rank; see [`GlobalArray::reduce`]. Collective.
    ///
    /// # Errors
    /// As [`World::allreduce`].
    #[track_caller]
    pub fn sum(&self, world: &World) -> Result<T>
    where
        T: Add<Output = T>,
    {
        world.within("sum", || self.reduce(world, T::zeroed(), |sum, element| sum + element, |a, b| a + b))
    }

    /// The sum of the products of the elements of both arrays at the same index, the same on every rank; see
    /// [`GlobalArray::reduce`] for the order. Collective.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the layouts are not equal; as [`World::allreduce`].
    #[track_caller]
    pub fn dot(&self, world: &World, other: &GlobalArray<T, D>) -> Result<T>
    where
        T: Add<Output = T> + Mul<Output = T>,
    {
        world.within("dot", || {
            self.layout.check_same(&other.layout, "dot")?;
            world.check_own(&self.memory, "dot")?;
            let mut sum = [T::zeroed()];
            for ((_, a), (_, b)) in self.lines().zip(other.lines()) {
                sum[0] = a.iter().zip(b).fold(sum[0], |sum, (a, b)| sum + *a * *b);
            }
            world.allreduce_sum(&mut sum)?;
            Ok(sum[0])
        })
    }
}
