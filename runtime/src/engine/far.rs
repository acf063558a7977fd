//! A network as the engine drives it: [`Far`], over any transport in [`Network`](super::Network).

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::dispatch::Arrival;
use super::operation::Change;
use super::segments::FarSegments;
use crate::transport::{self, Sent};

/// A network as the engine drives it.
///
/// [`Sent::NoRoom`] and `None` are back-pressure. Offsets are into the peer's slot.
pub(crate) trait Far: FarSegments {
    /// The same network through an interface of its own, which nobody sends to by themselves.
    fn apart(&self) -> transport::Result<Apart>;
    /// Whether an operation on `rank` can be tried: what the rank shows is an address on this network.
    fn reaches(&self, rank: usize) -> bool;
    /// What was put to each rank before is in effect there before what is put to it later.
    fn order(&self) -> transport::Result<()>;
    /// Turns the crank; tells how much was done, and whether there is something for [`Far::arrival`] or
    /// [`Far::take_lost`]: else neither need be asked.
    fn progress(&self) -> (usize, bool);
    /// The next message that came.
    fn arrival(&self) -> Option<Arrival>;
    /// Says that the handler of a message has run which takes [`Arrival::room`]: it goes back to the sender.
    fn handled(&self, from: usize, room: usize);
    /// Ranks found gone since the last call.
    fn take_lost(&self) -> Vec<usize>;
    /// Writes `bytes`, at most [`Far::largest_put`], or as many of them as one registration holds; tells how many. None
    /// is back-pressure.
    fn put(&self, rank: usize, offset: usize, bytes: &[u8]) -> transport::Result<usize>;
    /// As [`Far::put`], from `len` bytes of this rank's slot, which stay unchanged until the next flush.
    fn put_own(&self, rank: usize, offset: usize, own: usize, len: usize) -> transport::Result<usize>;
    /// Adds one to a 64-bit word, after everything put there before.
    fn ring(&self, rank: usize, offset: usize) -> transport::Result<Sent>;
    /// Writes `bytes` of one registration, or none, and adds one to the 64-bit word at `bell`, after everything put there
    /// before: the target's processor does that, when it makes progress, and a target that sleeps wakes. The word starts a
    /// line of the heap and is its rank's alone. [`Sent::NoRoom`]: put and ring another word instead.
    fn notify(&self, rank: usize, offset: usize, bytes: &[u8], bell: usize) -> transport::Result<Sent>;
    /// Whether [`Far::notify`] ever does it; alike on all ranks.
    fn notifies(&self) -> bool;
    /// Sends a message, after everything put there before; if `ordered`, after every earlier message too.
    fn send(&self, to: usize, id: u8, ordered: bool, header: u64, payload: &[u8]) -> transport::Result<Sent>;
    /// Asks for `len` bytes, at most [`Far::largest_get`], or as many of them as one registration holds.
    fn get(&self, rank: usize, offset: usize, len: usize) -> transport::Result<Option<Arc<Answer>>>;
    /// Asks for an atomic.
    fn atomic(&self, rank: usize, offset: usize, atomic: Change) -> transport::Result<Option<Arc<Answer>>>;
    /// Does an atomic for who waits for it.
    fn atomic_now(&self, rank: usize, offset: usize, atomic: Change) -> transport::Result<Option<Soon>>;
    /// Whether nothing that was asked for is unanswered: every get has read, and every atomic with an answer is in effect.
    fn is_answered(&self) -> bool;
    /// Asks to be told when all that was posted to `rank` so far is in effect there, or, without `effect`, when its sources may be
    /// reused.
    fn flush_connection(&self, rank: usize, effect: bool) -> transport::Result<Option<Arc<Answer>>>;
    /// Whether all puts and rings are in effect; names the rank where they cannot be.
    fn flush(&self) -> std::result::Result<bool, (usize, transport::Error)>;
    /// Lets others reach bytes `from..to` of this rank's slot, which are committed now. In ascending order.
    fn grew(&self, from: usize, to: usize) -> transport::Result<()>;
    /// Whether operations there wait for something that the network has to learn first, and is learning.
    fn learns(&self, rank: usize) -> bool;
    /// Whether puts and rings get there without a sign to the target's interface: a target that sleeps then needs
    /// [`Far::wake`].
    fn is_silent(&self) -> bool;
    /// Whether all that was put and rung there is in effect.
    fn settled(&self, rank: usize) -> transport::Result<bool>;
    /// Lets a rank that sleeps on its interface look up, after what was put and rung there before.
    fn wake(&self, rank: usize) -> transport::Result<Sent>;
    /// Asks for [`Far::event`] to be readable when something comes from now on. `false`: something waits already.
    fn arm(&self) -> bool;
    /// Becomes readable when something comes, where that can be announced.
    fn event(&self) -> Option<BorrowedFd<'_>>;
    /// How long to sleep at most, where something may come that is not announced.
    fn longest_sleep(&self) -> Option<Duration>;
    /// Most bytes of a message, header included.
    fn largest_message(&self) -> usize;
    /// Most bytes of a put.
    fn largest_put(&self) -> usize;
    /// Most bytes of a get.
    fn largest_get(&self) -> usize;
    /// Its name, for people.
    fn name(&self) -> &'static str;
}

/// A network that shares nothing with others but through locks and atomics, so that any thread may have it.
pub(crate) struct Apart(Box<dyn Far>);

// SAFETY: the caller of `Apart::new` guarantees it.
unsafe impl Send for Apart {}

impl Apart {
    /// # Safety
    /// All that is reachable from `far` without atomics or a lock is reachable only through it, and none of it is bound to a
    /// thread.
    pub(super) unsafe fn new(far: Box<dyn Far>) -> Apart {
        Apart(far)
    }
}

impl std::ops::Deref for Apart {
    type Target = dyn Far;

    fn deref(&self) -> &(dyn Far + 'static) {
        &*self.0
    }
}

/// How time passes for a rank that has nothing to do, where time is virtual.
pub(crate) trait Pace {
    /// The same for something else of this rank. Of those of one rank, one thread at a time uses one.
    fn apart(&self) -> Box<dyn Pace + Send>;
    /// The time.
    fn now(&self) -> Duration;
    /// Blocks until something happens to this rank, or until that time. `false`: nothing can happen any more.
    fn block(&self, until: Option<Duration>) -> bool;
    /// Lets so much time pass, whatever happens.
    fn pause(&self, time: Duration);
    /// Unblocks a rank: something happened that did not come over the network.
    fn notify(&self, rank: usize);
    /// Whether a rank was ended, as a launcher would know.
    fn is_dead(&self, rank: usize) -> bool;
}

/// What an atomic found: at once, or it will be in the answer.
#[derive(Debug)]
pub(crate) enum Soon {
    Now(u64),
    Later(Arc<Answer>),
}

/// What comes back for a get or an atomic. Shared with the network, so that a caller may give up waiting.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(super) word: AtomicU64,
    bytes: OnceLock<Vec<u8>>,
    outcome: OnceLock<transport::Result<()>>,
}

impl Answer {
    pub(super) fn fill(&self, bytes: &[u8]) {
        self.bytes.set(bytes.to_vec()).expect("a get is answered once");
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get().map(Vec::as_slice)
    }

    /// How it ended, if it has.
    pub(crate) fn outcome(&self) -> Option<transport::Result<()>> {
        self.outcome.get().copied()
    }

    pub(super) fn finish(&self, outcome: transport::Result<()>) {
        self.outcome.set(outcome).expect("an operation completes once");
    }
}
