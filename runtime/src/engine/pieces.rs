//! Which parts of a slot are registered with the network, and under which keys.
//!
//! A network pins registered memory, so a slot is registered piece by piece as it is backed with memory. Each rank
//! keeps a table of its pieces in its own slot; peers copy it when they meet an offset that is not in their copy. The
//! table, which is in no order, only grows, and an entry is whole before the count says that it is there, so the count is read first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::copy;
use crate::memory::layout::{
    ADDRESS_IN_CONNECTION, ADDRESS_MAX, PIECE_LEN, PIECES_HEAD, PIECES_IN_CONNECTION, PIECES_MAX, SlotLayout,
};
use crate::memory::node::NodeMemory;
use crate::transport::{Error, PACKED_KEY_LEN, Result};

/// An entry of a table: bytes of the slot from `start` to `end`, and the key to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Entry {
    start: u64,
    end: u64,
    key: [u8; PACKED_KEY_LEN],
}

const _: () = assert!(size_of::<Entry>() == PIECE_LEN);

/// The record by which a rank is reached over one network: the address of its interface, and the table of its pieces.
#[derive(Debug)]
pub(super) struct Connection {
    node: Arc<NodeMemory>,
    layout: SlotLayout,
    rank: usize,
    network: usize,
}

impl Connection {
    /// The connection record of `rank` for this network, which is committed as `layout` says.
    pub(super) fn new(node: &Arc<NodeMemory>, layout: SlotLayout, rank: usize, network: usize) -> Connection {
        Connection { node: Arc::clone(node), layout, rank, network }
    }

    /// The byte at `offset` of the record.
    fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: callers pass offsets in the record; beyond its head only of this rank's own.
        unsafe { self.node.connection(&self.layout, self.rank, self.network).add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the committed control area, only touched as this atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    /// Shows the address of this rank's interface. Once, before the rank arrives.
    ///
    /// # Errors
    /// [`Error::ExceedsLimit`] for one that is longer than [`ADDRESS_MAX`].
    pub(super) fn show_address(&self, address: &[u8]) -> Result<()> {
        if address.len() > ADDRESS_MAX {
            return Err(Error::ExceedsLimit {
                what: "the address of an interface",
                length: address.len(),
                limit: ADDRESS_MAX,
            });
        }
        // SAFETY: our own slot, with room for that many bytes; nobody reads them before the length is there.
        unsafe { copy::copy(self.at(ADDRESS_IN_CONNECTION), address.as_ptr(), address.len()) };
        // Pairs with the Acquire load in `address`.
        self.word(0).store(address.len() as u64, Ordering::Release);
        Ok(())
    }

    /// The address that the rank shows; empty if it shows none yet.
    pub(super) fn address(&self) -> Vec<u8> {
        // Pairs with the Release store in `show_address`.
        let len = self.word(0).load(Ordering::Acquire) as usize;
        let mut address = vec![0; len.min(ADDRESS_MAX)];
        // SAFETY: inside the control area.
        unsafe { copy::copy(address.as_mut_ptr(), self.at(ADDRESS_IN_CONNECTION), address.len()) };
        address
    }

    /// Adds a piece of this rank's slot to the table.
    ///
    /// # Errors
    /// [`Error::NoResource`] if the table is full.
    pub(super) fn add(&self, start: usize, end: usize, key: [u8; PACKED_KEY_LEN]) -> Result<()> {
        let count = self.word(PIECES_IN_CONNECTION);
        let known = count.load(Ordering::Relaxed) as usize;
        if known == PIECES_MAX {
            return Err(Error::NoResource);
        }
        let entry = Entry { start: start as u64, end: end as u64, key };
        // SAFETY: our own table, with room for the entry; nobody reads it before the count says that it is there.
        unsafe {
            let at = self.at(PIECES_IN_CONNECTION + PIECES_HEAD + known * PIECE_LEN);
            copy::copy(at, (&raw const entry).cast(), PIECE_LEN);
        };
        // Pairs with the Acquire load in `first`, and with a peer's fetch of the count before that of the entry.
        count.store(known as u64 + 1, Ordering::Release);
        Ok(())
    }

    /// The first entry, where the slot is mapped here: the key to the table itself.
    pub(super) fn first(&self) -> Option<Entry> {
        // Pairs with the Release store in `add`.
        if self.word(PIECES_IN_CONNECTION).load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut entry: Entry = bytemuck::Zeroable::zeroed();
        // SAFETY: inside the control area; an entry that is there is not written again.
        unsafe { copy::copy((&raw mut entry).cast(), self.at(PIECES_IN_CONNECTION + PIECES_HEAD), PIECE_LEN) };
        Some(entry)
    }
}

/// A range of a peer's memory that is registered there, with its key: a piece of its slot, or a segment.
#[derive(Debug)]
pub(super) struct Registration<K> {
    start: usize,
    end: usize,
    pub(super) key: K,
}

impl<K> Registration<K> {
    /// Bytes from `start` to `end`, under this key.
    pub(super) fn new(start: usize, end: usize, key: K) -> Registration<K> {
        Registration { start, end, key }
    }

