//! U34 to U38: progress and threads; U54: events.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::rig::*;
use crate::transport::lock::Mutex;
use crate::transport::*;

/// U34: put, get and compare-and-swap complete while the target sleeps.
pub fn u34_no_target_progress_needed<R: Rig>() {
    let rig = R::new(2);
    let board = Board::default();
    let stop = AtomicBool::new(false);
    rig.ranks(&|player| {
        let me = player.rank();
        let side = Side::<R>::open(&rig, me, R::options());
        let memory = side.memory(64);
        board.post(me, "address", side.interface.address());
        board.post(me, "key", side.domain.pack_key(memory.region()).into());
        let key = unpack(&side.domain, &board.read(player, 1 - me, "key")).expect("a key");
        if me == 1 {
            // Without any call into the transport, for as long as the other takes, if that is not for ever.
            let sleep = || {
                board.post(1, "asleep", Vec::new());
                let naps = (0..3000).take_while(|_| !board.has(0, "done"));
                naps.for_each(|_| player.sleep(Duration::from_millis(5)));
            };
            if side.interface.attributes().needs_target_progress {
                // The attributes ask for a thread that serves. It is not one of the simulated ranks.
                // SAFETY: nothing else refers into the side, and no handler is set.
                let side = unsafe { Coarse::new(side) };
                thread::scope(|scope| {
                    let server = scope.spawn(|| {
                        while !stop.load(SeqCst) {
                            side.with(|side| side.interface.serve());
                            thread::yield_now();
                        }
                    });
                    sleep();
                    stop.store(true, SeqCst);
                    join(vec![server]);
                });
            } else {
                sleep();
            }
            assert!(board.has(0, "done"), "all was done while this rank slept");
            return;
        }
        let ep = side.connect(&board.read(player, 1, "address"));
        board.read(player, 1, "asleep");
        let turn = || {
            if side.worker.progress() == 0 {
                player.idle();
            }
        };
        let flush = || wait("a flush", || ep.flush(Flush::REMOTE, None) == Ok(Posted::Done), turn);
        wait("room", || ep.put_short(&7u64.to_le_bytes(), key.address, &key).is_ok(), turn);
        flush();
        let got = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&got);
        let unpack = move |bytes: &[u8]| *into.lock() = bytes.to_vec();
        assert!(ep.get_bcopy(8, unpack, key.address, &key, None).is_ok());
        flush();
        wait("the data", || !got.lock().is_empty(), turn);
        assert_eq!(*got.lock(), 7u64.to_le_bytes());
        let mut found = 0u64;
        let to = &raw mut found;
        // SAFETY: the result lives past the flush.
        let posted = unsafe { ep.atomic_compare_swap(7, 8, to, key.address, &key, None) };
        assert!(posted.is_ok());
        flush();
        assert_eq!(found, 7);
        board.post(0, "done", Vec::new());
    });
}

/// U35: progress returns whether it did anything.
pub fn u35_worker_progress<R: Rig>() {
    let duo = Duo::<R>::new();
    duo.settle();
    assert_eq!(duo.b.worker.progress(), 0);
    let got = Rc::new(Cell::new(false));
    let seen = Rc::clone(&got);
    duo.b.interface.set_handler(0, Some(Box::new(move |_| seen.set(true)))).expect("id");
    duo.insist(|| duo.a.ep().am_short(0, 0, &[]));
    let mut told = 0;
    wait(
        "the message",
        || got.get(),
        || {
            duo.rig.turn();
            let before = got.get();
            let done = duo.b.worker.progress();
            if !before && got.get() {
                told = done;
            }
        },
    );
    assert_ne!(told, 0, "the call that delivered said so");
    duo.settle();
    assert_eq!(duo.b.worker.progress(), 0);
}

/// U36: a new interface is not progressed until enabled; disabling works.
pub fn u36_progress_starts_disabled<R: Rig>() {
    let duo = Duo::<R>::new();
    duo.b.interface.progress_disable(BOTH);
    let got = Rc::new(Cell::new(0));
    let seen = Rc::clone(&got);
    duo.b.interface.set_handler(0, Some(Box::new(move |_| seen.set(seen.get() + 1)))).expect("id");
    duo.insist(|| duo.a.ep().am_short(0, 0, &[]));
    duo.settle();
    assert_eq!(got.get(), 0, "disabled");
    duo.b.interface.progress_enable(Directions::SEND);
    duo.settle();
    assert_eq!(got.get(), 0, "only sends enabled");
    duo.b.interface.progress_enable(BOTH);
    duo.until("the message", || got.get() == 1);
    // And one that was never enabled.
    let rig = R::new(1);
    let transport = rig.transport(0);
    let domain = transport.open(&transport.resources()[0]).expect("opens");
    let worker = Worker::new();
    let interface = domain.open_interface(&worker, R::options()).expect("opens");
    let got = Rc::new(Cell::new(false));
    let seen = Rc::clone(&got);
    interface.set_handler(0, Some(Box::new(move |_| seen.set(true)))).expect("id");
    let ep = interface.connect(&interface.address()).expect("connects to itself");
    assert_eq!(ep.am_short(0, 0, &[]), Ok(()));
    for _ in 0..10 {
        worker.progress();
        rig.turn();
    }
    assert!(!got.get());
    interface.progress_enable(BOTH);
    wait(
        "the message",
        || got.get(),
        || {
            worker.progress();
            rig.turn();
        },
    );
}

