//! Going on after a death: the ranks that live agree on which ranks are gone, and make a team without those.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::World;
use super::team::Everyone;
use crate::engine::Engine;
use crate::error::{Error, Loss, Result};
use crate::membership::agreement::{Agreement, Decision, Word};
use crate::message::id;
use crate::team::{Sum, Team};

const DOING: &str = "survivors";
const LEAVING: &str = "leaving";

/// The header of an agreement's message, and of a message that marks the end of its sender's earlier messages.
const WORD: u64 = 0;
const MARK: u64 = 1;

/// A round of the settling before ranks leave: the number of the agreement, and of the round. Later ones are larger.
type Round = [u64; 2];

/// A rank's state of agreements, as [`World::set_state`] keeps it.
struct Survival {
    agreement: RefCell<Agreement>,
    /// The last agreement whose decision a call has returned. A later one that this rank has entered is open: the call has failed.
    returned: Cell<u64>,
    /// [`JobMemory::ends`](crate::membership::JobMemory::ends) when the roster was read last.
    seen: Cell<u64>,
    /// Why a message of the agreement could not be sent.
    unsent: RefCell<Option<Error>>,
    /// The last round that each rank has marked.
    marked: RefCell<Vec<Round>>,
    /// Marks that this rank has sent, and received.
    marks: Cell<[u64; 2]>,
}

impl Survival {
    fn new(rank: usize, size: usize) -> Survival {
        Survival {
            agreement: RefCell::new(Agreement::new(rank, size)),
            returned: Cell::new(0),
            seen: Cell::new(0),
            unsent: RefCell::default(),
            marked: RefCell::new(vec![[0; 2]; size]),
            marks: Cell::default(),
        }
    }

    /// Tells the agreement which ranks are gone, and sends its messages.
    fn advance(&self, engine: &Engine) {
        engine.failures.enter(&engine.networks);
        let ends = engine.job.ends();
        if self.seen.replace(ends) != ends {
            let gone = (0..engine.size).filter(|rank| engine.job.loss(*rank).is_some());
            gone.for_each(|rank| self.agreement.borrow_mut().lose(rank));
        }
        self.send(engine);
    }

    fn send(&self, engine: &Engine) {
        let out = self.agreement.borrow_mut().take_out();
        for (to, word) in out {
            if let Err(error) = engine.try_send_unasked(to as usize, id::AGREEMENT, WORD, &word.encode()) {
                self.unsent.borrow_mut().get_or_insert(error);
                self.agreement.borrow_mut().send_again(to, word);
            }
        }
    }

    /// The header and the payload of a message.
    fn receive(&self, engine: &Engine, from: usize, bytes: &[u8]) {
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>();
        match words[..] {
            [MARK, number, round] => {
                self.marked.borrow_mut()[from] = [number, round];
                let [sent, received] = self.marks.get();
                self.marks.set([sent, received + 1]);
            }
            [WORD, ..] if let Some(word) = Word::decode(&bytes[8..], engine.size) => {
                self.agreement.borrow_mut().receive(from, word);
                self.send(engine);
            }
            _ => engine.faults.keep(Error::BadMessage { from, why: "it is no message of an agreement".into() }),
        }
    }

    /// Tells `to` that all that this rank has sent there before has come when this does.
    fn mark(&self, engine: &Engine, to: usize, round: Round) -> Result<()> {
        let payload = round.map(u64::to_le_bytes).concat();
        engine.try_send_unasked(to, id::AGREEMENT, MARK, &payload)?;
        let [sent, received] = self.marks.get();
        self.marks.set([sent + 1, received]);
        Ok(())
    }
}

/// Whether `ranks`, in ascending order, has this one.
fn has(ranks: &[u32], rank: usize) -> bool {
    ranks.binary_search(&(rank as u32)).is_ok()
}

