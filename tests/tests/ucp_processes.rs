//! The rows of UCP's wake-up between processes.

use bellwether_tests::process::{command, run};
use bellwether_tests::ucp::LIMIT;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ucp_rows");

fn row(name: &str) {
    const CONTRACT: &[(&str, &str)] = &[("BELLWETHER_TRANSPORT", "shm-contract")];
    for (ranks, settings) in [(2, &[][..]), (3, &[]), (2, CONTRACT)] {
        let mut program = command(PROGRAM);
        program.env("BELLWETHER_RANKS", ranks.to_string()).envs(settings.iter().copied()).arg(name);
        let outcome = run(&mut program, LIMIT).expect_success();
        assert_eq!(outcome.stdout, format!("{name}: {ranks} processes\n"), "{outcome:#?}");
    }
}

bellwether_tests::ucp_row_tests!(row);
