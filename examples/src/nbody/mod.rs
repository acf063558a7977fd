//! Bodies that attract each other: direct summation, and the leapfrog.
//!
//! Ranks hold bodies, and all positions must come by each rank in every step. [`parallel`] has two ways for that. Each
//! adds the forces in an order of its own; so that this does not matter, accelerations are added as integers, multiples of
//! [`UNIT`]. The result is the same, bit for bit, for any number of ranks and both ways.

pub mod parallel;
pub mod picture;

use std::f64::consts::TAU;

use bellwether::random::Stream;

use crate::random::digest;

/// Accelerations and potentials are rounded to multiples of this, 2^-42, before they are added.
pub const UNIT: f64 = 1.0 / (1_u64 << 42) as f64;

/// Bodies nearer than this attract each other as if they were so far apart (Plummer's softening).
///
/// The mass of all bodies is 1, so that no acceleration exceeds `0.385 / SOFTENING^2 = 154`, far below what
/// [`rounded`] can do.
pub const SOFTENING: f64 = 0.05;

/// Added to a number below 2^9, this leaves its multiple of [`UNIT`] in the low bits: a conversion that can be done for
/// several numbers at once.
const SHIFT: f64 = 1.5 * (1_u64 << 52) as f64 * UNIT;

/// The nearest multiple of [`UNIT`], as an integer.
#[inline(always)]
pub fn rounded(value: f64) -> i64 {
    (value + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i64
}

/// Three coordinates of some bodies: all x, then all y, then all z.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors(pub Vec<f64>);

impl Vectors {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / 3
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All x, all y, all z.
    pub fn axes(&self) -> [&[f64]; 3] {
        let (x, rest) = self.0.split_at(self.len());
        let (y, z) = rest.split_at(self.len());
        [x, y, z]
    }
}

/// Sums at each of some bodies, in multiples of [`UNIT`]: acceleration, and potential.
pub type Sums = Vec<[i64; 4]>;

/// Adds to `sums` the accelerations and potentials at `targets` from `sources`, which have equal masses.
pub fn attract(targets: &Vectors, sources: &Vectors, mass: f64, sums: &mut Sums) {
    let ([tx, ty, tz], [sx, sy, sz]) = (targets.axes(), sources.axes());
    for (i, sum) in sums.iter_mut().enumerate() {
        let (x, y, z) = (tx[i], ty[i], tz[i]);
        let mut here = [0_i64; 4];
        for ((sx, sy), sz) in sx.iter().zip(sy).zip(sz) {
            let (dx, dy, dz) = (sx - x, sy - y, sz - z);
            let near = 1.0 / (dx * dx + dy * dy + dz * dz + SOFTENING * SOFTENING).sqrt();
            let strength = mass * near * near * near;
            let parts = [strength * dx, strength * dy, strength * dz, -mass * near];
            for (sum, part) in here.iter_mut().zip(parts) {
                *sum = sum.wrapping_add(rounded(part));
            }
        }
        for (sum, here) in sum.iter_mut().zip(here) {
            *sum = sum.wrapping_add(here);
        }
    }
}

/// Some of the bodies, and how they move.
#[derive(Clone, Debug, PartialEq)]
pub struct Bodies {
    /// The number of the first one.
    pub first: usize,
    /// The mass of each.
    pub mass: f64,
    /// Where they are.
    pub places: Vectors,
    /// How fast they move.
    pub speeds: Vectors,
}

impl Bodies {
    /// Bodies `range` of `all`: two clusters of Plummer's form (Aarseth, Henon and Wielen, 1974) that pass each other.
    pub fn new(all: usize, range: std::ops::Range<usize>, seed: u64) -> Bodies {
        let (count, mut places, mut speeds) = (range.len(), vec![], vec![]);
        places.resize(3 * count, 0.0);
        speeds.resize(3 * count, 0.0);
        for (here, number) in range.clone().enumerate() {
            let (place, speed) = body(seed, number);
            for axis in 0..3 {
                places[axis * count + here] = place[axis];
                speeds[axis * count + here] = speed[axis];
            }
        }
        Bodies { first: range.start, mass: 1.0 / all as f64, places: Vectors(places), speeds: Vectors(speeds) }
    }

    /// Changes speeds by `time` times the accelerations.
    pub fn kick(&mut self, sums: &Sums, time: f64) {
        let count = sums.len();
        for (i, sum) in sums.iter().enumerate() {
            for (axis, part) in sum[..3].iter().enumerate() {
                self.speeds.0[axis * count + i] += *part as f64 * UNIT * time;
            }
        }
    }

    /// Changes places by `time` times the speeds.
    pub fn drift(&mut self, time: f64) {
        for (place, speed) in self.places.0.iter_mut().zip(&self.speeds.0) {
            *place += speed * time;
        }
    }

    /// Kinetic energy, potential energy and the sum of accelerations (each axis), in multiples of [`UNIT`].
    pub fn totals(&self, sums: &Sums) -> [i64; 5] {
        let [vx, vy, vz] = self.speeds.axes();
        let mut totals = [0_i64; 5];
        for (i, sum) in sums.iter().enumerate() {
            let kinetic = 0.5 * self.mass * (vx[i] * vx[i] + vy[i] * vy[i] + vz[i] * vz[i]);
            // Each pair is counted from both sides, and each body's softened potential in itself is no energy.
            let potential = 0.5 * self.mass * (sum[3] as f64 * UNIT + self.mass / SOFTENING);
            for (total, part) in totals.iter_mut().zip([rounded(kinetic), rounded(potential), sum[0], sum[1], sum[2]]) {
                *total = total.wrapping_add(part);
            }
        }
        totals
    }

    /// Their part of the digest of all places and speeds.
    pub fn digest(&self) -> u64 {
        let count = self.places.len();
        let each = |(what, vectors): (usize, &Vectors)| {
            let place =
                |k: usize| (((self.first + k % count) * 6 + k / count + 3 * what) as u64, vectors.0[k].to_bits());
            digest((0..3 * count).map(place))
        };
        each((0, &self.places)).wrapping_add(each((1, &self.speeds)))
    }
}

/// Where a body is in the beginning, and how fast it moves.
fn body(seed: u64, number: usize) -> ([f64; 3], [f64; 3]) {
    /// The scale of a cluster, and its part of the mass.
    const SIZE: f64 = 0.4;
    const PART: f64 = 0.5;
    let mut random = Stream::new(seed, number as u64);
    let side = if number.is_multiple_of(2) { 1.0 } else { -1.0 };
    // The innermost 0.1 % to 95 % of the cluster: one body far out would only shrink the picture.
    let inside = 0.001 + 0.949 * random.unit();
    let radius = SIZE / (inside.powf(-2.0 / 3.0) - 1.0).sqrt();
    // The part of the speed of escape, by rejection.
    let part = loop {
        let (part, height) = (random.unit(), 0.1 * random.unit());
        if height < part * part * (1.0 - part * part).powf(3.5) {
            break part;
        }
    };
    let speed = part * (2.0 * PART / SIZE).sqrt() * (1.0 + (radius / SIZE).powi(2)).powf(-0.25);
    let mut place = direction(&mut random).map(|axis| axis * radius);
    let mut velocity = direction(&mut random).map(|axis| axis * speed);
    place[0] += side;
    place[1] += 0.4 * side;
    velocity[0] -= 0.35 * side;
    (place, velocity)
}

/// A vector of length 1, any direction alike.
fn direction(random: &mut Stream) -> [f64; 3] {
    let z: f64 = random.uniform(-1.0..1.0);
    let (sin, cos) = (TAU * random.unit()).sin_cos();
    let across = (1.0 - z * z).sqrt();
    [across * cos, across * sin, z]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_by_a_shift_is_rounding() {
        for value in [0.0, 1.0, -1.0, 0.3, -0.3, 200.0, -511.9, 1e-13, UNIT, -UNIT] {
            assert_eq!(rounded(value), (value / UNIT).round_ties_even() as i64, "{value}");
        }
    }

    #[test]
    fn two_bodies_attract_each_other_by_newtons_law() {
        let places = Vectors(vec![0.0, 3.0, 0.0, 4.0, 0.0, 0.0]);
        let mut sums = vec![[0; 4]; 2];
        attract(&places, &places, 0.5, &mut sums);
        let distance = (25.0 + SOFTENING * SOFTENING).sqrt();
        let expected = [0.5 * 3.0, 0.5 * 4.0].map(|part| part / distance.powi(3));
        assert!((sums[0][0] as f64 * UNIT - expected[0]).abs() < 2.0 * UNIT);
        assert!((sums[0][1] as f64 * UNIT - expected[1]).abs() < 2.0 * UNIT);
        assert_eq!([sums[0][0], sums[0][1], sums[0][2]], [-sums[1][0], -sums[1][1], -sums[1][2]]);
        let bodies = Bodies { first: 0, mass: 0.5, places, speeds: Vectors(vec![0.0; 6]) };
        let potential = bodies.totals(&sums)[1] as f64 * UNIT;
        assert!((potential + 0.25 / distance).abs() < 4.0 * UNIT, "{potential}");
    }
}
