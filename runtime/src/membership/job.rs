//! The memory of one job on one node. The roster is at its head.
//!
//! One unnamed memory file holds it all. It belongs to the kernel: when the last rank is gone, so is the file. Of a job on
//! several hosts each has such a file, with a record and a slot for every rank of the job.
//!
//! ```text
//! | roster: Header, one RankRecord a rank | slot of rank 0 | slot of rank 1 | ...
//! 0                                       header_len       + stride
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::file;
use super::guard::Guarded;
use super::roster::{HEADER_LEN, Header, RankRecord};
use crate::error::{Error, Result};
use crate::settings::{HugePages, Settings};

const MAGIC: u64 = u64::from_le_bytes(*b"bellwthr");
const VERSION: u32 = 5;
/// Slots begin at a multiple of this, so that huge pages fit.
pub const HUGE_PAGE: usize = 2 << 20;
/// Address space of one rank, unless the job is too large for it.
const STRIDE_LOG2: u32 = 36;
/// Address space of one job on one node, at most: well below the 128 TiB of a process.
const SPAN_LOG2: u32 = 45;
/// Address space of one rank, at least.
const STRIDE_LOG2_MIN: u32 = 31;
/// Ranks on one node, at most.
pub const MAX_RANKS: usize = 1 << 16;

/// The job's memory file, with its roster mapped.
#[derive(Debug)]
pub struct JobMemory {
    fd: OwnedFd,
    pub(super) roster: *mut u8,
    roster_len: usize,
    ranks: usize,
}

// SAFETY: the mapping lives as long as the value and is only touched through atomics.
unsafe impl Send for JobMemory {}
// SAFETY: as above.
unsafe impl Sync for JobMemory {}

impl JobMemory {
    /// Makes the memory of a job of `ranks` ranks on this node.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0 or too many ranks; [`Error::Os`] if the kernel has no memory files.
    pub fn create(ranks: usize, settings: &Settings) -> Result<JobMemory> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(Error::InvalidArgument {
                operation: "starting a job",
                why: format!("{ranks} ranks asked; from 1 to {MAX_RANKS} fit on one node"),
            });
        }
        let stride_log2 = stride_log2(ranks, settings);
        let roster_len = roster_len(ranks);
        let len = roster_len + (ranks << stride_log2);
        let (fd, reserved) = match settings.huge_pages {
            // Static data has no room for a whole number of them.
            HugePages::Auto if settings.static_data => (file::sealed(len, MemfdFlags::empty())?, false),
            HugePages::Auto => match reserved_huge_pages(ranks, len) {
                Some(fd) => (fd, true),
                None => (file::sealed(len, MemfdFlags::empty())?, false),
            },
            HugePages::Off => (file::sealed(len, MemfdFlags::empty())?, false),
        };
        if !reserved {
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, used_len(ranks) as u64)
                .map_err(|e| Error::os("making the job's memory", "fallocate", e))?;
        }
        let job = Self::map(fd, ranks)?;
        let header = job.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.ranks.store(ranks as u32, Ordering::Relaxed);
        header.stride_log2.store(stride_log2, Ordering::Relaxed);
        header.reserved_huge_pages.store(u32::from(reserved), Ordering::Relaxed);
        // Pairs with the Acquire load in `from_fd`.
        header.magic.store(MAGIC, Ordering::Release);
        Ok(job)
    }

    /// Joins the job whose memory file was handed to this process.
    ///
    /// # Errors
    /// [`Error::Start`] if the descriptor is not such a file, or not of this version.
    pub fn from_fd(fd: OwnedFd, ranks: usize) -> Result<JobMemory> {
        let wrong = |why: String| Error::Start(format!("the job descriptor {why}; start through `bellwether run`"));
        let size = rustix::fs::fstat(&fd).map_err(|e| Error::os("joining the job", "fstat", e))?.st_size;
        if ranks == 0 || ranks > MAX_RANKS || (size as usize) < roster_len(ranks) {
            return Err(wrong(format!("holds {size} bytes, too few for {ranks} ranks")));
        }
        let job = Self::map(fd, ranks)?;
        let header = job.header();
        // Pairs with the Release store in `create`.
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(wrong("is not a Bellwether job".into()));
        }
        let version = header.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(wrong(format!("has layout {version}, this program has {VERSION}")));
        }
        let there = header.ranks.load(Ordering::Relaxed);
        if there as usize != ranks {
            return Err(wrong(format!("is a job of {there} ranks, not {ranks}")));
        }
        let stride_log2 = job.stride_log2();
        if stride_log2 > STRIDE_LOG2 || size as usize != roster_len(ranks) + (ranks << stride_log2) {
            return Err(wrong(format!("holds {size} bytes, which is not {ranks} slots of 2^{stride_log2}")));
        }
        Ok(job)
    }

    fn map(fd: OwnedFd, ranks: usize) -> Result<JobMemory> {
        let roster_len = roster_len(ranks);
        // SAFETY: a fresh shared mapping of a file that we hold; no address is asked for.
        let roster = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                roster_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(|e| Error::os("mapping the job's roster", "mmap", e))?;
        Ok(JobMemory { fd, roster: roster.cast(), roster_len, ranks })
    }

    #[inline(always)]
    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a Header, all of it atomics, for as long as self lives.
        unsafe { &*self.roster.cast::<Header>() }
    }

    /// The memory file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the roster is still this job's. It is not if a hole was punched into the file, which reads as zeros.
    pub fn is_intact(&self) -> bool {
        self.header().magic.load(Ordering::Relaxed) == MAGIC
    }

    /// While what it returns lives, this process reads zeros where the roster is lost, and does not end by SIGBUS. For a
    /// process that supervises ranks: a rank could not go on.
    pub(crate) fn guard(&self) -> Guarded {
        // SAFETY: the roster stays mapped as long as `self`, which the caller holds; it has states, counts and words of text,
        // of which any may be 0.
        unsafe { Guarded::new(self.roster, self.roster_len) }
    }

    /// Ranks in the job.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Where the slot of rank 0 begins in the file.
    pub fn slots_offset(&self) -> usize {
        self.roster_len
    }

    /// Log2 of the distance from one slot to the next, in bytes.
    pub fn stride_log2(&self) -> u32 {
        self.header().stride_log2.load(Ordering::Relaxed)
    }

    /// Whether the file is made of the kernel's reserved huge pages.
    pub fn reserved_huge_pages(&self) -> bool {
        self.header().reserved_huge_pages.load(Ordering::Relaxed) != 0
    }
}

