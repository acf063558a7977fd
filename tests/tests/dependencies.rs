//! What a program that depends on the project builds.

use std::collections::BTreeSet;
use std::process::Command;

/// A clean build of a program that does nothing but depend on `bellwether` is meant to take less than a minute on two cores.
const MOST: usize = 60;

#[test]
fn a_users_program_builds_few_crates() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "bellwether", "--edges", "normal,build", "--prefix", "none", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs these tests");
    let tree = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let crates: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    assert!(crates.iter().any(|name| name.starts_with("bellwether-runtime ")), "{tree}");
    assert!(crates.len() <= MOST, "{} crates: {crates:#?}", crates.len());
}
