//! The barrier: nobody leaves before all have entered.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::exchange::Kind;
use crate::engine::Engine;
use crate::error::{Error, Loss, Result};
use crate::settings;

const DOING: &str = "barrier";
/// Longer than the pieces of one word take to arrive.
const TORN: Duration = Duration::from_millis(20);

/// This rank's part in all barriers of its world.
#[derive(Debug)]
pub struct Barrier {
    /// Barriers entered so far.
    epoch: Cell<u64>,
    central: bool,
    /// Who was lost while this rank was in a barrier. It is not whole again: a later one would count wrong.
    broken: Cell<Option<(usize, Loss)>>,
}

impl Barrier {
    /// The barrier that the settings ask for. All ranks have arrived, so that all choose alike.
    pub fn new(engine: &Engine) -> Barrier {
        let central = match engine.settings.barrier {
            // Its one word wants every rank within a pointer's reach.
            _ if engine.far().is_some() => false,
            settings::Barrier::Central => true,
            settings::Barrier::Dissemination => false,
            // One wake-up for each rank beats log2 n of them when ranks share cores.
            settings::Barrier::Auto => engine.patience().crowded,
        };
        Barrier { epoch: Cell::new(0), central, broken: Cell::new(None) }
    }

    /// The algorithm in use.
    pub fn name(&self) -> &'static str {
        if self.central { "central counter" } else { "dissemination" }
    }

    /// The number that the next barrier will have.
    pub fn next_epoch(&self) -> u64 {
        self.epoch.get() + 1
    }

    /// Enters, and returns when all ranks have entered. Delivers messages meanwhile; what is wrong with them is told
    /// by the next [`Engine::poll`].
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died, or left without entering; [`Error::InsideHandler`].
    pub fn enter(&self, engine: &Engine) -> Result<()> {
        self.enter_for(engine, 0)
    }

    /// As [`Barrier::enter`], as a part of the collective call that `kind` stands for. Over a network a rank that is in
    /// another one is found out here.
    ///
    /// # Errors
    /// As [`Barrier::enter`]; [`Error::RanksDiffer`].
    pub fn enter_for(&self, engine: &Engine, kind: u8) -> Result<()> {
        engine.check_outside_handler(DOING)?;
        if let Some((rank, cause)) = self.broken.get() {
            return Err(Error::PeerLost { rank, cause, doing: DOING.into() });
        }
        let epoch = self.next_epoch();
        self.epoch.set(epoch);
        engine.turn();
        // What this rank has put elsewhere is in effect before others hear that it has entered.
        let quiet = engine.quiet(DOING);
        // Release: who sees that this rank entered, and left, sees what it wrote before.
        engine.status(engine.rank).entered.store(epoch, Ordering::Release);
        if engine.size == 1 {
            return Ok(());
        }
        let outcome = match quiet {
            Err(error) => Err(error),
            Ok(()) if self.central => central(engine, epoch),
            Ok(()) if engine.far().is_some() => far_dissemination(engine, epoch, kind),
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

/// In round k, rank r tells rank r + 2^k that all ranks it has heard of, and itself, have entered.
fn dissemination(engine: &Engine, epoch: u64) -> Result<()> {
    let (rank, size) = (engine.rank, engine.size);
    let own = engine.node.slot(rank);
    for round in 0..rounds(size) {
        let partner = (rank + (1 << round)) % size;
        let flag = engine.layout.barrier_flag(round);
        // SAFETY: a committed line of the partner's slot, only written by this rank.
        let theirs = unsafe { AtomicU64::from_ptr(engine.node.slot(partner).add(flag).cast()) };
        // Pairs with the Acquire load below, at the partner.
        theirs.store(epoch, Ordering::Release);
        engine.interface.wake_if_asleep(partner);
        // SAFETY: a committed line of our own slot.
        let ours = unsafe { AtomicU64::from_ptr(own.add(flag).cast()) };
        wait(engine, epoch, || ours.load(Ordering::Acquire) >= epoch)?;
    }
    Ok(())
}

/// The same by puts. The top byte of a flag says which call its sender is in.
fn far_dissemination(engine: &Engine, epoch: u64, kind: u8) -> Result<()> {
    const KIND: u32 = 56;
    let (rank, size) = (engine.rank, engine.size);
    for round in 0..rounds(size) {
        let flag = engine.layout.barrier_flag(round);
        let value = epoch | u64::from(kind) << KIND;
        engine.far_put_flag((rank + (1 << round)) % size, flag, value).map_err(|error| match error {
            // The partner may have left because of one that never came.
            Error::PeerLost { rank, cause: Loss::Left, .. } => deserted(engine, find_deserter(engine, epoch), rank),
            Error::PeerLost { rank, cause, .. } => Error::PeerLost { rank, cause, doing: DOING.into() },
            other => other,
        })?;
        // SAFETY: a committed line of our own slot.
        let ours = unsafe { AtomicU64::from_ptr(engine.node.slot(rank).add(flag).cast()) };
        let split = || {
            let word = ours.load(Ordering::Acquire);
            (word & ((1 << KIND) - 1), (word >> KIND) as u8)
        };
        wait(engine, epoch, || split().0 >= epoch)?;
        let (seen, theirs) = split();
        // It may be one barrier ahead by now, but then it has been through this one.
        if seen == epoch && theirs != kind {
            // Soft-RoCE writes a word byte by byte, the kind last.
            let whole = engine.wait_together_for(DOING, TORN, || split() != (seen, theirs));
            let (seen, theirs) = split();
            if whole.is_ok() && (seen != epoch || theirs == kind) {
                continue;
            }
            return Err(differ((rank + size - (1 << round)) % size, theirs, rank, kind));
        }
    }
    // Flags that found no room would wait for this rank's next call.
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

/// Everyone counts up one word at rank 0; the last one opens the door.
fn central(engine: &Engine, epoch: u64) -> Result<()> {
    // SAFETY: the center line of rank 0's slot, only touched here.
    let (arrivals, done) = unsafe {
        let center = engine.node.slot(0).add(engine.layout.barrier_center()).cast::<u64>();
        (AtomicU64::from_ptr(center), AtomicU64::from_ptr(center.add(1)))
    };
    // AcqRel: the last one to arrive has seen what everyone wrote before.
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
            // It may have entered, and others gone on, since we looked.
            return deserter.is_some();
        }
        false
    })?;
    match deserter {
        Some(rank) if !ready() => Err(deserted(engine, deserter, rank)),
        _ => Ok(()),
    }
}

/// The error for a barrier that `deserter` never entered, or else `rank` left.
#[cold]
fn deserted(engine: &Engine, deserter: Option<usize>, rank: usize) -> Error {
    // It may have left because another one died, which is then what there is to tell.
    let (rank, cause) = engine.job.first_lost().unwrap_or((deserter.unwrap_or(rank), Loss::Left));
    engine.lost(rank, cause, DOING)
}

/// A rank that left without entering this barrier.
#[cold]
fn find_deserter(engine: &Engine, epoch: u64) -> Option<usize> {
    engine.job.first_to_leave(|rank| engine.status(rank).entered.load(Ordering::Acquire) < epoch)
}
