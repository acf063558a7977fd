//! Figures: the summary of batches, and how it is written.

use super::Transport;
use super::kind::{Bar, Kind, Unit};

/// The median of many batches, and their spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Half of the batches lie below.
    pub median: f64,
    /// A tenth of the batches lies below.
    pub p10: f64,
    /// Nine tenths of the batches lie below.
    pub p90: f64,
}

impl Summary {
    /// The summary of these batches; `None` if there are none.
    pub fn of(batches: &[f64]) -> Option<Summary> {
        let mut sorted = batches.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            // Between two batches, in proportion.
            let place = share * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        (!sorted.is_empty()).then(|| Summary { median: at(0.5), p10: at(0.1), p90: at(0.9) })
    }
}

/// Another system's figure for the same benchmark.
#[derive(Clone, Debug)]
pub struct Rival {
    /// Its name after `--against`.
    pub peer: &'static str,
    /// In the unit of the figure beside it.
    pub value: f64,
    /// Ours beside it, by turns; smaller is better.
    pub ratio: f64,
}

/// One figure, with the figures to compare with.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The benchmark it belongs to.
    pub kind: Kind,
    /// How ranks reached each other.
    pub transport: Transport,
    /// Its own name: that of the benchmark or of a variant.
    pub name: String,
    /// Ranks of the job.
    pub ranks: usize,
    /// Bytes of an operation; 0 where that means nothing.
    pub size: usize,
    /// Ours.
    pub ours: Summary,
    /// The machine's limit, from batches in between.
    pub limit: Option<Summary>,
    /// Ours over the limit: the median of the ratios of neighbouring batches.
    pub ratio: Option<f64>,
    /// The comparison in the column `beside`, which is no limit, from batches in between.
    pub beside: Option<Summary>,
    /// Ours over what stands beside, as the ratio to the limit.
    pub beside_ratio: Option<f64>,
    /// Other systems.
    pub rivals: Vec<Rival>,
    /// Figures of the benchmarks of this run with the same size, ours: a bar may compare with one.
    pub lines: Vec<(Kind, f64)>,
}

impl Figure {
    /// The unit of all its values.
    pub fn unit(&self) -> Unit {
        self.kind.unit()
    }

    /// Its bars. Most variants have none: they are for information.
    pub fn bar(&self) -> Bar {
        match self.transport {
            Transport::Shm if self.name != self.kind.name() => Kind::variant_bar(&self.name, self.ranks),
            _ if self.name != self.kind.name() => Bar::default(),
            Transport::Shm => self.kind.bar(self.ranks, self.size),
            Transport::Verbs => self.kind.verbs_bar(self.ranks, self.size),
            Transport::Tcp => self.kind.tcp_bar(self.ranks, self.size),
            Transport::ShmContract => Bar::default(),
        }
    }

    /// Its bars, in words, each with whether it is met. A bar is left out if the peer or the other figure was not measured.
    pub fn checks(&self) -> Vec<(String, bool)> {
        let bar = self.bar();
        let unit = self.unit();
        let rounded = |most: f64| (most * 1000.0).round() / 1000.0;
        let rival = |name| self.rivals.iter().find(|rival| rival.peer == name);
        let line = |kind| self.lines.iter().find(|line| line.0 == kind).map(|line| line.1);
        let through_c = rival("c").map(|rival| rival.value);
        let of_line = |(kind, most): (Kind, f64), value| {
            Some((format!("≤ {} of {}", rounded(most), kind.name()), unit.ratio(value, line(kind)?) <= most))
        };
        let in_c = |(words, met): (String, bool)| (format!("through C {words}"), met);
        let checks = [
            bar.ratio.and_then(|most| Some((format!("ratio ≤ {}", rounded(most)), self.ratio? <= most))),
            bar.beside.and_then(|most| Some((format!("≤ {} of beside", rounded(most)), self.beside_ratio? <= most))),
            bar.value.map(|most| (format!("≤ {most} {}", unit.name()), self.ours.median <= most)),
            bar.peer.and_then(|(name, most)| Some((format!("≤ {most} of {name}"), rival(name)?.ratio <= most))),
            bar.line.and_then(|line| of_line(line, self.ours.median)),
            // The rival's ratio is ours to it.
            bar.c.ours.and_then(|most| Some(in_c((format!("≤ {most} of ours"), 1.0 / rival("c")?.ratio <= most)))),
            bar.c.line.and_then(|line| Some(in_c(of_line(line, through_c?)?))),
            bar.c.peer.and_then(|(name, most)| {
                let met = unit.ratio(through_c?, rival(name)?.value) <= most;
                Some(in_c((format!("≤ {most} of {name}"), met)))
            }),
        ];
        checks.into_iter().flatten().collect()
    }

