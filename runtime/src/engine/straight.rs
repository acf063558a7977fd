//! Long transfers over a network from and to memory of the caller's, without a copy: the memory is registered for the time of
//! the transfer.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::claim::Claim;
use super::networks::Networks;
use super::operation::{Filled, HeapRange, Transfer};
use super::remote_access::{Answer, RemoteAccess};
use super::{Engine, Event, Step};
use crate::error::Result;
use crate::transport::{self, Region};

/// From so many bytes on a registration, some ten microseconds and one more for each few pages, costs less than the copy and
/// the requests that it saves.
pub(crate) const STRAIGHT: usize = 256 << 10;
/// Most bytes of one request: requests of devices have 32 bits for them.
pub(super) const LONGEST: usize = 1 << 30;
const DOING: &str = "put";
/// Virtual time between two polls of a request that cannot be left alone.
pub(super) const PAUSE: Duration = Duration::from_micros(10);

/// Memory of the caller's.
#[derive(Clone, Copy)]
pub(crate) enum Local {
    /// That is put.
    From(*const u8),
    /// That is filled.
    Into(*mut u8),
}

impl Local {
    pub(super) fn start(self) -> *mut u8 {
        match self {
            Local::From(start) => start.cast_mut(),
            Local::Into(start) => start,
        }
    }
}

/// Makes progress for requests that have to end although a wait has ended early, by an error or a panic.
pub(super) trait Drive {
    /// Makes progress once, and runs no handler. Where there was no progress, a little time passes. The peer may do the same at the same
    /// time: on the world's thread this serves requests of peers too; elsewhere the world's thread serves them.
    fn drive(&self);
    /// Cancels the operations in flight to `rank` if they will not be answered any more, as for [`RemoteAccess::cancel`]: the network may
    /// not notice that by itself.
    fn cancel_if_lost(&self, rank: usize);
}

impl Drive for Engine {
    fn drive(&self) {
        if self.networks.progress().0 == 0 {
            match self.networks.pace() {
                Some(pace) => pace.pause(PAUSE),
                None => std::thread::yield_now(),
            }
        }
    }

    /// A lost connection of a context does not concern this interface: a peer that lives still answers, and gets room for its messages
    /// back, over this interface's own connection. If this interface has lost its connection, the network has ended the operations in flight.
    fn cancel_if_lost(&self, rank: usize) {
        if self.job.loss(rank).is_some() {
            self.networks.to(rank).cancel(rank);
        }
    }
}

impl Engine {
    /// Makes progress until `is_over` holds. Requests to `rank` make it hold: they are answered, or they fail because the peer or the
    /// connection failed, or because they were cancelled.
    pub(crate) fn drive_until(&self, rank: usize, is_over: impl Fn() -> bool) {
        drive_until(self, rank, is_over);
    }
}

fn drive_until(driver: &impl Drive, rank: usize, is_over: impl Fn() -> bool) {
    while !is_over() {
        driver.cancel_if_lost(rank);
        driver.drive();
    }
}

/// A transfer of the caller's memory. In every case its drop waits until the network no longer uses the memory.
pub(super) struct Lasting<'a, D: Drive> {
    pub(super) driver: &'a D,
    pub(super) transfer: Transfer,
}

impl<D: Drive> Drop for Lasting<'_, D> {
    fn drop(&mut self) {
        drive_until(self.driver, self.transfer.peer(), || self.transfer.is_idle());
    }
}

/// Whether two ranges of memory have a byte in common.
pub(super) fn overlap((a, a_len): (*const u8, usize), (b, b_len): (*const u8, usize)) -> bool {
    a.addr() < b.addr() + b_len && b.addr() < a.addr() + a_len
}

/// Requests that read a buffer, with the buffer.
pub(crate) struct InFlight {
    region: ManuallyDrop<Region>,
    /// Owns the buffer.
    hold: ManuallyDrop<Box<dyn Send>>,
    answers: Vec<Arc<Answer>>,
}

impl InFlight {
    /// Whether the buffer is among `len` bytes from `start` on, in part.
    pub(super) fn touches(&self, start: *const u8, len: usize) -> bool {
        overlap((self.region.address(), self.region.len()), (start, len))
    }

    /// Nothing is posted yet.
    pub(super) fn new(region: Region, hold: Box<dyn Send>) -> InFlight {
        InFlight { region: ManuallyDrop::new(region), hold: ManuallyDrop::new(hold), answers: Vec::new() }
    }

    /// Posts a put of the whole buffer to `offset` of `rank`, as far as there is room. `done` bytes are posted already. `true`: all are posted.
    ///
    /// # Errors
    /// Those of the network.
    ///
    /// # Safety
    /// All of the region is readable, and nobody changes it, until this is dropped.
    pub(super) unsafe fn go_on(
        &mut self,
        network: &dyn RemoteAccess,
        (rank, offset): (usize, usize),
        done: &mut usize,
    ) -> transport::Result<bool> {
        let (local, len) = (Local::From(self.region.address()), self.region.len());
        while *done < len {
            let most = (len - *done).min(LONGEST);
            // SAFETY: all in the region; it stays registered until all requests are answered.
            let posted = unsafe { network.post_straight(rank, offset + *done, local, &self.region, *done, most) }?;
            let Some((answer, count)) = posted else { return Ok(false) };
            self.answers.push(answer);
            *done += count;
        }
        Ok(true)
    }

