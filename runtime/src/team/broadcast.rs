//! Broadcast and scatter: from one member to the others.

use crate::error::Result;
use crate::settings::{Broadcast, Scatter};
use bytemuck::Pod;

use super::allgather::parts;
use super::allreduce::{chunk, pieces_of};
use super::by_nodes;
use super::context::Context;

/// So few members hear from the root itself.
const FEW: usize = 4;

/// Everyone's `values` become those of the root.
pub(super) async fn broadcast<T: Pod>(context: &Context, root: usize, values: &mut [T]) -> Result<()> {
    match (context.algorithms.get().broadcast, context.nodes()) {
        (Broadcast::Flat, _) => flat(context, root, values).await,
        (Broadcast::Auto | Broadcast::Nodes, Some(nodes)) => by_nodes::broadcast_by(context, nodes, root, values).await,
        (Broadcast::Auto | Broadcast::Nodes, None) if context.size() <= FEW => flat(context, root, values).await,
        (Broadcast::Auto | Broadcast::Nodes | Broadcast::Tree, _) => tree(context, root, values).await,
    }
}

/// The `len` values of one member become those of another; the other members, which need not have values, only keep their steps in line.
pub(super) async fn pass<T: Pod>(
    context: &Context,
    [from, to]: [usize; 2],
    len: usize,
    values: &mut [T],
) -> Result<()> {
    for part in parts(len, chunk::<T>(context.room(1))) {
        let step = context.step().await?;
        if context.rank == from {
            context.send(to, step, 0, (0, 1), &values[part])?;
        } else if context.rank == to {
            context.heard(step, 0, 1).await?;
            context.verify::<T>(from, step, (0, 1))?;
            context.read(step, (0, 1), 0, &mut values[part]);
        }
    }
    Ok(())
}

/// Numbered from the root, member v hears from v without its lowest bit, and tells those that add a lower one.
pub(super) async fn tree<T: Pod>(context: &Context, root: usize, values: &mut [T]) -> Result<()> {
    let size = context.size();
    let place = (context.rank + size - root) % size;
    let member = |place: usize| (place + root) % size;
    let lowest = if place == 0 { size.next_power_of_two() } else { 1 << place.trailing_zeros() };
    for values in pieces_of(values, chunk::<T>(context.room(1))) {
        let step = context.step().await?;
        if place != 0 {
            let parent = member(place - lowest);
            context.heard(step, 0, 1).await?;
            context.verify::<T>(parent, step, (0, 1))?;
            context.read(step, (0, 1), 0, values);
        }
        let mut below = lowest >> 1;
        while below > 0 {
            if place + below < size {
                context.send(member(place + below), step, 0, (0, 1), values)?;
            }
            below >>= 1;
        }
    }
    Ok(())
}

/// From the root to each.
async fn flat<T: Pod>(context: &Context, root: usize, values: &mut [T]) -> Result<()> {
    for values in pieces_of(values, chunk::<T>(context.room(1))) {
        let step = context.step().await?;
        if context.rank == root {
            for to in (0..context.size()).filter(|to| *to != root) {
                context.send(to, step, 0, (0, 1), values)?;
            }
        } else {
            context.heard(step, 0, 1).await?;
            context.verify::<T>(root, step, (0, 1))?;
            context.read(step, (0, 1), 0, values);
        }
    }
    Ok(())
}

/// Everyone's `mine` becomes its part of the root's `values`, which elsewhere are empty.
pub(super) async fn scatter<T: Pod>(context: &Context, root: usize, values: &[T], mine: &mut [T]) -> Result<()> {
    let len = mine.len();
    let by_nodes = match context.algorithms.get().scatter {
        Scatter::Direct => None,
        Scatter::Auto => context.nodes().filter(|_| size_of_val(mine) <= by_nodes::LARGE),
        Scatter::Nodes => context.nodes(),
    };
    if let Some(nodes) = by_nodes {
        return by_nodes::scatter_by(context, nodes, root, values, mine).await;
    }
    if context.rank == root {
        mine.copy_from_slice(&values[root * len..][..len]);
    }
    let mut start = 0;
    for mine in pieces_of(mine, chunk::<T>(context.room(1))) {
        let step = context.step().await?;
        if context.rank == root {
            for to in (0..context.size()).filter(|to| *to != root) {
                context.send(to, step, 0, (0, 1), &values[to * len + start..][..mine.len()])?;
            }
        } else {
            context.heard(step, 0, 1).await?;
            context.verify::<T>(root, step, (0, 1))?;
            context.read(step, (0, 1), 0, mine);
        }
        start += mine.len();
    }
    Ok(())
}
