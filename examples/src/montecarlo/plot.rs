//! The absorption profile.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Slab, Tallies};

/// Width and height of the plot in pixels.
const SIZE: (u32, u32) = (900, 560);

/// Draws absorptions over depth as an SVG image: what was counted, and the law of those absorbed in their first
/// collision.
///
/// # Errors
/// The plotting library failed.
pub fn profile(title: &str, slab: &Slab, tallies: &Tallies) -> Result<String> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    draw(&root, title, slab, tallies).map_err(|error| anyhow!("cannot draw the absorption profile: {error}"))?;
    drop(root);
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw(root: &Area<'_>, title: &str, slab: &Slab, tallies: &Tallies) -> DrawResult {
    let (bins, thickness) = (tallies.absorbed.len(), slab.thickness);
    let width = thickness / bins as f64;
    let scale = 1.0 / (tallies.particles().max(1) as f64 * width);
    let first = |depth: f64| slab.absorption * slab.uncollided(depth);
    let most = tallies.absorbed.iter().map(|count| *count as f64 * scale).fold(first(0.0), f64::max);
    let high = if most > 0.0 { 1.08 * most } else { 1.0 };

    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 20))
        .margin(18)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..thickness, 0.0..high)?;
    chart
        .configure_mesh()
        .x_desc("depth in cm")
        .y_desc("absorbed per particle and cm")
        .x_labels(12)
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .bold_line_style(BLACK.mix(0.14))
        .light_line_style(TRANSPARENT)
        .draw()?;

    let blue = RGBColor(31, 92, 168);
    let red = RGBColor(190, 40, 40);
    let bars = tallies.absorbed.iter().enumerate().map(|(bin, count)| {
        let from = bin as f64 * width;
        Rectangle::new([(from, 0.0), (from + width, *count as f64 * scale)], blue.mix(0.55).filled())
    });
    chart
        .draw_series(bars)?
        .label("absorbed")
        .legend(move |(x, y)| Rectangle::new([(x + 4, y - 6), (x + 18, y + 6)], blue.mix(0.55).filled()));
    let law = (0..=200).map(|point| thickness * f64::from(point) / 200.0).map(|depth| (depth, first(depth)));
    chart
        .draw_series(LineSeries::new(law, red.stroke_width(2)))?
        .label("absorbed in the first collision, by the exponential law")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], red.stroke_width(2)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_whatever_it_is_given() {
        for (absorption, absorbed) in [(0.0, vec![0]), (1.0, vec![5, 0, 3]), (1e9, vec![u64::MAX >> 12])] {
            let slab = Slab { thickness: 2.0, absorption, scattering: 1.0 };
            let svg = profile("a & b < c", &slab, &Tallies { absorbed, ..Tallies::default() }).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        }
    }
}
