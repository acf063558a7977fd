//! Active messages with closures: between threads, and on simulated networks.

mod fixture;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellwether_runtime::transport::sim::Config;
use bellwether_runtime::vocabulary::lapi::{
    Announced, Answer, Code, Counter, Failure, HandlerContext, Landed, Lapi, Signal, What, codes, raw,
};
use bellwether_runtime::{Builder, Completion, Settings, Simulated, Threads};
use bellwether_tests::lapi::closures;
use bellwether_tests::watchdog;
use fixture::Case;

const LIMIT: Duration = Duration::from_secs(60);

thread_local! {
    /// This thread gets no memory in pieces of so many bytes, from the first number to the one before the second.
    static REFUSED: Cell<(usize, usize)> = const { Cell::new((usize::MAX, usize::MAX)) };
    /// For handlers on the thread of the task.
    static OF_THREAD: RefCell<Option<Rc<Lapi>>> = const { RefCell::new(None) };
}

/// The system's memory, as far as a thread gets it.
struct Limited;

impl Limited {
    fn gives(size: usize) -> bool {
        // Fails in a thread that ends, which is not limited.
        REFUSED.try_with(Cell::get).map_or(true, |(least, end)| !(least..end).contains(&size))
    }
}

// SAFETY: the system's memory, or null.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are the same.
        if Limited::gives(layout.size()) { unsafe { System.alloc(layout) } } else { null_mut() }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory is the system's.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        if Limited::gives(size) { unsafe { System.realloc(start, layout, size) } } else { null_mut() }
    }
}

#[global_allocator]
static MEMORY: Limited = Limited;

/// Runs a program of every task in several surroundings.
fn run(name: &str, program: fn(Builder)) {
    let _guard = watchdog::guard(name, LIMIT);
    let mut narrow = Settings::default();
    (narrow.cross_memory_attach, narrow.message_memory, narrow.lane_depth) = (false, 16 << 10, Some(1));
    for (ranks, settings) in [(1, Settings::default()), (2, Settings::default()), (3, narrow)] {
        watchdog::at(format!("{name}: {ranks} tasks"));
        Threads::new(ranks).settings(settings).build(program).expect("runs");
    }
    for config in [Config::new(2, 5), Config::new(3, 7).wild()] {
        watchdog::at(format!("{name}: simulated"));
        Simulated::new(config).build(program).expect("runs");
    }
}

#[test]
fn data_lands_in_vectors_and_completions_run_in_both_ways() {
    run("data_lands", |builder| with(builder, closures::owned_vectors));
}

#[test]
fn events_move_counters_ring_bells_end_futures_and_call_functions() {
    run("events", |builder| with(builder, closures::events));
}

fn with(builder: Builder, program: fn(&Lapi)) {
    let lapi = Lapi::start(builder).expect("starts");
    program(&lapi);
    lapi.finish().expect("finishes");
}

#[test]
fn handlers_send_and_take_short_data_where_it_is() {
    run("handlers_send", |builder| {
        let lapi = Lapi::start(builder).expect("starts");
        let (me, n) = (lapi.rank(), lapi.size());
        let sum = Arc::new(AtomicUsize::new(0));
        let adds = Arc::clone(&sum);
        // The header handler answers, and so does the completion handler.
        let asks = lapi.handler(7, |context, announced| {
            let data = announced.data().expect("it is short");
            context.send(announced.from(), 8, &[], data).expect("kept if there is no room");
            Answer::discard().then_inline(|context, landed| {
                assert!(landed.header() == [1; 4]);
                context.send(landed.from(), 8, &[], &[100]).expect("kept if there is no room");
                assert!(landed.into_vec().is_empty(), "discarded");
            })
        });
        asks.expect("an index of the table");
        let adds_up = lapi.handler(8, move |_, announced| {
            let data = announced.data().expect("it is short");
            adds.fetch_add(data.iter().map(|byte| usize::from(*byte)).sum(), Ordering::Relaxed);
            Answer::discard()
        });
        adds_up.expect("an index of the table");
        lapi.gfence().expect("all have registered");
        let handled = Arc::new(Counter::new());
        for round in 0..50 {
            for to in 0..n {
                let message = lapi.message(to, 7).header(&[1; 4]).data(vec![1, 2, round % 3]);
                message.completion(&handled).send().expect("sends");
            }
        }
        lapi.wait(&handled, 50 * n as i32).expect("all are handled");
        // What handlers sent is fenced as what this task sends.
        lapi.gfence().expect("nothing is wrong");
        assert_eq!(sum.load(Ordering::Relaxed), n * (50 * 103 + (0..50).map(|round| round % 3).sum::<usize>()), "{me}");
        lapi.finish().expect("finishes");
    });
}

