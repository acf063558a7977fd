//! How ranks that reach each other over a network learn what all have brought to an exchange: in round k each tells the rank 2^k
//! further. After log2 n rounds, rounded up, every rank has heard of every other.
//!
//! The content of the messages depends on the result that is wanted:
//!
//! - whether all brought the same: a digest, or [`DIFFERS`] once a rank has met another one;
//! - what the first rank brought that brought anything but zeros: that of the ranks known so far;
//! - what one rank brought: those within 2^k after that rank have it in round k, and tell it on (a binomial tree);
//! - what all ranks brought: a rank has what the 2^k ranks up to itself brought, and tells all of it (Bruck and others 1997);
//! - the sums of words: a rank has the sum over the 2^k ranks up to itself. The sum over all of them adds up those for the bits of the number of ranks.
//!
//! A reduction of many ranks goes up a binomial tree to rank 0, and its result down again: 2 log2 n rounds, in which a rank tells one
//! other, hears one, or neither. Its messages do not grow with the ranks, mapped ranks do it too, and the tree is that of all reductions
//! ([`super::operator::Fold`]). Ranks that make it at different places of the program may combine differently: after the tree's rounds each of
//! them learns what all ranks brought, and combines that itself.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::meeting::rounds;
use super::see::{See, Wanted};
use crate::hash::mix;

/// This rank's part in one exchange.
pub(super) struct Dissemination {
    /// The number of the exchange.
    pub(super) number: u64,
    /// The round that this rank is in, and whether it has told in it.
    pub(super) round: usize,
    pub(super) told: bool,
    rank: usize,
    size: usize,
    wanted: Wanted,
    /// Bytes that each rank has brought.
    len: usize,
    /// Digest of the call; [`DIFFERS`] when this rank has heard of another one.
    digest: u64,
    /// Along the tree: the place of the call; [`DIFFERS`] when this rank has heard of another one.
    place: u64,
    /// What this rank knows so far: the contributions of the ranks up to this one, nearest first; that of one rank; or the sum over the ranks up to
    /// this one.
    held: Vec<u8>,
    /// The sum over as many ranks up to this one as the bits of the number of ranks below the round's say.
    rest: Vec<u8>,
    /// Along the tree: what this rank has brought.
    mine: Vec<u8>,
    /// Along the tree: a rank that has no result for the others, plus one; 0: none is known.
    failed: u64,
    /// The panic of this rank's operator.
    panic: Option<Box<dyn Any + Send>>,
}

/// A digest that no rank brings.
const DIFFERS: u64 = 0;
/// Most ranks of which each combines the contributions of all. Chosen: more take longer to read than the steps of the tree.
pub(super) const GATHERED: usize = 64;

/// Whether a reduction of so many ranks goes along the tree.
pub(super) fn is_along_tree(wanted: Wanted, size: usize) -> bool {
    matches!(wanted, Wanted::Combined) && size > GATHERED
}

impl Dissemination {
    /// The state of a rank that has brought `mine` to exchange `number`, which belongs to a call with that digest.
    pub(super) fn new(
        [rank, size]: [usize; 2],
        number: u64,
        wanted: Wanted,
        digest: u64,
        mine: &[u8],
    ) -> Dissemination {
        let form = match wanted {
            Wanted::All | Wanted::Combined => 0,
            Wanted::Equal => 1,
            Wanted::Sum => 2,
            Wanted::First => 3,
            Wanted::From(root) => 4 + root as u64,
        };
        let lacks = matches!(wanted, Wanted::From(root) if root != rank);
        let held = match wanted {
            _ if lacks => Vec::new(),
            Wanted::First => of_rank(rank, mine),
            _ => mine.to_vec(),
        };
        let rest = if let Wanted::Sum = wanted { vec![0; mine.len()] } else { Vec::new() };
        let (digest, place) = (mix(digest, form).max(DIFFERS + 1), DIFFERS + 1);
        let (round, told) = (0, false);
        let (len, failed, panic) = (mine.len(), 0, None);
        let mine = if is_along_tree(wanted, size) { mine.to_vec() } else { Vec::new() };
        Dissemination { number, round, told, rank, size, wanted, len, digest, place, held, rest, mine, failed, panic }
    }

