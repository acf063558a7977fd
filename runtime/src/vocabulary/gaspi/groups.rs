//! Groups and their collectives.

use super::codes;
use super::collective::{Differ, KINDS, Kind, Round};
use super::monitor::{Held, Partner};
use super::process::Process;
use super::reduce;
use super::state::{Arrivals, State, header, kind};
use super::types::{Code, Datatype, GROUP_ALL, GroupId, Operation, Rank, Result, Timeout};
use crate::hash::mix;
use crate::message::id;
use crate::world::World;

/// Begins the digest of a group's ranks.
const RANKS: u64 = 0x6772_6f75;

/// A group of this process.
pub(super) struct Group {
    /// In ascending order.
    pub(super) ranks: Vec<Rank>,
    /// The same at all members; there once `group_commit` was called.
    key: Option<u64>,
    pub(super) is_committed: bool,
    /// This process's place among the ranks.
    me: usize,
    /// Collectives of each kind that are done.
    done: [u64; KINDS],
    rounds: [Option<Round>; KINDS],
    /// A thread is in a collective of this kind.
    busy: [bool; KINDS],
}

impl Group {
    fn new() -> Group {
        let rounds = [const { None }; KINDS];
        Group {
            ranks: Vec::new(),
            key: None,
            is_committed: false,
            me: 0,
            done: [0; KINDS],
            rounds,
            busy: [false; KINDS],
        }
    }

    /// The group of all, whose start is the collective `round`.
    pub(super) fn starting(ranks: Vec<Rank>, me: usize, life: u64, round: Round) -> Group {
        let mut group = Group { ranks, key: Some(mix(RANKS, life)), is_committed: true, me, ..Group::new() };
        group.rounds[Kind::Commit as usize] = Some(round);
        group
    }

    /// The other members, which must live.
    fn others(&self) -> Vec<usize> {
        let me = self.ranks.get(self.me).copied();
        self.ranks.iter().filter(|rank| Some(**rank) != me).map(|rank| usize::from(*rank)).collect()
    }

    /// Goes on with a collective; its result when it is done.
    pub(super) fn advance(
        &mut self,
        kind: Kind,
        world: &World,
        arrivals: &Arrivals,
        combine: impl FnMut(&mut [u8], &[u8]) -> Result<(), Differ>,
    ) -> Option<Result<Vec<u8>, Differ>> {
        let round = self.rounds[kind as usize].as_mut()?;
        let send = |member: usize, name: super::collective::Name, value: &[u8]| {
            let words = [name.group, name.kind as u64, name.number, name.from];
            let payload = [words.map(u64::to_ne_bytes).as_flattened(), value].concat();
            let header = header(kind::COLLECTIVE, u8::from(name.is_up), arrivals.life.get());
            world.engine().send_unasked(self.ranks[member].into(), id::GASPI, header, &payload);
        };
        let outcome = round.advance(&mut arrivals.collectives.borrow_mut(), send, combine)?.map(<[u8]>::to_vec);
        self.rounds[kind as usize] = None;
        self.done[kind as usize] += 1;
        Some(outcome)
    }

    /// A member has left. A collective that waits for a message that this member has not sent has no result.
    pub(super) fn note_left(&mut self, kind: Kind, rank: usize) {
        let member = self.ranks.iter().position(|member| usize::from(*member) == rank);
        if let (Some(round), Some(member)) = (&mut self.rounds[kind as usize], member) {
            round.note_left(member);
        }
    }

    /// Begins a collective, unless one that ran into its time limit is to be resumed.
    fn begin(&mut self, kind: Kind, value: &[u8]) {
        let (key, number) = (self.key.unwrap_or(0), self.done[kind as usize]);
        let place = [self.me, self.ranks.len()];
        self.rounds[kind as usize].get_or_insert_with(|| Round::new(key, kind, number, place, value));
    }
}

impl State {
    /// # Errors
    /// [`codes::INV_GROUP`].
    fn group(&mut self, group: GroupId) -> Result<&mut Group> {
        self.groups.get_mut(&group).ok_or(Code(codes::INV_GROUP))
    }

    /// # Errors
    /// [`codes::INV_GROUP`].
    pub(super) fn committed(&mut self, group: GroupId) -> Result<&mut Group> {
        self.group(group).and_then(|group| if group.is_committed { Ok(group) } else { Err(Code(codes::INV_GROUP)) })
    }
}

