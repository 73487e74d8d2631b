//! For those who look after the program: whether it lives, whether it is ready, and its metrics.
//!
//! Invariants: `/livez` answers as long as the program does; `/readyz` names what is missing until every gate is
//! open; what `/metrics` shows is read at that moment.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

/// What has to be there before the program is ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, bool>>>);

impl Readiness {
    /// Ready when no gate is closed: at once, until one is added.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a closed gate. All are to be added before the admin address is served.
    pub fn gate(&self, name: &'static str) -> Gate {
        let gate = Gate { readiness: self.clone(), name };
        gate.close();
        gate
    }

    /// Names of the gates that are closed, sorted.
    pub fn missing(&self) -> Vec<&'static str> {
        self.locked(|gates| gates.iter().filter(|(_, open)| !**open).map(|(name, _)| *name).collect())
    }

    fn locked<T>(&self, act: impl FnOnce(&mut BTreeMap<&'static str, bool>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One thing that has to be there.
#[derive(Clone, Debug)]
pub struct Gate {
    readiness: Readiness,
    name: &'static str,
}

impl Gate {
    /// It is there.
    pub fn open(&self) {
        self.set(true);
    }

    /// It is not there (any more).
    pub fn close(&self) {
        self.set(false);
    }

    fn set(&self, open: bool) {
        self.readiness.locked(|gates| gates.insert(self.name, open));
    }
}

#[derive(Clone)]
struct Admin {
    readiness: Readiness,
    registry: Arc<Registry>,
}

/// `/livez`, `/readyz` and `/metrics`.
pub fn router(readiness: Readiness, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Admin { readiness, registry })
}

/// Serves a router until `shutdown` completes.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await
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
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use prometheus_client::metrics::counter::Counter;
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
    async fn it_is_ready_when_every_gate_is_open_and_alive_before() {
        let readiness = Readiness::new();
        let (nodes, groups) = (readiness.gate("nodes"), readiness.gate("groups"));
        let router = router(readiness, Arc::default());
        let ready = async || get(&router, "/readyz").await;
        let unavailable = |text: &str| (StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
        assert_eq!(ready().await, unavailable("not ready: groups, nodes\n"));
        assert_eq!(get(&router, "/livez").await.0, StatusCode::OK);
        groups.open();
        assert_eq!(ready().await, unavailable("not ready: nodes\n"));
        nodes.open();
        assert_eq!(ready().await.0, StatusCode::OK);
        groups.close();
        assert_eq!(ready().await.0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn metrics_are_in_the_openmetrics_format() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("ebbtide_things", "Things", counter.clone());
        counter.inc();
        let (status, text) = get(&router(Readiness::new(), Arc::new(registry)), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("ebbtide_things_total 1\n") && text.ends_with("# EOF\n"), "{text}");
    }
}
