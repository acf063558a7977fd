//! A build without MPI under the real launchers: Open MPI's `mpirun` (PMIx), and MPICH's `mpiexec` (PMI-1) where it is
//! installed. `ci/slurm` does the same under srun.
#![cfg(not(feature = "mpi"))]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use bellwether_tests::process::{Outcome, command, end, run, start_holding, wait};
use bellwether_tests::{gaspi, lapi};

const RING: &str = env!("CARGO_BIN_EXE_ring");
/// Another program that only starts and ends.
const START: &str = env!("CARGO_BIN_EXE_start");
const LIMIT: Duration = Duration::from_secs(60);
/// A job with a dead rank is over by then; `mpirun` itself takes about a second.
const SOON: Duration = Duration::from_secs(40);

/// A launcher, with the options by which it serves an exchange.
#[derive(Debug, Clone, Copy)]
struct Launcher {
    name: &'static str,
    arguments: &'static [&'static str],
}

const MPIRUN: Launcher = Launcher { name: "mpirun", arguments: &["--oversubscribe", "--allow-run-as-root"] };
const HYDRA: &[Launcher] = &[
    Launcher { name: "mpiexec.hydra", arguments: &[] },
    Launcher { name: "mpiexec.hydra", arguments: &["-pmi-port"] },
];

impl Launcher {
    fn is_here(self) -> bool {
        let here = command(self.name).arg("--version").output().is_ok_and(|output| output.status.success());
        if !here {
            eprintln!("skipped: there is no {}", self.name);
        }
        here
    }

    fn command(self) -> Command {
        let mut command = command(self.name);
        command.args(self.arguments);
        command
    }

    /// Runs each group of ranks with its program. On a crowded machine [a run is lost](is_lost) now and then: then again, a few times.
    fn groups(self, groups: &[(usize, &[&str])]) -> Outcome {
        let mut command = self.command();
        for (number, (ranks, program)) in groups.iter().enumerate() {
            if number > 0 {
                command.arg(":");
            }
            command.args(["-n", &ranks.to_string()]).args(*program);
        }
        let mut outcome = run(&mut command, LIMIT);
        for _ in 0..9 {
            if !is_lost(&outcome) {
                break;
            }
            outcome = run(&mut command, LIMIT);
        }
        outcome
    }
}

/// Whether Hydra has died of SIGPIPE, itself or below another launcher, or has dropped the error of a rank that ended with status 1 or 101.
fn is_lost(outcome: &Outcome) -> bool {
    let told = format!("{}{}", outcome.stdout, outcome.stderr);
    let has_died = outcome.status.signal() == Some(libc::SIGPIPE) || told.contains("signal 13");
    let failed = ["EXIT CODE: 1\n", "EXIT CODE: 101\n"].iter().any(|line| outcome.stdout.contains(line));
    has_died || failed && outcome.stderr.is_empty()
}

/// The launchers of this machine, one at least.
fn launchers() -> Vec<Launcher> {
    let all = std::iter::once(MPIRUN).chain(HYDRA.iter().copied());
    let here: Vec<Launcher> = all.filter(|launcher| launcher.is_here()).collect();
    assert!(!here.is_empty(), "there is no launcher to test; ci/setup says which packages have them");
    here
}

#[test]
fn ring_without_mpi() {
    for launcher in launchers() {
        for ranks in [1, 2, 3, 4, 7] {
            let outcome = launcher.groups(&[(ranks, &[RING])]).expect_success();
            let line = format!("{ranks} ranks, 1000 rounds, sum {}\n", ranks * (ranks - 1) / 2);
            assert_eq!(outcome.stdout, line, "{launcher:?}: {outcome:#?}");
        }
    }
}

/// Whether there is an `mpirun`; says so if there is none.
fn has_mpirun() -> bool {
    let is_here = MPIRUN.is_here();
    if !is_here {
        eprintln!("skipped: there is no mpirun");
    }
    is_here
}

