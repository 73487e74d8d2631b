//! What readers see while changes of ours are on their way.

use super::*;
use crate::aws::{Instance, Lifecycle, Weights};
use crate::groups::{Group, LaunchFailure};
use crate::template::TemplateError;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("in range")
}

fn snapshot(second: i64, desired: i32, states: &[Lifecycle]) -> Snapshot {
    let instances = states
        .iter()
        .enumerate()
        .map(|(n, &lifecycle)| Instance { id: format!("i-{n}").into(), lifecycle, ..Instance::default() })
        .collect();
    let group = Group {
        asg: Arc::new(AutoScalingGroup {
            name: "g".into(),
            desired,
            instances,
            ..AutoScalingGroup::default()
        }),
        ..Group::default()
    };
    Snapshot::new(at(second), [Arc::new(group)])
}

fn desired(groups: &Groups) -> i32 {
    groups.latest().expect("published").groups["g"].asg.desired
}

fn terminated(decrement: bool) -> Change {
    Change::Terminated { group: "g".into(), instance: "i-0".into(), state: Lifecycle::Terminating, decrement }
}

#[test]
fn a_change_of_ours_shows_at_once_and_only_once() {
    use Lifecycle::{InService, Terminating};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 2, &[InService, InService]));
    groups.changed(at(5), terminated(true));
    assert_eq!(desired(&groups), 1);
    // A refresh that began before the change and saw nothing of it.
    groups.publish(snapshot(4, 2, &[InService, InService]));
    assert_eq!(desired(&groups), 1);
    // One that began before and saw it all the same.
    groups.publish(snapshot(4, 1, &[Terminating, InService]));
    assert_eq!(desired(&groups), 1);
    // One that began after, and is answered from before.
    groups.publish(snapshot(6, 2, &[InService, InService]));
    assert_eq!(desired(&groups), 1);
    // One that began long after, and shows it still as in service: AWS has said otherwise.
    groups.publish(snapshot(36, 2, &[InService, InService]));
    assert_eq!(desired(&groups), 1);
    // But not for ever.
    groups.publish(snapshot(365, 2, &[InService, InService]));
    assert_eq!(desired(&groups), 2);
}

#[test]
fn what_is_laid_over_is_another_description_until_it_is_shown() {
    let groups = Groups::new(Duration::from_mins(10));
    let described = snapshot(0, 2, &[Lifecycle::InService]);
    let latest = || groups.latest().expect("published");
    groups.publish(described.clone());
    assert!(latest().has_descriptions_of(&described));
    groups.changed(at(5), terminated(true));
    let (laid_over, other) = (latest(), snapshot(10, 2, &[Lifecycle::InService]));
    assert!(laid_over.has_places_of(&described) && !laid_over.has_descriptions_of(&described));
    groups.publish(Snapshot { taken_at: at(365), ..described.clone() });
    assert!(latest().has_descriptions_of(&described));
    for (one, other) in [(&described, &other), (&described, &Snapshot::default())] {
        assert!(!one.has_descriptions_of(other) && !other.has_descriptions_of(one));
    }
}

#[test]
fn a_termination_that_was_shown_or_undone_counts_for_a_minute() {
    use Lifecycle::{InService, Pending, Terminating, Warmed};
    for shown in [Terminating, Warmed, Pending] {
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(snapshot(0, 2, &[InService, InService]));
        groups.changed(at(5), terminated(true));
        groups.publish(snapshot(66, 3, &[shown, InService]));
        assert_eq!(desired(&groups), 3, "{shown:?}");
        groups.publish(snapshot(76, 3, &[InService, InService]));
        assert_eq!(desired(&groups), 3, "{shown:?}: it is back");
    }
}

/// AWS does not say that both change in one step.
#[test]
fn a_description_with_the_smaller_size_but_not_yet_the_leaving_instance_is_not_made_smaller() {
    use Lifecycle::{InService, Terminating};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 10, &[InService; 10]));
    let gone = |id: &str| Change::Terminated {
        group: "g".into(),
        instance: id.into(),
        state: Terminating,
        decrement: true,
    };
    groups.changed(at(1), gone("i-0"));
    groups.changed(at(2), gone("i-1"));
    for described in [10, 9, 8] {
        groups.publish(snapshot(3, described, &[InService; 10]));
        assert_eq!(desired(&groups), 8, "{described}");
    }
    groups.publish(snapshot(4, 12, &[InService; 10]));
    assert_eq!(desired(&groups), 10, "somebody has raised it since");
}

