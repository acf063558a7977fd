//! Reading a plate from a PNG file, and writing pictures.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use png::{BitDepth, ColorType, Decoder, Encoder, Limits, Transformations};

use super::plate::{COLD, Cell, HOT, Hold, Plate, conducts};

/// The palette entry of insulation; those below it are temperatures.
const INSULATION: u8 = 255;
/// The colour of insulation.
const INSULATION_COLOUR: [u8; 3] = [96, 104, 112];

/// How every PNG file begins.
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Colours from cold to hot at equal distances: black, violet, red, orange, yellow, nearly white.
const COLOURS: [[u8; 3]; 9] = [
    [4, 4, 22],
    [34, 12, 82],
    [86, 18, 110],
    [136, 34, 106],
    [187, 55, 84],
    [226, 90, 48],
    [249, 142, 10],
    [249, 203, 54],
    [252, 253, 190],
];

/// Reads a plate from a PNG file: grey, colour, palette, 8 or 16 bits, with or without alpha.
///
/// # Errors
/// The file is absent, empty, not a PNG, broken, truncated, or too large; the error names it and says which.
pub fn read_plate(path: &Path, hold: Hold) -> Result<Plate> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let about = file.metadata().with_context(|| format!("cannot read {name}"))?;
    if about.is_dir() {
        bail!("{name} is a folder, not a PNG file");
    }
    if about.is_file() && about.len() == 0 {
        bail!("{name} is empty, not a PNG file");
    }
    decode_plate(BufReader::new(file), hold).with_context(|| format!("cannot use {name} as a plate"))
}

/// Reads a plate from PNG data. The size is checked before memory is taken.
///
/// # Errors
/// The data is not a PNG, broken, truncated, or too large.
pub fn decode_plate(mut data: impl BufRead + Seek, hold: Hold) -> Result<Plate> {
    let beginning = data.fill_buf().context("cannot read it")?;
    let known = beginning.len().min(SIGNATURE.len());
    if beginning[..known] != SIGNATURE[..known] {
        bail!("it is not a PNG file");
    }
    let mut decoder = Decoder::new_with_limits(data, Limits { bytes: 1 << 30 });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let header = decoder.read_header_info().map_err(explain)?;
    let (width, height) = (header.width as usize, header.height as usize);
    Plate::check_size(width, height)?;
    let mut reader = decoder.read_info().map_err(explain)?;
    let size = reader.output_buffer_size().context("the image is too large for this machine")?;
    let mut bytes = vec![0; size];
    reader.next_frame(&mut bytes).map_err(explain)?;
    // Also what follows the image must be whole: a file that was cut short is not to be trusted.
    reader.finish().map_err(explain)?;
    let pixel: fn(&[u8]) -> [u8; 4] = match reader.output_color_type().0 {
        ColorType::Grayscale => |p| [p[0], p[0], p[0], 255],
        ColorType::GrayscaleAlpha => |p| [p[0], p[0], p[0], p[1]],
        ColorType::Rgb => |p| [p[0], p[1], p[2], 255],
        ColorType::Rgba => |p| [p[0], p[1], p[2], p[3]],
        ColorType::Indexed => bail!("its palette cannot be expanded"),
    };
    let samples = reader.output_color_type().0.samples();
    Ok(Plate::from_pixels(width, height, bytes.chunks_exact(samples).map(pixel), hold))
}

/// The decoder's error in the user's words.
fn explain(error: png::DecodingError) -> anyhow::Error {
    match error {
        png::DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            anyhow!("the PNG data ends too early (is the file truncated?)")
        }
        png::DecodingError::LimitsExceeded => anyhow!("decoding it would take more than 1 GiB"),
        error => anyhow!("the PNG data is broken: {error}"),
    }
}

/// A picture of temperatures as PNG data; insulation is drawn grey.
///
/// # Errors
/// The encoder failed.
pub fn draw(width: usize, cells: &[Cell], temperatures: &[f64]) -> Result<Vec<u8>> {
    let scale = f64::from(INSULATION - 1) / (HOT - COLD);
    let level = |(&cell, &t): (&Cell, &f64)| {
        // `as` keeps a value outside the scale at its end.
        if conducts(cell) { ((t - COLD) * scale).round().min(f64::from(INSULATION - 1)) as u8 } else { INSULATION }
    };
    let levels: Vec<u8> = cells.iter().zip(temperatures).map(level).collect();
    let mut data = Vec::new();
    let mut encoder = Encoder::new(&mut data, u32::try_from(width)?, u32::try_from(levels.len() / width)?);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette(palette());
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header()?.write_image_data(&levels)?;
    Ok(data)
}

/// Pixels (red, green, blue, alpha) as PNG data without alpha.
///
/// # Errors
/// The encoder failed.
pub fn encode_pixels(width: usize, pixels: &[[u8; 4]]) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    let mut encoder = Encoder::new(&mut data, u32::try_from(width)?, u32::try_from(pixels.len() / width)?);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    let bytes: Vec<u8> = pixels.iter().flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
    encoder.write_header()?.write_image_data(&bytes)?;
    Ok(data)
}

/// 255 colours from cold to hot, and insulation.
fn palette() -> Vec<u8> {
    let steps = COLOURS.len() - 1;
    let mut palette = Vec::with_capacity(3 * 256);
    for level in 0..usize::from(INSULATION) {
        let position = (level * steps) as f64 / f64::from(INSULATION - 1);
        let low = (position as usize).min(steps - 1);
        let part = position - low as f64;
        for (from, to) in COLOURS[low].into_iter().zip(COLOURS[low + 1]) {
            palette.push((f64::from(from) * (1.0 - part) + f64::from(to) * part).round() as u8);
        }
    }
    palette.extend(INSULATION_COLOUR);
    palette
}
