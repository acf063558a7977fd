//! A folder for what a run leaves behind, gone at its end.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The folder, readable by this user only.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one where temporary files belong.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn new() -> anyhow::Result<Folder> {
        let parent = std::env::temp_dir();
        for number in 0..1000 {
            let path = parent.join(format!("bellwether-bench-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Folder(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("making {}", path.display())),
            }
        }
        anyhow::bail!("too many folders bellwether-bench-* in {}: remove them", parent.display())
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed was removed by someone else.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes sure that files can be written to this folder, which is made if it is not there.
///
/// # Errors
/// If it cannot.
pub fn writable(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))?;
    let probe = path.join(format!(".bellwether-{}", std::process::id()));
    fs::write(&probe, b"").with_context(|| format!("cannot write to the folder {}", path.display()))?;
    fs::remove_file(&probe).with_context(|| format!("cannot remove a file of the folder {}", path.display()))
}
