//! The SQS API, version 2012-11-05: sending, receiving, deleting and keeping messages of standard queues, and how these are set
//! up.
//!
//! <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/Welcome.html>

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::error::ApiError;
use super::group::after;
use super::journal::Event;
use super::json;
use super::operation::Operation;
use super::query::Form;
use super::queues::{Copy, Queue};
use super::state::State;
use crate::sim::http::Request;

/// The API's version; no request contains it.
pub(super) const VERSION: &str = "2012-11-05";

/// Prefix of the operation in its header.
const TARGET: &str = "AmazonSQS.";

/// The request as a form, if it is one to SQS.
pub(super) fn form(request: &Request) -> Option<Form> {
    json::form(request, TARGET, VERSION)
}

/// The error's name in this protocol, by its code in the old one.
///
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html>
pub(super) fn shape(code: &str) -> String {
    let name = match code.strip_prefix("AWS.SimpleQueueService.").unwrap_or(code) {
        "NonExistentQueue" => "QueueDoesNotExist",
        name => name,
    };
    format!("com.amazonaws.sqs#{name}")
}

pub(super) fn dispatch(
    state: &mut State,
    operation: Operation,
    form: &Form,
    now: Timestamp,
) -> Result<Value, ApiError> {
    match operation {
        Operation::ReceiveMessage => receive(state, form, now),
        Operation::DeleteMessageBatch => delete(state, form, now),
        Operation::ChangeMessageVisibilityBatch => change_visibility(state, form, now),
        Operation::ListQueues => Ok(list(state, form)),
        Operation::GetQueueUrl => find(state, form),
        Operation::GetQueueAttributes => attributes(state, form, now),
        Operation::SendMessage => send(state, form, now),
        _ => Err(ApiError::unknown_path(form.get("Action").unwrap_or_default())),
    }
}

/// How long a receive waits if there is no message now.
pub(super) fn waits_until(state: &State, form: &Form, now: Timestamp) -> Option<Timestamp> {
    let queue = state.queues.get(form.get("QueueUrl")?)?;
    let seconds = wait_seconds(form).ok().filter(|seconds| *seconds > 0)?;
    let has_some = queue.next_receivable().is_some_and(|next| next <= now);
    (!has_some).then(|| after(now, Duration::from_secs(seconds)))
}

fn wait_seconds(form: &Form) -> Result<u64, ApiError> {
    bounded(form, "WaitTimeSeconds", 0, 0, 20)
}

fn bounded(form: &Form, name: &str, default: u64, least: u64, most: u64) -> Result<u64, ApiError> {
    let value = form.parsed(name)?.unwrap_or(default);
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    let text = format!(
        "Value {value} for parameter {name} is invalid. Reason: Must be between {least} and {most}, if provided."
    );
    Err(invalid(text))
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::client("InvalidParameterValue", message)
}

