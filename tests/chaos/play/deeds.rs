//! What happens: causes, damage, people, faults.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebbtide::k8s::names;
use ebbtide::sim::aws::{
    Death, HookSpec, LaunchFailure, LifecycleState, Operation, Power, Refusal, ScheduledChange,
    TerminationCause, Trouble, Which,
};
use ebbtide::sim::ca_drain::{Flags, drain_and_delete};
use ebbtide::sim::world::World;
use ebbtide::sim::{autoscaler, cluster};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::setting::{OURS, SHIPPER, add, postpone};
use super::{BLOCKED, Later, Stage, drainers};
use crate::history::{Machine, Note};
use crate::scenario::{AwsFault, Blow, Cause, Damage, Deed, GroupCause, Pick, Upset, What};

/// The durable record of a scale-in, which people write as well.
pub(crate) const RECORD: &str = "ebbtide/scale-in";

/// A deletion in progress, until this is dropped.
struct InProgress {
    all: Arc<Mutex<BTreeSet<String>>>,
    node: String,
}

impl InProgress {
    /// `None`: the node is being deleted already.
    fn begin(all: &Arc<Mutex<BTreeSet<String>>>, node: &str) -> Option<Self> {
        let is_new = all.lock().insert(node.to_owned());
        is_new.then(|| Self { all: Arc::clone(all), node: node.to_owned() })
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.all.lock().remove(&self.node);
    }
}

/// How long a person waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Operations whose answer comes in pages.
const PAGED: [Operation; 3] = [
    Operation::DescribeAutoScalingGroups,
    Operation::DescribeScalingActivities,
    Operation::DescribeInstances,
];

/// Whether a Node is on its way out, by its record or by cluster-autoscaler's taint.
pub(super) fn is_leaving(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    is_accepted(node) || taints.iter().any(|taint| taint.key == names::TO_BE_DELETED)
}

/// Whether a Node has a record. A wish may be one that cannot be carried out, and stands then.
fn is_accepted(node: &Node) -> bool {
    let record = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(RECORD));
    record.is_some_and(|record| record.starts_with('{'))
}

/// The instance under a Node, and its group.
pub(crate) fn machine(node: &Node) -> Option<Machine> {
    let provider_id = node.spec.as_ref()?.provider_id.as_ref()?;
    Some(Machine {
        node: node.metadata.name.clone()?,
        instance: provider_id.rsplit('/').next()?.to_owned(),
        group: node.metadata.labels.as_ref()?.get(ebbtide::sim::world::POOL)?.clone(),
    })
}

impl Stage {
    pub(super) async fn happen(&mut self, what: &What) {
        match what {
            What::Cause(cause, pick) => self.cause(*cause, *pick).await,
            What::Group(cause, place) => self.group_cause(*cause, *place),
            What::Comes(name) => self.comes(name),
            What::Machine(damage, pick) => self.damage(*damage, *pick),
            What::Person(deed, pick) => self.deed(*deed, *pick).await,
            What::Cluster(upset) => self.upset(*upset).await,
            What::Program(blow, n) => self.blow(*blow, *n).await,
            What::Api { verb, resource, fault, times } => {
                self.world.cluster.fail_next(*times, *verb, resource, *fault);
            }
            What::Aws(fault) => self.aws_fault(fault),
        }
        self.note(Note::Did(what.clone()));
    }

    fn note(&mut self, note: Note) {
        self.diary.note(self.world.clock.now(), note);
    }

    fn nodes(&self) -> Vec<(Machine, Node)> {
        let world = &self.world;
        let nodes = world.cluster.node_names().into_iter().filter_map(|name| world.cluster.node(&name));
        nodes.filter_map(|node| Some((machine(&node)?, node))).collect()
    }

    fn pick(&self, pick: Pick) -> Option<(Machine, Node)> {
        let all = self.nodes();
        let n = pick.checked_rem(all.len())?;
        all.into_iter().nth(n)
    }

