//! Operations that may meet backpressure: attempted, kept in the outbox, and retried by later polls.

use std::time::{Duration, Instant};

use super::Engine;
use super::operation::Operation;
use crate::error::{Error, Loss, Result};
use crate::sleep;
use crate::transport::Sent;

impl Engine {
    /// Sends, or on backpressure keeps a copy that a later [`Engine::poll`] sends, in order. At most `message_memory`
    /// bytes are kept for all targets together; beyond that this blocks until there is room. A handler must not block: beyond the limit
    /// its puts, rings and messages sent by [`Outbox::bounded`](super::outbox::Outbox::bounded) are refused, and all others are kept.
    ///
    /// # Errors
    /// As [`Engine::send`]; inside a handler and [`Outbox::bounded`](super::outbox::Outbox::bounded) [`Error::WouldBlock`].
    #[inline]
    pub fn send_or_keep(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        if self.send_at_once(to, id, header, payload) || self.send(to, id, header, payload)? == Sent::Done {
            return Ok(());
        }
        self.keep(to, &Operation::Message { id, ordered: false, header, payload })
    }

    /// As [`Engine::send_or_keep`]; the message is delivered after everything this rank has sent there before.
    ///
    /// # Errors
    /// As [`Engine::send`].
    #[inline]
    pub fn send_in_order(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        // Lanes keep the order.
        if self.send_at_once(to, id, header, payload) {
            return Ok(());
        }
        self.do_or_keep(to, Operation::Message { id, ordered: true, header, payload })
    }

    /// Puts `len` bytes to `rank` with `put`, which does not wait for room: bytes that the network does not take now are kept. First checks
    /// that there is room to keep all of them, so that the put is done as a whole or not at all.
    ///
    /// # Errors
    /// Those of `put`; [`Error::WouldBlock`]: then nothing was put.
    pub(crate) fn put_at_once<R>(
        &self,
        operation: &'static str,
        rank: usize,
        len: usize,
        put: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.check_put_room(operation, rank, len)?;
        self.outbox.at_once(put)
    }

    /// Whether a message of `len` bytes or more to `to` may find room now. `false`: it would be refused.
    pub(crate) fn may_have_room(&self, to: usize, len: usize) -> bool {
        if self.outbox.keeps_for(to) {
            return false;
        }
        if self.routes.has_lane(to) {
            return self.interface.has_room(to);
        }
        // The message itself meets an error.
        self.networks.to(to).has_room(to, len).unwrap_or(true)
    }

