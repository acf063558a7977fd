//! `bellwether bench`: the runtime's speed, and beside each figure the limit of the machine it ran on.

mod app;
mod bare;
mod child;
mod copies;
mod cores;
mod crowded;
mod death;
mod figure;
mod folder;
mod footprint;
mod growth;
mod kernels;
mod kind;
mod noise;
mod own;
mod peers;
mod plot;
mod poll;
mod progress;
pub mod rank;
mod session;
mod socket;
mod table;
mod task;
mod turns;
mod wake;

use std::path::PathBuf;
use std::process::ExitCode;

use bellwether_runtime::Settings;
use bellwether_runtime::transport::{tcp, verbs};
use clap::{Args, Subcommand, ValueEnum};

use self::figure::{Figure, Summary};
use self::folder::Folder;
use self::kind::{Bar, Kind};
use self::noise::Doubts;
use self::own::{Failed, Launch, Starter};
use self::peers::{Peer, Turn};
use self::progress::Progress;
use self::task::{Measured, Task};
use crate::print::print;

/// Measure the runtime, beside what this machine can do at most.
///
/// Beside each figure stands the limit: what the same cores do in the same run with bare loads, stores, locked adds,
/// flags and memcpy on the same mapping, as a program written by hand for that one purpose, without this library. The
/// ratio is ours over the limit for times and the limit over ours for bandwidth, so smaller is better everywhere.
/// Transpose, histogram and indexgather have memory bandwidth as their limit, and one more column: `beside` shows a plain
/// program that does the same work, which ours may beat, with the ratio to it in brackets. Beside put-address stands put. Beside
/// poll stands `World::poll` with 2 ranks: both find nothing, in a job without other processes, after each rank sent one message.
/// lapi-bandwidth puts private memory to static data that ranks have mapped (BELLWETHER_STATIC_DATA), lapi-bandwidth-private to private
/// memory, by system calls; lapi-bandwidth-am sends static data to the place that the header handler names, and its limit is a copy to
/// that place by the rank that receives.
/// Beside team-barrier stands the world's barrier, beside alloc a barrier. growth starts jobs of 64, 128 and 256 ranks: beside barrier
/// and allreduce stands the same with a quarter of the ranks, beside alltoall with half, beside alloc a barrier.
/// crowded starts jobs of 16 and 128 ranks on two cores: beside crowded-many, the barrier of 128 ranks, stands that of 16; crowded-computing
/// is a loop of 16 ranks in which rank 0 computes for 10 ms before each barrier, and its limit is the computing alone. The ranks of wake and
/// idle are two threads of this process. wake is the time from a ring until the waiting rank runs, which slept in a wait; in wake-epoll it
/// slept in epoll. idle is the CPU time of a process in which one rank waits for two seconds. idle-core is how late a rank runs, after its
/// sleep has ended, on the core on which another rank polls in a wait.
/// Over TCP the limit of put-poll, put-bell, am, atomic and bandwidth is a bare socket between the same two ranks: there and back
/// in pieces of the size with a receiver that polls, or a stream that the receiver answers with a byte at its end.
/// Figures are medians of batches;
/// batches of ours, of the limit and of what stands beside take turns, and a ratio is the median over neighbouring ones.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  bellwether bench                        everything, on two ranks
  bellwether bench app                    the examples beside PETSc, FFTW and C over MPI
  bellwether bench put am --json          two of them, one JSON object a line
  bellwether bench bandwidth --size 1MiB
  bellwether bench all --against mpi-rma,oshmem,ucx --plot out/
  bellwether bench put put-poll put-bell atomic bandwidth --transport verbs --against perftest
  bellwether bench am put-bell am-rate bandwidth histogram --transport tcp --against mpi
  bellwether bench am --transport tcp --hosts a,b

Exit status: 0 measured, 1 the ranks failed, 2 wrong use, or the output cannot be written.")]
pub struct Bench {
    #[command(subcommand)]
    other: Option<Other>,

    /// What to measure, or `all` [default: all]
    #[arg(value_name = "BENCH", value_enum, hide_possible_values = true)]
    #[arg(help = kind::offered())]
    benches: Vec<Choice>,

    /// How many ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = crate::run::ranks, default_value = "2")]
    #[arg(allow_negative_numbers = true)]
    ranks: usize,

