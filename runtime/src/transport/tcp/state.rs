//! An interface with its sockets: reading, writing, and which connection leads to which peer.

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::address::{Address, rank_of};
use super::calls::Calls;
use super::core::Core;
use super::handshake::{Established, Hello};
use super::peer::Tuning;
use super::secret::JobKey;
use super::sockets::{self, Interest, Moved, Set};
use super::spread::Spread;
use crate::error::Loss;
use crate::membership::JobMemory;
use crate::transport::error::Error;
use crate::transport::memory::Registry;

/// Bytes read at a time.
const READ: usize = 256 << 10;
/// Reads of one peer in a row, so that others get their turn. Chosen: 512 KiB.
const READS: usize = 2;
/// Most sealed bytes that wait for the end of a burst. Chosen: as many as a socket takes at once without loss of speed.
const BURST: usize = 16 << 10;
/// How long the end with the higher number leaves it to the other to call again after a connection broke.
const COURTESY: Duration = Duration::from_millis(30);
/// How long the peer has to send its first frame over a connection before another one that it calls for replaces it.
const CONFIRM: Duration = Duration::from_secs(1);
/// How long a link rests that has lost connections without any progress.
const REST: Duration = Duration::from_millis(100);

/// How long this process may not run without its peers being given time to be reached. The thread looks so often while a peer is missing.
/// Chosen: a tenth of the limit for peers.
pub const PAUSE: Duration = Duration::from_secs(1);

/// `at`, moved on by `late`, but not beyond `now`: time in which this process did not run.
pub fn later(at: Instant, late: Duration, now: Instant) -> Instant {
    (at + late).min(now.max(at))
}

/// A connection that carries frames.
struct Socket {
    stream: TcpStream,
    /// It was full.
    is_full: bool,
}

/// The identity of an interface.
#[derive(Debug, Clone, Copy)]
pub struct Own {
    pub address: Address,
    pub number: u32,
}

/// All of an interface. One lock is around it.
pub struct State {
    pub core: Core,
    pub calls: Calls,
    pub own: Own,
    key: JobKey,
    /// Tells which ranks have ended; `None` outside of a job.
    roster: Option<Arc<JobMemory>>,
    sockets: HashMap<u32, Socket, std::hash::BuildHasherDefault<Spread>>,
    /// The sockets, for the thread that waits for frames.
    pub data: Set,
    /// Peers to which something was sent since the last turn.
    bursts: Vec<u32>,
    /// The peers of `bursts` for which more frames wait.
    deferred: Vec<u32>,
    scratch: Vec<u8>,
    /// It ends: no calls any more.
    pub is_silent: bool,
    /// The thread has something to do: a peer to call.
    pub has_calls: bool,
}

impl State {
    pub fn new(
        tuning: Tuning,
        registry: Arc<Registry>,
        own: Own,
        key: JobKey,
        roster: Option<Arc<JobMemory>>,
        calls: Calls,
    ) -> std::io::Result<State> {
        Ok(State {
            core: Core::new(tuning, registry),
            calls,
            own,
            key,
            roster,
            sockets: HashMap::default(),
            data: Set::new()?,
            bursts: Vec::new(),
            deferred: Vec::new(),
            scratch: vec![0; READ],
            is_silent: false,
            has_calls: false,
        })
    }

    /// Notes where a peer is.
    pub fn know(&mut self, address: Address) {
        let (number, nonce) = (address.peer(), Some(address.nonce));
        if self.core.peers.get(&number).is_some_and(|peer| peer.nonce.is_some() && peer.nonce != nonce) {
            self.calls.drop_dial(number);
            self.close(number);
        }
        self.core.know(address);
    }

    /// The job's key.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Something was pushed for `peer`: sends it, if it is the first since the last turn; else it waits for more. Returns
    /// whether it waits.
    pub fn pushed(&mut self, number: u32) -> bool {
        let Some(peer) = self.core.peers.get_mut(&number) else { return false };
        if peer.lost.is_some() {
            return false;
        }
        if !peer.link.is_connected() {
            self.want(number, Instant::now());
            return false;
        }
        let was_quiet = !std::mem::replace(&mut peer.bursts, true);
        if was_quiet {
            self.bursts.push(number);
            self.flush(number);
            return false;
        }
        peer.link.fill();
        if peer.link.out().is_some_and(|out| out.len() >= BURST) {
            self.flush(number);
            return false;
        }
        if !std::mem::replace(&mut peer.is_deferred, true) {
            self.deferred.push(number);
        }
        true
    }

    /// Whether a turn has something to do beside taking messages.
    pub fn has_work(&self) -> bool {
        !self.core.done.is_empty() || !self.deferred.is_empty()
    }

