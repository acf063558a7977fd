//! Requests and replies as bytes.

use super::super::atomic::{Atomic, AtomicOp, Width};

/// Bytes before a request's payload.
pub const REQUEST_HEADER: usize = 48;
/// Bytes before a reply's payload.
pub const REPLY_HEADER: usize = 24;

/// The operation that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Write the payload.
    Put,
    /// Read this many bytes; they are at `offset` of the operation, which the reply repeats.
    Get {
        /// Bytes to read.
        len: u64,
        /// Where they belong.
        offset: u64,
    },
    /// Do this atomic.
    Atomic(Atomic),
}

/// A request without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// The operation.
    pub kind: RequestKind,
    /// The operation's number at the requester.
    pub token: u64,
    /// The registration's number at the target.
    pub key: u64,
    /// The target's address.
    pub address: u64,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl RequestHead {
    /// The bytes before the payload.
    pub fn encode(&self) -> [u8; REQUEST_HEADER] {
        let mut bytes = [0; REQUEST_HEADER];
        let (kind, op, width, a, b) = match self.kind {
            RequestKind::Put => (1, 0, 0, 0, 0),
            RequestKind::Get { len, offset } => (2, 0, 0, len, offset),
            RequestKind::Atomic(atomic) => (3, atomic.op as u8, atomic.width as u8, atomic.value, atomic.compare),
        };
        bytes[..3].copy_from_slice(&[kind, op, width]);
        for (at, value) in [(8, self.token), (16, self.key), (24, self.address), (32, a), (40, b)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Head and payload of a request; `None` for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Option<(RequestHead, &[u8])> {
        let (head, payload) = bytes.split_at_checked(REQUEST_HEADER)?;
        let (a, b) = (word(head, 32), word(head, 40));
        let kind = match head[0] {
            1 => RequestKind::Put,
            2 if payload.is_empty() => RequestKind::Get { len: a, offset: b },
            3 if payload.is_empty() => RequestKind::Atomic(Atomic {
                op: AtomicOp::from_number(head[1])?,
                width: Width::from_bytes(head[2])?,
                value: a,
                compare: b,
            }),
            _ => return None,
        };
        Some((RequestHead { kind, token: word(head, 8), key: word(head, 16), address: word(head, 24) }, payload))
    }
}

/// The outcome in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// Written.
    Done,
    /// The payload is the data that was read, for this offset of the operation.
    Data {
        /// Where the bytes belong.
        offset: u64,
    },
    /// The former value of the word.
    Value(u64),
    /// Refused, with this code.
    Failed(i8),
}

/// A reply without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The outcome.
    pub kind: ReplyKind,
    /// The request's token.
    pub token: u64,
}

impl Reply {
    /// The bytes before the payload.
    pub fn encode(&self) -> [u8; REPLY_HEADER] {
        let mut bytes = [0; REPLY_HEADER];
        let (kind, code, a) = match self.kind {
            ReplyKind::Done => (1, 0, 0),
            ReplyKind::Data { offset } => (2, 0, offset),
            ReplyKind::Value(value) => (3, 0, value),
            ReplyKind::Failed(code) => (4, code, 0),
        };
        bytes[..2].copy_from_slice(&[kind, code as u8]);
        bytes[8..16].copy_from_slice(&self.token.to_le_bytes());
        bytes[16..24].copy_from_slice(&a.to_le_bytes());
        bytes
    }

    /// Head and payload of a reply; `None` for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Option<(Reply, &[u8])> {
        let (head, payload) = bytes.split_at_checked(REPLY_HEADER)?;
        let a = word(head, 16);
        let kind = match head[0] {
            1 if payload.is_empty() => ReplyKind::Done,
            2 => ReplyKind::Data { offset: a },
            3 if payload.is_empty() => ReplyKind::Value(a),
            4 if payload.is_empty() && (head[1] as i8) < 0 => ReplyKind::Failed(head[1] as i8),
            _ => return None,
        };
        Some((Reply { kind, token: word(head, 8) }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let atomic = Atomic { op: AtomicOp::CompareSwap, width: Width::Four, value: 5, compare: 6 };
        for kind in [RequestKind::Put, RequestKind::Get { len: 7, offset: 8 }, RequestKind::Atomic(atomic)] {
            let head = RequestHead { kind, token: 1, key: 2, address: 3 };
            assert_eq!(RequestHead::decode(&head.encode()), Some((head, &[][..])));
        }
        for kind in [ReplyKind::Done, ReplyKind::Data { offset: 9 }, ReplyKind::Value(4), ReplyKind::Failed(-19)] {
            let reply = Reply { kind, token: 11 };
            assert_eq!(Reply::decode(&reply.encode()), Some((reply, &[][..])));
        }
    }
}
