//! Other systems, measured in turn with ours. Their programs are built and run here; nothing of them is linked.

mod perftest;
mod program;
mod ucx;

use clap::ValueEnum;

use self::perftest::Perftest;
use self::program::Program;
use self::ucx::Ucx;
use super::figure::{Figure, Rival, Summary};
use super::folder::Folder;
use super::kind::Kind;

/// A system to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// One-sided MPI
    MpiRma,
    /// OpenSHMEM
    Oshmem,
    /// UCX's own perftest
    Ucx,
    /// The verbs' own ib_write_lat, ib_write_bw and ib_atomic_lat
    Perftest,
}

impl Peer {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Peer::MpiRma => "mpi-rma",
            Peer::Oshmem => "oshmem",
            Peer::Ucx => "ucx",
            Peer::Perftest => "perftest",
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
}

impl Ready {
    /// Which.
    pub fn peer(&self) -> Peer {
        match self {
            Ready::Program(program) => program.peer(),
            Ready::Ucx(_) => Peer::Ucx,
            Ready::Perftest(_) => Peer::Perftest,
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
        }
    }
}

/// Makes the peers ready; tells in a line of each that is not here.
pub fn prepare(peers: &[Peer], quick: bool, folder: &Folder, say: impl Fn(&str)) -> Vec<Ready> {
    let mut ready: Vec<Ready> = Vec::new();
    for &peer in peers {
        if ready.iter().any(|ready| ready.peer() == peer) {
            continue;
        }
        let made = match peer {
            Peer::Ucx => Ucx::new(quick).map(Ready::Ucx),
            Peer::Perftest => Perftest::new(quick).map(Ready::Perftest),
            _ => Program::build(peer, quick, folder).map(Ready::Program),
        };
        match made {
            Ok(made) => ready.push(made),
            Err(error) => say(&format!("bellwether bench: without {}: {error:#}", peer.name())),
        }
    }
    ready
}

/// Puts a peer's values, of each size their median, beside our figures of the same sizes.
pub fn attach(figures: &mut [Figure], kind: Kind, peer: Peer, values: &[(usize, f64)]) {
    for figure in figures.iter_mut().filter(|figure| figure.name == kind.name()) {
        let same: Vec<f64> = values.iter().filter(|(size, _)| *size == figure.size).map(|(_, value)| *value).collect();
        if let Some(summary) = Summary::of(&same) {
            figure.rivals.push(Rival { peer: peer.name(), value: summary.median });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Transport;

    #[test]
    fn of_a_peers_rounds_the_median_counts() {
        let ours = Summary::of(&[1.0]).expect("a batch");
        let figure = |size| Figure {
            kind: Kind::Put,
            transport: Transport::Verbs,
            name: Kind::Put.name().into(),
            ranks: 2,
            size,
            ours,
            limit: None,
            rivals: Vec::new(),
        };
        let mut figures = [figure(8), figure(64), figure(4096)];
        let values = [(8, 5.0), (64, 7.0), (8, 1.0), (64, 9.0), (8, 2.0)];
        attach(&mut figures, Kind::Put, Peer::Perftest, &values);
        let found = figures.map(|figure| figure.rivals.first().map(|rival| rival.value));
        assert_eq!(found, [Some(2.0), Some(8.0), None]);
    }
}
