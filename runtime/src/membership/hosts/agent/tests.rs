//! Hosts of one job in one process, connected by TCP.

use std::sync::Mutex;

use super::*;
use crate::membership::hosts::{HubListener, Sleeper};
use crate::settings::Settings;

/// What one rank publishes, as one host has it.
#[derive(Debug, Clone, Default)]
struct Facts {
    records: Vec<u8>,
    handlers: Option<Vec<u8>>,
    entered: u64,
    wait: u64,
    wakes: u64,
}

/// What all ranks publish.
#[derive(Debug, Clone)]
struct Board(Arc<Mutex<Vec<Facts>>>);

impl Board {
    fn change(&self, rank: usize, change: impl FnOnce(&mut Facts)) {
        change(&mut self.0.lock().unwrap()[rank]);
    }

    fn of(&self, rank: usize) -> Facts {
        self.0.lock().unwrap()[rank].clone()
    }
}

impl Published for Board {
    fn make_room(&self, _: usize) -> Result<()> {
        Ok(())
    }
    fn records(&self, rank: usize) -> Vec<u8> {
        self.of(rank).records
    }
    fn set_records(&self, rank: usize, records: &[u8]) -> Result<()> {
        self.change(rank, |facts| facts.records = records.into());
        Ok(())
    }
    fn handlers(&self, rank: usize) -> Option<Vec<u8>> {
        self.of(rank).handlers
    }
    fn set_handlers(&self, rank: usize, entries: &[u8]) -> Result<()> {
        self.change(rank, |facts| facts.handlers = Some(entries.into()));
        Ok(())
    }
    fn entered(&self, rank: usize) -> u64 {
        self.of(rank).entered
    }
    fn set_entered(&self, rank: usize, entered: u64) {
        self.change(rank, |facts| facts.entered = entered);
    }
    fn wait(&self, rank: usize) -> Sleeper {
        let Facts { wait, wakes, .. } = self.of(rank);
        Sleeper { rank, wait, wakes }
    }
}

/// One host of a job in this process: its roster, what its ranks publish, and its agent.
struct Host {
    job: Arc<JobMemory>,
    board: Board,
    agent: Option<Agent>,
}

impl Host {
    fn new(number: usize, nodes: &Nodes, ranks: usize, connections: Vec<Connection>) -> Host {
        let job = Arc::new(JobMemory::create_on(ranks, nodes, number, &Settings::default()).unwrap());
        let board = Board(Arc::new(Mutex::new(vec![Facts::default(); ranks])));
        let link = Link { host: number, connections };
        let agent = Some(Agent::start(Arc::clone(&job), Box::new(board.clone()), nodes.clone(), link).unwrap());
        Host { job, board, agent }
    }

    /// Lets a rank arrive, with connection records and handlers that tell its number.
    fn arrive(&self, rank: usize) {
        self.board.change(rank, |facts| {
            facts.records = vec![rank as u8 + 1; 300];
            facts.handlers = Some(vec![rank as u8 + 1; 200]);
        });
        self.job.arrive(rank, Arrival { base: 1000 + rank, build: 2000 + rank as u64, shape: 3000 }).unwrap();
    }

