//! GASPI's queues, segments, notifications and groups as owned values.
//!
//! [`Gaspi`] is the working phase of a [`Process`]. The values that it makes have no numbers: a function that gets a [`Queue`] posts on
//! this queue and waits for it, and can reach no other queue. Values borrow the values that they depend on, so a segment outlives its
//! notifications, and the working phase outlives its segments and queues.
//!
//! A drop does what a careful program does before it gives something back; each type says what that is, and what a drop cannot do. A drop
//! cannot return an error: it logs it. [`Queue::close`], [`Segment::close`] and [`Gaspi::finish`] return it.
//!
//! # Time limits
//!
//! Every call that waits for other processes has a [`Timeout`]. A call that may be repeated, such as [`Queue::wait`], fails with
//! [`codes::TIMEOUT`] and is made again. A call that has an effect gives a [`Resumable`] in place of a result. Posts have the limit of their
//! queue, [`Queue::limit_posts`]. On mapped memory they do not wait.

mod group;
mod notification;
mod queue;
mod segment;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

pub use self::group::{Element, Group};
pub use self::notification::{Notification, Notifications, Signal};
pub use self::queue::Queue;
pub use self::segment::{Local, Remote, Segment};
use super::codes;
use super::config::Config;
use super::process::Process;
use super::types::{Code, GROUP_ALL, GroupId, QueueId, Rank, Result, State, Timeout};

/// The call of a [`Resumable`] with a time limit. After [`codes::TIMEOUT`] it is called again.
type Step<'a, R> = Box<dyn FnMut(Timeout) -> Result<R> + Send + 'a>;

/// A call that is made in as many parts as its time limits need, and takes effect once.
///
/// Nothing happens before the first [`Resumable::within`] or [`Resumable::block`]. Each takes the call, and a call that is not complete is given
/// back, so a result cannot be taken twice.
///
/// A drop of a call that has begun cannot undo it. The next call of its kind with the same arguments goes on with it: a collective has to be
/// completed so, and the next reduction of a group has the elements of the one that was dropped. Until then this process can begin no other
/// working phase, or make no other segment. An atomic operation or a message takes effect, and the next equal one of the process gets
/// its result.
///
/// # Examples
/// ```
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// use bellwether::Threads;
/// use bellwether::gaspi::{Code, Config, Gaspi, Outcome, Process, Timeout};
///
/// Threads::new(2).build(|builder| {
///     let process = Process::start(builder).expect("starts");
///     let gaspi = Gaspi::begin(&process, Config::default()).block()?;
///     let mut segment = gaspi.segment(4096);
///     let segment = loop {
///         match segment.within(Timeout::Test)? {
///             Outcome::Done(segment) => break segment,
///             // Does something else meanwhile.
///             Outcome::Later(rest) => segment = rest,
///         }
///     };
///     assert_eq!(segment.size(), 4096);
///     drop(segment);
///     gaspi.finish().block()
/// })?.into_iter().collect::<Result<(), Code>>().expect("no code");
/// # Ok::<(), bellwether::Error>(())
/// ```
#[must_use = "nothing happens before `within` or `block`"]
pub struct Resumable<'a, R> {
    step: Step<'a, R>,
}

/// The outcome of a [`Resumable`].
#[derive(Debug)]
pub enum Outcome<'a, R> {
    /// It is complete.
    Done(R),
    /// The time is over. This is the rest of the call.
    Later(Resumable<'a, R>),
}

impl<'a, R> Resumable<'a, R> {
    fn new(step: impl FnMut(Timeout) -> Result<R> + Send + 'a) -> Resumable<'a, R> {
        Resumable { step: Box::new(step) }
    }

    /// Goes on with the call for so long.
    ///
    /// # Errors
    /// Those of the call, which is then over; not [`codes::TIMEOUT`].
    pub fn within(mut self, timeout: Timeout) -> Result<Outcome<'a, R>> {
        match (self.step)(timeout) {
            Ok(done) => Ok(Outcome::Done(done)),
            Err(code) if code.is_timeout() => Ok(Outcome::Later(self)),
            Err(code) => Err(code),
        }
    }

    /// Completes the call, however long it takes.
    ///
    /// # Errors
    /// Those of the call.
    pub fn block(mut self) -> Result<R> {
        loop {
            match (self.step)(Timeout::Block) {
                Err(code) if code.is_timeout() => {}
                outcome => return outcome,
            }
        }
    }
}

