//! Messages of a context.
//!
//! Messages to a rank whose memory is mapped go through a lane that the context claims there; to any other rank, through the context's
//! interface, within a window that the contexts of a rank have together (`window.rs`). No rank sends to a context: answers, and
//! the receipts of messages with events, come to the rank's own thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::super::network::Load;
use super::super::operation::{Get, HeapRange};
use super::operations::Driving;
use super::wait::Ends;
use super::window::Windows;
use super::{Driven, Stream};
use crate::error::{Error, Result};
use crate::sleep;
use crate::transport::Sent;
use crate::transport::lock::Mutex;
use crate::transport::shm::{ContextArenas, ContextLanes};

const DOING: &str = "sending a message";

/// Longest sleep in virtual time of a wait for room in a lane: a receiver that gives the room back wakes nobody.
const LANE_NAP: std::time::Duration = std::time::Duration::from_millis(1);
/// Polls with a yield after each, before a wait for room sleeps. Chosen: a receiver that makes progress gives room back sooner.
const YIELDS: u32 = 1000;
/// One such sleep.
const NAP: std::time::Duration = std::time::Duration::from_micros(100);

/// State of the messages that the contexts of a rank have sent.
#[derive(Debug, Default)]
pub(super) struct Sendings {
    counts: Mutex<Counts>,
    pub(super) arenas: Arc<ContextArenas>,
    pub(super) windows: Windows,
}

#[derive(Debug, Default)]
struct Counts {
    /// By contexts that are gone.
    gone: u64,
    /// By those that live, or lived when this was last looked through.
    open: Vec<Arc<Count>>,
}

/// Messages that one context has sent. In cache lines of its own: contexts of other threads count beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Counts {
    fn forget_gone(&mut self) {
        let Counts { gone, open } = self;
        open.retain(|count| {
            let lives = Arc::strong_count(count) > 1;
            if !lives {
                // Pairs with the Release with which the context's `Arc` was dropped: its last count is seen.
                fence(Ordering::Acquire);
                *gone += count.0.load(Ordering::Relaxed);
            }
            lives
        });
    }
}

impl Sendings {
    /// The count of a further context.
    fn open(&self) -> Arc<Count> {
        let count = Arc::<Count>::default();
        let mut counts = self.counts.lock();
        counts.forget_gone();
        counts.open.push(Arc::clone(&count));
        count
    }

    /// Messages that contexts have sent.
    pub(super) fn total(&self) -> u64 {
        let mut counts = self.counts.lock();
        counts.forget_gone();
        counts.gone + counts.open.iter().map(|count| count.0.load(Ordering::Acquire)).sum::<u64>()
    }
}

/// The sending end of a context. One thread at a time uses it.
#[derive(Debug)]
pub(crate) struct Outlet {
    lanes: ContextLanes,
    /// Messages sent. This context alone writes it.
    sent: Arc<Count>,
    /// The read that asks a rank without room how much it has handled.
    asked: Option<Asked>,
    /// In virtual time, a read that found no room: at which rank, and how often this rank had been notified when it was posted. It
    /// is not repeated before the next notice, since a wait that always has a read in flight would never be found hopeless.
    in_vain: Option<(usize, u64)>,
}

/// A read of the count of messages that a rank has handled.
#[derive(Debug)]
struct Asked {
    rank: usize,
    get: Get,
    word: [u8; 8],
    /// In virtual time, how often this rank had been notified when the read was posted.
    notices: Option<u64>,
}

impl Outlet {
    pub(super) fn new(lanes: ContextLanes, sendings: &Sendings) -> Outlet {
        Outlet { lanes, sent: sendings.open(), asked: None, in_vain: None }
    }

