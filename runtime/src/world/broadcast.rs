//! The broadcast by messages, down a binomial tree.

use std::cell::RefCell;
use std::time::Duration;

use super::World;
use crate::error::{Error, Result};
use crate::team::title::Asked;

const DOING: &str = "broadcast";
/// How long a rank waits for a piece before it asks its parent in the tree and the root whether they are in this broadcast. Chosen:
/// far longer than a message takes, too short for a person to notice.
const LONG: Duration = Duration::from_millis(20);
/// [`Head::ends`] of a rank that is not in the broadcast.
const ELSEWHERE: u64 = 2;

/// The start of every piece.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Head {
    /// Elements of the whole broadcast.
    elements: u64,
    /// Bytes of the whole broadcast.
    len: u64,
    /// [`Asked::type_number`].
    of: u64,
    root: u32,
    /// The rank that has made this head.
    rank: u32,
    /// 1: `rank` has found a rank whose head differs. That head follows; no further pieces come.
    ends: u64,
}

impl Head {
    fn is_same(&self, other: &Head) -> bool {
        (self.elements, self.len, self.of, self.root) == (other.elements, other.len, other.of, other.root)
    }
}

const HEAD: usize = size_of::<Head>();

/// What a rank may learn from a piece.
enum Learned {
    /// The piece belongs to this broadcast.
    Data(Vec<u8>),
    /// Another rank waits for the piece too, and takes this rank for the root.
    Question(Vec<u8>),
    /// The rank given here, which is the parent or the root, is in another collective call.
    Elsewhere(u32),
}

impl World {
    /// Ranks are numbered from the root. Rank v receives from v with its lowest set bit cleared, and sends to v + b for each power of two b
    /// below that bit.
    ///
    /// A rank whose `asked` differs finds out from the pieces that it receives, and tells all other ranks. A rank that receives no piece
    /// asks its parent and the rank that it takes for the root whether they have entered a barrier instead. A rank that waits elsewhere,
    /// in a team's collective or for a bell, answers when it enters a barrier. A difference that neither way shows is found by the next
    /// exchange.
    pub(super) fn broadcast_by_messages(&self, asked: Asked, root: usize, bytes: &mut [u8]) -> Result<()> {
        let _running = self.begin(DOING)?;
        let head = Head {
            elements: asked.elements() as u64,
            len: bytes.len() as u64,
            of: asked.type_number(),
            root: root as u32,
            rank: self.rank() as u32,
            ends: 0,
        };
        let outcome = self.pass_down(asked.type_name(), head, bytes);
        self.exchange.note_broadcast(&self.engine, bytemuck::bytes_of(&Head { rank: 0, ..head }));
        outcome
    }

    fn pass_down(&self, of: &'static str, head: Head, bytes: &mut [u8]) -> Result<()> {
        let (n, root) = (self.size(), head.root as usize);
        let place = (self.rank() + n - root) % n;
        let lowest = if place == 0 { n.next_power_of_two() } else { 1 << place.trailing_zeros() };
        let step = self.engine.largest_message() - size_of::<u64>() - HEAD;
        let (mut done, mut different) = (0, None);
        // A broadcast of no elements still sends one piece: another rank may expect elements, and has to be told. The root's length
        // determines the number of pieces. A rank with another length receives and forwards all of them too: its numbers for later
        // broadcasts, and the ranks below it in the tree, depend on that.
        loop {
            let number = self.messages.next_broadcast();
            let message = if place == 0 {
                [bytemuck::bytes_of(&head), &bytes[done..bytes.len().min(done + step)]].concat()
            } else {
                match self.await_piece(number, head)? {
                    Learned::Data(message) => message,
                    Learned::Question(message) => return Err(self.differ(number, of, head, read(&message, root)?.0)),
                    Learned::Elsewhere(rank) => {
                        let elsewhere = Head { rank, ends: ELSEWHERE, ..head };
                        return Err(self.differ(number, of, head, elsewhere));
                    }
                }
            };
            let (theirs, data) = read(&message, root)?;
            if theirs.ends != 0 {
                return Err(differ("", theirs, read(data, root)?.0));
            }
            if theirs.root != head.root {
                return Err(self.differ(number, of, head, theirs));
            }
            let mut below = lowest >> 1;
            while below > 0 {
                if place + below < n {
                    self.messages.pass_broadcast((place + below + root) % n, number, &message)?;
                }
                below >>= 1;
            }
            match bytes.get_mut(done..done + data.len()) {
                Some(piece) if theirs.is_same(&head) => piece.copy_from_slice(data),
                _ => different = Some(theirs),
            }
            done += data.len();
            if done as u64 >= theirs.len {
                break;
            }
            if data.is_empty() {
                return Err(Error::BadMessage { from: root, why: "a broadcast that ends before its length".into() });
            }
        }
        different.map_or(Ok(()), |theirs| Err(differ(of, head, theirs)))
    }

