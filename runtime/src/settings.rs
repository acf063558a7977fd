//! Every setting, in one table: name, meaning, default, and where its value came from.

mod collectives;

pub use self::collectives::{
    Allgather, Allreduce, Alltoall, Broadcast, Collectives, Gather, Reduce, Scan, Scatter, TeamBarrier,
};
use crate::error::{Error, Result};

/// What can be set through `BELLWETHER_*` variables or in code.
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
    /// Teams one rank may be a member of at a time, that of all ranks included; at most [`TEAMS_MAX`].
    pub teams: usize,
    /// Bytes of workspace that a rank keeps for each of them, but for that of all ranks.
    pub team_memory: usize,
    /// Bytes of workspace for the team of all ranks.
    pub world_team_memory: usize,
    /// The algorithms of collectives over teams.
    pub collectives: Collectives,
    /// What this host is called; `None`: what the kernel says. Ranks of hosts with different names share no memory.
    pub host: Option<String>,
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

/// The barrier's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// Dissemination while every rank has a core, central otherwise.
    Auto,
    /// Dissemination barrier (Hensgen, Finkel, Manber 1988): ⌈log2 n⌉ rounds, no shared counter.
    Dissemination,
    /// Central counter with one wake-up for all.
    Central,
}

/// How ranks reach each other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// What suits: ranks of one node map each other's memory, and a put is a store; those of others are reached by RDMA.
    Auto,
    /// Shared memory as if it were a network: every call passes through the transport contract. For tests, and to see
    /// what that costs.
    ShmContract,
    /// RDMA through libibverbs, also between ranks of one node.
    Verbs,
}

impl Transport {
    /// As one would write it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::ShmContract => "shm-contract",
            Transport::Verbs => "verbs",
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
            lane_depth: None,
            spin: None,
            barrier: Barrier::Auto,
            transport: Transport::Auto,
            verbs_device: None,
            teams: 32,
            team_memory: 256 << 10,
            world_team_memory: 2 << 20,
            collectives: Collectives::default(),
            host: None,
            deadline: None,
        }
    }
}

/// One row of the table of settings.
pub struct Known {
    /// The environment variable.
    pub name: &'static str,
    /// What it sets, with its unit.
    pub meaning: &'static str,
    /// The default, as one would write it.
    pub default: &'static str,
    /// Whether users set it; the rest pass facts from a parent to its ranks.
    pub public: bool,
    apply: fn(&mut Settings, &str) -> Option<()>,
    expected: &'static str,
    show: fn(&Settings) -> String,
}

impl Known {
    /// Where the value comes from: the environment, or what was decided here.
    pub fn origin(&self) -> &'static str {
        match (std::env::var_os(self.name).is_some(), self.default) {
            (true, _) => "environment",
            (false, "auto") => "automatic",
            (false, _) => "default",
        }
    }

    /// The value in `settings`, as one would write it.
    pub fn value(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }
}

const SIZE: &str = "expected a size such as 512MiB or 2GiB";
const SWITCH: &str = "expected on or off";
const COUNT: &str = "expected a whole number";

fn auto<T: ToString>(value: Option<T>) -> String {
    value.map_or("auto".into(), |v| v.to_string())
}

fn on_off(value: bool) -> String {
    if value { "on".into() } else { "off".into() }
}

/// The variable of a collective's algorithm.
macro_rules! algorithm {
    ($name:literal, $collective:ident: $kind:ident, $names:literal) => {
        Known {
            name: $name,
            meaning: concat!("a team's ", stringify!($collective), " algorithm: ", $names),
            default: "auto",
            public: true,
            apply: |s, v| {
                s.collectives.$collective = $kind::parse(v)?;
                Some(())
            },
            expected: concat!("expected one of ", $names),
            show: |s| s.collectives.$collective.name().into(),
        }
    };
}

