//! A message of a port.

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A parcel that is to leave.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) to: usize,
    pub(super) parcel: Parcel,
}

/// Items of a port, or word that some were taken.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) port: u64,
    /// The hop, and whether this is word.
    kind: u8,
    bytes: Bytes,
}

/// Marks word that a message was taken.
const TAKEN: u8 = 2;

impl Parcel {
    /// Bytes that a message has beside its items, at most: number of the port, kind, length, and the place of the code.
    pub(super) const OVERHEAD: usize = 10 + 1 + 10 + 8;

    pub(super) fn new(port: u64, hop: usize, bytes: Vec<u8>) -> Parcel {
        Parcel { port, kind: hop as u8, bytes: Bytes(bytes) }
    }

    pub(super) fn taken(port: u64, hop: usize) -> Parcel {
        Parcel { port, kind: hop as u8 | TAKEN, bytes: Bytes(Vec::new()) }
    }

    pub(super) fn is_taken(&self) -> bool {
        self.kind & TAKEN != 0
    }

    pub(super) fn hop(&self) -> usize {
        usize::from(self.kind & 1)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes.0
    }
}

/// Bytes in one piece; a plain vector would be encoded byte by byte.
#[derive(Debug)]
struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Whole)
    }
}
