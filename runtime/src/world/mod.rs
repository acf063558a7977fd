//! The world: everything that a rank holds, and the calls that need all of its parts.

mod addresses;
mod allocate;
mod allocate_async;
mod atomics;
mod bell;
mod broadcast;
mod collective;
mod context;
mod context_wakeup;
#[cfg(feature = "mpi")]
mod from_mpi;
mod heaps;
mod landing;
mod large;
mod launched;
mod located;
mod mapped;
mod operation;
mod phase;
mod pieces;
mod poller;
mod posted;
mod progress;
mod raw;
mod receipt;
mod reserved_segments;
mod returned;
mod segment_atomics;
mod segment_try_forms;
mod segments;
mod serve;
mod shared;
mod signal;
mod simulated;
mod start;
mod survive;
mod symmetric;
mod team;
mod thread_addresses;
mod thread_messages;
mod thread_operation;
mod thread_reserved;
mod thread_segments;
mod thread_try_forms;
mod threads;
mod try_forms;
mod update;
mod value;
mod wait_any;
mod wakeup;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Serialize, de::DeserializeOwned};

pub use self::atomics::{AtomicElement, Word};
pub use self::bell::{Bell, Rung};
pub use self::context::{ThreadContext, ThreadPosted};
pub use self::context_wakeup::ContextWakeUp;
pub use self::large::LargeJob;
pub use self::mapped::Mapped;
pub use self::operation::{Completion, Counter, Event, Fetched, Operation};
pub use self::phase::{Lent, Reach};
pub use self::pieces::Piece;
pub use self::poller::Poller;
pub use self::posted::Posted;
pub use self::progress::Progress;
pub use self::raw::RawBells;
pub use self::reserved_segments::ReservedSegments;
pub use self::returned::Returned;
pub(crate) use self::segment_try_forms::Reading;
pub use self::segments::Segment;
#[doc(hidden)]
pub use self::serve::{Served, Server, Working};
pub use self::shared::{ThreadArray, ThreadBell};
pub use self::signal::Signalled;
pub use self::simulated::Simulated;
pub use self::start::Builder;
pub(crate) use self::start::StartBy;
pub use self::symmetric::Symmetric;
pub use self::thread_operation::ThreadOperation;
pub use self::thread_reserved::ThreadReservedSegments;
pub use self::thread_segments::ThreadSegment;
pub use self::threads::{Threads, threads};
pub use self::wait_any::Waitable;
pub use self::wakeup::{Arm, Driver, Reactor, Signaller, WakeOn, WakeUp};
pub(crate) use crate::engine::{Doze, Dozer, Event as StreamEvent, Memo, OpenStream, Reached};

use self::allocate::Allocator;
use self::heaps::Heaps;
use crate::bounds::{OneThread, PlainData};
use crate::engine::{Engine, Pace, Running};
use crate::error::{Error, Loss, Placed, Result};
use crate::membership::hosts::Agent;
use crate::message::{Call, Context, HandlerId, Messages};
use crate::settings::Settings;
use crate::team::everyone::Barrier;
use crate::team::exchange::Exchange;
use crate::team::last;
use crate::team::see::{See, Shown, Wanted};
use crate::team::title::{Asked, Kind};

