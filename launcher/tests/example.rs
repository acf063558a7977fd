//! `--example`: building and running by name.

mod common;

use std::fs;
use std::path::Path;

use common::{Done, bellwether, run};

/// A workspace of one package with one example that prints its arguments.
fn workspace(root: &Path) {
    fs::create_dir_all(root.join("demo/examples")).expect("the folder is ours");
    fs::create_dir_all(root.join("demo/src")).expect("the folder is ours");
    let write = |path: &str, text: &str| fs::write(root.join(path), text).expect("the folder is ours");
    write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"demo\"]\n");
    let features = "[features]\nloud = []\n";
    write("demo/Cargo.toml", &format!("[package]\nname = \"demo\"\nedition = \"2024\"\n{features}"));
    write("demo/src/lib.rs", "");
    write(
        "demo/examples/hello.rs",
        "fn main() {\n    let args: Vec<String> = std::env::args().skip(1).collect();\n    \
         println!(\"{} {}\", if cfg!(feature = \"loud\") { \"HELLO\" } else { \"hello\" }, args.join(\" \"));\n}\n",
    );
}

fn example(root: &Path, args: &[&str]) -> Done {
    let mut command = bellwether(&["run", "-n", "2"]);
    command.args(args).current_dir(root).env("CARGO_TARGET_DIR", root.join("target"));
    command.env("CARGO_NET_OFFLINE", "true");
    run(command)
}

#[test]
fn builds_and_runs_an_example() {
    let dir = tempfile::tempdir().expect("a place for temporary files");
    workspace(dir.path());
    let done = example(dir.path(), &["--example", "hello", "8", "--size", "9"]);
    assert_eq!(done.code(), 0, "{}", done.err);
    assert_eq!(done.out, "hello 8 --size 9\n".repeat(2));
    let done = example(dir.path(), &["--example", "hello", "--size", "9"]);
    assert_eq!(done.out, "hello --size 9\n".repeat(2), "{}", done.err);
    let done = example(dir.path(), &["--example", "hello", "--tag", "--", "--tag"]);
    assert_eq!(done.code(), 0, "{}", done.err);
    assert!(done.out.contains("[0] hello --tag\n"), "{}", done.out);
    let done = example(dir.path(), &["--example", "hello", "--features", "loud"]);
    assert_eq!(done.out, "HELLO \n".repeat(2), "{}", done.err);
}

#[test]
fn an_unknown_example_is_told_with_those_there_are() {
    let dir = tempfile::tempdir().expect("a place for temporary files");
    workspace(dir.path());
    let done = example(dir.path(), &["--example", "goodbye"]);
    assert_eq!(done.code(), 2);
    assert!(done.err.contains("no example `goodbye` in the workspace"), "{}", done.err);
    assert!(done.err.contains("there are: hello"), "{}", done.err);
}

#[test]
fn without_a_workspace_it_says_what_it_needs() {
    let dir = tempfile::tempdir().expect("a place for temporary files");
    let done = example(dir.path(), &["--example", "hello"]);
    assert_eq!(done.code(), 2);
    assert!(done.err.contains("needs a cargo workspace around the current folder"), "{}", done.err);
}

#[test]
fn an_example_that_does_not_compile_ends_there() {
    let dir = tempfile::tempdir().expect("a place for temporary files");
    workspace(dir.path());
    fs::write(dir.path().join("demo/examples/hello.rs"), "fn main() { nonsense }").expect("ours");
    let done = example(dir.path(), &["--example", "hello"]);
    assert_eq!(done.code(), 2);
    assert!(done.err.contains("could not build the example `hello`"), "{}", done.err);
}

#[test]
fn info_and_help_print_something_useful() {
    let done = run(bellwether(&["info"]));
    assert_eq!(done.code(), 0);
    let rows = ["CPUs allowed", "memory", "huge pages", "memfd", "membarrier", "cross-memory attach"];
    for what in rows.into_iter().chain(["segment pages", "memory per local peer", "BELLWETHER_HEAP_LIMIT"]) {
        assert!(done.out.lines().any(|line| line.trim_start().starts_with(what)), "{what}: {}", done.out);
    }
    let interfaces =
        done.out.split_once("\nNetwork interfaces").expect("a table").1.split("\n\n").next().expect("its rows");
    let here = bellwether_runtime::membership::interfaces::here();
    let rows: Vec<Vec<&str>> = interfaces.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), here.len(), "{interfaces}");
    for (row, interface) in rows.iter().zip(here) {
        let speed = format!("{:.1}", interface.bandwidth * 8.0 / 1e9);
        assert_eq!(row[..3], [&*interface.name, &*speed, "Gbit/s"]);
        let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(row[3..], addresses);
    }
    let mut misspelt = bellwether(&["info"]);
    misspelt.env("BELLWETHER_HEAPLIMIT", "1GiB").env("BELLWETHER_SPIN", "7");
    let done = run(misspelt);
    assert!(done.out.contains("did you mean BELLWETHER_HEAP_LIMIT?"), "{}", done.out);
    assert!(done.out.lines().any(|line| line.contains("BELLWETHER_SPIN") && line.contains("environment")));
    // Over TCP data is encrypted, or it is not.
    for (value, expected) in
        [("on", "data is authenticated and encrypted"), ("off", "data is authenticated (GMAC), not encrypted")]
    {
        let mut over_tcp = bellwether(&["info"]);
        over_tcp.env("BELLWETHER_TRANSPORT", "tcp").env("BELLWETHER_ENCRYPT", value);
        let done = run(over_tcp);
        let rows: Vec<_> = done.out.lines().filter(|line| line.trim_start().starts_with("protection")).collect();
        // Of the rank, and of the transport.
        assert!(rows.iter().filter(|row| row.contains(expected)).count() == 2, "{value}: {}", done.out);
    }
    // Columns line up, whatever they hold.
    let mut long = bellwether(&["info"]);
    long.env("BELLWETHER_VERBS_DEVICE", "a-device-with-a-name-that-is-long:1:3");
    let done = run(long);
    let settings = done.out.split_once("\nSettings\n").expect("a table").1;
    let origin =
        |line: &str| ["environment", "automatic", "default"].iter().find_map(|word| line.find(&format!("  {word}")));
    let columns: Vec<_> = settings.lines().map(origin).collect();
    assert!(columns.len() > 20 && columns.iter().all(|at| *at == columns[0] && at.is_some()), "{settings}");
    assert!(run(bellwether(&["--help"])).out.contains("bellwether run -n 4 --example heat2d"));
    assert!(run(bellwether(&["run", "--help"])).out.contains("Exit status"));
}
