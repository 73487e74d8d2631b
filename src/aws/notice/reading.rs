//! Bodies of messages → what they tell, in the shapes that AWS documents.
//!
//! - An event of EventBridge: `detail-type`, `time`, `detail`.
//! - The notification of a group's lifecycle hook, straight to the queue: no envelope.
//! - Either of them inside the notification of an SNS topic without raw delivery.
//!
//! Whoever may write to the queue chooses the bytes: every text that is kept is checked and bounded, and nothing here
//! can panic.

use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{About, Content, News, Notice};
use crate::clock::{is_plausible, later};
use crate::k8s::InstanceId;

/// Bytes of the largest message that is read. Parsed, tiny objects take a hundred times their text. Messages of
/// these kinds have some KiB, and no notification of SNS more than this; a queue takes four times as much.
///
/// Source: [Publish](https://docs.aws.amazon.com/sns/latest/api/API_Publish.html).
const LARGEST_BODY: usize = 256 << 10;
/// Characters of the longest name of a group or hook.
///
/// Source: [PutLifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html).
const LONGEST_NAME: usize = 255;
/// Characters of the longest ARN of an event.
///
/// Source: [Event](https://docs.aws.amazon.com/health/latest/APIReference/API_Event.html).
const LONGEST_ARN: usize = 1_600;
/// Characters of an id after its prefix: twice what AWS has today, 17.
const LONGEST_ID: usize = 34;
/// From the notice until the capacity is taken back.
///
/// Source: [Monitor interruptible Capacity
/// Reservations](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html).
const INTERRUPTION: SignedDuration = SignedDuration::from_mins(2);
/// How long EventBridge tries to deliver an event, and an hour.
///
/// Source: [Retrying event delivery](https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-rule-retry-policy.html).
const DELIVERED_WITHIN: SignedDuration = SignedDuration::from_hours(25);
/// From a Capacity Block's warning until its instances begin to be terminated, and from then to its end date. For UltraServers both are
/// half an hour earlier.
///
/// Source: [Monitor Capacity
/// Blocks](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html): the warning comes 40
/// minutes before the end.
const BLOCK_WARNING: SignedDuration = SignedDuration::from_mins(10);
const BLOCK_ENDS_EARLY: SignedDuration = SignedDuration::from_mins(30);

impl Content {
    /// Reads a message's body. If it has no time that can be read, the time at which it was `sent` counts: people
    /// write messages too, and a warning must not be lost for that. The same for one of years ago, as examples have it, and for a time to
    /// come. Texts from the body are quoted, without control characters, and short.
    pub fn read(body: &str, sent: Timestamp) -> Self {
        read(body, sent).unwrap_or_else(Self::Malformed)
    }
}

/// Reads a body, or tells why nobody can.
fn read(body: &str, sent: Timestamp) -> Result<Content, String> {
    let message = object(body)?;
    // https://docs.aws.amazon.com/sns/latest/dg/sns-sqs-as-subscriber.html
    let by_topic = text(&message, "TopicArn").is_some();
    match (text(&message, "Type"), text(&message, "Message")) {
        // Whoever passes it on may leave the topic out.
        (Some("Notification"), Some(inner)) => of_message(&object(inner)?, sent),
        (Some("Notification"), None) if by_topic => Err("no text Message".to_owned()),
        (Some(other), _) if by_topic => Ok(Content::Nothing(format!("SNS message {}", quoted(other)))),
        _ => of_message(&message, sent),
    }
}

fn of_message(message: &Value, sent: Timestamp) -> Result<Content, String> {
    // `detail_type` as in the page on Capacity Blocks.
    let kind = text(message, "detail-type").or_else(|| text(message, "detail_type"));
    if let Some(kind) = kind {
        return of_event(kind, message, sent);
    }
    match text(message, "Event") {
        // https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
        Some("autoscaling:TEST_NOTIFICATION") => Ok(Content::Nothing("test notification".to_owned())),
        Some(other) => Ok(Content::Nothing(format!("notification {}", quoted(other)))),
        None if message.get("LifecycleTransition").is_some() => {
            lifecycle_action(message, written(message, "Time", sent))
        }
        None => Err("neither an EventBridge event nor a notification of a lifecycle hook".to_owned()),
    }
}

