//! Messages that tell their sender when their handler has run.
//!
//! They carry the number of a receipt, which comes back like the answer of a call. A number with [`RECEIPT`] set is none of a call's.

use serde::{Serialize, de::DeserializeOwned};

use super::calls::Bytes;
use super::closure::{CLOSED, DONE, PANICKED, REFUSED};
use super::encoding::{Encoding, Postcard};
use super::panic::{Caller, Panicked};
use super::{Context, HandlerId, Messages, id, words};
use crate::engine::{Event, RECEIPT};
use crate::error::{Error, Result};
use crate::transport;

impl Messages {
    pub(super) fn install_receipts(&self) {
        self.set_handler(id::HANDLER_AND_RECEIPT, |messages, message| {
            let Some(([word, number], payload)) = words(message.data()) else {
                return messages.fault(message.from, "a message without the number of its receipt");
            };
            let answer = messages.handle_for_receipt(message.from, word, number, payload);
            let send = |answer: &[u8]| messages.engine.send_or_keep(message.from, id::ANSWER, number, answer);
            messages.engine.answer(message.from, || send(&answer));
        });
    }

    /// Runs the handler of a message, and gives the answer to its sender.
    fn handle_for_receipt(&self, from: usize, word: u64, receipt: u64, payload: &[u8]) -> Bytes {
        let refused = |error: Error| {
            let mut answer = Bytes::from_slice(&[REFUSED]);
            answer.extend_from_slice(error.to_string().as_bytes());
            self.engine.faults.keep(error);
            answer
        };
        let number = match self.check_digest(from, word) {
            Ok(number) => number,
            Err(error) => return refused(error),
        };
        match self.run_numbered(from, Caller::Call(receipt), number, payload) {
            Ok(()) => Bytes::from_slice(&[DONE]),
            Err(error) => refused(error),
        }
    }

    /// Takes the answer to a receipt of this rank.
    #[cold]
    pub(super) fn take_receipt(&self, from: usize, number: u64, answer: &[u8]) {
        let outcome = match answer.split_first() {
            Some((&DONE, result)) => {
                if let Ok(word) = result.try_into() {
                    self.engine.contexts.receipts().found(number, from, u64::from_ne_bytes(word));
                }
                Ok(())
            }
            Some((&CLOSED, _)) => Err(transport::Error::Rejected.at("an atomic on a segment", from)),
            Some((&PANICKED, panicked)) => Err(self.engine.failures.told(Panicked::decode(from, panicked))),
            other => {
                let why = other.map_or_else(String::new, |(_, why)| String::from_utf8_lossy(why).into_owned());
                Err(Error::BadMessage { from, why })
            }
        };
        match self.engine.contexts.receipts().close(number, from) {
            Some(events) => self.engine.happened(events, outcome),
            None => self.fault(from, "a receipt that nobody waits for"),
        }
    }

    /// As [`Messages::send_to_handler`], with events for when the handler has run.
    ///
    /// # Errors
    /// As [`Messages::send_to_handler`]; [`Error::InvalidArgument`] of an open table. Then no event happens, and they are left with the
    /// caller, unless the world has ended.
    pub fn send_to_handler_with(
        &self,
        to: usize,
        handler: HandlerId,
        payload: &[u8],
        handled: &mut Vec<Event>,
    ) -> Result<()> {
        if handled.is_empty() {
            return self.send_to_handler(to, handler, payload);
        }
        self.engine.check_rank(to, "sending a message")?;
        let word = self.header_with_digest(to, handler)?;
        self.send_with(to, id::HANDLER_AND_RECEIPT, word, handled, |bytes| {
            bytes.extend_from_slice(payload);
            Ok(())
        })
    }

    /// As [`Messages::invoke`], with events for when the closure has run.
    ///
    /// # Errors
    /// As [`Messages::invoke`]. Then no event happens, and they are left with the caller, unless the world has ended.
    pub fn invoke_with<A, F>(&self, to: usize, arguments: &A, function: F, handled: &mut Vec<Event>) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        if handled.is_empty() {
            return self.invoke(to, arguments, function);
        }
        self.engine.check_rank(to, "remote call")?;
        let place = super::closure::place_of_postcard::<A, F>(function)?;
        self.send_with(to, id::CALL, place, handled, |bytes| <Postcard as Encoding<A>>::encode(arguments, bytes))
    }

    fn send_with(
        &self,
        to: usize,
        id: u8,
        header: u64,
        handled: &mut Vec<Event>,
        encode: impl FnOnce(&mut Bytes) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = Bytes::from_slice(&[0; 8]);
        encode(&mut bytes)?;
        let number = self.engine.open_receipt(to, std::mem::take(handled))?;
        debug_assert!(number & RECEIPT != 0, "no number of a call");
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        // A message that was not sent has no receipt.
        self.send(to, id, header, &bytes)
            .inspect_err(|_| *handled = self.engine.contexts.receipts().close(number, to).unwrap_or_default())
    }
}
