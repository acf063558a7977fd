//! The hosts of a job: lists and machine files, and the command that reaches each.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};
use bellwether_runtime::bootstrap::launch::{Host, serve_host};

/// The hidden command that starts the launcher of one host.
const SIDE: &str = "host-of-job";

/// What reaches another host if the user names nothing else. Without a terminal of its own, ssh must not ask for a password.
pub const AGENT: &str = "ssh -o BatchMode=yes";

/// A host, and how many ranks it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    /// Its CPUs if it is not said.
    pub slots: Option<usize>,
}

/// Serves a launcher as the launcher of this host, if the arguments say so; gives the exit status.
pub fn hidden() -> Option<u8> {
    // It changes its environment, so nothing may have been started before.
    (std::env::args_os().nth(1)? == SIDE).then(|| serve_host() as u8)
}

/// `a,b:4`.
pub fn list(text: &str) -> Result<Vec<Place>, String> {
    text.split(',').map(|host| place(host.trim(), None)).collect()
}

/// A machine file: a host on each line, for one rank, or `host:4`, or `host slots=4`.
pub fn file(path: &Path) -> anyhow::Result<Vec<Place>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    lines(&text).map_err(anyhow::Error::msg).with_context(|| format!("cannot use {}", path.display()))
}

fn lines(text: &str) -> Result<Vec<Place>, String> {
    let mut places: Vec<Place> = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        let mut words = line.split_whitespace();
        let Some(host) = words.next() else { continue };
        let next = match words.next().map(|word| word.strip_prefix("slots=").ok_or(word)) {
            None => place(host, Some(1))?,
            Some(Ok(number)) => place(&format!("{host}:{number}"), None)?,
            Some(Err(word)) => return Err(format!("`{line}`: expected `slots=N` behind the host, not `{word}`")),
        };
        match (places.last_mut(), next.slots) {
            (Some(Place { name, slots: Some(slots) }), Some(more)) if *name == next.name => *slots += more,
            _ => places.push(next),
        }
    }
    if places.is_empty() { Err("it names no host".into()) } else { Ok(places) }
}

fn place(text: &str, slots: Option<usize>) -> Result<Place, String> {
    let (name, slots) = match text.rsplit_once(':') {
        // An address of IPv6 has several.
        Some((name, number)) if !name.contains(':') => {
            let number = number.parse().ok().filter(|number| *number > 0);
            let number =
                number.ok_or_else(|| format!("`{text}`: expected a number of ranks, 1 or more, behind the colon"))?;
            (name, Some(number))
        }
        _ => (text, slots),
    };
    // What begins with a dash would be an option of the agent.
    if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) {
        return Err(format!("`{text}` is no host: expected a name, or `name:N` for at most N ranks"));
    }
    Ok(Place { name: name.into(), slots })
}

/// Whether `host` is a name of the host that calls itself `own`.
fn is_own(host: &str, own: &str) -> bool {
    // A name without a domain is that of every domain.
    let is_same = match (host.split_once('.'), own.split_once('.')) {
        (Some((host, _)), None) => host.eq_ignore_ascii_case(own),
        (None, Some((own, _))) => host.eq_ignore_ascii_case(own),
        _ => host.eq_ignore_ascii_case(own),
    };
    is_same || ["localhost", "127.0.0.1", "::1"].contains(&host)
}

fn own_name() -> anyhow::Result<String> {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read this host's name")?;
    Ok(own.trim().to_owned())
}

/// How many ranks this host takes, if it is the only one.
pub fn only_here(places: &[Place]) -> anyhow::Result<Option<usize>> {
    let own = own_name()?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let is_here = places.iter().all(|place| is_own(&place.name, &own));
    Ok(is_here.then(|| places.iter().map(|place| place.slots.unwrap_or(cpus)).sum()))
}

/// The commands that start the launchers of the hosts: this program, through `agent` on other hosts than this one.
pub fn commands(places: &[Place], agent: &str) -> anyhow::Result<Vec<Host>> {
    let own = own_name()?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let agent: Vec<OsString> = agent.split_whitespace().map(OsString::from).collect();
    if agent.is_empty() {
        bail!("--agent names no command");
    }
    let host = |place: &Place| {
        let command = if is_own(&place.name, &own) {
            vec![program.clone().into_os_string(), SIDE.into()]
        } else {
            let own = [place.name.clone().into(), quoted(&program).into(), SIDE.into()];
            agent.iter().cloned().chain(own).collect()
        };
        Host { name: place.name.clone(), command, slots: place.slots }
    };
    Ok(places.iter().map(host).collect())
}

/// A path as a shell on the other host takes it. One of plain characters stays as it is, for agents that use no shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%".contains(c);
    if text.chars().all(is_plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, slots: Option<usize>) -> Place {
        Place { name: name.into(), slots }
    }

    #[test]
    fn lists_of_hosts() {
        assert_eq!(list("a,b:4"), Ok(vec![of("a", None), of("b", Some(4))]));
        assert_eq!(
            list("user@a.cluster, fe80::1 ,a"),
            Ok(vec![of("user@a.cluster", None), of("fe80::1", None), of("a", None)])
        );
        for wrong in ["", "a,,b", "a:0", "a:-1", "a:x", ":4", "-oProxyCommand=x", "a b"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn machine_files() {
        let here = "node7\nnode7\n\n# two more\n node8 slots=2 # here\nnode7:3\nnode7\n";
        assert_eq!(lines(here), Ok(vec![of("node7", Some(2)), of("node8", Some(2)), of("node7", Some(4))]));
        assert_eq!(lines("\n# none\n"), Err("it names no host".into()));
        for wrong in ["node7 4\n", "node7 slots=0\n", "node7 slots=\n", "node7:\n"] {
            assert!(lines(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_this_host() {
        for own in ["localhost", "127.0.0.1", "::1", "node7", "NODE7.cluster"] {
            assert!(is_own(own, "node7.cluster"), "{own}");
        }
        for other in ["node8", "node7.rack2", "user@node7"] {
            assert!(!is_own(other, "node7.cluster"), "{other}");
        }
        assert!(is_own("node7.rack2", "node7"), "this host has no domain");
    }

    #[test]
    fn a_path_is_quoted_if_a_shell_would_take_it_apart() {
        assert_eq!(quoted(Path::new("/opt/x-1.2/bellwether")), "/opt/x-1.2/bellwether");
        assert_eq!(quoted(Path::new("/my files/b'w")), r"'/my files/b'\''w'");
    }
}
