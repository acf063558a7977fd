//! How leaders find the hub: it listens where other hosts may reach it, and the others, who have been told where and a secret,
//! call.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};

use super::addresses;
use super::line::Line;
use crate::error::{Error, Result};

const DOING: &str = "connecting the hosts";
/// Most addresses that the hub names.
const ADDRESSES: usize = 14;
/// How long a leader tries one of them, and all.
const TRY: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(20);
/// How long a caller may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the hub listens, what its callers have to say, and what it answers.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Summons {
    secret: [u8; 16],
    answer: [u8; 16],
    /// IPv4 addresses as IPv6 has them; zeros behind the last.
    addresses: [[u8; 16]; ADDRESSES],
    port: u64,
}

/// What a caller says first.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
struct Greeting {
    secret: [u8; 16],
    host: u64,
}

const GREETING: usize = size_of::<Greeting>();

/// The hub's door.
#[derive(Debug)]
pub struct Gate {
    listener: TcpListener,
    summons: Summons,
}

/// Somebody who has called, and what it has said so far.
struct Caller {
    stream: TcpStream,
    said: Vec<u8>,
    since: Instant,
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Os { doing: DOING, call, source }
}

impl Gate {
    /// Opens it, and says where it is.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn open() -> Result<(Gate, Summons)> {
        let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let listener =
            TcpListener::bind(all.map(|address| SocketAddr::new(address, 0)).as_slice()).map_err(failed("bind"))?;
        listener.set_nonblocking(true).map_err(failed("fcntl"))?;
        let mut summons =
            Summons { port: listener.local_addr().map_err(failed("getsockname"))?.port().into(), ..Zeroable::zeroed() };
        for secret in [&mut summons.secret, &mut summons.answer] {
            let flags = rustix::rand::GetRandomFlags::empty();
            rustix::rand::getrandom(&mut secret[..], flags).map_err(|errno| Error::os(DOING, "getrandom", errno))?;
        }
        let here = addresses::here().into_iter().map(|address| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        });
        summons.addresses.iter_mut().zip(here).for_each(|(place, address)| *place = address);
        Ok((Gate { listener, summons }, summons))
    }

    /// Lets the leaders of hosts `1..hosts` in, until all are there or `told` says that all have told how they fared. Whoever
    /// else comes is sent away.
    ///
    /// # Errors
    /// Those of `told`; [`Error::Os`].
    pub fn admit(self, hosts: usize, mut told: impl FnMut() -> Result<bool>) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = Vec::new();
        let mut callers: Vec<Caller> = Vec::new();
        while lines.len() + 1 < hosts {
            // Who says that it got through has called before.
            let last = told()?;
            loop {
                match self.listener.accept() {
                    Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                        callers.push(Caller { stream, said: Vec::new(), since: Instant::now() });
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(error) => return Err(failed("accept")(error)),
                }
            }
            let mut waiting = Vec::new();
            for mut caller in callers {
                match caller.listen() {
                    Some(greeting) => {
                        let is_new = lines.iter().all(|line| line.host as u64 != greeting.host);
                        if greeting.secret == self.summons.secret
                            && (1..hosts as u64).contains(&greeting.host)
                            && is_new
                        {
                            // So few bytes have room; a caller that is gone tells so itself.
                            let _ = (&caller.stream).write_all(&self.summons.answer);
                            lines.push(Line::new(greeting.host as usize, caller.stream)?);
                        }
                    }
                    None if caller.since.elapsed() < PATIENCE => waiting.push(caller),
                    None => {}
                }
            }
            callers = waiting;
            if last && callers.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(lines)
    }
}

impl Caller {
    /// What it says, when it has said all.
    fn listen(&mut self) -> Option<Greeting> {
        let mut bytes = [0; GREETING];
        let left = GREETING - self.said.len();
        if let Ok(len) = self.stream.read(&mut bytes[..left]) {
            self.said.extend_from_slice(&bytes[..len]);
        }
        (self.said.len() == GREETING).then(|| bytemuck::pod_read_unaligned(&self.said))
    }
}

