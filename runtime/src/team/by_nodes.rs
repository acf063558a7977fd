//! Collectives of a team on several nodes, put together from the same collectives on each node and between the nodes' leaders, so
//! that less travels between nodes.
//!
//! # Why reductions keep their bits
//! Every reduction combines along one tree over the members' numbers: neighbours in pairs, pairs of neighbours, and so on; an
//! element without a neighbour goes up unchanged ([`super::operator::Fold`]). Which member is where does not enter into it, so a
//! team of the same size gives the same bits on any layout. A node may combine its members' values only if they are a whole
//! subtree, and the leaders may go on only if the nodes' subtrees are the next level's leaves: so it is where nodes are blocks of
//! the same power of two, but for a shorter last one ([`super::nodes::Layout::whole`]). Then the composition is this tree, for
//! every operator, and nothing is asked of it but what it says anyway. On other layouts values are not combined on the way at
//! all: all contributions travel, together, and are combined along the tree where they are wanted. That pays off for few bytes;
//! longer data takes the algorithms that do not consider nodes.

use std::future::Future;
use std::pin::Pin;

use crate::error::Result;
use bytemuck::Pod;

use super::allgather::{allgather, gather};
use super::allreduce::{allreduce, chunk, pieces_of};
use super::alltoall::{alltoallv, ranges};
use super::barrier::enter;
use super::broadcast::{broadcast, pass, scatter};
use super::context::Context;
use super::hub::{DOWN, UP};
use super::nodes::Nodes;
use super::operator::{Fold, OnSlices};
use super::reduce::reduce;

/// Above so many bytes of each member nothing is packed by nodes: it would be copied more often than it saves messages.
pub(super) const LARGE: usize = 16 << 10;
/// Bytes of contributions that are taken at a time where they are not combined on the way.
pub(super) const GATHERED: usize = 64 << 10;

/// A composition, boxed: it calls the collectives that it is a way to do.
type Composed<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs `body` on one of the groups, as part of the collective that `team` is in.
async fn on<R>(group: &Context, team: &Context, body: impl Future<Output = Result<R>>) -> Result<R> {
    group.called_at.set(team.called_at.get());
    group.collective(team.head(), team.element(), body).await
}

/// Nobody leaves before all members have entered.
pub(super) fn barrier<'a>(nodes: &'a Nodes) -> Composed<'a> {
    Box::pin(async move {
        let local = &nodes.local;
        let others = 1..local.size();
        // A member comes again only when the leader has let it go, so the leader never counts one for another.
        if let Some(leaders) = &nodes.leaders {
            local.heard_word(UP, others.len()).await?;
            enter(leaders).await?;
            leaders.met();
            others.clone().try_for_each(|member| local.signal_word(member, DOWN))?;
        } else {
            local.signal_word(0, UP)?;
            local.heard_word(DOWN, 1).await?;
        }
        local.met();
        Ok(())
    })
}

/// Everyone's `values` become those of the root.
pub(super) fn broadcast_by<'a, T: Pod>(
    team: &'a Context,
    nodes: &'a Nodes,
    root: usize,
    values: &'a mut [T],
) -> Composed<'a> {
    Box::pin(async move {
        let (home, place) = nodes.place(root);
        // A piece is passed on while the next one comes.
        for values in pieces_of(values, chunk::<T>(nodes.local.room(1))) {
            if nodes.own == home {
                on(&nodes.local, team, broadcast(&nodes.local, place, values)).await?;
            }
            if let Some(leaders) = &nodes.leaders {
                on(leaders, team, broadcast(leaders, home, values)).await?;
            }
            if nodes.own != home {
                on(&nodes.local, team, broadcast(&nodes.local, 0, values)).await?;
            }
        }
        Ok(())
    })
}

/// Everyone's `mine` to everyone's `all`.
pub(super) fn allgather_by<'a, T: Pod>(
    team: &'a Context,
    nodes: &'a Nodes,
    mine: &'a [T],
    all: &'a mut [T],
) -> Composed<'a> {
    Box::pin(async move {
        let (len, local) = (mine.len(), &nodes.local);
        let ours = to_leader(team, nodes, mine).await?;
        let mut packed = vec![T::zeroed(); nodes.room() * len];
        if let Some(leaders) = &nodes.leaders {
            on(leaders, team, allgather(leaders, &ours, &mut packed)).await?;
        }
        on(local, team, broadcast(local, 0, &mut packed)).await?;
        unpack(nodes, len, &packed, all);
        Ok(())
    })
}