/// # Going on after a death
///
/// A program that may go on is started with [`Builder::survive`](crate::Builder::survive), `BELLWETHER_SURVIVE=on` or
/// `bellwether run --survive`. When a rank has died, calls fail with [`Error::PeerLost`] as ever. The ranks that live then call
/// [`World::survivors`]. The rules before and after that call:
///
/// | call | after a death, before `survivors` | after `survivors` |
/// | --- | --- | --- |
/// | put, get, atomic, bell, message, call, segment: of a rank that lives | works, unless it has to wait; then it may be `PeerLost`, and is not repeated by itself | works |
/// | the same, of a rank that is gone | `PeerLost`; in memory of this node a put, a get and a ring reach its memory, which nobody reads | the same |
/// | `poll`, `wait_until` and other waits | deliver what has come, then `PeerLost` | work; a wait for what only a rank that is gone could do does not end: give it a limit |
/// | collective calls of the world: `barrier`, `alloc`, `allreduce`, `Team::world` on its first call, ... | `PeerLost` | `PeerLost` |
/// | collective calls of a team with a member that is gone | `PeerLost` | `PeerLost` |
/// | collective calls of a team whose members all live | `PeerLost`, and the team is not used again | work, if none has failed before |
/// | collective calls of the team that `survivors` gives, and of its parts | - | work |
/// | `World::finish` | waits until all ranks that live call it, and for no rank that dies meanwhile | the same |
///
/// The memory of ranks that live stays as it is: symmetric memory, bells and segments that were allocated before are used as before.
///
/// A rank in `finish` takes part in later agreements, serves its memory and delivers messages, but it is in no team of survivors. So a death
/// may come while some ranks are in `finish` and others are not: these go on without them, and all leave when these call `finish` too.
///
/// A rank that dies before the world has started on all ranks ends the job: there is no world to go on in. A job of several hosts cannot be
/// started so.
impl World {
    /// Waits until every rank that lives has called this or [`World::finish`], agrees with them on which ranks are gone, and gives the team
    /// of those that have called this, in their order: the same at all of them. No wait of this rank ends any more because of a rank that is gone by that agreement.
    /// Collective over the ranks that live. Delivers messages meanwhile.
    ///
    /// Ranks may die meanwhile, at any moment. One that dies late may be a member of the team: then the team's collectives fail with
    /// [`Error::PeerLost`], and this is called again. Without a death the team is that of all ranks. A later call ends the team of an earlier
    /// one, and the teams that were split from that are used on.
    ///
    /// Uniform consensus with a leader that changes when it dies (Guerraoui and Rodrigues; the semantics are those of `MPI_Comm_shrink` of
    /// ULFM, Bland et al. 2013). It takes about six messages a rank, and as many more for each leader that dies.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the world was not started to [survive](crate::Builder::survive), and inside a collective call;
    /// [`Error::PeerLost`] with this rank's own number if the others count it as gone, since they have lost their connections to it;
    /// [`Error::OutOfMemory`] if a message of the agreement has no room; those of puts and messages to ranks that live;
    /// [`Error::InsideHandler`]; [`Error::Standstill`]. After an error other than that of its own number a rank may call this again: it then
    /// ends the agreement that it has entered, with the flags that it gave there.
    ///
    /// # Examples
    /// ```
    /// # mod bellwether { pub use bellwether_runtime::*; }
    /// use bellwether::{Error, Sum, Threads};
    /// let sums = Threads::new(4).build(|builder| {
    ///     let world = builder.survive().start()?;
    ///     if world.rank() == 1 {
    ///         return Ok(0); // It leaves without a word.
    ///     }
    ///     let mut team = None;
    ///     loop {
    ///         let outcome = match &team {
    ///             None => world.barrier().map(|()| 0),
    ///             Some(team) => {
    ///                 let mut ranks = [1u64];
    ///                 bellwether::Team::allreduce(team, &mut ranks, Sum).map(|()| ranks[0])
    ///             }
    ///         };
    ///         match outcome {
    ///             Ok(ranks) => return world.finish().map(|()| ranks),
    ///             Err(Error::PeerLost { .. }) => team = Some(world.survivors()?),
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    /// })?;
    /// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [3, 0, 3, 3]);
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn survivors(&self) -> Result<Team> {
        self.agree_surviving(u64::MAX).map(|(team, _)| team)
    }

