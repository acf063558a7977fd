//! The rows of LAPI's table between tasks on a simulated network: late, out of order, in small pieces.

use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicU64;

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::vocabulary::lapi::{Counter, Job, codes, raw};
use bellwether_runtime::{Settings, Simulated};
use bellwether_tests::lapi::departures::{self, Told};
use bellwether_tests::lapi::ends::{self, By, Meets};
use bellwether_tests::lapi::losses::{self, Death};
use bellwether_tests::lapi::mix::{self, Until};
use bellwether_tests::lapi::{LIMIT, Task, row};
use bellwether_tests::watchdog;

fn networks(seed: u64) -> Vec<(&'static str, Config)> {
    let plain = |ranks| Config::new(ranks, seed);
    let mut narrow = plain(2).wild();
    (narrow.flow.slots, narrow.flow.credits, narrow.flow.fragment) = (1, 1, 64);
    vec![
        ("1 task", plain(1).wild()),
        ("in order", plain(2)),
        ("out of order", plain(3).wild()),
        ("one credit", narrow),
        ("direct puts", Config { memory: Memory::Direct, ..plain(2).wild() }),
        ("posted puts", Config { memory: Memory::Posted, ..plain(2).wild() }),
        ("shared nodes", plain(3).wild().shared_nodes(&[2])),
    ]
}

/// Room for thousands of messages.
fn wide(seed: u64) -> (&'static str, Config) {
    let mut config = Config::new(2, seed).wild();
    (config.flow.slots, config.flow.credits) = (4096, 4096);
    ("thousands of credits", config)
}

fn run(name: &str) {
    let _guard = watchdog::guard(name, LIMIT);
    let (name, row) = row(name).expect("a row of the table");
    check(name, 1, |seed| {
        for (network, config) in networks(seed).into_iter().chain(name.starts_with("floods").then(|| wide(seed))) {
            watchdog::at(format!("{name}: {network}, seed {seed}"));
            let mut settings = Settings::default();
            settings.message_memory = 32 << 10;
            let ran = Simulated::new(config).settings(settings).build(|builder| {
                let job = Job::start(builder).expect("starts");
                let task = Task { job, virtual_time: true, emulated: false, attaches: false, maps_statics: false };
                row(&task);
                task.job.finish().expect("finishes");
            });
            ran.unwrap_or_else(|error| panic!("{network}: {error}"));
        }
    });
}

#[test]
fn lapi_mix_loses_and_duplicates_nothing() {
    let name = "the mix";
    let _guard = watchdog::guard(name, LIMIT);
    check(name, 1, |seed| {
        for (network, config) in networks(seed) {
            watchdog::at(format!("{name}: {network}, seed {seed}"));
            let mut settings = Settings::default();
            settings.message_memory = 32 << 10;
            let ran = Simulated::new(config).settings(settings).build(move |builder| {
                mix::run(builder, seed, Until::Rounds(10), 20_000, true);
            });
            ran.unwrap_or_else(|error| panic!("{network}: {error}"));
        }
    });
}

#[test]
fn events_of_a_task_that_is_killed_end() {
    let name = "a task is killed";
    let _guard = watchdog::guard(name, LIMIT);
    check(name, 3, |seed| {
        for (network, config) in [("in order", Config::new(3, seed)), ("out of order", Config::new(3, seed).wild())] {
            watchdog::at(format!("{name}: {network}, seed {seed}"));
            let job = Simulated::new(config);
            let kill = |_| job.network().kill(2);
            let death = Death { kill: &kill, virtual_time: true, by_pieces: false };
            let ran = job.build(|builder| losses::events_of_a_lost_task(builder, &death));
            ran.unwrap_or_else(|error| panic!("{network}: {error}"));
        }
    });
}

