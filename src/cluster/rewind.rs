//! Notices that the API server counts from an older version because etcd was restored from a backup.
//!
//! A watch that resumes at a version in the future gets nothing until that version has come, not even a bookmark or an
//! error
//! ([`Cacher.Watch`](https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/storage/cacher/cacher.go)).
//! So a list of one object, of a small resource, is read now and then. Its version is that of all of etcd, and never
//! goes back otherwise. When it has gone back, every watch starts again with a list, which replaces whatever was known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

use super::answer::{ApiError, timely};
use crate::telemetry::chain;

/// How often the version is read. Restarting the controllers after a restore takes longer.
const EVERY: Duration = Duration::from_secs(30);

/// The same after a failure: API servers are down while etcd is restored.
const AGAIN: Duration = Duration::from_secs(5);

/// How many restores were noticed.
#[derive(Debug, Default)]
pub(super) struct Rewinds {
    seen: watch::Sender<u64>,
    /// The newest version that a list or an event has shown.
    newest: AtomicU64,
    suspicion: Notify,
}

impl Rewinds {
    /// Watches for a restored etcd, for ever.
    pub(super) async fn watch(&self, client: kube::Client) {
        let api: Api<PodDisruptionBudget> = Api::all(client);
        let params = ListParams::default().limit(1);
        loop {
            let mut pause = EVERY;
            // Events may show a newer version while the answer is on its way.
            let newest = self.newest.load(Ordering::Relaxed);
            match timely(api.list_metadata(&params)).await {
                Ok(list) => {
                    let version = list.metadata.resource_version.and_then(|version| version.parse().ok());
                    let version: u64 = version.unwrap_or(newest);
                    if version < newest {
                        tracing::warn!(
                            version,
                            before = newest,
                            "the API server counts from an older version (etcd was restored from a backup): everything is listed again"
                        );
                        self.newest.store(version, Ordering::Relaxed);
                        self.seen.send_modify(|seen| *seen += 1);
                    }
                    self.newest.fetch_max(version, Ordering::Relaxed);
                }
                Err(error) => {
                    let error: &ApiError = &error;
                    tracing::debug!(error = %chain(error), "could not read the API server's version; trying again");
                    pause = AGAIN;
                }
            }
            // When requested or due, whichever is sooner.
            let _ = tokio::time::timeout(pause, self.suspicion.notified()).await;
        }
    }

    /// Has the version read now: an object was older than before.
    pub(super) fn suspect(&self) {
        self.suspicion.notify_one();
    }

    /// A watch that starts again when the API server has gone back.
    pub(super) fn follow<K>(
        self: &Arc<Self>,
        api: Api<K>,
        config: watcher::Config,
    ) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
    where
        K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let begin = move || watcher::watcher(api.clone(), config.clone()).boxed();
        let state = (begin(), self.seen.subscribe(), begin, Arc::clone(self));
        futures::stream::unfold(state, async |(mut events, mut rewinds, begin, shown)| {
            let event = tokio::select! {
                biased;
                Ok(()) = rewinds.changed() => {
                    events = begin();
                    events.next().await
                }
                event = events.next() => event,
            };
            if let Some(Ok(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object))) = &event
            {
                let version =
                    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok());
                shown.newest.fetch_max(version.unwrap_or_default(), Ordering::Relaxed);
            }
            Some((event?, (events, rewinds, begin, shown)))
        })
    }
}