    /// As [`World::survivors`], and also gives the bits that all ranks set in `flags` which took part: whether a step has gone well
    /// everywhere, say. A collective call that was interrupted by a death may have ended well at some ranks and not at others.
    ///
    /// # Errors
    /// As [`World::survivors`].
    #[track_caller]
    pub fn agree_surviving(&self, flags: u64) -> Result<(Team, u64)> {
        self.engine.at(|| {
            self.engine.check_own(DOING)?;
            self.survive(flags)
        })
    }

    /// The ranks that this one goes on without, in ascending order: those that are gone by the last [`World::survivors`]. Local.
    pub fn gone(&self) -> Vec<usize> {
        (0..self.size()).filter(|rank| self.engine.failures.first_accepted([*rank]).is_some()).collect()
    }

    /// Ranks go on together only where all of them read one roster, which tells them the same of every rank.
    pub(super) fn check_survivable(survives: bool, here: usize, ranks: usize) -> Result<()> {
        if !survives || here == ranks {
            return Ok(());
        }
        let why = format!(
            "going on after a death needs all ranks of the job on one host, and {} of {ranks} ranks are on others; leave out \
             `Builder::survive`, BELLWETHER_SURVIVE and --survive",
            ranks - here
        );
        Err(Error::InvalidArgument { operation: "starting a job that survives", why })
    }

    /// At the end of the start: takes what the agreement and its teams need. Collective.
    pub(super) fn prepare_to_survive(&self) -> Result<()> {
        if !self.engine.settings.survive {
            return Ok(());
        }
        self.set_state(Survival::new(self.rank(), self.size()));
        let survival = self.state::<Survival>().expect("just set");
        let engine = Rc::downgrade(&self.engine);
        // Before the collective call below: no rank leaves that before all have entered it.
        self.messages.set_handler(id::AGREEMENT, move |_, message| {
            if let Some(engine) = engine.upgrade() {
                survival.receive(&engine, message.from, message.data());
            }
        });
        let running = self.begin("starting")?;
        self.make_everyone(&running)?;
        // Not before: a rank that dies while others start ends the job.
        self.engine.job.set_survives();
        Ok(())
    }

    fn survive(&self, flags: u64) -> Result<(Team, u64)> {
        loop {
            let (number, Decision { gone, leaving, flags }) = self.agree_on_living(flags, false)?;
            // Otherwise this was the open agreement of a `finish` that has failed.
            if !has(&leaving, self.rank()) {
                let stays = |rank: &usize| !has(&gone, *rank) && !has(&leaving, *rank);
                return Ok((self.team_of(number, stays), flags));
            }
        }
    }

    /// The team that agreement `number` has made. This rank is one of its members.
    fn team_of(&self, number: u64, is_member: impl Fn(&usize) -> bool) -> Team {
        let everyone = self.state::<Everyone>().expect("prepared to survive");
        let members: Vec<u32> = (0..self.size()).filter(is_member).map(|rank| rank as u32).collect();
        let place = members.iter().position(|rank| *rank as usize == self.rank()).expect("this rank is a member");
        everyone.own.make_survivors(number, members.into(), place)
    }

