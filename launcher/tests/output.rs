//! What ranks print and read.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use common::{Done, Job, Watchdog, bellwether, run, script};

#[test]
fn lines_arrive_whole() {
    // Pauses within the lines, so that those of several ranks are under way at any time.
    let pieces = "for i in 1 2 3 4 5; do printf \"<$BELLWETHER_RANK aaaa\"; sleep 0.01; \
        printf 'bbbb'; sleep 0.01; printf 'cccc>\\n'; done";
    let done = run(script(8, &[], pieces));
    assert_eq!(done.code(), 0);
    assert_eq!(done.out.lines().count(), 40);
    for line in done.out.lines() {
        assert!(line.starts_with('<') && line.ends_with("aaaabbbbcccc>"), "{line}");
        assert_eq!(line.len(), "<0 aaaabbbbcccc>".len(), "{line}");
    }
}

#[test]
fn tags_name_the_rank_on_both_streams() {
    let done = run(script(3, &["--tag"], "echo \"I am $BELLWETHER_RANK of $BELLWETHER_SIZE\"; echo oops >&2"));
    let mut out: Vec<_> = done.out.lines().collect();
    out.sort_unstable();
    assert_eq!(out, ["[0] I am 0 of 3", "[1] I am 1 of 3", "[2] I am 2 of 3"]);
    let mut err: Vec<_> = done.err.lines().collect();
    err.sort_unstable();
    assert_eq!(err, ["[0] oops", "[1] oops", "[2] oops"]);
}

#[test]
fn untagged_output_passes_as_it_is() {
    let done = run(script(1, &[], r"printf 'a\r\nb\r[##]\r[###]\n\001\377\n\nend'"));
    assert_eq!(done.out, "a\r\nb\r[##]\r[###]\n\u{1}\u{fffd}\n\nend\n");
}

#[test]
fn a_long_line_comes_through_whole() {
    let done = run(script(1, &[], "head -c 3500000 /dev/zero | tr '\\0' x"));
    assert_eq!(done.out.len(), 3_500_001);
    assert!(done.out.ends_with("xx\n"));
}

#[test]
fn nothing_is_lost_at_the_end() {
    // More than fits a pipe, written by ranks that end at once.
    let done = run(script(4, &[], "seq 1 60000"));
    assert_eq!(done.out.lines().count(), 240_000);
}

#[test]
fn input_goes_to_rank_0() {
    let command = script(3, &["--tag"], "echo \"got $(cat)\"");
    let done = Job::feed(command, b"one\ntwo\n").wait();
    let mut out: Vec<_> = done.out.lines().collect();
    out.sort_unstable();
    assert_eq!(out, ["[0] got one", "[0] two", "[1] got ", "[2] got "]);
}

