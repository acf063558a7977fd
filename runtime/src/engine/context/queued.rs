//! Puts that are accepted even if there is no room.
//!
//! Operations that the network does not take now are kept, and posted by later progress of the context, in the order of the calls for each
//! target (see `at_once.rs`). Bytes that the caller promises not to change are not copied. The caller bounds how much it posts, and looks
//! the segments up before: a look-up needs answers of the owner, a put needs none.

use super::super::operation::{Event, Operation, Step, Tracked};
use super::super::segments::ADDRESS;
use super::super::straight::{InFlight, overlap};
use super::{Driven, Engine, Stream};
use crate::error::{CalledAt, Error, Result, check_range};
use crate::memory::layout::SEGMENTS_FIRST;
use crate::transport::Sent;

/// The unposted rest of an operation that found no room.
pub(super) enum Kept {
    /// With bytes of its own.
    Own(Operation<Box<[u8]>>),
    /// With bytes that the caller leaves unchanged until the context is quiet.
    Lent(Operation<Lent>),
    /// A put of registered memory.
    Buffer(Buffer),
}

/// Bytes of the caller, which does not change them until the context is quiet.
pub(super) struct Lent(*const u8, usize);

// SAFETY: the bytes are not bound to a thread.
unsafe impl Send for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: by `Stream::queue_put_segment`, as long as the context keeps this.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

pub(super) struct Buffer {
    doing: &'static str,
    offset: usize,
    /// Bytes that are posted.
    done: usize,
    flight: InFlight,
    events: Vec<Event>,
}

impl Stream {
    /// Advances the look-up of a range of a segment, without waiting. `false`: the look-up is under way; call again with the same `ticket`,
    /// which begins as `None`.
    ///
    /// # Errors
    /// As [`Stream::locate_plainly`].
    pub(crate) fn begin_find(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        ticket: &mut Option<u64>,
    ) -> Result<bool> {
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        if self.is_mapped(rank) {
            return self.locate_plainly(doing, (rank, number), offset, len, false).map(|_| true);
        }
        // A copy of the table that has begun is made whole: the entries of other segments come after this one's.
        if ticket.is_none() && self.known_place(doing, (rank, number), offset, len)?.is_some() {
            return Ok(true);
        }
        if (number as usize) < SEGMENTS_FIRST {
            return Err(none(doing, rank, number));
        }
        if !self.begin_copy(doing, rank, ticket)? {
            self.poll(doing)?;
            return Ok(false);
        }
        let place = self.known_place(doing, (rank, number), offset, len)?;
        place.map(|_| true).ok_or_else(|| none(doing, rank, number))
    }

