//! The slots of all ranks of a node, mapped side by side, so that the address of a peer's slot takes one shift and one add.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FallocateFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::elsewhere::Elsewhere;
use super::joined::Joined;
use super::layout::{LINE, SlotLayout, Status};
use super::limits;
use super::owner::Owner;
use super::statics::Statics;
use crate::error::{CalledAt, Error, Result};
use crate::forked::Mapping;
use crate::membership::JobMemory;

/// Granularity of large commitments.
pub const HUGE_PAGE: usize = 2 << 20;
/// Granularity of small commitments.
const STEP: usize = 64 << 10;

/// Which pages the slots are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// The kernel's reserved pool of 2 MiB pages.
    Reserved,
    /// Transparent huge pages, where a range is large enough.
    Transparent,
    /// Pages of 4 KiB: huge pages are not available, or not wanted.
    Small,
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Pages::Reserved => "2 MiB pages from the reserved pool",
            Pages::Transparent => "transparent 2 MiB pages for large ranges, 4 KiB elsewhere",
            Pages::Small => "4 KiB pages",
        })
    }
}

/// The slots to map, and how.
#[derive(Debug, Clone, Copy)]
pub struct Slots {
    /// Where the first slot begins in the file.
    pub offset: usize,
    /// The rank of the first slot.
    pub first: usize,
    /// Number of slots.
    pub count: usize,
    /// Log2 of a slot's bytes.
    pub stride_log2: u32,
    /// The file is made of reserved huge pages.
    pub reserved: bool,
    /// Transparent huge pages are wanted.
    pub transparent: bool,
    /// If there are ranks without a slot here: the number of ranks of the job, and the offset in the file of the records that the ranks
    /// without a slot publish.
    pub elsewhere: Option<(usize, usize)>,
}

impl Slots {
    /// The slots of a job's memory file.
    pub fn of(job: &JobMemory, transparent: bool) -> Slots {
        let slots = job.slots();
        Slots {
            offset: job.slots_offset(),
            first: slots.start,
            count: slots.len(),
            stride_log2: job.stride_log2(),
            reserved: job.reserved_huge_pages(),
            transparent,
            elsewhere: job.elsewhere_offset().map(|offset| (job.ranks(), offset)),
        }
    }
}

/// The mapping of all slots. Ranks that are threads share one; ranks that are processes have one each, at different addresses.
#[derive(Debug)]
pub struct NodeMemory {
    base: *mut u8,
    mapping: Mapping,
    slots: Slots,
    elsewhere: Option<Elsewhere>,
    pages: Pages,
    fd: std::os::fd::OwnedFd,
    owner: Owner,
}

// SAFETY: a mapping is valid from every thread; what is stored in it is touched through atomics and raw copies.
unsafe impl Send for NodeMemory {}
// SAFETY: as above.
unsafe impl Sync for NodeMemory {}

