//! Putting the program together and running it until it is told to stop.
//!
//! Everything that differs between production, the simulated worlds and tests comes in as an [`Outside`]. Every task is
//! owned here; one that ends before it was told to ends the program.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Gate, Readiness};
use crate::aws::Aws;
use crate::clock::Clock;
use crate::cluster::{Cluster, Election, Leadership, Nodes, Store};
use crate::config::Config;
use crate::groups::Groups;
use crate::groups::discovery::Discovery;
use crate::groups::hooks::Hooks;
use crate::groups::protection::Protection;
use crate::groups::sizing::{AwsSizing, Running};
use crate::provider::{Provider, RpcMetrics, ServeError, Tls, TlsFiles};
use crate::scale_in::{self, Board, ControllerError, Holds, Intents, Metrics, Settings, Shared};
use crate::template::{self, Lessons, keeper};

/// What is heard out at the end, all together: cluster-autoscaler's calls, the API server's and AWS's answers. The
/// kubelet's default patience is 30 s; an on-call's is 5 s.
const STOP_WITHIN: Duration = Duration::from_millis(4_500);

/// A byte stream to a client.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Connections of gRPC clients.
pub type Incoming = BoxStream<'static, io::Result<Box<dyn Io>>>;

/// What the program stands on.
pub struct Outside {
    /// AWS.
    pub aws: Aws,
    /// The Kubernetes API.
    pub cluster: Cluster,
    /// Tells the time.
    pub clock: Clock,
    /// Where gRPC clients connect.
    pub incoming: Incoming,
    /// Certificates of the gRPC server.
    pub tls: Option<Tls>,
    /// Where `/livez`, `/readyz` and `/metrics` are served.
    pub admin: Option<TcpListener>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").finish_non_exhaustive()
    }
}