    /// Goes on with a copy of the table of segments of `rank`, which is reached over a network, without waiting; makes the connection that it
    /// needs. `false`: call again with the same `ticket`.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    fn begin_copy(&self, doing: &'static str, rank: usize, ticket: &mut Option<u64>) -> Result<bool> {
        self.check_reachable(rank, doing)?;
        self.driven().at_once(|driven| {
            driven.turn(self);
            driven.networks.to(rank).refresh(rank, 0, ticket).or_else(|error| {
                let error = self.failed(driven, error, rank, doing);
                driven.unless_undecided(rank, error, false)
            })
        })
    }

    /// Goes on with making the path of this context to `rank`, without waiting. Whether it is made: a first copy of the rank's table of segments
    /// has come.
    ///
    /// # Errors
    /// As [`Stream::begin_find`].
    pub(crate) fn connect(&self, doing: &'static str, rank: usize, ticket: &mut Option<u64>) -> Result<bool> {
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        let is_made = || self.is_mapped(rank) || self.driven().networks.to(rank).complete(rank).is_some();
        if is_made() { Ok(true) } else { self.begin_copy(doing, rank, ticket) }
    }

    /// Drops the endpoint of this context to `rank`, and the known segments of that rank, if no operation there is in flight. `false`: an
    /// operation is. Makes progress once. The network keeps its connection as long as the context lives.
    ///
    /// # Errors
    /// As [`Stream::is_over_with`].
    pub(crate) fn disconnect(&self, doing: &'static str, rank: usize) -> Result<bool> {
        self.check_own(doing)?;
        if self.is_mapped(rank) {
            return Ok(true);
        }
        if !self.is_over_with(doing, rank)? {
            return Ok(false);
        }
        let driven = self.driven();
        let is_idle = !driven.kept.contains_key(&rank) && !driven.nudges.iter().any(|(to, _)| *to == rank);
        Ok(is_idle && driven.networks.to(rank).disconnect(rank))
    }

    /// Where a range of a segment is for the network, if the segment was found.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    fn known_place(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
    ) -> Result<Option<usize>> {
        let Some(found) = self.driven().networks.to(rank).known(rank, number) else { return Ok(None) };
        check_range(doing, rank, offset, len, found.len)?;
        Ok(Some(ADDRESS + found.start + offset))
    }

    /// Puts `len` bytes at `from` to a range of a segment that was [found](Stream::begin_find), of a rank that is reached over a network. Never
    /// waits: bytes that find no room now are posted by later progress. `events`, made if the bytes are not copied, happen when the network
    /// has read them.
    ///
    /// # Errors
    /// [`Error::NoSegment`] if the segment was closed meanwhile; [`Error::OutOfBounds`]; [`Error::PeerLost`], which may be of an earlier put
    /// there.
    ///
    /// # Safety
    /// The bytes are readable, and nobody changes them, until nothing of this context is in flight.
    pub(crate) unsafe fn queue_put_segment(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        from: *const u8,
        len: usize,
        events: impl FnOnce() -> Vec<Event>,
    ) -> Result<()> {
        let at = self.known_place(doing, (rank, number), offset, len)?.ok_or_else(|| none(doing, rank, number))?;
        self.check_reachable(rank, doing)?;
        // SAFETY: the caller's; the region ends with the flight.
        let outcome = match unsafe { self.register(rank, from.cast_mut(), len) } {
            Some(region) => {
                let flight = InFlight::new(region, Box::new(()));
                let kept = Kept::Buffer(Buffer { doing, offset: at, done: 0, flight, events: events() });
                self.driven().at_once(|driven| driven.accept(self, doing, rank, kept))
            }
            None => {
                let (offset, bytes) = (at, Lent(from, len));
                let kept = Kept::Lent(Operation::Put { offset, bytes, done: 0, after: false, tell: false });
                self.driven().at_once(|driven| driven.accept(self, doing, rank, kept))
            }
        };
        self.unless_closed_plainly(doing, rank, number, outcome)
    }

    /// Stores a word in an aligned place of a segment that was found, ordered after earlier puts of this context to `rank`: as
    /// [`Stream::queue_put_segment`]. `tell`: the target may wait for the word.
    ///
    /// # Errors
    /// As [`Stream::queue_put_segment`].
    pub(crate) fn queue_word(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        word: u32,
        tell: bool,
    ) -> Result<()> {
        let len = size_of::<u32>();
        let at = self.known_place(doing, (rank, number), offset, len)?.ok_or_else(|| none(doing, rank, number))?;
        self.check_reachable(rank, doing)?;
        let outcome = self.driven().at_once(|driven| {
            let bytes = word.to_ne_bytes();
            let mut put = Operation::Put { offset: at, bytes, done: 0, after: true, tell };
            let mut post =
                |driven: &mut Driven| driven.post(self, doing, rank, &mut put).map_err(|error| self.told(error));
            if driven.is_free(self, rank)? && post(driven)? == Sent::Done {
                driven.posted(self, rank, &put);
            } else {
                driven.kept.entry(rank).or_default().push_back(Kept::Own(put.keep()));
            }
            Ok(())
        });
        self.unless_closed_plainly(doing, rank, number, outcome)
    }
}

impl Engine {
    /// Whether no context of this rank has anything in flight, or keeps anything, that reads or fills `len` bytes of this rank from `start` on.
    /// Makes progress for the contexts, and runs the actions of events: any thread may run these.
    pub(crate) fn contexts_leave(&self, start: *const u8, len: usize) -> bool {
        // All of them make progress.
        self.contexts.shared.siblings.all().iter().filter(|stream| !stream.leaves(start, len)).count() == 0
    }
}

