//! The same bytes of all slots, a second time, without what lies between.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::mm::{MapFlags, ProtFlags};

/// Part after part of symmetric memory at consecutive addresses; unmapped when dropped.
///
/// The bytes are those of the slots, so what is written at one address is read at the other. It takes address space and
/// entries of page tables, no memory.
#[derive(Debug)]
pub struct Joined {
    base: *mut u8,
    len: usize,
    pieces: usize,
}

/// Pieces that this process has mapped so, each a mapping of the kernel's.
static PIECES: AtomicUsize = AtomicUsize::new(0);
/// An eighth of what a process may have by default (`vm.max_map_count`): beyond that, stacks and the heap would find none.
const MOST_PIECES: usize = 65530 / 8;

impl Joined {
    /// Maps `count` times `bytes` bytes of a file, `stride` bytes apart from `first` on. All are multiples of a page.
    /// `None` if the system does not give it, or this process has many already.
    pub(super) fn map(file: &OwnedFd, first: usize, stride: usize, count: usize, bytes: usize) -> Option<Joined> {
        let len = bytes.checked_mul(count).filter(|len| *len > 0)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice, that nothing can be stored in.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) }.ok()?;
        let joined = Joined { base: base.cast(), len, pieces: count };
        if PIECES.fetch_add(count, Relaxed) + count > MOST_PIECES {
            return None;
        }
        for part in 0..count {
            let (at, from) = (joined.base.wrapping_add(part * bytes), first + part * stride);
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            // SAFETY: over a piece of the mapping just made, which nobody knows of yet.
            unsafe { rustix::mm::mmap(at.cast(), bytes, access, flags, file.as_fd(), from as u64) }.ok()?;
        }
        Some(joined)
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // SAFETY: our own mapping; who has its address holds this too.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
        PIECES.fetch_sub(self.pieces, Relaxed);
    }
}
