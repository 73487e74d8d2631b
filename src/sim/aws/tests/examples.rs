//! Answers compared with the examples of AWS's API references: an answer has every element of its example, and nothing
//! invented. Values are ours; an example is kept as its element names.
//!
//! | example of | compared with |
//! | --- | --- |
//! | DescribeLifecycleHooks | the sample response on its page, element by element |
//! | DescribeAutoScalingGroups, DescribeScalingActivities | the examples that AWS publishes with its SDKs ([botocore](https://github.com/boto/botocore/blob/develop/botocore/data/autoscaling/2011-01-01/examples-1.json)); the first is of a launch configuration, its `LaunchTemplate` and `ServiceLinkedRoleARN` are by the types |
//! | TerminateInstanceInAutoScalingGroup, and calls that answer nothing or an empty result | the service's model ([botocore](https://github.com/boto/botocore/tree/develop/botocore/data/autoscaling/2011-01-01), `service-2.json`): a `resultWrapper` or none |
//! | DescribeTags | the model of EC2, `2016-11-15` |
//! | DescribeSpotPriceHistory | the same, and its example in the [AWS CLI's reference](https://docs.aws.amazon.com/cli/latest/reference/ec2/describe-spot-price-history.html) |
//! | GetProducts | the example that AWS publishes with its SDKs ([botocore](https://github.com/boto/botocore/blob/develop/botocore/data/pricing/2017-10-15/examples-1.json)), in the envelope and in a product, which is a text of JSON; it is of a volume, so that the attributes of an instance are by the [attributes of AmazonEC2](https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api-filter.html) |
//! | errors | the pages of common errors of both services, not observed |
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operations.html> (each page has a sample response),
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html> and
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeTags.html>

use std::collections::BTreeSet;

use quick_xml::Reader;
use quick_xml::events::Event as Node;
use serde_json::{Value, json};

use super::*;
use crate::sim::aws::answering::read;
use crate::sim::http::Request;

const AUTO_SCALING: &str = "2011-01-01";
const EC2: &str = "2016-11-15";
const PRICING: &str = "2017-10-15";

fn now() -> Timestamp {
    Timestamp::new(1_800_000_000, 0).expect("a moment")
}

/// The examples' group, two instances in service, and the id of the first.
fn state() -> (State, String) {
    let mut state = State::new(1);
    let hook = HookSpec::terminating("my-hook").heartbeat(600).by_default(HookResult::Continue);
    let group = GroupSpec::named("my-asg").size(1, 5, 2).tag("environment", "test").hook(hook);
    state.add_group(group.already_running(), now());
    let id = state.groups["my-asg"].instances.keys().next().expect("an instance").clone();
    (state, id)
}

/// Status and document of the answer to a call.
fn answer(state: &mut State, version: &str, call: &str) -> (u16, String) {
    let request = Request::new(format!("Version={version}&Action={call}").into());
    assert!(read(&request).get("Action").is_some());
    let admitted = state.admit(&request, now());
    let reply = state.answer(admitted, now()).expect("an answer").expect("no lost message");
    (reply.status, reply.body)
}

/// The paths of the fields of a document of JSON, of a text of JSON in it too. A list's members count once.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields_of) => {
            for (name, value) in fields_of {
                // Terms and their dimensions are named for the product's code.
                let name =
                    if path.ends_with("OnDemand") || path.ends_with("priceDimensions") { "*" } else { name };
                let path = format!("{path}/{name}");
                fields(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, path, found)),
        Value::String(text) => {
            if let Ok(inner @ Value::Object(_)) = serde_json::from_str(text) {
                fields(&inner, path, found);
            }
        }
        _ => {}
    }
}

/// The element paths of a document, without namespaces. A list's members count once.
fn elements(document: &str) -> BTreeSet<String> {
    if let Ok(json) = serde_json::from_str(document) {
        let mut found = BTreeSet::new();
        fields(&json, "", &mut found);
        return found;
    }
    let (mut reader, mut path, mut found) = (Reader::from_str(document), Vec::new(), BTreeSet::new());
    loop {
        match reader.read_event().expect("well-formed") {
            Node::Start(element) => {
                path.push(element.local_name().as_ref().to_owned());
                found.insert(path.join("/"));
            }
            Node::Empty(element) => {
                path.push(element.local_name().as_ref().to_owned());
                found.insert(path.join("/"));
                path.pop();
            }
            Node::End(_) => drop(path.pop()),
            Node::Eof => return found,
            _ => {}
        }
    }
}

/// Asserts that the answer has the example's elements, except `absent`, and beyond them only `more`.
fn assert_like(document: &str, example: &str, absent: &[&str], more: &[&str]) {
    let (has, documented) = (elements(document), elements(example));
    let named = |name: &String, names: &[&str]| names.iter().any(|of| name.ends_with(of));
    let missing: Vec<_> = documented.difference(&has).filter(|name| !named(name, absent)).collect();
    assert_eq!(missing, [""; 0], "documented, and not in {document}");
    let made_up: Vec<_> = has.difference(&documented).filter(|name| !named(name, more)).collect();
    assert_eq!(made_up, [""; 0], "not documented");
}

