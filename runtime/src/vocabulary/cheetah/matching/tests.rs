use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use super::*;
use crate::{Settings, Threads, Transport};

/// Requests that functions make one inside the other. A stack frame of each would be more than `STACK`.
const CHAIN: u32 = 200_000;
const STACK: usize = 512 << 10;

/// Runs `program` as the only context, on a thread with a small stack.
fn alone(program: fn(&Controller)) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let controller = Controller::setup(&mut vec!["alone".into()]).expect("one context");
        program(&controller);
        controller.finalize().expect("nothing is left");
    });
    thread.expect("starts").join().expect("ends");
}

/// Requests the next value, which its function does again, until there was `CHAIN`.
fn follow(matching: &MatchingHandler, seen: &Rc<Cell<u32>>) {
    let (again, count) = (matching.clone(), Rc::clone(seen));
    let request = matching.request(0, 1, move |value: &mut u32| {
        assert_eq!(*value, count.get(), "in order");
        count.set(*value + 1);
        if count.get() < CHAIN {
            follow(&again, &count);
        }
    });
    request.expect("request");
}

#[test]
fn a_chain_of_requests_inside_functions_takes_no_stack() {
    alone(|controller| {
        let matching = MatchingHandler::new(controller).expect("alone");
        (0..CHAIN).for_each(|value| matching.send(0, 1, &value).expect("send"));
        while matching.messages(0) < CHAIN as usize {
            controller.poll().expect("polls");
        }
        let seen = Rc::new(Cell::new(0));
        follow(&matching, &seen);
        assert_eq!(seen.get(), CHAIN, "the call that ran the first function ran the others");
    });
}

/// The same inside a poll: the first request is there before its value.
#[test]
fn a_chain_that_a_message_begins_takes_no_stack() {
    alone(|controller| {
        let matching = MatchingHandler::new(controller).expect("alone");
        let (seen, begin) = (Rc::new(Cell::new(0)), matching.clone());
        let count = Rc::clone(&seen);
        matching.request(0, 2, move |(): &mut ()| follow(&begin, &count)).expect("request");
        (0..CHAIN).for_each(|value| matching.send(0, 1, &value).expect("send"));
        while matching.messages(0) < CHAIN as usize {
            controller.poll().expect("polls");
        }
        matching.send(0, 2, &()).expect("send");
        while seen.get() < CHAIN {
            controller.poll().expect("polls");
        }
    });
}

#[test]
fn functions_run_one_after_the_other_in_the_order_of_their_meeting() {
    alone(|controller| {
        let matching = MatchingHandler::new(controller).expect("alone");
        let log: Rc<RefCell<Vec<String>>> = Rc::default();
        for tag in 1..=3 {
            matching.send(0, tag, &tag).expect("send");
        }
        while matching.messages(0) < 3 {
            controller.poll().expect("polls");
        }
        let (inner, inside, waits) = (Rc::clone(&log), matching.clone(), controller.clone());
        let outer = matching.request(0, 1, move |_: &mut i32| {
            inner.borrow_mut().push("1 begins".into());
            for tag in [3, 2] {
                let log = Rc::clone(&inner);
                let request = inside.request(0, tag, move |value: &mut i32| log.borrow_mut().push(value.to_string()));
                request.expect("request");
            }
            let bell = crate::vocabulary::cheetah::Bell::new();
            for refused in
                [waits.barrier(), waits.wait(&bell, 1), waits.finalize(), MatchingHandler::new(&waits).map(drop)]
            {
                let error = refused.expect_err("a function does not wait");
                assert!(error.to_string().contains("handler"), "{error}");
            }
            inner.borrow_mut().push("1 ends".into());
        });
        outer.expect("request");
        assert_eq!(*log.borrow(), ["1 begins", "1 ends", "3", "2"]);
        // Objects that were refused have no number.
        assert_eq!(MatchingHandler::new(controller).expect("alone").object, matching.object + 1);
    });
}

