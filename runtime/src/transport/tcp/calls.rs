//! Connections before they are proved: those that others have begun, and those that this interface has begun.
//!
//! Each caller gets a bounded time and one of a bounded number of places. Nothing that a caller sends is trusted before its proof.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::handshake::{Accepting, Dialing, Hello, NONCE, Step};
use super::sockets::{self, Interest, Moved, Set};
use super::state::State;
use crate::transport::error::Error;

/// The numbers of descriptors in the set: below these the listening socket and the thread's own.
pub const LISTENER: u64 = 0;
/// Those of callers are above this.
const CALLER: u64 = 1 << 32;
/// Those of connections that this interface has begun are above this.
pub const DIAL: u64 = 2 << 32;
/// How long a caller may take to prove its identity.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a caller has at least, even if others wait for its place.
const GRACE: Duration = Duration::from_millis(200);
/// Most callers that are held at a time before they have proved their identity. More wait in the listening socket's queue.
pub const STRANGERS: usize = 64;
/// How long after all addresses of a peer failed they are tried again.
const AGAIN: Duration = Duration::from_millis(100);

struct Caller {
    id: u64,
    stream: TcpStream,
    accepting: Accepting,
    since: Instant,
}

struct Dial {
    stream: TcpStream,
    /// None until the connection is made.
    dialing: Option<Dialing>,
    since: Instant,
    target: SocketAddr,
    left: VecDeque<SocketAddr>,
    /// Every address so far was refused by its host: no process listens there.
    is_refused: bool,
}

/// Connections that are not proved.
pub struct Calls {
    listener: Option<TcpListener>,
    /// Until when no caller is accepted.
    paused: Option<Instant>,
    /// The descriptors that the thread waits on.
    pub set: Set,
    callers: VecDeque<Caller>,
    next_caller: u64,
    dials: HashMap<u32, Dial>,
    /// How often another process answered than the one that was called.
    #[cfg(test)]
    refusals: u32,
}

fn random() -> Option<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    let count = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()).ok()?;
    (count == NONCE).then_some(bytes)
}

impl Calls {
    pub fn new(listener: TcpListener) -> std::io::Result<Calls> {
        let set = Set::new()?;
        set.add(&listener, LISTENER, Interest::Input)?;
        let (callers, dials) = (VecDeque::new(), HashMap::new());
        Ok(Calls {
            listener: Some(listener),
            paused: None,
            set,
            callers,
            next_caller: 0,
            dials,
            #[cfg(test)]
            refusals: 0,
        })
    }

    #[cfg(test)]
    pub fn refusals(&self) -> u32 {
        self.refusals
    }

    #[cfg(test)]
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Ends them all, and takes no further ones.
    pub fn close(&mut self) {
        self.listener = None;
        self.callers.clear();
        self.dials.clear();
    }

    /// Stops calling `peer`.
    pub fn drop_dial(&mut self, peer: u32) {
        if let Some(dial) = self.dials.remove(&peer) {
            self.set.remove(dial.stream.as_fd());
        }
    }

