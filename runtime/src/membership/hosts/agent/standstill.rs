//! Finds waits that no rank of any host can end.
//!
//! Where a rank has left, others may wait for something that only it would have done; and all ranks may be in collective calls that wait
//! for each other, one in a barrier of the world and another in one of a team, say. On one host ranks see that themselves; on
//! several the hub asks all hosts, in rounds. A round begins after all hosts have answered the one before, so between any two
//! rounds there is a moment at which every rank was in the wait that both rounds report. A rank that has woken since then, found
//! nothing and will do nothing itself waits for good if the same holds for all.
//!
//! A rank shows a collective wait only while all that it has put is in effect, and with the messages that it has sent and delivered. If
//! these are equal over all ranks, nothing is on the network either, so two rounds that agree are proof. Of other waits it is not known
//! what is on the network: more rounds have to agree.

use std::time::{Duration, Instant};

use super::Service;
use crate::membership::hosts::{Collective, Conflict, Connection, HUB, HostMessage, Sleeper};

/// Time between two rounds. Chosen: four of the longest sleeps of a rank.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest time between two rounds about collective waits: twice as long after each that shows progress. Chosen: ranks that wait for one
/// that computes cost the hosts little.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the ranks of the hub's host are in their collective waits before it asks the others. Chosen: longer than most calls take.
const LONG: Duration = Duration::from_millis(500);
/// Rounds in a row that have to agree. Chosen: what is on the network arrives meanwhile.
const ROUNDS: u32 = 5;
/// Times that a rank wakes between two rounds: the first may have begun before the earlier round.
const WAKES: u64 = 2;

/// The hub's knowledge of the waits of ranks.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    number: u64,
    began: Option<Instant>,
    /// Time to the next round.
    pause: Duration,
    /// Hosts that have not answered.
    missing: Vec<usize>,
    now: Vec<Sleeper>,
    before: Vec<Sleeper>,
    /// Rounds in a row that agreed.
    same: u32,
    /// The collective waits of this host's ranks, and since when they are in them.
    together: Option<(Instant, Vec<u64>)>,
}

impl Service {
    /// At the hub: asks for waits while a rank has left or is leaving and none is lost, and while all ranks of this host are in collective
    /// waits for long.
    pub(super) fn check_for_standstill(&mut self) {
        if self.link.host != HUB {
            return;
        }
        let job = &self.job;
        let is_whole = !job.any_lost();
        let some_leave =
            is_whole && (job.any_left() || job.any_leaver() && (0..job.ranks()).any(|rank| job.is_leaving(rank)));
        if !some_leave && !(is_whole && self.wait_together()) {
            let (number, together) = (self.rounds.number, self.rounds.together.take());
            self.rounds = Rounds { number, together, pause: PAUSE, ..Rounds::default() };
            return;
        }
        // A host that has finished since it was asked does not answer.
        let (connections, finished) = (&self.link.connections, &self.finished);
        let answers = |line: &Connection| !line.is_closed() && !finished[line.host];
        self.rounds.missing.retain(|host| connections.iter().any(|line| line.host == *host && answers(line)));
        match self.rounds.began {
            Some(began) if !self.rounds.missing.is_empty() || began.elapsed() < self.rounds.pause => return,
            Some(_) => self.close_round(some_leave),
            None => {}
        }
        let (rounds, finished) = (&mut self.rounds, &self.finished);
        rounds.number += 1;
        rounds.began = Some(Instant::now());
        let is_open = |line: &Connection| !line.is_closed() && !finished[line.host];
        rounds.missing = self.link.connections.iter().filter(|line| is_open(line)).map(|line| line.host).collect();
        let message = HostMessage::AskWaits(rounds.number);
        let asked = self.link.connections.iter_mut().filter(|line| is_open(line));
        asked.for_each(|line| line.send(&message));
        self.rounds.now = self.sleepers();
    }

    /// Whether all ranks of this host have been in the same collective waits for [`LONG`].
    fn wait_together(&mut self) -> bool {
        let waits: Vec<u64> = self.ours().map(|rank| self.job.together(rank)).collect();
        if waits.contains(&0) {
            self.rounds.together = None;
            return false;
        }
        match &self.rounds.together {
            Some((since, before)) if *before == waits => since.elapsed() >= LONG,
            _ => {
                self.rounds.together = Some((Instant::now(), waits));
                false
            }
        }
    }