    /// Agrees with the ranks that live on which ranks are gone and which leave, and goes on without those that are gone. Returns the
    /// number of the agreement, and its decision. If the last call has failed, this one ends the agreement that the other has begun.
    fn agree_on_living(&self, flags: u64, leaves: bool) -> Result<(u64, Decision)> {
        let (Some(survival), Some(everyone)) = (self.state::<Survival>(), self.state::<Everyone>()) else {
            let why = "this world was not started to go on after a death: `Builder::survive`, BELLWETHER_SURVIVE=on or `bellwether run \
                       --survive`";
            return Err(Error::InvalidArgument { operation: DOING, why: why.into() });
        };
        let engine = &self.engine;
        let _running = engine.begin_collective(DOING)?;
        let _ignoring = engine.failures.ignore();
        let own = engine.rank;
        let is_lost = || engine.job.loss(own).is_some();
        let entered = survival.agreement.borrow().number();
        if entered == survival.returned.get() {
            // The puts and signals of this rank must be in effect before other ranks reuse a slot of the workspace.
            engine.quiet_but_for_lost(DOING, || true, is_lost)?;
            let prepared = everyone.own.prepare_survivors(entered + 1);
            debug_assert!(prepared, "there are such slots where the settings say so");
            survival.agreement.borrow_mut().enter(flags, leaves);
        }
        let number = survival.agreement.borrow().number();
        let decision = || survival.agreement.borrow().decision(number).cloned();
        engine.wait_together(DOING, || {
            survival.advance(engine);
            is_lost() || decision().is_some() || survival.unsent.borrow().is_some()
        })?;
        if let Some(error) = survival.unsent.take() {
            return Err(error);
        }
        // Other ranks wait for messages that found no room.
        engine.wait_together(DOING, || is_lost() || !engine.outbox.any())?;
        let Some(decision) = decision().filter(|decision| !is_lost() && !has(&decision.gone, own)) else {
            let cause = engine.job.loss(own).unwrap_or(Loss::Disconnected);
            return Err(Error::PeerLost { rank: own, cause, doing: DOING.into() });
        };
        decision.gone.iter().for_each(|rank| engine.failures.accept(*rank as usize, &engine.faults));
        survival.returned.set(number);
        Ok((number, decision))
    }

    /// [`World::finish`] in a world that survives: takes part in the agreements of the ranks that go on, until all live ranks leave, and
    /// then waits until all messages between these have arrived.
    pub(super) fn finish_surviving(&self) -> Result<()> {
        self.engine.job.begin_to_leave(self.engine.rank);
        loop {
            let (number, Decision { gone, leaving, .. }) = self.agree_on_living(u64::MAX, true)?;
            if (0..self.size()).any(|rank| !has(&gone, rank) && !has(&leaving, rank)) {
                continue;
            }
            let team = self.team_of(number, |rank| !has(&gone, *rank));
            match self.settle_surviving(number, &team, gone.is_empty()) {
                // A rank has died or left since that agreement.
                Err(Error::PeerLost { rank, .. }) if rank != self.engine.rank => {}
                outcome => return outcome.and_then(|()| self.engine.faults.take()),
            }
        }
    }

    /// Waits until all messages among the members of `team` have been delivered, also those that handlers send.
    fn settle_surviving(&self, number: u64, team: &Team, all_live: bool) -> Result<()> {
        let survival = self.state::<Survival>().expect("prepared to survive");
        let peers = || team.world_ranks().filter(|rank| *rank != self.rank());
        let mut before = None;
        for round in 1.. {
            self.engine.quiet_contexts(LEAVING)?;
            let is_settled = || self.messages.has_no_landings() && self.messages.is_settled();
            self.engine.quiet_but_for_lost(LEAVING, is_settled, || false)?;
            // In order behind all that this rank has sent: when the marks have come, so have the messages of the round before.
            peers().try_for_each(|rank| survival.mark(&self.engine, rank, [number, round]))?;
            self.engine.wait_together(LEAVING, || {
                let marked = survival.marked.borrow();
                !self.engine.outbox.any() && peers().all(|rank| marked[rank] >= [number, round])
            })?;
            let ([sent, delivered], marks) = (self.messages.traffic(), survival.marks.get());
            let mut sums = [sent.wrapping_sub(marks[0]), delivered.wrapping_sub(marks[1])];
            team.allreduce(&mut sums, Sum)?;
            // Without a death all that was sent is delivered. Messages from and to dead ranks keep the two sums apart: then no message
            // was sent since the marks of the round before.
            let is_same = before.replace(sums) == Some(sums);
            if is_same && (sums[0] == sums[1] || !all_live) {
                break;
            }
            self.engine.idle_poll();
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_several_hosts_cannot_survive() {
        assert!(World::check_survivable(true, 4, 4).is_ok());
        assert!(World::check_survivable(false, 2, 4).is_ok());
        let error = World::check_survivable(true, 3, 4).expect_err("a rank is on another host").to_string();
        assert!(error.contains("1 of 4 ranks are on others"), "{error}");
    }
}
