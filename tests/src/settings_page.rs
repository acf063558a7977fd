//! The guide's page of settings, made from the table in the code.

use std::fmt::Write;

use bellwether_runtime::{KNOWN_SETTINGS, KnownSetting, SettingValues};

/// How to make the page anew.
pub const RENEW: &str = "cargo run -q -p bellwether-tests --bin settings_page > docs/src/settings.md";

const HEAD: &str = "\
# Settings

Settings are environment variables. A job needs none of them: every default suits almost every program. They must have the same
values on every rank; `bellwether run`, and a program that starts its own copies, pass them on. `mpirun` on several machines
needs `-x NAME`. A value without a meaning is an error at the start. An unknown name that begins with `BELLWETHER_` is a
warning that names the nearest setting.

`bellwether info` shows each setting with its value and says where the value comes from. In code, `World::builder()` takes a
`Settings` value. Ranks that are threads, and simulated ranks, do not read the environment: `Threads::settings` and
`Simulated::settings` set theirs.

Sizes are bytes, or have a unit: `4096`, `64KiB`, `2GiB`. *Each rank* means that every rank may use that much.
";

/// The page in Markdown.
pub fn page() -> String {
    let mut page = format!("<!-- Made from the code by: {RENEW} -->\n{HEAD}");
    let public = || KNOWN_SETTINGS.iter().filter(|known| known.public);
    page += "\n| variable | meaning | values | default |\n| --- | --- | --- | --- |\n";
    for known in public() {
        let values = match known.values {
            SettingValues::Words(words) => {
                words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            SettingValues::Described(words) => words.replace('|', "\\|"),
        };
        let KnownSetting { name, meaning, default, .. } = known;
        writeln!(page, "| `{name}` | {meaning} | {values} | {default} |").expect("memory takes all");
    }
    page += "\n## What the values do\n";
    for known in public() {
        let SettingValues::Words(words) = known.values else {
            if !known.details.is_empty() {
                write!(page, "\n### {}\n\n{}\n", known.name, known.details).expect("memory takes all");
            }
            continue;
        };
        write!(page, "\n### {}\n\n", known.name).expect("memory takes all");
        for (word, what) in words {
            writeln!(page, "- `{word}`: {what}").expect("memory takes all");
        }
        if !known.details.is_empty() {
            write!(page, "\n{}\n", known.details).expect("memory takes all");
        }
    }
    page
}
