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

/// Reads come for every group and node every 10 s, and mostly fail all at once: of each RPC and code, one line in this time.
const READS_EVERY: Duration = Duration::from_mins(1);

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

/// What was told of calls that failed.
#[derive(Debug, Default)]
pub(super) struct FailedCalls {
    reads: Mutex<HashMap<(Rpc, Code), RateLimit>>,
}

impl FailedCalls {
    /// Tells of one.
    pub(super) fn tell(&self, rpc: Rpc, about: About<'_>, error: &RpcError) {
        let (code, text) = (error.code(), chain(error));
        let (group, node, instance) = (about.group.map(excerpt), about.names(), about.instances());
        let due = self.line_is_due(rpc, code);
        let suppressed = due.filter(|others| *others > 0);
        let code = code_name(code);
        if due.is_some() {
            tracing::warn!(?rpc, group, node, instance, code, suppressed, error = %text, "RPC failed");
        } else {
            tracing::debug!(?rpc, group, node, instance, code, error = %text, "RPC failed");
        }
    }

    /// Whether a warning is due, and how many were left out since the last one.
    fn line_is_due(&self, rpc: Rpc, code: Code) -> Option<u64> {
        match code {
            _ if rpc.changes() => Some(0),
            // An answer as good as any: prices are off, or a template comes within seconds.
            Code::Unimplemented => None,
            _ => self.reads.lock().entry((rpc, code)).or_default().allow(READS_EVERY),
        }
    }
}
