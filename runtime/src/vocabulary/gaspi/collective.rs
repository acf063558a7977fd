//! Collectives of a group, as state machines without a network: what a member has to send, and what it waits for.
//!
//! Members are numbered in the order of their ranks. Values go up a binomial tree to member 0, which combines them, and the result goes
//! down the same tree. So all members have the same bits, and no member is done before all have begun.
//!
//! A member that is done may leave while others wait for members that live. So only a member that waits for the one that left goes on
//! without it: the collective then has no result, and the tree tells all other members.

use std::collections::BTreeMap;

/// The kind of a collective. A group runs one of each kind at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Commit,
    Barrier,
    Reduce,
    /// The barrier of `segment_create` and `segment_use`.
    Segment,
}

/// How many kinds there are.
pub(super) const KINDS: usize = 4;

impl Kind {
    pub(super) fn from_number(number: u64) -> Option<Kind> {
        [Kind::Commit, Kind::Barrier, Kind::Reduce, Kind::Segment].get(usize::try_from(number).ok()?).copied()
    }
}

/// The name of a collective's message at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// The group, the same at all members.
    pub(super) group: u64,
    pub(super) kind: Kind,
    /// The number of the collective of this kind in the group.
    pub(super) number: u64,
    /// The member that sent it.
    pub(super) from: u64,
    /// Towards member 0.
    pub(super) is_up: bool,
}

/// Messages that have come and that no collective has taken.
pub(super) type Inbox = BTreeMap<Name, Vec<u8>>;

/// The first byte of a message: whether all members below have asked for the same.
const AGREED: u8 = 0;
const DIFFER: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The next child has this bit.
    Up(usize),
    /// Waits for the parent.
    Parent,
}

/// One collective at one member.
#[derive(Debug)]
pub(super) struct Round {
    name: Name,
    me: usize,
    members: usize,
    /// [`AGREED`] or [`DIFFER`], and the value.
    value: Vec<u8>,
    stage: Stage,
    /// Members that have left. All their messages have come.
    left: Vec<usize>,
}

/// The reason why a collective ends without a result: members have asked for different ones, or one has left before it was done.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differ;

impl Round {
    /// A collective of member `me` of `members`. `value` is copied.
    pub(super) fn new(group: u64, kind: Kind, number: u64, [me, members]: [usize; 2], value: &[u8]) -> Round {
        let name = Name { group, kind, number, from: me as u64, is_up: true };
        let value = [&[AGREED], value].concat();
        Round { name, me, members, value, stage: Stage::Up(1), left: Vec::new() }
    }

    /// A member has left, and what it had sent has come.
    pub(super) fn note_left(&mut self, member: usize) {
        if !self.left.contains(&member) {
            self.left.push(member);
        }
    }

    /// Goes on as far as it can with the messages that have come. `send` takes a message for a member; `combine` makes the
    /// first value the combination of both, and fails if they do not fit. `None`: it waits for a message.
    pub(super) fn advance(
        &mut self,
        inbox: &mut Inbox,
        mut send: impl FnMut(usize, Name, &[u8]),
        mut combine: impl FnMut(&mut [u8], &[u8]) -> Result<(), Differ>,
    ) -> Option<Result<&[u8], Differ>> {
        while let Stage::Up(bit) = self.stage {
            if self.me & bit != 0 {
                send(self.me - bit, self.name, &self.value);
                self.stage = Stage::Parent;
            } else if bit >= self.members {
                return Some(self.finish(send));
            } else {
                let child = self.me + bit;
                if child < self.members {
                    let theirs = inbox.remove(&Name { from: child as u64, ..self.name });
                    if theirs.is_none() && !self.left.contains(&child) {
                        return None;
                    }
                    let fits = |theirs: &Vec<u8>| theirs.len() == self.value.len() && theirs.first() == Some(&AGREED);
                    let is_combined = match theirs.filter(fits) {
                        Some(theirs) => combine(&mut self.value[1..], &theirs[1..]).is_ok(),
                        None => false,
                    };
                    if !is_combined {
                        self.value[0] = DIFFER;
                    }
                }
                self.stage = Stage::Up(bit << 1);
            }
        }
        let parent = self.me & (self.me - 1);
        match inbox.remove(&Name { from: parent as u64, is_up: false, ..self.name }) {
            Some(result) if result.len() == self.value.len() => self.value = result,
            None if !self.left.contains(&parent) => return None,
            _ => self.value[0] = DIFFER,
        }
        Some(self.finish(send))
    }

