//! Gets and atomics over a network that are under way while their asker does something else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::far::{Answer, Asked};
use crate::error::Result;

/// Requests of one get that are under way at a time, at most; the rest of a long one is asked for as these are answered.
const WINDOW: usize = 16;

/// A get of bytes of another rank's slot, in as many requests as the network needs.
#[derive(Debug)]
pub(crate) struct FarGet {
    rank: usize,
    offset: usize,
    bytes: Vec<u8>,
    /// Where the bytes begin that nothing was asked for yet.
    asked: usize,
    /// First byte, length, and the answer; none, where there was no room to ask again.
    pieces: Vec<(usize, usize, Option<Arc<Answer>>)>,
}

impl FarGet {
    /// Of `len` bytes at `offset` of the slot of `rank`. Nothing is asked for yet.
    pub(crate) fn new(rank: usize, offset: usize, len: usize) -> FarGet {
        FarGet { rank, offset, bytes: vec![0; len], asked: 0, pieces: Vec::new() }
    }

    /// Asks for what there is room for, takes what has come, and gives it when that is all.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub(crate) fn advance(&mut self, engine: &Engine, doing: &'static str) -> Result<Option<Vec<u8>>> {
        let far = engine.far().expect("only made for a network");
        let step = far.largest_get();
        while self.asked < self.bytes.len() && self.pieces.len() < WINDOW {
            let len = step.min(self.bytes.len() - self.asked);
            self.pieces.push((self.asked, len, None));
            self.asked += len;
        }
        let mut at = 0;
        while at < self.pieces.len() {
            let (start, len, answer) = &mut self.pieces[at];
            if answer.is_none() {
                let (offset, len) = (self.offset + *start, *len);
                *answer = engine.try_ask(doing, self.rank, || far.get(self.rank, offset, len))?;
            }
            let Some(answer) = answer else { break };
            if !engine.answered(doing, self.rank, answer)? {
                at += 1;
                continue;
            }
            let came = answer.bytes().expect("data comes before its completion");
            self.bytes[*start..*start + came.len()].copy_from_slice(came);
            if came.len() == *len {
                self.pieces.swap_remove(at);
            } else {
                // A registration ended there.
                (*start, *len) = (*start + came.len(), *len - came.len());
                self.pieces[at].2 = None;
            }
        }
        let done = self.pieces.is_empty() && self.asked == self.bytes.len();
        Ok(done.then(|| std::mem::take(&mut self.bytes)))
    }
}

/// An atomic on a word of another rank's slot.
#[derive(Debug)]
pub(crate) struct FarAtomic {
    rank: usize,
    offset: usize,
    asked: Asked,
    answer: Option<Arc<Answer>>,
}

impl FarAtomic {
    /// At `offset` of the slot of `rank`. Nothing is asked yet.
    pub(crate) fn new(rank: usize, offset: usize, asked: Asked) -> FarAtomic {
        FarAtomic { rank, offset, asked, answer: None }
    }

    /// Asks, if there is room, and gives the word's former value when it has come.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub(crate) fn advance(&mut self, engine: &Engine, doing: &'static str) -> Result<Option<u64>> {
        let far = engine.far().expect("only made for a network");
        if self.answer.is_none() {
            self.answer = engine.try_ask(doing, self.rank, || far.atomic(self.rank, self.offset, self.asked))?;
        }
        match &self.answer {
            Some(answer) if engine.answered(doing, self.rank, answer)? => Ok(Some(answer.word.load(Ordering::Relaxed))),
            _ => Ok(None),
        }
    }
}
