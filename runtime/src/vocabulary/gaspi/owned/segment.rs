//! A segment that has one owner.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::super::codes;
use super::super::process::Process;
use super::super::types::{Code, GroupId, NotificationId, Rank, Result, SegmentId, Timeout};
use super::{Gaspi, Notification, Notifications, Phase, Resumable, log};

/// Memory of this process that others reach, and that of the others that was made with it: see [`Gaspi::segment`].
///
/// Several threads may use it at a time.
///
/// A drop gives the memory of this process back. It waits until nothing of processes that live is in flight to it. It is not collective: it
/// cannot know whether another process will still write here, which fails there. A barrier before it is the program's duty.
pub struct Segment<'g> {
    phase: Phase<'g>,
    id: SegmentId,
    size: u64,
    /// Notifications that have an owner.
    owned: Mutex<Vec<Range<NotificationId>>>,
    closed: bool,
}

/// Bytes of a segment of this process: [`Segment::here`].
#[derive(Debug, Clone, Copy)]
pub struct Local<'s> {
    pub(super) segment: SegmentId,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) phase: u64,
    of: PhantomData<&'s ()>,
}

/// A place in a segment of another process: [`Segment::there`].
#[derive(Debug, Clone, Copy)]
pub struct Remote<'s> {
    pub(super) rank: Rank,
    pub(super) segment: SegmentId,
    pub(super) offset: u64,
    pub(super) phase: u64,
    of: PhantomData<&'s ()>,
}

/// A process's part of a segment that is being made.
#[derive(Clone, Copy)]
pub(super) struct Half {
    group: GroupId,
    size: u64,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// The other members do not know about the segment.
    New,
    /// The members agree on a number.
    Number,
    /// This process has its part of this number, or a code in place of [`codes::SUCCESS`]; the members agree on the outcome.
    Part(SegmentId, i32),
}

/// Whether a process makes a segment.
#[derive(Default)]
pub(super) enum Making {
    #[default]
    No,
    /// A call does.
    Yes,
    /// The call was dropped: the next one goes on with it.
    Dropped(Half),
}

impl Making {
    /// A group is given back: nobody can complete a call of it any more.
    pub(super) fn leave(&mut self, group: GroupId, process: &Process) {
        let Making::Dropped(half) = self else { return };
        if half.group == group {
            half.give_back(process);
            *self = Making::No;
        }
    }
}

impl Half {
    fn give_back(self, process: &Process) {
        if let Stage::Part(id, codes::SUCCESS) = self.stage {
            log(process.segment_delete(id), "giving a part of a segment back");
        }
    }
}

/// Makes a segment, until it is dropped.
struct Maker<'g> {
    making: &'g Mutex<Making>,
    half: Half,
}

impl<'g> Maker<'g> {
    /// # Errors
    /// [`codes::ACTIVE_COLL`] while this process makes another one.
    fn begin(making: &'g Mutex<Making>, group: GroupId, size: u64) -> Result<Maker<'g>> {
        let mut now = making.lock().unwrap_or_else(PoisonError::into_inner);
        let half = match &*now {
            Making::No => Half { group, size, stage: Stage::New },
            Making::Dropped(half) if (half.group, half.size) == (group, size) => *half,
            Making::Yes | Making::Dropped(_) => return Err(Code(codes::ACTIVE_COLL)),
        };
        *now = Making::Yes;
        drop(now);
        Ok(Maker { making, half })
    }

    /// Goes on; the number of the segment when all members have made their parts.
    fn advance(&mut self, process: &Process, timeout: Timeout) -> Result<SegmentId> {
        let Half { group, size, .. } = self.half;
        loop {
            let Stage::Part(id, own) = self.half.stage else {
                self.half.stage = match process.agree_on_segment(group, timeout) {
                    // A member that has no memory for the segment tells the others.
                    Ok(id) => {
                        Stage::Part(id, process.segment_alloc(id, size).err().map_or(codes::SUCCESS, |code| code.0))
                    }
                    Err(code) => {
                        match code.0 {
                            codes::TIMEOUT => self.half.stage = Stage::Number,
                            // Another thread is in a call of this group, by number.
                            codes::ACTIVE_COLL => {}
                            _ => self.half.stage = Stage::New,
                        }
                        return Err(code);
                    }
                };
                continue;
            };
            let outcome = process.agree_on_outcome(group, own, timeout);
            if let Err(code @ Code(codes::TIMEOUT | codes::ACTIVE_COLL)) = outcome {
                return Err(code);
            }
            if outcome != Ok(codes::SUCCESS) {
                self.half.give_back(process);
            }
            self.half.stage = Stage::New;
            match outcome? {
                codes::SUCCESS => return process.register_members(group, id).map(|()| id),
                // The number was taken at a member after it had told which are free.
                codes::INV_SEG => {}
                code => return Err(Code(code)),
            }
        }
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        let mut now = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        *now = match self.half.stage {
            Stage::New => Making::No,
            Stage::Number | Stage::Part(..) => Making::Dropped(self.half),
        };
    }
}

/// Makes a segment at each member of a group, with a number that is free at all; or at none.
pub(super) fn make<'g>(gaspi: &'g Gaspi<'_>, group: GroupId, size: u64) -> Resumable<'g, Segment<'g>> {
    let phase: Phase<'g> = gaspi.phase;
    let mut maker = None;
    Resumable::new(move |timeout| {
        let process = phase.process()?;
        let maker = match &mut maker {
            Some(maker) => maker,
            maker => maker.insert(Maker::begin(&gaspi.making, group, size)?),
        };
        let id = maker.advance(process, timeout)?;
        Ok(Segment { phase, id, size, owned: Mutex::default(), closed: false })
    })
}

