//! What a refresh shows, and what is then due.

use std::sync::Arc;

use super::*;
use crate::aws::{AutoScalingGroup, Instance};
use crate::groups::Group;

/// The time-out of a hook that is long enough.
const LASTS: Duration = Duration::from_mins(1);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// As a record has it.
fn told_at(second: i64) -> HoldEvidence {
    HoldEvidence { since: Some(at(second)), held_after: UNSEEN_AFTER }
}

fn snapshot(states: &[(&str, Lifecycle)]) -> Snapshot {
    let instances = states
        .iter()
        .map(|&(id, lifecycle)| Instance { id: id.into(), lifecycle, ..Instance::default() })
        .collect();
    Snapshot::new(
        at(0),
        [Arc::new(Group {
            asg: Arc::new(AutoScalingGroup { name: "g".into(), instances, ..AutoScalingGroup::default() }),
            ..Group::default()
        })],
    )
}

fn show(held: &mut BTreeMap<InstanceId, Held>, states: &[(&str, Lifecycle)], now: i64) {
    observe(held, None, &snapshot(states), &Sightings::default(), |_| Some(LASTS), &BTreeMap::new(), at(now));
}

#[test]
fn what_waits_is_held_at_once_and_what_does_not_is_let_go() {
    let mut held = BTreeMap::new();
    show(&mut held, &[("i-1", Lifecycle::TerminatingWait), ("i-2", Lifecycle::InService)], 10);
    assert_eq!(held.keys().collect::<Vec<_>>(), ["i-1"]);
    assert_eq!(held["i-1"].next, at(10));
    show(&mut held, &[("i-1", Lifecycle::TerminatingWait)], 20);
    assert_eq!(held["i-1"].seen, at(10), "seen first, not last");
    show(&mut held, &[("i-1", Lifecycle::TerminatingProceed)], 30);
    assert!(held.is_empty());
}

fn held() -> Held {
    Held { next: at(30), is_new: true, ..Held::new(&"g".into(), Lifecycle::TerminatingWait, at(0)) }
}

#[test]
fn the_next_heartbeat_comes_sooner_where_the_hook_turns_out_to_have_a_shorter_time_out() {
    let mut held = held();
    let mut paced = |seconds| {
        held.keep_pace(SignedDuration::from_secs(seconds));
        let next = held.next;
        held.stepped = Some(at(10));
        next
    };
    assert_eq!(paced(5), at(30), "none was sent");
    assert_eq!([15, 40, 5, 15].map(paced), [25, 25, 15, 15].map(at));
}

#[test]
fn one_without_a_node_is_let_go_in_time_and_not_told_so_again_at_once() {
    let mut held = held();
    held.plan_to_let_go(Some(at(20)), at(10));
    assert_eq!(
        (held.next, held.step(at(19)), held.step(at(20))),
        (at(20), Some(Step::Heartbeat), Some(Step::Complete))
    );
    (held.is_let_go, held.next) = (true, at(50));
    held.plan_to_let_go(Some(at(20)), at(10));
    assert_eq!(held.next, at(50));
    held.plan_to_let_go(None, at(10));
    assert_eq!(
        (held.step(at(60)), held.is_let_go),
        (Some(Step::Heartbeat), false),
        "its Node has come after all"
    );
}

#[test]
fn one_whose_time_was_over_before_anybody_could_let_it_go_waits_for_its_turn_from_then_on() {
    let mut held = held();
    held.plan_to_let_go(Some(at(0)), at(25));
    held.plan_to_let_go(Some(at(0)), at(26));
    assert_eq!((held.next, held.step(at(25))), (at(25), Some(Step::Complete)));
}

#[test]
fn nothing_is_sent_for_a_retained_one_before_it_is_terminated() {
    let mut held = Held { lifecycle: Lifecycle::Retained, ..held() };
    assert_eq!(held.step(at(30)), None);
    held.plan_to_let_go(Some(at(90)), at(10));
    assert_eq!((held.step(at(89)), held.step(at(90))), (None, Some(Step::Terminate)));
}

