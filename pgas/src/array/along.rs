//! Code that calls along one dimension of an array share.

use bellwether_runtime::{Error, Pod, Result, World};

use super::{GlobalArray, Local, check_alike};

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// # Errors
    /// [`Error::RanksDiffer`] if the ranks do not give the same axis, [`Error::InvalidArgument`] if there is no such one; on
    /// all ranks.
    pub(super) fn check_axis(&self, world: &World, operation: &'static str, axis: usize) -> Result<()> {
        world.check_own(&self.memory, operation)?;
        check_alike(world, "the axis", &axis, &format!("axis {axis}"))?;
        if axis < D {
            return Ok(());
        }
        let why = format!("axis {axis} of an array of {D} dimensions; axes are counted from 0");
        Err(Error::InvalidArgument { operation, why })
    }

    /// An array of zeros with the layout and the ghost layers of this one. Collective.
    pub(super) fn like(&self, world: &World) -> Result<GlobalArray<T, D>> {
        match &self.halo {
            Some(halo) => GlobalArray::with_ghosts(world, self.layout.clone(), halo.ghosts),
            None => GlobalArray::new(world, self.layout.clone()),
        }
    }

    /// A copy of this rank's own elements, in an array like this one. Collective.
    pub(super) fn copy(&self, world: &World) -> Result<GlobalArray<T, D>> {
        let mut copy = self.like(world)?;
        copy.lines_mut().zip(self.lines()).for_each(|((_, to), (_, from))| to.copy_from_slice(from));
        Ok(copy)
    }

    /// Extents of this rank's part, cut across an axis: one element for each of its lines.
    pub(super) fn across(&self, axis: usize) -> [usize; D] {
        let mut across = self.own;
        across[axis] = 1;
        across
    }
}
