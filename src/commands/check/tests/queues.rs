use super::*;

#[test]
fn a_queue_that_notices_do_not_come_through_is_found() {
    let changed = |change: &dyn Fn(&mut QueueAttributes)| {
        let mut attributes = good_queue();
        change(&mut attributes);
        vec![queue(Ok(attributes))]
    };
    let allowing =
        |statements: serde_json::Value| changed(&|queue| queue.policy = json!({ "Statement": statements }));
    let refused = |status, code| {
        let error = AwsError::of_service(Operation::GetQueueAttributes, status, code, "");
        vec![queue(Err(error))]
    };
    let fifo = QueueFacts {
        url: "https://sqs.us-east-1.amazonaws.com/1/ebbtide.fifo".into(),
        ..queue(Ok(good_queue()))
    };
    let events = json!({ "Service": ["sns.amazonaws.com", "events.amazonaws.com"] });
    let table = [
        ("none", Vec::new(), Severity::Note, "none"),
        ("gone", refused(400, "QueueDoesNotExist"), Severity::Error, "no such queue"),
        ("silent", refused(503, "ServiceUnavailable"), Severity::Error, "reached"),
        ("no policy", changed(&|queue| queue.policy = json!(null)), Severity::Warning, "EventBridge"),
        (
            "another's",
            allowing(
                json!({ "Effect": "Allow", "Principal": { "Service": "s3.amazonaws.com" }, "Action": "*" }),
            ),
            Severity::Warning,
            "EventBridge",
        ),
        (
            "receive",
            allowing(json!([{ "Effect": "Allow", "Principal": events, "Action": ["sqs:ReceiveMessage"] }])),
            Severity::Warning,
            "EventBridge",
        ),
        (
            "forbidden",
            allowing(json!([
                { "Effect": "Allow", "Principal": events, "Action": "SQS:Send*" },
                { "Effect": "Deny", "Principal": "*", "Action": "sqs:*" },
            ])),
            Severity::Warning,
            "EventBridge",
        ),
        (
            "everybody",
            allowing(json!({ "Effect": "Allow", "Principal": { "AWS": "*" }, "Action": "sqs:*" })),
            Severity::Error,
            "everybody",
        ),
        (
            "key of AWS",
            changed(&|queue| queue.key = Some("alias/aws/sqs".into())),
            Severity::Warning,
            "encrypted",
        ),
        ("own key", changed(&|queue| queue.key = Some("1234-abcd".into())), Severity::Note, "1234-abcd"),
        ("no dead letters", changed(&|queue| queue.receives = None), Severity::Note, "dead-letter"),
        ("few receives", changed(&|queue| queue.receives = Some(5)), Severity::Warning, "after 5"),
        (
            "SQS's default",
            changed(&|queue| queue.retention = Some(Duration::from_hours(4 * 24))),
            Severity::Warning,
            "for 4days only",
        ),
        (
            "an hour",
            changed(&|queue| queue.retention = Some(Duration::from_hours(1))),
            Severity::Warning,
            "for 1h only",
        ),
        (
            "Node Termination Handler's",
            changed(&|queue| queue.retention = Some(Duration::from_mins(5))),
            Severity::Error,
            "for 5m only",
        ),
        ("late", changed(&|queue| queue.delay = Duration::from_mins(15)), Severity::Warning, "15m"),
        ("FIFO", vec![fifo], Severity::Warning, "FIFO"),
    ];
    for (what, queues, severity, word) in table {
        one_is_found(what, &Facts { queues, ..good() }, "queues", severity, word);
    }
    for fine in [
        json!({ "Effect": "Allow", "Principal": events, "Action": "SQS:Send*" }),
        // What the console of AWS makes: everybody, from a certain rule only.
        json!([{ "Effect": "Allow", "Principal": "*", "Action": "*", "Condition": { "ArnLike": {} } }]),
        json!([
            { "Effect": "Allow", "Principal": events, "Action": "sqs:*" },
            { "Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Condition": { "Bool": {} } },
        ]),
    ] {
        let facts = Facts { queues: allowing(fine.clone()), ..good() };
        assert_eq!(report(&facts).findings, [], "{fine}");
    }
    let denied = Facts { queues: refused(403, "AccessDenied"), ..good() };
    assert_eq!(report(&denied).findings, [], "told as a finding about IAM, once");
}
