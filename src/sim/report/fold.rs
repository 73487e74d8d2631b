//! Collects lines; repeated events become one line, placed at the first.

use std::collections::BTreeMap;

use super::node::{Kind, Line};
use super::seconds::Seconds;
use super::short;

/// Events that are told once, however often they happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Repeated {
    /// Refusals by a budget.
    Budget(String),
    /// Heartbeats of a hook.
    Heartbeats(String),
    /// Failed calls to AWS, by how they failed.
    Call(String),
    /// The program's Events on the Node, by reason.
    Said(String),
}

/// Lines, with a rank that orders those of the same moment.
#[derive(Default)]
pub(super) struct Lines {
    lines: Vec<(Seconds, u8, Line)>,
    folds: BTreeMap<Repeated, Fold>,
}

struct Fold {
    rank: u8,
    first: Seconds,
    last: Seconds,
    count: u64,
    /// The pods concerned, or the first text.
    about: Vec<String>,
}

impl Lines {
    pub(super) fn add(&mut self, at: Seconds, rank: u8, kind: Kind, text: impl Into<String>) {
        self.lines.push((at, rank, Line { at, kind, text: text.into() }));
    }

    pub(super) fn repeat(&mut self, at: Seconds, rank: u8, what: Repeated, about: &str) {
        let fold =
            self.folds.entry(what).or_insert(Fold { rank, first: at, last: at, count: 0, about: Vec::new() });
        fold.last = at;
        fold.count += 1;
        if !about.is_empty() && !fold.about.iter().any(|known| known == about) {
            fold.about.push(about.to_owned());
        }
    }

    /// All lines, in order.
    pub(super) fn finish(mut self) -> Vec<Line> {
        for (what, fold) in std::mem::take(&mut self.folds) {
            let (kind, text) = fold.line(&what);
            self.add(fold.first, fold.rank, kind, text);
        }
        self.lines.sort_by_key(|(at, rank, _)| (*at, *rank));
        self.lines.into_iter().map(|(_, _, line)| line).collect()
    }
}

impl Fold {
    fn line(&self, what: &Repeated) -> (Kind, String) {
        let Self { count, last, .. } = self;
        let until = if *count > 1 { format!(" until {last} s") } else { String::new() };
        let times = if *count > 1 { format!(" {count} times") } else { String::new() };
        match what {
            Repeated::Budget(budget) => {
                (Kind::Refused, format!("{} refused{times} by budget {budget}{until}", self.pods()))
            }
            Repeated::Heartbeats(hook) => {
                (Kind::Heartbeats, format!("{} of hook {hook}{until}", short::count(*count, "heartbeat")))
            }
            Repeated::Call(how) => (Kind::CallFailed, format!("{how}{times}{until}")),
            Repeated::Said(reason) => {
                let words = self.about.first().map(String::as_str).unwrap_or_default();
                let more = if *count > 1 { format!(" ({count} times)") } else { String::new() };
                (Kind::Said, format!("{reason}{more}: {words}"))
            }
        }
    }

    fn pods(&self) -> String {
        match self.about.as_slice() {
            [] => "an eviction was".to_owned(),
            [one] => one.clone(),
            [one, other] => format!("{one} and {other}"),
            [one, others @ ..] => format!("{one} and {} more", others.len()),
        }
    }
}