fn of_event(kind: &str, event: &Value, sent: Timestamp) -> Result<Content, String> {
    let at = written(event, "time", sent);
    let detail = event.get("detail").unwrap_or(&Value::Null);
    let news = match kind {
        "EC2 Instance-terminate Lifecycle Action" | "EC2 Instance-launch Lifecycle Action" => {
            return lifecycle_action(detail, at);
        }
        "AWS Health Event" => return health(detail, at),
        "Capacity Block Reservation Expiration Warning" | "Capacity Block Expiration Warning" => {
            return capacity_block(detail, at);
        }
        "EC2 Spot Instance Interruption Warning" => News::SpotInterruption,
        "EC2 Instance Rebalance Recommendation" => News::RebalanceRecommendation,
        "EC2 Instance State-change Notification" => match required(detail, "state")? {
            "stopping" | "stopped" | "shutting-down" | "terminated" => News::StateChange,
            other => return Ok(Content::Nothing(format!("instance state {}", quoted(other)))),
        },
        // The page's own two spellings, in its present and in an earlier version.
        "EC2 Capacity Reservation Instance Interruption Warning"
        | "EC2 Interruptible Capacity Reservation Instance Interruption Warning" => {
            let ends = text(detail, "instance-termination-time").and_then(moment);
            News::CapacityEnds(match ends {
                Some(ends) => ends,
                None => later(at, INTERRUPTION),
            })
        }
        other => return Ok(Content::Nothing(format!("event {}", quoted(other)))),
    };
    let about = About::Instance(instance(required(detail, "instance-id")?)?);
    // A time that no delivery explains is that of a test or a wrong clock: acting on a warning is safe, and dropping it is not. A stop
    // undoes what has started since.
    let is_warning = matches!(news, News::SpotInterruption | News::RebalanceRecommendation);
    let is_replayed = event.get("replay-name").is_some();
    let is_undated = is_warning && !is_replayed && later(at, DELIVERED_WITHIN) < sent;
    let at = if is_undated { sent } else { at };
    Ok(Content::Notices(vec![Notice { about, at, news }]))
}

/// Sources: [event
/// reference](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html), [lifecycle
/// notifications](https://docs.aws.amazon.com/autoscaling/ec2/userguide/prepare-for-lifecycle-notifications.html).
fn lifecycle_action(action: &Value, at: Timestamp) -> Result<Content, String> {
    let news = match required(action, "LifecycleTransition")? {
        "autoscaling:EC2_INSTANCE_TERMINATING" => News::LifecycleAction {
            group: bounded(action, "AutoScalingGroupName", LONGEST_NAME)?.into(),
            hook: bounded(action, "LifecycleHookName", LONGEST_NAME)?.to_owned(),
        },
        _ => News::OtherTransition,
    };
    let about = About::Instance(instance(required(action, "EC2InstanceId")?)?);
    Ok(Content::Notices(vec![Notice { about, at, news }]))
}

/// Every page of an event names instances of its own, so pages need not be put together.
///
/// Source: [AWS Health event
/// schema](https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html).
fn health(detail: &Value, at: Timestamp) -> Result<Content, String> {
    let (service, category) = (required(detail, "service")?, required(detail, "eventTypeCategory")?);
    let code = required(detail, "eventTypeCode")?;
    // A planned lifecycle event asks the owner to move to something newer: nobody takes the instance away.
    if service != "EC2" || category != "scheduledChange" || code.ends_with("_PLANNED_LIFECYCLE_EVENT") {
        return Ok(Content::Nothing(format!("AWS Health event {}", quoted(code))));
    }
    let is_closed = text(detail, "statusCode") == Some("closed");
    let entities = detail.get("affectedEntities").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (mut notices, mut unreadable) = (Vec::new(), None);
    for entity in entities {
        let Some(value) = text(entity, "entityValue") else { continue };
        // An id or an ARN. Events about dedicated hosts and reservations come in the same shape.
        let id = value.rsplit('/').next().unwrap_or(value);
        if !id.starts_with("i-") {
            continue;
        }
        // One that cannot be read takes none of the others with it.
        let instance = match instance(id) {
            Ok(instance) => instance,
            Err(why) => {
                unreadable = Some(why);
                continue;
            }
        };
        let news = News::ScheduledEvent {
            event: bounded(detail, "eventArn", LONGEST_ARN).ok().map(str::to_owned),
            starts: text(detail, "startTime").and_then(moment),
            ends: text(detail, "endTime").and_then(moment),
            is_over: is_closed || text(entity, "status") == Some("RESOLVED"),
        };
        notices.push(Notice { about: About::Instance(instance), at, news });
    }
    if let Some(why) = unreadable.filter(|_| notices.is_empty()) {
        return Err(why);
    }
    if notices.is_empty() {
        return Ok(Content::Nothing(format!("AWS Health event {} of no instance", quoted(code))));
    }
    Ok(Content::Notices(notices))
}

