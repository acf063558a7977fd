//! The thread that tells other hosts what is new in this host's roster, and enters what they tell.
//!
//! If the connection to a host's leader ends without a word, all ranks of that host count as lost. In a job that ends in good
//! order a leader's thread stays until all ranks of its host are gone, and the hub's until all hosts have said so.

mod standstill;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use self::standstill::Rounds;
use super::{Connection, HUB, HostMessage, Introduction, Link, Published};
use crate::error::{Error, Loss, Result};
use crate::membership::nodes::Nodes;
use crate::membership::watch::ProcessWatch;
use crate::membership::{Arrival, JobMemory};
use crate::sleep;

/// Longest time between two reads of the roster. Chosen: other hosts learn of a death within it.
const INTERVAL: rustix::fs::Timespec = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Most handler tables that are remembered: a job whose ranks have different ones ends with an error.
const TABLES: usize = 8;
/// How long a leader waits for ranks that have not left with it. The thread goes on for them as long as the process lives.
const LIMIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// The running thread. Dropping it waits for the other ranks to leave, if none is lost, for at most 10 s.
#[derive(Debug)]
pub struct Agent {
    leaving: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts the thread on the leader of a host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the records that other hosts' ranks publish; [`Error::Os`] if the system refuses a thread.
    pub fn start(job: Arc<JobMemory>, published: Box<dyn Published>, nodes: Nodes, link: Link) -> Result<Agent> {
        let leaving = Arc::new(AtomicBool::new(false));
        (0..job.ranks()).filter(|rank| !job.is_here(*rank)).try_for_each(|rank| published.make_room(rank))?;
        let (told, finished) = (vec![Told::default(); job.ranks()], vec![false; nodes.count()]);
        let (watch, rounds) = (ProcessWatch::default(), Rounds::default());
        let (entered, tables) = (Vec::new(), Vec::new());
        let mut service = Service { job, published, nodes, link, told, finished, watch, rounds, entered, tables };
        let stop = Arc::clone(&leaving);
        let thread = std::thread::Builder::new()
            .name("bellwether-hosts".into())
            .spawn(move || service.run(&stop))
            .map_err(|source| Error::Os { doing: "connecting the hosts", call: "clone", source })?;
        Ok(Agent { leaving, thread: Some(thread) })
    }

    /// Waits until the thread has told what there is to tell: at once if a rank is lost, else when all have left.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        let start = Instant::now();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && start.elapsed() < LIMIT {
            sleep::nap(Duration::from_millis(1));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.leave();
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            // A panic has been printed already, and other hosts take the ranks of this one for lost.
            let _ = thread.join();
        }
    }
}

/// The state of a rank that was last reported to the other hosts.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    table: bool,
    arrived: bool,
    leaving: bool,
    gone: bool,
}

/// The state of the agent's thread.
struct Service {
    job: Arc<JobMemory>,
    published: Box<dyn Published>,
    nodes: Nodes,
    link: Link,
    told: Vec<Told>,
    /// Hosts from which nothing more comes.
    finished: Vec<bool>,
    /// Processes of this host's ranks.
    watch: ProcessWatch,
    rounds: Rounds,
    /// At the hub: ranks of other hosts of which something was entered since the roster was last read.
    entered: Vec<usize>,
    /// Handler tables that were told, and the first rank that has each. Of equal ones the others name that rank.
    tables: Vec<(usize, Vec<u8>)>,
}

impl Service {
    fn run(&mut self, leaving: &AtomicBool) {
        let mut lost_since = None;
        loop {
            self.wait();
            // Read before the roster: what the rank did before it left, and any loss seen here, is then told below.
            let (leaving, any_lost) = (leaving.load(Ordering::Acquire), self.job.any_lost());
            self.watch.poll(&self.job);
            self.receive();
            self.read_roster();
            self.check_for_standstill();
            if !leaving {
                continue;
            }
            let late = any_lost && lost_since.get_or_insert_with(Instant::now).elapsed() > LIMIT;
            if (any_lost || self.is_done()) && (late || self.flushed()) {
                return;
            }
        }
    }

