//! The rows of Cheetah's table between contexts that are threads, with the default and with awkward settings.

use std::time::Duration;

use bellwether_runtime::vocabulary::cheetah::Controller;
use bellwether_runtime::{Barrier, Settings, Threads};
use bellwether_tests::cheetah::{Load, row};
use bellwether_tests::watchdog;

/// Whether counts and sizes are those of the table where there is time for them: not under the thread sanitizer.
const FULL: bool = !cfg!(bellwether_tsan);

/// Contexts, what is set, and whether counts and sizes are those of the table.
fn surroundings() -> Vec<(usize, &'static str, bool, Settings)> {
    let with = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    };
    let by_message = |settings: &mut Settings| {
        settings.cross_memory_attach = false;
        settings.message_memory = 16 << 10;
    };
    let narrow = |settings: &mut Settings| {
        settings.lane_depth = Some(1);
        settings.spin = Some(0);
        settings.barrier = Barrier::Dissemination;
    };
    let all_at_once = |settings: &mut Settings| {
        settings.cross_memory_attach = false;
        settings.message_memory = 16 << 10;
        settings.lane_depth = Some(1);
        settings.barrier = Barrier::Central;
    };
    vec![
        (2, "the default", FULL, Settings::default()),
        (1, "the default", false, Settings::default()),
        (3, "the default", false, Settings::default()),
        (5, "the default", false, Settings::default()),
        (2, "memory by message", false, with(by_message)),
        (2, "lanes of one", false, with(narrow)),
        (3, "lanes of one", false, with(narrow)),
        (1, "all at once", false, with(all_at_once)),
        (3, "all at once", false, with(all_at_once)),
        (2, "the central barrier", false, with(|settings| settings.barrier = Barrier::Central)),
        (5, "the dissemination barrier", false, with(|settings| settings.barrier = Barrier::Dissemination)),
    ]
}

fn run(name: &str) {
    let (name, row) = row(name).expect("a row of the table");
    let timing = std::env::var_os("TIMING").is_some();
    for (ranks, what, full, settings) in surroundings() {
        let start = std::time::Instant::now();
        let _guard = watchdog::guard(format!("{name}: {ranks} contexts, {what}"), Duration::from_secs(150));
        let load = Load::new(full, &settings);
        Threads::new(ranks)
            .settings(settings)
            .build(|builder| row(Controller::setup_with(builder).expect("set up"), &load))
            .unwrap_or_else(|error| panic!("{ranks} contexts, {what}: {error}"));
        if timing {
            eprintln!("{name}: {ranks} contexts, {what}: {:.2?}", start.elapsed());
        }
    }
}

bellwether_tests::cheetah_row_tests!(run);

#[test]
fn c01_setup_takes_its_options_out() {
    let mut arguments: Vec<String> = ["program", "-v", "-np", "1", "-shmem", "file"].map(Into::into).into();
    let controller = Controller::setup(&mut arguments).expect("one context alone");
    assert_eq!(arguments, ["program", "-v", "file"]);
    assert_eq!((controller.ncontexts().expect("valid"), controller.mycontext().expect("valid")), (1, 0));
    for (bad, word) in [(&["p", "-np", "0"][..], "-np 0"), (&["p", "-np"], "-np"), (&["p", "-ulm"], "-ulm")] {
        let mut arguments: Vec<String> = bad.iter().map(|argument| argument.to_string()).collect();
        let error = Controller::setup(&mut arguments).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
}