/// U37: two threads progress two workers with nothing between them: one may even stand still inside a handler.
pub fn u37_independent_interfaces<R: Rig>() {
    let (inside, passed) = (AtomicBool::new(false), AtomicBool::new(false));
    let (inside, passed) = (Arc::new(inside), Arc::new(passed));
    thread::scope(|scope| {
        let pair = |me| {
            let (inside, passed) = (Arc::clone(&inside), Arc::clone(&passed));
            scope.spawn(move || {
                let duo = Duo::<R>::new();
                let got = Rc::new(Cell::new(0));
                let seen = Rc::clone(&got);
                let (here, other) = (Arc::clone(&inside), Arc::clone(&passed));
                let handler = move |_: &Message<'_>| {
                    if me == 0 && seen.get() == 0 {
                        here.store(true, SeqCst);
                        wait("the other interface", || other.load(SeqCst), thread::yield_now);
                    }
                    seen.set(seen.get() + 1);
                };
                duo.b.interface.set_handler(0, Some(Box::new(handler))).expect("id");
                let count = R::rounds(20_000);
                if me == 1 {
                    wait("the other inside its handler", || inside.load(SeqCst), thread::yield_now);
                }
                for sent in 0..count {
                    duo.insist(|| duo.a.ep().am_short(0, 0, &[]));
                    if me == 1 && sent == count / 2 {
                        duo.until("half of them", || got.get() > count / 2);
                        passed.store(true, SeqCst);
                    }
                }
                duo.until("all messages", || got.get() == count);
            })
        };
        join(vec![pair(0), pair(1)]);
    });
}

/// U38: four threads use one endpoint, under the coarse lock; then both ends at once, each under its own.
pub fn u38_shared_between_threads<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(8);
    let got = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&got);
    duo.b
        .interface
        .set_handler(
            0,
            Some(Box::new(move |_| {
                seen.fetch_add(1, SeqCst);
            })),
        )
        .expect("id");
    struct Group<R: Rig>(Duo<R>);
    // SAFETY: two confined sides and their network, which is Sync.
    unsafe impl<R: Rig> Confined for Group<R> {}
    // SAFETY: nothing else refers into the pair; its handler holds an Arc of an atomic.
    let group = unsafe { Coarse::new(Group(duo)) };
    let each = R::rounds(10_000);
    thread::scope(|scope| {
        let user = || {
            scope.spawn(|| {
                for _ in 0..each {
                    let insist = |send: &dyn Fn(&Duo<R>) -> Result<()>| {
                        let sent = Cell::new(false);
                        wait(
                            "room",
                            || sent.get(),
                            || {
                                group.with(|Group(duo)| {
                                    sent.set(send(duo).is_ok());
                                    duo.turn();
                                })
                            },
                        );
                    };
                    insist(&|duo| duo.a.ep().am_short(0, 0, &[]));
                    insist(&|duo| duo.a.ep().atomic_post(AtomicOp::Add, 1u64, key.address, &key));
                }
            })
        };
        join(vec![user(), user(), user(), user()]);
    });
    group.with(|Group(duo)| {
        duo.flush();
        duo.until("all messages", || got.load(SeqCst) == 4 * each);
    });
    assert_eq!(bytes(&memory), (4 * each as u64).to_le_bytes());
    a_lock_for_each_end::<R>();
}

/// Each end under a lock of its own: two threads send, two receive, and no lock covers both.
fn a_lock_for_each_end<R: Rig>() {
    let Duo { a, b, rig } = Duo::<R>::new();
    let got = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&got);
    let handler = move |_: &Message<'_>| {
        seen.fetch_add(1, SeqCst);
    };
    b.interface.set_handler(0, Some(Box::new(handler))).expect("id");
    // SAFETY: an end refers to nothing of the other one; its handler holds an Arc of an atomic.
    let (a, b) = unsafe { (Coarse::new(a), Coarse::new(b)) };
    let each = R::rounds(10_000);
    thread::scope(|scope| {
        let pair = || {
            let sender = scope.spawn(|| {
                for _ in 0..each {
                    let send = || a.with(|a| (a.worker.progress(), a.ep().am_short(0, 0, &[]).is_ok()).1);
                    wait("room", send, || {
                        rig.turn();
                    });
                }
            });
            let receiver = scope.spawn(|| {
                let receive = || {
                    rig.turn();
                    b.with(|b| b.worker.progress());
                };
                wait("all messages", || got.load(SeqCst) == 2 * each, receive);
            });
            [sender, receiver]
        };
        join([pair(), pair()].into_iter().flatten().collect());
    });
}

