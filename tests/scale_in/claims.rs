//! Whoever may annotate a Node (a kubelet its own, whoever may patch `nodes/status` any) writes a record by hand: it is a claim
//! and ends nothing.

use ebbtide::config::Config;
use ebbtide::sim::aws::{GroupSpec, Lose, Operation, Refusal, Trouble, Which};
use ebbtide::sim::cluster::pod;
use ebbtide::sim::program::{TAG, config};
use ebbtide::telemetry::captured;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::journal_queries::{
    TERMINATE, assert_nothing_lost, decrements, has_exited, in_phase, is_asked, is_released, notes,
    terminations,
};
use crate::scene::{Cause, EVER, Machine, RECORD, Scene, config_with, group, held_group, seconds};

const LONG_AGO: &str = "2025-12-31T00:00:00Z";
const FAR_AHEAD: &str = "2199-01-01T00:00:00Z";

/// A record of a machine that claims to be at its end since long ago.
fn record(machine: &Machine, release: &str) -> Value {
    json!({
        "cause": "autoscaler", "group": "web", "instance": machine.instance, "phase": "Releasing",
        "requestedAt": LONG_AGO, "phaseSince": LONG_AGO, "emptySince": LONG_AGO, "releaseBy": LONG_AGO,
        "release": release,
    })
}

fn with(mut record: Value, changes: &[(&str, &str)]) -> Value {
    for (key, value) in changes {
        record[key] = json!(value);
    }
    record
}

fn within_minutes(minutes: u64) -> Config {
    config_with(|it| it.drain_timeout = Some(seconds(60 * minutes)))
}

impl Scene {
    async fn forge(&self, machine: &Machine, record: &Value) {
        self.annotate(machine, Some(&record.to_string())).await;
    }

