//! Agreement among the ranks that live: all get the same list of the ranks that are gone, and of those that leave, though ranks fail
//! meanwhile.
//!
//! The algorithm is uniform consensus with a perfect failure detector and a leader that changes when it fails: "hierarchical uniform
//! consensus" (Guerraoui and Rodrigues; Cachin, Guerraoui and Rodrigues, *Introduction to Reliable and Secure Distributed Programming*,
//! 2011, algorithm 5.4), with the leader's collection of proposals put before it, as ULFM's `MPI_Comm_shrink` and `MPI_Comm_agree` need
//! it (Bland et al. 2013). The detector is the roster.
//!
//! The leader is the lowest rank that is not known to be gone.
//!
//! 1. Every rank sends its leader [`Step::Join`]: the ranks that it knows to be gone, its flags, and the proposal that it accepted last.
//! 2. When all ranks that are not gone have joined, the leader sends [`Step::Propose`]: of the accepted proposals the one of the latest
//!    leader; if there is none, the union of the lists, and the flags that all gave.
//! 3. A rank accepts a proposal of its leader, or of a later one, and sends [`Step::Accept`].
//! 4. When all ranks that are not gone have accepted, the leader decides, and sends [`Step::Decide`].
//!
//! If the leader fails, the next one asks all ([`Step::Ask`]), and begins at 1. A rank that has decided answers every question about that
//! agreement with its decision, also while it is in the next one.
//!
//! Why no two ranks decide differently: a leader decides when every rank that it does not know to be gone has accepted its proposal. A
//! later leader collects from every rank that it does not know to be gone. A rank that has joined a later leader accepts nothing from
//! an earlier one. So the later leader finds the proposal that was decided on, and proposes it again. A rank is at most one agreement
//! ahead of another, since nobody decides before all have joined: two decisions are kept.
//!
//! No socket and no clock: messages and failures come in, messages go out.

use std::collections::{BTreeMap, BTreeSet};

/// What ranks agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Ranks that are gone, in ascending order.
    pub gone: Vec<u32>,
    /// Ranks that take part and leave the job, in ascending order. Ranks that are gone may be among them.
    pub leaving: Vec<u32>,
    /// The bits that all ranks gave which joined and do not leave.
    pub flags: u64,
}

/// A message of agreement `number`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// Which agreement, from 1.
    pub number: u64,
    /// Which step of it.
    pub step: Step,
}

/// The steps of an agreement, as messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The sender is in the agreement, and takes the receiver for its leader.
    Join {
        /// Its own proposal.
        own: Decision,
        /// The proposal that it has accepted last, and the leader that had made it.
        accepted: Option<(u32, Decision)>,
    },
    /// The leader's proposal.
    Propose(Decision),
    /// The sender accepts the receiver's proposal.
    Accept,
    /// What is decided.
    Decide(Decision),
    /// The sender is the leader now.
    Ask,
}

/// The content of a rank's join: its own proposal, and the proposal that it accepted last, with the leader of that.
type Joined = (Decision, Option<(u32, Decision)>);

/// This rank's part in one agreement after the other.
#[derive(Debug)]
pub struct Agreement {
    rank: u32,
    size: u32,
    /// The agreement entered last.
    number: u64,
    /// Ranks known to be gone.
    gone: BTreeSet<u32>,
    own: Decision,
    leader: u32,
    accepted: Option<(u32, Decision)>,
    /// Joins from ranks that take this one for their leader, by agreement and rank. These ranks may be one agreement ahead.
    joined: BTreeMap<(u64, u32), Joined>,
    /// The proposal of this rank as the leader, and the ranks that have accepted it.
    proposed: Option<Decision>,
    accepters: BTreeSet<u32>,
    /// The last two decisions, by agreement.
    decided: BTreeMap<u64, Decision>,
    out: Vec<(u32, Word)>,
}

