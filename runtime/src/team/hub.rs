//! The workspace of all teams of a rank: one slot for each team it is a member of.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use super::last::Known;
use super::lines;
use super::queue::Shared;
use super::record::{self, RECORD};
use super::workspace::Workspace;
use crate::engine::{Background, Engine};
use crate::error::Result;
use crate::memory::layout::LINE;

/// Buffers of a slot. They are used in turn; a member may be that many steps ahead of another.
pub(super) const DEPTH: usize = 4;
/// Signal words of one step: one for each round of an algorithm.
pub(super) const PORTS: usize = 32;
/// First signal word of the barrier's rounds.
pub(super) const BARRIER: usize = DEPTH * PORTS;
/// A node's barrier: that a member has come, at the leader; and that all have, at the others.
pub(super) const UP: usize = BARRIER + PORTS - 2;
pub(super) const DOWN: usize = UP + 1;
/// First of the words that members count up together, one for each buffer and one for the barrier.
pub(super) const COUNTERS: usize = BARRIER + PORTS;
/// The counter of the central barrier.
pub(super) const ARRIVALS: usize = COUNTERS + DEPTH;
/// Signal words of a slot, whole cache lines.
const SIGNALS: usize = (ARRIVALS + 1).next_multiple_of(8);
/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// The state that all teams of a rank share. Its memory does not depend on how many ranks there are.
pub(super) struct Hub {
    pub(super) engine: Rc<Engine>,
    /// Signal words of all slots, then the records, the teams' lines, and the buffers.
    pub(super) memory: Workspace,
    /// Bytes before the first record, before the first team's lines, and before the first buffer.
    records: usize,
    lines: usize,
    space: usize,
    /// Bytes of one buffer of the two teams of all ranks, and of another team's. The user's has the first slot, that of the
    /// world's own calls the last.
    buffers: [usize; 2],
    /// Contexts in a team's slot: its own, and on several nodes those of its groups ([`super::nodes`]).
    levels: usize,
    /// The first context of the last slot.
    own: usize,
    /// Signals waited for so far, a word each. A slot that is free has had all its signals.
    seen: RefCell<Vec<u64>>,
    /// A bit for each slot that no team of this rank has.
    free: Cell<u64>,
    /// The world has them: they have this.
    left: Weak<Left>,
    pub(super) known: Known,
}

/// Teams that were dropped here before their collectives were done, which go on. They have their slots until then.
#[derive(Default)]
pub(crate) struct Left {
    teams: RefCell<Vec<Shared>>,
    in_background: Cell<bool>,
}

impl Left {
    pub(super) fn keep(self: Rc<Self>, hub: &Hub, team: Shared) {
        self.teams.borrow_mut().push(team);
        if !self.in_background.replace(true) {
            hub.engine.tasks.add(Rc::downgrade(&(self as Rc<dyn Background>)));
        }
    }

    /// Goes on with them. Whether some are not done. Within a wait or a poll, as none comes back here from there.
    pub(super) fn go_on(&self) -> bool {
        // Out of their place meanwhile: the code that they call may drop teams.
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

    fn notes_steps(&self) -> bool {
        true
    }
}

/// The size and layout of the workspace that follow from the settings.
struct Plan {
    /// Bytes of one buffer of the two teams of all ranks, and of another team's.
    buffers: [usize; 2],
    levels: usize,
    own: usize,
    /// Signal words of all slots.
    words: usize,
    /// Bytes before the first record, before the first team's lines, before the first buffer, and of all.
    records: usize,
    lines: usize,
    space: usize,
    len: usize,
}

/// Slots behind those of the program's teams, for teams of survivors, in turn: where ranks go on after a death.
fn spare(engine: &Engine) -> usize {
    if engine.settings.survive { SPARE } else { 0 }
}

/// Two: while a rank clears one for the next team, others may still be in calls of the last.
const SPARE: usize = 2;

impl Plan {
    fn new(engine: &Engine) -> Plan {
        let settings = &engine.settings;
        let levels = if engine.nodes.count() > 1 { 3 } else { 1 };
        let buffer = |bytes: usize| (bytes / (DEPTH * levels)).next_multiple_of(LINE);
        let buffers = [settings.world_team_memory, settings.team_memory].map(buffer);
        let teams = settings.teams + spare(engine);
        let own = teams * levels;
        let contexts = own + levels;
        let words = contexts * SIGNALS;
        let records = words * WORD;
        let lines = (records + contexts * RECORD * WORD).next_multiple_of(2 * LINE);
        let with_lines = if engine.routes.all_mapped() { teams + 1 } else { 0 };
        let space = lines + with_lines * lines::LEN;
        let len = space + levels * DEPTH * (2 * buffers[0] + (teams - 1) * buffers[1]);
        Plan { buffers, levels, own, words, records, lines, space, len }
    }
}

impl Hub {
    /// Bytes of the workspace at each rank.
    pub(super) fn bytes(engine: &Engine) -> usize {
        Plan::new(engine).len
    }

