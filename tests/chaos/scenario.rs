//! A scenario as data: what there is, what happens when, and what goes wrong. It can be printed, and made smaller.
//!
//! Moments are seconds from the beginning. Nodes are named by their place among those that there are at the time, so that a
//! scenario without one of its parts is still one.

use ebbtide::sim::aws::{Lose, Operation};
use ebbtide::sim::cluster::{Fault, Verb};
use jiff::SignedDuration;

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) program: Flags,
    pub(crate) autoscaler: Option<Autoscaler>,
    /// Whether subnets are so small that an instance gets the address of the one that has just gone, and its Node that one's name.
    pub(crate) reuses_addresses: bool,
    /// Whether budgets and webhooks that let nobody go stand until the shortest hold of a hook is over, with nothing else broken.
    pub(crate) stays_blocked: bool,
    /// Whether cluster-autoscaler gives instances up that have not registered after three minutes.
    pub(crate) is_hasty: bool,
    pub(crate) groups: Vec<Group>,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) happenings: Vec<Happening>,
}

/// How the program is run.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one of the program's switches")]
pub(crate) struct Flags {
    pub(crate) replicas: u32,
    /// `--drain-timeout`, in seconds.
    pub(crate) drain_timeout: Option<u32>,
    /// `--on-deadline=wait`.
    pub(crate) waits_at_deadline: bool,
    /// `--patience`, in seconds.
    pub(crate) patience: Option<u32>,
    /// `--daemonset-flush`, in seconds.
    pub(crate) flush: u32,
    /// Whether it reads a queue.
    pub(crate) has_queue: bool,
    /// Whether nodes are drained on a rebalance recommendation.
    pub(crate) drains_on_rebalance: bool,
    /// `--manage-lifecycle-hooks=retain`.
    pub(crate) manages_hooks: bool,
}

/// Which of its versions the stand-in for cluster-autoscaler is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Autoscaler {
    Old,
    New,
}

/// An Auto Scaling group.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property that a group has or has not")]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) nodes: u32,
    pub(crate) zones: usize,
    /// The heartbeat time-out of our hook, in seconds.
    pub(crate) hook: Option<u32>,
    /// How long somebody else's hook holds an instance, in seconds.
    pub(crate) foreign: Option<u32>,
    pub(crate) retains: bool,
    pub(crate) warm_pool: bool,
    pub(crate) weighs: bool,
    pub(crate) is_spot: bool,
    pub(crate) launches_first: bool,
    /// Seconds that its load balancers take.
    pub(crate) deregisters: u32,
}

/// Pods that somebody runs.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property that pods have or have not")]
pub(crate) struct Workload {
    /// Without a dash: what follows one in a pod's name is the pod's.
    pub(crate) name: String,
    /// The group whose nodes it needs, by its place; it comes when something makes it come.
    pub(crate) comes_to: Option<usize>,
    pub(crate) kind: Kind,
    pub(crate) pods: u32,
    pub(crate) grace: i64,
    /// Seconds from SIGTERM to the exit.
    pub(crate) exits: u32,
    pub(crate) budget: Option<Budget>,
    pub(crate) priority: Option<i32>,
    pub(crate) is_patient: bool,
    pub(crate) tolerates_all: bool,
    pub(crate) has_finalizer: bool,
    pub(crate) pre_stop: u32,
    pub(crate) order: Option<i32>,
    /// An admission webhook answers each of its evictions that it is to be tried again.
    pub(crate) is_postponed: bool,
    pub(crate) cpu: u32,
}

/// What makes pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Replicas,
    /// Each with a volume.
    Stateful,
    /// Each completes after so many seconds.
    Job(u32),
    Bare,
    /// A DaemonSet besides the shipper, which wants to be asked, or not.
    Daemon {
        evict: bool,
    },
}

/// A disruption budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    Unavailable(u32),
    /// Nobody may ever go.
    Blocks,
}

/// Something happens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Happening {
    pub(crate) at: u32,
    pub(crate) what: What,
}

/// A node, by its place among those of all groups.
pub(crate) type Pick = usize;

/// What can happen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// Why nodes leave.
    Cause(Cause, Pick),
    /// A group, by its place.
    Group(GroupCause, usize),
    /// A workload comes.
    Comes(String),
    Machine(Damage, Pick),
    Person(Deed, Pick),
    Cluster(Upset),
    Program(Blow, usize),
    /// A fault of the API server at the next requests of a kind.
    Api {
        verb: Verb,
        resource: &'static str,
        fault: Fault,
        times: u32,
    },
    /// A fault of AWS.
    Aws(AwsFault),
}

/// Why a node leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// cluster-autoscaler drains it and calls DeleteNodes.
    Autoscaler,
    /// The same at its defaults: it evicts DaemonSet pods together with workloads.
    AutoscalerOfAll,
    /// DeleteNodes without its drain.
    DeleteNodes,
    /// A person annotates the Node.
    Now,
    Replace,
    /// The group takes the instance out.
    Rebalance,
    Unhealthy,
    /// A person ends the instance by AWS's API, and another one comes.
    ByHand,
    Spot,
    RebalanceNotice,
    /// Maintenance in twenty minutes.
    Scheduled,
    /// Maintenance in ten days.
    FarAhead,
}

