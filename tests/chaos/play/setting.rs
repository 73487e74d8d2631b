//! What there is at the beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ebbtide::cluster::Candidate;
use ebbtide::config::Config;
use ebbtide::groups::managed_hooks::Managed;
use ebbtide::scale_in::{Flush, OnDeadline, Settings, Treatment};
use ebbtide::sim::autoscaler::{Autoscaler, Client, Options, Version};
use ebbtide::sim::aws::{GroupSpec, HookResult, HookSpec, MixedSpec, QueueSpec, TemplateData, WarmPoolSpec};
use ebbtide::sim::ca_drain::{self, clean_up};
use ebbtide::sim::cluster::{
    Cluster, EBBTIDE, Rights, Verb, Workload as Pods, budget, daemon_set, job, pod, replica_set, stateful_set,
};
use ebbtide::sim::paused::Switch;
use ebbtide::sim::program::{TAG, config};
use ebbtide::sim::world::{POOL, World};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use super::{Later, RECONNECTS, Replica, Stage, TOKEN};
use crate::history::Diary;
use crate::scenario::{self, Blow, Budget, Flags, Group, Kind, Scenario, What, Workload};

/// Nodes have one of these, and the log shipper ships what workloads on them write.
pub(super) const SHIPPER: &str = "shipper";

/// How long cluster-autoscaler tries to take its taints off at its start.
const CLEANS_UP: Duration = Duration::from_mins(1);

/// How long a cluster-autoscaler waits for an instance to register that gives up soon.
const HASTY: Duration = Duration::from_mins(3);

/// The name of our hook.
pub(crate) const OURS: &str = "ebbtide";

/// The heartbeat time-out of hooks that the program puts, in seconds.
pub(crate) const MANAGED: u32 = 120;

/// The name of somebody else's.
pub(crate) const THEIRS: &str = "theirs";

const ZONES: [&str; 2] = ["us-east-1a", "us-east-1b"];

impl Stage {
    /// The worlds, and the program started.
    pub(super) fn set(scenario: Scenario) -> Self {
        let world = Arc::new(World::new(scenario.seed));
        world.cluster.enforce_policies();
        world.cluster.add_user(TOKEN, EBBTIDE, Rights::ScaleIn);
        for group in &scenario.groups {
            world.aws.add_group(spec(group));
        }
        world.cluster.add(daemon_set(SHIPPER).log_shipper().tolerates("", "").cpu_millis(20));
        for workload in scenario.workloads.iter().filter(|workload| workload.comes_to.is_none()) {
            add(&world.cluster, workload, None);
        }
        let replicas = replicas(&world, &scenario);
        let autoscaler = scenario.autoscaler.map(|version| autoscaler(&world, version, scenario.is_hasty));
        let mut stage = Self {
            began: world.clock.now(),
            reached: Arc::new(Mutex::new(None)),
            preferred: 0,
            diary: Diary::default(),
            later: BTreeMap::new(),
            scheduled: 0,
            tasks: JoinSet::new(),
            in_progress: Arc::default(),
            others: JoinSet::new(),
            dead: BTreeSet::new(),
            world,
            scenario,
            replicas,
            autoscaler,
            scanned: Vec::new(),
        };
        for n in 0..stage.replicas.len() {
            stage.start(n);
        }
        stage.later(RECONNECTS, Later::Reconnects);
        stage.run_autoscaler();
        stage.ask_for_targets();
        if stage.scenario.reuses_addresses {
            stage.reuse_addresses();
        }
        stage
    }

    /// cluster-autoscaler's loop, which goes on whoever answers.
    pub(super) fn run_autoscaler(&mut self) {
        let Some(autoscaler) = self.autoscaler.clone() else { return };
        let reached = Arc::clone(&self.reached);
        self.tasks.spawn(async move {
            let connect = || {
                let client = reached.lock().clone();
                client.unwrap_or_else(nobody)
            };
            autoscaler.run(connect).await;
        });
    }
}

/// A client of nobody.
fn nobody() -> Client {
    let refuse = tower::service_fn(|_: http::Uri| async {
        Err::<hyper_util::rt::TokioIo<tokio::io::DuplexStream>, _>(std::io::Error::from(
            std::io::ErrorKind::ConnectionRefused,
        ))
    });
    Client::new(Endpoint::from_static("http://nobody").connect_with_connector_lazy(refuse))
}

impl Stage {
    /// cluster-autoscaler is killed, with whatever it was doing, and started again.
    pub(super) async fn restart_autoscaler(&mut self) {
        self.tasks.shutdown().await;
        if let (Some(old), Some(version)) = (self.autoscaler.take(), self.scenario.autoscaler) {
            self.scanned.extend(old.journal());
            self.autoscaler = Some(autoscaler(&self.world, version, self.scenario.is_hasty));
            self.run_autoscaler();
        } else {
            // Its first act, which it does here too where it does nothing else.
            let _ = tokio::time::timeout(CLEANS_UP, clean_up(&self.world, &ca_drain::Flags::default())).await;
        }
    }
}

fn autoscaler(world: &World, version: scenario::Autoscaler, is_hasty: bool) -> Autoscaler {
    let version = match version {
        scenario::Autoscaler::Old => Version::V1_30,
        scenario::Autoscaler::New => Version::Core2026,
    };
    let usual = Options::of(version);
    let max_node_provision_time = if is_hasty { HASTY } else { usual.max_node_provision_time };
    Autoscaler::new(world, Options { max_node_provision_time, ..usual })
}

