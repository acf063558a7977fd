//! What this command prints to its standard output.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;

use anyhow::Context;

/// Writes `text` to standard output. A reader that has closed the pipe has read what it wanted.
///
/// # Errors
/// Those of the system, but for a closed pipe.
pub fn print(text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    // The standard library's own writer takes a descriptor that cannot be written for a reader that wants nothing.
    let out = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
    match out.and_then(|mut out| out.write_all(text.as_ref())) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}
