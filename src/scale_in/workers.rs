//! The workers, one for each Node that needs one. A panic costs only its own node a pause; heartbeats and other nodes go on.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
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
    tasks: JoinSet<()>,
    names: HashMap<Id, NodeName>,
    busy: BTreeMap<NodeName, Busy>,
}

#[derive(Debug, Default)]
struct Busy {
    /// Panics in a row.
    panics: u32,
    /// The pause after a panic is under way, not work.
    rests: bool,
    /// When the Node's record was first seen, and how far the API server's clock was ahead of ours then.
    record_seen: RecordSeen,
}

impl Workers {
    /// Whether the Node has a worker, or gets one again after a pause.
    pub(super) fn has(&self, name: &NodeName) -> bool {
        self.busy.contains_key(name)
    }

    /// Starts a worker for a Node. `at_start`: an earlier run wrote its annotation.
    pub(super) fn start(&mut self, shared: &Arc<Shared>, name: &NodeName, at_start: bool) {
        let span = span(shared, name);
        let busy = self.busy.entry(name.clone()).or_default();
        busy.rests = false;
        let record_seen = Arc::clone(&busy.record_seen);
        let work = worker::work(Arc::clone(shared), name.clone(), record_seen, at_start).instrument(span);
        let task = self.tasks.spawn(work);
        self.names.insert(task.id(), name.clone());
    }

    /// Waits for a worker to end; `None` if there are no workers. Returns the Node that has none now. After a panic, its
    /// worker is started again here, after a pause.
    pub(super) async fn ended(&mut self, shared: &Arc<Shared>) -> Option<Option<NodeName>> {
        let (id, panic) = match self.tasks.join_next_with_id().await? {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        let name = self.names.remove(&id)?;
        match panic {
            Some(error) if !shared.stop.is_cancelled() => {
                let words =
                    error.try_into_panic().map_or_else(|error| error.to_string(), |panic| said(&*panic));
                self.rest(shared, &name, &words);
                Some(None)
            }
            _ if self.busy.get(&name).is_some_and(|busy| busy.rests) && !shared.stop.is_cancelled() => {
                self.start(shared, &name, true);
                Some(None)
            }
            _ => {
                self.busy.remove(&name);
                Some(Some(name))
            }
        }
    }

    /// Reports a panic and keeps the Node's place during the pause.
    fn rest(&mut self, shared: &Arc<Shared>, name: &NodeName, words: &str) {
        let busy = self.busy.entry(name.clone()).or_default();
        busy.panics = busy.panics.saturating_add(1);
        let pause = backoff(busy.panics, FIRST_PAUSE, LONGEST_PAUSE);
        busy.rests = true;
        shared.metrics.panicked();
        shared.waits_no_more(name);
        let span = span(shared, name);
        tracing::error!(parent: &span, panic = words, pause = ?pause, "a defect of ebbtide stopped the work on a node: taken up again after a pause");
        let event = events::failed(words, pause);
        let (outside, of) = (Arc::clone(shared), name.clone());
        let rest = async move {
            if let Some(node) = outside.nodes.get(&of) {
                announce(Arc::clone(&outside), node, event).await;
            }
            outside.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        };
        let task = self.tasks.spawn(rest.instrument(span));
        self.names.insert(task.id(), name.clone());
    }
}

/// What is logged of the work on a node has the instance as well: the one field by which to follow a scale-in, from the notice before
/// there is a record to the heartbeats after the Node is gone.
fn span(shared: &Shared, name: &NodeName) -> Span {
    let instance = shared.nodes.get(name).and_then(|node| node.instance.clone());
    // Of the severest level, so that --log-level takes it from no line.
    tracing::error_span!("scale_in", node = name.as_str(), instance = instance.as_deref())
}

/// The panic's message.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
