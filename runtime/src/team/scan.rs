//! Scans: each member gets what the values of the members up to it come to. From member 0 upwards, one after the other,
//! whichever way.

use crate::error::Result;
use crate::settings::Scan;
use bytemuck::Pod;

use super::allgather::everyone;
use super::allreduce::{chunk, pieces_of};
use super::by_nodes::{GATHERED, allgather_by};
use super::context::Context;
use super::nodes::Nodes;
use super::operator::OnSlices;

/// Up to so many bytes of all members everyone gets them all.
const SMALL: usize = 16 << 10;

/// `values` become those of the members up to this one, combined. `initial`: without its own, but with this before all
/// others.
pub(super) async fn scan<T: Pod>(
    context: &Context,
    values: &mut [T],
    initial: Option<T>,
    op: &dyn OnSlices<T>,
) -> Result<()> {
    let size = context.size();
    let small = size_of_val(values) * size <= SMALL;
    let nodes = match context.algorithms.get().scan {
        Scan::Auto => context.nodes().filter(|_| small),
        Scan::Nodes => context.nodes(),
        _ => None,
    };
    if let Some(nodes) = nodes {
        return by_nodes(context, nodes, values, initial, op).await;
    }
    let fits = context.room(size) >= size_of::<T>();
    let chained = match context.algorithms.get().scan {
        Scan::Chain => true,
        Scan::Gather => !fits,
        Scan::Auto | Scan::Nodes => !fits || !small,
    };
    match chained {
        true => chain(context, values, initial, op).await,
        false => gathered(context, values, initial, op).await,
    }
}

async fn gathered<T: Pod>(context: &Context, values: &mut [T], initial: Option<T>, op: &dyn OnSlices<T>) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let mut theirs = Vec::new();
    for values in pieces_of(values, chunk::<T>(context.room(size))) {
        let step = everyone(context, values, context.is_mapped()).await?;
        let mut sum = initial.map(|initial| vec![initial; values.len()]);
        for member in 0..rank {
            theirs.resize(values.len(), T::zeroed());
            context.read(step, (member, size), 0, &mut theirs);
            add(&mut sum, &theirs, op);
        }
        finish(values, sum, initial.is_some(), op);
    }
    Ok(())
}

async fn by_nodes<T: Pod>(
    context: &Context,
    nodes: &Nodes,
    values: &mut [T],
    initial: Option<T>,
    op: &dyn OnSlices<T>,
) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let mut all = Vec::new();
    for values in pieces_of(values, chunk::<T>(GATHERED / size)) {
        all.resize(values.len() * size, T::zeroed());
        allgather_by(context, nodes, values, &mut all).await?;
        let mut sum = initial.map(|initial| vec![initial; values.len()]);
        // Of no values there is nothing to combine.
        all.chunks(values.len().max(1)).take(rank).for_each(|theirs| add(&mut sum, theirs, op));
        finish(values, sum, initial.is_some(), op);
    }
    Ok(())
}

/// The value that follows `sum`.
fn add<T: Pod>(sum: &mut Option<Vec<T>>, theirs: &[T], op: &dyn OnSlices<T>) {
    match sum {
        Some(sum) => op.combine_into(sum, theirs),
        None => *sum = Some(theirs.to_vec()),
    }
}

async fn chain<T: Pod>(context: &Context, values: &mut [T], initial: Option<T>, op: &dyn OnSlices<T>) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    for values in pieces_of(values, chunk::<T>(context.room(1))) {
        let step = context.step().await?;
        let mut before = initial.map(|initial| vec![initial; values.len()]);
        if rank > 0 {
            context.heard(step, 0, 1).await?;
            context.verify::<T>(rank - 1, step, (0, 1))?;
            let mut theirs = vec![T::zeroed(); values.len()];
            context.read(step, (0, 1), 0, &mut theirs);
            before = Some(theirs);
        }
        if rank + 1 < size {
            let mut after = values.to_vec();
            if let Some(before) = &before {
                op.combine_onto(before, &mut after);
            }
            context.send(rank + 1, step, 0, (0, 1), &after)?;
        }
        finish(values, before, initial.is_some(), op);
    }
    Ok(())
}

/// The values of this rank, when `before` is what those below it come to.
fn finish<T: Pod>(values: &mut [T], before: Option<Vec<T>>, exclusive: bool, op: &dyn OnSlices<T>) {
    match before {
        Some(before) if exclusive => values.copy_from_slice(&before),
        Some(before) => op.combine_onto(&before, values),
        None => {}
    }
}
