//! A ring of message slots. One peer writes it by RDMA; the rank that owns it polls it. A slot holds one message, small
//! enough to be sent inline.
//!
//! ```text
//! word 0   checksum of the rest of the message; 0 while the slot is empty
//! word 1   the message's id, credits, length, and how many frames the peer had sent before
//! ...      the message
//! ```
//!
//! Verbs does not define the order in which the bytes of one RDMA write become visible. A message has arrived when its
//! checksum matches. The checksum also covers the message's number, so that remains of an earlier message in the same slot
//! do not match.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use once_cell::unsync::OnceCell;

use super::nic::Nic;
use super::pool::Pool;
use crate::transport::error::Result;

/// Slots of a ring. Credits must not exceed it, or the peer would overwrite messages that are not handled.
pub const SLOTS: u32 = 32;
/// Bytes of a slot.
const SLOT: usize = 256;
/// Bytes of a ring.
pub const RING: usize = SLOTS as usize * SLOT;
const WORD: usize = size_of::<u64>();
/// Bytes of a slot before the message.
pub const HEAD: usize = 2 * WORD;
/// Most rings that a rank lends at a time. Further busy peers keep to sends.
pub const RINGS: usize = 8;

/// The description of a message in word 1 of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The user's id.
    pub id: u8,
    /// Credits returned to the receiver.
    pub credits: u8,
    /// Frames that the peer had sent before. The receiver handles those first.
    pub after: u32,
}

/// A peer's ring that this rank may write: where it is, and how far it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    pub key: u32,
    /// Messages written so far.
    pub written: u32,
}

impl Remote {
    /// Where the next message goes.
    pub fn next(&self) -> u64 {
        self.address + u64::from(self.written % SLOTS) * SLOT as u64
    }
}

/// Whether a message of `bytes` bytes, head included, fits into a slot.
pub fn fits(bytes: usize) -> bool {
    bytes <= SLOT
}

/// The checksum of the `number`-th message of a ring. Never 0. Each step multiplies by an odd number and rotates, which is
/// invertible, so messages that differ in one word differ in their checksum.
fn check(number: u32, words: impl Iterator<Item = u64>) -> u64 {
    // Knuth's multiplicative hashing: 2^64 divided by the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |check: u64, word: u64| (check ^ word).wrapping_mul(FACTOR).rotate_left(29);
    words.fold(mix(FACTOR, u64::from(number)), mix).max(1)
}

/// Writes checksum and head into the first [`HEAD`] bytes of `slot`; the message follows them already. It becomes the
/// `number`-th message of a ring.
pub fn seal(slot: &mut [u8], number: u32, head: Head) {
    let len = (slot.len() - HEAD) as u16;
    slot[WORD..WORD + 4].copy_from_slice(&[head.id, head.credits, len as u8, (len >> 8) as u8]);
    slot[WORD + 4..HEAD].copy_from_slice(&head.after.to_le_bytes());
    let words = slot[WORD..].chunks(WORD).map(|bytes| {
        let mut word = [0; WORD];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let check = check(number, words);
    slot[..WORD].copy_from_slice(&check.to_le_bytes());
}

/// A copy of a message that was whole.
pub struct Taken {
    words: [u64; SLOT / WORD],
    len: usize,
    pub head: Head,
}

impl Taken {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `take` checked that HEAD + `len` bytes are inside `words`; any word is valid as bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>().add(HEAD), self.len) }
    }
}

/// This rank's rings. Each is allocated and registered when it is lent for the first time.
#[derive(Debug)]
pub struct Rings {
    rings: [OnceCell<Pool>; RINGS],
    free: RefCell<Vec<u32>>,
    /// Peers that have one, the oldest first.
    borrowers: RefCell<Vec<u32>>,
}

impl Default for Rings {
    fn default() -> Rings {
        // Reversed: `lend` takes from the end, so a rank with few busy peers allocates few rings.
        let free = RefCell::new((0..RINGS as u32).rev().collect());
        Rings { rings: Default::default(), free, borrowers: RefCell::default() }
    }
}

impl Rings {
    /// Lends `peer` an empty ring. Returns its number here, and the address and key by which the peer writes it. `None` if all are lent.
    ///
    /// # Errors
    /// If a further ring cannot be allocated or registered.
    pub fn lend(&self, nic: &Arc<Nic>, peer: u32) -> Result<Option<(u32, Remote)>> {
        let Some(ring) = self.free.borrow().last().copied() else { return Ok(None) };
        let pool = self.rings[ring as usize].get_or_try_init(|| Pool::new(nic, 1, RING))?;
        self.free.borrow_mut().pop();
        self.borrowers.borrow_mut().push(peer);
        (0..SLOTS).flat_map(|slot| self.slot(ring, slot)).for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(Some((ring, Remote { address: pool.at(0) as u64, key: pool.remote_key(), written: 0 })))
    }

    /// Takes the ring of `peer` back, which must have stopped writing into it.
    pub fn give_back(&self, ring: u32, peer: u32) {
        self.borrowers.borrow_mut().retain(|to| *to != peer);
        self.free.borrow_mut().push(ring);
    }

    /// The peers that have a ring.
    pub fn borrowers(&self) -> Vec<u32> {
        self.borrowers.borrow().clone()
    }