    /// Ends all bursts. Returns for how many peers something was sent.
    pub fn end_bursts(&mut self) -> usize {
        while let Some(number) = self.bursts.pop() {
            self.core.peer(number).bursts = false;
        }
        self.flush_deferred()
    }

    /// Sends what waits for the end of a burst.
    pub fn flush_deferred(&mut self) -> usize {
        let mut count = 0;
        while let Some(number) = self.deferred.pop() {
            self.core.peer(number).is_deferred = false;
            self.flush(number);
            count += 1;
        }
        count
    }

    /// A connection to `peer` is wanted.
    fn want(&mut self, number: u32, now: Instant) {
        let own = self.own.number;
        let peer = self.core.peer(number);
        if number == own {
            let established = Established { epoch: 1, received: 0, keys: self.key.own() };
            if peer.link.connect(established).is_ok() {
                self.flush(number);
            }
            return;
        }
        if peer.missing_since.is_none() {
            (peer.missing_since, peer.call_at) = (Some(now), Some(now));
            self.has_calls = true;
        }
    }

    /// Sends what there is to send to `peer`, as far as its socket has room.
    pub fn flush(&mut self, number: u32) {
        if number == self.own.number {
            return self.loop_back();
        }
        let flow = self.core.tuning.flow;
        let Some(peer) = self.core.peers.get_mut(&number) else { return };
        let Some(socket) = self.sockets.get_mut(&number) else { return };
        let is_over = loop {
            peer.link.fill();
            if peer.can_go_on() && peer.go_on(&flow) > 0 {
                peer.link.fill();
            }
            let Some(out) = peer.link.out() else { break false };
            let written = sockets::write(&socket.stream, &out.gather());
            match written {
                Moved::Bytes(count) => peer.link.sent(count),
                Moved::None => {
                    if !std::mem::replace(&mut socket.is_full, true) {
                        self.data.change(&socket.stream, number.into(), Interest::Both);
                    }
                    return;
                }
                Moved::Over => break true,
            }
        };
        if is_over {
            return self.end(number);
        }
        if std::mem::replace(&mut socket.is_full, false) {
            self.data.change(&socket.stream, number.into(), Interest::Input);
        }
    }

    /// Delivers the frames that this interface sends to itself.
    fn loop_back(&mut self) {
        let (number, flow) = (self.own.number, self.core.tuning.flow);
        loop {
            let peer = self.core.peer(number);
            peer.go_on(&flow);
            peer.link.fill();
            let Some(out) = peer.link.out() else { return };
            let mut bytes = peer.link.partial().to_vec();
            let before = bytes.len();
            out.gather().iter().for_each(|block| bytes.extend_from_slice(block));
            peer.link.sent(bytes.len() - before);
            match self.core.take(number, &mut bytes) {
                Ok(rest) => self.core.peer(number).link.keep(&bytes[bytes.len() - rest..]),
                Err(broken) => {
                    tracing::error!(why = broken.0, "an interface does not understand itself");
                    return self.core.lose(number, Error::ConnectionReset);
                }
            }
        }
    }

    /// Reads from all sockets that have something.
    pub fn read_all(&mut self) {
        if self.sockets.len() <= 1 {
            // Asking is as cheap as reading.
            let only = self.sockets.keys().next().copied();
            only.into_iter().for_each(|number| self.read(number));
            return;
        }
        for number in self.data.wait(Some(Duration::ZERO)) {
            self.read(number as u32);
        }
    }

    /// Reads the frames that the peer has sent, serves them, and sends the answers.
    pub fn read(&mut self, number: u32) {
        let Some(came) = self.take_in(number) else { return };
        let is_full = self.sockets.get(&number).is_some_and(|socket| socket.is_full);
        if came || is_full {
            self.flush(number);
        }
    }

    /// Ends a connection that cannot be written. First reads the frames that the peer has sent, since they may acknowledge frames.
    #[cold]
    fn end(&mut self, number: u32) {
        while self.take_in(number) == Some(true) {}
        if self.sockets.contains_key(&number) {
            self.broken(number, Instant::now());
        }
    }