impl Stream {
    fn leaves(&self, start: *const u8, len: usize) -> bool {
        // Another thread makes progress there.
        let Some(mut driven) = self.try_driven() else { return false };
        if driven.networks.is_empty() {
            return true;
        }
        if !driven.touches(start, len) {
            return true;
        }
        driven.turn(self);
        drop(driven);
        self.happen_due();
        false
    }
}

#[cold]
fn none(operation: &'static str, rank: usize, number: u32) -> Error {
    Error::NoSegment { operation, rank, number, place: CalledAt::default() }
}

impl Kept {
    fn touches(&self, start: *const u8, len: usize) -> bool {
        match self {
            Kept::Own(_) => false,
            Kept::Lent(Operation::Put { bytes, .. }) => overlap((bytes.0, bytes.1), (start, len)),
            Kept::Lent(_) => true,
            Kept::Buffer(buffer) => buffer.flight.touches(start, len),
        }
    }
}

impl Driven {
    fn touches(&self, start: *const u8, len: usize) -> bool {
        let is_due =
            |(event, _): &(Event, Result<()>)| matches!(event, Event::GiveUp(flight) if flight.touches(start, len));
        self.tracking.operations.iter().any(|tracked| tracked.touches(start, len))
            || self.tracking.due.iter().any(is_due)
            || self.kept.values().flatten().any(|kept| kept.touches(start, len))
    }

    /// As [`Driven::is_clear`], and makes progress once if operations are kept for `rank`.
    #[inline]
    fn is_free(&mut self, stream: &Stream, rank: usize) -> Result<bool> {
        if self.is_clear(stream, rank)? {
            return Ok(true);
        }
        self.turn(stream);
        self.is_clear(stream, rank)
    }

    fn accept(&mut self, stream: &Stream, doing: &'static str, rank: usize, mut kept: Kept) -> Result<()> {
        if self.is_free(stream, rank)? {
            match self.post_one(stream, doing, rank, &mut kept) {
                Ok(Sent::Done) => {
                    self.posted_one(stream, rank, kept);
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => {
                    self.give_up_kept(rank, [kept]);
                    return Err(error);
                }
            }
        }
        self.kept.entry(rank).or_default().push_back(kept);
        Ok(())
    }

    /// Posts as much of the operation as there is room for.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(super) fn post_one(
        &mut self,
        stream: &Stream,
        doing: &'static str,
        rank: usize,
        kept: &mut Kept,
    ) -> Result<Sent> {
        let Buffer { offset, done, flight, .. } = match kept {
            Kept::Own(operation) => return self.post(stream, doing, rank, operation),
            Kept::Lent(operation) => return self.post(stream, doing, rank, operation),
            Kept::Buffer(buffer) => buffer,
        };
        // SAFETY: the caller of `queue_put_segment` guarantees it until this context is quiet.
        let posted = unsafe { flight.go_on(self.networks.to(rank), (rank, *offset), done) };
        let all = posted.or_else(|error| {
            let error = stream.failure(self, error, rank, doing);
            self.unless_undecided(rank, error, false)
        })?;
        Ok(if all { Sent::Done } else { Sent::NoRoom })
    }

    /// Called when all of an operation is posted.
    pub(super) fn posted_one(&mut self, stream: &Stream, rank: usize, kept: Kept) {
        match kept {
            Kept::Own(operation) => self.posted(stream, rank, &operation),
            Kept::Lent(operation) => self.posted(stream, rank, &operation),
            Kept::Buffer(buffer) => self.follow(rank, buffer),
        }
    }

    /// Drops operations that are not all posted. Their posted parts stay tracked until they have ended.
    pub(super) fn give_up_kept(&mut self, rank: usize, queue: impl IntoIterator<Item = Kept>) {
        for kept in queue {
            if let Kept::Buffer(mut buffer) = kept {
                buffer.events.clear();
                self.follow(rank, buffer);
            }
        }
    }

    fn follow(&mut self, rank: usize, Buffer { doing, flight, events, .. }: Buffer) {
        self.tracking.operations.push(Tracked::new(rank, doing, Step::Buffer(flight), events));
    }
}
