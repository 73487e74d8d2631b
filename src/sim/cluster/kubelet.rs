//! The kubelets: containers that start, exit when asked, and are killed when they take too long.
//!
//! Invariants: a container is in exactly one [`Stage`]; it writes log lines from start to end and at no other time; one
//! that did not exit by itself is journalled as cut short, for whatever reason. Grace is counted from the moment the
//! kubelet learns of the deletion, not from the timestamps in the object, which are rounded to seconds.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::journal::{Cut, Event};
use super::names::Name;
use super::object::{Object, integer, list, set_condition, stamp, text};
use super::resources::Resource;
use super::state::{State, Task};

/// From the last container's exit to the removal of the pod object; volumes and sandbox are torn down in between.
const TEARDOWN: Duration = Duration::from_millis(100);

/// Defaults of the annotations `sim/start-seconds` and `sim/exit-seconds`.
const STARTS_AFTER: Duration = Duration::from_secs(2);
const EXITS_AFTER: Duration = Duration::from_secs(1);

/// What runs for one pod.
pub(super) struct Container {
    pod: Name,
    node: String,
    daemon: bool,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Starting { at: Timestamp },
    Running { ends: Option<Timestamp> },
    Asked { exits: Timestamp, killed: Timestamp, grace: i64 },
    Ended { removed: Timestamp },
}

impl State {
    /// Does what is due for one pod on its node.
    pub(super) fn sync_pod(&mut self, name: &Name) {
        let Some(pod) = self.store.get(Resource::Pods, name).cloned() else { return };
        let facts = pod.pod();
        let Some(node) = facts.node.clone().filter(|node| self.powered(node)) else { return };
        let stage = self.containers.get(&facts.uid).map(|container| container.stage);
        let next = match stage {
            None if facts.finished() => return,
            None if facts.deleting => {
                self.finish_deletion(name);
                return;
            }
            None => {
                let at = self.now + pod.seconds("sim/start-seconds").unwrap_or(STARTS_AFTER);
                let (pod, daemon) = (name.clone(), facts.daemon);
                let stage = Stage::Starting { at };
                self.containers.insert(facts.uid.clone(), Container { pod, node, daemon, stage });
                at
            }
            Some(Stage::Starting { .. }) if facts.deleting => {
                self.containers.remove(&facts.uid);
                self.finish_deletion(name);
                return;
            }
            Some(Stage::Starting { at }) if self.now < at => at,
            // Without its volume it waits; it is looked at again when the volume has come.
            Some(Stage::Starting { .. }) if !self.volume_is_here(&pod) => return,
            Some(Stage::Starting { .. }) => {
                let ends = pod.seconds("sim/runs-seconds").map(|seconds| self.now + seconds);
                self.start_container(&pod, &node);
                self.set_stage(&facts.uid, Stage::Running { ends });
                match ends {
                    Some(ends) => ends,
                    None => return,
                }
            }
            Some(Stage::Running { .. }) if facts.deleting => self.ask_container(&pod),
            Some(Stage::Running { ends: Some(ends) }) if self.now < ends => ends,
            Some(Stage::Running { ends: Some(_) }) => {
                self.end_container(&pod, &node, true);
                return;
            }
            Some(Stage::Running { ends: None }) => {
                self.set_ready(&pod);
                return;
            }
            Some(Stage::Asked { exits, killed, grace }) => {
                let killed = self.shortened(&pod, killed, grace);
                if self.now >= exits && exits <= killed {
                    self.end_container(&pod, &node, true);
                    self.now + TEARDOWN
                } else if self.now >= killed {
                    self.end_container(&pod, &node, false);
                    self.now + TEARDOWN
                } else {
                    exits.min(killed)
                }
            }
            Some(Stage::Ended { removed }) if self.now < removed => removed,
            Some(Stage::Ended { .. }) => {
                if facts.deleting {
                    self.finish_deletion(name);
                }
                return;
            }
        };
        self.queue.add(Task::Kubelet(name.clone()), next);
    }

    /// The containers of a node, by uid of their pods.
    pub(super) fn containers_on(&self, node: &str) -> Vec<String> {
        let here = self.containers.iter().filter(|(_, container)| container.node == node);
        here.map(|(uid, _)| uid.clone()).collect()
    }

    /// The object of a pod is gone: so is what ran for it.
    pub(super) fn container_removed(&mut self, uid: &str) {
        self.kill_container(uid, Cut::Removed);
    }

    /// Ends a container where it stands. A daemon that goes down with its machine has done its part.
    pub(super) fn kill_container(&mut self, uid: &str, by: Cut) {
        let Some(Container { pod, node, daemon, stage }) = self.containers.remove(uid) else { return };
        if !matches!(stage, Stage::Running { .. } | Stage::Asked { .. }) {
            return;
        }
        let now = self.now;
        self.logs.entry(node.clone()).or_default().killed(uid, now);
        if !(daemon && by == Cut::PowerOff) {
            self.note(Event::CutShort { pod, node, by });
        }
    }

