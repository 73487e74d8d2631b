//! A finding: what every check returns.

use std::time::Duration;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Something does not work.
    Error,
    /// Something works worse than it could, or will not work one day.
    Warning,
    /// Worth knowing; also what could not be checked.
    Note,
}

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was checked.
    pub check: &'static str,
    /// What it is about.
    pub subject: String,
    /// What was found.
    pub text: String,
    /// What to do.
    pub fix: String,
}

/// Notes something found.
pub(super) fn add(
    found: &mut Vec<Finding>,
    severity: Severity,
    check: &'static str,
    subject: impl Into<String>,
    text: impl Into<String>,
    fix: impl Into<String>,
) {
    found.push(Finding { severity, check, subject: subject.into(), text: text.into(), fix: fix.into() });
}

/// A time in words.
pub(super) fn in_words(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}
