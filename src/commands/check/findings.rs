//! From facts to findings. Pure: each function looks at one kind of fact.

use std::time::Duration;

use super::facts::{Autoscalers, Facts, GroupFacts, RightFact};
use super::finding::{Finding, Severity, add, in_words};
use super::queues::queues;
use super::rights::Need;
use super::simulation::simulation;
use crate::aws::{AwsError, Frozen, Operation};
use crate::cluster::{DeployedContainer, LeaseHolder, PodName, is_identity};
use crate::groups::managed_hooks::can_retain;
use crate::k8s::names;
use crate::provider::TlsProblem;
use crate::scale_in::{MARGIN, drain_timeout};
use crate::telemetry::chain;
use crate::template::devices::LABEL;
use crate::template::tags;

/// The tag that the policies in `deploy/aws/iam` ask for before anything of a group is changed.
const POLICY_TAG: &str = "k8s.io/cluster-autoscaler/enabled";

/// The same, before the cluster's name, in the role that `deploy/aws/terraform` makes.
const POLICY_TAG_OF_CLUSTER: &str = "k8s.io/cluster-autoscaler/";

/// cluster-autoscaler cuts graces at this unless told otherwise.
///
/// Source: [FAQ of cluster-autoscaler](https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md), `max-graceful-termination-sec`.
const AUTOSCALER_GRACE: u64 = 600;

/// cluster-autoscaler takes so many nodes at once unless told otherwise.
///
/// Source: `max-scale-down-parallelism` in
/// [`main.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.30.2/cluster-autoscaler/main.go), and `CropNodes` in
/// [`budgets.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.30.2/cluster-autoscaler/core/scaledown/budgets/budgets.go).
const SCALE_DOWN_PARALLELISM: u32 = 10;

/// The oldest minor version of cluster-autoscaler 1 that this program is tested with.
const OLDEST_MINOR: u32 = 30;

/// Everything found, the worst first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    rights(facts, &mut found);
    aws(facts, &mut found);
    left_out(facts, &mut found);
    deletable(facts, &mut found);
    provider_ids(facts, &mut found);
    graces(facts, &mut found);
    for group in &facts.groups {
        wishes(group, &mut found);
        hook(facts, group, &mut found);
        settings(facts, group, &mut found);
    }
    queues(&facts.queues, &mut found);
    simulation(facts, &mut found);
    autoscaler(facts, &mut found);
    gpus(facts, &mut found);
    leases(facts, &mut found);
    tls(facts, &mut found);
    found.sort();
    found
}

fn rights(facts: &Facts, found: &mut Vec<Finding>) {
    for RightFact { right, need, allowed } in &facts.rights {
        let (severity, why) = match need {
            Need::Always => (Severity::Error, String::new()),
            Need::For(flag) => (Severity::Error, format!(" (for {flag})")),
            Need::Optional(loss) => (Severity::Note, format!(": {loss}")),
        };
        match allowed {
            Ok(true) => {}
            Ok(false) => {
                let file = if right == "delete nodes" { "rbac-delete-nodes.yaml" } else { "base/rbac.yaml" };
                let fix = format!(
                    "kubectl apply -f deploy/{file}, or helm upgrade; if you run this as yourself, run it as the program: \
                     kubectl -n NAMESPACE exec deploy/ebbtide -- ebbtide check"
                );
                add(found, severity, "rbac", right, format!("this right is missing{why}"), fix);
            }
            Err(error) => {
                let text = format!("could not be asked for: {error}");
                add(found, Severity::Error, "rbac", right, text, "see that the API server can be reached");
            }
        }
    }
}

