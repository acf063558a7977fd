//! Active messages that access memory outside segments, if the kernel forbids cross-memory attach, and counters there, which
//! need an atomic add.
//!
//! A long transfer goes in pieces, which arrive in order; only the last one rings. If the owner refuses a piece, the
//! requesting rank gets [`Error::BadAddress`].
//!
//! The bell of a fetch is rung for each piece, also for a piece that fails. The address of such a bell travels with [`OF_FETCH`] added. If
//! a piece fails, a bit in the bell says at which end the memory cannot be reached: see [`fetch`](super::fetch).

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::fetch::{FAILED_HERE, FAILED_THERE};
use super::{Messages, id, words};
use crate::error::{Error, Result};
use crate::memory::outside::{self, Direction, Refused};
use crate::transport::Sent;

/// Largest piece in bytes, unless message memory is smaller.
const PIECE: usize = 1 << 20;
/// Bytes that go with a piece, at most.
const PIECE_HEAD: usize = 48;
/// Least message memory an interface has.
const MESSAGE_MEMORY_MIN: usize = 16 << 10;

/// Added to the address of a bell, which is even: the bell of a fetch.
pub(crate) const OF_FETCH: u64 = 1;

/// Kind of a refused request, as a REFUSED message encodes it.
#[derive(Clone, Copy)]
enum Asked {
    Put = 0,
    Get = 1,
    Bell = 2,
}

const NAMES: [&str; 3] = ["put to an address", "get from an address", "a remote bell"];

/// Error: part of the range is not accessible in this process.
struct NotHere;

/// Transfers in progress with a refused piece: the sender, and its number for the transfer.
type Broken = RefCell<HashSet<(usize, u64)>>;

/// Which piece of which transfer, in one word.
fn place_word(transfer: u64, last: bool) -> u64 {
    transfer << 1 | u64::from(last)
}

/// The outcome of a piece: after a refused piece, all later pieces of the transfer are refused.
fn join(broken: &Broken, from: usize, place: u64, piece: Result<(), NotHere>) -> Result<(), NotHere> {
    let mut broken = broken.borrow_mut();
    let (transfer, last) = ((from, place >> 1), place & 1 != 0);
    let spoilt = if last { broken.remove(&transfer) } else { broken.contains(&transfer) };
    if piece.is_err() && !last {
        broken.insert(transfer);
    }
    if spoilt { Err(NotHere) } else { piece }
}

/// WRITE: the header is the address; the payload is the bell's address, the piece, and the bytes.
/// READ: the header is the address; the payload is length, destination, piece, local bell, remote bell.
pub(super) fn install(messages: &Rc<Messages>) {
    let broken = Broken::default();
    messages.set_handler(id::WRITE, move |messages, message| {
        let Some(([to, bell, place], bytes)) = words::<3>(message.data()) else {
            return messages.fault(message.from, "a write without an address");
        };
        match join(&broken, message.from, place, write_here(to as usize, bytes)) {
            Ok(()) => ring_or_tell(messages, message.from, bell),
            Err(NotHere) => refuse(messages, message.from, Asked::Put, [to, bytes.len() as u64, 0]),
        }
    });
    let broken = Broken::default();
    messages.set_handler(id::READ, move |messages, message| {
        let Some(([from, len, to, place, local_bell, remote_bell], _)) = words::<6>(message.data()) else {
            return messages.fault(message.from, "a read without an address");
        };
        let (piece, bytes) = match read_here(from as usize, len as usize) {
            Ok(bytes) => (Ok(()), bytes),
            Err(NotHere) => (Err(NotHere), Vec::new()),
        };
        if join(&broken, message.from, place, piece).is_err() {
            return refuse(messages, message.from, Asked::Get, [from, len, local_bell]);
        }
        ring_or_tell(messages, message.from, remote_bell);
        let reply = [&local_bell.to_ne_bytes(), bytes.as_slice()].concat();
        messages.engine.answer(message.from, || messages.engine.send_in_order(message.from, id::READ_DONE, to, &reply));
    });
    messages.set_handler(id::READ_DONE, move |messages, message| {
        let Some(([to, bell], bytes)) = words::<2>(message.data()) else {
            return messages.fault(message.from, "an answer to a read without an address");
        };
        let written = write_here(to as usize, bytes);
        let outcome = match bell & OF_FETCH {
            0 => written.and_then(|()| ring_here(bell as usize)),
            _ => end_piece(bell, if written.is_ok() { 0 } else { FAILED_HERE }),
        };
        if outcome.is_err() {
            messages.fault(message.from, format!("the answer to a get has no place at {to:#x} any more"));
        }
    });
    messages.set_handler(id::RING, move |messages, message| match words::<1>(message.data()) {
        Some(([bell], _)) => ring_or_tell(messages, message.from, bell),
        None => messages.fault(message.from, "a ring without an address"),
    });
    messages.set_handler(id::REFUSED, move |messages, message| {
        let Some(([asked, address, length, bell], _)) = words::<4>(message.data()) else {
            return messages.fault(message.from, "a refusal without an address");
        };
        // The fetch itself reports the error.
        if bell & OF_FETCH != 0 && end_piece(bell, FAILED_THERE).is_ok() {
            return;
        }
        let operation = NAMES.get(asked as usize).copied().unwrap_or("an operation");
        let (address, length) = (address as usize, length as usize);
        messages.engine.faults.keep(Error::BadAddress { operation, rank: message.from, address, length });
    });
}

