//! U19 to U29: active messages.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, ThreadId};

use super::completions::counted;
use super::rig::*;
use crate::transport::lock::Mutex;
use crate::transport::*;

/// Uses both ends.
type Step<'a, R> = &'a dyn Fn(&Duo<R>);

/// Runs both ends under one lock, with a progress thread beside that serves but must run no callback. `work` gets what
/// takes the lock, and what waits until the thread has served everything that had come.
fn beside_progress_thread<R: Rig>(duo: Duo<R>, work: impl FnOnce(&dyn Fn(Step<'_, R>), &dyn Fn())) {
    struct Group<R: Rig>(Duo<R>);
    // SAFETY: two confined sides and their network, which is Sync.
    unsafe impl<R: Rig> Confined for Group<R> {}
    // SAFETY: nothing else refers into the pair; handlers set in these tests hold only what may move.
    let group = unsafe { Coarse::new(Group(duo)) };
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let helper = scope.spawn(|| {
            while !stop.load(SeqCst) {
                group.with(|Group(duo)| {
                    duo.a.interface.serve();
                    duo.b.interface.serve();
                    served.fetch_add(1, SeqCst);
                });
                thread::yield_now();
            }
        });
        // The thread ends in a panic, too.
        let end = Stop(&stop);
        let helped = || {
            for _ in 0..4 {
                group.with(|Group(duo)| while duo.rig.turn() {});
                let before = served.load(SeqCst);
                wait("the progress thread", || served.load(SeqCst) > before + 1, thread::yield_now);
            }
        };
        work(&|step| group.with(|Group(duo)| step(duo)), &helped);
        drop(end);
        join(vec![helper]);
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// U19: completions run on the thread that calls progress.
pub fn u19_completion_thread<R: Rig>() {
    let duo = Duo::<R>::new();
    let (_memory, key) = duo.remote(20_000);
    let source = duo.a.memory(20_000);
    let threads = Arc::new(Mutex::new(Vec::<ThreadId>::new()));
    let seen = Arc::clone(&threads);
    let completion = Completion::new(1, move |_| seen.lock().push(thread::current().id()));
    let (done, there) = (Completion::clone(&completion), Arc::clone(&threads));
    beside_progress_thread(duo, |with, helped| {
        for _ in 0..4 {
            let before = there.lock().len();
            done.reset(1);
            with(&|duo| {
                let iov = [Iov {
                    pointer: source.address(),
                    length: 20_000,
                    stride: 0,
                    count: 1,
                    region: Some(source.region()),
                }];
                // SAFETY: the buffer lives to the end.
                let posted = duo.insist(|| unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, Some(&done)) });
                if posted == Posted::Done {
                    done.complete(Ok(()));
                }
            });
            // The answer is here, and the thread has seen it.
            helped();
            wait("the completion", || there.lock().len() > before, || with(&|duo| duo.turn()));
        }
        wait(
            "a flush",
            || {
                let flushed = Cell::new(false);
                with(&|duo| flushed.set(duo.a.ep().flush(Flush::REMOTE, None) == Ok(Posted::Done)));
                flushed.get()
            },
            || with(&|duo| duo.turn()),
        );
    });
    assert!(threads.lock().iter().all(|id| *id == thread::current().id()));
}

/// U20: message handlers run on the thread that calls progress, though a progress thread takes messages off the wire.
pub fn u20_message_handler_thread<R: Rig>() {
    let duo = Duo::<R>::new();
    let threads = Arc::new(Mutex::new(Vec::<ThreadId>::new()));
    let seen = Arc::clone(&threads);
    let note = move |_: &Message<'_>| seen.lock().push(thread::current().id());
    duo.b.interface.set_handler(0, Some(Box::new(note))).expect("id");
    let count = R::rounds(500);
    beside_progress_thread(duo, |with, helped| {
        let mut sent = 0;
        wait(
            "all messages",
            || threads.lock().len() == count,
            || {
                if sent < count {
                    let went = Cell::new(false);
                    with(&|duo| {
                        went.set(duo.a.ep().am_short(0, 1, &[]).is_ok());
                        duo.rig.turn();
                    });
                    sent += usize::from(went.get());
                    if sent % 50 == 1 {
                        // The thread has taken the message.
                        helped();
                    }
                }
                with(&|duo| duo.turn());
            },
        );
    });
    assert!(threads.lock().iter().all(|id| *id == thread::current().id()));
}

/// U21: handlers send answers, queue those that find no room, and never nest.
pub fn u21_handlers_send_but_do_not_nest<R: Rig>() {
    let duo = Duo::<R>::new();
    let count = R::rounds(1_000_000) as u64;
    let (asked, answered, depth) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0)));
    let back = Rc::new(duo.b.connect(&duo.a.interface.address()));
    {
        let (asked, depth, interface) = (Rc::clone(&asked), Rc::clone(&depth), Rc::downgrade(&duo.b.interface));
        let back = Rc::clone(&back);
        let answer = move |m: &Message<'_>| {
            depth.set(depth.get() + 1);
            assert_eq!(depth.get(), 1, "handlers do not nest");
            let (number, _) = m.short().expect("a header");
            asked.set(asked.get() + 1);
            let interface = interface.upgrade().expect("in use");
            assert_eq!(interface.progress(), 0, "progress inside a handler does nothing");
            match back.am_short(1, number, &[]) {
                Ok(()) => {}
                Err(Error::NoResource) => {
                    let ep = Rc::clone(&back);
                    let request: Request = Box::new(move || match ep.am_short(1, number, &[]) {
                        Ok(()) => Resume::Done,
                        Err(Error::NoResource) => Resume::Stop,
                        Err(error) => panic!("{error}"),
                    });
                    if let Err(mut refused) = back.pending_add(request) {
                        assert_eq!(refused.error, Error::Busy);
                        assert_eq!((refused.request)(), Resume::Done);
                    }
                }
                Err(error) => panic!("{error}"),
            }
            depth.set(0);
        };
        duo.b.interface.set_handler(0, Some(Box::new(answer))).expect("id");
        let answered = Rc::clone(&answered);
        let note = move |_: &Message<'_>| answered.set(answered.get() + 1);
        duo.a.interface.set_handler(1, Some(Box::new(note))).expect("id");
    }
    let mut sent = 0;
    duo.until("all answers", || {
        while sent < count && duo.a.ep().am_short(0, sent, &[]).is_ok() {
            sent += 1;
        }
        // Let several messages wait at once: only then could handlers nest.
        for _ in 0..8 {
            duo.rig.turn();
        }
        answered.get() == count
    });
    assert_eq!(asked.get(), count);
    duo.b.interface.set_handler(0, None).expect("id");
}

