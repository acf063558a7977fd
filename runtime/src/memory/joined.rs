//! A second, contiguous mapping of one byte range of every slot.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::mm::{MapFlags, ProtFlags};

use crate::forked::Mapping;

/// One range of every slot, mapped back to back in rank order; unmapped when dropped.
///
/// It aliases the slots: a store through one mapping is visible through the other. It takes address space and page-table
/// entries, no memory.
#[derive(Debug)]
pub struct Joined {
    mapping: Mapping,
    pieces: usize,
}

/// Pieces that this process has mapped this way; each is one kernel mapping.
static PIECES: AtomicUsize = AtomicUsize::new(0);
/// One eighth of the default `vm.max_map_count`, so that stacks and the heap still get mappings.
const MOST_PIECES: usize = 65530 / 8;

impl Joined {
    /// Maps `count` ranges of `bytes` bytes; range i begins at file offset `first + i * stride`. All are multiples of a page.
    /// `None` if the system refuses, or if this process has too many such mappings.
    pub(super) fn map(file: &OwnedFd, first: usize, stride: usize, count: usize, bytes: usize) -> Option<Joined> {
        let len = bytes.checked_mul(count).filter(|len| *len > 0)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice, that nothing can be stored in.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) }.ok()?;
        // SAFETY: mapped just now, and unmapped by nothing else. What is mapped over it below is shared memory of the job.
        let joined = Joined { mapping: unsafe { Mapping::new(base.cast(), len) }, pieces: count };
        if PIECES.fetch_add(count, Relaxed) + count > MOST_PIECES {
            return None;
        }
        for part in 0..count {
            let (at, from) = (joined.base().wrapping_add(part * bytes), first + part * stride);
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            // SAFETY: inside the reservation made above, whose address no other code has yet.
            unsafe { rustix::mm::mmap(at.cast(), bytes, access, flags, file.as_fd(), from as u64) }.ok()?;
        }
        Some(joined)
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.mapping.start()
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        PIECES.fetch_sub(self.pieces, Relaxed);
    }
}
