//! The rows of LAPI's table between tasks that are threads, with the default and with awkward settings.

use bellwether_runtime::vocabulary::lapi::Job;
use bellwether_runtime::{Settings, Threads};
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

bellwether_tests::lapi_row_tests!(run);
