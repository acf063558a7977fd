//! `bellwether bench` from outside: that it works, not how fast.

mod common;

use std::time::Duration;

use common::{Done, bellwether};
use serde_json::Value;

/// Ends one that hangs.
const LIMIT: Duration = Duration::from_secs(300);

fn bench(args: &[&str]) -> Done {
    common::run_within(LIMIT, bellwether(&[&["bench"], args].concat()))
}

fn lines(done: &Done) -> Vec<Value> {
    done.out.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

#[test]
fn all_figures_have_all_fields() {
    let done = bench(&["all", "--json", "--quick"]);
    assert_eq!(done.code(), 0, "{done:?}");
    let lines = lines(&done);
    for name in [
        "put",
        "put-random",
        "put-address",
        "put-segment",
        "get",
        "put-poll",
        "put-bell",
        "am",
        "am-rate",
        "matching",
        "lapi-am",
        "lapi-am-interrupts",
        "lapi-am-counters",
        "lapi-rate",
        "gaspi-notify",
        "gaspi-post",
        "gaspi-wait",
        "gaspi-waitsome",
        "lapi-bandwidth",
        "lapi-bandwidth-am",
        "lapi-bandwidth-private",
        "call",
        "atomic",
        "threads",
        "threads-am",
        "bandwidth",
        "barrier",
        "team-barrier",
        "allreduce",
        "world-allreduce",
        "alltoall",
        "alltoall-direct",
        "alltoall-pairwise",
        "alloc",
        "growth-barrier",
        "growth-allreduce",
        "growth-alltoall",
        "growth-alloc",
        "crowded",
        "crowded-many",
        "crowded-computing",
        "wake",
        "wake-epoll",
        "idle",
        "idle-core",
        "array-get",
        "array-put",
        "local-sum",
        "exchange",
        "transpose",
        "histogram",
        "indexgather",
        "startup",
        "death",
        "poll",
        "footprint",
    ] {
        let Some(line) = lines.iter().find(|line| line["bench"] == name) else {
            // On a busy machine two threads may never run at one time: then the command says so, and has no figure.
            assert!(
                done.err.contains(&format!("bench: {name}: ")) && done.err.contains("left out"),
                "no {name}: {done:?}"
            );
            continue;
        };
        for field in ["ranks", "size", "value", "p10", "p90"] {
            assert!(line[field].is_number(), "{field} of {line}");
        }
        for field in ["limit", "ratio"] {
            let none = ["footprint", "gaspi-wait", "growth-allreduce", "growth-alltoall", "growth-alloc"];
            let has_limit = !none.contains(&name);
            assert_eq!(line[field].is_number(), has_limit, "{field} of {line}");
        }
        // What is no limit is not called one.
        let has_beside =
            ["put-address", "transpose", "histogram", "indexgather", "poll", "team-barrier", "alloc", "crowded-many"];
        let has_beside = has_beside.contains(&name) || name.starts_with("growth-");
        for field in ["beside", "beside_ratio"] {
            assert_eq!(line[field].is_number(), has_beside, "{field} of {line}");
        }
        assert_eq!(line["beside_is"].is_string(), has_beside, "{line}");
        assert!(line.get("bar").is_none(), "{line}");
        assert_eq!(line["transport"], "shm");
        assert!(["ns", "s", "GB/s", "B", "times"].iter().any(|unit| line["unit"] == *unit), "{line}");
        let number = |field: &str| line[field].as_f64().expect("a number");
        assert!(number("p10") <= number("value") && number("value") <= number("p90"), "{line}");
        assert!(number("value") > 0.0, "{line}");
        // Over neighbouring batches, so not that of the medians.
        assert!(line["ratio"].as_f64().is_none_or(|ratio| ratio > 0.0 && ratio.is_finite()), "{line}");
    }
    let footprint = lines.iter().find(|line| line["bench"] == "footprint").expect("seen above");
    assert_eq!(footprint["ranks"], 1_000_000);
    assert!(footprint["value"].as_f64().expect("a number") <= 8.0);
    help_names_what_has_something_beside(&lines);
}

/// `growth` is exempt: its own help explains its columns.
fn help_names_what_has_something_beside(lines: &[Value]) {
    let help = bench(&["--help"]);
    assert_eq!(help.code(), 0, "{help:?}");
    // The text before "Usage:" explains the columns.
    let about = help.out.split("Usage:").next().expect("always one").to_lowercase();
    let words: Vec<&str> = about.split(|c: char| !c.is_ascii_lowercase() && c != '-').collect();
    let names = lines.iter().filter(|line| line["beside"].is_number());
    let names: Vec<_> = names.map(|line| line["bench"].as_str().expect("a name")).collect();
    for name in ["put-address", "transpose", "histogram", "indexgather", "poll", "team-barrier", "alloc"] {
        assert!(names.contains(&name), "no {name}: {names:?}");
    }
    for name in names.iter().filter(|name| !name.starts_with("growth-")) {
        assert!(words.contains(name), "--help does not tell of what stands beside {name}: {about}");
    }
    for promise in ["without this library", "on the same mapping", "memory bandwidth"] {
        assert!(about.split_whitespace().collect::<Vec<_>>().join(" ").contains(promise), "{about}");
    }
}

#[test]
fn a_table_names_what_was_asked_for() {
    let done = bench(&["atomic", "put", "--quick"]);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.out.contains("ratio") && done.out.contains("atomic") && done.out.contains("put"), "{done:?}");
    assert!(!done.out.contains("bandwidth"), "{done:?}");
}

