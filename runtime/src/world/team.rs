//! The team of all ranks.

use std::rc::Rc;

use super::World;
use crate::error::Result;
use crate::team::{Left, Team};

/// The team of all ranks, as [`World::set_state`] keeps it.
pub(super) struct Everyone {
    team: Team,
    /// Teams that were dropped before their collectives were done.
    _left: Rc<Left>,
}

impl Team {
    /// The team of all ranks. The first call is collective over the world: it allocates the workspace.
    ///
    /// # Errors
    /// As [`World::alloc`].
    #[track_caller]
    pub fn world(world: &World) -> Result<Team> {
        world.within("Team::world", || {
            if let Some(everyone) = world.state::<Everyone>() {
                return Ok(everyone.team.clone());
            }
            let engine = world.engine();
            let block = world.allocate(Team::workspace(engine), "Team::world")?;
            let (offset, left) = (block.offset, Rc::new(Left::default()));
            // SAFETY: a block of so many zeroed bytes, at the same offset in every slot, at the start of a line. No pointer reaches it,
            // and it is given back when it is dropped.
            let team = unsafe { Team::of_all(engine, offset, Box::new(block), &left) };
            world.set_state(Everyone { team: team.clone(), _left: left });
            Ok(team)
        })
    }
}