    /// The peer at this place among those that have a ring.
    #[inline(always)]
    pub fn borrower(&self, place: usize) -> Option<u32> {
        self.borrowers.borrow().get(place).copied()
    }

    /// The slot of the `number`-th message.
    #[inline(always)]
    fn slot(&self, ring: u32, number: u32) -> &[AtomicU64; SLOT / WORD] {
        let start = self.rings[ring as usize].get().expect("a ring that was lent").at(0);
        // SAFETY: the slot is inside the ring, since its number is taken modulo SLOTS; rings are page-aligned and SLOT is a
        // multiple of a word. The device may write at any time, so the words are atomics.
        unsafe { &*start.add((number % SLOTS) as usize * SLOT).cast() }
    }

    /// Whether the checksum of the `number`-th message has begun to arrive; the message may not be whole yet.
    #[inline(always)]
    pub fn has_begun(&self, ring: u32, number: u32) -> bool {
        self.slot(ring, number)[0].load(Ordering::Relaxed) != 0
    }

    /// The `number`-th message, if all of it has arrived.
    pub fn peek(&self, ring: u32, number: u32) -> Option<Taken> {
        take(self.slot(ring, number), number)
    }

    /// Marks the slot of the `number`-th message as empty.
    pub fn clear(&self, ring: u32, number: u32) {
        self.slot(ring, number)[0].store(0, Ordering::Relaxed);
    }
}

fn take(slot: &[AtomicU64; SLOT / WORD], number: u32) -> Option<Taken> {
    let told = slot[0].load(Ordering::Relaxed);
    if told == 0 {
        return None;
    }
    let mut words = [0; SLOT / WORD];
    words[1] = slot[1].load(Ordering::Relaxed);
    let [id, credits, low, high, after @ ..] = u64::from_le(words[1]).to_le_bytes();
    let len = usize::from(u16::from_le_bytes([low, high]));
    if len > SLOT - HEAD {
        return None;
    }
    let used = HEAD / WORD + len.div_ceil(WORD);
    for (word, there) in words[2..used].iter_mut().zip(&slot[2..used]) {
        *word = there.load(Ordering::Relaxed);
    }
    // The last word may hold bytes of an earlier message behind the end of this one.
    if !len.is_multiple_of(WORD) {
        let kept = u64::MAX >> (8 * (WORD - len % WORD));
        words[used - 1] &= kept.to_le();
    }
    let is_whole = check(number, words[1..used].iter().map(|word| u64::from_le(*word))) == u64::from_le(told);
    // Later loads must not be moved before the loads of the message: they may read data that the peer has put before the message.
    fence(Ordering::Acquire);
    is_whole.then(|| Taken { words, len, head: Head { id, credits, after: u32::from_le_bytes(after) } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as random as a test needs: xorshift.
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn sealed(message: &[u8], number: u32, head: Head) -> Vec<u8> {
        let mut slot = vec![0; HEAD];
        slot.extend_from_slice(message);
        seal(&mut slot, number, head);
        slot
    }

    fn memory(bytes: &[u8; SLOT]) -> [AtomicU64; SLOT / WORD] {
        std::array::from_fn(|word| {
            AtomicU64::new(u64::from_ne_bytes(bytes[word * WORD..][..WORD].try_into().expect("a word")))
        })
    }

    #[test]
    fn a_message_is_there_when_its_last_byte_is_whichever_that_is() {
        let mut state = 0x1234_5678_9abc_def1;
        for len in (0..=40).chain([SLOT - HEAD - 1, SLOT - HEAD]) {
            for turn in 0..20u32 {
                let random: Vec<u8> = (0..len).map(|_| next(&mut state) as u8).collect();
                // The former content of the slot: the same message a round ago, with its check cleared, or anything.
                let (number, head) = (7 + turn, Head { id: turn as u8, credits: 3, after: 9 });
                let before = sealed(&random, number.wrapping_sub(SLOTS), head);
                let mut slot = [0u8; SLOT];
                for (at, byte) in slot.iter_mut().enumerate() {
                    *byte =
                        if turn % 2 == 0 { before.get(at).copied().unwrap_or(0xaa) } else { next(&mut state) as u8 };
                }
                slot[..WORD].fill(0);
                let written = sealed(&random, number, head);
                let mut places: Vec<usize> = (0..written.len()).filter(|at| slot[*at] != written[*at]).collect();
                for last in (1..places.len()).rev() {
                    places.swap(last, next(&mut state) as usize % (last + 1));
                }
                for place in places {
                    assert!(take(&memory(&slot), number).is_none(), "{len} bytes: {place} has not come");
                    slot[place] = written[place];
                }
                let taken = take(&memory(&slot), number).expect("all is there");
                assert_eq!((taken.bytes(), taken.head), (&random[..], head));
                assert!(take(&memory(&slot), number.wrapping_add(SLOTS)).is_none(), "nor is it the next of its slot");
            }
        }
    }

    #[test]
    fn a_length_that_no_message_has_is_none() {
        let mut slot = [0xff; SLOT];
        assert!(take(&memory(&slot), 0).is_none());
        slot[..WORD].fill(0);
        assert!(take(&memory(&slot), 0).is_none());
    }
}
