//! How many calls refreshes cost.

use std::collections::BTreeSet;
use std::time::Duration;

use ebbtide::groups::Snapshot;
use ebbtide::groups::discovery::Discovery;
use ebbtide::sim::aws::{
    HookSpec, LaunchConfigurationSpec, Operation, Requirements, TemplateData, TemplateSpec,
};

use crate::world::{World, by_tag, ours, world};

const GROUPS: usize = 1_000;
const INSTANCES: u32 = 15;
const TYPES: [&str; 3] = ["m5.large", "c5.large", "t3.medium"];
/// Groups that pin a version that is neither the latest nor the default one.
const PINNED: usize = 5;
/// Other calls that a refresh may make, however many groups there are.
const MORE: usize = 3;

/// What the first refresh may cost, so that a start is quick: pages of groups, of versions and of types, and what is pinned.
fn first_refresh(versions: usize) -> usize {
    GROUPS.div_ceil(100) + versions.div_ceil(200) + TYPES.len().div_ceil(100) + PINNED
}

/// A launch template of three versions of the same type for each group.
async fn thousand_groups(instances: u32, default_version: usize, aliases: &[&str]) -> World {
    let world = world([]).await;
    for n in 0..GROUPS {
        let name = format!("group-{n:04}");
        let data = || TemplateData::of(TYPES[n % TYPES.len()]);
        let template = TemplateSpec::named(&name).version(data()).version(data()).version(data());
        world.sim.add_template(template.default_version(default_version));
        let version = if n < PINNED { "2" } else { aliases[n % aliases.len()] };
        let group = ours(&name).size(0, 50, instances).hook(HookSpec::terminating("ebbtide"));
        world.sim.add_group(group.launch_template(&name, version));
    }
    world
}

#[tokio::test(start_paused = true)]
async fn a_look_at_1000_groups_of_15000_instances_costs_ten_pages_and_three_calls() {
    let world = thousand_groups(INSTANCES, 1, &["$Latest"]).await;
    let discovery = world.discovery(by_tag());
    let mut seen = 0;
    world.calls_since(&mut seen);
    let first = discovery.refresh().await.expect("sees");
    assert_eq!((first.groups.len(), first.by_instance.len()), (GROUPS, GROUPS * INSTANCES as usize));
    assert!(is_known(&first));
    let calls = world.calls_since(&mut seen);
    assert!(calls.values().sum::<usize>() <= first_refresh(GROUPS), "{calls:?}");
    assert_eq!(calls[&Operation::DescribeAutoScalingGroups], GROUPS.div_ceil(100));

    costs_pages_and_few_more(&world, &discovery, 1).await;
}

/// Looks once a minute, and counts.
async fn costs_pages_and_few_more(world: &World, discovery: &Discovery, refreshes: usize) {
    let mut seen = 0;
    world.calls_since(&mut seen);
    for round in 0..refreshes {
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(is_known(&discovery.refresh().await.expect("sees")));
        let calls = world.calls_since(&mut seen);
        assert!(calls.values().sum::<usize>() <= GROUPS.div_ceil(100) + MORE, "refresh {round}: {calls:?}");
        assert_eq!(calls[&Operation::DescribeAutoScalingGroups], GROUPS.div_ceil(100));
    }
}

/// Whether every group has a template.
fn is_known(snapshot: &Snapshot) -> bool {
    snapshot.groups.values().all(|group| matches!(group.template, Some(Ok(_))))
}

#[tokio::test(start_paused = true)]
async fn later_looks_cost_three_calls_more_than_pages_of_groups_for_as_long_as_it_runs() {
    let world = thousand_groups(0, 1, &["$Latest", "$Default"]).await;
    let discovery = world.discovery(by_tag());
    discovery.refresh().await.expect("sees");
    costs_pages_and_few_more(&world, &discovery, 20).await;
}

#[tokio::test(start_paused = true)]
async fn each_alias_that_groups_refer_to_costs_its_versions_and_no_other() {
    // A version that is both is told once. Two versions of a template take two places on the pages.
    for (default_version, aliases, versions) in [
        (3, &["$Latest", "$Default"][..], GROUPS),
        (1, &["$Default"], GROUPS),
        (1, &["$Latest", "$Default"], 2 * GROUPS),
    ] {
        let world = thousand_groups(0, default_version, aliases).await;
        let mut seen = 0;
        world.calls_since(&mut seen);
        world.discovery(by_tag()).refresh().await.expect("sees");
        let calls = world.calls_since(&mut seen);
        assert!(calls.values().sum::<usize>() <= first_refresh(versions), "{aliases:?}: {calls:?}");
    }
}

/// Sets of attributes.
const SETS: u32 = 10;

