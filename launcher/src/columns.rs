//! Tables for people: columns that line up whatever they hold, and lines no wider than the terminal.

use std::io::IsTerminal;

/// A line of the last column is not made shorter than this, in characters.
const LEAST: usize = 24;

/// How wide a line on standard output may be, in characters. A file or a pipe takes lines of any length.
pub fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    // SAFETY: `winsize` is plain numbers, for which zeros are valid.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ writes one `winsize`, which `size` is.
    let known = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) } == 0;
    if known && size.ws_col > 0 { size.ws_col.into() } else { 80 }
}

/// Rows of `N` columns: every column is as wide as its widest value, except the last, which is wrapped at words so that no
/// line is longer than `width` characters. Where less than [`LEAST`] characters would be left for the last column, it stands on
/// lines of its own below the others. `indent` spaces stand before each row.
pub fn table<const N: usize>(indent: usize, width: usize, rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (wide, value) in widths.iter_mut().zip(row) {
            *wide = (*wide).max(value.chars().count());
        }
    }
    let before: usize = widths[..N - 1].iter().map(|wide| wide + 2).sum::<usize>() + indent;
    let below = before + LEAST > width;
    let hang = if below { indent + 4 } else { before };
    let mut text = String::new();
    for row in rows {
        let mut line = " ".repeat(indent);
        for (wide, value) in widths.iter().zip(&row[..N - 1]) {
            line += &format!("{value:wide$}  ");
        }
        if below {
            text += line.trim_end();
            line = format!("\n{}", " ".repeat(hang));
        }
        text += &line;
        text += &wrapped(&row[N - 1], width.saturating_sub(hang), hang);
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

/// `words` in lines of at most `room` characters, where a word is not longer, with `hang` spaces before all but the first.
fn wrapped(words: &str, room: usize, hang: usize) -> String {
    let mut text = String::new();
    let mut used = 0;
    for word in words.split(' ') {
        let long = word.chars().count();
        if used > 0 && used + 1 + long > room {
            text += &format!("\n{}", " ".repeat(hang));
            used = 0;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        }
        text += word;
        used += long;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<[String; 3]> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        vec![
            row(["A", "auto", "a short meaning"]),
            row([
                "A_MUCH_LONGER_NAME",
                "16MiB",
                "a meaning of many words, which does not fit beside the rest on every terminal",
            ]),
            row(["B", "a-value-of-more-than-30-characters", "another"]),
        ]
    }

    /// Where in the line `word` begins, in characters.
    fn column(text: &str, word: &str) -> usize {
        let line = text.lines().find(|line| line.contains(word)).expect("a line has it");
        line[..line.find(word).expect("it has it")].chars().count()
    }

    #[test]
    fn columns_line_up_whatever_they_hold() {
        let text = table(2, usize::MAX, &rows());
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!([column(&text, "auto"), column(&text, "16MiB"), column(&text, "a-value")], [22; 3], "{text}");
        assert_eq!([column(&text, "a short"), column(&text, "a meaning"), column(&text, "another")], [58; 3], "{text}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [40, 60, 80, 90, 100, 200] {
            let text = table(2, width, &rows());
            // A word is not broken: names and values may be wider than all there is.
            let fits = |line: &str| line.chars().count() <= width.max(56);
            assert!(text.lines().all(fits), "{width}:\n{text}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&text), words(&table(2, usize::MAX, &rows())), "nothing is lost");
        }
    }

    #[test]
    fn what_is_wrapped_stays_in_its_column() {
        let text = table(2, 90, &rows());
        assert!(text.lines().count() > 3, "{text}");
        assert_eq!(column(&text, "a meaning"), column(&text, "terminal").min(58), "{text}");
    }
}
