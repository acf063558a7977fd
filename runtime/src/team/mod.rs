//! Teams: groups of ranks, and the collectives that their members do together.

mod allgather;
mod allocate;
mod allreduce;
mod alltoall;
mod barrier;
mod broadcast;
mod by_nodes;
mod calls;
mod checked;
mod context;
mod dissemination;
pub(crate) mod everyone;
pub(crate) mod exchange;
mod head;
mod hub;
pub(crate) mod last;
mod lines;
mod meeting;
mod nodes;
mod of_world;
mod operator;
mod queue;
mod record;
mod reduce;
mod scan;
pub(crate) mod see;
pub(crate) mod title;
mod value;
mod workspace;

use std::any::Any;
use std::rc::Rc;

use crate::bounds::OneThread;
use crate::engine::Engine;
use crate::error::{CalledAt, Error, Placed, Result};
use crate::hash::mix;
use crate::settings::Collectives;

pub use self::operator::{And, Max, Min, Operator, Or, Product, Sum, Xor};
pub use self::queue::Pending;

pub(crate) use self::allocate::Allocation;
pub(crate) use self::hub::Left;
pub(crate) use self::of_world::OfWorld;
pub(crate) use self::operator::CLOSURE;

use self::context::Context;
use self::head::{Head, Kind};
use self::hub::Hub;
use self::queue::Shared;

