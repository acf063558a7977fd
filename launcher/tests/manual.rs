//! Completions and manual pages: the programs that read them take them.

mod common;

use std::process::{Command, Stdio};

use common::{Job, bellwether, run};

/// Whether this machine has the program.
fn there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok()
}

#[test]
fn shells_take_their_completions() {
    for (shell, check) in [("bash", &["bash", "-n"][..]), ("zsh", &["zsh", "-n"]), ("fish", &["fish", "-n"])] {
        let done = run(bellwether(&["completions", shell]));
        assert_eq!(done.code(), 0, "{}", done.err);
        let named = ["run", "info", "bench", "completions", "man", "example", "timeout"];
        assert!(named.iter().all(|word| done.out.contains(word)), "{shell}: {}", done.out);
        if there(check[0]) {
            let mut command = Command::new(check[0]);
            command.args(&check[1..]);
            let checked = Job::feed(command, done.out.as_bytes()).wait();
            assert_eq!((checked.code(), checked.err.as_str()), (0, ""), "{shell}");
        }
    }
    assert_eq!(run(bellwether(&["completions", "tcl"])).code(), 2);
}

#[test]
fn bash_completes_names_and_options() {
    let done = run(bellwether(&["completions", "bash"]));
    let ask = |words: &str, last: usize| {
        format!(
            "{}\nCOMP_WORDS=({words}); COMP_CWORD={last}; COMPREPLY=(); \
             _bellwether bellwether \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last} - 1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            done.out
        )
    };
    let offered = |words: &str, last: usize| {
        let bash = Job::feed(Command::new("bash"), ask(words, last).as_bytes()).wait();
        assert_eq!(bash.code(), 0, "{}", bash.err);
        bash.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(offered("bellwether inf", 1), ["info"]);
    assert_eq!(offered("bellwether run --exa", 2), ["--example"]);
    assert_eq!(offered("bellwether run --bind ''", 3), ["core", "none"]);
}

#[test]
fn zsh_finds_the_completions_in_its_path() {
    if !there("zsh") {
        return;
    }
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let done = run(bellwether(&["completions", "zsh"]));
    std::fs::write(folder.path().join("_bellwether"), done.out).expect("a file");
    // `+X` loads the function; zsh reads no settings of the user's.
    let ask = "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d $PWD/dump; \
               print -r -- ${_comps[bellwether]}; autoload +X _bellwether; print -r -- ${functions[_bellwether]}";
    let mut zsh = Command::new("zsh");
    zsh.args(["-f", "-c", ask]).current_dir(folder.path());
    let told = run(zsh);
    assert_eq!((told.code(), told.err.as_str()), (0, ""));
    let mut lines = told.out.lines();
    assert_eq!(lines.next(), Some("_bellwether"), "the function for the command's name: {}", told.out);
    assert!(lines.any(|line| line.contains("--example")), "{}", told.out);
}

#[test]
fn fish_completes_names_and_options() {
    if !there("fish") {
        return;
    }
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let script = folder.path().join("bellwether.fish");
    std::fs::write(&script, run(bellwether(&["completions", "fish"])).out).expect("a file");
    let offered = |line: &str| {
        let mut fish = Command::new("fish");
        let ask = format!("source {}; complete -C '{line}'", script.display());
        fish.args(["--no-config", "-c", &ask]).env("HOME", folder.path());
        let told = run(fish);
        assert_eq!(told.code(), 0, "{}", told.err);
        let first = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
        told.out.lines().map(first).collect::<Vec<_>>()
    };
    assert_eq!(offered("bellwether inf"), ["info"]);
    assert_eq!(offered("bellwether run --exa"), ["--example"]);
    assert_eq!(offered("bellwether run --bind "), ["core", "none"]);
}

#[test]
fn manual_pages_are_taken_by_man() {
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let into = folder.path().join("man1");
    let done = run(bellwether(&["man", into.to_str().expect("a plain name")]));
    assert_eq!(done.code(), 0, "{}", done.err);
    let mut pages: Vec<_> =
        std::fs::read_dir(&into).expect("it was made").map(|page| page.expect("a page").path()).collect();
    pages.sort();
    let names: Vec<_> =
        pages.iter().map(|page| page.file_name().expect("a file").to_str().expect("a plain name")).collect();
    for name in ["bellwether.1", "bellwether-run.1", "bellwether-info.1", "bellwether-bench.1", "bellwether-man.1"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert_eq!(done.out.lines().count(), pages.len(), "each is told: {}", done.out);
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("a page can be read");
        let name = page.file_stem().expect("a name").to_str().expect("a plain name");
        assert!(text.contains(&format!(".TH {name} 1")), "{text}");
        assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH DESCRIPTION"), "{text}");
        if there("mandoc") {
            let checked = run_on("mandoc", &["-T", "lint", "-W", "error"], page);
            assert_eq!(checked.code(), 0, "{name}: {}{}", checked.out, checked.err);
        }
        if there("man") {
            let shown = run_on("man", &["--warnings", "-l"], page);
            assert_eq!(shown.code(), 0, "{name}: {}", shown.err);
            assert!(shown.out.contains("SYNOPSIS"), "{name}: {}", shown.out);
            // A table keeps its lines.
            let row = |start: &str| shown.out.lines().any(|line| line.trim_start().starts_with(start));
            assert!(name != "bellwether-run" || row("127  ") && row("USR1, USR2  "), "{name}: {}", shown.out);
        }
    }
    let one = run(bellwether(&["man"]));
    let text = std::fs::read_to_string(into.join("bellwether.1")).expect("it was written");
    assert!(one.out.contains(".TH bellwether 1") && one.out.contains("bellwether\\-run(1)"), "{}", one.out);
    assert!(text.contains("bellwether\\-run(1)"), "{text}");
    // Every page that is named is there.
    for line in text.lines().filter(|line| line.ends_with("(1)")) {
        let name = line.trim_end_matches("(1)").replace('\\', "");
        assert!(into.join(format!("{name}.1")).exists(), "{line}");
    }
}

fn run_on(program: &str, arguments: &[&str], file: &std::path::Path) -> common::Done {
    let mut command = Command::new(program);
    command.args(arguments).arg(file).env("MANPAGER", "cat").env("PAGER", "cat");
    run(command)
}
