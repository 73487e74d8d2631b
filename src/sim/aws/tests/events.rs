//! What EventBridge puts into a queue, read by the program's own adapter.

use super::*;
use crate::aws::{About, Aws as Adapter, Content, Message, News, Notice};

/// Longer than any of these tests reads.
const HIDDEN: Duration = Duration::from_mins(1);

/// A world whose events go to a queue, and its group `web` with a hook.
struct Told {
    bench: Bench,
    adapter: Adapter,
    queue: String,
}

fn told(behaviour: &Behaviour) -> Told {
    let bench = bench();
    bench.aws.behave(*behaviour);
    let adapter = Adapter::at(aws_client(Arc::new(bench.aws.clone())));
    let queue = bench.aws.add_queue(QueueSpec::named("ebbtide"));
    bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(600)));
    bench.aws.send_events_to(&queue);
    Told { bench, adapter, queue }
}

impl Told {
    /// All that comes until a poll gets nothing.
    async fn messages(&self) -> Vec<Message> {
        let mut all = Vec::new();
        loop {
            let messages =
                self.adapter.receive(&self.queue, HIDDEN, self.bench.clock.now()).await.expect("an answer");
            if messages.is_empty() {
                return all;
            }
            let receipts: Vec<String> = messages.iter().map(|message| message.receipt.clone()).collect();
            self.adapter.delete_messages(&self.queue, &receipts).await.expect("an answer");
            all.extend(messages);
        }
    }

    async fn notices(&self) -> Vec<Notice> {
        let contents = self.messages().await.into_iter().map(|message| message.content);
        contents
            .flat_map(|content| match content {
                Content::Notices(notices) => notices,
                Content::Nothing(_) => Vec::new(),
                Content::Malformed(why) => panic!("{why}"),
            })
            .collect()
    }

    /// A notice of now: events tell whole seconds.
    fn notice(&self, instance: &str, news: News) -> Notice {
        let at = Timestamp::new(self.bench.clock.now().as_second(), 0).expect("a moment");
        Notice { about: About::Instance(instance.into()), at, news }
    }
}