/// `restart` ends the handle with what belongs to it, and makes another.
#[test]
fn a_restart_makes_another_handle() {
    run("a restart", |builder| {
        let mut lapi = Lapi::start(builder).expect("starts");
        let next = (lapi.rank() + 1) % lapi.size();
        let counts = |lapi: &Lapi| {
            let came = Arc::new(AtomicUsize::new(0));
            let (inline, queued) = (Arc::clone(&came), Arc::clone(&came));
            let handler = move |_: &HandlerContext<'_>, _: &Announced<'_>| {
                inline.fetch_add(1, Ordering::Relaxed);
                let queued = Arc::clone(&queued);
                Answer::vec(Vec::new()).then(move |_, _| _ = queued.fetch_add(1, Ordering::Relaxed))
            };
            lapi.handler(1, handler).expect("an index of the table");
            lapi.gfence().expect("all have registered");
            came
        };
        // SAFETY: no handler uses it, and it is not used for `term`.
        let mut handle = unsafe { lapi.handle() };
        for len in [8, 100_000] {
            let bell = lapi.bell().expect("makes a bell");
            let came = counts(&lapi);
            lapi.message(next, 1).data(vec![1; len]).send().expect("sends");
            watchdog::at("a restart");
            lapi.restart().expect("makes another");
            assert_eq!(came.load(Ordering::Relaxed), 2, "it waits for handlers");
            assert_eq!(Arc::strong_count(&came), 1, "handlers are dropped with their handle");
            assert_eq!(raw::fence(handle), codes::HNDL_INVALID);
            // SAFETY: as above.
            handle = unsafe { lapi.handle() };
            assert_eq!(lapi.wait_bell(bell, 0), Err(Code(codes::HNDL_INVALID)));
        }
        let came = counts(&lapi);
        let done = Arc::new(Counter::new());
        lapi.message(next, 1).completion(&done).send().expect("sends");
        assert_eq!(lapi.wait(&done, 1), Ok(0));
        lapi.finish().expect("finishes");
        assert_eq!(came.load(Ordering::Relaxed), 2);
    });
}

/// The function of a target event panics, on the thread that ran the completion handler. Both tasks are told, and that thread goes on.
#[test]
fn a_target_event_that_panics_ends_its_message_alone() {
    run("a target event panics", |builder| {
        let lapi = Lapi::start(builder).expect("starts");
        let (me, n) = (lapi.rank(), lapi.size());
        let handler =
            |_: &HandlerContext<'_>, _: &Announced<'_>| Answer::vec(Vec::new()).then(|_, landed| drop(landed));
        lapi.handler(1, handler).expect("an index of the table");
        lapi.target_event(1, Signal::call(|_| panic!("a function of the test"))).expect("an index of the table");
        // As the origin, and as the target of the task before, which may be ahead.
        let mut told = 0;
        if let Err(Code(code)) = lapi.gfence() {
            assert_eq!(code, codes::HANDLER_PANICKED);
            told += 1;
        }
        let (done, own) = (Completion::new(), Arc::new(Counter::new()));
        lapi.message((me + 1) % n, 1).data(vec![1; 8]).target(1).completion(&done).send().expect("sends");
        watchdog::at("the event that does not come");
        loop {
            match lapi.wait_completion(&done) {
                Err(Code(codes::HANDLER_PANICKED)) => told += 1,
                Err(Code(code)) => break assert_eq!(code, codes::RUNTIME),
                Ok(()) => panic!("it cannot come"),
            }
        }
        watchdog::at("the next handlers");
        while told < 2 {
            lapi.message(me, 1).completion(&own).send().expect("sends");
            while let Err(Code(code)) = lapi.wait(&own, 1) {
                assert_eq!(code, codes::HANDLER_PANICKED);
                told += 1;
            }
        }
        assert_eq!(told, 2, "each once");
        lapi.gfence().expect("nothing else is wrong");
        lapi.finish().expect("finishes");
    });
}

