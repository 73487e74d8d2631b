//! The report as JSON.

use super::Report;

/// The report as indented JSON. Moments and spans are seconds, counted from the start of their owner.
pub fn json(report: &Report) -> String {
    // Cannot fail: only strings, numbers and lists.
    serde_json::to_string_pretty(report).unwrap_or_default()
}