impl<R> std::fmt::Debug for Resumable<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resumable")
    }
}

/// The working phase of a process, from [`Gaspi::begin`] to [`Gaspi::finish`].
///
/// Every call may be made from every thread. The [`Process`] stays usable: its numbered objects are separate from the values made here, unless a
/// program guesses numbers. If the phase is ended through the [`Process`], calls on values that were made in the phase fail with
/// [`codes::NOINIT`], and their drops do nothing, also when another phase has begun.
///
/// A drop ends the working phase of this process, as [`Process::proc_term`] does. It cannot wait until the others have ended
/// theirs, as [`Gaspi::finish`] does: what they still post to this process fails.
///
/// # Examples
/// Rank 0 writes to rank 1, which waits for the notification.
/// ```
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// use bellwether::Threads;
/// use bellwether::gaspi::{Code, Config, Gaspi, Process, Timeout::Block};
///
/// Threads::new(2).build(|builder| {
///     let process = Process::start(builder).expect("starts");
///     let gaspi = Gaspi::begin(&process, Config::default()).block()?;
///     let segment = gaspi.segment(1024).block()?;
///     let mut arrived = segment.notification(7)?;
///     if gaspi.rank() == 0 {
///         let queue = gaspi.queue(Block)?;
///         segment.write(0, b"hello")?;
///         queue.write_notify(segment.here(0..5), segment.there(1, 100), arrived.signal(), 1)?;
///         queue.wait(Block)?;
///     } else {
///         assert_eq!(arrived.wait(Block)?, 1);
///         let mut came = [0; 5];
///         segment.read(100, &mut came)?;
///         assert_eq!(&came, b"hello");
///     }
///     drop(arrived);
///     drop(segment);
///     gaspi.finish().block()
/// })?.into_iter().collect::<Result<(), Code>>().expect("no code");
/// # Ok::<(), bellwether::Error>(())
/// ```
/// The working phase does not end while something of it is in use:
/// ```compile_fail,E0505
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// # use bellwether::gaspi::{Code, Gaspi, Timeout::Block};
/// fn end(gaspi: Gaspi<'_>) -> Result<(), Code> {
///     let queue = gaspi.queue(Block)?;
///     gaspi.finish().block()?;
///     queue.wait(Block)
/// }
/// ```
pub struct Gaspi<'p> {
    phase: Phase<'p>,
    /// Queues of the start that nobody owns yet, the next last.
    spare: Mutex<Vec<QueueId>>,
    making: Mutex<segment::Making>,
    /// Groups whose commits were dropped, the oldest first: their ranks, and their numbers.
    commits: Mutex<Vec<(Vec<Rank>, GroupId)>>,
    ended: bool,
}

impl<'p> Gaspi<'p> {
    /// Begins the working phase, when all processes have called this. Collective. `config.queue_num` queues are made at once, which
    /// [`Gaspi::queue`] gives first.
    ///
    /// # Errors
    /// Of the call: [`codes::INITED`] in the working phase, or if one with another configuration has begun; [`codes::CONFIG`];
    /// [`codes::ERROR`] if a process is lost.
    pub fn begin(process: &'p Process, config: Config) -> Resumable<'p, Gaspi<'p>> {
        let mut is_set = false;
        Resumable::new(move |timeout| {
            if !is_set {
                process.config_resume(config)?;
                is_set = true;
            }
            process.proc_init(timeout)?;
            let spare = (0..config.queue_num as QueueId).rev().collect();
            let phase = Phase { process, number: process.shared().phase.load(Ordering::Relaxed) };
            let (making, commits) = (Mutex::default(), Mutex::default());
            Ok(Gaspi { phase, spare: Mutex::new(spare), making, commits, ended: false })
        })
    }

