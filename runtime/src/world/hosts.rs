//! What hosts of one job tell each other while it runs: a thread of each host's leader looks at the roster and tells others
//! what is new there, and enters what it hears.
//!
//! A host whose leader is gone is not heard of any more, so all its ranks count as lost then. In a job that ends in good order
//! the leader's thread stays until all ranks of its host are gone, and the hub's until all hosts have said so.

mod standstill;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use self::standstill::Census;
use super::start::Place;
use crate::error::{Error, Loss, Result};
use crate::membership::hosts::{HUB, Introduction, Line, Link, Word};
use crate::membership::job::{Arrival, JobMemory};
use crate::membership::nodes::Nodes;
use crate::membership::watch::Watch;
use crate::memory::copy;
use crate::memory::layout::{
    ADDRESS_MAX, HANDLER_ENTRY, LINE, MAX_HANDLERS, NETWORKS_MAX, PIECE_LEN, SlotLayout, Status,
};
use crate::memory::node::NodeMemory;

/// How often the roster is looked at.
const LOOK: rustix::fs::Timespec = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How long a leader waits for ranks that have not left with it. The thread goes on for them as long as the process is there.
const LIMIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// Of a connection record the address, and the first registered piece.
const RECORD: usize = LINE + ADDRESS_MAX + LINE + PIECE_LEN;
const PAGE: usize = 4096;

/// The thread. Dropping it waits a while for the other ranks to leave, if none is lost.
#[derive(Debug)]
pub(super) struct Agent {
    leaving: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts it, for ranks that come and go at `place`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for the places of other hosts' ranks; [`Error::Os`] if there is no thread to be had.
    pub(super) fn start(place: &Place, layout: SlotLayout, nodes: Nodes, link: Link) -> Result<Agent> {
        let leaving = Arc::new(AtomicBool::new(false));
        let mut desk = Desk::new(place, layout, nodes, link)?;
        let stop = Arc::clone(&leaving);
        let thread = std::thread::Builder::new()
            .name("bellwether-hosts".into())
            .spawn(move || desk.run(&stop))
            .map_err(|source| Error::Os { doing: "connecting the hosts", call: "clone", source })?;
        Ok(Agent { leaving, thread: Some(thread) })
    }
}

impl Agent {
    /// Waits until it has told what there is to tell: of a loss at once, else when all have left.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        let start = Instant::now();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.leave();
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            // It tells its own panic; the ranks of this host are then lost to others.
            let _ = thread.join();
        }
    }
}

/// What the others have been told of a rank.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    table: bool,
    here: bool,
    leaving: bool,
    gone: bool,
}

struct Desk {
    job: Arc<JobMemory>,
    node: Arc<NodeMemory>,
    layout: SlotLayout,
    nodes: Nodes,
    link: Link,
    told: Vec<Told>,
    /// Hosts that have said that nothing more comes.
    over: Vec<bool>,
    /// Processes of this host's ranks.
    watch: Watch,
    census: Census,
}

impl Desk {
    fn new(place: &Place, layout: SlotLayout, nodes: Nodes, link: Link) -> Result<Desk> {
        let (job, node) = (Arc::clone(&place.job), Arc::clone(&place.node));
        for rank in (0..job.ranks()).filter(|rank| !job.is_here(*rank)) {
            let pages = |from: usize, len: usize| (from / PAGE * PAGE, (from + len).next_multiple_of(PAGE));
            let records = (0..NETWORKS_MAX).map(|network| pages(layout.connection(network), RECORD));
            for (from, to) in [pages(0, size_of::<Status>())].into_iter().chain(records) {
                node.commit(rank, from, to, 1, "memory to start", "")?;
            }
        }
        let (told, over) = (vec![Told::default(); job.ranks()], vec![false; nodes.count()]);
        Ok(Desk { job, node, layout, nodes, link, told, over, watch: Watch::default(), census: Census::default() })
    }

