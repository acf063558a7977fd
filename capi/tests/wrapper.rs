//! `bellwether cc`, `bellwether c++`, and what they install.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use bellwether_tests::process::{Outcome, command, run};
use common::{LIMIT, built, here};

const HELLO: &str = "
#include <cheetah.h>
#include <lapi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    ulong address = 0;
    if (LAPI_Address(&argc, &address) != LAPI_SUCCESS || address == 0) return 1;
    if (cheetah_core_setup(&argc, &argv) != CHEETAH_SUCCESS) return 1;
    if (cheetah_core_mycontext() == 0) printf(\"%d contexts\\n\", cheetah_core_ncontexts());
    return cheetah_core_finalize();
}
";

/// The command at `path`, with compilers of its own choice.
fn wrapper(path: &Path, arguments: &[&str]) -> Command {
    let mut command = command(path.to_str().expect("our own name"));
    // Tests take what is built.
    command.args(arguments).env_remove("CARGO").env_remove("CC").env_remove("CXX");
    command
}

fn run_two(launcher: &Path, program: &Path) -> Outcome {
    let mut job = wrapper(launcher, &["run", "-n", "2", "--timeout", "60s"]);
    run(job.arg(program), LIMIT).expect_success()
}

#[test]
fn cc_compiles_and_links() {
    let launcher = built().join("bellwether");
    let folder = tempfile::tempdir().expect("a folder");
    for (compiler, source) in [(&["cc"][..], "hello.c"), (&["cc", "--cxx"], "hello.cc"), (&["c++"], "hello.cc")] {
        let (source, object, program) =
            (folder.path().join(source), folder.path().join("hello.o"), folder.path().join("hello"));
        fs::write(&source, HELLO).expect("a file");
        let mut cc = wrapper(&launcher, compiler);
        run(cc.args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]), LIMIT).expect_success();
        assert_eq!(run_two(&launcher, &program).stdout, "2 contexts\n");
        // In two steps; clang warns of options that it does not use.
        fs::remove_file(&program).expect("it was there");
        let mut cc = wrapper(&launcher, compiler);
        cc.env("CC", "clang -O1").env("CXX", "clang++");
        run(cc.args(["-c", "-Werror", "-o"]).args([&object, &source]), LIMIT).expect_success();
        let mut cc = wrapper(&launcher, compiler);
        run(cc.arg("-o").args([&program, &object]), LIMIT).expect_success();
        assert_eq!(run_two(&launcher, &program).stdout, "2 contexts\n");
    }
}

#[test]
fn show_prints_a_line_for_a_shell_and_runs_nothing() {
    let launcher = built().join("bellwether");
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("a name with spaces.c");
    fs::write(&source, HELLO).expect("a file");
    let program = folder.path().join("hello");
    let mut show = wrapper(&launcher, &["cc", "-o"]);
    let shown = run(show.args([&program, &source]).arg("--show"), LIMIT).expect_success().stdout;
    assert!(shown.starts_with("cc -o ") && shown.contains("-lbellwether") && shown.ends_with('\n'), "{shown}");
    assert!(!program.exists());
    run(command("sh").arg("-c").arg(&shown), LIMIT).expect_success();
    assert_eq!(run_two(&launcher, &program).stdout, "2 contexts\n");

    let compiling = run(&mut wrapper(&launcher, &["c++", "-show", "-c", "x.cc"]), LIMIT).expect_success().stdout;
    assert_eq!(compiling, format!("c++ -c x.cc -I{}\n", here().join("include").display()));

    let full = fs::File::create("/dev/full").expect("every Linux has it");
    let done = wrapper(&launcher, &["cc", "--show", "x.c"]).stdout(full).output().expect("it was built");
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(2) && err.contains("cannot write to standard output"), "{err}");
}

#[test]
fn the_compilers_status_and_words_come_back() {
    let launcher = built().join("bellwether");
    let done = run(&mut wrapper(&launcher, &["cc", "-c", "there-is-no-such-file.c"]), LIMIT);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("there-is-no-such-file.c"), "{done:#?}");
    let mut missing = wrapper(&launcher, &["cc", "x.c"]);
    let done = run(missing.env("CC", "there-is-no-such-compiler"), LIMIT);
    assert_eq!(done.status.code(), Some(127));
    assert!(done.stderr.contains("there-is-no-such-compiler"), "{done:#?}");
    assert_eq!(run(&mut wrapper(&launcher, &["cc"]), LIMIT).status.code(), Some(2));
}

