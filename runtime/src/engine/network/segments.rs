//! Copies of peers' segment tables, and the keys in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{EndpointOf, Network, Peer, posted};
use crate::engine::pieces::Registration;
use crate::engine::remote_access::Answer;
use crate::engine::segments::{ADDRESS, Found, RemoteSegments};
use crate::engine::straight::{LONGEST, Local};
use crate::memory::layout::{LINE, SEGMENT_BLOCK, SEGMENT_LEN, SEGMENTS_FIRST, SEGMENTS_MAX};
use crate::memory::segments::{Entry, KEY_ROOM, block_offset, context_offset, entry_offset, word_offset};
use crate::transport::{
    Capabilities, Domain, Endpoint, Interface as _, Iov, PACKED_KEY_LEN, Region, RemoteKey, Result,
};

/// A peer's segments that are known here.
#[derive(Debug, Default)]
pub(super) struct Known {
    segments: BTreeMap<u32, Segment>,
    /// Start and number of each.
    starts: BTreeSet<(usize, u32)>,
    /// Bytes of the longest one there was.
    longest: usize,
    /// The one that was found last.
    recent: Option<Registration<RemoteKey>>,
    /// This rank's word at the peer says that it holds entries.
    shown: bool,
    /// The peer's count of changes for which this is complete.
    complete: Option<u64>,
    /// The peer's count of changes when each block was read.
    versions: Vec<u64>,
    step: Step,
    /// A segment was closed while a get was under way: the get may bring the table as it was before the close.
    is_old: bool,
    /// Copies that were made.
    made: u64,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    generation: u64,
    start: usize,
    end: usize,
    key: RemoteKey,
}

/// The step of a copy of a peer's table that is under way.
#[derive(Debug, Default)]
enum Step {
    #[default]
    Idle,
    /// The word was put, if it had to be; the head is to be asked for.
    Begun,
    Head(Arc<Answer>),
    /// The versions of the blocks, from the first one on that is not known yet.
    Directory(Head, Option<Arc<Answer>>),
    /// Entries from the first on of those blocks whose version is another one: the block, its version, and how far it is.
    Entries(Head, Vec<(usize, u64)>, usize, Option<Arc<Answer>>),
}

/// The head of a peer's table, and the versions of its blocks.
#[derive(Debug, Clone, Default)]
struct Head {
    changes: u64,
    top: usize,
    versions: Vec<u64>,
}

impl Known {
    /// The segment in which address `offset - ADDRESS` lies.
    #[inline]
    pub(super) fn find(&mut self, offset: usize) -> Option<&Registration<RemoteKey>> {
        if !self.recent.as_ref().is_some_and(|piece| piece.contains(offset)) {
            let Segment { start, end, key, .. } = *self.around(offset - ADDRESS)?;
            self.recent = Some(Registration::new(ADDRESS + start, ADDRESS + end, key));
        }
        self.recent.as_ref()
    }

    fn around(&self, address: usize) -> Option<&Segment> {
        let before = self.starts.range(..=(address, u32::MAX)).rev();
        let mut near = before.take_while(|(start, _)| address - start < self.longest);
        near.find_map(|(_, number)| self.segments.get(number).filter(|segment| address < segment.end))
    }

    fn forget(&mut self, number: u32, generation: u64) {
        self.is_old |= !matches!(self.step, Step::Idle);
        if self.segments.get(&number).is_some_and(|segment| segment.generation <= generation) {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u32) {
        if let Some(segment) = self.segments.remove(&number) {
            self.starts.remove(&(segment.start, number));
            self.recent = None;
        }
    }

    /// Takes in an entry of the table.
    fn enter(&mut self, number: u32, entry: &Entry, unpack: impl FnOnce(&Entry) -> Result<RemoteKey>) -> Result<()> {
        // A number that was known and is another segment's now was forgotten before its owner could use it again.
        let Some(end) = entry.end() else { return Ok(()) };
        let (start, key) = (entry.start as usize, unpack(entry)?);
        self.longest = self.longest.max(end - start);
        self.starts.insert((start, number));
        self.segments.insert(number, Segment { generation: entry.generation, start, end, key });
        Ok(())
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
}

impl<D: Domain> Network<D> {
    /// This network's key among those of a segment.
    fn own_key<'a>(&self, keys: &'a [u8; KEY_ROOM]) -> &'a [u8] {
        &keys[self.number * PACKED_KEY_LEN..][..PACKED_KEY_LEN]
    }

    /// Puts this rank's word into the slot of `rank`, after all words before; of a context a byte, which is the same whichever context
    /// puts it.
    fn put_word(&self, rank: usize, peer: &Peer<EndpointOf<D>>, word: u64) -> Result<bool> {
        peer.unfenced.set(true);
        peer.fence()?;
        let (offset, bytes): (_, &[u8]) = match self.windowed {
            true => (word_offset(&self.layout, self.rank), &word.to_ne_bytes()),
            false => (context_offset(&self.layout, self.rank), &[1]),
        };
        let done = self.with_piece(peer, offset, |piece| {
            let pack = |room: &mut [u8]| {
                room.copy_from_slice(bytes);
                room.len()
            };
            posted(peer.endpoint.put_bcopy(bytes.len(), pack, super::remote(piece, offset), &piece.key))
        })?;
        if done.is_some() {
            self.wrote(rank, peer);
        }
        Ok(done.is_some())
    }

