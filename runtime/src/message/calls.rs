//! The open calls of a rank: those whose result the program has not taken.

use std::cell::RefCell;
use std::mem::replace;

use smallvec::SmallVec;

/// The bytes of a message. Those of a short one, which fits in a cache line, need no allocation.
pub(super) type Bytes = SmallVec<[u8; 64]>;

/// Open calls by number. Each has a slot, which a later call uses again, so that calls allocate only where there are more at a time
/// than ever before.
#[derive(Default)]
pub(super) struct Calls {
    slots: RefCell<Slots>,
}

#[derive(Default)]
struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    /// Calls that had this slot before: the upper half of a call's number, without its first bit, which only receipts have set. The
    /// lower half is the slot's place.
    uses: u32,
    state: State,
}

enum State {
    Free,
    Open,
    Answered(Bytes),
}

impl Slots {
    /// The slot of this call, if the call is still open.
    fn of(&mut self, number: u64) -> Option<&mut Slot> {
        let slot = self.all.get_mut(number as u32 as usize)?;
        (slot.uses == (number >> 32) as u32 && !matches!(slot.state, State::Free)).then_some(slot)
    }

    fn close(&mut self, number: u64) -> Option<State> {
        let slot = self.of(number)?;
        slot.uses = (slot.uses + 1) & (u32::MAX >> 1);
        let state = replace(&mut slot.state, State::Free);
        self.free.push(number as u32);
        Some(state)
    }
}

impl Calls {
    /// Opens a call and returns its number.
    pub fn open(&self) -> u64 {
        let mut slots = self.slots.borrow_mut();
        let place = slots.free.pop().unwrap_or_else(|| {
            slots.all.push(Slot { uses: 0, state: State::Free });
            u32::try_from(slots.all.len() - 1).expect("four billion calls fill the memory first")
        });
        let slot = &mut slots.all[place as usize];
        slot.state = State::Open;
        u64::from(slot.uses) << 32 | u64::from(place)
    }

    /// Keeps the answer to an open call. A call that was closed meanwhile needs none.
    pub fn answer(&self, number: u64, answer: &[u8]) {
        if let Some(slot) = self.slots.borrow_mut().of(number) {
            slot.state = State::Answered(Bytes::from_slice(answer));
        }
    }

    /// Whether the answer is there.
    pub fn is_answered(&self, number: u64) -> bool {
        matches!(self.slots.borrow_mut().of(number), Some(Slot { state: State::Answered(_), .. }))
    }

    pub fn is_closed(&self, number: u64) -> bool {
        self.slots.borrow_mut().of(number).is_none()
    }

    /// Takes the answer, if it is there, and closes the call.
    ///
    /// # Panics
    /// If the call is closed: a future was polled after it was ready.
    pub fn take(&self, number: u64) -> Option<Bytes> {
        let mut slots = self.slots.borrow_mut();
        if let State::Open = slots.of(number).expect("a future was polled after it was ready").state {
            return None;
        }
        match slots.close(number) {
            Some(State::Answered(answer)) => Some(answer),
            _ => unreachable!("an open call that has no answer is found above"),
        }
    }

