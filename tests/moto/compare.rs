//! The simulated AWS beside moto's server: the same calls, and the elements and codes of the answers.
//!
//! Neither is AWS. Where they differ, [`DIFFERENCES`] says why.

use std::collections::BTreeSet;

use bytes::Bytes;
use ebbtide::clock::Clock;
use ebbtide::sim::aws::{Aws, GroupSpec, TemplateData, TemplateSpec};
use ebbtide::sim::http::{Request, World as _};
use jiff::Timestamp;
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::account::{Account, From, ZONE, sent_to_moto, version};

/// Where they differ: the call, a part of what is told of it, and why.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    (
        "DescribeLifecycleHooks",
        "/RoleARN",
        "documented for hooks that notify a queue or a topic; moto has it empty",
    ),
    ("DescribeLifecycleHooks", "/NotificationTargetARN", "the same"),
    ("DescribeAutoScalingGroups", "/CapacityRebalance", "optional; here only where it is on"),
    ("DescribeAutoScalingGroups", "/ServiceLinkedRoleARN", "optional, and nobody here asks for it"),
    ("DescribeAutoScalingGroups", "/AvailabilityZoneId", "in AWS's model, and not in moto yet"),
    ("DescribeAutoScalingGroups", "/TrafficSources", "in AWS's published example, and not in moto"),
    ("DescribeAutoScalingInstances", "/AvailabilityZoneId", "in AWS's model, and not in moto yet"),
    ("DescribeScalingActivities", "/Activities/member", "moto has no activities"),
    ("SetDesiredCapacity", "status 200 at moto, 400 here", "moto takes a size above the maximum"),
    ("SetDesiredCapacity", "status 500 at moto, 400 here", "moto fails over a group that it does not know"),
    ("TerminateInstanceInAutoScalingGroup", "status 500 at moto, 400 here", "and over an instance"),
    ("TerminateInstanceInAutoScalingGroup", "/EndTime", "moto's activity is over when it begins"),
    (
        "TerminateInstanceInAutoScalingGroup",
        "/AutoScalingGroupARN",
        "in AWS's published example of activities",
    ),
    ("TerminateInstanceInAutoScalingGroup", "/Details", "in AWS's sample response"),
    ("DescribeInstanceTypes", "moto alone has", "nothing that a template is made from"),
    ("DescribeLaunchTemplateVersions", "/blockDeviceMappingSet", "the template here has no volumes"),
    ("CreateTags", "status 200 at moto, 400 here", "moto tags instances that are not there"),
];

/// A service, as requests are addressed to it.
#[derive(Clone, Copy)]
enum Service {
    AutoScaling,
    Ec2,
}

/// Calls that both answer, with the names that each has.
const CALLS: &[(Service, &str)] = &[
    (
        Service::AutoScaling,
        "PutLifecycleHook&AutoScalingGroupName={group}&LifecycleHookName=h&LifecycleTransition=autoscaling:EC2_INSTANCE_TERMINATING&HeartbeatTimeout=60",
    ),
    (Service::AutoScaling, "DescribeLifecycleHooks&AutoScalingGroupName={group}"),
    (Service::AutoScaling, "DescribeAutoScalingGroups&AutoScalingGroupNames.member.1={group}"),
    (Service::AutoScaling, "DescribeAutoScalingGroups&AutoScalingGroupNames.member.1=nobody"),
    (Service::AutoScaling, "DescribeAutoScalingInstances&InstanceIds.member.1={instance}"),
    (Service::AutoScaling, "DescribeScalingActivities&AutoScalingGroupName={group}"),
    (
        Service::AutoScaling,
        "SetInstanceProtection&AutoScalingGroupName={group}&InstanceIds.member.1={instance}&ProtectedFromScaleIn=true",
    ),
    (Service::AutoScaling, "SetDesiredCapacity&AutoScalingGroupName={group}&DesiredCapacity=1"),
    (Service::AutoScaling, "SetDesiredCapacity&AutoScalingGroupName={group}&DesiredCapacity=1000"),
    (Service::AutoScaling, "SetDesiredCapacity&AutoScalingGroupName=nobody&DesiredCapacity=1"),
    (
        Service::AutoScaling,
        "TerminateInstanceInAutoScalingGroup&InstanceId=i-0123456789abcdef0&ShouldDecrementDesiredCapacity=true",
    ),
    (Service::Ec2, "DescribeTags&Filter.1.Name=resource-id&Filter.1.Value.1={instance}"),
    (Service::Ec2, "DescribeInstanceTypes&InstanceType.1=m5.large"),
    (
        Service::Ec2,
        "DescribeLaunchTemplateVersions&LaunchTemplateVersion.1=$Latest&LaunchTemplateId={template}",
    ),
    (Service::Ec2, "CreateTags&ResourceId.1=i-0123456789abcdef0&Tag.1.Key=a&Tag.1.Value=b"),
    (
        Service::AutoScaling,
        "TerminateInstanceInAutoScalingGroup&InstanceId={instance}&ShouldDecrementDesiredCapacity=true",
    ),
];