    /// Compares a round that all hosts have answered with the one before.
    fn close_round(&mut self, some_leave: bool) {
        let ranks = self.job.ranks();
        let rounds = &mut self.rounds;
        rounds.now.sort_by_key(|sleeper| sleeper.rank);
        let waits = |(before, now): (&Sleeper, &Sleeper)| {
            (before.rank, before.wait) == (now.rank, now.wait) && now.wait != 0 && has_woken(before, now)
        };
        let pairs = || rounds.before.iter().zip(&rounds.now);
        let is_same = rounds.before.len() == rounds.now.len() && pairs().all(waits);
        let deadlock = if some_leave { None } else { deadlock(ranks, pairs()) };
        rounds.same = if is_same { rounds.same + 1 } else { 0 };
        rounds.before = std::mem::take(&mut rounds.now);
        rounds.pause = if some_leave { PAUSE } else { (2 * rounds.pause).min(LONGEST_PAUSE) };
        if let Some((waits, conflict)) = deadlock {
            let message = HostMessage::Deadlock(waits, conflict);
            self.link.connections.iter_mut().for_each(|line| line.send(&message));
            self.enter_waits(HUB, message);
            return;
        }
        if !some_leave || rounds.same < ROUNDS {
            return;
        }
        rounds.same = 0;
        let message = HostMessage::Standstill(rounds.before.clone());
        self.link.connections.iter_mut().for_each(|line| line.send(&message));
        self.end_waits(&self.rounds.before);
    }

    fn sleepers(&self) -> Vec<Sleeper> {
        let (mut first, mut has_other) = (None, false);
        let ranks = self.ours().filter(|rank| self.job.loss(*rank).is_none());
        let sleeper = |rank| {
            // Before the wakings: those read after it were in that wait, or later.
            let wait = self.job.together(rank);
            let collective = (wait != 0).then(|| {
                let (doing, is_first) = (self.job.doing_words(rank), first.is_none());
                let differs = *first.get_or_insert(doing) != doing;
                let is_told = is_first || differs && !std::mem::replace(&mut has_other, true);
                Collective { wait, traffic: self.job.traffic_together(rank), doing: is_told.then_some(doing) }
            });
            Sleeper { collective, ..self.published.wait(rank) }
        };
        ranks.map(sleeper).collect()
    }

    fn end_waits(&self, sleepers: &[Sleeper]) {
        let ours = sleepers.iter().filter(|sleeper| sleeper.rank < self.job.ranks() && self.job.is_here(sleeper.rank));
        ours.for_each(|sleeper| self.job.set_hopeless(sleeper.rank, sleeper.wait));
    }

    /// Enters a question of the hub, an answer to it, or the outcome.
    pub(super) fn enter_waits(&mut self, host: usize, message: HostMessage) {
        match message {
            HostMessage::AskWaits(number) if host == HUB => {
                let answer = HostMessage::Waits(number, self.sleepers());
                let to_hub = self.link.connections.iter_mut().filter(|line| line.host == HUB);
                to_hub.for_each(|line| line.send(&answer));
            }
            HostMessage::Waits(number, sleepers)
                if number == self.rounds.number && self.rounds.missing.contains(&host) =>
            {
                self.rounds.missing.retain(|missing| *missing != host);
                let is_theirs =
                    |sleeper: &&Sleeper| sleeper.rank < self.job.ranks() && self.nodes.of(sleeper.rank) == host;
                self.rounds.now.extend(sleepers.iter().filter(is_theirs));
            }
            HostMessage::Standstill(sleepers) if host == HUB => self.end_waits(&sleepers),
            HostMessage::Deadlock(waits, Conflict { ours, rank, theirs }) if host == HUB => {
                self.job.set_deadlocked_hosts(&waits, rank, [ours, theirs]);
            }
            _ => tracing::debug!(host, "a message about waits that nobody asked for"),
        }
    }
}

/// Whether a rank has polled between two rounds.
fn has_woken(before: &Sleeper, now: &Sleeper) -> bool {
    now.wakes >= before.wakes + WAKES
}

/// The collective waits of all ranks, and what two of them wait in, if two rounds prove that none can end.
fn deadlock<'a>(
    ranks: usize,
    rounds: impl Iterator<Item = (&'a Sleeper, &'a Sleeper)>,
) -> Option<(Vec<(usize, u64)>, Conflict)> {
    let (mut waits, mut traffic, mut texts) = (Vec::new(), [0u64; 2], Vec::new());
    for (before, now) in rounds {
        let (then, is) = (before.collective?, now.collective?);
        let is_same = (before.rank, then.wait, then.traffic) == (now.rank, is.wait, is.traffic);
        if !is_same || !has_woken(before, now) {
            return None;
        }
        waits.push((now.rank, is.wait));
        traffic.iter_mut().zip(is.traffic).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
        texts.extend(is.doing.map(|doing| (now.rank, doing)));
    }
    let [sent, delivered] = traffic;
    if waits.len() < ranks || sent != delivered {
        return None;
    }
    // Rank 0 is the first of its host, and of all.
    let (_, ours) = *texts.first()?;
    let (rank, theirs) = texts.into_iter().find(|(_, doing)| *doing != ours).unwrap_or((0, ours));
    Some((waits, Conflict { ours, rank, theirs }))
}
