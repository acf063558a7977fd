//! A process of a job: its life cycle, its configuration, and what it knows of the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::codes;
use super::collective::{Differ, Kind, Round};
use super::config::{Config, PRINT_MAX};
use super::groups::Group;
use super::monitor::{Held, Monitor, Partner};
use super::print::print;
use super::queues::Queue;
use super::shared::Shared;
use super::state::{State, kind};
use super::statistics::Statistics;
use super::types::{Code, GROUP_ALL, NetworkType, QueueId, Rank, Result, State as Health, Timeout};
use crate::error::{Error, Result as RuntimeResult};
use crate::hash::mix;
use crate::world::{Builder, World};

/// Begins the digest that names the collective of `proc_init`. No group has it.
const INIT: u64 = 0x6761_7370;

/// This process in a job. Every call may be made from every thread, and by several at a time.
///
/// [`Process::start`] joins the job; [`Process::proc_init`] begins the working phase, and [`Process::proc_term`] ends it; there may be several
/// one after the other. The return codes of the calls of GASPI are the errors of the results here, with the same numbers: [`codes`].
///
/// # Examples
/// Rank 0 writes to rank 1, which waits for the notification.
/// ```
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// use bellwether::Threads;
/// use bellwether::gaspi::{Code, GROUP_ALL, Note, Part, Process, Timeout::Block};
///
/// Threads::new(2).build(|builder| {
///     let process = Process::start(builder).expect("starts");
///     process.proc_init(Block)?;
///     process.segment_create(0, 1024, GROUP_ALL, Block)?;
///     if process.proc_rank()? == 0 {
///         process.segment_write(0, 0, b"hello")?;
///         let part = Part { local: (0, 0), remote: (0, 100), size: 5 };
///         process.write_notify(part, 1, Note { segment: 0, id: 7, value: 1 }, 0, Block)?;
///         process.wait(0, Block)?;
///     } else {
///         assert_eq!(process.notify_waitsome(0, 0, 10, Block)?, Some(7));
///         assert_eq!(process.notify_reset(0, 7)?, 1);
///         let mut came = [0; 5];
///         process.segment_read(0, 100, &mut came)?;
///         assert_eq!(&came, b"hello");
///     }
///     process.barrier(GROUP_ALL, Block)?;
///     process.proc_term(Block)?;
///     process.finish().expect("finishes");
///     Ok(())
/// })?.into_iter().collect::<Result<(), Code>>().expect("no code");
/// # Ok::<(), bellwether::Error>(())
/// ```
pub struct Process {
    /// Before the world, which its queues are contexts of.
    shared: LastOwner,
    pub(super) monitor: Monitor,
    rank: usize,
    size: usize,
    has_network: bool,
    network_type: NetworkType,
}

/// The last owner of the state that threads share.
struct LastOwner(Arc<Shared>);

impl Drop for LastOwner {
    fn drop(&mut self) {
        drop(self.0.take_queues());
    }
}

impl Process {
    /// Joins the job that `builder` describes, as [`Builder::start`] does. Collective.
    ///
    /// # Errors
    /// As [`Builder::start`]; [`Error::InvalidArgument`] if the builder has handlers, which would run on any thread, and for a job of more
    /// than 65,535 ranks.
    pub fn start(builder: Builder) -> RuntimeResult<Process> {
        const NAME: &str = "starting a GASPI process";
        if builder.has_handlers() {
            let why = "the builder has handlers; GASPI has none".into();
            return Err(Error::InvalidArgument { operation: NAME, why });
        }
        let world = builder.start_unplaced()?;
        let (rank, size) = (world.rank(), world.size());
        if size > usize::from(Rank::MAX) {
            let why = format!("the job has {size} ranks, and GASPI numbers 65,535 at most");
            return Err(Error::InvalidArgument { operation: NAME, why });
        }
        let engine = world.engine();
        // In virtual time nothing comes meanwhile.
        let spins = if engine.networks.pace().is_some() { 0 } else { engine.waiting.patience().spins };
        let shared = Arc::new(Shared::new(size, !engine.routes.all_mapped(), spins));
        let has_network = !engine.networks.is_empty();
        let network_type = match &*engine.networks.names() {
            "" | "shared memory by the contract" => NetworkType::Memory,
            "TCP" => NetworkType::Ethernet,
            "verbs" => NetworkType::Rdma,
            _ => NetworkType::Other,
        };
        let state = State::new(&world, Arc::clone(&shared));
        Ok(Process {
            shared: LastOwner(shared),
            monitor: Monitor::new(world, state),
            rank,
            size,
            has_network,
            network_type,
        })
    }

