//! What becomes of refreshes and templates while EC2 hangs, refuses some things, or loses its place.

use std::time::Duration;

use ebbtide::aws::{AwsError, PagesRead, TagSelector, TemplateAliases};
use ebbtide::groups::Snapshot;
use ebbtide::sim::aws::{
    GroupSpec, LaunchConfigurationSpec, MixedSpec, Operation, Requirements, TemplateData, TemplateSpec,
    Trouble, WarmPoolSpec, Which,
};
use ebbtide::telemetry::captured;
use jiff::Timestamp;
use tracing::Level;

use crate::templates::{TYPE, label, node};
use crate::world::{INTERVAL, World, by_tag, ours, world};

/// What discovery asks EC2.
const EC2: [Operation; 4] = [
    Operation::DescribeImages,
    Operation::DescribeInstanceTypes,
    Operation::DescribeLaunchTemplateVersions,
    Operation::GetInstanceTypesFromInstanceRequirements,
];

/// Groups that refer to launch templates of their own: more than two pages.
const MANY: usize = 450;

fn is_known(snapshot: &Snapshot, group: &str) -> bool {
    matches!(snapshot.groups[group].template, Some(Ok(_)))
}

fn all_known(snapshot: &Snapshot) -> bool {
    snapshot.groups.keys().all(|group| is_known(snapshot, group))
}

fn any(vcpus: u32) -> Requirements {
    Requirements::at_least(vcpus, 4096).at_most(vcpus, 65536)
}

fn seconds(world: &World, since: Timestamp) -> i64 {
    world.clock.now().duration_since(since).as_secs()
}

async fn many() -> World {
    let world = world([]).await;
    for n in 0..MANY {
        let name = format!("group-{n:03}");
        world.sim.add_template(TemplateSpec::named(&name).version(TemplateData::of("m5.large")));
        world.sim.add_group(ours(&name).launch_template(&name, "$Latest"));
    }
    world
}

#[tokio::test(start_paused = true)]
async fn an_ec2_that_hangs_holds_up_neither_the_first_view_nor_later_ones() {
    let mut world = world([ours("web").size(0, 9, 2), ours("api")]).await;
    world.sim.hang(&EC2, true);
    let began = world.clock.now();
    world.run();
    let first = world.until(|_| true).await;
    assert!(seconds(&world, began) <= 6, "{} s", seconds(&world, began));
    assert_eq!((first.groups.len(), is_known(&first, "web")), (2, false));

    let refreshes = world.sim.calls(Operation::DescribeAutoScalingGroups);
    tokio::time::sleep(INTERVAL * 10).await;
    let refreshes = world.sim.calls(Operation::DescribeAutoScalingGroups) - refreshes;
    assert!((8..=10).contains(&refreshes), "{refreshes}: an EC2 that is away is not asked any sooner");
    let age = world.clock.now().duration_since(world.groups.latest().expect("published").taken_at);
    assert!(age.as_secs() <= 70, "{age:#}");

    world.sim.hang(&EC2, false);
    let back = world.clock.now();
    world.until(all_known).await;
    assert!(seconds(&world, back) <= 70, "{} s", seconds(&world, back));
}

/// As where a stand-in for AWS pays no heed to tokens.
#[tokio::test(start_paused = true)]
async fn a_page_that_leads_to_itself_ends_each_list_with_an_error() {
    let world = world([ours("web")]).await;
    world.sim.trouble(Which::any().times(100), Trouble::SameToken);
    let ends = |operation, error: Option<AwsError>| {
        assert!(matches!(error, Some(AwsError::Unreadable { .. })), "{operation}: {error:?}");
        assert_eq!(world.sim.calls(operation), 2, "{operation}");
    };
    let (aws, web, now) = (&world.aws, "web".into(), world.clock.now());
    let (types, any) = (["m5.large".to_owned()], TagSelector { tags: [].into() });
    ends(
        Operation::DescribeAutoScalingGroups,
        aws.describe_tagged_groups(&any, &PagesRead::default()).await.err(),
    );
    ends(Operation::DescribeWarmPool, aws.warm_pool(&web).await.err());
    let activities = aws.scaling_activities(&web, Timestamp::UNIX_EPOCH, 1_000, |_| false);
    ends(Operation::DescribeScalingActivities, activities.await.err());
    ends(Operation::DescribeTags, aws.tagged_instances("protected").await.err());
    ends(Operation::DescribeLaunchConfigurations, aws.launch_configurations(&["old".to_owned()]).await.err());
    ends(Operation::DescribeInstanceTypes, aws.instance_types(&types).await.err());
    ends(Operation::DescribeSpotPriceHistory, aws.spot_prices(&types, "Linux/UNIX", now).await.err());
    let first = aws.launch_template_page(TemplateAliases::Both, None).await.expect("a page");
    let second = aws.launch_template_page(TemplateAliases::Both, first.next);
    ends(Operation::DescribeLaunchTemplateVersions, second.await.err());
}

