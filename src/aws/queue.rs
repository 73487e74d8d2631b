//! Queues of Amazon SQS that AWS's notices are read from. Standard queues: a message may come twice, late, or out of
//! order.

use std::time::Duration;

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, MessageSystemAttributeName,
    QueueAttributeName,
};
use jiff::Timestamp;
use serde_json::Value;

use super::notice::Content;
use super::retry::{LOOK_UP, RECEIVE, WRITE};
use super::{Aws, AwsError, Operation};
use crate::clock::is_plausible;

/// Messages in a call, at most.
///
/// Sources: [ReceiveMessage](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html),
/// [DeleteMessageBatch](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessageBatch.html).
pub(crate) const MESSAGES_A_CALL: usize = 10;
/// How long a receive waits for a message: as long as SQS allows.
///
/// Source: [long polling](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-short-and-long-polling.html).
const WAIT_SECONDS: i32 = 20;
/// The longest visibility time-out.
///
/// Source: [visibility
/// time-out](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html).
const LONGEST_VISIBILITY: Duration = Duration::from_hours(12);

/// A message of a queue. Until its visibility time-out ends, nobody else gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The same each time the message is received.
    pub id: String,
    /// To delete it by; that of the latest receive counts.
    pub receipt: String,
    /// What it says.
    pub content: Content,
}

/// How a queue is set up.
///
/// Source: [GetQueueAttributes](https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_GetQueueAttributes.html).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueAttributes {
    /// Its ARN.
    pub arn: String,
    /// Who may do what with it: a policy document. Null without one.
    pub policy: Value,
    /// How often a message is received before it goes to the dead-letter queue; `None`: there is none.
    pub receives: Option<u32>,
    /// How long messages are kept.
    pub retention: Option<Duration>,
    /// How long after it was sent a message can be received first.
    pub delay: Duration,
    /// The key of KMS that it is encrypted with, by id, ARN or alias; `None`: by SQS itself.
    pub key: Option<String>,
}

impl QueueAttributes {
    fn read(get: impl Fn(QueueAttributeName) -> Option<String>) -> Self {
        let seconds = |name| Some(Duration::from_secs(get(name)?.parse().ok()?));
        let document = |name| serde_json::from_str(&get(name)?).ok();
        let redrive: Option<Value> = document(QueueAttributeName::RedrivePolicy);
        // A number, or one in a text: both are taken by SetQueueAttributes.
        let receives = redrive.as_ref().map(|policy| &policy["maxReceiveCount"]);
        let receives = receives.and_then(|most| most.as_u64().or_else(|| most.as_str()?.parse().ok()));
        Self {
            arn: get(QueueAttributeName::QueueArn).unwrap_or_default(),
            policy: document(QueueAttributeName::Policy).unwrap_or_default(),
            receives: receives.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            retention: seconds(QueueAttributeName::MessageRetentionPeriod),
            delay: seconds(QueueAttributeName::DelaySeconds).unwrap_or_default(),
            key: get(QueueAttributeName::KmsMasterKeyId),
        }
    }
}

impl Aws {
    /// How a queue is set up.
    pub async fn queue_attributes(&self, queue: &str) -> Result<QueueAttributes, AwsError> {
        let call = self
            .sqs
            .get_queue_attributes()
            .queue_url(queue)
            .attribute_names(QueueAttributeName::QueueArn)
            .attribute_names(QueueAttributeName::Policy)
            .attribute_names(QueueAttributeName::RedrivePolicy)
            .attribute_names(QueueAttributeName::MessageRetentionPeriod)
            .attribute_names(QueueAttributeName::DelaySeconds)
            .attribute_names(QueueAttributeName::KmsMasterKeyId);
        let answer = self.call(Operation::GetQueueAttributes, LOOK_UP, || call.clone().send()).await?;
        let attributes = answer.attributes.unwrap_or_default();
        Ok(QueueAttributes::read(|name| attributes.get(&name).cloned()))
    }

    /// Up to ten messages, hidden from other receivers for so long; none after twenty seconds without any. One of which nothing says when it
    /// was sent counts from `now`.
    pub async fn receive(
        &self,
        queue: &str,
        hidden: Duration,
        now: Timestamp,
    ) -> Result<Vec<Message>, AwsError> {
        let call = self
            .sqs
            .receive_message()
            .queue_url(queue)
            .max_number_of_messages(MESSAGES_A_CALL as i32)
            .wait_time_seconds(WAIT_SECONDS)
            .visibility_timeout(hidden.min(LONGEST_VISIBILITY).as_secs() as i32)
            .message_system_attribute_names(MessageSystemAttributeName::SentTimestamp);
        let answer = self.call(Operation::ReceiveMessage, RECEIVE, || call.clone().send()).await?;
        let messages = answer.messages.unwrap_or_default().into_iter();
        Ok(messages.filter_map(|from| message(from, now)).collect())
    }

    /// Deletes messages by receipt, ten a call. Those that AWS refuses come again, as messages may at any time.
    pub async fn delete_messages(&self, queue: &str, receipts: &[String]) -> Result<(), AwsError> {
        for batch in receipts.chunks(MESSAGES_A_CALL) {
            let entries = batch.iter().enumerate().filter_map(|(n, receipt)| {
                DeleteMessageBatchRequestEntry::builder()
                    .id(n.to_string())
                    .receipt_handle(receipt)
                    .build()
                    .ok()
            });
            let call = self.sqs.delete_message_batch().queue_url(queue).set_entries(Some(entries.collect()));
            self.call(Operation::DeleteMessageBatch, WRITE, || call.clone().send()).await?;
        }
        Ok(())
    }

    /// Hides messages from other receivers for this long from now on, 12 h at most; ten a call. Those that AWS refuses
    /// come again, as messages may at any time.
    pub async fn keep_messages(
        &self,
        queue: &str,
        receipts: &[String],
        visibility: Duration,
    ) -> Result<(), AwsError> {
        let seconds = visibility.min(LONGEST_VISIBILITY).as_secs() as i32;
        for batch in receipts.chunks(MESSAGES_A_CALL) {
            let entries = batch.iter().enumerate().filter_map(|(n, receipt)| {
                ChangeMessageVisibilityBatchRequestEntry::builder()
                    .id(n.to_string())
                    .receipt_handle(receipt)
                    .visibility_timeout(seconds)
                    .build()
                    .ok()
            });
            let call = self
                .sqs
                .change_message_visibility_batch()
                .queue_url(queue)
                .set_entries(Some(entries.collect()));
            self.call(Operation::ChangeMessageVisibilityBatch, WRITE, || call.clone().send()).await?;
        }
        Ok(())
    }
}

/// `None` without a receipt: it could not be deleted.
fn message(from: aws_sdk_sqs::types::Message, now: Timestamp) -> Option<Message> {
    let sent = from.attributes.as_ref().and_then(|told| told.get(&MessageSystemAttributeName::SentTimestamp));
    let sent = sent.and_then(|at| Timestamp::from_millisecond(at.parse().ok()?).ok());
    let sent = sent.filter(|at| is_plausible(*at)).unwrap_or(now);
    Some(Message {
        content: Content::read(from.body.as_deref().unwrap_or_default(), sent),
        id: from.message_id.unwrap_or_default(),
        receipt: from.receipt_handle?,
    })
}
