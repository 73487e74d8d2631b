//! The scenes of `ebbtide simulate`, on a world with two groups: `web` with a lifecycle hook, `batch` without.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::witness::{Witness, machine};
use crate::cluster::Candidate;
use crate::config::Config;
use crate::k8s::names::RECORD;
use crate::scale_in::record::{Phase, read};
use crate::sim::aws::{GroupSpec, HookSpec, LifecycleState, QueueSpec, TerminationCause};
use crate::sim::cluster::{budget, daemon_set, replica_set};
use crate::sim::program::{Program, TAG, config};
use crate::sim::world::{POOL, World};
use crate::sim::{autoscaler, report};

/// Time limit of anything in a scene, in simulated time.
const LIMIT: Duration = Duration::from_mins(30);

/// When the program is killed: workloads have been asked to go and are still exiting.
const INTO_THE_DRAIN: Duration = Duration::from_secs(15);

/// How long the program is down after it is killed.
const DOWN: Duration = Duration::from_secs(3);

/// The Lease of the program.
const LEASE: &str = "ebbtide";

/// How long a second replica has to get ready before the first is killed.
const READY: Duration = Duration::from_secs(5);

/// A scenario under way.
pub(super) struct Scenario {
    pub(super) world: Arc<World>,
    witness: Arc<Witness>,
    config: Config,
    /// The replica that leads.
    program: Option<Program>,
    /// How the stand-in for cluster-autoscaler connects to the program.
    reached: Arc<Mutex<Option<Connect>>>,
    _tasks: JoinSet<()>,
}

type Connect = crate::provider::proto::cloud_provider_client::CloudProviderClient<tonic::transport::Channel>;

impl Scenario {
    /// The world before the first scene: two empty groups, and pending pods.
    pub(super) fn begin(seed: u64, witness: Arc<Witness>) -> Self {
        let world = Arc::new(World::plain(seed));
        let mut tasks = JoinSet::new();
        let (watcher, stage) = (Arc::clone(&witness), Arc::clone(&world));
        tasks.spawn(async move { watcher.watch(&stage).await });
        world.aws.delay(Duration::from_millis(40), Duration::from_millis(60));
        let group = |name: &str| {
            let label = format!("k8s.io/cluster-autoscaler/node-template/label/{POOL}");
            let group = GroupSpec::named(name).size(0, 6, 0).zones(["us-east-1a"]).template("m5.large");
            group.tag(TAG, "true").tag(label, name)
        };
        world.aws.add_group(group("web").hook(HookSpec::terminating("ebbtide").heartbeat(60)).retaining());
        world.aws.add_group(group("batch"));
        world
            .cluster
            .add(daemon_set("logs").log_shipper().ship_lag(2).cpu_millis(50).tolerates("", ""))
            .add(daemon_set("dns").cpu_millis(50).annotation("ebbtide/daemonset", "evict"));
        let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
        world.aws.send_events_to(&queue);
        let config = Config { queue_urls: vec![queue], ..config() };
        let program = Program::start(&world, config.clone());
        let reached = Arc::new(Mutex::new(Some(program.client())));
        let (stage, at) = (Arc::clone(&world), Arc::clone(&reached));
        tasks.spawn(async move {
            let unreachable = || tonic::transport::Endpoint::from_static("http://nowhere").connect_lazy();
            autoscaler::run(&stage, || {
                let client = at.lock().clone();
                client.unwrap_or_else(|| Connect::new(unreachable()))
            })
            .await;
        });
        Self { world, witness, config, program: Some(program), reached, _tasks: tasks }
    }

    /// Plays all scenes.
    pub(super) async fn play(&mut self) -> anyhow::Result<()> {
        self.scale_up().await?;
        self.delete_an_occupied_node().await?;
        self.rebalance().await?;
        self.without_a_hook().await?;
        self.killed_in_mid_drain().await?;
        self.spot_notice().await?;
        self.take_over().await?;
        self.the_net().await?;
        if let Some(program) = self.program.take() {
            program.stop().await?;
        }
        Ok(())
    }

    fn scene(&self, title: &str) {
        self.witness.scene(self.world.clock.now(), title);
    }

