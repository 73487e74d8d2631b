//! What the tests run on: an account at moto, furnished with the SDK.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_autoscaling::types::{LaunchTemplateSpecification, MixedInstancesPolicy, Tag};
use aws_sdk_ec2::types::{
    InstanceType, LaunchTemplateBlockDeviceMappingRequest, LaunchTemplateEbsBlockDeviceRequest,
    RequestLaunchTemplateData,
};
use aws_sdk_eks::operation::create_nodegroup::builders::CreateNodegroupFluentBuilder;
use aws_sdk_eks::types::VpcConfigRequest;
use ebbtide::aws::Aws;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An image that moto has.
const IMAGE: &str = "ami-12c6146b";

/// A role that nobody looks at.
const ROLE: &str = "arn:aws:iam::123456789012:role/eks";

pub(crate) const REGION: &str = "us-east-1";

/// Zone of the subnet.
pub(crate) const ZONE: &str = "us-east-1a";

/// An account with a VPC and a subnet, and the program's way to it.
pub(crate) struct Account {
    pub(crate) aws: Aws,
    scaling: aws_sdk_autoscaling::Client,
    compute: aws_sdk_ec2::Client,
    clusters: aws_sdk_eks::Client,
    pub(crate) queues: aws_sdk_sqs::Client,
    pub(crate) balancing: aws_sdk_elasticloadbalancingv2::Client,
    pub(crate) vpc: String,
    pub(crate) subnet: String,
    /// Tag of its groups, which tells them apart from those of other tests.
    pub(crate) mark: String,
}

/// Where a group's instances come from.
pub(crate) enum From {
    Template(LaunchTemplateSpecification),
    Configuration(String),
    Mixed(MixedInstancesPolicy),
}

