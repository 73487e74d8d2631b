//! A run, line by line: what AWS, the cluster and cluster-autoscaler saw, and what the scenario did.

use std::collections::BTreeMap;

use ebbtide::sim::{autoscaler, aws, cluster};

use crate::history::{History, Note};

pub(crate) fn print(history: &History) {
    let mut lines = Vec::new();
    for entry in history.aws.iter().filter(|entry| is_told(&entry.what)) {
        lines.push((entry.at, format!("aws      {:?}", entry.what)));
    }
    for entry in &history.cluster {
        if !matches!(entry.what, cluster::Event::Request { code: 200..=202, .. }) {
            lines.push((entry.at, format!("cluster  {:?}", entry.what)));
        }
    }
    for (at, event) in &history.autoscaler {
        if *event != autoscaler::Event::Loop {
            lines.push((*at, format!("ca       {event:?}")));
        }
    }
    let mut told = BTreeMap::new();
    for (at, note) in &history.diary {
        // What was answered before is not told again.
        if let Note::Told(group, answer) = note
            && told.insert(group, answer) == Some(answer)
        {
            continue;
        }
        lines.push((*at, format!("-------  {note:?}")));
    }
    lines.sort_by_key(|(at, _)| *at);
    for (at, line) in lines {
        println!("{at} {line}");
    }
}

/// Reads that were answered are not told.
fn is_told(event: &aws::Event) -> bool {
    match event {
        aws::Event::Called { operation, outcome: aws::Outcome::Answered, .. } => {
            !operation.name().starts_with("Describe") && *operation != aws::Operation::ReceiveMessage
        }
        _ => true,
    }
}
