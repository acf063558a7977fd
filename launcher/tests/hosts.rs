//! Jobs on several hosts, and job scripts. The hosts are this one under two names; `ci/netns` has some with a network of their own.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{DEADLINE, Done, Job, bellwether, own_sleep, run, wait_for_processes};
use tempfile::TempDir;

/// Says which host the ranks are on, and becomes their launcher.
const PLAIN: &str = r#"export BELLWETHER_HOST=$1; shift; echo $$ >"$0-$BELLWETHER_HOST"; exec "$@""#;
/// As ssh does it, there is a process between the launchers, whose number it leaves.
const PASSING: &str = r#"export BELLWETHER_HOST=$1; shift; exec 3<&0
{ cat <&3 & echo $! >"$0-$BELLWETHER_HOST"; wait; } | "$@""#;

/// An agent, in a folder of its own.
struct Agent {
    folder: TempDir,
}

impl Agent {
    fn new(script: &str) -> Agent {
        let agent = Agent { folder: tempfile::tempdir().expect("a place for temporary files") };
        std::fs::write(agent.path(), format!("#!/bin/sh\n{script}\n")).expect("there is room");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(agent.path(), all).expect("it is ours");
        agent
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("there is room");
        path.to_str().expect("plain text").to_owned()
    }

    /// The process that it has left the number of.
    fn process(&self, host: &str) -> i32 {
        let path = format!("{}-{host}", self.path().display());
        std::fs::read_to_string(path).expect("the agent was called").trim().parse().expect("a number")
    }

    /// `bellwether run --agent ... ARGUMENTS`.
    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = bellwether(&["run", "--agent"]);
        command.arg(self.path()).args(arguments);
        command
    }

    /// A script on four ranks of two hosts.
    fn script(&self, options: &[&str], script: &str) -> Command {
        let hosts = ["--hosts", "a:2,b:2", "-n", "4"];
        self.run(&[&hosts, options, &["sh", "-c", script]].concat())
    }
}

fn sorted(done: &Done) -> Vec<&str> {
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    lines
}

