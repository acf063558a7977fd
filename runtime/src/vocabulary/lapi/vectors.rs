//! Vectors: `Putv`, `Getv` and `Amsendv`.
//!
//! Data travels in parts: runs of bytes that end where a place of either side ends. Short parts of a transfer are packed into messages of
//! up to 8 KiB. A longer part is a message of its own, and is fetched to its place in one copy. The parts of a transfer are a group, which
//! is done when all its bytes are in place. A `Putv` sends parts. A `Getv` asks for them: the target sends them as a `Putv` does. An
//! `Amsendv` tells the target its places, and carries its data if that is short. Otherwise the target asks for the parts once its header
//! handler has named the places there.

use std::collections::{TryReserveError, VecDeque};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use super::arrive::words;
use super::calls;
use super::domain::{Domain, LOC_ADDRTBL_SZ, MAX_UHDR_SZ, Running, Undo};
use super::event::{Deferred, Event, happen_at_once};
use super::failure::{Refusal, What};
use super::one_sided::{self, Transfer, ask};
use super::owed::Owed;
use super::queue::{self, Finish, Work};
use super::send::{
    EAGER, Message, bad_address, check_counter, check_may_send, enter_to_send, is_no_function, is_nowhere, send,
};
use super::shape::{ORIGIN, Pieces, Shape, Span, TARGET};
use super::types::{Handle, Vector};
use super::{Counter, codes, kind, own, port};
use crate::message::Messages;

/// Parts of one transfer that are not in place yet.
pub(super) struct Group {
    /// Bytes.
    left: u64,
    /// For a group of this task: bytes that it has asked for. It asks for more only when all of them are in place, since the other task
    /// keeps the parts that it has no room to send.
    asked: u64,
    /// For a group of this task: the pieces that it has not asked for yet.
    rest: VecDeque<Span>,
    then: Then,
    /// The code of the first part that could not be brought to its place.
    failed: Option<i32>,
}

/// The action when all parts of a transfer are in place.
enum Then {
    /// A put of another task is done.
    Finish(Finish),
    /// A get of this task is done: the event, and the address of the target's counter.
    Get(Event, u64),
    /// A message is in its place; the origin's event.
    Message(Arrived, u64),
}

/// A vector message whose header handler has run.
struct Arrived {
    work: Option<Work>,
    finish: Finish,
}

/// The number and the bytes of a group. Groups of the task that sends the parts have even numbers, groups of the receiver odd ones.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) number: u64,
    pub(super) total: u64,
}

impl Name {
    pub(super) fn is_receivers(self) -> bool {
        self.number & 1 == 1
    }
}

/// A message to task `to` of a call without a header handler.
fn message(to: usize, handler: u64, header: &[u64], data: &[u8]) -> Message {
    Message {
        to: to as u32,
        handler: handler as usize,
        header: (header.as_ptr().cast(), size_of_val(header) as u32),
        data: (data.as_ptr(), data.len() as u64),
        target: 0,
        origin: Event::NONE,
        completion: Event::NONE,
    }
}

impl Domain {
    /// Most bytes of parts, or of a description, in one message.
    fn room(&self) -> usize {
        EAGER.min(self.world.engine().largest_message().saturating_sub(256))
    }

    /// Makes a group of this task, whose parts come from task `from`.
    fn own_group(&self, from: usize, total: u64, rest: VecDeque<Span>, then: Then) -> Name {
        let name = Name { number: self.next_number() << 1 | 1, total };
        let group = Group { left: total, asked: 0, rest, then, failed: None };
        self.transfers.groups.borrow_mut().insert((from, name.number), group);
        name
    }

    /// Takes the next pieces that this task asks for off the list of their group. Returns them as the message carries them.
    fn next_asked(&self, from: usize, name: Name) -> Vec<u8> {
        let most = (self.room() / size_of::<Span>()).max(1);
        let mut groups = self.transfers.groups.borrow_mut();
        let Some(group) = groups.get_mut(&(from, name.number)) else { return Vec::new() };
        let count = most.min(group.rest.len());
        group.asked += group.rest.iter().take(count).map(|piece| piece.2).sum::<u64>();
        group.rest.drain(..count).flat_map(|(from, place, len)| [from, place, len]).flat_map(u64::to_ne_bytes).collect()
    }
}

