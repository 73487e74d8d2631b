//! The first minute of a program that was started again: nothing is told before it is known.

use std::time::Duration;

use ebbtide::sim::aws::Operation;
use ebbtide::sim::program::{Program, config};
use tonic::Code;

use crate::scene::{GROUP, SOON, Scene, code, eventually, group};

#[tokio::test(start_paused = true)]
async fn sizes_are_not_told_before_the_scale_ins_under_way_are_known() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.occupy(1_800).await;
    let node = scene.node_of(&scene.in_service(GROUP)[0]);
    scene.delete(GROUP, vec![node]).await.expect("accepted");
    assert_eq!(scene.target().await, 1);

    let Scene { world, program } = scene;
    program.kill().await;
    world.cluster.api_down();
    let refreshes = world.aws.calls(Operation::DescribeAutoScalingGroups);
    let program = Program::start(&world, config());
    let scene = Scene { world, program };
    let looked =
        |w: &ebbtide::sim::world::World| w.aws.calls(Operation::DescribeAutoScalingGroups) > refreshes;
    assert!(scene.world.until(SOON, looked).await);
    // The groups are known, the Nodes are not.
    for _ in 0..30 {
        assert_eq!(code(&scene.try_target().await), Code::Unavailable);
        assert_eq!(code(&scene.groups().await), Code::Unavailable);
        assert_eq!(code(&scene.increase(1).await), Code::Unavailable);
        assert_eq!(code(&scene.decrease(-1).await), Code::Unavailable);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    scene.world.cluster.api_up();
    let told = || async {
        match scene.try_target().await {
            Ok(size) => {
                assert_eq!(size, 1, "the first answer is right");
                true
            }
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                false
            }
        }
    };
    assert!(eventually(SOON, told).await);
    assert_eq!(scene.desired(), 2, "the drain goes on");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_before_the_first_look_at_aws() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    let Scene { world, program } = scene;
    program.stop().await.expect("stopped in good order");
    world.aws.outage(true);
    let program = Program::start(&world, config());
    let scene = Scene { world, program };
    for _ in 0..10 {
        assert_eq!(code(&scene.groups().await), Code::Unavailable);
        assert_eq!(code(&scene.try_target().await), Code::Unavailable);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    scene.world.aws.outage(false);
    scene.answers().await;
    assert_eq!(scene.target().await, 2);
}
