//! Standard queues: messages that are there, in flight, or deleted.
//!
//! <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html>

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::error::ApiError;
use super::group::after;
use super::handle::Aws;
use super::journal::Event;
use super::state::{ACCOUNT, REGION, State};

/// Longest visibility time-out, counted from the receive.
///
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html>
const LONGEST_VISIBILITY: Duration = Duration::from_hours(12);

/// SQS's default visibility time-out.
const VISIBILITY: Duration = Duration::from_secs(30);

/// A queue to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    name: String,
    retention: Duration,
    dead_letters: Option<(String, u32)>,
    policy: Option<String>,
    key: Option<String>,
    hides_nothing: bool,
}

impl QueueSpec {
    /// A queue that keeps messages for four days, SQS's default.
    ///
    /// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html>
    pub fn named(name: impl Into<String>) -> Self {
        let retention = Duration::from_hours(4 * 24);
        let hides_nothing = false;
        Self { name: name.into(), retention, dead_letters: None, policy: None, key: None, hides_nothing }
    }

    /// As somebody's own endpoint in place of SQS may be: messages are there until they are deleted.
    #[must_use]
    pub fn that_hides_nothing(mut self) -> Self {
        self.hides_nothing = true;
        self
    }

    /// Keeps messages for this long.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Moves messages that were received this often to another queue.
    ///
    /// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-dead-letter-queues.html>
    #[must_use]
    pub fn dead_letters(mut self, queue: impl Into<String>, max_receives: u32) -> Self {
        self.dead_letters = Some((queue.into(), max_receives));
        self
    }

    /// With a policy that says who may send. It is told and not enforced: the world's own events come in any case.
    #[must_use]
    pub fn policy(mut self, document: impl Into<String>) -> Self {
        self.policy = Some(document.into());
        self
    }

    /// Encrypted with this key of KMS.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    spec: QueueSpec,
    /// In order of arrival.
    messages: BTreeMap<u64, Stored>,
    deleted: Vec<(Timestamp, Stored)>,
}

#[derive(Clone, Debug)]
struct Stored {
    id: String,
    body: String,
    sent: Timestamp,
    visible: Timestamp,
    received: u32,
    /// Its latest receive.
    handed: Timestamp,
}

/// A received message.
pub(super) struct Copy {
    pub(super) id: String,
    pub(super) receipt: String,
    pub(super) body: String,
    pub(super) sent: Timestamp,
    pub(super) received: u32,
}

/// A queue at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Messages that can be received.
    pub visible: Vec<MessageSnapshot>,
    /// Messages that were received and are hidden.
    pub in_flight: Vec<MessageSnapshot>,
    /// Deleted messages, and when.
    pub deleted: Vec<(Timestamp, MessageSnapshot)>,
}

/// A message at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSnapshot {
    /// Its id.
    pub id: String,
    /// Its body.
    pub body: String,
    /// When it was sent.
    pub sent: Timestamp,
    /// How often it was received.
    pub received: u32,
    /// From when on it can be received.
    pub visible: Timestamp,
}

impl Stored {
    fn snapshot(&self) -> MessageSnapshot {
        let Self { id, body, sent, visible, received, .. } = self.clone();
        MessageSnapshot { id, body, sent, received, visible }
    }
}

impl Queue {
    pub(super) fn attributes(&self, now: Timestamp) -> BTreeMap<&'static str, String> {
        let QueueSpec { name, retention, dead_letters, policy, key, hides_nothing: _ } = &self.spec;
        let redrive = dead_letters.as_ref().map(|(to, most)| {
            let to = arn(to);
            serde_json::json!({ "deadLetterTargetArn": to, "maxReceiveCount": most }).to_string()
        });
        let QueueSnapshot { visible, in_flight, .. } = self.snapshot(now);
        let known = [
            ("ApproximateNumberOfMessages", Some(visible.len().to_string())),
            ("ApproximateNumberOfMessagesNotVisible", Some(in_flight.len().to_string())),
            ("ApproximateNumberOfMessagesDelayed", Some("0".to_owned())),
            ("QueueArn", Some(arn(name))),
            ("DelaySeconds", Some("0".to_owned())),
            ("MessageRetentionPeriod", Some(retention.as_secs().to_string())),
            ("VisibilityTimeout", Some(VISIBILITY.as_secs().to_string())),
            ("RedrivePolicy", redrive),
            ("Policy", policy.clone()),
            ("KmsMasterKeyId", key.clone()),
        ];
        known.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn is_exhausted(&self, message: &Stored) -> bool {
        self.spec.dead_letters.as_ref().is_some_and(|(_, most)| message.received >= *most)
    }

    /// When the next message can be received.
    pub(super) fn next_receivable(&self) -> Option<Timestamp> {
        let all = self.messages.values().filter(|message| !self.is_exhausted(message));
        all.map(|message| message.visible).min()
    }

    /// Hands out visible messages, after `arrange` has set their order.
    pub(super) fn receive(
        &mut self,
        most: usize,
        visibility: Option<Duration>,
        now: Timestamp,
        arrange: impl FnOnce(&mut Vec<u64>),
    ) -> Vec<Copy> {
        let hidden = if self.spec.hides_nothing { Duration::ZERO } else { visibility.unwrap_or(VISIBILITY) };
        let retention = self.spec.retention;
        self.messages.retain(|_, message| after(message.sent, retention) > now);
        let mut order: Vec<u64> =
            self.messages.iter().filter(|(_, message)| message.visible <= now).map(|(n, _)| *n).collect();
        arrange(&mut order);
        order.truncate(most);
        let mut copies = Vec::new();
        for number in order {
            let Some(message) = self.messages.get_mut(&number) else { continue };
            message.received = message.received.saturating_add(1);
            (message.visible, message.handed) = (after(now, hidden), now);
            let Stored { id, body, sent, received, .. } = message.clone();
            copies.push(Copy { receipt: receipt(number, received), id, body, sent, received });
        }
        copies
    }

