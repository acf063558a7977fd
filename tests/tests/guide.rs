//! What README and guide say of settings, against the settings that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use bellwether_runtime::KNOWN_SETTINGS;

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
