//! Serving the provider on connections from anywhere: sockets, or pipes in memory.
//!
//! Invariant: a stop waits for the calls under way, not for clients.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tonic::transport::Server;
use tonic_health::server::HealthReporter;

use super::expander::proto::FILE_DESCRIPTOR_SET as EXPANDERS_FILE_DESCRIPTOR_SET;
use super::expander::questions::Questions;
use super::expander::service::Expander;
use super::handshakes::{CONNECTION_AGE, connections};
use super::proto::FILE_DESCRIPTOR_SET;
use super::proto::cloud_provider_server::CloudProviderServer;
use super::refusals::RefusedClients;
use super::{Provider, Tls};
use crate::clock::Clock;
use crate::groups::Groups;
use crate::slots::Peer;

/// Largest request: ten nodes with labels and annotations (256 KiB at most each) fit, a flood does not.
const LARGEST_REQUEST: usize = 4 << 20;
/// Questions of one connection at once: cluster-autoscaler asks one at a time.
const QUESTIONS: u32 = 1;
/// Calls of one connection at once. cluster-autoscaler makes about one per group and node of a loop, mostly one after
/// another.
const CALLS: u32 = 256;
/// A peer that vanished is noticed within `PING_EVERY` + `PONG_WITHIN`.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// Calls are answered within 4 s, and a stop takes at most 5 s.
const DRAIN_WITHIN: Duration = Duration::from_secs(4);
/// Questions are answered at once: a connection open for longer asks none, and must not keep the Lease from being given back.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// How soon the health service notices that the snapshot has become too old.
const HEALTH_EVERY: Duration = Duration::from_secs(5);

/// Why serving ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server failed.
    #[error("the gRPC server failed")]
    Server(#[from] tonic::transport::Error),
    /// The compiled-in descriptors are unusable.
    #[error("reflection cannot be served")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves the provider, the expander, health and reflection until `shutdown` completes or the listener ends.
///
/// With `tls`, only clients with a certificate of its authority are let in. The configuration allows plaintext on
/// loopback addresses and Unix sockets only.
pub async fn serve<IO>(
    provider: Provider,
    expander: Option<Arc<Expander>>,
    incoming: impl Stream<Item = io::Result<(IO, Peer)>> + Send,
    tls: Option<Tls>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(EXPANDERS_FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (health, health_service) = tonic_health::server::health_reporter();
    let (groups, clock) = (Arc::clone(&provider.groups), provider.clock.clone());
    let refusals = provider.metrics.refusals.clone();
    let tls = tls.map(Arc::new);
    if tls.as_ref().is_some_and(|tls| tls.is_for_all_names()) {
        tracing::warn!(
            "every client that the authority has signed may delete nodes: name the clients that may with --allowed-client"
        );
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = Server::builder();
    if tls.is_some() {
        // Without tonic's own grace: with it, tonic 0.14 cuts connections without asking clients to go first.
        server = server.max_connection_age(CONNECTION_AGE);
    }
    let server = server
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PONG_WITHIN))
        .max_concurrent_streams(CALLS)
        .add_service(CloudProviderServer::new(provider).max_decoding_message_size(LARGEST_REQUEST))
        .add_optional_service(expander.map(Questions::to))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .serve_with_incoming_shutdown(connections(incoming, tls.clone(), refusals.clone()), async {
            // A dropped sender means stop, too.
            let _ = stopped.await;
        });
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        () = report_health(&health, &groups, &clock) => {}
        never = refusals.watch_certificates(tls.as_deref(), &clock) => match never {},
        () = shutdown => {}
    }
    health.set_not_serving::<CloudProviderServer<Provider>>().await;
    drop(stop);
    if let Ok(ended) = timeout(DRAIN_WITHIN, server).await {
        return Ok(ended?);
    }
    tracing::warn!(
        "stopped with gRPC connections still open: a call on one of them fails, and its client connects again"
    );
    Ok(())
}

/// Serves the expander alone, to clients that show no certificate: cluster-autoscaler has none for its expander, and wants TLS.
/// Whoever connects is told which group is best, and changes nothing.
pub async fn serve_expander<IO>(
    expander: Arc<Expander>,
    incoming: impl Stream<Item = io::Result<(IO, Peer)>> + Send,
    tls: Tls,
    refusals: RefusedClients,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (tls, clock) = (Arc::new(tls), expander.clock());
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server::builder()
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PONG_WITHIN))
        .max_connection_age(CONNECTION_AGE)
        .max_concurrent_streams(QUESTIONS)
        .add_service(Questions::to(expander))
        .serve_with_incoming_shutdown(
            connections(incoming, Some(Arc::clone(&tls)), refusals.clone()),
            async {
                // A dropped sender means stop, too.
                let _ = stopped.await;
            },
        );
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        never = refusals.watch_certificates(Some(&tls), &clock) => match never {},
        () = shutdown => {}
    }
    drop(stop);
    Ok(timeout(ANSWERED_WITHIN, server).await.unwrap_or(Ok(()))?)
}

/// Reports the provider as serving while there is a fresh snapshot. Never completes.
async fn report_health(health: &HealthReporter, groups: &Groups, clock: &Clock) {
    let mut versions = groups.versions();
    loop {
        if groups.fresh(clock.now()).is_ok() {
            health.set_serving::<CloudProviderServer<Provider>>().await;
        } else {
            health.set_not_serving::<CloudProviderServer<Provider>>().await;
        }
        tokio::select! {
            changed = versions.changed() => if changed.is_err() { pending::<()>().await },
            () = sleep(HEALTH_EVERY) => {}
        }
    }
}
