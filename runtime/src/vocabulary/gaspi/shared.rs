//! The state that every thread of a process uses without the world: its queues, the ranges of its segments, its notifications, and the state
//! vector.
//!
//! A thread that has a queue may use segments of this process: [`Shared::end_segment`] passes through all queues, so no thread is left with
//! a segment that has ended. It does not pass through the slots of atomic operations: these find their word in the engine's table, and a close
//! waits for them there (`Reached`). A thread that is in the [`Monitor`](super::monitor::Monitor) may enter a slot; one that is in a slot never
//! enters the monitor.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::codes;
use super::config::QUEUE_MAX;
use super::notes::Board;
use super::queues::Queue;
use super::statistics::Statistics;
use super::types::{Code, QueueId, Result, SegmentId, State as Health};
use crate::thread::token;
use crate::vocabulary::bias::{BiasedLock, Guard};

/// Most looks of a wait before it makes progress for messages. Chosen: a few microseconds, longer than a notification of a process that
/// answers at once takes, and short beside a message that waits meanwhile.
const SPINS: u32 = 200;
/// Numbers of segments.
const SEGMENTS: usize = SegmentId::MAX as usize + 1;
/// Slots for atomic operations. Threads get one in turn; two with the same slot wait for each other for the length of one operation. Chosen.
const ATOMIC_SLOTS: usize = 8;

/// The number of the slot of this thread's atomic operations. Each thread gets the next number at its first atomic
/// operation, and keeps it; an ended thread's number is not given back.
#[inline]
fn atomic_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SLOT: usize = NEXT.fetch_add(1, Ordering::Relaxed) % ATOMIC_SLOTS);
    SLOT.with(|slot| *slot)
}

/// The place of a queue. A thread that takes it again and again, no other between, takes it without a locked instruction.
#[repr(align(64))]
struct Slot {
    lock: BiasedLock,
    /// The thread that is in, by [`token`]; 0 is none.
    owner: AtomicUsize,
    queue: UnsafeCell<Option<Queue>>,
    /// The process that the queue belongs to. A forked child has the slot too, as it was, and none of the other threads.
    process: u32,
}

// SAFETY: `queue` is only touched by the thread that is in, and `lock` lets one in at a time.
unsafe impl Sync for Slot {}
// SAFETY: as above; a queue may be dropped by any thread.
unsafe impl Send for Slot {}

/// The right to use the place of a queue, until it is dropped.
pub(super) struct Entry<'a> {
    slot: &'a Slot,
    /// `None`: this thread is in as the favourite.
    guard: Option<Guard<'a>>,
    me: usize,
}

/// The right of the favourite thread to use the place of a queue, until it is dropped. One word, which is passed in a register: an
/// [`Entry`] is stored in parts and loaded as a whole, and the load waits until all earlier stores are visible.
pub(super) struct Favoured<'a>(&'a Slot);

impl Slot {
    fn new() -> Slot {
        #[cfg(not(loom))]
        let lock = BiasedLock::new();
        #[cfg(loom)]
        let lock = BiasedLock::default();
        Slot { lock, owner: AtomicUsize::new(0), queue: UnsafeCell::new(None), process: std::process::id() }
    }

