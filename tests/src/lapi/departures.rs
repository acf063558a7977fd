//! A task leaves without `Term`. It has not failed, and still nothing comes from it: what waits for it ends.

use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::lapi::raw::{self, CompletionHandler, Handle, ReturnInfo};
use bellwether_runtime::vocabulary::lapi::{Answer, Code, Counter, Failure, Lapi, codes};
use bellwether_runtime::{Builder, Completion};

use super::{all, ok, wait};
use crate::watchdog;

/// What a task that leaves owes task 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owes {
    /// It has not fetched the data of a message, which has an origin counter and no other.
    Origin,
    /// It has not taken a message with a completion counter.
    Completion,
    /// It has not taken the places of a vector, which has one too.
    Vector,
    /// It has not answered a get.
    Get,
    /// It has not answered an atomic operation.
    Atomic,
}

/// All of them.
pub const OWES: [Owes; 5] = [Owes::Origin, Owes::Completion, Owes::Vector, Owes::Get, Owes::Atomic];

/// The call in which task 0 is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// `Waitcntr`.
    Waiting,
    /// `Nopoll_wait`.
    Asleep,
    /// `Probe`.
    Probing,
    /// `Term`.
    Ending,
}

static DATA: [u8; 100_000] = [3; 100_000];

/// Sends what task `to` will owe, with `counter`, to its variable at `there`; the answer to a get or an atomic operation goes to `here`.
fn send(handle: Handle, to: u32, owes: Owes, there: u64, here: &mut i64, counter: &Counter) -> i32 {
    let (message, remote) = (without_provenance(1), there as *mut c_void);
    let (start, here) = (DATA.as_ptr().cast_mut().cast::<c_void>(), std::ptr::from_mut(here));
    // SAFETY: data and handler are static; variable, place and counter outlive the handles of both tasks; the variable is changed by
    // atomic operations and the vectors only.
    unsafe {
        match owes {
            Owes::Origin => {
                raw::amsend(handle, to, message, null(), 0, start, DATA.len() as u64, null(), counter, null())
            }
            Owes::Completion => raw::amsend(handle, to, message, null(), 0, start, 8, null(), null(), counter),
            Owes::Vector => {
                let (mut from, mut places) = ([start; 2], [remote, remote.wrapping_byte_add(8)]);
                let (mut lengths, mut same) = ([4; 2], [4; 2]);
                let vector = |info: &mut [*mut c_void; 2], len: &mut [u64; 2]| raw::Vector {
                    vec_type: raw::GEN_IOVECTOR,
                    num_vecs: 2,
                    info: info.as_mut_ptr(),
                    len: len.as_mut_ptr(),
                };
                let (from, places) = (vector(&mut from, &mut lengths), vector(&mut places, &mut same));
                raw::putv(handle, to, &places, &from, null(), null(), counter)
            }
            Owes::Get => raw::get(handle, to, 8, remote, here.cast(), null(), counter),
            Owes::Atomic => raw::rmw64(handle, raw::rmw_op::FETCH_AND_ADD, to, remote.cast(), &1, null_mut(), counter),
        }
    }
}

/// Waits for the counter in this way.
fn outcome(handle: Handle, told: Told, counter: &Counter) -> i32 {
    let mut value = 0;
    // SAFETY: both are valid.
    unsafe {
        match told {
            Told::Waiting => raw::waitcntr(handle, counter, 1, null_mut()),
            Told::Asleep => raw::nopoll_wait(handle, counter, 1, null_mut()),
            Told::Ending => raw::term(handle),
            Told::Probing => loop {
                match raw::getcntr(handle, counter, &mut value) {
                    codes::SUCCESS if value == 0 => {}
                    codes::SUCCESS => break raw::waitcntr(handle, counter, 1, null_mut()),
                    code => break code,
                }
            },
        }
    }
}

