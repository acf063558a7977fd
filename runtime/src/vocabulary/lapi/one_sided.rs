//! Put, get and atomic operations, as messages that need no header handler.
//!
//! A get is a request that its target answers with a put; an atomic operation is done by the thread that makes progress at its target.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::domain::Domain;
use super::event::Event;
use super::port;
use super::raw::{MAX_MSG_SZ, rmw_op};
use super::send::{Keep, Message, check_may_send, send};
use super::types::Handle;
use super::{Counter, codes, kind, own};

/// What a put or a get moves.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    pub(super) to: u32,
    pub(super) len: u64,
    pub(super) target: usize,
    pub(super) origin: usize,
}

impl Transfer {
    fn check(&self, domain: &Domain) -> Result<(), i32> {
        if self.to as usize >= domain.world.size() {
            return Err(codes::TGT);
        }
        if self.len > MAX_MSG_SZ {
            return Err(codes::DATA_LEN);
        }
        match (self.origin, self.target) {
            _ if self.len == 0 => Ok(()),
            (0, _) => Err(codes::ORG_ADDR_NULL),
            (_, 0) => Err(codes::TGT_ADDR_NULL),
            _ => Ok(()),
        }
    }
}

/// # Safety
/// As [`put`](super::raw::put).
pub(super) unsafe fn put(
    handle: Handle,
    transfer: Transfer,
    target: usize,
    origin: Event,
    completion: *const Counter,
) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, transfer.to)?;
    transfer.check(&domain)?;
    let header = (transfer.target as u64).to_ne_bytes();
    let message = Message {
        to: transfer.to,
        handler: own::PUT as usize,
        header: (header.as_ptr(), header.len() as u32),
        data: (transfer.origin as *const u8, transfer.len),
        target,
        origin,
        completion,
    };
    // SAFETY: the caller's guarantees are the same; the header is valid during the call.
    unsafe { send(handle, domain, message, None) }
}

/// A message that asks task `to` for something.
fn request(to: u32, handler: u64, words: &[u64]) -> Message {
    Message {
        to,
        handler: handler as usize,
        header: (words.as_ptr().cast(), size_of_val(words) as u32),
        data: (std::ptr::null(), 0),
        target: 0,
        origin: Event::NONE,
        completion: std::ptr::null(),
    }
}

/// Asks for something that is answered.
///
/// # Errors
/// Those of [`send`]. Then nothing was sent.
///
/// # Safety
/// As [`send`].
pub(super) unsafe fn ask(handle: Handle, domain: port::Entered, message: Message, keep: Keep) -> Result<(), i32> {
    // Before it is sent: waiting for room makes progress, and a fence of another thread may begin.
    domain.unanswered.set(domain.unanswered.get() + 1);
    // SAFETY: the caller's guarantees are the same.
    unsafe { send(handle, domain, message, keep) }.inspect_err(|_| {
        if let Ok(domain) = port::enter(handle) {
            domain.unanswered.set(domain.unanswered.get() - 1);
        }
    })
}

/// # Safety
/// As [`get`](super::raw::get).
pub(super) unsafe fn get(handle: Handle, transfer: Transfer, target: usize, origin: Event) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, transfer.to)?;
    transfer.check(&domain)?;
    let Transfer { to, len, target: from, origin: place } = transfer;
    let words = [from as u64, len, place as u64, origin.word(), target as u64];
    // SAFETY: a message without data and counters; the words are valid during the call.
    unsafe { ask(handle, domain, request(to, own::GET, &words), None) }
}

/// An atomic operation.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) op: i32,
    pub(super) to: u32,
    pub(super) variable: usize,
    /// Bytes of the variable, and of each operand: 4 or 8.
    pub(super) size: usize,
    pub(super) result: usize,
    pub(super) origin: Event,
}

