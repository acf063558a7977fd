//! The one error type. Every variant says what happened, where, and what to do about it.

use std::panic::Location;
use std::time::Duration;

/// Text for errors: what has happened when the roster of a job is not there any more.
pub(crate) const MEMORY_LOST: &str = "the memory of this job was cut or cleared from outside the job (its file, \
     /memfd:bellwether under /proc/PID/fd, was truncated or had holes punched into it)";
/// What stands before the place of a call in a message.
pub(crate) const CALLED_AT: &str = "called at ";

/// What a Bellwether call returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where the program made a call, if that is known. Shown at the end of an error's message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CalledAt(Option<&'static Location<'static>>);

impl CalledAt {
    /// File, line and column.
    pub fn location(self) -> Option<&'static Location<'static>> {
        self.0
    }

    fn or(self, place: &'static Location<'static>) -> CalledAt {
        CalledAt(self.0.or(Some(place)))
    }
}

impl std::fmt::Display for CalledAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |place| write!(f, " ({CALLED_AT}{}:{})", place.file(), place.line()))
    }
}

/// Adds the place of the caller to an error.
#[doc(hidden)]
pub trait Placed {
    /// The same, with the place of the caller in an error that has none. Costs nothing where there is no error.
    #[track_caller]
    fn placed(self) -> Self;

    /// As [`Placed::placed`], also in place of one that is known: of an error that calls of the library have made for this one.
    #[track_caller]
    fn placed_here(self) -> Self;
}

impl<T> Placed for Result<T> {
    #[inline]
    #[track_caller]
    fn placed(self) -> Result<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(error.at(Location::caller())),
        }
    }

    #[inline]
    #[track_caller]
    fn placed_here(self) -> Result<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(error.without_place().at(Location::caller())),
        }
    }
}

impl Placed for Box<Error> {
    #[cold]
    #[track_caller]
    fn placed(mut self) -> Box<Error> {
        *self = (*self).at(Location::caller());
        self
    }

    #[cold]
    #[track_caller]
    fn placed_here(mut self) -> Box<Error> {
        *self = (*self).without_place().at(Location::caller());
        self
    }
}

/// Checks that `count` elements or bytes from `start` are among those that are there.
///
/// # Errors
/// [`Error::OutOfBounds`].
pub(crate) fn check_range(
    operation: &'static str,
    rank: usize,
    start: usize,
    count: usize,
    available: usize,
) -> Result<()> {
    match start.checked_add(count).is_some_and(|end| end <= available) {
        true => Ok(()),
        false => Err(Error::OutOfBounds { operation, rank, start, count, available, place: CalledAt::default() }),
    }
}

