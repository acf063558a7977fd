//! Counts of messages for each peer, and what waits for them: fences and barriers.
//!
//! Each side counts, modulo 2^32: the origin what it has sent to a task, the target what has arrived from one, data in place. A
//! fence sends the first number; the target answers when the second has reached it. Completion handlers do not count.
//!
//! A barrier is the dissemination barrier of Hensgen, Finkel and Manber in messages, so that handlers and other threads of the task go
//! on meanwhile.

use std::cell::{Cell, RefCell};

/// Rounds of a barrier, at most.
const ROUNDS: usize = 32;

/// The counts of one task: 8 bytes and a bit for each peer.
pub(super) struct Traffic {
    sent: Box<[Cell<u32>]>,
    arrived: Box<[Cell<u32>]>,
    /// Peers to which something was sent since the last fence, one bit each.
    unfenced: Box<[Cell<u64>]>,
    /// Fences of this task that have no answer: the peer, and the number.
    open: RefCell<Vec<(usize, u32)>>,
    /// Fences of peers that wait here: the peer, and the number that it waits for.
    waiting: RefCell<Vec<(usize, u32)>>,
    /// Messages of each round of all barriers so far.
    rounds: [Cell<u32>; ROUNDS],
    barriers: Cell<u32>,
}

impl Traffic {
    pub(super) fn new(tasks: usize) -> Traffic {
        let zeros = || vec![Cell::new(0); tasks].into();
        Traffic {
            sent: zeros(),
            arrived: zeros(),
            unfenced: vec![Cell::new(0); tasks.div_ceil(64)].into(),
            open: RefCell::default(),
            waiting: RefCell::default(),
            rounds: [const { Cell::new(0) }; ROUNDS],
            barriers: Cell::new(0),
        }
    }

    #[inline(always)]
    pub(super) fn count_sent(&self, to: usize) {
        self.sent[to].set(self.sent[to].get().wrapping_add(1));
        self.note_put(to);
    }

    /// Notes a put over a network that no message tells of: the question of the next fence is answered after it is in effect.
    #[inline(always)]
    pub(super) fn note_put(&self, to: usize) {
        let bits = &self.unfenced[to / 64];
        bits.set(bits.get() | 1 << (to % 64));
    }

    /// Messages that this task has sent so far, modulo 2^64.
    pub(super) fn sent(&self) -> u64 {
        self.sent.iter().fold(0, |sum, sent| sum.wrapping_add(sent.get().into()))
    }

    /// Counts a message whose data is in place; tells whether a fence of its sender ends now.
    #[inline(always)]
    pub(super) fn count_arrived(&self, from: usize) -> Option<u32> {
        self.arrived[from].set(self.arrived[from].get().wrapping_add(1));
        self.end_of_fence(from)
    }

    /// Takes the question of a peer's fence. The answer, if it can be given now.
    pub(super) fn asked(&self, from: usize, number: u32) -> Option<u32> {
        self.waiting.borrow_mut().push((from, number));
        self.end_of_fence(from)
    }

    #[inline(always)]
    fn end_of_fence(&self, from: usize) -> Option<u32> {
        if self.waiting.borrow().is_empty() { None } else { self.search_fence(from) }
    }

    #[cold]
    fn search_fence(&self, from: usize) -> Option<u32> {
        let arrived = self.arrived[from].get();
        let mut waiting = self.waiting.borrow_mut();
        // Several threads of a peer may fence at a time: the answer with the largest number ends them all.
        let mut answer: Option<u32> = None;
        waiting.retain(|(peer, number)| {
            let ends = *peer == from && !is_behind(arrived, *number);
            if ends && answer.is_none_or(|answer| is_behind(answer, *number)) {
                answer = Some(*number);
            }
            !ends
        });
        answer
    }

    /// Peers to which something was sent since the last fence, each with the number that a fence asks it for.
    pub(super) fn questions(&self) -> Vec<(usize, u32)> {
        let mut questions = Vec::new();
        for (place, bits) in self.unfenced.iter().enumerate() {
            let mut left = bits.take();
            while left != 0 {
                let to = 64 * place + left.trailing_zeros() as usize;
                questions.push((to, self.sent[to].get()));
                left &= left - 1;
            }
        }
        self.open.borrow_mut().extend_from_slice(&questions);
        questions
    }

    /// Whether every fence has its answers.
    pub(super) fn is_fenced(&self) -> bool {
        self.open.borrow().is_empty()
    }

    pub(super) fn answered(&self, from: usize, number: u32) {
        self.open.borrow_mut().retain(|(peer, asked)| *peer != from || is_behind(number, *asked));
    }

    /// Begins a barrier; its number.
    pub(super) fn begin_barrier(&self) -> u32 {
        let number = self.barriers.get().wrapping_add(1);
        self.barriers.set(number);
        number
    }

    /// Counts a message of a barrier; `false` for a round that there is not.
    pub(super) fn count_round(&self, round: usize) -> bool {
        let Some(count) = self.rounds.get(round) else { return false };
        count.set(count.get().wrapping_add(1));
        true
    }

    /// Whether the message of `round` of barrier `number` has come, or that of a later barrier from the same task, which has left this one.
    pub(super) fn has_round(&self, round: usize, number: u32) -> bool {
        !is_behind(self.rounds[round].get(), number)
    }
}

/// Whether `count` has not reached `number`. Both are modulo 2^32, and less than half of that apart.
fn is_behind(count: u32, number: u32) -> bool {
    (count.wrapping_sub(number) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_ends_when_as_many_have_arrived_also_around_the_end_of_numbers() {
        for start in [0u32, u32::MAX - 1] {
            let (origin, target) = (Traffic::new(2), Traffic::new(2));
            for counts in [&origin.sent, &target.arrived] {
                counts.iter().for_each(|count| count.set(start));
            }
            assert!(origin.questions().is_empty() && origin.is_fenced());
            (0..3).for_each(|_| origin.count_sent(1));
            let questions = origin.questions();
            let [(1, number)] = questions[..] else { panic!("three are under way: {questions:?}") };
            assert_eq!(target.asked(0, number), None);
            assert_eq!(target.count_arrived(1), None, "another task's");
            assert_eq!((target.count_arrived(0), target.count_arrived(0)), (None, None));
            assert_eq!(target.count_arrived(0), Some(number));
            origin.answered(1, number.wrapping_sub(1));
            assert!(!origin.is_fenced(), "the answer to an older one");
            origin.answered(1, number);
            assert!(origin.is_fenced() && origin.questions().is_empty());
            assert_eq!(target.asked(0, number), Some(number), "at once");
        }
    }
}
