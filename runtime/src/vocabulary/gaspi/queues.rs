//! Queues: a queue is a context of the engine, with a completion stream of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::codes;
use super::config::{Config, QUEUE_MAX};
use super::monitor::{Held, Partner};
use super::process::Process;
use super::shared::Shared;
use super::types::{Code, QueueId, Rank, Result, Timeout};
use crate::error::{Error, Loss, Result as RuntimeResult};
use crate::world::{Memo, OpenStream, World};

const WAITING: &str = "waiting for a queue";
const CONNECTING: &str = "connecting to a process";
const DISCONNECTING: &str = "disconnecting from a process";
/// In place of a segment's number, the key of a look-up that is for the path alone.
const PATH: u32 = u32::MAX;
/// How long a network may take until it is known which requests a rank took before it left in good order. Chosen: more than an interface
/// over TCP takes to close.
const LEAVING: Duration = Duration::from_secs(20);

/// Segments that a queue remembers. Chosen: a process mostly writes to few others in turn.
pub(super) const RECENT: usize = 8;

/// Where a queue remembers a segment.
#[inline(always)]
pub(super) fn recent(rank: usize, number: u32) -> usize {
    (rank ^ number as usize) % RECENT
}

/// A queue of this process.
pub(super) struct Queue {
    pub(super) stream: Arc<OpenStream>,
    pub(super) config: Config,
    /// Segments of recent data, and those of recent notifications: by [`recent`].
    pub(super) recent: [[Memo; RECENT]; 2],
    /// Requests since the last successful wait, and those of [`Queue::posting`].
    pub(super) open: u32,
    /// Requests of calls that wait for room for their messages, without the queue. No wait ends these.
    pub(super) posting: u32,
    /// Ranks that requests went to over a network since the last successful wait.
    pub(super) partners: BTreeSet<usize>,
    /// Partners that are lost, but took all requests before.
    settled: BTreeSet<usize>,
    /// A request has failed since the last purge.
    pub(super) failed: Arc<AtomicBool>,
    /// Look-ups of segments, by rank and number, whose calls ran into their time limits.
    pub(super) look_ups: BTreeMap<(usize, u32), Option<u64>>,
    /// Requests were posted to a rank that was lost already. The next wait fails.
    pub(super) refused: bool,
    /// When a partner was first known to have left with requests in flight: time since [`Queue::begun`], or virtual time.
    left_since: BTreeMap<usize, Duration>,
    begun: Instant,
    /// Threads that wait for it.
    waiters: u32,
}

/// The result of a check of a queue.
enum Progress {
    Complete,
    Pending,
    Failed,
}

impl Queue {
    /// # Errors
    /// [`codes::ERROR`] if the network has no further interface.
    pub(super) fn new(world: &World, config: Config) -> Result<Queue> {
        let opened = world.engine().open_context_apart();
        let stream = opened.map_err(|error| Code(codes::of_error(&error)))?;
        // Waits of the world find a job that hangs as before: no queue ends them.
        stream.note_used(false);
        let (recent, partners) = (Default::default(), BTreeSet::new());
        let (open, posting, failed, waiters) = (0, 0, Arc::default(), 0);
        let (settled, left_since, look_ups) = Default::default();
        let (refused, begun) = (false, Instant::now());
        Ok(Queue {
            stream,
            config,
            recent,
            open,
            posting,
            partners,
            settled,
            failed,
            look_ups,
            refused,
            left_since,
            begun,
            waiters,
        })
    }

    /// Makes progress; tells what has become of the requests.
    #[inline]
    fn advance(&mut self, shared: &Shared) -> Progress {
        if self.failed.load(Ordering::Relaxed) {
            return Progress::Failed;
        }
        match self.stream.is_complete(WAITING) {
            // On mapped memory a request is complete when it is posted.
            Ok(true) if self.partners.is_empty() && !self.failed.load(Ordering::Relaxed) => Progress::Complete,
            Ok(complete) => self.judge(complete, shared),
            Err(error) => self.note(&error, shared),
        }
    }

