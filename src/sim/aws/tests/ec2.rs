//! What EC2 shows.

use aws_sdk_ec2::types::{
    ArchitectureType, Filter, InstanceRequirementsRequest, InstanceType, MemoryMiBRequest, Tag,
    VCpuCountRangeRequest, VirtualizationType,
};

use super::*;

#[tokio::test(start_paused = true)]
async fn instance_types_have_their_true_figures() {
    let bench = bench();
    let types = ["g4dn.xlarge", "inf1.xlarge", "m6g.large"].map(InstanceType::from);
    let answer = bench.ec2.describe_instance_types().set_instance_types(Some(types.to_vec())).send().await;
    let answer = answer.expect("types");
    let [gpu, chip, arm] = answer.instance_types() else { panic!("three types") };
    assert_eq!(gpu.v_cpu_info().and_then(|v| v.default_v_cpus()), Some(4));
    assert_eq!(gpu.memory_info().and_then(|m| m.size_in_mib()), Some(16384));
    let network = gpu.network_info().expect("network");
    assert_eq!(network.maximum_network_interfaces(), Some(3));
    assert_eq!(network.ipv4_addresses_per_interface(), Some(10));
    let card = &gpu.gpu_info().expect("a GPU").gpus()[0];
    assert_eq!((card.name(), card.manufacturer(), card.count()), (Some("T4"), Some("NVIDIA"), Some(1)));
    assert_eq!(gpu.instance_storage_info().and_then(|s| s.total_size_in_gb()), Some(125));
    let accelerator = &chip.inference_accelerator_info().expect("a chip").accelerators()[0];
    assert_eq!((accelerator.name(), accelerator.count()), (Some("Inferentia"), Some(1)));
    let neuron = &chip.neuron_info().expect("the same chip").neuron_devices()[0];
    assert_eq!((neuron.count(), neuron.core_info().and_then(|c| c.count())), (Some(1), Some(4)));
    let processor = arm.processor_info().expect("a processor");
    assert_eq!(processor.supported_architectures(), [ArchitectureType::Arm64]);
    assert_eq!(arm.bare_metal(), Some(false));
    assert_eq!(arm.hypervisor().map(|h| h.as_str()), Some("nitro"));
    assert!(arm.gpu_info().is_none() && arm.instance_storage_info().is_none());
}

#[tokio::test(start_paused = true)]
async fn instance_types_come_in_pages_and_unknown_ones_are_refused() {
    let bench = bench();
    let pages = bench.ec2.describe_instance_types().max_results(15).into_paginator().send();
    let pages = pages.collect::<Result<Vec<_>, _>>().await.expect("all pages");
    assert_eq!(pages.iter().map(|page| page.instance_types().len()).collect::<Vec<_>>(), [15, 5]);
    let error = bench.ec2.describe_instance_types().instance_types("x9.huge".into()).send().await;
    assert_eq!(
        refusal(&error.expect_err("no such type")),
        (
            "InvalidInstanceType".to_owned(),
            "The following supplied instance types do not exist: [x9.huge]".to_owned()
        )
    );
}

