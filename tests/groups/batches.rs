//! A batch of DeleteNodes is judged as a whole.

use ebbtide::provider::proto::ExternalGrpcNode;
use tonic::Code;

use crate::scene::{GROUP, Scene, code, group, placeholder};

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_wrong_in_one_place_changes_nothing() {
    let scene = Scene::with([group(GROUP, 4).size(2, 10, 4), group("other", 1)]).await;
    let nodes: Vec<ExternalGrpcNode> = scene.in_service(GROUP).iter().map(|i| scene.node_of(i)).collect();
    let foreign = scene.node_of(&scene.in_service("other")[0]);
    let nowhere = ExternalGrpcNode { provider_id: "gce://p/z/vm".into(), ..ExternalGrpcNode::default() };
    let before = scene.writes();
    let refused = [
        (vec![nodes[0].clone(), foreign.clone()], Code::InvalidArgument),
        (vec![nowhere.clone(), nodes[0].clone()], Code::InvalidArgument),
        (vec![placeholder(0), foreign.clone()], Code::InvalidArgument),
        (vec![foreign], Code::NotFound),
        (vec![nowhere], Code::NotFound),
        (nodes[..3].to_vec(), Code::FailedPrecondition),
    ];
    for (batch, expected) in refused {
        assert_eq!(code(&scene.delete(GROUP, batch.clone()).await), expected, "{batch:?}");
    }
    assert_eq!(code(&scene.delete("none", nodes[..1].to_vec()).await), Code::NotFound);
    assert_eq!((scene.writes(), scene.desired(), scene.target().await), (before, 4, 4));

    // As many as the minimum allows, one of them named twice.
    let allowed = vec![nodes[0].clone(), nodes[1].clone(), nodes[0].clone()];
    scene.delete(GROUP, allowed).await.expect("accepted");
    assert_eq!(scene.target().await, 2);
    let one_more = scene.delete(GROUP, vec![nodes[2].clone()]).await;
    assert_eq!(code(&one_more), Code::FailedPrecondition, "the two count that are still there");
    assert_eq!(scene.target().await, 2);
}