/// What there is at one of them.
struct Names {
    group: String,
    instance: String,
    template: String,
}

impl Names {
    fn form(&self, service: Service, call: &str) -> String {
        let version = match service {
            Service::AutoScaling => "2011-01-01",
            Service::Ec2 => "2016-11-15",
        };
        let named = call.replace("{group}", &self.group).replace("{instance}", &self.instance);
        format!(
            "Version={version}&Action={}",
            named.replace("{template}", &self.template).replace('$', "%24")
        )
    }
}

/// Status and document of moto's answer.
async fn at_moto(service: Service, form: &str) -> (u16, String) {
    let name = match service {
        Service::AutoScaling => "autoscaling",
        Service::Ec2 => "ec2",
    };
    sent_to_moto(name, "Content-Type: application/x-www-form-urlencoded\r\n", form).await
}

/// The elements of a document, each with those it is in, and the texts of codes.
fn elements(document: &str) -> BTreeSet<String> {
    let (mut reader, mut path, mut found) = (Reader::from_str(document), Vec::new(), BTreeSet::new());
    loop {
        match reader.read_event().expect("well-formed") {
            Event::Start(element) => {
                path.push(element.local_name().as_ref().to_owned());
                found.insert(path.join("/"));
            }
            Event::Empty(element) => {
                let name = element.local_name().as_ref().to_owned();
                found.insert(format!("{}/{name}", path.join("/")));
            }
            Event::Text(text) if path.last().is_some_and(|name| name == "Code") => {
                found.insert(format!("{}={}", path.join("/"), text.as_ref() as &str));
            }
            Event::End(_) => drop(path.pop()),
            Event::Eof => return found,
            _ => {}
        }
    }
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn the_simulated_aws_answers_as_moto_does_but_for_what_is_listed() {
    let account = Account::open().await;
    let template = account.template("compared", &[("m5.large", 80)]).await;
    let group = account.group("compared", From::Template(version(&template, "1")), 2, &[]).await;
    let instance = account.truth(&group).await.1.remove(0).0;
    let theirs = Names { group, instance, template };

    let aws = Aws::new(Clock::starting_at(Timestamp::UNIX_EPOCH), 1);
    let template = aws.add_template(TemplateSpec::named("compared").version(TemplateData::of("m5.large")));
    let group = GroupSpec::named("web").size(0, 10, 2).zones([ZONE]).launch_template("compared", "1");
    aws.add_group(group.tag("mark", "yes").already_running());
    let snapshot = aws.group("web").expect("the group");
    let ours = Names { group: "web".into(), instance: snapshot.instances[0].id.clone(), template };

    let mut unlisted = Vec::new();
    let mut used = BTreeSet::new();
    for &(service, call) in CALLS {
        let (their_status, their_body) = at_moto(service, &theirs.form(service, call)).await;
        let request = Request::new(Bytes::from(ours.form(service, call)));
        let answer = aws.call(request).await.expect("answered");
        let our_status = answer.status().as_u16();
        let Ok(body) = http_body_util::BodyExt::collect(answer.into_body()).await;
        let our_body = String::from_utf8(body.to_bytes().to_vec()).expect("text");
        let action = call.split('&').next().expect("an action");
        let mut differences = Vec::new();
        if their_status == our_status {
            let (theirs, ours) = (elements(&their_body), elements(&our_body));
            differences.extend(theirs.difference(&ours).map(|path| format!("moto alone has {path}")));
            differences.extend(ours.difference(&theirs).map(|path| format!("moto has not {path}")));
        } else {
            differences.push(format!("status {their_status} at moto, {our_status} here"));
        }
        for difference in differences {
            let known = |(of, part, _): &&(&str, &str, &str)| *of == action && difference.contains(part);
            match DIFFERENCES.iter().find(known) {
                Some(known) => drop(used.insert(known)),
                None => unlisted.push(format!("{action}: {difference}")),
            }
        }
    }
    assert_eq!(unlisted, [""; 0], "without a reason: {unlisted:#?}");
    let idle: Vec<_> = DIFFERENCES.iter().filter(|known| !used.contains(known)).collect();
    assert!(idle.is_empty(), "no difference any more: {idle:?}");
}
