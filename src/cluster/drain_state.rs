//! What a Node's conditions `DrainInProgress` and `Drained` tell others of a drain.
//!
//! Source: [KEP-5683](https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/5683-lifecycle-conditions). Both
//! are written together, in a strategic merge patch that names nothing else. Any API server takes them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::words::words;

const IN_PROGRESS: &str = "DrainInProgress";
const DRAINED: &str = "Drained";

words! {
    /// What the conditions say, as far as we have written both: the reason of both.
    pub DrainState {
        /// Workloads are leaving.
        InProgress = "ScaleInDraining",
        /// All workloads have left.
        Drained = "ScaleInDrained",
        /// Time was up before all had left.
        TimeOver = "ScaleInTimeOver",
        /// There is no scale-in any more.
        Cancelled = "ScaleInCancelled",
    }
}

impl DrainState {
    /// Whether the drain is in progress, whether it is done, and the text of both conditions.
    fn conditions(self) -> (bool, bool, &'static str) {
        match self {
            Self::InProgress => (true, false, "Workloads leave before the node is scaled in"),
            Self::Drained => (false, true, "All workloads have left; the node is scaled in"),
            Self::TimeOver => {
                (false, false, "Time was up before all workloads had left; the node is scaled in")
            }
            Self::Cancelled => (false, false, "The node is not scaled in"),
        }
    }

    /// Reads what we have written; `None` if there is nothing, or somebody else's word.
    pub(super) fn read(status: &NodeStatus) -> Option<Self> {
        let says = |kind: &str, value: bool, reason: Self| {
            let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
            found.is_some_and(|condition| {
                condition.status == spelled(value) && condition.reason.as_deref() == Some(reason.as_str())
            })
        };
        Self::ALL.into_iter().find(|state| {
            let (in_progress, drained, _) = state.conditions();
            says(IN_PROGRESS, in_progress, *state) && says(DRAINED, drained, *state)
        })
    }

    /// The patch of the status of the Node with this UID that tells so. A condition whose status stays keeps its time.
    pub(crate) fn patch(self, uid: &str, before: Option<Self>, now: Timestamp) -> Value {
        let (in_progress, drained, message) = self.conditions();
        let before = before.map(Self::conditions);
        let condition = |kind: &str, value: bool, before: Option<bool>| {
            let mut condition = json!({ "type": kind, "status": spelled(value), "reason": self.as_str(), "message": message });
            if before != Some(value) {
                condition["lastTransitionTime"] = json!(Time(now));
            }
            condition
        };
        json!({ "metadata": { "uid": uid }, "status": { "conditions": [
            condition(IN_PROGRESS, in_progress, before.map(|before| before.0)),
            condition(DRAINED, drained, before.map(|before| before.1)),
        ] } })
    }
}

fn spelled(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(patch: &Value) -> Option<DrainState> {
        DrainState::read(&serde_json::from_value(patch["status"].clone()).expect("a status"))
    }

    #[test]
    fn what_is_written_is_read_and_somebody_elses_is_not() {
        for state in DrainState::ALL {
            assert_eq!(read(&state.patch("u", None, Timestamp::UNIX_EPOCH)), Some(state));
        }
        let mut theirs = DrainState::InProgress.patch("u", None, Timestamp::UNIX_EPOCH);
        theirs["status"]["conditions"][0]["reason"] = json!("KubectlDrainStarted");
        assert_eq!(read(&theirs), None);
        assert_eq!(read(&json!({ "status": {} })), None);
    }

    #[test]
    fn a_condition_that_stays_as_it_is_keeps_its_time() {
        let patch = DrainState::Cancelled.patch("u", Some(DrainState::Drained), Timestamp::UNIX_EPOCH);
        let conditions = &patch["status"]["conditions"];
        assert!(conditions[0]["lastTransitionTime"].is_null(), "it was False");
        assert_eq!(conditions[1]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }
}
