//! Notices from a queue, through the adapter.

use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use ebbtide::aws::{About, AwsError, Content, Message, News, Notice};
use ebbtide::clock::Clock;
use jiff::Timestamp;

use crate::account::Account;

/// The documented scale-in lifecycle action, with a real time.
///
/// Source: [event
/// reference](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html).
const LIFECYCLE_ACTION: &str = r#"{
  "version": "0",
  "id": "12345678-1234-1234-1234-123456789012",
  "detail-type": "EC2 Instance-terminate Lifecycle Action",
  "source": "aws.autoscaling",
  "account": "123456789012",
  "time": "2026-01-27T01:43:21Z",
  "region": "us-west-2",
  "resources": ["auto-scaling-group-arn"],
  "detail": {
    "LifecycleActionToken": "87654321-4321-4321-4321-210987654321",
    "AutoScalingGroupName": "my-asg",
    "LifecycleHookName": "my-lifecycle-hook",
    "EC2InstanceId": "i-1234567890abcdef0",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    "NotificationMetadata": "additional-info <&> \"quoted\" \u00e9 ☂",
    "Origin": "AutoScalingGroup",
    "Destination": "EC2"
  }
}"#;

/// Longer than these tests take.
const HIDDEN: Duration = Duration::from_mins(10);

fn receipts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.receipt.clone()).collect()
}

#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
async fn a_documented_event_comes_through_a_queue_unchanged() {
    let account = Account::open().await;
    let queue = account.queue("notices").await;
    account.put(&queue, LIFECYCLE_ACTION).await;
    let raw = account.queues.receive_message().queue_url(&queue).visibility_timeout(0).send().await;
    assert_eq!(raw.expect("received").messages()[0].body(), Some(LIFECYCLE_ACTION));

    let received = account.aws.receive(&queue, HIDDEN, Clock::system().wall()).await.expect("received");
    let [message] = &received[..] else { panic!("one message: {received:?}") };
    let news = News::LifecycleAction { group: "my-asg".into(), hook: "my-lifecycle-hook".to_owned() };
    let about = About::Instance("i-1234567890abcdef0".into());
    let at = "2026-01-27T01:43:21Z".parse().expect("a time");
    assert_eq!(message.content, Content::Notices(vec![Notice { about, at, news }]));

    // One without a time counts from when it was sent, which SQS tells in milliseconds.
    account.put(&queue, &LIFECYCLE_ACTION.replace("\"time\"", "\"other\"")).await;
    let received = account.aws.receive(&queue, HIDDEN, Timestamp::UNIX_EPOCH).await.expect("received");
    let [Message { content: Content::Notices(notices), .. }] = &received[..] else { panic!("{received:?}") };
    let since = Clock::system().wall().duration_since(notices[0].at).as_secs();
    assert!((-60..600).contains(&since), "{since}");
}

#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
async fn messages_are_deleted_in_batches_and_one_that_is_refused_is_no_error() {
    let account = Account::open().await;
    let queue = account.queue("batches").await;
    for n in 0..12 {
        account.put(&queue, &format!("{n}")).await;
    }
    let mut all = Vec::new();
    while all.len() < 12 {
        let received = account.aws.receive(&queue, HIDDEN, Clock::system().wall()).await.expect("received");
        assert!(!received.is_empty() && received.len() <= 10, "{received:?}");
        assert!(received.iter().all(|m| matches!(m.content, Content::Malformed(_))));
        all.extend(receipts(&received));
    }
    account.aws.delete_messages(&queue, &all).await.expect("answered");
    account.aws.delete_messages(&queue, &["nonsense".to_owned()]).await.expect("answered");
}

#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
async fn a_message_is_hidden_until_it_is_given_back() {
    let account = Account::open().await;
    let queue = account.queue("kept").await;
    account.put(&queue, LIFECYCLE_ACTION).await;
    let first = account.aws.receive(&queue, HIDDEN, Clock::system().wall()).await.expect("received");
    account.aws.keep_messages(&queue, &receipts(&first), Duration::from_hours(1)).await.expect("kept");
    let short = account.queues.receive_message().queue_url(&queue).send().await.expect("answered");
    assert_eq!(short.messages().len(), 0);
    account.aws.keep_messages(&queue, &receipts(&first), Duration::ZERO).await.expect("given back");
    let again = account.aws.receive(&queue, HIDDEN, Clock::system().wall()).await.expect("received");
    assert_eq!((again.len(), &again[0].id), (1, &first[0].id));
    account.aws.delete_messages(&queue, &receipts(&again)).await.expect("deleted");
}

#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
async fn a_queue_that_is_not_there_is_told_apart() {
    let account = Account::open().await;
    let queue = account.queue("there").await;
    let gone = format!("{queue}-not");
    let refusal = account.aws.receive(&gone, HIDDEN, Clock::system().wall()).await;
    assert!(matches!(refusal, Err(AwsError::NoSuchQueue { .. })), "{refusal:?}");
}

#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
async fn how_a_queue_is_set_up_is_told_by_its_attributes() {
    let account = Account::open().await;
    let (queue, dead) = (account.queue("settings").await, account.queue("dead-letters").await);
    let bare = account.aws.queue_attributes(&queue).await.expect("told");
    assert_eq!((bare.receives, bare.policy.is_null(), bare.key), (None, true, None));
    let asked =
        account.queues.get_queue_attributes().queue_url(dead).attribute_names(QueueAttributeName::All);
    let attributes = asked.send().await.expect("told").attributes.expect("some");
    let arn = &attributes[&QueueAttributeName::QueueArn];
    let policy = serde_json::json!({ "Version": "2012-10-17", "Id": "ebbtide", "Statement": [{
        "Effect": "Allow", "Principal": { "Service": "events.amazonaws.com" }, "Action": "sqs:SendMessage",
        "Resource": "*",
    }] });
    let set = account
        .queues
        .set_queue_attributes()
        .queue_url(&queue)
        .attributes(QueueAttributeName::Policy, policy.to_string())
        .attributes(
            QueueAttributeName::RedrivePolicy,
            format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1000}}"#),
        )
        .attributes(QueueAttributeName::MessageRetentionPeriod, "3600")
        .attributes(QueueAttributeName::DelaySeconds, "7");
    set.send().await.expect("set");
    let told = account.aws.queue_attributes(&queue).await.expect("told");
    assert_eq!((told.receives, told.retention), (Some(1_000), Some(Duration::from_hours(1))));
    assert_eq!(
        (told.delay, &told.policy["Statement"][0]["Principal"]["Service"]),
        (Duration::from_secs(7), &"events.amazonaws.com".into())
    );
    let gone = account.aws.queue_attributes(&format!("{queue}-not")).await;
    assert!(matches!(gone, Err(AwsError::NoSuchQueue { .. })), "{gone:?}");
}