/// The numbers that `bytes` are, with room for `more`.
fn numbers(bytes: &[u8], more: usize) -> Result<Vec<u64>, TryReserveError> {
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(words.len() + more)?;
    numbers.extend(words);
    Ok(numbers)
}

/// All pieces in a list.
///
/// # Errors
/// [`codes::MEMORY_EXHAUSTED`].
fn listed(pieces: Pieces) -> Result<VecDeque<Span>, i32> {
    let mut list = VecDeque::new();
    for piece in pieces {
        list.try_reserve(1).map_err(|_| codes::MEMORY_EXHAUSTED)?;
        list.push_back(piece);
    }
    Ok(list)
}

/// The state that the parts of a group share.
struct Parts {
    to: usize,
    name: Name,
    /// The address of the target's counter, and the word of the completion event.
    target: u64,
    completion: u64,
}

/// Sends the parts of a group. `event` happens once all their sources may be changed and the caller has triggered the returned event.
///
/// # Errors
/// As [`send`]. Some parts may have been sent then.
///
/// # Safety
/// The first address of each piece is valid for reading until the event has happened, the second for writing at the target until the group
/// is done there; counters are valid.
unsafe fn send_parts(handle: Handle, parts: &Parts, pieces: Pieces, event: Event) -> Result<Event, i32> {
    let domain = port::enter(handle)?;
    let room = domain.room();
    let last = if event == Event::NONE { event } else { domain.defer(Deferred::Last(1, event, None)) };
    drop(domain);
    let unsent = Undo(handle, |domain| domain.forget([last]));
    // SAFETY: the caller's guarantees are the same.
    unsafe { send_each(handle, parts, pieces, room, last) }.map_err(|(code, _)| code)?;
    std::mem::forget(unsent);
    Ok(last)
}

/// # Errors
/// As [`send_parts`]; with the code, how many bytes were sent before.
///
/// # Safety
/// As [`send_parts`].
unsafe fn send_each(
    handle: Handle,
    parts: &Parts,
    pieces: impl Iterator<Item = Span>,
    room: usize,
    last: Event,
) -> Result<(), (i32, u64)> {
    let Parts { to, name: Name { number, total }, target, completion } = *parts;
    let send_one = |handler, header: &[u64], (start, len): (*const u8, u64), origin, keep| {
        let message = message(to, handler, header, &[]);
        let (target, completion) = (target as usize, Event::from_word(completion));
        let message = Message { data: (start, len), target, completion, origin, ..message };
        // SAFETY: the data is the caller's, or `keep` holds it.
        unsafe { send(handle, port::enter(handle)?, message, keep) }
    };
    let exhausted = |_| codes::MEMORY_EXHAUSTED;
    let (mut places, mut data) = (Vec::<u64>::new(), Vec::<u8>::new());
    let flush = |places: &mut Vec<u64>, data: &mut Vec<u8>| {
        if places.is_empty() {
            return Ok(());
        }
        let mut packed = Vec::new();
        packed.try_reserve_exact(8 + 8 * places.len() + data.len()).map_err(exhausted)?;
        packed.extend_from_slice(&(places.len() as u64 / 2).to_ne_bytes());
        places.drain(..).for_each(|word| packed.extend_from_slice(&word.to_ne_bytes()));
        packed.append(data);
        let packed = Arc::new(packed);
        let own = (packed.as_ptr(), packed.len() as u64);
        send_one(own::PARTS, &[number, total], own, Event::NONE, Some((packed, None)))
    };
    let mut sent = 0;
    for (from, place, len) in pieces {
        let mut next = || {
            if len + 24 > room as u64 {
                if last != Event::NONE {
                    port::enter(handle)?.one_more(last);
                }
                send_one(own::PART, &[place, number, total], (from as *const u8, len), last, None)?;
                sent += len;
                return Ok(());
            }
            if 24 + 8 * places.len() + data.len() + len as usize > room {
                let packed = data.len() as u64;
                flush(&mut places, &mut data)?;
                sent += packed;
            }
            places.try_reserve(2).and_then(|()| data.try_reserve(len as usize)).map_err(exhausted)?;
            places.extend([place, len]);
            // SAFETY: the caller guarantees that it may be read.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(from as *const u8, len as usize) });
            Ok(())
        };
        next().map_err(|code| (code, sent))?;
    }
    flush(&mut places, &mut data).map_err(|code| (code, sent))
}

