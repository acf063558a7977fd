//! Puts and rings of a context that answer at once.
//!
//! The network may take the first part of a put and have no room for the rest. That rest is kept, copied, and posted by later progress of
//! the context. Until the whole rest is posted, no other operation of the context goes to that rank, so the order at the target is that of
//! the calls, and a flush waits for the rest.

use std::collections::VecDeque;

use super::super::operation::Operation;
use super::queued::Kept;
use super::{Driven, Stream};
use crate::error::{CalledAt, Error, Loss, Result};
use crate::transport::Sent;

/// A put: an offset in the slot of the target, and the bytes.
pub(crate) type Bytes<'a> = (usize, &'a [u8]);

impl Stream {
    /// Puts bytes to `rank`, in bounds, then rings a bell there, if the network takes the first part now. `bell`: its words, as for
    /// [`Stream::ring`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: nothing was put or rung, and the context has made progress. [`Error::PeerLost`]; as [`Stream::check_own`].
    pub(crate) fn try_put(
        &self,
        doing: &'static str,
        rank: usize,
        put: Option<Bytes<'_>>,
        bell: Option<[usize; 2]>,
    ) -> Result<()> {
        self.check_own(doing)?;
        if self.begin_put(doing, rank, put, bell)? {
            return Ok(());
        }
        // Room comes back by the context's own progress.
        self.poll(doing)?;
        Err(Error::WouldBlock { operation: doing, rank, place: CalledAt::default() })
    }

    /// Puts a word to `rank`, which is reached over the network, after all that this context has put there before, if the network takes it now.
    /// Wakes `rank` if it sleeps.
    ///
    /// # Errors
    /// As [`Stream::try_put`].
    pub(super) fn try_notify(&self, doing: &'static str, rank: usize, (offset, bytes): Bytes<'_>) -> Result<()> {
        self.check_own(doing)?;
        self.check_reachable(rank, doing)?;
        let mut put = Operation::Put { offset, bytes, done: 0, after: true, tell: true };
        let began = self.driven().at_once(|driven| -> Result<bool> {
            // One word goes whole or not at all.
            let is_posted = driven.is_clear(self, rank)? && driven.post(self, doing, rank, &mut put)? == Sent::Done;
            if is_posted {
                driven.posted(self, rank, &put);
            }
            Ok(is_posted)
        })?;
        if began {
            return Ok(());
        }
        self.poll(doing)?;
        Err(Error::WouldBlock { operation: doing, rank, place: CalledAt::default() })
    }

    /// As [`Stream::try_put`]. `false`: nothing was done.
    fn begin_put(
        &self,
        doing: &'static str,
        rank: usize,
        put: Option<Bytes<'_>>,
        bell: Option<[usize; 2]>,
    ) -> Result<bool> {
        if self.is_mapped(rank) {
            // Operations over the network to `rank` must be in effect before the ring.
            let is_settled = |driven: &mut Driven| driven.is_settled(self, doing, rank);
            if bell.is_some() && self.network.is_some() && !self.driven().at_once(is_settled)? {
                return Ok(false);
            }
            if let Some((offset, bytes)) = put {
                self.put(doing, rank, offset, bytes)?;
            }
            if let Some([mapped, _]) = bell {
                self.ring_mapped(rank, mapped);
            }
            return Ok(true);
        }
        self.check_reachable(rank, doing)?;
        self.driven().at_once(|driven| driven.begin_put(self, doing, rank, put, bell))
    }
}

impl Driven {
    /// The part of [`Stream::try_put`] that goes over the network.
    fn begin_put(
        &mut self,
        stream: &Stream,
        doing: &'static str,
        rank: usize,
        put: Option<Bytes<'_>>,
        bell: Option<[usize; 2]>,
    ) -> Result<bool> {
        if !self.is_clear(stream, rank)? {
            return Ok(false);
        }
        let put = put.map(|(offset, bytes)| Operation::Put { offset, bytes, done: 0, after: false, tell: false });
        let ring = bell.map(|[_, remote]| Operation::Ring { offset: self.networks.to(rank).ring_word(remote) });
        let (mut began, mut kept) = (false, VecDeque::new());
        for mut operation in put.into_iter().chain(ring) {
            if kept.is_empty() {
                let sent = self.post(stream, doing, rank, &mut operation)?;
                began |= sent == Sent::Done || matches!(operation, Operation::Put { done: 1.., .. });
                if sent == Sent::Done {
                    self.posted(stream, rank, &operation);
                    continue;
                }
                if !began {
                    return Ok(false);
                }
            }
            kept.push_back(Kept::Own(operation.keep()));
        }
        if !kept.is_empty() {
            self.kept.insert(rank, kept);
        }
        Ok(true)
    }

