//! The barrier: no rank leaves it before all ranks have entered.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::title::Kind;
use crate::engine::Engine;
use crate::error::{Error, Loss, Result};
use crate::settings;

const DOING: &str = "barrier";
/// How long to wait for the rest of a word that is visible in part: soft-RoCE writes a word byte by byte.
/// Chosen: far longer than the copy, even if its kernel thread is descheduled in between.
const TORN: Duration = Duration::from_millis(20);

/// This rank's part in all barriers of its world.
#[derive(Debug)]
pub struct Barrier {
    /// Barriers entered so far.
    epoch: Cell<u64>,
    /// The algorithm: central counter, or dissemination.
    central: bool,
    /// The peer that failed while this rank was in a barrier. Later barriers fail too, since their counts would be wrong.
    broken: Cell<Option<(usize, Loss)>>,
    /// This rank is in a collective call.
    running: Cell<bool>,
}

/// A collective call that this rank is in, until it is dropped.
pub struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Barrier {
    /// The barrier that the settings ask for. Call it when all ranks have arrived, so that all make the same choice.
    pub fn new(engine: &Engine) -> Barrier {
        let central = match engine.settings.barrier {
            // The central counter needs rank 0's slot mapped at every rank.
            _ if !engine.routes.all_mapped() => false,
            settings::Barrier::Central => true,
            settings::Barrier::Dissemination => false,
            // With ranks that share cores, wake-ups dominate: the central barrier needs one a rank, dissemination log2 n.
            settings::Barrier::Auto => engine.patience().crowded,
        };
        Barrier { epoch: Cell::new(0), central, broken: Cell::new(None), running: Cell::new(false) }
    }

    /// The algorithm in use.
    pub fn name(&self) -> &'static str {
        if self.central { "central counter" } else { "dissemination" }
    }

    /// The epoch of the next barrier; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        self.epoch.get() + 1
    }

    /// Marks this rank as in a collective call. A second call inside it, by a function that it calls, would take the ranks of the
    /// first for its own, and an allocation would disagree on who has which memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this rank is in a collective call; [`Error::InsideHandler`].
    pub fn begin(&self, engine: &Engine, doing: &'static str) -> Result<Running<'_>> {
        engine.check_outside_handler(doing)?;
        if self.running.replace(true) {
            let why = "this rank is in another collective call; a function that runs inside one, of an event or an operator, \
                       can make none"
                .into();
            return Err(Error::InvalidArgument { operation: doing, why });
        }
        Ok(Running(&self.running))
    }

    /// Enters, and blocks until all ranks have entered. Delivers messages meanwhile; the next [`Engine::poll`] reports
    /// their errors. Part of the collective call with number `kind` (see [`Kind`]; 0 is a plain barrier): over a network this detects
    /// ranks that are in another one.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died, or left without entering; [`Error::RanksDiffer`].
    pub fn enter(&self, _running: &Running<'_>, engine: &Engine, kind: u8) -> Result<()> {
        if let Some((rank, cause)) = self.broken.get() {
            return Err(Error::PeerLost { rank, cause, doing: DOING.into() });
        }
        let epoch = self.next_epoch();
        self.epoch.set(epoch);
        engine.turn();
        // All puts of this rank must be in effect before others learn that it has entered.
        let quiet = engine.quiet(DOING);
        // Pairs with the Acquire load in `find_deserter`.
        engine.status(engine.rank).entered.store(epoch, Ordering::Release);
        if engine.size == 1 {
            return Ok(());
        }
        let outcome = match quiet {
            Err(error) => Err(error),
            Ok(()) if self.central => central(engine, epoch),
            Ok(()) if !engine.routes.all_mapped() => far_dissemination(engine, epoch, kind),
            Ok(()) => dissemination(engine, epoch),
        };
        if let Err(Error::PeerLost { rank, cause, .. }) = outcome {
            self.broken.set(Some((rank, cause)));
        }
        outcome
    }
}

fn rounds(size: usize) -> usize {
    size.next_power_of_two().ilog2() as usize
}

/// The dissemination barrier. In round k, rank r tells rank r + 2^k that r and all ranks that r has heard of have entered.
fn dissemination(engine: &Engine, epoch: u64) -> Result<()> {
    let (rank, size) = (engine.rank, engine.size);
    let own = engine.node.slot(rank);
    for round in 0..rounds(size) {
        let partner = (rank + (1 << round)) % size;
        let flag = engine.layout.barrier_flag(round);
        // SAFETY: the flag is inside a committed line of the partner's slot, aligned, and only accessed as an atomic.
        let theirs = unsafe { AtomicU64::from_ptr(engine.node.slot(partner).add(flag).cast()) };
        // Pairs with the Acquire load below, at the partner.
        theirs.store(epoch, Ordering::Release);
        engine.interface.wake_if_asleep(partner);
        // SAFETY: as above, in our own slot.
        let ours = unsafe { AtomicU64::from_ptr(own.add(flag).cast()) };
        wait(engine, epoch, || ours.load(Ordering::Acquire) >= epoch)?;
    }
    Ok(())
}

