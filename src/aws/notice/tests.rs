//! The shapes that AWS documents, and everything else that may be in a queue.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const INSTANCE: &str = "i-1234567890abcdef0";
const AT: &str = "2026-01-27T01:43:21Z";

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

/// When SQS says that it was sent.
fn sent() -> Timestamp {
    at("2026-01-27T01:43:25Z")
}

fn notices(body: &str) -> Vec<Notice> {
    match Content::read(body, sent()) {
        Content::Notices(notices) => notices,
        other => panic!("{other:?}\n{body}"),
    }
}

/// The only news in this body, of [`INSTANCE`] at [`AT`].
fn news(body: &str) -> News {
    let mut notices = notices(body);
    assert_eq!(notices.len(), 1, "{notices:?}");
    let notice = notices.remove(0);
    assert_eq!((&notice.about, notice.at), (&About::Instance(INSTANCE.into()), at(AT)));
    notice.news
}

fn nothing(body: &str) -> String {
    match Content::read(body, sent()) {
        Content::Nothing(what) => what,
        other => panic!("{other:?}\n{body}"),
    }
}

fn malformed(body: &str) -> String {
    match Content::read(body, sent()) {
        Content::Malformed(why) => why,
        other => panic!("{other:?}\n{body}"),
    }
}

/// An event in EventBridge's envelope.
///
/// Source: [events](https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-events-structure.html).
fn event(source: &str, kind: &str, detail: &Value) -> String {
    json!({
        "version": "0",
        "id": "12345678-1234-1234-1234-123456789012",
        "detail-type": kind,
        "source": source,
        "account": "123456789012",
        "time": AT,
        "region": "us-west-2",
        "resources": ["arn:aws:ec2:us-west-2:123456789012:instance/i-1234567890abcdef0"],
        "detail": detail,
    })
    .to_string()
}

/// The `detail` of the [scale-in lifecycle
/// action](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html).
fn lifecycle_detail(transition: &str, origin: &str, destination: &str) -> Value {
    json!({
        "LifecycleActionToken": "87654321-4321-4321-4321-210987654321",
        "AutoScalingGroupName": "my-asg",
        "LifecycleHookName": "my-lifecycle-hook",
        "EC2InstanceId": INSTANCE,
        "LifecycleTransition": transition,
        "NotificationMetadata": "additional-info",
        "Origin": origin,
        "Destination": destination,
    })
}

/// A group's own notification.
///
/// Source: [Prepare to add a lifecycle
/// hook](https://docs.aws.amazon.com/autoscaling/ec2/userguide/prepare-for-lifecycle-notifications.html).
fn own_notification(transition: &str) -> Value {
    json!({
        "Service": "AWS Auto Scaling",
        "Time": AT,
        "RequestId": "18b2ec17-3e9b-4c15-8024-ff2e8ce8786a",
        "LifecycleActionToken": "71514b9d-6a40-4b26-8523-05e7ee35fa40",
        "AccountId": "123456789012",
        "AutoScalingGroupName": "my-asg",
        "LifecycleHookName": "my-lifecycle-hook",
        "EC2InstanceId": INSTANCE,
        "LifecycleTransition": transition,
        "NotificationMetadata": "hook message metadata",
    })
}

/// Source: [Fanout to SQS queues](https://docs.aws.amazon.com/sns/latest/dg/sns-sqs-as-subscriber.html).
fn by_sns(message: &str) -> String {
    json!({
        "Type": "Notification",
        "MessageId": "63a3f6b6-d533-4a47-aef9-fcf5cf758c76",
        "TopicArn": "arn:aws:sns:us-west-2:123456789012:MyTopic",
        "Subject": "Testing publish to subscribed queues",
        "Message": message,
        "Timestamp": "2012-03-29T05:12:16.901Z",
        "SignatureVersion": "1",
        "Signature": "EXAMPLEnTrFPa3...",
    })
    .to_string()
}

