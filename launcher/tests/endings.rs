//! How jobs end: well, badly, from outside, and what is said and left behind.

mod common;

use std::time::Duration;

use common::{Done, Job, bellwether, own_sleep, processes_with, run, script, wait_for_processes, wait_for_stop};

/// The command in a process that was started with these signals ignored.
fn ignoring(signals: &[i32], mut command: std::process::Command) -> std::process::Command {
    use std::os::unix::process::CommandExt;
    let signals = signals.to_vec();
    let ignore = move || {
        for &signal in &signals {
            // SAFETY: sets an action that runs no code.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        Ok(())
    };
    // SAFETY: only makes system calls on numbers.
    unsafe { command.pre_exec(ignore) };
    command
}

/// The command under a limit on the size of files, of so many bytes.
fn limited(bytes: u64, mut command: std::process::Command) -> std::process::Command {
    use std::os::unix::process::CommandExt;
    let limit = move || {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: reads a record that lives through the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: only makes a system call.
    unsafe { command.pre_exec(limit) };
    command
}

/// The report's status lines.
fn statuses(done: &Done) -> Vec<&str> {
    done.err.lines().filter(|line| line.starts_with("  rank ")).collect()
}

/// How often the first cause is told.
fn headlines(done: &Done) -> usize {
    done.err.lines().filter(|line| line.contains("failed first")).count()
}

#[test]
fn a_job_that_ends_well_says_nothing() {
    let done = run(bellwether(&["run", "-n", "4", "true"]));
    assert_eq!((done.code(), done.out.as_str(), done.err.as_str()), (0, "", ""));
}

#[test]
fn the_exit_status_is_that_of_the_rank() {
    assert_eq!(run(script(1, &[], "exit 42")).code(), 42);
    assert_eq!(run(script(1, &[], "kill -SEGV $$")).code(), 128 + libc::SIGSEGV);
    assert_eq!(run(script(1, &[], "exit 255")).code(), 255);
}

#[test]
fn the_first_cause_is_told_once_with_a_line_for_each_rank() {
    // Rank 2 dies; ranks 0 and 1 notice and fail of it, as they would of a lost peer. They go on when the launcher has
    // reaped rank 2: until then `kill -0` finds the process. The grace is time for both to exit by themselves.
    let dir = tempfile::tempdir().expect("a place for temporary files");
    let dying = dir.path().join("dying");
    let text = "case $BELLWETHER_RANK in \
        2) until [ -e \"$0.last\" ]; do sleep 0.01; done; echo 'out of cheese' >&2; \
           echo $$ >\"$0.new\"; mv \"$0.new\" \"$0\"; kill -9 $$;; \
        3) touch \"$0.last\"; exec sleep 60;; \
        *) while ! [ -e \"$0\" ] || kill -0 $(cat \"$0\") 2>/dev/null; do sleep 0.01; done; \
           for i in 1 2 3; do echo lost a peer >&2; done; exit 7;; esac";
    let mut command = script(4, &["--grace", "10s"], text);
    command.arg(&dying);
    let done = run(command);
    assert_eq!(done.code(), 137, "{}", done.err);
    assert_eq!(headlines(&done), 1, "{}", done.err);
    let head = done.err.lines().position(|line| line.contains("failed first")).expect("counted");
    let report: Vec<_> = done.err.lines().skip(head).collect();
    assert!(report[0].starts_with("bellwether: rank 2 (pid "), "{}", done.err);
    assert!(report[0].contains("killed by signal 9 (SIGKILL) after "), "{}", done.err);
    // Its words had scrolled by: they are told again.
    assert_eq!(report[2], "    out of cheese", "{}", done.err);
    let lines = statuses(&done);
    assert_eq!(lines.len(), 4, "{}", done.err);
    assert!(lines[0].starts_with("  rank 0: exit 7 after "), "{}", done.err);
    assert!(lines[1].starts_with("  rank 1: exit 7 after "), "{}", done.err);
    assert!(lines[2].starts_with("  rank 2: killed by signal 9 (SIGKILL)"), "{}", done.err);
    assert!(lines[2].ends_with("  [first]"), "{}", done.err);
    // By SIGTERM, or by SIGKILL if its end takes long.
    assert!(lines[3].starts_with("  rank 3: ") && lines[3].contains("the launcher (SIG"), "{}", done.err);
    assert_eq!(done.err.matches("[first]").count(), 1);
}

#[test]
fn words_just_printed_are_not_repeated() {
    let text = "[ $BELLWETHER_RANK = 1 ] || exec sleep 60; sleep 0.1; echo no luck >&2; exit 5";
    let done = run(script(2, &["--grace", "0s"], text));
    assert_eq!(done.code(), 5);
    assert_eq!(done.err.matches("no luck").count(), 1, "{}", done.err);
}

#[test]
fn a_rank_killed_from_outside_ends_the_job() {
    let text = "echo $BELLWETHER_RANK $$; sleep 60";
    let mut job = Job::start(script(3, &["--grace", "50ms"], text));
    job.wait_for_lines(3);
    let out = job.out();
    let line = out.lines().find_map(|line| line.strip_prefix("1 ")).expect("rank 1 has told");
    let pid: i32 = line.parse().expect("a number");
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let done = job.wait();
    assert_eq!(done.code(), 137);
    assert!(done.err.contains(&format!("rank 1 (pid {pid}) failed first")), "{}", done.err);
}

#[test]
fn one_that_ignores_sigterm_is_killed() {
    let dir = tempfile::tempdir().expect("a place for temporary files");
    let text = "[ $BELLWETHER_RANK = 1 ] && { trap '' TERM; touch \"$0\"; while :; do sleep 1; done; }; \
        until [ -e \"$0\" ]; do sleep 0.01; done; exit 3";
    let mut command = script(2, &["--grace", "50ms"], text);
    command.arg(dir.path().join("ready"));
    let done = run(command);
    assert_eq!(done.code(), 3);
    assert!(done.err.contains("  rank 1: ended by the launcher (SIGKILL)"), "{}", done.err);
}

#[test]
fn the_time_limit_names_who_still_ran() {
    let text = "[ $BELLWETHER_RANK = 1 ] && exit 0; sleep 60";
    // Time for rank 1 to end.
    let done = run(script(4, &["--timeout", "8s"], text));
    assert_eq!(done.code(), 124);
    assert!(done.err.contains("longer than the 8s"), "{}", done.err);
    assert!(done.err.contains("still running: ranks 0, 2-3\n"), "{}", done.err);
    assert_eq!(statuses(&done)[1], statuses(&done)[1].replace("exit 1", ""), "{}", done.err);
    assert!(statuses(&done)[1].starts_with("  rank 1: exit 0 after"), "{}", done.err);
}

#[test]
fn signals_reach_every_rank() {
    for (signal, name) in [
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGINT, "INT"),
        (libc::SIGTERM, "TERM"),
    ] {
        let text = format!("trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.02; done");
        let mut job = Job::start(script(3, &[], &text));
        job.wait_for_lines(3);
        job.signal(signal);
        let done = job.wait();
        assert_eq!(done.code(), 0, "{name}: {}", done.err);
        assert_eq!(done.out.matches(&format!("got {name}")).count(), 3, "{}", done.out);
    }
}

#[test]
fn an_interrupted_job_says_so_in_one_line() {
    let mut job = Job::start(script(3, &[], "echo ready; exec sleep 60"));
    job.wait_for_lines(3);
    job.signal(libc::SIGINT);
    let done = job.wait();
    assert_eq!(done.code(), 130);
    assert_eq!(done.err, "bellwether: ended by SIGINT\n");
}

#[test]
fn a_second_interrupt_kills() {
    let text = "trap '' INT TERM; echo ready; while :; do sleep 1; done";
    let mut job = Job::start(script(2, &["--grace", "1h"], text));
    job.wait_for_lines(2);
    job.signal(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(job.is_running(), "one interrupt was enough");
    job.signal(libc::SIGINT);
    // A launcher that reads both late counts them as one. The time is long: a signal while the launcher exits would kill it.
    while !job.ends_within(Duration::from_secs(3)) {
        job.signal(libc::SIGINT);
    }
    let done = job.wait();
    assert_eq!(done.code(), 130);
    assert_eq!(done.err, "bellwether: ended by SIGINT\n");
}

#[test]
fn a_job_can_be_stopped_and_continued() {
    let dir = tempfile::tempdir().expect("a place for temporary files");
    let [go, went] = ["go", "went"].map(|name| dir.path().join(name));
    let text = "echo ready; until [ -e \"$0\" ]; do sleep 0.01; done; echo done | tee \"$1\"";
    let mut command = script(2, &[], text);
    command.args([&go, &went]);
    let mut job = Job::start(command);
    job.wait_for_lines(2);
    job.signal(libc::SIGTSTP);
    // The launcher stops when it has sent the signal to the ranks.
    wait_for_stop(job.pid());
    // Ranks that run would go on now. What they print waits for the launcher: they also write a file.
    std::fs::write(&go, "").expect("the folder is ours");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!went.exists(), "ranks went on");
    job.signal(libc::SIGCONT);
    let done = job.wait();
    assert_eq!(done.code(), 0);
    assert_eq!(done.out.matches("done").count(), 2);
}

#[test]
fn no_process_outlives_a_killed_launcher() {
    let sleep = own_sleep();
    // Each rank has a child that ignores what can be ignored, and sleeps itself.
    let text = "(trap '' HUP TERM INT; exec sleep \"$0\") & exec sleep \"$0\"";
    let mut command = script(4, &[], text);
    command.arg(&sleep);
    let job = Job::start(command);
    // Besides the eight sleepers, the launcher and its guardian have the word among their arguments.
    wait_for_processes(&sleep, 10);
    job.signal(libc::SIGKILL);
    wait_for_processes(&sleep, 0);
    assert!(!job.wait().status.success());
}

#[test]
fn nothing_ranks_left_behind_outlives_the_job() {
    let sleep = own_sleep();
    // One child in the rank's group, one that has made itself a daemon; both hold the pipes.
    let text = "sleep \"$0\" & setsid sleep \"$0\" & sleep 0.1; echo started";
    let mut command = script(3, &[], text);
    command.arg(&sleep);
    let done = run(command);
    assert_eq!(done.code(), 0, "{}", done.err);
    assert_eq!(done.out, "started\n".repeat(3));
    assert_eq!(processes_with(&sleep), 0);
}

#[test]
fn a_program_that_cannot_start_is_told_and_nothing_runs() {
    let cases: [(&[&str], i32, &str); 6] = [
        (&["-n", "2", "./no-such-program"], 127, "cannot start `./no-such-program`: there is no such file in /"),
        (&["-n", "2", "/no/such/program"], 127, "cannot start `/no/such/program`: there is no such file"),
        (&["-n", "2", "no-such-program"], 127, "no folder of PATH has it"),
        (&["-n", "2", "./Cargo.toml"], 126, "it is not executable (mode"),
        (&["-n", "2", "./src"], 126, "it is a folder"),
        (&["-n", "2"], 2, "<PROGRAM>"),
    ];
    for (args, status, words) in cases {
        let mut command = bellwether(&["run"]);
        command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
        let done = run(command);
        assert_eq!(done.code(), status, "{args:?}: {}", done.err);
        assert!(done.err.contains(words), "{args:?}: {}", done.err);
    }
}

#[test]
fn a_broken_program_is_told_from_a_missing_one() {
    let dir = tempfile::tempdir().expect("a place for temporary files");
    for (name, content, words) in [
        ("text", "no program\n", "neither a program for this machine nor a script"),
        ("script", "#!/no/such/shell\n", "the interpreter or loader it names does not exist"),
    ] {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("the folder is ours");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("the file is ours");
        let done = run(bellwether(&["run", "-n", "2", path.to_str().expect("plain text")]));
        assert_eq!(done.code(), 126, "{}", done.err);
        assert!(done.err.contains(words), "{}", done.err);
    }
}

#[test]
fn numbers_of_ranks_that_make_no_sense() {
    for number in ["0", "-3", "four", ""] {
        let done = run(bellwether(&["run", "-n", number, "true"]));
        assert_eq!(done.code(), 2, "{number}");
        assert!(done.err.contains("--ranks <N>"), "{number}: {}", done.err);
    }
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("plain text").to_owned()
    };
    let here = file("here", "localhost\nlocalhost\nlocalhost\n");
    let started = |arguments: &[&str]| run(bellwether(&[arguments, &["sh", "-c", "echo $BELLWETHER_SIZE"]].concat()));
    assert_eq!(started(&["run", "-m", &here]).out, "3\n3\n3\n");
    assert_eq!(started(&["run", "--machinefile", &here, "-n", "2"]).out, "2\n2\n");
    for (arguments, told) in [
        (&["run", "-m", &here, "-n", "4"][..], "has room for 3 ranks, and -n asks for 4"),
        (&["run", "-m", "no/such/file"], "cannot read no/such/file"),
    ] {
        let done = started(arguments);
        assert!(done.code() == 2 && done.err.contains(told), "{done:?}");
    }
    assert!(run(bellwether(&["run", "-n", "0", "true"])).err.contains("at least 1 rank"));
}

