//! Small all-to-all exchanges: each rank writes a few bytes to a board in its own slot, and reads all other ranks' boards.

use std::cell::Cell;

use super::barrier::Barrier;
use crate::engine::{Engine, HeapRange};
use crate::error::{Error, Result};
use crate::memory::copy;
use crate::memory::layout::EXCHANGE_LEN;

/// Which collective call an exchange belongs to. All ranks must be in the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An allocation: requests, then outcomes.
    Allocate = 1,
    /// An allgather.
    Gather,
    /// An agreement on a common outcome.
    Agree,
    /// The last exchanges before a rank leaves.
    Finish,
    /// A change of who may reach an allocation: all ranks, or each owner its own part.
    Phase,
    /// An allreduce.
    Reduce,
    /// A broadcast.
    Broadcast,
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
            _ => "no exchange",
        }
    }
}

/// Bits of the kind in [`Title::kind`]; the number of elements is above them.
const KIND_BITS: u32 = 8;

/// The start of a board, before the bytes. All ranks' titles must be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Title {
    /// The epoch of this exchange's barrier. It distinguishes a board from the one that was there before.
    epoch: u64,
    /// [`Kind`], and above [`KIND_BITS`] the number of elements.
    kind: u64,
    /// Bytes shown.
    len: u64,
}

/// Details for the error message if ranks are in different calls. At the end of a board; only read in that case.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Facts {
    /// Number of elements.
    elements: u64,
    /// The end of the name of their type; empty if the call has no elements.
    of: [u8; 24],
    /// The call that the program made, if this exchange is only a part of it.
    call: [u8; 32],
}

/// Bytes one rank can show in one exchange.
pub const BOARD: usize = FACTS - size_of::<Title>();
/// Offset of the [`Facts`] in a board.
const FACTS: usize = EXCHANGE_LEN - size_of::<Facts>();

/// The call that an exchange belongs to. Kind and number of elements must be equal on all ranks; the type's name is only for
/// the error message.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    kind: Kind,
    elements: usize,
    of: &'static str,
}

impl Asked {
    /// A call on `elements` elements of type `T`.
    pub fn data<T>(kind: Kind, elements: usize) -> Asked {
        Asked { kind, elements, of: std::any::type_name::<T>() }
    }

    fn facts(self, call: Option<&'static str>) -> Facts {
        let mut facts = Facts { elements: self.elements as u64, of: [0; 24], call: [0; 32] };
        let (of, call) = (self.of.as_bytes(), call.unwrap_or("").as_bytes());
        let end = &of[of.len() - of.len().min(facts.of.len())..];
        facts.of[..end.len()].copy_from_slice(end);
        let start = &call[..call.len().min(facts.call.len())];
        facts.call[..start.len()].copy_from_slice(start);
        facts
    }
}

impl From<Kind> for Asked {
    fn from(kind: Kind) -> Asked {
        Asked { kind, elements: 0, of: "" }
    }
}

/// The text in a field of fixed length, up to the first zero.
fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or(bytes))
}

/// This rank's part in all exchanges of its world.
///
/// Exchanges alternate between two boards. Before a rank writes a board again, it has passed the barrier of the exchange in
/// between, which every rank enters only after it has read the board's last contents.
#[derive(Debug, Default)]
pub struct Exchange {
    turn: Cell<bool>,
}

impl Exchange {
    /// Shows `bytes` to all ranks and calls `see` with each rank and its bytes, in rank order. Collective.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] if a rank is in another call, or shows more or fewer bytes; `see` is not called then. As
    /// [`Barrier::enter`].
    ///
    /// # Panics
    /// If `bytes` is longer than [`BOARD`].
    pub fn all(
        &self,
        engine: &Engine,
        barrier: &Barrier,
        asked: impl Into<Asked>,
        bytes: &[u8],
        mut see: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        self.all_of(engine, barrier, asked.into(), bytes, &mut see)
    }

