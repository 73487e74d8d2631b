//! What is known of held instances beside the record on the Node: since when AWS holds them, and until when their pods
//! need them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, watch};

use crate::aws::{AwsError, LONGEST_HOLD};
use crate::clock::{Clock, later, signed};
use crate::k8s::{GroupName, InstanceId};

/// What is known of held instances.
#[derive(Debug, Default)]
pub struct Holds {
    known: watch::Sender<BTreeMap<InstanceId, Hold>>,
    /// What messages say of instances that our hook holds.
    messages: watch::Sender<BTreeMap<InstanceId, ToldHeld>>,
    /// Until when the pods of a Node that is gone need its instance.
    needed: Mutex<BTreeMap<InstanceId, Timestamp>>,
    /// When AWS accepted the completion of our hook, a moment ago.
    completed: Mutex<BTreeMap<InstanceId, Timestamp>>,
    /// What AWS makes of heartbeats for instances of a group.
    heartbeats: Mutex<BTreeMap<GroupName, Arc<GroupHeartbeats>>>,
    /// Since when this process has seen that the node of an instance is being released.
    releasing: Mutex<BTreeMap<InstanceId, Timestamp>>,
}

/// What AWS makes of heartbeats for instances of a group, by its last answer to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heartbeats {
    /// It has not been asked.
    #[default]
    Unknown,
    /// It lets them through.
    Taken,
    /// It denied one then: until it lets one through, the hook holds no instance for longer than its time-out.
    DeniedAt(Timestamp),
}

#[derive(Debug, Default)]
struct GroupHeartbeats {
    known: Mutex<Heartbeats>,
    /// Who asks AWS.
    asking: AsyncMutex<()>,
}

/// What a message says of an instance that our hook holds.
#[derive(Clone, Debug)]
pub(super) struct ToldHeld {
    /// Its group.
    pub(super) group: GroupName,
    /// Since when.
    pub(super) since: Timestamp,
    /// Until when that counts.
    pub(super) until: Timestamp,
}

/// How long AWS holds an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When it began to, or shortly before.
    pub since: Timestamp,
    /// Whether it may have begun earlier: AWS does not say when, and this is when it was first seen.
    pub at_the_latest: bool,
    /// When it ceases to because it takes no heartbeats, if that is so.
    pub ends: Option<Timestamp>,
    /// Whether AWS took the last heartbeat for it that it has answered.
    pub is_renewed: bool,
}

impl Hold {
    /// One that began then, with no heartbeat sent for it yet.
    pub fn since(since: Timestamp) -> Self {
        Self { since, at_the_latest: false, ends: None, is_renewed: false }
    }
}

/// A released node no longer needs its instance. If the hook cannot be completed (a right is missing), it has to time out: heartbeats
/// would put that off for days.
const COMPLETED_BY_THEN: SignedDuration = SignedDuration::from_mins(5);

/// A refresh shows by then that a hook was completed.
const SHOWN_BY_THEN: SignedDuration = SignedDuration::from_mins(1);

impl Holds {
    /// How long AWS holds the instance.
    pub fn of(&self, instance: &InstanceId) -> Option<Hold> {
        self.known.borrow().get(instance).copied()
    }

    /// Changes when more is known.
    pub fn versions(&self) -> watch::Receiver<BTreeMap<InstanceId, Hold>> {
        self.known.subscribe()
    }

    /// Notes that a message says that our hook holds an instance.
    pub(super) fn note_told_held(&self, instance: &InstanceId, told: ToldHeld, now: Timestamp) {
        self.messages.send_modify(|messages| {
            messages.retain(|_, told| told.until > now);
            messages.insert(instance.clone(), told);
        });
    }

    /// The instances that our hook holds by messages.
    pub(super) fn told_held(&self, now: Timestamp) -> BTreeMap<InstanceId, ToldHeld> {
        let messages = self.messages.borrow();
        messages
            .iter()
            .filter(|(_, told)| told.until > now)
            .map(|(id, told)| (id.clone(), told.clone()))
            .collect()
    }

    /// Changes when a message says that our hook holds an instance.
    pub(super) fn messages(&self) -> watch::Receiver<BTreeMap<InstanceId, ToldHeld>> {
        self.messages.subscribe()
    }

    /// Notes that an instance's Node is gone and its pods need the instance until `until`.
    pub(super) fn note_needed(&self, instance: &InstanceId, until: Timestamp, now: Timestamp) {
        let mut needed = self.needed.lock();
        needed.retain(|_, until| later(*until, signed(LONGEST_HOLD)) > now);
        needed.insert(instance.clone(), until);
    }

