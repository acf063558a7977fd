//! What a context does: puts, gets, atomics, rings and flushes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};

use super::super::far::{Answer, Asked, Soon};
use super::{Driven, Stream};
use crate::error::{Error, Result};
use crate::memory::copy;
use crate::transport::Sent;

/// Requests of one get that are in flight at a time, at most.
const WINDOW: usize = 16;

impl Stream {
    /// Writes `bytes` at `offset` of the slot of `rank`, in bounds. They may be changed when it returns.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn put(&self, doing: &'static str, rank: usize, mut offset: usize, mut bytes: &[u8]) -> Result<()> {
        if self.is_near(rank) {
            // SAFETY: a mapped slot; the caller guarantees that the range is inside.
            unsafe { copy::put(self.node.slot(rank).add(offset), bytes.as_ptr(), bytes.len()) };
            self.announce(rank);
            return Ok(());
        }
        self.check_alive(rank, doing)?;
        self.wait(doing, |driven| {
            while !bytes.is_empty() {
                let len = bytes.len().min(driven.far.largest_put());
                match driven.far.put(rank, offset, &bytes[..len]) {
                    Ok(0) => return Ok(false),
                    Ok(done) => (offset, bytes) = (offset + done, &bytes[done..]),
                    Err(error) => return Err(self.failed(driven, error, rank, doing)),
                }
            }
            Ok(true)
        })
    }

    /// In virtual time a store is an event that has to be announced.
    fn announce(&self, rank: usize) {
        if self.network.as_ref().is_some_and(|network| network.paced)
            && let Some(pace) = self.driven().far.pace()
        {
            pace.notify(rank);
        }
    }

    /// Reads bytes at `offset` of the slot of `rank`, in bounds.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn get(&self, doing: &'static str, rank: usize, offset: usize, into: &mut [u8]) -> Result<()> {
        if self.is_near(rank) {
            // SAFETY: a mapped slot; the caller guarantees that the range is inside.
            unsafe { copy::get(into.as_mut_ptr(), self.node.slot(rank).add(offset), into.len()) };
            return Ok(());
        }
        self.check_alive(rank, doing)?;
        let mut fetch = Fetch::new(rank, offset, into.len());
        self.wait(doing, |driven| fetch.advance(self, driven, doing, into))
    }

    /// As [`Stream::get`], but only goes on with it as far as it can now; tells whether that is all.
    ///
    /// # Errors
    /// As [`Stream::get`], except that it never waits.
    pub(crate) fn go_on(&self, doing: &'static str, fetch: &mut Fetch, into: &mut [u8]) -> Result<bool> {
        self.check_own(doing)?;
        let mut driven = self.driven();
        driven.turn(self);
        let done = fetch.advance(self, &mut driven, doing, into)?;
        if !done {
            self.check_none_lost(&driven, doing)?
        }
        Ok(done)
    }

    /// # Errors
    /// [`Error::PeerLost`] if a rank died.
    fn check_none_lost(&self, driven: &Driven, doing: &'static str) -> Result<()> {
        match self.first_lost(driven) {
            Some((rank, cause)) => Err(Error::PeerLost { rank, cause, doing: doing.into() }),
            None => Ok(()),
        }
    }

    /// Does an atomic at `offset` of the slot of `rank`, in bounds, by the network; tells what was there before.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn atomic(&self, doing: &'static str, rank: usize, offset: usize, asked: Asked) -> Result<u64> {
        match self.insist(doing, rank, |far| far.atomic_now(rank, offset, asked))? {
            Soon::Now(word) => Ok(word),
            Soon::Later(answer) => {
                self.wait(doing, |driven| self.answered(driven, doing, rank, &answer))?;
                Ok(answer.word.load(Ordering::Relaxed))
            }
        }
    }

    /// Posts an atomic, and gives what will hold the answer. Waits for room.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn post_atomic(
        &self,
        doing: &'static str,
        rank: usize,
        offset: usize,
        asked: Asked,
    ) -> Result<Arc<Answer>> {
        self.insist(doing, rank, |far| far.atomic(rank, offset, asked))
    }

    /// What an atomic at `rank` found, if that has come.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn found(&self, doing: &'static str, rank: usize, answer: &Answer) -> Result<Option<u64>> {
        self.check_own(doing)?;
        let mut driven = self.driven();
        driven.turn(self);
        if self.answered(&mut driven, doing, rank, answer)? {
            return Ok(Some(answer.word.load(Ordering::Relaxed)));
        }
        self.check_none_lost(&driven, doing).map(|()| None)
    }

    fn answered(&self, driven: &mut Driven, doing: &'static str, rank: usize, answer: &Answer) -> Result<bool> {
        match answer.outcome() {
            None => Ok(false),
            Some(outcome) => outcome.map(|()| true).map_err(|error| self.failed(driven, error, rank, doing)),
        }
    }

    /// Adds one to a word of the slot of `rank`, after all that this context has put there: to the one at `mapped`, which
    /// processors add to, or to the one at `remote`, which the network adds to.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    #[inline]
    pub(crate) fn ring(&self, doing: &'static str, rank: usize, mapped: usize, remote: usize) -> Result<()> {
        if self.network.is_some() {
            return self.ring_network(doing, rank, mapped, remote);
        }
        self.ring_mapped(rank, mapped);
        Ok(())
    }

    #[inline(always)]
    fn ring_mapped(&self, rank: usize, offset: usize) {
        // SAFETY: an aligned word of a mapped slot, which the caller guarantees to be inside; only touched as this atomic.
        let word = unsafe { AtomicU64::from_ptr(self.node.slot(rank).add(offset).cast()) };
        // Other contexts add to it too. Release pairs with the Acquire load of whoever counts.
        word.fetch_add(1, Ordering::Release);
        if self.sleeps(rank) {
            self.wake(rank);
        }
    }

    #[cold]
    fn ring_network(&self, doing: &'static str, rank: usize, mapped: usize, remote: usize) -> Result<()> {
        if self.is_near(rank) {
            // What the network does there comes first.
            self.wait(doing, |driven| driven.is_settled(self, doing, rank))?;
            self.ring_mapped(rank, mapped);
            return Ok(());
        }
        self.insist(doing, rank, |far| far.ring(rank, remote).map(|sent| (sent == Sent::Done).then_some(())))?;
        let mut driven = self.driven();
        if driven.far.is_silent() && self.job.is_here(rank) {
            driven.nudges.push((rank, false));
            driven.nudge(self);
        }
        Ok(())
    }

    /// Whether `rank` is asleep, or about to be; asked after what it may wait for is stored.
    #[inline(always)]
    fn sleeps(&self, rank: usize) -> bool {
        // Either we see that it sleeps, or it sees what was stored: pairs with the sleeper's barrier in `Engine::sleep`.
        if self.full_fence {
            fence(Ordering::SeqCst)
        } else {
            compiler_fence(Ordering::SeqCst)
        }
        self.job.sleep_word(rank).load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn wake(&self, rank: usize) {
        self.job.wake(rank);
        if self.network.is_some() {
            let mut driven = self.driven();
            if let Some(pace) = driven.far.pace() {
                return pace.notify(rank);
            }
            driven.nudges.push((rank, true));
            driven.nudge(self);
        }
    }

    /// Waits until all that this context has put and rung at `rank` is in effect there.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn flush(&self, doing: &'static str, rank: usize) -> Result<()> {
        fence(Ordering::SeqCst);
        if self.network.is_none() || rank == self.rank {
            return self.check_own(doing);
        }
        self.wait(doing, |driven| match driven.faults.pop_front() {
            Some(error) => Err(error),
            None => driven.is_settled(self, doing, rank),
        })
    }

    /// Whether all that this context has put and rung at `rank` is in effect there. Makes progress once.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn is_flushed(&self, doing: &'static str, rank: usize) -> Result<bool> {
        self.check_own(doing)?;
        if self.network.is_none() || rank == self.rank {
            return Ok(true);
        }
        let mut driven = self.driven();
        driven.turn(self);
        if let Some(error) = driven.faults.pop_front() {
            return Err(error);
        }
        let done = driven.is_settled(self, doing, rank)?;
        if !done {
            self.check_none_lost(&driven, doing)?
        }
        Ok(done)
    }

    /// Waits until nothing of this context is in flight.
    ///
    /// # Errors
    /// As [`Stream::wait`]; what could not be done of what was put before, once.
    pub(crate) fn flush_all(&self, doing: &'static str) -> Result<()> {
        fence(Ordering::SeqCst);
        if self.network.is_none() {
            return self.check_own(doing);
        }
        self.wait(doing, |driven| match driven.faults.pop_front() {
            Some(error) => Err(error),
            None => driven.is_quiet(self, doing),
        })
    }

    /// What this context has put to a rank before is in effect there before what it puts there later.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn order(&self, doing: &'static str) -> Result<()> {
        fence(Ordering::SeqCst);
        self.check_own(doing)?;
        if self.network.is_some() {
            let driven = self.driven();
            // The next flush returns the error for a rank that cannot be reached any more.
            let _ = driven.far.order();
        }
        Ok(())
    }

    /// As [`Stream::flush_all`], by the rank's own thread: what could not be done is told to the context.
    pub(super) fn drain(&self, doing: &'static str) -> Result<()> {
        let Some(network) = &self.network else { return Ok(()) };
        let _draining = Draining::new(&network.draining);
        self.wait(doing, |driven| match driven.is_quiet(self, doing) {
            Ok(quiet) => Ok(quiet),
            Err(error) => {
                driven.faults.push_back(error);
                Ok(false)
            }
        })
    }
}

