//! A member's card: which collectives it has begun, and what went wrong. It writes its own, in its own memory, at no cost
//! to others; a member that waits for long looks at its mates' where they are mapped.

use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Loss, Result};

use super::head::Head;
use super::hub::{CARD, Hub};

/// Collectives that a card remembers.
const KEPT: u64 = 8;
/// Words of a head.
const HEAD: usize = size_of::<Head>() / 8;
/// Words: collectives begun; their heads; the one that failed; whom it lost; how long its words are, and these; the member
/// that said here that it has failed, from 1.
const HEADS: usize = 1;
const FAILED: usize = HEADS + KEPT as usize * HEAD;
const LOST: usize = FAILED + 1;
const TEXT_LEN: usize = FAILED + 2;
const TEXT: usize = FAILED + 3;
const TEXT_MAX: usize = (TOLD - TEXT) * 8;
const TOLD: usize = CARD - 1;

/// What another member's card says about a collective.
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

/// Clears this rank's card, for the next team.
pub(super) fn clear(hub: &Hub, slot: usize) {
    (0..CARD).for_each(|at| hub.memory.store(hub.card(slot, at), 0));
}

/// Says that collective `number`, from 1, has begun.
#[inline]
pub(super) fn begin(hub: &Hub, slot: usize, number: u64, head: Head) {
    let at = HEADS + (number % KEPT) as usize * HEAD;
    let words: [u64; HEAD] = bytemuck::cast(head);
    words.into_iter().enumerate().for_each(|(n, value)| hub.memory.store(hub.card(slot, at + n), value));
    // Pairs with the fence in `read`.
    fence(Ordering::Release);
    hub.memory.store(hub.card(slot, 0), number);
}

/// Says that collective `number` has failed here.
#[cold]
pub(super) fn fail(hub: &Hub, slot: usize, number: u64, error: &Error) {
    let text = match error {
        // Who reads it knows whose card it is.
        Error::Agreed { rank, why } if *rank == hub.engine.rank => why.clone(),
        error => error.to_string(),
    };
    let text = &text[..text.floor_char_boundary(TEXT_MAX)];
    let mut bytes = [0; TEXT_MAX];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    for (n, chunk) in bytes.chunks_exact(8).enumerate() {
        hub.memory.store(hub.card(slot, TEXT + n), u64::from_ne_bytes(chunk.try_into().expect("chunks of 8")));
    }
    let lost = match error {
        Error::PeerLost { rank, cause, .. } => (*rank as u64 + 1) << 8 | u64::from(*cause == Loss::Left),
        _ => 0,
    };
    hub.memory.store(hub.card(slot, LOST), lost);
    hub.memory.store(hub.card(slot, TEXT_LEN), text.len() as u64);
    fence(Ordering::Release);
    hub.memory.store(hub.card(slot, FAILED), number);
}

/// Tells `mate`, of the world, that this rank has failed: where it cannot look at this rank's card.
#[cold]
pub(super) fn tell(hub: &Hub, slot: usize, mate: usize) -> Result<()> {
    hub.memory.put(mate, hub.card(slot, TOLD), &(hub.engine.rank as u64 + 1).to_ne_bytes())
}

/// Who, of the world, told this rank so.
#[inline]
pub(super) fn told(hub: &Hub, slot: usize) -> Option<usize> {
    (hub.memory.load(hub.card(slot, TOLD)) as usize).checked_sub(1)
}

/// What the card of `rank`, of the world, says about collective `number`. Where its memory is mapped.
#[cold]
pub(super) fn read(hub: &Hub, slot: usize, rank: usize, number: u64) -> Said {
    let load = |at| {
        let mut word = [0; 8];
        match hub.memory.get(rank, hub.card(slot, at), &mut word) {
            Ok(()) => u64::from_ne_bytes(word),
            Err(_) => 0,
        }
    };
    let head = |number: u64| {
        let at = HEADS + (number % KEPT) as usize * HEAD;
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
    if load(0) >= number + KEPT {
        // Written over: it has come through, so it was the same one.
        return Said::Nothing;
    }
    match theirs.is_refused() || failed == number {
        true => failed_how(),
        false => Said::Begun(theirs),
    }
}
