//! SQS, through the program's own adapter, and through the SDK where the adapter says less.

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as Keep, DeleteMessageBatchRequestEntry as Delete,
};

use super::*;
use crate::aws::{Aws as Adapter, AwsError, Content, Message};

const RECEIVE: Operation = Operation::ReceiveMessage;
/// As long as SQS hides messages by default.
const HIDDEN: Duration = Duration::from_secs(30);

fn adapter(bench: &Bench) -> Adapter {
    Adapter::at(aws_client(Arc::new(bench.aws.clone())))
}

fn sdk(bench: &Bench) -> aws_sdk_sqs::Client {
    let credentials = Credentials::new("AKIDTEST", "secret", None, None, "test");
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .http_client(aws_client(Arc::new(bench.aws.clone())))
        .retry_config(RetryConfig::disabled())
        .sleep_impl(TokioSleep::new());
    aws_sdk_sqs::Client::from_conf(config.build())
}

/// A world with a queue.
fn with_queue() -> (Bench, Adapter, String) {
    let bench = bench();
    let queue = bench.aws.add_queue(QueueSpec::named("ebbtide"));
    let adapter = adapter(&bench);
    (bench, adapter, queue)
}

fn bodies(messages: &[MessageSnapshot]) -> Vec<&str> {
    messages.iter().map(|message| message.body.as_str()).collect()
}

/// How often the only message that is in flight was received, and when it was sent.
fn in_flight(bench: &Bench, queue: &str) -> (u32, Timestamp) {
    let all = bench.aws.queue(queue).expect("it").in_flight;
    let [message] = &all[..] else { panic!("one message: {all:?}") };
    (message.received, message.sent)
}