impl Segment<'_> {
    /// Its bytes, the same at each process.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of this process. Whether they are in bounds is checked where they are used.
    pub fn here(&self, bytes: Range<u64>) -> Local<'_> {
        // A range that ends before it begins is outside of every segment.
        let size = bytes.end.checked_sub(bytes.start).unwrap_or(u64::MAX);
        Local { segment: self.id, offset: bytes.start, size, phase: self.phase.number, of: PhantomData }
    }

    /// The place at an offset at another process. Whether it is in bounds is checked where it is used.
    pub fn there(&self, rank: Rank, offset: u64) -> Remote<'_> {
        Remote { rank, segment: self.id, offset, phase: self.phase.number, of: PhantomData }
    }

    /// Copies bytes out. Of bytes that a process writes meanwhile, a part may be copied.
    ///
    /// # Errors
    /// As [`Process::segment_read`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.phase.process()?.segment_read(self.id, offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`Process::segment_write`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.phase.process()?.segment_write(self.id, offset, bytes)
    }

    /// The notification of this number, which has no other owner here. A value that has come before is still there.
    ///
    /// # Errors
    /// [`codes::INV_NOTIF_ID`](super::codes::INV_NOTIF_ID) if there is no such notification, or if it has an owner.
    pub fn notification(&self, id: NotificationId) -> Result<Notification<'_>> {
        Notification::own(self, id)
    }

    /// As [`Segment::notification`], of several that stand side by side.
    ///
    /// # Errors
    /// As [`Segment::notification`]; [`codes::INV_NUM`](super::codes::INV_NUM) for none.
    pub fn notifications(&self, ids: Range<NotificationId>) -> Result<Notifications<'_>> {
        Notifications::own(self, ids)
    }

    /// Adds `value` to the word of 8 bytes at `offset` of `rank`, and gives what it was before.
    ///
    /// # Errors
    /// Of the call: as [`Process::atomic_fetch_add`].
    pub fn fetch_add(&self, rank: Rank, offset: u64, value: u64) -> Resumable<'_, u64> {
        Resumable::new(move |timeout| self.phase.process()?.atomic_fetch_add(self.id, offset, rank, value, timeout))
    }

    /// Stores `new` in the word of 8 bytes at `offset` of `rank` if `expected` is there; gives what was there before.
    ///
    /// # Errors
    /// Of the call: as [`Process::atomic_compare_swap`].
    pub fn compare_swap(&self, rank: Rank, offset: u64, expected: u64, new: u64) -> Resumable<'_, u64> {
        Resumable::new(move |timeout| {
            self.phase.process()?.atomic_compare_swap(self.id, offset, rank, expected, new, timeout)
        })
    }

    /// As a drop, with its error.
    ///
    /// # Errors
    /// As [`Process::segment_delete`].
    pub fn close(mut self) -> Result<()> {
        self.closed = true;
        self.phase.process()?.segment_delete(self.id)
    }

    /// # Errors
    /// As [`Phase::process`].
    pub(super) fn process(&self) -> Result<&Process> {
        self.phase.process()
    }

    pub(super) fn phase(&self) -> u64 {
        self.phase.number
    }

    pub(super) fn id(&self) -> SegmentId {
        self.id
    }

    /// The notifications that have an owner.
    pub(super) fn owned(&self) -> std::sync::MutexGuard<'_, Vec<Range<NotificationId>>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Segment<'_> {
    fn drop(&mut self) {
        if !self.closed {
            let ended = self.phase.process().and_then(|process| process.segment_delete(self.id));
            log(ended, "giving a segment back");
        }
    }
}

impl std::fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} bytes)", self.size)
    }
}