#[test]
fn one_refresh_that_leaves_an_instance_out_ends_no_hold_and_another_state_begins_a_new_one() {
    let mut held = BTreeMap::new();
    show(&mut held, &[("i-1", Lifecycle::TerminatingWait)], 10);
    show(&mut held, &[], 70);
    show(&mut held, &[], 130);
    assert_eq!(held["i-1"].seen, at(10));
    show(&mut held, &[("i-1", Lifecycle::ReplacingVolumeWait)], 131);
    assert_eq!((held["i-1"].lifecycle, held["i-1"].seen), (Lifecycle::ReplacingVolumeWait, at(131)));
    show(&mut held, &[], 252);
    assert!(held.is_empty());
}

#[test]
fn since_when_an_instance_is_held_is_asked_again_when_aws_did_not_say() {
    let mut held = BTreeMap::from([("i-1".into(), Held { ask_at: None, ..held() })]);
    let operation = crate::aws::Operation::DescribeScalingActivities;
    let error = AwsError::unreachable(operation, "timed out");
    let instances = vec!["i-1".into()];
    hear(&mut held, Done::Asked { group: "g".into(), instances, answer: Err(error) }, at(50));
    assert_eq!((held["i-1"].since, held["i-1"].ask_at), (None, Some(at(60))));
    let (instances, answer) = (vec!["i-1".into()], Ok(BTreeMap::from([("i-1".into(), Some(at(3)))])));
    hear(&mut held, Done::Asked { group: "g".into(), instances, answer }, at(112));
    assert_eq!((held["i-1"].since, held["i-1"].at_the_latest), (Some(at(3)), false));
}

#[test]
fn a_hold_of_which_aws_does_not_say_when_it_began_counts_from_when_it_was_seen() {
    use AwsError::Other;
    let operation = crate::aws::Operation::DescribeScalingActivities;
    let unreachable = || Err(AwsError::unreachable(operation, "timed out"));
    let unknown = || Err(Other { operation, code: "InvalidAction".into(), message: String::new() });
    // What AWS answers when, whether that is enough, and when it is asked again.
    let table = [
        (unreachable(), 59, false, Some(69)),
        (unreachable(), 60, true, Some(70)),
        (unknown(), 2, true, Some(302)),
        (Ok(BTreeMap::from([("i-1".into(), None)])), 2, true, Some(12)),
        (Ok(BTreeMap::from([("i-1".into(), None)])), 60, true, Some(360)),
    ];
    for (answer, heard, is_enough, again) in table {
        let mut held = BTreeMap::from([("i-1".into(), Held { ask_at: None, ..held() })]);
        let seen = held["i-1"].seen;
        let instances = vec!["i-1".into()];
        let heard = later(seen, SignedDuration::from_secs(heard));
        hear(&mut held, Done::Asked { group: "g".into(), instances, answer }, heard);
        let found = &held["i-1"];
        let since = is_enough.then(|| later(seen, -CLOCKS_DIFFER));
        assert_eq!((found.since, found.at_the_latest), (since, is_enough));
        assert_eq!(found.ask_at, again.map(|after| later(seen, SignedDuration::from_secs(after))));
    }
}

#[test]
fn the_same_where_its_question_waits_for_those_about_other_groups() {
    let mut all = BTreeMap::from([("i-1".into(), Held { ask_at: Some(at(0)), ..held() })]);
    for (now, since) in [(59, None), (60, Some(later(at(0), -CLOCKS_DIFFER)))] {
        assert!(questions_due(&mut all, 0, at(now)).is_empty());
        assert_eq!((all["i-1"].since, all["i-1"].at_the_latest), (since, since.is_some()), "{now}");
    }
    assert_eq!(questions_due(&mut all, 1, at(61)).len(), 1, "it is asked all the same");
}

