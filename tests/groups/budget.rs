//! What refreshes cost in calls to AWS.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide::sim::aws::{Event, Operation, TemplateData, TemplateSpec};
use ebbtide::sim::world::World;

use crate::scene::{SOON, Scene, group};

const GROUPS: usize = 250;

/// Other calls that every refresh may make, however many groups there are.
const MORE: usize = 3;

fn calls(world: &World, from: usize) -> BTreeMap<Operation, usize> {
    let mut calls = BTreeMap::new();
    for entry in world.aws.journal().into_iter().skip(from) {
        if let Event::Called { operation, .. } = entry.what {
            *calls.entry(operation).or_default() += 1;
        }
    }
    calls
}

#[tokio::test(start_paused = true)]
async fn looks_at_250_groups_cost_three_pages_and_a_few_calls() {
    let world = World::new(1);
    let mut groups = Vec::new();
    for n in 0..GROUPS {
        let (name, instance_type) = (format!("group-{n}"), ["m5.large", "c5.large", "r5.large"][n % 3]);
        let versions = [instance_type, "m5.xlarge", "t3.medium"].map(TemplateData::of);
        let versions = versions.into_iter().fold(TemplateSpec::named(&name), TemplateSpec::version);
        world.aws.add_template(versions);
        // Three pin a version that is neither the latest nor the default.
        let version = if n < 3 { "2" } else { ["$Latest", "$Default"][n % 2] };
        groups.push(group(&name, 0).launch_template(&name, version));
    }
    let scene = Scene::on(world, groups).await;
    assert_eq!(scene.groups().await.expect("groups").len(), GROUPS);
    let first = calls(&scene.world, 0);
    assert_eq!(first[&Operation::DescribeAutoScalingGroups], 3);
    // Two versions of each template, 200 a page, and those that are pinned.
    assert!(first[&Operation::DescribeLaunchTemplateVersions] <= (2 * GROUPS).div_ceil(200) + 3, "{first:?}");
    assert_eq!(first[&Operation::DescribeInstanceTypes], 1, "{first:?}");
    assert!(!first.contains_key(&Operation::DescribeTags), "marks are looked for later: {first:?}");

    // Hooks are learned a few a refresh; none of it changes as time goes by.
    let began = scene.world.aws.journal().len();
    tokio::time::sleep(Duration::from_hours(1)).await;
    let hour = calls(&scene.world, began);
    let pages = hour[&Operation::DescribeAutoScalingGroups];
    let refreshes = pages.div_ceil(3);
    let others: usize = hour.values().sum::<usize>() - pages;
    assert!(refreshes >= 59, "{hour:?}");
    assert!(others <= MORE * refreshes, "{hour:?}");
    assert!(
        scene.world.until(SOON, |w| calls(w, began)[&Operation::DescribeAutoScalingGroups] > pages).await
    );
}
