//! What cluster-autoscaler makes of the program's answers: the whole program on the simulated worlds, and beside it the
//! stand-in that reckons as the real one does, in both of its versions.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::groups::selector::Selectors;
use ebbtide::k8s::names::TO_BE_DELETED;
use ebbtide::provider::proto::{Instance, NodeGroupTargetSizeRequest, RefreshRequest};
use ebbtide::sim::autoscaler::{Autoscaler, Event, Options, Version};
use ebbtide::sim::aws::{
    self, Behaviour, GroupSpec, HookSpec, LaunchFailure, LifecycleState, Operation, TemplateData,
    TemplateSpec, TerminationCause, Timing, WarmPoolSpec,
};
use ebbtide::sim::ca_drain::{Flags, GaveUp};
use ebbtide::sim::cluster::{self, NodeSpec, budget, node, pod, replica_set};
use ebbtide::sim::program::{Program, TAG, config, second};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::{POOL, World};

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;
use tonic::Code;

use crate::node::try_template;
use crate::scene::{
    GONE, GROUP, Loop, SOON, Scene, ZONE, code, eventually, group, listed_by, placeholder, pods_for, pool,
};

const BOTH: [Version; 2] = [Version::V1_30, Version::Core2026];

/// Longer than cluster-autoscaler waits for a node by default.
const LONG: Duration = Duration::from_mins(20);

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A world in which a machine takes this long to join.
fn joining(time: Duration) -> World {
    let world = World::new(1);
    let timing = cluster::Timing { joining: Span::exactly(time), ..cluster::Timing::brisk() };
    world.cluster.set_timing(timing);
    world
}

/// Nothing has made a loop fail, nor a scale-up.
fn nothing_failed(autoscaler: &Loop, version: Version) {
    assert_eq!(autoscaler.failures(), [""; 0], "{version:?}");
}

#[tokio::test(start_paused = true)]
async fn a_group_at_its_minimum_without_capacity_keeps_no_other_group_from_growing() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 2).size(2, 5, 2), pool("other", 0)]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
        scene.world.aws.terminate(&scene.in_service(GROUP)[0], TerminationCause::HealthCheck);
        tokio::time::sleep(LONG).await;
        scene.world.cluster.add(pods_for("other", "pods", 1));
        assert!(scene.world.until(SOON, |_| scene.running("pods") == 1).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        assert_eq!(autoscaler.bought(), [("other".to_owned(), 1)].into());
        // There is capacity again: the group gets what it should have.
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 0);
        assert!(scene.world.until(LONG, |_| scene.in_service(GROUP).len() == 2).await);
        assert_eq!(scene.desired(), 2);
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_without_a_provider_id_of_aws_are_not_ended_as_instances_that_never_registered() {
    for provider_id in [None, Some("k3s://n")] {
        let world = World::new(1);
        world.kubelets(GROUP, move |spec| NodeSpec { provider_id: provider_id.map(str::to_owned), ..spec });
        let scene = Scene::on(world, [group(GROUP, 2)]).await;
        scene.occupy(1).await;
        let autoscaler = Loop::start(&scene, Options::of(Version::V1_30));
        tokio::time::sleep(LONG).await;
        assert_eq!(autoscaler.autoscaler.registry().await.old_unregistered()[GROUP].len(), 2);
        assert_eq!(scene.world.aws.calls(Operation::TerminateInstanceInAutoScalingGroup), 0);
        assert_eq!((scene.in_service(GROUP).len(), scene.desired()), (2, 2));
        nothing_failed(&autoscaler, Version::V1_30);
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_of_no_group_keeps_no_instance_alive_that_never_registers_beside_those_that_did() {
    let world = World::new(1);
    world.cluster.add(node("on-premises"));
    let scene = Scene::on(world, [group(GROUP, 2)]).await;
    scene.world.kubelets(GROUP, |spec| spec.boots_after(100_000));
    let autoscaler = Loop::start(&scene, Options::of(Version::V1_30));
    scene.increase(1).await.expect("grown");
    assert!(scene.world.until(LONG, |_| scene.in_service(GROUP).len() == 3).await);
    assert!(scene.world.until(LONG, |_| scene.desired() == 2).await, "it is given up");
    nothing_failed(&autoscaler, Version::V1_30);
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_size_may_not_go_down_keeps_no_other_group_from_growing() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 1), pool("other", 0)]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.aws.deny(Operation::SetInstanceProtection, true);
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
        scene.world.cluster.add(pods_for(GROUP, "more", 3));
        assert!(
            autoscaler.autoscaler.until(SOON, |event| matches!(event, Event::ScaleUpRefused { .. })).await
        );
        tokio::time::sleep(LONG).await;
        scene.world.cluster.add(pods_for("other", "pods", 1));
        assert!(scene.world.until(SOON, |_| scene.running("pods") == 1).await, "{version:?}");
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cluster_autoscaler_drains_itself_is_not_waited_for_as_one_to_come() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 2)]).await;
        scene.world.cluster.add(replica_set("old", 1).exits_after(60).grace(120));
        assert!(scene.world.until(SOON, |_| scene.running("old") == 1).await);
        let autoscaler = Loop::start(&scene, Options::of(version));
        let node =
            scene.world.cluster.node_names().into_iter().find(|n| scene.world.cluster.workloads_on(n) > 0);
        let node = node.expect("an occupied node");
        let flags = Flags { evicts_daemon_sets: false, ..Flags::default() };
        let drain = autoscaler.autoscaler.scale_in(scene.program.client(), &node, &flags);
        let more = async {
            tokio::time::sleep(seconds(8)).await;
            scene.world.cluster.add(pods_for(GROUP, "new", 2));
            let bought = |event: &Event| matches!(event, Event::ScaledUp { by: 1, .. });
            assert!(autoscaler.autoscaler.until(seconds(15), bought).await, "{version:?}");
            assert_eq!(scene.target().await, 2, "one leaves, one comes");
        };
        let (drained, ()) = tokio::join!(drain, more);
        drained.expect("deleted");
        assert!(scene.world.until(GONE, |w| !w.cluster.has_node(&node) && scene.running("new") == 2).await);
        nothing_failed(&autoscaler, version);
        assert_eq!(
            (autoscaler.bought(), scene.desired()),
            ([(GROUP.to_owned(), 1)].into(), 2),
            "{version:?}"
        );
    }
}

