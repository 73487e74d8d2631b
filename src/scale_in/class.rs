//! How a drain treats each pod. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::returns::Returns;
use crate::clock::later;
use crate::cluster::{DaemonOwner, PodView};
use crate::k8s::names;

/// How a drain treats a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A static pod's mirror: the kubelet's business.
    Mirror,
    /// It has finished.
    Finished,
    /// A DaemonSet's: stays until the last workload has exited.
    Daemon(Daemon),
    /// Asked to go, its grace long over, and nobody on this node confirms its exit.
    GivenUp,
    /// Tolerates the cordon and keeps coming back to the node: not waited for.
    Returned,
    /// Asked not to be disturbed: waited for, and evicted only when time runs out.
    Patient,
    /// Everything else: evicted.
    Workload,
}

impl Class {
    /// Whether the node waits for it before the flush.
    pub(super) fn is_workload(self) -> bool {
        matches!(self, Self::Workload | Self::Patient)
    }
}

/// What happens to a DaemonSet pod once the workloads have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Daemon {
    /// Runs until the instance stops.
    Keep,
    /// Asked to go, with its grace period, during the flush.
    Evict,
}

/// What decides a pod's class beside the pod itself. Moments are the API server's.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Circumstances<'a> {
    /// Now.
    pub(super) now: Timestamp,
    /// UIDs of deleted DaemonSets: nobody recreates their pods, so they are workload.
    pub(super) deleted_daemon_sets: &'a BTreeSet<String>,
    /// Pods that come back.
    pub(super) returns: &'a Returns,
    /// Whether those are asked a last time.
    pub(super) asks_last: bool,
    /// Whether it was asked to go: the watch may not show yet that it does.
    pub(super) is_asked: bool,
    /// Whether the patience with pods that asked not to be disturbed is over.
    pub(super) patience_is_over: bool,
    /// Whether it was asked, its grace is over, and nobody confirms exits.
    pub(super) is_over: bool,
}

/// Tells a pod's class.
pub(super) fn classify(pod: &PodView, around: &Circumstances<'_>) -> Class {
    if pod.mirror {
        return Class::Mirror;
    }
    if pod.finished {
        return Class::Finished;
    }
    let is_daemon = pod.daemon.as_ref().is_some_and(|owner| match owner {
        DaemonOwner::DaemonSet { uid, .. } => !around.deleted_daemon_sets.contains(uid),
        DaemonOwner::Other => true,
    });
    if is_daemon {
        return Class::Daemon(daemon(pod));
    }
    if around.is_over {
        return Class::GivenUp;
    }
    // A pod that is going gets its grace.
    let is_going = pod.deletion_timestamp.is_some() || around.is_asked;
    if !is_going && around.returns.is_given_up(pod) {
        let is_asked_last = around.asks_last && around.returns.is_asked_last(pod);
        return if is_asked_last { Class::Workload } else { Class::Returned };
    }
    if is_patient(pod, around.now) && !around.patience_is_over { Class::Patient } else { Class::Workload }
}

/// Whether a pod asks not to be disturbed at this moment.
pub fn is_patient(pod: &PodView, now: Timestamp) -> bool {
    patient_until(pod).is_some_and(|until| until > now)
}

/// What a pod that is not to be evicted says under [`names::SAFE_TO_EVICT`]: never, or only once it has completed, of which
/// cluster-autoscaler knows since 2026.
///
/// Source: `HasSafeToEvictOnCompletionAnnotation` of its `utils/drain/drain.go`.
pub(super) const UNSAFE_TO_EVICT: [&str; 2] = ["false", "on-completion"];

/// Until when a pod asks not to be disturbed; the latest moment there is: for as long as it takes. `None`: it does not. Karpenter's
/// annotation may have a time from the pod's start.
///
/// Source: [Karpenter, pod-level
/// controls](https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
pub(super) fn patient_until(pod: &PodView) -> Option<Timestamp> {
    let undisturbed = pod.annotation(names::DO_NOT_DISRUPT);
    if pod.annotation(names::DRAIN) == Some("wait")
        || pod.annotation(names::SAFE_TO_EVICT).is_some_and(|wish| UNSAFE_TO_EVICT.contains(&wish))
        || undisturbed == Some("true")
    {
        return Some(Timestamp::MAX);
    }
    let time: SignedDuration = undisturbed?.parse().ok()?;
    Some(later(pod.started.or(pod.created)?, time))
}

