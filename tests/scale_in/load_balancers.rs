//! With `--wait-for-load-balancers`, an instance is released when no load balancer reaches it any more.

use ebbtide::config::Config;
use ebbtide::sim::aws::{GroupSpec, Lose, Operation, Refusal, TargetGroupSpec, Trouble, Which};
use ebbtide::sim::cluster::pod;
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::SignedDuration;

use crate::journal_queries::{
    a_hook_timed_out, assert_nothing_lost, in_phase, is_asked, notes, phase_at, released_at,
};
use crate::scene::{Cause, Machine, Scene, config_with, group, held_group, seconds};

const LOOKS: [Operation; 3] = [
    Operation::DescribeTargetGroups,
    Operation::DescribeTargetHealth,
    Operation::DescribeTargetGroupAttributes,
];

fn waits() -> Config {
    config_with(|it| it.wait_for_load_balancers = true)
}

/// A scene whose nodes are targets of these target groups, and the ARNs of these.
async fn behind(
    targets: impl IntoIterator<Item = TargetGroupSpec>,
    group: GroupSpec,
    config: Config,
) -> (Scene, Vec<String>) {
    let world = World::new(1);
    let arns = targets.into_iter().map(|spec| world.aws.add_target_group(spec)).collect();
    let scene = Scene::on(world, group, config).await;
    (scene, arns)
}

/// How long after the flush began the instance was released.
fn held_for(scene: &Scene, machine: &Machine) -> SignedDuration {
    released_at(&scene.world, machine).duration_since(phase_at(&scene.world, machine, "Flushing"))
}

