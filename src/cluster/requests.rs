//! Counts every request to the API server (`ebbtide_api_requests_total`), measures how long each watch has shown no
//! life (`ebbtide_watch_age_seconds`), and reads off each answer what time it is there.
//!
//! An idle watch is not a broken one. Whatever comes over it shows that it lives (events, and the bookmarks that the
//! API server sends about once a minute), and so does its renewal every [`WATCH_SECONDS`]. `kube` reports neither, so
//! both are observed here, below it.
//!
//! [`WATCH_SECONDS`]: super::watches::WATCH_SECONDS

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::DATE;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::core::Status;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use super::answer::{DRY_RUN, retry_after};
use crate::clock::{Clock, http_date};
use crate::dry_run::{self, DryRun};
use crate::telemetry::gauges::family_at_scrape;

/// The verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Verb {
    get,
    list,
    watch,
    create,
    update,
    patch,
    delete,
    other,
}

/// The resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Resource {
    nodes,
    nodes_status,
    pods,
    evictions,
    poddisruptionbudgets,
    daemonsets,
    volumeattachments,
    events,
    configmaps,
    leases,
    other,
}

/// The resources that are watched as long as the program runs; decisions need all of them.
const WATCHED: [Resource; 4] =
    [Resource::nodes, Resource::poddisruptionbudgets, Resource::daemonsets, Resource::volumeattachments];

impl Resource {
    fn named(name: &str) -> Self {
        match name {
            "nodes" => Self::nodes,
            "pods" => Self::pods,
            "poddisruptionbudgets" => Self::poddisruptionbudgets,
            "daemonsets" => Self::daemonsets,
            "volumeattachments" => Self::volumeattachments,
            "events" => Self::events,
            "configmaps" => Self::configmaps,
            "leases" => Self::leases,
            _ => Self::other,
        }
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Outcome {
    ok,
    denied,
    not_found,
    conflict,
    throttled,
    refused,
    failed,
    unreachable,
    given_up,
    dry_run,
}

impl Outcome {
    fn of(status: u16) -> Self {
        match status {
            0..400 => Self::ok,
            401 | 403 => Self::denied,
            404 => Self::not_found,
            409 => Self::conflict,
            429 => Self::throttled,
            400..500 => Self::refused,
            _ => Self::failed,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    verb: Verb,
    resource: Resource,
    outcome: Outcome,
}

/// Verb and resource of a request, by its method and path.
///
/// Source: [Resource URIs](https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris).
fn asked(method: &Method, uri: &Uri) -> (Verb, Resource) {
    let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
    let group = if parts.next() == Some("api") { 1 } else { 2 };
    let mut parts = parts.skip(group);
    let mut resource = parts.next().unwrap_or_default();
    let mut name = parts.next();
    if resource == "namespaces"
        && let Some(namespaced) = parts.next()
    {
        (resource, name) = (namespaced, parts.next());
    }
    let resource = match parts.next() {
        Some("eviction") => Resource::evictions,
        Some("status") if resource == "nodes" => Resource::nodes_status,
        _ => Resource::named(resource),
    };
    let is_watch =
        uri.query().is_some_and(|query| query.split('&').any(|q| q == "watch=true" || q == "watch=1"));
    let verb = match (method, name) {
        (&Method::GET, _) if is_watch => Verb::watch,
        (&Method::GET, Some(_)) => Verb::get,
        (&Method::GET, None) => Verb::list,
        (&Method::POST, _) => Verb::create,
        (&Method::PUT, _) => Verb::update,
        (&Method::PATCH, _) => Verb::patch,
        (&Method::DELETE, _) => Verb::delete,
        _ => Verb::other,
    };
    (verb, resource)
}

/// Counters of the requests to one API server.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    counts: Family<Labels, Counter>,
    heard: Arc<Heard>,
    /// If there, nothing is changed.
    dry_run: Arc<OnceLock<DryRun>>,
    /// Told what the API server's clock reads.
    clock: Arc<OnceLock<Clock>>,
    /// Until when the API server wants no more requests, as it said last.
    busy_until: Arc<Mutex<Option<Instant>>>,
}

/// When each watch last showed life.
#[derive(Debug)]
struct Heard {
    since: Instant,
    last: Mutex<BTreeMap<Resource, Instant>>,
}

impl Heard {
    fn note(&self, resource: Resource) {
        self.last.lock().insert(resource, Instant::now());
    }

    /// How long each watch has shown no life.
    fn ages(&self) -> [(Resource, Duration); 4] {
        WATCHED.map(|resource| (resource, self.age(resource)))
    }

    /// How long a watch has shown no life, since the start if it never did.
    fn age(&self, resource: Resource) -> Duration {
        self.last.lock().get(&resource).unwrap_or(&self.since).elapsed()
    }

    fn is_all(&self) -> bool {
        let last = self.last.lock();
        WATCHED.iter().all(|resource| last.contains_key(resource))
    }
}

impl Default for Requests {
    fn default() -> Self {
        let heard = Heard { since: Instant::now(), last: Mutex::default() };
        Self {
            counts: Family::default(),
            heard: Arc::new(heard),
            dry_run: Arc::default(),
            clock: Arc::default(),
            busy_until: Arc::default(),
        }
    }
}

impl Requests {
    /// Registers `ebbtide_api_requests_total` and `ebbtide_watch_age_seconds`.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "ebbtide_api_requests",
            "Requests to the API server by verb, resource and outcome; writes of Nodes are patches of nodes",
            self.counts.clone(),
        );
        let heard = Arc::clone(&self.heard);
        let help = "Time since each watch last showed life: an event, a bookmark, or its renewal";
        family_at_scrape(registry, "ebbtide_watch_age", help, Some(Unit::Seconds), move || {
            let ages = heard.ages().into_iter();
            ages.map(|(resource, age)| ([("resource", resource)], age.as_secs_f64())).collect()
        });
    }

    /// From now on refuses to send whatever changes something, and notes it.
    pub(super) fn dry_run(&self, dry_run: &DryRun) {
        let _ = self.dry_run.set(dry_run.clone());
    }

    /// From now on tells this clock what the API server's reads.
    pub(super) fn tell(&self, clock: &Clock) {
        let _ = self.clock.set(clock.clone());
    }

    /// Whether each watch has shown life at all.
    pub(super) fn are_all_heard(&self) -> bool {
        self.heard.is_all()
    }

    /// The longest time that one of them has shown no life.
    pub(super) fn longest_silence(&self) -> Duration {
        self.heard.ages().into_iter().map(|(_, age)| age).max().unwrap_or_default()
    }

    /// How long that of Nodes has shown no life.
    pub(super) fn silence_of_nodes(&self) -> Duration {
        self.heard.age(Resource::nodes)
    }

    /// How long the API server wants no more requests.
    pub(super) fn busy_for(&self) -> Duration {
        self.busy_until
            .lock()
            .map(|until| until.saturating_duration_since(Instant::now()))
            .unwrap_or_default()
    }

    /// A client that counts requests on their way to `client`.
    pub(super) fn seen(&self, client: kube::Client) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let requests = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, requests) = (client.clone(), requests.clone());
            async move { requests.pass(&client, request).await }
        });
        kube::Client::new(service, namespace)
    }

    async fn pass(
        &self,
        client: &kube::Client,
        request: Request<Body>,
    ) -> Result<Response<impl http_body::Body<Data = Bytes, Error = kube::Error> + use<>>, kube::Error> {
        let (verb, resource) = asked(request.method(), request.uri());
        if let Some(dry_run) = self.dry_run.get().filter(|_| request.method() != Method::GET) {
            dry_run.would(format!("{} {}", request.method(), request.uri().path()));
            self.counts.get_or_create(&Labels { verb, resource, outcome: Outcome::dry_run }).inc();
            return Err(kube::Error::Api(Box::new(Status::failure(dry_run::WHY, DRY_RUN).with_code(403))));
        }
        // A caller that has waited long enough drops this.
        let mut counted =
            Counted { counts: &self.counts, labels: Labels { verb, resource, outcome: Outcome::given_up } };
        let clock = self.clock.get();
        let sent = clock.map(Clock::now);
        let answer = client.send(request).await;
        // A proxy that answers for a dead API server has its own clock.
        let of_its_own = answer.as_ref().ok().filter(|answer| !answer.status().is_server_error());
        if let Some(date) = of_its_own.and_then(|answer| http_date(answer.headers().get(DATE)?)) {
            clock.zip(sent).inspect(|(clock, sent)| clock.note_dated(date, *sent));
        }
        counted.labels.outcome =
            answer.as_ref().map_or(Outcome::unreachable, |answer| Outcome::of(answer.status().as_u16()));
        drop(counted);
        let answer = answer?;
        if let Some(pause) = retry_after(answer.headers()) {
            *self.busy_until.lock() = Some(Instant::now() + pause.unsigned_abs());
        }
        let heard = (verb == Verb::watch && answer.status().is_success()).then(|| Arc::clone(&self.heard));
        let heard = move || heard.iter().for_each(|heard| heard.note(resource));
        heard();
        Ok(answer.map(|body| {
            body.map_frame(move |frame| {
                heard();
                frame
            })
        }))
    }
}