fn capacity_block(detail: &Value, at: Timestamp) -> Result<Content, String> {
    let id = required(detail, "capacity-reservation-id")?;
    if !is_id("cr-", id) {
        return Err(format!("{} is no id of a Capacity Reservation", quoted(id)));
    }
    // Nobody documents the date's format.
    let ends = text(detail, "end-date").and_then(moment);
    let begins = ends.and_then(|ends| ends.checked_sub(BLOCK_ENDS_EARLY).ok());
    let warned = later(at, BLOCK_WARNING);
    let news = News::CapacityEnds(begins.map_or(warned, |begins| begins.min(warned)));
    Ok(Content::Notices(vec![Notice { about: About::CapacityReservation(id.to_owned()), at, news }]))
}

fn object(body: &str) -> Result<Value, String> {
    if body.len() > LARGEST_BODY {
        return Err(format!("{} bytes", body.len()));
    }
    match serde_json::from_str(body) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(format!("no JSON object: {}", quoted(body))),
        Err(error) => Err(format!("no JSON ({error}): {}", quoted(body))),
    }
}

fn text<'a>(of: &'a Value, name: &str) -> Option<&'a str> {
    of.get(name)?.as_str()
}

fn required<'a>(of: &'a Value, name: &str) -> Result<&'a str, String> {
    text(of, name).ok_or_else(|| format!("no text {name}"))
}

fn bounded<'a>(of: &'a Value, name: &str, longest: usize) -> Result<&'a str, String> {
    let value = required(of, name)?;
    if value.is_empty() || value.chars().count() > longest || value.chars().any(char::is_control) {
        return Err(format!("{name} {} is empty, too long or has control characters", quoted(value)));
    }
    Ok(value)
}

/// When a message says that it was written, which was no later than it was `sent`.
fn written(message: &Value, name: &str, sent: Timestamp) -> Timestamp {
    let at = text(message, name).and_then(|text| text.parse().ok()).filter(|at| is_plausible(*at));
    at.map_or(sent, |at| at.min(sent))
}

fn instance(id: &str) -> Result<InstanceId, String> {
    if is_id("i-", id) { Ok(id.into()) } else { Err(format!("{} is no instance id", quoted(id))) }
}

fn is_id(prefix: &str, id: &str) -> bool {
    let rest = id.strip_prefix(prefix).unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=LONGEST_ID).contains(&rest.len()) && rest.chars().all(is_plain)
}

/// A time of AWS Health, `Fri, 3 Jun 2022 05:01:10 GMT`: the weekday is wrong even in the documented example. Or one as
/// everywhere else.
fn moment(text: &str) -> Option<Timestamp> {
    let parser = rfc2822::DateTimeParser::new().relaxed_weekday(true);
    let at = text.parse().ok().or_else(|| parser.parse_timestamp(text).ok());
    at.filter(|at| is_plausible(*at))
}

/// The beginning of a text from outside, on one line.
fn quoted(text: &str) -> String {
    const ROOM: usize = 80;
    // An escaped character takes up to ten.
    let mut escaped = text.escape_debug();
    let begun: String = escaped.by_ref().take(ROOM).collect();
    let cut = if escaped.next().is_some() { "…" } else { "" };
    format!("\"{begun}\"{cut}")
}
