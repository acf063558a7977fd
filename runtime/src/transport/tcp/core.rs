//! The part of an interface without sockets: it serves the frames of its peers, and queues arrivals and ends of operations for its own program.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::address::Address;
use super::frame::{Body, NO_TOKEN};
use super::link::Broken;
use super::peer::{Peer, Tuning};
use crate::memory::copy;
use crate::transport::error::{Error, Result};
use crate::transport::iov::Pieces;
use crate::transport::memory::Registry;
use crate::transport::stream::Frame;
use crate::transport::wire::Channel;

/// Bytes of a message or of an answer.
pub type Bytes = smallvec::SmallVec<[u8; 64]>;

/// A message that has arrived.
pub struct Arrived {
    pub from: u32,
    pub channel: Channel,
    pub id: u8,
    pub bytes: Bytes,
}

/// An operation that is done.
pub struct Done {
    pub ticket: u64,
    pub outcome: Result<()>,
    pub data: Bytes,
}

/// What an operation waits for.
pub enum Awaits {
    /// The acknowledgement only. Holds the outcome of the put: an error if the peer has refused it.
    Put(Result<()>),
    /// Bytes for the caller.
    Fetch(Bytes),
    /// Bytes for the caller's blocks.
    Blocks(Pieces),
    /// The former value of the word.
    Word,
}

struct Operation {
    peer: u32,
    ticket: u64,
    awaits: Awaits,
    /// Bytes that are still to come.
    left: usize,
}

/// The state of an interface without its sockets.
pub struct Core {
    pub tuning: Tuning,
    registry: Arc<Registry>,
    pub peers: HashMap<u32, Peer, std::hash::BuildHasherDefault<super::spread::Spread>>,
    operations: HashMap<u64, Operation, std::hash::BuildHasherDefault<super::spread::Spread>>,
    next_token: u64,
    pub arrivals: VecDeque<Arrived>,
    pub done: VecDeque<Done>,
    pub notices: VecDeque<(u32, u32)>,
    /// Grows with each event that the program may wait for and that adds nothing to the queues above: accesses by peers, acknowledgements, credits.
    pub changes: u64,
    /// Number of times that a peer was lost.
    pub losses: u64,
}

// SAFETY: blocks are addresses of memory that the poster keeps until the operation is done or abandoned; only the thread that holds
// the lock around this value touches them.
unsafe impl Send for Core {}

impl Core {
    pub fn new(tuning: Tuning, registry: Arc<Registry>) -> Core {
        Core {
            tuning,
            registry,
            peers: HashMap::default(),
            operations: HashMap::default(),
            next_token: 0,
            arrivals: VecDeque::new(),
            done: VecDeque::new(),
            notices: VecDeque::new(),
            changes: 0,
            losses: 0,
        }
    }

    /// The state of `peer`, made at first use.
    #[inline]
    pub fn peer(&mut self, peer: u32) -> &mut Peer {
        self.peers.entry(peer).or_insert_with(|| Peer::new(&self.tuning))
    }

    /// The peer, if it is not lost.
    ///
    /// # Errors
    /// Why it is lost.
    #[inline]
    pub fn alive(&mut self, peer: u32) -> Result<&mut Peer> {
        let peer = self.peer(peer);
        match peer.lost {
            None => Ok(peer),
            Some(error) => Err(error),
        }
    }

    /// Stores the address of a peer. If another interface with the same number was known, that one is lost, and the state begins anew.
    pub fn know(&mut self, address: Address) {
        let number = address.peer();
        if self.peers.get(&number).is_some_and(|peer| peer.nonce.is_some_and(|nonce| nonce != address.nonce)) {
            self.lose(number, Error::ConnectionReset);
            self.peers.remove(&number);
        }
        let peer = self.peer(number);
        (peer.address, peer.nonce) = (Some(address), Some(address.nonce));
    }

