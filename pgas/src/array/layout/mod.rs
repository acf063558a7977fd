//! Where the elements of an array live: a plain value that maps global indices to ranks and back.

mod axis;
mod divide;
mod grid;

use bellwether_runtime::{Error, Placed, Result};

pub(crate) use self::axis::{Axis, Run, Stretch};
pub use self::grid::near_square;

use super::index::{Position, Region, volume};

const OPERATION: &str = "a layout";

/// How the indices of one dimension are dealt out among the ranks along it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Distribution {
    /// Each has neighbouring indices; the numbers differ by one at most.
    Block,
    /// Index `i` belongs to part `i mod parts`.
    Cyclic,
    /// Blocks of this many indices are dealt out in turn.
    BlockCyclic(usize),
    /// Each has neighbouring indices, as many as its weight asks for. A weight may be zero.
    Uneven(Vec<f64>),
    /// Each part has neighbouring indices, as many as its number says. A number may be zero.
    Sizes(Vec<usize>),
}

/// Where the elements of a `D`-dimensional array live.
///
/// Each dimension is distributed for itself along one side of a grid of ranks; the ranks are numbered through the grid
/// as elements through an array, the last dimension fastest. A layout is a value: making one is local, and costs memory
/// for weights only. Equal layouts have every element at the same place. Layouts that are described in different ways count as
/// different, even if their places are the same, except in dimensions that one rank has alone.
///
/// # Examples
/// ```
/// use bellwether::array::{Distribution, Layout};
/// let layout = Layout::new([10, 6], [Distribution::Block, Distribution::Cyclic], 4)?;
/// assert_eq!(layout.grid(), [2, 2]);
/// // Row 7 is in the lower half, column 3 in the odd one.
/// assert_eq!(layout.rank_of([7, 3]), Some(3));
/// assert_eq!(layout.extents_at(3), [5, 3]);
/// # Ok::<(), bellwether::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Layout<const D: usize> {
    axes: [Axis; D],
}

impl<const D: usize> Layout<D> {
    /// A layout over `ranks` ranks, on a grid as near to a square as can be ([`near_square`]); the number of weights
    /// or sizes of a dimension fixes that side.
    ///
    /// # Errors
    /// As [`Layout::on_grid`]; as [`near_square`].
    #[track_caller]
    pub fn new(extents: [usize; D], distributions: [Distribution; D], ranks: usize) -> Result<Layout<D>> {
        let fixed = std::array::from_fn(|d| match &distributions[d] {
            Distribution::Uneven(weights) => weights.len(),
            Distribution::Sizes(sizes) => sizes.len(),
            _ => 0,
        });
        let grid = near_square(ranks, fixed).placed()?;
        Self::on_grid(extents, distributions, grid, ranks)
    }

    /// Blocks in every dimension, on a grid as near to a square as can be.
    ///
    /// # Errors
    /// As [`Layout::on_grid`].
    #[track_caller]
    pub fn block(extents: [usize; D], ranks: usize) -> Result<Layout<D>> {
        Self::new(extents, [const { Distribution::Block }; D], ranks)
    }

    /// Blocks of whole rows: the first dimension alone is distributed.
    ///
    /// # Errors
    /// As [`Layout::on_grid`].
    #[track_caller]
    pub fn rows(extents: [usize; D], ranks: usize) -> Result<Layout<D>> {
        let grid = std::array::from_fn(|d| if d == 0 { ranks } else { 1 });
        Self::on_grid(extents, [const { Distribution::Block }; D], grid, ranks)
    }

    /// Dealt out one by one in every dimension, on a grid as near to a square as can be.
    ///
    /// # Errors
    /// As [`Layout::on_grid`].
    #[track_caller]
    pub fn cyclic(extents: [usize; D], ranks: usize) -> Result<Layout<D>> {
        Self::new(extents, [const { Distribution::Cyclic }; D], ranks)
    }

