//! Finding the program, so that a wrong name is an error before anything is started.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::LaunchError;

/// The file that `program` stands for: itself if it has a `/`, else the first in `PATH`.
///
/// # Errors
/// [`LaunchError::NotFound`], [`LaunchError::NotExecutable`].
pub fn find(program: &OsStr) -> Result<PathBuf, LaunchError> {
    let shown = program.to_string_lossy();
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return check(&path).map(|()| path.clone()).map_err(|fault| fault.tell(&shown, &path));
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut found = None;
    for folder in env::split_paths(&folders) {
        let path = folder.join(program);
        match check(&path) {
            Ok(()) => return Ok(path),
            // One that cannot be executed is worth telling if no other turns up.
            Err(Fault::Denied(why)) => found = found.or(Some((path, why))),
            Err(_) => {}
        }
    }
    if let Some((path, why)) = found {
        return Err(LaunchError::NotExecutable { path, why });
    }
    let mut place = "no folder of PATH has it".to_owned();
    if !program.is_empty() && check(Path::new(program)).is_ok() {
        place += &format!("; for the one in this folder write `./{shown}`");
    }
    Err(LaunchError::NotFound { program: shown.into_owned(), place })
}

/// Why a file will not do.
enum Fault {
    Absent,
    Directory,
    Denied(String),
    Other(std::io::Error),
}

impl Fault {
    fn tell(self, program: &str, path: &Path) -> LaunchError {
        let path = path.to_owned();
        match self {
            Fault::Absent => {
                let here = env::current_dir().unwrap_or_default();
                let place = if path.is_absolute() {
                    "there is no such file".to_owned()
                } else {
                    format!("there is no such file in {}", here.display())
                };
                LaunchError::NotFound { program: program.to_owned(), place }
            }
            Fault::Directory => LaunchError::NotExecutable { path, why: "it is a folder".into() },
            Fault::Denied(why) => LaunchError::NotExecutable { path, why },
            Fault::Other(error) => LaunchError::NotExecutable { path, why: error.to_string() },
        }
    }
}

fn check(path: &Path) -> Result<(), Fault> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let meta = path.metadata().map_err(|error| match error.kind() {
        NotFound | NotADirectory => Fault::Absent,
        _ => Fault::Other(error),
    })?;
    if meta.is_dir() {
        return Err(Fault::Directory);
    }
    let executable = rustix::fs::access(path, rustix::fs::Access::EXEC_OK);
    if executable.is_ok() {
        return Ok(());
    }
    let mode = meta.permissions().mode() & 0o7777;
    Err(Fault::Denied(if mode & 0o111 == 0 {
        format!("it is not executable (mode {mode:o}; `chmod +x` makes it so)")
    } else {
        format!("you may not execute it (mode {mode:o})")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_by_path_and_by_name() {
        assert_eq!(find("/bin/sh".as_ref()).expect("every Linux has it"), Path::new("/bin/sh"));
        assert!(find("sh".as_ref()).expect("every Linux has it").ends_with("sh"));
    }

    #[test]
    fn tells_absent_from_not_executable() {
        let status = |name: &str| find(name.as_ref()).expect_err("not a program").status();
        assert_eq!(status("/nonexistent/program"), 127);
        assert_eq!(status("no-such-program-anywhere"), 127);
        assert_eq!(status(""), 127);
        assert_eq!(status("/"), 126);
        assert_eq!(status("/proc/version"), 126);
    }
}
