//! The network: events in virtual time, and their effects on NICs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use super::nic::{Arrived, Nic};
use super::{Config, Node, Random, Time};
use crate::membership::nodes::Nodes;
use crate::transport::error::{Error, Result};
use crate::transport::lock::{Guard, Mutex};
use crate::transport::stream::Frame;
use crate::transport::wire::Channel;

/// Delay of a straggler, in latencies with jitter; see [`Config::stragglers`]. More than a few barriers take.
const STRAGGLE: Time = 50;

/// Every rank is blocked and nothing is in flight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {now} ns every rank is blocked and nothing is under way; waiting ranks: {waiting:?}; seed {seed}")]
pub struct Stalled {
    /// When.
    pub now: Time,
    /// Some of the ranks that wait.
    pub waiting: Vec<usize>,
    /// The network's seed.
    pub seed: u64,
}

/// Traffic between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Crossed {
    /// Frames: fragments of messages, and credits.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Traffic that a rank has sent of its own accord: messages and requests, not replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requests {
    /// How many. One in several fragments counts once.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A simulated network. Clones are the same network.
#[derive(Debug, Clone)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Frame {
        from: u32,
        to: u32,
        bytes: Vec<u8>,
    },
    /// An operation that a NIC does by itself.
    Posted {
        nic: u32,
        number: u32,
    },
    Lost {
        at: u32,
        peer: u32,
    },
    /// A NIC has lost its connection to another.
    Broken {
        nic: u32,
        peer: u32,
    },
    Timer {
        rank: u32,
    },
    Heal,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) config: Config,
    pub(super) nics: Vec<Nic>,
    nodes: Nodes,
    crossed: Crossed,
    on_islands: Crossed,
    /// For each rank.
    requests: Vec<Requests>,
    random: Random,
    pub(super) now: Time,
    serial: u64,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Which side of the partition each rank is on, if there is one.
    sides: Option<Vec<bool>>,
    pub(super) held: Vec<Event>,
    /// Ranks between which nothing passes.
    cut: BTreeSet<(u32, u32)>,
    /// NICs between which nothing passes.
    broken: BTreeSet<(u32, u32)>,
    digest: u64,
    delivered: u64,
    /// Ranks beside the one it happened to that the last step matters to.
    pub(super) signalled: Vec<u32>,
    /// For each rank, whether an event has happened that it may wait for.
    signals: Vec<bool>,
    /// For each rank, how often [`Network::notify`] was called.
    notices: Vec<u64>,
    /// Ranks for which `signals` became true since this list was last read.
    rung: Vec<u32>,
}

impl Network {
    /// A network of NICs that nobody uses yet.
    pub fn new(config: Config) -> Network {
        Network(Arc::new(Mutex::new(State {
            nics: (0..own_nics(&config))
                .map(|nic| Nic::new(nic as u32, (nic % config.ranks) as u32, &config.flow))
                .collect(),
            nodes: match config.dealt {
                0 => Nodes::in_turn(config.ranks, &config.nodes),
                nodes => Nodes::of_each(&(0..config.ranks).map(|rank| (rank % nodes) as u32).collect::<Vec<_>>()),
            },
            crossed: Crossed::default(),
            on_islands: Crossed::default(),
            requests: vec![Requests::default(); config.ranks],
            random: Random::new(config.seed),
            now: 0,
            serial: 0,
            events: BinaryHeap::new(),
            sides: None,
            held: Vec::new(),
            cut: BTreeSet::new(),
            broken: BTreeSet::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            delivered: 0,
            signalled: Vec::new(),
            signals: vec![false; config.ranks],
            notices: vec![0; config.ranks],
            rung: Vec::new(),
            config,
        })))
    }

