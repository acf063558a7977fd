//! A member's record: the collectives that it has begun, their callers, and errors. A member writes its own record, in its own
//! memory, at no cost to others. A member that waits for long reads the records of its peers where they are mapped; a member that
//! finds a difference reads the callers over the network too.

use std::sync::atomic::{Ordering, fence};

use bytemuck::Zeroable;

use crate::error::{Error, Loss, Result};
use crate::team::title::Caller;

use super::head::Head;
use super::hub::Hub;

/// Collectives that a record remembers.
pub(super) const KEPT: usize = 8;
/// Words of a head, and of its caller.
const HEAD: usize = size_of::<Head>() / 8;
const CALLER: usize = size_of::<Caller>() / 8;
/// First word of the heads; word 0 counts collectives begun.
const HEADS: usize = 1;
/// First word of the callers of these collectives.
const CALLERS: usize = HEADS + KEPT * HEAD;
/// Number of the collective in which the team has failed; 0: none.
const FAILED: usize = CALLERS + KEPT * CALLER;
/// The rank of the world that the failed collective lost: (rank + 1) << 8 | left; 0: none.
const LOST: usize = FAILED + 1;
/// The number of the team that the record is of.
const OWNER: usize = FAILED + 2;
/// Bytes of the error text: of the failed collective, or else of the last one that was refused.
const TEXT_LEN: usize = FAILED + 3;
/// First word of the error text.
const TEXT: usize = FAILED + 4;
/// Most bytes of the error text. Chosen: a record then fills its cache lines.
const TEXT_MAX: usize = 336;
/// World rank + 1 of a member that reported its failure here; 0: none.
const TOLD: usize = TEXT + TEXT_MAX / 8;
/// Words of a record, whole cache lines.
pub(super) const RECORD: usize = (TOLD + 1).next_multiple_of(8);

/// The contents of another member's record about a collective.
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
    hub.memory.store(hub.record(slot, 0), 0);
    // Pairs with the last fence but one in `said`: a reader that sees a cleared word also sees the cleared count.
    fence(Ordering::Release);
    (1..RECORD).for_each(|at| hub.memory.store(hub.record(slot, at), 0));
}

/// Says that this rank's record, which is clear, is that of a team with this number.
pub(super) fn open(hub: &Hub, slot: usize, team: u64) {
    hub.memory.store(hub.record(slot, OWNER), team);
    // Pairs with the last fence in `said`: a reader that sees a word of this team also sees the team's number.
    fence(Ordering::Release);
}

/// The place of collective `number`.
#[inline]
pub(super) fn kept(number: u64) -> usize {
    number as usize % KEPT
}

/// Whether the words that a reader took for the record of collective `number` may be those of collective `number + KEPT`, which has
/// the same place, if the reader finds `begun` afterwards. The writer writes there before it counts that collective, and no fence
/// of its own keeps the count before that one ahead of the words: with either of the last two counts, the words may be there.
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
    let at = CALLERS + kept(number) * CALLER;
    let mut begun = [0; 8];
    // By pieces that are copied word by word: the member may be writing there. If this fails the error message says less.
    let mut pieces = bytemuck::bytes_of_mut(&mut caller).chunks_mut(64).enumerate();
    let got = pieces.try_for_each(|(n, piece)| hub.memory.get(rank, hub.record(slot, at + 8 * n), piece));
    // Pairs with the fence in `begin` of a later collective.
    fence(Ordering::Acquire);
    let got = got.and_then(|()| hub.memory.get(rank, hub.record(slot, 0), &mut begun));
    let begun = u64::from_ne_bytes(begun);
    let is_there = got.is_ok() && begun >= number && !is_overwritten(number, begun);
    if is_there { caller } else { Caller::zeroed() }
}

/// Says why the collective that is begun next is refused.
#[cold]
pub(super) fn refuse(hub: &Hub, slot: usize, error: &Error) {
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
    hub.memory.store(hub.record(slot, TEXT_LEN), text.len() as u64);
}

