//! The whole program on the simulated worlds, in virtual time.

mod scene;

use std::time::Duration;

use scene::{Scene, group};

#[tokio::test(start_paused = true)]
async fn an_occupied_node_of_a_group_without_a_hook_is_drained_flushed_and_terminated() {
    let scene = Scene::with(group("web", 2)).await;
    assert_eq!(scene.nodes().len(), 2);
    let node = scene.nodes().remove(0);
    scene.delete(&[&node]).await.expect("accepted");
    assert!(scene.until_gone(&node, Duration::from_mins(5)).await);
}
