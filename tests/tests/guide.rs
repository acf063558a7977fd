//! What README and guide say: the settings they name are there, the programs they show run.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bellwether_runtime::KNOWN_SETTINGS;
use bellwether_tests::process::{command, run};
use bellwether_tests::settings_page::{self, RENEW};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of settings in a text. One that ends in `*` is of many.
fn names(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c == '_' || c == '*' || c.is_ascii_uppercase() || c.is_ascii_digit();
    let words =
        text.split(|c| !is_name(c)).filter(|word| word.starts_with("BELLWETHER_") && !word.ends_with(['*', '_']));
    words.map(str::to_owned).collect()
}

#[test]
fn settings_that_are_written_about_are_there() {
    let mut pages: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md"].map(|page| root().join(page)).into();
    let guide = fs::read_dir(root().join("docs/src")).expect("the guide is there");
    pages.extend(
        guide.map(|page| page.expect("a page").path()).filter(|page| page.extension().is_some_and(|end| end == "md")),
    );
    assert!(pages.len() > 10, "{pages:?}");
    for page in pages {
        for name in names(&fs::read_to_string(&page).expect("a page can be read")) {
            let known = KNOWN_SETTINGS.iter().any(|known| known.name == name);
            assert!(known, "{} writes of {name}, which is no setting", page.display());
        }
    }
}

#[test]
fn the_page_of_settings_is_that_of_the_code() {
    let path = root().join("docs/src/settings.md");
    let there = fs::read_to_string(&path).unwrap_or_default();
    let page = settings_page::page();
    let differs = there.lines().zip(page.lines()).find(|(there, made)| there != made);
    assert!(there == page, "docs/src/settings.md is not what the code says, at {differs:?}: renew it by\n  {RENEW}");
    let named = names(&page);
    for known in KNOWN_SETTINGS.iter().filter(|known| known.public) {
        assert!(named.contains(known.name), "{} is missing on the page", known.name);
    }
}

/// A program of the guide, by the name of its file in docs/programs.
fn program(file: &str) -> String {
    fs::read_to_string(root().join("docs/programs").join(file)).expect("it is there")
}

#[test]
fn pages_show_the_programs_that_are_run() {
    let shown = [
        ("README.md", "readme.rs"),
        ("docs/src/first-job.md", "first.rs"),
        ("docs/src/first-job.md", "array.rs"),
        ("docs/src/irregular.md", "dice.rs"),
        ("docs/src/from-mpi.md", "mpi.c"),
        ("docs/src/from-mpi.md", "from_mpi.rs"),
        ("docs/src/from-openshmem.md", "openshmem.c"),
        ("docs/src/from-lapi.md", "lapi.c"),
        ("docs/src/from-lapi.md", "from_lapi.rs"),
        ("docs/src/from-gaspi.md", "gaspi.c"),
        ("docs/src/from-gaspi.md", "from_gaspi.rs"),
        ("docs/src/from-cheetah.md", "cheetah.c"),
        ("docs/src/from-cheetah.md", "cheetah.cpp"),
    ];
    for (page, file) in shown {
        let language = match file {
            // The documentation tests are built without MPI.
            "from_mpi.rs" => "rust,ignore",
            _ if file.ends_with(".c") => "c",
            _ if file.ends_with(".cpp") => "cpp",
            _ => "rust",
        };
        let block = format!("```{language}\n{}```", program(file));
        let text = fs::read_to_string(root().join(page)).expect("a page can be read");
        assert!(text.contains(&block), "{page} does not show docs/programs/{file} as it is");
    }
    let there = fs::read_dir(root().join("docs/programs")).expect("a folder").count();
    assert_eq!(there, shown.len(), "a program in docs/programs that no page shows");
}

/// What `program` prints on `ranks` ranks that it starts itself, its lines in order.
fn printed(program: &str, ranks: usize) -> Vec<String> {
    let outcome = run(command(program).env("BELLWETHER_RANKS", ranks.to_string()), Duration::from_secs(60));
    let mut lines: Vec<String> = outcome.expect_success().stdout.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn the_programs_run_on_any_number_of_ranks() {
    let sum: f64 = (0..1_000_000).map(|i| 1.0 / (1.0 + f64::from(i))).sum();
    for ranks in [1, 2, 3, 7] {
        let before = |rank: usize| (rank + ranks - 1) % ranks;
        let heard = |rank| format!("rank {rank} of {ranks} heard from rank {}", before(rank));
        assert_eq!(printed(env!("CARGO_BIN_EXE_guide_first"), ranks), (0..ranks).map(heard).collect::<Vec<_>>());
        let array = printed(env!("CARGO_BIN_EXE_guide_array"), ranks);
        assert_eq!(array, [format!("sum {sum:.6}, last 1e-6")], "{ranks} ranks");
        let total = format!("sum {}", ranks * (ranks - 1) / 2);
        assert_eq!(printed(env!("CARGO_BIN_EXE_guide_from_lapi"), ranks), std::slice::from_ref(&total));
        assert_eq!(printed(env!("CARGO_BIN_EXE_guide_from_gaspi"), ranks), [total]);
        let readme = (0..ranks).flat_map(|rank| {
            let next = (rank + 1) % ranks;
            [format!("rank {rank} heard from {}", before(rank)), format!("rank {next} says {}", 20 + next)]
        });
        let mut readme: Vec<String> = readme.collect();
        readme.sort();
        assert_eq!(printed(env!("CARGO_BIN_EXE_guide_readme"), ranks), readme);
        // Two dice: seven is the most frequent sum, and all that was thrown is counted.
        let dice = printed(env!("CARGO_BIN_EXE_guide_dice"), ranks);
        let count = |line: &String| -> (usize, usize) {
            let mut words = line.split_whitespace().map(|word| word.parse().unwrap_or(0));
            (words.next().expect("a sum"), words.next().expect("a count"))
        };
        let counts: Vec<(usize, usize)> = dice.iter().map(count).collect();
        assert_eq!(counts.iter().map(|(sum, _)| *sum).collect::<BTreeSet<_>>(), (2..=12).collect());
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), 100_000 * ranks);
        assert_eq!(counts.iter().max_by_key(|(_, count)| *count).map(|(sum, _)| *sum), Some(7), "{dice:?}");
    }
}