/// Asks task `to` for the next parts of a group of this task.
///
/// # Errors
/// As [`send`]. Then nothing was asked for.
fn ask_parts(handle: Handle, to: usize, name: Name) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    let asked = Arc::new(domain.next_asked(to, name));
    let header = [name.number, name.total];
    let message = message(to, own::GETV, &header, &asked);
    // SAFETY: no counters; `asked` is kept.
    unsafe { send(handle, domain, message, Some((asked, None))) }
}

fn code(outcome: Result<(), i32>) -> i32 {
    outcome.err().unwrap_or(codes::SUCCESS)
}

/// Both vectors of a put or a get: the origin's and the target's.
///
/// # Safety
/// As [`Shape::read`].
unsafe fn both(
    domain: &Domain,
    tgt: u32,
    org_vec: *const Vector,
    tgt_vec: *const Vector,
) -> Result<(Shape, Shape), i32> {
    if tgt as usize >= domain.world.size() {
        return Err(codes::TGT);
    }
    // SAFETY: the caller guarantees it.
    let origin = unsafe { Shape::read(org_vec, &ORIGIN) }?;
    // SAFETY: as above.
    Ok((origin, unsafe { Shape::read(tgt_vec, &TARGET) }?))
}

/// `LAPI_Putv`: copies the data of the places of `org_vec` to those of `tgt_vec`, which are addresses of task `tgt`.
///
/// Both descriptions are in this task's memory, and may be changed when the call returns. Each counter moves once, as for
/// [`put`](super::raw::put), when its condition holds for all the data. Short places travel together in messages; the target fetches a long
/// one to its place in one copy. Places must not overlap. The call ends early if a task is purged or fails or a handler panics while it
/// waits for room, or if there is no memory for a later part. Then some data may be in flight, the places stay in use until a fence has
/// succeeded, and no counter moves.
///
/// # Safety
/// - `org_vec` and `tgt_vec` are null or valid, and so are the lists that they name;
/// - the places of `org_vec` are valid for reading until `org_cntr` has moved, those of `tgt_vec` for writing at the target until
///   `tgt_cntr` has, or both until a fence after this has succeeded;
/// - the counters are as those of [`amsend`](super::raw::amsend).
pub unsafe fn putv(
    handle: Handle,
    tgt: u32,
    tgt_vec: *const Vector,
    org_vec: *const Vector,
    tgt_cntr: *const Counter,
    org_cntr: *const Counter,
    cmpl_cntr: *const Counter,
) -> i32 {
    let vectors = [org_vec, tgt_vec];
    // SAFETY: the caller's guarantees are the same.
    code(unsafe {
        put_vectors(handle, tgt, vectors, tgt_cntr as u64, Event::counter(org_cntr), Event::counter(cmpl_cntr))
    })
}

/// # Safety
/// As [`putv`].
pub(super) unsafe fn put_vectors(
    handle: Handle,
    tgt: u32,
    [org_vec, tgt_vec]: [*const Vector; 2],
    target: u64,
    event: Event,
    completion: Event,
) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, tgt)?;
    check_counter(What::Put, tgt, target)?;
    // SAFETY: the caller guarantees that both are null or valid.
    let (from, to) = unsafe { both(&domain, tgt, org_vec, tgt_vec) }?;
    from.fits(&to)?;
    to.find_nowhere().map_or(Ok(()), |address| Err(bad_address(What::Put, tgt, address)))?;
    let total = from.total();
    let number = domain.next_number() << 1;
    drop(domain);
    if total == 0 {
        let nothing = Transfer { to: tgt, len: 0, target: 0, origin: 0 };
        // SAFETY: the counters are as the caller guarantees.
        return unsafe { one_sided::put(handle, nothing, target as usize, event, completion) };
    }
    let (name, completion) = (Name { number, total }, completion.word());
    let parts = Parts { to: tgt as usize, name, target, completion };
    let count = |domain: &Domain, change: fn(&Owed, usize)| {
        if Event::from_word(completion).is_counter() {
            change(&domain.owed, tgt as usize);
        }
    };
    // Count before the parts are sent: the answer may come while the call waits for room.
    let domain = port::enter(handle)?;
    count(&domain, Owed::expect);
    drop(domain);
    let unsent = Undo(handle, |domain| count(domain, Owed::completed));
    // SAFETY: the caller's guarantees are the same.
    let last = unsafe { send_parts(handle, &parts, from.pieces(to), event) }?;
    std::mem::forget(unsent);
    // SAFETY: as above.
    unsafe { happen_at_once(handle, last, parts.to) };
    Ok(())
}

