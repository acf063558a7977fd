//! Segments: memory of a rank outside the symmetric heap, which peers reach by number or by address.
//!
//! # Look-up
//! A rank that wants to reach a segment of another one copies that rank's table ([`crate::memory::segments`]) by gets, once;
//! the owner takes no part in that. When it registers another segment, the owner writes its count of changes into the slots of
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
//!    gets, atomics and messages, so when the owner has the answer, no operation of that rank on the segment is in flight.
//! 4. A get of the table that was under way when `REVOKE` came may bring the entry as it was before. Its answer is thrown
//!    away, and the get is made again.
//! 5. The owner waits for all answers, or for the end of the ranks that give none, before it gives back the registration and
//!    the memory.
//!
//! In a job over several nodes, ranks of one node are mapped, but do atomics on each other's segments, and on their own, by the
//! network: all changes of a word are then the network's ([`super::Routes`]). Such a rank copies the table over the network, too.
//! Its `REVOKED` goes through a lane. A lane orders no message behind operations over the network, so a flush of the network comes before
//! the `REVOKED`. A rank with a copy of its own table sends `REVOKE` to itself.
//!
//! A context of the owner sets no word: before it reads the table its count becomes odd, and the owner waits, when it has cleared the
//! entry, until each count that is odd has changed.
//!
//! A close so waits until the ranks that have used segments of this rank make progress; it waits for no other.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Engine;
use super::context::Flush;
use super::remote_access::Answer;
use super::reserved_segments::STATICS;
use super::straight::Local;
use crate::error::{Error, Loss, Result};
use crate::memory::layout::{SEGMENTS_FIRST, SEGMENTS_MAX};
use crate::memory::segments::{HOLDS, KEY_ROOM};
use crate::transport::{self, PACKED_KEY_LEN, Region};

/// Added to an address of a peer, it is an offset as [`super::RemoteAccess`] takes them: of the segment in which the address lies.
pub(crate) const ADDRESS: usize = 1 << 63;

/// A segment, as a rank that is not its owner knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// The answer to an owner that closes a segment, sent when no operation of this rank on the segment is in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answering {
    /// The rank that closes the segment.
    pub(crate) owner: usize,
    /// The id of the answer's message.
    pub(crate) id: u8,
    pub(crate) number: u32,
    pub(crate) generation: u64,
}

/// The operations of a network on segments.
pub(crate) trait RemoteSegments {
    /// Whether puts and gets are done while the target does nothing.
    fn reaches_idle(&self) -> bool;
    /// Whether atomics too are done while the target does nothing.
    fn changes_idle(&self) -> bool;
    /// Whether a device does its atomics; else the processor of the target does.
    fn changes_by_device(&self) -> bool;
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

impl Engine {
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
        let registered = registered.map_err(|error| error.at(NAME, self.rank))?;
        let number = self.segments.take_number(wanted);
        let number = number.ok_or_else(|| match wanted {
            Some(number) => invalid(format!(
                "number {number} is in use, or beyond the last, {}: close that segment first",
                SEGMENTS_FIRST + SEGMENTS_MAX - 1
            )),
            None => invalid(format!("this rank has {SEGMENTS_MAX} segments, and can have no more: close some first")),
        })?;
        let found = Found { start: start as usize, len };
        let entered = self.segments.enter(number, found, registered, |from, to| self.grew(from, to));
        let generation = entered.inspect_err(|_| self.segments.give_number_back(number))?;
        // The segment is registered and in the table even if the messages fail: a rank that gets none looks the number up, or sends a message.
        let _ = self.tell_changes(NAME);
        Ok((number, generation))
    }

