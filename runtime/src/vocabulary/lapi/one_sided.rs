//! Put, get and atomic operations: one-sided if this task can reach the memory of the target, else by messages that need no header handler.
//!
//! | memory of the target | put | get | atomic operation |
//! | --- | --- | --- | --- |
//! | mapped here: symmetric static data, symmetric heap | a copy | a copy | the processor's |
//! | any other, on the same node | above 8 KiB cross-memory attach | above 2 KiB cross-memory attach | a message |
//! | registered with a network that needs no progress at the target | above 8 KiB the network's put | above 8 KiB the network's get | a message |
//!
//! In these cases a message without data moves the counter of the target, if there is one, after the data. Everything else goes by message:
//! a get is a request that its target answers with a put, and the thread that makes progress at the target does an atomic operation.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::domain::{Domain, Undo};
use super::event::{Event, happen_at_once};
use super::failure::What;
use super::port::{self, Entered};
use super::raw::{MAX_MSG_SZ, rmw_op};
use super::send::{EAGER, Keep, Message, bad_address, check_counter, check_may_send, is_nowhere, send};
use super::types::Handle;
use super::{Counter, codes, kind, own};

/// Gets of more bytes use cross-memory attach, on the same node. Chosen: its system call takes as long as some round trips of messages, but
/// needs no progress at the target.
const ATTACH: usize = 2 << 10;

/// The data that a put or a get moves.
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
    completion: Event,
) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, transfer.to)?;
    transfer.check(&domain)?;
    check_counter(What::Put, transfer.to, target as u64)?;
    // SAFETY: the caller's guarantees are the same.
    match unsafe { put_there(&domain, transfer) }? {
        Some(at_once) => {
            let tell = Tell { to: transfer.to, at_once, target, origin, completion };
            // SAFETY: as above.
            unsafe { tell.send(handle, domain) }
        }
        // SAFETY: as above.
        None => unsafe { put_message(handle, domain, transfer, (target, origin, completion)) },
    }
}

/// # Safety
/// As [`put`](super::raw::put).
unsafe fn put_message(
    handle: Handle,
    domain: Entered,
    transfer: Transfer,
    (target, origin, completion): (usize, Event, Event),
) -> Result<(), i32> {
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

/// Puts the data without the target's help, if it can. `Some(true)`: the data is in effect there. `Some(false)`: it takes effect before any
/// message that is sent there from now on. `None`: a message must carry the data.
///
/// # Errors
/// [`codes::BAD_ADDRESS`], [`codes::PEER_LOST`]: nothing was done.
///
/// # Safety
/// As [`put`](super::raw::put).
#[inline(always)]
unsafe fn put_there(domain: &Entered, transfer: Transfer) -> Result<Option<bool>, i32> {
    let Transfer { to, len, target, origin } = transfer;
    let (to, len) = (to as usize, len as usize);
    if len == 0 {
        return Ok(None);
    }
    if let Some(place) = domain.world.mapped(to, target, len) {
        // SAFETY: mapped memory of that length; the caller guarantees the source, and that the target may be written. They may
        // overlap at this task.
        unsafe { copy(place, origin as *const u8, len) };
        return Ok(Some(true));
    }
    if is_nowhere(target as u64, len as u64) {
        return Err(bad_address(What::Put, transfer.to, target as u64));
    }
    if len <= EAGER {
        return Ok(None);
    }
    // SAFETY: the caller guarantees it.
    let source = unsafe { std::slice::from_raw_parts(origin as *const u8, len) };
    // SAFETY: the caller guarantees that the target may be written.
    let put = unsafe { domain.world.put_one_sided(to, target, source) }
        .map_err(|error| codes::of_error_of(What::Put, &error))?;
    if put == Some(false) {
        domain.traffic.note_put(to);
    }
    Ok(put)
}

/// # Safety
/// `to` is valid for writing `len` bytes, `from` for reading them.
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller guarantees it.
    unsafe {
        match len {
            8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
            _ => std::ptr::copy(from, to, len),
        }
    }
}

/// The counters that move when a transfer without a message is done.
struct Tell {
    to: u32,
    /// Whether the data is in effect already.
    at_once: bool,
    target: usize,
    origin: Event,
    completion: Event,
}

impl Tell {
    /// Moves the counters of this task, and sends a message for the target's counter. If the data may be in flight and a completion event
    /// waits for it, the answer to such a message shows that the data is in effect.
    ///
    /// # Errors
    /// Those of [`send`]. Then no counter has moved.
    ///
    /// # Safety
    /// The counters are null or valid, the target's there.
    #[inline(always)]
    unsafe fn send(self, handle: Handle, domain: Entered) -> Result<(), i32> {
        let Tell { to, at_once, target, origin, completion } = self;
        if target == 0 && (at_once || completion == Event::NONE) {
            domain.done.sends.set(domain.done.sends.get() + 1);
            // SAFETY: the caller guarantees that they are null or valid.
            unsafe {
                domain.happen(completion, to as usize);
                happen_at_once(handle, origin, to as usize);
            }
            return Ok(());
        }
        let nothing = Transfer { to, len: 0, target: 0, origin: 0 };
        // SAFETY: a put of nothing; the caller's guarantees are the same.
        unsafe { put_message(handle, domain, nothing, (target, origin, completion)) }
    }
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
        completion: Event::NONE,
    }
}

/// Sends a request, which the target answers.
///
/// # Errors
/// Those of [`send`]. Then nothing was sent. The same holds if a handler panics while this waits for room.
///
/// # Safety
/// As [`send`].
pub(super) unsafe fn ask(handle: Handle, domain: Entered, message: Message, keep: Keep) -> Result<(), i32> {
    // Count the request before it is sent: waiting for room makes progress, and a fence of another thread may begin.
    let to = message.to as usize;
    domain.owed.ask(to);
    let unasked = Undo(handle, |domain| domain.owed.answered(to));
    // SAFETY: the caller's guarantees are the same.
    unsafe { send(handle, domain, message, keep) }?;
    std::mem::forget(unasked);
    Ok(())
}