/// A launcher inside another one leaves the variables of that: the ranks of the inner one are the job.
#[test]
fn a_launcher_inside_another_is_the_one_that_is_joined() {
    if !has_mpirun() {
        return;
    }
    for inner in HYDRA.iter().copied().filter(|launcher| launcher.is_here()) {
        let program: Vec<&str> =
            [inner.name].iter().chain(inner.arguments).chain(&["-n", "3", RING, "5"]).copied().collect();
        let outcome = MPIRUN.groups(&[(1, &program)]).expect_success();
        assert_eq!(outcome.stdout, "3 ranks, 5 rounds, sum 3\n", "{inner:?}: {outcome:#?}");
        let program: Vec<&str> =
            ["mpirun"].iter().chain(MPIRUN.arguments).chain(&["-n", "3", RING, "5"]).copied().collect();
        let outcome = inner.groups(&[(1, &program)]).expect_success();
        assert_eq!(outcome.stdout, "3 ranks, 5 rounds, sum 3\n", "{inner:?}: {outcome:#?}");
    }
}

/// A program that a launcher starts as one task is alone: it may start worlds in turn, and copies of itself.
#[test]
fn one_task_is_as_if_there_were_no_launcher() {
    for launcher in launchers() {
        launcher.groups(&[(1, &[START, "again", "3"])]).expect_success();
        let outcome = launcher.groups(&[(1, &[START, "copies", "4"])]).expect_success();
        assert_eq!(outcome.stdout, "4 copies\n", "{launcher:?}: {outcome:#?}");
        // Of several tasks each joins the others, and once.
        let outcome = launcher.groups(&[(2, &[START, "copies", "4"])]).expect_success();
        assert_eq!(outcome.stdout, "2 copies\n", "{launcher:?}: {outcome:#?}");
        let outcome = launcher.groups(&[(2, &[START, "again", "2"])]).expect_failure();
        assert!(outcome.stderr.contains("start the world once"), "{launcher:?}: {outcome:#?}");
    }
    // Where the number of tasks is known only when the launcher is asked.
    let mut mpirun = MPIRUN.command();
    mpirun.args(["-n", "1", "env", "-u", "OMPI_MCA_ess_base_jobid", START]);
    if has_mpirun() {
        run(mpirun.args(["again", "3"]), LIMIT).expect_success();
    }
}

#[test]
fn a_rank_that_goes_wrong_ends_the_job() {
    // The launcher may end the others before they can say why.
    let by_launcher: &[&str] = &["its process ended", "signal 9", "EXIT CODE: 9"];
    let exited: &[&str] = &["its process ended", "signal 9", "EXIT CODE: 9", "Exit code:    3", "EXIT CODE: 3"];
    for launcher in launchers() {
        for (way, causes) in [
            ("kill", by_launcher),
            ("panic", &["as I was told to"]),
            ("exit", exited),
            ("leave", &["is gone: it left"]),
        ] {
            for rank in ["0", "2"] {
                let outcome = launcher.groups(&[(3, &[RING, way, rank])]).expect_failure();
                assert!(outcome.took < SOON, "{launcher:?}, {way} {rank}: {outcome:#?}");
                let told = format!("{}{}", outcome.stdout, outcome.stderr);
                // Hydra says nothing of a status but by its own.
                let is_told = causes.iter().any(|cause| told.contains(cause))
                    || way == "exit" && outcome.status.code() == Some(3);
                assert!(is_told, "{launcher:?}, {way} {rank}: {outcome:#?}");
                assert!(!told.contains("Error: starting"), "{launcher:?}, {way} {rank}: {outcome:#?}");
            }
        }
        let outcome = launcher.groups(&[(3, &[RING, "panic", "1", "busy"])]).expect_failure();
        assert!(outcome.took < SOON && outcome.stderr.contains("as I was told to"), "{launcher:?}: {outcome:#?}");
    }
}

/// `mpirun` ends a job itself when a rank dies, unless it is told not to.
#[test]
fn a_rank_that_goes_wrong_is_noticed_without_the_launcher() {
    if !has_mpirun() {
        return;
    }
    for (way, cause) in
        [("kill", "its process ended"), ("exit", "its process ended"), ("panic", "it panicked"), ("leave", "it left")]
    {
        let mut mpirun = MPIRUN.command();
        let outcome = run(mpirun.args(["--enable-recovery", "-n", "3", RING, way, "2"]), LIMIT);
        let told = outcome.stderr.matches(&format!("rank 2 is gone: {cause}")).count();
        assert_eq!(told, 2, "{way}: {outcome:#?}");
    }
}

