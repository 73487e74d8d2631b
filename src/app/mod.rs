//! Putting the program together and running it until it is told to stop.
//!
//! Everything that differs between production, the simulated worlds and tests comes in as an [`Outside`]. Every task is
//! owned here; one that ends before it was told to ends the program.

mod readiness;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use self::readiness::Gates;
use crate::admin::{self, Readiness};
use crate::aws::Aws;
use crate::clock::Clock;
use crate::cluster::{Cluster, Election, Leadership, Nodes, Store};
use crate::config::Config;
use crate::groups::discovery::Discovery;
use crate::groups::hooks::Hooks;
use crate::groups::protection::Protection;
use crate::groups::{self, Groups};
use crate::provider::{AwsSizing, Incoming, Provider, RpcMetrics, Running, ServeError, Tls, TlsOptions};
use crate::scale_in::{self, Board, ControllerError, Flush, Holds, Intents, Metrics, Settings, Shared};
use crate::telemetry::chain;
use crate::template::LearnedStore;
use crate::template::learned::config_map;

/// What is heard out at the end, all together: cluster-autoscaler's calls, the API server's and AWS's answers. The
/// kubelet's default patience is 30 s; an on-call's is 5 s.
const STOP_WITHIN: Duration = Duration::from_millis(4_500);

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

/// Runs to the end of `work`, and does not wait for what the operating system cannot be talked out of: a look-up of a name that
/// no server answers blocks its thread for longer than anybody waits for a stop.
pub fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(ended)
}

/// Connects to everything outside as configured. Sockets are bound before anything is started.
pub async fn connect(config: &Config) -> anyhow::Result<Outside> {
    use anyhow::Context;
    let tls = config.tls.clone().map(load_tls).transpose()?;
    let listener = config.listen.bind().await.with_context(|| format!("--listen {}", config.listen))?;
    let admin = TcpListener::bind(config.admin_listen)
        .await
        .with_context(|| format!("--admin-listen {}", config.admin_listen))?;
    tracing::info!(listen = %listener.address()?, admin = %admin.local_addr()?, "listening");
    let aws =
        Aws::connect(config.region.as_deref(), config.endpoint_url.as_deref(), config.proxy.as_ref()).await?;
    let cluster = Cluster::connect(config.kubeconfig.as_deref()).await?;
    Ok(Outside {
        aws,
        cluster,
        clock: Clock::system(),
        incoming: Box::pin(listener),
        tls,
        admin: Some(admin),
    })
}

fn load_tls(options: TlsOptions) -> anyhow::Result<Tls> {
    Tls::load(options).map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!(texts.join("\n"))
    })
}

/// The parts of the program, put together and not yet running.
struct App {
    discovery: Discovery,
    learned: Arc<LearnedStore>,
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
            flush: Flush {
                default: config.daemonset_flush,
                longest: config.daemonset_flush + config.daemonset_flush_beyond,
                namespaces: config.daemonset_flush_namespaces.iter().cloned().collect(),
            },
            patience: config.patience,
            drain_timeout: config.drain_timeout,
            guard: config.daemonset_guard,
            operator_at_once: config.max_operator_scale_ins,
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
        metrics.register(&mut registry, Arc::clone(&nodes), Arc::clone(&waiting), clock.clone());
        cluster.register(&mut registry);

        let discovery = Discovery::new(
            aws.clone(),
            selectors.clone(),
            Arc::clone(&groups),
            Arc::clone(&hooks),
            clock.clone(),
            config.refresh_interval,
        )
        .with_settings(config.templates);
        let learned = Arc::new(LearnedStore::new(Arc::clone(&nodes)));
        let discovery = discovery.with_learned(Arc::clone(&learned));
        groups::register(&mut registry, Arc::clone(&groups), clock.clone());
        let protection = Arc::new(Protection::new(aws.clone(), Arc::clone(&groups), clock.clone()));
        let sizing = AwsSizing::new(
            aws.clone(),
            selectors.clone(),
            Arc::clone(&groups),
            Arc::clone(&protection),
            running.clone(),
        );
        let intents = Intents::new(cluster.clone(), Arc::clone(&nodes), clock.clone(), settings.clone());
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
            selectors: selectors.clone(),
            learned: Arc::clone(&learned),
            hooks,
            holds: Holds::default(),
            protection: Arc::clone(&protection),
            leadership: leadership.clone(),
            clock: clock.clone(),
            settings,
            turns_given: std::sync::Mutex::default(),
            waiting,
            metrics,
            stop,
        });
        Self {
            discovery,
            learned,
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

/// Says as whom AWS knows us: what is denied later is denied to them. Never completes.
async fn tell_identity(aws: Aws) {
    match aws.identity().await {
        Ok(Some(identity)) => tracing::info!(arn = identity.arn, account = identity.account, "known to AWS"),
        Ok(None) => {}
        Err(error) => tracing::warn!(error = %chain(&error), "AWS does not tell who we are"),
    }
    std::future::pending::<()>().await;
}

/// Runs the program until `stop`, then hears out what is under way.
pub async fn run(config: &Config, outside: Outside, stop: CancellationToken) -> Result<(), AppError> {
    let Outside { aws, cluster, clock, incoming, tls, admin } = outside;
    let app = App::build(config, aws, cluster, &clock, stop.clone());
    let (readiness, registry) = (app.readiness, Arc::new(app.registry));
    let gates = Gates::of(&readiness);
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
    let keep = config_map::keep(app.learned, cluster, app.leadership.clone(), config_map);
    tasks.spawn(async move {
        until.run_until_cancelled(keep).await;
        Ok("keeper of what is learned of nodes")
    });
    let (until, leadership) = (stop.clone(), app.leadership.clone());
    tasks.spawn(async move {
        until.run_until_cancelled(app.protection.run(&leadership)).await;
        Ok("release from scale-in protection")
    });
    let (until, aws) = (stop.clone(), app.controller.aws.clone());
    tasks.spawn(async move {
        until.run_until_cancelled(tell_identity(aws)).await;
        Ok("question who we are")
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
    let (until, freshness) = (stop.clone(), readiness.clone());
    tasks.spawn(async move {
        until.run_until_cancelled(gates.keep(freshness, app.controller)).await;
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
