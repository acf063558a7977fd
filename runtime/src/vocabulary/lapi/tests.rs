//! Departures of tasks, failed places and malformed messages, in the books of a task: what no call of a program shows by itself.

use std::cell::RefCell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{null, null_mut, without_provenance};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::time::{Duration, Instant};

use super::arrive::lengths;
use super::domain::{Domain, enter_outside, wait};
use super::event::Event;
use super::failure::Failure;
use super::raw::{CompletionHandler, Handle, ReturnInfo};
use super::send::{Message, send};
use super::traffic::Collective;
use super::{Answer, Code, Counter, Lapi, Signal, codes, kind, own, port, raw};
use crate::error::Loss;
use crate::message::id;
use crate::{Completion, Settings, Threads, Transport};

/// Runs a program of every task in polling mode.
fn run(tasks: usize, program: impl Fn(&Lapi) + Sync) {
    run_with(tasks, Settings::default(), program);
}

/// As [`run`], with settings.
fn run_with(tasks: usize, settings: Settings, program: impl Fn(&Lapi) + Sync) {
    let job = Threads::new(tasks).settings(settings).deadline(Duration::from_secs(60));
    // No task begins while another is in the fence, which would tell it of errors.
    let begin = Barrier::new(tasks);
    let ran = job.build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        assert_eq!(raw::senv(lapi.number(), raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        lapi.gfence().expect("all are in polling mode");
        begin.wait();
        program(&lapi);
    });
    ran.expect("runs");
}

/// Makes progress until so many calls have returned `code`. All others succeed.
fn until_told(lapi: &Lapi, code: i32, times: usize) {
    let mut told = 0;
    while told < times {
        match raw::probe(lapi.number()) {
            codes::SUCCESS => std::thread::yield_now(),
            other => {
                assert_eq!(other, code, "{:?}", Failure::last(other));
                told += 1;
            }
        }
    }
}

/// Values that are no index and no function, which the calls of an origin refuse: the target does not call them, also of a vector message.
#[test]
fn a_target_calls_nothing_where_no_task_has_a_function() {
    const NOWHERE: [usize; 3] = [256, 4095, 1 << 60];
    // A fence would tell the next error.
    let told = Barrier::new(2);
    run(2, |lapi| {
        let (handle, never) = (lapi.number(), Counter::new());
        for handler in NOWHERE {
            if lapi.rank() == 0 {
                // Short, as a list without places.
                let described = [handler as u64, 0, 0, raw::GEN_IOVECTOR as u64 | 1 << 8, 0];
                let message = Message {
                    to: 1,
                    handler,
                    header: (null(), 0),
                    data: (null(), 0),
                    target: 0,
                    origin: Event::NONE,
                    completion: Event::counter(&never),
                };
                let header = (described.as_ptr().cast(), size_of_val(&described) as u32);
                for message in [message, Message { handler: own::AMV as usize, header, ..message }] {
                    let domain = port::enter(handle).expect("a handle");
                    // SAFETY: header and counter stay until the fence.
                    assert_eq!(unsafe { send(handle, domain, message, None) }, Ok(()));
                }
            }
            until_told(lapi, codes::NO_HNDLR_SET, 2);
            let text = Failure::last(codes::NO_HNDLR_SET).expect("it has a text").text;
            let expected =
                format!("{handler:#x} is neither an index of header handlers nor an address of a function of task 1");
            assert!(text.ends_with(&expected), "{text}");
            lapi.gfence().expect("nothing is under way");
            told.wait();
        }
        assert_eq!(never.value(), 0);
    });
}

