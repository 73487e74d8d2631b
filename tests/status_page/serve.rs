//! Serves the status page of a world with something of everything on it, for browsers: `tests/status.sh`.
//!
//! The world's history is played through on virtual time, then the clock runs as clocks do. Prints the page's address, and
//! serves until it is stopped.

use std::time::Duration;

use anyhow::Context as _;
use ebbtide::config::Config;
use ebbtide::sim::aws::{GroupSpec, HookSpec, QueueSpec};
use ebbtide::sim::cluster::{budget, daemon_set, pod};
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::world::World;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// Longer than anything here takes.
const EVER: Duration = Duration::from_hours(10);

fn group(name: &str, size: u32) -> GroupSpec {
    let spec = GroupSpec::named(name).size(0, 20, size).zones(["us-east-1a"]).template("m5.large");
    spec.tag(TAG, "true").already_running().hook(HookSpec::terminating("ebbtide").heartbeat(300))
}

/// A person asks for the node's end, or takes that back.
async fn annotate(world: &World, node: &str, value: Option<&str>) -> anyhow::Result<()> {
    let patch = json!({ "metadata": { "annotations": { "ebbtide/scale-in": value } } });
    let nodes: Api<Node> = Api::all(world.cluster.client());
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn play(world: &World) -> anyhow::Result<Program> {
    world.aws.add_group(group("web", 4));
    world.aws.add_group(group("batch", 2));
    world.cluster.add(daemon_set("shipper").log_shipper());
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
    let program = Program::start(world, Config { queue_urls: vec![queue], ..config() });
    anyhow::ensure!(world.until(EVER, |w| w.cluster.node_names().len() == 6).await, "no nodes");
    let pass = async |seconds| world.until(Duration::from_secs(seconds), |_| false).await;
    pass(60).await;
    let of = |group: &str| -> anyhow::Result<Vec<String>> {
        let snapshot = world.aws.group(group).context("the group")?;
        Ok(snapshot.instances.iter().filter_map(|instance| world.node_of(&instance.id)).collect())
    };
    let (web, batch) = (of("web")?, of("batch")?);
    let [gone, blocked, flushing, ..] = &web[..] else { anyhow::bail!("too few nodes") };
    world.cluster.add(pod("cart-1").on(gone).exits_after(25));
    pass(5).await;
    annotate(world, gone, Some("now")).await?;
    anyhow::ensure!(world.until(EVER, |w| w.cluster.node(gone).is_none()).await, "not gone");
    world.cluster.add(budget("checkout").min_available(1).selects("app", "checkout"));
    for name in ["checkout-7d9f", "checkout-5b2c"] {
        world.cluster.add(pod(name).on(blocked).label("app", "checkout"));
    }
    world.cluster.add(pod("report").on(blocked).grace(3_600).exits_after(3_000));
    world.cluster.add(pod("training").on(blocked).annotation("ebbtide/drain", "wait"));
    world.cluster.add(pod("mail").on(flushing).grace(600).exits_after(200));
    pass(5).await;
    annotate(world, blocked, Some("now")).await?;
    pass(240).await;
    annotate(world, &batch[0], Some("replace")).await?;
    pass(20).await;
    Ok(program)
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let world = World::plain(1);
        let program = play(&world).await?;
        tokio::time::resume();
        #[expect(clippy::print_stdout, reason = "its answer")]
        {
            println!("http://{}/status", program.admin().context("no loopback interface")?);
        }
        std::future::pending::<anyhow::Result<()>>().await
    })
}