    /// Ends the working phase, when all processes have called this. Collective.
    ///
    /// # Errors
    /// Of the call: [`codes::ERROR`] if a process is lost, or if a segment that was leaked cannot be closed. The phase is over then too.
    pub fn finish(self) -> Resumable<'p, ()> {
        let mut gaspi = self;
        Resumable::new(move |timeout| {
            // Captures the whole value: a closure that captured only the fields used here would copy these, and the rest would be dropped.
            let gaspi = &mut gaspi;
            let process = gaspi.phase.process()?;
            process.barrier(GROUP_ALL, timeout)?;
            gaspi.ended = true;
            process.proc_term(timeout)
        })
    }

    /// This process's number, from 0.
    pub fn rank(&self) -> Rank {
        self.phase.process.place().0 as Rank
    }

    /// How many processes there are.
    pub fn size(&self) -> Rank {
        self.phase.process.place().1 as Rank
    }

    /// A queue of this process, which no other owner has. Other processes do nothing.
    ///
    /// # Errors
    /// As [`Process::queue_create`].
    pub fn queue(&self, timeout: Timeout) -> Result<Queue<'_>> {
        let process = self.phase.process()?;
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let id = spare.map_or_else(|| process.queue_create(timeout), Ok)?;
        Ok(Queue::own(self.phase, id))
    }

    /// The group of all processes.
    pub fn all(&self) -> Group<'_> {
        Group::own(self, GROUP_ALL)
    }

    /// A group of some processes, this one among them. Collective over these.
    ///
    /// # Errors
    /// [`codes::MANY_GRP`]; [`codes::INV_RANK`] for a rank that does not exist or stands there twice. Of the call: as
    /// [`Process::group_commit`].
    pub fn group(&self, ranks: &[Rank]) -> Result<Resumable<'_, Group<'_>>> {
        let mut group = group::Committing::new(self, ranks)?;
        Ok(Resumable::new(move |timeout| group.advance(timeout)))
    }

    /// A segment of `bytes` zeroed bytes at each process, which all can reach when this is complete. Collective. A process makes one segment at
    /// a time. If a process cannot make its part, all fail with its code, and have no part.
    ///
    /// # Errors
    /// Of the call: as [`Process::segment_create`]; [`codes::ACTIVE_COLL`] while this process makes another one, also one whose call was dropped.
    pub fn segment(&self, bytes: u64) -> Resumable<'_, Segment<'_>> {
        segment::make(self, GROUP_ALL, bytes)
    }

    /// Sends a message of these bytes to `rank`. Complete when it is received there.
    ///
    /// # Errors
    /// Of the call: as [`Process::passive_send`].
    pub fn send<'a>(&'a self, message: Local<'a>, rank: Rank) -> Resumable<'a, ()> {
        let Local { segment, offset, size, phase, .. } = message;
        Resumable::new(move |timeout| {
            self.phase.check(phase)?;
            self.phase.process()?.passive_send(segment, offset, rank, size, timeout)
        })
    }

    /// Receives the next message of anyone. Its sender, and its size. On [`codes::TIMEOUT`] nothing was received: call it again.
    ///
    /// # Errors
    /// As [`Process::passive_receive`].
    pub fn receive(&self, into: Local<'_>, timeout: Timeout) -> Result<(Rank, u64)> {
        self.phase.check(into.phase)?;
        self.phase.process()?.passive_receive(into.segment, into.offset, into.size, timeout)
    }

    /// This process's knowledge of each process: a failed operation with a process makes that [`State::Corrupt`].
    ///
    /// # Errors
    /// As [`Process::state_vec_get`].
    pub fn states(&self) -> Result<Vec<State>> {
        self.phase.process()?.state_vec_get()
    }
}

impl Drop for Gaspi<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let ended = self.phase.process().and_then(|process| process.proc_term(Timeout::Block));
            log(ended, "ending the working phase");
        }
    }
}

impl std::fmt::Debug for Gaspi<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gaspi({} of {})", self.rank(), self.size())
    }
}

/// Handles an error in a drop.
fn log(outcome: Result<()>, doing: &'static str) {
    match outcome {
        // The working phase was ended by number.
        Ok(()) | Err(Code(codes::NOINIT)) => {}
        Err(code) => tracing::warn!(%code, doing, "a drop of a GASPI value failed"),
    }
}

/// A working phase of a process.
#[derive(Clone, Copy)]
struct Phase<'p> {
    process: &'p Process,
    /// No other one has it, of this process or of another one that is a thread.
    number: u64,
}

impl<'p> Phase<'p> {
    /// # Errors
    /// [`codes::NOINIT`] if the phase is over.
    #[inline(always)]
    fn process(self) -> Result<&'p Process> {
        match self.process.shared().phase.load(Ordering::Relaxed) == self.number {
            true => Ok(self.process),
            false => Err(Code(codes::NOINIT)),
        }
    }

    /// # Errors
    /// [`codes::INV_SEG`] for a value of another phase: its numbers name something else here.
    #[inline(always)]
    fn check(self, number: u64) -> Result<()> {
        if number == self.number { Ok(()) } else { Err(Code(codes::INV_SEG)) }
    }
}