#[cold]
fn refuse(messages: &Messages, asker: usize, asked: Asked, address_length_bell: [u64; 3]) {
    let payload = address_length_bell.map(u64::to_ne_bytes);
    let payload = payload.as_flattened();
    messages.engine.answer(asker, || messages.engine.send_or_keep(asker, id::REFUSED, asked as u64, payload));
}

fn ring_or_tell(messages: &Messages, asker: usize, bell: u64) {
    if ring_here(bell as usize).is_err() {
        refuse(messages, asker, Asked::Bell, [bell, size_of::<AtomicI32>() as u64, 0]);
    }
}

/// Adds one to the counter at `address` of this process; 0 means none.
fn ring_here(address: usize) -> Result<(), NotHere> {
    if address == 0 { Ok(()) } else { add_here(address, 0) }
}

/// Rings the bell of a fetch for one piece. `bit` is 0 if the piece has come, else the bit that tells why it failed.
fn end_piece(bell: u64, bit: i32) -> Result<(), NotHere> {
    add_here((bell & !OF_FETCH) as usize, bit)
}

/// Sets `bits` at `address` of this process and adds one.
fn add_here(address: usize, bits: i32) -> Result<(), NotHere> {
    if !address.is_multiple_of(align_of::<AtomicI32>()) {
        return Err(NotHere);
    }
    // Ask the kernel whether the word is writable, so that a bad address is an error, not SIGSEGV.
    if !outside::writable(address) {
        return Err(NotHere);
    }
    // SAFETY: mapped for writing and aligned, checked above; the sender guarantees that a counter lies there: it used `unsafe` to
    // pass the address.
    let counter = unsafe { AtomicI32::from_ptr(address as *mut i32) };
    if bits != 0 {
        counter.fetch_or(bits, Ordering::Relaxed);
    }
    counter.fetch_add(1, Ordering::Release);
    Ok(())
}

fn write_here(address: usize, bytes: &[u8]) -> Result<(), NotHere> {
    // SAFETY: a `Put` only reads `buffer`, which is a slice.
    unsafe { move_here(Direction::Put, bytes.as_ptr().cast_mut(), bytes.len(), address) }
}

fn read_here(address: usize, len: usize) -> Result<Vec<u8>, NotHere> {
    // A piece is never longer, so a corrupt request cannot allocate unbounded memory.
    if len > PIECE {
        return Err(NotHere);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| NotHere)?;
    bytes.resize(len, 0);
    // SAFETY: our own buffer of that length.
    unsafe { move_here(Direction::Get, bytes.as_mut_ptr(), len, address) }?;
    Ok(bytes)
}

/// Moves bytes between a buffer and an address of this process that may not be mapped.
///
/// # Safety
/// `buffer` is valid for `len` bytes, for writing if getting.
unsafe fn move_here(direction: Direction, buffer: *mut u8, len: usize, address: usize) -> Result<(), NotHere> {
    // SAFETY: the caller guarantees `buffer` for `len` bytes; the kernel checks the address.
    match unsafe { outside::transfer(direction, std::process::id(), buffer, address, len) } {
        Ok(()) => Ok(()),
        Err(Refused::BadAddress | Refused::Gone) => Err(NotHere),
        Err(Refused::NotPermitted) => {
            // Where the kernel allows no cross-memory attach, not even to oneself, there is this file.
            let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").map_err(|_| NotHere)?;
            match direction {
                // /proc/self/mem ignores page protection, so check it here.
                Direction::Put if !all_writable(address, len) => return Err(NotHere),
                Direction::Put => {
                    // SAFETY: the caller guarantees `buffer` for `len` bytes.
                    let buffer = unsafe { std::slice::from_raw_parts(buffer, len) };
                    memory.write_all_at(buffer, address as u64)
                }
                Direction::Get => {
                    // SAFETY: the caller guarantees `buffer` for `len` bytes.
                    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, len) };
                    memory.read_exact_at(buffer, address as u64)
                }
            }
            .map_err(|_| NotHere)
        }
    }
}

fn all_writable(address: usize, len: usize) -> bool {
    const PAGE: usize = 4096;
    let Some(last) = address.checked_add(len.saturating_sub(1)) else { return false };
    (address / PAGE..=last / PAGE).all(|page| outside::writable(page * PAGE))
}

impl Messages {
    fn next_transfer(&self) -> u64 {
        let number = self.transfers.get();
        self.transfers.set(number + 1);
        number
    }

