//! Going on after a death: the ranks that live agree on who is gone, and make a team without them.

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

/// What a rank knows of agreements, as [`World::set_state`] keeps it.
struct Survival {
    agreement: RefCell<Agreement>,
    /// [`JobMemory::ends`](crate::membership::JobMemory::ends) when the roster was read last.
    seen: Cell<u64>,
}

impl Survival {
    /// Tells the agreement who is gone, and sends what it says.
    fn advance(&self, engine: &Engine) {
        engine.enter_losses();
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
            engine.send_unasked(to as usize, id::AGREEMENT, 0, &word.encode());
        }
    }

    fn hear(&self, engine: &Engine, from: usize, bytes: &[u8]) {
        match bytes.split_at_checked(8).and_then(|(_, bytes)| Word::decode(bytes, engine.size)) {
            Some(word) => self.agreement.borrow_mut().hear(from, word),
            None => engine.set_fault(Error::BadMessage { from, why: "it is no message of an agreement".into() }),
        }
        self.send(engine);
    }
}

/// # Going on after a death
///
/// A program that may go on is started with [`Builder::survive`](crate::Builder::survive), `BELLWETHER_SURVIVE=on` or
/// `bellwether run --survive`. When a rank has died, calls fail with [`Error::PeerLost`] as ever. The ranks that live then call
/// [`World::survivors`]. What holds before and after that call:
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
/// | `World::finish` | waits for the ranks that live, and for no rank that dies meanwhile | the same |
///
/// The memory of ranks that live stays as it is: symmetric memory, bells and segments that were allocated before are used as before.
///
/// A rank that dies before the world has started on all ranks ends the job: there is no world to go on in. On several hosts the connection
/// of a host to the others is held by its first rank, and that of all hosts by the first host: a host is lost with its first rank, and the
/// job with the first rank of the first host.
impl World {
    /// Waits until every rank that lives has called this, agrees with them on which ranks are gone, and gives the team of the others, in
    /// their order: the same at all of them. No wait of this rank ends any more because of a rank that is gone by that agreement.
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
    /// and with another one if this rank is cut off from as many ranks as are left with it, or more; [`Error::InsideHandler`]; [`Error::Standstill`].
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
        self.engine.at(|| self.survive(flags))
    }

    /// The ranks that this one goes on without, in ascending order: those that are gone by the last [`World::survivors`]. Local.
    pub fn gone(&self) -> Vec<usize> {
        (0..self.size()).filter(|rank| self.engine.first_accepted([*rank]).is_some()).collect()
    }

    /// At the end of the start: takes what the agreement and its teams need. Collective.
    pub(super) fn prepare_to_survive(&self) -> Result<()> {
        if !self.engine.settings.survive {
            return Ok(());
        }
        let agreement = RefCell::new(Agreement::new(self.rank(), self.size()));
        self.set_state(Survival { agreement, seen: Cell::new(0) });
        let survival = self.state::<Survival>().expect("just set");
        let engine = Rc::downgrade(&self.engine);
        // Before the collective call below: no rank leaves that before all have entered it.
        self.messages.set_handler(id::AGREEMENT, move |_, message| {
            if let Some(engine) = engine.upgrade() {
                survival.hear(&engine, message.from, message.data());
            }
        });
        let running = self.begin("starting")?;
        self.make_everyone(&running)?;
        // Not before: a rank that dies while others start ends the job.
        self.engine.job.set_survives();
        Ok(())
    }

    fn survive(&self, flags: u64) -> Result<(Team, u64)> {
        let (Some(survival), Some(everyone)) = (self.state::<Survival>(), self.state::<Everyone>()) else {
            let why = "this world was not started to go on after a death: `Builder::survive`, BELLWETHER_SURVIVE=on or `bellwether run \
                       --survive`";
            return Err(Error::InvalidArgument { operation: DOING, why: why.into() });
        };
        let engine = &self.engine;
        let _running = engine.begin_collective(DOING)?;
        let _ignoring = engine.ignore_losses();
        let is_lost = || engine.job.loss(engine.rank).is_some();
        // The puts and signals of this rank must be in effect before other ranks reuse a slot of the workspace.
        engine.wait_together(DOING, || {
            engine.enter_losses();
            is_lost() || engine.is_quiet_but_for_lost()
        })?;
        let number = survival.agreement.borrow().number() + 1;
        let prepared = everyone.own.prepare_survivors(number);
        debug_assert!(prepared, "there are such slots where the settings say so");
        survival.agreement.borrow_mut().enter(flags);
        let decision = || survival.agreement.borrow().decision(number).cloned();
        engine.wait_together(DOING, || {
            survival.advance(engine);
            is_lost() || decision().is_some()
        })?;
        // Other ranks wait for messages that found no room.
        engine.wait_together(DOING, || is_lost() || !engine.has_pending())?;
        let own = engine.rank;
        let lost = |rank, cause| Err(Error::PeerLost { rank, cause, doing: DOING.into() });
        let decided = decision().filter(|decision| !decision.gone.contains(&(own as u32)));
        let Some(Decision { gone, flags }) = decided.filter(|_| !is_lost()) else {
            return lost(own, engine.job.loss(own).unwrap_or(Loss::Disconnected));
        };
        let is_gone = |rank: &u32| gone.binary_search(rank).is_ok();
        let members: Vec<u32> = (0..engine.size as u32).filter(|rank| !is_gone(rank)).collect();
        for rank in gone.iter().map(|rank| *rank as usize) {
            // Another host may know it first.
            engine.job.mark_lost(rank, Loss::Unknown);
        }
        // Of two parts of a job that have lost each other at most one goes on.
        let is_cut = |rank: &&u32| engine.job.loss(**rank as usize) == Some(Loss::Disconnected);
        let cut: Vec<&u32> = gone.iter().filter(is_cut).collect();
        if let Some(first) = cut.first()
            && (members.len(), *first) <= (cut.len(), &members[0])
        {
            return lost(**first as usize, Loss::Disconnected);
        }
        gone.iter().for_each(|rank| engine.accept_loss(*rank as usize));
        let place = members.iter().position(|rank| *rank as usize == own).expect("this rank is not gone");
        Ok((everyone.own.make_survivors(number, members.into(), place), flags))
    }

    /// [`World::finish`] in a world that survives: waits for those that live until what they sent each other has arrived.
    pub(super) fn finish_surviving(&self) -> Result<()> {
        self.engine.job.begin_to_leave(self.engine.rank);
        loop {
            match self.settle_surviving() {
                // A rank has died or left since the last agreement.
                Err(Error::PeerLost { rank, .. }) if rank != self.engine.rank => {}
                outcome => return outcome.and_then(|()| self.engine.take_fault()),
            }
        }
    }

    fn settle_surviving(&self) -> Result<()> {
        const LEAVING: &str = "leaving";
        let (team, _) = self.survive(u64::MAX)?;
        // Messages from and to dead ranks keep the two sums apart. All other messages have arrived when no rank has any in flight and no
        // count has changed from one round to the next: each rank polls after it has finished the round before.
        let mut before = None;
        loop {
            self.engine.quiet_contexts(LEAVING)?;
            self.engine.wait_together(LEAVING, || {
                self.engine.is_quiet_but_for_lost() && self.messages.has_no_landings() && self.messages.is_settled()
            })?;
            self.engine.turn();
            let mut sums = self.messages.traffic();
            team.allreduce(&mut sums, Sum)?;
            if before.replace(sums) == Some(sums) {
                return Ok(());
            }
            self.engine.idle_poll();
        }
    }
}
