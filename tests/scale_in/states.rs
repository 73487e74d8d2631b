//! The states of an instance that are not the end: kept, renewed, warm, set aside. And groups that are not ours to change.

use ebbtide::sim::aws::{
    Event, HookResult, HookSpec, LaunchFailure, LifecycleState, Operation, Power, TerminationCause, Trouble,
    WarmPoolSpec, Which,
};
use ebbtide::sim::cluster::{PodSpec, budget, pod};
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;

use crate::journal_queries::{
    TERMINATE, a_hook_timed_out, assert_nothing_lost, aws_moments, decrements, has_exited, is_asked,
    last_exit, notes, phase_at, terminations,
};
use crate::scene::{Cause, Machine, RECORD, Scene, TO_BE_DELETED, group, held_group, seconds, state};

/// Whether nothing on the Node tells of a scale-in.
fn in_service(world: &World, machine: &Machine) -> bool {
    world.cluster.node(&machine.name).is_some_and(|node| {
        let spec = node.spec.unwrap_or_default();
        let annotations = node.metadata.annotations.unwrap_or_default();
        !spec.unschedulable.unwrap_or_default()
            && !spec.taints.unwrap_or_default().iter().any(|taint| taint.key == TO_BE_DELETED)
            && !annotations.contains_key(RECORD)
    })
}

/// When a hook that held the instance was completed.
fn completions(world: &World, machine: &Machine) -> Vec<jiff::Timestamp> {
    aws_moments(
        world,
        |e| matches!(e, Event::HookCompleted { instance, .. } if *instance == machine.instance),
    )
}

/// The name of a node's workload.
fn its_pod(machine: &Machine) -> String {
    format!("web-{}", machine.instance)
}

fn workload(machine: &Machine, grace: u32, exits_after: u32) -> PodSpec {
    pod(its_pod(machine).as_str()).on(&machine.name).grace(grace).exits_after(exits_after)
}

/// No workload was cut, and no line lost.
fn assert_whole(world: &World) {
    let cuts = world
        .cluster
        .journal()
        .into_iter()
        .filter(|entry| matches!(entry.what, ebbtide::sim::cluster::Event::CutShort { .. }));
    assert_eq!(cuts.collect::<Vec<_>>(), [], "cut short");
    assert_eq!(world.cluster.all_lines().lost, 0, "lines lost");
}

