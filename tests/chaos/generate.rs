//! A scenario from a seed. Most are small, so that many can be played; one in forty is large.

use ebbtide::sim::aws::{Lose, Operation};
use ebbtide::sim::cluster::{Fault, Verb};
use fastrand::Rng;

use crate::scenario::{
    Autoscaler, AwsFault, Blow, Budget, Cause, Damage, Deed, Flags, Group, GroupCause, Happening, Kind,
    Scenario, Upset, What, Workload,
};

const GROUPS: [&str; 6] = ["web", "batch", "spot", "store", "edge", "cron"];
const WORKLOADS: [&str; 8] = ["api", "cart", "ledger", "render", "queue", "mail", "probe", "proxy"];
const DAEMON: &str = "agent";

/// One seed in so many has a drain of hours.
const LONG: u64 = 20;
const PATIENT: &str = "train";

/// One in so many has a drain that is blocked until its deadline.
const BLOCKED: u64 = 10;
const STUBBORN: &str = "quorum";

/// Nothing happens before: nodes and pods are to be there.
const BEGINS: u32 = 60;

/// The documented errors that the program's calls can be answered with: code and status.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html> and the operations' own pages
const ERRORS: [(&str, u16); 9] = [
    ("Throttling", 400),
    ("RequestLimitExceeded", 503),
    ("InternalFailure", 500),
    ("ServiceUnavailable", 503),
    ("ResourceContention", 500),
    ("ScalingActivityInProgress", 400),
    ("ExpiredToken", 403),
    ("RequestExpired", 400),
    ("AccessDenied", 403),
];

/// How many kinds of causes there are, and of troubles; the likelier ones count twice.
const CAUSES: usize = 24;
const TROUBLES: usize = 41;

/// One seed in so many has each rare happening.
const RARE: u64 = 16;

const DAMAGES: [Damage; 8] = [
    Damage::KubeletDies,
    Damage::Partition,
    Damage::Crash,
    Damage::KubeletRestarts,
    Damage::Revive,
    Damage::Impaired,
    Damage::Stopped,
    Damage::Interrupted,
];

/// What the program calls while nodes leave.
const CALLS: [Operation; 10] = [
    Operation::DescribeAutoScalingGroups,
    Operation::DescribeLifecycleHooks,
    Operation::DescribeScalingActivities,
    Operation::TerminateInstanceInAutoScalingGroup,
    Operation::CompleteLifecycleAction,
    Operation::RecordLifecycleActionHeartbeat,
    Operation::SetDesiredCapacity,
    Operation::SetInstanceProtection,
    Operation::ReceiveMessage,
    Operation::DeleteMessageBatch,
];

/// The same of the API server.
const REQUESTS: [(Verb, &str); 8] = [
    (Verb::Patch, "nodes"),
    (Verb::Patch, "nodes/status"),
    (Verb::Create, "pods/eviction"),
    (Verb::Delete, "pods"),
    (Verb::List, "pods"),
    (Verb::Watch, "pods"),
    (Verb::Watch, "nodes"),
    (Verb::Update, "leases"),
];

/// The scenario of a seed.
pub(crate) fn scenario(seed: u64) -> Scenario {
    let mut dice = Dice(Rng::with_seed(seed));
    let is_large = dice.one_in(40);
    let mut groups = groups(&mut dice, is_large);
    let mut workloads = workloads(&mut dice, is_large);
    let program = flags(&mut dice);
    let autoscaler = match dice.0.u8(..3) {
        0 => None,
        1 => Some(Autoscaler::Old),
        _ => Some(Autoscaler::New),
    };
    let mut happenings = causes(&mut dice, is_large, &groups, seed);
    happenings.extend(more_pods(&mut dice, &groups, &mut workloads));
    happenings.extend(troubles(&mut dice, is_large, &program, seed));
    // Drawn last: the rest of a seed's scenario is as it was before there was this.
    let reuses_addresses = dice.one_in(3);
    if seed % LONG == LONG / 2 {
        happenings.push(long_drain(&mut dice, &groups, &mut workloads));
    }
    for workload in &mut workloads {
        workload.is_postponed = dice.one_in(15);
    }
    happenings.extend(dice.maybe(6, |dice| other_hook(dice, &groups)));
    let stays_blocked = seed % BLOCKED == BLOCKED / 2;
    if stays_blocked {
        happenings.push(blocked_drain(&mut dice, &mut groups, &mut workloads));
    }
    happenings.extend(rare(&mut dice, &groups, seed));
    let is_hasty = dice.one_in(3);
    happenings.sort_by_key(|happening| happening.at);
    Scenario {
        seed,
        program,
        autoscaler,
        reuses_addresses,
        stays_blocked,
        is_hasty,
        groups,
        workloads,
        happenings,
    }
}

