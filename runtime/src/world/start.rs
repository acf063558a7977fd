//! Starting a world: joining the job's memory, arriving, and checking that all ranks agree.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::allocate::Allocator;
use super::heaps::Heaps;
use super::{OneThread, World};
use crate::bootstrap::{self, Way};
use crate::engine::{Engine, Mapping, Pace, RemoteAccess, Surroundings, open_networks};
use crate::error::{Error, Loss, Placed, Result};
use crate::hash;
use crate::membership::nodes::Nodes;
use crate::membership::{Arrival, JobMemory};
use crate::memory::layout::SlotLayout;
use crate::memory::node::{NodeMemory, Slots};
use crate::memory::segments::Table;
use crate::message::code::build_digest;
use crate::message::{Context, HandlerFn, HandlerId, Messages};
use crate::settings::{HugePages, Join, Settings, Transport};
use crate::team::everyone::Barrier;
use crate::team::exchange::Exchange;
use crate::transport::providers::Setup;
use crate::transport::shm;

/// A world to be started: its handlers and settings.
pub struct Builder {
    handlers: Vec<(String, usize, HandlerFn)>,
    settings: Option<Settings>,
    place: Option<MappedRank>,
    /// The function that opens the networks, if the settings do not choose them.
    networks: Option<Opener>,
    open: bool,
    ranks: Option<usize>,
    start: Option<StartBy>,
    nodes: Nodes,
    /// Ranks of one node map each other's memory, though the networks reach all.
    shares: bool,
    /// Network devices may do atomics: those of all hosts are of one kind.
    device_atomics: bool,
    static_data: bool,
    survive: bool,
}

/// How the program wants its ranks to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartBy {
    /// As copies of the program on this machine, which share memory.
    Copies,
    /// By MPI.
    Mpi,
}

