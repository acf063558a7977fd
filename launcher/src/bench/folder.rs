//! A folder for the files of a run, removed at its end.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

const PREFIX: &str = "bellwether-bench-";

/// The folder, readable by this user only.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one where temporary files belong.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn new() -> anyhow::Result<Folder> {
        Folder::below(&std::env::temp_dir())
    }

    fn below(parent: &Path) -> anyhow::Result<Folder> {
        remove_abandoned(parent);
        for number in 0..1000 {
            let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
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

/// Removes the folders of runs that were killed, which could not do so themselves.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // One of another user stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // This fails only if another process has removed the folder.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed() {
        // A folder of this test only: each run removes the remains of other runs from the folder for temporary files.
        let parent = tempfile::tempdir().expect("temporary files can be made");
        // Larger than any process number.
        let path = parent.path().join(format!("{PREFIX}{}-0", u32::MAX));
        fs::create_dir(&path).expect("temporary files can be made");
        fs::write(path.join("report.json"), "[]").expect("temporary files can be made");
        let living = Folder::below(parent.path()).expect("temporary files can be made");
        assert!(!path.exists());
        assert!(living.0.exists());
        drop(Folder::below(parent.path()));
        assert!(living.0.exists());
    }
}
