//! `ebbtide plan NODE`: what a scale-in of that node would do now.

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;

use super::groups::{self, Groups};
use super::output::{Style, columns, document, lasted, plain};
use super::{CommandError, reading};
use crate::aws::Aws;
use crate::clock::Clock;
use crate::cluster::{ApiError, Cluster, NodeView};
use crate::config::{Config, Output, PlanOptions};
use crate::groups::hooks::HookState;
use crate::scale_in::preview::{End, Facts, Member, Place, Preview, What, preview};
use crate::telemetry::chain;

/// Gathers what is known, and plays the scale-in through. `aws`: `None` if no group is selected.
pub async fn look(
    cluster: &Cluster,
    aws: Option<&Aws>,
    options: &PlanOptions,
    clock: &Clock,
) -> Result<Preview, CommandError> {
    let node = cluster.get_whole_node(&options.node).await.map_err(|error| match error {
        ApiError::NotFound => CommandError::NoNode(options.node.clone()),
        error => reading("the Node")(error),
    })?;
    // Boxed: the futures are large.
    let (pods, budgets, daemon_sets, attachments) = futures::join!(
        Box::pin(cluster.list_pods_on(&options.node)),
        Box::pin(cluster.list_budgets()),
        Box::pin(cluster.list_daemon_sets()),
        Box::pin(cluster.count_attachments(&options.node)),
    );
    let place = match aws {
        Some(aws) => {
            Box::pin(place(cluster, aws, &options.look.config, &NodeView::from(&node), clock)).await?
        }
        None => Place::Unknown,
    };
    let facts = Facts {
        node,
        pods: pods.map_err(reading("pods"))?,
        budgets: Arc::new(budgets.map_err(reading("disruption budgets"))?),
        daemon_sets: Some(daemon_sets.map_err(reading("DaemonSets"))?.into_iter().collect()),
        attachments: attachments.map_err(reading("volume attachments"))?,
        place,
        settings: options.look.config.scale_in.clone(),
    };
    Ok(preview(&facts, options.cause, clock.cluster()))
}

/// Looks up the group of the Node's instance, as `serve` does. Whoever asks while AWS fails has the plan without it.
async fn place(
    cluster: &Cluster,
    aws: &Aws,
    config: &Config,
    node: &NodeView,
    clock: &Clock,
) -> Result<Place, CommandError> {
    let nodes = groups::nodes(cluster).await.map_err(reading("Nodes"))?;
    let groups = match Groups::read(aws, config, Arc::clone(&nodes), clock).await {
        Ok(groups) => groups,
        Err(error) => return Ok(Place::Untold(chain(&error))),
    };
    let Some((group, instance)) = groups.snapshot.place_of(node) else { return Ok(Place::Outside) };
    let hook = groups.hooks.of_now(&group.asg.name).await.map_or(HookState::Unknown, HookState::Known);
    Ok(Place::In(Member::of(group, instance, &nodes, hook)))
}

/// As it is asked for.
pub fn render(preview: &Preview, output: Output, style: Style, now: Timestamp) -> String {
    if let Some(document) = document(output, preview) {
        return document;
    }
    let mut text = String::new();
    let group = preview.group.as_ref().map(|group| format!(", group {group}")).unwrap_or_default();
    let instance = preview.instance.as_ref().map(|id| format!(", instance {id}")).unwrap_or_default();
    let how = if preview.under_way { "the scale-in under way" } else { "a scale-in now" };
    let head = format!("node {}{instance}{group}: {how}, cause {}", preview.node, preview.cause);
    let _ = writeln!(text, "{}", plain(&head));
    for note in &preview.notes {
        let _ = writeln!(text, "{} {}", style.paint(33, "note:"), plain(note));
    }
    let _ = write!(text, "\n{}", pods(preview));
    if !preview.steps.is_empty() {
        let _ = write!(text, "\n{}", steps(preview));
    }
    let _ = writeln!(text, "\n{}", end(&preview.end, style, now));
    text
}

fn pods(preview: &Preview) -> String {
    if preview.pods.is_empty() {
        return "no pods are on the node\n".to_owned();
    }
    let header = ["POD", "WHAT BECOMES OF IT", "ORDER", "PRIORITY", "GRACE", "BUDGETS (ROOM)"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(preview.pods.iter().map(|pod| {
        let budgets: Vec<String> =
            pod.budgets.iter().map(|budget| format!("{} ({})", budget.name, budget.room)).collect();
        let order = if pod.order == i32::MAX { "last".to_owned() } else { pod.order.to_string() };
        vec![
            pod.pod.clone(),
            pod.treatment.in_words().to_owned(),
            order,
            pod.priority.to_string(),
            format!("{}s", pod.grace_seconds),
            budgets.join(", "),
        ]
    }));
    columns(&rows)
}

fn steps(preview: &Preview) -> String {
    let mut rows = vec![["AFTER", "WHAT", "POD", ""].map(str::to_owned).to_vec()];
    rows.extend(preview.steps.iter().map(|step| {
        let what = match step.what {
            What::Phase => "phase",
            What::Evict => "evict",
            What::Blocked => "blocked",
            What::Delete => "delete",
            What::Exit => "exit",
            What::Terminate => "terminate",
            What::CompleteHook => "complete hook",
        };
        let pod = step.pod.clone().unwrap_or_default();
        vec![format!("+{}", lasted(step.after_seconds)), what.to_owned(), pod, step.text.clone()]
    }));
    columns(&rows)
}

fn end(end: &End, style: Style, now: Timestamp) -> String {
    match end {
        End::Released { after_seconds } => {
            let seconds = jiff::SignedDuration::from_secs(i64::try_from(*after_seconds).unwrap_or(i64::MAX));
            let at = crate::clock::later(now, seconds);
            let released = style.paint(32, "released");
            format!("{released} after {} at the latest ({at:.0})", lasted(*after_seconds))
        }
        End::Waits { waiting } => {
            let who: Vec<String> =
                waiting.iter().map(|wait| format!("{} ({})", plain(&wait.pod), plain(&wait.text))).collect();
            let waits = style.paint(31, "waits without a limit");
            format!(
                "{waits} for {}",
                if who.is_empty() { "nothing that is known".to_owned() } else { who.join(", ") }
            )
        }
        End::Refused { why } => format!("{}: {}", style.paint(31, "not possible"), plain(why)),
    }
}
