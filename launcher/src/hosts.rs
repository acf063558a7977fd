//! The hosts of a job: lists and machine files, and the command that reaches each.

use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bellwether_runtime::bootstrap::launch::{Host, serve_host};
use clap::Args;

use crate::shell::quoted;

/// The hidden command that starts the launcher of one host.
const SIDE: &str = "host-of-job";

/// The agent that reaches another host if the user names no other. It has no terminal, so ssh must not ask for a password
/// (`BatchMode`). ssh asks the host every 15 s whether it is alive, and ends after three questions without an answer (`ssh_config(5)`);
/// otherwise it would wait until TCP gives up its retransmissions.
const AGENT: &str = "ssh -o BatchMode=yes -o ServerAliveInterval=15";

/// A host, and how many ranks it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSlots {
    pub name: String,
    /// Its CPUs if it is not said.
    pub slots: Option<usize>,
}

/// The options that name hosts.
#[derive(Args)]
pub struct HostOptions {
    /// The hosts, in the order of their ranks: `a,b:4` has as many ranks on `a` as it has CPUs, and at most 4 on `b`
    #[arg(long, value_name = "LIST", conflicts_with = "machinefile")]
    hosts: Option<String>,

    /// A file with the hosts: one on each line for each rank, as gaspi_run takes it, or `host:4` or `host slots=4` for 4 ranks.
    /// Other words after the host are ignored
    #[arg(short = 'm', long, value_name = "FILE")]
    machinefile: Option<PathBuf>,

    /// The command that runs another one on a host, called as `CMD HOST COMMAND...`; it is split at blanks
    #[arg(long, value_name = "CMD", default_value = AGENT)]
    pub agent: String,
}

impl HostOptions {
    /// The hosts that the user names.
    pub fn hosts(&self) -> anyhow::Result<Option<Vec<HostSlots>>> {
        match (&self.hosts, &self.machinefile) {
            (Some(hosts), _) => Ok(Some(list(hosts).map_err(anyhow::Error::msg).context("cannot use --hosts")?)),
            (None, Some(path)) => file(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Where they are named.
    pub fn named_by(&self) -> String {
        self.machinefile.as_ref().map_or("--hosts".into(), |path| path.display().to_string())
    }
}

/// Serves a launcher as the launcher of this host, if the arguments say so; gives the exit status.
pub fn hidden() -> Option<u8> {
    // It changes its environment, so nothing may have been started before.
    (std::env::args_os().nth(1)? == SIDE).then(|| serve_host() as u8)
}

/// `a,b:4`.
fn list(text: &str) -> Result<Vec<HostSlots>, String> {
    let places: Vec<HostSlots> = text.split(',').map(|host| place(host.trim(), None)).collect::<Result<_, _>>()?;
    // Each of its entries would start as many ranks as it has CPUs.
    let is_double = |place: &&HostSlots| {
        place.slots.is_none() && places.iter().filter(|other| other.name == place.name).count() > 1
    };
    match places.iter().find(is_double) {
        Some(HostSlots { name, .. }) => Err(format!(
            "`{name}` is named more than once: name it once, or write a number behind each, as in `{name}:1`"
        )),
        None => Ok(places),
    }
}

/// A machine file: a host on each line, for one rank, or `host:4`, or `host slots=4`. Other words after the host are ignored.
fn file(path: &Path) -> anyhow::Result<Vec<HostSlots>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    lines(&text).map_err(anyhow::Error::msg).with_context(|| format!("cannot use {}", path.display()))
}

fn lines(text: &str) -> Result<Vec<HostSlots>, String> {
    let mut places: Vec<HostSlots> = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let next = match words[..] {
            [] => continue,
            [host, ref more @ ..] => {
                // Other words are for other launchers; gaspi_run reads the first word only.
                let is_number = |rest: &&str| rest.is_empty() || rest.starts_with('=');
                let mut slots = more.iter().filter_map(|word| word.strip_prefix("slots")).filter(is_number);
                match (slots.next(), slots.next()) {
                    (None, _) => place(host, Some(1))?,
                    (Some(slots), None) => {
                        let HostSlots { name, slots: None } = place(host, None)? else { return Err(twice(line)) };
                        let text = slots.strip_prefix('=').unwrap_or_default();
                        HostSlots { name, slots: Some(number(text, line)?) }
                    }
                    (Some(_), Some(_)) => return Err(twice(line)),
                }
            }
        };
        match (places.last_mut(), next.slots) {
            (Some(HostSlots { name, slots: Some(slots) }), Some(more)) if *name == next.name => {
                *slots = slots.saturating_add(more);
            }
            _ => places.push(next),
        }
    }
    if places.is_empty() { Err("it names no host".into()) } else { Ok(places) }
}

fn twice(line: &str) -> String {
    format!("`{line}`: the number of ranks stands there twice; keep `slots=N` or `:N`")
}

/// The number of ranks of `whole`.
fn number(text: &str, whole: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("`{whole}`: expected a number of ranks, 1 or more, in place of `{text}`"))
}

