//! The same elements in another layout.

use bellwether_runtime::{Error, Pod, Reach, Result, World};

use super::index::Region;
use super::{GlobalArray, Layout, Local};

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// A new array of the same elements in another layout, without ghost layers. Collective. Each rank puts what it has
    /// to where it goes, piece by piece of what lies together in both layouts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the extents are not the same; as [`GlobalArray::new`].
    pub fn relayout(&self, world: &World, layout: Layout<D>) -> Result<GlobalArray<T, D>> {
        self.check_extents("relayout", layout.extents(), self.extents())?;
        world.check_own(&self.memory, "relayout")?;
        let to = GlobalArray::new(world, layout)?;
        self.put_all(&to)?;
        to.meet(world)?;
        Ok(to)
    }

    /// Copies all elements to an array of the same extents, in whatever layout, and gives that back. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::relayout`]; then the other array is gone.
    pub fn copy_into(&self, world: &World, to: GlobalArray<T, D>) -> Result<GlobalArray<T, D>> {
        self.check_extents("copy_into", to.extents(), self.extents())?;
        to.meet(world)?;
        self.put_all(&to)?;
        to.meet(world)?;
        Ok(to)
    }

    /// Waits until every rank does something to this array that begins or ends here, and all that was put into it is
    /// there. No rank has a slice of it meanwhile: each has taken the array in, and gives it back after the last meeting.
    pub(super) fn meet(&self, world: &World) -> Result<()> {
        world.change_reach(&self.memory, Reach::Handle)
    }

    fn put_all(&self, to: &GlobalArray<T, D>) -> Result<()> {
        let place = self.layout.place_of(self.rank);
        for (local, line) in self.lines() {
            let mut start: [usize; D] =
                std::array::from_fn(|d| self.layout.axis(d).global(place[d], local[d] - self.ghost[d]));
            for run in self.layout.axis(D - 1).runs_of(place[D - 1], 0..self.own[D - 1]) {
                start[D - 1] = run.global;
                let extents = std::array::from_fn(|d| if d == D - 1 { run.count } else { 1 });
                to.put_region(Region { start, extents }, &line[run.local..run.local + run.count])?;
            }
        }
        Ok(())
    }

    pub(super) fn check_extents(&self, operation: &'static str, to: [usize; D], wanted: [usize; D]) -> Result<()> {
        if to == wanted {
            return Ok(());
        }
        let why = format!("from {:?} elements to {to:?} elements; they must be {wanted:?}", self.extents());
        Err(Error::InvalidArgument { operation, why })
    }
}
