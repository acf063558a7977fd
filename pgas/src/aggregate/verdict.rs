//! Each rank checks its own arguments and tells all ranks the result, so that a wrong argument is the same error everywhere.

use bellwether_runtime::{Error, Result, Symmetric, World};

use super::buckets::Buckets;
use super::places::Places;
use super::shape::{self, Shape};

/// The result of one rank's check of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    /// Lists of different lengths: the number of indices, and the length of the other list.
    Lengths(usize, usize),
    /// An index outside of the table: its position in the list of indices, the index, and the number of elements.
    Outside(usize, usize, usize),
    /// The table has no element at the place that the layout gives for an index: the index, the rank and the local index.
    Nowhere(usize, usize, usize),
    /// The buffers are too small for the table: elements at each rank, and bytes of the buffers.
    TooLarge(usize, usize),
}

/// Words of a verdict on a board: its kind, and up to three numbers.
const WORDS: usize = 4;

impl Verdict {
    /// Compares the lengths of the other lists with the number of indices.
    pub(super) fn of_lengths(indices: usize, others: &[Option<usize>]) -> Verdict {
        match others.iter().flatten().find(|length| **length != indices) {
            Some(other) => Verdict::Lengths(indices, *other),
            None => Verdict::Good,
        }
    }

    /// Checks the indices from position `from` on.
    pub(super) fn of_indices<P: Places>(places: &P, indices: &[usize], from: usize) -> Verdict {
        let (extent, rest) = (places.extent(), &indices[from..]);
        // Without a branch, so that the compiler can vectorise the loop. An index is outside if `last - index` or the
        // index itself has the top bit set. That holds for an extent of at most 2^63.
        const HALF: usize = 1 << (usize::BITS - 1);
        let wrong = if extent == 0 || extent > HALF {
            rest.iter().any(|index| *index >= extent)
        } else {
            let last = extent - 1;
            rest.iter().fold(0, |signs, index| signs | last.wrapping_sub(*index) | *index) & HALF != 0
        };
        match rest.iter().position(|index| wrong && *index >= extent) {
            Some(number) => Verdict::of_index(places, indices, from + number),
            None => Verdict::Good,
        }
    }

    /// The verdict on the index at position `number`, which is outside or has no place in the table.
    pub(super) fn of_index<P: Places>(places: &P, indices: &[usize], number: usize) -> Verdict {
        let (index, extent) = (indices[number], places.extent());
        if index >= extent {
            return Verdict::Outside(number, index, extent);
        }
        let (rank, local) = places.place(index);
        Verdict::Nowhere(index, rank, local)
    }

    pub(super) fn is_good(self) -> bool {
        self == Verdict::Good
    }

    fn words(self) -> [u64; WORDS] {
        let (kind, a, b, c) = match self {
            Verdict::Good => (0, 0, 0, 0),
            Verdict::Lengths(indices, other) => (1, indices, other, 0),
            Verdict::Outside(number, index, extent) => (2, number, index, extent),
            Verdict::Nowhere(index, rank, local) => (3, index, rank, local),
            Verdict::TooLarge(len, memory) => (4, len, memory, 0),
        };
        [kind, a, b, c].map(|word| word as u64)
    }

    fn from_words(words: [u64; WORDS]) -> Verdict {
        let [kind, a, b, c] = words.map(|word| word as usize);
        match kind {
            0 => Verdict::Good,
            1 => Verdict::Lengths(a, b),
            2 => Verdict::Outside(a, b, c),
            3 => Verdict::Nowhere(a, b, c),
            _ => Verdict::TooLarge(a, b),
        }
    }

    /// The error that every rank returns if this is the verdict of `rank`.
    pub(super) fn error(self, operation: &'static str, rank: usize) -> Error {
        let why = match self {
            Verdict::Good => "nothing is wrong".into(),
            Verdict::Lengths(indices, other) => format!("rank {rank} brought {indices} indices and {other} values"),
            Verdict::Outside(number, index, extent) => {
                format!("rank {rank} brought index {index}, its number {number}, for a table of {extent} elements")
            }
            Verdict::Nowhere(index, owner, local) => format!(
                "the layout puts index {index} of rank {rank} at element {local} of rank {owner}, which the table \
                 does not have"
            ),
            Verdict::TooLarge(len, memory) => {
                format!("{len} elements at each rank are too many for {memory} bytes of buffers; raise the budget")
            }
        };
        Error::InvalidArgument { operation, why }
    }
}

/// A call and its table, which must be the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) operation: &'static str,
    /// Where the table lies in every rank's segment, and its elements at each rank.
    pub(super) table: (usize, usize),
    pub(super) layout: Shape,
}

