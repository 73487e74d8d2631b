//! HTTPS proxy for calls to AWS, which the SDK does not configure by itself.
//!
//! Plain HTTP bypasses it: instance metadata and container credentials are at link-local addresses that no proxy can
//! reach.

use std::fmt;

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_http_client::{Builder, Connector};
use aws_smithy_runtime_api::client::http::SharedHttpClient;

/// An HTTPS proxy, as in `HTTPS_PROXY` and `NO_PROXY`.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    url: String,
    except: String,
}

impl fmt::Debug for Proxy {
    /// Hides the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("except", &self.except).finish_non_exhaustive()
    }
}

/// Not a proxy URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no URL of a proxy, like http://proxy.example:3128")]
pub struct BadProxy;

impl Proxy {
    /// A proxy for all hosts except `except`: names, suffixes, addresses and networks, separated by commas; `*` for
    /// all.
    pub fn new(url: &str, except: &str) -> Result<Self, BadProxy> {
        // Without a scheme it is HTTP, as for curl and most programs.
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let proxy = Self { url, except: except.to_owned() };
        proxy.config().map(|_| proxy)
    }

    fn config(&self) -> Result<ProxyConfig, BadProxy> {
        Ok(ProxyConfig::https(self.url.as_str()).map_err(|_| BadProxy)?.no_proxy(&self.except))
    }

    /// The SDK's HTTP client, through this proxy.
    pub(super) fn http_client(&self) -> SharedHttpClient {
        // Cannot fail: `new` has checked it.
        let config = self.config().unwrap_or_else(|_| ProxyConfig::disabled());
        Builder::new().build_with_connector_fn(move |settings, components| {
            let mut connector = Connector::builder().proxy_config(config.clone());
            connector.set_connector_settings(settings.cloned());
            connector.set_sleep_impl(components.and_then(|components| components.sleep_impl()));
            connector.tls_provider(Provider::Rustls(CryptoMode::AwsLc)).build()
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::aws::answers::at_endpoint;

    /// What the proxy is sent when we ask for our identity.
    async fn asked_of_the_proxy(except: &str) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = listener.local_addr().expect("bound").to_string();
        let aws = at_endpoint("https://aws.invalid", Proxy::new(&url, except).expect("a URL").http_client());
        let proxy = async {
            let (mut client, _) = listener.accept().await.expect("accepted");
            let mut line = vec![0; 64];
            let read = client.read(&mut line).await.expect("a request");
            client.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.expect("answered");
            String::from_utf8_lossy(&line[..read]).lines().next().map(str::to_owned)
        };
        tokio::select! {
            asked = proxy => asked,
            failed = aws.identity() => { failed.expect_err("nobody is there"); None }
        }
    }

    #[tokio::test]
    async fn aws_is_reached_by_the_proxy_unless_it_is_among_the_exceptions() {
        assert_eq!(asked_of_the_proxy("").await.as_deref(), Some("CONNECT aws.invalid:443 HTTP/1.1"));
        assert_eq!(asked_of_the_proxy("example,.invalid").await, None);
        assert_eq!(asked_of_the_proxy("*").await, None);
    }

    #[test]
    fn a_proxys_password_is_not_shown() {
        let proxy = Proxy::new("http://user:secret@proxy.example:3128", "x").expect("a URL");
        assert!(!format!("{proxy:?}").contains("secret"));
    }
}
