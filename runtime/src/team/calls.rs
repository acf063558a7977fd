//! The collectives as members of [`Team`], in both forms.

use std::rc::Rc;

use crate::bounds::PlainData;
use crate::error::Result;

use super::head::Kind;
use super::{Operator, Pending, Team, checked};

/// Every blocking form waits for the collectives of this team that were begun before, and delivers messages meanwhile.
///
/// # Errors
/// All of them, in both forms: [`RanksDiffer`](crate::Error::RanksDiffer) if members are not in the same call;
/// [`Agreed`](crate::Error::Agreed) with the error text of a member that failed, or of an earlier collective of this team
/// that failed; [`PeerLost`](crate::Error::PeerLost) if a rank died, or left while other ranks wait for it;
/// [`InsideHandler`](crate::Error::InsideHandler).
impl Team {
    /// Waits until every member has called this. Earlier puts of all members are then in effect. Collective over the
    /// team.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.shared.barrier()
    }

    /// The future form of [`Team::barrier`].
    #[track_caller]
    pub fn barrier_async(&self) -> Pending<()> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Barrier.doing(), async move { checked::barrier(&context).await })
    }

    /// Copies `values` of member `root` to all members. Collective over the team; same length on every member.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) for a root outside the team; see above.
    #[track_caller]
    pub fn broadcast<T: PlainData>(&self, root: usize, values: &mut [T]) -> Result<()> {
        self.shared.run(Kind::Broadcast.doing(), checked::broadcast(self.context(), root, values))
    }

    /// The future form of [`Team::broadcast`]; gives the root's values.
    #[track_caller]
    pub fn broadcast_async<T: PlainData>(&self, root: usize, mut values: Vec<T>) -> Pending<Vec<T>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Broadcast.doing(), async move {
            checked::broadcast(&context, root, &mut values).await.map(|()| values)
        })
    }

    /// Combines `values` of all members element by element; the result replaces those of member `root`, and those of
    /// others are lost. Collective over the team; same length and operator on every member.
    ///
    /// # Errors
    /// As [`Team::broadcast`].
    #[track_caller]
    pub fn reduce<T: PlainData>(&self, root: usize, values: &mut [T], operator: impl Operator<T>) -> Result<()> {
        self.shared.run(Kind::Reduce.doing(), checked::reduce(self.context(), root, values, &operator))
    }

    /// The future form of [`Team::reduce`]; gives the result at the root, `None` elsewhere.
    #[track_caller]
    pub fn reduce_async<T: PlainData>(
        &self,
        root: usize,
        mut values: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Pending<Option<Vec<T>>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Reduce.doing(), async move {
            checked::reduce(&context, root, &mut values, &operator).await?;
            Ok((context.rank == root).then_some(values))
        })
    }

    /// Combines `values` of all members element by element; the result replaces `values` everywhere, with the same bits.
    /// Collective over the team; same length and operator on every member.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn allreduce<T: PlainData>(&self, values: &mut [T], operator: impl Operator<T>) -> Result<()> {
        self.shared.allreduce(values, &operator)
    }

    /// The future form of [`Team::allreduce`].
    #[track_caller]
    pub fn allreduce_async<T: PlainData>(
        &self,
        mut values: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Pending<Vec<T>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Allreduce.doing(), async move {
            checked::allreduce(&context, &mut values, &operator).await.map(|()| values)
        })
    }

    /// Copies `mine` of all members to member `root`, in the order of the members; `None` elsewhere. Collective over the
    /// team; same length on every member.
    ///
    /// # Errors
    /// As [`Team::broadcast`].
    #[track_caller]
    pub fn gather<T: PlainData>(&self, root: usize, mine: &[T]) -> Result<Option<Vec<T>>> {
        self.shared.run(Kind::Gather.doing(), checked::gather(self.context(), root, mine))
    }

    /// The future form of [`Team::gather`].
    #[track_caller]
    pub fn gather_async<T: PlainData>(&self, root: usize, mine: Vec<T>) -> Pending<Option<Vec<T>>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Gather.doing(), async move { checked::gather(&context, root, &mine).await })
    }

    /// Copies `mine` of all members to all members, in their order. Collective over the team; same length on every member.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn allgather<T: PlainData>(&self, mine: &[T]) -> Result<Vec<T>> {
        self.shared.run(Kind::Allgather.doing(), checked::allgather(self.context(), mine))
    }

    /// The future form of [`Team::allgather`].
    #[track_caller]
    pub fn allgather_async<T: PlainData>(&self, mine: Vec<T>) -> Pending<Vec<T>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Allgather.doing(), async move { checked::allgather(&context, &mine).await })
    }

    /// Parts `values` of member `root` equally among the members: the i-th part becomes `mine` of member i. Elsewhere
    /// `values` are not looked at. Collective over the team; same length of `mine` on every member.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) at a root whose values are not as many as all `mine` together;
    /// as [`Team::broadcast`].
    #[track_caller]
    pub fn scatter<T: PlainData>(&self, root: usize, values: &[T], mine: &mut [T]) -> Result<()> {
        self.shared.run(Kind::Scatter.doing(), checked::scatter(self.context(), root, values, mine))
    }

    /// The future form of [`Team::scatter`]; gives this member's part, of `len` elements.
    #[track_caller]
    pub fn scatter_async<T: PlainData>(&self, root: usize, values: Vec<T>, len: usize) -> Pending<Vec<T>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Scatter.doing(), async move { checked::scattered(&context, root, &values, len).await })
    }

    /// Parts `values` equally among the members, and gives what all have for this one, in their order. Collective over the
    /// team; same length on every member.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) for a length that is no multiple of the members; see above.
    #[track_caller]
    pub fn alltoall<T: PlainData>(&self, values: &[T]) -> Result<Vec<T>> {
        self.shared.run(Kind::Alltoall.doing(), checked::alltoall(self.context(), values))
    }

    /// The future form of [`Team::alltoall`].
    #[track_caller]
    pub fn alltoall_async<T: PlainData>(&self, values: Vec<T>) -> Pending<Vec<T>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Alltoall.doing(), async move { checked::alltoall(&context, &values).await })
    }

    /// Parts `values` among the members, `counts[i]` for member i, one after the other; gives what all have for this one,
    /// in their order, and how many from each. Collective over the team.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) unless there is a count for each member and they sum to the
    /// number of values; see above.
    #[track_caller]
    pub fn alltoallv<T: PlainData>(&self, values: &[T], counts: &[usize]) -> Result<(Vec<T>, Vec<usize>)> {
        self.shared.run(Kind::Alltoallv.doing(), checked::alltoallv(self.context(), values, counts))
    }

    /// The future form of [`Team::alltoallv`].
    #[track_caller]
    pub fn alltoallv_async<T: PlainData>(&self, values: Vec<T>, counts: Vec<usize>) -> Pending<(Vec<T>, Vec<usize>)> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Alltoallv.doing(), async move { checked::alltoallv(&context, &values, &counts).await })
    }

    /// Replaces `values` by those of members 0 to this one combined, element by element and in this order, one after the
    /// other. Collective over the team; same length and operator on every member.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn scan<T: PlainData>(&self, values: &mut [T], operator: impl Operator<T>) -> Result<()> {
        self.shared.run(Kind::Scan.doing(), checked::scan(self.context(), values, None, &operator))
    }

    /// The future form of [`Team::scan`].
    #[track_caller]
    pub fn scan_async<T: PlainData>(
        &self,
        mut values: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Pending<Vec<T>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::Scan.doing(), async move {
            checked::scan(&context, &mut values, None, &operator).await.map(|()| values)
        })
    }

    /// As [`Team::scan`], but with `initial` first and without this member's own: member 0 gets `initial`. The same
    /// `initial` on every member.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn exclusive_scan<T: PlainData>(&self, values: &mut [T], initial: T, operator: impl Operator<T>) -> Result<()> {
        let body = checked::scan(self.context(), values, Some(initial), &operator);
        self.shared.run(Kind::ExclusiveScan.doing(), body)
    }

    /// The future form of [`Team::exclusive_scan`].
    #[track_caller]
    pub fn exclusive_scan_async<T: PlainData>(
        &self,
        mut values: Vec<T>,
        initial: T,
        operator: impl Operator<T> + 'static,
    ) -> Pending<Vec<T>> {
        let context = Rc::clone(&self.shared.context);
        self.shared.post(Kind::ExclusiveScan.doing(), async move {
            checked::scan(&context, &mut values, Some(initial), &operator).await.map(|()| values)
        })
    }
}