/// A thread is in a collective, until this is dropped.
struct Busy<'a>(&'a Process, GroupId, Kind);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Ok(mut entered) = self.0.monitor.enter()
            && let Some(group) = entered.state.groups.get_mut(&self.1)
        {
            group.busy[self.2 as usize] = false;
        }
    }
}

impl Process {
    /// Makes an empty group. Local.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::MANY_GRP`].
    pub fn group_create(&self) -> Result<GroupId> {
        let Held { state, .. } = &mut *self.monitor.enter()?;
        state.check_works()?;
        let most = state.config.group_max as usize;
        let free = (0..=GroupId::MAX).take(most).find(|id| !state.groups.contains_key(id));
        let free = free.ok_or(Code(codes::MANY_GRP))?;
        state.groups.insert(free, Group::new());
        Ok(free)
    }

    /// Adds a rank to a group that is not committed. Local.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_GROUP`]; [`codes::INV_RANK`] for a rank that does not exist or is in the group.
    pub fn group_add(&self, group: GroupId, rank: Rank) -> Result<()> {
        let Held { state, world } = &mut *self.monitor.enter()?;
        state.check_works()?;
        let size = world.size();
        let group = state.group(group)?;
        if group.is_committed || group.key.is_some() {
            return Err(Code(codes::INV_GROUP));
        }
        match group.ranks.binary_search(&rank) {
            Err(place) if usize::from(rank) < size => {
                group.ranks.insert(place, rank);
                Ok(())
            }
            _ => Err(Code(codes::INV_RANK)),
        }
    }

    /// Makes a group ready for collectives, when all its ranks have called this for groups of the same ranks, in the same order.
    /// Collective over the members; resumable. Does nothing for a group that is committed. If members give different ranks, the call
    /// completes at no member.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_GROUP`] if this process is no member; [`codes::TIMEOUT`]; [`codes::ERROR`] if a member is lost.
    pub fn group_commit(&self, id: GroupId, timeout: Timeout) -> Result<()> {
        let mut entered = self.monitor.enter()?;
        let Held { state, world } = &mut *entered;
        state.check_works()?;
        let (own, life) = (world.rank() as Rank, state.arrivals.life.get());
        let group = state.group(id)?;
        if group.is_committed {
            return Ok(());
        }
        let me = group.ranks.binary_search(&own).map_err(|_| Code(codes::INV_GROUP))?;
        if group.key.is_none() {
            let digest = group.ranks.iter().fold(mix(RANKS, life), |digest, rank| mix(digest, u64::from(*rank) + 1));
            let commits = state.commits.entry(digest).or_default();
            *commits += 1;
            let key = mix(digest, *commits);
            let group = state.group(id)?;
            (group.key, group.me) = (Some(key), me);
        }
        drop(entered);
        self.collective(id, Kind::Commit, "group_commit", &[], timeout, |_, _| Ok(()))?;
        self.monitor.enter()?.state.group(id)?.is_committed = true;
        Ok(())
    }

    /// Ends a group of this process. Local.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_GROUP`], also for the group of all; [`codes::ACTIVE_COLL`] if a thread is in a collective of it.
    pub fn group_delete(&self, group: GroupId) -> Result<()> {
        let Held { state, .. } = &mut *self.monitor.enter()?;
        state.check_works()?;
        if group == GROUP_ALL {
            return Err(Code(codes::INV_GROUP));
        }
        if state.group(group)?.busy.contains(&true) {
            return Err(Code(codes::ACTIVE_COLL));
        }
        state.groups.remove(&group);
        Ok(())
    }

