//! The state of an interface for a peer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::address::Address;
use super::frame::{Fields, kind};
use super::link::{Limits, Link, NO_POST};
use crate::transport::error::Error;
use crate::transport::stream::{FRAME_HEADER, FlowLimits, Frame, Inflow, Outflow};
use crate::transport::wire::Channel;

/// Notices that a peer may send before this rank has taken some.
pub const NOTICES: u32 = 16;
/// So many taken notices are reported together.
const TAKEN: u32 = NOTICES / 4;

/// How deep queues are. Peers must have the same.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Messages.
    pub flow: FlowLimits,
    /// Frames.
    pub limits: Limits,
    /// Connections. Each end has its own.
    pub times: Times,
}

/// How long an interface waits for a peer.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// How long a peer may be out of reach before it is lost.
    pub limit: Duration,
    /// How long one address of a peer is tried.
    pub attempt: Duration,
    /// How long a peer may say nothing while its host takes connections: its process is stopped, or kept from running. Below `limit` it has
    /// no effect.
    pub stopped: Duration,
}

/// One channel.
pub struct Flow {
    /// Messages to the peer.
    pub out: Outflow,
    /// Messages from the peer.
    pub inward: Inflow,
    /// The posts of messages in `out`.
    waiting: VecDeque<u64>,
}

/// A peer.
pub struct Peer {
    /// The address of its interface, if that is known.
    pub address: Option<Address>,
    /// The nonce of the peer's interface, which tells it from a later interface with the same number.
    pub nonce: Option<u64>,
    /// The link to the peer.
    pub link: Link,
    /// Its channels.
    pub flows: [Flow; 3],
    /// Why it cannot be reached any more.
    pub lost: Option<Error>,
    /// Since when a connection is wanted and there is none.
    pub missing_since: Option<Instant>,
    /// When its host last took a connection on which the peer then said nothing: the kernel is alive and the process is stopped.
    pub stopped_at: Option<Instant>,
    /// When the last connection was made.
    pub connected_at: Option<Instant>,
    /// The value of [`Link::progress`] when the last connection broke.
    pub progress: u64,
    /// Connections in a row that broke without progress.
    pub fruitless: u32,
    /// The address that led to it last.
    pub reached_at: Option<std::net::SocketAddr>,
    /// Where its last proved call came from.
    pub called_from: Option<std::net::IpAddr>,
    /// When to call it next.
    pub call_at: Option<Instant>,
    /// Something was sent to it since the last turn.
    pub bursts: bool,
    /// Frames wait for the end of the burst.
    pub is_deferred: bool,
    /// Notices that it has not said it has taken.
    pub notices_sent: u32,
    pub notices_taken: u32,
    /// Posts so far.
    pub posts: u64,
    /// For a lost peer: all posts with a lower number were in effect.
    pub settled: u64,
}

impl Peer {
    /// One that nothing is known of.
    pub fn new(tuning: &Tuning) -> Peer {
        let flow = |channel| Flow {
            out: Outflow::new(channel, &tuning.flow),
            inward: Inflow::default(),
            waiting: VecDeque::new(),
        };
        Peer {
            address: None,
            nonce: None,
            link: Link::new(tuning.limits),
            flows: [Channel::Message, Channel::Request, Channel::Reply].map(flow),
            lost: None,
            missing_since: None,
            stopped_at: None,
            connected_at: None,
            progress: 0,
            fruitless: 0,
            reached_at: None,
            called_from: None,
            call_at: None,
            bursts: false,
            is_deferred: false,
            notices_sent: 0,
            notices_taken: 0,
            posts: 0,
            settled: 0,
        }
    }

    /// When it is lost, if nothing changes: a while after it was out of reach. While its host takes connections, its process may be stopped for
    /// longer.
    pub fn ends_at(&self, times: &Times) -> Option<Instant> {
        let missing = self.missing_since?;
        let alive = self.stopped_at.map_or(missing, |at| at.max(missing));
        Some((alive + times.limit).min(missing + times.limit.max(times.stopped)))
    }