    /// Leaves the job, when all processes have called this. Collective.
    ///
    /// # Errors
    /// As [`World::finish`].
    pub fn finish(self) -> RuntimeResult<()> {
        let (parent, child) = (self.monitor.process(), std::process::id());
        if parent != child {
            // The thread that makes progress is the parent's: nobody joins it here.
            return Err(Error::Forked { operation: "leaving a GASPI job", rank: self.rank, parent, child });
        }
        let Process { monitor, shared, .. } = self;
        drop(shared);
        let Some((world, arrivals)) = monitor.into_world() else { return Ok(()) };
        let outcome = World::finish(world);
        arrivals.print_all();
        outcome
    }

    /// The state that threads use without the world.
    #[inline(always)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared.0
    }

    /// This process's number and how many there are, in every phase.
    pub fn place(&self) -> (usize, usize) {
        (self.rank, self.size)
    }

    /// Whether the job has a network. Without one, processes reach each other by mapped memory alone, and atomic operations there do not take
    /// the lock of the process.
    pub fn has_network(&self) -> bool {
        self.has_network
    }

    /// The network that carries requests to processes whose memory is not mapped, in every phase.
    pub fn network_type(&self) -> NetworkType {
        self.network_type
    }

    /// Counters of the requests that this process has posted, in every phase.
    pub fn statistics(&self) -> &Statistics {
        &self.shared().statistics
    }

    /// The configuration that is set, or in use.
    ///
    /// # Errors
    /// [`codes::ERROR`] on another thread on a simulated network.
    pub fn config_get(&self) -> Result<Config> {
        Ok(self.monitor.enter()?.state.config)
    }

    /// Sets the configuration.
    ///
    /// # Errors
    /// [`codes::INITED`] in the working phase; [`codes::CONFIG`].
    pub fn config_set(&self, config: Config) -> Result<()> {
        let state = &mut self.monitor.enter()?.state;
        if state.works || state.starts || state.ends {
            return Err(Code(codes::INITED));
        }
        config.check()?;
        state.config = config;
        Ok(())
    }

    /// As [`Process::config_set`], but a start with the same configuration that has begun goes on.
    pub(super) fn config_resume(&self, config: Config) -> Result<()> {
        let resumes = {
            let state = &self.monitor.enter()?.state;
            state.starts && !state.works && state.config == config
        };
        if resumes { Ok(()) } else { self.config_set(config) }
    }

    /// Begins the working phase, when all processes have called this. Collective; resumable.
    ///
    /// # Errors
    /// [`codes::INITED`] in the working phase; [`codes::TIMEOUT`]; [`codes::CONFIG`] at all processes if their configurations differ;
    /// [`codes::ERROR`] if a process is lost.
    pub fn proc_init(&self, timeout: Timeout) -> Result<()> {
        let all: Vec<usize> = (0..self.size).filter(|rank| *rank != self.rank).collect();
        let mut entered = self.monitor.enter()?;
        let Held { state, .. } = &mut *entered;
        if state.works || state.ends {
            return Err(Code(codes::INITED));
        }
        if !state.starts {
            state.starts = true;
            let life = state.arrivals.life.get() + 1;
            state.arrivals.life.set(life);
            // Of the life cycle before, come since its end.
            state.arrivals.passive.take();
            state.arrivals.registered.take();
            self.shared().forget_registered();
            let digest = crate::hash::of(format!("{:?}", state.config).as_bytes());
            let round = Round::new(mix(INIT, life), Kind::Commit, 0, [self.rank, self.size], &digest.to_ne_bytes());
            let ranks = (0..self.size).map(|rank| rank as Rank).collect();
            state.groups.insert(GROUP_ALL, Group::starting(ranks, self.rank, life, round));
        }
        drop(entered);
        let shared = self.shared();
        let outcome = self.monitor.wait("proc_init", timeout, &Partner::Ranks(&all), |world, state| {
            // Another thread has ended it.
            if state.works {
                return Some(Err(Code(codes::INITED)));
            }
            if !state.starts {
                return Some(Err(Code(codes::ERROR)));
            }
            let State { groups, arrivals, .. } = state;
            let group = groups.get_mut(&GROUP_ALL)?;
            let same = |mine: &mut [u8], theirs: &[u8]| if mine == theirs { Ok(()) } else { Err(Differ) };
            let outcome = group.advance(Kind::Commit, world, arrivals, same)?;
            state.starts = false;
            if outcome.is_err() {
                state.groups.clear();
                return Some(Err(Code(codes::CONFIG)));
            }
            state.works = true;
            let config = state.config;
            let open = |id| shared.make_queue(id, || Queue::new(world, config));
            let opened = (0..config.queue_num as QueueId).try_for_each(open).and_then(|()| {
                // Where there is a network, atomic operations may be the network's.
                if self.has_network { Ok(()) } else { shared.open_atomics(|| Queue::new(world, config)) }
            });
            if opened.is_err() {
                state.works = false;
                drop(shared.take_queues());
            } else {
                shared.begin_phase();
            }
            Some(opened)
        });
        if outcome.is_err_and(|code| !code.is_timeout()) {
            let state = &mut self.monitor.enter()?.state;
            // The next call begins anew.
            if !state.works {
                state.starts = false;
                state.groups.clear();
            }
        }
        outcome
    }

    /// Ends the working phase of this process: its segments, queues and groups are gone. Waits for no other process, but for those that
    /// have something in flight to its segments, and for those that its queues have something in flight to. A barrier before it is the
    /// program's duty. Resumable: after [`codes::TIMEOUT`] the working phase is over for all other calls, and the next one begins when
    /// this call has returned something else.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::TIMEOUT`]; [`codes::ERROR`] if a segment cannot be closed.
    pub fn proc_term(&self, timeout: Timeout) -> Result<()> {
        let begun = self.begin_term();
        if begun == Err(Code(codes::NOINIT)) {
            return begun;
        }
        let ended = self.monitor.wait("proc_term", timeout, &Partner::None, |_, state| {
            if !state.ends {
                // Another thread has ended it.
                return Some(Err(Code(codes::NOINIT)));
            }
            let closing: Vec<_> = state.closing.keys().copied().collect();
            // Each of them makes progress.
            let left = closing.into_iter().filter(|segment| !state.close(*segment)).count();
            let is_over = state.retire(None) && left == 0;
            state.ends = !is_over;
            is_over.then_some(Ok(()))
        });
        if let Err(Code(codes::ERROR)) = ended
            && let Ok(mut entered) = self.monitor.enter()
        {
            entered.state.ends = false;
        }
        begun.and(ended)
    }

    /// The part of [`Process::proc_term`] that does not wait.
    fn begin_term(&self) -> Result<()> {
        let mut entered = self.monitor.enter()?;
        let Held { state, .. } = &mut *entered;
        if state.ends {
            return Ok(());
        }
        state.check_works()?;
        (state.works, state.ends) = (false, true);
        self.shared().phase.store(0, Ordering::Relaxed);
        for (id, queue) in self.shared().take_queues().into_iter().enumerate() {
            state.retired.push((Some(id as QueueId), queue));
        }
        state.groups.clear();
        state.commits.clear();
        state.atomics.clear();
        state.look_ups.clear();
        state.arrivals.registered.take();
        self.shared().forget_registered();
        state.sends.clear();
        state.arrivals.passive.take();
        let mut outcome = Ok(());
        for (id, segment) in std::mem::take(&mut state.segments) {
            outcome = self.end_segment(state, id, segment).and(outcome);
        }
        outcome
    }

    /// Whether this process is in the working phase.
    ///
    /// # Errors
    /// As [`Process::config_get`].
    pub fn initialized(&self) -> Result<bool> {
        Ok(self.monitor.enter()?.state.works)
    }

    /// This process's number, from 0.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn proc_rank(&self) -> Result<Rank> {
        self.in_work(|_| self.rank as Rank)
    }

    /// How many processes there are.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn proc_num(&self) -> Result<Rank> {
        self.in_work(|_| self.size as Rank)
    }

    /// This process's number on its host, from 0, and how many processes are there.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn proc_local(&self) -> Result<(Rank, Rank)> {
        let held = &*self.monitor.enter()?;
        held.state.check_works()?;
        let (rank, size) = held.world.place_on_host();
        Ok((rank as Rank, size as Rank))
    }

    /// Milliseconds since this process joined the job.
    ///
    /// # Errors
    /// As [`Process::config_get`].
    pub fn time_get(&self) -> Result<f64> {
        Ok(self.elapsed()?.as_secs_f64() * 1e3)
    }

    /// Time since this process joined the job.
    pub(super) fn elapsed(&self) -> Result<Duration> {
        Ok(self.monitor.enter()?.world.elapsed())
    }

    /// This process's knowledge of each process: a failed operation with a process makes that [`Health::Corrupt`].
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn state_vec_get(&self) -> Result<Vec<Health>> {
        self.in_work(|state| state.shared.states())
    }

    /// Whether a process lives. A lost one is [`Health::Corrupt`] from then on.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::ERROR`] if it is lost.
    pub fn proc_ping(&self, rank: Rank) -> Result<()> {
        let Held { state, world } = &mut *self.monitor.enter()?;
        state.check_works()?;
        state.check_partner(world, rank).map(drop)
    }

    /// Ends another process at once, as SIGKILL does. Complete when this process knows that it is gone; resumable. A process of another host
    /// ends when it makes progress; a thread of the runtime there does that.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`], also for the own rank; [`codes::TIMEOUT`]; [`codes::ERROR`] if the system does not allow it, and
    /// if the two are threads of one process.
    pub fn proc_kill(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        let victim = usize::from(rank);
        {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            if victim == self.rank || victim >= self.size {
                return Err(Code(codes::INV_RANK));
            }
            state.kill(world, victim)?;
        }
        self.monitor.wait("proc_kill", timeout, &Partner::None, |world, _| {
            world.engine().job.loss(victim).is_some().then_some(Ok(()))
        })
    }

    /// Prints a text at the standard output of another process, which need not make a call: GPI-2's `gaspi_printf_to`. Does not wait. A
    /// thread of that process prints the text; if the standard output there takes nothing while many texts come, some are dropped, and the
    /// log reports that.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_SIZE`] for more than [`PRINT_MAX`](super::PRINT_MAX) bytes; [`codes::QUEUE_FULL`] if
    /// the process takes no messages, and `BELLWETHER_MESSAGE_MEMORY` bytes wait to be sent; [`codes::ERROR`] if it is lost.
    pub fn print_to(&self, rank: Rank, text: &[u8]) -> Result<()> {
        {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            if text.len() > PRINT_MAX {
                return Err(Code(codes::INV_SIZE));
            }
            let to = state.check_partner(world, rank)?;
            if to != self.rank {
                return state.tell_if_room(world, to, kind::PRINT, text);
            }
        }
        // Without the lock of the process.
        print(text);
        Ok(())
    }

    /// Reads something of the state in the working phase.
    pub(super) fn in_work<R>(&self, read: impl FnOnce(&State) -> R) -> Result<R> {
        let held = &*self.monitor.enter()?;
        held.state.check_works()?;
        Ok(read(&held.state))
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({} of {})", self.rank, self.size)
    }
}
