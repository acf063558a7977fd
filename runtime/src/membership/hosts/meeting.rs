//! How leaders connect to the hub: it listens where other hosts may reach it; the others get its addresses and a secret, and connect.

use std::collections::VecDeque;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};

use super::connection::{self, Connection};
use super::{HUB, addresses};
use crate::error::{Error, Result};
use crate::membership::interfaces::{self, HostInterface};
use crate::secret::handshake::{Accepting, CHALLENGE, Dialing, HELLO, Hello, NONCE, Position, Step};
use crate::secret::{JobKey, KEY, PROOF, SessionKeys};
use crate::sleep;

const DOING: &str = "connecting the hosts";
/// Most addresses that the hub names.
const ADDRESSES: usize = 14;
/// How long a leader tries one of them, and all.
const TRY: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(20);
/// How long a caller may take to prove who it is, and how long the hub may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it has for that even if others wait for its place. Chosen: a leader needs the time of two round trips. One that was
/// sent away calls again.
const GRACE: Duration = Duration::from_millis(200);
/// Callers, beside one for each host, that are held at a time before they have proved who they are. More wait in the
/// listening socket's queue (`listen(2)`). Chosen: with [`GRACE`], 1280 a second that say nothing are sent away; a quarter of the
/// descriptors that a process has by default.
const STRANGERS: usize = 256;
/// How often a leader calls an address from which nothing comes back. The kernel drops calls to a socket whose queue is full.
const TRIES: usize = 3;
/// How long the hub sleeps before it looks for callers again, and a leader before it calls a busy hub again.
const PAUSE: Duration = Duration::from_millis(1);
const AGAIN: Duration = Duration::from_millis(50);

/// Where the hub listens, and the secret of the job. It is never sent over a connection between hosts: the two ends of each
/// prove to one another that they know a key that is derived from it.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub struct HubAddress {
    secret: [u8; KEY],
    /// IPv4 addresses as IPv6 has them; zeros behind the last.
    addresses: [[u8; 16]; ADDRESSES],
    port: u64,
}

impl fmt::Debug for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HubAddress({:?}, the secret)", self.named())
    }
}

/// The hub's listening socket.
#[derive(Debug)]
pub struct HubListener {
    listener: TcpListener,
    address: HubAddress,
}

/// A connection that was accepted, and how far its handshake is.
struct Caller {
    stream: TcpStream,
    handshake: Accepting,
    since: Instant,
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Os { doing: DOING, call, source }
}

/// Bytes that nobody can guess.
fn random<const LEN: usize>() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    let flags = rustix::rand::GetRandomFlags::empty();
    // So few come whole (getrandom(2)).
    rustix::rand::getrandom(&mut bytes[..], flags).map_err(|errno| Error::os(DOING, "getrandom", errno))?;
    Ok(bytes)
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
        address.secret = random()?;
        let here = addresses::here().into_iter().map(|address| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        });
        address.addresses.iter_mut().zip(here).for_each(|(place, address)| *place = address);
        Ok((HubListener { listener, address }, address))
    }

    /// Lets the leaders of hosts `1..hosts` in, until all are there or `told` says that all have reported how they fared.
    /// Other callers are sent away. Callers that send nothing take a bounded number of descriptors; if none is left, the
    /// callers that have been silent longest are dropped first.
    ///
    /// # Errors
    /// Those of `told`; [`Error::Os`] if the listening socket is broken, or if there was no descriptor for a caller until
    /// the end and leaders are missing.
    pub fn admit(self, hosts: usize, mut told: impl FnMut() -> Result<bool>) -> Result<Vec<Connection>> {
        let mut lines: Vec<Connection> = Vec::new();
        let mut callers = VecDeque::new();
        let key = self.address.leaders_key();
        while lines.len() + 1 < hosts {
            // Read the reports before accepting: a leader that reports success has already been answered.
            let last = told()?;
            let shortage = self.accept(&mut callers, STRANGERS + hosts)?;
            for mut caller in std::mem::take(&mut callers) {
                // Asked again when the proof has come: two may call for one host.
                // A leader that has waited too long for the hub hangs up, and calls again.
                let is_there = |host: usize| lines.iter().any(|line| line.host == host && !line.has_ended());
                let is_missing = |host: usize| (1..hosts).contains(&host) && !is_there(host);
                match caller.listen(&key, is_missing) {
                    Heard::Nothing if caller.since.elapsed() < PATIENCE => callers.push_back(caller),
                    Heard::Proof(host, keys) if is_missing(host) && !connection::has_ended(&caller.stream) => {
                        lines.retain(|line| line.host != host);
                        let mut line = Connection::new(host, caller.stream, keys)?;
                        line.welcome();
                        lines.push(line);
                    }
                    Heard::Nothing | Heard::End | Heard::Proof(..) => {}
                }
            }
            if last && lines.len() + 1 < hosts {
                return shortage.map_or(Ok(lines), |error| Err(failed("accept")(error)));
            }
            sleep::nap(PAUSE);
        }
        Ok(lines)
    }

    /// Accepts callers while there are fewer than `most`, or the oldest may be dropped. If a lack of descriptors or
    /// memory prevents more, returns that error: it may pass.
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
                        callers.push_back(Caller {
                            stream,
                            handshake: Accepting::new(random()?),
                            since: Instant::now(),
                        });
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
    /// It is no leader that is missing, or says no more.
    End,
    /// It has proved that it knows the key, and leads this host.
    Proof(usize, SessionKeys),
}

