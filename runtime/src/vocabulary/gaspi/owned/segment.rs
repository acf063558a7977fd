//! A segment that has one owner.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::super::process::Process;
use super::super::types::{GroupId, NotificationId, Rank, Result, SegmentId};
use super::{Gaspi, Making, Notification, Notifications, Resumable, log};

/// Memory of this process that others reach, and that of the others that was made with it: see [`Gaspi::segment`].
///
/// Several threads may use it at a time.
///
/// A drop gives the memory of this process back. It waits until nothing of processes that live is under way to it. It is not collective: it
/// cannot know whether another process will still write here, which fails there. A barrier before it is the program's duty.
pub struct Segment<'g> {
    process: &'g Process,
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
    of: PhantomData<&'s ()>,
}

/// A place in a segment of another process: [`Segment::there`].
#[derive(Debug, Clone, Copy)]
pub struct Remote<'s> {
    pub(super) rank: Rank,
    pub(super) segment: SegmentId,
    pub(super) offset: u64,
    of: PhantomData<&'s ()>,
}

/// Makes a segment at each member of a group, with a number that is free at all.
pub(super) fn make<'g>(gaspi: &'g Gaspi<'_>, group: GroupId, size: u64) -> Resumable<'g, Segment<'g>> {
    let process: &'g Process = gaspi.process;
    let (mut making, mut agreed) = (None, None);
    Resumable::new(move |timeout| {
        if making.is_none() {
            making = Some(Making::begin(gaspi)?);
        }
        let id = match agreed {
            Some(id) => id,
            None => *agreed.insert(process.agree_on_segment(group, timeout)?),
        };
        process.segment_create(id, size, group, timeout)?;
        making = None;
        Ok(Segment { process, id, size, owned: Mutex::default(), closed: false })
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
        Local { segment: self.id, offset: bytes.start, size, of: PhantomData }
    }

    /// The place at an offset at another process. Whether it is in bounds is checked where it is used.
    pub fn there(&self, rank: Rank, offset: u64) -> Remote<'_> {
        Remote { rank, segment: self.id, offset, of: PhantomData }
    }

    /// Copies bytes out. What a process is writing meanwhile may be there in part.
    ///
    /// # Errors
    /// As [`Process::segment_read`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.process.segment_read(self.id, offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`Process::segment_write`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.process.segment_write(self.id, offset, bytes)
    }

    /// The notification of this number, which has no other owner here. What has come for it before is still there.
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
        Resumable::new(move |timeout| self.process.atomic_fetch_add(self.id, offset, rank, value, timeout))
    }

    /// Stores `new` in the word of 8 bytes at `offset` of `rank` if `expected` is there; gives what was there before.
    ///
    /// # Errors
    /// Of the call: as [`Process::atomic_compare_swap`].
    pub fn compare_swap(&self, rank: Rank, offset: u64, expected: u64, new: u64) -> Resumable<'_, u64> {
        Resumable::new(move |timeout| self.process.atomic_compare_swap(self.id, offset, rank, expected, new, timeout))
    }

    /// As a drop, with its error.
    ///
    /// # Errors
    /// As [`Process::segment_delete`].
    pub fn close(mut self) -> Result<()> {
        self.closed = true;
        self.process.segment_delete(self.id)
    }

    pub(super) fn process(&self) -> &Process {
        self.process
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
            log(self.process.segment_delete(self.id), "giving a segment back");
        }
    }
}

impl std::fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} bytes)", self.size)
    }
}