fn aws(facts: &Facts, found: &mut Vec<Finding>) {
    for operation in &facts.denied {
        let fix = format!("allow {} in the role's policies: deploy/aws/iam", operation.action());
        add(found, Severity::Error, "iam", operation.action(), "AWS denies it", fix);
    }
    if let Some(error) = &facts.aws_error {
        let fix = "see region, credentials and the way to AWS";
        add(found, Severity::Error, "aws", "groups", format!("could not be read: {error}"), fix);
    } else if facts.selected().is_some_and(|selected| selected.is_empty()) {
        let fix = "tag the groups, or correct --node-group-auto-discovery, --nodes and --cluster-name";
        add(found, Severity::Error, "groups", "selectors", "select no group", fix);
    }
    match &facts.load_balancers {
        // Told above.
        Ok(()) | Err(AwsError::Denied { .. }) => {}
        Err(error) => {
            let fix = "see the way to Elastic Load Balancing (in a private network its VPC endpoint), or take --wait-for-load-balancers off";
            let text = format!(
                "their targets could not be read: every release waits for the deregistration delay: {}",
                chain(error)
            );
            add(found, Severity::Error, "aws", "load balancers", text, fix);
        }
    }
    match &facts.prices {
        // Told above.
        Ok(()) | Err(AwsError::Denied { .. }) => {}
        Err(error) => {
            let text = format!("could not be read: the built-in table stands in for them: {}", chain(error));
            add(
                found,
                Severity::Warning,
                "aws",
                "prices",
                text,
                "see the way to EC2 and the Price List, or --prices=table",
            );
        }
    }
    if facts.may_tag == Some(false) && !facts.denied.contains(&Operation::CreateTags) {
        let fix = "allow ec2:CreateTags and ec2:DeleteTags for the tag ebbtide/protected-from-scale-in: deploy/aws/iam/size.json";
        add(found, Severity::Error, "iam", "ec2:CreateTags", "AWS would deny it (dry run)", fix);
    }
}

/// Groups that somebody may believe to be selected, and that are not.
fn left_out(facts: &Facts, found: &mut Vec<Finding>) {
    for name in &facts.selection.absent {
        let text = "is named by --nodes and does not exist: nothing of it is scaled or drained";
        let fix = "correct the name in --nodes, or --region";
        add(found, Severity::Error, "groups", name.as_str(), text, fix);
    }
    let of_others: Vec<_> = facts.selection.of_others.iter().map(|name| name.as_str()).collect();
    if !of_others.is_empty() {
        let text = "selected, but the tags name another cluster: left out, nothing is scaled or drained";
        let fix = "if they are ours: their tags kubernetes.io/cluster/NAME, or --cluster-name, or --nodes, which has a group whatever its tags say; \
                   if not: a tag of our cluster in --node-group-auto-discovery";
        add(found, Severity::Warning, "groups", of_others.join(", "), text, fix);
    }
}

/// Groups that can be deleted together with their instances.
fn deletable(facts: &Facts, found: &mut Vec<Finding>) {
    let deletable = facts.groups.iter().filter(|group| group.asg.force_deletable);
    let deletable: Vec<_> = deletable.map(|group| group.asg.name.as_str()).collect();
    if !deletable.is_empty() {
        let text =
            "can be deleted together with their instances, which then end undrained, their hooks with them";
        let fix = "aws autoscaling update-auto-scaling-group --auto-scaling-group-name NAME --deletion-protection prevent-force-deletion";
        add(found, Severity::Note, "groups", deletable.join(", "), text, fix);
    }
}

/// Nodes of which nobody can tell the machine.
fn provider_ids(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(first) = facts.unidentified.first() else { return };
    let more = facts.unidentified.len() - 1;
    let without = facts.groups.iter().filter(|group| group.is_without_nodes);
    let without: Vec<_> = without.map(|group| group.asg.name.as_str()).collect();
    let text =
        format!("has no provider id aws:///ZONE/INSTANCE (and {more} more): in no group, and never drained");
    if without.is_empty() {
        let fix = "nothing, if no Auto Scaling group has its machine";
        return add(found, Severity::Note, "provider ids", first.as_str(), text, fix);
    }
    let text =
        format!("{text}; may be of any instance of {}, none of which has another Node", without.join(", "));
    let fix =
        "the AWS cloud controller, or kubelet's --provider-id (docs/install.md), and the Node made anew";
    add(found, Severity::Error, "provider ids", first.as_str(), text, fix);
}

