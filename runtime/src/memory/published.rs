//! What ranks publish in their slots, for their agents to copy from host to host.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::copy;
use super::layout::{ADDRESS_MAX, HANDLER_ENTRY, LINE, MAX_HANDLERS, NETWORKS_MAX, PIECE_LEN, SlotLayout, Status};
use super::node::NodeMemory;
use crate::error::{Error, Result};
use crate::membership::hosts::{Published, Sleeper};

/// Bytes that are copied of a connection record: the address and the first registered piece. The other pieces are fetched over the
/// network itself.
const RECORD: usize = LINE + ADDRESS_MAX + LINE + PIECE_LEN;
const PAGE: usize = 4096;

/// The slots of all ranks as one host has them mapped.
#[derive(Debug)]
pub struct PublishedInSlots {
    node: Arc<NodeMemory>,
    layout: SlotLayout,
}

impl PublishedInSlots {
    /// Those of `node`, which are laid out so.
    pub fn new(node: Arc<NodeMemory>, layout: SlotLayout) -> PublishedInSlots {
        PublishedInSlots { node, layout }
    }

    fn commit(&self, rank: usize, from: usize, len: usize) -> Result<()> {
        let pages = (from / PAGE * PAGE, (from + len).next_multiple_of(PAGE));
        self.node.commit(rank, pages.0, pages.1, 1, "memory to start", "")
    }

    fn at(&self, rank: usize, offset: usize) -> *mut u8 {
        // SAFETY: callers pass offsets in the control area, which is part of every slot.
        unsafe { self.node.slot(rank).add(offset) }
    }

    fn status(&self, rank: usize) -> &Status {
        // SAFETY: every slot begins with its Status, all atomics; `make_room` or the rank itself, before it arrives, commits it.
        unsafe { &*self.node.slot(rank).cast::<Status>() }
    }
}

impl Published for PublishedInSlots {
    fn make_room(&self, rank: usize) -> Result<()> {
        self.commit(rank, 0, size_of::<Status>())?;
        (0..NETWORKS_MAX).try_for_each(|network| self.commit(rank, self.layout.connection(network), RECORD))
    }

    fn records(&self, rank: usize) -> Vec<u8> {
        let mut records = vec![0; NETWORKS_MAX * RECORD];
        for (network, record) in records.chunks_exact_mut(RECORD).enumerate() {
            // SAFETY:
            // - the record is in the control area, committed by its rank or by `make_room`;
            // - the rank has arrived, so the address and the first piece change no more.
            unsafe { copy::copy(record.as_mut_ptr(), self.at(rank, self.layout.connection(network)), RECORD) };
        }
        records
    }

    fn set_records(&self, rank: usize, records: &[u8]) -> Result<()> {
        if records.len() != NETWORKS_MAX * RECORD {
            return Err(Error::Start(format!("the connection records of rank {rank} have {} bytes", records.len())));
        }
        for (network, record) in records.chunks_exact(RECORD).enumerate() {
            // SAFETY: `make_room` committed the record, and no rank reads it before its owner has arrived.
            unsafe { copy::copy(self.at(rank, self.layout.connection(network)), record.as_ptr(), RECORD) };
        }
        Ok(())
    }

    fn handlers(&self, rank: usize) -> Option<Vec<u8>> {
        // Pairs with the Release store that closes the table.
        let count = self.status(rank).sealed.load(Ordering::Acquire).checked_sub(1)?;
        let mut entries = vec![0; (count as usize).min(MAX_HANDLERS) * HANDLER_ENTRY];
        // SAFETY: entries of a closed table, which are committed and change no more.
        unsafe { copy::copy(entries.as_mut_ptr(), self.at(rank, self.layout.handlers + LINE), entries.len()) };
        Some(entries)
    }

    fn set_handlers(&self, rank: usize, entries: &[u8]) -> Result<()> {
        let count = entries.len() / HANDLER_ENTRY;
        if count > MAX_HANDLERS || !entries.len().is_multiple_of(HANDLER_ENTRY) {
            return Err(Error::Start(format!("rank {rank} has a table of {} bytes", entries.len())));
        }
        let from = self.layout.handlers + LINE;
        self.commit(rank, from, entries.len())?;
        // SAFETY: committed above. Readers load the count first, which is stored below.
        unsafe { copy::copy(self.at(rank, from), entries.as_ptr(), entries.len()) };
        // Pairs with the Acquire load of ranks that compare tables.
        self.status(rank).sealed.store(count as u64 + 1, Ordering::Release);
        Ok(())
    }

