//! A group that has one owner.

use std::sync::PoisonError;

use super::super::codes;
use super::super::process::Process;
use super::super::types::{Code, Datatype, GROUP_ALL, GroupId, Operation, Rank, Result, Timeout};
use super::{Gaspi, Resumable, Segment, log, segment};

/// Processes that call collectives together: [`Gaspi::all`], [`Gaspi::group`].
///
/// A drop gives the group of this process back; it is local. It cannot complete a collective that was begun: see [`Resumable`].
///
/// # Examples
/// A group is not given back while a segment of it is being made:
/// ```compile_fail,E0505
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// # use bellwether::gaspi::{Code, Group};
/// fn make(group: Group<'_>) -> Result<(), Code> {
///     let segment = group.segment(64);
///     drop(group);
///     segment.block().map(drop)
/// }
/// ```
pub struct Group<'g> {
    gaspi: &'g Gaspi<'g>,
    id: GroupId,
}

/// The types that [`Group::allreduce`] combines: `i32`, `u32`, `f32`, `f64`, `i64`, `u64`.
pub trait Element: Copy + Send + sealed::Bytes {}

mod sealed {
    use super::Datatype;

    pub trait Bytes: Sized {
        const DATATYPE: Datatype;
        fn append(self, bytes: &mut Vec<u8>);
        fn read(bytes: &[u8]) -> Self;
    }
}

macro_rules! elements {
    ($($element:ty: $datatype:ident;)+) => {$(
        impl Element for $element {}

        impl sealed::Bytes for $element {
            const DATATYPE: Datatype = Datatype::$datatype;

            fn append(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_ne_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                <$element>::from_ne_bytes(bytes.try_into().expect("as many bytes as an element has"))
            }
        }
    )+};
}

elements! {
    i32: Int;
    u32: Uint;
    f32: Float;
    f64: Double;
    i64: Long;
    u64: Ulong;
}

impl<'g> Group<'g> {
    pub(super) fn own(gaspi: &'g Gaspi<'g>, id: GroupId) -> Group<'g> {
        Group { gaspi, id }
    }

    /// # Errors
    /// As [`Phase::process`](super::Phase::process).
    fn process(&self) -> Result<&'g Process> {
        self.gaspi.phase.process()
    }

    /// Its ranks, in ascending order.
    ///
    /// # Errors
    /// As [`Process::group_ranks`].
    pub fn ranks(&self) -> Result<Vec<Rank>> {
        self.process()?.group_ranks(self.id)
    }

    /// Waits until every member has called this. Collective. After [`codes::TIMEOUT`](super::codes::TIMEOUT) the next call goes on with the same
    /// barrier.
    ///
    /// # Errors
    /// As [`Process::barrier`].
    pub fn barrier(&self, timeout: Timeout) -> Result<()> {
        self.process()?.barrier(self.id, timeout)
    }

    /// Combines elements of all members; each gets the same result, with the same bits. Collective.
    ///
    /// # Errors
    /// Of the call: as [`Process::allreduce`].
    pub fn allreduce<T: Element>(&self, values: &[T], operation: Operation) -> Resumable<'_, Vec<T>> {
        let mut send = Vec::with_capacity(size_of_val(values));
        values.iter().for_each(|value| value.append(&mut send));
        let mut receive = vec![0; send.len()];
        Resumable::new(move |timeout| {
            self.process()?.allreduce(&send, &mut receive, operation, T::DATATYPE, self.id, timeout)?;
            Ok(receive.chunks_exact(size_of::<T>()).map(T::read).collect())
        })
    }

    /// A segment at each member: as [`Gaspi::segment`].
    ///
    /// # Errors
    /// Of the call: as [`Gaspi::segment`].
    pub fn segment(&self, bytes: u64) -> Resumable<'_, Segment<'g>> {
        segment::make(self.gaspi, self.id, bytes)
    }
}

/// A group that is being committed. If it is dropped meanwhile, the next call for the same ranks goes on with it.
pub(super) struct Committing<'g> {
    group: Option<Group<'g>>,
    /// In ascending order.
    ranks: Vec<Rank>,
    /// The others wait for this process, or will.
    has_begun: bool,
}

impl<'g> Committing<'g> {
    /// # Errors
    /// As of [`Gaspi::group`].
    pub(super) fn new(gaspi: &'g Gaspi<'g>, ranks: &[Rank]) -> Result<Committing<'g>> {
        let process = gaspi.phase.process()?;
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        let dropped = {
            let mut dropped = gaspi.commits.lock().unwrap_or_else(PoisonError::into_inner);
            let first = dropped.iter().position(|(of, _)| *of == ranks);
            first.map(|first| dropped.remove(first).1)
        };
        if let Some(id) = dropped {
            return Ok(Committing { group: Some(Group::own(gaspi, id)), ranks, has_begun: true });
        }
        let group = Group::own(gaspi, process.group_create()?);
        ranks.iter().try_for_each(|rank| process.group_add(group.id, *rank))?;
        Ok(Committing { group: Some(group), ranks, has_begun: false })
    }

    pub(super) fn advance(&mut self, timeout: Timeout) -> Result<Group<'g>> {
        let group = self.group.as_ref().ok_or(Code(codes::ERROR))?;
        let committed = group.process()?.group_commit(group.id, timeout);
        self.has_begun = committed.is_err_and(Code::is_timeout);
        committed?;
        self.group.take().ok_or(Code(codes::ERROR))
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        let Some(group) = self.group.take_if(|_| self.has_begun) else { return };
        let mut dropped = group.gaspi.commits.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.push((std::mem::take(&mut self.ranks), group.id));
        drop(dropped);
        // Its number stays in use.
        std::mem::forget(group);
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if self.id != GROUP_ALL {
            let Ok(process) = self.process() else { return };
            self.gaspi.making.lock().unwrap_or_else(PoisonError::into_inner).leave(self.id, process);
            log(process.group_delete(self.id), "giving a group back");
        }
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Group")
    }
}
