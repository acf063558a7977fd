//! The contributions of ranks to an exchange ([`super::exchange`]), and the code that uses those of the others.

use std::borrow::Cow;

use bytemuck::Pod;

use super::operator::{Fold, OnSlices, Operator};

/// Which contributions the caller needs; it may get more. Every rank passes the same value.
#[derive(Debug, Clone, Copy)]
pub enum Wanted {
    /// Those of all ranks.
    All,
    /// Those of one rank.
    From(usize),
    /// Rank 0's if all are equal, else all.
    Equal,
    /// That of the first rank that shows anything but zeros; rank 0's if none does. For outcomes that are the same on most ranks.
    First,
    /// Their reduction ([`See::result`]). With a central barrier the last rank computes it, and the others get it as the
    /// contribution of rank 0. Otherwise few ranks get all contributions each, and many combine them along a tree ([`See::join`]).
    Combined,
    /// The sums of the words of all ranks, as the contribution of rank 0; or the words of all ranks.
    Sum,
}

/// A rank's contribution to an exchange, and the code that uses the contributions of the others.
pub trait See {
    /// This rank's contribution.
    fn mine(&self) -> &[u8];
    /// Receives the contribution of one rank, or its own.
    fn see(&mut self, rank: usize, bytes: &[u8]);
    /// Its own, in the order of the ranks.
    fn see_mine(&mut self, rank: usize);
    /// Combines its own contribution, and those joined before, with that of higher ranks; only called for [`Wanted::Combined`]. Gives both,
    /// combined.
    fn join(&mut self, _theirs: &[u8]) -> &[u8] {
        &[]
    }
    /// The reduction of all contributions received; only called for [`Wanted::Combined`].
    fn result(&mut self) -> &[u8] {
        &[]
    }
    /// Receives the reduction, which another rank has made; only called for [`Wanted::Combined`].
    fn combined(&mut self, _bytes: &[u8]) {}
}

/// A contribution, and a function that receives all.
pub struct Shown<'a, F>(pub &'a [u8], pub F);

impl<F: FnMut(usize, &[u8])> See for Shown<'_, F> {
    fn mine(&self) -> &[u8] {
        self.0
    }

    fn see(&mut self, rank: usize, bytes: &[u8]) {
        self.1(rank, bytes);
    }

    fn see_mine(&mut self, rank: usize) {
        self.1(rank, self.0);
    }
}

/// The elements that these bytes are.
#[inline]
pub fn elements<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    const { assert!(size_of::<T>() > 0, "elements have bytes") }
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => Cow::Borrowed(elements),
        Err(_) => Cow::Owned(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()),
    }
}

/// Combines the values of all ranks along the one tree.
pub struct Reduction<'a, T, O> {
    rank: usize,
    /// This rank's values; in the end those of all ranks, combined.
    values: &'a mut [T],
    operator: &'a O,
    fold: Fold<'a, T>,
    /// These values and those joined. Apart from `values`, which keep what they are if the call fails.
    joined: Vec<T>,
    /// There are two ranks: the tree has one knot.
    pair: bool,
}

impl<'a, T: Pod, O: Operator<T>> Reduction<'a, T, O> {
    /// A reduction of `values`, those of rank `rank` of `size`.
    pub fn new([rank, size]: [usize; 2], values: &'a mut [T], operator: &'a O) -> Self {
        Reduction { rank, values, operator, fold: Fold::new(operator), joined: Vec::new(), pair: size == 2 }
    }
}

impl<T: Pod, O: Operator<T>> See for Reduction<'_, T, O> {
    fn mine(&self) -> &[u8] {
        bytemuck::cast_slice(self.values)
    }

    fn see(&mut self, rank: usize, bytes: &[u8]) {
        let theirs = elements(bytes);
        if !self.pair {
            let mut part = self.fold.buffer();
            part.extend_from_slice(&theirs);
            self.fold.push(part);
        } else if rank < self.rank {
            self.operator.combine_onto(&theirs, self.values);
        } else if rank > self.rank {
            self.operator.combine_into(self.values, &theirs);
        }
    }

    fn see_mine(&mut self, _rank: usize) {
        if !self.pair {
            let mut part = self.fold.buffer();
            part.extend_from_slice(self.values);
            self.fold.push(part);
        }
    }

    fn join(&mut self, theirs: &[u8]) -> &[u8] {
        if self.joined.is_empty() {
            self.joined.extend_from_slice(self.values);
        }
        self.operator.combine_into(&mut self.joined, &elements(theirs));
        bytemuck::cast_slice(&self.joined)
    }

    fn result(&mut self) -> &[u8] {
        if !self.pair {
            self.values.copy_from_slice(&self.fold.finish());
        }
        bytemuck::cast_slice(self.values)
    }

    fn combined(&mut self, bytes: &[u8]) {
        self.values.copy_from_slice(&elements(bytes));
    }
}

/// The values of one rank, for all.
pub struct FromRoot<'a> {
    pub root: usize,
    pub values: &'a mut [u8],
}

impl See for FromRoot<'_> {
    fn mine(&self) -> &[u8] {
        self.values
    }

    fn see(&mut self, rank: usize, bytes: &[u8]) {
        if rank == self.root {
            self.values.copy_from_slice(bytes);
        }
    }

    fn see_mine(&mut self, _rank: usize) {}
}
