//! Puts the program together and runs it until it is stopped.
//!
//! Everything that differs between production, simulated worlds and tests comes in as an [`Outside`]. Every task is owned
//! here; one that ends before the stop ends the program.

mod error;
mod hand_over;
mod parts;
mod readiness;
mod tasks;

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

pub use self::error::AppError;
use self::parts::{Parts, Upkeep};
use self::tasks::Tasks;
use crate::admin::{self, Readiness};
use crate::aws::Aws;
use crate::clock::Clock;
use crate::cluster::{Cluster, Election};
use crate::config::Config;
use crate::dry_run::DryRun;
use crate::provider::expander::events::publish;
use crate::provider::placeholders::Placeholders;
use crate::provider::{self, Expander, Incoming, Listen, Provider, Tls, TlsOptions};
use crate::scale_in::status::Status;
use crate::scale_in::{self, Shared};
use crate::telemetry::chain;
use crate::telemetry::traces::{self, Traces};
use crate::template::learned::config_map;

/// How long a stop waits for calls under way: cluster-autoscaler's, and ours to the API server and AWS. The kubelet gives 30
/// s by default; a waiting person gives 5 s.
const STOP_WITHIN: Duration = Duration::from_millis(4_500);

/// How long of that the Lease is kept, for what follows a call that is answered by then. An admission webhook may hang for longer than any stop
/// may take; nothing new begins meanwhile, and who leads next is as safe from calls under way as after a `kill -9`.
const KEEPS_LEASE_FOR: Duration = Duration::from_secs(1);

/// Everything that the program connects to.
pub struct Outside {
    /// AWS.
    pub aws: Aws,
    /// The Kubernetes API.
    pub cluster: Cluster,
    /// Tells the time.
    pub clock: Clock,
    /// Connections of gRPC clients.
    pub incoming: Incoming,
    /// Certificates of the gRPC server.
    pub tls: Option<Tls>,
    /// Connections of clients of the expander that show no certificate, and ours for them.
    pub expander: Option<(Incoming, Tls)>,
    /// Socket of the admin endpoints.
    pub admin: Option<TcpListener>,
    /// The collector that traces are told.
    pub collector: Option<Channel>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").finish_non_exhaustive()
    }
}

/// Threads that work, at most: glibc gives each a heap of its own, and a node has up to 192 cores. Two have enough to do with 300 nodes that
/// leave at once.
const WORKERS: usize = 4;

/// With fewer open files, a few hundred nodes that leave at once can leave none for the Lease: each has a watch of its pods, and a connection
/// for it.
const ENOUGH_FILES: u64 = 4_096;

/// Raises the limit of open files as far as this process may, as programs in Go do, and warns if it stays low. Containers start with 1,024
/// under containerd 2 where nobody has set more. Where there is no hard limit, some systems refuse to have no soft one either, and take `ENOUGH_FILES`.
///
/// Source: [`syscall/rlimit.go`](https://github.com/golang/go/blob/master/src/syscall/rlimit.go).
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let is_taken =
        |current: &Option<u64>| setrlimit(Resource::Nofile, Rlimit { current: *current, ..before }).is_ok();
    let enough = before.current.is_some_and(|now| now < ENOUGH_FILES).then_some(Some(ENOUGH_FILES));
    let raised = [before.maximum].into_iter().chain(enough).find(is_taken);
    if let Some(files) = raised.unwrap_or(before.current).filter(|files| *files < ENOUGH_FILES) {
        tracing::warn!(
            files,
            "few files may be open at once, and each node that leaves needs one: raise the hard limit (LimitNOFILE of the container runtime)"
        );
    }
}

/// Runs `work` to its end, without waiting for blocked threads: an unanswered DNS look-up blocks its thread for longer than
/// a stop may take.
pub fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let workers = available_parallelism().map_or(WORKERS, |cores| cores.get().min(WORKERS));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(ended)
}

