//! What is told of launches that fail.

use std::time::Duration;

use ebbtide::groups::Snapshot;
use ebbtide::sim::aws::{Event, GroupSpec, HookSpec, LaunchFailure, Timing};
use ebbtide::sim::span::Span;
use ebbtide::telemetry::captured::{self, Log};
use tracing::Level;

use crate::world::{TAG, ours, world};

/// How often the log has these words.
fn told(log: &Log, words: &str) -> usize {
    log.text().matches(words).count()
}

#[tokio::test(start_paused = true)]
async fn launches_that_fail_are_told_when_they_begin_to_and_when_they_work() {
    let (log, _guard) = captured::log(Level::INFO);
    let mut world = world([ours("dry").size(0, 9, 0), ours("fine").size(0, 9, 1)]).await;
    world.run();
    world.until(|snapshot| snapshot.groups.len() == 2).await;
    world.sim.fail_launches("dry", LaunchFailure::InsufficientCapacity, 4);
    world.aws.set_desired(&"dry".into(), 1).await.expect("is within its bounds");
    world.groups.refresh_soon();
    world.until(|snapshot| snapshot.groups["dry"].failure.is_some()).await;
    assert_eq!(told(&log, "fail no more"), 0);
    world.until(|snapshot| snapshot.groups["dry"].asg.live().count() == 1).await;
    let over = world.clock.now();
    world.until(|_| world.clock.now() > over + Duration::from_secs(20)).await;
    let lines: Vec<_> =
        log.text().lines().filter(|line| line.contains("launches of the group")).map(str::to_owned).collect();
    let [fail, work] = &lines[..] else { panic!("not at every refresh: {}", log.text()) };
    for part in [
        "WARN",
        "launches of the group fail ",
        r#"group="dry""#,
        r#"code="InsufficientInstanceCapacity""#,
        "do not have sufficient",
    ] {
        assert!(fail.contains(part), "{part} in {fail}");
    }
    assert!(work.contains("INFO") && work.contains("launches of the group fail no more"), "{work}");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_made_anew_has_no_failure_of_the_one_that_had_its_name() {
    let mut world = world([ours("dry").size(0, 9, 0)]).await;
    world.run();
    world.until(|snapshot| snapshot.groups.len() == 1).await;
    world.sim.fail_launches("dry", LaunchFailure::InsufficientCapacity, u32::MAX);
    world.aws.set_desired(&"dry".into(), 3).await.expect("is within its bounds");
    world.groups.refresh_soon();
    let before = world.until(|snapshot| snapshot.groups["dry"].failure.is_some()).await;
    world.sim.remove_group("dry");
    // Its first instances take their time.
    let timing = Timing { launch: Span::exactly(Duration::from_hours(1)), ..Timing::default() };
    world.sim.add_group(GroupSpec::named("dry").tag(TAG, "").timing(timing).size(0, 9, 2));
    world.groups.refresh_soon();
    let is_another = |snapshot: &Snapshot| snapshot.groups["dry"].asg.is_another(&before.groups["dry"].asg);
    let anew = world.until(is_another).await;
    assert_eq!((anew.groups["dry"].asg.live().count(), anew.groups["dry"].failure.clone()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn launches_that_were_given_up_are_not_told_to_work() {
    let (log, _guard) = captured::log(Level::INFO);
    let mut world = world([ours("dry").size(0, 9, 1)]).await;
    world.run();
    world.until(|snapshot| snapshot.groups.len() == 1).await;
    world.sim.fail_launches("dry", LaunchFailure::InsufficientCapacity, u32::MAX);
    for tries in 1..=2 {
        world.aws.set_desired(&"dry".into(), 3).await.expect("is within its bounds");
        world.groups.refresh_soon();
        world.until(|snapshot| snapshot.groups["dry"].failure.is_some()).await;
        world.aws.set_desired(&"dry".into(), 1).await.expect("is within its bounds");
        world.groups.refresh_soon();
        let over = |snapshot: &Snapshot| snapshot.groups["dry"].asg.desired == 1;
        world.until(|snapshot| over(snapshot) && snapshot.groups["dry"].failure.is_none()).await;
        assert_eq!(told(&log, "launches of the group that failed were given up"), tries, "{}", log.text());
    }
    assert_eq!(told(&log, "fail no more"), 0);
}

#[tokio::test(start_paused = true)]
async fn each_launch_that_fails_is_counted_once_and_an_instance_that_comes_is_noted() {
    let mut world = world([ours("dry").size(0, 9, 0), ours("broken").size(0, 9, 0)]).await;
    world.run();
    world.until(|snapshot| snapshot.groups.len() == 2).await;
    let began = world.clock.now();
    world.sim.fail_launches("dry", LaunchFailure::NoSpotCapacity, u32::MAX);
    let image =
        LaunchFailure::Other { code: "InvalidAMIID.NotFound".into(), message: "no such image".into() };
    world.sim.fail_launches("broken", image, u32::MAX);
    for group in ["dry", "broken"] {
        world.aws.set_desired(&group.into(), 1).await.expect("is within its bounds");
    }
    world.groups.refresh_soon();
    world.until(|_| world.clock.now() > began + Duration::from_mins(20)).await;
    let failed = |name: &str| {
        let of_it = |event: &Event| matches!(event, Event::LaunchFailed { group, .. } if group == name);
        world.sim.journal().iter().filter(|entry| of_it(&entry.what)).count()
    };
    let metrics = world.metrics();
    for (group, class) in [("dry", "out_of_resources"), ("broken", "other")] {
        let expected = failed(group);
        assert!(expected > 1, "AWS tries again");
        let series =
            format!("ebbtide_launch_failures_total{{group=\"{group}\",class=\"{class}\"}} {expected}\n");
        assert!(metrics.contains(&series), "{series} in {metrics}");
    }
    let age = |metrics: &str| -> f64 {
        let value = metrics.lines().find_map(|line| line.strip_prefix("ebbtide_launch_age_seconds "));
        value.expect("a value").parse().expect("a number")
    };
    assert!(age(&metrics) > 1_200.0, "{metrics}");
    world.sim.fail_launches("dry", LaunchFailure::NoSpotCapacity, 0);
    world.until(|snapshot| snapshot.groups["dry"].asg.live().count() == 1).await;
    assert!(age(&world.metrics()) < 60.0, "{}", world.metrics());
}

/// AWS describes activities under way first, whenever they began.
#[tokio::test(start_paused = true)]
async fn a_launch_that_fails_is_found_behind_a_hundred_terminations_that_a_hook_holds() {
    let held = ours("web").size(0, 200, 150).hook(HookSpec::terminating("ebbtide").heartbeat(3_600));
    let mut world = world([held]).await;
    world.run();
    world.until(|snapshot| snapshot.groups.len() == 1).await;
    world.sim.set_desired("web", 20);
    let leaving = |snapshot: &Snapshot| snapshot.groups["web"].asg.live().count() == 20;
    world.until(leaving).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    world.sim.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    world.aws.set_desired(&"web".into(), 21).await.expect("is within its bounds");
    world.groups.refresh_soon();
    let began = world.clock.now();
    world.until(|snapshot| snapshot.groups["web"].failure.is_some()).await;
    let took = world.clock.now().duration_since(began);
    assert!(took.as_secs() <= 60, "{took}");
}
