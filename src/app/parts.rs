//! The program's parts, built but not yet running.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::aws::Aws;
use crate::clock::Clock;
use crate::cluster::{Candidate, Cluster, Election, Leadership, Nodes, PodName, Store};
use crate::config::{Config, PriceSource};
use crate::dry_run::DryRun;
use crate::groups::discovery::Discovery;
use crate::groups::hooks::Hooks;
use crate::groups::managed_hooks::{Known, ManagedHooks};
use crate::groups::protection::Protection;
use crate::groups::{self, Groups};
use crate::prices::{Prices, Reader, register_age};
use crate::provider::{Expander, Provider, RpcMetrics, Running, Sizing};
use crate::scale_in::{
    Board, EvictionRate, History, Intents, Metrics, Notices, Settings, Shared, TakenOut, UnseenNodes,
};
use crate::telemetry;
use crate::telemetry::traces::Traces;
use crate::template::LearnedStore;

/// The program's parts, and what they share.
pub(super) struct Parts {
    pub(super) shared: Arc<Shared>,
    pub(super) upkeep: Upkeep,
    pub(super) provider: Provider,
    pub(super) expander: Arc<Expander>,
    /// `None`: no election, this is the only process.
    pub(super) election: Option<Election>,
    /// Size changes, which complete even if their caller gives up.
    pub(super) running: Running,
    pub(super) registry: Registry,
}

/// The parts that poll AWS, and maintain what the program manages there.
pub(super) struct Upkeep {
    pub(super) discovery: Discovery,
    /// `None`: the groups' hooks are left as they are.
    pub(super) managed_hooks: Option<ManagedHooks>,
    /// `None`: AWS is not asked for prices.
    pub(super) price_reader: Option<Reader>,
}

impl Parts {
    /// The parts around what they share ([`shared`]).
    pub(super) fn build(config: &Config, shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let mut registry = Registry::default();
        let rpc_metrics = register(&mut registry, &shared);
        let running = Running::default();
        let asks = config.prices == Some(PriceSource::Aws);
        let prices = config.prices.map(|_| Arc::new(Prices::of(shared.aws.region(), asks)));
        let price_reader = prices.as_ref().filter(|_| asks).map(|prices| {
            let (groups, prices) = (Arc::clone(&shared.groups), Arc::clone(prices));
            Reader::new(shared.aws.clone(), groups, prices, shared.clock.clone())
        });
        if let Some(prices) = &prices {
            prices.register(&mut registry);
            register_age(&mut registry, Arc::clone(prices), shared.clock.clone());
        }
        let managed_hooks = managed_hooks(config, &shared);
        if let Some(managed) = &managed_hooks {
            managed.register(&mut registry);
        }
        let discovery = discovery(config, &shared);
        discovery.register(&mut registry);
        Self {
            upkeep: Upkeep { discovery, managed_hooks, price_reader },
            expander: Arc::new(
                Expander::new(Arc::clone(&shared), config.expander_policy.clone(), &mut registry)
                    .with_prices(prices.clone()),
            ),
            provider: provider(config, &shared, rpc_metrics, running.clone()).with_prices(prices),
            election: election(config, &shared),
            shared,
            running,
            registry,
        }
    }
}

/// What the parts share.
pub(super) fn shared(
    config: &Config,
    aws: Aws,
    cluster: Cluster,
    clock: Clock,
    dry_run: Option<DryRun>,
    traces: Traces,
    stop: CancellationToken,
) -> Shared {
    let groups = Arc::new(Groups::new(config.snapshot_max_age));
    let nodes = Arc::new(Nodes::default());
    let leadership = if candidate(config).is_some() { Leadership::unknown } else { Leadership::alone };
    Shared {
        budgets: Store::default(),
        daemon_sets: Store::default(),
        attachments: Store::default(),
        selectors: config.selectors.clone(),
        learned: Arc::new(LearnedStore::new(Arc::clone(&nodes))),
        hooks: Arc::new(Hooks::new(aws.clone(), &config.lifecycle_hook, clock.clone())),
        holds: Arc::default(),
        taken_out: TakenOut::default(),
        unseen_nodes: UnseenNodes::default(),
        load_balancers: Arc::default(),
        notices: Notices::default(),
        // A message that is read is hidden from others.
        queues: config.queue_urls.iter().filter(|_| !config.dry_run).cloned().collect(),
        dry_run,
        protection: Arc::new(Protection::new(aws.clone(), Arc::clone(&groups), clock.clone())),
        own_pod: own_pod(config, &cluster),
        leadership: leadership(clock.clone()),
        settings: Settings { installation: installation(config, &cluster), ..config.scale_in.clone() },
        pod_events: Mutex::default(),
        reports: Mutex::default(),
        guards: Mutex::default(),
        eviction_rate: EvictionRate::new(config.eviction_pause),
        turns_given: Mutex::default(),
        progress: Arc::new(Board::default()),
        history: History::default(),
        traces,
        metrics: Metrics::default(),
        cluster,
        aws,
        nodes,
        groups,
        clock,
        stop,
    }
}

