//! Writes, reads and notifications.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use super::codes;
use super::look_up::{LookUp, place};
use super::notes::{Layout, MARKED};
use super::process::Process;
use super::queues::{Queue, recent};
use super::segments::{notes_of, number_of};
use super::shared::Shared;
use super::statistics::{Counter, Statistics};
use super::types::{Code, NotificationId, QueueId, Rank, Result, SegmentId, Timeout};
use crate::error::{Error, Result as RuntimeResult};
use crate::world::StreamEvent;

/// A range of a segment of this process, and one of the same size of a segment of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Segment and offset here.
    pub local: (SegmentId, u64),
    /// Segment and offset there.
    pub remote: (SegmentId, u64),
    /// Bytes.
    pub size: u64,
}

/// A notification, and the value that it is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// The segment that it belongs to.
    pub segment: SegmentId,
    /// Its number.
    pub id: NotificationId,
    /// Not 0.
    pub value: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Write,
    Read,
}

/// A notification at the target of writes, or here after reads.
#[derive(Clone, Copy)]
pub(super) enum Notice {
    None,
    There(Note),
    Here(Note),
}

/// A request to post. By value, so that the path of mapped memory keeps it in registers.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) parts: &'a [Part],
    pub(super) rank: Rank,
    pub(super) queue: QueueId,
    pub(super) direction: Direction,
    pub(super) notice: Notice,
}

const WRITING: &str = "a GASPI write";
const READING: &str = "a GASPI read";
const NOTIFYING: &str = "a GASPI notification";

impl Direction {
    pub(super) fn doing(self) -> &'static str {
        match self {
            Direction::Write => WRITING,
            Direction::Read => READING,
        }
    }
}

/// Why a request is not posted by its queue.
pub(super) enum Refused {
    Code(Code),
    /// An operation with this rank has failed.
    Error(Error, usize),
    /// Only messages reach the memory, which the world sends.
    ByWorld,
    /// A segment is being looked up. Virtual time on a simulated network.
    Later(Option<Duration>),
}

impl<'a> Request<'a> {
    #[inline(always)]
    fn write(parts: &'a [Part], rank: Rank, queue: QueueId, notice: Notice) -> Request<'a> {
        Request { parts, rank, queue, direction: Direction::Write, notice }
    }

    #[inline(always)]
    fn read(parts: &'a [Part], rank: Rank, queue: QueueId, notice: Notice) -> Request<'a> {
        Request { parts, rank, queue, direction: Direction::Read, notice }
    }

    /// How many requests it counts as: a write and its notification count as one; after a list of several parts the notification counts as
    /// one more, as in GPI-2.
    #[inline(always)]
    pub(super) fn number(&self) -> u32 {
        let notices = u32::from(!matches!(self.notice, Notice::None));
        match self.parts {
            [part] => u32::from(part.size > 0).max(notices),
            parts => parts.iter().filter(|part| part.size > 0).count() as u32 + notices,
        }
    }
}

impl Request<'_> {
    #[cold]
    fn count(&self, statistics: &Statistics) {
        let (requests, bytes) = match self.direction {
            Direction::Write => (Counter::Writes, Counter::WrittenBytes),
            Direction::Read => (Counter::Reads, Counter::ReadBytes),
        };
        if !self.parts.is_empty() {
            statistics.add(requests, 1);
            statistics.add(bytes, self.parts.iter().map(|part| part.size).sum());
        }
        if let Notice::There(_) = self.notice {
            statistics.add(Counter::Notifications, 1);
        }
    }
}

impl From<Code> for Refused {
    fn from(code: Code) -> Refused {
        Refused::Code(code)
    }
}

impl Process {
    /// Posts a write: `part.size` bytes from here to `rank`, which need not make a call. The source may be changed after a
    /// [`Process::wait`]. Posting does not wait for room: requests that a network does not take now are posted by later calls, and
    /// by the runtime's thread. Two kinds of posts wait, within the limit but for 100 ms at least, since programs expect that a post with
    /// [`Timeout::Test`] does not time out: over a network the first request of a queue to a segment looks it up there, and to memory that
    /// only messages reach they need room. After the time-out of a post by messages a part of its bytes may be moved, and no notification is
    /// changed. Made again, the post begins anew: a write overwrites what the target has changed there since.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_QUEUE`]; [`codes::INV_SEG`]; [`codes::INV_LOC_OFF`]; [`codes::INV_REM_OFF`];
    /// [`codes::INV_COMMSIZE`]; [`codes::QUEUE_FULL`]; [`codes::TIMEOUT`] of these waits. Then no request is posted. A lost target is no error
    /// of this call: the request counts as one of its queue, and the next [`Process::wait`] fails.
    #[inline]
    pub fn write(&self, part: Part, rank: Rank, queue: QueueId, timeout: Timeout) -> Result<()> {
        self.post([part], rank, queue, Direction::Write, Notice::None, timeout)
    }

