//! Watches: streams of lines, written at each write to the store.
//!
//! Invariants: a watch sees every change of its selection after its start revision, in order and once; an object that ceases
//! to match is sent as DELETED, one that begins to match as ADDED; a watcher that is gone is dropped at its next line.
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use super::object::Object;
use super::queue::Task;
use super::resources::{Resource, Shape};
use super::route::Call;
use super::selectors::Selection;
use super::state::State;
use super::status::Failure;
use super::store::Change;
use super::verbs::shown;

/// How often a watch that asked for bookmarks gets one; a real API server's watch cache sends one about every minute.
pub(super) const BOOKMARK_EVERY: Duration = Duration::from_mins(1);

/// Default duration of a watch: kube-apiserver's `--min-request-timeout` (1800 s) up to twice that.
const LASTS_AT_LEAST: u64 = 1800;

pub(super) struct Watcher {
    resource: Resource,
    shape: Shape,
    selection: Selection,
    bookmarks: bool,
    until: Timestamp,
    /// Only newer changes are sent. It can lie ahead: a version from before a restore of etcd.
    after: u64,
    /// When the last line arrives.
    last: Timestamp,
    lines: mpsc::UnboundedSender<(Timestamp, Bytes)>,
}

/// The lines of a watch, each with its arrival.
pub(super) type Lines = mpsc::UnboundedReceiver<(Timestamp, Bytes)>;

impl Watcher {
    /// The event that a change is for this watch.
    fn event<'a>(&self, change: &'a Change) -> Option<(&'static str, &'a Arc<Object>)> {
        let was = change.before.as_deref().is_some_and(|before| self.selection.selects(before));
        let is = change.after.as_ref().filter(|after| self.selection.selects(after));
        match (was, is) {
            (true, Some(after)) => Some(("MODIFIED", after)),
            (false, Some(after)) => Some(("ADDED", after)),
            (true, None) => Some(("DELETED", change.tombstone()?)),
            (false, None) => None,
        }
    }

    /// Sends a line that arrives at `at`, or after the previous one. Returns whether anybody still listens.
    fn line(&mut self, at: Timestamp, line: Bytes) -> bool {
        self.last = self.last.max(at);
        self.lines.send((self.last, line)).is_ok()
    }

    fn bookmark(&mut self, at: Timestamp, revision: u64) -> bool {
        let (version, kind) = self.resource.type_meta(self.shape);
        let metadata = json!({ "resourceVersion": revision.to_string() });
        let object = json!({ "kind": kind, "apiVersion": version, "metadata": metadata });
        self.line(at, line("BOOKMARK", &object.to_string()))
    }
}

fn start_revision(call: &Call<'_>) -> Result<Start, Failure> {
    if call.flag("sendInitialEvents") {
        return Err(Failure::no_streaming_lists());
    }
    // A watch may start at a future version (`Cacher.Watch`): it waits for it.
    let revision = read_revision(call)?.unwrap_or(0);
    Ok(if revision == 0 { Start::Now } else { Start::After(revision) })
}

fn line(kind: &str, object: &str) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

impl State {
    /// Sends a change to every watch that selects it, each with its own lag. Lines are rendered once per kind and shape.
    pub(super) fn deliver(&mut self, change: &Change) {
        if self.stalled.contains_key(&change.resource) {
            return;
        }
        let mut rendered: Vec<(&str, Shape, Bytes)> = Vec::new();
        let (now, lag, dice) = (self.now, self.timing.watch_lag, &mut self.dice);
        self.watchers.retain_mut(|watcher| {
            let concerned = watcher.resource == change.resource && change.revision > watcher.after;
            let Some((kind, object)) = concerned.then(|| watcher.event(change)).flatten() else {
                return true;
            };
            let known = rendered.iter().find(|(k, shape, _)| (*k, *shape) == (kind, watcher.shape));
            let bytes = if let Some((_, _, bytes)) = known {
                bytes.clone()
            } else {
                let bytes = line(kind, &shown(object, watcher.shape, now));
                rendered.push((kind, watcher.shape, bytes.clone()));
                bytes
            };
            watcher.line(now + lag.draw(dice), bytes)
        });
    }

