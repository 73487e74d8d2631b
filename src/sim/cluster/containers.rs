//! What runs on the machines: containers that start, exit when asked, and are killed when they take too long.
//!
//! Invariants: a pod's containers are in exactly one [`Stage`]; they write log lines from start to end and at no other
//! time; what did not exit by itself is journalled as cut short, for whatever reason. Containers live on the machine: they
//! go on where no kubelet is there to hear of it, and end with the machine. Grace is counted from the moment the kubelet
//! learns of the deletion, not from the timestamps in the object, which are rounded to seconds.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::journal::{Cut, Event};
use super::object::{Object, integer};
use super::queue::Task;
use super::state::State;
use super::volumes::DRIVER;

/// Defaults of the annotations `sim/start-seconds` and `sim/exit-seconds`.
pub(super) const STARTS_AFTER: Duration = Duration::from_secs(2);
const EXITS_AFTER: Duration = Duration::from_secs(1);

/// SIGKILL never comes sooner after SIGTERM, whatever the grace (`minimumGracePeriodInSeconds`).
/// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kuberuntime/kuberuntime_manager.go>
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// What runs for one pod.
pub(super) struct Container {
    /// The pod as its kubelet knows it.
    pub(super) pod: Arc<Object>,
    pub(super) node: String,
    /// Its object is gone, and its kubelet knows.
    pub(super) removed: bool,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    Starting { at: Timestamp },
    Running { ends: Option<Timestamp> },
    Asked { exits: Timestamp, killed: Timestamp, grace: i64 },
    Exited { noticed: Timestamp, by_itself: bool },
    Ended { unmounted: Timestamp },
    Unmounted,
}

impl State {
    /// Does what is due for the containers of one pod.
    pub(super) fn advance(&mut self, uid: &str) {
        while let Some(next) = self.step_container(uid) {
            if next > self.now {
                self.look_at_container(uid, next);
                return;
            }
        }
    }

    /// One step from stage to stage. Gives when the next is due; none when something else must happen first.
    fn step_container(&mut self, uid: &str) -> Option<Timestamp> {
        let Container { pod, node, removed, stage } = self.containers.get(uid)?;
        let (pod, node, removed, stage) = (Arc::clone(pod), node.clone(), *removed, *stage);
        let asked = removed || pod.deleting();
        let lives = self.kubelet_lives(&node);
        match stage {
            Stage::Starting { .. } if !lives => None,
            Stage::Starting { .. } if asked => {
                self.containers.remove(uid);
                self.confirm_end(&pod);
                None
            }
            Stage::Starting { at } if self.now < at => Some(at),
            // Without its volume it waits; it is looked at again when the volume has come.
            Stage::Starting { .. } if !self.volume_is_here(&pod) || !self.can_mount(&pod, &node) => None,
            Stage::Starting { .. } => self.start_container(uid, &pod, &node),
            Stage::Running { .. } if asked && lives => self.ask_container(uid, &pod),
            Stage::Running { ends: Some(ends) } if ends <= self.now => self.end_container(uid, &pod, true),
            Stage::Running { ends } => {
                self.report_running(&pod);
                ends
            }
            Stage::Asked { exits, killed, grace } => {
                let killed = if lives { self.shortened(uid, &pod, killed, grace) } else { Timestamp::MAX };
                if self.now >= exits && exits <= killed {
                    self.end_container(uid, &pod, true)
                } else if self.now >= killed {
                    self.end_container(uid, &pod, false)
                } else {
                    Some(exits.min(killed))
                }
            }
            Stage::Exited { noticed, .. } if self.now < noticed => Some(noticed),
            Stage::Exited { .. } if !self.kubelet_hears(&node) => None,
            Stage::Exited { by_itself, .. } => {
                self.report_ended(&pod, by_itself);
                let unmounted = self.now + self.timing.unmount.draw(&mut self.dice);
                self.set_stage(uid, Stage::Ended { unmounted })
            }
            Stage::Ended { unmounted } if self.now < unmounted => Some(unmounted),
            Stage::Ended { .. } if !self.can_mount(&pod, &node) => None,
            Stage::Ended { .. } => {
                if let Some(volume) = pod.annotation(super::volumes::ANNOTATION) {
                    self.queue.add(Task::Volume(volume.to_owned()), self.now);
                }
                self.set_stage(uid, Stage::Unmounted)
            }
            Stage::Unmounted => {
                if removed {
                    self.containers.remove(uid);
                } else if asked {
                    self.confirm_end(&pod);
                }
                None
            }
        }
    }

    fn start_container(&mut self, uid: &str, pod: &Object, node: &str) -> Option<Timestamp> {
        let ends = pod.seconds("sim/runs-seconds").map(|seconds| self.now + seconds);
        self.logs.entry(node.to_owned()).or_default().started(pod, self.now);
        self.note(Event::PodRunning { pod: pod.name.clone(), node: node.to_owned() });
        if pod.annotation(DRIVER) == Some("true") {
            // Whoever waited for it to mount or unmount goes on.
            for waiting in self.containers_on(node) {
                self.look_at_container(&waiting, self.now);
            }
        }
        self.set_stage(uid, Stage::Running { ends })
    }

    /// The containers of a node, by uid of their pods.
    pub(super) fn containers_on(&self, node: &str) -> Vec<String> {
        let here = self.containers.iter().filter(|(_, container)| container.node == node);
        here.map(|(uid, _)| uid.clone()).collect()
    }

