//! Jobs that Open MPI's `mpirun` starts.
#![cfg(feature = "mpi")]

use std::process::Command;
use std::time::{Duration, Instant};

use bellwether_tests::process::{Outcome, command, end, run, start_holding, wait};

const RING: &str = env!("CARGO_BIN_EXE_ring");
const MIXED: &str = env!("CARGO_BIN_EXE_mpi_mixed");
/// Another program that only starts and ends.
const START: &str = env!("CARGO_BIN_EXE_start");
const LIMIT: Duration = Duration::from_secs(60);
/// A job with a dead rank is over by then; `mpirun` itself takes about a second.
const SOON: Duration = Duration::from_secs(40);

fn mpirun() -> Command {
    let mut mpirun = command("mpirun");
    mpirun.args(["--oversubscribe", "--allow-run-as-root"]);
    mpirun
}

/// `mpirun -n RANKS PROGRAM...`, for each group separated by a colon.
fn mpirun_groups(groups: &[(usize, &[&str])]) -> Outcome {
    let mut mpirun = mpirun();
    for (number, (ranks, program)) in groups.iter().enumerate() {
        if number > 0 {
            mpirun.arg(":");
        }
        mpirun.args(["-n", &ranks.to_string()]).args(*program);
    }
    run(&mut mpirun, LIMIT)
}

#[test]
fn ring_under_mpirun() {
    for ranks in [1, 2, 3, 4, 7] {
        let outcome = mpirun_groups(&[(ranks, &[RING])]).expect_success();
        let sum = ranks * (ranks - 1) / 2;
        let line = format!("{ranks} ranks, 1000 rounds, sum {sum}\n");
        assert_eq!(outcome.stdout, line, "{outcome:#?}");
    }
}

#[test]
fn mixed_with_the_programs_own_mpi() {
    for ranks in [1, 2, 3, 4, 7] {
        let outcome = mpirun_groups(&[(ranks, &[MIXED])]).expect_success();
        let (half, heard) = (ranks.div_ceil(2), ranks * (ranks + 1) / 2);
        let line = format!("mpi_mixed ok: {ranks} ranks, halves from {half}, heard {heard}\n");
        assert_eq!(outcome.stdout, line, "{outcome:#?}");
    }
}

#[test]
fn a_number_of_ranks_that_has_no_effect_is_warned_of() {
    for (asked, warned) in [("5", true), ("2", false)] {
        let mut mpirun = mpirun();
        let outcome = run(mpirun.env("BELLWETHER_RANKS", asked).args(["-n", "2", MIXED]), LIMIT).expect_success();
        let warning =
            format!("warning: BELLWETHER_RANKS={asked} has no effect here: this world has the 2 ranks of the MPI");
        assert_eq!(outcome.stderr.contains(&warning), warned, "{outcome:#?}");
    }
}

#[test]
fn a_rank_with_bad_settings_is_told_to_all() {
    let (good, bad): ([&str; 2], [&str; 4]) = ([MIXED, "settings"], ["env", "BELLWETHER_SPIN=soon", MIXED, "settings"]);
    for place in [0, 1, 3] {
        let rank = place.to_string();
        let (good, bad) = ([&good[..], &[&rank]].concat(), [&bad[..], &[&rank]].concat());
        let groups = [(place, &good[..]), (1, &bad[..]), (3 - place, &good[..])];
        let groups: Vec<_> = groups.into_iter().filter(|(ranks, _)| *ranks > 0).collect();
        let outcome = mpirun_groups(&groups).expect_success();
        assert_eq!(outcome.stdout, "settings ok: 4 ranks heard of it\n", "{outcome:#?}");
    }
}

#[test]
fn a_rank_that_fails_after_the_meeting_is_not_waited_for() {
    for rank in ["0", "2"] {
        let outcome = mpirun_groups(&[(3, &[MIXED, "memory", rank])]).expect_success();
        assert_eq!(outcome.stdout, "memory ok: 3 ranks heard of it\n", "{outcome:#?}");
    }
}

#[test]
fn two_programs_in_one_job_are_refused() {
    let outcome = mpirun_groups(&[(2, &[RING]), (1, &[START])]).expect_failure();
    assert!(outcome.stderr.contains("executable's build id"), "{outcome:#?}");
    assert!(outcome.stderr.contains("rank 2 has"), "{outcome:#?}");
    assert!(outcome.took < SOON, "{outcome:#?}");
}