/// The program of one of three tasks. Task 2 leaves, when `gate` is open if there is one, and owes something to task 0. Task 1 stays. Task 0
/// ends its waits with the loss, whatever they wait for. Task 1 says when it is done.
///
/// # Panics
/// If something of this does not hold.
pub fn what_a_task_owes(builder: Builder, owes: Owes, told: Told, gate: Option<&AtomicBool>, say: fn(&str)) {
    // All of these outlive the handle.
    let (mut own, mut here) = (Box::new([0i64; 2]), Box::new(0i64));
    let [counter, other] = [const { Counter::new() }; 2].map(Box::new);
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no handler uses it, and no other code ends it while it is in use.
    let handle = unsafe { lapi.handle() };
    lapi.handler(1, |_, _| Answer::vec(Vec::new())).expect("an index of the table");
    let there = all(handle, own.as_mut_ptr() as u64)[2];
    let counters = all(handle, counter.address() as u64);
    // Outside its calls it makes no progress.
    if lapi.rank() == 2 && gate.is_some() {
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    }
    lapi.gfence().expect("all are there");
    match lapi.rank() {
        0 => {
            let (mut code, mut sent) = (codes::SUCCESS, codes::SUCCESS);
            // It may answer some before it leaves, and refuses them after that.
            while (sent, code) == (codes::SUCCESS, codes::SUCCESS) {
                watchdog::at(format!("{owes:?}, {told:?}: a transfer"));
                sent = send(handle, 2, owes, there, &mut here, &counter);
                gate.into_iter().for_each(|gate| gate.store(true, Ordering::Release));
                if sent == codes::SUCCESS || told == Told::Ending {
                    watchdog::at(format!("{owes:?}, {told:?}: its end"));
                    code = outcome(handle, told, &counter);
                }
            }
            assert_eq!(if told == Told::Ending { code } else { sent | code }, codes::PEER_LOST, "{owes:?}, {told:?}");
            // The task may have answered before it left. Then `Term` has missed it in its barrier only.
            if sent == codes::SUCCESS && counter.value() == 0 {
                watchdog::at(format!("{owes:?}, {told:?}: a later wait and fence"));
                // SAFETY: the counter is valid.
                let later = unsafe { raw::waitcntr(handle, &*other, 1, null_mut()) };
                assert_eq!([later, raw::fence(handle)], [codes::PEER_LOST; 2], "{owes:?}, {told:?}");
                watchdog::at(format!("{owes:?}, {told:?}: a fence without the task"));
                ok(raw::purge_totask(handle, 2), "purge");
                // The errors of what was under way.
                while raw::probe(handle) != codes::SUCCESS {}
                ok(raw::fence(handle), "nothing is expected of a purged task");
                ok(raw::resume_totask(handle, 2), "resume");
                assert_eq!(raw::fence(handle), codes::PEER_LOST, "{owes:?}, {told:?}");
            }
            // SAFETY: nothing is read or written, and the counter is task 1's.
            let put = unsafe {
                let counter = counters[1] as usize as *const Counter;
                raw::put(handle, 1, 0, null_mut(), null(), counter, null(), null())
            };
            ok(put, "task 1 may leave");
        }
        1 => {
            if told == Told::Ending {
                watchdog::at("term beside them");
                assert_eq!(raw::term(handle), codes::PEER_LOST);
            }
            wait(handle, &counter, 1, "a task that lives goes on");
            say("owes: task 1 goes on");
        }
        _ => await_gate(gate),
    }
    drop(lapi);
}

fn await_gate(gate: Option<&AtomicBool>) {
    while gate.is_some_and(|gate| !gate.load(Ordering::Acquire)) {
        std::thread::yield_now();
    }
}

