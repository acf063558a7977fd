//! C programs over `cheetah.h`.

mod common;

use common::{Link, Program, Start, compile};

const C99: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

fn rows() -> Program {
    compile("cc", C99, "cheetah_rows.c", Link::Shared)
}

fn all_rows(contexts: usize) -> String {
    format!("all rows: {contexts} contexts")
}

fn misuse() -> Program {
    compile("cc", C99, "cheetah_misuse.c", Link::Shared)
}

#[test]
fn c01_to_c27_alone() {
    let done = rows().alone(&["DIRECTORY"]).expect_success();
    assert_eq!(done.stdout, "all rows: 1 contexts\n");
}

#[test]
fn c01_to_c27_under_the_launcher() {
    rows().on_each_prints_one(Program::launched, &[2, 4], &["DIRECTORY"], all_rows);
}

/// With the numbers and sizes of the table.
#[test]
fn c06_c08_c10_c14_c23_c24_in_full() {
    if std::env::var_os("ROWS_FULL").is_none() {
        return eprintln!("skipped: set ROWS_FULL to run it");
    }
    rows().on_each_prints_one(Program::launched, &[2], &["DIRECTORY", "full"], all_rows);
}

#[test]
fn c01_to_c27_as_copies_that_np_starts() {
    let done = rows().alone(&["-np", "3", "DIRECTORY"]).expect_success();
    assert_eq!(done.stdout, "all rows: 3 contexts\n");
}

#[test]
fn c01_to_c27_linked_statically() {
    let program = compile("cc", C99, "cheetah_rows.c", Link::Static);
    program.on_each_prints_one(Program::launched, &[2], &["DIRECTORY"], all_rows);
}

#[cfg(feature = "mpi")]
#[test]
fn c01_to_c27_under_mpirun() {
    rows().on_each_prints_one(Program::mpirun, &[1, 2], &["DIRECTORY"], all_rows);
}

#[test]
fn c03_and_bad_arguments_are_codes() {
    let program = misuse();
    assert_eq!(program.alone(&[]).expect_success().stdout, "all codes: 1 contexts\n");
    assert_eq!(program.launched(2, &[]).expect_success().stdout, "all codes: 2 contexts\n");
}

#[cfg(feature = "mpi")]
#[test]
fn c03_and_bad_arguments_are_codes_under_mpirun() {
    assert_eq!(misuse().mpirun(2, &[]).expect_success().stdout, "all codes: 2 contexts\n");
}

#[test]
fn c17_an_unregistered_number_is_a_code_at_the_target() {
    unregistered(Program::launched);
}

#[cfg(feature = "mpi")]
#[test]
fn c17_an_unregistered_number_is_a_code_at_the_target_under_mpirun() {
    unregistered(Program::mpirun);
}

fn unregistered(start: Start) {
    let done = start(&misuse(), 2, &["function"]).expect_success();
    for context in 0..2 {
        let caller = 1 - context;
        let line = format!("context {context}: rank {caller} called handler 99 at rank {context}");
        assert!(done.stdout.contains(&line), "{done:#?}");
    }
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let flags = [C99, &["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]].concat();
    let rows = compile("cc", &flags, "cheetah_rows.c", Link::Shared);
    rows.on_each_prints_one(Program::launched, &[2], &["DIRECTORY"], all_rows);
    let misuse = compile("cc", &flags, "cheetah_misuse.c", Link::Shared);
    assert_eq!(misuse.launched(2, &[]).expect_success().stdout, "all codes: 2 contexts\n");
    misuse.launched(2, &["function"]).expect_success();
    let guides = compile("cc", &flags, "../../../docs/programs/cheetah.c", Link::Shared);
    assert_eq!(guides.launched(2, &[]).expect_success().stdout, "sum 1\n");
}

#[test]
fn the_header_is_c99_and_cxx98_for_both_compilers() {
    common::check_header(&["-fsyntax-only"], "include/cheetah.h");
}