/// Why the program ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The gRPC server failed.
    #[error("the gRPC server ended")]
    Grpc(#[from] ServeError),
    /// The admin server failed.
    #[error("the admin server ended")]
    Admin(#[source] io::Error),
    /// The scale-in controller failed.
    #[error("the scale-in controller ended")]
    Controller(#[from] ControllerError),
    /// A task ended that never should.
    #[error("the {0} ended")]
    Ended(&'static str),
    /// A task panicked.
    #[error("a task failed")]
    Failed(#[from] JoinError),
}

/// Connects to everything outside as configured. Sockets are bound before anything is started.
pub async fn connect(config: &Config) -> anyhow::Result<Outside> {
    use anyhow::Context;
    let tls = config.tls.clone().map(load_tls).transpose()?;
    let listener =
        TcpListener::bind(config.listen).await.with_context(|| format!("--listen {}", config.listen))?;
    let admin = TcpListener::bind(config.admin_listen)
        .await
        .with_context(|| format!("--admin-listen {}", config.admin_listen))?;
    tracing::info!(listen = %listener.local_addr()?, admin = %admin.local_addr()?, "listening");
    let aws = Aws::connect(config.region.as_deref(), config.endpoint_url.as_deref()).await?;
    let cluster = Cluster::connect(config.kubeconfig.as_deref()).await?;
    let incoming = futures::StreamExt::map(TcpListenerStream::new(listener), |accepted| {
        let stream = accepted?;
        // Small answers to small questions: not worth waiting to fill a packet.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream) as Box<dyn Io>)
    });
    Ok(Outside {
        aws,
        cluster,
        clock: Clock::system(),
        incoming: Box::pin(incoming),
        tls,
        admin: Some(admin),
    })
}

fn load_tls(files: TlsFiles) -> anyhow::Result<Tls> {
    Tls::load(files).map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!(texts.join("\n"))
    })
}

/// The parts of the program, put together and not yet running.
struct App {
    discovery: Discovery,
    lessons: Arc<Lessons>,
    protection: Arc<Protection>,
    controller: Arc<Shared>,
    leadership: Leadership,
    /// None: there is no other process.
    election: Option<Election>,
    provider: Provider,
    readiness: Readiness,
    registry: Registry,
    /// Changes of sizes that run to their end even if nobody waits for them.
    running: Running,
}

impl App {
    fn build(config: &Config, aws: Aws, cluster: Cluster, clock: &Clock, stop: CancellationToken) -> Self {
        let mut registry = Registry::default();
        let settings = Settings {
            flush: config.daemonset_flush,
            drain_timeout: config.drain_timeout,
            guard: config.daemonset_guard,
        };
        let selectors = &config.selectors;
        let groups = Arc::new(Groups::new(config.snapshot_max_age));
        let hooks = Arc::new(Hooks::new(aws.clone(), &config.lifecycle_hook));
        let nodes = Arc::new(Nodes::default());
        let running = Running::default();

        let leadership = match &config.election {
            Some(_) => Leadership::unknown(clock.clone()),
            None => Leadership::alone(clock.clone()),
        };
        leadership.register(&mut registry);
        let election = config
            .election
            .clone()
            .map(|candidate| Election::new(cluster.clone(), clock.clone(), candidate, leadership.clone()));

        aws.calls().register(&mut registry);
        let rpc_metrics = RpcMetrics::register(&mut registry);
        let (metrics, waiting) = (Metrics::default(), Arc::new(Board::default()));
        metrics.register(&mut registry, Arc::clone(&nodes), Arc::clone(&waiting));

        let discovery = Discovery::new(
            aws.clone(),
            selectors.clone(),
            Arc::clone(&groups),
            Arc::clone(&hooks),
            clock.clone(),
            config.refresh_interval,
        )
        .with_settings(config.templates);
        let lessons = Arc::new(Lessons::new(Arc::clone(&nodes)));
        let discovery = discovery.with_lessons(Arc::clone(&lessons));
        template::register(&mut registry, Arc::clone(&groups));
        let protection = Arc::new(Protection::new(aws.clone(), Arc::clone(&groups), clock.clone()));
        let sizing = AwsSizing::new(
            aws.clone(),
            selectors.clone(),
            Arc::clone(&groups),
            Arc::clone(&protection),
            running.clone(),
        );
        let intents = Intents::new(cluster.clone(), Arc::clone(&nodes), clock.clone(), settings);
        let provider = Provider::new(
            Arc::clone(&groups),
            Arc::new(intents),
            Arc::new(sizing),
            clock.clone(),
            rpc_metrics,
        )
        .with_zero_startup_time(config.zero_node_startup_time);
        let controller = Arc::new(Shared {
            cluster,
            aws,
            nodes,
            budgets: Store::default(),
            daemon_sets: Store::default(),
            attachments: Store::default(),
            groups,
            hooks,
            holds: Holds::default(),
            protection: Arc::clone(&protection),
            leadership: leadership.clone(),
            clock: clock.clone(),
            settings,
            waiting,
            metrics,
            stop,
        });
        Self {
            discovery,
            lessons,
            protection,
            controller,
            leadership,
            election,
            provider,
            readiness: Readiness::new(),
            registry,
            running,
        }
    }
}

/// What has to be there before the program is ready.
struct Gates {
    groups: Gate,
    nodes: Gate,
    lease: Gate,
}

/// Opens the gates of readiness as what they wait for comes in.
async fn report_readiness(gates: Gates, shared: Arc<Shared>) {
    let mut versions = shared.groups.versions();
    let is_complete = || shared.groups.latest().is_some_and(|view| view.is_complete);
    while !is_complete() && versions.changed().await.is_ok() {}
    gates.groups.open();
    shared.nodes.synced().await;
    gates.nodes.open();
    // Whoever leads: without the Lease nothing is drained, and an update to a version that may not have it is to stop here.
    shared.leadership.known().await;
    gates.lease.open();
    tracing::info!("ready");
    shared.stop.cancelled().await;
}

/// Runs the program until `stop`, then hears out what is under way.
pub async fn run(config: &Config, outside: Outside, stop: CancellationToken) -> Result<(), AppError> {
    let Outside { aws, cluster, clock, incoming, tls, admin } = outside;
    let app = App::build(config, aws, cluster, &clock, stop.clone());
    let (readiness, registry) = (app.readiness, Arc::new(app.registry));
    let gates = Gates {
        groups: readiness.gate("groups"),
        nodes: readiness.gate("nodes"),
        lease: readiness.gate("lease"),
    };
    let _running = app.running.guard();

    let mut tasks: JoinSet<Result<&'static str, AppError>> = JoinSet::new();
    let mut election = app.election;
    let elected = async {
        match &mut election {
            Some(election) => election.run().await,
            None => std::future::pending().await,
        }
    };
    let until = stop.clone();
    tasks.spawn(async move {
        until.run_until_cancelled(Box::pin(app.discovery.run())).await;
        Ok("discovery")
    });
    let until = stop.clone();
    let (cluster, config_map) = (app.controller.cluster.clone(), config.templates_config_map.clone());
    let keep = keeper::keep(app.lessons, cluster, app.leadership.clone(), config_map);
    tasks.spawn(async move {
        until.run_until_cancelled(keep).await;
        Ok("keeper of what is learned of nodes")
    });
    let (until, leadership) = (stop.clone(), app.leadership.clone());
    tasks.spawn(async move {
        until.run_until_cancelled(app.protection.run(&leadership)).await;
        Ok("release from scale-in protection")
    });
    let shared = Arc::clone(&app.controller);
    tasks.spawn(async move {
        scale_in::run(shared).await?;
        Ok("scale-in controller")
    });
    let until = stop.clone();
    tasks.spawn(async move {
        crate::provider::serve(app.provider, incoming, tls, until.cancelled_owned()).await?;
        Ok("gRPC server")
    });
    let until = stop.clone();
    tasks.spawn(async move {
        until.run_until_cancelled(report_readiness(gates, app.controller)).await;
        Ok("readiness")
    });
    if let Some(listener) = admin {
        let until = stop.clone();
        tasks.spawn(async move {
            let router = admin::router(readiness, registry);
            admin::serve(listener, router, until.cancelled_owned()).await.map_err(AppError::Admin)?;
            Ok("admin server")
        });
    }

    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        never = elected => match never {},
        Some(ended) = tasks.join_next() => match ended {
            Ok(Ok(name)) => Err(AppError::Ended(name)),
            Ok(Err(error)) => Err(error),
            Err(panic) => Err(AppError::Failed(panic)),
        },
    };
    stop.cancel();
    let heard_out = async {
        while tasks.join_next().await.is_some() {}
        app.running.finish().await;
        if let Some(election) = &mut election {
            election.step_down().await;
        }
    };
    if tokio::time::timeout(STOP_WITHIN, heard_out).await.is_err() {
        tracing::warn!("stopped with calls under way; whoever starts next finds their outcome by looking");
    }
    ended
}
