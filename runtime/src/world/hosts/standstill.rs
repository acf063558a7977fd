//! Where a rank has left, others may wait for what nobody will do any more. On one host they see so themselves; on several the
//! hub asks all hosts, in rounds. A round begins when the one before has been answered by all, so between any two there is a
//! moment at which every rank was in the wait that both tell of. Who has looked up since then and found nothing, and will do
//! nothing itself, waits for good if all do.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Desk;
use crate::membership::hosts::{HUB, Line, Sleeper, Word};

/// From one round to the next.
const PAUSE: Duration = Duration::from_millis(200);
/// So many rounds in which all is as in the one before. What is on the network arrives meanwhile.
const ROUNDS: u32 = 5;
/// So often a rank looks up between two rounds: the first look may have begun before.
const LOOKS: u64 = 2;

/// What the hub knows of waits.
#[derive(Debug, Default)]
pub(super) struct Census {
    round: u64,
    began: Option<Instant>,
    /// Hosts that have not answered.
    missing: Vec<usize>,
    now: Vec<Sleeper>,
    before: Vec<Sleeper>,
    same: u32,
}

impl Desk {
    /// Takes the census, at the hub, while a rank has left or is leaving and none is lost.
    pub(super) fn look_for_standstill(&mut self) {
        if self.link.host != HUB {
            return;
        }
        let job = &self.job;
        if job.any_lost() || !(job.any_left() || (0..job.ranks()).any(|rank| job.is_leaving(rank))) {
            self.census = Census { round: self.census.round, ..Census::default() };
            return;
        }
        match self.census.began {
            Some(began) if !self.census.missing.is_empty() || began.elapsed() < PAUSE => return,
            Some(_) => self.close_round(),
            None => {}
        }
        let (census, over) = (&mut self.census, &self.over);
        census.round += 1;
        census.began = Some(Instant::now());
        let lines = || self.link.lines.iter().filter(|line| !line.is_closed() && !over[line.host]);
        census.missing = lines().map(|line| line.host).collect();
        let word = Word::Ask(census.round);
        self.link
            .lines
            .iter_mut()
            .filter(|line| !line.is_closed() && !over[line.host])
            .for_each(|line| line.send(&word));
        self.census.now = self.sleepers();
    }

    /// All have answered.
    fn close_round(&mut self) {
        let census = &mut self.census;
        census.now.sort_by_key(|sleeper| sleeper.rank);
        let waits = |(before, now): (&Sleeper, &Sleeper)| {
            (before.rank, before.wait) == (now.rank, now.wait) && now.wait != 0 && now.looks >= before.looks + LOOKS
        };
        let is_same = census.before.len() == census.now.len() && census.before.iter().zip(&census.now).all(waits);
        census.same = if is_same { census.same + 1 } else { 0 };
        census.before = std::mem::take(&mut census.now);
        if census.same < ROUNDS {
            return;
        }
        census.same = 0;
        let word = Word::Standstill(census.before.clone());
        self.link.lines.iter_mut().for_each(|line| line.send(&word));
        self.give_up(&self.census.before);
    }

    fn sleepers(&self) -> Vec<Sleeper> {
        let ranks = self.ours().filter(|rank| self.job.loss(*rank).is_none());
        let look = |rank| {
            let status = self.status(rank);
            // The wait first: looks that come with it were made in it, or later.
            let wait = status.waiting.load(Ordering::Acquire);
            Sleeper { rank, wait, looks: status.looks.load(Ordering::Acquire) }
        };
        ranks.map(look).collect()
    }

    fn give_up(&self, sleepers: &[Sleeper]) {
        let ours = sleepers.iter().filter(|sleeper| sleeper.rank < self.job.ranks() && self.job.is_here(sleeper.rank));
        ours.for_each(|sleeper| self.job.set_hopeless(sleeper.rank, sleeper.wait));
    }

    /// A question of the hub's, an answer, or what came of them.
    pub(super) fn hear_of_waits(&mut self, host: usize, word: Word) {
        match word {
            Word::Ask(round) if host == HUB => {
                let answer = Word::Waits(round, self.sleepers());
                self.link
                    .lines
                    .iter_mut()
                    .filter(|line: &&mut Line| line.host == HUB)
                    .for_each(|line| line.send(&answer));
            }
            Word::Waits(round, sleepers) if round == self.census.round && self.census.missing.contains(&host) => {
                self.census.missing.retain(|missing| *missing != host);
                self.census.now.extend(
                    sleepers
                        .iter()
                        .filter(|sleeper| sleeper.rank < self.job.ranks() && self.nodes.of(sleeper.rank) == host),
                );
            }
            Word::Standstill(sleepers) if host == HUB => self.give_up(&sleepers),
            _ => tracing::debug!(host, "spoke of waits that nobody asked for"),
        }
    }
}
