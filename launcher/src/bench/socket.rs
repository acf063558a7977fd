//! A bare socket between ranks 0 and 1: the limit of operations over TCP.

use std::io::ErrorKind::{Interrupted, WouldBlock};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use bellwether_runtime::transport::tcp::{offer, stack};
use bellwether_runtime::{Error, Result, Settings, World};

use super::bare::spin_until;

/// Addresses of rank 1 that rank 0 tries.
const ADDRESSES: usize = 6;
/// How long rank 0 tries one.
const TRY: Duration = Duration::from_secs(2);

/// One end of the connection; nothing on other ranks.
pub struct Bare(Option<(usize, TcpStream)>);

/// The addresses of rank 1 that rank 0 gets. The loopback address comes first, because ranks of one host use it.
fn told(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = addresses.collect();
    all.sort_by_key(|ip| !ip.is_loopback());
    all.truncate(ADDRESSES);
    all
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::InvalidArgument { operation: "bench", why: format!("a bare socket between ranks 0 and 1: {error}") }
}

impl Bare {
    /// Connects ranks 0 and 1 by addresses of the interfaces that the runtime uses. Collective.
    ///
    /// # Errors
    /// If they cannot be connected.
    pub fn connect(world: &World) -> Result<Bare> {
        // Rank 1's network stack, port and addresses.
        let addresses = world.alloc::<u64>(2 + 2 * ADDRESSES)?;
        let rank = world.rank();
        let listener = if rank == 1 {
            let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)];
            let listener = TcpListener::bind(&all.map(|ip| SocketAddr::new(ip, 0))[..]).map_err(failed)?;
            let settings = Settings::from_env()?;
            let interface = settings.tcp_interface.as_deref();
            let mut words = vec![stack(), listener.local_addr().map_err(failed)?.port().into()];
            for address in told(offer(interface).map_err(failed)?.addresses()) {
                let ip = match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                words.extend([(u128::from(ip) >> 64) as u64, u128::from(ip) as u64]);
            }
            addresses.put_slice(0, 0, &words)?;
            Some(listener)
        } else {
            None
        };
        world.barrier()?;
        let stream = match (rank, listener) {
            (0, _) => {
                let (is_here, port) = (addresses.load(0) == stack(), addresses.load(1) as u16);
                let ip = |n: usize| u128::from(addresses.load(2 + 2 * n)) << 64 | u128::from(addresses.load(3 + 2 * n));
                let targets: Vec<IpAddr> = (0..ADDRESSES)
                    .map(ip)
                    .filter(|ip| *ip != 0)
                    .map(|ip| Ipv6Addr::from(ip).to_canonical())
                    .filter(|ip| is_here || !ip.is_loopback())
                    .collect();
                let call = |ip: &IpAddr| TcpStream::connect_timeout(&SocketAddr::new(*ip, port), TRY).ok();
                Some(targets.iter().find_map(call).ok_or_else(|| failed(format!("none of {targets:?} answers")))?)
            }
            (_, Some(listener)) => Some(listener.accept().map_err(failed)?.0),
            _ => None,
        };
        if let Some(stream) = &stream {
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(failed)?;
        }
        world.barrier()?;
        Ok(Bare(stream.map(|stream| (rank, stream))))
    }

    /// Sends `size` bytes `n` times from rank 0 to rank 1 and back. A receiver polls.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn there_and_back(&self, n: usize, size: usize) -> Result<()> {
        let Some((rank, stream)) = &self.0 else { return Ok(()) };
        let mut bytes = vec![7u8; size];
        for _ in 0..n {
            if *rank == 0 {
                send(stream, &bytes)?;
            }
            receive(stream, &mut bytes)?;
            if *rank == 1 {
                send(stream, &bytes)?;
            }
        }
        Ok(())
    }

    /// Sends `size` bytes `n` times from rank 0 to rank 1, which answers the last with a byte.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn stream(&self, n: usize, size: usize) -> Result<()> {
        let Some((rank, stream)) = &self.0 else { return Ok(()) };
        let mut bytes = vec![7u8; size];
        for _ in 0..n {
            if *rank == 0 { send(stream, &bytes)? } else { receive(stream, &mut bytes)? }
        }
        if *rank == 0 { receive(stream, &mut [0]) } else { send(stream, &[1]) }
    }
}

fn send(mut stream: &TcpStream, bytes: &[u8]) -> Result<()> {
    moved(bytes.len(), |from| stream.write(&bytes[from..]))
}

fn receive(mut stream: &TcpStream, bytes: &mut [u8]) -> Result<()> {
    moved(bytes.len(), |from| stream.read(&mut bytes[from..]))
}

/// Calls `some` until it has moved `len` bytes.
fn moved(len: usize, mut some: impl FnMut(usize) -> std::io::Result<usize>) -> Result<()> {
    let (mut done, mut outcome) = (0, Ok(()));
    spin_until(|| {
        match some(done) {
            Ok(0) => outcome = Err(failed("it was closed")),
            Ok(count) => done += count,
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => {}
            Err(error) => outcome = Err(failed(error)),
        }
        done == len || outcome.is_err()
    });
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_many_addresses_tells_that_of_the_loopback_interface() {
        let others = (1..=9).map(|n| IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, n)));
        let loopback = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let told = told(others.chain([loopback]));
        assert_eq!((told.len(), told[0]), (ADDRESSES, loopback));
        assert_eq!(told[1].to_string(), "192.0.2.1", "the others in their order");
    }
}
