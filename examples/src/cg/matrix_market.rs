//! Matrix Market files, coordinate format (NIST, "The Matrix Market Exchange Formats", NISTIR 5935).

use anyhow::{Context, Result, bail, ensure};

use super::csr::{Csr, Entry, MAX_ROWS};
use super::model::laplacian_plus_identity;

/// The first word of every Matrix Market file.
pub const BANNER: &str = "%%MatrixMarket";

/// How the first line describes the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// Entries have no values.
    pattern: bool,
    /// One side of the diagonal stands for both.
    symmetric: bool,
}

/// Reads a symmetric matrix with a positive diagonal. A pattern, which has no values, is taken as a graph: its Laplacian
/// plus the identity.
///
/// # Errors
/// The text is not such a matrix; the error names the line, or the row and column.
pub fn parse(text: &str) -> Result<Csr> {
    let mut lines = (1..).zip(text.lines().map(str::trim));
    let (_, banner) = lines.next().context("the file is empty")?;
    let header = parse_banner(banner)?;
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('%'));
    let (line, size) = lines.next().context("the file ends before the line with the matrix' size")?;
    let (rows, count) = parse_size(size, text.len()).with_context(|| format!("line {line}"))?;

    let mut entries: Vec<Entry> = Vec::with_capacity(if header.symmetric { 2 * count } else { count });
    let mut found = 0;
    for (line, text) in lines {
        ensure!(found < count, "line {line}: more entries than the {count} that the file announces");
        let entry @ (row, column, value) =
            parse_entry(text, rows, header.pattern).with_context(|| format!("line {line}"))?;
        entries.push(entry);
        if header.symmetric && row != column {
            entries.push((column, row, value));
        }
        found += 1;
    }
    ensure!(found == count, "the file ends after {found} of {count} entries (is it truncated?)");
    finish(rows, &entries, header)
}

/// Puts the entries together and checks the whole.
fn finish(rows: usize, entries: &[Entry], header: Header) -> Result<Csr> {
    let drawn: Vec<Entry>;
    let entries = if header.pattern {
        drawn = entries.iter().copied().filter(|(row, column, _)| row != column).collect();
        &drawn
    } else {
        entries
    };
    let matrix = match Csr::from_entries(rows, entries) {
        Ok(matrix) => matrix,
        Err((row, column)) => {
            let both = if header.symmetric { " (one side of the diagonal is enough)" } else { "" };
            bail!("the entry in row {}, column {} is given twice{both}", row + 1, column + 1);
        }
    };
    if let Some((row, column, value, mirrored)) = matrix.asymmetry() {
        let mirrored = mirrored.map_or("nothing".to_owned(), |value| value.to_string());
        let (row, column) = (row + 1, column + 1);
        bail!("not symmetric: row {row}, column {column} has {value}, but row {column}, column {row} has {mirrored}");
    }
    if header.pattern {
        return Ok(laplacian_plus_identity(&matrix));
    }
    matrix.check_diagonal()?;
    Ok(matrix)
}

/// Reads the first line: `%%MatrixMarket matrix coordinate real symmetric`.
fn parse_banner(line: &str) -> Result<Header> {
    let words: Vec<String> = line.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [banner, object, format, field, symmetry] = words[..] else {
        bail!("line 1: expected `{BANNER} matrix coordinate real symmetric`, found `{}`", shorten(line));
    };
    ensure!(banner == BANNER.to_ascii_lowercase(), "line 1: expected `{BANNER}`, found `{}`", shorten(line));
    ensure!(object == "matrix", "line 1: the file holds a {object}, not a matrix");
    match format {
        "coordinate" => {}
        "array" => bail!("line 1: a dense matrix (array format); this program needs a sparse one (coordinate format)"),
        other => bail!("line 1: unknown format `{other}`; this program reads `coordinate`"),
    }
    let pattern = match field {
        "real" | "double" | "integer" => false,
        "pattern" => true,
        "complex" => bail!("line 1: a complex matrix; this program needs a real one"),
        other => bail!("line 1: unknown kind of value `{other}`; this program reads real, integer and pattern"),
    };
    let symmetric = match symmetry {
        "general" => false,
        "symmetric" => true,
        "skew-symmetric" => bail!("line 1: a skew-symmetric matrix cannot be positive definite"),
        "hermitian" => {
            bail!("line 1: a hermitian matrix is complex; this program needs a real one")
        }
        other => {
            bail!("line 1: unknown symmetry `{other}`; this program reads general and symmetric")
        }
    };
    Ok(Header { pattern, symmetric })
}

/// Reads the size line: rows, columns, entries. `bytes` is the length of the file; what it announces must fit into it, so
/// that a wrong number does not take all memory.
fn parse_size(line: &str, bytes: usize) -> Result<(usize, usize)> {
    let numbers: Vec<usize> = line
        .split_ascii_whitespace()
        .map(|word| word.parse().with_context(|| format!("`{}` is not a count", shorten(word))))
        .collect::<Result<_>>()?;
    let [rows, columns, entries] = numbers[..] else {
        bail!("expected three numbers (rows, columns, entries), found `{}`", shorten(line));
    };
    ensure!(rows == columns, "the matrix has {rows} rows and {columns} columns; it must be square");
    ensure!(rows > 0, "the matrix has no rows");
    ensure!(rows <= MAX_ROWS, "{rows} rows are more than {MAX_ROWS}");
    // The shortest entry is "1 1" and the end of its line; the last line may lack that.
    ensure!(entries <= bytes / 4 + 1, "the file is too short for {entries} entries (is it truncated?)");
    ensure!(rows <= entries.max(bytes), "{rows} rows cannot all have an entry among {entries}");
    Ok((rows, entries))
}

/// Reads one entry and counts its row and column from 0.
fn parse_entry(line: &str, rows: usize, pattern: bool) -> Result<Entry> {
    let mut words = line.split_ascii_whitespace();
    let mut index = |what: &str| -> Result<u32> {
        let word = words.next().with_context(|| format!("the {what} is missing in `{}`", shorten(line)))?;
        let index: usize = word.parse().with_context(|| format!("`{}` is not a {what} number", shorten(word)))?;
        ensure!((1..=rows).contains(&index), "the {what} {index} is not between 1 and {rows}");
        Ok((index - 1) as u32)
    };
    let (row, column) = (index("row")?, index("column")?);
    let value = match words.next() {
        None if pattern => 1.0,
        None => bail!("the value is missing in `{}`", shorten(line)),
        Some(word) if pattern => bail!("a pattern has no values, found `{}`", shorten(word)),
        Some(word) => parse_number(word)?,
    };
    if let Some(word) = words.next() {
        bail!("`{}` is one word too many", shorten(word));
    }
    Ok((row, column, value))
}

/// Reads a finite number; Fortran's `1.0D+3` is one.
pub fn parse_number(word: &str) -> Result<f64> {
    let number = word.parse().or_else(|_| word.replace(['d', 'D'], "e").parse::<f64>());
    let number = number.ok().with_context(|| format!("`{}` is not a number", shorten(word)))?;
    ensure!(number.is_finite(), "`{}` is not a finite number", shorten(word));
    Ok(number)
}

/// At most 40 characters of the text that was found, for a message.
pub fn shorten(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let mut short: String = text.chars().take(40).map(printable).collect();
    if text.chars().nth(40).is_some() {
        short.push_str("...");
    }
    short
}