    /// Whether it meets all its bars; `None` if it has none, or none can be checked.
    pub fn meets_bar(&self) -> Option<bool> {
        self.checks().into_iter().map(|check| check.1).reduce(|all, one| all && one)
    }

    /// The comparison in the column `beside`, in words.
    pub fn beside_name(&self) -> Option<&'static str> {
        self.beside.and_then(|_| self.kind.beside(self.transport == Transport::Shm))
    }

    /// Its bars as the fields of a JSON object: the bar in words, then `met` or `missed`.
    fn bars(&self) -> String {
        let field = |(what, met)| format!("\"{what}\":\"{}\"", verdict(met));
        self.checks().into_iter().map(field).collect::<Vec<_>>().join(",")
    }

    /// As JSON, one object for each peer, or one if there is none; `bars` says whether it is good enough. Written out, to
    /// keep the fields in their order.
    pub fn lines(&self, bars: bool) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or("null".into(), |value| value.to_string());
        let line = format!(
            "\"bench\":\"{}\",\"ranks\":{},\"size\":{},\"transport\":\"{}\",\"unit\":\"{}\",\"value\":{},\
             \"p10\":{},\"p90\":{},\"limit\":{},\"ratio\":{},\
             \"beside\":{},\"beside_ratio\":{},\"beside_is\":{}",
            self.name,
            self.ranks,
            self.size,
            self.transport.name(),
            self.unit().name(),
            self.ours.median,
            self.ours.p10,
            self.ours.p90,
            number(self.limit.map(|limit| limit.median)),
            number(self.ratio),
            number(self.beside.map(|beside| beside.median)),
            number(self.beside_ratio),
            self.beside_name().map_or("null".into(), |name| format!("\"{name}\"")),
        );
        let line = match (bars, self.meets_bar()) {
            (false, _) => line,
            (true, None) => line + ",\"bar\":null",
            (true, Some(met)) => line + &format!(",\"bar\":\"{}\",\"bars\":{{{}}}", verdict(met), self.bars()),
        };
        if self.rivals.is_empty() {
            return vec![format!("{{{line}}}")];
        }
        let with = |rival: &Rival| {
            let Rival { peer, value, ratio } = rival;
            format!("{{{line},\"peer\":\"{peer}\",\"peer_value\":{value},\"peer_ratio\":{ratio}}}")
        };
        self.rivals.iter().map(with).collect()
    }
}