#[test]
fn of_two_terminations_at_once_the_one_that_a_description_shows_is_not_taken_for_the_other() {
    use Lifecycle::{InService, Terminating};
    for order in [["i-0", "i-1"], ["i-1", "i-0"]] {
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(snapshot(0, 3, &[InService; 3]));
        for id in order {
            let change = Change::Terminated {
                group: "g".into(),
                instance: id.into(),
                state: Terminating,
                decrement: true,
            };
            groups.changed(at(1), change);
        }
        groups.publish(snapshot(2, 2, &[InService, Terminating, InService]));
        assert_eq!(desired(&groups), 1, "{order:?}");
    }
}

#[test]
fn what_a_group_retains_is_learned_once() {
    use Lifecycle::{InService, Retained};
    let seen = snapshot(0, 1, &[InService, Retained]);
    let fresh = seen.groups["g"].asg.as_ref().clone();
    assert_eq!(Change::learned(&seen, &fresh, at(1)), []);
}

#[test]
fn an_instance_is_found_as_the_changes_show_it() {
    use Lifecycle::{InService, TerminatingWait};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 2, &[InService, InService]));
    let fresh = snapshot(1, 2, &[InService, TerminatingWait]).groups["g"].asg.as_ref().clone();
    groups.learn(&groups.latest().expect("published"), &fresh, at(1), at(1));
    let view = groups.latest().expect("published");
    let state = |id: &str| view.instance(id).map(|(_, instance)| instance.lifecycle);
    assert_eq!((state("i-0"), state("i-1"), state("i-2")), (Some(InService), Some(TerminatingWait), None));
}

#[test]
fn a_size_that_was_set_before_a_termination_that_shows_is_not_set_again() {
    use Lifecycle::{InService, Terminating, Warmed};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 2, &[InService]));
    groups.changed(at(1), Change::Desired { group: "g".into(), from: 2, to: 3 });
    groups.changed(at(2), terminated(true));
    for (shown, states) in
        [(2, &[InService][..]), (3, &[InService]), (2, &[Terminating]), (2, &[Warmed]), (2, &[])]
    {
        groups.publish(snapshot(3, shown, states));
        assert_eq!(desired(&groups), 2, "{shown} {states:?}");
    }
}

#[test]
fn a_size_that_was_set_before_another_replica_terminated_an_instance_is_not_set_again() {
    use Lifecycle::{InService, Pending, Terminating};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 2, &[InService, InService]));
    groups.changed(at(1), Change::Desired { group: "g".into(), from: 2, to: 3 });
    for (shown, states, expected) in [
        (2, &[InService, InService][..], 3),
        (3, &[InService, InService, Pending], 3),
        (2, &[Terminating, InService, Pending], 2),
        (2, &[Terminating, InService], 2),
    ] {
        let seen = snapshot(3, shown, states);
        let described = seen.groups["g"].asg.as_ref().clone();
        groups.publish(seen);
        let of_now = groups.brought_up_to_date(described, at(4)).desired;
        assert_eq!((desired(&groups), of_now), (expected, expected), "{shown} {states:?}");
    }
}

#[test]
fn a_description_that_is_older_than_the_last_refresh_gives_way_to_that() {
    use Lifecycle::{InService, Pending, Terminating, TerminatingWait, Warmed};
    let described =
        |desired, states: &[Lifecycle]| snapshot(0, desired, states).groups["g"].asg.as_ref().clone();
    for gone in [Terminating, TerminatingWait] {
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(snapshot(5, 1, &[gone, InService]));
        let of_now = |asg| groups.brought_up_to_date(asg, at(6));
        let before = of_now(described(2, &[InService, InService]));
        assert_eq!(
            (before.desired, before.live().count()),
            (1, 1),
            "another replica has terminated one since"
        );
        let newer = of_now(described(3, &[gone, InService, Pending]));
        assert_eq!((newer.desired, newer.live().count()), (3, 2));
    }
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(5, 1, &[Warmed, InService]));
    let taken = groups.brought_up_to_date(described(2, &[InService, InService]), at(6));
    assert_eq!((taken.desired, taken.live().count()), (2, 2), "it was taken from the pool since");
}

