//! Indices and boxes of indices.

use std::ops::Range;

use bellwether_runtime::{Error, Result};

/// The index of an element: `usize` in one dimension, `[usize; D]` in any.
pub trait Position<const D: usize>: Copy {
    /// The index in each dimension.
    fn position(self) -> [usize; D];
}

impl<const D: usize> Position<D> for [usize; D] {
    #[inline(always)]
    fn position(self) -> [usize; D] {
        self
    }
}

impl Position<1> for usize {
    #[inline(always)]
    fn position(self) -> [usize; 1] {
        [self]
    }
}

/// A box of indices: from `start`, `extents` indices in each dimension. Elements of a box are in the order of their indices, the
/// last dimension fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region<const D: usize> {
    /// The first index.
    pub start: [usize; D],
    /// Indices in each dimension.
    pub extents: [usize; D],
}

impl<const D: usize> Region<D> {
    /// Elements in it, at most `usize::MAX`.
    pub fn len(&self) -> usize {
        volume(&self.extents).unwrap_or(usize::MAX)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.extents.contains(&0)
    }

    /// The indices of one dimension.
    pub fn range(&self, d: usize) -> Range<usize> {
        self.start[d]..self.start[d] + self.extents[d]
    }

    /// Its indices, in their order: the last dimension fastest. Exactly [`Region::len`] of them.
    ///
    /// # Examples
    /// ```
    /// use bellwether::array::Region;
    /// let region = Region::from([2..4, 5..7]);
    /// assert_eq!(region.indices().collect::<Vec<_>>(), [[2, 5], [2, 6], [3, 5], [3, 6]]);
    /// ```
    #[inline]
    pub fn indices(&self) -> Indices<D> {
        Indices { region: *self, next: self.start, left: self.len() }
    }

    /// Whether it lies in a box of these extents that begins at 0.
    pub(crate) fn is_inside(&self, extents: [usize; D]) -> bool {
        (0..D).all(|d| self.start[d].checked_add(self.extents[d]).is_some_and(|end| end <= extents[d]))
    }

    /// # Errors
    /// [`Error::InvalidArgument`] with both boxes.
    pub(crate) fn check_inside(&self, extents: [usize; D], operation: &'static str) -> Result<()> {
        if self.is_inside(extents) {
            return Ok(());
        }
        let why = format!("{:?} elements from {:?} are not all inside {extents:?} elements", self.extents, self.start);
        Err(Error::InvalidArgument { operation, why })
    }

    /// # Errors
    /// [`Error::InvalidArgument`] if there are not `count` elements.
    pub(crate) fn check_count(&self, count: usize, operation: &'static str) -> Result<()> {
        if self.len() == count {
            return Ok(());
        }
        let why = format!("{count} values for a box of {:?} elements, which are {}", self.extents, self.len());
        Err(Error::InvalidArgument { operation, why })
    }

    /// The first index of each line along the last dimension, in order. None for an empty box.
    pub(crate) fn lines(self) -> impl Iterator<Item = [usize; D]> {
        let mut next = (!self.is_empty()).then_some(self.start);
        std::iter::from_fn(move || {
            let line = next?;
            let mut after = line;
            next = (0..D - 1).rev().find_map(|d| {
                after[d] += 1;
                if after[d] < self.start[d] + self.extents[d] {
                    return Some(after);
                }
                after[d] = self.start[d];
                None
            });
            Some(line)
        })
    }
}

/// The indices of a box, in their order; made by [`Region::indices`].
#[derive(Debug, Clone)]
pub struct Indices<const D: usize> {
    region: Region<D>,
    next: [usize; D],
    left: usize,
}

impl<const D: usize> Iterator for Indices<D> {
    type Item = [usize; D];

    #[inline]
    fn next(&mut self) -> Option<[usize; D]> {
        self.left = self.left.checked_sub(1)?;
        let index = self.next;
        for d in (0..D).rev() {
            self.next[d] += 1;
            // The first dimension goes past its end after the last index.
            if d == 0 || self.next[d] - self.region.start[d] < self.region.extents[d] {
                break;
            }
            self.next[d] = self.region.start[d];
        }
        Some(index)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<const D: usize> ExactSizeIterator for Indices<D> {}

impl<const D: usize> std::iter::FusedIterator for Indices<D> {}

impl<const D: usize> IntoIterator for Region<D> {
    type Item = [usize; D];
    type IntoIter = Indices<D>;

    #[inline]
    fn into_iter(self) -> Indices<D> {
        self.indices()
    }
}

impl<const D: usize> From<[Range<usize>; D]> for Region<D> {
    fn from(ranges: [Range<usize>; D]) -> Self {
        Region { start: std::array::from_fn(|d| ranges[d].start), extents: std::array::from_fn(|d| ranges[d].len()) }
    }
}

impl From<Range<usize>> for Region<1> {
    fn from(range: Range<usize>) -> Self {
        [range].into()
    }
}

/// Elements of a box, if they can be counted.
pub(crate) fn volume<const D: usize>(extents: &[usize; D]) -> Option<usize> {
    extents.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent))
}

/// The number of an element in a box of these extents. The index is inside.
#[inline(always)]
pub(crate) fn offset<const D: usize>(extents: &[usize; D], index: &[usize; D]) -> usize {
    (0..D).fold(0, |all, d| all * extents[d] + index[d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_in_order() {
        let lines = |region: Region<3>| region.lines().collect::<Vec<_>>();
        assert_eq!(lines([1..3, 4..6, 7..9].into()), [[1, 4, 7], [1, 5, 7], [2, 4, 7], [2, 5, 7]]);
        assert_eq!(lines([1..3, 4..4, 7..9].into()), [[0; 3]; 0]);
        assert_eq!(Region::from(3..9).lines().collect::<Vec<_>>(), [[3]]);
    }

    #[test]
    fn a_box_that_wraps_is_outside() {
        assert!(!Region { start: [usize::MAX], extents: [2] }.is_inside([10]));
        assert!(Region { start: [10], extents: [0] }.is_inside([10]));
    }
}
