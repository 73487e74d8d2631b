//! Since when AWS holds instances, by the scaling activities of their groups.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::aws::{Activity, Aws, AwsError, LONGEST_HOLD, Lifecycle};
use crate::clock::{Clock, later, signed};
use crate::k8s::{GroupName, InstanceId};

/// Most activities to read. A hook can hold an instance for two days, in which a group that grows and shrinks all the time has thousands; one
/// that is older than all that are read would be taken for younger than it is.
const ACTIVITIES_AT_MOST: usize = 5_000;

/// How far AWS's clock may be ahead of what we take for it: what it dates may be earlier by this much.
pub(super) const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);

/// Since when is this instance held, in this state? It was first seen so at `seen`.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) instance: InstanceId,
    pub(super) lifecycle: Lifecycle,
    pub(super) seen: Timestamp,
}

/// Asks AWS once since when these instances of a group are held: `None` for one of which it does not say so. AWS dates that by its own clock;
/// the result is on ours.
pub(super) async fn ask(
    aws: &Aws,
    clock: &Clock,
    group: &GroupName,
    questions: &[Question],
) -> Result<BTreeMap<InstanceId, Option<Timestamp>>, AwsError> {
    let ahead = clock.aws_ahead();
    let first = questions.iter().map(|held| held.seen).min().unwrap_or_else(|| clock.now());
    let until = later(later(first, ahead), -signed(LONGEST_HOLD));
    let answers = |found: &[Activity]| questions.iter().all(|held| holding(found, &held.instance).is_some());
    let activities = aws.scaling_activities(group, until, ACTIVITIES_AT_MOST, answers).await?;
    let since = questions.iter().map(|held| {
        let began = began(&activities, &held.instance, held.lifecycle, later(held.seen, ahead));
        (held.instance.clone(), began.map(|began| later(began, -ahead - CLOCKS_DIFFER)))
    });
    Ok(since.collect())
}

/// When the hold of an instance first seen held at `seen` began, by its group's activities, newest first. An activity
/// starts a while before its hook, and lasts as long as it: one that is over, such as a detachment, did not begin it, unless it is
/// a termination. A termination missing from a full list is older than the oldest in it. One missing
/// from a complete list is not shown yet, or never: then `None`.
fn began(
    activities: &[Activity],
    instance: &InstanceId,
    lifecycle: Lifecycle,
    seen: Timestamp,
) -> Option<Timestamp> {
    let earliest = later(seen, -signed(LONGEST_HOLD));
    let recent = &activities[..activities.partition_point(|activity| activity.started >= earliest)];
    let has_older = recent.len() >= ACTIVITIES_AT_MOST && lifecycle == Lifecycle::TerminatingWait;
    let is_launched_since = || recent.iter().any(|activity| is_launch(activity) && activity.names(instance));
    let oldest = recent.last().filter(|_| has_older && !is_launched_since());
    let known = holding(recent, instance).or(oldest);
    known.map(|activity| activity.started.min(seen))
}

/// The last activity that may have begun a hold of the instance: neither one before its last launch (as out of a warm pool), nor one
/// without effect.
fn holding<'a>(activities: &'a [Activity], instance: &InstanceId) -> Option<&'a Activity> {
    let mut of_now = activities
        .iter()
        .filter(|activity| activity.names(instance))
        .take_while(|activity| !is_launch(activity));
    of_now.find(|activity| match activity.status.as_str() {
        "Failed" | "Cancelled" => false,
        "Successful" => activity.description.starts_with("Terminating"),
        _ => true,
    })
}

fn is_launch(activity: &Activity) -> bool {
    activity.description.starts_with("Launching")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn the_activity_of_an_instance_tells_since_when_it_is_held() {
        let activity = |second: i64, description: &str| Activity {
            id: String::new(),
            started: at(second),
            status: "InProgress".into(),
            description: description.into(),
            cause: String::new(),
            message: String::new(),
        };
        let all = [
            activity(90, "Launching a new EC2 instance from warm pool: i-6"),
            Activity {
                status: "Successful".into(),
                ..activity(85, "Moving EC2 instance out of Standby: i-1")
            },
            Activity { status: "Cancelled".into(), ..activity(84, "Terminating EC2 instance: i-1") },
            Activity { status: "Successful".into(), ..activity(82, "Terminating EC2 instance: i-6") },
            activity(80, "Terminating EC2 instance: i-2"),
            activity(75, "Terminating EC2 instance: i-11 - Waiting For ELB Connection Draining."),
            activity(72, "Terminating EC2 instance: i-4.  Status Reason: Instance is in unknown state."),
            activity(71, "Terminating EC2 instance: i-5 - Waiting For ELB Connection Draining."),
            activity(70, "Terminating EC2 instance: i-1"),
            activity(60, "Launching a new EC2 instance: i-1"),
        ];
        let held = Lifecycle::TerminatingWait;
        assert_eq!(began(&all, &"i-1".into(), held, at(100)), Some(at(70)));
        assert_eq!(began(&all, &"i-1".into(), held, at(65)), Some(at(65)), "by clocks that differ");
        assert_eq!(began(&all, &"i-4".into(), held, at(100)), Some(at(72)));
        assert_eq!(began(&all, &"i-5".into(), held, at(100)), Some(at(71)));
        assert_eq!(began(&all, &"i-6".into(), held, at(100)), None, "it was launched since");
        assert_eq!(began(&all, &"i-3".into(), held, at(100)), None, "AWS does not tell of this one yet");
        let many: Vec<_> = (0..ACTIVITIES_AT_MOST as i64).map(|n| activity(9_000 - n, "Launching")).collect();
        assert_eq!(began(&many, &"i-3".into(), held, at(9_100)), Some(at(4_001)), "longer ago than is read");
        let launched = [vec![activity(9_050, "Launching a new EC2 instance: i-3")], many].concat();
        assert_eq!(began(&launched, &"i-3".into(), held, at(9_100)), None, "it is younger than the list");
        let long_after = at(80 + signed(LONGEST_HOLD).as_secs());
        assert_eq!(began(&all, &"i-1".into(), held, long_after), None, "no hold lasts that long");
        assert_eq!(began(&[], &"i-1".into(), held, at(100)), None);
        assert_eq!(
            began(&all[9..], &"i-1".into(), Lifecycle::ReplacingVolumeWait, at(100)),
            None,
            "no launch"
        );
    }
}