/// A rank's handle to the running job. All communication starts here.
///
/// A world is a value: ranks may be processes or threads, and a process may hold several thread-ranked worlds at a
/// time. A world belongs to one thread; other threads of the rank communicate by [contexts](World::context). Dropping it leaves
/// the job; ranks that still wait for this one then get [`Error::PeerLost`]. Dropping it in a panic tells them so.
///
/// # Forked children
/// A child made by `fork` has copies of the world and of all handles, but only the parent is the rank. In the child every call
/// that waits, sends, goes over a network, is collective or ends the rank is [`Error::Forked`], and dropping the world or a
/// handle does nothing: the parent and its peers notice nothing. Mapped memory can only be read there. A put, atomic or ring to
/// a rank of the same node is a store, which asks nobody: in a child it ends the child with SIGSEGV, after one line on
/// standard error that names the rank and both processes. So does a write to own memory of the world. A get stays a load.
/// Symmetric static data is the child's own copy. So do not use the world in a child: let the child `exec` or `_exit`. Programs
/// started with [`std::process::Command`] are no such children.
///
/// A handler of `pthread_atfork` takes the write access, and the child has a handler of SIGSEGV, which passes other faults on to
/// the one that was there. A child of a bare `clone` or of `vfork` runs no such handler: it may do nothing but `exec`.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// # fn main() -> bellwether::Result<()> {
/// bellwether::threads(3, |world| {
///     let next = (world.rank() + 1) % world.size();
///     let mailbox = world.alloc::<u64>(1)?;
///     let bell = world.bell()?;
///     mailbox.put_bell(next, 0, world.rank() as u64, &bell)?;
///     bell.wait(1)?;
///     assert_eq!(mailbox.load(0) as usize, (world.rank() + 2) % 3);
///     world.barrier()
/// })?
/// .into_iter()
/// .collect()
/// # }
/// ```
pub struct World {
    engine: OneThread<Rc<Engine>, World>,
    messages: OneThread<Rc<Messages>, World>,
    // Fields that change behind a shared reference are boxed: the compiler then knows that a store to another rank's memory changes
    // no field of a world, and a loop of `put_address` keeps the values that it needs from `heaps` in registers.
    heaps: OneThread<Heaps, World>,
    barrier: OneThread<Box<Barrier>, World>,
    exchange: OneThread<Box<Exchange>, World>,
    allocator: OneThread<Rc<RefCell<Allocator>>, World>,
    /// Whether cross-memory attach is permitted; cleared when the kernel first refuses it.
    started: Instant,
    /// Tells other hosts, if there are any, of the ranks of this one.
    hosts: OneThread<Option<Agent>, World>,
    /// The session that joined us to the ranks of a launcher, until this rank leaves.
    session: OneThread<Option<crate::bootstrap::pmi::Session>, World>,
    #[cfg(feature = "mpi")]
    mpi: OneThread<Option<crate::bootstrap::mpi::Session>, World>,
}

impl World {
    /// Starts the world: joins the job this process was started in, or makes one.
    ///
    /// Collective over all ranks of the job. In this order: the job of `bellwether run`; the ranks that
    /// `BELLWETHER_RANKS=n` asks for, as copies of this program (this call then does not return in the first
    /// process: it watches the copies and exits with their status); the ranks of mpirun or srun, by MPI in builds with the
    /// feature `mpi`, else by PMI-1, PMI-2 or PMIx, as the launcher has it (`BELLWETHER_JOIN` chooses); else one rank alone.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] if a rank runs another executable or has other settings; [`Error::StartedApart`] if
    /// the surroundings say that this is one task of several, and it came up alone; [`Error::TimedOut`] if other tasks of
    /// mpirun or srun do not start within `BELLWETHER_JOIN_LIMIT`, without MPI.
    #[track_caller]
    pub fn start() -> Result<World> {
        Self::builder().start()
    }

    /// A world to be started with handlers or settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// This rank's number, from 0.
    #[inline]
    pub fn rank(&self) -> usize {
        self.engine.rank
    }

    /// Number of cores in the union of the CPU masks of this node's ranks. A launcher may have bound each rank to some of them.
    pub fn cores(&self) -> usize {
        self.engine.job.cores()
    }

    /// This rank's place among the ranks of its host, from 0, and how many those are: they share the host's cores.
    #[doc(hidden)]
    pub fn place_on_host(&self) -> (usize, usize) {
        let job = &self.engine.job;
        (job.place_here(self.engine.rank), job.ranks_here())
    }

    /// The node that a rank runs on, numbered from 0 in the order of the ranks. Ranks of a node share memory:
    /// collectives and aggregation send less between nodes than within one. Under mpirun and srun a node is a host (see the
    /// setting `BELLWETHER_HOST`); a simulated job has those of
    /// [`sim::Config::nodes`](crate::transport::sim::Config::nodes); any other is on one node.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`].
    #[track_caller]
    pub fn node_of(&self, rank: usize) -> Result<usize> {
        (|| -> Result<usize> {
            self.engine.check_rank(rank, "node_of")?;
            Ok(self.engine.nodes.of(rank))
        })()
        .placed_here()
    }

    /// How many nodes the job runs on.
    pub fn nodes(&self) -> usize {
        self.engine.nodes.count()
    }

    /// How many ranks there are.
    #[inline]
    pub fn size(&self) -> usize {
        self.engine.size
    }

