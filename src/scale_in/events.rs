//! The Events that ebbtide publishes on Nodes and on pods that it asks to go: one constructor each, and no text of an Event anywhere else. Pure.
//!
//! `docs/events.md` tells operators when each comes and what to do; `tests/documents.rs` holds its table to [`Reason`].
//!
//! - Every text fits into the API server's limit whatever people have written into names and messages, and ends with what
//!   to do, where there is something to do.
//! - What people write is quoted, in one line. Names that Kubernetes or AWS restricts to plain characters are not.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::record::{Cause, Phase};
use super::turn::Ahead;
use super::waiting::{WaitReason, Waiting};
use crate::cluster::{Cordon, PodName};
use crate::k8s::NodeName;
use crate::telemetry::cut;
use crate::words::words;

/// What lasts longer than this is announced again.
pub const ANNOUNCE_AGAIN_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// What is told of a scale-in that somebody has called off.
const RECORD_GONE: &str = "the record in annotation ebbtide/scale-in is gone: the node is back in service";

/// An Event about a scale-in: on the Node, or on a pod of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleInEvent {
    /// What it tells: an Event on a Node is not repeated under the same topic within [`ANNOUNCE_AGAIN_AFTER`]. Unused on pods.
    pub topic: String,
    /// The Event's reason.
    pub reason: Reason,
    /// The Event's text.
    pub note: String,
    /// Whether somebody should look.
    pub warning: bool,
}

words! {
    /// The reason of an Event: what people filter by. In the order of the table in `docs/events.md`.
    pub Reason {
        /// Workloads are asked to leave.
        Draining = "ScaleInDraining",
        /// The last workload has left, or time is up.
        Flushing = "ScaleInFlushing",
        /// The instance is given back.
        Releasing = "ScaleInReleasing",
        /// The instance has left its group.
        Released = "ScaleInReleased",
        /// The Node of an instance that is gone is deleted.
        NodeDeleted = "ScaleInNodeDeleted",
        /// A pod may not be evicted.
        Blocked = "ScaleInBlocked",
        /// The drain takes long.
        Waiting = "ScaleInWaiting",
        /// The drain takes longer than it should.
        OverTime = "ScaleInOverTime",
        /// Pods whose exit nobody confirms are not waited for.
        PodsGivenUp = "ScaleInPodsGivenUp",
        /// Pods that come back to the cordoned node are not waited for.
        PodsReturned = "ScaleInPodsReturned",
        /// Pods that asked not to be disturbed are evicted.
        PatienceOver = "ScaleInPatienceOver",
        /// Annotations of pods ask for something in words that mean nothing.
        WishesIgnored = "ScaleInWishesIgnored",
        /// A person's request waits for its turn.
        Queued = "ScaleInQueued",
        /// AWS does not release the instance.
        Refused = "ScaleInRefused",
        /// New pods are kept away because of a notice.
        Cordoned = "ScaleInCordoned",
        /// The notice has lapsed.
        Uncordoned = "ScaleInUncordoned",
        /// The lifecycle hook ends early: AWS takes no heartbeats.
        HookEnding = "ScaleInHookEnding",
        /// The lifecycle hook ended before the drain did.
        HookOver = "ScaleInHookOver",
        /// The Node has gone before its instance was released.
        NodeLost = "ScaleInNodeLost",
        /// The group ends the instance, and no hook of ours holds it.
        NotHeld = "ScaleInNotHeld",
        /// Several Nodes name one instance.
        SeveralNodes = "ScaleInSeveralNodes",
        /// It cannot be called off any more.
        GoesOn = "ScaleInGoesOn",
        /// The scale-in is called off.
        Cancelled = "ScaleInCancelled",
        /// The node is back in service after its release, or another machine has taken it over.
        Returned = "ScaleInReturned",
        /// A person's request cannot be carried out.
        NotPossible = "ScaleInNotPossible",
        /// The annotation is neither a request nor a record.
        NotUnderstood = "ScaleInNotUnderstood",
        /// Somebody else has written a record.
        NotBelieved = "ScaleInNotBelieved",
        /// The API server refuses to have the Node written.
        NotWritten = "ScaleInNotWritten",
        /// A defect of ebbtide.
        Failed = "ScaleInFailed",
        /// On a pod: it was asked to go.
        Evicted = "ScaleInEvicted",
        /// On a pod: it was deleted whatever its budgets say.
        Deleted = "ScaleInDeleted",
    }
}