/// U22: retained payloads stay as they are until they are dropped, and then their memory comes back.
pub fn u22_retention<R: Rig>() {
    let duo = Duo::<R>::new();
    let keep = R::rounds(1000);
    let len = duo.a.interface.attributes().am.max_bcopy.min(1000);
    let kept = Rc::new(RefCell::new(VecDeque::new()));
    let wanted = Rc::new(Cell::new(keep));
    let count = Rc::new(Cell::new(0));
    let (into, want, total) = (Rc::clone(&kept), Rc::clone(&wanted), Rc::clone(&count));
    let handler = move |m: &Message<'_>| {
        if into.borrow().len() < want.get() {
            into.borrow_mut().push_back(m.retain().expect("retainable"));
            assert!(m.retain().is_err(), "once");
        }
        total.set(total.get() + 1);
    };
    duo.b.interface.set_handler(0, Some(Box::new(handler))).expect("id");
    let send = |salt: usize| {
        duo.insist(|| {
            duo.a.ep().am_bcopy(0, len, |to| {
                to.copy_from_slice(&pattern(len, salt));
                len
            })
        });
    };
    let in_order = duo.a.interface.attributes().message_order == Order::Posted;
    (0..keep).for_each(send);
    duo.until("the first", || kept.borrow().len() == keep);
    let more = R::rounds(100_000);
    (0..more).for_each(|i| send(1_000_000 + i));
    duo.until("all", || count.get() == keep + more);
    let mut expected: Vec<Vec<u8>> = (0..keep).map(|salt| pattern(len, salt)).collect();
    let mut found: Vec<Vec<u8>> = kept.borrow().iter().map(|payload| payload.to_vec()).collect();
    if !in_order {
        expected.sort();
        found.sort();
    }
    assert!(expected == found, "kept bytes changed");
    // If the memory of dropped payloads were not free again, these messages would find none.
    for _ in 0..6 {
        kept.borrow_mut().clear();
        (0..keep).for_each(send);
        duo.until("as many again", || kept.borrow().len() == keep);
    }
    wanted.set(0);
    kept.borrow_mut().clear();
    (0..R::rounds(20_000)).for_each(send);
    duo.until("the rest", || count.get() == 7 * keep + more + R::rounds(20_000));
}