    /// The number of a post.
    pub fn post(&mut self) -> u64 {
        self.posts += 1;
        self.posts - 1
    }

    /// Whether a message can be sent.
    #[inline]
    pub fn can_send(&self, channel: Channel) -> bool {
        self.flows[channel as usize].out.can_pass() && self.link.has_room()
    }

    /// Takes a message of one fragment. Ask [`Peer::can_send`] first.
    pub fn send_short(&mut self, channel: Channel, id: u8, bytes: &[u8]) {
        let post = self.post();
        let flow = &mut self.flows[channel as usize];
        let credits = flow.inward.due();
        let head = flow.out.pass(id, bytes.len(), credits).expect("a credit is there");
        flow.inward.gave(credits);
        let mut body = Fields::with_capacity(FRAME_HEADER + bytes.len());
        body.extend_from_slice(&head);
        body.extend_from_slice(bytes);
        self.link.push_fields(kind::MESSAGE, body, None, post);
    }

    /// Takes a longer message. Ask [`Peer::can_send`] first.
    pub fn send_long(&mut self, channel: Channel, id: u8, bytes: Vec<u8>, limits: &FlowLimits) {
        let post = self.post();
        let flow = &mut self.flows[channel as usize];
        flow.out.push(id, bytes);
        flow.waiting.push_back(post);
        self.go_on(limits);
    }

    /// Frames messages that wait, as far as there are credits and room. Returns how many frames.
    pub fn go_on(&mut self, limits: &FlowLimits) -> usize {
        let mut count = 0;
        for flow in &mut self.flows {
            while flow.out.can_go_on() && self.link.has_room() {
                let before = flow.out.waiting();
                let Some((frame, _)) = flow.out.poll(limits) else { break };
                let is_last = flow.out.waiting() < before;
                let post = if is_last { flow.waiting.pop_front().unwrap_or(NO_POST) } else { NO_POST };
                self.link.push_fields(kind::MESSAGE, Fields::from_vec(frame), None, post);
                count += 1;
            }
        }
        count
    }

    /// Whether messages wait that could go on.
    pub fn can_go_on(&self) -> bool {
        self.link.has_room() && self.flows.iter().any(|flow| flow.out.can_go_on())
    }

    /// A message of the peer was delivered, or a part of one taken.
    pub fn give_credit(&mut self, channel: Channel, is_delivered: bool, limits: &FlowLimits) {
        let inward = &mut self.flows[channel as usize].inward;
        if is_delivered {
            inward.consumed();
        }
        if let Some(count) = inward.credits_due(limits) {
            let frame = Frame::Credit { channel, count }.encode();
            self.link.push_fields(kind::MESSAGE, Fields::from_vec(frame), None, NO_POST);
        }
    }

    /// This rank has taken a notice of the peer. Returns how many to report now.
    pub fn take_notice(&mut self) -> Option<u32> {
        self.notices_taken += 1;
        (self.notices_taken >= TAKEN).then(|| std::mem::take(&mut self.notices_taken))
    }

    /// Whether all posts below `count` are in effect.
    pub fn is_settled_below(&self, count: u64) -> bool {
        let waits = |flow: &Flow| flow.waiting.front().is_some_and(|post| *post < count);
        (self.link.is_settled() || self.link.is_settled_below(count)) && !self.flows.iter().any(waits)
    }

    /// The first post that is not known to be in effect.
    pub fn first_unsettled(&self) -> u64 {
        let waiting = self.flows.iter().filter_map(|flow| flow.waiting.front().copied());
        waiting.min().unwrap_or(NO_POST).min(self.link.first_unsettled()).min(self.posts)
    }

    /// Whether nothing waits to be sent or acknowledged.
    pub fn is_settled(&self) -> bool {
        self.link.is_settled() && self.flows.iter().all(|flow| flow.waiting.is_empty())
    }
}
