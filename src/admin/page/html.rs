//! Text that becomes HTML. What is not written in this program is escaped: the type leaves no other way.

use std::fmt::{Display, Write as _};

use jiff::Timestamp;

/// HTML under construction.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup of ours.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// A number of ours, as in coordinates.
    pub(super) fn number(&mut self, number: f64) -> &mut Self {
        let _ = write!(self.0, "{number:.2}");
        self
    }

    /// Text from anywhere, between tags or in a quoted attribute.
    pub(super) fn text(&mut self, text: impl Display) -> &mut Self {
        for character in text.to_string().chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                control if control.is_control() => self.0.push(' '),
                plain => self.0.push(plain),
            }
        }
        self
    }

    /// A cell of a table. `label`: what stands over its column, for a screen too narrow for columns.
    pub(super) fn cell(&mut self, label: &'static str, text: impl Display) -> &mut Self {
        self.raw("<td data-label=\"").raw(label).raw("\">").text(text).raw("</td>")
    }

    /// The whole text.
    pub(super) fn done(self) -> String {
        self.0
    }
}

/// A moment, to the second.
pub(super) fn moment(at: Timestamp) -> String {
    format!("{at:.0}")
}

/// A time in its two largest units.
pub(super) fn lasted(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        _ => format!("{hours} h {} min", minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let mut html = Html::default();
        html.raw("<td title=\"")
            .text("\" onload='x'")
            .raw("\">")
            .text("<script>&\u{7}</script>")
            .raw("</td>");
        let expected = "<td title=\"&quot; onload=&#39;x&#39;\">&lt;script&gt;&amp; &lt;/script&gt;</td>";
        assert_eq!(html.done(), expected);
    }
}
