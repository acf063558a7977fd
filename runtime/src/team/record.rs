//! A member's record: which collectives it has begun, who called them, and what went wrong. It writes its own, in its own memory, at
//! no cost to others. A member that waits for long reads those of its peers where they are mapped; one that finds a difference
//! reads who called over the network too.

use std::sync::atomic::{Ordering, fence};

use bytemuck::Zeroable;

use crate::error::{Error, Loss, Result};
use crate::team::title::Caller;

use super::head::Head;
use super::hub::Hub;

/// Collectives that a record remembers.
pub(super) const KEPT: usize = 8;
/// Words of a head, and of who called it.
const HEAD: usize = size_of::<Head>() / 8;
const CALLER: usize = size_of::<Caller>() / 8;
/// First word of the heads; word 0 counts collectives begun.
const HEADS: usize = 1;
/// First word of the callers of these collectives.
const CALLERS: usize = HEADS + KEPT * HEAD;
/// Number of the failed collective; 0: none.
const FAILED: usize = CALLERS + KEPT * CALLER;
/// The rank of the world that the failed collective lost: (rank + 1) << 8 | left; 0: none.
const LOST: usize = FAILED + 1;
/// Bytes of the error text.
const TEXT_LEN: usize = FAILED + 2;
/// First word of the error text.
const TEXT: usize = FAILED + 3;
/// Most bytes of the error text. Chosen: a record then fills its cache lines.
const TEXT_MAX: usize = 344;
/// World rank + 1 of a member that reported its failure here; 0: none.
const TOLD: usize = TEXT + TEXT_MAX / 8;
/// Words of a record, whole cache lines.
pub(super) const RECORD: usize = (TOLD + 1).next_multiple_of(8);

/// What another member's record says about a collective.
pub(super) enum Said {
    /// Nothing yet.
    Nothing,
    /// It is, or was, in this one.
    Begun(Head),
    /// It has failed, in this one or an earlier one.
    Failed(String),
    /// It has lost a rank of the world.
    Lost(usize, Loss),
}

/// Clears this rank's record, for the next team.
pub(super) fn clear(hub: &Hub, slot: usize) {
    (0..RECORD).for_each(|at| hub.memory.store(hub.record(slot, at), 0));
}

/// The place of collective `number`.
#[inline]
pub(super) fn kept(number: u64) -> usize {
    number as usize % KEPT
}

/// Whether what a reader took for the record of collective `number` may be of collective `number + KEPT`, which has the same place,
/// if afterwards the reader finds `begun`. The writer writes there before it counts that collective, and no fence of its own keeps
/// the count before that one ahead of the words: with either of the last two counts, the words may be there.
fn is_overwritten(number: u64, begun: u64) -> bool {
    begun + 2 >= number + KEPT as u64
}

/// Says that collective `number`, from 1, has begun. `caller` is `None` if the record already holds it.
#[inline]
pub(super) fn begin(hub: &Hub, slot: usize, number: u64, head: Head, caller: Option<Caller>) {
    write(hub, slot, number, head, caller);
    // Pairs with the fence in `read`.
    fence(Ordering::Release);
    hub.memory.store(hub.record(slot, 0), number);
}

/// Writes what readers find once `number` is counted.
#[inline]
fn write(hub: &Hub, slot: usize, number: u64, head: Head, caller: Option<Caller>) {
    let (place, words) = (kept(number), bytemuck::cast::<Head, [u64; HEAD]>(head));
    words
        .into_iter()
        .enumerate()
        .for_each(|(n, word)| hub.memory.store(hub.record(slot, HEADS + place * HEAD + n), word));
    if let Some(caller) = caller {
        let words = bytemuck::cast::<Caller, [u64; CALLER]>(caller);
        let at = CALLERS + place * CALLER;
        words.into_iter().enumerate().for_each(|(n, word)| hub.memory.store(hub.record(slot, at + n), word));
    }
}

/// The caller of collective `number` at world rank `rank`; zeroed if overwritten, or if it cannot be read.
#[cold]
pub(super) fn caller(hub: &Hub, slot: usize, rank: usize, number: u64) -> Caller {
    let mut caller = Caller::zeroed();
    let at = hub.record(slot, CALLERS + kept(number) * CALLER);
    let mut begun = [0; 8];
    // If this fails the error message says less.
    let got = hub.memory.get(rank, at, bytemuck::bytes_of_mut(&mut caller));
    // Pairs with the fence in `begin` of a later collective.
    fence(Ordering::Acquire);
    let got = got.and_then(|()| hub.memory.get(rank, hub.record(slot, 0), &mut begun));
    let begun = u64::from_ne_bytes(begun);
    let is_there = got.is_ok() && begun >= number && !is_overwritten(number, begun);
    if is_there { caller } else { Caller::zeroed() }
}