    async fn scale_up(&self) -> anyhow::Result<()> {
        self.scene("Scale-up from zero: pods find no place, cluster-autoscaler buys nodes");
        self.world
            .cluster
            .add(replica_set("shop", 4).node_selector(POOL, "web").cpu_millis(900).grace(60).exits_after(12))
            .add(budget("shop").min_available(3))
            .add(
                replica_set("ledger", 1)
                    .node_selector(POOL, "web")
                    .cpu_millis(700)
                    .grace(180)
                    .exits_after(95),
            )
            .add(
                replica_set("render", 2)
                    .node_selector(POOL, "batch")
                    .cpu_millis(1_200)
                    .grace(90)
                    .exits_after(40),
            );
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn delete_an_occupied_node(&self) -> anyhow::Result<()> {
        self.scene("Scale-in of an occupied node: a tight budget, and a workload that needs 95 s to exit");
        let node = self.node_with("ledger")?;
        self.delete("web", &node).await?;
        self.until_gone(&node).await?;
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn rebalance(&self) -> anyhow::Result<()> {
        self.scene("The group rebalances: an occupied node is put into Terminating:Wait");
        let node = self.node_with("shop")?;
        let instance = self.instance_of(&node)?;
        self.witness.asked_for(&instance);
        self.world.aws.terminate(&instance, TerminationCause::Rebalance);
        self.until_gone(&node).await?;
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn without_a_hook(&self) -> anyhow::Result<()> {
        self.scene("Scale-in in a group without a lifecycle hook: drained first, terminated after");
        let node = self.node_with("render")?;
        self.delete("batch", &node).await?;
        self.until_gone(&node).await?;
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn killed_in_mid_drain(&mut self) -> anyhow::Result<()> {
        self.scene("ebbtide is killed in the middle of a drain, and started again");
        let node = self.node_with("render")?;
        self.delete("batch", &node).await?;
        self.until_mid_drain(&node).await?;
        self.kill().await;
        tokio::time::sleep(DOWN).await;
        self.start();
        self.until_gone(&node).await?;
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn spot_notice(&self) -> anyhow::Result<()> {
        self.scene("EC2 takes a spot instance back in two minutes: the notice comes through a queue");
        let node = self.node_with("shop")?;
        let instance = self.instance_of(&node)?;
        self.world.aws.interrupt_spot(&instance);
        self.until_gone(&node).await?;
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn take_over(&mut self) -> anyhow::Result<()> {
        self.scene(
            "Two replicas: the one that leads is killed in the middle of a drain, the other takes over",
        );
        let second =
            Program::start(&self.world, Config { election: Some(replica(1)), ..self.config.clone() });
        tokio::time::sleep(READY).await;
        let node = self.node_with("ledger")?;
        self.delete("web", &node).await?;
        self.until_mid_drain(&node).await?;
        self.kill().await;
        self.reach(second);
        self.until("the other leads", |world| leader(world).starts_with("ebbtide-1")).await?;
        self.witness.program(self.world.clock.now(), report::Program::TookOver);
        self.until_gone(&node).await?;
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn the_net(&mut self) -> anyhow::Result<()> {
        self.scene(
            "Every replica is dead, and the hook times out: the group keeps the instance until one is back",
        );
        let node = self.node_with("shop")?;
        let instance = self.instance_of(&node)?;
        self.kill().await;
        self.witness.asked_for(&instance);
        self.world.aws.terminate(&instance, TerminationCause::Rebalance);
        self.until("the group keeps it", |world| {
            let state = world.aws.instance(&instance).map(|instance| instance.state);
            state == Some(LifecycleState::TerminatingRetained)
        })
        .await?;
        self.start();
        self.until_gone(&node).await?;
        self.until("every pod runs", |world| pods_run(world) == 7).await
    }

    async fn until_mid_drain(&self, node: &str) -> anyhow::Result<()> {
        self.until("a workload has been asked", |world| {
            phase(world, node) == Some(Phase::Draining) && world.cluster.pods_on(node).iter().any(is_going)
        })
        .await?;
        tokio::time::sleep(INTO_THE_DRAIN).await;
        Ok(())
    }

    async fn kill(&mut self) {
        *self.reached.lock() = None;
        if let Some(program) = self.program.take() {
            program.kill().await;
        }
        self.witness.program(self.world.clock.now(), report::Program::Killed);
    }

    fn start(&mut self) {
        self.reach(Program::start(&self.world, self.config.clone()));
        self.witness.program(self.world.clock.now(), report::Program::Restarted);
    }

    /// From now on cluster-autoscaler reaches this one.
    fn reach(&mut self, program: Program) {
        *self.reached.lock() = Some(program.client());
        self.program = Some(program);
    }

    async fn delete(&self, group: &str, name: &str) -> anyhow::Result<()> {
        let node = self.world.cluster.node(name).context("the node is there")?;
        let program = self.program.as_ref().context("the program runs")?;
        autoscaler::delete_node(&mut program.client(), group, &node).await?;
        Ok(())
    }

    async fn until(&self, what: &str, holds: impl FnMut(&World) -> bool) -> anyhow::Result<()> {
        if self.world.until(LIMIT, holds).await {
            Ok(())
        } else {
            bail!("{what}: not within {} s", LIMIT.as_secs())
        }
    }

    async fn until_gone(&self, node: &str) -> anyhow::Result<()> {
        self.until(&format!("{node} has gone"), |world| !world.cluster.has_node(node)).await
    }

    /// The node that runs a pod of this ReplicaSet, the first by name.
    fn node_with(&self, set: &str) -> anyhow::Result<String> {
        let pods = self.world.cluster.list::<Pod>();
        let mut pods: Vec<_> = pods.iter().filter(|pod| app(pod) == Some(set) && !is_going(pod)).collect();
        pods.sort_by_key(|pod| pod.metadata.name.clone());
        let node = pods.first().and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        node.with_context(|| format!("a pod of {set} runs"))
    }

    fn instance_of(&self, node: &str) -> anyhow::Result<String> {
        let machine = self.world.cluster.node(node).as_ref().and_then(machine);
        machine.map(|machine| machine.instance).with_context(|| format!("{node} is an instance"))
    }
}

/// The replica of this number stands for election.
fn replica(number: u32) -> Candidate {
    Candidate { lease: LEASE.to_owned(), pod: Some(format!("ebbtide-{number}")) }
}

/// The identity of the process that leads.
fn leader(world: &World) -> String {
    let lease = world.cluster.get::<Lease>(LEASE).and_then(|lease| lease.spec);
    lease.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

fn app(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get("app").map(String::as_str)
}

fn is_going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Number of ReplicaSets' pods that run and are not being deleted.
fn pods_run(world: &World) -> usize {
    let is_workload = |pod: &&Pod| matches!(app(pod), Some("shop" | "ledger" | "render"));
    let runs = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let pods = world.cluster.list::<Pod>();
    pods.iter().filter(is_workload).filter(runs).filter(|pod| !is_going(pod)).count()
}

fn phase(world: &World, node: &str) -> Option<Phase> {
    let node = world.cluster.node(node)?;
    read(node.metadata.annotations?.get(RECORD)?).record().map(|record| record.phase)
}
