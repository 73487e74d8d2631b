//! The rules that `docs/notices.md` tells people to set up, and the events that AWS documents, by EventBridge into a queue.
//!
//! EventBridge puts the envelope on: what the adapter reads is what another program made of a documented detail.

use std::time::Duration;

use ebbtide::aws::{About, Content, News, Notice};
use ebbtide::clock::Clock;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::account::{Account, REGION, sent_to_moto};

const INSTANCE: &str = "i-1234567890abcdef0";

/// Longer than the test takes.
const HIDDEN: Duration = Duration::from_mins(10);

/// The patterns of the rules in the document.
fn patterns() -> Vec<String> {
    let document = include_str!("../../docs/notices.md");
    let rules = document.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules");
    let read = serde_json::Deserializer::from_str(rules).into_iter::<Value>();
    read.map(|pattern| pattern.expect("JSON").to_string()).collect()
}

async fn called(operation: &str, body: &Value) {
    let headers =
        format!("Content-Type: application/x-amz-json-1.1\r\nX-Amz-Target: AWSEvents.{operation}\r\n");
    let (status, answer) = sent_to_moto("events", &headers, &body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    let failed = serde_json::from_str::<Value>(&answer).unwrap_or_default()["FailedEntryCount"].as_u64();
    assert_eq!(failed.unwrap_or_default(), 0, "{answer}");
}

/// A queue that is the target of a rule for each of the patterns.
async fn queue_of_rules(account: &Account) -> String {
    let queue = account.queue("events").await;
    let arn = format!("arn:aws:sqs:{REGION}:123456789012:{}", account.name("events"));
    for (n, pattern) in patterns().into_iter().enumerate() {
        let rule = account.name(&format!("rule-{n}"));
        called("PutRule", &json!({ "Name": rule, "EventPattern": pattern, "State": "ENABLED" })).await;
        let target = json!({ "Id": "queue", "Arn": arn });
        called("PutTargets", &json!({ "Rule": rule, "Targets": [target] })).await;
    }
    queue
}

/// An event of now: moto's queue stamps messages with the real time, from which news of minutes count where they are older.
async fn put(source: &str, kind: &str, detail: &Value) -> Timestamp {
    let at = Timestamp::from_second(Clock::system().wall().as_second()).expect("a time");
    let entry = json!({
        "Source": source,
        "DetailType": kind,
        "Detail": detail.to_string(),
        "Time": at.as_second(),
        "Resources": [format!("arn:aws:ec2:{REGION}:123456789012:instance/{INSTANCE}")],
    });
    called("PutEvents", &json!({ "Entries": [entry] })).await;
    at
}

/// The detail of AWS Health's documented retirement, of this category.
///
/// Source: [AWS Health event
/// schema](https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html).
fn health(category: &str) -> Value {
    json!({
        "eventArn": EVENT,
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": category,
        "eventScopeCode": "ACCOUNT_SPECIFIC",
        "communicationId": "1234abc01232a4012345678-1",
        "startTime": "Thu, 27 Aug 2026 13:19:03 GMT",
        "lastUpdatedTime": "Thu, 27 Jan 2026 13:44:13 GMT",
        "statusCode": "open",
        "eventRegion": "us-east-1",
        "eventDescription": [{ "language": "en_US", "latestDescription": "A description of the event" }],
        "affectedEntities": [{
            "entityValue": format!("arn:aws:ec2:us-east-1:123456789012:instance/{INSTANCE}"),
            "lastUpdatedTime": "Thu, 26 Jan 2026 19:01:55 GMT",
            "status": "PENDING",
        }],
        "affectedAccount": "123456789012",
        "page": "1",
        "totalPages": "1",
        "backupEvent": "false",
    })
}

const EVENT: &str = "arn:aws:health:us-east-1::event/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED_90353408594353983";

/// Source and kind of events that AWS documents, their details, and what they tell of the instance.
///
/// Sources: [Auto Scaling](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html),
/// [interruptions](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html),
/// [recommendations](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html),
/// [states](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html).
fn documented() -> Vec<(&'static str, &'static str, Value, News)> {
    let lifecycle = json!({
        "LifecycleActionToken": "87654321-4321-4321-4321-210987654321",
        "AutoScalingGroupName": "my-asg",
        "LifecycleHookName": "my-lifecycle-hook",
        "EC2InstanceId": INSTANCE,
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "NotificationMetadata": "additional-info <&> \"quoted\" \u{e9} ☂",
        "Origin": "AutoScalingGroup",
        "Destination": "EC2",
    });
    let action = News::LifecycleAction { group: "my-asg".into(), hook: "my-lifecycle-hook".to_owned() };
    let retirement = News::ScheduledEvent {
        event: Some(EVENT.to_owned()),
        starts: Some("2026-08-27T13:19:03Z".parse().expect("a time")),
        ends: None,
        is_over: false,
    };
    let interruption = json!({ "instance-id": INSTANCE, "instance-action": "terminate" });
    vec![
        ("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", lifecycle, action),
        ("aws.ec2", "EC2 Spot Instance Interruption Warning", interruption, News::SpotInterruption),
        (
            "aws.ec2",
            "EC2 Instance Rebalance Recommendation",
            json!({ "instance-id": INSTANCE }),
            News::RebalanceRecommendation,
        ),
        (
            "aws.ec2",
            "EC2 Instance State-change Notification",
            json!({ "instance-id": INSTANCE, "state": "stopping" }),
            News::StateChange,
        ),
        ("aws.health", "AWS Health Event", health("scheduledChange"), retirement),
    ]
}

#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
async fn documented_events_come_by_the_documented_rules_and_are_understood() {
    let account = Account::open().await;
    let queue = queue_of_rules(&account).await;
    for (source, kind, detail, news) in documented() {
        let at = put(source, kind, &detail).await;
        let received = account.aws.receive(&queue, HIDDEN, Clock::system().wall()).await.expect("received");
        let [message] = &received[..] else { panic!("one message of {kind}: {received:?}") };
        let about = About::Instance(INSTANCE.into());
        assert_eq!(message.content, Content::Notices(vec![Notice { about, at, news }]), "{kind}");
    }
    let block =
        json!({ "capacity-reservation-id": "cr-1234567890abcdef0", "end-date": "2026-01-27T02:23:21Z" });
    let at = put("aws.ec2", "Capacity Block Reservation Expiration Warning", &block).await;
    let received = account.aws.receive(&queue, HIDDEN, Clock::system().wall()).await.expect("received");
    let about = About::CapacityReservation("cr-1234567890abcdef0".to_owned());
    let news = News::CapacityEnds("2026-01-27T01:53:21Z".parse().expect("a time"));
    assert_eq!(received[0].content, Content::Notices(vec![Notice { about, at, news }]));

    // What ends no instance does not come.
    let launch = json!({ "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING" });
    put("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", &launch).await;
    put("aws.health", "AWS Health Event", &health("accountNotification")).await;
    put("aws.ec2", "EBS Volume Notification", &json!({ "event": "createVolume" })).await;
    let waiting = account.queues.receive_message().queue_url(&queue).send().await.expect("answered");
    assert_eq!(waiting.messages(), []);
}
