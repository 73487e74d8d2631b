//! The line in the log for a call of cluster-autoscaler's that failed.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::Code;

use super::RpcError;
use super::error::excerpt;
use super::metrics::{Rpc, code_name};
use super::proto::ExternalGrpcNode;
use crate::k8s::{InstanceId, ProviderId};
use crate::telemetry::{RateLimit, chain};

/// Calls come every 10 s, of reads one for every group and node, and mostly fail again, reads all at once: of each RPC and code, and of
/// changes of each group, one line in this time.
const LINES_EVERY: Duration = Duration::from_mins(1);

/// Of how many of these the last line is remembered: names of groups come from outside. After as many they are all told anew.
const REMEMBERED: usize = 1_000;

/// Nodes of a batch that a line names: as many as cluster-autoscaler's batches have by default.
const NAMED: usize = 10;

/// What a call is about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About<'a> {
    group: Option<&'a str>,
    nodes: &'a [ExternalGrpcNode],
}

impl<'a> About<'a> {
    /// A group.
    pub(super) fn group(name: &'a str) -> Self {
        Self { group: Some(name), nodes: &[] }
    }

    /// Nodes of a group.
    pub(super) fn nodes(group: &'a str, nodes: &'a [ExternalGrpcNode]) -> Self {
        Self { group: Some(group), nodes }
    }

    fn names(self) -> Option<String> {
        listed(self.nodes.iter().map(|node| node.name.clone()).filter(|name| !name.is_empty()))
    }

    fn instances(self) -> Option<String> {
        listed(self.nodes.iter().filter_map(instance_of).map(|instance| instance.to_string()))
    }
}

fn instance_of(node: &ExternalGrpcNode) -> Option<InstanceId> {
    match node.provider_id.parse() {
        Ok(ProviderId::Instance { instance, .. }) => Some(instance),
        Ok(ProviderId::Placeholder { .. }) | Err(_) => None,
    }
}

/// The first of them, and how many more there are; `None` without any.
fn listed(mut entries: impl Iterator<Item = String>) -> Option<String> {
    let first: Vec<_> = entries.by_ref().take(NAMED).collect();
    let more = entries.count();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!first.is_empty()).then(|| format!("{}{more}", excerpt(&first.join(", "))))
}

/// Failures of which one is told for all: of reads whatever the group, of changes for each.
type Kind = (Rpc, Code, Option<String>);

/// What was told of calls that failed.
#[derive(Debug, Default)]
pub(super) struct FailedCalls {
    lines: Mutex<HashMap<Kind, RateLimit>>,
}

impl FailedCalls {
    /// Tells of one.
    pub(super) fn tell(&self, rpc: Rpc, about: About<'_>, error: &RpcError) {
        let (code, text) = (error.code(), chain(error));
        let (group, node, instance) = (about.group.map(excerpt), about.names(), about.instances());
        let due = self.line_is_due(rpc, code, group.clone());
        let suppressed = due.filter(|others| *others > 0);
        let code = code_name(code);
        if due.is_some() {
            tracing::warn!(?rpc, group, node, instance, code, suppressed, error = %text, "RPC failed");
        } else {
            tracing::debug!(?rpc, group, node, instance, code, error = %text, "RPC failed");
        }
    }

    /// Whether a warning is due, and how many were left out since the last one.
    fn line_is_due(&self, rpc: Rpc, code: Code, group: Option<String>) -> Option<u64> {
        // An answer as good as any: prices are off, or a template comes within seconds.
        if code == Code::Unimplemented {
            return None;
        }
        let mut lines = self.lines.lock();
        let key = (rpc, code, group.filter(|_| rpc.changes()));
        if lines.len() >= REMEMBERED && !lines.contains_key(&key) {
            lines.clear();
        }
        lines.entry(key).or_default().allow(LINES_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_number_of_names_of_groups_takes_memory_for_good() {
        let failed = FailedCalls::default();
        for group in 0..3 * REMEMBERED {
            let due = failed.line_is_due(Rpc::NodeGroupDeleteNodes, Code::NotFound, Some(group.to_string()));
            assert_eq!(due, Some(0), "the first of each is told");
            assert!(failed.lines.lock().len() <= REMEMBERED);
        }
    }
}