/// The dissemination barrier by puts over a network. The top byte of a flag is the `kind` of its sender's call.
fn far_dissemination(engine: &Engine, epoch: u64, kind: u8) -> Result<()> {
    const KIND: u32 = 56;
    let (rank, size) = (engine.rank, engine.size);
    for round in 0..rounds(size) {
        let flag = engine.layout.barrier_flag(round);
        let value = epoch | u64::from(kind) << KIND;
        engine.far_put_flag((rank + (1 << round)) % size, flag, value).map_err(|error| match error {
            // The partner may have left because another rank never entered: then report that rank.
            Error::PeerLost { rank, cause: Loss::Left, .. } => deserted(engine, find_deserter(engine, epoch), rank),
            Error::PeerLost { rank, cause, .. } => Error::PeerLost { rank, cause, doing: DOING.into() },
            other => other,
        })?;
        // SAFETY: the flag is inside a committed line of our own slot, aligned; the CPU accesses it only as an atomic.
        let ours = unsafe { AtomicU64::from_ptr(engine.node.slot(rank).add(flag).cast()) };
        let split = || {
            let word = ours.load(Ordering::Acquire);
            (word & ((1 << KIND) - 1), (word >> KIND) as u8)
        };
        wait(engine, epoch, || split().0 >= epoch)?;
        let (seen, theirs) = split();
        // If the flag shows a later epoch, its sender has passed this barrier, so its kind no longer matters.
        if seen == epoch && theirs != kind {
            // Soft-RoCE writes a word byte by byte, the kind last: the kind may be about to arrive.
            let whole = engine.wait_together_for(DOING, TORN, || split() != (seen, theirs));
            let (seen, theirs) = split();
            if whole.is_ok() && (seen != epoch || theirs == kind) {
                continue;
            }
            return Err(differ((rank + size - (1 << round)) % size, theirs, rank, kind));
        }
    }
    // Push out flags that met backpressure. They would otherwise stay here until this rank's next call.
    (0..rounds(size)).try_for_each(|round| engine.far_hand_over(DOING, (rank + (1 << round)) % size))
}

#[cold]
fn differ(rank: usize, theirs: u8, reference: usize, ours: u8) -> Error {
    let show = |kind| Kind::name(kind).to_owned();
    Error::RanksDiffer {
        what: "the collective call",
        rank,
        reference,
        theirs: show(theirs),
        ours: show(ours),
        advice: "every rank must make the same collective calls, in the same order",
    }
}

/// The central barrier: every rank increments a counter at rank 0, and the last to do so releases the others.
fn central(engine: &Engine, epoch: u64) -> Result<()> {
    // SAFETY: two aligned words in the center line of rank 0's slot, which only this function accesses.
    let (arrivals, done) = unsafe {
        let center = engine.node.slot(0).add(engine.layout.barrier_center()).cast::<u64>();
        (AtomicU64::from_ptr(center), AtomicU64::from_ptr(center.add(1)))
    };
    // AcqRel: the last rank to arrive sees what all ranks wrote before they arrived, and passes it on by `done`.
    if arrivals.fetch_add(1, Ordering::AcqRel) + 1 == epoch * engine.size as u64 {
        // Pairs with the Acquire load below.
        done.store(epoch, Ordering::Release);
        (0..engine.size).filter(|rank| *rank != engine.rank).for_each(|rank| engine.interface.wake_if_asleep(rank));
        return Ok(());
    }
    wait(engine, epoch, || done.load(Ordering::Acquire) >= epoch)
}

fn wait(engine: &Engine, epoch: u64, mut ready: impl FnMut() -> bool) -> Result<()> {
    let mut deserter = None;
    engine.wait_together(DOING, || {
        if ready() {
            return true;
        }
        if engine.job.any_left() {
            deserter = find_deserter(engine, epoch);
            // Ends the wait; `ready` is checked again below, since the barrier may have completed meanwhile.
            return deserter.is_some();
        }
        false
    })?;
    match deserter {
        Some(rank) if !ready() => Err(deserted(engine, deserter, rank)),
        _ => Ok(()),
    }
}

/// The error for a barrier that `deserter` never entered, or, if there is none, that `rank` left.
#[cold]
fn deserted(engine: &Engine, deserter: Option<usize>, rank: usize) -> Error {
    // The deserter may have left because another rank died: then report that rank.
    let (rank, cause) = engine.job.first_lost().unwrap_or((deserter.unwrap_or(rank), Loss::Left));
    engine.lost(rank, cause, DOING)
}

/// A rank that left without entering this barrier.
#[cold]
fn find_deserter(engine: &Engine, epoch: u64) -> Option<usize> {
    engine.job.first_to_leave(|rank| engine.status(rank).entered.load(Ordering::Acquire) < epoch)
}
