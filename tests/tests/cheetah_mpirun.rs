//! The rows of Cheetah's table between contexts that `mpirun` starts.
#![cfg(feature = "mpi")]

use std::time::Duration;

use bellwether_tests::process::{command, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheetah_rows");
/// Longer than the program's own deadline, which tells more.
const LIMIT: Duration = Duration::from_secs(120);

fn row(name: &str) {
    for contexts in ["2", "3"] {
        // `mpirun` gives every rank a process group of its own, but leaves it in its session.
        let mut mpirun = command("setsid");
        mpirun.args(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", contexts, PROGRAM, name]);
        let outcome = run(&mut mpirun, LIMIT).expect_success();
        assert_eq!(outcome.stdout, format!("{name}: {contexts} contexts\n"));
    }
}

bellwether_tests::cheetah_row_tests!(row);