/// # Safety
/// As [`get`](super::raw::get).
pub(super) unsafe fn get(handle: Handle, transfer: Transfer, target: usize, origin: Event) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, transfer.to)?;
    transfer.check(&domain)?;
    check_counter(What::Get, transfer.to, target as u64)?;
    let Transfer { to, len, target: from, origin: place } = transfer;
    // SAFETY: the caller's guarantees are the same.
    if unsafe { get_here(&domain, transfer) }? {
        let tell = Tell { to, at_once: true, target, origin, completion: Event::NONE };
        // SAFETY: as above.
        return unsafe { tell.send(handle, domain) };
    }
    let words = [from as u64, len, place as u64, origin.word(), target as u64];
    // SAFETY: a message without data and counters; the words are valid during the call.
    unsafe { ask(handle, domain, request(to, own::GET, &words), None) }
}

/// Gets the data without the target's help, if it can. Returns whether the data is here.
///
/// # Errors
/// As [`put_there`].
///
/// # Safety
/// As [`get`](super::raw::get).
unsafe fn get_here(domain: &Entered, transfer: Transfer) -> Result<bool, i32> {
    let Transfer { to, len, target, origin } = transfer;
    let (to, len) = (to as usize, len as usize);
    if len == 0 {
        return Ok(false);
    }
    if let Some(place) = domain.world.mapped(to, target, len) {
        // SAFETY: mapped memory of that length; the caller guarantees the place here. They may overlap at this task.
        unsafe { copy(origin as *mut u8, place, len) };
        // The copy must be done before the target's counter says that the memory there may be changed.
        fence(Ordering::SeqCst);
        return Ok(true);
    }
    if is_nowhere(target as u64, len as u64) {
        return Err(bad_address(What::Get, transfer.to, target as u64));
    }
    let least = if domain.world.is_mapped(to) { ATTACH } else { EAGER };
    if len <= least {
        return Ok(false);
    }
    // SAFETY: the caller guarantees the place, which nobody else touches.
    let place = unsafe { std::slice::from_raw_parts_mut(origin as *mut u8, len) };
    // SAFETY: the caller guarantees that the target may be read.
    unsafe { domain.world.get_one_sided(to, target, place) }.map_err(|error| codes::of_error_of(What::Get, &error))
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
/// As [`rmw`](super::raw::rmw) for a size of 4, and as [`rmw64`](super::raw::rmw64) for 8; this refuses any other size.
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
    if let Some(variable) = domain.world.mapped(to as usize, variable, size) {
        // SAFETY: mapped, and aligned as its address at the target is; the caller guarantees that it is changed atomically only.
        let found = unsafe { change_word(op, size as u64, variable, [first, second]) };
        domain.world.engine().wake_if_asleep(to as usize);
        // SAFETY: the caller guarantees both.
        unsafe {
            store_result(found, size as u64, result as u64);
            happen_at_once(handle, origin, to as usize);
        }
        return Ok(());
    }
    if is_nowhere(variable as u64, size as u64) {
        return Err(bad_address(What::Rmw, to, variable as u64));
    }
    let what = (op as u64) << 8 | size as u64;
    let words = [what, variable as u64, first, second, result as u64, origin.word()];
    // SAFETY: as for `get`: a message without data and counters; the words are valid during the call.
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
            completion: Event::NONE,
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
        // SAFETY: the caller guarantees it.
        let found = unsafe { change_word(op, size, variable as *mut u8, [first, second]) };
        self.tell(to, kind::CHANGED, &[found, size, result, origin]);
    }

    /// Takes the answer to an atomic operation.
    ///
    /// # Safety
    /// Result and counter are those that this task gave.
    pub(super) unsafe fn changed(&self, from: usize, [found, size, result, origin]: [u64; 4]) {
        // Count the answer first: the function of the event may panic.
        self.owed.answered(from);
        // SAFETY: the caller of `rmw` guarantees that both are null or valid until the counter has moved.
        unsafe {
            store_result(found, size, result);
            self.happen(Event::from_word(origin), from);
        }
    }
}

/// Stores the result of an atomic operation.
///
/// # Safety
/// Its place is null or valid.
unsafe fn store_result(found: u64, size: u64, result: u64) {
    // SAFETY: the caller guarantees it.
    unsafe {
        match size {
            _ if result == 0 => {}
            4 => (result as *mut u32).write(found as u32),
            _ => (result as *mut u64).write(found),
        }
    }
}

/// Does an atomic operation; its result.
///
/// # Safety
/// The variable is valid and aligned, and changed atomically only.
unsafe fn change_word(op: i32, size: u64, variable: *mut u8, [first, second]: [u64; 2]) -> u64 {
    match size {
        4 => {
            // SAFETY: the caller guarantees it.
            let variable = unsafe { AtomicU32::from_ptr(variable.cast()) };
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
            let variable = unsafe { AtomicU64::from_ptr(variable.cast()) };
            match op {
                rmw_op::FETCH_AND_ADD => variable.fetch_add(first, Ordering::AcqRel),
                rmw_op::FETCH_AND_OR => variable.fetch_or(first, Ordering::AcqRel),
                rmw_op::SWAP => variable.swap(first, Ordering::AcqRel),
                _ => variable.compare_exchange(first, second, Ordering::AcqRel, Ordering::Acquire).is_ok().into(),
            }
        }
    }
}
