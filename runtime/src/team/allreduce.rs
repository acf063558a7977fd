//! Allreduce, in several ways that give the same bits.

use crate::error::Result;
use crate::settings::Allreduce;
use bytemuck::Pod;

use super::allgather::everyone;
use super::context::Context;
use super::dissemination::GATHERED;
use super::meeting::rounds;
use super::nodes::Nodes;
use super::operator::{Fold, OnSlices};
use super::{broadcast, by_nodes, lines, reduce};

/// Above so many bytes each rank combines a piece.
const LARGE: usize = 4 << 10;
/// Bytes that are combined at a time, so that they stay in the first-level cache.
const BLOCK: usize = 4 << 10;

/// Combines the values of all members; everyone gets the result.
pub(super) async fn allreduce<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    if context.size() == 1 {
        return Ok(());
    }
    match choose::<T>(context, values.len()) {
        Allreduce::Lines => lines::allreduce(context, values, op).await,
        Allreduce::Central => central(context, values, op).await,
        Allreduce::Gather => gather(context, values, op).await,
        Allreduce::Doubling => doubling(context, values, op).await,
        Allreduce::Pieces => pieces(context, values, op).await,
        Allreduce::Nodes if let Some(nodes) = context.nodes() => {
            by_nodes::allreduce_by(context, nodes, values, op).await
        }
        Allreduce::Auto | Allreduce::Tree | Allreduce::Nodes => {
            reduce::tree(context, 0, values, op).await?;
            broadcast::tree(context, 0, values).await
        }
    }
}

/// The algorithm, never [`Allreduce::Auto`].
pub(super) fn choose<T>(context: &Context, len: usize) -> Allreduce {
    let (size, bytes) = (context.size(), len * size_of::<T>());
    // Whether a part for each member holds an element.
    let fits = context.room(size) >= size_of::<T>();
    let forced = match context.algorithms.get().allreduce {
        Allreduce::Nodes if context.nodes().is_none() => Allreduce::Auto,
        forced => forced,
    };
    let wanted = match forced {
        Allreduce::Auto if context.nodes().is_some_and(|nodes| by_nodes(nodes, bytes, size)) => Allreduce::Nodes,
        Allreduce::Auto if bytes > LARGE => Allreduce::Pieces,
        Allreduce::Auto if context.is_mapped() && size > 2 && context.hub.engine.waiting.patience().crowded => {
            Allreduce::Central
        }
        Allreduce::Auto if lines::fits::<T>(context, len) => Allreduce::Lines,
        Allreduce::Auto if size <= GATHERED && bytes * size <= LARGE => Allreduce::Gather,
        Allreduce::Auto if size.is_power_of_two() => Allreduce::Doubling,
        Allreduce::Auto => Allreduce::Tree,
        forced => forced,
    };
    match wanted {
        Allreduce::Central if !context.is_mapped() && fits => Allreduce::Gather,
        Allreduce::Lines if lines::fits::<T>(context, len) => Allreduce::Lines,
        Allreduce::Lines if fits => Allreduce::Gather,
        Allreduce::Central | Allreduce::Gather | Allreduce::Lines | Allreduce::Pieces if !fits => Allreduce::Tree,
        Allreduce::Doubling if context.room(rounds(size)) < size_of::<T>() => Allreduce::Tree,
        other => other,
    }
}

/// Whether so many bytes go by nodes.
fn by_nodes(nodes: &Nodes, bytes: usize, size: usize) -> bool {
    if nodes.layout.whole { bytes <= LARGE } else { size <= GATHERED && bytes * size <= by_nodes::LARGE }
}

/// As many elements as fit in a room, at least one for slices that are not empty.
pub(super) fn chunk<T>(room: usize) -> usize {
    room.checked_div(size_of::<T>()).map_or(usize::MAX, |fit| fit.max(1))
}

/// Every member puts its contribution to member 0 and counts itself there; the last member combines all contributions, and distributes the result.
async fn central<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let size = context.size();
    let mut fold = Fold::new(op);
    for values in pieces_of(values, chunk::<T>(context.room(size))) {
        let step = context.step().await?;
        context.put(0, step, (context.rank, size), values)?;
        if context.count(step) {
            for member in 0..size {
                let mut theirs = fold.buffer();
                theirs.resize(values.len(), T::zeroed());
                context.fetch(0, member, step, (member, size), &mut theirs)?;
                fold.push(theirs);
            }
            let result = fold.finish();
            for member in (0..size).filter(|member| *member != context.rank) {
                // Over the contribution of member 0, which has been taken.
                context.send(member, step, 0, (0, size), &result)?;
            }
            values.copy_from_slice(&result);
            fold.give_back(result);
        } else {
            context.heard(step, 0, 1).await?;
            context.read(step, (0, size), 0, values);
        }
        context.synced();
    }
    Ok(())
}