/// Whether the graces of pods are known, which [`hook`] and [`settings`] hold against hooks and deadlines.
fn graces(facts: &Facts, found: &mut Vec<Finding>) {
    if let Err(error) = &facts.graces {
        let text = format!("could not be read: graces were not checked against hooks and deadlines: {error}");
        let fix = "run it again; if it stays so, see that the API server can be reached, and the findings about rights";
        add(found, Severity::Warning, "deadlines", "Nodes and pods", text, fix);
    }
}

/// Pods whose annotations mean nothing: in a drain they would not count.
fn wishes(group: &GroupFacts, found: &mut Vec<Finding>) {
    let Some((pod, annotation)) = group.unreadable.first() else { return };
    let more = group.unreadable.len() - 1;
    let text =
        format!("pod {pod} has an invalid value in {annotation}, which is ignored ({more} more like it)");
    add(
        found,
        Severity::Warning,
        "pods",
        group.asg.name.as_str(),
        text,
        "see the values in docs/scale-in.md",
    );
}

/// Hooks: missing, too short for the pods on the group's nodes, another's, retained without ABANDON or with a warm pool.
fn hook(facts: &Facts, group: &GroupFacts, found: &mut Vec<Finding>) {
    let name = group.asg.name.as_str();
    let Some(hooks) = &group.hooks else {
        let fix = "run it again; if it stays so, see the findings about IAM";
        return add(found, Severity::Warning, "hooks", name, "its lifecycle hooks could not be read", fix);
    };
    let ours = &facts.lifecycle_hook;
    let Some(hook) = &hooks.ours else {
        let text = "no lifecycle hook of ours: what the group ends by itself (rebalance, refresh, health) does not wait for its drain";
        // A group that retains does so only with a hook that is abandoned.
        let abandons = group.asg.retains && can_retain(&group.asg, hooks);
        let result = if abandons { "ABANDON" } else { "CONTINUE" };
        let fix = format!(
            "aws autoscaling put-lifecycle-hook --auto-scaling-group-name {name} --lifecycle-hook-name {ours} \
             --lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING --heartbeat-timeout 300 \
             --default-result {result}, or --manage-lifecycle-hooks"
        );
        return add(found, Severity::Warning, "hooks", name, text, fix);
    };
    if hooks.others {
        let text = "somebody else has a terminating hook as well (EKS drains by rules of its own): nodes are drained before AWS is told";
        add(found, Severity::Note, "hooks", name, text, "nothing, unless that hook is left over");
    }
    if hooks.others_abandon {
        let text = if group.asg.retains {
            "the group retains instances whose hook is abandoned, and somebody else's hook times out with ABANDON: an instance its owner \
             forgets is kept, and kept again when ended"
        } else {
            "somebody else's hook times out with ABANDON, which ends ours as well: an instance that the group takes out and that hook's owner \
             forgets ends at its time-out, whatever runs on it"
        };
        let fix = "that hook's default result CONTINUE, or the hook taken off if it is left over";
        add(found, Severity::Warning, "hooks", name, text, fix);
    }
    let holds = hook.drain_limit();
    if let Some((grace, pod)) = &group.longest_grace {
        let needs = *grace + facts.flush + MARGIN;
        if holds < needs {
            let text = format!(
                "hook {ours} holds an instance for {} at most; pod {pod} on its nodes has a grace of {}",
                in_words(holds),
                in_words(*grace)
            );
            let seconds = needs.as_secs().div_ceil(99);
            let fix = if hook.is_shorter_than_by_rule() {
                "shorter graces: AWS lets this hook hold for less than 100 heartbeat time-outs (GlobalTimeout)".to_owned()
            } else {
                format!("a heartbeat time-out of at least {} s (100 of them, less one)", seconds.max(30))
            };
            add(found, Severity::Warning, "hooks", name, text, fix);
        }
    }
    if group.asg.retains && group.asg.warm_pool.is_some() {
        if hook.abandons {
            let text = "the group retains instances whose hook is abandoned, even in its warm pool, where nobody terminates them";
            let fix = "set the hook's default result to CONTINUE, or --manage-lifecycle-hooks";
            add(found, Severity::Warning, "hooks", name, text, fix);
        } else {
            let text = "the group retains no instance whose hook times out: it has a warm pool, so the hook's default result is CONTINUE";
            let fix = "nothing, or a longer --hook-heartbeat, which outlives longer outages";
            add(found, Severity::Note, "hooks", name, text, fix);
        }
    } else if group.asg.retains && !hook.abandons && can_retain(&group.asg, hooks) {
        let text = "the group retains instances whose hook is abandoned, but the hook's default result is CONTINUE: none is";
        let fix = "set the hook's default result to ABANDON, or --manage-lifecycle-hooks=retain";
        add(found, Severity::Warning, "hooks", name, text, fix);
    }
}