    /// Whether `offset` is in the piece.
    #[inline(always)]
    pub(super) fn contains(&self, offset: usize) -> bool {
        self.start <= offset && offset < self.end
    }

    /// Bytes from the start of the piece to `offset`, which is in the piece.
    pub(super) fn within(&self, offset: usize) -> u64 {
        (offset - self.start) as u64
    }

    /// Bytes from `offset`, which is in the piece, to the end of the piece.
    pub(super) fn left(&self, offset: usize) -> usize {
        self.end - offset
    }
}

/// The known part of a peer's table of registered pieces, and how to learn more.
#[derive(Debug)]
pub(super) struct KeyTable<K> {
    pieces: Vec<Registration<K>>,
    learning: Learning,
    /// The piece that was found last.
    recent: usize,
    /// Offsets that were in no piece when the table was last asked for.
    missed: Vec<usize>,
    /// Offset of the peer's table in its slot.
    at: usize,
    /// Entries fetched at a time.
    at_once: usize,
}

/// The part of a table that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Learning {
    Nothing,
    /// How many entries there are.
    Count {
        asked: bool,
    },
    /// Those not known yet, of so many.
    Entries {
        of: usize,
        asked: bool,
    },
}

/// The result of a search for an offset.
#[derive(Debug)]
pub(super) enum Search<'a, K> {
    /// In this piece.
    In(&'a Registration<K>),
    /// Not known yet: these bytes of the peer's slot tell more. Ask for them, and call [`KeyTable::ask`].
    Ask { offset: usize, len: usize },
    /// Not known yet: the bytes that were asked for have not come.
    Wait,
    /// In no piece.
    Nowhere,
}

impl<K> KeyTable<K> {
    /// A table at offset `at` of the peer's slot, of which nothing is known; it is fetched by at most `largest` bytes.
    pub(super) fn new(at: usize, largest: usize) -> KeyTable<K> {
        KeyTable {
            pieces: Vec::new(),
            learning: Learning::Nothing,
            recent: 0,
            missed: Vec::new(),
            at,
            at_once: (largest / PIECE_LEN).max(1),
        }
    }

    /// Whether `offset` is in the piece that was found last, and nothing was searched for in vain.
    #[inline(always)]
    pub(super) fn is_recent(&self, offset: usize) -> bool {
        self.missed.is_empty() && self.pieces.get(self.recent).is_some_and(|piece| piece.contains(offset))
    }

    /// The piece that was found last; there is one.
    #[inline(always)]
    pub(super) fn recent(&self) -> &Registration<K> {
        &self.pieces[self.recent]
    }