    /// Makes this rank's static data, if it is symmetric, segment 1: peers over a network find it there. It lies in the slot,
    /// and there the network reaches it, but peers name it by the variables' own addresses.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn register_statics(&self) -> Result<()> {
        let (start, len) = self.segments.table().statics();
        if !self.settings.static_data || len == 0 {
            return Ok(());
        }
        // SAFETY: mapped as long as the engine lives, and so as long as its segments.
        let place = unsafe { self.node.slot(self.rank).add(self.layout.statics) };
        // SAFETY: as above; a program that asked for this means its variables to be reached.
        let registered = unsafe { self.networks.register(place, len) };
        let registered = registered.map_err(|error| error.at("registering static data", self.rank))?;
        let found = Found { start, len };
        self.segments.enter(STATICS, found, registered, |from, to| self.grew(from, to)).map(drop)
    }

    /// Tells the ranks that hold a copy of this rank's table, over a network, that it has changed.
    fn tell_changes(&self, doing: &'static str) -> Result<()> {
        if self.networks.is_empty() {
            return Ok(());
        }
        fence(Ordering::SeqCst);
        let table = self.segments.table();
        let holds =
            |rank: &usize| table.word(*rank).load(Ordering::Acquire) & HOLDS != 0 && !self.routes.is_mapped(*rank);
        for rank in (0..self.size).filter(holds) {
            let (network, mut outcome) = (self.networks.to(rank), Ok(false));
            let waited = self.wait_together(doing, || {
                outcome = network.show_word(rank, self.segments.word_for(network.holds_of(rank)));
                !matches!(outcome, Ok(false))
            });
            // A rank that is gone does not need this word: errors there are ignored.
            if self.job.loss(rank).is_none() {
                waited?;
                outcome.map_err(|error| self.remote_error(error, rank, doing))?;
            }
        }
        Ok(())
    }

    /// Whether all `len` bytes at `address` of `rank`, which is reached over a network, lie in its segments. Waits for the
    /// network where the copy of its table is not known to be complete, but not inside a handler, nor where that would take
    /// progress at the target: there only the present copy counts.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn is_registered(&self, doing: &'static str, rank: usize, address: usize, len: usize) -> Result<bool> {
        self.check_own(doing)?;
        if self.networks.is_empty() {
            return Ok(false);
        }
        let network = self.networks.to(rank);
        if network.covers(rank, address, len) {
            return Ok(true);
        }
        // Acquire: pairs with the put of the owner, in `tell_changes`.
        let told = self.segments.table().word(rank).load(Ordering::Acquire) & !HOLDS;
        let complete = network.complete(rank).is_some_and(|complete| complete >= told);
        if complete || self.interface.delivering() || !network.reaches_idle() {
            return Ok(false);
        }
        self.copy_table(doing, rank)?;
        Ok(network.covers(rank, address, len))
    }

    pub(super) fn copy_table(&self, doing: &'static str, rank: usize) -> Result<()> {
        let network = self.networks.to(rank);
        let (mut ticket, mut outcome, word) = (None, Ok(false), self.segments.word_for(true));
        self.wait_together(doing, || {
            outcome = network.refresh(rank, word, &mut ticket);
            !matches!(outcome, Ok(false))
        })?;
        outcome.map(drop).map_err(|error| self.remote_error(error, rank, doing))
    }

    /// Segment `number` of `rank`, a rank of the job, if there is such a segment. It stays registered until this rank has answered a `REVOKE`.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::InsideHandler`] where the table is not known here.
    pub(crate) fn find_segment(&self, doing: &'static str, rank: usize, number: u32) -> Result<Option<Found>> {
        if !self.routes.is_mapped(rank) {
            return self.find_over_network(doing, rank, number);
        }
        Ok(self.segments.mapped().find(rank, number).map(|found| Found { start: found.start, len: found.len }))
    }

    /// As [`Engine::find_segment`], but the network for `rank` has its key then, also if the rank is mapped. There is a network.
    ///
    /// # Errors
    /// As [`Engine::find_segment`].
    pub(crate) fn find_over_network(&self, doing: &'static str, rank: usize, number: u32) -> Result<Option<Found>> {
        let network = self.networks.to(rank);
        if let Some(found) = network.known(rank, number) {
            return Ok(Some(found));
        }
        self.check_outside_handler(doing)?;
        self.copy_table(doing, rank)?;
        Ok(network.known(rank, number))
    }

    /// Goes on with finding what [`Engine::find_segment`] finds, also for atomics, which the network may do where memory is mapped; does not
    /// wait. Whether there is such a segment; `None` while the look-up is under way: call again with the same `ticket`, which begins as
    /// `None`.
    ///
    /// # Errors
    /// As [`Engine::find_segment`].
    pub(crate) fn begin_find(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        ticket: &mut Option<u64>,
    ) -> Result<Option<bool>> {
        if self.routes.is_mapped(rank) && !self.networks.change_segments_of(rank) {
            return Ok(Some(self.segments.mapped().find(rank, number).is_some()));
        }
        let network = self.networks.to(rank);
        if ticket.is_none() && network.known(rank, number).is_some() {
            return Ok(Some(true));
        }
        self.check_outside_handler(doing)?;
        match network.refresh(rank, self.segments.word_for(true), ticket) {
            Ok(is_copied) => Ok(is_copied.then(|| network.known(rank, number).is_some())),
            Err(error) => Err(self.remote_error(error, rank, doing)),
        }
    }

    /// As [`Segments::begin_close`](super::own_segments::Segments::begin_close).
    pub(crate) fn begin_close(&self, number: u32, generation: u64) -> Vec<usize> {
        self.segments.begin_close(number, generation, &self.contexts)
    }

    /// Whether no rank uses a segment any more that is being closed, and no get of this one fills it.
    pub(crate) fn is_unused(&self, number: u32, generation: u64) -> bool {
        self.segments.all_acknowledged(number, generation) && !self.tasks.fill(number, generation)
    }

    /// Drops the copied entry of a segment that its owner closes, and answers when no operation of this rank on the segment is in flight.
    /// Operations that are posted to the segment from now on fail.
    pub(crate) fn forget_segment(&self, answer: Answering) {
        let (owner, mut own) = (answer.owner, None);
        if !self.networks.is_empty() {
            let network = self.networks.to(owner);
            network.forget(owner, answer.number, answer.generation);
            // A lane orders no message behind operations over the network, so the network is flushed first.
            own = (self.routes.has_lane(owner) && network.holds_of(owner)).then_some(Flush::None);
        }
        let leaving = self.contexts.leave(answer, own);
        if leaving.is_done() {
            return self.answer_close(answer);
        }
        self.segments.add_leaving(leaving);
        self.tasks.mark();
    }

    /// Answers, also an owner that has left its world and still closes. Over a network the answer is ordered after all that this rank has
    /// posted there.
    pub(super) fn answer_close(&self, Answering { owner, id, number, generation }: Answering) {
        if self.job.loss(owner).is_none_or(|loss| loss == Loss::Left) {
            self.send_unasked(owner, id, u64::from(number), &generation.to_ne_bytes());
        }
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