/// `LAPI_Getv`: copies the data of the places of `tgt_vec`, which are addresses of task `tgt`, to those of `org_vec`.
///
/// `org_cntr` moves once, when all the data is here. `tgt_cntr`, an address at the target, moves once, when the memory there may be
/// changed. This task keeps the places that it has not asked for yet in a list of 24 bytes each. Without memory for the list the call fails
/// with [`codes::MEMORY_EXHAUSTED`]. Otherwise as [`putv`].
///
/// # Safety
/// - `org_vec` and `tgt_vec` are null or valid, and so are the lists that they name;
/// - the places of `tgt_vec` are valid for reading at the target until `tgt_cntr` has moved, those of `org_vec` for writing until
///   `org_cntr` has;
/// - `org_cntr` is null or valid until it has moved, `tgt_cntr` so at the target.
pub unsafe fn getv(
    handle: Handle,
    tgt: u32,
    tgt_vec: *const Vector,
    org_vec: *const Vector,
    tgt_cntr: *const Counter,
    org_cntr: *const Counter,
) -> i32 {
    // SAFETY: the caller's guarantees are the same.
    code(unsafe { get_vectors(handle, tgt, [org_vec, tgt_vec], tgt_cntr as u64, Event::counter(org_cntr)) })
}

/// # Safety
/// As [`getv`].
pub(super) unsafe fn get_vectors(
    handle: Handle,
    tgt: u32,
    [org_vec, tgt_vec]: [*const Vector; 2],
    target: u64,
    event: Event,
) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    check_may_send(&domain, tgt)?;
    check_counter(What::Get, tgt, target)?;
    // SAFETY: the caller guarantees that both are null or valid.
    let (to, from) = unsafe { both(&domain, tgt, org_vec, tgt_vec) }?;
    from.fits(&to)?;
    from.find_nowhere().map_or(Ok(()), |address| Err(bad_address(What::Get, tgt, address)))?;
    let (total, task) = (from.total(), tgt as usize);
    if total == 0 {
        drop(domain);
        let nothing = Transfer { to: tgt, len: 0, target: 0, origin: 0 };
        // SAFETY: the counters are as the caller guarantees.
        return unsafe { one_sided::get(handle, nothing, target as usize, event) };
    }
    let rest = listed(from.pieces(to))?;
    domain.owed.ask(task);
    let name = domain.own_group(task, total, rest, Then::Get(event, target));
    drop(domain);
    let unasked = Undo(handle, |domain| {
        domain.transfers.groups.borrow_mut().remove(&(task, name.number));
        domain.owed.answered(task);
    });
    ask_parts(handle, task, name)?;
    std::mem::forget(unasked);
    Ok(())
}