    /// Deletes a message if the receipt is its latest. Returns its id.
    pub(super) fn delete(
        &mut self,
        handle: &str,
        leaves_a_copy: bool,
        now: Timestamp,
    ) -> Result<Option<String>, ApiError> {
        let (number, received) = parse(handle)?;
        if self.messages.get(&number).is_none_or(|message| message.received != received) {
            return Ok(None);
        }
        // "you might get that message copy again"
        // https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues-at-least-once-delivery.html
        let deleted =
            if leaves_a_copy { self.messages.get(&number).cloned() } else { self.messages.remove(&number) };
        Ok(deleted.map(|message| {
            let id = message.id.clone();
            self.deleted.push((now, message));
            id
        }))
    }

    pub(super) fn change_visibility(
        &mut self,
        handle: &str,
        visibility: Duration,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let (number, received) = parse(handle)?;
        let message = self.messages.get_mut(&number).filter(|message| message.received == received);
        let Some(message) = message else {
            let text = format!(
                "Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not \
                 available for visibility timeout change."
            );
            return Err(ApiError::client("InvalidParameterValue", text));
        };
        if message.visible <= now {
            let text = format!("The message referred to by {handle} isn't in flight.");
            return Err(ApiError::client("AWS.SimpleQueueService.MessageNotInflight", text));
        }
        let visible = after(now, visibility);
        if visible > after(message.handed, LONGEST_VISIBILITY) {
            let text = format!(
                "Value {} for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message \
                 is beyond the limit [43200 seconds].",
                visibility.as_secs()
            );
            return Err(ApiError::client("InvalidParameterValue", text));
        }
        message.visible = visible;
        Ok(())
    }

    pub(super) fn snapshot(&self, now: Timestamp) -> QueueSnapshot {
        let (visible, in_flight) =
            self.messages.values().map(Stored::snapshot).partition(|message| message.visible <= now);
        let deleted = self.deleted.iter().map(|(at, message)| (*at, message.snapshot())).collect();
        QueueSnapshot { visible, in_flight, deleted }
    }
}

/// The receipt handle: a new one at each receive.
fn receipt(number: u64, received: u32) -> String {
    format!("AQEB{number:016x}{received:08x}")
}

fn parse(handle: &str) -> Result<(u64, u32), ApiError> {
    let parts = handle.strip_prefix("AQEB").and_then(|hex| hex.split_at_checked(16));
    let numbers = parts.and_then(|(number, received)| {
        Some((u64::from_str_radix(number, 16).ok()?, u32::from_str_radix(received, 16).ok()?))
    });
    numbers.ok_or_else(|| {
        let text = format!("The input receipt handle \"{handle}\" is not a valid receipt handle.");
        ApiError::client("ReceiptHandleIsInvalid", text)
    })
}

fn arn(name: &str) -> String {
    format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")
}

fn url(name: &str) -> String {
    format!("https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{name}")
}

impl State {
    /// Puts a message into a queue. Returns its id; `None` without such a queue.
    pub fn put_message(&mut self, queue: &str, body: impl Into<String>, now: Timestamp) -> Option<String> {
        let number = self.events.next_number();
        let id = self.events.uuid();
        let stored =
            Stored { id: id.clone(), body: body.into(), sent: now, visible: now, received: 0, handed: now };
        self.queues.get_mut(queue)?.messages.insert(number, stored);
        self.shared.journal.record(now, Event::MessageSent { queue: queue.to_owned(), message: id.clone() });
        Some(id)
    }

    /// Moves messages that were received too often to the dead-letter queue.
    pub(super) fn move_dead_letters(&mut self, queue: &str, now: Timestamp) {
        let Some(from) = self.queues.get_mut(queue) else { return };
        let Some((to, _)) = from.spec.dead_letters.clone() else { return };
        let exhausted: Vec<u64> = from
            .messages
            .iter()
            .filter(|(_, message)| message.visible <= now && from.is_exhausted(message))
            .map(|(number, _)| *number)
            .collect();
        let dead: Vec<(u64, Stored)> =
            exhausted.iter().filter_map(|number| from.messages.remove_entry(number)).collect();
        if let Some(to) = self.queues.get_mut(&url(&to)) {
            to.messages.extend(dead);
        }
    }
}

/// Queues.
impl Aws {
    /// Adds a queue, or replaces one of the same name. Returns its URL.
    pub fn add_queue(&self, spec: QueueSpec) -> String {
        self.script(|state, _| {
            let url = url(&spec.name);
            let queue = Queue { spec, messages: BTreeMap::new(), deleted: Vec::new() };
            state.queues.insert(url.clone(), queue);
            url
        })
    }

    /// Deletes a queue with all its messages.
    pub fn delete_queue(&self, queue: &str) {
        self.script(|state, _| state.queues.remove(queue));
    }

    /// Puts a message into a queue. Returns its id; `None` without such a queue.
    pub fn put_message(&self, queue: &str, body: impl Into<String>) -> Option<String> {
        self.script(|state, now| state.put_message(queue, body, now))
    }

    /// The queue as of now.
    pub fn queue(&self, queue: &str) -> Option<QueueSnapshot> {
        let now = self.clock().now();
        self.look(|state| state.queues.get(queue).map(|queue| queue.snapshot(now)))
    }
}
