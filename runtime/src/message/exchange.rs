//! The messages of exchanges over a network, each in as many parts as it needs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use super::{Messages, id, words};
use crate::error::Result;

/// A round of an exchange: the number of the exchange, and of the round.
pub type Round = [u64; 2];

/// Messages of exchanges that have come and are not taken yet.
#[derive(Default)]
pub(super) struct Exchanges {
    came: RefCell<HashMap<Round, Parts>>,
    /// Messages of exchanges that this rank has sent, and delivered, so far.
    traffic: Cell<[u64; 2]>,
}

/// Parts of one message, by their number. They come in any order.
struct Parts {
    /// How many there are.
    count: u64,
    came: BTreeMap<u64, Vec<u8>>,
}

/// Words of a message before its bytes: the exchange, the round, the part, and how many parts there are.
const WORDS: usize = 4;

impl Messages {
    pub(super) fn install_exchange(&self) {
        self.set_handler(id::EXCHANGE, |messages, message| match words::<WORDS>(message.data()) {
            Some(([exchange, round, part, count], bytes)) => {
                let mut came = messages.exchanges.came.borrow_mut();
                let parts = came.entry([exchange, round]).or_insert(Parts { count, came: BTreeMap::new() });
                parts.came.insert(part, bytes.to_vec());
                messages.exchanges.count([0, 1]);
            }
            None => messages.fault(message.from, "a part of an exchange without its numbers"),
        });
    }

    /// Tells `to` these bytes, of which there is at least one. Does not wait for `to` unless this rank keeps too many messages.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub fn tell(&self, to: usize, [exchange, round]: Round, bytes: &[u8]) -> Result<()> {
        let room = self.engine.largest_message() - WORDS * size_of::<u64>();
        let count = bytes.len().div_ceil(room) as u64;
        bytes.chunks(room).zip(0u64..).try_for_each(|(bytes, part)| {
            let payload = [bytemuck::bytes_of(&[round, part, count]), bytes].concat();
            self.engine.send_or_keep(to, id::EXCHANGE, exchange, &payload)?;
            self.exchanges.count([1, 0]);
            Ok(())
        })
    }

    /// Whether the whole message to this rank in that round has come.
    pub fn was_told(&self, round: Round) -> bool {
        self.exchanges.came.borrow().get(&round).is_some_and(|parts| parts.came.len() as u64 >= parts.count)
    }

    /// Takes the message to this rank in that round.
    pub fn take_told(&self, round: Round) -> Vec<u8> {
        let parts = self.exchanges.came.borrow_mut().remove(&round);
        parts.map_or_else(Vec::new, |parts| parts.came.into_values().flatten().collect())
    }

    /// Forgets the messages to this rank in exchanges before that one, which have failed here.
    pub fn forget_told(&self, before: u64) {
        self.exchanges.came.borrow_mut().retain(|[exchange, _], _| *exchange >= before);
    }

    /// Blocks until nothing is kept here for `to`, which makes progress.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub fn hand_over(&self, doing: &'static str, to: usize) -> Result<()> {
        self.engine.wait_together(doing, || !self.engine.outbox.keeps_for(to))
    }

    /// Messages that this rank has sent, those of its contexts included, and delivered, but for those of exchanges.
    pub fn traffic(&self) -> [u64; 2] {
        let ([sent, delivered], [told, heard]) = (self.engine.traffic(), self.exchanges.traffic.get());
        // A message that is kept for a lost rank is reported, and never sent.
        [sent.wrapping_sub(told), delivered.wrapping_sub(heard)]
    }
}

impl Exchanges {
    fn count(&self, [sent, delivered]: [u64; 2]) {
        let [s, d] = self.traffic.get();
        self.traffic.set([s + sent, d + delivered]);
    }
}