/// Everything that can go wrong in a Bellwether call.
///
/// Errors are values: a dead peer, a full heap or a bad address never panics and never hangs.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank number at or beyond the number of ranks.
    #[error("{operation}: rank {rank} does not exist; this world has ranks 0 to {}{place}", size - 1)]
    RankOutOfRange {
        /// The call that was made.
        operation: &'static str,
        /// The rank asked for.
        rank: usize,
        /// Ranks in the world.
        size: usize,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// A range that leaves the allocation it was meant for.
    #[error(
        "{operation} at rank {rank}: elements {start}..{} are outside the allocation, which has {available}{place}",
        start.saturating_add(*count)
    )]
    OutOfBounds {
        /// The call that was made.
        operation: &'static str,
        /// The target rank.
        rank: usize,
        /// First element asked for.
        start: usize,
        /// Elements asked for.
        count: usize,
        /// Elements there are.
        available: usize,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// A global pointer to memory that it does not reach any more: freed, allocated anew, or its owner's alone for now.
    #[error(
        "{operation} at rank {rank}: the pointer is stale: it was made for generation {generation:#x} of its allocation, \
         {}; take a new pointer after every allocation and every change of phase{place}",
        if *current == 0 { "which this rank does not share now".into() } else { format!("which has {current:#x} now") }
    )]
    Stale {
        /// The call that was made.
        operation: &'static str,
        /// The target rank.
        rank: usize,
        /// The generation in the pointer.
        generation: u64,
        /// The generation that the place has now; 0: none.
        current: u64,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// A future was to go on after the phase or the allocation in which it was made had ended. From then on it asks for nothing;
    /// what it had asked for before is done, and an update of several steps is not made.
    #[error(
        "{operation} at rank {rank}: the phase of the array, or its allocation, in which this future was made has ended, and the \
         future had not asked for all of its data yet; wait for futures (`wait`, `wait_all`) before `localize`, before a \
         collective that updates the array, and before the array is dropped{place}"
    )]
    PhaseOver {
        /// The call that was made.
        operation: &'static str,
        /// The rank that was to be asked next.
        rank: usize,
        /// Where the program made the future.
        place: CalledAt,
    },
    /// A segment that its owner has not registered, or has closed. If a rank is gone, the error is [`Error::PeerLost`] instead: the owner may
    /// have closed the segment because of that.
    #[error(
        "{operation}: rank {rank} has no segment {number}; use a number that this rank gave out (`Segment::number`), before it \
         closes the segment{place}"
    )]
    NoSegment {
        /// The call that was made.
        operation: &'static str,
        /// The owner.
        rank: usize,
        /// The number.
        number: u32,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// An address that is not mapped, or not accessible, in the target rank.
    #[error(
        "{operation}: {length} bytes at {address:#x} are not all accessible memory of rank {rank}; \
         pass an address that is valid in that rank"
    )]
    BadAddress {
        /// The call that was made.
        operation: &'static str,
        /// The rank in which the address was to be valid.
        rank: usize,
        /// The address.
        address: usize,
        /// Bytes asked for.
        length: usize,
    },
    /// An address that is not a multiple of the alignment that the operation needs.
    #[error("{operation} at rank {rank}: address {address:#x} must be a multiple of {alignment}{place}")]
    Misaligned {
        /// The call that was made.
        operation: &'static str,
        /// The target rank.
        rank: usize,
        /// The address.
        address: usize,
        /// The alignment in bytes that the operation needs.
        alignment: usize,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// The symmetric heap or the message memory cannot hold what was asked.
    #[error(
        "out of {what}: {asked} bytes asked at each rank, {free} free of {limit}; \
         ask for less, free something, or raise {setting}{place}"
    )]
    OutOfMemory {
        /// Which memory.
        what: &'static str,
        /// Bytes asked for, each rank.
        asked: usize,
        /// Bytes free, each rank.
        free: usize,
        /// Bytes there could be, each rank.
        limit: usize,
        /// The setting that changes it.
        setting: &'static str,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// This rank has as many contexts as its network has interfaces for.
    #[error(
        "this rank has the {limit} contexts that there can be at a time over {network}, where each has an interface of its own; drop \
         contexts that are not in use, or hand one from thread to thread{place}"
    )]
    NoContext {
        /// Contexts that a rank may have at a time.
        limit: usize,
        /// The network.
        network: String,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// A rank died, panicked or left while this one still needed it.
    #[error("{doing}: rank {rank} is gone: {cause}{}", .doing.called())]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// What became of it.
        cause: Loss,
        /// What this rank was doing.
        doing: Doing,
    },
    /// The memory that ranks of this machine have in common was cleared by somebody who is not part of the job.
    #[error("{doing}: {MEMORY_LOST}; start it again{}", .doing.called())]
    MemoryLost {
        /// What this rank was doing.
        doing: Doing,
    },
    /// Two ranks do not agree on something they must agree on.
    #[error("{what} differs between ranks: rank {rank} has {theirs}, rank {reference} has {ours}; {advice}")]
    RanksDiffer {
        /// What differs.
        what: &'static str,
        /// The rank that differs.
        rank: usize,
        /// The rank it was compared with.
        reference: usize,
        /// What the differing rank has.
        theirs: String,
        /// What the reference rank has.
        ours: String,
        /// What to do.
        advice: &'static str,
    },
    /// A wait with a time limit ended without what it waited for.
    #[error("{doing}: not done after {after:?}{}", .doing.called())]
    TimedOut {
        /// What this rank was doing.
        doing: Doing,
        /// The limit.
        after: Duration,
    },
    /// Every rank waits, nothing is in flight, and so nothing can end the wait. On one host this is found where all wait in collective
    /// calls, in the simulator in any case.
    #[error("{doing}: deadlock: every rank waits, and no message or operation is in flight{}", .doing.called())]
    Standstill {
        /// What this rank was doing.
        doing: Doing,
    },
    /// A blocking or collective call from inside a handler.
    #[error("{operation} inside a handler: handlers can send, but not wait or enter a collective{place}")]
    InsideHandler {
        /// The call that was made.
        operation: &'static str,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// A world of the parent, used in a forked child. Only the parent is the rank, and nothing has happened there.
    #[error(
        "{operation}: process {child} is a forked child of process {parent}, which is rank {rank}; only process {parent} can do \
         this. In the child, use nothing of the world: call `exec` or `_exit`, or start it as a program \
         (`std::process::Command`), or fork before the world starts"
    )]
    Forked {
        /// The call that was made.
        operation: &'static str,
        /// The rank that the parent is.
        rank: usize,
        /// The parent's process id.
        parent: u32,
        /// The child's process id.
        child: u32,
    },
    /// A handler or closure that another rank ran for this one panicked there.
    #[error(
        "rank {rank}: `{handler}` panicked{}: {why}; that rank ends unless its program catches the panic",
        place.as_ref().map(|place| format!(" at {place}")).unwrap_or_default()
    )]
    HandlerPanicked {
        /// The rank that ran it.
        rank: usize,
        /// The name of the registered handler, or the type of the closure.
        handler: String,
        /// What the panic said.
        why: String,
        /// File, line and column of the panic, where the program has not replaced the panic hook.
        place: Option<String>,
    },
    /// A handler registered after communication began.
    #[error(
        "handler `{name}` registered after the first communication call: register all handlers, in the same order on every rank, before it"
    )]
    RegistrationClosed {
        /// The handler's name.
        name: String,
    },
    /// A message named a handler that the target does not have.
    #[error("rank {from} called handler {id} at rank {rank}, which has {known} handlers: register it on every rank")]
    UnknownHandler {
        /// The calling rank.
        from: usize,
        /// The rank called.
        rank: usize,
        /// The handler number.
        id: u64,
        /// Handlers there are.
        known: usize,
    },
    /// A message that the target could not take in.
    #[error("message from rank {from}: {why}")]
    BadMessage {
        /// The rank that sent it.
        from: usize,
        /// What is wrong with it.
        why: String,
    },
    /// More messages in flight, or kept for later, than there is room for; make progress and try again. A handler returns first.
    #[error(
        "{operation} to rank {rank}: no room for another message now; poll and try again, outside of handlers{place}"
    )]
    WouldBlock {
        /// The call that was made.
        operation: &'static str,
        /// The target rank.
        rank: usize,
        /// Where the program made the call.
        place: CalledAt,
    },
    /// An argument that can never be right.
    #[error("{operation}: {why}")]
    InvalidArgument {
        /// The call that was made.
        operation: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The surroundings say that this is one task of several, but it came up alone.
    #[error("{variable}={value}: this process was started as one of {value} tasks but came up alone; {advice}")]
    StartedApart {
        /// The environment variable that tells.
        variable: &'static str,
        /// Its value.
        value: usize,
        /// What is wrong, as far as it is known, and what to do.
        advice: std::borrow::Cow<'static, str>,
    },
    /// A setting whose value has no meaning.
    #[error("setting {name}={value:?}: expected {expected}")]
    Setting {
        /// The environment variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// The values that it takes.
        expected: String,
    },
    /// The job could not be started.
    #[error("starting: {0}")]
    Start(String),
    /// A rank reported a failure to all ([`crate::World::agree`]).
    #[error("rank {rank}: {why}")]
    Agreed {
        /// The first rank that failed.
        rank: usize,
        /// Its own words.
        why: String,
    },
    /// A call into MPI failed.
    #[error("MPI: {call} returned {code}: {text}")]
    Mpi {
        /// The MPI function.
        call: &'static str,
        /// Its return code.
        code: i32,
        /// MPI's own words for it.
        text: String,
    },
    /// A call into the operating system failed.
    #[error("{doing}: {call}: {source}")]
    Os {
        /// What this rank was doing.
        doing: &'static str,
        /// The system call.
        call: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// What a rank was doing: a step, and the call that it was a part of, if that is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doing {
    call: Option<&'static str>,
    step: &'static str,
    place: Option<&'static Location<'static>>,
}

impl Doing {
    /// The call that the program made, or what else it was doing.
    pub fn call(self) -> &'static str {
        self.call.unwrap_or(self.step)
    }

    /// The step of that call in which this rank was.
    pub fn step(self) -> &'static str {
        self.step
    }

    /// Where the program made the call, if that is known.
    pub fn place(self) -> Option<&'static Location<'static>> {
        self.place
    }

    /// The same as a part of `call`, made at `place`, unless it is known to be part of another one.
    fn within(self, call: Option<&'static str>, place: &'static Location<'static>) -> Doing {
        let call = self.call.or(call.filter(|call| *call != self.step));
        Doing { call, place: self.place.or(Some(place)), ..self }
    }

    /// The place of the call, for the end of a message.
    fn called(self) -> String {
        self.place.map_or_else(String::new, |place| format!(" ({CALLED_AT}{}:{})", place.file(), place.line()))
    }
}