    /// Notes that an instance has a Node, again or still: what an earlier one's pods needed is past.
    pub(super) fn note_node(&self, instance: &InstanceId) {
        self.needed.lock().remove(instance);
    }

    pub(super) fn needed(&self, instance: &InstanceId) -> Option<Timestamp> {
        self.needed.lock().get(instance).copied()
    }

    /// Notes that AWS accepts the completion of our hook.
    pub(super) fn note_completed(&self, instance: &InstanceId, now: Timestamp) {
        let mut completed = self.completed.lock();
        completed.retain(|_, at| later(*at, SHOWN_BY_THEN) > now);
        completed.insert(instance.clone(), now);
    }

    /// Whether our hook was completed since the instance was first seen held, and no refresh need show it yet.
    pub(super) fn is_completed(&self, instance: &InstanceId, seen: Timestamp, now: Timestamp) -> bool {
        let completed = self.completed.lock();
        completed.get(instance).is_some_and(|at| seen <= *at && now < later(*at, SHOWN_BY_THEN))
    }

    /// Notes AWS's answer at `now` to a heartbeat for an instance of the group. AWS looks at the right to it first: that there is no such
    /// action is said only to those who have it.
    pub(super) fn note_beat(&self, group: &GroupName, answer: &Result<(), AwsError>, now: Timestamp) {
        let known = match answer {
            // A dry run asks nobody.
            Ok(()) | Err(AwsError::NoActiveHook { .. } | AwsError::DryRun { .. }) => Heartbeats::Taken,
            Err(AwsError::NoSuchGroup { .. }) => return,
            // What is wrong with this instance, or with its action, tells nothing of others.
            Err(error) if error.is_transient() || error.is_refused_request() => return,
            // Denied, or not known to whoever answers.
            Err(_) => Heartbeats::DeniedAt(now),
        };
        *self.of_group(group).known.lock() = known;
    }

    /// What AWS makes of heartbeats for instances of the group.
    pub(super) fn heartbeats(&self, group: &GroupName) -> Heartbeats {
        let heartbeats = self.heartbeats.lock();
        heartbeats.get(group).map(|of_group| *of_group.known.lock()).unwrap_or_default()
    }

    /// Tries a heartbeat for an instance that nothing holds yet, to learn whether AWS takes any; or waits while another node of the group
    /// does. Returns why AWS refused.
    pub(super) async fn try_heartbeat(
        &self,
        group: &GroupName,
        clock: &Clock,
        heartbeat: impl Future<Output = Result<(), AwsError>>,
    ) -> Option<AwsError> {
        let of_group = self.of_group(group);
        let Ok(_asking) = of_group.asking.try_lock() else {
            drop(of_group.asking.lock().await);
            return None;
        };
        let answer = heartbeat.await.map_err(as_no_active_hook);
        self.note_beat(group, &answer, clock.now());
        answer.err().filter(|error| !matches!(error, AwsError::NoActiveHook { .. } | AwsError::DryRun { .. }))
    }

    /// Forgets what AWS made of heartbeats in groups that are not there any more.
    pub(super) fn keep_groups(&self, is_there: impl Fn(&GroupName) -> bool) {
        self.heartbeats.lock().retain(|group, _| is_there(group));
    }

    fn of_group(&self, group: &GroupName) -> Arc<GroupHeartbeats> {
        Arc::clone(self.heartbeats.lock().entry(group.clone()).or_default())
    }

    /// Notes whether the node of an instance is being released, as far as its record is believed.
    pub(super) fn note_releasing(&self, instance: &InstanceId, is_releasing: bool, now: Timestamp) {
        let mut releasing = self.releasing.lock();
        if is_releasing && !releasing.contains_key(instance) {
            releasing.retain(|_, since| later(*since, signed(LONGEST_HOLD)) > now);
            releasing.insert(instance.clone(), now);
        } else if !is_releasing {
            releasing.remove(instance);
        }
    }

    /// Whether the node of an instance is being released, or was when it went.
    pub(super) fn is_releasing(&self, instance: &InstanceId) -> bool {
        self.releasing.lock().contains_key(instance)
    }

    /// Whether the node of an instance has been released for so long that no heartbeat holds the instance any more.
    pub(super) fn is_left_to_its_timeout(&self, instance: &InstanceId, now: Timestamp) -> bool {
        let since = self.releasing.lock().get(instance).copied();
        since.is_some_and(|at| later(at, COMPLETED_BY_THEN) <= now)
    }

    /// Replaces what is known of how long instances are held.
    pub(super) fn publish(&self, known: BTreeMap<InstanceId, Hold>) {
        self.known.send_if_modified(|before| {
            let changed = *before != known;
            *before = known;
            changed
        });
    }
}

