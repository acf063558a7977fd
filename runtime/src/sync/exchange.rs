//! Small all-to-all exchanges: each rank shows a few bytes, and sees what all others show.

use std::cell::Cell;

use super::barrier::Barrier;
use crate::engine::Engine;
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
}

impl Kind {
    pub(super) fn name(number: u8) -> &'static str {
        match number {
            0 => "a barrier",
            1 => "an allocation",
            2 => "an allgather, allreduce or broadcast",
            3 => "an agreement",
            4 => "finish",
            5 => "a change of phase",
            _ => "no exchange",
        }
    }
}

/// What stands before the bytes on a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Title {
    /// The barrier that goes with this exchange: an old board is not taken for a new one.
    epoch: u64,
    kind: u64,
    len: u64,
}

/// Bytes one rank can show in one exchange.
pub const BOARD: usize = EXCHANGE_LEN - size_of::<Title>();

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
        kind: Kind,
        bytes: &[u8],
        mut see: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        assert!(bytes.len() <= BOARD, "{} bytes in one exchange", bytes.len());
        engine.check_outside_handler("a collective call")?;
        let board = engine.layout.exchange + usize::from(self.turn.replace(!self.turn.get())) * EXCHANGE_LEN;
        let title = Title { epoch: barrier.next_epoch(), kind: kind as u64, len: bytes.len() as u64 };
        // SAFETY: a committed board in every slot.
        let at = |rank| unsafe { engine.node.slot(rank).add(board) };
        const DATA: usize = size_of::<Title>();
        // SAFETY: our own board; readers of its last use have entered a barrier since.
        unsafe {
            copy::copy(at(engine.rank), (&raw const title).cast(), DATA);
            copy::copy(at(engine.rank).add(DATA), bytes.as_ptr(), bytes.len());
        }
        barrier.enter_for(engine, kind as u8)?;
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
            return Err(differ(rank, title_of(rank), reference, title.epoch));
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
        for (rank, bytes) in boards.chunks_exact_mut(len).enumerate() {
            engine.far_get("a collective call", rank, board, bytes)?;
        }
        let title_of = |rank: usize| bytemuck::pod_read_unaligned::<Title>(&boards[rank * len..][..size_of::<Title>()]);
        let reference = title_of(0);
        // A rank may leave right after this, and its memory with it: also because of what it has seen.
        let closed = barrier.enter(engine);
        if let Some(rank) = (0..engine.size).find(|rank| title_of(*rank) != reference) {
            return Err(differ(rank, title_of(rank), reference, title.epoch));
        }
        closed?;
        boards.chunks_exact(len).enumerate().for_each(|(rank, bytes)| see(rank, &bytes[size_of::<Title>()..]));
        Ok(())
    }
}

#[cold]
fn differ(rank: usize, theirs: Title, ours: Title, epoch: u64) -> Error {
    let show = |title: Title| match title.epoch == epoch {
        true => format!("{}, {} bytes at a time", Kind::name(title.kind as u8), title.len),
        false => "a barrier, or nothing".into(),
    };
    Error::RanksDiffer {
        what: "the collective call",
        rank,
        reference: 0,
        theirs: show(theirs),
        ours: show(ours),
        advice: "every rank must make the same collective calls, in the same order and of the same size",
    }
}
