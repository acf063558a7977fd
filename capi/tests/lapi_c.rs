//! C programs over `lapi.h`.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;

use bellwether_runtime::vocabulary::lapi::{codes, raw::ReturnInfo};
use bellwether_tests::process::{command, run};
use common::{LIMIT, Link, Program, Suite, built, compile, has_name, program_tests};

/// Without `-pedantic`: LAPI's programs turn functions into `void *`.
const C99: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1"];

const SUITE: Suite = Suite { prefix: "lapi", flags: C99, ranks: "tasks" };

fn program(name: &str) -> Program {
    SUITE.program(name)
}

program_tests! { SUITE on [1, 2, 3];
    l28_the_references_example, l28_the_references_example_under_mpirun: "example";
    l01_to_l65_rows, l01_to_l65_rows_under_mpirun: "rows";
    l29_to_l61_transfers, l29_to_l61_transfers_under_mpirun: "transfers";
    l38_l39_put_and_get_latency, l38_l39_put_and_get_latency_under_mpirun: "latency";
    l19_l52_l53_an_address_table, l19_l52_l53_an_address_table_under_mpirun: "table";
    l11_a_completion_handler_gets, l11_a_completion_handler_gets_under_mpirun: "fetch";
    l20_to_l26_every_code, l20_to_l26_every_code_under_mpirun: "misuse";
}

#[test]
fn l28_the_references_example_alone_and_as_copies_and_linked_statically() {
    let program = program("example");
    assert_eq!(program.alone(&[]).expect_success().stdout, "example: 1 tasks\n");
    let program = compile("cc", C99, "lapi_example.c", Link::Static);
    assert_eq!(program.launched(2, &[]).expect_success().stdout, "example: 2 tasks\n");
}

/// The library's own variables are in the executable then, and symmetric: what a child stores there must not be its parent's.
#[test]
fn a_child_is_no_task_where_static_data_is_symmetric() {
    let program = compile("cc", C99, "lapi_misuse.c", Link::Static);
    let done = program.alone_with(&[], &[("BELLWETHER_STATIC_DATA", "on")]).expect_success();
    assert_eq!(done.stdout.lines().last(), Some("misuse: 1 tasks"), "{done:#?}");
}

#[test]
fn the_guides_program_runs() {
    let program = compile("cc", C99, "../../../docs/programs/lapi.c", Link::Shared);
    for (tasks, sum) in [(1, 0), (2, 1), (4, 6)] {
        assert_eq!(program.launched(tasks, &[]).expect_success().stdout, format!("sum {sum}\n"));
    }
}

#[test]
fn l54_an_index_that_is_not_set_is_an_error_at_both_ends() {
    let program = program("misuse");
    for tasks in 1..=3 {
        let done = program.launched(tasks, &["unset"]).expect_success();
        assert_eq!(done.stdout, "unset: an error at both ends\n", "{done:#?}");
    }
}

#[cfg(feature = "mpi")]
#[test]
fn l54_an_index_that_is_not_set_is_an_error_at_both_ends_under_mpirun() {
    let program = program("misuse");
    for tasks in 1..=2 {
        let done = program.mpirun(tasks, &["unset"]).expect_success();
        assert_eq!(done.stdout, "unset: an error at both ends\n", "{done:#?}");
    }
}

#[test]
fn a_place_outside_memory_is_an_error_at_both_ends() {
    let done = program("misuse").launched(2, &["place"]).expect_success();
    assert_eq!(done.stdout, "place: an error at both ends\n", "{done:#?}");
}

#[test]
fn l46_places_that_do_not_fit_are_told_to_both_error_handlers() {
    let done = program("misuse").launched(2, &["unsuited"]).expect_success();
    assert_eq!(done.stdout, "unsuited: an error at both ends\n", "{done:#?}");
}

#[test]
fn a_task_without_memory_is_told_so() {
    let program = program("misuse");
    for tasks in 1..=2 {
        let done = program.launched(tasks, &["memory"]).expect_success();
        assert_eq!(done.stdout, format!("memory: {tasks} tasks\n"), "{done:#?}");
    }
}