    /// Bytes of an operation, a multiple of 8, such as 64, 4KiB or 16MiB
    /// [default: 8, and 4KiB to 64MiB for bandwidth]
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_negative_numbers = true)]
    size: Option<usize>,

    /// How ranks reach each other
    #[arg(long, value_name = "NAME", value_enum, default_value = "shm")]
    transport: Transport,

    /// The hosts to start the ranks on, as `bellwether run --hosts` takes them
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,

    /// The command that runs another one on a host, as `bellwether run --agent` takes it
    #[arg(long, value_name = "CMD", requires = "hosts")]
    agent: Option<String>,

    /// What starts the ranks
    #[arg(long, value_name = "HOW", value_enum, default_value = "spawn")]
    launch: Launch,

    /// Which CPUs a rank may use while it measures: `core` gives each rank one of its own, round and round
    #[arg(long, value_enum, default_value = "core")]
    bind: crate::run::Binding,

    /// Print one JSON object a line instead of a table. `limit` and `beside` are null where there is none
    #[arg(long)]
    json: bool,

    /// Also print the bars of each figure, the most that this project allows for it on two free cores, and whether each is met: for
    /// its own tests. Also measures the benchmarks that a bar compares with. On a noisy machine a missed bar proves nothing
    #[arg(long)]
    bars: bool,

    /// Other systems to measure in turn: mpi, mpi-rma, oshmem, ucx, perftest; and c, ours through the libraries for C and C++. One
    /// that is not installed is said, and left out
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', hide_possible_values = true)]
    against: Vec<Peer>,

    /// How often ours and the peers take turns. The ratio is the median of the turns' ratios, so that a machine which is
    /// slower for a while is so for both [default: 15 against a peer over RDMA, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// Write plots to this folder, an SVG a benchmark; measures more sizes
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,

    /// Tiny batches: whether it works, not how fast
    #[arg(long, hide = true)]
    quick: bool,
}

/// What is measured in another way.
#[derive(Subcommand)]
enum Other {
    App(app::App),
}

/// A benchmark, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    All,
    One(Kind),
}

impl ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Choice] {
        const CHOICES: [Choice; kind::ALL.len() + 1] = {
            let mut choices = [Choice::All; kind::ALL.len() + 1];
            let mut number = 0;
            while number < kind::ALL.len() {
                choices[number] = Choice::One(kind::ALL[number]);
                number += 1;
            }
            choices
        };
        &CHOICES
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Choice::All => Some(clap::builder::PossibleValue::new("all").help("All of them")),
            Choice::One(kind) => kind.to_possible_value(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Shared memory, mapped by every rank
    Shm,
    /// Shared memory as if it were a network
    ShmContract,
    /// RDMA
    Verbs,
    /// TCP
    Tcp,
}

impl Transport {
    /// Its name on the command line and in JSON.
    fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::ShmContract => "shm-contract",
            Transport::Verbs => "verbs",
            Transport::Tcp => "tcp",
        }
    }

    /// The heading of a table or plot.
    fn title(self) -> &'static str {
        match self {
            Transport::Shm => "shared memory",
            Transport::ShmContract => "shared memory as if it were a network",
            Transport::Verbs => "RDMA",
            Transport::Tcp => "TCP",
        }
    }

    /// The value of BELLWETHER_TRANSPORT for the ranks.
    fn setting(self) -> &'static str {
        if self == Transport::Shm { "auto" } else { self.name() }
    }

    /// The setting for ranks that are threads of this process.
    fn of_threads(self) -> bellwether_runtime::Transport {
        match self {
            Transport::Shm => bellwether_runtime::Transport::Auto,
            Transport::ShmContract => bellwether_runtime::Transport::ShmContract,
            Transport::Verbs => bellwether_runtime::Transport::Verbs,
            Transport::Tcp => bellwether_runtime::Transport::Tcp,
        }
    }

    /// The factor by which batches are shorter than on mapped memory, where an operation takes nanoseconds.
    fn shorten(self) -> usize {
        match self {
            Transport::Shm => 1,
            Transport::ShmContract => 10,
            Transport::Tcp => 20,
            Transport::Verbs => 50,
        }
    }
}