    /// Ends the caller that waits longest. Returns whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.callers.pop_front() else { return false };
        // A forked child may hold the socket, too: then closing it does not take it out.
        self.set.remove(&oldest.stream);
        true
    }

    /// Accepts no caller for a while.
    fn pause(&mut self, now: Instant) {
        if let Some(listener) = &self.listener {
            self.set.change(listener, LISTENER, Interest::Nothing);
            self.paused = Some(now + GRACE);
        }
    }

    fn resume(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
            self.listener.iter().for_each(|listener| self.set.change(listener, LISTENER, Interest::Input));
        }
    }

    /// Accepts callers, while there are places.
    fn accept(&mut self, now: Instant) {
        for _ in 0..STRANGERS {
            if self.callers.len() >= STRANGERS {
                match self.callers.front() {
                    Some(oldest) if now.duration_since(oldest.since) >= GRACE => _ = self.drop_oldest(),
                    _ => return self.pause(now),
                }
            }
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((stream, _)) => {
                    let Some(nonce) = random() else { return };
                    let id = self.next_caller;
                    self.next_caller = (id + 1) % CALLER;
                    let is_in = stream.set_nonblocking(true).is_ok()
                        && self.set.add(&stream, CALLER | id, Interest::Input).is_ok();
                    if is_in {
                        // The key comes with the first bytes.
                        self.callers.push_back(Caller { id, stream, accepting: Accepting::new(nonce), since: now });
                    }
                }
                Err(error) => match error.raw_os_error() {
                    // Out of descriptors or memory: the caller that has waited longest is closed, if there is one.
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) if !self.drop_oldest() => {
                        return self.pause(now);
                    }
                    Some(libc::EAGAIN) => return,
                    // EINTR, or a connection that broke before it was taken in (accept(2), section Error handling).
                    _ => {}
                },
            }
        }
    }
}

impl State {
    /// Something happened to the descriptor `number` of the calls' set.
    pub fn call_event(&mut self, number: u64, now: Instant) {
        match number {
            LISTENER => self.calls.accept(now),
            number if number >= DIAL => self.dial_event(number as u32, now),
            number => self.caller_event(number - CALLER),
        }
    }

    /// Begins the calls that are due, ends those that take too long; returns when to look again.
    pub fn call_timers(&mut self, now: Instant) -> Option<Instant> {
        let set = self.calls.set.clone();
        self.calls.callers.retain(|caller| {
            let stays = now.duration_since(caller.since) < PATIENCE;
            if !stays {
                set.remove(&caller.stream);
            }
            stays
        });
        self.calls.resume(now);
        let attempt = self.core.tuning.times.attempt;
        let is_late = |dial: &Dial| now.duration_since(dial.since) >= attempt;
        let late = self.calls.dials.iter().filter(|(_, dial)| is_late(dial));
        // Whether the connection was made: then it is the process that is silent.
        let late: Vec<(u32, bool)> = late.map(|(peer, dial)| (*peer, dial.dialing.is_some())).collect();
        for (number, is_taken) in late {
            let is_held = is_taken && self.holds(number, now);
            if is_taken {
                // A call that does not wait there comes back when the other addresses were tried.
                let others = if is_held { 0 } else { self.other_targets(number) };
                self.core.peer(number).stopped_at = Some(now + attempt * others);
            }
            if !is_held {
                self.next_target(number, false, now);
            }
        }
        self.has_calls = false;
        let due = |peer: &super::peer::Peer| peer.lost.is_none() && peer.call_at.is_some_and(|at| at <= now);
        let due: Vec<u32> = self.core.peers.iter().filter(|(_, peer)| due(peer)).map(|(number, _)| *number).collect();
        for number in due {
            let peer = self.core.peer(number);
            // The thread, too, may have been kept from running when the program found that the connection broke: the peer is missing from
            // the first call on.
            let late = peer.call_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            peer.missing_since = peer.missing_since.map(|at| super::state::later(at, late, now));
            self.begin_call(number, now);
        }
        let callers = self.calls.callers.front().map(|caller| caller.since + PATIENCE);
        let dials = self.calls.dials.values().map(|dial| dial.since + attempt).min();
        let calls = self.core.peers.values().filter(|peer| peer.lost.is_none()).filter_map(|peer| peer.call_at).min();
        [callers, dials, calls, self.calls.paused].into_iter().flatten().min()
    }

    fn begin_call(&mut self, number: u32, now: Instant) {
        let stack = self.own.address.stack;
        let is_silent = self.is_silent;
        let peer = self.core.peer(number);
        peer.call_at = None;
        if is_silent || self.calls.dials.contains_key(&number) {
            return;
        }
        // A peer that has called, but whose address no endpoint here has given, cannot be called: it has to call again.
        let Some(address) = peer.address else { return };
        let mut left: VecDeque<SocketAddr> = address.targets(stack).into();
        // The address that led to the peer before comes first.
        if let Some(at) = left.iter().position(|target| Some(*target) == peer.reached_at) {
            left.swap(0, at);
        }
        self.dial(number, left, true, now);
    }

