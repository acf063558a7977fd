//! Endpoints that are connected to endpoints. Both sides connect: each tells the other, and nothing is sent before both have.
//! An endpoint that goes tells its other end, and so does an interface that is asked for one that is gone.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::transport::emulate::REPLY_HEADER;

/// Bytes of an endpoint's address.
pub(super) const ADDRESS_LEN: usize = 8;

/// Kinds of words, beside those of replies ([`crate::transport::emulate`]), with which they share a channel.
const JOIN: u8 = 5;
const GONE: u8 = 6;

/// An endpoint of an interface. Its index is given to another one when it is gone; the generation tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    index: u32,
    generation: u32,
}

impl Name {
    fn encode(self) -> [u8; ADDRESS_LEN] {
        (u64::from(self.generation) << 32 | u64::from(self.index)).to_le_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Name> {
        let word = u64::from_le_bytes(bytes.try_into().ok()?);
        Some(Name { index: word as u32, generation: (word >> 32) as u32 })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct End {
    generation: u32,
    /// The endpoint that this one was connected to.
    far: Option<(u32, Name)>,
    /// The endpoint that was connected to this one.
    suitor: Option<(u32, Name)>,
}

/// The meaning of a peer's word for an endpoint here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is connected to this peer from now on.
    Joined {
        /// The endpoint here.
        endpoint: u32,
        /// The other one's interface.
        peer: u32,
    },
    /// Its other end is gone.
    Gone {
        /// The endpoint here.
        endpoint: u32,
    },
}

/// Those of an interface, by index.
#[derive(Debug, Default)]
pub(super) struct Ends {
    ends: RefCell<Vec<End>>,
    /// Words that are to be sent, each with its target.
    words: RefCell<VecDeque<(u32, [u8; REPLY_HEADER])>>,
}

impl Ends {
    /// A new endpoint has this index.
    pub(super) fn open(&self, index: u32) {
        let mut ends = self.ends.borrow_mut();
        if ends.len() <= index as usize {
            ends.resize(index as usize + 1, End::default());
        }
    }

    /// The endpoint is gone.
    pub(super) fn close(&self, index: u32) {
        let name = self.name(index);
        let end = &mut self.ends.borrow_mut()[index as usize];
        let (far, suitor) = (end.far, end.suitor.filter(|_| end.suitor != end.far));
        *end = End { generation: end.generation.wrapping_add(1), ..End::default() };
        for (peer, other) in far.into_iter().chain(suitor) {
            self.tell(GONE, peer, name, other);
        }
    }

    fn name(&self, index: u32) -> Name {
        Name { index, generation: self.ends.borrow()[index as usize].generation }
    }

    /// The bytes by which a peer connects an endpoint to this one.
    pub(super) fn address(&self, index: u32) -> [u8; ADDRESS_LEN] {
        self.name(index).encode()
    }

    /// Connects to the endpoint of `peer` that has this address. `None` for bytes that are no address; else whether that one
    /// is connected to this one already.
    pub(super) fn connect(&self, index: u32, peer: u32, address: &[u8]) -> Option<bool> {
        let far = Name::decode(address)?;
        let (joined, refused) = {
            let end = &mut self.ends.borrow_mut()[index as usize];
            end.far = Some((peer, far));
            let joined = end.suitor == end.far;
            (joined, if joined { None } else { end.suitor.take() })
        };
        if let Some((peer, other)) = refused {
            self.tell(GONE, peer, self.name(index), other);
        }
        self.tell(JOIN, peer, self.name(index), far);
        Some(joined)
    }

    /// The peer that this endpoint was connected to.
    pub(super) fn peer(&self, index: u32) -> Option<u32> {
        self.ends.borrow()[index as usize].far.map(|(peer, _)| peer)
    }

    /// Endpoints that were connected to one.
    pub(super) fn connected(&self) -> Vec<(u32, u32)> {
        let ends = self.ends.borrow();
        ends.iter().enumerate().filter_map(|(index, end)| Some((index as u32, end.far?.0))).collect()
    }

    fn tell(&self, kind: u8, peer: u32, from: Name, to: Name) {
        let mut word = [0; REPLY_HEADER];
        word[0] = kind;
        word[8..16].copy_from_slice(&from.encode());
        word[16..24].copy_from_slice(&to.encode());
        self.words.borrow_mut().push_back((peer, word));
    }

    /// Whether no word waits to be sent.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.words.borrow().is_empty()
    }

    /// Sends the waiting words until `send` has no room. Returns how many were sent.
    pub(super) fn advance(&self, mut send: impl FnMut(u32, &[u8]) -> bool) -> usize {
        let mut done = 0;
        let mut words = self.words.borrow_mut();
        while let Some((peer, word)) = words.front() {
            if !send(*peer, word) {
                break;
            }
            words.pop_front();
            done += 1;
        }
        done
    }

    /// Takes a word of `peer`. `None` for bytes that are not a word; else the meaning of the word here, if it has one.
    pub(super) fn hear(&self, peer: u32, word: &[u8]) -> Option<Option<Heard>> {
        let kind = *word.first().filter(|kind| word.len() == REPLY_HEADER && [JOIN, GONE].contains(kind))?;
        let (from, to) = (Name::decode(&word[8..16])?, Name::decode(&word[16..24])?);
        let mut ends = self.ends.borrow_mut();
        let end = ends.get_mut(to.index as usize).filter(|end| end.generation == to.generation);
        let (far, endpoint) = (Some((peer, from)), to.index);
        Some(match (kind, end) {
            (JOIN, Some(end)) if end.far == far || end.far.is_none() && (end.suitor.is_none() || end.suitor == far) => {
                end.suitor = far;
                end.far.map(|_| Heard::Joined { endpoint, peer })
            }
            // That one is gone, or connected to another.
            (JOIN, _) => {
                drop(ends);
                self.tell(GONE, peer, to, from);
                None
            }
            (_, Some(end)) => {
                end.suitor = end.suitor.filter(|_| end.suitor != far);
                (end.far == far).then_some(Heard::Gone { endpoint })
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries the words of each to the other, which it knows as peer 0.
    fn exchange(a: &Ends, b: &Ends) -> Vec<Heard> {
        let mut heard = Vec::new();
        while !(a.is_idle() && b.is_idle()) {
            for (from, to) in [(a, b), (b, a)] {
                let mut words = Vec::new();
                from.advance(|_, word| {
                    words.push(word.to_vec());
                    true
                });
                heard.extend(words.iter().filter_map(|word| to.hear(0, word).expect("a word")));
            }
        }
        heard
    }

    #[test]
    fn whoever_comes_first_both_are_joined_once() {
        for first in [0, 1] {
            let ends = [Ends::default(), Ends::default()];
            ends.iter().for_each(|ends| ends.open(0));
            let (one, two) = (&ends[first], &ends[1 - first]);
            assert_eq!(one.connect(0, 0, &two.address(0)), Some(false));
            assert_eq!(exchange(one, two), [], "only one has connected");
            assert_eq!(two.connect(0, 0, &one.address(0)), Some(true));
            assert_eq!(exchange(one, two), [Heard::Joined { endpoint: 0, peer: 0 }]);
            two.close(0);
            assert_eq!(exchange(one, two), [Heard::Gone { endpoint: 0 }]);
        }
    }

    #[test]
    fn whoever_is_not_taken_is_told() {
        let (one, two) = (Ends::default(), Ends::default());
        (0..2).for_each(|index| one.open(index));
        two.open(0);
        // Both of one come first; the second finds the first there.
        assert_eq!(one.connect(0, 0, &two.address(0)), Some(false));
        assert_eq!(one.connect(1, 0, &two.address(0)), Some(false));
        assert_eq!(exchange(&one, &two), [Heard::Gone { endpoint: 1 }]);
        // The endpoint is dropped before it has connected to another.
        two.close(0);
        assert_eq!(exchange(&one, &two), [Heard::Gone { endpoint: 0 }]);
        // It takes another than the one that came.
        two.open(0);
        assert_eq!(one.connect(0, 0, &two.address(0)), Some(false));
        assert_eq!(exchange(&one, &two), []);
        assert_eq!(two.connect(0, 0, &one.address(1)), Some(false));
        let heard = exchange(&one, &two);
        assert!(heard.contains(&Heard::Gone { endpoint: 0 }), "{heard:?}");
    }

    #[test]
    fn neither_the_gone_nor_the_taken_are_joined() {
        let (one, two) = (Ends::default(), Ends::default());
        (0..2).for_each(|index| one.open(index));
        two.open(0);
        let before = two.address(0);
        two.close(0);
        two.open(0);
        assert_eq!(one.connect(0, 0, &before), Some(false));
        assert_eq!(exchange(&one, &two), [Heard::Gone { endpoint: 0 }], "another has its index");
        assert_eq!(two.connect(0, 0, &one.address(1)), Some(false));
        one.close(0);
        one.open(0);
        assert_eq!(one.connect(0, 0, &two.address(0)), Some(false));
        assert_eq!(exchange(&one, &two), [Heard::Gone { endpoint: 0 }], "it is connected to another");
        assert_eq!(one.connect(0, 0, &[1, 2, 3]), None);
        assert_eq!(one.hear(0, &[JOIN; 23]), None);
        assert_eq!(one.hear(0, &[1; 24]), None, "a reply");
    }
}
