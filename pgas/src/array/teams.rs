//! Teams of the ranks in a line of a layout's grid.

use bellwether_runtime::{Error, Result, Team};

use super::Layout;

const OPERATION: &str = "team_along";

impl<const D: usize> Layout<D> {
    /// The ranks whose places in the grid differ from this rank's in dimension `along` only, as a team: what
    /// `MPI_Cart_sub` gives for one dimension. In two dimensions `along = 1` gives the ranks that share a row of the
    /// grid, `along = 0` those that share a column. A member's number in the team is its place in that dimension.
    ///
    /// Collective over `all`, the team of all ranks of the layout, with the same layout and dimension. The new team
    /// occupies one team slot (see [`Team`]) until it is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a dimension that the layout does not have, or a team of another number of ranks
    /// than the layout's; as [`Team::split`].
    ///
    /// # Examples
    /// Sums over whole rows and columns of a matrix in blocks.
    /// ```
    /// use bellwether::array::{GlobalArray, Layout};
    /// use bellwether::{Sum, Team};
    /// # bellwether::threads(4, |world| {
    /// let layout = Layout::block([6, 8], world.size())?; // 2 x 2 ranks with 3 x 4 elements each
    /// let matrix = GlobalArray::from_fn(world, layout.clone(), |[i, j]| (10 * i + j) as u64)?;
    /// let all = Team::world(world)?;
    /// let (row, column) = (layout.team_along(&all, 1)?, layout.team_along(&all, 0)?);
    ///
    /// let [rows, columns] = matrix.local_extents();
    /// let (mut of_rows, mut of_columns) = (vec![0; rows], vec![0; columns]);
    /// for [i, j] in matrix.interior() {
    ///     let element = matrix.local()[i * columns + j];
    ///     of_rows[i] += element;
    ///     of_columns[j] += element;
    /// }
    /// row.allreduce(&mut of_rows, Sum)?; // over the ranks that have parts of the same rows
    /// column.allreduce(&mut of_columns, Sum)?;
    ///
    /// let [i, j] = matrix.global([0, 0]).expect("every rank has elements");
    /// assert_eq!(of_rows[0], (80 * i + 28) as u64);
    /// assert_eq!(of_columns[0], (150 + 6 * j) as u64);
    /// # Ok(()) })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn team_along(&self, all: &Team, along: usize) -> Result<Team> {
        let refuse = |why| Err(Error::InvalidArgument { operation: OPERATION, why });
        if along >= D {
            return refuse(format!("there is no dimension {along}, they are 0 to {}: {self}", D - 1));
        }
        if all.size() != self.ranks() {
            return refuse(format!(
                "the team has {} ranks, and the layout is for {}: {self}",
                all.size(),
                self.ranks()
            ));
        }
        let mut first = self.place_of(all.rank());
        let place = std::mem::take(&mut first[along]);
        let colour = self.rank_at(first).expect("a place of the grid") as u64;
        Ok(all.split(Some(colour), place as i64)?.expect("this rank has a colour"))
    }
}