/// The documented [EC2 instance
/// retirement](https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html#amazon-ec2-instance-retirement-scheduled).
/// 27 January 2026 is no Thursday there either.
fn retirement() -> Value {
    json!({
        "eventArn": "arn:aws:health:us-east-1::event/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED_90353408594353983",
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "eventScopeCode": "ACCOUNT_SPECIFIC",
        "communicationId": "1234abc01232a4012345678-1",
        "startTime": "Thu, 27 Aug 2026 13:19:03 GMT",
        "lastUpdatedTime": "Thu, 27 Jan 2026 13:44:13 GMT",
        "statusCode": "open",
        "eventRegion": "us-east-1",
        "affectedEntities": [{
            "entityValue": "arn:aws:ec2:us-east-1:123456789012:instance/i-1234567890abcdef0",
            "lastUpdatedTime": "Thu, 26 Jan 2026 19:01:55 GMT",
            "status": "PENDING",
        }],
        "affectedAccount": "123456789012",
        "page": "1",
        "totalPages": "1",
        "backupEvent": "false",
    })
}

fn health(detail: &Value) -> String {
    event("aws.health", "AWS Health Event", detail)
}

/// The documented [warning](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html), with
/// `detail_type` as there, or `detail-type` as EventBridge has it everywhere else.
fn capacity_block(key: &str, end: &str) -> String {
    json!({
        "customer_event_id": "cr-1234567890abcdef0-approaching-expiry",
        key: "Capacity Block Reservation Expiration Warning",
        "source": "aws.ec2",
        "account": "123456789012",
        "time": AT,
        "resources": ["arn:aws:ec2:us-east-1:123456789012:capacity-reservation/cr-1234567890abcdef0"],
        "detail": { "capacity-reservation-id": "cr-1234567890abcdef0", "end-date": end },
    })
    .to_string()
}

/// Every documented message that ends an instance.
fn documented() -> Vec<String> {
    let terminating = "autoscaling:EC2_INSTANCE_TERMINATING";
    let id = json!({ "instance-id": INSTANCE, "instance-action": "terminate", "state": "stopping" });
    let own = own_notification(terminating).to_string();
    let lifecycle = lifecycle_detail(terminating, "AutoScalingGroup", "EC2");
    vec![
        event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", &lifecycle),
        by_sns(&own),
        own,
        health(&retirement()),
        capacity_block("detail_type", "2026-01-27T02:23:21Z"),
        event("aws.ec2", "EC2 Spot Instance Interruption Warning", &id),
        event("aws.ec2", "EC2 Instance Rebalance Recommendation", &id),
        event("aws.ec2", "EC2 Instance State-change Notification", &id),
        event("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", &id),
    ]
}

fn lifecycle_news() -> News {
    News::LifecycleAction { group: "my-asg".into(), hook: "my-lifecycle-hook".to_owned() }
}

#[test]
fn a_lifecycle_action_is_read_from_eventbridge_whether_it_ends_in_ec2_or_in_the_warm_pool() {
    for destination in ["EC2", "WarmPool"] {
        let detail =
            lifecycle_detail("autoscaling:EC2_INSTANCE_TERMINATING", "AutoScalingGroup", destination);
        let body = event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", &detail);
        assert_eq!(news(&body), lifecycle_news());
    }
}

#[test]
fn a_groups_own_notification_is_read_straight_and_through_a_topic() {
    let body = own_notification("autoscaling:EC2_INSTANCE_TERMINATING").to_string();
    assert_eq!(news(&body), lifecycle_news());
    assert_eq!(news(&by_sns(&body)), lifecycle_news());
}

/// Whoever passes notifications on may leave out what he has no use for.
#[test]
fn a_notification_of_a_topic_that_does_not_name_it_is_read() {
    let body = own_notification("autoscaling:EC2_INSTANCE_TERMINATING").to_string();
    let bare = |message: Value| json!({ "Type": "Notification", "Message": message }).to_string();
    assert_eq!(news(&bare(body.into())), lifecycle_news());
    malformed(&bare(json!({ "detail-type": "EC2 Spot Instance Interruption Warning" })));
    malformed(&json!({ "Type": "Notification" }).to_string());
}

