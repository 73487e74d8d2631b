//! Requests: troubles of single calls, stale answers, the rate limit that all callers share.

use jiff::SignedDuration;

use super::*;

const SET: Operation = Operation::SetDesiredCapacity;
const DESCRIBE: Operation = Operation::DescribeAutoScalingGroups;

impl Bench {
    async fn set_desired(&self, to: i32) -> Result<(), String> {
        let set = self.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(to);
        set.send().await.map(drop).map_err(|error| refusal(&error).0)
    }

    /// The described desired capacity and instances of the group; `None` if it is left out.
    async fn described(&self) -> Option<(i32, usize)> {
        let answer = self.asg.describe_auto_scaling_groups().send().await.expect("an answer");
        let groups = answer.auto_scaling_groups();
        let web = groups.iter().find(|group| group.auto_scaling_group_name() == Some("web"))?;
        Some((web.desired_capacity().unwrap_or_default(), web.instances().len()))
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_carried_out_though_the_caller_has_given_up() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.trouble(Which::of(&[SET]), Trouble::Late(Duration::from_secs(10)));
    let given_up = tokio::time::timeout(Duration::from_secs(1), bench.set_desired(1)).await;
    assert!(given_up.is_err());
    bench.set_desired(3).await.expect("it overtakes the first");
    assert_eq!(bench.desired("web"), 3);
    bench.pass(10).await;
    assert_eq!(bench.desired("web"), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_heard_of_a_silent_call_before_or_after_its_effect() {
    for (side, desired) in [(Lose::BeforeEffect, 2), (Lose::AfterEffect, 1)] {
        let bench = bench();
        bench.aws.add_group(web());
        bench.aws.trouble(Which::of(&[SET]), Trouble::Silent(side));
        let given_up = tokio::time::timeout(Duration::from_hours(1), bench.set_desired(1)).await;
        assert!(given_up.is_err());
        assert_eq!(bench.desired("web"), desired);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_be_as_of_some_time_ago() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.trouble(
        Which::of(&[DESCRIBE]).lasting(Duration::from_mins(1)),
        Trouble::Stale(Duration::from_secs(20)),
    );
    bench.pass(1).await;
    bench.set_desired(1).await.expect("set");
    assert_eq!(bench.described().await, Some((2, 2)));
    bench.pass(19).await;
    assert_eq!(bench.described().await, Some((2, 2)));
    bench.pass(2).await;
    assert_eq!(bench.described().await.map(|(desired, _)| desired), Some(1));
    assert_eq!(bench.desired("web"), 1, "what is shown changes nothing");
}

#[tokio::test(start_paused = true)]
async fn what_is_written_while_all_answers_are_old_is_written_now() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.pass(60).await;
    let old = Trouble::Stale(Duration::from_secs(20));
    bench.aws.trouble(Which::any().lasting(Duration::from_mins(1)), old);
    bench.set_desired(1).await.expect("set");
    assert_eq!(bench.desired("web"), 1);
    assert_eq!(bench.described().await, Some((2, 2)), "and not shown yet");
    bench.aws.no_more_trouble();
    assert_eq!(bench.described().await.map(|(desired, _)| desired), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_page_may_be_empty_and_have_a_token_or_leave_something_out() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.trouble(Which::of(&[DESCRIBE]), Trouble::EmptyPage);
    let first = bench.asg.describe_auto_scaling_groups().send().await.expect("a page");
    assert!(first.auto_scaling_groups().is_empty());
    let next = first.next_token().expect("a token");
    let second = bench.asg.describe_auto_scaling_groups().next_token(next).send().await.expect("a page");
    assert_eq!((second.auto_scaling_groups().len(), second.next_token()), (1, None));
    for (trouble, leads_to_itself) in [(Trouble::EmptyPage, false), (Trouble::SameToken, true)] {
        bench.aws.trouble(Which::of(&[DESCRIBE]), trouble);
        let empty = bench.asg.describe_auto_scaling_groups().next_token(next).send().await.expect("a page");
        let again = empty.next_token().expect("a token");
        assert_eq!((empty.auto_scaling_groups().len(), again == next), (0, leads_to_itself));
        let second = bench.asg.describe_auto_scaling_groups().next_token(again).send().await.expect("a page");
        assert_eq!((second.auto_scaling_groups().len(), second.next_token()), (1, None));
    }

    let left_out = bench.in_service("web").remove(0);
    for (name, seen) in [(left_out.as_str(), Some((2, 1))), ("web", None)] {
        bench.aws.trouble(Which::of(&[DESCRIBE]), Trouble::Without(name.to_owned()));
        assert_eq!(bench.described().await, seen);
        assert_eq!(bench.described().await, Some((2, 2)), "once only");
    }
}

#[tokio::test(start_paused = true)]
async fn a_trouble_can_be_about_one_group_or_instance() {
    let bench = bench();
    bench.aws.add_group(web());
    let busy = Refusal { code: "ResourceContention", status: 500, message: "You have a pending update." };
    let refused = Trouble::Refused(busy, Lose::BeforeEffect);
    bench.aws.trouble(Which::any().about("other"), refused.clone());
    bench.set_desired(1).await.expect("another group");
    bench.aws.trouble(Which::any().about("web").times(2), refused);
    for expected in [Err(busy.code.to_owned()), Err(busy.code.to_owned()), Ok(())] {
        assert_eq!(bench.set_desired(2).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_that_have_expired_are_refused_for_a_while() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.expire_credentials(Duration::from_mins(1));
    assert_eq!(bench.set_desired(1).await, Err("ExpiredToken".to_owned()));
    bench.pass(61).await;
    assert_eq!(bench.set_desired(1).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn all_callers_share_a_bucket() {
    let bench = bench();
    bench.aws.add_group(web());
    let bucket = Some(Bucket { size: 10, per_second: 1.0 });
    bench.aws.behave(Behaviour { bucket, ..Behaviour::PLAIN });
    for _ in 0..10 {
        bench.described().await;
    }
    assert_eq!(bench.set_desired(1).await, Err("Throttling".to_owned()));
    bench.pass(2).await;
    assert_eq!(bench.set_desired(1).await, Ok(()));
    bench.aws.others_call(1.0);
    bench.pass(60).await;
    assert_eq!(bench.set_desired(1).await, Ok(()), "what was left before");
    assert_eq!(bench.set_desired(1).await, Err("Throttling".to_owned()), "others have the rest");
}

#[tokio::test(start_paused = true)]
async fn activities_are_dated_by_the_clock_of_aws() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.set_clock_ahead(SignedDuration::from_mins(1));
    bench.set_desired(1).await.expect("set");
    let answer = bench.asg.describe_scaling_activities().send().await.expect("an answer");
    let started = answer.activities()[0].start_time().expect("a moment").secs();
    assert_eq!(started, bench.clock.now().as_second() + 60);
}