    pub(super) fn state(&self) -> Guard<'_, State> {
        self.0.lock()
    }

    /// The place of `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn node(&self, rank: usize) -> Node {
        let state = self.state();
        assert!(rank < state.config.ranks, "rank {rank} of {}", state.config.ranks);
        Node::new(self.clone(), rank as u32, rank as u32, Arc::clone(&state.nics[rank].registry), &state.config)
    }

    /// The place of `rank` on the network of its island, if there are islands.
    pub(crate) fn island_node(&self, rank: usize) -> Option<Node> {
        let state = self.state();
        let nic = state.config.ranks + rank;
        let registry =
            state.nics.get(nic).filter(|_| state.config.has_islands()).map(|nic| Arc::clone(&nic.registry))?;
        Some(Node::new(self.clone(), rank as u32, nic as u32, registry, &state.config))
    }

    /// Ranks there are.
    pub fn ranks(&self) -> usize {
        self.state().config.ranks
    }

    /// Which rank is on which node.
    pub fn nodes(&self) -> Nodes {
        self.state().nodes.clone()
    }

    /// Whether ranks of a node reach each other's memory directly.
    pub(crate) fn maps_within_nodes(&self) -> bool {
        self.state().config.shares
    }

    /// The traffic between nodes so far.
    pub fn crossed(&self) -> Crossed {
        self.state().crossed
    }

    /// The traffic on the networks of islands so far.
    pub fn on_islands(&self) -> Crossed {
        self.state().on_islands
    }

    /// The messages and requests that `rank` has sent of its own accord so far. Puts, gets and atomics that a NIC does by itself
    /// ([`Memory::Direct`], [`Memory::Posted`]) are not counted.
    ///
    /// [`Memory::Direct`]: crate::transport::Memory::Direct
    /// [`Memory::Posted`]: crate::transport::Memory::Posted
    pub fn requests(&self, rank: usize) -> Requests {
        self.state().requests[rank]
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.state().now
    }

    /// Lets the next event happen, and gives the rank that it may matter to. `None` when nothing is in flight.
    pub fn step(&self) -> Option<usize> {
        self.state().step().map(|rank| rank as usize)
    }

    /// Lets events happen until nothing is in flight.
    pub fn settle(&self) {
        while self.step().is_some() {}
    }

    /// Whether anything is in flight.
    pub fn is_idle(&self) -> bool {
        self.state().events.is_empty()
    }

    /// A number made of all that has happened: equal for equal runs.
    pub fn digest(&self) -> u64 {
        self.state().digest
    }

    /// Frames handed over so far.
    pub fn delivered(&self) -> u64 {
        self.state().delivered
    }

    /// Signals `rank` after `delay`.
    pub fn timer(&self, rank: usize, delay: Time) {
        let mut state = self.state();
        let at = state.now + delay;
        state.schedule(at, Event::Timer { rank: rank as u32 });
    }

    /// Signals `rank` now: what happened did not come over the network.
    pub fn notify(&self, rank: usize) {
        let mut state = self.state();
        state.notices[rank] += 1;
        state.announce(rank as u32);
    }

    /// How often `rank` was notified of events that did not come over the network.
    pub(crate) fn notices(&self, rank: usize) -> u64 {
        self.state().notices[rank]
    }

    /// Whether something happened that `rank` may wait for, since this was last asked.
    pub fn take_signal(&self, rank: usize) -> bool {
        self.state().take_signal(rank)
    }

    /// The ranks among `rank` and those signalled along with it by the last step, signals taken.
    pub(super) fn take_signals(&self, rank: usize) -> Vec<usize> {
        let mut state = self.state();
        state.rung.clear();
        let mut signalled = std::mem::take(&mut state.signalled);
        signalled.push(rank as u32);
        signalled.sort_unstable();
        signalled.dedup();
        signalled.iter().for_each(|rank| state.signals[*rank as usize] = false);
        signalled.into_iter().map(|rank| rank as usize).collect()
    }

    pub(super) fn stalled(&self, waiting: Vec<usize>) -> Stalled {
        let state = self.state();
        Stalled { now: state.now, waiting, seed: state.config.seed }
    }

    /// Makes a rank's NIC slower by this factor.
    pub fn slow(&self, rank: usize, factor: u64) {
        self.state().nics[rank].slowness = factor;
    }

    /// Ends a rank: its frames stop, and after a while the others know.
    pub fn kill(&self, rank: usize) {
        let mut state = self.state();
        state.nics[rank].dead = true;
        let at = state.now + state.config.detection;
        for other in 0..state.config.ranks {
            if other != rank {
                state.schedule(at, Event::Lost { at: other as u32, peer: rank as u32 });
            }
        }
    }

    /// Whether a rank was ended.
    pub fn is_dead(&self, rank: usize) -> bool {
        self.state().nics[rank].dead
    }

    /// Breaks the connection between two ranks for good. Frames and operations in flight between them are lost.
    pub fn disconnect(&self, a: usize, b: usize) {
        let (a, b) = (a as u32, b as u32);
        let mut state = self.state();
        state.cut.extend([(a, b), (b, a)]);
        let at = state.now + state.config.detection;
        state.schedule(at, Event::Lost { at: a, peer: b });
        state.schedule(at, Event::Lost { at: b, peer: a });
    }

    /// Breaks the connections to `peer` of the interfaces that `rank` has open beside its own, those of its contexts, for good. Frames and
    /// operations in flight on them are lost; only `rank` gets an error. The ranks' own connection goes on.
    pub fn disconnect_contexts(&self, rank: usize, peer: usize) {
        let mut state = self.state();
        let apart = own_nics(&state.config) as u32..state.nics.len() as u32;
        let open = apart.filter(|nic| state.rank_of(*nic) as usize == rank && state.nics[*nic as usize].open);
        let pairs: Vec<(u32, u32)> =
            open.flat_map(|nic| state.nics_of(peer as u32).into_iter().map(move |peer| (nic, peer))).collect();
        let at = state.now + state.config.detection;
        for (nic, peer) in pairs {
            state.broken.extend([(nic, peer), (peer, nic)]);
            state.schedule(at, Event::Broken { nic, peer });
        }
    }

    /// Parts the network for `time`: nothing passes between `side` and the rest; it arrives afterwards.
    pub fn partition(&self, side: &[usize], time: Time) {
        let mut state = self.state();
        let mut sides = vec![false; state.config.ranks];
        side.iter().for_each(|rank| sides[*rank] = true);
        state.sides = Some(sides);
        let at = state.now + time;
        state.schedule(at, Event::Heal);
    }
}

