//! What was exercised: shapes, causes and faults, by name. One that no seed of a run had fails the run.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide::sim::{aws, cluster};
use jiff::SignedDuration;

use crate::history::History;
use crate::invariants::calm_minutes;
use crate::scenario::{AwsFault, Blow, Budget, Kind, Scenario, Upset, What};

/// Seeds in a row from which on each line must have been exercised.
pub(crate) const ENOUGH: u64 = 40;

/// Everything that a run of enough seeds has. What the worlds did stands last: it shows that the rest had its effect.
const LINES: &[&str] = &[
    "hook: ours",
    "hook: theirs",
    "hook: both",
    "hook: none",
    "hook: put by the program",
    "group: retains",
    "group: warm pool",
    "group: weights",
    "group: spot",
    "group: two zones",
    "group: several",
    "group: load balancers",
    "subnets: addresses come back",
    "program: two replicas",
    "program: drain timeout",
    "program: queue",
    "autoscaler: old",
    "autoscaler: new",
    "autoscaler: none",
    "autoscaler: gives up soon",
    "pods: Replicas",
    "pods: Stateful",
    "pods: Job",
    "pods: Bare",
    "pods: Daemon",
    "pods: absurd grace",
    "pods: no grace",
    "pods: graces of hours",
    "pods: patient",
    "pods: tolerate everything",
    "pods: finalizer",
    "pods: order",
    "pods: priority",
    "pods: preStop",
    "pods: blocked by a budget",
    "pods: budget",
    "pods: postponed by a webhook",
    "cause: Autoscaler",
    "cause: AutoscalerOfAll",
    "cause: DeleteNodes",
    "cause: Now",
    "cause: Replace",
    "cause: Rebalance",
    "cause: Unhealthy",
    "cause: ByHand",
    "cause: Spot",
    "cause: RebalanceNotice",
    "cause: Scheduled",
    "cause: FarAhead",
    "cause: Refresh",
    "cause: Lowered",
    "cause: NoCapacity",
    "cause: pods come",
    "cause: Hook",
    "cause: Unhooked",
    "cause: Volumes",
    "person: Cancel",
    "person: Mistype",
    "person: Cordon",
    "person: Uncordon",
    "person: SetAside",
    "person: Detach",
    "person: RollDaemonSet",
    "person: DeleteNode",
    "person: Drain",
    "person: Update",
    "machine: KubeletDies",
    "machine: Partition",
    "machine: Crash",
    "machine: KubeletRestarts",
    "machine: Revive",
    "machine: Impaired",
    "machine: Stopped",
    "machine: Interrupted",
    "program: Kill",
    "program: Stop",
    "program: Pause",
    "program: Clock",
    "program: away for long",
    "cluster: Down",
    "cluster: CloseWatches",
    "cluster: SilenceWatches",
    "cluster: Forget",
    "cluster: Unauthorized",
    "cluster: OtherControllerManager",
    "cluster: ShippersCrash",
    "cluster: AutoscalerRestarts",
    "cluster: faults of requests",
    "aws: Refused",
    "aws: Lost",
    "aws: Late",
    "aws: Stale",
    "aws: Throttled",
    "aws: Credentials",
    "aws: Outage",
    "aws: EmptyPage",
    "aws: Unreadable",
    "aws: Stale for minutes",
    "seen: evictions refused",
    "seen: hooks completed",
    "seen: hooks timed out",
    "seen: instances terminated by call",
    "seen: sizes changed",
    "seen: pods cut by their own grace",
    "seen: last calls with nothing broken",
    "seen: calm minutes",
    "seen: names that came back",
    "seen: pods that took more than half an hour",
];

/// How many seeds had each line.
#[derive(Debug)]
pub(crate) struct Coverage {
    seeds: BTreeMap<&'static str, u64>,
    /// Virtual time of all of them.
    lasted: SignedDuration,
}

impl Coverage {
    pub(crate) fn new() -> Self {
        Self { seeds: LINES.iter().map(|line| (*line, 0)).collect(), lasted: SignedDuration::ZERO }
    }