    fn entered(&self, rank: usize) -> u64 {
        self.status(rank).entered.load(Ordering::Acquire)
    }

    fn set_entered(&self, rank: usize, entered: u64) {
        self.status(rank).entered.store(entered, Ordering::Release);
    }

    fn wait(&self, rank: usize) -> Sleeper {
        let status = self.status(rank);
        // The wait is read first: the wakes read after it were in that wait, or later.
        let wait = status.waiting.load(Ordering::Acquire);
        Sleeper { rank, wait, wakes: status.wakes.load(Ordering::Acquire) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU8;

    use super::*;
    use crate::membership::JobMemory;
    use crate::memory::node::Slots;
    use crate::settings::Settings;

    /// The slots of two ranks.
    fn slots() -> PublishedInSlots {
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let job = JobMemory::create(2, &settings).expect("a job");
        let stride_log2 = job.stride_log2();
        let slots = Slots { offset: job.slots_offset(), count: 2, stride_log2, reserved: false, transparent: false };
        let node = NodeMemory::map(job.fd(), slots).expect("maps");
        let published = PublishedInSlots::new(Arc::new(node), SlotLayout::new(2, 2, 1 << stride_log2, Some(4)));
        (0..2).for_each(|rank| published.make_room(rank).expect("room"));
        published
    }

    fn byte(published: &PublishedInSlots, rank: usize, offset: usize) -> &AtomicU8 {
        // SAFETY: a byte of the control area that is committed.
        unsafe { AtomicU8::from_ptr(published.at(rank, offset)) }
    }

    #[test]
    fn a_rank_reads_the_same_in_another_hosts_copy() {
        let (theirs, ours) = (slots(), slots());
        assert_eq!(theirs.handlers(1), None, "not closed yet");
        theirs.commit(1, theirs.layout.handlers + LINE, 2 * HANDLER_ENTRY).expect("room");
        let last = theirs.layout.handlers + LINE + 2 * HANDLER_ENTRY - 1;
        byte(&theirs, 1, last).store(9, Ordering::Relaxed);
        theirs.status(1).sealed.store(3, Ordering::Release);
        for network in 0..NETWORKS_MAX {
            let (first, last) = (theirs.layout.connection(network), theirs.layout.connection(network) + RECORD - 1);
            byte(&theirs, 1, first + LINE).store(1 + network as u8, Ordering::Relaxed);
            byte(&theirs, 1, last).store(5 + network as u8, Ordering::Relaxed);
        }
        ours.set_records(1, &theirs.records(1)).expect("records");
        ours.set_handlers(1, &theirs.handlers(1).expect("closed")).expect("a table");
        for network in 0..NETWORKS_MAX {
            let (first, last) = (ours.layout.connection(network), ours.layout.connection(network) + RECORD - 1);
            let read = |offset| byte(&ours, 1, offset).load(Ordering::Relaxed);
            assert_eq!((read(first + LINE), read(last)), (1 + network as u8, 5 + network as u8));
        }
        assert_eq!(byte(&ours, 1, last).load(Ordering::Relaxed), 9);
        assert_eq!(ours.status(1).sealed.load(Ordering::Acquire), 3);
    }

    #[test]
    fn bytes_of_another_length_change_nothing() {
        let ours = slots();
        for len in [0, 5, RECORD, NETWORKS_MAX * RECORD + 1] {
            let error = ours.set_records(1, &vec![1; len]).expect_err("no records");
            assert!(error.to_string().contains(&format!("of rank 1 have {len} bytes")), "{error}");
        }
        for len in [5, HANDLER_ENTRY + 1, (MAX_HANDLERS + 1) * HANDLER_ENTRY] {
            let error = ours.set_handlers(1, &vec![1; len]).expect_err("no table");
            assert!(error.to_string().contains(&format!("a table of {len} bytes")), "{error}");
        }
        assert_eq!((ours.handlers(1), ours.records(1)), (None, vec![0; NETWORKS_MAX * RECORD]));
    }
}
