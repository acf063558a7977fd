//! The state that fences and barriers wait on.
//!
//! A fence sends a question to each peer to which this task has sent something since its last fence. The question arrives after all earlier
//! messages. A message that has arrived has a ticket until its data is in place. The peer answers when all tickets given before the
//! question have ended. Counting completed messages would be wrong: a short message that another thread sends later may complete before a
//! long one that the fence has to wait for. A fence does not wait for completion handlers.
//!
//! A barrier is the dissemination barrier of Hensgen, Finkel and Manber (1988), made of messages: while a task waits in it, handlers run,
//! and other threads of the task can make calls. If a task's barrier fails, for example because a task is gone, the task sends the code in
//! its messages of all remaining rounds. So each task gets a message for each round, or finds that its sender is gone: no living task waits
//! for one that gave up, and the counts of all tasks stay equal.
//!
//! A panic or a purge interrupts a call, but does not give its barrier up: the same call, made again, resumes it. Another collective call
//! gives the interrupted barrier up first, if that is one of `Gfence`, or if this task has sent no message of it. Otherwise the other call is
//! refused: tasks whose barrier is complete wait for this task in an exchange. Each message names its call, so calls that differ between
//! tasks are errors.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU64;

use super::codes;

/// Rounds of a barrier, at most.
const ROUNDS: usize = 32;

/// The number of a message that has arrived and whose data is not in place yet. Tickets increase in the order of arrival.
pub(super) type Ticket = NonZeroU64;

/// A peer's fence that this task has not answered yet.
struct Question {
    from: usize,
    /// The peer's number for the message.
    number: u32,
    /// The first ticket given after the question arrived.
    end: Ticket,
}

/// One task's state of fences and barriers: a bit for each peer, and a ticket for each message in flight.
pub(super) struct Traffic {
    /// Messages that this task has sent, modulo 2^64.
    sent: Cell<u64>,
    /// One bit for each peer to which something was sent since the last fence.
    unfenced: Box<[Cell<u64>]>,
    /// Questions of this task without an answer: the peer, and the number of the fence.
    open: RefCell<Vec<(usize, u32)>>,
    fences: Cell<u32>,
    /// Messages whose data is not in place: the sender, and the ticket.
    under_way: RefCell<BTreeSet<(usize, Ticket)>>,
    next: Cell<Ticket>,
    waiting: RefCell<Vec<Question>>,
    /// For each round, the messages received for it in all barriers so far, modulo 2^32.
    rounds: [Cell<u32>; ROUNDS],
    /// For each round, the calls of the last two messages received for it: the sender may be one barrier ahead.
    calls: [[Cell<Collective>; 2]; ROUNDS],
    barriers: Cell<u32>,
    /// Interrupted barriers, by number: a handler's panic or a purge ended the call. The next calls resume them, or give them up.
    left_behind: RefCell<VecDeque<Place>>,
    /// Rounds of barriers that their sender has given up: the round and the barrier's number, and why.
    broken: RefCell<Vec<((usize, u32), Broken)>>,
    /// The messages that each task had sent at the end of the last round of `Term`; empty before the first one.
    pub(super) sent_before: RefCell<Vec<u64>>,
}

/// A collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Collective {
    Gfence,
    Term,
    AddressInit,
    Bell,
}

impl Collective {
    /// From the number that a message carries.
    pub(super) fn from_word(word: u64) -> Option<Collective> {
        [Collective::Gfence, Collective::Term, Collective::AddressInit, Collective::Bell].get(word as usize).copied()
    }

    /// Its name in errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Collective::Gfence => "LAPI_Gfence",
            Collective::Term => "LAPI_Term",
            Collective::AddressInit => "LAPI_Address_init",
            Collective::Bell => "Lapi::bell",
        }
    }
}

/// How far a call has come in a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) call: Collective,
    /// The barrier.
    pub(super) number: u32,
    /// The round in which the call is.
    pub(super) round: usize,
    /// Whether the message of this round was sent.
    pub(super) is_told: bool,
    /// The code for the other tasks, if this barrier is given up.
    pub(super) why: i32,
}

impl Place {
    /// Whether this task may give the barrier up. After `Gfence` a task does nothing that waits for the others. After all other barriers, the
    /// tasks whose barrier ends exchange values, and would wait for this task.
    pub(super) fn can_be_given_up(&self) -> bool {
        self.call == Collective::Gfence || !self.is_begun()
    }

    /// Whether this task has sent a message of this barrier.
    pub(super) fn is_begun(&self) -> bool {
        self.round > 0 || self.is_told
    }
}

/// Why a task gave a barrier up: the code, and one plus the task that the code is about, or 0.
pub(super) type Broken = (i32, usize);

/// Why a round ends without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Apart {
    /// Its sender has given the barrier up.
    GivenUp(Broken),
    /// Its sender is in this call.
    Differs(Collective),
}