    /// Asks for bytes of the peer's table, after all earlier puts there.
    fn ask(&self, peer: &Peer<EndpointOf<D>>, offset: usize, len: usize) -> Result<Option<Arc<Answer>>> {
        peer.fence()?;
        let len = len.min(self.interface.attributes().get.max_bcopy);
        self.with_piece(peer, offset, |piece| self.read(peer, piece, offset, len.min(piece.left(offset))))
    }

    /// Goes on with a copy as far as that goes without waiting. `false`: something is under way, or has no room.
    fn copy(&self, rank: usize, peer: &Peer<EndpointOf<D>>, word: u64) -> Result<bool> {
        let mut known = peer.segments.borrow_mut();
        loop {
            let step = std::mem::take(&mut known.step);
            let answer = match &step {
                Step::Head(answer) => Some(answer),
                Step::Directory(_, answer) | Step::Entries(_, _, _, answer) => answer.as_ref(),
                Step::Idle | Step::Begun => None,
            };
            let came = match answer.map(|answer| answer.outcome()) {
                Some(None) => {
                    known.step = step;
                    return Ok(false);
                }
                // The next call begins anew.
                Some(Some(Err(error))) => return Err(error),
                Some(Some(Ok(()))) => answer.and_then(|answer| answer.bytes()).unwrap_or_default().to_vec(),
                None => Vec::new(),
            };
            if known.is_old && answer.is_some() {
                known.is_old = false;
                known.step = Step::Begun;
                continue;
            }
            let asks = |offset, len| self.ask(peer, offset, len);
            known.step = match step {
                Step::Idle => {
                    known.is_old = false;
                    if !known.shown {
                        if !self.put_word(rank, peer, word)? {
                            return Ok(false);
                        }
                        known.shown = true;
                    }
                    Step::Begun
                }
                Step::Begun => match asks(self.layout.segments, 16)? {
                    Some(answer) => Step::Head(answer),
                    None => {
                        known.step = Step::Begun;
                        return Ok(false);
                    }
                },
                Step::Head(_) => {
                    let mut head = words(&came);
                    let (changes, top) = (head.next().unwrap_or(0), head.next().unwrap_or(0) as usize);
                    let top = top.min(SEGMENTS_FIRST + SEGMENTS_MAX);
                    if known.complete == Some(changes) {
                        known.made += 1;
                        return Ok(true);
                    }
                    Step::Directory(Head { changes, top, versions: Vec::new() }, None)
                }
                Step::Directory(mut head, _) => {
                    head.versions.extend(words(&came));
                    let (have, blocks) = (head.versions.len(), head.top.div_ceil(SEGMENT_BLOCK));
                    if have < blocks {
                        let asked = asks(block_offset(&self.layout, have), (blocks - have) * 8)?;
                        let none = asked.is_none();
                        known.step = Step::Directory(head, asked);
                        if none {
                            return Ok(false);
                        }
                        continue;
                    }
                    let is_new = |(block, version): &(usize, u64)| known.versions.get(*block) != Some(version);
                    let left = head.versions.iter().copied().enumerate().filter(is_new).collect();
                    Step::Entries(head, left, 0, None)
                }
                Step::Entries(head, mut left, mut at, _) => {
                    for entry in came.chunks_exact(SEGMENT_LEN) {
                        let entry: Entry = bytemuck::pod_read_unaligned(entry);
                        if !entry.is_whole() {
                            break;
                        }
                        let number = left[0].0 * SEGMENT_BLOCK + at;
                        known.enter(number as u32, &entry, |entry| self.unpack(self.own_key(&entry.key)))?;
                        at += 1;
                    }
                    let len = |block: usize| (head.top - block * SEGMENT_BLOCK).min(SEGMENT_BLOCK);
                    if left.first().is_some_and(|(block, _)| at == len(*block)) {
                        left.remove(0);
                        at = 0;
                    }
                    let Some((block, _)) = left.first() else {
                        (known.versions, known.complete) = (head.versions, Some(head.changes));
                        known.made += 1;
                        return Ok(true);
                    };
                    let from = entry_offset(&self.layout, block * SEGMENT_BLOCK + at);
                    let asked = asks(from, (len(*block) - at) * SEGMENT_LEN)?;
                    let none = asked.is_none();
                    known.step = Step::Entries(head, left, at, asked);
                    if none {
                        return Ok(false);
                    }
                    continue;
                }
            };
        }
    }
}

const _: () = assert!(LINE >= 16, "the head of the table lies on one line");