    pub(crate) fn add(&mut self, history: &History) {
        self.lasted += history.lasted();
        let mut had: Vec<String> = shapes(&history.scenario);
        had.extend(history.scenario.happenings.iter().flat_map(|happening| happenings(&happening.what)));
        had.extend(seen(history));
        for (line, count) in &mut self.seeds {
            *count += u64::from(had.iter().any(|other| other == line));
        }
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.seeds.iter().map(|(line, count)| (*line, *count))
    }

    /// The virtual time of all seeds, in hours.
    pub(crate) fn hours(&self) -> i64 {
        self.lasted.as_hours()
    }
}

fn shapes(scenario: &Scenario) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |is_so: bool, line: &str| {
        if is_so {
            all.push(line.to_owned());
        }
    };
    for group in &scenario.groups {
        add(
            true,
            match (group.hook, group.foreign) {
                (Some(_), None) => "hook: ours",
                (None, Some(_)) => "hook: theirs",
                (Some(_), Some(_)) => "hook: both",
                (None, None) => "hook: none",
            },
        );
        add(group.retains, "group: retains");
        add(group.warm_pool, "group: warm pool");
        add(group.weighs, "group: weights");
        add(group.is_spot, "group: spot");
        add(group.zones > 1, "group: two zones");
        add(group.deregisters > 0, "group: load balancers");
    }
    let program = &scenario.program;
    add(scenario.groups.len() > 1, "group: several");
    add(scenario.reuses_addresses, "subnets: addresses come back");
    add(program.manages_hooks, "hook: put by the program");
    add(scenario.is_hasty && scenario.autoscaler.is_some(), "autoscaler: gives up soon");
    add(program.replicas > 1, "program: two replicas");
    add(program.drain_timeout.is_some(), "program: drain timeout");
    add(program.has_queue, "program: queue");
    add(
        true,
        match scenario.autoscaler {
            None => "autoscaler: none",
            Some(crate::scenario::Autoscaler::Old) => "autoscaler: old",
            Some(crate::scenario::Autoscaler::New) => "autoscaler: new",
        },
    );
    for workload in &scenario.workloads {
        add(
            true,
            match workload.kind {
                Kind::Replicas => "pods: Replicas",
                Kind::Stateful => "pods: Stateful",
                Kind::Job(_) => "pods: Job",
                Kind::Bare => "pods: Bare",
                Kind::Daemon { .. } => "pods: Daemon",
            },
        );
        add(workload.grace == i64::MAX, "pods: absurd grace");
        add(workload.grace == 0, "pods: no grace");
        add((3_600..=7_200).contains(&workload.grace), "pods: graces of hours");
        add(workload.is_patient, "pods: patient");
        add(workload.tolerates_all, "pods: tolerate everything");
        add(workload.has_finalizer, "pods: finalizer");
        add(workload.order.is_some(), "pods: order");
        add(workload.priority.is_some(), "pods: priority");
        add(workload.pre_stop > 0, "pods: preStop");
        add(workload.budget == Some(Budget::Blocks), "pods: blocked by a budget");
        add(matches!(workload.budget, Some(Budget::Unavailable(_))), "pods: budget");
        add(workload.is_postponed, "pods: postponed by a webhook");
    }
    all
}

fn happenings(what: &What) -> Vec<String> {
    let word = |debug: String| debug.split(['(', ' ']).next().unwrap_or_default().to_owned();
    match what {
        What::Cause(cause, _) => vec![format!("cause: {cause:?}")],
        What::Group(cause, _) => vec![format!("cause: {}", word(format!("{cause:?}")))],
        What::Comes(_) => vec!["cause: pods come".to_owned()],
        What::Machine(damage, _) => vec![format!("machine: {damage:?}")],
        What::Person(deed, _) => vec![format!("person: {deed:?}")],
        What::Cluster(upset @ (Upset::Down(_) | Upset::Unauthorized(_) | Upset::RefuseWatches(_))) => {
            vec![format!("cluster: {}", word(format!("{upset:?}")))]
        }
        What::Cluster(upset) => vec![format!("cluster: {upset:?}")],
        What::Program(Blow::Kill(400), _) => vec!["program: away for long".to_owned()],
        What::Program(blow, _) => vec![format!("program: {}", word(format!("{blow:?}")))],
        What::Api { .. } => vec!["cluster: faults of requests".to_owned()],
        What::Aws(fault) => vec![format!("aws: {}", name(fault))],
    }
}

