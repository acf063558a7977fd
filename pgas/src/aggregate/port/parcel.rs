//! A message of a port.

use serde::{Deserialize, Serialize};

use super::record::Form;
use crate::registry::Bytes;

/// A parcel that is to leave.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) to: usize,
    pub(super) parcel: Parcel,
}

/// Items of a port, or a notice about items.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) port: u64,
    /// The hop, whether items are records, and whether this is a notice.
    kind: u8,
    bytes: Bytes,
}

/// Marks records.
const RECORDS: u8 = 2;
/// Marks the notice that a message was taken.
const TAKEN: u8 = 4;
/// Marks the notice that records came too late: the port is closed.
const LOST: u8 = 8;

impl Parcel {
    /// Bytes that a message has beside its items, at most: number of the port, kind, length, and the place of the code.
    pub(super) const OVERHEAD: usize = 10 + 1 + 10 + 8;

    pub(super) fn new(port: u64, hop: usize, form: Form, bytes: Vec<u8>) -> Parcel {
        let records = if form.is_records() { RECORDS } else { 0 };
        Parcel { port, kind: hop as u8 | records, bytes: Bytes(bytes) }
    }

    pub(super) fn taken(port: u64, hop: usize) -> Parcel {
        Parcel { port, kind: hop as u8 | TAKEN, bytes: Bytes(Vec::new()) }
    }

    pub(super) fn lost(port: u64) -> Parcel {
        Parcel { port, kind: LOST, bytes: Bytes(Vec::new()) }
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes.0.capacity()
    }

    pub(super) fn is_taken(&self) -> bool {
        self.kind & TAKEN != 0
    }

    pub(super) fn is_lost(&self) -> bool {
        self.kind & LOST != 0
    }

    pub(super) fn is_records(&self) -> bool {
        self.kind & RECORDS != 0
    }

    pub(super) fn hop(&self) -> usize {
        usize::from(self.kind & 1)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes.0
    }
}
