//! The barrier of a group: no member leaves it before all have entered.
//!
//! There are three algorithms, in one non-blocking state machine. The world's barrier ([`super::everyone`]) and the
//! teams' ([`super::barrier`]) poll it, and can resume it later: flags that have arrived are kept.
//!
//! - *Dissemination* (Hensgen, Finkel and Manber 1988): in round k, member r tells member r + 2^k that r, and all members that r has
//!   heard of, have entered. Each flag has one writer, which writes the number of the barrier, so a member that is one barrier ahead
//!   does no harm.
//! - *Counter*: every member adds one to a word at member 0, and the last writes the number of the barrier to the first flag of all
//!   others. It takes one wake-up for each member, dissemination log2 n: that is cheaper where members share cores. All ranks of the
//!   world wait for the flag of rank 0 instead: the last writes one flag, and reads in the roster which ranks sleep. A flag at each
//!   would be a store to a page of every slot.
//! - *Direct*: every member tells every other one, by a flag of its own beside up to [`ROOM`] bytes of data, if few in one cache line:
//!   an exchange of data takes as long as a barrier. For few members, all mapped. Each member has two places for every other one,
//!   used in turn. A member that writes to a place again has passed the barrier in between, which the owner entered after it had
//!   read the place.
//!
//! If [`FlagLayout::lines`] is set, members also learn whether all passed the same digest. All ranks are mapped then. Dissemination:
//! each flag carries the writer's digest, or 0 once the writer has seen a different one, so a difference travels with the
//! flags. Counter: members OR the digest's 1 bits and its 0 bits into two words, and the last member compares them. A flag's
//! digest words alternate between two, so that a member one barrier ahead does not overwrite a digest not yet read. Direct: each
//! place has the writer's digest.
//!
//! Over a network two puts to one flag have no order. So before a member begins a barrier, the flags of its last one are in effect.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Engine;
use crate::error::Result;
use crate::memory::copy;
use crate::memory::layout::{DIRECT_LEN, DIRECT_RANKS};

/// Where a group's flags lie in every slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlagLayout {
    /// The flag of the first round, and bytes to that of the next.
    pub(crate) flags: usize,
    pub(crate) spacing: usize,
    /// The word of the counter, used at member 0.
    pub(crate) arrivals: usize,
    /// The places of a direct barrier, if there are any: those that are used in odd barriers after the others.
    pub(crate) places: usize,
    /// Whether each flag, and the counter, starts a cache line of its own. The next two words then hold digests, or the
    /// counter's digest bits.
    pub(crate) lines: bool,
    /// Whether all members wait for the flag of member 0, in a barrier by the counter. Nobody clears that flag while a member may wait for it.
    pub(crate) one_flag: bool,
}

/// The outcome that a member finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Others have not entered, as far as is known.
    Waits,
    /// All have entered.
    Done,
    /// The member with this number is in a call of another kind. While its flag arrives byte by byte, this may be an error.
    Differs { member: usize, kind: u8 },
}

/// The algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Dissemination,
    Counter,
    Direct,
}

/// Most members of a direct barrier. Chosen: each writes to all others.
pub(crate) const MEMBERS: usize = DIRECT_RANKS;
/// Most bytes of data beside a flag of a direct barrier.
pub(crate) const ROOM: usize = DIRECT_LEN - DATA;
/// Offset of the data in a place, after the flag and the digest.
const DATA: usize = 2 * size_of::<u64>();

/// This rank's part in all barriers of a group.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// The members' ranks; `None`: all of the world, in order.
    members: Option<Rc<[u32]>>,
    rank: usize,
    size: usize,
    place: FlagLayout,
    /// Barriers entered so far: the number of the last one.
    epoch: Cell<u64>,
    /// Round of the barrier in progress that this member waits in, from 0; equal to `rounds` when no barrier is in progress.
    round: Cell<usize>,
    /// Rounds of the barrier in progress: log2 n, rounded up, for dissemination; 1 for the counter; a direct one has one for each
    /// other member.
    rounds: Cell<usize>,
    kind: Cell<u8>,
    /// How the barrier in progress is done.
    by: Cell<By>,
    /// This member's digest; [`DIFFERS`] when it has met another one.
    digest: Cell<u64>,
}

