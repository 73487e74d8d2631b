//! `ebbtide status`: the scale-ins under way, for somebody who has a kubeconfig and nothing else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::Serialize;

use super::output::{Style, columns, document, lasted, plain};
use super::{CommandError, reading};
use crate::clock::{Clock, elapsed};
use crate::cluster::record::Phase;
use crate::cluster::{ApiError, Budget, Cluster, NodeView, PodView, Store};
use crate::config::Output;
use crate::k8s::NodeName;
use crate::scale_in::Settings;
use crate::scale_in::preview::{Facts, Place, waiting};
use crate::scale_in::status::{AutoscalerDrain, Cordoned, ScaleIn, Unattended, Wait};
use crate::telemetry::{chain, cut};

/// Nodes whose pods are listed at once.
const AT_ONCE: usize = 8;

/// The scale-ins under way, the nodes that cluster-autoscaler drains by itself, and those that are closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// As in `/status.json`. Whom a drain waits for is computed from pods and budgets.
    pub scale_ins: Vec<ScaleIn>,
    /// Since when nobody works on these; `null`: somebody does.
    pub unattended: Option<Unattended>,
    /// Nodes that cluster-autoscaler drains by itself, with the pods that are to go.
    pub autoscaler_drains: Vec<AutoscalerDrain>,
    /// Nodes that are closed because of notices, and not drained.
    pub cordoned: Vec<Cordoned>,
    /// Nodes that drain and whose pods could not be read, so that it is not known whom they wait for, and why.
    pub unread: BTreeMap<NodeName, String>,
    /// Why disruption budgets could not be read, so that it is not known which pods they hold; `null`: they were, or no node drains.
    pub budgets_unread: Option<String>,
}

/// How often [`watch`] looks.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// At most this many bytes of why something could not be read stand in a table.
const WORDS: usize = 200;

/// Looks again and again, and has each answer shown, or why there is none. Ends if the first look fails, or if it cannot be shown.
pub async fn watch<E: From<CommandError>>(
    cluster: &Cluster,
    clock: &Clock,
    mut show: impl FnMut(Result<Told, CommandError>) -> Result<(), E>,
) -> Result<Infallible, E> {
    let mut told = Ok(look(cluster, clock).await?);
    loop {
        show(told)?;
        tokio::time::sleep(WATCH_EVERY).await;
        told = look(cluster, clock).await;
    }
}

/// Looks at Nodes, and at the pods of those that drain.
pub async fn look(cluster: &Cluster, clock: &Clock) -> Result<Told, CommandError> {
    let nodes = cluster.list_nodes().await.map_err(reading("Nodes"))?;
    let now = clock.cluster();
    let mut leaving: Vec<ScaleIn> = nodes.iter().filter_map(|node| ScaleIn::of(node, now)).collect();
    leaving.sort_by_key(|one| (one.requested_at.is_none(), one.requested_at));
    let (autoscaler_drains, cordoned) = (AutoscalerDrain::among(&nodes), Cordoned::among(&nodes));
    let unattended = Unattended::among(&nodes, now);
    let (unread, budgets_unread) = (BTreeMap::new(), None);
    let mut told =
        Told { scale_ins: leaving, unattended, autoscaler_drains, cordoned, unread, budgets_unread };
    read_waits(cluster, &mut told, &nodes, now).await;
    read_going(cluster, &mut told, now).await;
    Ok(told)
}

/// Reads whom the drains wait for.
async fn read_waits(cluster: &Cluster, told: &mut Told, nodes: &[NodeView], now: Timestamp) {
    if !told.scale_ins.iter().any(is_draining) {
        return;
    }
    let budgets = cluster.list_budgets().await.map_err(reading("disruption budgets"));
    told.budgets_unread = budgets.as_ref().err().map(|error| chain(error));
    let budgets = Arc::new(budgets.unwrap_or_default());
    let looks = told.scale_ins.iter().map(|one| waits_of(cluster, one, nodes, &budgets, now));
    let waits: Vec<_> = stream::iter(looks).buffered(AT_ONCE).collect().await;
    for (one, waits) in told.scale_ins.iter_mut().zip(waits) {
        match waits {
            Ok(waits) => one.waiting = waits,
            Err(error) => _ = told.unread.insert(one.node.clone(), chain(&error)),
        }
    }
}