/// The node that it drains is registered and off the target size: the scale-up for its pods seems to be done as soon as it is asked for, and
/// no launch that fails makes cluster-autoscaler leave the group alone.
#[tokio::test(start_paused = true)]
async fn a_group_without_capacity_whose_node_cluster_autoscaler_drains_keeps_no_other_from_growing() {
    for version in BOTH {
        let scene = Scene::with([group("a-short", 2), group("b-other", 0)]).await;
        scene.world.cluster.add(pods_for_any("old", 2).exits_after(3_000).grace(3_600));
        assert!(scene.world.until(SOON, |_| scene.running("old") == 2).await);
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.aws.fail_launches("a-short", LaunchFailure::InsufficientCapacity, u32::MAX);
        let node = scene.world.cluster.node_names().remove(0);
        let flags =
            Flags { evicts_daemon_sets: false, max_graceful_termination_seconds: 7_200, ..Flags::default() };
        let drain = autoscaler.autoscaler.scale_in(scene.program.client(), &node, &flags);
        let moved = async {
            tokio::time::sleep(seconds(30)).await;
            assert!(scene.world.until(LONG, |_| scene.running("old") == 2).await, "{version:?}");
            assert!(autoscaler.bought().contains_key("b-other"), "{version:?}");
            assert!(scene.world.cluster.has_node(&node), "it is drained still");
        };
        let (drained, ()) = tokio::join!(drain, moved);
        drained.expect("deleted");
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_to_be_replaced_whose_budget_needs_the_replacement_first_is_released() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 1)]).await;
        let web = replica_set("web", 2).node_selector(POOL, GROUP).cpu_millis(600);
        scene.world.cluster.add(web).add(budget("web").min_available(1));
        assert!(scene.world.until(SOON, |_| scene.running("web") == 2).await);
        let autoscaler = Loop::start(&scene, Options::of(version));
        let node = scene.world.cluster.node_names().remove(0);
        scene.annotate(&node, "replace").await;
        assert!(scene.world.until(LONG, |w| !w.cluster.has_node(&node)).await, "{version:?}");
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_launch_template_version_of_a_group_at_zero_counts_once_the_last_node_is_forgotten() {
    let hours = Duration::from_hours;
    for (version, node_info_cache, is_bought) in
        BOTH.into_iter().flat_map(|v| [(v, hours(87_600), false), (v, Duration::from_mins(10), true)])
    {
        let world = World::new(1);
        world.aws.add_template(TemplateSpec::named("web").version(TemplateData::of("m5.large")));
        let web = group(GROUP, 1).launch_template("web", "$Latest");
        let scene = Scene::on(world, [web]).await;
        let autoscaler = Loop::start(&scene, Options { node_info_cache, ..Options::of(version) });
        tokio::time::sleep(LONG).await;
        let node = scene.node_of(&scene.in_service(GROUP)[0]);
        scene.delete(GROUP, vec![node]).await.expect("accepted");
        assert!(scene.world.until(LONG, |world| world.cluster.node_names().is_empty()).await);
        scene.world.aws.add_template_version("web", TemplateData::of("m5.4xlarge"));
        scene.world.cluster.add(replica_set("large", 1).cpu_millis(8_000));
        let bought = scene.world.until(hours(1), |_| !autoscaler.bought().is_empty()).await;
        nothing_failed(&autoscaler, version);
        assert_eq!(bought, is_bought, "{version:?}");
    }
}

