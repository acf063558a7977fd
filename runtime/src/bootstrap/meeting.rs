//! How ranks that a launcher started meet: each learns the hosts of all ranks, the ranks of a host share memory, and the
//! leaders of the hosts connect. A `Carrier`, MPI or the launcher's own exchange, carries the few messages that this
//! needs.
//!
//! ```text
//! every rank       tells its machine                           -> all see the same answer
//! leader           (first rank of a host) makes the host's memory, opens a socket
//! leader           broadcast on its host: the socket's name, or why there is none
//! its peers        take the descriptor from the socket (or from /proc, where there are no sockets)
//! every rank       tells whether it worked                     -> all fail, or none
//! and where there are several hosts
//! rank 0           listens; broadcast: where
//! other leaders    connect to it by TCP
//! every rank       tells whether it worked, and whether its devices are of rank 0's kind
//!                                                              -> all fail, or none; all know whether devices differ
//! ```

mod handover;
pub(super) mod machine;

use bytemuck::{Pod, Zeroable};

use self::handover::{Offer, Server};
use self::machine::Machine;
use crate::error::{Error, Result};
use crate::membership::JobMemory;
use crate::membership::hosts::{HubAddress, HubListener, Link};
use crate::membership::nodes::Nodes;
use crate::settings::Settings;

/// A rank's part in a job that a launcher has brought together.
#[derive(Debug)]
pub struct Joined {
    /// Our rank.
    pub rank: usize,
    /// The job.
    pub job: JobMemory,
    /// What this rank was set to.
    pub settings: Settings,
    /// Which host each rank runs on.
    pub nodes: Nodes,
    /// If there are several and this rank leads its own: the connections to the others.
    pub link: Option<Link>,
    /// If the hosts' network devices are not of one kind: how they differ, for people. The same on all ranks.
    pub differing_devices: Option<String>,
}

/// Names the kind of network devices that a rank would use between hosts. Called where there are several hosts.
pub type DeviceKind = fn(&Settings) -> String;

/// How one rank fared: empty, the beginning of its complaint, or a note.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Outcome {
    length: u32,
    /// 1: the text is a note, and all is well.
    is_note: u32,
    text: [u8; 504],
}

impl Outcome {
    pub(super) fn of<T>(result: &Result<T>) -> Outcome {
        match result {
            Ok(_) => Outcome::zeroed(),
            Err(error) => Outcome::saying(&error.to_string()),
        }
    }

    pub(super) fn saying(why: &str) -> Outcome {
        let mut outcome = Outcome::zeroed();
        let shown = why.floor_char_boundary(outcome.text.len());
        outcome.text[..shown].copy_from_slice(&why.as_bytes()[..shown]);
        outcome.length = shown as u32;
        outcome
    }

    /// A rank that fared well, and has something to say. A complaint of another rank goes before.
    pub(super) fn noting(what: &str) -> Outcome {
        Outcome { is_note: 1, ..Outcome::saying(what) }
    }

    /// The note.
    fn note(&self) -> Option<String> {
        (self.is_note == 1).then(|| String::from_utf8_lossy(self.text()).into_owned())
    }

    /// The text of the error or the note; empty if all is well.
    pub(super) fn text(&self) -> &[u8] {
        &self.text[..(self.length as usize).min(self.text.len())]
    }

    pub(super) fn check(&self, rank: usize) -> Result<()> {
        match self.text() {
            [] => Ok(()),
            _ if self.is_note == 1 => Ok(()),
            text => Err(Error::Agreed { rank, why: String::from_utf8_lossy(text).into_owned() }),
        }
    }
}

/// The first rank that did not fare well, with its words; if all did, the first with a note.
pub(super) type Complaint = Option<(usize, Outcome)>;

pub(super) fn first_complaint(outcomes: &[Outcome]) -> Complaint {
    let has_words = |outcome: &&Outcome| !outcome.text().is_empty();
    let first = |is_note| outcomes.iter().position(|outcome| has_words(&outcome) && (outcome.is_note == 1) == is_note);
    first(false).or_else(|| first(true)).map(|rank| (rank, outcomes[rank]))
}

/// The hosts of a job, as one rank needs to know them.
pub(super) struct Hosts {
    pub(super) nodes: Nodes,
    /// Ranks of this host, in order; the first is its leader.
    pub(super) local: Vec<usize>,
    /// At the leader the processes of the others on this host.
    pub(super) pids: Vec<u32>,
}

/// Brings the words of a meeting to the other ranks. All calls are collective and come in the same order on every rank. An
/// error means that the carrier is broken: the meeting is over, and this rank calls no more.
pub(super) trait Carrier {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Tells this rank's machine and learns of the others. If ranks of one machine cannot share memory all fail.
    fn hosts(&mut self, mine: &Machine) -> Result<Hosts>;

    /// Copies `value` of rank 0 to all.
    fn broadcast<T: Pod>(&mut self, value: &mut T) -> Result<()>;

    /// Copies `value` of each host's leader to the ranks of its host.
    fn broadcast_on_host<T: Pod>(&mut self, hosts: &Hosts, value: &mut T) -> Result<()>;

    /// Reports how this rank fared, and returns the first complaint. `meanwhile` serves other ranks until it is done, or until the
    /// function that it is given says that all ranks have reported, or that none will.
    fn agree(&mut self, mine: &Outcome, meanwhile: impl FnOnce(&mut dyn FnMut() -> bool)) -> Result<Complaint>;
}

/// What a leader tells the ranks of its host.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Invitation {
    offer: Offer,
    // Last: a carrier need not send zeros at the end.
    outcome: Outcome,
}