/// Groups of any type with certain attributes, of many sets; and launch templates for six pages, a new pass over which
/// begins five minutes after the last.
async fn groups_of_attributes() -> World {
    let world = world([]).await;
    world.sim.add_image("ami-arm", "arm64");
    for n in 0..1_100 {
        let version = TemplateData::of("m5.large");
        world.sim.add_template(TemplateSpec::named(format!("other-{n}")).version(version));
    }
    for n in 0..SETS * 3 {
        let name = format!("group-{n:03}");
        let image = ["ami-arm", "ami-0abcdef1234567890", "ami-gone"][n as usize / SETS as usize];
        let data = TemplateData::meeting(Requirements::at_least(2, 1 + n % SETS)).image(image);
        world.sim.add_template(TemplateSpec::named(&name).version(data));
        world
            .sim
            .add_group(ours(&name).hook(HookSpec::terminating("ebbtide")).launch_template(&name, "$Latest"));
    }
    // Neither is there, and both are asked for again and again.
    world.sim.add_group(ours("unknown").template("x99.huge"));
    world.sim.add_group(ours("old").launch_configuration("gone"));
    world
}

#[tokio::test(start_paused = true)]
async fn attributes_and_images_cost_a_call_each_at_first_and_few_for_as_long_as_it_runs() {
    let world = groups_of_attributes().await;
    let discovery = world.discovery(by_tag());
    let mut seen = 0;
    world.calls_since(&mut seen);
    let first = discovery.refresh().await.expect("sees");
    let known = first.groups.values().filter(|group| matches!(group.template, Some(Ok(_)))).count();
    assert_eq!(known, SETS as usize * 3);
    let calls = world.calls_since(&mut seen);
    // The image that is gone counts as one of x86_64.
    assert_eq!(calls[&Operation::GetInstanceTypesFromInstanceRequirements], SETS as usize * 2);
    assert_eq!(calls[&Operation::DescribeImages], 1);

    let pages = first.groups.len().div_ceil(100);
    let mut asked_again = BTreeSet::new();
    let mut lists = 0;
    // All lists grow old at once, after a day.
    for wait in [Duration::from_mins(1), Duration::from_hours(23)] {
        tokio::time::sleep(wait).await;
        for round in 0..120 {
            discovery.refresh().await.expect("sees");
            let calls = world.calls_since(&mut seen);
            assert!(calls.values().sum::<usize>() <= pages + MORE, "refresh {round}: {calls:?}");
            lists += calls.get(&Operation::GetInstanceTypesFromInstanceRequirements).unwrap_or(&0);
            asked_again.extend(calls.into_keys());
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
    }
    assert_eq!(lists, SETS as usize * 2, "each once, one a refresh");
    for operation in [
        Operation::DescribeImages,
        Operation::DescribeInstanceTypes,
        Operation::DescribeLaunchConfigurations,
        Operation::DescribeLaunchTemplateVersions,
    ] {
        assert!(asked_again.contains(&operation), "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_group_refers_to_any_more_is_forgotten() {
    let world = world([ours("stays")]).await;
    let version = TemplateData::of("c5.large");
    let template =
        TemplateSpec::named("pinned").version(version.clone()).version(version.clone()).version(version);
    world.sim.add_template(template);
    world.sim.add_launch_configuration(LaunchConfigurationSpec::named("old", "c5.large"));
    let any = TemplateData::meeting(Requirements::at_least(2, 8192).at_most(2, 8192));
    let any = TemplateSpec::named("any").version(any);
    world.sim.add_template(any);
    let discovery = world.discovery(by_tag());
    let mut seen = 0;
    let mut costs = Vec::new();
    for _ in 0..3 {
        for group in [
            ours("pinned").launch_template("pinned", "2"),
            ours("old").launch_configuration("old"),
            ours("any").launch_template("any", "1"),
        ] {
            world.sim.add_group(group);
        }
        world.calls_since(&mut seen);
        assert!(is_known(&discovery.refresh().await.expect("sees")));
        let mut calls = world.calls_since(&mut seen);
        calls.remove(&Operation::DescribeLifecycleHooks);
        costs.push(calls);
        for group in ["pinned", "old", "any"] {
            world.sim.remove_group(group);
        }
        discovery.refresh().await.expect("sees");
    }
    for operation in [
        Operation::DescribeImages,
        Operation::DescribeInstanceTypes,
        Operation::DescribeLaunchConfigurations,
        Operation::DescribeLaunchTemplateVersions,
        Operation::GetInstanceTypesFromInstanceRequirements,
    ] {
        assert!(costs.iter().all(|calls| calls.contains_key(&operation)), "{operation}: {costs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_are_learned_from_the_second_look_on_which_comes_soon() {
    let mut world = world([ours("web").size(0, 5, 1).hook(HookSpec::terminating("ebbtide"))]).await;
    let began = world.clock.now();
    world.run();
    world.until(|_| true).await;
    assert_eq!(world.sim.calls(Operation::DescribeLifecycleHooks), 0);
    world.sim.until(|sim| sim.calls(Operation::DescribeLifecycleHooks) > 0).await;
    assert!(world.clock.now().duration_since(began).as_secs() <= 10);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_exist_is_not_asked_for_at_every_refresh() {
    let world = world([ours("unknown").template("x99.huge")]).await;
    let discovery = world.discovery(by_tag());
    discovery.refresh().await.expect("sees");
    let asked = world.sim.calls(Operation::DescribeInstanceTypes);
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        discovery.refresh().await.expect("sees");
    }
    assert_eq!(world.sim.calls(Operation::DescribeInstanceTypes), asked);
}