    /// Blocks until a message comes or a process ends, for at most [`INTERVAL`].
    fn wait(&self) {
        let events = |line: &Connection| if line.is_full() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let open = self.link.connections.iter().filter(|line| !line.is_closed());
        let mut polled: Vec<_> = open.map(|line| PollFd::from_borrowed_fd(line.socket(), events(line))).collect();
        polled.extend(self.watch.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = rustix::event::poll(&mut polled, Some(&INTERVAL));
    }

    fn flushed(&mut self) -> bool {
        self.link.connections.iter_mut().for_each(Connection::flush);
        self.link.connections.iter().all(|line| line.is_closed() || !line.is_full())
    }

    /// Whether all ranks of this host are gone and the other hosts have been told; at the hub, also whether all hosts have
    /// said the same.
    fn is_done(&mut self) -> bool {
        let all_told = self.ours().all(|rank| self.told[rank].gone);
        if !all_told {
            return false;
        }
        let heard_all = || self.link.connections.iter().all(|line| line.is_closed() || self.finished[line.host]);
        if self.link.host == HUB && !heard_all() {
            return false;
        }
        if !std::mem::replace(&mut self.finished[self.link.host], true) {
            self.link.connections.iter_mut().for_each(|line| line.send(&HostMessage::Finished));
        }
        true
    }

    fn ours(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.job.slots().filter(|rank| self.job.is_here(*rank))
    }

    /// Tells the others what is new in the roster: of the ranks of this host, and at the hub also of those that others told of.
    fn read_roster(&mut self) {
        let entered = std::mem::take(&mut self.entered);
        let ours: Vec<usize> = self.ours().collect();
        for rank in ours.into_iter().chain(entered) {
            let is_here = self.job.is_here(rank);
            if self.told[rank].gone {
                continue;
            }
            // Read first: what the rank published before it ended is then read below.
            let loss = self.job.loss(rank);
            // It may have arrived and left since the last read.
            let has_arrived = self.told[rank].arrived || self.job.has_arrived(rank);
            if has_arrived && !self.told[rank].table {
                self.told[rank].table = self.tell_table(rank);
            }
            if has_arrived && !std::mem::replace(&mut self.told[rank].arrived, true) {
                if is_here {
                    self.watch.add(&self.job, rank);
                }
                let message = HostMessage::Arrived(self.introduction(rank));
                self.tell(rank, &message);
            }
            if self.job.is_leaving(rank) && !std::mem::replace(&mut self.told[rank].leaving, true) {
                self.tell(rank, &HostMessage::Leaving(rank));
            }
            if let Some(loss) = loss {
                self.told[rank].gone = true;
                let entered = self.published.entered(rank);
                // Read after the loss: before it left, the rank has noted which one it missed.
                let missed = self.job.first_missed();
                self.tell(rank, &HostMessage::Gone(rank, loss, entered, missed));
            }
        }
    }

    /// Tells all hosts but that of `rank`.
    fn tell(&mut self, rank: usize, message: &HostMessage) {
        let host = self.nodes.of(rank);
        self.link.connections.iter_mut().filter(|line| line.host != host).for_each(|line| line.send(message));
    }

    fn introduction(&self, rank: usize) -> Introduction {
        Introduction {
            rank,
            pid: self.job.pid(rank),
            base: self.job.base(rank) as u64,
            build: self.job.build(rank),
            shape: self.job.shape(rank),
            records: self.published.records(rank),
        }
    }

    /// Tells the handlers of `rank`, once its table is closed. Returns whether it did.
    fn tell_table(&mut self, rank: usize) -> bool {
        let Some(entries) = self.published.handlers(rank) else { return false };
        let known = self.tables.iter().find(|(_, known)| *known == entries);
        // Each host has heard of the table of `first`, but that of `first`, which has it.
        if let Some(&(first, _)) = known {
            self.tell(rank, &HostMessage::SameHandlers(rank, first));
            return true;
        }
        if self.tables.len() < TABLES {
            self.tables.push((rank, entries.clone()));
        }
        self.tell(rank, &HostMessage::Handlers(rank, entries));
        true
    }

    /// The handler table of `rank`, if this host knows it. Its memory is there once the rank has arrived, or once its table was told.
    fn known_table(&self, rank: usize) -> Option<Vec<u8>> {
        let is_known = rank < self.job.ranks() && (!self.job.is_here(rank) || self.job.has_arrived(rank));
        is_known.then(|| self.published.handlers(rank)).flatten()
    }

    /// Enters what the other hosts told.
    fn receive(&mut self) {
        for number in 0..self.link.connections.len() {
            let (host, messages) = (self.link.connections[number].host, self.link.connections[number].receive());
            for message in messages {
                if let Err(error) = self.enter(host, message) {
                    tracing::warn!(host, %error, "a message from another host was ignored");
                }
            }
            let line = &mut self.link.connections[number];
            line.flush();
            if line.is_closed() && !std::mem::replace(&mut self.finished[host], true) {
                // The leader is the first rank of its host, so it is the first that is reported lost.
                let nodes = self.nodes.clone();
                for rank in (0..self.job.ranks()).filter(|rank| nodes.of(*rank) == host) {
                    self.job.mark_lost(rank, Loss::Disconnected);
                    self.note_entered(rank);
                }
            }
        }
    }

    /// The hub passes on the news of `rank`, a rank of another host.
    fn note_entered(&mut self, rank: usize) {
        if self.link.host == HUB {
            self.entered.push(rank);
        }
    }

    fn enter(&mut self, host: usize, message: HostMessage) -> Result<()> {
        let rank = match &message {
            HostMessage::Handlers(rank, _)
            | HostMessage::SameHandlers(rank, _)
            | HostMessage::Leaving(rank)
            | HostMessage::Gone(rank, ..) => *rank,
            HostMessage::Arrived(introduction) => introduction.rank,
            HostMessage::Finished => {
                self.finished[host] = true;
                return Ok(());
            }
            HostMessage::AskWaits(_) | HostMessage::Waits(..) | HostMessage::Standstill(_) => {
                self.enter_waits(host, message);
                return Ok(());
            }
        };
        // The hub passes on the messages of other hosts, about any rank but ours. Other hosts send messages about their own ranks only.
        let is_theirs =
            rank < self.job.ranks() && !self.job.is_here(rank) && (host == HUB || self.nodes.of(rank) == host);
        if !is_theirs {
            return Err(Error::Start(format!("host {host} spoke of rank {rank}, which is not its own")));
        }
        self.note_entered(rank);
        match message {
            HostMessage::Handlers(_, entries) => self.published.set_handlers(rank, &entries)?,
            HostMessage::SameHandlers(_, first) => match self.known_table(first) {
                Some(entries) => self.published.set_handlers(rank, &entries)?,
                None => return Err(Error::Start(format!("the handlers of rank {first} are not known"))),
            },
            HostMessage::Arrived(facts) => {
                self.published.set_records(rank, &facts.records)?;
                let arrival = Arrival { base: facts.base as usize, build: facts.build, shape: facts.shape };
                self.job.arrive_elsewhere(rank, facts.pid, arrival)?;
            }
            HostMessage::Leaving(_) => {
                // Until the rank is gone nobody knows how many barriers it entered; until then no barrier misses it.
                self.published.set_entered(rank, u64::MAX);
                self.job.begin_to_leave(rank);
            }
            HostMessage::Gone(_, loss, entered, missed) => {
                self.published.set_entered(rank, entered);
                // Before the loss: ranks of this host that miss `rank` then do so later than `rank` missed the other one.
                if let Some(missed) = missed.filter(|missed| *missed < self.job.ranks()) {
                    self.job.miss(missed);
                }
                self.job.mark_lost(rank, loss);
            }
            HostMessage::Finished | HostMessage::AskWaits(_) | HostMessage::Waits(..) | HostMessage::Standstill(_) => {
                unreachable!("handled above")
            }
        }
        Ok(())
    }
}