/// Handlers of a message panic, and the function of its target event, which is told so, does as well: in the header handler, in the
/// completion handler in its place, and in one of the handlers' thread, which goes on.
#[test]
fn a_target_event_may_panic_when_it_is_told_of_a_panic() {
    run("a target event of a panic", |builder| {
        let lapi = Lapi::start(builder).expect("starts");
        let me = lapi.rank();
        let takes = |_: &HandlerContext<'_>, _: &Announced<'_>| Answer::vec(Vec::new());
        lapi.handler(1, |_, _| panic!("a header handler of the test")).expect("an index of the table");
        let inline = move |context: &HandlerContext<'_>, announced: &Announced<'_>| {
            takes(context, announced).then_inline(|_, _| panic!("a completion handler of the test"))
        };
        lapi.handler(2, inline).expect("an index of the table");
        let queued = move |context: &HandlerContext<'_>, announced: &Announced<'_>| {
            takes(context, announced).then(|_, _| panic!("a completion handler of the test"))
        };
        lapi.handler(3, queued).expect("an index of the table");
        let whole = move |context: &HandlerContext<'_>, announced: &Announced<'_>| {
            takes(context, announced).then(|_, landed| drop(landed))
        };
        lapi.handler(4, whole).expect("an index of the table");
        let called = Arc::new(AtomicUsize::new(0));
        for index in 1..4 {
            let called = Arc::clone(&called);
            let told = Signal::call(move |outcome| {
                called.fetch_add(1, Ordering::Relaxed);
                outcome.expect("told of a panic");
            });
            lapi.target_event(index, told).expect("an index of the table");
        }
        // A panic comes out of the call that ran the handler, too.
        let quietly = |call: &dyn Fn() -> Result<(), Code>| {
            catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Code(codes::HANDLER_PANICKED)))
        };
        for index in 1..4 {
            watchdog::at(format!("handler {index}"));
            let done = Completion::new();
            lapi.message(me, index).data(vec![1; 8]).target(index).completion(&done).send().expect("sends");
            loop {
                match quietly(&|| lapi.wait_completion(&done)) {
                    Err(Code(codes::HANDLER_PANICKED)) => {}
                    Err(Code(code)) => break assert_eq!(code, codes::RUNTIME),
                    Ok(()) => panic!("its handler has panicked"),
                }
            }
        }
        watchdog::at("the next handlers");
        loop {
            let own = Arc::new(Counter::new());
            lapi.message(me, 4).completion(&own).send().expect("sends");
            while quietly(&|| lapi.wait(&own, 1).map(drop)).is_err() {}
            if called.load(Ordering::Relaxed) == 3 {
                break;
            }
        }
        while quietly(&|| lapi.fence()).is_err() {}
        lapi.gfence().expect("all is told");
        assert_eq!(called.load(Ordering::Relaxed), 3, "each once");
        lapi.finish().expect("finishes");
    });
}

/// A task leaves in order, and is no error of a wait. Events that only it could let happen fail all the same, so that waits for them end.
/// Nothing but the wait makes progress.
#[test]
fn a_wait_for_an_event_of_a_task_that_leaves_ends() {
    let _guard = watchdog::guard("a task leaves", LIMIT);
    let meet = std::sync::Barrier::new(2);
    let mut settings = Settings::default();
    settings.cross_memory_attach = false;
    let ran = Threads::new(2).settings(settings).build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        // SAFETY: no handler uses it, and nobody ends it.
        let handle = unsafe { lapi.handle() };
        assert_eq!(raw::senv(handle, raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        lapi.handler(1, |_, _| Answer::discard()).expect("an index of the table");
        lapi.gfence().expect("both have registered");
        // From here on task 1 makes no progress.
        meet.wait();
        let events = [Completion::new(), Completion::new()];
        if lapi.rank() == 0 {
            let [short, long] = &events;
            lapi.message(1, 1).data(vec![1; 8]).completion(short).send().expect("sends");
            lapi.message(1, 1).data(vec![1; 100_000]).origin(long).send().expect("sends");
        }
        meet.wait();
        if lapi.rank() == 0 {
            for event in &events {
                watchdog::at("an event that cannot come");
                assert_eq!(lapi.wait_completion(event), Err(Code(codes::PEER_LOST)));
            }
        }
    });
    ran.expect("runs");
}

