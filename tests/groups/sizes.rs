//! Sizes: what is set, what is refused, and what a size that goes down must never cost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::Aws;
use ebbtide::config::Config;
use ebbtide::groups::selector::Selectors;
use ebbtide::k8s::names::TO_BE_DELETED;
use ebbtide::provider::proto::NodeGroupIncreaseSizeRequest;
use ebbtide::provider::proto::instance_status::InstanceState;
use ebbtide::sim::aws::{
    Entry, Event, GroupSpec, LaunchFailure, LifecycleState, Lose, Operation, Refusal, TerminationCause,
    Timing, Trouble, WarmPoolSpec, Which,
};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::{TAG, config};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tonic::Code;

use crate::scene::{GONE, GROUP, SOON, Scene, code, eventually, group, late_launch, placeholder};

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn a_group_grows_from_what_aws_says_though_somebody_else_changed_it_meanwhile() {
    let rarely = Config { refresh_interval: 5 * MINUTE, ..config() };
    let scene = Scene::configured(World::new(1), rarely, [group(GROUP, 2)]).await;
    tokio::time::sleep(MINUTE).await;
    let somebody = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    somebody.set_desired(&GROUP.into(), 4).await.expect("set");
    // Long enough for every description to show it.
    tokio::time::sleep(Duration::from_secs(21)).await;
    scene.increase(3).await.expect("grown");
    assert_eq!((scene.desired(), scene.target().await), (7, 7));
    assert!(scene.world.until(SOON, |_| scene.in_service(GROUP).len() == 7).await);
    assert_eq!((scene.desired(), scene.target().await), (7, 7));
}

/// A group that somebody has just raised from 2 to 8, which the last look has shown. For a minute, descriptions of it alone are from before.
async fn raised_a_moment_ago() -> Scene {
    let scene = Scene::with([group(GROUP, 2)]).await;
    // The descriptions from before are not from before there was a group.
    tokio::time::sleep(3 * MINUTE).await;
    scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
    // AWS knows for long enough how the group was.
    answers_from_before(&scene, |which| which.about("another"));
    let somebody = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    somebody.set_desired(&GROUP.into(), 8).await.expect("set");
    assert!(eventually(SOON, || async { scene.target().await == 8 }).await);
    answers_from_before(&scene, |which| which.about(GROUP));
    scene
}

fn answers_from_before(scene: &Scene, which: impl Fn(Which) -> Which) {
    let descriptions = which(Which::of(&[Operation::DescribeAutoScalingGroups]));
    scene.world.aws.trouble(descriptions.lasting(MINUTE), Trouble::Stale(2 * MINUTE));
}

#[tokio::test(start_paused = true)]
async fn a_group_does_not_shrink_because_it_was_to_grow_by_a_description_from_before_somebody_raised_it() {
    let scene = raised_a_moment_ago().await;
    scene.increase(1).await.expect("grown");
    assert_eq!((scene.desired(), scene.target().await), (9, 9));
    // Nor does it seem smaller to the looks after that.
    answers_from_before(&scene, |which| which);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.target().await, 9);
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_may_be_from_before_somebody_raised_it_is_not_lowered_and_not_learned() {
    let scene = raised_a_moment_ago().await;
    let refused = [scene.decrease(-1).await, scene.delete(GROUP, vec![placeholder(4)]).await];
    for refused in refused {
        let refused = refused.expect_err("the size is in doubt");
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("desired capacity may be 8 or 2"), "{refused}");
    }
    assert_eq!((scene.desired(), scene.target().await), (8, 8));
    scene.world.aws.no_more_trouble();
    scene.increase(1).await.expect("grown");
    assert_eq!((scene.desired(), scene.target().await), (9, 9));
    scene.decrease(-1).await.expect("lowered");
    assert_eq!(scene.desired(), 8);
}