#[test]
fn what_a_group_launches_under_a_hook_is_no_news_for_us_and_kept_for_the_hooks_owner() {
    let launching = "autoscaling:EC2_INSTANCE_LAUNCHING";
    let detail = lifecycle_detail(launching, "EC2", "AutoScalingGroup");
    let launch = event("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", &detail);
    let own = own_notification(launching).to_string();
    for body in [launch, by_sns(&own), own] {
        assert_eq!(news(&body), News::OtherTransition, "{body}");
    }
}

#[test]
fn test_notifications_and_other_events_end_nothing() {
    // https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
    let test = json!({
        "AccountId": "123456789012",
        "RequestId": "b36d6757-57c7-11e8-a9ca-b3409db76d91",
        "AutoScalingGroupARN": "arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:1:autoScalingGroupName/web",
        "AutoScalingGroupName": "web",
        "Service": "AWS Auto Scaling",
        "Event": "autoscaling:TEST_NOTIFICATION",
        "Time": "2018-05-14T22:39:45.555Z",
    });
    assert_eq!(nothing(&test.to_string()), "test notification");
    assert_eq!(nothing(&by_sns(&test.to_string())), "test notification");
    assert_eq!(
        nothing(&event("aws.ec2", "Capacity Block Reservation Delivered", &json!({}))),
        r#"event "Capacity Block Reservation Delivered""#
    );
}

#[test]
fn spot_interruptions_and_recommendations_are_read() {
    // https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    for action in ["terminate", "stop", "hibernate"] {
        let detail = json!({ "instance-id": INSTANCE, "instance-action": action });
        let body = event("aws.ec2", "EC2 Spot Instance Interruption Warning", &detail);
        assert_eq!(news(&body), News::SpotInterruption);
    }
    // https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    let body = event("aws.ec2", "EC2 Instance Rebalance Recommendation", &json!({ "instance-id": INSTANCE }));
    assert_eq!(news(&body), News::RebalanceRecommendation);
}

#[test]
fn of_the_states_those_that_end_an_instance_are_news() {
    // https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html
    let body = |state: &str| {
        let detail = json!({ "instance-id": INSTANCE, "state": state });
        event("aws.ec2", "EC2 Instance State-change Notification", &detail)
    };
    for state in ["stopping", "stopped", "shutting-down", "terminated"] {
        assert_eq!(news(&body(state)), News::StateChange, "{state}");
    }
    for state in ["pending", "running"] {
        assert_eq!(nothing(&body(state)), format!("instance state {state:?}"));
    }
}

#[test]
fn a_scheduled_change_names_its_event_and_its_times_whatever_the_weekday() {
    let event = retirement()["eventArn"].as_str().map(str::to_owned);
    assert!(event.is_some());
    let starts = Some(at("2026-08-27T13:19:03Z"));
    let expected = News::ScheduledEvent { event, starts, ends: None, is_over: false };
    assert_eq!(news(&health(&retirement())), expected);
    let mut changed = retirement();
    // The wrong weekday of an older example of the same page, and a day of one digit as in another.
    changed["startTime"] = json!("Sat, 05 Jun 2023 15:10:09 GMT");
    changed["endTime"] = json!("Fri, 3 Jun 2022 05:30:57 GMT");
    let News::ScheduledEvent { starts, ends, .. } = news(&health(&changed)) else { panic!("an event") };
    assert_eq!((starts, ends), (Some(at("2023-06-05T15:10:09Z")), Some(at("2022-06-03T05:30:57Z"))));
    changed["startTime"] = json!("soon");
    let News::ScheduledEvent { starts, .. } = news(&health(&changed)) else { panic!("an event") };
    assert_eq!(starts, None, "an event is not lost for the spelling of its time");
    for arn in [json!(null), json!(""), json!("a\nb"), json!("x".repeat(1_601))] {
        changed["eventArn"] = arn;
        let News::ScheduledEvent { event, .. } = news(&health(&changed)) else { panic!("an event") };
        assert_eq!(event, None, "nor for want of a name");
    }
}

