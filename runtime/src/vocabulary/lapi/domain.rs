//! What belongs to a handle: the world, the tables.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::thread::ThreadId;
use std::time::Duration;

use super::codes;
use super::port::{self, Entered, Waker};
use crate::error::{Error, Result};
use crate::world::World;

/// Indexes of the address table are below this. Handler values below it are indexes, not addresses.
pub const LOC_ADDRTBL_SZ: usize = 256;
/// Most bytes of a user header.
pub const MAX_UHDR_SZ: usize = 1024;
/// Seconds that [`Query::TIMEOUT`](super::raw::query::TIMEOUT) accepts, and its first value.
pub(super) const TIMEOUTS: std::ops::RangeInclusive<i32> = 10..=86400;
const TIMEOUT: i32 = 900;
/// Longest stay of a waiting thread in the port, where other threads of the rank may want to enter.
const TURN: Duration = Duration::from_millis(1);

/// What a handle names, used by one thread at a time.
pub(super) struct Domain {
    pub(super) world: World,
    /// On a simulated network only this thread may call: ranks take turns there.
    own_thread: Option<ThreadId>,
    /// Header handlers by index; 0 is none.
    pub(super) table: Box<[Cell<usize>; LOC_ADDRTBL_SZ]>,
    pub(super) timeout: Cell<i32>,
    pub(super) error_check: Cell<bool>,
    /// Where the world goes when the handle ends.
    pub(super) home: super::job::Home,
    /// Tells the threads of this handle that it ends.
    pub(super) over: std::sync::Arc<AtomicBool>,
}

impl Domain {
    /// Sets up a world for a handle. Collective.
    pub(super) fn new(world: World, home: super::job::Home) -> (Rc<Domain>, Waker) {
        let engine = world.engine();
        let own_thread = engine.pace().is_some().then(|| std::thread::current().id());
        if own_thread.is_none() {
            engine.leave_thread();
        }
        let waker = Box::new(engine.waker());
        let domain = Rc::new(Domain {
            own_thread,
            table: Box::new([const { Cell::new(0) }; LOC_ADDRTBL_SZ]),
            timeout: Cell::new(TIMEOUT),
            error_check: Cell::new(true),
            home,
            over: std::sync::Arc::default(),
            world,
        });
        (domain, waker)
    }

    /// Whether this thread may call.
    pub(super) fn may_enter(&self) -> bool {
        self.own_thread.is_none_or(|own| own == std::thread::current().id())
    }

    /// Whether all happens on one thread, in virtual time.
    pub(super) fn is_simulated(&self) -> bool {
        self.own_thread.is_some()
    }

    /// Makes progress once.
    ///
    /// # Errors
    /// The code of what went wrong with a message.
    pub(super) fn poll(&self) -> Result<usize, i32> {
        let done = self.world.poll().map_err(|error| codes::of_error(&error))?;
        Ok(done)
    }
}

/// Enters the port of `handle` for a call that may block.
///
/// # Errors
/// [`codes::HNDL_INVALID`]; [`codes::IN_HANDLER`] in a handler that a poll runs.
pub(super) fn enter_outside(handle: u32) -> Result<Entered, i32> {
    let entered = port::enter(handle)?;
    if entered.is_nested() { Err(codes::IN_HANDLER) } else { Ok(entered) }
}

/// Makes progress until `ready` gives something. Other threads of the rank can enter meanwhile.
///
/// # Errors
/// As [`enter_outside`]; the code of what went wrong with a message; [`codes::PEER_LOST`].
pub(super) fn wait<R>(handle: u32, doing: &'static str, mut ready: impl FnMut(&Domain) -> Option<R>) -> Result<R, i32> {
    loop {
        let entered = enter_outside(handle)?;
        let domain = &*entered;
        let mut outcome = None;
        let limit = if domain.is_simulated() { None } else { Some(TURN) };
        let waited = domain.world.engine().wait_until(doing, limit, || {
            outcome = ready(domain);
            outcome.is_some() || port::is_contended(handle)
        });
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
        match waited {
            Ok(()) | Err(Error::TimedOut { .. }) => {}
            Err(error) => return Err(codes::of_error(&error)),
        }
        drop(entered);
        if port::is_contended(handle) {
            std::thread::yield_now();
        }
    }
}
