//! The plate: what a pixel means.

use anyhow::{Result, bail};

/// Temperature of a black pixel, in degrees.
pub const COLD: f64 = 0.0;
/// Temperature of a white pixel, in degrees.
pub const HOT: f64 = 100.0;

/// The widest and highest plate.
pub const MAX_SIDE: usize = 16_384;
/// The most cells of a plate; their temperatures take 2 GiB.
pub const MAX_CELLS: usize = 1 << 27;

/// One cell of a plate: brightness in the low byte, what it does above it. Plain data, so that it can be put.
pub type Cell = u16;

/// The cell keeps its temperature: a heater or a cooler.
const HELD: Cell = 0x100;
/// No heat enters or leaves the cell; it has no temperature.
const INSULATION: Cell = 0x200;

/// A cell of insulation.
pub const INSULATED: Cell = INSULATION;

/// A cell that starts at the temperature of `brightness` and then follows its neighbours.
pub const fn free(brightness: u8) -> Cell {
    brightness as Cell
}

/// A cell that keeps the temperature of `brightness`.
pub const fn held(brightness: u8) -> Cell {
    HELD | brightness as Cell
}

/// Whether heat can pass through the cell.
pub const fn conducts(cell: Cell) -> bool {
    cell & INSULATION == 0
}

/// Whether the cell's temperature follows its neighbours'.
pub const fn is_free(cell: Cell) -> bool {
    cell & (HELD | INSULATION) == 0
}

/// The temperature a cell starts with, in degrees; [`COLD`] for insulation.
pub fn temperature(cell: Cell) -> f64 {
    if conducts(cell) { COLD + (HOT - COLD) * f64::from(cell & 0xff) / 255.0 } else { COLD }
}

/// Which of the extreme pixels keep their temperature for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Hold {
    /// White and black; but only white if the plate has no grey, as nothing could change
    Auto,
    /// White is a heater, black a cooler
    Both,
    /// White is a heater; black only starts cold
    Hot,
    /// No pixel: all are starting temperatures
    None,
}

/// A plate of `width` by `height` cells, stored row by row from the top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plate {
    /// Cells in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `width * height` cells.
    pub cells: Vec<Cell>,
}

impl Plate {
    /// Checks that a plate of this size can be worked on.
    ///
    /// # Errors
    /// The size is zero or too large.
    pub fn check_size(width: usize, height: usize) -> Result<()> {
        if width == 0 || height == 0 {
            bail!("a plate of {width} x {height} cells has nothing to compute");
        }
        if width > MAX_SIDE || height > MAX_SIDE || width * height > MAX_CELLS {
            bail!(
                "{width} x {height} cells are too many: at most {MAX_SIDE} on a side and {} million in all",
                MAX_CELLS >> 20
            );
        }
        Ok(())
    }

    /// Turns pixels (red, green, blue, alpha; row by row) into cells: blue and transparent pixels insulate, the brightness
    /// of all others is a temperature, and `hold` says whether white and black keep it.
    pub fn from_pixels(width: usize, height: usize, pixels: impl Iterator<Item = [u8; 4]>, hold: Hold) -> Plate {
        let mut cells: Vec<Cell> = pixels.map(cell_of).collect();
        let grey = cells.iter().any(|&cell| conducts(cell) && !matches!(cell & 0xff, 0 | 255));
        let (hot, cold) = match hold {
            Hold::Auto => (true, grey),
            Hold::Both => (true, true),
            Hold::Hot => (true, false),
            Hold::None => (false, false),
        };
        for cell in &mut cells {
            if (hot && *cell == free(255)) || (cold && *cell == free(0)) {
                *cell |= HELD;
            }
        }
        Plate { width, height, cells }
    }

    /// Cells whose temperature can change.
    pub fn free_cells(&self) -> usize {
        self.cells.iter().filter(|&&cell| is_free(cell)).count()
    }
}

/// The cell for a pixel, before [`Hold`] is applied. Blue need not be pure, so that the soft edge of a brush stroke insulates
/// too; a colour that is not blue counts by its brightness (ITU-R BT.601 weights).
fn cell_of([red, green, blue, alpha]: [u8; 4]) -> Cell {
    let blueness = i32::from(blue) - i32::from(red.max(green));
    if alpha < 128 || blueness >= 96 {
        return INSULATED;
    }
    let weighted = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    free(((weighted + 500) / 1000) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pixels: &[[u8; 4]], hold: Hold) -> Vec<Cell> {
        Plate::from_pixels(pixels.len(), 1, pixels.iter().copied(), hold).cells
    }

    const WHITE: [u8; 4] = [255; 4];
    const BLACK: [u8; 4] = [0, 0, 0, 255];
    const GREY: [u8; 4] = [100, 100, 100, 255];
    const BLUE: [u8; 4] = [0, 0, 255, 255];

    #[test]
    fn white_and_black_are_held_grey_is_free_blue_insulates() {
        assert_eq!(row(&[WHITE, BLACK, GREY, BLUE], Hold::Auto), [held(255), held(0), free(100), INSULATED]);
        assert_eq!(row(&[WHITE, BLACK, GREY, BLUE], Hold::None), [free(255), free(0), free(100), INSULATED]);
    }

    #[test]
    fn without_grey_black_only_starts_cold() {
        assert_eq!(row(&[WHITE, BLACK, BLUE], Hold::Auto), [held(255), free(0), INSULATED]);
        assert_eq!(row(&[WHITE, BLACK, BLUE], Hold::Both), [held(255), held(0), INSULATED]);
    }

    #[test]
    fn transparent_insulates_and_colours_count_by_brightness() {
        assert_eq!(row(&[[255, 255, 255, 0], [255, 0, 0, 255]], Hold::Auto), [INSULATED, free(76)]);
    }

    #[test]
    fn temperatures_span_the_scale() {
        assert_eq!([temperature(held(0)), temperature(free(51)), temperature(held(255))], [0.0, 20.0, 100.0]);
    }
}