    async fn cause(&mut self, cause: Cause, pick: Pick) {
        let Some((machine, node)) = self.pick(pick) else { return };
        // Of a Node whose scale-in is accepted, or whose instance is detached, NodeGroupForNode names no group: cluster-autoscaler does not
        // choose it.
        let by_autoscaler = matches!(cause, Cause::Autoscaler | Cause::AutoscalerOfAll);
        let group = self.world.aws.group(&machine.group);
        let is_a_member = group.is_some_and(|group| group.instances.iter().any(|i| i.id == machine.instance));
        if by_autoscaler && (is_accepted(&node) || !is_a_member) {
            return;
        }
        self.note(Note::Asked(cause, machine.clone()));
        let aws = &self.world.aws;
        match cause {
            Cause::Autoscaler => self.take_out(machine, false),
            Cause::AutoscalerOfAll => self.take_out(machine, true),
            Cause::DeleteNodes => self.delete_nodes(machine, node),
            Cause::Now => self.annotate(&machine.node, Some("now")).await,
            Cause::Replace => self.annotate(&machine.node, Some("replace")).await,
            Cause::Rebalance => aws.terminate(&machine.instance, TerminationCause::Rebalance),
            Cause::Unhealthy => aws.fail_health_check(&machine.instance),
            Cause::ByHand => aws.terminate(&machine.instance, TerminationCause::Request),
            Cause::Spot => aws.interrupt_spot(&machine.instance),
            Cause::RebalanceNotice => aws.recommend_rebalance(&machine.instance),
            Cause::Scheduled | Cause::FarAhead => {
                let in_minutes = if cause == Cause::Scheduled { 20 } else { 10 * 24 * 60 };
                let change = ScheduledChange {
                    id: format!("AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED_{}", machine.instance),
                    code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".to_owned(),
                    starts: self.world.clock.now() + SignedDuration::from_mins(in_minutes),
                    status: "upcoming".to_owned(),
                };
                aws.schedule_change(&change, &[&machine.instance]);
            }
        }
    }

    /// cluster-autoscaler drains and deletes a node.
    fn take_out(&mut self, machine: Machine, evicts_daemon_sets: bool) {
        let Some(mut client) = self.client() else { return };
        let Some(in_progress) = InProgress::begin(&self.in_progress, &machine.node) else { return };
        let flags = Flags { evicts_daemon_sets, ..Flags::default() };
        let (world, autoscaler) = (Arc::clone(&self.world), self.autoscaler.clone());
        self.tasks.spawn(async move {
            let _in_progress = in_progress;
            // What it gives up it leaves as it was; the world's journal has the rest.
            let _ = match autoscaler {
                Some(autoscaler) => autoscaler.scale_in(client, &machine.node, &flags).await,
                None => drain_and_delete(&world, &mut client, &machine.group, &machine.node, &flags).await,
            };
        });
    }

    fn delete_nodes(&mut self, machine: Machine, node: Node) {
        let Some(mut client) = self.client() else { return };
        let diary = self.diary.clone();
        let clock = self.world.clock.clone();
        self.tasks.spawn(async move {
            let call = autoscaler::delete_node(&mut client, &machine.group, &node);
            if matches!(tokio::time::timeout(PATIENCE, call).await, Ok(Ok(()))) {
                diary.note(clock.now(), Note::Accepted(machine));
            }
        });
    }

    fn group_cause(&mut self, cause: GroupCause, place: usize) {
        let Some(group) = self.scenario.groups.get(place).map(|group| group.name) else { return };
        match cause {
            GroupCause::Refresh => self.world.aws.refresh(group),
            GroupCause::Lowered => {
                let Some(now) = self.world.aws.group(group) else { return };
                let lower = now.desired.saturating_sub(1).max(now.min);
                self.world.aws.set_desired(group, lower);
            }
            GroupCause::NoCapacity => {
                self.world.aws.fail_launches(group, LaunchFailure::InsufficientCapacity, 3);
            }
            GroupCause::Unhooked => self.world.aws.delete_hook(group, OURS),
            GroupCause::Volumes => self.world.aws.replace_root_volumes(group),
            GroupCause::Hook(heartbeat) => {
                let hook = HookSpec::terminating(OURS).heartbeat(u64::from(heartbeat));
                self.world.aws.put_hook(group, hook);
            }
        }
        self.note(Note::AskedOfGroup(cause, group.to_owned()));
    }

