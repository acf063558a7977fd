//! Allreduce of up to 1 KiB among a few members, all mapped. Every member has a place for each other member: a flag, a head and the
//! values, all in one cache line if the values are few. A member writes its values to its place at every other member, the flag last, and
//! combines the values that it receives.
//!
//! Each member has two places for each other member, used in turn, so that no place is overwritten before it is read: a member that writes
//! to a place again has completed the call in between, and the owner began that call after it had read the place.

use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bytemuck::{Pod, Zeroable};

use super::context::Context;
use super::head::{Head, Kind};
use super::hub::Hub;
use super::operator::{Fold, OnSlices};
use crate::error::Result;
use crate::memory::layout::LINE;

/// Most members. Chosen: each member writes to all others.
pub(super) const MEMBERS: usize = 8;
/// Bytes of a place. Chosen: for values of some KiB and more, an allreduce in pieces is faster.
const PLACE: usize = 18 * LINE;
/// Bytes of all places of a team at one member.
pub(super) const LEN: usize = 2 * MEMBERS * PLACE;
const FLAG: usize = size_of::<u64>();
const DATA: usize = FLAG + size_of::<Head>();
/// Most bytes of values.
const ROOM: usize = PLACE - DATA;

/// Bytes that are combined at a time. Chosen: the time to zero a larger block is noticeable in an allreduce of 8 bytes.
const BLOCK: usize = 256;

/// Values read from a place.
#[repr(C, align(16))]
struct Block([u8; BLOCK]);

/// The offset, among the owner's places, of the one that member `from` writes to in this turn.
fn place(turn: u64, from: usize) -> usize {
    ((turn % 2) as usize * MEMBERS + from) * PLACE
}

/// Clears all flags in this rank's places of a team's slot.
pub(super) fn clear(hub: &Hub, slot: usize) {
    for (turn, from) in (0..2).flat_map(|turn| (0..MEMBERS).map(move |from| (turn, from))) {
        hub.memory.store(hub.lines(slot) + place(turn, from), 0);
    }
}

/// Whether this algorithm can do an allreduce of `len` elements.
#[inline]
pub(super) fn fits<T>(context: &Context, len: usize) -> bool {
    context.is_mapped()
        && context.size() <= MEMBERS
        && (1..=BLOCK).contains(&size_of::<T>())
        && len <= ROOM / size_of::<T>()
        && align_of::<T>() <= align_of::<Block>()
}

/// The allreduce, as part of a future.
pub(super) async fn allreduce<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    send(context, values)?;
    context.until(|| Ok(have_come(context))).await?;
    combine(context, values, op)
}

/// The allreduce as a collective of its own, without a future. No collective of this team is in flight.
pub(super) fn allreduce_now<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let kind = Kind::Allreduce;
    let head = Head::new::<T>(kind, values.len()).operator(op.code());
    let mut panicked = None;
    let outcome = context.collective_now(head, type_name::<T>(), |context| {
        send(context, values)?;
        context.wait_now(kind.doing(), || Ok(have_come(context)))?;
        // The operator is the user's.
        catch_unwind(AssertUnwindSafe(|| combine(context, values, op))).unwrap_or_else(|panic| {
            let error = context.panic_error(kind.doing(), &*panic);
            panicked = Some(panic);
            Err(error)
        })
    });
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
    outcome
}

/// Writes `values` to this member's place at all others.
#[inline]
fn send<T: Pod>(context: &Context, values: &[T]) -> Result<()> {
    let (turn, memory) = (context.turn.get() + 1, &context.hub.memory);
    context.turn.set(turn);
    let head = context.whole_head();
    let at = context.hub.lines(context.slot) + place(turn, context.rank);
    for distance in 1..context.size() {
        let to = context.world((context.rank + distance) % context.size());
        memory.put(to, at + FLAG, bytemuck::bytes_of(&head))?;
        memory.put(to, at + DATA, bytemuck::cast_slice(values))?;
        memory.raise(to, at, turn);
    }
    Ok(())
}

/// Whether the values of all others are here.
#[inline]
fn have_come(context: &Context) -> bool {
    let (turn, lines) = (context.turn.get(), context.hub.lines(context.slot));
    let here = |from| from == context.rank || context.hub.memory.signals(lines + place(turn, from)) == turn;
    (0..context.size()).all(here)
}

/// Replaces `values` by the combined values of all members.
#[inline]
fn combine<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let (size, own) = (context.size(), context.rank);
    let at = |from| context.hub.lines(context.slot) + place(context.turn.get(), from);
    for from in (0..size).filter(|from| *from != own) {
        let mut head = Head::zeroed();
        context.hub.memory.read(at(from) + FLAG, bytemuck::bytes_of_mut(&mut head));
        context.check_head(from, head)?;
    }
    // All members have begun this call, so they have completed the calls before: the buffers of earlier steps are free.
    context.met();
    if size == 2 {
        let mut bytes = Block([0; BLOCK]);
        let mut start = at(1 - own) + DATA;
        for values in values.chunks_mut(BLOCK / size_of::<T>()) {
            let theirs: &mut [T] = bytemuck::cast_slice_mut(&mut bytes.0[..size_of_val(values)]);
            context.hub.memory.read(start, bytemuck::cast_slice_mut(theirs));
            match own {
                0 => op.combine_into(values, theirs),
                _ => op.combine_onto(theirs, values),
            }
            start += size_of_val(values);
        }
        return Ok(());
    }
    let mut fold = Fold::new(op);
    for from in 0..size {
        let mut part = fold.buffer();
        if from == own {
            part.extend_from_slice(values);
        } else {
            part.resize(values.len(), T::zeroed());
            context.hub.memory.read(at(from) + DATA, bytemuck::cast_slice_mut(&mut part));
        }
        fold.push(part);
    }
    values.copy_from_slice(&fold.finish());
    Ok(())
}
