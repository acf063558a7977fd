//! Data that its sender keeps and its receiver fetches to a place that it names.
//!
//! The sender makes an [`Offer`] and sends it in a message of its own. The receiver makes a [`Fetch`] of it: by the kernel's cross-memory
//! attach from a peer whose memory is mapped, by RDMA get over a network, and by messages in pieces where neither is possible.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::memory_service::OF_FETCH;
use super::{Messages, words};
use crate::engine::{Answer, Engine};
use crate::error::{Error, Result};
use crate::memory::outside::{self, Direction, Refused};
use crate::memory::segments::KEY_ROOM;
use crate::transport::{Region, Sent};

/// Pieces of one message that are asked for at a time. Chosen: the sender copies each when it answers, also where it has no room
/// to send the copy, so few.
const PIECES: usize = 4;
const DOING: &str = "receiving a large message";

/// Bits of the bell of a fetch, above its count of pieces: the place at this rank could not be reached, or the offered data at its sender.
pub(super) const FAILED_HERE: i32 = 1 << 29;
pub(super) const FAILED_THERE: i32 = 1 << 30;
const FAILED: i32 = FAILED_HERE | FAILED_THERE;

/// How many pieces have been answered, and the bits of [`FAILED`].
pub(crate) fn answers(bell: &AtomicI32) -> (usize, i32) {
    // Pairs with the Release of the service that rings.
    let word = bell.load(Ordering::Acquire);
    ((word & !FAILED) as usize, word & FAILED)
}

/// How offered data is fetched: the first word of an offer.
const BY_ADDRESS: u64 = 1;
const BY_KEY: u64 = 2;

/// Data that a peer may fetch, until it is dropped.
pub(crate) struct Offer {
    /// Deregistered on drop.
    _regions: Vec<Region>,
    words: [u64; 2],
    key: Option<[u8; KEY_ROOM]>,
}

impl Offer {
    /// Appends what the peer needs to know.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.words.map(u64::to_ne_bytes).as_flattened());
        bytes.extend_from_slice(self.key.as_ref().map_or(&[][..], |key| key));
    }
}

/// An offer as it came.
pub(crate) struct Offered {
    address: usize,
    key: Option<Box<[u8; KEY_ROOM]>>,
}

impl Offered {
    /// The offer at the start of `bytes`, and what follows it; `None` if there is no such offer.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Offered, &[u8])> {
        let ([way, address], rest) = words(bytes)?;
        let address = address as usize;
        match way {
            BY_ADDRESS => Some((Offered { address, key: None }, rest)),
            BY_KEY => {
                let (key, rest) = rest.split_first_chunk::<KEY_ROOM>()?;
                Some((Offered { address, key: Some(Box::new(*key)) }, rest))
            }
            _ => None,
        }
    }
}

/// Offered data on its way to its place.
pub(crate) struct Fetch {
    from: usize,
    len: usize,
    start: *mut u8,
    way: Way,
    engine: Rc<Engine>,
}

enum Way {
    /// The data is in its place.
    Here,
    /// By pieces in messages, each of which rings the bell. So many are asked for.
    Messages { bell: Box<AtomicI32>, address: usize, asked: usize },
    /// By gets with the key of the sender's memory. Each is posted when the one before has ended.
    Gets { key: Box<[u8; KEY_ROOM]>, address: usize, region: Region, done: usize, posted: Option<(Arc<Answer>, usize)> },
}

impl Fetch {
    /// Whether pieces may still be written to the place, however long this waits.
    pub(crate) fn may_be_written(&self) -> bool {
        match &self.way {
            Way::Messages { bell, asked, .. } => answers(bell).0 < *asked,
            Way::Here | Way::Gets { .. } => false,
        }
    }

    /// Whether the data was in its place at once.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.way, Way::Here)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        match &self.way {
            Way::Here => {}
            // Pieces may still arrive, and ring the bell: it is leaked.
            Way::Messages { .. } if self.may_be_written() => {
                if let Way::Messages { bell, .. } = std::mem::replace(&mut self.way, Way::Here) {
                    std::mem::forget(bell);
                }
            }
            Way::Messages { .. } => {}
            // The device may write to the place until the get has ended.
            Way::Gets { posted, .. } => {
                let Some((answer, _)) = posted else { return };
                self.engine.drive_until(self.from, || answer.outcome().is_some());
            }
        }
    }
}