    /// Goes on with making its path to `rank`, without waiting. Whether it is made.
    fn connect(&mut self, rank: usize) -> RuntimeResult<bool> {
        let mut ticket = self.look_ups.remove(&(rank, PATH)).flatten();
        let made = self.stream.connect(CONNECTING, rank, &mut ticket);
        match made {
            Ok(false) => drop(self.look_ups.insert((rank, PATH), ticket)),
            // Those that waited for the same copy begin anew: their segments may have been made since.
            Ok(true) if ticket.is_some() => self.look_ups.retain(|(other, _), _| *other != rank),
            _ => {}
        }
        made
    }

    /// Gives up its path to `rank` if nothing is in flight there. Whether it did.
    fn disconnect(&mut self, rank: usize) -> RuntimeResult<bool> {
        let gone = self.stream.disconnect(DISCONNECTING, rank)?;
        if gone {
            // Their tickets belong to the path that is gone.
            self.look_ups.retain(|(other, _), _| *other != rank);
        }
        Ok(gone)
    }

    /// Whether nothing is in flight, of a queue that is gone: its errors are dropped. Makes progress once.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stream.is_complete("ending a queue"), Ok(true))
    }

    /// The state of the requests that went over a network.
    #[cold]
    fn judge(&mut self, complete: bool, shared: &Shared) -> Progress {
        // A request that has just ended may have failed.
        if self.failed.load(Ordering::Relaxed) {
            return Progress::Failed;
        }
        if let Some(rank) = self.stream.take_unmet() {
            return self.fail(rank, shared);
        }
        // A look-up whose call has ended may be in flight; no request is.
        if complete || self.partners.is_empty() {
            return Progress::Complete;
        }
        let unsettled = self.partners.difference(&self.settled);
        let lost: Vec<(usize, Loss)> = unsettled.filter_map(|rank| Some((*rank, self.stream.loss(*rank)?))).collect();
        if lost.is_empty() {
            return Progress::Pending;
        }
        for (rank, loss) in lost {
            // The rank may have acknowledged all requests before it ended, and the news of its end may have come first.
            match self.stream.is_over_with(WAITING, rank) {
                Ok(true) => drop(self.settled.insert(rank)),
                Ok(false) if loss == Loss::Left && !self.is_late(rank) => {}
                _ => return self.fail(rank, shared),
            }
        }
        match self.stream.is_complete(WAITING) {
            Ok(_) if self.failed.load(Ordering::Relaxed) => Progress::Failed,
            Ok(complete) => match self.stream.take_unmet() {
                Some(rank) => self.fail(rank, shared),
                None if complete => Progress::Complete,
                None => Progress::Pending,
            },
            Err(error) => self.note(&error, shared),
        }
    }

    /// Whether [`LEAVING`] has passed since this rank left. The roster knows that a rank has ended before the rank's interface has acknowledged
    /// the requests that it took.
    fn is_late(&mut self, rank: usize) -> bool {
        let now = self.stream.virtual_time().unwrap_or_else(|| self.begun.elapsed());
        now.saturating_sub(*self.left_since.entry(rank).or_insert(now)) > LEAVING
    }

    /// Whether requests to this rank may be in flight.
    pub(super) fn may_be_under_way(&self, rank: usize) -> bool {
        self.partners.contains(&rank) && !self.settled.contains(&rank)
    }

    /// A request to this rank has failed.
    #[cold]
    fn fail(&mut self, rank: usize, shared: &Shared) -> Progress {
        shared.corrupt(rank);
        self.failed.store(true, Ordering::Relaxed);
        Progress::Failed
    }

    /// A request has failed, or the network has told of a process that is lost.
    #[cold]
    fn note(&mut self, error: &Error, shared: &Shared) -> Progress {
        if let Error::PeerLost { rank, .. } = error {
            // The error may name another rank that was lost earlier.
            match self.stream.take_unmet() {
                Some(unmet) => shared.corrupt(unmet),
                None if self.may_be_under_way(*rank) => shared.corrupt(*rank),
                None => return Progress::Pending,
            }
        }
        codes::of_error(error);
        self.failed.store(true, Ordering::Relaxed);
        Progress::Failed
    }

    /// Ends a wait that found all requests complete.
    #[inline]
    fn complete(&mut self, shared: &Shared, id: QueueId) -> Result<()> {
        if self.refused {
            // Returned once: none of these requests is in flight.
            self.refused = false;
            return Err(Code(codes::ERROR));
        }
        self.clear(shared, id);
        Ok(())
    }

    /// Whether another thread waits for it, or posts on it and waits for room.
    fn is_in_use(&self) -> bool {
        self.waiters > 0 || self.posting > 0
    }

    fn clear(&mut self, shared: &Shared, id: QueueId) {
        self.open = self.posting;
        if !self.partners.is_empty() {
            self.partners.clear();
            self.settled.clear();
            self.left_since.clear();
            shared.reads.fetch_and(!(1 << id), Ordering::Relaxed);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.stream.note_used(true);
    }
}

