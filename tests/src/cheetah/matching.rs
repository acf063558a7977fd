//! Rows about matching handlers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bellwether_runtime::vocabulary::cheetah::{Controller, MatchingHandler, Postcard, Serialize};

use super::{Load, barrier, place, poll_until, settle};

type Log<T> = Rc<RefCell<Vec<T>>>;

/// Asks for the next value and logs it.
fn log_next<T>(matching: &MatchingHandler, from: usize, tag: i32, log: &Log<T>)
where
    T: serde::Serialize + serde::de::DeserializeOwned + Clone + 'static,
{
    let log = Rc::clone(log);
    matching.request(from, tag, move |value: &mut T| log.borrow_mut().push(value.clone())).expect("request");
}

pub(super) fn c29(controller: Controller, load: &Load) {
    let is_short = load.virtual_time && !crate::is_full();
    let (me, n) = place(&controller);
    let matching = MatchingHandler::new(&controller).expect("all make it");
    let log: Log<usize> = Rc::default();
    for (order, first) in ["request first", "message first"].into_iter().enumerate() {
        if first == "request first" {
            (0..n).for_each(|from| log_next(&matching, from, 7, &log));
        }
        // No context sends before all have requested.
        settle(&controller, first);
        (0..n).for_each(|to| matching.send(to, 7, &(100 * order + me)).expect("send"));
        if first == "message first" {
            poll_until(&controller, first, || (0..n).all(|from| matching.messages(from) == 1));
            assert!(log.borrow().is_empty(), "{first}");
            (0..n).for_each(|from| log_next(&matching, from, 7, &log));
        }
        poll_until(&controller, first, || log.borrow().len() == n);
        let mut seen = log.take();
        seen.sort();
        assert_eq!(seen, (0..n).map(|from| 100 * order + from).collect::<Vec<_>>(), "{first}");
        barrier(&controller, first);
    }

    // Five objects, the same tag: what is sent through one never meets a request of another.
    let objects: Vec<_> = (0..5).map(|_| MatchingHandler::new(&controller).expect("all make it")).collect();
    let logs: Vec<Log<(usize, usize)>> = (0..5).map(|_| Rc::default()).collect();
    for (number, object) in objects.iter().enumerate().rev() {
        (0..n).for_each(|to| object.send(to, 3, &(number, me)).expect("send"));
    }
    for (object, log) in objects.iter().zip(&logs) {
        (0..n).for_each(|from| log_next(object, from, 3, log));
    }
    poll_until(&controller, "five objects", || logs.iter().all(|log| log.borrow().len() == n));
    for (number, log) in logs.iter().enumerate() {
        let mut seen = log.take();
        seen.sort();
        assert_eq!(seen, (0..n).map(|from| (number, from)).collect::<Vec<_>>());
    }
    barrier(&controller, "five objects");

    // In order for each object, context and tag, wherever the others are; requests before, between and after.
    let (tags, values) = (3, if is_short { 40 } else { 200 });
    let logs: BTreeMap<(usize, i32), Log<u32>> =
        (0..n).flat_map(|from| (0..tags).map(move |tag| ((from, tag), Rc::default()))).collect();
    let ask = |times: u32| {
        for ((from, tag), log) in &logs {
            (0..times).for_each(|_| log_next(&matching, *from, *tag, log));
        }
    };
    ask(values / 4);
    for value in 0..values {
        for tag in (0..tags).rev() {
            (0..n).for_each(|to| matching.send(to, tag, &value).expect("send"));
        }
        if value == values / 2 {
            ask(values / 4);
        }
    }
    ask(values / 2);
    poll_until(&controller, "order", || logs.values().all(|log| log.borrow().len() == values as usize));
    for (key, log) in &logs {
        assert!(log.borrow().iter().copied().eq(0..values), "{key:?}: {:?}", log.borrow());
    }
    barrier(&controller, "order");

    // A handler may send and ask again: a value goes round until it is used up.
    let done = Rc::new(Cell::new(0));
    let steps = if is_short { 20 } else { 100 };
    fn forward(matching: &MatchingHandler, from: usize, to: usize, done: &Rc<Cell<u32>>, steps: u32) {
        let (again, done) = (matching.clone(), Rc::clone(done));
        matching
            .request(from, 9, move |left: &mut u32| {
                done.set(done.get() + 1);
                if *left > 0 {
                    again.send(to, 9, &(*left - 1)).expect("send");
                }
                // Every context sees one of the values at each step.
                if done.get() <= steps {
                    forward(&again, from, to, &done, steps);
                }
            })
            .expect("request");
    }
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    forward(&matching, previous, next, &done, steps);
    matching.send(next, 9, &steps).expect("send");
    poll_until(&controller, "going round", || done.get() == steps + 1);
    settle(&controller, "the end");
    assert_eq!((0..n).map(|from| matching.messages(from) + matching.actions(from)).sum::<usize>(), 0);
}

