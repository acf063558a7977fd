//! The settings of a rank, from its environment or from the program.

mod collectives;
mod sizes;
mod table;

pub use self::collectives::{
    Allgather, Allreduce, Alltoall, Broadcast, Collectives, Gather, Reduce, Scan, Scatter, TeamBarrier,
};
pub use self::table::{KNOWN, Known, Values};
use self::table::{LAUNCHED, OF_A_RANK};
use crate::error::{Error, Result};

/// The settings that `BELLWETHER_*` variables or the program can change.
///
/// `Settings::default()` is right for almost every program; a rank reads its environment with
/// [`Settings::from_env`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Most bytes the symmetric heap of one rank may grow to. `None`: what the reserved address space holds.
    pub heap_limit: Option<usize>,
    /// Most bytes of larger messages one rank may have in flight.
    pub message_memory: usize,
    /// Bytes of buffers that aggregated access uses at each rank, unless it is told otherwise.
    pub aggregation_memory: usize,
    /// Whether huge pages are tried for segments.
    pub huge_pages: HugePages,
    /// Whether memory outside segments is reached by cross-memory attach.
    pub cross_memory_attach: bool,
    /// Whether the executable's static data is symmetric memory.
    pub static_data: bool,
    /// Slots of a message lane; `None`: by the number of ranks.
    pub lane_depth: Option<usize>,
    /// Rounds of polling before a waiting rank gives up its core; `None`: by ranks and cores.
    pub spin: Option<u32>,
    /// Which barrier.
    pub barrier: Barrier,
    /// How ranks reach each other's memory.
    pub transport: Transport,
    /// Which RDMA device, as `DEVICE[:PORT[:GID-INDEX]]`; `None`: the active port whose address
    /// reaches farthest (Ethernet: IPv4), then one near this process's cores, then the fastest.
    pub verbs_device: Option<String>,
    /// Which network interface TCP uses; `None`: all that are up, the fastest first.
    pub tcp_interface: Option<String>,
    /// How long a rank on a host that answers may be stopped before its peers over TCP lose it.
    pub tcp_stopped: std::time::Duration,
    /// Whether data between hosts is encrypted. RDMA cannot do that, so TCP is used.
    pub encrypt: bool,
    /// Teams one rank may be a member of at a time, that of all ranks included; at most [`TEAMS_MAX`].
    pub teams: usize,
    /// Bytes of workspace that a rank keeps for each of them, but for that of all ranks.
    pub team_memory: usize,
    /// Bytes of workspace for the team of all ranks.
    pub world_team_memory: usize,
    /// The algorithms of collectives over teams.
    pub collectives: Collectives,
    /// The name of this host; `None`: the kernel's name for it. Ranks of hosts with different names share no memory.
    pub host: Option<String>,
    /// How to join the ranks that mpirun or srun started.
    pub join: Join,
    /// How long a rank of those waits for the others, without MPI. More than 10⁹ seconds are taken as that.
    pub join_limit: std::time::Duration,
    /// Whether ranks go on after the death of another, by [`World::survivors`](crate::World::survivors): a launcher of ours then ends
    /// no other rank, and each rank keeps a workspace for the teams of survivors from the start.
    pub survive: bool,
    /// Whether [`World::serve_while`](crate::World::serve_while) makes progress meanwhile.
    pub progress_thread: ProgressThread,
    /// When a job of `BELLWETHER_RANKS` is ended, with a word of where each rank waits.
    pub deadline: Option<std::time::Duration>,
}

/// Most teams a rank may be a member of at a time.
pub const TEAMS_MAX: usize = 64;
/// Least workspace of a team.
const TEAM_MEMORY_MIN: usize = 4 << 10;
/// Most workspace of a team.
const TEAM_MEMORY_MAX: usize = 1 << 30;

/// Whether huge pages are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// Reserved pages if there are any, else transparent ones if the kernel gives them, else small pages.
    Auto,
    /// Small pages only.
    Off,
}

