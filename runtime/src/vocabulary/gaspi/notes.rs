//! The notifications of segments.
//!
//! The notifications of a segment lie in a segment of their own, in memory of its owner, so peers set them one-sided:
//!
//! ```text
//! | a word of 4 bytes for each notification | a mark of 4 bytes for each 64 words |
//! ```
//!
//! A mark tells whether one of its words may be set, so a search over many notifications reads a mark for 64 words. A thread that sets a
//! word stores the word, then the mark, and both after the data. A search of few notifications reads their words and no mark. A wide search
//! that finds a mark without a word takes the mark away and searches once more, and puts the mark back if a word is there. If it took the
//! mark of a word that was set meanwhile, it sees that word, since the word was stored before the mark; if the mark was stored after that,
//! it stays. Over a network the mark comes some time after the word; a search that finds a word by itself stores the mark there, so that a
//! wide search that follows does not miss it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::types::{NotificationId, SegmentId};

/// Words of a mark: four cache lines. Chosen: 65,536 words then have 1,024 marks of 4 KiB.
const GROUP: usize = 64;
/// Marks that a search reads before it branches: a cache line.
const MARKS: usize = 16;
/// Bytes of a word, and of a mark.
const WORD: usize = 4;

/// Where the notifications of a segment are in the segment that they lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// How many there are.
    number: u32,
}

impl Layout {
    pub(super) fn new(number: u32) -> Layout {
        Layout { number }
    }

    /// Bytes of the segment.
    pub(super) fn bytes(self) -> usize {
        self.marks_at() + WORD * self.groups()
    }

    fn groups(self) -> usize {
        (self.number as usize).div_ceil(GROUP).next_multiple_of(MARKS)
    }

    fn marks_at(self) -> usize {
        (WORD * self.number as usize).next_multiple_of(WORD * MARKS)
    }

    /// The offset of the word of a notification.
    #[inline]
    pub(super) fn word(self, id: NotificationId) -> usize {
        WORD * id as usize
    }

    /// The offset of its mark.
    #[inline]
    pub(super) fn mark(self, id: NotificationId) -> usize {
        self.marks_at() + WORD * (id as usize / GROUP)
    }
}

/// The value that is stored in a mark.
pub(super) const MARKED: u32 = 1;

/// The notifications of one segment of this process. No copies: they would outlive an [`InUse`].
#[derive(Debug)]
pub(super) struct Notes<'a> {
    words: &'a [AtomicU32],
    marks: &'a [AtomicU32],
    marks_come_late: bool,
}

impl Notes<'_> {
    /// Whether so many notifications from `begin` on are there.
    #[inline]
    pub(super) fn has(&self, begin: NotificationId, number: u32) -> bool {
        begin.checked_add(number).is_some_and(|end| end as usize <= self.words.len())
    }

    /// Sets a notification; `None` if it is not there. A thread that sees the notification sees all earlier stores of this thread.
    pub(super) fn set(&self, id: NotificationId, value: u32) -> Option<()> {
        // Both pair with the Acquire loads of `first` and `reset`.
        self.words.get(id as usize)?.store(value, Ordering::Release);
        self.marks[id as usize / GROUP].store(MARKED, Ordering::Release);
        Some(())
    }

    /// The first notification that is set, of those from `begin` up to `end`, which are there.
    #[inline]
    pub(super) fn first(&self, begin: NotificationId, end: NotificationId) -> Option<NotificationId> {
        let (begin, end) = (begin as usize, end as usize);
        if end - begin <= GROUP {
            let is_set = |word: &AtomicU32| word.load(Ordering::Acquire) != 0;
            let found = begin + self.words[begin..end].iter().position(is_set)?;
            if self.marks_come_late {
                // A wide search that follows finds it too.
                self.marks[found / GROUP].store(MARKED, Ordering::Release);
            }
            return Some(found as NotificationId);
        }
        self.first_of_many(begin, end)
    }

    #[inline(never)]
    fn first_of_many(&self, begin: usize, end: usize) -> Option<NotificationId> {
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
            // Takes the mark; see the module. AcqRel: the thread that stored the mark stored its word before.
            self.marks[group].swap(0, Ordering::AcqRel);
            if all.clone().any(|id| is_set(&id)) {
                self.marks[group].store(MARKED, Ordering::Release);
            }
        }
        let mut asked = all.start.max(begin)..all.end.min(end);
        asked.find(is_set).map(|found| found as NotificationId)
    }

    /// Sets a notification to 0. Returns its former value; `None` if it is not there. Of several threads, one gets the value.
    #[inline]
    pub(super) fn reset(&self, id: NotificationId) -> Option<u32> {
        let word = self.words.get(id as usize)?;
        // A swap takes the cache line from the thread that sets the word, so it is not done on a word that is 0.
        if word.load(Ordering::Relaxed) == 0 {
            return Some(0);
        }
        // Acquire pairs with the Release of the thread that set it.
        Some(word.swap(0, Ordering::AcqRel))
    }
}