/// A thread waits for a queue, until this is dropped.
struct Waits<'a>(&'a Shared, QueueId);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Ok(mut entry) = self.0.enter(self.1)
            && let Some(queue) = &mut *entry
        {
            queue.waiters = queue.waiters.saturating_sub(1);
        }
    }
}

impl Shared {
    /// Goes on with reads that set notifications here. A failure is told by the next wait for their queue.
    #[inline]
    pub(super) fn advance_reads(&self) {
        let reads = self.reads.load(Ordering::Relaxed);
        if reads != 0 {
            self.advance_those(reads);
        }
    }

    #[cold]
    fn advance_those(&self, reads: u32) {
        for id in (0..QUEUE_MAX as QueueId).filter(|id| reads & (1 << id) != 0) {
            if let Some(mut entry) = self.try_enter(id)
                && let Some(queue) = &mut *entry
            {
                queue.advance(self);
            }
        }
    }
}

impl Process {
    /// Makes a queue of this process, with the lowest free id; other processes do nothing. It takes requests at once. It is complete at once, so
    /// no time limit ends it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::ERROR`] if there are [`QUEUE_MAX`] queues, or if the network has no further interface: the others go on.
    pub fn queue_create(&self, _timeout: Timeout) -> Result<QueueId> {
        let Held { state, world } = &mut *self.monitor.enter()?;
        state.check_works()?;
        // Gives back the interfaces of deleted queues whose look-ups have ended.
        state.retire(None);
        let present = self.shared().present();
        let id = (0..QUEUE_MAX as QueueId).find(|id| present & (1 << id) == 0).ok_or(Code(codes::ERROR))?;
        self.shared().make_queue(id, || Queue::new(world, state.config))?;
        Ok(id)
    }

    /// Makes the path of each queue to a process, which need not make a call, so that no later request waits for the path. On mapped memory
    /// there is nothing to make. Resumable. Queues that are made later make their paths by their first requests.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::TIMEOUT`]; [`codes::ERROR`] if the process is lost.
    pub fn connect(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        self.on_each_queue(CONNECTING, rank, timeout, Queue::connect)
    }

    /// Gives up the paths of the queues to a process, once what is in flight on them is over: the endpoint of each queue, and what the queue
    /// knows of the segments there. The network's own connection stays until its queue ends. The next request makes the path again.
    /// Resumable.
    ///
    /// # Errors
    /// As [`Process::connect`].
    pub fn disconnect(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        self.on_each_queue(DISCONNECTING, rank, timeout, Queue::disconnect)
    }