impl Reason {
    /// Whether the scale-in is over without the node's end.
    pub fn ends_scale_in(self) -> bool {
        matches!(self, Self::Cancelled | Self::Returned)
    }
}

fn normal(reason: Reason, topic: impl Into<String>, note: String) -> ScaleInEvent {
    ScaleInEvent { topic: topic.into(), reason, note, warning: false }
}

fn warning(reason: Reason, topic: impl Into<String>, note: String) -> ScaleInEvent {
    ScaleInEvent { topic: topic.into(), reason, note, warning: true }
}

/// A scale-in begins. `until`: when the instance must have been released, by the API server's clock.
/// `is_unlimited`: it is known that without `until` there is none.
pub(super) fn draining(
    cause: Cause,
    instance: &str,
    until: Option<Timestamp>,
    is_unlimited: bool,
) -> ScaleInEvent {
    let limit = match until {
        Some(until) => format!(", until {until:.0}"),
        None if is_unlimited => ", without a time limit".to_owned(),
        None => String::new(),
    };
    let note = format!("cause {cause}: workloads are asked to leave {}{limit}", id(instance));
    normal(Reason::Draining, "draining", note)
}

/// A workload has come to a node that had none left.
pub(super) fn draining_again() -> ScaleInEvent {
    let note = "a workload pod has come to the node: it leaves first".to_owned();
    normal(Reason::Draining, "draining", note)
}

/// The last workload has exited.
pub(super) fn flushing(flush: Duration) -> ScaleInEvent {
    let seconds = flush.as_secs();
    let note = format!("no workload is left: DaemonSet pods have at least {seconds} s to finish");
    normal(Reason::Flushing, "flushing", note)
}

/// The deadline has come with so many workloads left.
pub(super) fn flushing_with_workloads_left(left: usize, flush: Duration) -> ScaleInEvent {
    let (pods, seconds) = (pods(left, "workload pod"), flush.as_secs());
    let note = format!("time is up with {pods} left: DaemonSet pods have at least {seconds} s to finish");
    normal(Reason::Flushing, "flushing", note)
}

/// No workload is left, and nothing runs on the node.
pub(super) fn flushing_dead() -> ScaleInEvent {
    let note =
        "no workload is left, and the node is dead: nothing runs there that could still flush".to_owned();
    normal(Reason::Flushing, "flushing", note)
}

/// DaemonSet pods have had their time. `volumes`: so many are still attached.
pub(super) fn releasing(instance: &str, volumes: usize) -> ScaleInEvent {
    let volumes =
        if volumes > 0 { format!(", {} still attached", pods(volumes, "volume")) } else { String::new() };
    let note =
        format!("DaemonSet pods have had their time{volumes}: instance {} is to be released", id(instance));
    normal(Reason::Releasing, "releasing", note)
}

/// Nothing runs on the node that could flush.
pub(super) fn releasing_dead(instance: &str) -> ScaleInEvent {
    let note = format!("the node is dead: instance {} is to be released", id(instance));
    normal(Reason::Releasing, "releasing", note)
}

/// The instance has left its group.
pub(super) fn released(instance: &str, group: &str) -> ScaleInEvent {
    let note = format!(
        "instance {} has left group {}; the cloud controller deletes the Node once EC2 ends the machine",
        id(instance),
        name(group)
    );
    normal(Reason::Released, "released", note)
}

/// The Node of an instance that is gone was deleted by us.
pub(super) fn node_deleted(instance: &str, after: Duration) -> ScaleInEvent {
    let seconds = after.as_secs();
    let note = format!(
        "instance {} has been gone for {seconds} s and nobody else has deleted its Node: deleted",
        id(instance)
    );
    normal(Reason::NodeDeleted, "node-deleted", note)
}

/// The Node of an instance that is gone was deleted by us, and these finalizers keep it.
pub(super) fn node_kept(instance: &str, finalizers: &[String]) -> ScaleInEvent {
    let note = format!(
        "instance {} is gone and its Node is deleted, but stays until these finalizers are taken off, by hand if nobody \
         does it any more: {}",
        id(instance),
        list(finalizers.iter().cloned())
    );
    normal(Reason::Waiting, "node-kept", note)
}