/// Rank 1 polls in `send`, `ainvoke` and `put` until the value has met its request; the function runs in the next `poll`.
#[test]
fn calls_that_only_send_run_no_function() {
    let job = Threads::new(2).deadline(Duration::from_secs(60));
    let asked = AtomicI32::new(-1);
    let done = job.build(|builder| {
        let controller = Controller::setup_with(builder).expect("set up");
        let nothing = controller.register_function(|_, _, _, _| {}).expect("registered");
        let matching = MatchingHandler::new(&controller).expect("both");
        let (me, log) = (controller.mycontext().expect("valid"), Rc::new(Cell::new(0)));
        if me == 0 {
            for tag in 0..3 {
                let world = controller.as_world().expect("valid");
                world.wait_until(|| asked.load(Ordering::Acquire) >= tag).expect("it asks");
                matching.send(1, tag, &7).expect("send");
            }
        } else {
            for tag in 0..3 {
                let seen = Rc::clone(&log);
                matching.request(0, tag, move |value: &mut i32| seen.set(seen.get() + *value)).expect("request");
                let before = log.get();
                asked.store(tag, Ordering::Release);
                let mut word = 0u64;
                while matching.actions(0) > 0 {
                    match tag {
                        0 => matching.send(1, 9, &1).expect("send"),
                        1 => controller.ainvoke(1, nothing, &[], None).expect("ainvoke"),
                        // SAFETY: our own word.
                        _ => unsafe {
                            controller.put(1, (&raw mut word).expose_provenance(), &[1; 8], None, None).expect("put")
                        },
                    }
                    std::thread::yield_now();
                }
                assert_eq!(log.get(), before, "tag {tag}: a function ran in a call that only sends");
                controller.poll().expect("polls");
                assert_eq!(log.get(), before + 7, "tag {tag}");
            }
        }
        controller.barrier().expect("both");
        controller.finalize().expect("both");
    });
    done.expect("ranks start");
}

/// The error was told with the line of this file.
fn at_line<T>(outcome: Result<T>, line: u32) {
    let message = outcome.err().expect("an error").to_string();
    assert!(message.contains(&format!("called at {}:{line}", file!())), "line {line}: {message}");
}

#[test]
#[rustfmt::skip]
fn calls_name_the_line_of_the_program() {
    let done = Threads::new(2).deadline(Duration::from_secs(60)).build(|builder| {
        let controller = Controller::setup_with(builder).expect("set up");
        let nothing = controller.register_function(|_, _, _, _| {}).expect("registered");
        let matching = MatchingHandler::new(&controller).expect("both");
        let mut word = 0u64;
        let at = (&raw mut word).expose_provenance();
        // SAFETY: nothing is written where there is no context.
        at_line(unsafe { controller.put(2, at, &[1; 8], None, None) }, line!());
        // SAFETY: as above.
        at_line(unsafe { controller.get(2, at, at as *mut u8, 8, None, None) }, line!());
        at_line(controller.ainvoke(2, nothing, &[], None), line!());
        at_line(controller.try_ainvoke(2, nothing, &[], None), line!());
        at_line(matching.send(2, 1, &7), line!());
        at_line(matching.request(2, 1, |_: &mut i32| ()), line!());
        controller.barrier().expect("both");
        controller.finalize().expect("both");
    });
    done.expect("ranks start");
}