    /// Does `act` on each queue, until it gives `true` for each.
    fn on_each_queue(
        &self,
        doing: &'static str,
        rank: Rank,
        timeout: Timeout,
        act: impl Fn(&mut Queue, usize) -> RuntimeResult<bool>,
    ) -> Result<()> {
        let to = {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            state.check_partner(world, rank)?
        };
        let shared = self.shared();
        let mut left = shared.present();
        self.monitor.wait(doing, timeout, &Partner::Ranks(&[to]), |_, state| {
            if let Err(code) = state.check_works() {
                return Some(Err(code));
            }
            for id in (0..QUEUE_MAX as QueueId).filter(|id| left & (1 << id) != 0).collect::<Vec<_>>() {
                let Some(mut entry) = shared.try_enter(id) else { continue };
                match entry.as_mut().map_or(Ok(true), |queue| act(queue, to)) {
                    Ok(true) => left &= !(1 << id),
                    Ok(false) => {}
                    Err(error) => return Some(Err(state.failed(&error, to))),
                }
            }
            (left == 0).then_some(Ok(()))
        })
    }

    /// Ends a queue. First waits for its open requests, as [`Process::wait`] without a limit does. The look-up of a segment whose post has
    /// timed out is no request, and is not waited for.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`]; [`codes::ERROR`] if a request has failed, or if another thread waits for the queue, or for
    /// room to post on it: it stays.
    pub fn queue_delete(&self, queue: QueueId) -> Result<()> {
        loop {
            self.wait(queue, Timeout::Block)?;
            let mut entered = self.monitor.enter()?;
            let mut entry = self.shared().enter(queue)?;
            let Some(open) = &mut *entry else { return Err(Code(codes::INV_QUEUE)) };
            if open.is_in_use() {
                return Err(Code(codes::ERROR));
            }
            if !open.partners.is_empty() || open.refused {
                // Another thread has posted since the wait.
                continue;
            }
            let ended = self.shared().take_queue(queue, &mut entry);
            drop(entry);
            // Its interface stays while a look-up is in flight, which may be to a process that is stopped.
            let ended = ended.and_then(|ended| match ended.is_over() {
                true => Some(ended),
                false => {
                    entered.state.retired.push((None, ended));
                    None
                }
            });
            drop(entered);
            drop(ended);
            return Ok(());
        }
    }

