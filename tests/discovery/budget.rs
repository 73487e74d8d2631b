//! How many calls looks cost.

use std::time::Duration;

use ebbtide::sim::aws::{HookSpec, Operation, TemplateData, TemplateSpec};

use crate::world::{by_tag, ours, world};

const GROUPS: usize = 450;

#[tokio::test(start_paused = true)]
async fn a_look_in_a_steady_state_costs_three_calls_more_than_its_pages() {
    let world = world([]).await;
    for n in 0..GROUPS {
        let name = format!("group-{n:03}");
        let instance_type = ["m5.large", "c5.large", "t3.medium"][n % 3];
        world.sim.add_template(TemplateSpec::named(&name).version(TemplateData::of(instance_type)));
        let group = ours(&name).size(0, 5, 1).hook(HookSpec::terminating("ebbtide"));
        world.sim.add_group(group.launch_template(&name, ["$Latest", "$Default", "1"][n / 3 % 3]));
    }
    // A template that a group pins, at a version that is neither the latest nor the default.
    let versions = ["m5.large", "m5.xlarge", "r5.large"].map(TemplateData::of);
    let pinned = versions.into_iter().fold(TemplateSpec::named("pinned"), TemplateSpec::version);
    world.sim.add_template(pinned);
    world.sim.add_group(ours("pinned").launch_template("pinned", "2"));

    let discovery = world.discovery(by_tag());
    let mut seen = 0;
    world.calls_since(&mut seen);
    let first = discovery.look().await.expect("sees");
    assert_eq!(first.groups.len(), GROUPS + 1);
    let pages = (GROUPS + 1).div_ceil(100);
    let calls = world.calls_since(&mut seen);
    assert_eq!(calls[&Operation::DescribeAutoScalingGroups], pages);
    // Those of 450 templates, the latest and the default of one more, and the pinned version.
    assert_eq!(calls[&Operation::DescribeLaunchTemplateVersions], 453_usize.div_ceil(200) + 1);
    assert_eq!(calls[&Operation::DescribeInstanceTypes], 1);
    assert_eq!(calls[&Operation::DescribeLifecycleHooks], 2);
    assert_eq!(calls.len(), 4, "{calls:?}");

    for look in 0..30 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        let snapshot = discovery.look().await.expect("sees");
        assert!(snapshot.groups.values().all(|group| matches!(group.template, Some(Ok(_)))));
        let calls = world.calls_since(&mut seen);
        let total: usize = calls.values().sum();
        assert!(total <= pages + 3, "look {look}: {calls:?}");
        assert_eq!(calls[&Operation::DescribeAutoScalingGroups], pages);
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_exist_is_not_asked_for_at_every_look() {
    let world = world([ours("unknown").template("x99.huge")]).await;
    let discovery = world.discovery(by_tag());
    discovery.look().await.expect("sees");
    let asked = world.sim.calls(Operation::DescribeInstanceTypes);
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        discovery.look().await.expect("sees");
    }
    assert_eq!(world.sim.calls(Operation::DescribeInstanceTypes), asked);
}
