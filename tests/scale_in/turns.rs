//! A size that is set while a drain takes its instance out: a size is absolute, and what was decided from before the
//! decrement must not be set after it.

use std::time::Duration;

use ebbtide::provider::proto::{NodeGroupDecreaseTargetSizeRequest, NodeGroupIncreaseSizeRequest};
use ebbtide::sim::aws::{Event, GroupSpec, LaunchFailure, LifecycleState, Operation};
use ebbtide::sim::cluster::pod;
use jiff::{SignedDuration, Timestamp};

use crate::journal_queries::{TERMINATE, aws_moments, decrements, has_exited, terminations};
use crate::scene::{Cause, Machine, RECORD, Scene, group, held_group, seconds};

/// How long a call to AWS takes, half of it before its effect.
const TAKES: Duration = Duration::from_millis(800);
/// From one run's moment of the other change to the next one's.
const STEP: Duration = Duration::from_millis(300);
const RUNS: u32 = 20;

/// What else changes the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Increase,
    Decrease,
    GiveUpPlaceholder,
}

impl Scene {
    async fn also(&self, other: Other) -> bool {
        let mut client = self.program().client();
        let id = "web".to_owned();
        match other {
            Other::Increase => {
                let request = NodeGroupIncreaseSizeRequest { delta: 1, id };
                client.node_group_increase_size(request).await.is_ok()
            }
            Other::Decrease => {
                let request = NodeGroupDecreaseTargetSizeRequest { delta: -1, id };
                client.node_group_decrease_target_size(request).await.is_ok()
            }
            Other::GiveUpPlaceholder => {
                let placeholder = Machine::that_never_came("aws:///us-east-1a/i-placeholder-web-3");
                self.delete(&[placeholder]).await.is_ok()
            }
        }
    }

    fn desired(&self) -> u32 {
        self.world.aws.group("web").expect("the group").desired
    }
}

/// Three nodes, of which one is drained; `other` comes so long after the moment shortly before its instance is told to
/// terminate. Returns by how much the two changes were apart, if both were made.
async fn overlap(spec: GroupSpec, has_hook: bool, other: Other, after: Duration) -> Option<SignedDuration> {
    let scene = Scene::with(spec).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
    if other != Other::Increase {
        scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
        assert!(scene.also(Other::Increase).await);
        let failed = |e: &Event| matches!(e, Event::LaunchFailed { .. });
        scene.until(|w| !aws_moments(w, failed).is_empty()).await;
        scene.pass_some(seconds(60)).await;
    }
    let before = scene.desired();
    let sets = scene.world.aws.calls(Operation::SetDesiredCapacity);
    scene.world.aws.delay(TAKES, Duration::ZERO);
    scene.scale_in(&machine, Cause::Autoscaler).await;
    if !has_hook {
        scene.until(|w| has_exited(w, "web")).await;
        scene.pass_some(seconds(3)).await;
    }
    scene.pass_some(after).await;
    let done = scene.also(other).await;
    scene.until_gone(&machine).await;
    scene.pass_some(seconds(120)).await;
    // A caller whose time is up is told so, though what was sent by then is carried out.
    let is_set = scene.world.aws.calls(Operation::SetDesiredCapacity) > sets;
    assert!(is_set || !done, "{other:?} {after:?} later");
    let change = match other {
        Other::Increase => i64::from(is_set),
        Other::Decrease | Other::GiveUpPlaceholder => -i64::from(is_set),
    };
    let desired = i64::from(scene.desired());
    assert_eq!(desired, i64::from(before) + change - 1, "{other:?} {after:?} later, done: {done}");
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 1));
    if other == Other::Increase {
        let group = scene.world.aws.group("web").expect("the group");
        assert_eq!(group.in_state(LifecycleState::InService).len() as i64, desired, "{after:?}");
    }
    let called = |of| move |e: &Event| matches!(e, Event::Called { operation, .. } if *operation == of);
    let set = aws_moments(&scene.world, called(Operation::SetDesiredCapacity)).pop()?;
    done.then(|| set.duration_since(aws_moments(&scene.world, called(TERMINATE))[0]))
}

/// The same for moments all around the termination.
async fn overlaps(other: Other) {
    for (has_hook, spec) in [(false, group(3)), (true, held_group(3, 60))] {
        let mut apart = Vec::new();
        for run in 0..RUNS {
            apart.extend(overlap(spec.clone(), has_hook, other, STEP * run).await);
        }
        assert!(apart.len() as u32 > RUNS / 2, "{other:?}: most of the changes are made: {apart:?}");
        assert!(apart.iter().any(|apart| apart.is_positive()), "{other:?}: {apart:?}");
        assert!(has_hook || apart.iter().any(|apart| apart.is_negative()), "{other:?}: {apart:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_goes_up_while_a_drain_takes_its_instance_out_leaves_no_node_too_many() {
    overlaps(Other::Increase).await;
}

#[tokio::test(start_paused = true)]
async fn a_size_that_goes_down_while_a_drain_takes_its_instance_out_leaves_no_node_too_many() {
    overlaps(Other::Decrease).await;
}

#[tokio::test(start_paused = true)]
async fn a_placeholder_given_up_while_a_drain_takes_its_instance_out_leaves_no_node_too_many() {
    overlaps(Other::GiveUpPlaceholder).await;
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_waits_long_for_its_turn_is_noted_anew_before_aws_is_told() {
    let scene = Scene::with(group(3)).await;
    let machine = scene.first();
    scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    assert!(scene.also(Other::Increase).await);
    let failed = |e: &Event| matches!(e, Event::LaunchFailed { .. });
    scene.until(|w| !aws_moments(w, failed).is_empty()).await;
    scene.pass_some(seconds(60)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(Duration::from_millis(4_500)).await;
    scene.world.aws.delay(Duration::from_millis(2_900), Duration::ZERO);
    let _ = scene.also(Other::Decrease).await;
    scene.until(|w| terminations(w, &machine).len() == 1).await;
    let called = |e: &Event| matches!(e, Event::Called { operation, .. } if *operation == TERMINATE);
    let told = aws_moments(&scene.world, called)[0];
    let annotations = scene.node(&machine.name).expect("there").metadata.annotations.unwrap_or_default();
    let record: serde_json::Value = serde_json::from_str(&annotations[RECORD]).expect("a record");
    let noted: Timestamp = record["terminateAt"].as_str().and_then(|at| at.parse().ok()).expect("noted");
    assert!(told.duration_since(noted) <= SignedDuration::from_secs(10), "told {told}, noted {noted}");
    scene.until_gone(&machine).await;
    assert_eq!(scene.world.aws.calls(TERMINATE), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drained_node_is_accepted_while_the_termination_of_another_is_not_answered() {
    let scene = Scene::with(group(3)).await;
    let [first, second, _]: [Machine; 3] = scene.machines().try_into().expect("three");
    scene.world.aws.hang(&[TERMINATE], true);
    scene.scale_in(&first, Cause::Autoscaler).await;
    scene
        .until(|w| aws_moments(w, |e| matches!(e, Event::Called { operation: TERMINATE, .. })).len() == 1)
        .await;
    let asked_at = scene.world.clock.now();
    scene.delete(std::slice::from_ref(&second)).await.expect("accepted");
    assert!(scene.world.clock.now().duration_since(asked_at) < SignedDuration::from_secs(1));
    scene.world.aws.hang(&[TERMINATE], false);
    for machine in [&first, &second] {
        scene.until_gone(machine).await;
    }
    assert_eq!(decrements(&scene.world), 2);
}