#[test]
fn an_installed_prefix_stands_by_itself() {
    let launcher = built().join("bellwether");
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("a prefix");
    let prefix = prefix.to_str().expect("our own name");
    // Twice: the second replaces.
    for _ in 0..2 {
        run(&mut wrapper(&launcher, &["cc", "--install", prefix]), LIMIT).expect_success();
    }
    let installed = Path::new(prefix).join("bin/bellwether");
    for header in ["cheetah.h", "Cheetah/Cheetah.h", "Cheetah/MatchingHandler.h"] {
        assert!(Path::new(prefix).join("include").join(header).exists(), "{header}");
    }
    let shown = run(&mut wrapper(&installed, &["cc", "--show", "x.c"]), LIMIT).expect_success().stdout;
    assert_eq!(shown, format!("cc x.c '-I{prefix}/include' '-L{prefix}/lib' '-Wl,-rpath,{prefix}/lib' -lbellwether\n"));
    let (source, program) = (folder.path().join("hello.c"), folder.path().join("hello"));
    fs::write(&source, HELLO).expect("a file");
    run(wrapper(&installed, &["cc", "-o"]).args([&program, &source]), LIMIT).expect_success();
    assert_eq!(run_two(&installed, &program).stdout, "2 contexts\n");

    // What is not whole is not installed: nothing is left of it.
    fs::remove_file(Path::new(prefix).join("lib/libbellwether.a")).expect("installed");
    let next = folder.path().join("next");
    let done = run(&mut wrapper(&installed, &["cc", "--install", next.to_str().expect("our own name")]), LIMIT);
    assert!(done.status.code() == Some(2) && done.stderr.contains("libbellwether.a: "), "{done:#?}");
    assert!(!next.exists(), "{done:#?}");
}

/// As `cargo install` leaves it: in a folder of other commands.
#[test]
fn a_command_in_no_build_folder_builds_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("bin/bellwether");
    fs::create_dir(folder.path().join("bin")).expect("a folder");
    fs::copy(built().join("bellwether"), &copy).expect("a copy");
    let done = run(&mut wrapper(&copy, &["cc", "-o", "hello", "hello.c"]), LIMIT);
    assert!(done.stderr.contains("there is no library") && done.stderr.contains("cc --install PREFIX"), "{done:#?}");
    assert_eq!((done.status.code(), fs::read_dir(folder.path()).expect("there").count()), (Some(2), 1), "{done:#?}");
}

#[test]
fn pkg_config_finds_an_installed_prefix() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().to_str().expect("our own name");
    run(&mut wrapper(&built().join("bellwether"), &["cc", "--install", prefix]), LIMIT).expect_success();
    let file = fs::read_to_string(folder.path().join("lib/pkgconfig/bellwether.pc")).expect("installed");
    assert!(file.contains(&format!("prefix={prefix}\n")) && !file.contains('@'), "{file}");
    let (source, program) = (folder.path().join("hello.c"), folder.path().join("hello"));
    fs::write(&source, HELLO).expect("a file");
    if Command::new("pkg-config").arg("--version").output().is_err() {
        return;
    }
    for flags in ["--libs", "--static --libs"] {
        let script = format!("cc -o \"$2\" \"$1\" $(pkg-config --cflags {flags} bellwether)");
        let mut cc = command("sh");
        cc.args(["-c", &script, "sh"]).args([&source, &program]);
        run(cc.env("PKG_CONFIG_PATH", folder.path().join("lib/pkgconfig")), LIMIT).expect_success();
        assert_eq!(run_two(&folder.path().join("bin/bellwether"), &program).stdout, "2 contexts\n");
    }
}

/// A program as GASPI's users build it.
const GASPI: &str = "
#include <GASPI.h>
#include <stdio.h>
int main(void) {
    gaspi_rank_t rank, ranks;
    if (gaspi_proc_init(GASPI_BLOCK) != GASPI_SUCCESS) return 1;
    if (gaspi_proc_rank(&rank) != GASPI_SUCCESS || gaspi_proc_num(&ranks) != GASPI_SUCCESS) return 1;
    if (gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK) != GASPI_SUCCESS) return 1;
    if (rank == 0) gaspi_printf(\"%d contexts\\n\", ranks);
    return gaspi_proc_term(GASPI_BLOCK);
}
";

#[test]
fn programs_for_gaspi_link_by_its_names() {
    let launcher = built().join("bellwether");
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().to_str().expect("our own name");
    run(&mut wrapper(&launcher, &["cc", "--install", prefix]), LIMIT).expect_success();
    let (source, program) = (folder.path().join("hello.c"), folder.path().join("hello"));
    fs::write(&source, GASPI).expect("a file");
    let mut ways = Vec::new();
    for library in ["-lgaspi", "-lGPI2", "-lGPI2-dbg"] {
        for launcher in [&launcher, &folder.path().join("bin/bellwether")] {
            let mut cc = wrapper(launcher, &["cc", "-o"]);
            cc.args([&program, &source]).args([library, "-lpthread"]);
            ways.push(cc);
        }
        // Without this command, in an installed prefix.
        let lib = folder.path().join("lib");
        let mut cc = command("cc");
        cc.arg("-o").args([&program, &source]).arg("-I").arg(folder.path().join("include")).arg("-L").arg(&lib);
        cc.arg(library).arg(format!("-Wl,-rpath,{}", lib.display()));
        ways.push(cc);
    }
    if Command::new("pkg-config").arg("--version").output().is_ok() {
        for module in ["gaspi", "GPI2 >= 1.5.0"] {
            let script = format!("cc -o \"$2\" \"$1\" $(pkg-config --cflags --libs '{module}')");
            let mut cc = command("sh");
            cc.args(["-c", &script, "sh"]).args([&source, &program]);
            cc.env("PKG_CONFIG_PATH", folder.path().join("lib/pkgconfig"));
            ways.push(cc);
        }
    }
    for mut way in ways {
        let _ = fs::remove_file(&program);
        run(&mut way, LIMIT).expect_success();
        assert_eq!(run_two(&launcher, &program).stdout, "[0] 2 contexts\n", "{way:?}");
    }
}