    #[inline(always)]
    fn enter(&self) -> Result<Entry<'_>> {
        let me = token();
        self.check_outside(me)?;
        let guard = if self.lock.enter_favoured(me) { None } else { Some(self.acquire()?) };
        Ok(self.entered(guard, me))
    }

    /// Waits while another thread is in.
    ///
    /// # Errors
    /// [`codes::ERROR`] in a forked child, if a thread of the parent was in: it never leaves there.
    #[cold]
    fn acquire(&self) -> Result<Guard<'_>> {
        match self.lock.try_acquire() {
            Some(guard) => Ok(guard),
            // Asked only before a wait: it is a system call.
            None if self.process != std::process::id() => Err(Code(codes::ERROR)),
            None => Ok(self.lock.acquire(&|| {})),
        }
    }

    /// As [`Slot::enter`], if this thread is the favourite and is not in.
    #[inline(always)]
    fn enter_favoured(&self) -> Option<Favoured<'_>> {
        let me = token();
        if self.owner.load(Ordering::Relaxed) == me || !self.lock.enter_favoured(me) {
            return None;
        }
        self.owner.store(me, Ordering::Relaxed);
        Some(Favoured(self))
    }

    fn try_enter(&self) -> Option<Entry<'_>> {
        let me = token();
        self.check_outside(me).ok()?;
        let guard = if self.lock.enter_favoured(me) { None } else { Some(self.lock.try_acquire()?) };
        Some(self.entered(guard, me))
    }

    /// # Errors
    /// [`codes::ERROR`] if this thread is in: what the runtime calls, such as a subscriber of its log, has called.
    #[inline(always)]
    fn check_outside(&self, me: usize) -> Result<()> {
        if self.owner.load(Ordering::Relaxed) == me { Err(Code(codes::ERROR)) } else { Ok(()) }
    }

    #[inline(always)]
    fn entered<'a>(&'a self, guard: Option<Guard<'a>>, me: usize) -> Entry<'a> {
        self.owner.store(me, Ordering::Relaxed);
        Entry { slot: self, guard, me }
    }
}

impl Deref for Entry<'_> {
    type Target = Option<Queue>;

    #[inline(always)]
    fn deref(&self) -> &Option<Queue> {
        // SAFETY: this thread is in.
        unsafe { &*self.slot.queue.get() }
    }
}

impl DerefMut for Entry<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Option<Queue> {
        // SAFETY: as above.
        unsafe { &mut *self.slot.queue.get() }
    }
}

impl Entry<'_> {
    /// As the drop, which is not inlined.
    #[inline(always)]
    pub(super) fn leave(self) {
        if self.guard.is_some() {
            return;
        }
        let slot = self.slot;
        std::mem::forget(self);
        slot.owner.store(0, Ordering::Relaxed);
        slot.lock.leave_favoured();
    }
}

impl Favoured<'_> {
    #[inline(always)]
    pub(super) fn queue(&mut self) -> Option<&mut Queue> {
        // SAFETY: this thread is in.
        unsafe { &mut *self.0.queue.get() }.as_mut()
    }
}

impl Drop for Favoured<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.owner.store(0, Ordering::Relaxed);
        self.0.lock.leave_favoured();
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.slot.owner.store(0, Ordering::Relaxed);
        match self.guard.take() {
            None => self.slot.lock.leave_favoured(),
            Some(guard) => self.slot.lock.release(guard, self.me),
        }
    }
}

/// The range of a segment of this process.
#[derive(Default)]
struct Range {
    start: AtomicUsize,
    /// 0: there is no such segment.
    size: AtomicU64,
}

/// See the module.
pub(super) struct Shared {
    slots: [Slot; QUEUE_MAX as usize],
    /// Queues that nothing is posted on: their contexts do atomic operations. Empty outside of the working phase, and in a job with a network.
    atomics: [Slot; ATOMIC_SLOTS],
    ranges: Box<[Range; SEGMENTS]>,
    pub(super) board: Board,
    states: Box<[AtomicU8]>,
    /// A bit for each segment that this process may reach, of each rank: its owner has registered it here, or made it together with this
    /// process.
    registered: Box<[[AtomicU64; SEGMENTS / 64]]>,
    /// A bit for each queue that exists. A thread changes a bit while it holds the queue's slot; only a thread in the monitor sets one.
    present: AtomicU32,
    /// A bit for each queue with reads in flight that set notifications here.
    pub(super) reads: AtomicU32,
    /// The number of the working phase, which no other one of any process here has; 0 outside of one.
    pub(super) phase: AtomicU64,
    /// Looks of a wait before it enters the monitor.
    spins: u32,
    pub(super) statistics: Statistics,
}

