//! One host's part: its properties, its findings, and which other hosts it reaches. The command talks to it over the agent's standard
//! input and output, in lines of JSON:
//!
//! ```text
//! command            host
//! Examine    ------>
//!            <------ Facts, with the port at which it answers
//! Reach      ------>            the other hosts, when all have told theirs
//!            <------ Reached
//! Clock      ------>            several times
//!            <------ Clock
//! ```
//!
//! It ends when its standard input does.

use std::ffi::OsString;
use std::io::{BufRead, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bellwether_runtime::membership::interfaces::{self, HostInterface};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::launchers::{self, Program};
use super::limits::{self, Ranks};
use super::tried;

/// The hidden command that examines one host.
pub const SIDE: &str = "doctor-of-host";
/// Begins each line to the command. Lines without it, such as those of a login shell, are ignored.
pub const MARK: &str = "bellwether-doctor ";
/// How long an address may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// From the command to a host.
#[derive(Debug, Serialize, Deserialize)]
pub enum Down {
    Examine(Examine),
    Reach(Vec<Peer>),
    Clock,
}

/// The job that the examination is for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Examine {
    pub folder: String,
    /// As `bellwether run` hands them to its ranks.
    pub env: Vec<(String, String)>,
    pub program: Option<String>,
    /// Ranks on this host, its CPUs if that is not said; and on all others.
    pub here: Option<usize>,
    pub elsewhere: usize,
}

/// Another host, as the host that is to reach it gets it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Peer {
    pub port: u16,
    pub token: String,
    pub addresses: Vec<Address>,
}

/// An address of a host, and its interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
}

/// From a host to the command.
#[derive(Debug, Serialize, Deserialize)]
pub enum Up {
    Facts(Box<Facts>),
    /// For each other host, what became of each of its addresses.
    Reached(Vec<Vec<Outcome>>),
    /// Nanoseconds since 1970.
    Clock(u64),
}

/// Properties of a host, and its findings.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    pub hostname: String,
    /// An identifier of the machine, or of the host that the settings name.
    pub machine: String,
    pub arch: String,
    /// Features of its CPUs.
    pub features: Vec<String>,
    /// Digests of this command, and of the program.
    pub own: Option<u64>,
    pub program: Option<u64>,
    /// Where the program is, from the root.
    pub program_path: Option<String>,
    pub findings: Vec<Finding>,
    /// The port on which it answers, and the token that it answers with.
    pub port: u16,
    pub token: String,
    pub addresses: Vec<Address>,
}

/// The outcome of a call to an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Reached,
    /// The caller has that address, too.
    Own,
    /// Somebody else answers there.
    Other,
    /// The call was turned down.
    Refused,
    /// Nothing came back.
    Silent,
    /// The caller's system cannot send there, and says so.
    NoRoute(String),
}

/// All examinations of one host alone. `by_agent`: the command runs on another host, or may.
pub fn examine(program: Option<&str>, here: Option<usize>, elsewhere: usize, by_agent: bool) -> Facts {
    let here = here.unwrap_or_else(limits::allowed_cpus);
    let ranks = Ranks { here, all: here.saturating_add(elsewhere), by_agent };
    let mut known = Program::default();
    let mut findings = program.map_or(Vec::new(), |name| launchers::program(&OsString::from(name), &mut known));
    findings.extend(launchers::launchers(&known));
    findings.extend(limits::findings(ranks));
    findings.extend(tried::findings());
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpuinfo = read("/proc/cpuinfo");
    let features = cpuinfo.lines().find_map(|line| line.split_once(':').filter(|(key, _)| is_features(key)));
    Facts {
        hostname: read("/proc/sys/kernel/hostname"),
        machine: read("/proc/sys/kernel/random/boot_id") + " " + &std::env::var("BELLWETHER_HOST").unwrap_or_default(),
        arch: std::env::consts::ARCH.into(),
        features: features.map_or(Vec::new(), |(_, text)| text.split_whitespace().map(str::to_owned).collect()),
        own: std::fs::read("/proc/self/exe").ok().map(|bytes| launchers::digest(&bytes)),
        program: known.digest,
        program_path: known.path.map(|path| path.to_string_lossy().into_owned()),
        findings,
        ..Facts::default()
    }
}

/// As x86 and ARM call it.
fn is_features(key: &str) -> bool {
    ["flags", "Features"].contains(&key.trim())
}