impl From<&'static str> for Doing {
    fn from(step: &'static str) -> Doing {
        Doing { call: None, step, place: None }
    }
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.call {
            Some(call) => write!(f, "in `{call}`: {}", self.step),
            None => f.write_str(self.step),
        }
    }
}

/// What became of a rank that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Loss {
    /// It exited with this code without leaving the world.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// It panicked.
    Panicked,
    /// It left the world in good order, too early for this rank.
    Left,
    /// The network connection to it is lost; it may live.
    Disconnected,
    /// It ended; nobody saw how.
    Unknown,
    /// The job lived longer than its deadline, and all its waits are ended.
    Overdue,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Loss::Exited(code) => write!(f, "it exited with code {code} without leaving the world"),
            Loss::Signaled(signal) => write!(f, "signal {signal} ended it"),
            Loss::Panicked => f.write_str("it panicked"),
            Loss::Left => f.write_str("it left, or waits to leave, while others still need it"),
            Loss::Disconnected => f.write_str("the network connection to it is lost"),
            Loss::Unknown => f.write_str("its process ended"),
            Loss::Overdue => f.write_str("the job has passed its deadline"),
        }
    }
}

/// The same words as `Display`: they are what a `main` that returns an error prints.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Error {
    /// The same error, of something that was done for `call`, the name which the program knows, made at `place` by rank `here`.
    #[cold]
    pub(crate) fn within(self, call: Option<&'static str>, place: &'static Location<'static>, here: usize) -> Error {
        match self {
            Error::PeerLost { rank, cause, doing } => Error::PeerLost { rank, cause, doing: doing.within(call, place) },
            Error::TimedOut { doing, after } => Error::TimedOut { doing: doing.within(call, place), after },
            Error::MemoryLost { doing } => Error::MemoryLost { doing: doing.within(call, place) },
            Error::Standstill { doing } => Error::Standstill { doing: doing.within(call, place) },
            Error::RanksDiffer { what, rank, reference, theirs, mut ours, advice } => {
                // The descriptions that the ranks have exchanged contain the places already.
                if !ours.contains(CALLED_AT) && !theirs.contains(CALLED_AT) {
                    let told = if reference == here { String::new() } else { format!("; told to rank {here}") };
                    let name = call.map_or(String::new(), |call| format!("in `{call}`, "));
                    ours += &format!("{told} ({name}{CALLED_AT}{}:{})", place.file(), place.line());
                }
                Error::RanksDiffer { what, rank, reference, theirs, ours, advice }
            }
            error => match error.with_place(place) {
                error if let Some(call) = call => error.named(call),
                error => error,
            },
        }
    }

    /// The error with the place of its call, if it has none.
    #[cold]
    #[inline(never)]
    pub(crate) fn at(self, place: &'static Location<'static>) -> Error {
        match self {
            Error::PeerLost { rank, cause, doing } => Error::PeerLost { rank, cause, doing: doing.within(None, place) },
            Error::TimedOut { doing, after } => Error::TimedOut { doing: doing.within(None, place), after },
            Error::MemoryLost { doing } => Error::MemoryLost { doing: doing.within(None, place) },
            Error::Standstill { doing } => Error::Standstill { doing: doing.within(None, place) },
            other => other.with_place(place),
        }
    }

    /// Replaces the error's place by `place`. For errors whose place is a line of the library.
    #[cold]
    #[inline(never)]
    pub(crate) fn only_at(self, place: &'static Location<'static>) -> Error {
        self.without_place().at(place)
    }

    /// The error without the place of its call. For bindings: a program in C would be told a line of the binding.
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    pub fn without_place(mut self) -> Error {
        match &mut self {
            Error::PeerLost { doing, .. }
            | Error::TimedOut { doing, .. }
            | Error::MemoryLost { doing }
            | Error::Standstill { doing } => doing.place = None,
            Error::InvalidArgument { why, .. } => {
                if let Some(end) = why.rfind(&format!(" ({CALLED_AT}")) {
                    why.truncate(end);
                }
            }
            other => {
                if let Some(place) = other.place() {
                    *place = CalledAt::default();
                }
            }
        }
        self
    }

    /// The error with the place of its call, where nothing else has it.
    #[cold]
    fn with_place(mut self, place: &'static Location<'static>) -> Error {
        match &mut self {
            Error::InvalidArgument { why, .. } if !why.contains(CALLED_AT) => {
                *why += &format!(" ({CALLED_AT}{}:{})", place.file(), place.line());
            }
            other => {
                if let Some(at) = other.place() {
                    *at = at.or(place);
                }
            }
        }
        self
    }

    /// The place of the call, in the variants that have one of their own.
    fn place(&mut self) -> Option<&mut CalledAt> {
        match self {
            Error::RankOutOfRange { place, .. }
            | Error::OutOfBounds { place, .. }
            | Error::Stale { place, .. }
            | Error::PhaseOver { place, .. }
            | Error::NoSegment { place, .. }
            | Error::Misaligned { place, .. }
            | Error::OutOfMemory { place, .. }
            | Error::NoContext { place, .. }
            | Error::InsideHandler { place, .. }
            | Error::WouldBlock { place, .. } => Some(place),
            _ => None,
        }
    }

    /// An error without a place, as one of `call`.
    #[cold]
    fn named(self, call: &'static str) -> Error {
        match self {
            Error::InsideHandler { place, .. } => Error::InsideHandler { operation: call, place },
            Error::Forked { rank, parent, child, .. } => Error::Forked { operation: call, rank, parent, child },
            Error::InvalidArgument { operation, why } => {
                let why = if operation == call { why } else { format!("{operation}: {why}") };
                Error::InvalidArgument { operation: call, why }
            }
            Error::Agreed { rank, why } => Error::Agreed { rank, why: format!("in `{call}`: {why}") },
            other => other,
        }
    }

    /// Shorthand for a failed system call.
    pub(crate) fn os(doing: &'static str, call: &'static str, errno: rustix::io::Errno) -> Self {
        Error::Os { doing, call, source: errno.into() }
    }
}