    fn comes(&mut self, name: &str) {
        let Some(workload) = self.scenario.workloads.iter().find(|workload| workload.name == name) else {
            return;
        };
        let group = workload.comes_to.and_then(|place| self.scenario.groups.get(place));
        add(&self.world.cluster, workload, group.map(|group| group.name));
    }

    fn damage(&mut self, damage: Damage, pick: Pick) {
        let Some((machine, _)) = self.pick(pick) else { return };
        let (cluster, node) = (&self.world.cluster, machine.node.as_str());
        let death = match damage {
            Damage::Impaired => Some(Death::Impaired),
            Damage::Stopped => Some(Death::Stopped),
            Damage::Interrupted => Some(Death::Interrupted),
            _ => None,
        };
        if let Some(death) = death {
            self.world.aws.kill_machine(&machine.instance, death);
            self.dead.insert(machine.instance.clone());
        }
        match damage {
            Damage::KubeletDies => cluster.kill_kubelet(node),
            Damage::Partition => cluster.partition(node),
            Damage::Crash => cluster.crash(node),
            Damage::KubeletRestarts => cluster.restart_kubelet(node),
            Damage::Revive if self.dead.contains(&machine.instance) => return,
            Damage::Revive => cluster.revive(node),
            Damage::Impaired | Damage::Stopped | Damage::Interrupted => {}
        }
        self.note(Note::Damaged(damage, machine));
    }

    /// A node on its way out, or any where there is none; only what is in service may be set aside or detached.
    fn pick_leaving(&self, deed: Deed, pick: Pick) -> Option<(Machine, Node)> {
        let mut nodes = self.nodes();
        if matches!(deed, Deed::SetAside | Deed::Detach) {
            nodes.retain(|(machine, _)| {
                let instance = self.world.aws.instance(&machine.instance);
                instance.is_some_and(|instance| instance.state == LifecycleState::InService)
            });
        }
        let leaving: Vec<_> = nodes.iter().filter(|(_, node)| is_leaving(node)).cloned().collect();
        let all = if leaving.is_empty() { nodes } else { leaving };
        let n = pick.checked_rem(all.len())?;
        all.into_iter().nth(n)
    }

    async fn deed(&mut self, deed: Deed, pick: Pick) {
        let is_about_one_that_leaves =
            matches!(deed, Deed::Cancel | Deed::Mistype | Deed::Uncordon | Deed::SetAside | Deed::Detach);
        let picked = if is_about_one_that_leaves { self.pick_leaving(deed, pick) } else { self.pick(pick) };
        let Some((machine, _)) = picked else { return };
        // Noted first: others see at once what it does.
        self.note(Note::Person(deed, machine.clone()));
        match deed {
            Deed::Cancel => self.annotate(&machine.node, None).await,
            Deed::Mistype => self.annotate(&machine.node, Some("nwo")).await,
            Deed::Cordon => self.patch(&machine.node, json!({ "spec": { "unschedulable": true } })).await,
            Deed::Uncordon => self.patch(&machine.node, json!({ "spec": { "unschedulable": false } })).await,
            Deed::SetAside => self.world.aws.set_aside(&machine.instance, false),
            Deed::Detach => self.world.aws.detach(&machine.instance, false),
            Deed::RollDaemonSet => self.world.cluster.roll(SHIPPER),
            Deed::DeleteNode => {
                let nodes: Api<Node> = Api::all(self.world.cluster.client());
                let _ = tokio::time::timeout(PATIENCE, nodes.delete(&machine.node, &DeleteParams::default()))
                    .await;
            }
            Deed::Drain => drop(self.others.spawn(drainers::drain(Arc::clone(&self.world), machine.node))),
            Deed::Update => {
                let update = drainers::update(Arc::clone(&self.world), self.diary.clone(), machine);
                self.others.spawn(update);
            }
        }
    }

    async fn annotate(&self, node: &str, value: Option<&str>) {
        self.patch(node, json!({ "metadata": { "annotations": { RECORD: value } } })).await;
    }

    /// A person writes to a Node. Who gets no answer gives up.
    async fn patch(&self, node: &str, patch: Value) {
        let nodes: Api<Node> = Api::all(self.world.cluster.client());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let _ = tokio::time::timeout(PATIENCE, nodes.patch(node, &params, &patch)).await;
    }