    /// What the record on a Node says by now.
    fn written(&self, machine: &Machine) -> Value {
        let annotations =
            self.node(&machine.name).and_then(|node| node.metadata.annotations).unwrap_or_default();
        annotations.get(RECORD).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_claims_to_be_at_its_end_ends_no_busy_machine() {
    for group in [group(2), held_group(2, 60)] {
        for config in [config(), within_minutes(10)] {
            for release in ["terminate-and-decrement", "terminate"] {
                let scene = Scene::configured(group.clone(), config.clone()).await;
                let machine = scene.first();
                scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
                scene.forge(&machine, &record(&machine, release)).await;
                scene.until_gone(&machine).await;
                scene.assert_left_well(&machine);
                assert!(!notes(&scene.world, &machine, "ScaleInNotBelieved").is_empty());
            }
            // That the group has taken it out is not so, and the node stays in service.
            let scene = Scene::configured(group.clone(), config).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
            scene.forge(&machine, &record(&machine, "complete-hook")).await;
            scene.pass_some(seconds(600)).await;
            assert!(!is_asked(&scene.world, "web") && !is_released(&scene.world, &machine));
            assert!(!notes(&scene.world, &machine, "ScaleInNotBelieved").is_empty());
            assert_eq!(
                scene.written(&machine),
                Value::Null,
                "cluster-autoscaler is answered by what is written there"
            );
            scene.scale_in(&machine, Cause::Autoscaler).await;
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
            assert_eq!(decrements(&scene.world), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_forged_over_one_under_way_neither_shortens_nor_skips_anything() {
    let forgeries: [&[(&str, &str)]; 5] = [
        &[],
        &[("cause", "operator"), ("release", "terminate")],
        &[("phase", "Flushing"), ("release", "terminate-and-decrement")],
        &[("phase", "Draining"), ("terminateAt", LONG_AGO)],
        &[("phase", "Draining"), ("requestedAt", LONG_AGO), ("cause", "lifecycle-hook")],
    ];
    for cause in [Cause::Group, Cause::Autoscaler, Cause::Operator] {
        for changes in forgeries {
            let scene = Scene::configured(held_group(2, 60), within_minutes(30)).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(300).exits_after(250)]).await;
            scene.scale_in(&machine, cause).await;
            scene.until(|w| is_asked(w, "web")).await;
            scene.forge(&machine, &with(record(&machine, "complete-hook"), changes)).await;
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_in_a_record_is_not_obeyed_before_its_hook_is_known() {
    // Forged while nobody was there: it is what an earlier run would have left.
    let mut scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(250)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.take_down().await;
    scene.forge(&machine, &with(record(&machine, "complete-hook"), &[("phase", "Draining")])).await;
    scene.world.aws.delay(seconds(2), seconds(1));
    scene.bring_back();
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_that_a_newer_version_has_begun_goes_on_where_that_one_is_taken_back() {
    for (group, key) in [(group(2), "cause"), (held_group(2, 60), "phase"), (group(2), "release")] {
        let mut scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(250)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.take_down().await;
        let newer = with(scene.written(&machine), &[(key, "a-newer-word"), ("added", "since")]);
        scene.forge(&machine, &newer).await;
        scene.bring_back();
        scene.until(|w| has_exited(w, "web")).await;
        scene.until(|w| in_phase(w, &machine, "Flushing")).await;
        assert_eq!(scene.written(&machine)["added"], "since");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_moment_in_the_future_holds_nothing_up() {
    let moments = ["requestedAt", "phaseSince", "emptySince", "terminateAt", "releaseBy"];
    let changes: Vec<_> = moments.iter().map(|moment| (*moment, FAR_AHEAD)).collect();
    for group in [group(2), held_group(2, 60)] {
        for phase in ["Draining", "Flushing", "Releasing"] {
            for while_down in [false, true] {
                let mut scene = Scene::with(group.clone()).await;
                let machine = scene.first();
                let forged = with(record(&machine, "terminate-and-decrement"), &changes);
                if while_down {
                    scene.take_down().await;
                }
                scene.forge(&machine, &with(forged, &[("phase", phase)])).await;
                if while_down {
                    scene.bring_back();
                }
                let gone = |w: &ebbtide::sim::world::World| is_released(w, &machine);
                // A termination that another process has noted may be on its way for five minutes.
                assert!(
                    scene.world.until(seconds(180 + 300), gone).await,
                    "{phase}, while down: {while_down}"
                );
                assert_eq!(decrements(&scene.world), 1);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_was_erased_from_the_record_is_not_repeated() {
    for forged in [LONG_AGO, FAR_AHEAD, ""] {
        let scene = Scene::with(group(3)).await;
        let machine = scene.first();
        // AWS has the request and takes its time.
        scene.world.aws.lose_next(TERMINATE, Lose::BeforeEffect);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| w.aws.calls(TERMINATE) == 1).await;
        let first = scene.world.clock.now();
        let mut record = with(scene.written(&machine), &[("terminateAt", forged)]);
        if forged.is_empty() {
            record.as_object_mut().expect("an object").remove("terminateAt");
        }
        scene.forge(&machine, &record).await;
        scene.until(|w| w.aws.calls(TERMINATE) == 2).await;
        let after = scene.world.clock.now().duration_since(first);
        assert!(after >= SignedDuration::from_secs(30), "again after {after}: {forged}");
        scene.until_gone(&machine).await;
        assert_eq!(decrements(&scene.world), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn another_groups_name_in_a_record_costs_that_group_nothing() {
    for held in [false, true] {
        let ours = if held { held_group(3, 60) } else { group(3) };
        let scene = Scene::with(ours).await;
        let other = GroupSpec::named("other")
            .size(0, 10, 2)
            .zones(["us-east-1a"])
            .template("m5.large")
            .tag(TAG, "true");
        scene.world.aws.add_group(other.already_running());
        scene.pass_some(seconds(120)).await;
        let is_ours = |machine: &Machine| {
            scene.world.aws.group("web").expect("there").instances.iter().any(|i| i.id == machine.instance)
        };
        let machine = scene.machines().into_iter().find(is_ours).expect("of ours");
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(80)]).await;
        scene
            .forge(&machine, &with(record(&machine, "terminate-and-decrement"), &[("group", "other")]))
            .await;
        scene.until(|w| is_asked(w, "web")).await;
        // Its own group is told without it.
        scene.until_target(2).await;
        scene.until_gone(&machine).await;
        assert!(has_exited(&scene.world, "web"));
        scene.pass_some(seconds(300)).await;
        let size = |name: &str| scene.world.aws.group(name).expect("there").desired;
        assert_eq!((size("web"), size("other")), (2, 2));
        assert_nothing_lost(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_of_another_nodes_instance_is_void() {
    for release in ["terminate-and-decrement", "terminate", "complete-hook"] {
        let scene = Scene::with(held_group(2, 60)).await;
        let [own, other] = [scene.first(), scene.machines().remove(1)];
        scene.run([pod("web").on(&own.name), pod("other").on(&other.name)]).await;
        scene.forge(&own, &record(&other, release)).await;
        scene.pass_some(seconds(600)).await;
        assert!(!is_asked(&scene.world, "web") && !is_asked(&scene.world, "other"));
        assert!(terminations(&scene.world, &own).is_empty() && terminations(&scene.world, &other).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_annotates_its_own_node_again_and_again_gets_nothing_but_a_drain() {
    let scene = Scene::configured(held_group(2, 60), within_minutes(60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(250)]).await;
    for n in 0..20 {
        let at = format!("2025-12-31T00:00:{n:02}Z");
        scene
            .forge(&machine, &with(record(&machine, "terminate-and-decrement"), &[("requestedAt", &at)]))
            .await;
        scene.pass_some(seconds(10)).await;
    }
    assert!(!in_phase_by_us(&scene, &machine));
    assert!(scene.world.until(EVER, |w| is_released(w, &machine)).await);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

/// Whether the record says that the machine flushes although a workload is there.
fn in_phase_by_us(scene: &Scene, machine: &Machine) -> bool {
    in_phase(&scene.world, machine, "Flushing") && !has_exited(&scene.world, "web")
}

#[tokio::test(start_paused = true)]
async fn a_group_that_only_a_record_names_and_aws_does_not_show_costs_a_line_and_no_refresh() {
    let (log, _captured) = captured::log(tracing::Level::INFO);
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(3_600).exits_after(3_500)]).await;
    // Its group is ours no more: nobody corrects what its record says.
    scene.world.aws.untag_group("web", TAG);
    scene.pass_some(seconds(90)).await;
    let denied = Refusal { code: "AccessDenied", status: 403, message: "is not authorized to perform" };
    let which = Which::of(&[Operation::DescribeAutoScalingGroups]).about("ghost").lasting(seconds(720));
    scene.world.aws.trouble(which, Trouble::Refused(denied, Lose::BeforeEffect));
    scene.forge(&machine, &with(record(&machine, "terminate"), &[("group", "ghost")])).await;
    scene.pass_some(seconds(720)).await;
    let lines = |words: &str| log.text().lines().filter(|line| line.contains(words)).count();
    assert_eq!((lines("look-up failed"), lines("cannot describe")), (1, 0), "{}", log.text());
    assert!(!notes(&scene.world, &machine, "ScaleInCancelled").is_empty());
}
