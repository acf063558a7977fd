//! Writes, reads and notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::codes;
use super::place::Held;
use super::process::Process;
use super::segments::number_of;
use super::state::{State, kind};
use super::types::{Code, NotificationId, QueueId, Rank, Result, SegmentId, Timeout};
use crate::error::Error;
use crate::world::{Completion, Event, World};

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
enum Direction {
    Write,
    Read,
}

/// A notification at the target of writes, or here after reads.
enum Notice {
    None,
    There(Note),
    Here(Note),
}

const WRITING: &str = "a GASPI write";
const READING: &str = "a GASPI read";

impl Process {
    /// Posts a write: `part.size` bytes from here to `rank`, which does nothing for it. What was written may be changed after a
    /// [`Process::wait`]. Posting waits for no other process, so no time limit ends it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_QUEUE`]; [`codes::INV_SEG`]; [`codes::INV_LOC_OFF`]; [`codes::INV_REM_OFF`];
    /// [`codes::INV_COMMSIZE`]; [`codes::QUEUE_FULL`]; [`codes::ERROR`] if the target is lost. Then nothing is posted.
    pub fn write(&self, part: Part, rank: Rank, queue: QueueId, _timeout: Timeout) -> Result<()> {
        self.post(&[part], rank, queue, Direction::Write, Notice::None)
    }

    /// Posts a read: `part.size` bytes of `rank`, which does nothing for it. They are here after a [`Process::wait`].
    ///
    /// # Errors
    /// As [`Process::write`].
    pub fn read(&self, part: Part, rank: Rank, queue: QueueId, _timeout: Timeout) -> Result<()> {
        self.post(&[part], rank, queue, Direction::Read, Notice::None)
    }

    /// Posts a notification of `rank`. Who sees it sees the writes that were posted before on the same queue to the same rank.
    ///
    /// # Errors
    /// As [`Process::write`]; [`codes::INV_NOTIF_VAL`]; [`codes::INV_NOTIF_ID`].
    pub fn notify(&self, note: Note, rank: Rank, queue: QueueId, _timeout: Timeout) -> Result<()> {
        self.post(&[], rank, queue, Direction::Write, Notice::There(note))
    }

    /// Posts a write, and a notification after it: one request. Who sees the notification sees what was written.
    ///
    /// # Errors
    /// As [`Process::notify`].
    pub fn write_notify(&self, part: Part, rank: Rank, note: Note, queue: QueueId, _timeout: Timeout) -> Result<()> {
        self.post(&[part], rank, queue, Direction::Write, Notice::There(note))
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
        _timeout: Timeout,
    ) -> Result<()> {
        self.post(&[part], rank, queue, Direction::Read, Notice::Here(Note { segment, id, value: 1 }))
    }

    /// Posts several writes to one rank: all, or with an error none.
    ///
    /// # Errors
    /// As [`Process::write`]; [`codes::INV_NUM`] for no parts, or more than `rw_list_elem_max`.
    pub fn write_list(&self, parts: &[Part], rank: Rank, queue: QueueId, _timeout: Timeout) -> Result<()> {
        self.check_list(parts)?;
        self.post(parts, rank, queue, Direction::Write, Notice::None)
    }

    /// Posts several writes to one rank, and a notification after them.
    ///
    /// # Errors
    /// As [`Process::write_list`] and [`Process::notify`].
    pub fn write_list_notify(
        &self,
        parts: &[Part],
        rank: Rank,
        note: Note,
        queue: QueueId,
        _timeout: Timeout,
    ) -> Result<()> {
        self.check_list(parts)?;
        self.post(parts, rank, queue, Direction::Write, Notice::There(note))
    }

    /// Posts several reads of one rank: all, or with an error none.
    ///
    /// # Errors
    /// As [`Process::write_list`].
    pub fn read_list(&self, parts: &[Part], rank: Rank, queue: QueueId, _timeout: Timeout) -> Result<()> {
        self.check_list(parts)?;
        self.post(parts, rank, queue, Direction::Read, Notice::None)
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
        _timeout: Timeout,
    ) -> Result<()> {
        self.check_list(parts)?;
        self.post(parts, rank, queue, Direction::Read, Notice::Here(Note { segment, id, value: 1 }))
    }

    fn check_list(&self, parts: &[Part]) -> Result<()> {
        let most = self.in_work(|state| state.config.rw_list_elem_max)? as usize;
        if (1..=most).contains(&parts.len()) { Ok(()) } else { Err(Code(codes::INV_NUM)) }
    }

    fn post(&self, parts: &[Part], rank: Rank, queue: QueueId, direction: Direction, notice: Notice) -> Result<()> {
        let Held { state, world } = &mut *self.place.enter()?;
        state.check_works()?;
        let to = state.check_partner(world, rank)?;
        state.queue(queue)?;
        if let Notice::There(note) | Notice::Here(note) = &notice {
            if note.value == 0 {
                return Err(Code(codes::INV_NOTIF_VAL));
            }
            if note.id >= state.config.notification_num {
                return Err(Code(codes::INV_NOTIF_ID));
            }
        }
        if let Notice::Here(note) = &notice
            && !state.segments.contains_key(&note.segment)
        {
            return Err(Code(codes::INV_SEG));
        }
        for part in parts {
            state.check(world, to, part, direction)?;
        }
        let has_notice = !matches!(notice, Notice::None);
        let moved = parts.iter().filter(|part| part.size > 0).count() as u32;
        // A write and its notification are one request.
        let requests = moved.max(u32::from(has_notice));
        if requests == 0 {
            return Ok(());
        }
        let most = state.config.queue_size_max;
        let pending = state.queue(queue)?;
        if pending.open + requests > most {
            return Err(Code(codes::QUEUE_FULL));
        }
        pending.open += requests;
        pending.partners.insert(to);
        let outcome = state.carry(world, to, parts, queue, direction, notice);
        outcome.map_err(|error| {
            if let Ok(queue) = state.queue(queue) {
                queue.open -= requests;
            }
            state.failed(&error, to)
        })
    }
}