/// A disruption budget has no room for a pod, and as many more. `budget`: its name, or several; empty if nobody knows.
pub(super) fn blocked(pod: &PodName, more: usize, budget: &str, words: &str) -> ScaleInEvent {
    let more = and_more(more);
    let budgets = if budget.is_empty() {
        "a disruption budget".to_owned()
    } else {
        format!("disruption budget {}", cut(budget, 255))
    };
    let note =
        format!("pod {}{more} may not be evicted yet: {budgets}: {}", cut_pod(pod), quoted(words, 300));
    warning(Reason::Blocked, format!("budget {budget}"), note)
}

/// Several budgets cover a pod, and as many more.
pub(super) fn blocked_by_several(pod: &PodName, more: usize, budgets: &str) -> ScaleInEvent {
    let note = format!(
        "pod {}{} cannot be evicted while several disruption budgets cover it (leave one): {}",
        cut_pod(pod),
        and_more(more),
        cut(budgets, 500)
    );
    warning(Reason::Blocked, format!("budget {budgets}"), note)
}

fn and_more(more: usize) -> String {
    if more > 0 { format!(" (and {})", pods(more, "more pod")) } else { String::new() }
}

/// What the topics of refused evictions begin with.
pub(super) const REFUSED: &str = "refused ";

/// The API server refuses to evict a pod in these words, and no budget is the reason.
pub(super) fn eviction_refused(reason: &str, pod: &PodName, words: &str) -> ScaleInEvent {
    let note = format!(
        "pod {} cannot be evicted or deleted yet (tried again); the API server says {}",
        cut_pod(pod),
        quoted(words, WORDS)
    );
    warning(Reason::Blocked, format!("{REFUSED}{reason}"), note)
}

/// The same of several pods for one reason; these are its words about the first.
pub(super) fn evictions_refused(reason: &str, refused: &[&PodName], words: &str) -> ScaleInEvent {
    let note = format!(
        "{} cannot be evicted or deleted yet (tried again): {}; the API server says {}",
        pods(refused.len(), "pod"),
        list_in(NAMES, refused.iter().map(ToString::to_string)),
        quoted(words, WORDS)
    );
    warning(Reason::Blocked, format!("{REFUSED}{reason}"), note)
}

/// The phase has taken a minute. Not empty.
pub(super) fn waiting(waiting: &[Waiting]) -> ScaleInEvent {
    let entries = waiting.iter().map(|one| format!("{} ({})", one.pod, one.why.in_words()));
    let note = format!("waiting for {}: {}", pods(waiting.len(), "pod"), list(entries));
    normal(Reason::Waiting, "waiting", note)
}

/// Only load balancers hold the release, until then at most. `groups`: their target groups; none if AWS does not say.
pub(super) fn waiting_for_load_balancers(groups: &[&str], until: Timestamp) -> ScaleInEvent {
    let what = match groups {
        [] => "AWS does not say whether load balancers still send connections to the instance".to_owned(),
        groups => {
            let names = list(groups.iter().map(|group| cut(group, 32)));
            format!(
                "load balancers still send connections to the instance, or drain it: target group {names}"
            )
        }
    };
    normal(Reason::Waiting, "load balancers", format!("waiting until {until:.0} at most: {what}"))
}

/// AWS was told at `told` to terminate the instance, and does not show it. It is told once more at `again`.
pub(super) fn termination_unshown(instance: &str, told: Timestamp, again: Timestamp) -> ScaleInEvent {
    let note = format!(
        "AWS was told at {told:.0} to terminate instance {} and does not show that it does: the call may have been lost. It is told again \
         after {again:.0}: until then, a second call could take another instance from the group",
        id(instance)
    );
    normal(Reason::Waiting, "termination", note)
}

/// The API server does not list the node's pods, be it at all or anew since the watch of them broke.
pub(super) fn waiting_for_a_list() -> ScaleInEvent {
    let note = "the API server does not list the node's pods: until it does, no further pods are evicted, and the node is \
                not released before its deadline";
    normal(Reason::Waiting, "pods unlisted", note.to_owned())
}

/// The API server refuses to have the Node written, in these words.
pub(super) fn not_written(words: &str) -> ScaleInEvent {
    let note = format!(
        "the Node cannot be written: work on it waits until it can, and the write is tried again. The API server says: {}",
        quoted(words, WORDS)
    );
    warning(Reason::NotWritten, "not written", note)
}

/// All that ebbtide does is done, and another's hook holds the instance.
pub(super) fn waiting_for_anothers_hook(instance: &str, group: &str) -> ScaleInEvent {
    let note = format!(
        "ebbtide has done its part; somebody else's lifecycle hook on group {} holds instance {} until its owner completes it, or it \
         times out",
        name(group),
        id(instance)
    );
    normal(Reason::Waiting, "another's hook", note)
}

