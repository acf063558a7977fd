//! What a collective is, in two words that travel with its messages: members that are in different ones find out.

use crate::error::Error;
use bytemuck::{Pod, Zeroable};

use super::operator;

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Not called with arguments that can be right.
    Refused = 1,
    Barrier,
    Broadcast,
    Reduce,
    Allreduce,
    Gather,
    Allgather,
    Scatter,
    Alltoall,
    Alltoallv,
    Scan,
    ExclusiveScan,
    Split,
    Subset,
}

impl Kind {
    fn name(number: u8) -> &'static str {
        const NAMES: [&str; 14] = [
            "a call with wrong arguments",
            "barrier",
            "broadcast",
            "reduce",
            "allreduce",
            "gather",
            "allgather",
            "scatter",
            "all-to-all",
            "all-to-allv",
            "scan",
            "exclusive scan",
            "split",
            "subset",
        ];
        (number as usize).checked_sub(1).and_then(|at| NAMES.get(at)).unwrap_or(&"something else")
    }

    /// Its name.
    pub(super) fn doing(self) -> &'static str {
        Self::name(self as u8)
    }

    fn has_root(number: u8) -> bool {
        [Kind::Broadcast, Kind::Reduce, Kind::Gather, Kind::Scatter].iter().any(|kind| *kind as u8 == number)
    }
}

/// A collective with all that its members must give alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Head {
    kind: u8,
    operator: u8,
    /// Bytes of an element, as far as it fits.
    element: u16,
    /// Team rank of the root; or what lists have in common.
    root: u32,
    /// Elements, and above them a digest of all collectives before, so that a difference that left no trace in its own
    /// messages shows in the next.
    len: u64,
}

/// Bits of the elements.
pub(super) const LEN: u32 = 48;

impl Head {
    pub(super) fn new<T>(kind: Kind, len: usize) -> Head {
        let element = size_of::<T>().min(u16::MAX.into()) as u16;
        Head { kind: kind as u8, operator: 0, element, root: 0, len: len as u64 & ((1 << LEN) - 1) }
    }

    pub(super) fn root(self, root: usize) -> Head {
        Head { root: root as u32, ..self }
    }

    pub(super) fn operator(self, operator: u8) -> Head {
        Head { operator, ..self }
    }

    /// The same, called after `before`.
    #[inline]
    pub(super) fn after(self, before: Head) -> Head {
        let [what, len]: [u64; 2] = bytemuck::cast(before);
        let digest = (what ^ len.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> LEN;
        Head { len: self.len | digest << LEN, ..self }
    }

    pub(super) fn without_history(self) -> Head {
        Head { len: self.len & ((1 << LEN) - 1), ..self }
    }

    pub(super) fn is_refused(self) -> bool {
        self.kind == Kind::Refused as u8
    }

    /// The name of the collective.
    pub(super) fn doing(self) -> &'static str {
        Kind::name(self.kind)
    }

    fn show(self) -> String {
        let mut text = Kind::name(self.kind).to_owned();
        if self.element > 0 {
            text += &format!(" of {} elements of {} bytes", self.without_history().len, self.element);
        }
        if self.operator > 0 {
            text += &format!(" by {}", operator::name(self.operator));
        }
        if Kind::has_root(self.kind) {
            text += &format!(", root {}", self.root);
        }
        if self.kind == Kind::Subset as u8 {
            text += &format!(", list number {:x}", self.root);
        }
        text
    }

    /// The error for members that are not in the same collective; ranks are the world's.
    #[cold]
    pub(super) fn differ(theirs: (usize, Head), ours: (usize, Head)) -> Error {
        let same = theirs.1.without_history() == ours.1.without_history();
        let show = |head: Head| if same { format!("other calls before {}", head.show()) } else { head.show() };
        Error::RanksDiffer {
            what: "the collective over a team",
            rank: theirs.0,
            reference: ours.0,
            theirs: show(theirs.1),
            ours: show(ours.1),
            advice: "every member must make the same collective calls with the same arguments, in the same order",
        }
    }
}
