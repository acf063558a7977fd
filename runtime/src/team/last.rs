//! The last collectives of teams, compared when all ranks leave: no later call would show a difference in a team's last call.
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
/// which have failed or have calls in flight.
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

/// This rank's record of its teams.
#[derive(Default)]
pub(super) struct Known {
    /// Teams that are not dropped.
    live: RefCell<Vec<Weak<Context>>>,
    /// The words of the dropped teams.
    sums: Cell<Sums>,
    /// The teams that were dropped last.
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