#[test]
fn bars_are_for_those_who_ask() {
    let done = bench(&["put", "histogram", "--quick"]);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(![": met", "MISSED", "≤"].iter().any(|word| done.out.contains(word)), "{done:?}");
    assert!(done.out.contains("beside histogram: bare locked adds"), "{done:?}");
    let done = bench(&["footprint", "histogram", "--quick", "--bars"]);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.out.contains("≤ 8 B: met") && done.out.contains("of beside: "), "{done:?}");
    let done = bench(&["footprint", "startup", "--quick", "--json", "--bars"]);
    let lines = lines(&done);
    let verbs = lines.iter().find(|line| line["bench"] == "footprint-verbs-peer").expect("a line of footprint");
    assert!(verbs["value"].as_f64().expect("a number") <= 16384.0, "{verbs}");
    let bars: Vec<_> = lines.into_iter().map(|line| (line["bench"].clone(), line["bar"].clone())).collect();
    assert!(bars.contains(&("footprint".into(), "met".into())), "{bars:?}");
    assert!(bars.contains(&("startup".into(), Value::Null)), "{bars:?}");
}

#[test]
fn a_noisy_machine_is_told_of_and_nothing_is_missed_for_it() {
    // More ranks than any machine has cores for: their figures are bad, and say nothing.
    let ranks = (std::thread::available_parallelism().map_or(1, usize::from) + 1).to_string();
    let done = bench(&["put", "atomic", "-n", &ranks, "--quick"]);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.err.contains("warning: too noisy to believe: ") && done.err.contains("ranks share"), "{done:?}");
    assert!(
        !["MISSED", "missed", ": met", "≤"].iter().any(|word| (done.out.clone() + &done.err).contains(word)),
        "{done:?}"
    );
}

#[test]
fn over_the_contract_there_is_no_limit_by_pointer() {
    // `ci/test full` sets the variable.
    let some = ["put", "put-address", "am", "barrier", "histogram", "startup", "wake", "poll"];
    let benches = if std::env::var_os("ROWS_FULL").is_some() { &["all"][..] } else { &some };
    let done = bench(&[benches, &["--transport", "shm-contract", "--json", "--quick"]].concat());
    assert_eq!(done.code(), 0, "{done:?}");
    let lines = lines(&done);
    assert_eq!(lines.iter().filter(|line| line["bench"] == "put").count(), 1, "{done:?}");
    for line in &lines {
        assert_eq!(line["transport"], "shm-contract");
        assert!(line["value"].as_f64().is_some_and(|value| value > 0.0), "{line}");
        let has_limit = ["startup", "death", "poll", "wake", "wake-epoll", "idle", "idle-core"];
        let has_limit = has_limit.iter().any(|bench| line["bench"] == *bench);
        assert_eq!(line["limit"].is_number(), has_limit, "{line}");
        // Beside aggregation stands one operation for each element, beside a put to an address one to an element, beside a poll one of 2
        // ranks.
        let beside = ["put-address", "histogram", "indexgather", "poll", "crowded-many"];
        let name = line["bench"].as_str().expect("a name");
        assert_eq!(line["beside"].is_number(), beside.contains(&name) || name.starts_with("growth-"), "{line}");
    }
    let done = bench(&["put", "--transport", "shm-contract", "--quick"]);
    assert!(done.code() == 0 && done.out.contains("as if it were a network"), "{done:?}");
}