    /// Finds `offset`.
    pub(super) fn find(&mut self, offset: usize) -> Search<'_, K> {
        let index = self.pieces.partition_point(|piece| piece.end <= offset);
        if self.pieces.get(index).is_some_and(|piece| piece.start <= offset) {
            if !self.missed.is_empty() {
                self.missed.retain(|missed| *missed != offset);
            }
            self.recent = index;
            return Search::In(&self.pieces[index]);
        }
        match self.learning {
            Learning::Nothing => match self.missed.iter().position(|missed| *missed == offset) {
                Some(index) => {
                    // The table was asked for after the offset had been looked for, so the piece would be there.
                    self.missed.swap_remove(index);
                    return Search::Nowhere;
                }
                None => {
                    self.missed.push(offset);
                    self.learning = Learning::Count { asked: false };
                }
            },
            Learning::Count { asked: true } | Learning::Entries { asked: true, .. } => return Search::Wait,
            _ => {}
        }
        let known = self.pieces.len();
        match self.learning {
            Learning::Entries { of, .. } => {
                let len = (of - known).min(self.at_once) * PIECE_LEN;
                Search::Ask { offset: self.at + PIECES_HEAD + known * PIECE_LEN, len }
            }
            _ => Search::Ask { offset: self.at, len: size_of::<u64>() },
        }
    }

    /// Called when the part that [`Search::Ask`] names was requested.
    pub(super) fn ask(&mut self) {
        match &mut self.learning {
            Learning::Count { asked } | Learning::Entries { asked, .. } => *asked = true,
            Learning::Nothing => {}
        }
    }

    /// Called when the request has failed: the part has to be requested again.
    pub(super) fn fail(&mut self) {
        self.learning = Learning::Nothing;
        self.missed.clear();
    }

    /// Takes in the part that was requested. `unpack` reads a key.
    ///
    /// # Errors
    /// [`Error::Io`] for bytes that are no table; of `unpack`.
    pub(super) fn answer(&mut self, bytes: &[u8], unpack: impl FnMut(&[u8]) -> Result<K>) -> Result<()> {
        let learned = self.learn(bytes, unpack);
        match learned {
            Ok(next) => self.learning = next,
            Err(_) => self.fail(),
        }
        learned.map(drop)
    }

    fn learn(&mut self, bytes: &[u8], mut unpack: impl FnMut(&[u8]) -> Result<K>) -> Result<Learning> {
        const WRONG: Error = Error::Io("a table of registered memory that no rank of this job writes");
        let of = match self.learning {
            Learning::Count { .. } => {
                let count = bytemuck::try_pod_read_unaligned::<u64>(bytes).map_err(|_| WRONG)? as usize;
                if count > PIECES_MAX || count < self.pieces.len() {
                    return Err(WRONG);
                }
                count
            }
            Learning::Entries { of, .. } => {
                for entry in bytes.chunks(PIECE_LEN) {
                    let entry = bytemuck::try_pod_read_unaligned::<Entry>(entry).map_err(|_| WRONG)?;
                    self.add(&entry, &mut unpack)?;
                }
                of
            }
            Learning::Nothing => return Ok(Learning::Nothing),
        };
        Ok(if of > self.pieces.len() { Learning::Entries { of, asked: false } } else { Learning::Nothing })
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// As [`KeyTable::answer`].
    pub(super) fn add(&mut self, entry: &Entry, mut unpack: impl FnMut(&[u8]) -> Result<K>) -> Result<()> {
        let (start, end) = (entry.start as usize, entry.end as usize);
        let at = self.pieces.partition_point(|piece| piece.end <= start);
        if start >= end || self.pieces.get(at).is_some_and(|next| next.start < end) {
            return Err(Error::Io("a table of registered memory whose pieces overlap"));
        }
        let key = unpack(&entry.key)?;
        self.pieces.insert(at, Registration { start, end, key });
        self.recent += usize::from(self.pieces.len() > 1 && at <= self.recent);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::membership::JobMemory;
    use crate::memory::node::Slots;
    use crate::settings::Settings;

    /// A rank's connection record, and the layout of its slot.
    fn record() -> (Connection, SlotLayout) {
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let job = JobMemory::create(1, &settings).expect("a job");
        let stride_log2 = job.stride_log2();
        let slots = Slots::of(&job, false);
        let node = Arc::new(NodeMemory::map(job.fd(), slots).expect("mapped"));
        let layout = SlotLayout::new(1, 1, 1 << stride_log2, None);
        node.commit(0, 0, layout.control_len.next_multiple_of(node.granule(0)), 1, "a record", "").expect("memory");
        (Connection::new(&node, layout, 0, 0), layout)
    }

    /// A piece's key is its number here.
    fn key(number: u8) -> [u8; PACKED_KEY_LEN] {
        [number; PACKED_KEY_LEN]
    }

    fn number(key: &[u8]) -> Result<u8> {
        Ok(key[0])
    }

    /// A peer's table that knows its first piece, fetched by at most `largest` bytes.
    fn table(record: &Connection, layout: &SlotLayout, largest: usize) -> KeyTable<u8> {
        let mut table = KeyTable::new(layout.pieces(0), largest);
        table.add(&record.first().expect("there is a piece"), number).expect("a table");
        table
    }

    /// The bytes of the slot there, as a get would bring them.
    fn get(record: &Connection, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: inside the control area.
        unsafe { copy::copy(bytes.as_mut_ptr(), record.node.slot(record.rank).add(offset), len) };
        bytes
    }

    /// Looks `offset` up until the answer is final. Returns the piece, the offset in the piece, the bytes left of it, and the number of fetches.
    fn find(table: &mut KeyTable<u8>, record: &Connection, offset: usize) -> (Option<(u8, u64, usize)>, usize) {
        for fetches in 0.. {
            let (from, len) = match table.find(offset) {
                Search::In(piece) => return (Some((piece.key, piece.within(offset), piece.left(offset))), fetches),
                Search::Nowhere => return (None, fetches),
                Search::Wait => panic!("nothing is under way"),
                Search::Ask { offset, len } => (offset, len),
            };
            table.ask();
            assert!(matches!(table.find(offset), Search::Wait), "asked once");
            table.answer(&get(record, from, len), number).expect("a table");
        }
        unreachable!("it ends or panics")
    }

    #[test]
    fn an_address_is_shown_whole_or_not_at_all() {
        let (record, _) = record();
        assert_eq!(record.address(), []);
        assert!(matches!(record.show_address(&[7; ADDRESS_MAX + 1]), Err(Error::ExceedsLimit { .. })));
        assert_eq!(record.address(), []);
        for len in [ADDRESS_MAX, 5, 0] {
            record.show_address(&vec![7; len]).expect("fits");
            assert_eq!(record.address(), vec![7; len]);
        }
    }

    #[test]
    fn a_table_that_grew_is_fetched_again() {
        let (record, layout) = record();
        assert!(record.first().is_none());
        record.add(0, 100, key(1)).expect("room");
        let mut table = table(&record, &layout, 1 << 20);
        assert_eq!(find(&mut table, &record, 99), (Some((1, 99, 1)), 0));
        record.add(1000, 2000, key(2)).expect("room");
        // The count, and then what is new.
        assert_eq!(find(&mut table, &record, 1000), (Some((2, 0, 1000)), 2));
        assert_eq!(find(&mut table, &record, 1999), (Some((2, 999, 1)), 0));
        record.add(2000, 2001, key(3)).expect("room");
        record.add(2001, 3000, key(4)).expect("room");
        assert_eq!(find(&mut table, &record, 2001), (Some((4, 0, 999)), 2));
        assert_eq!(find(&mut table, &record, 2000), (Some((3, 0, 1)), 0));
        assert_eq!(find(&mut table, &record, 0), (Some((1, 0, 100)), 0));
    }

    #[test]
    fn an_offset_in_no_piece_is_asked_for_once_each_time() {
        let (record, layout) = record();
        record.add(0, 100, key(1)).expect("room");
        let mut table = table(&record, &layout, 1 << 20);
        for _ in 0..2 {
            for nowhere in [100, 999, usize::MAX] {
                assert_eq!(find(&mut table, &record, nowhere), (None, 1));
            }
        }
        // Between two pieces, and behind the last.
        record.add(1000, 2000, key(2)).expect("room");
        assert_eq!(find(&mut table, &record, 999), (None, 2));
        assert_eq!(find(&mut table, &record, 2000), (None, 1));
        // It may be there later.
        record.add(2000, 3000, key(3)).expect("room");
        assert_eq!(find(&mut table, &record, 2000), (Some((3, 0, 1000)), 2));
    }

    #[test]
    fn who_asks_while_a_fetch_is_under_way_is_not_told_of_an_older_table() {
        let (record, layout) = record();
        record.add(0, 100, key(1)).expect("room");
        let mut table = table(&record, &layout, 1 << 20);
        let Search::Ask { offset, len } = table.find(500) else { panic!("not known yet") };
        table.ask();
        let old = get(&record, offset, len);
        record.add(100, 200, key(2)).expect("room");
        assert!(matches!(table.find(150), Search::Wait));
        table.answer(&old, number).expect("a table");
        assert_eq!(find(&mut table, &record, 150), (Some((2, 50, 50)), 2));
        assert_eq!(find(&mut table, &record, 500), (None, 0));
    }

    #[test]
    fn a_fetch_that_failed_is_made_again() {
        let (record, layout) = record();
        record.add(0, 100, key(1)).expect("room");
        let mut table = table(&record, &layout, 1 << 20);
        record.add(100, 200, key(2)).expect("room");
        assert!(matches!(table.find(100), Search::Ask { .. }));
        table.ask();
        table.fail();
        assert_eq!(find(&mut table, &record, 100), (Some((2, 0, 100)), 2));
    }

    #[test]
    fn the_table_is_fetched_in_parts_and_has_an_end() {
        let (record, layout) = record();
        for n in 0..PIECES_MAX {
            record.add(10 * n, 10 * n + 10, key(n as u8)).expect("room");
        }
        assert_eq!(record.add(10 * PIECES_MAX, 10 * PIECES_MAX + 10, key(0)), Err(Error::NoResource));
        for (largest, fetches) in [(1, PIECES_MAX), (10 * PIECE_LEN, 21), (1 << 20, 2)] {
            let mut table = table(&record, &layout, largest);
            let last = 10 * PIECES_MAX - 1;
            assert_eq!(find(&mut table, &record, last), (Some((PIECES_MAX as u8 - 1, 9, 1)), fetches), "{largest}");
            for n in 0..PIECES_MAX {
                assert_eq!(find(&mut table, &record, 10 * n + 3), (Some((n as u8, 3, 7)), 0));
            }
        }
    }

    #[test]
    fn bytes_that_are_no_table_are_refused() {
        let (record, layout) = record();
        record.add(0, 100, key(1)).expect("room");
        let entry = |start: u64, end: u64| bytemuck::bytes_of(&Entry { start, end, key: key(9) }).to_vec();
        let many = (PIECES_MAX as u64 + 1).to_ne_bytes();
        let counts: [&[u8]; 4] = [&many, &u64::MAX.to_ne_bytes(), &0u64.to_ne_bytes(), &[1, 2, 3]];
        for count in counts {
            let mut table = table(&record, &layout, 1 << 20);
            let _ = table.find(500);
            table.ask();
            assert!(table.answer(count, number).is_err(), "{count:?}");
            assert!(matches!(table.find(500), Search::Ask { .. }), "as if never asked");
        }
        for wrong in [entry(99, 200), entry(200, 200), entry(300, 200), entry(0, 50), vec![0; 63]] {
            let mut table = table(&record, &layout, 1 << 20);
            let _ = table.find(500);
            table.ask();
            table.answer(&2u64.to_ne_bytes(), number).expect("a count");
            assert!(matches!(table.find(500), Search::Ask { .. }));
            table.ask();
            assert!(table.answer(&wrong, number).is_err(), "{wrong:?}");
        }
    }
}