    /// Calls the first of `left` that can be called.
    fn dial(&mut self, number: u32, mut left: VecDeque<SocketAddr>, mut is_refused: bool, now: Instant) {
        while let Some(target) = left.pop_front() {
            match sockets::dial(target) {
                Ok(stream) => {
                    if self.calls.set.add(&stream, DIAL | u64::from(number), Interest::Output).is_ok() {
                        let dial = Dial { stream, dialing: None, since: now, target, left, is_refused };
                        self.calls.dials.insert(number, dial);
                        return;
                    }
                    is_refused = false;
                }
                Err(error) => {
                    tracing::debug!(peer = number, %target, %error, "a peer cannot be called there");
                    is_refused &= error.raw_os_error() == Some(libc::ECONNREFUSED);
                }
            }
        }
        if is_refused {
            // Its host answers, and no process listens there: the interface is gone.
            return self.lose(number, Error::ConnectionReset);
        }
        self.core.peer(number).call_at = Some(now + AGAIN);
        self.has_calls = true;
    }

    /// How many addresses of a peer are tried before one of them is tried again.
    fn other_targets(&self, number: u32) -> u32 {
        let address = self.core.peers.get(&number).and_then(|peer| peer.address);
        address.map_or(0, |address| address.targets(self.own.address.stack).len().saturating_sub(1) as u32)
    }

    /// Whether a call that gets no answer goes to an address at which this peer has proved its identity: then the call goes on waiting
    /// there. If it were ended and made again each time, the ended calls would fill the listening queue of a process that is stopped, until
    /// it has no room for others. The kernel ends the waiting call if the host dies.
    fn holds(&mut self, number: u32, now: Instant) -> bool {
        let Some(dial) = self.calls.dials.get_mut(&number) else { return false };
        let Some(peer) = self.core.peers.get(&number) else { return false };
        let is_there = peer.reached_at == Some(dial.target) || peer.called_from == Some(dial.target.ip());
        if is_there {
            dial.since = now;
        }
        is_there
    }

    /// Called when the address that is being tried does not lead to the peer: tries the next one.
    fn next_target(&mut self, number: u32, is_refused: bool, now: Instant) {
        let Some(dial) = self.calls.dials.remove(&number) else { return };
        self.calls.set.remove(dial.stream.as_fd());
        drop(dial.stream);
        self.dial(number, dial.left, dial.is_refused && is_refused, now);
    }

    fn dial_event(&mut self, number: u32, now: Instant) {
        let Some(dial) = self.calls.dials.get_mut(&number) else { return };
        let Some(dialing) = &mut dial.dialing else {
            if let Err(error) = sockets::dialed(&dial.stream) {
                tracing::debug!(peer = number, %error, "a peer does not answer there");
                return self.next_target(number, error.raw_os_error() == Some(libc::ECONNREFUSED), now);
            }
            return self.greet(number, now);
        };
        let mut bytes = [0; 256];
        let wanted = dialing.wanted().min(bytes.len());
        let count = match sockets::read(&dial.stream, &mut bytes[..wanted]) {
            Moved::Bytes(count) => count,
            Moved::None => return,
            Moved::Over => return self.next_target(number, false, now),
        };
        match dialing.take(&bytes[..count]) {
            Step::Waits | Step::Send(_) => {}
            Step::Refused => {
                tracing::debug!(
                    peer = number,
                    "another process answers at the peer's address, or its BELLWETHER_ENCRYPT differs"
                );
                #[cfg(test)]
                {
                    self.calls.refusals += 1;
                }
                self.next_target(number, false, now);
            }
            Step::Done(established, proof) => {
                let dial = self.calls.dials.remove(&number).expect("just looked at");
                self.calls.set.remove(dial.stream.as_fd());
                // So few bytes have room.
                if !matches!(sockets::write(&dial.stream, &[std::io::IoSlice::new(&proof)]), Moved::Bytes(count) if count == proof.len())
                {
                    self.core.peer(number).call_at = Some(now + AGAIN);
                    self.has_calls = true;
                    return;
                }
                self.core.peer(number).reached_at = Some(dial.target);
                self.adopt(number, dial.stream, established, None);
            }
        }
    }