/// Some of the world's ranks, numbered from 0, that do collectives together.
///
/// A team of all ranks comes from [`Team::world`], smaller ones from [`split`](Team::split) and [`subset`](Team::subset) of
/// a team. Making one is collective over the team it is made from, and allocates nothing: its members agree on a slot of
/// the workspace that every rank took once, of `BELLWETHER_TEAM_MEMORY` bytes for each of `BELLWETHER_TEAMS` teams, and
/// `BELLWETHER_WORLD_TEAM_MEMORY` for that of all ranks, however many ranks there are. A clone is the same team. When a
/// member drops its last clone its slot is free there, once the collectives that it began are done: they go on by
/// themselves, in every poll and wait. That of a team whose collective has failed is not free again.
///
/// Every collective has a blocking form and a future form (`_async`), which owns its buffers; the latter are begun when they are
/// called, go on side by side for different teams, and are done in order of their start on one team. All are collective over the
/// team: every member makes the same calls with equal lengths, types, roots and operators, in the same order. Members that do not
/// get an error with both sides' calls and their places: at once if messages show the difference, and on mapped memory after some
/// 20 ms of waiting. If closures differ, the next collective of the team reports it. A team whose collective has failed is not
/// used again.
///
/// Reductions combine along one fixed binary tree over the ranks: the same number of members gives the same bits, whichever
/// algorithm is used ([`Collectives`], `BELLWETHER_ALLREDUCE` and others force one), and wherever its ranks run. On several
/// nodes, algorithms are chosen by which members share one; a team's workspace is then parted in three.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::{Max, Sum, Team};
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(4, |world| {
/// let all = Team::world(world)?;
/// let mut sums = [1.0, all.rank() as f64];
/// all.allreduce(&mut sums, Sum)?;
/// assert_eq!(sums, [4.0, 6.0]);
///
/// let half = all.split(Some(all.rank() as u64 / 2), 0)?.expect("everyone has a colour");
/// let largest = half.allreduce_async(vec![world.rank()], Max); // Under way ...
/// let sum = all.allreduce_async(vec![world.rank()], |a, b| a + b); // ... beside this one.
/// assert_eq!(sum.wait()?, [6]);
/// assert_eq!(largest.wait()?, [half.world_rank(1)?]);
/// # Ok::<(), bellwether::Error>(())
/// # })?.into_iter().collect() }
/// ```
#[derive(Clone)]
pub struct Team {
    shared: OneThread<Rc<Shared>, Team>,
}

/// How often members agree on slots while none is free, but collectives of dropped teams are in flight.
const ATTEMPTS: u32 = 100;

impl Team {
    /// Bytes of the workspace of all teams, at each rank.
    pub(crate) fn workspace(engine: &Engine) -> usize {
        Hub::bytes(engine)
    }

    /// The team of all ranks, and the part that does the world's own calls. Teams that are dropped while their collectives are
    /// in flight go on in `left`.
    ///
    /// # Safety
    /// [`Team::workspace`] bytes at `offset` of every slot start at a cache line, are zero, are used for nothing else, and are there
    /// as long as `memory` lives.
    pub(crate) unsafe fn of_all(
        engine: &Rc<Engine>,
        offset: usize,
        memory: Box<dyn Any>,
        left: &Rc<Left>,
    ) -> (Team, OfWorld) {
        // SAFETY: as the caller guarantees.
        let hub = unsafe { Hub::new(engine, offset, memory, left) };
        let own = OfWorld::new(&hub);
        (Team { shared: OneThread::new(Rc::new(Shared::new(Context::of_all(&hub)))) }, own)
    }

    /// This rank's number in the team, from 0.
    pub fn rank(&self) -> usize {
        self.context().rank
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.context().size()
    }

    /// The world's number of a member.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such member.
    #[track_caller]
    pub fn world_rank(&self, rank: usize) -> Result<usize> {
        let members = &self.context().members;
        let member = members.get(rank).map(|rank| *rank as usize).ok_or_else(|| Error::InvalidArgument {
            operation: "world_rank",
            why: checked::outside(rank, self.size()),
        });
        member.placed()
    }

    /// The number in the team of a rank of the world, if it is a member.
    pub fn team_rank(&self, world_rank: usize) -> Option<usize> {
        self.context().members.iter().position(|rank| *rank as usize == world_rank)
    }

    /// The members' numbers in the world, in order.
    pub fn world_ranks(&self) -> impl ExactSizeIterator<Item = usize> {
        self.context().members.iter().map(|rank| *rank as usize)
    }

    /// The same team with these algorithms, for all its clones. Local; every member must use the same.
    pub fn set_algorithms(&self, algorithms: Collectives) {
        self.context().algorithms.set(algorithms);
    }

    /// Members with equal colours become a team, in the order of their keys, and of their ranks where keys are equal.
    /// `None`: this rank will be in none of them. Collective over this team.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], on all members of a new team, if one of them is in as many teams as there are slots; as
    /// [`Team::barrier`].
    #[track_caller]
    pub fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Team>> {
        self.part(Head::new::<()>(Kind::Split, 0), colour, key)
    }

    /// The members that share a node ([`World::node_of`](crate::World::node_of)) become a team, in their order. Collective over this
    /// team.
    ///
    /// # Errors
    /// As [`Team::split`].
    #[track_caller]
    pub fn split_by_node(&self) -> Result<Team> {
        let team = self.part(Head::new::<()>(Kind::Split, 1), Some(self.context().node() as u64), 0)?;
        Ok(team.expect("this rank has a colour"))
    }

    /// The members with these ranks, of this team, become a team, in the order of the list. Collective over this team,
    /// with the same list. `None` where this rank is not on it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty list, a rank outside the team, or one that comes twice; as
    /// [`Team::split`].
    #[track_caller]
    pub fn subset(&self, ranks: &[usize]) -> Result<Option<Team>> {
        let kind = Kind::Subset;
        let places = match self.places(ranks) {
            Ok(places) => places,
            Err(why) => {
                return self.shared.run(kind.doing(), async { Err(self.context().refuse(kind.doing(), why)) });
            }
        };
        // Lists that differ have different numbers, but for one in 2^32.
        let number = (ranks.iter().fold(0, |digest, rank| mix(digest, *rank as u64)) >> 32) as u32;
        let place = places[self.rank()];
        let head = Head::new::<()>(kind, ranks.len()).root(number as usize);
        self.part(head, place.map(|_| 0), place.unwrap_or(0) as i64)
    }

    /// Agrees on the new teams, and on a slot for each: the lowest that all its members have free, as MPI libraries agree
    /// on context ids.
    #[track_caller]
    fn part(&self, head: Head, colour: Option<u64>, key: i64) -> Result<Option<Team>> {
        let context = self.context();
        let hub = &context.hub;
        let mut all = vec![[0u64; 5]; self.size()];
        for attempt in 1.. {
            let body = async {
                // Slots of teams that were dropped come back when their collectives are done. A barrier of such a
                // collective begins only when no put of this rank is in flight; attempts without a pause would keep
                // puts in flight for ever.
                if attempt > 1 {
                    hub.quiet(Kind::Split.doing()).await?;
                }
                let waits = u64::from(hub.left().is_some_and(|left| left.go_on()));
                let mine = [[u64::from(colour.is_some()), colour.unwrap_or(0), key as u64, hub.free(), waits]];
                context.collective(head, "", allgather::allgather(context, &mine, &mut all)).await
            };
            self.shared.run(Kind::Split.doing(), body)?;
            // All see the same, and go on alike.
            if attempt == ATTEMPTS || !lacks_slots(&all) || all.iter().all(|member| member[4] == 0) {
                break;
            }
        }
        let Some(colour) = colour else { return Ok(None) };
        let mut members: Vec<usize> = (0..all.len()).filter(|rank| all[*rank][..2] == [1, colour]).collect();
        members.sort_by_key(|rank| all[*rank][2] as i64);
        let free = members.iter().fold(u64::MAX, |free, rank| free & all[*rank][3]);
        if free == 0 {
            let limit = hub.engine.settings.teams;
            return Err(Error::OutOfMemory {
                what: "teams (their number, not bytes)",
                asked: 1,
                free: 0,
                limit,
                setting: "BELLWETHER_TEAMS, or drop teams on all their members, when their collectives are done",
                place: CalledAt::default(),
            });
        }
        let rank = members.iter().position(|rank| *rank == context.rank).expect("this rank has this colour");
        let members = members.into_iter().map(|rank| context.members[rank]).collect();
        let new = context.of_part(free.trailing_zeros() as usize, members, rank);
        let team = Team { shared: OneThread::new(Rc::new(Shared::new(new))) };
        Ok(Some(team))
    }

    fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Where each member stands on a list, if it does; or what is wrong with the list.
    fn places(&self, ranks: &[usize]) -> std::result::Result<Vec<Option<usize>>, String> {
        if ranks.is_empty() {
            return Err(format!("the list of ranks is empty, of a team of {}", self.size()));
        }
        let mut places = vec![None; self.size()];
        for (place, rank) in ranks.iter().enumerate() {
            match places.get_mut(*rank) {
                None => return Err(checked::outside(*rank, self.size())),
                Some(Some(first)) => {
                    return Err(format!("rank {rank} is on the list twice, in places {first} and {place}"));
                }
                Some(free) => *free = Some(place),
            }
        }
        Ok(places)
    }
}

/// Whether one of the new teams finds no slot that all its members have free.
fn lacks_slots(all: &[[u64; 5]]) -> bool {
    let mut free = std::collections::BTreeMap::new();
    for member in all.iter().filter(|member| member[0] == 1) {
        *free.entry(member[1]).or_insert(u64::MAX) &= member[3];
    }
    free.values().any(|free| *free == 0)
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Team(member {} of {}, slot {})", self.rank(), self.size(), self.context().slot)
    }
}
