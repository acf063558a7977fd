//! Puts to segments that answer at once.

use std::sync::atomic::{AtomicI32, Ordering};

use super::segments::{Carried, Located};
use super::{AtomicElement, Bell, World};
use crate::error::{CalledAt, Error, Placed, Result};
use crate::memory::copy;
use crate::memory::outside::Direction;
use crate::message::{OF_FETCH, answers};
use crate::transport::Sent;
use crate::world::located::Access;

const GETTING: &str = "get from a segment";

/// # Puts to segments that answer at once
/// Each `try_` form does what the call without `try_` does, if there is room for all data now. Otherwise it fails with
/// [`Error::WouldBlock`], and nothing was put or rung. Over a network there is room until `BELLWETHER_MESSAGE_MEMORY` bytes are kept
/// that the network has not taken. The forms make no progress: call [`World::poll`] before the next attempt.
///
/// Over a network the first use of a segment of a rank reads that rank's table of segments, and waits for the table, as
/// [`World::put_segment`] does. Where the bytes go by message they have to fit in one message: [`Error::InvalidArgument`] tells how
/// many do.
impl World {
    /// As [`World::put_segment`], but does not wait for room.
    ///
    /// # Errors
    /// As [`World::put_segment`], and [`Error::WouldBlock`]: nothing was put. [`Error::InvalidArgument`] for more bytes than go in one
    /// message, where they go by message.
    #[track_caller]
    pub fn try_put_segment(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        self.try_put_segment_by(rank, number, offset, source).map(drop).placed_here()
    }

    /// As [`World::try_put_segment`]. Tells how the bytes go.
    pub(super) fn try_put_segment_by(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<Carried> {
        const NAME: &str = "try_put_segment";
        let located = self.locate_segment(NAME, rank, number, offset, source.len())?;
        self.engine
            .put_at_once(NAME, rank, source.len(), || self.put_located(NAME, rank, located, source, After::Nothing))
    }

    /// As [`World::put_segment_bell`], also where the bytes go by message, but does not wait for room.
    ///
    /// # Errors
    /// As [`World::try_put_segment`], and of [`Bell::ring`]: nothing was rung.
    #[track_caller]
    pub fn try_put_segment_bell(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
        bell: &Bell,
    ) -> Result<()> {
        const NAME: &str = "try_put_segment_bell";
        (|| -> Result<()> {
            let located = self.locate_segment(NAME, rank, number, offset, source.len())?;
            self.engine.put_at_once(NAME, rank, source.len() + size_of::<u64>(), || {
                match self.put_located(NAME, rank, located, source, After::Nothing)? {
                    Carried::Message => self.ring_handled(rank, bell),
                    Carried::Copied | Carried::Network => bell.ring(rank),
                }
            })
        })()
        .placed_here()
    }

    /// As [`World::notify_segment`], but does not wait for room.
    ///
    /// # Errors
    /// As [`World::notify_segment`], and [`Error::WouldBlock`]: nothing was stored.
    #[track_caller]
    pub fn try_notify_segment<T: AtomicElement>(&self, rank: usize, number: u32, offset: usize, word: T) -> Result<()> {
        const NAME: &str = "try_notify_segment";
        (|| -> Result<()> {
            let word = bytemuck::bytes_of(&word);
            let located = self.locate_segment(NAME, rank, number, offset, word.len())?;
            located.check_aligned(NAME, rank, word.len())?;
            self.engine.put_at_once(NAME, rank, word.len(), || {
                if self.put_located(NAME, rank, located, word, After::All)? == Carried::Copied {
                    self.engine.wake_if_asleep(rank);
                }
                Ok(())
            })
        })()
        .placed_here()
    }

    /// As [`World::try_notify_segment`], of two words, the second after the first: both or, with an error, none. A message with the second that
    /// finds no room is sent by a later poll.
    ///
    /// # Errors
    /// As [`World::try_notify_segment`].
    pub(crate) fn try_notify_segment_twice<T: AtomicElement>(
        &self,
        rank: usize,
        number: u32,
        words: [(usize, T); 2],
    ) -> Result<()> {
        const NAME: &str = "try_notify_segment";
        let locate = |offset| -> Result<Located> {
            let located = self.locate_segment(NAME, rank, number, offset, size_of::<T>())?;
            located.check_aligned(NAME, rank, size_of::<T>())?;
            Ok(located)
        };
        let (first, second) = (locate(words[0].0)?, locate(words[1].0)?);
        self.engine.put_at_once(NAME, rank, 2 * size_of::<T>(), || {
            let [(_, word), (_, then)] = &words;
            match self.put_located(NAME, rank, first, bytemuck::bytes_of(word), After::All)? {
                Carried::Message => self.messages.write_unasked(rank, second.address, bytemuck::bytes_of(then)),
                Carried::Copied | Carried::Network => {
                    if self.put_located(NAME, rank, second, bytemuck::bytes_of(then), After::All)? == Carried::Copied {
                        self.engine.wake_if_asleep(rank);
                    }
                    Ok(())
                }
            }
        })
    }

    /// Copies `len` bytes from a segment of a rank of this node to `into`, or asks for them by a message: then [`Reading::is_asked`]. `reading`
    /// is made where it is needed, and asks for nothing yet. Does not wait for room, nor for the bytes.
    ///
    /// # Errors
    /// As [`World::try_put_segment`]; with an error nothing is asked for.
    ///
    /// # Safety
    /// `into` is valid for writing `len` bytes, and nothing else touches them until this returns.
    pub(crate) unsafe fn try_get_segment(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        into: *mut u8,
        len: usize,
        reading: &mut Option<Reading>,
    ) -> Result<()> {
        let Located { address, .. } = self.locate_segment(GETTING, rank, number, offset, len)?;
        if let Some(from) = self.mapped_here(rank, address, len) {
            // SAFETY: inside an open segment, whose owner means it to be read. It stays open until this rank, if it is not the owner, has
            // handled a message. The caller's for `into`.
            unsafe { copy::get(into, from, len) };
            return Ok(());
        }
        // SAFETY: the caller's; the kernel checks the address at the target.
        if unsafe { self.attach(GETTING, Direction::Get, rank, into, address, len) }? {
            return Ok(());
        }
        self.messages.check_one_piece(GETTING, rank, len)?;
        // Made once: attempts without room follow each other closely.
        if reading.as_ref().is_none_or(|reading| reading.bytes.len() < len) {
            *reading = None;
        }
        let reading = reading.get_or_insert_with(|| Reading::new(len));
        debug_assert!(!reading.is_asked());
        let (bytes, bell) = (reading.bytes.cast::<u8>() as usize, reading.bell as usize | OF_FETCH as usize);
        // SAFETY: they stay until the bell has rung.
        match unsafe { self.messages.read_piece(rank, address, len, bytes, bell) }? {
            Sent::NoRoom => Err(Error::WouldBlock { operation: GETTING, rank, place: CalledAt::default() }),
            _ => {
                reading.asked = Some((rank, address, len));
                Ok(())
            }
        }
    }

    /// Puts where there is room, within [`Engine::put_at_once`](crate::engine::Engine::put_at_once).
    fn put_located(
        &self,
        operation: &'static str,
        rank: usize,
        located: Located,
        source: &[u8],
        after: After,
    ) -> Result<Carried> {
        let is_ordered = after == After::All;
        match self.access(rank, located, source.len()) {
            Access::Network(remote) => {
                match after {
                    After::Nothing => self.engine.remote_put(rank, remote, source)?,
                    After::All => self.engine.remote_put_after(rank, remote, source)?,
                }
                Ok(Carried::Network)
            }
            // Earlier puts may have gone by message.
            _ if is_ordered && rank != self.rank() && self.engine.segments.mapped().are_by_message() => {
                self.put_one_message(operation, rank, located.address, source)
            }
            Access::Here(to) => {
                // SAFETY: inside an open segment, whose owner means it to be written. It stays open until this rank, if it is not the owner,
                // has handled a message.
                unsafe { copy::put(to, source.as_ptr(), source.len()) };
                self.engine.stored(rank);
                Ok(Carried::Copied)
            }
            Access::Elsewhere => {
                let start = source.as_ptr().cast_mut();
                // SAFETY: only read when putting; and as above.
                match unsafe { self.attach(operation, Direction::Put, rank, start, located.address, source.len()) }? {
                    true => Ok(Carried::Copied),
                    false => self.put_one_message(operation, rank, located.address, source),
                }
            }
        }
    }

    fn put_one_message(&self, operation: &'static str, rank: usize, address: usize, source: &[u8]) -> Result<Carried> {
        self.messages.check_one_piece(operation, rank, source.len())?;
        self.engine.segments.mapped().note_message();
        match self.messages.write_piece(rank, address, source)? {
            Sent::NoRoom => Err(Error::WouldBlock { operation, rank, place: CalledAt::default() }),
            _ => Ok(Carried::Message),
        }
    }
}

/// The earlier operations that a put is ordered after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Nothing,
    /// All that this rank has put there before.
    All,
}

