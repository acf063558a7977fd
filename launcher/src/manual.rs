//! `bellwether completions` and `bellwether man`: what shells and `man` want to know about this command.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap_complete::Shell;
use clap_complete::aot::generate;
use clap_mangen::Man;

use crate::print::print;

/// The name that both are made for.
const NAME: &str = "bellwether";

/// Print the completions of this command for a shell.
#[derive(Args)]
#[command(after_help = "Examples:
  bellwether completions bash > ~/.local/share/bash-completion/completions/bellwether
  bellwether completions zsh > ~/.zfunc/_bellwether
  bellwether completions fish > ~/.config/fish/completions/bellwether.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Prints them.
    pub fn run(self, mut command: clap::Command) -> anyhow::Result<ExitCode> {
        let mut text = Vec::new();
        generate(self.shell, &mut command, NAME, &mut text);
        print(text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Print the manual page of this command, or write the pages of all its subcommands.
#[derive(Args)]
#[command(after_help = "Examples:
  bellwether man | man -l -
  bellwether man ~/.local/share/man/man1")]
pub struct Manual {
    /// Write bellwether.1, bellwether-run.1 and so on into this folder, which is made if absent
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Manual {
    /// Prints or writes.
    pub fn run(self, command: clap::Command) -> anyhow::Result<ExitCode> {
        // `bellwether help` has no page: what it prints is what the pages say.
        let mut command = command.disable_help_subcommand(true);
        let Some(folder) = self.folder else {
            print(page(command)?)?;
            return Ok(ExitCode::SUCCESS);
        };
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Gives every subcommand its whole name.
        command.build();
        let subcommands: Vec<_> = command.get_subcommands().cloned().collect();
        for one in subcommands.into_iter().chain([command]) {
            let name = one.get_display_name().unwrap_or(NAME).to_owned();
            let path = folder.join(format!("{name}.1"));
            fs::write(&path, page(one)?).with_context(|| format!("cannot write {}", path.display()))?;
            print(format!("{}\n", path.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The manual page of one command, for troff.
fn page(command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command).render(&mut text)?;
    Ok(keep_lines(&String::from_utf8(text).context("a page that is no text")?).into_bytes())
}

/// Keeps indented lines of the last section, such as examples and tables, as they are: troff would fill them.
fn keep_lines(page: &str) -> String {
    let Some((before, notes)) = page.split_once(".SH EXTRA\n") else { return page.to_owned() };
    let mut text = format!("{before}.SH NOTES\n");
    let mut kept = false;
    for line in notes.lines() {
        if line.starts_with("  ") != kept {
            kept = !kept;
            text.push_str(if kept { ".nf\n" } else { ".fi\n" });
        }
        text.push_str(line);
        text.push('\n');
    }
    if kept {
        text.push_str(".fi\n");
    }
    text
}
