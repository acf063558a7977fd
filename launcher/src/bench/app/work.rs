//! The examples that are measured: how they are started, and how their times are read.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;

use super::median;
use super::peer::Peer;
use crate::bench::child::run;
use crate::bench::folder::Folder;

/// Longer than any of them takes, however crowded the machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The figures that a program prints of its run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Seconds for a unit of work.
    pub seconds: f64,
    /// The program's result, where it prints one. Two programs that solve the same problem print the same.
    pub result: Option<f64>,
}

impl Outcome {
    /// Checks that both found the same, if both print a result. The last digits may differ, because a C compiler contracts operations.
    ///
    /// # Errors
    /// Both results, if they differ.
    pub fn agrees_with(self, other: Outcome) -> anyhow::Result<()> {
        /// Relative to the result.
        const TOLERANCE: f64 = 1e-6;
        if let (Some(one), Some(other)) = (self.result, other.result) {
            let is_same = (one - other).abs() <= TOLERANCE * one.abs();
            anyhow::ensure!(is_same, "it found {one}, the other program {other}: they did not solve the same problem");
        }
        Ok(())
    }
}

/// An example that has peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Heat on a plate
    Heat2d,
    /// Conjugate gradients
    Cg,
    /// A matrix transposed
    Transpose,
    /// Keys sorted
    Samplesort,
    /// Breadth-first search
    Bfs,
}

impl Work {
    /// All examples that have peers.
    pub const ALL: [Work; 5] = [Work::Heat2d, Work::Cg, Work::Transpose, Work::Samplesort, Work::Bfs];

