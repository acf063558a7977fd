//! A message lane: a ring of cache lines with one writer and one reader.
//!
//! The writer fills a line's body and then stores its head with Release; the reader loads the head with Acquire. The
//! head carries the lap in which it was written, so the reader can tell a new line from an old one and clears nothing.
//! After every half lap the reader stores the number of lines it has consumed as a credit. The writer reads the credit only
//! when its last known value says that the lane is full.
//!
//! Beside the credit stands whether the receiver's polls check the lane. The writer reads that after each message, and rings the
//! receiver's [doorbell](super::doorbell) if they do not.

use std::sync::atomic::Ordering;

use super::atomics::{AtomicU64, Watched};
use crate::memory::layout::LINE;

/// Bytes of a message that fit in its line.
pub const BODY: usize = LINE - 8;

/// One slot of a lane.
#[repr(C, align(64))]
pub struct Line {
    head: AtomicU64,
    body: [u64; BODY / 8],
    watched: Watched,
}

impl Line {
    /// A line that never held a message, equal to zeroed memory.
    #[cfg(test)]
    pub fn fresh() -> Line {
        Line { head: AtomicU64::new(0), body: [0; BODY / 8], watched: Watched::default() }
    }
}

/// State of a lane that the reader writes for the writer. Zeroed memory is the state of a fresh lane, which polls do not check.
#[repr(C)]
pub struct Credit {
    /// Messages consumed, as of the last half lap.
    consumed: AtomicU64,
    /// 1 while each poll of the reader checks the lane.
    polled: AtomicU64,
}

impl Credit {
    /// One equal to zeroed memory.
    #[cfg(test)]
    pub fn fresh() -> Credit {
        Credit { consumed: AtomicU64::new(0), polled: AtomicU64::new(0) }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == LINE && size_of::<Credit>() <= LINE);

/// A line's head word, from the low bits: lap (16 bits), id (8), kind (8), length (32). In a lane of contexts the upper 24 bits of
/// the length are the sender's rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head(u64);

/// How the payload travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In the line itself.
    Inline,
    /// In a block of the sender's arena. The line's body holds the block's offset and length.
    Block,
}

impl Head {
    #[inline(always)]
    fn new(lap: u16, id: u8, kind: Kind, len: u32) -> Head {
        Head(lap as u64 | (id as u64) << 16 | (kind as u64) << 24 | (len as u64) << 32)
    }

    #[inline(always)]
    fn lap(self) -> u16 {
        self.0 as u16
    }

    /// Decodes a head word: id, kind and bytes in the body. `None` for a word that no [`Writer`] writes.
    #[cfg(any(test, fuzzing))]
    pub fn decode(word: u64) -> Option<(u8, Kind, usize)> {
        let head = Head(word);
        Some((head.id(), head.kind()?, head.length())).filter(|(_, _, len)| *len <= BODY)
    }

    /// The active-message id.
    #[inline(always)]
    pub fn id(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// How the payload travels. `None` for a value that no [`Writer`] writes.
    #[inline(always)]
    pub fn kind(self) -> Option<Kind> {
        match (self.0 >> 24) as u8 {
            0 => Some(Kind::Inline),
            1 => Some(Kind::Block),
            _ => None,
        }
    }

    /// Bytes in the line's body.
    #[inline(always)]
    pub fn length(self) -> usize {
        (self.0 >> 32) as usize
    }

    /// Of a line in a lane of contexts: the sender's rank.
    #[inline(always)]
    pub fn sender(self) -> usize {
        (self.0 >> SENDER_SHIFT) as usize
    }

    /// Of a line in a lane of contexts: the head as that of a rank's own lane.
    #[inline(always)]
    pub fn without_sender(self) -> Head {
        Head(self.0 & ((1 << SENDER_SHIFT) - 1))
    }
}

/// Where a head word has the sender's rank.
const SENDER_SHIFT: u32 = 40;
/// Ranks that a head word can name.
pub const SENDERS_MAX: usize = 1 << (u64::BITS - SENDER_SHIFT);

/// The lap of message `number`, from 1, modulo 2^16. In the first lap it differs from 0, the lap of a zeroed line.
#[inline(always)]
fn lap(number: u64, depth_log2: u32) -> u16 {
    ((number >> depth_log2) as u16).wrapping_add(1)
}

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    lines: *mut Line,
    credit: *const Credit,
    /// Messages written.
    next: u64,
    /// The value of `next` at which the credit must be read again.
    limit: u64,
    depth_log2: u32,
}