impl Summons {
    /// Calls the hub, for `host`.
    ///
    /// # Errors
    /// [`Error::Start`] with each address that was tried, and what became of it.
    pub fn call(&self, host: usize) -> Result<Line> {
        let (start, mut tried) = (Instant::now(), Vec::new());
        for address in self.addresses.iter().filter(|address| **address != [0; 16]) {
            let left = LIMIT.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            let address = SocketAddr::new(Ipv6Addr::from(*address).to_canonical(), self.port as u16);
            match self.greet(&address, host, TRY.min(left)) {
                Ok(stream) => return Line::new(super::HUB, stream),
                Err(error) => tried.push(format!("{address}: {error}")),
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
        stream.write_all(bytemuck::bytes_of(&Greeting { secret: self.secret, host: host as u64 }))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answer = self.answer;
        answer.fill(0);
        stream.read_exact(&mut answer)?;
        if answer != self.answer {
            return Err(std::io::Error::other("somebody else answers"));
        }
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Word;
    use super::*;

    /// What comes within a while.
    fn hear(line: &mut Line) -> Vec<Word> {
        let (start, mut words) = (Instant::now(), Vec::new());
        while words.is_empty() && start.elapsed() < Duration::from_secs(20) {
            words = line.receive();
        }
        words
    }

    #[test]
    fn leaders_meet_and_strangers_do_not_get_in() {
        let (gate, summons) = Gate::open().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, summons.port as u16));
        // One that says nothing, one that knows no secret.
        let _silent = TcpStream::connect(address).unwrap();
        TcpStream::connect(address).unwrap().write_all(&[7; GREETING]).unwrap();
        let (mut lines, mut leaders) = std::thread::scope(|scope| {
            let callers = [3, 2, 1, 1].map(|host| {
                let caller = scope.spawn(move || summons.greet(&address, host, TRY));
                // The second from one host comes after the first.
                std::thread::sleep(Duration::from_millis(20));
                caller
            });
            let lines = gate.admit(3, || Ok(false)).unwrap();
            (lines, callers.map(|caller| caller.join().unwrap()))
        });
        assert!(leaders[0].is_err() && leaders[3].is_err(), "no such host, and one that is there already");
        lines.sort_by_key(|line| line.host);
        assert_eq!(lines.iter().map(|line| line.host).collect::<Vec<_>>(), [1, 2]);
        for (line, leader) in lines.iter_mut().zip([2, 1]) {
            let stream = std::mem::replace(&mut leaders[leader], Err(ErrorKind::Other.into())).unwrap();
            Line::new(0, stream).unwrap().send(&Word::Leaving(leader));
            assert_eq!(hear(line), [Word::Leaving(leader)]);
        }
    }

    #[test]
    fn a_door_that_is_not_the_hubs_is_not_entered() {
        let (stranger, other) = Gate::open().unwrap();
        let summons = Summons { answer: [9; 16], ..other };
        let text = std::thread::scope(|scope| {
            let caller = scope.spawn(move || summons.call(1).unwrap_err().to_string());
            // It takes any caller with its secret for a leader.
            drop(stranger.admit(2, || Ok(caller.is_finished())));
            caller.join().unwrap()
        });
        assert!(text.contains("somebody else answers"), "{text}");
    }

    #[test]
    fn nobody_is_waited_for_who_has_told_that_it_failed() {
        let (gate, summons) = Gate::open().unwrap();
        let lines = std::thread::scope(|scope| {
            let one = scope.spawn(move || summons.call(1).unwrap());
            let lines = gate.admit(3, || Ok(one.is_finished())).unwrap();
            one.join().unwrap();
            lines
        });
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn a_hub_out_of_reach_is_an_error_with_its_addresses() {
        let (gate, summons) = Gate::open().unwrap();
        drop(gate);
        let text = summons.call(1).unwrap_err().to_string();
        assert!(text.contains(&format!(":{}: ", summons.port)) && text.contains("refused"), "{text}");
        let nowhere = Summons { addresses: Zeroable::zeroed(), ..summons };
        assert!(nowhere.call(1).unwrap_err().to_string().contains("no address"));
    }
}