/// Everyone gets all contributions.
async fn gather<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let size = context.size();
    let mut fold = Fold::new(op);
    for values in pieces_of(values, chunk::<T>(context.room(size))) {
        let step = everyone(context, values, context.is_mapped()).await?;
        combine_parts(context, step, size, values, &mut fold);
    }
    Ok(())
}

/// Combines what lies in the parts of this rank's buffer, its own contribution excepted, which is in `values`.
fn combine_parts<T: Pod>(
    context: &Context,
    step: super::context::Step,
    size: usize,
    values: &mut [T],
    fold: &mut Fold<'_, T>,
) {
    let block = chunk::<T>(BLOCK);
    let mut start = 0;
    if size == 2 {
        // The tree has one knot.
        let mut theirs = fold.buffer();
        theirs.resize(block.min(values.len()), T::zeroed());
        for values in values.chunks_mut(block) {
            let theirs = &mut theirs[..values.len()];
            context.read(step, (1 - context.rank, size), start, theirs);
            match context.rank {
                0 => fold.operator().combine_into(values, theirs),
                _ => fold.operator().combine_onto(theirs, values),
            }
            start += values.len();
        }
        return fold.give_back(theirs);
    }
    for values in values.chunks_mut(block) {
        for member in 0..size {
            let mut theirs = fold.buffer();
            if member == context.rank {
                theirs.extend_from_slice(values);
            } else {
                theirs.resize(values.len(), T::zeroed());
                context.read(step, (member, size), start, &mut theirs);
            }
            fold.push(theirs);
        }
        let result = fold.finish();
        values.copy_from_slice(&result);
        fold.give_back(result);
        start += values.len();
    }
}

/// In round k with the member whose number differs in bit k: each then has what both had. The last block of members may be
/// shorter than the one before it; then each of its members tells all those there whose numbers, counted round, are its own,
/// so that all are told by somebody, and everyone has its block's part of the one tree.
async fn doubling<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let rounds = rounds(size);
    let mut theirs = Vec::new();
    for values in pieces_of(values, chunk::<T>(context.room(rounds))) {
        let step = context.step().await?;
        theirs.resize(values.len(), T::zeroed());
        for round in 0..rounds {
            // This member's block, and its neighbour, which there may not be.
            let (block, bit) = (rank >> round << round, 1 << round);
            let (own, other) = (block..(block + bit).min(size), (block ^ bit)..((block ^ bit) + bit).min(size));
            if other.is_empty() {
                continue;
            }
            let place = rank - own.start;
            for partner in other.clone().skip(place).step_by(own.len()) {
                context.send(partner, step, round, (round, rounds), values)?;
            }
            let from = other.start + place % other.len();
            context.heard(step, round, 1).await?;
            context.verify::<T>(from, step, (round, rounds))?;
            context.read(step, (round, rounds), 0, &mut theirs);
            match from < rank {
                true => op.combine_onto(&theirs, values),
                false => op.combine_into(values, &theirs),
            }
        }
        context.synced();
    }
    Ok(())
}

/// Member i combines the i-th piece of all, and hands it out.
async fn pieces<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let most = chunk::<T>(context.room(size));
    let mut fold = Fold::new(op);
    let others = || (1..size).map(|distance| (rank + distance) % size);
    for values in pieces_of(values, most * size) {
        let piece = values.len().div_ceil(size);
        let range = |member: usize| (member * piece).min(values.len())..((member + 1) * piece).min(values.len());
        let ranges: Vec<_> = (0..size).map(range).collect();
        let step = context.step().await?;
        others().try_for_each(|to| context.send(to, step, 0, (rank, size), &values[ranges[to].clone()]))?;
        context.heard(step, 0, size - 1).await?;
        others().try_for_each(|from| context.verify::<T>(from, step, (from, size)))?;
        combine_parts(context, step, size, &mut values[ranges[rank].clone()], &mut fold);
        context.synced();
        let step = context.step().await?;
        others().try_for_each(|to| context.send(to, step, 0, (rank, size), &values[ranges[rank].clone()]))?;
        context.heard(step, 0, size - 1).await?;
        for from in others() {
            context.read(step, (from, size), 0, &mut values[ranges[from].clone()]);
        }
        context.synced();
    }
    Ok(())
}

/// Parts of `values` of at most `len` elements; one that is empty if it is, so that members meet all the same.
pub(super) fn pieces_of<T>(values: &mut [T], len: usize) -> impl Iterator<Item = &mut [T]> {
    let mut rest = Some(values);
    std::iter::from_fn(move || {
        let values = rest.take()?;
        let (first, after) = values.split_at_mut(len.min(values.len()));
        rest = (!after.is_empty()).then_some(after);
        Some(first)
    })
}
