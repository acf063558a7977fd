//! The workspace of all teams of a rank: one slot for each team it is a member of.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use bellwether_runtime::{Background, Progress, Result, Symmetric, World};

use super::queue::Shared;

/// Buffers of a slot. They are used in turn; a member may be that many steps ahead of another.
pub(super) const DEPTH: usize = 4;
/// Signal words of one step: one for each round of an algorithm.
pub(super) const PORTS: usize = 32;
/// First signal word of the barrier's rounds.
pub(super) const BARRIER: usize = DEPTH * PORTS;
/// A node's barrier: that a member has come, at the head; and that all have, at the others.
pub(super) const UP: usize = BARRIER + PORTS - 2;
pub(super) const DOWN: usize = UP + 1;
/// First of the words that members count up together, one for each buffer and one for the barrier.
pub(super) const COUNTERS: usize = BARRIER + PORTS;
/// The counter of the central barrier.
pub(super) const ARRIVALS: usize = COUNTERS + DEPTH;
/// Signal words of a slot, whole cache lines.
const SIGNALS: usize = (ARRIVALS + 1).next_multiple_of(8);
/// Words of a slot's card.
pub(super) const CARD: usize = 64;
const LINE: usize = 64;

/// What all teams of a rank share. Its memory does not depend on how many ranks there are.
pub(super) struct Hub {
    pub(super) progress: Progress,
    pub(super) signals: Symmetric<u64>,
    pub(super) space: Symmetric<u8>,
    pub(super) cards: Symmetric<u64>,
    /// Bytes of one buffer of the team of all ranks, whose slot is the first, and of another team's.
    buffers: [usize; 2],
    /// Contexts in a team's slot: its own, and on several nodes those of its groups ([`super::nodes`]).
    levels: usize,
    /// Signals waited for so far, a word each. A slot that is free has had all its signals.
    seen: RefCell<Vec<u64>>,
    /// A bit for each slot that no team of this rank has.
    free: Cell<u64>,
    /// The world has them: they have this.
    left: Weak<Left>,
}

/// Teams that were dropped here before their collectives were done, which go on. They have their slots until then.
#[derive(Default)]
pub(super) struct Left {
    teams: RefCell<Vec<Shared>>,
    in_background: Cell<bool>,
}

impl Left {
    pub(super) fn keep(self: Rc<Self>, hub: &Hub, team: Shared) {
        self.teams.borrow_mut().push(team);
        if !self.in_background.replace(true) {
            hub.progress.add_background(Rc::downgrade(&(self as Rc<dyn Background>)));
        }
    }

    /// Goes on with them. Whether some are not done. Within a wait or a poll, as none comes back here from there.
    pub(super) fn go_on(&self) -> bool {
        // Out of their place meanwhile: what they call may drop teams.
        let mut teams = self.teams.take();
        teams.retain(Shared::goes_on);
        let mut added = self.teams.borrow_mut();
        teams.append(&mut added);
        *added = teams;
        !added.is_empty()
    }
}

impl Background for Left {
    fn advance(&self) -> bool {
        let goes_on = self.go_on();
        self.in_background.set(goes_on);
        goes_on
    }
}

impl Hub {
    /// The hub of this world; made at the first call, which is collective over the world.
    pub(super) fn of(world: &World) -> Result<Rc<Hub>> {
        if let Some(hub) = world.state::<Rc<Hub>>() {
            return Ok(Rc::clone(&hub));
        }
        let progress = world.progress();
        let settings = progress.settings();
        let (teams, memory) = (settings.teams, [settings.world_team_memory, settings.team_memory]);
        let levels = if progress.nodes() > 1 { 3 } else { 1 };
        let buffers = memory.map(|bytes| (bytes / (DEPTH * levels)).next_multiple_of(LINE));
        let signals = world.alloc_withheld(teams * levels * SIGNALS)?;
        let space = world.alloc_withheld(levels * DEPTH * (buffers[0] + (teams - 1) * buffers[1]))?;
        let cards = world.alloc_withheld(teams * levels * CARD)?;
        let free = if teams == 64 { u64::MAX } else { (1 << teams) - 1 };
        let seen = RefCell::new(vec![0; teams * levels * SIGNALS]);
        world.set_state(Left::default());
        let left = world.state::<Left>().map_or_else(Weak::new, |left| Rc::downgrade(&left));
        let hub = Rc::new(Hub { progress, signals, space, cards, buffers, levels, seen, free: Cell::new(free), left });
        world.set_state(Rc::clone(&hub));
        Ok(hub)
    }

    /// The slots that are free here, a bit each.
    pub(super) fn free(&self) -> u64 {
        self.free.get()
    }

    pub(super) fn take(&self, slot: usize) {
        self.free.set(self.free.get() & !(1 << slot));
    }

    pub(super) fn give_back(&self, slot: usize) {
        self.free.set(self.free.get() | 1 << slot);
    }

    /// Where teams go on that were dropped; none when the world is gone.
    pub(super) fn left(&self) -> Option<Rc<Left>> {
        self.left.upgrade()
    }

    /// The place of one of the contexts in a team's slot.
    pub(super) fn level(&self, slot: usize, level: usize) -> usize {
        debug_assert!(level < self.levels);
        slot * self.levels + level
    }

    /// Index of a signal word of a slot.
    #[inline]
    pub(super) fn word(&self, slot: usize, word: usize) -> usize {
        slot * SIGNALS + word
    }

    /// Bytes of a buffer of a slot.
    #[inline]
    pub(super) fn buffer(&self, slot: usize) -> usize {
        self.buffers[usize::from(slot >= self.levels)]
    }

    /// The setting that says so.
    pub(super) fn memory_setting(&self, slot: usize) -> &'static str {
        ["BELLWETHER_WORLD_TEAM_MEMORY", "BELLWETHER_TEAM_MEMORY"][usize::from(slot >= self.levels)]
    }

    /// Offset of a buffer of a slot.
    #[inline]
    pub(super) fn at(&self, slot: usize, buffer: usize) -> usize {
        let of_world = slot.min(self.levels);
        (of_world * self.buffers[0] + (slot - of_world) * self.buffers[1]) * DEPTH + buffer * self.buffer(slot)
    }

    /// The count that a word has when `more` further signals have come.
    #[inline]
    pub(super) fn expected(&self, word: usize, more: usize) -> u64 {
        self.seen.borrow()[word] + more as u64
    }

    /// So many further signals were waited for.
    #[inline]
    pub(super) fn saw(&self, word: usize, more: usize) {
        self.seen.borrow_mut()[word] += more as u64;
    }
}