/// All that ebbtide can do for now is done, and the instance's lifecycle hooks are still to come.
pub(super) fn waiting_for_its_hooks(instance: &str) -> ScaleInEvent {
    let note = format!(
        "the node is empty, and no lifecycle hook holds instance {} yet: AWS usually deregisters it from the group's load \
         balancers first, which takes their deregistration delay",
        id(instance)
    );
    normal(Reason::Waiting, "its hooks", note)
}

/// AWS has not described the groups since then.
pub(super) fn waiting_for_a_description(since: Timestamp) -> ScaleInEvent {
    let note = format!(
        "AWS has not described the Auto Scaling groups since {since:.0}: until it does, it is not known where the node's instance is, \
         and what depends on that waits. ebbtide's log has AWS's words"
    );
    normal(Reason::Waiting, "a description", note)
}

/// The drain has taken longer than our limit, at which nothing is deleted. Not empty.
pub(super) fn over_time(waiting: &[Waiting]) -> ScaleInEvent {
    let entries = waiting.iter().map(|one| format!("{} ({})", one.pod, one.why.in_words()));
    let note = format!(
        "the drain has taken longer than --drain-timeout (or the group's tag ebbtide/drain-timeout) allows; nothing is deleted (--on-deadline=wait), and the drain keeps \
         waiting for {}: {}",
        pods(waiting.len(), "pod"),
        list(entries)
    );
    warning(Reason::OverTime, "over time", note)
}

impl WaitReason {
    /// The reason, in the words of Events.
    pub fn in_words(&self) -> String {
        match self {
            Self::Exiting(until) => format!("exiting, has until {until:.0}"),
            Self::Overdue(until) => format!("should have exited by {until:.0}"),
            // One that is younger than what is known of budgets, or a webhook that speaks of one.
            Self::Budget { names, words } if names.is_empty() => format!("a budget: {}", quoted(words, 100)),
            Self::Budget { names, .. } => format!("budget {}", names.join(", ")),
            Self::Budgets(names) => {
                format!("several budgets cover it, only one may: {}", names.join(", "))
            }
            Self::Patient => "asked not to be disturbed".to_owned(),
            Self::After(order) => format!("after order {order}"),
            Self::Refused(words) => quoted(words, 100),
            Self::Rate => "evictions are rate-limited".to_owned(),
            Self::Queued => "to be evicted".to_owned(),
            Self::Volumes => "waits for volumes to be unmounted and detached".to_owned(),
        }
    }
}

/// The node confirms no exit, and these pods' grace is long over.
pub(super) fn pods_given_up(pods: &[PodName]) -> ScaleInEvent {
    let note = format!(
        "no kubelet confirms their exit, and their grace ended a minute ago or the machine is off: these pods count as gone: {}",
        list(pods.iter().map(PodName::to_string))
    );
    warning(Reason::PodsGivenUp, "given up", note)
}

/// These pods come back to the cordoned node.
pub(super) fn pods_returned(pods: &[PodName]) -> ScaleInEvent {
    let note = format!(
        "these pods tolerate the cordon, or are bound to the node by name, and have come back after an eviction; \
         they are evicted a last time once all others have gone, and not waited for before that: {}",
        list(pods.iter().map(PodName::to_string))
    );
    warning(Reason::PodsReturned, "returned", note)
}

/// These pods asked not to be disturbed, and their machine counts as lost.
pub(super) fn patience_ends_with_the_machine(pods: &[PodName]) -> ScaleInEvent {
    let note = format!(
        "these pods asked not to be disturbed; nothing is heard of their machine any more, and they are evicted: {}",
        list(pods.iter().map(PodName::to_string))
    );
    warning(Reason::PatienceOver, "patience", note)
}

/// These pods asked not to be disturbed, for longer than `--patience`.
pub(super) fn patience_over(pods: &[PodName]) -> ScaleInEvent {
    let note = format!(
        "these pods asked not to be disturbed; the time to wait for them (--patience) is over, and they are evicted: {}",
        list(pods.iter().map(PodName::to_string))
    );
    warning(Reason::PatienceOver, "patience", note)
}

/// These pods, each with the annotation, ask for something in words that mean nothing.
pub(super) fn wishes_ignored(pods: Vec<String>) -> ScaleInEvent {
    let note = format!(
        "these pods have annotations with invalid values, which are ignored: {}",
        list(pods.into_iter())
    );
    warning(Reason::WishesIgnored, "wishes", note)
}