/// The tag that policies ask for before anything of a group is changed: another one in the role that Terraform makes.
fn policy_tags(GroupFacts { asg, .. }: &GroupFacts, found: &mut Vec<Finding>) {
    let name = asg.name.as_str();
    let of_cluster =
        |key: &String| key.strip_prefix(POLICY_TAG_OF_CLUSTER).is_some_and(|cluster| !cluster.contains('/'));
    if asg.tags.contains_key(POLICY_TAG) {
        return;
    }
    let (severity, text) = if asg.tags.keys().any(of_cluster) {
        let text =
            format!("has no tag {POLICY_TAG}: IAM policies as shipped ask for it, Terraform's role does not");
        (Severity::Note, text)
    } else {
        let text = format!(
            "has no tag {POLICY_TAG} (Terraform's role: {POLICY_TAG_OF_CLUSTER}CLUSTER): IAM policies as shipped let nothing of it be changed"
        );
        (Severity::Warning, text)
    };
    add(found, severity, "tags", name, text, "tag the group, or put your own tag into the policy");
}

/// What a group's own settings mean for the program.
fn settings(facts: &Facts, group: &GroupFacts, found: &mut Vec<Finding>) {
    let (asg, name) = (&group.asg, group.asg.name.as_str());
    for bad in tags::read(&asg.tags).1 {
        let text =
            format!("tag {} says {:?}, which is skipped: it is to be {}", bad.key, bad.value, bad.expected);
        add(found, Severity::Warning, "tags", name, text, "correct the tag");
    }
    policy_tags(group, found);
    if asg.is_weighted() {
        let text = "gives its instances weights: its sizes are units, cluster-autoscaler cannot grow it";
        add(found, Severity::Warning, "groups", name, text, "take the weights off, or leave the group out");
    }
    for process in ["Launch", "Terminate"].into_iter().filter(|process| asg.suspended.contains(*process)) {
        let text = format!("process {process} is suspended");
        let fix = format!(
            "aws autoscaling resume-processes --auto-scaling-group-name {name} --scaling-processes {process}"
        );
        add(found, Severity::Warning, "groups", name, text, fix);
    }
    if asg.ends_unhealthy_targets {
        let text = "ends instances that its load balancer finds unhealthy: if that checks kube-proxy (port 10256), draining nodes fail \
            and are replaced in mid-drain";
        let fix = format!(
            "aws autoscaling update-auto-scaling-group --auto-scaling-group-name {name} --health-check-type EC2, \
             or a health check that does not ask kube-proxy"
        );
        add(found, Severity::Warning, "groups", name, text, fix);
    }
    match &asg.frozen {
        Some(Frozen::OperatedBy(service)) => {
            let text = format!("is operated by {service}: AWS refuses every change of ours");
            add(found, Severity::Warning, "groups", name, text, "leave the group out");
        }
        Some(Frozen::Deleting) => add(found, Severity::Note, "groups", name, "is being deleted", "nothing"),
        None => {}
    }
    if let Some(error) = &group.template_error {
        let text = format!("has no template, and cannot grow from zero: {error}");
        add(found, Severity::Warning, "templates", name, text, "see docs/templates.md");
    }
    let limit = drain_timeout(tags::drain_timeout(&asg.tags), facts.drain_timeout);
    if let (Some(limit), Some((grace, pod))) = (limit, &group.longest_grace)
        && limit < *grace + facts.flush + MARGIN
    {
        let text = format!(
            "drains end after {}; pod {pod} on its nodes has a grace of {}",
            in_words(limit),
            in_words(*grace)
        );
        let fix = "a longer --drain-timeout, or tag ebbtide/drain-timeout of the group";
        add(found, Severity::Warning, "deadlines", name, text, fix);
    }
}