    fn run(&mut self, leaving: &AtomicBool) {
        let mut lost_since = None;
        loop {
            self.wait();
            // Before the looks: what the rank did before it left, and who was lost, is told.
            let (leaving, any_lost) = (leaving.load(Ordering::Acquire), self.job.any_lost());
            self.watch.look(&self.job);
            self.hear();
            self.look_at_roster();
            self.look_for_standstill();
            if !leaving {
                continue;
            }
            let late = any_lost && lost_since.get_or_insert_with(Instant::now).elapsed() > LIMIT;
            if (any_lost || self.is_done()) && (late || self.flushed()) {
                return;
            }
        }
    }

    /// Until something comes, or it is time to look again.
    fn wait(&self) {
        let events = |line: &Line| if line.is_full() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let lines = self.link.lines.iter().filter(|line| !line.is_closed());
        let mut polled: Vec<_> = lines.map(|line| PollFd::from_borrowed_fd(line.socket(), events(line))).collect();
        polled.extend(self.watch.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = rustix::event::poll(&mut polled, Some(&LOOK));
    }

    fn flushed(&mut self) -> bool {
        self.link.lines.iter_mut().for_each(Line::flush);
        self.link.lines.iter().all(|line| line.is_closed() || !line.is_full())
    }

    /// Whether all ranks of this host are gone, and all have heard of it; at the hub, also whether all hosts have said so.
    fn is_done(&mut self) -> bool {
        let all_told = self.ours().all(|rank| self.told[rank].gone);
        if !all_told {
            return false;
        }
        if self.link.host == HUB && !self.link.lines.iter().all(|line| line.is_closed() || self.over[line.host]) {
            return false;
        }
        if !std::mem::replace(&mut self.over[self.link.host], true) {
            self.link.lines.iter_mut().for_each(|line| line.send(&Word::Bye));
        }
        true
    }

    fn ours(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.job.ranks()).filter(|rank| self.job.is_here(*rank))
    }

    /// Tells others what is new in the roster: of the ranks of this host, and at the hub of all.
    fn look_at_roster(&mut self) {
        for rank in 0..self.job.ranks() {
            let is_here = self.job.is_here(rank);
            if self.told[rank].gone || !(is_here || self.link.host == HUB) {
                continue;
            }
            // What a rank shows before it goes is seen by who sees that it is gone.
            let loss = self.job.loss(rank);
            // It may have come and gone since the last look.
            let has_arrived = self.told[rank].here || self.job.has_arrived(rank);
            if has_arrived && !self.told[rank].table {
                self.told[rank].table = self.tell_table(rank);
            }
            if has_arrived && !std::mem::replace(&mut self.told[rank].here, true) {
                if is_here {
                    self.watch.add(&self.job, rank);
                }
                let word = Word::Here(self.introduction(rank));
                self.tell(rank, &word);
            }
            if self.job.is_leaving(rank) && !std::mem::replace(&mut self.told[rank].leaving, true) {
                self.tell(rank, &Word::Leaving(rank));
            }
            if let Some(loss) = loss {
                self.told[rank].gone = true;
                let entered = self.status(rank).entered.load(Ordering::Acquire);
                self.tell(rank, &Word::Gone(rank, loss, entered));
            }
        }
    }

    /// Tells all hosts but that of `rank`.
    fn tell(&mut self, rank: usize, word: &Word) {
        let host = self.nodes.of(rank);
        self.link.lines.iter_mut().filter(|line| line.host != host).for_each(|line| line.send(word));
    }

    fn introduction(&self, rank: usize) -> Introduction {
        let mut records = vec![0; NETWORKS_MAX * RECORD];
        for (network, record) in records.chunks_exact_mut(RECORD).enumerate() {
            // SAFETY: inside the control area, or what of it is committed for another host's rank. The rank has arrived, so the
            // address and the first piece stay as they are.
            unsafe { copy::copy(record.as_mut_ptr(), self.at(rank, self.layout.connection(network)), RECORD) };
        }
        Introduction {
            rank,
            pid: self.job.pid(rank),
            base: self.job.base(rank) as u64,
            build: self.job.build(rank),
            shape: self.job.shape(rank),
            records,
        }
    }

