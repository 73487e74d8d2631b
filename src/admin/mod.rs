//! The admin endpoints: liveness, readiness, metrics and the status page.
//!
//! Invariants: `/livez` answers as long as the program runs; `/readyz` names everything that is missing; `/metrics` and `/status` read
//! their values on each request, and change nothing; no client can keep others out by holding connections.

mod page;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use futures::FutureExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::scale_in::status::Status;
use crate::slots::{Bounded, Peer, Slots};
use crate::telemetry::{RateLimit, chain};

/// How long a request's headers may take, and how long a connection may wait for its next request.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// A stop waits so long for requests under way: one that never ends must not keep the Lease from being given back.
const FINISHED_WITHIN: Duration = Duration::from_secs(1);
/// Enough for probes, some Prometheus servers and people.
const CONNECTIONS: usize = 64;
const CONNECTIONS_OF_A_PEER: usize = 16;
/// Connections are closed at this age, so that a client that never reads its answers cannot hold one for ever.
const CONNECTION_AGE: Duration = Duration::from_mins(10);
/// Pause after a failed accept(2). It may fail again at once (no file descriptors); this avoids a busy loop.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(200);
/// It mostly fails until something else ends: one line in this time.
const ACCEPT_ERRORS_EVERY: Duration = Duration::from_mins(1);

/// What is missing before the program is ready; nothing: it is.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Vec<&'static str>>>);

impl Readiness {
    /// All of these are missing.
    pub fn missing_all(parts: &[&'static str]) -> Self {
        Self(Arc::new(Mutex::new(parts.to_vec())))
    }

    /// Names of what is missing.
    pub fn missing(&self) -> Vec<&'static str> {
        self.0.lock().clone()
    }

    /// Replaces what is missing.
    pub fn set_missing(&self, parts: Vec<&'static str>) {
        *self.0.lock() = parts;
    }
}

/// Tells what is going on, when it is asked.
pub type StatusSource = Arc<dyn Fn() -> Status + Send + Sync>;

#[derive(Clone)]
struct Admin {
    readiness: Readiness,
    registry: Arc<Registry>,
    source: StatusSource,
}

/// `/livez`, `/readyz`, `/metrics`, `/status` and `/status.json`.
pub fn router(readiness: Readiness, registry: Arc<Registry>, source: StatusSource) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/", get(async || Redirect::temporary("status")))
        .route("/status", get(status))
        .route("/status.json", get(status_json))
        .route("/status.css", get(async || typed("text/css; charset=utf-8", page::STYLE)))
        .route("/status.js", get(async || typed("text/javascript; charset=utf-8", page::SCRIPT)))
        .with_state(Admin { readiness, registry, source })
}

/// A body that is what its type says, and is not kept: the next request may find another version.
fn typed(kind: &'static str, body: impl IntoResponse) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body)
}

async fn status(State(admin): State<Admin>) -> impl IntoResponse {
    let page = typed("text/html; charset=utf-8", page::page(&(admin.source)()));
    ([(header::CONTENT_SECURITY_POLICY, page::POLICY)], page)
}

async fn status_json(State(admin): State<Admin>) -> impl IntoResponse {
    match serde_json::to_string(&(admin.source)()) {
        Ok(json) => typed("application/json", json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Serves a router until `shutdown` completes, then finishes the requests under way, for [`FINISHED_WITHIN`] at most.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    let slots = Slots::new(CONNECTIONS, CONNECTIONS_OF_A_PEER);
    let stopping = GracefulShutdown::new();
    let mut open = JoinSet::new();
    let mut errors = RateLimit::default();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let slot = slots.take(Peer::of(address.ip()));
                    let io = TokioIo::new(Bounded::new(stream, slot, CONNECTION_AGE));
                    let service = TowerToHyperService::new(router.clone());
                    // How a connection ends does not matter here.
                    open.spawn(stopping.watch(http.serve_connection(io, service)).map(drop));
                }
                Err(error) => {
                    if let Some(suppressed) = errors.allow(ACCEPT_ERRORS_EVERY) {
                        tracing::warn!(error = %chain(&error), suppressed, "connections to the admin address cannot be accepted; trying again");
                    }
                    tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
                }
            },
            Some(_) = open.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    drop(listener);
    let _ = timeout(FINISHED_WITHIN, stopping.shutdown()).await;
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, String) {
    let missing = admin.readiness.missing();
    if missing.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join(", ")))
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut text = String::new();
    match encode(&mut text, &admin.registry) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, TYPE)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
            format!("metrics cannot be written: {error}\n"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = router.clone().oneshot(request).await.expect("infallible");
        let status = response.status();
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn it_is_ready_when_nothing_is_missing_and_alive_before() {
        let readiness = Readiness::missing_all(&["groups", "nodes"]);
        let router = router(readiness.clone(), Arc::default(), Arc::new(Status::default));
        let ready = async || get(&router, "/readyz").await;
        let unavailable = |text: &str| (StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
        assert_eq!(ready().await, unavailable("not ready: groups, nodes\n"));
        assert_eq!(get(&router, "/livez").await.0, StatusCode::OK);
        readiness.set_missing(vec!["nodes"]);
        assert_eq!(ready().await, unavailable("not ready: nodes\n"));
        readiness.set_missing(Vec::new());
        assert_eq!(ready().await.0, StatusCode::OK);
        readiness.set_missing(vec!["groups"]);
        assert_eq!(ready().await.0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn metrics_are_in_the_openmetrics_format() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("ebbtide_things", "Things", counter.clone());
        counter.inc();
        let (status, text) =
            get(&router(Readiness::default(), Arc::new(registry), Arc::new(Status::default)), "/metrics")
                .await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("ebbtide_things_total 1\n") && text.ends_with("# EOF\n"), "{text}");
    }

    /// An admin server's address, and its tasks, which keep it running.
    async fn served() -> (std::net::SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut tasks = JoinSet::new();
        let router = router(Readiness::default(), Arc::default(), Arc::new(Status::default));
        tasks.spawn(serve(listener, router, std::future::pending()));
        (address, tasks)
    }

    #[tokio::test]
    async fn a_stop_waits_a_second_for_a_request_that_never_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut slow = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        slow.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.expect("sent");
        let router = router(Readiness::default(), Arc::default(), Arc::new(Status::default));
        let (stop, stopped) = oneshot::channel::<()>();
        let mut serving = pin!(serve(listener, router, stopped.map(drop)));
        // Until it has been read: sockets are looked at every 61 steps.
        for _ in 0..1_000 {
            tokio::select! {
                biased;
                ended = &mut serving => panic!("{ended:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        stop.send(()).expect("it is served");
        serving.await;
        assert_eq!(began.elapsed().as_secs(), FINISHED_WITHIN.as_secs());
    }

    #[tokio::test]
    async fn connections_that_only_wait_keep_no_probe_out() {
        let (address, _tasks) = served().await;
        let mut waiting = Vec::new();
        for _ in 0..100 {
            waiting.push(TcpStream::connect(address).await.expect("connected"));
        }
        let mut probe = TcpStream::connect(address).await.expect("connected");
        probe.write_all(b"GET /livez HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
        assert_eq!(waiting[0].read(&mut [0]).await.unwrap_or_default(), 0, "its place was taken");
    }

    #[tokio::test]
    async fn a_request_that_never_ends_ends_its_connection() {
        let (address, _tasks) = served().await;
        let mut slow = TcpStream::connect(address).await.expect("connected");
        slow.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.expect("sent");
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        let _ = slow.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
        assert_eq!(began.elapsed().as_secs(), HEADERS_WITHIN.as_secs());
    }
}
