//! Frames, which links send: each is a head, a body and a tag.
//!
//! ```text
//! | kind 1 | flags 1 | 0 2 | body's length 4 | record 8 | number 8 | acknowledged 8 | body | tag 16 |
//! ```
//!
//! The body is encrypted if the connection's keys say so.
//!
//! The record counts frames of one connection and direction, so a frame that is replayed, left out or sent back does not fit. The
//! number counts the frames of the link, over all of its connections, so a frame that is sent again is not served again.

use crate::transport::atomic::{Atomic, AtomicOp, Width};

/// Bytes of a head.
pub const HEAD: usize = 32;
/// Most bytes of a put or of read data in one frame. Chosen: large enough that heads and tags cost little, and what a peer may have
/// to keep of a frame that has come in part.
pub const SEGMENT: usize = 32 << 10;
/// Most bytes of a body.
pub const BODY_MAX: usize = SEGMENT + 64;
/// The token of an operation that no caller waits for.
pub const NO_TOKEN: u64 = u64::MAX;

/// The receiver shall acknowledge at once.
pub const WANT_ACK: u8 = 1;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The kind of the body.
    pub kind: u8,
    /// [`WANT_ACK`].
    pub flags: u8,
    /// Bytes of the body.
    pub len: u32,
    /// The frame's number in its connection.
    pub record: u64,
    /// Its number in the link; 0 for one that is not counted.
    pub number: u64,
    /// Frames that the sender has received in order.
    pub acknowledged: u64,
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        (bytes[0], bytes[1]) = (self.kind, self.flags);
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.record.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes
    }

    /// Understands the start of a frame; `None` for bytes that are none.
    pub fn decode(bytes: &[u8; HEAD]) -> Option<Head> {
        let len = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let (record, number, acknowledged) = (word(bytes, 8), word(bytes, 16), word(bytes, 24));
        let head = Head { kind: bytes[0], flags: bytes[1], len, record, number, acknowledged };
        (len as usize <= BODY_MAX && bytes[2..4] == [0; 2]).then_some(head)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// A frame's bytes without its tag: the head with the fields, and the data behind them if there is enough of it for a tag of its own.
pub fn parts(kind: u8, frame: &[u8]) -> (&[u8], &[u8]) {
    let fields = match kind {
        kind::PUT => 24,
        kind::DATA => 16,
        _ => return (frame, &[]),
    };
    match frame.split_at_checked(HEAD + fields) {
        Some((head, data)) if data.len() >= APART => (head, data),
        _ => (frame, &[]),
    }
}

/// Data from so many bytes on has a tag of its own, and is not copied if it is one block. Chosen, not measured: the copy
/// of less is taken to be cheaper than a second tag and a second block for the socket.
pub const APART: usize = 512;

/// The kinds of frames.
pub mod kind {
    /// A frame of [`crate::transport::stream`].
    pub const MESSAGE: u8 = 1;
    /// Write.
    pub const PUT: u8 = 2;
    /// Write, and hand a notice over.
    pub const NOTIFY: u8 = 3;
    /// Read.
    pub const GET: u8 = 4;
    /// Do an atomic.
    pub const ATOMIC: u8 = 5;
    /// The bytes that a get read.
    pub const DATA: u8 = 6;
    /// The former value of a word.
    pub const VALUE: u8 = 7;
    /// An operation was refused.
    pub const REFUSED: u8 = 8;
    /// So many notices were taken.
    pub const TAKEN: u8 = 9;
    /// Nothing but the acknowledgement. Not counted.
    pub const ACK: u8 = 16;
    /// The sender's interface is closed: no connection follows. Not counted.
    pub const BYE: u8 = 17;
}

/// A frame's body, as it was understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// A frame of [`crate::transport::stream`].
    Message(&'a [u8]),
    /// Write the bytes.
    Put {
        /// The registration's number at the target.
        key: u64,
        /// The target's address.
        address: u64,
        /// The requester's number of the operation, or [`NO_TOKEN`].
        token: u64,
        /// The notice to hand over then.
        notice: Option<u32>,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// Read.
    Get {
        /// The registration's number at the target.
        key: u64,
        /// The target's address.
        address: u64,
        /// The requester's number of the operation.
        token: u64,
        /// Where in the operation the bytes belong.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// Do an atomic.
    Atomic {
        /// The registration's number at the target.
        key: u64,
        /// The target's address.
        address: u64,
        /// The requester's number of the operation, or [`NO_TOKEN`].
        token: u64,
        /// The atomic to do.
        atomic: Atomic,
    },
    /// Bytes that a get has read.
    Data {
        /// The number of the get.
        token: u64,
        /// Offset of the bytes in the get.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The former value of the word of an atomic.
    Value {
        /// The number of the atomic.
        token: u64,
        /// The word.
        word: u64,
    },
    /// The target refuses an operation.
    Refused {
        /// Which.
        token: u64,
        /// Why: [`crate::transport::Error::code`].
        code: i8,
    },
    /// So many notices were taken by the target's program.
    Taken(u32),
    /// Nothing.
    Ack,
    /// The sender's interface is closed.
    Bye,
}

/// Most bytes of a body before its data.
#[cfg(test)]
const FIELDS: usize = 48;

/// The fields of a body before its data.
pub type Fields = smallvec::SmallVec<[u8; 96]>;

impl<'a> Body<'a> {
    /// Whether the link counts it: then it is sent again after a connection broke.
    pub fn is_counted(kind: u8) -> bool {
        !matches!(kind, kind::ACK | kind::BYE)
    }

    /// Its kind, its fields, and the data behind them.
    pub fn encode(&self) -> (u8, Fields, &'a [u8]) {
        let mut fields = Fields::new();
        let mut put = |words: &[u64]| words.iter().for_each(|word| fields.extend_from_slice(&word.to_le_bytes()));
        let (kind, data): (u8, &[u8]) = match *self {
            Body::Message(frame) => (kind::MESSAGE, frame),
            Body::Put { key, address, token, notice: None, bytes } => {
                put(&[key, address, token]);
                (kind::PUT, bytes)
            }
            Body::Put { key, address, token, notice: Some(notice), bytes } => {
                put(&[key, address, token, notice.into()]);
                (kind::NOTIFY, bytes)
            }
            Body::Get { key, address, token, offset, len } => {
                put(&[key, address, token, offset, len.into()]);
                (kind::GET, &[])
            }
            Body::Atomic { key, address, token, atomic } => {
                let what = u64::from(atomic.op as u8) | u64::from(atomic.width as u8) << 8;
                put(&[key, address, token, what, atomic.value, atomic.compare]);
                (kind::ATOMIC, &[])
            }
            Body::Data { token, offset, bytes } => {
                put(&[token, offset]);
                (kind::DATA, bytes)
            }
            Body::Value { token, word } => {
                put(&[token, word]);
                (kind::VALUE, &[])
            }
            Body::Refused { token, code } => {
                put(&[token, code as u8 as u64]);
                (kind::REFUSED, &[])
            }
            Body::Taken(count) => {
                put(&[count.into()]);
                (kind::TAKEN, &[])
            }
            Body::Ack => (kind::ACK, &[]),
            Body::Bye => (kind::BYE, &[]),
        };
        (kind, fields, data)
    }

    /// Understands a body; `None` for bytes that are none.
    pub fn decode(kind: u8, body: &'a [u8]) -> Option<Body<'a>> {
        let words = |count: usize| body.split_at_checked(8 * count);
        let exactly = |count: usize| (body.len() == 8 * count).then_some(body);
        Some(match kind {
            kind::MESSAGE => Body::Message(body),
            kind::PUT => {
                let (fields, bytes) = words(3)?;
                let (key, address, token) = (word(fields, 0), word(fields, 8), word(fields, 16));
                Body::Put { key, address, token, notice: None, bytes }
            }
            kind::NOTIFY => {
                let (fields, bytes) = words(4)?;
                let (key, address, token) = (word(fields, 0), word(fields, 8), word(fields, 16));
                Body::Put { key, address, token, notice: Some(u32::try_from(word(fields, 24)).ok()?), bytes }
            }
            kind::GET => {
                let fields = exactly(5)?;
                let len = u32::try_from(word(fields, 32)).ok().filter(|len| *len as usize <= SEGMENT)?;
                let (key, address, token) = (word(fields, 0), word(fields, 8), word(fields, 16));
                Body::Get { key, address, token, offset: word(fields, 24), len }
            }
            kind::ATOMIC => {
                let fields = exactly(6)?;
                let op = AtomicOp::from_number(fields[24])?;
                let width = Width::from_bytes(fields[25])?;
                let atomic = Atomic { op, width, value: word(fields, 32), compare: word(fields, 40) };
                Body::Atomic { key: word(fields, 0), address: word(fields, 8), token: word(fields, 16), atomic }
            }
            kind::DATA => {
                let (fields, bytes) = words(2)?;
                Body::Data { token: word(fields, 0), offset: word(fields, 8), bytes }
            }
            kind::VALUE => {
                let fields = exactly(2)?;
                Body::Value { token: word(fields, 0), word: word(fields, 8) }
            }
            kind::REFUSED => {
                let fields = exactly(2)?;
                Body::Refused { token: word(fields, 0), code: fields[8] as i8 }
            }
            kind::TAKEN => Body::Taken(u32::try_from(word(exactly(1)?, 0)).ok()?),
            kind::ACK => exactly(0).map(|_| Body::Ack)?,
            kind::BYE => exactly(0).map(|_| Body::Bye)?,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_and_heads_come_back() {
        let atomic = Atomic { op: AtomicOp::CompareSwap, width: Width::Four, value: 3, compare: u64::MAX };
        let (key, address, token, bytes) = (1, 2, NO_TOKEN, &b"bytes"[..]);
        let bodies = [
            Body::Message(bytes),
            Body::Put { key, address, token, notice: None, bytes },
            Body::Put { key, address, token, notice: Some(9), bytes },
            Body::Get { key, address, token, offset: 5, len: 7 },
            Body::Atomic { key, address, token, atomic },
            Body::Data { token, offset: 4, bytes },
            Body::Value { token, word: 77 },
            Body::Refused { token, code: -23 },
            Body::Taken(5),
            Body::Ack,
            Body::Bye,
        ];
        for body in bodies {
            let (kind, fields, data) = body.encode();
            assert!(fields.len() <= FIELDS);
            let whole = [&fields[..], data].concat();
            assert_eq!(Body::decode(kind, &whole), Some(body));
            let head = Head { kind, flags: 1, len: whole.len() as u32, record: 3, number: 4, acknowledged: 5 };
            assert_eq!(Head::decode(&head.encode()), Some(head));
            if !matches!(body, Body::Message(_) | Body::Put { .. } | Body::Data { .. }) {
                assert_eq!(Body::decode(kind, &[&whole[..], &[0]].concat()), None, "{body:?}: a byte too many");
            }
        }
        let long = Head { kind: 1, flags: 0, len: BODY_MAX as u32 + 1, record: 0, number: 0, acknowledged: 0 };
        assert_eq!(Head::decode(&long.encode()), None);
    }
}
