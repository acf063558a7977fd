//! Large messages whose receiver names the place of the data.

use std::any::Any;
use std::rc::Rc;

use super::{Builder, PlainData, Symmetric, World};
use crate::error::{Placed, Result};
use crate::message::{self, Announced, Call, Context, Landed, Landing, LandingId};

impl Builder {
    /// Registers a handler of large messages ([`World::send_large`]). It takes the next number of the same table as
    /// [`Builder::handler`], so every rank registers the same handlers in the same order.
    ///
    /// `place` runs when the header of a message has come, and names where its data lands: [`Landing::vec`],
    /// [`Symmetric::landing`], [`Segment::landing`](super::Segment::landing), or [`Landing::discard`]. The data is then fetched while this rank polls or waits. `landed` runs when
    /// it is there. Both run inside polls and waits of this rank, one handler at a time; they can send, but not wait.
    /// Nothing is promised about the order of two messages.
    ///
    /// # Examples
    /// ```
    /// use std::cell::RefCell;
    /// use std::rc::Rc;
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::{Landing, Threads};
    ///
    /// let sums = Threads::new(2).build(|mut builder| {
    ///     let data: Rc<RefCell<Vec<u8>>> = Rc::default();
    ///     let (spare, filled) = (Rc::clone(&data), Rc::clone(&data));
    ///     let deposit = builder.landing_handler(
    ///         "deposit",
    ///         // The vector's memory is used again for each message.
    ///         move |_, announced| {
    ///             assert_eq!((announced.header(), announced.len()), (&b"numbers"[..], 100_000));
    ///             Landing::vec(spare.take())
    ///         },
    ///         move |_, landed| *filled.borrow_mut() = landed.into_vec(),
    ///     );
    ///     let world = builder.start()?;
    ///     let next = (world.rank() + 1) % world.size();
    ///     let sent = world.send_large(next, deposit, b"numbers", vec![3; 100_000])?;
    ///     world.wait_until(|| !data.borrow().is_empty())?;
    ///     sent.wait()?;
    ///     let sum = data.borrow().iter().map(|byte| u32::from(*byte)).sum();
    ///     world.finish()?;
    ///     Ok::<u32, bellwether::Error>(sum)
    /// })?;
    /// assert!(sums.into_iter().all(|sum| sum.is_ok_and(|sum| sum == 300_000)));
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    pub fn landing_handler<P, L>(&mut self, name: &str, place: P, landed: L) -> LandingId
    where
        P: Fn(&Context<'_>, &Announced<'_>) -> Landing + 'static,
        L: Fn(&Context<'_>, Landed) + 'static,
    {
        // Equal on two ranks only for the same two functions.
        fn code<P, L>() {
            std::hint::black_box(std::any::type_name::<(P, L)>());
        }
        LandingId(self.add_handler(name, code::<P, L> as fn() as usize, message::landing(name, place, landed)))
    }
}

impl World {
    /// Sends `header` to a handler of large messages at rank `to`, whose first function names the place where `data` lands.
    /// Returns when the header is sent; the call that it returns ends when the data has landed and the second
    /// function has run. Takes a vector, or a shared one to send the same data to several ranks.
    ///
    /// The data is not copied here: the receiver fetches it. From a rank of the same node that is one copy, by the kernel; over a
    /// network the receiver gets it by RDMA, where the network has that, with no copy. Where the kernel or the network
    /// permits neither, and up to 8 KiB, the data goes in messages. The receiver must poll or wait; this rank need not, except
    /// where the data goes in messages. Dropping the call drops neither the message nor the data before it has landed.
    ///
    /// At most 16 messages to one rank are in flight. The next call waits until one of them has landed.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`](crate::Error::RankOutOfRange), [`Error::PeerLost`](crate::Error::PeerLost),
    /// [`Error::InsideHandler`](crate::Error::InsideHandler); [`Error::OutOfMemory`](crate::Error::OutOfMemory) for a
    /// header that does not fit in a message. From the call: [`Error::PeerLost`](crate::Error::PeerLost),
    /// [`Error::HandlerPanicked`](crate::Error::HandlerPanicked), and [`Error::BadMessage`](crate::Error::BadMessage) if the place
    /// is too small, which is [`Error::InvalidArgument`](crate::Error::InvalidArgument) from the next poll of the receiver.
    ///
    /// # Examples
    /// As of [`Builder::landing_handler`].
    #[track_caller]
    pub fn send_large(
        &self,
        to: usize,
        handler: LandingId,
        header: &[u8],
        data: impl Into<Rc<Vec<u8>>>,
    ) -> Result<Call<()>> {
        self.messages.send_large(to, handler, header, data.into()).placed_here()
    }
}

impl<T: PlainData> Symmetric<T> {
    /// This rank's elements from `start` on as the place where a large message lands, as if its sender put them there. The array
    /// stays allocated until then. Data that is longer than the rest of the array is refused.
    pub fn landing(self: &Rc<Self>, start: usize) -> Landing {
        let own = self.as_ptr_range();
        let len = self.len().saturating_sub(start);
        let start = own.start.wrapping_add(start.min(self.len())).cast();
        let keep: Rc<dyn Any> = Rc::<Symmetric<T>>::clone(self);
        // SAFETY:
        // - the elements are this rank's own, and stay backed and allocated while the array lives;
        // - they are shared with peers' puts: safe code has no reference to them.
        unsafe { Landing::memory(start, len * size_of::<T>(), keep) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, OnceCell, RefCell};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::transport::Memory;
    use crate::transport::sim::Config;
    use crate::{Error, Segment, Settings, Simulated, Threads, Transport};

    const PART: usize = 5000;
    /// Around the length up to which data goes with its header.
    const LENGTHS: [usize; 6] = [0, 1, 8 << 10, (8 << 10) + 1, 70_000, 300_001];

    fn pattern(seed: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
    }

    /// The message that came: sender, header, data.
    type Came = Rc<RefCell<Vec<(usize, Vec<u8>, Vec<u8>)>>>;

    /// Every rank sends to every rank, into vectors, arrays and nowhere. Every second call is dropped at once.
    fn all_to_all(mut builder: Builder) -> Result<()> {
        let (came, array, arrays) =
            (Came::default(), Rc::<OnceCell<Rc<Symmetric<u64>>>>::default(), Rc::new(Cell::new(0)));
        let keeps = Rc::clone(&came);
        let vector = builder.landing_handler(
            "vector",
            |_, announced| {
                assert_eq!(announced.header(), announced.len().to_ne_bytes());
                Landing::vec(vec![1; announced.len() / 3])
            },
            move |context, landed| {
                let header = landed.header().to_vec();
                keeps.borrow_mut().push((context.from(), header, landed.into_vec()));
            },
        );
        let (place, counts) = (Rc::clone(&array), Rc::clone(&arrays));
        let into_array = builder.landing_handler(
            "array",
            move |_, announced| place.get().expect("made first").landing(announced.from() * PART),
            move |_, landed| {
                assert_eq!((landed.len(), landed.into_vec().len()), (8 * PART, 0));
                counts.set(counts.get() + 1);
            },
        );
        let (segment, segments) = (Rc::<RefCell<Option<Rc<Segment>>>>::default(), Rc::new(Cell::new(0)));
        let (place, counts) = (Rc::clone(&segment), Rc::clone(&segments));
        let into_segment = builder.landing_handler(
            "segment",
            move |_, announced| {
                let segment = place.borrow();
                segment.as_ref().expect("made first").landing(1 + announced.from() * 8 * PART)
            },
            move |_, landed| {
                assert_eq!((landed.len(), landed.into_vec().len()), (8 * PART, 0));
                counts.set(counts.get() + 1);
            },
        );
        let nowhere = builder.landing_handler("nowhere", |_, _| Landing::discard(), |_, _| panic!("discarded"));
        let world = builder.start()?;
        let (me, n) = (world.rank(), world.size());
        let numbers = Rc::new(world.alloc::<u64>(PART * n)?);
        assert!(array.set(Rc::clone(&numbers)).is_ok());
        let own = Rc::new(world.segment(1 + 8 * PART * n)?);
        segment.replace(Some(Rc::clone(&own)));
        world.barrier()?;
        let mut calls = Vec::new();
        let mut sent = |call: Call<()>| {
            if (calls.len() + me).is_multiple_of(2) {
                calls.push(None);
            } else {
                calls.push(Some(call));
            }
        };
        let shared: Rc<Vec<u8>> =
            Rc::new((0..PART as u64).flat_map(|i| (i * 1000 + me as u64).to_ne_bytes()).collect());
        for to in 0..n {
            for len in LENGTHS {
                sent(world.send_large(to, vector, &len.to_ne_bytes(), pattern(me + len, len))?);
            }
            sent(world.send_large(to, into_array, &[], Rc::clone(&shared))?);
            sent(world.send_large(to, into_segment, &[], Rc::clone(&shared))?);
            sent(world.send_large(to, nowhere, b"header", vec![1; 20_000])?);
        }
        for call in calls.into_iter().flatten() {
            call.wait()?;
        }
        world.wait_until(|| came.borrow().len() == LENGTHS.len() * n && arrays.get() == n && segments.get() == n)?;
        for (from, header, data) in came.borrow().iter() {
            let len = usize::from_ne_bytes(header.as_slice().try_into().expect("a length"));
            assert!(*data == pattern(from + len, len), "{len} bytes from {from}: {} came", data.len());
        }
        let mut elements = vec![0; PART * n];
        numbers.read(0, &mut elements);
        let expected = |i: usize| (i % PART * 1000 + i / PART) as u64;
        assert!((0..PART * n).all(|i| elements[i] == expected(i)));
        let mut bytes = vec![0; 8 * PART * n];
        own.read(1, &mut bytes)?;
        assert!(bytes == elements.iter().flat_map(|element| element.to_ne_bytes()).collect::<Vec<_>>());
        segment.take();
        Rc::into_inner(own).expect("all has landed").close()?;
        world.finish()
    }

    fn on_threads(ranks: usize, settings: Settings) {
        let job = Threads::new(ranks).deadline(Duration::from_secs(60)).settings(settings);
        job.build(all_to_all).expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }

    fn with(transport: Transport) -> Settings {
        Settings { transport, ..Settings::default() }
    }

    #[test]
    fn data_lands_where_the_receiver_says() {
        for ranks in [1, 2, 3, 5] {
            on_threads(ranks, with(Transport::Auto));
            on_threads(ranks, with(Transport::ShmContract));
        }
    }

    #[test]
    fn data_lands_where_the_kernel_permits_no_copy_and_messages_are_short() {
        on_threads(
            3,
            Settings {
                cross_memory_attach: false,
                message_memory: 32 << 10,
                lane_depth: Some(1),
                ..with(Transport::Auto)
            },
        );
    }

    #[test]
    fn data_lands_over_simulated_networks() {
        let plain = Config::new(3, 11);
        let networks = [
            plain.clone(),
            plain.clone().wild(),
            Config { memory: Memory::Direct, ..plain.clone().wild() },
            Config { memory: Memory::Posted, ..plain.clone().wild() },
            Config { served_asleep: false, ..plain.clone().wild() },
            plain.clone().wild().shared_nodes(&[2]),
        ];
        for (number, config) in networks.into_iter().enumerate() {
            let ranks = Simulated::new(config).build(all_to_all).expect("starts").into_iter();
            ranks.collect::<Result<()>>().unwrap_or_else(|error| panic!("network {number}: {error}"));
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: ci/softroce"]
    fn data_lands_by_rdma() {
        on_threads(2, with(Transport::Verbs));
        on_threads(3, with(Transport::Verbs));
        let job = Threads::new(2).deadline(Duration::from_secs(60)).settings(with(Transport::Verbs));
        job.build(sender_is_idle).expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }

    /// Rank 0 sends, and then makes no progress until rank 1 says that the data has landed.
    fn sender_is_idle(mut builder: Builder) -> Result<()> {
        let came = Rc::new(Cell::new(false));
        let comes = Rc::clone(&came);
        let handler = builder.landing_handler(
            "one",
            |_, _| Landing::vec(Vec::new()),
            move |_, landed| comes.set(landed.into_vec() == pattern(1, 1 << 20)),
        );
        let world = builder.start()?;
        let told = world.alloc::<u64>(1)?;
        world.barrier()?;
        if world.rank() == 0 {
            let call = world.send_large(1, handler, b"", pattern(1, 1 << 20))?;
            while told.load(0) == 0 {
                world.sleep(Duration::from_micros(100));
            }
            call.wait()?;
        } else {
            world.wait_until(|| came.get())?;
            told.put(0, 0, 1)?;
            world.fence();
        }
        world.finish()
    }

    #[test]
    fn a_receiver_needs_no_progress_of_the_sender() {
        for transport in [Transport::Auto, Transport::ShmContract] {
            let job = Threads::new(2).deadline(Duration::from_secs(60)).settings(with(transport));
            job.build(sender_is_idle).expect("starts").into_iter().collect::<Result<()>>().expect("runs");
        }
        let posted = Config { memory: Memory::Posted, ..Config::new(2, 3) };
        let job = Simulated::new(posted).build(sender_is_idle);
        job.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }

    /// In virtual time: the 17th message waits until the receiver, which sleeps, has fetched others.
    #[test]
    fn a_slow_receiver_holds_up_who_sends_large_messages() {
        const SLEEP: Duration = Duration::from_millis(50);
        let program = |mut builder: Builder| -> Result<()> {
            let came = Rc::new(Cell::new(0));
            let comes = Rc::clone(&came);
            let place = |_: &Context<'_>, _: &Announced<'_>| Landing::vec(Vec::new());
            let handler = builder.landing_handler("slow", place, move |_, _| comes.set(comes.get() + 1));
            let world = builder.start()?;
            world.barrier()?;
            let start = world.elapsed();
            if world.rank() == 0 {
                for number in 0..17 {
                    drop(world.send_large(1, handler, &[number], vec![number; 10_000])?);
                    let took = world.elapsed() - start;
                    assert_eq!(took < SLEEP / 2, number < 16, "message {number} was sent after {took:?}");
                }
            } else {
                world.sleep(SLEEP);
                world.wait_until(|| came.get() == 17)?;
            }
            world.finish()
        };
        let ranks = Simulated::new(Config { memory: Memory::Posted, ..Config::new(2, 3) }).build(program);
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }

    #[test]
    fn a_place_that_is_too_small_is_an_error_at_both_ends() {
        let job = Threads::new(2).deadline(Duration::from_secs(60));
        let ranks = job.build(|mut builder| -> Result<()> {
            let array = Rc::<OnceCell<Rc<Symmetric<u8>>>>::default();
            let place = Rc::clone(&array);
            let small = move |_: &Context<'_>, _: &Announced<'_>| place.get().expect("made first").landing(1);
            let handler = builder.landing_handler("small", small, |_, _| panic!("it has no place"));
            let world = builder.start()?;
            assert!(array.set(Rc::new(world.alloc::<u8>(20_000)?)).is_ok());
            // The message may come before rank 1 has left the barrier, which then tells its error.
            let met = world.barrier();
            if world.rank() == 0 {
                met?;
                let error =
                    world.send_large(1, handler, b"", vec![1; 20_000])?.wait().expect_err("19,999 bytes are there");
                assert!(matches!(&error, Error::BadMessage { from: 1, why } if why.contains("19999")), "{error}");
                let out = world.send_large(2, handler, b"", vec![]).expect_err("no such rank");
                assert!(matches!(out, Error::RankOutOfRange { .. }), "{out}");
            } else {
                let error = met.and_then(|()| world.wait_until(|| false)).expect_err("the place is too small");
                assert!(matches!(&error, Error::InvalidArgument { why, .. } if why.contains("19999")), "{error}");
                assert_eq!(array.get().map(|array| array.load(5)), Some(0), "nothing has landed");
            }
            world.finish()
        });
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }

    #[test]
    fn a_panic_of_the_first_function_is_the_senders_error() {
        // A panic while rank 1 is still in the barrier would be the barrier's.
        let met = AtomicBool::new(false);
        let job = Threads::new(2).deadline(Duration::from_secs(60));
        let ranks = job.build(|mut builder| -> Result<()> {
            let place = |_: &Context<'_>, announced: &Announced<'_>| {
                assert!(announced.len() != 20_000, "no place for this");
                Landing::discard()
            };
            let handler = builder.landing_handler("names no place", place, |_, _| {});
            let world = builder.start()?;
            world.barrier()?;
            if world.rank() == 0 {
                while !met.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let call = world.send_large(1, handler, b"", vec![1; 20_000])?;
                let error = call.wait().expect_err("it panics");
                assert!(matches!(&error, Error::HandlerPanicked { rank: 1, .. }), "{error}");
                world.send_large(1, handler, b"", vec![1; 30_000])?.wait()?;
            } else {
                met.store(true, Ordering::Relaxed);
                let waits = || world.wait_until(|| false);
                assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(waits)).is_err());
            }
            world.finish()
        });
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }

    #[test]
    fn a_panic_of_the_second_function_is_the_senders_error_and_others_land() {
        // A panic while rank 1 is still in the barrier would be the barrier's.
        let met = AtomicBool::new(false);
        let job = Threads::new(2).deadline(Duration::from_secs(60));
        let ranks = job.build(|mut builder| -> Result<()> {
            let came = Rc::new(RefCell::new(Vec::new()));
            let comes = Rc::clone(&came);
            let place = |_: &Context<'_>, _: &Announced<'_>| Landing::vec(Vec::new());
            let handler = builder.landing_handler("panics once", place, move |_, landed| {
                comes.borrow_mut().push(landed.len());
                assert!(landed.len() != 20_001, "the second one");
            });
            let world = builder.start()?;
            world.barrier()?;
            if world.rank() == 0 {
                while !met.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let calls = [20_000, 20_001, 20_002].map(|len| world.send_large(1, handler, b"", vec![1; len]));
                for (number, call) in calls.into_iter().enumerate() {
                    match call?.wait() {
                        Ok(()) if number != 1 => {}
                        Err(Error::HandlerPanicked { rank: 1, handler, why, .. }) if number == 1 => {
                            assert!(handler == "panics once" && why.contains("the second one"), "{handler}: {why}");
                        }
                        other => panic!("call {number}: {other:?}"),
                    }
                }
            } else {
                met.store(true, Ordering::Relaxed);
                let wait = || world.wait_until(|| came.borrow().len() == 3);
                let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
                assert!(panicked.is_err(), "the panic goes on");
                wait()?;
                assert_eq!(*came.borrow(), [20_000, 20_001, 20_002]);
            }
            world.finish()
        });
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }
}
