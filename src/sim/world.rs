//! Both worlds together. Machines that EC2 starts boot and join the cluster. A machine that shuts down ends its containers
//! at once, and its Node when it is terminated. A controller registers nodes with load balancers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use super::aws::{Aws, Behaviour, Entry, Event, InstanceSnapshot, Power};
use super::cluster::{Cluster, NodeSpec, Timing, node};
use crate::clock::{Clock, later};

/// When every simulation begins.
const BEGINNING: &str = "2026-01-01T00:00:00Z";

/// From a running machine to its Node.
const JOIN: Duration = Duration::from_secs(10);

/// How far the clocks of machines are off that programs run on: none is set right.
const CLOCKS_OFF: [SignedDuration; 2] =
    [SignedDuration::from_millis(-3_661_250), SignedDuration::from_millis(7_322_750)];

/// How long the controller of load balancers takes to follow a change.
const BALANCED_AFTER: Duration = Duration::from_secs(2);

/// The label that takes a node out of load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Label with the name of a node's group, for node selectors.
pub const POOL: &str = "pool";

/// Changes the Nodes that a group's machines register.
type Kubelet = Box<dyn Fn(NodeSpec) -> NodeSpec + Send>;

/// The same, by group.
type Kubelets = Arc<Mutex<BTreeMap<String, Kubelet>>>;

/// AWS and a cluster on its instances. Dropping it ends its tasks.
pub struct World {
    /// AWS.
    pub aws: Aws,
    /// The cluster.
    pub cluster: Cluster,
    /// The clock of both.
    pub clock: Clock,
    kubelets: Kubelets,
    /// On how many machines programs have been started.
    machines: AtomicUsize,
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    /// An empty world, as harsh as the real one. The same seed gives the same world, and the same jitter in a program on
    /// this thread.
    pub fn new(seed: u64) -> Self {
        let world = Self::plain(seed);
        world.cluster.set_timing(Timing::real());
        world.aws.behave(Behaviour::HARSH);
        world
    }

    /// An empty world that is easy to follow: quick, without harsh behaviour.
    pub fn plain(seed: u64) -> Self {
        Self::on(Clock::starting_at(BEGINNING.parse().unwrap_or(Timestamp::UNIX_EPOCH)), seed)
    }

    /// The same on this clock.
    pub fn on(clock: Clock, seed: u64) -> Self {
        fastrand::seed(seed);
        let (aws, cluster) = (Aws::new(clock.clone(), seed), Cluster::new(clock.clone(), seed));
        cluster.set_timing(Timing::brisk());
        let mut tasks = JoinSet::new();
        let kubelets = Kubelets::default();
        let (events, joins) = (aws.subscribe(), (aws.clone(), cluster.clone(), Arc::clone(&kubelets)));
        let runs = (aws.clone(), cluster.clone());
        tasks.spawn(async move { runs.0.run().await });
        tasks.spawn(async move { runs.1.run().await });
        tasks.spawn(async move { join(events, &joins.0, &joins.1, &joins.2).await });
        let balanced = (aws.clone(), cluster.clone());
        tasks.spawn(async move { balance(&balanced.0, &balanced.1).await });
        Self { aws, cluster, clock, kubelets, machines: AtomicUsize::new(0), _tasks: tasks }
    }

    /// The clock of one more machine, which is an hour behind, or two ahead.
    pub(super) fn clock_of_a_machine(&self) -> Clock {
        let off = CLOCKS_OFF[self.machines.fetch_add(1, Ordering::Relaxed) % CLOCKS_OFF.len()];
        Clock::starting_at(later(self.clock.now(), off))
    }

    /// Sets how a group's nodes register from now on.
    pub fn kubelets(&self, group: &str, configured: impl Fn(NodeSpec) -> NodeSpec + Send + 'static) {
        lock(&self.kubelets).insert(group.to_owned(), Box::new(configured));
    }

    /// The Node of an instance, if it has joined.
    pub fn node_of(&self, instance: &str) -> Option<String> {
        let name = self.aws.instance(instance)?.private_dns_name();
        self.cluster.node(&name).map(|_| name)
    }