/// What happens to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GroupCause {
    Refresh,
    /// A person sets its size one lower.
    Lowered,
    /// Launches fail a few times.
    NoCapacity,
    /// A person gives our hook this heartbeat time-out, or puts one.
    Hook(u32),
    /// A person takes our hook off.
    Unhooked,
    /// An instance refresh that replaces root volumes.
    Volumes,
}

/// What happens to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Damage {
    KubeletDies,
    Partition,
    Crash,
    KubeletRestarts,
    Revive,
    /// Its status checks fail.
    Impaired,
    /// Somebody stops it in EC2.
    Stopped,
    /// AWS takes it without a notice.
    Interrupted,
}

/// What people do to a Node: some of it to one that is on its way out, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deed {
    Cancel,
    Mistype,
    Cordon,
    /// `kubectl uncordon`.
    Uncordon,
    /// The instance is moved to Standby.
    SetAside,
    /// The instance is detached from its group.
    Detach,
    RollDaemonSet,
    /// `kubectl delete node`, or a cloud controller that is wrong.
    DeleteNode,
    /// `kubectl drain`.
    Drain,
    /// The update of an EKS managed node group: a drain, and the instance is terminated.
    Update,
}

/// What happens to the cluster as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Upset {
    /// The API server is away for so many seconds.
    Down(u32),
    CloseWatches,
    SilenceWatches,
    /// They end, and so many are refused before any begins again; all else works.
    RefuseWatches(u32),
    Forget,
    /// Tokens are refused for so many seconds.
    Unauthorized(u32),
    OtherControllerManager,
    /// From now on, the log shipper of a node that leaves crashes, and once more right after the last workload has exited.
    ShippersCrash,
    AutoscalerRestarts,
}

/// What happens to a replica of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blow {
    /// `kill -9`, and so many seconds until it is started again.
    Kill(u32),
    /// SIGTERM, and the same.
    Stop(u32),
    /// It is stopped for so many seconds, and goes on.
    Pause(u32),
    /// Its wall clock is set.
    Clock(i32),
}

/// What goes wrong in AWS.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AwsFault {
    /// Calls of an operation are refused so, before or after their effect.
    Refused { operation: Operation, code: &'static str, status: u16, side: Lose, times: u32 },
    /// Calls are lost, and the connection breaks (or nothing more is heard).
    Lost { operation: Operation, side: Lose, silently: bool, times: u32 },
    /// Calls arrive so many seconds late.
    Late { operation: Operation, by: u32, times: u32 },
    /// Every answer is so many seconds old, for so many seconds.
    Stale { by: u32, lasting: u32 },
    /// The share of calls in percent that is throttled, for so many seconds.
    Throttled { percent: u32, lasting: u32 },
    /// Nobody's credentials are good for so many seconds.
    Credentials { lasting: u32 },
    /// No call arrives for so many seconds.
    Outage { lasting: u32 },
    /// The next descriptions have an empty page.
    EmptyPage { times: u32 },
    /// Calls take effect, and nobody can read the answers.
    Unreadable { operation: Operation, times: u32 },
}

impl AwsFault {
    /// How long it lasts, where calls do not use it up.
    pub(crate) fn lasts(&self) -> SignedDuration {
        SignedDuration::from_secs(match self {
            Self::Stale { lasting, .. }
            | Self::Throttled { lasting, .. }
            | Self::Credentials { lasting }
            | Self::Outage { lasting } => i64::from(*lasting),
            _ => 0,
        })
    }
}

impl Scenario {
    /// The workload whose pod has this name.
    pub(crate) fn workload_of(&self, pod: &str) -> Option<&Workload> {
        let name = pod.split('-').next()?;
        self.workloads.iter().find(|workload| workload.name == name)
    }
}

impl Scenario {
    /// How late a call of this operation arrives at most, three seconds on its way included.
    pub(crate) fn longest_delay(&self, of: Operation) -> SignedDuration {
        let late = |happening: &Happening| match happening.what {
            What::Aws(AwsFault::Late { operation, by, .. }) => (operation == of).then(|| by.into()),
            _ => None,
        };
        SignedDuration::from_secs(3 + self.happenings.iter().filter_map(late).max().unwrap_or(0))
    }

    /// The longest grace that has an end, in seconds.
    pub(crate) fn longest_grace(&self) -> i64 {
        self.workloads
            .iter()
            .map(|workload| workload.grace)
            .filter(|grace| *grace < i64::MAX)
            .max()
            .unwrap_or(0)
    }
}

impl Workload {
    /// Whether its pods belong to a DaemonSet.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self.kind, Kind::Daemon { .. })
    }
}
