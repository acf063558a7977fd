//! System calls on sockets that do not wait.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Silence after which the kernel probes the other end, once a second, `PROBES` times. The kernel of a process that is
/// stopped answers, but data that the process leaves unread also ends the connection after that time. Chosen as for the connections of
/// leaders: 10 s until a dead host is noticed.
const SILENCE: Duration = Duration::from_secs(5);
const PROBES: u32 = 5;
/// Connections that wait to be accepted, at most. Chosen: the usual limit of the system, /proc/sys/net/core/somaxconn.
const BACKLOG: i32 = 4096;

/// Listens on a free port of `only`, or of all interfaces.
pub fn listen(only: Option<IpAddr>) -> Result<(TcpListener, u16)> {
    let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)];
    let addresses: Vec<SocketAddr> = match only {
        Some(one) => vec![SocketAddr::new(one, 0)],
        None => all.map(|address| SocketAddr::new(address, 0)).into(),
    };
    let listener = TcpListener::bind(&*addresses)?;
    // Peers may call while this process is stopped: the kernel takes their connections.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Begins a connection: the socket becomes writable when it is made or has failed.
pub fn dial(target: SocketAddr) -> Result<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &target) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// Why a connection that was begun has failed, if it has.
pub fn dialed(stream: &TcpStream) -> Result<()> {
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Makes a connection fit for frames.
pub fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    // The kernel does not probe while data is unacknowledged: such data is given up after the same time.
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32 + 1000 * PROBES)?;
    Ok(())
}

/// How reading or writing ended.
pub enum Moved {
    /// So many bytes were moved.
    Bytes(usize),
    /// The socket is empty, or full.
    None,
    /// The connection is over.
    Over,
}

fn moved(outcome: rustix::io::Result<usize>) -> Moved {
    match outcome {
        Ok(0) => Moved::Over,
        Ok(count) => Moved::Bytes(count),
        Err(error) if matches!(Error::from(error).kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Moved::None
        }
        Err(_) => Moved::Over,
    }
}

/// Reads the bytes that are there.
pub fn read(stream: &TcpStream, into: &mut [u8]) -> Moved {
    moved(rustix::net::recv(stream, into, rustix::net::RecvFlags::DONTWAIT).map(|(_, count)| count))
}

/// Writes what there is room for.
pub fn write(stream: &TcpStream, blocks: &[IoSlice<'_>]) -> Moved {
    match blocks {
        // No signal if the other end is gone.
        [one] => {
            moved(rustix::net::send(stream, one, rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT))
        }
        _ => moved(rustix::net::sendmsg(
            stream,
            blocks,
            &mut rustix::net::SendAncillaryBuffer::default(),
            rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
        )),
    }
}

/// How many sent bytes the kernel at the other end has not acknowledged.
pub fn unsent(stream: &TcpStream) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `stream` is an open socket, and TIOCOUTQ writes one `int` to `bytes` (tcp(7), SIOCOUTQ).
    let outcome = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if outcome == 0 { bytes as usize } else { 0 }
}

/// Leaves signals to the program's threads: a handler that ran here could need the lock that this thread holds.
pub fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills the set in before it is read; no old mask is asked for.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// A descriptor that wakes a thread that waits on it.
pub fn bell() -> Result<OwnedFd> {
    use rustix::event::EventfdFlags;
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes a bell readable.
pub fn ring(bell: &OwnedFd) {
    // Full or not, it is readable afterwards.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes a bell unreadable.
pub fn hush(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}

/// Several descriptors, waited for together.
#[derive(Clone)]
pub struct Set(Arc<OwnedFd>);

impl Set {
    pub fn new() -> Result<Set> {
        Ok(Set(Arc::new(rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?)))
    }

    /// Adds a descriptor under `number`.
    pub fn add(&self, fd: impl AsFd, number: u64, interest: Interest) -> Result<()> {
        Ok(rustix::event::epoll::add(&*self.0, fd, rustix::event::epoll::EventData::new_u64(number), interest.flags())?)
    }

    /// Waits for something else of a descriptor.
    pub fn change(&self, fd: impl AsFd, number: u64, interest: Interest) {
        // Fails only for a descriptor that is not in the set; no caller passes one.
        let _ = rustix::event::epoll::modify(
            &*self.0,
            fd,
            rustix::event::epoll::EventData::new_u64(number),
            interest.flags(),
        );
    }

    /// Takes a descriptor out.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = rustix::event::epoll::delete(&*self.0, fd);
    }

    /// The numbers of descriptors that are ready, after at most `limit`; `None`: however long it takes.
    pub fn wait(&self, limit: Option<Duration>) -> smallvec::SmallVec<[u64; 16]> {
        let mut events = [rustix::event::epoll::Event {
            flags: rustix::event::epoll::EventFlags::empty(),
            data: rustix::event::epoll::EventData::new_u64(0),
        }; 16];
        let limit = limit.map(|limit| rustix::event::Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        // A signal ends the wait early, as nothing to do would.
        let count = rustix::event::epoll::wait(&*self.0, &mut events[..], limit.as_ref()).unwrap_or(0);
        events[..count].iter().map(|event| { event.data }.u64()).collect()
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The readiness of a descriptor that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    Nothing,
    Input,
    Output,
    Both,
}

impl Interest {
    fn flags(self) -> rustix::event::epoll::EventFlags {
        use rustix::event::epoll::EventFlags as Flags;
        match self {
            Interest::Nothing => Flags::empty(),
            Interest::Input => Flags::IN,
            Interest::Output => Flags::OUT,
            Interest::Both => Flags::IN | Flags::OUT,
        }
    }
}
