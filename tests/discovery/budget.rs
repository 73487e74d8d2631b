//! How many calls looks cost.

use std::time::Duration;

use ebbtide::groups::Snapshot;
use ebbtide::groups::discovery::Discovery;
use ebbtide::sim::aws::{HookSpec, Operation, TemplateData, TemplateSpec};

use crate::world::{World, by_tag, ours, world};

const GROUPS: usize = 1_000;
const INSTANCES: u32 = 15;
const TYPES: [&str; 3] = ["m5.large", "c5.large", "t3.medium"];
/// Groups that pin a version that is neither the latest nor the default one.
const PINNED: usize = 5;
/// Other calls that a look may make, however many groups there are.
const MORE: usize = 3;

/// What the first look may cost, so that a start is quick: pages of groups, of versions and of types, and what is pinned.
fn first_look(versions: usize) -> usize {
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
    let first = discovery.look().await.expect("sees");
    assert_eq!((first.groups.len(), first.by_instance.len()), (GROUPS, GROUPS * INSTANCES as usize));
    assert!(is_known(&first));
    let calls = world.calls_since(&mut seen);
    assert!(calls.values().sum::<usize>() <= first_look(GROUPS), "{calls:?}");
    assert_eq!(calls[&Operation::DescribeAutoScalingGroups], GROUPS.div_ceil(100));

    costs_pages_and_few_more(&world, &discovery, 1).await;
}

/// Looks once a minute, and counts.
async fn costs_pages_and_few_more(world: &World, discovery: &Discovery, looks: usize) {
    let mut seen = 0;
    world.calls_since(&mut seen);
    for look in 0..looks {
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(is_known(&discovery.look().await.expect("sees")));
        let calls = world.calls_since(&mut seen);
        assert!(calls.values().sum::<usize>() <= GROUPS.div_ceil(100) + MORE, "look {look}: {calls:?}");
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
    discovery.look().await.expect("sees");
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
        world.discovery(by_tag()).look().await.expect("sees");
        let calls = world.calls_since(&mut seen);
        assert!(calls.values().sum::<usize>() <= first_look(versions), "{aliases:?}: {calls:?}");
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