/// A digest that no member brings.
const DIFFERS: u64 = 0;

/// Bit position of the kind in a flag.
const KIND_SHIFT: u32 = 56;

/// Rounds until every one of `size` members has heard of every other.
pub(crate) fn rounds(size: usize) -> usize {
    size.next_power_of_two().ilog2() as usize
}

impl Meeting {
    /// State of member `rank` of `members`, or of all `size` ranks if `None`.
    pub(crate) fn new(members: Option<Rc<[u32]>>, rank: usize, size: usize, place: FlagLayout) -> Meeting {
        let cell = || Cell::new(0);
        let (epoch, digest) = (Cell::new(0), Cell::new(DIFFERS));
        let (kind, by) = (Cell::new(0), Cell::new(By::Dissemination));
        Meeting { members, rank, size, place, epoch, round: cell(), rounds: cell(), kind, by, digest }
    }

    /// The number of the barrier entered last; the first is 1.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    #[inline]
    fn world(&self, member: usize) -> usize {
        self.members.as_ref().map_or(member, |members| members[member] as usize)
    }

    /// Members that this one writes to in the rounds of a dissemination, by their ranks.
    pub(crate) fn partners(&self) -> impl Iterator<Item = usize> {
        (0..rounds(self.size)).map(|round| self.world((self.rank + (1 << round)) % self.size))
    }

    /// Enters the next barrier, as part of a call of this kind, 0 where kinds are compared elsewhere, and with this digest. The barrier
    /// before is done, and its flags are in effect.
    ///
    /// # Errors
    /// As [`Engine::remote_put_flag`].
    #[inline]
    pub(crate) fn enter(&self, engine: &Engine, kind: u8, digest: u64) -> Result<()> {
        self.begin(kind, digest, By::Dissemination, rounds(self.size));
        if self.size > 1 { self.tell(engine, (self.rank + 1) % self.size, 0) } else { Ok(()) }
    }

    /// As [`Meeting::enter`], by the counter, where all ranks are mapped. Every member uses it for this barrier. If all have brought
    /// the same digest, the last member runs `alone` before any other leaves.
    pub(crate) fn enter_counter(&self, engine: &Engine, digest: u64, alone: impl FnOnce()) -> Result<()> {
        self.begin(0, digest, By::Counter, 1);
        if self.place.lines {
            self.collect(engine);
        }
        if !count(engine, self.world(0), self.place.arrivals, self.size) {
            return Ok(());
        }
        if self.place.lines {
            self.compare(engine);
        }
        let mut alone_panics = Unopened(Some((self, engine)));
        if self.agreed() {
            alone();
        }
        alone_panics.0 = None;
        self.open(engine)
    }

    /// As [`Meeting::enter`], and shows `data` to all others, where up to [`MEMBERS`] ranks are mapped. Every member uses it for this
    /// barrier.
    ///
    /// # Panics
    /// If `data` is longer than [`ROOM`].
    #[inline]
    pub(crate) fn enter_direct(&self, engine: &Engine, digest: u64, data: &[u8]) {
        assert!(data.len() <= ROOM && self.size <= MEMBERS, "{} bytes to {} members", data.len(), self.size);
        self.begin(0, digest, By::Direct, self.size - 1);
        let at = self.place_from(self.rank);
        for round in 0..self.size - 1 {
            let to = self.world(self.direct(round));
            // SAFETY: a place of that slot, inside its committed memory; its owner has read what this rank wrote there last, since it
            // has entered the barrier in between, which this rank has passed.
            let word = unsafe {
                let place = engine.node.slot(to).add(at);
                copy::copy(place.add(DATA), data.as_ptr(), data.len());
                AtomicU64::from_ptr(place.add(size_of::<u64>()).cast()).store(self.digest.get(), Ordering::Relaxed);
                AtomicU64::from_ptr(place.cast())
            };
            // Pairs with the Acquire load in `flag`, at that rank.
            word.store(self.epoch.get(), Ordering::Release);
            engine.interface.wake_if_asleep(to);
        }
    }