    /// Posts a read: `part.size` bytes of `rank`, which need not make a call. The bytes are here after a [`Process::wait`].
    ///
    /// # Errors
    /// As [`Process::write`]; [`codes::ERROR`] of a read by messages if the memory there cannot be read any more.
    #[inline]
    pub fn read(&self, part: Part, rank: Rank, queue: QueueId, timeout: Timeout) -> Result<()> {
        self.post([part], rank, queue, Direction::Read, Notice::None, timeout)
    }

    /// Posts a notification of `rank`. A process that sees it sees the writes that were posted before on the same queue to the same rank.
    ///
    /// # Errors
    /// As [`Process::write`]; [`codes::INV_NOTIF_VAL`]; [`codes::INV_NOTIF_ID`].
    #[inline]
    pub fn notify(&self, note: Note, rank: Rank, queue: QueueId, timeout: Timeout) -> Result<()> {
        self.post([], rank, queue, Direction::Write, Notice::There(note), timeout)
    }

    /// Posts a write, and a notification after it: one request. A process that sees the notification sees the written bytes.
    ///
    /// # Errors
    /// As [`Process::notify`].
    #[inline]
    pub fn write_notify(&self, part: Part, rank: Rank, note: Note, queue: QueueId, timeout: Timeout) -> Result<()> {
        self.post([part], rank, queue, Direction::Write, Notice::There(note), timeout)
    }

    /// Posts a read. When its data is here, the notification `id` of the own segment `segment` gets the value 1.
    ///
    /// # Errors
    /// As [`Process::notify`].
    pub fn read_notify(
        &self,
        part: Part,
        rank: Rank,
        (segment, id): (SegmentId, NotificationId),
        queue: QueueId,
        timeout: Timeout,
    ) -> Result<()> {
        let notice = Notice::Here(Note { segment, id, value: 1 });
        self.post([part], rank, queue, Direction::Read, notice, timeout)
    }

    /// Posts several writes to one rank: all, or with an error none, except after the time-out of a [post by messages](Process::write).
    ///
    /// # Errors
    /// As [`Process::write`]; [`codes::INV_NUM`] for no parts, or more than `rw_list_elem_max`.
    pub fn write_list(&self, parts: &[Part], rank: Rank, queue: QueueId, timeout: Timeout) -> Result<()> {
        self.post_list(Request::write(parts, rank, queue, Notice::None), timeout)
    }

    /// Posts several writes to one rank, and a notification after them. The notification is a request of its own if there are several parts.
    ///
    /// # Errors
    /// As [`Process::write_list`] and [`Process::notify`].
    pub fn write_list_notify(
        &self,
        parts: &[Part],
        rank: Rank,
        note: Note,
        queue: QueueId,
        timeout: Timeout,
    ) -> Result<()> {
        self.post_list(Request::write(parts, rank, queue, Notice::There(note)), timeout)
    }

    /// Posts several reads of one rank: all, or with an error none, except where a [post by messages](Process::read) times out or fails.
    ///
    /// # Errors
    /// As [`Process::write_list`] and [`Process::read`].
    pub fn read_list(&self, parts: &[Part], rank: Rank, queue: QueueId, timeout: Timeout) -> Result<()> {
        self.post_list(Request::read(parts, rank, queue, Notice::None), timeout)
    }

    /// Posts several reads of one rank, and a notification here when all their data is.
    ///
    /// # Errors
    /// As [`Process::write_list`] and [`Process::read_notify`].
    pub fn read_list_notify(
        &self,
        parts: &[Part],
        rank: Rank,
        (segment, id): (SegmentId, NotificationId),
        queue: QueueId,
        timeout: Timeout,
    ) -> Result<()> {
        self.post_list(Request::read(parts, rank, queue, Notice::Here(Note { segment, id, value: 1 })), timeout)
    }