/// The program of one of four tasks, of which the last leaves, when `gate` is open if there is one. The fence of task 0 fails then, and the
/// others' barriers, also of those that wait for a living task. Then they go on with each other, and say so.
///
/// # Panics
/// If something of this does not hold.
pub fn a_barrier_without_a_task(builder: Builder, gate: Option<&AtomicBool>, say: fn(&str)) {
    let counter = Box::new(Counter::new());
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no handler uses it, and no other code ends it while it is in use.
    let handle = unsafe { lapi.handle() };
    let counters = all(handle, counter.address() as u64);
    let (me, left) = (lapi.rank(), lapi.size() - 1);
    lapi.handler(1, |_, _| Answer::discard()).expect("an index of the table");
    if me == left && gate.is_some() {
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    }
    lapi.gfence().expect("all are there");
    if me == left {
        return await_gate(gate);
    }
    if let (0, Some(gate)) = (me, gate) {
        gate.store(true, Ordering::Release);
        // Until it is gone. Nobody has answered for the last of these, so the fence fails.
        let mut answered = Ok(());
        while answered.is_ok() {
            watchdog::at("messages to a task that leaves");
            let handled = Completion::new();
            let sent = lapi.message(left, 1).completion(&handled).send();
            answered = sent.and_then(|()| lapi.wait_completion(&handled));
        }
        assert_eq!(answered, Err(Code(codes::PEER_LOST)));
    }
    for call in [raw::gfence as fn(Handle) -> i32, raw::gfence, raw::term] {
        watchdog::at("a collective without a task");
        assert_eq!(call(handle), codes::PEER_LOST);
        let failure = Failure::last(codes::PEER_LOST).expect("it has a text");
        assert_eq!(failure.task, Some(left), "{}", failure.text);
        // No task leaves before all have failed.
        for to in (0..left).filter(|to| *to != me) {
            // SAFETY: nothing is read or written, and the counter is task `to`'s.
            let put = unsafe {
                let counter = counters[to] as usize as *const Counter;
                raw::put(handle, to as u32, 0, null_mut(), null(), counter, null(), null())
            };
            ok(put, "to a living task");
        }
        wait(handle, &counter, left as i32 - 1, "the living");
    }
    say(&format!("barrier: task {me} goes on"));
    drop(lapi);
}

/// The program of one of two tasks. Task 1 sends messages and leaves at once. Task 0 takes longer for each than a turn of its wait lasts, and
/// gets all of them: a turn that ends amid messages has not found that nothing comes.
///
/// # Panics
/// If something of this does not hold.
pub fn what_a_task_sent_before_it_left(builder: Builder, virtual_time: bool, say: fn(&str)) {
    const MESSAGES: usize = 100;
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no handler uses it, and no other code ends it while it is in use.
    let handle = unsafe { lapi.handle() };
    let takes = lapi.handler(1, move |_, _| {
        if !virtual_time {
            std::thread::sleep(Duration::from_millis(2));
        }
        Answer::discard()
    });
    takes.expect("an index of the table");
    let arrived = Arc::new(Counter::new());
    lapi.target_event(1, &arrived).expect("an index of the table");
    ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    lapi.gfence().expect("both are there");
    if lapi.rank() == 1 {
        watchdog::at("messages before it leaves");
        (0..MESSAGES).for_each(|_| lapi.message(0, 1).data(vec![1; 4000]).target(1).send().expect("sends"));
        return;
    }
    watchdog::at("messages of a task that leaves");
    assert_eq!(lapi.wait(&arrived, MESSAGES as i32), Ok(0), "of {MESSAGES}: {} left", arrived.value());
    assert_eq!(lapi.wait(&arrived, 1), Err(Code(codes::PEER_LOST)));
    say("sent: all has come");
}

/// What task 0 and its handlers share.
#[derive(Debug, Default)]
struct Held {
    /// The number of the message that task 0 waits for.
    awaited: AtomicU32,
    /// The target counters of three of the messages.
    moved: [Counter; 3],
    /// Nobody moves it.
    never: Counter,
    /// When message 1 was dropped for the first time while task 0 waited for it.
    dropped: OnceLock<Instant>,
    /// What the completion handler of message 4 was told.
    told: AtomicI32,
}

/// As long as many turns of a wait.
const LONG: Duration = Duration::from_millis(30);

/// The header handler of messages 1 and 4. Their user header is the address of [`Held`], and their number.
unsafe extern "C-unwind" fn drop_or_wait(
    _: *mut Handle,
    header: *mut c_void,
    _: *mut u32,
    info: *mut u64,
    then: *mut Option<CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: LAPI passes valid pointers, and an aligned copy of the header; task 2 sends an address of this task.
    let (held, number, info, then, parameter) = unsafe {
        let [address, number] = *header.cast::<[u64; 2]>();
        let held = address as usize as *const Held;
        (&*held, number, &mut *info.cast::<ReturnInfo>(), &mut *then, &mut *parameter)
    };
    let is_late = || held.dropped.get_or_init(Instant::now).elapsed() >= LONG;
    if number == 4 {
        *then = Some(wait_in_vain);
        *parameter = std::ptr::from_ref(held).cast_mut().cast();
    } else if held.awaited.load(Ordering::Acquire) < 1 || !is_late() {
        info.ctl_flags = raw::DROP_PKT;
    }
    null_mut()
}

