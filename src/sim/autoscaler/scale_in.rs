//! How the autoscaler removes a node that it does not need.

use k8s_openapi::api::core::v1::Node;

use super::journal::{Because, Event};
use super::provider::{Client, Provider};
use super::{Autoscaler, Shared, as_sent};
use crate::sim::ca_drain::{Actuator, Flags, GaveUp};

impl Autoscaler {
    /// Taints a node, drains it, and requests its deletion from the group that NodeGroupForNode then names; unless its group is at its
    /// minimum.
    pub async fn scale_in(&self, client: Client, node: &str, flags: &Flags) -> Result<(), GaveUp> {
        let _in_progress = self.begin(client.clone(), node).await?;
        let actuator = Actuator::new(&self.0.cluster, &self.0.clock, flags);
        actuator.take_out(node, async |node| self.delete(client, node).await).await
    }

    /// `verifyMinSize` of `core/scaledown/unneeded/nodes.go`: by the minimum that was told with this Node, and all deletions in progress.
    async fn begin(&self, client: Client, node: &str) -> Result<InProgress<'_>, GaveUp> {
        let mut provider = Provider::new(client, &self.0.options);
        let sent = as_sent(&self.0.cluster.node(node).ok_or(GaveUp::NoGroup)?);
        let group =
            provider.node_group_of(&sent).await.map_err(GaveUp::NotDeleted)?.ok_or(GaveUp::NoGroup)?;
        let size = provider.target_size(&group.id).await.map_err(GaveUp::NotDeleted)?;
        let mut deletions = self.0.deletions();
        let in_progress = deletions.entry(group.id.clone()).or_default();
        if size - *in_progress <= group.min_size {
            return Err(GaveUp::AtMinimum(group.id));
        }
        *in_progress += 1;
        Ok(InProgress { shared: &self.0, group: group.id })
    }

    async fn delete(&self, client: Client, node: &Node) -> Result<(), GaveUp> {
        let mut provider = Provider::new(client, &self.0.options);
        let sent = as_sent(node);
        let group = provider.group_of(&sent).await.map_err(GaveUp::NotDeleted)?.ok_or(GaveUp::NoGroup)?;
        let (nodes, because) = (vec![sent.name.clone()], Because::Unneeded);
        let answer = provider.delete_nodes(&group, vec![sent]).await;
        let error = answer.as_ref().err().map(|status| status.message().to_owned());
        self.0.note(Event::Deleted { group, nodes, because, error });
        answer.map_err(GaveUp::NotDeleted)
    }
}

/// A deletion in progress, until this is dropped.
struct InProgress<'a> {
    shared: &'a Shared,
    group: String,
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        *self.shared.deletions().entry(self.group.clone()).or_default() -= 1;
    }
}

/// Removes what an earlier run left on a Node.
pub(super) async fn untaint(shared: &Shared, node: &Node) {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    // Tried once in a process's life.
    let _ = Actuator::new(&shared.cluster, &shared.clock, &Flags::default()).write_taint(name, false).await;
}
