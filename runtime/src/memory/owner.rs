//! Which process a mapping belongs to. A forked child has its parent's mappings and handles, but it is not the parent's rank.
//!
//! One page of each process is marked `MADV_WIPEONFORK` (Linux 4.14): the kernel gives it to a child as zeros, whichever call made
//! the child (`fork`, `_Fork`, `clone`). The page holds a number that is not 0 and that no ancestor had. An [`Owner`]
//! remembers it, so that the question "am I still that process" is a load and a comparison, no system call. A child of
//! `vfork` or of `clone` with `CLONE_VM` shares the page itself and is not told apart; it may do nothing but `exec`.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A page is the least that can be marked.
const PAGE: usize = 4096;

/// The word at the start of this process's marked page; null before the first [`Owner`].
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The next number for a process of this line of descent. A child continues its parent's count.
static NEXT: AtomicU32 = AtomicU32::new(1);
/// Used where the kernel cannot mark pages: then no child is told apart.
static UNMARKED: AtomicU32 = AtomicU32::new(0);

/// A process, as something of it remembers it.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    mark: &'static AtomicU32,
    number: u32,
    pid: u32,
}

impl Owner {
    /// This process.
    pub fn current() -> Owner {
        let mark = mark();
        if mark.load(Ordering::Relaxed) == 0 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            // Another thread may have been first; its number is as good.
            let _ = mark.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        }
        Owner { mark, number: mark.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether this is still that process, and not a child forked from it.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        // Relaxed: only the kernel changes it, between two instructions of this thread.
        self.mark.load(Ordering::Relaxed) == self.number
    }

    /// The number that the system gave it.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

fn mark() -> &'static AtomicU32 {
    // Pairs with the Release below: the page is marked before its address is known.
    let known = MARK.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: the page is never unmapped, and only touched as this atomic.
        return unsafe { &*known };
    }
    let Some(made) = marked_page() else { return &UNMARKED };
    match MARK.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { &*made },
        Err(first) => {
            // SAFETY: our own page, which nobody else has seen.
            let _ = unsafe { rustix::mm::munmap(made.cast(), PAGE) };
            // SAFETY: as above.
            unsafe { &*first }
        }
    }
}

fn marked_page() -> Option<*mut AtomicU32> {
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: fresh private memory at an address of the kernel's choice.
    let page = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE, access, kind) }.ok()?;
    // SAFETY: advice on the page just made, which is private and anonymous as it must be.
    if let Err(error) = unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) } {
        tracing::debug!(%error, "forked children are not told from ranks: the kernel cannot wipe a page on fork");
        return None;
    }
    Some(page.cast())
}
