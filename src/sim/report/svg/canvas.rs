//! Shapes and text as SVG elements, escaped.

use std::fmt::Write as _;

use quick_xml::escape::escape;

/// Elements, one per line.
#[derive(Default)]
pub(super) struct Canvas {
    out: String,
}

impl Canvas {
    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, content: &str) {
        let content = clean(content);
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{content}</text>");
    }

    /// A rectangle (x, y, width, height) with a tooltip.
    pub(super) fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str, told: Option<&str>) {
        let width = width.max(0.0);
        let _ = write!(
            self.out,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\""
        );
        let _ = match told {
            Some(told) => writeln!(self.out, "><title>{}</title></rect>", clean(told)),
            None => writeln!(self.out, "/>"),
        };
    }

    /// A vertical line.
    pub(super) fn upright(&mut self, x: f64, from: f64, to: f64, class: &str) {
        let _ = writeln!(
            self.out,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\"/>"
        );
    }

    /// A horizontal line.
    pub(super) fn level(&mut self, y: f64, from: f64, to: f64, class: &str) {
        let _ = writeln!(
            self.out,
            "<line class=\"{class}\" x1=\"{from:.1}\" y1=\"{y:.1}\" x2=\"{to:.1}\" y2=\"{y:.1}\"/>"
        );
    }

    pub(super) fn dot(&mut self, x: f64, y: f64, class: &str) {
        let _ = writeln!(self.out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
    }

    pub(super) fn finish(self) -> String {
        self.out
    }
}

/// Escapes text and drops characters that XML cannot hold.
pub(super) fn clean(text: &str) -> String {
    let text: String =
        text.chars().filter(|c| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')).collect();
    escape(text.as_str()).into_owned()
}