/// Serves the command, as one of its hosts, until it ends.
pub fn serve() -> ExitCode {
    let stdin = std::io::stdin();
    for line in stdin.lock().lines().map_while(Result::ok) {
        let up = match serde_json::from_str(&line) {
            Ok(Down::Examine(examine)) => Up::Facts(Box::new(first(&examine))),
            Ok(Down::Reach(peers)) => Up::Reached(reach(&peers)),
            Ok(Down::Clock) => Up::Clock(now()),
            Err(_) => {
                eprintln!("bellwether: the command that asks this one is of another version");
                return ExitCode::FAILURE;
            }
        };
        let text = serde_json::to_string(&up).expect("texts and numbers can always be written");
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{MARK}{text}").and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn first(what: &Examine) -> Facts {
    for (name, value) in &what.env {
        // SAFETY: this process has one thread yet.
        unsafe { std::env::set_var(name, value) };
    }
    let entered = std::env::set_current_dir(&what.folder);
    let mut facts = examine(what.program.as_deref(), what.here, what.elsewhere, true);
    if let Err(error) = entered {
        let mend = format!("mkdir -p {}  # or mount it", what.folder);
        facts.findings.insert(0, Finding::error("folder", format!("{}: {error}", what.folder), mend));
    }
    match listen() {
        Ok((port, token)) => (facts.port, facts.token) = (port, token),
        Err(error) => {
            let mend = "cat /proc/sys/net/ipv4/ip_local_port_range  # and widen it";
            facts.findings.push(Finding::error("port", format!("none can be had: {error}"), mend));
        }
    }
    // As ranks do, where the setting names one.
    let wanted = std::env::var("BELLWETHER_TCP_INTERFACE").ok().filter(|wanted| wanted != "auto");
    facts.addresses = addresses();
    facts.addresses.retain(|address| wanted.as_ref().is_none_or(|wanted| *wanted == address.interface));
    facts
}

/// Listens on a free port until this process ends, and answers each caller with a token that no other process has. Returns port and token.
fn listen() -> std::io::Result<(u16, String)> {
    let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let listener = TcpListener::bind(all.map(|ip| SocketAddr::new(ip, 0)).as_slice())?;
    let port = listener.local_addr()?.port();
    let mut random = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let word = token.clone();
    std::thread::Builder::new().spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // The token fits into the socket's buffer. Ignore errors: the caller may have gone.
                Ok(mut stream) => drop(stream.write_all(word.as_bytes())),
                // No descriptor, for instance.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    })?;
    Ok((port, token))
}

/// Calls all addresses of all peers: of each peer one after the other.
fn reach(peers: &[Peer]) -> Vec<Vec<Outcome>> {
    let own: Vec<IpAddr> = addresses().into_iter().map(|address| address.ip).collect();
    let each = |peer: &Peer| peer.addresses.iter().map(|address| call(address.ip, peer, &own)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let calls: Vec<_> = peers.iter().map(|peer| scope.spawn(|| each(peer))).collect();
        calls.into_iter().map(|call| call.join().unwrap_or_default()).collect()
    })
}

fn call(ip: IpAddr, peer: &Peer, own: &[IpAddr]) -> Outcome {
    use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut, WouldBlock};
    if own.contains(&ip) {
        return Outcome::Own;
    }
    let said = || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(ip, peer.port), LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut said = vec![0; peer.token.len()];
        stream.read_exact(&mut said).map(|()| said)
    };
    match said() {
        Ok(said) if said == peer.token.as_bytes() => Outcome::Reached,
        Ok(_) => Outcome::Other,
        // A firewall's answer has the same number as the lack of a route. A datagram socket's call asks only for the route.
        Err(error)
            if has_no_route(&error)
                && UdpSocket::bind((any(ip), 0)).is_ok_and(|own| own.connect((ip, peer.port)).is_ok()) =>
        {
            Outcome::Refused
        }
        Err(error) => match error.kind() {
            TimedOut | WouldBlock => Outcome::Silent,
            ConnectionRefused | ConnectionReset => Outcome::Refused,
            std::io::ErrorKind::UnexpectedEof => Outcome::Other,
            _ => Outcome::NoRoute(error.to_string()),
        },
    }
}

fn has_no_route(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::HostUnreachable | std::io::ErrorKind::NetworkUnreachable)
}

fn any(ip: IpAddr) -> IpAddr {
    if ip.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The addresses of this host by which others may reach it: those of interfaces that are up, without the loopback interface.
fn addresses() -> Vec<Address> {
    let all = interfaces::here().into_iter().filter(|interface| !interface.is_loopback());
    let each = |interface: HostInterface| {
        let name = interface.name;
        interface.addresses.into_iter().map(move |ip| Address { interface: name.clone(), ip })
    };
    let mut found: Vec<_> = all.flat_map(each).collect();
    found.sort_by_key(|address| address.ip.is_ipv6());
    found
}