/// `LAPI_Amsendv`: sends an active message to task `tgt`. Its data is that of the places of `org_vec`.
///
/// There `hdr_hdl`, the address of a [`VectorHandler`](super::raw::VectorHandler) or an index, runs once. It gets the lengths of the
/// places, and returns the places there, or null if nothing is to be stored. If its places do not fit the origin's, nothing is stored, and
/// of the counters only `org_cntr` of a short message moves. Then both tasks get an error: [`codes::VEC_TYPE_DIFF`],
/// [`codes::VEC_NUM_DIFF`], [`codes::VEC_LEN_DIFF`], or a code of the target's vector. The completion handler runs on the handler thread.
/// User header and counters are as for [`amsend`](super::raw::amsend). The description may be changed when the call returns.
///
/// # Safety
/// - `org_vec` is null or valid, and so are the lists that it names;
/// - its places are valid for reading until `org_cntr` has moved, or until a fence after this has succeeded;
/// - what the header handler answers is true: the places may be written, and the completion handler may be called with its parameter, by
///   another thread;
/// - for all else as [`amsend`](super::raw::amsend).
#[expect(clippy::too_many_arguments, reason = "LAPI's call")]
pub unsafe fn amsendv(
    handle: Handle,
    tgt: u32,
    hdr_hdl: *const c_void,
    uhdr: *const c_void,
    uhdr_len: u32,
    org_vec: *const Vector,
    tgt_cntr: *const Counter,
    org_cntr: *const Counter,
    cmpl_cntr: *const Counter,
) -> i32 {
    let message = Message {
        to: tgt,
        handler: hdr_hdl as usize,
        header: (uhdr.cast(), uhdr_len),
        data: (std::ptr::null(), 0),
        target: tgt_cntr as usize,
        origin: Event::counter(org_cntr),
        completion: Event::counter(cmpl_cntr),
    };
    // SAFETY: the caller's guarantees are the same.
    code(unsafe { send_vector(handle, message, org_vec) })
}

/// Sends a message whose data is that of a vector.
///
/// # Safety
/// As [`amsendv`].
pub(super) unsafe fn send_vector(handle: Handle, given: Message, org_vec: *const Vector) -> Result<(), i32> {
    let domain = enter_to_send(handle, &given)?;
    // SAFETY: the caller guarantees that it is null or valid.
    let shape = unsafe { Shape::read(org_vec, &ORIGIN) }?;
    let (uhdr, uhdr_len) = (given.header.0, given.header.1 as usize);
    let is_short = (8 * shape.count + uhdr_len) as u64 + shape.total() <= domain.room() as u64;
    let mut data = Vec::new();
    let most = 16 * shape.count + uhdr_len + if is_short { domain.room() } else { 0 };
    data.try_reserve_exact(most).map_err(|_| codes::MEMORY_EXHAUSTED)?;
    shape.parts().for_each(|(_, len)| data.extend_from_slice(&len.to_ne_bytes()));
    if !is_short {
        shape.parts().for_each(|(address, _)| data.extend_from_slice(&address.to_ne_bytes()));
    }
    let mut append = |start: *const u8, len: usize| {
        if len != 0 {
            // SAFETY: the caller guarantees that header and places are valid.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
        }
    };
    append(uhdr, uhdr_len);
    if is_short {
        shape.parts().for_each(|(address, len)| append(address as *const u8, len as usize));
    }
    let (what, event) =
        (shape.kind() as u64 | u64::from(is_short) << 8, if is_short { 0 } else { given.origin.word() });
    let header = [given.handler as u64, event, shape.count as u64, what, uhdr_len as u64];
    let data = Arc::new(data);
    let message = message(given.to as usize, own::AMV, &header, &data);
    let message = Message { target: given.target, completion: given.completion, ..message };
    match is_short {
        // SAFETY: counters are the caller's, and `data` is kept.
        true => unsafe { send(handle, domain, Message { origin: given.origin, ..message }, Some((data, None))) },
        // SAFETY: as above. The target answers when it has all parts.
        false => unsafe { ask(handle, domain, message, Some((data, None))) },
    }
}

/// Ends a vector message whose header handler panics: the origin may change its data, and no fence waits for the message any more.
struct Unwound<'a> {
    domain: &'a Domain,
    finish: Finish,
    event: u64,
    /// Whether the origin waits for [`kind::FREED`]: the message does not carry its data.
    asks: bool,
    code: i32,
}

impl Drop for Unwound<'_> {
    #[cold]
    fn drop(&mut self) {
        if self.asks {
            self.domain.tell(self.finish.from, kind::FREED, &[self.event, self.code as u64]);
        }
        self.domain.fail_events(&self.finish, self.code);
        self.domain.arrived(self.finish.from, self.finish.ticket);
    }
}