fn autoscaler(facts: &Facts, found: &mut Vec<Finding>) {
    const CHECK: &str = "cluster-autoscaler";
    if let Autoscalers::Unknown(error) = &facts.autoscalers {
        let text = format!("its flags were not checked: {error}");
        let fix = "run it as somebody who may list Deployments";
        return add(found, Severity::Note, CHECK, "Deployments", text, fix);
    }
    let all = autoscalers(facts);
    if all.is_empty() {
        let text = "no Deployment runs it";
        return add(found, Severity::Note, CHECK, "Deployments", text, "nothing, if it runs elsewhere");
    }
    let longest = facts.groups.iter().filter_map(|group| group.longest_grace.clone()).max();
    for container in all {
        flags(container, longest.as_ref(), found);
    }
    for GroupFacts { asg, asking_us_alone, .. } in &facts.groups {
        let Some(pod) = asking_us_alone.first() else { continue };
        let more = asking_us_alone.len() - 1;
        let text = format!(
            "empties occupied nodes itself before it asks ebbtide, and does not know that pod {pod} (and {more} more) asks not to be disturbed"
        );
        let fix = "annotate such pods with cluster-autoscaler.kubernetes.io/safe-to-evict: \"false\" as well";
        add(found, Severity::Warning, CHECK, asg.name.as_str(), text, fix);
    }
}

/// The first minor version of cluster-autoscaler 1 that reckons quotas from all Nodes.
const RECKONS_QUOTAS_OF_NODES: u32 = 35;

/// Nodes for which cluster-autoscaler can find no GPU, neither on them nor in a group's template.
///
/// Source: `calculateUsages` in
/// [`resourcequotas/usage.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/resourcequotas/usage.go).
fn gpus(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(first) = facts.without_their_gpus.first() else { return };
    let more = facts.without_their_gpus.len() - 1;
    let all = autoscalers(facts);
    let is_older =
        |one: &&DeployedContainer| minor(&one.image).is_some_and(|minor| minor < RECKONS_QUOTAS_OF_NODES);
    let is_harmless = !all.is_empty() && all.iter().all(is_older);
    let text = format!(
        "is in no group, has the label {LABEL} and offers no GPU (and {more} more): from 1.35 on cluster-autoscaler neither grows nor \
         shrinks any group while it is there"
    );
    add(
        found,
        if is_harmless { Severity::Note } else { Severity::Warning },
        "cluster-autoscaler",
        first.as_str(),
        text,
        "see its device plugin, or take the label off",
    );
}

/// The containers that run cluster-autoscaler, as far as is known.
fn autoscalers(facts: &Facts) -> Vec<&DeployedContainer> {
    match &facts.autoscalers {
        Autoscalers::Seen(containers) => containers.iter().filter(|one| is_autoscaler(one)).collect(),
        Autoscalers::Unknown(_) => Vec::new(),
    }
}

fn is_autoscaler(container: &DeployedContainer) -> bool {
    let names = |text: &str| text.contains("cluster-autoscaler");
    names(&container.image) || container.args.first().is_some_and(|command| names(command))
}

