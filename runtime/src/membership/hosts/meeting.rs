//! How leaders connect to the hub: it listens where other hosts may reach it; the others get its addresses and a secret, and connect.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::BitXor;
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};

use super::addresses;
use super::connection::Connection;
use crate::error::{Error, Result};
use crate::sleep;

const DOING: &str = "connecting the hosts";
/// Most addresses that the hub names.
const ADDRESSES: usize = 14;
/// How long a leader tries one of them, and all.
const TRY: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(20);
/// How long a caller may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it has for that even if others wait for its place. A leader says it at once, in its first packet.
const GRACE: Duration = Duration::from_millis(200);
/// Callers, beside one for each host, that are held at a time before they have said who they are. More wait in the
/// listening socket's queue (`listen(2)`).
const STRANGERS: usize = 64;
/// How long the hub sleeps before it looks for callers again, and a leader before it calls a busy hub again.
const PAUSE: Duration = Duration::from_millis(1);
const AGAIN: Duration = Duration::from_millis(50);

/// Where the hub listens, and the two secrets of the job. They are never sent over a connection: what a caller sends, and what the hub
/// answers, is derived from them, and so is the key of the ranks' own connections.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct HubAddress {
    secret: [u8; 16],
    answer: [u8; 16],
    /// IPv4 addresses as IPv6 has them; zeros behind the last.
    addresses: [[u8; 16]; ADDRESSES],
    port: u64,
}

/// What a caller sends first.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Greeting {
    secret: [u8; 16],
    host: u64,
}

const GREETING: usize = size_of::<Greeting>();

/// The hub's listening socket.
#[derive(Debug)]
pub struct HubListener {
    listener: TcpListener,
    address: HubAddress,
}

/// A connection that was accepted, and what it has sent so far.
struct Caller {
    stream: TcpStream,
    said: Vec<u8>,
    since: Instant,
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Os { doing: DOING, call, source }
}

impl HubListener {
    /// Listens on a free port of every interface, and returns where.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn bind() -> Result<(HubListener, HubAddress)> {
        let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let listener =
            TcpListener::bind(all.map(|address| SocketAddr::new(address, 0)).as_slice()).map_err(failed("bind"))?;
        listener.set_nonblocking(true).map_err(failed("fcntl"))?;
        let mut address = HubAddress {
            port: listener.local_addr().map_err(failed("getsockname"))?.port().into(),
            ..Zeroable::zeroed()
        };
        for secret in [&mut address.secret, &mut address.answer] {
            let flags = rustix::rand::GetRandomFlags::empty();
            rustix::rand::getrandom(&mut secret[..], flags).map_err(|errno| Error::os(DOING, "getrandom", errno))?;
        }
        let here = addresses::here().into_iter().map(|address| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        });
        address.addresses.iter_mut().zip(here).for_each(|(place, address)| *place = address);
        Ok((HubListener { listener, address }, address))
    }

    /// Lets the leaders of hosts `1..hosts` in, until all are there or `told` says that all have told how they fared. Whoever
    /// else comes is sent away. Callers that say nothing take a bounded number of descriptors; where there are none left,
    /// the callers of longest silence go first.
    ///
    /// # Errors
    /// Those of `told`; [`Error::Os`] if the listening socket is broken, or if there was no descriptor for a caller until
    /// the end and leaders are missing.
    pub fn admit(self, hosts: usize, mut told: impl FnMut() -> Result<bool>) -> Result<Vec<Connection>> {
        let mut lines: Vec<Connection> = Vec::new();
        let mut callers = VecDeque::new();
        let (password, answer) = (self.address.password(), self.address.answer());
        while lines.len() + 1 < hosts {
            // Read the reports before accepting: a leader that reports success has already been answered.
            let last = told()?;
            let shortage = self.accept(&mut callers, STRANGERS + hosts)?;
            for mut caller in std::mem::take(&mut callers) {
                let greeting = match caller.listen() {
                    Heard::Nothing if caller.since.elapsed() < PATIENCE => {
                        callers.push_back(caller);
                        continue;
                    }
                    Heard::Nothing | Heard::End => continue,
                    Heard::Greeting(greeting) => greeting,
                };
                let is_new = lines.iter().all(|line| line.host as u64 != greeting.host);
                if same(&greeting.secret, &password) && (1..hosts as u64).contains(&greeting.host) && is_new {
                    // So few bytes have room; a caller that is gone tells so itself.
                    let _ = (&caller.stream).write_all(&answer);
                    lines.push(Connection::new(greeting.host as usize, caller.stream)?);
                }
            }
            if last && lines.len() + 1 < hosts {
                return shortage.map_or(Ok(lines), |error| Err(failed("accept")(error)));
            }
            sleep::nap(PAUSE);
        }
        Ok(lines)
    }

    /// Takes in who has called, while fewer than `most` are there or the oldest may go. What keeps it from taking in more
    /// is returned if that is a lack of descriptors or memory, which may pass.
    fn accept(&self, callers: &mut VecDeque<Caller>, most: usize) -> Result<Option<std::io::Error>> {
        let may_go = |oldest: Option<&Caller>| oldest.is_some_and(|oldest| oldest.since.elapsed() >= GRACE);
        // A bound, so that those who have come are heard while others keep coming.
        for _ in 0..most {
            if callers.len() >= most && !may_go(callers.front()) {
                break;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if callers.len() >= most {
                        callers.pop_front();
                    }
                    if stream.set_nonblocking(true).is_ok() {
                        callers.push_back(Caller { stream, said: Vec::new(), since: Instant::now() });
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => break,
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        if !may_go(callers.front()) {
                            return Ok(Some(error));
                        }
                        callers.pop_front();
                    }
                    Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP) => {
                        return Err(failed("accept")(error));
                    }
                    // EINTR, or a connection that broke before it was taken in (accept(2), section Error handling).
                    _ => {}
                },
            }
        }
        Ok(None)
    }
}