/// A request under way; its end is counted when this is dropped.
struct Counted<'a> {
    counts: &'a Family<Labels, Counter>,
    labels: Labels,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.counts.get_or_create(&self.labels).inc();
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_request_is_told_by_its_method_and_its_path() {
        for (method, path, expected) in [
            (
                Method::GET,
                "/api/v1/nodes?watch=true&allowWatchBookmarks=true",
                (Verb::watch, Resource::nodes),
            ),
            (Method::GET, "/api/v1/nodes?limit=500", (Verb::list, Resource::nodes)),
            (Method::PATCH, "/api/v1/nodes/n1?fieldManager=ebbtide", (Verb::patch, Resource::nodes)),
            (
                Method::PATCH,
                "/api/v1/nodes/n1/status?fieldManager=ebbtide",
                (Verb::patch, Resource::nodes_status),
            ),
            (Method::POST, "/api/v1/namespaces/d/pods/p/eviction", (Verb::create, Resource::evictions)),
            (Method::PATCH, "/api/v1/namespaces/d/pods/p/status", (Verb::patch, Resource::pods)),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/d/leases/l",
                (Verb::update, Resource::leases),
            ),
            (Method::DELETE, "/api/v1/namespaces/d/pods/p", (Verb::delete, Resource::pods)),
            (Method::GET, "/apis/apps/v1/daemonsets?watch=1", (Verb::watch, Resource::daemonsets)),
            (
                Method::POST,
                "/apis/events.k8s.io/v1/namespaces/default/events",
                (Verb::create, Resource::events),
            ),
            (Method::GET, "/api/v1/namespaces/kube-system/configmaps/c", (Verb::get, Resource::configmaps)),
            (Method::GET, "/apis", (Verb::list, Resource::other)),
            (Method::GET, "/api/v1/namespaces/x", (Verb::get, Resource::other)),
        ] {
            assert_eq!(asked(&method, &path.parse().expect("a path")), expected, "{method} {path}");
        }
    }
}