    /// As [`Exchange::all`], once for all callers.
    fn all_of(
        &self,
        engine: &Engine,
        barrier: &Barrier,
        asked: Asked,
        bytes: &[u8],
        see: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        assert!(bytes.len() <= BOARD, "{} bytes in one exchange", bytes.len());
        engine.check_outside_handler("a collective call")?;
        let board = engine.layout.exchange + usize::from(self.turn.replace(!self.turn.get())) * EXCHANGE_LEN;
        // The number of elements is compared too: arrays of different lengths may show equally long first pieces.
        let kind = asked.kind as u64 | (asked.elements as u64) << KIND_BITS;
        let title = Title { epoch: barrier.next_epoch(), kind, len: bytes.len() as u64 };
        let facts = asked.facts(engine.call());
        // SAFETY: every slot is mapped and has a committed board there. Only our own is used over a network.
        let at = |rank| unsafe { engine.node.slot(rank).add(board) };
        const DATA: usize = size_of::<Title>();
        // SAFETY: our own board; all ranks that read its last contents have entered a barrier since, which we have passed.
        unsafe {
            copy::copy(at(engine.rank), (&raw const title).cast(), DATA);
            copy::copy(at(engine.rank).add(DATA), bytes.as_ptr(), bytes.len());
            copy::copy(at(engine.rank).add(FACTS), (&raw const facts).cast(), size_of::<Facts>());
        }
        barrier.enter_for(engine, asked.kind as u8)?;
        if !engine.routes.all_mapped() {
            return self.all_far(engine, barrier, board, title, see);
        }
        let title_of = |rank| {
            let mut title: Title = bytemuck::Zeroable::zeroed();
            // SAFETY: the board is committed and is not written again before this rank enters the next barrier.
            unsafe { copy::copy((&raw mut title).cast(), at(rank), DATA) };
            title
        };
        let reference = title_of(0);
        if let Some(rank) = (0..engine.size).find(|rank| title_of(*rank) != reference) {
            let facts_of = |rank| {
                let mut facts: Facts = bytemuck::Zeroable::zeroed();
                // SAFETY: as above.
                unsafe { copy::copy((&raw mut facts).cast(), at(rank).add(FACTS), size_of::<Facts>()) };
                facts
            };
            return Err(differ((rank, title_of(rank), facts_of(rank)), (0, reference, facts_of(0)), title.epoch));
        }
        let mut buffer = [0; BOARD];
        for rank in 0..engine.size {
            // SAFETY: as above.
            unsafe { copy::copy(buffer.as_mut_ptr(), at(rank).add(DATA), bytes.len()) };
            see(rank, &buffer[..bytes.len()]);
        }
        Ok(())
    }

    /// The second half of [`Exchange::all`] over a network, which fetches the boards. `title` is our own.
    #[cold]
    fn all_far(
        &self,
        engine: &Engine,
        barrier: &Barrier,
        board: usize,
        title: Title,
        see: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let len = size_of::<Title>() + title.len as usize;
        let mut boards = vec![0; len * engine.size];
        // Fetch all boards at once. One at a time, each would cost the network's latency.
        let places = (0..engine.size).map(|rank| HeapRange { rank, offset: board, len });
        engine.far_gather("a collective call", places, &mut boards)?;
        let title_of = |rank: usize| bytemuck::pod_read_unaligned::<Title>(&boards[rank * len..][..size_of::<Title>()]);
        let reference = title_of(0);
        let different = (0..engine.size).find(|rank| title_of(*rank) != reference).map(|rank| {
            let side = |rank| {
                let mut facts: Facts = bytemuck::Zeroable::zeroed();
                // If this fails the error message says less.
                let _ = engine.far_get("a collective call", rank, board + FACTS, bytemuck::bytes_of_mut(&mut facts));
                (rank, title_of(rank), facts)
            };
            differ(side(rank), side(0), title.epoch)
        });
        // A rank may leave right after this exchange, even because of an error found in it, and its memory goes with it. So
        // no rank returns before all have fetched.
        let closed = barrier.enter(engine);
        if let Some(error) = different {
            return Err(error);
        }
        closed?;
        boards.chunks_exact(len).enumerate().for_each(|(rank, bytes)| see(rank, &bytes[size_of::<Title>()..]));
        Ok(())
    }
}

#[cold]
fn differ(theirs: (usize, Title, Facts), ours: (usize, Title, Facts), epoch: u64) -> Error {
    let show = |(_, title, facts): (usize, Title, Facts)| {
        if title.epoch != epoch {
            return "a barrier, or nothing".into();
        }
        let mut shown = Kind::name(title.kind as u8).to_owned();
        if facts.of[0] != 0 {
            // If the field is full, the start of a long name may be cut off.
            let of = text(&facts.of);
            let of = if facts.of[facts.of.len() - 1] == 0 { of } else { format!("...{of}").into() };
            shown += &format!(" of {} elements of type {of}", facts.elements);
        }
        if facts.call[0] != 0 {
            shown += &format!(" in `{}`", text(&facts.call));
        }
        shown
    };
    Error::RanksDiffer {
        what: "the collective call",
        rank: theirs.0,
        reference: ours.0,
        theirs: show(theirs),
        ours: show(ours),
        advice: "every rank must make the same collective calls, in the same order and of the same size",
    }
}
