//! Figures as a table for people.

use super::figure::{Figure, Rival, Summary};
use super::kind::Unit;

/// Bytes as people say them.
pub fn size(bytes: usize) -> String {
    match bytes {
        0 => "-".into(),
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Three digits that mean something.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if value.abs() >= 1e6 {
        return format!("{value:.2e}");
    }
    // As many places as leave three digits in all.
    let places = |value: f64| (2 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let rounded: f64 = format!("{value:.*}", places(value)).parse().unwrap_or(value);
    format!("{value:.*}", places(rounded))
}

fn with_unit(value: f64, unit: Unit) -> String {
    format!("{} {}", number(value), unit.name())
}

fn scatter(summary: Summary) -> String {
    if summary.p10 == summary.p90 {
        return String::new();
    }
    format!("{} .. {}", number(summary.p10), number(summary.p90))
}

/// Whether a bar is met, for people to see.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

fn bar(figure: &Figure) -> String {
    let check = |(what, met)| format!("{what}: {}", verdict(met));
    figure.checks().into_iter().map(check).collect::<Vec<_>>().join(", ")
}

fn rival(figure: &Figure, name: &str) -> String {
    let show = |rival: &Rival| format!("{} ({})", with_unit(rival.value, figure.unit()), number(rival.ratio));
    figure.rivals.iter().find(|rival| rival.peer == name).map(show).unwrap_or_default()
}

fn beside(figure: &Figure) -> String {
    let show =
        |(value, ratio): (Summary, f64)| format!("{} ({})", with_unit(value.median, figure.unit()), number(ratio));
    figure.beside.zip(figure.beside_ratio).map(show).unwrap_or_default()
}

/// The table, with a line for each figure; with `bars` also the bars of each, and whether they are met.
pub fn table(figures: &[Figure], peers: &[&str], bars: bool) -> String {
    let mut head = vec!["bench", "size", "ours", "p10 .. p90", "limit", "ratio"];
    let has_beside = figures.iter().any(|figure| figure.beside.is_some());
    if has_beside {
        head.push("beside");
    }
    head.extend(peers);
    if bars {
        head.push("bar");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for figure in figures {
        let mut row = vec![
            figure.name.clone(),
            size(figure.size),
            with_unit(figure.ours.median, figure.unit()),
            scatter(figure.ours),
            figure.limit.map(|limit| with_unit(limit.median, figure.unit())).unwrap_or_else(|| "-".into()),
            figure.ratio.map(number).unwrap_or_else(|| "-".into()),
        ];
        if has_beside {
            row.push(beside(figure));
        }
        row.extend(peers.iter().map(|name| rival(figure, name)));
        if bars {
            row.push(bar(figure));
        }
        rows.push(row);
    }
    align(&rows)
}

/// A line for each benchmark with a column `beside`: what it compares with.
pub fn legend(figures: &[Figure]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for figure in figures {
        let line = figure.beside_name().map(|name| format!("beside {}: {name}\n", figure.kind.name()));
        lines.extend(line.filter(|line| !lines.contains(line)));
    }
    lines.concat()
}

/// Columns of equal width; the first and the last to the left, numbers to the right.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let is_text = |column: usize| column == 0 || rows[0][column] == "bar";
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                line += "  ";
            }
            line += &if is_text(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes() {
        assert_eq!(size(8), "8 B");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size(1032), "1032 B");
        assert_eq!(number(0.6789), "0.679");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(1234.5), "1234");
        assert_eq!(number(9.997), "10.0");
        assert_eq!(number(0.005678), "0.00568");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "1".into()], vec!["bcd".into(), "23".into()]];
        assert_eq!(align(&rows), "a     1\nbcd  23\n");
    }
}