    fn waits_for(&self, what: impl Fn(&JobMemory) -> bool) {
        let start = Instant::now();
        while !what(&self.job) {
            assert!(start.elapsed() < Duration::from_secs(20), "never told");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A job of four ranks on three hosts: 0 and 2 on the hub's.
fn hosts() -> [Host; 3] {
    let nodes = Nodes::of_each(&[0, 1, 0, 2]);
    let (listener, hub_address) = HubListener::bind().unwrap();
    let (mut hub, others) = std::thread::scope(|scope| {
        let callers = [1, 2].map(|host| scope.spawn(move || hub_address.call(host).unwrap()));
        let hub = listener.admit(3, || Ok(false)).unwrap();
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
    assert!(hosts.iter().all(|host| !host.job.all_arrived()));
    arrive_all(&hosts);
    for host in &hosts {
        for rank in 0..4 {
            let job = &host.job;
            assert_eq!((job.base(rank), job.build(rank), job.shape(rank)), (1000 + rank, 2000 + rank as u64, 3000));
            let facts = host.board.of(rank);
            assert_eq!(facts.records, [rank as u8 + 1; 300]);
            assert_eq!(facts.handlers, Some(vec![rank as u8 + 1; 200]));
        }
    }
    // One rank has begun to leave: no barrier fails for its absence before it has left.
    hosts[1].board.change(1, |facts| facts.entered = 7);
    hosts[1].job.begin_to_leave(1);
    for host in [&hosts[0], &hosts[2]] {
        host.waits_for(|job| job.is_leaving(1));
        assert_eq!(host.board.of(1).entered, u64::MAX);
    }
    hosts[1].job.leave(1);
    for host in [&hosts[0], &hosts[2]] {
        host.waits_for(|job| job.loss(1) == Some(Loss::Left));
        assert_eq!(host.board.of(1).entered, 7);
        assert!(!host.job.any_lost());
    }
    // All leave: the hub stays for the last, and nobody counts as lost.
    for (rank, host) in [(0, 0), (2, 0), (3, 2)] {
        hosts[host].job.leave(rank);
    }
    let agents: Vec<_> = hosts.iter_mut().map(|host| host.agent.take()).collect();
    std::thread::scope(|scope| agents.into_iter().for_each(|agent| drop(scope.spawn(move || drop(agent)))));
    assert!(hosts.iter().all(|host| !host.job.any_lost()));
    hosts[0].waits_for(|job| (0..4).all(|rank| job.loss(rank) == Some(Loss::Left)));
}

/// What host 1 hears from the hub until it has heard of all ranks of a job of so many hosts, the hub with `ranks` ranks of its own, which
/// have equal handlers.
fn heard_at_the_start(ranks: usize) -> Vec<HostMessage> {
    let nodes = Nodes::of_each(&[&vec![0; ranks][..], &[1, 2]].concat());
    let (listener, hub_address) = HubListener::bind().unwrap();
    let (hub, mut lines) = std::thread::scope(|scope| {
        let callers = [1, 2].map(|host| scope.spawn(move || hub_address.call(host).unwrap()));
        let hub = Host::new(0, &nodes, ranks + 2, listener.admit(3, || Ok(false)).unwrap());
        (hub, callers.map(|caller| caller.join().unwrap()))
    });
    let equal = |rank| {
        hub.board.change(rank, |facts| (facts.records, facts.handlers) = (vec![7; 300], Some(vec![9; 1280])));
    };
    for rank in 0..ranks {
        equal(rank);
        hub.job.arrive(rank, Arrival { base: 0, build: 0, shape: 0 }).unwrap();
    }
    let introduction = Introduction { rank: ranks + 1, pid: 1, base: 0, build: 0, shape: 0, records: vec![7; 300] };
    lines[1].send(&HostMessage::Handlers(ranks + 1, vec![9; 1280]));
    lines[1].send(&HostMessage::Arrived(introduction));
    let (start, mut heard) = (Instant::now(), Vec::new());
    while heard.iter().filter(|message| matches!(message, HostMessage::Arrived(_))).count() < ranks + 1 {
        assert!(start.elapsed() < Duration::from_secs(20), "never told: {heard:?}");
        heard.extend(lines[0].receive());
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..ranks).for_each(|rank| hub.job.leave(rank));
    heard
}

/// A host hears of each rank of the others once, in a message for its handlers and one for the rest, and of equal handlers once.
#[test]
fn a_host_hears_two_messages_of_bounded_size_of_each_rank_at_the_start() {
    for ranks in [1, 20, 80] {
        let heard = heard_at_the_start(ranks);
        assert_eq!(heard.len(), 2 * (ranks + 1), "{ranks} ranks and one of a third host: {heard:?}");
        let bytes: usize = heard.iter().map(|message| postcard::to_stdvec(message).unwrap().len()).sum();
        assert!(bytes < 1300 + (300 + 50) * (ranks + 1), "{bytes} bytes of {ranks} ranks");
    }
}

#[test]
fn equal_handlers_of_ranks_are_entered_and_others_apart() {
    let hosts = hosts();
    for (rank, host) in [0, 1, 0, 2].into_iter().enumerate() {
        let handlers = if rank == 2 { vec![5; 256] } else { vec![4; 128] };
        hosts[host].board.change(rank, |facts| facts.handlers = Some(handlers));
        hosts[host].job.arrive(rank, Arrival { base: 0, build: 0, shape: 0 }).unwrap();
    }
    for host in &hosts {
        host.waits_for(JobMemory::all_arrived);
        let lens = [0, 1, 2, 3].map(|rank| host.board.of(rank).handlers.map(|handlers| handlers.len()));
        assert_eq!(lens, [Some(128), Some(128), Some(256), Some(128)]);
    }
    [0, 1, 2, 3].into_iter().for_each(|rank| hosts[[0, 1, 0, 2][rank]].job.leave(rank));
}

#[test]
fn which_rank_was_missed_first_is_known_on_all_hosts_that_know_who_left_because_of_it() {
    let hosts = hosts();
    arrive_all(&hosts);
    hosts[1].job.miss(3);
    hosts[1].job.leave(1);
    for host in [&hosts[0], &hosts[2]] {
        host.waits_for(|job| job.loss(1) == Some(Loss::Left));
        // As a rank does that needs rank 1.
        host.job.miss(1);
        assert_eq!(host.job.first_missed(), Some(3));
    }
    [(0, 0), (2, 0), (3, 2)].into_iter().for_each(|(rank, host)| hosts[host].job.leave(rank));
    std::thread::scope(|scope| hosts.into_iter().for_each(|host| drop(scope.spawn(move || drop(host)))));
}

#[test]
fn a_wait_that_no_rank_of_any_host_will_end_is_found_by_all() {
    let hosts = hosts();
    arrive_all(&hosts);
    let places = [(0, 0), (2, 0), (3, 2)];
    hosts[1].job.leave(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                places.iter().for_each(|(rank, host)| {
                    hosts[*host].board.change(*rank, |facts| facts.wakes += 1);
                });
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let wait = |rank, host: usize, number| hosts[host].board.change(rank, |facts| facts.wait = number);
        wait(0, 0, 7);
        wait(2, 0, 5);
        // One that computes may end the waits of the others.
        std::thread::sleep(Duration::from_secs(2));
        let early = places.map(|(rank, host)| hosts[host].job.hopeless(rank));
        wait(3, 2, 9);
        let start = Instant::now();
        let found = || places.map(|(rank, host)| hosts[host].job.hopeless(rank));
        while found() != [7, 5, 9] && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!((early, found()), ([0; 3], [7, 5, 9]));
    });
    // They give up.
    for (rank, host) in places {
        hosts[host].job.leave(rank);
    }
    std::thread::scope(|scope| hosts.into_iter().for_each(|host| drop(scope.spawn(move || drop(host)))));
}

#[test]
fn a_host_that_finishes_without_an_answer_does_not_stop_the_search_for_hopeless_waits() {
    let nodes = Nodes::of_each(&[0, 1, 0]);
    let (listener, hub_address) = HubListener::bind().unwrap();
    let (hub, mut line) = std::thread::scope(|scope| {
        let caller = scope.spawn(move || hub_address.call(1).unwrap());
        let hub = Host::new(0, &nodes, 3, listener.admit(2, || Ok(false)).unwrap());
        (hub, caller.join().unwrap())
    });
    hub.board.change(0, |facts| facts.wait = 7);
    hub.board.change(2, |facts| facts.wait = 5);
    line.send(&HostMessage::Gone(1, Loss::Left, 0, None));
    // Host 1 is asked, and finishes in place of an answer. Its connection stays open.
    let start = Instant::now();
    while !line.receive().iter().any(|message| matches!(message, HostMessage::AskWaits(_))) {
        assert!(start.elapsed() < Duration::from_secs(20), "never asked");
        std::thread::sleep(Duration::from_millis(1));
    }
    line.send(&HostMessage::Finished);
    hub.waits_for(|job| {
        [0, 2].into_iter().for_each(|rank| hub.board.change(rank, |facts| facts.wakes += 1));
        [0, 2].map(|rank| job.hopeless(rank)) == [7, 5]
    });
    assert!(!line.is_closed());
    [0, 2].into_iter().for_each(|rank| hub.job.leave(rank));
}

#[test]
fn a_leader_that_leaves_early_goes_on_to_tell_of_its_hosts_ranks() {
    let mut hosts = hosts();
    arrive_all(&hosts);
    hosts[0].job.leave(0);
    drop(hosts[0].agent.take());
    // Another host would hear of the end of the thread before this.
    hosts[2].job.begin_to_leave(3);
    hosts[1].waits_for(|job| job.is_leaving(3));
    assert!(hosts.iter().all(|host| !host.job.any_lost()));
    hosts[0].job.mark_lost(2, Loss::Exited(3));
    hosts[1].waits_for(|job| job.first_lost() == Some((2, Loss::Exited(3))));
}

#[test]
fn a_death_is_told_to_all_hosts_and_a_lost_host_is_the_loss_of_its_ranks() {
    let mut hosts = hosts();
    arrive_all(&hosts);
    hosts[2].job.mark_lost(3, Loss::Signaled(9));
    for host in &hosts {
        host.waits_for(|job| job.first_lost() == Some((3, Loss::Signaled(9))));
    }
    // The hub goes without a word.
    drop(hosts[0].agent.take());
    hosts[1].waits_for(|job| job.loss(0) == Some(Loss::Disconnected) && job.loss(2).is_some());
    assert_eq!(hosts[1].job.first_lost(), Some((3, Loss::Signaled(9))));
}

#[test]
fn the_hub_tells_of_a_host_whose_connection_ended() {
    let mut hosts = hosts();
    arrive_all(&hosts);
    hosts[0].job.mark_lost(2, Loss::Exited(3));
    for host in &hosts {
        host.waits_for(|job| job.first_lost() == Some((2, Loss::Exited(3))));
    }
    // A leader goes without a word.
    drop(hosts[1].agent.take());
    hosts[0].waits_for(|job| job.loss(1) == Some(Loss::Disconnected));
    hosts[2].waits_for(|job| job.loss(1) == Some(Loss::Disconnected));
}

#[test]
fn a_rank_that_arrives_and_leaves_between_two_reads_of_the_roster_is_told() {
    let hosts = hosts();
    for rank in 0..4 {
        let host = [0, 1, 0, 2][rank];
        hosts[host].arrive(rank);
        // A failure of another rank may already be known here and end the wait at once.
        hosts[host].job.leave(rank);
    }
    for host in &hosts {
        host.waits_for(|job| job.all_arrived() && (0..4).all(|rank| job.loss(rank) == Some(Loss::Left)));
    }
}

#[test]
fn no_host_speaks_for_another() {
    let nodes = Nodes::of_each(&[0, 1, 2]);
    let (listener, hub_address) = HubListener::bind().unwrap();
    let mut line = std::thread::scope(|scope| {
        let caller = scope.spawn(move || hub_address.call(1).unwrap());
        let hub = Host::new(0, &nodes, 3, listener.admit(2, || Ok(false)).unwrap());
        let mut line = caller.join().unwrap();
        for rank in [0, 2, 3, usize::MAX] {
            line.send(&HostMessage::Gone(rank, Loss::Panicked, 0, None));
            line.send(&HostMessage::Handlers(rank, vec![0; 128]));
        }
        line.send(&HostMessage::Leaving(1));
        hub.waits_for(|job| job.is_leaving(1));
        assert!(!hub.job.any_lost());
        assert_eq!(hub.board.of(2).handlers, None, "told by host 1");
        hub.job.mark_lost(0, Loss::Unknown);
        line
    });
    let start = Instant::now();
    while !line.receive().contains(&HostMessage::Gone(0, Loss::Unknown, 0, None)) {
        assert!(start.elapsed() < Duration::from_secs(20), "never told");
    }
}
