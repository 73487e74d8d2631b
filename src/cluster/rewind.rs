//! Notices that the API server counts from an older version because etcd was restored from a backup.
//!
//! A watch that resumes at a version in the future gets nothing until that version has come, not even a bookmark or an
//! error
//! ([`Cacher.Watch`](https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/storage/cacher/cacher.go)).
//! So a list of one object, of a small resource, is read now and then. Its version is that of all of etcd, and never
//! goes back otherwise. When it has gone back, every watch starts again with a list, which replaces whatever was known.
//!
//! Where every resource has an etcd of its own, versions of two resources say nothing of each other. So each resource that has shown
//! a newer version is asked for its own before anything is listed again, and Nodes wherever one was found older than before.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

use super::answer::{ApiError, timely};
use crate::telemetry::chain;

/// How often the version is read. Restarting the controllers after a restore takes longer.
const EVERY: Duration = Duration::from_secs(30);

/// The same after a failure: API servers are down while etcd is restored.
const AGAIN: Duration = Duration::from_secs(5);

/// Of these it is suspected first.
const NODES: &str = "nodes";

/// How many restores were noticed.
#[derive(Debug, Default)]
pub(super) struct Rewinds {
    seen: watch::Sender<u64>,
    /// The newest of each resource.
    newest: Mutex<Vec<Shown>>,
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
        let mut suspected = false;
        loop {
            let mut pause = EVERY;
            if let Err(error) = self.look(&client, suspected).await {
                tracing::debug!(error = %chain(&error), "could not read the API server's version; trying again");
                pause = AGAIN;
            }
            // When requested or due, whichever is sooner.
            suspected = tokio::time::timeout(pause, self.suspicion.notified()).await.is_ok();
        }
    }

    /// Reads the version, and has everything listed again if it has gone back. `suspected`: that of Nodes may have.
    async fn look(&self, client: &kube::Client, suspected: bool) -> Result<(), ApiError> {
        // Events may show a newer version while the answer is on its way.
        let before = self.newest.lock().clone();
        let budgets = Arc::new(ApiResource::erase::<PodDisruptionBudget>(&()));
        let Some(now) = version_of(client, &budgets).await? else { return Ok(()) };
        let is_doubtful = |shown: &&Shown| {
            shown.of != now.of && (now.version < shown.version || suspected && shown.of.plural == NODES)
        };
        let mut all = vec![now.clone()];
        for shown in before.iter().filter(is_doubtful) {
            all.extend(version_of(client, &shown.of).await?);
        }
        let newest = |now: &Shown| before.iter().find(|shown| shown.of == now.of).map(|shown| shown.version);
        let has_gone_back = |now: &&Shown| newest(now).is_some_and(|newest| now.version < newest);
        if let Some(now) = all.iter().find(has_gone_back) {
            tracing::warn!(
                resource = now.of.plural,
                version = now.version,
                before = newest(now),
                "the API server's resource versions went back (etcd was restored from a backup): relisting everything"
            );
            self.newest.lock().clear();
            self.seen.send_modify(|seen| *seen += 1);
        }
        for now in all {
            self.show(now.version, &now.of);
        }
        Ok(())
    }

    /// Notes a version that was shown.
    fn show(&self, version: u64, of: &Arc<ApiResource>) {
        let mut newest = self.newest.lock();
        match newest.iter_mut().find(|shown| shown.of == *of) {
            Some(shown) => shown.version = shown.version.max(version),
            None => newest.push(Shown { version, of: Arc::clone(of) }),
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
            let version = versions.lock()[path.rsplit('/').next().expect("a plural")];
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
        let nodes = Arc::new(ApiResource::erase::<Node>(&()));
        let tells = async |what: &'static str, version, expected| {
            versions.lock().insert(what, version);
            rewinds.look(&client, false).await.expect("answered");
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
        versions.lock().insert("nodes", 5_900);
        tells("poddisruptionbudgets", 5_900, 2).await;
        tells("poddisruptionbudgets", 5_901, 2).await;
        // An etcd for each, that of budgets ahead.
        tells("poddisruptionbudgets", 9_000, 2).await;
        tells("nodes", 5_800, 2).await;
        rewinds.look(&client, true).await.expect("answered");
        assert_eq!(*rewinds.seen.borrow(), 3, "suspected");
    }
}
