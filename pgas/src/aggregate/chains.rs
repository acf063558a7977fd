//! Entries sorted into buckets, each a chain of chunks: the front half of a radix partition.
//!
//! Chains take any distribution in one pass, also one in which all go to one bucket: no counting beforehand, and no room kept
//! for entries that do not come. An entry is a number; its meaning is in arrays of the caller. Entries are
//! written where the first-level cache holds the end of each chain (after Polychroniou and Ross, *A comprehensive study of
//! main-memory partitioning*, SIGMOD 2014).

use super::buckets::Buckets;

/// Most entries of a chunk as memory is parted at first.
const CHUNK_MAX: usize = 256;
/// Most entries of a chunk when it is known how many buckets there are. With fewer, more time goes into following the chain;
/// with more, more room is kept open.
const JOINED_MAX: usize = 4096;
/// Entries by which the starts of neighbouring buckets differ.
const STAGGER: usize = 8;

/// How entries make chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Logarithm of the entries of a chunk.
    log2: u32,
    /// How many there are.
    pub(super) count: usize,
}

impl Chunks {
    /// As many as `bytes` hold, of entries of `entry` bytes and 12 bytes for each chunk; in any case one for each of
    /// `buckets` and one to go on with.
    pub(super) fn new(bytes: usize, entry: usize, buckets: usize) -> Chunks {
        let count = |log2: u32| (bytes / ((entry << log2) + 12)).min(u32::MAX as usize >> log2);
        let mut log2 = CHUNK_MAX.ilog2();
        while log2 > 0 && count(log2) < 8 * buckets {
            log2 -= 1;
        }
        Chunks { log2, count: count(log2).max(buckets + 1) }
    }

    /// The same memory in chunks as large as leave a few for each of `buckets`.
    pub(super) fn joined(self, buckets: usize) -> Chunks {
        let mut joined = self;
        while joined.log2 < JOINED_MAX.ilog2() && joined.count / 2 >= 4 * buckets {
            joined = Chunks { log2: joined.log2 + 1, count: joined.count / 2 };
        }
        joined
    }

    /// Entries in all.
    pub(super) fn entries(self) -> usize {
        self.count << self.log2
    }

    /// The first entry of a bucket: in chunk `bucket`, and not at the same place in it as the neighbours'. Chunks lie a
    /// power of two apart, so ends of chains that moved in step would meet in a few sets of the first-level cache.
    #[inline(always)]
    fn start(self, bucket: usize) -> usize {
        (bucket << self.log2) + ((STAGGER * bucket) & ((1 << self.log2) - 1))
    }

    /// Puts all cursors at the starts of their buckets.
    pub(super) fn restart(self, cursors: &mut Vec<u32>, buckets: usize) {
        assert!(buckets < self.count, "{buckets} buckets in {} chunks", self.count);
        cursors.clear();
        cursors.extend((0..buckets).map(|bucket| self.start(bucket) as u32));
    }

    /// Goes through `indices`, finds the bucket of each and moves its cursor on by one entry. `more` names the chunk after a
    /// full one; with none the sweep ends. `visit` gets the number of the index, the entry, and the offset. Tells how many
    /// indices were seen, or the number of the first that has no bucket.
    #[inline(always)]
    pub(super) fn sweep<B: Buckets>(
        self,
        buckets: &B,
        cursors: &mut [u32],
        indices: &[usize],
        mut more: impl FnMut(usize) -> Option<usize>,
        mut visit: impl FnMut(usize, usize, u32),
    ) -> Result<usize, usize> {
        assert!(cursors.len() >= buckets.count());
        let inside = (1usize << self.log2) - 1;
        for (number, &index) in indices.iter().enumerate() {
            let Some((bucket, offset)) = buckets.locate(index) else { return Err(number) };
            // SAFETY: there is a cursor for each bucket, as was looked at.
            let cursor = unsafe { cursors.get_unchecked_mut(bucket) };
            let mut entry = *cursor as usize;
            if entry & inside == 0 {
                match self.turn(bucket, entry, &mut more) {
                    Some(first) => entry = first,
                    None => return Ok(number),
                }
            }
            *cursor = entry as u32 + 1;
            visit(number, entry, offset);
        }
        Ok(indices.len())
    }

    /// The entry for the next item of `bucket`, when its cursor stands where a chunk begins. Apart, so that it takes no
    /// registers from the loop.
    #[cold]
    #[inline(never)]
    fn turn(self, bucket: usize, entry: usize, more: &mut dyn FnMut(usize) -> Option<usize>) -> Option<usize> {
        if entry == self.start(bucket) {
            return Some(entry);
        }
        more((entry - 1) >> self.log2).map(|fresh| fresh << self.log2)
    }

    /// Calls `each` with the entries of `bucket` whose last is before `end`, a chunk at a time: the first entry, and how
    /// many. `next` names the chunk after one, and `ahead` gets its first entry while the one before is gone through.
    #[inline(always)]
    pub(super) fn walk(
        self,
        bucket: usize,
        end: usize,
        next: impl Fn(usize) -> usize,
        ahead: impl Fn(usize),
        mut each: impl FnMut(usize, usize),
    ) {
        let mut first = self.start(bucket);
        if end == first {
            return;
        }
        let last = (end - 1) >> self.log2;
        loop {
            let chunk = first >> self.log2;
            if chunk == last {
                return each(first, end - first);
            }
            let after = next(chunk) << self.log2;
            ahead(after);
            each(first, ((chunk + 1) << self.log2) - first);
            first = after;
        }
    }
}