/// Opens the networks of a job.
pub(super) type Opener = Box<dyn FnOnce(Surroundings<'_>) -> Result<Opened>>;

/// The networks of a job, none where all memory is mapped, and what passes the time where that is not the clock.
#[derive(Default)]
pub(super) struct Opened {
    pub(super) networks: Vec<Box<dyn RemoteAccess>>,
    pub(super) pace: Option<Box<dyn Pace + Send>>,
}

/// A rank of a job whose memory is at hand.
#[derive(Debug, Clone)]
pub(super) struct MappedRank {
    pub(super) rank: usize,
    pub(super) job: Arc<JobMemory>,
    pub(super) node: Arc<NodeMemory>,
}

impl MappedRank {
    pub(super) fn of(rank: usize, job: JobMemory, settings: &Settings) -> Result<MappedRank> {
        let node = NodeMemory::map(job.fd(), Slots::of(&job, settings.huge_pages == HugePages::Auto))
            // Those that wait for this rank must hear it, also where no parent watches.
            .inspect_err(|_| job.mark_lost(rank, Loss::Unknown))?;
        Ok(MappedRank { rank, job: Arc::new(job), node: Arc::new(node) })
    }

    /// How every slot is laid out.
    pub(super) fn layout(&self, settings: &Settings) -> SlotLayout {
        let (ranks, here) = (self.job.ranks(), self.job.ranks_here());
        SlotLayout::new(ranks, here, 1 << self.job.stride_log2(), settings.lane_depth)
    }

    /// Commits the control area, and makes static data symmetric if that is asked for and not done yet. `shared`: there may be
    /// other threads, which leave static variables alone.
    pub(super) fn prepare(&self, settings: &Settings, shared: bool) -> Result<()> {
        let (layout, MappedRank { rank, job, node }) = (self.layout(settings), self);
        let control = layout.control_len.next_multiple_of(node.granule(0));
        node.note_rank(*rank);
        node.commit(*rank, 0, control, job.ranks_here(), "memory to start", "")?;
        if *rank == 0 && job.ranks_here() == job.ranks() {
            let end = layout.gathered(0, job.ranks()).next_multiple_of(4096);
            node.commit(0, layout.gathered(0, 0), end, 1, "memory to start", "")?;
        }
        let table = Table::new(node, &layout, *rank);
        if settings.static_data && table.statics().1 == 0 {
            let laid = node.lay_statics(*rank, layout.statics, layout.statics_len, shared);
            let statics = laid.inspect_err(|_| job.mark_lost(*rank, Loss::Unknown))?;
            table.show_statics(statics.start, statics.len);
        }
        Ok(())
    }
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder {
            handlers: Vec::new(),
            settings: None,
            place: None,
            networks: None,
            open: false,
            ranks: None,
            start: None,
            nodes: Nodes::default(),
            shares: false,
            device_atomics: true,
            static_data: false,
            survive: false,
        }
    }

    pub(super) fn at(place: MappedRank, settings: Settings) -> Builder {
        Builder { place: Some(place), settings: Some(settings), ..Builder::new() }
    }

    pub(super) fn over(self, networks: Opener, nodes: Nodes, shares: bool) -> Builder {
        Builder { networks: Some(networks), nodes, shares, ..self }
    }

    pub(super) fn on(self, nodes: Nodes) -> Builder {
        Builder { nodes, ..self }
    }

    pub(super) fn with_device_atomics(self, device_atomics: bool) -> Builder {
        Builder { device_atomics, ..self }
    }

    /// Uses these settings instead of the environment's.
    pub fn settings(mut self, settings: Settings) -> Builder {
        self.settings = Some(settings);
        self
    }

    /// Starts this many ranks as copies of this program, if it was started by itself. `BELLWETHER_RANKS` wins.
    pub fn ranks(mut self, ranks: usize) -> Builder {
        self.ranks = Some(ranks);
        self
    }

    /// Makes the executable's static data symmetric memory: peers on the same node reach static variables by loads and
    /// stores, and those of other hosts by the network, at the variables' own addresses ([`World::put_address`]). Every rank
    /// says so, or none. `BELLWETHER_STATIC_DATA=on` does the same.
    ///
    /// The world has to start before the program has other threads. Variables of shared libraries and thread-locals stay
    /// private. A forked child gets a private copy. Linux only. [`Builder::start`] fails with [`Error::InvalidArgument`] where
    /// ranks are threads, which share their variables; with [`Error::Start`] where there are other threads. Under mpirun and srun,
    /// where MPI or PMIx has threads of its own, nobody looks for them: what another thread of the program writes to a static variable during the start is lost.
    pub fn static_data(mut self) -> Builder {
        self.static_data = true;
        self
    }

    /// Lets the ranks go on after the death of another, by [`World::survivors`]. Every rank says so, or none. A launcher of ours then ends
    /// no other rank because a rank died. `BELLWETHER_SURVIVE=on` and `bellwether run --survive` do the same. The start of a job of
    /// several hosts then fails with [`Error::InvalidArgument`].
    pub fn survive(mut self) -> Builder {
        self.survive = true;
        self
    }

    /// Starts the ranks in this way, or not at all.
    pub(crate) fn start_by(mut self, start: StartBy) -> Builder {
        self.start = Some(start);
        self
    }

    /// The way that the surroundings and the program together choose.
    fn way(&self, join: Join) -> Result<Way> {
        let way = bootstrap::way(self.ranks, join)?;
        let refused = |why: &str| Err(Error::InvalidArgument { operation: "setup", why: why.into() });
        match (self.start, way) {
            #[cfg(feature = "mpi")]
            (Some(StartBy::Copies), Way::Mpi) => {
                refused("-shmem: mpirun or srun started this program; leave them out, or say -mpi")
            }
            (Some(StartBy::Copies), Way::Launched(_)) => {
                refused("-shmem: mpirun or srun started this program; leave them out, or say -mpi")
            }
            (Some(StartBy::Mpi), Way::Launched(kind)) => Ok(Way::Launched(kind)),
            (Some(StartBy::Mpi), Way::Alone) if bootstrap::is_launched(join) => Ok(Way::Alone),
            #[cfg(feature = "mpi")]
            (Some(StartBy::Mpi), Way::Alone | Way::Mpi) => Ok(Way::Mpi),
            #[cfg(not(feature = "mpi"))]
            (Some(StartBy::Mpi), _) => {
                refused("-mpi: built without the feature `mpi`, and neither mpirun nor srun started this program")
            }
            #[cfg(feature = "mpi")]
            (Some(StartBy::Mpi), _) => refused(
                "-mpi: the contexts are copies of the program (-np, BELLWETHER_RANKS or `bellwether run`); use mpirun",
            ),
            (_, way) => Ok(way),
        }
    }

    /// Leaves the handler table open, for vocabularies that register after the start.
    pub(crate) fn open_table(mut self) -> Builder {
        self.open = true;
        self
    }

    /// Registers what runs when a message for this handler arrives. The number is the same on every rank, so every
    /// rank registers the same handlers in the same order; [`Builder::start`] checks it.
    pub fn handler<F>(&mut self, name: &str, handler: F) -> HandlerId
    where
        F: Fn(&Context<'_>, &[u8]) + 'static,
    {
        // A function pointer is a value: its type says nothing about which function it is.
        let code = match (&handler as &dyn Any).downcast_ref::<fn(&Context<'_>, &[u8])>() {
            Some(pointer) => *pointer as usize,
            None => call::<F> as fn(&F, &Context<'_>, &[u8]) as usize,
        };
        self.add_handler(name, code, Rc::new(handler))
    }

    /// Whether a handler was registered.
    pub(crate) fn has_handlers(&self) -> bool {
        !self.handlers.is_empty()
    }

    /// Adds a handler to the table. `code` is what makes it the same on another rank.
    pub(super) fn add_handler(&mut self, name: &str, code: usize, handler: HandlerFn) -> HandlerId {
        let number = self.handlers.len() as u32;
        self.handlers.push((name.into(), code, handler));
        HandlerId(number)
    }

    /// Starts the world; see [`World::start`]. Collective.
    ///
    /// # Errors
    /// As [`World::start`]; [`Error::RanksDiffer`] if a rank registered other handlers.
    #[track_caller]
    pub fn start(self) -> Result<World> {
        self.start_unplaced().placed()
    }

    /// As [`Builder::start`]; errors name no line, as a vocabulary's program did not call this.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub(crate) fn start_unplaced(self) -> Result<World> {
        let settings = self.chosen_settings();
        if let Some(place) = &self.place {
            let settings = settings?;
            if settings.static_data {
                return Err(Error::InvalidArgument {
                    operation: "starting with symmetric static data",
                    why: "ranks that are threads share their static variables; start ranks as processes".into(),
                });
            }
            let place = place.clone();
            return self.enter(place, settings);
        }
        // A rank without valid settings meets the others too: they would wait for it.
        let join = settings.as_ref().map_or_else(|_| Settings::joining_from_env().join, |settings| settings.join);
        let way = match self.way(join) {
            Ok(way) => way,
            Err(error) => return Err(settings.err().unwrap_or(error)),
        };
        let settings = settings.map(|settings| match self.start {
            Some(StartBy::Copies) => Settings { transport: Transport::Auto, ..settings },
            _ => settings,
        });
        match way {
            Way::Spawned { rank, job } => {
                let settings = settings?;
                let place = MappedRank::of(rank, job, &settings)?;
                self.enter(place, settings)
            }
            Way::Spawn(ranks) => bootstrap::spawn_copies(ranks, &settings?),
            Way::Launched(kind) => match crate::bootstrap::pmi::Session::open(kind)? {
                Some(session) => self.start_over_launcher(session, settings),
                None => match self.ranks {
                    Some(ranks) if ranks > 1 && self.start.is_none() => bootstrap::spawn_copies(ranks, &settings?),
                    // The library that talked to the launcher may leave threads.
                    _ => self.start_alone(settings?, true),
                },
            },
            #[cfg(feature = "mpi")]
            Way::Mpi => {
                let session = crate::bootstrap::mpi::Session::initialise()?;
                self.start_over_mpi(session, settings)
            }
            Way::Alone => self.start_alone(settings?, false),
        }
    }

    /// `shared`: see [`MappedRank::prepare`].
    fn start_alone(self, settings: Settings, shared: bool) -> Result<World> {
        let place = MappedRank::of(0, JobMemory::create(1, &settings)?, &settings)?;
        if shared {
            place.prepare(&settings, true)?;
        }
        self.enter(place, settings)
    }

    /// The settings given, or those of the environment.
    pub(super) fn chosen_settings(&self) -> Result<Settings> {
        let mut settings = match &self.settings {
            Some(settings) => settings.clone(),
            None => Settings::from_env()?,
        };
        settings.static_data |= self.static_data;
        settings.survive |= self.survive;
        Ok(settings)
    }

    pub(super) fn enter(self, place: MappedRank, settings: Settings) -> Result<World> {
        World::check_survivable(settings.survive, place.job.ranks_here(), place.job.ranks())?;
        let layout = place.layout(&settings);
        place.prepare(&settings, false)?;
        let MappedRank { rank, job, node } = place;
        if rank == 0 && self.settings.is_none() {
            for (name, near) in Settings::unknown_in_env() {
                eprintln!("warning: {name} is not a setting of Bellwether; did you mean {near}?");
            }
        }
        let place = shm::NodeRank {
            rank,
            job: Arc::clone(&job),
            node: Arc::clone(&node),
            layout,
            message_memory: settings.message_memory,
            cross_memory_attach: settings.cross_memory_attach,
        };
        let surroundings = Surroundings { rank, ranks: job.ranks(), node: &node, layout };
        let Opened { networks, pace } = match self.networks {
            Some(open) => open(surroundings)?,
            None => {
                let setup = Setup { settings: &settings, place: &place, device_atomics: self.device_atomics };
                let networks = open_networks(setup, surroundings)?;
                Opened { networks, pace: None }
            }
        };
        let (open, nodes) = (self.open, self.nodes);
        // A setting that names a network excludes mapped memory.
        let shares = self.shares || job.ranks_here() < job.ranks() && settings.transport == Transport::Auto;
        let mapping = match networks.is_empty() {
            true => Mapping::All,
            false if shares => Mapping::Node,
            false => Mapping::Own,
        };
        // Nor is there a system call that takes virtual time.
        let is_real = mapping != Mapping::Own && pace.is_none();
        let attaches = settings.cross_memory_attach && is_real;
        let engine = Rc::new(Engine::new(place, settings, nodes, networks, pace, mapping));
        engine.segments.mapped().set_attaches(attaches);
        engine.join_thread();
        engine.register_statics()?;
        let messages = Messages::new(Rc::clone(&engine));
        if open {
            messages.open();
        }
        for (name, code, handler) in self.handlers {
            messages.register(&name, code, handler)?;
        }
        if !open {
            messages.seal();
        }
        let Settings {
            barrier,
            transport,
            teams,
            team_memory,
            world_team_memory,
            collectives,
            static_data,
            survive,
            ..
        } = &engine.settings;
        // That part of the layout which is the same on all hosts.
        let common = SlotLayout::new(job.ranks(), 1, 1 << job.stride_log2(), engine.settings.lane_depth);
        let shape = format!(
            "{common:?} {barrier:?} {transport:?} {teams} {team_memory} {world_team_memory} {collectives:?} {static_data} {survive}"
        );
        let shape = with_encryption(hash::of(shape.as_bytes()), engine.settings.encrypt);
        let arrival = Arrival { base: node.origin() as usize, build: build_digest(), shape };
        job.arrive(rank, arrival)?;
        let mut world = World {
            heaps: OneThread::new(Heaps::new(&engine)),
            barrier: OneThread::new(Box::new(Barrier::new(&engine))),
            exchange: OneThread::new(Box::new(Exchange::new(&messages, &engine))),
            allocator: OneThread::new(Rc::new(RefCell::new(Allocator::new(&engine)))),
            started: Instant::now(),
            engine: OneThread::new(engine),
            messages: OneThread::new(messages),
            hosts: OneThread::new(None),
            session: OneThread::new(None),
            #[cfg(feature = "mpi")]
            mpi: OneThread::new(None),
        };
        world.engine.await_all()?;
        // First: ranks whose settings differ may have opened different networks.
        world.compare()?;
        world.engine.note_arrivals()?;
        *world.heaps = Heaps::new(&world.engine);
        **world.barrier = Barrier::new(&world.engine);
        if !open {
            (0..world.size()).try_for_each(|rank| world.messages.verify(rank))?;
        }
        world.prepare_to_survive()?;
        Ok(world)
    }
}

impl World {
    /// Checks that every rank runs the same program, with the same shape of memory.
    fn compare(&self) -> Result<()> {
        let job = &self.engine.job;
        for rank in 0..self.size() {
            let differs = |what, theirs: u64, ours: u64, advice| {
                let (theirs, ours) = (format!("{theirs:016x}"), format!("{ours:016x}"));
                Error::RanksDiffer { what, rank, reference: 0, theirs, ours, advice }
            };
            if job.build(rank) != job.build(0) {
                let advice = "start the same executable on every rank";
                return Err(differs("the executable's build id", job.build(rank), job.build(0), advice));
            }
            if encrypts(job.shape(rank)) != encrypts(job.shape(0)) {
                let value = |rank| if encrypts(job.shape(rank)) { "on" } else { "off" }.to_string();
                let (theirs, ours) = (value(rank), value(0));
                let advice = "set it alike on every rank; `mpirun` on several machines needs `-x BELLWETHER_ENCRYPT`";
                return Err(Error::RanksDiffer {
                    what: "BELLWETHER_ENCRYPT",
                    rank,
                    reference: 0,
                    theirs,
                    ours,
                    advice,
                });
            }
            if job.shape(rank) != job.shape(0) {
                let advice = "set BELLWETHER_LANE_DEPTH, BELLWETHER_BARRIER, BELLWETHER_TRANSPORT, BELLWETHER_STATIC_DATA and \
                              those of teams alike on every rank";
                return Err(differs("a setting that shapes shared memory", job.shape(rank), job.shape(0), advice));
            }
        }
        Ok(())
    }
}

/// The digest of the settings that shape memory, with whether the rank encrypts in its last bit.
fn with_encryption(digest: u64, encrypts: bool) -> u64 {
    digest & !1 | u64::from(encrypts)
}

fn encrypts(shape: u64) -> bool {
    shape & 1 == 1
}

/// The function that stands for a handler of type `F` in the table's digest.
fn call<F: Fn(&Context<'_>, &[u8])>(handler: &F, context: &Context<'_>, payload: &[u8]) {
    handler(context, payload);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::Threads;

    fn settings(encrypt: bool) -> Settings {
        Settings { transport: Transport::Tcp, encrypt, ..Settings::default() }
    }

    #[test]
    fn ranks_of_which_one_encrypts_are_told_both_values() {
        let turn = AtomicBool::new(false);
        let job = Threads::new(2).deadline(Duration::from_secs(60));
        let start = |builder: Builder| {
            let encrypts = turn.fetch_xor(true, Ordering::Relaxed);
            builder.settings(settings(encrypts)).start().map(drop)
        };
        let errors = job.build(start).expect("two threads").into_iter().map(|done| done.expect_err("they differ"));
        for told in errors.map(|error| error.to_string()) {
            let has = |rank: usize, value: &str| told.contains(&format!("rank {rank} has {value}"));
            assert!(has(0, "on") && has(1, "off") || has(0, "off") && has(1, "on"), "{told}");
            assert!(told.contains("-x BELLWETHER_ENCRYPT"), "{told}");
        }
    }

    #[test]
    fn a_job_over_rdma_that_encrypts_is_told_what_to_set() {
        let settings = Settings { transport: Transport::Verbs, ..settings(true) };
        let job = Threads::new(2).settings(settings).deadline(Duration::from_secs(60));
        let errors = job.build(|builder| builder.start().map(drop)).expect("two threads").into_iter();
        for told in errors.map(|done| done.expect_err("verbs cannot encrypt").to_string()) {
            let advice = "set BELLWETHER_TRANSPORT to tcp or auto, or BELLWETHER_ENCRYPT to off";
            assert!(told.contains("BELLWETHER_ENCRYPT=on") && told.ends_with(advice), "{told}");
        }
    }

    #[test]
    fn a_job_that_encrypts_runs_and_says_so() {
        for encrypt in [true, false] {
            let job = Threads::new(2).settings(settings(encrypt)).deadline(Duration::from_secs(60));
            let told = job.run(|world| {
                let mut sum = [world.rank() + 1];
                world.allreduce_sum(&mut sum).map(|()| (sum[0], world.receipt()))
            });
            for done in told.expect("it starts") {
                let (sum, receipt) = done.expect("it goes well");
                let row = receipt.iter().find(|(what, _)| *what == "protection").expect("a row");
                let expected = if encrypt { "authenticated and encrypted" } else { "not encrypted" };
                assert!(row.1.starts_with("TCP: ") && row.1.contains(expected), "{}", row.1);
                assert_eq!(sum, 3);
            }
        }
    }
}