/// Connects to everything outside as configured. Binds the sockets first.
pub async fn connect(config: &Config) -> anyhow::Result<Outside> {
    use anyhow::Context;
    let clock = Clock::system();
    let tls = config.tls.clone().map(|options| load_tls(options, clock.clone())).transpose()?;
    let listener = config.listen.bind().await.with_context(|| format!("--listen {}", config.listen))?;
    let admin = TcpListener::bind(config.admin_listen)
        .await
        .with_context(|| format!("--admin-listen {}", config.admin_listen))?;
    let expander = match &config.expander_listen {
        Some((address, options)) => {
            let tls = load_tls(options.clone(), clock.clone())?;
            let listener = Listen::Tcp(*address).bind().await;
            let listener = listener.with_context(|| format!("--expander-listen {address}"))?;
            tracing::info!(listen = %listener.address()?, "listening for the expander's clients");
            let incoming: Incoming = Box::pin(listener);
            Some((incoming, tls))
        }
        None => None,
    };
    tracing::info!(listen = %listener.address()?, admin = %admin.local_addr()?, "listening");
    let aws = connect_aws(config).await?;
    let cluster = Cluster::connect(config.kubeconfig.as_deref()).await?;
    let collector = config.otlp_endpoint.as_deref().map(traces::connect).transpose();
    let collector = collector.context("--otlp-endpoint")?;
    let (incoming, admin) = (Box::pin(listener), Some(admin));
    Ok(Outside { aws, cluster, clock, incoming, tls, expander, admin, collector })
}

/// Connects to AWS as configured.
pub async fn connect_aws(config: &Config) -> anyhow::Result<Aws> {
    let (region, url) = (config.region.as_deref(), config.endpoint_url.as_deref());
    Ok(Aws::connect(region, url, config.proxy.as_ref()).await?)
}

fn load_tls(options: TlsOptions, clock: Clock) -> anyhow::Result<Tls> {
    let tls = Tls::load(options, clock).map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!(texts.join("\n"))
    })?;
    for problem in tls.untimely() {
        if tls.is_for_expander() {
            tracing::error!(error = %chain(&problem), "cluster-autoscaler cannot ask the expander until this file is replaced: it uses its next expander");
        } else {
            tracing::error!(error = %chain(&problem), "cluster-autoscaler cannot connect until this file is replaced: drains and heartbeats go on");
        }
    }
    Ok(tls)
}

/// Runs the program until `stop`, then waits for calls under way.
pub async fn run(config: &Config, outside: Outside, stop: CancellationToken) -> Result<(), AppError> {
    let Outside { aws, cluster, clock, incoming, tls, expander: expander_endpoint, admin, collector } =
        outside;
    let (aws, cluster) = (aws.telling(&clock), cluster.telling(&clock));
    let (traces, exporter) = collector.map(Traces::to).unzip();
    let dry_run = config.dry_run.then(|| DryRun::new(clock.clone()));
    let (aws, cluster) = match &dry_run {
        Some(dry_run) => {
            tracing::warn!("dry run: nothing is changed, in AWS or in the cluster");
            (aws.in_dry_run(dry_run), cluster.in_dry_run(dry_run))
        }
        None => (aws, cluster),
    };
    let traces = traces.unwrap_or_default();
    let shared = parts::shared(config, aws, cluster, clock, dry_run, traces, stop.clone());
    let Parts { shared, upkeep, provider, expander, mut election, running, registry } =
        Parts::build(config, shared);
    let _running = running.guard();
    let readiness = Readiness::missing_all(&readiness::PARTS);

    let mut tasks = Tasks::new(stop.clone());
    start_upkeep(&mut tasks, upkeep, config, &shared);
    start_memory_of_rpcs(&mut tasks, &provider, &expander, config, &shared);
    start_scale_ins(&mut tasks, &shared);
    if election.is_some() {
        tasks.until_stop("hand-over", hand_over::run(Arc::clone(&shared)));
    }
    if let Some((incoming, tls)) = expander_endpoint {
        let (expander, refusals) = (Arc::clone(&expander), provider.refused_clients());
        tasks.until_done(
            "expander",
            provider::serve_expander(expander, incoming, tls, refusals, stop.clone().cancelled_owned()),
        );
    }
    let stopped = stop.clone().cancelled_owned();
    tasks.until_done("gRPC server", provider::serve(provider, Some(expander), incoming, tls, stopped));
    if let Some(exporter) = exporter {
        tasks.until_done("export of traces", exporter.run(stop.clone()).map(Ok::<_, AppError>));
    }
    tasks.until_stop("readiness", readiness::keep(readiness.clone(), Arc::clone(&shared)));
    if let Some(listener) = admin {
        let look = Arc::new(move || Status::of(&shared));
        let router = admin::router(readiness, Arc::new(registry), look);
        let served = admin::serve(listener, router, stop.clone().cancelled_owned());
        tasks.until_done("admin server", served.map(Ok::<_, AppError>));
    }

    let mut outcome = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        never = stand(&mut election) => match never {},
        error = tasks.first_to_end() => Err(error),
    };
    stop.cancel();
    let ended = async {
        tasks.finish(&mut outcome).await;
        running.finish().await;
    };
    finish(ended, election).await;
    outcome
}

