//! C programs over `GASPI.h`.

mod common;

use common::{Link, Program, Start, compile};

const C99: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

fn program(name: &str) -> Program {
    compile("cc", C99, &format!("gaspi_{name}.c"), Link::Shared)
}

fn on_each(name: &str, start: Start, ranks: &[usize]) {
    program(name).on_each(start, ranks, &[], |ranks| format!("{name}: {ranks} ranks"));
}

/// Makes a test under the launcher, and one under mpirun, of each program.
macro_rules! programs {
    ($($test:ident, $under_mpirun:ident: $name:literal;)+) => {$(
        #[test]
        fn $test() {
            on_each($name, Program::launched, &[1, 2, 4]);
        }

        #[cfg(feature = "mpi")]
        #[test]
        fn $under_mpirun() {
            on_each($name, Program::mpirun, &[1, 2]);
        }
    )+};
}

programs! {
    g49_g50_g61_a_ring_with_notifications, g49_g50_g61_a_ring_with_notifications_under_mpirun: "ring";
    g50_a_transpose_with_write_notify, g50_a_transpose_with_write_notify_under_mpirun: "transpose";
    g01_to_g15_two_libraries_with_a_queue_each, g01_to_g15_two_libraries_with_a_queue_each_under_mpirun: "libraries";
    g67_to_g69_a_passive_server, g67_to_g69_a_passive_server_under_mpirun: "server";
    g18_to_g70_every_code, g18_to_g70_every_code_under_mpirun: "misuse";
    g17_threads_with_a_queue_each, g17_threads_with_a_queue_each_under_mpirun: "threads";
}

#[test]
fn g25_g53_g70_g71_the_others_go_on_when_a_rank_is_killed() {
    let program = program("loop");
    for way in ["kill", "die"] {
        for ranks in [3, 4] {
            let done = program.launched_for(ranks, "30s", &[way]);
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
    let done = program("misuse").alone_with(&["start"], &[("BELLWETHER_TRANSPORT", "nonsense")]).expect_success();
    assert!(done.stdout.starts_with("start: setting BELLWETHER_TRANSPORT=\"nonsense\""), "{done:#?}");
}
