//! C programs over `GASPI.h`.

mod common;

use std::collections::BTreeMap;
use std::fs;

use bellwether_runtime::vocabulary::gaspi::codes;
use bellwether_tests::process::{command, run};
use common::{LIMIT, Link, Program, Suite, built, compile, has_name, here, program_tests};

const C99: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

const SUITE: Suite = Suite { prefix: "gaspi", flags: C99, ranks: "ranks" };

fn program(name: &str) -> Program {
    SUITE.program(name)
}

program_tests! { SUITE on [1, 2, 4];
    g49_g50_g61_a_ring_with_notifications, g49_g50_g61_a_ring_with_notifications_under_mpirun: "ring";
    g50_a_transpose_with_write_notify, g50_a_transpose_with_write_notify_under_mpirun: "transpose";
    g01_to_g15_two_libraries_with_a_queue_each, g01_to_g15_two_libraries_with_a_queue_each_under_mpirun: "libraries";
    g67_to_g69_a_passive_server, g67_to_g69_a_passive_server_under_mpirun: "server";
    g41_to_g59_lists_reads_and_memory_of_the_program, g41_to_g59_lists_under_mpirun: "calls";
    g18_to_g70_every_code, g18_to_g70_every_code_under_mpirun: "misuse";
    g44_g51_queues_and_transfers_at_their_limits, g44_g51_queues_and_transfers_at_their_limits_under_mpirun: "limits";
    g17_threads_with_a_queue_each, g17_threads_with_a_queue_each_under_mpirun: "threads";
}

/// With a library that was built with MPI, and with one that was not.
#[test]
fn g22_mpi_is_initialised_first_under_mpirun() {
    let is_here = |name: &str| command(name).arg("--version").output().is_ok_and(|output| output.status.success());
    if !(is_here("mpicc") && is_here("mpirun")) {
        eprintln!("skipped: there is no mpicc or no mpirun");
        return;
    }
    let program = compile("mpicc", &["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1"], "gaspi_mpi.c", Link::Shared);
    program.on_each(Program::mpirun, &[1, 2, 4], &[], |ranks| format!("mpi: {ranks} ranks"));
}

#[test]
fn the_guides_program_runs() {
    let program = compile("cc", C99, "../../../docs/programs/gaspi.c", Link::Shared);
    for (ranks, sum) in [(1, 0), (2, 1), (4, 6)] {
        assert_eq!(program.launched(ranks, &[]).expect_success().stdout, format!("sum {sum}\n"));
    }
}

#[test]
fn g25_g53_g70_g71_the_others_go_on_when_a_rank_is_killed() {
    let program = program("loop");
    for way in ["kill", "die", "exit"] {
        for ranks in [3, 4] {
            let done = program.launched_for(ranks, "60s", &[way]);
            for rank in 0..ranks - 1 {
                let line = format!("loop: rank {rank} goes on with {}\n", ranks - 1);
                assert!(done.stdout.contains(&line), "{way}: {done:#?}");
            }
            assert!(!done.stdout.contains(&format!("rank {} goes", ranks - 1)), "{way}: {done:#?}");
        }
    }
}

#[test]
fn a_start_that_fails_has_its_own_text() {
    let program = program("misuse");
    let env = codes::ENV.to_string();
    let done = program.alone_with(&["start", &env], &[("BELLWETHER_TRANSPORT", "nonsense")]).expect_success();
    assert!(done.stdout.starts_with("start: setting BELLWETHER_TRANSPORT=\"nonsense\""), "{done:#?}");
    let sn = codes::SN.to_string();
    let done = program.alone_with(&["start", &sn], &[("BELLWETHER_JOIN", "pmi2")]).expect_success();
    assert!(done.stdout.starts_with("start: ") && done.stdout.contains("BELLWETHER_JOIN=pmi2"), "{done:#?}");
    // One of two tasks that nobody connects.
    let done = program.alone_with(&["start", &env], &[("OMPI_COMM_WORLD_SIZE", "2")]).expect_success();
    assert!(done.stdout.starts_with("start: OMPI_COMM_WORLD_SIZE=2: "), "{done:#?}");
    // The least limit that lets the system load the library. What this test has inherited counts.
    let emfile = codes::EMFILE.to_string();
    let limited = |files: usize| {
        let mut limited = command("sh");
        limited.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]).arg(&program.path);
        run(limited.args(["start", &emfile]), LIMIT)
    };
    let done = (4..64).map(limited).find(|done| !done.stderr.contains("loading shared libraries"));
    let done = done.expect("a limit").expect_success();
    assert!(done.stdout.contains("ulimit -n") || done.stdout.contains("Too many open files"), "{done:#?}");
}

#[test]
fn gaspi_printf_prints_behind_the_rank() {
    let done = program("misuse").launched(2, &[]).expect_success();
    let mask = (done.stdout.lines()).find_map(|line| line.strip_prefix("affinity mask ")).expect("the mask of rank 0");
    let own = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).expect("a mask").trim().replace(',', "");
    assert_eq!(mask.trim_start_matches('0'), own.trim_start_matches('0'));
    let others: Vec<_> = done.stdout.lines().filter(|line| !line.starts_with("affinity mask ")).collect();
    assert_eq!(others, ["[0] printed 42", "[0] printed to 0", "misuse: 2 ranks"]);
}