/// A wait that never sleeps, since messages keep coming, hears of a death that no launcher tells.
#[test]
fn a_death_is_noticed_beside_a_stream_of_messages() {
    if has_mpirun() {
        let mut mpirun = MPIRUN.command();
        let outcome = run(mpirun.args(["--enable-recovery", "-n", "2", START, "stream"]), LIMIT);
        assert!(outcome.stdout.starts_with("rank 0: waiting: rank 1 is gone: its process ended"), "{outcome:#?}");
    }
}

/// Told to leave the others alone, `mpirun` lets them go on, to their end with status 0. Hydra ends them whatever it is told.
#[test]
fn ranks_go_on_after_a_death_where_mpirun_lets_them() {
    if !has_mpirun() {
        return;
    }
    for victim in [0, 2] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mpirun = MPIRUN.command();
        let tell = r#""$@"; status=$?; echo $status >"$0/status.$OMPI_COMM_WORLD_RANK"; exit $status"#;
        mpirun.args(["--enable-recovery", "-n", "4", "sh", "-c", tell]).arg(folder.path());
        mpirun.args([START, "survive", &victim.to_string()]).arg(folder.path());
        let outcome = run(&mut mpirun, LIMIT);
        for rank in (0..4).filter(|rank| *rank != victim) {
            let line = std::fs::read_to_string(folder.path().join(rank.to_string())).unwrap_or_default();
            assert_eq!(line, format!("rank {rank} goes on, one of 3"), "{outcome:#?}");
            let status = std::fs::read_to_string(folder.path().join(format!("status.{rank}"))).unwrap_or_default();
            assert_eq!(status, "0\n", "the status of rank {rank}: {outcome:#?}");
        }
    }
}

#[test]
fn killing_one_rank_from_outside_ends_all() {
    for launcher in launchers() {
        let (mut job, pids) = start_holding(launcher.command().args(["-n", "4", RING, "hold"]), 4);
        assert!(Command::new("kill").args(["-9", &pids[2]]).status().unwrap().success());
        let status = wait(&mut job, SOON);
        if status.is_none() {
            end(&mut job);
        }
        assert!(!status.expect("ended within the limit").success(), "{launcher:?}");
    }
}

#[test]
fn two_programs_in_one_job_are_refused() {
    for launcher in launchers() {
        let outcome = launcher.groups(&[(2, &[RING]), (1, &[START])]).expect_failure();
        assert!(outcome.stderr.contains("executable's build id"), "{launcher:?}: {outcome:#?}");
        assert!(outcome.took < SOON, "{launcher:?}: {outcome:#?}");
    }
}

/// The hosts meet, and their ranks reach each other by TCP.
#[test]
fn ranks_on_two_hosts_meet() {
    for launcher in launchers() {
        let on = |host: &'static str| ["env", host, RING];
        let (a, b) = (on("BELLWETHER_HOST=a"), on("BELLWETHER_HOST=b"));
        let outcome = launcher.groups(&[(2, &a), (1, &b), (1, &a)]).expect_success();
        assert_eq!(outcome.stdout, "4 ranks, 1000 rounds, sum 6\n", "{launcher:?}: {outcome:#?}");
        // One name, on every rank, is one host.
        let outcome = launcher.groups(&[(3, &a)]).expect_success();
        assert_eq!(outcome.stdout, "3 ranks, 1000 rounds, sum 3\n", "{launcher:?}: {outcome:#?}");
    }
}

#[test]
fn ranks_that_are_told_to_start_copies_are_refused() {
    // Hydra with `-pmi-port` does not say how many there are.
    for launcher in launchers().into_iter().filter(|launcher| !launcher.arguments.contains(&"-pmi-port")) {
        let outcome = launcher.groups(&[(2, &["env", "BELLWETHER_RANKS=2", RING, "5"])]).expect_failure();
        assert!(outcome.stderr.contains("unset BELLWETHER_RANKS"), "{launcher:?}: {outcome:#?}");
        assert_eq!(outcome.stdout, "", "no world may have run");
    }
}

