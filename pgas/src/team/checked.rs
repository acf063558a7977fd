//! The collectives with their arguments checked. Both forms of a call run these; a call that is refused takes its place
//! in the order too, so that members which called it rightly hear of it.

use std::ops::Range;

use bellwether_runtime::{Pod, Result};

use super::alltoall::ranges;
use super::context::Context;
use super::head::{Head, Kind};
use super::operator::{Max, Operator};
use super::{allgather, allreduce, alltoall, barrier, broadcast, reduce, scan};

/// What is wrong with a rank that is no member.
pub(super) fn outside(rank: usize, size: usize) -> String {
    format!("rank {rank} is outside the team, which has members 0 to {}", size - 1)
}

fn check_root<T>(context: &Context, kind: Kind, root: usize) -> Result<()> {
    if root < context.size() {
        return check_element::<T>(context, kind);
    }
    Err(context.refuse(kind.doing(), outside(root, context.size())))
}

fn check_element<T>(context: &Context, kind: Kind) -> Result<()> {
    let (bytes, room) = (size_of::<T>(), context.room(1));
    if bytes <= room {
        return Ok(());
    }
    let why =
        format!("an element has {bytes} bytes, and a team's buffer holds {room}: raise {}", context.memory_setting());
    Err(context.refuse(kind.doing(), why))
}

pub(super) async fn barrier(context: &Context) -> Result<()> {
    let kind = Kind::Barrier;
    let body = async {
        // What this rank has put elsewhere is in effect before others hear that it has entered.
        context.hub.progress.quiet(kind.doing()).await?;
        barrier::enter(context).await?;
        context.met();
        Ok(())
    };
    context.collective(Head::new::<()>(kind, 0), body).await
}

pub(super) async fn broadcast<T: Pod>(context: &Context, root: usize, values: &mut [T]) -> Result<()> {
    let kind = Kind::Broadcast;
    check_root::<T>(context, kind, root)?;
    let head = Head::new::<T>(kind, values.len()).root(root);
    context.collective(head, broadcast::broadcast(context, root, values)).await
}

pub(super) async fn reduce<T: Pod, O: Operator<T>>(
    context: &Context,
    root: usize,
    values: &mut [T],
    op: &O,
) -> Result<()> {
    let kind = Kind::Reduce;
    check_root::<T>(context, kind, root)?;
    let head = Head::new::<T>(kind, values.len()).root(root).operator(O::CODE);
    context.collective(head, reduce::reduce(context, root, values, op)).await
}

pub(super) async fn allreduce<T: Pod, O: Operator<T>>(context: &Context, values: &mut [T], op: &O) -> Result<()> {
    check_element::<T>(context, Kind::Allreduce)?;
    let head = Head::new::<T>(Kind::Allreduce, values.len()).operator(O::CODE);
    context.collective(head, allreduce::allreduce(context, values, op)).await
}

pub(super) async fn gather<T: Pod>(context: &Context, root: usize, mine: &[T]) -> Result<Option<Vec<T>>> {
    let kind = Kind::Gather;
    check_root::<T>(context, kind, root)?;
    let is_root = context.rank == root;
    let mut all = vec![T::zeroed(); if is_root { mine.len() * context.size() } else { 0 }];
    let head = Head::new::<T>(kind, mine.len()).root(root);
    context.collective(head, allgather::gather(context, root, mine, &mut all)).await?;
    Ok(is_root.then_some(all))
}

pub(super) async fn allgather<T: Pod>(context: &Context, mine: &[T]) -> Result<Vec<T>> {
    check_element::<T>(context, Kind::Allgather)?;
    let mut all = vec![T::zeroed(); mine.len() * context.size()];
    let head = Head::new::<T>(Kind::Allgather, mine.len());
    context.collective(head, allgather::allgather(context, mine, &mut all)).await?;
    Ok(all)
}

pub(super) async fn scatter<T: Pod>(context: &Context, root: usize, values: &[T], mine: &mut [T]) -> Result<()> {
    let kind = Kind::Scatter;
    check_root::<T>(context, kind, root)?;
    let size = context.size();
    if context.rank == root && values.len() != mine.len() * size {
        let why = format!(
            "{} elements for {size} members of {} each, which makes {}",
            values.len(),
            mine.len(),
            mine.len() * size
        );
        return Err(context.refuse(kind.doing(), why));
    }
    let head = Head::new::<T>(kind, mine.len()).root(root);
    context.collective(head, broadcast::scatter(context, root, values, mine)).await
}

pub(super) async fn alltoall<T: Pod>(context: &Context, values: &[T]) -> Result<Vec<T>> {
    let (kind, size) = (Kind::Alltoall, context.size());
    check_element::<T>(context, kind)?;
    if !values.len().is_multiple_of(size) {
        let why = format!("{} elements cannot be parted equally among {size} members", values.len());
        return Err(context.refuse(kind.doing(), why));
    }
    let each = values.len() / size;
    let places: Vec<Range<usize>> = ranges(&vec![each; size]);
    let mut into = vec![T::zeroed(); values.len()];
    let body = alltoall::alltoallv(context, values, &places, &mut into, &places, each);
    context.collective(Head::new::<T>(kind, values.len()), body).await?;
    Ok(into)
}

pub(super) async fn alltoallv<T: Pod>(
    context: &Context,
    values: &[T],
    counts: &[usize],
) -> Result<(Vec<T>, Vec<usize>)> {
    let (kind, size) = (Kind::Alltoallv, context.size());
    check_element::<T>(context, kind)?;
    let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    if counts.len() != size || sum != Some(values.len()) {
        let sum = sum.map_or("more than there can be".into(), |sum| sum.to_string());
        let why = format!(
            "{} counts, which sum to {sum}, for {size} members and {} elements; there is to be one for each member",
            counts.len(),
            values.len()
        );
        return Err(context.refuse(kind.doing(), why));
    }
    let body = async {
        let one: Vec<Range<usize>> = ranges(&vec![1; size]);
        let mine: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
        let mut theirs = vec![0u64; size];
        alltoall::alltoallv(context, &mine, &one, &mut theirs, &one, 1).await?;
        let mut longest = [mine.iter().copied().max().unwrap_or(0)];
        allreduce::allreduce(context, &mut longest, &Max).await?;
        let theirs: Vec<usize> = theirs.into_iter().map(|count| count as usize).collect();
        let mut into = vec![T::zeroed(); theirs.iter().sum()];
        let (sends, receives) = (ranges(counts), ranges(&theirs));
        alltoall::alltoallv(context, values, &sends, &mut into, &receives, longest[0] as usize).await?;
        Ok((into, theirs))
    };
    context.collective(Head::new::<T>(kind, 0), body).await
}

pub(super) async fn scan<T: Pod, O: Operator<T>>(
    context: &Context,
    values: &mut [T],
    initial: Option<T>,
    op: &O,
) -> Result<()> {
    let kind = if initial.is_some() { Kind::ExclusiveScan } else { Kind::Scan };
    check_element::<T>(context, kind)?;
    let head = Head::new::<T>(kind, values.len()).operator(O::CODE);
    context.collective(head, scan::scan(context, values, initial, op)).await
}
