//! The roster: which ranks have arrived, which sleep, which are leaving, which are gone and why.
//!
//! All of it is atomics in memory that the ranks of a host share, so any of them, their supervisor or their agent may enter what it
//! learns. Of a rank on another host the record is a copy that this host's agent keeps.

mod together;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::JobMemory;
use crate::error::{Error, Loss, Result};
use crate::sleep::{self, Fences, SleepWord, futex};

/// Facts about the whole job.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) ranks: AtomicU32,
    /// The first rank that has a slot in this file, and how many have one.
    pub(super) first_slot: AtomicU32,
    pub(super) slots: AtomicU32,
    pub(super) stride_log2: AtomicU32,
    pub(super) reserved_huge_pages: AtomicU32,
    /// A supervisor watches the ranks and marks the dead.
    supervised: AtomicU32,
    /// Some rank has no expedited membarrier: every waker fences.
    full_fence: AtomicU32,
    /// Ranks that have arrived; a futex word.
    arrived: AtomicU32,
    /// Ranks that died or panicked.
    lost: AtomicU32,
    /// Ranks that left in good order.
    left: AtomicU32,
    /// The last place given out in the order in which ranks ended, in any way, or began to leave. A rank may take two.
    ended: AtomicU32,
    /// Ranks that began to leave.
    leavers: AtomicU32,
    /// The first rank that was missed, plus one; 0: none was. A rank misses another when it fails because that one has left or is leaving.
    missed: AtomicU32,
    /// Ranks that run on other hosts.
    elsewhere: AtomicU32,
    /// Ranks before the first that runs on this host, and behind the last.
    outside: [AtomicU32; 2],
    /// Ranks go on after the death of another.
    survives: AtomicU32,
    /// The network namespace of the first process that arrived; 0: none did.
    namespace: AtomicU64,
    /// Some process of this host cannot ring every socket of the others.
    unreachable: AtomicU32,
    /// Cores that some rank may run on, a bit each.
    cores: [AtomicU64; CORES_MAX / 64],
    /// The job's secret: all ranks of the job know it, and nobody else. Both ends of a connection between ranks prove that they know it.
    key: [AtomicU64; 4],
    /// The rank that waited in something else than rank 0 when all were found deadlocked; 0: none did.
    deadlocked: AtomicU64,
    /// What rank 0 and that rank waited in.
    deadlocked_in: [[AtomicU64; DOING_LEN / 8]; 2],
}

/// The detail of a rank that vanished because its job was ended.
const OVERDUE: u32 = 1;
/// The detail of a rank that vanished with the connection to its host.
const CUT: u32 = 2;

/// Cores that are told apart; later ones count as these.
const CORES_MAX: usize = 1024;
/// Of a rank that panics: it panicked first, and others may have been told.
const PANICS: u32 = 1;
/// Of a rank that panics: another rank was lost to it, or an error had named another rank to it.
const GAVE_UP: u32 = 2;
/// Added to these when it still lived [`UNWOUND`] later, so that it caught the panic: nobody waits for its end any more.
const AWAITED: u32 = 4;
/// How long a rank that panics may take until it counts as lost: up to 200 ms to tell its caller, and some turns on a core that many
/// ranks share. In tests longer than a machine lets a rank wait.
const UNWOUND: Duration = Duration::from_millis(if cfg!(test) { 5000 } else { 300 });
/// Bytes before the first record.
pub(super) const HEADER_LEN: usize = 512;

/// What the other ranks know about one rank.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct RankRecord {
    /// The state in the low half; in the high one the number that goes with it: exit code or signal. One word, so that of two that
    /// tell of its end one is believed.
    state: AtomicU64,
    /// The place of its end in the order of ends and of beginnings to leave; 0: none yet.
    order: AtomicU32,
    /// The place where it began to wait for the others to leave with it; 0: it has not.
    leaving: AtomicU32,
    /// [`PANICS`] or [`GAVE_UP`], perhaps with [`AWAITED`]; 0: it never panicked.
    panicking: AtomicU32,
    pid: AtomicU32,
    /// It runs on another host.
    elsewhere: AtomicU32,
    /// It has arrived, whatever became of it since.
    arrived: AtomicU32,
    /// Where this rank has mapped the slots: the address of rank 0's, or where that would be.
    base: AtomicU64,
    /// Digest of the rank's executable.
    build: AtomicU64,
    /// Digest of the settings that shape shared memory.
    shape: AtomicU64,
    /// The number of the wait of this rank that nobody will end; 0: none yet. On several hosts that of a wait without limit, on one of
    /// a collective wait.
    hopeless: AtomicU64,
    sleep: SleepLine,
    doing: DoingLine,
    /// The number of the collective wait that it is in, which only collective calls of other ranks can end; 0: it is in none.
    together: AtomicU64,
}