#[test]
fn a_child_of_a_rank_is_not_taken_for_it() {
    for launcher in launchers() {
        let folder = tempfile::tempdir().expect("room for files");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (over, told) = (path("over"), path("told"));
        let parent = format!(
            "{RING} until {over} > {told} & while [ ! -s {told} ]; do sleep 0.05; done; {RING} 5; \
             BELLWETHER_RANKS=1 {RING} 5; touch {over}; wait $!"
        );
        let outcome = launcher.groups(&[(2, &[RING, "until", &over]), (1, &["sh", "-c", &parent])]).expect_success();
        assert!(outcome.stderr.contains("child of a rank"), "{launcher:?}: {outcome:#?}");
        assert!(outcome.stdout.contains("1 ranks, 5 rounds, sum 0"), "{launcher:?}: {outcome:#?}");
        assert!(outcome.took < SOON, "{launcher:?}: {outcome:#?}");
    }
    // The place is free for the next program in the task.
    if has_mpirun() {
        let outcome = MPIRUN.groups(&[(2, &["sh", "-c", &format!("{RING} 5; {RING} 6")])]);
        assert!(outcome.stdout.contains("2 ranks, 5 rounds, sum 1\n"), "{outcome:#?}");
        assert!(!outcome.stderr.contains("child of a rank"), "{outcome:#?}");
    }
    // Hydra's socket serves one.
    if HYDRA[0].is_here() {
        let both = format!("{RING} 5; {RING} 6");
        let outcome = HYDRA[0].groups(&[(2, &["sh", "-c", &both])]).expect_failure();
        assert!(outcome.stdout.contains("2 ranks, 5 rounds, sum 1\n"), "{outcome:#?}");
        assert!(outcome.stderr.contains("another program of this task"), "{outcome:#?}");
    }
}

/// The rows of LAPI and GASPI, between the ranks of a launcher. The programs' own watchdog ends one that hangs after 1000 s, and tells where.
fn rows(program: &str, names: &[&str], ranks: &str) {
    const LIMIT: Duration = Duration::from_secs(1100);
    // With two ranks, the next and the previous rank are the same, a proper subgroup has one member, and a receiver has one sender.
    for number in ["2", "3"].into_iter().filter(|_| has_mpirun()) {
        let mut mpirun = MPIRUN.command();
        let outcome = run(mpirun.args(["-n", number, program, "all"]), LIMIT).expect_success();
        let expected: String = names.iter().map(|name| format!("{name}: {number} {ranks}\n")).collect();
        assert_eq!(outcome.stdout, expected, "{outcome:#?}");
    }
}