    /// The example's name.
    pub fn name(self) -> &'static str {
        match self {
            Work::Heat2d => "heat2d",
            Work::Cg => "cg",
            Work::Transpose => "transpose",
            Work::Samplesort => "samplesort",
            Work::Bfs => "bfs",
        }
    }

    /// The systems with a peer program for this work.
    pub fn peers(self) -> &'static [Peer] {
        match self {
            Work::Cg => &[Peer::Petsc],
            Work::Transpose => &[Peer::Fftw, Peer::Mpi],
            _ => &[Peer::Mpi],
        }
    }

    /// The most that the ratio to this peer may be on two cores. `None`: no bar.
    pub fn bar(self, peer: Peer, ranks: usize) -> Option<f64> {
        match (self, peer, ranks) {
            // Half as fast again.
            (Work::Heat2d, Peer::Mpi, 1 | 2) => Some(1.0 / 1.5),
            (Work::Cg, Peer::Petsc, 1 | 2 | 4) => Some(0.95),
            _ => None,
        }
    }

    /// The unit of [`Work::shown`].
    pub fn unit(self) -> &'static str {
        match self {
            Work::Heat2d => "M cells/s",
            Work::Cg => "ms/iteration",
            Work::Transpose | Work::Samplesort => "ms",
            Work::Bfs => "M edges/s",
        }
    }

    /// Seconds for a unit of work, as text with a unit.
    pub fn shown(self, seconds: f64) -> f64 {
        if self.unit().starts_with("ms") { seconds * 1e3 } else { 1e-6 / seconds }
    }

    /// The problem, as the peers' programs take it.
    pub fn problem(self, quick: bool) -> &'static [&'static str] {
        match (self, quick) {
            (Work::Heat2d, false) => &["768", "512", "3000"],
            (Work::Heat2d, true) => &["40", "30", "20"],
            (Work::Cg, false) => &["1024", "60"],
            (Work::Cg, true) => &["20", "10"],
            (Work::Transpose, false) => &["2048", "7"],
            (Work::Transpose, true) => &["32", "2"],
            (Work::Samplesort, false) => &["4194304", "5"],
            (Work::Samplesort, true) => &["1000", "2"],
            (Work::Bfs, false) => &["18"],
            (Work::Bfs, true) => &["8"],
        }
    }

    /// The same for the example.
    fn arguments(self, quick: bool, folder: &Folder) -> Vec<String> {
        let problem = self.problem(quick);
        let output = |name| ["--output".to_owned(), folder.file(name).display().to_string()];
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        match self {
            Work::Heat2d => {
                let size = format!("{}x{}", problem[0], problem[1]);
                [texts(&["--open", "--steps", problem[2], "--size", &size]), output("heat2d.png").to_vec()].concat()
            }
            Work::Cg => {
                let options = texts(&["--grid", problem[0], "--iterations", problem[1], "--every", "1000000"]);
                [options, output("cg.svg").to_vec()].concat()
            }
            Work::Transpose => texts(&["--rows", problem[0], "--columns", problem[0], "--rounds", problem[1]]),
            Work::Samplesort => texts(&["--keys", problem[0], "--rounds", problem[1]]),
            Work::Bfs => texts(&["--scale", problem[0]]),
        }
    }

    /// Runs the example, as `bellwether run` does.
    ///
    /// # Errors
    /// If it fails, does not end, or says nothing to read.
    pub fn measure(self, file: &Path, ranks: usize, quick: bool, folder: &Folder) -> anyhow::Result<Outcome> {
        let mut command = Command::new(std::env::current_exe().context("finding this program's own file")?);
        command.args(["run", "-n", &ranks.to_string()]).arg(file).args(self.arguments(quick, folder));
        let output = run(command, LIMIT)?;
        let seconds = self.read(&output);
        let seconds = seconds.with_context(|| format!("{} printed nothing to read: {output}", self.name()))?;
        Ok(Outcome { seconds, result: self.result(&output) })
    }

    /// The result that a program printed, ours or a peer's, if it prints one.
    pub fn result(self, output: &str) -> Option<f64> {
        match self {
            Work::Heat2d => output.lines().find_map(|line| line.split_once("mean ")?.1.trim().parse().ok()),
            _ => None,
        }
    }

    /// Seconds for a unit of work, from the output of the example.
    fn read(self, output: &str) -> Option<f64> {
        let before = |line_start: &str, unit: &str| {
            let line = output.lines().find(|line| line.starts_with(line_start))?;
            line.split(unit)
                .next()
                .filter(|text| text.len() < line.len())?
                .split_whitespace()
                .next_back()?
                .parse::<f64>()
                .ok()
        };
        match self {
            Work::Heat2d => before("steps", " million cell updates").map(|rate| 1e-6 / rate),
            Work::Cg => before("solved", " ms each").map(|ms| ms * 1e-3),
            Work::Bfs => before("searched", " million edges per second").map(|rate| 1e-6 / rate),
            Work::Transpose | Work::Samplesort => {
                // A line a round: its number, and its time.
                let round = |line: &str| {
                    let mut words = line.split_whitespace();
                    let (number, time, unit) = (words.next()?, words.next()?, words.next()?);
                    number.parse::<u32>().ok().filter(|_| unit == "ms")?;
                    time.parse::<f64>().ok()
                };
                let times: Vec<f64> = output.lines().filter_map(round).collect();
                (!times.is_empty()).then(|| median(&times) * 1e-3)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_what_the_examples_print() {
        let near = |found: Option<f64>, expected: f64| assert!((found.expect("read") / expected - 1.0).abs() < 1e-9);
        near(Work::Heat2d.read("plate  x\nsteps     1001 in 0.27 s, 1250 million cell updates per second\n"), 0.8e-9);
        let heat = "degrees   lowest 0.00, highest 100.00, mean 20.125000\n";
        assert_eq!(
            [heat, "mean 20.125000001\n"].map(|text| Work::Heat2d.result(text)),
            [Some(20.125), Some(20.125000001)]
        );
        assert_eq!(Work::Bfs.result(heat), None);
        near(Work::Cg.read("solved    60 iterations in 0.80 s, 13.308 ms each, 1.58 GFLOP/s, 1 rank\n"), 13.308e-3);
        near(Work::Bfs.read("searched  9 edges in 0.00 s: 200.0 million edges per second\n"), 5e-9);
        let rounds = "  round        time   transpose\n      1    10.00 ms  1 GB/s\n      2    30.00 ms  1\n      3    11.50 ms  1\n";
        near(Work::Transpose.read(rounds), 11.5e-3);
        near(
            Work::Samplesort.read("      1    99.5 ms            42.1\n   rank  keys\n      0  2097152   50.0 %\n"),
            99.5e-3,
        );
        assert!(Work::ALL.into_iter().all(|work| work.read("solved nothing\nsteps 5\nsearched\n").is_none()));
    }

    #[test]
    fn results_that_differ_are_told() {
        let outcome = |result| Outcome { seconds: 1.0, result };
        assert!(outcome(Some(20.125)).agrees_with(outcome(Some(20.125_000_1))).is_ok());
        assert!(outcome(Some(20.125)).agrees_with(outcome(None)).is_ok());
        let error = outcome(Some(20.125)).agrees_with(outcome(Some(20.126))).expect_err("another plate").to_string();
        assert!(error.contains("20.125,") && error.contains("20.126:"), "{error}");
    }
}
