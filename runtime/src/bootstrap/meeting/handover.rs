//! Passing a descriptor from rank 0 to the other ranks of a machine.
//!
//! It goes over a Unix socket with an abstract name: 128 random bits, gone with the process. Both sides check who is
//! at the other end. Where there is no such socket, or it does not lead to rank 0 (another network namespace), the
//! descriptor is opened through `/proc`, which the kernel allows within the same user.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{Error, Result};
use crate::membership::JobMemory;

/// How long a rank waits for rank 0, which has nothing else to do meanwhile.
const LIMIT: Duration = Duration::from_secs(10);
/// How often rank 0 checks whether all have reported their outcome, while some have not connected yet.
const CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const DOING: &str = "taking the job's memory from rank 0";

/// Where the descriptor can be had.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Offer {
    /// The socket's name; all zero if there is none.
    name: [u8; 16],
    pid: u32,
    fd: u32,
}

/// The socket at which rank 0 hands out the descriptor.
#[derive(Debug)]
pub(super) struct Server(OwnedFd);

impl Server {
    /// Opens a socket for `ranks` ranks, if the system has any, and says where the descriptor can be had.
    pub(super) fn open(job: &JobMemory, ranks: usize) -> (Option<Server>, Offer) {
        let mut offer = Offer { name: [0; 16], pid: std::process::id(), fd: job.fd().as_raw_fd() as u32 };
        let server = (|| {
            let mut name = [0; 16];
            rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())?;
            let socket = socket(SocketFlags::NONBLOCK)?;
            rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(&name)?)?;
            rustix::net::listen(&socket, ranks.min(4096) as i32)?;
            offer.name = name;
            Ok::<_, Errno>(Server(socket))
        })();
        (server.ok().filter(|_| ranks > 1), offer)
    }

    /// Gives `fd` once to each of the processes `pids`, until all have it or `told` says that all have reported how
    /// they fared. Other processes that connect are sent away.
    pub(super) fn serve(
        self,
        fd: BorrowedFd<'_>,
        mut pids: BTreeSet<u32>,
        mut told: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        while !pids.is_empty() && !told()? {
            // A time-out and EINTR both mean: check again.
            let _ = rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&CHECK));
            while let Ok(visitor) = rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC) {
                let Ok(peer) = socket_peercred(&visitor) else { continue };
                let pid = peer.pid.as_raw_nonzero().get() as u32;
                // A rank that cannot take it says so itself.
                if peer.uid == rustix::process::geteuid() && pids.remove(&pid) {
                    let _ = give(&visitor, fd);
                }
            }
        }
        Ok(())
    }
}

impl Offer {
    /// Takes the descriptor.
    ///
    /// # Errors
    /// [`Error::Start`] with what failed on both ways.
    pub(super) fn take(&self) -> Result<OwnedFd> {
        let first = match self.request() {
            Ok(fd) => return Ok(fd),
            Err(error) => error,
        };
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|second| {
            Error::Start(format!(
                "{DOING}: {first}; and {path}: {second}; start all ranks as one user in one container"
            ))
        })
    }

    fn request(&self) -> Result<OwnedFd> {
        if self.name == [0; 16] {
            return Err(Error::os(DOING, "socket", Errno::OPNOTSUPP));
        }
        let socket = socket(SocketFlags::empty()).map_err(|e| Error::os(DOING, "socket", e))?;
        for which in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, which, Some(LIMIT)).map_err(|e| Error::os(DOING, "setsockopt", e))?;
        }
        let address = SocketAddrUnix::new_abstract_name(&self.name).map_err(|e| Error::os(DOING, "bind", e))?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))
            .map_err(|e| late(Error::os(DOING, "connect", e)))?;
        let peer = socket_peercred(&socket).map_err(|e| Error::os(DOING, "getsockopt", e))?;
        if peer.uid != rustix::process::geteuid() || peer.pid.as_raw_nonzero().get() as u32 != self.pid {
            return Err(Error::os(DOING, "connect", Errno::PERM));
        }
        accept(&socket)
    }
}

/// A time limit of a socket shows as EAGAIN.
fn late(error: Error) -> Error {
    match &error {
        Error::Os { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock => {
            Error::TimedOut { doing: DOING.into(), after: LIMIT }
        }
        _ => error,
    }
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

fn give(visitor: &OwnedFd, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for one descriptor");
    // NOSIGNAL: a rank that has died meanwhile is no reason to die too.
    rustix::net::sendmsg(visitor, &[IoSlice::new(b"m")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn accept(socket: &OwnedFd) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(|e| late(Error::os(DOING, "recvmsg", e)))?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    received.ok_or_else(|| Error::os(DOING, "recvmsg", Errno::NOMSG))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::settings::Settings;

    fn same_file(one: impl AsFd, other: impl AsFd) -> bool {
        let (one, other) = (rustix::fs::fstat(one).unwrap(), rustix::fs::fstat(other).unwrap());
        (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
    }

    /// Serves `pids` while `visit` runs in another thread.
    fn while_serving<R: Send>(job: &JobMemory, server: Server, pids: &[u32], visit: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let visitor = scope.spawn(visit);
            let told = || Ok(visitor.is_finished());
            server.serve(job.fd(), pids.iter().copied().collect(), told).unwrap();
            visitor.join().unwrap()
        })
    }

    #[test]
    fn a_rank_takes_the_descriptor_from_the_socket() {
        let job = JobMemory::create(2, &Settings::default()).unwrap();
        let (server, offer) = Server::open(&job, 2);
        let taken = while_serving(&job, server.unwrap(), &[std::process::id()], || offer.request().unwrap());
        assert!(same_file(&taken, job.fd()));
        assert!(rustix::io::fcntl_getfd(&taken).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        // The socket is gone with the last rank; the other way is still there.
        offer.request().unwrap_err();
        assert!(same_file(offer.take().unwrap(), job.fd()));
    }

    #[test]
    fn a_stranger_is_sent_away() {
        let job = JobMemory::create(2, &Settings::default()).unwrap();
        let (server, offer) = Server::open(&job, 2);
        let refused = while_serving(&job, server.unwrap(), &[u32::MAX], || offer.request().map(drop));
        assert!(refused.unwrap_err().to_string().contains("recvmsg"));
    }

    #[test]
    fn a_socket_that_is_not_rank_0s_gives_no_descriptor() {
        let job = JobMemory::create(2, &Settings::default()).unwrap();
        let (server, offer) = Server::open(&job, 2);
        let offer = Offer { pid: 1, ..offer };
        let refused = while_serving(&job, server.unwrap(), &[std::process::id()], || offer.request().map(drop));
        assert!(refused.unwrap_err().to_string().contains("connect"));
    }

    #[test]
    fn no_way_at_all_names_both() {
        let text = Offer { name: [0; 16], pid: u32::MAX, fd: 3 }.take().unwrap_err().to_string();
        assert!(text.contains("socket") && text.contains("/proc/4294967295/fd/3"), "{text}");
    }
}
