//! `ebbtide check`: what is missing or wrong around the program, each with its fix.
//!
//! ```text
//! cluster, AWS, files ── facts (thin readers) ──▶ findings (pure) ──▶ table or JSON, exit code
//! ```

mod facts;
mod finding;
mod findings;
mod queues;
mod rights;
mod simulation;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use serde::Serialize;

pub use self::facts::{Facts, QueueFacts, gather};
pub use self::finding::{Finding, Severity};
use self::findings::findings;
pub use self::rights::{Need, Needed, needed};
use super::output::{Style, document, plain};
use crate::config::Output;
use crate::k8s::GroupName;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Everything found, the worst first.
    pub findings: Vec<Finding>,
    /// The groups that the flags select; `null`: AWS has not said.
    pub groups: Option<Vec<GroupName>>,
}

impl Report {
    /// What these facts come to.
    pub fn of(facts: &Facts) -> Self {
        Self { findings: findings(facts), groups: facts.selected() }
    }

    /// Exit code: 2 with an error, 1 with a warning, else 0.
    pub fn exit_code(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.severity).min() {
            Some(Severity::Error) => 2,
            Some(Severity::Warning) => 1,
            Some(Severity::Note) | None => 0,
        }
    }

    /// As it is asked for.
    pub fn render(&self, output: Output, style: Style) -> String {
        if let Some(document) = document(output, self) {
            return document;
        }
        let mut text = String::new();
        for finding in &self.findings {
            let word = match finding.severity {
                Severity::Error => style.paint(31, "error"),
                Severity::Warning => style.paint(33, "warning"),
                Severity::Note => "note".to_owned(),
            };
            let told = format!("{} {}: {}", finding.check, finding.subject, finding.text);
            let _ = writeln!(text, "{word}: {}\n    fix: {}", plain(&told), plain(&finding.fix));
        }
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let _ = writeln!(
            text,
            "{} errors, {} warnings, {} notes",
            count(Severity::Error),
            count(Severity::Warning),
            count(Severity::Note)
        );
        let _ = writeln!(text, "{}", plain(&self.selected()));
        text
    }

    fn selected(&self) -> String {
        match self.groups.as_deref() {
            None => "groups selected: unknown".to_owned(),
            Some([]) => "groups selected: none".to_owned(),
            Some(groups) => format!("groups selected ({}): {}", groups.len(), groups.join(", ")),
        }
    }
}