#[test]
fn what_cannot_be_sent_is_refused_and_holds_nothing() {
    run("refused", |builder| {
        let lapi = Lapi::start(builder).expect("starts");
        for index in [0, 256] {
            assert_eq!(lapi.handler(index, |_, _| Answer::discard()), Err(Code(codes::ADDR_HNDL_RANGE)));
        }
        let (counter, data) = (Arc::new(Counter::new()), Arc::new(vec![1; 100_000]));
        let n = lapi.size();
        let send = |to, index, header: &[u8]| {
            let message = lapi.message(to, index).header(header).data(Arc::clone(&data));
            message.origin(&counter).completion(&counter).send()
        };
        assert_eq!(send(n, 1, &[]), Err(Code(codes::TGT)));
        assert_eq!(send(usize::MAX, 1, &[]), Err(Code(codes::TGT)));
        assert_eq!(send(0, 0, &[]), Err(Code(codes::HDR_HNDLR_NULL)));
        assert_eq!(send(0, 256, &[]), Err(Code(codes::HDR_HNDLR_NULL)));
        assert_eq!(send(0, 1, &[0; 3]), Err(Code(codes::UHDR_LEN)));
        assert_eq!(send(0, 1, &[0; 2000]), Err(Code(codes::UHDR_LEN)));
        assert_eq!((counter.value(), Arc::strong_count(&counter), Arc::strong_count(&data)), (0, 1, 1));
        assert!(Code(codes::TGT).to_string().ends_with("(LAPI code 428)"), "{}", Code(codes::TGT));
        lapi.gfence().expect("nothing was sent");
        lapi.finish().expect("finishes");
    });
}

/// Runs `tries` in a queued and in an inline completion handler of the next task, and waits until those of all tasks have run.
fn in_handlers(lapi: &Lapi, tries: impl Fn() + Clone + Send + 'static) {
    for (index, inline) in [(1, false), (2, true)] {
        let tries = tries.clone();
        let handler = move |_: &HandlerContext<'_>, _: &Announced<'_>| {
            let tries = tries.clone();
            let then = move |_: &HandlerContext<'_>, _: Landed| tries();
            if inline { Answer::discard().then_inline(then) } else { Answer::discard().then(then) }
        };
        lapi.handler(index, handler).expect("an index of the table");
    }
    lapi.gfence().expect("all have registered");
    let (next, done) = ((lapi.rank() + 1) % lapi.size(), Arc::new(Counter::new()));
    for index in [1, 2] {
        lapi.message(next, index).completion(&done).send().expect("sends");
    }
    assert_eq!(lapi.wait(&done, 2), Ok(0));
    // All tasks have waited for the handlers of their messages.
    lapi.gfence().expect("nobody is in a collective alone");
}

/// A handler that got the number of the handle from somewhere cannot enter a collective with it, queued or inline.
#[test]
fn a_handler_enters_no_collective_by_a_number() {
    run("a number", |builder| {
        let lapi = Lapi::start(builder).expect("starts");
        // SAFETY: what the handlers call with it is refused.
        let handle = unsafe { lapi.handle() };
        let found: Arc<Mutex<Vec<i32>>> = Arc::default();
        let codes = Arc::clone(&found);
        in_handlers(&lapi, move || {
            // SAFETY: refused.
            let exchanged = unsafe { raw::address_init(handle, 1, [0; 8].as_mut_ptr()) };
            let refused = [raw::gfence(handle), raw::fence(handle), exchanged, raw::term(handle)];
            codes.lock().expect("no panic").extend(refused);
        });
        assert_eq!(*found.lock().expect("no panic"), [codes::IN_HANDLER; 8]);
        lapi.finish().expect("finishes");
    });
}