#[test]
fn what_a_refresh_shows_anew_in_a_known_group_has_come_since() {
    let mut sightings = Sightings::default();
    let one = snapshot(&[("i-1", Lifecycle::InService)]);
    sightings.observe(None, &one);
    assert!(sightings.joined.is_empty(), "it may be old");
    let two = snapshot(&[("i-1", Lifecycle::InService), ("i-2", Lifecycle::Pending)]);
    sightings.observe(Some(&one), &two);
    sightings.observe(Some(&two), &two);
    assert_eq!(sightings.joined.iter().collect::<Vec<_>>(), ["i-2"]);
    // One that a refresh or two leave out has not come anew, nor is it forgotten that it has.
    sightings.observe(Some(&two), &snapshot(&[]));
    sightings.observe(Some(&snapshot(&[])), &two);
    assert_eq!(sightings.joined.iter().collect::<Vec<_>>(), ["i-2"]);
    sightings.observe(Some(&two), &one);
    let much_later = Snapshot { taken_at: later(one.taken_at, SignedDuration::from_mins(3)), ..one.clone() };
    sightings.observe(Some(&one), &much_later);
    assert!(sightings.joined.is_empty() && sightings.left_out.is_empty());
}

#[test]
fn one_that_refreshes_keep_showing_as_terminating_counts_as_held_in_time() {
    let (mut held, mut sightings) = (BTreeMap::new(), Sightings::default());
    let mut show = |lifecycle, second| {
        let shown = Snapshot { taken_at: at(second), ..snapshot(&[("i-1", lifecycle)]) };
        sightings.observe(None, &shown);
        observe(&mut held, None, &shown, &sightings, |_| Some(LASTS), &BTreeMap::new(), at(second));
        held.len()
    };
    assert_eq!([0, 10, 20].map(|second| show(Lifecycle::Terminating, second)), [0, 0, 1]);
    assert_eq!(show(Lifecycle::InService, 30), 0);
    assert_eq!([40, 50].map(|second| show(Lifecycle::Terminating, second)), [0, 0], "anew");
}

#[test]
fn a_hold_is_the_same_though_a_description_shows_a_state_that_nobody_knows() {
    let mut held =
        BTreeMap::from([("i-1".into(), Held { renewed: Some(at(8)), since: Some(at(3)), ..held() })]);
    show(&mut held, &[("i-1", Lifecycle::Unknown)], 10);
    show(&mut held, &[("i-1", Lifecycle::TerminatingWait)], 20);
    assert_eq!(held["i-1"].since, Some(at(3)));
}

#[test]
fn instances_that_are_held_at_once_beat_apart_and_in_time() {
    let beats: BTreeSet<_> =
        (0..100).map(|n| interval(Duration::from_mins(1), &format!("i-{n}").into())).collect();
    assert!(beats.len() > 80, "{} of 100", beats.len());
    let in_time = SignedDuration::from_secs(24)..=SignedDuration::from_secs(30);
    assert!(beats.iter().all(|beat| in_time.contains(beat)), "{beats:?}");
}

/// No less often than a call to AWS is where somebody waits for it.
#[test]
fn a_heartbeat_that_was_throttled_is_sent_again_the_sooner_the_less_is_left() {
    let again = |left: Option<i64>, timeout| {
        let pauses = (0..100).map(|n| {
            let ends = left.map(|left| at(1_000 + left));
            again_after(ends, Duration::from_secs(timeout), &format!("i-{n}").into(), at(1_000)).as_millis()
        });
        let pauses: Vec<_> = pauses.collect();
        (pauses.iter().min().copied().unwrap_or_default(), pauses.iter().max().copied().unwrap_or_default())
    };
    // What is left, of which time-out, and the longest pause in milliseconds. What is not known, or over, is as when one is due.
    for (left, timeout, longest) in [
        (Some(1), 3, 500),
        (Some(15), 30, 500),
        (Some(32), 60, 1_000),
        (Some(160), 300, 5_000),
        (Some(10), 300, 500),
        (Some(3_600), 7_200, 15_000),
        (None, 320, 5_000),
        (Some(-5), 320, 5_000),
        (Some(-30), 60, 15_000),
    ] {
        let (least, most) = again(left, timeout);
        assert!(least >= longest / 2 && least < longest * 6 / 10, "{left:?} of {timeout}: {least}");
        assert!(most <= longest && most > longest * 9 / 10, "{left:?} of {timeout}: {most}");
    }
}