    /// How many groups there are.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn group_num(&self) -> Result<u32> {
        self.in_work(|state| state.groups.len() as u32)
    }

    /// The ranks of a group, in ascending order.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_GROUP`].
    pub fn group_ranks(&self, group: GroupId) -> Result<Vec<Rank>> {
        self.in_work(|state| state.groups.get(&group).map(|group| group.ranks.clone()))?.ok_or(Code(codes::INV_GROUP))
    }

    /// Waits until every member of a group has called this. Collective; resumable: after [`codes::TIMEOUT`] the next call goes on with the
    /// same barrier.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_GROUP`]; [`codes::ACTIVE_COLL`] if another thread is in a barrier of the group;
    /// [`codes::TIMEOUT`]; [`codes::ERROR`] if a member is lost.
    pub fn barrier(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        self.check_committed(group)?;
        self.collective(group, Kind::Barrier, "barrier", &[], timeout, |_, _| Ok(())).map(drop)
    }

    /// Combines elements of all members into the same result, with the same bits, at all. Collective; resumable. `send` is copied by the
    /// call that begins it.
    ///
    /// # Errors
    /// As [`Process::barrier`]; [`codes::INV_NUM`] for no elements, or more than the configuration has; [`codes::INV_SIZE`] if a buffer has other
    /// bytes; [`codes::ERROR`] at all members if they give other numbers of bytes.
    pub fn allreduce(
        &self,
        send: &[u8],
        receive: &mut [u8],
        operation: Operation,
        datatype: Datatype,
        group: GroupId,
        timeout: Timeout,
    ) -> Result<()> {
        let most = self.check_committed(group)?.allreduce_elem_max as usize;
        let number = send.len() / datatype.size();
        if number == 0 || number > most {
            return Err(Code(codes::INV_NUM));
        }
        if !send.len().is_multiple_of(datatype.size()) {
            return Err(Code(codes::INV_SIZE));
        }
        self.reduce(send, receive, group, timeout, |mine, theirs| {
            reduce::combine(operation, datatype, mine, theirs);
            Ok(())
        })
    }

    /// As [`Process::allreduce`], of elements of `size` bytes by a function: it makes its first argument the combination of both, and is
    /// associative and commutative. It runs inside the call, and may make no call of this process.
    ///
    /// # Errors
    /// As [`Process::allreduce`]; [`codes::INV_SIZE`] for more bytes than `allreduce_buf_size`; [`codes::ERROR`] at all members if the
    /// function fails at one.
    pub fn allreduce_user(
        &self,
        send: &[u8],
        receive: &mut [u8],
        size: usize,
        group: GroupId,
        timeout: Timeout,
        mut function: impl FnMut(&mut [u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let config = self.check_committed(group)?;
        if size == 0 || !send.len().is_multiple_of(size) || send.len() as u64 > config.allreduce_buf_size {
            return Err(Code(codes::INV_SIZE));
        }
        if send.is_empty() || send.len() / size > config.allreduce_elem_max as usize {
            return Err(Code(codes::INV_NUM));
        }
        self.reduce(send, receive, group, timeout, |mine, theirs| function(mine, theirs).map_err(|_| Differ))
    }

    fn reduce(
        &self,
        send: &[u8],
        receive: &mut [u8],
        group: GroupId,
        timeout: Timeout,
        combine: impl FnMut(&mut [u8], &[u8]) -> Result<(), Differ>,
    ) -> Result<()> {
        if send.len() != receive.len() {
            return Err(Code(codes::INV_SIZE));
        }
        let result = self.collective(group, Kind::Reduce, "allreduce", send, timeout, combine)?;
        match result.len() == receive.len() {
            true => receive.copy_from_slice(&result),
            // Resumed with another buffer than it was begun with.
            false => return Err(Code(codes::INV_SIZE)),
        }
        Ok(())
    }

    fn check_committed(&self, group: GroupId) -> Result<super::Config> {
        let Held { state, .. } = &mut *self.monitor.enter()?;
        state.check_works()?;
        let config = state.config;
        state.committed(group).map(|_| config)
    }

    /// Runs a collective of a group, or goes on with it.
    pub(super) fn collective(
        &self,
        id: GroupId,
        kind: Kind,
        doing: &'static str,
        value: &[u8],
        timeout: Timeout,
        mut combine: impl FnMut(&mut [u8], &[u8]) -> Result<(), Differ>,
    ) -> Result<Vec<u8>> {
        let (others, busy) = {
            let Held { state, .. } = &mut *self.monitor.enter()?;
            state.check_works()?;
            let group = state.group(id)?;
            if std::mem::replace(&mut group.busy[kind as usize], true) {
                return Err(Code(codes::ACTIVE_COLL));
            }
            group.begin(kind, value);
            (group.others(), Busy(self, id, kind))
        };
        let outcome = self.monitor.wait(doing, timeout, &Partner::Members(&others, id, kind), |world, state| {
            let State { groups, arrivals, .. } = state;
            let Some(group) = groups.get_mut(&id) else { return Some(Err(Code(codes::INV_GROUP))) };
            let outcome = group.advance(kind, world, arrivals, &mut combine)?;
            Some(outcome.map_err(|Differ| {
                // If it was because one has left, the state vector names it.
                state.lose(world, &Partner::Ranks(&others));
                Code(codes::ERROR)
            }))
        });
        drop(busy);
        outcome
    }
}
