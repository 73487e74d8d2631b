//! What the read-only operations of Auto Scaling show.

use aws_sdk_autoscaling::types::Filter;

use super::*;

fn filter(name: &str, values: &[&str]) -> Filter {
    Filter::builder().name(name).set_values(Some(values.iter().map(|v| (*v).to_owned()).collect())).build()
}

async fn names(bench: &Bench, filters: Vec<Filter>) -> Vec<String> {
    let answer =
        bench.asg.describe_auto_scaling_groups().set_filters(Some(filters)).send().await.expect("groups");
    answer
        .auto_scaling_groups()
        .iter()
        .filter_map(|g| g.auto_scaling_group_name().map(str::to_owned))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_group_shows_everything_about_itself_and_its_instances() {
    let bench = bench();
    bench.aws.add_group(
        web()
            .size(1, 10, 2)
            .zones(["us-east-1a", "us-east-1b"])
            .tag("team", "a&b")
            .suspended("AZRebalance")
            .hook(HookSpec::terminating("ebbtide")),
    );
    let answer = bench
        .asg
        .describe_auto_scaling_groups()
        .auto_scaling_group_names("web")
        .send()
        .await
        .expect("the group");
    let [group] = answer.auto_scaling_groups() else { panic!("one group") };
    assert_eq!((group.min_size(), group.max_size(), group.desired_capacity()), (Some(1), Some(10), Some(2)));
    assert_eq!(group.default_cooldown(), Some(300));
    assert_eq!(group.availability_zones(), ["us-east-1a", "us-east-1b"]);
    assert_eq!(group.suspended_processes()[0].process_name(), Some("AZRebalance"));
    assert_eq!(group.tags()[0].value(), Some("a&b"));
    assert_eq!(
        group.created_time().map(aws_sdk_autoscaling::primitives::DateTime::secs),
        Some(1_800_000_000)
    );
    let template = group.launch_template().expect("a template");
    assert_eq!((template.launch_template_name(), template.version()), (Some("web"), Some("1")));
    let zones: Vec<_> = group.instances().iter().filter_map(|i| i.availability_zone()).collect();
    assert_eq!(zones.len(), 2);
    assert_ne!(zones[0], zones[1], "instances are spread over the zones");
    let instance = &group.instances()[0];
    assert_eq!(instance.instance_type(), Some("m5.large"));
    assert_eq!(instance.lifecycle_state().map(|s| s.as_str()), Some("InService"));
    assert_eq!(instance.health_status(), Some("Healthy"));
    assert_eq!(instance.protected_from_scale_in(), Some(false));
    assert_eq!(instance.launch_template().and_then(|t| t.version()), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn groups_come_in_pages_and_an_unknown_token_is_refused() {
    let bench = bench();
    for number in 0..205 {
        bench.aws.add_group(GroupSpec::named(format!("group {number}")));
    }
    let pages = bench.asg.describe_auto_scaling_groups().max_records(100).into_paginator().send();
    let pages = pages.collect::<Result<Vec<_>, _>>().await.expect("all pages");
    let sizes: Vec<_> = pages.iter().map(|page| page.auto_scaling_groups().len()).collect();
    assert_eq!(sizes, [100, 100, 5]);
    assert_eq!(bench.aws.calls(Operation::DescribeAutoScalingGroups), 3);

    let error = bench.asg.describe_auto_scaling_groups().next_token("x").send().await.expect_err("no token");
    assert!(error.into_service_error().is_invalid_next_token());
    let error = bench.asg.describe_auto_scaling_groups().max_records(101).send().await.expect_err("too many");
    assert_eq!(refusal(&error).0, "ValidationError");
}

#[tokio::test(start_paused = true)]
async fn filters_are_all_required_and_any_of_their_values_will_do() {
    let bench = bench();
    bench.aws.add_group(GroupSpec::named("a").tag("enabled", "true").tag("cluster", "one"));
    bench.aws.add_group(GroupSpec::named("b").tag("enabled", "true").tag("cluster", "two"));
    bench.aws.add_group(GroupSpec::named("c").tag("cluster", "one"));
    assert_eq!(names(&bench, vec![filter("tag-key", &["enabled"])]).await, ["a", "b"]);
    assert_eq!(names(&bench, vec![filter("tag-key", &["enabled", "cluster"])]).await, ["a", "b", "c"]);
    assert_eq!(names(&bench, vec![filter("tag:cluster", &["one"])]).await, ["a", "c"]);
    assert_eq!(names(&bench, vec![filter("tag-value", &["two"])]).await, ["b"]);
    let both = vec![filter("tag-key", &["enabled"]), filter("tag:cluster", &["one", "three"])];
    assert_eq!(names(&bench, both).await, ["a"]);
    let wrong = bench.asg.describe_auto_scaling_groups().filters(filter("name", &["a"])).send().await;
    assert_eq!(refusal(&wrong.expect_err("no such filter")).0, "ValidationError");
}

#[tokio::test(start_paused = true)]
async fn a_mixed_instances_policy_is_shown_instead_of_the_template() {
    let bench = bench();
    let requirements = Requirements::at_least(2, 8192).at_most(4, 16384);
    bench
        .aws
        .add_group(GroupSpec::named("mixed").mixed(MixedSpec::of(["c5.large", "m5.large"]).on_demand(1, 50)));
    bench.aws.add_group(GroupSpec::named("wanted").mixed(MixedSpec::meeting(requirements)));
    let answer = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
    let [mixed, wanted] = answer.auto_scaling_groups() else { panic!("two groups") };
    assert!(mixed.launch_template().is_none());
    let policy = mixed.mixed_instances_policy().expect("a policy");
    let template = policy.launch_template().expect("a template");
    let types: Vec<_> = template.overrides().iter().filter_map(|o| o.instance_type()).collect();
    assert_eq!(types, ["c5.large", "m5.large"]);
    let named = template.launch_template_specification().and_then(|t| t.launch_template_name());
    assert_eq!(named, Some("mixed"));
    let distribution = policy.instances_distribution().expect("a distribution");
    assert_eq!(distribution.on_demand_base_capacity(), Some(1));
    assert_eq!(distribution.on_demand_percentage_above_base_capacity(), Some(50));
    let template = wanted.mixed_instances_policy().and_then(|p| p.launch_template()).expect("a template");
    let wanted = template.overrides()[0].instance_requirements().expect("requirements");
    assert_eq!(wanted.v_cpu_count().and_then(|r| r.max()), Some(4));
    assert_eq!(wanted.memory_mib().and_then(|r| r.min()), Some(8192));
}

#[tokio::test(start_paused = true)]
async fn a_mixed_group_keeps_its_on_demand_share() {
    let bench = bench();
    let policy = MixedSpec::of(["c5.large"]).on_demand(1, 50);
    bench.aws.add_group(web().size(0, 10, 5).mixed(policy));
    let group = bench.aws.group("web").expect("the group");
    assert_eq!(group.instances.iter().filter(|i| i.spot).count(), 2);
    assert!(group.instances.iter().all(|i| i.instance_type == "c5.large"));
}

#[tokio::test(start_paused = true)]
async fn instances_tell_their_group_and_unknown_ones_are_left_out() {
    let bench = bench();
    bench.aws.add_group(web());
    let standby = bench.aws.add_instance("web", LifecycleState::WarmedStopped).expect("an instance");
    let ids = [standby.clone(), "i-00000000000000000".to_owned()];
    let answer = bench
        .asg
        .describe_auto_scaling_instances()
        .set_instance_ids(Some(ids.to_vec()))
        .send()
        .await
        .expect("instances");
    let [instance] = answer.auto_scaling_instances() else { panic!("one instance") };
    assert_eq!(instance.instance_id(), Some(standby.as_str()));
    assert_eq!(instance.auto_scaling_group_name(), Some("web"));
    assert_eq!(instance.lifecycle_state(), Some("Warmed:Stopped"));
    assert_eq!(instance.health_status(), Some("HEALTHY"));

    let pages = bench.asg.describe_auto_scaling_instances().max_records(2).into_paginator().send();
    let pages = pages.collect::<Result<Vec<_>, _>>().await.expect("all pages");
    assert_eq!(pages.iter().map(|p| p.auto_scaling_instances().len()).collect::<Vec<_>>(), [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn activities_are_paged_newest_first() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 3));
    bench
        .asg
        .set_desired_capacity()
        .auto_scaling_group_name("web")
        .desired_capacity(2)
        .send()
        .await
        .expect("ok");
    bench.pass(20).await;
    let ask = || bench.asg.describe_scaling_activities().auto_scaling_group_name("web");
    let pages = ask().max_records(3).into_paginator().send();
    let pages = pages.collect::<Result<Vec<_>, _>>().await.expect("all pages");
    let all: Vec<_> = pages.iter().flat_map(|page| page.activities()).collect();
    assert_eq!(pages.iter().map(|page| page.activities().len()).collect::<Vec<_>>(), [3, 1]);
    let description = all[0].description().expect("a description");
    assert!(description.starts_with("Terminating EC2 instance: i-"), "{description}");
    assert_eq!(all[0].status_code().map(|s| s.as_str()), Some("InProgress"));
    let cause = all[0].cause().expect("a cause");
    assert!(cause.contains("changing the desired capacity from 3 to 2."), "{cause}");
    assert!(cause.ends_with("was selected for termination."), "{cause}");
    let launches = all[1..].iter().all(|a| {
        a.progress() == Some(100)
            && a.end_time().is_some()
            && a.description().is_some_and(|d| d.starts_with("Launching a new EC2 instance: i-"))
    });
    assert!(launches, "{all:?}");
    let error = ask().auto_scaling_group_name("nope").send().await.expect_err("no such group");
    assert_eq!(
        refusal(&error),
        (
            "ValidationError".to_owned(),
            "AutoScalingGroup name not found - AutoScalingGroup nope not found".to_owned()
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_launch_into_the_warm_pool_and_one_from_it_are_told_apart_from_others() {
    let bench = bench();
    bench.aws.add_group(web().warm_pool(WarmPoolSpec::stopped().prepared(3)));
    bench.pass(60).await;
    bench.aws.set_desired("web", 3);
    bench.pass(60).await;
    let ask = bench.asg.describe_scaling_activities().auto_scaling_group_name("web");
    let all = ask.send().await.expect("activities").activities.unwrap_or_default();
    let words = |a: &aws_sdk_autoscaling::types::Activity| {
        a.description().and_then(|d| d.split_once(':')).map(|(words, _)| words.to_owned())
    };
    let all: Vec<_> = all.iter().filter_map(words).collect();
    let cold = "Launching a new EC2 instance";
    let expected = [
        format!("{cold} from warm pool"),
        format!("{cold} into warm pool"),
        cold.to_owned(),
        cold.to_owned(),
    ];
    assert_eq!(all, expected);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_made_anew_under_a_name_has_another_arn() {
    let bench = bench();
    let mut arns = std::collections::BTreeSet::new();
    for _ in 0..2 {
        bench.aws.remove_group("web");
        bench.aws.add_group(web());
        let groups = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
        let arn = groups.auto_scaling_groups()[0].auto_scaling_group_arn().expect("an ARN").to_owned();
        let ask = bench.asg.describe_scaling_activities().send().await.expect("activities");
        let mut of = ask.activities().iter().map(|activity| activity.auto_scaling_group_arn());
        assert!(of.all(|of| of == Some(arn.as_str())), "its activities have it as well");
        arns.insert(arn);
    }
    assert_eq!(arns.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn tags_of_a_group_can_be_written() {
    let bench = bench();
    bench.aws.add_group(web().tag("old", "1"));
    let tag = |group: &str, key: &str| {
        let tag = aws_sdk_autoscaling::types::Tag::builder().resource_id(group).key(key).value("v");
        tag.resource_type("auto-scaling-group").propagate_at_launch(true).build()
    };
    bench.asg.create_or_update_tags().tags(tag("web", "new")).send().await.expect("tagged");
    let half = bench.asg.create_or_update_tags().tags(tag("web", "half")).tags(tag("nope", "x")).send().await;
    assert_eq!(refusal(&half.expect_err("no such group")).0, "ValidationError");
    let answer = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
    let tags = answer.auto_scaling_groups()[0].tags().iter();
    let tags: Vec<_> = tags.map(|t| (t.key(), t.value(), t.propagate_at_launch())).collect();
    assert_eq!(tags, [(Some("new"), Some("v"), Some(true)), (Some("old"), Some("1"), Some(true))]);
}

#[tokio::test(start_paused = true)]
async fn a_launch_configuration_is_shown_and_used() {
    let bench = bench();
    bench.aws.add_launch_configuration(
        LaunchConfigurationSpec::named("lc", "t3.medium").volume("/dev/xvda", 80).spot("0.03"),
    );
    bench.aws.add_group(web().launch_configuration("lc"));
    let answer = bench
        .asg
        .describe_launch_configurations()
        .launch_configuration_names("lc")
        .send()
        .await
        .expect("configurations");
    let [configuration] = answer.launch_configurations() else { panic!("one") };
    assert_eq!(configuration.instance_type(), Some("t3.medium"));
    assert_eq!(configuration.spot_price(), Some("0.03"));
    let volume = configuration.block_device_mappings()[0].ebs().and_then(|ebs| ebs.volume_size());
    assert_eq!(volume, Some(80));
    let groups = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
    let group = &groups.auto_scaling_groups()[0];
    assert_eq!(group.launch_configuration_name(), Some("lc"));
    assert_eq!(group.instances()[0].launch_configuration_name(), Some("lc"));
    assert_eq!(group.instances()[0].instance_type(), Some("t3.medium"));
}
