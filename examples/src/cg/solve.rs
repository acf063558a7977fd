//! The method of conjugate gradients (Hestenes and Stiefel, J. Res. Nat. Bur. Stand. 49, 1952), for one rank or many.

use bellwether::Result;
use bellwether::cpu::huge_zeros;

use super::csr::Csr;
use super::rows::Rows;

/// A symmetric positive definite matrix whose rows may be spread over ranks. Vectors are this rank's parts.
pub trait Matrix {
    /// `y = A x`; returns `x' y`, summed over all ranks. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    fn multiply(&mut self, x: &[f64], y: &mut [f64]) -> Result<f64>;

    /// The sum of every rank's `value`, the same on all ranks. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    fn sum(&mut self, value: f64) -> Result<f64>;
}

/// A whole matrix on one rank.
#[derive(Debug)]
pub struct Whole(Rows);

impl Whole {
    /// A copy of a matrix.
    pub fn new(matrix: &Csr) -> Whole {
        Whole(matrix.clone().into())
    }
}

impl Matrix for Whole {
    fn multiply(&mut self, x: &[f64], y: &mut [f64]) -> Result<f64> {
        Ok(self.0.multiply(x, y))
    }

    fn sum(&mut self, value: f64) -> Result<f64> {
        Ok(value)
    }
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// When the residual's norm is below this part of the right-hand side's.
    pub tolerance: f64,
    /// At most this many iterations.
    pub iterations: usize,
}

/// Why the iteration ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    /// The residual is below the tolerance.
    Converged,
    /// The iterations were used up.
    OutOfIterations,
    /// A direction `p` with `p' A p <= 0` was found: the matrix is not positive definite. Holds `p' A p`.
    NotPositiveDefinite(f64),
    /// A number became infinite or was never one.
    NotFinite,
}

/// The result of the iteration.
#[derive(Clone, Debug)]
pub struct Solution {
    /// This rank's part of the solution.
    pub x: Vec<f64>,
    /// The residual's norm over the right-hand side's, before the first iteration and after each, as the recurrence has
    /// it.
    pub residuals: Vec<f64>,
    /// Why it ended.
    pub ending: Ending,
}

impl Solution {
    /// How many iterations were done.
    pub fn iterations(&self) -> usize {
        self.residuals.len().saturating_sub(1)
    }
}

/// The scalar product of two vectors of one length. The order of additions depends on the length only: four sums, taken
/// in turn, so that the compiler can use vector registers.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a_fours, b_fours) = (a.chunks_exact(4), b.chunks_exact(4));
    let tail: f64 = a_fours.remainder().iter().zip(b_fours.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0; 4];
    for (a, b) in a_fours.zip(b_fours) {
        for lane in 0..4 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + tail
}

/// Solves `A x = b` from `x = 0`; calls `each` with the number of iterations done and the relative residual. Collective.
///
/// All ranks compute the same residuals, bit for bit, and so stop together. Another number of ranks adds the same numbers
/// in another order: the residuals then differ by rounding at first. Where a few eigenvalues stand out, the method
/// amplifies that, and single residuals may differ visibly before both histories meet again; the limit is the same.
///
/// # Errors
/// A rank was lost.
pub fn conjugate_gradients(
    matrix: &mut impl Matrix,
    b: &[f64],
    stop: Stop,
    mut each: impl FnMut(usize, f64),
) -> Result<Solution> {
    let [mut x, mut residual, mut direction, mut image] = [(); 4].map(|()| huge_zeros::<f64>(b.len()));
    residual.copy_from_slice(b);
    direction.copy_from_slice(b);
    let norm = matrix.sum(dot(b, b))?;
    let mut square = norm;
    // With b = 0 the solution is 0 and no iteration is needed.
    let mut residuals = vec![if norm == 0.0 { 0.0 } else { 1.0 }];
    let ending = loop {
        let now = residuals[residuals.len() - 1];
        each(residuals.len() - 1, now);
        if !now.is_finite() || !norm.is_finite() {
            break Ending::NotFinite;
        }
        if now <= stop.tolerance {
            break Ending::Converged;
        }
        if residuals.len() > stop.iterations {
            break Ending::OutOfIterations;
        }
        let curvature = matrix.multiply(&direction, &mut image)?;
        if curvature <= 0.0 {
            break Ending::NotPositiveDefinite(curvature);
        }
        let step = square / curvature;
        let local = step_residual(&mut residual, step, &image);
        let before = std::mem::replace(&mut square, matrix.sum(local)?);
        advance(&mut x, step, &mut direction, square / before, &residual);
        residuals.push((square / norm).sqrt());
    };
    Ok(Solution { x, residuals, ending })
}

