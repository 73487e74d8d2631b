//! Several Nodes with the provider id of one machine: a kubelet that came back under another name, and Nodes that somebody
//! made up.

use ebbtide::provider::proto::{ExternalGrpcNode, NodeGroupForNodeRequest};
use ebbtide::sim::cluster::{Event, NodeChange, node, pod};
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;

use crate::journal_queries::{
    TERMINATE, asked, assert_nothing_lost, decrements, has_exited, is_released, moments, notes, released_at,
    terminations,
};
use crate::scene::{Cause, Machine, Scene, TO_BE_DELETED, group, held_group, seconds};

impl Scene {
    /// Another Node with the provider id of a machine, whose kubelet lives for as long as nobody kills it.
    async fn another_node_of(&self, machine: &Machine, name: &str) -> Machine {
        self.world.cluster.register_node(node(name).provider_id(&self.provider_id(machine)));
        self.until(|w| w.cluster.is_ready(name)).await;
        self.machines().into_iter().find(|other| other.name == name).expect("registered")
    }

    fn provider_id(&self, machine: &Machine) -> String {
        let node = self.node(&machine.name).expect("there");
        node.spec.and_then(|spec| spec.provider_id).expect("a provider id")
    }

    /// Of which group cluster-autoscaler is told that a Node is.
    async fn group_of(&self, machine: &Machine) -> String {
        let node = ExternalGrpcNode {
            provider_id: self.provider_id(machine),
            name: machine.name.clone(),
            ..ExternalGrpcNode::default()
        };
        let request = NodeGroupForNodeRequest { node: Some(node.into()) };
        let answer = self.client().node_group_for_node(request).await.expect("answered");
        answer.into_inner().node_group.expect("a message").id
    }
}