/// U54: arming is refused while an event waits; afterwards the descriptor announces events.
pub fn u54_events<R: Rig>() {
    let duo = Duo::<R>::new();
    let interface = &duo.b.interface;
    assert!(interface.attributes().events.has(Events::RECEIVE.and(Events::DESCRIPTOR)));
    assert!(matches!(interface.arm(Events::ASYNC_CALLBACK), Err(Error::Unsupported(_))));
    assert_eq!(interface.arm(Events::NONE).map_err(Error::code), Err(-5));
    assert_eq!(interface.arm(Events::DESCRIPTOR).map_err(Error::code), Err(-5), "an event, not the way to hear of it");
    let readable = |patience: i64| {
        let fd = interface.event_descriptor().expect("a descriptor");
        let limit = rustix::fs::Timespec { tv_sec: patience / 1000, tv_nsec: patience % 1000 * 1_000_000 };
        rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("polls") > 0
    };
    let got = Rc::new(Cell::new(0));
    let seen = Rc::clone(&got);
    interface.set_handler(0, Some(Box::new(move |_| seen.set(seen.get() + 1)))).expect("id");
    for round in 1..=10 {
        assert_eq!(interface.arm(Events::RECEIVE), Ok(()), "nothing waits");
        assert!(!readable(if round == 1 { 30 } else { 0 }), "nothing came");
        duo.insist(|| duo.a.ep().am_short(0, 0, &[]));
        while duo.rig.turn() {}
        assert!(readable(5000), "what came is announced");
        assert_eq!(interface.arm(Events::RECEIVE), Err(Error::Busy), "it waits to be progressed");
        duo.until("the message", || got.get() == round);
        duo.settle();
    }
    only_what_is_asked_for::<R>();
}

/// A message that waits is no reason not to arm for completions, nor a completion one not to arm for messages.
fn only_what_is_asked_for<R: Rig>() {
    let duo = Duo::<R>::new();
    let events = duo.a.interface.attributes().events;
    if !events.has(Events::SEND_COMPLETION) {
        assert!(matches!(duo.a.interface.arm(Events::SEND_COMPLETION), Err(Error::Unsupported(_))));
        return;
    }
    let (_memory, key) = duo.remote(64);
    if duo.a.interface.attributes().emulated == Capabilities::NONE {
        // A completion that waits to be run, and no message. Where operations are emulated over messages, a completion comes as a message.
        let local = duo.a.memory(64);
        let (pointer, region) = (local.address(), Some(local.region()));
        let iov = [Iov { pointer, length: 64, stride: 64, count: 1, region }];
        let seen = Arc::new(AtomicBool::new(false));
        let called = Arc::clone(&seen);
        let completion = Completion::new(1, move |_| called.store(true, SeqCst));
        // SAFETY: the buffer lives past the completion.
        let posted = duo.insist(|| unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, Some(&completion)) });
        let completes = || posted == Posted::Done || duo.a.interface.arm(Events::SEND_COMPLETION) == Err(Error::Busy);
        wait("the device", completes, || {
            duo.rig.turn();
        });
        assert_eq!(duo.a.interface.arm(Events::RECEIVE), Ok(()), "no message waits");
        if posted == Posted::InProgress {
            assert_eq!(duo.a.interface.arm(Events::RECEIVE.and(Events::SEND_COMPLETION)), Err(Error::Busy));
            duo.until("the completion", || seen.load(SeqCst));
        }
        duo.settle();
    }
    let got = Rc::new(Cell::new(false));
    let seen = Rc::clone(&got);
    duo.a.interface.set_handler(0, Some(Box::new(move |_| seen.set(true)))).expect("id");
    if duo.a.interface.attributes().emulated == Capabilities::NONE {
        // And a message that waits, and no completion.
        duo.insist(|| duo.b.ep().am_short(0, 0, &[]));
        wait(
            "the message",
            || duo.a.interface.arm(Events::RECEIVE) == Err(Error::Busy),
            || {
                duo.b.worker.progress();
                duo.rig.turn();
            },
        );
        assert_eq!(duo.a.interface.arm(Events::SEND_COMPLETION), Ok(()), "nothing was sent");
        duo.until("the message", || got.get());
    }
}

/// Arming within a handler is refused where a message may wait behind the handler's own.
pub fn no_arming_before_what_waits<R: Rig>() {
    let duo = Duo::<R>::new();
    let interface = Rc::downgrade(&duo.b.interface);
    duo.b.interface.event_descriptor().expect("a descriptor");
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&outcomes);
    let arm = move |_: &Message<'_>| {
        seen.borrow_mut().push(interface.upgrade().expect("in use").arm(Events::RECEIVE));
    };
    duo.b.interface.set_handler(0, Some(Box::new(arm))).expect("id");
    (0..2).for_each(|_| duo.insist(|| duo.a.ep().am_short(0, 0, &[])));
    duo.until("both messages", || outcomes.borrow().len() == 2);
    assert_eq!(outcomes.borrow()[0], Err(Error::Busy), "another waits");
}