    fn set_stage(&mut self, uid: &str, stage: Stage) {
        if let Some(container) = self.containers.get_mut(uid) {
            container.stage = stage;
        }
    }

    fn start_container(&mut self, pod: &Object, node: &str) {
        self.logs.entry(node.to_owned()).or_default().started(pod, self.now);
        let now = self.now;
        let ready = wants_ready(pod);
        let address = format!("10.{}.{}.{}", self.rng.u8(..), self.rng.u8(..), self.rng.u8(1..));
        self.edit(Resource::Pods, &pod.name, |value| {
            let started = stamp(now);
            let names = list(value, &["spec", "containers"]).iter();
            let names: Vec<String> =
                names.filter_map(|container| text(container, &["name"])).map(str::to_owned).collect();
            let statuses = names.into_iter().map(|name| {
                json!({
                    "name": name, "ready": ready, "started": true, "restartCount": 0, "image": "sim", "imageID": "sim",
                    "state": { "running": { "startedAt": started } },
                })
            });
            let statuses: Value = statuses.collect();
            let status = &mut value["status"];
            status["phase"] = json!("Running");
            status["startTime"] = started;
            status["podIP"] = json!(address);
            status["containerStatuses"] = statuses;
            set_condition(value, now, json!({ "type": "PodScheduled", "status": "True" }));
            set_condition(value, now, json!({ "type": "Initialized", "status": "True" }));
            set_ready_conditions(value, now, ready);
        });
        self.note(Event::PodRunning { pod: pod.name.clone(), node: node.to_owned() });
    }

    fn set_ready(&mut self, pod: &Object) {
        let (now, ready) = (self.now, wants_ready(pod));
        if pod.pod().ready != ready {
            self.edit(Resource::Pods, &pod.name, |value| set_ready_conditions(value, now, ready));
        }
    }

    /// SIGTERM. Gives the next moment at which something happens.
    fn ask_container(&mut self, pod: &Object) -> Timestamp {
        let grace = grace_of(pod);
        let exits = self.now + pod.seconds("sim/exit-seconds").unwrap_or(EXITS_AFTER);
        let killed = later(self.now, grace);
        self.set_stage(&pod.pod().uid, Stage::Asked { exits, killed, grace });
        exits.min(killed)
    }

    /// The end of the grace, which a second delete may have brought nearer.
    fn shortened(&mut self, pod: &Object, killed: Timestamp, grace: i64) -> Timestamp {
        let shorter = grace_of(pod);
        if shorter >= grace {
            return killed;
        }
        let killed = killed.min(later(self.now, shorter));
        if let Some(container) = self.containers.get_mut(&pod.pod().uid)
            && let Stage::Asked { killed: old, grace: old_grace, .. } = &mut container.stage
        {
            (*old, *old_grace) = (killed, shorter);
        }
        killed
    }

    /// The container ends, by itself or by SIGKILL.
    fn end_container(&mut self, pod: &Object, node: &str, by_itself: bool) {
        let uid = &pod.pod().uid;
        let now = self.now;
        let logs = self.logs.entry(node.to_owned()).or_default();
        if by_itself {
            logs.exited(pod, now);
            self.note(Event::PodExited { pod: pod.name.clone(), node: node.to_owned() });
        } else {
            logs.killed(uid, now);
            let (pod, node) = (pod.name.clone(), node.to_owned());
            self.note(Event::CutShort { pod, node, by: Cut::GraceOver });
        }
        self.set_stage(uid, Stage::Ended { removed: now + TEARDOWN });
        let (phase, reason, code) =
            if by_itself { ("Succeeded", "Completed", 0) } else { ("Failed", "Error", 137) };
        self.edit(Resource::Pods, &pod.name, |value| {
            value["status"]["phase"] = json!(phase);
            set_ready_conditions(value, now, false);
            let terminated =
                json!({ "terminated": { "exitCode": code, "reason": reason, "finishedAt": stamp(now) } });
            for status in value["status"]["containerStatuses"].as_array_mut().into_iter().flatten() {
                status["ready"] = json!(false);
                status["started"] = json!(false);
                status["state"] = terminated.clone();
            }
        });
    }
}

fn wants_ready(pod: &Object) -> bool {
    pod.annotation("sim/ready") != Some("false")
}

/// `seconds` after `moment`, or the end of time.
fn later(moment: Timestamp, seconds: i64) -> Timestamp {
    moment.checked_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX)
}

fn grace_of(pod: &Object) -> i64 {
    integer(&pod.value, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0)
}

fn set_ready_conditions(value: &mut Value, now: Timestamp, ready: bool) {
    let status = if ready { "True" } else { "False" };
    for kind in ["ContainersReady", "Ready"] {
        set_condition(value, now, json!({ "type": kind, "status": status }));
    }
}