pub(super) fn c30(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let objects: Vec<_> = (0..2).map(|_| MatchingHandler::new(&controller).expect("all make it")).collect();
    let counts = |object: &MatchingHandler, from| (object.actions(from), object.messages(from));
    let log: Log<u8> = Rc::default();
    // Two requests under one tag, one under another, from each context; only through the first object.
    for from in 0..n {
        [1, 1, 2].into_iter().for_each(|tag| log_next(&objects[0], from, tag, &log));
        assert_eq!(counts(&objects[0], from), (3, 0));
    }
    settle(&controller, "requests");
    // As many messages as the sender's number plus one, under a tag that no context requests.
    for to in 0..n {
        (0..=me).for_each(|_| objects[0].send(to, 5, &1u8).expect("send"));
    }
    poll_until(&controller, "messages", || (0..n).all(|from| objects[0].messages(from) == from + 1));
    for from in 0..n {
        assert_eq!((counts(&objects[0], from), counts(&objects[1], from)), ((3, from + 1), (0, 0)));
    }
    settle(&controller, "messages");
    for to in 0..n {
        objects[0].send(to, 1, &2u8).expect("send");
        (0..=to).for_each(|_| log_next(&objects[0], to, 5, &log));
    }
    let triangle = n * (n + 1) / 2;
    poll_until(&controller, "all met", || log.borrow().len() == n + triangle);
    settle(&controller, "all met");
    for from in 0..n {
        assert_eq!((counts(&objects[0], from), counts(&objects[1], from)), ((2, 0), (0, 0)));
    }
    assert_eq!(objects[0].actions(n), 0, "a context that does not exist");
    barrier(&controller, "the end");
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Particle {
    name: String,
    place: [f64; 3],
    neighbours: Vec<u32>,
    parent: Option<Box<Particle>>,
}

fn particle(seed: usize, neighbours: usize) -> Particle {
    Particle {
        name: format!("particle {seed} ä"),
        place: [seed as f64, -0.0, f64::MAX],
        neighbours: (0..neighbours as u32).collect(),
        parent: (seed > 0).then(|| Box::new(particle(seed - 1, 2))),
    }
}

pub(super) fn c31(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let matching = MatchingHandler::new(&controller).expect("all make it");
    let large = (load.message_memory / 2).min(1 << 20);
    for size in [0, 1, 7, 8, 9, 47, 48, 49, 1000, large / 5] {
        let (structures, vectors): (Log<Particle>, Log<Vec<u8>>) = Default::default();
        matching.send(next, 1, &particle(me % 3, size)).expect("send");
        matching.send(next, 2, &vec![me as u8; size]).expect("send");
        log_next(&matching, previous, 1, &structures);
        log_next(&matching, previous, 2, &vectors);
        poll_until(&controller, "payloads", || structures.borrow().len() + vectors.borrow().len() == 2);
        assert_eq!(*structures.borrow(), [particle(previous % 3, size)], "size {size}");
        assert_eq!(*vectors.borrow(), [vec![previous as u8; size]]);
        // Nothing but the meeting itself, and something local that the handler holds.
        let met = Rc::new(Cell::new(0));
        let local = Rc::clone(&met);
        matching.request(previous, 3, move |(): &mut ()| local.set(size + 1)).expect("request");
        matching.send(next, 3, &()).expect("send");
        poll_until(&controller, "a bare meeting", || met.get() == size + 1);
        barrier(&controller, "a size");
    }
    // Large and small values under one tag stay in order, larger than memory for messages too, and sent inside a function.
    let (log, count) = (Log::<Vec<u8>>::default(), 12u8);
    let value = move |number: u8, from: usize| {
        let len = if number % 3 == 1 { 2 * large + usize::from(number) } else { 1 };
        vec![number ^ from as u8; len]
    };
    let sender = matching.clone();
    let send_all = move |(): &mut ()| {
        (0..count).for_each(|number| sender.send(next, 5, &value(number, me)).expect("send"));
    };
    matching.request(previous, 6, send_all).expect("request");
    (0..count / 2).for_each(|_| log_next(&matching, previous, 5, &log));
    matching.send(next, 6, &()).expect("send");
    (count / 2..count).for_each(|_| log_next(&matching, previous, 5, &log));
    poll_until(&controller, "large and small values", || log.borrow().len() == usize::from(count));
    for (number, seen) in log.take().into_iter().enumerate() {
        assert!(seen == value(number as u8, previous), "value {number}: {} bytes of {:?}", seen.len(), seen[0]);
    }
    barrier(&controller, "large and small values");
    // Another type than was sent is an error of the request, with the sender's number.
    matching.send(next, 4, &(1u64, 2u64, 3u8)).expect("send");
    poll_until(&controller, "a message of another type", || matching.messages(previous) >= 1);
    for wrong in ["Vec<u64>", "bool"] {
        let error = match wrong {
            "bool" => matching.request::<bool, _>(previous, 4, |_| panic!("it is no bool")),
            _ => matching.request::<Vec<u64>, _>(previous, 4, |_| panic!("it is no vector")),
        };
        let error = error.expect_err(wrong).to_string();
        assert!(error.contains(&format!("message from rank {previous}")), "{error}");
        matching.send(next, 4, &(1u64, 2u64)).expect("send");
        poll_until(&controller, "a message of another type", || matching.messages(previous) >= 1);
    }
    barrier(&controller, "the end");
}

/// A vector as one byte of length and its elements shifted by one, so that nothing else can read it.
struct Shifted;

thread_local! {
    static CALLS: Cell<[u32; 4]> = const { Cell::new([0; 4]) };
}

fn called(which: usize) {
    let mut calls = CALLS.get();
    calls[which] += 1;
    CALLS.set(calls);
}

impl Serialize<Vec<u8>> for Shifted {
    fn size(value: &Vec<u8>) -> usize {
        called(0);
        1 + value.len()
    }

    fn pack(value: &Vec<u8>, bytes: &mut Vec<u8>) -> Result<(), String> {
        called(1);
        bytes.push(u8::try_from(value.len()).map_err(|_| format!("{} elements are too many", value.len()))?);
        bytes.extend(value.iter().map(|byte| byte.wrapping_add(1)));
        Ok(())
    }

    fn unpack(bytes: &[u8]) -> Result<Vec<u8>, String> {
        called(2);
        match bytes.split_first() {
            Some((length, rest)) if rest.len() == usize::from(*length) => {
                Ok(rest.iter().map(|byte| byte.wrapping_sub(1)).collect())
            }
            _ => Err("not a shifted vector".into()),
        }
    }

    fn cleanup(value: Vec<u8>) {
        called(3);
        assert_eq!(value, [42], "the handler's change is there");
    }
}

pub(super) fn c32(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let matching = MatchingHandler::new(&controller).expect("all make it");
    CALLS.set([0; 4]);
    for round in 1..=3u32 {
        let log: Log<Vec<u8>> = Rc::default();
        let seen = Rc::clone(&log);
        let sent = |from: usize| vec![from as u8, round as u8, 255];
        let request = move |value: &mut Vec<u8>| {
            seen.borrow_mut().push(value.clone());
            *value = vec![42];
        };
        if round == 2 {
            matching.request_with::<Shifted, _, _>(previous, 1, request).expect("request");
            matching.send_with::<Shifted, _>(next, 1, &sent(me)).expect("send");
        } else {
            matching.send_with::<Shifted, _>(next, 1, &sent(me)).expect("send");
            matching.request_with::<Shifted, _, _>(previous, 1, request).expect("request");
        }
        poll_until(&controller, "shifted", || !log.borrow().is_empty());
        assert_eq!(*log.borrow(), [sent(previous)]);
        assert_eq!(CALLS.get(), [round; 4], "size, pack, unpack, cleanup");
        barrier(&controller, "a round");
    }
    let error = matching.send_with::<Shifted, _>(next, 1, &vec![0; 256]).expect_err("too many").to_string();
    assert!(error.contains("256 elements are too many"), "{error}");
    // Sent one way, asked for another way.
    matching.send_with::<Postcard, _>(next, 1, &vec![9u8; 300]).expect("send");
    poll_until(&controller, "another way", || matching.messages(previous) >= 1);
    let error = matching.request_with::<Shifted, Vec<u8>, _>(previous, 1, |_| ()).expect_err("wrong").to_string();
    assert!(error.contains("not a shifted vector"), "{error}");
    barrier(&controller, "the end");
}
