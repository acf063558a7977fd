//! Borders that a neighbour copies from where they are: one copy in place of the two by way of its inbox.
//!
//! A rank in [`GlobalArray::exchange`] leaves its elements as they are until the call returns, so a neighbour in the same exchange can
//! read them. For each border there is a word in the neighbour's memory, written in this order:
//!
//! 1. [`State::Ready`], by the owner of the border, which then rings the neighbour's bell;
//! 2. [`State::Copying`], by the neighbour;
//! 3. [`State::Copied`], by the neighbour: the owner's call may return.
//!
//! If the neighbour does not begin to copy within some polls, the owner puts the border into the neighbour's inbox and sets the word
//! to [`State::Sent`] in place of 2. So the owner never waits for the program of the neighbour between start and end of its exchange.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use bellwether_runtime::{Pod, Progress, Symmetric};

use super::super::index::{Region, offset};
use super::super::{GlobalArray, Local};

/// Words of a cache line: each border's word has a line of its own.
pub(super) const LINE: usize = 8;
/// Lines of a border that are shorter, in bytes, are packed and put: read one by one each would cost a transfer of its own.
const SHORTEST: usize = 64;
/// Polls of the words, over all borders of an exchange, before the owner puts what is left into inboxes, where every rank has a core.
/// Chosen: longer than a neighbour takes that is in the call too.
const POLLS: u32 = 1000;
/// Polls of the word of a border that a neighbour copies, with a yield after each, between two looks whether that rank has ended, which may
/// take a system call.
const YIELDS: u32 = 1000;

/// The state of a border in an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Sent,
    Ready,
    Copying,
    Copied,
}

/// A border that a neighbour may copy, and the one that it has for this rank.
pub(super) struct Direct<const D: usize> {
    rank: usize,
    /// The word of this rank's border, in the neighbour's memory, and the word of the neighbour's border here.
    there: NonNull<AtomicU64>,
    here: NonNull<AtomicU64>,
    /// The neighbour's border, in its local box of these extents.
    region: Region<D>,
    extents: [usize; D],
}

impl<const D: usize> Direct<D> {
    /// `None` if the memory of `rank` is not mapped, or the lines of the border are short. `words` have a line for each direction; this
    /// rank's border has line `to` there, that of `rank` has line `from` here.
    pub(super) fn new<T: Pod>(
        words: &Symmetric<u64>,
        rank: usize,
        [to, from]: [usize; 2],
        region: Region<D>,
        extents: [usize; D],
    ) -> Option<Direct<D>> {
        if region.extents[D - 1] * size_of::<T>() < SHORTEST {
            return None;
        }
        let word = |base: *mut u64, line: usize| NonNull::new(base.wrapping_add(line * LINE).cast());
        let (there, here) = (word(words.ptr_unannounced(rank)?, to)?, word(words.as_ptr_range().start, from)?);
        Some(Direct { rank, there, here, region, extents })
    }

    /// Lets the neighbour copy this rank's border in exchange `number`. The caller leaves the border as it is until
    /// [`Direct::conclude`] has returned.
    pub(super) fn let_copy(&self, number: u64) {
        // Release, so that the neighbour's Acquire in `copy` sees the border.
        self.there().store(word(number, State::Ready), Ordering::Release);
    }

    /// Copies the neighbour's border into `layer`, a ghost layer of `array`, and returns whether the neighbour lets it. If not, the border is
    /// in the inbox.
    pub(super) fn copy<T: Pod>(&self, number: u64, array: &mut GlobalArray<T, D, Local>, layer: Region<D>) -> bool {
        let (ready, copying) = (word(number, State::Ready), word(number, State::Copying));
        // Pairs with the Release in `let_copy`, and in `conclude` where the border was sent after all.
        if self.here().compare_exchange(ready, copying, Ordering::Acquire, Ordering::Acquire).is_err() {
            return false;
        }
        for (here, there) in layer.lines().zip(self.region.lines()) {
            array.copy_line(here, layer.extents[D - 1], self.rank, offset(&self.extents, &there));
        }
        // Release: the owner changes its border after this. Pairs with the Acquire in `conclude`.
        self.here().store(word(number, State::Copied), Ordering::Release);
        true
    }

    /// Waits until the neighbour has copied this rank's border. If it does not begin within the `polls` left, which are counted down, `send`
    /// puts the border into the inbox there.
    pub(super) fn conclude(&self, number: u64, progress: &Progress, polls: &mut u32, mut send: impl FnMut()) {
        let (ready, copying) = (word(number, State::Ready), word(number, State::Copying));
        let mut yields = 0;
        loop {
            // Pairs with the Release in `copy`.
            let now = self.there().load(Ordering::Acquire);
            if now != ready && now != copying {
                return;
            }
            if *polls > 0 {
                *polls -= 1;
                std::hint::spin_loop();
            } else if now == ready {
                send();
                let sent = word(number, State::Sent);
                // Pairs with the Acquire in `copy`.
                if self.there().compare_exchange(ready, sent, Ordering::Release, Ordering::Relaxed).is_ok() {
                    return;
                }
            } else {
                std::thread::yield_now();
                yields += 1;
                // A reader that is late, or that a network has lost, may still be reading; one that has ended is not, since a rank that has
                // left begins no exchange.
                if yields % YIELDS == 0 && progress.has_ended(self.rank) {
                    return;
                }
            }
        }
    }

    fn there(&self) -> &AtomicU64 {
        // SAFETY: an aligned word of the halo's memory, which is mapped and only accessed by atomics. The halo has this, and memory is
        // used again only when all ranks have dropped it.
        unsafe { self.there.as_ref() }
    }

    fn here(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { self.here.as_ref() }
    }
}

/// Polls for [`Direct::conclude`] in an exchange.
pub(super) fn polls(progress: &Progress) -> u32 {
    // With more ranks than cores the neighbour may wait for this one's core.
    if progress.is_crowded() { 0 } else { POLLS }
}

/// A word of exchange `number`, from 1. Words start as 0.
fn word(number: u64, state: State) -> u64 {
    number * 4 + state as u64
}
