//! A queue that has one owner.

use super::super::codes;
use super::super::one_sided::{Note, Part};
use super::super::process::Process;
use super::super::types::{Code, QueueId, Rank, Result, Timeout};
use super::{Local, Notification, Phase, Remote, Resumable, Signal, log};

/// A queue: requests are posted on it, and a wait is for these alone.
///
/// Several threads may use it at a time. A library that gets a queue cannot touch another: there is no number that it could change.
///
/// A drop waits until the requests are complete and gives the queue back; if a request has failed, it gives up those that did not complete. It
/// cannot tell whether all went well, and it has no time limit: [`Queue::close`] has both.
///
/// Posting fails with [`codes::INV_SEG`] for a place or a signal of another process or of another working phase. It has no time limit unless
/// [`Queue::limit_posts`] sets one.
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
    phase: Phase<'g>,
    id: QueueId,
    /// Of each post.
    limit: Timeout,
    closed: bool,
}

/// # Errors
/// As [`Phase::check`].
fn part(phase: Phase<'_>, here: &Local<'_>, there: &Remote<'_>) -> Result<Part> {
    phase.check(here.phase)?;
    phase.check(there.phase)?;
    Ok(Part { local: (here.segment, here.offset), remote: (there.segment, there.offset), size: here.size })
}

/// # Errors
/// As [`Phase::check`].
fn note(phase: Phase<'_>, signal: Signal<'_>, value: u32) -> Result<Note> {
    phase.check(signal.phase)?;
    Ok(Note { segment: signal.segment, id: signal.id, value })
}

/// The parts of a list, and the rank of all.
///
/// # Errors
/// [`codes::INV_NUM`] for none; [`codes::INV_RANK`] if they are of several ranks; as [`Phase::check`].
fn list(phase: Phase<'_>, parts: &[(Local<'_>, Remote<'_>)]) -> Result<(Vec<Part>, Rank)> {
    let rank = parts.first().ok_or(Code(codes::INV_NUM))?.1.rank;
    if parts.iter().any(|(_, there)| there.rank != rank) {
        return Err(Code(codes::INV_RANK));
    }
    let parts = parts.iter().map(|(here, there)| part(phase, here, there)).collect::<Result<_>>()?;
    Ok((parts, rank))
}

impl<'g> Queue<'g> {
    pub(super) fn own(phase: Phase<'g>, id: QueueId) -> Queue<'g> {
        Queue { phase, id, limit: Timeout::Block, closed: false }
    }

    /// # Errors
    /// As [`Phase::process`].
    #[inline(always)]
    fn process(&self) -> Result<&'g Process> {
        self.phase.process()
    }

    /// Sets the time limit of each later post; [`Timeout::Block`] at first. A post waits where it looks up a segment, the first time over a
    /// network, or where only messages reach the memory, as [`Process::write`] does, and for 100 ms at least. After [`codes::TIMEOUT`] it is no
    /// request of the queue; where it goes by messages a part of its bytes may be moved.
    ///
    /// # Examples
    /// ```
    /// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
    /// # use std::time::Duration;
    /// # use bellwether::gaspi::{Code, Local, Queue, Remote, Timeout, codes};
    /// fn is_posted(queue: &mut Queue<'_>, here: Local<'_>, there: Remote<'_>) -> Result<bool, Code> {
    ///     queue.limit_posts(Timeout::After(Duration::from_secs(1)));
    ///     match queue.write(here, there) {
    ///         // The process there may be stopped.
    ///         Err(Code(codes::TIMEOUT)) => Ok(false),
    ///         outcome => outcome.map(|()| true),
    ///     }
    /// }
    /// ```
    pub fn limit_posts(&mut self, limit: Timeout) {
        self.limit = limit;
    }

    /// Posts a write. The source may be changed after a [`Queue::wait`].
    ///
    /// # Errors
    /// As [`Process::write`].
    pub fn write(&self, here: Local<'_>, there: Remote<'_>) -> Result<()> {
        self.process()?.write(part(self.phase, &here, &there)?, there.rank, self.id, self.limit)
    }

    /// Posts a read. Its data is here after a [`Queue::wait`].
    ///
    /// # Errors
    /// As [`Process::read`].
    pub fn read(&self, here: Local<'_>, there: Remote<'_>) -> Result<()> {
        self.process()?.read(part(self.phase, &here, &there)?, there.rank, self.id, self.limit)
    }

    /// Posts a notification of `rank`, with a value that is not 0. A process that sees it sees the writes that were posted before on
    /// this queue to the same rank.
    ///
    /// # Errors
    /// As [`Process::notify`].
    pub fn notify(&self, rank: Rank, signal: Signal<'_>, value: u32) -> Result<()> {
        self.process()?.notify(note(self.phase, signal, value)?, rank, self.id, self.limit)
    }

    /// Posts a write, and a notification after it at the same rank. A process that sees the notification sees the written bytes.
    ///
    /// # Errors
    /// As [`Process::write_notify`].
    pub fn write_notify(&self, here: Local<'_>, there: Remote<'_>, signal: Signal<'_>, value: u32) -> Result<()> {
        let (part, note) = (part(self.phase, &here, &there)?, note(self.phase, signal, value)?);
        self.process()?.write_notify(part, there.rank, note, self.id, self.limit)
    }