/// A handler that runs on the thread of its task finds the job there. Its calls that wait are refused.
#[test]
fn a_handler_waits_by_no_value_of_its_thread() {
    run("a value of the thread", |builder| {
        let lapi = Rc::new(Lapi::start(builder).expect("starts"));
        OF_THREAD.set(Some(Rc::clone(&lapi)));
        // SAFETY: no handler uses it.
        let handle = unsafe { lapi.handle() };
        // Where there are threads, one of its own runs closures that are not inline in interrupt mode.
        raw::senv(handle, raw::query::INTERRUPT_SET, 0);
        let bell = lapi.bell().expect("makes a bell");
        let found: Arc<Mutex<Vec<_>>> = Arc::default();
        let codes = Arc::clone(&found);
        in_handlers(&lapi, move || {
            let Some(lapi) = OF_THREAD.with_borrow(Option::clone) else { return };
            let refused = [
                lapi.bell().err(),
                lapi.wait(&Counter::new(), 1).err(),
                lapi.wait_bell(bell, 1).err(),
                lapi.wait_completion(&Completion::new()).err(),
            ];
            codes.lock().expect("no panic").extend(refused);
        });
        let found = std::mem::take(&mut *found.lock().expect("no panic"));
        assert!(found.len() >= 4 && found.iter().all(|code| *code == Some(Code(codes::IN_HANDLER))), "{found:?}");
        OF_THREAD.set(None);
        Rc::into_inner(lapi).expect("no handler runs").finish().expect("finishes");
    });
}

/// The task that is asked for places has no memory to send them: both are told, no counter moves, and the fence ends.
#[test]
fn places_for_which_the_target_has_no_memory_are_an_error_at_both_ends() {
    let _guard = watchdog::guard("no memory for places", LIMIT);
    let ran = Threads::new(2).build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        let (me, n) = (lapi.rank(), lapi.size());
        // SAFETY: no handler uses it.
        let handle = unsafe { lapi.handle() };
        assert_eq!(raw::senv(handle, raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        let ready = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&ready);
        let meets = lapi.handler(9, move |_, _| {
            counts.fetch_add(1, Ordering::Relaxed);
            Answer::discard()
        });
        meets.expect("an index of the table");
        let own = vec![5u8; 6400];
        let mut addresses = vec![0; n];
        // SAFETY: room for a value of each task.
        let exchanged = unsafe { raw::address_init(handle, own.as_ptr() as u64, addresses.as_mut_ptr()) };
        assert_eq!(exchanged, codes::SUCCESS);
        let (there, mut here) = (addresses[1 - me], vec![0u8; 12_800]);
        let mut from: Vec<*mut c_void> = (0..64).map(|i| (there + 100 * i) as *mut c_void).collect();
        // Not side by side: they stay 64 places.
        let mut to: Vec<*mut c_void> = here.chunks_mut(200).map(|place| place.as_mut_ptr().cast()).collect();
        let mut lengths = [100; 64];
        let mut vector = |info: &mut [*mut c_void]| raw::Vector {
            vec_type: raw::GEN_IOVECTOR,
            num_vecs: 64,
            info: info.as_mut_ptr(),
            len: lengths.as_mut_ptr(),
        };
        let (from, to) = (vector(&mut from), vector(&mut to));
        let never = Counter::new();
        // From here on this task makes progress without memory only.
        lapi.message(1 - me, 9).send().expect("sends");
        watchdog::at("what is missing");
        let (mut told, mut asked) = (0, false);
        while told < 2 {
            REFUSED.set((4096, usize::MAX));
            let code = raw::probe(handle);
            REFUSED.set((usize::MAX, usize::MAX));
            if code != codes::SUCCESS {
                let Failure { what, task, text, .. } = Failure::last(code).expect("it has a text");
                assert_eq!((code, what, task), (codes::MEMORY_EXHAUSTED, What::Get, Some(1 - me)), "{text}");
                assert!(text.contains("has no memory for 6400 bytes"), "{text}");
                told += 1;
            }
            if ready.load(Ordering::Relaxed) != 0 && !std::mem::replace(&mut asked, true) {
                // SAFETY: the places stay until the fence.
                assert_eq!(unsafe { raw::getv(handle, 1 - me as u32, &from, &to, null(), &never) }, codes::SUCCESS);
            }
        }
        lapi.fence().expect("nothing is under way");
        lapi.gfence().expect("all is told");
        assert_eq!((never.value(), here.iter().all(|byte| *byte == 0)), (0, true));
        lapi.finish().expect("finishes");
        drop(own);
    });
    ran.expect("runs");
}

