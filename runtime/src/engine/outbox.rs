//! Operations that met backpressure: queued for each target, in order.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use super::operation::Operation;
use crate::error::{CalledAt, Error, Loss, Result};
use crate::transport::Sent;

/// What is kept for one target, in the order in which it is sent.
#[derive(Default)]
struct Queue {
    operations: VecDeque<Operation<Box<[u8]>>>,
    /// Number of `operations` that are not messages.
    writes: usize,
}

impl Queue {
    /// Appends, except that a put is inserted right after the last write, ahead of messages. A message may have to wait
    /// until the target makes progress; a put must not. Order only requires that later operations stay behind the put.
    fn push(&mut self, kept: Operation<Box<[u8]>>) {
        let last_write = || self.operations.iter().rposition(Operation::writes).map_or(0, |at| at + 1);
        let place = match kept {
            Operation::Put { .. } if self.writes == 0 => 0,
            Operation::Put { .. } => last_write(),
            _ => self.operations.len(),
        };
        self.writes += usize::from(kept.writes());
        self.operations.insert(place, kept);
    }

    fn pop(&mut self) {
        let kept = self.operations.pop_front();
        self.writes -= usize::from(kept.is_some_and(|kept| kept.writes()));
    }
}

/// Operations of this rank that met backpressure, and how many more may be kept.
#[derive(Default)]
pub(crate) struct Outbox {
    /// By target. No queue is empty.
    queues: RefCell<BTreeMap<usize, Queue>>,
    /// Whether there is one: every poll reads this.
    any: Cell<bool>,
    /// Their bytes, as far as a limit holds for them.
    bytes: Cell<usize>,
    /// Most bytes that are kept for more to be kept: a call that finds more waits.
    limit: usize,
    /// The same for handlers, which cannot wait.
    handler_limit: usize,
    /// Message ids that are answers, one bit each.
    answers: Cell<u64>,
    /// Message ids whose senders never wait for room, one bit each. Their bytes are not counted.
    unlimited: Cell<u64>,
    /// What a handler sends now is its own program's, and may be refused.
    bounded: Cell<bool>,
    /// What would wait for room now fails instead.
    at_once: Cell<bool>,
}

/// Puts the bound before back, also in a panic.
struct Bounded<'a>(&'a Cell<bool>, bool);

impl Drop for Bounded<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl Outbox {
    /// Keeps up to `limit` bytes, and for handlers up to `handler_limit`, or one operation that is longer.
    pub(super) fn new(limit: usize, handler_limit: usize) -> Outbox {
        Outbox { limit, handler_limit: handler_limit.max(limit), ..Outbox::default() }
    }

