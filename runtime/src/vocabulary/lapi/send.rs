//! Sending active messages.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::arrive::lengths;
use super::domain::{Domain, MAX_UHDR_SZ, Running, wait_apart};
use super::event::{Event, happen_at_once};
use super::port::{self, Entered};
use super::raw::MAX_MSG_SZ;
use super::types::Handle;
use super::{Counter, codes, kind, own};
use crate::message::{Offer, id};

/// Data of up to this many bytes travels with its header. As for other large messages: below this a copy costs less than the round
/// trip.
pub(super) const EAGER: usize = 8 << 10;

/// What an active message is made of.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) to: u32,
    pub(super) handler: usize,
    pub(super) header: (*const u8, u32),
    pub(super) data: (*const u8, u64),
    pub(super) target: usize,
    pub(super) origin: Event,
    pub(super) completion: *const Counter,
}

/// Data that the target has not fetched.
pub(super) struct Outgoing {
    _offer: Offer,
    origin: Event,
    /// Declared after the offer, which is withdrawn first.
    _keep: Keep,
}

/// What lives until the data of a message was fetched: the data and the origin counter, where the message owns them.
pub(super) type Keep = Option<(Arc<Vec<u8>>, Option<Arc<Counter>>)>;

impl Message {
    pub(super) fn check(&self, domain: &Domain) -> Result<(), i32> {
        if self.to as usize >= domain.world.size() {
            return Err(codes::TGT);
        }
        if self.handler == 0 {
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
pub(super) fn check_may_send(domain: &Entered, to: u32) -> Result<(), i32> {
    if domain.purged.get(to as usize).is_some_and(Cell::get) {
        return Err(codes::TGT_PURGED);
    }
    if domain.is_nested() {
        match domain.running.get() {
            Running::Nothing | Running::Header | Running::Local => return Err(codes::IN_HANDLER),
            Running::Reply(source) if source != to as usize => return Err(codes::INVALID_SEND_REPLY_TGT),
            Running::Reply(_) => {}
        }
    }
    Ok(())
}

/// Sends an active message.
///
/// # Safety
/// As [`amsend`](super::raw::amsend).
pub(super) unsafe fn amsend(handle: Handle, message: Message) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, message.to)?;
    message.check(&domain)?;
    // The numbers of calls without a header handler are no addresses.
    if message.handler as u64 >= own::FIRST {
        return Err(codes::HDR_HNDLR_NULL);
    }
    // SAFETY: the caller's guarantees are the same.
    unsafe { send(handle, domain, message, None) }
}

/// # Safety
/// As [`amsend`](super::raw::amsend).
pub(super) unsafe fn send(handle: Handle, domain: Entered, message: Message, keep: Keep) -> Result<(), i32> {
    let to = message.to as usize;
    let (data, len) = message.data;
    // SAFETY: the caller guarantees that the user header is valid.
    let header = unsafe { bytes(message.header.0, message.header.1 as usize) };
    let largest = domain.world.engine().largest_message();
    if len <= EAGER as u64 && header.len() + len as usize + 64 <= largest {
        // SAFETY: as above, of the data.
        let data = unsafe { bytes(data, len as usize) };
        let words = [message.target as u64, message.completion as u64, lengths(header.len(), data.len())];
        let mut payload = SmallVec::<[u8; 128]>::new();
        payload.extend_from_slice(words.map(u64::to_ne_bytes).as_flattened());
        payload.extend_from_slice(header);
        payload.extend_from_slice(data);
        transmit(handle, domain, to, (id::LAPI, message.handler as u64), &payload, |_| {})?;
        // SAFETY: the caller guarantees that the counter is null or valid.
        unsafe { happen_at_once(handle, message.origin, to) };
        return Ok(());
    }
    // SAFETY: the caller guarantees that the data stays until the origin counter has moved, which `Outgoing` precedes.
    let offer = unsafe { domain.world.messages().offer(to, data, len as usize) };
    let number = domain.next_number();
    let words = [message.handler as u64, message.target as u64, message.completion as u64, len, number];
    let mut payload = words.map(u64::to_ne_bytes).as_flattened().to_vec();
    offer.encode(&mut payload);
    payload.extend_from_slice(header);
    let mut outgoing = Some(Outgoing { _offer: offer, origin: message.origin, _keep: keep });
    transmit(handle, domain, to, (id::LAPI_CONTROL, kind::ANNOUNCED), &payload, |domain| {
        // Before anything is received: the answer may be the next message.
        domain.outgoing.borrow_mut().extend(outgoing.take().map(|outgoing| (number, (to, outgoing))));
    })
}

/// Sends a message that counts. Waits for room, except in a handler: there the message is kept.
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
    pub(super) fn next_number(&self) -> u64 {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        number
    }

    /// The target has fetched the data of a message, or refused it.
    pub(super) fn fetched(&self, number: u64, moves: bool) {
        let outgoing = self.outgoing.borrow_mut().remove(&number);
        let Some((to, Outgoing { _offer: offer, origin, _keep })) = outgoing else { return };
        drop(offer);
        if moves {
            // SAFETY: the caller of `amsend` guarantees that the counter is null or valid until it has moved.
            unsafe { self.happen(origin, to) };
        } else {
            self.forget(origin);
        }
    }
}