impl Caller {
    /// Takes what has come from it, and answers.
    fn listen(&mut self, key: &JobKey, is_missing: impl Fn(usize) -> bool) -> Heard {
        let mut bytes = [0; HELLO + PROOF];
        let wanted = self.handshake.wanted();
        let len = match self.stream.read(&mut bytes[..wanted]) {
            Ok(0) => return Heard::End,
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Heard::Nothing;
            }
            Err(_) => return Heard::End,
        };
        let place = |hello: &Hello| {
            let is_for_us = hello.to == HUB_END && hello.from.1 == 0 && is_missing(hello.from.0 as usize);
            is_for_us.then_some(NOWHERE)
        };
        match self.handshake.take(key, &bytes[..len], place) {
            Step::Waits => Heard::Nothing,
            // So few bytes have room; a caller that is gone tells so itself.
            Step::Send(challenge) => match (&self.stream).write_all(&challenge) {
                Ok(()) => Heard::Nothing,
                Err(_) => Heard::End,
            },
            Step::Done(established, _) => match self.handshake.caller() {
                Some(hello) => Heard::Proof(hello.from.0 as usize, established.keys),
                None => Heard::End,
            },
            Step::Refused => Heard::End,
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

/// The hub as a handshake names it, and where a connection of leaders begins: there is only one for each host.
const HUB_END: (u32, u64) = (HUB as u32, 0);
const NOWHERE: Position = Position { epoch: 0, received: 0 };

impl HubAddress {
    /// The job's secret: all ranks of the job know it, and nobody else.
    pub fn job_key(&self) -> [u8; KEY] {
        blake3::derive_key("bellwether hub 2: the key of the job", &self.secret)
    }

    /// The key that the leaders prove to each other to know. Another one than the ranks' own connections have, so that nothing
    /// said there is good here.
    fn leaders_key(&self) -> JobKey {
        JobKey::new(blake3::derive_key("bellwether hub 2: the key of the leaders", &self.secret))
    }

    fn named(&self) -> Vec<SocketAddr> {
        let named = self.addresses.iter().filter(|address| **address != [0; 16]);
        named.map(|ip| SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), self.port as u16)).collect()
    }

