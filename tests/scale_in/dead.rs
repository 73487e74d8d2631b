//! Machines and kubelets that die before, during and after they are asked to drain.

use ebbtide::sim::aws::{Death, GroupSpec};
use ebbtide::sim::ca_drain::{Flags, GaveUp, drain_and_delete};
use ebbtide::sim::cluster::{By, Timing, budget, node, pod};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::journal_queries::{
    a_hook_timed_out, asked, assert_nothing_lost, decrements, has_exited, is_asked, is_released, notes,
    phase_at, released_at, terminations,
};
use crate::scene::{Cause, Machine, Scene, group, held_group, seconds};
use crate::status::status;

/// When the grace of the last pod of this name that was asked ends.
fn end_of_grace(world: &World, name: &str) -> Timestamp {
    let (at, _, grace) = *asked(world, name).last().expect("asked");
    at + SignedDuration::from_secs(grace)
}

/// The node was given back soon after the grace and the minute that a kubelet may be silent, and says for whom.
async fn assert_given_up(scene: &Scene, machine: &Machine) {
    let waited = released_at(&scene.world, machine).duration_since(end_of_grace(&scene.world, "web"));
    // A deletion timestamp is cut to the second, and so is the date by which the API server's clock is known.
    assert!(waited >= SignedDuration::from_secs(58), "released {waited} after the grace");
    assert!(waited <= SignedDuration::from_secs(65), "released {waited} after the grace");
    // Nothing waits for an Event.
    scene.until(|w| !notes(w, machine, "ScaleInPodsGivenUp").is_empty()).await;
    let given_up = notes(&scene.world, machine, "ScaleInPodsGivenUp");
    assert!(given_up.iter().any(|note| note.contains("default/web")), "{given_up:?}");
    assert!(!a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_machine_has_crashed_is_given_back_a_minute_after_the_grace() {
    for (group, cause) in [
        (group(2), Cause::Autoscaler),
        (group(2), Cause::Operator),
        (held_group(2, 60), Cause::Autoscaler),
        (held_group(2, 60), Cause::Group),
    ] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(30).exits_after(20)]).await;
        scene.world.cluster.crash(&machine.name);
        scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.until_released(&machine).await;
        assert_given_up(&scene, &machine).await;
    }
}