/// The name of a rank's present wait, for people to read: bytes of text, filled up with zeros. Written when a wait gets long.
#[repr(C, align(64))]
#[derive(Debug)]
struct DoingLine {
    words: [AtomicU64; DOING_LEN / 8],
}

/// Bytes of the text with which a rank names its wait.
pub(crate) const DOING_LEN: usize = 64;

/// A line of its own: every ringer reads it, only a sleeper writes it.
#[repr(C, align(64))]
#[derive(Debug)]
struct SleepLine {
    word: SleepWord,
    /// The name of the socket that wakes the rank while it listens; 0: it has none.
    socket: AtomicU64,
    /// A ring of the socket has failed.
    unreachable: AtomicU32,
}

/// What a rank tells about itself when it arrives.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Where it has mapped the slots: the address of rank 0's, or where that would be.
    pub base: usize,
    /// Digest of its executable.
    pub build: u64,
    /// Digest of the settings that shape shared memory.
    pub shape: u64,
}

/// Where a rank is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RankState {
    /// Not seen yet.
    Absent = 0,
    /// Has taken its place, and tells about itself.
    Starting = 1,
    /// In the job, part of every collective.
    Running = 2,
    /// Left in good order.
    Left = 3,
    /// Panicked.
    Panicked = 4,
    /// Exited without leaving.
    Exited = 5,
    /// Ended by a signal.
    Signaled = 6,
    /// Ended, nobody saw how.
    Vanished = 7,
}

impl RankState {
    fn from_word(word: u32) -> RankState {
        match word {
            0 => RankState::Absent,
            1 => RankState::Starting,
            2 => RankState::Running,
            3 => RankState::Left,
            4 => RankState::Panicked,
            5 => RankState::Exited,
            6 => RankState::Signaled,
            _ => RankState::Vanished,
        }
    }
}

impl JobMemory {
    /// Says that a parent watches the ranks and calls [`JobMemory::mark_lost`] when one dies.
    pub fn set_supervised(&self) {
        self.header().supervised.store(1, Ordering::Relaxed);
        // The parent wakes ranks too.
        self.prepare_to_ring();
    }

    /// Whether a parent watches the ranks.
    pub fn supervised(&self) -> bool {
        self.header().supervised.load(Ordering::Relaxed) != 0
    }

    /// Makes every waker of the job use a full fence: one rank has no expedited membarrier.
    pub fn require_full_fence(&self) {
        self.header().full_fence.store(1, Ordering::SeqCst);
    }

    /// Which fences the kernels allow. Which ones a rank uses, as sleeper and as waker, is the engine's choice
    /// (`Interface::fences` of the transport over shared memory): where ranks share cores or are reached over a network, full ones.
    pub fn allowed_fences(&self) -> Fences {
        if self.header().full_fence.load(Ordering::SeqCst) != 0 { Fences::Full } else { Fences::Asymmetric }
    }

    /// What all ranks of the job know, and nobody else.
    pub fn key(&self) -> [u8; 32] {
        let mut key = [0; 32];
        for (bytes, word) in key.chunks_exact_mut(8).zip(&self.header().key) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        key
    }