#[test]
fn a_cxx_exception_that_leaves_a_handler_ends_the_job_with_its_text() {
    for standard in ["-std=c++98", "-std=c++20"] {
        let flags = [standard, "-Wall", "-Wextra", "-Werror", "-O1"];
        let program = compile("c++", &flags, "lapi_throws.cc", Link::Shared);
        for handler in ["header", "completion", "inline", "send", "vector", "error"] {
            let done = program.launched(2, &[handler]);
            assert!(!done.status.success() && !done.stdout.contains("unwound"), "{handler}: {done:#?}");
            assert!(done.stderr.contains("what():  the parcel is torn"), "{handler}: {done:#?}");
            assert!(done.stderr.contains("SIGABRT"), "{handler}: {done:#?}");
        }
    }
}

#[test]
fn a_task_that_ends_without_term_is_lost_to_the_others() {
    lost(&program("misuse"));
}

fn lost(misuse: &Program) {
    let done = misuse.launched_for(3, "60s", &["lost"]);
    for task in 1..3 {
        assert!(done.stdout.contains(&format!("lost: task {task} was told\n")), "{done:#?}");
    }
    // The status is that of a job that lost a task, whatever else happened.
    let reports = ["ERROR: AddressSanitizer", "runtime error:"];
    assert!(!reports.iter().any(|report| done.stderr.contains(report)), "{done:#?}");
}

#[test]
fn a_start_that_fails_has_a_code_and_its_own_text() {
    start_fails(&program("misuse"));
}

fn start_fails(misuse: &Program) {
    let done = misuse.alone_with(&["start"], &[("BELLWETHER_TRANSPORT", "nonsense")]).expect_success();
    assert!(done.stdout.starts_with("start: setting BELLWETHER_TRANSPORT=\"nonsense\""), "{done:#?}");
}

/// The lines of a way to begin and end, one a task.
fn life(way: &str, tasks: usize, done: &bellwether_tests::process::Outcome) {
    for task in 0..tasks {
        assert!(done.stdout.contains(&format!("{way}: task {task} of {tasks}\n")), "{done:#?}");
    }
}

#[test]
fn l55_l56_tasks_begin_and_end_in_many_ways() {
    let program = program("life");
    for way in ["early", "destructor", "again", "threads"] {
        for tasks in [1, 3] {
            life(way, tasks, &program.launched(tasks, &[way]).expect_success());
        }
    }
    // The process that starts copies is no task, and the program's exit function is not for it.
    life("destructor", 2, &program.alone_with(&["destructor"], &[("BELLWETHER_RANKS", "2")]).expect_success());
    // They did not end well, but none of them hangs.
    life("abandoned", 2, &program.launched_for(2, "60s", &["abandoned", "DIRECTORY"]));
}

