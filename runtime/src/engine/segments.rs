//! Segments: memory of a rank outside the symmetric heap, which peers reach by number or by address.
//!
//! # Look-up
//! A rank that wants to reach a segment of another one copies that rank's table ([`crate::memory::segments`]) by gets, once;
//! the owner does nothing for it. When it registers another segment, the owner writes its count of changes into the slots of
//! all ranks that have a copy, so a copy whose count is the owner's is complete, and a miss costs no round trip. On the same
//! node the table is mapped, and is read for each operation.
//!
//! # Closing: the race and what excludes it
//! An owner that closes a segment gives its memory back. A copy of the entry at another rank is then a stale key. A device
//! refuses a stale key, but the connection breaks by that; cross-memory attach refuses nothing, and would write whatever the
//! memory is used for next. So no key may be used after the close has returned, nor be under way:
//!
//! 1. A rank that is about to read the table first sets [`HOLDS`] in its word in the owner's slot, and only then reads
//!    the entries (over a network a put, a fence, a get).
//! 2. The owner first clears the entry, and only then reads the words (with a full fence between). So either the reader
//!    finds the entry cleared, or the owner finds the reader.
//! 3. The owner sends `REVOKE` to the ranks that it found. Such a rank drops the entry, and everything that is posted from
//!    then on is an error there. It answers `REVOKED`, with a fence before it: the network orders a message after earlier puts,
//!    gets, atomics and messages, so when the owner has the answer, nothing of that rank is under way to the segment.
//! 4. A get of the table that was under way when `REVOKE` came may bring the entry as it was before. Its answer is thrown
//!    away, and the get is made again.
//! 5. The owner waits for all answers, or for the end of the ranks that give none, before it gives back the registration and
//!    the memory.
//!
//! In a job over several nodes, ranks of one node are mapped, but do atomics on each other's segments, and on their own, by the
//! network: all changes of a word are then the network's ([`super::Routes`]). Such a rank copies the table over the network, too.
//! Its `REVOKED` goes through a lane, which orders nothing behind what the network carries, so a flush of the network comes
//! before it. A rank with a copy of its own table sends `REVOKE` to itself.
//!
//! A context of the owner sets no word: before it reads the table its count becomes odd, and the owner waits, when it has cleared the
//! entry, until each count that is odd has changed.
//!
//! A close so waits until the ranks that have used segments of this rank make progress; it waits for no other.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Engine;
use super::context::{Flush, Leaving};
use super::remote_access::Answer;
use super::reserved_segments::STATICS;
use super::straight::Local;
use crate::error::{Error, Loss, Result};
use crate::memory::layout::{LINE, SEGMENTS_FIRST, SEGMENTS_MAX, SlotLayout};
use crate::memory::node::{NodeMemory, Pages};
use crate::memory::own_segments::OwnSegments;
use crate::memory::segments::{Entry, HOLDS, KEY_ROOM, Table};
use crate::transport::{self, PACKED_KEY_LEN, Region, Width};

/// Added to an address of a peer, it is an offset as [`super::RemoteAccess`] takes them: of the segment in which the address lies.
pub(crate) const ADDRESS: usize = 1 << 63;

/// A segment, as a rank that is not its owner knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// The answer to an owner that closes a segment, sent when nothing of this rank is under way to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answering {
    /// The rank that closes the segment.
    pub(crate) owner: usize,
    /// The id of the answer's message.
    pub(crate) id: u8,
    pub(crate) number: u32,
    pub(crate) generation: u64,
}

