//! docs/metrics.md, read.

use std::collections::{BTreeMap, BTreeSet};

/// A metric: its type, and the values that its labels may have; none listed: any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) kind: String,
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
}

pub(crate) type Metrics = BTreeMap<String, Metric>;

/// The tables of docs/metrics.md: ``| `name` | type | unit | `label` = value, value; `label`: what it is | meaning |``.
pub(crate) fn documented() -> Metrics {
    let rows = include_str!("../../docs/metrics.md").lines().filter(|line| line.starts_with("| `"));
    let metric = |row: &str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, kind, unit, labels, meaning, _] = cells[..] else { panic!("five cells: {row}") };
        assert!(!unit.is_empty() && !meaning.is_empty(), "{row}");
        let labels = labels.split(';').filter(|label| !label.is_empty()).map(|label| {
            let (name, values) = label.trim().trim_start_matches('`').split_once('`').expect("a name");
            let values = values.trim().strip_prefix('=').into_iter().flat_map(|values| values.split(", "));
            (name.to_owned(), values.map(|value| value.trim().to_owned()).collect())
        });
        (name.trim_matches('`').to_owned(), Metric { kind: kind.to_owned(), labels: labels.collect() })
    };
    rows.map(metric).collect()
}