#[test]
fn of_sizes_that_follow_each_other_the_last_one_counts_whichever_a_description_shows() {
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 5, &[]));
    for (at_second, from, to) in [(1, 5, 4), (2, 4, 3), (3, 3, 4), (4, 4, 6)] {
        groups.changed(at(at_second), Change::Desired { group: "g".into(), from, to });
    }
    for shown in [5, 4, 3, 6] {
        let described = AutoScalingGroup { name: "g".into(), desired: shown, ..AutoScalingGroup::default() };
        assert_eq!(groups.brought_up_to_date(described, at(5)).desired, 6, "{shown}");
    }
    let by_a_person = AutoScalingGroup { name: "g".into(), desired: 9, ..AutoScalingGroup::default() };
    assert_eq!(groups.brought_up_to_date(by_a_person, at(5)).desired, 9);
    let long_after = AutoScalingGroup { name: "g".into(), desired: 5, ..AutoScalingGroup::default() };
    assert_eq!(groups.brought_up_to_date(long_after, at(70)).desired, 5, "it is the truth by now");
}

#[test]
fn a_size_from_before_one_that_was_shown_is_told_beside_it() {
    use Lifecycle::{InService, Terminating};
    let groups = Groups::new(Duration::from_mins(10));
    let both = |second, shown, states: &[Lifecycle]| {
        let seen = snapshot(second, shown, states);
        let described = seen.groups["g"].asg.as_ref().clone();
        groups.publish(seen);
        let asg = Arc::clone(&groups.latest().expect("published").groups["g"].asg);
        assert_eq!(groups.brought_up_to_date(described, at(second)), *asg);
        (asg.desired, asg.described_desired)
    };
    assert_eq!(both(0, 8, &[InService; 4]), (8, None));
    groups.changed(at(1), Change::Desired { group: "g".into(), from: 8, to: 5 });
    assert_eq!(both(2, 8, &[InService; 4]), (5, None), "from before: nothing has shown it yet");
    assert_eq!(both(2, 5, &[InService; 4]), (5, None));
    assert_eq!(both(2, 8, &[InService; 4]), (5, Some(8)), "from before, or set again since");
    groups.changed(at(3), terminated(true));
    assert_eq!(both(4, 8, &[InService; 4]), (4, Some(7)), "the same, and from before that");
    assert_eq!(both(4, 5, &[InService; 4]), (4, None), "from between them");
    assert_eq!(both(4, 4, &[Terminating, InService, InService, InService]), (4, None));
    assert_eq!(
        both(61, 8, &[Terminating, InService, InService, InService]),
        (8, None),
        "it is the truth by now"
    );
}