    /// The same of a reduction that was called at the place with this number.
    pub(super) fn called_at(self, place: u64) -> Dissemination {
        Dissemination { place: place.max(DIFFERS + 1), ..self }
    }

    /// The content of the messages.
    pub(super) fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// How many rounds go along the tree; others may come after them.
    fn tree_rounds(&self) -> usize {
        if is_along_tree(self.wanted, self.size) { 2 * rounds(self.size) } else { 0 }
    }

    /// Whether all ranks are in one reduction, which they call at different places: after the tree's rounds.
    fn places_differ(&self) -> bool {
        self.place == DIFFERS && self.digest != DIFFERS
    }

    /// How many rounds there are. More after the tree's, where ranks have learnt in those that places differ.
    pub(super) fn rounds(&self) -> usize {
        match self.tree_rounds() {
            0 => rounds(self.size),
            tree if self.places_differ() => tree + rounds(self.size),
            tree => tree,
        }
    }

    /// The rank that this one tells in a round.
    pub(super) fn to(&self, round: usize) -> Option<usize> {
        match round.checked_sub(self.tree_rounds()) {
            None => self.neighbour(round, true),
            Some(round) => Some((self.rank + (1 << round)) % self.size),
        }
    }

    /// The rank that tells this one in this round.
    pub(super) fn from(&self) -> Option<usize> {
        match self.round.checked_sub(self.tree_rounds()) {
            None => self.neighbour(self.round, false),
            Some(round) => Some((self.rank + self.size - (1 << round)) % self.size),
        }
    }

    /// The rank that this one tells, or hears, in a round along the tree: on the way up those with bit k tell the ranks without it, in round
    /// k; on the way down those tell them, from the highest bit to the lowest.
    fn neighbour(&self, round: usize, tells: bool) -> Option<usize> {
        let (bit, up) = self.branch(round);
        match self.rank % (2 * bit) {
            0 if tells != up => Some(self.rank + bit).filter(|other| *other < self.size),
            place if place == bit && tells == up => Some(self.rank - bit),
            _ => None,
        }
    }

    /// The distance of those that meet in a round along the tree, and whether they are on the way up.
    fn branch(&self, round: usize) -> (usize, bool) {
        let up = rounds(self.size);
        if round < up { (1 << round, true) } else { (1 << (2 * up - 1 - round), false) }
    }

    /// Begins the next round, after one in which nobody tells this rank.
    pub(super) fn hear_nobody(&mut self) {
        (self.round, self.told) = (self.round + 1, false);
    }

    /// This rank's message in this round.
    pub(super) fn message(&self) -> Vec<u8> {
        let Some(round) = self.round.checked_sub(self.tree_rounds()) else {
            let has_none = self.digest == DIFFERS || self.place == DIFFERS || self.failed != 0;
            let data = if has_none { &[] } else { &*self.held };
            return [bytemuck::bytes_of(&[self.digest, self.place, self.failed]), data].concat();
        };
        let data = match self.wanted {
            _ if self.digest == DIFFERS => &[],
            Wanted::All | Wanted::Combined => &self.held[..self.len * self.new_in(round)],
            Wanted::From(root) if self.place(root) < 1 << round && self.place(root) + (1 << round) < self.size => {
                &*self.held
            }
            Wanted::From(_) | Wanted::Equal => &[],
            Wanted::Sum | Wanted::First => &*self.held,
        };
        let rest = if self.digest == DIFFERS { &[] } else { &*self.rest };
        [&self.digest.to_ne_bytes(), data, rest].concat()
    }