#[tokio::test(start_paused = true)]
async fn a_launch_configuration_is_known_though_the_first_page_is_empty() {
    let mut world = world([]).await;
    world.sim.add_launch_configuration(LaunchConfigurationSpec::named("old", "c5.large"));
    world.sim.add_group(ours("web").launch_configuration("old"));
    let pages = Which::of(&[Operation::DescribeLaunchConfigurations]).times(1);
    world.sim.trouble(pages, Trouble::EmptyPage);
    world.run();
    let first = world.until(|snapshot| snapshot.is_complete).await;
    assert!(is_known(&first, "web"));
}

#[tokio::test(start_paused = true)]
async fn groups_whose_pages_lead_to_themselves_are_told_as_not_described_and_asked_for_again() {
    let (log, _guard) = captured::log(Level::WARN);
    let mut world = world([ours("web")]).await;
    let pages = Which::of(&[Operation::DescribeAutoScalingGroups]).times(2);
    world.sim.trouble(pages, Trouble::SameToken);
    world.run();
    world.until(|snapshot| snapshot.groups.contains_key("web")).await;
    let told = log.text();
    assert!(told.contains("cannot describe Auto Scaling groups"), "{told}");
    assert!(told.contains("the token of the next page is that of this one"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn one_call_that_hangs_keeps_nothing_else_from_being_known() {
    for hanging in EC2 {
        let mut world = world([]).await;
        world.sim.add_launch_configuration(LaunchConfigurationSpec::named("old", "c5.large"));
        world.sim.add_template(TemplateSpec::named("any").version(TemplateData::untyped()));
        world.sim.add_template(TemplateSpec::named("plain").version(TemplateData::of("m5.large")));
        for group in [
            ours("configuration").launch_configuration("old"),
            ours("latest").launch_template("plain", "$Latest"),
            ours("attributes").launch_template("any", "1").mixed(MixedSpec::meeting(any(2))),
        ] {
            world.sim.add_group(group);
        }
        world.sim.hang(&[hanging], true);
        world.run();
        let expected = match hanging {
            Operation::DescribeInstanceTypes => [true; 3],
            Operation::DescribeLaunchTemplateVersions => [true, false, false],
            _ => [true, true, false],
        };
        let known = |snapshot: &Snapshot| {
            ["configuration", "latest", "attributes"].map(|group| is_known(snapshot, group))
        };
        world.until(|snapshot| known(snapshot) == expected).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(known(&world.groups.latest().expect("published")), expected, "{hanging}");
        if hanging != Operation::DescribeInstanceTypes {
            assert!(world.sim.calls(Operation::DescribeInstanceTypes) > 0, "{hanging}");
        }
        world.sim.hang(&[hanging], false);
        let back = world.clock.now();
        world.until(all_known).await;
        assert!(seconds(&world, back) <= 130, "{hanging}: {} s", seconds(&world, back));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_ec2_tells_all_templates_over_a_few_looks_that_come_soon() {
    let mut world = many().await;
    // Two pages fit into a refresh, three do not.
    world.sim.delay(Duration::from_secs(2), Duration::ZERO);
    let began = world.clock.now();
    world.run();
    let first = world.until(|_| true).await;
    assert!(!all_known(&first));
    world.until(all_known).await;
    assert!(seconds(&world, began) <= 45, "{} s", seconds(&world, began));
    let pages = world.sim.calls(Operation::DescribeLaunchTemplateVersions);
    assert!(pages <= MANY.div_ceil(200) + 1, "{pages}: what was read is not read again");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_has_grown_too_old_starts_the_pass_over_and_is_no_refusal() {
    let world = many().await;
    world.sim.expire_tokens(Operation::DescribeLaunchTemplateVersions, 1);
    assert!(all_known(&world.discovery(by_tag()).refresh().await.expect("sees")));
    // Two pages in vain, then all three.
    assert_eq!(world.sim.calls(Operation::DescribeLaunchTemplateVersions), 2 + MANY.div_ceil(200));
}

#[tokio::test(start_paused = true)]
async fn where_pages_end_early_again_and_again_versions_are_read_one_by_one() {
    let mut world = many().await;
    world.sim.expire_tokens(Operation::DescribeLaunchTemplateVersions, u32::MAX);
    world.run();
    world.until(all_known).await;
    let mut seen = 0;
    world.calls_since(&mut seen);
    tokio::time::sleep(Duration::from_hours(1)).await;
    let reads = world.calls_since(&mut seen)[&Operation::DescribeLaunchTemplateVersions];
    assert!(reads <= 13 * (MANY + 4), "{reads}: each, and a pass in vain, every five minutes");
    world.sim.add_template_version("group-007", TemplateData::of("c5.large"));
    let is_new =
        |snapshot: &Snapshot| label(&node(snapshot, "group-007"), TYPE).as_deref() == Some("c5.large");
    world.until(is_new).await;
}

fn meeting(name: &str, requirements: Requirements) -> GroupSpec {
    ours(name).template_data(TemplateData::meeting(requirements))
}

#[tokio::test(start_paused = true)]
async fn attributes_that_ec2_refuses_cost_the_other_groups_nothing() {
    let world = world([meeting("b", any(2)), meeting("c", any(4))]).await;
    // Refused: 1 to 0 vCPUs. Its key is less than those of the others.
    world.sim.add_group(meeting("a", Requirements::at_least(1, 1).at_most(0, 0)));
    let discovery = world.discovery(by_tag());
    let snapshot = discovery.refresh().await.expect("sees");
    let known = ["a", "b", "c"].map(|group| is_known(&snapshot, group));
    assert_eq!(known, [false, true, true]);
    let asked = world.sim.calls(Operation::GetInstanceTypesFromInstanceRequirements);
    assert_eq!(asked, 3);
    for _ in 0..10 {
        tokio::time::sleep(INTERVAL).await;
        discovery.refresh().await.expect("sees");
    }
    let again = world.sim.calls(Operation::GetInstanceTypesFromInstanceRequirements) - asked;
    assert_eq!(again, 2, "every five minutes");
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_described_is_asked_for_every_five_minutes_and_whole() {
    let (log, _guard) = captured::log(Level::INFO);
    let works_again = || log.text().matches("look-up works again").count();
    let refused = [Operation::DescribeInstanceTypes, Operation::DescribeLaunchConfigurations];
    let world = world([ours("typed").template("m5.large")]).await;
    // Two calls' worth.
    for n in 0..60 {
        let name = format!("configuration-{n}");
        world.sim.add_launch_configuration(LaunchConfigurationSpec::named(&name, "c5.large"));
        world.sim.add_group(ours(&name).launch_configuration(&name));
    }
    for operation in refused {
        world.sim.deny(operation, true);
    }
    let discovery = world.discovery(by_tag());
    let snapshot = discovery.refresh().await.expect("sees");
    assert!(is_known(&snapshot, "typed") && !is_known(&snapshot, "configuration-0"), "the table tells types");
    let asked = || refused.map(|operation| world.sim.calls(operation));
    assert_eq!(asked(), [1, 2]);
    for _ in 0..10 {
        tokio::time::sleep(INTERVAL).await;
        discovery.refresh().await.expect("sees");
    }
    assert!(asked()[0] <= 3 && asked()[1] <= 6, "{:?}", asked());
    assert_eq!(works_again(), 0, "nobody has asked in between");
    for operation in refused {
        world.sim.deny(operation, false);
    }
    for _ in 0..12 {
        tokio::time::sleep(INTERVAL).await;
        discovery.refresh().await.expect("sees");
    }
    assert!(all_known(&discovery.refresh().await.expect("sees")));
    assert_eq!(works_again(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_override_whose_launch_template_is_gone_costs_the_others_nothing_and_is_told_once() {
    let (log, _guard) = captured::log(Level::WARN);
    let world = world([]).await;
    world.sim.add_template(TemplateSpec::named("any").version(TemplateData::untyped()));
    let mixed = MixedSpec::of(["m5.large"]).with_template("m5.xlarge", "gone", "3");
    world.sim.add_group(ours("web").launch_template("any", "1").mixed(mixed));
    let discovery = world.discovery(by_tag());
    for _ in 0..10 {
        let snapshot = discovery.refresh().await.expect("sees");
        assert_eq!(label(&node(&snapshot, "web"), TYPE).as_deref(), Some("m5.large"));
        tokio::time::sleep(INTERVAL).await;
    }
    let told: Vec<_> =
        log.text().lines().filter(|line| line.contains("an override")).map(str::to_owned).collect();
    assert!(told.len() == 1 && told[0].contains("version 3 of launch template gone"), "{told:?}");
    world.sim.add_template(
        TemplateSpec::named("gone")
            .version(TemplateData::untyped())
            .version(TemplateData::untyped())
            .version(TemplateData::untyped()),
    );
    tokio::time::sleep(INTERVAL * 5).await;
    let snapshot = discovery.refresh().await.expect("sees");
    let types =
        snapshot.groups["web"].template.as_ref().and_then(|made| made.as_ref().ok()).map(|made| made.types);
    assert_eq!(types, Some(2));
}

#[tokio::test(start_paused = true)]
async fn warm_pools_that_aws_does_not_tell_of_hold_up_nobody_for_long_and_are_not_all_asked_for_at_once() {
    let mut world = world([ours("web").size(0, 9, 2)]).await;
    for n in 0..40 {
        world.sim.add_group(ours(&format!("pooled-{n}")).warm_pool(WarmPoolSpec::stopped().reusing()));
    }
    world.sim.hang(&[Operation::DescribeWarmPool], true);
    let began = world.clock.now();
    world.run();
    world.until(|_| true).await;
    assert!(seconds(&world, began) <= 7, "{} s", seconds(&world, began));
    assert_eq!(world.sim.calls(Operation::DescribeWarmPool), 8);
    world.sim.hang(&[Operation::DescribeWarmPool], false);
    tokio::time::sleep(INTERVAL * 2).await;
    assert!(world.sim.calls(Operation::DescribeWarmPool) >= 8 + 40);
}