fn replicas(world: &World, scenario: &Scenario) -> Vec<Replica> {
    let flags = &scenario.program;
    let queue_urls = if flags.has_queue {
        let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
        world.aws.send_events_to(&queue);
        vec![queue]
    } else {
        Vec::new()
    };
    let is_stopped = |n: u32| {
        let stops =
            |what: &What| matches!(what, What::Program(Blow::Pause(_), place) if *place == n as usize);
        scenario.happenings.iter().any(|happening| stops(&happening.what))
    };
    let replica = |n: u32| {
        let pod = Some(format!("ebbtide-{n}"));
        let election = Some(Candidate { lease: "ebbtide".to_owned(), pod });
        Replica {
            config: Config { queue_urls: queue_urls.clone(), election, ..configured(flags) },
            program: None,
            switch: is_stopped(n).then(|| Switch::new(false)),
        }
    };
    (0..flags.replicas).map(replica).collect()
}

fn configured(flags: &Flags) -> Config {
    let base = config();
    let selectors = if flags.manages_hooks {
        base.selectors.clone().of_cluster(Some("prod".to_owned()))
    } else {
        base.selectors.clone()
    };
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    let flush = seconds(flags.flush);
    Config {
        selectors,
        managed_hooks: flags.manages_hooks.then_some(Managed { heartbeat: seconds(MANAGED), retain: true }),
        scale_in: Settings {
            drain_timeout: flags.drain_timeout.map(seconds),
            on_deadline: if flags.waits_at_deadline { OnDeadline::Wait } else { OnDeadline::Delete },
            patience: flags.patience.map(seconds),
            flush: Flush { default: flush, longest: flush + seconds(120), namespaces: BTreeSet::new() },
            on_rebalance: if flags.drains_on_rebalance { Treatment::Drain } else { Treatment::Cordon },
            ..Settings::default()
        },
        ..base
    }
}

fn spec(group: &Group) -> GroupSpec {
    let mut template = TemplateData::of("m5.large");
    if group.is_spot {
        template = template.spot();
    }
    let weight = if group.weighs { 2 } else { 1 };
    let mut spec = GroupSpec::named(group.name)
        .size(group.min * weight, group.max * weight, group.nodes * weight)
        .zones(ZONES.into_iter().take(group.zones))
        .template_data(template)
        .tag(TAG, "true")
        .deregistering_for(u64::from(group.deregisters))
        .already_running();
    if group.weighs {
        spec = spec.mixed(MixedSpec::weighing([("m5.large", weight)]));
    }
    if let Some(heartbeat) = group.hook {
        spec = spec.hook(HookSpec::terminating(OURS).heartbeat(u64::from(heartbeat)));
    }
    if let Some(holds) = group.foreign {
        let theirs = HookSpec::terminating(THEIRS).heartbeat(u64::from(holds));
        spec = spec.hook(theirs.by_default(HookResult::Continue));
    }
    if group.retains {
        spec = spec.retaining();
    }
    if group.warm_pool {
        spec = spec.warm_pool(WarmPoolSpec::stopped().prepared(group.nodes * weight + 1).reusing());
    }
    if group.launches_first { spec.launching_first() } else { spec }
}

/// Adds a workload with its budget.
pub(super) fn add(cluster: &Cluster, workload: &Workload, pool: Option<&str>) {
    let (name, pods) = (workload.name.as_str(), workload.pods);
    let allowed = match workload.budget {
        Some(Budget::Blocks) => Some(0),
        Some(Budget::Unavailable(n)) => Some(n),
        None => None,
    };
    if let Some(allowed) = allowed {
        cluster.add(budget(name).max_unavailable(allowed));
    }
    if workload.is_postponed {
        postpone(cluster, workload);
    }
    match workload.kind {
        Kind::Replicas => {
            let set = made(replica_set(name, pods), workload);
            cluster.add(match pool {
                Some(pool) => set.node_selector(POOL, pool),
                None => set,
            });
        }
        Kind::Stateful => {
            cluster.add(made(stateful_set(name, pods), workload));
        }
        Kind::Job(runs) => {
            cluster.add(made(job(name, pods).runs_for(runs), workload));
        }
        Kind::Bare => {
            for n in 0..pods {
                let one = pod(format!("{name}-{n}").as_str()).label("app", name);
                let one = if workload.has_finalizer { one.finalizer(FINALIZER) } else { one };
                cluster.add(made(one, workload));
            }
        }
        Kind::Daemon { evict } => {
            let set = made(daemon_set(name), workload).tolerates("", "");
            cluster.add(if evict { set.annotation("ebbtide/daemonset", "evict") } else { set });
        }
    }
}

/// Has a webhook put off each eviction of a workload's pods.
pub(super) fn postpone(cluster: &Cluster, workload: &Workload) {
    cluster.postpone(Verb::Create, "pods/eviction", workload.name.as_str());
}

/// What holds a pod's object until somebody takes it off.
pub(super) const FINALIZER: &str = "example.com/held";

fn made<K>(mut pods: Pods<K>, workload: &Workload) -> Pods<K> {
    pods = pods.grace(workload.grace).exits_after(workload.exits).cpu_millis(workload.cpu);
    if let Some(priority) = workload.priority {
        pods = pods.priority(priority);
    }
    if workload.is_patient {
        pods = pods.annotation("ebbtide/drain", "wait");
    }
    if workload.tolerates_all {
        pods = pods.tolerates_everything();
    }
    if workload.pre_stop > 0 {
        pods = pods.pre_stop(workload.pre_stop);
    }
    if let Some(order) = workload.order {
        pods = pods.annotation("ebbtide/drain-order", &order.to_string());
    }
    pods
}