#[test]
fn over_tcp_the_limit_is_a_bare_socket() {
    let done = bench(&["am", "put-bell", "bandwidth", "footprint", "--transport", "tcp", "--json", "--quick"]);
    assert_eq!(done.code(), 0, "{done:?}");
    let lines = lines(&done);
    for name in ["am", "put-bell", "bandwidth"] {
        let line = lines.iter().find(|line| line["bench"] == name).unwrap_or_else(|| panic!("{name} in {done:?}"));
        assert!(line["limit"].as_f64().is_some_and(|limit| limit > 0.0), "{line}");
    }
    let peer = lines.iter().find(|line| line["bench"] == "footprint-tcp-peer").expect("a line of footprint");
    assert!(peer["value"].as_f64().expect("a number") <= 65536.0, "{peer}");
}

#[test]
fn more_ranks_than_two_and_one_alone() {
    let collective = ["barrier", "team-barrier", "allreduce", "world-allreduce", "alltoall", "alloc"];
    let done =
        bench(&[&["put", "put-random", "exchange"], &collective[..], &["-n", "3", "--quick", "--json"]].concat());
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(lines(&done).iter().all(|line| line["ranks"] == 3 && line["limit"].is_number()), "{done:?}");
    let done = bench(&["startup", "poll", "wake", "idle", "-n", "1", "--quick", "--json"]);
    assert_eq!(done.code(), 0, "{done:?}");
    let ranks: Vec<_> = lines(&done).iter().map(|line| line["ranks"].clone()).collect();
    // In the order in which they are measured: wake, wake-epoll, idle, idle-core, startup, poll.
    assert_eq!(ranks, [2, 2, 2, 2, 1, 1000], "{done:?}");
}

#[test]
fn sizes_are_obeyed_where_they_mean_something() {
    for size in ["64", "4KiB", "128K"] {
        let benches = ["put", "get", "put-bell", "am", "am-rate", "lapi-am", "lapi-rate"];
        let done = bench(&[&benches[..], &["--size", size, "--quick", "--json"]].concat());
        assert_eq!(done.code(), 0, "{size}: {done:?}");
        let lines = lines(&done);
        // Of LAPI's ping-pong there are three.
        assert_eq!(lines.len(), benches.len() + 2);
        assert!(lines.iter().all(|line| line["size"] == lines[0]["size"]));
    }
}

#[test]
fn plots_are_written() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let out = folder.path().join("new/plots");
    let done = bench(&["put", "am-rate", "--quick", "--plot", out.to_str().expect("plain characters")]);
    assert_eq!(done.code(), 0, "{done:?}");
    for name in ["put", "am-rate"] {
        let text = std::fs::read_to_string(out.join(format!("{name}.svg"))).expect("it was written");
        assert!(text.starts_with("<svg") && text.contains("Bellwether"));
    }
}

#[test]
fn peers_that_are_absent_are_said() {
    let mut command = bellwether(&["bench", "put", "--quick", "--json", "--against", "mpi-rma,oshmem,ucx"]);
    command.env("PATH", "/nonexistent");
    let done = common::run_within(LIMIT, command);
    assert_eq!(done.code(), 0, "{done:?}");
    assert_eq!(lines(&done).len(), 1);
    for peer in ["mpi-rma", "oshmem", "ucx"] {
        let said = done.err.lines().filter(|line| line.contains(&format!("without {peer}: "))).count();
        assert_eq!(said, 1, "{peer}: {done:?}");
    }
}

/// The programs for C and C++ make the same calls, and tell a time for each figure that has one.
#[test]
fn ours_through_c_stands_beside() {
    let kinds = [
        "gaspi-notify",
        "gaspi-post",
        "gaspi-wait",
        "gaspi-waitsome",
        "lapi-am",
        "lapi-rate",
        "lapi-bandwidth",
        "matching",
    ];
    let done = bench(&[&kinds[..], &["--quick", "--json", "--bars", "--against", "c"]].concat());
    assert_eq!(done.code(), 0, "{done:?}");
    for kind in kinds {
        let line = format!("\"bench\":\"{kind}\"");
        let has_peer = |text: &&str| text.contains(&line) && text.contains("\"peer\":\"c\",\"peer_value\":");
        assert_eq!(done.out.lines().filter(has_peer).count(), 1, "{kind}: {done:?}");
    }
    let lines = lines(&done);
    let of = |kind: &str| lines.iter().find(|line| line["bench"] == kind).expect("its line")["bars"].clone();
    for (kind, bar) in [
        ("gaspi-notify", "through C ≤ 1.1 of ours"),
        ("gaspi-post", "through C ≤ 1.1 of ours"),
        ("gaspi-wait", "through C ≤ 1.1 of ours"),
        ("gaspi-waitsome", "through C ≤ 1.1 of ours"),
        ("lapi-am", "through C ≤ 1.1 of ours"),
        ("lapi-rate", "through C ≤ 1.1 of ours"),
        ("lapi-bandwidth", "through C ≤ 1.1 of ours"),
        ("matching", "through C ≤ 2 of am"),
        // The lines that these name are measured too.
        ("gaspi-notify", "≤ 1.2 of put-bell"),
        ("lapi-am", "≤ 1.25 of am"),
    ] {
        assert!(of(kind)[bar].is_string(), "{kind}, {bar}: {done:?}");
    }
}