    /// Delivers messages that have come, and sends those that had to wait. Returns how many. Never blocks, except that a handler that
    /// panics over a network first has its caller told, for at most 200 ms.
    ///
    /// # Errors
    /// What was wrong with a message that came in; [`Error::PeerLost`] if a rank died and nothing came;
    /// [`Error::HandlerPanicked`]; [`Error::Forked`], as of every call that waits or sends.
    #[inline]
    #[track_caller]
    pub fn poll(&self) -> Result<usize> {
        self.engine.placed(self.engine.poll_alive("polling"))
    }

    /// Waits until every rank has called this. Collective. Delivers messages meanwhile.
    ///
    /// The dissemination barrier of Hensgen, Finkel and Manber while each rank has a core, a central counter
    /// otherwise; `BELLWETHER_BARRIER` forces one.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died, or left without calling this; [`Error::RanksDiffer`] if a rank is in another collective call,
    /// or, where all ranks are mapped, got another result from a reduction before: see [`World::allreduce`]; [`Error::InsideHandler`]; [`Error::InvalidArgument`] in a
    /// function of an event, or an operator, that runs inside another collective call of this rank. The error of a message that
    /// came in is reported when the barrier is done, so that no rank is left behind in the barrier.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.enter_barrier(None)
    }

    /// As [`World::barrier`], for at most `limit`. After [`Error::TimedOut`] this rank has entered and the barrier is not done: call this,
    /// or [`World::barrier`], until it is. Before that every other collective call of the world, [`World::finish`] too, is
    /// [`Error::InvalidArgument`]; puts, messages, waits and calls of teams are not. Until this rank calls again others may be unable to
    /// leave, and puts after [`Error::TimedOut`] are not covered by this barrier. Other ranks may wait with another limit, or without.
    ///
    /// # Errors
    /// As [`World::barrier`], and [`Error::TimedOut`].
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Error;
    /// use std::time::Duration;
    ///
    /// bellwether::threads(3, |world| {
    ///     while let Err(error) = world.barrier_for(Duration::from_millis(5)) {
    ///         assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    ///         // Do something useful, then go on.
    ///     }
    /// })?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn barrier_for(&self, limit: Duration) -> Result<()> {
        self.enter_barrier(Some(limit))
    }

    #[inline]
    #[track_caller]
    fn enter_barrier(&self, limit: Option<Duration>) -> Result<()> {
        self.engine.at(|| {
            // Refuse a nested collective before it enters the barrier.
            let running = self.begin("barrier")?;
            if !self.barrier.is_unfinished() {
                self.messages.before_barrier();
            }
            self.exchange.barrier(&running, &self.engine, &self.barrier, limit)?;
            drop(running);
            self.engine.faults.take()
        })
    }

    /// Polls until `ready` holds, whatever makes it hold: a put, a message, or something outside the job.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died; [`Error::InsideHandler`]; on a simulated network, where nothing is outside the
    /// job, [`Error::Standstill`], as every other wait without a time limit.
    #[track_caller]
    pub fn wait_until(&self, ready: impl FnMut() -> bool) -> Result<()> {
        self.engine.at(|| self.engine.wait_outside("waiting", ready))
    }

    /// As [`World::wait_until`], for a condition that only other ranks can make true. Fails if all remaining ranks wait too. `doing`
    /// is for the error.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died, or if one has left and all others wait; as [`World::wait_until`].
    #[track_caller]
    pub fn wait_for_peers(&self, doing: &'static str, ready: impl FnMut() -> bool) -> Result<()> {
        self.engine.at(|| self.engine.wait_until(doing, None, ready))
    }

    /// Polls until `ready` holds, for at most `limit`.
    ///
    /// # Errors
    /// As [`World::wait_until`], and [`Error::TimedOut`].
    #[track_caller]
    pub fn wait_until_for(&self, limit: Duration, ready: impl FnMut() -> bool) -> Result<()> {
        self.engine.at(|| self.engine.wait_until("waiting", Some(limit), ready))
    }

    /// Time as [`World::wait_until_for`] counts it: since this rank started, or on a simulated network the virtual time
    /// since the network was made.
    pub fn elapsed(&self) -> Duration {
        self.pace().map_or_else(|| self.started.elapsed(), Pace::now)
    }

    /// Lets `time` pass without a poll, as a computation would. On a simulated network it is virtual.
    pub fn sleep(&self, time: Duration) {
        match self.pace() {
            Some(pace) => pace.pause(time),
            None => std::thread::sleep(time),
        }
    }

    /// Orders this rank's puts: puts before the fence are visible at all ranks before puts after it. Local where puts are
    /// stores; over a network it waits until they are done.
    ///
    /// This is the one statement of fence semantics: a put is visible at the target when a bell rung, a message
    /// sent, a barrier entered or a fence called after it is. Between two puts with none of these there is no order.
    ///
    /// A fence and a barrier also wait for gets and atomics in flight, also for those whose future was dropped.
    pub fn fence(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if let Err(error) = self.engine.quiet("fence") {
            self.engine.faults.keep(error);
        }
    }

    /// Sends `payload` to a handler registered with [`Builder::handler`]. The payload may be changed on return.
    /// The handler runs when the target polls or waits. Under backpressure this call polls until there is room. Two messages have
    /// no order, also to one rank.
    ///
    /// A handler cannot wait. Inside it, messages, puts and rings that find no room are kept and sent later. A rank keeps
    /// `BELLWETHER_MESSAGE_MEMORY` bytes in all; beyond that these calls fail with [`Error::WouldBlock`], whichever rank they are for. A put
    /// with a bell may then have stored its bytes.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::PeerLost`]; [`Error::OutOfMemory`] for a message that can never fit; inside a handler
    /// [`Error::WouldBlock`].
    #[inline]
    #[track_caller]
    pub fn send(&self, to: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        self.messages.send_to_handler(to, handler, payload).placed_here()
    }

    /// Largest payload of [`World::send`], and of the serialized arguments of a closure, in bytes.
    pub fn largest_message(&self) -> usize {
        self.engine.largest_message().saturating_sub(16)
    }

    /// The settings of this rank.
    pub fn settings(&self) -> &Settings {
        &self.engine.settings
    }

    /// Runs a closure that captures nothing at rank `to`, with `arguments` by serde. There is no answer.
    ///
    /// It runs when the target polls or waits. A closure that captures does not compile, unless what it captures has no
    /// bytes: a captured zero-sized value is recreated at the target, so do not capture a guard of a process-local resource.
    ///
    /// ```compile_fail
    /// # use bellwether_runtime as bellwether;
    /// # fn f(world: &bellwether::World) -> bellwether::Result<()> {
    /// let captured = 5;
    /// world.invoke(0, (), move |_, ()| println!("{captured}"))
    /// # }
    /// # bellwether::threads(1, |world| f(world)).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`World::send`]; [`Error::InvalidArgument`] if the arguments cannot be serialised.
    #[track_caller]
    pub fn invoke<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.messages.invoke(to, &arguments, function).placed_here()
    }

    /// As [`World::invoke`], with plain-old-data arguments: up to 48 bytes travel in one cache line, and nothing is
    /// allocated.
    #[track_caller]
    pub fn invoke_plain<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: PlainData,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.messages.invoke_plain(to, arguments, function).placed_here()
    }

    /// Runs a closure that captures nothing at rank `to`, and gives a handle to its result.
    ///
    /// If the closure panics, the result is [`Error::HandlerPanicked`], at once. At the target the panic comes out of the call in
    /// which the closure ran: a target that does not catch it ends, one that does can go on, and finish.
    ///
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(2, |world| {
    ///     let call = world.call(1, (20u32, String::from("!")), |ctx, (n, s)| format!("{}{s}", n + 1 + ctx.rank() as u32))?;
    ///     assert_eq!(call.wait()?, "22!");
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`World::invoke`]. Errors at the target come from [`Call::wait`].
    #[track_caller]
    pub fn call<A, R, F>(&self, to: usize, arguments: A, function: F) -> Result<Call<R>>
    where
        A: Serialize + DeserializeOwned,
        R: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) -> R + Copy + Send + 'static,
    {
        self.messages.call(to, &arguments, function).placed_here()
    }

    /// As [`World::call`], with plain-old-data arguments and result.
    #[track_caller]
    pub fn call_plain<A, R, F>(&self, to: usize, arguments: A, function: F) -> Result<Call<R>>
    where
        A: PlainData,
        R: PlainData,
        F: Fn(&Context<'_>, A) -> R + Copy + Send + 'static,
    {
        self.messages.call_plain(to, arguments, function).placed_here()
    }

    /// Attaches a value that handlers and remote closures of this rank find by its type ([`Context::state`]).
    pub fn set_state<T: 'static>(&self, value: T) {
        self.messages.set_state(value);
    }

    /// The value attached with [`World::set_state`].
    pub fn state<T: 'static>(&self) -> Option<Rc<T>> {
        self.messages.state()
    }

    /// Waits until every rank has called this and every message has been delivered, those sent by handlers
    /// included, and leaves. Collective.
    ///
    /// In a world that was started to [survive](Builder::survive) this is collective over the ranks that live. It waits for no rank that is
    /// gone, and is no error because of one: [`World::survivors`] before it tells of deaths. It compares no team's last calls there.
    ///
    /// # Errors
    /// As [`World::barrier`].
    #[track_caller]
    pub fn finish(self) -> Result<()> {
        self.last_barrier()
    }

    /// The steps of [`World::finish`] before it leaves.
    #[track_caller]
    pub(crate) fn last_barrier(&self) -> Result<()> {
        let survives = self.engine.settings.survive;
        self.engine.at(|| if survives { self.finish_surviving() } else { self.finish_together() })
    }

    fn finish_together(&self) -> Result<()> {
        let running = self.begin("leaving")?;
        self.engine.job.begin_to_leave(self.engine.rank);
        let teams = self.settle_within(&running)?;
        let outcome = self.engine.faults.take();
        if last::may_differ(teams) {
            self.compare_teams(&running, teams)?;
        }
        outcome
    }

    /// Waits until every rank has called this and every message has been delivered, as [`World::finish`] does, and stays. Collective. Errors of
    /// messages are left to later calls.
    ///
    /// # Errors
    /// As [`World::barrier`].
    pub(crate) fn settle(&self) -> Result<()> {
        let running = self.begin("settling")?;
        self.settle_within(&running).map(drop)
    }

    /// Also adds up what all ranks' teams did last.
    fn settle_within(&self, running: &Running<'_>) -> Result<last::Sums> {
        // All messages have arrived, and so have those that their handlers sent, when two polls in turn find as many
        // delivered as sent, and no more the second time (Mattern's four counters, 1987).
        let mut before = None;
        loop {
            // Messages that a context has accepted are counted, and may need the context's progress to reach their target.
            self.engine.quiet_contexts("leaving")?;
            self.engine.wait_together("leaving", || {
                !self.engine.outbox.any() && self.messages.has_no_landings() && self.messages.is_settled()
            })?;
            let ([sent, delivered], teams) = (self.messages.traffic(), self.sums_of_teams());
            let mine: Vec<u64> = [sent, delivered].into_iter().chain(teams).collect();
            let mut sums = [0u64; 6];
            self.exchange_within(
                running,
                (Kind::Finish, Wanted::Sum),
                bytemuck::cast_slice(&mine),
                |_, theirs: &[u8]| {
                    let theirs = bytemuck::pod_read_unaligned::<[u64; 6]>(theirs);
                    sums.iter_mut().zip(theirs).for_each(|(sum, theirs)| *sum = sum.wrapping_add(theirs));
                },
            )?;
            let [sent, delivered, teams @ ..] = sums;
            let is_same = before.replace([sent, delivered]) == Some([sent, delivered]);
            if sent == delivered && is_same {
                return Ok(teams);
            }
            // A connection that is lost may have lost messages that are counted: the sums would differ for ever. The others are told
            // when this rank leaves.
            if is_same {
                self.engine.check_none_lost("leaving")?;
            }
            // Messages that are still on a network need time to arrive, also if no rank waits for another.
            self.engine.idle_poll();
        }
    }

    /// Ends the whole job: tells all ranks that this one failed and exits with `code`. A forked child only ends itself.
    pub fn abort(&self, code: i32, why: &str) -> ! {
        eprintln!("rank {}: {why}", self.rank());
        if !self.engine.is_own() {
            std::process::exit(code);
        }
        self.engine.job.mark_lost(self.engine.rank, Loss::Exited(code));
        if let Some(hosts) = &*self.hosts {
            hosts.leave();
        }
        std::process::exit(code)
    }

    /// The virtual clock, if there is one.
    fn pace(&self) -> Option<&dyn Pace> {
        self.engine.networks.pace()
    }

    pub(crate) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    pub(crate) fn messages(&self) -> &Rc<Messages> {
        &self.messages
    }

    /// Begins a collective call, in which this rank makes no other until the returned guard is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] inside a collective call; [`Error::InsideHandler`].
    fn begin(&self, doing: &'static str) -> Result<Running<'_>> {
        let running = self.barrier.begin(&self.engine, doing)?;
        if self.exchange.may_leave() {
            self.exchange.finish_left(&running, &self.engine, &self.barrier)?;
        }
        Ok(running)
    }

    /// # Errors
    /// Those of a collective call that cannot begin here: [`Error::InvalidArgument`] inside another one; [`Error::InsideHandler`].
    pub(crate) fn check_may_begin(&self, doing: &'static str) -> Result<()> {
        self.barrier.begin(&self.engine, doing).map(drop)
    }

    /// Contributes `bytes` and passes the wanted contributions to `see`, as a part of the collective call `running`. Collective; all
    /// contributions have the same length.
    fn exchange_within(
        &self,
        running: &Running<'_>,
        (asked, wanted): (impl Into<Asked>, Wanted),
        bytes: &[u8],
        see: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        self.exchange_all(running, (asked.into(), wanted), &mut Shown(bytes, see))
    }

    /// The same, with the contribution of `see`.
    fn exchange_all(&self, running: &Running<'_>, asked: (Asked, Wanted), see: &mut dyn See) -> Result<()> {
        self.messages.before_barrier();
        self.exchange.all(running, &self.engine, &self.barrier, asked, see)
    }
}