/// Two long places of a vector fail. Its completion counter stands for one answer, and each place tells the origin of its failure.
#[test]
fn places_that_fail_take_one_answer_from_what_is_owed() {
    // The first page but one is not mapped, and only the kernel knows.
    const BAD: usize = 4096;
    const LEN: usize = 20_000;
    run(2, |lapi| {
        let (handle, never) = (lapi.number(), Counter::new());
        let mut data = vec![1u8; 2 * LEN];
        if lapi.rank() == 0 {
            // Another message with a completion counter, which has no answer yet.
            port::enter(handle).expect("a handle").owed.expect(1);
            let start = data.as_mut_ptr().cast::<c_void>();
            let mut from = [start, start.wrapping_byte_add(LEN)];
            let mut to = [BAD, BAD + 2 * LEN].map(|at| at as *mut c_void);
            let mut lengths = [[LEN as u64; 2]; 2];
            let [own, same] = &mut lengths;
            let vector = |info: &mut [*mut c_void; 2], len: &mut [u64; 2]| raw::Vector {
                vec_type: raw::GEN_IOVECTOR,
                num_vecs: 2,
                info: info.as_mut_ptr(),
                len: len.as_mut_ptr(),
            };
            let (org_vec, tgt_vec) = (vector(&mut from, own), vector(&mut to, same));
            // SAFETY: the data stays until the fence, and the places at the target are refused.
            let sent = unsafe { raw::putv(handle, 1, &tgt_vec, &org_vec, null(), null(), &never) };
            assert_eq!(sent, codes::SUCCESS);
        }
        until_told(lapi, codes::BAD_ADDRESS, 2);
        lapi.gfence().expect("nothing is under way");
        if lapi.rank() == 0 {
            let domain = port::enter(handle).expect("a handle");
            assert_eq!(domain.owed.tasks().collect::<Vec<_>>(), [1], "the other message has no answer yet");
            domain.owed.completed(1);
            assert!(!domain.owed.any() && never.value() == 0);
        }
        lapi.gfence().expect("the data is not read any more");
    });
}

/// Task 0 after all others have left: what is a loss for it, and what is not.
#[test]
fn a_task_that_left_is_lost_for_what_it_owes_and_is_not_purged() {
    run(3, |lapi| {
        if lapi.rank() != 0 {
            return;
        }
        let handle = lapi.number();
        let domain = port::enter(handle).expect("a handle");
        let job = &domain.world.engine().job;
        while (1..3).any(|task| job.loss(task) != Some(Loss::Left)) {
            std::thread::yield_now();
        }
        let (counter, shared) = (Counter::new(), Arc::new(Counter::new()));
        let event = Event::counter(&counter);
        let lost = || domain.check_not_left("a test").err().map(|code| Failure::last(code).and_then(|last| last.task));
        let purge = |task, purged: bool| {
            let call = if purged { raw::purge_totask } else { raw::resume_totask };
            assert_eq!(call(handle, task), codes::SUCCESS);
        };
        domain.fail_event(event, codes::NO_HNDLR_SET, 1);
        domain.signal(Signal::from(&shared), Err(codes::NO_HNDLR_SET), 1);
        assert_eq!(lost(), None, "task 1 has answered");
        purge(1, true);
        domain.fail_event(event, codes::PEER_LOST, 1);
        purge(1, false);
        assert_eq!(lost(), None, "nothing was expected of task 1");
        domain.signal(Signal::from(&shared), Err(codes::PEER_LOST), 1);
        assert_eq!(lost(), Some(Some(1)));
        purge(1, true);
        assert_eq!(lost(), None, "nothing is expected of task 1 any more");
        domain.fail_event(event, codes::PEER_LOST, 2);
        assert_eq!(lost(), Some(Some(2)), "task 1 is purged");
        assert_eq!((counter.value(), shared.value()), (0, 0));
    });
}

/// What no task of ours sends is an error, and counts for no barrier.
#[test]
fn a_malformed_barrier_message_is_told_and_not_counted() {
    let lost = codes::PEER_LOST as u64;
    // A task that is none, a round that no barrier has, and a call that is not known.
    let malformed = [[0, 0, lost, 3], [0, 0, lost, u64::MAX], [32, 0, 0, 0], [u64::MAX, 0, lost, 0], [0, 4, 0, 0]];
    run(2, |lapi| {
        if lapi.rank() == 0 {
            let domain = port::enter(lapi.number()).expect("a handle");
            malformed.iter().for_each(|words| domain.tell(1, kind::BARRIER, words));
        } else {
            until_told(lapi, codes::RUNTIME, malformed.len());
        }
        for _ in 0..2 {
            lapi.gfence().expect("its rounds have come whole");
        }
    });
}

