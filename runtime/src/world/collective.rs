//! Small collectives over the exchange boards. Results are the same on every rank, bit for bit, because every rank
//! combines the same contributions in the order of the ranks.

use bytemuck::Pod;

use super::{PlainData, World};
use crate::error::{Error, Result};
use crate::sync::exchange::{Asked, BOARD, Kind};

/// Room for words behind their length.
const WORDS: usize = BOARD - 8;
const ADVICE: &str = "every rank must take part with the same length";

impl World {
    /// Shows `mine` to all ranks and returns everyone's, in the order of the ranks. Collective; same length on every
    /// rank.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] for other lengths; as [`World::barrier`].
    pub fn allgather<T: PlainData>(&self, mine: &[T]) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); mine.len() * self.size()];
        self.rounds(mine, Kind::Gather, |rank, start, part| {
            let at = rank * mine.len() + start;
            all[at..at + part.len()].copy_from_slice(part);
        })?;
        Ok(all)
    }

    /// Combines `values` of all ranks element by element, in the order of the ranks; the result replaces `values`
    /// everywhere. Collective; same length on every rank.
    ///
    /// # Errors
    /// As [`World::allgather`].
    pub fn allreduce<T: PlainData>(&self, values: &mut [T], combine: impl Fn(T, T) -> T) -> Result<()> {
        let mine = values.to_vec();
        self.rounds(&mine, Kind::Reduce, |rank, start, part| {
            for (value, theirs) in values[start..].iter_mut().zip(part) {
                *value = if rank == 0 { *theirs } else { combine(*value, *theirs) };
            }
        })
    }

    /// Adds up `values` of all ranks; see [`World::allreduce`].
    ///
    /// # Errors
    /// As [`World::allgather`].
    pub fn allreduce_sum<T: PlainData + std::ops::Add<Output = T>>(&self, values: &mut [T]) -> Result<()> {
        self.allreduce(values, |a, b| a + b)
    }

    /// Copies `values` of rank `root` to all ranks. Collective; same length on every rank. Over a network down a
    /// binomial tree: at most log2 n messages one after the other, and no rank waits for those below it.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; as [`World::allgather`].
    pub fn broadcast<T: PlainData>(&self, root: usize, values: &mut [T]) -> Result<()> {
        self.engine.check_rank(root, "broadcast")?;
        if !self.engine.routes.all_mapped() {
            return self.broadcast_far(root, values, self.engine.largest_message());
        }
        let mine = values.to_vec();
        self.rounds(&mine, Kind::Broadcast, |rank, start, part| {
            if rank == root {
                values[start..start + part.len()].copy_from_slice(part);
            }
        })
    }

    fn broadcast_far<T: Pod>(&self, root: usize, values: &mut [T], largest: usize) -> Result<()> {
        const DOING: &str = "broadcast";
        self.engine.check_outside_handler(DOING)?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let (n, len) = (self.size(), bytes.len() as u64);
        // Numbered from the root, rank v hears from v without its lowest bit, and tells those that add a lower one.
        let place = (self.rank() + n - root) % n;
        let lowest = if place == 0 { n.next_power_of_two() } else { 1 << place.trailing_zeros() };
        let step = largest - 16;
        let (mut done, mut different) = (0, None);
        // No elements are one piece without any: others may have some, which is to be told. The root's length says how many pieces
        // there are. A rank with another length takes and passes on all of them too: its place in later broadcasts, and the ranks
        // below it, depend on that.
        loop {
            let number = self.broadcasts.get();
            self.broadcasts.set(number + 1);
            let mut message = Vec::new();
            if place == 0 {
                message.extend_from_slice(&len.to_ne_bytes());
                message.extend_from_slice(&bytes[done..bytes.len().min(done + step)]);
            } else {
                self.engine.wait_together(DOING, || match self.messages.take_broadcast(number) {
                    Some(bytes) => {
                        message = bytes;
                        true
                    }
                    None => false,
                })?;
            }
            let mut below = lowest >> 1;
            while below > 0 {
                if place + below < n {
                    self.messages.pass_broadcast((place + below + root) % n, number, &message)?;
                }
                below >>= 1;
            }
            let bad = |why: &str| Error::BadMessage { from: root, why: why.into() };
            let Some((theirs, data)) = message.split_first_chunk() else {
                return Err(bad("a broadcast without a length"));
            };
            let theirs = u64::from_ne_bytes(*theirs);
            match bytes.get_mut(done..done + data.len()) {
                Some(piece) if theirs == len => piece.copy_from_slice(data),
                _ => different = Some(theirs),
            }
            done += data.len();
            if done as u64 >= theirs {
                break;
            }
            if data.is_empty() {
                return Err(bad("a broadcast that ends before its length"));
            }
        }
        let Some(theirs) = different else { return Ok(()) };
        let show = |bytes: u64| {
            let (elements, of) = (bytes / size_of::<T>() as u64, std::any::type_name::<T>());
            format!("a broadcast of {elements} elements of type {of}, {bytes} bytes")
        };
        Err(Error::RanksDiffer {
            what: "the collective call",
            rank: root,
            reference: self.rank(),
            theirs: show(theirs),
            ours: show(len),
            advice: ADVICE,
        })
    }

    /// Passes `mine` through the boards, as many elements at a time as fit; `see` gets rank, first index and part.
    fn rounds<T: Pod>(&self, mine: &[T], kind: Kind, mut see: impl FnMut(usize, usize, &[T])) -> Result<()> {
        const { assert!(size_of::<T>() <= BOARD && size_of::<T>() > 0, "an element fits in an exchange") };
        let asked = Asked::data::<T>(kind, mine.len());
        let mut scratch = vec![T::zeroed(); mine.len().min(BOARD / size_of::<T>())];
        let mut start = 0;
        loop {
            let part = &mine[start..mine.len().min(start + scratch.len())];
            self.exchange(asked, bytemuck::cast_slice(part), |rank, theirs| {
                let scratch = &mut scratch[..part.len()];
                bytemuck::cast_slice_mut::<T, u8>(scratch).copy_from_slice(theirs);
                see(rank, start, scratch);
            })?;
            start += part.len();
            if start == mine.len() {
                return Ok(());
            }
        }
    }

    /// Shows this rank's address of something to all, and returns everyone's. Collective. An address that another
    /// rank can use with the raw calls of [`crate::vocabulary::cheetah`].
    ///
    /// # Errors
    /// As [`World::barrier`].
    pub fn exchange_addresses<T>(&self, address: *const T) -> Result<Vec<usize>> {
        self.allgather(&[address as usize])
    }

    /// Agrees on an outcome: `Ok` if all ranks bring `Ok`, else the first failing rank and its text. Collective.
    /// Lets one rank read and check the input for all.
    ///
    /// # Errors
    /// [`Error::Agreed`] on every rank, with the first failure's rank and text; as [`World::barrier`].
    pub fn agree(&self, mine: std::result::Result<(), String>) -> Result<()> {
        let mut board = [0u8; BOARD];
        if let Err(why) = mine {
            let shown = why.floor_char_boundary(WORDS);
            board[..8].copy_from_slice(&(1 + shown as u64).to_ne_bytes());
            board[8..8 + shown].copy_from_slice(&why.as_bytes()[..shown]);
        }
        let mut first = None;
        self.exchange(Kind::Agree, &board, |rank, theirs| {
            let word = u64::from_ne_bytes(theirs[..8].try_into().expect("eight bytes")) as usize;
            if word != 0 && first.is_none() {
                let end = 8 + (word - 1).min(WORDS);
                first = Some((rank, String::from_utf8_lossy(&theirs[8..end]).into_owned()));
            }
        })?;
        match first {
            None => Ok(()),
            Some((rank, why)) => Err(Error::Agreed { rank, why }),
        }
    }
}