/// A person's request, maintenance that is far away, or a drain on AWS's advice waits for what is `ahead` of it in the group.
pub(super) fn queued(group: &str, ahead: &Ahead) -> ScaleInEvent {
    let Ahead { at_once, under_way, to_come, nodes, before, launches_fail } = ahead;
    let nodes = match &nodes[..] {
        [] => String::new(),
        nodes => format!(". Under way: {}", list_in(NAMES, nodes.iter().map(NodeName::to_string))),
    };
    let failing =
        launches_fail.as_ref().map(|code| format!(". Launches of the group fail: {}", quoted(code, 100)));
    let note = format!(
        "waits for its turn: --max-operator-scale-ins allows {at_once} at once in group {}, for people, maintenance and recommendations, counting instances that \
         are still to come. Scale-ins under way: {under_way}; instances to come: {to_come}; requests ahead of this one: {before}{nodes}{}",
        name(group),
        failing.unwrap_or_default()
    );
    normal(Reason::Queued, "waits for its turn", note)
}

/// AWS does not let the instance go.
pub(super) fn release_refused(instance: &str, words: &str) -> ScaleInEvent {
    let note = format!(
        "AWS does not release instance {}, which is tried again; it says {}",
        id(instance),
        quoted(words, WORDS)
    );
    warning(Reason::Refused, "refused by AWS", note)
}

/// AWS was told to terminate the instance, and shows it in a state of which nobody knows whether it has.
pub(super) fn state_unknown(instance: &str) -> ScaleInEvent {
    let note = format!(
        "AWS was told to terminate instance {} and shows it in a state that this version does not know: it is not told again. End it with `aws ec2 terminate-instances`, or update ebbtide",
        id(instance)
    );
    warning(Reason::Refused, "unknown state", note)
}

/// AWS takes no heartbeats for an instance that our hook holds. `ends`: when its hold ends therefore, by the API server's clock.
pub(super) fn hook_ending(hook: &str, group: &str, instance: &str, ends: Timestamp) -> ScaleInEvent {
    let note = format!(
        "AWS takes no heartbeats for instance {}: lifecycle hook {} of group {} ends at {ends}, unless it takes one before. Pods that are \
         still on the node are deleted in time for that, whatever their budgets say. ebbtide's log has AWS's words",
        id(instance),
        cut(hook, 255),
        name(group)
    );
    warning(Reason::HookEnding, "hook ending", note)
}

/// Our hook is over in mid-drain. It may have been deleted meanwhile.
pub(super) fn hook_over(hook: Option<&str>, group: &str, instance: &str, phase: Phase) -> ScaleInEvent {
    let note = format!(
        "lifecycle hook {} of group {} is over for instance {} in phase {phase}: somebody else has completed it, or it has \
         timed out. The machine shuts down, and what runs on it is cut off",
        hook.map_or_else(|| "of ebbtide".to_owned(), |hook| cut(hook, 255)),
        name(group),
        id(instance)
    );
    warning(Reason::HookOver, "hook over", note)
}

/// The Node has gone with these workloads on it; `None`: they were not listed.
pub(super) fn node_lost(instance: &str, phase: Phase, left: Option<&[PodName]>) -> ScaleInEvent {
    let on_it = match left {
        None => "what was on it is not known".to_owned(),
        Some([]) => "no workload pod was on it".to_owned(),
        Some(left) => {
            let names = list(left.iter().map(ToString::to_string));
            format!("on it: {}, {names}", pods(left.len(), "workload pod"))
        }
    };
    let note = format!(
        "the Node has gone in phase {phase}, before instance {} was released: the machine has ended, or somebody has deleted the Node; \
         {on_it}",
        id(instance)
    );
    warning(Reason::NodeLost, "node lost", note)
}

/// The group ends an instance with so many workload pods on its Node, and has no hook that would hold it.
pub(super) fn not_held(group: &str, instance: &str, workloads: usize) -> ScaleInEvent {
    let note = format!(
        "group {} ends instance {} and has no lifecycle hook: nothing holds it. ebbtide evicts its {} at once, and AWS may end the \
         machine before that is done. Put ebbtide's hook on the group to have the machine wait",
        name(group),
        id(instance),
        pods(workloads, "workload pod")
    );
    warning(Reason::NotHeld, "not held", note)
}

