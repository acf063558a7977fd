//! Boxes of elements, wherever they live.

use std::ops::Range;

use bellwether_runtime::{Piece, Placed, Pod, Posted, Result};

use super::index::Region;
use super::{GlobalArray, Phase, Shared};
use crate::pointer::BATCH;

impl<T: Pod, const D: usize> GlobalArray<T, D, Shared> {
    /// Reads a box, row by row: `array.get_patch([2..5, 0..3])`. One get for each piece of a row that lies together; over a
    /// network many of them are under way at a time, to all owners.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument), with both boxes, for one that is not inside; over a network as
    /// [`Symmetric::get_slice`](crate::Symmetric::get_slice).
    #[track_caller]
    pub fn get_patch(&self, region: impl Into<Region<D>>) -> Result<Vec<T>> {
        (|| -> Result<Vec<T>> {
            let region = region.into();
            region.check_inside(self.extents(), "get_patch")?;
            let mut values = vec![T::zeroed(); region.len()];
            self.get_patch_into(region, &mut values)?;
            Ok(values)
        })()
        .placed_here()
    }

    /// As [`GlobalArray::get_patch`], into memory that is there.
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch`]; for another number of elements.
    #[track_caller]
    pub fn get_patch_into(&self, region: impl Into<Region<D>>, values: &mut [T]) -> Result<()> {
        (|| -> Result<()> {
            let region = region.into();
            region.check_inside(self.extents(), "get_patch")?;
            region.check_count(values.len(), "get_patch")?;
            if self.memory.mapped().is_none() {
                return self.each_batch(region, |pieces, range| self.memory.get_pieces(pieces, &mut values[range]));
            }
            self.each_run(region, |Piece { rank, start, count }, first| {
                self.memory.get_slice(rank, start, &mut values[first..first + count])
            })
        })()
        .placed_here()
    }

    /// The future form of [`GlobalArray::get_patch`]: all rows are under way together. Until it is ready it takes memory for
    /// the box twice, and ten words for each piece of a row that lies together.
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch`] for a box that is not inside, from this call. All other errors come from the future.
    ///
    /// # Examples
    /// Two boxes at once, of whatever owners.
    /// ```
    /// use bellwether::array::{GlobalArray, Layout};
    /// # bellwether::threads(3, |world| {
    /// let layout = Layout::block([6, 6], world.size())?;
    /// let array = GlobalArray::from_fn(world, layout, |[i, j]| (10 * i + j) as u64)?.share(world)?;
    /// let corner = array.get_patch_async([0..2, 0..2])?;
    /// let column = array.get_patch_async([0..6, 5..6])?;
    /// assert_eq!((corner.wait()?, column.wait()?), (vec![0, 1, 10, 11], vec![5, 15, 25, 35, 45, 55]));
    /// # world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn get_patch_async(&self, region: impl Into<Region<D>>) -> Result<Posted<Vec<T>>> {
        let region = region.into();
        region.check_inside(self.extents(), "get_patch_async").placed()?;
        Ok(self.memory.get_pieces_async(&self.pieces(region)))
    }

    /// Writes a box, row by row. One put for each piece of a row that lies together.
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch_into`]; then nothing was written. Over a network as
    /// [`Symmetric::put_slice`](crate::Symmetric::put_slice).
    #[track_caller]
    pub fn put_patch(&self, region: impl Into<Region<D>>, values: &[T]) -> Result<()> {
        (|| -> Result<()> {
            let region = region.into();
            region.check_inside(self.extents(), "put_patch")?;
            region.check_count(values.len(), "put_patch")?;
            self.put_region(region, values)
        })()
        .placed_here()
    }

    /// As [`GlobalArray::put_patch`], but does not wait for room: the whole box is put, or nothing of it. See
    /// [`Symmetric::try_put_pieces`](crate::Symmetric::try_put_pieces).
    ///
    /// # Errors
    /// As [`GlobalArray::put_patch`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put_patch(&self, region: impl Into<Region<D>>, values: &[T]) -> Result<()> {
        let region = region.into();
        region.check_inside(self.extents(), "try_put_patch").placed()?;
        region.check_count(values.len(), "try_put_patch").placed()?;
        self.memory.try_put_pieces(&self.pieces(region), values)
    }

    /// The future form of [`GlobalArray::put_patch`]: ready when all elements are visible at their owners. `values` may be
    /// changed when this returns.
    ///
    /// # Errors
    /// As [`GlobalArray::put_patch`] for a box that is not inside and for a wrong number of values, from this call. All other
    /// errors come from the future.
    #[track_caller]
    pub fn put_patch_async(&self, region: impl Into<Region<D>>, values: &[T]) -> Result<Posted<()>> {
        let region = region.into();
        region.check_inside(self.extents(), "put_patch_async").placed()?;
        region.check_count(values.len(), "put_patch_async").placed()?;
        Ok(self.memory.put_pieces_async(&self.pieces(region), values))
    }
}

impl<T: Pod, const D: usize, P: Phase> GlobalArray<T, D, P> {
    /// Writes a box that is inside, with as many values, in whatever phase: for collectives that made or own the array, and so
    /// know that no rank has a slice of the array.
    pub(super) fn put_region(&self, region: Region<D>, values: &[T]) -> Result<()> {
        self.each_run(region, |Piece { rank, start, count }, first| {
            self.memory.put_slice(rank, start, &values[first..first + count])
        })
    }

    /// The runs of a box, in order.
    fn pieces(&self, region: Region<D>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.each_run(region, |piece, _| {
            pieces.push(piece);
            Ok(())
        })
        .expect("nothing that may fail");
        pieces
    }

    /// Calls `batch` for many runs of a box at a time, in order, with the numbers of their elements in the box.
    fn each_batch(&self, region: Region<D>, mut batch: impl FnMut(&[Piece], Range<usize>) -> Result<()>) -> Result<()> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        self.each_run(region, |piece, first| {
            if pieces.len() == BATCH {
                batch(&pieces, start..first)?;
                pieces.clear();
                start = first;
            }
            pieces.push(piece);
            Ok(())
        })?;
        batch(&pieces, start..region.len())
    }

    /// Calls `run` for each run of elements of a box that lie together, in order, with the number of the first in the box. The
    /// box is inside.
    fn each_run(&self, region: Region<D>, mut run: impl FnMut(Piece, usize) -> Result<()>) -> Result<()> {
        let last = self.layout.axis(D - 1);
        for (number, line) in region.lines().enumerate() {
            let (mut rank, mut at) = (0, 0);
            for (d, index) in line.into_iter().enumerate().take(D - 1) {
                let axis = self.layout.axis(d);
                let (part, local) = axis.locate(index);
                rank = rank * axis.parts() + part;
                at = at * (axis.len(part) + 2 * self.ghost[d]) + local + self.ghost[d];
            }
            for piece in last.runs(region.range(D - 1)) {
                let start = at * (last.len(piece.part) + 2 * self.ghost[D - 1]) + piece.local + self.ghost[D - 1];
                let first = number * region.extents[D - 1] + piece.global - region.start[D - 1];
                let rank = rank * last.parts() + piece.part;
                run(Piece { rank, start, count: piece.count }, first)?;
            }
        }
        Ok(())
    }
}