    async fn upset(&mut self, upset: Upset) {
        let seconds = |n: u32| Duration::from_secs(u64::from(n));
        let cluster = &self.world.cluster;
        let busy = cluster::Fault::TooManyRequests { retry_after_seconds: 1 };
        match upset {
            Upset::Down(n) => cluster.api_down_for(seconds(n)),
            Upset::CloseWatches => cluster.close_watches(),
            Upset::SilenceWatches => cluster.silence_watches(),
            Upset::RefuseWatches(times) => {
                for (resource, times) in [("pods", times), ("nodes", times / 5)] {
                    cluster.fail_next(times, cluster::Verb::Watch, resource, busy);
                }
                cluster.close_watches();
            }
            Upset::Forget => cluster.compact_history(),
            Upset::Unauthorized(n) => cluster.expire_tokens_for(seconds(n)),
            Upset::ShippersCrash => drop(self.others.spawn(crash_shippers(Arc::clone(&self.world)))),
            Upset::OtherControllerManager => cluster.change_leader(),
            Upset::AutoscalerRestarts => self.restart_autoscaler().await,
        }
    }

    async fn blow(&mut self, blow: Blow, n: usize) {
        let Some(replica) = self.replicas.get_mut(n) else { return };
        match blow {
            Blow::Pause(seconds) => {
                let Some(switch) = replica.switch.as_ref().filter(|_| replica.program.is_some()) else {
                    return;
                };
                switch.send_replace(true);
                self.note(Note::Gone(n));
                self.reach();
                self.later(seconds, Later::Resume(n));
            }
            Blow::Clock(by) => {
                if let Some(program) = &replica.program {
                    program.step_clock(SignedDuration::from_secs(i64::from(by)));
                }
            }
            Blow::Kill(away) => {
                let Some(program) = replica.program.take() else { return };
                program.kill().await;
                self.goes(n, away);
            }
            Blow::Stop(away) => {
                let Some(program) = replica.program.take() else { return };
                // What it says of its end is for an operator.
                let _ = program.stop().await;
                self.goes(n, away);
            }
        }
    }

    fn goes(&mut self, n: usize, away: u32) {
        self.note(Note::Gone(n));
        self.reach();
        self.later(away, Later::Start(n));
    }

    fn aws_fault(&mut self, fault: &AwsFault) {
        let seconds = |n: u32| Duration::from_secs(u64::from(n));
        let aws = &self.world.aws;
        match *fault {
            AwsFault::Refused { operation, code, status, side, times } => {
                let refusal = Refusal { code, status, message: "chaos" };
                aws.trouble(Which::of(&[operation]).times(times), Trouble::Refused(refusal, side));
            }
            AwsFault::Lost { operation, side, silently, times } => {
                let trouble = if silently { Trouble::Silent(side) } else { Trouble::Lost(side) };
                aws.trouble(Which::of(&[operation]).times(times), trouble);
            }
            AwsFault::Late { operation, by, times } => {
                aws.trouble(Which::of(&[operation]).times(times), Trouble::Late(seconds(by)));
            }
            AwsFault::Stale { by, lasting } => {
                aws.trouble(Which::any().lasting(seconds(lasting)), Trouble::Stale(seconds(by)));
            }
            AwsFault::Throttled { percent, lasting } => {
                aws.throttle_share(f64::from(percent) / 100.0);
                self.later(lasting, Later::Unthrottled);
            }
            AwsFault::Credentials { lasting } => {
                aws.expire_credentials(seconds(lasting));
                self.note(Note::AwsAway);
                self.later(lasting, Later::AwsBack);
            }
            AwsFault::Outage { lasting } => {
                aws.outage(true);
                self.note(Note::AwsAway);
                self.later(lasting, Later::AwsBack);
            }
            AwsFault::Unreadable { operation, times } => {
                aws.trouble(Which::of(&[operation]).times(times), Trouble::Unreadable);
            }
            AwsFault::EmptyPage { times } => {
                aws.trouble(Which::of(&PAGED).times(times), Trouble::EmptyPage);
            }
        }
    }