/// A header handler of vectors: names the places whose address the user header is.
unsafe extern "C-unwind" fn name_places(
    _: *mut raw::Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    _: *mut u64,
    _: *mut Option<raw::CompletionHandler>,
    _: *mut *mut c_void,
) -> *mut raw::Vector {
    // SAFETY: the test sends the address of a vector of this task.
    unsafe { uhdr.cast::<*mut raw::Vector>().read() }
}

/// A task has no memory for the list of the places that it gets, or that its header handler names. The get is refused, and the message is
/// an error at both ends. No counter moves, and the fence ends.
#[test]
fn a_list_of_places_for_which_there_is_no_memory_is_an_error() {
    const PLACES: usize = 10_000;
    /// The list takes 24 bytes a place, and the message of a vector 16.
    const LEAST: usize = 20 * PLACES;
    let _guard = watchdog::guard("no memory for a list", LIMIT);
    let meet = std::sync::Barrier::new(2);
    let ran = Threads::new(2).build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        let other = 1 - lapi.rank();
        // SAFETY: no handler uses it.
        let handle = unsafe { lapi.handle() };
        assert_eq!(raw::senv(handle, raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        // SAFETY: a header handler of vectors.
        assert_eq!(unsafe { raw::addr_set(handle, name_places as *const () as usize, 2) }, codes::SUCCESS);
        let of_other = |mine: u64| {
            let mut all = [0; 2];
            // SAFETY: room for a value of each task.
            assert_eq!(unsafe { raw::address_init(handle, mine, all.as_mut_ptr()) }, codes::SUCCESS);
            all[other]
        };
        let source: Vec<u32> = (0..2 * PLACES as u32).collect();
        let mut here = vec![0u32; 2 * PLACES];
        // Four bytes of eight, and so many pieces.
        let strided = |places: &mut [u64; 3]| raw::Vector {
            vec_type: raw::GEN_STRIDED_XFER,
            num_vecs: PLACES as u32,
            info: places.as_mut_ptr().cast(),
            len: null_mut(),
        };
        let (own, there) = (source.as_ptr() as u64, of_other(source.as_ptr() as u64));
        let mut places = [own, there, here.as_mut_ptr() as u64].map(|start| [start, 4, 8]);
        let [own, there, mut to] = places.each_mut().map(strided);
        let named = of_other(&raw mut to as u64);
        let counter = Counter::new();
        // SAFETY: the places stay until the fence.
        let get = || unsafe { raw::getv(handle, other as u32, &there, &to, null(), &counter) };
        watchdog::at("without memory");
        REFUSED.set((LEAST, usize::MAX));
        assert_eq!(get(), codes::MEMORY_EXHAUSTED);
        REFUSED.set((usize::MAX, usize::MAX));
        lapi.gfence().expect("nothing was asked for");
        // The list of the places, and the lists of lengths and addresses that came with the message.
        for refused in [(LEAST, usize::MAX), (8 * PLACES, 8 * PLACES + 1)] {
            meet.wait();
            let (handler, uhdr) = (std::ptr::without_provenance(2), (&raw const named).cast());
            // SAFETY: the places stay until the fence.
            let sent =
                unsafe { raw::amsendv(handle, other as u32, handler, uhdr, 8, &own, null(), &counter, &counter) };
            assert_eq!(sent, codes::SUCCESS);
            meet.wait();
            REFUSED.set(refused);
            // As the origin, and as the target of the other task.
            let mut told = 0;
            while told < 2 {
                let code = raw::probe(handle);
                if code != codes::SUCCESS {
                    let Failure { what, task, text, .. } = Failure::last(code).expect("it has a text");
                    assert_eq!((code, what, task), (codes::MEMORY_EXHAUSTED, What::Message, Some(other)), "{text}");
                    assert!(text.contains("has no memory for 240000 bytes"), "{text}");
                    told += 1;
                }
            }
            meet.wait();
            REFUSED.set((usize::MAX, usize::MAX));
            lapi.gfence().expect("nothing is under way");
        }
        assert_eq!((counter.value(), here.iter().all(|word| *word == 0)), (0, true));
        watchdog::at("with memory");
        assert_eq!(get(), codes::SUCCESS);
        assert_eq!(lapi.wait(&counter, 1), Ok(0));
        let is_right = |(i, word): (usize, &u32)| *word == if i % 2 == 0 { i as u32 } else { 0 };
        assert!(here.iter().enumerate().all(is_right));
        lapi.finish().expect("finishes");
    });
    ran.expect("runs");
}