#[test]
fn a_rank_that_goes_wrong_ends_the_job() {
    for way in ["kill", "panic", "exit", "leave"] {
        for rank in ["0", "2"] {
            let outcome = mpirun_groups(&[(3, &[RING, way, rank])]).expect_failure();
            assert!(outcome.took < SOON, "{way} {rank}: {outcome:#?}");
        }
    }
}

/// `mpirun` ends a job itself when a rank dies, unless it is told not to.
#[test]
fn a_rank_that_goes_wrong_is_noticed_without_mpirun() {
    for (way, cause) in
        [("kill", "its process ended"), ("exit", "its process ended"), ("panic", "it panicked"), ("leave", "it left")]
    {
        for transport in ["auto", "shm-contract"] {
            let mut mpirun = mpirun();
            mpirun.env("BELLWETHER_TRANSPORT", transport).args(["--enable-recovery", "-n", "3", RING, way, "2"]);
            let outcome = run(&mut mpirun, LIMIT);
            let told = outcome.stderr.matches(&format!("rank 2 is gone: {cause}")).count();
            assert_eq!(told, 2, "{way}, {transport}: {outcome:#?}");
        }
    }
}

/// The rank that panics must not wait in MPI_Finalize for the others.
#[test]
fn a_panic_ends_the_job_while_the_others_compute() {
    let outcome = mpirun_groups(&[(3, &[RING, "panic", "1", "busy"])]).expect_failure();
    assert!(outcome.took < SOON, "{outcome:#?}");
    assert!(outcome.stderr.contains("as I was told to"), "{outcome:#?}");
}

#[test]
fn killing_one_rank_from_outside_ends_all() {
    let (mut job, pids) = start_holding(mpirun().args(["-n", "4", RING, "hold"]), 4);
    let killed = Instant::now();
    assert!(Command::new("kill").args(["-9", &pids[2]]).status().unwrap().success());
    let status = wait(&mut job, SOON);
    if status.is_none() {
        end(&mut job);
    }
    assert!(!status.expect("ended within the limit").success());
    for pid in &pids {
        let asked = Instant::now();
        while lives(pid) {
            assert!(asked.elapsed() < SOON, "process {pid} lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    println!("over {:?} after the kill", killed.elapsed());
}

/// Whether the process runs. One that nobody has reaped yet does not.
fn lives(pid: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])),
        Err(_) => false,
    }
}

/// A launcher that says 4, and an MPI that knows of 1.
#[test]
fn four_tasks_that_come_up_alone_are_refused() {
    for (variable, advice) in [
        ("PMI_SIZE", "the mpirun of the MPI"),
        ("OMPI_COMM_WORLD_SIZE", "the mpirun of the MPI"),
        ("SLURM_NTASKS", "--mpi=pmix"),
    ] {
        let outcome = run(command(RING).env(variable, "4"), LIMIT).expect_failure();
        assert!(outcome.stderr.contains(variable) && outcome.stderr.contains("came up alone"), "{outcome:#?}");
        assert!(outcome.stderr.contains(advice), "{outcome:#?}");
        assert!(!outcome.stderr.contains("--features mpi") || variable != "SLURM_NTASKS", "it has MPI: {outcome:#?}");
    }
}

#[test]
fn without_a_launcher_one_rank_runs_alone() {
    let outcome = run(&mut command(RING), LIMIT).expect_success();
    assert_eq!(outcome.stdout, "1 ranks, 1000 rounds, sum 0\n");
}

/// Runs a shell line in new namespaces; `None` where the system does not let us.
fn unshared(flags: &[&str], script: &str) -> Option<Vec<String>> {
    let mut line: Vec<String> = vec!["unshare".into()];
    line.extend(flags.iter().map(|flag| flag.to_string()));
    line.extend(["sh".into(), "-c".into(), script.into()]);
    let probe = run(command(&line[0]).args(&line[1..line.len() - 1]).arg("true"), LIMIT);
    if !probe.status.success() {
        eprintln!("skipped: {line:?}: {}", probe.stderr);
        return None;
    }
    Some(line)
}

