//! Small all-to-all exchanges: each rank shows a few bytes, and sees what all others show.

use std::cell::Cell;

use super::barrier::Barrier;
use crate::engine::{Engine, Place};
use crate::error::{Error, Result};
use crate::memory::copy;
use crate::memory::layout::EXCHANGE_LEN;

/// Which collective call an exchange belongs to. All ranks must be in the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asking for memory, and the answers.
    Allocate = 1,
    /// Everyone's data for everyone.
    Gather,
    /// A common outcome.
    Agree,
    /// The last exchanges before leaving.
    Finish,
    /// Allocations that change hands: between all ranks and their owners.
    Phase,
    /// Everyone's data combined.
    Reduce,
    /// One rank's data for everyone.
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

/// Bits of the kind in a title; above them is the number of elements.
const KIND_BITS: u32 = 8;

/// What stands before the bytes on a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Title {
    /// The barrier that goes with this exchange: an old board is not taken for a new one.
    epoch: u64,
    /// And the number of elements.
    kind: u64,
    len: u64,
}

/// What else is told of a call to a rank that is in another one; at the end of a board, where nobody else looks.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Facts {
    /// Number of elements. Their type, by the end of its name; empty where there are none.
    elements: u64,
    of: [u8; 24],
    /// The call that the program made, if it is made of others.
    call: [u8; 32],
}

/// Bytes one rank can show in one exchange.
pub const BOARD: usize = FACTS - size_of::<Title>();
/// Where a board's facts are.
const FACTS: usize = EXCHANGE_LEN - size_of::<Facts>();

/// What an exchange is for: what all ranks must give alike, and what else tells the calls apart for people.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    kind: Kind,
    elements: usize,
    of: &'static str,
}

impl Asked {
    /// So many elements of a type.
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

/// What stands in a fixed length.
fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or(bytes))
}

/// This rank's part in all exchanges of its world.
///
/// Two boards are used in turn. A rank writes board b again only after the barrier of the exchange in between,
/// which everyone enters when done reading b.
#[derive(Debug, Default)]
pub struct Exchange {
    turn: Cell<bool>,
}

impl Exchange {
    /// Shows `bytes` to all and calls `see` with each rank's number and bytes. Collective.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] if a rank is in another call, or shows more or fewer bytes; nothing is seen then. As the
    /// barrier.
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
        assert!(bytes.len() <= BOARD, "{} bytes in one exchange", bytes.len());
        engine.check_outside_handler("a collective call")?;
        let board = engine.layout.exchange + usize::from(self.turn.replace(!self.turn.get())) * EXCHANGE_LEN;
        let asked = asked.into();
        // Elements are compared too: the first boards of arrays of different lengths look alike.
        let kind = asked.kind as u64 | (asked.elements as u64) << KIND_BITS;
        let title = Title { epoch: barrier.next_epoch(), kind, len: bytes.len() as u64 };
        let facts = asked.facts(engine.call());
        // SAFETY: a committed board in every slot.
        let at = |rank| unsafe { engine.node.slot(rank).add(board) };
        const DATA: usize = size_of::<Title>();
        // SAFETY: our own board; readers of its last use have entered a barrier since.
        unsafe {
            copy::copy(at(engine.rank), (&raw const title).cast(), DATA);
            copy::copy(at(engine.rank).add(DATA), bytes.as_ptr(), bytes.len());
            copy::copy(at(engine.rank).add(FACTS), (&raw const facts).cast(), size_of::<Facts>());
        }
        barrier.enter_for(engine, asked.kind as u8)?;
        if engine.far().is_some() {
            return self.all_far(engine, barrier, board, title, &mut see);
        }
        let title_of = |rank| {
            let mut title: Title = bytemuck::Zeroable::zeroed();
            // SAFETY: a committed board, not written again before this rank enters the next barrier.
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

    /// The same where boards are fetched over a network: `title` is our own.
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
        // All at a time: one after the other each would take the network's latency.
        let places = (0..engine.size).map(|rank| Place { rank, offset: board, len });
        engine.far_gather("a collective call", places, &mut boards)?;
        let title_of = |rank: usize| bytemuck::pod_read_unaligned::<Title>(&boards[rank * len..][..size_of::<Title>()]);
        let reference = title_of(0);
        let different = (0..engine.size).find(|rank| title_of(*rank) != reference).map(|rank| {
            let side = |rank| {
                let mut facts: Facts = bytemuck::Zeroable::zeroed();
                // Without them the error says less.
                let _ = engine.far_get("a collective call", rank, board + FACTS, bytemuck::bytes_of_mut(&mut facts));
                (rank, title_of(rank), facts)
            };
            differ(side(rank), side(0), title.epoch)
        });
        // A rank may leave right after this, and its memory with it: also because of what it has seen.
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
            // A long name has lost its start.
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