    /// Takes the message to this rank in this round, and begins the next round. `None` if no rank that brought the same tells that.
    /// On the way up the tree `see` combines; without it this rank has no result for the others.
    pub(super) fn hear(&mut self, message: &[u8], see: Option<&mut dyn See>) -> Option<()> {
        let round = self.round;
        self.hear_nobody();
        let (theirs, data) = message.split_first_chunk()?;
        if u64::from_ne_bytes(*theirs) != self.digest {
            self.digest = DIFFERS;
        }
        if self.digest == DIFFERS {
            return Some(());
        }
        let Some(round) = round.checked_sub(self.tree_rounds()) else {
            return self.hear_along_tree(round, data, see);
        };
        let new = match self.wanted {
            Wanted::All | Wanted::Combined => self.len * self.new_in(round),
            Wanted::From(root) if self.place(root) >> round == 1 => self.len,
            Wanted::From(_) | Wanted::Equal => 0,
            Wanted::Sum => 2 * self.len,
            Wanted::First if data.is_empty() => 0,
            Wanted::First => data.len().clamp(RANK + 1, RANK + self.len),
        };
        if data.len() != new {
            return None;
        }
        if let Wanted::Sum = self.wanted {
            let (theirs, rest) = data.split_at(self.len);
            if self.size >> round & 1 == 1 {
                self.rest = sum(&self.held, rest);
            }
            self.held = sum(&self.held, theirs);
        } else if let Wanted::First = self.wanted {
            if rank_of(data) < rank_of(&self.held) {
                self.held = data.to_vec();
            }
        } else {
            self.held.extend_from_slice(data);
        }
        Some(())
    }

    fn hear_along_tree(&mut self, round: usize, message: &[u8], see: Option<&mut dyn See>) -> Option<()> {
        let (place, message) = message.split_first_chunk()?;
        let (failed, data) = message.split_first_chunk()?;
        let (failed, up) = (u64::from_ne_bytes(*failed), self.branch(round).1);
        if u64::from_ne_bytes(*place) != self.place && self.place != DIFFERS {
            // No rank needs the result of another one.
            (self.place, self.failed, self.held) = (DIFFERS, 0, std::mem::take(&mut self.mine));
        }
        if self.place == DIFFERS {
            return Some(());
        }
        if self.failed == 0 {
            self.failed = failed;
        }
        if failed != 0 || data.len() != self.len {
            return (failed != 0).then_some(());
        }
        if !up {
            self.held = data.to_vec();
        } else if self.failed == 0 {
            let combined = see.map(|see| catch_unwind(AssertUnwindSafe(|| see.join(data).to_vec())));
            match combined {
                Some(Ok(both)) => self.held = both,
                // The others wait for this rank, which raises the panic when it has told them.
                Some(Err(panic)) => (self.failed, self.panic) = (self.rank as u64 + 1, Some(panic)),
                None => self.failed = self.rank as u64 + 1,
            }
        }
        Some(())
    }

    /// The rank that had no result for the others, after all rounds.
    pub(super) fn failed(&self) -> Option<usize> {
        (self.failed as usize).checked_sub(1)
    }

    /// The panic of this rank's operator.
    pub(super) fn take_panic(&mut self) -> Option<Box<dyn Any + Send>> {
        self.panic.take()
    }

    /// Whether all ranks brought the same digest, after all rounds.
    pub(super) fn agreed(&self) -> bool {
        self.digest != DIFFERS
    }

    /// Shows the contributions that were received, after all rounds.
    pub(super) fn show(&self, see: &mut dyn See) {
        match self.wanted {
            Wanted::Combined if self.tree_rounds() > 0 && !self.places_differ() => see.combined(&self.held),
            Wanted::All | Wanted::Combined => {
                (0..self.size).for_each(|rank| {
                    see.see(rank, &self.held[self.len * self.place(rank)..][..self.len]);
                });
                if let Wanted::Combined = self.wanted {
                    see.result();
                }
            }
            Wanted::From(root) => see.see(root, &self.held),
            Wanted::Equal => see.see(0, &self.held),
            Wanted::First => {
                let rank = if self.held.is_empty() { 0 } else { rank_of(&self.held) };
                let mut bytes = self.held.get(RANK..).unwrap_or_default().to_vec();
                bytes.resize(self.len, 0);
                see.see(rank as usize, &bytes);
            }
            Wanted::Sum if self.size.is_power_of_two() => see.see(0, &self.held),
            Wanted::Sum => see.see(0, &self.rest),
        }
    }

    /// How many ranks this one is after that one.
    fn place(&self, rank: usize) -> usize {
        (self.rank + self.size - rank) % self.size
    }

    /// Ranks that a rank hears of in a round, where all tell all.
    fn new_in(&self, round: usize) -> usize {
        (1 << round).min(self.size - (1 << round))
    }
}

