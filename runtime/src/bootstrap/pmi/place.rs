//! The place of a task among those that its launcher started. A child of a rank inherits the variables that name the rank's place,
//! and most servers admit any process that knows them.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::wire::inherited_socket;
use super::{Kind, wrong};
use crate::error::{Error, Result};
use crate::hash;

/// The name of the place that `kind` gives to this task, as `get` reads the environment; `None` if something is missing.
fn identity(kind: Kind, get: impl Fn(&str) -> Option<String>) -> Option<String> {
    match (kind, get("PMI_FD")) {
        (Kind::Pmix, _) => {
            // Mpirun's names are numbers, and may come again; its server's address is there once.
            let servers = ["PMIX_SERVER_URI2", "PMIX_SERVER_URI21", "PMIX_SERVER_URI3", "PMIX_SERVER_URI41"];
            let servers: Vec<String> = servers.iter().filter_map(|name| get(name)).collect();
            Some(format!("{} {} {}", get("PMIX_NAMESPACE")?, get("PMIX_RANK")?, servers.join(" ")))
        }
        (_, Some(fd)) => Some(format!("socket {}", inherited_socket(&fd)?)),
        _ => Some(format!("{} {}", get("PMI_PORT")?, get("PMI_ID")?)),
    }
}

/// Takes the place that `kind` gives to this task, until the returned value is dropped or the process ends.
///
/// # Errors
/// [`Error::Start`] if another process has it.
pub(super) fn take(kind: Kind) -> Result<Option<UnixListener>> {
    match identity(kind, |name| std::env::var(name).ok()) {
        Some(identity) => take_named(kind, &identity),
        // A missing variable is reported by the code that needs it.
        None => Ok(None),
    }
}

fn take_named(kind: Kind, identity: &str) -> Result<Option<UnixListener>> {
    // A name of the kernel, not of a file: it goes with the process. Two digests, because it has room for 107 bytes.
    let (user, digest) = (rustix::process::getuid().as_raw(), hash::of(identity.as_bytes()));
    let name = format!("bellwether-{}-{user}-{digest:016x}{:016x}", kind.name(), hash::mix(digest, 1));
    match SocketAddr::from_abstract_name(name).and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(taken(kind)),
        Err(error) => {
            // No sockets here: what this prevents is rare.
            tracing::debug!(%error, "the place of this task cannot be held");
            Ok(None)
        }
    }
}

fn taken(kind: Kind) -> Error {
    wrong(
        kind,
        "another process has joined the launcher's ranks in the place of this one, and still runs: this is a child of a rank, or two tasks \
         have one identity. Set BELLWETHER_RANKS=1 for a child that is to run alone",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_had_by_one_at_a_time() {
        let name = format!("of the test {}", std::process::id());
        let held = take_named(Kind::Pmix, &name).expect("nobody has it").expect("a socket");
        let error = take_named(Kind::Pmix, &name).expect_err("it is held").to_string();
        assert!(error.contains("child of a rank"), "{error}");
        take_named(Kind::Pmi1, &name).expect("another launcher's");
        take_named(Kind::Pmix, &format!("{name} ")).expect("another place");
        drop(held);
        take_named(Kind::Pmix, &name).expect("it is free again");
    }

    #[test]
    fn the_place_is_what_the_launcher_names() {
        let of = |kind, list: &[(&str, &str)]| {
            identity(kind, |name| list.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
        };
        let (space, rank, server) =
            (("PMIX_NAMESPACE", "7"), ("PMIX_RANK", "1"), ("PMIX_SERVER_URI2", "tcp4://here:9"));
        let own = of(Kind::Pmix, &[space, rank, server]).expect("a place");
        for other in [[space, ("PMIX_RANK", "2"), server], [("PMIX_NAMESPACE", "8"), rank, server]] {
            assert_ne!(of(Kind::Pmix, &other).expect("a place"), own);
        }
        assert_ne!(of(Kind::Pmix, &[space, rank, (server.0, "tcp4://here:8")]).expect("a place"), own);
        assert_eq!(of(Kind::Pmix, &[space]), None);
        assert_eq!(of(Kind::Pmi1, &[("PMI_PORT", "here:7"), ("PMI_ID", "1")]).as_deref(), Some("here:7 1"));
        assert_eq!(of(Kind::Pmi1, &[("PMI_FD", "none"), ("PMI_PORT", "here:7"), ("PMI_ID", "1")]), None);
    }
}