fn enclosed(call: &str, result: &str) -> String {
    format!(
        "<{call}Response>{result}<ResponseMetadata><RequestId>x</RequestId></ResponseMetadata></{call}Response>"
    )
}

const ACTIVITY: &str = "<ActivityId/><AutoScalingGroupName/><AutoScalingGroupARN/><Description/><Cause/><StartTime/><StatusCode/><Progress/><Details/>";

#[test]
fn a_description_of_groups_is_like_the_documented_one() {
    let (mut state, _) = state();
    let (status, body) =
        answer(&mut state, AUTO_SCALING, "DescribeAutoScalingGroups&AutoScalingGroupNames.member.1=my-asg");
    assert_eq!(status, 200);
    let example = "<DescribeAutoScalingGroupsResult><AutoScalingGroups><member><HealthCheckType/><LoadBalancerNames/>\
        <Instances><member><AvailabilityZone/><InstanceId/><InstanceType/><HealthStatus/><LifecycleState/><ProtectedFromScaleIn/>\
        <LaunchTemplate><LaunchTemplateId/><LaunchTemplateName/><Version/></LaunchTemplate></member></Instances>\
        <TerminationPolicies><member/></TerminationPolicies><DefaultCooldown/><AutoScalingGroupARN/><EnabledMetrics/>\
        <AvailabilityZones><member/></AvailabilityZones><Tags><member><ResourceId/><PropagateAtLaunch/><Value/><Key/>\
        <ResourceType/></member></Tags><SuspendedProcesses/><AutoScalingGroupName/><HealthCheckGracePeriod/>\
        <NewInstancesProtectedFromScaleIn/><CreatedTime/><MinSize/><DesiredCapacity/><VPCZoneIdentifier/><MaxSize/>\
        <LaunchTemplate><LaunchTemplateId/><LaunchTemplateName/><Version/></LaunchTemplate>\
        <ServiceLinkedRoleARN/><TargetGroupARNs/><TrafficSources/></member></AutoScalingGroups></DescribeAutoScalingGroupsResult>";
    // Nothing here uses the role. Zone ids are documented with the types, and newer than the example.
    let younger = ["AvailabilityZoneId", "AvailabilityZoneIds", "AvailabilityZoneIds/member"];
    assert_like(&body, &enclosed("DescribeAutoScalingGroups", example), &["ServiceLinkedRoleARN"], &younger);
}

#[test]
fn a_description_of_hooks_is_like_the_documented_one() {
    let (mut state, _) = state();
    let (status, body) =
        answer(&mut state, AUTO_SCALING, "DescribeLifecycleHooks&AutoScalingGroupName=my-asg");
    assert_eq!(status, 200);
    let example = "<DescribeLifecycleHooksResult><LifecycleHooks><member><AutoScalingGroupName/><RoleARN/><LifecycleTransition/>\
        <GlobalTimeout/><LifecycleHookName/><HeartbeatTimeout/><DefaultResult/><NotificationTargetARN/></member>\
        </LifecycleHooks></DescribeLifecycleHooksResult>";
    // Present only if the hook notifies a queue or a topic.
    assert_like(
        &body,
        &enclosed("DescribeLifecycleHooks", example),
        &["RoleARN", "NotificationTargetARN"],
        &[],
    );
    assert!(body.contains("<GlobalTimeout>60000</GlobalTimeout>"), "a hundred heartbeats: {body}");
}

#[test]
fn answers_to_changes_are_like_the_documented_ones() {
    let (mut state, id) = state();
    let group = "AutoScalingGroupName=my-asg";
    // Calls without an answer have no result; those of these two are empty.
    for (call, result, parameters) in [
        ("SetDesiredCapacity", "", format!("{group}&DesiredCapacity=2&HonorCooldown=false")),
        (
            "SetInstanceProtection",
            "<SetInstanceProtectionResult/>",
            format!("{group}&InstanceIds.member.1={id}&ProtectedFromScaleIn=true"),
        ),
        ("UpdateAutoScalingGroup", "", format!("{group}&MinSize=1")),
    ] {
        let (status, body) = answer(&mut state, AUTO_SCALING, &format!("{call}&{parameters}"));
        assert_eq!(status, 200, "{body}");
        assert_like(&body, &enclosed(call, result), &[], &[]);
    }
    let call = "TerminateInstanceInAutoScalingGroup";
    let parameters = format!("InstanceId={id}&ShouldDecrementDesiredCapacity=true");
    let (status, body) = answer(&mut state, AUTO_SCALING, &format!("{call}&{parameters}"));
    assert_eq!(status, 200);
    assert_like(
        &body,
        &enclosed(call, &format!("<{call}Result><Activity>{ACTIVITY}</Activity></{call}Result>")),
        &[],
        &[],
    );
    for call in ["RecordLifecycleActionHeartbeat", "CompleteLifecycleAction"] {
        let parameters =
            format!("{group}&LifecycleHookName=my-hook&InstanceId={id}&LifecycleActionResult=CONTINUE");
        let (status, body) = answer(&mut state, AUTO_SCALING, &format!("{call}&{parameters}"));
        assert_eq!(status, 200, "{body}");
        assert_like(&body, &enclosed(call, &format!("<{call}Result/>")), &[], &[]);
    }
}

