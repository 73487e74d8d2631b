//! Notices that the API server counts from an older version because etcd was restored from a backup.
//!
//! A watch that resumes at a version in the future gets nothing until that version has come, not even a bookmark or an
//! error
//! ([`Cacher.Watch`](https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/storage/cacher/cacher.go)).
//! So a list of one object, of a small resource, is read now and then. Its version is that of all of etcd, and never
//! goes back otherwise. When it has gone back, every watch starts again with a list, which replaces whatever was known.
//!
//! Where every resource has an etcd of its own, versions of two resources say nothing of each other. So before anything is
//! listed again, the resource that has shown the newest version is asked for its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
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
    newest: Mutex<Option<Shown>>,
    suspicion: Notify,
}

/// A version that a list or an event has shown, and of which resource.
#[derive(Clone, Debug)]
struct Shown {
    version: u64,
    of: Arc<ApiResource>,
}

impl Rewinds {
    /// Watches for a restored etcd, for ever.
    pub(super) async fn watch(&self, client: kube::Client) {
        let budgets = Arc::new(ApiResource::erase::<PodDisruptionBudget>(&()));
        loop {
            let mut pause = EVERY;
            if let Err(error) = self.look(&client, &budgets).await {
                tracing::debug!(error = %chain(&error), "could not read the API server's version; trying again");
                pause = AGAIN;
            }
            // When requested or due, whichever is sooner.
            let _ = tokio::time::timeout(pause, self.suspicion.notified()).await;
        }
    }

    /// Reads the version, and has everything listed again if it has gone back.
    async fn look(&self, client: &kube::Client, budgets: &Arc<ApiResource>) -> Result<(), ApiError> {
        // Events may show a newer version while the answer is on its way.
        let newest = self.newest();
        let Some(mut now) = version_of(client, budgets).await? else { return Ok(()) };
        if let Some(newest) = newest.filter(|newest| now.version < newest.version) {
            if newest.of != now.of {
                let Some(of_the_same) = version_of(client, &newest.of).await? else { return Ok(()) };
                now = of_the_same;
            }
            if now.version < newest.version {
                tracing::warn!(
                    version = now.version,
                    before = newest.version,
                    "the API server counts from an older version (etcd was restored from a backup): everything is listed again"
                );
                *self.lock() = None;
                self.seen.send_modify(|seen| *seen += 1);
            }
        }
        self.show(now.version, &now.of);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Shown>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest(&self) -> Option<Shown> {
        self.lock().clone()
    }

    /// Notes a version that was shown.
    fn show(&self, version: u64, of: &Arc<ApiResource>) {
        let mut newest = self.lock();
        match &mut *newest {
            Some(shown) if shown.version >= version => {}
            Some(shown) if shown.of == *of => shown.version = version,
            newest => *newest = Some(Shown { version, of: Arc::clone(of) }),
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
        K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let begin = move || watcher::watcher(api.clone(), config.clone()).boxed();
        let of = Arc::new(ApiResource::erase::<K>(&()));
        let state = (begin(), self.seen.subscribe(), begin, (Arc::clone(self), of));
        futures::stream::unfold(state, async |(mut events, mut rewinds, begin, (all, of))| {
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
                let version = object.meta().resource_version.as_deref();
                if let Some(version) = version.and_then(|version| version.parse().ok()) {
                    all.show(version, &of);
                }
            }
            Some((event?, (events, rewinds, begin, (all, of))))
        })
    }
}

/// The version that a list of one object tells of a resource; `None` if it is no number.
async fn version_of(client: &kube::Client, of: &Arc<ApiResource>) -> Result<Option<Shown>, ApiError> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), of.as_ref());
    let list = timely(api.list_metadata(&ListParams::default().limit(1))).await?;
    let version = list.metadata.resource_version.and_then(|version| version.parse().ok());
    Ok(version.map(|version| Shown { version, of: Arc::clone(of) }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Node;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server that tells these versions, by plural.
    fn telling(versions: &Arc<Mutex<BTreeMap<&'static str, u64>>>) -> kube::Client {
        let versions = Arc::clone(versions);
        let answer = move |request: http::Request<Body>| {
            let path = request.uri().path().to_owned();
            let version = versions.lock().expect("not poisoned")[path.rsplit('/').next().expect("a plural")];
            let list = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                "metadata": { "resourceVersion": version.to_string() }, "items": [],
            });
            let body = Body::from(list.to_string().into_bytes());
            std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(body)))
        };
        kube::Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_version_of_the_same_resource_that_has_gone_back_has_everything_listed_again() {
        let versions =
            Arc::new(Mutex::new(BTreeMap::from([("poddisruptionbudgets", 100), ("nodes", 5_000)])));
        let client = telling(&versions);
        let rewinds = Rewinds::default();
        let budgets = Arc::new(ApiResource::erase::<PodDisruptionBudget>(&()));
        let nodes = Arc::new(ApiResource::erase::<Node>(&()));
        let tells = async |what: &'static str, version, expected| {
            versions.lock().expect("not poisoned").insert(what, version);
            rewinds.look(&client, &budgets).await.expect("answered");
            assert_eq!(*rewinds.seen.borrow(), expected, "{what} {version}");
        };
        tells("poddisruptionbudgets", 100, 0).await;
        tells("poddisruptionbudgets", 101, 0).await;
        rewinds.show(5_000, &nodes);
        // An etcd for each resource.
        tells("poddisruptionbudgets", 102, 0).await;
        tells("nodes", 5_001, 0).await;
        tells("nodes", 4_000, 1).await;
        tells("nodes", 4_001, 1).await;
        // One for all, of which Nodes have shown the newest version.
        tells("poddisruptionbudgets", 6_000, 1).await;
        rewinds.show(6_010, &nodes);
        versions.lock().expect("not poisoned").insert("nodes", 5_900);
        tells("poddisruptionbudgets", 5_900, 2).await;
        tells("poddisruptionbudgets", 5_901, 2).await;
    }
}
