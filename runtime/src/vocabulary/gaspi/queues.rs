//! Queues: what is posted on one, and waits for it.

use std::collections::BTreeSet;

use super::codes;
use super::config::QUEUE_MAX;
use super::place::{Held, Partner};
use super::process::Process;
use super::types::{Code, QueueId, Result, Timeout};
use crate::world::Completion;

/// A queue of this process.
#[derive(Default)]
pub(super) struct Queue {
    /// Requests since the last successful wait.
    pub(super) open: u32,
    /// Reads whose data may be under way, with their targets.
    pub(super) reads: Vec<(usize, Completion)>,
    /// Ranks with notifications that may wait for room.
    pub(super) notified: BTreeSet<usize>,
    /// Ranks that it was used for since the last successful wait.
    pub(super) partners: BTreeSet<usize>,
    /// A read has failed since the last purge.
    failed: bool,
    /// Threads that wait for it.
    waiters: u32,
}

/// A thread waits for a queue, until this is dropped.
struct Waits<'a>(&'a Process, QueueId);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Ok(mut entered) = self.0.place.enter()
            && let Some(Some(queue)) = entered.state.queues.get_mut(self.1 as usize)
        {
            queue.waiters -= 1;
        }
    }
}

impl super::state::State {
    /// # Errors
    /// [`codes::INV_QUEUE`].
    pub(super) fn queue(&mut self, queue: QueueId) -> Result<&mut Queue> {
        self.queues.get_mut(queue as usize).and_then(Option::as_mut).ok_or(Code(codes::INV_QUEUE))
    }
}

impl Process {
    /// Makes a queue of this process, with the lowest free id; other processes do nothing. It takes requests at once. It is complete at once, so
    /// no time limit ends it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::ERROR`] if there are [`QUEUE_MAX`] queues: the others go on.
    pub fn queue_create(&self, _timeout: Timeout) -> Result<QueueId> {
        let Held { state, .. } = &mut *self.place.enter()?;
        state.check_works()?;
        let free = state.queues.iter().position(Option::is_none).ok_or(Code(codes::ERROR))?;
        state.queues[free] = Some(Queue::default());
        Ok(free as QueueId)
    }

    /// Ends a queue. First waits for its open requests, as [`Process::wait`] without a limit does.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`]; [`codes::ERROR`] if a request has failed, or if another thread waits for the queue: it stays.
    pub fn queue_delete(&self, queue: QueueId) -> Result<()> {
        self.wait(queue, Timeout::Block)?;
        let Held { state, .. } = &mut *self.place.enter()?;
        if state.queue(queue)?.waiters > 0 {
            return Err(Code(codes::ERROR));
        }
        state.queues[queue as usize] = None;
        Ok(())
    }

    /// How many queues there are.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn queue_num(&self) -> Result<u32> {
        self.in_work(|state| state.queues.iter().flatten().count() as u32)
    }

    /// How many queues there can be.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn queue_max(&self) -> Result<u32> {
        self.in_work(|_| QUEUE_MAX)
    }

    /// The requests that were posted on a queue since the last successful wait.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`].
    pub fn queue_size(&self, queue: QueueId) -> Result<u32> {
        let Held { state, .. } = &mut *self.place.enter()?;
        state.check_works()?;
        state.queue(queue).map(|queue| queue.open)
    }

    /// Waits until all requests that were posted on a queue are complete at this process: what was written may be changed, and what was read is
    /// there. Requests on other queues do not delay it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`]; [`codes::TIMEOUT`]; [`codes::ERROR`] if a request has failed: look at
    /// [`Process::state_vec_get`], then call [`Process::queue_purge`].
    pub fn wait(&self, queue: QueueId, timeout: Timeout) -> Result<()> {
        let partners: Vec<usize> = {
            let Held { state, .. } = &mut *self.place.enter()?;
            state.check_works()?;
            let queue = state.queue(queue)?;
            if !queue.failed && queue.reads.is_empty() && queue.notified.is_empty() {
                queue.open = 0;
                queue.partners.clear();
                return Ok(());
            }
            queue.waiters += 1;
            queue.partners.iter().copied().collect()
        };
        let waits = Waits(self, queue);
        let outcome = self.place.wait("waiting for a queue", timeout, &Partner::Ranks(&partners), |world, state| {
            let pending = match state.queue(queue) {
                Ok(pending) => pending,
                Err(code) => return Some(Err(code)),
            };
            let mut failed = None;
            pending.reads.retain(|(rank, read)| match read.outcome() {
                None => true,
                Some(Ok(())) => false,
                Some(Err(error)) => {
                    failed.get_or_insert((*rank, error));
                    false
                }
            });
            pending.failed |= failed.is_some();
            let has_failed = pending.failed;
            pending.notified.retain(|rank| world.engine().keeps_for(*rank));
            if let Some((rank, error)) = failed {
                state.failed(&error, rank);
            }
            if has_failed {
                return Some(Err(Code(codes::ERROR)));
            }
            let pending = state.queue(queue).ok()?;
            (pending.reads.is_empty() && pending.notified.is_empty()).then(|| {
                pending.open = 0;
                pending.partners.clear();
                Ok(())
            })
        });
        drop(waits);
        outcome
    }

    /// Gives up the requests of a queue, after a failure. Reads of processes that live may still arrive.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`]; [`codes::TIMEOUT`] while another thread waits for the queue.
    pub fn queue_purge(&self, queue: QueueId, timeout: Timeout) -> Result<()> {
        {
            let Held { state, .. } = &mut *self.place.enter()?;
            state.check_works()?;
            state.queue(queue)?;
        }
        self.place.wait("purging a queue", timeout, &Partner::None, |_, state| match state.queue(queue) {
            Err(code) => Some(Err(code)),
            Ok(queue) if queue.waiters > 0 => None,
            Ok(queue) => {
                *queue = Queue::default();
                Some(Ok(()))
            }
        })
    }
}