/// The group ends an instance with so many workload pods on its Node, and our hook is over already.
pub(super) fn missed(group: &str, instance: &str, workloads: usize) -> ScaleInEvent {
    let note = format!(
        "group {} ends instance {}, and its lifecycle hook had already ended when ebbtide saw that: somebody else has completed it, or it \
         has timed out. Nobody drains its {}",
        name(group),
        id(instance),
        pods(workloads, "workload pod")
    );
    warning(Reason::NotHeld, "not held", note)
}

/// Only another's hook holds an instance that the group ends.
pub(super) fn held_by_another(group: &str, instance: &str) -> ScaleInEvent {
    let note = format!(
        "group {} ends instance {}, which only another's lifecycle hook holds: its owner drains the node, ebbtide does not",
        name(group),
        id(instance)
    );
    normal(Reason::NotHeld, "not held", note)
}

/// Other Nodes name the instance as well.
pub(super) fn several_nodes(instance: &str, others: impl ExactSizeIterator<Item = String>) -> ScaleInEvent {
    let note = format!(
        "other Nodes name instance {} as well: {}. Which one is the machine's is not known: pods on all of them leave before it \
         goes. Delete those that are not the machine's",
        id(instance),
        list(others)
    );
    warning(Reason::SeveralNodes, "several nodes", note)
}

/// AWS refuses to shrink the group.
pub(super) fn cancelled_at_minimum(group: &str, instance: &str) -> ScaleInEvent {
    let note = format!(
        "group {} is at its minimum size: AWS refuses to terminate {} with a decrement. The node is back in service; annotate \
         it with ebbtide/scale-in=replace to have it replaced",
        name(group),
        id(instance)
    );
    warning(Reason::Cancelled, CANCELLED, note)
}

/// Somebody has detached the instance, or this run does not read its group.
pub(super) fn cancelled_by_detaching(group: &str, instance: &str) -> ScaleInEvent {
    let note = format!(
        "instance {} is no longer in group {}, or the group is no longer selected: the node is back in service",
        id(instance),
        name(group)
    );
    warning(Reason::Cancelled, CANCELLED, note)
}

/// Somebody has taken the annotation off.
pub(super) fn cancelled_by_a_person() -> ScaleInEvent {
    normal(Reason::Cancelled, CANCELLED, RECORD_GONE.to_owned())
}

/// The same of a node whose machine AWS ends, by the API server's clock.
pub(super) fn cancelled_before(end: Timestamp) -> ScaleInEvent {
    let note = format!(
        "{RECORD_GONE}. But AWS ends the machine at {end:.0}, and does not announce that again: annotate the node with \
         ebbtide/scale-in=replace before then"
    );
    warning(Reason::Cancelled, CANCELLED, note)
}

/// Somebody has taken off the record and the list of marks as well, while no ebbtide ran.
pub(super) fn cancelled_without_a_list() -> ScaleInEvent {
    let note = "the annotations ebbtide/scale-in and ebbtide/marks are gone: ebbtide takes its taint and label off. Who cordoned the node \
                is not known: if nobody else wants it closed, open it (kubectl uncordon)"
        .to_owned();
    warning(Reason::Cancelled, CANCELLED, note)
}

/// Somebody has changed the annotation or taken it off too late.
pub(super) fn goes_on(instance: &str) -> ScaleInEvent {
    let note = format!(
        "the record in annotation ebbtide/scale-in is gone, but AWS has been told to end instance {}: the scale-in goes on",
        id(instance)
    );
    warning(Reason::GoesOn, "goes on", note)
}

/// The same of a node whose instance its group ends by itself.
pub(super) fn goes_on_with_its_group(instance: &str) -> ScaleInEvent {
    let note = format!(
        "the record in annotation ebbtide/scale-in is gone, but its group ends instance {}: the scale-in goes on; such a node cannot be kept",
        id(instance)
    );
    warning(Reason::GoesOn, "goes on", note)
}

/// Somebody has taken the annotation off shortly before AWS ends the machine.
pub(super) fn goes_on_to_its_end(instance: &str, end: Timestamp) -> ScaleInEvent {
    let note = format!(
        "the record in annotation ebbtide/scale-in is gone, but AWS ends instance {} at {end:.0}: the scale-in goes on",
        id(instance)
    );
    warning(Reason::GoesOn, "goes on", note)
}