    fn post_list(&self, request: Request<'_>, timeout: Timeout) -> Result<()> {
        {
            let entry = self.shared().enter(request.queue)?;
            let most = entry.as_ref().map(|queue| queue.config.rw_list_elem_max as usize);
            if most.is_some_and(|most| !(1..=most).contains(&request.parts.len())) {
                return Err(Code(codes::INV_NUM));
            }
        }
        self.post_by_any(request, timeout)
    }

    /// Posts one part or none, given by value: what is not stored stays in registers on the path of mapped memory.
    #[inline(always)]
    fn post<const N: usize>(
        &self,
        parts: [Part; N],
        rank: Rank,
        queue: QueueId,
        direction: Direction,
        notice: Notice,
        timeout: Timeout,
    ) -> Result<()> {
        let shared = self.shared();
        // Requests that are counted take the other path.
        if !shared.statistics.is_on()
            && let Some(mut favoured) = shared.enter_favoured(queue)
            && let Some(open) = favoured.queue()
            && open.post_mapped(shared, Request { parts: &parts, rank, queue, direction, notice })
        {
            return Ok(());
        }
        self.post_apart(parts, rank, queue, direction, notice, timeout)
    }

    /// As [`Process::post_by_any`].
    #[cold]
    #[inline(never)]
    fn post_apart<const N: usize>(
        &self,
        parts: [Part; N],
        rank: Rank,
        queue: QueueId,
        direction: Direction,
        notice: Notice,
        timeout: Timeout,
    ) -> Result<()> {
        self.post_by_any(Request { parts: &parts, rank, queue, direction, notice }, timeout)
    }

    /// As [`Process::post_uncounted`]; counts what is posted.
    fn post_by_any(&self, request: Request<'_>, timeout: Timeout) -> Result<()> {
        self.post_uncounted(request, timeout)?;
        let statistics = &self.shared().statistics;
        if statistics.is_on() {
            request.count(statistics);
        }
        Ok(())
    }

    /// Posts by whichever thread and on whichever memory, or finds out what is wrong.
    fn post_uncounted(&self, request: Request<'_>, timeout: Timeout) -> Result<()> {
        let shared = self.shared();
        let mut look_up = LookUp::new(timeout);
        loop {
            let mut entry = match shared.enter(request.queue) {
                Ok(entry) => entry,
                Err(code) => return Err(self.not_entered(code)),
            };
            let outcome = match &mut *entry {
                Some(queue) => queue.post(shared, request),
                None => {
                    drop(entry);
                    return Err(self.no_queue());
                }
            };
            // Other threads use the queue while this one waits.
            drop(entry);
            match outcome {
                Ok(()) => return Ok(()),
                Err(Refused::Later(now)) => look_up.pause(now)?,
                Err(refused) => return self.refused(refused, request, timeout),
            }
        }
    }

    #[cold]
    fn not_entered(&self, code: Code) -> Code {
        if code == Code(codes::INV_QUEUE) { self.no_queue() } else { code }
    }

    #[cold]
    #[inline(never)]
    fn refused(&self, refused: Refused, request: Request<'_>, timeout: Timeout) -> Result<()> {
        match refused {
            Refused::Code(code) => Err(code),
            Refused::Error(error, rank) => {
                if let Error::PeerLost { rank: lost, .. } = error
                    && lost == rank
                {
                    self.shared().corrupt(rank);
                }
                Err(Code(codes::of_error(&error)))
            }
            Refused::ByWorld => self.post_by_message(request, timeout),
            Refused::Later(_) => Err(Code(codes::TIMEOUT)),
        }
    }
}

/// Checks that this process may reach what a request is for at another rank.
///
/// # Errors
/// [`codes::INV_SEG`].
fn check_registered(shared: &Shared, rank: usize, request: Request<'_>) -> Result<()> {
    let mut segments = request.parts.iter().map(|part| part.remote.0);
    let noted = if let Notice::There(note) = request.notice { Some(note.segment) } else { None };
    let may_reach = |segment| shared.is_registered(rank, segment);
    if segments.all(may_reach) && noted.is_none_or(may_reach) { Ok(()) } else { Err(Code(codes::INV_SEG)) }
}

/// The offset of a range at the target, and bytes that have to be there: a range without bytes begins inside the segment too.
#[inline(always)]
pub(super) fn there(part: &Part) -> (usize, usize) {
    (usize::try_from(part.remote.1).unwrap_or(usize::MAX), part.size.max(1) as usize)
}

impl Queue {
    /// Posts a request, if its arguments are right and plain stores and loads do what it asks for. Else posts nothing, and returns `false`.
    #[inline(always)]
    fn post_mapped(&mut self, shared: &Shared, request: Request<'_>) -> bool {
        let Ok(single) = self.check(shared, request) else { return false };
        let is_done = self.carry_mapped(shared, request, single);
        if is_done {
            self.open += request.number();
        }
        is_done
    }

