//! Messages over frames of limited size and number: fragments, credits and a short queue. No socket, no clock.
//!
//! One [`Outflow`] and one [`Inflow`] stand at the two ends of a channel between two peers. The outflow holds at most
//! `slots` messages, cuts them into fragments, and may have as many fragments in flight as it has credits. The inflow
//! joins fragments, which may come in any order, and gives a credit back for each: at once for the fragments of a
//! message that is not complete, when the message is consumed for the one that completes it.

use std::collections::{HashMap, VecDeque};

use super::error::{Error, Result};
use super::wire::Channel;

/// Bytes of a frame before its fragment.
pub const FRAME_HEADER: usize = 16;

/// A frame, as it was understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A piece of a message.
    Fragment {
        /// The flow.
        channel: Channel,
        /// The message's id.
        id: u8,
        /// The message's number in its flow.
        number: u32,
        /// Where the piece belongs.
        offset: u32,
        /// Bytes of the message.
        total: u32,
        /// Leave to send as many more the other way.
        credits: u8,
        /// The piece.
        bytes: &'a [u8],
    },
    /// Leave to send more.
    Credit {
        /// The flow.
        channel: Channel,
        /// So many fragments.
        count: u32,
    },
}

impl<'a> Frame<'a> {
    /// The frame's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, channel, id, credits, words, bytes) = match *self {
            Frame::Fragment { channel, id, number, offset, total, credits, bytes } => {
                (1, channel, id, credits, [number, offset, total], bytes)
            }
            Frame::Credit { channel, count } => (2, channel, 0, 0, [count, 0, 0], &[][..]),
        };
        let mut frame = Vec::with_capacity(FRAME_HEADER + bytes.len());
        frame.extend_from_slice(&head([kind, channel as u8, id, credits], words));
        frame.extend_from_slice(bytes);
        frame
    }

    /// Understands a frame; `None` for bytes that are none.
    pub fn decode(frame: &'a [u8]) -> Option<Frame<'a>> {
        let (head, bytes) = frame.split_first_chunk::<FRAME_HEADER>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let channel = Channel::from_number(head[1])?;
        match head[0] {
            1 => {
                let (number, offset, total) = (word(4), word(8), word(12));
                let end = offset.checked_add(u32::try_from(bytes.len()).ok()?)?;
                // Only an empty message has an empty fragment.
                let whole = end <= total && (total == 0) == bytes.is_empty();
                let (id, credits) = (head[2], head[3]);
                whole.then_some(Frame::Fragment { channel, id, number, offset, total, credits, bytes })
            }
            2 if bytes.is_empty() && word(4) > 0 => Some(Frame::Credit { channel, count: word(4) }),
            _ => None,
        }
    }
}

fn head(bytes: [u8; 4], words: [u32; 3]) -> [u8; FRAME_HEADER] {
    let mut head = [0; FRAME_HEADER];
    head[..4].copy_from_slice(&bytes);
    for (at, word) in words.into_iter().enumerate() {
        head[4 + at * 4..8 + at * 4].copy_from_slice(&word.to_le_bytes());
    }
    head
}

/// Limits of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowLimits {
    /// Messages that wait to be cut up.
    pub slots: usize,
    /// Fragments in flight.
    pub credits: u32,
    /// Bytes of a fragment.
    pub fragment: usize,
    /// Bytes of a message.
    pub message: usize,
}

#[derive(Debug)]
struct Outgoing {
    id: u8,
    bytes: Vec<u8>,
    sent: usize,
    fenced: bool,
}

/// The sending end.
#[derive(Debug)]
pub struct Outflow {
    channel: Channel,
    queue: VecDeque<Outgoing>,
    credits: u32,
    number: u32,
    /// The next message waits for a fence.
    fence: bool,
}

impl Outflow {
    /// An empty flow.
    pub fn new(channel: Channel, limits: &FlowLimits) -> Outflow {
        Outflow { channel, queue: VecDeque::new(), credits: limits.credits, number: 0, fence: false }
    }

    /// Whether a message can be taken.
    pub fn has_room(&self, limits: &FlowLimits) -> bool {
        self.queue.len() < limits.slots
    }