/// U23: retaining is refused where the message says that it cannot be retained.
pub fn u23_retainable_flag<R: Rig>() {
    let duo = Duo::<R>::new();
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&outcomes);
    let handler = move |m: &Message<'_>| {
        let said = m.retainable();
        let kept = m.retain();
        assert_eq!(said, kept.is_ok());
        assert!(!m.retainable());
        seen.borrow_mut().push((said, kept.ok().map(|bytes| bytes.to_vec() == m.data())));
    };
    duo.b.interface.set_handler(0, Some(Box::new(handler))).expect("id");
    duo.insist(|| duo.a.ep().am_short(0, 5, &[1]));
    let len = duo.a.interface.attributes().am.max_bcopy.min(3000);
    duo.insist(|| duo.a.ep().am_bcopy(0, len, |to| to.len()));
    duo.until("both", || outcomes.borrow().len() == 2);
    assert!(outcomes.borrow().iter().all(|(said, same)| *same == said.then_some(true)));
    let refused = Message::new(b"x", None).retain().expect_err("no flag, no retention");
    assert_eq!(refused.code(), -5);
}

/// U24: 32 ids; setting replaces; none drops; beyond is an error.
pub fn u24_message_ids<R: Rig>() {
    let duo = Duo::<R>::new();
    let (first, second) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let handler = |count: &Rc<Cell<u32>>| -> Option<MessageHandler> {
        let count = Rc::clone(count);
        Some(Box::new(move |_| count.set(count.get() + 1)))
    };
    for id in 0..MESSAGE_IDS as u8 {
        duo.b.interface.set_handler(id, handler(&first)).expect("32 of them");
        duo.b.interface.set_handler(id, handler(&second)).expect("replaces");
        duo.insist(|| duo.a.ep().am_short(id, 0, &[]));
    }
    duo.until("one each", || second.get() == 32);
    assert_eq!(first.get(), 0, "replaced handlers do not run");
    assert_eq!(duo.b.interface.set_handler(32, None).map_err(Error::code), Err(-5));
    assert_eq!(duo.a.ep().am_short(32, 0, &[]).map_err(Error::code), Err(-5));
    duo.b.interface.set_handler(7, None).expect("removes");
    duo.insist(|| duo.a.ep().am_short(7, 0, &[]));
    duo.insist(|| duo.a.ep().am_short(8, 0, &[]));
    duo.until("the one after", || second.get() == 33);
    duo.settle();
    assert_eq!(second.get(), 33, "dropped, not crashed");
}

/// U25: header, then payload; the limit counts the header.
pub fn u25_short_messages<R: Rig>() {
    let duo = Duo::<R>::new();
    let max = duo.a.interface.attributes().am.max_short;
    let got = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&got);
    duo.b.interface.set_handler(0, Some(Box::new(move |m| *seen.borrow_mut() = m.data().to_vec()))).expect("id");
    for len in [0, 1, max - 9, max - 8] {
        let payload = pattern(len, 3);
        duo.insist(|| duo.a.ep().am_short(0, 0x1122_3344_5566_7788, &payload));
        duo.until("the message", || got.borrow().len() == len + 8);
        assert_eq!(got.borrow()[..8], 0x1122_3344_5566_7788u64.to_ne_bytes());
        assert_eq!(got.take()[8..], payload);
    }
    let refused = duo.a.ep().am_short(0, 0, &vec![0; max - 7]).expect_err("one too many");
    assert!(matches!(refused, Error::ExceedsLimit { .. }));
}

