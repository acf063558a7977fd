//! What teams did last, compared when all ranks leave: a difference in a team's last call shows in no later one.
//!
//! Each member adds up a word for each of its teams: the first member a digest of the team's calls as often as there are others, and
//! these the same digest negated. Where members agree, the sum over all ranks is 0. Only if it is not, ranks show each other their
//! calls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use bytemuck::{Pod, Zeroable};

use super::context::Context;
use super::exchange::BOARD;
use super::head::Head;
use super::title::Caller;
use crate::error::{Error, Result};
use crate::hash::mix;

/// Words that ranks add up: of calls; of results of reductions by closures, and of the places of these; teams that cannot tell,
/// which have failed or have calls under way.
pub(crate) type Sums = [u64; 4];

/// Teams that a rank remembers after they were dropped. Chosen: as many as fit on a board.
const KEPT: usize = 14;
const _: () = assert!(size_of::<Shown>() <= BOARD);

/// The last call of a team at one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Last {
    /// The team's number, the same at all members.
    team: u64,
    /// This member, and how many there are.
    member: u32,
    members: u32,
    head: Head,
    caller: Caller,
}

/// All that a rank shows of its teams; `team` is 0 where there are none.
pub(crate) type Shown = [Last; KEPT];

impl Last {
    pub(super) fn new(team: u64, [member, members]: [usize; 2], head: Head, caller: Caller) -> Last {
        Last { team, member: member as u32, members: members as u32, head, caller }
    }

    fn add_to(&self, sums: &mut Sums) {
        let weight = if self.member == 0 { u64::from(self.members) - 1 } else { u64::MAX };
        let [call, results, places] = self.head.digests();
        for (sum, digest) in sums.iter_mut().zip([call, results, places]) {
            *sum = sum.wrapping_add(weight.wrapping_mul(mix(self.team, digest)));
        }
    }
}

/// Whether sums over all ranks say that members of a team may differ.
pub(crate) fn may_differ([calls, results, places, unknown]: Sums) -> bool {
    unknown == 0 && (calls != 0 || (results != 0 && places != 0))
}

/// What this rank knows of its teams.
#[derive(Default)]
pub(super) struct Known {
    /// Teams that are not dropped.
    live: RefCell<Vec<Weak<Context>>>,
    /// The words of those that are.
    sums: Cell<Sums>,
    /// The last of them.
    dropped: RefCell<VecDeque<Last>>,
}

impl Known {
    pub(super) fn made(&self, context: &Rc<Context>) {
        let mut live = self.live.borrow_mut();
        live.retain(|team| team.strong_count() > 0);
        live.push(Rc::downgrade(context));
    }

    /// `None` of a team that cannot tell.
    pub(super) fn dropped(&self, last: Option<Last>) {
        let (mut sums, mut dropped) = (self.sums.get(), self.dropped.borrow_mut());
        match last {
            Some(last) => {
                last.add_to(&mut sums);
                dropped.truncate(KEPT - 1);
                dropped.push_front(last);
            }
            None => sums[3] += 1,
        }
        self.sums.set(sums);
    }

    fn live(&self) -> impl Iterator<Item = Option<Last>> {
        let live: Vec<_> = self.live.borrow().iter().filter_map(Weak::upgrade).collect();
        live.into_iter().map(|team| team.last())
    }

    pub(super) fn sums(&self) -> Sums {
        let mut sums = self.sums.get();
        for last in self.live() {
            match last {
                Some(last) => last.add_to(&mut sums),
                None => sums[3] += 1,
            }
        }
        sums
    }

    /// The last calls of the teams that were used last.
    pub(super) fn shown(&self) -> Shown {
        let mut shown = Shown::zeroed();
        let dropped = self.dropped.borrow();
        let all = self.live().flatten().chain(dropped.iter().copied());
        shown.iter_mut().zip(all).for_each(|(place, last)| *place = last);
        shown
    }
}

/// Compares what all ranks have shown, in their order. All find the same.
///
/// # Errors
/// [`Error::RanksDiffer`].
pub(crate) fn compare(all: &[Shown], calls_differ: bool) -> Result<()> {
    let shown = || all.iter().enumerate().flat_map(|(rank, shown)| shown.iter().map(move |last| (rank, last)));
    let of_team = |(_, last): &(usize, &Last)| last.team != 0;
    for (rank, last) in shown().filter(of_team) {
        let first = shown().find(|(_, other)| other.team == last.team).expect("this one, at the latest");
        if !last.head.agrees(first.1.head) {
            let side = |(rank, last): (usize, &Last)| (rank, last.head, last.caller);
            return Err(Head::differ(side((rank, last)), side(first), true));
        }
    }
    if !calls_differ {
        return Ok(());
    }
    let text = || format!("not among the last {KEPT} teams that each rank was in");
    Err(Error::RanksDiffer {
        what: "the last collective over a team",
        rank: 0,
        reference: 0,
        theirs: text(),
        ours: text(),
        advice: "every member must make the same collective calls with the same arguments, in the same order",
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::sim;
    use crate::{Simulated, Team, Threads, World};

    /// What each rank is told when it leaves after `program`, with mapped memory and over networks; empty where all is well.
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
        let places: Vec<_> = told[0].split("last.rs:").skip(1).map(|place| &place[..3]).collect();
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