    /// Sends the result down.
    fn finish(&self, mut send: impl FnMut(usize, Name, &[u8])) -> Result<&[u8], Differ> {
        let below = if self.me == 0 { self.members.next_power_of_two() } else { self.me & self.me.wrapping_neg() };
        let mut bit = below >> 1;
        while bit > 0 {
            if self.me + bit < self.members {
                send(self.me + bit, Name { is_up: false, ..self.name }, &self.value);
            }
            bit >>= 1;
        }
        if self.value[0] == AGREED { Ok(&self.value[1..]) } else { Err(Differ) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of each member.
    type Outcomes = Vec<Option<Result<Vec<u8>, Differ>>>;

    fn add(mine: &mut [u8], theirs: &[u8]) -> Result<(), Differ> {
        for (mine, theirs) in mine.iter_mut().zip(theirs) {
            *mine = mine.wrapping_add(*theirs);
        }
        Ok(())
    }

    /// Runs a collective of members with these values, which begin in this order. Gives the result of each, and how many had
    /// begun when the first was done.
    fn run(values: &[Vec<u8>], order: &[usize]) -> (Outcomes, usize) {
        let n = values.len();
        let mut inboxes: Vec<Inbox> = (0..n).map(|_| Inbox::new()).collect();
        let mut rounds: Vec<Option<Round>> = (0..n).map(|_| None).collect();
        let mut done: Outcomes = (0..n).map(|_| None).collect();
        let mut first = usize::MAX;
        for (begun, &begins) in order.iter().enumerate() {
            rounds[begins] = Some(Round::new(7, Kind::Reduce, 3, [begins, n], &values[begins]));
            for _ in 0..2 * n {
                for me in 0..n {
                    let Some(round) = rounds[me].as_mut().filter(|_| done[me].is_none()) else { continue };
                    let mut sent = Vec::new();
                    let mut own = std::mem::take(&mut inboxes[me]);
                    let outcome = round.advance(&mut own, |to, name, bytes| sent.push((to, name, bytes.to_vec())), add);
                    inboxes[me] = own;
                    if let Some(outcome) = outcome {
                        done[me] = Some(outcome.map(<[u8]>::to_vec));
                        first = first.min(begun + 1);
                    }
                    for (to, name, bytes) in sent {
                        assert!(inboxes[to].insert(name, bytes).is_none(), "{name:?} twice");
                    }
                }
            }
        }
        assert!(inboxes.iter().all(Inbox::is_empty));
        (done, first)
    }

    #[test]
    fn every_member_gets_the_combination_and_none_before_all_have_begun() {
        for n in 1..20usize {
            let values: Vec<_> = (0..n).map(|me| vec![me as u8, 1, 100]).collect();
            let forward: Vec<_> = (0..n).collect();
            let backward: Vec<_> = (0..n).rev().collect();
            for order in [forward, backward] {
                let (done, first) = run(&values, &order);
                let sum = vec![(n * (n - 1) / 2) as u8, n as u8, (n * 100 % 256) as u8];
                assert!(done.iter().all(|done| *done == Some(Ok(sum.clone()))), "{n}: {done:?}");
                assert_eq!(first, n, "a member was done before all had begun");
            }
        }
    }

    /// A member leaves when it is done: the others get the result. One that leaves before it begins is an error at all others.
    #[test]
    fn a_member_that_leaves_matters_to_who_waits_for_it() {
        for n in 2..9usize {
            for (leaver, is_done) in (0..n).flat_map(|leaver| [(leaver, false), (leaver, true)]) {
                let mut inboxes: Vec<Inbox> = (0..n).map(|_| Inbox::new()).collect();
                let round = |me| Round::new(7, Kind::Reduce, 3, [me, n], &[1]);
                let mut rounds: Vec<Round> = (0..n).map(round).collect();
                let mut done: Outcomes = (0..n).map(|_| None).collect();
                for _ in 0..4 * n {
                    // The member that leaves goes first, and the others learn of that at once. A member that waits for a parent goes before the
                    // parent.
                    for me in std::iter::once(leaver).chain((0..n).rev()) {
                        if done[me].is_some() || me == leaver && !is_done {
                            continue;
                        }
                        if done[leaver].is_some() || !is_done {
                            rounds[me].note_left(leaver);
                        }
                        let mut sent = Vec::new();
                        let mut own = std::mem::take(&mut inboxes[me]);
                        let outcome =
                            rounds[me].advance(&mut own, |to, name, bytes| sent.push((to, name, bytes.to_vec())), add);
                        inboxes[me] = own;
                        done[me] = outcome.map(|outcome| outcome.map(<[u8]>::to_vec));
                        sent.into_iter().for_each(|(to, name, bytes)| drop(inboxes[to].insert(name, bytes)));
                    }
                }
                let expected = if is_done { Ok(vec![n as u8]) } else { Err(Differ) };
                let wrong = (0..n).find(|me| (is_done || *me != leaver) && done[*me].as_ref() != Some(&expected));
                assert_eq!(wrong, None, "{n} members, {leaver} leaves, done: {is_done}: {done:?}");
            }
        }
    }

    #[test]
    fn other_lengths_are_an_error_at_every_member() {
        for n in 2..9usize {
            for differs in 0..n {
                let values: Vec<_> = (0..n).map(|me| vec![1; if me == differs { 2 } else { 3 }]).collect();
                let (done, _) = run(&values, &(0..n).collect::<Vec<_>>());
                assert!(done.iter().all(|done| *done == Some(Err(Differ))), "{n}, {differs}: {done:?}");
            }
        }
    }
}