/// Bytes of a rank's entry before its contribution.
const RANK: usize = size_of::<u64>();

/// The contribution of `rank`, as it is passed on where the first contribution is wanted: without the zeros at its end, and empty if it is all
/// zeros.
fn of_rank(rank: usize, bytes: &[u8]) -> Vec<u8> {
    match bytes.iter().rposition(|byte| *byte != 0) {
        Some(last) => [&(rank as u64).to_ne_bytes(), &bytes[..=last]].concat(),
        None => Vec::new(),
    }
}

/// The rank in an entry that [`of_rank`] made. An empty entry counts as later than all ranks.
fn rank_of(told: &[u8]) -> u64 {
    told.first_chunk().map_or(u64::MAX, |rank| u64::from_ne_bytes(*rank))
}

/// The sums of the words of both.
fn sum(a: &[u8], b: &[u8]) -> Vec<u8> {
    words(a).zip(words(b)).flat_map(|(a, b)| a.wrapping_add(b).to_ne_bytes()).collect()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned)
}

#[cfg(test)]
mod tests {
    use super::super::see::Shown;
    use super::*;

    /// What a rank sees: the rank of each contribution, and its words.
    type Seen = Vec<(usize, Vec<u64>)>;

    /// What every one of `size` ranks sees, by rank, if rank r brings `brings(r)` to a call with digest `digest(r)`. `None` where ranks
    /// differ.
    fn all_see(
        size: usize,
        wanted: Wanted,
        digest: impl Fn(usize) -> u64,
        brings: impl Fn(usize) -> Vec<u64>,
    ) -> Vec<Option<Seen>> {
        let new = |rank| Dissemination::new([rank, size], 1, wanted, digest(rank), bytemuck::cast_slice(&brings(rank)));
        let mut ranks: Vec<Dissemination> = (0..size).map(new).collect();
        for round in 0..rounds(size) {
            let told: Vec<_> = ranks.iter().map(Dissemination::message).collect();
            for rank in &mut ranks {
                let (to, from) = (rank.to(round).expect("one a round"), rank.from().expect("one a round"));
                assert_eq!(to, (rank.rank + rank.rank + size - from) % size, "told as far as heard");
                rank.hear(&told[from], None).expect("as long as expected");
            }
        }
        let seen = |rank: Dissemination| {
            let mut seen = Vec::new();
            let see = |rank, bytes: &[u8]| seen.push((rank, words(bytes).collect()));
            rank.agreed().then(|| rank.show(&mut Shown(&[], see)))?;
            Some(seen)
        };
        ranks.into_iter().map(seen).collect()
    }

    #[test]
    fn every_rank_sees_what_is_wanted() {
        for size in (1..40).chain([63, 64, 65, 100]) {
            let words = |rank: usize| vec![rank as u64 + 1, 1000 * rank as u64];
            let is = |wanted, expected: Seen| {
                let seen = all_see(size, wanted, |_| 7, words);
                assert_eq!(seen, vec![Some(expected); size], "{wanted:?}, {size} ranks");
            };
            is(Wanted::All, (0..size).map(|rank| (rank, words(rank))).collect());
            let sum = |word: usize| (0..size).map(|rank| words(rank)[word]).sum();
            is(Wanted::Sum, vec![(0, vec![sum(0), sum(1)])]);
            for root in [0, size / 2, size - 1] {
                is(Wanted::From(root), vec![(root, words(root))]);
            }
            let equal = all_see(size, Wanted::Equal, |_| 7, |_| vec![3]);
            assert_eq!(equal, vec![Some(vec![(0, vec![3])]); size], "{size} ranks");
        }
    }

    #[test]
    fn every_rank_sees_the_first_that_brings_something() {
        for size in (1..20).chain([63, 64, 65]) {
            let seen = all_see(size, Wanted::First, |_| 7, |_| vec![0, 0]);
            assert_eq!(seen, vec![Some(vec![(0, vec![0, 0])]); size], "{size} ranks");
            for first in 0..size {
                let words = |rank: usize| if rank < first { vec![0, 0] } else { vec![0, 1 + rank as u64] };
                let expected = vec![(first, vec![0, 1 + first as u64])];
                assert_eq!(all_see(size, Wanted::First, |_| 7, words), vec![Some(expected); size], "{first} of {size}");
            }
        }
    }

