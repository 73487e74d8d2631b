//! Soak: the released program as a process of its own, against both worlds on sockets, in real time.
//!
//! ```text
//!  this process: worlds, a stand-in for cluster-autoscaler, who ends nodes ◀── HTTP, gRPC ──▶ child: ebbtide serve
//!                                             └────────── /proc/PID, every ten seconds ───────────┘
//! ```
//!
//! `cargo test --release --test soak -- 3600` soaks for so many seconds, and then waits for what is under way. It fails if memory
//! or descriptors grow, a workload is cut, or a scale-in does not end. Without a number it does nothing: `cargo test` is to be quick.
//! A path after the number is the program to soak, if it is not this package's own.
#![expect(clippy::print_stdout, reason = "this is a program, and its output is what it is for")]

mod child;
mod samples;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ebbtide::clock::Clock;
use ebbtide::k8s::names::RECORD;
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::sim::aws::{GroupSpec, HookSpec, TerminationCause};
use ebbtide::sim::cluster::{self, budget, daemon_set, replica_set};
use ebbtide::sim::program::TAG;
use ebbtide::sim::world::{POOL, World};
use ebbtide::sim::{autoscaler, http};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::child::{Addresses, Child};
use crate::samples::Samples;

const NODES: u32 = 300;
const PODS_A_NODE: u32 = 30;
/// ReplicaSets that the pods are of, each with a budget.
const SETS: u32 = 30;
/// Between two ends of nodes, and how many may be under way.
const EVERY: Duration = Duration::from_secs(4);
const AT_ONCE: usize = 24;
/// A scale-in that takes longer is stuck: a drain here takes a minute or two.
const LONGEST: SignedDuration = SignedDuration::from_mins(15);
/// After the time is over, whatever is under way comes to its end within this.
const TO_THE_END: Duration = Duration::from_mins(15);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(seconds) = args.next().and_then(|text| text.parse().ok()) else { return ExitCode::SUCCESS };
    let program = args.next().unwrap_or_else(|| env!("CARGO_BIN_EXE_ebbtide").to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    match runtime.expect("a runtime").block_on(soak(Duration::from_secs(seconds), &program)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(time: Duration, program: &str) -> anyhow::Result<bool> {
    let world = Arc::new(furnished().await?);
    tokio::time::resume();
    let mut tasks = JoinSet::new();
    let (for_cluster, for_aws) =
        (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let addresses = Addresses {
        cluster: format!("http://{}", for_cluster.local_addr()?),
        aws: format!("http://{}", for_aws.local_addr()?),
    };
    tasks.spawn(http::listen(Arc::new(world.cluster.clone()), for_cluster));
    tasks.spawn(http::listen(Arc::new(world.aws.clone()), for_aws));
    let mut child = Child::start(program, &addresses)?;
    let client = child.client().await?;
    let stage = Arc::clone(&world);
    let connect = client.clone();
    tasks.spawn(async move {
        autoscaler::run(&stage, || connect.clone()).await;
        Ok(())
    });
    let mut samples = Samples::default();
    let (begun, mut ended) = (Instant::now(), 0);
    let mut next_sample = begun;
    while begun.elapsed() < time {
        if Instant::now() >= next_sample {
            next_sample += Duration::from_secs(10);
            samples.add(begun.elapsed(), child.look()?, &told(&world, ended));
        }
        if leaving(&world).len() < AT_ONCE {
            end_one(&world, &client, ended).await?;
            ended += 1;
        }
        if let Some(stuck) = stuck(&world) {
            anyhow::bail!("stuck for {LONGEST}: {stuck}");
        }
        sleep(EVERY).await;
    }
    let quiet = Instant::now();
    while !is_quiet(&world) {
        anyhow::ensure!(quiet.elapsed() < TO_THE_END, "not at rest: {}", told(&world, ended));
        sleep(Duration::from_secs(15)).await;
    }
    child.look()?;
    println!(
        "at rest after {} s: {}, {} pods run",
        quiet.elapsed().as_secs(),
        told(&world, ended),
        running(&world)
    );
    let cut = cut(&world);
    println!("workloads cut short: {cut}");
    Ok(samples.are_flat() && cut == 0 && ended > 0)
}

/// Three hundred nodes, all pods running, and the worlds' clock at what the machine's reads.
async fn furnished() -> anyhow::Result<World> {
    let wall = Clock::system();
    let world = World::on(Clock::starting_at(wall.wall() - SignedDuration::from_mins(20)), 1);
    let group = |name: &str, size: u32| {
        GroupSpec::named(name)
            .size(0, 2 * NODES, size)
            .zones(["us-east-1a", "us-east-1b"])
            .template("m5.xlarge")
            .tag(TAG, "true")
            .already_running()
    };
    world.aws.add_group(group("web", NODES * 2 / 3).hook(HookSpec::terminating("ebbtide").heartbeat(300)));
    world.aws.add_group(group("batch", NODES / 3));
    for group in ["web", "batch"] {
        world.kubelets(group, |node| node.pods(58));
    }
    world.cluster.add(daemon_set("kube-system/logs").cpu_millis(50).tolerates("", ""));
    world.cluster.add(daemon_set("kube-system/dns").cpu_millis(50).annotation("ebbtide/daemonset", "evict"));
    let replicas = NODES * PODS_A_NODE / SETS;
    for number in 0..SETS {
        let name = format!("app-{number}");
        let set = replica_set(name.as_str(), replicas).cpu_millis(110).grace(30).exits_after(2 + number % 7);
        world.cluster.add(set).add(budget(name.as_str()).min_available(replicas - 20));
    }
    let wanted = usize::try_from(NODES * PODS_A_NODE)?;
    for _ in 0..15 {
        sleep(Duration::from_mins(1)).await;
        if running(&world) >= wanted {
            break;
        }
    }
    anyhow::ensure!(running(&world) >= wanted, "{} pods run", running(&world));
    world.clock.sleep_until(wall.wall()).await;
    Ok(world)
}

/// Workloads that run.
fn running(world: &World) -> usize {
    let runs = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() && is_workload(pod)
    };
    world.cluster.list::<Pod>().iter().filter(|pod| runs(pod)).count()
}

fn is_workload(pod: &Pod) -> bool {
    pod.metadata.namespace.as_deref() != Some("kube-system")
}

/// Nodes that are on their way out.
fn leaving(world: &World) -> Vec<Node> {
    let closed = |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    world.cluster.list::<Node>().into_iter().filter(closed).collect()
}

/// Ends a node that stays: for cluster-autoscaler, for its group, or for a person, in turn.
async fn end_one(
    world: &World,
    client: &CloudProviderClient<tonic::transport::Channel>,
    turn: u32,
) -> anyhow::Result<()> {
    let stays = |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable != Some(true));
    let nodes: Vec<Node> = world.cluster.list().into_iter().filter(stays).collect();
    let Some(node) = fastrand::choice(&nodes) else { return Ok(()) };
    let group = node.labels().get(POOL).context("a node of a group")?;
    let instance =
        node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref()?.rsplit('/').next()).context("an id")?;
    match turn % 3 {
        // Refused at times, as by a group that changes: cluster-autoscaler tries another.
        0 => drop(autoscaler::delete_node(&mut client.clone(), group, node).await),
        1 if group == "web" => world.aws.terminate(instance, TerminationCause::Rebalance),
        _ => {
            let patch = json!({ "metadata": { "annotations": { RECORD: "replace" } } });
            let nodes: Api<Node> = Api::all(world.cluster.client());
            nodes.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    Ok(())
}

/// A Node whose scale-in takes too long.
fn stuck(world: &World) -> Option<String> {
    let now = world.clock.now();
    let since = |node: &Node| {
        let record = ebbtide::cluster::NodeView::from(node);
        record.scale_in().map(|record| record.requested_at)
    };
    let slow = |node: &&Node| since(node).is_some_and(|since| now.duration_since(since) > LONGEST);
    leaving(world)
        .iter()
        .find(slow)
        .map(|node| format!("{} {:?}", node.name_any(), node.annotations().get(RECORD)))
}

/// Whether no node leaves and every pod runs.
fn is_quiet(world: &World) -> bool {
    let wanted = usize::try_from(NODES * PODS_A_NODE).unwrap_or(usize::MAX);
    leaving(world).is_empty() && running(world) >= wanted
}

/// Workloads that were killed while they ran.
fn cut(world: &World) -> usize {
    let cut = |event: &cluster::Event| matches!(event, cluster::Event::CutShort { pod, .. } if pod.namespace != "kube-system");
    world.cluster.count(|entry| cut(&entry.what))
}

fn told(world: &World, ended: u32) -> String {
    let leaves = leaving(world).len();
    format!("{ended} asked, {leaves} of {} nodes leave, {} cut", world.cluster.node_names().len(), cut(world))
}