    /// Closes the call, if it is still open.
    pub fn close(&self, number: u64) {
        self.slots.borrow_mut().close(number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::Call;
    use crate::transport::rigs::{allocations, held};

    #[test]
    fn an_answer_reaches_its_own_call_only() {
        let calls = Calls::default();
        let (first, second) = (calls.open(), calls.open());
        calls.answer(second, b"two");
        assert!(!calls.is_answered(first) && calls.is_answered(second));
        assert_eq!(calls.take(first), None);
        assert_eq!(calls.take(second).as_deref(), Some(&b"two"[..]));
        // The slot is used again: an answer to the call before is late, and not for this one.
        let third = calls.open();
        assert_eq!(third as u32, second as u32, "the slot is used again");
        calls.answer(second, b"two again");
        assert_eq!(calls.take(third), None);
        calls.close(second);
        calls.answer(third, b"three");
        assert_eq!(calls.take(third).as_deref(), Some(&b"three"[..]));
        calls.answer(u64::MAX, b"nobody's");
    }

    /// Plain and by serde, of arguments and results of three words. Both ranks poll: a rank that falls asleep writes down what it waits for.
    #[test]
    fn a_small_call_allocates_nothing() {
        let done = AtomicBool::new(false);
        let counts = crate::Threads::new(2).deadline(Duration::from_secs(60)).run(|world| {
            if world.rank() == 1 {
                while !done.load(Ordering::Acquire) {
                    world.poll().expect("polls");
                    std::thread::yield_now();
                }
                return 0;
            }
            let result = |call: Call<[u64; 4]>| {
                while !call.is_done().expect("polls") {
                    std::thread::yield_now();
                }
                call.wait().expect("has come")
            };
            let round = |x: u64| {
                let plain = world.call_plain(1, [x, 2, 3], |_, [x, y, z]| [x, y, z, allocations()]);
                let [px, .., there] = result(plain.expect("is sent"));
                let serde = world.call(1, [x, 2, 3], |_, [x, y, z]| [x, y, z, allocations()]);
                let [sx, .., there_later] = result(serde.expect("is sent"));
                assert_eq!([px, sx], [x, x]);
                [there, there_later, allocations()]
            };
            // The first calls make room.
            round(0);
            let before = round(1);
            (2..200).map(round).for_each(drop);
            let after = round(200);
            done.store(true, Ordering::Release);
            (0..3).map(|i| after[i] - before[i]).sum::<u64>()
        });
        assert_eq!(counts.expect("runs"), [0, 0]);
    }

    /// Small calls and gets over the transport contract: nothing for each, here or there, and nothing stays. Now and then a list may grow.
    #[test]
    fn small_calls_and_gets_over_the_contract_allocate_nothing_each() {
        const ROUNDS: u64 = 200;
        let settings = crate::Settings { transport: crate::Transport::ShmContract, ..crate::Settings::default() };
        let job = crate::Threads::new(2).settings(settings).deadline(Duration::from_secs(60));
        let ranks = job.run(|world| -> crate::Result<()> {
            let numbers = world.alloc::<u64>(100)?;
            world.barrier()?;
            if world.rank() == 0 {
                let call = || -> crate::Result<[u64; 2]> {
                    world.call_plain(1, [1u64, 2, 3], |_, _| [allocations(), held() as u64])?.wait()
                };
                let get = || numbers.get_slice(1, 0, &mut [0; 40]);
                // The first ones make room.
                (0..20).try_for_each(|_| call().map(drop).and_then(|()| get()))?;
                let (before, there) = (allocations(), call()?);
                (0..ROUNDS).try_for_each(|_| call().map(drop))?;
                let (after, there_after) = (allocations(), call()?);
                (0..ROUNDS).try_for_each(|_| get())?;
                let counts = [after - before, there_after[0] - there[0], allocations() - after];
                assert!(counts.iter().all(|count| *count < ROUNDS / 2), "{counts:?} of {ROUNDS} calls, and gets");
                let held = there_after[1] as isize - there[1] as isize;
                assert!(held < 4096, "{held} bytes stay of {ROUNDS} calls");
            }
            world.barrier()
        });
        ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
    }

    #[test]
    fn calls_one_after_the_other_share_a_slot() {
        let calls = Calls::default();
        for _ in 0..1000 {
            let call = calls.open();
            calls.answer(call, &[7; 100]);
            calls.close(call);
        }
        assert_eq!(calls.slots.borrow().all.len(), 1);
    }

    #[test]
    #[should_panic(expected = "polled after it was ready")]
    fn an_answer_is_taken_once() {
        let calls = Calls::default();
        let call = calls.open();
        calls.answer(call, b"one");
        calls.take(call);
        calls.take(call);
    }
}