/// Whether all tasks but task 0 have left.
fn others_left(domain: &Domain) -> bool {
    let job = &domain.world.engine().job;
    (1..domain.world.size()).all(|task| job.loss(task) == Some(Loss::Left))
}

/// Longer than a turn of a wait.
const LONG: Duration = Duration::from_millis(2);

/// Over TCP a poll delivers a part of what the tasks sent before they left. The wait's turns are over after each poll, and it gets all.
#[test]
fn a_turn_that_ends_amid_messages_has_not_found_that_nothing_comes() {
    const TASKS: usize = 9;
    // Few enough that a task can send all before this one polls; of all together a poll delivers a part.
    const EACH: i32 = 40;
    const ALL: i32 = EACH * (TASKS as i32 - 1);
    let settings = Settings { transport: Transport::Tcp, spin: Some(0), ..Settings::default() };
    let (begin, sent) = (Barrier::new(TASKS), AtomicUsize::new(0));
    run_with(TASKS, settings, |lapi| {
        let arrived = Arc::new(Counter::new());
        lapi.handler(1, |_, _| Answer::discard()).expect("an index of the table");
        lapi.target_event(1, &arrived).expect("an index of the table");
        lapi.gfence().expect("all are there");
        begin.wait();
        if lapi.rank() != 0 {
            (0..EACH).for_each(|_| lapi.message(0, 1).data(vec![1; 8]).target(1).send().expect("sends"));
            sent.fetch_add(1, Ordering::Release);
            return;
        }
        while sent.load(Ordering::Acquire) != TASKS - 1 {
            std::thread::yield_now();
        }
        // They leave when they know that all has arrived, which takes a poll or two.
        let mut patience = Duration::from_millis(500);
        let entered = enter_outside(lapi.number()).expect("a handle");
        let waited = wait(entered, "a test", |domain| {
            let begun = Instant::now();
            while begun.elapsed() < LONG || arrived.value() != 0 && begun.elapsed() < patience && !others_left(domain) {
                std::thread::yield_now();
            }
            patience -= patience.min(begun.elapsed());
            arrived.take(ALL)
        });
        assert_eq!(waited, Ok(0), "of {ALL}: {} have come", arrived.value());
        assert_eq!(lapi.wait(&arrived, 1), Err(Code(codes::PEER_LOST)), "all others have left");
    });
}

/// How often a wait has asked whether it is over.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Drops its message until the first poll of a wait is over.
unsafe extern "C-unwind" fn drop_in_the_poll(
    _: *mut Handle,
    _: *mut c_void,
    _: *mut u32,
    info: *mut u64,
    _: *mut Option<CompletionHandler>,
    _: *mut *mut c_void,
) -> *mut c_void {
    if ASKED.load(Ordering::Acquire) < 2 {
        // SAFETY: LAPI passes a valid pointer.
        unsafe { (*info.cast::<ReturnInfo>()).ctl_flags = raw::DROP_PKT };
    }
    null_mut()
}