/// What no seed has but for this, by the seed, so that seeds in a row have all of it.
fn rare(dice: &mut Dice, groups: &[Group], seed: u64) -> Option<Happening> {
    let (pick, place) = (dice.0.usize(..64), dice.0.usize(..groups.len()));
    let what = match seed % RARE {
        0 | 1 => What::Aws(AwsFault::Unreadable { operation: dice.of(&CALLS), times: dice.0.u32(1..=3) }),
        2 | 3 => What::Aws(AwsFault::Stale { by: dice.of(&[45, 120]), lasting: dice.of(&[120, 300]) }),
        4 => What::Person(Deed::Uncordon, pick),
        5 | 6 => What::Person(Deed::SetAside, pick),
        7 => What::Person(Deed::Detach, pick),
        8 | 9 => What::Person(Deed::Cancel, pick),
        10 => What::Group(GroupCause::Unhooked, place),
        11 => What::Group(GroupCause::Volumes, place),
        12 | 13 => return Some(Happening { at: BEGINS, what: What::Cluster(Upset::ShippersCrash) }),
        _ => return None,
    };
    Some(Happening { at: BEGINS + dice.0.u32(..480), what })
}

/// Pods that take from half an hour to two hours to go, and the end of a node: one has to wait for as long as its hook allows.
fn long_drain(dice: &mut Dice, groups: &[Group], workloads: &mut Vec<Workload>) -> Happening {
    let grace = dice.of(&[3_600, 7_200]);
    let usual = on_each_node(workload(dice, PATIENT, false), groups, grace);
    workloads.push(Workload { exits: dice.0.u32(1_800..=grace), budget: None, ..usual });
    let cause = dice.of(&[Cause::DeleteNodes, Cause::Now, Cause::Rebalance]);
    let what = What::Cause(cause, dice.0.usize(..64));
    Happening { at: BEGINS + dice.0.u32(..60), what }
}

/// A workload with some pods on each node, which are waited for.
fn on_each_node(workload: Workload, groups: &[Group], grace: u32) -> Workload {
    Workload {
        kind: Kind::Replicas,
        pods: 2 * groups.iter().map(|group| group.nodes).sum::<u32>(),
        grace: i64::from(grace),
        is_patient: false,
        pre_stop: 0,
        cpu: 50,
        ..workload
    }
}

/// Pods that nothing lets go before their last call, under the shortest hook, and the end of a node.
fn blocked_drain(dice: &mut Dice, groups: &mut [Group], workloads: &mut Vec<Workload>) -> Happening {
    let grace = dice.of(&[30, 120, 300]);
    let usual = on_each_node(workload(dice, STUBBORN, false), groups, grace);
    let is_postponed = dice.one_in(2);
    let exits = dice.0.u32(..=grace);
    let budget = (!is_postponed).then_some(Budget::Blocks);
    workloads.push(Workload { exits, budget, is_postponed, tolerates_all: false, ..usual });
    for group in groups {
        group.hook = Some(30);
    }
    let cause = dice.of(&[Cause::DeleteNodes, Cause::Now, Cause::Rebalance]);
    Happening { at: BEGINS + dice.0.u32(300..420), what: What::Cause(cause, dice.0.usize(..64)) }
}