/// Our own annotation wins over cluster-autoscaler's.
fn daemon(pod: &PodView) -> Daemon {
    let evict = match pod.annotation(names::DAEMON_SET) {
        Some(ours) => ours == "evict",
        None => pod.annotation(names::ENABLE_DS_EVICTION) == Some("true"),
    };
    if evict { Daemon::Evict } else { Daemon::Keep }
}

/// Creation timestamps are of whole seconds, by a clock that we know within three, and a DaemonSet replaces a pod within milliseconds.
const CREATED_WITHIN: SignedDuration = SignedDuration::from_secs(4);

/// Whether a DaemonSet pod that wants to be asked may have come since the flush began: it replaces one that was asked. Both moments are by the
/// API server's clock.
pub(super) fn replaces_asked(pod: &PodView, flushing_since: Timestamp) -> bool {
    daemon(pod) == Daemon::Evict
        && pod.created.is_some_and(|created| later(created, CREATED_WITHIN) > flushing_since)
}

/// The annotations of a pod that ask something of a drain in words that mean nothing, and so do not count.
pub fn unreadable_wishes(pod: &PodView) -> Vec<&'static str> {
    let (of_daemons, of_workloads) = (
        [names::DAEMON_SET, names::FLUSH_SECONDS].as_slice(),
        [names::DRAIN, names::SAFE_TO_EVICT, names::DO_NOT_DISRUPT, names::DRAIN_ORDER].as_slice(),
    );
    let wishes = if pod.daemon.is_some() { of_daemons } else { of_workloads };
    let means_nothing = |key: &&str| pod.annotation(key).is_some_and(|value| !means_something(key, value));
    wishes.iter().copied().filter(means_nothing).collect()
}

fn means_something(annotation: &str, value: &str) -> bool {
    match annotation {
        names::DAEMON_SET => matches!(value, "keep" | "evict"),
        names::FLUSH_SECONDS => flush_seconds(value).is_some(),
        names::DRAIN => value == "wait",
        names::SAFE_TO_EVICT => value == "true" || UNSAFE_TO_EVICT.contains(&value),
        names::DO_NOT_DISRUPT => matches!(value, "true" | "false") || value.parse::<SignedDuration>().is_ok(),
        names::DRAIN_ORDER => order_number(value).is_some(),
        _ => true,
    }
}

/// The [order](super::order) that an annotation asks for; `None` if it is no number.
pub(super) fn order_number(text: &str) -> Option<i32> {
    text.trim().parse().ok()
}

/// The flush time that an annotation asks for; `None` if it is no number of seconds.
fn flush_seconds(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Longest flush a DaemonSet pod can ask for, also by its grace period. Longer than any log shipper needs, short enough
/// that a typo (milliseconds for seconds) does not hold an instance for days.
pub(super) const LONGEST_FLUSH: Duration = Duration::from_mins(30);

/// Flush times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Applies unless a DaemonSet pod asks for more.
    pub default: Duration,
    /// The most that a DaemonSet pod can ask for.
    pub longest: Duration,
    /// Namespaces whose pods can ask; empty: all.
    pub namespaces: BTreeSet<String>,
}

/// The node's flush time: the default, or the most that its DaemonSet pods ask for. Ignores values that are not seconds.
pub(super) fn flush_time<'a>(daemons: impl IntoIterator<Item = &'a PodView>, flush: &Flush) -> Duration {
    daemons
        .into_iter()
        .filter(|pod| may_hold_the_flush(pod, flush))
        .filter_map(|pod| flush_seconds(pod.annotation(names::FLUSH_SECONDS)?))
        .map(|seconds| Duration::from_secs(seconds).min(flush.longest))
        .fold(flush.default, Duration::max)
}

/// The time before a limit that DaemonSet pods evicted in the flush need: the longest of them.
pub(super) fn time_to_go<'a>(daemons: impl IntoIterator<Item = &'a PodView>, flush: &Flush) -> Duration {
    let asked =
        daemons.into_iter().filter(|pod| may_hold_the_flush(pod, flush) && daemon(pod) == Daemon::Evict);
    let times = asked.map(|pod| Duration::try_from(grace_and_kill(pod)).unwrap_or_default());
    times.max().unwrap_or_default().min(flush.longest)
}

