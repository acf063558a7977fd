//! Titles of exchanges: the parts of a collective call that must be the same on all ranks, and the error if they are not.

use std::any::TypeId;
use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::panic::Location;

use super::operator;
use crate::engine::Call;
use crate::error::{CALLED_AT, Error};
use crate::hash::{self, mix};
use crate::memory::layout::LINE;

/// Which collective call an exchange belongs to. All ranks must be in the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A plain barrier, after calls that noted something.
    Barrier = 0,
    /// An allocation: requests, then outcomes.
    Allocate,
    /// An allgather.
    Gather,
    /// An agreement on a common outcome.
    Agree,
    /// The last exchanges before a rank leaves.
    Finish,
    /// A change of the ranks that may access an allocation: all ranks, or each owner its own part.
    Phase,
    /// An allreduce.
    Reduce,
    /// A broadcast.
    Broadcast,
    /// The end of a rank that left without `finish`.
    Leave,
}

impl Kind {
    pub(super) fn name(number: u8) -> &'static str {
        match number {
            0 => "a barrier",
            1 => "an allocation",
            2 => "an allgather",
            3 => "an agreement",
            4 => "finish",
            5 => "a change of phase",
            6 => "an allreduce",
            7 => "a broadcast",
            8 => "the end of the world",
            _ => "no exchange",
        }
    }
}

/// Bits of the kind in [`Title::kind`]; the number of elements is above them.
const KIND_BITS: u32 = 8;

/// The start of a board, before the bytes. All ranks' titles must agree.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Title {
    /// The epoch of this exchange's barrier. It distinguishes a board from the one that was there before.
    pub(super) epoch: u64,
    /// [`Kind`], and above [`KIND_BITS`] the number of elements.
    pub(super) kind: u64,
    /// Bytes shown.
    pub(super) len: u64,
    /// Digest of the root, the operator and the type of the elements.
    pub(super) of: u64,
    /// The collective calls since the last exchange, and their results.
    pub(super) earlier: Earlier,
}

impl Title {
    /// Whether both are of the same call.
    fn is_same_call(&self, other: &Title) -> bool {
        (self.epoch, self.kind, self.len, self.of) == (other.epoch, other.kind, other.len, other.of)
    }

    /// Titles with equal digests agree. Equal titles have equal digests, whatever their epochs, and so have titles that differ only in the
    /// places of reductions with the same results.
    pub(super) fn digest(&self) -> u64 {
        let Earlier { broadcasts, results, .. } = self.earlier;
        [self.len, self.of, broadcasts, results].into_iter().fold(self.kind, mix)
    }

    /// Whether both are of the same call, after the same calls.
    pub(super) fn agrees(&self, other: &Title) -> bool {
        self.is_same_call(other) && self.earlier.agrees(&other.earlier)
    }
}

/// Digests of calls and results that no exchange has compared yet; all 0 right after an exchange.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Earlier {
    /// Root, length and type of broadcasts by messages.
    broadcasts: u64,
    /// Results of reductions.
    results: u64,
    /// Where these reductions were called.
    places: u64,
}

impl Earlier {
    /// Results of reductions that all ranks called at the same places may differ: the same computation may round differently on
    /// another processor, and a closure may depend on its rank. A rank that a panic took out of a reduction has no result of it; ranks
    /// that have made no reduction at all were told so by the reduction's own exchange.
    fn agrees(&self, other: &Earlier) -> bool {
        let is_known = self.has_results() && other.has_results();
        let are_same = self.results == other.results || self.places == other.places;
        self.broadcasts == other.broadcasts && (are_same || !is_known)
    }

    /// Whether there was a reduction to compare.
    pub(super) fn has_results(&self) -> bool {
        (self.results, self.places) != (0, 0)
    }

    /// After a broadcast by messages.
    pub(super) fn broadcast(self, head: &[u8]) -> Earlier {
        Earlier { broadcasts: mix(self.broadcasts, digest(head)), ..self }
    }

    /// After a reduction, called at the place with this number.
    pub(super) fn reduction(self, result: &[u8], place: u64) -> Earlier {
        Earlier { results: mix(self.results, digest(result)), places: mix(self.places, place), ..self }
    }
}

/// Details for the error message if ranks are in different calls. At the end of a board; only read in that case.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Facts {
    /// Number of elements.
    elements: u64,
    /// The root plus one; 0 if the call has none.
    root: u64,
    caller: Caller,
    /// The call that the program made, if this exchange is only a part of it.
    call: [u8; 32],
    /// [`Noted`], the number of the operator, and the binary logarithm of the alignment.
    noted: [u8; 8],
    noted_at: Spot,
}

/// The facts of which a call's title has only digests: for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Caller {
    /// The end of the name of the elements' type; empty if the call has no elements.
    of: [u8; 24],
    /// Where the program made it.
    place: Spot,
}

