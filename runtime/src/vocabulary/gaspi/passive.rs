//! Passive messages: the sender names the receiver, and the receiver takes the next message of anyone.
//!
//! A message is sent in parts, which the receiver puts together. The sender's call is complete when the receiver's has taken the message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::codes;
use super::monitor::{Held, Partner};
use super::process::Process;
use super::state::kind;
use super::types::{Code, Rank, Result, SegmentId, Timeout};

/// Words before the data of a part.
const HEAD: usize = 3 * size_of::<u64>();

/// Passive messages that have come, and those that were sent and not received yet.
#[derive(Default)]
pub(super) struct Passive {
    /// By sender and number: what has come so far, and how much that is.
    parts: BTreeMap<(usize, u64), (Vec<u8>, usize)>,
    /// Whole ones, in the order in which they became whole.
    whole: VecDeque<(usize, u64, Vec<u8>)>,
    /// The number of the next message.
    next: u64,
    /// Messages of this process that were not received yet.
    sent: BTreeSet<u64>,
}

impl Passive {
    /// Takes a part; `None` if no process sends such.
    pub(super) fn arrive(&mut self, from: usize, number: u64, len: u64, offset: u64, part: &[u8]) -> Option<()> {
        let len = usize::try_from(len).ok().filter(|len| *len as u64 <= super::config::PASSIVE_TRANSFER_SIZE_MAX)?;
        // A message that fits in a line takes the whole line.
        let part = &part[..part.len().min(len.checked_sub(offset as usize)?)];
        let (message, came) = self.parts.entry((from, number)).or_insert_with(|| (vec![0; len], 0));
        let place = message.get_mut(offset as usize..)?.get_mut(..part.len())?;
        place.copy_from_slice(part);
        *came += part.len();
        if *came >= message.len() {
            let (message, _) = self.parts.remove(&(from, number))?;
            self.whole.push_back((from, number, message));
        }
        Some(())
    }

    pub(super) fn received(&mut self, number: u64) {
        self.sent.remove(&number);
    }
}

impl Process {
    /// Sends a message to `rank`: `size` bytes of a segment of this process. Complete when the receiver has received it; resumable, and
    /// received once.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_SEG`]; [`codes::INV_LOC_OFF`]; [`codes::INV_COMMSIZE`] for no bytes, or more than
    /// `passive_transfer_size_max`; [`codes::TIMEOUT`]; [`codes::ERROR`] if the receiver is lost.
    pub fn passive_send(&self, segment: SegmentId, offset: u64, rank: Rank, size: u64, timeout: Timeout) -> Result<()> {
        let key = (rank, segment, offset, size);
        let number = {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            let to = state.check_partner(world, rank)?;
            if size == 0 || size > state.config.passive_transfer_size_max {
                return Err(Code(codes::INV_COMMSIZE));
            }
            match state.sends.get_mut(&key).and_then(VecDeque::pop_front) {
                Some(number) => number,
                None => {
                    let mut bytes = vec![0; size as usize];
                    let owned = state.own(segment, offset, size)?;
                    owned.memory.read(offset as usize, &mut bytes).map_err(|error| Code(codes::of_error(&error)))?;
                    let number = {
                        let mut passive = state.arrivals.passive.borrow_mut();
                        passive.next += 1;
                        let number = passive.next;
                        passive.sent.insert(number);
                        number
                    };
                    let most = world.largest_message().saturating_sub(HEAD).max(1);
                    for (n, part) in bytes.chunks(most).enumerate() {
                        let head = [number, size, (n * most) as u64].map(u64::to_ne_bytes);
                        state.tell(world, to, kind::PASSIVE, 0, &[head.as_flattened(), part].concat());
                    }
                    number
                }
            }
        };
        let outcome = self.monitor.wait("passive_send", timeout, &Partner::Ranks(&[rank.into()]), |_, state| {
            (!state.arrivals.passive.borrow().sent.contains(&number)).then_some(Ok(()))
        });
        if outcome.is_err_and(Code::is_timeout) {
            self.monitor.enter()?.state.sends.entry(key).or_default().push_back(number);
        }
        outcome
    }

    /// Receives the next message of anyone to `size` bytes of a segment of this process. The sender, and the bytes of the message. Messages are received in
    /// the order in which they have come.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`]; [`codes::INV_LOC_OFF`]; [`codes::INV_COMMSIZE`] as of [`Process::passive_send`];
    /// [`codes::INV_SIZE`] if the message is longer: it is not received; [`codes::TIMEOUT`]; [`codes::ERROR`] without a limit if all
    /// other processes are lost.
    pub fn passive_receive(&self, segment: SegmentId, offset: u64, size: u64, timeout: Timeout) -> Result<(Rank, u64)> {
        {
            let state = &self.monitor.enter()?.state;
            state.check_works()?;
            if size == 0 || size > state.config.passive_transfer_size_max {
                return Err(Code(codes::INV_COMMSIZE));
            }
            state.own_range(segment, offset, size)?;
        }
        self.monitor.wait("passive_receive", timeout, &Partner::Any, |world, state| {
            let mut passive = state.arrivals.passive.borrow_mut();
            let (_, _, message) = passive.whole.front()?;
            let len = message.len();
            if len as u64 > size {
                return Some(Err(Code(codes::INV_SIZE)));
            }
            let written = state.own(segment, offset, size).and_then(|owned| {
                owned.memory.write(offset as usize, message).map_err(|error| Code(codes::of_error(&error)))
            });
            if let Err(code) = written {
                return Some(Err(code));
            }
            let (from, number, _) = passive.whole.pop_front()?;
            drop(passive);
            state.tell(world, from, kind::RECEIVED, 0, &number.to_ne_bytes());
            Some(Ok((from as Rank, len as u64)))
        })
    }
}