    /// The object of a pod is gone. What still runs for it is ended by its kubelet with the grace that the pod has.
    pub(super) fn object_removed(&mut self, uid: &str) {
        let Some(container) = self.containers.get(uid) else { return };
        if matches!(container.stage, Stage::Unmounted) {
            self.containers.remove(uid);
        } else if self.kubelet_hears(&container.node.clone()) {
            self.forget_object(uid);
        }
    }

    /// Its kubelet learns that the object of a pod is gone.
    pub(super) fn forget_object(&mut self, uid: &str) {
        if let Some(container) = self.containers.get_mut(uid) {
            container.removed = true;
            self.look_at_container(uid, self.now);
        }
    }

    /// Has [`State::advance`] called for a container at a moment.
    pub(super) fn look_at_container(&mut self, uid: &str, at: Timestamp) {
        if let Some(container) = self.containers.get(uid) {
            self.queue.add(Task::Container(container.pod.name.clone(), uid.to_owned()), at);
        }
    }

    /// Ends what runs on a machine where it stands. A daemon that goes down with its machine has done its part.
    pub(super) fn kill_containers(&mut self, node: &str) {
        for uid in self.containers_on(node) {
            let Some(Container { pod, node, stage, .. }) = self.containers.remove(&uid) else { continue };
            if !matches!(stage, Stage::Running { .. } | Stage::Asked { .. }) {
                continue;
            }
            let now = self.now;
            self.logs.entry(node.clone()).or_default().killed(&uid, now);
            if !pod.pod().daemon {
                self.note(Event::CutShort { pod: pod.name.clone(), node, by: Cut::PowerOff });
            }
        }
    }

    /// A kubelet that was restarted asks again whom it had asked, with the whole grace.
    pub(super) fn ask_again(&mut self, node: &str) {
        let now = self.now;
        for (uid, container) in self.containers.iter_mut().filter(|(_, container)| container.node == node) {
            if let Stage::Asked { killed, grace, .. } = &mut container.stage {
                *killed = later(now, Duration::from_secs(grace.unsigned_abs()).max(LEAST_GRACE));
                self.queue.add(Task::Container(container.pod.name.clone(), uid.clone()), now);
            }
        }
    }

    fn set_stage(&mut self, uid: &str, stage: Stage) -> Option<Timestamp> {
        self.containers.get_mut(uid)?.stage = stage;
        Some(self.now)
    }

    /// SIGTERM.
    fn ask_container(&mut self, uid: &str, pod: &Object) -> Option<Timestamp> {
        let grace = grace_of(pod);
        let seconds = |annotation| pod.seconds(annotation).unwrap_or_default();
        // The preStop hook runs first, in the grace, and sidecars last, each with two seconds whatever is left of it.
        // <https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-flow>
        let whole = Duration::from_secs(grace.unsigned_abs());
        let before = seconds("sim/prestop-seconds").min(whole);
        let own = before + pod.seconds("sim/exit-seconds").unwrap_or(EXITS_AFTER);
        let sidecars = seconds("sim/sidecar-seconds");
        let mut limit = whole.max(before + LEAST_GRACE);
        if own <= limit && !sidecars.is_zero() {
            limit = whole.max(own + LEAST_GRACE);
        }
        let (exits, killed) = (later(self.now, own + sidecars), later(self.now, limit));
        self.set_stage(uid, Stage::Asked { exits, killed, grace })
    }

    /// The end of the grace, which a second delete may have brought nearer.
    fn shortened(&mut self, uid: &str, pod: &Object, killed: Timestamp, grace: i64) -> Timestamp {
        let shorter = grace_of(pod);
        if shorter >= grace {
            return killed;
        }
        let killed =
            killed.min(later(self.now, Duration::from_secs(shorter.unsigned_abs()).max(LEAST_GRACE)));
        if let Some(container) = self.containers.get_mut(uid)
            && let Stage::Asked { killed: old, grace: old_grace, .. } = &mut container.stage
        {
            (*old, *old_grace) = (killed, shorter);
        }
        killed
    }

    /// The containers end, by themselves or by SIGKILL.
    fn end_container(&mut self, uid: &str, pod: &Object, by_itself: bool) -> Option<Timestamp> {
        let now = self.now;
        let node = self.containers.get(uid)?.node.clone();
        let logs = self.logs.entry(node.clone()).or_default();
        let pod_name = pod.name.clone();
        if by_itself {
            logs.exited(pod, now);
            self.note(Event::PodExited { pod: pod_name, node });
        } else {
            logs.killed(uid, now);
            self.note(Event::CutShort { pod: pod_name, node, by: Cut::GraceOver });
        }
        let noticed = now + self.timing.exit_noticed.draw(&mut self.dice);
        self.set_stage(uid, Stage::Exited { noticed, by_itself })
    }
}

/// So long after `moment`, or the end of time. (What containerd makes of a grace that no clock holds is not specified; here
/// it is waited for.)
fn later(moment: Timestamp, time: Duration) -> Timestamp {
    let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    moment.checked_add(time).unwrap_or(Timestamp::MAX)
}

/// The seconds that a kubelet gives (`calculateEffectiveGracePeriod`): those of the deletion, or else the pod's own, which a
/// deletion with grace 0 leaves in force.
/// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/pod_workers.go>
fn grace_of(pod: &Object) -> i64 {
    let deletion =
        integer(&pod.value, &["metadata", "deletionGracePeriodSeconds"]).filter(|grace| *grace > 0);
    let own = integer(&pod.value, &["spec", "terminationGracePeriodSeconds"]);
    deletion.or(own).unwrap_or(1).max(1)
}