/// What a caller has said.
enum Heard {
    /// Not all yet.
    Nothing,
    /// It will say no more.
    End,
    Greeting(Greeting),
}

impl Caller {
    /// What it says, when it has said all.
    fn listen(&mut self) -> Heard {
        let mut bytes = [0; GREETING];
        let left = GREETING - self.said.len();
        match self.stream.read(&mut bytes[..left]) {
            Ok(0) => return Heard::End,
            Ok(len) => self.said.extend_from_slice(&bytes[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Heard::End,
        }
        match self.said.len() == GREETING {
            true => Heard::Greeting(bytemuck::pod_read_unaligned(&self.said)),
            false => Heard::Nothing,
        }
    }
}

/// Whether somebody took the call and hung up without an answer, or gave none in time.
fn is_busy(error: &std::io::Error) -> bool {
    // The last is how a time limit on an answer shows; one on a connection is `TimedOut`.
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::WouldBlock
    )
}

/// Whether two secrets are the same. All bytes are compared, wherever the first difference is: the time tells a caller
/// nothing about it.
fn same<B: Copy + BitXor<Output = u8>>(one: &[B; 16], other: &[B; 16]) -> bool {
    // What the compiler does not know it cannot use to end the loop early.
    let differences = one.iter().zip(other).fold(0, |all, (one, other)| std::hint::black_box(all | (*one ^ *other)));
    differences == 0
}

impl HubAddress {
    /// What all ranks of the job know, and nobody else.
    pub fn job_key(&self) -> [u8; 32] {
        blake3::derive_key("bellwether hub 1: the key of the job", [self.secret, self.answer].as_flattened())
    }

    /// What a caller sends. It says nothing of the secrets.
    fn password(&self) -> [u8; 16] {
        *blake3::derive_key("bellwether hub 1: what a leader sends", &self.secret).first_chunk().expect("longer")
    }

    /// What the hub answers.
    fn answer(&self) -> [u8; 16] {
        *blake3::derive_key("bellwether hub 1: what the hub answers", &self.answer).first_chunk().expect("longer")
    }

    /// Calls the hub, for `host`. A hub that takes the call but does not answer has many callers: it is called again.
    ///
    /// # Errors
    /// [`Error::Start`] with each address that was tried, and what became of it.
    pub fn call(&self, host: usize) -> Result<Connection> {
        let (start, mut tried, mut reached) = (Instant::now(), Vec::new(), None);
        let named = self.addresses.iter().filter(|address| **address != [0; 16]);
        let mut addresses: Vec<SocketAddr> =
            named.map(|ip| SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), self.port as u16)).collect();
        while !addresses.is_empty() {
            addresses.retain(|address| {
                if reached.is_some() {
                    return false;
                }
                let left = LIMIT.saturating_sub(start.elapsed());
                if left.is_zero() {
                    tried.push(format!("{address}: no answer within {LIMIT:?}"));
                    return false;
                }
                match self.greet(address, host, TRY.min(left)) {
                    Ok(stream) => reached = Some(stream),
                    Err(error) if is_busy(&error) && start.elapsed() < LIMIT => return true,
                    Err(error) => tried.push(format!("{address}: {error}")),
                }
                false
            });
            if let Some(stream) = reached {
                return Connection::new(super::HUB, stream);
            }
            if !addresses.is_empty() {
                sleep::nap(AGAIN);
            }
        }
        Err(Error::Start(format!(
            "{DOING}: the host of rank 0 cannot be reached by TCP from here ({}); hosts of one job need a network between \
             them that lets such connections through",
            if tried.is_empty() { "it has no address".into() } else { tried.join("; ") }
        )))
    }

    /// Calls that address, which may be another's here, and hears whether it is the hub.
    fn greet(&self, address: &SocketAddr, host: usize, limit: Duration) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(address, limit)?;
        stream.write_all(bytemuck::bytes_of(&Greeting { secret: self.password(), host: host as u64 }))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answer = [0; 16];
        stream.read_exact(&mut answer)?;
        if !same(&answer, &self.answer()) {
            return Err(std::io::Error::other("somebody else answers"));
        }
        Ok(stream)
    }
}

#[cfg(test)]
mod tests;
