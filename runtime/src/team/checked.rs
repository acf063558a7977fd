//! The collectives with their arguments checked. Both forms of a call run these; a refused call takes its place in the
//! order too, so that members whose call is right learn of the error.

use std::any::type_name;
use std::ops::Range;

use crate::error::{Error, Result};
use bytemuck::Pod;

use super::alltoall::ranges;
use super::context::Context;
use super::head::{Head, Kind};
use super::operator::{CLOSURE, Max, OnSlices};
use super::{allgather, allreduce, alltoall, barrier, broadcast, lines, reduce, scan};

/// Most bytes, or elements that have none, of all members together. Chosen: more than a process can address.
const MOST: usize = (1 << 48) - 1;
/// Above so many bytes the allocator is asked whether it has them.
const ASKED: usize = 64 << 20;

/// The error text for a rank that is no member.
pub(super) fn outside(rank: usize, size: usize) -> String {
    format!("rank {rank} is outside the team, which has members 0 to {}", size - 1)
}

fn check_root<T>(context: &Context, kind: Kind, root: usize, len: usize) -> Result<()> {
    if root < context.size() {
        return check::<T>(context, kind, len);
    }
    Err(context.refuse(kind.doing(), outside(root, context.size())))
}

/// An element, and a member's number of them.
fn check<T>(context: &Context, kind: Kind, len: usize) -> Result<()> {
    let (bytes, room) = (size_of::<T>(), context.room(1));
    if bytes <= room {
        return count::<T>(len, 1).map(drop).map_err(|why| context.refuse(kind.doing(), why));
    }
    let why =
        format!("an element has {bytes} bytes, and a team's buffer holds {room}: raise {}", context.memory_setting());
    Err(context.refuse(kind.doing(), why))
}

/// Elements of so many members together, with `len` each; or why there cannot be as many.
fn count<T>(len: usize, members: usize) -> std::result::Result<usize, String> {
    let all = len.checked_mul(members).filter(|all| *all <= MOST / size_of::<T>().max(1));
    all.ok_or_else(|| {
        let bytes = size_of::<T>();
        format!("{len} elements of {bytes} bytes for each of {members} members are more than {MOST} bytes, or elements")
    })
}

/// As many elements, zeros; or why there cannot be as many.
fn zeros<T: Pod>(len: usize, members: usize) -> std::result::Result<Vec<T>, String> {
    let all = count::<T>(len, members)?;
    // The allocator ends the process where it has no room, so it is asked before: that is cheap next to filling so many.
    let bytes = all * size_of::<T>();
    if bytes > ASKED && Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
        return Err(format!("no memory for {len} elements of {} bytes for each of {members} members", size_of::<T>()));
    }
    Ok(vec![T::zeroed(); all])
}

pub(super) async fn barrier(context: &Context) -> Result<()> {
    let kind = Kind::Barrier;
    let body = async {
        // This rank's earlier puts are in effect before others see that it has entered.
        context.hub.quiet(kind.doing()).await?;
        barrier::enter(context).await?;
        context.met();
        Ok(())
    };
    context.collective(Head::new::<()>(kind, 0), "", body).await
}

pub(super) async fn broadcast<T: Pod>(context: &Context, root: usize, values: &mut [T]) -> Result<()> {
    let kind = Kind::Broadcast;
    check_root::<T>(context, kind, root, values.len())?;
    let head = Head::new::<T>(kind, values.len()).root(root);
    context.collective(head, type_name::<T>(), broadcast::broadcast(context, root, values)).await
}

pub(super) async fn reduce<T: Pod>(
    context: &Context,
    root: usize,
    values: &mut [T],
    op: &dyn OnSlices<T>,
) -> Result<()> {
    let kind = Kind::Reduce;
    check_root::<T>(context, kind, root, values.len())?;
    let head = Head::new::<T>(kind, values.len()).root(root).operator(op.code());
    context.collective(head, type_name::<T>(), reduce::reduce(context, root, values, op)).await
}

/// An allreduce. Members whose closures differ are not told.
pub(super) async fn allreduce_only<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    check::<T>(context, Kind::Allreduce, values.len())?;
    let head = Head::new::<T>(Kind::Allreduce, values.len()).operator(op.code());
    context.collective(head, type_name::<T>(), allreduce::allreduce(context, values, op)).await
}

pub(super) async fn allreduce<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    allreduce_only(context, values, op).await?;
    // Named operators are compared by their codes.
    if op.code() == CLOSURE {
        context.note_result(bytemuck::cast_slice(values));
    }
    Ok(())
}

/// As [`allreduce`], without a future. No collective of this team is in flight.
pub(super) fn allreduce_by_lines<T: Pod>(context: &Context, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
    check::<T>(context, Kind::Allreduce, values.len())?;
    lines::allreduce_now(context, values, op)?;
    if op.code() == CLOSURE {
        context.note_result(bytemuck::cast_slice(values));
    }
    Ok(())
}