/// Abstract sockets do not cross network namespaces; the descriptor then comes through /proc.
#[test]
fn ranks_in_another_network_namespace_join() {
    let outcome = mpirun_groups(&[(4, &[MIXED, "network"])]).expect_success();
    if outcome.stdout.contains("skipped") {
        eprintln!("{}", outcome.stdout);
    } else {
        assert_eq!(outcome.stdout, "network ok: 4 ranks\n", "{outcome:#?}");
    }
}

/// The hosts meet, and their ranks reach each other by TCP.
#[test]
fn ranks_on_hosts_without_rdma_use_tcp() {
    let on = |host: &'static str| ["env", host, RING];
    let (a, b) = (on("BELLWETHER_HOST=a"), on("BELLWETHER_HOST=b"));
    let outcome = mpirun_groups(&[(2, &a), (1, &b), (1, &a)]).expect_success();
    assert_eq!(outcome.stdout, "4 ranks, 1000 rounds, sum 6\n", "{outcome:#?}");
    let without = ["env", "BELLWETHER_TCP_INTERFACE=nonesuch0", a[1], RING];
    let outcome = mpirun_groups(&[(2, &without), (1, &b)]).expect_failure();
    assert!(outcome.stderr.contains("and 2 are on different hosts, which takes a network"), "{outcome:#?}");
    assert!(outcome.took < SOON, "{outcome:#?}");
    let outcome =
        mpirun_groups(&[(1, &["env", "BELLWETHER_TRANSPORT=shm-contract", a[1], RING]), (1, &b)]).expect_failure();
    assert!(outcome.stderr.contains("shm-contract is shared memory, and ranks are on several hosts"), "{outcome:#?}");
    assert!(outcome.took < SOON, "{outcome:#?}");
    // One name, on every rank, is one host.
    let outcome = mpirun_groups(&[(3, &a)]).expect_success();
    assert_eq!(outcome.stdout, "3 ranks, 1000 rounds, sum 3\n", "{outcome:#?}");
}

#[test]
fn a_rank_on_another_machine_is_named() {
    let boot = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(boot.path(), "00000000-1111-2222-3333-444444444444\n").unwrap();
    let script = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id && hostname elsewhere && exec {RING}",
        boot.path().display()
    );
    let Some(line) = unshared(&["--mount", "--uts"], &script) else { return };
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let without = ["env", "BELLWETHER_TCP_INTERFACE=nonesuch0", RING];
    let outcome = mpirun_groups(&[(2, &without), (1, &line)]).expect_failure();
    assert!(outcome.stderr.contains("and 2 are on different hosts"), "{outcome:#?}");
    assert!(outcome.took < SOON, "{outcome:#?}");
}

/// The other side of the pages on MPI and OpenSHMEM does what the page says that ours does.
#[test]
fn the_guides_programs_in_c() {
    let folder = tempfile::tempdir().expect("room for two programs");
    for (compiler, source) in [("mpicc", "mpi.c"), ("oshcc", "openshmem.c")] {
        let binary = folder.path().join(source.trim_end_matches(".c"));
        let source = format!("{}/../docs/programs/{source}", env!("CARGO_MANIFEST_DIR"));
        let mut compile = command(compiler);
        compile.args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-o"]).arg(&binary).arg(source);
        run(&mut compile, LIMIT).expect_success();
        for ranks in [1, 2, 4] {
            let mut job = mpirun();
            // Open MPI 4.1's OpenSHMEM crashes at its end on its own hook (open-mpi/ompi issue 11604).
            job.args(["--mca", "memory", "^patcher", "-n", &ranks.to_string()]).arg(&binary);
            let outcome = run(&mut job, LIMIT).expect_success();
            assert_eq!(outcome.stdout, format!("sum {}\n", ranks * (ranks - 1) / 2), "{outcome:#?}");
        }
    }
}

/// The page on MPI shows this program.
#[test]
fn the_guides_program_that_keeps_mpi() {
    for ranks in [1, 2, 4] {
        let outcome = mpirun_groups(&[(ranks, &[env!("CARGO_BIN_EXE_guide_from_mpi")])]).expect_success();
        assert_eq!(outcome.stdout, format!("{ranks} ranks, sum {}\n", ranks * (ranks - 1) / 2), "{outcome:#?}");
    }
}
