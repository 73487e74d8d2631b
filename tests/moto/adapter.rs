//! Every call of `ebbtide::aws`, and one refresh of discovery.

use std::sync::Arc;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_autoscaling::types::{
    InstancesDistribution, LaunchTemplate, LaunchTemplateOverrides, LaunchTemplateSpecification,
    MixedInstancesPolicy, Tag,
};
use aws_sdk_ec2::types::{
    LaunchTemplateBlockDeviceMappingRequest, LaunchTemplateEbsBlockDeviceRequest, RequestLaunchTemplateData,
};
use ebbtide::aws::{
    AutoScalingGroup, Aws, Hook, LaunchSpec, PagesRead, Source, TemplateAliases, TemplateId, TemplateRef,
    type_table,
};
use ebbtide::clock::Clock;
use ebbtide::groups::Groups;
use ebbtide::groups::discovery::Discovery;
use ebbtide::groups::hooks::Hooks;
use ebbtide::groups::selector::Selectors;
use ebbtide::template::tags::NodeTags;
use ebbtide::template::{Candidate, Facts, Settings, Template};
use jiff::Timestamp;
use k8s_pb::api::core::v1::Node;
use prost::Message;

use crate::rpcs::{capacity, label};

const TYPE: &str = "node.kubernetes.io/instance-type";
const IGNORED: &str = "the endpoint is in EBBTIDE_MOTO_ENDPOINT: run tests/moto.sh";
const REGION: &str = "us-east-1";
/// An image that moto knows.
const IMAGE: &str = "ami-12c6146b";

struct Moto {
    aws: Aws,
    autoscaling: aws_sdk_autoscaling::Client,
    ec2: aws_sdk_ec2::Client,
}

#[expect(clippy::disallowed_methods, reason = "the one setting of these tests")]
async fn moto() -> Moto {
    let endpoint = std::env::var("EBBTIDE_MOTO_ENDPOINT").expect(IGNORED);
    let config: SdkConfig = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(&endpoint)
        .load()
        .await;
    Moto {
        aws: Aws::connect(Some(REGION), Some(&endpoint), None).await.expect("has a region"),
        autoscaling: aws_sdk_autoscaling::Client::new(&config),
        ec2: aws_sdk_ec2::Client::new(&config),
    }
}

impl Moto {
    /// Makes a launch template of one version for `instance_type`, and tells its id.
    async fn template(&self, name: &str, instance_type: &str) -> String {
        let made = self
            .ec2
            .create_launch_template()
            .launch_template_name(name)
            .launch_template_data(data(instance_type, 80))
            .send()
            .await
            .expect("is made");
        made.launch_template().and_then(|made| made.launch_template_id()).expect("has an id").to_owned()
    }

    async fn group(&self, name: &str, desired: i32, template: &str, tags: &[(&str, &str)]) {
        let launch = LaunchTemplateSpecification::builder().launch_template_id(template).version("$Latest");
        self.autoscaling
            .create_auto_scaling_group()
            .auto_scaling_group_name(name)
            .min_size(0)
            .max_size(9)
            .desired_capacity(desired)
            .availability_zones("us-east-1b")
            .launch_template(launch.build())
            .set_tags(Some(tags.iter().map(|(key, value)| tag(name, key, value)).collect()))
            .send()
            .await
            .expect("is made");
    }

    async fn describe(&self, name: &str) -> AutoScalingGroup {
        let found = self.aws.describe_groups(&[name.into()]).await.expect("answers");
        found.into_iter().next().expect("is there")
    }
}

fn tag(group: &str, key: &str, value: &str) -> Tag {
    Tag::builder()
        .resource_id(group)
        .resource_type("auto-scaling-group")
        .key(key)
        .value(value)
        .propagate_at_launch(false)
        .build()
}

fn data(instance_type: &str, gib: i32) -> RequestLaunchTemplateData {
    let volume = LaunchTemplateEbsBlockDeviceRequest::builder().volume_size(gib).build();
    let mapping =
        LaunchTemplateBlockDeviceMappingRequest::builder().device_name("/dev/xvda").ebs(volume).build();
    RequestLaunchTemplateData::builder()
        .image_id(IMAGE)
        .instance_type(instance_type.into())
        .block_device_mappings(mapping)
        .build()
}

