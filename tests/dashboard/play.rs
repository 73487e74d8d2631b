//! Plays an hour of a simulated world in which nodes go for every reason, and prints what the program's `/metrics` had every 15 s:
//! `tests/dashboard.sh`.
//!
//! A page follows a line `# at SECONDS`, in the world's time. The clock is virtual; the pages come over loopback.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ebbtide::config::{Config, PriceSource};
use ebbtide::groups::managed_hooks::Managed;
use ebbtide::sim::autoscaler;
use ebbtide::sim::aws::{GroupSpec, QueueSpec, TerminationCause};
use ebbtide::sim::cluster::{budget, daemon_set, replica_set};
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::world::{POOL, World};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// From one page to the next.
const EVERY: u64 = 15;
const HOUR: u64 = 3_600;

fn group(name: &str, size: u32) -> GroupSpec {
    let label = format!("k8s.io/cluster-autoscaler/node-template/label/{POOL}");
    let spec = GroupSpec::named(name).size(1, 12, size).zones(["us-east-1a"]).template("m5.large");
    spec.tag(TAG, "true").tag(label, name).already_running()
}

/// The nodes of a group that stay, the first by name first.
fn nodes(world: &World, group: &str) -> Vec<(String, String)> {
    let instances = world.aws.group(group).map(|group| group.instances).unwrap_or_default();
    let staying = |node: &String| {
        let spec = world.cluster.node(node).and_then(|node| node.spec);
        spec.is_some_and(|spec| spec.unschedulable != Some(true))
    };
    let named =
        instances.into_iter().filter_map(|instance| Some((world.node_of(&instance.id)?, instance.id)));
    let mut nodes: Vec<_> = named.filter(|(node, _)| staying(node)).collect();
    nodes.sort();
    nodes
}

/// What happens in the minute that begins.
async fn happens(minute: u64, world: &World, program: &Program) -> anyhow::Result<()> {
    let first = |group: &str| nodes(world, group).into_iter().next().context("a node stays");
    let ends = |group: &str| -> anyhow::Result<()> {
        world.aws.terminate(&first(group)?.1, TerminationCause::Rebalance);
        Ok(())
    };
    match minute {
        4 | 34 => {
            let node = world.cluster.node(&first("web")?.0).context("it is there")?;
            autoscaler::delete_node(&mut program.client(), "web", &node).await?;
        }
        10 | 41 | 44 | 47 => ends("web")?,
        16 => {
            let node = world.cluster.node(&first("batch")?.0).context("it is there")?;
            autoscaler::delete_node(&mut program.client(), "batch", &node).await?;
        }
        22 => {
            for (_, instance) in nodes(world, "web").into_iter().take(2) {
                world.aws.interrupt_spot(&instance);
            }
        }
        // A budget that has no room for eight minutes.
        27 => {
            world.cluster.add(budget("render").min_available(3));
            let wish = json!({ "metadata": { "annotations": { "ebbtide/scale-in": "replace" } } });
            let all: Api<Node> = Api::all(world.cluster.client());
            all.patch(&first("batch")?.0, &PatchParams::default(), &Patch::Merge(wish)).await?;
        }
        35 => {
            let budgets: Api<PodDisruptionBudget> = Api::namespaced(world.cluster.client(), "default");
            budgets.delete("render", &DeleteParams::default()).await?;
        }
        52 => world.aws.throttle_share(0.3),
        55 => world.aws.throttle_share(0.0),
        _ => {}
    }
    Ok(())
}

/// What `/metrics` says.
async fn page(program: &Program) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(program.admin().context("no loopback interface")?).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, page) = answer.split_once("\r\n\r\n").context("no page")?;
    Ok(page.to_owned())
}

#[expect(clippy::print_stdout, reason = "its answer")]
async fn play() -> anyhow::Result<()> {
    let world = Arc::new(World::plain(1));
    world.aws.delay(Duration::from_millis(40), Duration::from_millis(60));
    world.aws.add_group(group("web", 6));
    world.aws.add_group(group("batch", 3));
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
    world.aws.send_events_to(&queue);
    world
        .cluster
        .add(daemon_set("logs").log_shipper().cpu_millis(50).tolerates("", ""))
        .add(replica_set("shop", 8).node_selector(POOL, "web").cpu_millis(900).grace(60).exits_after(25))
        .add(budget("shop").min_available(7))
        .add(replica_set("ledger", 2).node_selector(POOL, "web").cpu_millis(400).grace(300).exits_after(150))
        .add(
            replica_set("render", 3).node_selector(POOL, "batch").cpu_millis(1_200).grace(90).exits_after(60),
        );
    let hooks = Managed { heartbeat: Duration::from_mins(2), retain: false };
    let prices = Some(PriceSource::Table);
    let with = Config { queue_urls: vec![queue], managed_hooks: Some(hooks), prices, ..config() };
    let program = Program::start(&world, with);
    let mut tasks = JoinSet::new();
    let (stage, client) = (Arc::clone(&world), program.client());
    tasks.spawn(async move { autoscaler::run(&stage, || client.clone()).await });
    for second in (0..HOUR).step_by(EVERY as usize) {
        if second % 60 == 0 {
            happens(second / 60, &world, &program).await?;
        }
        world.until(Duration::from_secs(EVERY), |_| false).await;
        println!("# at {}\n{}", world.clock.now().as_second(), page(&program).await?);
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(play())
}
