//! Which pods leave, which stay, which are waited for. Pure.

use std::time::Duration;

use super::names;
use crate::cluster::PodView;

/// How a drain treats a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A static pod's mirror: the kubelet's own business.
    Mirror,
    /// It has run to its end.
    Finished,
    /// Of a DaemonSet: stays until the last workload has exited.
    Daemon(Daemon),
    /// It asked not to be disturbed: waited for, and evicted only when time runs out.
    Patient,
    /// Everything else: evicted.
    Workload,
}

/// What becomes of a DaemonSet pod when the workloads have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Daemon {
    /// It runs until the instance stops.
    Keep,
    /// It is asked to go, with its grace period, while the node flushes.
    Evict,
}

/// Tells how to treat a pod. `exists` says whether a DaemonSet of this UID is there: the pods of one that has been
/// deleted are workload, nobody brings them back.
pub(super) fn classify(pod: &PodView, exists: impl Fn(&str) -> bool) -> Class {
    if pod.mirror {
        return Class::Mirror;
    }
    if pod.finished {
        return Class::Finished;
    }
    if pod.daemon_set.as_deref().is_some_and(exists) {
        return Class::Daemon(daemon(pod));
    }
    let patient = pod.wish(names::DRAIN) == Some("wait")
        || pod.wish(names::SAFE_TO_EVICT) == Some("false")
        || pod.wish(names::DO_NOT_DISRUPT) == Some("true");
    if patient { Class::Patient } else { Class::Workload }
}

/// Our own annotation wins over cluster-autoscaler's.
fn daemon(pod: &PodView) -> Daemon {
    let evict = match pod.wish(names::DAEMON_SET) {
        Some(ours) => ours == "evict",
        None => pod.wish(names::ENABLE_DS_EVICTION) == Some("true"),
    };
    if evict { Daemon::Evict } else { Daemon::Keep }
}

/// Longest flush a DaemonSet pod can ask for. Longer than any shipper needs to empty a buffer, short enough that a
/// slip of the pen (milliseconds for seconds) does not hold an instance for days.
const LONGEST_FLUSH: Duration = Duration::from_mins(30);

/// The node's flush time: the largest of the default and what its DaemonSet pods ask for. A value that is no number
/// of seconds is as good as none.
pub(super) fn flush_time<'a>(daemons: impl IntoIterator<Item = &'a PodView>, default: Duration) -> Duration {
    daemons
        .into_iter()
        .filter_map(|pod| pod.wish(names::FLUSH_SECONDS)?.trim().parse().ok())
        .map(|seconds| Duration::from_secs(seconds).min(LONGEST_FLUSH))
        .fold(default, Duration::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodView {
        PodView { grace_seconds: 30, ..PodView::default() }
    }

    fn wishing(mut pod: PodView, key: &str, value: &str) -> PodView {
        pod.wishes.insert(key.into(), value.into());
        pod
    }

    fn of_daemon_set(uid: &str) -> PodView {
        PodView { daemon_set: Some(uid.into()), ..pod() }
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
            ("safe to evict", wishing(pod(), names::SAFE_TO_EVICT, "true"), Class::Workload),
            ("do not disrupt", wishing(pod(), names::DO_NOT_DISRUPT, "true"), Class::Patient),
            ("of a DaemonSet and patient", wishing(ds(), names::DRAIN, "wait"), Class::Daemon(Daemon::Keep)),
            ("anything else", pod(), Class::Workload),
        ];
        for (what, pod, class) in table {
            assert_eq!(classify(&pod, |uid| uid == "there"), class, "{what}");
        }
    }

    #[test]
    fn the_longest_flush_wins_and_nonsense_does_not_count() {
        let flush = |values: &[&str]| {
            let pods: Vec<_> = values.iter().map(|v| wishing(pod(), names::FLUSH_SECONDS, v)).collect();
            flush_time(&pods, Duration::from_secs(5)).as_secs()
        };
        assert_eq!(flush(&[]), 5);
        assert_eq!(flush(&["1"]), 5);
        assert_eq!(flush(&["20", "7"]), 20);
        assert_eq!(flush(&["-3", "soon", ""]), 5);
        assert_eq!(flush(&["99999999999"]), 1800);
    }
}
