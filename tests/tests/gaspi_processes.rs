//! The rows of GASPI's table between processes.

use bellwether_tests::gaspi::LIMIT;
use bellwether_tests::process::{command, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gaspi_rows");

fn row(name: &str) {
    const NARROW: &[(&str, &str)] =
        &[("BELLWETHER_CMA", "off"), ("BELLWETHER_MESSAGE_MEMORY", "16KiB"), ("BELLWETHER_LANE_DEPTH", "1")];
    const CONTRACT: &[(&str, &str)] = &[("BELLWETHER_TRANSPORT", "shm-contract")];
    for (ranks, settings) in [(2, &[][..]), (3, &[]), (2, NARROW), (3, CONTRACT)] {
        let mut program = command(PROGRAM);
        program.env("BELLWETHER_RANKS", ranks.to_string()).envs(settings.iter().copied()).arg(name);
        let outcome = run(&mut program, LIMIT).expect_success();
        assert_eq!(outcome.stdout, format!("{name}: {ranks} processes\n"), "{outcome:#?}");
    }
}

bellwether_tests::gaspi_row_tests!(row);