/// How to join the ranks that a launcher started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// By MPI in builds with the feature `mpi`, else by the launcher's exchange that the environment names.
    Auto,
    /// By MPI.
    Mpi,
    /// By PMI-1, as MPICH's mpiexec serves it.
    Pmi1,
    /// By PMI-2, as `srun --mpi=pmi2` serves it.
    Pmi2,
    /// By PMIx, as Open MPI's mpirun and `srun --mpi=pmix` serve it.
    Pmix,
}

impl Join {
    /// As one would write it.
    pub fn name(self) -> &'static str {
        match self {
            Join::Auto => "auto",
            Join::Mpi => "mpi",
            Join::Pmi1 => "pmi1",
            Join::Pmi2 => "pmi2",
            Join::Pmix => "pmix",
        }
    }
}

/// The barrier's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// Direct or dissemination, by the number of ranks, while every rank has a core; central otherwise.
    Auto,
    /// Every rank tells every other one. Up to 8 ranks; else as dissemination.
    Direct,
    /// Dissemination barrier (Hensgen, Finkel, Manber 1988): ⌈log2 n⌉ rounds, no shared counter.
    Dissemination,
    /// Central counter with one wake-up for all.
    Central,
}

/// Whether a rank that computes in [`World::serve_while`](crate::World::serve_while) makes progress meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressThread {
    /// Where puts, gets or atomics of other ranks need progress of this one: on a network that cannot do them, and on one node while this
    /// rank has a segment outside the memory of the job, for atomics there. Not for accesses that may go by message, which
    /// [`World::serve_while`](crate::World::serve_while) names.
    Auto,
    /// Always: handlers of messages and remote calls run meanwhile, everywhere.
    On,
    /// Never: the work runs as if it were called directly.
    Off,
}

impl ProgressThread {
    /// As one would write it.
    pub fn name(self) -> &'static str {
        match self {
            ProgressThread::Auto => "auto",
            ProgressThread::On => "on",
            ProgressThread::Off => "off",
        }
    }
}

/// How ranks reach each other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Chosen automatically: ranks of one node map each other's memory, and a put is a store; those of others are reached
    /// by RDMA, or by TCP where there is no RDMA device.
    Auto,
    /// Shared memory as if it were a network: every call passes through the transport contract. For tests, and to see
    /// what that costs.
    ShmContract,
    /// RDMA through libibverbs, also between ranks of one node.
    Verbs,
    /// TCP, also between ranks of one node.
    Tcp,
}

impl Transport {
    /// As one would write it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::ShmContract => "shm-contract",
            Transport::Verbs => "verbs",
            Transport::Tcp => "tcp",
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            heap_limit: None,
            message_memory: 256 << 20,
            aggregation_memory: 16 << 20,
            huge_pages: HugePages::Auto,
            cross_memory_attach: true,
            static_data: false,
            lane_depth: None,
            spin: None,
            barrier: Barrier::Auto,
            transport: Transport::Auto,
            verbs_device: None,
            tcp_interface: None,
            tcp_stopped: std::time::Duration::from_secs(3600),
            encrypt: false,
            teams: 32,
            team_memory: 256 << 10,
            world_team_memory: 2 << 20,
            collectives: Collectives::default(),
            host: None,
            join: Join::Auto,
            join_limit: std::time::Duration::from_secs(300),
            survive: false,
            progress_thread: ProgressThread::Auto,
            deadline: None,
        }
    }
}

impl Settings {
    /// The defaults, changed by the `BELLWETHER_*` variables that are set.
    ///
    /// # Errors
    /// [`Error::Setting`] names a variable whose value has no meaning here, and says what is expected.
    pub fn from_env() -> Result<Settings> {
        let mut settings = Settings::default();
        for known in KNOWN {
            let Some(value) = std::env::var_os(known.name) else { continue };
            let value = value.to_string_lossy();
            if (known.apply)(&mut settings, &value).is_none() {
                let expected = known.values.to_string();
                return Err(Error::Setting { name: known.name, value: value.into_owned(), expected });
            }
        }
        Ok(settings)
    }

    /// The defaults, changed only by the variables about how to join other ranks, if they can be read: for a rank that joins the
    /// others only to tell them why it has no settings.
    pub(crate) fn joining_from_env() -> Settings {
        let mut settings = Settings::default();
        for name in ["BELLWETHER_JOIN", "BELLWETHER_JOIN_LIMIT"] {
            if let (Some(known), Ok(value)) = (known(name), std::env::var(name)) {
                let _ = (known.apply)(&mut settings, &value);
            }
        }
        settings
    }