unsafe extern "C-unwind" fn wait_in_vain(handle: *mut Handle, held: *mut c_void) {
    // SAFETY: LAPI passes the handle, and what the header handler gave.
    let (handle, held) = unsafe { (*handle, &*held.cast::<Held>()) };
    // SAFETY: a valid counter.
    let told = unsafe { raw::waitcntr(handle, &held.never, 1, null_mut()) };
    held.told.store(told, Ordering::Release);
}

/// The program of one of three tasks. Task 2 sends four messages and leaves. Once they have come they need longer than it takes to find that
/// nothing more comes: message 1 is dropped meanwhile, and the completion handlers of messages 2 and 3 run long. The
/// completion handler of message 4 waits for a counter that only task 2 could move: its wait ends with the loss. Task 0 gets all four messages.
///
/// # Panics
/// If something of this does not hold.
pub fn what_a_task_left_behind(builder: Builder, asleep: bool, say: fn(&str)) {
    // All of these outlive the handle.
    let (held, third, mut states) = (Arc::new(Held::default()), Arc::new(Counter::new()), Box::new([0; 5]));
    let counter = Box::new(Counter::new());
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no closure uses it, and no other code ends it while it is in use.
    let handle = unsafe { lapi.handle() };
    let own = Arc::clone(&held);
    let runs_long = lapi.handler(1, move |_, announced| {
        let (own, number) = (Arc::clone(&own), u32::from(announced.header()[0]));
        Answer::discard().then(move |_, _| {
            while own.awaited.load(Ordering::Acquire) < number {
                std::thread::sleep(Duration::from_millis(1));
            }
            // A wait that sleeps looks for lost tasks each second.
            std::thread::sleep(if asleep && number == 2 { Duration::from_secs(3) } else { LONG });
        })
    });
    runs_long.expect("an index of the table");
    // SAFETY: a header handler.
    ok(unsafe { raw::addr_set(handle, drop_or_wait as *const () as usize, 2) }, "addr_set");
    lapi.target_event(1, &third).expect("an index of the table");
    let [moved, shared, other] = [held.moved.as_ptr() as usize, Arc::as_ptr(&held) as usize, counter.address()]
        .map(|address| all(handle, address as u64));
    let states = states.as_mut_ptr();
    let name = |counter: &Counter, place: usize| {
        // SAFETY: one task and its state, which outlives the handle, as the counter does.
        ok(unsafe { raw::setcntr_wstatus(handle, counter, 1, &2, states.add(place)) }, "wstatus");
    };
    if lapi.rank() == 0 {
        let counters = held.moved.iter().chain([&*third, &held.never]);
        counters.enumerate().for_each(|(place, counter)| name(counter, place));
    }
    lapi.gfence().expect("all are there");
    match lapi.rank() {
        0 => {
            let told = if asleep { Told::Asleep } else { Told::Waiting };
            let [first, second, fourth] = &held.moved;
            for (number, counter) in [(1, first), (2, second), (3, &*third), (4, fourth)] {
                watchdog::at(format!("message {number} of a task that has left"));
                held.awaited.store(number, Ordering::Release);
                let told = if number == 2 { told } else { Told::Waiting };
                ok(outcome(handle, told, counter), &format!("message {number} is here"));
            }
            assert_eq!(held.told.load(Ordering::Acquire), codes::PEER_LOST, "in a completion handler");
            watchdog::at("a message that was not sent");
            name(first, 0);
            assert_eq!(outcome(handle, Told::Waiting, first), codes::PEER_LOST);
            // SAFETY: nothing is read or written, and the counter is task 1's.
            let put = unsafe {
                let counter = other[1] as usize as *const Counter;
                raw::put(handle, 1, 0, null_mut(), null(), counter, null(), null())
            };
            ok(put, "task 1 may leave");
            say("behind: task 0 has all");
        }
        1 => drop(wait(handle, &counter, 1, "task 0 is done")),
        _ => {
            watchdog::at("messages before it leaves");
            let send = |index: usize, header: &[u8], target: usize| {
                let (message, start) = (without_provenance(index), header.as_ptr().cast());
                let target = (moved[0] as usize as *const Counter).wrapping_add(target);
                // SAFETY: the header is copied, there is no data, and the counter is task 0's.
                let sent = unsafe {
                    let none = null();
                    raw::amsend(handle, 0, message, start, header.len() as u32, none, 0, target, null(), null())
                };
                ok(sent, "amsend");
            };
            let header = |number: u64| [shared[0], number].map(u64::to_ne_bytes);
            send(2, header(1).as_flattened(), 0);
            send(1, &[2; 4], 1);
            lapi.message(0, 1).header(&[3; 4]).target(1).send().expect("sends");
            send(2, header(4).as_flattened(), 2);
        }
    }
    drop(lapi);
}

