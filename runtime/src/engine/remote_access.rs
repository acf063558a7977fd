//! A network as the engine drives it: [`RemoteAccess`], over any transport in [`Network`](super::Network).

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::dispatch::Arrival;
use super::operation::Change;
use super::segments::RemoteSegments;
use crate::membership::liveness::SimulatedPeers;
use crate::memory::copy;
use crate::transport::lock::Mutex;
use crate::transport::{self, Events, GetSink, Protection, Sent};

/// The events of a network that end a sleep.
pub(crate) const EVENTS: Events = Events::SEND_COMPLETION.and(Events::RECEIVE);

/// A network as the engine drives it.
///
/// [`Sent::NoRoom`] and `None` are backpressure. Offsets are bytes in the peer's slot.
pub(crate) trait RemoteAccess: RemoteSegments {
    /// Its number: the place of its provider, the same on all ranks. Its connection record, and its key among those of a segment, have
    /// this number.
    fn number(&self) -> usize;
    /// Offset of the word of a bell that rings over this network add to, where `first` is that of network 0: atomics of two devices
    /// are not atomic to each other.
    fn ring_word(&self, first: usize) -> usize {
        first + self.number() * size_of::<u64>()
    }
    /// The same network through a further interface, to which no rank sends on its own initiative: only answers arrive there.
    fn apart(&self) -> transport::Result<Apart>;
    /// Whether an operation on `rank` can be tried: the rank has published an address on this network.
    fn reaches(&self, rank: usize) -> bool;
    /// Whether `rank`, which has arrived, has opened this network.
    fn is_open_at(&self, rank: usize) -> bool;
    /// Orders puts: those made so far take effect at each rank before later ones.
    fn order(&self) -> transport::Result<()>;
    /// Makes progress. Returns how much was done, and whether [`RemoteAccess::arrival`] or [`RemoteAccess::take_lost`] has something.
    fn progress(&self) -> (usize, bool);
    /// The next message that came.
    fn arrival(&self) -> Option<Arrival>;
    /// The handler of a message has run: returns the room that the message took ([`Arrival::room`]) to its sender.
    fn handled(&self, from: usize, room: usize);
    /// Ranks found to be unreachable since the last call.
    fn take_lost(&self) -> Vec<usize>;
    /// Writes `bytes`, at most [`RemoteAccess::largest_put`], or as many of them as one registration holds. Returns how many; 0 is
    /// backpressure.
    fn put(&self, rank: usize, offset: usize, bytes: &[u8]) -> transport::Result<usize>;
    /// As [`RemoteAccess::put`], after everything put there before.
    fn put_after(&self, rank: usize, offset: usize, bytes: &[u8]) -> transport::Result<usize>;
    /// As [`RemoteAccess::put`], from `len` bytes of this rank's slot. The caller leaves them unchanged until the next flush.
    fn put_own(&self, rank: usize, offset: usize, own: usize, len: usize) -> transport::Result<usize>;
    /// Adds one to a 64-bit word, after everything put there before.
    fn ring(&self, rank: usize, offset: usize) -> transport::Result<Sent>;
    /// Writes `bytes`, which lie in one registration or are none, and rings the word at `bell` by a notice, after everything
    /// put there before. The target's processor adds one to the 64-bit word when it makes progress; a target that sleeps wakes.
    /// The word starts a line of the heap, and only its own rank changes it. [`Sent::NoRoom`]: put and ring another word
    /// instead.
    fn notify(&self, rank: usize, offset: usize, bytes: &[u8], bell: usize) -> transport::Result<Sent>;
    /// Whether the network supports [`RemoteAccess::notify`]. The same on all ranks.
    fn notifies(&self) -> bool;
    /// Sends a message, after everything put there before; if `ordered`, after every earlier message too.
    fn send(&self, to: usize, id: u8, ordered: bool, header: u64, payload: &[u8]) -> transport::Result<Sent>;
    /// Whether a message of `len` bytes to `to` may find room now. If not, asks for room as [`RemoteAccess::send`] does.
    fn has_room(&self, to: usize, len: usize) -> transport::Result<bool>;
    /// Posts a get of `len` bytes, at most [`RemoteAccess::largest_get`], or of as many of them as one registration holds.
    fn get(&self, rank: usize, offset: usize, len: usize) -> transport::Result<Option<Arc<Answer>>>;
    /// As [`RemoteAccess::get`], but the bytes go to `to`, with no copy in between and no allocation where the network itself does gets.
    /// Returns how many it will be, too.
    ///
    /// # Safety
    /// `to` is valid for writing `len` bytes until the answer has ended or the value returned is dropped, and only this writes there.
    unsafe fn get_lent(
        &self,
        rank: usize,
        offset: usize,
        to: *mut u8,
        len: usize,
    ) -> transport::Result<Option<(Lent, usize)>>;
    /// Posts an atomic.
    fn atomic(&self, rank: usize, offset: usize, atomic: Change) -> transport::Result<Option<Arc<Answer>>>;
    /// Posts an atomic that the caller waits for: the result may be there at once.
    fn atomic_now(&self, rank: usize, offset: usize, atomic: Change) -> transport::Result<Option<Fetched>>;
    /// Whether all gets have read, and all atomics with an answer are in effect.
    fn is_answered(&self) -> bool;
    /// Posts a flush. Its answer comes when everything posted to `rank` so far is in effect there or, without `effect`, when the
    /// sources may be reused.
    fn flush_connection(&self, rank: usize, effect: bool) -> transport::Result<Option<Arc<Answer>>>;
    /// Ends the operations of this interface in flight to `rank` with an error. `rank` counts as lost: it failed, or another interface of
    /// this rank lost its connection there. Afterwards this interface does not reach `rank` any more, and no operation that was in flight
    /// touches memory of a caller; the answers end in a later [`RemoteAccess::progress`]. Over verbs this blocks until the device has
    /// stopped, for three seconds at most, in which this rank serves no peer.
    fn cancel(&self, rank: usize);
    /// Drops the endpoint to `rank`, if there is one, and the state for that rank, unless an operation there, or any answer, is in flight.
    /// Returns whether there is no endpoint now: the next operation makes another one. Only for an interface to which no rank sends.
    fn disconnect(&self, rank: usize) -> bool;
    /// Whether all puts and rings are in effect. An error names the rank where they never will be.
    fn flush(&self) -> std::result::Result<bool, (usize, transport::Error)>;
    /// Makes bytes `from..to` of this rank's slot, which were just committed, reachable for peers. Called in ascending order.
    fn grew(&self, from: usize, to: usize) -> transport::Result<()>;
    /// Whether operations on `rank` wait until the network has fetched the rank's table of registered memory.
    fn learns(&self, rank: usize) -> bool;
    /// Whether puts and rings cause no event at the target's interface: a target that sleeps then needs [`RemoteAccess::wake`].
    fn is_silent(&self) -> bool;
    /// Whether everything put and rung at `rank` is in effect.
    fn settled(&self, rank: usize) -> transport::Result<bool>;
    /// Wakes a rank that sleeps on its interface, after everything put and rung there before.
    fn wake(&self, rank: usize) -> transport::Result<Sent>;
    /// Arms [`RemoteAccess::event`] to become readable at one of `events`, which are some of [`EVENTS`]. `false`: one has come already.
    fn arm(&self, events: Events) -> bool;
    /// Whether the same descriptor becomes readable when there may be room for what was refused.
    fn announces_room(&self) -> bool;
    /// A descriptor that becomes readable when something arrives, if the network can announce that.
    fn event(&self) -> Option<BorrowedFd<'_>>;
    /// The longest sleep, if something may arrive that is not announced.
    fn longest_sleep(&self) -> Option<Duration>;
    /// Most interfaces that it lets a rank have at a time, if it ever refuses one as [busy](transport::Error::Busy).
    fn most_interfaces(&self) -> usize;
    /// Most bytes of a message, header included.
    fn largest_message(&self) -> usize;
    /// Most bytes of a put.
    fn largest_put(&self) -> usize;
    /// Most bytes of a get.
    fn largest_get(&self) -> usize;
    /// Its name, for people.
    fn name(&self) -> &'static str;
    /// How data on this network is protected.
    fn protection(&self) -> Protection;
}

