//! Programs of closures that run in every surrounding: owned vectors, and all kinds of events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bellwether_runtime::vocabulary::lapi::{
    Announced, Answer, Code, Counter, HandlerContext, Landed, Lapi, Signal, codes,
};
use bellwether_runtime::{Builder, Completion};

use crate::watchdog;

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 11 + seed * 3 + i / 251) as u8).collect()
}

const LENGTHS: [usize; 5] = [0, 20, 8 << 10, (8 << 10) + 1, 200_000];

fn words(a: usize, b: usize) -> [u8; 8] {
    (a as u64 * 1000 + b as u64).to_ne_bytes()
}

/// Data lands in vectors, and completion handlers run in both ways.
///
/// # Panics
/// If something of this does not hold.
pub fn owned_vectors(lapi: &Lapi) {
    let (me, n) = (lapi.rank(), lapi.size());
    let came: Arc<Mutex<Vec<_>>> = Arc::default();
    for (index, inline) in [(1, false), (255, true)] {
        let came = Arc::clone(&came);
        let handler = lapi.handler(index, move |_, announced| {
            assert_eq!(announced.data().is_some_and(|data| data.len() == announced.len()), announced.len() <= 8 << 10);
            let came = Arc::clone(&came);
            let keep = move |_: &HandlerContext<'_>, landed: Landed| {
                let number = u64::from_ne_bytes(landed.header().try_into().expect("eight bytes")) as usize;
                came.lock().expect("no panic").push((landed.from(), number, landed.into_vec()));
            };
            // The message's bytes replace what the vector holds.
            let place = Answer::vec(vec![9; announced.len() / 2]);
            if inline { place.then_inline(keep) } else { place.then(keep) }
        });
        handler.expect("an index of the table");
    }
    lapi.gfence().expect("all have registered");
    let [origin, completion] = [const { Counter::new() }; 2].map(Arc::new);
    let mut expected = Vec::new();
    for to in 0..n {
        for (number, len) in LENGTHS.into_iter().enumerate() {
            for index in [1, 255] {
                let message = lapi.message(to, index).header(&[0; 8]).data(pattern(me + len, len));
                let header = words(me, number);
                message.header(&header).origin(&origin).completion(&completion).send().expect("sends");
            }
        }
    }
    let all = (2 * n * LENGTHS.len()) as i32;
    assert_eq!(lapi.wait(&completion, all), Ok(0));
    assert_eq!(lapi.wait(&origin, all), Ok(0));
    assert_eq!((Arc::strong_count(&origin), Arc::strong_count(&completion)), (1, 1), "nothing is held any more");
    lapi.gfence().expect("everybody's have run");
    for from in 0..n {
        for (number, len) in LENGTHS.into_iter().enumerate() {
            expected.extend((0..2).map(|_| (from, from * 1000 + number, pattern(from + len, len))));
        }
    }
    let mut came = std::mem::take(&mut *came.lock().expect("no panic"));
    came.sort();
    expected.sort();
    assert!(came == expected, "{} of {}", came.len(), expected.len());
}

/// Events move counters, ring bells, end futures and call functions.
///
/// # Panics
/// If something of this does not hold.
pub fn events(lapi: &Lapi) {
    let (me, n) = (lapi.rank(), lapi.size());
    let next = (me + 1) % n;
    let bell = lapi.bell().expect("makes a bell");
    let handler = |_: &HandlerContext<'_>, _: &Announced<'_>| Answer::vec(Vec::new()).then(|_, landed| drop(landed));
    lapi.handler(1, handler).expect("an index of the table");
    let [own, there] = [const { Counter::new() }; 2].map(Arc::new);
    lapi.target_event(1, &there).expect("an index of the table");
    lapi.target_event(255, Signal::ring(bell, me)).expect("an index of the table");
    let called = Arc::new(AtomicUsize::new(0));
    for (round, len) in [8, 100_000].into_iter().enumerate() {
        let arrived = Completion::new();
        lapi.target_event(3, &arrived).expect("an index of the table");
        lapi.gfence().expect("all have their events");
        let message = || lapi.message(next, 1).data(vec![1; len]);
        watchdog::at("counters");
        message().origin(&own).target(1).completion(&own).send().expect("sends");
        assert_eq!(lapi.wait(&own, 2), Ok(0));
        assert_eq!(lapi.wait(&there, 1), Ok(0));
        watchdog::at("bells");
        let here = || Signal::ring(bell, me);
        message().origin(here()).target(255).completion(Signal::ring(bell, next)).send().expect("sends");
        assert_eq!(lapi.wait_bell(bell, 3 * (round as u64 + 1)), Ok(3 * (round as u64 + 1)));
        watchdog::at("futures");
        let done = Completion::new();
        message().origin(&done).target(3).completion(&done).send().expect("sends");
        lapi.wait_completion(&done).expect("both have come");
        lapi.wait_completion(&arrived).expect("it has come");
        watchdog::at("functions");
        let call = || {
            let called = Arc::clone(&called);
            Signal::call(move |outcome| {
                called.fetch_add(usize::from(outcome.is_ok()), Ordering::Relaxed);
            })
        };
        let last = Completion::new();
        message().origin(call()).completion(call()).send().expect("sends");
        message().origin(&last).completion(&last).send().expect("sends");
        lapi.wait_completion(&last).expect("it has come");
        lapi.gfence().expect("nothing is wrong");
    }
    // A task that is ahead may have sent the message below.
    let mut told = usize::from(lapi.gfence().is_err());
    watchdog::at("functions that are late");
    // Data of different messages may land in another order, and a fence does not wait for completion handlers.
    while called.load(Ordering::Relaxed) < 4 {
        let own = Arc::new(Counter::new());
        lapi.message(me, 1).completion(&own).send().expect("sends");
        told += usize::from(lapi.wait(&own, 1).is_err());
    }
    assert_eq!(called.load(Ordering::Relaxed), 4, "each once");
    watchdog::at("an event that does not come");
    let (done, never) = (Completion::new(), Arc::new(Counter::new()));
    lapi.message(next, 77).data(vec![1; 100_000]).origin(&never).completion(&done).send().expect("sends");
    // This task gets two errors: of the message that it sent, and of the one that it received.
    let text = loop {
        match lapi.wait_completion(&done) {
            Err(Code(codes::NO_HNDLR_SET)) => told += 1,
            Err(code) => break code.failure().expect("it has a text").text,
            Ok(()) => panic!("there is no handler"),
        }
    };
    assert!(text.contains("No header handler is set"), "{text}");
    assert_eq!((never.value(), Arc::strong_count(&never)), (0, 1), "let go of");
    while told < 2 {
        let own = Arc::new(Counter::new());
        lapi.message(me, 1).completion(&own).send().expect("sends");
        told += usize::from(lapi.wait(&own, 1).is_err());
    }
    lapi.gfence().expect("all is told");
    for index in [0, 256] {
        assert_eq!(lapi.target_event(index, &own), Err(Code(codes::ADDR_HNDL_RANGE)));
    }
    let refused = lapi.message(next, 1).target(256).completion(&own).send();
    assert_eq!((refused, Arc::strong_count(&own)), (Err(Code(codes::ADDR_HNDL_RANGE)), 1));
}

/// Both, as one task of the job that `builder` describes. Task 0 says so.
///
/// # Panics
/// As they.
pub fn programs(builder: Builder, say: fn(&str)) {
    let lapi = Lapi::start(builder).expect("starts");
    owned_vectors(&lapi);
    events(&lapi);
    if lapi.rank() == 0 {
        say(&format!("closures: {} tasks", lapi.size()));
    }
    lapi.finish().expect("finishes");
}
