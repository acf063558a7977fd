//! Records that ranks publish in their slots, for agents to copy from host to host. A host keeps the records of ranks that have no slot on
//! it beside the slots.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::copy;
use super::layout::{CONNECTION_HEAD, HANDLER_ENTRY, LINE, MAX_HANDLERS, NETWORKS_MAX, SlotLayout, Status};
use super::node::NodeMemory;
use crate::error::{Error, Result};
use crate::membership::hosts::{Published, Sleeper};

const PAGE: usize = 4096;

/// The slots of all ranks as one host has them mapped.
#[derive(Debug)]
pub struct PublishedInSlots {
    node: Arc<NodeMemory>,
    layout: SlotLayout,
}

impl PublishedInSlots {
    /// The slots of `node`, laid out as `layout` says.
    pub fn new(node: Arc<NodeMemory>, layout: SlotLayout) -> PublishedInSlots {
        PublishedInSlots { node, layout }
    }

    fn commit(&self, rank: usize, from: usize, len: usize) -> Result<()> {
        let pages = (from / PAGE * PAGE, (from + len).next_multiple_of(PAGE));
        self.node.commit(rank, pages.0, pages.1, 1, "memory to start", "")
    }

    fn status(&self, rank: usize) -> &Status {
        self.node.status(rank)
    }
}

impl Published for PublishedInSlots {
    fn make_room(&self, rank: usize) -> Result<()> {
        // A rank without a slot here has room for its record from the start.
        if !self.node.has_slot(rank) {
            return Ok(());
        }
        self.commit(rank, 0, size_of::<Status>())?;
        (0..NETWORKS_MAX).try_for_each(|network| self.commit(rank, self.layout.connection(network), CONNECTION_HEAD))
    }

    fn records(&self, rank: usize) -> Vec<u8> {
        let mut records = vec![0; NETWORKS_MAX * CONNECTION_HEAD];
        for (network, record) in records.chunks_exact_mut(CONNECTION_HEAD).enumerate() {
            // SAFETY:
            // - the head of the record is committed, by its rank, by `make_room` or from the start;
            // - the rank has arrived, so the address and the first piece change no more.
            unsafe {
                copy::copy(record.as_mut_ptr(), self.node.connection(&self.layout, rank, network), CONNECTION_HEAD)
            };
        }
        records
    }

    fn set_records(&self, rank: usize, records: &[u8]) -> Result<()> {
        if records.len() != NETWORKS_MAX * CONNECTION_HEAD {
            return Err(Error::Start(format!("the connection records of rank {rank} have {} bytes", records.len())));
        }
        for (network, record) in records.chunks_exact(CONNECTION_HEAD).enumerate() {
            // SAFETY: its head is committed by `make_room` or from the start, and no rank reads it before its owner has arrived.
            unsafe { copy::copy(self.node.connection(&self.layout, rank, network), record.as_ptr(), CONNECTION_HEAD) };
        }
        Ok(())
    }

    fn handlers(&self, rank: usize) -> Option<Vec<u8>> {
        // Pairs with the Release store that closes the table.
        let count = self.status(rank).sealed.load(Ordering::Acquire).checked_sub(1)?;
        let mut entries = vec![0; (count as usize).min(MAX_HANDLERS) * HANDLER_ENTRY];
        // SAFETY: entries of a closed table, which are committed and change no more.
        unsafe { copy::copy(entries.as_mut_ptr(), self.node.handlers(&self.layout, rank), entries.len()) };
        Some(entries)
    }

