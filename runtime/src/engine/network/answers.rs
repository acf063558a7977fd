//! Posts operations that have an answer: gets, atomics and flushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::peer::Peer;
use super::{EndpointOf, Network, posted, remote};
use crate::engine::operation::Change;
use crate::engine::pieces::Registration;
use crate::engine::remote_access::{Answer, Fetched, Lent};
use crate::transport::{AtomicOp, Completion, Domain, Endpoint, Error as NotNow, Posted, RemoteKey, Result, Word};

/// Answers that are kept to be used again: as many as callers wait for at a time, mostly one. Chosen.
const SPARE_ANSWERS: usize = 4;

impl<D: Domain> Network<D> {
    /// Asks for `len` bytes at `offset`, all in `piece`.
    pub(super) fn read(
        &self,
        peer: &Peer<EndpointOf<D>>,
        piece: &Registration<RemoteKey>,
        offset: usize,
        len: usize,
    ) -> Result<Option<Arc<Answer>>> {
        self.asked(|answer, completion| {
            let into = Arc::clone(answer);
            let unpack = move |bytes: &[u8]| into.fill(bytes);
            peer.endpoint.get_bcopy(len, unpack, remote(piece, offset), &piece.key, Some(completion))
        })
    }

    /// As [`Network::read`], into memory that is lent. The answer was used before, if one is free.
    ///
    /// # Safety
    /// As [`RemoteAccess::get_lent`](crate::engine::remote_access::RemoteAccess::get_lent).
    pub(super) unsafe fn read_lent(
        &self,
        peer: &Peer<EndpointOf<D>>,
        piece: &Registration<RemoteKey>,
        offset: usize,
        to: *mut u8,
        len: usize,
    ) -> Result<Option<Lent>> {
        let (answer, completion) = self.spare_answer();
        // SAFETY: the caller's.
        unsafe { answer.lend(to, len) };
        let lent = Lent(Arc::clone(&answer));
        let post = |answer: &Arc<Answer>, completion: &Completion| {
            let sink = Arc::<Answer>::clone(answer);
            peer.endpoint.get_to(len, sink, remote(piece, offset), &piece.key, Some(completion))
        };
        Ok(self.post_asked(answer, &completion, post)?.map(|_| lent))
    }

    /// An answer, and the completion that fills it.
    pub(super) fn answer(&self) -> (Arc<Answer>, Completion) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        self.new_answer()
    }

    fn new_answer(&self) -> (Arc<Answer>, Completion) {
        let answer = Arc::new(Answer::default());
        let (shared, unanswered) = (Arc::clone(&answer), Arc::clone(&self.unanswered));
        let completion = Completion::new(1, move |outcome| {
            unanswered.fetch_sub(1, Ordering::Relaxed);
            shared.finish(outcome);
        });
        (answer, completion)
    }

    /// As [`Network::answer`], but reuses an earlier answer to which there is no other reference, if there is one.
    fn spare_answer(&self) -> (Arc<Answer>, Completion) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        let mut spare = self.spare.borrow_mut();
        // Two owners: this list, and the completion's callback.
        let is_free = |(answer, completion): &&(Arc<Answer>, Completion)| {
            Arc::strong_count(answer) == 2 && completion.is_unshared()
        };
        if let Some((answer, completion)) = spare.iter().find(is_free) {
            answer.reset();
            completion.reset(1);
            return (Arc::clone(answer), completion.clone());
        }
        let (answer, completion) = self.new_answer();
        if spare.len() < SPARE_ANSWERS {
            spare.push((Arc::clone(&answer), completion.clone()));
        }
        (answer, completion)
    }

    /// Posts what completes in an answer; `None` is back-pressure.
    pub(super) fn asked(
        &self,
        post: impl FnOnce(&Arc<Answer>, &Completion) -> Result<Posted>,
    ) -> Result<Option<Arc<Answer>>> {
        let (answer, completion) = self.answer();
        self.post_asked(answer, &completion, post)
    }

    fn post_asked(
        &self,
        answer: Arc<Answer>,
        completion: &Completion,
        post: impl FnOnce(&Arc<Answer>, &Completion) -> Result<Posted>,
    ) -> Result<Option<Arc<Answer>>> {
        let outcome = post(&answer, completion);
        if outcome != Ok(Posted::InProgress) {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
        match outcome {
            Ok(Posted::InProgress) => Ok(Some(answer)),
            Ok(Posted::Done) => {
                answer.finish(Ok(()));
                Ok(Some(answer))
            }
            Err(NotNow::NoResource) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Does an atomic, and waits briefly for its end.
    #[inline(always)]
    pub(super) fn now<T: Word>(
        &self,
        peer: &Peer<EndpointOf<D>>,
        piece: &Registration<RemoteKey>,
        offset: usize,
        wanted: Change,
    ) -> Result<Option<Fetched>> {
        let mut late: Option<Arc<Answer>> = None;
        let later = || {
            let (answer, completion) = self.answer();
            // The low half of the word, on machines as little-endian as ours.
            let word = answer.word.as_ptr().cast::<T>();
            late = Some(answer);
            (word, completion)
        };
        let (value, compare) = (T::narrow(wanted.value), T::narrow(wanted.compare));
        // SAFETY: the completion holds the answer, and the network holds that as long as it may write the result.
        let outcome =
            unsafe { peer.endpoint.atomic_now(wanted.op, value, compare, remote(piece, offset), &piece.key, later) };
        if let (Ok(None), Some(answer)) = (outcome, &late) {
            return Ok(Some(Fetched::Later(Arc::clone(answer))));
        }
        if late.is_some() {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
        posted(outcome).map(|found| found.flatten().map(|word| Fetched::Now(word.widen())))
    }
}

pub(super) fn post_atomic<T: Word, E: Endpoint>(
    peer: &Peer<E>,
    piece: &Registration<RemoteKey>,
    offset: usize,
    wanted: Change,
    answer: &Answer,
    completion: &Completion,
) -> Result<Posted> {
    // The low half of the word, on machines as little-endian as ours.
    let result = answer.word.as_ptr().cast::<T>();
    let value = T::narrow(wanted.value);
    let (endpoint, key, remote) = (&peer.endpoint, &piece.key, remote(piece, offset));
    // SAFETY: the completion holds the answer, and the network holds that as long as it may write the result.
    unsafe {
        match wanted.op {
            AtomicOp::CompareSwap => {
                let compare = T::narrow(wanted.compare);
                endpoint.atomic_compare_swap(compare, value, result, remote, key, Some(completion))
            }
            op => endpoint.atomic_fetch(op, value, result, remote, key, Some(completion)),
        }
    }
}