    /// Takes a message. Ask [`Outflow::has_room`] first.
    pub fn push(&mut self, id: u8, bytes: Vec<u8>) {
        let fenced = std::mem::take(&mut self.fence);
        self.queue.push_back(Outgoing { id, bytes, sent: 0, fenced });
    }

    /// Takes a message that is sent at once in one fragment, if nothing waits before it and there is a credit: the
    /// fragment's head. It takes the `credits` along that are [`Inflow::due`] the other way.
    pub fn pass(&mut self, id: u8, len: usize, credits: u8) -> Option<[u8; FRAME_HEADER]> {
        if !self.can_pass() {
            return None;
        }
        self.credits -= 1;
        self.fence = false;
        let number = self.number;
        self.number = self.number.wrapping_add(1);
        Some(head([1, self.channel as u8, id, credits], [number, 0, len as u32]))
    }

    /// Takes back what [`Outflow::pass`] has given: it was not sent.
    pub fn unpass(&mut self) {
        self.credits += 1;
        self.number = self.number.wrapping_sub(1);
    }

    /// Whether [`Outflow::pass`] would take a message.
    pub fn can_pass(&self) -> bool {
        self.credits > 0 && self.queue.is_empty()
    }

    /// Whether a message waits that can go on.
    pub fn can_go_on(&self) -> bool {
        self.credits > 0 && !self.queue.is_empty()
    }

    /// Messages that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Messages pushed before are handed over before those pushed later.
    pub fn fence(&mut self) {
        self.fence = true;
    }

    /// The next frame to send, and whether a fence precedes the frame.
    pub fn poll(&mut self, limits: &FlowLimits) -> Option<(Vec<u8>, bool)> {
        if self.credits == 0 {
            return None;
        }
        let message = self.queue.front_mut()?;
        self.credits -= 1;
        let end = message.bytes.len().min(message.sent + limits.fragment);
        let frame = Frame::Fragment {
            channel: self.channel,
            id: message.id,
            number: self.number,
            offset: message.sent as u32,
            total: message.bytes.len() as u32,
            credits: 0,
            bytes: &message.bytes[message.sent..end],
        }
        .encode();
        let fenced = std::mem::take(&mut message.fenced);
        message.sent = end;
        if end == message.bytes.len() {
            self.queue.pop_front();
            self.number = self.number.wrapping_add(1);
        }
        Some((frame, fenced))
    }

    /// The peer allows so many more fragments.
    pub fn grant(&mut self, count: u32, limits: &FlowLimits) {
        // A peer cannot give more than there are.
        self.credits = self.credits.saturating_add(count).min(limits.credits);
    }
}

#[derive(Debug)]
struct Partial {
    id: u8,
    bytes: Vec<u8>,
    missing: usize,
}

/// The receiving end.
#[derive(Debug, Default)]
pub struct Inflow {
    partial: HashMap<u32, Partial>,
    /// Credits to give back.
    due: u32,
}

impl Inflow {
    /// Takes a fragment; gives the message if this completes it. The caller then calls [`Inflow::consumed`] when the
    /// message has been handled.
    ///
    /// # Errors
    /// [`Error::Io`] for fragments that no sender of ours makes.
    pub fn take(
        &mut self,
        id: u8,
        number: u32,
        offset: u32,
        total: u32,
        bytes: &[u8],
        limits: &FlowLimits,
    ) -> Result<Option<(u8, Vec<u8>)>> {
        const WRONG: Error = Error::Io("a fragment that does not fit its message");
        let (offset, total) = (offset as usize, total as usize);
        if total > limits.message || offset.checked_add(bytes.len()).is_none_or(|end| end > total) {
            return Err(WRONG);
        }
        if bytes.len() == total {
            return Ok(Some((id, bytes.to_vec())));
        }
        if bytes.is_empty() || (!self.partial.contains_key(&number) && self.partial.len() > limits.credits as usize) {
            return Err(WRONG);
        }
        let partial =
            self.partial.entry(number).or_insert_with(|| Partial { id, bytes: vec![0; total], missing: total });
        if partial.bytes.len() != total || partial.id != id || bytes.len() > partial.missing {
            return Err(WRONG);
        }
        partial.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        partial.missing -= bytes.len();
        if partial.missing > 0 {
            self.due += 1;
            return Ok(None);
        }
        Ok(self.partial.remove(&number).map(|whole| (whole.id, whole.bytes)))
    }

