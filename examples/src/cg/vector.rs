//! Vectors as text: one number a line, or a Matrix Market array.

use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};

use super::matrix_market::{BANNER, parse_number, shorten};

/// Reads a vector of `length` numbers.
///
/// # Errors
/// The text is not such a vector. The error names the line, unless the text ends too early.
pub fn parse(text: &str, length: usize) -> Result<Vec<f64>> {
    let market = text.starts_with(BANNER);
    if market {
        let banner = text.lines().next().unwrap_or_default().to_ascii_lowercase();
        let words: Vec<&str> = banner.split_ascii_whitespace().skip(1).collect();
        ensure!(
            matches!(words[..], ["matrix", "array", "real" | "double" | "integer", "general"]),
            "line 1: expected `{BANNER} matrix array real general`, found `{}`",
            shorten(&banner)
        );
    }
    let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, l)| !l.is_empty() && !l.starts_with(['%', '#']));
    if market {
        let (line, size) = lines.next().context("the file ends before the line with the vector's size")?;
        let size: Vec<&str> = size.split_ascii_whitespace().collect();
        ensure!(size == [&length.to_string(), "1"], "line {line}: expected the size `{length} 1`");
    }
    let mut vector = Vec::new();
    for (line, text) in lines {
        ensure!(vector.len() < length, "line {line}: more numbers than the matrix has rows ({length})");
        vector.push(parse_number(text).with_context(|| format!("line {line}"))?);
    }
    if vector.len() < length {
        bail!("the file has {} numbers, but the matrix has {length} rows", vector.len());
    }
    Ok(vector)
}

/// A vector as a Matrix Market array; every number can be read back exactly.
pub fn format(vector: &[f64]) -> String {
    let mut text = format!("{BANNER} matrix array real general\n{} 1\n", vector.len());
    for value in vector {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{value:e}");
    }
    text
}
