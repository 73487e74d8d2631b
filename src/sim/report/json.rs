//! The report for programs.

use super::Report;

/// The report as indented JSON: moments and spans are seconds, counted from where the field's owner begins.
pub fn json(report: &Report) -> String {
    // Strings, numbers and lists only: nothing in it can fail.
    serde_json::to_string_pretty(report).unwrap_or_default()
}
