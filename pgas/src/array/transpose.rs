//! The transposed array, by tiles.

use bellwether_runtime::{Pod, Result, World};

use super::{GlobalArray, Layout, Local};

/// Bytes of a line of a transposed tile, which goes out in one put.
const LINE: usize = 512;
/// Lines of a tile. With their buffer they are half of a small first-level cache.
const LINES: usize = 32;

impl<T: Pod> GlobalArray<T, 2, Local> {
    /// A new array with rows and columns exchanged, in a layout for it: [`Layout::reversed`] keeps every element at its
    /// rank if the grid is square or a line; [`Layout::rows`] gives rows again. Collective.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the extents do not fit; as [`GlobalArray::new`].
    #[track_caller]
    pub fn transpose(&self, world: &World, layout: Layout<2>) -> Result<GlobalArray<T, 2>> {
        world.within("transpose", || {
            self.check_transposed(layout.extents())?;
            world.check_own(&self.memory, "transpose")?;
            let to = GlobalArray::new(world, layout)?;
            self.put_transposed(&to)?;
            to.meet(world)?;
            Ok(to)
        })
    }

    /// As [`GlobalArray::transpose`], into an array that is there; gives that back. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::transpose`]; then the other array is gone.
    #[track_caller]
    pub fn transpose_into(&self, world: &World, to: GlobalArray<T, 2>) -> Result<GlobalArray<T, 2>> {
        world.within("transpose_into", || {
            self.check_transposed(to.extents())?;
            to.meet(world)?;
            self.put_transposed(&to)?;
            to.meet(world)?;
            Ok(to)
        })
    }

    fn check_transposed(&self, to: [usize; 2]) -> Result<()> {
        let [rows, columns] = self.extents();
        self.check_extents("transpose", to, [columns, rows])
    }

    /// Each tile is transposed in a buffer, whose lines then go to their rows.
    fn put_transposed(&self, to: &GlobalArray<T, 2>) -> Result<()> {
        let most = (LINE / size_of::<T>()).max(1);
        let mut tile = vec![T::zeroed(); most * LINES];
        let (place, pitch) = (self.layout.place_of(self.rank), self.local_extents()[1]);
        let all = self.local();
        let [rows, columns] = [self.layout.axis(0), self.layout.axis(1)];
        let [to_rows, to_columns] = [to.layout.axis(0), to.layout.axis(1)];
        for run in rows.runs_of(place[0], 0..self.own[0]) {
            for first in (0..run.count).step_by(most) {
                let count = most.min(run.count - first);
                // Where these rows are as columns.
                let global = run.global + first;
                let pieces: Vec<_> = to_columns.runs(global..global + count).collect();
                for left in (0..self.own[1]).step_by(LINES) {
                    let width = LINES.min(self.own[1] - left);
                    let corner = (run.local + first + self.ghost[0]) * pitch + left + self.ghost[1];
                    for row in 0..count {
                        let line = &all[corner + row * pitch..][..width];
                        line.iter().enumerate().for_each(|(column, element)| tile[column * most + row] = *element);
                    }
                    for column in 0..width {
                        let (part, local) = to_rows.locate(columns.global(place[1], left + column));
                        let line = &tile[column * most..][..count];
                        for piece in &pieces {
                            let (rank, at) = to.spot([part, piece.part], [local, piece.local]);
                            let from = piece.global - global;
                            to.memory.put_slice(rank, at, &line[from..from + piece.count])?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
