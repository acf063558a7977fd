//! `bellwether bench app`: whole programs, the examples, in turn with other systems' programs for the same work.

mod peer;
mod work;

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use self::peer::{Peer, Program};
use self::work::{Outcome, Work};
use super::figure::{self, Summary};
use super::folder::Folder;
use super::table;
use crate::example::{Example, OWN_PROFILE};
use crate::print::print;

/// Measure the examples beside other systems' programs for the same work.
///
/// The examples are built as `cargo run --release` builds them, for any processor of the architecture. The peers are programs in C, over
/// PETSc, FFTW or MPI, compiled here with -O3 -march=native. All take turns; values are medians, and the ratio is the median of the turns'
/// ratios of times: below 1 ours is faster. Of heat2d both also tell the mean temperature: a peer that finds another is left out.
#[derive(Args, Debug)]
#[command(after_help = "Programs and their peers:
  heat2d      mpi     5-point scheme, 3000 steps on 768 x 512 cells without walls (`heat2d --open`)
  cg          petsc   5-point Laplacian of 1024 x 1024 points, KSPCG, PCNONE, MATAIJ, natural norm; 60 iterations
  transpose   fftw    2048 x 2048 doubles by rows, fftw_mpi_plan_transpose
              mpi     the same, packed and sent by MPI_Alltoallv
  samplesort  mpi     4 Mi random keys of 32 bits: radix sort, MPI_Alltoallv
  bfs         mpi     R-MAT graph of scale 18, direction-optimizing, MPI_Alltoallv and MPI_Allgather

Examples:
  bellwether bench app
  bellwether bench app cg -n 4 --against petsc

Exit status: 0 measured, 1 a program failed, 2 wrong use, or the output cannot be written.")]
pub struct App {
    /// Which programs [default: all]
    #[arg(value_name = "PROGRAM", value_enum)]
    programs: Vec<Work>,

    /// How many ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = crate::run::ranks, default_value = "2")]
    ranks: usize,

    /// Other systems to measure in turn. One that is not installed is said, with the package that has it, and left out
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_value = "petsc,fftw,mpi")]
    against: Vec<Peer>,

    /// How often they take turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), default_value = "5")]
    rounds: u16,

    /// Print one JSON object a line instead of a table
    #[arg(long)]
    json: bool,

    /// Also print the bar of each ratio, the most that this project allows for it on two free cores, and whether it is met: for its own
    /// tests. On a noisy machine a missed bar proves nothing
    #[arg(long)]
    bars: bool,

    /// Tiny problems: whether it works, not how fast
    #[arg(long, hide = true)]
    quick: bool,
}

/// The times of one program in all turns, in seconds for a unit of work.
struct Measured {
    work: Work,
    ours: Vec<f64>,
    rivals: Vec<(Peer, Vec<f64>)>,
}