impl Writer {
    /// # Safety
    /// `lines` is a zeroed lane of `1 << depth_log2` lines and `credit` its zeroed credit line. Both stay mapped while the
    /// writer lives, and there is no other writer.
    pub unsafe fn new(lines: *mut u8, credit: *const u8, depth_log2: u32) -> Writer {
        Writer { lines: lines.cast(), credit: credit.cast(), next: 0, limit: 1 << depth_log2, depth_log2 }
    }

    /// As [`Writer::new`], for a lane in which others have written `written` messages.
    ///
    /// # Safety
    /// As [`Writer::new`], but the lane and its credit are as the writer before left them. That writer writes no more.
    pub unsafe fn resume(lines: *mut u8, credit: *const u8, depth_log2: u32, written: u64) -> Writer {
        // The first message reads the credit.
        Writer { lines: lines.cast(), credit: credit.cast(), next: written, limit: written, depth_log2 }
    }

    /// Goes on where others have written `written` messages, under the same terms as [`Writer::resume`].
    pub fn go_on(&mut self, written: u64) {
        (self.next, self.limit) = (written, written);
    }

    /// Messages written to the lane.
    pub fn written(&self) -> u64 {
        self.next
    }

    /// Whether the reader's polls check the lane. Asked after a message is written: if not, ring.
    #[inline(always)]
    pub fn is_polled(&self) -> bool {
        // SAFETY: the caller of `new` guarantees that it is mapped. Relaxed: `lanes.rs` expects a stale answer.
        unsafe { &*self.credit }.polled.load(Ordering::Relaxed) != 0
    }

    /// Whether a message can be written now.
    #[inline(always)]
    pub fn has_room(&mut self) -> bool {
        self.next < self.limit || self.refresh()
    }

    #[cold]
    fn refresh(&mut self) -> bool {
        // SAFETY: the caller of `new` guarantees that it is mapped. Pairs with the Release store in `Reader::publish`.
        let consumed = unsafe { &*self.credit }.consumed.load(Ordering::Acquire);
        self.limit = consumed + (1 << self.depth_log2);
        self.next < self.limit
    }

    /// Writes a message. `fill` writes its body. Call only after [`Writer::has_room`] returned true.
    #[inline(always)]
    pub fn write(&mut self, id: u8, kind: Kind, len: usize, fill: impl FnOnce(*mut u8)) {
        debug_assert!(len <= BODY);
        self.write_line(id, kind, len as u32, fill);
    }

    /// As [`Writer::write`], in a lane of contexts: the line names the sender's rank, below [`SENDERS_MAX`].
    #[inline(always)]
    pub fn write_from(&mut self, from: usize, id: u8, kind: Kind, len: usize, fill: impl FnOnce(*mut u8)) {
        debug_assert!(len <= BODY && from < SENDERS_MAX);
        self.write_line(id, kind, (from as u32) << (SENDER_SHIFT - 32) | len as u32, fill);
    }

    #[inline(always)]
    fn write_line(&mut self, id: u8, kind: Kind, len: u32, fill: impl FnOnce(*mut u8)) {
        debug_assert!(self.next < self.limit);
        let index = self.next & ((1 << self.depth_log2) - 1);
        let head = Head::new(lap(self.next, self.depth_log2), id, kind, len);
        // SAFETY: `index` is inside the lane. The reader's credit says that it has consumed this line's last message, and it
        // does not read the body before the new head is stored.
        unsafe {
            let line = self.lines.add(index as usize);
            (*line).watched.written(|| fill((&raw mut (*line).body).cast()));
            // Pairs with the Acquire load in `Reader::peek`.
            (*line).head.store(head.0, Ordering::Release);
        }
        self.next += 1;
    }
}

/// Writes arbitrary bytes as message `number` of a lane of `depth` lines; only the lap is set to the right value.
///
/// # Safety
/// As [`Writer::new`]; `number` messages were written before, the lane has room, and its reader is on this thread.
#[cfg(all(any(test, fuzzing), not(loom)))]
pub unsafe fn set_line(lane: *mut u8, number: u64, depth: u64, mut line: [u8; LINE]) {
    let at = (number & (depth - 1)) as usize;
    line[..2].copy_from_slice(&lap(number, depth.ilog2()).to_ne_bytes());
    // SAFETY: `at` is inside the lane; the caller guarantees that no other thread accesses it.
    unsafe { lane.add(at * LINE).copy_from(line.as_ptr(), LINE) };
}

/// Half the lines of a lane, rounded up. The reader returns credit after this many messages.
#[inline(always)]
fn half(depth_log2: u32) -> u64 {
    (1u64 << depth_log2).div_ceil(2)
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    lines: *const Line,
    credit: *const Credit,
    /// Messages read.
    next: u64,
    /// The value of `next` at which credit is returned next.
    due: u64,
    /// The next message's line.
    index: u32,
    depth_log2: u32,
    /// The lap of the next message.
    lap: u16,
}

