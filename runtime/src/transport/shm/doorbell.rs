//! The doorbell of a receiver. A sender rings it after sending through a lane that polls do not check.
//!
//! Each lane has a bit in a group word of 64 lanes. Each bit of the top word stands for groups with set bits. A poll reads the top
//! word only.

use std::sync::atomic::Ordering;

use super::atomics::AtomicU64;
use crate::memory::layout::{LINE, SlotLayout};

/// Lanes in a group.
const GROUP: usize = u64::BITS as usize;

/// A doorbell in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Doorbell {
    /// Bit `n`: some lane of group `n`, or of a group 64, 128 and so on further, has a message.
    top: *const AtomicU64,
    groups: *const AtomicU64,
    count: usize,
}

impl Doorbell {
    /// # Safety
    /// `top` is a word and `groups` are words for `lanes` lanes, aligned, zeroed at first, only used as doorbells. They stay mapped while the
    /// value is used.
    pub unsafe fn new(top: *const u8, groups: *const u8, lanes: usize) -> Doorbell {
        Doorbell { top: top.cast(), groups: groups.cast(), count: lanes.div_ceil(GROUP) }
    }

    /// That of the receiver whose slot begins at `slot`.
    ///
    /// # Safety
    /// As [`Doorbell::new`]: the slot's control area is committed, as `layout` says, and stays mapped.
    pub unsafe fn of_slot(slot: *const u8, layout: &SlotLayout) -> Doorbell {
        // SAFETY: both are inside the control area; the layout has a bit for so many lanes.
        unsafe { Doorbell::new(slot.add(layout.doorbell), slot.add(layout.doorbell + LINE), layout.doorbell_lanes) }
    }

    /// A doorbell that no sender rings, for a receiver without lanes.
    pub fn silent() -> Doorbell {
        #[cfg(not(loom))]
        static NEVER: AtomicU64 = AtomicU64::new(0);
        #[cfg(loom)]
        static NEVER: u64 = 0;
        Doorbell { top: (&raw const NEVER).cast(), groups: std::ptr::null(), count: 0 }
    }

    fn group(&self, number: usize) -> &AtomicU64 {
        assert!(number < self.count, "group {number} of {}", self.count);
        // SAFETY: one of the words that the caller of `new` guarantees.
        unsafe { &*self.groups.add(number) }
    }

    fn top(&self) -> &AtomicU64 {
        // SAFETY: the caller of `new` guarantees it.
        unsafe { &*self.top }
    }

    /// Tells the receiver of a message in `lane`. Call after the message is written.
    #[cold]
    pub fn ring(&self, lane: usize) {
        let group = lane / GROUP;
        // Release pairs with the Acquire swaps in `take`: the receiver sees the message, and the group's bit.
        self.group(group).fetch_or(1 << (lane % GROUP), Ordering::Release);
        self.top().fetch_or(1 << (group % GROUP), Ordering::Release);
    }

    /// Whether there may be something to [take](Doorbell::take).
    #[inline(always)]
    pub fn is_rung(&self) -> bool {
        self.top().load(Ordering::Relaxed) != 0
    }

    /// Gives each lane that was rung for since the last call to `sink`. Only the receiver calls this.
    pub fn take(&self, mut sink: impl FnMut(usize)) {
        // Acquire pairs with the Release in `ring`.
        for first in bits(self.top().swap(0, Ordering::Acquire)) {
            for number in (first..self.count).step_by(GROUP) {
                let group = self.group(number);
                // A bit that is set later comes with another one of `top`.
                if group.load(Ordering::Relaxed) != 0 {
                    // Acquire pairs with the Release in `ring`.
                    bits(group.swap(0, Ordering::Acquire)).for_each(|bit| sink(number * GROUP + bit));
                }
            }
        }
    }
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < GROUP).then_some(bit)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_ring_is_taken_once_also_where_groups_share_a_bit() {
        const LANES: usize = 70_000;
        let top = AtomicU64::new(0);
        let groups: Vec<AtomicU64> = (0..LANES.div_ceil(GROUP)).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: both live to the end of the test.
        let bell = unsafe { Doorbell::new((&raw const top).cast(), groups.as_ptr().cast(), LANES) };
        let taken = || {
            let mut lanes = Vec::new();
            bell.take(|lane| lanes.push(lane));
            lanes.sort_unstable();
            lanes
        };
        assert!(!bell.is_rung() && taken().is_empty());
        // Groups 0, 64 and 1024 share bit 0 of the top; 63 is the last of the first group.
        let lanes = [0, 63, 64, 130, 64 * 64, 64 * 1024 + 5, LANES - 1];
        lanes.into_iter().chain([63]).for_each(|lane| bell.ring(lane));
        assert!(bell.is_rung());
        assert_eq!(taken(), lanes);
        assert!(!bell.is_rung() && taken().is_empty());
    }
}