    /// How many queues there are.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn queue_num(&self) -> Result<u32> {
        self.in_work(|_| self.shared().present().count_ones())
    }

    /// How many queues there can be.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn queue_max(&self) -> Result<u32> {
        self.in_work(|_| QUEUE_MAX)
    }

    /// The requests that were posted on a queue since the last successful wait, and those of calls that wait for room to post.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`].
    pub fn queue_size(&self, queue: QueueId) -> Result<u32> {
        self.enter_queue(queue)?.as_ref().map(|queue| queue.open).ok_or(Code(codes::INV_QUEUE))
    }

    /// Enters a queue that is there, or finds out why it is not.
    fn enter_queue(&self, queue: QueueId) -> Result<super::shared::Entry<'_>> {
        match self.shared().enter(queue) {
            Ok(entry) if entry.is_some() => Ok(entry),
            Err(Code(code)) if code != codes::INV_QUEUE => Err(Code(code)),
            outcome => {
                drop(outcome);
                Err(self.no_queue())
            }
        }
    }

    /// Why a queue is not there.
    #[cold]
    pub(super) fn no_queue(&self) -> Code {
        match self.monitor.enter().and_then(|entered| entered.state.check_works()) {
            Ok(()) => Code(codes::INV_QUEUE),
            Err(code) => code,
        }
    }

    /// Waits until all requests that were posted on a queue are complete, also those that other threads post meanwhile. Then written data is
    /// in effect at its target and its source may be changed, and read data is here. Requests on other queues do not delay it. On mapped
    /// memory requests are complete when they are posted.
    ///
    /// If a process left in good order, a request to it is complete if the process took it. Over TCP that is known; on a network that does
    /// not tell, the request has failed. If a request in flight has failed, every wait returns [`codes::ERROR`] until
    /// [`Process::queue_purge`]. If requests were posted to a process that was lost already, one wait returns [`codes::ERROR`], when the other
    /// requests are complete; the next wait is for requests posted later, as programs for GPI-2 expect.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`]; [`codes::TIMEOUT`]; [`codes::ERROR`] if a request has failed: look at
    /// [`Process::state_vec_get`], then call [`Process::queue_purge`].
    pub fn wait(&self, queue: QueueId, timeout: Timeout) -> Result<()> {
        let mut entry = self.enter_queue(queue)?;
        let shared = self.shared();
        let Some(pending) = &mut *entry else { return Err(Code(codes::INV_QUEUE)) };
        match pending.advance(shared) {
            Progress::Complete => pending.complete(shared, queue),
            Progress::Failed => Err(Code(codes::ERROR)),
            Progress::Pending => {
                pending.waiters += 1;
                drop(entry);
                self.wait_long(queue, timeout)
            }
        }
    }

    #[cold]
    fn wait_long(&self, queue: QueueId, timeout: Timeout) -> Result<()> {
        let shared = self.shared();
        let waits = Waits(shared, queue);
        let outcome = self.monitor.wait(WAITING, timeout, &Partner::None, |_, _| {
            // Another thread may post meanwhile.
            let mut entry = shared.try_enter(queue)?;
            let Some(pending) = &mut *entry else { return Some(Err(Code(codes::INV_QUEUE))) };
            match pending.advance(shared) {
                Progress::Complete => Some(pending.complete(shared, queue)),
                Progress::Failed => Some(Err(Code(codes::ERROR))),
                Progress::Pending => None,
            }
        });
        drop(waits);
        outcome
    }

    /// Gives up the requests of a queue, after a failure. Requests to processes that live are complete when it returns; resumable.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_QUEUE`]; [`codes::TIMEOUT`], also while another thread waits for the queue, or for room to post on
    /// it; [`codes::ERROR`] as of [`Process::queue_create`].
    pub fn queue_purge(&self, queue: QueueId, timeout: Timeout) -> Result<()> {
        drop(self.enter_queue(queue)?);
        let shared = self.shared();
        // Once: what other threads post from then on is not given up.
        let mut is_purged = false;
        self.monitor.wait("purging a queue", timeout, &Partner::None, |world, state| {
            if is_purged {
                return state.retire(Some(queue)).then_some(Ok(()));
            }
            let mut entry = match shared.enter(queue) {
                Ok(entry) => entry,
                Err(code) => return Some(Err(code)),
            };
            let Some(old) = &mut *entry else { return Some(Err(Code(codes::INV_QUEUE))) };
            if old.is_in_use() {
                return None;
            }
            if !old.failed.load(Ordering::Relaxed) && old.partners.is_empty() {
                (old.open, old.refused) = (0, false);
            } else {
                old.clear(shared, queue);
                // Its interface may have lost connections: the new one has its own.
                match Queue::new(world, state.config) {
                    Ok(new) => state.retired.push((Some(queue), std::mem::replace(old, new))),
                    Err(code) => return Some(Err(code)),
                }
            }
            drop(entry);
            is_purged = true;
            // For what is in flight to processes that live.
            state.retire(Some(queue)).then_some(Ok(()))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::codes;
    use super::super::process::Process;
    use super::super::types::{Code, Timeout};
    use crate::Threads;

    #[test]
    fn g53_a_queue_that_another_thread_uses_is_neither_purged_nor_deleted() {
        let ran = Threads::new(1).build(|builder| {
            let process = Process::start(builder).expect("starts");
            process.proc_init(Timeout::Block).expect("begins");
            let has = |waiters, posting| {
                let mut entry = process.shared().enter(0).expect("a place");
                let queue = entry.as_mut().expect("a queue");
                (queue.waiters, queue.posting) = (waiters, posting);
            };
            for (waiters, posting) in [(1, 0), (0, 1)] {
                has(waiters, posting);
                assert_eq!(process.queue_purge(0, Timeout::Test), Err(Code(codes::TIMEOUT)));
                assert_eq!(process.queue_delete(0), Err(Code(codes::ERROR)));
            }
            has(0, 0);
            assert_eq!(process.queue_purge(0, Timeout::Test), Ok(()));
            assert_eq!(process.queue_delete(0), Ok(()));
            process.proc_term(Timeout::Block).expect("ends");
            process.finish().expect("finishes");
        });
        ran.expect("runs");
    }
}