/// Before a hook opens, AWS's error about the instance or the call means that nothing holds it yet, whatever its wording, which is
/// documented nowhere.
pub(super) fn as_no_active_hook(error: AwsError) -> AwsError {
    let early = |(operation, message)| AwsError::NoActiveHook { operation, message };
    error.as_refused_request().map_or_else(|other| other, early)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn what_the_pods_of_an_earlier_node_needed_is_past_when_the_instance_has_one_again() {
        let holds = Holds::default();
        holds.note_needed(&"i-1".into(), at(100), at(0));
        assert_eq!(holds.needed(&"i-1".into()), Some(at(100)));
        holds.note_node(&"i-1".into());
        assert_eq!(holds.needed(&"i-1".into()), None);
    }

    #[test]
    fn a_denied_heartbeat_counts_until_one_gets_past_the_look_at_rights() {
        use AwsError::{Denied, NoActiveHook};
        let operation = crate::aws::Operation::RecordLifecycleActionHeartbeat;
        let denied = || Err(Denied { action: operation.action(), message: String::new() });
        let unreachable = || Err(AwsError::unreachable(operation, "timed out"));
        let too_early = || Err(NoActiveHook { operation, message: String::new() });
        let gone = || Err(AwsError::NoSuchInstance { operation, message: String::new() });
        let unknown = || Err(AwsError::of_service(operation, 400, "InvalidAction", ""));
        let refused = || Err(AwsError::of_service(operation, 400, "ValidationError", "i-1 is over"));
        let dry_run = || Err(AwsError::DryRun { operation });
        let denied_at = |second| Heartbeats::DeniedAt(at(second));
        let table = [
            (Ok(()), Heartbeats::Taken),
            (too_early(), Heartbeats::Taken),
            (dry_run(), Heartbeats::Taken),
            (unreachable(), denied_at(10)),
            (gone(), denied_at(10)),
            (refused(), denied_at(10)),
            (denied(), denied_at(20)),
            (unknown(), denied_at(20)),
        ];
        for (answer, known) in table {
            let holds = Holds::default();
            holds.note_beat(&"g".into(), &denied(), at(10));
            holds.note_beat(&"other".into(), &Ok(()), at(11));
            assert_eq!(holds.heartbeats(&"g".into()), denied_at(10));
            holds.note_beat(&"g".into(), &answer, at(20));
            assert_eq!(holds.heartbeats(&"g".into()), known, "{answer:?}");
            assert_eq!(holds.heartbeats(&"another".into()), Heartbeats::Unknown);
        }
    }

    #[test]
    fn a_denial_is_forgotten_with_its_group() {
        let (holds, operation) = (Holds::default(), crate::aws::Operation::RecordLifecycleActionHeartbeat);
        for group in ["a", "b"] {
            let denied = AwsError::Denied { action: operation.action(), message: String::new() };
            holds.note_beat(&group.into(), &Err(denied), at(0));
        }
        holds.keep_groups(|group| group == "b");
        let known = ["a", "b"].map(|group| holds.heartbeats(&group.into()));
        assert_eq!(known, [Heartbeats::Unknown, Heartbeats::DeniedAt(at(0))]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_nodes_that_try_a_heartbeat_at_once_one_does() {
        let (holds, clock, group) = (Holds::default(), Clock::starting_at(at(0)), GroupName::from("g"));
        let sent = std::cell::Cell::new(0);
        let heartbeat = async || {
            sent.set(sent.get() + 1);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            Ok(())
        };
        let try_it = || holds.try_heartbeat(&group, &clock, heartbeat());
        futures::future::join_all((0..40).map(|_| try_it())).await;
        assert_eq!((sent.get(), holds.heartbeats(&group)), (1, Heartbeats::Taken));
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_that_is_tried_is_early_whatever_words_say_so() {
        let operation = crate::aws::Operation::RecordLifecycleActionHeartbeat;
        let refused = |code, message| AwsError::of_service(operation, 400, code, message);
        for (answer, known) in [
            (refused("ValidationError", "Instance is not in a wait state"), Heartbeats::Taken),
            (refused("ValidationError", "Instance i-1 does not exist"), Heartbeats::Taken),
            (refused("AccessDenied", ""), Heartbeats::DeniedAt(at(0))),
        ] {
            let (holds, clock, group) = (Holds::default(), Clock::starting_at(at(0)), GroupName::from("g"));
            let text = answer.to_string();
            let told = holds.try_heartbeat(&group, &clock, async { Err(answer) }).await;
            assert_eq!(
                (holds.heartbeats(&group), told.is_some()),
                (known, known != Heartbeats::Taken),
                "{text}"
            );
        }
    }
}