    /// Adds an operation, and returns its token. Its end is reported with `ticket`.
    pub fn book(&mut self, peer: u32, ticket: u64, awaits: Awaits, left: usize) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.operations.insert(token, Operation { peer, ticket, awaits, left });
        token
    }

    fn finish(&mut self, token: u64, outcome: Result<()>, data: Bytes) {
        let Some(operation) = self.operations.remove(&token) else { return };
        self.done.push_back(Done { ticket: operation.ticket, outcome, data });
    }

    /// Forgets the operations with these tickets: their blocks are not accessed after this.
    pub fn abandon(&mut self, peer: u32, tickets: &[u64]) {
        let tokens: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.peer == peer && tickets.contains(&operation.ticket))
            .map(|(token, _)| *token)
            .collect();
        tokens.iter().for_each(|token| drop(self.operations.remove(token)));
        self.peer(peer).link.abandon(&tokens);
    }

    /// Marks a peer as lost. Operations in flight to it end with `error`.
    pub fn lose(&mut self, number: u32, error: Error) {
        let fresh = Peer::new(&self.tuning);
        let peer = self.peer(number);
        if peer.lost.is_some() {
            return;
        }
        let (address, nonce, posts, settled) = (peer.address, peer.nonce, peer.posts, peer.first_unsettled());
        *peer = Peer { address, nonce, posts, settled, lost: Some(error), ..fresh };
        let theirs = |(_, operation): &(&u64, &Operation)| operation.peer == number;
        let tokens: Vec<u64> = self.operations.iter().filter(theirs).map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.finish(token, Err(error), Bytes::new()));
        self.losses += 1;
    }

    /// Decrypts the frames in `bytes` in place and serves them. Returns how many bytes at the end are not a whole frame yet.
    ///
    /// # Errors
    /// [`Broken`]: end the connection.
    pub fn take(&mut self, from: u32, bytes: &mut [u8]) -> Result<usize, Broken> {
        let mut rest = bytes;
        loop {
            let Some(peer) = self.peers.get_mut(&from) else { return Ok(0) };
            let acknowledged = peer.link.acknowledged();
            let body = peer.link.next(&mut rest)?;
            self.changes += u64::from(peer.link.acknowledged() != acknowledged);
            let mut released = peer.link.take_released();
            let is_last = body.is_none();
            if matches!(body, Some(Body::Bye)) {
                // Frames that a farewell acknowledges are in effect. All others end with the peer.
                std::mem::take(&mut released).into_iter().for_each(|token| self.release(token));
            }
            // The frame is served before its acknowledgement releases puts: it may be the refusal of one of them.
            if let Some(Err(broken)) = body.map(|body| self.serve(from, body)) {
                // The frame counts as received, so the peer would not send it again over another connection.
                tracing::error!(peer = from, why = broken.0, "a peer is lost");
                self.lose(from, Error::ConnectionReset);
            }
            released.into_iter().for_each(|token| self.release(token));
            if is_last {
                return Ok(rest.len());
            }
        }
    }

    /// A put is in effect.
    fn release(&mut self, token: u64) {
        let outcome = match self.operations.get(&token) {
            Some(Operation { awaits: Awaits::Put(outcome), .. }) => *outcome,
            _ => return,
        };
        self.finish(token, outcome, Bytes::new());
    }

    fn serve(&mut self, from: u32, body: Body<'_>) -> Result<(), Broken> {
        match body {
            Body::Message(frame) => return self.serve_message(from, frame),
            Body::Put { key, address, token, notice, bytes } => {
                // SAFETY: registered memory of this length, as long as the call lasts; the bytes are elsewhere.
                let write = |to| unsafe { copy::put(to, bytes.as_ptr(), bytes.len()) };
                // A put without bytes only carries a notice: there is no memory to access.
                let written =
                    if bytes.is_empty() { Ok(()) } else { self.registry.access(key, address, bytes.len(), write) };
                self.changes += 1;
                match (written, notice) {
                    (Ok(()), Some(notice)) => self.notices.push_back((from, notice)),
                    (Ok(()), None) => {}
                    (Err(error), _) => self.peer(from).link.refuse(token, error.code()),
                }
            }
            Body::Get { key, address, token, offset, len } => {
                let mut bytes = vec![0; len as usize];
                // SAFETY: registered memory of this length, as long as the call lasts.
                let read = |at: *mut u8| unsafe { copy::get(bytes.as_mut_ptr(), at, len as usize) };
                match self.registry.access(key, address, len as usize, read) {
                    Ok(()) => self.peer(from).link.answer(&Body::Data { token, offset, bytes: &bytes }),
                    Err(error) => self.peer(from).link.refuse(token, error.code()),
                }
            }
            Body::Atomic { key, address, token, atomic } => {
                self.changes += 1;
                let width = atomic.width as usize;
                let is_aligned = address.is_multiple_of(width as u64);
                // SAFETY: registered, aligned memory of this width, as long as the call lasts.
                let change = |at| unsafe { atomic.perform(at) };
                let found = match is_aligned {
                    true => self.registry.access(key, address, width, change),
                    false => Err(Error::InvalidParam("a misaligned atomic")),
                };
                match found {
                    Ok(_) if token == NO_TOKEN => {}
                    Ok(word) => self.peer(from).link.answer(&Body::Value { token, word }),
                    Err(error) => self.peer(from).link.refuse(token, error.code()),
                }
            }
            Body::Data { token, offset, bytes } => return self.serve_data(from, token, offset, bytes),
            Body::Value { token, word } => {
                let operation = self.operations.get(&token).filter(|operation| operation.peer == from);
                if operation.is_some_and(|operation| matches!(operation.awaits, Awaits::Word)) {
                    self.finish(token, Ok(()), Bytes::from_slice(&word.to_le_bytes()));
                }
            }
            Body::Refused { token, code } => {
                self.peer(from).link.answered(token, None);
                let error = Error::from_code(code);
                match self.operations.get_mut(&token).filter(|operation| operation.peer == from) {
                    // Its acknowledgement follows.
                    Some(Operation { awaits: Awaits::Put(outcome), .. }) => *outcome = Err(error),
                    Some(_) => self.finish(token, Err(error), Bytes::new()),
                    // No caller waits for this operation. The peer is lost, as with a NIC, which breaks the connection after such an error.
                    None if token == NO_TOKEN => self.lose(from, error),
                    None => {}
                }
            }
            Body::Taken(count) => {
                self.changes += 1;
                let peer = self.peer(from);
                peer.notices_sent = peer.notices_sent.saturating_sub(count);
            }
            Body::Bye => self.lose(from, Error::ConnectionReset),
            Body::Ack => {}
        }
        Ok(())
    }

    fn serve_data(&mut self, from: u32, token: u64, offset: u64, bytes: &[u8]) -> Result<(), Broken> {
        const WRONG: Broken = Broken("an answer that does not fit its question");
        self.peer(from).link.answered(token, Some(bytes.len()));
        // The operation may have been abandoned.
        let Some(operation) = self.operations.get_mut(&token).filter(|operation| operation.peer == from) else {
            return Ok(());
        };
        let offset = usize::try_from(offset).map_err(|_| WRONG)?;
        operation.left = operation.left.checked_sub(bytes.len()).ok_or(WRONG)?;
        let is_whole = operation.left == 0;
        match &mut operation.awaits {
            Awaits::Fetch(data) => {
                let end = offset.checked_add(bytes.len()).ok_or(WRONG)?;
                data.get_mut(offset..end).ok_or(WRONG)?.copy_from_slice(bytes);
                if is_whole {
                    let data = std::mem::take(data);
                    self.finish(token, Ok(()), data);
                }
            }
            Awaits::Blocks(pieces) => {
                pieces.range(offset, bytes.len(), |piece, at| {
                    // SAFETY: the caller's memory, ours to write until the operation is done or abandoned.
                    unsafe { copy::put(piece.pointer, bytes[at..].as_ptr(), piece.len) };
                });
                if is_whole {
                    self.finish(token, Ok(()), Bytes::new());
                }
            }
            _ => return Err(WRONG),
        }
        Ok(())
    }

    fn serve_message(&mut self, from: u32, frame: &[u8]) -> Result<(), Broken> {
        const WRONG: Broken = Broken("a message that does not fit its flow");
        let flow = self.tuning.flow;
        match Frame::decode(frame).ok_or(WRONG)? {
            Frame::Credit { channel, count } => {
                self.changes += 1;
                let peer = self.peer(from);
                peer.flows[channel as usize].out.grant(count, &flow);
                peer.go_on(&flow);
            }
            Frame::Fragment { channel, id, number, offset, total, credits, bytes } => {
                self.changes += u64::from(credits > 0);
                let peer = self.peer(from);
                let ends = &mut peer.flows[channel as usize];
                ends.out.grant(credits.into(), &flow);
                let whole = if bytes.len() == total as usize && bytes.len() <= flow.message {
                    Some((id, Bytes::from_slice(bytes)))
                } else {
                    let taken = ends.inward.take(id, number, offset, total, bytes, &flow).map_err(|_| WRONG)?;
                    taken.map(|(id, bytes)| (id, Bytes::from_vec(bytes)))
                };
                match whole {
                    Some((id, bytes)) => self.arrivals.push_back(Arrived { from, channel, id, bytes }),
                    None => peer.give_credit(channel, false, &flow),
                }
                if credits > 0 {
                    self.peer(from).go_on(&flow);
                }
            }
        }
        Ok(())
    }
}