/// Rank 1 does not poll before rank 0 has sent more than message memory holds, small values and large ones.
#[test]
fn a_send_never_waits_for_its_receiver() {
    const SENDS: u32 = 20_000;
    const LARGE: usize = 1 << 20;
    for transport in [Transport::Auto, Transport::ShmContract] {
        for cross_memory_attach in [true, false] {
            let settings = Settings { message_memory: 64 << 10, transport, cross_memory_attach, ..Settings::default() };
            let (sent, polls_no_more) = (AtomicI32::new(0), AtomicI32::new(0));
            let done = Threads::new(2).settings(settings).deadline(Duration::from_secs(60)).build(|builder| {
                let controller = Controller::setup_with(builder).expect("set up");
                let nothing = controller.register_function(|_, _, _, _| {}).expect("registered");
                let matching = MatchingHandler::new(&controller).expect("both");
                let seen = Rc::new(Cell::new(0));
                if controller.mycontext().expect("valid") == 0 {
                    // A rank that is still in the barrier polls: it could fetch the first large value, whose bytes then fill message memory.
                    while polls_no_more.load(Ordering::Acquire) == 0 {
                        std::thread::yield_now();
                    }
                    for value in 0..SENDS {
                        matching.send(1, 1, &value).expect("send");
                        if value % 5000 == 0 {
                            matching.send(1, 2, &vec![value; LARGE / 4]).expect("send");
                        }
                    }
                    // Kept messages take no room from others: otherwise this call would wait for the receiver.
                    controller.ainvoke(1, nothing, &[1; 100], None).expect("ainvoke");
                    sent.store(1, Ordering::Release);
                } else {
                    polls_no_more.store(1, Ordering::Release);
                    while sent.load(Ordering::Acquire) == 0 {
                        std::thread::yield_now();
                    }
                    for value in 0..SENDS {
                        let count = Rc::clone(&seen);
                        let request = matching.request(0, 1, move |came: &mut u32| {
                            assert_eq!(*came, value, "in order");
                            count.set(count.get() + 1);
                        });
                        request.expect("request");
                    }
                    for value in (0..SENDS).step_by(5000) {
                        let count = Rc::clone(&seen);
                        let request = matching.request(0, 2, move |came: &mut Vec<u32>| {
                            assert!(came.len() == LARGE / 4 && came.iter().all(|it| *it == value), "in order");
                            count.set(count.get() + 1);
                        });
                        request.expect("request");
                    }
                    while seen.get() < SENDS + SENDS / 5000 {
                        controller.poll().expect("polls");
                    }
                }
                controller.finalize().expect("both");
            });
            done.expect("ranks start");
        }
    }
}

/// A large value whose request waits is delivered by `finalize`; one without a request is dropped.
#[test]
fn finalize_waits_for_large_values() {
    for cross_memory_attach in [true, false] {
        let settings = Settings { cross_memory_attach, ..Settings::default() };
        let done = Threads::new(2).settings(settings).deadline(Duration::from_secs(60)).build(|builder| {
            let controller = Controller::setup_with(builder).expect("set up");
            let matching = MatchingHandler::new(&controller).expect("both");
            let other = 1 - controller.mycontext().expect("valid");
            let seen = Rc::new(Cell::new(0));
            let count = Rc::clone(&seen);
            matching.request(other, 1, move |came: &mut Vec<u64>| count.set(came.len())).expect("request");
            matching.send(other, 2, &vec![0u64; 1 << 17]).expect("send");
            matching.send(other, 1, &vec![0u64; 1 << 18]).expect("send");
            controller.finalize().expect("both");
            assert_eq!(seen.get(), 1 << 18);
        });
        done.expect("ranks start");
    }
}

#[test]
fn a_closed_object_drops_what_waits_and_what_comes() {
    alone(|controller| {
        let [kept, closed] = [0; 2].map(|_| MatchingHandler::new(controller).expect("alone"));
        let held = Rc::new(());
        for object in [&kept, &closed] {
            let hold = Rc::clone(&held);
            object.request(0, 1, move |(): &mut ()| drop(hold)).expect("request");
            object.send(0, 2, &vec![1u8; 100_000]).expect("send");
            object.send(0, 2, &1u8).expect("send");
        }
        while kept.messages(0) < 2 || closed.messages(0) < 2 {
            controller.poll().expect("polls");
        }
        let later = closed.clone();
        closed.close().expect("valid");
        assert_eq!(Rc::strong_count(&held), 2, "the closed one's request is dropped");
        later.send(0, 1, &()).expect("send");
        kept.send(0, 1, &()).expect("send");
        while kept.actions(0) > 0 {
            controller.poll().expect("polls");
        }
        assert_eq!((later.actions(0), later.messages(0), kept.messages(0)), (0, 0, 2));
    });
}