#[test]
fn a_call_that_ends_is_of_one_instance_and_no_other() {
    let in_flight = Held { in_flight: true, ..held() };
    let mut held = BTreeMap::from(["i-1", "i-2"].map(|id| (id.into(), in_flight.clone())));
    let pause = SignedDuration::from_secs(24);
    hear(
        &mut held,
        Done::Step {
            one: DueInstance { instance: "i-2".into(), ..DueInstance::default() },
            step: Step::Heartbeat,
            pause,
            error: None,
        },
        at(100),
    );
    assert_eq!((held["i-1"].in_flight, held["i-1"].next), (true, at(30)));
    assert_eq!((held["i-2"].in_flight, held["i-2"].next), (false, at(124)));
}

#[test]
fn heartbeats_that_fail_for_a_quarter_of_what_was_left_end_the_hold_until_one_is_taken() {
    let mut held = BTreeMap::from([("i-1".into(), held())]);
    let mut beat = |now, ends, fails: bool, asked: &[i64]| {
        let operation = crate::aws::Operation::RecordLifecycleActionHeartbeat;
        let error = fails.then(|| AwsError::unreachable(operation, "timed out"));
        let pause = SignedDuration::from_secs(1);
        let one = DueInstance { instance: "i-1".into(), ends: Some(at(ends)), ..DueInstance::default() };
        let done = Done::Step { one, step: Step::Heartbeat, pause, error };
        hear(&mut held, done, at(now));
        asked.iter().map(|now| held["i-1"].ends(at(*now))).collect::<Vec<_>>()
    };
    let (none, some) = (None, Some(at(1_000)));
    assert_eq!(beat(100, 1_000, false, &[100, 999]), [none, none]);
    assert_eq!(beat(200, 1_000, true, &[200, 399]), [none, none]);
    assert_eq!(beat(300, 1_000, true, &[400, 999]), [none, none], "this process may have been stopped since");
    assert_eq!(beat(400, 1_000, true, &[400, 999]), [some, some], "counted from the first");
    assert_eq!(beat(450, 1_000, true, &[1_000]), [none], "over, or another one renews it");
    assert_eq!(beat(500, 2_000, false, &[500, 999]), [none, none], "one was taken");
    assert_eq!(beat(900, 1_000, true, &[929, 930]), [none, none]);
    assert_eq!(
        [beat(929, 1_000, true, &[930]), beat(930, 1_000, true, &[930])],
        [[none], [some]],
        "so long at least"
    );
    assert_eq!(beat(940, 2_000, false, &[940]), [none]);
    assert_eq!(beat(980, 1_000, true, &[999, 1_010]), [none, none], "too late");
}

/// Or the pods of a short hold would have less time, by as much as denied heartbeats are apart.
#[test]
fn a_heartbeat_is_tried_at_the_moment_from_which_failures_count() {
    for (ends, tries, next) in
        [(190, [100, 120, 130], [115, 130, 145]), (300, [100, 140, 150], [115, 150, 165])]
    {
        let mut held = BTreeMap::from([("i-1".into(), held())]);
        let next_after = |now| {
            let one = DueInstance { instance: "i-1".into(), ends: Some(at(ends)), ..DueInstance::default() };
            let operation = crate::aws::Operation::RecordLifecycleActionHeartbeat;
            let error = Some(AwsError::of_service(operation, 403, "AccessDenied", "no"));
            let done = Done::Step { one, step: Step::Heartbeat, pause: SignedDuration::from_secs(15), error };
            hear(&mut held, done, at(now));
            (held["i-1"].next, held["i-1"].ends(at(now)).is_some())
        };
        let counts = [false, false, true];
        let expected: Vec<_> = next.map(at).into_iter().zip(counts).collect();
        assert_eq!(tries.map(next_after).to_vec(), expected, "{ends}");
    }
}

