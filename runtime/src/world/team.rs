//! The team of all ranks, and what teams do for the world's own calls.

use std::rc::Rc;

use bytemuck::Zeroable;

use super::{PlainData, World};
use crate::engine::Running;
use crate::error::Result;
use crate::memory::layout::LINE;
use crate::team::exchange::BOARD;
use crate::team::last;
use crate::team::see::Wanted;
use crate::team::title::{Asked, Kind};
use crate::team::{Left, OfWorld, Operator, Pending, Team};

/// The team of all ranks, as [`World::set_state`] keeps it.
pub(super) struct Everyone {
    team: Team,
    /// The team part that does the world's own calls.
    pub(super) own: OfWorld,
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

/// The future forms: collectives of the team of all ranks ([`Team::world`]). Those of all ranks are done in the order of their start, together
/// with the calls of that team; they need no order with the world's blocking calls. A [`Pending`] can be tested
/// ([`is_done`](Pending::is_done)), waited for with a limit ([`wait_for`](Pending::wait_for)) as often as needed, and awaited. Several may be
/// under way. The first of them, or of [`Team::world`], is collective and blocks: it allocates the team's workspace.
///
/// # Errors
/// As [`Team::world`]; those of the collective come from the [`Pending`].
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::Error;
/// use std::time::Duration;
///
/// # bellwether::threads(3, |world| {
/// let mut sum = world.allreduce_async(vec![world.rank()], |a, b| a + b)?;
/// let all = world.allgather_async(vec![10 * world.rank()])?;
/// let sum = loop {
///     match sum.wait_for(Duration::from_millis(5)) {
///         // Do something useful, then go on.
///         Err(Error::TimedOut { .. }) => {}
///         outcome => break outcome?,
///     }
/// };
/// assert_eq!((sum, all.wait()?), (vec![3], vec![0, 10, 20]));
/// # Ok(())
/// # })?.into_iter().collect::<bellwether::Result<()>>()?;
/// # Ok::<(), Error>(())
/// ```
impl World {
    /// As [`World::barrier`]. Puts of this rank from before the call are in effect at all ranks when it is done.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn barrier_async(&self) -> Result<Pending<()>> {
        let team = Team::world(self)?;
        Ok(team.barrier_async())
    }

    /// As [`World::allreduce`]; gives the result.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn allreduce_async<T: PlainData>(
        &self,
        values: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<Pending<Vec<T>>> {
        let team = Team::world(self)?;
        Ok(team.allreduce_async(values, operator))
    }

    /// As [`World::broadcast`]; gives the root's values.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn broadcast_async<T: PlainData>(&self, root: usize, values: Vec<T>) -> Result<Pending<Vec<T>>> {
        let team = Team::world(self)?;
        Ok(team.broadcast_async(root, values))
    }

    /// As [`World::allgather`]; gives everyone's, in the order of the ranks.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn allgather_async<T: PlainData>(&self, mine: Vec<T>) -> Result<Pending<Vec<T>>> {
        let team = Team::world(self)?;
        Ok(team.allgather_async(mine))
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

