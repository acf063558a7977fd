//! The buffers of one hop.

use std::time::Duration;

use super::grid::Grid;
use super::join::Joins;
use super::parcel::{Parcel, Post};
use super::record::Form;

/// Items that wait for one rank, and whether that rank has a message of ours that it has not taken.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Items in the buffer, without those that were joined to others.
    items: usize,
    to: usize,
    /// When the first of them came.
    since: Duration,
    busy: bool,
}

/// Buffers by target. The memory of a buffer is allocated when there is an item for its target.
#[derive(Debug)]
pub(super) struct Leg {
    grid: Grid,
    hop: usize,
    /// Bytes and items of a full buffer.
    full: usize,
    items: usize,
    buffers: Vec<Buffer>,
    joins: Option<Joins>,
    /// Bytes in all buffers, and messages that were not taken yet.
    waiting: usize,
    busy: usize,
}

impl Leg {
    pub(super) fn new(grid: Grid, hop: usize, full: usize, items: usize, joins: Option<Joins>) -> Leg {
        let mut buffers = Vec::new();
        buffers.resize_with(grid.slots(), Buffer::default);
        Leg { grid, hop, full, items, buffers, joins, waiting: 0, busy: 0 }
    }

    /// Bytes of a full buffer.
    pub(super) fn full(&self) -> usize {
        self.full
    }

    /// Something waits.
    pub(super) fn has_items(&self) -> bool {
        self.waiting > 0
    }

    /// Nothing waits, and everything was taken.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.busy == 0
    }

    /// Whether there is room for an item of `size` bytes for `to`.
    pub(super) fn has_room(&self, to: usize, size: usize) -> bool {
        let buffer = &self.buffers[self.grid.slot(to)];
        !buffer.busy || (buffer.bytes.len() + size <= self.full && buffer.items < self.items)
    }

    /// Puts an item, after a prefix, into the buffer for `to`. `false`: it has no room.
    #[inline]
    pub(super) fn put(
        &mut self,
        to: usize,
        [prefix, item]: [&[u8]; 2],
        now: Duration,
        form: Form,
        port: u64,
        posts: &mut Vec<Post>,
    ) -> bool {
        let slot = self.grid.slot(to);
        let mut buffer = &mut self.buffers[slot];
        if let Some(joins) = &mut self.joins
            && joins.join(slot, &mut buffer.bytes, prefix, item)
        {
            return true;
        }
        let size = prefix.len() + item.len();
        if buffer.bytes.len() + size > self.full || buffer.items >= self.items {
            if buffer.busy || buffer.bytes.is_empty() {
                return false;
            }
            // The buffer has no room for this record: send it now rather than wait for a shorter record.
            self.leave(to, form, port, posts);
            buffer = &mut self.buffers[slot];
        }
        if buffer.bytes.is_empty() {
            (buffer.since, buffer.to) = (now, to);
            buffer.bytes.reserve_exact(self.full);
        }
        buffer.bytes.extend_from_slice(prefix);
        buffer.bytes.extend_from_slice(item);
        buffer.items += 1;
        self.waiting += size;
        if !buffer.busy && (buffer.bytes.len() >= self.full || buffer.items >= self.items) {
            self.leave(to, form, port, posts);
        }
        true
    }

    /// `to` has taken our message.
    pub(super) fn taken(&mut self, to: usize, form: Form, port: u64, posts: &mut Vec<Post>) {
        let Some(buffer) = self.buffers.get_mut(self.grid.slot(to)).filter(|buffer| buffer.busy) else { return };
        buffer.busy = false;
        self.busy -= 1;
        if buffer.bytes.len() >= self.full || buffer.items >= self.items {
            self.leave(to, form, port, posts);
        }
    }

    /// Sends buffers that are older than `age` and whose target has taken the previous message.
    pub(super) fn flush(&mut self, now: Duration, age: Duration, form: Form, port: u64, posts: &mut Vec<Post>) {
        if self.waiting == 0 {
            return;
        }
        let ripe =
            |buffer: &Buffer| !buffer.busy && !buffer.bytes.is_empty() && now.saturating_sub(buffer.since) >= age;
        let ripe: Vec<usize> = self.buffers.iter().filter(|buffer| ripe(buffer)).map(|buffer| buffer.to).collect();
        ripe.into_iter().for_each(|to| self.leave(to, form, port, posts));
    }

    /// Sends all buffers, also to targets that have not taken the previous message.
    pub(super) fn clear(&mut self, form: Form, port: u64, posts: &mut Vec<Post>) {
        let full = self.buffers.iter().filter(|buffer| !buffer.bytes.is_empty());
        let full: Vec<usize> = full.map(|buffer| buffer.to).collect();
        full.into_iter().for_each(|to| self.leave(to, form, port, posts));
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let buffers: usize = self.buffers.iter().map(|buffer| buffer.bytes.capacity()).sum();
        buffers + self.joins.as_ref().map_or(0, Joins::memory)
    }

    fn leave(&mut self, to: usize, form: Form, port: u64, posts: &mut Vec<Post>) {
        let buffer = &mut self.buffers[self.grid.slot(to)];
        let bytes = std::mem::take(&mut buffer.bytes);
        buffer.items = 0;
        buffer.busy = true;
        self.busy += 1;
        self.waiting -= bytes.len();
        posts.push(Post { to, parcel: Parcel::new(port, self.hop, form, bytes) });
    }
}