    /// Posts a request. With an error nothing is posted, unless the network fails meanwhile: then earlier parts may be in flight until a
    /// purge.
    fn post(&mut self, shared: &Arc<Shared>, request: Request<'_>) -> Result<(), Refused> {
        let to = usize::from(request.rank);
        if to >= self.stream.size {
            return Err(Refused::Code(Code(codes::INV_RANK)));
        }
        let single = self.check(shared, request)?;
        if to != self.stream.rank {
            check_registered(shared, to, request)?;
        }
        if self.stream.is_lost(to) {
            self.refuse(shared, to, false);
        } else if !self.stream.is_mapped(to) || !self.carry_mapped(shared, request, single) {
            match self.carry(shared, request) {
                // The error may name another rank that was lost earlier.
                Err(Refused::Error(Error::PeerLost { rank, .. }, _)) if rank == to || self.stream.is_lost(to) => {
                    self.refuse(shared, to, self.may_be_under_way(to));
                }
                outcome => outcome?,
            }
        }
        self.open += request.number();
        Ok(())
    }

    /// Accepts a request to a lost target: it counts as one of the queue, and the next wait fails. `in_flight`: a part of it, or of an
    /// earlier request to that rank, may be in flight until a purge.
    #[cold]
    pub(super) fn refuse(&mut self, shared: &Shared, rank: usize, in_flight: bool) {
        shared.corrupt(rank);
        self.refused = true;
        if in_flight {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Checks all of a request but its rank and what is at the target. The range here of a single part.
    ///
    /// # Errors
    /// As [`Process::write`] and [`Process::notify`].
    #[inline(always)]
    fn check(&self, shared: &Shared, request: Request<'_>) -> Result<*mut u8> {
        if let Notice::There(note) | Notice::Here(note) = request.notice {
            if note.value == 0 {
                return Err(Code(codes::INV_NOTIF_VAL));
            }
            if note.id >= self.config.notification_num {
                return Err(Code(codes::INV_NOTIF_ID));
            }
        }
        let check = |part: &Part| {
            let here = shared.range(part.local.0, part.local.1, part.size)?;
            if part.size > self.config.transfer_size_max { Err(Code(codes::INV_COMMSIZE)) } else { Ok(here) }
        };
        let single = match request.parts {
            [part] => check(part)?,
            parts => parts.iter().try_fold(ptr::null_mut(), |_, part| check(part).map(|_| ptr::null_mut()))?,
        };
        if self.open + request.number() > self.config.queue_size_max {
            return Err(Code(codes::QUEUE_FULL));
        }
        Ok(single)
    }

    /// Does what is posted, if plain stores and loads do. Else nothing, and returns `false`: it may be wrong. `single` is the range
    /// here of a single part.
    #[inline(always)]
    fn carry_mapped(&mut self, shared: &Shared, request: Request<'_>, single: *mut u8) -> bool {
        let Request { parts, rank, direction, notice, .. } = request;
        let to = usize::from(rank);
        let layout = Layout::new(self.config.notification_num);
        let Some(reached) = self.stream.reach(to) else { return false };
        let find = |part: &Part| {
            let (offset, len) = there(part);
            reached.place(number_of(part.remote.0), offset, len)
        };
        // A list is done whole or not at all. A single part is found below.
        if parts.len() > 1 && !parts.iter().all(|part| find(part).is_some()) {
            return false;
        }
        let mut word_and_mark = None;
        if let Notice::There(note) = notice {
            // After what went by message.
            if self.stream.are_by_message() {
                return false;
            }
            let number = notes_of(note.segment);
            let memo = &mut self.recent[1][recent(to, number)];
            let start = place(shared, &reached, memo, (to, note.segment), number, (0, layout.bytes()));
            let Some(start) = start else { return false };
            let at = |offset| start.wrapping_add(offset).cast::<u32>();
            word_and_mark = Some((at(layout.word(note.id)), at(layout.mark(note.id)), note.value));
        }
        let own_notes = match notice {
            Notice::Here(note) => match shared.board.get(note.segment) {
                Some(notes) => Some((notes, note)),
                None => return false,
            },
            Notice::None | Notice::There(_) => None,
        };
        for part in parts {
            let (offset, len) = there(part);
            let number = number_of(part.remote.0);
            let memo = &mut self.recent[0][recent(to, number)];
            let there = place(shared, &reached, memo, (to, part.remote.0), number, (offset, len));
            let Some(there) = there else { return false };
            let here = if parts.len() == 1 {
                single
            } else {
                let Ok(here) = shared.range(part.local.0, part.local.1, part.size) else { return false };
                here
            };
            // SAFETY: both are in bounds of segments, which stay: the other one while `reached` lives, the own one while this thread has
            // a queue. Both are only touched by copies and atomics, and the program leaves alone what it has posted.
            unsafe {
                match direction {
                    Direction::Write => reached.put(there, here, part.size as usize),
                    Direction::Read => reached.get(here, there, part.size as usize),
                }
            }
        }
        if let Some((word, mark, value)) = word_and_mark {
            // SAFETY: aligned words of a segment of notifications, which stays while `reached` lives, and is only touched through atomics.
            let (word, mark) = unsafe { (AtomicU32::from_ptr(word), AtomicU32::from_ptr(mark)) };
            // Release pairs with the Acquire loads of `Notes::first` and `Notes::reset`: the data comes first, and the word before the mark.
            word.store(value, Ordering::Release);
            mark.store(MARKED, Ordering::Release);
        }
        drop(reached);
        if word_and_mark.is_some() {
            self.stream.stored(to);
        }
        if let Some((notes, note)) = own_notes {
            notes.set(note.id, note.value);
            drop(notes);
            self.stream.stored(self.stream.rank);
        }
        true
    }

    /// Posts over a network, or by the kernel.
    #[cold]
    #[inline(never)]
    fn carry(&mut self, shared: &Arc<Shared>, request: Request<'_>) -> Result<(), Refused> {
        let Request { parts, rank, queue: id, direction, notice } = request;
        let to = usize::from(rank);
        let doing = direction.doing();
        let is_mapped = self.stream.is_mapped(to);
        let failed = |error| match error {
            // The kernel allows no cross-memory attach.
            Error::InvalidArgument { .. } if is_mapped => Refused::ByWorld,
            error => Refused::Error(error, to),
        };
        for part in parts {
            self.find(doing, (to, number_of(part.remote.0)), there(part))?.map_err(failed)?;
        }
        let layout = Layout::new(self.config.notification_num);
        let mut generation = 0;
        match notice {
            Notice::There(note) => {
                let (number, word) = (notes_of(note.segment), layout.word(note.id));
                self.find(NOTIFYING, (to, number), (word, size_of::<u32>()))?.map_err(failed)?;
                if is_mapped && self.stream.are_by_message() {
                    return Err(Refused::ByWorld);
                }
            }
            Notice::Here(note) => {
                let notes = shared.board.get(note.segment).ok_or(Code(codes::INV_SEG))?;
                generation = notes.generation();
            }
            Notice::None => {}
        }
        if !is_mapped && request.number() > 0 {
            self.partners.insert(to);
        }
        let parts = || parts.iter().filter(|part| part.size > 0);
        match direction {
            Direction::Write => {
                for part in parts() {
                    let here = shared.range(part.local.0, part.local.1, part.size)?;
                    let (number, offset, len) = (number_of(part.remote.0), part.remote.1 as usize, part.size as usize);
                    // A copied write has no event: the flush of its queue returns its error.
                    let events = || vec![self.after_write(shared, to)];
                    // SAFETY: in bounds of a segment of this process; closing it waits for the operations that contexts have in flight or
                    // keep. The program does not change the posted bytes until a wait, or a purge after an error.
                    let posted = unsafe {
                        match is_mapped {
                            true => self.stream.post_put_segment(doing, to, number, offset, here, len, Vec::new()),
                            false => self.stream.queue_put_segment(doing, (to, number), offset, here, len, events),
                        }
                    };
                    posted.map_err(failed)?;
                }
                if let Notice::There(note) = notice {
                    let number = notes_of(note.segment);
                    let (word, mark) = (layout.word(note.id), layout.mark(note.id));
                    let after = |offset, word: u32, tell| match is_mapped {
                        true => self.stream.post_word(NOTIFYING, (to, number), offset, &word.to_ne_bytes()),
                        false => self.stream.queue_word(NOTIFYING, (to, number), offset, word, tell),
                    };
                    after(word, note.value, false).and_then(|()| after(mark, MARKED, true)).map_err(failed)?;
                }
            }
            Direction::Read => {
                let left = Arc::new(AtomicUsize::new(parts().count()));
                if let Notice::Here(note) = notice {
                    match left.load(Ordering::Relaxed) {
                        0 => shared.board.set(note.segment, generation, note.id, note.value),
                        _ if !is_mapped => drop(shared.reads.fetch_or(1 << id, Ordering::Relaxed)),
                        _ => {}
                    }
                }
                for part in parts() {
                    let here = shared.range(part.local.0, part.local.1, part.size)?;
                    let events = vec![self.after_read(shared, to, &left, notice, generation)];
                    let (number, offset, len) = (number_of(part.remote.0), part.remote.1 as usize, part.size as usize);
                    // SAFETY: bytes of an open segment of this process; closing it waits for the operations that contexts have in
                    // flight. The program does not touch these bytes until a wait.
                    let posted = unsafe { self.stream.post_get_segment(doing, to, number, offset, here, len, events) };
                    posted.map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// Finds a range of a segment, or goes on with the look-up that an earlier call has begun.
    fn find(
        &mut self,
        doing: &'static str,
        place: (usize, u32),
        (offset, len): (usize, usize),
    ) -> Result<RuntimeResult<()>, Refused> {
        let mut ticket = self.look_ups.remove(&place).unwrap_or(None);
        let found = self.stream.begin_find(doing, place, offset, len, &mut ticket);
        // A copy of the table has ended: other look-ups there that waited for it may come after a segment was made.
        if ticket.is_some() && !matches!(found, Ok(false)) {
            self.look_ups.retain(|(rank, _), _| *rank != place.0);
        }
        match found {
            Ok(true) => Ok(Ok(())),
            Ok(false) => {
                self.look_ups.insert(place, ticket);
                Err(Refused::Later(self.stream.virtual_time()))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// The event of a long write to rank `to`, when it has ended.
    fn after_write(&self, shared: &Arc<Shared>, to: usize) -> StreamEvent {
        let (shared, failed) = (Arc::clone(shared), Arc::clone(&self.failed));
        StreamEvent::Call(Box::new(move |outcome| {
            outcome.unwrap_or_else(|error| note_failure(&shared, &failed, to, &error))
        }))
    }

    /// The event of a read from rank `to`, when it has ended. The last read of a request sets the notification here, unless one has failed.
    fn after_read(
        &self,
        shared: &Arc<Shared>,
        to: usize,
        left: &Arc<AtomicUsize>,
        notice: Notice,
        generation: u32,
    ) -> StreamEvent {
        let (shared, left, failed) = (Arc::clone(shared), Arc::clone(left), Arc::clone(&self.failed));
        StreamEvent::Call(Box::new(move |outcome| match (outcome, notice) {
            (Ok(()), Notice::Here(note)) => {
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    shared.board.set(note.segment, generation, note.id, note.value);
                }
            }
            (Ok(()), Notice::None | Notice::There(_)) => {}
            (Err(error), _) => note_failure(&shared, &failed, to, &error),
        }))
    }
}

/// Notes that a request of a queue to rank `to` failed after it was posted. The next wait on the queue fails. `error` may name another
/// rank that was lost earlier.
fn note_failure(shared: &Shared, failed: &AtomicBool, to: usize, error: &Error) {
    if matches!(error, Error::PeerLost { .. }) {
        shared.corrupt(to);
    }
    codes::of_error(error);
    failed.store(true, Ordering::Relaxed);
}
