//! What found no room: kept by target, in order, and sent when there is some.

use std::collections::VecDeque;

use super::Engine;
use super::far::Asked;
use crate::error::{Error, Loss, Result};
use crate::transport::shm::Sent;

/// Something for another rank.
pub(crate) enum Work<'a> {
    /// An active message. `ordered`: delivered after all that were sent before; lanes always do so.
    Message { id: u8, ordered: bool, header: u64, payload: &'a [u8] },
    /// Bytes for its slot. `tell`: it may wait for them.
    Put { offset: usize, bytes: &'a [u8], tell: bool },
    /// One more in a word of its slot, by the network.
    Ring { offset: usize },
    /// One more in a word of its slot, which is near and only this rank's to write.
    Chime { offset: usize },
    /// An atomic on a word of its slot, whose answer nobody wants.
    Atomic { offset: usize, asked: Asked },
}

/// The same, kept.
enum Kept {
    Message {
        id: u8,
        ordered: bool,
        header: u64,
        payload: Box<[u8]>,
    },
    /// The first `done` bytes are on their way.
    Put {
        offset: usize,
        bytes: Box<[u8]>,
        done: usize,
        tell: bool,
    },
    Ring {
        offset: usize,
    },
    Chime {
        offset: usize,
    },
    Atomic {
        offset: usize,
        asked: Asked,
    },
}

/// What is kept for one target, in order.
#[derive(Default)]
pub(super) struct Queue {
    works: VecDeque<Kept>,
    /// Puts and rings among them.
    writes: usize,
}

impl Queue {
    /// Keeps order, but for a put: it goes before messages that were kept after the last write. They may wait for the
    /// target's progress, and a put must not; what waits for a put is what comes after it.
    fn push(&mut self, kept: Kept) {
        let last_write = || self.works.iter().rposition(Kept::writes).map_or(0, |at| at + 1);
        let place = match kept {
            Kept::Put { .. } if self.writes == 0 => 0,
            Kept::Put { .. } => last_write(),
            _ => self.works.len(),
        };
        self.writes += usize::from(kept.writes());
        self.works.insert(place, kept);
    }

    fn pop(&mut self) {
        let kept = self.works.pop_front();
        self.writes -= usize::from(kept.is_some_and(|kept| kept.writes()));
    }
}

impl Work<'_> {
    fn keep(&self) -> Kept {
        match *self {
            Work::Message { id, ordered, header, payload } => {
                Kept::Message { id, ordered, header, payload: payload.into() }
            }
            Work::Put { offset, bytes, tell } => Kept::Put { offset, bytes: bytes.into(), done: 0, tell },
            Work::Ring { offset } => Kept::Ring { offset },
            Work::Chime { offset } => Kept::Chime { offset },
            Work::Atomic { offset, asked } => Kept::Atomic { offset, asked },
        }
    }

    /// What a rank that does this is doing.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Work::Message { .. } => "sending a message",
            Work::Put { .. } => "put",
            Work::Ring { .. } | Work::Chime { .. } => "ringing a bell",
            Work::Atomic { .. } => "an atomic",
        }
    }

    /// Bytes that keeping it takes, about.
    fn len(&self) -> usize {
        8 + match self {
            Work::Message { payload, .. } => payload.len(),
            Work::Put { bytes, .. } => bytes.len(),
            Work::Ring { .. } | Work::Chime { .. } => 0,
            Work::Atomic { .. } => size_of::<Asked>(),
        }
    }
}

impl Kept {
    fn writes(&self) -> bool {
        !matches!(self, Kept::Message { .. })
    }

    fn work(&self) -> Work<'_> {
        match self {
            Kept::Message { id, ordered, header, payload } => {
                Work::Message { id: *id, ordered: *ordered, header: *header, payload }
            }
            Kept::Put { offset, bytes, done, tell } => {
                Work::Put { offset: offset + done, bytes: &bytes[*done..], tell: *tell }
            }
            Kept::Ring { offset } => Work::Ring { offset: *offset },
            Kept::Chime { offset } => Work::Chime { offset: *offset },
            Kept::Atomic { offset, asked } => Work::Atomic { offset: *offset, asked: *asked },
        }
    }

    /// Whether it is a message of one of these kinds, a bit each.
    fn is_one_of(&self, kinds: u64) -> bool {
        matches!(self, Kept::Message { id, .. } if *id < 64 && kinds >> id & 1 != 0)
    }

    /// As [`Work::len`], of all that it was.
    fn len(&self) -> usize {
        match self {
            Kept::Put { bytes, .. } => 8 + bytes.len(),
            other => other.work().len(),
        }
    }
}

impl Engine {
    /// Sends without refusing: a message that finds no room is kept, in order, and goes out from a later
    /// [`Engine::poll`]. What is kept may be as much as larger messages in flight; beyond that this waits for room.
    /// A handler cannot wait, and what it does not send is lost to who asked for it: it keeps what it must.
    ///
    /// # Errors
    /// As [`Engine::send`].
    #[inline]
    pub fn send_or_keep(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        if self.send_at_once(to, id, header, payload) || self.send(to, id, header, payload)? == Sent::Done {
            return Ok(());
        }
        self.keep(to, &Work::Message { id, ordered: false, header, payload })
    }

    /// As [`Engine::send_or_keep`], and delivered after all that this rank has sent there before.
    ///
    /// # Errors
    /// As [`Engine::send`].
    pub fn send_in_order(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        self.do_or_keep(to, Work::Message { id, ordered: true, header, payload })
    }

    /// Says which kinds of message are answers, a bit each: one who has left in good order waits for none.
    pub fn set_answers(&self, kinds: u64) {
        self.answers.set(kinds);
    }

