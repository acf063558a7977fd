//! Registered buffers of an interface: those it receives into, and those it sends from.

use std::cell::RefCell;
use std::sync::Arc;

use rdma_core_sys::{ibv_sge, ibv_wc};

use super::errors::io;
use crate::transport::error::{Error, Result};
use crate::transport::verbs::nic::Nic;
use crate::transport::verbs::pool::Pool;
use crate::transport::verbs::queue::{GIVEN, Shared};

/// Bytes of a receive buffer, and of a small buffer to send from.
pub const FRAME: usize = 4096;
/// Bytes of a large buffer: of a packed put or get.
pub const LARGE_BYTES: usize = 64 << 10;
/// Marks the numbers of receive buffers among those of requests.
pub const RECEIVED: u64 = 1 << 63;
const SMALL: usize = 512;
const LARGE: usize = 32;

/// Receive buffers, which all peers share.
#[derive(Debug)]
pub struct ReceiveBuffers {
    frames: Pool,
    spent: Spent,
}

/// Buffers that were handled, and go back to the device several at a time.
#[derive(Debug)]
struct Spent(RefCell<Vec<u64>>);

impl Default for Spent {
    fn default() -> Spent {
        Spent(RefCell::new(Vec::with_capacity(GIVEN)))
    }
}

impl Spent {
    #[inline]
    fn add(&self, number: u64, give: impl FnOnce(&mut dyn Iterator<Item = u64>)) {
        let mut spent = self.0.borrow_mut();
        spent.push(number);
        if spent.len() == GIVEN {
            give(&mut spent.drain(..));
        }
    }
}

/// Gives buffers, by their numbers, to the device.
fn give(shared: &Shared, frames: &Pool, numbers: impl Iterator<Item = u64>) -> std::io::Result<()> {
    let place = |number| ibv_sge { addr: frames.at(number as u32) as u64, length: FRAME as u32, lkey: frames.key() };
    shared.post(numbers.map(|number| (number, place(number))))
}

impl ReceiveBuffers {
    /// `count` buffers, all given to `shared`.
    ///
    /// # Errors
    /// If memory cannot be had or registered, or the device refuses a buffer.
    pub fn new(nic: &Arc<Nic>, shared: &Shared, count: usize) -> Result<ReceiveBuffers> {
        let frames = Pool::new(nic, count, FRAME)?;
        for first in (0..count).step_by(GIVEN) {
            let numbers = first..count.min(first + GIVEN);
            give(shared, &frames, numbers.map(|number| RECEIVED | number as u64)).map_err(io)?;
        }
        Ok(ReceiveBuffers { frames, spent: Spent::default() })
    }

    /// The bytes of a frame that has arrived and is not handled yet.
    pub fn frame(&self, wc: &ibv_wc) -> &[u8] {
        let buffer = self.frames.at(wc.wr_id as u32);
        // SAFETY:
        // - `at` checks that the buffer is inside the pool; a buffer has FRAME bytes.
        // - The device has filled it, and does not touch it before it is given again.
        unsafe { std::slice::from_raw_parts(buffer, (wc.byte_len as usize).min(FRAME)) }
    }

    /// A buffer was handled: gives it to the device, with others.
    #[inline]
    pub fn offer(&self, shared: &Shared, number: u64) {
        // If the device refuses, fewer buffers only mean that senders wait sooner.
        self.spent.add(number, |numbers| drop(give(shared, &self.frames, numbers)));
    }
}

/// Buffers to send from, and to read into.
#[derive(Debug)]
pub struct SendBuffers {
    pub small: Pool,
    pub large: Pool,
}

impl SendBuffers {
    /// # Errors
    /// If memory cannot be had or registered.
    pub fn new(nic: &Arc<Nic>) -> Result<SendBuffers> {
        Ok(SendBuffers { small: Pool::new(nic, SMALL, FRAME)?, large: Pool::new(nic, LARGE, LARGE_BYTES)? })
    }

    /// The pool for a copy of `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::ExceedsLimit`]: no buffer has so many.
    pub fn for_copy(&self, bytes: usize) -> Result<&Pool> {
        if bytes > LARGE_BYTES {
            return Err(Error::ExceedsLimit { what: "a packed put", length: bytes, limit: LARGE_BYTES });
        }
        Ok(if bytes <= FRAME { &self.small } else { &self.large })
    }

    /// The word that an atomic has brought; its buffer is free afterwards.
    #[inline(always)]
    pub fn take_word(&self, small: u32) -> u64 {
        // SAFETY:
        // - `at` checks that the buffer is inside the pool; buffers are aligned to FRAME.
        // - The request is done, so the device no longer touches the buffer.
        let word = unsafe { self.small.at(small).cast::<u64>().read() };
        self.small.give_back(small);
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_go_back_several_at_a_time_and_each_once() {
        let spent = Spent::default();
        let mut given = Vec::new();
        for number in 0..3 * GIVEN as u64 + 5 {
            spent.add(number, |numbers| {
                let before = given.len();
                given.extend(numbers);
                assert_eq!(given.len() - before, GIVEN, "what one call of the device takes");
            });
        }
        assert!(given.into_iter().eq(0..3 * GIVEN as u64));
    }
}