impl Reader {
    /// # Safety
    /// As [`Writer::new`]; there is no other reader.
    pub unsafe fn new(lines: *const u8, credit: *mut u8, depth_log2: u32) -> Reader {
        let (lines, credit) = (lines.cast(), credit.cast());
        Reader { lines, credit, next: 0, due: half(depth_log2), index: 0, depth_log2, lap: lap(0, depth_log2) }
    }

    /// Messages read.
    pub fn read(&self) -> u64 {
        self.next
    }

    /// Tells the writer whether polls check the lane from now on.
    pub fn set_polled(&self, polled: bool) {
        // SAFETY: the caller of `new` guarantees that it is mapped. Relaxed: see `Writer::is_polled`.
        unsafe { &*self.credit }.polled.store(u64::from(polled), Ordering::Relaxed);
    }

    /// The head and body of the next message, if it has arrived.
    #[inline(always)]
    pub fn peek(&self) -> Option<(Head, *const u8)> {
        // SAFETY: `index` is inside the lane, which the caller of `new` guarantees to be mapped.
        let line = unsafe { self.lines.add(self.index as usize) };
        // SAFETY: as above. Pairs with the Release store in `Writer::write`.
        let head = Head(unsafe { &(*line).head }.load(Ordering::Acquire));
        if head.lap() != self.lap {
            return None;
        }
        // SAFETY: as above.
        unsafe { &(*line).watched }.read();
        // SAFETY: only the address is taken.
        Some((head, unsafe { (&raw const (*line).body).cast() }))
    }

    /// Consumes the message that [`Reader::peek`] returned: its line may be written again. Returns whether this returned
    /// credit to the writer, which may sleep until it gets some.
    #[inline(always)]
    pub fn advance(&mut self) -> bool {
        self.next += 1;
        self.index += 1;
        // Half a lane at a time: fewer than half the lines are ever consumed without a credit, so a writer that waits for
        // credit still has unread messages here, and the reader returns credit when it reads them.
        let due = self.next == self.due;
        if due {
            self.publish();
        }
        due
    }

    #[cold]
    fn publish(&mut self) {
        self.due = self.next + half(self.depth_log2);
        // A lap is a whole number of halves, so `index` wraps and `lap` changes only here.
        self.index = (self.next & ((1 << self.depth_log2) - 1)) as u32;
        self.lap = lap(self.next, self.depth_log2);
        // SAFETY: the caller of `new` guarantees that it is mapped. Pairs with the Acquire load in `Writer::refresh`.
        unsafe { &*self.credit }.consumed.store(self.next, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn laps_of_neighbours_differ_and_never_look_like_fresh_memory() {
        assert_eq!(lap(0, 2), 1);
        for number in [0u64, 3, 4, 1 << 17, (1 << 18) - 1, 1 << 18, u64::MAX >> 4] {
            assert_ne!(lap(number, 2), lap(number + 4, 2));
        }
    }

    #[test]
    fn a_lane_of_any_depth_keeps_order_and_refuses_when_full() {
        for depth_log2 in [0, 1, 3] {
            let depth = 1usize << depth_log2;
            let mut memory = Vec::new();
            memory.resize_with(depth, Line::fresh);
            let credit = Credit::fresh();
            let lines = memory.as_mut_ptr().cast::<u8>();
            // SAFETY: both live to the end of the loop body; one writer, one reader.
            let (mut writer, mut reader) = unsafe {
                let credit = (&raw const credit).cast_mut().cast::<u8>();
                (Writer::new(lines, credit, depth_log2), Reader::new(lines, credit, depth_log2))
            };
            let (mut sent, mut seen) = (0u64, 0u64);
            while seen < 1000 {
                while writer.has_room() {
                    // SAFETY: 8 bytes of a body.
                    writer.write(7, Kind::Inline, 8, |body| unsafe { body.cast::<u64>().write(sent) });
                    sent += 1;
                }
                assert!(sent - seen <= depth as u64);
                let mut any = false;
                while let Some((head, body)) = reader.peek() {
                    assert_eq!((head.id(), head.kind(), head.length()), (7, Some(Kind::Inline), 8));
                    // SAFETY: the message's body.
                    assert_eq!(unsafe { body.cast::<u64>().read() }, seen);
                    reader.advance();
                    seen += 1;
                    any = true;
                }
                assert!(any, "neither end could go on");
            }
        }
    }
}