    /// Called when the connection is made: sends the greeting, which names this interface.
    fn greet(&mut self, number: u32, now: Instant) {
        let (own, key) = (self.own, self.key().clone());
        let peer = self.core.peer(number);
        let (position, to) = (peer.link.position(), peer.address.map(|address| address.nonce));
        let (Some(nonce), Some(to)) = (random(), to) else { return self.next_target(number, false, now) };
        let hello = Hello { from: (own.number, own.address.nonce), to: (number, to), position, nonce };
        let (dialing, bytes) = Dialing::new(&key, hello);
        let Some(dial) = self.calls.dials.get_mut(&number) else { return };
        if sockets::prepare(&dial.stream).is_err() {
            return self.next_target(number, false, now);
        }
        // So few bytes have room.
        match sockets::write(&dial.stream, &[std::io::IoSlice::new(&bytes)]) {
            Moved::Bytes(count) if count == bytes.len() => {
                dial.dialing = Some(dialing);
                self.calls.set.change(&dial.stream, DIAL | u64::from(number), Interest::Input);
            }
            _ => self.next_target(number, false, now),
        }
    }

    fn caller_event(&mut self, id: u64) {
        let Some(at) = self.calls.callers.iter().position(|caller| caller.id == id) else { return };
        let Some(mut caller) = self.calls.callers.remove(at) else { return };
        let mut bytes = [0; 256];
        let wanted = caller.accepting.wanted().min(bytes.len());
        let count = match sockets::read(&caller.stream, &mut bytes[..wanted]) {
            Moved::Bytes(count) => count,
            Moved::None => return self.calls.callers.insert(at, caller),
            Moved::Over => return self.calls.set.remove(&caller.stream),
        };
        let key = self.key().clone();
        let place = |hello: &Hello| {
            self.is_for_here(hello).then(|| match self.core.peers.get(&hello.from.0) {
                Some(peer) if peer.nonce.is_none_or(|nonce| nonce == hello.from.1) => peer.link.position(),
                _ => super::handshake::Position { epoch: 0, received: 0 },
            })
        };
        match caller.accepting.take(&key, &bytes[..count], place) {
            Step::Waits => self.calls.callers.insert(at, caller),
            Step::Send(bytes) => {
                // So few bytes have room; a caller that is gone tells so itself.
                let _ = sockets::write(&caller.stream, &[std::io::IoSlice::new(&bytes)]);
                self.calls.callers.insert(at, caller);
            }
            Step::Refused => self.calls.set.remove(&caller.stream),
            Step::Done(established, _) => {
                self.calls.set.remove(&caller.stream);
                let Some(hello) = caller.accepting.caller().copied() else { return };
                self.adopt(hello.from.0, caller.stream, established, Some(&hello));
            }
        }
    }

    /// The port from which `peer` is being called.
    #[cfg(test)]
    pub fn calls_from(&self, peer: u32) -> Option<u16> {
        Some(self.calls.dials.get(&peer)?.stream.local_addr().ok()?.port())
    }

    /// Whether the kernel of the peer's host has taken the call, and the peer was greeted.
    #[cfg(test)]
    pub fn is_taken(&self, peer: u32) -> bool {
        self.calls.dials.get(&peer).is_some_and(|dial| dial.dialing.is_some())
    }

    /// Number of callers that have not proved their identity.
    #[cfg(test)]
    pub fn strangers(&self) -> usize {
        self.calls.callers.len()
    }
}