impl App {
    /// Measures, and prints the figures.
    ///
    /// # Errors
    /// If an example cannot be built or fails. A peer that fails is reported and left out.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let folder = Folder::new()?;
        let mut programs = self.programs.clone();
        programs.dedup();
        if programs.is_empty() {
            programs = Work::ALL.to_vec();
        }
        let mut all = Vec::new();
        for work in programs {
            let profile = if self.quick { OWN_PROFILE } else { "release" };
            let example = Example { name: work.name(), features: &[], profile };
            let file = example.build().with_context(|| format!("building {}", work.name()))?;
            let mut rivals: Vec<Program> = Vec::new();
            for peer in self.asked_for(work) {
                match Program::build(work, peer, &folder) {
                    Ok(program) => rivals.push(program),
                    Err(error) => eprintln!("bellwether bench: without {} of {}: {error:#}", work.name(), peer.name()),
                }
            }
            all.push(self.measure(work, &file, rivals, &folder)?);
            if self.json {
                all.iter().next_back().map_or(Ok(()), |measured| print(self.lines(measured)))?;
            }
        }
        if !self.json {
            print(self.table(&all))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The peers that have a program for this work and are named by `--against`.
    fn asked_for(&self, work: Work) -> impl Iterator<Item = Peer> {
        work.peers().iter().copied().filter(|peer| self.against.contains(peer))
    }

    fn measure(
        &self,
        work: Work,
        file: &std::path::Path,
        mut programs: Vec<Program>,
        folder: &Folder,
    ) -> anyhow::Result<Measured> {
        let mut ours: Vec<Outcome> = Vec::new();
        let mut rivals: Vec<(Peer, Vec<f64>)> = programs.iter().map(|program| (program.peer(), Vec::new())).collect();
        for round in 0..self.rounds {
            // Ours comes first in one round, the peers in the next.
            let order = if round % 2 == 0 { [true, false] } else { [false, true] };
            for is_ours in order {
                if is_ours {
                    ours.push(work.measure(file, self.ranks, self.quick, folder)?);
                    continue;
                }
                programs.retain(|program| {
                    let values = rivals.iter_mut().find(|(peer, _)| *peer == program.peer());
                    let outcome = program.measure(self.ranks, self.quick).and_then(|outcome| {
                        // Ours came first in the first round.
                        ours.first().map_or(Ok(()), |ours| outcome.agrees_with(*ours)).map(|()| outcome.seconds)
                    });
                    match (outcome, values) {
                        (Ok(value), Some((_, values))) => values.push(value),
                        (Err(error), _) => {
                            let (work, peer) = (work.name(), program.peer().name());
                            eprintln!("bellwether bench: without {work} of {peer}: {error:#}");
                            rivals.retain(|(peer, _)| *peer != program.peer());
                            return false;
                        }
                        _ => {}
                    }
                    true
                });
            }
        }
        Ok(Measured { work, ours: ours.into_iter().map(|outcome| outcome.seconds).collect(), rivals })
    }

    /// The bar of this ratio and whether it is met, if bars are asked for and it has one.
    fn bar(&self, work: Work, peer: Peer, ratio: f64) -> Option<(f64, bool)> {
        let most = work.bar(peer, self.ranks).filter(|_| self.bars)?;
        Some((most, ratio <= most))
    }

    fn table(&self, all: &[Measured]) -> String {
        let plural = if self.ranks == 1 { "" } else { "s" };
        let mut text = format!(
            "{} rank{plural}, {} turns. Ratio: our time over the peer's, the median of what the turns gave; below 1 ours is faster.\n\n",
            self.ranks, self.rounds
        );
        text +=
            &format!("{:<12}{:<13}{:>10}  {:<7}{:>10}{:>8}\n", "program", "unit", "ours", "peer", "theirs", "ratio");
        for measured in all {
            let work = measured.work;
            let mut start =
                format!("{:<12}{:<13}{:>10.2}", work.name(), work.unit(), work.shown(median(&measured.ours)));
            if measured.rivals.is_empty() {
                text += &format!("{start}  -\n");
            }
            for (peer, theirs) in &measured.rivals {
                let (name, value, ratio) = (peer.name(), work.shown(median(theirs)), ratio(&measured.ours, theirs));
                let bar = self.bar(work, *peer, ratio).map_or_else(String::new, |(most, met)| {
                    format!("  ratio ≤ {}: {}", table::number(most), table::verdict(met))
                });
                text += &format!("{start}  {name:<7}{value:>10.2}{ratio:>8.2}{bar}\n");
                start = format!("{:35}", "");
            }
        }
        text
    }

    fn lines(&self, measured: &Measured) -> String {
        let (work, ranks) = (measured.work, self.ranks);
        let common = serde_json::json!({
            "program": work.name(), "ranks": ranks, "unit": work.unit(), "ours": work.shown(median(&measured.ours)),
        });
        if measured.rivals.is_empty() {
            return format!("{common}\n");
        }
        let line = |(peer, theirs): &(Peer, Vec<f64>)| {
            let mut line = common.clone();
            line["peer"] = peer.name().into();
            let ratio = ratio(&measured.ours, theirs);
            line["theirs"] = work.shown(median(theirs)).into();
            line["ratio"] = ratio.into();
            if let Some((most, met)) = self.bar(work, *peer, ratio) {
                line["most"] = most.into();
                line["bar"] = figure::verdict(met).into();
            }
            format!("{line}\n")
        };
        measured.rivals.iter().map(line).collect()
    }
}

fn median(values: &[f64]) -> f64 {
    Summary::of(values).map_or(f64::NAN, |summary| summary.median)
}

/// The median of the turns' ratios, so that a machine that is slower for a while is slower for both.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bench app` with these arguments.
    fn parse(arguments: &[&str]) -> App {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            app: App,
        }
        let line: Line = clap::Parser::parse_from([&["app"], arguments].concat());
        line.app
    }

    #[test]
    fn each_program_has_the_peers_that_against_names() {
        let peers = |app: &App| Work::ALL.map(|work| app.asked_for(work).collect::<Vec<_>>());
        let (petsc, fftw, mpi) = (Peer::Petsc, Peer::Fftw, Peer::Mpi);
        assert_eq!(peers(&parse(&[])), [vec![mpi], vec![petsc], vec![fftw, mpi], vec![mpi], vec![mpi]]);
        assert_eq!(peers(&parse(&["--against", "fftw"])), [vec![], vec![], vec![fftw], vec![], vec![]]);
        let two = parse(&["cg", "--against", "petsc,mpi"]);
        assert_eq!(peers(&two), [vec![mpi], vec![petsc], vec![mpi], vec![mpi], vec![mpi]]);
        assert_eq!(two.programs, [Work::Cg]);
    }

    #[test]
    fn ratios_are_of_neighbouring_turns() {
        let app = App { programs: vec![], ranks: 2, against: vec![], rounds: 3, json: false, bars: false, quick: true };
        let rivals = vec![(Peer::Fftw, vec![4e-3, 40e-3, 8e-3]), (Peer::Mpi, vec![1e-3, 10e-3, 1e-3])];
        let measured = [
            Measured { work: Work::Transpose, ours: vec![2e-3, 20e-3, 2e-3], rivals },
            Measured { work: Work::Bfs, ours: vec![1e-8], rivals: vec![] },
        ];
        let table = app.table(&measured);
        let rows: Vec<Vec<&str>> = table.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["transpose", "ms", "2.00", "fftw", "8.00", "0.50"]);
        assert_eq!(rows[1], ["mpi", "1.00", "2.00"]);
        assert_eq!(rows[2], ["bfs", "M", "edges/s", "100.00", "-"]);
        let lines = app.lines(&measured[0]);
        let line: serde_json::Value = serde_json::from_str(lines.lines().nth(1).expect("a line a peer")).expect("JSON");
        assert_eq!((line["peer"].as_str(), line["ratio"].as_f64()), (Some("mpi"), Some(2.0)));
    }

    #[test]
    fn bars_are_held_against_the_ratio_where_they_are_asked_for() {
        let measured =
            |work, peer, theirs: f64| Measured { work, ours: vec![9e-3], rivals: vec![(peer, vec![theirs])] };
        // Below the bar of 0.95 and beyond it, below that of two thirds; the last has none.
        let all = [
            measured(Work::Cg, Peer::Petsc, 9e-3 / 0.94),
            measured(Work::Cg, Peer::Petsc, 9e-3 / 0.96),
            measured(Work::Heat2d, Peer::Mpi, 9e-3 / 0.66),
            measured(Work::Bfs, Peer::Mpi, 1e-3),
        ];
        let verdicts = |arguments: &[&str]| {
            let app = parse(arguments);
            let table = app.table(&all);
            let of_table = table.lines().skip(3).map(|line| line.split_once("≤ ").map(|(_, bar)| bar.to_owned()));
            let of_lines = all.iter().map(|measured| {
                let line: serde_json::Value = serde_json::from_str(&app.lines(measured)).expect("JSON");
                line.get("bar").map(|verdict| verdict.as_str().expect("a text").to_owned())
            });
            (of_table.collect::<Vec<_>>(), of_lines.collect::<Vec<_>>())
        };
        let texts = |texts: [Option<&str>; 4]| texts.map(|text| text.map(str::to_owned)).to_vec();
        let table = texts([Some("0.950: met"), Some("0.950: MISSED"), Some("0.667: met"), None]);
        let lines = texts([Some("met"), Some("missed"), Some("met"), None]);
        assert_eq!(verdicts(&["--bars"]), (table, lines));
        let none = texts([None; 4]);
        assert_eq!(verdicts(&[]), (none.clone(), none.clone()));
        // No bar on three ranks.
        assert_eq!(verdicts(&["--bars", "-n", "3"]), (none.clone(), none));
    }
}