#[test]
fn activities_and_tags_are_like_the_documented_ones() {
    let (mut state, _) = state();
    let (_, body) = answer(&mut state, AUTO_SCALING, "DescribeScalingActivities&AutoScalingGroupName=my-asg");
    let example = format!(
        "<DescribeScalingActivitiesResult><Activities><member>{ACTIVITY}<EndTime/></member></Activities></DescribeScalingActivitiesResult>"
    );
    assert_like(&body, &enclosed("DescribeScalingActivities", &example), &[], &[]);
    let (_, body) = answer(&mut state, EC2, "DescribeTags");
    let example = "<DescribeTagsResponse><requestId/><tagSet><item><resourceId/><resourceType/><key/><value/></item></tagSet></DescribeTagsResponse>";
    assert_like(&body, example, &[], &[]);
}

#[test]
fn a_history_of_spot_prices_is_like_the_documented_one() {
    let (mut state, _) = state();
    let changes = vec![(now(), "0.087000".to_owned())];
    state.shared.spot_prices.insert(("m1.xlarge".to_owned(), "us-west-1b".to_owned()), changes);
    let (_, body) = answer(&mut state, EC2, "DescribeSpotPriceHistory&InstanceType.1=m1.xlarge");
    let item = "<timestamp/><productDescription/><instanceType/><spotPrice/><availabilityZone/>";
    let example = format!(
        "<DescribeSpotPriceHistoryResponse><requestId/><spotPriceHistorySet><item>{item}</item></spotPriceHistorySet><nextToken/></DescribeSpotPriceHistoryResponse>"
    );
    assert_like(&body, &example, &[], &[]);
}

#[test]
fn products_are_like_the_documented_ones() {
    let (mut state, _) = state();
    state.shared.listed.insert("m5.large".to_owned(), "0.0960000000".to_owned());
    let (status, body) = answer(&mut state, PRICING, "GetProducts&ServiceCode=AmazonEC2&MaxResults=1");
    assert_eq!(status, 200);
    let product = r#"{"product":{"productFamily":"Storage","attributes":{"storageMedia":"","maxThroughputvolume":"","volumeType":"",
        "maxIopsvolume":"","servicecode":"","usagetype":"","locationType":"","location":"","servicename":"","maxVolumeSize":"",
        "operation":""},"sku":""},"serviceCode":"","terms":{"OnDemand":{"SKU.JRTCKXETXF":{"priceDimensions":{"SKU.JRTCKXETXF.6YS6EN2CT7":
        {"unit":"GB-Mo","endRange":"Inf","description":"","appliesTo":[],"rateCode":"","beginRange":"0","pricePerUnit":
        {"USD":"0.1380000000"}}},"sku":"","effectiveDate":"","offerTermCode":"","termAttributes":{}}}},"version":"","publicationDate":""}"#;
    let example = json!({ "FormatVersion": "aws_v1", "NextToken": "x", "PriceList": [product] }).to_string();
    let of_volumes =
        ["storageMedia", "maxThroughputvolume", "volumeType", "maxIopsvolume", "maxVolumeSize"].into_iter();
    let not_read = of_volumes.chain(["usagetype", "/location", "servicename", "/operation"]);
    let of_instances =
        ["instanceType", "regionCode", "operatingSystem", "tenancy", "preInstalledSw"].into_iter();
    let of_instances = of_instances.chain(["capacitystatus", "licenseModel"]);
    assert_like(&body, &example, &not_read.collect::<Vec<_>>(), &of_instances.collect::<Vec<_>>());
}

#[test]
fn errors_are_like_the_documented_ones() {
    let (mut state, _) = state();
    let (status, body) =
        answer(&mut state, AUTO_SCALING, "DescribeLifecycleHooks&AutoScalingGroupName=other");
    assert_eq!(status, 400);
    assert_like(
        &body,
        "<ErrorResponse><Error><Type/><Code/><Message/></Error><RequestId/></ErrorResponse>",
        &[],
        &[],
    );
    assert!(body.contains("<Type>Sender</Type><Code>ValidationError</Code>"), "{body}");
    let (status, body) = answer(&mut state, EC2, "CreateTags&ResourceId.1=i-0123456789abcdef0&Tag.1.Key=a");
    assert_eq!(status, 400);
    assert_like(
        &body,
        "<Response><Errors><Error><Code/><Message/></Error></Errors><RequestID/></Response>",
        &[],
        &[],
    );
    assert!(body.contains("<Code>InvalidInstanceID.NotFound</Code>"), "{body}");
}