/// Whether a bar is met, for programs to read.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_come_to_a_middle_and_a_scatter() {
        let batches: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&batches), Some(Summary { median: 50.0, p10: 10.0, p90: 90.0 }));
        assert_eq!(Summary::of(&[3.0]).map(|summary| summary.p90), Some(3.0));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn smaller_ratios_are_better_for_every_unit() {
        assert_eq!(Unit::Nanoseconds.ratio(3.0, 2.0), 1.5);
        assert_eq!(Unit::Gigabytes.ratio(2.0, 3.0), 1.5);
    }

    #[test]
    fn bars_are_held_against_value_limit_and_peer() {
        let summary = |median| Summary { median, p10: median, p90: median };
        let figure = |ours, limit, peer: Option<f64>| Figure {
            kind: Kind::Put,
            transport: Transport::Shm,
            name: "put".into(),
            ranks: 2,
            size: 8,
            ours: summary(ours),
            limit: Some(summary(limit)),
            ratio: Some(ours / limit),
            beside: None,
            beside_ratio: None,
            rivals: peer.map(|value| Rival { peer: "oshmem", value, ratio: ours / value }).into_iter().collect(),
            lines: Vec::new(),
        };
        assert_eq!(figure(1.0, 0.5, None).meets_bar(), Some(true));
        assert_eq!(figure(1.0, 0.3, None).meets_bar(), Some(false));
        assert_eq!(figure(4.0, 3.0, None).meets_bar(), Some(false));
        assert_eq!(figure(1.0, 0.5, Some(50.0)).meets_bar(), Some(true));
        assert_eq!(figure(1.0, 0.5, Some(5.0)).meets_bar(), Some(false));
        let variant = Figure { name: "put-elsewhere".into(), ..figure(9.0, 1.0, None) };
        assert_eq!(variant.meets_bar(), None);
        let over_a_network = Figure { transport: Transport::Verbs, ..figure(9.0, 1.0, None) };
        assert_eq!(over_a_network.meets_bar(), None);
        let aggregated = |ours| Figure {
            kind: Kind::Histogram,
            transport: Transport::Verbs,
            name: "histogram".into(),
            beside: Some(summary(100.0)),
            beside_ratio: Some(ours / 100.0),
            ..figure(ours, 100.0, None)
        };
        assert_eq!(aggregated(9.0).meets_bar(), Some(true));
        assert_eq!(aggregated(11.0).meets_bar(), Some(false));
        let without = Figure { beside: None, beside_ratio: None, ..aggregated(11.0) };
        assert_eq!(without.meets_bar(), None);
    }

    #[test]
    fn json_says_what_stands_beside_and_bars_only_when_asked() {
        let summary = |median| Summary { median, p10: median, p90: median };
        let figure = Figure {
            kind: Kind::Transpose,
            transport: Transport::Shm,
            name: "transpose".into(),
            ranks: 2,
            size: 8,
            ours: summary(2.0),
            limit: Some(summary(8.0)),
            ratio: Some(4.0),
            beside: Some(summary(1.0)),
            beside_ratio: Some(0.5),
            rivals: Vec::new(),
            lines: Vec::new(),
        };
        let line = |bars| serde_json::from_str::<serde_json::Value>(&figure.lines(bars)[0]).expect("an object");
        let plain = line(false);
        let numbers = ["limit", "ratio", "beside", "beside_ratio"].map(|field| plain[field].as_f64());
        assert_eq!(numbers, [Some(8.0), Some(4.0), Some(1.0), Some(0.5)]);
        assert_eq!(plain["beside_is"], "transposing private memory by tiles");
        assert!(plain.get("bar").is_none());
        assert_eq!(line(true)["bar"], "met");
        assert_eq!(line(true)["bars"], serde_json::json!({ "≤ 1.429 of beside": "met" }));
    }

    #[test]
    fn bars_are_held_against_other_lines_and_against_c() {
        let summary = |median| Summary { median, p10: median, p90: median };
        let figure =
            |kind: Kind, transport, size, ours, lines: &[(Kind, f64)], rivals: &[(&'static str, f64)]| Figure {
                kind,
                transport,
                name: kind.name().into(),
                ranks: 2,
                size,
                ours: summary(ours),
                limit: None,
                ratio: None,
                beside: None,
                beside_ratio: None,
                rivals: rivals
                    .iter()
                    .map(|&(peer, value)| Rival { peer, value, ratio: kind.unit().ratio(ours, value) })
                    .collect(),
                lines: lines.to_vec(),
            };
        let told = |figure: Figure| figure.checks().into_iter().map(|check| check.1).collect::<Vec<_>>();
        let (shm, verbs) = (Transport::Shm, Transport::Verbs);
        let notify =
            |transport, ours| told(figure(Kind::GaspiNotify, transport, 8, ours, &[(Kind::PutBell, 100.0)], &[]));
        assert_eq!([notify(shm, 119.0), notify(shm, 121.0)], [[true], [false]]);
        assert_eq!([notify(verbs, 109.0), notify(verbs, 111.0)], [[true], [false]]);
        assert!(told(figure(Kind::GaspiNotify, shm, 8, 1.0, &[(Kind::Am, 100.0)], &[])).is_empty(), "not in this run");
        let am = |ours| told(figure(Kind::LapiAm, shm, 8, ours, &[(Kind::Am, 100.0)], &[("c", 130.0)]));
        assert_eq!([am(124.0), am(126.0), am(100.0)], [[true, true], [false, true], [true, false]]);
        let bandwidth = |ours| told(figure(Kind::LapiBandwidth, verbs, 1 << 20, ours, &[(Kind::Bandwidth, 10.0)], &[]));
        assert_eq!([bandwidth(9.6), bandwidth(9.4)], [[true], [false]]);
        let through_c = |c| told(figure(Kind::LapiBandwidth, shm, 1 << 20, 10.0, &[], &[("c", c)]));
        assert_eq!([through_c(9.2), through_c(9.0)], [[true], [false]]);
        let post = |c| told(figure(Kind::GaspiPost, shm, 8, 10.0, &[], &[("c", c)]));
        assert_eq!([post(10.9), post(11.1)], [[true, true], [true, false]]);
        let met = |c| told(figure(Kind::Matching, shm, 8, 1.0, &[(Kind::Am, 100.0)], &[("c", c), ("mpi-rma", 190.0)]));
        assert_eq!([met(180.0), met(195.0), met(201.0)], [[true; 3], [true, true, false], [true, false, false]]);
    }
}