/// Its hook is over by nobody's doing, and descriptions do not show that: the Node has gone before the next one.
#[tokio::test(start_paused = true)]
async fn where_a_node_vanishes_in_mid_drain_people_are_told_what_was_on_it() {
    for group in [group(2), held_group(2, 60)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let [web, api] = ["web", "api"].map(|name| pod(name).on(&machine.name).grace(600).exits_after(500));
        scene.run([web, api.exits_after(5)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| has_exited(w, "api")).await;
        scene.pass_some(seconds(2)).await;
        scene.world.cluster.crash(&machine.name);
        let nodes: Api<Node> = Api::all(scene.world.cluster.client());
        nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
        scene.pass_some(seconds(5)).await;
        let told = notes(&scene.world, &machine, "ScaleInNodeLost");
        let [note] = &told[..] else { panic!("{told:?}") };
        assert!(
            note.contains("in phase Draining") && note.ends_with("1 workload pod, default/web"),
            "{note}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_were_left_behind_do_not_make_a_dead_machine_look_alive() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    for name in ["left-1", "left-2", "left-3"] {
        let id = format!("aws:///us-east-1a/i-{name}");
        scene.world.cluster.register_node(node(name).provider_id(&id));
        scene.world.cluster.partition(name);
    }
    scene.pass_some(seconds(2 * 3_600)).await;
    scene.run([pod("web").on(&machine.name).grace(30).exits_after(20)]).await;
    scene.world.cluster.crash(&machine.name);
    scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    let released = |w: &World| is_released(w, &machine);
    assert!(scene.world.until(seconds(600), released).await, "a minute after the grace");
    assert_given_up(&scene, &machine).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_crashes_in_mid_drain_holds_its_node_for_a_minute_after_the_grace() {
    for crash in [true, false] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(80)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        if crash {
            scene.world.cluster.crash(&machine.name);
        } else {
            scene.world.cluster.kill_kubelet(&machine.name);
        }
        scene.until_released(&machine).await;
        assert_given_up(&scene, &machine).await;
    }
}

async fn says_it_is_not_ready(scene: &Scene, machine: &Machine) {
    let nodes: Api<Node> = Api::all(scene.world.cluster.client());
    let since = scene.world.clock.now().to_string();
    let ready = json!({ "type": "Ready", "status": "False", "reason": "KubeletNotReady", "lastTransitionTime": since });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
    nodes.patch_status(&machine.name, &PatchParams::default(), &patch).await.expect("written");
}

/// cluster-autoscaler waits for the pods that it has evicted: with the flags of the manifests for two days.
#[tokio::test(start_paused = true)]
async fn a_machine_that_dies_in_cluster_autoscalers_own_drain_is_given_back_after_five_minutes() {
    // The last one's container runtime hangs: its kubelet says that it is not Ready, and confirms nothing.
    for (group, hangs) in [(group(2), false), (held_group(2, 60), false), (held_group(2, 60), true)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let web = pod("web").on(&machine.name).grace(120).exits_after(60);
        scene.run([if hangs { web.exit_is_noticed_after(200_000) } else { web }]).await;
        let flags = Flags {
            max_graceful_termination_seconds: 172_800,
            evicts_daemon_sets: false,
            ..Flags::default()
        };
        let mut client = scene.client();
        let autoscaler = drain_and_delete(&scene.world, &mut client, "web", &machine.name, &flags);
        let dies = async {
            scene.until(|w| is_asked(w, "web")).await;
            if hangs {
                says_it_is_not_ready(&scene, &machine).await;
            } else {
                scene.world.cluster.crash(&machine.name);
            }
            scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
            let silent_since = scene.world.clock.now();
            scene.until_released(&machine).await;
            let waited = released_at(&scene.world, &machine).duration_since(silent_since);
            // AWS's answers and looks come on top, and a flush where a kubelet lives.
            assert!((298..=330).contains(&waited.as_secs()), "{waited}");
            scene.until(|w| w.cluster.pod("web").is_none()).await;
        };
        // Its wait ends with the Node.
        let (told, ()) = tokio::join!(autoscaler, dies);
        assert!(matches!(told, Ok(()) | Err(GaveUp::NotDeleted(_))), "{told:?}");
        scene.pass_some(seconds(900)).await;
        assert_eq!((terminations(&scene.world, &machine).len(), decrements(&scene.world)), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_comes_back_in_cluster_autoscalers_own_drain_is_left_to_it() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(600)]).await;
    let flags = Flags { max_graceful_termination_seconds: 172_800, ..Flags::default() };
    let mut client = scene.client();
    let autoscaler = drain_and_delete(&scene.world, &mut client, "web", &machine.name, &flags);
    let is_away = async {
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.cluster.partition(&machine.name);
        scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
        scene.pass_some(seconds(240)).await;
        scene.world.cluster.revive(&machine.name);
        scene.until(|w| has_exited(w, "web")).await;
    };
    let (told, ()) = tokio::join!(autoscaler, is_away);
    told.expect("handed over");
    scene.until_gone(&machine).await;
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_comes_back_in_time_costs_nobody_anything() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.cluster.partition(&machine.name);
    scene.pass_some(seconds(90)).await;
    scene.world.cluster.revive(&machine.name);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert!(notes(&scene.world, &machine, "ScaleInPodsGivenUp").is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_tells_of_exits_before_it_says_that_it_is_there_costs_nobody_the_flush() {
    for away in [90, 400] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        let reported = Span::exactly(seconds(9));
        scene.world.cluster.set_timing(Timing { reported, ..Timing::real() });
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(60)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.pass_some(seconds(2)).await;
        scene.world.cluster.partition(&machine.name);
        scene.pass_some(seconds(away)).await;
        scene.world.cluster.revive(&machine.name);
        scene.until(|w| w.cluster.pod("web").is_none()).await;
        assert!(!scene.world.cluster.is_ready(&machine.name), "the Node's status comes later");
        scene.until_gone(&machine).await;
        let flushing = phase_at(&scene.world, &machine, "Flushing");
        let flushed = released_at(&scene.world, &machine).duration_since(flushing);
        assert!(flushed >= SignedDuration::from_secs(5), "{flushed:#} after {away} s");
        assert!(notes(&scene.world, &machine, "ScaleInPodsGivenUp").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_asked_not_to_be_disturbed_is_waited_for_until_its_machine_is_lost() {
    for (group, cause) in [(group(2), Cause::Autoscaler), (held_group(2, 60), Cause::Group)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let web = pod("web").on(&machine.name).grace(30).exits_after(20).tolerates_everything();
        scene.run([web.annotation("ebbtide/drain", "wait")]).await;
        scene.scale_in(&machine, cause).await;
        scene.pass_some(seconds(600)).await;
        // It comes back before it counts as lost.
        scene.world.cluster.partition(&machine.name);
        scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
        scene.pass_some(seconds(240)).await;
        scene.world.cluster.revive(&machine.name);
        scene.pass_some(seconds(600)).await;
        assert!(!is_asked(&scene.world, "web"));
        scene.world.cluster.crash(&machine.name);
        scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
        let silent_since = scene.world.clock.now();
        scene.until(|w| is_asked(w, "web")).await;
        let waited = asked(&scene.world, "web")[0].0.duration_since(silent_since);
        assert!((298..=305).contains(&waited.as_secs()), "{waited}");
        scene.until_released(&machine).await;
        assert_given_up(&scene, &machine).await;
        let told = notes(&scene.world, &machine, "ScaleInPatienceOver");
        let is_about_it = |note: &String| note.contains("default/web") && note.contains("nothing is heard");
        assert!(!told.is_empty() && told.iter().all(is_about_it), "{told:?}");
    }
}

/// The taint manager deletes no pod that tolerates its taint, and a budget never lets an unhealthy pod go that it wants.
#[tokio::test(start_paused = true)]
async fn a_pod_that_its_budget_keeps_on_a_lost_machine_is_deleted_with_its_grace() {
    for (group, cause) in
        [(group(2), Cause::Operator), (group(2), Cause::Autoscaler), (held_group(2, 60), Cause::Group)]
    {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        let web = pod("web").on(&machine.name).grace(30).exits_after(20).tolerates_everything();
        scene.run([web.label("app", "web")]).await;
        scene.scale_in(&machine, cause).await;
        scene.pass_some(seconds(120)).await;
        scene.world.cluster.crash(&machine.name);
        scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
        let silent_since = scene.world.clock.now();
        scene.until(|w| is_asked(w, "web")).await;
        let (at, _, grace) = asked(&scene.world, "web")[0];
        let waited = at.duration_since(silent_since).as_secs();
        assert!((298..=305).contains(&waited) && grace == 30, "{waited} s, grace {grace}");
        scene.until_released(&machine).await;
        assert_given_up(&scene, &machine).await;
        scene.until_gone(&machine).await;
        scene.pass_some(seconds(60)).await;
        let outcome = &status(scene.program()).await["ended"][0]["outcome"];
        assert_eq!(outcome, "released", "no time was up");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ready_nodes_overdue_pod_is_waited_for_and_named() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    // A container runtime that does not say what has become of a container.
    let exit_noticed = Span::exactly(seconds(600));
    scene.world.cluster.set_timing(Timing { exit_noticed, ..Timing::real() });
    scene.run([pod("web").on(&machine.name).grace(30)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(500)).await;
    assert!(terminations(&scene.world, &machine).is_empty());
    let waiting = notes(&scene.world, &machine, "ScaleInWaiting");
    let named = |note: &String| note.contains("default/web (should have exited by");
    assert!(waiting.iter().any(named), "{waiting:?}");
    scene.until_gone(&machine).await;
}

/// Half an hour in which nothing is heard of these machines, of which the first is to go, ends nothing that may run on there.
async fn assert_none_is_taken_for_dead(scene: &Scene, machines: &[Machine], cause: Cause) {
    let machine = &machines[0];
    let patient = pod("train").on(&machine.name).grace(30).exits_after(5).annotation("ebbtide/drain", "wait");
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(20), patient]).await;
    for machine in machines {
        scene.world.cluster.partition(&machine.name);
    }
    scene.until(|w| machines.iter().all(|machine| !w.cluster.is_ready(&machine.name))).await;
    scene.scale_in(machine, cause).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.pass_some(seconds(1_800)).await;
    let is_ours = |(_, by, _): &(Timestamp, By, i64)| *by != By::Controller;
    assert!(!asked(&scene.world, "train").iter().any(is_ours), "it may run on: {cause:?}");
    assert!(!is_released(&scene.world, machine), "so may they: {cause:?}");
    for machine in machines {
        scene.world.cluster.revive(&machine.name);
    }
    let pods: Api<Pod> = Api::namespaced(scene.world.cluster.client(), "default");
    // Of the group's own doing a replacement has come, and Kubernetes itself may have deleted it.
    let _ = pods.delete("train", &DeleteParams::default()).await;
    scene.until_gone(machine).await;
    assert!(!a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn where_the_api_server_hears_no_kubelet_nobody_is_taken_for_dead() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let scene = Scene::with(held_group(4, 120)).await;
        assert_none_is_taken_for_dead(&scene, &scene.machines(), cause).await;
    }
}

#[tokio::test(start_paused = true)]
async fn where_no_kubelet_of_a_zone_is_heard_nobody_there_is_taken_for_dead() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let scene = Scene::with(held_group(9, 120).zones(["us-east-1a", "us-east-1b", "us-east-1c"])).await;
        let mut there = scene.machines();
        there.retain(|machine| machine.provider_id().contains("us-east-1b"));
        assert_eq!(there.len(), 3);
        assert_none_is_taken_for_dead(&scene, &there, cause).await;
    }
}

/// Their role is gone, say, and others are in the same zone.
#[tokio::test(start_paused = true)]
async fn where_no_kubelet_of_a_group_is_heard_nobody_there_is_taken_for_dead() {
    for (size, cause) in [(2, Cause::Autoscaler), (4, Cause::Autoscaler), (4, Cause::Group)] {
        let scene = Scene::with(held_group(size, 120)).await;
        let machines = scene.machines();
        let other = GroupSpec::named("other").size(0, 9, 6).zones(["us-east-1a"]).template("m5.large");
        scene.world.aws.add_group(other.already_running());
        let others_are_ready = |w: &World| {
            let names = w.cluster.node_names();
            names.len() == machines.len() + 6 && names.iter().all(|name| w.cluster.is_ready(name))
        };
        scene.until(others_are_ready).await;
        assert_none_is_taken_for_dead(&scene, &machines, cause).await;
    }
}

/// The cloud controller says so.
#[tokio::test(start_paused = true)]
async fn a_machine_that_was_stopped_is_not_taken_for_one_that_is_only_not_heard_of() {
    let scene = Scene::with(held_group(4, 120)).await;
    let machines = scene.machines();
    let machine = &machines[0];
    scene.world.cluster.add(budget("kept").min_available(1));
    let kept = pod("kept").on(&machine.name).grace(30).tolerates_everything().label("app", "kept");
    scene.run([pod("web").on(&machine.name).grace(7_200).exits_after(7_100), kept]).await;
    for other in &machines[1..] {
        scene.world.cluster.partition(&other.name);
    }
    scene.scale_in(machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.kill_machine(&machine.instance, Death::Stopped);
    let released = |w: &World| is_released(w, machine);
    assert!(scene.world.until(seconds(300), released).await, "whatever the graces and budgets");
}

#[tokio::test(start_paused = true)]
async fn an_overdue_pod_ends_no_flush_of_a_kubelet_that_has_just_confirmed_an_exit() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    let reported = Span::exactly(seconds(9));
    scene.world.cluster.set_timing(Timing { reported, ..Timing::real() });
    let stuck = pod("stuck").on(&machine.name).grace(30).exits_after(20).exit_is_noticed_after(3_600);
    scene.run([stuck, pod("web").on(&machine.name).grace(600).exits_after(300)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.pass_some(seconds(240)).await;
    scene.world.cluster.partition(&machine.name);
    scene.pass_some(seconds(65)).await;
    scene.world.cluster.revive(&machine.name);
    scene.until_released(&machine).await;
    let flushing = phase_at(&scene.world, &machine, "Flushing");
    let flushed = released_at(&scene.world, &machine).duration_since(flushing);
    assert!(flushed >= SignedDuration::from_secs(5), "{flushed:#}");
}
