//! The memory of one job on one node. The roster is at its head.
//!
//! One unnamed memory file holds it all. It belongs to the kernel: when the last rank is gone, so is the file. In a job on
//! several hosts, each host has such a file, with a record for every rank of the job, and with slots from the host's first rank
//! to its last. The records that ranks without a slot publish lie before the slots ([`crate::memory::elsewhere`]).
//!
//! ```text
//! | roster: Header, one RankRecord a rank | ranks without a slot | slot of the first rank here | slot of the next rank | ...
//! 0                                       roster_len             slots_offset                  + stride
//! ```

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::at_end::AtEnd;
use super::file;
use super::guard::Guarded;
use super::nodes::Nodes;
use super::roster::{HEADER_LEN, Header, RankRecord};
use crate::error::{Error, Result};
use crate::forked::Mapping;
use crate::settings::{HugePages, Settings};

const MAGIC: u64 = u64::from_le_bytes(*b"bellwthr");
const VERSION: u32 = 9;
/// Slots begin at a multiple of this, so that huge pages fit.
pub const HUGE_PAGE: usize = 2 << 20;
/// Address space of one rank, unless the job is too large for it.
const STRIDE_LOG2: u32 = 36;
/// Address space of one job on one node, at most: well below the 128 TiB of a process.
const SPAN_LOG2: u32 = 45;
/// Address space of one rank, at least.
const STRIDE_LOG2_MIN: u32 = 31;
/// Ranks of a job, at most.
pub const MAX_RANKS: usize = 1 << 20;
/// Bytes that a host keeps for a rank without a slot, beside its record.
pub const PUBLISHED_LEN: usize = 512;
/// Bytes that a host keeps for the tables of all these ranks.
pub const TABLES_LEN: usize = 512 << 10;
/// Slots of a file, at most: ranks from the first to the last of a host.
pub const MAX_SLOTS: usize = 1 << 16;

/// Which ranks have slots on a host, and how many ranks have some on the host with the most.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    slots: Range<usize>,
    most: usize,
}

impl Span {
    /// That of a job on one host.
    fn of_all(ranks: usize) -> Span {
        Span { slots: 0..ranks, most: ranks }
    }

    /// That of host `host`, in a job on the hosts `nodes`.
    fn of_host(ranks: usize, nodes: &Nodes, host: usize) -> Span {
        let mut spans = vec![None; nodes.count()];
        for rank in 0..ranks {
            let (_, end) = spans[nodes.of(rank)].get_or_insert((rank, rank));
            *end = rank + 1;
        }
        let slots = |span: &Option<(usize, usize)>| span.map_or(0..0, |(first, end)| first..end);
        let most = spans.iter().map(|span| slots(span).len()).max().unwrap_or(ranks);
        Span { slots: slots(&spans[host]), most }
    }
}

