//! A whole array at one rank: dealt out from there, and brought together there.

use bellwether_runtime::{Error, Pod, Result, Team, World};

use super::index::{Region, offset};
use super::{GlobalArray, Layout, Local};

impl<T: Pod, const D: usize> GlobalArray<T, D> {
    /// An array, in the local phase, of the elements that rank `root` has, in the order of their indices. Collective as
    /// [`GlobalArray::new`]; elsewhere `values` are not looked at. The root puts each rank's part there.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// // What one rank has read, say.
    /// let read = (world.rank() == 0).then(|| (0..10).collect::<Vec<u32>>());
    /// let mut numbers = GlobalArray::from_root(world, Layout::block([10], world.size())?, 0, read.as_deref())?;
    /// numbers.update(|number| *number *= 2);
    /// let all = numbers.to_root(world, 0)?;
    /// assert_eq!(all.is_some(), world.rank() == 0);
    /// assert!(all.is_none_or(|all| all[9] == 18));
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], on all ranks, for a root that is none, or that gives another number of elements; as
    /// [`GlobalArray::new`].
    #[track_caller]
    pub fn from_root(world: &World, layout: Layout<D>, root: usize, values: Option<&[T]>) -> Result<Self> {
        world.within("from_root", || {
            const OPERATION: &str = "from_root";
            check_root(world, OPERATION, root)?;
            let values = values.filter(|_| world.rank() == root);
            let mut given = [values.map_or(u64::MAX, |values| values.len() as u64)];
            world.broadcast(root, &mut given)?;
            if given != [layout.len() as u64] {
                let given = if given == [u64::MAX] { "no elements".into() } else { format!("{} elements", given[0]) };
                let why = format!("rank {root} gives {given} for an array of {}: {layout}", layout.len());
                return Err(Error::InvalidArgument { operation: OPERATION, why });
            }
            let array = Self::new(world, layout)?;
            if let Some(values) = values {
                array.put_region(Region { start: [0; D], extents: array.extents() }, values)?;
            }
            array.meet(world)?;
            Ok(array)
        })
    }
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// All elements, in the order of their indices, at rank `root`; `None` elsewhere. Collective.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a root that is none; as [`Team::alltoallv`].
    #[track_caller]
    pub fn to_root(&self, world: &World, root: usize) -> Result<Option<Vec<T>>> {
        world.within("to_root", || {
            check_root(world, "to_root", root)?;
            world.check_own(&self.memory, "to_root")?;
            let mine: Vec<T> = self.lines().flat_map(|(_, line)| line.iter().copied()).collect();
            let mut counts = vec![0; world.size()];
            counts[root] = mine.len();
            let (parts, _) = Team::world(world)?.alltoallv(&mine, &counts)?;
            Ok((world.rank() == root).then(|| self.layout.in_order(parts)))
        })
    }
}

impl<const D: usize> Layout<D> {
    /// Turns the parts of all ranks, one after the other, into the order of the array's indices.
    fn in_order<T: Pod>(&self, parts: Vec<T>) -> Vec<T> {
        if self.axis(0).is_contiguous() && (1..D).all(|d| self.axis(d).parts() == 1) {
            return parts;
        }
        let (mut all, mut rest) = (vec![T::zeroed(); self.len()], parts.as_slice());
        for rank in 0..self.ranks() {
            let (place, extents) = (self.place_of(rank), self.extents_at(rank));
            for line in (Region { start: [0; D], extents }).lines() {
                let mut index = std::array::from_fn(|d| self.axis(d).global(place[d], line[d]));
                for run in self.axis(D - 1).runs_of(place[D - 1], 0..extents[D - 1]) {
                    index[D - 1] = run.global;
                    let (piece, after) = rest.split_at(run.count);
                    all[offset(&self.extents(), &index)..][..run.count].copy_from_slice(piece);
                    rest = after;
                }
            }
        }
        all
    }
}

fn check_root(world: &World, operation: &'static str, root: usize) -> Result<()> {
    if root < world.size() {
        return Ok(());
    }
    let why = format!("rank {root} of a world of {}", world.size());
    Err(Error::InvalidArgument { operation, why })
}