impl Account {
    /// Of the server that `tests/moto.sh` has started, which also sets credentials.
    #[expect(clippy::disallowed_methods, reason = "tests/moto.sh says where moto is")]
    pub(crate) async fn open() -> Self {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let endpoint = std::env::var("EBBTIDE_MOTO_ENDPOINT").expect("run tests/moto.sh");
        let aws = Aws::connect(Some(REGION), Some(&endpoint), None).await.expect("a region");
        let config = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(REGION))
            .endpoint_url(&endpoint)
            .load()
            .await;
        let scaling = aws_sdk_autoscaling::Client::new(&config);
        let compute = aws_sdk_ec2::Client::new(&config);
        let clusters = aws_sdk_eks::Client::new(&config);
        let queues = aws_sdk_sqs::Client::new(&config);
        let balancing = aws_sdk_elasticloadbalancingv2::Client::new(&config);
        let vpc = compute.create_vpc().cidr_block("10.0.0.0/16").send().await.expect("a VPC");
        let vpc = vpc.vpc().and_then(|vpc| vpc.vpc_id()).expect("its id").to_owned();
        let subnet = compute
            .create_subnet()
            .vpc_id(&vpc)
            .cidr_block("10.0.0.0/20")
            .availability_zone(ZONE)
            .send()
            .await
            .expect("a subnet");
        let subnet = subnet.subnet().and_then(|subnet| subnet.subnet_id()).expect("its id").to_owned();
        let mark = format!("mark-{}", OPENED.fetch_add(1, Ordering::Relaxed));
        Self { aws, scaling, compute, clusters, queues, balancing, vpc, subnet, mark }
    }

    /// A name that no other test uses.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.mark)
    }

    /// A launch template, a version for each of these instance types and root volumes. Gives back its id.
    pub(crate) async fn template(&self, name: &str, versions: &[(&str, i32)]) -> String {
        let mut id = None;
        for &(instance_type, gib) in versions {
            let ebs = LaunchTemplateEbsBlockDeviceRequest::builder().volume_size(gib).build();
            let volume = LaunchTemplateBlockDeviceMappingRequest::builder().device_name("/dev/xvda").ebs(ebs);
            let data = RequestLaunchTemplateData::builder()
                .image_id(IMAGE)
                .instance_type(InstanceType::from(instance_type))
                .block_device_mappings(volume.build())
                .build();
            if let Some(id) = &id {
                let next = self.compute.create_launch_template_version().launch_template_id(id);
                next.launch_template_data(data).send().await.expect("a version");
            } else {
                let first = self.compute.create_launch_template().launch_template_name(self.name(name));
                let made = first.launch_template_data(data).send().await.expect("a launch template");
                id = made.launch_template().and_then(|made| made.launch_template_id()).map(str::to_owned);
            }
        }
        id.expect("at least one version")
    }

    /// A launch configuration of `m5.large`. Gives back its name.
    pub(crate) async fn configuration(&self, name: &str, spot_price: Option<&str>) -> String {
        let name = self.name(name);
        let create = self.scaling.create_launch_configuration().launch_configuration_name(&name);
        let create = create.image_id(IMAGE).instance_type("m5.large");
        create.set_spot_price(spot_price.map(str::to_owned)).send().await.expect("a launch configuration");
        name
    }

    /// A group of 0 to 10, tagged with the mark and with these tags. Gives back its name.
    pub(crate) async fn group(&self, name: &str, from: From, desired: i32, tags: &[(&str, &str)]) -> String {
        let name = self.name(name);
        let tags = [(self.mark.as_str(), "yes")].into_iter().chain(tags.iter().copied());
        let tags = tags.map(|(key, value)| {
            let tag = Tag::builder().resource_id(&name).resource_type("auto-scaling-group");
            tag.key(key).value(value).propagate_at_launch(true).build()
        });
        let create = self
            .scaling
            .create_auto_scaling_group()
            .auto_scaling_group_name(&name)
            .min_size(0)
            .max_size(10)
            .desired_capacity(desired)
            .vpc_zone_identifier(&self.subnet)
            .set_tags(Some(tags.collect()));
        let create = match from {
            From::Template(template) => create.launch_template(template),
            From::Configuration(name) => create.launch_configuration_name(name),
            From::Mixed(policy) => create.mixed_instances_policy(policy),
        };
        create.send().await.expect("a group");
        name
    }

    /// A queue. Gives back its URL.
    pub(crate) async fn queue(&self, name: &str) -> String {
        let made = self.queues.create_queue().queue_name(self.name(name)).send().await.expect("a queue");
        made.queue_url().expect("its URL").to_owned()
    }

    /// Puts a message into a queue.
    pub(crate) async fn put(&self, queue: &str, body: &str) {
        self.queues.send_message().queue_url(queue).message_body(body).send().await.expect("sent");
    }

    /// An EKS cluster. Gives back its name.
    pub(crate) async fn cluster(&self, name: &str) -> String {
        let name = self.name(name);
        let network = VpcConfigRequest::builder().subnet_ids(&self.subnet).build();
        let create = self.clusters.create_cluster().name(&name).role_arn(ROLE);
        create.resources_vpc_config(network).send().await.expect("a cluster");
        name
    }

    /// A managed node group of the cluster, still to be sent.
    pub(crate) fn node_group(&self, cluster: &str, name: &str) -> CreateNodegroupFluentBuilder {
        let create = self.clusters.create_nodegroup().cluster_name(cluster).nodegroup_name(name);
        create.node_role(ROLE).subnets(&self.subnet)
    }

    /// Instances in service, whether each is protected, and the desired capacity: what AWS itself has.
    pub(crate) async fn truth(&self, group: &str) -> (i32, Vec<(String, bool)>) {
        let answer = self.scaling.describe_auto_scaling_groups().auto_scaling_group_names(group);
        let answer = answer.send().await.expect("described");
        let group = answer.auto_scaling_groups().first().expect("the group");
        let instances = group.instances().iter().map(|instance| {
            let id = instance.instance_id().unwrap_or_default().to_owned();
            (id, instance.protected_from_scale_in().unwrap_or_default())
        });
        (group.desired_capacity().unwrap_or_default(), instances.collect())
    }
}

/// This version of the template with this id.
pub(crate) fn version(id: &str, version: &str) -> LaunchTemplateSpecification {
    LaunchTemplateSpecification::builder().launch_template_id(id).version(version).build()
}

/// Status and body of moto's answer to a request, of a service for which the SDK has no client here or checks too much.
#[expect(clippy::disallowed_methods, reason = "tests/moto.sh says where moto is")]
pub(crate) async fn sent_to_moto(service: &str, headers: &str, body: &str) -> (u16, String) {
    let endpoint = std::env::var("EBBTIDE_MOTO_ENDPOINT").expect("run tests/moto.sh");
    let host = endpoint.trim_start_matches("http://");
    // moto reads the service out of the signature, and checks none.
    let scope =
        format!("Credential=moto/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, Signature=0");
    let mut request = format!("POST / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}");
    let _ = write!(
        request,
        "Authorization: AWS4-HMAC-SHA256 {scope}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(host).await.expect("moto");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}
