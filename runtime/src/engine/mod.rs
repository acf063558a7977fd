//! Progress and waiting: what turns the crank while a rank waits for something.

mod liveness;
mod wait;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use self::wait::Patience;

use crate::bootstrap::job::JobMemory;
use crate::error::{Error, Result};
use crate::memory::layout::{SlotLayout, Status};
use crate::memory::node::NodeMemory;
use crate::settings::Settings;
use crate::transport::shm::{Interface, SHORT_MAX, Sent};

/// Everything a rank drives: its memory, its messages, its waits. One thread owns it.
pub struct Engine {
    /// This rank.
    pub rank: usize,
    /// Ranks in the world.
    pub size: usize,
    /// The roster.
    pub job: Arc<JobMemory>,
    /// The mapped slots.
    pub node: Arc<NodeMemory>,
    /// Where things lie in a slot.
    pub layout: SlotLayout,
    /// What was set.
    pub settings: Settings,
    /// Messages in and out.
    pub interface: Interface,
    patience: Patience,
    /// Messages that found no room, by target, in the order they were sent. No queue is empty.
    pending: RefCell<BTreeMap<usize, VecDeque<Pending>>>,
    has_pending: Cell<bool>,
    /// Bytes of them.
    pending_bytes: Cell<usize>,
    waits: Cell<u64>,
    /// The wait under way may be ended by something outside the job.
    outside: Cell<bool>,
    /// Messages sent and delivered, to know when all have arrived.
    traffic: Cell<[u64; 2]>,
    watch: OnceCell<liveness::Watch>,
    /// Errors of messages, to be told one a poll.
    faults: RefCell<VecDeque<Error>>,
    has_fault: Cell<bool>,
}

/// Most errors that wait to be told.
const FAULTS_MAX: usize = 64;

struct Pending {
    id: u8,
    bytes: Box<[u8]>,
}

impl Engine {
    /// The engine of `rank`. Its slot is committed as `layout` says; nobody has arrived yet.
    pub fn new(
        rank: usize,
        job: Arc<JobMemory>,
        node: Arc<NodeMemory>,
        layout: SlotLayout,
        settings: Settings,
    ) -> Engine {
        let size = job.ranks();
        let patience = Patience::new(size, settings.spin, job.supervised());
        if !wait::register_membarrier() {
            job.require_full_fence();
        }
        let interface = Interface::new(rank, Arc::clone(&job), Arc::clone(&node), layout, settings.message_memory);
        Engine {
            rank,
            size,
            job,
            node,
            layout,
            settings,
            interface,
            patience,
            pending: RefCell::default(),
            has_pending: Cell::new(false),
            pending_bytes: Cell::new(0),
            waits: Cell::new(0),
            outside: Cell::new(false),
            traffic: Cell::new([0; 2]),
            watch: OnceCell::new(),
            faults: RefCell::default(),
            has_fault: Cell::new(false),
        }
    }

    /// How this rank waits.
    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// The first line of a rank's slot.
    pub fn status(&self, rank: usize) -> &Status {
        // SAFETY: every slot begins with its Status, all atomics, committed before the rank arrives.
        unsafe { &*self.node.slot(rank).cast::<Status>() }
    }

    /// Delivers what has come, sends what had to wait, and tells how much it did. Never blocks.
    ///
    /// # Errors
    /// What was wrong with a message that came in, once.
    #[inline]
    pub fn poll(&self) -> Result<usize> {
        let done = self.turn();
        if self.has_fault.get() {
            return self.take_fault().map(|()| done);
        }
        Ok(done)
    }

    /// As [`Engine::poll`], but an error waits for the next poll: a collective must not end on one rank alone because
    /// of a message that has nothing to do with it.
    #[inline]
    pub fn turn(&self) -> usize {
        let mut done = self.interface.progress();
        if done != 0 {
            self.count(0, done);
        }
        if self.has_pending.get() {
            done += self.flush_pending();
        }
        if done != 0
            && let Some(error) = self.interface.take_error()
        {
            self.set_fault(error);
        }
        done
    }

    /// As [`Engine::poll`], for calls that programs make in loops of their own.
    ///
    /// # Errors
    /// As [`Engine::poll`]; [`Error::PeerLost`] if a rank died and nothing came.
    #[inline]
    pub fn poll_alive(&self, doing: &'static str) -> Result<usize> {
        let done = self.poll()?;
        if done == 0
            && let Some((rank, cause)) = self.job.first_lost()
        {
            return Err(Error::PeerLost { rank, cause, doing });
        }
        Ok(done)
    }

    /// Tells the oldest error that was kept.
    ///
    /// # Errors
    /// That one.
    pub fn take_fault(&self) -> Result<()> {
        if !self.has_fault.get() {
            return Ok(());
        }
        let mut faults = self.faults.borrow_mut();
        let first = faults.pop_front();
        self.has_fault.set(!faults.is_empty());
        first.map_or(Ok(()), Err)
    }

