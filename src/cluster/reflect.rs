//! Keeping a store in step with the API server.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;

use crate::telemetry::chain;

/// Where the events of a watch go.
pub trait Sink<K> {
    /// An object is there, or has changed.
    fn apply(&self, object: K);
    /// An object is gone.
    fn delete(&self, object: K);
    /// These are all objects there are.
    fn reset(&self, objects: Vec<K>);
}

/// Feeds `sink` from `events` for ever. A broken watch is taken up again; the store keeps what it has meanwhile.
pub async fn reflect<K>(events: impl Stream<Item = watcher::Result<Event<K>>> + Send, sink: &impl Sink<K>)
where
    K: kube::Resource<DynamicType: Default> + Clone + Debug + Send,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut events = std::pin::pin!(events.backoff(WatchBackoff::default()));
    let mut listed = Vec::new();
    let mut broken = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if std::mem::take(&mut broken) {
                    tracing::info!(kind, "watching again");
                }
                deliver(event, &mut listed, sink);
            }
            Err(error) => {
                // Once an outage, not once a try.
                if !std::mem::replace(&mut broken, true) {
                    tracing::warn!(kind, error = %chain(&error), "the watch broke and is taken up again");
                }
            }
        }
    }
}

/// Hands one event of a watch to the sink. `listed` collects a list until it is whole.
pub fn deliver<K>(event: Event<K>, listed: &mut Vec<K>, sink: &impl Sink<K>) {
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => listed.push(object),
        Event::InitDone => sink.reset(std::mem::take(listed)),
        Event::Apply(object) => sink.apply(object),
        Event::Delete(object) => sink.delete(object),
    }
}

/// How a broken watch is taken up: at once, then ever slower up to 5 s. Shorter than `kube`'s default of 30 s because
/// a drain that does not see the last exit holds an instance.
#[derive(Clone, Debug, Default)]
pub struct WatchBackoff {
    tries: u32,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = Duration::from_millis(100) * 2u32.pow(self.tries.min(6));
        self.tries += 1;
        Some(delay.min(Duration::from_secs(5)))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.tries = 0;
    }
}

/// Objects of one kind, each reduced to what is needed of it.
#[derive(Debug)]
pub struct Store<V> {
    items: Mutex<BTreeMap<String, Arc<V>>>,
    version: watch::Sender<u64>,
    synced: watch::Sender<bool>,
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self { items: Mutex::default(), version: watch::Sender::new(0), synced: watch::Sender::new(false) }
    }
}

impl<V> Store<V> {
    /// Everything there is.
    pub fn all(&self) -> Vec<Arc<V>> {
        self.lock().values().cloned().collect()
    }

    /// Whether something of this key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.lock().contains_key(key)
    }

    /// Whether the first list is in.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Changes whenever the store does.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<V>>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}

/// How an object becomes what is kept of it.
pub trait Project<K>: Sized {
    /// The key to keep it under and what is kept; none if nothing is.
    fn project(object: &K) -> Option<Self>;
    /// Key of an object.
    fn key(object: &K) -> String;
}

impl<K: ResourceExt, V: Project<K>> Sink<K> for Store<V> {
    fn apply(&self, object: K) {
        let key = V::key(&object);
        match V::project(&object) {
            Some(value) => self.lock().insert(key, Arc::new(value)),
            None => self.lock().remove(&key),
        };
        self.touch();
    }

    fn delete(&self, object: K) {
        self.lock().remove(&V::key(&object));
        self.touch();
    }

    fn reset(&self, objects: Vec<K>) {
        *self.lock() = objects
            .iter()
            .filter_map(|object| Some((V::key(object), Arc::new(V::project(object)?))))
            .collect();
        self.synced.send_replace(true);
        self.touch();
    }
}