impl State {
    /// Checks both ranges of a part.
    fn check(&self, world: &World, to: usize, part: &Part, direction: Direction) -> Result<()> {
        self.own_range(part.local.0, part.local.1, part.size)?;
        if part.size > self.config.transfer_size_max {
            return Err(Code(codes::INV_COMMSIZE));
        }
        let doing = if direction == Direction::Write { WRITING } else { READING };
        let offset = usize::try_from(part.remote.1).map_err(|_| Code(codes::INV_REM_OFF))?;
        // A range without bytes begins inside the segment too.
        let len = part.size.max(1) as usize;
        match world.find_segment(doing, to, number_of(part.remote.0), offset, len) {
            Ok(_) => Ok(()),
            Err(error) => Err(Code(codes::of_error(&error))),
        }
    }

    /// Posts what was checked.
    fn carry(
        &mut self,
        world: &World,
        to: usize,
        parts: &[Part],
        queue: QueueId,
        direction: Direction,
        notice: Notice,
    ) -> Result<(), Error> {
        let parts = || parts.iter().filter((|part| part.size > 0) as fn(&&Part) -> bool);
        match direction {
            Direction::Write => {
                for part in parts() {
                    let from = self.own_range(part.local.0, part.local.1, part.size).expect("checked");
                    // SAFETY: in bounds of a segment that stays while this thread is inside. The program does not change what it posts.
                    let source = unsafe { std::slice::from_raw_parts(from, part.size as usize) };
                    world.put_segment(to, number_of(part.remote.0), part.remote.1 as usize, source)?;
                }
                if let Notice::There(note) = notice {
                    self.notify(world, to, note, queue);
                }
            }
            Direction::Read => self.carry_reads(world, to, parts, queue, notice)?,
        }
        Ok(())
    }

    fn notify(&mut self, world: &World, to: usize, note: Note, queue: QueueId) {
        if to == world.rank() {
            if self.arrivals.board.get(note.segment).and_then(|notes| notes.set(note.id, note.value)).is_none() {
                tracing::warn!(
                    segment = note.segment,
                    "a notification for an own segment that is not there was dropped"
                );
            }
            return;
        }
        let word = u64::from(note.id) | u64::from(note.value) << 32;
        self.tell(world, to, kind::NOTE, note.segment, &word.to_ne_bytes());
        if world.engine().keeps_for(to)
            && let Ok(queue) = self.queue(queue)
        {
            queue.notified.insert(to);
        }
    }

    fn carry_reads<'a>(
        &mut self,
        world: &World,
        to: usize,
        parts: impl Fn() -> Parts<'a>,
        queue: QueueId,
        notice: Notice,
    ) -> Result<(), Error> {
        let notes = match &notice {
            Notice::Here(note) => self.arrivals.board.get(note.segment).map(|notes| (notes, note.id)),
            Notice::None | Notice::There(_) => None,
        };
        if world.engine().routes.is_mapped(to) {
            for part in parts() {
                let into = self.own_range(part.local.0, part.local.1, part.size).expect("checked");
                // SAFETY: in bounds of a segment that stays while this thread is inside. The program leaves alone what is read until a wait.
                let into = unsafe { std::slice::from_raw_parts_mut(into, part.size as usize) };
                world.get_segment(to, number_of(part.remote.0), part.remote.1 as usize, into)?;
            }
            if let Some((notes, id)) = notes {
                notes.set(id, 1);
            }
            return Ok(());
        }
        let done = Completion::new();
        let left = Arc::new(AtomicUsize::new(parts().count()));
        if left.load(Ordering::Relaxed) == 0
            && let Some((notes, id)) = &notes
        {
            notes.set(*id, 1);
        }
        for part in parts() {
            let mut operation = world.operation().effect(&done);
            if let Some((notes, id)) = notes.clone() {
                let left = Arc::clone(&left);
                operation = operation.effect(Event::call(move |outcome| {
                    // A part that failed leaves the notification as it is.
                    if outcome.is_ok() && left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        notes.set(id, 1);
                    }
                }));
            }
            let own = &self.segments.get(&part.local.0).expect("checked").memory;
            let (there, here, len) = (part.remote.1 as usize, part.local.1 as usize, part.size as usize);
            operation.get_segment(to, number_of(part.remote.0), there, own, here, len)?;
        }
        if let Ok(queue) = self.queue(queue) {
            queue.reads.push((to, done));
        }
        Ok(())
    }
}

/// The parts that have bytes.
type Parts<'a> = std::iter::Filter<std::slice::Iter<'a, Part>, fn(&&Part) -> bool>;