/// Somebody changes a hook while nodes leave.
fn other_hook(dice: &mut Dice, groups: &[Group]) -> Happening {
    let cause = GroupCause::Hook(heartbeat(dice));
    Happening { at: BEGINS + dice.0.u32(..420), what: What::Group(cause, dice.0.usize(..groups.len())) }
}

fn heartbeat(dice: &mut Dice) -> u32 {
    dice.of(&[30, 60, 120, 300])
}

struct Dice(Rng);

impl Dice {
    fn one_in(&mut self, n: u32) -> bool {
        self.0.u32(..n) == 0
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())].clone()
    }

    /// A value in one of so many cases.
    fn maybe<T>(&mut self, one_in: u32, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(one_in).then(|| value(self))
    }
}

fn flags(dice: &mut Dice) -> Flags {
    Flags {
        replicas: if dice.one_in(3) { 2 } else { 1 },
        drain_timeout: dice.maybe(4, |dice| dice.of(&[120, 300, 900])),
        waits_at_deadline: dice.one_in(3),
        patience: dice.maybe(3, |dice| dice.of(&[60, 300])),
        flush: dice.of(&[5, 5, 20]),
        has_queue: dice.one_in(2),
        drains_on_rebalance: dice.one_in(2),
        manages_hooks: dice.one_in(6),
    }
}

fn groups(dice: &mut Dice, is_large: bool) -> Vec<Group> {
    let count = if is_large { dice.0.usize(3..=GROUPS.len()) } else { dice.of(&[1, 1, 2]) };
    GROUPS[..count].iter().map(|name| group(dice, name, is_large)).collect()
}

fn group(dice: &mut Dice, name: &'static str, is_large: bool) -> Group {
    let nodes = if is_large { dice.0.u32(4..=12) } else { dice.0.u32(1..=3) };
    let our_hook = !dice.one_in(3);
    Group {
        name,
        min: if dice.one_in(3) { dice.0.u32(..=nodes) } else { 0 },
        max: nodes + dice.0.u32(1..=3),
        nodes,
        zones: dice.of(&[1, 1, 2]),
        hook: our_hook.then(|| heartbeat(dice)),
        foreign: dice.maybe(5, |dice| dice.of(&[30, 60, 400])),
        retains: dice.one_in(3),
        warm_pool: dice.one_in(10),
        weighs: dice.one_in(10),
        is_spot: dice.one_in(4),
        launches_first: dice.one_in(8),
        deregisters: if dice.one_in(6) { dice.of(&[20, 90]) } else { 0 },
    }
}

fn workloads(dice: &mut Dice, is_large: bool) -> Vec<Workload> {
    let count = if is_large { WORKLOADS.len() } else { dice.0.usize(1..=4) };
    let mut all: Vec<Workload> =
        WORKLOADS[..count].iter().map(|name| workload(dice, name, is_large)).collect();
    if dice.one_in(2) {
        let usual = workload(dice, DAEMON, false);
        let kind = Kind::Daemon { evict: dice.one_in(2) };
        // It goes after everybody, and asks for no more than half a minute.
        all.push(Workload {
            kind,
            grace: 30,
            exits: usual.exits.min(20),
            pre_stop: 0,
            cpu: 50,
            budget: None,
            ..usual
        });
    }
    all
}