#[test]
fn what_the_help_says_of_signals_that_were_ignored_is_so() {
    let help = run(bellwether(&["run", "--help"]));
    let words = help.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "A signal that was ignored when this command started stays ignored, here and in the ranks: INT and QUIT in a script \
                that starts it with `&`, HUP under nohup. End such a job with TERM.";
    assert!(words.contains(said), "{words}");
    for (signal, number) in [("INT", libc::SIGINT), ("QUIT", libc::SIGQUIT), ("HUP", libc::SIGHUP)] {
        let command = script(2, &[], "grep SigIgn /proc/$$/status; exec sleep 60");
        let mut job = Job::start(ignoring(&[number], command));
        job.wait_for_lines(2);
        for line in job.out().lines() {
            let ignored = u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).expect("a mask");
            assert!(ignored >> (number - 1) & 1 == 1, "SIG{signal} is not ignored in a rank: {line}");
        }
        job.signal(number);
        std::thread::sleep(Duration::from_millis(200));
        assert!(job.is_running(), "SIG{signal} ended the job");
        job.signal(libc::SIGTERM);
        let done = job.wait();
        assert_eq!((done.code(), done.err.as_str()), (128 + libc::SIGTERM, "bellwether: ended by SIGTERM\n"));
    }
    // As a script does it.
    let launcher = env!("CARGO_BIN_EXE_bellwether");
    let text = format!("{launcher} run -n 1 sh -c 'echo ready; exec sleep 60' & wait $!; exit $?");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &text]);
    let mut job = Job::start(shell);
    job.wait_for_lines(1);
    let children = format!("/proc/{0}/task/{0}/children", job.pid());
    let children = std::fs::read_to_string(children).expect("it runs");
    let pid: i32 = children.trim().parse().expect("one child, the launcher");
    // SAFETY: plain numbers.
    let send = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    send(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(200));
    assert!(job.is_running(), "SIGINT ended a job that a script started with `&`");
    send(libc::SIGTERM);
    assert_eq!(job.wait().code(), 128 + libc::SIGTERM);
}