/// U26: the call gives the packed length; the callback runs once for each success and never without room.
pub fn u26_packing_callback<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(64);
    let (calls, got) = (Cell::new(0usize), Rc::new(Cell::new(0usize)));
    let seen = Rc::clone(&got);
    duo.b
        .interface
        .set_handler(
            0,
            Some(Box::new(move |m| {
                assert_eq!(m.data(), [5; 9]);
                seen.set(seen.get() + 1);
            })),
        )
        .expect("id");
    let pack = |to: &mut [u8]| {
        calls.set(calls.get() + 1);
        assert_eq!(to.len(), 500);
        to[..9].fill(5);
        9
    };
    let mut successes = 0;
    let mut refused = 0;
    // The peer does not receive, so there is no room in the end.
    for _ in 0..20_000 {
        match duo.a.ep().am_bcopy(0, 500, pack) {
            Ok(length) => {
                assert_eq!(length, 9);
                successes += 1;
            }
            Err(Error::NoResource) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if refused > 3 {
            break;
        }
    }
    assert!(refused > 3, "room ends");
    assert_eq!(calls.get(), successes);
    duo.until("all", || got.get() == successes);
    calls.set(0);
    successes = 0;
    for _ in 0..200 {
        match duo.a.ep().put_bcopy(
            64,
            |to| {
                calls.set(calls.get() + 1);
                to[..9].fill(6);
                9
            },
            key.address,
            &key,
        ) {
            Ok(length) => successes += usize::from(length == 9),
            Err(error) => assert_eq!(error, Error::NoResource),
        }
    }
    assert_eq!(calls.get(), successes);
    duo.flush();
    assert_eq!(bytes(&memory)[..10], [6, 6, 6, 6, 6, 6, 6, 6, 6, 0]);
}

/// U27: a plain copy can be the callback; the limit is exact.
pub fn u27_packing_limit<R: Rig>() {
    let duo = Duo::<R>::new();
    let limit = duo.a.interface.attributes().am.max_bcopy;
    let got = Rc::new(Cell::new(0));
    let seen = Rc::clone(&got);
    duo.b.interface.set_handler(0, Some(Box::new(move |m| seen.set(m.data().len())))).expect("id");
    let source = pattern(limit + 1, 2);
    let copy = |to: &mut [u8]| {
        let len = to.len();
        to.copy_from_slice(&source[..len]);
        len
    };
    assert_eq!(duo.insist(|| duo.a.ep().am_bcopy(0, limit, copy)), limit);
    duo.until("the largest", || got.get() == limit);
    assert!(matches!(duo.a.ep().am_bcopy(0, limit + 1, copy), Err(Error::ExceedsLimit { .. })));
    let (_memory, key) = duo.remote(64 << 10);
    let limit = duo.a.interface.attributes().put.max_bcopy;
    let source = pattern(limit + 1, 2);
    let copy = |to: &mut [u8]| {
        let len = to.len();
        to.copy_from_slice(&source[..len]);
        len
    };
    assert_eq!(duo.insist(|| duo.a.ep().put_bcopy(limit, copy, key.address, &key)), limit);
    let refused = duo.a.ep().put_bcopy(limit + 1, copy, key.address, &key);
    assert!(matches!(refused, Err(Error::ExceedsLimit { .. })));
    duo.flush();
}

/// U28: the bytes that were read are handed to a callback, inside the call or later.
pub fn u28_get_packed<R: Rig>() {
    let duo = Duo::<R>::new();
    let limit = duo.a.interface.attributes().get.max_bcopy;
    let (memory, key) = duo.remote(limit + 1);
    let data = pattern(limit + 1, 9);
    // SAFETY: the peer's allocation, of this process.
    unsafe { memory.address().copy_from(data.as_ptr(), data.len()) };
    for len in [1, 8, limit] {
        let calls = Arc::new(AtomicUsize::new(0));
        let handed = Arc::clone(&calls);
        let completion = Completion::new(1, move |status| {
            assert_eq!((status, handed.load(SeqCst)), (Ok(()), 1), "the data comes before the completion");
        });
        let got = Rc::new(RefCell::new(Vec::new()));
        let posted = duo.insist(|| {
            let (calls, into) = (Arc::clone(&calls), Rc::clone(&got));
            let unpack = move |bytes: &[u8]| {
                calls.fetch_add(1, SeqCst);
                *into.borrow_mut() = bytes.to_vec();
            };
            duo.a.ep().get_bcopy(len, unpack, key.address + 1, &key, Some(&completion))
        });
        match posted {
            Posted::Done => assert_eq!(completion.count(), 1),
            Posted::InProgress => duo.until("the data", || completion.count() == 0),
        }
        assert_eq!(calls.load(SeqCst), 1);
        assert!(got.take() == data[1..].iter().copied().take(len).collect::<Vec<_>>());
    }
    let refused = duo.a.ep().get_bcopy(limit + 1, |_| panic!("not called"), key.address, &key, None);
    assert!(matches!(refused, Err(Error::ExceedsLimit { .. })));
}