impl NodeMemory {
    /// Maps all slots of the job's memory file. Reserves address space, not memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the address space is limited (`ulimit -v`).
    pub fn map(fd: BorrowedFd<'_>, slots: Slots) -> Result<NodeMemory> {
        let len = slots.count << slots.stride_log2;
        let fd = fd.try_clone_to_owned().map_err(|source| Error::Os {
            doing: "mapping the segments",
            call: "dup",
            source,
        })?;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &fd,
                slots.offset as u64,
            )
        }
        .map_err(|e| match e {
            rustix::io::Errno::NOMEM => {
                let (free, limit) = super::limits::address_space();
                Error::OutOfMemory {
                    what: "address space",
                    asked: 1 << slots.stride_log2,
                    free,
                    limit,
                    setting: "the limit on virtual memory (`ulimit -v`), or set BELLWETHER_HEAP_LIMIT, for which less is reserved", place: CalledAt::default(), }
            }
            other => Error::os("mapping the segments", "mmap", other),
        })?
        .cast::<u8>();
        let pages = if slots.reserved {
            Pages::Reserved
        } else if slots.transparent && transparent_offered() {
            // SAFETY: advice on our own mapping; it changes no content.
            match unsafe { rustix::mm::madvise(base.cast(), len, Advice::LinuxHugepage) } {
                Ok(()) => Pages::Transparent,
                Err(_) => Pages::Small,
            }
        } else {
            Pages::Small
        };
        // SAFETY: mapped just now, and unmapped by nothing else.
        let mapping = unsafe { Mapping::new(base, len) };
        let mut node = NodeMemory { base, mapping, slots, elsewhere: None, pages, fd, owner: Owner::current() };
        if let Some((ranks, offset)) = slots.elsewhere {
            node.elsewhere = Some(Elsewhere::map(node.fd.as_fd(), offset, ranks)?);
        }
        Ok(node)
    }

    /// The process whose ranks use this mapping.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Notes that `rank` is a rank of this process.
    pub fn note_rank(&self, rank: usize) {
        self.mapping.note_rank(rank);
    }

    /// Whether this is the process whose ranks use this mapping, and not a child forked from it.
    #[inline(always)]
    pub fn is_own(&self) -> bool {
        self.owner.is_current()
    }

    /// # Errors
    /// [`Error::Forked`] in a child forked from the process that is `rank`.
    #[inline(always)]
    pub fn check_own(&self, operation: &'static str, rank: usize) -> Result<()> {
        if self.is_own() { Ok(()) } else { Err(self.forked(operation, rank)) }
    }

    #[cold]
    fn forked(&self, operation: &'static str, rank: usize) -> Error {
        Error::Forked { operation, rank, parent: self.owner.pid(), child: std::process::id() }
    }

    /// Address that the slot of rank 0 has, or would have if it were mapped. The slot of rank `r`, if mapped, is at this address plus `r` strides.
    #[inline(always)]
    pub fn origin(&self) -> *mut u8 {
        self.base.wrapping_sub(self.slots.first << self.slots.stride_log2)
    }

    /// Log2 of a slot's bytes.
    #[inline(always)]
    pub fn stride_log2(&self) -> u32 {
        self.slots.stride_log2
    }

    /// Whether `rank` has a slot here.
    #[inline(always)]
    pub fn has_slot(&self, rank: usize) -> bool {
        rank.wrapping_sub(self.slots.first) < self.slots.count
    }

    /// Address of the slot of `rank` in this process.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline(always)]
    pub fn slot(&self, rank: usize) -> *mut u8 {
        assert!(self.has_slot(rank), "rank {rank} has no slot here");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.add((rank - self.slots.first) << self.slots.stride_log2) }
    }

    /// The status that `rank` publishes.
    ///
    /// # Panics
    /// If the job has no such rank.
    #[inline]
    pub fn status(&self, rank: usize) -> &Status {
        match &self.elsewhere {
            Some(elsewhere) if !self.has_slot(rank) => elsewhere.status(rank),
            // SAFETY: every slot begins with its Status, all atomics, committed before the rank arrives.
            _ => unsafe { &*self.slot(rank).cast::<Status>() },
        }
    }

    /// The connection record of `rank` for a network. If the rank has no slot here, only the head of the record,
    /// [`super::layout::CONNECTION_HEAD`] bytes.
    pub fn connection(&self, layout: &SlotLayout, rank: usize, network: usize) -> *mut u8 {
        match &self.elsewhere {
            Some(elsewhere) if !self.has_slot(rank) => elsewhere.connection(rank, network),
            // SAFETY: in the control area, which is part of every slot.
            _ => unsafe { self.slot(rank).add(layout.connection(network)) },
        }
    }

    /// The entries of the handler table of `rank`. Its status tells how many there are.
    pub fn handlers(&self, layout: &SlotLayout, rank: usize) -> *mut u8 {
        match &self.elsewhere {
            Some(elsewhere) if !self.has_slot(rank) => elsewhere.handlers(rank),
            // SAFETY: in the control area, which is part of every slot.
            _ => unsafe { self.slot(rank).add(layout.handlers + LINE) },
        }
    }

    /// Records that ranks without a slot publish here, if there are such ranks.
    pub(super) fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// Which pages the slots are made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Maps bytes `from..from + bytes` of all slots a second time, one slot right after the other. These bytes are backed; `from` and
    /// `bytes` are multiples of a page. Returns `None` where this costs more than it saves: with huge pages, which the second mapping would
    /// not have, and for so many slots that the process might run out of mappings.
    pub fn join(&self, from: usize, bytes: usize) -> Option<Joined> {
        const MOST: usize = 64;
        let large = self.pages == Pages::Reserved || (self.pages == Pages::Transparent && bytes >= HUGE_PAGE);
        if large || self.slots.count > MOST {
            return None;
        }
        let joined =
            Joined::map(&self.fd, self.slots.offset + from, 1 << self.slots.stride_log2, self.slots.count, bytes)?;
        joined.mapping().note_ranks_of(&self.mapping);
        Some(joined)
    }

    /// Maps the executable's static data from `offset` of `slot`, where there are `room` bytes; see [`super::statics`].
    ///
    /// # Errors
    /// As [`super::statics::lay`].
    pub fn lay_statics(&self, slot: usize, offset: usize, room: usize, shared: bool) -> Result<Statics> {
        let offset = self.offset_of(slot) + offset;
        super::statics::lay(self.fd.as_fd(), offset, room, shared)
    }

    /// Where the slot of `rank` begins in the file.
    fn offset_of(&self, rank: usize) -> usize {
        assert!(self.has_slot(rank), "rank {rank} has no slot here");
        self.slots.offset + ((rank - self.slots.first) << self.slots.stride_log2)
    }

    /// Granularity in bytes of a commitment of `wanted` bytes.
    pub fn granule(&self, wanted: usize) -> usize {
        if self.pages == Pages::Reserved || wanted >= HUGE_PAGE { HUGE_PAGE } else { STEP }
    }

    /// Backs bytes `from..to` of `slot` with memory before their first use. If memory is short, this call fails; without it the first
    /// access would raise SIGBUS. `sharers` ranks are about to do the same.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], naming `what` and the `setting` that limits it.
    pub fn commit(
        &self,
        slot: usize,
        from: usize,
        to: usize,
        sharers: usize,
        what: &'static str,
        setting: &'static str,
    ) -> Result<()> {
        let bytes = to - from;
        let full =
            |free| Error::OutOfMemory { what, asked: bytes, free, limit: free, setting, place: CalledAt::default() };
        if self.pages != Pages::Reserved {
            let available = limits::available();
            // One percent is left for everything else.
            let each = (available - available / 100) / sharers.max(1);
            if bytes > each {
                return Err(full(each));
            }
        }
        if self.pages == Pages::Transparent && bytes >= HUGE_PAGE {
            // SAFETY: inside the mapping of a slot that is ours to grow.
            let range = unsafe { self.slot(slot).add(from) };
            // SAFETY: populating our own mapping changes no content. fallocate would give small pages here.
            let done = unsafe { rustix::mm::madvise(range.cast(), bytes, Advice::LinuxPopulateWrite) };
            if done.is_ok() {
                return Ok(());
            }
        }
        let offset = self.offset_of(slot) + from;
        rustix::fs::fallocate(self.fd.as_fd(), FallocateFlags::empty(), offset as u64, bytes as u64).map_err(
            |e| match e {
                rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM => full(limits::available().min(bytes - 1)),
                other => Error::os("growing a segment", "fallocate", other),
            },
        )
    }
}

impl NodeMemory {
    /// Returns the memory of bytes `from..to` of `slot` to the system: they are as before [`NodeMemory::commit`]. No rank may use them
    /// meanwhile. Returns `false` if the kernel refuses.
    pub fn discard(&self, slot: usize, from: usize, to: usize) -> bool {
        let offset = self.offset_of(slot) + from;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd.as_fd(), flags, offset as u64, (to - from) as u64).is_ok()
    }
}

fn transparent_offered() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|modes| !modes.contains("[never]") && !modes.contains("[deny]"))
}