    /// The other member that a direct barrier tells, and waits for, in this round.
    #[inline]
    fn direct(&self, round: usize) -> usize {
        let member = self.rank + 1 + round;
        if member < self.size { member } else { member - self.size }
    }

    /// Offset of the place in a member's slot that this one writes to in the barrier in progress.
    #[inline]
    fn place_from(&self, member: usize) -> usize {
        self.place.places + ((self.epoch.get() % 2) as usize * self.size + member) * DIRECT_LEN
    }

    /// The bytes that a member has shown in the direct barrier that this member passed last; the other enters no further direct
    /// barrier before this member does. To be read by [`copy::copy`], with the length that the other has shown.
    #[inline]
    pub(crate) fn shown(&self, engine: &Engine, member: usize) -> *const u8 {
        assert!(member < self.size && self.by.get() == By::Direct, "shown by member {member} of {}", self.size);
        // SAFETY: inside this rank's slot.
        unsafe { engine.node.slot(engine.rank).add(self.place_from(member) + DATA) }
    }

    #[inline]
    fn has_one_flag(&self) -> bool {
        self.by.get() == By::Counter && self.place.one_flag
    }

    /// Lets all others leave.
    ///
    /// If all members wait for one flag, no member writes a later number to it before this one: a member that enters a later barrier
    /// has left the barrier that this opens. So flag and digest stay as they are until the last member has read them.
    fn open(&self, engine: &Engine) -> Result<()> {
        self.round.set(1);
        if self.has_one_flag() {
            self.write_flag(engine, self.world(0), self.place.flags);
            let others = (0..self.size).filter(|member| *member != self.rank);
            engine.interface.wake_all_asleep(others.map(|member| self.world(member)));
            return Ok(());
        }
        (0..self.size).filter(|member| *member != self.rank).try_for_each(|member| self.tell(engine, member, 0))
    }