fn kill(pid: i32) {
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

fn wait_for_file(path: &Path) {
    let until = Instant::now() + DEADLINE;
    while !path.exists() {
        assert!(Instant::now() < until, "waited too long for {}", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn ranks_are_placed_in_the_order_of_the_hosts() {
    let agent = Agent::new(PLAIN);
    let place = ["sh", "-c", "echo $BELLWETHER_RANK of $BELLWETHER_SIZE on $BELLWETHER_HOST"];
    let of = |arguments: &[&str]| {
        let done = run(agent.run(&[arguments, &place].concat()));
        assert_eq!(done.code(), 0, "{}", done.err);
        sorted(&done).join(", ")
    };
    assert_eq!(of(&["--hosts", "a:1,b:3", "-n", "3"]), "0 of 3 on a, 1 of 3 on b, 2 of 3 on b");
    assert_eq!(of(&["--hosts", "a:1,b:1"]), "0 of 2 on a, 1 of 2 on b");
    assert_eq!(of(&["--hosts", "a:2,b", "-n", "2"]), "0 of 2 on a, 1 of 2 on a", "b is not needed");
    // Each line of a machine file is a rank, in this order.
    let file = agent.file("machines", "a\nb # the second\nb\na\nb slots=2\n");
    assert_eq!(of(&["-m", &file, "-n", "5"]), "0 of 5 on a, 1 of 5 on b, 2 of 5 on b, 3 of 5 on a, 4 of 5 on b");
    assert_eq!(of(&["-m", &file]).matches("of 6 on b").count(), 4);
}

#[test]
fn ranks_of_two_hosts_are_one_world() {
    let agent = Agent::new(PLAIN);
    let program = env!("CARGO_BIN_EXE_bellwether");
    let done = run(agent.run(&["--hosts", "a:1,b:2", "-n", "3", program, "bench-empty-rank"]));
    assert_eq!((done.code(), &*done.out, &*done.err), (0, "", ""));
}

/// The launcher of host a hears of the job a second after all hosts are there, and together with it of the end of a rank of host b.
#[test]
fn an_end_that_comes_with_the_job_is_told_to_the_ranks() {
    let agent = Agent::new(
        r#"export BELLWETHER_HOST=$1; shift
[ $BELLWETHER_HOST = b ] && exec "$@"
exec 3<&0
{ sleep 1; exec cat <&3; } | "$@""#,
    );
    let program = env!("CARGO_BIN_EXE_bellwether");
    let script = format!("[ $BELLWETHER_RANK != 3 ] || exit 3; exec {program} bench-empty-rank");
    let done = run(agent.script(&["--grace", "1h"], &script));
    assert_eq!(done.code(), 3, "{}", done.err);
    assert!(done.err.contains("rank 3 is gone: it exited with code 3"), "{}", done.err);
}

#[test]
fn a_rank_that_ends_before_it_joins_is_told_to_the_ranks_of_all_hosts() {
    let agent = Agent::new(PLAIN);
    let program = env!("CARGO_BIN_EXE_bellwether");
    for (end, code, told) in [("kill -9 $$", 137, "signal 9 ended it"), ("exit 3", 3, "it exited with code 3")] {
        // It ends before the others join, or while they wait for it.
        for first in ["rank 3", "the others"] {
            let [before, after] = if first == "rank 3" { ["", "sleep 1;"] } else { ["sleep 1;", ""] };
            let script =
                format!("[ $BELLWETHER_RANK != 3 ] || {{ {before} {end}; }}; {after} exec {program} bench-empty-rank");
            let done = run(agent.script(&["--grace", "1h"], &script));
            assert_eq!(done.code(), code, "{}", done.err);
            assert!(done.err.contains(&format!("rank 3 is gone: {told}")), "{}", done.err);
            let summary =
                done.err.lines().filter(|line| line.starts_with("  rank ") && line.contains(": exit 2 after"));
            assert_eq!(summary.count(), 3, "{first} first: {}", done.err);
        }
    }
}

#[test]
fn output_comes_whole_and_by_lines() {
    let agent = Agent::new(PLAIN);
    let script = "i=0; while [ $i -lt 500 ]; do printf 'rank %s ' $BELLWETHER_RANK; echo line $i; i=$((i + 1)); done; \
                  [ $BELLWETHER_RANK != 3 ] || yes much | head -n 1000000";
    let done = run(agent.script(&["--tag"], script));
    assert_eq!(done.code(), 0, "{}", done.err);
    for rank in 0..4 {
        let of_rank = done.out.lines().filter_map(|line| line.strip_prefix(&format!("[{rank}] rank {rank} line ")));
        assert!(of_rank.eq((0..500).map(|line| line.to_string())), "rank {rank}");
    }
    assert_eq!(done.out.lines().filter(|line| *line == "[3] much").count(), 1_000_000);
    assert_eq!(done.out.lines().count(), 1_002_000);
}

#[test]
fn standard_input_goes_to_rank_0() {
    let agent = Agent::new(PLAIN);
    let input: Vec<u8> = (0..300_000u32).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let script = "cksum | sed \"s/^/$BELLWETHER_RANK /\"";
    let done = Job::feed(agent.script(&[], script), &input).wait();
    let expected = Job::feed(
        {
            let mut cksum = Command::new("cksum");
            cksum.arg("-");
            cksum
        },
        &input,
    )
    .wait()
    .out;
    let expected = expected.trim_end().trim_end_matches(" -");
    let lines = sorted(&done);
    assert_eq!(lines[0], format!("0 {expected}"), "{}", done.err);
    assert!(lines[1..].iter().all(|line| line.ends_with("4294967295 0")), "{lines:?}");
    // A file, which cannot be waited for.
    let file = agent.file("input", std::str::from_utf8(&input).expect("digits"));
    let file = std::fs::File::open(file).expect("it has just been written");
    let mut command = agent.script(&[], script);
    command.stdin(file);
    let out = String::from_utf8(command.output().expect("it was built").stdout).expect("digits");
    assert!(out.lines().any(|line| line == format!("0 {expected}")), "{out}");
}

#[test]
fn the_first_cause_is_told_as_on_one_host() {
    let agent = Agent::new(PLAIN);
    let text = "[ $BELLWETHER_RANK = 3 ] || exec sleep 60; echo no luck >&2; kill -9 $$";
    let done = run(agent.script(&["--grace", "0s"], text));
    assert_eq!(done.code(), 137, "{}", done.err);
    assert!(done.err.contains("bellwether: rank 3 (pid "), "{}", done.err);
    assert!(done.err.contains("failed first: killed by signal 9 (SIGKILL) after"), "{}", done.err);
    // By SIGTERM, or by SIGKILL if its end takes long.
    let ended = |line: &str| line.starts_with("  rank 0: ") && line.contains("the launcher (SIG");
    assert!(done.err.lines().any(ended), "{}", done.err);
    let text = "[ $BELLWETHER_RANK = 1 ] || exec sleep 60; exit 7";
    let done = run(agent.script(&["--grace", "0s"], text));
    assert_eq!(done.code(), 7, "{}", done.err);
    assert!(done.err.contains("rank 1 (pid ") && done.err.contains("failed first: exit 7"), "{}", done.err);
    // One that heeds no SIGTERM.
    let ready = agent.folder.path().join("ready");
    let text = format!(
        "[ $BELLWETHER_RANK = 0 ] || {{ trap '' TERM; touch {0}-$BELLWETHER_RANK; while :; do sleep 1; done; }}; \
         until [ -e {0}-1 ] && [ -e {0}-2 ] && [ -e {0}-3 ]; do sleep 0.01; done; exit 3",
        ready.display()
    );
    let done = run(agent.script(&["--grace", "0s"], &text));
    assert_eq!(done.code(), 3, "{}", done.err);
    assert!(done.err.contains("  rank 3: ended by the launcher (SIGKILL)"), "{}", done.err);
    assert_eq!(run(agent.script(&["--timeout", "2s"], "sleep 60")).code(), 124);
}

#[test]
fn a_host_that_cannot_be_used_is_named_with_what_was_tried() {
    let agent = Agent::new(PLAIN);
    let own = env!("CARGO_BIN_EXE_bellwether");
    let started = agent.folder.path().join("started");
    let started = started.to_str().expect("plain text");
    for (agent, status, told) in [
        ("no/such/agent", 125, "host b cannot be used: `no/such/agent b"),
        ("no-such-agent", 125, "no folder of PATH has it"),
        ("false", 125, &*format!("host b cannot be used: `false b {own} host-of-job` ended (exit 1)")),
        ("echo Welcome", 125, "printed \"Welcome b "),
        (" ", 2, "--agent names no command"),
    ] {
        let arguments = ["run", "--hosts", "localhost:1,b:1", "-n", "2", "--agent", agent, "touch", started];
        let done = run(bellwether(&arguments));
        assert_eq!(done.code(), status, "{agent}: {}", done.err);
        assert!(done.err.contains(told), "{agent}: {}", done.err);
        assert!(!Path::new(started).exists(), "{agent}: a rank was started though a host is not there");
    }
    let removed = Agent::new("shift; exec /no/such/bellwether");
    let done = run(removed.script(&[], "true"));
    assert!(done.code() == 125 && done.err.contains("has to be installed at the same path"), "{}", done.err);
    let done = run(agent.run(&["--hosts", "a:1,b:1", "-n", "2", "no-such-program"]));
    assert_eq!(done.code(), 127, "{}", done.err);
    assert!(done.err.contains("on host "), "{}", done.err);
    assert!(done.err.contains("cannot start `no-such-program`: no folder of PATH has it"), "{}", done.err);
}

#[test]
fn lists_and_numbers_that_make_no_sense() {
    let agent = Agent::new(PLAIN);
    let empty = agent.file("empty", "# none\n");
    for (arguments, told) in [
        (&["--hosts", "a:x", "-n", "2"][..], "`a:x`: expected a number of ranks"),
        (&["--hosts", "a,,b", "-n", "2"], "`` is no host"),
        (&["--hosts", "-oProxyCommand=x,b", "-n", "2"], "is no host"),
        (&["--hosts", "a,b"], "give the number of ranks"),
        (&["--hosts", "a:2,b:1", "-n", "4"], "has room for 3 ranks, and -n asks for 4"),
        (&["--hosts", "a:4:2", "-n", "2"], "`a:4:2` is no host: it has several colons"),
        (&["--hosts", "a,b,a", "-n", "2"], "`a` is named more than once"),
        (&["-m", &agent.file("words", "a slots=x more\n"), "-n", "2"], "expected a number of ranks, 1 or more"),
        (&["-m", &agent.file("twice", "a:2 slots=3\n"), "-n", "2"], "the number of ranks stands there twice"),
        (&["--hosts", "a,b", "-n", "1000000"], "1000000 ranks are asked for, and the hosts have room for"),
        (&["--hosts", "a:1,b", "-n", "1000000"], "write their number behind it, as in `b:999999`"),
        (&["--hosts", "localhost", "-n", "1000000"], "write their number behind it, as in `localhost:1000000`"),
        (&["--hosts", "localhost", "-n", "1000000", "--survive"], "1000000 ranks are asked for"),
        (&["--hosts", "a:2,b:2", "-n", "4", "--survive"], "--survive is for jobs on one host"),
        (&["-m", &empty], "it names no host"),
        (&["-m", "no/such/file"], "cannot read no/such/file"),
    ] {
        let done = run(agent.run(&[arguments, &["true"]].concat()));
        assert!(done.code() == 2 && done.err.contains(told), "{arguments:?}: {done:?}");
    }
}

#[test]
fn what_the_ranks_get_of_the_environment() {
    let bare = Agent::new(r#"name=$1; shift; exec env -i BELLWETHER_HOST=$name "$@""#);
    let mut command =
        bare.script(&[], "echo $BELLWETHER_HOST $BELLWETHER_OWN $RUST_OWN $LD_LIBRARY_PATH ${OTHER-none}; pwd");
    command.envs([("BELLWETHER_OWN", "1"), ("RUST_OWN", "2"), ("LD_LIBRARY_PATH", "/3"), ("OTHER", "4")]);
    let folder = bare.folder.path().canonicalize().expect("it is there");
    let done = run({
        command.current_dir(&folder);
        command
    });
    let folder = folder.to_str().expect("plain text");
    let mut expected =
        vec![folder, folder, folder, folder, "a 1 2 /3 none", "a 1 2 /3 none", "b 1 2 /3 none", "b 1 2 /3 none"];
    expected.sort_unstable();
    assert_eq!(sorted(&done), expected, "{}", done.err);
    // A folder that is not on the other host.
    let removing = Agent::new(r#"rmdir "$PWD"; shift; exec "$@""#);
    let gone = bare.folder.path().join("gone");
    std::fs::create_dir(&gone).expect("there is room");
    let done = run({
        let mut command = removing.run(&["--hosts", "a:1", "-n", "1", "true"]);
        command.current_dir(&gone);
        command
    });
    assert!(done.code() == 125 && done.err.contains("on host a: cannot work in the launcher's folder"), "{done:?}");
}

#[test]
fn the_same_error_of_all_ranks_is_shown_once() {
    let agent = Agent::new(PLAIN);
    // A rank ends when all have started.
    let text = |folder: &Path, end: &str| {
        let folder = folder.display();
        format!("touch {folder}/$BELLWETHER_RANK; until [ $(ls {folder} | wc -l) = 4 ]; do sleep 0.01; done; {end}")
    };
    let of = |end: &str| {
        let folder = tempfile::tempdir().expect("a place for temporary files");
        let done = run(agent.script(&["--grace", "60s"], &text(folder.path(), end)));
        (done.err.lines().filter(|line| *line == "Error: no luck").count(), done)
    };
    // As `main` returns it. A rank that gets no processor between its words and its end has them shown: then again.
    let end = "echo 'Error: no luck' >&2; exit 3";
    let mut told = of(end);
    for _ in 0..20 {
        if told.0 > 1 {
            told = of(end);
        }
    }
    let (times, done) = told;
    assert_eq!((times, done.code()), (1, 3), "{}", done.err);
    assert_eq!(done.err.matches("bellwether: the error above came on all ranks").count(), 1, "{}", done.err);
}

#[test]
fn signals_reach_the_ranks_of_all_hosts() {
    let agent = Agent::new(PLAIN);
    let text = "trap 'echo heard; exit 0' INT; echo ready; while :; do sleep 0.05; done";
    let mut job = Job::start(agent.script(&[], text));
    job.wait_for_lines(4);
    job.signal(libc::SIGINT);
    let done = job.wait();
    assert_eq!(done.out.matches("heard").count(), 4, "{done:?}");
    let mut job = Job::start(agent.script(&["--grace", "60s"], "echo ready; exec sleep 60"));
    job.wait_for_lines(4);
    job.signal(libc::SIGTERM);
    let done = job.wait();
    assert_eq!(done.code(), 128 + libc::SIGTERM, "{done:?}");
    assert!(done.err.contains("ended by SIGTERM"), "{done:?}");
}

#[test]
fn nothing_is_left_when_the_launcher_is_killed() {
    for script in [PLAIN, PASSING] {
        let agent = Agent::new(script);
        let sleep = own_sleep();
        let mut job = Job::start(agent.script(&[], &format!("sleep {sleep} & echo ready; sleep {sleep}")));
        job.wait_for_lines(4);
        wait_for_processes(&sleep, 8);
        job.signal(libc::SIGKILL);
        wait_for_processes(&sleep, 0);
    }
}

#[test]
fn a_lost_connection_ends_the_job_and_names_the_host() {
    for (script, ended) in [(PLAIN, "ended (killed by signal 9 (SIGKILL))"), (PASSING, "ended (exit 1)")] {
        let agent = Agent::new(script);
        let sleep = own_sleep();
        let mut job = Job::start(agent.script(&[], &format!("echo ready; sleep {sleep}")));
        job.wait_for_lines(4);
        kill(agent.process("b"));
        let done = job.wait();
        assert_eq!(done.code(), 1, "{}", done.err);
        assert!(done.err.contains("the connection to host b is lost: `"), "{}", done.err);
        assert!(done.err.contains(ended), "{}", done.err);
        assert!(done.err.contains("  rank 3: ended by the launcher (SIGKILL)"), "{}", done.err);
        wait_for_processes(&sleep, 0);
    }
}

/// A host whose ranks have ended, and that has told so, is not missed, whatever its connection does then.
#[test]
fn a_connection_that_ends_after_the_ranks_of_its_host_ends_nothing() {
    // Speaks for the launcher of b, up to the end of rank 1, and breaks off before `Bye`: `runtime/src/bootstrap/launch/hosts/frame.rs`.
    let version = env!("CARGO_PKG_VERSION");
    let hello = format!(r"\{:03o}\000\000\000\000\{:03o}{version}\001", version.len() + 3, version.len());
    let ended = r"\004\000\000\000\007\001\000\000";
    let agent = Agent::new(&format!(
        "[ $1 = b ] || {{ shift; exec \"$@\"; }}
         printf '\\000bellwether-host\\n{hello}'; head -c 4 >/dev/null; printf '{ended}'; touch $0-gone"
    ));
    let gone = agent.folder.path().join("agent-gone");
    let text = format!("until [ -e {} ]; do sleep 0.01; done; sleep 1; echo done", gone.display());
    let done = run(agent.run(&["--hosts", "a:1,b:1", "--grace", "0s", "sh", "-c", &text]));
    assert_eq!((done.code(), &*done.out), (0, "done\n"), "{}", done.err);
}

#[test]
fn a_host_that_falls_silent_does_not_keep_the_job() {
    let sleep = own_sleep();
    let agent = Agent::new(PLAIN);
    let mut job = Job::start(agent.script(&[], &format!("echo ready; exec sleep {sleep}")));
    job.wait_for_lines(4);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::kill(agent.process("b"), libc::SIGSTOP) }, 0);
    job.signal(libc::SIGINT);
    let done = job.wait();
    assert_eq!(done.code(), 128 + libc::SIGINT, "{done:?}");
    assert!(done.err.contains("bellwether: host b is given up: `"), "{done:?}");
    wait_for_processes(&sleep, 0);
    // By the time limit; what is stopped is a process between the launchers.
    let agent = Agent::new(PASSING);
    let text = format!("[ $BELLWETHER_RANK != 3 ] || kill -STOP $(cat {}-b); exec sleep 60", agent.path().display());
    let done = run(agent.script(&["--timeout", "3s"], &text));
    assert_eq!(done.code(), 124, "{done:?}");
}

#[test]
fn signals_that_come_while_hosts_are_reached_do_no_harm() {
    let agent =
        Agent::new(&format!("touch $0-seen-$1; [ $1 = a ] || until [ -e $0-go ]; do sleep 0.01; done\n{PLAIN}"));
    let of = |name: &str| agent.folder.path().join(format!("agent-{name}"));
    let job = Job::start(agent.script(&[], "echo well"));
    wait_for_file(&of("seen-a"));
    wait_for_file(&of("seen-b"));
    for signal in [libc::SIGCONT, libc::SIGUSR1, libc::SIGUSR2] {
        job.signal(signal);
    }
    std::fs::write(of("go"), "").expect("there is room");
    let done = job.wait();
    assert_eq!((done.code(), &*done.out), (0, "well\nwell\nwell\nwell\n"), "{}", done.err);
}

#[test]
fn a_host_that_has_not_answered_is_named() {
    let agent = Agent::new(&format!("[ $1 = a ] || {{ echo $$ >$0-$1; exec sleep 60; }}\n{PLAIN}"));
    let done = run(agent.script(&["--timeout", "1s"], "true"));
    assert_eq!(done.code(), 124, "{}", done.err);
    assert!(done.err.contains("it was allowed; no rank was running\n"), "{}", done.err);
    assert!(done.err.contains(&format!("host b has not answered: `{} b ", agent.path().display())), "{}", done.err);
    let started = agent.folder.path().join("agent-b");
    let _ = std::fs::remove_file(&started);
    let job = Job::start(agent.script(&[], "true"));
    wait_for_file(&started);
    job.signal(libc::SIGINT);
    let done = job.wait();
    assert_eq!(done.code(), 128 + libc::SIGINT, "{}", done.err);
    assert!(done.err.contains("host b has not answered: `"), "{}", done.err);
}

/// Ranks of the same host that are started in two goes are bound as if they were started in one.
#[test]
fn entries_of_one_host_share_its_cpus() {
    let agent = Agent::new(PLAIN);
    let place = ["sh", "-c", "grep Cpus_allowed_list /proc/self/status"];
    let of = |hosts: &str| {
        let done = run(agent.run(&[&["--bind", "core", "--tag", "--hosts", hosts], &place[..]].concat()));
        assert_eq!(done.code(), 0, "{}", done.err);
        sorted(&done).iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()
    };
    // Ranks 0 and 1 are on a, rank 2 is on b.
    let (apart, together) = (of("a:1,b:1,a:1"), of("a:2,b:1"));
    let cpu = |lines: &[String], rank: usize| lines[rank].split(':').next_back().expect("a list").trim().to_owned();
    assert_eq!([cpu(&apart, 0), cpu(&apart, 2)], [cpu(&together, 0), cpu(&together, 1)], "{apart:?} {together:?}");
    assert_eq!(cpu(&apart, 1), cpu(&together, 2));
}

/// `salloc` opens a shell in a step of its own where Slurm is set up so.
#[test]
fn a_shell_of_salloc_is_no_step() {
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let srun = folder.path().join("srun");
    std::fs::write(
        &srun,
        "#!/bin/sh\n[ $1 != --mpi=list ] || { echo pmi2; exit; }\necho srun \"$@\" ${BELLWETHER_RANKS-unset}\n",
    )
    .expect("room");
    std::fs::set_permissions(&srun, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").expect("it is set"));
    let in_step = |step: Option<&str>, join: Option<&str>| {
        let mut command = bellwether(&["run", "-n", "1", "sh", "-c", "echo here"]);
        command.env("PATH", &path).env("SLURM_JOB_ID", "7").env_remove("SLURM_STEP_ID").env_remove("BELLWETHER_JOIN");
        command.env("BELLWETHER_RANKS", "3");
        command.envs(step.map(|step| ("SLURM_STEP_ID", step))).envs(join.map(|join| ("BELLWETHER_JOIN", join)));
        run(command)
    };
    for outside in [None, Some("4294967290")] {
        let done = in_step(outside, None);
        assert!(done.code() == 0 && done.out.starts_with("srun --mpi=pmi2 --ntasks=1 "), "{outside:?}: {done:?}");
        assert!(done.out.ends_with(" unset\n"), "the ranks would refuse another number: {done:?}");
    }
    assert_eq!(in_step(Some("0"), None).out, "here\n");
    let done = in_step(None, Some("pmi1"));
    assert!(done.code() == 2 && done.err.contains("BELLWETHER_JOIN=pmi1 is no plug-in of Slurm"), "{done:?}");
}

#[test]
fn a_job_script_says_what_was_asked() {
    let batch = |arguments: &[&str]| run(bellwether(&[&["batch"], arguments].concat()));
    let asked =
        ["-N", "4", "-n", "128", "--time", "1:00:00", "-p", "long", "--", "./my prog", "--its", "it's", "$HOME"];
    let done = batch(&asked);
    assert_eq!((done.code(), &*done.err), (0, ""));
    for line in ["--job-name=myprog", "--nodes=4", "--ntasks=128", "--time=1:00:00", "--partition=long"] {
        assert!(done.out.contains(&format!("\n#SBATCH {line} ")), "{line}: {}", done.out);
    }
    assert!(done.out.starts_with("#!/bin/bash\n#SBATCH "), "{}", done.out);
    assert!(done.out.contains(r" -- './my prog' --its 'it'\''s' '$HOME'"), "{}", done.out);
    assert!(done.out.contains("\nunset BELLWETHER_RANKS\n"), "{}", done.out);
    // Bash takes it.
    let mut bash = Command::new("bash");
    bash.args(["-n", "/dev/stdin"]);
    let parsed = Job::feed(bash, done.out.as_bytes()).wait();
    assert_eq!((parsed.code(), &*parsed.err), (0, ""), "{}", done.out);
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let file = folder.path().join("job.sh");
    let written = batch(&[&["-o", file.to_str().expect("plain text")], &asked[..]].concat());
    assert_eq!((written.code(), &*written.out), (0, ""));
    assert_eq!(std::fs::read_to_string(file).expect("it was written"), done.out);
    for (arguments, told) in [
        (&["-N", "4", "-n", "2", "--time", "1:00:00", "true"][..], "4 nodes for 2 ranks"),
        (&["-N", "1", "-n", "2", "--time", "1h", "true"], "expected a time as sbatch takes it"),
        (&["-N", "1", "-n", "2", "--time", "5", "-p", "a b", "true"], "expected a name"),
        (&["-N", "1", "-n", "2", "true"], "--time"),
    ] {
        let done = batch(arguments);
        assert!(done.code() == 2 && done.err.contains(told), "{arguments:?}: {done:?}");
    }
}