/// U29: the header is copied at once; blocks go in order, empty ones are skipped.
pub fn u29_zero_copy_messages<R: Rig>() {
    let duo = Duo::<R>::new();
    let got = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&got);
    duo.b.interface.set_handler(0, Some(Box::new(move |m| *seen.borrow_mut() = m.data().to_vec()))).expect("id");
    let local = duo.a.memory(1024);
    let block = |at: usize, length: usize| Iov {
        pointer: local.address().wrapping_add(at),
        length,
        stride: length,
        count: 1,
        region: Some(local.region()),
    };
    let fill = |data: &[u8]| {
        // SAFETY: our allocation; what was sent from it is complete.
        unsafe { local.address().copy_from(data.as_ptr(), data.len()) };
    };
    let iov = [block(0, 5), block(5, 0), block(5, 7)];
    if !duo.a.can(Capabilities::AM_ZCOPY) {
        // SAFETY: refused.
        let refused = unsafe { duo.a.ep().am_zcopy(0, b"head", &iov, None) };
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        return;
    }
    fill(b"abcdeABCDEFG");
    let mut header = *b"head";
    // SAFETY: the blocks live past the flush.
    let _posted = duo.insist(|| unsafe { duo.a.ep().am_zcopy(0, &header, &iov, None) });
    header.fill(b'?');
    assert_eq!(&header, b"????");
    duo.until("the message", || !got.borrow().is_empty());
    assert_eq!(got.take(), b"headabcdeABCDEFG");
    duo.flush();
    // With a completion: inside the call nothing is copied on the way out where a device reads the blocks, so it is called
    // later, once; where the call has copied them to the receiver, never.
    let by_device = duo.a.domain.attributes().needs_region;
    let len = duo.a.interface.attributes().am.max_zcopy.min(1000);
    for round in 0..R::rounds(1000) {
        let data = pattern(len, round);
        fill(&data);
        let (completion, calls) = counted(1);
        // SAFETY: the blocks are left alone until the completion.
        let posted = duo.insist(|| unsafe { duo.a.ep().am_zcopy(0, b"", &[block(0, len)], Some(&completion)) });
        assert_eq!((completion.count(), calls.load(SeqCst)), (1, 0), "never inside the call");
        assert_eq!(posted, if by_device { Posted::InProgress } else { Posted::Done });
        if by_device {
            duo.until("the completion", || calls.load(SeqCst) == 1);
            assert_eq!(completion.count(), 0);
        }
        fill(&[0xee; 1000][..len]);
        duo.until("the message", || !got.borrow().is_empty());
        assert!(got.take() == data, "round {round}");
        duo.settle();
        assert_eq!(calls.load(SeqCst), u32::from(by_device), "called twice, or though the call was done");
    }
    // More blocks than any device gathers, and the flush in place of a completion.
    let many = Iov { pointer: local.address(), length: 1, stride: 3, count: 100, region: Some(local.region()) };
    let data = pattern(300, 7);
    fill(&data);
    // SAFETY: the blocks are left alone until the flush.
    let _posted = duo.insist(|| unsafe { duo.a.ep().am_zcopy(0, b"", &[many], None) });
    duo.until("a flush", || duo.a.ep().flush(Flush::LOCAL, None) == Ok(Posted::Done));
    fill(&[0xee; 300]);
    duo.until("the message", || !got.borrow().is_empty());
    assert!(got.take().into_iter().eq(data.into_iter().step_by(3)));
    // A message that is in flight when it is cancelled ends with `Canceled`.
    let (completion, calls) = counted(1);
    // SAFETY: the blocks live to the end.
    let posted = duo.insist(|| unsafe { duo.a.ep().am_zcopy(0, b"", &[block(0, 5)], Some(&completion)) });
    assert!(duo.a.ep().flush(Flush::CANCEL, None).is_ok());
    duo.settle();
    let ended = posted == Posted::InProgress;
    assert_eq!(calls.load(SeqCst), u32::from(ended));
    assert_eq!(completion.status(), if ended { Err(Error::Canceled) } else { Ok(()) });
}
