//! Events of large messages, whose receiver names the place of the data.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::Config;
use bellwether_runtime::{
    Announced, Builder, Completion, Context, Counter, Error, Event, Landing, LandingId, Result, Simulated, Transport,
    World,
};

use super::{LetsGo, threads};

/// Data of up to so many bytes travels with its header, where messages are as long as that and an eighth more.
const EAGER: usize = 8 << 10;

/// How many messages from each rank have landed, as their receivers count them.
type Landed = [AtomicU64; 4];

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::SeqCst)
}

/// A handler whose data lands in a vector, and which counts what has landed.
fn counting(builder: &mut Builder, landed: &Arc<Landed>) -> LandingId {
    let landed = Arc::clone(landed);
    builder.landing_handler(
        "counting",
        |_, announced| Landing::vec(Vec::with_capacity(announced.len())),
        move |context, data| {
            let from = context.from();
            let round = data.header()[0];
            assert!(data.into_vec().iter().all(|byte| *byte == round));
            landed[from].fetch_add(1, Ordering::SeqCst);
        },
    )
}

/// Each rank sends to the next, in the same vector again and again, and checks that no event comes too early.
fn in_turn(mut builder: Builder, landed: &Arc<Landed>) -> Result<()> {
    let handler = counting(&mut builder, landed);
    let world = builder.start()?;
    let (me, size) = (world.rank(), world.size());
    let next = (me + 1) % size;
    let [source, effect, handled] = [(); 3].map(|()| Counter::new());
    let (done, bell) = (Completion::new(), world.bell()?);
    let lengths = [0, 1, EAGER, EAGER + 1, 70_000, 300_001];
    for (number, len) in lengths.into_iter().enumerate() {
        let sent = number as u64 + 1;
        let mut data = Rc::new(vec![sent as u8; len]);
        let operation =
            world.operation().source(&source).effect(&effect).effect(&done).handled(&handled).handled(&bell);
        operation.send_large(next, handler, &[sent as u8], Rc::clone(&data))?;
        // Read in this order: what has landed is counted first.
        let told = [effect.value(), handled.value()];
        assert!(told.iter().all(|told| *told <= load(&landed[me])), "{len} bytes: {told:?}, and nothing has landed");
        if len <= EAGER && 1 + len + EAGER / 8 <= world.largest_message() {
            assert_eq!(source.value(), sent, "{len} bytes were copied");
        } else {
            world.wait_counter(&source, sent)?;
        }
        let own = Rc::get_mut(&mut data).expect("after the source event nobody else has the data");
        own.fill(0xee);
        world.wait_counter(&effect, sent)?;
        assert!(load(&landed[me]) >= sent, "{len} bytes: in effect, and the handler has not run");
        world.wait_counter(&handled, sent)?;
    }
    let all = lengths.len() as u64;
    assert_eq!([bell.wait(all)?, source.value(), load(&landed[me])], [all; 3]);
    world.wait_completion(&done)?;
    world.barrier()?;
    assert_eq!([source.value(), effect.value(), handled.value()], [all; 3], "each once");
    drop(bell);
    world.finish()
}

#[test]
fn a_large_message_tells_when_its_data_has_landed() {
    for (ranks, transport) in
        [(1, Transport::Auto), (3, Transport::Auto), (3, Transport::ShmContract), (2, Transport::Tcp)]
    {
        let landed = Arc::default();
        let results = threads(ranks, transport).build(|builder| in_turn(builder, &landed)).expect("ranks start");
        results.into_iter().for_each(|result| result.expect("runs"));
    }
    let wild = Config::new(3, 5).wild();
    let networks = [
        wild.clone(),
        Config { memory: Memory::Posted, ..wild.clone() },
        Config { served_asleep: false, ..wild.clone() },
        wild.shared_nodes(&[2]),
    ];
    for (number, config) in networks.into_iter().enumerate() {
        let landed = Arc::default();
        let results = Simulated::new(config).build(|builder| in_turn(builder, &landed)).expect("the job runs");
        results.into_iter().for_each(|result| result.unwrap_or_else(|error| panic!("network {number}: {error}")));
    }
}

/// Rank 0 sends to rank 1, which stays away from its handlers until it is let go. `program` is what rank 0 does.
fn to_one_who_is_away(transport: Transport, program: impl Fn(&World, LandingId, &AtomicBool) -> Result<()> + Sync) {
    let (landed, away, back) = (Arc::default(), AtomicBool::new(false), AtomicBool::new(false));
    let results = threads(2, transport).build(|mut builder| {
        let handler = counting(&mut builder, &landed);
        let world = builder.start()?;
        world.barrier()?;
        if world.rank() == 1 {
            away.store(true, Ordering::SeqCst);
            while !back.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        } else {
            while !away.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let lets_go = LetsGo(&back);
            program(&world, handler, &back)?;
            drop(lets_go);
        }
        world.finish()
    });
    results.expect("ranks start").into_iter().for_each(|result: Result<()>| result.expect("runs"));
}