    #[test]
    fn what_is_too_long_or_has_no_bytes_is_refused() {
        for data in [1, RANK, RANK + 17] {
            let mut rank = Dissemination::new([0, 2], 1, Wanted::First, 7, &[0; 16]);
            let told = [&rank.digest.to_ne_bytes()[..], &vec![1; data]].concat();
            assert!(rank.hear(&told, None).is_none(), "{data} bytes");
        }
    }

    #[test]
    fn every_rank_hears_that_one_differs() {
        for size in [2, 3, 5, 8, 13, 64, 65] {
            for one in 0..size {
                for wanted in [Wanted::All, Wanted::Equal, Wanted::First, Wanted::Sum, Wanted::From(size / 2)] {
                    // It brings more than the others, too.
                    let words = |rank| vec![5; 1 + usize::from(rank == one)];
                    let seen = all_see(size, wanted, |rank| 7 + u64::from(rank == one), words);
                    assert_eq!(seen, vec![None; size], "{wanted:?}, {size} ranks, of which {one} differs");
                }
            }
        }
    }

    /// The text of two ranks is that of the lower one, then that of the other, in brackets if both have some.
    struct Joined(Vec<u8>, Option<usize>);

    /// Bytes of a text.
    const TEXT: usize = 600;

    fn text(of: &[u8]) -> String {
        String::from_utf8(of.iter().copied().take_while(|byte| *byte != 0).collect()).expect("digits and brackets")
    }

    impl See for Joined {
        fn mine(&self) -> &[u8] {
            &self.0
        }

        fn see(&mut self, _rank: usize, _bytes: &[u8]) {}

        fn see_mine(&mut self, _rank: usize) {}

        fn join(&mut self, theirs: &[u8]) -> &[u8] {
            assert!(self.1 != Some(0), "as asked");
            self.1 = self.1.map(|before| before - 1);
            self.0 = format!("({}{})", text(&self.0), text(theirs)).into_bytes();
            self.0.resize(TEXT, 0);
            &self.0
        }

        fn combined(&mut self, bytes: &[u8]) {
            self.0 = bytes.to_vec();
        }
    }

    /// How ranks from `start` on combine: the lower half of the next power of two, then the rest.
    fn in_brackets(start: usize, size: usize) -> String {
        let half = size.next_power_of_two() / 2;
        match size {
            1 => (start % 10).to_string(),
            _ => format!("({}{})", in_brackets(start, half), in_brackets(start + half, size - half)),
        }
    }

    /// All ranks go along the tree. Of rank `panics.0` the operator panics when it has run `panics.1` times. How each ends, and how many
    /// messages the one that told most has told.
    fn along_the_tree(
        size: usize,
        digest: impl Fn(usize) -> u64,
        panics: Option<(usize, usize)>,
    ) -> (Vec<(Dissemination, Joined)>, usize) {
        let new = |rank: usize| {
            let times = panics.filter(|(who, _)| *who == rank).map(|(_, times)| times);
            let mut mine = (rank % 10).to_string().into_bytes();
            mine.resize(TEXT, 0);
            (Dissemination::new([rank, size], 1, Wanted::Combined, digest(rank), &mine), Joined(mine, times))
        };
        let mut ranks: Vec<_> = (0..size).map(new).collect();
        let mut told = vec![0; size];
        for round in 0..2 * rounds(size) {
            let to = |rank: &Dissemination| rank.to(round).map(|to| ((rank.rank, to), rank.message()));
            let sent: Vec<_> = ranks.iter().filter_map(|(rank, _)| to(rank)).collect();
            sent.iter().for_each(|((from, _), _)| told[*from] += 1);
            for (rank, see) in &mut ranks {
                match rank.from() {
                    Some(from) => {
                        let message = sent.iter().find(|(ends, _)| *ends == (from, rank.rank)).expect("told");
                        rank.hear(&message.1, Some(see)).expect("as long as expected");
                    }
                    None => rank.hear_nobody(),
                }
            }
        }
        assert!(ranks.iter().all(|(rank, _)| rank.round == rank.rounds()));
        (ranks, told.into_iter().max().expect("a rank"))
    }

