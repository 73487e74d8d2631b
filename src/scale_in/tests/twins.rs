//! Several Nodes that name one instance.

use std::sync::Arc;

use serde_json::json;

use super::scene::*;
use crate::cluster::PodView;

/// The same Node under another name.
fn another(mut scene: Scene) -> Scene {
    scene.patch(&json!({ "metadata": { "name": "n2", "uid": "node-uid-2" } }));
    scene
}

fn on(pod: PodView, node: &str) -> PodView {
    PodView { node: node.into(), ..pod }
}

#[test]
fn a_node_that_is_not_the_primary_one_is_marked_while_the_scale_in_goes_on_and_says_why() {
    let mut scene = node();
    scene.is_primary = false;
    scene.twins = vec![Arc::new(another(node()).view())];
    assert_eq!((reasons(&scene.plan()), spec(&scene).0), (vec![], false));
    scene.twins = vec![Arc::new(another(node()).by_autoscaler().view())];
    assert_eq!(reasons(&scene.plan()), ["ScaleInSeveralNodes"]);
    assert!(spec(&scene).0);
    scene.twins = vec![Arc::new(another(node()).view())];
    assert_eq!((reasons(&scene.plan()), spec(&scene).0), (vec![], false));
}

#[test]
fn the_primary_node_tells_of_its_twins() {
    for alone in [true, false] {
        let mut scene = node().by_autoscaler().with(pod("web"));
        scene.twins = if alone { Vec::new() } else { vec![Arc::new(another(node()).view())] };
        assert_eq!(reasons(&scene.plan()).contains(&"ScaleInSeveralNodes"), !alone);
    }
}

#[test]
fn an_exit_is_overdue_sooner_on_the_node_of_which_nothing_is_heard() {
    for (of, given_up) in [("n1", 330), ("n2", 90)] {
        let mut scene = node().by_autoscaler().with(on(pod("web"), of).going(30));
        let mut other = another(node());
        ready(&mut other, "Unknown");
        scene.twins = vec![Arc::new(other.view())];
        scene.now = at(given_up - 1);
        assert!(!reasons(&scene.plan()).contains(&"ScaleInFlushing"), "{of}");
        scene.later(1);
        assert!(reasons(&scene.plan()).contains(&"ScaleInFlushing"), "{of}");
    }
}

#[test]
fn there_is_nobody_left_to_flush_once_none_of_the_nodes_is_heard_of_or_confirms_an_exit() {
    for (nodes_of_pods, is_dead) in [(&["n1"][..], false), (&["n2"], false), (&["n1", "n2"], true)] {
        let mut scene = node().by_autoscaler();
        scene.twins = vec![Arc::new(another(node()).view())];
        for name in nodes_of_pods {
            scene.put(on(pod(name), name).going(30));
        }
        scene.put(on(pod("logs").daemon(), "n1"));
        scene.now = at(1_000);
        scene.plan();
        assert_eq!(touches_aws(&scene.plan()), is_dead, "{nodes_of_pods:?}");
    }
}