/// The same, for pods that go to nodes of any group.
fn pods_for_any(name: &str, pods: u32) -> cluster::ReplicaSetSpec {
    replica_set(name, pods).cpu_millis(1_200)
}

#[tokio::test(start_paused = true)]
async fn a_full_group_with_a_node_that_leaves_is_full_and_another_is_grown_at_once() {
    for version in BOTH {
        let full = group("a-full", 2).size(0, 2, 2);
        let scene = Scene::with([full, group("b-other", 0)]).await;
        scene.world.cluster.add(pods_for_any("old", 2).exits_after(900).grace(1_000));
        assert!(scene.world.until(SOON, |_| scene.running("old") == 2).await);
        let autoscaler = Loop::start(&scene, Options::of(version));
        let leaving = scene.node_of(&scene.in_service("a-full")[0]);
        scene.delete("a-full", vec![leaving]).await.expect("accepted");
        let limits = scene.groups().await.expect("groups");
        assert_eq!((limits[0].min_size, limits[0].max_size), (0, 1));
        let moved = |_: &World| !autoscaler.bought().is_empty() && scene.running("old") == 2;
        assert!(scene.world.until(SOON, moved).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        assert_eq!(autoscaler.bought(), [("b-other".to_owned(), 1)].into(), "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_leave_do_not_hide_that_others_never_came() {
    for version in BOTH {
        let scene = Scene::with([group("a-slow", 4).timing(slow()), group("b-other", 0)]).await;
        for node in scene.world.cluster.node_names() {
            scene
                .world
                .cluster
                .add(pod(node.as_str()).label("app", "old").on(&node).exits_after(3_000).grace(3_600));
        }
        assert!(scene.world.until(SOON, |_| scene.running("old") == 4).await);
        let autoscaler = Loop::start(&scene, Options::of(version));
        let leaving = scene.in_service("a-slow")[..3].iter().map(|i| scene.node_of(i)).collect();
        scene.delete("a-slow", leaving).await.expect("accepted");
        scene.world.cluster.add(pods_for_any("new", 3));
        let timed_out = |event: &Event| matches!(event, Event::ScaleUpTimedOut { .. });
        assert!(autoscaler.autoscaler.until(LONG, timed_out).await, "{version:?}");
        assert!(scene.world.until(seconds(120), |_| scene.running("new") == 3).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        assert_eq!(scene.world.aws.group("a-slow").expect("there").desired, 4, "given up, and three leave");
        let never_came = |node: &String| node.contains("i-placeholder-a-slow-");
        assert!(autoscaler.deleted().iter().all(never_came), "nothing else was: {:?}", autoscaler.deleted());
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_may_not_terminate_is_not_grown_to_its_minimum() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 3)]).await;
        scene.occupy(3_000).await;
        let options = Options { enforce_node_group_min_size: true, ..Options::of(version) };
        let autoscaler = Loop::start(&scene, options);
        let node = scene.world.node_of(&scene.in_service(GROUP)[0]).expect("a node");
        scene.annotate(&node, "replace").await;
        assert!(eventually(SOON, || async { scene.target().await == 2 }).await, "{version:?}");
        scene.world.aws.suspend(GROUP, "Terminate", true);
        tokio::time::sleep(LONG).await;
        assert_eq!((scene.desired(), scene.target().await), (3, 2));
        assert_eq!(autoscaler.bought(), [].into(), "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_comes_is_given_up_in_a_group_that_may_not_terminate_and_nothing_else_is() {
    for version in BOTH {
        // Of one, launches fail; the other one may not launch, and AWS says nothing of what it misses.
        let groups = [group("a-failing", 3), group("b-still", 3).suspended("Launch"), group("c-other", 0)];
        let groups = groups.map(|group| group.suspended("Terminate"));
        let scene = Scene::with(groups).await;
        scene.occupy(30).await;
        let in_service = || ["a-failing", "b-still"].map(|group| scene.in_service(group));
        let before = in_service();
        scene.world.aws.fail_launches("a-failing", LaunchFailure::InsufficientCapacity, u32::MAX);
        scene.world.aws.set_desired("a-failing", 5);
        scene.world.aws.set_desired("b-still", 5);
        let autoscaler = Loop::start(&scene, Options::of(version));
        let desired = |world: &World, group: &str| world.aws.group(group).expect("there").desired;
        assert!(scene.world.until(SOON, |world| desired(world, "a-failing") == 3).await, "{version:?}");
        assert!(scene.world.until(LONG, |world| desired(world, "b-still") == 3).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        assert_eq!(in_service(), before, "{version:?}");
        let never_came = |node: &String| node.contains("i-placeholder-");
        assert!(autoscaler.deleted().iter().all(never_came), "nothing else was: {:?}", autoscaler.deleted());
    }
}

/// Its DeleteNodes would be refused, once the node is empty.
#[tokio::test(start_paused = true)]
async fn no_node_of_a_group_that_may_not_terminate_is_drained_while_some_of_the_group_have_not_come() {
    for version in BOTH {
        let scene = Scene::with([group(GROUP, 3).suspended("Terminate")]).await;
        scene.occupy(30).await;
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
        scene.world.aws.set_desired(GROUP, 5);
        assert!(eventually(SOON, async || scene.target().await == 5).await, "{version:?}");
        let told = &scene.groups().await.expect("told")[0];
        assert_eq!((told.min_size, told.max_size), (3, 10), "two may be given up");
        let autoscaler = Autoscaler::new(&scene.world, Options::of(version));
        let node = scene.world.cluster.node_names().remove(0);
        let before = scene.running("work");
        let refused = autoscaler.scale_in(scene.program.client(), &node, &Flags::default()).await;
        assert!(matches!(refused, Err(GaveUp::AtMinimum(_))), "{refused:?}");
        assert_eq!((scene.running("work"), scene.in_service(GROUP).len()), (before, 3));
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_below_its_minimum_that_may_not_launch_is_not_grown() {
    for (version, enforce_node_group_min_size) in BOTH.into_iter().flat_map(|v| [(v, false), (v, true)]) {
        let selectors = Selectors::parse(["5:10:a-still", "0:10:b-other"], [""; 0]).expect("well-formed");
        let groups = [group("a-still", 3).suspended("Launch"), group("b-other", 0)];
        let scene = Scene::configured(World::new(1), Config { selectors, ..config() }, groups).await;
        let autoscaler = Loop::start(&scene, Options { enforce_node_group_min_size, ..Options::of(version) });
        scene.world.cluster.add(pods_for_any("pods", 4));
        assert!(scene.world.until(SOON, |_| scene.running("pods") == 4).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        assert_eq!(autoscaler.bought(), [("b-other".to_owned(), 1)].into(), "{version:?}");
    }
}

/// It counts in the target size: unless it counts as a node of its group as well, cluster-autoscaler would take that for one too large in
/// every loop, and do nothing else in any of them.
#[tokio::test(start_paused = true)]
async fn a_machine_that_its_group_has_back_and_that_is_not_ready_ends_no_loop() {
    for version in BOTH {
        let pool = WarmPoolSpec::stopped().reusing();
        let held = group(GROUP, 2).size(0, 2, 2).hook(HookSpec::terminating("ebbtide")).warm_pool(pool);
        let scene = Scene::with([held]).await;
        scene.occupy(1).await;
        let options = Options { max_node_provision_time: Duration::from_mins(5), ..Options::of(version) };
        let autoscaler = Loop::start(&scene, options);
        scene.world.aws.set_desired(GROUP, 1);
        let in_state =
            |state| move |w: &World| w.aws.group(GROUP).expect("a group").in_state(state).len() == 1;
        assert!(scene.world.until(SOON, in_state(LifecycleState::WarmedStopped)).await, "{version:?}");
        let stopped = scene.world.aws.group(GROUP).expect("a group").in_state(LifecycleState::WarmedStopped)
            [0]
        .to_owned();
        let node = scene.world.node_of(&stopped).expect("a Node");
        assert!(scene.world.until(SOON, |w| !w.cluster.is_ready(&node)).await, "{version:?}");
        scene.world.aws.set_desired(GROUP, 2);
        assert!(scene.world.until(SOON, |w| w.cluster.is_ready(&node)).await, "{version:?}: it starts");
        // And breaks at once.
        scene.world.cluster.kill_kubelet(&node);
        let broken = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
        let nodes: Api<Node> = Api::all(scene.world.cluster.client());
        let params = PatchParams::default();
        nodes.patch_status(&node, &params, &Patch::Strategic(broken)).await.expect("patched");
        assert!(scene.world.until(SOON, |_| scene.in_service(GROUP).contains(&stopped)).await, "{version:?}");
        tokio::time::sleep(LONG).await;
        assert!(!scene.world.cluster.is_ready(&node));
        let skipped = autoscaler.did(|event| match event {
            Event::LoopSkipped(why) => Some(*why),
            _ => None,
        });
        assert_eq!(skipped, [""; 0], "{version:?}");
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn one_option_in_a_tag_makes_no_node_count_as_broken_while_it_boots() {
    let minutes = Duration::from_mins;
    for (version, accepted, provision_time, startup_time) in
        [(Version::V1_30, false, 5, 15), (Version::Core2026, false, 15, 15), (Version::Core2026, true, 5, 0)]
    {
        let tag = "k8s.io/cluster-autoscaler/node-template/autoscaling-options/maxnodeprovisiontime";
        let config = Config { zero_node_startup_time: accepted, ..config() };
        let scene = Scene::configured(World::new(1), config, [group(GROUP, 1).tag(tag, "5m")]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        assert!(autoscaler.autoscaler.until(SOON, |event| *event == Event::Loop).await);
        let registry = autoscaler.autoscaler.registry().await;
        let group = &registry.groups()[0];
        let told = (group.provision_time, group.startup_time);
        assert_eq!(told, (minutes(provision_time), minutes(startup_time)), "{version:?} {accepted}");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_boot_are_waited_for_in_groups_with_options_of_their_own() {
    let tag = "k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunneededtime";
    for (version, accepted, bought) in
        [(Version::V1_30, false, 2), (Version::Core2026, false, 2), (Version::Core2026, true, 4)]
    {
        let config = Config { zero_node_startup_time: accepted, ..config() };
        let scene = Scene::configured(joining(seconds(60)), config, [pool(GROUP, 0).tag(tag, "5m")]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.cluster.add(pods_for(GROUP, "pods", 2));
        assert!(scene.world.until(LONG, |_| scene.running("pods") == 2).await, "{version:?} {accepted}");
        assert_eq!(autoscaler.bought(), [(GROUP.to_owned(), bought)].into(), "{version:?} {accepted}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_bought_through_one_replica_is_not_bought_again_through_another() {
    for version in BOTH {
        let scene = Scene::on(joining(seconds(60)), [pool(GROUP, 0)]).await;
        let other = Program::start(&scene.world, second(config()));
        let autoscaler = Loop::between(&scene, Options::of(version), &other);
        tokio::time::sleep(Duration::from_mins(3)).await;
        // Both have just looked, and have no reason of their own to look for a minute.
        let looks = |w: &World| w.aws.calls(Operation::DescribeAutoScalingGroups);
        let before = looks(&scene.world);
        assert!(scene.world.until(SOON, |w| looks(w) >= before + 2).await);
        scene.world.cluster.add(pods_for(GROUP, "pods", 3));
        assert!(scene.world.until(SOON, |_| scene.running("pods") == 3).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        assert_eq!(autoscaler.bought(), [(GROUP.to_owned(), 3)].into(), "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_asked_for_a_size_in_the_middle_of_a_loop_looks_at_the_groups_first() {
    for was_used in [true, false] {
        let scene = Scene::with([group(GROUP, 2)]).await;
        let other = Program::start(&scene.world, second(config()));
        tokio::time::sleep(Duration::from_mins(3)).await;
        let told = async || {
            let size = NodeGroupTargetSizeRequest { id: GROUP.into() };
            other.client().node_group_target_size(size).await.expect("answered").into_inner().target_size
        };
        if was_used {
            other.client().refresh(RefreshRequest {}).await.expect("answered");
        }
        tokio::time::sleep(Duration::from_mins(3)).await;
        let looks = |w: &World| w.aws.calls(Operation::DescribeAutoScalingGroups);
        let before = looks(&scene.world);
        assert!(scene.world.until(SOON, |w| looks(w) >= before + 2).await);
        scene.increase(2).await.expect("raised");
        // Descriptions may be a few seconds old.
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert_eq!(told().await, 4, "was used: {was_used}");
    }
}

/// cluster-autoscaler gives up what is listed for a quarter of an hour, by its name, and may come to another replica every ten minutes.
#[tokio::test(start_paused = true)]
async fn what_does_not_come_has_the_same_name_whichever_replica_is_asked() {
    let name = |index| placeholder(index).name;
    let scene = Scene::with([group(GROUP, 2)]).await;
    let other = Program::start(&scene.world, second(config()));
    tokio::time::sleep(SOON).await;
    let fail = |times| scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, times);
    fail(u32::MAX);
    scene.increase(2).await.expect("raised");
    tokio::time::sleep(LONG).await;
    for program in [&scene.program, &other] {
        assert_eq!(placeholders(program).await, [2, 3].map(name));
    }
    // The other replica is not asked while they come, and go.
    fail(0);
    assert!(scene.world.until(LONG, |_| scene.in_service(GROUP).len() == 4).await);
    scene.world.aws.set_desired(GROUP, 2);
    assert!(scene.world.until(SOON, |_| scene.in_service(GROUP).len() == 2).await);
    tokio::time::sleep(LONG).await;
    assert_eq!(placeholders(&scene.program).await, [""; 0]);
    fail(u32::MAX);
    for expected in [&[name(2)][..], &[2, 3].map(name)] {
        scene.increase(1).await.expect("raised");
        tokio::time::sleep(LONG).await;
        for program in [&scene.program, &other] {
            assert_eq!(placeholders(program).await, expected);
        }
    }
    scene.decrease(-1).await.expect("lowered");
    assert_eq!(placeholders(&scene.program).await, [name(3)], "the first requested is given up first");
}

/// The placeholders that a replica lists.
async fn placeholders(program: &Program) -> Vec<String> {
    listed_by(program).await.into_keys().filter(|id| id.contains("i-placeholder")).collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_bought_is_not_bought_again_though_the_program_restarts_into_an_outage() {
    for version in BOTH {
        let mut scene = Scene::on(joining(seconds(120)), [pool(GROUP, 0)]).await;
        let (told, client) = watch::channel(scene.program.client());
        let autoscaler = Loop::through(&scene, Options::of(version), move |_| client.borrow().clone());
        scene.world.cluster.add(pods_for(GROUP, "pods", 3));
        let bought = |event: &Event| matches!(event, Event::ScaledUp { .. });
        assert!(autoscaler.autoscaler.until(SOON, bought).await, "{version:?}");
        let Scene { world, program } = scene;
        program.kill().await;
        world.aws.outage(true);
        let program = Program::start(&world, config());
        scene = Scene { world, program };
        told.send_replace(scene.program.client());
        tokio::time::sleep(seconds(40)).await;
        scene.world.aws.outage(false);
        assert!(scene.world.until(SOON, |_| scene.running("pods") == 3).await, "{version:?}");
        assert_eq!(autoscaler.bought(), [(GROUP.to_owned(), 3)].into(), "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn loops_every_ten_seconds_cost_aws_no_look_while_nothing_happens() {
    let scene = Scene::with([pool(GROUP, 2)]).await;
    let autoscaler = Loop::start(&scene, Options::of(Version::V1_30));
    tokio::time::sleep(Duration::from_mins(3)).await;
    let refreshes = || scene.world.aws.calls(Operation::DescribeAutoScalingGroups);
    let before = refreshes();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(refreshes() - before, 10, "--refresh-interval is a minute");
    nothing_failed(&autoscaler, Version::V1_30);
}

/// Launches that AWS takes its time for, and says nothing of.
fn slow() -> Timing {
    Timing { launch: Span::exactly(Duration::from_hours(10)), ..Timing::default() }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_has_no_template_while_its_nodes_are_on_their_way_keeps_no_other_from_growing() {
    for version in BOTH {
        let coming =
            |name: &str| GroupSpec::named(name).size(0, 5, 1).zones([ZONE]).tag(TAG, "true").timing(slow());
        let eks = coming("eks").tag("eks:cluster-name", "main").tag("eks:nodegroup-name", "eks");
        let world = World::new(1);
        world.aws.fail_next(Operation::DescribeNodegroup, u32::MAX);
        let groups = [coming("odd").template("z9.unknown"), eks.template("m5.large"), pool("other", 0)];
        let scene = Scene::on(world, groups).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.cluster.add(pods_for("other", "pods", 1));
        assert!(scene.world.until(SOON, |_| scene.running("pods") == 1).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        let upcoming = autoscaler.autoscaler.registry().await.upcoming();
        // The newer one counts only what it has asked for itself.
        let of_aws = (version == Version::V1_30).then_some(&1);
        assert_eq!([upcoming.get("odd"), upcoming.get("eks")], [of_aws; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_group_that_has_no_template_keeps_no_other_from_growing() {
    for version in BOTH {
        let left_over = |name: &str| GroupSpec::named(name).size(0, 5, 0).zones([ZONE]).tag(TAG, "true");
        let eks = left_over("eks").tag("eks:cluster-name", "main").tag("eks:nodegroup-name", "eks");
        let world = World::new(1);
        world.aws.fail_next(Operation::DescribeNodegroup, u32::MAX);
        let groups = [left_over("odd").template("z9.unknown"), eks.template("m5.large"), pool("other", 0)];
        let scene = Scene::on(world, groups).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.cluster.add(pods_for("other", "pods", 1));
        assert!(scene.world.until(SOON, |_| scene.running("pods") == 1).await, "{version:?}");
        nothing_failed(&autoscaler, version);
        assert_eq!(autoscaler.bought(), [("other".to_owned(), 1)].into(), "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_is_late_takes_no_younger_one_along() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 0).timing(slow())]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.cluster.add(pods_for(GROUP, "one", 1));
        tokio::time::sleep(Duration::from_mins(10)).await;
        scene.world.cluster.add(pods_for(GROUP, "two", 1));
        // The first has not come for 15 minutes, the second has some left. In place of the first another is asked for.
        let replaced =
            || async { scene.listed().await.into_keys().eq([placeholder(1).name, placeholder(2).name]) };
        assert!(
            eventually(Duration::from_mins(8), replaced).await,
            "{version:?}: {:?}",
            scene.listed().await
        );
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(autoscaler.deleted(), [placeholder(0).name], "{version:?}");
        assert_eq!((autoscaler.bought(), scene.desired()), ([(GROUP.to_owned(), 3)].into(), 2));
        nothing_failed(&autoscaler, version);
    }
}

/// In the loop in which it gives one up it asks for another, and still knows how old the name was.
#[tokio::test(start_paused = true)]
async fn what_is_asked_for_in_place_of_one_that_was_given_up_has_its_own_time_to_come() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 0).timing(slow())]).await;
        // Somebody else has asked for it: it is no scale-up that cluster-autoscaler would back the group off for.
        scene.increase(1).await.expect("raised");
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.cluster.add(pods_for(GROUP, "one", 1));
        let given_up = |event: &Event| matches!(event, Event::Deleted { .. });
        assert!(autoscaler.autoscaler.until(LONG, given_up).await, "{version:?}");
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(autoscaler.deleted(), [placeholder(0).name], "{version:?}");
        // The newer one has asked for one more at first, and has taken that back when it was late.
        let index = if version == Version::V1_30 { 1 } else { 2 };
        assert_eq!(placeholders(&scene.program).await, [placeholder(index).name], "{version:?}");
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_cluster_autoscaler_leaves_nodes_alone_that_leave() {
    for version in BOTH {
        let scene = Scene::with([pool(GROUP, 2)]).await;
        scene.occupy(900).await;
        let leaving = scene.node_of(&scene.in_service(GROUP)[0]);
        scene.delete(GROUP, vec![leaving.clone()]).await.expect("accepted");
        let is_marked = || {
            let taints = scene.world.cluster.node(&leaving.name)?.spec?.taints?;
            taints.into_iter().find(|taint| taint.key == TO_BE_DELETED)?.value
        };
        assert!(scene.world.until(SOON, |_| is_marked().is_some()).await);
        let before = is_marked();
        // One that is put back is of another second.
        tokio::time::sleep(seconds(10)).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        tokio::time::sleep(seconds(61)).await;
        assert_eq!((is_marked(), autoscaler.deleted()), (before, vec![]), "{version:?}");
        nothing_failed(&autoscaler, version);
    }
}

/// Placeholders that bear an error.
async fn with_errors(scene: &Scene) -> Vec<String> {
    let bears =
        |instance: &Instance| instance.status.as_ref().is_some_and(|status| status.error_info.is_some());
    scene.listed().await.into_values().filter(bears).map(|instance| instance.id).collect()
}

#[tokio::test(start_paused = true)]
async fn what_failed_before_the_launch_under_way_is_no_failure_any_more() {
    for version in BOTH {
        let timing =
            Timing { retry: Span::seconds(3_600, 3_600), boot: Span::seconds(600, 600), ..Timing::QUICK };
        let scene = Scene::with([pool(GROUP, 0).timing(timing)]).await;
        scene.short_of(2).await;
        assert!(eventually(SOON, || async { with_errors(&scene).await.len() == 2 }).await);
        // There is capacity again: of the next try one has begun, which takes its time, and one has not.
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 0);
        scene.world.aws.add_instance(GROUP, LifecycleState::Pending).expect("launched");
        assert!(eventually(SOON, || async { with_errors(&scene).await.is_empty() }).await, "{version:?}");
        let autoscaler = Loop::start(&scene, Options::of(version));
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!((with_errors(&scene).await, autoscaler.deleted()), (vec![], vec![]), "{version:?}");
        assert_eq!((scene.desired(), scene.target().await), (2, 2), "{version:?}");
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_placeholders_are_given_up_than_launches_have_failed() {
    for version in BOTH {
        let timing =
            Timing { launch: Span::seconds(2, 800), retry: Span::seconds(3_600, 3_600), ..Timing::QUICK };
        let scene = Scene::with([pool(GROUP, 0).timing(timing)]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 1);
        scene.world.cluster.add(pods_for(GROUP, "pods", 3));
        let failed = |world: &World| {
            world.aws.journal().iter().any(|entry| matches!(entry.what, aws::Event::LaunchFailed { .. }))
        };
        assert!(scene.world.until(LONG, failed).await);
        assert_eq!((scene.desired(), scene.in_service(GROUP).len()), (3, 0), "two are still to be tried");
        assert!(eventually(SOON, || async { autoscaler.deleted().len() == 1 }).await, "{version:?}");
        tokio::time::sleep(seconds(30)).await;
        assert_eq!((autoscaler.deleted().len(), scene.desired()), (1, 2), "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn launches_that_begin_together_and_fail_one_after_the_other_are_all_given_up() {
    for version in BOTH {
        let timing =
            Timing { failure: Span::seconds(2, 80), retry: Span::seconds(3_600, 3_600), ..Timing::QUICK };
        let world = World::new(1);
        world.aws.behave(Behaviour { fails_at_once: false, ..Behaviour::HARSH });
        let scene = Scene::on(world, [pool(GROUP, 0).timing(timing)]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
        scene.world.cluster.add(pods_for(GROUP, "pods", 5));
        assert!(scene.world.until(LONG, |_| !autoscaler.deleted().is_empty()).await);
        assert_ne!(scene.desired(), 0, "some are still under way");
        let all = |_: &World| (autoscaler.deleted().len(), scene.desired()) == (5, 0);
        assert!(scene.world.until(SOON, all).await, "{version:?}: {:?}", autoscaler.deleted());
    }
}

#[tokio::test(start_paused = true)]
async fn all_that_a_try_without_capacity_was_for_bear_its_error_at_once() {
    for version in BOTH {
        let timing = Timing { retry: Span::seconds(3_600, 3_600), ..Timing::QUICK };
        let scene = Scene::with([pool(GROUP, 1).timing(timing)]).await;
        scene.short_of(9).await;
        let mut bears = vec![];
        while bears.is_empty() {
            tokio::time::sleep(seconds(1)).await;
            bears = with_errors(&scene).await;
        }
        assert_eq!(bears.len(), 9, "{version:?}");
        // What is given up for it is not given up for it again.
        let autoscaler = Loop::start(&scene, Options::of(version));
        assert!(scene.world.until(SOON, |_| scene.desired() == 1).await, "{version:?}");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!((autoscaler.deleted().len(), scene.in_service(GROUP).len()), (9, 1), "{version:?}");
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_group_without_capacity_was_asked_for_is_asked_of_another_at_once() {
    for (version, fails_at_once) in BOTH.into_iter().flat_map(|version| [(version, true), (version, false)]) {
        let world = World::new(1);
        world.aws.behave(Behaviour { fails_at_once, ..Behaviour::HARSH });
        let scene = Scene::on(world, [group("a-dry", 0), group("b-other", 0)]).await;
        let autoscaler = Loop::start(&scene, Options::of(version));
        scene.world.aws.fail_launches("a-dry", LaunchFailure::InsufficientCapacity, u32::MAX);
        scene.world.cluster.add(pods_for_any("pods", 6));
        let all = |_: &World| scene.running("pods") == 6;
        assert!(scene.world.until(Duration::from_mins(5), all).await, "{version:?} {fails_at_once}");
        let bought = [("a-dry".to_owned(), 6), ("b-other".to_owned(), 6)];
        assert_eq!(autoscaler.bought(), bought.into(), "{version:?} {fails_at_once}");
        assert_eq!(scene.world.aws.group("a-dry").expect("there").desired, 0);
        nothing_failed(&autoscaler, version);
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_vanishes_in_the_middle_of_a_loop_is_answered_for_until_that_is_over() {
    let scene = Scene::with([pool(GROUP, 2), pool("other", 1)]).await;
    scene.world.aws.untag_group(GROUP, TAG);
    let names =
        async || scene.groups().await.expect("groups").into_iter().map(|group| group.id).collect::<Vec<_>>();
    // The loop has heard of it, and the program refreshes.
    assert!(eventually(SOON, || async { names().await == ["other"] }).await, "it is listed no more");
    assert_eq!(scene.target().await, 2);
    assert_eq!(scene.listed().await.len(), 2);
    assert!(try_template(&scene, GROUP).await.is_ok());
    let is_forgotten = || async { code(&scene.try_target().await) == Code::NotFound };
    assert!(eventually(SOON, is_forgotten).await, "nobody asks any more who has heard of it");
    assert_eq!(code(&try_template(&scene, GROUP).await), Code::NotFound);
    assert_eq!(names().await, ["other"]);
}