/// # Safety
/// As [`rmw`](super::raw::rmw) and [`rmw64`](super::raw::rmw64), by the size; another size is refused.
pub(super) unsafe fn rmw(handle: Handle, change: Change, operands: *const u8) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, change.to)?;
    let Change { op, to, variable, size, result, origin } = change;
    if !(rmw_op::FETCH_AND_ADD..=rmw_op::COMPARE_AND_SWAP).contains(&op) {
        return Err(codes::RMW_OP);
    }
    if to as usize >= domain.world.size() {
        return Err(codes::TGT);
    }
    if variable == 0 {
        return Err(codes::TGT_VAR_NULL);
    }
    if operands.is_null() {
        return Err(codes::IN_VAL_NULL);
    }
    if !matches!(size, 4 | 8) || !variable.is_multiple_of(size) {
        return Err(codes::OP_SZ);
    }
    let operand = |number: usize| {
        // SAFETY: the caller guarantees one operand, or two of a comparison.
        unsafe {
            match size {
                4 => u64::from(operands.cast::<u32>().add(number).read()),
                _ => operands.cast::<u64>().add(number).read(),
            }
        }
    };
    let (first, second) = (operand(0), if op == rmw_op::COMPARE_AND_SWAP { operand(1) } else { 0 });
    let what = (op as u64) << 8 | size as u64;
    let words = [what, variable as u64, first, second, result as u64, origin.word()];
    // SAFETY: as of a get.
    unsafe { ask(handle, domain, request(to, own::RMW, &words), None) }
}

impl Domain {
    /// Answers a get with a put.
    ///
    /// # Safety
    /// The memory may be read until the counter, null or valid, has moved.
    pub(super) unsafe fn answer_get(&self, to: usize, [from, len, place, origin, target]: [u64; 5]) {
        let header = place.to_ne_bytes();
        let message = Message {
            to: to as u32,
            handler: own::ANSWER as usize,
            header: (header.as_ptr(), header.len() as u32),
            data: (from as *const u8, len),
            target: origin as usize,
            origin: Event::counter(target as *const Counter),
            completion: std::ptr::null(),
        };
        self.send_inside(message);
    }

    /// Sends a message of a call without a header handler from inside a poll: it is kept if there is no room.
    pub(super) fn send_inside(&self, message: Message) {
        let sent = match port::enter(self.handle) {
            // SAFETY: the request that this answers guarantees the memory and the counters.
            Ok(domain) => unsafe { send(self.handle, domain, message, None) },
            Err(code) => Err(code),
        };
        if let Err(code) = sent {
            self.fault(code, message.to as usize);
        }
    }

    /// Does an atomic operation, and answers.
    ///
    /// # Safety
    /// The variable is valid and aligned, and changed atomically only.
    pub(super) unsafe fn answer_rmw(&self, to: usize, request: [u64; 6]) {
        let [what, variable, first, second, result, origin] = request;
        let (op, size) = ((what >> 8) as i32, what & 0xFF);
        let found = match size {
            4 => {
                // SAFETY: the caller guarantees it.
                let variable = unsafe { AtomicU32::from_ptr(variable as *mut u32) };
                let (first, second) = (first as u32, second as u32);
                u64::from(match op {
                    rmw_op::FETCH_AND_ADD => variable.fetch_add(first, Ordering::AcqRel),
                    rmw_op::FETCH_AND_OR => variable.fetch_or(first, Ordering::AcqRel),
                    rmw_op::SWAP => variable.swap(first, Ordering::AcqRel),
                    _ => variable.compare_exchange(first, second, Ordering::AcqRel, Ordering::Acquire).is_ok().into(),
                })
            }
            _ => {
                // SAFETY: the caller guarantees it.
                let variable = unsafe { AtomicU64::from_ptr(variable as *mut u64) };
                match op {
                    rmw_op::FETCH_AND_ADD => variable.fetch_add(first, Ordering::AcqRel),
                    rmw_op::FETCH_AND_OR => variable.fetch_or(first, Ordering::AcqRel),
                    rmw_op::SWAP => variable.swap(first, Ordering::AcqRel),
                    _ => variable.compare_exchange(first, second, Ordering::AcqRel, Ordering::Acquire).is_ok().into(),
                }
            }
        };
        self.tell(to, kind::CHANGED, &[found, size, result, origin]);
    }

    /// Takes the answer to an atomic operation.
    ///
    /// # Safety
    /// Result and counter are those that this task gave.
    pub(super) unsafe fn changed(&self, from: usize, [found, size, result, origin]: [u64; 4]) {
        // SAFETY: the caller of `rmw` guarantees that both are null or valid until the counter has moved.
        unsafe {
            match size {
                _ if result == 0 => {}
                4 => (result as *mut u32).write(found as u32),
                _ => (result as *mut u64).write(found),
            }
            self.happen(Event::from_word(origin), from);
        }
        self.unanswered.set(self.unanswered.get() - 1);
    }
}