/// Joins all ranks of the carrier into one job. Collective, so a rank without good settings comes too, and brings its error.
///
/// # Errors
/// The carrier's; [`Error::Start`] if ranks of one machine cannot share memory; a rank's own error where it could not make or
/// take the memory, or where hosts cannot reach each other, and [`Error::Agreed`] on the other ranks.
pub(super) fn meet(carrier: &mut impl Carrier, settings: Result<Settings>, kind: DeviceKind) -> Result<Joined> {
    let (rank, size) = (carrier.rank(), carrier.size());
    let given = settings.as_ref().ok().and_then(|settings| settings.host.clone());
    let hosts = carrier.hosts(&Machine::here(given.as_deref()))?;
    let leader = hosts.local[0];

    let mut invitation = Invitation::zeroed();
    let mut server = None;
    let joined = if rank == leader {
        let made = settings.and_then(|settings| {
            let job = JobMemory::create_on(size, &hosts.nodes, hosts.nodes.of(rank), &settings)?;
            (server, invitation.offer) = Server::open(&job, hosts.local.len());
            Ok((job, settings))
        });
        invitation.outcome = Outcome::of(&made);
        carrier.broadcast_on_host(&hosts, &mut invitation)?;
        made
    } else {
        carrier.broadcast_on_host(&hosts, &mut invitation)?;
        invitation.outcome.check(leader).and_then(|()| {
            let settings = settings?;
            Ok((JobMemory::from_fd(invitation.offer.take()?, size)?, settings))
        })
    };

    let mut served = Ok(());
    let complaint = carrier.agree(&Outcome::of(&joined), |told| {
        if let (Some(server), Ok((job, _))) = (server, &joined) {
            served = server.serve(job.fd(), hosts.pids.iter().copied().collect(), || Ok(told()));
        }
    })?;
    let (job, settings) = joined?;
    served?;
    complaint.map_or(Ok(()), |(rank, outcome)| outcome.check(rank))?;
    let nodes = hosts.nodes;
    let (link, differing_devices) = match nodes.count() {
        1 => (None, None),
        _ => connect(carrier, &nodes, rank == leader, &job, &kind(&settings))?,
    };
    Ok(Joined { rank, job, settings, nodes, link, differing_devices })
}

/// Most bytes of a kind of devices that are compared.
const KIND: usize = 120;

/// The message of rank 0 to the leaders of other hosts.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Call {
    hub: HubAddress,
    /// The kind of rank 0's devices, zero-padded.
    kind: [u8; KIND],
    // Last: a carrier need not send zeros at the end.
    outcome: Outcome,
}

/// Connects the leaders of the hosts. `kind`: of this rank's devices. Returns the leader's connections, and how devices differ.
/// Collective.
fn connect(
    carrier: &mut impl Carrier,
    nodes: &Nodes,
    leads: bool,
    job: &JobMemory,
    kind: &str,
) -> Result<(Option<Link>, Option<String>)> {
    let rank = carrier.rank();
    let host = nodes.of(rank);
    let kind = &kind[..kind.floor_char_boundary(KIND)];
    let mut call = Call::zeroed();
    call.kind[..kind.len()].copy_from_slice(kind.as_bytes());
    let mut listener = None;
    if rank == 0 {
        let opened = HubListener::bind().map(|opened| {
            call.hub = opened.1;
            listener = Some(opened.0);
        });
        call.outcome = Outcome::of(&opened);
        carrier.broadcast(&mut call)?;
        opened?;
    } else {
        carrier.broadcast(&mut call)?;
        call.outcome.check(0)?;
    }
    // All ranks of a host enter the same.
    job.set_key(call.hub.job_key());
    let called = if leads && rank != 0 { call.hub.call(host).map(|line| vec![line]) } else { Ok(Vec::new()) };
    let mut admitted = None;
    let of_first = String::from_utf8_lossy(&call.kind).trim_end_matches('\0').to_owned();
    let outcome = if called.is_ok() && kind != of_first { Outcome::noting(kind) } else { Outcome::of(&called) };
    let complaint = carrier.agree(&outcome, |told| {
        admitted = listener.map(|listener| listener.admit(nodes.count(), || Ok(told())));
    })?;
    // The hub's own ranks must hear of it too, if it could not let others in.
    let mut hub = admitted.as_ref().map_or(Outcome::zeroed(), Outcome::of);
    carrier.broadcast(&mut hub)?;
    let connections = admitted.unwrap_or(called)?;
    complaint.map_or(Ok(()), |(rank, outcome)| outcome.check(rank))?;
    hub.check(0)?;
    let differs = complaint.and_then(|(rank, outcome)| Some((rank, outcome.note()?)));
    let differs = differs.map(|(rank, kind)| format!("rank 0 has {of_first}, rank {rank} has {kind}"));
    Ok((leads.then_some(Link { host, connections }), differs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_of_a_rank_make_who_reads_them_panic() {
        let mut state = 3u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let mut bytes = vec![0u8; size_of::<Invitation>().max(2 * size_of::<Machine>())];
        for round in 0..2000 {
            bytes.fill_with(|| [0, 0xff, random()][round % 3]);
            let invitation: Invitation = bytemuck::pod_read_unaligned(&bytes[..size_of::<Invitation>()]);
            let _ = invitation.outcome.check(0);
            let machines: Vec<Machine> =
                bytes.chunks_exact(size_of::<Machine>()).take(2).map(bytemuck::pod_read_unaligned).collect();
            let _ = machine::hosts(&machines);
        }
        assert!(Outcome::of(&Ok(())).check(1).is_ok());
    }
}
