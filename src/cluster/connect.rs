//! Connections to the API server. `kube`'s own client sets no kernel time-out for dead peers: a request to an API server that was lost a
//! while ago would wait for its whole time-out, which a slow webhook needs and a spot notice does not allow.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use tower::{BoxError, ServiceBuilder};

/// Longest wait for a connection, TLS included: a first packet that is lost is sent again after one second, and after three.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// Longest wait for all addresses of the API server's name together, without TLS: a dead one that comes first leaves time for the next.
const REACHED_WITHIN: Duration = Duration::from_secs(4);

/// A peer that acknowledges no data for this long is dead. An API server that waits for a webhook does acknowledge.
///
/// Source: [TCP_USER_TIMEOUT](https://man7.org/linux/man-pages/man7/tcp.7.html).
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// A connection on which nothing comes, as on that of a watch, is probed as often as this. A peer that does not answer for
/// [`ACKNOWLEDGED_WITHIN`] is dead too.
const PROBED_EVERY: Duration = Duration::from_secs(5);

/// The client for this configuration. Its own retries are taken to be off.
pub(super) fn client(mut config: kube::Config) -> kube::Result<kube::Client> {
    config.connect_timeout = Some(CONNECTED_WITHIN);
    if config.proxy_url.is_some() {
        // Connections end at the proxy, which has to know for itself who is behind it.
        return kube::Client::try_from(config);
    }
    if CryptoProvider::get_default().is_none() {
        // As `kube` does. Who was quicker installed the same one.
        drop(aws_lc_rs::default_provider().install_default());
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(REACHED_WITHIN));
    tcp.set_tcp_user_timeout(Some(ACKNOWLEDGED_WITHIN));
    tcp.set_keepalive(Some(PROBED_EVERY));
    tcp.set_keepalive_interval(Some(PROBED_EVERY));
    tcp
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn the_kernel_is_told_when_a_silent_peer_is_dead() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let uri = format!("https://{}", listener.local_addr().expect("an address")).parse().expect("a URI");
        let connection = tcp().oneshot(uri).await.expect("a connection").into_inner();
        let socket = SockRef::from(&connection);
        assert_eq!(socket.tcp_user_timeout().expect("told"), Some(ACKNOWLEDGED_WITHIN));
        assert!(socket.keepalive().expect("told"));
        assert_eq!(socket.tcp_keepalive_time().expect("told"), PROBED_EVERY);
        assert_eq!(socket.tcp_keepalive_interval().expect("told"), PROBED_EVERY);
    }
}
