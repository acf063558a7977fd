//! Sending active messages.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::arrive::lengths;
use super::domain::{Domain, LOC_ADDRTBL_SZ, MAX_UHDR_SZ, Running, wait_apart};
use super::event::{Event, happen_at_once};
use super::failure::{Failure, What};
use super::port::{self, Entered};
use super::raw::MAX_MSG_SZ;
use super::types::Handle;
use super::{Counter, codes, kind, own};

use crate::message::{LINE_WORDS, Offer, id};

/// Data of up to this many bytes travels with its header. The limit is that of other large messages: below it a copy costs less than the
/// round trip.
pub(super) const EAGER: usize = 8 << 10;

/// Most bytes of a message besides user header and data.
const AROUND: usize = 64;
/// Words before the user header of a message with its data.
const HEAD: usize = 3;
/// Most bytes of user header and data of a message that fits in a cache line. Such a message always carries this many.
pub(super) const LINE: usize = 8 * (LINE_WORDS - HEAD);

/// The parts of an active message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) to: u32,
    pub(super) handler: usize,
    pub(super) header: (*const u8, u32),
    pub(super) data: (*const u8, u64),
    pub(super) target: usize,
    pub(super) origin: Event,
    pub(super) completion: Event,
}

/// Data that the target has not fetched.
pub(super) struct Outgoing {
    _offer: Offer,
    origin: Event,
    /// Declared after the offer, so that the offer is withdrawn first.
    _keep: Keep,
}

/// The values that must live until the data of a message has been fetched: the data and the origin counter, if the message owns them.
pub(super) type Keep = Option<(Arc<Vec<u8>>, Option<Arc<Counter>>)>;

impl Message {
    /// Whether the target answers this message with the increment of a counter. The parts of a vector get one answer together: see
    /// [`put_vectors`](super::vectors::put_vectors).
    #[inline(always)]
    fn is_answered(&self) -> bool {
        self.completion.is_counter() && !matches!(self.handler as u64, own::PART | own::PARTS)
    }

    #[inline(always)]
    pub(super) fn check(&self, domain: &Domain) -> Result<(), i32> {
        if self.to as usize >= domain.world.size() {
            return Err(codes::TGT);
        }
        if self.handler == 0 || self.handler >= LOC_ADDRTBL_SZ && is_no_function(self.handler as u64) {
            return Err(codes::HDR_HNDLR_NULL);
        }
        let (header, header_len) = self.header;
        if header.is_null() && header_len != 0 {
            return Err(codes::UHDR_NULL);
        }
        if !header_len.is_multiple_of(4) || header_len as usize > MAX_UHDR_SZ {
            return Err(codes::UHDR_LEN);
        }
        let (data, len) = self.data;
        if len > MAX_MSG_SZ {
            return Err(codes::DATA_LEN);
        }
        if data.is_null() && len != 0 {
            return Err(codes::ORG_ADDR_NULL);
        }
        Ok(())
    }
}

/// # Safety
/// `start` is valid for reading `len` bytes as long as the slice lives, or `len` is 0.
unsafe fn bytes<'a>(start: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller guarantees it.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

/// # Errors
/// If the target is purged, or in a handler that may not send there.
#[inline(always)]
pub(super) fn check_may_send(domain: &Entered, to: u32) -> Result<(), i32> {
    if domain.purged.get(to as usize).is_some_and(Cell::get) {
        return Err(codes::TGT_PURGED);
    }
    if domain.is_nested() {
        return check_reply(domain, to);
    }
    Ok(())
}

#[cold]
fn check_reply(domain: &Domain, to: u32) -> Result<(), i32> {
    match domain.running.get() {
        Running::Nothing | Running::Header | Running::Local => Err(codes::IN_HANDLER),
        Running::Reply(source) if source != to as usize => Err(codes::INVALID_SEND_REPLY_TGT),
        Running::Reply(_) => Ok(()),
    }
}

/// No task has memory below this address.
const LEAST_ADDRESS: u64 = 4096;
/// No task has memory from this address on: x86-64 leaves at most 56 bits to programs, other processors may ignore the highest bits.
const END_OF_MEMORY: u64 = if cfg!(target_arch = "x86_64") { 1 << 56 } else { u64::MAX };

/// Whether no task has memory at an address. For all other addresses only the task itself can tell.
#[inline(always)]
pub(super) fn is_nowhere(address: u64, len: u64) -> bool {
    address < LEAST_ADDRESS || address.saturating_add(len) > END_OF_MEMORY
}

/// No task has a function from this address on: the numbers of calls without a header handler are no addresses.
const END_OF_FUNCTIONS: u64 = if END_OF_MEMORY < own::FIRST { END_OF_MEMORY } else { own::FIRST };

/// Whether no task has a function at an address.
#[inline(always)]
pub(super) fn is_no_function(address: u64) -> bool {
    !(LEAST_ADDRESS..END_OF_FUNCTIONS).contains(&address)
}