impl<D: Domain> RemoteSegments for Network<D> {
    fn reaches_idle(&self) -> bool {
        self.changes_idle() || !self.interface.attributes().emulated.has(Capabilities::GET_BCOPY)
    }

    fn changes_idle(&self) -> bool {
        !self.interface.attributes().needs_target_progress
    }

    fn changes_by_device(&self) -> bool {
        self.interface.attributes().capabilities.has(Capabilities::ATOMIC_DEVICE)
    }

    fn changes_segments(&self) -> bool {
        !self.interface.attributes().atomics_on_allocated_only
    }

    unsafe fn register(&self, start: *mut u8, len: usize) -> Result<(Region, [u8; PACKED_KEY_LEN])> {
        // SAFETY: the caller's.
        let region = unsafe { self.domain.register(start, len) }?;
        let key = self.domain.pack_key(&region);
        Ok((region, key))
    }

    fn covers(&self, rank: usize, address: usize, len: usize) -> bool {
        let peers = self.peers.borrow();
        let Some(peer) = peers.get(&rank) else { return false };
        let mut known = peer.segments.borrow_mut();
        let Some(end) = address.checked_add(len).filter(|end| *end < ADDRESS) else { return false };
        let mut at = address;
        while at < end {
            let Some(piece) = known.find(ADDRESS + at) else { return false };
            at += piece.left(ADDRESS + at);
        }
        true
    }

    fn known(&self, rank: usize, number: u32) -> Option<Found> {
        let peers = self.peers.borrow();
        let known = peers.get(&rank)?.segments.borrow();
        known.segments.get(&number).map(|segment| Found { start: segment.start, len: segment.end - segment.start })
    }

    fn complete(&self, rank: usize) -> Option<u64> {
        self.peers.borrow().get(&rank)?.segments.borrow().complete
    }

    fn refresh(&self, rank: usize, word: u64, ticket: &mut Option<u64>) -> Result<bool> {
        self.with(rank, |peer| {
            let begun = {
                let known = peer.segments.borrow();
                // One that is under way may have begun too early.
                known.made + if matches!(known.step, Step::Idle) { 1 } else { 2 }
            };
            let wanted = *ticket.get_or_insert(begun);
            while peer.segments.borrow().made < wanted {
                if !self.copy(rank, peer, word)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn show_word(&self, rank: usize, word: u64) -> Result<bool> {
        self.with(rank, |peer| self.put_word(rank, peer, word))
    }

    fn holds_of(&self, rank: usize) -> bool {
        self.peers.borrow().get(&rank).is_some_and(|peer| peer.segments.borrow().shown)
    }

    unsafe fn post_straight(
        &self,
        rank: usize,
        offset: usize,
        local: Local,
        region: &Region,
        at: usize,
        len: usize,
    ) -> Result<Option<(Arc<Answer>, usize)>> {
        // SAFETY: inside the caller's memory.
        let pointer = unsafe { local.start().add(at) };
        self.with(rank, |peer| {
            if matches!(local, Local::Into(_)) {
                peer.fence()?;
            }
            let posted = self.with_piece(peer, offset, |piece| {
                let length = len.min(piece.left(offset));
                let iov = [Iov { pointer, length, stride: length, count: 1, region: Some(region) }];
                let remote = super::remote(piece, offset);
                let answer = self.asked(|_, completion| {
                    // SAFETY: the caller's.
                    unsafe {
                        match local {
                            Local::From(_) => peer.endpoint.put_zcopy(&iov, remote, &piece.key, Some(completion)),
                            Local::Into(_) => peer.endpoint.get_zcopy(&iov, remote, &piece.key, Some(completion)),
                        }
                    }
                })?;
                Ok(answer.map(|answer| (answer, length)))
            })?;
            if posted.is_some() && matches!(local, Local::From(_)) {
                self.wrote(rank, peer);
            }
            Ok(posted)
        })
    }

    unsafe fn fetch(
        &self,
        rank: usize,
        keys: &[u8; KEY_ROOM],
        at: usize,
        to: *mut u8,
        region: &Region,
        len: usize,
    ) -> Result<Option<(Arc<Answer>, usize)>> {
        let key = self.unpack(self.own_key(keys))?;
        let most = self.interface.attributes().get.max_zcopy;
        self.with(rank, |peer| {
            peer.fence()?;
            let length = len.min(most).min(LONGEST);
            let iov = [Iov { pointer: to, length, stride: length, count: 1, region: Some(region) }];
            let answer = self.asked(|_, completion| {
                // SAFETY: the caller's.
                unsafe { peer.endpoint.get_zcopy(&iov, key.address() + at as u64, &key, Some(completion)) }
            })?;
            Ok(answer.map(|answer| (answer, length)))
        })
    }

    fn forget(&self, rank: usize, number: u32, generation: u64) {
        if let Some(peer) = self.peers.borrow().get(&rank) {
            peer.segments.borrow_mut().forget(number, generation);
        }
    }
}
