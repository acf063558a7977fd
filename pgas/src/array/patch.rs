//! Boxes of elements, wherever they live.

use bellwether_runtime::{Pod, Result};

use super::index::Region;
use super::{GlobalArray, Phase, Shared};

impl<T: Pod, const D: usize> GlobalArray<T, D, Shared> {
    /// Reads a box, row by row: `array.get_patch([2..5, 0..3])`. One get for each piece of a row that lies together.
    ///
    /// # Errors
    /// [`bellwether_runtime::Error::InvalidArgument`], with both boxes, for one that is not inside; over a network as
    /// [`bellwether_runtime::Symmetric::get_slice`].
    pub fn get_patch(&self, region: impl Into<Region<D>>) -> Result<Vec<T>> {
        let region = region.into();
        region.check_inside(self.extents(), "get_patch")?;
        let mut values = vec![T::zeroed(); region.len()];
        self.get_patch_into(region, &mut values)?;
        Ok(values)
    }

    /// As [`GlobalArray::get_patch`], into memory that is there.
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch`]; for another number of elements.
    pub fn get_patch_into(&self, region: impl Into<Region<D>>, values: &mut [T]) -> Result<()> {
        let region = region.into();
        region.check_inside(self.extents(), "get_patch")?;
        region.check_count(values.len(), "get_patch")?;
        self.each_run(region, |rank, at, first, count| {
            self.memory.get_slice(rank, at, &mut values[first..first + count])
        })
    }

    /// Writes a box, row by row. One put for each piece of a row that lies together.
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch_into`]; then nothing was written. Over a network as
    /// [`bellwether_runtime::Symmetric::put_slice`].
    pub fn put_patch(&self, region: impl Into<Region<D>>, values: &[T]) -> Result<()> {
        let region = region.into();
        region.check_inside(self.extents(), "put_patch")?;
        region.check_count(values.len(), "put_patch")?;
        self.put_region(region, values)
    }
}

impl<T: Pod, const D: usize, P: Phase> GlobalArray<T, D, P> {
    /// Writes a box that is inside, with as many values, in whatever phase: for collectives that made the array or took
    /// it in, and so know that no rank has a slice of it.
    pub(super) fn put_region(&self, region: Region<D>, values: &[T]) -> Result<()> {
        self.each_run(region, |rank, at, first, count| self.memory.put_slice(rank, at, &values[first..first + count]))
    }

    /// Calls `run` for each run of elements of a box that lie together: rank, place in its memory, number of the first
    /// in the box, and count. The box is inside.
    fn each_run(&self, region: Region<D>, mut run: impl FnMut(usize, usize, usize, usize) -> Result<()>) -> Result<()> {
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
                let place = at * (last.len(piece.part) + 2 * self.ghost[D - 1]) + piece.local + self.ghost[D - 1];
                let first = number * region.extents[D - 1] + piece.global - region.start[D - 1];
                run(rank * last.parts() + piece.part, place, first, piece.count)?;
            }
        }
        Ok(())
    }
}
