//! Records of the ranks of other hosts, which have no slot on this host.
//!
//! ```text
//! | rank 0: Status, head of a connection record for each network | rank 1 | ... | handler tables, equal ones only once |
//! ```
//!
//! The host's agent writes the records, and the host's ranks read them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::copy;
use super::layout::{CONNECTION_HEAD, HANDLER_ENTRY, LINE, MAX_HANDLERS, NETWORKS_MAX, Status};
use super::node::HUGE_PAGE;
use crate::error::{Error, Result};
use crate::forked::Mapping;
use crate::membership::{PUBLISHED_LEN, TABLES_LEN, elsewhere_len};

/// Bytes of a table: a cache line with the number of entries plus one (0: the table is free), then the entries.
const TABLE_LEN: usize = LINE + MAX_HANDLERS * HANDLER_ENTRY;
/// Most different tables that are kept. A job whose ranks have different tables ends with an error, so more are of no use.
const TABLES: usize = TABLES_LEN / TABLE_LEN;

const _: () = assert!(size_of::<Status>() == LINE && LINE + NETWORKS_MAX * CONNECTION_HEAD <= PUBLISHED_LEN);

/// The mapping.
#[derive(Debug)]
pub(super) struct Elsewhere {
    base: *mut u8,
    _mapping: Mapping,
    ranks: usize,
}

impl Elsewhere {
    /// Maps the records at `offset` of the job's memory file. They are backed with memory.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(super) fn map(fd: BorrowedFd<'_>, offset: usize, ranks: usize) -> Result<Elsewhere> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // The file has so much room there, and the kernel changes access to reserved huge pages by whole ones.
        let len = elsewhere_len(ranks).next_multiple_of(HUGE_PAGE);
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, offset as u64) }
            .map_err(|e| Error::os("mapping what other hosts' ranks publish", "mmap", e))?;
        // SAFETY: mapped just now, and unmapped by nothing else.
        let mapping = unsafe { Mapping::new(base.cast(), len) };
        Ok(Elsewhere { base: base.cast(), _mapping: mapping, ranks })
    }

    fn at(&self, rank: usize) -> *mut u8 {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.add(rank * PUBLISHED_LEN) }
    }

    /// The status that `rank` publishes.
    pub(super) fn status(&self, rank: usize) -> &Status {
        // SAFETY: a cache line of the mapping, which lives as long as `self`; all fields are atomics.
        unsafe { &*self.at(rank).cast::<Status>() }
    }

    /// The first [`CONNECTION_HEAD`] bytes of the record of `network`.
    pub(super) fn connection(&self, rank: usize, network: usize) -> *mut u8 {
        assert!(network < NETWORKS_MAX, "network {network}");
        // SAFETY: inside the record of the rank, by the assertion above.
        unsafe { self.at(rank).add(LINE + network * CONNECTION_HEAD) }
    }

    fn table(&self, number: usize) -> (*mut u8, &AtomicU64) {
        assert!(number < TABLES, "table {number}");
        // SAFETY: inside the mapping: tables follow the ranks.
        let table = unsafe { self.base.add(self.ranks * PUBLISHED_LEN + number * TABLE_LEN) };
        // SAFETY: the first word of a line that is only touched as this atomic; the entries begin a line behind it.
        unsafe { (table.add(LINE), AtomicU64::from_ptr(table.cast())) }
    }

    /// The entries of the handler table of `rank`, whose status says that it is complete.
    pub(super) fn handlers(&self, rank: usize) -> *mut u8 {
        self.table(self.status(rank).table.load(Ordering::Relaxed) as usize).0
    }

    /// Keeps the handler table of `rank`. A table that is there already is not kept twice. If there is no room for one more, the table of
    /// the rank stays unknown here: the digest in its messages tells that it differs.
    pub(super) fn set_handlers(&self, rank: usize, entries: &[u8]) {
        let count = (entries.len() / HANDLER_ENTRY) as u64;
        for number in 0..TABLES {
            let (at, there) = self.table(number);
            let is_same = match there.load(Ordering::Acquire) {
                0 => {
                    // SAFETY: the caller has checked that the entries fit; no rank reads a table before a status has its number.
                    unsafe { copy::copy(at, entries.as_ptr(), entries.len()) };
                    there.store(count + 1, Ordering::Release);
                    true
                }
                other if other == count + 1 => {
                    let mut known = vec![0; entries.len()];
                    // SAFETY: the table has this many entries, and they do not change any more.
                    unsafe { copy::copy(known.as_mut_ptr(), at, known.len()) };
                    known == entries
                }
                _ => false,
            };
            if is_same {
                self.status(rank).table.store(number as u64, Ordering::Relaxed);
                // Pairs with the Acquire load of ranks that compare tables.
                self.status(rank).sealed.store(count + 1, Ordering::Release);
                return;
            }
        }
        tracing::warn!(rank, "the handler table of a rank on another host is one too many that differ");
    }
}
