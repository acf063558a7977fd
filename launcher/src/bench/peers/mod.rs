//! Other systems, measured in turn with ours. Their programs are built and run here; nothing of them is linked.

mod library;
mod perftest;
mod program;
mod ucx;

use clap::ValueEnum;

use self::library::Library;
use self::perftest::Perftest;
use self::program::Program;
use self::ucx::Ucx;
use super::figure::{Figure, Rival, Summary};
use super::folder::Folder;
use super::kind::Kind;
use super::own::Starter;
use super::task::Measured;

/// A system to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// Two-sided MPI: put-bell, am, am-rate, bandwidth and startup; over TCP by its own TCP transport
    Mpi,
    /// One-sided MPI
    MpiRma,
    /// OpenSHMEM
    Oshmem,
    /// UCX's own perftest
    Ucx,
    /// The verbs' own ib_write_lat, ib_write_bw, ib_send_lat and ib_atomic_lat
    Perftest,
    /// Ours through the libraries for C and C++: the benchmarks of GASPI and LAPI, and matching
    C,
}

impl Peer {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Mpi => "mpi",
            Peer::MpiRma => "mpi-rma",
            Peer::Oshmem => "oshmem",
            Peer::Ucx => "ucx",
            Peer::Perftest => "perftest",
            Peer::C => "c",
        }
    }
}

/// A peer that is ready to be measured.
pub enum Ready {
    /// A program in C of ours, over the peer's library.
    Program(Program),
    /// A program of the peer's own.
    Ucx(Ucx),
    /// Programs of the peer's own.
    Perftest(Perftest),
    /// Programs in C and C++ over our own libraries.
    Library(Library),
}

impl Ready {
    /// Which.
    pub fn peer(&self) -> Peer {
        match self {
            Ready::Program(program) => program.peer(),
            Ready::Ucx(_) => Peer::Ucx,
            Ready::Perftest(_) => Peer::Perftest,
            Ready::Library(_) => Peer::C,
        }
    }

    /// A value for each size that the peer can do, in the benchmark's unit; none if it has nothing of the kind.
    ///
    /// # Errors
    /// If it fails, or does not end.
    pub fn measure(&mut self, kind: Kind, sizes: &[usize], ranks: usize) -> anyhow::Result<Vec<(usize, f64)>> {
        match self {
            Ready::Program(program) => program.measure(kind, sizes, ranks),
            Ready::Ucx(ucx) => ucx.measure(kind, sizes),
            Ready::Perftest(perftest) => perftest.measure(kind, sizes),
            Ready::Library(library) => library.measure(kind, sizes, ranks),
        }
    }
}

/// Makes the peers ready; prints a line for each peer that is not installed. `starter` starts our own ranks.
pub fn prepare(peers: &[Peer], quick: bool, starter: &Starter, folder: &Folder, say: impl Fn(&str)) -> Vec<Ready> {
    let mut ready: Vec<Ready> = Vec::new();
    for &peer in peers {
        if ready.iter().any(|ready| ready.peer() == peer) {
            continue;
        }
        let made = match peer {
            Peer::Ucx => Ucx::new(quick).map(Ready::Ucx),
            Peer::Perftest => Perftest::new(quick).map(Ready::Perftest),
            Peer::C => Library::build(quick, starter.transport(), folder).map(Ready::Library),
            _ => Program::build(peer, quick, starter, folder).map(Ready::Program),
        };
        match made {
            Ok(made) => ready.push(made),
            Err(error) => say(&format!("bellwether bench: without {}: {error:#}", peer.name())),
        }
    }
    ready
}

/// A turn of ours and of the peers, one after the other.
pub struct Turn {
    /// Ours.
    pub ours: Vec<Measured>,
    /// By peer, as [`Ready::measure`] tells; none if it failed.
    pub peers: Vec<Vec<(usize, f64)>>,
}

/// Puts a peer's values, of each size their median, beside our figures of the same sizes: the peer, and its place in the
/// turns.
pub fn attach(figures: &mut [Figure], kind: Kind, (peer, place): (Peer, usize), turns: &[Turn]) {
    let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
    for figure in figures.iter_mut().filter(|figure| figure.name == kind.name()) {
        let size = figure.size;
        let of_turn = |turn: &Turn| -> Vec<f64> {
            turn.peers[place].iter().filter(|(of, _)| *of == size).map(|(_, value)| *value).collect()
        };
        let ratio_of_turn = |turn: &Turn| {
            let ours = turn.ours.iter().find(|ours| ours.name == figure.name && ours.size == size)?;
            Some(figure.unit().ratio(median(&ours.ours)?, median(&of_turn(turn))?))
        };
        let all: Vec<f64> = turns.iter().flat_map(of_turn).collect();
        let ratios: Vec<f64> = turns.iter().filter_map(ratio_of_turn).collect();
        if let (Some(value), Some(ratio)) = (median(&all), median(&ratios)) {
            figure.rivals.push(Rival { peer: peer.name(), value, ratio });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Transport;

    #[test]
    fn a_machine_that_is_slow_for_a_while_is_so_for_both() {
        let ours = Summary::of(&[1.0]).expect("a batch");
        let figure = |size| Figure {
            kind: Kind::Put,
            transport: Transport::Verbs,
            name: Kind::Put.name().into(),
            ranks: 2,
            size,
            ours,
            limit: None,
            ratio: None,
            beside: None,
            beside_ratio: None,
            rivals: Vec::new(),
            lines: Vec::new(),
        };
        let measured = |size, ours: &[f64]| Measured {
            name: Kind::Put.name().into(),
            size,
            ours: ours.to_vec(),
            ..Measured::default()
        };
        let turn = |ours: &[f64], peers: &[(usize, f64)]| Turn {
            ours: vec![measured(8, ours), measured(64, &[3.0])],
            peers: vec![Vec::new(), peers.to_vec()],
        };
        let mut figures = [figure(8), figure(64), figure(4096)];
        let turns = [
            turn(&[4.0, 8.0, 6.0], &[(8, 5.0), (8, 7.0), (64, 2.0)]),
            turn(&[60.0], &[(8, 50.0), (64, 1.0)]),
            turn(&[20.0], &[(8, 10.0)]),
            // Without the peer.
            turn(&[1000.0], &[]),
        ];
        attach(&mut figures, Kind::Put, (Peer::Perftest, 1), &turns);
        let found = figures.map(|figure| figure.rivals.first().map(|rival| (rival.value, rival.ratio)));
        assert_eq!(found, [Some((8.5, 1.2)), Some((1.5, 2.25)), None]);
    }
}