/// The last value of a flag; an empty one if it stands alone.
fn flag<'a>(container: &'a DeployedContainer, name: &str) -> Option<&'a str> {
    let args = || container.args.iter().enumerate();
    args().rev().find_map(|(at, arg)| {
        let given = arg.trim_start_matches('-');
        if given == name {
            let next = container.args.get(at + 1).filter(|next| !next.starts_with('-'));
            return Some(next.map_or("", String::as_str));
        }
        given.strip_prefix(name)?.strip_prefix('=')
    })
}

/// Whether a duration, as Go writes them, is zero, whatever its unit.
fn is_zero(duration: &str) -> bool {
    !duration.contains(|digit: char| matches!(digit, '1'..='9'))
}

fn flags(container: &DeployedContainer, longest: Option<&(Duration, PodName)>, found: &mut Vec<Finding>) {
    let mut say = |severity, text: String, fix: &str| {
        add(found, severity, "cluster-autoscaler", container.deployment.as_str(), text, fix);
    };
    let is_on = |name: &str| matches!(flag(container, name), Some("" | "true"));
    if flag(container, "cloud-provider") != Some("externalgrpc") {
        let text = "does not use this provider: --cloud-provider is not externalgrpc".to_owned();
        return say(Severity::Warning, text, "--cloud-provider=externalgrpc --cloud-config=…");
    }
    if flag(container, "daemonset-eviction-for-occupied-nodes") != Some("false") {
        let text =
            "evicts DaemonSet pods together with the workloads, before it calls DeleteNodes".to_owned();
        say(Severity::Warning, text, "--daemonset-eviction-for-occupied-nodes=false");
    }
    if is_on("daemonset-eviction-for-empty-nodes") {
        let text = "evicts DaemonSet pods of empty nodes, before it calls DeleteNodes".to_owned();
        say(Severity::Warning, text, "--daemonset-eviction-for-empty-nodes=false");
    }
    let cap = flag(container, "max-graceful-termination-sec").and_then(|text| text.parse().ok());
    let cap = cap.unwrap_or(AUTOSCALER_GRACE);
    if let Some((grace, pod)) = longest.filter(|(grace, _)| grace.as_secs() > cap) {
        let text = format!("cuts every grace at {cap} s; pod {pod} has {}", in_words(*grace));
        say(Severity::Warning, text, "--max-graceful-termination-sec=172800");
    }
    if flag(container, "drain-priority-config").is_some_and(|graces| !graces.is_empty()) {
        let text = "cuts graces at what --drain-priority-config gives pods of their priority".to_owned();
        say(Severity::Warning, text, "nothing in its place: leave it out");
    }
    let at_once = flag(container, "max-drain-parallelism").and_then(|text| text.parse().ok()).unwrap_or(1);
    if cap > AUTOSCALER_GRACE && at_once <= 1 {
        let text = format!(
            "drains one node at a time, and waits {cap} s for a pod that does not go: no other node is scaled in meanwhile"
        );
        say(Severity::Warning, text, "--max-drain-parallelism=10");
    }
    let in_all = scale_down_parallelism(container);
    if cap > AUTOSCALER_GRACE && in_all <= at_once {
        let text = format!(
            "scales in {in_all} nodes at a time, and may wait {cap} s for each of {at_once} that it drains: then no other node leaves, not even an empty one"
        );
        say(Severity::Warning, text, &format!("--max-scale-down-parallelism={}", at_once.saturating_mul(2)));
    }
    if flag(container, "node-info-cache-expire-time").is_none() {
        let text =
            "models a group at zero on its last node, even after its launch template or tags have changed"
                .to_owned();
        say(Severity::Note, text, "--node-info-cache-expire-time=10m");
    }
    if flag(container, "node-deletion-batcher-interval").is_some_and(|interval| !is_zero(interval)) {
        let text = "batches emptied nodes before it calls DeleteNodes: one that leaves its group meanwhile costs all of them their \
            scale-in".to_owned();
        say(Severity::Warning, text, "--node-deletion-batcher-interval=0s, or leave it out");
    }
    for name in ["force-delete-unregistered-nodes", "force-delete-failed-nodes"] {
        if is_on(name) {
            let text =
                format!("--{name}: ebbtide keeps the group's minimum all the same (docs/autoscaler.md)");
            say(Severity::Note, text, "nothing, or leave it out");
        }
    }
    if is_on("balance-similar-node-groups") {
        let ignores = |label: &str| {
            container.args.iter().any(|arg| arg.ends_with(&format!("balancing-ignore-label={label}")))
        };
        let named = container.args.iter().any(|arg| arg.contains("balancing-label"));
        if !named && !ignores(names::EBS_ZONE) {
            let text =
                "balances groups, and does not leave out labels that differ by zone: it finds none alike"
                    .to_owned();
            say(
                Severity::Warning,
                text,
                "--balancing-ignore-label for each label that docs/coming-from-in-tree.md names",
            );
        }
    }
    match minor(&container.image) {
        Some(minor) if minor < OLDEST_MINOR => {
            let text = format!("version 1.{minor} is older than what is tested (1.{OLDEST_MINOR})");
            say(Severity::Warning, text, "a newer version");
        }
        Some(_) => {}
        None => {
            let text = format!("its version cannot be told by its image {:?}", container.image);
            say(Severity::Note, text, "nothing");
        }
    }
}