/// The `Cargo.toml` of the page on MPI names the version of rsmpi whose communicators `World::from_mpi` takes.
#[test]
fn the_page_on_mpi_names_our_version_of_rsmpi() {
    let line = |file: &str| {
        let text = fs::read_to_string(root().join(file)).expect("it is there");
        text.lines().find(|line| line.starts_with("mpi = {")).expect("it names rsmpi").to_owned()
    };
    assert_eq!(line("docs/src/from-mpi.md"), line("Cargo.toml"));
}

/// Lines of the documentation of `bellwether`'s items, also of those that the runtime crate brings: file, number, text.
fn shown_documentation() -> Vec<(PathBuf, usize, String)> {
    // Users see neither of these through `bellwether`.
    let hidden = ["bootstrap", "transport/verbs", "transport/shm", "memory", "transport/completion.rs"];
    let hidden = hidden.map(|name| format!("runtime/src/{name}"));
    let source = root();
    let mut folders = ["runtime/src", "pgas/src"].map(|folder| source.join(folder)).to_vec();
    let mut lines = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let name = entry.strip_prefix(&source).expect("it is inside").to_str().expect("a plain name");
            if hidden.iter().any(|hidden| hidden == name) {
                continue;
            }
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            let text = fs::read_to_string(&entry).expect("a source can be read");
            for (number, line) in text.lines().enumerate() {
                let line = line.trim_start();
                let shown = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
                lines.extend(
                    shown
                        .filter(|shown| !shown.starts_with("# "))
                        .map(|shown| (entry.clone(), number + 1, shown.into())),
                );
            }
        }
    }
    lines
}

/// Users depend on `bellwether`, and on no other crate of ours: examples that they see must compile for them.
#[test]
fn examples_of_the_documentation_use_what_users_depend_on() {
    let exports = fs::read_to_string(root().join("pgas/src/lib.rs")).expect("it is there");
    let exports: String =
        exports.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let is_exported = |name: &str| exports.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    let lines = shown_documentation();
    assert!(lines.len() > 1000, "{} lines", lines.len());
    let mut named = 0;
    for (file, number, line) in lines {
        assert!(!line.contains("bellwether_runtime::"), "{}:{number}: {line}", file.display());
        for after in line.split("bellwether::").skip(1) {
            let group = after
                .strip_prefix('{')
                .and_then(|after| after.split_once('}'))
                .map_or_else(|| vec![after], |(group, _)| group.split(',').map(str::trim).collect());
            for path in group {
                let name: String = path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                assert!(is_exported(&name), "{}:{number}: bellwether has no {name}: {line}", file.display());
                named += 1;
            }
        }
    }
    assert!(named > 8, "{named} names");
}

/// The commands of the pages that begin with `bellwether` or `cargo run` are commands that there are.
#[test]
fn commands_that_pages_show_are_there() {
    let manifest = fs::read_to_string(root().join("examples/Cargo.toml")).expect("it is there");
    let launcher = fs::read_to_string(root().join("launcher/src/main.rs")).expect("it is there");
    let commands = launcher.split_once("enum Command {").and_then(|(_, rest)| rest.split_once('}')).expect("a list").0;
    // A variant's name, or the one that it is given.
    let name = |line: &str| match line.trim().split_once("name = \"") {
        Some((_, named)) => named.split('"').next().map(str::to_owned),
        None => line.trim().split_once('(').map(|(name, _)| name.to_lowercase()),
    };
    let commands: Vec<String> = commands.lines().filter_map(name).collect();
    assert!(commands.len() > 4, "{commands:?}");
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    pages.extend(fs::read_dir(root().join("docs/src")).expect("a folder").map(|page| page.expect("a page").path()));
    let mut tried = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(page).expect("a page can be read");
        let starts = ["$ bellwether ", "`bellwether ", "$ cargo run --release -- "];
        for start in starts {
            for after in text.split(start).skip(1) {
                let end = after.find(['\n', '`', '#']).unwrap_or(after.len());
                let words: Vec<&str> = after[..end].split_whitespace().collect();
                let place = format!("{}: {start}{}", page.display(), &after[..end]);
                assert!(commands.iter().any(|command| command == words[0]), "{place}");
                if let Some(at) = words.iter().position(|word| *word == "--example") {
                    assert!(manifest.contains(&format!("name = \"{}\"", words[at + 1])), "{place}");
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 10, "{tried} commands");
}
