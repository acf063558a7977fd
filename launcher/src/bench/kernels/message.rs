//! Active messages: there and back, as a stream, and as calls.

use std::sync::atomic::Ordering;

use bellwether_runtime::Result;

use super::bell::one_way;
use super::{LINE, Words, address, opaque, spin, spin_until, word};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Payload words that fit in a line behind the sequence number.
const INLINE: usize = LINE - 1;
/// Lines of the bare ring.
const DEPTH: u64 = 256;

/// One way of a ping-pong of messages, whose handler at rank 1 answers, beside one line with a sequence number and
/// the payload; a payload that does not fit is copied to a buffer first.
///
/// # Errors
/// Those of the runtime.
pub fn ping_pong(session: &Session, size: usize) -> Result<Vec<Measured>> {
    Ok(vec![session.in_places(|| ping_pong_here(session, size))?])
}

fn ping_pong_here(session: &Session, size: usize) -> Result<Measured> {
    let (world, own) = (&session.world, session.world.rank());
    let payload = vec![7u8; size];
    let bare = Mailbox::new(world.alloc(mailbox_words(size))?, size / 8);
    let mut bare_round = 0;
    let mut expected = session.pings.get();
    let ours = |n| match own {
        0 => {
            for _ in 0..n {
                let want = session.pongs.get() + 1;
                world.send(1, session.ping, &payload)?;
                world.wait_until(|| session.pongs.get() >= want)?;
            }
            Ok(())
        }
        1 => {
            // Some may have come before this rank got here.
            expected += n as u64;
            world.wait_until(|| session.pings.get() >= expected)
        }
        _ => Ok(()),
    };
    let limit = |n| bare.there_and_back(own, n, &mut bare_round);
    Ok(one_way(session.latency(session.operations(2000, 8 << 20, size), size, ours, limit)?))
}

/// A call of rank 1 with one word, whose result is one word, beside one line there and one back.
///
/// # Errors
/// Those of the runtime.
pub fn call(session: &Session, size: usize) -> Result<Vec<Measured>> {
    Ok(vec![session.in_places(|| call_here(session, size))?])
}

fn call_here(session: &Session, size: usize) -> Result<Measured> {
    let (world, own) = (&session.world, session.world.rank());
    let bare = Mailbox::new(world.alloc(2 * LINE)?, size / 8);
    let (mut bare_round, mut expected) = (0, session.pings.get());
    let ours = |n: usize| match own {
        0 => {
            for round in 0..n as u64 {
                opaque(world.call_plain(1, round, |_, x| x + 1)?.wait()?);
            }
            // This tells rank 1 that the batch is done.
            world.send(1, session.ping, &[])
        }
        1 => {
            expected += 1;
            world.wait_until(|| session.pings.get() >= expected)
        }
        _ => Ok(()),
    };
    let limit = |n| bare.there_and_back(own, n, &mut bare_round);
    session.latency(session.operations(2000, 8 << 20, size), size, ours, limit)
}

/// A line at each rank that one other writes: sequence number and payload.
pub(super) struct Mailbox<A> {
    array: A,
    words: usize,
    source: Vec<u64>,
}

/// Words of a mailbox for payloads of `size` bytes.
pub(super) fn mailbox_words(size: usize) -> usize {
    LINE + size / 8 + LINE
}

impl<A: Words> Mailbox<A> {
    pub(super) fn new(array: A, words: usize) -> Mailbox<A> {
        Mailbox { array, words, source: vec![7; words] }
    }