    fn set_handlers(&self, rank: usize, entries: &[u8]) -> Result<()> {
        let count = entries.len() / HANDLER_ENTRY;
        if count > MAX_HANDLERS || !entries.len().is_multiple_of(HANDLER_ENTRY) {
            return Err(Error::Start(format!("rank {rank} has a table of {} bytes", entries.len())));
        }
        if let Some(elsewhere) = self.node.elsewhere().filter(|_| !self.node.has_slot(rank)) {
            elsewhere.set_handlers(rank, entries);
            return Ok(());
        }
        self.commit(rank, self.layout.handlers + LINE, entries.len())?;
        // SAFETY: committed above. Readers load the count first, which is stored below.
        unsafe { copy::copy(self.node.handlers(&self.layout, rank), entries.as_ptr(), entries.len()) };
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
    use super::*;
    use crate::membership::JobMemory;
    use crate::membership::nodes::Nodes;
    use crate::memory::node::Slots;
    use crate::settings::Settings;

    /// The memory of host `host`, with room for the ranks of others.
    fn memory(nodes: &[u32], host: usize) -> PublishedInSlots {
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let (ranks, nodes) = (nodes.len(), Nodes::of_each(nodes));
        let job = JobMemory::create_on(ranks, &nodes, host, &settings).expect("a job");
        let node = Arc::new(NodeMemory::map(job.fd(), Slots::of(&job, false)).expect("maps"));
        let layout = SlotLayout::new(ranks, job.ranks_here(), 1 << job.stride_log2(), Some(4));
        let published = PublishedInSlots::new(node, layout);
        for rank in 0..ranks {
            assert_eq!(job.is_here(rank), nodes.of(rank) == host);
            match job.is_here(rank) {
                true => published.commit(rank, 0, layout.control_len).expect("room"),
                false => published.make_room(rank).expect("room"),
            }
        }
        published
    }

    fn write(at: *mut u8, bytes: &[u8]) {
        // SAFETY: callers pass room for that many bytes, which nobody else uses.
        unsafe { copy::copy(at, bytes.as_ptr(), bytes.len()) };
    }

    fn read(at: *const u8, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as in `write`.
        unsafe { copy::copy(bytes.as_mut_ptr(), at, len) };
        bytes
    }

    /// Publishes as `rank` of its own host does: a record a network, and a table of `count` handlers.
    fn publish(theirs: &PublishedInSlots, rank: usize, count: u8, salt: u8) {
        for network in 0..NETWORKS_MAX {
            let record: Vec<u8> = (0..CONNECTION_HEAD).map(|i| (i * 7 + network + rank) as u8 ^ salt).collect();
            write(theirs.node.connection(&theirs.layout, rank, network), &record);
        }
        let entries: Vec<u8> = (0..usize::from(count) * HANDLER_ENTRY).map(|i| (i % 251) as u8 ^ salt).collect();
        write(theirs.node.handlers(&theirs.layout, rank), &entries);
        theirs.status(rank).sealed.store(u64::from(count) + 1, Ordering::Release);
    }

    /// A rank between others of this host has a slot there, which its own host's ranks do not use; one behind them has none.
    #[test]
    fn a_rank_reads_the_same_in_another_hosts_copy() {
        for (nodes, with_slot) in [(&[0, 1, 0][..], true), (&[0, 1][..], false), (&[0, 0, 1, 1, 2], false)] {
            let (theirs, ours) = (memory(nodes, 1), memory(nodes, 0));
            let rank = nodes.iter().position(|node| *node == 1).expect("a rank of host 1");
            assert_eq!((ours.node.has_slot(rank), theirs.node.has_slot(rank)), (with_slot, true));
            assert_eq!(theirs.handlers(rank), None, "not closed yet");
            publish(&theirs, rank, 3, 5);
            ours.set_records(rank, &theirs.records(rank)).expect("records");
            ours.set_handlers(rank, &theirs.handlers(rank).expect("closed")).expect("a table");
            assert_eq!(ours.records(rank), theirs.records(rank));
            assert_eq!(ours.handlers(rank), theirs.handlers(rank));
            for network in 0..NETWORKS_MAX {
                let at =
                    |host: &PublishedInSlots| read(host.node.connection(&host.layout, rank, network), CONNECTION_HEAD);
                assert_eq!(at(&ours), at(&theirs), "network {network}");
            }
            ours.set_entered(rank, 77);
            assert_eq!((ours.entered(rank), ours.entered(0)), (77, 0));
        }
    }

    #[test]
    fn equal_tables_of_ranks_elsewhere_are_kept_once_and_others_apart() {
        let nodes = [0, 1, 1, 1];
        let (theirs, ours) = (memory(&nodes, 1), memory(&nodes, 0));
        let table = |count, salt| {
            publish(&theirs, 1, count, salt);
            theirs.handlers(1).expect("closed")
        };
        let [one, other, shorter] = [table(3, 5), table(3, 6), table(2, 5)];
        for (rank, entries) in [(1, &one), (2, &other), (3, &one)] {
            ours.set_handlers(rank, entries).expect("a table");
        }
        assert_eq!([1, 2, 3].map(|rank| ours.handlers(rank)), [&one, &other, &one].map(|table| Some(table.clone())));
        let at = |rank| ours.node.handlers(&ours.layout, rank);
        assert!(at(1) == at(3) && at(1) != at(2));
        ours.set_handlers(3, &shorter).expect("a table");
        assert_eq!(ours.handlers(3), Some(shorter));
        // More than there is room for: not known, as before a table is closed.
        let last = memory(&nodes, 0);
        for salt in 0..40 {
            last.set_handlers(1, &table(1, salt)).expect("a table");
            last.set_handlers(2, &table(1, 0)).expect("a table");
        }
        assert!(last.handlers(1).is_some() && last.handlers(2) == Some(table(1, 0)));
        last.set_handlers(3, &table(1, 99)).expect("a table");
        assert_eq!(last.handlers(3), None);
    }

    #[test]
    fn a_host_of_a_job_of_a_million_ranks_keeps_what_the_others_publish() {
        const HERE: usize = 64;
        let ranks = 1_000_000;
        let nodes = Nodes::in_turn(ranks, &[HERE]);
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let job = JobMemory::create_on(ranks, &nodes, 7, &settings).expect("a job");
        assert_eq!((job.slots(), job.ranks_here()), (7 * HERE..8 * HERE, HERE));
        let node = Arc::new(NodeMemory::map(job.fd(), Slots::of(&job, false)).expect("maps"));
        let layout = SlotLayout::new(ranks, HERE, 1 << job.stride_log2(), None);
        let published = PublishedInSlots::new(Arc::clone(&node), layout);
        let records = |rank: usize| {
            let words = (0..NETWORKS_MAX * CONNECTION_HEAD / 8).flat_map(|word| ((rank << 16) + word).to_ne_bytes());
            words.collect::<Vec<u8>>()
        };
        let elsewhere = || (0..ranks).filter(|rank| !job.slots().contains(rank)).step_by(97);
        let entries = vec![3; 5 * HANDLER_ENTRY];
        for rank in elsewhere() {
            published.make_room(rank).expect("room");
            published.set_records(rank, &records(rank)).expect("records");
            published.set_handlers(rank, &entries).expect("a table");
        }
        for rank in elsewhere() {
            assert!(published.records(rank) == records(rank), "rank {rank}");
            assert_eq!(published.handlers(rank).map(|entries| entries.len()), Some(5 * HANDLER_ENTRY));
        }
        // The slots of this host lie apart, behind the records that were just written.
        for rank in job.slots() {
            assert_eq!(node.slot(rank) as usize, (node.origin() as usize).wrapping_add(rank << node.stride_log2()));
            published.commit(rank, 0, layout.control_len).expect("room");
            assert_eq!(node.status(rank).sealed.load(Ordering::Relaxed), 0);
        }
    }
}
