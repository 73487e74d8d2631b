//! As whom the program is known to AWS and to the API server, and that the log does not tell by what secret.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::{StaticConfiguration, WebIdentityTokenCredentialsProvider};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use ebbtide::aws::{Aws, AwsError};
use ebbtide::cluster::{ApiError, Cluster};
use ebbtide::sim::http::{Lost, Request, Response, World, aws_client, listen, response};
use ebbtide::sim::world;
use ebbtide::telemetry::captured;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt as _;

/// STS, which knows one token, and counts what it is asked.
#[derive(Debug, Default)]
struct Sts(AtomicUsize);

#[async_trait::async_trait]
impl World for Sts {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let body = String::from_utf8_lossy(request.body()).into_owned();
        let answer = if body.contains("WebIdentityToken=FAKE-TOKEN") {
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
             <AccessKeyId>FAKE-KEY</AccessKeyId><SecretAccessKey>FAKE-SECRET</SecretAccessKey>\
             <SessionToken>FAKE-SESSION</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration>\
             </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        } else {
            "<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>arn:aws:sts::1:assumed-role/r/s</Arn>\
             <UserId>u</UserId><Account>1</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
        };
        Ok(response(200, "text/xml", answer))
    }
}

fn aws(sts: &Arc<Sts>, credentials: impl ProvideCredentials + 'static) -> Aws {
    let config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-central-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .http_client(aws_client(Arc::clone(sts) as Arc<dyn World>))
        .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
        .build();
    Aws::new(&config).expect("a region")
}

/// As a pod with a role has them (IRSA): a token in a file, exchanged at STS.
fn of_a_token(sts: &Arc<Sts>, test: &str) -> WebIdentityTokenCredentialsProvider {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("token-{test}"));
    std::fs::write(&file, "FAKE-TOKEN").expect("written");
    let config = ProviderConfig::without_region()
        .with_region(Some(Region::from_static("eu-central-1")))
        .with_behavior_version(Some(BehaviorVersion::latest()))
        .with_sleep_impl(TokioSleep::new())
        .with_http_client(aws_client(Arc::clone(sts) as Arc<dyn World>));
    WebIdentityTokenCredentialsProvider::builder()
        .configure(&config)
        .static_configuration(StaticConfiguration {
            web_identity_token_file: file,
            role_arn: "arn:aws:iam::1:role/r".into(),
            session_name: "s".into(),
        })
        .build()
}

/// The first one is none, and the SDK writes it down at `trace`: what the cap is seen by.
const SECRETS: [&str; 4] = ["FAKE-KEY", "FAKE-TOKEN", "FAKE-SECRET", "FAKE-SESSION"];

#[tokio::test]
async fn no_secret_gets_into_the_log_at_any_level() {
    for level in [Level::INFO, Level::DEBUG, Level::TRACE] {
        let (log, _guard) = captured::log(level);
        let sts = Arc::default();
        let identity = aws(&sts, of_a_token(&sts, "kept")).identity().await;
        let identity = identity.expect("answered").expect("there is somebody to ask");
        assert_eq!(identity.arn, "arn:aws:sts::1:assumed-role/r/s");
        assert_eq!(sts.0.load(Ordering::Relaxed), 2);
        for secret in SECRETS {
            assert!(!log.text().contains(secret), "{secret} at {level}");
        }
    }
}

#[tokio::test]
async fn the_sdk_would_tell_of_credentials_if_it_were_let() {
    let log = captured::Log::default();
    let writer = log.clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let sts = Arc::default();
    aws(&sts, of_a_token(&sts, "told")).identity().await.expect("answered");
    assert!(log.text().contains(SECRETS[0]), "the test above would prove nothing");
}

/// A chain that has found nothing.
#[derive(Debug)]
struct Nothing;

impl ProvideCredentials for Nothing {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Err(CredentialsError::not_loaded("no providers in chain")))
    }
}

#[tokio::test(start_paused = true)]
async fn missing_credentials_are_told_as_such_with_where_they_were_looked_for() {
    let sts = Arc::default();
    let error = aws(&sts, Nothing).identity().await.expect_err("there is nothing to sign with");
    assert!(matches!(error, AwsError::NoCredentials { .. }), "{error:?}");
    assert!(error.is_refusal() && error.is_transient());
    let text = format!("{:#}", anyhow::Error::from(error));
    for part in ["no usable AWS credentials", "IRSA", "instance metadata", "no providers in chain"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(sts.0.load(Ordering::Relaxed), 0, "nothing was sent");
}

/// A kubeconfig with a token, for a cluster as `cluster` has it.
fn kubeconfig(test: &str, cluster: &Value) -> PathBuf {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": cluster }],
        "users": [{ "name": "u", "user": { "token": "FAKE-BEARER" } }],
    });
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kubeconfig-{test}"));
    std::fs::write(&path, config.to_string()).expect("written");
    path
}

#[tokio::test]
async fn an_api_server_behind_a_proxy_is_reached_by_it() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", proxy.local_addr().expect("bound"));
    let config = kubeconfig("proxy", &json!({ "server": "https://api.invalid:6443", "proxy-url": url }));
    let cluster = Cluster::connect(Some(&config)).await.expect("a proxy is no reason not to start");
    let asked = async {
        let (mut client, _) = proxy.accept().await.expect("accepted");
        let mut line = vec![0; 64];
        let read = client.read(&mut line).await.expect("a request");
        client.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.expect("answered");
        String::from_utf8_lossy(&line[..read]).into_owned()
    };
    tokio::select! {
        asked = asked => assert!(asked.starts_with("CONNECT api.invalid:6443 HTTP/1.1"), "{asked}"),
        answer = cluster.config_map("c") => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn the_token_of_the_api_server_is_not_logged_at_any_level() {
    let (log, _guard) = captured::log(Level::TRACE);
    let world = world::World::plain(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("bound"));
    let cluster = Cluster::connect(Some(&kubeconfig("token", &json!({ "server": server })))).await;
    let cluster = cluster.expect("connected");
    tokio::select! {
        // Whether this world knows the token is of no account.
        answer = cluster.config_map("c") => assert!(!matches!(answer, Err(ApiError::Failed(_))), "{answer:?}"),
        ended = listen(Arc::new(world.cluster.clone()), listener) => panic!("{ended:?}"),
    }
    let told = log.text();
    assert!(!told.contains("FAKE-BEARER"), "{told}");
    tracing::trace!("all that the filter lets through is captured");
    assert!(log.text().contains("TRACE"), "{}", log.text());
}