/// The state that a rank reports before a part that teams do: no workspace yet, ready, or a call has failed there.
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

    /// The last collectives of this rank's teams, as words to add up.
    pub(super) fn sums_of_teams(&self) -> last::Sums {
        self.state::<Everyone>().map_or_else(last::Sums::default, |everyone| everyone.own.sums())
    }

    /// Shows all ranks the last collectives of this rank's teams, where the sum over all ranks was `sums`. Part of the collective call `running`.
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
    pub(super) fn make_everyone(&self, running: &Running<'_>) -> Result<Rc<Everyone>> {
        let bytes = Team::workspace(&self.engine);
        let block = self.allocate_within(running, Asked::data::<u8>(Kind::Allocate, bytes), bytes, LINE)?;
        let (offset, left) = (block.offset, Rc::new(Left::default()));
        // SAFETY: a block of so many zeroed bytes, at the same offset in every slot, at the start of a line. No pointer reaches it,
        // and it is given back when it is dropped.
        let (team, own) = unsafe { Team::of_all(&self.engine, offset, Box::new(block), &left) };
        self.set_state(Everyone { team, own, _left: left });
        Ok(self.state::<Everyone>().expect("just set"))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::error::Result;
    use crate::transport::sim;
    use crate::{Simulated, Team, Threads, World};

    /// The error that each rank gets when it leaves after `program`, with mapped memory and over networks; empty without an error.
    fn leaves(ranks: usize, program: impl Fn(&World, &Team) -> Result<()> + Sync) -> Vec<String> {
        let body = |world: &World| {
            program(world, &Team::world(world)?)?;
            world.last_barrier()
        };
        let mut told = Threads::new(ranks).deadline(Duration::from_secs(60)).run(body).expect("threads start");
        told.extend(Simulated::new(sim::Config::new(ranks, 1).wild()).run(body).expect("the job starts"));
        told.into_iter().map(|outcome| outcome.err().map_or_else(String::new, |error| error.to_string())).collect()
    }

    fn all_say(told: &[String], words: &[&str]) {
        assert!(told.iter().all(|told| words.iter().all(|word| told.contains(word))), "{words:?}: {told:#?}");
        // Both sides' places, which are not the same.
        let places: Vec<_> = told[0].split("world/team.rs:").skip(1).map(|place| &place[..3]).collect();
        assert!(places.len() >= 2 && places[0] != places[1], "{told:#?}");
    }

    /// An allreduce that differs in its closure.
    fn differs(team: &Team) -> Result<()> {
        let mut value = [team.rank() + 1];
        match team.rank() {
            0 => team.allreduce(&mut value, |a, b| a + b),
            _ => team.allreduce(&mut value, |a: usize, b| 7 + a.max(b)),
        }
    }

    #[test]
    fn a_last_call_that_differs_is_found_when_all_leave() {
        let root = |_: &World, team: &Team| match team.rank() {
            0 => team.broadcast(0, &mut [1u8]),
            _ => team.broadcast(1, &mut [1u8]),
        };
        all_say(&leaves(2, root), &["broadcast of 1 elements of type u8, root 0", "root 1"]);
        all_say(&leaves(2, |_, team| differs(team)), &["other results, of this or of", "of type usize by a closure"]);
    }

    #[test]
    fn what_dropped_teams_did_last_is_found_when_all_leave() {
        // Two of five ranks are in the team, and make others before and after it.
        let told = leaves(5, |_, team| {
            for round in 0..6 {
                let pair = team.split((team.rank() % 3 == 1).then_some(round), 0)?;
                if let Some(pair) = pair {
                    if round == 2 { differs(&pair)? } else { pair.barrier()? }
                }
            }
            team.barrier()
        });
        all_say(&told, &["other results, of this or of", "of type usize by a closure", "rank 4", "rank 1"]);
    }

    #[test]
    fn who_differs_rightly_leaves_well() {
        let told = leaves(3, |_, team| {
            let (mine, other) = (team.split(Some(0), 0)?.expect("of all"), team.split(Some(0), 0)?.expect("of all"));
            // Other results, at one place.
            let rank = team.rank();
            mine.allreduce(&mut [1usize], |a, b| a + b + rank)?;
            // The same result, at other places.
            match rank {
                0 => other.allreduce(&mut [1u8], |a, b| a + b)?,
                _ => other.allreduce(&mut [1u8], |a, b| b + a)?,
            }
            // Teams of some ranks only.
            if let Some(some) = team.subset(&[2, 0])? {
                some.broadcast(1, &mut [rank])?;
            }
            // One that is not done when a rank leaves.
            if rank == 1 {
                drop(other.barrier_async());
            }
            Ok(())
        });
        assert!(told.iter().all(String::is_empty), "{told:#?}");
    }
}
