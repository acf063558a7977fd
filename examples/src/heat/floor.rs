//! The plates that are used when none is given: the floor plan of a house in winter, and an open plate.

use super::plate::Plate;

/// Red, green, blue, alpha.
pub type Pixel = [u8; 4];

const WALL: Pixel = [0, 0, 255, 255];
const RADIATOR: Pixel = [255, 255, 255, 255];
const WINDOW: Pixel = [0, 0, 0, 255];
/// The air, at 20 degrees.
const AIR: Pixel = [51, 51, 51, 255];

/// The plan is drawn in these units and scaled to the size asked for.
const UNITS: [f64; 2] = [96.0, 64.0];
/// The size used unless another is asked for.
pub const DEFAULT_SIZE: [usize; 2] = [768, 512];

/// Pixels being drawn on.
struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<Pixel>,
}

impl Canvas {
    /// Paints every pixel of a box (left, top, right, bottom in units) whose centre is `inside`.
    fn paint(&mut self, colour: Pixel, corners: [f64; 4], inside: impl Fn(f64, f64) -> bool) {
        let scale = [self.width as f64 / UNITS[0], self.height as f64 / UNITS[1]];
        // The first pixel whose centre is not before the edge.
        let pixel = |edge: f64, scale: f64, end: usize| ((edge * scale - 0.5).ceil().max(0.0) as usize).min(end);
        let [left, right] = [corners[0], corners[2]].map(|edge| pixel(edge, scale[0], self.width));
        let [top, bottom] = [corners[1], corners[3]].map(|edge| pixel(edge, scale[1], self.height));
        for (y, x) in (top..bottom).flat_map(|y| (left..right).map(move |x| (y, x))) {
            if inside((x as f64 + 0.5) / scale[0], (y as f64 + 0.5) / scale[1]) {
                self.pixels[y * self.width + x] = colour;
            }
        }
    }

    fn rectangles(&mut self, colour: Pixel, corners: &[[f64; 4]]) {
        for &corners in corners {
            self.paint(colour, corners, |_, _| true);
        }
    }

    fn disc(&mut self, colour: Pixel, [cx, cy]: [f64; 2], radius: f64) {
        let corners = [cx - radius, cy - radius, cx + radius, cy + radius];
        self.paint(colour, corners, |x, y| (x - cx).hypot(y - cy) < radius);
    }
}

/// Draws the plan as `width * height` pixels, row by row. Insulating walls with doors, cold windows, radiators.
pub fn pixels(width: usize, height: usize) -> Vec<Pixel> {
    let mut canvas = Canvas { width, height, pixels: vec![AIR; width * height] };
    // Outer walls, then inner walls with gaps for the doors.
    canvas.rectangles(WALL, &[[0., 0., 96., 2.], [0., 62., 96., 64.], [0., 0., 2., 64.], [94., 0., 96., 64.]]);
    canvas.rectangles(
        WALL,
        &[
            [38., 2., 39., 12.],
            [38., 18., 39., 34.],
            [2., 33., 12., 34.],
            [18., 33., 54., 34.],
            [60., 33., 94., 34.],
            [66., 2., 67., 22.],
            [66., 28., 67., 34.],
            [30., 34., 31., 44.],
            [30., 50., 31., 62.],
            [62., 40., 63., 62.],
        ],
    );
    canvas.rectangles(
        WINDOW,
        &[
            [8., 1., 28., 2.],
            [46., 1., 60., 2.],
            [74., 1., 88., 2.],
            [1., 42., 2., 54.],
            [40., 62., 54., 63.],
            [94., 42., 95., 56.],
        ],
    );
    radiators(&mut canvas);
    canvas.pixels
}

fn radiators(canvas: &mut Canvas) {
    // A comb: a pipe with ribs.
    canvas.rectangles(RADIATOR, &[[7., 6., 31., 7.]]);
    for rib in 0..4 {
        let left = 7. + 23. / 3. * f64::from(rib);
        canvas.rectangles(RADIATOR, &[[left, 6., left + 1., 16.]]);
    }
    // A horseshoe, with an insulated column inside it.
    canvas.paint(RADIATOR, [44., 10., 60., 20.], |x, y| (7.0..8.0).contains(&(x - 52.).hypot(y - 18.)));
    canvas.disc(WALL, [52., 18.], 2.);
    // A serpentine under the floor.
    for turn in 0..3 {
        let top = 40. + 8. * f64::from(turn);
        let side = if turn % 2 == 0 { 55. } else { 37. };
        canvas.rectangles(RADIATOR, &[[37., top, 56., top + 1.]]);
        if turn < 2 {
            canvas.rectangles(RADIATOR, &[[side, top, side + 1., top + 9.]]);
        }
    }
    // A stove in the corner, a towel rail, and a long spiral passage that warms up last.
    canvas.disc(RADIATOR, [90., 29.], 2.5);
    canvas.rectangles(RADIATOR, &[[10., 57., 24., 58.], [10., 54., 24., 55.]]);
    canvas.rectangles(RADIATOR, &[[76., 50., 79., 53.]]);
    canvas.rectangles(
        WALL,
        &[
            [68., 42., 88., 43.],
            [87., 42., 88., 60.],
            [72., 59., 88., 60.],
            [72., 46., 73., 60.],
            [72., 46., 83., 47.],
            [83., 46., 84., 56.],
        ],
    );
}

/// Draws a plate without walls: the upper edge is held hot and the other three cold, all between starts as air.
pub fn open_pixels(width: usize, height: usize) -> Vec<Pixel> {
    let pixel = |x, y| match (x, y) {
        (_, 0) => RADIATOR,
        (x, y) if x == 0 || x + 1 == width || y + 1 == height => WINDOW,
        _ => AIR,
    };
    (0..height).flat_map(|y| (0..width).map(move |x| pixel(x, y))).collect()
}

/// The plan as a plate.
pub fn plate(width: usize, height: usize, hold: super::plate::Hold) -> Plate {
    Plate::from_pixels(width, height, pixels(width, height).into_iter(), hold)
}
