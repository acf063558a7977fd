//! The notifications of segments.
//!
//! A notification is a word. A mark for each [`GROUP`] words tells whether one of them may be set, so a search reads a mark for 64 words.
//! Who sets a word stores the word, then the mark. A mark is cleared by a search that found no word: it takes the mark away and searches
//! once more, and puts the mark back if a word is there. If it took the mark of a word that was set meanwhile, it sees that word, since the
//! word was stored before the mark; if the mark was stored after that, it stays.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::types::{NotificationId, SegmentId};
use crate::vocabulary::lock::lock;

/// Words of a mark: four cache lines. Chosen: 65,536 words then have 1,024 marks, which are read as 128 words.
const GROUP: usize = 64;
/// Marks that are read at a time.
const MARKS: usize = 8;

/// The notifications of one segment of this process.
#[derive(Debug)]
pub(super) struct Notes {
    words: Box<[AtomicU32]>,
    marks: Box<[AtomicU8]>,
    /// The segment is deleted.
    gone: AtomicBool,
}

impl Notes {
    pub(super) fn new(number: u32) -> Notes {
        let groups = (number as usize).div_ceil(GROUP).next_multiple_of(MARKS);
        Notes {
            words: (0..number).map(|_| AtomicU32::new(0)).collect(),
            marks: (0..groups).map(|_| AtomicU8::new(0)).collect(),
            gone: AtomicBool::new(false),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether so many notifications from `begin` on are there.
    pub(super) fn has(&self, begin: NotificationId, number: u32) -> bool {
        begin.checked_add(number).is_some_and(|end| end as usize <= self.words.len())
    }

    /// Sets a notification; `None` if it is not there. What this thread has stored before is visible to whoever sees it.
    pub(super) fn set(&self, id: NotificationId, value: u32) -> Option<()> {
        // Both pair with the Acquire loads of `first` and `reset`.
        self.words.get(id as usize)?.store(value, Ordering::Release);
        self.marks[id as usize / GROUP].store(1, Ordering::Release);
        Some(())
    }

    /// The first notification that is set, of those from `begin` up to `end`, which are there.
    pub(super) fn first(&self, begin: NotificationId, end: NotificationId) -> Option<NotificationId> {
        let (begin, end) = (begin as usize, end as usize);
        let mut group = begin / GROUP;
        let last = end.div_ceil(GROUP);
        while group < last {
            if group.is_multiple_of(MARKS) && group + MARKS <= last {
                let any =
                    self.marks[group..group + MARKS].iter().fold(0, |any, mark| any | mark.load(Ordering::Acquire));
                if any == 0 {
                    group += MARKS;
                    continue;
                }
            }
            if self.marks[group].load(Ordering::Acquire) != 0
                && let Some(found) = self.search(group, begin, end)
            {
                return Some(found);
            }
            group += 1;
        }
        None
    }

    #[inline(never)]
    fn search(&self, group: usize, begin: usize, end: usize) -> Option<NotificationId> {
        let all = group * GROUP..((group + 1) * GROUP).min(self.words.len());
        let is_set = |id: &usize| self.words[*id].load(Ordering::Acquire) != 0;
        let mut asked = all.start.max(begin)..all.end.min(end);
        if let Some(found) = asked.find(is_set) {
            return Some(found as NotificationId);
        }
        if !all.clone().any(|id| is_set(&id)) {
            // Takes the mark; see the module. AcqRel: who stored it stored its word before.
            self.marks[group].swap(0, Ordering::AcqRel);
            if all.clone().any(|id| is_set(&id)) {
                self.marks[group].store(1, Ordering::Release);
            }
        }
        let mut asked = all.start.max(begin)..all.end.min(end);
        asked.find(is_set).map(|found| found as NotificationId)
    }

    /// Sets a notification to 0. What it was; `None` if it is not there. Of several threads one gets the value.
    pub(super) fn reset(&self, id: NotificationId) -> Option<u32> {
        let word = self.words.get(id as usize)?;
        // A swap takes the cache line from whoever sets it: not for nothing.
        if word.load(Ordering::Relaxed) == 0 {
            return Some(0);
        }
        // Acquire pairs with the Release in `set`.
        Some(word.swap(0, Ordering::AcqRel))
    }
}

/// The notifications of all segments of this process, which every thread finds.
#[derive(Debug)]
pub(super) struct Board([Mutex<Option<Arc<Notes>>>; 256]);

impl Board {
    pub(super) fn new() -> Board {
        Board([const { Mutex::new(None) }; 256])
    }

    pub(super) fn get(&self, segment: SegmentId) -> Option<Arc<Notes>> {
        lock(&self.0[segment as usize]).clone()
    }

    pub(super) fn put(&self, segment: SegmentId, notes: Notes) {
        *lock(&self.0[segment as usize]) = Some(Arc::new(notes));
    }

    /// Ends the notifications of a segment, and the waits for them.
    pub(super) fn remove(&self, segment: SegmentId) {
        if let Some(notes) = lock(&self.0[segment as usize]).take() {
            notes.gone.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_range_is_found_and_stays_until_it_is_reset() {
        for number in [1u32, 7, 64, 65, 1000, 65536] {
            let notes = Notes::new(number);
            assert_eq!((notes.first(0, number), notes.has(0, number), notes.has(1, number)), (None, true, false));
            assert!(!notes.has(u32::MAX, 2));
            assert_eq!((notes.set(number, 1), notes.reset(number)), (None, None));
            for id in [0, number / 3, number - 1] {
                notes.set(id, 5);
                assert_eq!((notes.first(0, number), notes.first(id, id + 1)), (Some(id), Some(id)));
                assert_eq!((notes.first(0, id), notes.first(id + 1, number)), (None, None));
                assert_eq!((notes.first(0, number), notes.reset(id), notes.reset(id)), (Some(id), Some(5), Some(0)));
                // The second search finds no mark.
                assert_eq!((notes.first(0, number), notes.first(0, number)), (None, None));
                assert!(notes.marks.iter().all(|mark| mark.load(Ordering::Relaxed) == 0), "a mark stays");
            }
        }
    }

    #[test]
    fn no_notification_is_lost_while_others_search_and_reset() {
        let notes = Notes::new(130);
        let rounds = if cfg!(bellwether_tsan) { 2_000 } else { 50_000 };
        std::thread::scope(|scope| {
            for first in [0u32, 1] {
                let notes = &notes;
                scope.spawn(move || {
                    for round in 1..=rounds {
                        // Two in one group, and one beyond it.
                        let id = if round % 3 == 0 { 128 + first } else { first };
                        notes.set(id, round);
                        while notes.words[id as usize].load(Ordering::Relaxed) != 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut seen = 0;
            while seen < 2 * rounds {
                if let Some(id) = notes.first(0, 130) {
                    assert_ne!(notes.reset(id), Some(0));
                    seen += 1;
                }
            }
        });
        assert_eq!(notes.first(0, 130), None);
    }
}