/// Everyone's `mine` to the root's `all`, which elsewhere is empty.
pub(super) fn gather_by<'a, T: Pod>(
    team: &'a Context,
    nodes: &'a Nodes,
    root: usize,
    mine: &'a [T],
    all: &'a mut [T],
) -> Composed<'a> {
    Box::pin(async move {
        let (len, local) = (mine.len(), &nodes.local);
        let ours = to_leader(team, nodes, mine).await?;
        let ([home, place], mut packed) = packed_for(nodes, root, len);
        if let Some(leaders) = &nodes.leaders {
            on(leaders, team, gather(leaders, home, &ours, &mut packed)).await?;
        }
        if nodes.own == home && place != 0 {
            on(local, team, pass(local, [0, place], nodes.room() * len, &mut packed)).await?;
        }
        if team.rank == root {
            unpack(nodes, len, &packed, all);
        }
        Ok(())
    })
}

/// Everyone's `mine` becomes its part of the root's `values`, which elsewhere are empty.
pub(super) fn scatter_by<'a, T: Pod>(
    team: &'a Context,
    nodes: &'a Nodes,
    root: usize,
    values: &'a [T],
    mine: &'a mut [T],
) -> Composed<'a> {
    Box::pin(async move {
        let (len, local) = (mine.len(), &nodes.local);
        let ([home, place], mut packed) = packed_for(nodes, root, len);
        if team.rank == root {
            for (member, place) in nodes.places() {
                packed[place * len..][..len].copy_from_slice(&values[member * len..][..len]);
            }
        }
        if nodes.own == home && place != 0 {
            on(local, team, pass(local, [place, 0], nodes.room() * len, &mut packed)).await?;
        }
        let mut ours = vec![T::zeroed(); if nodes.leaders.is_some() { nodes.layout.most * len } else { 0 }];
        if let Some(leaders) = &nodes.leaders {
            on(leaders, team, scatter(leaders, home, &packed, &mut ours)).await?;
        }
        on(local, team, scatter(local, 0, &ours, mine)).await
    })
}

/// Combines the values of all members; everyone gets the result.
pub(super) fn allreduce_by<'a, T: Pod>(
    team: &'a Context,
    nodes: &'a Nodes,
    values: &'a mut [T],
    op: &'a dyn OnSlices<T>,
) -> Composed<'a> {
    Box::pin(async move {
        let local = &nodes.local;
        if nodes.layout.whole {
            on(local, team, reduce(local, 0, values, op)).await?;
            if let Some(leaders) = &nodes.leaders {
                on(leaders, team, allreduce(leaders, values, op)).await?;
            }
            return on(local, team, broadcast(local, 0, values)).await;
        }
        let mut fold = Fold::new(op);
        let mut all = Vec::new();
        for values in pieces_of(values, chunk::<T>(GATHERED / team.size())) {
            all.resize(values.len() * team.size(), T::zeroed());
            allgather_by(team, nodes, values, &mut all).await?;
            combine(&mut fold, &all, values);
        }
        Ok(())
    })
}

/// Combines the values of all members; the root gets the result.
pub(super) fn reduce_by<'a, T: Pod>(
    team: &'a Context,
    nodes: &'a Nodes,
    root: usize,
    values: &'a mut [T],
    op: &'a dyn OnSlices<T>,
) -> Composed<'a> {
    Box::pin(async move {
        let local = &nodes.local;
        if nodes.layout.whole {
            let (home, place) = nodes.place(root);
            on(local, team, reduce(local, 0, values, op)).await?;
            if let Some(leaders) = &nodes.leaders {
                on(leaders, team, reduce(leaders, home, values, op)).await?;
            }
            if nodes.own == home && place != 0 {
                on(local, team, pass(local, [0, place], values.len(), values)).await?;
            }
            return Ok(());
        }
        let mut fold = Fold::new(op);
        let mut all = Vec::new();
        for values in pieces_of(values, chunk::<T>(GATHERED / team.size())) {
            all.resize(if team.rank == root { values.len() * team.size() } else { 0 }, T::zeroed());
            gather_by(team, nodes, root, values, &mut all).await?;
            if team.rank == root {
                combine(&mut fold, &all, values);
            }
        }
        Ok(())
    })
}

