//! A file to be written at the end of a run, claimed at its beginning.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A result file that was tried before the computation started, so that a wrong path or a read-only folder is an error
/// in the first second and not after an hour.
///
/// An existing file stays as it is until [`Output::write`], so a run that is ended early leaves nothing behind.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    /// Opened, if it was there.
    file: Option<File>,
}

impl Output {
    /// Finds out whether `path` can be written, without changing anything.
    ///
    /// # Errors
    /// The path cannot be written; the error names it.
    pub fn claim(path: &Path) -> Result<Output> {
        let named = || format!("cannot write {}", path.display());
        let file = if path.symlink_metadata().is_ok() {
            Some(OpenOptions::new().write(true).create(true).truncate(false).open(path).with_context(named)?)
        } else {
            try_to_create(path).with_context(named)?;
            None
        };
        Ok(Output { path: path.to_owned(), file })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The full path, to be told to the user.
    pub fn place(&self) -> String {
        std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone()).display().to_string()
    }

    /// Replaces the file's content.
    ///
    /// # Errors
    /// The disk is full or gone; the error names the file.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        let write = || {
            let mut file = match self.file {
                Some(file) => file,
                None => File::create(&self.path)?,
            };
            // A pipe or /dev/null has no length to set.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(bytes)
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Makes the file and removes it at once: the one way to know that works on every file system.
fn try_to_create(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?;
    fs::remove_file(path)
}