    /// Sets [`JobMemory::key`]. Before anybody arrives.
    pub fn set_key(&self, key: [u8; 32]) {
        for (bytes, word) in key.as_chunks().0.iter().zip(&self.header().key) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Says that these ranks run on other hosts. Before anybody arrives.
    pub fn set_elsewhere(&self, ranks: impl Iterator<Item = usize>) {
        for rank in ranks {
            self.record(rank).elsewhere.store(1, Ordering::Relaxed);
            self.header().elsewhere.fetch_add(1, Ordering::Relaxed);
        }
        let first = (0..self.ranks()).position(|rank| self.is_here(rank));
        let last = (0..self.ranks()).rev().position(|rank| self.is_here(rank));
        let [before, behind] = &self.header().outside;
        before.store(first.unwrap_or(self.ranks()) as u32, Ordering::Relaxed);
        behind.store(last.unwrap_or(0) as u32, Ordering::Relaxed);
    }

    /// The ranks that run on this host. Looks at the records of those alone, if they are neighbours.
    fn here(&self) -> impl Iterator<Item = usize> {
        let [before, behind] = self.header().outside.each_ref().map(|ranks| ranks.load(Ordering::Relaxed) as usize);
        (before..self.ranks() - behind).filter(|rank| self.is_here(*rank))
    }

    /// Whether `rank` runs on this host: its memory is in the file, and its process can be seen.
    pub fn is_here(&self, rank: usize) -> bool {
        self.record(rank).elsewhere.load(Ordering::Relaxed) == 0
    }

    /// Ranks of the job that run on this host.
    pub fn ranks_here(&self) -> usize {
        self.ranks() - self.header().elsewhere.load(Ordering::Relaxed) as usize
    }

    /// The place of `rank`, which runs on this host, among the ranks that do.
    pub fn place_here(&self, rank: usize) -> usize {
        (0..rank).filter(|other| self.is_here(*other)).count()
    }

    fn record(&self, rank: usize) -> &RankRecord {
        assert!(rank < self.ranks(), "rank {rank} of {}", self.ranks());
        // SAFETY: the roster holds one record a rank after the header, all of it atomics.
        unsafe { &*self.roster.add(HEADER_LEN).cast::<RankRecord>().add(rank) }
    }

    /// Where `rank` is in its life.
    pub fn rank_state(&self, rank: usize) -> RankState {
        RankState::from_word(self.record(rank).state.load(Ordering::Acquire) as u32)
    }

    /// Process id of `rank`, once it has arrived.
    pub fn pid(&self, rank: usize) -> u32 {
        self.record(rank).pid.load(Ordering::Relaxed)
    }

    /// Where `rank` has mapped the slots, once it has arrived: the address of rank 0's, or where that would be if rank 0 has none there.
    pub fn base(&self, rank: usize) -> usize {
        self.record(rank).base.load(Ordering::Relaxed) as usize
    }

    /// Digest of the executable of `rank`, once it has arrived.
    pub fn build(&self, rank: usize) -> u64 {
        self.record(rank).build.load(Ordering::Relaxed)
    }

    /// Digest of the settings of `rank` that shape shared memory, once it has arrived.
    pub fn shape(&self, rank: usize) -> u64 {
        self.record(rank).shape.load(Ordering::Relaxed)
    }

    /// The word `rank` sleeps on.
    pub fn sleep_word(&self, rank: usize) -> &SleepWord {
        &self.record(rank).sleep.word
    }

    /// Says what `rank` waits in; nothing, if it does not.
    pub fn set_doing(&self, rank: usize, doing: &str) {
        let mut bytes = [0; DOING_LEN];
        let len = doing.floor_char_boundary(bytes.len());
        bytes[..len].copy_from_slice(&doing.as_bytes()[..len]);
        for (word, chunk) in self.record(rank).doing.words.iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(chunk.try_into().expect("chunks of 8")), Ordering::Relaxed);
        }
    }

    /// Where `rank` is, in words for people: the name of its wait, if it has waited long enough to publish that.
    pub fn whereabouts(&self, rank: usize) -> String {
        match self.rank_state(rank) {
            RankState::Absent => return "has not started".into(),
            RankState::Starting | RankState::Running => {}
            _ => return self.loss(rank).map_or("is gone".into(), |loss| format!("is gone: {loss}")),
        }
        match show(&self.record(rank).doing.words) {
            text if text.is_empty() => "computes, or has not waited for long".into(),
            text => format!("waits: {text}"),
        }
    }

    /// Enters `rank`, which is this process or a thread of it, in the roster.
    ///
    /// # Errors
    /// [`Error::Start`] if that rank is taken.
    pub fn arrive(&self, rank: usize, facts: Arrival) -> Result<()> {
        self.enter(rank, std::process::id(), facts)?;
        self.mapping.note_rank(rank);
        Ok(())
    }

    /// Enters `rank`, which another host has told of.
    ///
    /// # Errors
    /// As [`JobMemory::arrive`].
    pub fn arrive_elsewhere(&self, rank: usize, pid: u32, facts: Arrival) -> Result<()> {
        self.enter(rank, pid, facts)
    }

    fn enter(&self, rank: usize, pid: u32, facts: Arrival) -> Result<()> {
        let record = self.record(rank);
        let step = |from: RankState, to: RankState| {
            // Release pairs with the Acquire load in `rank_state`.
            record.state.compare_exchange(from as u64, to as u64, Ordering::Release, Ordering::Relaxed)
        };
        // The place first: a process that finds it taken, such as a child of that rank, must change nothing.
        step(RankState::Absent, RankState::Starting).map_err(|_| {
            Error::Start(match self.loss(rank) {
                Some(loss) if !self.has_arrived(rank) => format!("rank {rank} was given up before it started: {loss}"),
                _ => format!("rank {rank} has joined this job before; start the world once in a program"),
            })
        })?;
        record.pid.store(pid, Ordering::Relaxed);
        record.base.store(facts.base as u64, Ordering::Relaxed);
        record.build.store(facts.build, Ordering::Relaxed);
        record.shape.store(facts.shape, Ordering::Relaxed);
        // Release pairs with the Acquire load in `has_arrived`.
        record.arrived.store(1, Ordering::Release);
        if self.is_here(rank) {
            self.note_cores();
        }
        step(RankState::Starting, RankState::Running)
            .map_err(|_| Error::Start(format!("rank {rank} was given up while it started")))?;
        // Release pairs with the Acquire load in `await_all`.
        self.header().arrived.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.header().arrived);
        Ok(())
    }

    /// Adds the cores that this thread may run on.
    fn note_cores(&self) {
        let Ok(set) = crate::thread::allowed_cores() else { return };
        for core in (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)) {
            let core = core % CORES_MAX;
            self.header().cores[core / 64].fetch_or(1 << (core % 64), Ordering::Relaxed);
        }
    }

    /// Cores that the ranks which have arrived may run on, all together: each of them may be bound to one.
    pub fn cores(&self) -> usize {
        let words = self.header().cores.iter().map(|word| word.load(Ordering::Relaxed).count_ones());
        words.sum::<u32>().max(1) as usize
    }

    /// Whether `rank` has arrived, also if it is gone by now.
    pub fn has_arrived(&self, rank: usize) -> bool {
        // Pairs with the Release in `enter`.
        self.record(rank).arrived.load(Ordering::Acquire) != 0
    }

    /// Whether every rank has arrived.
    pub fn all_arrived(&self) -> bool {
        // Pairs with the Release in `enter`.
        self.header().arrived.load(Ordering::Acquire) as usize >= self.ranks()
    }

    /// Waits until every rank has arrived.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if one died before; [`Error::MemoryLost`].
    pub fn await_all(&self) -> Result<()> {
        let header = self.header();
        loop {
            // Pairs with the Release in `enter`.
            let arrived = header.arrived.load(Ordering::Acquire);
            if arrived as usize >= self.ranks() {
                return Ok(());
            }
            if let Some((rank, cause)) = self.first_lost() {
                return Err(Error::PeerLost { rank, cause, doing: "starting".into() });
            }
            if !self.is_intact() {
                return Err(Error::MemoryLost { doing: "starting".into() });
            }
            futex::wait(&header.arrived, arrived, Some(Duration::from_millis(50)));
        }
    }

    /// `rank` leaves in good order.
    pub fn leave(&self, rank: usize) {
        self.end(rank, RankState::Left, 0);
    }

    /// Marks `rank` as gone and wakes every sleeping rank of this host, so that their waits end with [`Error::PeerLost`].
    /// A rank that has left already stays as it is.
    pub fn mark_lost(&self, rank: usize, cause: Loss) {
        let (state, detail) = match cause {
            Loss::Left => (RankState::Left, 0),
            Loss::Panicked => (RankState::Panicked, 0),
            Loss::Exited(code) => (RankState::Exited, code as u32),
            Loss::Signaled(signal) => (RankState::Signaled, signal as u32),
            Loss::Unknown => (RankState::Vanished, 0),
            Loss::Disconnected => (RankState::Vanished, CUT),
            Loss::Overdue => (RankState::Vanished, OVERDUE),
        };
        self.end(rank, state, detail);
    }

    fn end(&self, rank: usize, state: RankState, detail: u32) {
        let before = self.record(rank).state.load(Ordering::Relaxed);
        self.end_from(before, rank, state, detail);
    }

    /// As [`JobMemory::end`], by a caller that found `before` in the record.
    fn end_from(&self, mut before: u64, rank: usize, state: RankState, detail: u32) {
        let record = self.record(rank);
        let ended = state as u64 | u64::from(detail) << 32;
        loop {
            if before as u32 > RankState::Running as u32 {
                return;
            }
            // Before the state, whose readers expect it. Of several ends at once the earliest keeps its place.
            let _ = record.order.compare_exchange(0, self.next_place(), Ordering::Relaxed, Ordering::Relaxed);
            // Release pairs with the Acquire load in `rank_state`.
            match record.state.compare_exchange(before, ended, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                // The state has changed: another observer has reported the end, or the rank has gone from `Starting` to `Running`.
                Err(now) => before = now,
            }
        }
        let header = self.header();
        let count = if state == RankState::Left { &header.left } else { &header.lost };
        // Release pairs with the Acquire loads in `any_lost` and `any_left`.
        count.fetch_add(1, Ordering::Release);
        // One fence for all: each word is read after the count has changed.
        std::sync::atomic::fence(Ordering::SeqCst);
        for rank in self.here() {
            // The rank that ended may have taken back an announcement and not have rung.
            self.sleep_word(rank).wake_after_death(|| self.ring_socket(rank));
        }
        futex::wake_all(&header.arrived);
    }

    /// Notes that `rank` waits for the others to leave with it: nothing more comes from it unasked.
    pub fn begin_to_leave(&self, rank: usize) {
        // Release pairs with the Acquire load in `is_leaving`.
        self.record(rank).leaving.store(self.next_place(), Ordering::Release);
        // Release pairs with the Acquire loads in `any_leaver` and `has_news`.
        self.header().leavers.fetch_add(1, Ordering::Release);
    }

    /// The next place in the order of ends and of beginnings to leave, from 1.
    fn next_place(&self) -> u32 {
        self.header().ended.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether `rank` has begun to leave and is still there.
    pub fn is_leaving(&self, rank: usize) -> bool {
        self.record(rank).leaving.load(Ordering::Acquire) != 0 && self.loss(rank).is_none()
    }

    /// Of the ranks that left in good order or are about to, and are one of `which`, the one that began first.
    pub fn first_to_leave(&self, which: impl Fn(usize) -> bool) -> Option<usize> {
        let leaves = |rank: &usize| self.loss(*rank) == Some(Loss::Left) || self.is_leaving(*rank);
        let order = |rank: &usize| {
            let record = self.record(*rank);
            match record.leaving.load(Ordering::Relaxed) {
                0 => record.order.load(Ordering::Relaxed),
                began => began,
            }
        };
        (0..self.ranks()).filter(leaves).filter(|rank| which(*rank)).min_by_key(order)
    }

    /// Somebody gives up because `rank` has left or is leaving: it is what went wrong, unless another was missed before.
    pub fn miss(&self, rank: usize) {
        let _ = self.header().missed.compare_exchange(0, rank as u32 + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// As [`JobMemory::miss`], of the rank that left, if `error` tells the program of one.
    #[cold]
    pub fn miss_as_told(&self, error: &Error) {
        if let Error::PeerLost { rank, cause: Loss::Left, .. } = error {
            self.miss(*rank);
        }
    }

    /// The rank that was missed first. A rank that left after it may have left because of it.
    pub fn first_missed(&self) -> Option<usize> {
        (self.header().missed.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Wakes `rank` if it sleeps.
    #[cold]
    pub fn wake(&self, rank: usize) {
        self.sleep_word(rank).wake(|| self.ring_socket(rank));
    }

    /// Makes the descriptor of `rank` readable, if it has one.
    fn ring_socket(&self, rank: usize) {
        // Pairs with the Release in `show_socket`; the announcement came after that.
        let socket = self.record(rank).sleep.socket.load(Ordering::Acquire);
        // 0: the rank is leaving, and sleeps no more.
        if socket != 0 && !sleep::ring(socket) && self.record(rank).sleep.socket.load(Ordering::Acquire) == socket {
            self.record(rank).sleep.unreachable.store(1, Ordering::SeqCst);
            tracing::warn!(rank, "cannot wake a rank that waits on its descriptor; it wakes by its timer from now on");
        }
    }

    /// Shows the socket that wakes `rank` while it listens; 0: none.
    pub fn show_socket(&self, rank: usize, socket: u64) {
        // Pairs with the Acquire loads in `ring_socket`.
        self.record(rank).sleep.socket.store(socket, Ordering::Release);
    }

    /// Prepares this process to wake ranks that listen, before it wakes the first. If it cannot wake all ranks of this host, it notes so in the
    /// roster.
    pub fn prepare_to_ring(&self) {
        let header = self.header();
        let is_same = |own: u64| {
            let first = header.namespace.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
            first.is_ok() || first == Err(own)
        };
        if !sleep::can_ring() || !sleep::namespace().is_some_and(is_same) {
            header.unreachable.store(1, Ordering::SeqCst);
        }
    }

    /// Whether some waker cannot ring the socket of `rank`, so that it has to wake by itself while it listens.
    pub fn may_be_unreachable(&self, rank: usize) -> bool {
        let flags = [&self.header().unreachable, &self.record(rank).sleep.unreachable];
        flags.iter().any(|flag| flag.load(Ordering::SeqCst) != 0)
    }

    /// Whether any rank died or panicked.
    #[inline(always)]
    pub fn any_lost(&self) -> bool {
        // Pairs with the Release in `end_from`.
        self.header().lost.load(Ordering::Acquire) != 0
    }

    /// How many ranks died or panicked.
    #[inline]
    pub fn count_lost(&self) -> u32 {
        // Pairs with the Release in `end_from`.
        self.header().lost.load(Ordering::Acquire)
    }

    /// As if the process that marked the last loss had been killed before it counted the loss.
    #[cfg(test)]
    pub(crate) fn uncount_lost(&self) {
        self.header().lost.fetch_sub(1, Ordering::Relaxed);
    }

    /// A number that changes whenever a rank ends, in any way.
    #[inline]
    pub fn ends(&self) -> u64 {
        let left = self.header().left.load(Ordering::Acquire);
        u64::from(self.count_lost()) << 32 | u64::from(left)
    }

    /// How many ranks have ended, in any way.
    #[inline]
    pub fn count_ended(&self) -> usize {
        self.count_lost() as usize + self.header().left.load(Ordering::Acquire) as usize
    }

    /// Notes that ranks go on after the death of another: the supervisor ends no other rank because of a death.
    pub fn set_survives(&self) {
        self.header().survives.store(1, Ordering::Relaxed);
    }

    /// Whether they do.
    pub fn survives(&self) -> bool {
        self.header().survives.load(Ordering::Relaxed) != 0
    }

    /// Whether any rank left in good order.
    #[inline(always)]
    pub fn any_left(&self) -> bool {
        // Pairs with the Release in `end_from`.
        self.header().left.load(Ordering::Acquire) != 0
    }

    /// Whether any rank has ended, in any way.
    #[inline(always)]
    pub fn any_gone(&self) -> bool {
        self.any_lost() || self.any_left()
    }

    /// Whether any rank has begun to leave, whatever became of it since.
    pub fn any_leaver(&self) -> bool {
        // Pairs with the Release in `begin_to_leave`.
        self.header().leavers.load(Ordering::Acquire) != 0
    }

    /// Whether a rank has left, and one more has left or begun to leave since `seen` was written here. For waits: which rank that is
    /// takes a look at every record.
    #[inline]
    pub fn has_news(&self, seen: &mut u32) -> bool {
        if !self.any_left() {
            return false;
        }
        // Both only grow. Pair with the Release in `end_from` and in `begin_to_leave`.
        let [left, leavers] = [&self.header().left, &self.header().leavers].map(|count| count.load(Ordering::Acquire));
        std::mem::replace(seen, left.wrapping_add(leavers)) != *seen
    }

    /// What became of `rank`, if it is gone.
    pub fn loss(&self, rank: usize) -> Option<Loss> {
        // Pairs with the Release in `end_from`.
        let word = self.record(rank).state.load(Ordering::Acquire);
        let detail = (word >> 32) as i32;
        match RankState::from_word(word as u32) {
            RankState::Absent | RankState::Starting | RankState::Running => None,
            RankState::Left => Some(Loss::Left),
            RankState::Panicked => Some(Loss::Panicked),
            RankState::Exited => Some(Loss::Exited(detail)),
            RankState::Signaled => Some(Loss::Signaled(detail)),
            RankState::Vanished if detail == OVERDUE as i32 => Some(Loss::Overdue),
            RankState::Vanished if detail == CUT as i32 => Some(Loss::Disconnected),
            RankState::Vanished => Some(Loss::Unknown),
        }
    }

    /// Notes that `rank` panics, and whether it gives up because of another rank. Called before any other rank is told: a rank that is told
    /// may leave, or panic, because of this panic.
    #[cold]
    pub fn begin_to_panic(&self, rank: usize, gave_up: bool) {
        // Release pairs with the Acquire load in `panics`.
        self.record(rank).panicking.store(if gave_up { GAVE_UP } else { PANICS }, Ordering::Release);
    }

    /// [`JobMemory::begin_to_panic`]'s note of `rank`.
    fn panics(&self, rank: usize) -> u32 {
        // Pairs with the Release in `begin_to_panic`.
        self.record(rank).panicking.load(Ordering::Acquire)
    }

    /// Ranks other than `own` that panic, by a note that is one of `which`, and have not ended.
    fn panicking(&self, own: usize, which: impl Fn(u32) -> bool) -> impl Iterator<Item = usize> {
        let is_panicking = move |rank: &usize| {
            let note = self.panics(*rank);
            *rank != own && note != 0 && note & AWAITED == 0 && which(note) && self.loss(*rank).is_none()
        };
        (0..self.ranks()).filter(is_panicking)
    }

    /// Whether `rank` has ended by a panic that another rank may have caused, see [`JobMemory::begin_to_panic`].
    pub fn panicked_later(&self, rank: usize) -> bool {
        self.rank_state(rank) == RankState::Panicked && self.panics(rank) & GAVE_UP != 0
    }

    /// Whether `rank` has ended in a way that another rank may have caused: it left in order, or [panicked later](Self::panicked_later).
    pub fn gave_up(&self, rank: usize) -> bool {
        self.rank_state(rank) == RankState::Left || self.panicked_later(rank)
    }

    /// What `lost` finds about a lost rank: now, or when a rank that panics has ended. This waits for the end of panicking ranks other
    /// than `own`, once for each panic and not for long, since a rank may have caught its panic and go on. For errors that must say
    /// why a rank has left.
    #[cold]
    pub fn await_panic(&self, own: usize, lost: impl Fn() -> Option<(usize, Loss)>) -> Option<(usize, Loss)> {
        self.await_panics(own, |_| true, lost)
    }

    /// `own` panics, and is about to end. If it gives up, another rank panicked before, and no rank `is_lost` yet, this waits for the end of
    /// that rank, as [`JobMemory::await_panic`], so that errors at other ranks name that rank. If that rank does not end, and no rank was
    /// missed, `own` counts as one that panicked first.
    #[cold]
    pub fn await_first_panic(&self, own: usize, is_lost: impl Fn() -> bool) {
        // A rank that panicked first does not wait: no two ranks wait for each other.
        if self.panics(own) & GAVE_UP == 0 {
            return;
        }
        let found = self.await_panics(own, |note| note == PANICS, || is_lost().then_some(()));
        if found.is_none() && self.first_missed().is_none() {
            // The rank that panicked before has caught its panic, and no other one explains this panic.
            self.record(own).panicking.store(PANICS, Ordering::Release);
        }
    }

    fn await_panics<T>(&self, own: usize, which: impl Fn(u32) -> bool, lost: impl Fn() -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            let ends = self.panicking(own, &which).next().is_some();
            let found = lost();
            if found.is_some() || !ends {
                return found;
            }
            if start.elapsed() > UNWOUND {
                for rank in self.panicking(own, &which) {
                    self.record(rank).panicking.fetch_or(AWAITED, Ordering::Relaxed);
                }
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The rank that died or panicked first.
    pub fn first_lost(&self) -> Option<(usize, Loss)> {
        self.first_lost_of(|_| true)
    }

    /// Of the ranks that are one of `which`, the one that died or panicked first.
    pub fn first_lost_of(&self, which: impl Fn(usize) -> bool) -> Option<(usize, Loss)> {
        if !self.any_lost() {
            return None;
        }
        (0..self.ranks())
            .filter(|rank| which(*rank))
            .filter_map(|rank| Some((rank, self.loss(rank).filter(|loss| *loss != Loss::Left)?)))
            .min_by_key(|(rank, _)| self.record(*rank).order.load(Ordering::Relaxed))
    }
}

/// The text that [`JobMemory::set_doing`] has written.
fn show(words: &[AtomicU64; DOING_LEN / 8]) -> String {
    let words = words.iter().map(|word| word.load(Ordering::Relaxed));
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