impl Traffic {
    pub(super) fn new(tasks: usize) -> Traffic {
        Traffic {
            sent: Cell::new(0),
            unfenced: vec![Cell::new(0); tasks.div_ceil(64)].into(),
            open: RefCell::default(),
            fences: Cell::new(0),
            under_way: RefCell::default(),
            next: Cell::new(Ticket::MIN),
            waiting: RefCell::default(),
            rounds: [const { Cell::new(0) }; ROUNDS],
            calls: [const { [const { Cell::new(Collective::Gfence) }; 2] }; ROUNDS],
            barriers: Cell::new(0),
            left_behind: RefCell::default(),
            broken: RefCell::default(),
            sent_before: RefCell::default(),
        }
    }

    #[inline(always)]
    pub(super) fn count_sent(&self, to: usize) {
        self.sent.set(self.sent.get().wrapping_add(1));
        self.note_put(to);
    }

    /// Notes a one-sided put over a network. It needs no ticket: the network delivers the question of the next fence after it.
    #[inline(always)]
    pub(super) fn note_put(&self, to: usize) {
        let bits = &self.unfenced[to / 64];
        bits.set(bits.get() | 1 << (to % 64));
    }

    /// Messages that this task has sent so far, modulo 2^64.
    pub(super) fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Gives a ticket to a message of `from` whose data is not put in place at once.
    pub(super) fn begin(&self, from: usize) -> Ticket {
        let ticket = self.next.get();
        self.next.set(ticket.checked_add(1).expect("2^64 messages"));
        self.under_way.borrow_mut().insert((from, ticket));
        ticket
    }

    /// Ends a ticket: the data is in place. Returns the numbers of the sender's fences that can be answered now.
    pub(super) fn end(&self, from: usize, ticket: Ticket) -> Vec<u32> {
        self.under_way.borrow_mut().remove(&(from, ticket));
        let ends = |question: &mut Question| question.from == from && !self.holds(from, question.end);
        self.waiting.borrow_mut().extract_if(.., ends).map(|question| question.number).collect()
    }

    /// Receives the question of a peer's fence. Returns whether it can be answered at once; if not, `end` returns its number later.
    pub(super) fn asked(&self, from: usize, number: u32) -> bool {
        let end = self.next.get();
        let waits = self.holds(from, end);
        if waits {
            self.waiting.borrow_mut().push(Question { from, number, end });
        }
        !waits
    }

    /// Whether a message of `from` with a ticket below `end` is in flight.
    fn holds(&self, from: usize, end: Ticket) -> bool {
        self.under_way.borrow().range((from, Ticket::MIN)..(from, end)).next().is_some()
    }

    /// Begins a fence. Returns the peers to ask, and for each the number of the fence, which its answer repeats.
    pub(super) fn questions(&self) -> Vec<(usize, u32)> {
        let number = self.fences.get().wrapping_add(1);
        self.fences.set(number);
        let mut questions = Vec::new();
        for (place, bits) in self.unfenced.iter().enumerate() {
            let mut left = bits.take();
            while left != 0 {
                questions.push((64 * place + left.trailing_zeros() as usize, number));
                left &= left - 1;
            }
        }
        self.open.borrow_mut().extend_from_slice(&questions);
        questions
    }

    /// Whether no question of this task is open.
    pub(super) fn is_fenced(&self) -> bool {
        self.open.borrow().is_empty()
    }

    /// The first peer that has not answered a question of this task and for which `is_it` holds.
    pub(super) fn first_asked(&self, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        self.open.borrow().iter().map(|(peer, _)| *peer).find(|peer| is_it(*peer))
    }

    /// A peer has answered the question of fence `number`.
    pub(super) fn answered(&self, from: usize, number: u32) {
        self.open.borrow_mut().retain(|open| *open != (from, number));
    }

    /// Resumes the oldest interrupted barrier, which may be another call's, or begins one for `call`.
    pub(super) fn enter_barrier(&self, call: Collective) -> Place {
        let left = self.left_behind.borrow_mut().pop_front();
        let why = codes::HANDLER_PANICKED;
        left.unwrap_or_else(|| Place { call, number: self.begin_barrier(), round: 0, is_told: false, why })
    }

    /// Keeps an interrupted barrier. `place` is how far its call had come when a handler's panic or a purge ended it.
    #[cold]
    pub(super) fn leave_behind(&self, place: Place) {
        let mut left = self.left_behind.borrow_mut();
        // Threads whose calls are interrupted together get here in any order.
        let before = left.partition_point(|other| is_behind(other.number, place.number));
        left.insert(before, place);
    }

    /// Begins a barrier; its number.
    fn begin_barrier(&self) -> u32 {
        let number = self.barriers.get().wrapping_add(1);
        self.barriers.set(number);
        self.broken.borrow_mut().retain(|((_, of), _)| !is_behind(*of, number));
        number
    }

