//! The rows of LAPI's table between tasks that are processes.

use bellwether_tests::lapi::LIMIT;
use bellwether_tests::process::{command, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lapi_rows");

fn row(name: &str) {
    const NARROW: &[(&str, &str)] =
        &[("BELLWETHER_CMA", "off"), ("BELLWETHER_MESSAGE_MEMORY", "16KiB"), ("BELLWETHER_LANE_DEPTH", "1")];
    const CONTRACT: &[(&str, &str)] = &[("BELLWETHER_TRANSPORT", "shm-contract")];
    const STATICS: &[(&str, &str)] = &[("BELLWETHER_STATIC_DATA", "on"), ("BELLWETHER_CMA", "off")];
    const REMOTE_STATICS: &[(&str, &str)] =
        &[("BELLWETHER_STATIC_DATA", "on"), ("BELLWETHER_TRANSPORT", "shm-contract")];
    let of_statics = name.starts_with("l38") || name.starts_with("l49_puts");
    let usual = [(2, &[][..]), (3, &[]), (2, NARROW), (3, CONTRACT)];
    let more = [(2, STATICS), (3, REMOTE_STATICS)].into_iter().filter(|_| of_statics);
    for (ranks, settings) in usual.into_iter().chain(more) {
        let mut program = command(PROGRAM);
        program.env("BELLWETHER_RANKS", ranks.to_string()).envs(settings.iter().copied()).arg(name);
        let outcome = run(&mut program, LIMIT).expect_success();
        assert_eq!(outcome.stdout, format!("{name}: {ranks} tasks\n"), "{outcome:#?}");
    }
}

bellwether_tests::lapi_row_tests!(row);