/// Something that came to this rank is not done with as long as this lives.
pub(crate) struct Unsettled(Rc<Cell<usize>>);

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// By pieces in messages, none of which is asked for yet.
fn by_messages(address: usize) -> Way {
    Way::Messages { bell: Box::new(AtomicI32::new(0)), address, asked: 0 }
}

impl Messages {
    /// Until the result is dropped, the end of a world waits: data of a message that came is still to be fetched, whose sender
    /// must stay for that. It is dropped after the sender was told.
    pub(crate) fn unsettled(&self) -> Unsettled {
        self.unsettled.set(self.unsettled.get() + 1);
        Unsettled(Rc::clone(&self.unsettled))
    }

    /// Whether nothing is unsettled.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.get() == 0
    }

    /// Offers `len` bytes at `address` to rank `to`.
    ///
    /// # Safety
    /// The bytes stay valid, and unchanged, until the offer is dropped.
    pub(crate) unsafe fn offer(&self, to: usize, address: *const u8, len: usize) -> Offer {
        let (mut way, mut regions, mut key) = (BY_ADDRESS, Vec::new(), None);
        if !self.engine.routes.is_mapped(to) {
            // SAFETY: the data stays until the regions are dropped, by the caller's guarantee. Peers only get from it.
            match unsafe { self.engine.networks.register(address.cast_mut(), len) } {
                Ok((registered, packed)) => (way, regions, key) = (BY_KEY, registered, Some(packed)),
                Err(error) => {
                    tracing::debug!(to, len, %error, "data that cannot be registered: is fetched by messages");
                }
            }
        }
        Offer { _regions: regions, words: [way, address as u64], key }
    }

    /// Begins to fetch what `from` has offered. [`Messages::advance_fetch`] goes on.
    ///
    /// # Safety
    /// `len` bytes at `start` are valid for writing until the fetch is dropped, and afterwards if [`Fetch::may_be_written`] then.
    pub(crate) unsafe fn fetch(&self, from: usize, offered: Offered, start: *mut u8, len: usize) -> Fetch {
        let mut fetch = Fetch { from, len, start, way: Way::Here, engine: Rc::clone(&self.engine) };
        let Offered { address, key } = offered;
        fetch.way = match key {
            _ if len == 0 => Way::Here,
            Some(key) => self.by_gets(from, start, len, key, address).unwrap_or_else(|| by_messages(address)),
            None if self.copied(&fetch, address) || self.attached(&fetch, address) => Way::Here,
            None => by_messages(address),
        };
        fetch
    }

    /// Copies from symmetric static data of the sender that is mapped here; `false` if the data is elsewhere.
    fn copied(&self, fetch: &Fetch, address: usize) -> bool {
        let engine = &self.engine;
        if !(engine.settings.static_data && engine.routes.is_mapped(fetch.from)) {
            return false;
        }
        let Some(source) = engine.segments.mapped().in_statics(fetch.from, address, fetch.len) else { return false };
        // SAFETY: mapped memory of that length, which the sender does not change; `len` bytes at `start` are valid for writing, by the
        // guarantee of `fetch`'s caller. A rank may send to itself, from where the data goes.
        unsafe { std::ptr::copy(source, fetch.start, fetch.len) };
        true
    }

    /// Fetches by cross-memory attach; `false` where that is not possible.
    fn attached(&self, fetch: &Fetch, address: usize) -> bool {
        let engine = &self.engine;
        let is_real = engine.networks.pace().is_none();
        if !(engine.settings.cross_memory_attach && is_real && engine.routes.is_mapped(fetch.from)) {
            return false;
        }
        let pid = engine.job.pid(fetch.from);
        // SAFETY: `len` bytes at `start` are valid for writing, by the guarantee of `fetch`'s caller.
        let moved = unsafe { outside::transfer(Direction::Get, pid, fetch.start, address, fetch.len) };
        if moved == Err(Refused::NotPermitted) {
            tracing::debug!(from = fetch.from, "no cross-memory attach here: data is fetched by messages");
        }
        // The memory of a failed peer may have been freed before it was read.
        moved.is_ok() && engine.job.loss(fetch.from).is_none()
    }

    fn by_gets(
        &self,
        from: usize,
        start: *mut u8,
        len: usize,
        key: Box<[u8; KEY_ROOM]>,
        address: usize,
    ) -> Option<Way> {
        // SAFETY: the place has `len` bytes at `start`, and stays until the last get has ended: see the drop of `Fetch`.
        let (region, _) = unsafe { self.engine.networks.to(from).register(start, len) }.ok()?;
        Some(Way::Gets { key, address, region, done: 0, posted: None })
    }

    /// Goes on; tells whether the data is in its place.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::BadAddress`] if the place, or the data at its sender, is not in memory that can be reached.
    pub(crate) fn advance_fetch(&self, fetch: &mut Fetch) -> Result<bool> {
        let (from, len, start) = (fetch.from, fetch.len, fetch.start);
        match &mut fetch.way {
            Way::Here => Ok(true),
            // The memory of a failed peer may have been freed before it was read.
            Way::Messages { bell, address, asked } => {
                if let Some(cause) = self.engine.job.loss(from) {
                    return Err(self.engine.failures.lost(from, cause, DOING));
                }
                let (piece, (came, failed)) = (self.piece_len(), answers(bell));
                if failed != 0 {
                    // Pieces in flight are still written to the place.
                    let is_over = came == *asked;
                    let (rank, address) =
                        if failed & FAILED_HERE != 0 { (self.engine.rank, start as usize) } else { (from, *address) };
                    let bad = Error::BadAddress { operation: DOING, rank, address, length: len };
                    return if is_over { Err(bad) } else { Ok(false) };
                }
                while *asked * piece < len && *asked - came < PIECES {
                    let at = *asked * piece;
                    let (here, ring) = (start as usize + at, (&raw const **bell) as usize | OF_FETCH as usize);
                    // SAFETY: the place and the bell stay until the bell has rung for each piece: see the drop of `Fetch`.
                    match unsafe { self.read_piece(from, *address + at, piece.min(len - at), here, ring) }? {
                        Sent::Done => *asked += 1,
                        Sent::NoRoom => break,
                    }
                }
                Ok(came == len.div_ceil(piece))
            }
            Way::Gets { key, region, done, posted, .. } => loop {
                if let Some((answer, count)) = posted {
                    match answer.outcome() {
                        None => return Ok(false),
                        Some(Ok(())) => {
                            *done += *count;
                            *posted = None;
                        }
                        Some(Err(error)) => return self.get_failed(fetch, error),
                    }
                }
                if *done == len {
                    return Ok(true);
                }
                // SAFETY: inside the place, which the region covers; it stays until the get has ended.
                match unsafe {
                    self.engine.networks.to(from).fetch(from, key, *done, start.add(*done), region, len - *done)
                } {
                    Ok(Some(asked)) => *posted = Some(asked),
                    Ok(None) => return Ok(false),
                    Err(error) => return self.get_failed(fetch, error),
                }
            },
        }
    }

    /// The network cannot get this memory: messages fetch the data instead, if the sender has not failed.
    #[cold]
    fn get_failed(&self, fetch: &mut Fetch, error: crate::transport::Error) -> Result<bool> {
        if let Some(cause) = self.engine.job.loss(fetch.from) {
            return Err(self.engine.failures.lost(fetch.from, cause, DOING));
        }
        let (from, len) = (fetch.from, fetch.len);
        tracing::debug!(from, len, %error, "no get: the data of a large message is fetched by messages");
        if let Way::Gets { address, .. } = std::mem::replace(&mut fetch.way, Way::Here) {
            fetch.way = by_messages(address);
        }
        Ok(false)
    }
}