#[test]
fn programs_run_as_copies_and_linked_statically() {
    assert_eq!(program("ring").alone(&[]).expect_success().stdout, "ring: 1 ranks\n");
    let program = compile("cc", C99, "gaspi_ring.c", Link::Static);
    assert_eq!(program.launched(2, &[]).expect_success().stdout, "ring: 2 ranks\n");
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let flags = [C99, &["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]].concat();
    for name in ["ring", "transpose", "libraries", "server", "calls", "threads", "misuse"] {
        let program = compile("cc", &flags, &format!("gaspi_{name}.c"), Link::Shared);
        program.on_each(Program::launched, &[2], &[], |ranks| format!("{name}: {ranks} ranks"));
    }
}

#[test]
fn the_headers_are_c99_and_cxx98_for_both_compilers() {
    common::check_header(&["-c", "-o", "/dev/null"], "tests/programs/gaspi_header.c");
}

/// The calls that the headers declare with both names.
fn declared() -> Vec<String> {
    let mut names = Vec::new();
    for header in ["GASPI.h", "GASPI_Ext.h"] {
        let text = fs::read_to_string(here().join("include").join(header)).expect("a header");
        let calls = text.split("BELLWETHER_GASPI_CALL(").skip(1);
        names.extend(calls.filter_map(|call| call.split_once(',').map(|(name, _)| name.to_owned())));
    }
    names.retain(|name| name != "name");
    names
}

#[test]
fn g29_every_call_has_both_names_in_the_library() {
    let library = built().join("libbellwether.so");
    let symbols = run(command("nm").args(["-D", "--defined-only"]).arg(library), LIMIT).expect_success().stdout;
    let symbols: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let calls = declared();
    assert_eq!(calls.len(), 84, "{calls:?}");
    for call in calls {
        for name in [format!("gaspi_{call}"), format!("pgaspi_{call}")] {
            assert!(symbols.contains(&name.as_str()), "{name}");
        }
    }
    let threads = fs::read_to_string(here().join("include/GASPI_Threads.h")).expect("a header");
    let lines = threads.lines().filter(|line| line.starts_with("gaspi_return_t ") || line.starts_with("void "));
    let names: Vec<_> = lines.filter_map(|line| line.split([' ', '(']).nth(1)).collect();
    assert_eq!(names.len(), 10, "{names:?}");
    assert!(names.iter().all(|name| symbols.contains(name)), "{names:?}");
}

#[test]
fn every_call_is_made_by_a_program() {
    let programs = SUITE.sources();
    let is_made = |call: &String| has_name(&programs, &format!("gaspi_{call}"));
    assert_eq!(declared().into_iter().filter(|call| !is_made(call)).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn every_code_that_a_call_returns_is_provoked_by_a_program() {
    // The header tells that no call returns the first two. `a_start_that_fails_has_its_own_text` sees the others.
    const APART: [i32; 5] = [codes::SN_PORT, codes::DEVICE, codes::SN, codes::ENV, codes::EMFILE];
    let programs = SUITE.sources();
    let is_named =
        |name: &str| ["GASPI_", "GASPI_ERR_"].iter().any(|kind| has_name(&programs, &format!("{kind}{name}")));
    let missing = codes::CODES.iter().filter(|(code, name, _)| !APART.contains(code) && !is_named(name));
    assert_eq!(missing.map(|(_, name, _)| name).collect::<Vec<_>>(), [&""; 0]);
}

#[test]
fn g29_a_program_that_defines_a_call_sees_its_own() {
    let run = |link| {
        let program = compile("cc", C99, "gaspi_profile.c", link);
        assert_eq!(program.launched(2, &[]).expect_success().stdout, "profile: 2 ranks\n");
    };
    run(Link::Shared);
    let library = fs::read(built().join("libbellwether.so")).expect("the library");
    if library.windows(11).any(|part| part == b"Linker: LLD") {
        run(Link::Static);
    } else {
        eprintln!("skipped: the linker does not export weak names, so they are none in the archive");
    }
}

#[test]
fn the_headers_codes_are_those_of_the_runtime() {
    let header = fs::read_to_string(here().join("include/GASPI.h")).expect("the header");
    let (_, body) = header.split_once("typedef enum {\n    GASPI_ERROR").expect("the codes");
    let (body, _) = body.split_once('}').expect("their end");
    let mut defined = BTreeMap::new();
    for line in format!("GASPI_ERROR{body}").lines().filter(|line| line.contains('=')) {
        let (name, number) = line.trim().trim_end_matches(',').split_once(" = ").expect("a number");
        let name = name.strip_prefix("GASPI_ERR_").or(name.strip_prefix("GASPI_")).expect("a code");
        defined.insert(name.to_owned(), number.parse::<i32>().expect("a number"));
    }
    let known: BTreeMap<_, _> = codes::CODES.iter().map(|(number, name, _)| ((*name).to_owned(), *number)).collect();
    assert_eq!(defined, known);
}