#[test]
fn a_limit_on_the_size_of_files_is_told() {
    for bytes in [0, 1 << 20] {
        let done = run(limited(bytes, bellwether(&["run", "-n", "2", "true"])));
        assert_eq!(done.code(), 2, "{}", done.err);
        let words = format!("the limit on the size of files is {bytes} bytes (`ulimit -f`, RLIMIT_FSIZE)");
        assert!(done.err.contains(&words), "{}", done.err);
    }
}

#[test]
fn output_beyond_the_limit_on_the_size_of_files_is_told_and_ranks_have_the_signal() {
    use std::os::unix::fs::FileExt;
    // More than the job's memory, of one rank with a small heap.
    let limit = 3 << 30;
    let out = tempfile::tempfile().expect("a place for temporary files");
    // Full but for a few bytes, which take no room.
    out.write_all_at(b"x", limit - 200).expect("sparse");
    let text = "grep SigIgn /proc/$$/status; exec sleep 60";
    let mut command = script(1, &["--grace", "50ms"], &format!("{text} & yes | head -c 100000; wait"));
    command.env("BELLWETHER_HEAP_LIMIT", "1MiB").stderr(std::process::Stdio::piped());
    let mut end = out.try_clone().expect("a descriptor");
    std::io::Seek::seek(&mut end, std::io::SeekFrom::End(0)).expect("a file");
    command.stdout(end);
    let child = limited(limit, command).spawn().expect("the command was built for this test");
    let _watchdog = common::Watchdog::over(&child);
    let done = child.wait_with_output().expect("it is our child");
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{err}");
    assert!(err.contains("cannot write to standard output: File too large"), "{err}");
    let mut head = [0; 150];
    let read = out.read_at(&mut head, limit - 199).expect("a file");
    let head = String::from_utf8_lossy(&head[..read]);
    let mask = head.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_else(|| panic!("{head:?}"));
    let ignored = u64::from_str_radix(mask.trim(), 16).expect("a mask");
    assert_eq!(ignored >> (libc::SIGXFSZ - 1) & 1, 0, "a rank ignores SIGXFSZ: {mask}");
}

