//! Matrices that are made, not read.

use super::csr::{Csr, Entry};

/// The 5-point Laplacian of a square grid of `side` by `side` points with zero boundary: symmetric, positive definite.
pub fn poisson(side: usize) -> Csr {
    let mut matrix = Csr { starts: vec![0], ..Csr::default() };
    for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
        let here = y * side + x;
        let neighbours = [
            (y > 0).then(|| here - side),
            (x > 0).then(|| here - 1),
            Some(here),
            (x + 1 < side).then(|| here + 1),
            (y + 1 < side).then(|| here + side),
        ];
        for column in neighbours.into_iter().flatten() {
            matrix.columns.push(column as u32);
            matrix.values.push(if column == here { 4.0 } else { -1.0 });
        }
        matrix.starts.push(matrix.columns.len());
    }
    matrix
}

/// The Laplacian of a graph plus the identity: symmetric, positive definite, every eigenvalue at least 1.
///
/// `edges` is the graph's symmetric adjacency matrix without diagonal; its values are the edges' positive weights.
pub fn laplacian_plus_identity(edges: &Csr) -> Csr {
    let mut entries: Vec<Entry> = Vec::with_capacity(edges.nonzeros() + edges.rows());
    for row in 0..edges.rows() {
        let degree: f64 = edges.row(row).map(|(_, weight)| weight).sum();
        entries.push((row as u32, row as u32, degree + 1.0));
        entries.extend(edges.row(row).map(|(column, weight)| (row as u32, column, -weight)));
    }
    Csr::from_entries(edges.rows(), &entries).expect("a graph without loops gives each entry once")
}

/// A vector with nothing special about it, to be found again: numbers between 0 and 1 that jump (multiples of the golden
/// ratio, modulo 1). A constant would not do: it is an eigenvector of every [`laplacian_plus_identity`].
pub fn known_solution(length: usize) -> Vec<f64> {
    let fraction = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
    (0..length).map(|i| fraction(i) as f64 / (1_u64 << 53) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `x' A x`
    fn energy(matrix: &Csr, x: &[f64]) -> f64 {
        let mut y = vec![0.0; x.len()];
        matrix.multiply(x, &mut y);
        x.iter().zip(&y).map(|(x, y)| x * y).sum()
    }

    fn looks_positive_definite(matrix: &Csr, smallest: f64) {
        assert_eq!(matrix.asymmetry(), None);
        matrix.check_diagonal().unwrap();
        let mut state = 7_u64;
        for _ in 0..50 {
            let x: Vec<f64> = (0..matrix.rows())
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
                })
                .collect();
            let square: f64 = x.iter().map(|x| x * x).sum();
            assert!(energy(matrix, &x) >= smallest * square * (1.0 - 1e-12));
        }
    }

    #[test]
    fn poisson_is_symmetric_positive_definite() {
        let matrix = poisson(7);
        assert_eq!((matrix.rows(), matrix.nonzeros()), (49, 5 * 49 - 4 * 7));
        // Its smallest eigenvalue is 8 sin^2(pi / 16).
        looks_positive_definite(&matrix, 8.0 * (std::f64::consts::PI / 16.0).sin().powi(2));
    }

    #[test]
    fn graph_laplacian_plus_identity_is_symmetric_positive_definite() {
        let weights = [(0, 1, 2.0), (1, 0, 2.0), (1, 2, 5.0), (2, 1, 5.0), (0, 3, 1.0), (3, 0, 1.0)];
        let matrix = laplacian_plus_identity(&Csr::from_entries(5, &weights).unwrap());
        looks_positive_definite(&matrix, 1.0);
        // The Laplacian's row sums are 0, the identity's 1.
        let mut y = vec![0.0; 5];
        matrix.multiply(&[1.0; 5], &mut y);
        assert_eq!(y, [1.0; 5]);
        assert_eq!(matrix.get(1, 1), Some(8.0));
        assert_eq!(matrix.get(4, 4), Some(1.0));
    }
}