/// It would undo what was set meanwhile, and the group would end healthy instances for it.
#[tokio::test(start_paused = true)]
async fn no_size_is_set_while_one_without_an_answer_may_still_come() {
    for late in [25, 100] {
        let scene = Scene::with([group(GROUP, 3)]).await;
        let size = Which::of(&[Operation::SetDesiredCapacity]).times(1);
        scene.world.aws.trouble(size, Trouble::Late(Duration::from_secs(late)));
        assert!(scene.increase(1).await.is_err(), "no answer");
        let told = async {
            while scene.increase(5).await.is_err() {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(3), told).await.expect("grown in the end");
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(scene.desired(), 9, "late by {late} s");
        let ended = |e: &Entry| matches!(e.what, Event::TerminationStarted { .. });
        assert!(!scene.world.aws.journal().iter().any(ended), "late by {late} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_above_the_maximum_or_of_an_unknown_group_changes_nothing() {
    let scene = Scene::with([group(GROUP, 2).size(0, 2, 2)]).await;
    let before = scene.writes();
    assert_eq!(code(&scene.increase(1).await), Code::FailedPrecondition);
    assert_eq!(code(&scene.increase(0).await), Code::InvalidArgument);
    assert_eq!(code(&scene.decrease(-1).await), Code::Ok, "both live: there is nothing to give up");
    let unknown = NodeGroupIncreaseSizeRequest { delta: 1, id: "none".into() };
    let unknown = scene.program.client().node_group_increase_size(unknown).await;
    assert_eq!(code(&unknown), Code::NotFound);
    assert_eq!((scene.writes(), scene.desired(), scene.target().await), (before, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn groups_by_name_have_the_tighter_bounds_and_come_a_hundred_a_call() {
    let nodes = (0..150).map(|n| format!("2:8:named-{n}")).chain(["0:99:wide".into(), "20:30:far".into()]);
    let selectors = Selectors::parse(nodes, [""; 0]).expect("well-formed");
    let named = (0..150).map(|n| GroupSpec::named(format!("named-{n}")).size(0, 10, 2));
    let own = ["wide", "far"].map(|name| GroupSpec::named(name).size(1, 10, 1));
    let groups = named.chain(own).map(GroupSpec::already_running);
    let scene = Scene::configured(World::new(1), Config { selectors, ..config() }, groups).await;
    let limits = scene.groups().await.expect("groups").into_iter();
    let limits: BTreeMap<_, _> = limits.map(|g| (g.id, (g.min_size, g.max_size))).collect();
    let of = |name: &str| limits[name];
    assert_eq!((limits.len(), of("named-7"), of("wide"), of("far")), (152, (2, 8), (1, 10), (10, 10)));

    let pages = || scene.world.aws.calls(Operation::DescribeAutoScalingGroups);
    let before = pages();
    assert!(scene.world.until(SOON, |_| pages() > before).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pages() - before, 2);
    let request = |delta| NodeGroupIncreaseSizeRequest { delta, id: "named-7".into() };
    let mut client = scene.program.client();
    client.node_group_increase_size(request(7)).await.expect("up to the flag's maximum");
    assert_eq!(scene.world.aws.group("named-7").expect("a group").desired, 8);
    assert_eq!(code(&client.node_group_increase_size(request(1)).await), Code::FailedPrecondition);
    let node = scene.node_of(&scene.in_service("named-8")[0]);
    assert_eq!(code(&scene.delete("named-8", vec![node]).await), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn suspended_processes_are_limits() {
    let no_launch = group(GROUP, 3).suspended("Launch");
    let no_terminate = group("stays", 3).suspended("Terminate");
    let scene = Scene::with([no_launch, no_terminate]).await;
    let mut limits: Vec<_> = scene.groups().await.expect("groups").into_iter().collect();
    limits.sort_by(|a, b| b.id.cmp(&a.id));
    let limits: Vec<_> = limits.iter().map(|g| (g.id.as_str(), g.min_size, g.max_size)).collect();
    assert_eq!(limits, [(GROUP, 0, 3), ("stays", 3, 10)]);

    let before = scene.writes();
    assert_eq!(code(&scene.increase(1).await), Code::FailedPrecondition);
    let node = scene.node_of(&scene.in_service("stays")[0]);
    assert_eq!(code(&scene.delete("stays", vec![node]).await), Code::FailedPrecondition);
    assert_eq!(scene.writes(), before);
}

#[tokio::test(start_paused = true)]
async fn a_size_whose_answer_was_lost_is_told_right_by_the_next_look_and_never_set_twice() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.world.aws.lose_next(Operation::SetDesiredCapacity, Lose::AfterEffect);
    assert_eq!(code(&scene.increase(2).await), Code::Unavailable);
    // Before cluster-autoscaler asks again.
    assert!(eventually(Duration::from_secs(9), || async { scene.target().await == 4 }).await);
    assert!(scene.world.until(SOON, |_| scene.in_service(GROUP).len() == 4).await);
    assert_eq!((scene.world.aws.calls(Operation::SetDesiredCapacity), scene.desired()), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn a_size_that_never_arrived_is_not_set_later() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.world.aws.lose_next(Operation::SetDesiredCapacity, Lose::BeforeEffect);
    assert_eq!(code(&scene.increase(2).await), Code::Unavailable);
    assert_eq!(scene.target().await, 2);
    tokio::time::sleep(SOON).await;
    assert_eq!((scene.world.aws.calls(Operation::SetDesiredCapacity), scene.desired()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn exactly_what_is_missing_is_listed_with_awss_reason_and_given_up() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(3).await;
    assert_eq!(scene.target().await, 5);
    let ids = [2, 3, 4].map(|n| placeholder(n).provider_id);
    let explained = || async {
        let listed = scene.listed().await;
        ids.iter().all(|id| {
            let error = listed.get(id).and_then(|i| i.status.as_ref()?.error_info.as_ref());
            error.is_some_and(|e| {
                (e.instance_error_class, e.error_code.as_str()) == (1, "InsufficientInstanceCapacity")
            })
        })
    };
    assert!(eventually(SOON, explained).await, "{:?}", scene.listed().await);
    assert_eq!(scene.listed_in(InstanceState::InstanceCreating).await, ids);
    assert_eq!(scene.listed_in(InstanceState::InstanceRunning).await.len(), 2);

    let before = scene.in_service(GROUP);
    scene.delete(GROUP, vec![placeholder(2), placeholder(4)]).await.expect("given up");
    assert_eq!((scene.desired(), scene.target().await), (3, 3));
    assert_eq!(scene.listed_in(InstanceState::InstanceCreating).await, ids[1..2]);
    // Named again, they are gone already.
    scene.delete(GROUP, vec![placeholder(2), placeholder(4)]).await.expect("nothing to do");
    assert_eq!((scene.desired(), scene.in_service(GROUP)), (3, before));
    assert_eq!(scene.world.aws.calls(Operation::TerminateInstanceInAutoScalingGroup), 0);
}

/// Those that were in service at first still are, so is the late one, and nothing is left behind.
async fn cost_nothing(scene: &Scene, before: &[String]) {
    let settled = |_: &World| scene.in_service(GROUP).len() == 3 && scene.protected() == 0;
    assert!(scene.world.until(SOON, settled).await, "{:?}", scene.world.aws.group(GROUP));
    let ended = |entry: &Entry| matches!(entry.what, Event::TerminationStarted { .. });
    assert!(!scene.world.aws.journal().iter().any(ended), "nobody had to go");
    assert!(before.iter().all(|instance| scene.in_service(GROUP).contains(instance)));
    tokio::time::sleep(SOON).await;
    assert_eq!((scene.desired(), scene.target().await, scene.in_service(GROUP).len()), (3, 3, 3));
    assert_eq!(scene.world.aws.calls(Operation::SetDesiredCapacity), 3, "up, down, and up by the late one");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_launches_while_the_target_size_goes_down_costs_no_other() {
    // What AWS may not terminate now must not be too many for when it may again.
    for group in [group(GROUP, 2), group(GROUP, 2).suspended("Terminate")] {
        let scene = Scene::with([group]).await;
        let before = scene.in_service(GROUP);
        scene.short_of(2).await;
        scene.world.aws.before_next(Operation::SetDesiredCapacity, late_launch);
        scene.decrease(-2).await.expect("lowered");
        cost_nothing(&scene, &before).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_launches_while_placeholders_are_given_up_costs_no_other() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    let before = scene.in_service(GROUP);
    scene.short_of(2).await;
    scene.world.aws.before_next(Operation::SetDesiredCapacity, late_launch);
    scene.delete(GROUP, vec![placeholder(2), placeholder(3)]).await.expect("given up");
    cost_nothing(&scene, &before).await;
}

/// Or it would have been emptied in vain.
#[tokio::test(start_paused = true)]
async fn no_replacement_is_given_up_that_a_node_being_drained_will_need() {
    let scene = Scene::with([group(GROUP, 4).size(3, 10, 4)]).await;
    scene.occupy(60).await;
    let [drained, ended] = [0, 1].map(|n| scene.node_of(&scene.in_service(GROUP)[n]));
    let ended_instance = scene.in_service(GROUP)[1].clone();
    let nodes: Api<Node> = Api::all(scene.world.cluster.client());
    let taint = json!({ "key": TO_BE_DELETED, "value": "0", "effect": "NoSchedule" });
    let patch = Patch::Merge(json!({ "spec": { "taints": [taint] } }));
    nodes.patch(&drained.name, &PatchParams::default(), &patch).await.expect("cluster-autoscaler drains it");
    scene.delete(GROUP, vec![ended]).await.expect("accepted");
    scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
    scene.world.aws.terminate(&ended_instance, TerminationCause::HealthCheck);
    tokio::time::sleep(GONE).await;
    assert!(!scene.in_service(GROUP).contains(&ended_instance));
    scene.delete(GROUP, vec![drained]).await.expect("the minimum is kept");
    scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 0);
    assert!(scene.world.until(GONE, |_| (scene.desired(), scene.in_service(GROUP).len()) == (3, 3)).await);
}

#[tokio::test(start_paused = true)]
async fn protection_is_taken_off_again_though_the_size_was_not_set() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(1).await;
    scene.world.aws.throttle_next(Operation::SetDesiredCapacity, u32::MAX);
    assert_ne!(code(&scene.decrease(-1).await), Code::Ok);
    assert_eq!((scene.desired(), scene.target().await), (3, 3));
    assert!(scene.world.until(SOON, |_| scene.protected() == 0).await);
}

#[tokio::test(start_paused = true)]
async fn instances_stay_protected_until_the_group_has_looked_for_a_victim() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(2).await;
    scene.decrease(-2).await.expect("lowered");
    tokio::time::sleep(Duration::from_secs(10)).await;
    // AWS has not acted on the size yet. This one counts, but nobody sees it come.
    scene.world.aws.script(late_launch);
    tokio::time::sleep(Duration::from_secs(15)).await;
    // Nor is the newcomer left for the group to choose.
    assert_eq!((scene.protected(), scene.in_service(GROUP).len(), scene.desired()), (3, 3, 3));
    assert!(scene.world.until(SOON, |_| scene.protected() == 0).await);
    assert_eq!(scene.in_service(GROUP).len(), 3, "nobody had to go");
}

#[tokio::test(start_paused = true)]
async fn protection_is_taken_off_again_though_nobody_heard_that_it_was_on() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(1).await;
    let failure =
        Refusal { code: "InternalFailure", status: 500, message: "An internal error has occurred." };
    scene.world.aws.refuse_next(Operation::SetInstanceProtection, failure, Lose::AfterEffect, u32::MAX);
    assert_ne!(code(&scene.decrease(-1).await), Code::Ok);
    assert_eq!(scene.protected(), 2);
    tokio::time::sleep(Duration::from_secs(6)).await;
    scene.world.aws.refuse_next(Operation::SetInstanceProtection, failure, Lose::AfterEffect, 0);
    assert!(scene.world.until(SOON, |_| scene.protected() == 0).await, "{:?}", scene.world.aws.group(GROUP));
    assert_eq!(scene.desired(), 3, "a size goes down under protection only");
}

#[tokio::test(start_paused = true)]
async fn a_failed_launch_is_told_with_its_code_and_whether_another_group_may_do() {
    for (message, code, class) in [
        ("We currently do not have sufficient m5.large capacity.", "InsufficientInstanceCapacity", 1),
        ("InstanceLimitExceeded - Your quota allows for 0 more.", "InstanceLimitExceeded", 1),
        ("VcpuLimitExceeded - You have requested more.", "VcpuLimitExceeded", 1),
        ("MaxSpotInstanceCountExceeded - No more.", "MaxSpotInstanceCountExceeded", 1),
        ("UnfulfillableCapacity - Unable to fulfill capacity.", "UnfulfillableCapacity", 1),
        ("There are not enough free addresses in subnet 'subnet-1'.", "InsufficientFreeAddressesInSubnet", 1),
        ("InvalidParameterValue - Invalid IAM Instance Profile.", "InvalidParameterValue", 99),
        ("You are not authorized to use launch template: lt-1", "LaunchFailed", 99),
    ] {
        let scene = Scene::with([group(GROUP, 1), group("other", 1)]).await;
        let failure = LaunchFailure::Other { code: String::new(), message: message.to_owned() };
        scene.world.aws.fail_launches(GROUP, failure, u32::MAX);
        scene.increase(2).await.expect("grown");
        let told = || async {
            let listed = scene.listed().await;
            let of =
                |index| listed.get(&placeholder(index).provider_id)?.status.as_ref()?.error_info.as_ref();
            [1, 2].iter().all(|&index| {
                of(index).is_some_and(|e| (e.error_code.as_str(), e.instance_error_class) == (code, class))
            })
        };
        assert!(eventually(SOON, told).await, "{code}: {:?}", scene.listed().await);
        let asked = scene.world.aws.journal().into_iter().filter_map(|entry| match entry.what {
            Event::Called { operation: Operation::DescribeScalingActivities, arguments, .. } => {
                arguments.get("AutoScalingGroupName").cloned()
            }
            _ => None,
        });
        assert!(asked.into_iter().all(|asked| asked == GROUP), "nobody asks about a group that is not short");
    }
}

#[tokio::test(start_paused = true)]
async fn states_are_told_as_the_lifecycle_says_and_a_warm_pool_is_no_node() {
    let scene = Scene::with([group(GROUP, 1).suspended("Launch").suspended("Terminate")]).await;
    let states = [
        LifecycleState::Pending,
        LifecycleState::PendingWait,
        LifecycleState::Standby,
        LifecycleState::TerminatingWait,
        LifecycleState::EnteringStandby,
        LifecycleState::Quarantined,
        LifecycleState::TerminatingRetained,
        LifecycleState::ReplacingRootVolume,
        LifecycleState::RootVolumeReplaced,
        LifecycleState::Detaching,
        LifecycleState::WarmedStopped,
        LifecycleState::WarmedPendingWait,
        LifecycleState::WarmedRunning,
    ];
    let added = states.map(|state| scene.world.aws.add_instance(GROUP, state).expect("added"));
    let id = |n: usize| format!("aws:///us-east-1a/{}", added[n]);
    assert!(eventually(SOON, || async { scene.listed().await.contains_key(&id(3)) }).await);
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    let running = scene.listed_in(InstanceState::InstanceRunning).await;
    let others = [5, 7, 8].map(id);
    assert_eq!(
        running.len(),
        1 + others.len(),
        "the one in service, those with a new volume, and one unknown"
    );
    assert!(others.iter().all(|other| running.contains(other)), "{running:?}");
    assert_eq!(scene.listed_in(InstanceState::InstanceCreating).await, sorted(vec![id(0), id(1)]));
    assert_eq!(scene.listed_in(InstanceState::InstanceDeleting).await, sorted(vec![id(3), id(6)]));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_a_service_operates_has_no_room_either_way_and_nothing_is_asked_of_it() {
    let scene = Scene::with([group(GROUP, 2).size(0, 10, 2).operated_by("eks.amazonaws.com")]).await;
    let shown = scene.groups().await.expect("answered").into_iter().find(|group| group.id == GROUP);
    assert_eq!(shown.map(|shown| (shown.min_size, shown.max_size)), Some((2, 2)));
    assert_eq!(scene.target().await, 2);
    scene.increase(1).await.expect_err("at its maximum");
    let instance = scene.world.aws.group(GROUP).expect("the group").instances[0].id.clone();
    scene.delete(GROUP, vec![scene.node_of(&instance)]).await.expect_err("at its minimum");
    for change in [Operation::SetDesiredCapacity, Operation::TerminateInstanceInAutoScalingGroup] {
        assert_eq!(scene.world.aws.calls(change), 0, "{change}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_size_of_a_group_whose_tag_is_off_is_left_alone_while_a_node_of_it_leaves() {
    let scene = Scene::on(World::plain(1), [group(GROUP, 2)]).await;
    scene.occupy(900).await;
    scene.delete(GROUP, vec![scene.node_of(&scene.in_service(GROUP)[0])]).await.expect("accepted");
    scene.short_of(2).await;
    scene.world.aws.untag_group(GROUP, TAG);
    // Before a refresh has seen it, and after.
    for seen in [false, true] {
        if seen {
            tokio::time::sleep(SOON).await;
        }
        assert_eq!(code(&scene.decrease(-1).await), Code::Ok, "an error would end the loop");
        assert_eq!(code(&scene.delete(GROUP, vec![placeholder(2)]).await), Code::Ok);
        assert_eq!(code(&scene.increase(1).await), Code::FailedPrecondition, "seen: {seen}");
        assert_eq!((scene.desired(), scene.target().await), (4, 3), "seen: {seen}");
    }
    assert_eq!(scene.world.aws.calls(Operation::SetDesiredCapacity), 1, "its growth before that");
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_fails_after_pending_is_told() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.world.aws.fail_boots(GROUP, u32::MAX);
    scene.increase(1).await.expect("grown");
    let told = || async {
        let listed = scene.listed().await;
        let errors = listed.values().filter_map(|i| i.status.as_ref()?.error_info.as_ref());
        errors.count() == 1
    };
    assert!(eventually(Duration::from_mins(10), told).await, "{:?}", scene.listed().await);
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_fails_is_told_soon_though_the_warm_pool_is_being_filled() {
    let timing = Timing {
        launch: Span::exactly(Duration::from_secs(2)),
        boot: Span::exactly(Duration::from_mins(5)),
        retry: Span::exactly(Duration::from_mins(10)),
        ..Timing::PUBLISHED
    };
    let pool = WarmPoolSpec::stopped().prepared(0).at_least(1);
    let scene = Scene::with([group(GROUP, 1).timing(timing).warm_pool(pool)]).await;
    let rests = |world: &World| {
        let group = world.aws.group(GROUP).expect("a group");
        !group.in_state(LifecycleState::WarmedStopped).is_empty()
    };
    assert!(scene.world.until(2 * SOON, rests).await);
    scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 1);
    // One comes from the pool, one fails, and the pool is filled again, which takes minutes.
    scene.increase(2).await.expect("grown");
    let told = || async {
        let listed = scene.listed().await;
        listed.values().any(|i| i.status.as_ref().is_some_and(|status| status.error_info.is_some()))
    };
    assert!(eventually(Duration::from_secs(45), told).await, "{:?}", scene.listed().await);
}