/// # Errors
/// [`codes::BAD_ADDRESS`] if no task has a counter at this address, which may be 0.
#[inline(always)]
pub(super) fn check_counter(what: What, to: u32, address: u64) -> Result<(), i32> {
    if address != 0 && (is_nowhere(address, 4) || address & 3 != 0) {
        Err(bad_address(what, to, address))
    } else {
        Ok(())
    }
}

/// The code of a call that names an address where task `to` has no memory.
#[cold]
pub(super) fn bad_address(what: What, to: u32, address: u64) -> i32 {
    let text = format!("the call names address {address:#x} of task {to}, where no task can have memory");
    Failure { code: codes::BAD_ADDRESS, what, task: Some(to as usize), text }.keep()
}

/// Enters the port to send a message with a header handler.
///
/// # Errors
/// What is wrong with the message; as [`check_may_send`].
#[inline(always)]
pub(super) fn enter_to_send(handle: Handle, message: &Message) -> Result<Entered, i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, message.to)?;
    message.check(&domain)?;
    check_counter(What::Message, message.to, message.target as u64)?;
    Ok(domain)
}

/// Sends an active message.
///
/// # Safety
/// As [`amsend`](super::raw::amsend).
#[inline(always)]
pub(super) unsafe fn amsend(handle: Handle, message: Message) -> Result<(), i32> {
    let domain = enter_to_send(handle, &message)?;
    // SAFETY: the caller's guarantees are the same.
    unsafe { send(handle, domain, message, None) }
}

/// # Safety
/// As [`amsend`](super::raw::amsend).
#[inline(always)]
pub(super) unsafe fn send(handle: Handle, domain: Entered, message: Message, keep: Keep) -> Result<(), i32> {
    if message.data.1.saturating_add(message.header.1.into()) > LINE as u64 {
        // SAFETY: the caller's guarantees are the same.
        return unsafe { send_long(handle, domain, message, keep) };
    }
    let to = message.to as usize;
    // SAFETY: the caller guarantees that header and data are valid; together they fit.
    if domain.world.engine().send_words_at_once(to, id::LAPI, message.handler as u64, unsafe { line(&message) }) {
        domain.traffic.count_sent(to);
        domain.expect_answer(&message);
    } else {
        let copy = message;
        // SAFETY: as above.
        unsafe { transmit_line(handle, domain, &copy) }?;
    }
    // SAFETY: the caller guarantees that the counter is null or valid.
    unsafe { happen_at_once(handle, message.origin, to) };
    Ok(())
}

/// Sends a message that fits in a cache line after it could not be sent at once. It builds the line again: if it shared
/// one line in memory with the fast path, the fast path would load words that were just stored in parts of another size.
///
/// # Safety
/// As [`line`].
#[cold]
#[inline(never)]
unsafe fn transmit_line(handle: Handle, domain: Entered, message: &Message) -> Result<(), i32> {
    // SAFETY: the caller's guarantees are the same.
    let payload = unsafe { line(message) }.map(u64::to_ne_bytes);
    let (to, handler) = (message.to as usize, message.handler as u64);
    transmit(handle, domain, to, (id::LAPI, handler), payload.as_flattened(), |domain| domain.expect_answer(message))
}

/// The words of a message that fits in a cache line, without the header handler.
///
/// # Safety
/// User header and data, [`LINE`] bytes at most, are valid for reading.
#[inline(always)]
unsafe fn line(message: &Message) -> [u64; LINE_WORDS] {
    let (header, data) = ((message.header.0, message.header.1 as usize), (message.data.0, message.data.1 as usize));
    // SAFETY: the caller's guarantees are the same.
    let body = unsafe { words_of(header, data) };
    let [target, completion, lengths] = head(message);
    [target, completion, lengths, body[0], body[1], body[2]]
}

/// User header and data, one after the other, as words. They are [`LINE`] bytes at most.
///
/// # Safety
/// Both are valid for reading so many bytes.
#[inline(always)]
unsafe fn words_of((header, header_len): (*const u8, usize), (data, len): (*const u8, usize)) -> [u64; LINE / 8] {
    // Load and store a whole word: the load of a word that was stored in parts would wait until the line of the previous message has left
    // the store buffer.
    if header_len == 0 && len == 8 {
        // SAFETY: the caller guarantees a word.
        return [unsafe { data.cast::<u64>().read_unaligned() }, 0, 0];
    }
    if header_len + len == 0 {
        return [0; LINE / 8];
    }
    let mut words = [0; LINE / 8];
    let place = words.as_mut_ptr().cast::<u8>();
    // SAFETY: both fit there; the caller guarantees that they are valid.
    unsafe {
        place.copy_from_nonoverlapping(header, header_len);
        place.add(header_len).copy_from_nonoverlapping(data, len);
    }
    words
}

/// The words before the user header of a message that carries its data.
#[inline(always)]
fn head(message: &Message) -> [u64; HEAD] {
    let lengths = lengths(message.header.1 as usize, message.data.1 as usize);
    [message.target as u64, message.completion.word(), lengths]
}

