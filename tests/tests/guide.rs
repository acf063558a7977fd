//! What README and guide say: the settings they name are there, the programs they show run.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bellwether_runtime::KNOWN_SETTINGS;
use bellwether_tests::process::{command, run};

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
fn the_readme_lists_every_setting() {
    let named = names(&fs::read_to_string(root().join("README.md")).expect("it is there"));
    for known in KNOWN_SETTINGS.iter().filter(|known| known.public) {
        assert!(named.contains(known.name), "{} is missing in README.md", known.name);
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
        ("docs/src/from-openshmem.md", "openshmem.c"),
    ];
    for (page, file) in shown {
        let language = if file.ends_with(".c") { "c" } else { "rust" };
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