/// Ranks of a benchmark, one of which kills itself: the others agree that it is gone, and return 0.
fn one_dies(options: &[&str]) -> Done {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let program = env!("CARGO_BIN_EXE_bellwether");
    let mut command = bellwether(&["run", "-n", "4"]);
    command.args(options).args([program, "bench-death"]).arg(&report);
    let done = run(command);
    assert!(report.exists(), "{done:?}");
    done
}

#[test]
fn a_job_whose_ranks_go_on_after_a_killed_one_succeeds() {
    // The program says so itself, too.
    for options in [&["--survive"][..], &[]] {
        let done = one_dies(options);
        assert_eq!(done.code(), 0, "{done:?}");
        assert!(done.err.contains("bellwether: rank 3 (pid "), "{done:?}");
        assert!(
            done.err.contains("died: killed by signal 9 (SIGKILL)") && done.err.contains("the others go on"),
            "{done:?}"
        );
        assert_eq!(headlines(&done), 0, "{done:?}");
    }
}

#[test]
fn ranks_that_never_join_do_not_survive_a_killed_one() {
    // Nobody goes on without a world.
    let done = run(script(3, &["--survive"], "[ $BELLWETHER_RANK = 1 ] && kill -9 $$; sleep 0.1"));
    assert_eq!(done.code(), 137, "{done:?}");
    assert_eq!(headlines(&done), 1, "{done:?}");
}
