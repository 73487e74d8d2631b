//! What the API server and AWS make of a request, and what must hold of it.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::world::{Call, Fate, INSTANCES, NAMES, Place, Sight, World};
use crate::aws::{AwsError, Operation};
use crate::cluster::{Answer, PodView};
use crate::scale_in::action::Action;

fn no_answer() -> AwsError {
    let operation = Operation::TerminateInstanceInAutoScalingGroup;
    AwsError::unreachable(operation, "timed out")
}

fn throttled() -> AwsError {
    let operation = Operation::TerminateInstanceInAutoScalingGroup;
    AwsError::of_service(operation, 400, "Throttling", "Rate exceeded")
}

fn refused(hook: bool) -> AwsError {
    let (operation, message) = (Operation::TerminateInstanceInAutoScalingGroup, String::new());
    if hook {
        AwsError::NoActiveHook { operation, message }
    } else {
        AwsError::NoSuchInstance { operation, message }
    }
}

impl World {
    /// A request has its effect or not, and its sender hears of it if it lives.
    pub(super) fn answer(&mut self, call: &Call, fate: Fate) -> Result<(), String> {
        let (by, n, now) = (call.by, call.node, self.clock(call.by));
        let is_heard = self.replicas[by].life == call.life;
        let has_effect = matches!(fate, Fate::Answered | Fate::Unheard);
        match &call.what {
            Action::PatchNode { patch, then } => {
                let written = has_effect.then(|| self.write(n, patch));
                if !is_heard {
                    return Ok(());
                }
                match written.filter(|_| fate == Fate::Answered) {
                    Some(true) => {
                        self.see(by, Sight::Node(n));
                        let node = self.replicas[by].nodes[n].clone().unwrap_or_default();
                        self.replicas[by].memory[n].note_written(&node, now);
                        for action in then.clone() {
                            self.start(by, n, action);
                        }
                    }
                    Some(false) => {
                        self.see(by, Sight::Node(n));
                        let soon = SignedDuration::from_millis(50);
                        self.replicas[by].memory[n].note_not_written(then, Some(soon), now);
                    }
                    None => self.replicas[by].memory[n].note_not_written(then, None, now),
                }
            }
            Action::Evict(ask) | Action::Delete(ask) => {
                let answer = if has_effect { self.ask(&ask.uid, ask.grace)? } else { Answer::Gone };
                if is_heard {
                    let heard =
                        if fate == Fate::Answered { answer } else { Answer::Unclear("timed out".into()) };
                    let memory = &mut self.replicas[by].memory[n];
                    if matches!(call.what, Action::Evict(_)) {
                        memory.note_eviction(ask.uid.clone(), heard, Vec::new(), now);
                    } else {
                        memory.note_deletion(ask.uid.clone(), heard, now);
                    }
                }
            }
            Action::Terminate { decrement, noted_at, .. } => {
                let result = if has_effect { self.terminate(n, *decrement)? } else { Ok(()) };
                if is_heard {
                    let heard = match fate {
                        Fate::Answered => result,
                        Fate::Refused => Err(throttled()),
                        Fate::Unheard | Fate::Lost => Err(no_answer()),
                    };
                    self.replicas[by].memory[n].note_termination(*noted_at, &heard, now);
                }
            }
            Action::CompleteHook { .. } => {
                let result = if has_effect { self.complete(n)? } else { Ok(()) };
                if is_heard {
                    let heard = if fate == Fate::Answered { result } else { Err(no_answer()) };
                    self.replicas[by].memory[n].note_completion(&heard, now);
                }
            }
            // The group ends nothing by itself here.
            Action::GiveUpReplacement { .. } if has_effect => self.lower(n)?,
            other => return Err(format!("nobody asked for {other:?}")),
        }
        Ok(())
    }

    /// Whether the API server takes the patch.
    fn write(&mut self, n: usize, patch: &Value) -> bool {
        let Some(node) = &mut self.nodes[n] else { return false };
        let version = node["metadata"]["resourceVersion"].clone();
        let based_on = &patch["metadata"]["resourceVersion"];
        if !based_on.is_null() && *based_on != version {
            return false;
        }
        json_patch::merge(node, patch);
        let next =
            version.as_str().and_then(|version| version.parse::<u64>().ok()).map(|version| version + 1);
        node["metadata"]["resourceVersion"] = json!(next.expect("a version").to_string());
        true
    }

    fn workload_on(&self, n: usize) -> Option<&PodView> {
        self.pods.values().find(|pod| pod.node == NAMES[n] && pod.daemon.is_none())
    }

    fn ask(&mut self, uid: &str, grace: Option<i64>) -> Result<Answer, String> {
        let Some(pod) = self.pods.get(uid) else { return Ok(Answer::Gone) };
        let n = usize::from(pod.node == NAMES[1]);
        if pod.daemon.is_some()
            && let Some(left) = self.workload_on(n)
        {
            return Err(format!("DaemonSet pod {} is asked before {} has left", pod.name, left.name));
        }
        if grace.is_some() {
            return Err(format!("the grace of {} is shortened", pod.name));
        }
        let until = self.now + SignedDuration::from_secs(pod.grace_seconds);
        let pod = self.pods.get_mut(uid).ok_or("there")?;
        pod.deletion_timestamp.get_or_insert(until);
        Ok(Answer::Going)
    }

    fn terminate(&mut self, n: usize, decrement: bool) -> Result<Result<(), AwsError>, String> {
        if self.places[n] == Place::Gone {
            return Ok(Err(refused(false)));
        }
        if decrement {
            self.lower(n)?;
        }
        if n == 0 {
            self.places[n] = Place::Held;
        } else {
            self.end(n)?;
        }
        Ok(Ok(()))
    }

    fn complete(&mut self, n: usize) -> Result<Result<(), AwsError>, String> {
        if self.places[n] != Place::Held {
            return Ok(Err(refused(true)));
        }
        self.completed += 1;
        self.end(n)?;
        Ok(Ok(()))
    }

    fn end(&mut self, n: usize) -> Result<(), String> {
        self.places[n] = Place::Gone;
        match self.workload_on(n) {
            Some(left) => Err(format!("{} ends under {}", INSTANCES[n], left.name)),
            None => Ok(()),
        }
    }

    fn lower(&mut self, n: usize) -> Result<(), String> {
        self.decrements[n] += 1;
        let wanted = [1, 0];
        if self.decrements[n] > wanted[n] {
            return Err(format!(
                "the desired capacity goes down {} times for {}",
                self.decrements[n], INSTANCES[n]
            ));
        }
        Ok(())
    }
}