    /// A message that was complete has been handled.
    pub fn consumed(&mut self) {
        self.due += 1;
    }

    /// Credits to give back with a message of the other way. Then tell [`Inflow::gave`].
    pub fn due(&self) -> u8 {
        self.due.try_into().unwrap_or(u8::MAX)
    }

    /// So many are on their way.
    pub fn gave(&mut self, credits: u8) {
        self.due -= u32::from(credits);
    }

    /// Credits to give back now, if they are worth a frame: half of all, or enough that a sender could starve.
    pub fn credits_due(&mut self, limits: &FlowLimits) -> Option<u32> {
        self.owes(limits).then(|| std::mem::take(&mut self.due))
    }

    /// Whether [`Inflow::credits_due`] has some.
    pub fn owes(&self, limits: &FlowLimits) -> bool {
        self.due > 0 && self.due >= limits.credits.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_credit_one_slot_and_one_byte_fragments_still_carry_messages() {
        for (credits, fragment) in [(1, 1), (2, 1), (3, 2), (64, 4096)] {
            let limits = FlowLimits { slots: 1, credits, fragment, message: 1000 };
            let mut out = Outflow::new(Channel::Message, &limits);
            let mut inflow = Inflow::default();
            for len in [0usize, 1, 2, 57, 1000] {
                let message: Vec<u8> = (0..len).map(|i| i as u8).collect();
                assert!(out.has_room(&limits));
                out.push(9, message.clone());
                assert!(!out.has_room(&limits));
                let mut got = None;
                while got.is_none() {
                    let (frame, _) = out.poll(&limits).expect("a credit is there");
                    let Some(Frame::Fragment { id, number, offset, total, bytes, .. }) = Frame::decode(&frame) else {
                        panic!("a frame of ours");
                    };
                    got = inflow.take(id, number, offset, total, bytes, &limits).expect("ours");
                    if got.is_some() {
                        inflow.consumed();
                    }
                    if let Some(count) = inflow.credits_due(&limits) {
                        out.grant(count, &limits);
                    }
                }
                assert_eq!(got, Some((9, message)));
            }
        }
    }

    #[test]
    fn what_was_not_sent_takes_neither_credit_nor_number() {
        let limits = FlowLimits { slots: 1, credits: 1, fragment: 8, message: 8 };
        let mut out = Outflow::new(Channel::Message, &limits);
        let head = out.pass(1, 5, 0).expect("a credit is there");
        assert_eq!(out.pass(1, 5, 0), None);
        out.unpass();
        assert_eq!(out.pass(1, 5, 0), Some(head));
        assert_eq!(out.pass(1, 5, 0), None);
    }

    #[test]
    fn messages_take_the_credits_of_the_other_way_along() {
        let limits = FlowLimits { slots: 1, credits: 4, fragment: 8, message: 8 };
        let mut ends = [0, 1].map(|_| (Outflow::new(Channel::Message, &limits), Inflow::default()));
        for turn in 0..100 {
            let [(out, due), (back, inflow)] = &mut ends;
            let credits = due.due();
            let head = out.pass(1, 0, credits).expect("a credit is there");
            due.gave(credits);
            let Some(Frame::Fragment { credits, .. }) = Frame::decode(&head) else { panic!("a frame of ours") };
            back.grant(credits.into(), &limits);
            inflow.consumed();
            assert_eq!(inflow.credits_due(&limits), None, "turn {turn}: none needs a frame of its own");
            ends.reverse();
        }
    }

    #[test]
    fn without_credit_nothing_leaves() {
        let limits = FlowLimits { slots: 4, credits: 1, fragment: 8, message: 64 };
        let mut out = Outflow::new(Channel::Message, &limits);
        out.push(0, vec![1; 8]);
        out.push(0, vec![2; 8]);
        assert!(out.poll(&limits).is_some() && out.poll(&limits).is_none());
        out.grant(100, &limits);
        assert!(out.poll(&limits).is_some() && out.poll(&limits).is_none());
    }
}
