//! The networks of a job, and which of them carries an operation.
//!
//! [`RemoteAccess`] is one network. [`Networks`] are those that a rank has open; there are none if all memory is mapped. An operation on
//! one peer uses the network of that peer's [route](super::routes). A poll, a flush or a sleep uses all of them.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::dispatch::Arrival;
use super::remote_access::{Apart, Pace, RemoteAccess};
use super::routes::{Route, Routes};
use crate::error::{CalledAt, Error};
use crate::memory::segments::KEY_ROOM;
use crate::sleep;
use crate::transport::{self, Events, PACKED_KEY_LEN, Region, Result};

/// Most networks that a rank can have open. A slot has room for this many connection records, and an entry of the table of
/// segments for this many keys.
pub(crate) const NETWORKS_MAX: usize = crate::memory::layout::NETWORKS_MAX;

const _: () = assert!(NETWORKS_MAX * PACKED_KEY_LEN <= KEY_ROOM);

/// How long a put is retried before it is queued. Chosen: several times what soft-RoCE takes to acknowledge.
const BRIEF: Duration = Duration::from_millis(10);

/// The networks that a rank has open, in its own order of preference. Ranks may differ in the order, and in which networks they have open:
/// everything that they publish for a network carries its number, which is the same on all ranks.
pub(crate) struct Networks<N = Box<dyn RemoteAccess>> {
    list: Vec<N>,
    routes: Routes,
    pace: Option<Box<dyn Pace + Send>>,
}

/// The networks of a context. Any thread may own them.
pub(crate) type ApartNetworks = Networks<Apart>;

impl Networks {
    /// These networks. `pace` is the clock where time is virtual.
    pub(super) fn new(
        list: Vec<Box<dyn RemoteAccess>>,
        routes: Routes,
        pace: Option<Box<dyn Pace + Send>>,
    ) -> Networks {
        Networks { list, routes, pace }
    }

    /// Decides which network leads to each rank. All ranks have arrived.
    ///
    /// # Errors
    /// [`Error::Start`] if a rank cannot be reached.
    pub(super) fn decide(&self) -> Result<(), Error> {
        // A single network needs no choice: the first operation on a peer tells whether the network reaches it.
        let decided = match &*self.list {
            [] => Ok(()),
            [only] => self.routes.peers().find(|rank| !only.is_open_at(*rank)).map_or(Ok(()), Err),
            list => self.routes.decide(list.len(), |network, rank| list[network].reaches(rank)),
        };
        if decided.is_ok() && !self.is_empty() {
            tracing::debug!(rank = self.routes.rank(), ways = %self.ways(), "how other ranks are reached");
        }
        decided.map_err(|rank| {
            Error::Start(format!(
                "rank {rank} is reached over no network that this rank has opened ({}): it has opened none, or another one; set \
                 BELLWETHER_TRANSPORT alike for all ranks, and compare `bellwether info` on their hosts",
                self.names()
            ))
        })
    }

    /// How each other rank is reached, for people.
    pub(crate) fn ways(&self) -> String {
        let name = |place: usize| self.list.get(place).map_or("no network", |network| network.name());
        let way = |rank| match self.routes.to(rank) {
            Route::Own | Route::Mapped => "shared memory",
            Route::Network(place) => name(place),
        };
        let mut ways: Vec<(usize, usize, &str)> = Vec::new();
        for rank in self.routes.peers() {
            match ways.last_mut() {
                Some((_, last, before)) if *last + 1 == rank && *before == way(rank) => *last = rank,
                _ => ways.push((rank, rank, way(rank))),
            }
        }
        let told = ways.into_iter().map(|(first, last, way)| match last - first {
            0 => format!("rank {first} by {way}"),
            _ => format!("ranks {first} to {last} by {way}"),
        });
        told.collect::<Vec<_>>().join(", ")
    }

    /// Makes bytes `from..to` of this rank's slot, which were just committed, reachable for peers. Called in ascending order.
    pub(super) fn grew(&self, from: usize, to: usize) -> Result<()> {
        self.list.iter().try_for_each(|network| network.grew(from, to))
    }