/// Holds the context's other threads off, also through a panic of a handler.
struct Draining<'a>(&'a AtomicBool);

impl<'a> Draining<'a> {
    fn new(flag: &'a AtomicBool) -> Draining<'a> {
        // The lock orders what it guards; this only keeps others from taking it.
        flag.store(true, Ordering::Relaxed);
        Draining(flag)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A get of bytes of one rank's slot, in as many requests as the network needs.
#[derive(Debug)]
pub(crate) struct Fetch {
    rank: usize,
    offset: usize,
    /// Not asked for yet: start and length, from `offset`.
    rest: Vec<(usize, usize)>,
    /// Asked for.
    flying: VecDeque<(usize, usize, Arc<Answer>)>,
}

impl Fetch {
    /// Of `len` bytes at `offset`. Nothing is asked for yet.
    pub(crate) fn new(rank: usize, offset: usize, len: usize) -> Fetch {
        let rest = if len == 0 { Vec::new() } else { vec![(0, len)] };
        Fetch { rank, offset, rest, flying: VecDeque::new() }
    }

    /// Writes what has come to `into`, asks for more, and tells whether all is there.
    fn advance(&mut self, stream: &Stream, driven: &mut Driven, doing: &'static str, into: &mut [u8]) -> Result<bool> {
        while let Some((start, len, answer)) = self.flying.front()
            && stream.answered(driven, doing, self.rank, answer)?
        {
            let bytes = answer.bytes().expect("data comes before its completion");
            into[*start..*start + bytes.len()].copy_from_slice(bytes);
            if bytes.len() < *len {
                // A registration ended there.
                self.rest.push((start + bytes.len(), len - bytes.len()));
            }
            self.flying.pop_front();
        }
        while self.flying.len() < WINDOW
            && let Some((start, left)) = self.rest.pop()
        {
            let len = left.min(driven.far.largest_get());
            let asked = driven.far.get(self.rank, self.offset + start, len);
            match asked.map_err(|error| stream.failed(driven, error, self.rank, doing))? {
                Some(answer) => self.flying.push_back((start, len, answer)),
                None => {
                    self.rest.push((start, left));
                    break;
                }
            }
            if len < left {
                self.rest.push((start + len, left - len));
            }
        }
        Ok(self.rest.is_empty() && self.flying.is_empty())
    }
}