/// NICs that peers send to.
fn own_nics(config: &Config) -> usize {
    if config.has_islands() { 2 * config.ranks } else { config.ranks }
}

impl State {
    pub(super) fn schedule(&mut self, at: Time, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    /// Tells the rank of `nic` that something happened there.
    pub(super) fn announce(&mut self, nic: u32) {
        self.signal(self.rank_of(nic));
        self.nics[nic as usize].tell();
    }

    fn signal(&mut self, rank: u32) {
        if !std::mem::replace(&mut self.signals[rank as usize], true) {
            self.rung.push(rank);
        }
    }

    /// The NICs of `rank`.
    fn nics_of(&self, rank: u32) -> Vec<u32> {
        (0..self.nics.len() as u32).filter(|nic| self.rank_of(*nic) == rank).collect()
    }

    /// The rank that has this NIC.
    pub(super) fn rank_of(&self, nic: u32) -> u32 {
        self.nics[nic as usize].rank
    }

    /// Whether the rank of `nic` was ended.
    pub(super) fn is_dead(&self, nic: u32) -> bool {
        self.nics[self.rank_of(nic) as usize].dead
    }

    /// Opens a further NIC of `rank`, to which peers only send answers: one that was used before and has nothing in flight, or a new one.
    pub(super) fn open_private(&mut self, rank: u32) -> u32 {
        let is_idle = |nic: &Nic| nic.lost.is_empty() && nic.inbox.is_empty() && nic.posts.is_idle();
        let is_free = |nic: &Nic| nic.rank == rank && !nic.open && is_idle(nic);
        let found = (own_nics(&self.config)..self.nics.len()).find(|nic| is_free(&self.nics[*nic]));
        let number = found.unwrap_or(self.nics.len());
        if number == self.nics.len() {
            self.nics.push(Nic::new(number as u32, rank, &self.config.flow));
        }
        let lost = self.nics[rank as usize].lost.clone();
        let nic = &mut self.nics[number];
        (nic.open, nic.lost) = (true, lost);
        number as u32
    }

    /// NICs there are, the ranks' own and others.
    #[cfg(test)]
    pub(super) fn nics(&self) -> usize {
        self.nics.len()
    }

    /// A rank that was told something since this was last asked.
    pub(super) fn next_rung(&mut self) -> Option<usize> {
        self.rung.pop().map(|rank| rank as usize)
    }

    pub(super) fn take_signal(&mut self, rank: usize) -> bool {
        std::mem::take(&mut self.signals[rank])
    }

    /// A number below `end` that the seed decides.
    pub(super) fn choose(&mut self, end: usize) -> usize {
        self.random.below(end as u64) as usize
    }

    pub(super) fn parted(&self, a: u32, b: u32) -> bool {
        let side = |sides: &[bool], nic| sides[self.rank_of(nic) as usize];
        self.sides.as_ref().is_some_and(|sides| side(sides, a) != side(sides, b))
    }

    /// Whether both are on one node, and whether they communicate over the network of an island.
    fn between(&self, from: u32, to: u32) -> (bool, bool) {
        let near = self.nodes.of(self.rank_of(from) as usize) == self.nodes.of(self.rank_of(to) as usize);
        // NICs to which peers only send answers communicate with all others.
        let is_island = |nic: u32| (self.config.ranks..own_nics(&self.config)).contains(&(nic as usize));
        (near, is_island(from) || is_island(to))
    }

    /// Whether nothing gets from `from` to `to` any more.
    pub(super) fn is_cut(&self, from: u32, to: u32) -> bool {
        self.is_dead(to)
            || self.is_dead(from)
            || self.cut.contains(&(self.rank_of(from), self.rank_of(to)))
            || self.broken.contains(&(from, to))
    }

    /// When what `from` sends to `to` now, so many bytes, is there, unless something holds it back.
    pub(super) fn arrival(&mut self, from: u32, to: u32, bytes: usize) -> Time {
        let busy = self.config.busy(bytes);
        let (near, on_island) = self.between(from, to);
        let (latency, jitter) = if on_island { self.config.island_delays() } else { self.config.delays(near) };
        let mut jitter = self.random.below(jitter + 1);
        let stragglers = self.config.stragglers;
        if stragglers > 0 && self.random.below(stragglers) == 0 {
            jitter += STRAGGLE * (self.config.latency + self.config.jitter);
        }
        let now = self.now;
        let nic = &mut self.nics[from as usize];
        nic.free_at = nic.free_at.max(now) + busy * nic.slowness;
        nic.free_at + latency + jitter
    }

    /// Puts a frame on the wire.
    fn post(&mut self, from: u32, to: u32, channel: Channel, bytes: Vec<u8>, fenced: bool) {
        let mut at = self.arrival(from, to, bytes.len());
        let (near, on_island) = self.between(from, to);
        let counts = [(!near).then_some(&mut self.crossed), on_island.then_some(&mut self.on_islands)];
        for count in counts.into_iter().flatten() {
            count.frames += 1;
            count.bytes += bytes.len() as u64;
        }
        let in_order = self.config.order == crate::transport::Order::Posted;
        let link = self.nics[from as usize].links.entry(to).or_default();
        if fenced {
            link.floor = link.floor.max(link.latest);
        }
        at = at.max(link.floor);
        if in_order {
            at = at.max(link.last[channel as usize]);
        }
        link.last[channel as usize] = link.last[channel as usize].max(at);
        link.latest = link.latest.max(at);
        self.schedule(at, Event::Frame { from, to, bytes });
    }

    /// Sends the frames that a flow may send.
    fn pump(&mut self, from: u32, to: u32, channel: Channel) {
        let limits = self.config.flow;
        loop {
            let flow = self.nics[from as usize].links.entry(to).or_default().outflow(channel, &limits);
            let Some((frame, fenced)) = flow.poll(&limits) else { return };
            self.post(from, to, channel, frame, fenced);
        }
    }

    pub(super) fn has_room(&mut self, from: u32, to: u32, channel: Channel) -> bool {
        let limits = self.config.flow;
        self.nics[from as usize].links.entry(to).or_default().outflow(channel, &limits).has_room(&limits)
    }

    /// Takes a message for `to`. The caller has asked for room.
    pub(super) fn send(&mut self, from: u32, to: u32, channel: Channel, id: u8, bytes: Vec<u8>) {
        let limits = self.config.flow;
        if channel != Channel::Reply {
            let rank = self.rank_of(from) as usize;
            let requests = &mut self.requests[rank];
            requests.count += 1;
            requests.bytes += bytes.len() as u64;
        }
        let link = self.nics[from as usize].links.entry(to).or_default();
        if channel == Channel::Message {
            link.flying.insert(link.sent);
            link.sent += 1;
        }
        link.outflow(channel, &limits).push(id, bytes);
        self.pump(from, to, channel);
    }

    /// A message from `from` has been handled at `at`.
    pub(super) fn consumed(&mut self, at: u32, from: u32, channel: Channel) {
        self.nics[at as usize].links.entry(from).or_default().inflow(channel).consumed();
        self.give_credits(at, from, channel);
    }

    fn give_credits(&mut self, at: u32, from: u32, channel: Channel) {
        let limits = self.config.flow;
        let due = self.nics[at as usize].links.entry(from).or_default().inflow(channel).credits_due(&limits);
        if let Some(count) = due {
            self.post(at, from, channel, Frame::Credit { channel, count }.encode(), false);
        }
    }

    fn step(&mut self) -> Option<u32> {
        let Reverse((at, _, event)) = self.events.pop()?;
        self.signalled.clear();
        self.now = self.now.max(at);
        let (kind, a, b, bytes): (u64, u32, u32, &[u8]) = match &event {
            Event::Frame { from, to, bytes } => (1, *from, *to, bytes),
            Event::Posted { nic, number } => (5, *nic, *number, &[]),
            Event::Lost { at, peer } => (2, *at, *peer, &[]),
            Event::Timer { rank } => (3, *rank, 0, &[]),
            Event::Heal => (4, 0, 0, &[]),
            Event::Broken { nic, peer } => (6, *nic, *peer, &[]),
        };
        let words = [self.now, kind, u64::from(a) << 32 | u64::from(b), bytes.len() as u64];
        for word in words.into_iter().chain(bytes.iter().take(32).map(|byte| u64::from(*byte))) {
            self.digest = (self.digest ^ word).wrapping_mul(0x0100_0000_01b3);
        }
        match event {
            Event::Frame { from, to, bytes } => self.frame(from, to, bytes),
            Event::Posted { nic, number } => Some(self.operate(nic, number)),
            Event::Lost { at, peer } => {
                // The ranks have lost each other, by whichever NICs.
                let there = self.nics_of(peer);
                for nic in self.nics_of(at) {
                    there.iter().for_each(|peer| self.lose(nic, *peer, Error::ConnectionReset));
                }
                Some(at)
            }
            Event::Broken { nic, peer } => {
                self.lose(nic, peer, Error::ConnectionReset);
                Some(self.rank_of(nic))
            }
            Event::Timer { rank } => {
                // Nothing came: the device announces nothing.
                self.signal(rank);
                Some(rank)
            }
            Event::Heal => {
                self.sides = None;
                // At once, so that nothing sent later overtakes them.
                for event in std::mem::take(&mut self.held) {
                    let rank = match event {
                        Event::Frame { from, to, bytes } => self.frame(from, to, bytes),
                        Event::Posted { nic, number } => Some(self.operate(nic, number)),
                        Event::Lost { .. } | Event::Broken { .. } | Event::Timer { .. } | Event::Heal => None,
                    };
                    self.signalled.extend(rank);
                }
                Some(0)
            }
        }
    }

    fn lose(&mut self, at: u32, peer: u32, error: Error) {
        let nic = &mut self.nics[at as usize];
        nic.lost.entry(peer).or_insert(error);
        nic.losses += 1;
        nic.server.forget(peer);
        self.end_posted(at, peer, error);
        self.announce(at);
    }

    fn frame(&mut self, from: u32, to: u32, bytes: Vec<u8>) -> Option<u32> {
        let receiver = self.rank_of(to);
        if self.parted(from, to) {
            self.held.push(Event::Frame { from, to, bytes });
            return Some(receiver);
        }
        if self.is_cut(from, to) {
            return Some(receiver);
        }
        self.delivered += 1;
        let limits = self.config.flow;
        match Frame::decode(&bytes) {
            Some(Frame::Credit { channel, count }) => {
                self.nics[to as usize].links.entry(from).or_default().outflow(channel, &limits).grant(count, &limits);
                self.pump(to, from, channel);
                if channel == Channel::Reply {
                    self.answer(to);
                }
                // There may be room now.
                self.announce(to);
            }
            Some(Frame::Fragment { channel, id, number, offset, total, bytes, .. }) => {
                let flow = self.nics[to as usize].links.entry(from).or_default().inflow(channel);
                match flow.take(id, number, offset, total, bytes, &limits) {
                    Ok(Some((id, bytes))) => self.message(from, to, channel, id, number, bytes),
                    Ok(None) => self.give_credits(to, from, channel),
                    Err(error) => self.lose(to, from, error),
                }
            }
            None => self.lose(to, from, Error::Io("a frame that no sender of ours makes")),
        }
        Some(receiver)
    }

    fn message(&mut self, from: u32, to: u32, channel: Channel, id: u8, number: u32, bytes: Vec<u8>) {
        if channel == Channel::Message {
            self.nics[from as usize].links.entry(to).or_default().flying.remove(&u64::from(number));
            // A flush may wait for this.
            self.announce(from);
            self.signalled.push(self.rank_of(from));
        }
        if channel == Channel::Request && self.config.served_asleep {
            self.nics[to as usize].server.serve(from, &bytes);
            // Its memory may have changed under its eyes.
            self.announce(to);
            self.answer(to);
            self.consumed(to, from, channel);
            return;
        }
        let nic = &mut self.nics[to as usize];
        nic.inbox.push_back(Arrived { from, channel, id, bytes });
        self.announce(to);
    }

    /// Sends the answers of a NIC's server that find room.
    fn answer(&mut self, at: u32) {
        let mut ready = Vec::new();
        let limits = self.config.flow;
        let nic = &mut self.nics[at as usize];
        let (server, links) = (&mut nic.server, &mut nic.links);
        server.poll(|peer, bytes| {
            let flow = links.entry(peer).or_default().outflow(Channel::Reply, &limits);
            let room = flow.has_room(&limits);
            if room {
                flow.push(0, bytes.to_vec());
                ready.push(peer);
            }
            room
        });
        ready.into_iter().for_each(|peer| self.pump(at, peer, Channel::Reply));
    }

    /// Whether `from` may send to `to` at all.
    pub(super) fn check(&self, from: u32, to: u32) -> Result<()> {
        if self.is_dead(from) {
            return Err(Error::ConnectionReset);
        }
        self.nics[from as usize].lost.get(&to).map_or(Ok(()), |error| Err(*error))
    }
}
