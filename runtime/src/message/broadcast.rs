//! Pieces of broadcasts, and questions of ranks that wait for one in vain.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::{Messages, id, words};
use crate::error::Result;

/// Bit of the number of a piece: a question about it.
const QUESTION: u64 = 1 << 63;
/// The same: its answer, that the piece will not come.
const ANSWER: u64 = 1 << 62;
const BITS: u64 = QUESTION | ANSWER;

/// What has come of broadcasts and is not taken yet, and how many pieces this rank has begun with.
#[derive(Default)]
pub(super) struct Broadcasts {
    /// By number, with [`ANSWER`] or without.
    came: RefCell<HashMap<u64, Vec<u8>>>,
    questions: RefCell<Vec<Question>>,
    begun: Cell<u64>,
    /// The barrier that this rank is about to enter, or has entered.
    barrier: Cell<u64>,
}

/// A rank waits for a piece of a broadcast, and takes this one for the root.
struct Question {
    from: usize,
    number: u64,
    /// Barriers that it had entered.
    barriers: u64,
    /// What broadcast it is in.
    head: Vec<u8>,
}

impl Messages {
    pub(super) fn install_broadcast(&self) {
        self.set_handler(id::BROADCAST, |messages, message| match words::<1>(message.data()) {
            Some(([number], bytes)) if number & QUESTION == 0 => {
                messages.broadcasts.came.borrow_mut().insert(number, bytes.to_vec());
            }
            Some(([number], bytes)) => match words(bytes) {
                Some(([barriers], head)) => {
                    let (from, number) = (message.from, number & !BITS);
                    let question = Question { from, number, barriers, head: head.to_vec() };
                    messages.broadcasts.questions.borrow_mut().push(question);
                    messages.answer_broadcasts();
                }
                None => messages.fault(message.from, "a question about a broadcast without a number"),
            },
            None => messages.fault(message.from, "a broadcast without a number"),
        });
    }

    /// Barriers that this rank has entered so far.
    fn barriers(&self) -> u64 {
        self.engine.status(self.engine.rank).entered.load(Ordering::Relaxed)
    }

    /// Before this rank enters its next barrier: tells those that wait for a piece of a broadcast before it that none will come.
    #[inline]
    pub fn before_barrier(&self) {
        self.broadcasts.barrier.set(self.barriers() + 1);
        if !self.broadcasts.questions.borrow().is_empty() {
            self.answer_broadcasts();
        }
    }

    /// Answers whoever waits for a piece of a broadcast that this rank has not begun, while it is in a barrier that the other has not
    /// entered.
    #[cold]
    fn answer_broadcasts(&self) {
        let (begun, barriers) = (self.broadcasts.begun.get(), self.barriers().max(self.broadcasts.barrier.get()));
        let is_lost = |question: &mut Question| question.number >= begun && question.barriers < barriers;
        let lost: Vec<Question> = self.broadcasts.questions.borrow_mut().extract_if(.., is_lost).collect();
        for question in lost {
            // Whoever is gone needs no answer.
            let _ = self.pass_broadcast(question.from, question.number | ANSWER, &[]);
        }
    }

    /// The number of the next piece.
    pub fn next_broadcast(&self) -> u64 {
        let Broadcasts { came, questions, begun, .. } = &self.broadcasts;
        let number = begun.replace(begun.get() + 1);
        // Questions that came too late, and pieces for ranks that differed, are taken by nobody.
        came.borrow_mut().retain(|piece, _| piece & !BITS >= number);
        questions.borrow_mut().retain(|question| question.number >= number);
        number
    }

    /// Takes a piece of a broadcast, if it has come.
    pub fn take_broadcast(&self, number: u64) -> Option<Vec<u8>> {
        self.broadcasts.came.borrow_mut().remove(&number)
    }

    /// Takes the question of a rank that waits for that piece, if one has come.
    pub fn take_question(&self, number: u64) -> Option<Vec<u8>> {
        let mut questions = self.broadcasts.questions.borrow_mut();
        let at = questions.iter().position(|question| question.number == number)?;
        Some(questions.swap_remove(at).head)
    }

    /// Whether the rank that was asked is in another collective call.
    pub fn is_elsewhere(&self, number: u64) -> bool {
        self.take_broadcast(number | ANSWER).is_some()
    }

    /// Asks `to`, which should be the root of that piece's broadcast; `head` says what this rank takes it for.
    pub fn ask_broadcast(&self, to: usize, number: u64, head: &[u8]) -> Result<()> {
        self.pass_broadcast(to, number | QUESTION, &[&self.barriers().to_ne_bytes(), head].concat())
    }

    /// Sends a piece of a broadcast on to `to`.
    pub fn pass_broadcast(&self, to: usize, number: u64, bytes: &[u8]) -> Result<()> {
        self.engine.send_or_keep(to, id::BROADCAST, number, bytes)
    }
}