/// Every variable that Bellwether reads.
pub const KNOWN: &[Known] = &[
    Known {
        name: "BELLWETHER_HEAP_LIMIT",
        meaning: "most bytes of symmetric heap, each rank",
        default: "auto",
        public: true,
        apply: |s, v| {
            s.heap_limit = Some(parse_size(v)?);
            Some(())
        },
        expected: SIZE,
        show: |s| s.heap_limit.map_or("auto".into(), show_size),
    },
    Known {
        name: "BELLWETHER_MESSAGE_MEMORY",
        meaning: "most bytes of larger messages in flight, each rank",
        default: "256MiB",
        public: true,
        apply: |s, v| {
            s.message_memory = parse_size(v)?;
            Some(())
        },
        expected: SIZE,
        show: |s| show_size(s.message_memory),
    },
    Known {
        name: "BELLWETHER_AGGREGATION_MEMORY",
        meaning: "bytes of buffers of an aggregator, a map or a queue, each rank",
        default: "16MiB",
        public: true,
        apply: |s, v| {
            s.aggregation_memory = parse_size(v)?;
            Some(())
        },
        expected: SIZE,
        show: |s| show_size(s.aggregation_memory),
    },
    Known {
        name: "BELLWETHER_HUGE_PAGES",
        meaning: "try huge pages for segments: auto, off",
        default: "auto",
        public: true,
        apply: |s, v| {
            s.huge_pages = match v {
                "auto" | "on" => HugePages::Auto,
                "off" => HugePages::Off,
                _ => return None,
            };
            Some(())
        },
        expected: "expected auto or off",
        show: |s| match s.huge_pages {
            HugePages::Auto => "auto".into(),
            HugePages::Off => "off".into(),
        },
    },
    Known {
        name: "BELLWETHER_CMA",
        meaning: "reach memory outside segments by cross-memory attach: on, off",
        default: "on",
        public: true,
        apply: |s, v| {
            s.cross_memory_attach = parse_switch(v)?;
            Some(())
        },
        expected: SWITCH,
        show: |s| on_off(s.cross_memory_attach),
    },
    Known {
        name: "BELLWETHER_LANE_DEPTH",
        meaning: "messages a lane between two ranks holds",
        default: "auto",
        public: true,
        apply: |s, v| {
            s.lane_depth = Some(v.parse().ok().filter(|n| (1..=1 << 16).contains(n))?);
            Some(())
        },
        expected: "expected a whole number from 1 to 65536",
        show: |s| auto(s.lane_depth),
    },
    Known {
        name: "BELLWETHER_SPIN",
        meaning: "rounds of polling before a waiting rank gives up its core",
        default: "auto",
        public: true,
        apply: |s, v| {
            s.spin = Some(v.parse().ok()?);
            Some(())
        },
        expected: COUNT,
        show: |s| auto(s.spin),
    },
    Known {
        name: "BELLWETHER_BARRIER",
        meaning: "barrier algorithm: auto, dissemination, central",
        default: "auto",
        public: true,
        apply: |s, v| {
            s.barrier = match v {
                "auto" => Barrier::Auto,
                "dissemination" => Barrier::Dissemination,
                "central" => Barrier::Central,
                _ => return None,
            };
            Some(())
        },
        expected: "expected auto, dissemination or central",
        show: |s| match s.barrier {
            Barrier::Auto => "auto".into(),
            Barrier::Dissemination => "dissemination".into(),
            Barrier::Central => "central".into(),
        },
    },
    Known {
        name: "BELLWETHER_TRANSPORT",
        meaning: "how ranks reach each other: auto, shm-contract (for tests), verbs",
        default: "auto",
        public: true,
        apply: |s, v| {
            let all = [Transport::Auto, Transport::ShmContract, Transport::Verbs];
            s.transport = all.into_iter().find(|transport| transport.name() == v)?;
            Some(())
        },
        expected: "expected auto, shm-contract or verbs",
        show: |s| s.transport.name().into(),
    },
    Known {
        name: "BELLWETHER_VERBS_DEVICE",
        meaning: "RDMA device, as DEVICE[:PORT[:GID-INDEX]]",
        default: "auto",
        public: true,
        apply: |s, v| {
            s.verbs_device = (v != "auto").then(|| v.into());
            let mut parts = v.split(':').skip(1);
            (v.split(':').count() <= 3 && parts.all(|part| part.parse::<u8>().is_ok())).then_some(())
        },
        expected: "expected auto or DEVICE[:PORT[:GID-INDEX]]",
        show: |s| s.verbs_device.clone().unwrap_or_else(|| "auto".into()),
    },
    Known {
        name: "BELLWETHER_HOST",
        meaning: "name of this host: ranks of hosts with different names share no memory",
        default: "auto",
        public: true,
        apply: |s, v| {
            s.host = (v != "auto").then(|| v.into());
            (1..=40).contains(&v.len()).then_some(())
        },
        expected: "expected a name of 1 to 40 bytes",
        show: |s| s.host.clone().unwrap_or_else(|| "auto".into()),
    },
    Known {
        name: "BELLWETHER_TEAMS",
        meaning: "teams one rank may be a member of at a time",
        default: "32",
        public: true,
        apply: |s, v| {
            s.teams = v.parse().ok().filter(|n| (1..=TEAMS_MAX).contains(n))?;
            Some(())
        },
        expected: "expected a whole number from 1 to 64",
        show: |s| s.teams.to_string(),
    },
    Known {
        name: "BELLWETHER_TEAM_MEMORY",
        meaning: "bytes of workspace for each of these teams but that of all ranks, each rank",
        default: "256KiB",
        public: true,
        apply: |s, v| {
            s.team_memory = parse_size(v).filter(|n| (TEAM_MEMORY_MIN..=TEAM_MEMORY_MAX).contains(n))?;
            Some(())
        },
        expected: "expected a size from 4KiB to 1GiB",
        show: |s| show_size(s.team_memory),
    },
    Known {
        name: "BELLWETHER_WORLD_TEAM_MEMORY",
        meaning: "bytes of workspace for the team of all ranks, each rank",
        default: "2MiB",
        public: true,
        apply: |s, v| {
            s.world_team_memory = parse_size(v).filter(|n| (TEAM_MEMORY_MIN..=TEAM_MEMORY_MAX).contains(n))?;
            Some(())
        },
        expected: "expected a size from 4KiB to 1GiB",
        show: |s| show_size(s.world_team_memory),
    },
    algorithm!("BELLWETHER_ALLREDUCE", allreduce: Allreduce, "auto, central, gather, doubling, tree, pieces, nodes"),
    algorithm!("BELLWETHER_REDUCE", reduce: Reduce, "auto, tree, flat, nodes"),
    algorithm!("BELLWETHER_BROADCAST", broadcast: Broadcast, "auto, tree, flat, nodes"),
    algorithm!("BELLWETHER_ALLGATHER", allgather: Allgather, "auto, direct, bruck, ring, nodes"),
    algorithm!("BELLWETHER_GATHER", gather: Gather, "auto, direct, nodes"),
    algorithm!("BELLWETHER_SCATTER", scatter: Scatter, "auto, direct, nodes"),
    algorithm!("BELLWETHER_ALLTOALL", alltoall: Alltoall, "auto, direct, pairwise, nodes"),
    algorithm!("BELLWETHER_SCAN", scan: Scan, "auto, gather, chain, nodes"),
    algorithm!("BELLWETHER_TEAM_BARRIER", barrier: TeamBarrier, "auto, central, dissemination, nodes"),
    Known {
        name: "BELLWETHER_RANKS",
        meaning: "ranks to start when a program is run by itself",
        default: "1",
        public: true,
        apply: |_, v| v.parse::<usize>().ok().filter(|n| *n > 0).map(drop),
        expected: "expected a whole number above 0",
        show: |_| std::env::var("BELLWETHER_RANKS").unwrap_or("1".into()),
    },
    Known {
        name: "BELLWETHER_DEADLINE",
        meaning: "seconds after which a job of BELLWETHER_RANKS is ended, and tells where each rank waits",
        default: "none",
        public: true,
        apply: |s, v| {
            let seconds = v.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
            s.deadline = Some(std::time::Duration::try_from_secs_f64(seconds?).ok()?);
            Some(())
        },
        expected: "expected a number of seconds above 0",
        show: |s| s.deadline.map_or("none".into(), |limit| format!("{}", limit.as_secs_f64())),
    },
    // A rank of a test that `bellwether::test` started as a process.
    internal("BELLWETHER_TEST"),
    internal(LAUNCHED),
    internal(OF_A_RANK[0]),
    internal(OF_A_RANK[1]),
    internal("BELLWETHER_TERM_WIDTH"),
    // Which seed the tests on the simulated network repeat.
    internal("BELLWETHER_SIM_SEED"),
];

