//! Reduce: the root gets what all members' values come to.

use crate::error::Result;
use crate::settings::Reduce;
use bytemuck::Pod;

use super::allreduce::{chunk, pieces_of};
use super::by_nodes;
use super::context::Context;
use super::meeting::rounds;
use super::operator::{Fold, OnSlices};

/// Above so many bytes the members of a subtree combine theirs before they pass it on.
const LARGE: usize = 1 << 10;

/// `values` become the result at the root; elsewhere they may change.
pub(super) async fn reduce<T: Pod>(
    context: &Context,
    root: usize,
    values: &mut [T],
    op: &dyn OnSlices<T>,
) -> Result<()> {
    let size = context.size();
    if size == 1 {
        return Ok(());
    }
    let fits = context.room(size) >= size_of::<T>();
    let by_nodes = match context.algorithms.get().reduce {
        Reduce::Auto => {
            context.nodes().filter(|nodes| nodes.layout.whole || size_of_val(values) * size <= by_nodes::LARGE)
        }
        Reduce::Nodes => context.nodes(),
        _ => None,
    };
    if let Some(nodes) = by_nodes {
        return by_nodes::reduce_by(context, nodes, root, values, op).await;
    }
    match context.algorithms.get().reduce {
        Reduce::Flat if fits => flat(context, root, values, op).await,
        Reduce::Auto | Reduce::Nodes if fits && size_of_val(values) <= LARGE && size <= 16 => {
            flat(context, root, values, op).await
        }
        _ => tree(context, root, values, op).await,
    }
}

/// Up a binomial tree to member 0, and from there to the root, so the order of combination does not depend on the member that combines.
pub(super) async fn tree<T: Pod>(context: &Context, root: usize, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let rounds = rounds(size);
    // A part of one buffer for each round, the last one for the root; or a buffer each, for elements that are large.
    let parts = if context.room(rounds + 1) >= size_of::<T>() { rounds + 1 } else { 1 };
    let place = |round: usize| (round.min(parts - 1), parts);
    let mut theirs = Vec::new();
    for values in pieces_of(values, chunk::<T>(context.room(parts))) {
        let mut step = context.step().await?;
        theirs.resize(values.len(), T::zeroed());
        for round in 0..rounds {
            let (bit, below) = (1 << round, rank & ((1 << round) - 1));
            if below == 0 && rank & bit != 0 {
                context.send(rank - bit, step, round, place(round), values)?;
            } else if below == 0 && rank + bit < size {
                context.heard(step, round, 1).await?;
                context.verify::<T>(rank + bit, step, place(round))?;
                context.read(step, place(round), 0, &mut theirs);
                op.combine_into(values, &theirs);
            }
            if parts == 1 {
                step = context.step().await?;
            }
        }
        if root != 0 && rank == 0 {
            context.send(root, step, rounds, place(rounds), values)?;
        } else if root != 0 && rank == root {
            context.heard(step, rounds, 1).await?;
            context.verify::<T>(0, step, place(rounds))?;
            context.read(step, place(rounds), 0, values);
        }
    }
    Ok(())
}

/// Everything to the root.
async fn flat<T: Pod>(context: &Context, root: usize, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let mut fold = Fold::new(op);
    for values in pieces_of(values, chunk::<T>(context.room(size))) {
        let step = context.step().await?;
        if rank != root {
            context.send(root, step, 0, (rank, size), values)?;
            continue;
        }
        context.heard(step, 0, size - 1).await?;
        for member in 0..size {
            let mut theirs = fold.buffer();
            if member == rank {
                theirs.extend_from_slice(values);
            } else {
                context.verify::<T>(member, step, (member, size))?;
                theirs.resize(values.len(), T::zeroed());
                context.read(step, (member, size), 0, &mut theirs);
            }
            fold.push(theirs);
        }
        let result = fold.finish();
        values.copy_from_slice(&result);
        fold.give_back(result);
    }
    Ok(())
}
