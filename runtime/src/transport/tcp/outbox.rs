//! Sealed frames on their way to a socket: bytes of our own, and between them segments that are one large block of the user's memory.
//! Frames that are encrypted are bytes of our own: what lies in the user's memory is copied and encrypted here, as much as waits for the
//! socket at a time.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::frame::{APART, parts};
use super::secret::{SessionKeys, TAG};
use crate::memory::copy::copy;
use crate::transport::iov::Piece;

/// Blocks that one system call takes.
const GATHER: usize = 32;
/// Bytes of our own in one chunk, about.
const CHUNK: usize = 32 << 10;

enum Chunk {
    Own(Vec<u8>),
    /// Memory of the user's, readable as long as the frame is not acknowledged.
    User(Piece),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Own(bytes) => bytes,
            // SAFETY: the poster's memory, readable and unchanged until the frame is acknowledged or its bytes are copied.
            Chunk::User(piece) => unsafe { std::slice::from_raw_parts(piece.pointer, piece.len) },
        }
    }
}

/// Entries for which each queue of a link keeps room when nothing waits, at most.
pub const ENTRIES_KEPT: usize = 64;

/// Gives back the room of a queue in which nothing, or one entry that is kept, is left.
pub fn trim<T>(queue: &mut VecDeque<T>) {
    if queue.len() <= 1 && queue.capacity() > ENTRIES_KEPT {
        queue.shrink_to(ENTRIES_KEPT);
    }
}

/// Bytes of our own for which an empty outbox keeps room, at most.
const KEPT: usize = 4 << 10;
/// Bytes that an empty outbox has on the heap, at most.
pub const IDLE: usize = KEPT + ENTRIES_KEPT * size_of::<Chunk>();

/// Frames that wait for the socket.
#[derive(Default)]
pub struct Outbox {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are gone.
    gone: usize,
    len: usize,
}

impl Outbox {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a frame and its tag. `record` is its number in the connection.
    pub fn frame(&mut self, keys: &SessionKeys, record: u64, head: &[u8], own: &[u8], user: &[Piece]) {
        // One block that the socket takes from where it lies.
        let apart = match user {
            [one] if one.len >= APART && !keys.encrypts => Some(*one),
            _ => None,
        };
        let last = self.open_chunk();
        let start = last.len();
        // Also for the tag: a large chunk that grows for it would have twice the room.
        let copied = if apart.is_some() { 0 } else { user.iter().map(|piece| piece.len).sum() };
        last.reserve(head.len() + own.len() + copied + TAG);
        last.extend_from_slice(head);
        last.extend_from_slice(own);
        let key = &keys.send;
        if let Some(one) = apart {
            // SAFETY: the poster's memory, readable and unchanged until the frame is acknowledged.
            let data = unsafe { std::slice::from_raw_parts(one.pointer, one.len) };
            let tag = key.tag(record, &last[start..], data);
            self.len += head.len() + own.len() + tag.len() + one.len;
            self.chunks.push_back(Chunk::User(one));
            self.chunks.push_back(Chunk::Own(tag.to_vec()));
            return;
        }
        for piece in user {
            let at = last.len();
            last.resize(at + piece.len, 0);
            // SAFETY: as above; the room was just made.
            unsafe { copy(last[at..].as_mut_ptr(), piece.pointer, piece.len) };
        }
        let tag = if keys.encrypts {
            let (head, body) = last[start..].split_at_mut(head.len());
            key.seal(record, head, body)
        } else {
            let (whole, data) = parts(head[0], &last[start..]);
            key.tag(record, whole, data)
        };
        last.extend_from_slice(&tag);
        self.len += last.len() - start;
    }

    fn open_chunk(&mut self) -> &mut Vec<u8> {
        if !matches!(self.chunks.back(), Some(Chunk::Own(bytes)) if bytes.len() < CHUNK) {
            self.chunks.push_back(Chunk::Own(Vec::new()));
        }
        match self.chunks.back_mut() {
            Some(Chunk::Own(bytes)) => bytes,
            _ => unreachable!("just pushed"),
        }
    }

    /// The first blocks that wait.
    pub fn gather(&self) -> smallvec::SmallVec<[IoSlice<'_>; GATHER]> {
        let blocks = self.chunks.iter().take(GATHER).enumerate();
        blocks.map(|(at, chunk)| IoSlice::new(&chunk.bytes()[if at == 0 { self.gone } else { 0 }..])).collect()
    }

    /// So many bytes are gone.
    pub fn consume(&mut self, mut count: usize) {
        self.len -= count;
        while count > 0 {
            let is_last = self.chunks.len() == 1;
            let Some(first) = self.chunks.front_mut() else { return };
            let left = first.bytes().len() - self.gone;
            if count < left {
                self.gone += count;
                return;
            }
            (count, self.gone) = (count - left, 0);
            match first {
                // Kept for the next frame, unless it is large: an idle peer keeps little.
                Chunk::Own(bytes) if is_last && bytes.capacity() <= KEPT => bytes.clear(),
                _ => drop(self.chunks.pop_front()),
            }
            trim(&mut self.chunks);
        }
    }

    /// Copies the user's memory.
    pub fn own_all(&mut self) {
        for chunk in &mut self.chunks {
            if let Chunk::User(piece) = *chunk {
                let mut bytes = vec![0; piece.len];
                // SAFETY: the poster's memory, readable until the caller returns.
                unsafe { copy(bytes.as_mut_ptr(), piece.pointer, piece.len) };
                *chunk = Chunk::Own(bytes);
            }
        }
    }
}

#[cfg(test)]
impl Outbox {
    /// Bytes on the heap.
    pub fn heap(&self) -> usize {
        let own = |chunk: &Chunk| if let Chunk::Own(bytes) = chunk { bytes.capacity() } else { 0 };
        self.chunks.capacity() * size_of::<Chunk>() + self.chunks.iter().map(own).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::secret::{End, JobKey, KEY};
    use super::*;
    use crate::transport::key::Opaque;

    #[test]
    fn a_large_frame_takes_no_more_room_than_it_has_bytes() {
        const LEN: usize = CHUNK;
        let mut memory = vec![7; LEN];
        let piece = Piece { pointer: memory.as_mut_ptr(), len: LEN, descriptor: Opaque::NONE };
        let plain = JobKey::new([7; KEY]);
        for (key, user, own) in [
            (plain.encrypting(), &[piece][..], vec![]),
            (plain.clone(), &[], vec![7; LEN]),
            (plain, &[piece; 2], vec![]),
        ] {
            let keys = key.session(End::Dialer, b"one");
            let mut outbox = Outbox::default();
            outbox.frame(&keys, 0, &[0; 32], &own, user);
            let len = 32 + own.len() + user.len() * LEN + TAG;
            assert_eq!(outbox.len(), len);
            let queue = outbox.chunks.capacity() * size_of::<Chunk>();
            assert_eq!(outbox.heap() - queue, len, "encrypted: {}", keys.encrypts);
        }
    }
}
