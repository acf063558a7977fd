//! What this command prints to its standard output.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Writes `text` to standard output. A reader that has closed the pipe has read what it wanted.
///
/// # Errors
/// Those of the system, but for a closed pipe.
pub fn print(text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}