#[test]
fn a_hold_begins_after_the_refresh_that_did_not_show_it_or_is_asked_for() {
    let large = snapshot(&[("i-1", Lifecycle::Terminating)]);
    let mut held = BTreeMap::new();
    let both = snapshot(&[("i-1", Lifecycle::TerminatingWait), ("i-2", Lifecycle::TerminatingWait)]);
    observe(&mut held, Some(&large), &both, &Sightings::default(), |_| Some(LASTS), &BTreeMap::new(), at(10));
    assert_eq!((held["i-1"].since, held["i-1"].ask_at), (Some(at(0)), None));
    assert_eq!((held["i-2"].since, held["i-2"].ask_at), (None, Some(at(10))));
}

#[test]
fn what_terminates_in_a_group_with_our_hook_counts_as_held_once_nobody_would_see_that_it_is() {
    let (mut view, mut held) = (snapshot(&[("i-1", Lifecycle::Terminating)]), BTreeMap::new());
    let mut see = |view: &Snapshot, has_hook: bool, now| {
        let due = observe(
            &mut held,
            Some(view),
            view,
            &Sightings::default(),
            |_| has_hook.then_some(LASTS),
            &BTreeMap::new(),
            at(now),
        );
        (due, held.get("i-1").map(|held| (held.lifecycle, held.since)))
    };
    assert_eq!(see(&view, false, 60), (None, None));
    assert_eq!(see(&view, true, 14), (Some(at(15)), None));
    let counts = Some((Lifecycle::TerminatingWait, Some(at(0))));
    assert_eq!(see(&view, true, 15), (None, counts));
    // It is seen again, and is not held yet.
    view.taken_at = at(20);
    assert_eq!(see(&view, true, 20), (Some(at(35)), None));
}

#[test]
fn a_hook_of_ten_seconds_is_given_a_heartbeat_after_half_of_them_though_nobody_sees_that_it_holds() {
    let (view, mut held) = (snapshot(&[("i-1", Lifecycle::InService)]), BTreeMap::new());
    let mut due = |seconds, now| {
        let (lasts, told) =
            (|_: &GroupName| Some(Duration::from_secs(seconds)), [("i-1".into(), told_at(50))].into());
        observe(&mut held, None, &view, &Sightings::default(), lasts, &told, at(now))
    };
    assert_eq!((due(10, 50), due(30, 50), due(300, 50)), (Some(at(55)), Some(at(65)), Some(at(65))));
}

#[test]
fn what_aws_was_told_to_end_counts_as_held_where_views_do_not_show_that_it_does() {
    let (mut view, mut held) = (snapshot(&[("i-1", Lifecycle::InService)]), BTreeMap::new());
    let mut see = |view: &Snapshot, told: Option<i64>, has_hook: bool, now| {
        let told = told.map(|told| ("i-1".into(), told_at(told))).into_iter().collect();
        let due = observe(
            &mut held,
            None,
            view,
            &Sightings::default(),
            |_| has_hook.then_some(LASTS),
            &told,
            at(now),
        );
        (due, held.get("i-1").map(|held| (held.lifecycle, held.since)))
    };
    let counts = (None, Some((Lifecycle::TerminatingWait, Some(at(50)))));
    assert_eq!(see(&view, None, true, 60), (None, None));
    assert_eq!(see(&view, Some(50), false, 70), (None, None));
    assert_eq!(see(&view, Some(50), true, 64), (Some(at(65)), None));
    assert_eq!(see(&view, Some(50), true, 65), counts);
    // What was acknowledged is laid over an old description: a new look tells no more than that one.
    view = snapshot(&[("i-1", Lifecycle::Terminating)]);
    view.taken_at = at(70);
    assert_eq!(see(&view, Some(50), true, 71), counts);
    view = snapshot(&[("i-1", Lifecycle::InService)]);
    assert_eq!(see(&view, None, true, 72), (None, None), "the scale-in was called off");
}