fn names<R>(rows: &[(&'static str, R)]) -> Vec<&'static str> {
    rows.iter().map(|(name, _)| *name).collect()
}

#[test]
fn l01_to_l65_rows_between_ranks_of_mpirun() {
    rows(env!("CARGO_BIN_EXE_lapi_rows"), &names(lapi::ROWS), "tasks");
}

/// Owned vectors, and events of every kind, between ranks of one host and of two.
#[test]
fn closures_between_ranks_of_mpirun() {
    const LAPI: &str = env!("CARGO_BIN_EXE_lapi_rows");
    if has_mpirun() {
        let outcome = MPIRUN.groups(&[(3, &[LAPI, "closures"])]).expect_success();
        assert_eq!(outcome.stdout, "closures: 3 tasks\n", "{outcome:#?}");
        let on = |host: &'static str| ["env", "BELLWETHER_TRANSPORT=tcp", host, LAPI, "closures"];
        let groups: [(usize, &[&str]); 2] = [(1, &on("BELLWETHER_HOST=a")), (1, &on("BELLWETHER_HOST=b"))];
        let outcome = MPIRUN.groups(&groups).expect_success();
        assert_eq!(outcome.stdout, "closures: 2 tasks\n", "{outcome:#?}");
    }
}

#[test]
fn g01_to_g71_rows_between_ranks_of_mpirun() {
    rows(env!("CARGO_BIN_EXE_gaspi_rows"), &names(gaspi::ROWS), "processes");
}

/// The same between two hosts, which share no memory: all goes over TCP.
fn rows_between_hosts(program: &str, names: &[&str], ranks: &str) {
    if has_mpirun() {
        let mut mpirun = MPIRUN.command();
        // By its name, as the rows of LAPI ask whether ranks have mapped each other's memory.
        mpirun.env("BELLWETHER_TRANSPORT", "tcp");
        mpirun.args(["-n", "1", "env", "BELLWETHER_HOST=a", program, "all"]);
        mpirun.args([":", "-n", "1", "env", "BELLWETHER_HOST=b", program, "all"]);
        let outcome = run(&mut mpirun, Duration::from_secs(1100)).expect_success();
        let expected: String = names.iter().map(|name| format!("{name}: 2 {ranks}\n")).collect();
        assert_eq!(outcome.stdout, expected, "{outcome:#?}");
    }
}

#[test]
fn l01_to_l65_rows_between_two_hosts() {
    rows_between_hosts(env!("CARGO_BIN_EXE_lapi_rows"), &names(lapi::ROWS), "tasks");
}

#[test]
fn g01_to_g71_rows_between_two_hosts() {
    rows_between_hosts(env!("CARGO_BIN_EXE_gaspi_rows"), &names(gaspi::ROWS), "processes");
}

/// `mpirun` is told to let the others go on, and hydra cannot be.
#[test]
fn g25_g70_g71_one_of_four_is_killed_under_mpirun_and_the_others_go_on() {
    if !has_mpirun() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut mpirun = MPIRUN.command();
    mpirun.args(["--enable-recovery", "-n", "4", env!("CARGO_BIN_EXE_gaspi_rows"), "killed"]).arg(folder.path());
    let outcome = run(&mut mpirun, Duration::from_secs(300));
    let mut went_on: Vec<_> =
        std::fs::read_dir(&folder).expect("it is there").map(|file| file.expect("a file").file_name()).collect();
    went_on.sort();
    assert_eq!(went_on, ["0", "1", "3"], "{outcome:#?}");
}

#[test]
fn a_rank_that_never_comes_is_not_waited_for_for_ever() {
    for launcher in launchers() {
        let late = ["env", "BELLWETHER_JOIN_LIMIT=0.5", RING];
        let outcome = launcher.groups(&[(2, &late), (1, &["sleep", "50"])]).expect_failure();
        assert!(outcome.stderr.contains("BELLWETHER_JOIN_LIMIT"), "{launcher:?}: {outcome:#?}");
        assert!(outcome.took < SOON, "{launcher:?}: {outcome:#?}");
    }
}

/// Told not to end the job, `mpirun` leaves the others waiting for a rank that does not come.
#[test]
fn a_rank_with_a_bad_setting_is_told_to_all() {
    if !has_mpirun() {
        return;
    }
    for setting in ["BELLWETHER_SPIN=x", "BELLWETHER_JOIN_LIMIT=1e19"] {
        let mut mpirun = MPIRUN.command();
        mpirun.args(["--enable-recovery", "-n", "2", RING, ":", "-n", "1", "env", setting, RING]);
        let outcome = run(&mut mpirun, LIMIT);
        let (name, value) = setting.split_once('=').expect("it was written above");
        let told = outcome.stderr.lines().filter(|line| line.starts_with("Error: ") && line.contains(name));
        assert_eq!(told.filter(|line| line.contains(value)).count(), 3, "{outcome:#?}");
        assert!(outcome.took < SOON, "{outcome:#?}");
    }
}

#[test]
fn a_setting_that_the_launcher_cannot_serve_names_what_is_missing() {
    for (join, advice) in [("pmi1", "PMI_FD"), ("pmi2", "--mpi=pmi2"), ("pmix", "PMIX_NAMESPACE"), ("mpi", "feature")] {
        let outcome = run(command(RING).env("BELLWETHER_JOIN", join), LIMIT).expect_failure();
        assert!(outcome.stderr.contains(&format!("BELLWETHER_JOIN={join}")), "{outcome:#?}");
        assert!(outcome.stderr.contains(advice), "{outcome:#?}");
    }
    for launcher in HYDRA.iter().copied().filter(|launcher| launcher.is_here()) {
        // It may end the other rank, and itself, before it has passed on what the ranks said.
        let is_told = || {
            let outcome = run(launcher.command().env("BELLWETHER_JOIN", "pmi2").args(["-n", "2", RING]), LIMIT);
            outcome.expect_failure().stderr.contains("srun --mpi=pmi2")
        };
        assert!((0..5).any(|_| is_told()), "{launcher:?}");
    }
    // A descriptor that is open, and of no server.
    for (fd, why) in [("1", "not an open socket"), ("900", "not an open socket"), ("x", "no descriptor")] {
        let mut ring = command(RING);
        ring.envs([("PMI_FD", fd), ("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
        let outcome = run(&mut ring, LIMIT).expect_failure();
        assert!(outcome.stderr.contains("PMI_SIZE=2") && outcome.stderr.contains(why), "{outcome:#?}");
        assert_eq!(outcome.stdout, "");
    }
}