/// `|b - A x| / |b|`, computed from the solution itself; 0 if both are 0. Collective.
///
/// # Errors
/// A rank was lost.
pub fn true_residual(matrix: &mut impl Matrix, b: &[f64], x: &[f64]) -> Result<f64> {
    let mut image = vec![0.0; x.len()];
    matrix.multiply(x, &mut image)?;
    let difference: Vec<f64> = b.iter().zip(&image).map(|(b, image)| b - image).collect();
    let (square, norm) = (matrix.sum(dot(&difference, &difference))?, matrix.sum(dot(b, b))?);
    Ok(if square == 0.0 { 0.0 } else { (square / norm).sqrt() })
}

/// `residual -= step * image`; returns `residual' residual` in one pass over both. The order of additions is that of [`dot`].
fn step_residual(residual: &mut [f64], step: f64, image: &[f64]) -> f64 {
    let (fours, tail) = residual.as_chunks_mut::<4>();
    let (image_fours, image_tail) = image.as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (residual, image) in fours.iter_mut().zip(image_fours) {
        for lane in 0..4 {
            residual[lane] -= step * image[lane];
            sums[lane] += residual[lane] * residual[lane];
        }
    }
    let mut rest = 0.0;
    for (residual, image) in tail.iter_mut().zip(image_tail) {
        *residual -= step * image;
        rest += *residual * *residual;
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
}

/// `x += step * direction`, then `direction = residual + keep * direction`, in one pass: the direction is read once for both.
fn advance(x: &mut [f64], step: f64, direction: &mut [f64], keep: f64, residual: &[f64]) {
    for ((x, direction), residual) in x.iter_mut().zip(direction).zip(residual) {
        *x += step * *direction;
        *direction = residual + keep * *direction;
    }
}

#[cfg(test)]
mod tests {
    use super::super::model;
    use super::*;

    const STOP: Stop = Stop { tolerance: 1e-12, iterations: 500 };

    #[test]
    fn solves_poisson() {
        let matrix = model::poisson(20);
        let expected: Vec<f64> = (0..400).map(|i| f64::from(i).sin()).collect();
        let mut b = vec![0.0; 400];
        matrix.multiply(&expected, &mut b);
        let solution = conjugate_gradients(&mut Whole::new(&matrix), &b, STOP, |_, _| ()).unwrap();
        assert_eq!(solution.ending, Ending::Converged);
        assert!(solution.x.iter().zip(&expected).all(|(x, e)| (x - e).abs() < 1e-10));
        assert!(true_residual(&mut Whole::new(&matrix), &b, &solution.x).unwrap() < 1e-11);
    }

    #[test]
    fn ends_for_every_reason() {
        let solve = |entries: &[_], b: &[f64], stop| {
            let matrix = Csr::from_entries(2, entries).unwrap();
            conjugate_gradients(&mut Whole::new(&matrix), b, stop, |_, _| ()).unwrap()
        };
        let good = [(0, 0, 2.0), (1, 1, 3.0)];
        assert_eq!(solve(&good, &[0.0, 0.0], STOP).residuals, [0.0]);
        assert_eq!(solve(&good, &[1.0, 1.0], STOP).iterations(), 2);
        let once = Stop { iterations: 1, ..STOP };
        assert_eq!(solve(&good, &[1.0, 1.0], once).ending, Ending::OutOfIterations);
        assert_eq!(solve(&good, &[1e200, 1.0], STOP).ending, Ending::NotFinite);
        let indefinite = [(0, 0, 1.0), (0, 1, 5.0), (1, 0, 5.0), (1, 1, 1.0)];
        assert_eq!(solve(&indefinite, &[1.0, -1.0], STOP).ending, Ending::NotPositiveDefinite(-8.0));
    }
}