/// Sends a message that does not fit in a cache line.
///
/// # Safety
/// As [`amsend`](super::raw::amsend).
#[inline(never)]
unsafe fn send_long(handle: Handle, domain: Entered, message: Message, keep: Keep) -> Result<(), i32> {
    let to = message.to as usize;
    let (data, len) = message.data;
    // SAFETY: the caller guarantees that the user header is valid.
    let header = unsafe { bytes(message.header.0, message.header.1 as usize) };
    let largest = domain.world.engine().largest_message();
    if len <= EAGER as u64 && header.len() + len as usize + AROUND <= largest {
        // SAFETY: as above, of the data.
        let data = unsafe { bytes(data, len as usize) };
        let mut payload = SmallVec::<[u8; 256]>::new();
        payload.try_reserve_exact(8 * HEAD + header.len() + data.len()).map_err(|_| codes::MEMORY_EXHAUSTED)?;
        payload.extend_from_slice(head(&message).map(u64::to_ne_bytes).as_flattened());
        payload.extend_from_slice(header);
        payload.extend_from_slice(data);
        let header = (id::LAPI, message.handler as u64);
        transmit(handle, domain, to, header, &payload, |domain| domain.expect_answer(&message))?;
        // SAFETY: the caller guarantees that the counter is null or valid.
        unsafe { happen_at_once(handle, message.origin, to) };
        return Ok(());
    }
    // SAFETY: the caller guarantees the data until the origin counter has moved; `fetched` drops the offer before that.
    let offer = unsafe { domain.world.messages().offer(to, data, len as usize) };
    let number = domain.next_number();
    let words = [message.handler as u64, message.target as u64, message.completion.word(), len, number];
    let mut payload = words.map(u64::to_ne_bytes).as_flattened().to_vec();
    offer.encode(&mut payload);
    payload.extend_from_slice(header);
    let mut outgoing = Some(Outgoing { _offer: offer, origin: message.origin, _keep: keep });
    transmit(handle, domain, to, (id::LAPI_CONTROL, kind::ANNOUNCED), &payload, |domain| {
        // Keep it before anything is received: the answer may be the next message.
        domain.transfers.outgoing.borrow_mut().extend(outgoing.take().map(|outgoing| (number, (to, outgoing))));
        domain.expect_answer(&message);
    })
}

/// Sends a message that fences count. Waits for room, except in a handler: there a message that finds no room is kept.
///
/// # Errors
/// Those of [`wait_apart`]. Then nothing was sent.
fn transmit(
    handle: Handle,
    domain: Entered,
    to: usize,
    (id, header): (u8, u64),
    payload: &[u8],
    sent: impl FnOnce(&Domain),
) -> Result<(), i32> {
    let messages = domain.world.messages();
    let mut sent = Some(sent);
    let mut count = |domain: &Domain| {
        domain.traffic.count_sent(to);
        if let Some(sent) = sent.take() {
            sent(domain);
        }
    };
    match messages.try_send(to, id, header, payload) {
        Ok(true) => {
            count(&domain);
            return Ok(());
        }
        Ok(false) => {}
        Err(error) => return Err(codes::of_error(&error)),
    }
    if domain.is_nested() {
        let kept = domain.world.engine().send_or_keep(to, id, header, payload);
        return kept.map(|()| count(&domain)).map_err(|error| codes::of_error(&error));
    }
    drop(domain);
    wait_apart(handle, "waiting for room to send a message", |domain| {
        if domain.purged[to].get() {
            return Some(Err(codes::TGT_PURGED));
        }
        match domain.world.messages().try_send(to, id, header, payload) {
            Ok(true) => {
                count(domain);
                Some(Ok(()))
            }
            Ok(false) => None,
            Err(error) => Some(Err(codes::of_error(&error))),
        }
    })?
}

impl Domain {
    /// Notes the answer that the target of a sent message owes this task.
    #[inline(always)]
    fn expect_answer(&self, message: &Message) {
        if message.is_answered() {
            self.owed.expect(message.to as usize);
        }
    }

    /// Data of up to this many bytes travels with a user header of any length.
    pub(super) fn packet(&self) -> usize {
        EAGER.min(self.world.engine().largest_message().saturating_sub(AROUND + MAX_UHDR_SZ))
    }

    pub(super) fn next_number(&self) -> u64 {
        let number = self.transfers.numbers.get();
        self.transfers.numbers.set(number + 1);
        number
    }

    /// The target has fetched the data of a message, or refused it.
    pub(super) fn fetched(&self, number: u64, outcome: Result<(), i32>) {
        let outgoing = self.transfers.outgoing.borrow_mut().remove(&number);
        let Some((to, Outgoing { _offer: offer, origin, _keep })) = outgoing else { return };
        drop(offer);
        match outcome {
            // SAFETY: the caller of `amsend` guarantees that the counter is null or valid until it has moved.
            Ok(()) => unsafe { self.happen(origin, to) },
            Err(code) => self.fail_event(origin, code, to),
        }
    }
}
