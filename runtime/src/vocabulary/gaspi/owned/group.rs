//! A group that has one owner.

use super::super::process::Process;
use super::super::types::{Datatype, GROUP_ALL, GroupId, Operation, Rank, Result, Timeout};
use super::{Gaspi, Resumable, Segment, log, segment};

/// Processes that call collectives together: [`Gaspi::all`], [`Gaspi::group`].
///
/// A drop gives the group of this process back; it is local. It cannot complete a collective that was begun: see [`Resumable`].
pub struct Group<'g> {
    gaspi: &'g Gaspi<'g>,
    id: GroupId,
}

/// What [`Group::allreduce`] combines: `i32`, `u32`, `f32`, `f64`, `i64`, `u64`.
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

    pub(super) fn id(&self) -> GroupId {
        self.id
    }

    fn process(&self) -> &'g Process {
        self.gaspi.process
    }

    /// Its ranks, in ascending order.
    ///
    /// # Errors
    /// As [`Process::group_ranks`].
    pub fn ranks(&self) -> Result<Vec<Rank>> {
        self.process().group_ranks(self.id)
    }

    /// Waits until every member has called this. Collective. After [`codes::TIMEOUT`](super::codes::TIMEOUT) the next call goes on with the same
    /// barrier.
    ///
    /// # Errors
    /// As [`Process::barrier`].
    pub fn barrier(&self, timeout: Timeout) -> Result<()> {
        self.process().barrier(self.id, timeout)
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
            self.process().allreduce(&send, &mut receive, operation, T::DATATYPE, self.id, timeout)?;
            Ok(receive.chunks_exact(size_of::<T>()).map(T::read).collect())
        })
    }

    /// A segment at each member: as [`Gaspi::segment`].
    ///
    /// # Errors
    /// Of the call: as [`Gaspi::segment`].
    pub fn segment(&self, bytes: u64) -> Resumable<'g, Segment<'g>> {
        segment::make(self.gaspi, self.id, bytes)
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if self.id != GROUP_ALL {
            log(self.process().group_delete(self.id), "giving a group back");
        }
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Group")
    }
}