/// The limit of a turn passes, and what follows, to see that nothing comes, brings the message of a task that has left.
#[test]
fn a_message_after_the_limit_of_a_turn_ends_the_wait() {
    static MOVED: Counter = Counter::new();
    // One poll in a turn.
    let settings = Settings { spin: Some(0), ..Settings::default() };
    let begin = Barrier::new(2);
    run_with(2, settings, |lapi| {
        let handle = lapi.number();
        // SAFETY: a header handler.
        let set = unsafe { raw::addr_set(handle, drop_in_the_poll as *const () as usize, 2) };
        assert_eq!(set, codes::SUCCESS);
        lapi.gfence().expect("both have the handler");
        begin.wait();
        if lapi.rank() == 1 {
            let (message, none) = (without_provenance(2), null());
            // SAFETY: there is no data, and the counter is static.
            let sent = unsafe { raw::amsend(handle, 0, message, null(), 0, null(), 0, &MOVED, none, none) };
            assert_eq!(sent, codes::SUCCESS);
            return;
        }
        let is_dropped = |domain: &Domain| !domain.transfers.dropped.borrow().is_empty();
        while !port::enter(handle).is_ok_and(|domain| others_left(&domain) && is_dropped(&domain)) {
            assert_eq!(raw::probe(handle), codes::SUCCESS);
            std::thread::yield_now();
        }
        // What polls without result note twice: task 0 is alone.
        (0..2).for_each(|_| assert_eq!(raw::probe(handle), codes::SUCCESS));
        let waited = wait(enter_outside(handle).expect("a handle"), "a test", |_| {
            ASKED.fetch_add(1, Ordering::Release);
            std::thread::sleep(LONG);
            MOVED.take(1)
        });
        assert_eq!((waited, MOVED.value()), (Ok(0), 0));
    });
}

/// Task 0 leaves with long data announced, and its end waits for a task that does not poll. A task that fetches the data meanwhile gets all of
/// it, or PEER_LOST: task 0 frees the data only when the others can see that it is lost.
#[test]
fn data_that_is_announced_outlives_the_news_of_the_loss() {
    const LEN: usize = 60_000;
    /// How long task 1 looks whether the data is freed too early, before it fetches the data.
    const PATIENCE: Duration = Duration::from_millis(50);
    for cross_memory_attach in [true, false] {
        let settings = Settings { cross_memory_attach, lane_depth: Some(1), ..Settings::default() };
        let data = Arc::new(vec![7; LEN]);
        let lent: Mutex<(u32, Weak<Vec<u8>>)> = Mutex::new((0, Arc::downgrade(&data)));
        let (data, taken) = (Mutex::new(Some(data)), AtomicBool::new(false));
        run_with(3, settings, |lapi| match lapi.rank() {
            0 => {
                let kept = Arc::new(AtomicBool::new(false));
                let is_kept = Arc::clone(&kept);
                // In a header handler a message that finds no room is kept.
                let handles = lapi.handler(2, move |context, _| {
                    (0..9).for_each(|_| context.send(2, 3, &[], &[]).expect("is sent or kept"));
                    is_kept.store(true, Ordering::Relaxed);
                    Answer::discard()
                });
                handles.expect("an index of the table");
                lapi.message(0, 2).send().expect("sends");
                while !kept.load(Ordering::Relaxed) {
                    assert_eq!(raw::probe(lapi.number()), codes::SUCCESS);
                }
                let data = data.lock().expect("no panic").take().expect("task 0 sends it once");
                lapi.message(1, 1).data(data).send().expect("sends");
                lent.lock().expect("no panic").0 = lapi.number();
            }
            1 => {
                let landed = Arc::new(Mutex::new(None));
                let lands = Arc::clone(&landed);
                let handles = lapi.handler(1, move |_, _| {
                    let lands = Arc::clone(&lands);
                    Answer::vec(Vec::new()).then_inline(move |_, landed| {
                        *lands.lock().expect("no panic") = Some(landed.into_vec());
                    })
                });
                handles.expect("an index of the table");
                let (peer, data) = loop {
                    let (peer, data) = lent.lock().expect("no panic").clone();
                    // It is taken from its port when the job is dropped.
                    if peer != 0 && port::enter_unless_busy(peer).is_err() {
                        break (peer, data);
                    }
                    std::thread::yield_now();
                };
                assert_ne!(peer, lapi.number());
                let is_lost = || {
                    let domain = port::enter(lapi.number()).expect("a handle");
                    domain.world.engine().job.loss(0).is_some()
                };
                let begun = Instant::now();
                while begun.elapsed() < PATIENCE {
                    let is_freed = data.strong_count() == 0;
                    assert!(!is_freed || is_lost(), "the data is freed, and peers do not know of the loss");
                    std::thread::yield_now();
                }
                let mut code = codes::SUCCESS;
                while code != codes::PEER_LOST && landed.lock().expect("no panic").is_none() {
                    code = raw::probe(lapi.number());
                }
                let landed = landed.lock().expect("no panic").take();
                assert!(landed.is_none_or(|landed| landed == [7; LEN]), "freed memory, attach: {cross_memory_attach}");
                taken.store(true, Ordering::Release);
            }
            _ => {
                while !taken.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            }
        });
    }
}