/// Room for bytes that a message asks for. A handler writes them, also if this was dropped meanwhile: then they are nobody's.
pub(crate) struct Reading {
    bytes: *mut [u8],
    /// Rung when they are here, or when the owner has refused them.
    bell: *mut AtomicI32,
    /// Rank, address, and how many bytes; `None` while nothing is asked for.
    asked: Option<(usize, usize, usize)>,
}

impl Reading {
    fn new(len: usize) -> Reading {
        let bytes = Box::into_raw(vec![0; len].into_boxed_slice());
        Reading { bytes, bell: Box::into_raw(Box::new(AtomicI32::new(0))), asked: None }
    }

    fn bell(&self) -> &AtomicI32 {
        // SAFETY: from `Box::into_raw`, and only freed by the drop; others touch it atomically.
        unsafe { &*self.bell }
    }

    /// Whether bytes are asked for, and were not taken yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether no handler will write here.
    pub(crate) fn is_answered(&self) -> bool {
        !self.is_asked() || answers(self.bell()).0 > 0
    }

    /// Takes the bytes that were asked for, if they are here. Whether they are.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the owner has refused them. Then, too, nothing is asked for any more.
    ///
    /// # Safety
    /// `into` is valid for writing as many bytes as were asked for, and nothing else touches them until this returns.
    pub(crate) unsafe fn copy_to(&mut self, into: *mut u8) -> Result<bool> {
        let (count, failed) = answers(self.bell());
        let Some((rank, address, length)) = self.asked.take_if(|_| count > 0) else { return Ok(false) };
        // No handler rings it any more.
        self.bell().store(0, Ordering::Relaxed);
        if failed != 0 {
            return Err(Error::BadAddress { operation: GETTING, rank, address, length });
        }
        // SAFETY: the bell has rung, so no handler writes them any more, and they are at least as many. The caller's for `into`.
        unsafe { copy::put(into, self.bytes.cast(), length) };
        Ok(true)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.is_answered() {
            // SAFETY: from `Box::into_raw`, once; nobody else uses them any more.
            unsafe { drop((Box::from_raw(self.bytes), Box::from_raw(self.bell))) };
        }
    }
}