    /// Everything works again, and nothing holds a node for ever that may.
    pub(super) async fn mend(&mut self) {
        let now = self.world.clock.now();
        for later in std::mem::take(&mut self.later).into_values() {
            self.follow(later).await;
        }
        let (aws, cluster) = (&self.world.aws, &self.world.cluster);
        aws.outage(false);
        aws.throttle_share(0.0);
        aws.no_more_trouble();
        cluster.no_more_faults();
        cluster.api_up();
        for name in cluster.node_names() {
            let instance =
                cluster.node(&name).and_then(|node| machine(&node)).map(|machine| machine.instance);
            // One that AWS has stopped, for the warm pool for instance, or ends stays down.
            let is_on = |instance: &String| {
                let machine = aws.instance(instance);
                machine.is_none_or(|machine| matches!(machine.power, Power::Pending | Power::Running))
                    && !self.dead.contains(instance)
            };
            if instance.as_ref().is_none_or(is_on) {
                cluster.revive(&name);
            }
        }
        self.end_what_was_set_aside();
        for n in 0..self.replicas.len() {
            self.start(n);
        }
        self.diary.note(now, Note::Mended);
        if self.scenario.stays_blocked {
            for workload in self.scenario.workloads.iter().filter(|workload| workload.is_postponed) {
                postpone(&self.world.cluster, workload);
            }
            self.later(BLOCKED, Later::Unblocked);
        } else {
            self.unblock();
        }
    }

    /// Somebody ends the instances in Standby.
    fn end_what_was_set_aside(&mut self) {
        for (machine, _) in self.nodes() {
            let instance = self.world.aws.instance(&machine.instance);
            if instance.is_some_and(|instance| instance.state == LifecycleState::Standby) {
                self.world.aws.terminate(&machine.instance, TerminationCause::Request);
                self.note(Note::Asked(Cause::ByHand, machine));
            }
        }
    }

    /// Neither a budget nor a webhook holds a node for ever.
    pub(super) fn unblock(&self) {
        self.world.cluster.no_more_faults();
        for workload in &self.scenario.workloads {
            // Also where pods find no place any more, and a budget that is not met lets nobody go. One that wants nobody ready lets no unready
            // pod go either, unless it says so.
            if workload.budget.is_some() {
                let budget = cluster::budget(workload.name.as_str()).min_available(0);
                self.world.cluster.add(budget.always_allows_unhealthy());
            }
        }
    }

    /// Somebody ends pods that asked to be waited for, and takes finalizers off.
    pub(super) async fn let_go(&mut self) {
        let cluster = &self.world.cluster;
        if !self.scenario.workloads.iter().any(|workload| workload.is_patient || workload.has_finalizer) {
            return;
        }
        let pods: Api<Pod> = Api::namespaced(cluster.client(), "default");
        for pod in cluster.list::<Pod>() {
            let name = pod.metadata.name.unwrap_or_default();
            let Some(workload) = self.scenario.workload_of(&name) else { continue };
            if workload.has_finalizer && pod.metadata.finalizers.is_some() {
                let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
                let _ = pods.patch(&name, &PatchParams::default(), &none).await;
            }
            if workload.is_patient
                && !workload.is_daemon()
                && self.on_a_leaving_node(pod.spec.and_then(|spec| spec.node_name))
            {
                let _ = pods.delete(&name, &DeleteParams::default()).await;
            }
        }
    }

    fn on_a_leaving_node(&self, node: Option<String>) -> bool {
        node.and_then(|name| self.world.cluster.node(&name)).is_some_and(|node| is_leaving(&node))
    }
}

/// The log shipper of each node that leaves crashes, and once more when no workload is left there.
async fn crash_shippers(world: Arc<World>) {
    let is_shipper = |pod: &Pod| pod.name_any().starts_with(SHIPPER);
    let is_daemon = |pod: &Pod| pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    let mut crashes = BTreeSet::new();
    loop {
        for node in world.cluster.list::<Node>().iter().filter(|node| is_leaving(node)) {
            let pods = world.cluster.pods_on(&node.name_any());
            let is_empty = pods.iter().all(is_daemon);
            for shipper in pods.iter().filter(|pod| is_shipper(pod)) {
                if crashes.insert((shipper.uid(), is_empty)) {
                    world.cluster.crash_pod(shipper.name_any().as_str());
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