    /// Whether anything is kept for any target.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.get()
    }

    /// Whether anything is kept for `to`. A new operation, except a put, must queue behind it.
    #[inline]
    pub(crate) fn keeps_for(&self, to: usize) -> bool {
        self.any.get() && self.queues.borrow().contains_key(&to)
    }

    /// Whether a put, bell or atomic is kept for `to`. A later put or read of its memory must not overtake it.
    pub(super) fn keeps_write_for(&self, to: usize) -> bool {
        self.any.get() && self.queues.borrow().get(&to).is_some_and(|queue| queue.writes > 0)
    }

    /// Sets which message ids are answers, one bit each. Dropping an answer is no error if its target has left in good
    /// order, since that rank no longer waits for it.
    pub(crate) fn set_answers(&self, kinds: u64) {
        self.answers.set(kinds);
    }

    /// Adds message ids, one bit each, that are kept without limit: sending one never blocks for room and is never refused for lack
    /// of it. What is kept of them takes no part of `message_memory`. For vocabularies whose promise it is.
    pub(crate) fn set_unlimited(&self, kinds: u64) {
        self.unlimited.set(self.unlimited.get() | kinds);
    }

    /// Sends for a handler's own program: without room it is refused when `BELLWETHER_MESSAGE_MEMORY` bytes are kept. What the
    /// library's protocols send bounds itself, and is not refused: nobody would send it again.
    ///
    /// # Errors
    /// Those of `send`; [`Error::WouldBlock`].
    pub(crate) fn bounded<R>(&self, send: impl FnOnce() -> Result<R>) -> Result<R> {
        let _bounded = Bounded(&self.bounded, self.bounded.replace(true));
        send()
    }

    /// Sends one message with `send`, which fails where it would wait for room. Of the program it runs no code but what makes
    /// bytes of arguments.
    ///
    /// # Errors
    /// Those of `send`; [`Error::WouldBlock`]: then nothing was sent.
    pub(crate) fn at_once<R>(&self, send: impl FnOnce() -> Result<R>) -> Result<R> {
        let _at_once = Bounded(&self.at_once, self.at_once.replace(true));
        self.bounded(send)
    }

    /// Whether what has no room fails now, and does not wait.
    #[inline]
    pub(crate) fn is_at_once(&self) -> bool {
        self.at_once.get()
    }

    /// Checks that `len` more bytes may be kept.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub(crate) fn check_room(&self, operation: &'static str, rank: usize, len: usize) -> Result<()> {
        if self.has_room(len) {
            return Ok(());
        }
        Err(Error::WouldBlock { operation, rank, place: CalledAt::default() })
    }

    /// Whether `len` more bytes may be kept.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.has_room_below(self.limit, len)
    }

    fn has_room_below(&self, limit: usize, len: usize) -> bool {
        self.bytes.get() == 0 || self.bytes.get().saturating_add(len) <= limit
    }

    /// Checks that a handler may have this operation kept. Room may come only after the handler has returned. Only the program puts and
    /// rings in a handler; the library does not.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub(super) fn check_handler(&self, to: usize, operation: &Operation<&[u8]>) -> Result<()> {
        let is_bounded = self.bounded.get() || operation.writes();
        if is_bounded && !self.has_room_below(self.handler_limit, operation.len()) {
            return Err(Error::WouldBlock { operation: operation.doing(), rank: to, place: CalledAt::default() });
        }
        Ok(())
    }

    /// Whether it is kept without a look at the limit.
    pub(super) fn is_exempt(&self, operation: &Operation<&[u8]>) -> bool {
        // For a put at once room was found before.
        operation.is_one_of(self.unlimited.get()) || (self.is_at_once() && operation.writes())
    }

    /// Keeps a copy of the operation.
    pub(super) fn push(&self, to: usize, operation: &Operation<&[u8]>) {
        let kept = operation.keep();
        self.bytes.set(self.bytes.get() + self.counted(&kept));
        self.queues.borrow_mut().entry(to).or_default().push(kept);
        self.any.set(true);
    }

    /// Bytes of a kept operation that count against the limit.
    fn counted(&self, kept: &Operation<Box<[u8]>>) -> usize {
        if kept.is_one_of(self.unlimited.get()) { 0 } else { kept.len() }
    }

    /// Sends what was kept with `attempt`, for each target until it has no room. A target without room costs one failed attempt, however
    /// much is kept for it; what is kept for one that is `lost` is dropped. Errors go to `tell`. Returns how many operations were completed.
    pub(super) fn retry(
        &self,
        lost: impl Fn(usize) -> Option<Loss>,
        attempt: impl Fn(usize, &mut Operation<Box<[u8]>>) -> Result<Sent>,
        tell: impl Fn(Error),
    ) -> usize {
        let mut done = 0;
        let is_answer = |kept: &Operation<Box<[u8]>>| kept.is_one_of(self.answers.get());
        let mut pending = self.queues.borrow_mut();
        pending.retain(|to, queue| {
            if let Some(cause) = lost(*to) {
                if cause != Loss::Left || !queue.operations.iter().all(is_answer) {
                    tell(Error::PeerLost { rank: *to, cause, doing: "sending what had found no room".into() });
                }
                let dropped: usize = queue.operations.iter().map(|kept| self.counted(kept)).sum();
                self.bytes.set(self.bytes.get() - dropped);
                return false;
            }
            while let Some(kept) = queue.operations.front_mut() {
                match attempt(*to, kept) {
                    Ok(Sent::Done) => {}
                    Ok(Sent::NoRoom) => return true,
                    // It has left just now.
                    Err(Error::PeerLost { cause: Loss::Left, .. }) if is_answer(kept) => {}
                    Err(error) => tell(error),
                }
                self.bytes.set(self.bytes.get() - self.counted(kept));
                queue.pop();
                done += 1;
            }
            false
        });
        self.any.set(!pending.is_empty());
        done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_kept_put_waits_for_no_message() {
        let mut queue = Queue::default();
        let message = |id| Operation::Message { id, ordered: false, header: 0, payload: &[][..] };
        let put = |offset| Operation::Put { offset, bytes: &[1][..], done: 0, after: false, tell: false };
        for operation in
            [message(1), message(2), put(1), message(3), put(2), Operation::Ring { offset: 3 }, message(4), put(4)]
        {
            queue.push(operation.keep());
        }
        let order: Vec<_> = std::iter::from_fn(|| {
            let kept = queue.operations.front()?;
            let told = match kept {
                Operation::Message { id, .. } => format!("message {id}"),
                Operation::Put { offset, .. } => format!("put {offset}"),
                Operation::Ring { offset } | Operation::MappedRing { offset } => format!("ring {offset}"),
                Operation::Change { offset, .. } => format!("atomic {offset}"),
            };
            queue.pop();
            Some(told)
        })
        .collect();
        assert_eq!(
            order,
            ["put 1", "put 2", "message 1", "message 2", "message 3", "ring 3", "put 4", "message 4"],
            "puts and rings among themselves, and messages, in order; a message never before a put that came first"
        );
        assert_eq!(queue.writes, 0);
    }
}
