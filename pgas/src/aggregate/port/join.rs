//! Joins items with equal keys while they wait: many additions to few elements leave a rank once per message.

use std::rc::Rc;

/// Adds the value of the second item to that of the first.
type Join = dyn Fn(&mut [u8], &[u8]);

/// How two items with equal keys become one.
#[derive(Clone)]
pub(in super::super) struct Merge {
    /// Bytes at the start of an item that say what it is for.
    pub(in super::super) key: usize,
    /// Adds the rest of a second item to that of the first.
    pub(in super::super) join: Rc<Join>,
}

/// Where an item was put: number of its buffer, and offset there.
type Place = (u32, u32);

/// Where items of some keys wait, as far as is remembered: a table of places by hashes of keys, of which the last one stays. A
/// place is a hint: the item that is there now is compared, so places of items that have left need not be removed.
pub(super) struct Joins {
    merge: Merge,
    places: Box<[Place]>,
    /// Items looked up, and those of them that were joined.
    tried: u32,
    joined: u32,
}

/// Most places: they stay in a second-level cache.
const PLACES: usize = 1 << 15;
/// After this many items the table decides whether joining pays: ...
const TRIAL: u32 = 8192;
/// ... if at least one in this many was joined.
const WORTH: u32 = 16;

impl Joins {
    /// A table in at most `memory` bytes; `None` where that is too little for any.
    pub(super) fn new(merge: &Merge, memory: usize) -> Option<Joins> {
        let count = Joins::memory_of(memory) / size_of::<Place>();
        let places = vec![(u32::MAX, 0); count].into();
        (count > 0).then(|| Joins { merge: merge.clone(), places, tried: 0, joined: 0 })
    }

    /// Bytes of the table that is made in at most `memory` bytes.
    pub(super) fn memory_of(memory: usize) -> usize {
        let most = (memory / size_of::<Place>()).min(PLACES);
        most.checked_ilog2().filter(|log2| *log2 >= 4).map_or(0, |log2| size_of::<Place>() << log2)
    }

    /// Bytes of the table.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// Joins an item, after a prefix that must be the same, to one that waits in buffer `number`; or else notes that it is put
    /// at the end there.
    pub(super) fn join(&mut self, number: usize, bytes: &mut [u8], prefix: &[u8], item: &[u8]) -> bool {
        if self.tried >= TRIAL && self.joined < self.tried / WORTH {
            return false;
        }
        let (key, rest) = item.split_at(self.merge.key);
        let mix = |hash: u64, byte: &[u8]| {
            let mut word = [0; 8];
            word[..byte.len()].copy_from_slice(byte);
            (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        let hash = prefix.chunks(8).chain(key.chunks(8)).fold(number as u64, mix);
        let place = &mut self.places[hash as usize & (self.places.len() - 1)];
        self.tried = self.tried.saturating_add(1);
        let found = bytes.get_mut(place.1 as usize..).filter(|_| place.0 == number as u32);
        if let Some(found) = found.and_then(|found| found.get_mut(..prefix.len() + item.len())) {
            let (same, value) = found.split_at_mut(prefix.len() + key.len());
            if same.starts_with(prefix) && same.ends_with(key) {
                (self.merge.join)(value, rest);
                self.joined = self.joined.saturating_add(1);
                return true;
            }
        }
        *place = (number as u32, bytes.len() as u32);
        false
    }
}

impl std::fmt::Debug for Joins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Joins({} of {} joined)", self.joined, self.tried)
    }
}