    #[test]
    fn many_ranks_combine_along_the_one_tree() {
        for size in [65, 66, 100, 127, 128, 129] {
            let (ranks, told) = along_the_tree(size, |_| 7, None);
            assert!(told <= rounds(size), "{told} messages of one of {size} ranks");
            for (rank, mut see) in ranks {
                assert!(rank.agreed() && rank.failed().is_none() && rank.held.len() == TEXT);
                rank.show(&mut see);
                assert_eq!(text(&see.0), in_brackets(0, size), "{size} ranks");
            }
        }
    }

    /// Two words are the second.
    struct Second([u8; size_of::<u64>()]);

    impl See for Second {
        fn mine(&self) -> &[u8] {
            &self.0
        }

        fn see(&mut self, _rank: usize, _bytes: &[u8]) {}

        fn see_mine(&mut self, _rank: usize) {}

        fn join(&mut self, theirs: &[u8]) -> &[u8] {
            self.0.copy_from_slice(theirs);
            &self.0
        }
    }

    #[test]
    fn every_rank_along_the_tree_gets_all_contributions_where_places_differ() {
        for size in [65, 66, 100, 127, 128, 129] {
            for odd in [0, 1, 33, 64, size - 1] {
                let new = |rank: usize| {
                    let mine = (rank as u64).to_ne_bytes();
                    let heard = Dissemination::new([rank, size], 1, Wanted::Combined, 7, &mine);
                    heard.called_at(3 + u64::from(rank == odd))
                };
                let mut ranks: Vec<_> = (0..size).map(new).collect();
                let mut joined = Second([0; size_of::<u64>()]);
                for round in 0..3 * rounds(size) {
                    let message = |rank: &Dissemination| rank.to(round).map(|to| ((rank.rank, to), rank.message()));
                    let sent: std::collections::HashMap<_, _> = ranks.iter().filter_map(message).collect();
                    for rank in &mut ranks {
                        match rank.from() {
                            Some(from) => {
                                rank.hear(&sent[&(from, rank.rank)], Some(&mut joined)).expect("as long as expected");
                            }
                            None => rank.hear_nobody(),
                        }
                    }
                }
                for rank in ranks {
                    let mut seen = Vec::new();
                    assert!(rank.agreed() && rank.failed().is_none() && rank.round == rank.rounds());
                    rank.show(&mut Shown(&[], |rank, bytes: &[u8]| seen.push((rank, words(bytes).collect()))));
                    assert_eq!(seen, (0..size).map(|rank| (rank, vec![rank as u64])).collect::<Seen>());
                }
            }
        }
    }

    #[test]
    fn every_rank_along_the_tree_hears_that_one_differs_or_has_failed() {
        for (size, one) in [(65, 0), (65, 64), (65, 33), (100, 98), (128, 127)] {
            let (ranks, _) = along_the_tree(size, |rank| 7 + u64::from(rank == one), None);
            assert!(ranks.iter().all(|(rank, _)| !rank.agreed()), "{one} of {size}");
        }
        for (size, panics) in [(65, (0, 0)), (65, (0, 6)), (66, (64, 0)), (100, (32, 4))] {
            let (ranks, _) = along_the_tree(size, |_| 7, Some(panics));
            for (mut rank, _) in ranks {
                assert_eq!(rank.failed(), Some(panics.0), "{panics:?} of {size}");
                assert_eq!(rank.take_panic().is_some(), rank.rank == panics.0);
            }
        }
    }

    #[test]
    fn what_is_told_grows_with_what_is_wanted_only() {
        let longest = |wanted, size| {
            let rank = |round| Dissemination { round, ..Dissemination::new([0, size], 1, wanted, 7, &[0; 16]) };
            (0..rounds(size)).map(|round| rank(round).message().len()).max().expect("rounds")
        };
        for size in [2, 1000, 1 << 20] {
            assert_eq!(longest(Wanted::From(0), size), 24);
            assert_eq!(longest(Wanted::Equal, size), 8);
            assert_eq!(longest(Wanted::Sum, size), 40);
        }
    }
}