/// The program of one of three tasks. Task 2 leaves and has sent nothing. Task 0 waits for counters that only named tasks move: it hears of the loss
/// where the counter cannot reach its value without task 2, and not before. Meanwhile task 1 lives.
///
/// # Panics
/// If something of this does not hold.
pub fn a_counter_of_named_tasks(builder: Builder, asleep: bool, say: fn(&str)) {
    // Both outlive the handle.
    let (counter, mut states) = (Box::new(Counter::new()), Box::new([0; 3]));
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no handler uses it, and no other code ends it while it is in use.
    let handle = unsafe { lapi.handle() };
    let counters = all(handle, counter.address() as u64);
    let states = states.as_mut_ptr();
    let name = |tasks: &[u32]| {
        // SAFETY: room for three states, which outlive the handle.
        ok(unsafe { raw::setcntr_wstatus(handle, &*counter, tasks.len() as i32, tasks.as_ptr(), states) }, "wstatus");
    };
    let tell = |to: usize| {
        // SAFETY: nothing is read or written, and the counter is task `to`'s.
        let put = unsafe {
            let counter = counters[to] as usize as *const Counter;
            raw::put(handle, to as u32, 0, null_mut(), null(), counter, null(), null())
        };
        ok(put, "a counter of another task");
    };
    let told = if asleep { Told::Asleep } else { Told::Waiting };
    if lapi.rank() == 0 {
        name(&[2, 1, 1]);
    }
    lapi.gfence().expect("all are there");
    match lapi.rank() {
        0 => {
            watchdog::at("two messages of a task that lives");
            for _ in 0..2 {
                tell(1);
                ok(outcome(handle, Told::Waiting, &counter), "task 1 still moves it");
            }
            watchdog::at("a message of a task that has left");
            assert_eq!(outcome(handle, told, &counter), codes::PEER_LOST);
            let failure = Failure::last(codes::PEER_LOST).expect("it has a text");
            assert_eq!(failure.task, Some(2), "{}", failure.text);
            watchdog::at("one of two");
            name(&[1, 2]);
            tell(1);
            ok(outcome(handle, told, &counter), "task 1 is enough");
            // That is for this counter: others are waited for.
            // SAFETY: a valid counter.
            ok(unsafe { raw::setcntr(handle, &*counter, 0) }, "setcntr");
            tell(1);
            ok(outcome(handle, told, &counter), "a counter whose tasks are not named");
            say("named: task 0 was told");
        }
        1 => (0..4).for_each(|_| {
            wait(handle, &counter, 1, "task 0 asks");
            // Task 0 waits for longer than it looks for tasks that have left.
            std::thread::sleep(Duration::from_millis(30));
            tell(0);
        }),
        _ => {}
    }
    drop(lapi);
}

/// The program of one of two tasks, of which one leaves. The other waits for a counter that only a task that is gone could move.
///
/// # Panics
/// If something of this does not hold.
pub fn a_task_that_is_alone(builder: Builder) {
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no handler uses it, and no other code ends it while it is in use.
    let handle = unsafe { lapi.handle() };
    lapi.gfence().expect("all are there");
    if lapi.rank() == 0 {
        watchdog::at("a counter that nobody moves");
        assert_eq!(outcome(handle, Told::Waiting, &Counter::new()), codes::PEER_LOST);
    }
}
