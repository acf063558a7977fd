//! One figure beside others: bars from zero, each with its value.

use super::Series;
use super::curves::head;
use super::svg::{Anchor, Svg};
use crate::bench::kind::Kind;
use crate::bench::table::number;

const WIDTH: f64 = 880.0;
const TOP: f64 = 84.0;
const STEP: f64 = 44.0;
const THICK: f64 = 26.0;
const LEFT: f64 = 120.0;
const RIGHT: f64 = WIDTH - 190.0;
const INK: &str = "#222222";
const QUIET: &str = "#666666";

/// Draws the bars.
pub fn bars(kind: Kind, subtitle: &str, series: &[Series]) -> String {
    let mut svg = Svg::new(WIDTH, TOP + STEP * series.len() as f64 + 18.0);
    head(&mut svg, kind, subtitle);
    let value = |series: &Series| series.points.first().map_or(0.0, |point| point.1);
    let most = series.iter().map(value).fold(f64::MIN_POSITIVE, f64::max);
    let limit = series.iter().find(|series| series.is_limit).map(value);
    for (row, series) in series.iter().enumerate() {
        let (own, top) = (value(series), TOP + STEP * row as f64);
        let weight = if series.name == "Bellwether" { "bold" } else { "normal" };
        svg.text((LEFT - 10.0, top + 18.0), Anchor::End, 14.0, INK, weight, &series.name);
        let length = (own / most * (RIGHT - LEFT)).max(1.0);
        svg.rectangle((LEFT, top), length, THICK, series.color);
        let mut text = format!("{} {}", number(own), kind.unit().name());
        if let Some(limit) = limit.filter(|_| !series.is_limit) {
            text += &format!("  ({} x limit)", number(kind.unit().ratio(own, limit)));
        }
        svg.text((LEFT + length + 8.0, top + 18.0), Anchor::Start, 13.0, QUIET, weight, &text);
    }
    svg.finish()
}