/// From every member to every member: this member's `values` for each, `len` elements each, are replaced by the values that each has for this
/// member.
pub(super) fn alltoall_by<'a, T: Pod>(
    team: &'a Context,
    nodes: &'a Nodes,
    values: &'a mut [T],
    len: usize,
) -> Composed<'a> {
    Box::pin(async move {
        let (local, most) = (&nodes.local, nodes.layout.most);
        // Ordered by places: the values for one node lie together, and are equally long for each member.
        let (row, part) = (nodes.room() * len, most * len);
        let mut mine = vec![T::zeroed(); row];
        for (member, place) in nodes.places() {
            mine[place * len..][..len].copy_from_slice(&values[member * len..][..len]);
        }
        let mut rows = to_leader(team, nodes, &mine).await?;
        if let Some(leaders) = &nodes.leaders {
            // Send to each node the values that all members here have for it; receive from each node the values of its members.
            let mut packed = vec![T::zeroed(); rows.len()];
            for (member, row) in rows.chunks_exact(row.max(1)).enumerate() {
                for (node, theirs) in row.chunks_exact(part).enumerate() {
                    packed[(node * most + member) * part..][..part].copy_from_slice(theirs);
                }
            }
            let ranges = ranges(&vec![most * part; leaders.size()]);
            let mut came = vec![T::zeroed(); packed.len()];
            on(leaders, team, alltoallv(leaders, &packed, &ranges, &mut came, &ranges, most * part)).await?;
            for (place, theirs) in came.chunks_exact(part.max(1)).enumerate() {
                for (member, theirs) in theirs.chunks_exact(len).enumerate() {
                    rows[member * row + place * len..][..len].copy_from_slice(theirs);
                }
            }
        }
        on(local, team, scatter(local, 0, &rows, &mut mine)).await?;
        unpack(nodes, len, &mine, values);
        Ok(())
    })
}

/// The root's node, and its place there; and room for the values of all members, ordered by places, at the ranks that need
/// it: the root, and the leader of its node.
fn packed_for<T: Pod>(nodes: &Nodes, root: usize, len: usize) -> ([usize; 2], Vec<T>) {
    let (home, place) = nodes.place(root);
    let wanted = nodes.own == home && [0, place].contains(&nodes.local.rank);
    ([home, place], vec![T::zeroed(); if wanted { nodes.room() * len } else { 0 }])
}

/// Everyone's `mine` to the leader of its node, with room for as many as the largest node has; elsewhere nothing.
async fn to_leader<T: Pod>(team: &Context, nodes: &Nodes, mine: &[T]) -> Result<Vec<T>> {
    let (len, local) = (mine.len(), &nodes.local);
    let mut ours = vec![T::zeroed(); if nodes.leaders.is_some() { nodes.layout.most * len } else { 0 }];
    let filled = if nodes.leaders.is_some() { local.size() * len } else { 0 };
    on(local, team, gather(local, 0, mine, &mut ours[..filled])).await?;
    Ok(ours)
}

/// From places by nodes to places by members.
fn unpack<T: Pod>(nodes: &Nodes, len: usize, packed: &[T], all: &mut [T]) {
    for (member, place) in nodes.places() {
        all[member * len..][..len].copy_from_slice(&packed[place * len..][..len]);
    }
}

/// The concatenation of all contributions.
fn combine<T: Pod>(fold: &mut Fold<'_, T>, all: &[T], values: &mut [T]) {
    // Of no values there is nothing to combine.
    for theirs in all.chunks(values.len().max(1)) {
        let mut buffer = fold.buffer();
        buffer.extend_from_slice(theirs);
        fold.push(buffer);
    }
    let result = fold.finish();
    values.copy_from_slice(&result);
    fold.give_back(result);
}