/// Reads which pods are to go from nodes that cluster-autoscaler drains by itself.
async fn read_going(cluster: &Cluster, told: &mut Told, now: Timestamp) {
    let looks = told.autoscaler_drains.iter().map(|one| cluster.list_pods_on(&one.node));
    let pods: Vec<_> = stream::iter(looks).buffered(AT_ONCE).collect().await;
    for (one, pods) in told.autoscaler_drains.iter_mut().zip(pods) {
        match pods.map_err(reading("pods")) {
            Ok(pods) => one.waiting = Some(AutoscalerDrain::going(&pods, now)),
            Err(error) => _ = told.unread.insert(one.node.clone(), chain(&error)),
        }
    }
}

fn is_draining(one: &ScaleIn) -> bool {
    one.phase == Phase::Draining.as_str()
}

/// The pods that a drain waits for; `None` if it is no drain, or its Node has gone meanwhile.
async fn waits_of(
    cluster: &Cluster,
    told: &ScaleIn,
    nodes: &[NodeView],
    budgets: &Arc<Store<Budget>>,
    now: Timestamp,
) -> Result<Option<Vec<Wait>>, CommandError> {
    if !is_draining(told) {
        return Ok(None);
    }
    let node = match cluster.get_whole_node(&told.node).await {
        Ok(node) => node,
        Err(ApiError::NotFound) => return Ok(None),
        Err(error) => return Err(reading("the Node")(error)),
    };
    let facts = Facts {
        node,
        pods: pods(cluster, told, nodes).await?,
        budgets: Arc::clone(budgets),
        daemon_sets: None,
        attachments: 0,
        place: Place::Unknown,
        settings: Settings::default(),
    };
    Ok(Some(waiting(&facts, now)))
}

/// The pods on the Node, and on others that name its instance: the drain waits for these, too.
async fn pods(cluster: &Cluster, told: &ScaleIn, nodes: &[NodeView]) -> Result<Vec<PodView>, CommandError> {
    let is_twin = |node: &&NodeView| told.instance.is_some() && node.instance == told.instance;
    let mut pods = Vec::new();
    for node in nodes.iter().filter(is_twin) {
        pods.extend(cluster.list_pods_on(&node.name).await.map_err(reading("pods"))?);
    }
    Ok(pods)
}

/// As it is asked for.
pub fn render(told: &Told, output: Output, style: Style, now: Timestamp) -> String {
    if let Some(document) = document(output, told) {
        return document;
    }
    let is_wide = output == Output::Wide;
    let (scales_in, drains) = (!told.scale_ins.is_empty(), !told.autoscaler_drains.is_empty());
    let parts = [
        (!scales_in && !drains).then(|| "no scale-in is under way\n".to_owned()),
        scales_in.then(|| scale_ins(told, is_wide, style, now)),
        drains.then(|| autoscaler_drains(told, is_wide, now)),
        (!told.cordoned.is_empty()).then(|| closed(&told.cordoned)),
    ];
    parts.into_iter().flatten().collect::<Vec<String>>().join("\n")
}

fn closed(cordoned: &[Cordoned]) -> String {
    let mut rows = vec![["NODE", "CLOSED UNTIL", "CAUSE"].map(str::to_owned).to_vec()];
    rows.extend(cordoned.iter().map(|one| {
        let causes: Vec<&str> = one.causes.iter().map(|cause| cause.as_str()).collect();
        vec![one.node.to_string(), format!("{:.0}", one.until), causes.join(", ")]
    }));
    columns(&rows)
}

fn scale_ins(told: &Told, is_wide: bool, style: Style, now: Timestamp) -> String {
    let mut rows = vec![header(is_wide)];
    rows.extend(told.scale_ins.iter().map(|one| row(one, told.unread.get(&one.node), is_wide, now)));
    let waits = told.scale_ins.iter().map(|one| one.waiting.as_deref());
    let table = highlighted(&table(&rows, waits, is_wide), style);
    let not_known = |why: &String| format!("budgets are not known: {}\n", plain(&cut(why, WORDS)));
    let budgets = told.budgets_unread.as_ref().map(not_known).unwrap_or_default();
    let warning = told.unattended.as_ref().map(|unattended| nobody(unattended, style)).unwrap_or_default();
    format!("{table}{budgets}{warning}")
}

