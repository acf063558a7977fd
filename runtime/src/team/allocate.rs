//! The future form of an allocation: a collective of the team of all ranks.

use std::any::type_name;
use std::rc::Rc;

use bytemuck::{Pod, Zeroable};

use super::context::Context;
use super::head::{Head, Kind};
use super::{Min, Pending, Team, allreduce, barrier, broadcast};
use crate::error::Result;

/// What each rank does in it.
pub(crate) trait Allocation: 'static {
    /// Where the memory is.
    type Place: Pod;
    /// What the program gets.
    type Made: 'static;

    /// Takes memory, at rank 0 alone, when no rank has anything in flight to memory that it has dropped before.
    fn take(&mut self) -> Self::Place;

    /// Backs this rank's part of it. Whether it could.
    fn back(&mut self, place: Self::Place) -> bool;

    /// When all have: the result, or the error if `without`, the lowest of some ranks, could not.
    fn made(self, place: Self::Place, without: Option<usize>) -> Result<Self::Made>;
}

/// In place of a rank.
const NOBODY: u64 = u64::MAX;

impl Team {
    /// Begins an allocation of `len` elements, of this team, which is that of all ranks. An error of [`Allocation::made`] does not
    /// break the team.
    #[track_caller]
    pub(crate) fn allocate_async<T: 'static, A: Allocation>(&self, len: usize, allocation: A) -> Pending<A::Made> {
        let (context, kind) = (Rc::clone(&self.shared.context), Kind::Allocate);
        self.shared.post(kind.doing(), async move {
            let mut allocation = allocation;
            let steps = steps(&context, &mut allocation);
            let (place, without) = context.collective(Head::new::<T>(kind, len), type_name::<T>(), steps).await?;
            allocation.made(place, without)
        })
    }
}

async fn steps<A: Allocation>(context: &Context, allocation: &mut A) -> Result<(A::Place, Option<usize>)> {
    // As in a barrier: what this rank has in flight is in effect before the others see that it has entered.
    context.hub.quiet(Kind::Allocate.doing()).await?;
    barrier::enter(context).await?;
    context.met();
    let mut place = [if context.rank == 0 { allocation.take() } else { Zeroable::zeroed() }];
    broadcast::broadcast(context, 0, &mut place).await?;
    let mut without = [if allocation.back(place[0]) { NOBODY } else { context.rank as u64 }];
    allreduce::allreduce(context, &mut without, &Min).await?;
    Ok((place[0], (without[0] != NOBODY).then_some(without[0] as usize)))
}
