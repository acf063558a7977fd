//! Puts, gets and atomics that a simulated card does by itself, and tells of some time later: as a network device does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::network::State;
use super::pins::check_key;
use crate::memory::copy::copy;
use crate::transport::atomic::Atomic;
use crate::transport::error::{Error, Result};
use crate::transport::iov::Piece;
use crate::transport::key::RemoteKey;
use crate::transport::wire::{Completed, Direction};

/// Operations under way at a card.
const DEPTH: usize = 8;
/// Notices that wait for a rank.
pub(super) const NOTICES: usize = 4;
/// Most blocks of one.
pub(super) const MAX_PIECES: usize = 2;

pub(super) enum Post {
    Put(Vec<u8>),
    Pieces(Direction, Vec<Piece>),
    Fetch(usize),
    Atomic(Atomic),
}

struct Op {
    number: u32,
    peer: u32,
    ticket: Option<u64>,
    outcome: Result<()>,
    data: Vec<u8>,
}

/// A card's queue of them.
#[derive(Default)]
pub(super) struct Posts {
    ops: RefCell<VecDeque<Op>>,
    posted: Cell<u32>,
    /// So many turns pass before anything is done.
    turns: Cell<u32>,
}

impl Posts {
    pub(super) fn has_room(&self) -> bool {
        self.ops.borrow().len() < DEPTH
    }

    pub(super) fn add(
        &self,
        state: &mut State,
        (rank, peer): (u32, u32),
        (key, remote): (&RemoteKey, u64),
        post: Post,
        ticket: Option<u64>,
    ) -> Result<()> {
        state.check(rank, peer)?;
        if !self.has_room() {
            return Err(Error::NoResource);
        }
        let number = self.posted.get();
        self.posted.set(number + 1);
        let mut data = Vec::new();
        let outcome = perform(state, peer, key, remote, &post, &mut data);
        self.ops.borrow_mut().push_back(Op { number, peer, ticket, outcome, data });
        self.turns.set(2);
        Ok(())
    }

    /// Takes a place for a message, which the network carries; the ticket comes back as that of an operation.
    pub(super) fn note(&self, peer: u32, ticket: u64) -> Result<()> {
        if !self.has_room() {
            return Err(Error::NoResource);
        }
        let number = self.posted.get();
        self.posted.set(number + 1);
        let op = Op { number, peer, ticket: Some(ticket), outcome: Ok(()), data: Vec::new() };
        self.ops.borrow_mut().push_back(op);
        self.turns.set(2);
        Ok(())
    }

    /// Whether something is under way.
    pub(super) fn under_way(&self) -> bool {
        !self.ops.borrow().is_empty()
    }

    /// Operations posted so far.
    pub(super) fn posted(&self) -> u32 {
        self.posted.get()
    }

    /// Whether none of the first `count` that went to `peer` is under way.
    pub(super) fn done(&self, peer: u32, count: u32) -> bool {
        !self.ops.borrow().iter().any(|op| op.peer == peer && op.number < count)
    }

    /// Tells of what was posted a while ago.
    pub(super) fn complete(&self, sink: &mut dyn FnMut(Completed<'_>)) -> usize {
        if self.turns.replace(self.turns.get().saturating_sub(1)) > 0 {
            // Something is under way: nobody sleeps now.
            return usize::from(!self.ops.borrow().is_empty());
        }
        let ops = std::mem::take(&mut *self.ops.borrow_mut());
        let count = ops.len();
        for op in ops {
            if let Some(ticket) = op.ticket {
                sink(Completed { ticket, outcome: op.outcome, data: &op.data });
            }
        }
        count
    }
}

fn perform(state: &mut State, peer: u32, key: &RemoteKey, remote: u64, post: &Post, data: &mut Vec<u8>) -> Result<()> {
    let len = match post {
        Post::Put(bytes) => bytes.len(),
        Post::Fetch(len) => *len,
        Post::Pieces(_, pieces) => pieces.iter().map(|piece| piece.len).sum(),
        Post::Atomic(atomic) => atomic.width as usize,
    };
    check_key(key, peer)?;
    let at = state.cards[peer as usize].registry.resolve(key.id, remote, len)?;
    let mut offset = 0;
    // SAFETY: registered memory of this process, as just resolved; the pieces are the user's, by the word given to
    // the wire.
    unsafe {
        match post {
            Post::Put(bytes) => copy(at, bytes.as_ptr(), len),
            Post::Fetch(_) => {
                data.resize(len, 0);
                copy(data.as_mut_ptr(), at, len);
            }
            Post::Pieces(Direction::Put, pieces) => {
                for piece in pieces {
                    copy(at.add(offset), piece.pointer, piece.len);
                    offset += piece.len;
                }
            }
            Post::Pieces(Direction::Get, pieces) => {
                for piece in pieces {
                    copy(piece.pointer, at.add(offset), piece.len);
                    offset += piece.len;
                }
            }
            Post::Atomic(atomic) => data.extend_from_slice(&atomic.perform(at).to_le_bytes()),
        }
    }
    state.announce(peer);
    Ok(())
}