#[test]
fn a_raise_that_no_description_has_shown_counts_for_two_minutes() {
    use Lifecycle::{InService, Terminating};
    let live = &[InService, InService][..];
    let raised = |steps: &[(i32, i32)]| {
        let groups = Groups::new(Duration::from_mins(10));
        groups.publish(snapshot(0, 4, live));
        for &(from, to) in steps {
            groups.changed(at(1), Change::Desired { group: "g".into(), from, to });
        }
        groups
    };
    // Of the view, and of a description of that moment.
    let sizes = |groups: &Groups, second, shown, states: &[Lifecycle]| {
        let seen = snapshot(second, shown, states);
        let described = seen.groups["g"].asg.as_ref().clone();
        groups.publish(seen);
        (desired(groups), groups.brought_up_to_date(described, at(second)).desired)
    };
    let groups = raised(&[(4, 5), (5, 7)]);
    assert_eq!(sizes(&groups, 120, 4, live), (7, 7), "described as it was before");
    assert_eq!(sizes(&groups, 121, 4, live), (4, 4), "but not for ever");
    let groups = raised(&[(4, 5)]);
    assert_eq!(sizes(&groups, 10, 5, live), (5, 5));
    assert_eq!(sizes(&groups, 60, 4, live), (5, 5), "one from before the last");
    assert_eq!(sizes(&groups, 61, 4, live), (4, 4), "somebody has lowered it since");
    for (steps, left) in [
        (&[(4, 5), (5, 4)][..], 4),
        (&[(4, 10), (10, 9)], 9),
        (&[(4, 5), (5, 7), (7, 6)], 6),
        (&[(4, 5), (5, 7), (7, 5)], 5),
        (&[(4, 5), (5, 7), (7, 4)], 4),
    ] {
        assert_eq!(sizes(&raised(steps), 70, 4, live), (left, left), "we have lowered it since: {steps:?}");
    }
    let groups = raised(&[(4, 10)]);
    for (second, states) in [(10, &[Terminating, InService][..]), (82, &[Terminating, InService]), (85, live)]
    {
        assert_eq!(sizes(&groups, second, 4, states), (10, 10), "one that is replaced takes no six along");
    }
    for ended in [&[Terminating, InService][..], &[InService]] {
        let groups = raised(&[(4, 5)]);
        sizes(&groups, 10, 4, ended);
        assert_eq!(sizes(&groups, 61, 4, &[InService]), (4, 4), "another replica has terminated one since");
    }
}

#[test]
fn what_a_description_from_before_our_size_says_of_it_is_not_learned() {
    use Lifecycle::{InService, Terminating};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 4, &[InService, InService]));
    // It is on its way while the size is set.
    let crossing = snapshot(0, 4, &[Terminating, InService]).groups["g"].asg.as_ref().clone();
    groups.changed(at(2), Change::Desired { group: "g".into(), from: 4, to: 10 });
    let learn = |fresh: &AutoScalingGroup, asked| {
        groups.learn(&groups.latest().expect("published"), fresh, at(asked), at(3));
        desired(&groups)
    };
    assert_eq!(learn(&crossing, 1), 10);
    groups.publish(snapshot(5, 10, &[Terminating, InService]));
    assert_eq!(desired(&groups), 10);
    groups.changed(at(7), Change::Desired { group: "g".into(), from: 10, to: 7 });
    let crossing = snapshot(5, 10, &[Terminating, InService]).groups["g"].asg.as_ref().clone();
    assert_eq!(learn(&crossing, 6), 7);
    groups.publish(snapshot(68, 7, &[InService]));
    // Somebody else raises it, and takes that back: learned sizes count for a minute.
    let raised = AutoScalingGroup { desired: 9, ..crossing.clone() };
    assert_eq!(learn(&raised, 69), 9);
    groups.publish(snapshot(130, 7, &[InService]));
    assert_eq!(desired(&groups), 7);
}

#[test]
fn nothing_counts_of_a_group_that_had_the_name_before() {
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(of_arn("arn:1", snapshot(0, 0, &[])));
    groups.changed(at(1), Change::Desired { group: "g".into(), from: 0, to: 3 });
    assert_eq!(desired(&groups), 3);
    groups.publish(of_arn("arn:of-another", snapshot(10, 0, &[])));
    assert_eq!(desired(&groups), 0);
}

fn of_arn(arn: &str, mut snapshot: Snapshot) -> Snapshot {
    let group = Arc::make_mut(snapshot.groups.get_mut("g").expect("there"));
    Arc::make_mut(&mut group.asg).arn = arn.into();
    snapshot
}

#[test]
fn an_answer_without_an_arn_is_of_the_group_that_is_known() {
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(of_arn("arn:1", snapshot(0, 4, &[])));
    groups.changed(at(1), Change::Desired { group: "g".into(), from: 4, to: 5 });
    groups.publish(snapshot(2, 4, &[]));
    assert_eq!(desired(&groups), 5);
}

#[test]
fn the_size_of_a_group_that_is_made_anew_is_not_in_doubt_for_its_predecessors() {
    let seen = of_arn("arn:1", snapshot(0, 5, &[]));
    let doubted = |fresh: Snapshot| size_in_doubt(&seen, &fresh.groups["g"].asg, at(1));
    assert_eq!(doubted(of_arn("arn:1", snapshot(1, 0, &[]))), Some(5));
    assert_eq!(doubted(of_arn("arn:2", snapshot(1, 0, &[]))), None);
}

