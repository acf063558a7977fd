//! Allgather and gather: everyone's values to everyone, or to one.

use crate::error::Result;
use crate::settings::{Allgather, Gather};
use bytemuck::Pod;

use super::allreduce::chunk;
use super::by_nodes;
use super::context::{Context, Step};

/// From more bytes of each member on there are no rounds to save, and copies cost more than messages.
const LARGE: usize = by_nodes::LARGE;

/// Parts of `0..len` of at most `step`; one that is empty if `len` is 0.
pub(super) fn parts(len: usize, step: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len.div_ceil(step).max(1)).map(move |n| n * step..((n + 1) * step).min(len))
}

/// Everyone's `mine` to everyone's `all`, in the order of the members.
pub(super) async fn allgather<T: Pod>(context: &Context, mine: &[T], all: &mut [T]) -> Result<()> {
    let (rank, size, len) = (context.rank, context.size(), mine.len());
    all[rank * len..][..len].copy_from_slice(mine);
    if size == 1 {
        return Ok(());
    }
    let by_nodes = match context.algorithms.get().allgather {
        Allgather::Auto => context.nodes().filter(|_| size_of_val(mine) <= LARGE),
        Allgather::Nodes => context.nodes(),
        _ => None,
    };
    if let Some(nodes) = by_nodes {
        return by_nodes::allgather_by(context, nodes, mine, all).await;
    }
    let fits = context.room(size) >= size_of::<T>();
    let direct = match context.algorithms.get().allgather {
        Allgather::Ring => return ring(context, len, all).await,
        _ if !fits => return ring(context, len, all).await,
        Allgather::Direct => true,
        Allgather::Bruck => false,
        // In one round where a message is a store, or so large that there are no rounds to save.
        Allgather::Auto | Allgather::Nodes => context.is_mapped() || size_of_val(mine) > LARGE,
    };
    for part in parts(len, chunk::<T>(context.room(size))) {
        let step = everyone(context, &mine[part.clone()], direct).await?;
        for member in (0..size).filter(|member| *member != rank) {
            context.read(step, (member, size), 0, &mut all[member * len..][part.clone()]);
        }
    }
    Ok(())
}

/// Everyone's `mine`, which fits, in the parts of everyone's buffer; this rank's own part may be empty.
pub(super) async fn everyone<T: Pod>(context: &Context, mine: &[T], direct: bool) -> Result<Step> {
    let (rank, size) = (context.rank, context.size());
    let step = context.step().await?;
    if direct {
        for distance in 1..size {
            context.send((rank + distance) % size, step, 0, (rank, size), mine)?;
        }
        context.heard(step, 0, size - 1).await?;
    } else {
        bruck(context, step, mine).await?;
    }
    context.synced();
    (0..size).filter(|member| *member != rank).try_for_each(|from| context.verify::<T>(from, step, (from, size)))?;
    Ok(step)
}

/// In round k everyone has what 2^k members brought, and passes it on to the member 2^k further.
async fn bruck<T: Pod>(context: &Context, step: Step, mine: &[T]) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let mut theirs = vec![T::zeroed(); mine.len()];
    let mut round = 0;
    while 1 << round < size {
        let distance = 1 << round;
        let to = (rank + distance) % size;
        for back in 0..distance.min(size - distance) {
            let member = (rank + size - back) % size;
            if back == 0 {
                context.put(to, step, (member, size), mine)?;
            } else {
                context.verify::<T>(member, step, (member, size))?;
                context.read(step, (member, size), 0, &mut theirs);
                context.put(to, step, (member, size), &theirs)?;
            }
        }
        context.signal(to, step, round)?;
        context.heard(step, round, 1).await?;
        round += 1;
    }
    Ok(())
}

/// Each passes on to the next member what it heard last from the one before.
async fn ring<T: Pod>(context: &Context, len: usize, all: &mut [T]) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    for round in 0..size - 1 {
        let (own, new) = ((rank + size - round) % size, (rank + size - round - 1) % size);
        for part in parts(len, chunk::<T>(context.room(1))) {
            let step = context.step().await?;
            context.send((rank + 1) % size, step, 0, (0, 1), &all[own * len..][part.clone()])?;
            context.heard(step, 0, 1).await?;
            context.verify::<T>((rank + size - 1) % size, step, (0, 1))?;
            context.read(step, (0, 1), 0, &mut all[new * len..][part]);
        }
    }
    Ok(())
}

/// Everyone's `mine` to the root's `all`, which elsewhere is empty. As many at a time as the root's buffer has parts for.
pub(super) async fn gather<T: Pod>(context: &Context, root: usize, mine: &[T], all: &mut [T]) -> Result<()> {
    let (rank, size, len) = (context.rank, context.size(), mine.len());
    let by_nodes = match context.algorithms.get().gather {
        Gather::Direct => None,
        Gather::Auto => context.nodes().filter(|_| size_of_val(mine) <= LARGE),
        Gather::Nodes => context.nodes(),
    };
    if let Some(nodes) = by_nodes {
        return by_nodes::gather_by(context, nodes, root, mine, all).await;
    }
    if rank == root {
        all[root * len..][..len].copy_from_slice(mine);
    }
    let group = group::<T>(context, size);
    for first in (0..size).step_by(group) {
        let members = first..(first + group).min(size);
        for part in parts(len, chunk::<T>(context.room(group))) {
            let step = context.step().await?;
            if rank == root {
                let others = || members.clone().filter(|member| *member != root);
                context.heard(step, 0, others().count()).await?;
                for member in others() {
                    let place = (member - first, group);
                    context.verify::<T>(member, step, place)?;
                    context.read(step, place, 0, &mut all[member * len..][part.clone()]);
                }
            } else if members.contains(&rank) {
                context.send(root, step, 0, (rank - first, group), &mine[part])?;
            }
        }
    }
    Ok(())
}

/// Into how many parts a buffer is cut for messages of so many members: each holds an element.
pub(super) fn group<T>(context: &Context, members: usize) -> usize {
    let mut group = members.max(1);
    while group > 1 && context.room(group) < size_of::<T>() {
        group = group.div_ceil(2);
    }
    group
}