    /// The words beside the counter: bits that are 1, and bits that are 0, in any digest.
    fn bits<'a>(&self, engine: &'a Engine) -> [&'a AtomicU64; 2] {
        [1, 2].map(|word| {
            let at = self.place.arrivals + word * size_of::<u64>();
            // SAFETY: as in `write_flag`.
            unsafe { AtomicU64::from_ptr(engine.node.slot(self.world(0)).add(at).cast()) }
        })
    }

    fn collect(&self, engine: &Engine) {
        let [ones, zeros] = self.bits(engine);
        // Relaxed: the AcqRel increment in `count` orders these ORs before the last member's swaps.
        ones.fetch_or(self.digest.get(), Ordering::Relaxed);
        zeros.fetch_or(!self.digest.get(), Ordering::Relaxed);
    }

    /// By the last member, before it tells the others.
    fn compare(&self, engine: &Engine) {
        let [ones, zeros] = self.bits(engine).map(|bits| bits.swap(0, Ordering::Relaxed));
        if ones & zeros != 0 {
            self.digest.set(DIFFERS);
        }
    }

    /// Whether all members are known to have brought the same digest to the barrier that is done.
    #[inline]
    pub(crate) fn agreed(&self) -> bool {
        self.place.lines && self.digest.get() != DIFFERS
    }

    #[inline]
    fn begin(&self, kind: u8, digest: u64, by: By, rounds: usize) {
        debug_assert_eq!(self.round.get(), self.rounds.get(), "the barrier before is done");
        self.epoch.set(self.epoch.get() + 1);
        self.kind.set(kind);
        self.digest.set(digest.max(DIFFERS + 1));
        self.by.set(by);
        self.round.set(0);
        self.rounds.set(rounds);
    }

    /// Counts the next barrier, as part of a call of this kind, as entered, and tells no member. [`Meeting::count_out`] undoes this.
    #[cold]
    pub(crate) fn count_in(&self, kind: u8) {
        self.begin(kind, DIFFERS, By::Dissemination, 1);
    }

    /// The barrier that [`Meeting::count_in`] has counted is entered next.
    #[cold]
    pub(crate) fn count_out(&self) {
        self.give_up();
        self.epoch.set(self.epoch.get() - 1);
    }

    #[inline]
    fn tell(&self, engine: &Engine, member: usize, round: usize) -> Result<()> {
        let (to, at) = (self.world(member), self.place.flags + round * self.place.spacing);
        if !engine.routes.all_mapped() {
            return engine.remote_put_flag(to, at, self.own_flag());
        }
        self.write_flag(engine, to, at);
        engine.interface.wake_if_asleep(to);
        Ok(())
    }

    /// The value that this member writes to flags of the barrier in progress.
    #[inline]
    fn own_flag(&self) -> u64 {
        self.epoch.get() | u64::from(self.kind.get()) << KIND_SHIFT
    }

    /// Writes the flag at `at` in the slot of `to`, which is mapped. The caller wakes the rank that waits for the flag.
    #[inline]
    fn write_flag(&self, engine: &Engine, to: usize, at: usize) {
        let flag = self.own_flag();
        // SAFETY: an aligned word inside committed memory of that slot, which is only accessed as an atomic.
        let word = unsafe { AtomicU64::from_ptr(engine.node.slot(to).add(at).cast()) };
        if self.place.lines {
            // SAFETY: a word of the same line.
            let digest = unsafe { AtomicU64::from_ptr(word.as_ptr().add(self.digest_word())) };
            digest.store(self.digest.get(), Ordering::Relaxed);
        }
        // Pairs with the Acquire load in `flag`, at the ranks that wait for it.
        if self.by.get() == By::Counter {
            // A member told before this one may have entered the next barrier, by dissemination, and written its number here.
            // Not `fetch_max`, which the thread sanitizer takes for no synchronization.
            let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, |now| (now < flag).then_some(flag));
        } else {
            word.store(flag, Ordering::Release);
        }
    }

    /// Which word of a flag's line holds the digest.
    #[inline]
    fn digest_word(&self) -> usize {
        1 + (self.epoch.get() % 2) as usize
    }

    /// Compares the digest that came with the flag of this round.
    #[inline]
    fn meet(&self, engine: &Engine, round: usize) {
        let word = if self.by.get() == By::Direct { 1 } else { self.digest_word() };
        let at = self.flag_at(round) + word * size_of::<u64>();
        // SAFETY: a word of the flag's line.
        let word = unsafe { AtomicU64::from_ptr(engine.node.slot(self.flag_owner(engine)).add(at).cast()) };
        if word.load(Ordering::Relaxed) != self.digest.get() {
            self.digest.set(DIFFERS);
        }
    }

    /// The rank in whose slot this one waits for flags.
    #[inline]
    fn flag_owner(&self, engine: &Engine) -> usize {
        if self.has_one_flag() { self.world(0) } else { engine.rank }
    }

    /// Offset of the flag of this round in the slot of its owner.
    #[inline]
    fn flag_at(&self, round: usize) -> usize {
        match self.by.get() {
            By::Direct => self.place_from(self.direct(round)),
            _ => self.place.flags + round * self.place.spacing,
        }
    }

    /// The flag of this round: the number of a barrier, and a kind.
    #[inline]
    fn flag(&self, engine: &Engine, round: usize) -> (u64, u8) {
        let at = self.flag_at(round);
        // SAFETY: as in `write_flag`.
        let word = unsafe { AtomicU64::from_ptr(engine.node.slot(self.flag_owner(engine)).add(at).cast()) };
        let word = word.load(Ordering::Acquire);
        (word & ((1 << KIND_SHIFT) - 1), (word >> KIND_SHIFT) as u8)
    }

    /// The kind of the barrier entered last.
    pub(crate) fn kind(&self) -> u8 {
        self.kind.get()
    }

    /// Whether a barrier was entered and is not done.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.round.get() < self.rounds.get()
    }

    /// Continues the barrier that was entered, as far as other members have entered it. Never blocks.
    ///
    /// # Errors
    /// As [`Engine::remote_put_flag`].
    #[inline]
    pub(crate) fn go_on(&self, engine: &Engine) -> Result<Found> {
        let (epoch, rounds) = (self.epoch.get(), self.rounds.get());
        let mut round = self.round.get();
        while round < rounds {
            let (seen, kind) = self.flag(engine, round);
            if seen < epoch {
                return Ok(Found::Waits);
            }
            // The writer of a later number has passed this barrier, so its kind no longer matters.
            if kind != self.kind.get() && seen == epoch {
                return Ok(Found::Differs { member: (self.rank + self.size - (1 << round)) % self.size, kind });
            }
            if self.place.lines {
                self.meet(engine, round);
            }
            round += 1;
            self.round.set(round);
            if round < rounds && self.by.get() == By::Dissemination {
                engine.waiting.note_step();
                self.tell(engine, (self.rank + (1 << round)) % self.size, round)?;
            }
        }
        Ok(Found::Done)
    }

    /// Abandons the barrier in progress, so that `begin` can be called again. The caller decides whether the group may still
    /// use barriers: peers may be stuck in this one.
    pub(crate) fn give_up(&self) {
        self.round.set(self.rounds.get());
    }
}