#[tokio::test(start_paused = true)]
async fn the_versions_of_one_template_can_be_chosen() {
    let bench = bench();
    let first = TemplateData::of("m5.large").volume("/dev/xvda", 80).tag("team", "web");
    let second = TemplateData::of("c5.large").spot().image("ami-2");
    let third = TemplateData::meeting(Requirements::at_least(2, 4096));
    let spec = TemplateSpec::named("shared").version(first).version(second).version(third).default_version(2);
    let id = bench.aws.add_template(spec);
    let ask = || bench.ec2.describe_launch_template_versions();

    let all = ask().launch_template_id(&id).send().await.expect("versions");
    let numbers = all.launch_template_versions().iter().filter_map(|v| v.version_number());
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
    let some = ask().launch_template_name("shared").versions("$Default").versions("1").send().await;
    let some = some.expect("versions");
    let [one, two] = some.launch_template_versions() else { panic!("two versions") };
    assert_eq!((one.default_version(), two.default_version()), (Some(false), Some(true)));
    let data = one.launch_template_data().expect("data");
    assert_eq!(data.instance_type(), Some(&InstanceType::M5Large));
    let volume = &data.block_device_mappings()[0];
    assert_eq!(volume.device_name(), Some("/dev/xvda"));
    assert_eq!(volume.ebs().and_then(|ebs| ebs.volume_size()), Some(80));
    assert_eq!(data.tag_specifications()[0].tags()[0].key(), Some("team"));
    let data = two.launch_template_data().expect("data");
    assert_eq!(data.image_id(), Some("ami-2"));
    let market = data.instance_market_options().and_then(|m| m.market_type());
    assert_eq!(market.map(|m| m.as_str()), Some("spot"));
    let latest = ask().launch_template_id(&id).versions("$Latest").send().await.expect("the latest");
    let data = latest.launch_template_versions()[0].launch_template_data().expect("data");
    let wanted = data.instance_requirements().expect("requirements");
    assert_eq!(wanted.memory_mib().and_then(|m| m.min()), Some(4096));

    let missing = ask().launch_template_id(&id).versions("4").send().await.expect_err("no such version");
    assert_eq!(refusal(&missing).0, "InvalidLaunchTemplateId.VersionNotFound");
    let missing = ask().launch_template_id("lt-1").send().await.expect_err("no such template");
    assert_eq!(refusal(&missing).0, "InvalidLaunchTemplateId.NotFound");
    let missing = ask().launch_template_name("nope").send().await.expect_err("no such template");
    assert_eq!(refusal(&missing).0, "InvalidLaunchTemplateName.NotFoundException");
}

#[tokio::test(start_paused = true)]
async fn all_templates_show_their_latest_and_default_versions_in_pages() {
    let bench = bench();
    for number in 0..3 {
        let data = || TemplateData::of("m5.large");
        bench.aws.add_template(TemplateSpec::named(format!("t{number}")).version(data()).version(data()));
    }
    bench.aws.add_group(GroupSpec::named("web"));
    let ask = || bench.ec2.describe_launch_template_versions();
    let pages = ask().versions("$Latest").versions("$Default").max_results(4).into_paginator().items().send();
    let all = pages.collect::<Result<Vec<_>, _>>().await.expect("all versions");
    assert_eq!(all.len(), 7, "two of each, one of the group's own");
    assert_eq!(bench.aws.calls(Operation::DescribeLaunchTemplateVersions), 2);
    assert_eq!(refusal(&ask().send().await.expect_err("nothing asked for")).0, "MissingParameter");
    let numbered = ask().versions("1").send().await.expect_err("a number of everything");
    assert_eq!(refusal(&numbered).0, "InvalidParameterValue");
}

#[tokio::test(start_paused = true)]
async fn types_are_found_by_requirements() {
    let bench = bench();
    let wanted = InstanceRequirementsRequest::builder()
        .v_cpu_count(VCpuCountRangeRequest::builder().min(2).max(2).build())
        .memory_mib(MemoryMiBRequest::builder().min(8192).build())
        .excluded_instance_types("r5.*")
        .build();
    let ask = |architecture: ArchitectureType| {
        let call = bench.ec2.get_instance_types_from_instance_requirements();
        let call = call.architecture_types(architecture).virtualization_types(VirtualizationType::Hvm);
        call.instance_requirements(wanted.clone()).send()
    };
    let intel = ask(ArchitectureType::X8664).await.expect("types");
    assert_eq!(
        intel.instance_types().iter().filter_map(|t| t.instance_type()).collect::<Vec<_>>(),
        ["m5.large"]
    );
    let arm = ask(ArchitectureType::Arm64).await.expect("types");
    assert_eq!(
        arm.instance_types().iter().filter_map(|t| t.instance_type()).collect::<Vec<_>>(),
        ["m6g.large"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_shown_while_it_lives_and_an_hour_longer() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 1, 1).tag("team", "web"));
    let id = bench.in_service("web").remove(0);
    let ask = || bench.ec2.describe_instances().instance_ids(&id).send();
    let state = |answer: &aws_sdk_ec2::operation::describe_instances::DescribeInstancesOutput| {
        let instance = &answer.reservations()[0].instances()[0];
        instance.state().and_then(|s| s.name()).map(|name| name.as_str().to_owned())
    };
    let answer = ask().await.expect("it");
    assert_eq!(state(&answer).as_deref(), Some("running"));
    let instance = &answer.reservations()[0].instances()[0];
    assert_eq!(instance.placement().and_then(|p| p.availability_zone()), Some("us-east-1a"));
    let name = bench.aws.instance(&id).expect("it").private_dns_name();
    assert_eq!(instance.private_dns_name(), Some(name.as_str()));
    let filter = Filter::builder().name("tag:aws:autoscaling:groupName").values("web");
    let found = bench.ec2.describe_instances().filters(filter.build()).send().await.expect("by tag");
    assert_eq!(found.reservations().len(), 1);

    let set = bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(0);
    set.send().await.expect("in range");
    bench.pass(20).await;
    assert_eq!(state(&ask().await.expect("it")).as_deref(), Some("shutting-down"));
    bench.until_state(&id, LifecycleState::Terminated).await;
    assert_eq!(state(&ask().await.expect("it")).as_deref(), Some("terminated"));
    bench.pass(3600).await;
    assert_eq!(refusal(&ask().await.expect_err("forgotten")).0, "InvalidInstanceID.NotFound");
}