    /// Whether nothing is kept for `rank`, so that more may be posted there. Posts kept operations, as far as there is room.
    ///
    /// # Errors
    /// Operations kept for `rank` could not be posted and were dropped. Reported once, here or by [`Driven::next_fault`].
    #[inline]
    pub(super) fn is_clear(&mut self, stream: &Stream, rank: usize) -> Result<bool> {
        if self.kept.is_empty() && self.dropped.is_empty() { Ok(true) } else { self.clear(stream, rank) }
    }

    #[cold]
    fn clear(&mut self, stream: &Stream, rank: usize) -> Result<bool> {
        match self.dropped.iter().position(|(of, _)| *of == rank) {
            Some(at) => Err(self.dropped.remove(at).1),
            None => self.post_kept(stream, rank),
        }
    }

    /// An error that no call has returned yet.
    pub(super) fn next_fault(&mut self) -> Option<Error> {
        let fault = self.faults.pop_front();
        fault.or_else(|| {
            let (rank, error) = self.dropped.pop()?;
            self.unmet.insert(rank);
            Some(error)
        })
    }

    /// Posts kept operations, for all ranks. Returns for how many ranks nothing is left.
    #[cold]
    pub(super) fn post_all_kept(&mut self, stream: &Stream) -> usize {
        let ranks: Vec<usize> = self.kept.keys().copied().collect();
        let mut posted = 0;
        for rank in ranks {
            match self.post_kept(stream, rank) {
                Ok(all) => posted += usize::from(all),
                Err(error) => self.dropped.push((rank, error)),
            }
        }
        posted
    }

    #[cold]
    fn post_kept(&mut self, stream: &Stream, rank: usize) -> Result<bool> {
        const DOING: &str = "sending what had found no room";
        let Some(mut queue) = self.kept.remove(&rank) else { return Ok(true) };
        while let Some(operation) = queue.front_mut() {
            // Puts to a rank that left need not complete. No call of the program asks for that rank here, so it is not missed.
            let has_left = || stream.job.any_left() && stream.job.loss(rank) == Some(Loss::Left);
            if has_left() {
                self.unmet.insert(rank);
                self.give_up_kept(rank, queue);
                return Ok(true);
            }
            let posted = stream.check_reachable(rank, DOING);
            match posted.and_then(|()| self.post_one(stream, DOING, rank, operation)) {
                Ok(Sent::Done) => {
                    if let Some(kept) = queue.pop_front() {
                        self.posted_one(stream, rank, kept);
                    }
                }
                Ok(_) => {
                    self.kept.insert(rank, queue);
                    return Ok(false);
                }
                // The rank has left since the check above.
                Err(Error::PeerLost { .. }) if has_left() => {
                    self.unmet.insert(rank);
                    self.give_up_kept(rank, queue);
                    return Ok(true);
                }
                Err(error) => {
                    self.give_up_kept(rank, queue);
                    return Err(error);
                }
            }
        }
        // The program may have fenced while this was kept: its later puts are ordered behind this one. The next flush returns an error.
        let _ = self.networks.order();
        Ok(true)
    }

    /// Called when an operation is posted. Wakes `rank` after a ring, or a put that it may wait for, if the network does not wake it.
    pub(super) fn posted<B>(&mut self, stream: &Stream, rank: usize, operation: &Operation<B>) {
        if matches!(operation, Operation::Ring { .. } | Operation::Put { tell: true, .. }) {
            self.nudge_after_ring(stream, rank);
        }
    }