#[test]
fn a_large_message_without_room_keeps_its_events() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        to_one_who_is_away(transport, |world, handler, back| {
            let [source, effect, handled] = [(); 3].map(|()| Counter::new());
            let (done, data) = (Completion::new(), Rc::new(vec![7; 20_000]));
            let mut sent = 0;
            let mut refused = None;
            while refused.is_none() {
                let mut operation = world.operation().source(&source).effect(&effect).effect(&done).handled(&handled);
                match operation.try_send_large(1, handler, &[7], &data) {
                    Ok(()) => sent += 1,
                    Err(Error::WouldBlock { .. }) => refused = Some(operation),
                    Err(error) => return Err(error),
                }
            }
            assert_eq!(Rc::strong_count(&data), sent + 1, "what was refused holds no data");
            let told = || [&source, &effect, &handled].map(Counter::value);
            assert_eq!((told(), done.outcome().is_none()), ([0; 3], true), "rank 1 has handled none");
            back.store(true, Ordering::SeqCst);
            let mut again = refused.expect("the loop ends with it");
            while let Err(error) = again.try_send_large(1, handler, &[7], &data) {
                let Error::WouldBlock { .. } = error else { return Err(error) };
                world.poll()?;
            }
            world.wait_completion(&done)?;
            assert_eq!(told(), [sent as u64 + 1; 3], "those of the refused one are its own");
            assert_eq!(Rc::strong_count(&data), 1);
            Ok(())
        });
    }
}

#[test]
fn a_large_message_that_does_not_land_tells_functions_and_futures() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let results = threads(2, transport).build(|mut builder| {
            let small: Rc<RefCell<Option<Landing>>> = Rc::default();
            let place = Rc::clone(&small);
            let handler = builder.landing_handler(
                "small",
                move |_, _| place.take().expect("one message comes"),
                |_, _| panic!("the data has no room"),
            );
            let world = builder.start()?;
            let array = Rc::new(world.alloc::<u8>(100)?);
            small.replace(Some(array.landing(0)));
            // The message may come before rank 1 has left the barrier, which then tells its error.
            let met = world.barrier();
            if world.rank() == 0 {
                met?;
                let (done, counted, heard) = (Completion::new(), Counter::new(), Arc::new(AtomicBool::new(false)));
                let hears = Arc::clone(&heard);
                let hear = Event::call(move |outcome| hears.store(outcome.is_err(), Ordering::SeqCst));
                let operation = world.operation().source(hear).effect(&done).handled(&counted);
                operation.send_large(1, handler, b"", vec![1; 20_000])?;
                let outcome = world.wait_completion(&done);
                assert!(matches!(outcome, Err(Error::BadMessage { from: 1, .. })), "{outcome:?}");
                assert!(heard.load(Ordering::SeqCst), "a function gets the error");
                assert_eq!(counted.value(), 0, "it counts what was handled");
                // A counter cannot report the error, so a poll does, if the wait did not.
                let _ = world.poll();
            } else {
                let told = met.and_then(|()| world.wait_until(|| false));
                assert!(matches!(told, Err(Error::InvalidArgument { .. })), "{told:?}");
            }
            world.finish()
        });
        results.expect("ranks start").into_iter().for_each(|result: Result<()>| result.expect("runs"));
    }
}

#[test]
fn a_rank_that_is_gone_lets_no_large_message_land() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let sent = AtomicBool::new(false);
        let results = threads(2, transport).build(|mut builder| {
            let place = |_: &Context<'_>, _: &Announced<'_>| Landing::vec(Vec::new());
            let handler = builder.landing_handler("gone", place, |_, _| panic!("rank 1 left before"));
            let world = builder.start().expect("starts");
            if world.rank() == 1 {
                while !sent.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                // It leaves without a poll.
                return;
            }
            let (done, counted) = (Completion::new(), Counter::new());
            let operation = world.operation().source(&done).effect(&counted).handled(&done);
            let data = Rc::new(vec![1; 20_000]);
            operation.send_large(1, handler, b"", Rc::clone(&data)).expect("is sent");
            sent.store(true, Ordering::SeqCst);
            let outcome = loop {
                if let Some(outcome) = done.outcome() {
                    break outcome;
                }
                let _ = world.poll();
                std::thread::yield_now();
            };
            assert!(matches!(outcome, Err(Error::PeerLost { rank: 1, .. })), "{outcome:?}");
            assert_eq!(counted.value(), 0);
            assert_eq!(Rc::strong_count(&data), 1, "the data is held after the source event");
        });
        results.expect("ranks start");
    }
}
