//! Which metrics and labels a PromQL expression asks for. Not a parser: enough for expressions that promtool has taken.

use std::collections::BTreeSet;

use crate::table::{Metric, Metrics};

/// Labels that Prometheus puts on what it scrapes, or on all that it sends elsewhere.
const OF_TARGETS: [&str; 5] = ["cluster", "job", "instance", "namespace", "pod"];

/// A metric that is asked for, with its matchers.
struct Asked<'a> {
    name: &'a str,
    matchers: Vec<(&'a str, &'a str)>,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn asked(expression: &str) -> Vec<Asked<'_>> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("ebbtide_") {
        let name_on = &rest[at..];
        let end = name_on.find(|c| !is_word(c)).unwrap_or(name_on.len());
        let (name, after) = name_on.split_at(end);
        let inner = after.strip_prefix('{').and_then(|inner| inner.split_once('}')).map(|(inner, _)| inner);
        let matchers = inner.into_iter().flat_map(|inner| inner.split("\",")).filter_map(|matcher| {
            let (label, value) = matcher.split_once('"')?;
            Some((label.trim_matches(|c| !is_word(c)), value.trim_end_matches('"')))
        });
        found.push(Asked { name, matchers: matchers.collect() });
        rest = after;
    }
    found
}

/// The metric of the table that a series is of.
fn of_table<'t>(series: &str, table: &'t Metrics) -> Option<(&'t String, &'t Metric)> {
    let endings = ["_bucket", "_sum", "_count"].into_iter().filter_map(|ending| series.strip_suffix(ending));
    let histogram = endings.filter_map(|name| table.get_key_value(name)).find(|(_, m)| m.kind == "histogram");
    histogram.or_else(|| table.get_key_value(series).filter(|(_, metric)| metric.kind != "histogram"))
}

/// The metrics of the table that an expression asks for.
pub(crate) fn metrics(expression: &str, table: &Metrics) -> Vec<String> {
    asked(expression).iter().filter_map(|asked| Some(of_table(asked.name, table)?.0.clone())).collect()
}

/// What an expression asks for that the table does not have: metrics, labels, values, labels to group by.
pub(crate) fn unknown(expression: &str, table: &Metrics) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut labels: BTreeSet<&str> = OF_TARGETS.into();
    for Asked { name, matchers } in asked(expression) {
        let Some((_, metric)) = of_table(name, table) else {
            unknown.push(name.to_owned());
            continue;
        };
        labels.extend(metric.labels.keys().map(String::as_str));
        labels.extend(name.ends_with("_bucket").then_some("le"));
        for (label, values) in matchers {
            if OF_TARGETS.contains(&label) || label == "le" && name.ends_with("_bucket") {
                continue;
            }
            let Some(closed) = metric.labels.get(label) else {
                unknown.push(format!("{name}: {label}"));
                continue;
            };
            let strange = values.split('|').filter(|value| !closed.is_empty() && !closed.contains(*value));
            unknown.extend(strange.map(|value| format!("{name}: {label}={value}")));
        }
    }
    let groupings = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    let grouped = groupings.flat_map(|(labels, _)| labels.split(',').map(str::trim));
    unknown.extend(grouped.filter(|label| !labels.contains(label)).map(|label| format!("by {label}")));
    unknown
}
