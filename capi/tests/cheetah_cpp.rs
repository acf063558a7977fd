//! C++ programs over `Cheetah/Cheetah.h`.

mod common;

use bellwether_tests::process::{command, has_time_and_memory, run};
use common::{LIMIT, Link, Program, compile, compile_file, here};

/// Quickly compiled: what is tested is the library.
const CXX11: &[&str] = &["-std=c++11", "-Wall", "-Wextra", "-Werror", "-O0", "-g"];

fn rows() -> Program {
    compile("c++", CXX11, "cheetah_cxx.cpp", Link::Shared)
}

/// The row alone, on two contexts and on three.
fn row(name: &str) {
    let program = rows();
    let line = |contexts| format!("{name}: {contexts} contexts\n");
    assert_eq!(program.alone(&[name, "DIRECTORY"]).expect_success().stdout, line(1));
    for contexts in [2, 3] {
        assert_eq!(program.launched(contexts, &[name, "DIRECTORY"]).expect_success().stdout, line(contexts));
    }
}

macro_rules! rows {
    ($($test:ident $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                row($name);
            }
        )*

    };
}

#[cfg(feature = "mpi")]
#[test]
fn c28_to_c40_under_mpirun() {
    let program = rows();
    for name in ["c28", "static", "all"] {
        let done = program.mpirun(2, &[name, "DIRECTORY"]).expect_success();
        assert_eq!(done.stdout, format!("{name}: 2 contexts\n"));
    }
}

rows! {
    c28_copies_share_and_the_last_one_finalises "c28";
    c28_a_static_controller_finalises "static";
    c29_sends_and_requests_meet_in_either_order "c29";
    c30_unmatched_requests_and_messages_are_counted "c30";
    c31_at_most_one_argument_of_either_side "c31";
    c32_an_explicit_tag_is_used "c32";
    c33_handlers_are_told_apart_and_may_be_deleted "c33";
    c34_send_packs_and_never_waits "c34";
    c35_request_copies_its_argument "c35";
    c36_a_view_is_sent_and_a_brick_received "c36";
    c37_the_buffer_is_aligned_and_lives_until_cleanup "c37";
    c38_first_in_first_out_under_any_tag "c38";
    c39_functions_run_one_after_the_other "c39";
    c40_strings_vectors_arrays_and_own_types "c40";
}

#[test]
fn c28_np_starts_copies() {
    let done = rows().alone(&["-np", "3", "c29", "DIRECTORY"]).expect_success();
    assert_eq!(done.stdout, "c29: 3 contexts\n");
}

/// Offers without cross-memory attach, and message memory for a few messages.
#[test]
fn c34_c38_with_little_message_memory_and_values_in_pieces() {
    let program = rows();
    let settings = [("BELLWETHER_MESSAGE_MEMORY", "64KiB"), ("BELLWETHER_CMA", "off")];
    for name in ["c34", "c37", "c38"] {
        let done = program.launched_with(2, &settings, &[name, "DIRECTORY"]).expect_success();
        assert_eq!(done.stdout, format!("{name}: 2 contexts\n"));
    }
}

/// The programs that the guide shows.
#[test]
fn the_guides_programs_run() {
    for (compiler, standard, file) in [("cc", "-std=c99", "cheetah.c"), ("c++", "-std=c++98", "cheetah.cpp")] {
        let source = here().join("../docs/programs").join(file);
        let program = compile_file(compiler, &[standard, "-Wall", "-Wextra", "-Werror"], &source, Link::Shared);
        for contexts in [1, 2, 3usize] {
            let sum = contexts * (contexts - 1) / 2;
            assert_eq!(program.launched(contexts, &[]).expect_success().stdout, format!("sum {sum}\n"), "{file}");
        }
    }
}

#[test]
fn c34_a_value_beyond_two_gibibytes() {
    if !has_time_and_memory(7) {
        return;
    }
    assert_eq!(rows().launched(2, &["gigabytes", "DIRECTORY"]).expect_success().stdout, "gigabytes: 2 contexts\n");
}

/// The job ends with the exception's text, and no context waits for ever.
#[test]
fn an_exception_that_leaves_a_handler_ends_the_job_with_its_text() {
    let program = rows();
    for (how, text) in [
        ("throw-error", "thrown in a function"),
        ("throw-number", "an exception without a text"),
        ("throw-text", "thrown as a text"),
        ("throw-ours", "inside a handler"),
        ("throw-unpack", "thrown while unpacking"),
        ("throw-count", "more items were sent than the count of the request's function can hold"),
        ("throw-handler", "thrown in a handler"),
    ] {
        let done = program.launched(2, &[how, "DIRECTORY"]);
        assert!(!done.status.success() && done.stdout.is_empty(), "{how}: {done:#?}");
        let line = format!("rank 0: an exception has left a handler: {text}");
        let told = match how {
            // The text is that of a call of ours.
            "throw-ours" => {
                done.stderr.contains("an exception has left a handler: ") && done.stderr.contains("handler")
            }
            _ => done.stderr.contains(&line),
        };
        assert!(told, "{how}: {done:#?}");
    }
}

/// Nor does a context that an exception ends wait for the others in a destructor, or one that exits with a failure.
#[test]
fn c28_a_context_that_fails_does_not_finalise() {
    let program = rows();
    let done = program.launched(2, &["unwound", "DIRECTORY"]);
    assert!(done.stderr.contains("rank 0") && done.stderr.contains("exit 3"), "{done:#?}");
    // It exits while its static controller is valid, and the others are in a barrier.
    let done = program.launched(2, &["fails", "DIRECTORY"]);
    assert!(done.stderr.contains("exit 5") && !done.stderr.contains("~Controller"), "{done:#?}");
}

#[test]
fn c41_the_header_compiles_as_each_standard_without_a_warning() {
    for compiler in ["g++", "clang++"] {
        for standard in ["c++98", "c++11", "c++20"] {
            let mut check = command(compiler);
            check.arg(format!("-std={standard}")).args([
                "-fpermissive",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
            ]);
            check.arg("-I").arg(here().join("include")).arg(here().join("tests/programs/cheetah_cxx.cpp"));
            run(&mut check, LIMIT).expect_success();
        }
    }
}

/// Compiled as other standards and by the other compiler it also runs; optimised, as unused bytes would be told then.
#[test]
fn c41_programs_of_each_compiler_run() {
    for (compiler, standard, row) in [("g++", "-std=c++98", "c36"), ("clang++", "-std=c++20", "c40")] {
        let flags = [standard, "-fpermissive", "-Wall", "-Wextra", "-Werror", "-O2"];
        let program = compile(compiler, &flags, "cheetah_cxx.cpp", Link::Shared);
        let done = program.launched(2, &[row, "DIRECTORY"]).expect_success();
        assert_eq!(done.stdout, format!("{row}: 2 contexts\n"));
    }
}

/// The header of this library in C++ programs that the address sanitizer watches, with leaks.
#[test]
fn c37_the_address_sanitizer_is_content() {
    let flags = ["-std=c++11", "-O0", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"];
    let program = compile("g++", &flags, "cheetah_cxx.cpp", Link::Shared);
    for name in ["c28", "c29", "c30", "c31", "c32", "c33", "c34", "c35", "c36", "c37", "c38", "c39", "c40"] {
        let done = program.launched(2, &[name, "DIRECTORY"]).expect_success();
        assert_eq!(done.stdout, format!("{name}: 2 contexts\n"));
    }
}