    /// Waits until `holds` is true, at most `limit`. Returns whether it became true.
    pub async fn until(&self, limit: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let (mut aws, mut cluster) = (self.aws.changed(), self.cluster.changed());
        let met = async {
            while !holds(self) {
                tokio::select! {
                    biased;
                    changed = aws.changed() => if changed.is_err() { return },
                    changed = cluster.changed() => if changed.is_err() { return },
                }
            }
        };
        tokio::time::timeout(limit, met).await.is_ok()
    }
}

/// Applies instances' events to the cluster.
async fn join(mut events: UnboundedReceiver<Entry>, aws: &Aws, cluster: &Cluster, kubelets: &Kubelets) {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    // The instance that has a Node's name now: an address is reused after its instance shuts down.
    let mut bearers: BTreeMap<String, String> = BTreeMap::new();
    while let Some(entry) = events.recv().await {
        let bearer =
            |instance: &String| names.get(instance).filter(|name| bearers.get(*name) == Some(instance));
        match entry.what {
            Event::Powered { group, instance, power: Power::Running } => {
                let Some(snapshot) = aws.instance(&instance) else { continue };
                let name = names.entry(instance.clone()).or_insert_with(|| snapshot.private_dns_name());
                let before = bearers.insert(name.clone(), instance.clone());
                if before == Some(instance) && cluster.has_node(name) {
                    cluster.revive(name);
                    continue;
                }
                let spec = spec(&group, &snapshot);
                let spec = match lock(kubelets).get(&group) {
                    Some(configured) => configured(spec),
                    None => spec,
                };
                cluster.register_node(spec);
            }
            Event::Powered { instance, power, .. } if power != Power::Pending => {
                if let Some(name) = bearer(&instance) {
                    switch_off(cluster, name);
                    if power == Power::Stopped {
                        cluster.stopped(name);
                    }
                }
            }
            Event::Impaired { instance, .. } => {
                if let Some(name) = bearer(&instance) {
                    switch_off(cluster, name);
                }
            }
            Event::Rebooted { instance, .. } => {
                if let Some(name) = bearer(&instance) {
                    cluster.crash(name);
                    cluster.revive(name);
                }
            }
            Event::Terminated { instance, .. } => {
                if let Some(name) = bearer(&instance) {
                    cluster.power_off(name);
                }
                if let Some(name) = names.remove(&instance)
                    && bearers.get(&name) == Some(&instance)
                {
                    bearers.remove(&name);
                }
            }
            _ => {}
        }
    }
}

/// Registers the instances of Nodes with target groups and deregisters those that are excluded, as the AWS Load Balancer Controller
/// does with target type `instance`.
///
/// <https://github.com/kubernetes-sigs/aws-load-balancer-controller/blob/main/pkg/k8s/node_utils.go>
async fn balance(aws: &Aws, cluster: &Cluster) {
    let mut changed = cluster.changed();
    while changed.changed().await.is_ok() {
        if !aws.has_target_groups() {
            continue;
        }
        tokio::time::sleep(BALANCED_AFTER).await;
        for name in cluster.node_names() {
            let Some(node) = cluster.node(&name) else { continue };
            let is_excluded = node.metadata.labels.is_some_and(|labels| labels.contains_key(EXCLUDED));
            let provider_id = node.spec.and_then(|spec| spec.provider_id).unwrap_or_default();
            if let Some(instance) = provider_id.rsplit('/').next() {
                aws.balance(instance, !is_excluded);
            }
        }
    }
}

/// Ends everything on a machine. Its Node, if it joined, stays while the instance exists.
fn switch_off(cluster: &Cluster, node: &str) {
    if cluster.has_node(node) {
        cluster.crash(node);
    } else {
        cluster.power_off(node);
    }
}

fn lock(kubelets: &Kubelets) -> MutexGuard<'_, BTreeMap<String, Kubelet>> {
    kubelets.lock()
}

fn spec(group: &str, instance: &InstanceSnapshot) -> NodeSpec {
    let (cpu, memory_mib) = match instance.instance_type.as_str() {
        "m5.xlarge" => (4, 15_000),
        _ => (2, 7_000),
    };
    node(&instance.private_dns_name())
        .provider_id(&format!("aws:///{}/{}", instance.zone, instance.id))
        .label(POOL, group)
        .label("topology.kubernetes.io/zone", &instance.zone)
        .label("node.kubernetes.io/instance-type", &instance.instance_type)
        .cpu(cpu)
        .memory_mib(memory_mib)
        .pods(29)
        .boots_after(JOIN.as_secs())
}