/// Waits until the calls under way have `ended`, for [`STOP_WITHIN`] at most. The Lease is given back as soon as they have, after
/// [`KEEPS_LEASE_FOR`] at the latest.
async fn finish(ended: impl Future<Output = ()>, election: Option<Election>) {
    let mut ended = pin!(ended);
    let have_ended = timeout(KEEPS_LEASE_FOR, &mut ended).await.is_ok();
    let step_down = async {
        if let Some(mut election) = election {
            election.step_down().await;
        }
    };
    let wait = async {
        if !have_ended && timeout(STOP_WITHIN.saturating_sub(KEEPS_LEASE_FOR), ended).await.is_err() {
            tracing::warn!("stopped with calls still unanswered: the next leader looks up their outcome");
        }
    };
    tokio::join!(step_down, wait);
}

/// Starts the tasks that poll AWS, and maintain what the program manages there and in the cluster.
fn start_upkeep(tasks: &mut Tasks, upkeep: Upkeep, config: &Config, shared: &Arc<Shared>) {
    let Upkeep { discovery, managed_hooks, price_reader } = upkeep;
    tasks.until_stop("discovery", discovery.run());
    tasks.until_stop("learned ConfigMap", keep_learned(config, shared));
    tasks.until_stop(
        "release from scale-in protection",
        Arc::clone(&shared.protection).run(shared.leadership.clone()),
    );
    if let Some(hooks) = managed_hooks {
        tasks.until_stop("care for lifecycle hooks", hooks.run(shared.leadership.clone()));
    }
    if let Some(reader) = price_reader {
        tasks.until_stop("reading of prices", reader.run());
    }
    tasks.until_stop("look-up of the AWS identity", log_identity(shared.aws.clone()));
}

/// Starts the scale-in controller, and what it lives on.
fn start_scale_ins(tasks: &mut Tasks, shared: &Arc<Shared>) {
    for (name, watch) in scale_in::watches(shared) {
        tasks.until_stop(name, watch);
    }
    for reader in scale_in::readers(shared) {
        tasks.until_done("reading of a queue of notices", reader.map(Ok::<_, AppError>));
    }
    tasks.until_done("scale-in controller", scale_in::run(Arc::clone(shared)));
}

/// Starts tasks that run whether or not RPCs come: names of placeholders, and Events of the expander.
fn start_memory_of_rpcs(
    tasks: &mut Tasks,
    provider: &Provider,
    expander: &Expander,
    config: &Config,
    shared: &Arc<Shared>,
) {
    tasks.until_stop(
        "names of placeholders",
        Placeholders::watch(provider.placeholders(), Arc::clone(&shared.groups), shared.clock.clone()),
    );
    if config.expander_events {
        let (choices, config_map) = (expander.choices(), config.templates_config_map.clone());
        tasks.until_stop("Events of the expander", publish(choices, Arc::clone(shared), config_map));
    }
}

/// Takes part in the election, if there is one.
async fn stand(election: &mut Option<Election>) -> Infallible {
    match election {
        Some(election) => election.run().await,
        None => std::future::pending().await,
    }
}

/// Stores learned templates in their ConfigMap.
fn keep_learned(config: &Config, shared: &Shared) -> impl Future<Output = Infallible> + use<> {
    config_map::keep(
        Arc::clone(&shared.learned),
        shared.cluster.clone(),
        shared.leadership.clone(),
        config.templates_config_map.clone(),
    )
}

/// Logs our AWS identity: the one to grant permissions to if a call is denied.
async fn log_identity(aws: Aws) -> Infallible {
    match aws.identity().await {
        Ok(Some(identity)) => {
            tracing::info!(arn = identity.arn, account = identity.account, "AWS identity of this process");
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(error = %chain(&error), "AWS did not say which identity these credentials have; later calls may be denied");
        }
    }
    std::future::pending().await
}