fn workload(dice: &mut Dice, name: &str, is_large: bool) -> Workload {
    let kind = match dice.0.u8(..8) {
        0 => Kind::Stateful,
        1 => Kind::Job(dice.of(&[120, 900])),
        2 => Kind::Bare,
        _ => Kind::Replicas,
    };
    let grace = dice.of(&[0, 1, 10, 30, 30, 60, 90, 120, 300, 600, i64::MAX]);
    let longest = u32::try_from(grace.clamp(1, 400)).unwrap_or(1);
    // One that outlasts its grace is cut by its kubelet, which is nobody's fault.
    let exits = if dice.one_in(12) { longest + 20 } else { dice.0.u32(..=longest) };
    let pods = if is_large { dice.0.u32(2..=8) } else { dice.0.u32(1..=3) };
    let drawn = Workload {
        name: name.to_owned(),
        comes_to: None,
        kind,
        pods,
        grace,
        exits,
        budget: match dice.0.u8(..6) {
            0 => Some(Budget::Blocks),
            1 | 2 => Some(Budget::Unavailable(1)),
            _ => None,
        },
        priority: dice.maybe(4, |dice| dice.of(&[-10, 100, 100_000])),
        is_patient: dice.one_in(12),
        tolerates_all: dice.one_in(15),
        has_finalizer: kind == Kind::Bare && dice.one_in(3),
        pre_stop: if dice.one_in(8) { longest / 2 } else { 0 },
        order: dice.maybe(10, |dice| dice.of(&[-5, 10])),
        is_postponed: false,
        cpu: dice.of(&[50, 100, 400, 900]),
    };
    // People end whom a drain waits for; one that comes back to the same node each time would hold it for ever.
    Workload { is_patient: drawn.is_patient && !drawn.tolerates_all, ..drawn }
}

/// Pods that come later and need a group's nodes: cluster-autoscaler buys some.
fn more_pods(dice: &mut Dice, groups: &[Group], workloads: &mut Vec<Workload>) -> Vec<Happening> {
    let mut all = Vec::new();
    for n in 0..dice.0.usize(..=2) {
        let name = format!("more{n}");
        let usual = Workload { kind: Kind::Replicas, budget: None, cpu: 900, ..workload(dice, &name, false) };
        workloads.push(Workload { comes_to: Some(dice.0.usize(..groups.len())), ..usual });
        all.push(Happening { at: BEGINS + dice.0.u32(..400), what: What::Comes(name) });
    }
    all
}

/// Things that make nodes leave, or that people do. The first one goes by the seed, so that seeds in a row have all of them.
fn causes(dice: &mut Dice, is_large: bool, groups: &[Group], seed: u64) -> Vec<Happening> {
    let count = if is_large { dice.0.usize(6..=14) } else { dice.0.usize(1..=4) };
    let lasts = if is_large { 1_800 } else { 420 };
    let mut all = Vec::new();
    for n in 0..count {
        let at = BEGINS + dice.0.u32(..lasts);
        let (pick, place) = (dice.0.usize(..64), dice.0.usize(..groups.len()));
        let kind = if n == 0 { seed as usize % CAUSES } else { dice.0.usize(..CAUSES) };
        let what = match kind {
            0 | 1 => What::Cause(Cause::Autoscaler, pick),
            2 | 3 => What::Cause(Cause::DeleteNodes, pick),
            4 => What::Cause(Cause::Now, pick),
            5 => What::Cause(Cause::Replace, pick),
            6 | 7 => What::Cause(Cause::Rebalance, pick),
            8 => What::Cause(Cause::Unhealthy, pick),
            9 => What::Cause(Cause::ByHand, pick),
            10 => What::Cause(Cause::Spot, pick),
            11 => What::Cause(Cause::RebalanceNotice, pick),
            12 if pick % 2 == 0 => What::Cause(Cause::Scheduled, pick),
            12 => What::Cause(Cause::FarAhead, pick),
            13 => What::Group(GroupCause::Refresh, place),
            14 => What::Group(GroupCause::Lowered, place),
            15 => What::Group(GroupCause::NoCapacity, place),
            16 => What::Person(Deed::Cancel, pick),
            17 => What::Person(Deed::Mistype, pick),
            18 => What::Person(Deed::Cordon, pick),
            19 => What::Person(Deed::RollDaemonSet, pick),
            20 => What::Person(Deed::DeleteNode, pick),
            21 => What::Person(Deed::Drain, pick),
            22 => What::Person(Deed::Update, pick),
            _ => What::Cause(Cause::AutoscalerOfAll, pick),
        };
        all.push(Happening { at, what });
    }
    all
}