fn name(fault: &AwsFault) -> &'static str {
    match fault {
        AwsFault::Refused { .. } => "Refused",
        AwsFault::Lost { .. } => "Lost",
        AwsFault::Late { .. } => "Late",
        AwsFault::Stale { by: 45.., .. } => "Stale for minutes",
        AwsFault::Stale { .. } => "Stale",
        AwsFault::Throttled { .. } => "Throttled",
        AwsFault::Credentials { .. } => "Credentials",
        AwsFault::Outage { .. } => "Outage",
        AwsFault::EmptyPage { .. } => "EmptyPage",
        AwsFault::Unreadable { .. } => "Unreadable",
    }
}

/// Whether an instance had the Node's name of an earlier one.
fn names_came_back(history: &History) -> bool {
    let names: BTreeSet<&String> = history.names.values().collect();
    let registered = |name: &String| {
        let is_it = |entry: &&cluster::Entry| matches!(&entry.what, cluster::Event::NodeRegistered { node } if node == name);
        history.cluster.iter().filter(is_it).count() > 1
    };
    names.len() < history.names.len() && names.into_iter().any(registered)
}

/// Whether containers ran for more than half an hour after they were asked to go.
fn took_long(history: &History) -> bool {
    history
        .runs
        .iter()
        .any(|run| run.asked.is_some_and(|asked| run.lasts_beyond(asked.at + SignedDuration::from_mins(30))))
}

/// Whether a pod that was refused was deleted with its whole grace, long after everything was mended.
fn has_calm_last_calls(history: &History) -> bool {
    let calm = history.mended() + SignedDuration::from_mins(6);
    history.cluster.iter().any(|entry| match &entry.what {
        cluster::Event::PodAsked { pod, by: cluster::By::Delete, grace, .. } if entry.at >= calm => {
            let workload = history.scenario.workload_of(&pod.name);
            workload.is_some_and(|workload| {
                workload.grace == *grace && !workload.is_patient && !workload.is_daemon()
            })
        }
        _ => false,
    })
}

fn seen(history: &History) -> Vec<String> {
    let in_aws = |such: fn(&aws::Event) -> bool| history.aws.iter().any(|entry| such(&entry.what));
    let in_cluster =
        |such: fn(&cluster::Event) -> bool| history.cluster.iter().any(|entry| such(&entry.what));
    let lines = [
        (in_cluster(|e| matches!(e, cluster::Event::EvictionRefused { .. })), "seen: evictions refused"),
        (in_aws(|e| matches!(e, aws::Event::HookCompleted { .. })), "seen: hooks completed"),
        (in_aws(|e| matches!(e, aws::Event::HookTimedOut { .. })), "seen: hooks timed out"),
        (
            in_aws(|e| {
                matches!(e, aws::Event::TerminationStarted { cause: aws::TerminationCause::Request, .. })
            }),
            "seen: instances terminated by call",
        ),
        (in_aws(|e| matches!(e, aws::Event::DesiredChanged { .. })), "seen: sizes changed"),
        (
            in_cluster(|e| matches!(e, cluster::Event::CutShort { by: cluster::Cut::GraceOver, .. })),
            "seen: pods cut by their own grace",
        ),
        (has_calm_last_calls(history), "seen: last calls with nothing broken"),
        (calm_minutes(history).next().is_some(), "seen: calm minutes"),
        (names_came_back(history), "seen: names that came back"),
        (took_long(history), "seen: pods that took more than half an hour"),
    ];
    lines.into_iter().filter(|(is_so, _)| *is_so).map(|(_, line)| line.to_owned()).collect()
}