fn lifecycle_action() -> News {
    News::LifecycleAction { group: "web".into(), hook: "ebbtide".to_owned() }
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html>
#[tokio::test(start_paused = true)]
async fn a_held_instance_is_told_soon_after_with_its_group_and_hook() {
    let told = told(&Behaviour::PLAIN);
    let id = told.bench.in_service("web").remove(0);
    told.bench.aws.terminate(&id, TerminationCause::Rebalance);
    let expected = told.notice(&id, lifecycle_action());
    let began = told.bench.clock.now();
    let messages =
        told.adapter.receive(&told.queue, HIDDEN, told.bench.clock.now()).await.expect("an answer");
    assert_eq!(told.bench.clock.now().duration_since(began).as_millis(), 300);
    let terminating: Vec<_> = messages
        .iter()
        .filter_map(|message| match &message.content {
            Content::Notices(notices) => Some(notices.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(terminating, [[expected]], "its replacement's start is told as well, and ends nothing");
}

#[tokio::test(start_paused = true)]
async fn an_action_is_told_when_it_can_be_completed_and_not_before() {
    let timing = Timing { action: crate::sim::span::Span::seconds(3, 3), ..Timing::QUICK };
    let told = told(&Behaviour { timing, ..Behaviour::PLAIN });
    let id = told.bench.in_service("web").remove(0);
    let began = told.bench.clock.now();
    told.bench.aws.terminate(&id, TerminationCause::Rebalance);
    let notices = told.notices().await;
    let action = notices.iter().find(|notice| notice.news == lifecycle_action()).expect("it is told");
    assert_eq!(action.at.duration_since(began).as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_return_to_the_warm_pool_is_told_as_the_end_of_an_instance() {
    let told = told(&Behaviour::PLAIN);
    let spec = GroupSpec::named("warm").size(0, 10, 2).template("m5.large").already_running();
    let spec = spec.warm_pool(WarmPoolSpec::stopped().reusing()).hook(HookSpec::terminating("ebbtide"));
    told.bench.aws.add_group(spec);
    told.bench.aws.set_desired("warm", 1);
    told.bench.pass(600).await;
    let queue = told.bench.aws.queue(&told.queue).expect("it");
    let action = queue.visible.iter().find(|message| message.body.contains("TERMINATING")).expect("told");
    assert!(action.body.contains(r#""Destination":"WarmPool""#), "{}", action.body);
    let Content::Notices(notices) = Content::read(&action.body, told.bench.clock.now()) else {
        panic!("{}", action.body)
    };
    let group = "warm".into();
    assert_eq!(notices[0].news, News::LifecycleAction { group, hook: "ebbtide".to_owned() });
}

/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html>
#[tokio::test(start_paused = true)]
async fn every_change_of_a_machines_state_is_told_once() {
    let told = told(&Behaviour::PLAIN);
    let [stopped, ended] = &told.bench.in_service("web")[..] else { panic!("two") };
    told.bench.aws.kill_machine(stopped, Death::Stopped);
    told.bench.pass(1).await;
    let queue = told.bench.aws.queue(&told.queue).expect("it");
    let says = |instance: &str, state: &str| {
        let parts = [format!("\"instance-id\":\"{instance}\""), format!("\"state\":\"{state}\"")];
        move |body: &str| parts.iter().all(|part| body.contains(part))
    };
    let count = |queue: &QueueSnapshot, says: &dyn Fn(&str) -> bool| {
        queue.visible.iter().filter(|message| says(&message.body)).count()
    };
    assert_eq!(count(&queue, &says(stopped, "stopped")), 1);
    told.bench.aws.delete_hook("web", "ebbtide");
    told.bench.aws.terminate(ended, TerminationCause::ScaleIn);
    told.bench.pass(3600).await;
    let queue = told.bench.aws.queue(&told.queue).expect("it");
    for state in ["shutting-down", "terminated"] {
        assert_eq!(count(&queue, &says(ended, state)), 1, "{state}");
    }
    let notices = told.notices().await;
    let of = |id: &str| notices.iter().filter(|n| n.about == About::Instance(id.into())).count();
    assert!(of(ended) == 2 && of(stopped) >= 1, "{notices:?}");
}

/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html>
#[tokio::test(start_paused = true)]
async fn a_spot_interruption_is_told_two_minutes_before_the_machine_is_taken() {
    let told = told(&Behaviour::PLAIN);
    let id = told.bench.in_service("web").remove(0);
    let expected = told.notice(&id, News::SpotInterruption);
    told.bench.aws.interrupt_spot(&id);
    assert_eq!(told.notices().await, [expected]);
    let power = || told.bench.aws.instance(&id).expect("it").power;
    told.bench.pass(99).await;
    assert_eq!(power(), Power::Running);
    told.bench.pass(1).await;
    assert_eq!(power(), Power::Terminated);
    let ended = told.notices().await;
    assert!(ended.iter().any(|n| n.news == News::StateChange && n.about == About::Instance((&id).into())));
}

#[tokio::test(start_paused = true)]
async fn recommendations_and_scheduled_changes_are_told_and_do_nothing_by_themselves() {
    let told = told(&Behaviour::PLAIN);
    let both = told.bench.in_service("web");
    let [one, two] = &both[..] else { panic!("two") };
    let recommended = told.notice(one, News::RebalanceRecommendation);
    told.bench.aws.recommend_rebalance(one);
    assert_eq!(told.notices().await, [recommended]);
    let starts = "2027-03-06T09:05:07Z".parse().expect("a time");
    let mut change = ScheduledChange {
        id: "x1".to_owned(),
        code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".to_owned(),
        starts,
        status: "upcoming".to_owned(),
    };
    for (status, is_over) in [("upcoming", false), ("closed", true)] {
        status.clone_into(&mut change.status);
        let event = Some(format!("arn:aws:health:us-east-1::event/EC2/{}/x1", change.code));
        let news = News::ScheduledEvent { event, starts: Some(starts), ends: None, is_over };
        let expected = [told.notice(one, news.clone()), told.notice(two, news)];
        told.bench.aws.schedule_change(&change, &[one, two]);
        assert_eq!(told.notices().await, expected);
    }
    assert_eq!(told.bench.in_service("web"), both);
}

/// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-capacity-rebalancing.html>
#[tokio::test(start_paused = true)]
async fn a_group_with_capacity_rebalancing_replaces_what_is_recommended_and_then_ends_it() {
    let told = told(&Behaviour::PLAIN);
    told.bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide")).rebalancing_capacity());
    let id = told.bench.in_service("web").remove(0);
    told.bench.aws.recommend_rebalance(&id);
    told.bench.until_state(&id, LifecycleState::TerminatingWait).await;
    assert_eq!(told.bench.in_service("web").len(), 2, "its replacement came first");
    let group = "web".into();
    let group = told.adapter.describe_group_now(&group).await.expect("an answer").expect("it");
    assert!(group.rebalances_capacity);
}

/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html>
#[tokio::test(start_paused = true)]
async fn a_capacity_block_warns_ten_minutes_before_it_ends_the_machines_in_it() {
    let told = told(&Behaviour::PLAIN);
    let [inside, outside] = &told.bench.in_service("web")[..] else { panic!("two") };
    told.bench.aws.reserve(inside, "cr-0123456789abcdef0");
    let ends = told.bench.clock.now() + jiff::SignedDuration::from_mins(10);
    let expected = Notice {
        about: About::CapacityReservation("cr-0123456789abcdef0".to_owned()),
        at: told.bench.clock.now(),
        news: News::CapacityEnds(ends),
    };
    told.bench.aws.end_capacity_block("cr-0123456789abcdef0");
    assert_eq!(told.notices().await, [expected]);
    let within = told.adapter.instances_of_reservation("cr-0123456789abcdef0").await.expect("an answer");
    assert_eq!(within, [inside.as_str()]);
    assert_eq!(told.adapter.instances_of_reservation("cr-other").await.expect("an answer"), [""; 0]);
    told.bench.pass(600).await;
    let power = |id| told.bench.aws.instance(id).expect("it").power;
    assert_eq!((power(inside), power(outside)), (Power::Terminated, Power::Running));
}

/// <https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-delivery-level.html>
#[tokio::test(start_paused = true)]
async fn events_may_never_come_or_twice_or_late() {
    let came = async |delivery: Delivery| {
        let told = told(&Behaviour { delivery, ..Behaviour::PLAIN });
        let id = told.bench.in_service("web").remove(0);
        let began = told.bench.clock.now();
        told.bench.aws.recommend_rebalance(&id);
        told.messages().await;
        let came = told.bench.aws.queue(&told.queue).expect("it").deleted;
        came.iter().map(|(_, message)| message.sent.duration_since(began).as_secs()).collect::<Vec<_>>()
    };
    assert_eq!(came(Delivery { lost: 1.0, ..Delivery::PLAIN }).await, [0; 0]);
    assert_eq!(came(Delivery { doubled: 1.0, ..Delivery::PLAIN }).await, [0, 0]);
    let way = crate::sim::span::Span::seconds(15, 15);
    assert_eq!(came(Delivery { way, ..Delivery::PLAIN }).await, [15]);
}

#[tokio::test(start_paused = true)]
async fn what_happens_in_a_harsh_world_is_told_in_words_that_the_program_knows() {
    let told = told(&Behaviour::HARSH);
    let spec = GroupSpec::named("warm").size(0, 10, 3).template("m5.large").already_running();
    told.bench.aws.add_group(spec.warm_pool(WarmPoolSpec::stopped().reusing().at_least(2)));
    told.bench.aws.refresh("web");
    told.bench.aws.set_desired("warm", 1);
    for id in told.bench.in_service("web") {
        told.bench.aws.interrupt_spot(&id);
    }
    told.bench.pass(3 * 3600).await;
    let queue = told.bench.aws.queue(&told.queue).expect("it");
    assert!(queue.visible.len() > 10, "{}", queue.visible.len());
    for message in &queue.visible {
        let content = Content::read(&message.body, told.bench.clock.now());
        assert!(!matches!(content, Content::Malformed(_)), "{content:?}: {}", message.body);
    }
}