    /// A layout of all four facts: the array's `extents`, how the indices of each dimension are dealt out
    /// (`distributions`), how many ranks there are along each dimension (`grid`), and how many in all (`ranks`, the product
    /// of the grid's sides; usually `world.size()`, and then a job of another size is an error here). Parts may be empty
    /// where there are fewer indices than ranks.
    ///
    /// # Examples
    /// ```
    /// use bellwether::array::{Distribution, Layout};
    /// let layout = Layout::on_grid(
    ///     [6, 10],                                                              // 6 rows, 10 columns
    ///     [Distribution::Uneven(vec![2.0, 1.0]), Distribution::BlockCyclic(2)], // of rows, of columns
    ///     [2, 3],                                                               // 2 rows of 3 ranks
    ///     6,
    /// )?;
    /// // Rank 4 is in the middle of the lower row: rows 4 and 5, columns 2, 3, 8 and 9.
    /// assert_eq!(layout.place_of(4), [1, 1]);
    /// assert_eq!(layout.extents_at(4), [2, 4]);
    /// assert_eq!(layout.rank_of([5, 8]), Some(4));
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], with both sides, for an extent of 0, more elements than can be counted, a grid that
    /// does not make up `ranks` ranks, blocks of 0, and weights that are not one for each part, negative, not finite,
    /// or all zero, and sizes that are not one for each part or do not sum to the extent.
    #[track_caller]
    pub fn on_grid(
        extents: [usize; D],
        distributions: [Distribution; D],
        grid: [usize; D],
        ranks: usize,
    ) -> Result<Layout<D>> {
        (|| -> Result<Layout<D>> {
            const { assert!(D >= 1 && D <= 3, "arrays have 1, 2 or 3 dimensions") };
            let wrong = |why| Err(Error::InvalidArgument { operation: OPERATION, why });
            if extents.contains(&0) {
                return wrong(format!("extents {extents:?}: every extent is at least 1"));
            }
            if volume(&extents).is_none_or(|all| all > isize::MAX as usize) {
                return wrong(format!("extents {extents:?} are more elements than can be counted"));
            }
            if volume(&grid) != Some(ranks) || ranks == 0 {
                return wrong(format!("the grid {grid:?} does not have as many places as there are ranks, {ranks}"));
            }
            for (d, distribution) in distributions.iter().enumerate() {
                match distribution {
                    Distribution::BlockCyclic(0) => return wrong(format!("dimension {d}: blocks of 0 indices")),
                    Distribution::Uneven(weights) if weights.len() != grid[d] => {
                        return wrong(format!("dimension {d}: {} weights for {} parts", weights.len(), grid[d]));
                    }
                    Distribution::Uneven(weights) => {
                        if let Some(bad) = weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
                            return wrong(format!(
                                "dimension {d}: a weight of {bad}; weights are finite, and not negative"
                            ));
                        }
                        if weights.iter().all(|weight| *weight == 0.0) {
                            return wrong(format!("dimension {d}: {} weights, and all are zero", weights.len()));
                        }
                    }
                    Distribution::Sizes(sizes) => {
                        let sum = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
                        if sizes.len() != grid[d] || sum != Some(extents[d]) {
                            let (count, parts, extent) = (sizes.len(), grid[d], extents[d]);
                            let sum = sum.map_or("more than there can be".into(), |sum| sum.to_string());
                            return wrong(format!(
                                "dimension {d}: {count} sizes that sum to {sum}, for {parts} parts of {extent} indices"
                            ));
                        }
                    }
                    _ => {}
                }
            }
            let axes = std::array::from_fn(|d| match &distributions[d] {
                Distribution::Block => Axis::block(extents[d], grid[d]),
                Distribution::Cyclic => Axis::cyclic(extents[d], grid[d]),
                Distribution::BlockCyclic(block) => Axis::block_cyclic(extents[d], grid[d], *block),
                Distribution::Uneven(weights) => Axis::uneven(extents[d], weights),
                Distribution::Sizes(sizes) => Axis::sized(sizes),
            });
            Ok(Layout { axes })
        })()
        .placed_here()
    }

    /// The layout of the transposed array: dimensions in reverse, on the reversed grid.
    pub fn reversed(&self) -> Layout<D> {
        let mut axes = self.axes.clone();
        axes.reverse();
        Layout { axes }
    }

    /// Elements in each dimension.
    pub fn extents(&self) -> [usize; D] {
        std::array::from_fn(|d| self.axes[d].extent())
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        self.axes.iter().map(Axis::extent).product()
    }

    /// Never: every extent is at least 1.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ranks in each dimension.
    pub fn grid(&self) -> [usize; D] {
        std::array::from_fn(|d| self.axes[d].parts())
    }

    /// Ranks in all.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(Axis::parts).product()
    }

    /// The place of `rank` in the grid.
    ///
    /// # Panics
    /// If there is no such rank.
    #[track_caller]
    pub fn place_of(&self, rank: usize) -> [usize; D] {
        assert!(rank < self.ranks(), "rank {rank} of {}", self.ranks());
        let mut rest = rank;
        let mut place = [0; D];
        for d in (0..D).rev() {
            place[d] = rest % self.axes[d].parts();
            rest /= self.axes[d].parts();
        }
        place
    }

    /// The rank at a place of the grid; `None` if there is no such place.
    pub fn rank_at(&self, place: [usize; D]) -> Option<usize> {
        (0..D).try_fold(0, |rank, d| (place[d] < self.axes[d].parts()).then(|| rank * self.axes[d].parts() + place[d]))
    }

    /// The rank that has an element; `None` if there is no such element.
    pub fn rank_of(&self, index: impl Position<D>) -> Option<usize> {
        self.locate(index).map(|(rank, _)| rank)
    }

    /// Rank of an element, and its place in that rank's memory with ghost layers of these widths.
    #[inline(always)]
    pub(super) fn place(&self, index: [usize; D], ghost: &[usize; D]) -> Option<(usize, usize)> {
        let (mut rank, mut at) = (0, 0);
        for (d, index) in index.into_iter().enumerate() {
            let axis = self.axis(d);
            if index >= axis.extent() {
                return None;
            }
            let (part, local) = axis.locate(index);
            if d > 0 {
                rank *= axis.parts();
                at *= axis.len(part) + 2 * ghost[d];
            }
            rank += part;
            at += local + ghost[d];
        }
        Some((rank, at))
    }

    /// The rank that has an element, and the element's index in that rank's part; `None` if there is no such element.
    pub fn locate(&self, index: impl Position<D>) -> Option<(usize, [usize; D])> {
        let (index, mut rank, mut local) = (index.position(), 0, [0; D]);
        for d in 0..D {
            if index[d] >= self.axes[d].extent() {
                return None;
            }
            let (part, at) = self.axes[d].locate(index[d]);
            (rank, local[d]) = (rank * self.axes[d].parts() + part, at);
        }
        Some((rank, local))
    }

    /// Elements of `rank` in each dimension.
    ///
    /// # Panics
    /// If there is no such rank.
    #[track_caller]
    pub fn extents_at(&self, rank: usize) -> [usize; D] {
        let place = self.place_of(rank);
        std::array::from_fn(|d| self.axes[d].len(place[d]))
    }

    /// The box of indices that `rank` has, which may be empty; `None` if they are not all neighbours, in each dimension.
    ///
    /// # Panics
    /// If there is no such rank.
    ///
    /// # Examples
    /// A loop shared out.
    /// ```
    /// # use bellwether::Layout;
    /// let layout = Layout::block([10], 3)?;
    /// assert_eq!([0, 1, 2].map(|rank| layout.box_at(rank).unwrap().range(0)), [0..4, 4..7, 7..10]);
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn box_at(&self, rank: usize) -> Option<Region<D>> {
        let (place, extents) = (self.place_of(rank), self.extents_at(rank));
        let start = std::array::from_fn(|d| self.axes[d].start(place[d]));
        self.axes.iter().all(Axis::is_contiguous).then_some(Region { start, extents })
    }

    /// The array's index of the element at `local` of the part of `rank`; `None` if that has no such element.
    ///
    /// # Panics
    /// If there is no such rank.
    #[track_caller]
    pub fn global(&self, rank: usize, local: impl Position<D>) -> Option<[usize; D]> {
        let (place, local) = (self.place_of(rank), local.position());
        let inside = (0..D).all(|d| local[d] < self.axes[d].len(place[d]));
        inside.then(|| std::array::from_fn(|d| self.axes[d].global(place[d], local[d])))
    }

    /// The elements of `rank` in the box `region`, which is inside, as a box of its own part.
    pub(super) fn locals(&self, rank: usize, region: Region<D>) -> Region<D> {
        let place = self.place_of(rank);
        std::array::from_fn(|d| self.axes[d].locals(place[d], region.range(d))).into()
    }

    /// The same, with neighbouring indices in each part of one dimension.
    pub(super) fn in_blocks(&self, d: usize) -> Layout<D> {
        let mut axes = self.axes.clone();
        axes[d] = Axis::block(axes[d].extent(), axes[d].parts());
        Layout { axes }
    }

    /// For an array of the same extents: every line along one dimension at one rank, and on no rank more of them than need
    /// be. Of more than one dimension.
    pub(super) fn whole_along(&self, along: usize) -> Layout<D> {
        let (extents, ranks) = (self.extents(), self.ranks());
        // The same one, of two dimensions.
        let first = usize::from(along == 0);
        let last = if along == D - 1 { D - 2 } else { D - 1 };
        let grid = |side: usize| {
            let mut grid = [1; D];
            grid[first] *= side;
            grid[last] *= ranks / side;
            grid
        };
        let most = |grid: &[usize; D]| {
            let counts = (0..D).filter(|d| *d != along).map(|d| extents[d].div_ceil(grid[d]));
            counts.product::<usize>()
        };
        let grids = grid::divisors(ranks).into_iter().rev().map(grid);
        let grid = grids.min_by_key(most).expect("1 divides every number");
        Layout { axes: std::array::from_fn(|d| Axis::block(extents[d], grid[d])) }
    }

    #[inline(always)]
    pub(crate) fn axis(&self, d: usize) -> &Axis {
        &self.axes[d]
    }

    /// # Errors
    /// [`Error::InvalidArgument`], with both layouts, if they are not equal.
    pub(crate) fn check_same(&self, other: &Layout<D>, operation: &'static str) -> Result<()> {
        if self == other {
            return Ok(());
        }
        let why = format!("arrays of different layouts combined: {self} and {other}; bring one to the other's layout");
        Err(Error::InvalidArgument { operation, why })
    }
}

impl<const D: usize> std::fmt::Display for Layout<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules: Vec<String> = self.axes.iter().map(Axis::describe).collect();
        write!(f, "{:?} elements on a grid of {:?} ranks ({})", self.extents(), self.grid(), rules.join(" x "))
    }
}

#[cfg(test)]
mod tests;