    /// Tells of the handlers of `rank`, if it takes no more. Whether it did.
    fn tell_table(&mut self, rank: usize) -> bool {
        // Pairs with the Release store of who closed the table.
        let Some(count) = self.status(rank).sealed.load(Ordering::Acquire).checked_sub(1) else { return false };
        let mut entries = vec![0; (count as usize).min(MAX_HANDLERS) * HANDLER_ENTRY];
        // SAFETY: entries of a table that is closed, and so committed.
        unsafe { copy::copy(entries.as_mut_ptr(), self.at(rank, self.layout.handlers + LINE), entries.len()) };
        self.tell(rank, &Word::Table(rank, entries));
        true
    }

    /// Enters what has come.
    fn hear(&mut self) {
        for number in 0..self.link.lines.len() {
            let (host, words) = (self.link.lines[number].host, self.link.lines[number].receive());
            for word in words {
                if let Err(error) = self.enter(host, word) {
                    tracing::warn!(host, %error, "a message from another host was ignored");
                }
            }
            let line = &mut self.link.lines[number];
            line.flush();
            if line.is_closed() && !std::mem::replace(&mut self.over[host], true) {
                // The leader comes first: it is the first of its host.
                let theirs = (0..self.job.ranks()).filter(|rank| self.nodes.of(*rank) == host);
                theirs.for_each(|rank| self.job.mark_lost(rank, Loss::Disconnected));
            }
        }
    }

    fn enter(&mut self, host: usize, word: Word) -> Result<()> {
        let rank = match &word {
            Word::Table(rank, _) | Word::Leaving(rank) | Word::Gone(rank, ..) => *rank,
            Word::Here(introduction) => introduction.rank,
            Word::Bye => {
                self.over[host] = true;
                return Ok(());
            }
            Word::Ask(_) | Word::Waits(..) | Word::Standstill(_) => {
                self.hear_of_waits(host, word);
                return Ok(());
            }
        };
        // The hub speaks for all but us; the others for themselves.
        let is_theirs =
            rank < self.job.ranks() && !self.job.is_here(rank) && (host == HUB || self.nodes.of(rank) == host);
        if !is_theirs {
            return Err(Error::Start(format!("host {host} spoke of rank {rank}, which is not its own")));
        }
        match word {
            Word::Table(_, entries) => self.enter_table(rank, &entries)?,
            Word::Here(facts) => {
                if facts.records.len() != NETWORKS_MAX * RECORD {
                    return Err(Error::Start(format!("host {host} sent no connection records of rank {rank}")));
                }
                for (network, record) in facts.records.chunks_exact(RECORD).enumerate() {
                    // SAFETY: the record's memory is committed, and no rank reads it before its owner has arrived.
                    unsafe { copy::copy(self.at(rank, self.layout.connection(network)), record.as_ptr(), RECORD) };
                }
                let arrival = Arrival { base: facts.base as usize, build: facts.build, shape: facts.shape };
                self.job.arrive_elsewhere(rank, facts.pid, arrival)?;
            }
            Word::Leaving(_) => {
                // How many barriers it has entered is not known before it is gone: it is not to be missed in any.
                self.status(rank).entered.store(u64::MAX, Ordering::Release);
                self.job.begin_to_leave(rank);
            }
            Word::Gone(_, loss, entered) => {
                self.status(rank).entered.store(entered, Ordering::Release);
                self.job.mark_lost(rank, loss);
            }
            Word::Bye | Word::Ask(_) | Word::Waits(..) | Word::Standstill(_) => unreachable!("taken above"),
        }
        Ok(())
    }

