//! The task that the ranks of a benchmark get, and the report that they return.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use super::figure::Summary;
use super::kind::{Kind, Unit};
use clap::ValueEnum;

/// One benchmark for the ranks of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Which.
    pub kind: Kind,
    /// For these sizes, one after the other.
    pub sizes: Vec<usize>,
    /// Batches of ours, and as many of the limit.
    pub batches: usize,
    /// The operations of a batch are divided by this.
    pub shorten: usize,
    /// Rank i runs on the i-th CPU allowed.
    pub pin: bool,
    /// Only whether it works counts, not how fast it is.
    pub quick: bool,
    /// The ranks are to use TCP. In the task and not only in the environment: all ranks take part in what follows from it, and mpirun
    /// hands the environment to its own host only.
    pub over_tcp: bool,
}

impl Task {
    /// As an argument for the ranks.
    pub fn to_text(&self) -> String {
        json!({
            "bench": self.kind.name(), "sizes": self.sizes, "batches": self.batches, "shorten": self.shorten,
            "pin": self.pin, "quick": self.quick, "over_tcp": self.over_tcp,
        })
        .to_string()
    }

    /// From an argument made by [`Task::to_text`].
    pub fn from_text(text: &str) -> Option<Task> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value[name].as_u64().map(|number| number as usize);
        Some(Task {
            kind: Kind::from_str(value["bench"].as_str()?, false).ok()?,
            sizes: value["sizes"]
                .as_array()?
                .iter()
                .map(|size| Some(size.as_u64()? as usize))
                .collect::<Option<_>>()?,
            batches: number("batches")?,
            shorten: number("shorten")?,
            pin: value["pin"].as_bool()?,
            quick: value["quick"].as_bool()?,
            over_tcp: value["over_tcp"].as_bool()?,
        })
    }
}

/// Puts of a run over a network: of ours, and of a peer's that streams puts.
pub fn stream(size: usize, quick: bool) -> usize {
    ((16 << 20) / size).min(10_000) / if quick { 20 } else { 1 }
}

/// Batches of ours and of the limit, for one size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The benchmark's name, or that of a variant.
    pub name: String,
    /// Bytes of an operation.
    pub size: usize,
    /// Ours, in the benchmark's unit.
    pub ours: Vec<f64>,
    /// The limit's.
    pub limit: Vec<f64>,
    /// Batches of the comparison in the column `beside`, which is no limit.
    pub beside: Vec<f64>,
    /// The share of the measured time in which rank 0 had a CPU.
    pub on_cpu: f64,
    /// Rounds that were left out, because two threads that should run at the same time did not, and rounds in all. 0 in benchmarks
    /// that have no such rounds.
    pub left_out: usize,
    pub rounds: usize,
}

impl Measured {
    /// Ours over the limit, by [`paired`].
    pub fn ratio(&self, unit: Unit) -> Option<f64> {
        paired(unit, &self.ours, &self.limit)
    }

    /// Ours over what stands beside, by [`paired`].
    pub fn beside_ratio(&self, unit: Unit) -> Option<f64> {
        paired(unit, &self.ours, &self.beside)
    }

    /// With every value changed.
    pub fn map(self, change: impl Fn(f64) -> f64) -> Measured {
        let all = |values: Vec<f64>| values.into_iter().map(&change).collect();
        Measured { ours: all(self.ours), limit: all(self.limit), beside: all(self.beside), ..self }
    }

    /// Takes in more batches of the same.
    pub fn add(&mut self, more: &Measured) {
        self.ours.extend(&more.ours);
        self.limit.extend(&more.limit);
        self.beside.extend(&more.beside);
        self.on_cpu = self.on_cpu.min(more.on_cpu);
        self.left_out += more.left_out;
        self.rounds += more.rounds;
    }
}

/// The median of the ratios of neighbouring batches, so that a machine that is slow for a while is slow for both. If the numbers
/// of batches differ, the ratio of the medians.
fn paired(unit: Unit, ours: &[f64], others: &[f64]) -> Option<f64> {
    let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
    if ours.len() == others.len() {
        let ratios: Vec<f64> = ours.iter().zip(others).map(|(ours, other)| unit.ratio(*ours, *other)).collect();
        return median(&ratios);
    }
    Some(unit.ratio(median(ours)?, median(others)?))
}

