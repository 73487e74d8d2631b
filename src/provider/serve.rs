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
use tracing::warn;

use super::handshakes::{CONNECTION_AGE, connections};
use super::proto::FILE_DESCRIPTOR_SET;
use super::proto::cloud_provider_server::CloudProviderServer;
use super::{Provider, Tls};
use crate::clock::Clock;
use crate::groups::Groups;
use crate::slots::Peer;

/// A request names nodes, labels and annotations (256 KiB at most each): ten nodes fit, a flood does not.
const LARGEST_REQUEST: usize = 4 << 20;
/// Calls of one connection at once. Cluster-autoscaler makes about one per group and node of a loop, mostly in turn.
const CALLS: u32 = 256;
/// A peer that has gone without a word is noticed in `PING_EVERY` + `PONG_WITHIN`.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// Calls answer within 4 s, and the program ends within 5 s of being told to.
const DRAIN_WITHIN: Duration = Duration::from_secs(4);
/// How soon the health service notices that the view has become too old.
const HEALTH_EVERY: Duration = Duration::from_secs(5);

/// Why serving ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server failed.
    #[error("the gRPC server failed")]
    Server(#[from] tonic::transport::Error),
    /// The descriptors that were compiled in are of no use.
    #[error("reflection cannot be served")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves the provider, its health and reflection until `shutdown` completes or the listener ends.
///
/// With `tls`, only clients with a certificate of its authority are let in. Plaintext is for loopback addresses, Unix sockets
/// and pipes; the configuration sees to that.
pub async fn serve<IO>(
    provider: Provider,
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
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (health, health_service) = tonic_health::server::health_reporter();
    let (groups, clock) = (Arc::clone(&provider.groups), provider.clock.clone());
    let refusals = provider.metrics.refusals.clone();
    let tls = tls.map(Arc::new);
    if tls.as_ref().is_some_and(|tls| tls.is_for_all_names()) {
        warn!("every client that the authority has signed may delete nodes: --tls-client-name says who may");
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
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .serve_with_incoming_shutdown(connections(incoming, tls.clone(), refusals.clone()), async {
            // A sender that is gone says the same as its word.
            let _ = stopped.await;
        });
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        () = report_health(&health, &groups, &clock) => {}
        () = refusals.watch_certificates(tls.as_deref(), &clock) => {}
        () = shutdown => {}
    }
    health.set_not_serving::<CloudProviderServer<Provider>>().await;
    drop(stop);
    if let Ok(ended) = timeout(DRAIN_WITHIN, server).await {
        return Ok(ended?);
    }
    warn!("connections were still open when the server stopped");
    Ok(())
}

/// Says that the provider serves as long as there is a view to answer from. Never completes.
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