    /// Sends `n` lines from rank 0 to rank 1 and back; `round` counts them.
    pub(super) fn there_and_back(&self, own: usize, n: usize, round: &mut u64) -> Result<()> {
        let Some(&partner) = [1, 0].get(own) else { return Ok(()) };
        for _ in 0..n {
            *round += 1;
            if own == 0 {
                self.throw(partner, *round);
                self.catch(own, *round);
            } else {
                self.catch(own, *round);
                self.throw(partner, *round);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn throw(&self, partner: usize, round: u64) {
        if self.words <= INLINE {
            for i in 0..self.words {
                word(&self.array, partner, 1 + i).store(round, Ordering::Relaxed);
            }
        } else {
            // SAFETY: the buffer behind the partner's line, which reads it after it has seen the sequence number.
            unsafe {
                let buffer = address(&self.array, partner, LINE);
                libc::memcpy(buffer.cast(), self.source.as_ptr().cast(), 8 * self.words);
            }
        }
        word(&self.array, partner, 0).store(round, Ordering::Release);
    }

    #[inline(always)]
    fn catch(&self, own: usize, round: u64) {
        spin(word(&self.array, own, 0), round);
        let first = if self.words <= INLINE { 1 } else { LINE };
        opaque(word(&self.array, own, first).load(Ordering::Relaxed));
        opaque(word(&self.array, own, first + self.words - 1).load(Ordering::Relaxed));
    }
}

/// A stream of messages to a handler that counts, until all have been counted, beside a bare ring of lines.
///
/// # Errors
/// Those of the runtime.
pub fn stream(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (world, own) = (&session.world, session.world.rank());
    let payload = vec![7u8; size];
    let mut ring = Ring::new(world.alloc(ring_words(size))?, size / 8);
    let operations = session.operations(50_000, 16 << 20, size);
    // `pong` counts at rank 1 the messages of the stream, and at rank 0 the answer that all have come.
    let mut expected = session.pongs.get();
    let measured = session.alternate(
        operations,
        |n| match own {
            0 => {
                (0..n).try_for_each(|_| world.send(1, session.pong, &payload))?;
                expected += 1;
                world.wait_until(|| session.pongs.get() >= expected)
            }
            1 => {
                expected += n as u64;
                world.wait_until(|| session.pongs.get() >= expected)?;
                world.send(0, session.pong, &payload)
            }
            _ => Ok(()),
        },
        |n| ring.stream(own, n),
    )?;
    Ok(vec![measured])
}

/// Words of a ring for payloads of `size` bytes.
pub(super) fn ring_words(size: usize) -> usize {
    2 * LINE + DEPTH as usize * stride(size / 8)
}

/// Words from one slot of the ring to the next.
fn stride(words: usize) -> usize {
    (1 + words).next_multiple_of(LINE)
}

/// A ring at rank 1 that rank 0 writes; a word at rank 0 tells how much of it was read, half a ring at a time.
pub(super) struct Ring<A> {
    array: A,
    words: usize,
    source: Vec<u64>,
    next: u64,
    credit: u64,
}

impl<A: Words> Ring<A> {
    pub(super) fn new(array: A, words: usize) -> Ring<A> {
        Ring { array, words, source: vec![7; words], next: 0, credit: DEPTH }
    }

    /// Sends `n` messages from rank 0 to rank 1.
    pub(super) fn stream(&mut self, own: usize, n: usize) -> Result<()> {
        match own {
            0 => self.send(n as u64),
            1 => self.receive(n as u64),
            _ => {}
        }
        Ok(())
    }

    /// First word of the slot for message `number`.
    fn slot(&self, number: u64) -> usize {
        2 * LINE + (number % DEPTH) as usize * stride(self.words)
    }

    fn send(&mut self, n: u64) {
        let end = self.next + n;
        while self.next < end {
            if self.next == self.credit {
                let consumed = word(&self.array, 0, 0);
                spin_until(|| consumed.load(Ordering::Acquire) + DEPTH > self.next);
                self.credit = consumed.load(Ordering::Acquire) + DEPTH;
            }
            let slot = self.slot(self.next);
            if self.words <= INLINE {
                for i in 0..self.words {
                    word(&self.array, 1, slot + 1 + i).store(opaque(self.next), Ordering::Relaxed);
                }
            } else {
                // SAFETY: the slot holds that many words, and rank 1 reads them after it has seen the sequence number.
                unsafe {
                    let payload = address(&self.array, 1, slot + 1);
                    libc::memcpy(payload.cast(), self.source.as_ptr().cast(), 8 * self.words);
                }
            }
            self.next += 1;
            word(&self.array, 1, slot).store(self.next, Ordering::Release);
        }
        spin(word(&self.array, 0, LINE), end);
    }

    fn receive(&mut self, n: u64) {
        let end = self.next + n;
        while self.next < end {
            let slot = self.slot(self.next);
            spin(word(&self.array, 1, slot), self.next + 1);
            opaque(word(&self.array, 1, slot + 1).load(Ordering::Relaxed));
            opaque(word(&self.array, 1, slot + self.words).load(Ordering::Relaxed));
            self.next += 1;
            if self.next.is_multiple_of(DEPTH / 2) {
                word(&self.array, 0, 0).store(self.next, Ordering::Release);
            }
        }
        word(&self.array, 0, LINE).store(end, Ordering::Release);
    }
}
