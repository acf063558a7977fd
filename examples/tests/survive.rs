//! `montecarlo --survive`: ranks are killed, and the tally stays the same.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Far above the time that any of these takes.
const LIMIT: Duration = Duration::from_secs(600);
/// Enough particles that ranks are killed before they have followed all of them.
const PARTICLES: &str = "20000000";

/// The process of each rank that `launcher` has started.
fn ranks(launcher: u32, many: usize) -> Vec<u32> {
    let begin = Instant::now();
    loop {
        let mut found = vec![None; many];
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let folder = entry.path();
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
            // Behind the name: the state, and the parent.
            let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            let environment = fs::read(folder.join("environ")).unwrap_or_default();
            let rank = environment.split(|byte| *byte == 0).find_map(|variable| {
                std::str::from_utf8(variable).ok()?.strip_prefix("BELLWETHER_RANK=")?.parse::<usize>().ok()
            });
            if let (Some(rank), true) = (rank, parent == Some(launcher)) {
                found[rank] = Some(pid);
            }
        }
        if let Some(all) = found.into_iter().collect() {
            return all;
        }
        assert!(begin.elapsed() < LIMIT, "{many} ranks do not start");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn answer(text: &str) -> &str {
    text.lines().find(|line| line.starts_with("answer")).unwrap_or_else(|| panic!("no answer: {text}"))
}

/// Kills ranks, each at its time in milliseconds after the start, and returns the output. Ranks with the same time are killed together.
/// `bellwether run` starts the ranks, or the program itself.
fn survive(many: usize, deaths: &[(u64, usize)], is_launched: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let built = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_path_buf();
    let program = built.join("examples/montecarlo");
    let mut command = if is_launched {
        let launcher = built.join("bellwether");
        assert!(launcher.exists(), "build the workspace first: there is no {}", launcher.display());
        let mut command = Command::new(launcher);
        command.args(["run", "--survive", "--grace", "60s", "-n", &many.to_string()]).arg(program);
        command
    } else {
        let mut command = Command::new(program);
        command.env("BELLWETHER_RANKS", many.to_string());
        command
    };
    command.args(["--particles", PARTICLES]).current_dir(&folder);
    if many > 1 {
        command.arg("--survive");
    }
    // Ready before the job starts, and its `kill` is built in: a death waits for no process to start.
    let mut killer = Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut orders = killer.stdin.take().unwrap();
    writeln!(orders, "echo ready").unwrap();
    let mut killer_out = BufReader::new(killer.stdout.take().unwrap());
    killer_out.read_line(&mut String::new()).unwrap();
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(job.stdout.take().unwrap());
    let mut text = String::new();
    if many > 1 {
        out.read_line(&mut text).unwrap();
        assert_eq!(text, format!("started   {many} ranks\n"));
    }
    let begin = Instant::now();
    let pids = if deaths.is_empty() { vec![] } else { ranks(job.id(), many) };
    for at_once in deaths.chunk_by(|(one, _), (next, _)| one == next) {
        std::thread::sleep(Duration::from_millis(at_once[0].0).saturating_sub(begin.elapsed()));
        let those: Vec<String> = at_once.iter().map(|(_, rank)| pids[*rank].to_string()).collect();
        writeln!(orders, "kill -9 {}", those.join(" ")).unwrap();
    }
    drop(orders);
    killer.wait().unwrap();
    let mut said = String::new();
    let reader = std::thread::spawn({
        let mut err = job.stderr.take().unwrap();
        move || {
            err.read_to_string(&mut said).unwrap();
            said
        }
    });
    out.read_to_string(&mut text).unwrap();
    let status = loop {
        if let Some(status) = job.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < LIMIT, "it hangs: {text}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let said = reader.join().unwrap();
    assert!(status.success(), "{deaths:?}: {status}: {text}{said}");
    for (_, rank) in deaths {
        assert!(said.contains(&format!("rank {rank} (pid {}) died: killed by signal 9", pids[*rank])), "{said}");
    }
    text
}

#[test]
fn ranks_are_killed_and_the_tally_is_the_same() {
    let alone = survive(1, &[], false);
    let all = [
        (3, &[][..]),
        (3, &[(20, 1)]),
        // The one that tells, and leads the agreement.
        (3, &[(60, 0)]),
        (4, &[(30, 0), (90, 1)]),
        // At once.
        (5, &[(50, 2), (50, 0), (50, 4)]),
        (2, &[(10, 0)]),
    ];
    // Without `ROWS_FULL`, which `ci/test full` sets, the leader alone and several at once.
    let is_full = std::env::var_os("ROWS_FULL").is_some();
    for (many, deaths) in all.into_iter().filter(|(_, deaths)| is_full || matches!(deaths, [(60, 0)] | [_, _, _])) {
        let text = survive(many, deaths, matches!(deaths, [(60, 0)]));
        assert_eq!(answer(&text), answer(&alone), "{deaths:?}");
        let mut gone: Vec<usize> = deaths.iter().map(|(_, rank)| *rank).collect();
        gone.sort_unstable();
        assert!(text.contains(&format!("gone      ranks {gone:?}")), "{deaths:?}: {text}");
    }
}