/// Says that the team has failed here, in collective `number`.
#[cold]
pub(super) fn fail(hub: &Hub, slot: usize, number: u64, error: &Error) {
    refuse(hub, slot, error);
    let lost = match error {
        Error::PeerLost { rank, cause, .. } => (*rank as u64 + 1) << 8 | u64::from(*cause == Loss::Left),
        _ => 0,
    };
    hub.memory.store(hub.record(slot, LOST), lost);
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

/// The contents of the record of `rank`, a rank of the world, about collective `number` of this record's team. The memory of `rank` is
/// mapped.
#[cold]
pub(super) fn read(hub: &Hub, slot: usize, rank: usize, number: u64) -> Said {
    let team = hub.memory.load(hub.record(slot, OWNER));
    let load = |at| {
        let mut word = [0; 8];
        hub.memory.get(rank, hub.record(slot, at), &mut word).ok().map(|()| u64::from_ne_bytes(word))
    };
    said(team, number, load).unwrap_or(Said::Nothing)
}

/// The contents of a record about collective `number` of a team. `load` reads a word of the record. `None` if it says nothing,
/// or has changed meanwhile: its writer does not wait for readers.
fn said(team: u64, number: u64, load: impl Fn(usize) -> Option<u64>) -> Option<Said> {
    let failed_how = || {
        let lost = load(LOST)?;
        if lost != 0 {
            let cause = if lost & 1 == 1 { Loss::Left } else { Loss::Unknown };
            return Some(Said::Lost((lost >> 8) as usize - 1, cause));
        }
        let words = (TEXT..TOLD).map(&load).collect::<Option<Vec<u64>>>()?;
        let len = (load(TEXT_LEN)? as usize).min(TEXT_MAX);
        Some(Said::Failed(String::from_utf8_lossy(&bytemuck::cast_slice::<u64, u8>(&words)[..len]).into_owned()))
    };
    let (begun, failed) = (load(0)?, load(FAILED)?);
    // Pairs with the fences in `begin` and `fail`.
    fence(Ordering::Acquire);
    let said = if begun >= number {
        let mut words = [0; HEAD];
        for (n, word) in words.iter_mut().enumerate() {
            *word = load(HEADS + kept(number) * HEAD + n)?;
        }
        let theirs = bytemuck::cast::<[u64; HEAD], Head>(words);
        if theirs.is_refused() || failed == number { failed_how()? } else { Said::Begun(theirs) }
    } else if failed != 0 {
        failed_how()?
    } else {
        return None;
    };
    fence(Ordering::Acquire);
    let now = load(0)?;
    // A peer that has begun several more collectives completed this one without error: it was in the same call.
    let is_overwritten = begun >= number && is_overwritten(number, now);
    fence(Ordering::Acquire);
    // A peer that has left this team and cleared its record, maybe for another team, completed all of this one.
    let is_of_team = now >= begun && load(OWNER)? == team;
    (is_of_team && !is_overwritten).then_some(said)
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

    /// What a reader of collective `number` finds if the writer does `change` before any of its loads.
    fn read_during(hub: &Hub, slot: usize, number: u64, begin: impl Fn(), change: impl Fn()) -> Vec<Option<Said>> {
        let mut found = Vec::new();
        loop {
            clear(hub, slot);
            open(hub, slot, 1);
            begin();
            let loads = std::cell::Cell::new(0);
            let load = |at| {
                if loads.replace(loads.get() + 1) == found.len() {
                    change();
                }
                Some(hub.memory.load(hub.record(slot, at)))
            };
            let said = said(1, number, load);
            if loads.get() <= found.len() {
                return found;
            }
            found.push(said);
        }
    }

    /// Nobody else is in the slots of which these write the record.
    fn in_a_free_slot(test: impl Fn(&Hub, usize) + Sync) {
        let outcomes = crate::threads(1, |world| {
            let team = super::super::Team::world(world)?;
            let hub = &team.shared.context.hub;
            let slot = hub.level(hub.free().trailing_zeros() as usize, 0);
            test(hub, slot);
            clear(hub, slot);
            Ok(())
        });
        outcomes.expect("runs").into_iter().collect::<Result<()>>().expect("runs");
    }

    fn refused(number: u64) -> (Head, Error) {
        let head = Head::new::<()>(Kind::Refused, number as usize);
        (head, Error::InvalidArgument { operation: "broadcast", why: "rank 7 is outside the team".into() })
    }

    #[test]
    fn a_record_that_is_cleared_meanwhile_says_nothing_wrong() {
        in_a_free_slot(|hub, slot| {
            let head = Head::new::<u64>(Kind::Allreduce, 1).after(Head::new::<u8>(Kind::Scan, 3));
            let begin_it = || begin(hub, slot, 1, head, None);
            let next_team = || {
                clear(hub, slot);
                open(hub, slot, 2);
                begin(hub, slot, 1, Head::new::<u8>(Kind::Barrier, 0), None);
            };
            let failing_team = || {
                next_team();
                let error = Error::Agreed { rank: 0, why: "another team".into() };
                fail(hub, slot, 1, &error);
            };
            // The writer is still writing the record.
            let half_clear = || (0..CALLERS).for_each(|at| hub.memory.store(hub.record(slot, at), 0));
            for change in [&(|| clear(hub, slot)) as &dyn Fn(), &half_clear, &next_team, &failing_team] {
                let found = read_during(hub, slot, 1, begin_it, change);
                assert!(found.len() > HEAD, "{} loads", found.len());
                for (at, said) in found.into_iter().enumerate() {
                    match said {
                        None => {}
                        Some(Said::Begun(theirs)) => assert!(theirs.agrees(head), "at load {at}: {theirs:?}"),
                        Some(_) => panic!("at load {at}: it has not failed"),
                    }
                }
            }
        });
    }

    #[test]
    fn a_refused_call_is_no_failure_of_later_ones() {
        in_a_free_slot(|hub, slot| {
            let barrier = Head::new::<()>(Kind::Barrier, 0);
            let (head, error) = refused(2);
            // The writer is about to be refused in collective 2, or has been. A member in collective 3 hears nothing.
            let begin_it = || begin(hub, slot, 1, barrier, None);
            let refuse_it = || {
                refuse(hub, slot, &error);
                begin(hub, slot, 2, head, None);
            };
            for step in [&(|| refuse(hub, slot, &error)) as &dyn Fn(), &refuse_it] {
                let found = read_during(hub, slot, 3, begin_it, step);
                assert!(found.len() > 1 && found.iter().all(Option::is_none));
            }
            // A member in the same collective gets the error.
            refuse_it();
            let load = |at| Some(hub.memory.load(hub.record(slot, at)));
            match said(1, 2, load) {
                Some(Said::Failed(why)) => assert!(why.contains("rank 7 is outside"), "{why}"),
                _ => panic!("it was refused"),
            }
            // A later collective, which went well, has its head in the same place.
            for number in 3..=2 + LAST {
                begin(hub, slot, number, barrier, None);
            }
            assert!(said(1, 3 + LAST, load).is_none());
        });
    }
}