/// Joins the batches of several turns, which measured the same figures, as if they were one turn.
pub fn joined<'a>(turns: impl IntoIterator<Item = &'a [Measured]>) -> Vec<Measured> {
    let mut turns = turns.into_iter();
    let mut all = turns.next().unwrap_or_default().to_vec();
    for turn in turns {
        all.iter_mut().zip(turn).for_each(|(all, more)| all.add(more));
    }
    all
}

/// Writes the figures to a file of the launcher's.
///
/// # Errors
/// Those of the file system.
pub fn write_report(path: &Path, report: &[Measured]) -> std::io::Result<()> {
    let line = |m: &Measured| {
        json!({
            "name": m.name, "size": m.size, "ours": m.ours, "limit": m.limit, "beside": m.beside, "cpu": m.on_cpu,
            "left_out": m.left_out, "rounds": m.rounds,
        })
    };
    std::fs::write(path, Value::from_iter(report.iter().map(line)).to_string())
}

/// Reads what [`write_report`] wrote.
///
/// # Errors
/// If the file is not there or holds something else.
pub fn read_report(path: &Path) -> anyhow::Result<Vec<Measured>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("no report of the ranks in {}", path.display()))?;
    let value: Value = serde_json::from_str(&text)?;
    let numbers = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    let measured = |value: &Value| {
        Some(Measured {
            name: value["name"].as_str()?.into(),
            size: value["size"].as_u64()? as usize,
            ours: numbers(&value["ours"])?,
            limit: numbers(&value["limit"])?,
            beside: numbers(&value["beside"])?,
            on_cpu: value["cpu"].as_f64()?,
            left_out: value["left_out"].as_u64()? as usize,
            rounds: value["rounds"].as_u64()? as usize,
        })
    };
    let report: Option<Vec<_>> = value.as_array().and_then(|all| all.iter().map(measured).collect());
    report.context("the ranks wrote a report that cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_slow_for_a_while_is_so_for_ours_and_the_limit() {
        let measured =
            |ours: &[f64], limit: &[f64]| Measured { ours: ours.into(), limit: limit.into(), ..Measured::default() };
        let slow = measured(&[1.0, 3.0, 6.0], &[0.5, 3.0 / 2.0, 3.0]);
        assert_eq!(slow.ratio(Unit::Nanoseconds), Some(2.0));
        assert_eq!(slow.ratio(Unit::Gigabytes), Some(0.5));
        // By the medians of either it would be 3.
        let turned = measured(&[1.0, 3.0, 30.0], &[0.5, 1.0, 60.0]);
        assert_eq!(turned.ratio(Unit::Nanoseconds), Some(2.0));
        assert_eq!(measured(&[1.0, 4.0, 9.0], &[2.0]).ratio(Unit::Nanoseconds), Some(2.0));
        assert_eq!(measured(&[1.0], &[]).ratio(Unit::Nanoseconds), None);
    }

    #[test]
    fn tasks_and_reports_survive_the_way() {
        let (kind, sizes) = (Kind::PutBell, vec![8, 64]);
        let task = Task { kind, sizes, batches: 3, shorten: 50, pin: true, quick: false, over_tcp: true };
        assert_eq!(Task::from_text(&task.to_text()), Some(task));
        assert_eq!(Task::from_text("{}"), None);
        let path = std::env::temp_dir().join(format!("bellwether-report-{}", std::process::id()));
        let (ours, limit, beside) = (vec![1.5, 2.0], vec![1.0], vec![3.0]);
        let (name, left_out) = ("am".into(), 2);
        let report = vec![Measured { name, size: 8, ours, limit, beside, on_cpu: 0.875, left_out, rounds: 7 }];
        write_report(&path, &report).expect("the folder for temporary files can be written");
        assert_eq!(read_report(&path).expect("it was just written"), report);
        std::fs::remove_file(&path).expect("it was just written");
        assert!(read_report(&path).is_err());
    }
}