    /// Reads the frames that the peer has sent, and serves them. Returns whether any came; `None` if the connection is gone.
    fn take_in(&mut self, number: u32) -> Option<bool> {
        let mut came = false;
        for _ in 0..READS {
            let socket = self.sockets.get(&number)?;
            let peer = self.core.peers.get(&number)?;
            let before = peer.link.partial().len();
            self.scratch[..before].copy_from_slice(peer.link.partial());
            let count = match sockets::read(&socket.stream, &mut self.scratch[before..]) {
                Moved::Bytes(count) => count,
                Moved::None => break,
                Moved::Over => {
                    self.broken(number, Instant::now());
                    return None;
                }
            };
            came = true;
            let bytes = &mut self.scratch[..before + count];
            match self.core.take(number, bytes) {
                Ok(rest) => {
                    let peer = self.core.peer(number);
                    peer.link.keep(&bytes[bytes.len() - rest..]);
                    if peer.lost.is_some() {
                        self.close(number);
                        return None;
                    }
                    // Not at the handshake: where frames do not get through, the limit has to be reached.
                    let is_through = peer.link.progress() != peer.progress || peer.link.is_settled();
                    if peer.missing_since.is_some() && peer.link.is_confirmed() && is_through {
                        (peer.missing_since, peer.fruitless) = (None, 0);
                    }
                }
                Err(broken) => {
                    tracing::warn!(peer = number, why = broken.0, "a connection is ended");
                    self.broken(number, Instant::now());
                    return None;
                }
            }
            if before + count < READ {
                break;
            }
        }
        Some(came)
    }

    /// Forgets the socket of `peer`.
    fn close(&mut self, number: u32) {
        if let Some(socket) = self.sockets.remove(&number) {
            self.data.remove(socket.stream.as_fd());
        }
    }

    /// The connection to `peer` broke: another is wanted.
    pub fn broken(&mut self, number: u32, now: Instant) {
        self.close(number);
        let own = self.own.number;
        let peer = self.core.peer(number);
        peer.link.disconnect();
        if peer.lost.is_some() {
            return;
        }
        let progress = peer.link.progress();
        peer.fruitless = if progress == peer.progress { peer.fruitless + 1 } else { 0 };
        peer.progress = progress;
        peer.missing_since.get_or_insert(now);
        let rest = if peer.fruitless > 1 { REST } else { Duration::ZERO };
        peer.call_at = Some(now + rest + if own < number { Duration::ZERO } else { COURTESY });
        self.has_calls = true;
    }

    /// The peer is lost.
    pub fn lose(&mut self, number: u32, error: Error) {
        self.close(number);
        self.core.lose(number, error);
    }

    /// Whether a call of `hello` may lead here: it is for this interface, and the caller is not lost.
    pub fn is_for_here(&self, hello: &Hello) -> bool {
        let is_here = hello.to == (self.own.number, self.own.address.nonce);
        let is_lost = |peer: &super::peer::Peer| peer.lost.is_some() && peer.nonce == Some(hello.from.1);
        is_here && !self.is_silent && !self.core.peers.get(&hello.from.0).is_some_and(is_lost)
    }

    /// A connection to `number` is proved. `hello`: the peer's, if the peer called. Of two at once the one stays that the end with the
    /// lower number called for, unless the other end says that it has seen that one end.
    pub fn adopt(&mut self, number: u32, stream: TcpStream, established: Established, hello: Option<&Hello>) {
        let own = self.own.number;
        if let Some(hello) = hello {
            if !self.is_for_here(hello) {
                return;
            }
            let peer = self.core.peer(number);
            if peer.nonce.is_some_and(|nonce| nonce != hello.from.1) {
                // Another interface with that number, after the one we knew.
                self.lose(number, Error::ConnectionReset);
                self.core.peers.remove(&number);
            }
            let peer = self.core.peer(number);
            peer.nonce = Some(hello.from.1);
            peer.called_from = stream.peer_addr().ok().map(|from| from.ip().to_canonical());
            // The peer may never have got the proof of ours.
            let is_fresh = peer.connected_at.is_some_and(|at| at.elapsed() < CONFIRM);
            let stays = peer.link.is_connected() && (peer.link.is_confirmed() || is_fresh);
            if own < number && stays && hello.position.epoch < peer.link.epoch() {
                return;
            }
        }
        if sockets::prepare(&stream).is_err() {
            return;
        }
        self.calls.drop_dial(number);
        self.close(number);
        let peer = self.core.peer(number);
        peer.link.disconnect();
        if let Err(broken) = peer.link.connect(established) {
            tracing::warn!(peer = number, why = broken.0, "a peer has forgotten what it sent");
            return self.lose(number, Error::ConnectionReset);
        }
        (peer.connected_at, peer.call_at) = (Some(Instant::now()), None);
        if self.data.add(&stream, number.into(), Interest::Input).is_err() {
            return self.broken(number, Instant::now());
        }
        self.sockets.insert(number, Socket { stream, is_full: false });
        self.flush(number);
    }

