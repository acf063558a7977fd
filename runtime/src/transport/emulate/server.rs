//! The target's side: does what requests ask, within registered memory.

use std::collections::VecDeque;
use std::sync::Arc;

use super::codec::{REPLY_HEADER, Reply, ReplyKind, RequestHead, RequestKind};
use crate::memory::copy::copy;
use crate::transport::error::{Error, Result};
use crate::transport::memory::Registry;

/// Serves one owner's registered memory. Answers that found no room wait here, as many as there are requests.
#[derive(Debug)]
pub struct Server {
    registry: Arc<Registry>,
    max_reply: usize,
    replies: VecDeque<(u32, Vec<u8>)>,
    malformed: u64,
}

impl Server {
    /// A server of `registry`'s memory whose replies have at most `max_reply` bytes.
    pub fn new(registry: Arc<Registry>, max_reply: usize) -> Server {
        Server { registry, max_reply, replies: VecDeque::new(), malformed: 0 }
    }

    /// Does the operation of a request and queues the answer. Bytes that are not a request are counted and dropped.
    pub fn serve(&mut self, from: u32, bytes: &[u8]) {
        let Some((head, payload)) = RequestHead::decode(bytes) else {
            self.malformed += 1;
            return;
        };
        let mut reply = Vec::new();
        let kind = match self.perform(&head, payload, &mut reply) {
            Ok(kind) => kind,
            Err(error) => {
                reply.truncate(0);
                ReplyKind::Failed(error.code())
            }
        };
        let encoded = Reply { kind, token: head.token }.encode();
        if reply.is_empty() {
            reply.extend_from_slice(&encoded);
        } else {
            reply[..REPLY_HEADER].copy_from_slice(&encoded);
        }
        self.replies.push_back((from, reply));
    }

    fn perform(&self, head: &RequestHead, payload: &[u8], reply: &mut Vec<u8>) -> Result<ReplyKind> {
        match head.kind {
            RequestKind::Put => {
                let to = self.registry.resolve(head.key, head.address, payload.len())?;
                // SAFETY: registered memory of this length; the payload is elsewhere.
                unsafe { copy(to, payload.as_ptr(), payload.len()) };
                Ok(ReplyKind::Done)
            }
            RequestKind::Get { len, offset } => {
                let len = usize::try_from(len).ok().filter(|len| *len <= self.max_reply - REPLY_HEADER);
                let len = len.ok_or(Error::InvalidParam("a read larger than a reply"))?;
                let from = self.registry.resolve(head.key, head.address, len)?;
                reply.resize(REPLY_HEADER + len, 0);
                // SAFETY: registered memory of this length, into our own buffer.
                unsafe { copy(reply[REPLY_HEADER..].as_mut_ptr(), from, len) };
                Ok(ReplyKind::Data { offset })
            }
            RequestKind::Atomic(atomic) => {
                let width = atomic.width as usize;
                if !head.address.is_multiple_of(width as u64) {
                    return Err(Error::InvalidParam("a misaligned atomic"));
                }
                let at = self.registry.resolve(head.key, head.address, width)?;
                // SAFETY: registered, aligned memory of this width.
                Ok(ReplyKind::Value(unsafe { atomic.perform(at) }))
            }
        }
    }

    /// Hands ready answers to `send` until it refuses for their peer. Returns how many were sent.
    pub fn poll(&mut self, mut send: impl FnMut(u32, &[u8]) -> bool) -> usize {
        let before = self.replies.len();
        if before == 0 {
            return 0;
        }
        let mut blocked: Vec<u32> = Vec::new();
        self.replies.retain(|(peer, bytes)| {
            if blocked.contains(peer) {
                return true;
            }
            let sent = send(*peer, bytes);
            if !sent {
                blocked.push(*peer);
            }
            !sent
        });
        before - self.replies.len()
    }

    /// Forgets the answers to a peer that is gone.
    pub fn forget(&mut self, peer: u32) {
        self.replies.retain(|(to, _)| *to != peer);
    }

    /// Whether answers wait for room.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }
}
