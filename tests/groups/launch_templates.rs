//! Launch templates that cannot be read all at once: they are read one by one, few at a time.

use std::time::Duration;

use ebbtide::sim::aws::{Event, Operation, TemplateData, TemplateSpec};
use ebbtide::sim::world::World;

use crate::node::{label, try_template};
use crate::scene::{Scene, eventually, group};

const HOUR: Duration = Duration::from_hours(1);

const GROUPS: usize = 60;

/// Versions read one by one in a refresh.
const SINGLY: usize = 25;

fn name(number: usize) -> String {
    format!("group-{number}")
}

fn world() -> (World, Vec<ebbtide::sim::aws::GroupSpec>) {
    let world = World::new(1);
    let groups = (0..GROUPS).map(|n| {
        world.aws.add_template(TemplateSpec::named(name(n)).version(TemplateData::of("m5.large")));
        group(&name(n), 0).launch_template(name(n), ["$Latest", "$Default", "1"][n % 3])
    });
    let groups = groups.collect();
    (world, groups)
}

/// The type of the node that a group would get, if that is known.
async fn instance_type(scene: &Scene, group: &str) -> Option<String> {
    try_template(scene, group).await.ok().map(|node| label(&node, "node.kubernetes.io/instance-type"))
}

async fn all_known(scene: &Scene) -> bool {
    for number in 0..GROUPS {
        if instance_type(scene, &name(number)).await.is_none() {
            return false;
        }
    }
    true
}

/// Reads of launch templates in each refresh: of all, and of single ones.
fn reads(world: &World, from: usize) -> Vec<(usize, usize)> {
    let mut refreshes = Vec::new();
    for entry in world.aws.journal().into_iter().skip(from) {
        match entry.what {
            Event::Called { operation: Operation::DescribeAutoScalingGroups, .. } => refreshes.push((0, 0)),
            Event::Called { operation: Operation::DescribeLaunchTemplateVersions, arguments, .. } => {
                let Some(last) = refreshes.last_mut() else { continue };
                let is_single = arguments.contains_key("LaunchTemplateId");
                *(if is_single { &mut last.1 } else { &mut last.0 }) += 1;
            }
            _ => {}
        }
    }
    refreshes
}

#[tokio::test(start_paused = true)]
async fn templates_that_are_hidden_are_read_one_by_one_and_few_at_a_time() {
    let (world, groups) = world();
    world.aws.hide_templates(true);
    let scene = Scene::on(world, groups).await;
    assert!(eventually(Duration::from_mins(1), || all_known(&scene)).await);
    let began = scene.world.aws.journal().len();
    tokio::time::sleep(HOUR).await;
    let refreshes = reads(&scene.world, began);
    assert!(refreshes.iter().all(|&(all, single)| all <= 1 && single <= SINGLY), "{refreshes:?}");
    let (all, single) = refreshes.iter().fold((0, 0), |sum, last| (sum.0 + last.0, sum.1 + last.1));
    assert!((10..=12).contains(&all), "{all}: tried again every five minutes");
    let moving = GROUPS / 3 * 2;
    assert!((10 * moving..=12 * moving).contains(&single), "{single}: what cannot change is read once");

    let first = name(0);
    scene.world.aws.add_template_version(&first, TemplateData::of("c5.large"));
    let seen = || async { instance_type(&scene, &first).await.as_deref() == Some("c5.large") };
    assert!(eventually(Duration::from_mins(8), seen).await);
    assert_eq!(instance_type(&scene, &name(1)).await.as_deref(), Some("m5.large"));

    // And back.
    scene.world.aws.hide_templates(false);
    let shown = scene.world.aws.journal().len();
    let in_pages =
        || async { reads(&scene.world, shown).iter().any(|&(all, single)| all > 0 && single == 0) };
    assert!(eventually(Duration::from_mins(10), in_pages).await, "all are read at once again");
    let began = scene.world.aws.journal().len();
    tokio::time::sleep(HOUR).await;
    assert!(reads(&scene.world, began).iter().all(|&(all, single)| all <= 1 && single == 0));
    assert!(all_known(&scene).await);
}

#[tokio::test(start_paused = true)]
async fn templates_that_were_read_stay_when_that_is_denied_later() {
    let (world, groups) = world();
    let scene = Scene::on(world, groups).await;
    assert!(all_known(&scene).await);
    scene.world.aws.deny(Operation::DescribeLaunchTemplateVersions, true);
    tokio::time::sleep(HOUR).await;
    assert!(all_known(&scene).await);
}

#[tokio::test(start_paused = true)]
async fn templates_that_may_not_be_read_at_all_are_asked_for_every_five_minutes() {
    let (world, groups) = world();
    world.aws.deny(Operation::DescribeLaunchTemplateVersions, true);
    let scene = Scene::on(world, groups).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let began = scene.world.aws.journal().len();
    tokio::time::sleep(HOUR).await;
    let refreshes = reads(&scene.world, began);
    assert!(refreshes.iter().all(|&(all, single)| all <= 1 && single <= SINGLY), "{refreshes:?}");
    let single: usize = refreshes.iter().map(|last| last.1).sum();
    assert!(single <= 12 * GROUPS, "{single}");
    scene.world.aws.deny(Operation::DescribeLaunchTemplateVersions, false);
    assert!(eventually(Duration::from_mins(9), || all_known(&scene)).await);
}