/// The notification space of a segment of this process: its address, and the number of its users.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Space {
    /// The first word; null while there is no such segment.
    start: AtomicPtr<AtomicU32>,
    number: AtomicU32,
    /// Threads that use them.
    users: AtomicU32,
    /// Counts the segments that had this id.
    generation: AtomicU32,
}

/// The notification spaces of all segments of this process, which every thread finds.
#[derive(Debug)]
pub(super) struct Board {
    spaces: Box<[Space]>,
    /// Some processes are reached over a network.
    marks_come_late: bool,
}

/// Notifications that stay until this is dropped.
#[derive(Debug)]
pub(super) struct InUse<'a> {
    notes: Notes<'a>,
    space: &'a Space,
}

impl Drop for InUse<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire load in `Board::remove`.
        self.space.users.fetch_sub(1, Ordering::Release);
    }
}

impl<'a> std::ops::Deref for InUse<'a> {
    type Target = Notes<'a>;

    #[inline]
    fn deref(&self) -> &Notes<'a> {
        &self.notes
    }
}

impl InUse<'_> {
    /// Which of the segments that had this id it is.
    pub(super) fn generation(&self) -> u32 {
        self.space.generation.load(Ordering::Relaxed)
    }
}

impl Board {
    pub(super) fn new(marks_come_late: bool) -> Board {
        Board { spaces: (0..=usize::from(SegmentId::MAX)).map(|_| Space::default()).collect(), marks_come_late }
    }

    /// The notifications of a segment. The segment stays until the returned value is dropped; a thread must not wait while it holds that.
    #[inline]
    pub(super) fn get(&self, segment: SegmentId) -> Option<InUse<'_>> {
        let space = &self.spaces[usize::from(segment)];
        // SeqCst, as in `remove`: this finds null there, or is found.
        space.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: this is counted as a user, and a thread that removes the notifications waits until there is none.
        let notes = unsafe { space.notes(self.marks_come_late) };
        if notes.is_none() {
            space.users.fetch_sub(1, Ordering::Release);
        }
        Some(InUse { notes: notes?, space })
    }

    /// The notifications of the segment that is this generation of its id.
    ///
    /// # Safety
    /// [`Board::remove`] is not called while they are used.
    #[inline]
    pub(super) unsafe fn peek(&self, segment: SegmentId, generation: u32) -> Option<Notes<'_>> {
        let space = &self.spaces[usize::from(segment)];
        let is_it = space.generation.load(Ordering::Relaxed) == generation;
        // SAFETY: the caller's.
        if is_it { unsafe { space.notes(self.marks_come_late) } } else { None }
    }

    /// Sets a notification of the segment that is this generation of its id, if that is there.
    pub(super) fn set(&self, segment: SegmentId, generation: u32, id: NotificationId, value: u32) {
        if let Some(notes) = self.get(segment).filter(|notes| notes.generation() == generation) {
            notes.set(id, value);
        }
    }

    /// Makes `number` notifications known, which are not known yet.
    ///
    /// # Safety
    /// `start` begins memory of a [`Layout`] for so many, aligned for its words, which is only touched through atomics, by peers and
    /// copies, and stays until [`Board::remove`] has returned.
    pub(super) unsafe fn put(&self, segment: SegmentId, start: *mut u8, number: u32) {
        let space = &self.spaces[usize::from(segment)];
        space.number.store(number, Ordering::Relaxed);
        space.generation.fetch_add(1, Ordering::Relaxed);
        // Release pairs with the load in `notes`.
        space.start.store(start.cast(), Ordering::Release);
    }

    /// Ends the notifications of a segment, and the waits for them. On return nobody uses them.
    pub(super) fn remove(&self, segment: SegmentId) {
        let space = &self.spaces[usize::from(segment)];
        space.start.store(ptr::null_mut(), Ordering::SeqCst);
        // Pairs with the SeqCst operations in `get`. A use is a search at most.
        std::sync::atomic::fence(Ordering::SeqCst);
        while space.users.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }
}