pub(super) async fn gather<T: Pod>(context: &Context, root: usize, mine: &[T]) -> Result<Option<Vec<T>>> {
    let kind = Kind::Gather;
    check_root::<T>(context, kind, root, mine.len())?;
    let is_root = context.rank == root;
    // Everyone counts what the root gets, so that all refuse it.
    count::<T>(mine.len(), context.size()).map_err(|why| context.refuse(kind.doing(), why))?;
    let all = zeros(mine.len(), if is_root { context.size() } else { 0 });
    let mut all = all.map_err(|why| context.refuse(kind.doing(), why))?;
    let head = Head::new::<T>(kind, mine.len()).root(root);
    context.collective(head, type_name::<T>(), allgather::gather(context, root, mine, &mut all)).await?;
    Ok(is_root.then_some(all))
}

pub(super) async fn allgather<T: Pod>(context: &Context, mine: &[T]) -> Result<Vec<T>> {
    let kind = Kind::Allgather;
    check::<T>(context, kind, mine.len())?;
    let mut all = zeros(mine.len(), context.size()).map_err(|why| context.refuse(kind.doing(), why))?;
    let head = Head::new::<T>(kind, mine.len());
    context.collective(head, type_name::<T>(), allgather::allgather(context, mine, &mut all)).await?;
    Ok(all)
}

/// The future form of the scatter.
pub(super) async fn scattered<T: Pod>(context: &Context, root: usize, values: &[T], len: usize) -> Result<Vec<T>> {
    let kind = Kind::Scatter;
    count::<T>(len, context.size()).map_err(|why| context.refuse(kind.doing(), why))?;
    let mut mine = zeros(len, 1).map_err(|why| context.refuse(kind.doing(), why))?;
    scatter(context, root, values, &mut mine).await.map(|()| mine)
}

pub(super) async fn scatter<T: Pod>(context: &Context, root: usize, values: &[T], mine: &mut [T]) -> Result<()> {
    let kind = Kind::Scatter;
    check_root::<T>(context, kind, root, mine.len())?;
    let size = context.size();
    let all = count::<T>(mine.len(), size).map_err(|why| context.refuse(kind.doing(), why))?;
    if context.rank == root && values.len() != all {
        let why = format!("{} elements for {size} members of {} each, which makes {all}", values.len(), mine.len());
        return Err(context.refuse(kind.doing(), why));
    }
    let head = Head::new::<T>(kind, mine.len()).root(root);
    context.collective(head, type_name::<T>(), broadcast::scatter(context, root, values, mine)).await
}

pub(super) async fn alltoall<T: Pod>(context: &Context, values: &[T]) -> Result<Vec<T>> {
    let (kind, size) = (Kind::Alltoall, context.size());
    check::<T>(context, kind, values.len())?;
    if !values.len().is_multiple_of(size) {
        let why = format!("{} elements cannot be parted equally among {size} members", values.len());
        return Err(context.refuse(kind.doing(), why));
    }
    let each = values.len() / size;
    let places: Vec<Range<usize>> = ranges(&vec![each; size]);
    let mut into = zeros(values.len(), 1).map_err(|why| context.refuse(kind.doing(), why))?;
    let body = alltoall::alltoallv(context, values, &places, &mut into, &places, each);
    context.collective(Head::new::<T>(kind, values.len()), type_name::<T>(), body).await?;
    Ok(into)
}

pub(super) async fn alltoallv<T: Pod>(
    context: &Context,
    values: &[T],
    counts: &[usize],
) -> Result<(Vec<T>, Vec<usize>)> {
    let (kind, size) = (Kind::Alltoallv, context.size());
    check::<T>(context, kind, values.len())?;
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
        // Only now is it known how much all members have for this one.
        let sum = theirs.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
        let mut into = zeros(sum, 1).map_err(|why| Error::InvalidArgument { operation: kind.doing(), why })?;
        let (sends, receives) = (ranges(counts), ranges(&theirs));
        alltoall::alltoallv(context, values, &sends, &mut into, &receives, longest[0] as usize).await?;
        Ok((into, theirs))
    };
    context.collective(Head::new::<T>(kind, 0), type_name::<T>(), body).await
}

pub(super) async fn scan<T: Pod>(
    context: &Context,
    values: &mut [T],
    initial: Option<T>,
    op: &dyn OnSlices<T>,
) -> Result<()> {
    let kind = if initial.is_some() { Kind::ExclusiveScan } else { Kind::Scan };
    check::<T>(context, kind, values.len())?;
    let head = Head::new::<T>(kind, values.len()).operator(op.code());
    context.collective(head, type_name::<T>(), scan::scan(context, values, initial, op)).await
}
