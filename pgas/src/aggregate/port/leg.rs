//! The buffers of one hop.

use std::time::Duration;

use super::grid::Grid;
use super::join::Joins;
use super::parcel::{Parcel, Post};

/// What waits for one rank, and whether it still has a message of ours that it has not taken.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    to: usize,
    /// When the first of them came.
    since: Duration,
    busy: bool,
}

/// Buffers by target, whose memory is taken when there is something for it.
#[derive(Debug)]
pub(super) struct Leg {
    grid: Grid,
    hop: usize,
    /// Bytes of an item.
    width: usize,
    /// Bytes of a full buffer.
    full: usize,
    buffers: Vec<Buffer>,
    joins: Option<Joins>,
    /// Bytes in all buffers, and messages that were not taken yet.
    waiting: usize,
    busy: usize,
}

impl Leg {
    pub(super) fn new(grid: Grid, hop: usize, width: usize, items: usize, joins: Option<Joins>) -> Leg {
        let mut buffers = Vec::new();
        buffers.resize_with(grid.slots(), Buffer::default);
        Leg { grid, hop, width, full: items * width, buffers, joins, waiting: 0, busy: 0 }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Nothing waits, and everything was taken.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.busy == 0
    }

    /// Puts an item, after a prefix, into the buffer for `to`. `false`: it is full.
    #[inline]
    pub(super) fn put(
        &mut self,
        to: usize,
        [prefix, item]: [&[u8]; 2],
        now: Duration,
        port: u64,
        flushing: bool,
        posts: &mut Vec<Post>,
    ) -> bool {
        let slot = self.grid.slot(to);
        let buffer = &mut self.buffers[slot];
        if let Some(joins) = &mut self.joins
            && joins.join(slot, &mut buffer.bytes, prefix, item)
        {
            return true;
        }
        if buffer.bytes.len() >= self.full {
            return false;
        }
        if buffer.bytes.is_empty() {
            (buffer.since, buffer.to) = (now, to);
            buffer.bytes.reserve_exact(self.full);
        }
        buffer.bytes.extend_from_slice(prefix);
        buffer.bytes.extend_from_slice(item);
        self.waiting += self.width;
        if !buffer.busy && (flushing || buffer.bytes.len() >= self.full) {
            self.leave(to, port, posts);
        }
        true
    }

    /// `to` has taken our message.
    pub(super) fn taken(&mut self, to: usize, port: u64, flushing: bool, posts: &mut Vec<Post>) {
        let Some(buffer) = self.buffers.get_mut(self.grid.slot(to)).filter(|buffer| buffer.busy) else { return };
        buffer.busy = false;
        self.busy -= 1;
        if buffer.bytes.len() >= self.full || (flushing && !buffer.bytes.is_empty()) {
            self.leave(to, port, posts);
        }
    }

    /// Lets go what may go and is older than `age`.
    pub(super) fn flush(&mut self, now: Duration, age: Duration, port: u64, posts: &mut Vec<Post>) {
        if self.waiting == 0 {
            return;
        }
        let ripe =
            |buffer: &Buffer| !buffer.busy && !buffer.bytes.is_empty() && now.saturating_sub(buffer.since) >= age;
        let ripe: Vec<usize> = self.buffers.iter().filter(|buffer| ripe(buffer)).map(|buffer| buffer.to).collect();
        ripe.into_iter().for_each(|to| self.leave(to, port, posts));
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let buffers: usize = self.buffers.iter().map(|buffer| buffer.bytes.capacity()).sum();
        buffers + self.joins.as_ref().map_or(0, Joins::memory)
    }

    fn leave(&mut self, to: usize, port: u64, posts: &mut Vec<Post>) {
        let buffer = &mut self.buffers[self.grid.slot(to)];
        let bytes = std::mem::take(&mut buffer.bytes);
        buffer.busy = true;
        self.busy += 1;
        self.waiting -= bytes.len();
        posts.push(Post { to, parcel: Parcel::new(port, self.hop, bytes) });
    }
}