/// Words of a call on a board, with the number of the exchange. They must be the same on all ranks.
const HEAD: usize = 4 + shape::WORDS;

/// The names of all calls. On a board a call is its position here.
const OPERATIONS: [&str; 4] = ["scatter_add", "scatter_with", "fetch_add", "gather"];

impl Call {
    /// The same call, with the shape of the layout under these buckets.
    pub(super) fn sorted_by<B: Buckets>(self, buckets: &B) -> Call {
        Call { layout: buckets.shape(self.layout), ..self }
    }

    fn words(self, exchange: u64) -> [u64; HEAD] {
        let operation = OPERATIONS.iter().position(|operation| *operation == self.operation);
        let (operation, (offset, len)) = (operation.unwrap_or(OPERATIONS.len()), self.table);
        let [kind, extent, count, stretch, print] = self.layout.words();
        [exchange, operation as u64, offset as u64, len as u64, kind, extent, count, stretch, print]
    }

    fn show([exchange, operation, offset, len, layout @ ..]: [u64; HEAD]) -> String {
        let operation = OPERATIONS.get(operation as usize).copied().unwrap_or("another call");
        let layout = Shape::show(layout);
        format!(
            "call {exchange} is {operation}, on {len} elements at each rank, from byte {offset} of its memory, by {layout}"
        )
    }
}

/// Where ranks publish their verdicts: each rank has two boards and uses them in turn. A rank overwrites a board only after
/// the barrier of the next exchange, which every rank enters after it has read that board.
pub(super) struct Verdicts {
    boards: Symmetric<u64>,
    /// Whether every rank maps the boards of all others. The same on all ranks.
    are_mapped: bool,
    /// Exchanges so far.
    count: u64,
}

/// Words of a board: the call, whether the rank has more to do, the verdict.
const BOARD: usize = HEAD + 1 + WORDS;

impl Verdicts {
    /// Collective.
    pub(super) fn new(world: &World, are_mapped: bool) -> Result<Verdicts> {
        Ok(Verdicts { boards: world.alloc_withheld(2 * BOARD)?, are_mapped, count: 0 })
    }

    /// Publishes this rank's verdict, waits for all ranks and checks theirs. Returns whether any rank has more to do. Collective.
    ///
    /// # Errors
    /// The fault of the first rank that has one; [`Error::RanksDiffer`] if ranks are in different calls; as [`World::barrier`].
    pub(super) fn exchange(&mut self, world: &World, call: Call, mine: Verdict, more: bool) -> Result<bool> {
        self.count += 1;
        let board = (self.count % 2) as usize * BOARD;
        let head = call.words(self.count);
        let mut words = [0; BOARD];
        words[..HEAD].copy_from_slice(&head);
        words[HEAD] = u64::from(more);
        words[HEAD + 1..].copy_from_slice(&mine.words());
        if !self.are_mapped {
            return exchange_remote(world, call, &words);
        }
        self.boards.write(board, &words);
        world.barrier()?;
        let mut any = false;
        for rank in 0..world.size() {
            let mut theirs = [0; BOARD];
            self.boards.get_slice(rank, board, &mut theirs)?;
            any |= check_board(&theirs, &head, call, rank, world.rank())?;
        }
        Ok(any)
    }
}

/// [`Verdicts::exchange`] for boards that are not mapped: one allgather instead of a get from each rank.
fn exchange_remote(world: &World, call: Call, mine: &[u64; BOARD]) -> Result<bool> {
    let all = world.allgather(mine)?;
    let head: [u64; HEAD] = std::array::from_fn(|word| mine[word]);
    let mut any = false;
    for (rank, theirs) in all.chunks_exact(BOARD).enumerate() {
        let theirs: [u64; BOARD] = std::array::from_fn(|word| theirs[word]);
        any |= check_board(&theirs, &head, call, rank, world.rank())?;
    }
    Ok(any)
}

/// Checks the board of `rank`: returns whether that rank has more to do, or its fault.
fn check_board(theirs: &[u64; BOARD], head: &[u64; HEAD], call: Call, rank: usize, own: usize) -> Result<bool> {
    let title: [u64; HEAD] = std::array::from_fn(|word| theirs[word]);
    if title != *head {
        return Err(Error::RanksDiffer {
            what: "the call of the aggregator",
            rank,
            reference: own,
            theirs: Call::show(title),
            ours: Call::show(*head),
            advice: "every rank must make the same aggregated calls, on the same tables, by the same layout, in the same \
                     order",
        });
    }
    let verdict = Verdict::from_words(std::array::from_fn(|word| theirs[HEAD + 1 + word]));
    if verdict.is_good() { Ok(theirs[HEAD] != 0) } else { Err(verdict.error(call.operation, rank)) }
}