/// The job's memory file, with its roster mapped.
#[derive(Debug)]
pub struct JobMemory {
    fd: OwnedFd,
    pub(super) roster: *mut u8,
    pub(super) mapping: Mapping,
    ranks: usize,
    pub(super) at_end: AtEnd,
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
        if ranks == 0 || ranks > MAX_SLOTS {
            let why = format!("{ranks} ranks asked on one host, which can have 1 to {MAX_SLOTS}");
            return Err(Error::InvalidArgument { operation: "starting a job", why });
        }
        Self::create_for(ranks, &Span::of_all(ranks), settings)
    }

    /// Makes the memory of host `host` of a job of `ranks` ranks on several hosts, and says which ranks run elsewhere.
    ///
    /// # Errors
    /// As [`JobMemory::create`]; [`Error::InvalidArgument`] if too many ranks lie between the host's first and its last.
    pub fn create_on(ranks: usize, nodes: &Nodes, host: usize, settings: &Settings) -> Result<JobMemory> {
        let job = Self::create_for(ranks, &Span::of_host(ranks, nodes, host), settings)?;
        job.set_elsewhere((0..ranks).filter(|rank| nodes.of(*rank) != host));
        Ok(job)
    }

    fn create_for(ranks: usize, span: &Span, settings: &Settings) -> Result<JobMemory> {
        let refused = |why| Err(Error::InvalidArgument { operation: "starting a job", why });
        if ranks == 0 || ranks > MAX_RANKS {
            return refused(format!("{ranks} ranks asked; from 1 to {MAX_RANKS} are possible"));
        }
        if span.most > MAX_SLOTS {
            return refused(format!(
                "{} ranks from the first to the last of one host; at most {MAX_SLOTS} are possible: start fewer on a host, or \
                 those of a host one after the other (`--map-by core`, `--distribution=block`)",
                span.most
            ));
        }
        let slots = span.slots.len();
        let stride_log2 = stride_log2(span.most, settings);
        let head_len = head_len(ranks, slots);
        let len = head_len + (slots << stride_log2);
        let (fd, reserved) = match settings.huge_pages {
            // Static data does not have room for a whole number of these.
            HugePages::Auto if settings.static_data => (file::sealed(len, MemfdFlags::empty())?, false),
            HugePages::Auto => match reserved_huge_pages(slots, head_len, len) {
                Some(fd) => (fd, true),
                None => (file::sealed(len, MemfdFlags::empty())?, false),
            },
            HugePages::Off => (file::sealed(len, MemfdFlags::empty())?, false),
        };
        if !reserved {
            let used = if slots < ranks { head_len } else { used_len(ranks) };
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, used as u64)
                .map_err(|e| Error::os("making the job's memory", "fallocate", e))?;
        }
        let job = Self::map(fd, ranks)?;
        let header = job.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.ranks.store(ranks as u32, Ordering::Relaxed);
        header.first_slot.store(span.slots.start as u32, Ordering::Relaxed);
        header.slots.store(slots as u32, Ordering::Relaxed);
        header.stride_log2.store(stride_log2, Ordering::Relaxed);
        header.reserved_huge_pages.store(u32::from(reserved), Ordering::Relaxed);
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::os("making the job's key", "getrandom", e))?;
        job.set_key(key);
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
        let (stride_log2, slots) = (job.stride_log2(), job.slots());
        let is_inside = slots.end <= ranks && slots.len() <= MAX_SLOTS && stride_log2 <= STRIDE_LOG2;
        if !is_inside || size as usize != head_len(ranks, slots.len()) + (slots.len() << stride_log2) {
            let slots = slots.len();
            return Err(wrong(format!("holds {size} bytes, which is not {slots} slots of 2^{stride_log2}")));
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
        // SAFETY: mapped just now, and unmapped by nothing else.
        let mapping = unsafe { Mapping::new(roster.cast(), roster_len) };
        Ok(JobMemory { fd, roster: roster.cast(), mapping, ranks, at_end: AtEnd::default() })
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
        unsafe { Guarded::new(self.roster, self.mapping.len()) }
    }

    /// Ranks in the job.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The ranks that have a slot: from the first to the last of this host.
    pub fn slots(&self) -> Range<usize> {
        let [first, slots] =
            [&self.header().first_slot, &self.header().slots].map(|n| n.load(Ordering::Relaxed) as usize);
        first..first + slots
    }

    /// Where the first of the slots begins in the file.
    pub fn slots_offset(&self) -> usize {
        head_len(self.ranks, self.slots().len())
    }

    /// Where in the file is what ranks without a slot publish, if there are such ranks.
    pub fn elsewhere_offset(&self) -> Option<usize> {
        (self.slots().len() < self.ranks).then(|| self.mapping.len())
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

fn used_len(ranks: usize) -> usize {
    const { assert!(size_of::<Header>() <= HEADER_LEN && HEADER_LEN.is_multiple_of(align_of::<RankRecord>())) };
    (HEADER_LEN + size_of::<RankRecord>() * ranks).next_multiple_of(4096)
}

fn roster_len(ranks: usize) -> usize {
    used_len(ranks).next_multiple_of(HUGE_PAGE)
}

/// Bytes for the records that ranks without a slot publish.
pub fn elsewhere_len(ranks: usize) -> usize {
    ranks * PUBLISHED_LEN + TABLES_LEN
}

/// Bytes before the slots.
fn head_len(ranks: usize, slots: usize) -> usize {
    let elsewhere = if slots < ranks { elsewhere_len(ranks).next_multiple_of(HUGE_PAGE) } else { 0 };
    roster_len(ranks) + elsewhere
}

/// Least message memory of a rank's contexts, in bytes: 64 KiB for each of 64 (`transport/shm/arena.rs`), and what rounding to a huge
/// page takes.
const CONTEXTS_MESSAGES: usize = 8 << 20;

/// Log2 of the address space of one rank. Less than usual where a limit on the heap says that it is not needed: some
/// tools, and limits on virtual memory, allow no larger mappings.
fn stride_log2(slots: usize, settings: &Settings) -> u32 {
    let needed = settings.heap_limit.map_or(u32::MAX, |heap| {
        // The heap has more than half of a slot, and the message memory, with that of contexts, a quarter.
        let messages = settings.message_memory.saturating_add(CONTEXTS_MESSAGES);
        let bytes = heap.max(messages.saturating_mul(2)).saturating_mul(2);
        bytes.checked_next_power_of_two().map_or(u32::MAX, usize::ilog2)
    });
    needed.clamp(STRIDE_LOG2_MIN, STRIDE_LOG2).min(SPAN_LOG2 - slots.next_power_of_two().ilog2())
}

/// A file of reserved huge pages, if the pool has enough of them to be worth it.
fn reserved_huge_pages(slots: usize, head_len: usize, len: usize) -> Option<OwnedFd> {
    let free: usize = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()?
        .trim()
        .parse()
        .ok()?;
    // Below this the pool would only make the heap smaller.
    if free < head_len / HUGE_PAGE + 32 * slots {
        return None;
    }
    let fd = file::sealed(len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).ok()?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, head_len as u64).ok()?;
    Some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_slots_from_a_hosts_first_rank_to_its_last() {
        let span = |nodes: &[u32], host| {
            let span = Span::of_host(nodes.len(), &Nodes::of_each(nodes), host);
            (span.slots, span.most)
        };
        assert_eq!(span(&[0, 0, 1, 1, 1], 0), (0..2, 3));
        assert_eq!(span(&[0, 0, 1, 1, 1], 1), (2..5, 3));
        assert_eq!(span(&[0, 1, 0, 1, 2], 1), (1..4, 3));
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let nodes = Nodes::of_each(&[0, 0, 1, 1, 1]);
        let files = [0, 1].map(|host| JobMemory::create_on(5, &nodes, host, &settings).expect("a job"));
        assert_eq!(files[0].stride_log2(), files[1].stride_log2(), "offsets mean the same on all hosts");
        for (file, slots) in files.iter().zip([0..2, 2..5]) {
            let joined =
                JobMemory::from_fd(file.fd().try_clone_to_owned().expect("one more"), 5).expect("the same job");
            assert_eq!((joined.slots(), joined.slots_offset()), (slots.clone(), file.slots_offset()));
            assert_eq!((0..5).filter(|rank| joined.is_here(*rank)).collect::<Vec<_>>(), slots.collect::<Vec<_>>());
            assert!(joined.elsewhere_offset().is_some());
        }
        let (uneven, defaults) = (Nodes::in_turn(40_002, &[40_000, 2]), Settings::default());
        let strides =
            [0, 1].map(|host| JobMemory::create_on(40_002, &uneven, host, &defaults).expect("a job").stride_log2());
        assert_eq!(strides, [29, 29]);
        let alone = JobMemory::create(5, &settings).expect("a job");
        assert_eq!((alone.slots(), alone.elsewhere_offset()), (0..5, None));
        // A million ranks fit where a host has its ranks in a row, and not where they are dealt out.
        let dealt = Nodes::of_each(&(0..1_000_000).map(|rank| rank % 1000).collect::<Vec<_>>());
        let refused = JobMemory::create_on(1_000_000, &dealt, 0, &settings).expect_err("too far apart").to_string();
        assert!(refused.contains("one after the other"), "{refused}");
    }

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
        assert_eq!(stride(MAX_SLOTS, None, 1 << 20), 29);
    }
}
