//! A queue that has one owner.

use super::super::codes;
use super::super::one_sided::{Note, Part};
use super::super::process::Process;
use super::super::types::{Code, QueueId, Rank, Result, Timeout};
use super::{Local, Notification, Remote, Resumable, Signal, log};

/// A queue: requests are posted on it, and a wait is for these alone.
///
/// Several threads may use it at a time. A library that gets a queue cannot touch another: there is no number that it could change.
///
/// A drop waits until the requests are complete and gives the queue back; if a request has failed, it gives up those that did not complete. It
/// cannot tell whether all went well, and it has no time limit: [`Queue::close`] has both.
///
/// # Examples
/// Two owners of one queue cannot be written:
/// ```compile_fail,E0382
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// # use bellwether::gaspi::{Code, Gaspi, Queue, Timeout::Block};
/// fn library(queue: Queue<'_>) -> Result<(), Code> {
///     queue.wait(Block)
/// }
///
/// fn program(gaspi: &Gaspi<'_>) -> Result<(), Code> {
///     let queue = gaspi.queue(Block)?;
///     library(queue)?;
///     queue.wait(Block)
/// }
/// ```
pub struct Queue<'g> {
    process: &'g Process,
    id: QueueId,
    closed: bool,
}

fn part(here: &Local<'_>, there: &Remote<'_>) -> Part {
    Part { local: (here.segment, here.offset), remote: (there.segment, there.offset), size: here.size }
}

fn note(signal: Signal<'_>, value: u32) -> Note {
    Note { segment: signal.segment, id: signal.id, value }
}

/// The parts of a list, and the rank of all.
///
/// # Errors
/// [`codes::INV_NUM`] for none; [`codes::INV_RANK`] if they are of several ranks.
fn list(parts: &[(Local<'_>, Remote<'_>)]) -> Result<(Vec<Part>, Rank)> {
    let rank = parts.first().ok_or(Code(codes::INV_NUM))?.1.rank;
    if parts.iter().any(|(_, there)| there.rank != rank) {
        return Err(Code(codes::INV_RANK));
    }
    Ok((parts.iter().map(|(here, there)| part(here, there)).collect(), rank))
}

impl<'g> Queue<'g> {
    pub(super) fn own(process: &'g Process, id: QueueId) -> Queue<'g> {
        Queue { process, id, closed: false }
    }

    /// Posts a write. What was written may be changed after a [`Queue::wait`].
    ///
    /// # Errors
    /// As [`Process::write`].
    pub fn write(&self, here: Local<'_>, there: Remote<'_>) -> Result<()> {
        self.process.write(part(&here, &there), there.rank, self.id, Timeout::Block)
    }

    /// Posts a read. Its data is here after a [`Queue::wait`].
    ///
    /// # Errors
    /// As [`Process::read`].
    pub fn read(&self, here: Local<'_>, there: Remote<'_>) -> Result<()> {
        self.process.read(part(&here, &there), there.rank, self.id, Timeout::Block)
    }

    /// Posts a notification of `rank`, with a value that is not 0. Who sees it sees the writes that were posted before on this queue to
    /// the same rank.
    ///
    /// # Errors
    /// As [`Process::notify`].
    pub fn notify(&self, rank: Rank, signal: Signal<'_>, value: u32) -> Result<()> {
        self.process.notify(note(signal, value), rank, self.id, Timeout::Block)
    }

    /// Posts a write, and a notification after it at the same rank. Who sees the notification sees what was written.
    ///
    /// # Errors
    /// As [`Process::write_notify`].
    pub fn write_notify(&self, here: Local<'_>, there: Remote<'_>, signal: Signal<'_>, value: u32) -> Result<()> {
        let note = note(signal, value);
        self.process.write_notify(part(&here, &there), there.rank, note, self.id, Timeout::Block)
    }

    /// Posts a read. When its data is here, the notification gets the value 1.
    ///
    /// # Errors
    /// As [`Process::read_notify`].
    pub fn read_notify(&self, here: Local<'_>, there: Remote<'_>, arrived: &Notification<'_>) -> Result<()> {
        let Signal { segment, id, .. } = arrived.signal();
        self.process.read_notify(part(&here, &there), there.rank, (segment, id), self.id, Timeout::Block)
    }

    /// Posts several writes to one rank, and a notification after them if one is given: all, or with an error none.
    ///
    /// # Errors
    /// As [`Process::write_list_notify`]; [`codes::INV_RANK`] for parts of several ranks.
    pub fn write_list(&self, parts: &[(Local<'_>, Remote<'_>)], then: Option<(Signal<'_>, u32)>) -> Result<()> {
        let (parts, rank) = list(parts)?;
        match then {
            None => self.process.write_list(&parts, rank, self.id, Timeout::Block),
            Some((signal, value)) => {
                self.process.write_list_notify(&parts, rank, note(signal, value), self.id, Timeout::Block)
            }
        }
    }

    /// Posts several reads of one rank: all, or with an error none. When all data is here, the notification gets the value 1, if one is
    /// given.
    ///
    /// # Errors
    /// As [`Process::read_list_notify`]; [`codes::INV_RANK`] for parts of several ranks.
    pub fn read_list(&self, parts: &[(Local<'_>, Remote<'_>)], arrived: Option<&Notification<'_>>) -> Result<()> {
        let (parts, rank) = list(parts)?;
        match arrived.map(Notification::signal) {
            None => self.process.read_list(&parts, rank, self.id, Timeout::Block),
            Some(Signal { segment, id, .. }) => {
                self.process.read_list_notify(&parts, rank, (segment, id), self.id, Timeout::Block)
            }
        }
    }

    /// Waits until all requests of this queue are complete; requests on other queues do not delay it.
    ///
    /// # Errors
    /// [`codes::TIMEOUT`]: call it again; [`codes::ERROR`] if a request has failed: see [`Gaspi::states`](super::Gaspi::states), then call
    /// [`Queue::purge`].
    pub fn wait(&self, timeout: Timeout) -> Result<()> {
        self.process.wait(self.id, timeout)
    }

    /// The requests that were posted since the last successful wait.
    ///
    /// # Errors
    /// [`codes::NOINIT`] if the working phase was ended by number.
    pub fn open_requests(&self) -> Result<u32> {
        self.process.queue_size(self.id)
    }

    /// Gives up the requests, after a failure. The queue takes requests again.
    ///
    /// # Errors
    /// As [`Process::queue_purge`].
    pub fn purge(&self, timeout: Timeout) -> Result<()> {
        self.process.queue_purge(self.id, timeout)
    }

    /// Waits until the requests are complete, and gives the queue back.
    ///
    /// # Errors
    /// Of the call: [`codes::ERROR`] if a request has failed. The queue is given back then too.
    pub fn close(self) -> Resumable<'g, ()> {
        let mut queue = self;
        Resumable::new(move |timeout| {
            // All of it: its fields alone would be copied, and the queue dropped.
            let queue = &mut queue;
            queue.wait(timeout)?;
            queue.process.queue_delete(queue.id)?;
            queue.closed = true;
            Ok(())
        })
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        if self.closed || self.process.queue_delete(self.id).is_ok() {
            return;
        }
        // A request has failed. Its error was logged.
        let ended = self.process.queue_purge(self.id, Timeout::Block);
        log(ended.and_then(|()| self.process.queue_delete(self.id)), "giving a queue back");
    }
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}