    /// Keeps what became of an answer for the next [`Engine::poll`], if it is an error.
    pub fn note_answer(&self, sent: Result<()>) {
        match sent {
            Ok(()) | Err(Error::PeerLost { cause: Loss::Left, .. }) => {}
            Err(error) => self.set_fault(error),
        }
    }

    pub(super) fn do_or_keep(&self, to: usize, mut work: Work<'_>) -> Result<()> {
        if self.job.any_lost() || self.job.any_left() {
            self.check_alive(to, work.doing())?;
        }
        // A put need not wait for messages: what waits for a put is what comes after it.
        let kept = if let Work::Put { .. } = work { self.keeps_write_for(to) } else { self.keeps_for(to) };
        if !kept
            && (self.attempt(to, &mut work)? == Sent::Done || self.attempt_for_a_moment(to, &mut work)? == Sent::Done)
        {
            return Ok(());
        }
        self.keep(to, &work)
    }

    #[cold]
    fn keep(&self, to: usize, work: &Work<'_>) -> Result<()> {
        let (limit, asked) = (self.settings.message_memory, work.len());
        let room = || self.pending_bytes.get() == 0 || self.pending_bytes.get() + asked <= limit;
        if !room() && !self.interface.delivering() {
            self.wait_together("waiting for room to send a message", room)?;
        }
        self.keep_now(to, work);
        Ok(())
    }

    fn keep_now(&self, to: usize, work: &Work<'_>) {
        self.pending.borrow_mut().entry(to).or_default().push(work.keep());
        self.pending_bytes.set(self.pending_bytes.get() + work.len());
        self.has_pending.set(true);
    }

    /// Does this, now or from a later [`Engine::poll`]. Neither waits nor fails: where its rank is gone it is not done.
    #[cold]
    pub(super) fn do_unasked(&self, to: usize, mut work: Work<'_>) {
        if !self.keeps_for(to) && !matches!(self.attempt(to, &mut work), Ok(Sent::NoRoom)) {
            return;
        }
        self.keep_now(to, &work);
    }

    /// Whether something is kept for `to`, which nothing may overtake.
    #[inline]
    pub(super) fn keeps_for(&self, to: usize) -> bool {
        self.has_pending.get() && self.pending.borrow().contains_key(&to)
    }

    /// Whether a put or ring is kept for `to`, which no later look at its memory may overtake.
    pub(super) fn keeps_write_for(&self, to: usize) -> bool {
        self.has_pending.get() && self.pending.borrow().get(&to).is_some_and(|queue| queue.writes > 0)
    }

    /// One attempt. What is done of a put is taken off it.
    pub(super) fn attempt(&self, to: usize, work: &mut Work<'_>) -> Result<Sent> {
        match *work {
            Work::Message { id, header, payload, .. } if self.far.is_none() => {
                self.transmit_near(to, id, header, payload)
            }
            Work::Message { id, header, payload, .. } if self.has_lane(to) => {
                self.check_fits(payload)?;
                let sent = if self.is_clear(to)? { self.transmit_near(to, id, header, payload)? } else { Sent::NoRoom };
                self.wake_mates();
                Ok(sent)
            }
            Work::Chime { offset } => self.chime(to, offset),
            _ => {
                let sent = self.attempt_far(to, work)?;
                self.count(usize::from(sent == Sent::Done && matches!(work, Work::Message { .. })), 0);
                Ok(sent)
            }
        }
    }

    /// Sends what was kept, as far as there is room; costs a look for each target, however much is kept for it.
    #[cold]
    pub(super) fn flush_pending(&self) -> usize {
        let mut done = 0;
        let mut pending = self.pending.borrow_mut();
        pending.retain(|to, queue| {
            if let Some(cause) = self.job.loss(*to) {
                if cause != Loss::Left || !queue.works.iter().all(|kept| kept.is_one_of(self.answers.get())) {
                    self.set_fault(Error::PeerLost {
                        rank: *to,
                        cause,
                        doing: "sending what had found no room".into(),
                    });
                }
                let dropped: usize = queue.works.iter().map(Kept::len).sum();
                self.pending_bytes.set(self.pending_bytes.get() - dropped);
                return false;
            }
            while let Some(kept) = queue.works.front_mut() {
                let mut work = kept.work();
                let sent = self.attempt(*to, &mut work);
                let left = if let Work::Put { bytes, .. } = work { bytes.len() } else { 0 };
                if let Kept::Put { bytes, done, .. } = kept {
                    *done = bytes.len() - left;
                }
                match sent {
                    Ok(Sent::Done) => {}
                    Ok(Sent::NoRoom) => return true,
                    Err(error) => self.set_fault(error),
                }
                self.pending_bytes.set(self.pending_bytes.get() - kept.len());
                queue.pop();
                done += 1;
            }
            false
        });
        self.has_pending.set(!pending.is_empty());
        done
    }

    /// Whether something is kept that found no room.
    pub fn has_pending(&self) -> bool {
        self.has_pending.get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_kept_put_waits_for_no_message() {
        let mut queue = Queue::default();
        let message = |id| Work::Message { id, ordered: false, header: 0, payload: &[] };
        let put = |offset| Work::Put { offset, bytes: &[1], tell: false };
        for work in [message(1), message(2), put(1), message(3), put(2), Work::Ring { offset: 3 }, message(4), put(4)] {
            queue.push(work.keep());
        }
        let order: Vec<_> = std::iter::from_fn(|| {
            let kept = queue.works.front()?.work();
            let told = match kept {
                Work::Message { id, .. } => format!("message {id}"),
                Work::Put { offset, .. } => format!("put {offset}"),
                Work::Ring { offset } | Work::Chime { offset } => format!("ring {offset}"),
                Work::Atomic { offset, .. } => format!("atomic {offset}"),
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