impl Bench {
    /// Measures, and prints the figures.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(Other::App(app)) = &self.other {
            return app.run();
        }
        match self.measure() {
            Err(error) if error.is::<Failed>() => {
                eprintln!("bellwether bench: {error}");
                Ok(ExitCode::FAILURE)
            }
            outcome => outcome.map(|()| ExitCode::SUCCESS),
        }
    }

    fn measure(&self) -> anyhow::Result<()> {
        let kinds = self.kinds()?;
        let settings = Settings::from_env()?;
        let starter =
            Starter::new(self.ranks, self.launch, self.transport.setting())?.on(self.hosts.clone(), self.agent.clone());
        if let Some(path) = &self.plot {
            folder::writable(path)?;
        }
        let folder = Folder::new()?;
        let mut doubts = Doubts::before(self.ranks);
        let mut progress = Progress::new(kinds.len() * (1 + self.against.len()) * self.rounds());
        let mut rivals = peers::prepare(&self.against, self.quick, &starter, &folder, |line| progress.say(line));
        let mut figures: Vec<Figure> = Vec::new();
        for &kind in &kinds {
            let sizes = self.sizes(kind);
            let mut turns: Vec<Turn> = Vec::new();
            for round in 0..self.rounds() {
                let mut turn = Turn { ours: Vec::new(), peers: vec![Vec::new(); rivals.len()] };
                // Ours comes first in one round, the peers in the next.
                let order = if round % 2 == 0 { [true, false] } else { [false, true] };
                for is_ours in order {
                    if is_ours {
                        progress.step(kind.name());
                        turn.ours = self.ours(kind, &sizes, &starter, &folder, &settings)?;
                        continue;
                    }
                    for (rival, values) in rivals.iter_mut().zip(&mut turn.peers) {
                        let what = format!("{} of {}", kind.name(), rival.peer().name());
                        progress.step(&what);
                        match rival.measure(kind, &sizes, self.ranks) {
                            Ok(values_of_turn) => *values = values_of_turn,
                            Err(error) => progress.say(&format!("bellwether bench: without {what}: {error:#}")),
                        }
                    }
                }
                turns.push(turn);
            }
            let measured = task::joined(turns.iter().map(|turn| &turn.ours[..]));
            for m in &measured {
                doubts.note_share(&m.name, m.on_cpu);
                if m.left_out > 0 {
                    let what = "rounds of two threads left out: one thread ran after the other";
                    progress.say(&format!("bellwether bench: {}: {} of {} {what}", m.name, m.left_out, m.rounds));
                }
            }
            let mut fresh: Vec<Figure> = measured.into_iter().filter_map(|m| self.figure(kind, m)).collect();
            for (place, rival) in rivals.iter().enumerate() {
                peers::attach(&mut fresh, kind, (rival.peer(), place), &turns);
            }
            for figure in &mut fresh {
                let is_named = |other: &&Figure| other.name == other.kind.name() && other.size == figure.size;
                figure.lines = figures.iter().filter(is_named).map(|other| (other.kind, other.ours.median)).collect();
            }
            if self.json {
                self.print_json(&fresh)?;
            }
            figures.extend(fresh);
        }
        drop(progress);
        let peers: Vec<&str> = rivals.iter().map(|rival| rival.peer().name()).collect();
        if !self.json {
            self.print_table(&figures, &peers, &settings)?;
        }
        doubts.after();
        let doubts = doubts.about(&figures);
        if !doubts.is_empty() {
            eprintln!("bellwether bench: warning: too noisy to believe: {}", doubts.join("; "));
        }
        if let Some(path) = &self.plot {
            let count = plot::write_all(path, &figures)?;
            eprintln!("bellwether bench: {count} plots in {}", path.display());
        }
        Ok(())
    }

    /// The benchmarks to measure, each once, in the order of [`kind::ALL`].
    fn kinds(&self) -> anyhow::Result<Vec<Kind>> {
        let all = self.benches.is_empty() || self.benches.contains(&Choice::All);
        let is_asked = |kind: &Kind| all || self.benches.contains(&Choice::One(*kind));
        // A benchmark that a bar compares with comes earlier in our order, so it is measured first.
        let is_referred = |kind: &Kind| {
            let refers = |other: &Kind| is_asked(other) && self.refers_to(*other).contains(&Some(*kind));
            self.bars && kind::ALL.iter().any(refers)
        };
        let kinds: Vec<Kind> = kind::ALL.into_iter().filter(|kind| is_asked(kind) || is_referred(kind)).collect();
        if let Some(kind) = kinds.iter().find(|kind| kind.least_ranks() > self.ranks) {
            anyhow::bail!(
                "{} needs at least {} ranks, and -n asks for {}",
                kind.name(),
                kind.least_ranks(),
                self.ranks
            );
        }
        Ok(kinds)
    }

    /// The benchmarks that the bars of `kind` compare with.
    fn refers_to(&self, kind: Kind) -> [Option<Kind>; 2] {
        let size = self.sizes(kind).first().copied().unwrap_or(0);
        let bar = match self.transport {
            Transport::Shm => kind.bar(self.ranks, size),
            Transport::Verbs => kind.verbs_bar(self.ranks, size),
            _ => Bar::default(),
        };
        let through_c = bar.c.line.filter(|_| self.against.contains(&Peer::C));
        [bar.line, through_c].map(|line| line.map(|line| line.0))
    }

    fn sizes(&self, kind: Kind) -> Vec<usize> {
        match self.size {
            Some(size) if kind.is_sized() => vec![size],
            // What takes longer takes as long again on the way.
            _ if matches!(self.transport, Transport::Verbs | Transport::Tcp) && kind == Kind::Bandwidth => {
                vec![4 << 10, 64 << 10, 1 << 20]
            }
            _ => kind.sizes(self.plot.is_some(), self.quick),
        }
    }

    fn batches(&self, kind: Kind) -> usize {
        match self.transport {
            _ if self.quick => 3,
            // A batch of a stream is one long run, as it is in the peer.
            Transport::Verbs if kind.is_stream() => 5_usize.div_ceil(self.rounds()),
            Transport::Verbs | Transport::Tcp => 20,
            _ => 120,
        }
    }

    /// How often ours and the peers take turns. Often on the emulated machine, whose speed changes by a factor of two from one second to the
    /// next.
    fn rounds(&self) -> usize {
        if let Some(rounds) = self.rounds {
            return rounds.into();
        }
        let is_emulated = self.transport == Transport::Verbs && !self.against.is_empty() && !self.quick;
        if is_emulated { 15 } else { 1 }
    }

    fn ours(
        &self,
        kind: Kind,
        sizes: &[usize],
        starter: &Starter,
        folder: &Folder,
        settings: &Settings,
    ) -> anyhow::Result<Vec<Measured>> {
        match kind {
            Kind::Startup => Ok(vec![starter.startup(self.batches(kind))?]),
            Kind::Death => Ok(vec![self.death(folder)?]),
            Kind::Growth => growth::measure(self.launch, self.transport.setting(), folder, self.quick),
            Kind::Crowded => crowded::measure(self.launch, self.transport.setting(), folder, self.quick),
            Kind::Wake => wake::wake(&self.of_threads(settings), self.batches(kind).min(40), self.quick),
            Kind::Idle => wake::idle(&self.of_threads(settings), self.batches(kind).min(40), self.quick),
            Kind::Poll => Ok(vec![poll::idle(self.batches(kind), self.quick)?]),
            Kind::Footprint => {
                let one = |name: &str, bytes| Measured {
                    name: name.into(),
                    ours: vec![bytes],
                    on_cpu: 1.0,
                    ..Measured::default()
                };
                let peer = footprint::per_node_peer(self.ranks, settings);
                let [own, shared] = footprint::per_idle_peer(footprint::RANKS)?;
                Ok(vec![
                    one(kind.name(), own),
                    one("footprint-host-peer", shared),
                    one("footprint-slot-peer", footprint::per_slot_peer(footprint::RANKS, settings)),
                    one("footprint-node-peer", peer),
                    one("footprint-tcp-peer", tcp::bytes_per_peer() as f64),
                    one("footprint-verbs-peer", verbs::bytes_per_peer() as f64),
                ])
            }
            _ => {
                let crowded = self.ranks > cores::allowed_cpus().len();
                let task = Task {
                    kind,
                    sizes: sizes.to_vec(),
                    batches: self.batches(kind),
                    shorten: if self.quick || crowded { 50 } else { self.transport.shorten() },
                    pin: self.bind == crate::run::Binding::Core && !crowded,
                    quick: self.quick,
                    over_tcp: starter.over_tcp(),
                };
                starter.measure(&task, folder)
            }
        }
    }

    /// Settings of ranks that are threads of this process.
    fn of_threads(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        settings.static_data = false;
        settings.transport = self.transport.of_threads();
        settings
    }

    /// Starts a job for each batch, because a rank dies in each.
    fn death(&self, folder: &Folder) -> anyhow::Result<Measured> {
        let starter = Starter::new(death::RANKS, Launch::Spawn, self.transport.setting())?;
        let mut measured = Measured { name: Kind::Death.name().into(), on_cpu: 1.0, ..Measured::default() };
        for _ in 0..self.batches(Kind::Death).min(20) {
            measured.ours.extend(starter.death(folder)?);
            measured.limit.push(death::bare()?);
        }
        Ok(measured)
    }

    fn figure(&self, kind: Kind, measured: Measured) -> Option<Figure> {
        Some(Figure {
            kind,
            transport: self.transport,
            ranks: match &*measured.name {
                "footprint" | "footprint-host-peer" | "footprint-slot-peer" => footprint::RANKS,
                "poll" => poll::RANKS,
                "death" => death::RANKS,
                _ if matches!(kind, Kind::Wake | Kind::Idle) => wake::RANKS,
                "crowded-many" => crowded::ranks(self.quick)[1],
                _ if kind == Kind::Crowded => crowded::ranks(self.quick)[0],
                _ if kind == Kind::Growth && self.quick => growth::FEW[2],
                _ if kind == Kind::Growth => growth::RANKS[2],
                _ => self.ranks,
            },
            size: measured.size,
            ours: Summary::of(&measured.ours)?,
            limit: Summary::of(&measured.limit),
            ratio: measured.ratio(kind.unit()),
            beside: Summary::of(&measured.beside),
            beside_ratio: measured.beside_ratio(kind.unit()),
            rivals: Vec::new(),
            lines: Vec::new(),
            name: measured.name,
        })
    }

    fn print_json(&self, figures: &[Figure]) -> anyhow::Result<()> {
        let lines = figures.iter().flat_map(|figure| figure.lines(self.bars));
        print(lines.map(|line| format!("{line}\n")).collect::<String>())
    }

    /// Sizes that only the plots need are left out.
    fn print_table(&self, figures: &[Figure], peers: &[&str], settings: &Settings) -> anyhow::Result<()> {
        let is_shown = |figure: &&Figure| {
            self.size.is_some()
                || !figure.kind.is_sized()
                || figure.kind.sizes(false, self.quick).contains(&figure.size)
        };
        let shown: Vec<Figure> = figures.iter().filter(is_shown).cloned().collect();
        let mut text = format!(
            "{} ranks over {}. Ratio: how far from the limit, 1 is at it. Smaller is better.",
            self.ranks,
            self.transport.title()
        );
        if !peers.is_empty() || shown.iter().any(|figure| figure.beside.is_some()) {
            text += " In brackets: ours over what stands there.";
        }
        text += "\n\n";
        text += &table::table(&shown, peers, self.bars);
        let legend = table::legend(&shown);
        if !legend.is_empty() {
            text += &format!("\n{legend}");
        }
        if figures.iter().any(|figure| figure.kind == Kind::Footprint) {
            text += &format!(
                "\nfootprint: of a rank's own memory, for each of {} idle peers; footprint-host-peer: of a host's shared memory, for \
                 each of them; footprint-slot-peer: of the shared memory of each rank of the host, for each of them, too; \
                 footprint-node-peer: of shared memory, for \
                 each of {} ranks on a node ({} at 64); footprint-verbs-peer: for each connected peer over soft-RoCE, without \
                 what the kernel keeps besides the queue; footprint-tcp-peer: for each connected peer over TCP whose frames are \
                 acknowledged, without the kernel's socket.\n",
                footprint::RANKS,
                self.ranks,
                footprint::per_node_peer(64, settings)
            );
        }
        print(text)
    }
}

/// A number of bytes such as 8, 64KiB or 1M.
fn bytes(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 30;
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err(format!("unknown unit `{unit}`: use B, KiB, MiB or GiB")),
    };
    let wrong = || "expected a number of bytes such as 8, 64KiB or 1MiB".to_owned();
    let bytes = number.parse::<usize>().map_err(|_| wrong())?.checked_mul(1 << shift).ok_or_else(wrong)?;
    match bytes {
        0 => Err("an operation has at least 8 bytes".into()),
        bytes if !bytes.is_multiple_of(8) => Err("operations work on words, so a multiple of 8 bytes is needed".into()),
        bytes if bytes > MOST => Err("at most 1 GiB".into()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("8"), Ok(8));
        assert_eq!(bytes("64KiB"), Ok(65536));
        assert_eq!(bytes("1M"), Ok(1 << 20));
        for wrong in ["0", "", "-8", "12", "7KB", "2GiB", "99999999999999999999G", "eight"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