impl Drop for JobMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; nothing borrowed from it outlives self.
        let _ = unsafe { rustix::mm::munmap(self.roster.cast(), self.roster_len) };
    }
}

fn used_len(ranks: usize) -> usize {
    const { assert!(size_of::<Header>() <= HEADER_LEN && HEADER_LEN.is_multiple_of(align_of::<RankRecord>())) };
    (HEADER_LEN + size_of::<RankRecord>() * ranks).next_multiple_of(4096)
}

fn roster_len(ranks: usize) -> usize {
    used_len(ranks).next_multiple_of(HUGE_PAGE)
}

/// Least message memory of a rank's contexts, in bytes: 64 KiB for each of 64 (`transport/shm/arena.rs`), and what rounding to a huge
/// page takes.
const CONTEXTS_MESSAGES: usize = 8 << 20;

/// Log2 of the address space of one rank. Less than usual where a limit on the heap says that it is not needed: some
/// tools, and limits on virtual memory, allow no larger mappings.
fn stride_log2(ranks: usize, settings: &Settings) -> u32 {
    let needed = settings.heap_limit.map_or(u32::MAX, |heap| {
        // The heap has more than half of a slot, and the message memory, with that of contexts, a quarter.
        let messages = settings.message_memory.saturating_add(CONTEXTS_MESSAGES);
        let bytes = heap.max(messages.saturating_mul(2)).saturating_mul(2);
        bytes.checked_next_power_of_two().map_or(u32::MAX, usize::ilog2)
    });
    needed.clamp(STRIDE_LOG2_MIN, STRIDE_LOG2).min(SPAN_LOG2 - ranks.next_power_of_two().ilog2())
}

/// A file of reserved huge pages, if the pool has enough of them to be worth it.
fn reserved_huge_pages(ranks: usize, len: usize) -> Option<OwnedFd> {
    let free: usize = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()?
        .trim()
        .parse()
        .ok()?;
    // Below this the pool would only make the heap smaller.
    if free < 1 + 32 * ranks {
        return None;
    }
    let fd = file::sealed(len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).ok()?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, roster_len(ranks) as u64).ok()?;
    Some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_on_the_heap_saves_address_space() {
        let stride = |ranks, heap_limit, message_memory| {
            stride_log2(ranks, &Settings { heap_limit, message_memory, ..Settings::default() })
        };
        assert_eq!(stride(2, None, 1 << 20), 36);
        assert_eq!(stride(2, Some(1 << 20), 1 << 20), 31);
        assert_eq!(stride(2, Some(3 << 30), 1 << 20), 33);
        assert_eq!(stride(2, Some(1 << 20), 1 << 31), 34);
        assert_eq!(stride(2, Some(usize::MAX), usize::MAX), 36);
        assert_eq!(stride(MAX_RANKS, None, 1 << 20), 29);
    }
}
