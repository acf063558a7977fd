//! The table of settings: one row for each variable. `bellwether info`, the guide's page and error messages are made from it.

use std::fmt;

use super::sizes::{parse_seconds, parse_size, parse_switch, show_size};
use super::{
    Allgather, Allreduce, Alltoall, Barrier, Broadcast, Gather, HugePages, Join, ProgressThread, Reduce, Scan, Scatter,
    Settings, TEAM_MEMORY_MAX, TEAM_MEMORY_MIN, TEAMS_MAX, TeamBarrier, Transport,
};

/// One row of the table of settings.
pub struct Known {
    /// The environment variable.
    pub name: &'static str,
    /// Short description, with the unit.
    pub meaning: &'static str,
    /// The values that it takes.
    pub values: Values,
    /// The default, as a user would write it.
    pub default: &'static str,
    /// Further advice for users: what `auto` does, and when to change the value. May be empty.
    pub details: &'static str,
    /// Whether users set it; the rest pass facts from a parent to its ranks.
    pub public: bool,
    pub(super) apply: fn(&mut Settings, &str) -> Option<()>,
    show: fn(&Settings) -> String,
}

/// The values that a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// One of these words, each with its effect.
    Words(&'static [(&'static str, &'static str)]),
    /// What these words describe.
    Described(&'static str),
}

/// `auto, tree or flat`; `a size such as 512MiB or 2GiB`.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Described(words) => f.write_str(words),
            Values::Words(words) => {
                for (i, (word, _)) in words.iter().enumerate() {
                    let between = match i {
                        0 => "",
                        _ if i + 1 == words.len() => " or ",
                        _ => ", ",
                    };
                    write!(f, "{between}{word}")?;
                }
                Ok(())
            }
        }
    }
}

impl Known {
    /// Where the value comes from: the environment, or a decision of this program.
    pub fn origin(&self) -> &'static str {
        match (std::env::var_os(self.name).is_some(), self.default) {
            (true, _) => "environment",
            (false, "auto") => "automatic",
            (false, _) => "default",
        }
    }

    /// The value in `settings`, as a user would write it.
    pub fn value(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }
}

const SIZE: Values = Values::Described("a size such as 512MiB or 2GiB");
const SIZE_OR_AUTO: Values = Values::Described("auto, or a size such as 512MiB or 2GiB");
const TEAM_SIZE: Values = Values::Described("a size from 4KiB to 1GiB");

fn auto<T: ToString>(value: Option<T>) -> String {
    value.map_or("auto".into(), |v| v.to_string())
}

fn on_off(value: bool) -> String {
    if value { "on".into() } else { "off".into() }
}

/// The variable of a collective's algorithm.
macro_rules! algorithm {
    ($name:literal, $collective:ident: $kind:ident, $meaning:literal) => {
        Known {
            name: $name,
            meaning: $meaning,
            values: Values::Words($kind::WORDS),
            default: "auto",
            details: "",
            public: true,
            apply: |s, v| {
                s.collectives.$collective = $kind::parse(v)?;
                Some(())
            },
            show: |s| s.collectives.$collective.name().into(),
        }
    };
}

