//! Atomics that the device does not have, made of its compare-and-swap: guess the value of the word, and try again with
//! the value that it had, until the guess is right. A word of four bytes is a part of one of eight.

use std::cell::RefCell;

use crate::transport::atomic::{Atomic, Width};
use crate::transport::key::RemoteKey;

#[derive(Debug)]
struct Attempt {
    peer: u32,
    key: RemoteKey,
    /// Of the eight bytes.
    remote: u64,
    /// Where in them the word of four bytes is.
    shift: u32,
    atomic: Atomic,
    ticket: Option<u64>,
    guess: u64,
    under_way: bool,
}

impl Attempt {
    /// The word in `whole`.
    fn part(&self, whole: u64) -> u64 {
        match self.atomic.width {
            Width::Four => whole >> self.shift & u64::from(u32::MAX),
            Width::Eight => whole,
        }
    }

    /// `whole` after the atomic.
    fn after(&self, whole: u64) -> u64 {
        let new = self.atomic.apply(self.part(whole));
        match self.atomic.width {
            Width::Eight => new,
            Width::Four => {
                let mask = u64::from(u32::MAX) << self.shift;
                whole & !mask | new << self.shift & mask
            }
        }
    }
}

/// All of a wire that are in flight.
#[derive(Debug, Default)]
pub struct Attempts {
    all: RefCell<Vec<Option<Attempt>>>,
}

impl Attempts {
    pub fn start(&self, peer: u32, key: &RemoteKey, remote: u64, atomic: Atomic, ticket: Option<u64>) {
        let shift = (remote % 8 * 8) as u32;
        let remote = remote / 8 * 8;
        let attempt = Attempt { peer, key: *key, remote, shift, atomic, ticket, guess: 0, under_way: false };
        let mut all = self.all.borrow_mut();
        match all.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(attempt),
            None => all.push(Some(attempt)),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.all.borrow().iter().all(Option::is_none)
    }

    /// Calls `send` for each attempt that is not in flight, with peer, key, address, comparand, new value and number. `send` returns
    /// whether it has sent the attempt.
    pub fn go_on(&self, send: impl Fn(u32, &RemoteKey, u64, u64, u64, u32) -> bool) -> usize {
        let mut count = 0;
        for number in 0.. {
            let wanted = match self.all.borrow().get(number) {
                None => return count,
                Some(Some(attempt)) if !attempt.under_way => {
                    let new = attempt.after(attempt.guess);
                    (attempt.peer, attempt.key, attempt.remote, attempt.guess, new)
                }
                Some(_) => continue,
            };
            let (peer, key, remote, guess, new) = wanted;
            if send(peer, &key, remote, guess, new, number as u32) {
                count += 1;
                if let Some(Some(attempt)) = self.all.borrow_mut().get_mut(number) {
                    attempt.under_way = true;
                }
            }
        }
        count
    }

    /// Called when an attempt has found `whole`. If that was the guess, returns the ticket and the former value of the word.
    pub fn found(&self, number: u32, whole: u64) -> Option<(Option<u64>, u64)> {
        let mut all = self.all.borrow_mut();
        let place = all.get_mut(number as usize)?;
        let attempt = place.as_mut()?;
        if whole != attempt.guess {
            (attempt.guess, attempt.under_way) = (whole, false);
            return None;
        }
        let result = (attempt.ticket, attempt.part(whole));
        *place = None;
        Some(result)
    }

    /// Ends those to `peer`; `each` gets their tickets.
    pub fn forget(&self, peer: u32, mut each: impl FnMut(u64)) {
        for place in self.all.borrow_mut().iter_mut().filter(|place| place.as_ref().is_some_and(|a| a.peer == peer)) {
            place.take().and_then(|attempt| attempt.ticket).into_iter().for_each(&mut each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::atomic::AtomicOp;
    use crate::transport::key::{MemoryKind, Opaque};

    #[test]
    fn guesses_end_with_what_the_processor_would_do() {
        let key =
            RemoteKey { owner: 0, memory: MemoryKind::Outside, id: 0, address: 0, len: 16, device: Opaque::number(1) };
        for op in AtomicOp::ALL {
            for (width, remote) in [(Width::Eight, 8), (Width::Four, 8), (Width::Four, 12)] {
                for held in [0u64, 0x0123_4567_89ab_cdef, u64::MAX] {
                    let mut expected = held.to_le_bytes();
                    let at = (remote % 8) as usize;
                    let part = expected[at..at + width as usize].to_vec();
                    let mut compare = [0; 8];
                    compare[..part.len()].copy_from_slice(&part);
                    let atomic = Atomic { op, width, value: 0xf0f0_1234, compare: u64::from_le_bytes(compare) };
                    let mut word = held;
                    // SAFETY: a variable of ours.
                    let before = unsafe { atomic.perform((&raw mut word).cast::<u8>().add(at)) };
                    expected = word.to_le_bytes();
                    // The device: compares and swaps.
                    let device = std::cell::Cell::new(held);
                    let attempts = Attempts::default();
                    attempts.start(3, &key, remote, atomic, Some(9));
                    let mut result = None;
                    while result.is_none() {
                        let found = std::cell::Cell::new(0);
                        attempts.go_on(|_, _, address, guess, new, _| {
                            assert_eq!(address, 8);
                            found.set(device.get());
                            if device.get() == guess {
                                device.set(new);
                            }
                            true
                        });
                        result = attempts.found(0, found.get());
                    }
                    assert_eq!(result, Some((Some(9), before)), "{op:?} {width:?} {held:x}");
                    assert_eq!(device.get().to_le_bytes(), expected, "{op:?} {width:?} {held:x}");
                    assert!(attempts.is_idle());
                }
            }
        }
    }
}