    /// Teams go on in `left` when they were dropped.
    ///
    /// # Safety
    /// [`Hub::bytes`] bytes at `offset` of every slot start at a cache line, are zero, are used for nothing else, and are there as
    /// long as `memory` lives.
    pub(super) unsafe fn new(engine: &Rc<Engine>, offset: usize, memory: Box<dyn Any>, left: &Rc<Left>) -> Rc<Hub> {
        let Plan { buffers, levels, own, words, records, lines, space, len } = Plan::new(engine);
        // SAFETY: as the caller guarantees.
        let memory = unsafe { Workspace::new(engine, offset, len, memory) };
        let teams = engine.settings.teams;
        let free = Cell::new(if teams == 64 { u64::MAX } else { (1 << teams) - 1 });
        let (engine, seen, left) = (Rc::clone(engine), RefCell::new(vec![0; words]), Rc::downgrade(left));
        Rc::new(Hub {
            engine,
            memory,
            records,
            lines,
            space,
            buffers,
            levels,
            own,
            seen,
            free,
            left,
            known: Known::default(),
        })
    }

    /// Ready when all that this rank has put and signalled is in effect everywhere.
    pub(super) fn quiet(&self, doing: &'static str) -> impl Future<Output = Result<()>> {
        std::future::poll_fn(move |context| {
            self.engine.poll_ready(doing, context, || Ok(self.engine.try_quiet(doing)?.then_some(())))
        })
    }

    /// The slot of the world's own calls, which is never free.
    pub(super) fn own(&self) -> usize {
        self.own / self.levels
    }

    /// The slot of the team of survivors that agreement `number` makes, if there are such slots.
    pub(super) fn of_survivors(&self, number: u64) -> Option<usize> {
        let first = self.own().checked_sub(spare(&self.engine)).filter(|first| *first < self.own())?;
        Some(first + number as usize % SPARE)
    }

    /// Makes a slot as it was at the start. No signal to it is in flight.
    pub(super) fn clear(&self, slot: usize) {
        for context in (0..self.levels).map(|level| self.level(slot, level)) {
            record::clear(self, context);
            for word in self.word(context, 0)..self.word(context + 1, 0) {
                self.memory.store(self.signal(word), 0);
                self.seen.borrow_mut()[word] = 0;
            }
        }
        if self.engine.routes.all_mapped() {
            lines::clear(self, self.level(slot, 0));
        }
    }

    /// The records of a slot, which are clear, are those of the team with this number.
    pub(super) fn open(&self, slot: usize, team: u64) {
        (0..self.levels).for_each(|level| record::open(self, self.level(slot, level), team));
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

    /// Number of a signal word of a slot.
    #[inline]
    pub(super) fn word(&self, slot: usize, word: usize) -> usize {
        slot * SIGNALS + word
    }

    /// Offset of a signal word, by its number.
    #[inline]
    pub(super) fn signal(&self, word: usize) -> usize {
        word * WORD
    }

    /// Offset of a word of a slot's record.
    #[inline]
    pub(super) fn record(&self, slot: usize, word: usize) -> usize {
        self.records + (slot * RECORD + word) * WORD
    }

    /// Offset of the lines of a team's slot. None where not all ranks are mapped.
    #[inline]
    pub(super) fn lines(&self, slot: usize) -> usize {
        self.lines + slot / self.levels * lines::LEN
    }

    /// Bytes of a buffer of a slot.
    #[inline]
    pub(super) fn buffer(&self, slot: usize) -> usize {
        self.buffers[usize::from(!self.is_of_all(slot))]
    }

    #[inline]
    fn is_of_all(&self, slot: usize) -> bool {
        slot < self.levels || slot >= self.own
    }

    /// The setting that says so.
    pub(super) fn memory_setting(&self, slot: usize) -> &'static str {
        ["BELLWETHER_WORLD_TEAM_MEMORY", "BELLWETHER_TEAM_MEMORY"][usize::from(!self.is_of_all(slot))]
    }

    /// Offset of a buffer of a slot.
    #[inline]
    pub(super) fn at(&self, slot: usize, buffer: usize) -> usize {
        let of_all = slot.min(self.levels) + slot.saturating_sub(self.own);
        let before = of_all * self.buffers[0] + (slot - of_all) * self.buffers[1];
        self.space + before * DEPTH + buffer * self.buffer(slot)
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