fn selectors(nodes: &[&str], discovery: &[&str]) -> Selectors {
    Selectors::parse(nodes, discovery).expect("well-formed")
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn groups_are_described_by_tag_and_by_name_over_several_pages() {
    let moto = moto().await;
    let template = moto.template("paged", "m5.large").await;
    for n in 0..105 {
        let value = if n % 2 == 0 { "even" } else { "odd" };
        moto.group(&format!("paged-{n:03}"), 0, &template, &[("paged", value), ("other", "")]).await;
    }
    moto.group("paged-without-tag", 0, &template, &[("other", "")]).await;
    let found = |spec: &'static str| {
        let selector = spec.parse().expect("well-formed");
        let aws = moto.aws.clone();
        async move { aws.describe_tagged_groups(&selector, &PagesRead::default()).await.expect("answers").len() }
    };
    assert_eq!(found("asg:tag=paged,other").await, 105);
    assert_eq!(found("asg:tag=paged=even").await, 53);
    assert_eq!(found("asg:tag=paged=none").await, 0);
    let names: Vec<_> = (0..105)
        .map(|n| format!("paged-{n:03}"))
        .chain(["paged-missing".to_owned()])
        .map(Into::into)
        .collect();
    assert_eq!(moto.aws.describe_groups(&names).await.expect("answers").len(), 105);
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn a_size_is_set_and_an_instance_terminated_with_and_without_decrement() {
    let moto = moto().await;
    let template = moto.template("sized", "m5.large").await;
    moto.group("sized", 0, &template, &[]).await;
    moto.aws.set_desired(&"sized".into(), 3).await.expect("is set");
    let group = moto.describe("sized").await;
    assert_eq!((group.desired, group.live().count()), (3, 3));
    assert_eq!(group.zones, ["us-east-1b"]);
    let victims: Vec<_> = group.instances.iter().map(|instance| instance.id.clone()).collect();
    moto.aws.terminate(&victims[0], true).await.expect("is terminated");
    let group = moto.describe("sized").await;
    assert_eq!(group.desired, 2);
    assert!(group.live().all(|instance| instance.id != victims[0]));
    moto.aws.terminate(&victims[1], false).await.expect("is terminated");
    let group = moto.describe("sized").await;
    assert_eq!(group.desired, 2);
    assert!(group.live().all(|instance| instance.id != victims[1]));
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn protection_from_scale_in_is_set_and_taken_off() {
    let moto = moto().await;
    let template = moto.template("protected", "m5.large").await;
    moto.group("protected", 2, &template, &[]).await;
    let group = moto.describe("protected").await;
    let first = [group.instances[0].id.clone()];
    for wanted in [true, false] {
        moto.aws.protect(&"protected".into(), &first, wanted).await.expect("is set");
        let group = moto.describe("protected").await;
        let protected: Vec<_> =
            group.instances.iter().filter(|i| i.protected).map(|i| i.id.clone()).collect();
        assert_eq!(protected, if wanted { first.to_vec() } else { vec![] });
    }
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn instances_are_tagged_found_by_it_and_untagged() {
    let moto = moto().await;
    let template = moto.template("tagged", "m5.large").await;
    moto.group("tagged", 3, &template, &[]).await;
    let group = moto.describe("tagged").await;
    let mut ids: Vec<_> = group.instances.iter().map(|instance| instance.id.clone()).collect();
    ids.sort();
    let found = async || {
        let found = moto.aws.tagged_instances("adapter/mark").await.expect("answers");
        assert!(found.iter().all(|(_, value)| value == "now"), "{found:?}");
        let mut ids: Vec<_> = found.into_iter().map(|(id, _)| id).collect();
        ids.sort();
        ids
    };
    moto.aws.tag_instances(&ids, "adapter/mark", "now").await.expect("tagged");
    moto.aws.tag_instances(&ids[..1], "adapter/other", "now").await.expect("tagged");
    assert_eq!(found().await, ids);
    moto.aws.untag_instances(&ids, "adapter/mark", "then").await.expect("another value is not touched");
    assert_eq!(found().await, ids);
    for _ in 0..2 {
        moto.aws.untag_instances(&ids[..2], "adapter/mark", "now").await.expect("untagged, or nothing to do");
        assert_eq!(found().await, ids[2..]);
    }
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn only_hooks_on_the_way_out_are_seen() {
    let moto = moto().await;
    let template = moto.template("hooked", "m5.large").await;
    moto.group("hooked", 0, &template, &[]).await;
    for (name, transition) in [("ebbtide", "TERMINATING"), ("warm-up", "LAUNCHING")] {
        moto.autoscaling
            .put_lifecycle_hook()
            .auto_scaling_group_name("hooked")
            .lifecycle_hook_name(name)
            .lifecycle_transition(format!("autoscaling:EC2_INSTANCE_{transition}"))
            .heartbeat_timeout(300)
            .send()
            .await
            .expect("is put");
    }
    let hooks = moto.aws.lifecycle_hooks(&"hooked".into()).await.expect("answers");
    assert_eq!(hooks.len(), 1);
    assert_eq!((hooks[0].name.as_str(), hooks[0].heartbeat_timeout), ("ebbtide", Duration::from_mins(5)));
    assert_eq!(hooks[0].global_timeout, Duration::from_mins(500));
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn our_hook_is_put_and_changed_beside_those_of_others() {
    let moto = moto().await;
    let template = moto.template("managed", "m5.large").await;
    moto.group("managed", 0, &template, &[]).await;
    let theirs = Hook::new("Terminate-LC-Hook", "managed", Duration::from_mins(30));
    let first = Hook { abandons: false, ..Hook::new("ebbtide", "managed", Duration::from_mins(5)) };
    let then = Hook::new("ebbtide", "managed", Duration::from_mins(1));
    moto.aws.put_hook(&theirs).await.expect("put");
    for ours in [first, then] {
        moto.aws.put_hook(&ours).await.expect("put");
        let mut found = moto.aws.lifecycle_hooks(&"managed".into()).await.expect("answers");
        found.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(found, [theirs.clone(), ours]);
    }
    // moto knows no instance lifecycle policy, and takes it.
    moto.aws.retain_abandoned(&"managed".into()).await.expect("accepted");
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn scaling_activities_are_asked_for() {
    let moto = moto().await;
    let template = moto.template("active", "m5.large").await;
    moto.group("active", 0, &template, &[]).await;
    assert_eq!(
        moto.aws
            .scaling_activities(&"active".into(), Timestamp::UNIX_EPOCH, 500, |_| false)
            .await
            .expect("answers"),
        []
    );
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn launch_templates_are_read_in_bulk_and_one_by_one() {
    let moto = moto().await;
    let id = moto.template("versioned", "m5.large").await;
    for instance_type in ["m5.xlarge", "c5.large"] {
        moto.ec2
            .create_launch_template_version()
            .launch_template_id(&id)
            .launch_template_data(data(instance_type, 40))
            .send()
            .await
            .expect("is made");
    }
    let page = moto.aws.launch_template_page(TemplateAliases::Both, None).await.expect("answers");
    let mut found: Vec<_> = page.versions.into_iter().filter(|version| version.id == id).collect();
    found.sort_by_key(|version| version.number);
    let types: Vec<_> =
        found.iter().map(|v| (v.number, v.default, v.spec.instance_type.as_deref())).collect();
    assert_eq!(types, [(1, true, Some("m5.large")), (3, false, Some("c5.large"))]);
    assert_eq!(found[0].spec.volumes.root_gib, Some(80));

    let of = |template, version: &str| TemplateRef { template, version: version.to_owned() };
    let pinned = of(TemplateId::Name("versioned".to_owned()), "2");
    let second = moto.aws.launch_template_version(&pinned).await.expect("answers").expect("is there");
    assert_eq!(second.spec.instance_type.as_deref(), Some("m5.xlarge"));
    let missing = of(TemplateId::Id("lt-0123456789abcdef0".to_owned()), "1");
    assert_eq!(moto.aws.launch_template_version(&missing).await.expect("answers"), None);
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn instance_types_have_the_published_figures() {
    let moto = moto().await;
    // Pods from https://github.com/aws/amazon-vpc-cni-k8s/blob/master/misc/eni-max-pods.txt
    let published = [
        ("m5.large", 29, None),
        ("m5.xlarge", 58, None),
        ("t3.medium", 17, None),
        ("c5.large", 29, None),
        ("m6g.large", 29, None),
        ("c6g.medium", 8, None),
        ("m5.metal", 737, None),
        ("g4dn.xlarge", 29, Some(("nvidia.com/gpu", 1))),
        ("p4d.24xlarge", 737, Some(("nvidia.com/gpu", 8))),
        ("g5.xlarge", 58, Some(("nvidia.com/gpu", 1))),
        ("inf1.xlarge", 38, Some(("aws.amazon.com/neuron", 1))),
        ("trn1.32xlarge", 247, Some(("aws.amazon.com/neuron", 16))),
    ];
    let names: Vec<String> =
        published.iter().map(|(name, ..)| (*name).to_owned()).chain(["x99.huge".to_owned()]).collect();
    let types = moto.aws.instance_types(&names).await.expect("answers");
    assert_eq!(types.len(), published.len(), "one that does not exist is left out");
    for (name, pods, device) in published {
        let info = types.iter().find(|info| info.name == name).expect("is there");
        let facts = Facts {
            group: "web",
            region: REGION,
            zones: &["us-east-1b".to_owned()],
            zone_id: None,
            types: &[Candidate { info, specs: &[Arc::new(LaunchSpec::default())] }],
            market: None,
            eks: None,
            learned: None,
            tags: &NodeTags::default(),
        };
        let template = Template::of(&facts, &Settings::default()).expect("has a type");
        let node = Node::decode(template.encoded).expect("is a Node");
        assert_eq!(capacity(&node, "pods"), pods.to_string(), "{name}");
        for resource in ["nvidia.com/gpu", "aws.amazon.com/neuron"] {
            let count =
                device.filter(|(told, _)| *told == resource).map_or(String::new(), |(_, n)| n.to_string());
            assert_eq!(capacity(&node, resource), count, "{name}");
        }
        let arch = if name.starts_with("m6g") || name.starts_with("c6g") { "arm64" } else { "amd64" };
        assert_eq!(label(&node, "kubernetes.io/arch"), arch, "{name}");
    }
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn the_table_of_types_has_what_the_adapter_reads_from_the_answers_of_ec2() {
    let moto = moto().await;
    let names: Vec<String> = type_table::names().map(str::to_owned).collect();
    let mut told = moto.aws.instance_types(&names).await.expect("answers");
    told.sort_by(|a, b| a.name.cmp(&b.name));
    let table: Vec<_> = names.iter().filter_map(|name| type_table::find(name)).collect();
    assert_eq!(told.len(), table.len());
    for (told, ours) in told.iter().zip(&table) {
        assert_eq!(told, ours);
    }
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn images_tell_their_architecture_and_unknown_ones_are_left_out() {
    let moto = moto().await;
    let ids = [IMAGE.to_owned(), "ami-00000000000000000".to_owned()];
    assert_eq!(moto.aws.arm_images(&ids).await.expect("answers"), [(IMAGE.to_owned(), false)]);
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn a_look_of_discovery_sees_groups_of_every_source() {
    let moto = moto().await;
    let enabled = ("looked-at", "");
    let template = moto.template("look-plain", "m5.large").await;
    moto.group("look-plain", 2, &template, &[enabled]).await;

    moto.autoscaling
        .create_launch_configuration()
        .launch_configuration_name("look-old")
        .image_id(IMAGE)
        .instance_type("c5.large")
        .send()
        .await
        .expect("is made");
    moto.autoscaling
        .create_auto_scaling_group()
        .auto_scaling_group_name("look-old")
        .min_size(0)
        .max_size(9)
        .availability_zones("us-east-1b")
        .launch_configuration_name("look-old")
        .tags(tag("look-old", "looked-at", ""))
        .send()
        .await
        .expect("is made");

    let base = LaunchTemplateSpecification::builder().launch_template_id(&template).version("1").build();
    let line = |name: &str| LaunchTemplateOverrides::builder().instance_type(name).build();
    let launch = LaunchTemplate::builder()
        .launch_template_specification(base)
        .overrides(line("m5.xlarge"))
        .overrides(line("t3.medium"))
        .build();
    let split = InstancesDistribution::builder()
        .on_demand_base_capacity(0)
        .on_demand_percentage_above_base_capacity(0)
        .build();
    let policy =
        MixedInstancesPolicy::builder().launch_template(launch).instances_distribution(split).build();
    moto.autoscaling
        .create_auto_scaling_group()
        .auto_scaling_group_name("look-mixed")
        .min_size(0)
        .max_size(9)
        .availability_zones("us-east-1b")
        .mixed_instances_policy(policy)
        .tags(tag("look-mixed", "looked-at", ""))
        .send()
        .await
        .expect("is made");

    let described = moto.describe("look-mixed").await;
    assert!(matches!(described.launch.source, Some(Source::Template(_))));

    let hooks = Arc::new(Hooks::new(moto.aws.clone(), "ebbtide", Clock::system()));
    let groups = Arc::new(Groups::new(Duration::from_mins(10)));
    let selectors = selectors(&["0:5:look-plain"], &["asg:tag=looked-at"]);
    let discovery = Discovery::new(
        moto.aws.clone(),
        selectors,
        groups,
        hooks,
        Arc::default(),
        Clock::system(),
        Duration::from_mins(1),
    );
    let snapshot = discovery.refresh().await.expect("sees");
    let names: Vec<_> = snapshot.groups.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["look-mixed", "look-old", "look-plain"]);
    assert_eq!((snapshot.groups["look-plain"].asg.max, snapshot.groups["look-plain"].asg.desired), (5, 2));
    let node = |group: &str| {
        let template = snapshot.groups[group].template.clone().expect("was tried").expect("is there");
        Node::decode(template.encoded.clone()).expect("is a Node")
    };
    assert_eq!(capacity(&node("look-plain"), "ephemeral-storage"), "83886080Ki");
    assert_eq!(label(&node("look-old"), TYPE), "c5.large");
    let mixed = node("look-mixed");
    assert_eq!(label(&mixed, TYPE), "m5.xlarge");
    assert_eq!((capacity(&mixed, "cpu"), capacity(&mixed, "pods")), ("2", "17"));
}
