//! A whole job on a simulated network: ranks are threads that run one at a time, in virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::start::{MappedRank, Opened};
use super::{Builder, World};
use crate::bootstrap::results::Results;
use crate::engine::{Network, Pace, RemoteAccess, Surroundings};
use crate::error::{Error, Loss, Result};
use crate::membership::JobMemory;
use crate::membership::liveness::SimulatedPeers;
use crate::settings::Settings;
use crate::transport::providers::choose;
use crate::transport::{Transport, sim};

/// A job whose ranks reach each other over a simulated network only.
///
/// Puts, gets, atomics, bells and messages travel as the network's [`sim::Config`] says: delayed, reordered where
/// nothing orders them, in fragments and with few credits. Time is virtual, and passes while all ranks wait. The same
/// program with the same configuration does the same each time. Membership does not use
/// the simulated network: arrivals, handler tables, departures and failures are known at once.
///
/// A wait that nothing can end any more is [`Error::Standstill`], so a deadlock is an error too.
///
/// # Examples
/// ```
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::transport::sim; }
/// use bellwether::{Simulated, sim::Config};
/// let job = Simulated::new(Config::new(3, 7).wild());
/// let sums = job.run(|world| {
///     let mut sum = [world.rank()];
///     world.allreduce_sum(&mut sum).map(|()| sum[0])
/// })?;
/// assert!(sums.into_iter().all(|sum| sum.is_ok_and(|sum| sum == 3)));
/// # Ok::<(), bellwether::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Simulated {
    network: sim::Network,
    settings: Settings,
    /// Changes the order in which a rank opens networks.
    arrange: fn(usize, &mut Vec<usize>),
}

impl Simulated {
    /// A job with one rank for each NIC of such a network.
    pub fn new(config: sim::Config) -> Simulated {
        Simulated { network: sim::Network::new(config), settings: Settings::default(), arrange: |_, _| {} }
    }

    /// Uses these settings on every rank, except lane and barrier settings, which have no effect on a network.
    pub fn settings(mut self, settings: Settings) -> Simulated {
        self.settings = settings;
        self
    }

    /// Lets `arrange(rank, networks)` change which networks a rank opens, and in which order: it prefers earlier ones. With
    /// [islands](field@sim::Config::islands) 0 is the network of the rank's island and 1 the network of all; otherwise 0 is the only
    /// one. On a cluster hosts with different devices differ in this.
    pub fn networks(self, arrange: fn(usize, &mut Vec<usize>)) -> Simulated {
        Simulated { arrange, ..self }
    }

    /// The network, to partition it, slow it down or cut its links while the job runs.
    pub fn network(&self) -> &sim::Network {
        &self.network
    }

    /// Runs `program` on every rank, and returns what each returned, in order. Call it once for each `Simulated`: the virtual
    /// clock is not reset.
    ///
    /// Each rank is a thread, and one of them runs at a time, all on the same core. Threads and processes that a rank starts inherit
    /// this binding, except those of a `Pool`; so do pools of the whole process that a rank uses first.
    ///
    /// # Errors
    /// As [`crate::threads`].
    ///
    /// # Panics
    /// With the first panic of a rank, after all have ended. The others see [`Error::PeerLost`].
    pub fn run<R: Send>(&self, program: impl Fn(&World) -> R + Sync) -> Result<Vec<R>> {
        self.build(|builder| builder.start().map(|world| program(&world)))?.into_iter().collect()
    }

    /// Runs `program` on every rank with a builder, so that each rank can register handlers before it starts.
    ///
    /// # Errors
    /// As [`crate::threads`].
    ///
    /// # Panics
    /// As [`Simulated::run`].
    pub fn build<R: Send>(&self, program: impl Fn(Builder) -> R + Sync) -> Result<Vec<R>> {
        let results = Results::new(self.network.ranks());
        self.run_each(&|rank, builder| results.put(rank, program(builder)))?;
        results.into_each().map(|result| result.ok_or(Error::Standstill { doing: "starting".into() })).collect()
    }