#[test]
fn a_reader_that_leaves_ends_the_job_quietly() {
    let mut child = bellwether(&["run", "-n", "2", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command was built for this test");
    let _watchdog = Watchdog::over(&child);
    let mut reader = BufReader::new(child.stdout.take().expect("it was asked for"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("there is a line");
    assert_eq!(line, "y\n");
    drop(reader);
    let mut stderr = child.stderr.take().expect("it was asked for");
    let mut err = String::new();
    stderr.read_to_string(&mut err).expect("it is text");
    assert_eq!(err, "");
    assert_eq!(child.wait().expect("it is our child").code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn a_full_disk_is_told() {
    let mut command = script(2, &[], "while echo hello; do sleep 0.01; done");
    let full = std::fs::File::create("/dev/full").expect("every Linux has it");
    command.stdout(full).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command was built for this test");
    let _watchdog = Watchdog::over(&child);
    let mut err = String::new();
    child.stderr.take().expect("it was asked for").read_to_string(&mut err).expect("it is text");
    assert!(err.contains("cannot write to standard output: No space left"), "{err}");
    assert_eq!(child.wait().expect("it is our child").code(), Some(1));
    let help = run(bellwether(&["run", "--help"])).out;
    assert!(help.contains("1    the connection to a host was lost, or the output cannot be written"), "{help}");
}

/// The exit status of the command, and what it says, with this as its standard output.
fn with_output(mut command: std::process::Command, out: impl Into<Stdio>) -> (Option<i32>, String) {
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn().expect("it was built");
    let _watchdog = Watchdog::over(&child);
    let mut err = String::new();
    child.stderr.take().expect("it was asked for").read_to_string(&mut err).expect("it is text");
    (child.wait().expect("it is our child").code(), err)
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let folder = folder.path().to_str().expect("plain text");
    for args in [
        &["info"][..],
        &["doctor", "-n", "1"],
        &["doctor", "-n", "1", "--json"],
        &["man"],
        &["man", folder],
        &["completions", "bash"],
        &["bench", "startup", "--quick"],
        &["batch", "-N", "1", "-n", "1", "--time", "1", "--", "true"],
    ] {
        let full = std::fs::File::create("/dev/full").expect("every Linux has it");
        let (code, err) = with_output(bellwether(args), full);
        assert_eq!(code, Some(2), "{args:?}: {err}");
        assert!(err.contains("cannot write to standard output: No space left"), "{args:?}: {err}");
    }
}

#[test]
fn a_reader_that_has_left_is_no_error() {
    for args in [&["man"][..], &["completions", "bash"], &["info"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(with_output(bellwether(args), writer), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn numbers_that_can_never_be_are_refused_with_what_may() {
    // No limit of the system explains these.
    let done = run(bellwether(&["run", "-n", "65537", "true"]));
    assert_eq!(done.code(), 2, "{}", done.err);
    assert!(done.err.contains("65537 ranks asked on one host, which can have 1 to 65536"), "{}", done.err);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    for (args, told) in [
        (["-n", "99999999999999999999", "true"].as_slice(), "a whole number of ranks from 1 to 1048576"),
        (&["-n", "2", "--timeout", "0s", "true"], "expected a time above 0"),
    ] {
        let done = run(bellwether(&[&["run"], args].concat()));
        assert!(done.code() == 2 && done.err.contains(told), "{args:?}: {}", done.err);
    }
}

#[test]
fn a_reader_that_sleeps_does_not_stop_the_clock() {
    // Time for both ranks to start.
    let mut child = bellwether(&["run", "-n", "2", "--timeout", "8s", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command was built for this test");
    let _watchdog = Watchdog::over(&child);
    let mut err = BufReader::new(child.stderr.take().expect("it was asked for"));
    let mut line = String::new();
    // Nobody has read from standard output when this comes.
    err.read_line(&mut line).expect("there is a line");
    assert!(line.contains("still running: ranks 0-1"), "{line}");
    let mut out = Vec::new();
    child.stdout.take().expect("it was asked for").read_to_end(&mut out).expect("it ends");
    assert!(out.ends_with(b"y\n"));
    assert_eq!(child.wait().expect("it is our child").code(), Some(124));
}

#[test]
fn two_hundred_ranks() {
    let done = run(script(200, &[], "echo $BELLWETHER_RANK"));
    assert_eq!(done.code(), 0, "{}", done.err);
    let mut ranks: Vec<usize> = done.out.lines().map(|line| line.parse().expect("a number")).collect();
    ranks.sort_unstable();
    assert!(ranks.into_iter().eq(0..200));
}

#[test]
fn more_ranks_than_the_soft_limit_on_files() {
    let command = "ulimit -Sn 64; exec \"$0\" run -n 40 sh -c 'ulimit -Sn'";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command, env!("CARGO_BIN_EXE_bellwether")]);
    let done = run(shell);
    assert_eq!(done.code(), 0, "{}", done.err);
    // Ranks have the limit the user has.
    assert_eq!(done.out, "64\n".repeat(40));
}

#[test]
fn more_ranks_than_the_hard_limit_on_files() {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -n 64; exec \"$0\" run -n 40 true", env!("CARGO_BIN_EXE_bellwether")]);
    let done = run(shell);
    assert_eq!(done.code(), 125);
    assert!(done.err.contains("40 ranks need 248 open files, and this process may have 64"), "{}", done.err);
}

#[test]
fn bound_ranks_have_one_cpu_each() {
    let done = run(bellwether(&["run", "-n", "3", "--bind", "core", "grep", "Cpus_allowed_list", "/proc/self/status"]));
    assert_eq!(done.out.lines().count(), 3);
    for line in done.out.lines() {
        let list = line.split_whitespace().last().expect("grep prints the key first");
        assert!(list.parse::<usize>().is_ok(), "one CPU, not {list}");
    }
}

#[test]
fn ranks_start_with_clean_signals_and_descriptors() {
    // Exactly what a program started without us has. No shell: they clean up for themselves.
    let args = ["-E", "SigBlk|SigIgn", "/proc/self/status"];
    let mut plain = std::process::Command::new("grep");
    plain.args(args);
    let mut rank = bellwether(&["run", "-n", "1", "grep"]);
    rank.args(args);
    assert_eq!(run(rank).out, run(plain).out);
    // And the job's memory.
    let text = "ls -l /proc/self/fd | grep -vc memfd:bellwether";
    let mut plain = std::process::Command::new("sh");
    plain.args(["-c", text]);
    assert_eq!(run(script(1, &[], text)).out, run(plain).out);
}

/// A job of a script whose ranks have all started before any goes on.
fn together(ranks: usize, options: &[&str], text: &str) -> Done {
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let meet = format!(
        "touch {0}/$BELLWETHER_RANK; until [ $(ls {0} | wc -l) = {ranks} ]; do sleep 0.01; done; {text}",
        folder.path().display()
    );
    run(script(ranks, options, &meet))
}

/// As [`together`], again where a rank got no processor between its words and its end for so long that they were shown.
fn told_once(ranks: usize, options: &[&str], text: &str, line: &str) -> Done {
    let mut done = together(ranks, options, text);
    for _ in 0..5 {
        if lines(&done, line) <= 1 {
            break;
        }
        done = together(ranks, options, text);
    }
    done
}

/// Lines on standard error, without the tag.
fn lines(done: &Done, line: &str) -> usize {
    done.err.lines().filter(|said| said.split_once("] ").map_or(*said, |(_, said)| said) == line).count()
}

#[test]
fn the_same_error_of_all_ranks_is_shown_once() {
    // Time for each to end by itself.
    for options in [["--grace", "10s"].as_slice(), &["--grace", "10s", "--tag"]] {
        // As `main` returns it; and with a cause, in as many writes as it has lines.
        let done = told_once(8, options, "echo 'Error: no luck' >&2; exit 3", "Error: no luck");
        assert_eq!((done.code(), lines(&done, "Error: no luck")), (3, 1), "{}", done.err);
        assert_eq!(done.err.matches("bellwether: the error above came on all ranks").count(), 1, "{}", done.err);
        assert!(done.err.contains("failed first: exit 3"), "{}", done.err);
        let text = "printf 'Error: no luck\\n\\nCaused by:\\n    rain\\n' >&2; exit 3";
        let done = told_once(5, options, text, "Error: no luck");
        assert_eq!([lines(&done, "Error: no luck"), lines(&done, "    rain")], [1, 1], "{}", done.err);
        assert_eq!(done.err.matches("bellwether: the error above came on all ranks").count(), 1, "{}", done.err);
    }
}

#[test]
fn an_error_of_some_ranks_tells_which_and_others_are_shown() {
    let text = "echo working >&2; [ $BELLWETHER_RANK = 2 ] && { echo \"Error: rank 2's own\" >&2; exit 3; }; \
        echo 'Error: no luck' >&2; exit 3";
    // Time for each to end by itself.
    let done = told_once(4, &["--grace", "10s"], text, "Error: no luck");
    let told = ["Error: no luck", "Error: rank 2's own", "working"].map(|line| lines(&done, line));
    assert_eq!(told, [1, 1, 4], "{}", done.err);
    let common = "the error above that begins \"Error: no luck\" came on ranks 0-1, 3";
    assert!(done.err.contains(common), "{}", done.err);
}

#[test]
fn words_that_are_not_the_last_are_all_shown() {
    // The rank says something else, or goes on for long, or ends well.
    for end in ["echo $BELLWETHER_RANK >&2; exit 3", "sleep 1; exit 0", "exit 0"] {
        let done = together(4, &["--grace", "10s"], &format!("echo 'Error: again' >&2; {end}"));
        assert_eq!(lines(&done, "Error: again"), 4, "{end}: {}", done.err);
        assert!(!done.err.contains("came on"), "{end}: {}", done.err);
    }
}

#[test]
fn an_error_of_one_rank_comes_at_once() {
    let text = "[ $BELLWETHER_RANK = 1 ] || exec sleep 60; echo 'Error: alone' >&2; exit 3";
    let mut job = Job::start(script(3, &["--grace", "60s"], text));
    job.wait_for_errors(1);
    assert!(job.is_running());
    job.signal(libc::SIGINT);
    let done = job.wait();
    assert_eq!(lines(&done, "Error: alone"), 1, "{}", done.err);
    assert!(!done.err.contains("came on"), "{}", done.err);
}