impl Agreement {
    /// That of rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> Agreement {
        Agreement {
            rank: rank as u32,
            size: size as u32,
            number: 0,
            gone: BTreeSet::new(),
            own: Decision { gone: Vec::new(), leaving: Vec::new(), flags: 0 },
            leader: 0,
            accepted: None,
            joined: BTreeMap::new(),
            proposed: None,
            accepters: BTreeSet::new(),
            decided: BTreeMap::new(),
            out: Vec::new(),
        }
    }

    /// The agreement entered last; 0: none.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Enters the next agreement, with these flags, or to leave. The agreement before it is already decided here.
    pub fn enter(&mut self, flags: u64, leaves: bool) {
        debug_assert!(self.number == 0 || self.decided.contains_key(&self.number), "one agreement at a time");
        self.number += 1;
        let leaving = if leaves { vec![self.rank] } else { Vec::new() };
        let flags = if leaves { u64::MAX } else { flags };
        self.own = Decision { gone: self.gone.iter().copied().collect(), leaving, flags };
        (self.accepted, self.proposed) = (None, None);
        self.accepters.clear();
        let number = self.number;
        self.joined.retain(|(of, _), _| *of >= number);
        self.follow();
    }

    /// `rank` has failed, or left.
    pub fn lose(&mut self, rank: usize) {
        if !self.gone.insert(rank as u32) || !self.is_open() {
            return;
        }
        if self.leader == rank as u32 { self.follow() } else { self.lead() }
    }

    /// A message has come.
    pub fn receive(&mut self, from: usize, Word { number, step }: Word) {
        let from = from as u32;
        if let Some(decision) = self.decided.get(&number) {
            if matches!(step, Step::Join { .. } | Step::Ask | Step::Propose(_)) {
                let decision = decision.clone();
                self.out.push((from, Word { number, step: Step::Decide(decision) }));
            }
            return;
        }
        match step {
            Step::Join { own, accepted } if number >= self.number => {
                self.joined.insert((number, from), (own, accepted));
                self.lead();
            }
            // Nobody proposes or decides in an agreement that this rank has not joined.
            _ if number != self.number => {}
            Step::Join { .. } => {}
            Step::Ask if self.may_lead(from) => {
                self.leader = from;
                self.join();
            }
            Step::Propose(decision) if self.may_lead(from) => {
                self.leader = from;
                self.accepted = Some((from, decision));
                self.send(from, Step::Accept);
            }
            // From a leader that is gone.
            Step::Ask | Step::Propose(_) => {}
            Step::Accept => {
                self.accepters.insert(from);
                self.lead();
            }
            Step::Decide(decision) => self.decide(decision),
        }
    }

    /// The decision of agreement `number`, once there is one here.
    pub fn decision(&self, number: u64) -> Option<&Decision> {
        self.decided.get(&number)
    }

    /// The messages to be sent since this was called last, each with its receiver.
    pub fn take_out(&mut self) -> Vec<(u32, Word)> {
        std::mem::take(&mut self.out)
    }

    /// [`Agreement::take_out`] gives this message once more: it could not be sent.
    pub fn send_again(&mut self, to: u32, word: Word) {
        self.out.push((to, word));
    }

    /// Whether this rank may turn to `from`, or has.
    fn may_lead(&self, from: u32) -> bool {
        from >= self.leader && !self.gone.contains(&from)
    }

    /// Whether this rank is in an agreement that is not decided here.
    pub fn is_open(&self) -> bool {
        self.number > 0 && !self.decided.contains_key(&self.number)
    }

    fn others(&self) -> Vec<u32> {
        (0..self.size).filter(|rank| *rank != self.rank && !self.gone.contains(rank)).collect()
    }

    fn send(&mut self, to: u32, step: Step) {
        self.out.push((to, Word { number: self.number, step }));
    }

    fn send_to_all(&mut self, step: &Step) {
        self.others().into_iter().for_each(|rank| self.send(rank, step.clone()));
    }

    /// Turns to the lowest rank that is not gone.
    fn follow(&mut self) {
        // Never back: a rank that leads knows that all lower ones are gone.
        self.leader = (self.leader..self.size).find(|rank| !self.gone.contains(rank)).unwrap_or(self.rank);
        if self.leader == self.rank {
            self.send_to_all(&Step::Ask);
            self.lead();
        } else {
            self.join();
        }
    }

    fn join(&mut self) {
        let join = Step::Join { own: self.own.clone(), accepted: self.accepted.clone() };
        self.send(self.leader, join);
    }

    /// Proposes and decides, if this rank is the leader and has heard from all.
    fn lead(&mut self) {
        if !self.is_open() || self.leader != self.rank {
            return;
        }
        let others = self.others();
        if self.proposed.is_none() {
            let heard: Option<Vec<_>> = others.iter().map(|rank| self.joined.get(&(self.number, *rank))).collect();
            let Some(heard) = heard else { return };
            let earlier = heard.iter().filter_map(|(_, accepted)| accepted.as_ref()).chain(&self.accepted);
            let decision = match earlier.max_by_key(|(leader, _)| *leader) {
                Some((_, decision)) => decision.clone(),
                None => {
                    let all = || heard.iter().map(|(own, _)| own).chain([&self.own]);
                    let gone: BTreeSet<u32> =
                        all().flat_map(|own| own.gone.iter().copied()).chain(self.gone.iter().copied()).collect();
                    let leaving: BTreeSet<u32> = all().flat_map(|own| own.leaving.iter().copied()).collect();
                    let flags = all().fold(u64::MAX, |flags, own| flags & own.flags);
                    Decision { gone: gone.into_iter().collect(), leaving: leaving.into_iter().collect(), flags }
                }
            };
            self.proposed = Some(decision.clone());
            self.accepted = Some((self.rank, decision.clone()));
            self.send_to_all(&Step::Propose(decision));
        }
        if others.iter().all(|rank| self.accepters.contains(rank)) {
            let decision = self.proposed.clone().expect("proposed above");
            self.decide(decision);
        }
    }

    fn decide(&mut self, decision: Decision) {
        if self.leader == self.rank {
            self.send_to_all(&Step::Decide(decision.clone()));
        } else {
            // These ranks have turned to this one already, which has heard the decision of a leader that is gone.
            let waiting: Vec<u32> =
                self.joined.range((self.number, 0)..=(self.number, u32::MAX)).map(|(at, _)| at.1).collect();
            waiting.into_iter().for_each(|rank| self.send(rank, Step::Decide(decision.clone())));
        }
        self.decided.insert(self.number, decision);
        let number = self.number;
        self.decided.retain(|of, _| of + 1 >= number);
    }
}

