//! The sparse product: rows of a matrix in a form for the inner loop.

use bellwether::Pod;
use bellwether::cpu::huge_zeros;

use super::csr::Csr;

/// Rows one after the other that have equally many nonzeros.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    rows: usize,
    length: usize,
}

/// A matrix whose rows are grouped by runs of equal length, so that the loop over a row's nonzeros is unrolled and a row's start is
/// not read: 12 bytes are read for each nonzero and nothing else of the matrix. PETSc has this form as AIJPERM (Mills, 2010), with rows
/// reordered; here they keep their order.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    runs: Vec<Run>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl From<Csr> for Rows {
    fn from(matrix: Csr) -> Rows {
        let mut runs: Vec<Run> = Vec::new();
        for length in matrix.starts.windows(2).map(|row| row[1] - row[0]) {
            match runs.last_mut() {
                Some(run) if run.length == length => run.rows += 1,
                _ => runs.push(Run { rows: 1, length }),
            }
        }
        Rows { runs, columns: huge(matrix.columns), values: huge(matrix.values) }
    }
}

/// A copy of `items` in huge pages, because each product streams through all items.
fn huge<T: Pod>(items: Vec<T>) -> Vec<T> {
    let mut copy = huge_zeros(items.len());
    copy.copy_from_slice(&items);
    copy
}

impl Rows {
    /// How many nonzeros there are.
    pub fn nonzeros(&self) -> usize {
        self.columns.len()
    }

    /// `y = A x` and `x' y`, where entry i of `x` and `y` belongs to row i. The scalar product takes each entry of `y` when it is
    /// computed, so that `y` is not read again.
    ///
    /// # Panics
    /// If `x` has no entry for some column, or one of the vectors is shorter than the matrix.
    pub fn multiply(&self, x: &[f64], y: &mut [f64]) -> f64 {
        let (mut columns, mut values) = (&self.columns[..], &self.values[..]);
        let (mut own, mut rest, mut sum) = (x, y, 0.0);
        for run in &self.runs {
            let nonzeros = run.rows * run.length;
            let part;
            (part, rest) = rest.split_at_mut(run.rows);
            let (these, others) = own.split_at(run.rows);
            own = others;
            let (c, v) = (&columns[..nonzeros], &values[..nonzeros]);
            (columns, values) = (&columns[nonzeros..], &values[nonzeros..]);
            sum = match run.length {
                0 => {
                    part.fill(0.0);
                    sum
                }
                1 => fixed::<1>(c, v, x, these, part, sum),
                2 => fixed::<2>(c, v, x, these, part, sum),
                3 => fixed::<3>(c, v, x, these, part, sum),
                4 => fixed::<4>(c, v, x, these, part, sum),
                5 => fixed::<5>(c, v, x, these, part, sum),
                6 => fixed::<6>(c, v, x, these, part, sum),
                7 => fixed::<7>(c, v, x, these, part, sum),
                length => any(length, c, v, x, these, part, sum),
            };
        }
        sum
    }
}

/// Rows of `N` nonzeros each. Returns `sum` plus what they add to the scalar product.
#[inline(never)]
fn fixed<const N: usize>(columns: &[u32], values: &[f64], x: &[f64], own: &[f64], y: &mut [f64], mut sum: f64) -> f64 {
    let rows = columns.as_chunks::<N>().0.iter().zip(values.as_chunks::<N>().0);
    for (((columns, values), own), y) in rows.zip(own).zip(y) {
        let mut entry = 0.0;
        for i in 0..N {
            entry += values[i] * x[columns[i] as usize];
        }
        *y = entry;
        sum += own * entry;
    }
    sum
}

/// The same for any number of nonzeros.
#[inline(never)]
fn any(length: usize, columns: &[u32], values: &[f64], x: &[f64], own: &[f64], y: &mut [f64], mut sum: f64) -> f64 {
    let rows = columns.chunks_exact(length).zip(values.chunks_exact(length));
    for (((columns, values), own), y) in rows.zip(own).zip(y) {
        let mut entry = 0.0;
        for (column, value) in columns.iter().zip(values) {
            entry += value * x[*column as usize];
        }
        *y = entry;
        sum += own * entry;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::model;
    use super::*;

    #[test]
    fn products_are_those_of_the_plain_loop() {
        // Rows of 0 to 11 nonzeros, in runs of 1 to 3.
        let mut entries = Vec::new();
        for row in 0..60_u32 {
            for k in 0..row / 3 % 12 {
                entries.push((row, (7 * row + 5 * k) % 60, f64::from(row + 1) / f64::from(k + 1)));
            }
        }
        for matrix in [Csr::from_entries(60, &entries).unwrap(), model::poisson(7), Csr::from_entries(3, &[]).unwrap()]
        {
            let x = model::known_solution(matrix.rows());
            let (mut expected, mut found) = (vec![0.0; x.len()], vec![f64::NAN; x.len()]);
            matrix.multiply(&x, &mut expected);
            let dot = Rows::from(matrix).multiply(&x, &mut found);
            assert_eq!(found, expected);
            let sum = x.iter().zip(&expected).fold(0.0, |sum, (x, y)| sum + x * y);
            assert_eq!(dot, sum);
        }
    }
}
