//! Containers on the machines: they start, exit when asked, and are killed if they take too long.
//!
//! Invariants: a pod's containers are in exactly one [`Stage`]; they write log lines from start to end only; every end that
//! was not their own exit is journalled as cut short. Containers live on the machine: they run on without a kubelet, and end
//! with the machine. Grace counts from when the kubelet learns of the deletion; the timestamps in the object are rounded to
//! seconds.

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

/// Least time from SIGTERM to SIGKILL, whatever the grace (`minimumGracePeriodInSeconds`).
/// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kuberuntime/kuberuntime_manager.go>
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Pauses before a container is started again: none, then this, and twice as long each time, up to the longest.
/// <https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-restarts>
const BACK_OFF: Duration = Duration::from_secs(10);
const LONGEST_BACK_OFF: Duration = Duration::from_mins(5);

/// The containers of one pod.
pub(super) struct Container {
    /// The pod as its kubelet knows it.
    pub(super) pod: Arc<Object>,
    pub(super) node: String,
    /// Whether its kubelet knows that the object is gone.
    pub(super) removed: bool,
    /// How often they have crashed.
    pub(super) crashes: u32,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    Starting { at: Timestamp },
    Running { ends: Option<Timestamp> },
    Crashed { starts: Timestamp },
    Asked { exits: Timestamp, killed: Timestamp },
    Exited { noticed: Timestamp, by_itself: bool },
    Ended { unmounted: Timestamp },
    Unmounted,
}

impl State {
    /// Performs what is due for one pod's containers.
    pub(super) fn advance(&mut self, uid: &str) {
        while let Some(next) = self.step_container(uid) {
            if next > self.now {
                self.look_at_container(uid, next);
                return;
            }
        }
    }

    /// Moves a container to its next stage. Returns when the next step is due; `None` if something else must happen first.
    fn step_container(&mut self, uid: &str) -> Option<Timestamp> {
        let Container { pod, node, removed, stage, .. } = self.containers.get(uid)?;
        let (pod, node, removed, stage) = (Arc::clone(pod), node.clone(), *removed, *stage);
        let asked = removed || pod.deleting();
        let lives = self.kubelet_lives(&node);
        match stage {
            Stage::Starting { .. } | Stage::Crashed { .. } if !lives => None,
            Stage::Crashed { .. } if asked => {
                self.note(Event::PodExited { pod: pod.name.clone(), node });
                self.set_stage(uid, Stage::Exited { noticed: self.now, by_itself: false })
            }
            Stage::Crashed { starts } if self.now < starts => {
                self.report_crashed(&pod);
                Some(starts)
            }
            Stage::Starting { .. } if asked => {
                self.containers.remove(uid);
                self.confirm_end(&pod);
                None
            }
            Stage::Starting { at } if self.now < at => Some(at),
            // Waits for its volume, whose arrival schedules it again.
            Stage::Starting { .. } if !self.volume_is_here(&pod) || !self.can_mount(&pod, &node) => None,
            Stage::Starting { .. } | Stage::Crashed { .. } => self.start_container(uid, &pod, &node),
            Stage::Running { .. } if asked && lives => self.ask_container(uid, &pod),
            Stage::Running { ends: Some(ends) } if ends <= self.now => self.end_container(uid, &pod, true),
            Stage::Running { ends } => {
                self.report_running(&pod);
                ends
            }
            Stage::Asked { exits, killed } => {
                // A second delete with less grace changes nothing for a kill that is under way.
                let killed = if lives { killed } else { Timestamp::MAX };
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
            // Containers that waited for it to mount or unmount go on.
            for waiting in self.containers_on(node) {
                self.look_at_container(&waiting, self.now);
            }
        }
        self.set_stage(uid, Stage::Running { ends })
    }

    /// A pod's running containers are killed where they are, as by the kernel for their memory; their kubelet starts them again.
    pub(super) fn crash_container(&mut self, uid: &str) {
        let now = self.now;
        let Some(container) = self.containers.get_mut(uid) else { return };
        if !matches!(container.stage, Stage::Running { .. }) {
            return;
        }
        let pause = match container.crashes.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => (BACK_OFF * 2_u32.saturating_pow(doublings)).min(LONGEST_BACK_OFF),
        };
        let noticed = self.timing.exit_noticed.draw(&mut self.dice);
        let starts = container.pod.seconds("sim/start-seconds").unwrap_or(STARTS_AFTER);
        container.crashes += 1;
        container.stage = Stage::Crashed { starts: now + noticed + pause + starts };
        let (pod, node) = (container.pod.name.clone(), container.node.clone());
        self.logs.entry(node.clone()).or_default().killed(uid, now);
        self.note(Event::PodCrashed { pod, node });
        self.look_at_container(uid, now + noticed);
    }

