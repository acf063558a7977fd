//! Bells: counters at a rank that others ring, to say that data is there.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Result;
use crate::memory::layout::LINE;
use crate::transport::providers::PROVIDERS;

/// The words of a bell at each rank, all in one line, so that a wait checks one line however many ranks there are. The bell's count
/// is their sum. Atomics of two devices, or of a device and the processor, are not atomic to each other, so each has a word of its own.
///
/// | word | all ranks are mapped, at most [`WRITERS`] | all mapped, more | others are reached over a network |
/// | --- | --- | --- | --- |
/// | 0 | contexts of all ranks, by the processor | all ranks and contexts, by the processor | notices, counted by the rank itself |
/// | 1 | rank 0, which alone writes it | | mapped ranks and their contexts, by the processor |
/// | 2 | rank 1, and so on | | other ranks and their contexts, by network 0; then one for each further network, by its number |
#[derive(Debug)]
pub struct Words {
    /// The word in the slot of rank 0 that this rank adds to.
    mine: *mut u64,
    /// All words in this rank's own slot.
    here: *mut u64,
    stride: usize,
    /// Ranks whose words are a pointer away.
    reach: usize,
    /// Where the bell lies in every slot: at the start of a line.
    offset: usize,
    /// Words that are used.
    used: usize,
    /// Rings so far at each rank, where no other rank writes this rank's word; else empty. A ring stores the next count and does
    /// not load the word first: the load would fetch the line from the waiting rank once more than the store does.
    sent: Box<[Cell<u64>]>,
}

/// Bytes of the words of a bell.
pub const WORDS_LEN: usize = LINE;
/// Ranks that have a word each: as many as fit in the line beside that of contexts. A store costs the ringer less than an atomic.
const WRITERS: usize = LINE / size_of::<u64>() - 1;
/// Over a network: the word of mapped ranks.
const PROCESSORS: usize = 1;
/// Over a network: the word of network 0.
const NETWORK: usize = 2;
const _: () = assert!((NETWORK + PROVIDERS) * size_of::<u64>() <= WORDS_LEN, "each network has a word");

impl Words {
    /// The words at `offset` of every slot.
    ///
    /// # Safety
    /// They are zeroed symmetric memory of [`WORDS_LEN`] bytes, at the start of a line, that lives as long as the value and
    /// is used for nothing else.
    pub unsafe fn new(engine: &Engine, offset: usize) -> Words {
        let all_mapped = engine.routes.all_mapped();
        let alone = all_mapped && engine.size <= WRITERS;
        let used = match (all_mapped, alone) {
            (_, true) => 1 + engine.size,
            (true, false) => 1,
            (false, false) => NETWORK + PROVIDERS,
        };
        let mine = engine.node.origin().wrapping_add(offset).cast::<u64>().wrapping_add(if alone {
            1 + engine.rank
        } else {
            0
        });
        // SAFETY: the words that the caller guarantees.
        let here = unsafe { engine.node.slot(engine.rank).add(offset).cast() };
        let (stride, reach) = (1 << engine.node.stride_log2(), engine.routes.processor_atomics());
        let sent = vec![Cell::new(0); if alone { engine.size } else { 0 }].into();
        Words { mine, here, stride, reach, offset, used, sent }
    }

    /// Adds one at `rank`. A rank that sees the count sees everything that this rank has put there before.
    ///
    /// # Errors
    /// [`crate::Error::RankOutOfRange`]; over a network [`crate::Error::PeerLost`].
    #[inline(always)]
    #[track_caller]
    pub fn ring(&self, engine: &Engine, rank: usize) -> Result<()> {
        // SAFETY: for a rank in `reach`, which those of `sent` are, a live word, as the caller of `new` guarantees.
        let word = || unsafe { AtomicU64::from_ptr(self.mine.wrapping_byte_add(rank * self.stride)) };
        // Each Release pairs with the Acquire load in `count`.
        if let Some(sent) = self.sent.get(rank) {
            let count = sent.get() + 1;
            word().store(count, Ordering::Release);
            // Behind the store. Between it and the store of the data that it announces, a store to memory of this rank's own would
            // delay the one until the other has its line.
            sent.set(count);
        } else if rank < self.reach {
            word().fetch_add(1, Ordering::Release);
        } else {
            return self.put_ring_remote(engine, rank, self.offset, &[]);
        }
        engine.interface.wake_if_asleep(rank);
        Ok(())
    }

    /// Writes `bytes`, if any, at `offset` of the slot of `rank`, in bounds, and then rings, over the network.
    ///
    /// # Errors
    /// As [`Words::ring`].
    #[track_caller]
    pub(crate) fn put_ring_remote(&self, engine: &Engine, rank: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        engine.at(|| {
            engine.check_rank(rank, "ring")?;
            if !engine.routes.is_mapped(rank) {
                let word = engine.networks.to(rank).ring_word(self.word(NETWORK));
                return engine.remote_put_ring(rank, offset, bytes, [self.offset, word]);
            }
            engine.remote_put(rank, offset, bytes)?;
            engine.ring_mapped(rank, self.word(PROCESSORS))
        })
    }

    /// Offset, in every slot, of a word.
    fn word(&self, number: usize) -> usize {
        self.offset + number * size_of::<u64>()
    }

    /// Offsets, in every slot, of the words that contexts of this rank add to: by the processor, and over
    /// network 0; see `RemoteAccess::ring_word`.
    pub(crate) fn for_contexts(&self, engine: &Engine) -> [usize; 2] {
        let processors = if engine.routes.all_mapped() { 0 } else { PROCESSORS };
        [processors, NETWORK].map(|number| self.word(number))
    }

    /// Rings so far at this rank, as of now. Delivers nothing.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        // SAFETY: live words, so many, as the caller of `new` guarantees.
        let word = |number| unsafe { AtomicU64::from_ptr(self.here.add(number)) };
        // Acquire pairs with the Release of each ring.
        (0..self.used).map(|number| word(number).load(Ordering::Acquire)).sum()
    }

    /// Waits until the count is at least `target`, and tells what it is then.
    pub(crate) fn wait(&self, engine: &Rc<Engine>, target: u64, limit: Option<Duration>) -> Result<u64> {
        let mut count = 0;
        engine.wait_until("waiting for a bell", limit, || {
            count = self.count();
            count >= target
        })?;
        Ok(count)
    }
}
