//! The two phases of an array, and the way from one to the other.

use bellwether_runtime::{Pod, Reach, Result, World};

use super::GlobalArray;
use super::index::Region;
use super::relayout::Part;
use super::tables::Tables;

mod sealed {
    use bellwether_runtime::{Pod, Result, World};

    use super::super::index::Region;
    use super::super::relayout::Part;
    use super::{GlobalArray, Phase};

    pub trait Sealed: Sized {
        /// This rank's elements of a box, for a collective that copies them.
        fn part<T: Pod, const D: usize>(array: &GlobalArray<T, D, Self>, region: Region<D>) -> Part<'_, T, D>
        where
            Self: Phase;

        /// Returns when what any rank put before is there. Collective.
        fn settle(world: &World) -> Result<()>;
    }
}

/// A phase of an array: [`Local`] or [`Shared`].
pub trait Phase: sealed::Sealed {
    /// Its name, for people.
    const NAME: &'static str;
}

/// Each rank has its own part as a slice, and no other rank can access it.
#[derive(Debug, Clone, Copy)]
pub enum Local {}

/// Everyone may put, get and change elements atomically.
#[derive(Debug, Clone, Copy)]
pub enum Shared {}

impl sealed::Sealed for Local {
    fn part<T: Pod, const D: usize>(array: &GlobalArray<T, D>, region: Region<D>) -> Part<'_, T, D> {
        Part::borrowed(array, region)
    }

    fn settle(_: &World) -> Result<()> {
        Ok(())
    }
}

impl sealed::Sealed for Shared {
    fn part<T: Pod, const D: usize>(array: &GlobalArray<T, D, Shared>, region: Region<D>) -> Part<'_, T, D> {
        Part::read(array, region)
    }

    fn settle(world: &World) -> Result<()> {
        world.barrier()
    }
}

impl Phase for Local {
    const NAME: &'static str = "local";
}

impl Phase for Shared {
    const NAME: &'static str = "shared";
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// Lets everyone reach all elements. Collective; when it returns every rank has given up its slice.
    ///
    /// # Errors
    /// Then the array is gone. [`Error::RanksDiffer`](crate::Error::RanksDiffer) if a rank is in another collective call or
    /// shares another array; as [`World::barrier`].
    #[track_caller]
    pub fn share(mut self, world: &World) -> Result<GlobalArray<T, D, Shared>> {
        world.within("share", || {
            if D > 1 && self.tables.is_none() {
                *self.tables = Tables::new(&self.memory, &self.layout, &self.ghost);
            }
            if D == 1 {
                self.flat.join(&self.memory, self.layout.axis(0), self.ghost[0]);
            }
            // Writes through the slice come before the barrier in this call.
            world.change_reach(&self.memory, Reach::Pointers)?;
            Ok(self.in_phase())
        })
    }
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Shared> {
    /// Gives each rank its part for itself. Collective; when it returns every rank has called it, what was put before is
    /// there, and pointers to the array are stale. Futures of the array give what they have asked for by then; one that has
    /// more to ask for gives [`Error::PhaseOver`](crate::Error::PhaseOver), and leaves the array alone.
    ///
    /// # Errors
    /// As [`GlobalArray::share`].
    #[track_caller]
    pub fn localize(self, world: &World) -> Result<GlobalArray<T, D, Local>> {
        world.within("localize", || {
            world.change_reach(&self.memory, Reach::Handle)?;
            Ok(self.in_phase())
        })
    }
}