    /// As [`Simulated::build`]. Not generic: a generic version made test binaries 20 % larger.
    fn run_each(&self, program: &(dyn Fn(usize, Builder) + Sync)) -> Result<()> {
        let ranks = self.network.ranks();
        // Little or nothing passes through lanes here.
        let settings = Settings { lane_depth: Some(1), ..self.settings.clone() };
        let arrange = self.arrange;
        let first = MappedRank::of(0, JobMemory::create(ranks, &settings)?, &settings)?;
        first.job.set_supervised();
        first.job.keep_error_at_end();
        let outcomes = sim::run_each(&self.network, &|turn| {
            let rank = turn.rank();
            let place = MappedRank { rank, ..first.clone() };
            let (job, node) = (Arc::clone(&place.job), Arc::clone(&place.node));
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let devices: Vec<_> =
                    self.network.island_node(rank).into_iter().chain([self.network.node(rank)]).collect();
                let pace = Box::new(VirtualTime(turn.clone()));
                let open = move |surroundings: Surroundings<'_>| {
                    let failed = |error: crate::transport::Error| error.at("opening the network", rank);
                    let resources: Vec<_> = devices.iter().flat_map(|device| device.resources()).collect();
                    let mut chosen = choose(&resources.iter().collect::<Vec<_>>(), true, devices.len());
                    arrange(rank, &mut chosen);
                    let open = |number: usize| {
                        let domain = devices[number].open(&resources[number]).map_err(failed)?;
                        Ok(Box::new(Network::open(number, "simulated", domain, surroundings)?) as Box<dyn RemoteAccess>)
                    };
                    let networks = chosen.into_iter().map(open).collect::<Result<_>>()?;
                    Ok(Opened { networks, pace: Some(pace) })
                };
                let builder = Builder::at(place, settings.clone());
                program(rank, builder.over(Box::new(open), self.network.nodes(), self.network.maps_within_nodes()));
            }));
            // A rank that never started, or whose world is gone already, must not be waited for.
            // A forked child that comes here is not the rank.
            if node.is_own() {
                job.mark_lost(rank, if outcome.is_err() { Loss::Panicked } else { Loss::Exited(0) });
            }
            (0..ranks).for_each(|other| self.network.notify(other));
            if let Err(panic) = outcome {
                resume_unwind(panic);
            }
        });
        let (outcomes, _) = outcomes.map_err(|error| Error::Os {
            doing: "starting a thread for each simulated rank",
            call: "clone",
            source: error,
        })?;
        match outcomes.into_iter().find_map(std::result::Result::err) {
            Some(panic) => resume_unwind(panic),
            None => first.job.error_at_end().map_or(Ok(()), Err),
        }
    }
}

struct VirtualTime(sim::Turn);

impl Pace for VirtualTime {
    fn apart(&self) -> Box<dyn Pace + Send> {
        Box::new(VirtualTime(self.0.clone()))
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now())
    }

    fn block(&self, until: Option<Duration>) -> bool {
        match until {
            None => self.0.block_until_event().is_ok(),
            Some(until) => self.0.block_until(nanoseconds(until)).is_ok(),
        }
    }

    fn pause(&self, time: Duration) {
        // Nothing stalls while a rank waits for a time.
        let _ = self.0.compute(nanoseconds(time));
    }

    fn notices(&self) -> u64 {
        self.0.network().notices(self.0.rank())
    }
}

impl SimulatedPeers for VirtualTime {
    fn notify(&self, rank: usize) {
        self.0.network().notify(rank);
    }

    fn is_dead(&self, rank: usize) -> bool {
        self.0.network().is_dead(rank)
    }
}

/// `time` in virtual time. At most half of the largest virtual time, so that there is time after it.
fn nanoseconds(time: Duration) -> sim::Time {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2)
}