/// The instance is in service again, and AWS ends its machine.
pub(super) fn back_before_its_end(group: &str, instance: &str, end: Timestamp) -> ScaleInEvent {
    let note = format!(
        "instance {} is in service again in group {}, but AWS ends its machine at {end:.0}: the scale-in goes on, and the instance is \
         terminated",
        id(instance),
        name(group)
    );
    warning(Reason::GoesOn, "goes on", note)
}

/// Somebody has written a request over the record.
pub(super) fn under_way_already(cause: Cause) -> ScaleInEvent {
    let note = format!(
        "a scale-in of the node is under way (cause {cause}) and goes on unchanged: the new value of annotation ebbtide/scale-in \
         does not start another"
    );
    warning(Reason::GoesOn, "under way already", note)
}

/// Somebody has opened the Node.
pub(super) fn closed_again() -> ScaleInEvent {
    let note = "somebody has opened the node (kubectl uncordon), which is being scaled in: it is cordoned again. To cancel the scale-in, \
                take annotation ebbtide/scale-in off"
        .to_owned();
    warning(Reason::GoesOn, "closed again", note)
}

/// New pods are kept away because of a notice.
pub(super) fn cordoned(cordon: &Cordon) -> ScaleInEvent {
    let (cause, until) = (cordon.cause(), cordon.until());
    normal(
        Reason::Cordoned,
        "cordoned",
        format!("cause {cause}: no new pods come to the node until {until:.0}"),
    )
}

/// The notice has lapsed or was called off, and the instance lives.
pub(super) fn uncordoned(cause: Cause) -> ScaleInEvent {
    normal(Reason::Uncordoned, "uncordoned", format!("cause {cause} has lapsed: the node is open again"))
}

/// A person has opened a node that was closed because of a notice.
pub(super) fn opened_by_a_person(cause: Cause) -> ScaleInEvent {
    let note = format!("somebody has uncordoned the node, which was closed by cause {cause}: it stays open");
    normal(Reason::Uncordoned, "uncordoned", note)
}

/// The group has the instance in service again.
pub(super) fn back_in_service(group: &str, instance: &str) -> ScaleInEvent {
    let note =
        format!("instance {} is in service again in group {}, and so is its node", id(instance), name(group));
    normal(Reason::Returned, "back", note)
}

/// The group has the instance in service again, and its kubelet does not come back.
pub(super) fn back_but_not_ready(group: &str, instance: &str) -> ScaleInEvent {
    let note = format!(
        "group {} has instance {} in service again, but its Node is not Ready after a quarter of an hour: its scale-in is over, \
         and cluster-autoscaler may remove it",
        name(group),
        id(instance)
    );
    warning(Reason::Returned, "back", note)
}

/// Another machine's kubelet has the Node now.
pub(super) fn adopted(instance: &str) -> ScaleInEvent {
    let instance = id(instance);
    let note = format!(
        "instance {instance} has left its group, and its Node has become Ready again: the kubelet of another machine has its \
         name now, and has taken the Node over. The Node is back in service, still with the provider id of {instance}: delete the Node \
         and restart the other machine's kubelet, to register it anew"
    );
    warning(Reason::Returned, "adopted", note)
}

/// A person wants a node scaled in that is in no group of ours.
pub(super) fn not_ours() -> ScaleInEvent {
    let note = "the node's instance is in none of the node groups that this ebbtide runs".to_owned();
    warning(Reason::NotPossible, "foreign", note)
}

/// A person wants a node gone for good of a group that cannot shrink.
pub(super) fn cannot_shrink(group: &str) -> ScaleInEvent {
    let note = format!(
        "group {} is at its minimum size; annotate the node with ebbtide/scale-in=replace to have it replaced",
        name(group)
    );
    warning(Reason::NotPossible, "at minimum", note)
}

/// The group does not terminate instances at present, so that no scale-in is begun, or ended.
pub(super) fn terminates_nothing(group: &str) -> ScaleInEvent {
    let note = format!(
        "group {} cannot terminate instances now: its process Terminate is suspended, or AWS refuses to change it. Until that is \
         over, AWS is not told to terminate this one",
        name(group)
    );
    warning(Reason::NotPossible, "terminates nothing", note)
}

/// The annotation's text means nothing.
pub(super) fn not_understood(text: &str) -> ScaleInEvent {
    let note = format!(
        "annotation ebbtide/scale-in has the invalid value {}. Write \"now\" to have the node drained and released, \
         \"replace\" to have it replaced as well; take the annotation off to cancel",
        quoted(text, 400)
    );
    warning(Reason::NotUnderstood, format!("unreadable {text}"), note)
}