fn receipts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.receipt.clone()).collect()
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-short-and-long-polling.html>
#[tokio::test(start_paused = true)]
async fn a_long_poll_ends_with_the_first_message_or_after_twenty_seconds() {
    let (bench, adapter, queue) = with_queue();
    let began = bench.clock.now();
    assert_eq!(adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer"), []);
    assert_eq!(bench.clock.now().duration_since(began).as_secs(), 20);
    let later = async {
        bench.pass(7).await;
        bench.aws.put_message(&queue, "hello")
    };
    let (received, id) = tokio::join!(adapter.receive(&queue, HIDDEN, bench.clock.now()), later);
    let received = received.expect("an answer");
    assert_eq!(bench.clock.now().duration_since(began).as_secs(), 27);
    let [message] = &received[..] else { panic!("one message: {received:?}") };
    assert_eq!(Some(&message.id), id.as_ref());
    assert_eq!(in_flight(&bench, &queue), (1, bench.clock.now()));
    assert!(matches!(message.content, Content::Malformed(_)));
    assert_eq!(bench.aws.calls(RECEIVE), 2, "one call each");
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html>
#[tokio::test(start_paused = true)]
async fn a_message_that_was_received_is_hidden_until_its_time_out_and_then_comes_again() {
    let (bench, adapter, queue) = with_queue();
    bench.aws.put_message(&queue, "hello");
    let first = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    let began = bench.clock.now();
    assert_eq!(bodies(&bench.aws.queue(&queue).expect("it").in_flight), ["hello"]);
    // A poll that waits gets it as soon as it can be seen.
    let _nothing = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    let again = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    assert_eq!(bench.clock.now().duration_since(began).as_secs(), 30);
    assert_eq!(again[0].id, first[0].id);
    assert_ne!(again[0].receipt, first[0].receipt);
    assert_eq!(in_flight(&bench, &queue), (2, began));
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessage.html>
#[tokio::test(start_paused = true)]
async fn the_receipt_of_an_earlier_receive_deletes_nothing_and_says_nothing() {
    let (bench, adapter, queue) = with_queue();
    bench.aws.put_message(&queue, "hello");
    let first = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    bench.pass(30).await;
    let second = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    assert_eq!(second.len(), 1);
    let delete = async |messages: &[Message]| {
        adapter.delete_messages(&queue, &receipts(messages)).await.expect("an answer");
    };
    delete(&first).await;
    assert!(bench.aws.queue(&queue).expect("it").deleted.is_empty());
    // The latest receipt deletes although the message can be seen again, and once more although it is gone.
    bench.pass(40).await;
    for _ in 0..2 {
        delete(&second).await;
    }
    let left = bench.aws.queue(&queue).expect("it");
    assert_eq!((left.visible.len(), left.in_flight.len()), (0, 0));
    let [(at, message)] = &left.deleted[..] else { panic!("once: {left:?}") };
    assert_eq!((*at, message.body.as_str(), message.received), (bench.clock.now(), "hello", 2));
    let sent = bench.happened(|e| matches!(e, Event::MessageSent { .. }));
    assert_eq!((sent, bench.happened(|e| matches!(e, Event::MessageDeleted { .. }))), (1, 1));
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessageBatch.html>
#[tokio::test(start_paused = true)]
async fn a_batch_is_carried_out_entry_by_entry_ten_a_call_and_says_which_were_refused() {
    let (bench, adapter, queue) = with_queue();
    for n in 0..23 {
        bench.aws.put_message(&queue, format!("{n}"));
    }
    let mut all = Vec::new();
    for expected in [10, 10, 3] {
        let received = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
        assert_eq!(received.len(), expected);
        all.extend(receipts(&received));
    }
    all.push("nonsense".to_owned());
    adapter.delete_messages(&queue, &all).await.expect("an answer");
    assert_eq!(bench.aws.queue(&queue).expect("it").deleted.len(), 23);
    assert_eq!(bench.aws.calls(Operation::DeleteMessageBatch), 3);
    adapter.delete_messages(&queue, &[]).await.expect("no call");
    assert_eq!(bench.aws.calls(Operation::DeleteMessageBatch), 3);

    let fault = Refusal { code: "InternalError", status: 500, message: "We encountered an internal error." };
    bench.aws.put_message(&queue, "one");
    bench.aws.put_message(&queue, "two");
    let received = receipts(&adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer"));
    bench.aws.refuse_entries(Operation::DeleteMessageBatch, fault, 1);
    adapter.delete_messages(&queue, &received).await.expect("an answer");
    assert_eq!(bodies(&bench.aws.queue(&queue).expect("it").in_flight), ["one"]);
    adapter.delete_messages(&queue, &received[..1]).await.expect("an answer");
    assert_eq!(bodies(&bench.aws.queue(&queue).expect("it").in_flight), [""; 0]);
    let nonsense = Delete::builder().id("0").receipt_handle("nonsense").build().expect("whole");
    let answer = sdk(&bench).delete_message_batch().queue_url(&queue).entries(nonsense).send().await;
    assert_eq!(answer.expect("an answer").failed().first().map(|entry| entry.id()), Some("0"));
}

#[tokio::test(start_paused = true)]
async fn batches_that_cannot_be_are_refused_whole() {
    let (bench, _, queue) = with_queue();
    let sdk = sdk(&bench);
    let entry = |id: usize| Delete::builder().id(id.to_string()).receipt_handle("x").build().expect("whole");
    for (entries, code) in [
        (Vec::new(), "AWS.SimpleQueueService.EmptyBatchRequest"),
        ((0..11).map(entry).collect(), "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"),
        (vec![entry(0), entry(0)], "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"),
    ] {
        let call = sdk.delete_message_batch().queue_url(&queue).set_entries(Some(entries));
        assert_eq!(refusal(&call.send().await.expect_err("refused")).0, code);
    }
    for (most, wait) in [(11, 0), (1, 21)] {
        let call = sdk.receive_message().queue_url(&queue).max_number_of_messages(most);
        let error = call.wait_time_seconds(wait).send().await.expect_err("refused");
        assert_eq!(refusal(&error).0, "InvalidParameterValue");
    }
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-visibility-timeout.html>
#[tokio::test(start_paused = true)]
async fn messages_can_be_kept_up_to_twelve_hours_from_their_receive() {
    let (bench, adapter, queue) = with_queue();
    bench.aws.put_message(&queue, "hello");
    let received = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    let began = bench.clock.now();
    let keep =
        async |time| adapter.keep_messages(&queue, &receipts(&received), time).await.expect("an answer");
    let until = || bench.aws.queue(&queue).expect("it").in_flight[0].visible.duration_since(began).as_secs();
    bench.pass(10).await;
    keep(Duration::from_mins(10)).await;
    assert_eq!(until(), 610);
    bench.pass(590).await;
    keep(Duration::from_mins(650)).await;
    assert_eq!(until(), 39_600);
    keep(Duration::MAX).await;
    assert_eq!(until(), 39_600, "ten minutes and twelve hours are too much");
    keep(Duration::ZERO).await;
    adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    assert_eq!(in_flight(&bench, &queue).0, 2);
    keep(Duration::from_hours(1)).await;
    assert_eq!(until(), 630, "an old receipt keeps nothing");
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ChangeMessageVisibility.html>
#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_in_flight_cannot_be_kept() {
    let (bench, adapter, queue) = with_queue();
    bench.aws.put_message(&queue, "hello");
    let received = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    let sdk = sdk(&bench);
    let keep = async || {
        let entry = Keep::builder().id("0").receipt_handle(&received[0].receipt).visibility_timeout(60);
        let call = sdk.change_message_visibility_batch().queue_url(&queue);
        let answer = call.entries(entry.build().expect("whole")).send().await.expect("an answer");
        answer.failed().first().map(|entry| (entry.code().to_owned(), entry.sender_fault()))
    };
    assert_eq!(keep().await, None);
    bench.pass(60).await;
    let not_in_flight = "AWS.SimpleQueueService.MessageNotInflight".to_owned();
    assert_eq!(keep().await, Some((not_in_flight, true)));
    adapter.delete_messages(&queue, &receipts(&received)).await.expect("an answer");
    assert_eq!(keep().await, Some(("InvalidParameterValue".to_owned(), true)));
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-dead-letter-queues.html>
#[tokio::test(start_paused = true)]
async fn messages_that_were_received_too_often_go_to_the_dead_letters_and_old_ones_go_altogether() {
    let bench = bench();
    let adapter = adapter(&bench);
    let dead = bench.aws.add_queue(QueueSpec::named("dead"));
    let spec = QueueSpec::named("ebbtide").dead_letters("dead", 2);
    let queue = bench.aws.add_queue(spec.retention(Duration::from_mins(2)));
    bench.aws.put_message(&queue, "hello");
    for received in 1..=2 {
        adapter.receive(&queue, Duration::from_secs(5), bench.clock.now()).await.expect("an answer");
        assert_eq!(in_flight(&bench, &queue).0, received);
        bench.pass(5).await;
    }
    assert_eq!(
        adapter.receive(&queue, Duration::from_secs(5), bench.clock.now()).await.expect("an answer"),
        []
    );
    assert_eq!(bodies(&bench.aws.queue(&dead).expect("it").visible), ["hello"]);
    bench.aws.put_message(&queue, "late");
    bench.pass(120).await;
    assert_eq!(
        adapter.receive(&queue, Duration::from_secs(5), bench.clock.now()).await.expect("an answer"),
        []
    );
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_not_there_is_told_by_its_name_in_the_old_protocol() {
    let (bench, adapter, queue) = with_queue();
    let error = sdk(&bench).receive_message().queue_url("https://x/y").send().await.expect_err("refused");
    assert_eq!(refusal(&error).0, "AWS.SimpleQueueService.NonExistentQueue");
    assert!(matches!(
        adapter.receive("https://x/y", HIDDEN, bench.clock.now()).await,
        Err(AwsError::NoSuchQueue { .. })
    ));
    // One that is deleted under a poll.
    let later = async {
        bench.pass(3).await;
        bench.aws.delete_queue(&queue);
    };
    let (answer, ()) = tokio::join!(adapter.receive(&queue, HIDDEN, bench.clock.now()), later);
    assert!(matches!(answer, Err(AwsError::NoSuchQueue { .. })));
}

#[tokio::test(start_paused = true)]
async fn faults_have_the_codes_of_sqs_and_come_at_once() {
    let (bench, adapter, queue) = with_queue();
    let began = bench.clock.now();
    bench.aws.throttle_next(RECEIVE, u32::MAX);
    assert!(matches!(
        adapter.receive(&queue, HIDDEN, bench.clock.now()).await,
        Err(AwsError::Throttled { .. })
    ));
    bench.aws.throttle_next(RECEIVE, 0);
    bench.aws.fail_next(RECEIVE, u32::MAX);
    assert!(matches!(
        adapter.receive(&queue, HIDDEN, bench.clock.now()).await,
        Err(AwsError::ServerError { .. })
    ));
    bench.aws.fail_next(RECEIVE, 0);
    bench.aws.outage(true);
    assert!(matches!(
        adapter.receive(&queue, HIDDEN, bench.clock.now()).await,
        Err(AwsError::Unreachable { .. })
    ));
    bench.aws.outage(false);
    bench.aws.deny(RECEIVE, true);
    bench.aws.deny(Operation::DeleteMessageBatch, true);
    bench.aws.deny(Operation::ChangeMessageVisibilityBatch, true);
    let some = ["AQEB".to_owned()];
    let denials = [
        (adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect_err("denied"), "sqs:ReceiveMessage"),
        (adapter.delete_messages(&queue, &some).await.expect_err("denied"), "sqs:DeleteMessage"),
        (
            adapter.keep_messages(&queue, &some, Duration::ZERO).await.expect_err("denied"),
            "sqs:ChangeMessageVisibility",
        ),
    ];
    for (error, action) in denials {
        assert!(error.to_string().starts_with(&format!("not allowed to call {action}: ")), "{error}");
    }
    assert!(bench.clock.now().duration_since(began).as_secs() < 10);
}

#[tokio::test(start_paused = true)]
async fn a_poll_whose_caller_is_dead_takes_messages_all_the_same() {
    let (bench, adapter, queue) = with_queue();
    let given_up =
        tokio::time::timeout(Duration::from_secs(1), adapter.receive(&queue, HIDDEN, bench.clock.now()))
            .await;
    assert!(given_up.is_err());
    bench.aws.put_message(&queue, "hello");
    assert_eq!(bodies(&bench.aws.queue(&queue).expect("it").in_flight), ["hello"]);
    bench.pass(29).await;
    adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    assert_eq!(in_flight(&bench, &queue).0, 2, "after its time-out");
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_nobody_hears_of_hides_its_messages() {
    let (bench, adapter, queue) = with_queue();
    bench.aws.put_message(&queue, "hello");
    bench.aws.trouble(Which::of(&[RECEIVE]), Trouble::Silent(Lose::AfterEffect));
    let answer = adapter.receive(&queue, HIDDEN, bench.clock.now()).await;
    assert!(matches!(answer, Err(AwsError::Unreachable { .. })), "{answer:?}");
    adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    assert_eq!(in_flight(&bench, &queue).0, 2);
}

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues.html>
#[tokio::test(start_paused = true)]
async fn messages_come_in_any_order_and_deleted_ones_may_come_again() {
    let (bench, adapter, queue) = with_queue();
    let delivery = Delivery { left: 1.0, shuffled: true, ..Delivery::PLAIN };
    bench.aws.behave(Behaviour { delivery, ..Behaviour::PLAIN });
    let sent: Vec<String> = (0..10).filter_map(|n| bench.aws.put_message(&queue, format!("{n}"))).collect();
    let received = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    let ids: Vec<String> = received.iter().map(|message| message.id.clone()).collect();
    assert_ne!(ids, sent);
    assert!(ids.iter().all(|id| sent.contains(id)));
    adapter.delete_messages(&queue, &receipts(&received)).await.expect("an answer");
    bench.pass(30).await;
    let again = adapter.receive(&queue, HIDDEN, bench.clock.now()).await.expect("an answer");
    assert_eq!(again.len(), 10);
    assert!(bench.aws.queue(&queue).expect("it").in_flight.iter().all(|message| message.received == 2));
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_found_by_its_name_and_what_is_sent_is_counted_and_received() {
    let (bench, _, queue) = with_queue();
    let sdk = sdk(&bench);
    let found = sdk.get_queue_url().queue_name("ebbtide").send().await.expect("found");
    assert_eq!(found.queue_url(), Some(queue.as_str()));
    let missing = sdk.get_queue_url().queue_name("other").send().await.expect_err("none");
    assert!(missing.into_service_error().is_queue_does_not_exist());
    assert_eq!(sdk.list_queues().send().await.expect("listed").queue_urls(), std::slice::from_ref(&queue));
    assert_eq!(sdk.list_queues().queue_name_prefix("x").send().await.expect("none").queue_urls(), [""; 0]);
    sdk.send_message().queue_url(&queue).message_body("hello").send().await.expect("sent");
    let all = aws_sdk_sqs::types::QueueAttributeName::All;
    let told = sdk.get_queue_attributes().queue_url(&queue).attribute_names(all).send().await.expect("told");
    let count = aws_sdk_sqs::types::QueueAttributeName::ApproximateNumberOfMessages;
    assert_eq!(told.attributes().and_then(|all| all.get(&count)).map(String::as_str), Some("1"));
    assert_eq!(bodies(&bench.aws.queue(&queue).expect("a queue").visible), ["hello"]);
}
