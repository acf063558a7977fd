//! The bodies as a picture, seen along the z axis, with axes.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::heat::picture::encode_pixels;

/// Pixels on a side of the part that shows the bodies.
const SIDE: usize = 768;
/// How far a body's light reaches, in pixels.
const REACH: i64 = 5;
/// The picture shows x and y from minus this to this, in units of length.
const HALF: f64 = 2.5;
/// Pixels around them: on the left and below for labels, above for the title.
const LEFT: u32 = 76;
const BELOW: u32 = 60;
const ABOVE: u32 = 44;
const RIGHT: u32 = 24;
/// Of those on the left, outside the axis's name: letters reach beyond its box.
const EDGE: u32 = 12;

/// Draws bodies as lights on a dark ground, with axes, as an SVG image. It shows -2.5 to 2.5 in x and y; bodies farther out
/// are not seen.
///
/// # Errors
/// The encoder or the plotting library failed.
pub fn draw(title: &str, places: &[[f64; 3]]) -> Result<String> {
    let mut svg = String::new();
    let size = (LEFT + SIDE as u32 + RIGHT, ABOVE + SIDE as u32 + BELOW);
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    axes(&root, title).map_err(|error| anyhow!("cannot draw the axes: {error}"))?;
    drop(root);
    // Over the white ground, which is the first thing drawn, and under the axes.
    let lights = format!(
        "<image x=\"{LEFT}\" y=\"{ABOVE}\" width=\"{SIDE}\" height=\"{SIDE}\" href=\"data:image/png;base64,{}\"/>\n",
        base64(&encode_pixels(SIDE, &lights(places))?)
    );
    let ground = svg.find("<rect").and_then(|at| Some(at + svg[at..].find('\n')? + 1));
    svg.insert_str(ground.ok_or_else(|| anyhow!("the plotting library drew no ground"))?, &lights);
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

fn axes(root: &Area<'_>, title: &str) -> DrawResult {
    root.fill(&WHITE)?;
    let style = ("sans-serif", 20).into_font();
    root.draw(&Text::new(title.to_owned(), (LEFT as i32, 14), style))?;
    let mut chart = ChartBuilder::on(root)
        .margin_top(ABOVE)
        .margin_right(RIGHT)
        .margin_left(EDGE)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT - EDGE)
        .build_cartesian_2d(-HALF..HALF, -HALF..HALF)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("x in units of length")
        .y_desc("y in units of length")
        .x_labels(11)
        .y_labels(11)
        .x_label_formatter(&|x| format!("{x:.1}"))
        .y_label_formatter(&|y| format!("{y:.1}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The bodies' light, in rows of [`SIDE`] pixels.
fn lights(places: &[[f64; 3]]) -> Vec<[u8; 4]> {
    let mut light = vec![0.0_f64; SIDE * SIDE];
    let strength = (2000.0 / places.len().max(1) as f64).clamp(0.1, 2.0);
    for [x, y, _] in places {
        let [column, row] = [*x, -*y].map(|at| (at / (2.0 * HALF) + 0.5) * SIDE as f64);
        for (dx, dy) in (-REACH..=REACH).flat_map(|dx| (-REACH..=REACH).map(move |dy| (dx, dy))) {
            let (at_column, at_row) = (column.floor() as i64 + dx, row.floor() as i64 + dy);
            let inside = 0..SIDE as i64;
            if inside.contains(&at_column) && inside.contains(&at_row) {
                let (off_x, off_y) = (at_column as f64 + 0.5 - column, at_row as f64 + 0.5 - row);
                let glow = strength * (-(off_x * off_x + off_y * off_y) / 2.5).exp();
                light[at_row as usize * SIDE + at_column as usize] += glow;
            }
        }
    }
    light.into_iter().map(colour).collect()
}

/// From dark blue over light blue to white: each further light adds less.
fn colour(light: f64) -> [u8; 4] {
    let channel = |ground: f64, gain: f64| (ground + (255.0 - ground) * (1.0 - (-gain * light).exp())) as u8;
    [channel(8.0, 0.55), channel(10.0, 0.8), channel(28.0, 1.5), 255]
}

/// Bytes as text, by RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | u32::from(*three.get(i).unwrap_or(&0)));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) as usize % 64;
            text.push(if digit <= three.len() { DIGITS[value].into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648, section 10.
        let text = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, text) in text.iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), *text);
        }
    }

    #[test]
    fn axes_have_ticks_labels_and_units() {
        let svg = draw("two bodies & more", &[[0.0, 0.0, 0.0], [1.0, -2.0, 9.0], [99.0, 0.0, 0.0]]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in ["x in units of length", "y in units of length", "two bodies &amp; more"] {
            assert!(svg.contains(word), "{word}");
        }
        for tick in ["-2.0", "0.0", "2.0"] {
            let labels = svg.lines().filter(|line| line.trim() == tick).count();
            assert_eq!(labels, 2, "{tick} stands at both axes");
        }
        assert!(svg.contains(&format!("rotate(270, {EDGE},")), "the name of the axis is inside the picture");
        // The lights lie between the ground and the axes.
        let [ground, lights, axis] = ["<rect", "<image", "<polyline"].map(|what| svg.find(what).expect("it is drawn"));
        assert!(ground < lights && lights < axis);
    }

    #[test]
    fn a_body_shines_where_it_is() {
        let pixels = lights(&[[1.0, 1.5, 0.0]]);
        let (brightest, _) = pixels.iter().enumerate().max_by_key(|(_, pixel)| pixel[0]).expect("there are pixels");
        let [column, row] = [brightest % SIDE, brightest / SIDE].map(|at| at as f64 / SIDE as f64 * 5.0 - 2.5);
        assert!((column - 1.0).abs() < 0.02 && (row + 1.5).abs() < 0.02, "{column} {row}");
    }
}
