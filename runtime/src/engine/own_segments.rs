//! The segments that this rank has opened: their numbers, memory and registrations, and which peers still use those that are being
//! closed. `segments.rs` says what a close has to wait for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::addresses::BY_ADDRESS;
use super::context::{Contexts, Leaving};
use super::mapped_segments::MappedSegments;
use super::segments::Found;
use crate::error::Result;
use crate::memory::layout::{SEGMENTS_FIRST, SEGMENTS_MAX};
use crate::memory::node::Pages;
use crate::memory::own_segments::OwnSegments;
use crate::memory::segments::{Entry, HOLDS, KEY_ROOM, Table};
use crate::transport::{Region, Width};

/// The segments of this rank, and how those of mapped ranks are found.
pub(crate) struct Segments {
    mapped: Arc<MappedSegments>,
    books: RefCell<Books>,
    /// The memory of this rank's slot that its segments take.
    memory: RefCell<OwnSegments>,
    /// Other ranks' closes that this one has not answered yet.
    leaving: RefCell<Vec<Leaving>>,
}

#[derive(Debug, Default)]
struct Books {
    /// The registrations, one with each network. Given back when no rank can use the keys any more.
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

impl Segments {
    /// None yet.
    pub(super) fn new(mapped: MappedSegments) -> Segments {
        let memory = RefCell::new(OwnSegments::new(&mapped.node, &mapped.layout));
        Segments { mapped: Arc::new(mapped), books: RefCell::default(), memory, leaving: RefCell::default() }
    }

    /// How segments of mapped ranks are found.
    #[inline(always)]
    pub(crate) fn mapped(&self) -> &Arc<MappedSegments> {
        &self.mapped
    }

    /// The table that peers look segments up in.
    pub(super) fn table(&self) -> Table<'_> {
        self.mapped.table(self.mapped.rank)
    }

    /// Whether an open segment lies outside the part of the slot that peers of the node have mapped.
    pub(super) fn any_is_unmapped(&self) -> bool {
        let is_unmapped = |number: &u32| {
            let found = self.find(*number);
            found.is_some_and(|(Found { start, len }, _)| self.mapped.offset(self.mapped.rank, start, len).is_none())
        };
        let books = self.books.borrow();
        // The static data is mapped by the peers, although its own address is outside the slot.
        books.open.keys().filter(|number| **number as usize >= SEGMENTS_FIRST).any(is_unmapped)
    }

    /// Takes `bytes` zeroed bytes of this rank's slot for a segment; `None` if there is no room. `sharers` ranks are about to do the
    /// same.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the machine has not so much.
    pub(crate) fn take_memory(&self, bytes: usize, sharers: usize) -> Result<Option<*mut u8>> {
        let MappedSegments { rank, node, layout, .. } = &*self.mapped;
        let mut memory = self.memory.borrow_mut();
        let taken = match memory.take(node, layout, *rank, bytes, sharers) {
            // The pool of huge pages is used up, which says nothing of other memory.
            Err(_) if node.pages() == Pages::Reserved => None,
            taken => taken?,
        };
        // Release pairs with the Acquire load of ranks that reach it by address.
        node.status(*rank).own_segments_end.store(memory.end(layout) as u64, Ordering::Release);
        // SAFETY: inside our own slot.
        Ok(taken.map(|offset| unsafe { node.slot(*rank).add(offset) }))
    }

    /// Takes back memory that [`Segments::take_memory`] gave and that no rank accesses any more.
    pub(crate) fn give_memory_back(&self, start: *mut u8, bytes: usize) {
        let MappedSegments { rank, node, layout, .. } = &*self.mapped;
        let offset = start as usize - node.slot(*rank) as usize;
        self.memory.borrow_mut().give_back(node, layout, *rank, offset, bytes);
    }

    /// Takes a number: this one, or the lowest that is free. `None`: it is in use, or there is none.
    pub(super) fn take_number(&self, wanted: Option<u32>) -> Option<u32> {
        self.books.borrow_mut().take(wanted)
    }

    /// Gives back a number under which nothing was entered.
    pub(super) fn give_number_back(&self, number: u32) {
        self.books.borrow_mut().free.insert(number);
    }

    /// The lowest number from `from` on that is free.
    pub(crate) fn free_number(&self, from: u32) -> u32 {
        let books = self.books.borrow();
        let next = books.next.max(SEGMENTS_FIRST as u32).max(from);
        books.free.range(from..).next().copied().unwrap_or(next)
    }

