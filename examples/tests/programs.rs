//! The examples as programs: their arguments, exit codes and messages.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The program of an example, beside the one of this test.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().and_then(|folder| folder.parent()).unwrap().join("examples").join(name)
}

/// Runs an example on `ranks` ranks in a folder of its own.
fn run(ranks: usize, name: &str, arguments: &[&str]) -> (Output, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program(name));
    command.args(arguments).current_dir(&folder).env("BELLWETHER_RANKS", ranks.to_string());
    (command.output().unwrap(), folder)
}

#[track_caller]
fn refused(ranks: usize, name: &str, arguments: &[&str], part: &str) {
    let (output, folder) = run(ranks, name, arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{name} {arguments:?}: {message}");
    assert!(message.contains(part), "{name} {arguments:?}: {message}");
    assert_eq!(message.matches("error: ").count(), 1, "told once: {message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn wrong_arguments_are_exit_code_2() {
    for ranks in [1, 2] {
        refused(ranks, "samplesort", &["--keys", "0"], "--keys");
        refused(ranks, "samplesort", &["--keys", "99999999999"], "--keys");
        refused(ranks, "samplesort", &["--rounds", "0"], "--rounds");
        refused(ranks, "transpose", &["--rows", "0"], "--rows");
        refused(ranks, "transpose", &["--rows", "16777216", "--columns", "16777216"], "out of symmetric heap");
        refused(ranks, "montecarlo", &["--particles", "0"], "--particles");
        refused(ranks, "montecarlo", &["--thickness=-1"], "from 0 up");
        refused(ranks, "montecarlo", &["--thickness", "-1"], "from 0 up");
        refused(ranks, "heat2d", &["--steps", "-1"], "invalid value '-1' for '--steps");
        for form in [&[][..], &["--notifications"]] {
            refused(ranks, "halo3d", &[form, &["--size", "0x4x4"]].concat(), "expected three numbers");
            refused(ranks, "halo3d", &[form, &["--size", "8x8"]].concat(), "expected three numbers");
            refused(ranks, "halo3d", &[form, &["--steps", "0"]].concat(), "--steps");
            refused(ranks, "halo3d", &[form, &["--output", "no/such/folder.png"]].concat(), "no/such/folder.png");
        }
        refused(ranks, "montecarlo", &["--absorption", "0", "--scattering", "0"], "larger than 0");
        refused(ranks, "montecarlo", &["--thickness", "1e9"], "mean free paths");
        refused(ranks, "montecarlo", &["--output", "no/such/folder.svg"], "no/such/folder.svg");
        refused(ranks, "nbody", &["--bodies", "0"], "--bodies");
        refused(ranks, "nbody", &["--time-step", "nan"], "at most 1");
        refused(ranks, "nbody", &["--output", "no/such/folder.png"], "no/such/folder.png");
        refused(ranks, "bfs", &["--scale", "99"], "--scale");
        refused(ranks, "bfs", &["--scale", "4", "--root", "16"], "--root 16: the graph has vertices 0 to 15");
        refused(ranks, "bfs", &["no-such.graph"], "no-such.graph");
        refused(ranks, "bfs", &["/dev/zero"], "/dev/zero has more than");
        refused(ranks, "cg", &["/dev/zero"], "/dev/zero has more than");
        for (program, argument) in [("histogram", "--bins"), ("histogram", "--samples"), ("indexgather", "--elements")]
        {
            refused(ranks, program, &[argument, "0"], argument);
            refused(ranks, program, &[argument, "18446744073709551615"], argument);
        }
    }
}

#[test]
fn a_truncated_graph_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.graph");
    let house = include_str!("../data/house.graph");
    std::fs::write(&path, &house[..house.len() - 6]).unwrap();
    let path = path.to_str().unwrap();
    for ranks in [1, 3] {
        refused(ranks, "bfs", &[path], "cut.graph as a METIS graph");
    }
}

/// Runs the program, which must succeed. Returns its output and its folder.
fn succeeds(ranks: usize, name: &str, arguments: &[&str]) -> (String, tempfile::TempDir) {
    let (output, folder) = run(ranks, name, arguments);
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{name} on {ranks} ranks: {out}{error}");
    (out, folder)
}

/// The line of the program's output that begins with `word`.
fn answer(ranks: usize, name: &str, arguments: &[&str], word: &str) -> String {
    let (out, _folder) = succeeds(ranks, name, arguments);
    assert!(word != "answer" || ["verified", "every bit equals"].iter().any(|says| out.contains(says)), "{out}");
    out.lines().find(|line| line.starts_with(word)).unwrap().to_owned()
}

#[test]
fn processes_draw_the_same_plate_for_any_number_of_ranks() {
    let picture = |ranks| {
        let (out, folder) = succeeds(ranks, "heat2d", &["--size", "40x30", "--steps", "60", "--check"]);
        assert!(out.contains("every bit equals the serial run"), "{out}");
        std::fs::read(folder.path().join("heat2d.png")).unwrap()
    };
    let alone = picture(1);
    [2, 3, 7].into_iter().for_each(|ranks| assert!(picture(ranks) == alone, "{ranks} ranks"));
}

#[test]
fn processes_solve_the_same_system_for_any_number_of_ranks() {
    for ranks in [1, 2, 3, 7] {
        let history = || {
            let (out, _folder) = succeeds(ranks, "cg", &["--grid", "12", "--check"]);
            assert!(out.contains("check     as the serial run"), "{out}");
            out.lines().filter(|line| line.starts_with("iteration")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(history(), history(), "{ranks} ranks");
    }
}

#[test]
fn processes_give_the_same_answer_for_any_number_of_ranks() {
    let graph = concat!(env!("CARGO_MANIFEST_DIR"), "/data/house.graph");
    for (name, arguments) in [
        ("samplesort", &["--keys", "1000", "--distribution", "skewed", "--check"][..]),
        ("samplesort", &["--keys", "2"]),
        ("samplesort", &["--messages", "--keys", "1000", "--distribution", "few", "--check"]),
        ("transpose", &["--rows", "50", "--columns", "3"]),
        ("halo3d", &["--size", "20x11x9", "--steps", "13", "--check"]),
        ("halo3d", &["--notifications", "--size", "20x11x9", "--steps", "13", "--check"]),
        ("montecarlo", &["--particles", "5000"]),
        ("nbody", &["--bodies", "40", "--steps", "5"]),
        ("bfs", &["--scale", "8", "--check"]),
        ("bfs", &[graph, "--check", "--root", "5"]),
        ("histogram", &["--bins", "100", "--samples", "1000"]),
        ("indexgather", &["--elements", "100", "--reads", "1000"]),
    ] {
        let word = if matches!(name, "histogram" | "indexgather") { "check" } else { "answer" };
        let alone = answer(1, name, arguments, word);
        for ranks in [2, 3, 7] {
            assert_eq!(answer(ranks, name, arguments, word), alone, "{name} on {ranks} ranks");
        }
    }
}

#[test]
fn both_forms_of_samplesort_give_the_same_answer() {
    for arguments in [&["--keys", "30000", "--distribution", "skewed"][..], &["--keys", "1"], &["--keys", "5000"]] {
        let puts = answer(3, "samplesort", arguments, "answer");
        let messages = [arguments, &["--messages"]].concat();
        assert_eq!(answer(3, "samplesort", &messages, "answer"), puts, "{arguments:?}");
    }
}

#[test]
fn both_forms_of_halo3d_give_the_same_picture() {
    let picture = |ranks, form: &[&str]| {
        let arguments = [form, &["--size", "16x12x10", "--steps", "30", "--check"]].concat();
        let (out, folder) = succeeds(ranks, "halo3d", &arguments);
        let told = ["hidden    ", "check     every bit equals", "answer    digest "];
        assert!(told.iter().all(|line| out.contains(line)) || ranks == 1, "{out}");
        let answer = out.lines().last().unwrap().to_owned();
        (answer, std::fs::read(folder.path().join("halo3d.png")).unwrap())
    };
    let alone = picture(1, &[]);
    for ranks in [1, 2, 5, 8] {
        assert!(picture(ranks, &[]) == alone && picture(ranks, &["--notifications"]) == alone, "{ranks} ranks");
    }
}

#[test]
fn a_box_without_room_for_the_ranks_is_refused() {
    for form in [&[][..], &["--notifications"]] {
        let arguments = [form, &["--size", "4x3x2"]].concat();
        refused(5, "halo3d", &arguments, "5 ranks do not divide it");
    }
}

/// A command under "Examples:" of a program's help.
struct HelpCommand {
    ranks: usize,
    /// Whether the ranks go on after a death.
    survive: bool,
    arguments: Vec<String>,
}

fn commands_of_help(name: &str) -> Vec<HelpCommand> {
    let (help, _folder) = succeeds(1, name, &["--help"]);
    let Some((_, examples)) = help.split_once("Examples:\n") else { return Vec::new() };
    let commands = examples.lines().take_while(|line| line.starts_with("  "));
    let read = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (ranks, survive, example, arguments) = match &words[..] {
            ["bellwether", "run", "-n", ranks, "--example", example, rest @ ..] => (ranks, false, example, rest),
            ["bellwether", "run", "-n", ranks, "--survive", "--example", example, rest @ ..] => {
                (ranks, true, example, rest)
            }
            _ => panic!("{name} --help has a command that does not start in a checkout: {line}"),
        };
        assert_eq!(*example, name, "{line}");
        // As `run` does, for arguments that it has too.
        let arguments = arguments.strip_prefix(&["--"]).unwrap_or(arguments);
        let arguments = arguments.iter().map(|word| word.to_string()).collect();
        HelpCommand { ranks: ranks.parse().unwrap(), survive, arguments }
    };
    commands.map(read).collect()
}

/// Every command that a help text names starts: it ends well, or is still computing when its time is over.
#[test]
fn the_commands_that_help_names_start() {
    let mut tried = 0;
    // All commands, and more seconds, in `ci/test full`, which sets the variable; else the second of each program: the first has no options.
    let (most, limit, least) =
        if std::env::var_os("ROWS_FULL").is_some() { (usize::MAX, "3", 13) } else { (1, "1", 7) };
    for name in ["heat2d", "halo3d", "cg", "samplesort", "transpose", "montecarlo", "nbody", "bfs"] {
        let folder = tempfile::tempdir().unwrap();
        let commands = commands_of_help(name);
        assert!(commands.len() > 1, "{name} has examples");
        for HelpCommand { ranks, survive, arguments } in commands.into_iter().skip(usize::from(most == 1)).take(most) {
            // Graphs of a package that may be missing here.
            if arguments.iter().any(|word| word.starts_with('/') && !std::path::Path::new(word).exists()) {
                continue;
            }
            let mut command = Command::new(program(name));
            command.args(&arguments).current_dir(&folder).env("BELLWETHER_RANKS", ranks.to_string());
            if survive {
                command.env("BELLWETHER_SURVIVE", "on");
            }
            let output = command.env("BELLWETHER_DEADLINE", limit).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 124)), "{name} {arguments:?}: {:?} {error}", output.status);
            tried += 1;
        }
    }
    assert!(tried >= least, "{tried} commands");
}