fn looks(scene: &Scene) -> [usize; 3] {
    LOOKS.map(|look| scene.world.aws.calls(look))
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_released_only_when_its_connections_are_drained() {
    for group in [group(2), held_group(2, 60)] {
        let (scene, arns) =
            behind([TargetGroupSpec::named("k8s-web").delay(120)], group.clone(), waits()).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_released(&machine).await;
        let drained = scene.world.aws.drained_at(&arns[0], &machine.instance).expect("deregistered");
        let after = released_at(&scene.world, &machine).duration_since(drained);
        let range = SignedDuration::ZERO..SignedDuration::from_secs(20);
        assert!(range.contains(&after), "{after} after the last connection");
        let told = notes(&scene.world, &machine, "ScaleInWaiting");
        assert!(told.iter().any(|note| note.contains("target group k8s-web")), "{told:?}");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);

        let (plain, _) = behind([TargetGroupSpec::named("k8s-web").delay(120)], group, config()).await;
        let machine = plain.first();
        plain.scale_in(&machine, Cause::Autoscaler).await;
        plain.until_released(&machine).await;
        let held = held_for(&plain, &machine);
        assert!(held <= SignedDuration::from_secs(70), "not without the flag: {held}");
        assert_eq!(looks(&plain), [0; 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_takes_longer_than_the_connections_waits_for_nothing_more() {
    let (scene, _) = behind([TargetGroupSpec::named("k8s-web").delay(60)], group(2), waits()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_released(&machine).await;
    assert!(held_for(&scene, &machine) <= SignedDuration::from_secs(10), "{}", held_for(&scene, &machine));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_nobody_deregisters_is_waited_for_as_long_as_connections_may_live() {
    for (delay, most) in [(60, 90), (300, 330)] {
        let (scene, arns) =
            behind([TargetGroupSpec::named("by-hand").delay(delay).by_hand()], group(2), waits()).await;
        let machine = scene.first();
        scene.world.aws.register_target(&arns[0], &machine.instance);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_released(&machine).await;
        let took =
            released_at(&scene.world, &machine).duration_since(phase_at(&scene.world, &machine, "Flushing"));
        let range = SignedDuration::from_secs(most - 5)..=SignedDuration::from_secs(most + 5);
        assert!(range.contains(&took), "{delay}: {took}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_target_groups_of_the_group_itself_are_left_to_it() {
    let attached = || TargetGroupSpec::named("own").delay(120).attached_to("web");
    // Without a hook, AWS deregisters an instance only when it is told to terminate it.
    let (scene, _) = behind([attached()], group(2).deregistering_for(120), waits()).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Releasing")).await;
    let flushed = phase_at(&scene.world, &machine, "Releasing").duration_since(phase_at(
        &scene.world,
        &machine,
        "Flushing",
    ));
    assert!(flushed <= SignedDuration::from_secs(10), "{flushed}");
    // With one, it does so before the hook holds it.
    let (scene, _) = behind([attached()], held_group(2, 60).deregistering_for(120), waits()).await;
    let machine = scene.first();
    let asked = scene.world.clock.now();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_released(&machine).await;
    let took = released_at(&scene.world, &machine).duration_since(asked);
    let range = SignedDuration::from_secs(118)..=SignedDuration::from_secs(200);
    assert!(range.contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn without_the_permission_nothing_waits_and_one_line_says_so() {
    let (log, _guard) = captured::log(tracing::Level::INFO);
    let (scene, _) = behind([TargetGroupSpec::named("k8s-web")], group(4), waits()).await;
    for look in LOOKS {
        scene.world.aws.deny(look, true);
    }
    for machine in &scene.machines()[..3] {
        scene.scale_in(machine, Cause::Autoscaler).await;
        scene.until_released(machine).await;
        let held = held_for(&scene, machine);
        assert!(held <= SignedDuration::from_secs(10), "{held}");
    }
    let text = log.text();
    let told = text.lines().filter(|line| line.contains("iam/load-balancers.json")).collect::<Vec<_>>();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("elasticloadbalancing:DescribeTargetGroups"), "{told:?}");
    assert_eq!(looks(&scene), [1, 0, 0]);
    for machine in &scene.machines() {
        assert!(scene.node(&machine.name).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn the_limits_of_a_hook_and_of_a_drain_win() {
    // 100 heartbeats of 30 s, less one.
    let forever = || TargetGroupSpec::named("slow").delay(3_600);
    let (scene, _) = behind([forever()], held_group(2, 30), waits()).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_released(&machine).await;
    assert!(held_for(&scene, &machine) < SignedDuration::from_secs(2_970));
    let held = held_for(&scene, &machine);
    assert!(held > SignedDuration::from_secs(2_800), "{held}");
    assert!(!a_hook_timed_out(&scene.world));

    let mut limited = waits();
    limited.scale_in.drain_timeout = Some(seconds(180));
    let (scene, _) = behind([forever()], group(2), limited).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(150).exits_after(140)]).await;
    let asked = scene.world.clock.now();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_released(&machine).await;
    assert!(released_at(&scene.world, &machine).duration_since(asked) <= SignedDuration::from_secs(180));
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn forty_nodes_at_once_cost_one_question_a_target_group() {
    let targets = ["a", "b", "c"].map(|name| TargetGroupSpec::named(name).delay(120));
    let (scene, _) =
        behind(targets.into_iter().chain([TargetGroupSpec::named("pods").of_pods()]), group(41), waits())
            .await;
    let machines = scene.machines();
    scene.delete(&machines[..40]).await.expect("accepted");
    for machine in &machines[..40] {
        scene.until_released(machine).await;
    }
    let [lists, healths, attributes] = looks(&scene);
    assert_eq!((lists, attributes), (1, 3));
    // One of each every 10 s, for two minutes.
    assert!((33..=48).contains(&healths), "{healths}");
}

#[tokio::test(start_paused = true)]
async fn throttling_delays_a_release_no_longer_than_connections_may_live() {
    let (scene, _) = behind([TargetGroupSpec::named("k8s-web").delay(60)], group(2), waits()).await;
    let machine = scene.first();
    let throttled = Refusal { code: "Throttling", status: 400, message: "Rate exceeded" };
    for look in LOOKS {
        scene.world.aws.trouble(
            Which::of(&[look]).lasting(seconds(3_600)),
            Trouble::Refused(throttled, Lose::BeforeEffect),
        );
    }
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_released(&machine).await;
    let held = held_for(&scene, &machine);
    assert!(SignedDuration::from_secs(325) <= held && held <= SignedDuration::from_secs(335), "{held}");
    let told = notes(&scene.world, &machine, "ScaleInWaiting");
    assert!(told.iter().any(|note| note.contains("AWS does not say")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_mid_wait_counts_from_where_it_was() {
    let (mut scene, arns) = behind([TargetGroupSpec::named("k8s-web").delay(120)], group(2), waits()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.pass_some(seconds(70)).await;
    scene.kill().await;
    scene.until_released(&machine).await;
    let drained = scene.world.aws.drained_at(&arns[0], &machine.instance).expect("deregistered");
    let after = released_at(&scene.world, &machine).duration_since(drained);
    assert!(after >= SignedDuration::ZERO && after < SignedDuration::from_secs(30), "{after}");
}
