//! How answers are written: aligned columns, JSON, YAML.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::config::Output;

/// What the place where the answer goes can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether it shows colours.
    pub colour: bool,
}

impl Style {
    /// `text` in a colour of the terminal, by its SGR code.
    pub(super) fn paint(self, code: u8, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// The document as JSON or YAML; `None` if it is to be written for people.
pub(super) fn document(output: Output, document: &impl Serialize) -> Option<String> {
    let value = serde_json::to_value(document).unwrap_or_default();
    match output {
        Output::Json => Some(format!("{value:#}\n")),
        Output::Yaml => {
            let mut text = String::new();
            yaml(&mut text, &value, 0);
            Some(text.trim_start_matches('\n').to_owned())
        }
        Output::Table | Output::Wide => None,
    }
}

/// Lines of columns, each as wide as its longest cell. What is not printable in them is left out: names come from outside.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let _ = write!(line, "{cell:<width$}   ", width = width(n));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Text without what a terminal obeys.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// A time in its two largest units.
pub(super) fn lasted(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// YAML in block style; texts are quoted as in JSON, which YAML reads the same way.
fn yaml(text: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let _ = write!(text, "\n{indent}{}:", Value::from(key.as_str()));
                yaml(text, value, depth + 1);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(text, "\n{indent}-");
                yaml(text, item, depth + 1);
            }
        }
        scalar => {
            let _ = write!(text, " {scalar}");
        }
    }
    if depth == 0 {
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_says_the_same_as_json() {
        let value = json!({
            "a": [], "b": [{ "c": null, "d": "yes: \"no\"\n- x" }, 1, [true, {}]], "e": { "f": { "g": 1.5 } }, "h": {},
        });
        let text = document(Output::Yaml, &value).expect("a document");
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(read, value, "{text}");
        assert!(text.lines().count() > 8, "{text}");
    }

    #[test]
    fn columns_are_aligned_and_obey_nobody() {
        let rows =
            [vec!["node".to_owned(), "a".to_owned()], vec!["n".to_owned(), "\u{1b}[31mred".to_owned()]];
        assert_eq!(columns(&rows), "node   a\nn       [31mred\n");
    }

    #[test]
    fn a_time_is_told_in_its_two_largest_units() {
        assert_eq!([5, 65, 3_700, 176_461].map(lasted), ["5s", "1m5s", "1h1m", "2d1h"]);
    }
}