    /// The containers of a node, by pod uid.
    pub(super) fn containers_on(&self, node: &str) -> Vec<String> {
        let here = self.containers.iter().filter(|(_, container)| container.node == node);
        here.map(|(uid, _)| uid.clone()).collect()
    }

    /// A pod's object is gone. Its kubelet ends what still runs, with the pod's grace.
    pub(super) fn object_removed(&mut self, uid: &str) {
        let Some(container) = self.containers.get(uid) else { return };
        if matches!(container.stage, Stage::Unmounted) {
            self.containers.remove(uid);
        } else if self.kubelet_hears(&container.node.clone()) {
            self.forget_object(uid);
        }
    }

    /// The kubelet learns that a pod's object is gone.
    pub(super) fn forget_object(&mut self, uid: &str) {
        if let Some(container) = self.containers.get_mut(uid) {
            container.removed = true;
            self.look_at_container(uid, self.now);
        }
    }

    /// Schedules [`State::advance`] for a container.
    pub(super) fn look_at_container(&mut self, uid: &str, at: Timestamp) {
        if let Some(container) = self.containers.get(uid) {
            self.queue.add(Task::Container(container.pod.name.clone(), uid.to_owned()), at);
        }
    }

    /// Kills the containers of a machine. Workloads are journalled as cut short, daemons are not.
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

    /// A restarted kubelet sends SIGTERM again, with the whole grace that the API server tells by then.
    pub(super) fn ask_again(&mut self, node: &str) {
        let now = self.now;
        for (uid, container) in self.containers.iter_mut().filter(|(_, container)| container.node == node) {
            if let Stage::Asked { killed, .. } = &mut container.stage {
                let grace = grace_of(&container.pod, container.removed);
                *killed = later(now, Duration::from_secs(grace.unsigned_abs()).max(LEAST_GRACE));
                self.queue.add(Task::Container(container.pod.name.clone(), uid.clone()), now);
            }
        }
    }

    fn set_stage(&mut self, uid: &str, stage: Stage) -> Option<Timestamp> {
        self.containers.get_mut(uid)?.stage = stage;
        Some(self.now)
    }

    /// Sends SIGTERM.
    fn ask_container(&mut self, uid: &str, pod: &Object) -> Option<Timestamp> {
        let grace = grace_of(pod, self.containers.get(uid)?.removed);
        let seconds = |annotation| pod.seconds(annotation).unwrap_or_default();
        // The preStop hook runs first, within the grace; sidecars last, with at least two seconds each.
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
        self.set_stage(uid, Stage::Asked { exits, killed })
    }

    /// Ends the containers, by themselves or by SIGKILL.
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
        let noticed = pod.seconds("sim/noticed-seconds");
        let noticed = now + noticed.unwrap_or_else(|| self.timing.exit_noticed.draw(&mut self.dice));
        self.set_stage(uid, Stage::Exited { noticed, by_itself })
    }
}

/// `time` after `moment`, or the end of time. (What containerd does with a grace that no clock can hold is not specified;
/// here it waits.)
fn later(moment: Timestamp, time: Duration) -> Timestamp {
    let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    moment.checked_add(time).unwrap_or(Timestamp::MAX)
}

/// The seconds of grace that a kubelet gives when it asks containers to end (`calculateEffectiveGracePeriod`, from 1.31 on): the deletion's, at
/// least one; one of a pod whose object is gone with grace 0; else the pod's own. Less grace in a later delete changes nothing for containers
/// that have been asked: `SyncTerminatingPod` waits for the runtime, whatever becomes of its context.
/// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/pod_workers.go>
fn grace_of(pod: &Object, is_gone: bool) -> i64 {
    let deletion = integer(&pod.value, &["metadata", "deletionGracePeriodSeconds"]);
    let own = integer(&pod.value, &["spec", "terminationGracePeriodSeconds"]).filter(|_| !is_gone);
    deletion.or(own).unwrap_or(1).max(1)
}