fn queue<'a>(state: &'a mut State, form: &Form) -> Result<(String, &'a mut Queue), ApiError> {
    let url = form.required("QueueUrl")?;
    let queue = state.queues.get_mut(url).ok_or_else(ApiError::no_such_queue)?;
    Ok((url.to_owned(), queue))
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html>
fn receive(state: &mut State, form: &Form, now: Timestamp) -> Result<Value, ApiError> {
    wait_seconds(form)?;
    let most = bounded(form, "MaxNumberOfMessages", 1, 1, 10)? as usize;
    let visibility = match form.get("VisibilityTimeout") {
        Some(_) => Some(Duration::from_secs(bounded(form, "VisibilityTimeout", 0, 0, 43_200)?)),
        None => None,
    };
    let attributes = [form.list("MessageSystemAttributeNames"), form.list("AttributeNames")].concat();
    let url = queue(state, form)?.0;
    state.move_dead_letters(&url, now);
    let ahead = state.shared.ahead;
    let delivery = state.shared.behaviour.delivery;
    let Some(queue) = state.queues.get_mut(&url) else { return Err(ApiError::no_such_queue()) };
    let received = queue.receive(most, visibility, now, |order| {
        if delivery.shuffled {
            state.events.dice.shuffle(order);
        }
    });
    let messages: Vec<Value> = received
        .iter()
        .map(|Copy { id, receipt, body, sent, received }| {
            let sent = sent.checked_add(ahead).unwrap_or(*sent).as_millisecond();
            let known =
                [("ApproximateReceiveCount", received.to_string()), ("SentTimestamp", sent.to_string())];
            let asked = |name: &str| attributes.contains(&name) || attributes.contains(&"All");
            let told: serde_json::Map<String, Value> = known
                .into_iter()
                .filter(|(name, _)| asked(name))
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect();
            json!({ "MessageId": id, "ReceiptHandle": receipt, "Body": body, "Attributes": told })
        })
        .collect();
    // An answer without messages has no list.
    Ok(if messages.is_empty() { json!({}) } else { json!({ "Messages": messages }) })
}

/// What has no value is left out.
///
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_GetQueueAttributes.html>
fn attributes(state: &mut State, form: &Form, now: Timestamp) -> Result<Value, ApiError> {
    let asked = form.list("AttributeNames");
    let mut known = queue(state, form)?.1.attributes(now);
    known.retain(|name, _| asked.contains(name) || asked.contains(&"All"));
    Ok(if known.is_empty() { json!({}) } else { json!({ "Attributes": known }) })
}

/// The entries of a batch: ten at most, with distinct ids.
///
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessageBatch.html>
fn entries(form: &Form) -> Result<Vec<Form>, ApiError> {
    let entries = form.structures("Entries");
    let ids: BTreeSet<_> = entries.iter().filter_map(|entry| entry.get("Id")).collect();
    if entries.is_empty() {
        let text = "There should be at least one DeleteMessageBatchRequestEntry in the request.";
        return Err(ApiError::client("AWS.SimpleQueueService.EmptyBatchRequest", text));
    }
    if entries.len() > 10 {
        let text = format!("Maximum number of entries per request are 10. You have sent {}.", entries.len());
        return Err(ApiError::client("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", text));
    }
    if ids.len() < entries.len() {
        let text = "Two or more batch entries in the request have the same Id.";
        return Err(ApiError::client("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", text));
    }
    Ok(entries)
}

/// Carries out a batch, entry by entry.
fn batch(entries: &[Form], mut each: impl FnMut(&Form) -> Result<(), ApiError>) -> Result<Value, ApiError> {
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for entry in entries {
        let id = entry.required("Id")?;
        match each(entry) {
            Ok(()) => successful.push(json!({ "Id": id })),
            Err(ApiError { code, status, message }) => failed.push(json!({
                "Id": id, "SenderFault": status < 500, "Code": code, "Message": message,
            })),
        }
    }
    Ok(json!({ "Successful": successful, "Failed": failed }))
}

/// Only the receipt of the latest receive deletes; an older one is answered as if it did.
///
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessage.html>
fn delete(state: &mut State, form: &Form, now: Timestamp) -> Result<Value, ApiError> {
    let entries = entries(form)?;
    let url = queue(state, form)?.0;
    let left = state.shared.behaviour.delivery.left;
    let mut refusals = state.faults.refused_entries(Operation::DeleteMessageBatch, entries.len());
    batch(&entries, |entry| {
        if let Some(refusal) = refusals.pop() {
            return Err(refusal.into());
        }
        let leaves_a_copy = left > 0.0 && state.events.dice.f64() < left;
        let queue = state.queues.get_mut(&url).ok_or_else(ApiError::no_such_queue)?;
        if let Some(message) = queue.delete(entry.required("ReceiptHandle")?, leaves_a_copy, now)? {
            state.shared.journal.record(now, Event::MessageDeleted { queue: url.clone(), message });
        }
        Ok(())
    })
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ChangeMessageVisibilityBatch.html>
fn change_visibility(state: &mut State, form: &Form, now: Timestamp) -> Result<Value, ApiError> {
    let entries = entries(form)?;
    let mut refusals = state.faults.refused_entries(Operation::ChangeMessageVisibilityBatch, entries.len());
    let (_, queue) = queue(state, form)?;
    batch(&entries, |entry| {
        if let Some(refusal) = refusals.pop() {
            return Err(refusal.into());
        }
        let visibility = Duration::from_secs(bounded(entry, "VisibilityTimeout", 0, 0, 43_200)?);
        queue.change_visibility(entry.required("ReceiptHandle")?, visibility, now)
    })
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ListQueues.html>
fn list(state: &State, form: &Form) -> Value {
    let prefix = form.get("QueueNamePrefix").unwrap_or_default();
    let named = |url: &&String| url.rsplit('/').next().is_some_and(|name| name.starts_with(prefix));
    let urls: Vec<&String> = state.queues.keys().filter(named).collect();
    // An answer without queues has no list.
    if urls.is_empty() { json!({}) } else { json!({ "QueueUrls": urls }) }
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_GetQueueUrl.html>
fn find(state: &State, form: &Form) -> Result<Value, ApiError> {
    let name = form.required("QueueName")?;
    let url = state.queues.keys().find(|url| url.rsplit('/').next() == Some(name));
    url.map(|url| json!({ "QueueUrl": url })).ok_or_else(ApiError::no_such_queue)
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html>
fn send(state: &mut State, form: &Form, now: Timestamp) -> Result<Value, ApiError> {
    let (url, body) = (form.required("QueueUrl")?.to_owned(), form.required("MessageBody")?.to_owned());
    let id = state.put_message(&url, body, now).ok_or_else(ApiError::no_such_queue)?;
    Ok(json!({ "MessageId": id }))
}