/// Whether a Node was cordoned and tainted.
fn was_closed(world: &World, machine: &Machine) -> bool {
    let tainted =
        |change: &NodeChange| matches!(change, NodeChange::Tainted { key, .. } if key == TO_BE_DELETED);
    let closed = |e: &Event| matches!(e, Event::NodeChanged { node, changes } if *node == machine.name && changes.iter().any(tainted));
    !moments(world, closed).is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_node_made_up_for_a_busy_machine_gets_no_workload_cut() {
    for (group, cause) in [
        (group(2), Cause::Autoscaler),
        (group(2), Cause::Operator),
        (held_group(2, 60), Cause::Autoscaler),
        (held_group(2, 60), Cause::Group),
    ] {
        for is_ready in [true, false] {
            let scene = Scene::with(group.clone()).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
            let rogue = scene.another_node_of(&machine, "rogue").await;
            if !is_ready {
                scene.world.cluster.kill_kubelet("rogue");
                scene.pass_some(seconds(90)).await;
            }
            // Whoever asks may name either.
            let named = if cause == Cause::Operator { &rogue } else { &machine };
            scene.scale_in(named, cause).await;
            scene.until_released(&machine).await;
            assert!(has_exited(&scene.world, "web"), "{cause:?}, ready: {is_ready}");
            let (at, ..) = asked(&scene.world, "web")[0];
            let flushed = at + SignedDuration::from_secs(105);
            assert!(released_at(&scene.world, &machine) >= flushed, "and its flush was had");
            assert!(was_closed(&scene.world, &machine) && was_closed(&scene.world, &rogue));
            for told in [
                notes(&scene.world, &machine, "ScaleInSeveralNodes"),
                notes(&scene.world, &rogue, "ScaleInSeveralNodes"),
            ] {
                assert!(!told.is_empty());
            }
            scene.until_gone(&machine).await;
            assert_nothing_lost(&scene.world);
            assert_eq!(terminations(&scene.world, &machine).len(), 1);
            assert_eq!(decrements(&scene.world), usize::from(cause != Cause::Group));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_under_the_new_name_of_a_machine_leaves_before_it_goes() {
    for group in [group(2), held_group(2, 60)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("old").on(&machine.name)]).await;
        scene.world.cluster.kill_kubelet(&machine.name);
        let renamed = scene.another_node_of(&machine, "renamed").await;
        scene.run([pod("web").on("renamed").grace(120).exits_after(100)]).await;
        scene.pass_some(seconds(120)).await;
        // cluster-autoscaler is to keep the node that runs, and not to reckon with the other.
        assert_eq!(
            (scene.group_of(&renamed).await, scene.group_of(&machine).await),
            ("web".into(), String::new())
        );
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_released(&machine).await;
        assert!(has_exited(&scene.world, "web"));
        let (at, ..) = asked(&scene.world, "web")[0];
        assert!(
            released_at(&scene.world, &machine) >= at + SignedDuration::from_secs(105),
            "and its flush was had"
        );
        assert!(was_closed(&scene.world, &renamed));
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_nodes_of_a_machine_the_one_that_is_deleted_takes_no_pod_of_the_other_with_it() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let other = scene.another_node_of(&machine, "other").await;
    scene.run([pod("patient").on("other").annotation("ebbtide/drain", "wait")]).await;
    scene.scale_in(&machine, Cause::Operator).await;
    scene.until(|w| was_closed(w, &other)).await;
    let nodes: Api<Node> = Api::all(scene.world.cluster.client());
    nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
    scene.pass_some(seconds(120)).await;
    assert!(asked(&scene.world, "patient").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_listed_as_its_node_spells_its_provider_id() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.world.cluster.kill_kubelet(&machine.name);
    // The AWS cloud provider reads it without the zone as well.
    let odd = format!("aws:////{}", machine.instance);
    scene.world.cluster.register_node(node("renamed").provider_id(&odd));
    scene.until(|w| w.cluster.is_ready("renamed")).await;
    scene.pass_some(seconds(120)).await;
    let listed = scene.listed().await;
    assert!(listed.contains(&odd) && !listed.contains(&scene.provider_id(&machine)), "{listed:?}");
    let renamed = scene.machines().into_iter().find(|other| other.name == "renamed").expect("registered");
    assert_eq!(scene.group_of(&renamed).await, "web");
}

#[tokio::test(start_paused = true)]
async fn a_node_made_up_is_of_no_group() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let rogue = scene.another_node_of(&machine, "a-rogue").await;
    assert_eq!((scene.group_of(&machine).await, scene.group_of(&rogue).await), ("web".into(), String::new()));
    scene.pass_some(seconds(120)).await;
    assert!(!was_closed(&scene.world, &machine) && !was_closed(&scene.world, &rogue), "nobody wants it gone");
}

#[tokio::test(start_paused = true)]
async fn a_node_made_up_holds_no_release_for_ever() {
    for is_ready in [true, false] {
        let scene = Scene::with(held_group(2, 600)).await;
        let machine = scene.first();
        scene.another_node_of(&machine, "rogue").await;
        // Nobody ever says that it has gone.
        scene.run([pod("web").on("rogue").finalizer("example.com/never")]).await;
        if !is_ready {
            scene.world.cluster.kill_kubelet("rogue");
        }
        scene.scale_in(&machine, Cause::Autoscaler).await;
        let asked_at = scene.world.clock.now();
        scene.until_released(&machine).await;
        let took = released_at(&scene.world, &machine).duration_since(asked_at);
        assert!(took <= SignedDuration::from_mins(7), "{took}, ready: {is_ready}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_that_is_cancelled_opens_every_node_of_the_machine() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).annotation("ebbtide/drain", "wait")]).await;
    let rogue = scene.another_node_of(&machine, "rogue").await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| was_closed(w, &rogue)).await;
    // A second request, on the other Node, is not carried out beside the first.
    scene.annotate(&rogue, Some("now")).await;
    scene.pass_some(seconds(30)).await;
    scene.annotate(&rogue, None).await;
    scene.annotate(&machine, None).await;
    scene.pass_some(seconds(60)).await;
    for name in [&machine.name, &rogue.name] {
        let spec = scene.node(name).expect("there").spec.unwrap_or_default();
        assert_eq!((spec.unschedulable, spec.taints.unwrap_or_default()), (None, Vec::new()), "{name}");
    }
    assert!(!is_released(&scene.world, &machine));
    assert_eq!(scene.world.aws.calls(TERMINATE), 0);
}