    /// Counts a message before it can arrive: the end of a world compares the messages sent with those delivered.
    #[inline(always)]
    fn count(&self) {
        // One writer. Release pairs with the Acquire load in `Sendings::total`.
        self.sent.0.store(self.sent.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Takes back the count of a message that was not sent.
    fn uncount(&self) {
        self.sent.0.store(self.sent.0.load(Ordering::Relaxed) - 1, Ordering::Release);
    }
}

impl Stream {
    /// Sends a message, ordered after earlier puts and messages of this context to `to`. [`Sent::NoRoom`] is backpressure.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for a message that can never fit; [`Error::PeerLost`] if the target is gone; as [`Stream::check_own`].
    #[inline]
    pub(crate) fn try_send(
        &self,
        outlet: &RefCell<Outlet>,
        to: usize,
        id: u8,
        header: u64,
        payload: &[u8],
    ) -> Result<Sent> {
        let sent = self.attempt(outlet, to, id, header, payload)?;
        if sent == Sent::NoRoom && self.network.is_some() {
            // Room comes back by the context's own progress.
            self.poll(DOING)?;
        }
        Ok(sent)
    }

    /// As [`Stream::try_send`], without progress: a wait would not see that this has made progress.
    #[inline]
    fn attempt(&self, outlet: &RefCell<Outlet>, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        self.check_own(DOING)?;
        self.check_alive(to, DOING)?;
        if self.network.is_some() && !self.routes.has_lane(to) {
            return self.attempt_remote(outlet, to, id, header, payload);
        }
        // Borrowed while nothing else of the program runs: a handler may use the same context.
        let mut outlet = outlet.borrow_mut();
        outlet.count();
        let sent = outlet.lanes.send(to, id, header, payload);
        if let Ok(Sent::Done) = sent {
            if self.sleeps(to) {
                self.wake(to);
            }
            self.announce(to);
        } else {
            outlet.uncount();
        }
        sent
    }

    #[cold]
    fn attempt_remote(&self, outlet: &RefCell<Outlet>, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        self.check_reachable(to, DOING)?;
        let mut driven = self.driven();
        let (asked, limit) = (payload.len() + 8, driven.networks.largest_message());
        driven.networks.check_fits(asked, limit)?;
        let windows = &self.home.shared.sendings.windows;
        let mut outlet = outlet.borrow_mut();
        let mut sent = Sent::NoRoom;
        if !driven.is_clear(self, to)? {
            return Ok(sent);
        }
        if windows.leave_room(to, asked) || self.read_handled(&mut outlet, &mut driven, to, asked)? {
            outlet.count();
            let posted = driven.networks.to(to).send(to, id, true, header, payload);
            if !matches!(posted, Ok(Sent::Done)) {
                outlet.uncount();
            }
            sent = posted.map_err(|error| self.failed(&mut driven, error, to, DOING))?;
        }
        if sent == Sent::Done {
            windows.sent(to, asked);
        }
        Ok(sent)
    }

    /// Reads how many messages of this rank's contexts `to` has handled. Returns whether that leaves room for `len` bytes.
    fn read_handled(&self, outlet: &mut Outlet, driven: &mut Driven, to: usize, len: usize) -> Result<bool> {
        let windows = &self.home.shared.sendings.windows;
        // One at a time: an answer of another rank is not wanted any more.
        let mut reading = outlet.asked.take().filter(|reading| reading.rank == to);
        let mut again = true;
        let notices = driven.networks.pace().map(|pace| pace.notices());
        loop {
            if reading.is_none() && notices.is_some_and(|notices| outlet.in_vain == Some((to, notices))) {
                return Ok(false);
            }
            let mut current = reading.take().unwrap_or_else(|| {
                let (offset, len) = (self.handled + self.rank * size_of::<u64>(), size_of::<u64>());
                let get = Get::new(driven.networks.largest_get(), None, [HeapRange { rank: to, offset, len }]);
                Asked { rank: to, get, word: [0; 8], notices }
            });
            if !current.get.advance(&mut Driving { stream: self, driven }, DOING, &mut current.word)? {
                outlet.asked = Some(current);
                return Ok(false);
            }
            windows.handled(to, Load::from_word(u64::from_ne_bytes(current.word)));
            outlet.in_vain = current.notices.map(|notices| (to, notices));
            // This answer may be old. The next read is posted at once, so that its answer ends the sleep of a wait.
            if windows.leave_room(to, len) || !std::mem::take(&mut again) {
                return Ok(windows.leave_room(to, len));
            }
        }
    }

    /// As [`Stream::try_send`], but waits for room.
    ///
    /// # Errors
    /// As [`Stream::try_send`]; if it has to wait [`Error::InsideHandler`], and [`Error::PeerLost`] if any rank died.
    #[inline]
    pub(crate) fn send(&self, outlet: &RefCell<Outlet>, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        match self.attempt(outlet, to, id, header, payload)? {
            Sent::Done => Ok(()),
            Sent::NoRoom => self.send_when_room(outlet, to, id, header, payload),
        }
    }

    #[cold]
    fn send_when_room(&self, outlet: &RefCell<Outlet>, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        let mut outcome = Ok(Sent::NoRoom);
        self.wait_room(to, || {
            outcome = self.attempt(outlet, to, id, header, payload);
            !matches!(outcome, Ok(Sent::NoRoom))
        })?;
        outcome.map(drop)
    }

    /// Waits until a message finds room. The rank's own thread delivers messages meanwhile: the target may wait for room here.
    fn wait_room(&self, to: usize, mut sent: impl FnMut() -> bool) -> Result<()> {
        let home = self.home.engine();
        if let Some(engine) = &home {
            engine.check_outside_handler(DOING)?;
        }
        let mut idle = 0;
        if self.network.is_some() {
            while !sent() {
                let mut done = self.driven().turn(self);
                // In a statement of its own: the lock is free then.
                done += self.happen_due();
                let came = self.turn_others(home.as_deref());
                idle = if done + came == 0 { idle + 1 } else { 0 };
                if idle > 0 {
                    let nap = self.routes.has_lane(to).then_some(LANE_NAP);
                    self.pass_time(DOING, idle, home.as_deref(), Ends::Any, nap)?;
                }
            }
            return Ok(());
        }
        while !sent() {
            if let Some((rank, cause)) = self.cuts.first_lost(&self.job) {
                return Err(Error::PeerLost { rank, cause, doing: DOING.into() });
            }
            if home.as_ref().is_some_and(|engine| engine.turn() != 0) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < self.patience.spins {
                std::hint::spin_loop();
            } else if idle < self.patience.spins.saturating_add(YIELDS) {
                rustix::thread::sched_yield();
            } else {
                if !self.job.is_intact() {
                    return Err(Error::MemoryLost { doing: DOING.into() });
                }
                sleep::nap(NAP);
            }
        }
        Ok(())
    }
}