    pub(super) fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().map(|answer| &**answer)
    }

    /// Whether all requests have ended, well or not.
    pub(super) fn is_over(&self) -> bool {
        self.answers().all(|answer| answer.outcome().is_some())
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InFlight({} bytes)", self.region.len())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Else the network may still read the buffer: buffer and registration are leaked.
        if !self.answers.iter().all(Answer::is_idle) {
            return;
        }
        // SAFETY: the last use of both. The registration ends before its memory is freed.
        unsafe {
            ManuallyDrop::drop(&mut self.region);
            ManuallyDrop::drop(&mut self.hold);
        }
    }
}

/// Posts a request; the answer, and the bytes that it moves. `None` is backpressure.
pub(super) type PostStraight<'a> = &'a dyn Fn(&dyn RemoteAccess) -> transport::Result<Option<(Arc<Answer>, usize)>>;

/// A stream that puts buffers: the rank's own one, or a context.
pub(super) trait PutsBuffers {
    /// Posts a request when there is room.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`], [`crate::Error::InsideHandler`] if it has to wait.
    fn post_request(&self, doing: &'static str, rank: usize, post: PostStraight<'_>) -> Result<(Arc<Answer>, usize)>;
    /// Tracks requests in flight. When they have ended, `events` happen.
    fn track_buffer(&self, doing: &'static str, rank: usize, flight: InFlight, events: Vec<Event>);
}

impl PutsBuffers for Engine {
    fn post_request(&self, doing: &'static str, rank: usize, post: PostStraight<'_>) -> Result<(Arc<Answer>, usize)> {
        let network = self.networks.to(rank);
        self.insist(doing, rank, || post(network))
    }

    fn track_buffer(&self, doing: &'static str, rank: usize, flight: InFlight, events: Vec<Event>) {
        self.tasks.track(rank, doing, Step::Buffer(flight), events);
    }
}

/// A buffer that is being put by several requests. When this is dropped, after an error or in a panic too, the stream tracks the requests in flight.
struct Posting<'a, S: PutsBuffers> {
    stream: &'a S,
    doing: &'static str,
    rank: usize,
    flight: ManuallyDrop<InFlight>,
    events: Vec<Event>,
}

impl<S: PutsBuffers> Drop for Posting<'_, S> {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this.
        let flight = unsafe { ManuallyDrop::take(&mut self.flight) };
        self.stream.track_buffer(self.doing, self.rank, flight, std::mem::take(&mut self.events));
    }
}

/// Puts all of the registered buffer at `offset` of `rank`, which is reached over a network. Blocks while there is no room. When the buffer
/// may be changed, `hold` is dropped and `events` happen.
///
/// # Errors
/// As [`PutsBuffers::post_request`]; then no event happens.
///
/// # Safety
/// All of the region is readable, and nobody changes it, until `hold` is dropped.
pub(super) unsafe fn put_buffer(
    stream: &impl PutsBuffers,
    doing: &'static str,
    (rank, offset): (usize, usize),
    region: Region,
    hold: Box<dyn Send>,
    events: Vec<Event>,
) -> Result<()> {
    let (local, len) = (Local::From(region.address()), region.len());
    let flight = InFlight::new(region, hold);
    let mut posting = Posting { stream, doing, rank, flight: ManuallyDrop::new(flight), events: Vec::new() };
    let mut done = 0;
    while done < len {
        let most = (len - done).min(LONGEST);
        let region = &posting.flight.region;
        let (answer, count) = stream.post_request(doing, rank, &|network| {
            // SAFETY: all in the region; it stays registered, and the buffer held, until all requests are answered.
            unsafe { network.post_straight(rank, offset + done, local, region, done, most) }
        })?;
        posting.flight.answers.push(answer);
        done += count;
    }
    posting.events = events;
    Ok(())
}

/// Registers memory of the caller's for one transfer with `rank`, so that nothing is copied. `None`: copy it. It is short, or it cannot be
/// registered.
///
/// # Safety
/// The memory stays mapped until the region is dropped.
pub(super) unsafe fn register<N: Deref<Target = dyn RemoteAccess>>(
    networks: &Networks<N>,
    rank: usize,
    start: *mut u8,
    len: usize,
) -> Option<Region> {
    if len < STRAIGHT {
        return None;
    }
    // SAFETY: the caller's.
    match unsafe { networks.to(rank).register(start, len) } {
        Ok((region, _)) => Some(region),
        Err(error) => {
            tracing::debug!(rank, len, %error, "memory that cannot be registered: is copied");
            None
        }
    }
}