    fn enter_table(&self, rank: usize, entries: &[u8]) -> Result<()> {
        let count = entries.len() / HANDLER_ENTRY;
        if count > MAX_HANDLERS || !entries.len().is_multiple_of(HANDLER_ENTRY) {
            return Err(Error::Start(format!("rank {rank} has a table of {} bytes", entries.len())));
        }
        let from = self.layout.handlers + LINE;
        let pages = (from / PAGE * PAGE, (from + entries.len()).next_multiple_of(PAGE));
        self.node.commit(rank, pages.0, pages.1, 1, "memory to start", "")?;
        // SAFETY: just committed; nobody reads it before the count is there.
        unsafe { copy::copy(self.at(rank, from), entries.as_ptr(), entries.len()) };
        // Pairs with the Acquire load of who compares tables.
        self.status(rank).sealed.store(count as u64 + 1, Ordering::Release);
        Ok(())
    }

    fn at(&self, rank: usize, offset: usize) -> *mut u8 {
        // SAFETY: callers pass offsets in the control area, which is part of every slot.
        unsafe { self.node.slot(rank).add(offset) }
    }

    fn status(&self, rank: usize) -> &Status {
        // SAFETY: every slot begins with its Status, all atomics, committed here or by its rank before it arrives.
        unsafe { &*self.node.slot(rank).cast::<Status>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::hosts::Gate;
    use crate::settings::Settings;

    /// One host of a job in this process: its memory, and its agent.
    struct Host {
        place: Place,
        layout: SlotLayout,
        agent: Option<Agent>,
    }

    impl Host {
        fn new(number: usize, nodes: &Nodes, ranks: usize, lines: Vec<Line>) -> Host {
            let settings = Settings::default();
            let job = JobMemory::create(ranks, &settings).unwrap();
            job.set_elsewhere((0..ranks).filter(|rank| nodes.of(*rank) != number));
            let first = (0..ranks).find(|rank| nodes.of(*rank) == number).unwrap();
            let place = Place::of(first, job, &settings).unwrap();
            let layout = place.layout(&settings);
            for rank in (0..ranks).filter(|rank| nodes.of(*rank) == number) {
                place.node.commit(rank, 0, layout.control_len, 1, "", "").unwrap();
            }
            let link = Link { host: number, lines };
            let agent = Some(Agent::start(&place, layout, nodes.clone(), link).unwrap());
            Host { place, layout, agent }
        }

        fn byte(&self, rank: usize, offset: usize) -> &std::sync::atomic::AtomicU8 {
            // SAFETY: bytes of the control area; tests write them before they tell anybody.
            unsafe { std::sync::atomic::AtomicU8::from_ptr(self.place.node.slot(rank).add(offset)) }
        }

        fn status(&self, rank: usize) -> &Status {
            // SAFETY: as in `Desk::status`.
            unsafe { &*self.place.node.slot(rank).cast::<Status>() }
        }

        /// Lets a rank arrive, with connection records and two handlers that begin with its number.
        fn arrive(&self, rank: usize) {
            for network in 0..NETWORKS_MAX {
                let first = rank as u8 + 1 + 16 * network as u8;
                self.byte(rank, self.layout.connection(network) + LINE).store(first, Ordering::Relaxed);
            }
            self.byte(rank, self.layout.handlers + LINE).store(rank as u8 + 1, Ordering::Relaxed);
            self.status(rank).sealed.store(3, Ordering::Release);
            let facts = Arrival { base: 1000 + rank, build: 2000 + rank as u64, shape: 3000 };
            self.place.job.arrive(rank, facts).unwrap();
        }

        fn waits_for(&self, what: impl Fn(&JobMemory) -> bool) {
            let start = Instant::now();
            while !what(&self.place.job) {
                assert!(start.elapsed() < Duration::from_secs(20), "never told");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// A job of four ranks on three hosts: 0 and 2 on the hub's.
    fn hosts() -> [Host; 3] {
        let nodes = Nodes::of_each(vec![0, 1, 0, 2]);
        let (gate, summons) = Gate::open().unwrap();
        let (mut hub, others) = std::thread::scope(|scope| {
            let callers = [1, 2].map(|host| scope.spawn(move || summons.call(host).unwrap()));
            let hub = gate.admit(3, || Ok(false)).unwrap();
            (hub, callers.map(|caller| caller.join().unwrap()))
        });
        hub.sort_by_key(|line| line.host);
        let [one, two] = others;
        [(0, hub), (1, vec![one]), (2, vec![two])].map(|(number, lines)| Host::new(number, &nodes, 4, lines))
    }

    fn arrive_all(hosts: &[Host; 3]) {
        for (rank, host) in [0, 1, 0, 2].into_iter().enumerate() {
            hosts[host].arrive(rank);
        }
        hosts.iter().for_each(|host| host.waits_for(JobMemory::all_arrived));
    }

    #[test]
    fn every_host_learns_of_every_rank_and_of_its_end() {
        let mut hosts = hosts();
        assert!(hosts.iter().all(|host| !host.place.job.all_arrived()));
        arrive_all(&hosts);
        for host in &hosts {
            for rank in 0..4 {
                let job = &host.place.job;
                assert_eq!((job.base(rank), job.build(rank), job.shape(rank)), (1000 + rank, 2000 + rank as u64, 3000));
                for network in 0..NETWORKS_MAX {
                    let first = host.byte(rank, host.layout.connection(network) + LINE).load(Ordering::Relaxed);
                    assert_eq!(first, rank as u8 + 1 + 16 * network as u8);
                }
                assert_eq!(host.byte(rank, host.layout.handlers + LINE).load(Ordering::Relaxed), rank as u8 + 1);
                assert_eq!(host.status(rank).sealed.load(Ordering::Acquire), 3);
            }
        }
        // One has begun to leave: nobody misses it in a barrier before it is gone.
        hosts[1].status(1).entered.store(7, Ordering::Release);
        hosts[1].place.job.begin_to_leave(1);
        for host in [&hosts[0], &hosts[2]] {
            host.waits_for(|job| job.is_leaving(1));
            assert_eq!(host.status(1).entered.load(Ordering::Acquire), u64::MAX);
        }
        hosts[1].place.job.leave(1);
        for host in [&hosts[0], &hosts[2]] {
            host.waits_for(|job| job.loss(1) == Some(Loss::Left));
            assert_eq!(host.status(1).entered.load(Ordering::Acquire), 7);
            assert!(!host.place.job.any_lost());
        }
        // All leave: the hub stays for the last, and nobody counts as lost.
        for (rank, host) in [(0, 0), (2, 0), (3, 2)] {
            hosts[host].place.job.leave(rank);
        }
        let agents: Vec<_> = hosts.iter_mut().map(|host| host.agent.take()).collect();
        std::thread::scope(|scope| agents.into_iter().for_each(|agent| drop(scope.spawn(move || drop(agent)))));
        assert!(hosts.iter().all(|host| !host.place.job.any_lost()));
        assert!((0..4).all(|rank| hosts[0].place.job.loss(rank) == Some(Loss::Left)));
    }

    #[test]
    fn a_wait_that_no_rank_of_any_host_will_end_is_found_by_all() {
        let hosts = hosts();
        arrive_all(&hosts);
        let places = [(0, 0), (2, 0), (3, 2)];
        hosts[1].place.job.leave(1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    places.iter().for_each(|(rank, host)| {
                        hosts[*host].status(*rank).looks.fetch_add(1, Ordering::Release);
                    });
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let wait = |rank, host: usize, number| hosts[host].status(rank).waiting.store(number, Ordering::Release);
            wait(0, 0, 7);
            wait(2, 0, 5);
            // One that computes may end the waits of the others.
            std::thread::sleep(Duration::from_secs(2));
            let early = places.map(|(rank, host)| hosts[host].place.job.hopeless(rank));
            wait(3, 2, 9);
            let start = Instant::now();
            let found = || places.map(|(rank, host)| hosts[host].place.job.hopeless(rank));
            while found() != [7, 5, 9] && start.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!((early, found()), ([0; 3], [7, 5, 9]));
        });
        // They give up.
        for (rank, host) in places {
            hosts[host].place.job.leave(rank);
        }
        std::thread::scope(|scope| hosts.into_iter().for_each(|host| drop(scope.spawn(move || drop(host)))));
    }

    #[test]
    fn a_leader_that_leaves_early_goes_on_to_tell_of_its_mates() {
        let mut hosts = hosts();
        arrive_all(&hosts);
        hosts[0].place.job.leave(0);
        drop(hosts[0].agent.take());
        // Another host would hear of the end of the thread before this.
        hosts[2].place.job.begin_to_leave(3);
        hosts[1].waits_for(|job| job.is_leaving(3));
        assert!(hosts.iter().all(|host| !host.place.job.any_lost()));
        hosts[0].place.job.mark_lost(2, Loss::Exited(3));
        hosts[1].waits_for(|job| job.first_lost() == Some((2, Loss::Exited(3))));
    }

    #[test]
    fn a_death_is_told_to_all_hosts_and_a_lost_host_is_the_loss_of_its_ranks() {
        let mut hosts = hosts();
        arrive_all(&hosts);
        hosts[2].place.job.mark_lost(3, Loss::Signaled(9));
        for host in &hosts {
            host.waits_for(|job| job.first_lost() == Some((3, Loss::Signaled(9))));
        }
        // The hub goes without a word.
        drop(hosts[0].agent.take());
        hosts[1].waits_for(|job| job.loss(0) == Some(Loss::Disconnected) && job.loss(2).is_some());
        assert_eq!(hosts[1].place.job.first_lost(), Some((3, Loss::Signaled(9))));
    }

    #[test]
    fn a_rank_that_comes_and_goes_between_two_looks_has_been_there() {
        let hosts = hosts();
        for rank in 0..4 {
            let host = [0, 1, 0, 2][rank];
            hosts[host].arrive(rank);
            // What it has seen of the others may end it at once.
            hosts[host].place.job.leave(rank);
        }
        for host in &hosts {
            host.waits_for(|job| job.all_arrived() && (0..4).all(|rank| job.loss(rank) == Some(Loss::Left)));
        }
    }

    #[test]
    fn no_host_speaks_for_another() {
        let nodes = Nodes::of_each(vec![0, 1, 2]);
        let (gate, summons) = Gate::open().unwrap();
        let mut line = std::thread::scope(|scope| {
            let caller = scope.spawn(move || summons.call(1).unwrap());
            let hub = Host::new(0, &nodes, 3, gate.admit(2, || Ok(false)).unwrap());
            let mut line = caller.join().unwrap();
            for rank in [0, 2, 3, usize::MAX] {
                line.send(&Word::Gone(rank, Loss::Panicked, 0));
                line.send(&Word::Table(rank, vec![0; HANDLER_ENTRY]));
            }
            line.send(&Word::Table(1, vec![0; 5]));
            line.send(&Word::Leaving(1));
            hub.waits_for(|job| job.is_leaving(1));
            assert!(!hub.place.job.any_lost());
            assert_eq!(hub.status(1).sealed.load(Ordering::Acquire), 0);
            hub.place.job.mark_lost(0, Loss::Unknown);
            line
        });
        let start = Instant::now();
        while !line.receive().contains(&Word::Gone(0, Loss::Unknown, 0)) {
            assert!(start.elapsed() < Duration::from_secs(20), "never told");
        }
    }
}
