//! The bodies as a picture, seen along the z axis.

use anyhow::Result;

use crate::heat::picture::encode_pixels;

/// Pixels on a side.
const SIDE: usize = 768;
/// How far a body's light reaches, in pixels.
const REACH: i64 = 5;

/// Draws bodies as lights on a dark ground, as PNG data. The picture shows -2.5 to 2.5 in x and y; bodies farther out are
/// not seen.
///
/// # Errors
/// The encoder failed.
pub fn draw(places: &[[f64; 3]]) -> Result<Vec<u8>> {
    let mut light = vec![0.0_f64; SIDE * SIDE];
    let strength = (2000.0 / places.len().max(1) as f64).clamp(0.1, 2.0);
    for [x, y, _] in places {
        let [column, row] = [*x, -*y].map(|at| (at / 5.0 + 0.5) * SIDE as f64);
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
    let pixels: Vec<[u8; 4]> = light.into_iter().map(colour).collect();
    encode_pixels(SIDE, &pixels)
}

/// From dark blue over light blue to white: each further light adds less.
fn colour(light: f64) -> [u8; 4] {
    let channel = |ground: f64, gain: f64| (ground + (255.0 - ground) * (1.0 - (-gain * light).exp())) as u8;
    [channel(8.0, 0.55), channel(10.0, 0.8), channel(28.0, 1.5), 255]
}