impl World {
    /// Gives up the copy of a world that a forked child has: nothing of it may be ended, since connections to a device and
    /// to other hosts are the parent's, and its threads are not here.
    #[cold]
    fn forget(&mut self) {
        std::mem::forget((Rc::clone(&self.engine), Rc::clone(&self.messages)));
        std::mem::forget(self.hosts.take());
        // A copy's last word would be taken for the parent's.
        std::mem::forget(self.session.take());
        #[cfg(feature = "mpi")]
        std::mem::forget(self.mpi.take());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.engine.is_own() {
            return self.forget();
        }
        // Messages that found no room still go out, as long as the targets take them.
        let mut panic = None;
        if !std::thread::panicking() {
            let limit = Duration::from_secs(1);
            let wait = || self.engine.wait_together_for("leaving", limit, || self.engine.has_sent_all());
            match catch_unwind(AssertUnwindSafe(wait)) {
                Err(caught) => panic = Some(caught),
                Ok(Err(error)) if !self.engine.has_sent_all() => {
                    tracing::warn!(rank = self.engine.rank, %error, "the rank left before all of its messages were sent");
                }
                Ok(_) => {}
            }
        }
        if std::thread::panicking() || panic.is_some() {
            self.engine.unwind();
            self.engine.await_first_panic();
            self.engine.job.mark_lost(self.engine.rank, Loss::Panicked);
        } else {
            // After `finish` no rank is missed: all have agreed to leave.
            if !self.engine.job.is_leaving(self.engine.rank) {
                self.engine.miss_suspect();
            }
            self.barrier.leave(&self.engine);
            self.exchange.show_end(&self.engine, &self.barrier);
            self.engine.job.leave(self.engine.rank);
            if let Some(error) = self.exchange.compare_ends(&self.engine, &self.barrier) {
                self.engine.job.tell_at_end(self.engine.rank, error);
            }
        }
        self.engine.networks.notify_all();
        // Another host may report a failed rank during this wait. Then skip MPI_Finalize: it would wait for that rank.
        drop(self.hosts.take());
        if let Some(session) = &mut *self.session {
            if let Some(missed) = self.engine.job.first_missed() {
                session.note_missed(missed);
            }
            if self.engine.job.panicked_later(self.engine.rank) {
                session.note_gave_up();
            }
        }
        #[cfg(feature = "mpi")]
        if let Some(session) = &mut *self.mpi
            && self.engine.job.any_lost()
        {
            session.abandon();
        }
        // A panic of a handler or event callback that ran in the wait above.
        if let Some(panic) = panic {
            resume_unwind(panic)
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(rank {} of {})", self.rank(), self.size())
    }
}

/// Error for a setting or argument that differs between ranks.
pub(crate) fn differ(what: &'static str, rank: usize, theirs: u64, ours: u64, advice: &'static str) -> Error {
    Error::RanksDiffer { what, rank, reference: 0, theirs: theirs.to_string(), ours: ours.to_string(), advice }
}
