//! The future form of an allocation: a collective of the team of all ranks.

use std::any::type_name;
use std::rc::Rc;

use bytemuck::{Pod, Zeroable};

use super::context::Context;
use super::head::{Head, Kind};
use super::{Min, Pending, Team, allreduce, broadcast};
use crate::error::Result;

/// What each rank does in it.
pub(crate) trait Allocation: 'static {
    /// Where the memory is.
    type Place: Pod;
    /// What the program gets.
    type Made: 'static;

    /// Tells rank 0 of the memory that this rank has dropped before the call. This rank has nothing in flight.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    fn hand_back(&mut self) -> Result<()>;

    /// Takes memory, at rank 0 alone, when all have entered with the same arguments.
    fn take(&mut self) -> Self::Place;

    /// Backs this rank's part of it. Whether it could.
    fn back(&mut self, place: Self::Place) -> bool;

    /// When all have: the result, or the error if `without`, the lowest of some ranks, could not.
    fn made(self, place: Self::Place, without: Option<usize>) -> Result<Self::Made>;
}

/// In place of a rank.
const NOBODY: u64 = u64::MAX;

impl Team {
    /// Begins an allocation of `len` elements, of this team, which is that of all ranks; or, as all members learn, refuses it for the reason
    /// given. An error of [`Allocation::made`] does not break the team.
    #[track_caller]
    pub(crate) fn allocate_async<T: 'static, A: Allocation>(
        &self,
        len: usize,
        allocation: std::result::Result<A, String>,
    ) -> Pending<A::Made> {
        let (context, kind) = (Rc::clone(&self.shared.context), Kind::Allocate);
        self.shared.post(kind.doing(), async move {
            let mut allocation = allocation.map_err(|why| context.refuse(kind.doing(), why))?;
            let steps = steps(&context, &mut allocation);
            let (place, without) = context.collective(Head::new::<T>(kind, len), type_name::<T>(), steps).await?;
            allocation.made(place, without)
        })
    }
}

async fn steps<A: Allocation>(context: &Context, allocation: &mut A) -> Result<(A::Place, Option<usize>)> {
    // What is in flight to memory that this rank has dropped is in effect before rank 0 hears of the drop, and that before rank 0 takes memory.
    context.hub.quiet(Kind::Allocate.doing()).await?;
    allocation.hand_back()?;
    context.hub.quiet(Kind::Allocate.doing()).await?;
    // Unlike a barrier's, its messages carry the arguments: rank 0 takes nothing for a call that fails because these differ.
    allreduce::allreduce(context, &mut [0u64], &Min).await?;
    let mut place = [if context.rank == 0 { allocation.take() } else { Zeroable::zeroed() }];
    broadcast::broadcast(context, 0, &mut place).await?;
    let mut without = [if allocation.back(place[0]) { NOBODY } else { context.rank as u64 }];
    allreduce::allreduce(context, &mut without, &Min).await?;
    Ok((place[0], (without[0] != NOBODY).then_some(without[0] as usize)))
}
