//! What is found about the queues of `--queue-url`. Pure.

use std::time::Duration;

use serde_json::Value;

use super::facts::QueueFacts;
use super::finding::{Finding, Severity, add, in_words};
use crate::aws::{AwsError, QueueAttributes};
use crate::telemetry::chain;

/// A message about somebody else's instance comes again until it has lapsed, two weeks later at most: docs/notices.md.
const NORMAL_RECEIVES: u32 = 500;

/// The longest that SQS allows. Maintenance that waits for its turn is known after a restart by its message alone: docs/notices.md.
///
/// Source: [message retention period](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html).
const LONGEST_RETENTION: Duration = Duration::from_hours(14 * 24);

/// What is kept for less is lost whenever nobody reads for a while, and a message that names others beside ours is hidden for up to an hour.
const LEAST_RETENTION: Duration = Duration::from_hours(1);

/// The principal of EventBridge's rules.
const EVENT_BRIDGE: &str = "events.amazonaws.com";

/// The key that AWS keeps for SQS. Its policy cannot be changed, so that no service of AWS's can use it for a queue.
///
/// Source: [Key management](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html#compatibility-with-aws-services).
const KEY_OF_AWS: &str = "alias/aws/sqs";

/// Adds what is found about the queues, and about there being none.
pub(super) fn queues(all: &[QueueFacts], found: &mut Vec<Finding>) {
    if all.is_empty() {
        let text = "none: spot interruptions, rebalance recommendations and maintenance are not told, other ends are seen by refreshes";
        add(found, Severity::Note, "queues", "--queue-url", text, "make a queue: docs/notices.md");
    }
    for QueueFacts { url, attributes } in all {
        match attributes {
            Ok(attributes) => queue(url, attributes, found),
            // Told as a finding about IAM.
            Err(AwsError::Denied { .. }) => {}
            Err(AwsError::NoSuchQueue { .. }) => {
                let fix = "correct --queue-url, or make the queue: docs/notices.md";
                add(found, Severity::Error, "queues", url, "there is no such queue", fix);
            }
            Err(error) => {
                let text = format!("cannot be reached: {}", chain(error));
                let fix =
                    "see --queue-url, the region, and the way to SQS (in a private network its VPC endpoint)";
                add(found, Severity::Error, "queues", url, text, fix);
            }
        }
    }
}

fn queue(url: &str, queue: &QueueAttributes, found: &mut Vec<Finding>) {
    let mut say = |severity, text: String, fix: &str| add(found, severity, "queues", url, text, fix);
    if everybody_sends(&queue.policy) {
        let text =
            "its policy lets everybody send: whoever does can have machines drained within two minutes";
        let fix =
            "let events.amazonaws.com alone send, with the rules' ARNs as aws:SourceArn: docs/notices.md";
        say(Severity::Error, text.to_owned(), fix);
    } else if !event_bridge_sends(&queue.policy) {
        let text = "its policy does not let EventBridge send: notices do not come, unless groups notify the queue themselves";
        let fix = "allow sqs:SendMessage to the service events.amazonaws.com in the queue's policy: docs/notices.md";
        say(Severity::Warning, text.to_owned(), fix);
    }
    match queue.key.as_deref() {
        Some(key) if key.ends_with(KEY_OF_AWS) => {
            let text =
                format!("is encrypted with {KEY_OF_AWS}, which EventBridge cannot use: notices do not come");
            say(Severity::Warning, text, "SQS's own encryption (SSE-SQS), or a key of yours");
        }
        Some(key) => {
            let text = format!("is encrypted with your key {key}, whose policy is not seen from here");
            let fix = "see that it allows kms:Decrypt to ebbtide's role, kms:Decrypt and kms:GenerateDataKey to events.amazonaws.com";
            say(Severity::Note, text, fix);
        }
        None => {}
    }
    // The queue's own visibility time-out does not matter: each receive sets one.
    match queue.receives {
        Some(most) if most <= NORMAL_RECEIVES => {
            let text = format!(
                "gives messages to the dead-letter queue after {most} receives; one about another's instance is received \
                 {NORMAL_RECEIVES} times before it lapses"
            );
            say(Severity::Warning, text, "a maxReceiveCount of 1000");
        }
        Some(_) => {}
        None => {
            let text = "has no dead-letter queue: messages never handled are lost without a trace".to_owned();
            say(Severity::Note, text, "a redrive policy with a maxReceiveCount of 1000, and an alarm");
        }
    }
    if let Some(kept) = queue.retention.filter(|kept| *kept < LONGEST_RETENTION) {
        let text = format!(
            "keeps messages for {} only: what no ebbtide has read by then is lost, and so is, with a restart, maintenance that still waits for its turn",
            in_words(kept)
        );
        let severity = if kept < LEAST_RETENTION { Severity::Error } else { Severity::Warning };
        say(severity, text, "a message retention period of 14 days, the longest");
    }
    if !queue.delay.is_zero() {
        let text = format!(
            "delays every message by {}; a spot interruption comes two minutes before the end",
            in_words(queue.delay)
        );
        say(Severity::Warning, text, "a delay of 0");
    }
    if url.strip_suffix(".fifo").is_some() {
        let text = "is a FIFO queue: a message that waits for its Node holds back all behind it".to_owned();
        say(Severity::Warning, text, "a standard queue");
    }
}

/// Whether a statement lets EventBridge send, and none forbids it whatever the circumstances.
fn event_bridge_sends(policy: &Value) -> bool {
    let meant: Vec<&Value> = about_sending(policy)
        .filter(|statement| is_anybody(statement) || has(&statement["Principal"]["Service"], EVENT_BRIDGE))
        .collect();
    let forbids = |statement: &Value| statement["Effect"] == "Deny" && statement["Condition"].is_null();
    meant.iter().any(|statement| allows(statement)) && !meant.iter().any(|statement| forbids(statement))
}

fn everybody_sends(policy: &Value) -> bool {
    about_sending(policy)
        .any(|statement| allows(statement) && is_anybody(statement) && statement["Condition"].is_null())
}

fn allows(statement: &Value) -> bool {
    statement["Effect"] == "Allow"
}

/// Whether a statement names no principal in particular.
fn is_anybody(statement: &Value) -> bool {
    let principal = &statement["Principal"];
    has(principal, "*") || has(&principal["AWS"], "*")
}

/// The statements about sending messages.
///
/// Source: [Action](https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_action.html): names in any case, with stars.
fn about_sending(policy: &Value) -> impl Iterator<Item = &Value> {
    one_or_many(&policy["Statement"]).filter(|statement| {
        one_or_many(&statement["Action"]).filter_map(Value::as_str).any(|action| {
            let action = action.to_ascii_lowercase();
            match action.split_once('*') {
                Some((start, _)) => "sqs:sendmessage".starts_with(start),
                None => action == "sqs:sendmessage",
            }
        })
    })
}

fn has(value: &Value, text: &str) -> bool {
    one_or_many(value).any(|one| one == text)
}

fn one_or_many(value: &Value) -> impl Iterator<Item = &Value> {
    match value {
        Value::Array(many) => many.iter(),
        one => std::slice::from_ref(one).iter(),
    }
}
