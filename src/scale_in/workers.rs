//! The workers, one for each Node that needs one. A panic costs only its own node a pause; heartbeats and other nodes go on.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::task::{JoinError, JoinSet};
use tracing::{Instrument as _, Span};

use super::context::Shared;
use super::events;
use super::perform::announce;
use super::worker::{self, RecordSeen};
use crate::clock::backoff;
use crate::k8s::NodeName;

/// Pause after the first panic; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause: the cause of a panic may pass.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// All workers under way.
#[derive(Debug, Default)]
pub(super) struct Workers {
    tasks: JoinSet<NodeName>,
    busy: BTreeSet<NodeName>,
}

impl Workers {
    /// Whether the Node has a worker, or gets one again after a pause.
    pub(super) fn has(&self, name: &NodeName) -> bool {
        self.busy.contains(name)
    }

    /// Starts a worker for a Node. `at_start`: an earlier run wrote its annotation.
    pub(super) fn start(&mut self, shared: &Arc<Shared>, name: &NodeName, at_start: bool) {
        self.busy.insert(name.clone());
        self.tasks.spawn(work(Arc::clone(shared), name.clone(), at_start));
    }

    /// Waits for a worker to end; `None` if there are no workers. Returns the Node that has none now.
    pub(super) async fn ended(&mut self) -> Option<Result<NodeName, JoinError>> {
        let ended = self.tasks.join_next().await?;
        Some(ended.inspect(|name| _ = self.busy.remove(name)))
    }
}

/// Works on a Node; after a panic, again after a pause. Returns the Node.
async fn work(shared: Arc<Shared>, name: NodeName, at_start: bool) -> NodeName {
    let record_seen = RecordSeen::default();
    let (mut panics, mut words) = (0_u32, String::new());
    loop {
        let again = async {
            if panics > 0 {
                rest(&shared, &name, panics, &words).instrument(span(&shared, &name)).await;
                if shared.stop.is_cancelled() {
                    return;
                }
            }
            let (shared, record_seen) = (Arc::clone(&shared), Arc::clone(&record_seen));
            let span = span(&shared, &name);
            worker::work(shared, name.clone(), record_seen, at_start || panics > 0).instrument(span).await;
        };
        match AssertUnwindSafe(again).catch_unwind().await {
            Err(panic) if !shared.stop.is_cancelled() => {
                (panics, words) = (panics.saturating_add(1), said(&*panic));
            }
            _ => return name,
        }
    }
}

/// Reports a panic, and pauses after it. `panics`: how many this worker has had so far.
async fn rest(shared: &Arc<Shared>, name: &NodeName, panics: u32, words: &str) {
    let pause = backoff(panics, FIRST_PAUSE, LONGEST_PAUSE);
    shared.metrics.panicked();
    shared.leave_all_queues(name);
    tracing::error!(panic = words, pause = ?pause, "a defect of ebbtide stopped the work on a node: taken up again after a pause");
    if let Some(node) = shared.nodes.get(name) {
        announce(Arc::clone(shared), node, events::failed(words, pause)).await;
    }
    shared.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
}

/// Log lines about the work on a node name the instance too: it is the one field to follow a scale-in by, from the notice before the
/// record to the heartbeats after the Node is gone.
fn span(shared: &Shared, name: &NodeName) -> Span {
    let instance = shared.nodes.get(name).and_then(|node| node.instance.clone());
    // At the severest level, so that --log-level drops it from no line.
    tracing::error_span!("scale_in", node = name.as_str(), instance = instance.as_deref())
}

/// The panic's message.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
