//! What `check` looks at, and how it is read. Nothing is decided here, and nothing changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;

use super::rights::{Need, needed};
use crate::aws::{AutoScalingGroup, Aws, AwsError, Lifecycle, Operation, QueueAttributes};
use crate::clock::Clock;
use crate::cluster::{ApiError, Cluster, DeployedContainer, LeaseHolder, Nodes, PodName, PodView, Right};
use crate::commands::groups::{self, Groups};
use crate::config::{Config, PriceSource};
use crate::groups::Group;
use crate::groups::discovery::Selection;
use crate::groups::hooks::TerminatingHooks;
use crate::groups::protection::PROTECTION_TAG;
use crate::k8s::{GroupName, InstanceId, NodeName, names};
use crate::prices::{System, listed_as, product};
use crate::provider::{Tls, TlsOptions, TlsProblem};
use crate::scale_in::{is_patient, unreadable_wishes};
use crate::telemetry::chain;
use crate::template::devices::lacks_its_gpu;

/// Questions under way at once.
const AT_ONCE: usize = 8;

/// Everything that is looked at.
#[derive(Debug)]
pub struct Facts {
    /// Rights in the cluster.
    pub rights: Vec<RightFact>,
    /// Calls that AWS has denied.
    pub denied: Vec<Operation>,
    /// Who AWS says we are, as an ARN; `None`: it does not.
    pub identity: Option<String>,
    /// The calls that change something at AWS and that cannot be tried, as far as this configuration makes them.
    pub writes: Vec<Operation>,
    /// Why the groups could not be read.
    pub aws_error: Option<String>,
    /// Whether AWS would let an instance be tagged; `None`: there is none to try it on.
    pub may_tag: Option<bool>,
    /// The groups.
    pub groups: Vec<GroupFacts>,
    /// What the flags that select them have come to beside.
    pub selection: Selection,
    /// Nodes whose provider id does not say of which machine they are.
    pub unidentified: Vec<NodeName>,
    /// Nodes of no group that are labelled for a GPU and offer none.
    pub without_their_gpus: Vec<NodeName>,
    /// What came of reading Nodes and pods for the longest graces.
    pub graces: Result<(), String>,
    /// What came of asking for load balancers' targets, where nodes wait for them.
    pub load_balancers: Result<(), AwsError>,
    /// What came of asking for prices, where they are told.
    pub prices: Result<(), AwsError>,
    /// The queues of `--queue-url`.
    pub queues: Vec<QueueFacts>,
    /// What Deployments run.
    pub autoscalers: Autoscalers,
    /// The name of our Lease; `None`: no election.
    pub lease_name: Option<String>,
    /// Our Lease.
    pub lease: Result<LeaseHolder, String>,
    /// All Leases; `None`: they may not be listed.
    pub leases: Option<Vec<LeaseHolder>>,
    /// What is wrong with the TLS files, or soon will be.
    pub tls: Vec<TlsProblem>,
    /// Name of our hook.
    pub lifecycle_hook: String,
    /// The flush time.
    pub flush: Duration,
    /// `--drain-timeout`.
    pub drain_timeout: Option<Duration>,
}

impl Facts {
    /// The groups that the flags select; `None`: AWS has not said.
    pub(super) fn selected(&self) -> Option<Vec<GroupName>> {
        let names = self.groups.iter().map(|group| group.asg.name.clone());
        let selected = names.filter(|name| !self.selection.left_behind.contains(name));
        self.aws_error.is_none().then(|| selected.collect())
    }
}

