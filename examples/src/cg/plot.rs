//! The convergence plot.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Width and height of the plot in pixels.
const SIZE: (u32, u32) = (900, 560);
/// More points than this on the curve would only make the file larger.
const MOST_POINTS: usize = 2000;

/// The curve to draw.
#[derive(Clone, Copy, Debug)]
pub struct Convergence<'a> {
    /// The line above the plot.
    pub title: &'a str,
    /// The relative residual before the first iteration and after each.
    pub residuals: &'a [f64],
    /// Where the iteration was to stop.
    pub tolerance: f64,
    /// The residual computed from the solution.
    pub true_residual: f64,
}

/// Draws the residuals over the iterations as an SVG image, with powers of ten on the vertical axis.
///
/// # Errors
/// The plotting library failed.
pub fn convergence(what: Convergence<'_>) -> Result<String> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    draw(&root, what).map_err(|error| anyhow!("cannot draw the convergence plot: {error}"))?;
    drop(root);
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw(root: &Area<'_>, what: Convergence<'_>) -> DrawResult {
    let points: Vec<(f64, f64)> = thin(what.residuals).filter_map(|(i, r)| Some((i as f64, logarithm(r)?))).collect();
    let tolerance = logarithm(what.tolerance);
    let reached = logarithm(what.true_residual);
    let heights = || points.iter().map(|point| point.1).chain(tolerance).chain(reached);
    let low = heights().fold(0.0, f64::min).floor() - 0.5;
    let high = heights().fold(0.0, f64::max).ceil() + 0.5;
    let last = what.residuals.len().saturating_sub(1).max(1) as f64;

    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .caption(what.title, ("sans-serif", 20))
        .margin(18)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..last * 1.04, low..high)?;
    chart
        .configure_mesh()
        .x_desc("iteration")
        .y_desc("|r| / |b|")
        .x_labels(12)
        .y_labels((high - low) as usize + 1)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| {
            if y.fract() == 0.0 { format!("1e{y:.0}") } else { String::new() }
        })
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .bold_line_style(BLACK.mix(0.14))
        .light_line_style(TRANSPARENT)
        .draw()?;

    let blue = RGBColor(31, 92, 168);
    let red = RGBColor(190, 40, 40);
    let green = RGBColor(30, 130, 70);
    if let Some(height) = tolerance {
        let dashes = DashedLineSeries::new([(0.0, height), (last * 1.04, height)], 8, 5, red.stroke_width(1));
        chart
            .draw_series(dashes)?
            .label(format!("tolerance {:.0e}", what.tolerance))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], red.stroke_width(1)));
    }
    chart
        .draw_series(LineSeries::new(points, blue.stroke_width(2)))?
        .label("residual of the recurrence")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], blue.stroke_width(2)));
    if let Some(height) = reached {
        let end = what.residuals.len().saturating_sub(1) as f64;
        chart
            .draw_series([Circle::new((end, height), 5, green.filled())])?
            .label(format!("|b - A x| / |b| = {:.2e}", what.true_residual))
            .legend(move |(x, y)| Circle::new((x + 11, y), 5, green.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .margin(14)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The power of ten, if there is one: an exact 0 is not on a logarithmic axis.
fn logarithm(value: f64) -> Option<f64> {
    (value > 0.0 && value.is_finite()).then(|| value.log10())
}

/// At most about [`MOST_POINTS`] of the residuals, evenly spaced, and the last.
fn thin(residuals: &[f64]) -> impl Iterator<Item = (usize, f64)> + '_ {
    let every = residuals.len().div_ceil(MOST_POINTS).max(1);
    let last = residuals.len().saturating_sub(1);
    residuals.iter().copied().enumerate().filter(move |(i, _)| i.is_multiple_of(every) || *i == last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_whatever_it_is_given() {
        for residuals in [vec![], vec![0.0], vec![1.0], vec![1.0, 3.5, 1e-3, 0.0], vec![f64::NAN, 1e-300]] {
            let what = Convergence { title: "a & b < c", residuals: &residuals, tolerance: 1e-8, true_residual: 0.0 };
            let svg = convergence(what).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("a &amp; b &lt; c"));
        }
    }
}
