//! The rows of LAPI's table between tasks that are threads, with the default and with awkward settings.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bellwether_runtime::vocabulary::lapi::{Announced, Answer, HandlerContext, Job, Lapi, codes, raw};
use bellwether_runtime::{Builder, Settings, Threads, Transport};
use bellwether_tests::lapi::departures::{self, Owes, Told};
use bellwether_tests::lapi::{LIMIT, Task, row};
use bellwether_tests::watchdog;

/// Tasks, and what is set. Rows about many messages also run with room for thousands.
fn surroundings(name: &str) -> Vec<(usize, &'static str, Settings)> {
    let with = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    };
    let narrow = |settings: &mut Settings| {
        settings.cross_memory_attach = false;
        settings.message_memory = 16 << 10;
        settings.lane_depth = Some(1);
        settings.spin = Some(0);
    };
    let wide = (2, "thousands of credits", with(|settings| settings.lane_depth = Some(4096)));
    let usual = vec![
        (2, "the default", Settings::default()),
        (1, "the default", Settings::default()),
        (3, "the default", Settings::default()),
        (2, "all narrow", with(narrow)),
        (3, "no spins", with(|settings| settings.spin = Some(0))),
    ];
    let of_many = name.starts_with("floods") || name.starts_with("l36") || name.starts_with("l65");
    usual.into_iter().chain(of_many.then_some(wide)).collect()
}

fn run(name: &str) {
    let (name, row) = row(name).expect("a row of the table");
    for (ranks, what, settings) in surroundings(name) {
        let _guard = watchdog::guard(format!("{name}: {ranks} tasks, {what}"), LIMIT);
        let attaches = settings.cross_memory_attach;
        let ran = Threads::new(ranks).settings(settings).build(|builder| {
            let job = Job::start(builder).expect("starts");
            let task =
                Task { job, virtual_time: false, emulated: cfg!(bellwether_tsan), attaches, maps_statics: false };
            row(&task);
            task.job.finish().expect("finishes");
        });
        ran.unwrap_or_else(|error| panic!("{ranks} tasks, {what}: {error}"));
    }
}

/// Runs a program of every task over each transport. Its gate is closed at first.
fn everywhere(name: &str, ranks: usize, program: impl Fn(Builder, &AtomicBool) + Sync) {
    let _guard = watchdog::guard(name, LIMIT);
    for (transport, attaches) in
        [(Transport::Auto, true), (Transport::Auto, false), (Transport::ShmContract, false), (Transport::Tcp, false)]
    {
        watchdog::at(format!("{name}: {transport:?}, {attaches}"));
        let mut settings = Settings::default();
        (settings.transport, settings.cross_memory_attach) = (transport, attaches);
        let gate = AtomicBool::new(false);
        let ran = Threads::new(ranks).settings(settings).build(|builder| program(builder, &gate));
        ran.unwrap_or_else(|error| panic!("{name}, {transport:?}: {error}"));
    }
}

#[test]
fn what_a_task_owes_ends_when_it_leaves() {
    for (owes, told) in [
        (Owes::Origin, Told::Waiting),
        (Owes::Completion, Told::Probing),
        (Owes::Vector, Told::Waiting),
        (Owes::Get, Told::Ending),
        (Owes::Atomic, Told::Waiting),
    ] {
        let name = format!("{owes:?}, {told:?}");
        everywhere(&name, 3, |builder, gate| departures::what_a_task_owes(builder, owes, told, Some(gate), |_| {}));
    }
}

#[test]
fn a_sleeping_wait_ends_when_the_task_that_owes_leaves() {
    let _guard = watchdog::guard("asleep", LIMIT);
    let gate = AtomicBool::new(false);
    let program = |builder| departures::what_a_task_owes(builder, Owes::Get, Told::Asleep, Some(&gate), |_| {});
    Threads::new(3).build(program).expect("runs");
}

#[test]
fn no_living_task_waits_in_a_barrier_for_one_that_gave_it_up() {
    everywhere("a barrier", 4, |builder, gate| departures::a_barrier_without_a_task(builder, Some(gate), |_| {}));
}

#[test]
fn what_a_task_sent_before_it_left_arrives() {
    everywhere("sent before", 2, |builder, _| departures::what_a_task_sent_before_it_left(builder, false, |_| {}));
}

#[test]
fn what_a_task_left_behind_is_waited_for() {
    everywhere("left behind", 3, |builder, _| departures::what_a_task_left_behind(builder, false, |_| {}));
    let _guard = watchdog::guard("left behind, asleep", LIMIT);
    Threads::new(3).build(|builder| departures::what_a_task_left_behind(builder, true, |_| {})).expect("runs");
}

#[test]
fn a_wait_for_named_tasks_ends_when_one_leaves() {
    everywhere("named tasks", 3, |builder, _| departures::a_counter_of_named_tasks(builder, false, |_| {}));
    let _guard = watchdog::guard("named tasks, asleep", LIMIT);
    Threads::new(3).build(|builder| departures::a_counter_of_named_tasks(builder, true, |_| {})).expect("runs");
}

#[test]
fn a_task_that_is_alone_waits_for_no_counter() {
    everywhere("alone", 2, |builder, _| departures::a_task_that_is_alone(builder));
}

/// Two tasks flood each other. One begins when the other's messages have used up all credits: until then it makes no call.
#[test]
fn floods_use_up_thousands_of_credits() {
    const CREDITS: usize = 4096;
    const EACH: usize = 3 * CREDITS;
    let _guard = watchdog::guard("thousands of credits", LIMIT);
    let mut settings = Settings::default();
    settings.lane_depth = Some(CREDITS);
    let sent = AtomicUsize::new(0);
    let ran = Threads::new(2).settings(settings).build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        // SAFETY: no handler uses it.
        let handle = unsafe { lapi.handle() };
        assert_eq!(raw::senv(handle, raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        let came = Arc::new(Mutex::new(vec![0u32; EACH]));
        let counts = Arc::clone(&came);
        let handler = move |_: &HandlerContext<'_>, announced: &Announced<'_>| {
            let number = u32::from_ne_bytes(announced.header().try_into().expect("a number"));
            counts.lock().expect("no panic")[number as usize] += 1;
            Answer::discard()
        };
        lapi.handler(1, handler).expect("an index of the table");
        lapi.gfence().expect("both have the handler");
        if lapi.rank() == 1 {
            watchdog::at("the first credits");
            // Without a call of this task, about as many messages are in flight as there are credits.
            while sent.load(Ordering::Acquire) < CREDITS - 64 {
                std::thread::yield_now();
            }
        }
        for number in 0..EACH as u32 {
            watchdog::at(format!("message {number}"));
            lapi.message(1 - lapi.rank(), 1).header(&number.to_ne_bytes()).send().expect("sends");
            if lapi.rank() == 0 {
                sent.store(number as usize + 1, Ordering::Release);
            }
        }
        lapi.gfence().expect("all are in place");
        assert!(came.lock().expect("no panic").iter().all(|times| *times == 1), "every message, once");
        lapi.finish().expect("finishes");
    });
    ran.expect("runs");
}

bellwether_tests::lapi_row_tests!(run);
