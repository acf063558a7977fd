//! Ranks as threads, one at a time: ordinary blocking programs, run the same way each time.
//!
//! One token goes round. Its holder runs until it blocks, yields or ends; then the seed chooses among the ranks that
//! can go on. When none can, the network takes its next step, and so time passes only while all are blocked.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::{Network, Stalled, Time};
use crate::bootstrap::results::Results;
use crate::thread::{allowed_cores, stay_on_one_core};
use crate::transport::lock::{Condvar, Guard, Mutex};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Can go on.
    Ready,
    /// Waits for its signal.
    Blocked,
    Ended,
}

#[derive(Debug)]
struct RunQueue {
    holder: Option<usize>,
    status: Vec<Status>,
    /// Those that can go on, in order.
    ready: Vec<usize>,
    /// How often each rank was told that the run has stalled, and whether the holder is to be told now.
    told: Vec<u32>,
    tell: bool,
    /// Not all ranks have a thread: nothing is to begin.
    abandoned: bool,
    /// The first time it did.
    stalled: Option<Stalled>,
}

#[derive(Debug)]
struct Shared {
    network: Network,
    table: Mutex<RunQueue>,
    /// One for each rank, so that handing on the token wakes one thread.
    turns: Vec<Condvar>,
}

/// A rank's hold on the token. Everything here is called by the rank that has it, on its own thread.
#[derive(Debug, Clone)]
pub struct Turn {
    rank: usize,
    shared: Arc<Shared>,
}

impl Turn {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.shared.network
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.shared.network.now()
    }

    /// Lets another rank run, if one can.
    ///
    /// # Errors
    /// [`Stalled`] if the run has stalled.
    pub fn yield_now(&self) -> Result<(), Stalled> {
        self.pass(Status::Ready)
    }

    /// Blocks until something happens to this rank: a message, room, a loss, or [`Network::notify`]. Returns at once if
    /// something has since this was last called.
    ///
    /// # Errors
    /// [`Stalled`] if every rank is blocked and nothing is in flight.
    pub fn block_until_event(&self) -> Result<(), Stalled> {
        if self.shared.network.take_signal(self.rank) {
            return self.pass(Status::Ready);
        }
        self.pass(Status::Blocked)
    }

    /// As [`Turn::block_until_event`], but at most until `deadline`. Returns whether the time has come.
    ///
    /// # Errors
    /// As [`Turn::block_until_event`].
    pub fn block_until(&self, deadline: Time) -> Result<bool, Stalled> {
        let now = self.now();
        if now >= deadline {
            return Ok(true);
        }
        if self.shared.network.take_signal(self.rank) {
            self.pass(Status::Ready)?;
        } else {
            self.shared.network.timer(self.rank, deadline - now);
            self.pass(Status::Blocked)?;
        }
        Ok(self.now() >= deadline)
    }

    /// Computes for `time`: time passes, and arrivals wait meanwhile.
    ///
    /// # Errors
    /// As [`Turn::block_until_event`].
    pub fn compute(&self, time: Time) -> Result<(), Stalled> {
        let end = self.now().saturating_add(time);
        while !self.block_until(end)? {}
        // The rank still has to look at arrivals of the meantime.
        self.shared.network.notify(self.rank);
        Ok(())
    }

    fn pass(&self, status: Status) -> Result<(), Stalled> {
        let mut table = self.shared.lock();
        table.set(self.rank, status);
        let table = self.shared.hand_on(table, Some(self.rank));
        self.shared.await_turn(table, self.rank)
    }
}

impl RunQueue {
    fn set(&mut self, rank: usize, status: Status) {
        self.status[rank] = status;
        match (self.ready.binary_search(&rank), status) {
            (Err(at), Status::Ready) => self.ready.insert(at, rank),
            (Ok(at), Status::Blocked | Status::Ended) => _ = self.ready.remove(at),
            _ => {}
        }
    }
}