/// The grace of a DaemonSet pod, and what its kubelet takes to kill and report it.
pub(super) fn grace_and_kill(pod: &PodView) -> SignedDuration {
    SignedDuration::from_secs(pod.grace_seconds).saturating_add(SignedDuration::from_secs(5))
}

/// Whether a pod may lengthen the flush: only a real DaemonSet's may, as anybody can claim to be one.
pub(super) fn may_hold_the_flush(pod: &PodView, flush: &Flush) -> bool {
    matches!(pod.daemon, Some(DaemonOwner::DaemonSet { .. }))
        && (flush.namespaces.is_empty() || flush.namespaces.contains(&*pod.name.namespace))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::LazyLock;

    use super::*;

    fn pod() -> PodView {
        PodView { grace_seconds: 30, ..PodView::default() }
    }

    fn wishing(mut pod: PodView, key: &str, value: &str) -> PodView {
        pod.annotations.insert(key.into(), value.into());
        pod
    }

    fn undisturbed(value: &str, started: Option<i64>) -> PodView {
        let pod = PodView { created: Some(at(21)), started: started.map(at), ..pod() };
        wishing(pod, names::DO_NOT_DISRUPT, value)
    }

    fn of_daemon_set(uid: &str) -> PodView {
        PodView { daemon: Some(DaemonOwner::DaemonSet { uid: uid.into(), name: uid.into() }), ..pod() }
    }

    #[test]
    fn a_wish_in_words_that_mean_nothing_is_told() {
        let ds = || of_daemon_set("there");
        let table = [
            (pod(), names::DRAIN, "wait", true),
            (pod(), names::DRAIN, "Wait", false),
            (pod(), names::DRAIN_ORDER, " 7 ", true),
            (pod(), names::DRAIN_ORDER, "last", false),
            (pod(), names::DO_NOT_DISRUPT, "false", true),
            (pod(), names::DO_NOT_DISRUPT, "4h", true),
            (pod(), names::DO_NOT_DISRUPT, "yes", false),
            (ds(), names::DAEMON_SET, "keep", true),
            (ds(), names::DAEMON_SET, "evict", true),
            (ds(), names::DAEMON_SET, "Evict", false),
            (ds(), names::FLUSH_SECONDS, "20", true),
            (ds(), names::FLUSH_SECONDS, "20s", false),
            // None of theirs.
            (pod(), names::FLUSH_SECONDS, "20s", true),
            (ds(), names::DRAIN, "Wait", true),
        ];
        for (pod, key, value, means_something) in table {
            let told = unreadable_wishes(&wishing(pod, key, value));
            assert_eq!(told, if means_something { vec![] } else { vec![key] }, "{key}: {value}");
        }
    }

    #[test]
    fn every_pod_has_one_class() {
        let ds = || of_daemon_set("there");
        let table = [
            ("a mirror pod", PodView { mirror: true, finished: true, ..pod() }, Class::Mirror),
            ("finished", PodView { finished: true, ..pod() }, Class::Finished),
            ("finished, of a DaemonSet", PodView { finished: true, ..ds() }, Class::Finished),
            ("of a DaemonSet", ds(), Class::Daemon(Daemon::Keep)),
            ("of a deleted DaemonSet", of_daemon_set("gone"), Class::Workload),
            ("evict", wishing(ds(), names::DAEMON_SET, "evict"), Class::Daemon(Daemon::Evict)),
            ("CA's evict", wishing(ds(), names::ENABLE_DS_EVICTION, "true"), Class::Daemon(Daemon::Evict)),
            ("CA's keep", wishing(ds(), names::ENABLE_DS_EVICTION, "false"), Class::Daemon(Daemon::Keep)),
            (
                "ours wins",
                wishing(wishing(ds(), names::DAEMON_SET, "keep"), names::ENABLE_DS_EVICTION, "true"),
                Class::Daemon(Daemon::Keep),
            ),
            ("wait", wishing(pod(), names::DRAIN, "wait"), Class::Patient),
            ("not safe to evict", wishing(pod(), names::SAFE_TO_EVICT, "false"), Class::Patient),
            (
                "to be evicted when complete",
                wishing(pod(), names::SAFE_TO_EVICT, "on-completion"),
                Class::Patient,
            ),
            ("safe to evict", wishing(pod(), names::SAFE_TO_EVICT, "true"), Class::Workload),
            ("do not disrupt", wishing(pod(), names::DO_NOT_DISRUPT, "true"), Class::Patient),
            ("not for 40 s, started at 61", undisturbed("40s", Some(61)), Class::Patient),
            ("not for 40 s, started at 60", undisturbed("40s", Some(60)), Class::Workload),
            ("not for 1 min 20 s, made at 21", undisturbed("1m20s", None), Class::Patient),
            ("not for half an hour", undisturbed("0.5h", Some(60)), Class::Patient),
            ("not for a time before", undisturbed("-1h", Some(60)), Class::Workload),
            ("not for some time", undisturbed("a while", Some(60)), Class::Workload),
            ("of a DaemonSet and patient", wishing(ds(), names::DRAIN, "wait"), Class::Daemon(Daemon::Keep)),
            ("anything else", pod(), Class::Workload),
        ];
        for (what, pod, class) in table {
            assert_eq!(classify(&pod, &at_rest()), class, "{what}");
        }
    }

    fn at_rest() -> Circumstances<'static> {
        static GONE: LazyLock<BTreeSet<String>> = LazyLock::new(|| ["gone".to_owned()].into());
        static NOBODY: LazyLock<Returns> = LazyLock::new(Returns::default);
        Circumstances {
            now: at(100),
            deleted_daemon_sets: &GONE,
            returns: &NOBODY,
            asks_last: false,
            is_asked: false,
            patience_is_over: false,
            is_over: false,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn a_pod_that_nobody_confirms_is_given_up_and_a_daemon_never() {
        let going = |pod: PodView| PodView { deletion_timestamp: Some(at(100)), ..pod };
        let over = || Circumstances { is_over: true, ..at_rest() };
        assert_eq!(
            classify(&going(pod()), &at_rest()),
            Class::Workload,
            "the node is Ready, or its time is not over"
        );
        assert_eq!(classify(&going(pod()), &over()), Class::GivenUp);
        assert_eq!(classify(&going(of_daemon_set("there")), &over()), Class::Daemon(Daemon::Keep));
    }

    #[test]
    fn a_pod_that_comes_back_again_and_again_is_left_and_one_that_goes_has_its_grace() {
        let returned = PodView { tolerates_cordon: true, created: Some(at(106)), ..pod() };
        let mut returns = Returns::default();
        let class = |pod: &PodView, returns: &Returns| classify(pod, &Circumstances { returns, ..at_rest() });
        assert_eq!(class(&returned, &returns), Class::Workload);
        returns.asked(returned.owner(), true);
        returns.see(&BTreeMap::from([(returned.uid.clone(), returned.clone())]), None);
        assert_eq!(class(&returned, &returns), Class::Returned);
        let last_round = Circumstances { returns: &returns, asks_last: true, ..at_rest() };
        let patient = wishing(returned.clone(), names::DO_NOT_DISRUPT, "true");
        for pod in [&returned, &patient] {
            assert_eq!(classify(pod, &last_round), Class::Workload);
        }
        let going = PodView { deletion_timestamp: Some(at(150)), ..returned.clone() };
        assert_eq!(class(&going, &returns), Class::Workload);
        let before_the_watch = Circumstances { returns: &returns, is_asked: true, ..at_rest() };
        assert_eq!(classify(&returned, &before_the_watch), Class::Workload);
    }

    #[test]
    fn the_longest_flush_wins_and_nonsense_does_not_count() {
        let of = |pods: &[PodView], namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(|&name| name.to_owned()).collect();
            let (default, longest) = (Duration::from_secs(5), Duration::from_secs(125));
            flush_time(pods, &Flush { default, longest, namespaces }).as_secs()
        };
        let asking = |v: &str| wishing(of_daemon_set("there"), names::FLUSH_SECONDS, v);
        let flush = |values: &[&str]| of(&values.iter().map(|v| asking(v)).collect::<Vec<_>>(), &[]);
        assert_eq!(flush(&[]), 5);
        assert_eq!(flush(&["1"]), 5);
        assert_eq!(flush(&["20", "7"]), 20);
        assert_eq!(flush(&["-3", "soon", ""]), 5);
        assert_eq!(flush(&["99999999999"]), 125);
        let like_one = PodView { daemon: Some(DaemonOwner::Other), ..asking("60") };
        assert_eq!(of(&[like_one], &[]), 5, "anybody can say so");
        assert_eq!(of(&[asking("60")], &["kube-system"]), 5);
        assert_eq!(of(&[asking("60")], &["kube-system", ""]), 60, "named");
    }
}