/// A network that any thread may own: it shares state with others only through locks and atomics.
pub(crate) struct Apart(Box<dyn RemoteAccess>);

// SAFETY: the caller of `Apart::new` guarantees that nothing in it is bound to a thread or reached without a lock from outside
// it.
unsafe impl Send for Apart {}

impl Apart {
    /// # Safety
    /// All that is reachable from `network` without atomics or a lock is reachable only through it, and none of it is bound to a
    /// thread.
    pub(super) unsafe fn new(network: Box<dyn RemoteAccess>) -> Apart {
        Apart(network)
    }
}

impl std::ops::Deref for Apart {
    type Target = dyn RemoteAccess;

    fn deref(&self) -> &(dyn RemoteAccess + 'static) {
        &*self.0
    }
}

/// How time passes for a rank that has nothing to do, where time is virtual.
pub(crate) trait Pace: SimulatedPeers {
    /// A further handle for the same rank. Only one thread at a time may use a rank's handles, except for `notify`, which any thread
    /// may call.
    fn apart(&self) -> Box<dyn Pace + Send>;
    /// The virtual time.
    fn now(&self) -> Duration;
    /// Blocks until something happens to this rank, or until the time `until`. `false`: nothing can happen any more.
    fn block(&self, until: Option<Duration>) -> bool;
    /// Lets `time` pass; no event ends this early.
    fn pause(&self, time: Duration);
    /// How often this rank was notified so far.
    fn notices(&self) -> u64;
}