/// So many launches of the group fail.
fn failing(mut seen: Snapshot, out_of_resources: bool, launches: usize) -> Snapshot {
    let failure = LaunchFailure { code: "x".into(), message: String::new(), out_of_resources, launches };
    Arc::make_mut(seen.groups.get_mut("g").expect("there")).failure = Some(failure);
    seen
}

#[test]
fn a_failure_explains_nothing_that_is_asked_for_after_it_and_nothing_twice() {
    let groups = Groups::new(Duration::from_mins(10));
    let seen = failing(snapshot(0, 5, &[Lifecycle::InService]), true, 3);
    groups.publish(seen.clone());
    let explained = || groups.latest().expect("published").groups["g"].failure.as_ref().map(|f| f.launches);
    groups.changed(at(1), Change::Desired { group: "g".into(), from: 5, to: 4 });
    assert_eq!(explained(), Some(2));
    groups.changed(at(2), Change::Desired { group: "g".into(), from: 4, to: 2 });
    assert_eq!(explained(), None);
    groups.publish(seen);
    groups.changed(at(3), Change::Desired { group: "g".into(), from: 5, to: 6 });
    assert_eq!(explained(), None);
}

#[test]
fn a_failure_counts_for_five_minutes_and_refused_capacity_for_fifteen_from_when_it_was_last_seen() {
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(failing(snapshot(0, 1, &[]), true, 1));
    // A wrong template is no want of capacity.
    groups.publish(failing(snapshot(100, 1, &[]), false, 1));
    groups.publish(snapshot(200, 1, &[]));
    let launches = groups.failed_launches();
    assert_eq!([399, 400].map(|now| launches.have_failed(&"g".into(), at(now))), [true, false]);
    assert!(!launches.have_failed(&"h".into(), at(200)));
    assert_eq!([899, 900].map(|now| launches.refused(at(now)).len()), [1, 0]);
}

#[test]
fn an_instance_that_has_a_weight_takes_its_units_along() {
    let groups = Groups::new(Duration::from_mins(10));
    let mut seen = snapshot(0, 6, &[Lifecycle::InService, Lifecycle::InService]);
    let weights = Weights { of_instances: [("i-0".into(), 4)].into() };
    let group = Arc::make_mut(seen.groups.get_mut("g").expect("there"));
    Arc::make_mut(&mut group.asg).weights = Some(weights);
    groups.publish(seen);
    groups.changed(at(5), terminated(true));
    assert_eq!(desired(&groups), 2);
}

#[test]
fn a_set_size_and_a_termination_do_not_undo_each_other() {
    use Lifecycle::{InService, Terminating};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 5, &[InService]));
    groups.changed(at(1), Change::Desired { group: "g".into(), from: 5, to: 7 });
    groups.changed(at(2), terminated(true));
    assert_eq!(desired(&groups), 6);
    for (seen, states) in [(5, [InService]), (7, [InService]), (6, [Terminating])] {
        groups.publish(snapshot(0, seen, &states));
        assert_eq!(desired(&groups), 6, "a refresh that saw {seen}");
    }
}

#[test]
fn states_are_seen_at_once_and_what_was_known_of_templates_stays() {
    use Lifecycle::{InService, TerminatingWait};
    let groups = Groups::new(Duration::from_mins(10));
    let state = |groups: &Groups| groups.latest().expect("published").groups["g"].asg.instances[0].lifecycle;
    groups.publish_states(snapshot(0, 1, &[TerminatingWait]));
    assert_eq!(state(&groups), TerminatingWait);
    assert_eq!(groups.fresh(at(0)).err(), Some(Stale), "there is no template to answer with");
    let mut whole = snapshot(0, 1, &[InService]);
    let template = Some(Err(TemplateError::new("none")));
    let known = Arc::make_mut(whole.groups.get_mut("g").expect("there"));
    known.template.clone_from(&template);
    known.options.zero_or_max_node_scaling = Some(true);
    groups.publish(whole);
    groups.publish_states(snapshot(10, 1, &[TerminatingWait]));
    assert_eq!(state(&groups), TerminatingWait);
    let view = groups.fresh(at(10)).expect("is complete");
    assert_eq!(view.groups["g"].template.is_some(), template.is_some());
    assert_eq!(view.groups["g"].options.zero_or_max_node_scaling, Some(true));
}

