//! The worlds of `ebbtide simulate --listen` at their beginning: two groups of nodes with what runs on them, a scale-in that has ended,
//! and one that a budget holds up.
//!
//! What has happened by then is played on virtual time, so that it takes no time; see [`Cast::begin`].

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::config::Config;
use crate::k8s::names::RECORD;
use crate::provider::listen::Listener;
use crate::sim::autoscaler;
use crate::sim::aws::{GroupSpec, HookSpec, QueueSpec};
use crate::sim::cluster::{budget, daemon_set, pod, replica_set};
use crate::sim::program::{Program, TAG, config};
use crate::sim::world::{POOL, World};

/// How long before now the worlds begin: longer than what happens in them by now takes.
const HISTORY: SignedDuration = SignedDuration::from_mins(15);

/// Limit of each part of the history.
const LIMIT: Duration = Duration::from_mins(5);

/// How long ago cluster-autoscaler wanted the node gone that a budget holds up.
const BLOCKED_SINCE: SignedDuration = SignedDuration::from_mins(4);

/// The tag that tells cluster-autoscaler of the label that node selectors name.
const POOL_TAG: &str = "k8s.io/cluster-autoscaler/node-template/label/pool";

/// Lets EventBridge send to the queue.
const QUEUE_POLICY: &str = r#"{ "Statement": [{ "Effect": "Allow", "Principal": { "Service": "events.amazonaws.com" },
    "Action": "sqs:SendMessage", "Resource": "arn:aws:sqs:us-east-1:123456789012:ebbtide" }] }"#;

/// The worlds, and the program on them.
pub(super) struct Cast {
    pub(super) world: Arc<World>,
    pub(super) program: Program,
    /// URL of the queue with AWS's notices.
    pub(super) queue: String,
    _tasks: JoinSet<()>,
}

impl Cast {
    /// Plays what has happened by now, on the paused clock of this runtime. Afterwards the worlds' clock reads what the
    /// machine's does, and the caller lets it run.
    pub(super) async fn begin(seed: u64, listener: Listener) -> anyhow::Result<Self> {
        let wall = Clock::system();
        let beginning = wall.wall() - HISTORY;
        let world = Arc::new(World::on(Clock::starting_at(beginning), seed));
        let queue = furnish(&world);
        let program =
            Program::listening(&world, Config { queue_urls: vec![queue.clone()], ..config() }, listener);
        let client = program.client();
        let mut tasks = JoinSet::new();
        let stage = Arc::clone(&world);
        let connect = client.clone();
        tasks.spawn(async move { autoscaler::run(&stage, || connect.clone()).await });
        let cast = Self { world, program, queue, _tasks: tasks };
        cast.until("every pod runs", pods_run).await?;
        cast.end_a_node().await?;
        cast.pass_until(wall.wall() - BLOCKED_SINCE).await?;
        let node = cast.node_with("checkout")?;
        cast.world.cluster.add(pod("training").on(&node.name_any()).annotation("ebbtide/drain", "wait"));
        autoscaler::delete_node(&mut cast.program.client(), "web", &node).await?;
        cast.pass_until(wall.wall()).await?;
        Ok(cast)
    }

    /// A node that a person wanted gone has left, and cluster-autoscaler has bought another for what had run on it.
    async fn end_a_node(&self) -> anyhow::Result<()> {
        let name = self.node_with("render")?.name_any();
        let patch = json!({ "metadata": { "annotations": { RECORD: "now" } } });
        let nodes: Api<Node> = Api::all(self.world.cluster.client());
        nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        self.until("a node has gone", |world| !world.cluster.has_node(&name)).await?;
        self.until("every pod runs again", pods_run).await
    }

    async fn until(&self, what: &str, holds: impl FnMut(&World) -> bool) -> anyhow::Result<()> {
        anyhow::ensure!(self.world.until(LIMIT, holds).await, "{what}: not within {LIMIT:?}");
        Ok(())
    }

    /// Lets time pass up to `moment`.
    async fn pass_until(&self, moment: Timestamp) -> anyhow::Result<()> {
        anyhow::ensure!(self.world.clock.now() <= moment, "the history took too long");
        self.world.clock.sleep_until(moment).await;
        Ok(())
    }

    /// A node that runs a pod of this ReplicaSet and does not leave.
    pub(super) fn node_with(&self, set: &str) -> anyhow::Result<Node> {
        let of_set = |pod: &Pod| {
            pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).is_some_and(|app| app == set)
        };
        let stays = |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable != Some(true));
        let cluster = &self.world.cluster;
        let mut nodes = cluster.list::<Node>().into_iter().filter(stays);
        let node = nodes.find(|node| cluster.pods_on(&node.name_any()).iter().any(of_set));
        node.with_context(|| format!("a pod of {set} runs"))
    }
}

/// Puts groups, workloads, budgets and a queue into the worlds. Returns the queue's URL.
fn furnish(world: &World) -> String {
    world.aws.delay(Duration::from_millis(10), Duration::from_millis(40));
    let group = |name: &str, size: u32| {
        let group =
            GroupSpec::named(name).size(0, 6, size).zones(["us-east-1a", "us-east-1b"]).template("m5.large");
        group.tag(TAG, "true").tag(POOL_TAG, name).already_running()
    };
    world.aws.add_group(group("web", 4).hook(HookSpec::terminating("ebbtide").heartbeat(300)).retaining());
    world.aws.add_group(group("batch", 2));
    world.aws.add_queue(QueueSpec::named("ebbtide-dead"));
    let queue = QueueSpec::named("ebbtide").policy(QUEUE_POLICY).dead_letters("ebbtide-dead", 1_000);
    let queue = world.aws.add_queue(queue.retention(Duration::from_hours(14 * 24)));
    world.aws.send_events_to(&queue);
    world
        .cluster
        .add(daemon_set("kube-system/logs").log_shipper().ship_lag(2).cpu_millis(50).tolerates("", ""))
        .add(daemon_set("kube-system/dns").cpu_millis(50).annotation("ebbtide/daemonset", "evict"))
        .add(replica_set("shop", 3).node_selector(POOL, "web").cpu_millis(500).exits_after(5))
        .add(budget("shop").min_available(2))
        .add(replica_set("checkout", 2).node_selector(POOL, "web").cpu_millis(300).exits_after(10))
        .add(budget("checkout").min_available(2))
        .add(
            replica_set("render", 2).node_selector(POOL, "batch").cpu_millis(1_200).grace(60).exits_after(10),
        );
    queue
}

/// Whether every pod runs, and there are some.
fn pods_run(world: &World) -> bool {
    let runs = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let pods = world.cluster.list::<Pod>();
    pods.len() >= 7 && pods.iter().all(runs)
}