/// The former value of an atomic's word: here already, or to come in the answer.
#[derive(Debug)]
pub(crate) enum Fetched {
    Now(u64),
    Later(Arc<Answer>),
}

/// The answer to a get, an atomic or a flush. Shared with the network, so that a caller may stop waiting.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(super) word: AtomicU64,
    bytes: OnceLock<Vec<u8>>,
    /// Where the bytes of a get go, if a caller has lent memory for them: address and length.
    lent: Mutex<Option<(usize, usize)>>,
    has_ended: AtomicBool,
    error: Mutex<Option<transport::Error>>,
}

impl Answer {
    pub(super) fn fill(&self, bytes: &[u8]) {
        self.bytes.set(bytes.to_vec()).expect("a get is answered once");
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get().map(Vec::as_slice)
    }

    /// The outcome, if the operation has ended.
    pub(crate) fn outcome(&self) -> Option<transport::Result<()>> {
        // Pairs with the Release store in `finish`.
        self.has_ended.load(Ordering::Acquire).then(|| self.error.lock().map_or(Ok(()), Err))
    }

    /// Whether the network no longer touches the memory of the request that `answer`, which nobody else holds, is for.
    pub(super) fn is_idle(answer: &Arc<Answer>) -> bool {
        // The network holds the answer as long as it may touch the memory, and drops it with an endpoint that it closes.
        let is_dropped = Arc::strong_count(answer) == 1;
        fence(Ordering::Acquire);
        is_dropped || answer.outcome().is_some()
    }

    pub(super) fn finish(&self, outcome: transport::Result<()>) {
        assert!(!self.has_ended.load(Ordering::Relaxed), "an operation completes once");
        *self.error.lock() = outcome.err();
        // Pairs with the Acquire load in `outcome`.
        self.has_ended.store(true, Ordering::Release);
    }

    /// Makes this the answer of a further operation. There is no other reference to it.
    pub(super) fn reset(&self) {
        *self.error.lock() = None;
        self.has_ended.store(false, Ordering::Relaxed);
    }

    /// Where the bytes of a get go from now on.
    ///
    /// # Safety
    /// The memory is valid for writing `len` bytes until [`Answer::take_back`], and only this writes there.
    pub(super) unsafe fn lend(&self, start: *mut u8, len: usize) {
        *self.lent.lock() = Some((start.expose_provenance(), len));
    }

    /// Nothing is written any more where the bytes were to go.
    pub(super) fn take_back(&self) {
        *self.lent.lock() = None;
    }
}

impl GetSink for Answer {
    fn take(&self, offset: usize, bytes: &[u8]) {
        // Held while the bytes are copied: nobody takes the memory back meanwhile.
        if let Some((start, len)) = *self.lent.lock()
            && offset.checked_add(bytes.len()).is_some_and(|end| end <= len)
        {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(start + offset);
            // SAFETY: inside the memory that was lent, as just checked, and valid, as the lender guarantees.
            unsafe { copy::put(to, bytes.as_ptr(), bytes.len()) };
        }
    }
}

/// The memory of a caller that waits for an answer: lent as long as this lives.
pub(crate) struct Lent(pub(super) Arc<Answer>);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.take_back();
    }
}