/// A right, and whether we have it.
#[derive(Debug)]
pub struct RightFact {
    /// In words: `create pods/eviction`.
    pub right: String,
    /// How much it is needed.
    pub need: Need,
    /// The API server's word.
    pub allowed: Result<bool, String>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct GroupFacts {
    /// As AWS describes it.
    pub asg: AutoScalingGroup,
    /// Its terminating hooks; `None`: not known.
    pub hooks: Option<TerminatingHooks>,
    /// It has instances in service, and no Node is known to be of one.
    pub is_without_nodes: bool,
    /// Why it has no template.
    pub template_error: Option<String>,
    /// The longest grace of a workload on its nodes, if there is one and could be read.
    pub longest_grace: Option<(Duration, PodName)>,
    /// Pods on its nodes that ask only ebbtide, not cluster-autoscaler, not to be disturbed.
    pub asking_us_alone: Vec<PodName>,
    /// Pods on its nodes with annotations that mean nothing, each with one of those.
    pub unreadable: Vec<(PodName, &'static str)>,
}

/// A queue of `--queue-url`.
#[derive(Debug)]
pub struct QueueFacts {
    /// Its URL.
    pub url: String,
    /// How it is set up.
    pub attributes: Result<QueueAttributes, AwsError>,
}

/// What Deployments run.
#[derive(Debug)]
pub enum Autoscalers {
    /// Their containers.
    Seen(Vec<DeployedContainer>),
    /// They may not be listed.
    Unknown(String),
}

/// What is wrong with the TLS files, or soon will be. A file that both addresses have is named once.
pub(super) fn tls(config: &Config, clock: &Clock) -> Vec<TlsProblem> {
    let load = |options: &TlsOptions| {
        Tls::load(options.clone(), clock.clone()).map_or_else(|problems| problems, |tls| tls.ending())
    };
    let same = |options: &&TlsOptions| config.tls.as_ref().is_some_and(|tls| tls.cert == options.cert);
    let of_expander = config.expander_listen.as_ref().map(|(_, options)| options);
    config.tls.iter().chain(of_expander.filter(|options| !same(options))).flat_map(load).collect()
}

/// Reads everything. What cannot be read is a fact as well.
pub async fn gather(cluster: &Cluster, aws: &Aws, config: &Config, clock: &Clock) -> Facts {
    let lease_name = config.election.as_ref().map(|candidate| candidate.lease.clone());
    // Boxed: the futures are large.
    let (rights, pods, deployed, lease, leases) = futures::join!(
        Box::pin(rights(cluster, config)),
        Box::pin(of_pods(cluster, clock)),
        Box::pin(cluster.list_deployed()),
        Box::pin(cluster.read_lease(lease_name.as_deref().unwrap_or_default())),
        Box::pin(cluster.list_leases()),
    );
    // Without the Nodes nothing but the groups of scale-ins under way is missing, and what is said of provider ids.
    let nodes = Box::pin(groups::nodes(cluster)).await.unwrap_or_default();
    let unidentified = nodes.all().into_iter().filter(|node| node.is_unidentified);
    let unidentified = unidentified.map(|node| node.name.clone()).collect();
    let read = Groups::read(aws, config, Arc::clone(&nodes), clock).await;
    let (groups, selection, aws_error) = match &read {
        Ok(read) => (Box::pin(described(read, &pods, &nodes)).await, read.selection.clone(), None),
        Err(error) => (Vec::new(), Selection::default(), Some(chain(error))),
    };
    let without_their_gpus = read.as_ref().map(|read| without_their_gpus(read, &nodes)).unwrap_or_default();
    let may_tag = Box::pin(may_tag(aws, &groups)).await;
    if let Some(group) = groups.first() {
        // Asked for by `serve` when instances are missing: whether it may be asked for is known now.
        let _ = Box::pin(aws.scaling_activities(&group.asg.name, clock.now(), 1, |_| false)).await;
        let _ = Box::pin(aws.tagged_instances(PROTECTION_TAG)).await;
    }
    let load_balancers = if config.scale_in.wait_for_load_balancers { targets(aws).await } else { Ok(()) };
    let prices = match config.prices {
        Some(PriceSource::Aws) => Box::pin(some_prices(aws, clock)).await,
        _ => Ok(()),
    };
    let queues = queues(aws, &config.queue_urls).await;
    let identity = Box::pin(aws.identity()).await.ok().flatten();
    Facts {
        identity: identity.map(|identity| identity.arn),
        writes: writes(config),
        rights,
        denied: aws.calls().denied(),
        aws_error,
        may_tag,
        groups,
        selection,
        unidentified,
        without_their_gpus,
        graces: pods.map(drop).map_err(|error| chain(&error)),
        load_balancers,
        prices,
        queues,
        autoscalers: deployed.map_or_else(|error| Autoscalers::Unknown(chain(&error)), Autoscalers::Seen),
        lease_name,
        lease: lease.map_err(|error| chain(&error)),
        leases: leases.ok(),
        tls: tls(config, clock),
        lifecycle_hook: config.lifecycle_hook.clone(),
        flush: config.scale_in.flush.default,
        drain_timeout: config.scale_in.drain_timeout,
    }
}

async fn rights(cluster: &Cluster, config: &Config) -> Vec<RightFact> {
    let all = needed(config, cluster.own_namespace());
    let asked = stream::iter(all).map(|needed| async move {
        let allowed = cluster.may(&needed.right).await.map_err(|error| chain(&error));
        RightFact { right: in_words(&needed.right), need: needed.need, allowed }
    });
    asked.buffered(AT_ONCE).collect().await
}

fn in_words(right: &Right<'_>) -> String {
    let Right { verb, resource, subresource, namespace, name, .. } = right;
    let subresource = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let namespace = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    format!("{verb} {resource}{subresource}{name}{namespace}")
}

/// What is looked at of the pods on each instance's nodes.
type OfPods = BTreeMap<InstanceId, Pods>;

/// The workloads of a node.
#[derive(Debug)]
struct Pods {
    longest_grace: Option<(Duration, PodName)>,
    /// Those that ask us not to be disturbed, and cluster-autoscaler nothing.
    asking_us_alone: Vec<PodName>,
    /// Those with annotations that mean nothing, each with one of those; DaemonSet pods as well.
    unreadable: Vec<(PodName, &'static str)>,
}

impl Pods {
    fn of(pods: Vec<PodView>, now: Timestamp) -> Self {
        let running: Vec<_> = pods.into_iter().filter(|pod| !pod.mirror && !pod.finished).collect();
        let unreadable = running.iter().flat_map(|pod| {
            unreadable_wishes(pod).into_iter().map(|annotation| (pod.name.clone(), annotation))
        });
        let unreadable = unreadable.collect();
        let workloads: Vec<_> = running.into_iter().filter(|pod| pod.daemon.is_none()).collect();
        let grace = |pod: &PodView| (Duration::from_secs(pod.grace_seconds.unsigned_abs()), pod.name.clone());
        let asks_us_alone =
            |pod: &&PodView| is_patient(pod, now) && pod.annotation(names::SAFE_TO_EVICT) != Some("false");
        Self {
            longest_grace: workloads.iter().map(grace).max(),
            asking_us_alone: workloads.iter().filter(asks_us_alone).map(|pod| pod.name.clone()).collect(),
            unreadable,
        }
    }
}

async fn of_pods(cluster: &Cluster, clock: &Clock) -> Result<OfPods, ApiError> {
    let (nodes, pods) = futures::try_join!(cluster.list_nodes(), cluster.list_pods())?;
    let now = clock.cluster();
    let instances: BTreeMap<NodeName, InstanceId> =
        nodes.into_iter().filter_map(|node| Some((node.name, node.instance?))).collect();
    let of = |(node, pods)| Some((instances.get::<NodeName>(&node)?.clone(), Pods::of(pods, now)));
    Ok(pods.into_iter().filter_map(of).collect())
}

async fn described(read: &Groups, pods: &Result<OfPods, ApiError>, nodes: &Nodes) -> Vec<GroupFacts> {
    let all = read.snapshot.groups.values().map(|group| async move {
        let Group { asg, template, .. } = &**group;
        let pods = pods.as_ref().ok();
        let is_without_nodes = asg.instances.iter().any(|one| one.lifecycle == Lifecycle::InService)
            && asg.instances.iter().all(|one| nodes.of_instance(&one.id).is_empty());
        let pods: Vec<&Pods> = asg.instances.iter().filter_map(|one| pods?.get(&one.id)).collect();
        GroupFacts {
            asg: AutoScalingGroup::clone(asg),
            hooks: read.hooks.of_now(&asg.name).await.ok(),
            is_without_nodes,
            template_error: template.as_ref().and_then(|it| it.as_ref().err().map(ToString::to_string)),
            longest_grace: pods.iter().filter_map(|pods| pods.longest_grace.clone()).max(),
            asking_us_alone: pods.iter().flat_map(|pods| pods.asking_us_alone.clone()).collect(),
            unreadable: pods.iter().flat_map(|pods| pods.unreadable.clone()).collect(),
        }
    });
    stream::iter(all).buffered(AT_ONCE).collect().await
}

fn without_their_gpus(read: &Groups, nodes: &Nodes) -> Vec<NodeName> {
    let is_of_a_group = |id: &InstanceId| read.snapshot.instance(id).is_some();
    let all = nodes.all().into_iter();
    let without =
        all.filter(|node| lacks_its_gpu(node) && !node.instance.as_ref().is_some_and(is_of_a_group));
    without.map(|node| node.name.clone()).collect()
}

/// The reads of `--wait-for-load-balancers`, on one target group: the rights to all are the same.
async fn targets(aws: &Aws) -> Result<(), AwsError> {
    if let Some(group) = Box::pin(aws.instance_target_groups()).await?.first() {
        let (targets, delay) =
            futures::join!(Box::pin(aws.targets(group)), Box::pin(aws.deregistration_delay(group)));
        targets?;
        delay?;
    }
    Ok(())
}

/// Any prices: the rights to all are the same.
async fn some_prices(aws: &Aws, clock: &Clock) -> Result<(), AwsError> {
    let any = ["m5.large".to_owned()];
    let (spot, listed) = futures::join!(
        Box::pin(aws.spot_prices(&any, product(System::default()), clock.now())),
        Box::pin(async {
            if aws.has_price_list() {
                aws.on_demand_price(&any[0], listed_as(System::default())).await
            } else {
                Ok(None)
            }
        }),
    );
    spot?;
    listed.map(drop)
}

async fn queues(aws: &Aws, urls: &[String]) -> Vec<QueueFacts> {
    let all = urls.iter().map(|url| async move {
        QueueFacts { url: url.clone(), attributes: Box::pin(aws.queue_attributes(url)).await }
    });
    stream::iter(all).buffered(AT_ONCE).collect().await
}

/// The calls that change something at AWS, save tags, for which EC2 has a dry run.
fn writes(config: &Config) -> Vec<Operation> {
    let is_made = |operation: &Operation| match operation {
        Operation::PutLifecycleHook => config.managed_hooks.is_some(),
        Operation::UpdateAutoScalingGroup => config.managed_hooks.is_some_and(|managed| managed.retain),
        operation => operation.changes() && !operation.action().starts_with("ec2:"),
    };
    Operation::ALL.iter().copied().filter(is_made).collect()
}

/// Asks EC2, by a dry run on an instance of ours.
async fn may_tag(aws: &Aws, groups: &[GroupFacts]) -> Option<bool> {
    let instance = groups.iter().flat_map(|group| &group.asg.instances).next()?;
    aws.may_tag_instance(&instance.id, PROTECTION_TAG).await.ok()
}