/// Set for every rank that a launcher started.
const LAUNCHED: &str = "BELLWETHER_JOB";
/// And what else it is told. A user who sets one of these by hand means another.
const OF_A_RANK: [&str; 2] = ["BELLWETHER_SIZE", "BELLWETHER_RANK"];

const fn internal(name: &'static str) -> Known {
    Known {
        name,
        meaning: "set by the launcher for its ranks, or for tests",
        default: "",
        public: false,
        apply: |_, _| Some(()),
        expected: "",
        show: |_| String::new(),
    }
}

impl Settings {
    /// The defaults, changed by the `BELLWETHER_*` variables that are set.
    ///
    /// # Errors
    /// [`Error::Setting`] names a variable whose value cannot be understood, and what was expected.
    pub fn from_env() -> Result<Settings> {
        let mut settings = Settings::default();
        for known in KNOWN {
            let Some(value) = std::env::var_os(known.name) else { continue };
            let value = value.to_string_lossy();
            if (known.apply)(&mut settings, &value).is_none() {
                return Err(Error::Setting { name: known.name, value: value.into_owned(), expected: known.expected });
            }
        }
        Ok(settings)
    }

    /// Variables that look like ours but are not, each with the nearest name that is; and what a launcher tells its ranks,
    /// where there is none.
    pub fn unknown_in_env() -> Vec<(String, &'static str)> {
        let launched = std::env::var_os(LAUNCHED).is_some();
        let near = |name: String| match known(&name) {
            Some(_) if OF_A_RANK.contains(&name.as_str()) && !launched => Some((name, "BELLWETHER_RANKS")),
            Some(_) => None,
            None => nearest(&name).map(|near| (name, near)),
        };
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(|name| name.starts_with("BELLWETHER_")).filter_map(near).collect()
    }
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

/// A size such as `4096`, `64KiB`, `2G`.
fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: usize = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" | "1" | "true" | "yes" => Some(true),
        "off" | "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// A size as [`parse_size`] reads it.
fn show_size(bytes: usize) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_shown() {
        for bytes in [0, 1, 1023, 1024, 3 << 20, 5 << 30, (1 << 40) + 1] {
            assert_eq!(parse_size(&show_size(bytes)), Some(bytes));
        }
        for bad in ["", "x", "12parsec", "-1", "99999999999999999999", "9999999999TiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_misspelt_name_is_told_its_neighbour() {
        assert_eq!(nearest("BELLWETHER_HEAPLIMIT"), Some("BELLWETHER_HEAP_LIMIT"));
        assert_eq!(nearest("BELLWETHER_RANK"), Some("BELLWETHER_RANKS"));
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
