//! `--example NAME`: finding the example in the workspace around the current folder and building it.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

/// Examples are built like this command was, so that `cargo run --release` means both.
pub const OWN_PROFILE: &str = if cfg!(debug_assertions) { "dev" } else { "release" };

/// The example to build.
pub struct Example<'a> {
    /// The example's name.
    pub name: &'a str,
    /// Features to build with.
    pub features: &'a [String],
    /// Cargo's profile.
    pub profile: &'a str,
}

impl Example<'_> {
    /// Builds it and gives the path of the executable. Cargo tells its progress on standard error.
    pub fn build(&self) -> anyhow::Result<PathBuf> {
        let metadata = metadata()?;
        let packages = self.packages(&metadata)?;
        let package = match packages.as_slice() {
            [only] => only,
            several => bail!(
                "packages {} each have an example `{}`: run this in the folder of the one you mean",
                several.join(", "),
                self.name
            ),
        };
        let mut build = cargo();
        build.args(["build", "-p", package, "--example", self.name, "--profile", self.profile]);
        build.arg("--message-format=json-render-diagnostics");
        for features in self.features {
            build.args(["--features", features]);
        }
        let output = build
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo to build the example")?;
        if !output.status.success() {
            bail!("cargo could not build the example `{}` ({})", self.name, output.status);
        }
        self.executable(&output.stdout)
            .with_context(|| format!("cargo built no program for the example `{}`", self.name))
    }

    /// The packages that have an example of this name.
    fn packages(&self, metadata: &Value) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut all = Vec::new();
        for package in list(&metadata["packages"]) {
            for target in list(&package["targets"]).filter(|target| has_kind(target, "example")) {
                let name = target["name"].as_str().unwrap_or_default();
                if name == self.name {
                    found.push(package["name"].as_str().unwrap_or_default().to_owned());
                }
                all.push(name);
            }
        }
        if found.is_empty() {
            all.sort_unstable();
            all.dedup();
            let root = metadata["workspace_root"].as_str().unwrap_or("this folder");
            match all.as_slice() {
                [] => bail!("no example `{}`: the workspace {root} has no examples", self.name),
                _ => bail!("no example `{}` in the workspace {root}; there are: {}", self.name, all.join(", ")),
            }
        }
        Ok(found)
    }

    /// The program among what cargo says it has built.
    fn executable(&self, messages: &[u8]) -> Option<PathBuf> {
        messages
            .split(|&b| b == b'\n')
            .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
            .filter(|message| message["reason"] == "compiler-artifact")
            .filter(|message| message["target"]["name"] == self.name)
            .filter(|message| has_kind(&message["target"], "example"))
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
    }
}

/// Cargo's metadata of the workspace around the current folder.
fn metadata() -> anyhow::Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .stdin(Stdio::null())
        .output()
        .context("--example needs cargo, which cannot be run")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let words = words.trim().trim_start_matches("error: ");
        bail!("--example needs a cargo workspace around the current folder: {words}");
    }
    serde_json::from_slice(&output.stdout).context("cannot read what `cargo metadata` says")
}

/// The cargo that runs us, else the one in PATH.
fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn has_kind(target: &Value, kind: &str) -> bool {
    list(&target["kind"]).any(|has| has == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn example(name: &str) -> Example<'_> {
        Example { name, features: &[], profile: "dev" }
    }

    #[test]
    fn an_unknown_example_is_told_with_those_there_are() {
        let metadata = json!({"workspace_root": "/w", "packages": [
            {"name": "demo", "targets": [
                {"name": "heat", "kind": ["example"]},
                {"name": "demo", "kind": ["lib"]},
                {"name": "cg", "kind": ["example"]},
            ]},
        ]});
        assert_eq!(example("heat").packages(&metadata).expect("it is there"), ["demo"]);
        let error = example("demo").packages(&metadata).expect_err("a library is no example");
        assert_eq!(error.to_string(), "no example `demo` in the workspace /w; there are: cg, heat");
    }

    #[test]
    fn the_executable_is_picked_from_cargos_messages() {
        let messages = b"\
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"cg\",\"kind\":[\"lib\"]},\"executable\":null}
not json
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"cg\",\"kind\":[\"example\"]},\"executable\":\"/t/cg\"}
";
        assert_eq!(example("cg").executable(messages), Some(PathBuf::from("/t/cg")));
        assert_eq!(example("heat").executable(messages), None);
    }
}