/// A message as bytes, and back.
impl Word {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.number];
        let put = |words: &mut Vec<u64>, decision: &Decision| {
            words.push(decision.flags);
            for ranks in [&decision.gone, &decision.leaving] {
                words.push(ranks.len() as u64);
                words.extend(ranks.iter().map(|rank| u64::from(*rank)));
            }
        };
        match &self.step {
            Step::Join { own, accepted } => {
                words.extend([0, accepted.as_ref().map_or(0, |(leader, _)| 1 + u64::from(*leader))]);
                put(&mut words, own);
                accepted.iter().for_each(|(_, decision)| put(&mut words, decision));
            }
            Step::Propose(decision) => {
                words.push(1);
                put(&mut words, decision);
            }
            Step::Accept => words.push(2),
            Step::Decide(decision) => {
                words.push(3);
                put(&mut words, decision);
            }
            Step::Ask => words.push(4),
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// The message that these bytes are, of a job of `size` ranks; `None` if they are none.
    pub fn decode(bytes: &[u8], size: usize) -> Option<Word> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let rank = |word: u64| u32::try_from(word).ok().filter(|rank| (*rank as usize) < size);
        let mut take = || words.next();
        let number = take().filter(|number| *number > 0)?;
        let what = take()?;
        let decision = |take: &mut dyn FnMut() -> Option<u64>| {
            let flags = take()?;
            let mut ranks = || {
                let len = take()?;
                // Bounded by what follows: each step takes a word.
                let ranks: Option<Vec<u32>> = (0..len.min(size as u64 + 1)).map(|_| rank(take()?)).collect();
                ranks.filter(|ranks| ranks.len() as u64 == len && ranks.is_sorted())
            };
            Some(Decision { gone: ranks()?, leaving: ranks()?, flags })
        };
        let step = match what {
            0 => {
                let leader = take()?;
                let own = decision(&mut take)?;
                let accepted = match leader.checked_sub(1) {
                    None => None,
                    Some(leader) => Some((rank(leader)?, decision(&mut take)?)),
                };
                Step::Join { own, accepted }
            }
            1 => Step::Propose(decision(&mut take)?),
            2 => Step::Accept,
            3 => Step::Decide(decision(&mut take)?),
            4 => Step::Ask,
            _ => return None,
        };
        (rest.is_empty() && take().is_none()).then_some(Word { number, step })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Numbers that depend on the seed alone (xorshift, Marsaglia 2003).
    struct Random(u64);

    impl Random {
        fn new(seed: u64) -> Random {
            Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        }

        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 16) % end
        }
    }

    /// Ranks whose messages arrive at random, and that fail at random: also while they send to all, and the one that leads.
    struct Job {
        ranks: Vec<Agreement>,
        alive: Vec<bool>,
        /// From, to, bytes.
        under_way: Vec<(usize, usize, Vec<u8>)>,
        /// Ranks that have not learnt of an end yet, and the rank that ended.
        untold: Vec<(usize, usize)>,
        random: Random,
    }

    impl Job {
        fn new(size: usize, seed: u64) -> Job {
            Job {
                ranks: (0..size).map(|rank| Agreement::new(rank, size)).collect(),
                alive: vec![true; size],
                under_way: Vec::new(),
                untold: Vec::new(),
                random: Random::new(seed),
            }
        }

        /// Sends what `rank` has to send; if it dies now, only a part of that.
        fn flush(&mut self, rank: usize, dies: bool) {
            let mut out = self.ranks[rank].take_out();
            if dies {
                // Any part: no order is promised.
                let random = &mut self.random;
                out.retain(|_| random.below(2) == 0);
            }
            self.under_way.extend(out.into_iter().map(|(to, word)| (rank, to as usize, word.encode())));
            if dies {
                self.alive[rank] = false;
                self.untold.extend((0..self.ranks.len()).filter(|at| *at != rank).map(|at| (at, rank)));
            }
        }

        fn pick(&mut self, below: usize) -> usize {
            self.random.below(below as u64) as usize
        }
    }

    /// Several agreements in a row, with so many deaths among them.
    fn run(seed: u64, size: usize, deaths: usize, agreements: u64) {
        let mut job = Job::new(size, seed);
        let mut deaths_left = deaths.min(size - 1);
        let mut decisions: BTreeMap<u64, Decision> = BTreeMap::new();
        for step in 0.. {
            assert!(step < 1_000_000, "no end: seed {seed}");
            let live: Vec<usize> = (0..size).filter(|rank| job.alive[*rank]).collect();
            // A rank enters at any time. After its last agreement it only answers.
            let ready: Vec<usize> = live
                .iter()
                .copied()
                .filter(|rank| {
                    let number = job.ranks[*rank].number();
                    number < agreements && (number == 0 || job.ranks[*rank].decision(number).is_some())
                })
                .collect();
            let all_done = live.iter().all(|rank| job.ranks[*rank].decision(agreements).is_some());
            if all_done {
                break;
            }
            let rank = match job.pick(3) {
                0 if !ready.is_empty() => {
                    let rank = ready[job.pick(ready.len())];
                    job.ranks[rank].enter(rank as u64 | 1 << 40, rank % 3 == 2);
                    rank
                }
                1 if !job.untold.is_empty() => {
                    let at = job.pick(job.untold.len());
                    let (rank, dead) = job.untold.swap_remove(at);
                    job.ranks[rank].lose(dead);
                    rank
                }
                _ if !job.under_way.is_empty() => {
                    let at = job.pick(job.under_way.len());
                    let (from, to, bytes) = job.under_way.swap_remove(at);
                    if job.alive[to] {
                        let word = Word::decode(&bytes, size).expect("our own message");
                        job.ranks[to].receive(from, word);
                    }
                    to
                }
                _ => continue,
            };
            if !job.alive[rank] {
                job.ranks[rank].take_out();
                continue;
            }
            for number in [1, 2].map(|back| (job.ranks[rank].number() + 1).saturating_sub(back)) {
                if let Some(found) = job.ranks[rank].decision(number) {
                    // Any rank may decide, also one that dies right after the decision.
                    assert_eq!(decisions.entry(number).or_insert_with(|| found.clone()), found, "seed {seed}");
                }
            }
            // Leaders die more often than others.
            let odds = if job.ranks[rank].leader as usize == rank { 6 } else { 40 };
            let dies = deaths_left > 0 && job.pick(odds) == 0;
            deaths_left -= usize::from(dies);
            job.flush(rank, dies);
        }
        for decision in decisions.values() {
            for rank in &decision.gone {
                assert!(!job.alive[*rank as usize], "rank {rank} is alive: seed {seed}");
            }
            assert_eq!(decision.flags >> 40 & 1, 1);
            assert!(decision.leaving.iter().all(|rank| rank % 3 == 2), "seed {seed}: {decision:?}");
        }
    }

    #[test]
    fn all_that_live_decide_alike_whoever_dies_meanwhile() {
        for seed in 0..3000 {
            let size = 1 + seed as usize % 7;
            run(seed, size, seed as usize / 7 % 6, 1 + seed % 3);
        }
    }

    #[test]
    fn without_a_death_flags_are_those_that_all_gave_and_nobody_is_gone() {
        let mut ranks: Vec<Agreement> = (0..3).map(|rank| Agreement::new(rank, 3)).collect();
        for (rank, flags) in [(2, 0b110), (0, 0b111), (1, 0b011)] {
            ranks[rank].enter(flags, false);
        }
        deliver_all(&mut ranks);
        let decision = Decision { gone: vec![], leaving: vec![], flags: 0b010 };
        assert!(ranks.iter().all(|rank| rank.decision(1) == Some(&decision)), "{ranks:?}");
    }

    #[test]
    fn who_leaves_is_told_and_gives_no_flags() {
        let mut ranks: Vec<Agreement> = (0..3).map(|rank| Agreement::new(rank, 3)).collect();
        for (rank, flags) in [(0, 0b110), (1, 0), (2, 0b011)] {
            ranks[rank].enter(flags, rank == 1);
        }
        deliver_all(&mut ranks);
        let decision = Decision { gone: vec![], leaving: vec![1], flags: 0b010 };
        assert!(ranks.iter().all(|rank| rank.decision(1) == Some(&decision)), "{ranks:?}");
    }

    /// Rank 0 decides, tells rank 1 alone, and dies. Rank 2 turns to rank 1, which has not heard the decision yet.
    #[test]
    fn a_rank_that_hears_a_late_decision_passes_it_on_to_who_has_joined_it() {
        let mut ranks: Vec<Agreement> = (0..3).map(|rank| Agreement::new(rank, 3)).collect();
        ranks.iter_mut().for_each(|rank| rank.enter(7, false));
        let mut late = Vec::new();
        for _ in 0..10 {
            for from in 0..3 {
                for (to, word) in ranks[from].take_out() {
                    match word.step {
                        Step::Decide(_) if to == 1 => late.push(word),
                        // Rank 0 died before this was sent.
                        Step::Decide(_) => {}
                        _ => ranks[to as usize].receive(from, word),
                    }
                }
            }
        }
        assert_eq!(late.len(), 1);
        // Rank 2 knows that rank 0 is gone, rank 1 does not yet.
        ranks[2].lose(0);
        for (to, word) in ranks[2].take_out() {
            assert_eq!(to, 1);
            ranks[1].receive(2, word);
        }
        assert!(ranks[1].take_out().is_empty(), "it follows rank 0 still");
        ranks[1].receive(0, late.remove(0));
        for (to, word) in ranks[1].take_out() {
            assert_eq!(to, 2);
            ranks[2].receive(1, word);
        }
        let decision = Decision { gone: vec![], leaving: vec![], flags: 7 };
        assert_eq!([1, 2].map(|rank| ranks[rank].decision(1)), [Some(&decision); 2]);
    }

    fn deliver_all(ranks: &mut [Agreement]) {
        for _ in 0..10 {
            for from in 0..ranks.len() {
                for (to, word) in ranks[from].take_out() {
                    ranks[to as usize].receive(from, word);
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        let decision = Decision { gone: vec![1, 2], leaving: vec![0], flags: 7 };
        let step = Step::Join { own: decision.clone(), accepted: Some((3, decision)) };
        let bytes = Word { number: 4, step }.encode();
        assert!(Word::decode(&bytes, 4).is_some());
        assert!(Word::decode(&bytes, 3).is_none(), "rank 3 of 3");
        for len in 0..bytes.len() {
            assert!(Word::decode(&bytes[..len], 4).is_none(), "{len} bytes");
        }
        assert!(Word::decode(&[&bytes[..], &[0; 8]].concat(), 4).is_none());
    }
}
