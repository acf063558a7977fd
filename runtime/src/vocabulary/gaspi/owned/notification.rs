//! Notifications that have one owner.

use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use super::super::codes;
use super::super::types::{Code, NotificationId, Result, SegmentId, Timeout};
use super::{Segment, log};

/// A notification of this process: [`Segment::notification`]. [`Notification::signal`] names the one of the same number at the others.
///
/// A drop resets it once and gives it back. It cannot know whether another process will still set it: the next owner of the number would see
/// that.
///
/// # Examples
/// A segment is not given back while one of its notifications is in use:
/// ```compile_fail,E0505
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// # use bellwether::gaspi::{Code, Segment, Timeout::Block};
/// fn end(segment: Segment<'_>) -> Result<u32, Code> {
///     let mut arrived = segment.notification(0)?;
///     segment.close()?;
///     arrived.wait(Block)
/// }
/// ```
#[derive(Debug)]
pub struct Notification<'s>(Notifications<'s>);

/// Several notifications of this process, side by side: [`Segment::notifications`]. They are counted from 0.
///
/// A drop is that of each [`Notification`].
#[derive(Debug)]
pub struct Notifications<'s> {
    segment: &'s Segment<'s>,
    ids: Range<NotificationId>,
}

/// Names a notification at another process: [`Notification::signal`].
#[derive(Debug, Clone, Copy)]
pub struct Signal<'s> {
    pub(super) segment: SegmentId,
    pub(super) id: NotificationId,
    pub(super) phase: u64,
    of: PhantomData<&'s ()>,
}

impl<'s> Notification<'s> {
    pub(super) fn own(segment: &'s Segment<'s>, id: NotificationId) -> Result<Notification<'s>> {
        let end = id.checked_add(1).ok_or(Code(codes::INV_NOTIF_ID))?;
        Notifications::own(segment, id..end).map(Notification)
    }

    /// The notification of the same number at another process, for [`Queue::notify`](super::Queue::notify) and its like.
    pub fn signal(&self) -> Signal<'s> {
        self.0.at(self.0.ids.start)
    }

    /// Waits until it is set, resets it, and gives its value. It sees what was written before the notification, or with it.
    ///
    /// # Errors
    /// [`codes::TIMEOUT`]: call it again; [`codes::ERROR`] without a limit if all other processes are lost.
    pub fn wait(&mut self, timeout: Timeout) -> Result<u32> {
        self.0.wait_some(timeout).map(|(_, value)| value)
    }
}

impl<'s> Notifications<'s> {
    pub(super) fn own(segment: &'s Segment<'s>, ids: Range<NotificationId>) -> Result<Notifications<'s>> {
        if ids.is_empty() {
            return Err(Code(codes::INV_NUM));
        }
        // Whether they are there.
        match segment.process()?.notify_waitsome(segment.id(), ids.start, ids.end - ids.start, Timeout::Test) {
            Ok(_) | Err(Code(codes::TIMEOUT)) => {}
            Err(code) => return Err(code),
        }
        let mut owned = segment.owned();
        if owned.iter().any(|other| ids.start < other.end && other.start < ids.end) {
            return Err(Code(codes::INV_NOTIF_ID));
        }
        owned.push(ids.clone());
        drop(owned);
        Ok(Notifications { segment, ids })
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.ids.end - self.ids.start
    }

    /// Names one at another process; `None` if there are not so many.
    pub fn signal(&self, index: u32) -> Option<Signal<'s>> {
        (index < self.count()).then(|| self.at(self.ids.start + index))
    }

    fn at(&self, id: NotificationId) -> Signal<'s> {
        Signal { segment: self.segment.id(), id, phase: self.segment.phase(), of: PhantomData }
    }

    /// Waits until one is set, and resets it. Its index, and its value.
    ///
    /// # Errors
    /// As [`Notification::wait`].
    pub fn wait_some(&mut self, timeout: Timeout) -> Result<(u32, u32)> {
        let (process, segment) = (self.segment.process()?, self.segment.id());
        let end = match timeout {
            Timeout::After(limit) => Some(process.elapsed()?.saturating_add(limit)),
            Timeout::Test | Timeout::Block => None,
        };
        let mut left = timeout;
        loop {
            let found = process.notify_waitsome(segment, self.ids.start, self.count(), left)?;
            let id = found.ok_or(Code(codes::ERROR))?;
            match process.notify_reset(segment, id)? {
                0 => {}
                value => return Ok((id - self.ids.start, value)),
            }
            // Another thread has taken it, by number.
            if let Some(end) = end {
                left = Timeout::After(end.saturating_sub(process.elapsed()?));
            }
            if matches!(left, Timeout::Test | Timeout::After(Duration::ZERO)) {
                return Err(Code(codes::TIMEOUT));
            }
        }
    }
}

impl Notifications<'_> {
    /// Resets what is set, each once: a process that goes on notifying does not keep this one here.
    fn reset(&self) -> Result<()> {
        let (process, segment, Range { mut start, end }) =
            (self.segment.process()?, self.segment.id(), self.ids.clone());
        while start < end {
            match process.notify_waitsome(segment, start, end - start, Timeout::Test) {
                Ok(Some(id)) => {
                    process.notify_reset(segment, id)?;
                    start = id + 1;
                }
                Ok(None) | Err(Code(codes::TIMEOUT)) => break,
                Err(code) => return Err(code),
            }
        }
        Ok(())
    }
}

impl Drop for Notifications<'_> {
    fn drop(&mut self) {
        log(self.reset(), "giving notifications back");
        self.segment.owned().retain(|owned| *owned != self.ids);
    }
}