/// Things that break. The first one goes by the seed as well.
fn troubles(dice: &mut Dice, is_large: bool, program: &Flags, seed: u64) -> Vec<Happening> {
    let most = if is_large { 20 } else { 5 };
    let count = dice.0.usize(1..=most);
    let lasts = if is_large { 1_800 } else { 500 };
    let mut all = Vec::new();
    for n in 0..count {
        let at = BEGINS + dice.0.u32(..lasts);
        let kind = if n == 0 { seed as usize % TROUBLES } else { dice.0.usize(..TROUBLES) };
        let what = match kind {
            0..6 => What::Program(program_blow(dice, kind), dice.0.usize(..program.replicas as usize)),
            6..14 => What::Machine(DAMAGES[kind - 6], dice.0.usize(..64)),
            14..22 => What::Cluster(cluster_upset(dice, kind - 14)),
            22..31 => api_fault(dice, kind - 22),
            _ => What::Aws(aws_fault(dice, kind - 31)),
        };
        all.push(Happening { at, what });
    }
    all
}

fn program_blow(dice: &mut Dice, kind: usize) -> Blow {
    let away = dice.of(&[0, 1, 5, 20, 60]);
    match kind {
        0 | 1 => Blow::Kill(away),
        2 => Blow::Stop(away),
        3 => Blow::Clock(dice.of(&[-3_600, -30, 30, 3_600])),
        4 => Blow::Pause(dice.of(&[20, 60, 60])),
        // Longer than any heartbeat: the net is to hold.
        _ => Blow::Kill(400),
    }
}

fn cluster_upset(dice: &mut Dice, kind: usize) -> Upset {
    match kind {
        0 => Upset::Down(dice.of(&[3, 30, 180])),
        1 => Upset::CloseWatches,
        2 => Upset::SilenceWatches,
        3 => Upset::Forget,
        4 => Upset::Unauthorized(dice.of(&[3, 30])),
        5 => Upset::AutoscalerRestarts,
        6 => Upset::RefuseWatches(dice.of(&[5, 30, 100])),
        _ => Upset::OtherControllerManager,
    }
}

fn api_fault(dice: &mut Dice, kind: usize) -> What {
    let (verb, resource) = dice.of(&REQUESTS);
    let fault = match kind {
        0 => Fault::TooManyRequests { retry_after_seconds: dice.of(&[1, 10]) },
        1 => Fault::InternalError,
        2 => Fault::EtcdTimedOut { took_effect: dice.0.bool() },
        3 => Fault::Expired,
        4 => Fault::Unauthorized,
        5 => Fault::Overtaken,
        6 => Fault::RequestLost,
        7 => Fault::AnswerLost,
        _ => Fault::Slow(std::time::Duration::from_secs(dice.of(&[2, 20]))),
    };
    What::Api { verb, resource, fault, times: dice.0.u32(1..=4) }
}

fn aws_fault(dice: &mut Dice, kind: usize) -> AwsFault {
    let operation = dice.of(&CALLS);
    let side = dice.of(&[Lose::BeforeEffect, Lose::AfterEffect]);
    let times = dice.0.u32(1..=4);
    match kind {
        0 | 1 => {
            let (code, status) = dice.of(&ERRORS);
            // What is refused for lack of rights or time has had no effect.
            let side = if status == 500 { side } else { Lose::BeforeEffect };
            AwsFault::Refused { operation, code, status, side, times }
        }
        2 | 3 => AwsFault::Lost { operation, side, silently: dice.0.bool(), times },
        // Nobody can guard against a decrement that AWS carries out long after it was given up.
        4 if operation == Operation::TerminateInstanceInAutoScalingGroup => {
            AwsFault::Late { operation, by: dice.of(&[3, 8, 20]), times }
        }
        4 => AwsFault::Late { operation, by: dice.of(&[3, 8, 40]), times },
        5 => AwsFault::Stale { by: dice.of(&[5, 20]), lasting: dice.of(&[30, 120]) },
        6 => AwsFault::Throttled { percent: dice.of(&[10, 50, 90]), lasting: dice.of(&[30, 120]) },
        7 => AwsFault::Credentials { lasting: dice.of(&[10, 40]) },
        8 => AwsFault::Outage { lasting: dice.of(&[5, 60, 150]) },
        _ => AwsFault::EmptyPage { times },
    }
}