/// Releases the other members, with digests unequal, if the last member panics.
struct Unopened<'a>(Option<(&'a Meeting, &'a Engine)>);

impl Drop for Unopened<'_> {
    fn drop(&mut self) {
        if let Some((meeting, engine)) = self.0 {
            meeting.digest.set(DIFFERS);
            // All are mapped, where telling cannot fail.
            let _ = meeting.open(engine);
        }
    }
}

/// Adds one to a word at `rank`, where all ranks are mapped. Whether this was the last of `size`; then the word is 0 again.
pub(crate) fn count(engine: &Engine, rank: usize, at: usize, size: usize) -> bool {
    debug_assert!(engine.routes.all_mapped(), "only where processors reach all ranks");
    // SAFETY: as in `write_flag`.
    let word = unsafe { AtomicU64::from_ptr(engine.node.slot(rank).add(at).cast()) };
    // AcqRel: the last to come sees what all have written before they came.
    let last = word.fetch_add(1, Ordering::AcqRel) + 1 == size as u64;
    if last {
        // Others count again only after they have heard of this one, so no order is needed here.
        word.store(0, Ordering::Relaxed);
    }
    last
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Team;
    use super::super::hub::{ARRIVALS, BARRIER};
    use super::*;

    #[test]
    fn a_late_flag_of_a_counter_does_not_undo_that_of_the_next_barrier() {
        let outcomes = crate::threads(1, |world| {
            let team = Team::world(world)?;
            let (hub, slot) = (&team.shared.context.hub, team.shared.context.slot);
            let at = |word| hub.memory.in_slot(hub.signal(hub.word(slot, word)));
            let place = FlagLayout {
                flags: at(BARRIER),
                spacing: size_of::<u64>(),
                arrivals: at(ARRIVALS),
                places: 0,
                lines: false,
                one_flag: false,
            };
            let in_barrier = |epoch, counts| {
                let meeting = Meeting::new(None, 0, 1, place);
                meeting.epoch.set(epoch);
                meeting.by.set(if counts { By::Counter } else { By::Dissemination });
                meeting
            };
            // The last to enter barrier 5 lets others leave. One of them enters barrier 6 before the last has told all.
            let (last, other) = (in_barrier(5, true), in_barrier(6, false));
            other.tell(&hub.engine, 0, 0)?;
            last.tell(&hub.engine, 0, 0)?;
            assert_eq!(other.flag(&hub.engine, 0), (6, 0));
            Ok(())
        });
        outcomes.expect("runs").into_iter().collect::<Result<()>>().expect("runs");
    }
}
