//! Plots: one SVG a benchmark.

mod axis;
mod bars;
mod curves;
mod svg;

use std::path::Path;

use anyhow::Context;

use super::figure::Figure;
use super::kind::{ALL, Kind};

/// One curve of a plot: a name, and a value for each size.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    color: &'static str,
    /// Not a system but the machine's limit: drawn apart.
    is_limit: bool,
    points: Vec<(f64, f64)>,
}

/// Ours, the limit, and the peers as they come: dark enough on white, apart for colour-blind eyes (Okabe and Ito).
const OURS: &str = "#0072b2";
const LIMIT: &str = "#555555";
const BESIDE: &str = "#999999";
const PEERS: [(&str, &str); 3] = [("mpi-rma", "#d55e00"), ("oshmem", "#009e73"), ("ucx", "#b0508f")];

/// Writes a plot for each benchmark that was measured, and tells how many.
///
/// # Errors
/// If a file cannot be written.
pub fn write_all(folder: &Path, figures: &[Figure]) -> anyhow::Result<usize> {
    let mut count = 0;
    for kind in ALL {
        let own: Vec<&Figure> = figures.iter().filter(|f| f.kind == kind && f.name == kind.name()).collect();
        let Some(text) = plot(kind, &own) else { continue };
        let path = folder.join(format!("{}.svg", kind.name()));
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        count += 1;
    }
    Ok(count)
}

fn plot(kind: Kind, figures: &[&Figure]) -> Option<String> {
    let first = figures.first()?;
    if matches!(kind, Kind::Poll | Kind::Footprint) {
        return None;
    }
    let series = series(figures);
    let limit = match (&first.limit, first.transport) {
        (None, _) => "none",
        (_, super::Transport::Tcp) => kind.socket_limit(),
        _ => kind.limit(),
    };
    let mut subtitle = format!("{} ranks over {}, medians; limit: {}", first.ranks, first.transport.title(), limit);
    if let Some(beside) = first.beside_name() {
        subtitle += &format!("; beside: {beside}");
    }
    Some(if figures.len() > 1 {
        curves::curves(kind, &subtitle, &series)
    } else {
        bars::bars(kind, &subtitle, &series)
    })
}

fn series(figures: &[&Figure]) -> Vec<Series> {
    let pick = |name: &str, color, is_limit, value: &dyn Fn(&Figure) -> Option<f64>| Series {
        name: name.into(),
        color,
        is_limit,
        points: figures.iter().filter_map(|figure| Some((figure.size as f64, value(figure)?))).collect(),
    };
    let mut all = vec![
        pick("Bellwether", OURS, false, &|figure| Some(figure.ours.median)),
        pick("limit", LIMIT, true, &|figure| figure.limit.map(|limit| limit.median)),
        pick("beside", BESIDE, false, &|figure| figure.beside.map(|beside| beside.median)),
    ];
    for (name, color) in PEERS {
        let rival = |figure: &Figure| figure.rivals.iter().find(|rival| rival.peer == name).map(|rival| rival.value);
        all.push(pick(name, color, false, &rival));
    }
    all.retain(|series| !series.points.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Rival, Summary};

    fn figure(kind: Kind, size: usize, value: f64) -> Figure {
        let summary = |median| Summary { median, p10: median, p90: median };
        Figure {
            kind,
            transport: crate::bench::Transport::Shm,
            name: kind.name().into(),
            ranks: 2,
            size,
            ours: summary(value),
            limit: Some(summary(value / 2.0)),
            ratio: Some(2.0),
            beside: None,
            beside_ratio: None,
            rivals: vec![Rival { peer: "ucx", value: value * 3.0, ratio: 1.0 / 3.0 }],
            lines: Vec::new(),
        }
    }

    #[test]
    fn every_series_is_named_in_every_plot() {
        let sized: Vec<Figure> = [8, 64, 512].map(|size| figure(Kind::Put, size, size as f64)).into();
        let single = [figure(Kind::Barrier, 0, 300.0)];
        for (kind, figures) in [(Kind::Put, &sized[..]), (Kind::Barrier, &single[..])] {
            let text = plot(kind, &figures.iter().collect::<Vec<_>>()).expect("there are figures");
            for word in ["Bellwether", "limit", "ucx", kind.title(), "ns"] {
                assert!(text.contains(word), "{word} is not in {text}");
            }
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
        assert!(plot(Kind::Put, &[]).is_none());
    }
}
