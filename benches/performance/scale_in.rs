//! Many nodes that their group ends at once, read off what the worlds wrote down.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ebbtide::sim::aws::{Event as AwsEvent, Operation, TerminationCause};
use ebbtide::sim::cluster::{Event, Verb, budget, daemon_set, pod};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::row;
use crate::stage::{Size, Stage};

/// The flush, as a flag has it, and how long workloads take to exit.
const FLUSH: Duration = Duration::from_secs(2);
const EXIT: u32 = 20;

/// Nodes that end at once, and what is on them.
#[derive(Clone, Copy)]
pub(crate) struct Mass {
    pub(crate) nodes: u32,
    /// Pods on each node.
    pub(crate) pods: usize,
    /// Disruption budgets that share these pods: each has room for all of its own, and its status changes with every eviction.
    pub(crate) budgets: usize,
}

impl Mass {
    /// In words.
    pub(crate) fn told(self) -> String {
        let Self { nodes, pods, budgets } = self;
        let under = if budgets > 0 { format!(" under {budgets} budgets") } else { String::new() };
        format!("{nodes} nodes × {pods} pods{under} ended at once")
    }
}

/// Prints the rows of so many nodes with so many pods each.
pub(crate) async fn print(program: &Path, mass: Mass) {
    let Mass { nodes, pods, budgets } = mass;
    let size = Size { groups: 1, nodes };
    let stage = Stage::open(size).await;
    let world = &stage.world;
    world.cluster.add(daemon_set("kube-system/shipper").log_shipper());
    for n in 0..budgets {
        world.cluster.add(budget(app(n).as_str()).min_available(0));
    }
    let names = world.cluster.node_names();
    // A DaemonSet pod that comes or starts in the drain is waited for, and beside so many pods it finds no room.
    let ships = |node: &String| world.cluster.pods_on(node).iter().any(runs);
    while !names.iter().all(ships) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for (n, node) in names.iter().enumerate() {
        for k in 0..pods {
            let one = pod(format!("web-{n}-{k}").as_str()).cpu_millis(1).memory_mib(1).exits_after(EXIT);
            let app = (n * pods + k).checked_rem(budgets).map_or_else(String::new, app);
            world.cluster.add(one.label("app", &app).on(node));
        }
    }
    let instances: BTreeMap<String, String> = instances(&stage, &names);
    let (program, _) = stage.start(program, size, &["--daemonset-flush=2s"]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (cpu, log) = (program.process.cpu(), world.cluster.journal().len());
    for instance in instances.values() {
        world.aws.terminate(instance, TerminationCause::Rebalance);
    }
    let released = |e: &AwsEvent| matches!(e, AwsEvent::HookCompleted { .. });
    let all = |stage: &Stage| {
        stage.world.aws.journal().iter().filter(|entry| released(&entry.what)).count() >= names.len()
    };
    let limit = tokio::time::Instant::now() + Duration::from_mins(3);
    while !all(&stage) && tokio::time::Instant::now() < limit {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(all(&stage), "not all are released: {}", stage.log());
    let (cpu, memory) = (program.process.cpu().saturating_sub(cpu), program.process.memory());

    let (aws, cluster) = (world.aws.journal(), world.cluster.journal());
    let cluster = &cluster[log..];
    let held = aws
        .iter()
        .filter(|entry| matches!(entry.what, AwsEvent::EnteredWait { .. }))
        .map(|entry| entry.at)
        .max();
    let held = held.expect("held");
    let is_look =
        |e: &AwsEvent| matches!(e, AwsEvent::Called { operation: Operation::DescribeAutoScalingGroups, .. });
    let look = aws.iter().find(|entry| is_look(&entry.what) && entry.at >= held).expect("a look").at;
    let asked: Vec<Timestamp> =
        moments(cluster, |e| matches!(e, Event::PodAsked { pod, .. } if pod.name.starts_with("web-")));
    let gets =
        moments(cluster, |e| matches!(e, Event::Request { verb: Verb::Get, resource: "nodes", .. })).len();
    let conflicts = moments(cluster, |e| matches!(e, Event::Request { code: 409, .. })).len();
    let requests = moments(cluster, |e| matches!(e, Event::Request { .. })).len();
    let mut exits: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for entry in cluster {
        if let Event::PodExited { pod, node } = &entry.what
            && pod.name.starts_with("web-")
        {
            exits.insert(node, entry.at);
        }
    }
    let mut waits: Vec<f64> = Vec::new();
    for entry in &aws {
        if let AwsEvent::HookCompleted { instance, .. } = &entry.what {
            let node = instances.iter().find(|(_, id)| *id == instance).expect("one of ours").0;
            waits.push(entry.at.duration_since(exits[node.as_str()]).as_secs_f64());
        }
    }
    waits.sort_by(f64::total_cmp);
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share).round() as usize];
    let what = mass.told();
    let since = |at: Option<&Timestamp>| at.map_or(0.0, |at| at.duration_since(look).as_secs_f64());
    row(
        &format!("{what}: evictions"),
        &format!("{} granted, the last {:.2} s after the look", asked.len(), since(asked.iter().max())),
    );
    let flush = FLUSH.as_secs_f64();
    row(
        &format!("{what}: last exit → released, flush ({flush} s) aside"),
        &format!(
            "median {:.0} ms, p99 {:.0} ms, worst {:.0} ms",
            (at(0.5) - flush) * 1e3,
            (at(0.99) - flush) * 1e3,
            (at(1.0) - flush) * 1e3
        ),
    );
    row(
        &format!("{what}: cost"),
        &format!(
            "{gets} GETs of Nodes, {conflicts} conflicts, {requests} requests, {:.2} s CPU, {:.0} MB, peak {:.0} MB",
            cpu.as_secs_f64(),
            memory.resident,
            memory.peak
        ),
    );
}

fn runs(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// The app of a budget, which has the same name.
fn app(n: usize) -> String {
    format!("app-{n}")
}

fn moments(journal: &[ebbtide::sim::cluster::Entry], such: impl Fn(&Event) -> bool) -> Vec<Timestamp> {
    journal.iter().filter(|entry| such(&entry.what)).map(|entry| entry.at).collect()
}

/// The instance of each Node.
fn instances(stage: &Stage, names: &[String]) -> BTreeMap<String, String> {
    let instance = |name: &String| {
        let id = stage.world.cluster.node(name)?.spec?.provider_id?;
        Some((name.clone(), id.rsplit('/').next()?.to_owned()))
    };
    names.iter().filter_map(instance).collect()
}