impl Domain {
    /// Delivers a message of this module. `bytes` is its data. `None`: the message is malformed.
    pub(super) fn deliver_described(
        &self,
        messages: &Messages,
        handler: u64,
        header: &[u8],
        bytes: &[u8],
        finish: Finish,
    ) -> Option<()> {
        let from = finish.from;
        match handler {
            own::PARTS => {
                let ([number, total], _) = words::<2>(header)?;
                let name = Name { number, total };
                let ([count], rest) = words::<1>(bytes)?;
                let (places, mut data) = rest.split_at_checked((count as usize).checked_mul(16)?)?;
                let (is_wanted, mut failed) = (self.has_group(from, name), None);
                let total_len = data.len() as u64;
                for place in places.chunks_exact(16) {
                    let ([start, len], _) = words::<2>(place)?;
                    let (own, rest) = data.split_at_checked(len as usize)?;
                    data = rest;
                    if is_nowhere(start, len) && len != 0 {
                        failed = Some(start);
                    } else if is_wanted {
                        // SAFETY: the caller of the transfer guarantees that its places may be written until it is done.
                        unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), start as *mut u8, own.len()) };
                    }
                }
                self.arrived(from, finish.ticket);
                if let Some(address) = failed {
                    let what = if name.is_receivers() { What::Get } else { What::Put };
                    self.tell_refused(from, None, Refusal::bad_address(what, address));
                }
                self.part_ended(name, total_len, finish, failed.map(|_| codes::BAD_ADDRESS));
            }
            own::GETV => {
                let ([number, total], _) = words::<2>(header)?;
                self.arrived(from, finish.ticket);
                let pieces =
                    bytes.chunks_exact(24).filter_map(words::<3>).map(|([from, place, len], _)| (from, place, len));
                let asked = pieces.clone().fold(0, |sum: u64, piece| sum.saturating_add(piece.2));
                let parts = Parts { to: from, name: Name { number, total }, target: 0, completion: 0 };
                // A poll runs this inside the port: parts that find no room are kept.
                // SAFETY: the caller of the get guarantees that the memory may be read until its group is done.
                let sent = unsafe { send_each(self.handle, &parts, pieces, self.room(), Event::NONE) };
                if let Err((code, sent)) = sent {
                    let missing = asked.saturating_sub(sent);
                    self.fail(Refusal::new(code, What::Get, missing).failure(from, self.world.rank(), from));
                    self.tell(from, kind::MISSING, &[number, total, missing, code as u64]);
                }
            }
            own::AMV => return self.deliver_vector(messages, header, bytes, finish),
            _ => return None,
        }
        Some(())
    }

    /// Refuses a message of this module whose data cannot be fetched, given its handler and header. Afterwards nothing waits for it at
    /// either task.
    #[cold]
    pub(super) fn refuse_described(
        &self,
        (handler, header): (u64, &[u8]),
        finish: Finish,
        number: Option<u64>,
        refusal: Refusal,
    ) {
        let (from, code) = (finish.from, refusal.code);
        self.tell_refused(from, number, refusal);
        match (handler, words::<5>(header)) {
            (own::AMV, Some(([_, event, _, what, _], _))) => {
                drop(Unwound { domain: self, finish, event, asks: what >> 8 != 1, code });
            }
            // Parts, and requests for parts, always fit in a message with their header.
            _ => {
                self.fail_events(&finish, code);
                self.arrived(from, finish.ticket);
            }
        }
    }

    /// Task `from` cannot send `len` bytes of a group of this task. `None`: the message is malformed.
    #[cold]
    pub(super) fn parts_missing(&self, from: usize, name: Name, len: u64, code: i32) -> Option<()> {
        if !name.is_receivers() {
            return None;
        }
        self.fail(Refusal::new(code, What::Get, len).failure(self.world.rank(), from, from));
        self.part_ended(name, len, Finish { from, target: 0, completion: 0, ticket: None }, Some(code));
        Some(())
    }

    /// Whether parts of a group may be stored: always for a group of the sender, else while this task has the group.
    pub(super) fn has_group(&self, from: usize, name: Name) -> bool {
        !name.is_receivers() || self.transfers.groups.borrow().contains_key(&(from, name.number))
    }

    /// Counts bytes of a group that are in place. The last ones end it.
    pub(super) fn part_landed(&self, name: Name, len: u64, finish: Finish) {
        self.part_ended(name, len, finish, None);
    }

    /// Counts bytes of a group that are in place, or, with the code `failed`, that could not be brought to their place. If any part fails,
    /// no event of the group happens and no counter moves.
    pub(super) fn part_ended(&self, name: Name, len: u64, finish: Finish, failed: Option<i32>) {
        let (from, key) = (finish.from, (finish.from, name.number));
        let mut groups = self.transfers.groups.borrow_mut();
        if !name.is_receivers() {
            groups.entry(key).or_insert_with(|| Group {
                left: name.total,
                asked: 0,
                rest: VecDeque::new(),
                then: Then::Finish(finish),
                failed: None,
            });
        }
        let Some(group) = groups.get_mut(&key) else { return };
        group.left = group.left.saturating_sub(len);
        group.failed = group.failed.or(failed);
        if group.left != 0 {
            let is_next = name.is_receivers() && name.total - group.left == group.asked;
            drop(groups);
            if is_next {
                self.ask_more(from, name);
            }
            return;
        }
        let group = groups.remove(&key).expect("just found");
        drop(groups);
        self.end_group(from, group);
    }

    /// Ends a group of parts that task `from` sends.
    fn end_group(&self, from: usize, group: Group) {
        match (group.then, group.failed) {
            (Then::Finish(finish), Some(code)) => self.fail_events(&finish, code),
            (Then::Get(event, _), Some(code)) => {
                self.owed.answered(from);
                self.fail_event(event, code, from);
            }
            (Then::Message(arrived, event), Some(code)) => {
                self.tell(from, kind::FREED, &[event, code as u64]);
                self.fail_events(&arrived.finish, code);
                self.arrived(from, arrived.finish.ticket);
            }
            (Then::Finish(finish), None) => {
                self.done.receives.set(self.done.receives.get() + 1);
                self.finish(finish);
            }
            (Then::Get(event, target), None) => {
                self.owed.answered(from);
                self.done.sends.set(self.done.sends.get() + 1);
                if target != 0 {
                    let message = message(from, own::PUT, &[0], &[]);
                    self.send_inside(Message { target: target as usize, ..message });
                }
                // SAFETY: the caller of `getv` guarantees that the counter is null or valid until it has moved.
                unsafe { self.happen(event, from) };
            }
            (Then::Message(arrived, event), None) => {
                self.tell(from, kind::FREED, &[event, 0]);
                self.vector_landed(arrived);
            }
        }
    }

    /// Ends the first group whose parts come from a task for which `is_lost` holds. Returns whether there was one. Parts of such a group
    /// that are still being fetched find no group when they arrive, or start a new one.
    #[cold]
    pub(super) fn end_lost_group(&self, is_lost: impl Fn(usize) -> bool) -> bool {
        let found = self.transfers.groups.borrow().keys().find(|(from, _)| is_lost(*from)).copied();
        let Some(key) = found else { return false };
        self.note_owing(key.0);
        let group = self.transfers.groups.borrow_mut().remove(&key);
        group.into_iter().for_each(|group| self.end_group(key.0, Group { failed: Some(codes::PEER_LOST), ..group }));
        true
    }

    /// Asks for the next parts from inside a poll: the message is kept if there is no room.
    fn ask_more(&self, from: usize, name: Name) {
        if let Err(code) = ask_parts(self.handle, from, name) {
            self.fault(code, from);
        }
    }

    /// The data of a vector message is in its places.
    fn vector_landed(&self, Arrived { work, finish }: Arrived) {
        self.arrived(finish.from, finish.ticket);
        self.done.receives.set(self.done.receives.get() + 1);
        match work {
            None => self.finish(finish),
            Some(work) => self.enqueue(work),
        }
    }

    /// Runs the header handler of a vector message.
    fn deliver_vector(&self, messages: &Messages, header: &[u8], bytes: &[u8], finish: Finish) -> Option<()> {
        let from = finish.from;
        let ([handler, event, count, what, uhdr_len], _) = words::<5>(header)?;
        let (kind, is_short) = ((what & 0xFF) as i32, what >> 8 == 1);
        let list = (count as usize).checked_mul(8)?;
        let refuse = |code: i32, detail: u64| {
            self.tell_refused(from, None, Refusal::new(code, What::Message, detail));
            drop(Unwound { domain: self, finish, event, asks: !is_short, code });
            Some(())
        };
        let (lengths, rest) = bytes.split_at_checked(list)?;
        let (addresses, rest) = rest.split_at_checked(if is_short { 0 } else { list })?;
        let (uhdr, data) = rest.split_at_checked(uhdr_len as usize)?;
        // The header handler may change the lengths that it is shown. Those of a short message have addresses below.
        let (Ok(lengths), Ok(mut shown), Ok(mut addresses)) =
            (numbers(lengths, 0), numbers(lengths, 0), numbers(addresses, if is_short { count as usize } else { 0 }))
        else {
            return refuse(codes::MEMORY_EXHAUSTED, 3 * list as u64);
        };
        let total = lengths.iter().try_fold(0u64, |total, len| total.checked_add(*len))?;
        if uhdr.len() > MAX_UHDR_SZ || is_short && data.len() as u64 != total {
            return None;
        }
        if is_short {
            // The addresses of the places in the message.
            let mut next = data.as_ptr() as u64;
            addresses.extend(lengths.iter().map(|len| (next, next += len).0));
        }
        let address =
            if handler < LOC_ADDRTBL_SZ as u64 { self.entries.table[handler as usize].get() } else { handler as usize };
        // A closure, which has no address, takes no vectors.
        if is_no_function(address as u64) {
            return refuse(codes::NO_HNDLR_SET, handler);
        }
        let mut place = [MaybeUninit::<u64>::uninit(); MAX_UHDR_SZ / 8];
        // SAFETY: the place has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(uhdr.as_ptr(), place.as_mut_ptr().cast(), uhdr.len()) };
        let (mut handle, mut header_len) = (self.handle, uhdr.len() as u32);
        let (mut then, mut parameter) = (None, std::ptr::null_mut());
        let unwound = Unwound { domain: self, finish, event, asks: !is_short, code: codes::HANDLER_PANICKED };
        let vector: *mut Vector = {
            let _running = self.runs(Running::Header);
            let name = || format!("vector {}", queue::header_name(handler));
            let with = calls::Arrived {
                handle: &mut handle,
                header: place.as_mut_ptr().cast(),
                header_len: &mut header_len,
                len: shown.as_mut_ptr(),
                then: &mut then,
                parameter: &mut parameter,
            };
            // SAFETY: the sender, or this task by `addr_set`, guarantees that a header handler for vectors is at this address; all
            // pointers are valid during the call.
            messages.run_told(from, name, || unsafe { self.calls.vector(address, with) })
        };
        std::mem::forget(unwound);
        let mut arrived =
            Arrived { work: then.map(|then| Work { of: handler, handler: then, parameter, finish }), finish };
        if vector.is_null() || total == 0 {
            if !is_short {
                self.tell(from, kind::FREED, &[event, 0]);
            }
            self.vector_landed(arrived);
            return Some(());
        }
        // SAFETY: both lists stay; the header handler guarantees that its vector is valid.
        let pieces = unsafe {
            let origin = Shape::told(kind, &addresses, &lengths);
            Shape::read(vector, &TARGET)
                .and_then(|target| origin.fits(&target).map(|()| (origin.pieces(target), target)))
        };
        let pieces = match pieces {
            Ok((pieces, target)) => match target.find_nowhere() {
                Some(address) => return refuse(codes::BAD_ADDRESS, address),
                None => pieces,
            },
            Err(code) => return refuse(code, 0),
        };
        if is_short {
            for (own, place, len) in pieces {
                // SAFETY: the piece is inside `data`; the header handler guarantees that its places may be written.
                unsafe { std::ptr::copy_nonoverlapping(own as *const u8, place as *mut u8, len as usize) };
            }
            self.vector_landed(arrived);
            return Some(());
        }
        let rest = match listed(pieces) {
            Ok(rest) => rest,
            Err(code) => return refuse(code, (size_of::<Span>() * lengths.len()) as u64),
        };
        arrived.finish.ticket.get_or_insert_with(|| self.traffic.begin(from));
        let name = self.own_group(from, total, rest, Then::Message(arrived, event));
        self.ask_more(from, name);
        Some(())
    }
}