#[test]
fn the_function_of_a_vector_runs_when_its_last_place_was_read() {
    let name = "a place of a vector fails";
    let _guard = watchdog::guard(name, LIMIT);
    check(name, 2, |seed| {
        // On one node, a long place is read in pieces, a few at a time.
        let plain = Config::new(2, seed);
        let networks = [
            ("in order", plain.clone()),
            ("one node", plain.clone().shared_nodes(&[2])),
            ("one node, out of order", plain.wild().shared_nodes(&[2])),
        ];
        for (network, config) in networks {
            for bad_first in [true, false] {
                watchdog::at(format!("{name}: {network}, seed {seed}, {bad_first}"));
                let ran = Simulated::new(config.clone())
                    .build(|builder| ends::a_vector_of_which_one_place_fails(builder, bad_first));
                ran.unwrap_or_else(|error| panic!("{network}: {error}"));
            }
        }
    });
}

#[test]
fn a_call_that_fails_while_it_waits_runs_no_function() {
    let name = "a call fails";
    let _guard = watchdog::guard(name, LIMIT);
    check(name, 2, |seed| {
        for (by, purges) in [By::Message, By::Vector, By::Closure].into_iter().flat_map(|by| [(by, false), (by, true)])
        {
            watchdog::at(format!("{name}: {by:?}, seed {seed}, purged {purges}"));
            let mut config = Config::new(2, seed);
            (config.flow.slots, config.flow.credits) = (1, 1);
            let job = Simulated::new(config);
            let kill = || job.network().kill(1);
            let meets = if purges { Meets::Purge } else { Meets::Loss(&kill) };
            let ran = job.build(|builder| ends::a_call_that_fails(builder, by, meets));
            ran.unwrap_or_else(|error| panic!("{by:?}: {error}"));
        }
    });
}

#[test]
fn what_waits_for_a_task_that_left_ends() {
    let name = "a task leaves";
    let _guard = watchdog::guard(name, LIMIT);
    check(name, 2, |seed| {
        for wild in [false, true] {
            let simulate = |ranks| {
                let config = Config::new(ranks, seed);
                Simulated::new(if wild { config.wild() } else { config })
            };
            for owes in departures::OWES {
                for told in [Told::Waiting, Told::Ending] {
                    watchdog::at(format!("{name}: {owes:?}, {told:?}, seed {seed}, {wild}"));
                    let ran =
                        simulate(3).build(|builder| departures::what_a_task_owes(builder, owes, told, None, |_| {}));
                    ran.unwrap_or_else(|error| panic!("{owes:?}, {told:?}: {error}"));
                }
            }
            simulate(4).build(|builder| departures::a_barrier_without_a_task(builder, None, |_| {})).expect("runs");
            simulate(2).build(departures::a_task_that_is_alone).expect("runs");
            let sent = |builder| departures::what_a_task_sent_before_it_left(builder, true, |_| {});
            simulate(2).build(sent).expect("runs");
            let named = |builder| departures::a_counter_of_named_tasks(builder, false, |_| {});
            simulate(3).build(named).expect("runs");
        }
    });
}

bellwether_tests::lapi_row_tests!(run);

/// A task that leaves the barrier of `Init` sooner gets data of one that is in it.
#[test]
fn a_get_right_after_init_is_answered() {
    static THERE: AtomicU64 = AtomicU64::new(7);
    let name = "gets right after Init";
    let _guard = watchdog::guard(name, LIMIT);
    check(name, 20, |seed| {
        watchdog::at(format!("{name}: seed {seed}"));
        let ran = Simulated::new(Config::new(3, seed).wild()).build(|builder| {
            let job = Job::start(builder).expect("starts");
            for _ in 0..3 {
                let (me, n) = job.place();
                let handle = job.init().expect("makes a handle");
                let (mut here, arrived) = (0u64, Counter::new());
                let (from, to) = (THERE.as_ptr().cast_const().cast(), (&raw mut here).cast());
                // SAFETY: both are variables of this process, and this one stays until the data is in it.
                let got = unsafe { raw::get(handle, ((me + 1) % n) as u32, 8, from, to, null(), &arrived) };
                assert_eq!(got, codes::SUCCESS);
                // SAFETY: a valid counter.
                assert_eq!(unsafe { raw::waitcntr(handle, &arrived, 1, null_mut()) }, codes::SUCCESS);
                assert_eq!((here, raw::term(handle)), (7, codes::SUCCESS));
            }
            job.finish().expect("finishes");
        });
        ran.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    });
}