impl Shared {
    pub(super) fn new(ranks: usize, has_network: bool, spins: u32) -> Shared {
        Shared {
            slots: std::array::from_fn(|_| Slot::new()),
            atomics: std::array::from_fn(|_| Slot::new()),
            ranges: Box::new(std::array::from_fn(|_| Range::default())),
            board: Board::new(has_network),
            states: (0..ranks).map(|_| AtomicU8::new(Health::Healthy as u8)).collect(),
            registered: (0..ranks).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            present: AtomicU32::new(0),
            reads: AtomicU32::new(0),
            phase: AtomicU64::new(0),
            spins: spins.min(SPINS),
            statistics: Statistics::default(),
        }
    }

    /// Begins a working phase.
    pub(super) fn begin_phase(&self) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.phase.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Looks for something a few times, before a wait that makes progress for messages.
    #[inline]
    pub(super) fn spin<R>(&self, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        for _ in 0..self.spins {
            std::hint::spin_loop();
            if let Some(found) = look() {
                return Some(found);
            }
        }
        None
    }

    /// Enters the place of a queue, which may be empty; waits while another thread is in.
    ///
    /// # Errors
    /// [`codes::INV_QUEUE`] if there is no such place; [`codes::ERROR`] if this thread is in; as [`Slot::acquire`].
    #[inline(always)]
    pub(super) fn enter(&self, queue: QueueId) -> Result<Entry<'_>> {
        self.slots.get(usize::from(queue)).ok_or(Code(codes::INV_QUEUE))?.enter()
    }

    /// As [`Shared::enter`], if this thread is the favourite and is not in. `None` says nothing more.
    #[inline(always)]
    pub(super) fn enter_favoured(&self, queue: QueueId) -> Option<Favoured<'_>> {
        self.slots.get(usize::from(queue))?.enter_favoured()
    }

    /// As [`Shared::enter`]; `None` if another thread is in.
    pub(super) fn try_enter(&self, queue: QueueId) -> Option<Entry<'_>> {
        self.slots.get(usize::from(queue))?.try_enter()
    }

    /// Enters the slot of this thread's atomic operations, if it is not empty.
    #[inline]
    pub(super) fn enter_atomics(&self) -> Option<Entry<'_>> {
        self.atomics[atomic_slot()].enter().ok().filter(|entry| entry.is_some())
    }

    /// Fills the slots of atomic operations.
    ///
    /// # Errors
    /// What `open` returns.
    pub(super) fn open_atomics(&self, open: impl Fn() -> Result<Queue>) -> Result<()> {
        self.atomics.iter().try_for_each(|slot| {
            *slot.enter()? = Some(open()?);
            Ok(())
        })
    }

    /// The queues that exist, a bit for each. Looking at the slots instead would wait while a thread posts.
    pub(super) fn present(&self) -> u32 {
        self.present.load(Ordering::Relaxed)
    }

    /// Makes a queue in a slot that has none. The calling thread is in the monitor.
    ///
    /// # Errors
    /// What `open` returns; as [`Shared::enter`].
    pub(super) fn make_queue(&self, id: QueueId, open: impl FnOnce() -> Result<Queue>) -> Result<()> {
        // Held until the bit is set, so that a thread that deletes this queue comes later.
        let mut entry = self.enter(id)?;
        *entry = Some(open()?);
        self.present.fetch_or(1 << id, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a queue out of its slot.
    pub(super) fn take_queue(&self, id: QueueId, entry: &mut Entry<'_>) -> Option<Queue> {
        self.present.fetch_and(!(1 << id), Ordering::Relaxed);
        entry.take()
    }

    /// Takes all queues away, and what is in the slots of atomic operations.
    pub(super) fn take_queues(&self) -> Vec<Queue> {
        self.present.store(0, Ordering::Relaxed);
        self.slots.iter().chain(&self.atomics).filter_map(|slot| slot.enter().ok()?.take()).collect()
    }

    /// Makes a segment of this process known.
    pub(super) fn put_segment(&self, segment: SegmentId, start: *mut u8, size: u64) {
        let range = &self.ranges[usize::from(segment)];
        range.start.store(start as usize, Ordering::Relaxed);
        // Pairs with the Acquire load in `range`.
        range.size.store(size, Ordering::Release);
    }

    /// Ends a segment and its notifications. On return no queue uses them, nor will. An atomic operation may still be in flight in the
    /// segment: its close waits for that (`Reached`).
    pub(super) fn end_segment(&self, segment: SegmentId) {
        self.ranges[usize::from(segment)].size.store(0, Ordering::Relaxed);
        self.board.remove(segment);
        (0..QUEUE_MAX as QueueId).for_each(|queue| drop(self.enter(queue)));
    }

    /// The address of a range of a segment of this process, for a thread that has entered a queue or the monitor.
    ///
    /// # Errors
    /// [`codes::INV_SEG`]; [`codes::INV_LOC_OFF`].
    #[inline(always)]
    pub(super) fn range(&self, segment: SegmentId, offset: u64, size: u64) -> Result<*mut u8> {
        let range = &self.ranges[usize::from(segment)];
        // Pairs with the Release store in `put_segment`.
        let len = range.size.load(Ordering::Acquire);
        if offset < len && size <= len - offset {
            return Ok((range.start.load(Ordering::Relaxed) + offset as usize) as *mut u8);
        }
        Err(Code(if len == 0 { codes::INV_SEG } else { codes::INV_LOC_OFF }))
    }

    /// This process may reach a segment of `rank` from now on, and later ones with its id.
    pub(super) fn register(&self, rank: usize, segment: SegmentId) {
        if let Some(of) = self.registered.get(rank) {
            of[usize::from(segment / 64)].fetch_or(1 << (segment % 64), Ordering::Relaxed);
        }
    }

    /// Whether this process may reach a segment of another `rank`.
    pub(super) fn is_registered(&self, rank: usize, segment: SegmentId) -> bool {
        let of = self.registered.get(rank);
        of.is_some_and(|of| of[usize::from(segment / 64)].load(Ordering::Relaxed) & 1 << (segment % 64) != 0)
    }

    /// This process may reach no segment of others.
    pub(super) fn forget_registered(&self) {
        self.registered.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Notes that an operation with this process has failed.
    pub(super) fn corrupt(&self, rank: usize) {
        self.states[rank].store(Health::Corrupt as u8, Ordering::Relaxed);
    }

    pub(super) fn states(&self) -> Vec<Health> {
        let of = |state: &AtomicU8| match state.load(Ordering::Relaxed) {
            0 => Health::Healthy,
            _ => Health::Corrupt,
        };
        self.states.iter().map(of).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_does_not_wait_for_a_thread_of_its_parent_that_posts() {
        let (shared, posts, forked) =
            (Shared::new(1, false, 0), std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        let status = std::thread::scope(|scope| {
            scope.spawn(|| {
                let entry = shared.enter(3).expect("nobody else posts");
                posts.wait();
                forked.wait();
                drop(entry);
            });
            posts.wait();
            // SAFETY: the child allocates nothing, and ends.
            let child = unsafe { libc::fork() };
            let error = std::io::Error::last_os_error();
            if child < 0 {
                // The scope waits for the thread.
                forked.wait();
                panic!("no child: {error}");
            }
            if child == 0 {
                // SAFETY: no preconditions. A child that waits ends by the signal.
                unsafe { libc::alarm(30) };
                let is_refused = matches!(shared.enter(3), Err(Code(codes::ERROR))) && shared.enter(4).is_ok();
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(i32::from(!is_refused)) };
            }
            let mut status = 0;
            // SAFETY: our own child, and a place for its status.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            forked.wait();
            assert_eq!(ended, child);
            status
        });
        assert_eq!(status, 0, "the child was not refused; 14 is SIGALRM: it waits");
        drop(shared.enter(3).expect("the thread has left"));
    }
}
