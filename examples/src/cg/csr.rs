//! A sparse matrix, row by row.

use anyhow::{Result, bail};

/// The largest matrix: column numbers are 32 bits wide.
pub const MAX_ROWS: usize = u32::MAX as usize;

/// One nonzero: row, column, value.
pub type Entry = (u32, u32, f64);

/// A sparse matrix in compressed rows: columns rise within a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Csr {
    /// Where each row begins in `columns` and `values`, and the number of nonzeros at the end.
    pub starts: Vec<usize>,
    /// The column of each nonzero.
    pub columns: Vec<u32>,
    /// The value of each nonzero.
    pub values: Vec<f64>,
}

impl Csr {
    /// A matrix of `rows` rows from entries in any order, each given once.
    ///
    /// # Errors
    /// An entry is given twice; the error has its row and column, counted from 0.
    ///
    /// # Panics
    /// If an entry's row is not below `rows`.
    pub fn from_entries(rows: usize, entries: &[Entry]) -> Result<Csr, (u32, u32)> {
        let mut starts = vec![0; rows + 1];
        for &(row, ..) in entries {
            starts[row as usize + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut sorted = vec![(0_u32, 0.0); entries.len()];
        for &(row, column, value) in entries {
            let place = &mut next[row as usize];
            sorted[*place] = (column, value);
            *place += 1;
        }
        for row in 0..rows {
            let entries = &mut sorted[starts[row]..starts[row + 1]];
            entries.sort_unstable_by_key(|&(column, _)| column);
            if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err((row as u32, pair[0].0));
            }
        }
        let (columns, values) = sorted.into_iter().unzip();
        Ok(Csr { starts, columns, values })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// How many nonzeros there are.
    pub fn nonzeros(&self) -> usize {
        self.columns.len()
    }

    /// The nonzeros of a row: column and value.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (u32, f64)> + '_ {
        let range = self.starts[row]..self.starts[row + 1];
        self.columns[range.clone()].iter().copied().zip(self.values[range].iter().copied())
    }

    /// The value at a place, if there is a nonzero.
    pub fn get(&self, row: usize, column: u32) -> Option<f64> {
        let range = self.starts[row]..self.starts[row + 1];
        let place = self.columns[range.clone()].binary_search(&column).ok()?;
        Some(self.values[range.start + place])
    }

    /// The first place where the matrix and its transpose differ by more than rounding, counted from 0: row, column,
    /// value there, value on the other side of the diagonal.
    pub fn asymmetry(&self) -> Option<(usize, u32, f64, Option<f64>)> {
        let differs = |(row, column, value): &(usize, u32, f64)| {
            let mirrored = self.get(*column as usize, *row as u32);
            mirrored.is_none_or(|other| (value - other).abs() > 1e-12 * value.abs().max(other.abs()))
        };
        let mut entries =
            (0..self.rows()).flat_map(|row| self.row(row).map(move |(column, value)| (row, column, value)));
        let (row, column, value) = entries.find(differs)?;
        Some((row, column, value, self.get(column as usize, row as u32)))
    }

    /// Checks what can be seen at once of positive definiteness: every diagonal entry is there and positive.
    ///
    /// # Errors
    /// Names the first row for which it is not so.
    pub fn check_diagonal(&self) -> Result<()> {
        for row in 0..self.rows() {
            match self.get(row, row as u32) {
                Some(value) if value > 0.0 => {}
                Some(value) => bail!("not positive definite: the diagonal entry of row {} is {value}", row + 1),
                None => bail!("not positive definite: row {} has no diagonal entry", row + 1),
            }
        }
        Ok(())
    }

    /// `y = A x`; `y` has an entry for each row.
    ///
    /// # Panics
    /// If `x` has no entry for some column, or `y` is too short.
    pub fn multiply(&self, x: &[f64], y: &mut [f64]) {
        for (row, y) in y.iter_mut().enumerate() {
            *y = self.row(row).map(|(column, value)| value * x[column as usize]).sum();
        }
    }
}