    pub(super) fn nudge_after_ring(&mut self, stream: &Stream, rank: usize) {
        if self.networks.is_silent_to(rank) && stream.job.is_here(rank) {
            self.nudges.push((rank, false));
            self.nudge(stream);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::super::super::operation::Operation;
    use super::super::Stream;
    use super::super::queued::Kept;
    use crate::error::{Error, Loss, Result};
    use crate::transport::sim::Config;
    use crate::{Settings, Simulated, Threads, Transport, World, transport};

    /// Nothing is in flight, so the network alone would say that all is in effect.
    #[test]
    fn what_cannot_be_posted_fails_the_flush_and_is_told_once() {
        let outcomes = Simulated::new(Config::new(2, 0)).run(|world| -> Result<()> {
            let context = world.engine().open_context()?;
            if world.rank() == 0 {
                for all in [false, true] {
                    context.cuts.add(1);
                    let bytes = vec![7; 8].into_boxed_slice();
                    let put = Operation::Put { offset: 0, bytes, done: 0, after: false, tell: false };
                    context.driven().kept.insert(1, VecDeque::from([Kept::Own(put)]));
                    if all {
                        // Progress meets the error, and the next call for that rank tells it.
                        context.driven().turn(&context);
                    }
                    let told = if all {
                        context.driven().is_settled(&context, "a test", 1).map(drop)
                    } else {
                        context.flush("a test", 1)
                    };
                    assert!(
                        matches!(told, Err(Error::PeerLost { rank: 1, cause: Loss::Disconnected, .. })),
                        "{told:?}"
                    );
                    assert!(context.driven().next_fault().is_none());
                }
            }
            Ok(())
        });
        outcomes.expect("starts").into_iter().for_each(|outcome| outcome.expect("no other error"));
    }

    #[test]
    fn a_rank_that_left_is_missed_by_a_context_that_lost_its_connection_to_it() {
        let settings = Settings { transport: Transport::ShmContract, heap_limit: Some(1 << 20), ..Settings::default() };
        let ranks = Threads::new(2).settings(settings).deadline(Duration::from_secs(60)).run(|world| -> Result<()> {
            let context = world.engine().open_context()?;
            if world.rank() == 1 {
                return Ok(());
            }
            while context.job.loss(1).is_none() {
                std::thread::yield_now();
            }
            let reset = transport::Error::ConnectionReset;
            drop(context.failure(&mut context.driven(), reset, 1, "a test"));
            assert_eq!(context.job.first_missed(), None, "the program is told nothing");
            let told = context.failed(&mut context.driven(), reset, 1, "a test");
            assert!(matches!(told, Error::PeerLost { rank: 1, cause: Loss::Left, .. }), "{told}");
            assert_eq!(context.job.first_missed(), Some(1));
            Ok(())
        });
        ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("runs"));
    }

    /// A segment of rank 1, which lives, is not there when rank 2 is gone.
    #[test]
    fn a_context_is_told_which_rank_is_gone_when_a_segment_is_not_there() {
        let each = |over| [None, Some(Loss::Signaled(9))].map(|death| (over, death));
        for (transport, death) in [Transport::Auto, Transport::ShmContract].into_iter().flat_map(each) {
            let settings = Settings { transport, heap_limit: Some(1 << 20), ..Settings::default() };
            let [asked, told] = [const { AtomicBool::new(false) }; 2];
            let serve = |world: &World, until: &AtomicBool| {
                while !until.load(Ordering::Acquire) {
                    let _ = world.poll();
                }
            };
            let ranks =
                Threads::new(3).settings(settings).deadline(Duration::from_secs(60)).run(|world| -> Result<()> {
                    let (context, job) = (world.engine().open_context()?, &world.engine().job);
                    let put = || context.put_segment(Stream::locate_segment, "a test", (1, 7), 0, &[1]);
                    match world.rank() {
                        0 => {
                            let none = put();
                            assert!(matches!(none, Err(Error::NoSegment { rank: 1, number: 7, .. })), "{none:?}");
                            asked.store(true, Ordering::Release);
                            while job.loss(2).is_none() {
                                std::thread::yield_now();
                            }
                            let (lost, why) = (put(), death.unwrap_or(Loss::Left));
                            assert!(
                                matches!(lost, Err(Error::PeerLost { rank: 2, cause, .. }) if cause == why),
                                "{lost:?}"
                            );
                            assert_eq!(job.first_missed(), death.is_none().then_some(2));
                            assert!(world.engine().failures.cuts().was_told());
                            told.store(true, Ordering::Release);
                        }
                        1 => serve(world, &told),
                        _ => {
                            serve(world, &asked);
                            death.into_iter().for_each(|cause| job.mark_lost(2, cause));
                        }
                    }
                    Ok(())
                });
            ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("runs"));
        }
    }
}
