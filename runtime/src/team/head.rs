//! The description of a collective, in five words that its messages carry, so that members in different collectives find out.

use crate::error::Error;
use crate::hash::mix;
use crate::team::title::{Caller, digest, place_number, type_number};
use std::any::TypeId;
use std::panic::Location;

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
    Allocate,
}

impl Kind {
    fn name(number: u8) -> &'static str {
        const NAMES: [&str; 15] = [
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
            "allocation",
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
    /// Team rank of the root; or a digest of a list.
    root: u32,
    /// Elements.
    len: u64,
    /// The number of the elements' type.
    of: u64,
    /// A digest of all collectives before, so that a difference that left no trace in its own messages shows in the next.
    before: u64,
    /// Digests of the results of earlier reductions by closures, and of the places where the program called them.
    results: u32,
    places: u32,
}

impl Head {
    pub(super) fn new<T: 'static>(kind: Kind, len: usize) -> Head {
        let element = size_of::<T>().min(u16::MAX.into()) as u16;
        let (len, of) = (len as u64, type_number(TypeId::of::<T>()));
        Head { kind: kind as u8, operator: 0, element, root: 0, len, of, before: 0, results: 0, places: 0 }
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
        let digest = [before.len, before.of, before.before].into_iter().fold(before.what(), mix);
        Head { before: digest, results: before.results, places: before.places, ..self }
    }

    /// The same, when a reduction by a closure, called at `place`, has given `result`.
    pub(super) fn with_result(self, result: &[u8], place: Option<&Location<'_>>) -> Head {
        let step = |digest: u32, word: u64| (mix(digest.into(), word) >> 32) as u32;
        let places = step(self.places, place.map_or(0, place_number));
        Head { results: step(self.results, digest(result)), places, ..self }
    }

    /// Kind, operator, bytes of an element, and root.
    fn what(self) -> u64 {
        u64::from(self.kind)
            | u64::from(self.operator) << 8
            | u64::from(self.element) << 16
            | u64::from(self.root) << 32
    }

    /// Whether both are the same call.
    pub(super) fn is_same_call(self, other: Head) -> bool {
        (self.what(), self.len, self.of) == (other.what(), other.len, other.of)
    }

    /// Whether both are the same call, after the same calls. Results of reductions that all members called at the same places may
    /// differ: a closure may depend on its rank, and another processor may round otherwise.
    #[inline]
    pub(super) fn agrees(self, other: Head) -> bool {
        self.is_same_call(other)
            && self.before == other.before
            && (self.results == other.results || self.places == other.places)
    }

    /// Digests of the call and those before, of their results, and of the places of these.
    pub(super) fn digests(self) -> [u64; 3] {
        [mix(mix(mix(self.what(), self.len), self.of), self.before), self.results.into(), self.places.into()]
    }

    pub(super) fn without_history(self) -> Head {
        Head { before: 0, results: 0, places: 0, ..self }
    }

    pub(super) fn is_refused(self) -> bool {
        self.kind == Kind::Refused as u8
    }

    /// The name of the collective.
    pub(super) fn doing(self) -> &'static str {
        Kind::name(self.kind)
    }

    fn show(self, caller: &Caller) -> String {
        let mut text = Kind::name(self.kind).to_owned();
        if self.of != type_number(TypeId::of::<()>()) {
            text += &match caller.type_name() {
                Some(name) => format!(" of {} elements of type {name}", self.len),
                None => format!(" of {} elements of {} bytes", self.len, self.element),
            };
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
        text + &caller.called()
    }

    /// The error for members that are not in the same collective: rank in the world, collective, and caller. `done`: the
    /// collective has given its results.
    #[cold]
    pub(super) fn differ(theirs: (usize, Head, Caller), ours: (usize, Head, Caller), done: bool) -> Error {
        let same = theirs.1.is_same_call(ours.1);
        let results = same && theirs.1.before == ours.1.before;
        let show = |(_, head, caller): &(usize, Head, Caller)| match (results, same) {
            (true, _) if done => format!("other results, of this or of an allreduce before: {}", head.show(caller)),
            (true, _) => format!("other results of an allreduce before {}", head.show(caller)),
            (_, true) => format!("other calls before {}", head.show(caller)),
            _ => head.show(caller),
        };
        Error::RanksDiffer {
            what: "the collective over a team",
            rank: theirs.0,
            reference: ours.0,
            theirs: show(&theirs),
            ours: show(&ours),
            advice: "every member must make the same collective calls with the same arguments, in the same order",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_agree_if_results_or_places_do() {
        let head = || Head::new::<u64>(Kind::Allreduce, 3).operator(15);
        let here = Location::caller();
        let there = Location::caller();
        let after = |result: u8, place| {
            let reduction = head().with_result(&[result], Some(place));
            Head::new::<()>(Kind::Barrier, 0).after(reduction)
        };
        assert!(after(1, here).agrees(after(1, there)), "the same results");
        assert!(after(1, here).agrees(after(2, here)), "called at the same place");
        assert!(!after(1, here).agrees(after(2, there)), "neither");
        assert!(!head().agrees(Head::new::<f64>(Kind::Allreduce, 3).operator(15)), "as many bytes, of another type");
        assert!(!head().agrees(head().after(head())), "other calls before");
    }

    #[test]
    fn every_history_is_told_from_every_other() {
        // More than 16 bits can tell apart, and one step further on.
        let histories = (0..1 << 17).map(|root| Head::new::<u8>(Kind::Broadcast, 1).root(root));
        let barrier = || Head::new::<()>(Kind::Barrier, 0);
        let digests: std::collections::HashSet<u64> =
            histories.map(|history| barrier().after(barrier().after(history)).before).collect();
        assert_eq!(digests.len(), 1 << 17);
    }
}
