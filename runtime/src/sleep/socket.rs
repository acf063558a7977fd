//! The socket of a rank that sleeps in poll(2): peers of the host make it readable.
//!
//! A datagram socket with an abstract name (unix(7)) that nobody can guess. A peer needs neither a descriptor of the rank nor a connection: one
//! sendto(2) wakes. A queue that is full refuses further datagrams, and the socket is readable then anyway.

use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

/// What all wakers of this process send with. Made before the first rank of the process arrives, so that a ring needs no new descriptor.
static SENDER: OnceLock<Option<UnixDatagram>> = OnceLock::new();

/// The socket that a rank sleeps on.
#[derive(Debug)]
pub struct WakeSocket {
    socket: UnixDatagram,
    name: u64,
}

impl WakeSocket {
    /// # Errors
    /// Those of the system.
    pub fn new() -> std::io::Result<WakeSocket> {
        loop {
            // From the system's random numbers. 0 stands for no socket.
            let name = std::hash::RandomState::new().build_hasher().finish().max(1);
            match UnixDatagram::bind_addr(&address(name)?) {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
                Ok(socket) => {
                    socket.set_nonblocking(true)?;
                    return Ok(WakeSocket { socket, name });
                }
            }
        }
    }

    /// What [`ring`] takes; not 0.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Takes what was rung so far.
    pub fn drain(&self) {
        while self.socket.recv(&mut [0]).is_ok() {}
    }

    /// Readable when the socket was rung.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes the socket of that name readable. Returns whether it is; it is not if it is gone, or belongs to another network namespace.
pub fn ring(name: u64) -> bool {
    let Some(sender) = sender() else { return false };
    let Ok(address) = address(name) else { return false };
    match sender.send_to_addr(&[1], &address) {
        Ok(_) => true,
        // The queue is full, so there is something to read.
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Whether this process can [`ring`].
pub fn can_ring() -> bool {
    sender().is_some()
}

/// What tells network namespaces apart: processes reach each other's sockets within one. `None` without /proc.
pub fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/net").ok().map(|file| file.ino())
}

fn sender() -> Option<&'static UnixDatagram> {
    let open = || UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket)).ok();
    SENDER.get_or_init(open).as_ref()
}

fn address(name: u64) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("bellwether-wake-{name:016x}"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sleep::until_readable;

    #[test]
    fn a_socket_is_readable_from_a_ring_until_it_is_drained() {
        let socket = WakeSocket::new().expect("a socket");
        let is_readable = || until_readable(&[socket.descriptor()], Duration::ZERO);
        assert!(!is_readable());
        // More than the queue takes.
        for _ in 0..10_000 {
            assert!(ring(socket.name()));
        }
        assert!(is_readable() && is_readable());
        socket.drain();
        assert!(!is_readable());
        let name = socket.name();
        drop(socket);
        assert!(!ring(name));
    }
}