    /// Checks that `len` bytes put to `rank` would be kept, if the network took none of them now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub(crate) fn check_put_room(&self, operation: &'static str, rank: usize, len: usize) -> Result<()> {
        if rank < self.size && !self.routes.is_mapped(rank) {
            self.outbox.check_room(operation, rank, len)?;
        }
        Ok(())
    }

    /// Answers `to` with `send`, and keeps an error of that for the next [`Engine::poll`]. A rank that has left waits for no
    /// answer: nothing is sent, since the attempt alone would tell the launcher that this rank misses it.
    pub fn answer(&self, to: usize, send: impl FnOnce() -> Result<()>) {
        if self.job.any_left() && self.job.loss(to) == Some(Loss::Left) {
            return;
        }
        match send() {
            Ok(()) | Err(Error::PeerLost { cause: Loss::Left, .. }) => {}
            Err(error) => self.faults.keep(error),
        }
    }

    pub(super) fn do_or_keep(&self, to: usize, mut operation: Operation<&[u8]>) -> Result<()> {
        self.check_own(operation.doing())?;
        if self.job.any_lost() || self.job.any_left() {
            self.check_alive(to, operation.doing())?;
        }
        // A put may overtake kept messages; see `Queue::push`.
        let kept = if let Operation::Put { .. } = operation {
            self.outbox.keeps_write_for(to)
        } else {
            self.outbox.keeps_for(to)
        };
        if !kept && self.attempt_now(to, &mut operation).map_err(|error| self.failures.told(error))? {
            return Ok(());
        }
        self.keep(to, &operation)
    }

    fn attempt_now(&self, to: usize, operation: &mut Operation<&[u8]>) -> Result<bool> {
        Ok(self.attempt(to, operation)? == Sent::Done || self.attempt_briefly(to, operation)? == Sent::Done)
    }

    #[cold]
    fn keep(&self, to: usize, operation: &Operation<&[u8]>) -> Result<()> {
        if !self.outbox.is_exempt(operation) {
            if self.interface.delivering() {
                self.outbox.check_handler(to, operation)?;
            } else if self.outbox.is_at_once() {
                self.outbox.check_room(operation.doing(), to, operation.len())?;
            } else if !self.outbox.has_room(operation.len()) {
                self.wait_together("waiting for room to send a message", || self.outbox.has_room(operation.len()))?;
            }
        }
        self.outbox.push(to, operation);
        Ok(())
    }

    /// Sends a message now or in a later poll, after everything sent there before. Never waits; dropped if the target is gone.
    pub fn send_unasked(&self, to: usize, id: u8, header: u64, payload: &[u8]) {
        self.do_unasked(to, Operation::Message { id, ordered: true, header, payload });
    }

    /// As [`Engine::send_unasked`], for a caller that reports errors itself.
    ///
    /// # Errors
    /// Those of a message that cannot be sent though its target is not gone, such as [`Error::OutOfMemory`].
    #[cold]
    pub(crate) fn try_send_unasked(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        self.try_unasked(to, Operation::Message { id, ordered: true, header, payload })
    }

    /// Does this now or in a later [`Engine::poll`], which also reports an error. Never blocks; if the target is gone, drops it.
    #[cold]
    pub(super) fn do_unasked(&self, to: usize, operation: Operation<&[u8]>) {
        if let Err(error) = self.try_unasked(to, operation) {
            self.faults.keep(error);
        }
    }

    fn try_unasked(&self, to: usize, mut operation: Operation<&[u8]>) -> Result<()> {
        if !self.outbox.keeps_for(to) {
            match self.attempt(to, &mut operation) {
                Ok(Sent::NoRoom) => {}
                Ok(_) | Err(Error::PeerLost { .. } | Error::Forked { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.outbox.push(to, &operation);
        Ok(())
    }

    /// Attempts it once. A put that is accepted in part knows how much of it was.
    pub(super) fn attempt<B: AsRef<[u8]>>(&self, to: usize, operation: &mut Operation<B>) -> Result<Sent> {
        match self.attempt_once(to, operation) {
            Err(Error::PeerLost { .. }) if self.is_undecided(to) => Ok(Sent::NoRoom),
            outcome => outcome,
        }
    }

    #[inline]
    fn attempt_once<B: AsRef<[u8]>>(&self, to: usize, operation: &mut Operation<B>) -> Result<Sent> {
        match *operation {
            Operation::Message { id, header, ref payload, .. } if self.routes.all_mapped() => {
                self.transmit_mapped(to, id, header, payload.as_ref())
            }
            Operation::Message { id, header, ref payload, .. } if self.routes.has_lane(to) => {
                let payload = payload.as_ref();
                self.check_fits(payload)?;
                let sent =
                    if self.is_clear(to)? { self.transmit_mapped(to, id, header, payload)? } else { Sent::NoRoom };
                self.wake_sleepers();
                Ok(sent)
            }
            Operation::MappedRing { offset } => self.try_ring_mapped(to, offset),
            _ => {
                let sent = self.attempt_remote(to, operation)?;
                let is_sent = sent == Sent::Done && matches!(operation, Operation::Message { .. });
                self.delivery.count_sent(usize::from(is_sent));
                Ok(sent)
            }
        }
    }

    /// Sends kept operations, for each target until it has no room. A target without room costs one failed attempt, however many operations
    /// are kept for the target. Returns how many operations were completed.
    #[cold]
    pub(super) fn flush_pending(&self) -> usize {
        // The parent sends it.
        if !self.is_own() {
            return 0;
        }
        let _polling = self.failures.begin_polling();
        let cut = |to| self.failures.is_cut(to).then_some(Loss::Disconnected);
        self.outbox.retry(
            |to| self.job.loss(to).or_else(|| cut(to)),
            |to, kept| self.attempt(to, kept),
            |error| self.faults.keep(error),
        )
    }

    /// For a rank that is about to end: sends the operations kept for `to`, and waits until the network has delivered everything that this
    /// rank has sent, for at most `limit`. Delivers no message, so it may be called inside a handler.
    #[cold]
    pub(crate) fn hand_out(&self, to: usize, limit: Duration) {
        /// Between two polls; as long as a message is on its way.
        const PAUSE: Duration = Duration::from_micros(20);
        /// The same in virtual time, which costs nothing: all of the limit passes, since a message in pieces needs credits of a
        /// receiver that has to run for that.
        const VIRTUAL_PAUSE: Duration = Duration::from_millis(1);
        let pace = self.networks.pace();
        let (begun, mut passed) = (Instant::now(), Duration::ZERO);
        while passed < limit {
            self.networks.progress();
            self.flush_pending();
            match pace {
                Some(pace) => {
                    pace.pause(VIRTUAL_PAUSE);
                    passed += VIRTUAL_PAUSE;
                }
                None if !self.outbox.keeps_for(to) && !matches!(self.try_quiet("answering"), Ok(false)) => return,
                None => {
                    sleep::nap(PAUSE);
                    passed = begun.elapsed();
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, OnceCell, RefCell};
    use std::rc::{Rc, Weak};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::engine::{Answer, Event, Group, Member, Step};
    use crate::transport::Memory;
    use crate::transport::sim::Config;
    use crate::{Settings, Threads, Transport, transport};

    /// Rank 0 asks rank 1 to send it more than is kept, and does not poll meanwhile.
    #[test]
    fn a_handler_that_sends_without_end_is_told_that_there_is_no_room() {
        const MEMORY: usize = 256 << 10;
        const LEN: usize = 1 << 10;
        for transport in [Transport::Auto, Transport::ShmContract] {
            let settings = Settings { message_memory: MEMORY, transport, ..Settings::default() };
            let (kept, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let job = Threads::new(2).settings(settings).deadline(Duration::from_secs(60));
            let ranks = job.build(|mut builder| {
                let came = Rc::new(Cell::new(0));
                let counts = Rc::clone(&came);
                let data = builder.handler("data", move |_, bytes| counts.set(counts.get() + bytes.len() / LEN));
                let outcome = Rc::new(RefCell::new(None));
                let told = Rc::clone(&outcome);
                let flood = builder.handler("flood", move |context, _| {
                    let mut count = 0;
                    let error = loop {
                        match context.send(0, data, &[1; LEN]) {
                            Ok(()) => count += 1,
                            Err(error) => break error,
                        }
                        assert!(count < 100_000, "a handler's messages are kept without limit");
                    };
                    told.replace(Some((count, error)));
                });
                let world = builder.start()?;
                for round in 1..=2 {
                    if world.rank() == 0 {
                        world.send(1, flood, &[])?;
                        // The answer to a call is kept, however much else is kept.
                        let call = world.call(1, 5u64, |_, x| (x, vec![7u8; 10_000]))?;
                        while rounds.load(Ordering::Acquire) < round {
                            std::thread::yield_now();
                        }
                        let (x, bytes) = call.wait()?;
                        assert_eq!((x, bytes), (5, vec![7; 10_000]));
                        let sent = kept.load(Ordering::Acquire);
                        world.wait_until(|| came.get() == sent)?;
                    } else {
                        world.wait_until(|| outcome.borrow().is_some())?;
                        let (count, error) = outcome.take().expect("just seen");
                        assert!(matches!(error, Error::WouldBlock { rank: 0, .. }), "{error:?}");
                        assert!(count > MEMORY / (LEN + 8) - 2, "{count} messages");
                        kept.fetch_add(count, Ordering::Release);
                        // The call is handled, too.
                        (0..1000).try_for_each(|_| world.poll().map(drop))?;
                        rounds.store(round, Ordering::Release);
                    }
                    world.barrier()?;
                }
                world.finish()
            });
            ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
        }
    }

    /// A handler puts, rings and sends by its world in each way. Rank 1 lets no virtual time pass meanwhile, so nothing leaves it.
    #[test]
    fn a_handlers_puts_rings_and_messages_are_refused_beyond_message_memory() {
        const MEMORY: usize = 8 << 10;
        const WAYS: [&str; 5] = ["put", "put and ring", "ring", "send", "invoke"];
        for memory in [Memory::Emulated, Memory::Posted] {
            let accepted = [const { AtomicUsize::new(0) }; WAYS.len()];
            let settings = Settings { message_memory: MEMORY, ..Settings::default() };
            let job = crate::Simulated::new(Config { memory, ..Config::new(2, 5) }).settings(settings);
            let ranks = job.build(|mut builder| {
                let came = Rc::new(Cell::new(0));
                let count = Rc::clone(&came);
                let data = builder.handler("data", move |_, _| count.set(count.get() + 1));
                let outcome = Rc::new(RefCell::new(None));
                let tools = Rc::new(OnceCell::<(crate::Symmetric<u64>, crate::Bell, Weak<crate::World>)>::new());
                let (told, used) = (Rc::clone(&outcome), Rc::clone(&tools));
                let flood = builder.handler("flood", move |_, way| {
                    let (numbers, bell, world) = used.get().expect("set before the barrier");
                    let world = world.upgrade().expect("it lives");
                    let mut count = 0;
                    let error = loop {
                        let done = match WAYS[usize::from(way[0])] {
                            "put" => numbers.put_slice(0, 0, &[7; 50]),
                            "put and ring" => numbers.put_slice_bell(0, 0, &[7; 50], bell),
                            "ring" => bell.ring(0),
                            "send" => world.send(0, data, &[1; 400]),
                            _ => world.invoke(0, [1u64; 30], |at, _| {
                                let sum = at.state::<Cell<usize>>().expect("set before the barrier");
                                sum.set(sum.get() + 1);
                            }),
                        };
                        match done {
                            Ok(()) => count += 1,
                            Err(error) => break error,
                        }
                        assert!(count < 20_000, "{} way: kept without limit", way[0]);
                    };
                    told.replace(Some((count, error)));
                });
                let world = Rc::new(builder.start()?);
                world.set_state(Cell::new(0usize));
                let set = tools.set((world.alloc(50)?, world.bell()?, Rc::downgrade(&world)));
                assert!(set.is_ok());
                let (numbers, bell, _) = tools.get().expect("just set");
                world.barrier()?;
                let mut rung = 0;
                for (way, name) in WAYS.into_iter().enumerate() {
                    if world.rank() == 0 {
                        world.send(1, flood, &[way as u8])?;
                    } else {
                        world.wait_until(|| outcome.borrow().is_some())?;
                        let (count, error) = outcome.take().expect("just seen");
                        assert!(matches!(error, Error::WouldBlock { rank: 0, .. }), "{name}: {error:?}");
                        assert!(count >= MEMORY / 500, "{name}: {count}");
                        accepted[way].store(count, Ordering::Release);
                    }
                    world.barrier()?;
                    if world.rank() == 0 {
                        let count = accepted[way].load(Ordering::Acquire);
                        let sum = world.state::<Cell<usize>>().expect("set above");
                        // All that was not refused comes.
                        match name {
                            "send" => world.wait_until(|| came.get() == count)?,
                            "invoke" => world.wait_until(|| sum.get() == count)?,
                            "put" => assert_eq!(numbers.load(49), 7),
                            _ => {
                                rung += count as u64;
                                assert_eq!(bell.wait(rung)?, rung, "{name}");
                            }
                        }
                    }
                    world.barrier()?;
                }
                Ok::<(), Error>(())
            });
            ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
        }
    }

    #[test]
    fn a_forked_child_does_not_send_what_its_parent_keeps() {
        let ranks = crate::Threads::new(1).deadline(Duration::from_secs(20));
        let counts = ranks.run(|world| {
            let word = world.alloc::<u64>(1).expect("fits");
            let engine = world.engine();
            engine.outbox.push(0, &Operation::MappedRing { offset: word.offset() });
            // SAFETY: the child allocates nothing, and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
            if child == 0 {
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(engine.flush_pending() as i32) };
            }
            let mut status = 0;
            // SAFETY: our own child, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            let by_child = word.load(0);
            (status, by_child, engine.flush_pending(), word.load(0))
        });
        assert_eq!(counts.expect("runs"), [(0, 0, 1, 1)]);
    }

    /// The network has lost its connection, and the roster does not know of it yet.
    #[test]
    fn a_poll_does_not_wait_for_what_the_roster_may_tell_of_a_peer() {
        let settings = Settings { transport: Transport::ShmContract, ..Settings::default() };
        let job = Threads::new(2).settings(settings).deadline(Duration::from_secs(60));
        let ranks = job.run(|world| -> Result<()> {
            world.barrier()?;
            if world.rank() == 0 {
                let engine = world.engine();
                engine.remote.is_broken.set(true);
                engine.failures.doubt_for_long(1);
                // A word that only contexts change.
                let offset = engine.layout.handled;
                engine.outbox.push(1, &Operation::Put { offset, bytes: &[0; 8], done: 0, after: false, tell: false });
                let done = Arc::new(Group::default());
                let answer = Arc::new(Answer::default());
                answer.finish(Err(transport::Error::ConnectionReset));
                engine.tasks.track(1, "put", Step::Flushing(answer), vec![Event::End(Member::new(&done))]);
                for _ in 0..3 {
                    engine.turn();
                    assert!(engine.failures.is_doubted(1), "the poll has waited until the roster had its time");
                    assert!(engine.outbox.keeps_for(1) && !engine.faults.any() && done.outcome().is_none());
                }
                engine.remote.is_broken.set(false);
                engine.failures.clear();
                engine.turn();
                assert!(!engine.outbox.keeps_for(1), "what was kept goes out");
                // The answer still says that the connection is lost: once the roster knows nothing, so do futures.
                while done.outcome().is_none() {
                    engine.turn();
                }
                engine.failures.clear();
            }
            world.barrier()
        });
        ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("runs"));
    }
}