impl Engine {
    /// Registers a buffer to put it to `rank`, or to fill it from there, without a copy. `None`: copy it. It is short, it is not for a network, or it cannot be
    /// registered.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    pub(crate) unsafe fn register_buffer(&self, rank: usize, start: *const u8, len: usize) -> Option<Region> {
        if self.outbox.is_at_once() {
            return None;
        }
        // SAFETY: the caller's.
        unsafe { self.register_in_place(rank, start, len) }
    }

    /// As [`Engine::register_buffer`], also for [`Engine::put_buffer_now`].
    ///
    /// # Safety
    /// As [`Engine::register_buffer`].
    pub(crate) unsafe fn register_in_place(&self, rank: usize, start: *const u8, len: usize) -> Option<Region> {
        if len < STRAIGHT || self.routes.is_mapped(rank) || self.interface.delivering() || !self.is_own() {
            return None;
        }
        // SAFETY: the caller's.
        unsafe { register(&self.networks, rank, start.cast_mut(), len) }
    }

    /// Puts all of the registered buffer at `offset` of the slot of `rank`, which is reached over a network. Blocks while there is no
    /// room. When the buffer may be changed, `hold` is dropped and `events` happen.
    ///
    /// # Errors
    /// As [`Engine::remote_put`]; then no event happens.
    ///
    /// # Safety
    /// All of the region is readable, and nobody changes it, until `hold` is dropped.
    pub(crate) unsafe fn put_buffer(
        &self,
        rank: usize,
        offset: usize,
        region: Region,
        hold: Box<dyn Send>,
        events: Vec<Event>,
    ) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { put_buffer(self, DOING, (rank, offset), region, hold, events) }
    }

    /// As [`Engine::put_buffer`], but does not wait: bytes that the network does not take now are copied and kept. The caller has checked for room.
    ///
    /// # Errors
    /// As [`Engine::put_buffer`].
    ///
    /// # Safety
    /// As [`Engine::put_buffer`].
    pub(crate) unsafe fn put_buffer_now(
        &self,
        rank: usize,
        offset: usize,
        region: Region,
        hold: Box<dyn Send>,
        events: Vec<Event>,
    ) -> Result<()> {
        let (start, len) = (region.address().cast_const(), region.len());
        let (mut flight, mut done) = (InFlight::new(region, hold), 0);
        let network = self.networks.to(rank);
        // SAFETY: the caller's; the flight is tracked below, also after an error.
        let post = || unsafe { flight.go_on(network, (rank, offset), &mut done) }.map(|all| all.then_some(()));
        let outcome = self.try_ask(DOING, rank, post).and_then(|all| match all {
            Some(()) => Ok(()),
            None => {
                // SAFETY: the rest of the region, which is readable, as the caller guarantees.
                let rest = unsafe { std::slice::from_raw_parts(start.add(done), len - done) };
                self.outbox.at_once(|| self.remote_put(rank, offset + done, rest))
            }
        });
        let events = if outcome.is_ok() { events } else { Vec::new() };
        self.track_buffer(DOING, rank, flight, events);
        outcome
    }

    /// Puts or gets `len` bytes at `offset` of `rank` (which is reached over a network), and waits for that. `false`: nothing
    /// was done, since this memory cannot be registered, or nothing may wait; copy it.
    ///
    /// # Safety
    /// The memory is valid for `len` bytes, for writing where it is filled, and only this call touches it.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`]; as [`Engine::remote_get`].
    pub(crate) unsafe fn remote_straight(
        &self,
        doing: &'static str,
        rank: usize,
        offset: usize,
        local: Local,
        len: usize,
    ) -> Result<bool> {
        // SAFETY: the caller's; the region ends with this call, and what uses it before.
        let Some(region) = (unsafe { self.register_buffer(rank, local.start(), len) }) else { return Ok(false) };
        let remote = HeapRange { rank, offset, len };
        // SAFETY: the caller's; `Lasting` ends with this call, and what uses the memory before.
        let transfer = unsafe { Transfer::new(remote, local, [None; 2], Some(region), None) };
        let mut lasting = Lasting { driver: self, transfer };
        let mut outcome = Ok(false);
        self.wait_together(doing, || {
            outcome = lasting.transfer.advance(&mut &*self, doing);
            !matches!(outcome, Ok(false))
        })?;
        outcome
    }

    /// Begins a get of `remote`, from a rank that is reached over a network, into memory of this rank, and waits for nothing. The bytes are
    /// at `to` when `events` happen. `claims`: of the remote memory, and of this one.
    ///
    /// # Safety
    /// `to` is valid for writing so many bytes, and only this, peers and copies of the runtime touch them, until nothing of this rank is in
    /// flight ([`Engine::quiet`]), or, of a segment that is `filled`, until its close has returned.
    pub(crate) unsafe fn get_into(
        &self,
        doing: &'static str,
        remote: HeapRange,
        to: *mut u8,
        claims: [Option<Claim>; 2],
        filled: Option<Filled>,
        events: Vec<Event>,
    ) {
        // SAFETY: the caller's.
        let region = unsafe { self.register_buffer(remote.rank, to, remote.len) };
        // SAFETY: the caller's.
        let transfer = unsafe { Transfer::new(remote, Local::Into(to), claims, region, filled) };
        self.tasks.track(remote.rank, doing, Step::Transfer(transfer), events);
        // Posts it now, if there is room.
        self.begin_tracked();
    }
}
