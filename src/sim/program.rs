//! The real program on simulated worlds: start it, call it over gRPC, stop it, kill it, restart it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use hyper_util::rt::TokioIo;
use jiff::SignedDuration;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::http::{aws_client, kube_client_in};
use super::world::World;
use crate::app::{self, AppError, Outside};
use crate::aws::Aws;
use crate::clock::Clock;
use crate::cluster::{Candidate, Cluster};
use crate::config::Config;
use crate::groups::selector::Selectors;
use crate::provider::expander::proto::expander_client::ExpanderClient;
use crate::provider::listen::Listener;
use crate::provider::proto::cloud_provider_client::CloudProviderClient;
use crate::provider::{Io, Listen};
use crate::slots::Peer;
use crate::telemetry::{LogFormat, LogOptions};
use crate::{scale_in, template};

/// The tag by which the program finds its groups in simulations.
pub const TAG: &str = "k8s.io/cluster-autoscaler/enabled";

/// No groups selected by name.
const NOBODY: [&str; 0] = [];

/// Buffer between a client and the program, in bytes.
const PIPE: usize = 64 * 1024;

fn candidate(pod: &str) -> Candidate {
    Candidate { lease: "ebbtide".to_owned(), pod: Some(pod.to_owned()) }
}

/// The same configuration, of a second replica: the pod `ebbtide-1`.
pub fn second(config: Config) -> Config {
    Config { election: Some(candidate("ebbtide-1")), ..config }
}

/// The program's configuration in simulations: the defaults, with every group tagged [`TAG`].
pub fn config() -> Config {
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Config {
        queue_urls: Vec::new(),
        listen: Listen::Tcp(nowhere),
        admin_listen: nowhere,
        tls: None,
        expander_listen: None,
        expander_policy: None,
        expander_events: false,
        region: None,
        endpoint_url: None,
        proxy: None,
        kubeconfig: None,
        selectors: Selectors::parse(NOBODY, [format!("asg:tag={TAG}")]).unwrap_or_default(),
        refresh_interval: Duration::from_mins(1),
        snapshot_max_age: Duration::from_mins(10),
        templates: template::Settings::default(),
        zero_node_startup_time: false,
        prices: None,
        scale_in: scale_in::Settings::default(),
        eviction_pause: None,
        lifecycle_hook: "ebbtide".to_owned(),
        managed_hooks: None,
        templates_config_map: "ebbtide-templates".to_owned(),
        election: Some(candidate("ebbtide-0")),
        dry_run: false,
        otlp_endpoint: None,
        log: LogOptions { format: LogFormat::Text, level: tracing::Level::INFO },
    }
}

fn loopback() -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// The running program. Dropping it kills it at once.
#[derive(Debug)]
pub struct Program {
    task: JoinSet<Result<(), AppError>>,
    stop: CancellationToken,
    connect: mpsc::UnboundedSender<DuplexStream>,
    clock: Clock,
    admin: Option<SocketAddr>,
}

impl Program {
    /// Starts the program on a world.
    pub fn start(world: &World, config: Config) -> Self {
        Self::start_behind(world, world.cluster.client(), config)
    }

    /// Starts the program on a world, with `client` for the API server.
    pub fn start_behind(world: &World, client: kube::Client, config: Config) -> Self {
        let aws = Aws::at(aws_client(Arc::new(world.aws.clone())));
        Self::start_with(world, aws, client, config)
    }

    /// Starts the program on a world, with `aws` for AWS and `client` for the API server.
    pub fn start_with(world: &World, aws: Aws, client: kube::Client, config: Config) -> Self {
        Self::start_in(world, config, |outside| Outside { aws, cluster: Cluster::new(client), ..outside })
    }

    /// Starts the program on a world, as in a pod of kube-system. Its gRPC server listens here as well.
    pub fn listening(world: &World, config: Config, listener: Listener) -> Self {
        let client = kube_client_in(Arc::new(world.cluster.clone()), "kube-system");
        Self::start_in(world, config, |outside| Outside {
            cluster: Cluster::new(client),
            incoming: stream::select(outside.incoming, listener).boxed(),
            ..outside
        })
    }

    /// Starts the program on what `change` makes of a world: its AWS and its API server, nobody who takes traces, no expander at an address of
    /// its own, and connections of [`client`](Self::client) and the like without TLS.
    pub fn start_in(world: &World, config: Config, change: impl FnOnce(Outside) -> Outside) -> Self {
        let (connect, connections) = mpsc::unbounded_channel();
        let incoming = UnboundedReceiverStream::new(connections)
            .map(|stream| Ok((Box::new(stream) as Box<dyn Io>, Peer::Local)));
        let outside = change(Outside {
            expander: None,
            aws: Aws::at(aws_client(Arc::new(world.aws.clone()))),
            cluster: Cluster::new(world.cluster.client()),
            clock: world.clock_of_a_machine(),
            incoming: incoming.boxed(),
            tls: None,
            admin: loopback().ok(),
            collector: None,
        });
        let clock = outside.clock.clone();
        let admin = outside.admin.as_ref().and_then(|listener| listener.local_addr().ok());
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let until = stop.clone();
        task.spawn(async move { app::run(&config, outside, until).await });
        Self { task, stop, connect, clock, admin }
    }

    /// The address of its admin endpoints, if the machine has a loopback interface.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Moves its machine's wall clock forward or back.
    pub fn step_clock(&self, by: SignedDuration) {
        self.clock.step(by);
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.connect.is_closed()
    }

    /// A gRPC client of the program.
    pub fn client(&self) -> CloudProviderClient<Channel> {
        CloudProviderClient::new(self.channel())
    }

    /// A client of its expander.
    pub fn expander(&self) -> ExpanderClient<Channel> {
        ExpanderClient::new(self.channel())
    }

    /// A connection to it, for calls that none of these clients makes.
    pub fn channel(&self) -> Channel {
        let connect = self.connect.clone();
        // The address is unused: every connection is a pipe to the program.
        Endpoint::from_static("http://ebbtide").connect_with_connector_lazy(tower::service_fn(
            move |_: http::Uri| {
                let connect = connect.clone();
                async move {
                    let (ours, theirs) = tokio::io::duplex(PIPE);
                    let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
                    connect.send(theirs).map(|()| TokioIo::new(ours)).map_err(|_| refused)
                }
            },
        ))
    }

    /// Kills the program, as `kill -9` does.
    pub async fn kill(mut self) {
        self.task.shutdown().await;
    }

    /// Stops the program, as SIGTERM does, and returns its outcome.
    pub async fn stop(mut self) -> Result<(), AppError> {
        self.stop.cancel();
        match self.task.join_next().await {
            Some(Ok(ended)) => ended,
            Some(Err(source)) => Err(AppError::Panicked { task: "program", source }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::config::Command;

    #[test]
    fn simulations_run_with_the_flags_defaults_save_where_they_listen_and_who_they_are() {
        let args =
            ["ebbtide".to_owned(), "serve".to_owned(), format!("--node-group-auto-discovery=asg:tag={TAG}")];
        let parsed = Config::parse(args.map(OsString::from), |_| None, Vec::new);
        let Ok(Command::Serve(defaults)) = parsed else { panic!("not served: {parsed:?}") };
        let simulated = config();
        let expected = Config {
            listen: simulated.listen.clone(),
            admin_listen: simulated.admin_listen,
            election: simulated.election.clone(),
            ..*defaults
        };
        assert_eq!(simulated, expected);
    }
}
