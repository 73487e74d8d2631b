//! AWS for the tests of this room.

use aws_config::{Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_sdk_autoscaling::config::SharedCredentialsProvider;
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;

use super::{Aws, behaviour};

/// A status and a body for each request, by its body.
struct Answers<F>(F);

impl<F> std::fmt::Debug for Answers<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answers")
    }
}

impl<F: Fn(&str) -> (u16, String) + Send + Sync> HttpConnector for Answers<F> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let body = request.body().bytes().map(String::from_utf8_lossy).unwrap_or_default();
        let (status, answer) = self.0(&body);
        let status = status.try_into().expect("a status");
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(answer))))
    }
}

/// AWS that gives these answers.
pub(super) fn answering(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Aws {
    let connector = SharedHttpConnector::new(Answers(answer));
    Aws::at(http_client_fn(move |_, _| connector.clone()))
}

/// AWS at a real address.
pub(super) fn at_endpoint(url: &str, http_client: SharedHttpClient) -> Aws {
    let keys = Credentials::from_keys("key", "secret", None);
    let config = SdkConfig::builder()
        .behavior_version(behaviour())
        .region(Region::from_static("eu-central-1"))
        .credentials_provider(SharedCredentialsProvider::new(keys))
        .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
        .endpoint_url(url)
        .http_client(http_client)
        .build();
    Aws::new(&config).expect("a region")
}
