//! Where all ranks are mapped, plain barriers and the end of a world also compare what the calls before have noted: results of reductions
//! that no exchange has compared. A rank that has nothing noted writes no board.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::super::everyone::Barrier;
use super::super::title::{Asked, Earlier, Facts, Kind, Noted, Title, Written, differ};
use super::{Exchange, FACTS};
use crate::engine::{Engine, Running};
use crate::error::{Error, Loss, Result};
use crate::memory::copy;
use crate::memory::layout::EXCHANGE_LEN;

impl Exchange {
    /// A plain barrier, for at most `limit` if there is one. Where all ranks are mapped it tells ranks that are in another call, and those
    /// that have noted different things before.
    ///
    /// # Errors
    /// As [`Barrier::enter`]; [`Error::TimedOut`] if there is a limit: then the next call goes on.
    #[inline]
    pub fn barrier(
        &self,
        running: &Running<'_>,
        engine: &Engine,
        barrier: &Barrier,
        limit: Option<Duration>,
    ) -> Result<()> {
        let digest = match self.noted.get().0 {
            Noted::Nothing => 0,
            _ => self.show_noted(engine, barrier, Kind::Barrier)?,
        };
        if barrier.enter_plain(running, engine, digest, limit)? || !engine.routes.all_mapped() {
            return Ok(());
        }
        compare(engine, barrier.next_epoch() - 1)
    }

    /// Shows what this rank has noted in the barrier that it enters next, and gives the digest for it. 0 if nothing can be shown there.
    fn show_noted(&self, engine: &Engine, barrier: &Barrier, kind: Kind) -> Result<u64> {
        if !engine.routes.all_mapped() || barrier.is_unfinished() {
            return Ok(0);
        }
        barrier.pass_last(engine)?;
        let (epoch, asked) = (barrier.next_epoch(), Asked::from(kind));
        let title = asked.title(epoch, 0, self.earlier.take());
        let noted = self.noted.replace((Noted::Nothing, None));
        let written = Written { asked, call: engine.calls.current(), noted };
        let half = (epoch % 2) as usize;
        // SAFETY: our own board, inside the committed control area; all ranks that read its last contents have entered a barrier since,
        // which we have passed, at the latest above.
        unsafe { self.write(board(engine, engine.rank, epoch), half, &title, written) };
        Ok(title.digest())
    }

    /// Shows what this rank has noted to those that leave after it. It enters no further barrier.
    #[cold]
    pub fn show_end(&self, engine: &Engine, barrier: &Barrier) {
        // A call that failed, or that a panic came out of, has told why.
        if self.noted.get().0 != Noted::Nothing && barrier.is_passed() {
            let _ = self.show_noted(engine, barrier, Kind::Leave);
        }
    }

    /// The error, if a rank that has left has noted other things than this one, which has left too and had shown its own. Compares ranks that
    /// have left after the same number of barriers only: others were told, or failed.
    #[cold]
    pub fn compare_ends(&self, engine: &Engine, barrier: &Barrier) -> Option<Error> {
        let epoch = barrier.next_epoch();
        let is_end = |title: &Title| title.epoch == epoch && title.kind == Kind::Leave as u64;
        if !engine.routes.all_mapped() || engine.job.any_lost() {
            return None;
        }
        // Of two ranks that leave at once, one at least finds that the other has left.
        fence(Ordering::SeqCst);
        let mine = title_of(engine, engine.rank, epoch);
        let differs = |rank: &usize| {
            // Acquire, which pairs with the Release in `leave`: that rank wrote its board before.
            engine.job.loss(*rank) == Some(Loss::Left) && {
                let theirs = title_of(engine, *rank, epoch);
                is_end(&theirs) && !theirs.agrees(&mine)
            }
        };
        if !is_end(&mine) {
            return None;
        }
        let side = |rank| (rank, title_of(engine, rank, epoch), facts_of(engine, rank, epoch));
        let rank = (0..engine.size).find(differs)?;
        Some(differ(side(rank.max(engine.rank)), side(rank.min(engine.rank)), epoch))
    }
}

/// Compares the boards of all ranks, which are mapped and have entered the barrier with this number. A rank without a board of that number
/// is in a plain barrier.
///
/// # Errors
/// [`Error::RanksDiffer`].
#[cold]
pub(super) fn compare(engine: &Engine, epoch: u64) -> Result<()> {
    let plain = Asked::from(Kind::Barrier);
    let side = |rank| {
        let title = title_of(engine, rank, epoch);
        if title.epoch == epoch {
            return (rank, title, facts_of(engine, rank, epoch));
        }
        // Only this rank's own place is known.
        let call = engine.calls.current().filter(|_| rank == engine.rank);
        (rank, plain.title(epoch, 0, Earlier::default()), plain.facts(call, (Noted::Nothing, None)))
    };
    // Not a rank that knows nothing: it would agree with all.
    let reference =
        (0..engine.size).map(side).find(|(_, title, _)| title.earlier.has_results()).unwrap_or_else(|| side(0));
    match (0..engine.size).map(side).find(|(_, title, _)| !title.agrees(&reference.1)) {
        Some(theirs) if theirs.0 < reference.0 => Err(differ(reference, theirs, epoch)),
        Some(theirs) => Err(differ(theirs, reference, epoch)),
        None => Ok(()),
    }
}

/// The board that a rank writes to in the barrier with this number.
fn board(engine: &Engine, rank: usize, epoch: u64) -> *mut u8 {
    let at = engine.layout.exchange + (epoch % 2) as usize * EXCHANGE_LEN;
    // SAFETY: inside the control area of a slot that is mapped: each rank commits its own before it arrives.
    unsafe { engine.node.slot(rank).add(at) }
}

/// The title on a board: of the exchange with this number, or of an earlier one.
fn title_of(engine: &Engine, rank: usize, epoch: u64) -> Title {
    let mut title: Title = bytemuck::Zeroable::zeroed();
    // SAFETY: the board is not written again before this rank enters the next barrier, and not at all by a rank that has left.
    unsafe { copy::copy((&raw mut title).cast(), board(engine, rank, epoch), size_of::<Title>()) };
    title
}

/// The facts on a board whose title is of the exchange with this number.
fn facts_of(engine: &Engine, rank: usize, epoch: u64) -> Facts {
    let mut facts: Facts = bytemuck::Zeroable::zeroed();
    // SAFETY: as in `title_of`; inside the board.
    unsafe { copy::copy((&raw mut facts).cast(), board(engine, rank, epoch).add(FACTS), size_of::<Facts>()) };
    facts
}
