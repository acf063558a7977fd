//! The team of all ranks, and what teams do for the world's own calls.

use std::rc::Rc;

use bytemuck::Zeroable;

use super::World;
use crate::engine::Running;
use crate::error::Result;
use crate::memory::layout::LINE;
use crate::team::exchange::{BOARD, Wanted};
use crate::team::last;
use crate::team::title::{Asked, Kind};
use crate::team::{Left, OfWorld, Team};

/// The team of all ranks, as [`World::set_state`] keeps it.
pub(super) struct Everyone {
    team: Team,
    /// What does the world's own calls.
    own: OfWorld,
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
            let running = world.begin("Team::world")?;
            world.make_everyone(&running).map(|everyone| everyone.team.clone())
        })
    }
}

/// Tells the others if a panic takes this rank out of a call before its part that teams do.
struct LeftBehind(Option<Rc<Everyone>>);

impl Drop for LeftBehind {
    fn drop(&mut self) {
        if let Some(everyone) = self.0.take_if(|_| std::thread::panicking()) {
            everyone.own.leave_behind();
        }
    }
}

/// What a rank says before a part that teams do: no workspace yet, ready, or a call has failed there.
const NONE: u8 = 0;
const READY: u8 = 1;
const BROKEN: u8 = 2;

impl World {
    /// Whether teams do a call on so many bytes: those that no board holds, and those that the settings force an algorithm for.
    #[inline]
    pub(super) fn goes_by_team<A: Default + PartialEq>(&self, algorithm: A, bytes: usize) -> bool {
        self.size() > 1 && (bytes > BOARD || algorithm != A::default())
    }

    /// A collective call that teams do, when all ranks are known to be in it.
    pub(super) fn by_team<R>(&self, asked: Asked, call: impl FnOnce(&OfWorld) -> Result<R>) -> Result<R> {
        let running = self.begin("a collective call")?;
        let known = self.state::<Everyone>();
        let mine = known.as_ref().map_or(NONE, |known| if known.own.is_broken() { BROKEN } else { READY });
        let mut worst = mine;
        let mut left_behind = LeftBehind(known);
        self.exchange_within(&running, (asked, Wanted::Equal), &[mine], |_, theirs: &[u8]| {
            worst = worst.max(theirs[0]);
        })?;
        let everyone = match left_behind.0.clone() {
            Some(known) => known,
            None => self.make_everyone(&running)?,
        };
        if worst == BROKEN {
            everyone.own.renew();
            self.barrier.enter(&running, &self.engine, 0)?;
        }
        left_behind.0 = None;
        call(&everyone.own)
    }

    /// What this rank's teams did last, as words to add up.
    pub(super) fn sums_of_teams(&self) -> last::Sums {
        self.state::<Everyone>().map_or_else(last::Sums::default, |everyone| everyone.own.sums())
    }

    /// Shows all ranks what this one's teams did last, where the sum over all ranks was `sums`. Part of the collective call `running`.
    ///
    /// # Errors
    /// [`crate::Error::RanksDiffer`] if members of a team did different things.
    #[cold]
    pub(super) fn compare_teams(&self, running: &Running<'_>, sums: last::Sums) -> Result<()> {
        let mine = self.state::<Everyone>().map_or_else(Zeroable::zeroed, |everyone| everyone.own.last());
        let mut all: Vec<last::Shown> = Vec::new();
        self.exchange_within(running, (Kind::Finish, Wanted::All), bytemuck::bytes_of(&mine), |_, theirs: &[u8]| {
            all.push(bytemuck::pod_read_unaligned(theirs));
        })?;
        last::compare(&all, sums[0] != 0)
    }

    /// Allocates the workspace, as a part of the collective call `running`.
    #[cold]
    fn make_everyone(&self, running: &Running<'_>) -> Result<Rc<Everyone>> {
        let block = self.allocate_within(running, Kind::Allocate.into(), Team::workspace(&self.engine), LINE)?;
        let (offset, left) = (block.offset, Rc::new(Left::default()));
        // SAFETY: a block of so many zeroed bytes, at the same offset in every slot, at the start of a line. No pointer reaches it,
        // and it is given back when it is dropped.
        let (team, own) = unsafe { Team::of_all(&self.engine, offset, Box::new(block), &left) };
        self.set_state(Everyone { team, own, _left: left });
        Ok(self.state::<Everyone>().expect("just set"))
    }
}