/// Says that collective `number` has failed here.
#[cold]
pub(super) fn fail(hub: &Hub, slot: usize, number: u64, error: &Error) {
    let text = match error {
        // The reader knows whose record this is, so leave the rank out.
        Error::Agreed { rank, why } if *rank == hub.engine.rank => why.clone(),
        error => error.to_string(),
    };
    let text = &text[..text.floor_char_boundary(TEXT_MAX)];
    let mut bytes = [0; TEXT_MAX];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    for (n, chunk) in bytes.chunks_exact(8).enumerate() {
        hub.memory.store(hub.record(slot, TEXT + n), u64::from_ne_bytes(chunk.try_into().expect("chunks of 8")));
    }
    let lost = match error {
        Error::PeerLost { rank, cause, .. } => (*rank as u64 + 1) << 8 | u64::from(*cause == Loss::Left),
        _ => 0,
    };
    hub.memory.store(hub.record(slot, LOST), lost);
    hub.memory.store(hub.record(slot, TEXT_LEN), text.len() as u64);
    fence(Ordering::Release);
    hub.memory.store(hub.record(slot, FAILED), number);
}

/// Reports this rank's failure to world rank `peer`, for a team in which not all have mapped this record.
#[cold]
pub(super) fn tell(hub: &Hub, slot: usize, peer: usize) -> Result<()> {
    hub.memory.put(peer, hub.record(slot, TOLD), &(hub.engine.rank as u64 + 1).to_ne_bytes())
}

/// World rank of a member that reported a failure here.
#[inline]
pub(super) fn told(hub: &Hub, slot: usize) -> Option<usize> {
    (hub.memory.load(hub.record(slot, TOLD)) as usize).checked_sub(1)
}

/// What the record of `rank`, of the world, says about collective `number`. Where its memory is mapped.
#[cold]
pub(super) fn read(hub: &Hub, slot: usize, rank: usize, number: u64) -> Said {
    let load = |at| {
        let mut word = [0; 8];
        match hub.memory.get(rank, hub.record(slot, at), &mut word) {
            Ok(()) => u64::from_ne_bytes(word),
            Err(_) => 0,
        }
    };
    let head = |number: u64| {
        let at = HEADS + kept(number) * HEAD;
        bytemuck::cast::<[u64; HEAD], Head>(std::array::from_fn(|n| load(at + n)))
    };
    let (begun, failed) = (load(0), load(FAILED));
    // Pairs with the fences in `begin` and `fail`.
    fence(Ordering::Acquire);
    let failed_how = || {
        let lost = load(LOST);
        if lost != 0 {
            let cause = if lost & 1 == 1 { Loss::Left } else { Loss::Unknown };
            return Said::Lost((lost >> 8) as usize - 1, cause);
        }
        let words: Vec<u64> = (TEXT..TOLD).map(load).collect();
        let len = (load(TEXT_LEN) as usize).min(TEXT_MAX);
        Said::Failed(String::from_utf8_lossy(&bytemuck::cast_slice::<u64, u8>(&words)[..len]).into_owned())
    };
    if begun < number {
        return if failed != 0 && !head(failed).is_refused() { failed_how() } else { Said::Nothing };
    }
    let theirs = head(number);
    fence(Ordering::Acquire);
    if is_overwritten(number, load(0)) {
        // The peer has begun several more collectives, so it completed this one without error: it was in the same call.
        return Said::Nothing;
    }
    match theirs.is_refused() || failed == number {
        true => failed_how(),
        false => Said::Begun(theirs),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::head::Kind;
    use super::*;

    const LAST: u64 = KEPT as u64;

    #[test]
    fn what_is_being_overwritten_is_not_read() {
        let outcomes = crate::threads(1, |world| {
            let team = super::super::Team::world(world)?;
            let (hub, slot) = (&team.shared.context.hub, team.shared.context.slot);
            let head = |number: u64| Head::new::<u64>(Kind::Broadcast, number as usize);
            let said = |number| match read(hub, slot, 0, number) {
                Said::Begun(theirs) => (1..=LAST + 1).find(|number| theirs.agrees(head(*number))),
                _ => None,
            };
            for number in 1..=LAST {
                begin(hub, slot, number, head(number), Some(Caller::new("u64", None)));
                assert_eq!(said(number), Some(number));
                assert_eq!(said(1), Some(1).filter(|_| number < LAST - 1), "{number} begun");
            }
            // It is about to begin the next, which has the place of collective 1.
            write(hub, slot, LAST + 1, head(LAST + 1), Some(Caller::new("f64", None)));
            assert_eq!(said(1), None);
            assert!(caller(hub, slot, 0, 1).type_name().is_none() && caller(hub, slot, 0, LAST).type_name().is_some());
            Ok(())
        });
        outcomes.expect("runs").into_iter().collect::<Result<()>>().expect("runs");
    }
}