/// That nobody works on the scale-ins, and what becomes of instances that a hook holds.
fn nobody(unattended: &Unattended, style: Style) -> String {
    let words = format!("nobody has worked on these since {:.0}", unattended.since);
    let mut text = format!("{}: no ebbtide leads, or none can write Nodes\n", style.paint(31, &words));
    let timeouts = || unattended.heartbeat_timeout_seconds.values().copied();
    if let Some((least, most)) = timeouts().min().zip(timeouts().max()) {
        let most = if least == most { String::new() } else { format!(" to {}", lasted(most)) };
        let _ = writeln!(
            text,
            "if none runs, none sends heartbeats: AWS ends what a lifecycle hook holds ({} of these) {}{most} after the last one, whatever \
             RELEASE BY says",
            timeouts().count(),
            lasted(least),
        );
    }
    text
}

fn autoscaler_drains(told: &Told, is_wide: bool, now: Timestamp) -> String {
    let header = ["NODE", "DRAINED BY CLUSTER-AUTOSCALER SINCE", "WAITS FOR"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(told.autoscaler_drains.iter().map(|one| {
        let since = one.since.map_or("-".to_owned(), |at| lasted(elapsed(at, now).as_secs()));
        let nothing = "no pod that is to go: see the log of cluster-autoscaler";
        let waits = waits_for(one.waiting.as_deref(), told.unread.get(&one.node), nothing, is_wide);
        vec![one.node.to_string(), since, waits]
    }));
    table(&rows, told.autoscaler_drains.iter().map(|one| one.waiting.as_deref()), is_wide)
}

/// Rows in columns. In a wide table, whom each waits for stands under its line.
fn table<'a>(rows: &[Vec<String>], waits: impl Iterator<Item = Option<&'a [Wait]>>, is_wide: bool) -> String {
    let table = columns(rows);
    if !is_wide {
        return table;
    }
    let mut lines = table.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (line, waits) in lines.zip(waits) {
        let _ = writeln!(text, "{line}");
        for wait in waits.unwrap_or_default() {
            let _ = writeln!(text, "  {}: {}", plain(&wait.pod), plain(&wait.text));
        }
    }
    text
}

fn highlighted(text: &str, style: Style) -> String {
    let coloured = text.replace("Draining", &style.paint(34, "Draining"));
    let coloured = coloured.replace("Flushing", &style.paint(33, "Flushing"));
    coloured.replace("Releasing", &style.paint(32, "Releasing"))
}

fn header(is_wide: bool) -> Vec<String> {
    let wide = ["INSTANCE", "RELEASE", "RELEASE BY"];
    let narrow = ["NODE", "PHASE", "SINCE", "CAUSE", "GROUP", "WAITS FOR"];
    narrow.into_iter().chain(wide.into_iter().filter(|_| is_wide)).map(str::to_owned).collect()
}

fn row(one: &ScaleIn, unread: Option<&String>, is_wide: bool, now: Timestamp) -> Vec<String> {
    let since = one.requested_at.map(|at| lasted(elapsed(at, now).as_secs())).unwrap_or_default();
    let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let mut row = vec![
        one.node.to_string(),
        one.phase.to_owned(),
        since,
        one.cause.to_string(),
        text(one.group.as_deref()),
        waits_for(one.waiting.as_deref(), unread, beyond_pods(one), is_wide),
    ];
    if is_wide {
        row.push(text(one.instance.as_deref()));
        row.push(text(one.release.map(|release| release.as_str())));
        row.push(one.release_by.map_or("-".to_owned(), |at| format!("{at:.0}")));
    }
    row
}

/// The pods that hold it up, stuck ones first; `nothing`: what does if there are none. `unread`: why they could not be read.
fn waits_for(waiting: Option<&[Wait]>, unread: Option<&String>, nothing: &str, is_wide: bool) -> String {
    if let Some(why) = unread {
        return format!("unknown: {}", cut(why, WORDS));
    }
    let waiting = waiting.unwrap_or_default();
    let Some(first) = waiting.iter().min_by_key(|wait| wait.reason == "exiting") else {
        return nothing.to_owned();
    };
    let others = waiting.len() - 1;
    match (is_wide, others) {
        (true, 0) => "1 pod".to_owned(),
        (true, _) => format!("{} pods", waiting.len()),
        (false, 0) => format!("{} ({})", first.pod, first.text),
        (false, _) => format!("{} ({}) and {others} more", first.pod, first.text),
    }
}

/// What holds it up if none of these pods does: only the leader knows, and has told in Events.
fn beyond_pods(one: &ScaleIn) -> &'static str {
    match one.phase {
        "Queued" => "to begin: see its Events",
        "Flushing" => "DaemonSet pods, volumes or load balancers: see its Events",
        "Releasing" => "AWS, load balancers, a lifecycle hook, or whoever deletes the Node: see its Events",
        _ => "no pod of this Node: see its Events",
    }
}