impl Shared {
    fn lock(&self) -> Guard<'_, RunQueue> {
        self.table.lock()
    }

    /// Gives the token to a rank that can go on, letting the network step until there is one, and wakes it if it is not
    /// the `caller`.
    fn hand_on<'a>(&'a self, mut table: Guard<'a, RunQueue>, caller: Option<usize>) -> Guard<'a, RunQueue> {
        table.holder = None;
        loop {
            let mut state = self.network.state();
            while let Some(rank) = state.next_rung() {
                // A rank that is not blocked looks at its signal before it blocks.
                if table.status[rank] == Status::Blocked && state.take_signal(rank) {
                    table.set(rank, Status::Ready);
                }
            }
            if !table.ready.is_empty() {
                table.holder = Some(table.ready[state.choose(table.ready.len())]);
                break;
            }
            drop(state);
            if table.status.iter().all(|status| *status == Status::Ended) {
                break;
            }
            if self.network.step().is_none() {
                let waiting = || (0..table.status.len()).filter(|rank| table.status[*rank] != Status::Ended);
                let stalled = self.network.stalled(waiting().take(8).collect());
                // One rank wakes up with the error: its next steps may free the others.
                let next = waiting().min_by_key(|rank| table.told[*rank]).expect("not all have ended");
                table.told[next] += 1;
                (table.tell, table.holder) = (true, Some(next));
                table.stalled.get_or_insert(stalled);
                break;
            }
        }
        match table.holder {
            Some(holder) if table.holder != caller => {
                // Without the lock: a rank that wakes up and finds the lock taken would sleep once more.
                drop(table);
                self.turns[holder].notify_one();
                self.lock()
            }
            _ => table,
        }
    }

    fn await_turn(&self, mut table: Guard<'_, RunQueue>, rank: usize) -> Result<(), Stalled> {
        while table.holder != Some(rank) {
            table = self.turns[rank].wait(table);
        }
        table.set(rank, Status::Ready);
        if std::mem::take(&mut table.tell) {
            return Err(table.stalled.clone().expect("it has stalled before it is told"));
        }
        Ok(())
    }
}

/// Runs `program` as every rank of `network`, each on a thread of its own, one at a time.
///
/// # Errors
/// [`Stalled`] if every rank waited and nothing was in flight.
///
/// # Panics
/// With the panic of the lowest rank that panicked; the others' waits end with [`Stalled`] if it leaves them waiting.
/// If there are not enough threads.
pub fn run<R: Send>(network: &Network, program: impl Fn(&Turn) -> R + Sync) -> Result<Vec<R>, Stalled> {
    let results = Results::new(network.ranks());
    let outcomes = run_each(network, &|turn| results.put(turn.rank(), program(turn)));
    let (outcomes, stalled) = outcomes.expect("a thread for each simulated rank");
    if let Some(panic) = outcomes.into_iter().find_map(Result::err) {
        resume_unwind(panic);
    }
    stalled.map_or_else(|| Ok(results.into_each().flatten().collect()), Err)
}

/// As [`run`], for programs that get over a stall: how each rank ended. A rank that never had its turn has ended well, too. Not
/// generic: a copy for each program made test programs a fifth longer.
///
/// # Errors
/// If there are not enough threads; then nothing has run.
pub(crate) fn run_each(
    network: &Network,
    program: &(dyn Fn(&Turn) + Sync),
) -> std::io::Result<(Vec<std::thread::Result<()>>, Option<Stalled>)> {
    let ranks = network.ranks();
    let shared = Arc::new(Shared {
        network: network.clone(),
        table: Mutex::new(RunQueue {
            holder: None,
            status: vec![Status::Ready; ranks],
            ready: (0..ranks).collect(),
            told: vec![0; ranks],
            tell: false,
            abandoned: false,
            stalled: None,
        }),
        turns: (0..ranks).map(|_| Condvar::default()).collect(),
    });
    // One of them runs at a time. On several cores each hand-over of the token would wake another core and leave this one idle.
    let (core, allowed) = (rustix::thread::sched_getcpu(), allowed_cores());
    let outcomes: std::io::Result<Vec<_>> = std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(ranks);
        let mut failed = None;
        for rank in 0..ranks {
            let (shared, allowed) = (&shared, &allowed);
            let thread = std::thread::Builder::new().name(format!("rank {rank}")).stack_size(1 << 20);
            let body = move || {
                if let Ok(allowed) = &allowed {
                    stay_on_one_core(core, allowed);
                }
                let turn = Turn { rank, shared: Arc::clone(shared) };
                let started = shared.await_turn(shared.lock(), rank).is_ok() && !shared.lock().abandoned;
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    if started {
                        program(&turn);
                    }
                }));
                let mut table = shared.lock();
                table.set(rank, Status::Ended);
                drop(shared.hand_on(table, None));
                outcome
            };
            match thread.spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that are there must not wait for a turn that never comes.
                    let mut table = shared.lock();
                    table.abandoned = true;
                    (rank..ranks).for_each(|rank| table.set(rank, Status::Ended));
                    failed = Some(error);
                    break;
                }
            }
        }
        drop(shared.hand_on(shared.lock(), None));
        let outcomes = threads.into_iter().map(|thread| thread.join().unwrap_or_else(Err)).collect();
        failed.map_or(Ok(outcomes), Err)
    });
    let stalled = shared.lock().stalled.take();
    Ok((outcomes?, stalled))
}
