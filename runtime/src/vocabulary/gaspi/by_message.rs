//! Requests to memory that only messages reach: a process of this node has bound it, and the kernel allows no cross-memory attach.
//!
//! The bytes go in pieces. A call that finds no room for a piece lets other threads of the process in, and returns when its time is over:
//! the process there may be stopped.

use super::codes;
use super::look_up::of_post;
use super::monitor::{Held, Partner};
use super::notes::{Layout, MARKED};
use super::one_sided::{Direction, Notice, Refused, Request, there};
use super::process::Process;
use super::segments::{notes_of, number_of};
use super::shared::Shared;
use super::types::{Code, Result, Timeout};
use crate::error::Error;
use crate::world::{Reading, World};

/// A request of which some pieces are sent.
struct Carrying<'a> {
    request: Request<'a>,
    layout: Layout,
    /// Every part was found at the target.
    found: bool,
    /// The next piece: its part, and its offset in that part.
    part: usize,
    done: u64,
    /// Room for the piece that is asked for. Later pieces use it again.
    reading: Option<Reading>,
}

impl Carrying<'_> {
    /// Sends the pieces that there is room for. Whether the request is complete.
    fn advance(&mut self, world: &World, shared: &Shared) -> Result<bool, Refused> {
        match self.carry(world, shared) {
            Err(Refused::Error(Error::WouldBlock { .. }, _)) => Ok(false),
            outcome => outcome,
        }
    }

    fn carry(&mut self, world: &World, shared: &Shared) -> Result<bool, Refused> {
        let Request { parts, rank, direction, notice, .. } = self.request;
        let (to, doing) = (usize::from(rank), direction.doing());
        let failed = |error| Refused::Error(error, to);
        if !self.found {
            for part in parts {
                let (offset, len) = there(part);
                world.find_segment(doing, to, number_of(part.remote.0), offset, len).map_err(failed)?;
            }
            self.found = true;
        }
        while let Some(part) = parts.get(self.part) {
            if self.done == part.size {
                (self.part, self.done) = (self.part + 1, 0);
                continue;
            }
            // Found anew for each piece: another thread may delete the segment between two pieces.
            let here = shared.range(part.local.0, part.local.1, part.size)?.wrapping_add(self.done as usize);
            let len = (part.size - self.done).min(world.messages().piece_len() as u64) as usize;
            let (number, offset) = (number_of(part.remote.0), (part.remote.1 + self.done) as usize);
            match direction {
                Direction::Write => {
                    // SAFETY: in bounds of a segment, which is deleted by a thread that is in the monitor, as this one is. The program does
                    // not change what it posts.
                    let source = unsafe { std::slice::from_raw_parts(here, len) };
                    world.try_put_segment(to, number, offset, source).map_err(failed)?;
                }
                Direction::Read => {
                    let reading = &mut self.reading;
                    if !reading.as_ref().is_some_and(Reading::is_asked) {
                        // SAFETY: as above. The program does not touch these bytes until a wait.
                        unsafe { world.try_get_segment(to, number, offset, here, len, reading) }.map_err(failed)?;
                    }
                    if let Some(asked) = reading.as_mut().filter(|reading| reading.is_asked()) {
                        // SAFETY: as above; as many bytes were asked for.
                        if !unsafe { asked.copy_to(here) }.map_err(failed)? {
                            world.engine().check_alive(to, doing).map_err(failed)?;
                            return Ok(false);
                        }
                    }
                }
            }
            self.done += len as u64;
        }
        match notice {
            Notice::None => {}
            Notice::There(note) => {
                let words = [(self.layout.word(note.id), note.value), (self.layout.mark(note.id), MARKED)];
                world.try_notify_segment_twice(to, notes_of(note.segment), words).map_err(failed)?;
            }
            Notice::Here(note) => {
                let notes = shared.board.get(note.segment).ok_or(Code(codes::INV_SEG))?;
                notes.set(note.id, note.value);
            }
        }
        Ok(true)
    }
}

impl Process {
    /// Makes a request by messages: blocks until every part of a write is sent, or of a read has come. The target has to make progress.
    /// After [`codes::TIMEOUT`] a part of its bytes may be moved, and no notification is changed.
    #[cold]
    pub(super) fn post_by_message(&self, request: Request<'_>, timeout: Timeout) -> Result<()> {
        let (queue, requests, to) = (request.queue, request.number(), usize::from(request.rank));
        let shared = self.shared();
        let layout = {
            let Held { state, .. } = &mut *self.monitor.enter()?;
            let mut entry = shared.enter(queue)?;
            let Some(open) = &mut *entry else { return Err(Code(codes::INV_QUEUE)) };
            if open.open + requests > open.config.queue_size_max {
                return Err(Code(codes::QUEUE_FULL));
            }
            open.open += requests;
            open.posting += requests;
            Layout::new(state.config.notification_num)
        };
        let mut carrying = Carrying { request, layout, found: false, part: 0, done: 0, reading: None };
        let doing = request.direction.doing();
        // `false` where the process there was lost: the next wait for the queue tells it.
        let outcome = self.monitor.wait(doing, of_post(timeout), &Partner::None, |world, state| {
            if let Err(code) = state.check_works() {
                return Some(Err(code));
            }
            state.unread.retain(|asked| !asked.is_answered());
            Some(match carrying.advance(world, shared) {
                Ok(true) => Ok(true),
                Ok(false) => return None,
                Err(Refused::Error(Error::PeerLost { .. }, _)) if world.engine().job.loss(to).is_some() => Ok(false),
                Err(Refused::Error(error, rank)) => Err(state.failed(&error, rank)),
                Err(Refused::Code(code)) => Err(code),
                Err(Refused::ByWorld | Refused::Later(_)) => Err(Code(codes::ERROR)),
            })
        });
        if let Ok(mut entry) = shared.enter(queue)
            && let Some(open) = &mut *entry
        {
            open.posting = open.posting.saturating_sub(requests);
            match outcome {
                Ok(true) => {}
                Ok(false) => open.refuse(shared, to, false),
                Err(_) => open.open = open.open.saturating_sub(requests),
            }
        }
        if let Some(asked) = carrying.reading.take().filter(Reading::is_asked) {
            self.monitor.enter()?.state.unread.push(asked);
        }
        outcome.map(drop)
    }
}