/// Sends messages to task 1 until there is no room for more.
fn fill(handle: Handle) {
    let nothing = [0, 0, lengths(0, 0)].map(u64::to_ne_bytes);
    let domain = port::enter(handle).expect("a handle");
    let send = || domain.world.messages().try_send(1, id::LAPI, 2, nothing.as_flattened());
    while send().expect("task 1 is there") {}
}

fn await_flag(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Task 0 makes a call of which the panic of a header handler comes out, and makes it again. If `is_full`, there is no room on the way to task 1,
/// so a call that sends waits. Task 1 makes a collective call once. After that the job goes on and ends.
fn panics_once(is_full: bool, collective: Option<fn(&Lapi)>, call: impl Fn(&Lapi, bool) + Sync) {
    let settings = Settings { lane_depth: Some(1), ..Settings::default() };
    let begin = Barrier::new(2);
    let [sent, caught, told, done, last, checked] = [const { AtomicBool::new(false) }; 6];
    run_with(2, settings, |lapi| {
        let handle = lapi.number();
        lapi.handler(1, |_, _| -> Answer { panic!("it is not wanted") }).expect("an index of the table");
        lapi.handler(2, |_, _| Answer::discard()).expect("an index of the table");
        lapi.gfence().expect("both have the handlers");
        begin.wait();
        if lapi.rank() == 0 {
            await_flag(&sent);
            if is_full {
                fill(handle);
            }
            let panic = catch_unwind(AssertUnwindSafe(|| call(lapi, false))).expect_err("a handler panics");
            assert_eq!(panic.downcast_ref(), Some(&"it is not wanted"));
            caught.store(true, Ordering::Release);
            call(lapi, true);
            while !told.load(Ordering::Acquire) {
                assert_eq!(raw::probe(handle), codes::SUCCESS);
            }
            done.store(true, Ordering::Release);
        } else {
            lapi.message(0, 1).send().expect("sends");
            sent.store(true, Ordering::Release);
            await_flag(&caught);
            until_told(lapi, codes::HANDLER_PANICKED, 1);
            told.store(true, Ordering::Release);
            collective.into_iter().for_each(|call| call(lapi));
            while collective.is_none() && !done.load(Ordering::Acquire) {
                assert_eq!(raw::probe(handle), codes::SUCCESS);
            }
        }
        if port::enter(handle).is_ok() {
            lapi.fence().expect("all is answered");
            lapi.gfence().expect("both are as far");
            if lapi.rank() == 0 {
                // Task 1 handles it after all rounds that this task has told.
                let handled = Arc::new(Counter::new());
                lapi.message(1, 2).completion(&handled).send().expect("sends");
                assert_eq!(lapi.wait(&handled, 1), Ok(0));
                last.store(true, Ordering::Release);
            } else {
                while !last.load(Ordering::Acquire) {
                    assert_eq!(raw::probe(handle), codes::SUCCESS);
                }
                let domain = port::enter(handle).expect("a handle");
                let next = domain.traffic.enter_barrier(Collective::Term);
                assert_eq!(domain.traffic.has_round(next), Ok(false), "a round is told once");
                domain.traffic.leave_behind(next);
                checked.store(true, Ordering::Release);
            }
            while !checked.load(Ordering::Acquire) {
                assert_eq!(raw::probe(handle), codes::SUCCESS);
            }
            assert_eq!(raw::term(handle), codes::SUCCESS);
        }
    });
}

/// The future of the message that was not sent ends in an error, and that of the next one without.
#[test]
fn a_panic_out_of_a_send_ends_the_events_of_its_message() {
    for len in [8, 20_000] {
        panics_once(true, None, |lapi, again| {
            if again {
                assert!(port::enter(lapi.number()).expect("a handle").deferred.borrow().is_empty(), "{len} bytes");
            }
            let completion = Completion::new();
            let send = || lapi.message(1, 2).data(vec![1; len]).origin(&completion).completion(&completion).send();
            let sent = catch_unwind(AssertUnwindSafe(send));
            let outcome = if sent.is_ok() { Ok(()) } else { Err(Code(codes::RUNTIME)) };
            assert_eq!(lapi.wait_completion(&completion), outcome, "{len} bytes");
            match sent {
                Ok(sent) => sent.expect("sends"),
                Err(panic) => resume_unwind(panic),
            }
        });
    }
}

/// The function of the origin event panics when the message was sent. Its completion event still comes.
#[test]
fn a_panic_of_an_origin_event_leaves_the_completion_event() {
    // The fence would tell of the panic.
    let begin = Barrier::new(2);
    run(2, |lapi| {
        lapi.handler(2, |_, _| Answer::discard()).expect("an index of the table");
        lapi.gfence().expect("both have the handler");
        begin.wait();
        if lapi.rank() == 0 {
            let completion = Completion::new();
            let origin = Signal::call(|_| panic!("it is not wanted"));
            let send = || lapi.message(1, 2).origin(origin).completion(&completion).send();
            catch_unwind(AssertUnwindSafe(send)).expect_err("the function panics");
            assert_eq!(lapi.wait_completion(&completion), Ok(()));
        }
        until_term(lapi);
    });
}

/// Ends the handle. The gfence before may report a panic that the program knows already.
fn until_term(lapi: &Lapi) {
    let fenced = lapi.gfence();
    assert!(matches!(fenced, Ok(()) | Err(Code(codes::HANDLER_PANICKED))), "{fenced:?}");
    assert_eq!(raw::term(lapi.number()), codes::SUCCESS);
}

/// A variable of task 1.
static THERE: AtomicU64 = AtomicU64::new(5);

#[test]
fn a_panic_out_of_a_get_leaves_no_answer_owed() {
    panics_once(true, None, |lapi, _| {
        let (mut here, arrived) = (0u64, Counter::new());
        let (from, to) = (THERE.as_ptr().cast_const().cast(), (&raw mut here).cast());
        // SAFETY: both are variables of this process, and this one stays until the counter has moved, or nothing was sent.
        let got = unsafe { raw::get(lapi.number(), 1, 8, from, to, null(), &arrived) };
        assert_eq!(got, codes::SUCCESS);
        assert_eq!((lapi.wait(&arrived, 1), here), (Ok(0), 5));
    });
}

#[test]
fn a_panic_out_of_an_atomic_operation_leaves_no_answer_owed() {
    panics_once(true, None, |lapi, again| {
        let there = THERE.as_ptr().cast();
        // SAFETY: the variable stays, and zero is added.
        let asked = unsafe { raw::rmw64(lapi.number(), raw::rmw_op::FETCH_AND_ADD, 1, there, &0, null_mut(), null()) };
        assert_eq!((asked, again), (codes::SUCCESS, true));
        lapi.fence().expect("it is answered");
    });
}

unsafe extern "C-unwind" fn panic_when_sent(_: *mut Handle, _: *mut c_void, _: *mut raw::SendInfo) {
    panic!("it is not wanted")
}

/// The function of an atomic operation panics in the poll that brings the answer.
#[test]
fn a_panic_of_an_atomic_operations_function_leaves_no_answer_owed() {
    // The fence would tell of the panic.
    let begin = Barrier::new(2);
    run(2, |lapi| {
        begin.wait();
        if lapi.rank() == 0 {
            let mut nothing = 0u64;
            let rmw = raw::transfer::Rmw {
                kind: raw::transfer::RMW,
                op: raw::rmw_op::FETCH_AND_ADD,
                tgt: 1,
                size: 64,
                tgt_var: THERE.as_ptr() as i64,
                in_val: (&raw mut nothing).cast(),
                prev_tgt_val: null_mut(),
                org_cntr: null_mut(),
                shdlr: Some(panic_when_sent),
                sinfo: null_mut(),
            };
            // SAFETY: the variable stays, and zero is added.
            assert_eq!(unsafe { raw::xfer(lapi.number(), (&raw const rmw).cast()) }, codes::SUCCESS);
            catch_unwind(AssertUnwindSafe(|| lapi.fence())).expect_err("the function panics");
            lapi.fence().expect("the operation is answered");
        }
        until_term(lapi);
    });
}

/// Puts or gets a word of task 1 as a vector of one place.
fn as_vector(lapi: &Lapi, gets: bool) {
    assert!(!port::enter(lapi.number()).expect("a handle").owed.any(), "of the call before");
    let (mut here, arrived) = (5u64, Counter::new());
    let (mut own, mut there, mut lengths) = ([(&raw mut here).cast()], [THERE.as_ptr().cast::<c_void>()], [8]);
    let len = lengths.as_mut_ptr();
    let vector = |info: *mut *mut c_void| raw::Vector { vec_type: raw::GEN_IOVECTOR, num_vecs: 1, info, len };
    let [own, there] = [vector(own.as_mut_ptr()), vector(there.as_mut_ptr())];
    // SAFETY: both are variables of this process, and this one stays until the counter has moved, or nothing was sent.
    let moved = unsafe {
        match gets {
            true => raw::getv(lapi.number(), 1, &there, &own, null(), &arrived),
            false => raw::putv(lapi.number(), 1, &there, &own, null(), null(), &arrived),
        }
    };
    assert_eq!(moved, codes::SUCCESS);
    assert_eq!((lapi.wait(&arrived, 1), here), (Ok(0), 5));
    assert!(port::enter(lapi.number()).expect("a handle").transfers.groups.borrow().is_empty());
}

#[test]
fn a_panic_out_of_a_vectors_transfer_leaves_no_answer_owed() {
    for gets in [true, false] {
        panics_once(true, None, |lapi, _| as_vector(lapi, gets));
    }
}

unsafe extern "C-unwind" fn count_sent(_: *mut Handle, parameter: *mut c_void, _: *mut raw::SendInfo) {
    // SAFETY: the caller of `xfer` gave this counter.
    unsafe { &*parameter.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_panic_out_of_a_transfer_leaves_no_function_behind() {
    let runs = AtomicUsize::new(0);
    panics_once(true, None, |lapi, _| {
        let handle = lapi.number();
        let left = || port::enter(handle).expect("a handle").deferred.borrow().len();
        assert_eq!(left(), 0, "of the call before");
        let am = raw::transfer::Am {
            kind: raw::transfer::AM,
            flags: 0,
            tgt: 1,
            hdr_hdl: 2,
            uhdr_len: 0,
            uhdr: null_mut(),
            udata: null_mut(),
            udata_len: 0,
            shdlr: Some(count_sent),
            sinfo: std::ptr::from_ref(&runs).cast_mut().cast(),
            tgt_cntr: 0,
            org_cntr: null_mut(),
            cmpl_cntr: null_mut(),
        };
        // SAFETY: no data, and the parameter outlives the job.
        let sent = unsafe { raw::xfer(handle, (&raw const am).cast()) };
        assert_eq!((sent, left()), (codes::SUCCESS, 0));
    });
    assert_eq!(runs.into_inner(), 1);
}

#[test]
fn a_panic_out_of_nopoll_wait_lets_the_next_one_wait() {
    let counter = Counter::new();
    panics_once(false, None, |lapi, again| {
        counter.set(again.into());
        // SAFETY: a valid counter.
        assert_eq!(unsafe { raw::nopoll_wait(lapi.number(), &counter, 1, null_mut()) }, codes::SUCCESS);
        assert!(port::enter(lapi.number()).expect("a handle").sleepers.borrow().is_empty());
    });
}

/// The panic comes while the fence waits, before the barrier, and in the barrier.
#[test]
fn a_gfence_that_a_panic_came_out_of_is_gone_on_with() {
    let fenced: fn(&Lapi) = |lapi| lapi.gfence().expect("both are in it");
    for in_fence in [true, false] {
        panics_once(false, Some(fenced), |lapi, again| {
            if in_fence && !again {
                lapi.message(1, 2).send().expect("there is room");
            }
            fenced(lapi);
        });
    }
}

/// Task 0 calls `Term` in place of a gfence that a panic ended. Task 1 has received the message of the gfence's round, or not.
#[test]
fn another_call_is_not_taken_for_one_that_a_panic_came_out_of() {
    let after: [fn(&Lapi); 2] = [
        |lapi| {
            lapi.gfence().expect("the other task was in it");
            assert_eq!(raw::term(lapi.number()), codes::SUCCESS);
        },
        |lapi| {
            assert_eq!(lapi.gfence(), Err(Code(codes::HANDLER_PANICKED)));
            let text = Failure::last(codes::HANDLER_PANICKED).expect("it has a text").text;
            assert!(text.starts_with("task 0 gave up a barrier"), "{text}");
            assert_eq!(raw::term(lapi.number()), codes::SUCCESS);
        },
    ];
    for (in_fence, after) in [false, true].into_iter().zip(after) {
        panics_once(false, Some(after), |lapi, again| {
            if again {
                return assert_eq!(raw::term(lapi.number()), codes::SUCCESS);
            }
            if in_fence {
                lapi.message(1, 2).send().expect("there is room");
            }
            lapi.gfence().expect("a handler panics");
        });
    }
}

#[test]
fn a_term_that_a_panic_came_out_of_is_gone_on_with() {
    let ended: fn(&Lapi) = |lapi| assert_eq!(raw::term(lapi.number()), codes::SUCCESS);
    panics_once(false, Some(ended), |lapi, _| ended(lapi));
}

mod ends;
mod panics;
mod purges;

thread_local! {
    /// The handle of this thread, for functions that cannot capture it.
    static OWN: RefCell<Option<Rc<Lapi>>> = const { RefCell::new(None) };
}

/// Functions of the origin event, the completion event and a target event, which run at once and in polls.
#[test]
fn the_function_of_an_event_can_neither_send_nor_wait() {
    const REFUSED: Option<i32> = Some(codes::IN_HANDLER);
    let tried = |lapi: &Lapi| {
        let sent = lapi.message(1, 2).send().err();
        [sent, lapi.wait(&Counter::new(), 0).err(), lapi.fence().err()].map(|code| code.map(|Code(code)| code))
    };
    let job = Threads::new(2).deadline(Duration::from_secs(60));
    let ran = job.build(|builder| {
        let lapi = Rc::new(Lapi::start(builder).expect("starts"));
        assert_eq!(raw::senv(lapi.number(), raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        OWN.set(Some(Rc::clone(&lapi)));
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let call = || {
            let outcomes = Arc::clone(&outcomes);
            Signal::call(move |outcome| {
                assert!(outcome.is_ok());
                let own = OWN.with_borrow(|own| own.as_ref().map(|lapi| tried(lapi)));
                outcomes.lock().expect("no panic").push(own.expect("on the thread of the calls"));
            })
        };
        // A closure that runs in the poll may reply, and so may not the function of the target event after it.
        let answers = lapi.handler(1, |_, _| Answer::discard().then_inline(|_, _| {}));
        answers.expect("an index of the table");
        lapi.target_event(3, call()).expect("an index of the table");
        lapi.gfence().expect("both have them");
        lapi.message(1 - lapi.rank(), 1).origin(call()).target(3).completion(call()).send().expect("sends");
        while outcomes.lock().expect("no panic").len() < 3 {
            assert_eq!(raw::probe(lapi.number()), codes::SUCCESS);
        }
        lapi.gfence().expect("both have seen all");
        assert_eq!(*outcomes.lock().expect("no panic"), [[REFUSED; 3]; 3]);
        OWN.set(None);
    });
    ran.expect("runs");
}