/// `name`, `name:N`, an address of IPv6, or one in brackets with `:N`; `slots` if there is no N.
fn place(text: &str, slots: Option<usize>) -> Result<HostSlots, String> {
    let wrong = || format!("`{text}` is no host: expected a name, or `name:N` for at most N ranks");
    let (name, slots) = match (text.strip_prefix('['), text.split_once(':')) {
        (Some(rest), _) => {
            let (name, behind) = rest.split_once(']').filter(|(name, _)| is_ipv6(name)).ok_or_else(wrong)?;
            match behind.strip_prefix(':') {
                Some(behind) => (name, Some(number(behind, text)?)),
                None if behind.is_empty() => (name, slots),
                None => return Err(wrong()),
            }
        }
        (None, Some((name, behind))) if !behind.contains(':') => (name, Some(number(behind, text)?)),
        (None, Some(_)) if !is_ipv6(text) => {
            return Err(format!(
                "`{text}` is no host: it has several colons, and is no address of IPv6; expected `name:N`, or `[address]:N`"
            ));
        }
        (None, _) => (text, slots),
    };
    // The agent would take a name that begins with a dash for an option.
    if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) {
        return Err(wrong());
    }
    Ok(HostSlots { name: name.into(), slots })
}

/// Whether this is an address of IPv6, with or without a user before it and an interface behind it.
fn is_ipv6(text: &str) -> bool {
    let text = text.rsplit_once('@').map_or(text, |(_, address)| address);
    text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
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
pub fn only_here(places: &[HostSlots]) -> anyhow::Result<Option<usize>> {
    let own = own_name()?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let is_here = places.iter().all(|place| is_own(&place.name, &own));
    let room = places.iter().map(|place| place.slots.unwrap_or(cpus)).fold(0, usize::saturating_add);
    Ok(is_here.then_some(room))
}

/// The commands that start the launchers of the hosts: this program, through `agent` on other hosts than this one.
pub fn commands(places: &[HostSlots], agent: &str) -> anyhow::Result<Vec<Host>> {
    commands_of(SIDE, places, agent)
}

/// The commands that start this program with the argument `side` on the hosts, through `agent` on other hosts than this one.
pub fn commands_of(side: &str, places: &[HostSlots], agent: &str) -> anyhow::Result<Vec<Host>> {
    let own = own_name()?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let agent: Vec<OsString> = agent.split_whitespace().map(OsString::from).collect();
    if agent.is_empty() {
        bail!("--agent names no command");
    }
    let host = |place: &HostSlots| {
        let command: Vec<OsString> = if is_own(&place.name, &own) {
            vec![program.clone().into_os_string(), side.into()]
        } else {
            let own = [place.name.clone().into(), OsString::from_vec(quoted(program.as_os_str())), side.into()];
            agent.iter().cloned().chain(own).collect()
        };
        Host { name: place.name.clone(), command, slots: place.slots }
    };
    Ok(places.iter().map(host).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, slots: Option<usize>) -> HostSlots {
        HostSlots { name: name.into(), slots }
    }

    #[test]
    fn lists_of_hosts() {
        assert_eq!(list("a,b:4"), Ok(vec![of("a", None), of("b", Some(4))]));
        assert_eq!(
            list("user@a.cluster, fe80::1 ,[::2]:3,[me@fe80::3%eth0],a:2,b,a:1"),
            Ok(vec![
                of("user@a.cluster", None),
                of("fe80::1", None),
                of("::2", Some(3)),
                of("me@fe80::3%eth0", None),
                of("a", Some(2)),
                of("b", None),
                of("a", Some(1)),
            ])
        );
        for wrong in [
            "",
            "a,,b",
            "a:0",
            "a:-1",
            "a:x",
            ":4",
            "-oProxyCommand=x",
            "a b",
            "a:4:2",
            "[a]:2",
            "[::1",
            "[::1]2",
            "[::1]:x",
            "a,a",
            "a,b,a:2",
        ] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn machine_files() {
        let here = "node7\nnode7\n\n# two more\n node8 slots=2 # here\nnode7:3\nnode7\n";
        assert_eq!(lines(here), Ok(vec![of("node7", Some(2)), of("node8", Some(2)), of("node7", Some(4))]));
        assert_eq!(lines("\n# none\n"), Err("it names no host".into()));
        assert_eq!(lines("fe80::1 slots=2\n"), Ok(vec![of("fe80::1", Some(2))]));
        let more = "node7 cores=8 4\nnode8 max_slots=4 rack2 slots=2\nnode9:3 rack2\n";
        assert_eq!(lines(more), Ok(vec![of("node7", Some(1)), of("node8", Some(2)), of("node9", Some(3))]));
        let most = format!("a:{0}\na:{0}\n", usize::MAX);
        assert_eq!(lines(&most), Ok(vec![of("a", Some(usize::MAX))]));
        for wrong in [
            "node7 slots=0",
            "node7 slots=",
            "node7 slots =4",
            "node7 slots=1 slots=2",
            "node7:",
            "node7:2 slots=3",
            "node7:2:3",
        ] {
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
}