    /// Registers memory with each network. Returns the keys, each in the place of its network's number.
    ///
    /// # Safety
    /// As [`super::segments::RemoteSegments::register`].
    pub(crate) unsafe fn register(&self, start: *mut u8, len: usize) -> Result<(Vec<Region>, [u8; KEY_ROOM])> {
        let (mut regions, mut keys) = (Vec::with_capacity(self.list.len()), [0; KEY_ROOM]);
        for network in &self.list {
            // SAFETY: the caller guarantees that the memory stays mapped until the region is dropped.
            let (region, packed) = unsafe { network.register(start, len) }?;
            keys[network.number() * PACKED_KEY_LEN..][..PACKED_KEY_LEN].copy_from_slice(&packed);
            regions.push(region);
        }
        Ok((regions, keys))
    }

    /// The same networks through further interfaces, to which no rank sends on its own initiative: only answers arrive there.
    ///
    /// # Errors
    /// The network that has no further one, and why.
    pub(super) fn apart(&self) -> std::result::Result<ApartNetworks, (&dyn RemoteAccess, transport::Error)> {
        let open = |network| RemoteAccess::apart(network).map_err(|error| (network, error));
        let list = self.list.iter().map(|network| open(&**network)).collect::<std::result::Result<_, _>>()?;
        Ok(Networks { list, routes: self.routes.clone(), pace: self.pace.as_ref().map(|pace| pace.apart()) })
    }
}

impl<N> Networks<N> {
    /// Takes the networks out. No operation may follow; progress then finds nothing to do.
    pub(super) fn close(&mut self) -> Vec<N> {
        std::mem::take(&mut self.list)
    }
}

impl<N: Deref<Target = dyn RemoteAccess>> Networks<N> {
    /// Whether there is none: all memory is mapped.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The network for `rank`; there is one.
    #[inline(always)]
    pub(crate) fn to(&self, rank: usize) -> &dyn RemoteAccess {
        match &*self.list {
            [only] => &**only,
            list => &*list[self.routes.network(rank)],
        }
    }

    /// The clock of a job in virtual time.
    #[inline]
    pub(crate) fn pace(&self) -> Option<&dyn Pace> {
        self.pace.as_ref().map(|pace| &**pace as &dyn Pace)
    }

    /// Wakes all ranks after a change in the roster.
    pub(crate) fn notify_all(&self) {
        // In real time the roster wakes them itself.
        if let Some(pace) = self.pace() {
            self.routes.peers().for_each(|rank| pace.notify(rank));
        }
    }

    /// Makes progress. Returns how much was done, and whether [`Networks::arrival`] or [`Networks::take_lost`] has something.
    pub(crate) fn progress(&self) -> (usize, bool) {
        let add = |(done, news): (usize, bool), network: &N| {
            let (more, has_news) = network.progress();
            (done + more, news | has_news)
        };
        self.list.iter().fold((0, false), add)
    }

    /// The next message that came, and the network that brought it.
    pub(crate) fn arrival(&self) -> Option<(&dyn RemoteAccess, Arrival)> {
        self.list.iter().find_map(|network| Some((&**network as &dyn RemoteAccess, network.arrival()?)))
    }

    /// Ranks that can no longer be reached over the network of their route, found since the last call.
    pub(crate) fn take_lost(&self) -> Vec<usize> {
        let several = self.list.len() > 1;
        let lost_to = |(number, network): (usize, &N)| {
            let mut lost = network.take_lost();
            lost.retain(|rank| !several || self.routes.network(*rank) == number);
            lost
        };
        self.list.iter().enumerate().flat_map(lost_to).collect()
    }

    /// Orders puts: those made so far take effect at each rank before later ones.
    pub(crate) fn order(&self) -> Result<()> {
        self.list.iter().try_for_each(|network| network.order())
    }