#[test]
fn an_error_of_all_ranks_is_told_once() {
    let told = |done: &Done| done.err.lines().filter(|line| line.starts_with("error: ")).count();
    let fail = || {
        let mut command = bellwether(&["bench", "put", "--quick", "--transport", "verbs"]);
        command.env("BELLWETHER_VERBS_DEVICE", "no-such-device");
        common::run_within(LIMIT, command)
    };
    // Again where a rank got no processor between its words and its end for so long that they were shown.
    let done = (0..5).map(|_| fail()).find(|done| told(done) == 1);
    let done = done.unwrap_or_else(|| panic!("{:?}", fail()));
    assert!(done.code() == 1 && done.err.contains("the ranks of a benchmark failed"), "{done:?}");
}

#[test]
fn wrong_use_is_told_with_status_2() {
    let file = tempfile::NamedTempFile::new().expect("the folder for temporary files can be written");
    let inside_a_file = file.path().join("plots");
    let inside_a_file = inside_a_file.to_str().expect("plain characters");
    let cases: [(&[&str], &str); 13] = [
        (&["putt"], "put-bell"),
        (&["put", "-n", "1"], "put needs at least 2 ranks"),
        (&["-n", "1"], "at least 2 ranks"),
        (&["put", "-n", "0"], "at least 1 rank"),
        (&["put", "-n", "-1"], "expected a whole number of ranks"),
        (&["put", "--size", "-8"], "invalid value '-8' for '--size"),
        (&["put", "--size", "0"], "at least 8 bytes"),
        (&["put", "--size", "13"], "multiple of 8"),
        (&["put", "--size", "2TB"], "unknown unit"),
        (&["put", "--against", "gasnet"], "mpi-rma"),
        (&["put", "--transport", "smoke"], "shm"),
        (&["put", "--plot", inside_a_file], "cannot make the folder"),
        (&["put", "--agent", "ssh"], "--hosts"),
    ];
    for (args, told) in cases {
        let done = bench(args);
        assert_eq!(done.code(), 2, "{args:?}: {done:?}");
        assert!(done.err.contains(told), "{args:?} should tell of {told:?}: {done:?}");
        assert!(done.out.is_empty(), "{done:?}");
    }
}

/// Builds the five examples and the peers' programs.
#[test]
#[ignore = "compiles for minutes; a step of ci/test full"]
fn whole_programs_stand_beside_their_peers() {
    let limit = std::time::Duration::from_secs(900);
    let done = common::run_within(limit, bellwether(&["bench", "app", "--quick", "--json", "--rounds", "2"]));
    assert_eq!(done.code(), 0, "{done:?}");
    let lines = lines(&done);
    for (program, peers) in [
        ("heat2d", &["mpi"][..]),
        ("cg", &["petsc"]),
        ("transpose", &["fftw", "mpi"]),
        ("samplesort", &["mpi"]),
        ("bfs", &["mpi"]),
    ] {
        let of_program = || lines.iter().filter(|line| line["program"] == program);
        assert!(of_program().count() > 0, "no {program}: {done:?}");
        for peer in peers {
            let line = of_program().find(|line| line["peer"] == *peer);
            // One that is not installed is said, with what to install.
            let said = done
                .err
                .lines()
                .any(|line| line.contains(&format!("without {program} of {peer}")) && line.contains("apt-get install"));
            assert!(line.is_some() != said, "{program} of {peer}: {done:?}");
            for field in ["ours", "theirs", "ratio"] {
                let value = line.map(|line| line[field].as_f64().expect("a number"));
                assert!(value.is_none_or(|value| value > 0.0 && value.is_finite()), "{field} of {line:?}");
            }
        }
    }
}