/// A task that has left has not failed. Still nothing comes from it.
#[test]
fn no_fence_and_no_counter_waits_for_a_task_that_has_left() {
    let _guard = watchdog::guard("a task that has left", LIMIT);
    let program = |builder: Builder| {
        let lapi = Lapi::start(builder).expect("starts");
        lapi.handler(5, |_, _| Answer::vec(Vec::new())).expect("an index of the table");
        lapi.gfence().expect("all are there");
        if lapi.rank() == 2 {
            return;
        }
        let lost = Code(codes::PEER_LOST);
        if lapi.rank() == 0 {
            // It may take some before it leaves.
            let (handled, mut outcome) = (Arc::new(Counter::new()), Ok(0));
            while outcome.is_ok() {
                let sent = lapi.message(2, 5).data(vec![1; 100_000]).completion(&handled).send();
                outcome = sent.and_then(|()| lapi.wait(&handled, 1));
            }
            assert_eq!(outcome, Err(lost));
        }
        assert_eq!(lapi.gfence(), Err(lost));
        let text = lost.failure().expect("it is of the job").text;
        assert!(text.contains("is gone"), "{text}");
    };
    Threads::new(3).build(program).expect("starts");
}

#[test]
fn handlers_can_neither_block_nor_enter_a_collective() {
    const PRELUDE: &str = "#![allow(unused)]\n\
        use std::rc::Rc;\n\
        use bellwether_runtime::vocabulary::lapi::{Answer, Counter, Lapi, raw};\n";
    const RIGHT: &str = "pub fn program(lapi: Rc<Lapi>) {
        lapi.handler(5, move |context, _| {
            let _ = context.send(0, 5, &[], &[]);
            Answer::discard().then(|context, _| drop(context.send(0, 5, &[], &[])))
        });
        lapi.gfence();
    }";
    let case = |name, code, says, wrong| Case { name, code, says, items: true, wrong, right: RIGHT };
    let cases = [
        case(
            "enters_a_collective",
            "E0599",
            "no method named `gfence`",
            "pub fn program(lapi: Rc<Lapi>) {
                lapi.handler(5, move |context, _| { context.gfence(); Answer::discard() });
            }",
        ),
        case(
            "blocks",
            "E0599",
            "no method named `wait`",
            "pub fn program(lapi: Rc<Lapi>) {
                lapi.handler(5, move |_, _| Answer::discard().then_inline(|context, _| {
                    context.wait(&Counter::new(), 1);
                }));
            }",
        ),
        case(
            "has_the_handle",
            "E0277",
            "cannot be sent between threads safely",
            "pub fn program(lapi: Rc<Lapi>) {
                let own = Rc::clone(&lapi);
                lapi.handler(5, move |_, _| { own.gfence(); Answer::discard() });
            }",
        ),
        case(
            "has_its_number",
            "E0133",
            "call to unsafe function",
            "pub fn program(lapi: Rc<Lapi>) {
                let handle = lapi.handle();
                lapi.handler(5, move |_, _| Answer::discard().then(move |_, _| { raw::gfence(handle); }));
            }",
        ),
    ];
    fixture::check("lapi_handlers", PRELUDE, "", false, &cases);
}
