//! Latency or bandwidth over size, both axes logarithmic.

use super::Series;
use super::axis::{Axis, range};
use super::svg::{Anchor, Svg};
use crate::bench::kind::{Kind, Unit};
use crate::bench::table::{number, size};

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 190.0;
const TOP: f64 = 112.0;
const BOTTOM: f64 = HEIGHT - 62.0;
const INK: &str = "#222222";
const FAINT: &str = "#e4e4e4";
const QUIET: &str = "#666666";
/// Least distance of two labels.
const LABEL: f64 = 17.0;

/// Draws the curves.
pub fn curves(kind: Kind, subtitle: &str, series: &[Series]) -> String {
    let all = series.iter().flat_map(|series| series.points.iter().copied());
    let (low, high) = range(all.clone().map(|point| point.1));
    let (least, most) = all.fold((f64::INFINITY, 0.0f64), |(least, most), (x, _)| (least.min(x), most.max(x)));
    let (x, y) = (Axis::new(least, most, LEFT, RIGHT), Axis::new(low, high, BOTTOM, TOP));

    let mut svg = Svg::new(WIDTH, HEIGHT);
    head(&mut svg, kind, subtitle);
    legend(&mut svg, series);
    grid(&mut svg, kind, &x, &y, series);
    // Ours last, so that it lies on top.
    for series in series.iter().rev() {
        let points: Vec<(f64, f64)> = series.points.iter().map(|point| (x.place(point.0), y.place(point.1))).collect();
        let (width, dashes) = stroke(series);
        svg.line(&points, series.color, width, dashes);
        if !series.is_limit {
            points.iter().for_each(|point| svg.dot(*point, 3.2, series.color));
        }
    }
    labels(&mut svg, kind, &x, &y, series);
    svg.finish()
}

fn stroke(series: &Series) -> (f64, &'static str) {
    if series.is_limit { (1.8, "6 4") } else { (2.2, "") }
}

/// Title and subtitle; shared with the bars.
pub fn head(svg: &mut Svg, kind: Kind, subtitle: &str) {
    let unit = match kind.unit() {
        Unit::Nanoseconds => "nanoseconds",
        Unit::Seconds => "seconds",
        Unit::Gigabytes => "GB/s",
        Unit::Times => "times",
        Unit::Bytes => "bytes",
    };
    let better = if kind.unit().more_is_better() { "more" } else { "less" };
    svg.text((24.0, 34.0), Anchor::Start, 20.0, INK, "bold", &format!("{}, {unit} ({better} is better)", kind.title()));
    svg.text((24.0, 56.0), Anchor::Start, 13.0, QUIET, "normal", subtitle);
}

fn legend(svg: &mut Svg, series: &[Series]) {
    let mut at = LEFT;
    for series in series {
        let (width, dashes) = stroke(series);
        svg.line(&[(at, 82.0), (at + 26.0, 82.0)], series.color, width, dashes);
        if !series.is_limit {
            svg.dot((at + 13.0, 82.0), 3.2, series.color);
        }
        svg.text((at + 32.0, 86.5), Anchor::Start, 13.0, INK, "normal", &series.name);
        at += 32.0 + 7.6 * series.name.len() as f64 + 26.0;
    }
}

fn grid(svg: &mut Svg, kind: Kind, x: &Axis, y: &Axis, series: &[Series]) {
    for tick in y.decimal_ticks() {
        let at = y.place(tick);
        svg.line(&[(LEFT, at), (RIGHT, at)], FAINT, 1.0, "");
        svg.text((LEFT - 8.0, at + 4.5), Anchor::End, 12.5, QUIET, "normal", &plain(tick));
    }
    let mut sizes: Vec<f64> = series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let mut last = f64::NEG_INFINITY;
    for value in sizes {
        let at = x.place(value);
        svg.line(&[(at, TOP), (at, BOTTOM)], FAINT, 1.0, "");
        // A label that would touch the one before is left out.
        if at - last > 44.0 {
            svg.text((at, BOTTOM + 20.0), Anchor::Middle, 12.5, QUIET, "normal", &size(value as usize));
            last = at;
        }
    }
    svg.line(&[(LEFT, BOTTOM), (RIGHT, BOTTOM)], QUIET, 1.0, "");
    let unit = kind.unit().name();
    svg.text((LEFT - 8.0, TOP - 10.0), Anchor::End, 12.5, INK, "normal", unit);
    let what = "size of one operation (both axes logarithmic)";
    svg.text(((LEFT + RIGHT) / 2.0, BOTTOM + 44.0), Anchor::Middle, 13.0, INK, "normal", what);
}

/// A tick's value, without digits that say nothing.
fn plain(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("{value:.3}").trim_end_matches('0').into() }
}

/// Each curve's name and last value beside its end, moved apart where they would overlap.
fn labels(svg: &mut Svg, kind: Kind, x: &Axis, y: &Axis, series: &[Series]) {
    let mut ends: Vec<(f64, &Series)> = Vec::new();
    for series in series {
        let Some((last, value)) = series.points.last() else { continue };
        let (at, height) = (x.place(*last), y.place(*value));
        if at < RIGHT - 1.0 {
            // It ends inside the picture: named there.
            svg.text((at + 7.0, height - 7.0), Anchor::Start, 12.5, series.color, "normal", &series.name);
        } else {
            ends.push((height, series));
        }
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    // A label keeps its distance from the one above, and the lowest from the axis.
    for i in 1..ends.len() {
        ends[i].0 = ends[i].0.max(ends[i - 1].0 + LABEL);
    }
    let over = ends.last().map_or(0.0, |end| (end.0 - BOTTOM).max(0.0));
    ends.iter_mut().for_each(|end| end.0 -= over);
    for (at, series) in ends {
        let Some((last, value)) = series.points.last() else { continue };
        let from = x.place(*last);
        svg.line(&[(from + 5.0, y.place(*value)), (RIGHT + 12.0, at)], series.color, 0.8, "");
        let weight = if series.name == "Bellwether" { "bold" } else { "normal" };
        let text = format!("{} {} {}", series.name, number(*value), kind.unit().name());
        svg.text((RIGHT + 15.0, at + 4.5), Anchor::Start, 12.5, series.color, weight, &text);
    }
}