    /// Posts a read. When its data is here, the notification gets the value 1.
    ///
    /// # Errors
    /// As [`Process::read_notify`].
    pub fn read_notify(&self, here: Local<'_>, there: Remote<'_>, arrived: &Notification<'_>) -> Result<()> {
        let part = part(self.phase, &here, &there)?;
        let Note { segment, id, .. } = note(self.phase, arrived.signal(), 1)?;
        self.process()?.read_notify(part, there.rank, (segment, id), self.id, self.limit)
    }

    /// Posts several writes to one rank, and a notification after them if one is given: all, or with an error none, except after the time-out
    /// of a [post by messages](Process::write).
    ///
    /// # Errors
    /// As [`Process::write_list_notify`]; [`codes::INV_RANK`] for parts of several ranks.
    pub fn write_list(&self, parts: &[(Local<'_>, Remote<'_>)], then: Option<(Signal<'_>, u32)>) -> Result<()> {
        let (process, (parts, rank)) = (self.process()?, list(self.phase, parts)?);
        match then {
            None => process.write_list(&parts, rank, self.id, self.limit),
            Some((signal, value)) => {
                process.write_list_notify(&parts, rank, note(self.phase, signal, value)?, self.id, self.limit)
            }
        }
    }

    /// Posts several reads of one rank: all, or with an error none, except where a [post by messages](Process::read) times out or fails. When
    /// all data is here, the notification gets the value 1, if one is given.
    ///
    /// # Errors
    /// As [`Process::read_list_notify`]; [`codes::INV_RANK`] for parts of several ranks.
    pub fn read_list(&self, parts: &[(Local<'_>, Remote<'_>)], arrived: Option<&Notification<'_>>) -> Result<()> {
        let (process, (parts, rank)) = (self.process()?, list(self.phase, parts)?);
        match arrived.map(Notification::signal) {
            None => process.read_list(&parts, rank, self.id, self.limit),
            Some(signal) => {
                let Note { segment, id, .. } = note(self.phase, signal, 1)?;
                process.read_list_notify(&parts, rank, (segment, id), self.id, self.limit)
            }
        }
    }

    /// Waits until all requests of this queue are complete; requests on other queues do not delay it.
    ///
    /// # Errors
    /// [`codes::TIMEOUT`]: call it again; [`codes::ERROR`] if a request has failed, as in [`Process::wait`]: see
    /// [`Gaspi::states`](super::Gaspi::states), then call [`Queue::purge`].
    pub fn wait(&self, timeout: Timeout) -> Result<()> {
        self.process()?.wait(self.id, timeout)
    }

    /// The requests that were posted since the last successful wait, and those of calls that wait for room to post.
    ///
    /// # Errors
    /// [`codes::NOINIT`] if the working phase is over.
    pub fn open_requests(&self) -> Result<u32> {
        self.process()?.queue_size(self.id)
    }

    /// Gives up the requests, after a failure. The queue takes requests again.
    ///
    /// # Errors
    /// As [`Process::queue_purge`].
    pub fn purge(&self, timeout: Timeout) -> Result<()> {
        self.process()?.queue_purge(self.id, timeout)
    }

    /// Waits until the requests are complete, and gives the queue back.
    ///
    /// # Errors
    /// Of the call: [`codes::ERROR`] if a request has failed. The queue is given back then too.
    pub fn close(self) -> Resumable<'g, ()> {
        let mut queue = self;
        Resumable::new(move |timeout| {
            // Captures the whole queue: otherwise its fields would be copied, and the queue would be dropped.
            let queue = &mut queue;
            queue.wait(timeout)?;
            queue.process()?.queue_delete(queue.id)?;
            queue.closed = true;
            Ok(())
        })
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        // In an ended phase it is gone.
        let Some(process) = self.process().ok().filter(|_| !self.closed) else { return };
        let Err(code) = process.queue_delete(self.id) else { return };
        // A request has failed, or another thread waits for the queue by number.
        log(Err(code), "completing the requests of a queue");
        let ended = process.queue_purge(self.id, Timeout::Block);
        log(ended.and_then(|()| process.queue_delete(self.id)), "giving a queue back");
    }
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::{Config, Gaspi};
    use super::*;
    use crate::Threads;

    #[test]
    fn a_queue_with_a_failed_request_is_given_back_by_a_drop_and_told_by_a_close() {
        Threads::new(1)
            .build(|builder| {
                let process = Process::start(builder).expect("starts");
                let gaspi = Gaspi::begin(&process, Config::default()).block().expect("begins");
                let fail = |queue: &Queue<'_>| {
                    let entry = process.shared().enter(queue.id).expect("a queue");
                    entry.as_ref().expect("it is there").failed.store(true, Ordering::Relaxed);
                };
                let number = process.queue_num();
                let queue = gaspi.queue(Timeout::Block).expect("a queue");
                fail(&queue);
                assert_eq!(queue.wait(Timeout::Block), Err(Code(codes::ERROR)));
                drop(queue);
                assert_eq!(process.queue_num(), number.map(|number| number - 1), "the drop");
                let queue = gaspi.queue(Timeout::Block).expect("a queue");
                fail(&queue);
                assert_eq!(queue.close().block(), Err(Code(codes::ERROR)));
                assert_eq!(process.queue_num(), number.map(|number| number - 2), "the close");
                gaspi.finish().block().expect("ends");
                process.finish().expect("finishes");
            })
            .expect("runs");
    }
}