/// A retained instance with a workload that needs `exits_after` seconds, while the program was away.
async fn a_retained_node(exits_after: u32, restarted: bool) {
    let mut scene = Scene::with(held_group(2, 60).retaining()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(exits_after)]).await;
    scene.take_down().await;
    scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    scene.until(|w| state(w, &machine) == Some(LifecycleState::TerminatingRetained)).await;
    scene.bring_back();
    scene.until(|w| is_asked(w, "web")).await;
    if restarted {
        scene.kill().await;
    }
    scene.until_released(&machine).await;
    scene.until_gone(&machine).await;
    assert_whole(&scene.world);
    assert_eq!(terminations(&scene.world, &machine).len(), 2, "the group's, and ours");
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 0));
    let (last, flushing) = (last_exit(&scene.world, &machine), phase_at(&scene.world, &machine, "Flushing"));
    let ended = *terminations(&scene.world, &machine).last().expect("it ended");
    // The flush counts from the last exit, the write of the phase comes after it.
    let flushed = ended.duration_since(last);
    assert!(
        flushing >= last && ended >= flushing && flushed >= SignedDuration::from_secs(5),
        "exited {last}, flushing {flushing}, ended {ended}"
    );
    let [completed] = completions(&scene.world, &machine)[..] else {
        panic!("held once more, and completed once")
    };
    assert!(completed >= ended);
    let whole = |w: &World| w.aws.group("web").is_some_and(|g| (g.desired, g.instances.len()) == (2, 2));
    scene.until(whole).await;
    assert_eq!(scene.target().await.expect("answered"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_is_drained_and_flushed_and_then_ended_without_a_decrement() {
    a_retained_node(40, false).await;
    a_retained_node(500, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_is_ended_although_its_group_lost_its_tag_and_ebbtide_was_restarted_since() {
    let mut scene = Scene::with(held_group(2, 60).retaining()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(400)]).await;
    scene.take_down().await;
    scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    scene.until(|w| state(w, &machine) == Some(LifecycleState::TerminatingRetained)).await;
    scene.bring_back();
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.untag_group("web", ebbtide::sim::program::TAG);
    scene.pass_some(seconds(10)).await;
    scene.kill().await;
    scene.until_gone(&machine).await;
    assert_whole(&scene.world);
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_accepted_scale_in_whose_instance_was_retained_goes_on_where_it_was() {
    // The hook is there, so that the instance is terminated at once; then nobody is for longer than the hook waits.
    let mut scene = Scene::with(held_group(3, 60).retaining()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(400)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web") && !terminations(w, &machine).is_empty()).await;
    scene.take_down().await;
    scene.until(|w| state(w, &machine) == Some(LifecycleState::TerminatingRetained)).await;
    scene.bring_back();
    scene.until_gone(&machine).await;
    assert_whole(&scene.world);
    assert_eq!((terminations(&scene.world, &machine).len(), decrements(&scene.world)), (2, 1));
    assert_eq!(scene.world.aws.group("web").expect("the group").desired, 2);
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_does_not_hide_that_a_node_is_missing() {
    let mut scene = Scene::with(held_group(2, 60).retaining()).await;
    let machine = scene.first();
    scene.run([workload(&machine, 900, 800)]).await;
    scene.take_down().await;
    scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    scene.until(|w| state(w, &machine) == Some(LifecycleState::TerminatingRetained)).await;
    scene.bring_back();
    scene.ready().await;
    assert_eq!(scene.target().await.expect("answered"), 2);
    let listed = scene.listed().await;
    let placeholders = listed.iter().filter(|id| id.contains("placeholder")).count();
    assert_eq!((listed.len(), placeholders), (3, 1), "{listed:?}: one in service, one kept, one missing");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_root_volume_is_replaced_is_drained_first_and_in_service_again_after() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machines = scene.machines();
    scene.run(machines.iter().map(|m| workload(m, 600, 200))).await;
    scene.world.aws.replace_root_volumes("web");
    for machine in &machines {
        scene.until(|w| completions(w, machine).len() == 1).await;
        let completed = completions(&scene.world, machine)[0];
        assert!(
            completed >= last_exit(&scene.world, machine) + SignedDuration::from_secs(5),
            "drained and flushed"
        );
    }
    let back = |w: &World| {
        machines.iter().all(|m| state(w, m) == Some(LifecycleState::InService) && in_service(w, m))
    };
    scene.until(back).await;
    scene.pass_some(seconds(3600)).await;
    assert!(back(&scene.world), "and stays so");
    let rebooted = aws_moments(&scene.world, |e| matches!(e, Event::Rebooted { .. }));
    assert_eq!((rebooted.len(), scene.world.aws.calls(TERMINATE)), (2, 0));
    assert!(!a_hook_timed_out(&scene.world));
    assert_nothing_lost(&scene.world);
    assert_eq!(scene.target().await.expect("answered"), 2);
    assert_eq!(notes(&scene.world, &machines[0], "ScaleInReturned").len(), 1);
}

/// A group of two that gives instances back to its warm pool.
fn reusing(heartbeat: u64) -> ebbtide::sim::aws::GroupSpec {
    held_group(2, heartbeat).size(0, 2, 2).warm_pool(WarmPoolSpec::stopped().reusing())
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_back_to_the_warm_pool_is_drained_under_the_hook_and_serves_when_it_comes_out() {
    for restarted in [false, true] {
        let mut scene = Scene::with(reusing(60)).await;
        let machines = scene.machines();
        scene.run(machines.iter().map(|m| workload(m, 600, 200))).await;
        scene.world.aws.set_desired("web", 1);
        let waits = |w: &World| {
            w.aws.group("web").is_some_and(|g| g.in_state(LifecycleState::WarmedPendingWait).len() == 1)
        };
        scene.until(waits).await;
        let of_pool =
            |machine: &&Machine| state(&scene.world, machine) == Some(LifecycleState::WarmedPendingWait);
        let machine = machines.iter().find(of_pool).expect("one of them").clone();
        scene.until(|w| is_asked(w, &its_pod(&machine))).await;
        if restarted {
            scene.kill().await;
        } else {
            // What is not seen of the pool for a while stays as it was.
            scene.world.aws.throttle_for(&[Operation::DescribeWarmPool], seconds(120));
        }
        scene.until(|w| state(w, &machine) == Some(LifecycleState::WarmedStopped)).await;
        let [completed] = completions(&scene.world, &machine)[..] else { panic!("completed once") };
        assert!(completed >= last_exit(&scene.world, &machine) + SignedDuration::from_secs(5));
        assert!(!a_hook_timed_out(&scene.world));
        scene.pass_some(seconds(1800)).await;
        assert_eq!(scene.target().await.expect("answered"), 1);

        // On its way in, it is the node that cluster-autoscaler has asked for.
        scene.increase(1).await.expect("set");
        let back =
            |w: &World| state(w, &machine) == Some(LifecycleState::InService) && in_service(w, &machine);
        scene.target_stays(2, back).await;
        scene.pass_some(seconds(3600)).await;
        assert!(back(&scene.world), "and stays so");
        assert_eq!((scene.world.aws.calls(TERMINATE), terminations(&scene.world, &machine).len()), (0, 0));
        assert_nothing_lost(&scene.world);
    }
}

/// Its containers may run on. AWS may throttle heartbeats for longer than one that comes too early is refused.
#[tokio::test(start_paused = true)]
async fn an_instance_on_its_way_back_to_the_warm_pool_is_held_though_its_node_was_deleted_before_a_restart() {
    for (heartbeat, throttled) in [(60, 0), (300, 90)] {
        let mut scene = Scene::with(reusing(heartbeat)).await;
        let machines = scene.machines();
        scene.run(machines.iter().map(|m| workload(m, 600, 200))).await;
        scene.world.aws.set_desired("web", 1);
        let waits = |w: &World, m: &Machine| state(w, m) == Some(LifecycleState::WarmedPendingWait);
        scene.until(|w| machines.iter().any(|m| waits(w, m))).await;
        let machine = machines.iter().find(|m| waits(&scene.world, m)).expect("one of them").clone();
        scene.world.cluster.crash(&machine.name);
        let nodes: Api<Node> = Api::all(scene.world.cluster.client());
        nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
        scene.world.aws.throttle_for(&[Operation::RecordLifecycleActionHeartbeat], seconds(throttled));
        scene.kill().await;
        scene.pass_some(seconds(600)).await;
        assert!(waits(&scene.world, &machine), "{heartbeat}: {:?}", state(&scene.world, &machine));
        scene.until(|w| state(w, &machine) == Some(LifecycleState::WarmedStopped)).await;
        assert!(!a_hook_timed_out(&scene.world), "{heartbeat}");
    }
}

/// It would be taken for the one before, which is over, and nothing would come of it.
#[tokio::test(start_paused = true)]
async fn a_deletion_of_a_node_whose_instance_is_back_is_refused_until_the_record_of_the_one_before_is_off() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.world.aws.replace_root_volumes("web");
    scene.until(|w| completions(w, &machine).len() == 1).await;
    let back = |w: &World| state(w, &machine) == Some(LifecycleState::InService);
    scene.until(back).await;
    let mut answers = Vec::new();
    while !in_service(&scene.world, &machine) {
        let answer = scene.delete(std::slice::from_ref(&machine)).await;
        answers.push(answer.is_ok());
        if let Err(refused) = answer {
            assert!(refused.message().contains("is back in its group"), "{refused}");
            assert_eq!(refused.code(), tonic::Code::Unavailable, "cluster-autoscaler's next loop may");
        }
        scene.pass_some(seconds(5)).await;
    }
    assert!(answers.contains(&false), "{answers:?}");
    assert!(answers.is_sorted_by(|before, after| before >= after), "once it is seen to be back: {answers:?}");
    scene.delete(std::slice::from_ref(&machine)).await.expect("accepted");
    scene.until_gone(&machine).await;
    assert_eq!(decrements(&scene.world), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_is_void_once_its_instance_went_into_the_warm_pool_without_a_hook() {
    // No hook holds it: the group stops it in mid-drain. What was asked for then is not done when it comes out.
    let scene = Scene::with(group(2).size(0, 2, 2).warm_pool(WarmPoolSpec::stopped().reusing())).await;
    let machines = scene.machines();
    scene.run(machines.iter().map(|m| workload(m, 3000, 2000))).await;
    for machine in &machines {
        scene.annotate(machine, Some("replace")).await;
    }
    scene.until(|w| machines.iter().all(|m| is_asked(w, &its_pod(m)))).await;
    scene.world.aws.set_desired("web", 1);
    let stopped =
        |w: &World| w.aws.group("web").is_some_and(|g| g.in_state(LifecycleState::WarmedStopped).len() == 1);
    scene.until(stopped).await;
    let of_pool = |machine: &&Machine| state(&scene.world, machine) == Some(LifecycleState::WarmedStopped);
    let machine = machines.iter().find(of_pool).expect("one of them").clone();
    scene.pass_some(seconds(300)).await;
    scene.world.aws.set_desired("web", 2);
    let back = |w: &World| state(w, &machine) == Some(LifecycleState::InService) && in_service(w, &machine);
    scene.until(back).await;
    scene.pass_some(seconds(3600)).await;
    assert_eq!(terminations(&scene.world, &machine).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_instance_in_standby_is_nobodys_node_and_ends_without_a_decrement() {
    let scene = Scene::with(group(3)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    scene.world.aws.set_aside(&machine.instance, true);
    scene.pass_some(seconds(90)).await;
    assert_eq!(scene.target().await.expect("answered"), 2);
    assert!(!scene.listed().await.iter().any(|id| id.ends_with(&machine.instance)));
    scene.delete(std::slice::from_ref(&machine)).await.expect_err("not cluster-autoscaler's");
    scene.annotate(&machine, Some("now")).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 0));
    let group = scene.world.aws.group("web").expect("the group");
    assert_eq!((group.desired, group.in_state(LifecycleState::InService).len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_set_aside_while_it_drains_ends_without_a_second_decrement() {
    let scene = Scene::with(group(3)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.set_aside(&machine.instance, true);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(decrements(&scene.world), 0);
    let group = scene.world.aws.group("web").expect("the group");
    assert_eq!((group.desired, group.in_state(LifecycleState::InService).len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn the_nodes_of_a_group_that_is_deleted_are_drained_under_its_hook() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machines = scene.machines();
    scene.run(machines.iter().map(|m| workload(m, 600, 300))).await;
    scene.world.aws.delete_group("web");
    for machine in &machines {
        scene.until_gone(machine).await;
        scene.assert_left_well(machine);
    }
    assert!(has_exited(&scene.world, "web-"));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_comes_first_is_no_surplus_for_good() {
    let scene = Scene::with(held_group(3, 60).launching_first()).await;
    let machines = scene.machines();
    scene.run(machines.iter().map(|m| workload(m, 600, 100))).await;
    scene.world.aws.refresh("web");
    let renewed = |w: &World| {
        w.aws.group("web").is_some_and(|g| {
            g.instances.len() == 3 && machines.iter().all(|m| g.instances.iter().all(|i| i.id != m.instance))
        })
    };
    // More live than are wanted, for minutes.
    scene
        .target_stays(3, |w| {
            w.aws.group("web").is_some_and(|g| {
                g.in_state(LifecycleState::Pending).len() + g.in_state(LifecycleState::InService).len() == 4
            })
        })
        .await;
    scene.until(renewed).await;
    assert_eq!(scene.world.aws.group("web").expect("the group").desired, 3);
    assert_nothing_lost(&scene.world);
    assert_eq!(scene.world.aws.calls(TERMINATE), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_detached_before_aws_heard_of_its_end_serves_again_though_the_program_was_killed() {
    let mut scene = Scene::with(group(2)).await;
    let machine = scene.first();
    // The look before the termination does not show it yet.
    scene.pass_some(seconds(60)).await;
    let old = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(seconds(60));
    scene.world.aws.trouble(old, Trouble::Stale(seconds(60)));
    scene.world.aws.detach(&machine.instance, false);
    scene.scale_in(&machine, Cause::Autoscaler).await;
    // It is noted that AWS was told, and AWS knows no such instance.
    scene.until(|w| w.aws.calls(TERMINATE) > 0).await;
    scene.kill().await;
    scene.until(|w| in_service(w, &machine)).await;
    scene.pass_some(seconds(3_600)).await;
    assert!(in_service(&scene.world, &machine));
    assert_eq!(scene.world.aws.instance(&machine.instance).expect("there").power, Power::Running);
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_under_way_whose_instance_is_held_for_its_root_volume_goes_by_the_end_of_that_hold() {
    // Beside another's hook the instance is not taken out of the group before its node is drained.
    let theirs = HookSpec::terminating("theirs").heartbeat(30).by_default(HookResult::Continue);
    let scene = Scene::with(group(1).hook(HookSpec::terminating("ebbtide").heartbeat(30)).hook(theirs)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").max_unavailable(0));
    scene.run([pod("web").label("app", "web").on(&machine.name).grace(120).exits_after(60)]).await;
    scene.scale_in(&machine, Cause::Operator).await;
    scene.pass_some(seconds(120)).await;
    scene.world.aws.replace_root_volumes("web");
    scene.until(|w| is_asked(w, "web")).await;
    let ours = |e: &Event| matches!(e, Event::HookTimedOut { hook, .. } if hook == "ebbtide");
    scene.until_gone(&machine).await;
    assert!(aws_moments(&scene.world, ours).is_empty());
    assert!(has_exited(&scene.world, "web"), "with its whole grace");
}
