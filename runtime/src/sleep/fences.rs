//! The fences of a sleeper and of its wakers.

#[cfg(not(loom))]
use std::sync::atomic::fence;
use std::sync::atomic::{Ordering, compiler_fence};

#[cfg(loom)]
use loom::sync::atomic::fence;

/// Which fences a sleeper and its wakers use. All that wake one rank, and the rank itself, have to agree; a [`Fences::Full`] on the
/// side of a waker is right with either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fences {
    /// The sleeper runs a barrier on the cores of all wakers (membarrier(2)); wakers only keep the compiler from reordering.
    Asymmetric,
    /// Both sides use a full fence: over a network, where ranks share cores, and where a kernel has no expedited membarrier.
    Full,
    /// None at all: models show that a wake-up is then lost.
    #[cfg(all(test, loom))]
    Missing,
}

impl Fences {
    /// The fence between the announcement of a sleeper and its last check.
    pub(super) fn of_sleeper(self) {
        match self {
            Fences::Asymmetric => membarrier(),
            // Pairs with the fence in `of_waker`.
            Fences::Full => fence(Ordering::SeqCst),
            #[cfg(all(test, loom))]
            Fences::Missing => {}
        }
    }

    /// The fence between a waker's store and its load of the sleeper's word.
    #[inline(always)]
    pub(crate) fn of_waker(self) {
        match self {
            // Pairs with the membarrier in `of_sleeper`.
            Fences::Asymmetric => compiler_fence(Ordering::SeqCst),
            // Pairs with the fence in `of_sleeper`.
            Fences::Full => fence(Ordering::SeqCst),
            #[cfg(all(test, loom))]
            Fences::Missing => {}
        }
    }
}

const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const GLOBAL_EXPEDITED: i32 = 1 << 1;

/// Registers this process for expedited membarriers of other processes; membarrier(2). Returns whether the kernel has them: if it
/// has not, all ranks have to use [`Fences::Full`].
pub fn register_process() -> bool {
    // SAFETY: the call takes integers only and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// Makes every core that runs a registered process pass a full barrier.
fn membarrier() {
    // SAFETY: as above.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) };
    debug_assert_eq!(done, 0, "registering worked, so this does");
}

/// Whether [`run_barrier`] may be called. Asks the kernel the first time, in each thread that comes before the answer is known.
pub fn has_barrier() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static HAS: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(UNKNOWN);
    // Relaxed: the answer is all that is handed over. A process may register more than once.
    match HAS.load(Ordering::Relaxed) {
        _ if cfg!(loom) => true,
        UNKNOWN => {
            // SAFETY: as above.
            let has = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 };
            HAS.store(if has { YES } else { NO }, Ordering::Relaxed);
            has
        }
        answer => answer == YES,
    }
}

/// Makes every core that runs a thread of this process pass a full barrier; membarrier(2). If another thread has a [`light_barrier`]
/// between a store and a load, then after this call either that store is visible, or that load sees the earlier stores of this thread.
///
/// Only after [`has_barrier`] has returned true.
#[cfg(not(loom))]
pub fn run_barrier() {
    // SAFETY: as above.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) };
    debug_assert_eq!(done, 0, "registering worked, so this does");
}

/// Keeps the compiler from moving a load before the stores that precede it, and costs nothing else. Pairs with [`run_barrier`].
#[inline(always)]
#[cfg(not(loom))]
pub fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// loom has no membarrier(2). In models both sides are full fences, which order the same store and load on each side.
#[cfg(loom)]
pub fn run_barrier() {
    // Pairs with the fence in `light_barrier`.
    fence(Ordering::SeqCst);
}

/// See [`run_barrier`].
#[cfg(loom)]
pub fn light_barrier() {
    // Pairs with the fence in `run_barrier`.
    fence(Ordering::SeqCst);
}