    /// Writes an entry of the table, and returns its generation. `grew` makes bytes of the table that were just backed reachable for peers.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); those of `grew`.
    pub(super) fn enter(
        &self,
        number: u32,
        Found { start, len }: Found,
        (regions, keys): (Vec<Region>, [u8; KEY_ROOM]),
        grew: impl FnOnce(usize, usize) -> Result<()>,
    ) -> Result<u64> {
        let mut backed = self.books.borrow().backed;
        let table = self.table();
        if let Some((from, to)) = table.back(number as usize, &mut backed)? {
            grew(from, to)?;
        }
        let mut books = self.books.borrow_mut();
        books.backed = backed;
        books.changes += 1;
        table.write(number as usize, &Entry::new(books.changes, start, len, keys), books.changes);
        books.open.insert(number, regions);
        Ok(books.changes)
    }

    /// The word that this rank shows a peer, of whose table it holds a copy or not.
    pub(super) fn word_for(&self, holds: bool) -> u64 {
        self.books.borrow().changes | if holds { HOLDS } else { 0 }
    }

    /// Segment `number`, and its generation, if it is open.
    pub(crate) fn find(&self, number: u32) -> Option<(Found, u64)> {
        let found = self.table().find(number as usize)?;
        Some((Found { start: found.start, len: found.len }, found.generation))
    }

    /// An aligned word of an open segment; with [`BY_ADDRESS`] the one at address `offset`.
    pub(crate) fn word(&self, number: u32, offset: usize, width: Width) -> Option<*mut u8> {
        if number == BY_ADDRESS {
            let is_word = offset.is_multiple_of(width as usize) && self.mapped.owns(offset, width as usize);
            return is_word.then_some(offset as *mut u8);
        }
        let (found, _) = self.find(number)?;
        let is_inside = offset.checked_add(width as usize).is_some_and(|end| end <= found.len);
        let address = found.start.checked_add(offset).filter(|address| address.is_multiple_of(width as usize));
        address.filter(|_| is_inside).map(|address| address as *mut u8)
    }

    /// Takes segment `number` out of the table. Returns the ranks that have to be asked to forget it.
    pub(super) fn begin_close(&self, number: u32, generation: u64, contexts: &Contexts) -> Vec<usize> {
        let mut books = self.books.borrow_mut();
        books.changes += 1;
        let (table, job) = (self.table(), &self.mapped.job);
        table.write(number as usize, &Entry::new(0, 0, 0, [0; KEY_ROOM]), books.changes);
        // Pairs with the fence in `MappedSegments::tell`, and with the order of put and get in `RemoteSegments::refresh`.
        fence(Ordering::SeqCst);
        // A context of this rank says by its count alone that it uses a segment of this rank.
        contexts.wait_for_users();
        let holds = |rank: &usize| {
            let uses = table.word(*rank).load(Ordering::Acquire) & HOLDS != 0 || table.is_held_by_context(*rank);
            // A rank that is gone uses nothing, and is not missed.
            uses && job.loss(*rank).is_none()
        };
        let holders: Vec<usize> = (0..job.ranks()).filter(holds).collect();
        books.closing.insert((number, generation), holders.iter().copied().collect());
        holders
    }

    /// `rank` no longer uses the segment.
    pub(crate) fn acknowledge(&self, rank: usize, number: u32, generation: u64) {
        if let Some(waiting) = self.books.borrow_mut().closing.get_mut(&(number, generation)) {
            waiting.remove(&rank);
        }
    }

    /// Whether every rank that is not gone has said that it no longer uses a segment that is being closed.
    pub(super) fn all_acknowledged(&self, number: u32, generation: u64) -> bool {
        let mut books = self.books.borrow_mut();
        let Some(waiting) = books.closing.get_mut(&(number, generation)) else { return true };
        waiting.retain(|rank| self.mapped.job.loss(*rank).is_none());
        waiting.is_empty()
    }

    /// Gives the registration and the number back. No rank uses them any more.
    pub(crate) fn end_close(&self, number: u32, generation: u64) {
        let mut books = self.books.borrow_mut();
        books.closing.remove(&(number, generation));
        if books.open.remove(&number).is_some() {
            books.free.insert(number);
        }
    }

    /// Whether another rank's close is not answered yet.
    pub(super) fn any_leaving(&self) -> bool {
        !self.leaving.borrow().is_empty()
    }

    /// Adds a close that cannot be answered yet.
    pub(super) fn add_leaving(&self, leaving: Leaving) {
        self.leaving.borrow_mut().push(leaving);
    }

    /// Keeps the closes for which `goes_on` holds, and returns how many it removed.
    pub(super) fn retain_leaving(&self, goes_on: impl FnMut(&mut Leaving) -> bool) -> usize {
        let mut list = self.leaving.take();
        let before = list.len();
        list.retain_mut(goes_on);
        let done = before - list.len();
        self.leaving.borrow_mut().append(&mut list);
        done
    }
}