/// The README's first command, and every other example, leaves nothing in a checkout that git wants to have.
#[test]
fn git_ignores_what_examples_write_by_default() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let git = |arguments: &[&str]| Command::new("git").args(arguments).current_dir(root).output();
    // A package or a machine without git has nothing to check.
    if !git(&["rev-parse", "--is-inside-work-tree"]).is_ok_and(|output| output.status.success()) {
        return;
    }
    for name in ["heat2d", "halo3d", "cg", "montecarlo", "nbody"] {
        let (help, _folder) = succeeds(1, name, &["--help"]);
        let (_, after) = help.split_once("--output").unwrap();
        let file = after.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
        assert!(
            git(&["check-ignore", "-q", file]).unwrap().status.success(),
            "{name} writes {file}: name it in .gitignore"
        );
    }
}

#[test]
fn programs_say_where_their_picture_is() {
    for (name, arguments) in [
        ("heat2d", &["--size", "40x30", "--steps", "5"][..]),
        ("halo3d", &["--size", "6x6x6", "--steps", "2"]),
        ("cg", &["--grid", "5"]),
        ("montecarlo", &["--particles", "100"]),
        ("nbody", &["--bodies", "10", "--steps", "1"]),
    ] {
        let (out, folder) = succeeds(2, name, arguments);
        let line = out.lines().find(|line| line.starts_with("picture") || line.starts_with("plot")).unwrap();
        let path = std::path::Path::new(line.split_once(' ').unwrap().1.trim());
        assert!(path.is_absolute() && path.is_file(), "{line}");
        assert_eq!(path.parent().unwrap().canonicalize().unwrap(), folder.path().canonicalize().unwrap());
    }
}