    /// Makes calls that are due and ends what took too long; returns when to look again. `due`: when this was to be called. If that was
    /// earlier, this process did not run meanwhile, and could not reach anybody: the time does not count against its peers. After more than
    /// [`PAUSE`] of it each peer has the time of a call to be reached.
    pub fn keep_time(&mut self, now: Instant, due: Option<Instant>) -> Option<Instant> {
        let late = due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        if !late.is_zero() {
            let times = self.core.tuning.times;
            let spared = if late > PAUSE { (now + times.attempt).checked_sub(times.limit) } else { None };
            for peer in self.core.peers.values_mut() {
                for at in [&mut peer.missing_since, &mut peer.stopped_at, &mut peer.call_at].into_iter().flatten() {
                    *at = later(*at, late, now);
                }
                peer.missing_since = peer.missing_since.map(|at| at.max(spared.unwrap_or(at)));
            }
        }
        // Calls first: one that was answered late tells that the peer's host is there.
        let calls = self.call_timers(now);
        let limits = self.check_limits(now);
        // A pause that ends before the next turn is due is not noticed: turns are close while a peer is missing.
        let turn = limits.map(|_| now + PAUSE);
        [calls, limits, turn].into_iter().flatten().min()
    }

    /// Loses peers that have been out of reach for too long; returns when to look again.
    fn check_limits(&mut self, now: Instant) -> Option<Instant> {
        let times = self.core.tuning.times;
        let over = |(_, peer): &(&u32, &super::peer::Peer)| {
            peer.lost.is_none() && peer.ends_at(&times).is_some_and(|at| at <= now)
        };
        let late: Vec<u32> = self.core.peers.iter().filter(over).map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| {
            self.calls.drop_dial(number);
            self.lose(number, Error::ConnectionReset);
        });
        let living = self.core.peers.values().filter(|peer| peer.lost.is_none());
        living.filter_map(|peer| peer.ends_at(&times)).min()
    }

    /// Ends everything without a word, as a process that was killed.
    pub fn silence(&mut self) {
        self.is_silent = true;
        self.sockets.clear();
        self.calls.close();
        self.core.peers.values_mut().for_each(|peer| peer.link.disconnect());
    }

    /// Whether a rank has ended, and not in good order: its interfaces make no connection any more.
    fn has_ended(&self, rank: u32) -> bool {
        let loss = self.roster.as_ref().and_then(|job| job.loss(rank as usize));
        loss.is_some_and(|loss| !matches!(loss, Loss::Left | Loss::Overdue | Loss::Disconnected))
    }

    /// Whether any frame is not acknowledged yet that its peer may still take. Asks the peers for acknowledgements.
    pub fn is_owed(&mut self) -> bool {
        let waits = |(number, peer): &(&u32, &super::peer::Peer)| {
            // Nobody here can call a peer that only called, as contexts do: no refused call tells that it is gone.
            let may_take = || peer.link.is_connected() || !self.has_ended(rank_of(**number));
            peer.lost.is_none() && !peer.is_settled() && may_take()
        };
        let numbers: Vec<u32> = self.core.peers.iter().filter(waits).map(|(number, _)| *number).collect();
        for number in &numbers {
            let peer = self.core.peer(*number);
            match peer.link.is_connected() {
                true => peer.link.ask(),
                false => self.want(*number, Instant::now()),
            }
            self.flush(*number);
        }
        !numbers.is_empty()
    }

    /// Tells all peers that this interface closes, and acknowledges the frames that it has taken.
    pub fn bid_farewell(&mut self) {
        let numbers: Vec<u32> = self.sockets.keys().copied().collect();
        for number in numbers {
            // Takes the frames that have come, so that the farewell acknowledges them.
            self.take_in(number);
            if self.sockets.contains_key(&number) {
                self.core.peer(number).link.bid_farewell();
                self.flush(number);
            }
        }
    }

    /// After the farewells: whether a part of one has not reached the host of its peer. Reads and discards bytes that peers still send,
    /// since a socket that closes with unread bytes drops the bytes that it has yet to send.
    pub fn lingers(&mut self) -> bool {
        let numbers: Vec<u32> = self.sockets.keys().copied().collect();
        for number in numbers {
            let Some(socket) = self.sockets.get(&number) else { continue };
            let is_over = loop {
                match sockets::read(&socket.stream, &mut self.scratch) {
                    Moved::Bytes(_) => {}
                    Moved::None => break false,
                    Moved::Over => break true,
                }
            };
            let Some(out) = self.core.peer(number).link.out().filter(|_| !is_over) else {
                if is_over || sockets::unsent(&socket.stream) == 0 {
                    self.close(number);
                }
                continue;
            };
            let written = sockets::write(&socket.stream, &out.gather());
            match written {
                Moved::Bytes(count) => self.core.peer(number).link.sent(count),
                Moved::None => {}
                Moved::Over => self.close(number),
            }
        }
        !self.sockets.is_empty()
    }

    /// Ends the connection to `number`, as a network does that loses one.
    #[cfg(test)]
    pub fn cut(&mut self, number: u32) {
        if let Some(socket) = self.sockets.get(&number) {
            let _ = socket.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Connections there are.
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.sockets.len()
    }
}
