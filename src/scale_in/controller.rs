//! The scale-in controller: watches Nodes and groups, and runs a worker for every Node that needs one.
//!
//! Level-triggered: which Nodes need one follows from what is seen, so a missed event or a restart loses nothing.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::task::JoinError;
use tracing::{Instrument as _, info_span};

use super::context::{Shared, membership, needs_worker, with_twins};
use super::heartbeat;
use super::load_balancers;
use super::notices;
use super::workers::Workers;
use crate::cluster::NodeView;
use crate::k8s::GroupName;

/// Runs a worker for each Node that needs one, until stopped.
pub async fn run(shared: Arc<Shared>) -> Result<(), JoinError> {
    let mut workers = Workers::default();
    let mut groups = shared.groups.versions();
    let mut notices = shared.notices.versions();
    let mut to_check: Vec<Arc<NodeView>> = tokio::select! {
        biased;
        () = shared.stop.cancelled() => return Ok(()),
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
    // Pending answers are awaited. The next leader finds the rest by looking.
    while let Some(ended) = workers.ended().await {
        ended?;
    }
    Ok(())
}

/// The Nodes of instances of which AWS has told something.
fn noticed(shared: &Shared) -> Vec<Arc<NodeView>> {
    shared.notices.instances().iter().flat_map(|id| shared.nodes.of_instance(id)).collect()
}

/// What runs beside [`run`] for ever, by name.
pub fn watches(shared: &Arc<Shared>) -> Vec<(&'static str, BoxFuture<'static, ()>)> {
    fn watch<T>(
        shared: &Arc<Shared>,
        kind: &'static str,
        run: impl FnOnce(Arc<Shared>) -> T,
    ) -> (&'static str, BoxFuture<'static, ()>)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        (kind, Box::pin(run(Arc::clone(shared)).instrument(info_span!("watch", kind))))
    }
    let balancers = shared
        .settings
        .wait_for_load_balancers
        .then(|| watch(shared, "looking at target groups", async |s| match load_balancers::run(s).await {}));
    [
        watch(shared, "watch of Nodes", async |s| s.cluster.watch_nodes(&s.nodes).await),
        watch(shared, "watch of disruption budgets", async |s| s.cluster.watch_budgets(&s.budgets).await),
        watch(shared, "watch of DaemonSets", async |s| s.cluster.watch_daemon_sets(&s.daemon_sets).await),
        watch(shared, "watch of volume attachments", async |s| {
            s.cluster.watch_attachments(&s.attachments).await;
        }),
        watch(shared, "watch of the API server's version", async |s| s.cluster.watch_version().await),
        watch(shared, "keeping of lifecycle hooks", heartbeat::run),
        watch(shared, "looking up of lifecycle hooks", async |s| s.hooks.run().await),
    ]
    .into_iter()
    .chain(balancers)
    .collect()
}

/// What reads the queues of notices, until stopped: ends once the messages have been given back to the next leader.
pub fn readers(shared: &Arc<Shared>) -> impl Iterator<Item = impl Future<Output = ()> + Send + use<>> {
    shared.queues.iter().map(|queue| {
        let span = info_span!("watch", kind = "reading of a queue of notices");
        notices::run(Arc::clone(shared), queue.clone()).instrument(span)
    })
}
