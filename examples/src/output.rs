//! A file to be written at the end of a run, claimed at its beginning.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A result file that was opened before the computation started, so that a wrong path or a read-only folder is an error
/// in the first second and not after an hour.
///
/// What the file held before stays in it until [`Output::write`]. If nothing is ever written, a file that did not exist
/// before is removed again.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    remove_on_drop: bool,
}

impl Output {
    /// Opens `path` for writing without changing what is in it.
    ///
    /// # Errors
    /// The path cannot be written; the error names it.
    pub fn claim(path: &Path) -> Result<Output> {
        let existed = path.symlink_metadata().is_ok();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Output { path: path.to_owned(), file, remove_on_drop: !existed })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file's content.
    ///
    /// # Errors
    /// The disk is full or gone; the error names the file.
    pub fn write(mut self, bytes: &[u8]) -> Result<()> {
        let write = |file: &mut File| {
            // A pipe or /dev/null has no length to set.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(bytes)
        };
        write(&mut self.file).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.remove_on_drop = false;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.remove_on_drop {
            // An empty file left behind is a blemish, not an error worth a second message.
            let _ = fs::remove_file(&self.path);
        }
    }
}