fn tag(key: &str, value: Option<&str>) -> Tag {
    Tag::builder().key(key).set_value(value.map(str::to_owned)).build()
}

impl Bench {
    /// Instances and values of a tag.
    async fn tagged(&self, key: &str) -> Vec<(String, String)> {
        let filter = |name: &str, value: &str| Filter::builder().name(name).values(value).build();
        let pages = self.ec2.describe_tags().filters(filter("key", key)).max_results(5);
        let pages = pages.filters(filter("resource-type", "instance")).into_paginator().items().send();
        let tags = pages.collect::<Result<Vec<_>, _>>().await.expect("all tags").into_iter();
        tags.map(|t| (t.resource_id.expect("an id"), t.value.expect("a value"))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn instances_are_tagged_all_or_none_and_found_by_their_tags_in_pages() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 7));
    let ids = bench.in_service("web");
    let create = |ids: &[String], key: &str| {
        bench.ec2.create_tags().set_resources(Some(ids.to_vec())).tags(tag(key, Some("1"))).send()
    };
    create(&ids, "mark").await.expect("tagged");
    let all: Vec<_> = ids.iter().map(|id| (id.clone(), "1".to_owned())).collect();
    assert_eq!(bench.tagged("mark").await, all);
    assert_eq!(bench.aws.calls(Operation::DescribeTags), 2, "two pages");
    let stranger = [&ids[..1], &["i-00000000000000000".to_owned()]].concat();
    let refused = create(&stranger, "other").await.expect_err("one is not there");
    assert_eq!(refusal(&refused).0, "InvalidInstanceID.NotFound");
    assert_eq!(refusal(&create(&["x".to_owned()], "other").await.expect_err("no id")).0, "InvalidID");
    assert_eq!(refusal(&create(&ids, "aws:x").await.expect_err("reserved")).0, "InvalidParameterValue");
    assert_eq!(bench.tagged("other").await, []);
    assert_eq!(bench.aws.instance(&ids[0]).expect("it").tags["mark"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_tag_is_deleted_by_key_or_by_key_and_value_and_twice_is_no_error() {
    let bench = bench();
    bench.aws.add_group(web().tag("team", "web"));
    let ids = bench.in_service("web");
    let create = bench.ec2.create_tags().set_resources(Some(ids.clone())).tags(tag("mark", Some("1")));
    create.send().await.expect("tagged");
    let delete = |tags: Vec<Tag>| {
        let call = bench.ec2.delete_tags().set_resources(Some(ids.clone()));
        call.set_tags((!tags.is_empty()).then_some(tags)).send()
    };
    delete(vec![tag("mark", Some("2"))]).await.expect("another value");
    assert_eq!(bench.tagged("mark").await.len(), 2);
    for _ in 0..2 {
        delete(vec![tag("mark", None)]).await.expect("deleted");
        assert_eq!(bench.tagged("mark").await, []);
    }
    assert_eq!(bench.tagged("team").await.len(), 2);
    delete(vec![]).await.expect("deleted");
    assert_eq!(bench.tagged("team").await, []);
    assert_eq!(bench.tagged("aws:autoscaling:groupName").await.len(), 2, "AWS's own stay");
}

#[test]
fn no_two_instances_have_the_same_address() {
    let mut state = State::new(1);
    let addresses: std::collections::BTreeSet<_> = (0..50_000).map(|_| state.shared.address()).collect();
    assert_eq!(addresses.len(), 50_000);
}
