//! All-to-all: something from everyone for everyone.

use std::ops::Range;

use crate::error::Result;
use crate::settings::Alltoall;
use bytemuck::Pod;

use super::allgather::group;
use super::allreduce::chunk;
use super::by_nodes;
use super::context::Context;

/// Up to so many bytes of each member, all as long as the longest, go by nodes: their heads have to pass on everything.
const SMALL: usize = by_nodes::LARGE / 4;

/// Sends `values[sends[i]]` to member i, and takes from each what fills `into[receives[i]]`. `longest` is the longest of
/// these ranges at any member.
pub(super) async fn alltoallv<T: Pod>(
    context: &Context,
    values: &[T],
    sends: &[Range<usize>],
    into: &mut [T],
    receives: &[Range<usize>],
    longest: usize,
) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    into[receives[rank].clone()].copy_from_slice(&values[sends[rank].clone()]);
    let others = size - 1;
    if others == 0 {
        return Ok(());
    }
    let by_nodes = match context.algorithms.get().alltoall {
        // As long for everyone as the longest is.
        Alltoall::Auto => context.nodes().filter(|_| longest.saturating_mul(size * size_of::<T>()) <= SMALL),
        Alltoall::Nodes => context.nodes(),
        _ => None,
    };
    if let Some(nodes) = by_nodes {
        let mut padded = vec![T::zeroed(); longest * size];
        for (member, range) in sends.iter().enumerate() {
            padded[member * longest..][..range.len()].copy_from_slice(&values[range.clone()]);
        }
        by_nodes::alltoall_by(context, nodes, &mut padded, longest).await?;
        for (member, range) in receives.iter().enumerate() {
            into[range.clone()].copy_from_slice(&padded[member * longest..][..range.len()]);
        }
        return Ok(());
    }
    let at_once = match context.algorithms.get().alltoall {
        Alltoall::Pairwise => 1,
        Alltoall::Direct | Alltoall::Auto | Alltoall::Nodes => group::<T>(context, others),
    };
    let most = chunk::<T>(context.room(at_once));
    let part = |range: &Range<usize>, start: usize| {
        let from = (range.start + start).min(range.end);
        from..from.saturating_add(most).min(range.end)
    };
    for first in (1..size).step_by(at_once) {
        let distances = first..(first + at_once).min(size);
        let mut start = 0;
        loop {
            let step = context.step().await?;
            for distance in distances.clone() {
                let to = (rank + distance) % size;
                context.send(to, step, 0, (distance - first, at_once), &values[part(&sends[to], start)])?;
            }
            context.heard(step, 0, distances.len()).await?;
            for distance in distances.clone() {
                let from = (rank + size - distance) % size;
                let place = (distance - first, at_once);
                context.verify::<T>(from, step, place)?;
                context.read(step, place, 0, &mut into[part(&receives[from], start)]);
            }
            if distances.len() == others {
                context.synced();
            }
            start = start.saturating_add(most);
            if start >= longest {
                break;
            }
        }
    }
    Ok(())
}

/// Ranges of these lengths, one after the other.
pub(super) fn ranges(counts: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |count: &usize| {
        let start = end;
        end += count;
        start..end
    };
    counts.iter().map(range).collect()
}