#[test]
fn a_presumed_hold_limits_nothing_before_it_is_one_and_counts_from_when_it_was_none() {
    let (mut view, mut held) = (snapshot(&[("i-1", Lifecycle::Terminating)]), BTreeMap::new());
    let see = |held: &mut _, view: &Snapshot, now| {
        observe(held, Some(view), view, &Sightings::default(), |_| Some(LASTS), &BTreeMap::new(), at(now))
    };
    see(&mut held, &view, 15);
    assert!(!held["i-1"].counts(at(15)));
    let beat = |held: &mut _, too_early: Option<i64>, renewed: Option<i64>| {
        let (renewed, too_early) = (renewed.map(at), too_early.map(at));
        let one = DueInstance { instance: "i-1".into(), renewed, too_early, ..DueInstance::default() };
        let pause = SignedDuration::from_secs(5);
        hear(held, Done::Step { one, step: Step::Heartbeat, pause, error: None }, at(0));
    };
    beat(&mut held, Some(600), None);
    assert_eq!((held["i-1"].counts(at(600)), held["i-1"].since), (false, Some(at(600))));
    // Seen now, where AWS took no heartbeat before: it counts from now if AWS does not say since when.
    let mut seen = held.clone();
    let mut shown = snapshot(&[("i-1", Lifecycle::TerminatingWait)]);
    shown.taken_at = at(3_000);
    see(&mut seen, &shown, 3_000);
    assert_eq!((seen["i-1"].seen, seen["i-1"].since, seen["i-1"].counts(at(3_000))), (at(3_000), None, true));
    beat(&mut held, None, Some(605));
    assert_eq!((held["i-1"].counts(at(605)), held["i-1"].since), (true, Some(at(600))));
    // What a refresh shows long after is asked of AWS.
    for (taken_at, since, ask_at) in [(610, Some(at(600)), None), (1_000, None, Some(at(1_000)))] {
        let mut held = held.clone();
        view = snapshot(&[("i-1", Lifecycle::TerminatingWait)]);
        view.taken_at = at(taken_at);
        see(&mut held, &view, taken_at);
        assert_eq!((held["i-1"].since, held["i-1"].ask_at), (since, ask_at), "{taken_at}");
    }
}

#[test]
fn after_a_long_time_without_a_refresh_it_is_asked_since_when_an_instance_is_held() {
    let mut held = BTreeMap::new();
    let large = snapshot(&[("i-1", Lifecycle::InService)]);
    let mut now = snapshot(&[("i-1", Lifecycle::TerminatingWait)]);
    now.taken_at = at(7_200);
    observe(
        &mut held,
        Some(&large),
        &now,
        &Sightings::default(),
        |_| Some(LASTS),
        &BTreeMap::new(),
        at(7_200),
    );
    assert_eq!((held["i-1"].since, held["i-1"].ask_at), (None, Some(at(7_200))));
}

#[test]
fn one_question_for_each_group_is_of_all_its_instances_that_are_due() {
    let due = Held { ask_at: Some(at(5)), ..held() };
    let mut all: BTreeMap<InstanceId, Held> =
        (0..40).map(|n| (format!("i-{n}").into(), due.clone())).collect();
    all.insert("i-other".into(), Held { group: "h".into(), ..due.clone() });
    all.insert("i-later".into(), Held { ask_at: Some(at(9)), ..due });
    let mut due = |most, now| {
        let questions = questions_due(&mut all, most, at(now));
        questions.into_iter().map(|(group, of)| (group.to_string(), of.len())).collect::<Vec<_>>()
    };
    assert_eq!(due(9, 4), []);
    assert_eq!(due(0, 5), [], "others are under way");
    assert_eq!(due(1, 5), [("g".to_owned(), 40)]);
    assert_eq!(due(1, 5), [("h".to_owned(), 1)]);
    assert_eq!(due(9, 6), [], "they are under way");
}