    /// Counts a message for a round of a barrier of `call`. `broken`: why its sender has given the barrier up, if it has. Returns `false` if no
    /// barrier has this round.
    pub(super) fn count_round(&self, round: usize, call: Collective, broken: Option<Broken>) -> bool {
        let Some(count) = self.rounds.get(round) else { return false };
        count.set(count.get().wrapping_add(1));
        self.calls[round][count.get() as usize % 2].set(call);
        self.broken.borrow_mut().extend(broken.map(|why| ((round, count.get()), why)));
        true
    }

    /// Whether the message for the round of this barrier has arrived. Each round's messages come from one task, barrier by barrier.
    ///
    /// # Errors
    /// If its sender has given the barrier up, or is in another call.
    pub(super) fn has_round(&self, Place { call, number, round, .. }: Place) -> Result<bool, Apart> {
        if is_behind(self.rounds[round].get(), number) {
            return Ok(false);
        }
        let of_sender = self.calls[round][number as usize % 2].get();
        if of_sender != call {
            return Err(Apart::Differs(of_sender));
        }
        match self.broken.borrow().iter().find(|(of, _)| *of == (round, number)) {
            Some((_, why)) => Err(Apart::GivenUp(*why)),
            None => Ok(true),
        }
    }
}

/// Whether `count` is below `number`. Both are modulo 2^32, and less than 2^31 apart.
fn is_behind(count: u32, number: u32) -> bool {
    (count.wrapping_sub(number) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_that_its_sender_gave_up_is_an_error_and_the_next_one_is_not() {
        let traffic = Traffic::new(4);
        let [gfence, term] = [Collective::Gfence, Collective::Term];
        let first = traffic.enter_barrier(term);
        let at = |place: Place, round| traffic.has_round(Place { round, ..place });
        let count = |round, call, broken| traffic.count_round(round, call, broken);
        assert!(count(0, term, None) && count(1, term, Some((9, 4))) && !count(32, term, None));
        // The next barrier's message may come before this task is in it.
        assert!(
            count(1, gfence, None) && count(0, gfence, Some((9, 0))) && count(2, term, None) && count(2, term, None)
        );
        assert_eq!([0, 1, 2].map(|round| at(first, round)), [Ok(true), Err(Apart::GivenUp((9, 4))), Ok(true)]);
        let second = traffic.enter_barrier(gfence);
        let expected = [Err(Apart::GivenUp((9, 0))), Ok(true), Err(Apart::Differs(term)), Ok(false)];
        assert_eq!([0, 1, 2, 3].map(|round| at(second, round)), expected);
        traffic.enter_barrier(gfence);
        assert!(traffic.broken.borrow().is_empty(), "barriers that are over");
    }

    #[test]
    fn the_next_call_goes_on_with_a_barrier_that_a_panic_came_out_of() {
        let traffic = Traffic::new(4);
        let enter = || traffic.enter_barrier(Collective::Gfence);
        let first = enter();
        assert_eq!((first.round, first.is_told), (0, false));
        let second = enter();
        assert_eq!(second.number, first.number + 1);
        let left = [Place { round: 1, is_told: true, ..first }, Place { round: 1, is_told: false, ..second }];
        left.iter().rev().for_each(|place| traffic.leave_behind(*place));
        assert_eq!([(); 2].map(|()| enter()), left);
        assert_eq!(enter().number, second.number + 1);
    }

    #[test]
    fn a_fence_ends_when_what_came_before_it_is_in_place_and_nothing_else_counts() {
        let (origin, target) = (Traffic::new(2), Traffic::new(2));
        assert!(origin.questions().is_empty() && origin.is_fenced());
        origin.count_sent(1);
        let (first, second, other) = (target.begin(0), target.begin(0), target.begin(1));
        let questions = origin.questions();
        let [(1, number)] = questions[..] else { panic!("two are under way: {questions:?}") };
        assert!(!target.asked(0, number));
        let later = target.begin(0);
        assert_eq!(target.end(0, later), [], "it came after the question");
        assert_eq!(target.end(1, other), [], "another task's");
        assert_eq!(target.end(0, second), [], "the first is not in place");
        assert_eq!(target.end(0, first), [number]);
        origin.answered(1, number.wrapping_sub(1));
        assert!(!origin.is_fenced(), "the answer to an older one");
        origin.answered(1, number);
        assert!(origin.is_fenced() && origin.questions().is_empty());
        let late = target.begin(1);
        assert!(target.asked(0, 7), "nothing of this task is under way");
        assert!(!target.asked(1, 7) && !target.asked(1, 8));
        assert_eq!(target.end(1, late), [7, 8], "fences of two threads");
    }
}