#[cfg(feature = "mpi")]
#[test]
fn l55_l56_tasks_begin_and_end_in_many_ways_under_mpirun() {
    let program = program("life");
    for way in ["early", "destructor", "again", "threads"] {
        life(way, 2, &program.mpirun(2, &[way]).expect_success());
    }
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let flags = [C99, &["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]].concat();
    for name in ["example", "rows", "transfers", "latency", "table", "fetch", "misuse"] {
        let program = compile("cc", &flags, &format!("lapi_{name}.c"), Link::Shared);
        program.on_each(Program::launched, &[2], &[], |tasks| format!("{name}: {tasks} tasks"));
    }
    let misuse = compile("cc", &flags, "lapi_misuse.c", Link::Shared);
    for way in ["unset", "place", "unsuited"] {
        assert_eq!(misuse.launched(2, &[way]).expect_success().stdout, format!("{way}: an error at both ends\n"));
    }
    lost(&misuse);
    start_fails(&misuse);
    let guides = compile("cc", &flags, "../../../docs/programs/lapi.c", Link::Shared);
    assert_eq!(guides.launched(2, &[]).expect_success().stdout, "sum 1\n");
    let ways = compile("cc", &flags, "lapi_life.c", Link::Shared);
    for way in ["early", "destructor", "again", "threads"] {
        life(way, 2, &ways.launched(2, &[way]).expect_success());
    }
}

#[test]
fn the_header_is_c99_and_cxx98_for_both_compilers() {
    common::check_header(&["-c", "-o", "/dev/null"], "tests/programs/lapi_header.c");
}

#[test]
fn l08_return_information_has_the_headers_fields() {
    // The same numbers as in lapi_header.c.
    let places = [
        offset_of!(ReturnInfo, msg_len),
        offset_of!(ReturnInfo, magic),
        offset_of!(ReturnInfo, ret_flags),
        offset_of!(ReturnInfo, ctl_flags),
        offset_of!(ReturnInfo, dgsp_handle),
        offset_of!(ReturnInfo, bytes),
        offset_of!(ReturnInfo, src),
        offset_of!(ReturnInfo, udata_one_pkt_ptr),
        offset_of!(ReturnInfo, recv_offset),
        size_of::<ReturnInfo>(),
    ];
    assert_eq!(places, [0, 8, 12, 16, 20, 24, 32, 40, 48, 56]);
}

#[test]
fn the_headers_codes_are_those_of_the_runtime() {
    let header = fs::read_to_string(common::here().join("include/lapi.h")).expect("the header");
    let mut defined = BTreeMap::new();
    for line in header.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let ["#define", name, number] = words[..]
            && let Some(name) =
                name.strip_prefix("LAPI_ERR_").or(name.strip_prefix("LAPI_").filter(|n| *n == "SUCCESS"))
        {
            defined.insert(name.to_owned(), number.parse::<i32>().expect("a number"));
        }
    }
    let known: BTreeMap<_, _> = codes::CODES.iter().map(|(number, name, _)| ((*name).to_owned(), *number)).collect();
    assert_eq!(defined, known);
    assert!(codes::CODES.iter().all(|(.., text)| text.len() < 160), "LAPI_MAX_ERR_STRING");
}

/// The calls that the header declares, under both names.
fn declared() -> Vec<String> {
    let header = fs::read_to_string(common::here().join("include/lapi.h")).expect("the header");
    let lines = header.lines().filter_map(|line| line.strip_prefix("int "));
    lines.filter_map(|line| line.split_once('(').map(|(name, _)| name.to_owned())).collect()
}

#[test]
fn every_call_has_both_names_in_the_library() {
    let library = built().join("libbellwether.so");
    let symbols = run(command("nm").args(["-D", "--defined-only"]).arg(library), LIMIT).expect_success().stdout;
    let symbols: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let calls = declared();
    let profiled: Vec<_> = calls.iter().filter(|call| call.starts_with("PLAPI_")).collect();
    assert_eq!((calls.len(), profiled.len()), (60, 30), "{calls:?}");
    assert!(profiled.iter().all(|call| calls.contains(&call[1..].to_owned())), "{calls:?}");
    assert!(calls.iter().all(|call| symbols.contains(&call.as_str())), "{calls:?}");
}

#[test]
fn every_call_is_made_by_a_program() {
    let programs = SUITE.sources();
    let calls = declared().into_iter().filter(|call| call.starts_with("LAPI_"));
    assert_eq!(calls.filter(|call| !has_name(&programs, call)).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn every_code_that_a_call_returns_is_provoked_by_a_program() {
    // The header tells that no call returns the first three, and that no handler in C causes the last.
    const APART: [i32; 4] = [codes::HDR_LEN, codes::UTIL_CMD, codes::CATALOG_FAIL, codes::HANDLER_PANICKED];
    let programs = SUITE.sources();
    let is_named = |name: &str| ["LAPI_", "LAPI_ERR_"].iter().any(|kind| has_name(&programs, &format!("{kind}{name}")));
    let missing = codes::CODES.iter().filter(|(code, name, _)| !APART.contains(code) && !is_named(name));
    assert_eq!(missing.map(|(_, name, _)| name).collect::<Vec<_>>(), [&""; 0]);
}