#[test]
fn a_scheduled_change_is_over_for_all_when_closed_and_for_one_when_resolved() {
    let mut several = retirement();
    several["affectedEntities"] = json!([
        { "entityValue": "i-abcd1111", "status": "PENDING" },
        { "entityValue": "i-abcd2222", "status": "RESOLVED" },
        { "entityValue": "h-0123456789abcdef0" },
        {},
    ]);
    let over = |detail: &Value| {
        let is_over = |notice: Notice| match notice {
            Notice { about: About::Instance(id), news: News::ScheduledEvent { is_over, .. }, .. } => {
                (id.to_string(), is_over)
            }
            other => panic!("{other:?}"),
        };
        notices(&health(detail)).into_iter().map(is_over).collect::<Vec<_>>()
    };
    let expected = |first| vec![("i-abcd1111".to_owned(), first), ("i-abcd2222".to_owned(), true)];
    for (status, first) in [("open", false), ("upcoming", false), ("closed", true)] {
        several["statusCode"] = json!(status);
        assert_eq!(over(&several), expected(first), "{status}");
    }
}

#[test]
fn health_events_that_take_no_instance_end_nothing() {
    let changes = [
        ("eventTypeCategory", json!("issue")),
        ("eventTypeCategory", json!("accountNotification")),
        ("service", json!("LAMBDA")),
        ("eventTypeCode", json!("AWS_EC2_PLANNED_LIFECYCLE_EVENT")),
        ("affectedEntities", json!([])),
        ("affectedEntities", json!([{ "entityValue": "h-0123456789abcdef0" }])),
    ];
    for (field, value) in changes {
        let mut detail = retirement();
        detail[field] = value;
        assert!(nothing(&health(&detail)).starts_with("AWS Health event \"AWS_EC2"), "{field}");
    }
}

#[test]
fn whatever_a_capacity_reservations_end_is_called_it_is_read_and_the_rules_of_the_documents_send_it() {
    let documented = include_str!("../../../docs/notices.md");
    let detail = json!({ "instance-id": INSTANCE, "capacity-reservation-id": "cr-1234567890abcdef0" });
    for kind in [
        "Capacity Block Expiration Warning",
        "Capacity Block Reservation Expiration Warning",
        "EC2 Capacity Reservation Instance Interruption Warning",
        "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
    ] {
        let told = notices(&event("aws.ec2", kind, &detail));
        assert!(matches!(told[..], [Notice { news: News::CapacityEnds(_), .. }]), "{kind}: {told:?}");
        assert!(documented.contains(&format!("\"{kind}\"")), "{kind}");
    }
}

#[test]
fn a_capacity_blocks_instances_end_ten_minutes_after_the_warning_or_half_an_hour_before_it() {
    let notice = |key, end| notices(&capacity_block(key, end)).remove(0);
    let expected = |ends: &str| Notice {
        about: About::CapacityReservation("cr-1234567890abcdef0".to_owned()),
        at: at(AT),
        news: News::CapacityEnds(at(ends)),
    };
    for key in ["detail_type", "detail-type"] {
        assert_eq!(notice(key, "2026-01-27T02:23:21Z"), expected("2026-01-27T01:53:21Z"));
        assert_eq!(notice(key, "2026-01-27T02:53:21Z"), expected("2026-01-27T01:53:21Z"), "of UltraServers");
        assert_eq!(notice(key, "2026-01-27T02:20:00Z"), expected("2026-01-27T01:50:00Z"), "told late");
    }
    // "any instances running in the reservation will begin to terminate in 10 minutes"
    assert_eq!(notice("detail_type", "[ODCR End Date]"), expected("2026-01-27T01:53:21Z"));
}