/// What tells this installation's records from those of others: its Lease.
fn installation(config: &Config, cluster: &Cluster) -> Option<String> {
    config.election.as_ref().map(|candidate| format!("{}/{}", cluster.own_namespace(), candidate.lease))
}

fn own_pod(config: &Config, cluster: &Cluster) -> Option<PodName> {
    let name = config.election.as_ref()?.pod.as_deref()?.into();
    Some(PodName { namespace: cluster.own_namespace().into(), name })
}

/// Registers the metrics of all parts. Returns those of the RPCs.
fn register(registry: &mut Registry, shared: &Shared) -> RpcMetrics {
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("ebbtide_build", "Which version runs", version);
    let dry_run = Gauge::<i64>::default();
    dry_run.set(i64::from(shared.dry_run.is_some()));
    registry.register("ebbtide_dry_run", "Whether this process changes nothing (--dry-run)", dry_run);
    telemetry::register(registry);
    shared.leadership.register(registry);
    shared.aws.calls().register(registry);
    let rpc_metrics = RpcMetrics::register(registry);
    let (nodes, progress) = (Arc::clone(&shared.nodes), Arc::clone(&shared.progress));
    let groups = Arc::clone(&shared.groups);
    shared.metrics.register(registry, nodes, progress, groups, shared.clock.clone());
    shared.traces.register(registry);
    shared.notices.register(registry, shared.clock.clone());
    shared.cluster.register(registry);
    groups::register(registry, Arc::clone(&shared.groups), shared.clock.clone());
    rpc_metrics
}

fn discovery(config: &Config, shared: &Shared) -> Discovery {
    Discovery::new(
        shared.aws.clone(),
        config.selectors.clone(),
        Arc::clone(&shared.groups),
        Arc::clone(&shared.hooks),
        Arc::clone(&shared.nodes),
        shared.clock.clone(),
        config.refresh_interval,
    )
    .of_installation(shared.settings.installation.clone())
    .with_settings(config.templates)
    .with_learned(Arc::clone(&shared.learned))
}

fn managed_hooks(config: &Config, shared: &Shared) -> Option<ManagedHooks> {
    let known = Known {
        selectors: config.selectors.clone(),
        groups: Arc::clone(&shared.groups),
        hooks: Arc::clone(&shared.hooks),
        nodes: Arc::clone(&shared.nodes),
        learned: Arc::clone(&shared.learned),
    };
    let managed = config.managed_hooks?;
    Some(ManagedHooks::new(managed, shared.aws.clone(), known, shared.clock.clone()))
}

fn provider(config: &Config, shared: &Shared, metrics: RpcMetrics, running: Running) -> Provider {
    let intents = Intents::new(
        shared.cluster.clone(),
        Arc::clone(&shared.nodes),
        shared.clock.clone(),
        Arc::clone(&shared.groups),
        shared.settings.clone(),
        Arc::clone(&shared.hooks),
        Arc::clone(&shared.holds),
    );
    let sizing = Sizing::new(
        shared.aws.clone(),
        config.selectors.clone(),
        Arc::clone(&shared.groups),
        Arc::clone(&shared.protection),
        running.clone(),
    );
    let groups = Arc::clone(&shared.groups);
    Provider::new(groups, Arc::new(intents), sizing, running, shared.clock.clone(), metrics)
        .with_zero_startup_time(config.zero_node_startup_time)
}

fn election(config: &Config, shared: &Shared) -> Option<Election> {
    let (cluster, clock) = (shared.cluster.clone(), shared.clock.clone());
    Some(Election::new(cluster, clock, candidate(config)?.clone(), shared.leadership.clone()))
}

/// As whom this process stands for election. A dry run does not: it is never in the way of one that works.
fn candidate(config: &Config) -> Option<&Candidate> {
    config.election.as_ref().filter(|_| !config.dry_run)
}