    /// Most bytes of a piece.
    pub fn piece_len(&self) -> usize {
        match self.engine.networks.is_empty() {
            // The rest of the message is the piece's head.
            false => PIECE.min(self.engine.largest_message() - PIECE_HEAD),
            // A quarter, so that one can be filled while others are in flight.
            true => PIECE.min(self.engine.settings.message_memory.max(MESSAGE_MEMORY_MIN) / 4),
        }
    }

    /// The payload of a message that writes one piece.
    fn piece(&self, bytes: &[u8]) -> Vec<u8> {
        let head = [0, place_word(self.next_transfer(), true)].map(u64::to_ne_bytes);
        [head.as_flattened(), bytes].concat()
    }

    /// Asks `to` to write a piece at `address`, if there is room for the message.
    pub fn write_piece(&self, to: usize, address: usize, bytes: &[u8]) -> Result<Sent> {
        self.engine.send(to, id::WRITE, address as u64, &self.piece(bytes))
    }

    /// Asks `to` to write a piece at `address`, now or in a later poll. Never waits.
    pub fn write_unasked(&self, to: usize, address: usize, bytes: &[u8]) -> Result<()> {
        self.engine.try_send_unasked(to, id::WRITE, address as u64, &self.piece(bytes))
    }

    /// Asks `to` for a piece at `address`, to be written at `here`, where then `bell` rings, if there is room for the message. The bell is of
    /// a fetch if [`OF_FETCH`] is added to its address.
    ///
    /// # Safety
    /// `here` is valid for writing until the bell has rung.
    pub unsafe fn read_piece(&self, to: usize, address: usize, len: usize, here: usize, bell: usize) -> Result<Sent> {
        let place = place_word(self.next_transfer(), true);
        let payload = [len as u64, here as u64, place, bell as u64, 0].map(u64::to_ne_bytes);
        self.engine.send(to, id::READ, address as u64, payload.as_flattened())
    }

    /// Bytes of the pieces a transfer of `len` bytes goes in.
    fn pieces(&self, len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let piece = self.piece_len();
        (0..len).step_by(piece).map(move |start| start..len.min(start + piece))
    }

    /// Asks `to` to write `bytes` at `address` and then ring `bell` (0: none).
    pub fn write_outside(&self, to: usize, address: usize, bytes: &[u8], bell: usize) -> Result<()> {
        if self.engine.interface.delivering() {
            // All or nothing: a handler cannot wait for room for the rest.
            self.engine.outbox.check_room("put to an address", to, bytes.len())?;
        }
        let transfer = self.next_transfer();
        for piece in self.pieces(bytes.len()) {
            let last = piece.end == bytes.len();
            let head = [if last { bell as u64 } else { 0 }, place_word(transfer, last)].map(u64::to_ne_bytes);
            let payload = [head.as_flattened(), &bytes[piece.clone()]].concat();
            self.engine.send_in_order(to, id::WRITE, (address + piece.start) as u64, &payload)?;
        }
        Ok(())
    }

    /// Asks `to` for `len` bytes at `address`, to be written at `here`; then the bells ring, the remote one first.
    ///
    /// # Safety
    /// `here` is valid for writing until the local bell has rung.
    pub unsafe fn read_outside(
        &self,
        to: usize,
        address: usize,
        len: usize,
        here: usize,
        local_bell: usize,
        remote_bell: usize,
    ) -> Result<()> {
        if self.engine.interface.delivering() {
            self.engine.outbox.check_room("get from an address", to, size_of::<[u64; 5]>())?;
        }
        let transfer = self.next_transfer();
        for piece in self.pieces(len) {
            let last = piece.end == len;
            let [local, remote] = if last { [local_bell as u64, remote_bell as u64] } else { [0, 0] };
            let place = place_word(transfer, last);
            let payload = [piece.len() as u64, (here + piece.start) as u64, place, local, remote].map(u64::to_ne_bytes);
            self.engine.send_in_order(to, id::READ, (address + piece.start) as u64, payload.as_flattened())?;
        }
        Ok(())
    }

    /// Checks that a transfer of `len` bytes goes in one piece, and so whole or not at all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check_one_piece(&self, operation: &'static str, rank: usize, len: usize) -> Result<()> {
        let most = self.piece_len();
        if len <= most {
            return Ok(());
        }
        let why = format!(
            "{len} bytes for rank {rank} go by message, since the kernel allows no cross-memory attach or the memory is not registered, and \
             one message has room for {most}: put no more at a time, or use the call without try_"
        );
        Err(Error::InvalidArgument { operation, why })
    }

    /// Asks `to` to add one to the counter at `address`, now or in a later poll. Never waits.
    pub fn ring_unasked(&self, to: usize, address: usize) -> Result<()> {
        self.engine.try_send_unasked(to, id::RING, address as u64, &[])
    }

    /// Asks `to` to add one to the counter at `address`.
    pub fn ring_outside(&self, to: usize, address: usize) -> Result<()> {
        self.engine.outbox.bounded(|| self.engine.send_or_keep(to, id::RING, address as u64, &[]))
    }
}