#[test]
fn an_interruptible_reservation_tells_when_it_takes_the_instance() {
    // https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html
    for kind in [
        "EC2 Capacity Reservation Instance Interruption Warning",
        "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
    ] {
        let mut detail = json!({
            "instance-id": INSTANCE,
            "instance-action": "terminate",
            "instance-termination-time": "2026-01-27T01:45:20Z",
            "azId": "use1-az1",
        });
        assert_eq!(news(&event("aws.ec2", kind, &detail)), News::CapacityEnds(at("2026-01-27T01:45:20Z")));
        detail["instance-termination-time"] = json!("yyyy-mm-ddThh:mm:ssZ");
        assert_eq!(news(&event("aws.ec2", kind, &detail)), News::CapacityEnds(at("2026-01-27T01:45:21Z")));
    }
}

#[test]
fn a_notice_of_something_that_is_no_instance_is_malformed() {
    let long = format!("i-{}", "a".repeat(35));
    for id in ["", "i-", "web", "i-0123/../x", "i-0 ", "I-0123", "mi-0123", "i-é", &long] {
        for body in documented().iter().filter(|body| body.contains(INSTANCE)) {
            let body = body.replace(INSTANCE, id);
            let of_host = body.contains("AWS Health") && !id.rsplit('/').next().unwrap().starts_with("i-");
            // The last part of an ARN's path.
            if !of_host {
                assert!(malformed(&body).contains("is no instance id"), "{body}");
            }
        }
    }
}

#[test]
fn an_id_may_be_other_than_those_of_today() {
    for id in ["i-worker-0001", "i-node_3", "i-0.1"] {
        for body in documented().iter().filter(|body| body.contains(INSTANCE)) {
            let told = notices(&body.replace(INSTANCE, id));
            assert_eq!(told[0].about, About::Instance(id.into()), "{body}");
        }
    }
}

#[test]
fn an_entity_of_a_health_event_that_cannot_be_read_takes_none_of_the_others_with_it() {
    let body = documented().into_iter().find(|body| body.contains("AWS Health")).expect("one");
    let mut event: Value = serde_json::from_str(&body).expect("JSON");
    let entities = event["detail"]["affectedEntities"].as_array_mut().expect("a list");
    entities.insert(0, json!({ "entityValue": "i-0123 4" }));
    assert_eq!(notices(&event.to_string()), notices(&body));
}

#[test]
fn names_that_cannot_be_are_malformed() {
    let own = own_notification("autoscaling:EC2_INSTANCE_TERMINATING");
    let changes = [
        ("AutoScalingGroupName", json!("")),
        ("AutoScalingGroupName", json!("x".repeat(256))),
        ("AutoScalingGroupName", json!("web\nlevel=error")),
        ("AutoScalingGroupName", json!(7)),
        ("LifecycleHookName", json!("x".repeat(256))),
        ("LifecycleHookName", json!(null)),
    ];
    for (field, value) in changes {
        let mut body = own.clone();
        body[field] = value;
        assert!(malformed(&body.to_string()).contains(field), "{field}");
    }
    let block = capacity_block("detail_type", "").replace("cr-1234567890abcdef0", "lr-1");
    assert!(malformed(&block).contains("no id of a Capacity Reservation"));
}

#[test]
fn a_notice_without_a_time_is_one_of_when_it_was_sent() {
    for body in documented().iter().filter(|body| body.contains(AT)) {
        for time in ["", "yesterday", "2026-01-27T01:43:21"] {
            let body = body.replace(AT, time);
            assert_eq!(notices(&body)[0].at, sent(), "{body}");
        }
    }
}

/// AWS's examples are of years ago, and people send them to try things out. What EventBridge delivers late, or somebody replays, is as old
/// as it says: it must not end what has started since.
#[test]
fn a_warning_of_years_ago_is_one_of_when_it_was_sent_and_one_of_yesterday_is_not() {
    let detail = json!({ "instance-id": INSTANCE, "instance-action": "terminate", "state": "stopped" });
    let (years, yesterday) = ("2021-02-03T14:05:09Z", "2026-01-26T13:43:21Z");
    for (kind, is_warning) in [
        ("EC2 Spot Instance Interruption Warning", true),
        ("EC2 Instance Rebalance Recommendation", true),
        ("EC2 Instance State-change Notification", false),
    ] {
        let at = |time: &str, replayed: bool| {
            let body = event("aws.ec2", kind, &detail).replace(AT, time);
            let mut body: Value = serde_json::from_str(&body).expect("JSON");
            if replayed {
                body["replay-name"] = json!("of-january");
            }
            notices(&body.to_string())[0].at
        };
        let written = |time: &str| time.parse::<Timestamp>().expect("a time");
        assert_eq!(at(years, false), if is_warning { sent() } else { written(years) }, "{kind}");
        assert_eq!(at(years, true), written(years), "{kind}");
        assert_eq!(at(yesterday, false), written(yesterday), "{kind}");
    }
}