    /// Whether all gets and atomics are answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.list.iter().all(|network| network.is_answered())
    }

    /// Whether all puts and rings are in effect. An error names the rank where they never will be.
    pub(crate) fn flush(&self) -> std::result::Result<bool, (usize, transport::Error)> {
        self.list.iter().try_fold(true, |all, network| Ok(network.flush()? && all))
    }

    /// Whether some network puts and rings without an event at the target's interface, so that a sleeping target has to be
    /// woken. Not in virtual time: the simulator sees every event.
    pub(crate) fn is_silent(&self) -> bool {
        self.pace.is_none() && self.list.iter().any(|network| network.is_silent())
    }

    /// As [`Networks::is_silent`], of the network for `rank`.
    pub(crate) fn is_silent_to(&self, rank: usize) -> bool {
        self.pace.is_none() && self.to(rank).is_silent()
    }

    /// Whether every network does puts, gets and atomics on this rank's memory while this rank makes no progress.
    pub(crate) fn all_reach_idle(&self) -> bool {
        self.list.iter().all(|network| network.changes_idle())
    }

    /// Whether a device does atomics; else the processor of the target does all of them.
    pub(crate) fn change_by_device(&self) -> bool {
        self.list.iter().any(|network| network.changes_by_device())
    }

    /// Whether there are networks, and each does atomics on segments.
    pub(crate) fn change_segments(&self) -> bool {
        !self.is_empty() && self.list.iter().all(|network| network.changes_segments())
    }

    /// Whether the network for `rank` does puts and gets while the target does nothing.
    pub(crate) fn reach_idle(&self, rank: usize) -> bool {
        !self.is_empty() && self.to(rank).reaches_idle()
    }

    /// Whether atomics on segments of `rank` are the network's; else they are its processor's.
    pub(crate) fn change_segments_of(&self, rank: usize) -> bool {
        !self.is_empty() && self.to(rank).changes_segments()
    }

    /// Most bytes of a message to any rank, header included.
    pub(crate) fn largest_message(&self) -> usize {
        self.list.iter().map(|network| network.largest_message()).min().unwrap_or(usize::MAX)
    }

    /// Checks that a message of `asked` bytes, header included, has at most `limit`: that of the networks, or less, if it also has to fit into
    /// message memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn check_fits(&self, asked: usize, limit: usize) -> Result<(), Error> {
        if asked <= limit {
            return Ok(());
        }
        let setting = match limit < self.largest_message() {
            true => "BELLWETHER_MESSAGE_MEMORY",
            false => "the network's largest message, or send less at a time",
        };
        Err(Error::OutOfMemory {
            what: "message memory",
            asked,
            free: limit,
            limit,
            setting,
            place: CalledAt::default(),
        })
    }

    /// Most bytes of one get from any rank.
    pub(crate) fn largest_get(&self) -> usize {
        self.list.iter().map(|network| network.largest_get()).min().unwrap_or(usize::MAX)
    }

    /// Arms `events`, which end [`Networks::sleep`]. `false`: one has come already.
    pub(crate) fn arm(&self, events: Events) -> bool {
        self.list.iter().all(|network| network.arm(events))
    }

    /// Whether each of them also announces room for what it has refused.
    pub(crate) fn announce_room(&self) -> bool {
        self.list.iter().all(|network| network.announces_room())
    }

    /// The descriptors of those that have one.
    pub(crate) fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.list.iter().filter_map(|network| network.event())
    }

    /// The longest sleep, if something may come that is not announced.
    pub(crate) fn longest_sleep(&self) -> Option<Duration> {
        self.list.iter().filter_map(|network| network.longest_sleep()).min()
    }

    /// Sleeps until something arrives, for at most `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        let limit = self.longest_sleep().map_or(limit, |longest| longest.min(limit));
        match self.list.iter().map(|network| network.event()).collect::<Option<Vec<_>>>() {
            Some(events) => _ = sleep::until_readable(&events, limit),
            None => sleep::nap(limit),
        }
    }

    /// Their names, for people.
    pub(crate) fn names(&self) -> String {
        self.list.iter().map(|network| network.name()).collect::<Vec<_>>().join(" and ")
    }

    /// How data on each is protected, as text for users.
    pub(crate) fn protections(&self) -> String {
        let each = self.list.iter().map(|network| format!("{}: {}", network.name(), network.protection()));
        each.collect::<Vec<_>>().join("; ")
    }
}

/// A short time in which the networks make progress, and no message is delivered.
pub(super) struct BriefWait<'a> {
    networks: &'a Networks,
    start: Instant,
    end: Duration,
}

impl<'a> BriefWait<'a> {
    pub(super) fn new(networks: &'a Networks) -> BriefWait<'a> {
        let mut brief = BriefWait { networks, start: Instant::now(), end: Duration::ZERO };
        brief.end = brief.now() + BRIEF;
        brief
    }

    fn now(&self) -> Duration {
        self.networks.pace().map_or_else(|| self.start.elapsed(), Pace::now)
    }

    /// Makes progress, or lets others run. Returns whether there was time for that.
    pub(super) fn goes_on(&self) -> bool {
        if self.now() >= self.end {
            return false;
        }
        if self.networks.progress().0 == 0 {
            match self.networks.pace() {
                Some(pace) => drop(pace.block(Some(self.end))),
                None => rustix::thread::sched_yield(),
            }
        }
        true
    }
}