#[test]
fn what_others_did_is_learned_from_a_description_and_counts_once_beside_what_we_hear_of_it() {
    use Lifecycle::{InService, TerminatingWait};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 3, &[InService, InService, InService]));
    let fresh = snapshot(5, 2, &[TerminatingWait, InService, InService]);
    let seen = groups.latest().expect("published");
    let learned = |seen: &Snapshot| Change::learned(seen, &fresh.groups["g"].asg, at(5));
    for change in learned(&seen) {
        groups.changed(at(5), change);
    }
    assert_eq!(desired(&groups), 2);
    // Our own call for it is answered later.
    groups.changed(at(6), terminated(true));
    assert_eq!(desired(&groups), 2);
    let seen = groups.latest().expect("published");
    assert_eq!(learned(&seen), []);
}

#[test]
fn a_smaller_size_is_learned_if_departures_explain_it_or_the_last_look_is_long_ago() {
    use Lifecycle::{InService, Pending, TerminatingWait};
    let seen = snapshot(0, 8, &[InService, InService, Pending]);
    let learns = |second, size, states: &[Lifecycle]| {
        let fresh = snapshot(second, size, states);
        let learned = Change::learned(&seen, &fresh.groups["g"].asg, at(second));
        learned.iter().any(|change| matches!(change, Change::Desired { from: 8, to, .. } if *to == size))
    };
    assert!(!learns(59, 2, &[InService, InService]), "from before somebody raised it");
    assert!(
        !learns(59, 7, &[InService, InService, InService, TerminatingWait]),
        "the look was before that came"
    );
    assert!(learns(59, 7, &[InService, TerminatingWait, Pending]));
    assert!(learns(60, 2, &[InService, InService]));
    assert!(learns(1, 9, &[InService, InService]));
}

#[test]
fn an_old_snapshot_is_refused_but_not_forgotten() {
    let groups = Groups::new(Duration::from_mins(10));
    assert_eq!(groups.fresh(at(0)).err(), Some(Stale));
    groups.publish(snapshot(0, 1, &[]));
    assert!(groups.fresh(at(600)).is_ok());
    assert_eq!(groups.fresh(at(601)).err(), Some(Stale));
    assert!(groups.latest().is_some());
}

#[test]
fn what_was_asked_for_is_known_until_no_description_shows_it_any_more() {
    use Lifecycle::{InService, TerminatingWait};
    let groups = Groups::new(Duration::from_mins(10));
    groups.publish(snapshot(0, 2, &[InService, InService]));
    for name in ["g", "i-1"] {
        groups.note_asked_for(name);
    }
    let known = |groups: &Groups| ["g", "i-1"].map(|name| groups.is_asked_for(name));
    // As long as a drain takes.
    for minute in 1..600 {
        groups.publish_states(snapshot(60 * minute, 1, &[InService, TerminatingWait]));
        groups.publish(snapshot(60 * minute, 1, &[InService, TerminatingWait]));
    }
    assert_eq!(known(&groups), [true, true]);
    groups.publish(snapshot(36_000, 1, &[InService]));
    assert_eq!(known(&groups), [true, true], "a description may leave out what is there");
    groups.publish(snapshot(36_070, 1, &[InService]));
    assert_eq!(known(&groups), [true, false]);
    groups.publish(Snapshot::new(at(36_200), []));
    assert_eq!(known(&groups), [false, false]);
}

#[test]
fn a_size_in_doubt_is_forgotten_once_a_description_shows_it_for_certain() {
    let groups = Groups::new(Duration::from_mins(10));
    groups.note_unclear(&"g".into(), at(0));
    groups.publish(snapshot(59, 0, &[]));
    assert_eq!([59, 60].map(|second| groups.is_clear(&"g".into(), at(second))), [false, true]);
    groups.publish(snapshot(121, 0, &[]));
    assert!(groups.unclear.lock().is_empty());
}