    /// Variables that look like ours but are not, each with the nearest name that is; and what a launcher tells its ranks,
    /// where there is none.
    pub fn unknown_in_env() -> Vec<(String, &'static str)> {
        // On several hosts the launcher tells a rank its place a second time, as PMI does.
        let is_one =
            |own: &str, of_pmi: &str| std::env::var_os(own).is_some_and(|own| std::env::var_os(of_pmi) == Some(own));
        let by_pmi = is_one(OF_A_RANK[0], "PMI_SIZE") && is_one(OF_A_RANK[1], "PMI_RANK");
        let launched = by_pmi || std::env::var_os(LAUNCHED).is_some();
        let near = |name: String| match known(&name) {
            Some(_) if OF_A_RANK.contains(&name.as_str()) && !launched => Some((name, "BELLWETHER_RANKS")),
            Some(_) => None,
            None => nearest(&name).map(|near| (name, near)),
        };
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(|name| name.starts_with("BELLWETHER_")).filter_map(near).collect()
    }
}

/// The warning, if there is one, where `asked` is the value of `BELLWETHER_RANKS`, and a world starts on the `ranks` ranks of a communicator.
#[cfg(any(feature = "mpi", test))]
pub(crate) fn ignored_ranks(asked: Option<&str>, ranks: usize) -> Option<String> {
    let asked = asked.filter(|asked| asked.trim().parse() != Ok(ranks))?;
    let plural = if ranks == 1 { "" } else { "s" };
    Some(format!(
        "BELLWETHER_RANKS={asked} has no effect here: this world has the {ranks} rank{plural} of the MPI communicator that the \
         program gave; their number is that of `mpirun -n` or `srun -n`"
    ))
}

fn known(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

fn nearest(name: &str) -> Option<&'static str> {
    let public = KNOWN.iter().filter(|known| known.public);
    public.min_by_key(|known| edit_distance(name, known.name)).map(|known| known.name)
}

/// Levenshtein distance, two rows at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_told_its_neighbour() {
        assert_eq!(nearest("BELLWETHER_HEAPLIMIT"), Some("BELLWETHER_HEAP_LIMIT"));
        assert_eq!(nearest("BELLWETHER_RANK"), Some("BELLWETHER_RANKS"));
    }

    #[test]
    fn a_limit_that_no_clock_can_hold_is_refused() {
        let limit = known("BELLWETHER_JOIN_LIMIT").expect("a setting");
        let mut settings = Settings::default();
        for name in ["BELLWETHER_JOIN_LIMIT", "BELLWETHER_TCP_STOPPED", "BELLWETHER_DEADLINE"] {
            let limit = known(name).expect("a setting");
            for wrong in ["1e30", "1e19", "1.1e9", "inf", "NaN", "0", "1e-30", "-1", "long"] {
                assert!((limit.apply)(&mut settings, wrong).is_none(), "{name}={wrong}");
            }
            assert!(limit.values.to_string().contains("above 0 and up to 1e9"), "{name}");
        }
        assert_eq!(settings, Settings::default());
        for (right, seconds) in [("1e9", 1_000_000_000), ("2", 2)] {
            assert!((limit.apply)(&mut settings, right).is_some(), "{right}");
            assert_eq!(settings.join_limit.as_secs(), seconds);
        }
    }

    #[test]
    fn ranks_that_a_communicator_does_not_have_are_warned_of() {
        assert_eq!(ignored_ranks(None, 2), None);
        assert_eq!(ignored_ranks(Some(" 2 "), 2), None);
        let alone = ignored_ranks(Some("4"), 1).expect("a warning");
        assert!(alone.contains("BELLWETHER_RANKS=4") && alone.contains("the 1 rank of"), "{alone}");
        let odd = ignored_ranks(Some("many"), 3).expect("a warning");
        assert!(odd.contains("BELLWETHER_RANKS=many") && odd.contains("the 3 ranks of"), "{odd}");
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
