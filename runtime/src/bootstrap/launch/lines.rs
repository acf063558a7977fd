//! Cutting a stream of bytes into whole lines. Pure: bytes in, bytes out.

use std::collections::VecDeque;

/// A line longer than this is passed on in pieces.
pub(super) const LONGEST: usize = 1 << 20;

/// Lines kept of a rank's standard error, and bytes kept of each.
const TAIL_LINES: usize = 10;
const TAIL_WIDTH: usize = 400;

/// What has come from one stream of one rank and is not yet a whole line.
///
/// A line ends with `\n` or `\r`, so that progress bars move; the `\n` of a `\r\n` belongs to the
/// line before it.
#[derive(Debug, Default)]
pub(super) struct LineCutter {
    tag: Vec<u8>,
    pending: Vec<u8>,
    /// The last byte passed on was a `\r`: a `\n` now starts no new line.
    after_cr: bool,
    /// Part of the current line has been passed on already.
    mid_line: bool,
}

impl LineCutter {
    /// Lines are prefixed with `tag`, which may be empty.
    pub(super) fn new(tag: Vec<u8>) -> LineCutter {
        LineCutter { tag, ..LineCutter::default() }
    }

    /// What lines are prefixed with.
    pub(super) fn tag(&self) -> &[u8] {
        &self.tag
    }

    /// Takes what the rank wrote, appends what can be passed on to `out`, and returns how many lines
    /// or pieces that were.
    pub(super) fn push(&mut self, data: &[u8], out: &mut Vec<u8>) -> usize {
        let whole = data.iter().rposition(|&b| is_end(b)).map_or(0, |at| at + 1);
        let (lines, rest) = data.split_at(whole);
        let mut count = 0;
        for line in lines.split_inclusive(|&b| is_end(b)) {
            count += 1;
            if self.pending.is_empty() {
                self.emit(line, out);
            } else {
                let mut first = std::mem::take(&mut self.pending);
                first.extend_from_slice(line);
                self.emit(&first, out);
            }
        }
        self.pending.extend_from_slice(rest);
        while self.pending.len() >= LONGEST {
            let rest = self.pending.split_off(LONGEST);
            let piece = std::mem::replace(&mut self.pending, rest);
            self.emit(&piece, out);
            count += 1;
        }
        count
    }

    /// The stream has ended: passes on the unfinished line, ended with a newline.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> usize {
        if self.pending.is_empty() && !self.mid_line {
            return 0;
        }
        let mut last = std::mem::take(&mut self.pending);
        last.push(b'\n');
        self.emit(&last, out);
        1
    }

    fn emit(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let continues = self.mid_line || (self.after_cr && piece == b"\n");
        if !continues {
            out.extend_from_slice(&self.tag);
        }
        out.extend_from_slice(piece);
        let last = piece.last().copied().unwrap_or(b'\n');
        self.after_cr = last == b'\r';
        self.mid_line = !is_end(last);
    }
}

fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

/// The last lines of a stream, for the report at the end.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<Vec<u8>>,
}

impl Tail {
    /// Takes whole lines, as passed on, and drops their tag.
    pub(super) fn push(&mut self, lines: &[u8], tag: &[u8]) {
        let lines = lines.split(|&b| is_end(b)).map(|line| line.strip_prefix(tag).unwrap_or(line));
        for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
            if self.lines.len() == TAIL_LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(line[..line.len().min(TAIL_WIDTH)].to_vec());
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().map(Vec::as_slice)
    }
}

/// Cuts the same bytes in two ways: in pieces whose lengths they tell, and whole.
///
/// # Panics
/// If the output differs.
#[cfg(any(test, fuzzing))]
pub fn cut_lines(bytes: &[u8]) {
    let (mut one, mut many, mut tail) =
        (LineCutter::new(b"[1] ".into()), LineCutter::new(b"[1] ".into()), Tail::default());
    let (mut whole, mut pieces, mut rest) = (Vec::new(), Vec::new(), bytes);
    one.push(bytes, &mut whole);
    while let [length, ..] = *rest {
        let (piece, after) = rest.split_at(rest.len().min(1 + usize::from(length & 15)));
        many.push(piece, &mut pieces);
        rest = after;
    }
    one.finish(&mut whole);
    many.finish(&mut pieces);
    assert!(whole == pieces, "{bytes:?}");
    tail.push(&whole, one.tag());
    assert!(tail.iter().count() <= TAIL_LINES);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(tag: &str, pieces: &[&str]) -> String {
        let mut cutter = LineCutter::new(tag.into());
        let mut out = Vec::new();
        for piece in pieces {
            cutter.push(piece.as_bytes(), &mut out);
        }
        cutter.finish(&mut out);
        String::from_utf8(out).expect("the tests feed text")
    }

    #[test]
    fn holds_a_line_back_until_it_ends() {
        let mut cutter = LineCutter::default();
        let mut out = Vec::new();
        assert_eq!(cutter.push(b"one", &mut out), 0);
        assert!(out.is_empty());
        assert_eq!(cutter.push(b"\ntwo\nthr", &mut out), 2);
        assert_eq!(out, b"one\ntwo\n");
    }

    #[test]
    fn every_cut_of_a_text_gives_the_same_output() {
        let text = "a\nbc\r\n\r[## ]\r[###]\n\nend";
        for first in 0..text.len() {
            for second in first..text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(cut("", &pieces), format!("{text}\n"));
                assert_eq!(cut("[1] ", &pieces), cut("[1] ", &[text]));
            }
        }
    }

    #[test]
    fn tags_every_line_once() {
        assert_eq!(cut("[2] ", &["a\nb\r\nc\rd"]), "[2] a\n[2] b\r\n[2] c\r[2] d\n");
    }

    #[test]
    fn passes_a_long_line_on_in_pieces_with_one_tag() {
        let long = "x".repeat(2 * LONGEST + 5);
        assert_eq!(cut("[0] ", &[&long]), format!("[0] {long}\n"));
        let mut cutter = LineCutter::default();
        let mut out = Vec::new();
        cutter.push(long.as_bytes(), &mut out);
        assert_eq!(out.len(), 2 * LONGEST);
    }

    #[test]
    fn a_long_line_that_ends_at_a_piece_is_still_ended() {
        let long = "x".repeat(LONGEST);
        assert_eq!(cut("[0] ", &[&long]), format!("[0] {long}\n"));
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let mut tail = Tail::default();
        for i in 0..25 {
            tail.push(format!("[1] line {i}\n[1] \n").as_bytes(), b"[1] ");
        }
        let lines: Vec<_> = tail.iter().collect();
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines[0], b"line 15");
        assert_eq!(lines[9], b"line 24");
    }
}
