//! Finds waits that no rank of any host can end.
//!
//! Where a rank has left, others may wait for something that only it would have done. On one host ranks see that themselves; on
//! several the hub asks all hosts, in rounds. A round begins after all hosts have answered the one before, so between any two
//! rounds there is a moment at which every rank was in the wait that both rounds report. A rank that has woken since then, found
//! nothing and will do nothing itself waits for good if the same holds for all.

use std::time::{Duration, Instant};

use super::Service;
use crate::membership::hosts::{Connection, HUB, HostMessage, Sleeper};

/// Time between two rounds. Chosen: four of the longest sleeps of a rank.
const PAUSE: Duration = Duration::from_millis(200);
/// Rounds in a row that have to agree. Chosen: what is on the network arrives meanwhile.
const ROUNDS: u32 = 5;
/// Times that a rank wakes between two rounds: the first may have begun before the earlier round.
const WAKES: u64 = 2;

/// The hub's knowledge of the waits of ranks.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    number: u64,
    began: Option<Instant>,
    /// Hosts that have not answered.
    missing: Vec<usize>,
    now: Vec<Sleeper>,
    before: Vec<Sleeper>,
    /// Rounds in a row that agreed.
    same: u32,
}

impl Service {
    /// At the hub: asks for waits while a rank has left or is leaving and none is lost.
    pub(super) fn check_for_standstill(&mut self) {
        if self.link.host != HUB {
            return;
        }
        let job = &self.job;
        if job.any_lost() || !(job.any_left() || job.any_leaver() && (0..job.ranks()).any(|rank| job.is_leaving(rank)))
        {
            self.rounds = Rounds { number: self.rounds.number, ..Rounds::default() };
            return;
        }
        // A host that has finished since it was asked does not answer.
        let (connections, finished) = (&self.link.connections, &self.finished);
        let answers = |line: &Connection| !line.is_closed() && !finished[line.host];
        self.rounds.missing.retain(|host| connections.iter().any(|line| line.host == *host && answers(line)));
        match self.rounds.began {
            Some(began) if !self.rounds.missing.is_empty() || began.elapsed() < PAUSE => return,
            Some(_) => self.close_round(),
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

    /// Compares a round that all hosts have answered with the one before.
    fn close_round(&mut self) {
        let rounds = &mut self.rounds;
        rounds.now.sort_by_key(|sleeper| sleeper.rank);
        let waits = |(before, now): (&Sleeper, &Sleeper)| {
            (before.rank, before.wait) == (now.rank, now.wait) && now.wait != 0 && now.wakes >= before.wakes + WAKES
        };
        let is_same = rounds.before.len() == rounds.now.len() && rounds.before.iter().zip(&rounds.now).all(waits);
        rounds.same = if is_same { rounds.same + 1 } else { 0 };
        rounds.before = std::mem::take(&mut rounds.now);
        if rounds.same < ROUNDS {
            return;
        }
        rounds.same = 0;
        let message = HostMessage::Standstill(rounds.before.clone());
        self.link.connections.iter_mut().for_each(|line| line.send(&message));
        self.end_waits(&self.rounds.before);
    }

    fn sleepers(&self) -> Vec<Sleeper> {
        let ranks = self.ours().filter(|rank| self.job.loss(*rank).is_none());
        ranks.map(|rank| self.published.wait(rank)).collect()
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
            _ => tracing::debug!(host, "a message about waits that nobody asked for"),
        }
    }
}