impl Caller {
    /// A call on elements of the type with this name, at this place.
    pub fn new(of: &str, place: Option<&'static Location<'static>>) -> Caller {
        Caller { of: tail(of), place: Spot::new(place) }
    }

    /// The name of the elements' type, if it is known.
    pub fn type_name(&self) -> Option<Cow<'_, str>> {
        (self.of[0] != 0).then(|| whole_or_end(&self.of))
    }

    /// The place, for the end of a message; nothing if it is not known.
    pub fn called(&self) -> String {
        self.place.show()
    }
}

/// A place in the user's source: the end of the file's path, and the line. Line 0 is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Spot {
    file: [u8; 60],
    line: u32,
}

impl Spot {
    fn new(place: Option<&'static Location<'static>>) -> Spot {
        let mut spot = Spot { file: [0; 60], line: 0 };
        if let Some(place) = place {
            (spot.line, spot.file) = (place.line(), tail(place.file()));
        }
        spot
    }

    /// For the end of a message; nothing if there is no place.
    fn show(&self) -> String {
        if self.line == 0 { String::new() } else { format!(", {CALLED_AT}{}:{}", whole_or_end(&self.file), self.line) }
    }
}

/// The first collective call of [`Earlier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Noted {
    Nothing = 0,
    /// The result of a reduction.
    Result,
    /// Root, length and type of a broadcast by messages.
    Broadcast,
}

impl Noted {
    fn show(number: u8) -> &'static str {
        match number {
            1 => "the results of an allreduce before, or of one after it",
            2 => "root, length or type of a broadcast before, or of one after it",
            _ => "no collective call before",
        }
    }
}

/// Digest of `bytes`: of the first and the last [`SAMPLE`].
pub fn digest(bytes: &[u8]) -> u64 {
    let (head, rest) = bytes.split_at(bytes.len().min(SAMPLE));
    let digest = hash::and_bytes(bytes.len() as u64, head);
    hash::and_bytes(digest, &rest[rest.len() - rest.len().min(SAMPLE)..])
}

/// The number of a place in the source, the same on all ranks.
pub fn place_number(place: &Location<'_>) -> u64 {
    mix(hash::of(place.file().as_bytes()), u64::from(place.line()) << 32 | u64::from(place.column()))
}

/// Bytes of a result that are compared at either end. Chosen: ranks that combine differently hardly agree on as much, and a
/// digest of all of a long one takes as long as combining it.
const SAMPLE: usize = 256;

/// The number of a type, the same on all ranks since they run the same executable.
#[inline]
pub fn type_number(of: TypeId) -> u64 {
    /// Takes the one word that a `TypeId` hashes to.
    #[derive(Default)]
    struct Word(u64);
    impl Hasher for Word {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            self.0 = hash::of(bytes);
        }
        fn write_u64(&mut self, word: u64) {
            self.0 = word;
        }
    }
    let mut word = Word::default();
    of.hash(&mut word);
    word.0
}

/// The call that an exchange belongs to. All of it must be equal on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    kind: Kind,
    elements: usize,
    /// Name and number of their type.
    of: (&'static str, u64),
    root: Option<usize>,
    /// [`Operator::CODE`](super::Operator::CODE) of a reduction; else 0.
    operator: u8,
    /// The binary logarithm of the alignment of an allocation; else 0.
    align_log2: u8,
}

impl Asked {
    /// A call on `elements` elements of type `T`.
    pub fn data<T: 'static>(kind: Kind, elements: usize) -> Asked {
        Asked {
            kind,
            elements,
            of: (std::any::type_name::<T>(), type_number(TypeId::of::<T>())),
            root: None,
            operator: 0,
            align_log2: 0,
        }
    }

    /// The same with a root.
    pub fn root(self, root: usize) -> Asked {
        Asked { root: Some(root), ..self }
    }

    /// The same by an operator with this number.
    pub fn operator(self, operator: u8) -> Asked {
        Asked { operator, ..self }
    }

    /// The same, aligned to `align` bytes: a power of two.
    pub fn aligned(self, align: usize) -> Asked {
        Asked { align_log2: align.trailing_zeros() as u8, ..self }
    }

    pub(super) fn title(self, epoch: u64, len: usize, earlier: Earlier) -> Title {
        // The number of elements is compared too: arrays of different lengths may show equally long first pieces.
        let kind = self.kind as u64 | (self.elements as u64) << KIND_BITS;
        Title { epoch, kind, len: len as u64, of: self.digest(), earlier }
    }

    pub fn elements(self) -> usize {
        self.elements
    }

    /// Name of the elements' type.
    pub fn type_name(self) -> &'static str {
        self.of.0
    }

    /// The number of that type, the same on all ranks.
    pub fn type_number(self) -> u64 {
        self.of.1
    }

    pub(super) fn kind(self) -> u8 {
        self.kind as u8
    }

    /// A number that differs, as good as always, if root, operator, alignment or type does.
    fn digest(self) -> u64 {
        let by = u64::from(self.operator) << 56 | u64::from(self.align_log2) << 48;
        mix(self.of.1, self.root.map_or(0, |root| root as u64 + 1) | by)
    }

    pub(super) fn facts(self, call: Option<Call>, noted: (Noted, Option<&'static Location<'static>>)) -> Facts {
        let mut name = [0; 32];
        let call_name = call.and_then(|call| call.name).unwrap_or("").as_bytes();
        let start = &call_name[..call_name.len().min(name.len())];
        name[..start.len()].copy_from_slice(start);
        Facts {
            elements: self.elements as u64,
            root: self.root.map_or(0, |root| root as u64 + 1),
            caller: Caller::new(self.of.0, call.map(|call| call.place)),
            call: name,
            noted: [noted.0 as u8, self.operator, self.align_log2, 0, 0, 0, 0, 0],
            noted_at: Spot::new(noted.1),
        }
    }
}

