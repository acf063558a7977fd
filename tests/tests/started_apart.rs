//! A build without MPI, under launchers that serve no exchange: one error that names the flag, never several worlds.
#![cfg(not(feature = "mpi"))]

use std::time::Duration;

use bellwether_tests::process::{command, run};

const RING: &str = env!("CARGO_BIN_EXE_ring");
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn mpirun_without_its_exchange_is_refused() {
    if command("mpirun").arg("--version").output().is_err() {
        eprintln!("skipped: there is no mpirun");
        return;
    }
    // A launcher that does not serve PMIx; a library of it that is none.
    let folder = tempfile::tempdir().expect("room for a file");
    std::fs::write(folder.path().join("libpmix.so.2"), [0; 4096]).expect("room for a file");
    let path = format!("LD_LIBRARY_PATH={}", folder.path().display());
    for (change, why) in [(&["-u", "PMIX_NAMESPACE"][..], ""), (&[&*path], "libpmix.so.2 cannot be loaded")] {
        let mut mpirun = command("mpirun");
        mpirun.args(["--oversubscribe", "--allow-run-as-root", "-n", "4", "env"]).args(change).arg(RING);
        let outcome = run(&mut mpirun, LIMIT).expect_failure();
        assert!(outcome.stderr.contains("came up alone"), "{outcome:#?}");
        assert!(outcome.stderr.contains("OMPI_COMM_WORLD_SIZE"), "{outcome:#?}");
        assert!(outcome.stderr.contains("--features mpi"), "{outcome:#?}");
        assert!(outcome.stderr.contains(why), "{outcome:#?}");
        assert_eq!(outcome.stdout, "", "no world may have run");
    }
}

#[test]
fn tasks_that_come_up_alone_are_refused() {
    for (variable, flag) in
        [("SLURM_NTASKS", "--mpi=pmix"), ("PMI_SIZE", "--features mpi"), ("OMPI_COMM_WORLD_SIZE", "--features mpi")]
    {
        let outcome = run(command(RING).env(variable, "4"), LIMIT).expect_failure();
        assert!(outcome.stderr.contains(variable) && outcome.stderr.contains(flag), "{outcome:#?}");
        assert_eq!(outcome.stdout, "");
        // One task is no job, and one rank asked for by name is one rank.
        run(command(RING).env(variable, "1"), LIMIT).expect_success();
        run(command(RING).env(variable, "4").env("BELLWETHER_RANKS", "1"), LIMIT).expect_success();
        // A job script of Slurm may start copies; each rank of a launcher would start a job of its own.
        let mut ring = command(RING);
        let outcome = run(ring.env(variable, "4").env("BELLWETHER_RANKS", "2").arg("5"), LIMIT);
        let is_started = variable == "SLURM_NTASKS";
        assert_eq!(outcome.stdout, if is_started { "2 ranks, 5 rounds, sum 1\n" } else { "" }, "{outcome:#?}");
        assert_eq!(outcome.stderr.contains("unset BELLWETHER_RANKS"), !is_started, "{outcome:#?}");
    }
}