/// What a network does with segments.
pub(crate) trait RemoteSegments {
    /// Whether puts and gets are done while the target does nothing.
    fn reaches_idle(&self) -> bool;
    /// Whether it does atomics on segments.
    fn changes_segments(&self) -> bool;
    /// Lets peers reach this memory; the key is for them.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    unsafe fn register(&self, start: *mut u8, len: usize) -> transport::Result<(Region, [u8; PACKED_KEY_LEN])>;
    /// Whether all `len` bytes at `address` of `rank` lie in segments that are known here.
    fn covers(&self, rank: usize, address: usize, len: usize) -> bool;
    /// The segment of `rank` with this number, if it is known here.
    fn known(&self, rank: usize, number: u32) -> Option<Found>;
    /// Which count of changes of `rank` the copy of its table is complete for, if there is one.
    fn complete(&self, rank: usize) -> Option<u64>;
    /// Copies the table of `rank` anew: `true` when a copy that was begun after the first call with this `ticket` is there.
    /// `word` is this rank's word there.
    fn refresh(&self, rank: usize, word: u64, ticket: &mut Option<u64>) -> transport::Result<bool>;
    /// Writes this rank's word at `rank`, after all words before. `false`: no room now.
    fn show_word(&self, rank: usize, word: u64) -> transport::Result<bool>;
    /// Whether this rank has said to `rank` that it holds entries.
    fn holds_of(&self, rank: usize) -> bool;
    /// Posts a put or get of at most `len` bytes `at` so far into `local`, all in `region`, or of as many as one registration
    /// at the target holds. The answer is how it ended, and comes with the count; `None`: no room now.
    ///
    /// # Safety
    /// They are in the region and valid, for writing if they are filled, and only this touches them until the answer.
    unsafe fn post_straight(
        &self,
        rank: usize,
        offset: usize,
        local: Local,
        region: &Region,
        at: usize,
        len: usize,
    ) -> transport::Result<Option<(Arc<Answer>, usize)>>;
    /// Posts a get of at most `len` bytes from `at` so far into the memory of `rank` that `keys` name, or of as many as one
    /// request takes. The answer is how it ended, and comes with the count; `None`: no room now.
    ///
    /// # Safety
    /// They are in the region at `to` and valid for writing, and only this touches them until the answer.
    unsafe fn fetch(
        &self,
        rank: usize,
        keys: &[u8; KEY_ROOM],
        at: usize,
        to: *mut u8,
        region: &Region,
        len: usize,
    ) -> transport::Result<Option<(Arc<Answer>, usize)>>;
    /// Forgets a segment of `rank`.
    fn forget(&self, rank: usize, number: u32, generation: u64);
}

/// The segments of this rank.
#[derive(Debug)]
pub(super) struct Segments {
    books: RefCell<Books>,
    /// What it gives to segments of its own slot.
    memory: RefCell<OwnSegments>,
    /// Other ranks' closes that this one has not answered yet.
    pub(super) leaving: RefCell<Vec<Leaving>>,
}

impl Segments {
    pub(super) fn new(node: &NodeMemory, layout: &SlotLayout) -> Segments {
        let memory = RefCell::new(OwnSegments::new(node, layout));
        Segments { books: RefCell::default(), memory, leaving: RefCell::default() }
    }
}

#[derive(Debug, Default)]
struct Books {
    /// The registrations, one with each network. Given back when nobody can use the keys any more.
    open: BTreeMap<u32, Vec<Region>>,
    /// Numbers below the highest one used so far that are free.
    free: BTreeSet<u32>,
    /// One more than that.
    next: u32,
    changes: u64,
    /// Bytes of the table that are backed.
    backed: usize,
    /// Ranks that have not answered yet, of each segment that is being closed.
    closing: BTreeMap<(u32, u64), BTreeSet<usize>>,
}

impl Books {
    /// Takes a number: this one, or the lowest that is free.
    fn take(&mut self, wanted: Option<u32>) -> Option<u32> {
        self.next = self.next.max(SEGMENTS_FIRST as u32);
        let number = wanted.or_else(|| self.free.first().copied()).unwrap_or(self.next);
        if number < self.next {
            return self.free.remove(&number).then_some(number);
        }
        if number as usize >= SEGMENTS_FIRST + SEGMENTS_MAX {
            return None;
        }
        self.free.extend(self.next..number);
        self.next = number + 1;
        Some(number)
    }
}