impl From<Kind> for Asked {
    fn from(kind: Kind) -> Asked {
        Asked { kind, elements: 0, of: ("", 0), root: None, operator: 0, align_log2: 0 }
    }
}

fn show(kind: u8, elements: u64, of: &str, root: Option<usize>, [by, align_log2]: [u8; 2]) -> String {
    let mut shown = Kind::name(kind).to_owned();
    if !of.is_empty() {
        shown += &format!(" of {elements} elements of type {of}");
    }
    if let Some(root) = root {
        shown += &format!(" from root {root}");
    }
    if by > 0 {
        shown += &format!(" by {}", operator::name(by));
    }
    if 1usize.checked_shl(align_log2.into()).is_some_and(|align| align > LINE) {
        shown += &format!(" aligned to {} bytes", 1u64 << align_log2);
    }
    shown
}

/// The end of a text, in a field of fixed length.
fn tail<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let end = &text.as_bytes()[text.len() - text.len().min(N)..];
    field[..end.len()].copy_from_slice(end);
    field
}

/// The text in a field of fixed length, up to the first zero.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or(bytes))
}

/// The text that [`tail`] has put into a field. If the field is full, its start may be cut off.
fn whole_or_end(bytes: &[u8]) -> Cow<'_, str> {
    if bytes.last() == Some(&0) { text(bytes) } else { format!("...{}", text(bytes)).into() }
}

/// All that [`Facts`] are made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) asked: Asked,
    pub(super) call: Option<Call>,
    pub(super) noted: (Noted, Option<&'static Location<'static>>),
}

impl Written {
    /// Whether the facts are the same; `false` costs no more than to write them again.
    pub(super) fn is_same(&self, other: &Written) -> bool {
        let at = |place: Option<&'static Location<'static>>| place.map(std::ptr::from_ref);
        let call = |call: Option<Call>| call.map(|call| (call.name.map(str::as_ptr), std::ptr::from_ref(call.place)));
        let asked =
            |asked: Asked| (asked.kind, asked.elements, asked.of.1, asked.root, [asked.operator, asked.align_log2]);
        asked(self.asked) == asked(other.asked)
            && call(self.call) == call(other.call)
            && (self.noted.0, at(self.noted.1)) == (other.noted.0, at(other.noted.1))
    }
}

#[cold]
pub(super) fn differ(theirs: (usize, Title, Facts), ours: (usize, Title, Facts), epoch: u64) -> Error {
    let is_before = theirs.1.epoch == epoch && theirs.1.is_same_call(&ours.1);
    let show = |(_, title, facts): (usize, Title, Facts)| {
        // Over a network the board may not be of this exchange.
        if title.epoch != epoch {
            return "a barrier".into();
        }
        if is_before {
            let Earlier { broadcasts, results, .. } = title.earlier;
            let digest = if theirs.1.earlier.broadcasts == ours.1.earlier.broadcasts { results } else { broadcasts };
            return format!("{} (digest {digest:x}){}", Noted::show(facts.noted[0]), facts.noted_at.show());
        }
        let root = (facts.root as usize).checked_sub(1);
        let mut shown = show(
            title.kind as u8,
            facts.elements,
            facts.caller.type_name().as_deref().unwrap_or(""),
            root,
            [facts.noted[1], facts.noted[2]],
        );
        if facts.call[0] != 0 {
            shown += &format!(" in `{}`", text(&facts.call));
        }
        shown + &facts.caller.called()
    };
    let advice = match is_before {
        true => "every rank must give all collective calls the same root, length, type and operator",
        false => "every rank must make the same collective calls, in the same order and of the same size",
    };
    let what = if is_before { "an earlier collective call" } else { "the collective call" };
    Error::RanksDiffer { what, rank: theirs.0, reference: ours.0, theirs: show(theirs), ours: show(ours), advice }
}
