//! Scatter/gather lists.

use super::error::{Error, Result};
use super::key::Opaque;
use super::memory::Region;

/// One entry: `count` blocks of `length` bytes, the starts `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct Iov<'a> {
    /// The first block.
    pub pointer: *mut u8,
    /// Bytes of a block.
    pub length: usize,
    /// Bytes from one block's start to the next one's.
    pub stride: usize,
    /// Blocks.
    pub count: usize,
    /// The registration that covers it, where the domain needs one.
    pub region: Option<&'a Region>,
}

impl<'a> Iov<'a> {
    /// One contiguous block that is only read.
    pub fn read(bytes: &'a [u8]) -> Iov<'a> {
        Iov { pointer: bytes.as_ptr().cast_mut(), length: bytes.len(), stride: bytes.len(), count: 1, region: None }
    }

    /// One contiguous block that may be written.
    pub fn write(bytes: &'a mut [u8]) -> Iov<'a> {
        Iov { pointer: bytes.as_mut_ptr(), length: bytes.len(), stride: bytes.len(), count: 1, region: None }
    }

    /// The same, with the registration that covers it.
    pub fn with(self, region: &'a Region) -> Iov<'a> {
        Iov { region: Some(region), ..self }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.length.saturating_mul(self.count)
    }

    /// Whether the entry has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes from the first to the end of the last block.
    fn span(&self) -> usize {
        if self.is_empty() { 0 } else { self.stride.saturating_mul(self.count - 1).saturating_add(self.length) }
    }
}

/// A block of memory in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where.
    pub pointer: *mut u8,
    /// Bytes.
    pub len: usize,
    /// The local device's name for the registration that covers the block.
    pub descriptor: Opaque,
}

/// Checks a list against the limits and gives the bytes in it.
///
/// # Errors
/// [`Error::ExceedsLimit`] for too many entries; [`Error::InvalidParam`] for a region that is missing though `keyed`,
/// or does not cover its entry, and for an entry that wraps around.
pub fn check(iov: &[Iov<'_>], max_iov: usize, keyed: bool) -> Result<usize> {
    if iov.len() > max_iov {
        return Err(Error::ExceedsLimit {
            what: "entries of a scatter/gather list",
            length: iov.len(),
            limit: max_iov,
        });
    }
    let mut total = 0usize;
    for entry in iov.iter().filter(|entry| !entry.is_empty()) {
        if (entry.pointer as usize).checked_add(entry.span()).is_none() {
            return Err(Error::InvalidParam("a scatter/gather entry reaches past the end of the address space"));
        }
        match entry.region {
            None if keyed => return Err(Error::InvalidParam("zero-copy memory must be registered: no region given")),
            Some(region) if !region.covers(entry.pointer as usize, entry.span()) => {
                return Err(Error::InvalidParam("the region given does not cover the scatter/gather entry"));
            }
            _ => {}
        }
        total = total.saturating_add(entry.len());
    }
    Ok(total)
}

/// The blocks of a list, in order, empty ones left out.
pub fn pieces<'a>(iov: &'a [Iov<'_>]) -> impl Iterator<Item = Piece> + 'a {
    iov.iter().filter(|entry| entry.length > 0).flat_map(|entry| {
        let joined = entry.stride == entry.length || entry.count == 1;
        let (blocks, len) = if joined { (1.min(entry.count), entry.len()) } else { (entry.count, entry.length) };
        let descriptor = entry.region.map_or(Opaque::NONE, Region::descriptor);
        (0..blocks).map(move |i| Piece { pointer: entry.pointer.wrapping_add(i * entry.stride), len, descriptor })
    })
}

/// Blocks with a place in them, from which ranges are copied out or into which they are copied.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    blocks: Vec<Piece>,
}

impl Pieces {
    /// The blocks of `iov`.
    pub fn new(iov: &[Iov<'_>]) -> Pieces {
        Pieces { blocks: pieces(iov).collect() }
    }

    /// These blocks.
    pub fn of(blocks: Vec<Piece>) -> Pieces {
        Pieces { blocks }
    }

    /// Calls `each` with the blocks that make up bytes `from..from + len` of the whole, and their offset in it.
    pub fn range(&self, from: usize, len: usize, mut each: impl FnMut(Piece, usize)) {
        let (mut start, end) = (0, from + len);
        for block in &self.blocks {
            let (low, high) = (from.max(start), end.min(start + block.len));
            if low < high {
                each(Piece { pointer: block.pointer.wrapping_add(low - start), len: high - low, ..*block }, low - from);
            }
            start += block.len;
            if start >= end {
                break;
            }
        }
    }
}