    /// Opens a watch.
    pub(super) fn watch(&mut self, call: &Call<'_>) -> Result<Lines, Failure> {
        let selection = Selection::of_call(call)?;
        let from = start_revision(call)?;
        let (lines, receiver) = mpsc::unbounded_channel();
        let lasts = match call.param("timeoutSeconds").and_then(|seconds| seconds.parse().ok()) {
            Some(seconds) if seconds > 0 => seconds,
            _ => LASTS_AT_LEAST + self.rng.u64(0..LASTS_AT_LEAST),
        };
        let now = self.now;
        let mut watcher = Watcher {
            resource: call.resource,
            shape: call.shape,
            selection,
            bookmarks: call.flag("allowWatchBookmarks"),
            until: now + Duration::from_secs(lasts),
            after: if let Start::After(revision) = from { revision } else { 0 },
            last: now,
            lines,
        };
        match from {
            Start::Now => {
                let selected =
                    self.store.all(call.resource).filter(|object| watcher.selection.selects(object));
                let selected: Vec<Arc<Object>> = selected.cloned().collect();
                for object in selected {
                    watcher.line(now, line("ADDED", &shown(&object, watcher.shape, now)));
                }
            }
            Start::After(revision) => {
                let Some(changes) = self.store.since(call.resource, revision) else {
                    // As in the watch cache: once the request is understood, a failure is an event.
                    let message = format!("too old resource version: {revision} ({})", self.store.compacted);
                    let expired = Failure::expired(message).body().to_string();
                    // Cannot fail: the receiver is still here.
                    let _ = watcher.line(now, line("ERROR", &expired));
                    return Ok(receiver);
                };
                let known = self.stalled.get(&call.resource).copied().unwrap_or(u64::MAX);
                for change in changes.take_while(|change| change.revision <= known) {
                    if let Some((kind, object)) = watcher.event(change) {
                        let line = line(kind, &shown(object, watcher.shape, now));
                        watcher.line(now, line);
                    }
                }
            }
        }
        self.queue.add(Task::WatchTimeouts, watcher.until);
        if watcher.bookmarks {
            self.queue.add(Task::Bookmarks, now + BOOKMARK_EVERY);
        }
        self.watchers.push(watcher);
        Ok(receiver)
    }

    /// The `resourceVersion` of a request, refused if it lies ahead.
    pub(super) fn asked_revision(&self, call: &Call<'_>) -> Result<Option<u64>, Failure> {
        let revision = read_revision(call)?;
        match revision.filter(|revision| *revision > self.store.revision) {
            Some(ahead) => Err(Failure::too_new(ahead, self.store.revision)),
            None => Ok(revision),
        }
    }

    /// Sends bookmarks while watches want them.
    pub(super) fn send_bookmarks(&mut self) {
        let (now, revision) = (self.now, self.store.revision);
        self.watchers.retain_mut(|watcher| {
            let known =
                self.stalled.get(&watcher.resource).map_or(revision, |stalled| revision.min(*stalled));
            let wanted = watcher.bookmarks && known >= watcher.after;
            !wanted || watcher.bookmark(now, known)
        });
        if self.watchers.iter().any(|watcher| watcher.bookmarks) {
            self.queue.add(Task::Bookmarks, self.now + BOOKMARK_EVERY);
        }
    }

    /// Ends the watches whose time is over.
    pub(super) fn end_watches(&mut self) {
        let now = self.now;
        self.watchers.retain(|watcher| watcher.until > now && !watcher.lines.is_closed());
        if let Some(next) = self.watchers.iter().map(|watcher| watcher.until).min() {
            self.queue.add(Task::WatchTimeouts, next);
        }
    }
}

fn read_revision(call: &Call<'_>) -> Result<Option<u64>, Failure> {
    let Some(text) = call.param("resourceVersion") else { return Ok(None) };
    let unreadable = |_| Failure::bad_request(format!("invalid resource version \"{text}\""));
    text.parse().map(Some).map_err(unreadable)
}

enum Start {
    /// From the current state.
    Now,
    /// From the changes after a revision.
    After(u64),
}