impl Space {
    /// # Safety
    /// They stay as long as they are used.
    #[inline]
    unsafe fn notes(&self, marks_come_late: bool) -> Option<Notes<'_>> {
        let start = self.start.load(Ordering::SeqCst);
        if start.is_null() {
            return None;
        }
        let layout = Layout::new(self.number.load(Ordering::Relaxed));
        // SAFETY: `Board::put` was given memory of this layout, and the caller guarantees that it stays.
        unsafe {
            let words = std::slice::from_raw_parts(start, layout.number as usize);
            let marks = std::slice::from_raw_parts(start.add(layout.marks_at() / WORD), layout.groups());
            Some(Notes { words, marks, marks_come_late })
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Notifications in memory of their own.
    fn with_notes(number: u32, test: impl FnOnce(&Board, &Notes<'_>)) {
        let layout = Layout::new(number);
        let memory: Vec<AtomicU32> = (0..layout.bytes() / WORD).map(|_| AtomicU32::new(0)).collect();
        let board = Board::new(number % 2 == 1);
        // SAFETY: the memory stays until the notifications have been removed.
        unsafe { board.put(4, memory.as_ptr().cast_mut().cast(), number) };
        let notes = board.get(4).expect("just put");
        test(&board, &notes);
        drop(notes);
        board.remove(4);
        assert!(board.get(4).is_none());
    }

    #[test]
    fn the_first_of_a_range_is_found_and_stays_until_it_is_reset() {
        for number in [1u32, 7, 64, 65, 1000, 65536] {
            with_notes(number, |_, notes| {
                assert_eq!((notes.first(0, number), notes.has(0, number), notes.has(1, number)), (None, true, false));
                assert!(!notes.has(u32::MAX, 2));
                assert_eq!((notes.set(number, 1), notes.reset(number)), (None, None));
                for id in [0, number / 3, number - 1] {
                    notes.set(id, 5);
                    assert_eq!((notes.first(0, number), notes.first(id, id + 1)), (Some(id), Some(id)));
                    assert_eq!((notes.first(0, id), notes.first(id + 1, number)), (None, None));
                    assert_eq!(
                        (notes.first(0, number), notes.reset(id), notes.reset(id)),
                        (Some(id), Some(5), Some(0))
                    );
                    // The second search finds no mark.
                    assert_eq!((notes.first(0, number), notes.first(0, number)), (None, None));
                    let mut marks = notes.marks.iter().map(|mark| mark.load(Ordering::Relaxed));
                    assert!(number <= 64 || marks.all(|mark| mark == 0), "a mark stays");
                }
            });
        }
    }

    #[test]
    fn offsets_are_those_of_the_words_and_marks() {
        for number in [1u32, 16, 63, 64, 65, 1000, 65536] {
            with_notes(number, |_, notes| {
                let layout = Layout::new(number);
                let at = |word: &AtomicU32| ptr::from_ref(word).addr() - notes.words.as_ptr().addr();
                for id in [0, number / 2, number - 1] {
                    assert_eq!(at(&notes.words[id as usize]), layout.word(id));
                    assert_eq!(at(&notes.marks[id as usize / GROUP]), layout.mark(id));
                }
                assert_eq!(at(notes.marks.last().expect("one at least")) + WORD, layout.bytes());
            });
        }
    }

    #[test]
    fn a_segment_is_not_taken_for_an_earlier_one_of_its_id() {
        with_notes(10, |board, notes| {
            let generation = board.get(4).expect("there").generation();
            board.set(4, generation + 1, 3, 9);
            // SAFETY: nobody removes them meanwhile.
            assert!(unsafe { board.peek(4, generation + 1) }.is_none());
            assert_eq!(notes.first(0, 10), None);
            board.set(4, generation, 3, 9);
            // SAFETY: as above.
            assert_eq!(unsafe { board.peek(4, generation) }.expect("there").first(0, 10), Some(3));
        });
    }

    #[test]
    fn no_notification_is_lost_while_others_search_and_reset() {
        with_notes(130, |_, notes| {
            // `ci/test full` sets the variable.
            let is_full = std::env::var_os("ROWS_FULL").is_some();
            let rounds = match (cfg!(bellwether_tsan), is_full) {
                (true, _) => 2_000,
                (false, true) => 50_000,
                (false, false) => 10_000,
            };
            std::thread::scope(|scope| {
                for first in [0u32, 1] {
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
        });
    }
}
