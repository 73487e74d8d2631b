//! The scale-in controller: watches Nodes and groups, and runs a worker for every Node that needs one.
//!
//! Level-triggered: which Nodes need one follows from what is seen, so a missed event or a restart loses nothing.

use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};
use tracing::Instrument;

use super::context::{Shared, membership, needs_worker, with_twins};
use super::heartbeat;
use super::load_balancers;
use super::notices;
use super::workers::Workers;
use crate::cluster::NodeView;
use crate::k8s::GroupName;

/// A part of the controller ended that should run for ever.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A watch ended.
    #[error("the {0} ended")]
    Ended(&'static str),
    /// A task panicked.
    #[error("a task of the scale-in controller failed")]
    Failed(#[from] JoinError),
}

/// Runs until stopped.
pub async fn run(shared: Arc<Shared>) -> Result<(), ControllerError> {
    let (mut watches, mut queues) = (JoinSet::new(), JoinSet::new());
    for (name, watch) in watches_of(&shared) {
        watches.spawn(named(name, watch));
    }
    for queue in &shared.queues {
        let read = notices::run(Arc::clone(&shared), queue.clone());
        queues.spawn(named("reading of a queue of notices", read));
    }
    let mut workers = Workers::default();
    let mut groups = shared.groups.versions();
    let mut notices = shared.notices.versions();
    let mut to_check: Vec<Arc<NodeView>> = tokio::select! {
        biased;
        () = shared.stop.cancelled() => return Ok(()),
        Some(ended) = watches.join_next() => return Err(ControllerError::Ended(ended?)),
        Some(ended) = queues.join_next() => return Err(ControllerError::Ended(ended?)),
        () = shared.nodes.synced() => shared.nodes.all(),
    };
    // What Nodes carry now was written by an earlier run or another replica.
    let mut at_start = true;
    // The groups with which all Nodes were checked last.
    let mut checked = None;
    loop {
        let snapshot = shared.groups.latest();
        for node in to_check {
            // A worker finds out by itself when nothing is left to do.
            let needs_one = || {
                let instance = membership(snapshot.as_deref(), &node);
                // Of an instance without a mark no Node has a record.
                let is_marked = node.instance.as_ref().is_some_and(|id| shared.nodes.is_marked(id));
                let twins = if is_marked { with_twins(&shared, &node) } else { Vec::new() };
                needs_worker(&shared, &node, &twins, &instance)
            };
            if !workers.has(&node.name) && needs_one() {
                let is_seen = |group: &GroupName| {
                    snapshot.as_ref().is_some_and(|snapshot| snapshot.groups.contains_key(group))
                };
                // Groups that are no longer selected are known by records alone.
                if node.scale_in().is_some_and(|record| !is_seen(&record.group)) {
                    shared.groups.refresh_soon();
                }
                workers.start(&shared, &node.name, at_start);
            }
        }
        at_start = false;
        to_check = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            Some(ended) = watches.join_next() => return Err(ControllerError::Ended(ended?)),
            Some(ended) = queues.join_next() => return Err(ControllerError::Ended(ended?)),
            // The Node may have changed since its worker last saw it.
            Some(ended) = workers.ended() => shared.nodes.get(&ended?).into_iter().collect(),
            names = shared.nodes.changed() => names.iter().filter_map(|name| shared.nodes.get(name)).collect(),
            Ok(()) = groups.changed() => {
                let latest = shared.groups.latest();
                let before = std::mem::replace(&mut checked, latest.clone());
                // Most refreshes show what the one before has shown.
                let is_same = before.zip(latest).is_some_and(|(before, now)| now.has_descriptions_of(&before));
                if is_same { Vec::new() } else { shared.nodes.all() }
            }
            Ok(()) = notices.changed() => noticed(&shared),
        };
    }
    // Pending answers are awaited. The next leader finds the rest by looking, and in the returned messages.
    while let Some(ended) = workers.ended().await {
        ended?;
    }
    while let Some(ended) = queues.join_next().await {
        ended?;
    }
    Ok(())
}

/// Runs a part under its name. Returns that when it ends.
async fn named(name: &'static str, part: impl Future<Output = ()>) -> &'static str {
    part.instrument(tracing::info_span!("watch", kind = name)).await;
    name
}

/// The Nodes of instances of which AWS has told something.
fn noticed(shared: &Shared) -> Vec<Arc<NodeView>> {
    shared.notices.instances().iter().flat_map(|id| shared.nodes.of_instance(id)).collect()
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
    let watches = vec![
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
        ("keeping of lifecycle hooks", watch(shared, heartbeat::run)),
        ("looking up of lifecycle hooks", watch(shared, async |s: Arc<Shared>| s.hooks.run().await)),
    ];
    let balancers = shared.settings.wait_for_load_balancers.then(|| {
        let shared = Arc::clone(shared);
        let look: Watch = Box::pin(async move { match load_balancers::run(shared).await {} });
        ("looking at target groups", look)
    });
    watches.into_iter().chain(balancers).collect()
}