#[test]
fn what_is_no_notice_at_all_is_malformed_and_told_in_a_short_line() {
    for body in ["", "hello", "7", "[]", "{}", "null", r#"{"hello": "world"}"#, "{\"a\": \"\u{1}\"}"] {
        malformed(body);
    }
    let why = malformed(&format!("\u{1b}[31m\n{}", "x".repeat(1_000_000)));
    assert!(why.len() < 300 && !why.contains(char::is_control), "{why}");
    assert_eq!(malformed(&"x".repeat((256 << 10) + 1)), "262145 bytes");
    malformed(&"[".repeat(256 << 10));
    malformed(&by_sns("not JSON"));
    malformed(&by_sns(&by_sns("{}")));
}

/// Whoever may send to the queue writes what he likes: a notice of the next century would count until then.
#[test]
fn a_notice_is_never_of_later_than_it_was_sent() {
    for body in documented().iter().filter(|body| body.contains(AT)) {
        for time in ["2199-01-01T00:00:00Z", "2026-01-27T01:43:26Z"] {
            let body = body.replace(AT, time);
            assert_eq!(notices(&body)[0].at, sent(), "{body}");
        }
        assert_eq!(notices(body)[0].at, at(AT), "{body}");
    }
}

#[test]
fn a_moment_that_no_clock_shows_is_none() {
    let late = capacity_block("detail_type", "").replace(AT, "9999-12-30T22:00:00Z");
    assert_eq!(notices(&late)[0].at, sent());
    let mut event = retirement();
    event["startTime"] = json!("Thu, 01 Jan 1970 00:00:00 GMT");
    let [Notice { news: News::ScheduledEvent { starts, .. }, .. }] = &notices(&health(&event))[..] else {
        panic!("one notice")
    };
    assert_eq!(*starts, None);
}

/// Texts of notices stay in the bounds that AWS documents.
fn is_bounded(content: &Content) -> bool {
    let is_id = |id: &str| id.len() <= 40 && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let notice = |notice: &Notice| {
        let about = match &notice.about {
            About::Instance(id) => id.starts_with("i-") && is_id(id),
            About::CapacityReservation(id) => id.starts_with("cr-") && is_id(id),
        };
        about
            && match &notice.news {
                News::LifecycleAction { group, hook } => {
                    group.chars().count() <= 255 && hook.chars().count() <= 255
                }
                _ => true,
            }
    };
    match content {
        Content::Notices(notices) => !notices.is_empty() && notices.iter().all(notice),
        Content::Nothing(text) | Content::Malformed(text) => {
            text.len() < 2_000 && !text.contains(char::is_control)
        }
    }
}

proptest! {
    #[test]
    fn reading_any_message_body_does_not_panic(body in ".*") {
        prop_assert!(is_bounded(&Content::read(&body, sent())));
    }

    #[test]
    fn no_damage_to_a_notice_makes_it_panic(
        which in 0..9_usize, from in 0..1_500_usize, length in 0..40_usize, put in "[ -~\\n\u{e9}]{0,40}",
    ) {
        let mut body = documented().remove(which);
        let from = body.floor_char_boundary(from.min(body.len()));
        let to = body.floor_char_boundary((from + length).min(body.len()));
        body.replace_range(from..to, &put);
        prop_assert!(is_bounded(&Content::read(&body, sent())), "{}", body);
    }
}
