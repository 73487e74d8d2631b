//! HTTP to a simulated world: one request and response type for the AWS SDK, the `kube` client and a loopback socket.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A request with its whole body.
pub type Request = http::Request<Bytes>;
/// A response; its body may last as long as a watch.
pub type Response = http::Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The connection broke before the answer (not an HTTP error).
#[derive(Debug, thiserror::Error)]
#[error("the connection was lost")]
pub struct Lost;

/// A simulated service: requests in, responses out.
#[async_trait]
pub trait World: Send + Sync + 'static {
    /// Answers one request. `Err`: the connection broke, before or after the request took effect.
    async fn call(&self, request: Request) -> Result<Response, Lost>;
}

/// A response with a whole body.
pub fn response(status: u16, content_type: &str, body: impl Into<Bytes>) -> Response {
    let body = Full::new(body.into()).boxed_unsync();
    let mut response = http::Response::new(body);
    *response.status_mut() =
        http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(value) = http::HeaderValue::from_str(content_type) {
        response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    }
    response
}

/// The header `Date` of an answer given now, in whole seconds.
pub fn date(now: Timestamp) -> http::HeaderValue {
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap_or_default();
    http::HeaderValue::from_str(&date).unwrap_or(http::HeaderValue::from_static(""))
}

/// An HTTP client for the AWS SDK that sends every request to `world`, whatever its host.
pub fn aws_client(world: Arc<dyn World>) -> SharedHttpClient {
    let connector = SharedHttpConnector::new(SdkConnector(world));
    http_client_fn(move |_, _| connector.clone())
}

struct SdkConnector(Arc<dyn World>);

impl fmt::Debug for SdkConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SdkConnector")
    }
}

impl HttpConnector for SdkConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let world = Arc::clone(&self.0);
        HttpConnectorFuture::new(async move {
            let request = request.try_into_http1x().map_err(|e| ConnectorError::user(e.into()))?;
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(ConnectorError::io)?.to_bytes();
            let response = world
                .call(Request::from_parts(parts, body))
                .await
                .map_err(|lost| ConnectorError::io(lost.into()))?;
            let (parts, body) = response.into_parts();
            let Ok(body) = body.collect().await;
            let response = http::Response::from_parts(parts, SdkBody::from(body.to_bytes()));
            HttpResponse::try_from(response).map_err(|e| ConnectorError::other(e.into(), None))
        })
    }
}

/// A `kube` client that sends every request to `world`.
pub fn kube_client(world: Arc<dyn World>) -> kube::Client {
    kube_client_in(world, "default")
}

/// The same of a pod in this namespace.
pub fn kube_client_in(world: Arc<dyn World>, namespace: &str) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let world = Arc::clone(&world);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(|e| tower::BoxError::from(e.to_string()))?.to_bytes();
            world.call(Request::from_parts(parts, body)).await.map_err(tower::BoxError::from)
        }
    });
    kube::Client::new(service, namespace)
}

/// A simulated API server as the bearer of a token sees it.
#[derive(Clone, Debug)]
pub struct Bearer<W> {
    world: W,
    authorization: http::HeaderValue,
}

impl<W> Bearer<W> {
    /// Sends every request with this token, which has no control characters.
    pub fn of(token: &str, world: W) -> Self {
        let header = http::HeaderValue::from_str(&format!("Bearer {token}"));
        Self { world, authorization: header.unwrap_or_else(|_| http::HeaderValue::from_static("Bearer")) }
    }
}

#[async_trait]
impl<W: World> World for Bearer<W> {
    async fn call(&self, mut request: Request) -> Result<Response, Lost> {
        request.headers_mut().insert(http::header::AUTHORIZATION, self.authorization.clone());
        self.world.call(request).await
    }
}

/// Serves `world` on a socket until dropped.
pub async fn listen(world: Arc<dyn World>, listener: TcpListener) -> std::io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        let world = Arc::clone(&world);
        let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let world = Arc::clone(&world);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
                world.call(Request::from_parts(parts, body)).await
            }
        });
        connections.spawn(async move {
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // An error means only that the client went away.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;

    use super::*;
    use crate::aws::Aws;
    use crate::clock::Clock;
    use crate::sim::aws::GroupSpec;
    use crate::sim::cluster::{Cluster, node};

    async fn on_a_socket(world: Arc<dyn World>, servers: &mut JoinSet<std::io::Result<()>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        servers.spawn(listen(world, listener));
        url
    }

    #[tokio::test]
    async fn a_world_answers_on_a_socket_as_it_does_in_process() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let mut servers = JoinSet::new();

        let cluster = Cluster::new(clock.clone(), 1);
        cluster.add(node("n1"));
        let url = on_a_socket(Arc::new(cluster), &mut servers).await;
        let client =
            kube::Client::try_from(kube::Config::new(url.parse().expect("a URL"))).expect("a client");
        let nodes = Api::<Node>::all(client).list(&kube::api::ListParams::default()).await.expect("a list");
        assert_eq!(nodes.items.len(), 1);

        let aws = super::super::aws::Aws::new(clock, 1);
        aws.add_group(GroupSpec::named("web").template("m5.large"));
        let url = on_a_socket(Arc::new(aws), &mut servers).await;
        let credentials = aws_credential_types::Credentials::from_keys("any", "any", None);
        let config = aws_config::SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .region(aws_config::Region::from_static("us-east-1"))
            .endpoint_url(url)
            .credentials_provider(aws_credential_types::provider::SharedCredentialsProvider::new(credentials))
            .sleep_impl(aws_smithy_async::rt::sleep::SharedAsyncSleep::new(
                aws_smithy_async::rt::sleep::TokioSleep::new(),
            ))
            .build();
        let groups = Aws::new(&config).expect("a region").describe_groups(&["web".into()]).await;
        assert_eq!(groups.expect("an answer").len(), 1);
    }
}