/// Somebody else has written a record that is further than its scale-in.
pub(super) fn not_believed(phase: Phase) -> ScaleInEvent {
    let note = format!(
        "somebody other than ebbtide has written annotation ebbtide/scale-in, with phase {phase}: the scale-in starts from the \
         beginning. Take the annotation off to cancel"
    );
    warning(Reason::NotBelieved, "not believed", note)
}

/// Somebody else has written a record of a scale-in that there is not.
pub(super) fn no_scale_in() -> ScaleInEvent {
    let note = "somebody other than ebbtide has written a record into annotation ebbtide/scale-in that is taken off: its group has not \
                taken the instance out, or the record has words that ebbtide does not know. Write \"now\" to have the node drained and \
                released, \"replace\" to have it replaced as well"
        .to_owned();
    warning(Reason::NotBelieved, "no scale-in", note)
}

/// A worker panicked with these words.
pub(super) fn failed(words: &str, pause: Duration) -> ScaleInEvent {
    let note = format!(
        "a defect of ebbtide stopped its work on this node, which it takes up again in {} s; please report it: {}",
        pause.as_secs(),
        quoted(words, WORDS)
    );
    warning(Reason::Failed, "panic", note)
}

/// On a pod: it was evicted.
pub(super) fn pod_evicted(node: &str, cause: Cause) -> ScaleInEvent {
    let text = format!("node {} is scaled in (cause {cause}): the pod was evicted", cut(node, 253));
    normal(Reason::Evicted, "pod", text)
}

/// On a DaemonSet's pod that wants to be asked: it was.
pub(super) fn daemon_pod_asked(node: &str, cause: Cause) -> ScaleInEvent {
    let text = format!(
        "node {} is scaled in (cause {cause}), and its last workload has exited: the pod was deleted as its annotation asks",
        cut(node, 253)
    );
    normal(Reason::Evicted, "pod", text)
}

/// On a pod: it was deleted because time is up.
pub(super) fn pod_deleted(node: &str, cause: Cause) -> ScaleInEvent {
    let text = format!(
        "node {} is scaled in (cause {cause}), and time is up for the pod: it was deleted regardless of budgets",
        cut(node, 253)
    );
    warning(Reason::Deleted, "pod", text)
}

/// On a pod: it was deleted because its machine is lost.
pub(super) fn pod_deleted_with_its_machine(node: &str, cause: Cause) -> ScaleInEvent {
    let text = format!(
        "node {} is scaled in (cause {cause}), and its machine is lost: the pod was deleted regardless of budgets",
        cut(node, 253)
    );
    warning(Reason::Deleted, "pod", text)
}

const CANCELLED: &str = "cancelled";

/// Room for what the API server, AWS or a panic says, in bytes.
const WORDS: usize = 500;

/// Room for a list, in bytes.
const LIST: usize = 450;

/// Room for one of names, where much else is said, in bytes.
const NAMES: usize = 250;

/// The name of a group: AWS allows nearly every character in it, and 255 of them.
fn name(group: &str) -> String {
    quoted(group, 255)
}

/// An instance id: in a Node's provider id, it is what somebody likes.
fn id(instance: &str) -> String {
    plain(instance, 64)
}

/// The name of a pod: 63 and 253 characters at most.
fn cut_pod(pod: &PodName) -> String {
    cut(&pod.to_string(), 320)
}

/// `1 pod`, `2 pods`.
fn pods(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// What people write, in quotes.
fn quoted(text: &str, room: usize) -> String {
    format!("\"{}\"", plain(text.trim(), room))
}

/// The text in one line, and without what would end a quotation.
fn plain(text: &str, room: usize) -> String {
    let plain = |c| match c {
        '"' => '\'',
        c if char::is_control(c) => ' ',
        c => c,
    };
    cut(text, room).chars().map(plain).collect()
}

/// The first of these, as far as there is room, and how many more there are.
fn list(entries: impl ExactSizeIterator<Item = String>) -> String {
    list_in(LIST, entries)
}

fn list_in(room: usize, entries: impl ExactSizeIterator<Item = String>) -> String {
    let count = entries.len();
    let mut text = String::new();
    for (n, entry) in entries.enumerate() {
        if text.len() + entry.len() > room && n > 0 {
            let _ = write!(text, " and {} more", count - n);
            break;
        }
        let separator = if n > 0 { ", " } else { "" };
        let _ = write!(text, "{separator}{}", cut(&entry, room));
    }
    text
}
