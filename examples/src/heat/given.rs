//! The plate and the numbers that a command line gives, for `heat2d` and `watch`.

use std::path::Path;

use anyhow::bail;

use super::plate::{Hold, Plate};
use super::{floor, picture, stencil};

/// The built-in plate of this size, as pixels: a floor plan, or an `open` plate.
pub fn pixels([width, height]: [usize; 2], open: bool) -> Vec<floor::Pixel> {
    if open { floor::open_pixels(width, height) } else { floor::pixels(width, height) }
}

/// Reads the plate, or makes the built-in one.
///
/// # Errors
/// The file cannot be used, or nothing can change on the plate.
pub fn plate(file: Option<&Path>, size: [usize; 2], open: bool, hold: Hold) -> anyhow::Result<Plate> {
    let plate = match file {
        Some(path) => picture::read_plate(path, hold)?,
        None => Plate::from_pixels(size[0], size[1], pixels(size, open).into_iter(), hold),
    };
    if plate.free_cells() == 0 {
        let name = file.map_or("the plate".into(), |path| path.display().to_string());
        bail!("nothing can change in {name}: every cell is insulated or held (see --hold)");
    }
    Ok(plate)
}

/// A number larger than 0.
///
/// # Errors
/// The text is something else. The error says what was expected.
pub fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("must be larger than 0".to_owned()) }
}

/// A number with which the steps are stable.
///
/// # Errors
/// The text is something else. The error says what was expected.
pub fn stable(text: &str) -> Result<f64, String> {
    let value = positive(text)?;
    if value <= stencil::MAX_ALPHA { Ok(value) } else { Err(format!("must be at most {}", stencil::MAX_ALPHA)) }
}

/// Width and height of a plate.
///
/// # Errors
/// The text is something else. The error says what was expected.
pub fn size(text: &str) -> Result<[usize; 2], String> {
    let (width, height) = text.split_once('x').ok_or("write it as 768x512")?;
    let side = |text: &str| text.parse::<usize>().map_err(|_| "write it as 768x512".to_owned());
    let size = [side(width)?, side(height)?];
    Plate::check_size(size[0], size[1]).map_err(|error| error.to_string())?;
    Ok(size)
}
