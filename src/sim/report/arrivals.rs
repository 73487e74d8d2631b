//! Summary of the nodes that came up.

use serde::Serialize;

use super::seconds::Seconds;
use super::seen::Seen;
use crate::sim::cluster::Event;

/// A node that came up. `launched` counts from the start of the report, everything else from the launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Arrival {
    /// Name of the Node; `None` for an instance that never registered one.
    pub node: Option<String>,
    /// EC2 instance id.
    pub instance: String,
    /// Name of its group.
    pub group: String,
    /// When it was launched.
    pub launched: Seconds,
    /// When it came into service.
    pub in_service: Option<Seconds>,
    /// When its Node registered.
    pub registered: Option<Seconds>,
    /// When the first workload ran on it.
    pub first_workload: Option<Seconds>,
}

/// The launched instances, in that order.
pub(super) fn arrivals(seen: &Seen<'_>) -> Vec<Arrival> {
    let mut all: Vec<_> =
        seen.lives.iter().filter_map(|(id, life)| Some((life.launched?, id, life))).collect();
    all.sort_by_key(|(launched, id, _)| (*launched, *id));
    let arrival = |(launched, id, life): (_, &String, &super::machines::Life)| {
        let node = seen.facts.node_of(id);
        let registered = seen.cluster.iter().find(|entry| {
            entry.at >= launched
                && matches!(&entry.what, Event::NodeRegistered { node: new } if Some(new.as_str()) == node)
        });
        let workloads = seen.runs.iter().filter(|run| run.is_workload() && Some(run.node.as_str()) == node);
        let since = |at| Seconds::between(launched, at);
        Arrival {
            node: node.map(str::to_owned),
            instance: id.clone(),
            group: life.group.clone(),
            launched: Seconds::between(seen.started, launched),
            in_service: life.in_service.map(since),
            registered: registered.map(|entry| since(entry.at)),
            first_workload: workloads.filter_map(|run| run.from).min().map(since),
        }
    };
    all.into_iter().map(arrival).collect()
}