/// Every variable that Bellwether reads.
pub const KNOWN: &[Known] = &[
    Known {
        name: "BELLWETHER_RANKS",
        meaning: "ranks to start when a program is run by itself",
        values: Values::Described("a whole number from 1 to 65536"),
        default: "1",
        details: "The program starts this many copies of itself on this machine and watches them. Under `bellwether run` the number \
                  comes from the launcher, whatever this says. In a rank of several that `mpirun` or `srun` started, a value above 1 is \
                  an error where the launcher tells the number of ranks: unset the variable there. With 1 the program runs alone.",
        public: true,
        // As many as one host can have.
        apply: |_, v| v.parse::<usize>().ok().filter(|ranks| (1..=1 << 16).contains(ranks)).map(drop),
        show: |_| std::env::var("BELLWETHER_RANKS").unwrap_or("1".into()),
    },
    Known {
        name: "BELLWETHER_DEADLINE",
        meaning: "seconds after which a job of BELLWETHER_RANKS is ended",
        values: Values::Described("none, or a number of seconds above 0 and up to 1e9"),
        default: "none",
        details: "The message at the end says where each rank waits. `bellwether run --timeout` does the same for jobs of the launcher.",
        public: true,
        apply: |s, v| {
            s.deadline = match v {
                "none" => None,
                _ => Some(parse_seconds(v)?),
            };
            Some(())
        },
        show: |s| s.deadline.map_or("none".into(), |limit| format!("{}", limit.as_secs_f64())),
    },
    Known {
        name: "BELLWETHER_SURVIVE",
        meaning: "ranks go on after the death of another",
        values: Values::Words(&[
            ("off", "The launcher ends the job when a rank fails."),
            ("on", "The launcher ends nobody because a rank died. Programs go on with `World::survivors`."),
        ]),
        default: "off",
        details: "`bellwether run --survive` sets it. Each rank then takes the workspace of its teams at the start.",
        public: true,
        apply: |s, v| {
            s.survive = parse_switch(v)?;
            Some(())
        },
        show: |s| on_off(s.survive),
    },
    Known {
        name: "BELLWETHER_PROGRESS_THREAD",
        meaning: "whether a rank makes progress while it computes in `World::serve_while`",
        values: Values::Words(&[
            (
                "auto",
                "Where puts, gets or atomics of other ranks need progress of this one: on a network that cannot do them, and on one \
                 node while this rank has a segment outside the memory of the job (`World::segment_at`), for atomics there.",
            ),
            ("on", "Always. Handlers of messages and remote calls run meanwhile, everywhere."),
            ("off", "Never. The work runs as if it were called directly."),
        ]),
        default: "auto",
        details: "With progress the work runs on a thread of its own, and the thread of the world sleeps until something comes.",
        public: true,
        apply: |s, v| {
            let all = [ProgressThread::Auto, ProgressThread::On, ProgressThread::Off];
            s.progress_thread = all.into_iter().find(|way| way.name() == v)?;
            Some(())
        },
        show: |s| s.progress_thread.name().into(),
    },
    Known {
        name: "BELLWETHER_JOIN",
        meaning: "how to join the ranks that mpirun or srun started",
        values: Values::Words(&[
            ("auto", "By MPI in builds with the feature `mpi`; else by what the launcher has left in the environment."),
            ("mpi", "By MPI, in builds with the feature `mpi`."),
            ("pmi1", "By PMI-1, which MPICH's `mpiexec` serves."),
            ("pmi2", "By PMI-2, which `srun --mpi=pmi2` serves."),
            (
                "pmix",
                "By PMIx, which Open MPI's `mpirun` and `srun --mpi=pmix` serve. Needs the library `libpmix.so.2`.",
            ),
        ]),
        default: "auto",
        details: "",
        public: true,
        apply: |s, v| {
            let all = [Join::Auto, Join::Mpi, Join::Pmi1, Join::Pmi2, Join::Pmix];
            s.join = all.into_iter().find(|join| join.name() == v)?;
            Some(())
        },
        show: |s| s.join.name().into(),
    },
    Known {
        name: "BELLWETHER_JOIN_LIMIT",
        meaning: "seconds that a rank of mpirun or srun waits for the others to start, without MPI",
        values: Values::Described("a number of seconds above 0 and up to 1e9"),
        default: "300",
        details: "A rank that waits longer ends with an error. MPI has no such limit.",
        public: true,
        apply: |s, v| {
            s.join_limit = parse_seconds(v)?;
            Some(())
        },
        show: |s| format!("{}", s.join_limit.as_secs_f64()),
    },
    Known {
        name: "BELLWETHER_TRANSPORT",
        meaning: "how ranks reach each other's memory",
        values: Values::Words(&[
            (
                "auto",
                "Shared memory between ranks of one node; RDMA between nodes that both have it, TCP between others, and everywhere if `BELLWETHER_ENCRYPT` is on.",
            ),
            (
                "shm-contract",
                "Shared memory, treated as a network: every call goes through the transport interface. For tests.",
            ),
            ("verbs", "RDMA (libibverbs) between all ranks, also between ranks of one node."),
            ("tcp", "TCP between all ranks, also between ranks of one node."),
        ]),
        default: "auto",
        details: "",
        public: true,
        apply: |s, v| {
            let all = [Transport::Auto, Transport::ShmContract, Transport::Verbs, Transport::Tcp];
            s.transport = all.into_iter().find(|transport| transport.name() == v)?;
            Some(())
        },
        show: |s| s.transport.name().into(),
    },
    Known {
        name: "BELLWETHER_VERBS_DEVICE",
        meaning: "RDMA device, as DEVICE[:PORT[:GID-INDEX]]",
        values: Values::Described("auto, or DEVICE[:PORT[:GID-INDEX]]"),
        default: "auto",
        details: "`auto` takes an active port: first by how far its address reaches (on Ethernet a routable address before a \
                  link-local one), then by distance from the cores of the process, then by speed. `bellwether info` lists \
                  the devices in this order.",
        public: true,
        apply: |s, v| {
            s.verbs_device = (v != "auto").then(|| v.into());
            let mut parts = v.split(':').skip(1);
            (!v.is_empty() && v.split(':').count() <= 3 && parts.all(|part| part.parse::<u8>().is_ok())).then_some(())
        },
        show: |s| s.verbs_device.clone().unwrap_or_else(|| "auto".into()),
    },
    Known {
        name: "BELLWETHER_TCP_INTERFACE",
        meaning: "network interface for TCP",
        values: Values::Described("auto, or the name of an interface"),
        default: "auto",
        details: "`auto` names all interfaces of the host that are up, those with the highest known speed first; peers try their addresses in that order. \
                  `bellwether info` lists them. With a name, TCP listens on that interface only.",
        public: true,
        apply: |s, v| {
            s.tcp_interface = (v != "auto").then(|| v.into());
            (!v.is_empty() && v.len() < 16).then_some(())
        },
        show: |s| s.tcp_interface.clone().unwrap_or_else(|| "auto".into()),
    },
    Known {
        name: "BELLWETHER_TCP_STOPPED",
        meaning: "how long a rank may be stopped before its peers over TCP lose it, in seconds",
        values: Values::Described("a number of seconds above 0 and up to 1e9"),
        default: "3600",
        details: "For a rank in a debugger or after Ctrl-Z: its process does not answer, and the kernel of its host still accepts \
                  connections. A rank whose host does not answer is lost within about 20 s, whatever this says; values below 10 are as \
                  10. The job tells of a rank that is killed at once. If more peers than `net.core.somaxconn` call a rank that was \
                  stopped before it connected, its host takes no further calls, and it is lost as one whose host is gone.",
        public: true,
        apply: |s, v| {
            s.tcp_stopped = parse_seconds(v)?;
            Some(())
        },
        show: |s| format!("{}", s.tcp_stopped.as_secs_f64()),
    },
    Known {
        name: "BELLWETHER_ENCRYPT",
        meaning: "encrypt data between hosts",
        values: Values::Words(&[
            (
                "off",
                "Data over TCP is authenticated: whatever is changed on the way is refused. Who can read the network can read it.",
            ),
            (
                "on",
                "Data over TCP is encrypted, too (AES-256-GCM). Ranks of different hosts use TCP, also where there is RDMA, which cannot encrypt.",
            ),
        ]),
        default: "off",
        details: "All ranks have the same value, or the start fails. `mpirun` on several machines needs `-x BELLWETHER_ENCRYPT`: without it \
                  ranks on other machines, even all ranks, have `off`. With `on`, `BELLWETHER_TRANSPORT=verbs` is an error. Memory that ranks of one host \
                  share is not encrypted. The page on security says what is protected from whom.",
        public: true,
        apply: |s, v| {
            s.encrypt = parse_switch(v)?;
            Some(())
        },
        show: |s| on_off(s.encrypt),
    },
    Known {
        name: "BELLWETHER_HOST",
        meaning: "name of this host; ranks of hosts with different names share no memory",
        values: Values::Described("auto, or a name of 1 to 40 bytes"),
        default: "auto",
        details: "`auto` takes the identity that the kernel gives. Set it for containers on one machine that cannot share \
                  memory, and for tests.",
        public: true,
        apply: |s, v| {
            s.host = (v != "auto").then(|| v.into());
            (1..=40).contains(&v.len()).then_some(())
        },
        show: |s| s.host.clone().unwrap_or_else(|| "auto".into()),
    },
    Known {
        name: "BELLWETHER_SPIN",
        meaning: "rounds of polling before a waiting rank gives up its core",
        values: Values::Described("auto, or a whole number"),
        default: "auto",
        details: "`auto` polls 2000 rounds where every rank has a core, 2 where ranks share cores, and at most 0.3 ms over a network. \
                  After that a waiting rank yields, then sleeps.",
        public: true,
        apply: |s, v| {
            s.spin = if v == "auto" { None } else { Some(v.parse().ok()?) };
            Some(())
        },
        show: |s| auto(s.spin),
    },
    Known {
        name: "BELLWETHER_HEAP_LIMIT",
        meaning: "most bytes of symmetric heap, each rank",
        values: SIZE_OR_AUTO,
        default: "auto",
        details: "`auto` is what the reserved address space holds. Memory is taken from the system as the heap grows, not at the start.",
        public: true,
        apply: |s, v| {
            s.heap_limit = if v == "auto" { None } else { Some(parse_size(v)?) };
            Some(())
        },
        show: |s| s.heap_limit.map_or("auto".into(), show_size),
    },
    Known {
        name: "BELLWETHER_MESSAGE_MEMORY",
        meaning: "most bytes of larger messages in flight, each rank",
        values: SIZE,
        default: "256MiB",
        details: "",
        public: true,
        apply: |s, v| {
            s.message_memory = parse_size(v)?;
            Some(())
        },
        show: |s| show_size(s.message_memory),
    },
    Known {
        name: "BELLWETHER_AGGREGATION_MEMORY",
        meaning: "bytes of buffers of an aggregator, a map or a queue, each rank",
        values: SIZE,
        default: "16MiB",
        details: "A program sets it for one aggregator, map or queue with `aggregate::Options`.",
        public: true,
        apply: |s, v| {
            s.aggregation_memory = parse_size(v)?;
            Some(())
        },
        show: |s| show_size(s.aggregation_memory),
    },
    Known {
        name: "BELLWETHER_LANE_DEPTH",
        meaning: "messages that a lane from one rank to another holds",
        values: Values::Described("auto, or a whole number from 1 to 65536"),
        default: "auto",
        details: "A lane is the queue of small messages from one rank to another on the same node. `auto` gives a rank 256 KiB \
                  of lanes, at most 256 and at least 4 messages each.",
        public: true,
        apply: |s, v| {
            s.lane_depth = match v {
                "auto" => None,
                _ => Some(v.parse().ok().filter(|n| (1..=1 << 16).contains(n))?),
            };
            Some(())
        },
        show: |s| auto(s.lane_depth),
    },
    Known {
        name: "BELLWETHER_HUGE_PAGES",
        meaning: "try huge pages for segments",
        values: Values::Words(&[
            (
                "auto",
                "Reserved huge pages if there are enough, else transparent ones if the kernel gives them, else small pages.",
            ),
            ("off", "Small pages only."),
        ]),
        default: "auto",
        details: "",
        public: true,
        apply: |s, v| {
            s.huge_pages = match v {
                "auto" | "on" => HugePages::Auto,
                "off" => HugePages::Off,
                _ => return None,
            };
            Some(())
        },
        show: |s| match s.huge_pages {
            HugePages::Auto => "auto".into(),
            HugePages::Off => "off".into(),
        },
    },
    Known {
        name: "BELLWETHER_CMA",
        meaning: "reach memory outside segments by cross-memory attach",
        values: Values::Words(&[
            ("on", "A system call (process_vm_readv, process_vm_writev) copies, where the kernel allows it."),
            ("off", "The target copies, when it polls."),
        ]),
        default: "on",
        details: "",
        public: true,
        apply: |s, v| {
            s.cross_memory_attach = parse_switch(v)?;
            Some(())
        },
        show: |s| on_off(s.cross_memory_attach),
    },
    Known {
        name: "BELLWETHER_STATIC_DATA",
        meaning: "make the executable's static data symmetric memory",
        values: Values::Words(&[
            (
                "on",
                "Peers reach static variables like the symmetric heap: by loads and stores, or by the network's puts and gets.",
            ),
            ("off", "Static variables are memory that is not registered."),
        ]),
        default: "off",
        details: "For programs that put to addresses of static variables (`World::put_address`, Cheetah). The world must start \
                  before other threads do. Variables of shared libraries stay private, and a forked child gets a copy of its \
                  own. Ranks that are threads share their static variables, so there it is an error. The kernel's reserved huge \
                  pages are not used then.",
        public: true,
        apply: |s, v| {
            s.static_data = parse_switch(v)?;
            Some(())
        },
        show: |s| on_off(s.static_data),
    },
    Known {
        name: "BELLWETHER_BARRIER",
        meaning: "algorithm of `World::barrier`",
        values: Values::Words(&[
            ("auto", "`direct` or `dissemination` while every rank has a core, `central` otherwise."),
            ("direct", "Every rank tells every other one. For up to 8 ranks, beyond that as `dissemination`."),
            (
                "dissemination",
                "⌈log2 n⌉ rounds, no shared counter (Hensgen, Finkel and Manber 1988). Networks always use it.",
            ),
            ("central", "One counter; the last rank wakes all others."),
        ]),
        default: "auto",
        details: "",
        public: true,
        apply: |s, v| {
            s.barrier = match v {
                "auto" => Barrier::Auto,
                "direct" => Barrier::Direct,
                "dissemination" => Barrier::Dissemination,
                "central" => Barrier::Central,
                _ => return None,
            };
            Some(())
        },
        show: |s| match s.barrier {
            Barrier::Auto => "auto".into(),
            Barrier::Direct => "direct".into(),
            Barrier::Dissemination => "dissemination".into(),
            Barrier::Central => "central".into(),
        },
    },
    Known {
        name: "BELLWETHER_TEAMS",
        meaning: "teams that one rank may be a member of at a time",
        values: Values::Described("a whole number from 1 to 64"),
        default: "32",
        details: "The team of all ranks is one of them.",
        public: true,
        apply: |s, v| {
            s.teams = v.parse().ok().filter(|n| (1..=TEAMS_MAX).contains(n))?;
            Some(())
        },
        show: |s| s.teams.to_string(),
    },
    Known {
        name: "BELLWETHER_TEAM_MEMORY",
        meaning: "bytes of workspace of each team except that of all ranks, each rank",
        values: TEAM_SIZE,
        default: "256KiB",
        details: "",
        public: true,
        apply: |s, v| {
            s.team_memory = parse_size(v).filter(|n| (TEAM_MEMORY_MIN..=TEAM_MEMORY_MAX).contains(n))?;
            Some(())
        },
        show: |s| show_size(s.team_memory),
    },
    Known {
        name: "BELLWETHER_WORLD_TEAM_MEMORY",
        meaning: "bytes of workspace of the team of all ranks, each rank",
        values: TEAM_SIZE,
        default: "2MiB",
        details: "",
        public: true,
        apply: |s, v| {
            s.world_team_memory = parse_size(v).filter(|n| (TEAM_MEMORY_MIN..=TEAM_MEMORY_MAX).contains(n))?;
            Some(())
        },
        show: |s| show_size(s.world_team_memory),
    },
    algorithm!("BELLWETHER_ALLREDUCE", allreduce: Allreduce, "algorithm of an allreduce, the world's and a team's"),
    algorithm!("BELLWETHER_REDUCE", reduce: Reduce, "algorithm of a team's reduce"),
    algorithm!("BELLWETHER_BROADCAST", broadcast: Broadcast, "algorithm of a broadcast, the world's and a team's"),
    algorithm!("BELLWETHER_ALLGATHER", allgather: Allgather, "algorithm of an allgather, the world's and a team's"),
    algorithm!("BELLWETHER_GATHER", gather: Gather, "algorithm of a team's gather"),
    algorithm!("BELLWETHER_SCATTER", scatter: Scatter, "algorithm of a team's scatter"),
    algorithm!("BELLWETHER_ALLTOALL", alltoall: Alltoall, "algorithm of a team's all-to-all"),
    algorithm!("BELLWETHER_SCAN", scan: Scan, "algorithm of a team's scans"),
    algorithm!("BELLWETHER_TEAM_BARRIER", barrier: TeamBarrier, "algorithm of a team's barrier"),
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
pub(super) const LAUNCHED: &str = "BELLWETHER_JOB";
/// Variables by which a launcher tells a rank more. A user who sets one of these by hand probably means another.
pub(super) const OF_A_RANK: [&str; 2] = ["BELLWETHER_SIZE", "BELLWETHER_RANK"];

const fn internal(name: &'static str) -> Known {
    Known {
        name,
        meaning: "set by the launcher for its ranks, or for tests",
        values: Values::Described("what the launcher sets"),
        default: "",
        details: "",
        public: false,
        apply: |_, _| Some(()),
        show: |_| String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public() -> impl Iterator<Item = &'static Known> {
        KNOWN.iter().filter(|known| known.public)
    }

    #[test]
    fn every_value_that_the_table_names_is_taken_and_shown_again() {
        for known in public() {
            let words: &[(&str, &str)] = match known.values {
                Values::Words(words) => words,
                Values::Described(_) => &[],
            };
            assert!(words.is_empty() || words.iter().any(|(word, _)| *word == known.default), "{}", known.name);
            for value in words.iter().map(|(word, _)| *word).chain([known.default]) {
                let mut settings = Settings::default();
                let taken = (known.apply)(&mut settings, value);
                assert!(taken.is_some(), "{}={value}", known.name);
                assert_eq!(known.value(&settings), value, "{}", known.name);
            }
            assert!((known.apply)(&mut Settings::default(), "").is_none(), "{}: no value at all", known.name);
        }
    }

    #[test]
    fn the_defaults_that_the_table_names_are_those_of_the_code() {
        let settings = Settings::default();
        for known in public() {
            assert_eq!(known.value(&settings), known.default, "{}", known.name);
        }
    }

    #[test]
    fn values_read_as_a_sentence() {
        assert_eq!(Values::Words(&[("a", ""), ("b", ""), ("c", "")]).to_string(), "a, b or c");
        assert_eq!(Values::Words(&[("a", "")]).to_string(), "a");
    }
}