    /// Waits for a piece, and after [`LONG`] asks the ranks that should send it.
    fn await_piece(&self, number: u64, head: Head) -> Result<Learned> {
        let came = RefCell::new(None);
        let poll = || {
            let data = self.messages.take_broadcast(number).map(Learned::Data);
            let question = || self.messages.take_question(number).map(Learned::Question);
            let elsewhere = || self.messages.who_is_elsewhere(number).map(|rank| Learned::Elsewhere(rank as u32));
            *came.borrow_mut() = data.or_else(question).or_else(elsewhere);
            came.borrow().is_some()
        };
        match self.engine.wait_together_for(DOING, LONG, poll) {
            Err(Error::TimedOut { .. }) => {
                let (n, root) = (self.size(), head.root as usize);
                let place = (self.rank() + n - root) % n;
                let parent = ((place & (place - 1)) + root) % n;
                self.messages.ask_broadcast(root, number, bytemuck::bytes_of(&head));
                if parent != root {
                    self.messages.ask_broadcast(parent, number, &[]);
                }
                self.engine.wait_together(DOING, poll)?;
            }
            outcome => outcome?,
        }
        Ok(came.take().expect("the wait has ended with a piece"))
    }

    /// Tells all other ranks that no more pieces will come, since they may wait for some, and gives the error.
    #[cold]
    fn differ(&self, number: u64, of: &'static str, head: Head, theirs: Head) -> Error {
        let ends = [Head { ends: 1, ..head }, theirs];
        for rank in (0..self.size()).filter(|rank| *rank != self.rank()) {
            self.messages.end_broadcast(rank, number, bytemuck::cast_slice(&ends));
        }
        differ(of, head, theirs)
    }
}

/// The error for heads that differ. `of` is the name of our type, if it is known.
#[cold]
fn differ(of: &'static str, ours: Head, theirs: Head) -> Error {
    let show = |head: Head, of: &str| {
        if head.ends == ELSEWHERE {
            return "a barrier, or a call with one".into();
        }
        let of = if of.is_empty() { String::new() } else { format!(" of type {of}") };
        format!("a broadcast of {} elements{of}, {} bytes, from root {}", head.elements, head.len, head.root)
    };
    // The name of the other type is not known: only its number came with the message.
    let other = if of.is_empty() { "" } else { "another than this" };
    Error::RanksDiffer {
        what: "the collective call",
        rank: theirs.rank as usize,
        reference: ours.rank as usize,
        theirs: show(theirs, if theirs.of == ours.of { of } else { other }),
        ours: show(ours, of),
        advice: "every rank must give the same root, length and type",
    }
}

/// The head of a piece of the broadcast from `root`, and what follows.
fn read(message: &[u8], root: usize) -> Result<(Head, &[u8])> {
    match message.split_at_checked(HEAD) {
        Some((head, data)) => Ok((bytemuck::pod_read_unaligned(head), data)),
        None => Err(Error::BadMessage { from: root, why: "a broadcast without a head".into() }),
    }
}