    /// Remembers an error that a handler met, for the next [`Engine::poll`]. Of a flood of them the first are kept.
    #[cold]
    pub fn set_fault(&self, error: Error) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push_back(error);
        }
        self.has_fault.set(true);
    }

    /// Sends `header` and `payload`, in a line if they fit, else in a block. [`Sent::NoRoom`] is back-pressure.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for a message that can never fit, [`Error::PeerLost`] if the target is gone.
    #[inline]
    pub fn send(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        if self.job.any_lost() || self.job.any_left() {
            self.check_alive(to, "sending a message")?;
        }
        if self.has_pending.get() && self.pending.borrow().contains_key(&to) {
            return Ok(Sent::NoRoom);
        }
        self.transmit(to, id, header, payload)
    }

    /// Messages this rank has sent, and delivered.
    pub fn traffic(&self) -> [u64; 2] {
        self.traffic.get()
    }

    #[inline(always)]
    fn count(&self, sent: usize, delivered: usize) {
        let [s, d] = self.traffic.get();
        self.traffic.set([s + sent as u64, d + delivered as u64]);
    }

    #[inline(always)]
    fn transmit(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        let sent = self.hand_over(to, id, header, payload)?;
        self.count(usize::from(sent == Sent::Done), 0);
        Ok(sent)
    }

    #[inline(always)]
    fn hand_over(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        if payload.len() <= SHORT_MAX - 8 {
            return Ok(self.interface.send_short(to, id, header, payload));
        }
        self.interface.send_block(to, id, payload.len() + 8, |body| {
            // SAFETY: the block holds header and payload.
            unsafe {
                body.cast::<u64>().write(header);
                crate::memory::copy::copy(body.add(8), payload.as_ptr(), payload.len());
            }
        })
    }

    /// Sends without refusing: a message that finds no room is kept, in order, and goes out from a later
    /// [`Engine::poll`]. What is kept may be as much as larger messages in flight; beyond that this waits for room.
    /// A handler cannot wait, and what it does not send is lost to who asked for it: it keeps what it must.
    ///
    /// # Errors
    /// As [`Engine::send`].
    pub fn send_or_keep(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        if self.send(to, id, header, payload)? == Sent::Done {
            return Ok(());
        }
        let (limit, asked) = (self.settings.message_memory, payload.len() + 8);
        let room = || self.pending_bytes.get() == 0 || self.pending_bytes.get() + asked <= limit;
        if !room() && !self.interface.delivering() {
            self.wait_together("waiting for room to send a message", room)?;
        }
        let bytes = [&header.to_ne_bytes(), payload].concat().into();
        self.pending.borrow_mut().entry(to).or_default().push_back(Pending { id, bytes });
        self.pending_bytes.set(self.pending_bytes.get() + asked);
        self.has_pending.set(true);
        Ok(())
    }

    /// Sends what was kept, as far as there is room; costs a look for each target, however much is kept for it.
    #[cold]
    fn flush_pending(&self) -> usize {
        let mut done = 0;
        let mut pending = self.pending.borrow_mut();
        pending.retain(|to, queue| {
            if self.job.loss(*to).is_some() {
                let dropped: usize = queue.iter().map(|message| message.bytes.len()).sum();
                self.pending_bytes.set(self.pending_bytes.get() - dropped);
                return false;
            }
            while let Some(message) = queue.front() {
                let (header, payload) = message.bytes.split_at(8);
                let header = u64::from_ne_bytes(header.try_into().expect("split at 8"));
                match self.transmit(*to, message.id, header, payload) {
                    Ok(Sent::Done) => {}
                    Ok(Sent::NoRoom) => return true,
                    Err(error) => self.set_fault(error),
                }
                self.pending_bytes.set(self.pending_bytes.get() - message.bytes.len());
                queue.pop_front();
                done += 1;
            }
            false
        });
        self.has_pending.set(!pending.is_empty());
        done
    }

    /// Whether messages are kept that found no room.
    pub fn has_pending(&self) -> bool {
        self.has_pending.get()
    }

    #[cold]
    pub(crate) fn check_alive(&self, rank: usize, doing: &'static str) -> Result<()> {
        match self.job.loss(rank) {
            Some(cause) => Err(Error::PeerLost { rank, cause, doing }),
            None => Ok(()),
        }
    }

    /// # Errors
    /// [`Error::RankOutOfRange`].
    #[inline(always)]
    pub fn check_rank(&self, rank: usize, operation: &'static str) -> Result<()> {
        if rank < self.size { Ok(()) } else { Err(self.no_such_rank(rank, operation)) }
    }

    #[cold]
    fn no_such_rank(&self, rank: usize, operation: &'static str) -> Error {
        Error::RankOutOfRange { operation, rank, size: self.size }
    }

    /// # Errors
    /// [`Error::InsideHandler`] if a handler is running.
    pub fn check_outside_handler(&self, operation: &'static str) -> Result<()> {
        if self.interface.delivering() { Err(Error::InsideHandler { operation }) } else { Ok(()) }
    }
}