/// How many nodes leave at once, empty or drained. Versions that know `--max-empty-bulk-delete` take that where the other is not given.
fn scale_down_parallelism(container: &DeployedContainer) -> u32 {
    let given = flag(container, "max-scale-down-parallelism").or(flag(container, "max-empty-bulk-delete"));
    given.and_then(|text| text.parse().ok()).unwrap_or(SCALE_DOWN_PARALLELISM)
}

/// The minor version in an image's tag, `…:v1.30.2`.
fn minor(image: &str) -> Option<u32> {
    let tag = image.split('@').next()?.rsplit_once(':')?.1.trim_start_matches('v');
    tag.strip_prefix("1.")?.split(['.', '-']).next()?.parse().ok()
}

fn leases(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(lease) = &facts.lease_name else {
        let text = "no election (--leader-elect=false): two processes would drain side by side";
        return add(found, Severity::Note, "lease", "election", text, "run one process only");
    };
    match &facts.lease {
        Ok(holder) if holder.holder.is_empty() => {
            let text = "nobody holds it: nothing is drained";
            let fix = "start ebbtide, and see its log; or name its namespace (--namespace)";
            add(found, Severity::Warning, "lease", lease, text, fix);
        }
        Ok(_) => {}
        Err(error) => {
            let fix = "name ebbtide's namespace (--namespace), or kubectl apply -f deploy/base/rbac.yaml";
            add(found, Severity::Error, "lease", lease, format!("cannot be read: {error}"), fix);
        }
    }
    // Without a holder of ours nobody knows which of them is another's.
    let Some(own) = facts.lease.as_ref().ok().filter(|own| !own.holder.is_empty()) else { return };
    let is_ours = |other: &LeaseHolder| (&own.namespace, &own.name) == (&other.namespace, &other.name);
    let leases = facts.leases.iter().flatten();
    let others = leases.filter(|other| is_identity(&other.holder) && !is_ours(other));
    for other in others {
        let subject = format!("{}/{}", other.namespace, other.name);
        let text = format!(
            "another ebbtide holds this Lease ({}): it is to share no group with this one",
            other.holder
        );
        let fix = "where they share some, both drain the same nodes: run one installation, or select other groups in each";
        add(found, Severity::Warning, "lease", subject, text, fix);
    }
}

/// Certificates and revocation lists that cannot be used, or end soon.
fn tls(facts: &Facts, found: &mut Vec<Finding>) {
    for problem in &facts.tls {
        let ends = matches!(problem, TlsProblem::Ends { .. });
        let severity = if ends { Severity::Warning } else { Severity::Error };
        let fix = "renew it, and replace the file: it is read again without a restart";
        add(found, severity, "tls", problem.file().to_string(), chain(problem), fix);
    }
}
