//! The handle to a bell.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::allocate::Block;
use super::{OneThread, World};
use crate::engine::{Claim, Engine, Ready};
use crate::error::{Placed, Result};
use crate::sync::bell::{WORDS_LEN, Words};

/// A counter at every rank, that any rank rings to say that something has happened there.
///
/// Ringing adds one and is never lost. A rank that sees a ring sees everything that the ringer has put there before. The
/// count only grows: wait for the next number instead of resetting it. A loop over [`Bell::count`] delivers messages,
/// since each count polls.
///
/// A bell takes one cache line of each rank, however many ranks there are. Ringing is one store where at most 7 ranks share memory, an
/// atomic add where more do, and over a network an atomic of the network, or a notice.
pub struct Bell {
    pub(crate) words: OneThread<Words, Bell>,
    engine: OneThread<Rc<Engine>, Bell>,
    block: Block,
}

impl World {
    /// Makes a bell, with a count of 0 at every rank. Collective.
    ///
    /// # Errors
    /// As [`World::alloc`].
    #[track_caller]
    pub fn bell(&self) -> Result<Bell> {
        self.engine.within("bell", || {
            let block = self.allocate(WORDS_LEN, "bell")?;
            Ok(Bell::over(block, Rc::clone(self.engine())))
        })
    }
}

impl Bell {
    /// The bell in a new block of [`WORDS_LEN`] bytes.
    pub(super) fn over(block: Block, engine: Rc<Engine>) -> Bell {
        // SAFETY: the block is zeroed, has that many bytes, and lives in the bell.
        let words = unsafe { Words::new(&engine, block.offset) };
        Bell { words: OneThread::new(words), engine: OneThread::new(engine), block }
    }

    pub(super) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// Its memory as it is now, for an event that happens after this.
    pub(super) fn claim(&self) -> Claim {
        Claim::new(&self.engine.blocks, self.block.number)
    }

    /// Adds one to the count at `rank`. Never blocks; the target need not make progress.
    ///
    /// # Errors
    /// [`crate::Error::RankOutOfRange`].
    #[inline(always)]
    #[track_caller]
    pub fn ring(&self, rank: usize) -> Result<()> {
        self.words.ring(&self.engine, rank)
    }

    /// Polls, and tells how often this rank's bell has been rung.
    ///
    /// # Errors
    /// As [`World::poll`].
    #[inline]
    #[track_caller]
    pub fn count(&self) -> Result<u64> {
        (|| -> Result<u64> {
            self.engine.poll_alive("counting the rings of a bell")?;
            Ok(self.words.count())
        })()
        .placed_here()
    }

    /// Waits until the bell has been rung at least `target` times in all, and tells how often it has. Delivers
    /// messages meanwhile.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`] if a rank died, or if one has left and all others wait;
    /// [`crate::Error::InsideHandler`].
    #[inline]
    #[track_caller]
    pub fn wait(&self, target: u64) -> Result<u64> {
        self.engine.at(|| self.words.wait(&self.engine, target, None))
    }

    /// Ready when the bell has been rung at least `target` times in all, with how often it has: the future form of [`Bell::wait`].
    /// Its errors name the place where it was made.
    #[inline]
    #[track_caller]
    pub fn rung(&self, target: u64) -> Rung<'_> {
        Rung { bell: self, target, place: self.engine.place() }
    }

    /// As [`Bell::wait`], for at most `limit`.
    ///
    /// # Errors
    /// As [`Bell::wait`], and [`crate::Error::TimedOut`].
    #[track_caller]
    pub fn wait_timeout(&self, target: u64, limit: Duration) -> Result<u64> {
        self.engine.at(|| self.words.wait(&self.engine, target, Some(limit)))
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bell(rung {} times)", self.words.count())
    }
}

/// Ready when a bell has been rung often enough; see [`Bell::rung`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Rung<'a> {
    bell: &'a Bell,
    target: u64,
    /// Where the program made it.
    place: &'static Location<'static>,
}

impl Future for Rung<'_> {
    type Output = Result<u64>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let polled = self.bell.engine.poll_ready("waiting for a bell", context, || {
            let count = self.bell.words.count();
            Ok((count >= self.target).then_some(count))
        });
        polled.map_err(|error| error.at(self.place))
    }
}

impl Ready for Rung<'_> {
    fn is_ready(&mut self) -> bool {
        self.bell.words.count() >= self.target
    }

    fn driver(&self) -> Option<*const ()> {
        Some(Rc::as_ptr(&self.bell.engine).cast())
    }
}
