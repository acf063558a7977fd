//! A rank's part in a benchmark: its world, and how batches take turns.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Instant;

use bellwether_runtime::{HandlerId, Result, World};

use super::bare::{read_ends, share_cores};
use super::cores;
use super::socket::Bare;
use super::task::Task;
use super::turns::{Turns, Way};

/// A rank's world, and what its handlers count.
pub struct Session {
    /// The world, what to do there, and in which turns.
    turns: Turns<World>,
    /// Counts at the target, and answers.
    pub ping: HandlerId,
    /// Counts at the target.
    pub pong: HandlerId,
    /// Messages to [`Session::ping`] so far.
    pub pings: Rc<Cell<u64>>,
    /// Messages to [`Session::pong`] so far.
    pub pongs: Rc<Cell<u64>>,
    /// CPUs that the rank could use before it was bound to one of them.
    pub cpus: Vec<usize>,
}

impl Deref for Session {
    type Target = Turns<World>;

    fn deref(&self) -> &Turns<World> {
        &self.turns
    }
}

impl Session {
    /// Starts the rank's world, with its handlers.
    ///
    /// # Errors
    /// Those of the runtime; if the system does not let the rank use one CPU only.
    pub fn start(task: Task) -> anyhow::Result<Session> {
        let mut builder = World::builder();
        let (pings, pongs) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let count = Rc::clone(&pongs);
        let pong = builder.handler("pong", move |_, payload| {
            read_ends(payload);
            count.set(count.get() + 1);
        });
        let count = Rc::clone(&pings);
        let ping = builder.handler("ping", move |context, payload| {
            read_ends(payload);
            count.set(count.get() + 1);
            // A failure to answer is noticed by the asker, whose wait then names the cause.
            let _ = context.send(context.from(), pong, payload);
        });
        let world = builder.start()?;
        let cpus = settle(&task, world.rank(), world.size())?;
        let mapped = world.alloc::<u8>(1)?.mapped().is_some();
        let socket = if mapped || !task.over_tcp { None } else { Some(Bare::connect(&world)?) };
        let mut turns = Turns::new(world, task, mapped);
        turns.socket = socket;
        Ok(Session { turns, ping, pong, pings, pongs, cpus })
    }

    /// Leaves the job. Collective.
    ///
    /// # Errors
    /// Those of the runtime.
    pub fn finish(self) -> Result<()> {
        self.turns.world.finish()
    }

    /// Whether this rank is one of the two that a benchmark for two runs on.
    pub fn partner(&self) -> Option<usize> {
        [1, 0].get(self.world.rank()).copied()
    }

    /// The number of the quickest way, the same on all ranks. This is for limits: which of several hand-written programs is best
    /// depends on the machine.
    ///
    /// # Errors
    /// Those of any of the ways, and of the barriers around batches.
    pub fn quickest<const N: usize>(&self, operations: usize, mut ways: [Way<'_>; N]) -> Result<usize> {
        const BATCHES: usize = 5;
        let mut taken = [(); N].map(|()| f64::INFINITY);
        for batch in 0..BATCHES {
            for (way, taken) in ways.iter_mut().zip(&mut taken) {
                self.world.barrier()?;
                let begin = Instant::now();
                way(operations)?;
                // The first is to warm up.
                if batch > 0 {
                    *taken = taken.min(begin.elapsed().as_secs_f64());
                }
            }
        }
        let mine = (0..N).min_by(|a, b| taken[*a].total_cmp(&taken[*b])).unwrap_or(0);
        let choice = self.world.alloc::<u64>(1)?;
        if self.world.rank() == 0 {
            (0..self.world.size()).try_for_each(|rank| choice.put(rank, 0, mine as u64))?;
        }
        self.world.barrier()?;
        Ok(choice.load(0) as usize)
    }
}

/// Binds this rank to one CPU, if the task says so, and returns the CPUs that it could use before. Call it after the start: a rank
/// that starts with one CPU assumes that it shares the CPU with other ranks.
///
/// # Errors
/// If the system does not let the rank use one CPU only.
pub fn settle(task: &Task, rank: usize, ranks: usize) -> anyhow::Result<Vec<usize>> {
    let cpus = cores::allowed_cpus();
    if ranks > cpus.len() {
        share_cores();
    }
    if task.pin {
        cores::pin(rank)?;
    }
    Ok(cpus)
}