impl Engine {
    /// Whether an open segment of this rank lies outside the part of its slot that peers of its node have mapped.
    pub(super) fn has_unmapped_segment(&self) -> bool {
        let is_unmapped = |number: &u32| {
            let found = self.own_segment(*number);
            found.is_some_and(|(Found { start, len }, _)| self.mapped_segments.offset(self.rank, start, len).is_none())
        };
        let books = self.segments.books.borrow();
        // The static data is mapped, whatever its address.
        books.open.keys().filter(|number| **number as usize >= SEGMENTS_FIRST).any(is_unmapped)
    }

    fn table_of(&self, rank: usize) -> Table<'_> {
        self.mapped_segments.table(rank)
    }

    /// Takes `bytes` zeroed bytes of this rank's slot for a segment; `None` if there is no room. `sharers` ranks are about to do the
    /// same.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the machine has not so much.
    pub(crate) fn take_segment_memory(&self, bytes: usize, sharers: usize) -> Result<Option<*mut u8>> {
        let mut memory = self.segments.memory.borrow_mut();
        let taken = match memory.take(&self.node, &self.layout, self.rank, bytes, sharers) {
            // The pool of huge pages is used up, which says nothing of other memory.
            Err(_) if self.node.pages() == Pages::Reserved => None,
            taken => taken?,
        };
        // Release pairs with the Acquire load of ranks that reach it by address.
        self.status(self.rank).own_segments_end.store(memory.end(&self.layout) as u64, Ordering::Release);
        // SAFETY: inside our own slot.
        Ok(taken.map(|offset| unsafe { self.node.slot(self.rank).add(offset) }))
    }

    /// Takes back memory that [`Engine::take_segment_memory`] gave, which nobody reaches any more.
    pub(crate) fn give_segment_memory_back(&self, start: *mut u8, bytes: usize) {
        let offset = start as usize - self.node.slot(self.rank) as usize;
        self.segments.memory.borrow_mut().give_back(&self.node, &self.layout, self.rank, offset, bytes);
    }

    /// Registers memory of this rank as segment `wanted`, or under the lowest number that is free.
    ///
    /// # Safety
    /// The memory is valid until the segment is closed, and what touches it meanwhile beside peers is separated from their
    /// accesses, or atomic.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no bytes or a number in use; [`Error::OutOfMemory`].
    pub(crate) unsafe fn open_segment(&self, wanted: Option<u32>, start: *mut u8, len: usize) -> Result<(u32, u64)> {
        const NAME: &str = "registering a segment";
        self.check_outside_handler(NAME)?;
        let invalid = |why: String| Error::InvalidArgument { operation: NAME, why };
        if len == 0 || start.is_null() || (start as usize).checked_add(len).is_none() {
            return Err(invalid(format!(
                "{len} bytes at {start:p}: memory to register has an address and at least one byte"
            )));
        }
        // SAFETY: the caller's.
        let registered = unsafe { self.networks.register(start, len) };
        let (regions, keys) = registered.map_err(|error| error.at(NAME, self.rank))?;
        let number = self.segments.books.borrow_mut().take(wanted);
        let number = number.ok_or_else(|| match wanted {
            Some(number) => invalid(format!(
                "number {number} is in use, or beyond the last, {}: close that segment first",
                SEGMENTS_FIRST + SEGMENTS_MAX - 1
            )),
            None => invalid(format!("this rank has {SEGMENTS_MAX} segments, and can have no more: close some first")),
        })?;
        let found = Found { start: start as usize, len };
        let generation = self.enter_segment(number, found, regions, keys).inspect_err(|_| {
            self.segments.books.borrow_mut().free.insert(number);
        })?;
        // It is registered and shown, whatever becomes of the message: a rank that does not get it looks the number up, or sends a message.
        let _ = self.tell_changes(NAME);
        Ok((number, generation))
    }

    /// Writes an entry of this rank's table.
    fn enter_segment(
        &self,
        number: u32,
        Found { start, len }: Found,
        regions: Vec<Region>,
        keys: [u8; KEY_ROOM],
    ) -> Result<u64> {
        let mut backed = self.segments.books.borrow().backed;
        let table = self.table_of(self.rank);
        if let Some((from, to)) = table.back(number as usize, &mut backed)? {
            self.grew(from, to)?;
        }
        let mut books = self.segments.books.borrow_mut();
        books.backed = backed;
        books.changes += 1;
        table.write(number as usize, &Entry::new(books.changes, start, len, keys), books.changes);
        books.open.insert(number, regions);
        Ok(books.changes)
    }

    /// Makes this rank's static data, if it is symmetric, segment 1: peers over a network find it there. It lies in the slot,
    /// and there the network reaches it, but peers name it by the variables' own addresses.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn register_statics(&self) -> Result<()> {
        let (start, len) = self.table_of(self.rank).statics();
        if !self.settings.static_data || len == 0 {
            return Ok(());
        }
        // SAFETY: mapped as long as the engine lives, and so as long as its segments.
        let place = unsafe { self.node.slot(self.rank).add(self.layout.statics) };
        // SAFETY: as above; a program that asked for this means its variables to be reached.
        let registered = unsafe { self.networks.register(place, len) };
        let (regions, keys) = registered.map_err(|error| error.at("registering static data", self.rank))?;
        self.enter_segment(STATICS, Found { start, len }, regions, keys).map(drop)
    }

    /// Where `len` bytes at `address` of `rank`, which is mapped, are in its slot, if they are symmetric static data.
    #[inline]
    pub(crate) fn in_statics(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        let (start, bytes) = self.statics_of(rank);
        let offset = address.checked_sub(start)?;
        // SAFETY: inside the part of the slot that the rank has laid under its static data.
        (offset <= bytes && len <= bytes - offset)
            .then(|| unsafe { self.node.slot(rank).add(self.layout.statics + offset) })
    }

    #[inline]
    fn statics_of(&self, rank: usize) -> (usize, usize) {
        // SAFETY: two words of the control area, which every slot has, written before the rank arrived.
        let word = |i: usize| unsafe {
            AtomicU64::from_ptr(self.node.slot(rank).add(self.layout.segments + LINE + 8 * i).cast())
                .load(Ordering::Relaxed)
        };
        (word(0) as usize, word(1) as usize)
    }

    /// Tells the ranks that hold a copy of this rank's table, over a network, that it has changed.
    fn tell_changes(&self, doing: &'static str) -> Result<()> {
        if self.networks.is_empty() {
            return Ok(());
        }
        fence(Ordering::SeqCst);
        let table = self.table_of(self.rank);
        let holds =
            |rank: &usize| table.word(*rank).load(Ordering::Acquire) & HOLDS != 0 && !self.routes.is_mapped(*rank);
        for rank in (0..self.size).filter(holds) {
            let (network, mut outcome) = (self.network(rank), Ok(false));
            let waited = self.wait_together(doing, || {
                outcome = network.show_word(rank, self.own_word(network.holds_of(rank)));
                !matches!(outcome, Ok(false))
            });
            // Nobody misses this at a rank that is gone.
            if self.job.loss(rank).is_none() {
                waited?;
                outcome.map_err(|error| self.remote_error(error, rank, doing))?;
            }
        }
        Ok(())
    }

    fn own_word(&self, holds: bool) -> u64 {
        self.segments.books.borrow().changes | if holds { HOLDS } else { 0 }
    }

    /// Whether the network for `rank` does puts and gets while the target does nothing.
    pub(crate) fn reaches_idle(&self, rank: usize) -> bool {
        !self.networks.is_empty() && self.network(rank).reaches_idle()
    }

    /// Whether all `len` bytes at `address` of `rank`, which is reached over a network, lie in its segments. Waits for the
    /// network where the copy of its table is not known to be complete, but not inside a handler, nor where that would take
    /// progress at the target: there only what is known counts.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn is_registered(&self, doing: &'static str, rank: usize, address: usize, len: usize) -> Result<bool> {
        self.check_own(doing)?;
        if self.networks.is_empty() {
            return Ok(false);
        }
        let network = self.network(rank);
        if network.covers(rank, address, len) {
            return Ok(true);
        }
        // Acquire: pairs with the put of the owner, in `tell_changes`.
        let told = self.table_of(self.rank).word(rank).load(Ordering::Acquire) & !HOLDS;
        let complete = network.complete(rank).is_some_and(|complete| complete >= told);
        if complete || self.interface.delivering() || !network.reaches_idle() {
            return Ok(false);
        }
        self.copy_table(doing, rank)?;
        Ok(network.covers(rank, address, len))
    }

    fn copy_table(&self, doing: &'static str, rank: usize) -> Result<()> {
        let network = self.network(rank);
        let (mut ticket, mut outcome, word) = (None, Ok(false), self.own_word(true));
        self.wait_together(doing, || {
            outcome = network.refresh(rank, word, &mut ticket);
            !matches!(outcome, Ok(false))
        })?;
        outcome.map(drop).map_err(|error| self.remote_error(error, rank, doing))
    }

    /// Segment `number` of `rank`, which exists, if there is one. What is found stays registered until this rank has
    /// answered a `REVOKE`.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::InsideHandler`] where the table is not known here.
    pub(crate) fn find_segment(&self, doing: &'static str, rank: usize, number: u32) -> Result<Option<Found>> {
        if !self.routes.is_mapped(rank) {
            return self.find_over_network(doing, rank, number);
        }
        Ok(self.mapped_segments.find(rank, number).map(|found| Found { start: found.start, len: found.len }))
    }

    /// Whether some rank is reached over a network, or could be.
    pub(crate) fn has_network(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether atomics on segments of `rank` are the network's; else they are its processor's.
    pub(crate) fn network_changes_segments(&self, rank: usize) -> bool {
        !self.networks.is_empty() && self.network(rank).changes_segments()
    }

    /// As [`Engine::find_segment`], but the network for `rank` has its key then, also if the rank is mapped. There is a network.
    ///
    /// # Errors
    /// As [`Engine::find_segment`].
    pub(crate) fn find_over_network(&self, doing: &'static str, rank: usize, number: u32) -> Result<Option<Found>> {
        let network = self.network(rank);
        if let Some(found) = network.known(rank, number) {
            return Ok(Some(found));
        }
        self.check_outside_handler(doing)?;
        self.copy_table(doing, rank)?;
        Ok(network.known(rank, number))
    }

    /// Segment `number` of this rank, and its generation, if it is open.
    pub(crate) fn own_segment(&self, number: u32) -> Option<(Found, u64)> {
        let found = self.table_of(self.rank).find(number as usize)?;
        Some((Found { start: found.start, len: found.len }, found.generation))
    }

    /// An aligned word of an open segment of this rank.
    pub(crate) fn word_of_own(&self, number: u32, offset: usize, width: Width) -> Option<*mut u8> {
        let (found, _) = self.own_segment(number)?;
        let is_inside = offset.checked_add(width as usize).is_some_and(|end| end <= found.len);
        let address = found.start.checked_add(offset).filter(|address| address.is_multiple_of(width as usize));
        address.filter(|_| is_inside).map(|address| address as *mut u8)
    }

    /// Takes segment `number` of this rank out of the table, and tells which ranks are to be asked to forget it.
    pub(crate) fn begin_close(&self, number: u32, generation: u64) -> Vec<usize> {
        let mut books = self.segments.books.borrow_mut();
        books.changes += 1;
        let table = self.table_of(self.rank);
        table.write(number as usize, &Entry::new(0, 0, 0, [0; KEY_ROOM]), books.changes);
        // Pairs with the fence in `MappedSegments::tell`, and with the order of put and get in `RemoteSegments::refresh`.
        fence(Ordering::SeqCst);
        // A context of this rank says by its count alone that it uses a segment of this rank.
        self.contexts.wait_for_users();
        let holds = |rank: &usize| {
            let uses = table.word(*rank).load(Ordering::Acquire) & HOLDS != 0 || table.is_held_by_context(*rank);
            // A rank that is gone uses nothing, and is not missed.
            uses && self.job.loss(*rank).is_none()
        };
        let holders: Vec<usize> = (0..self.size).filter(holds).collect();
        books.closing.insert((number, generation), holders.iter().copied().collect());
        holders
    }

    /// `rank` no longer uses the segment.
    pub(crate) fn acknowledge(&self, rank: usize, number: u32, generation: u64) {
        if let Some(waiting) = self.segments.books.borrow_mut().closing.get_mut(&(number, generation)) {
            waiting.remove(&rank);
        }
    }

    /// Whether no rank uses a segment any more that is being closed, and no get of this one fills it.
    pub(crate) fn is_unused(&self, number: u32, generation: u64) -> bool {
        let mut books = self.segments.books.borrow_mut();
        let Some(waiting) = books.closing.get_mut(&(number, generation)) else { return true };
        waiting.retain(|rank| self.job.loss(*rank).is_none());
        waiting.is_empty() && !self.is_filled(number, generation)
    }

    /// Gives the registration and the number back, when nobody uses them any more.
    pub(crate) fn end_close(&self, number: u32, generation: u64) {
        let mut books = self.segments.books.borrow_mut();
        books.closing.remove(&(number, generation));
        if books.open.remove(&number).is_some() {
            books.free.insert(number);
        }
    }

    /// Drops what is known of a segment that its owner closes, and answers when nothing of this rank is under way to it. What is posted
    /// there from now on is an error.
    pub(crate) fn forget_segment(&self, answer: Answering) {
        let (owner, mut own) = (answer.owner, None);
        if !self.networks.is_empty() {
            let network = self.network(owner);
            network.forget(owner, answer.number, answer.generation);
            // A lane orders nothing behind what the network carries.
            own = (self.routes.has_lane(owner) && network.holds_of(owner)).then_some(Flush::None);
        }
        let leaving = self.contexts.leave(answer, own);
        if leaving.is_done() {
            return self.answer_close(answer);
        }
        self.segments.leaving.borrow_mut().push(leaving);
        self.tasks.any.set(true);
    }

    /// Answers, also an owner that has left its world and still closes. Over a network the answer is ordered after all that this rank has
    /// posted there.
    pub(super) fn answer_close(&self, Answering { owner, id, number, generation }: Answering) {
        if self.job.loss(owner).is_none_or(|loss| loss == Loss::Left) {
            self.send_unasked(owner, id, u64::from(number), &generation.to_ne_bytes());
        }
    }

    /// The lowest number from `from` on that is free.
    pub(crate) fn free_segment(&self, from: u32) -> u32 {
        let books = self.segments.books.borrow();
        let next = books.next.max(SEGMENTS_FIRST as u32).max(from);
        books.free.range(from..).next().copied().unwrap_or(next)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::error::Error;
    use crate::{Settings, Threads, Transport};

    #[test]
    fn a_close_does_not_miss_a_rank_that_has_left() {
        for transport in [Transport::Auto, Transport::ShmContract] {
            let settings = Settings { transport, ..Settings::default() };
            let ranks = Threads::new(2).settings(settings).deadline(Duration::from_secs(60)).run(|world| {
                let own = if world.rank() == 0 { Some(world.segment(64)?) } else { None };
                let number = world.allgather(&[own.as_ref().map_or(0, |own| own.number())])?[0];
                if world.rank() == 1 {
                    world.put_segment(0, number, 0, &[1])?;
                    world.fence();
                }
                world.barrier()?;
                let Some(own) = own else { return Ok(()) };
                let engine = world.engine();
                while engine.job.loss(1).is_none() {
                    engine.poll()?;
                    std::thread::yield_now();
                }
                own.close()?;
                assert_eq!(engine.job.first_missed(), None, "the rank was asked though it had left");
                Ok::<_, Error>(())
            });
            ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
        }
    }
}
