//! The scale-in controller: watches Nodes and groups, and keeps a worker for every Node that needs one.
//!
//! Level-triggered: which Nodes those are is a function of what is seen, so a missed event or a restart loses nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::held_since::Holds;
use super::hold;
use super::intents::record_on;
use super::metrics::{Board, Metrics};
use super::situation::{Settings, Whereabouts};
use super::surroundings::whereabouts;
use super::wishes::Wishes;
use super::workers::Workers;
use crate::aws::{Aws, Lifecycle};
use crate::clock::Clock;
use crate::cluster::{Attachment, Budget, Cluster, Existing, Leadership, NodeView, Nodes, Store};
use crate::groups::Groups;
use crate::groups::hooks::Hooks;
use crate::groups::protection::Protection;
use crate::groups::selector::Selectors;
use crate::k8s::names;
use crate::template::Lessons;

/// What the controller and its workers share.
#[derive(Debug)]
pub struct Shared {
    /// The Kubernetes API.
    pub cluster: Cluster,
    /// AWS.
    pub aws: Aws,
    /// Nodes, kept by the controller's watch.
    pub nodes: Arc<Nodes>,
    /// Disruption budgets.
    pub budgets: Store<Budget>,
    /// DaemonSets.
    pub daemon_sets: Store<Existing>,
    /// Volume attachments.
    pub attachments: Store<Attachment>,
    /// Node groups.
    pub groups: Arc<Groups>,
    /// Which groups are selected.
    pub selectors: Selectors,
    /// What was learned of the groups' nodes.
    pub lessons: Arc<Lessons>,
    /// Lifecycle hooks.
    pub hooks: Arc<Hooks>,
    /// Since when instances are held.
    pub holds: Holds,
    /// Lowers sizes without a victim.
    pub protection: Arc<Protection>,
    /// Whether this process may write.
    pub leadership: Leadership,
    /// Tells the time.
    pub clock: Clock,
    /// How scale-ins are done.
    pub settings: Settings,
    /// Whose turn it is of the scale-ins that people wish for.
    pub wishes: Wishes,
    /// Whom drains wait for.
    pub waiting: Arc<Board>,
    /// Counters.
    pub metrics: Metrics,
    /// Stops everything: what was asked for is heard out, nothing new is asked.
    pub stop: CancellationToken,
}

/// A part of the controller ended that never should.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A watch came to its end.
    #[error("the {0} ended")]
    Ended(&'static str),
    /// A task panicked.
    #[error("a task of the scale-in controller failed")]
    Failed(#[from] JoinError),
}

/// Whether something is to be done for a Node, now or when something changes.
pub(super) fn needs_worker(shared: &Shared, node: &NodeView, instance: &Whereabouts) -> bool {
    let all = node.instance.as_deref().map(|instance| shared.nodes.of_instance(instance)).unwrap_or_default();
    if node.marks.is_some() || node.record.is_some() || all.iter().any(|node| node.record.is_some()) {
        return true;
    }
    let guard = shared.settings.guard;
    let Whereabouts::In { lifecycle, .. } = instance else { return false };
    lifecycle.is_held()
        || matches!(lifecycle, Lifecycle::Terminating | Lifecycle::Retained)
        // cluster-autoscaler drains it: the flush begins with the last exit, which somebody has to see.
        || node.taint(names::TO_BE_DELETED).is_some()
        || (guard && node.taint(names::DELETION_CANDIDATE).is_some())
}

/// Runs until stopped.
pub async fn run(shared: Arc<Shared>) -> Result<(), ControllerError> {
    let mut watches = JoinSet::new();
    for (name, watch) in watches_of(&shared) {
        watches.spawn(
            async move {
                watch.await;
                name
            }
            .instrument(tracing::info_span!("watch", kind = name)),
        );
    }
    let mut workers = Workers::default();
    let mut groups = shared.groups.versions();
    let mut look_at: BTreeSet<String> = tokio::select! {
        biased;
        () = shared.stop.cancelled() => return Ok(()),
        Some(ended) = watches.join_next() => return Err(ControllerError::Ended(ended?)),
        () = shared.nodes.synced() => shared.nodes.names().into_iter().collect(),
    };
    // What stands on Nodes now was written by an earlier run, or by another replica.
    let mut at_start = true;
    loop {
        for name in look_at {
            let Some(node) = shared.nodes.get(&name) else {
                shared.groups.claim(&name, None);
                continue;
            };
            shared.groups.claim(&name, record_on(&node).map(|record| (record.group, record.instance)));
            let instance = whereabouts(&shared, &node);
            if !workers.has(&name) && needs_worker(&shared, &node, &instance) {
                workers.start(&shared, name, at_start);
            }
        }
        at_start = false;
        look_at = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            Some(ended) = watches.join_next() => return Err(ControllerError::Ended(ended?)),
            // It may have changed since its worker saw it last.
            Some(name) = workers.ended(&shared) => name.into_iter().collect(),
            names = shared.nodes.changed() => names,
            Ok(()) = groups.changed() => shared.nodes.names().into_iter().collect(),
        };
    }
    // What is on its way is heard out; whoever takes over finds the rest by looking.
    while workers.ended(&shared).await.is_some() {}
    Ok(())
}

type Watch = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn watches_of(shared: &Arc<Shared>) -> Vec<(&'static str, Watch)> {
    fn watch<F, T>(shared: &Arc<Shared>, run: F) -> Watch
    where
        F: FnOnce(Arc<Shared>) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        Box::pin(run(Arc::clone(shared)))
    }
    vec![
        ("watch of Nodes", watch(shared, async |s: Arc<Shared>| s.cluster.watch_nodes(&s.nodes).await)),
        (
            "watch of disruption budgets",
            watch(shared, async |s: Arc<Shared>| s.cluster.watch_budgets(&s.budgets).await),
        ),
        (
            "watch of DaemonSets",
            watch(shared, async |s: Arc<Shared>| s.cluster.watch_daemon_sets(&s.daemon_sets).await),
        ),
        (
            "watch of volume attachments",
            watch(shared, async |s: Arc<Shared>| s.cluster.watch_attachments(&s.attachments).await),
        ),
        (
            "watch of the API server's version",
            watch(shared, async |s: Arc<Shared>| s.cluster.watch_version().await),
        ),
        ("keeping of lifecycle hooks", watch(shared, hold::hold)),
    ]
}
