//! Pieces of broadcasts, and questions of ranks that wait for a piece that does not come.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::{Messages, id, words};
use crate::error::Result;

/// Pieces of broadcasts that have come and are not taken yet, and the number of pieces that this rank has begun to send or await.
#[derive(Default)]
pub(super) struct Broadcasts {
    came: RefCell<HashMap<u64, Vec<u8>>>,
    /// Ranks that are elsewhere, by the number of the piece that they were asked about.
    elsewhere: RefCell<HashMap<u64, usize>>,
    questions: RefCell<Vec<Question>>,
    begun: Cell<u64>,
    /// The barrier that this rank is about to enter, or has entered.
    barrier: Cell<u64>,
}

/// A rank waits for a piece of a broadcast.
struct Question {
    from: usize,
    number: u64,
    /// Barriers that it had entered.
    barriers: u64,
    /// The head of the broadcast that the rank is in, if it takes this rank for the root; otherwise empty.
    head: Vec<u8>,
}

impl Messages {
    pub(super) fn install_broadcast(&self) {
        self.set_handler(id::BROADCAST, |messages, message| match words::<1>(message.data()) {
            Some(([number], bytes)) => {
                messages.broadcasts.came.borrow_mut().insert(number, bytes.to_vec());
            }
            None => messages.fault(message.from, "a broadcast without a number"),
        });
        self.set_handler(id::BROADCAST_QUESTION, |messages, message| match words(message.data()) {
            Some(([number, barriers], head)) => {
                let question = Question { from: message.from, number, barriers, head: head.to_vec() };
                messages.broadcasts.questions.borrow_mut().push(question);
                messages.answer_broadcasts();
            }
            None => messages.fault(message.from, "a question about a broadcast without its numbers"),
        });
        self.set_handler(id::BROADCAST_ELSEWHERE, |messages, message| match words::<1>(message.data()) {
            Some(([number], _)) => {
                messages.broadcasts.elsewhere.borrow_mut().insert(number, message.from);
            }
            None => messages.fault(message.from, "an answer about a broadcast without a number"),
        });
    }

    /// Barriers that this rank has entered so far.
    fn barriers(&self) -> u64 {
        self.engine.node.status(self.engine.rank).entered.load(Ordering::Relaxed)
    }

    /// Before this rank enters its next barrier: tells the ranks that wait for a piece of a broadcast before that barrier that none will come.
    #[inline]
    pub fn before_barrier(&self) {
        // The barrier itself will report the error.
        if self.engine.check_outside_handler("barrier").is_err() {
            return;
        }
        self.broadcasts.barrier.set(self.barriers() + 1);
        if !self.broadcasts.questions.borrow().is_empty() {
            self.answer_broadcasts();
        }
    }

    /// Answers each rank that waits for a piece that this rank has not begun, if this rank is in a barrier that the other has not
    /// entered.
    #[cold]
    fn answer_broadcasts(&self) {
        let (begun, barriers) = (self.broadcasts.begun.get(), self.barriers().max(self.broadcasts.barrier.get()));
        let is_lost = |question: &mut Question| question.number >= begun && question.barriers < barriers;
        let lost: Vec<Question> = self.broadcasts.questions.borrow_mut().extract_if(.., is_lost).collect();
        for question in lost {
            let send = || self.engine.send_or_keep(question.from, id::BROADCAST_ELSEWHERE, question.number, &[]);
            self.engine.answer(question.from, send);
        }
    }

    /// The number of the next piece.
    pub fn next_broadcast(&self) -> u64 {
        let Broadcasts { came, elsewhere, questions, begun, .. } = &self.broadcasts;
        let number = begun.replace(begun.get() + 1);
        // Drop questions that came too late, and pieces for ranks that differed: no call takes them.
        came.borrow_mut().retain(|piece, _| *piece >= number);
        elsewhere.borrow_mut().retain(|piece, _| *piece >= number);
        questions.borrow_mut().retain(|question| question.number >= number);
        number
    }

    /// Takes a piece of a broadcast, if it has come.
    pub fn take_broadcast(&self, number: u64) -> Option<Vec<u8>> {
        self.broadcasts.came.borrow_mut().remove(&number)
    }

    /// Takes the question of a rank that waits for that piece, and takes this one for the root, if one has come.
    pub fn take_question(&self, number: u64) -> Option<Vec<u8>> {
        let mut questions = self.broadcasts.questions.borrow_mut();
        let at = questions.iter().position(|question| question.number == number && !question.head.is_empty())?;
        Some(questions.swap_remove(at).head)
    }

    /// A rank that was asked about that piece and is in another collective call.
    pub fn who_is_elsewhere(&self, number: u64) -> Option<usize> {
        self.broadcasts.elsewhere.borrow_mut().remove(&number)
    }

    /// Asks `to` about that piece; `head` says what broadcast this rank is in, if `to` should be the root. A rank that has left has
    /// done its part.
    pub fn ask_broadcast(&self, to: usize, number: u64, head: &[u8]) {
        let question = [&self.barriers().to_ne_bytes(), head].concat();
        self.engine.answer(to, || self.engine.send_or_keep(to, id::BROADCAST_QUESTION, number, &question));
    }

    /// Tells `to` that nothing follows in that piece's broadcast, since ranks differ. A rank that is gone need not know.
    pub fn end_broadcast(&self, to: usize, number: u64, heads: &[u8]) {
        self.engine.answer(to, || self.pass_broadcast(to, number, heads));
    }

    /// Sends a piece of a broadcast on to `to`.
    pub fn pass_broadcast(&self, to: usize, number: u64, bytes: &[u8]) -> Result<()> {
        self.engine.send_or_keep(to, id::BROADCAST, number, bytes)
    }
}
