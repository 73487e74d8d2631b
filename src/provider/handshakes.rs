//! From accepted connections to those that the gRPC server gets: after their handshake, and bounded in number.
//!
//! Invariants: a client that is slow to shake hands delays nobody else, and no number of such clients keeps another one
//! out; a client without a certificate never takes the place of one that has shown its own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tonic::transport::server::Connected;

use super::Tls;
use super::listen::Io;
use super::refusals::{Reason, RefusedClients};
use crate::slots::{Bounded, Connection, Peer, Slots};
use crate::telemetry::{RateLimit, chain};

/// Longest handshake: it is two round trips and a signature.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Handshakes at once: far more than there are clients, and little memory.
const HANDSHAKES: usize = 64;
const HANDSHAKES_OF_A_PEER: usize = 16;
/// Connections at once. Each replica of cluster-autoscaler keeps one; probes and people come and go.
const CONNECTIONS: usize = 128;
const CONNECTIONS_OF_A_PEER: usize = 32;
/// A TLS connection is asked to end after this, so that a client whose certificate was revoked, or whose authority was
/// removed, is out. A gRPC client reconnects without losing a call.
pub(super) const CONNECTION_AGE: Duration = Duration::from_mins(10);
/// A connection that its client has not ended after this is cut.
const GOING_WITHIN: Duration = Duration::from_secs(30);
/// Pause after accept(2) has failed. It may fail again at once (no file descriptors), which must not become a busy
/// loop.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(200);
/// It mostly fails until something else ends: one line in this time.
const ACCEPT_ERRORS_EVERY: Duration = Duration::from_mins(1);

impl Connected for Bounded<Box<dyn Io>> {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        self.connection()
    }
}

/// Connections whose handshake has succeeded, in the order in which they finish it.
pub(super) fn connections<IO>(
    incoming: impl Stream<Item = io::Result<(IO, Peer)>> + Send,
    tls: Option<Arc<Tls>>,
    refusals: RefusedClients,
) -> impl Stream<Item = io::Result<Bounded<Box<dyn Io>>>> + Send
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shaking = Slots::new(HANDSHAKES, HANDSHAKES_OF_A_PEER);
    let open = Slots::new(CONNECTIONS, CONNECTIONS_OF_A_PEER);
    let age = tls.as_ref().map_or(Duration::MAX, |_| CONNECTION_AGE + GOING_WITHIN);
    let mut errors = RateLimit::default();
    incoming
        .filter_map(move |accepted| {
            if let Err(error) = &accepted
                && let Some(suppressed) = errors.allow(ACCEPT_ERRORS_EVERY)
            {
                tracing::warn!(error = %chain(error), suppressed, "connections to the gRPC address cannot be accepted; trying again");
            }
            async move {
                if accepted.is_err() {
                    sleep(AFTER_ACCEPT_ERROR).await;
                }
                accepted.ok()
            }
        })
        .map(move |(io, peer)| {
            let (tls, refusals, open) = (tls.clone(), refusals.clone(), Arc::clone(&open));
            let slot = shaking.take(peer);
            async move {
                let connection = match &tls {
                    None => Box::new(io) as Box<dyn Io>,
                    Some(tls) => tokio::select! {
                        shaken = shake_hands(io, tls) => match shaken {
                            Ok(connection) => connection,
                            Err((reason, why)) => {
                                refusals.note(peer, reason, &why);
                                return None;
                            }
                        },
                        () = slot.shed() => {
                            refusals.note(peer, Reason::crowded_out, "others came while it was silent");
                            return None;
                        }
                    },
                };
                Some(Bounded::new(connection, open.take(peer), age))
            }
        })
        // One more than there are places: the newcomer takes one from another.
        .buffer_unordered(HANDSHAKES + 1)
        .filter_map(async |connection| connection.map(Ok))
}

async fn shake_hands<IO>(io: IO, tls: &Tls) -> Result<Box<dyn Io>, (Reason, String)>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match timeout(HANDSHAKE_WITHIN, tls.acceptor().accept(io)).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(error)) => Err((Reason::of(&error), chain(&error))),
        Err(_) => Err((Reason::too_slow, "it took longer than a handshake may".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;
    use crate::telemetry::captured;

    #[tokio::test(start_paused = true)]
    async fn connections_that_cannot_be_accepted_are_told_once_a_minute_and_the_next_one_gets_through() {
        let (log, _guard) = captured::log(tracing::Level::WARN);
        let (ours, _theirs) = tokio::io::duplex(64);
        let full = || Err::<(DuplexStream, Peer), _>(io::Error::other("no file descriptors"));
        let incoming = (0..301).map(|_| full()).chain([Ok((ours, Peer::Local))]);
        let accepted = connections(futures::stream::iter(incoming), None, RefusedClients::default());
        assert_eq!(accepted.count().await, 1);
        let text = log.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("suppressed=299"), "{text}");
    }
}
