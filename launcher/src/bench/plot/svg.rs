//! The few shapes that plots are made of.

use std::fmt::Write;

/// A picture being drawn.
pub struct Svg {
    text: String,
}

/// Where a text is anchored.
#[derive(Clone, Copy)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// At its middle.
    Middle,
    /// At its end.
    End,
}

impl Svg {
    /// An empty white picture.
    pub fn new(width: f64, height: f64) -> Svg {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        Svg { text }
    }

    /// A line through these points.
    pub fn line(&mut self, points: &[(f64, f64)], color: &str, width: f64, dashes: &str) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        let dashes = if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
        let _ = writeln!(
            self.text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"{dashes}/>",
            path.trim_end()
        );
    }

    /// A dot.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        let _ = writeln!(self.text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{color}\"/>");
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, (x, y): (f64, f64), width: f64, height: f64, color: &str) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>"
        );
    }

    /// A text; `y` is its base line.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: f64, color: &str, weight: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{color}\" \
             font-weight=\"{weight}\">{text}</text>"
        );
    }

    /// The finished picture.
    pub fn finish(mut self) -> String {
        self.text += "</svg>\n";
        self.text
    }
}