    /// Calls the hub, for `host`. A hub that takes the call but does not answer has many callers: it is called again. So is an address
    /// from which nothing comes back, a few times.
    ///
    /// # Errors
    /// [`Error::Start`] with each address that was tried, and the outcome.
    pub fn call(&self, host: usize) -> Result<Connection> {
        let (start, mut tried, mut reached) = (Instant::now(), Vec::new(), None);
        let mut first = None;
        let mut addresses: Vec<(SocketAddr, usize)> = self.named().into_iter().map(|address| (address, 1)).collect();
        while !addresses.is_empty() {
            addresses.retain_mut(|(address, tries)| {
                if reached.is_some() {
                    return false;
                }
                let left = LIMIT.saturating_sub(start.elapsed());
                if left.is_zero() {
                    tried.push(format!("{address}: no answer within {LIMIT:?}"));
                    return false;
                }
                match self.greet(address, host, TRY.min(left)) {
                    Ok(line) => reached = Some(line),
                    Err(error) if is_busy(&error) && start.elapsed() < LIMIT => return true,
                    Err(error) if error.kind() == ErrorKind::TimedOut && *tries < TRIES => {
                        *tries += 1;
                        return true;
                    }
                    Err(error) => {
                        tried.push(format!("{address}: {error}"));
                        first.get_or_insert((*address, error.kind()));
                    }
                }
                false
            });
            if let Some(line) = reached {
                return Ok(line);
            }
            if !addresses.is_empty() {
                sleep::nap(AGAIN);
            }
        }
        Err(Error::Start(format!(
            "{DOING}: the host of rank 0 cannot be reached by TCP from here ({}); hosts of one job need a network between \
             them that lets such connections through{}; `bellwether doctor --hosts LIST` shows which addresses answer",
            if tried.is_empty() { "it has no address".into() } else { tried.join("; ") },
            first.and_then(|(address, kind)| mend(address.ip(), kind, &interfaces::here())).unwrap_or_default(),
        )))
    }

    /// Calls that address, which may be another's here, and returns when the hub has let this leader in.
    fn greet(&self, address: &SocketAddr, host: usize, limit: Duration) -> std::io::Result<Connection> {
        let mut stream = TcpStream::connect_timeout(address, limit)?;
        let nonce: [u8; NONCE] = random().map_err(std::io::Error::other)?;
        let hello = Hello { from: (host as u32, 0), to: HUB_END, position: NOWHERE, nonce };
        let (mut dialing, hello) = Dialing::new(&self.leaders_key(), hello);
        stream.write_all(&hello)?;
        let until = Instant::now() + PATIENCE;
        let mut answer = [0; CHALLENGE + PROOF];
        read_until(&mut stream, &mut answer, until)?;
        let Step::Done(established, proof) = dialing.take(&answer) else {
            return Err(std::io::Error::other("somebody else answers"));
        };
        stream.write_all(&proof)?;
        let mut welcome = [0; connection::WELCOME];
        read_until(&mut stream, &mut welcome, until)?;
        let mut line = Connection::new(HUB, stream, established.keys).map_err(std::io::Error::other)?;
        match line.take_welcome(&welcome) {
            true => Ok(line),
            false => Err(std::io::Error::other("what comes after the handshake is not from the hub")),
        }
    }
}

/// The interface of this host by which it may reach `address`, and the command that may help where a call ended so, as
/// `bellwether doctor` says it.
fn mend(address: IpAddr, kind: ErrorKind, here: &[HostInterface]) -> Option<String> {
    let outward = here.iter().filter(|interface| !interface.is_loopback());
    let alike =
        |interface: &HostInterface| interface.addresses.iter().copied().find(|own| own.is_ipv6() == address.is_ipv6());
    let (name, own) = outward.filter_map(|interface| Some((&interface.name, alike(interface)?))).next()?;
    match kind {
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Some(format!(
            ". Interface {name} ({own}) of this host has no route there: `sudo ip route replace {address} dev {name}` on this host"
        )),
        ErrorKind::TimedOut | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::WouldBlock => {
            let tool = if address.is_ipv6() { "ip6tables" } else { "iptables" };
            Some(format!(
                ". A firewall may keep interface {name} ({own}) of this host out: `sudo {tool} -I INPUT -p tcp -s {own} -j ACCEPT` on the \
                 host of rank 0"
            ))
        }
        _ => None,
    }
}

/// Reads exactly so many bytes; fails with `WouldBlock` if they are not there in time, however slowly they come.
fn read_until(stream: &mut TcpStream, mut bytes: &mut [u8], until: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::WouldBlock.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => bytes = &mut bytes[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the key of a job is derived from this secret.
#[cfg(all(test, not(loom)))]
pub(crate) fn derives(secret: &[u8; KEY], job_key: &[u8; KEY]) -> bool {
    HubAddress { secret: *secret, ..Zeroable::zeroed() }.job_key() == *job_key
}

#[cfg(test)]
mod tests;
