//! Operations that met backpressure: queued for each target, in order.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use super::operation::Operation;
use crate::error::{CalledAt, Error, Loss, Result};
use crate::transport::Sent;

/// Operations kept for one target, in the order in which they are sent.
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
    /// Whether there is any queue. Every poll reads this.
    any: Cell<bool>,
    /// Bytes of the kept operations, without those that are kept without limit.
    bytes: Cell<usize>,
    /// Limit of `bytes`. A call whose operation would exceed it waits for room.
    limit: usize,
    /// The same for operations of handlers. They fail, since handlers cannot wait.
    handler_limit: usize,
    /// Message ids that are answers, one bit each.
    answers: Cell<u64>,
    /// Message ids whose senders never wait for room, one bit each. Their bytes are not counted.
    unlimited: Cell<u64>,
    /// Messages sent now are the program's, not those of the library's protocols. In a handler they are refused if there is no room.
    bounded: Cell<bool>,
    /// Operations that would wait for room fail now.
    at_once: Cell<bool>,
}

/// Restores the former value of a flag when dropped, also in a panic.
struct Bounded<'a>(&'a Cell<bool>, bool);

impl Drop for Bounded<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl Outbox {
    /// An outbox that keeps up to `limit` bytes, or up to `handler_limit` for operations of handlers, or a single operation that is longer.
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

    /// Adds message ids, one bit each, that are kept without limit: sending one never blocks for room and is never refused for lack of
    /// room. Their kept bytes do not count against `message_memory`. For vocabularies that promise this.
    pub(crate) fn set_unlimited(&self, kinds: u64) {
        self.unlimited.set(self.unlimited.get() | kinds);
    }

    /// Runs `send`, which sends a message of the program. In a handler the message is refused if it has to be kept and
    /// `BELLWETHER_MESSAGE_MEMORY` bytes are kept already. Messages of the library's protocols are not refused: nothing would send them
    /// again, and the protocols bound their number.
    ///
    /// # Errors
    /// Those of `send`; [`Error::WouldBlock`].
    pub(crate) fn bounded<R>(&self, send: impl FnOnce() -> Result<R>) -> Result<R> {
        let _bounded = Bounded(&self.bounded, self.bounded.replace(true));
        send()
    }

    /// Sends one message with `send`, which fails where it would wait for room. The only code of the program that `send` runs is the one
    /// that encodes arguments.
    ///
    /// # Errors
    /// Those of `send`; [`Error::WouldBlock`]: then nothing was sent.
    pub(crate) fn at_once<R>(&self, send: impl FnOnce() -> Result<R>) -> Result<R> {
        let _at_once = Bounded(&self.at_once, self.at_once.replace(true));
        self.bounded(send)
    }

    /// Whether an operation without room fails now instead of waiting.
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

    /// Checks that there is room to keep `operation` of a handler, which cannot wait: room may come only after it has returned. Only
    /// messages of the program, puts and rings are checked. The library puts and rings nothing in a handler, so puts and rings are the program's.
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

    /// Whether `operation` is kept without a check of the limit.
    pub(super) fn is_exempt(&self, operation: &Operation<&[u8]>) -> bool {
        // A caller of `at_once` that puts has checked for room before.
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

    /// Sends kept operations with `attempt`, for each target until it has no room. A target without room costs one failed attempt, however
    /// much is kept for it. Operations for a target that is `lost` are dropped. Errors go to `tell`. Returns how many operations were completed.
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
                    // The target has left since `lost` was asked.
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
