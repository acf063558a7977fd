//! The socket of a rank that sleeps in poll(2): peers of the host make it readable.
//!
//! A datagram socket with a random abstract name (unix(7)). A peer needs neither a descriptor of the rank nor a connection: one sendto(2)
//! wakes. A full queue refuses further datagrams, and the socket is readable then anyway.
//!
//! The name is no secret: /proc/net/unix shows it to every user of the network namespace, and each of them may ring. A ring carries no data. It
//! wakes the rank, which finds nothing to do and arms again.

use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The socket with which all wakers of this process send, never dropped; null: not made. Made before the first rank of the process
/// arrives, so that a ring needs no new descriptor. No `OnceLock`: the thread sanitizer does not see into the standard library's.
static SENDER: AtomicPtr<UnixDatagram> = AtomicPtr::new(ptr::null_mut());

/// Datagrams that one drain takes at most. Chosen: more than a queue holds (net.unix.max_dgram_qlen, 10 to 512), so that only a sender
/// that never stops is not drained.
const DRAIN: usize = 1024;

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

    /// The name that [`ring()`] takes; not 0.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Takes all rings so far. `false`: rings came all the time, and the socket may still be readable.
    pub fn drain(&self) -> bool {
        (0..DRAIN).any(|_| self.socket.recv(&mut [0]).is_err())
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
    #[cfg(test)]
    super::note_call();
    let would_block = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    match sender.send_to_addr(&[1], &address) {
        Ok(_) => true,
        // Either the queue of the target is full, and there is something to read, or datagrams that others have not read yet use up the
        // buffer of the sender. A new socket has an empty buffer.
        Err(error) if would_block(&error) => {
            let Ok(fresh) = new_sender() else { return false };
            fresh.send_to_addr(&[1], &address).map_or_else(|error| would_block(&error), |_| true)
        }
        Err(_) => false,
    }
}

/// Whether this process can [`ring()`].
pub fn can_ring() -> bool {
    sender().is_some()
}

/// An identifier of the network namespace: processes reach each other's sockets within one namespace. `None` without /proc.
pub fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/net").ok().map(|file| file.ino())
}

fn sender() -> Option<&'static UnixDatagram> {
    // Pairs with the Release below.
    let mut made = SENDER.load(Ordering::Acquire);
    if made.is_null() {
        let fresh = Box::into_raw(Box::new(new_sender().ok()?));
        made = match SENDER.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(first) => {
                // SAFETY: from a box, and nobody else has it.
                drop(unsafe { Box::from_raw(fresh) });
                first
            }
        };
    }
    // SAFETY: from a box that is never given back.
    Some(unsafe { &*made })
}

fn new_sender() -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
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
        assert!(socket.drain());
        assert!(!is_readable());
        let name = socket.name();
        drop(socket);
        assert!(!ring(name));
    }

    #[test]
    fn rings_that_nobody_has_read_do_not_keep_a_ring_from_others() {
        // More than the buffer of one sending socket holds.
        let sockets: Vec<WakeSocket> = (0..600).map(|_| WakeSocket::new().expect("a socket")).collect();
        for (number, socket) in sockets.iter().enumerate() {
            assert!(ring(socket.name()));
            assert!(until_readable(&[socket.descriptor()], Duration::ZERO), "ring {number} did not arrive");
        }
    }
}
