//! What stays in a queue, for how long, and for whom.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::sim::aws::{LifecycleState, Operation, QueueSpec, ScheduledChange, WarmPoolSpec};
use ebbtide::sim::cluster::{Fault, Verb, budget, pod};
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::journal_queries::{is_asked, records};
use crate::notices::{causes, is_cordoned, is_empty, queue, scene_of, told, under_way};
use crate::replicas::other;
use crate::scene::{Machine, Scene, group, held_group, seconds};

/// An event as EventBridge sends it, written at this moment.
fn event(source: &str, kind: &str, at: Timestamp, detail: &Value) -> String {
    let event = json!({
        "version": "0", "id": "1", "source": source, "detail-type": kind, "time": at.to_string(), "detail": detail,
    });
    event.to_string()
}

/// Maintenance of these instances, written at one moment and to start at another.
fn maintenance(name: &str, at: Timestamp, starts: Timestamp, instances: &[&str]) -> String {
    let entities: Vec<Value> =
        instances.iter().map(|id| json!({ "entityValue": id, "status": "PENDING" })).collect();
    let detail = json!({
        "eventArn": format!("arn:aws:health:us-east-1::event/EC2/RETIREMENT/{name}"), "service": "EC2",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", "eventTypeCategory": "scheduledChange",
        "startTime": starts.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(), "statusCode": "upcoming",
        "affectedEntities": entities,
    });
    event("aws.health", "AWS Health Event", at, &detail)
}

/// Another's instance.
const FOREIGN: &str = "i-00000000000000bad";

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

/// How many messages are in the queue, and how often the one was received that was received most often.
fn left(world: &World, url: &str) -> (usize, u32) {
    let queue = queue(world, url);
    let all: Vec<_> = queue.visible.iter().chain(&queue.in_flight).collect();
    (all.len(), all.iter().map(|message| message.received).max().unwrap_or_default())
}

/// Of an interruption that is told now, this machine's pod `web` hears in time.
async fn assert_interruption_is_heard(scene: &Scene, machine: &Machine) {
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.pass_some(Duration::from_mins(1)).await;
    assert!(is_asked(&scene.world, "web"));
}

/// Its message comes again after a restart.
#[tokio::test(start_paused = true)]
async fn machines_whose_maintenance_aws_told_days_ago_wait_for_their_turns_all_the_same() {
    let (scene, url) = scene_of(group(3), config()).await;
    scene.world.cluster.add(budget("web").max_unavailable(0));
    let machines = scene.machines();
    for machine in &machines {
        let name = format!("web-{}", machine.name);
        scene.run([pod(name.as_str()).label("app", "web").on(&machine.name)]).await;
    }
    let now = scene.world.clock.now();
    let instances: Vec<&str> = machines.iter().map(|machine| machine.instance.as_str()).collect();
    let body = maintenance("one", now - days(4), now + days(10), &instances);
    scene.world.aws.put_message(&url, body).expect("there");
    scene.pass_some(Duration::from_mins(5)).await;
    assert_eq!(under_way(&scene.world, &machines), 1);
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_old_lifecycle_actions_keeps_no_interruption_from_being_heard() {
    let (scene, url) = scene_of(held_group(2, 120), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    let long_ago = scene.world.clock.now() - SignedDuration::from_hours(2);
    for n in 0..1_100 {
        let detail = json!({
            "LifecycleActionToken": "t", "AutoScalingGroupName": "web", "LifecycleHookName": "ebbtide",
            "EC2InstanceId": format!("i-{n:017x}"), "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        });
        let body = event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", long_ago, &detail);
        scene.world.aws.put_message(&url, body).expect("there");
    }
    scene.pass_some(Duration::from_secs(5)).await;
    assert_interruption_is_heard(&scene, &machine).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_machines_that_wait_for_their_turn_keep_no_interruption_from_being_heard() {
    let (scene, url) = scene_of(group(3), config()).await;
    scene.world.cluster.add(budget("db").max_unavailable(0));
    let [first, second, third]: [Machine; 3] = scene.machines().try_into().expect("three");
    scene.run([pod("db").label("app", "db").on(&first.name), pod("web").on(&third.name)]).await;
    let now = scene.world.clock.now();
    let put = |name: &str, machine: &Machine| {
        let body = maintenance(name, now, now + days(14), &[&machine.instance]);
        scene.world.aws.put_message(&url, body).expect("there");
    };
    put("first", &first);
    scene.until(|w| !causes(w, &first).is_empty()).await;
    for n in 0..1_100 {
        put(&format!("more-{n}"), &second);
    }
    scene.pass_some(Duration::from_mins(2)).await;
    assert_eq!(causes(&scene.world, &second), [""; 0], "it waits");
    assert_interruption_is_heard(&scene, &third).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_about_several_instances_is_left_to_others_once_ours_are_done() {
    let (scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    let now = scene.world.clock.now();
    let body = maintenance("one", now, now + days(14), &[&machine.instance, FOREIGN]);
    scene.world.aws.put_message(&url, body).expect("there");
    scene.until_gone(&machine).await;
    scene.pass_some(Duration::from_hours(3)).await;
    let (messages, received) = left(&scene.world, &url);
    assert_eq!(messages, 1);
    assert!((2..=8).contains(&received), "{received} times");
}

/// The announcement stays in the queue, for whom else it names, and the next leader reads it: perhaps long before the call-off comes again.
#[tokio::test(start_paused = true)]
async fn maintenance_that_was_called_off_is_not_begun_by_the_next_leader() {
    for (names_both, comes_late) in [(false, false), (true, false), (true, true)] {
        let (mut scene, url) = scene_of(group(2), config()).await;
        let machine = scene.first();
        let now = scene.world.clock.now();
        let both = [machine.instance.as_str(), FOREIGN];
        let called_off = if names_both { &both[..] } else { &both[..1] };
        let called_off = maintenance("one", now, now + days(14), called_off);
        let called_off = called_off.replace("\"upcoming\"", "\"closed\"");
        let announced = maintenance("one", now - days(1), now + days(14), &both);
        let put = |body: &String| scene.world.aws.put_message(&url, body.clone()).expect("there");
        put(&called_off);
        scene.pass_some(seconds(5)).await;
        if !comes_late {
            put(&announced);
        }
        scene.pass_some(Duration::from_mins(6)).await;
        scene.take_down().await;
        if comes_late {
            scene.world.aws.put_message(&url, announced).expect("there");
        }
        scene.bring_back();
        scene.pass_some(Duration::from_hours(2)).await;
        assert!(left(&scene.world, &url).1 >= 2, "it has come again");
        assert_eq!(causes(&scene.world, &machine), [""; 0], "both: {names_both}, late: {comes_late}");
        assert!(!is_cordoned(&scene.world, &machine), "both: {names_both}, late: {comes_late}");
    }
}

/// Of a message that is for nobody else, the same is shown by other tests.
#[tokio::test(start_paused = true)]
async fn an_urgent_message_that_names_others_comes_again_as_soon_as_any_after_a_crash() {
    let (mut scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    let now = scene.world.clock.now();
    scene.world.cluster.fail_next(
        5,
        Verb::Patch,
        "nodes",
        Fault::TooManyRequests { retry_after_seconds: 20 },
    );
    let body = maintenance("one", now, now + SignedDuration::from_hours(20), &[&machine.instance, FOREIGN]);
    scene.world.aws.put_message(&url, body).expect("there");
    scene.until(|w| !queue(w, &url).in_flight.is_empty()).await;
    scene.pass_some(seconds(2)).await;
    assert_eq!(causes(&scene.world, &machine), [""; 0], "not on record");
    scene.take_down().await;
    scene.bring_back();
    scene.pass_some(Duration::from_mins(3)).await;
    assert_eq!(causes(&scene.world, &machine), ["scheduled-event"]);
}

/// Whose they are is not known before AWS describes the groups: those about machines of Nodes wait here, and no other cluster waits for the rest.
#[tokio::test(start_paused = true)]
async fn messages_that_come_before_the_groups_are_known_are_kept_from_nobody_else() {
    let (mut scene, url) = scene_of(held_group(3, 60), config()).await;
    let machine = scene.first();
    scene.take_down().await;
    scene.world.aws.throttle_for(&[Operation::DescribeAutoScalingGroups], seconds(600));
    let now = scene.world.clock.now();
    let ours = maintenance("ours", now, now + days(14), &[&machine.instance]);
    let detail = json!({ "instance-id": FOREIGN, "instance-action": "terminate" });
    let theirs = event("aws.ec2", "EC2 Spot Instance Interruption Warning", now, &detail);
    for body in [&ours, &theirs] {
        scene.world.aws.put_message(&url, body.clone()).expect("there");
    }
    scene.bring_back();
    let received = |body: &String| {
        let queue = queue(&scene.world, &url);
        let mut all = queue.visible.iter().chain(&queue.in_flight);
        all.find(|message| message.body == *body).map(|message| message.received)
    };
    scene.pass_some(seconds(300)).await;
    // Each time that it has lost AWS for a minute, it would have another lead, and hands back what it has.
    let (ours, theirs) = (received(&ours), received(&theirs));
    assert!(ours.is_some_and(|times| times <= 5), "{ours:?} times: it is kept hidden");
    assert!(theirs.is_some_and(|times| times >= 10), "{theirs:?} times: it comes again and again");
    scene.pass_some(seconds(600)).await;
    assert_eq!(causes(&scene.world, &machine), ["scheduled-event"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_done_about_one_of_several_instances_is_not_done_again() {
    // Out of service, the other one is its operator's, and the message waits for it.
    for other_waits in [false, true] {
        let (scene, url) = scene_of(held_group(3, 60), config()).await;
        let [machine, other, _]: [Machine; 3] = scene.machines().try_into().expect("three");
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
        let mut instances = vec![machine.instance.as_str(), FOREIGN];
        if other_waits {
            scene.world.aws.set_aside(&other.instance, false);
            scene.pass_some(Duration::from_mins(2)).await;
            instances.push(&other.instance);
        }
        let now = scene.world.clock.now();
        scene
            .world
            .aws
            .put_message(&url, maintenance("one", now, now + days(14), &instances))
            .expect("there");
        scene.until(|w| is_asked(w, "web")).await;
        scene.pass_some(Duration::from_mins(1)).await;
        scene.annotate(&machine, None).await;
        let cancelled = records(&scene.world, &machine).len();
        scene.pass_some(Duration::from_hours(3)).await;
        assert!(left(&scene.world, &url).1 >= 2, "it has come again");
        assert_eq!(
            records(&scene.world, &machine).len(),
            cancelled,
            "and was not begun again: {other_waits}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_a_message_names_before_any_refresh_shows_it_is_drained_when_one_does() {
    let (scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    let ids = |w: &World| -> Vec<String> {
        w.aws.group("web").expect("the group").instances.iter().map(|i| i.id.clone()).collect()
    };
    let before = ids(&scene.world);
    scene.increase(1).await.expect("taken");
    scene.until(|w| ids(w).len() > before.len()).await;
    let new = ids(&scene.world).into_iter().find(|id| !before.contains(id)).expect("one more");
    let change = ScheduledChange {
        id: "one".into(),
        code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".into(),
        starts: scene.world.clock.now() + SignedDuration::from_hours(20),
        status: "upcoming".into(),
    };
    scene.world.aws.schedule_change(&change, &[&machine.instance, &new]);
    scene.until_gone(&machine).await;
    scene.until(|w| !ids(w).contains(&new)).await;
    scene.until(|w| is_empty(w, &url)).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_of_use_to_others_for_days_is_received_so_seldom_that_it_is_no_dead_letter() {
    let world = World::new(1);
    world.aws.add_queue(QueueSpec::named("dead"));
    let url = world.aws.add_queue(QueueSpec::named("ebbtide").dead_letters("dead", 600));
    world.aws.send_events_to(&url);
    let config = Config { queue_urls: vec![url.clone()], ..config() };
    let scene = Scene::on(world, group(1), config).await;
    let now = scene.world.clock.now();
    scene
        .world
        .aws
        .put_message(&url, maintenance("one", now - SignedDuration::from_hours(18), now, &[FOREIGN]))
        .expect("there");
    scene.pass_some(Duration::from_hours(5)).await;
    let (messages, received) = left(&scene.world, &url);
    assert_eq!(messages, 1);
    assert!((30..90).contains(&received), "{received} times");
    scene.until(|w| is_empty(w, &url)).await;
    let deleted = queue(&scene.world, &url).deleted;
    assert!(!deleted.is_empty(), "once it has lapsed");
}

#[tokio::test(start_paused = true)]
async fn what_a_leader_has_read_and_not_recorded_when_it_stops_the_next_one_reads_at_once() {
    let world = World::plain(1);
    let (_, config) = told(&world, config());
    let mut scene = Scene::on(world, group(2), config.clone()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    let second = Config { queue_urls: config.queue_urls.clone(), ..other() };
    let _second = Program::start(&scene.world, second);
    scene.pass_some(seconds(30)).await;
    scene.world.cluster.fail_next(
        1,
        Verb::Patch,
        "nodes",
        Fault::TooManyRequests { retry_after_seconds: 20 },
    );
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until(|w| !queue(w, &config.queue_urls[0]).in_flight.is_empty()).await;
    scene.pass_some(Duration::from_millis(300)).await;
    assert_eq!(records(&scene.world, &machine), [""; 0], "no record yet");
    scene.stop_for_good().await;
    scene.pass_some(seconds(8)).await;
    assert_eq!(causes(&scene.world, &machine), ["spot-interruption"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_warm_pool_stops_is_not_drained_when_the_group_takes_it_out_of_the_pool() {
    // For how long it was stopped: the message about that is hidden for 20 s at a time.
    for rests in [5, 20, 60] {
        let pooled = group(1).size(0, 2, 1).warm_pool(WarmPoolSpec::stopped());
        let (scene, _) = scene_of(pooled, config()).await;
        let resting = |w: &World| {
            let group = w.aws.group("web")?;
            group.in_state(LifecycleState::WarmedStopped).first().map(|id| (*id).to_owned())
        };
        scene.until(|w| resting(w).is_some()).await;
        let instance = resting(&scene.world).expect("one");
        scene.pass_some(seconds(rests)).await;
        scene.world.aws.set_desired("web", 2);
        scene
            .until(|w| w.aws.instance(&instance).is_some_and(|i| i.state == LifecycleState::InService))
            .await;
        scene.pass_some(seconds(900)).await;
        let machines = scene.machines();
        let machine = machines.iter().find(|machine| machine.instance == instance).expect("a node");
        assert!(!is_cordoned(&scene.world, machine));
        assert_eq!(causes(&scene.world, machine), [""; 0], "after {rests} s");
    }
}

/// Its token completes another's hook: that owner reads the same queue, and gets the message once it is hidden no more.
#[tokio::test(start_paused = true)]
async fn a_lifecycle_action_under_anothers_hook_is_left_alone_though_the_instance_is_ours() {
    const DESCRIBE: Operation = Operation::DescribeAutoScalingGroups;
    let (log, _guard) = captured::log(tracing::Level::INFO);
    let (scene, url) = scene_of(held_group(2, 300), config()).await;
    let machine = scene.first();
    let action = |hook: &str| {
        json!({
            "LifecycleActionToken": "0fa", "AutoScalingGroupName": "web", "LifecycleHookName": hook,
            "EC2InstanceId": machine.instance, "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        })
    };
    // Five minutes of nothing, to compare.
    let described = scene.world.aws.calls(DESCRIBE);
    scene.pass_some(seconds(300)).await;
    let usual = scene.world.aws.calls(DESCRIBE) - described;
    let kind = "EC2 Instance-terminate Lifecycle Action";
    let body = event("aws.autoscaling", kind, scene.world.clock.now(), &action("snapshots"));
    scene.world.aws.put_message(&url, body).expect("there");
    let (described, lines) = (scene.world.aws.calls(DESCRIBE), log.text().lines().count());
    scene.pass_some(seconds(300)).await;
    let (messages, received) = left(&scene.world, &url);
    assert_eq!(messages, 1, "not deleted");
    assert!((4..=16).contains(&received), "{received} times");
    assert!(scene.world.aws.calls(DESCRIBE) - described <= usual + 1, "its group is not read for it");
    assert_eq!(log.text().lines().count(), lines, "{}", log.text());
    assert_eq!(causes(&scene.world, &machine), Vec::<String>::new());
    // It has lapsed then.
    scene.pass_some(seconds(400)).await;
    assert!(is_empty(&scene.world, &url));
}

/// Whoever shares the queue would miss it, and the hook would time out: the instance is abandoned, and the next one too.
#[tokio::test(start_paused = true)]
async fn what_a_group_launches_under_a_hook_is_left_to_the_hooks_owner_by_whichever_way_it_is_told() {
    let (scene, url) = scene_of(held_group(2, 300), config()).await;
    let now = scene.world.clock.now();
    let own = |hook: &str| {
        json!({
            "Service": "AWS Auto Scaling", "Time": now, "LifecycleActionToken": "0fa", "AutoScalingGroupName": "web",
            "LifecycleHookName": hook, "EC2InstanceId": FOREIGN, "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        })
    };
    let by_event = event("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", now, &own("join"));
    // Nothing keeps a launching hook from having the name of ours.
    for body in [by_event, own("join").to_string(), own("ebbtide").to_string()] {
        scene.world.aws.put_message(&url, body).expect("there");
    }
    scene.pass_some(seconds(300)).await;
    let (messages, received) = left(&scene.world, &url);
    assert_eq!(messages, 3, "not deleted");
    assert!((4..=16).contains(&received), "{received} times");
    // They have lapsed then.
    scene.pass_some(seconds(400)).await;
    assert!(is_empty(&scene.world, &url));
}

#[tokio::test(start_paused = true)]
async fn a_message_about_others_that_is_dated_in_the_next_century_stays_no_longer_than_any() {
    let (scene, url) = scene_of(group(1), config()).await;
    let later = scene.world.clock.now() + days(36_500);
    let stopping = json!({ "instance-id": FOREIGN, "state": "stopping" });
    let body = event("aws.ec2", "EC2 Instance State-change Notification", later, &stopping);
    scene.world.aws.put_message(&url, body).expect("there");
    scene.pass_some(seconds(700)).await;
    assert!(is_empty(&scene.world, &url));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_hides_nothing_is_asked_once_a_second_its_groups_ever_less_often_and_a_notice_is_heard()
{
    const DESCRIBE: Operation = Operation::DescribeAutoScalingGroups;
    let world = World::new(1);
    let url = world.aws.add_queue(QueueSpec::named("ebbtide").that_hides_nothing());
    world.aws.send_events_to(&url);
    let scene =
        Scene::on(world, held_group(2, 300), Config { queue_urls: vec![url.clone()], ..config() }).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    let described = scene.world.aws.calls(DESCRIBE);
    scene.pass_some(seconds(60)).await;
    let usual = scene.world.aws.calls(DESCRIBE) - described;
    let now = scene.world.clock.now();
    let foreign = json!({ "instance-id": FOREIGN, "instance-action": "terminate" });
    let action = json!({
        "AutoScalingGroupName": "web", "LifecycleHookName": "ebbtide", "EC2InstanceId": machine.instance,
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    });
    let interruption = "EC2 Spot Instance Interruption Warning";
    scene.world.aws.put_message(&url, event("aws.ec2", interruption, now, &foreign)).expect("there");
    // No description will show it.
    let held = event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", now, &action);
    scene.world.aws.put_message(&url, held).expect("there");
    let received = scene.world.aws.calls(Operation::ReceiveMessage);
    let described = scene.world.aws.calls(DESCRIBE);
    scene.pass_some(seconds(60)).await;
    let received = scene.world.aws.calls(Operation::ReceiveMessage) - received;
    assert!((30..=63).contains(&received), "{received}");
    let described = scene.world.aws.calls(DESCRIBE) - described;
    assert!(described <= usual + 20, "{described} in a minute, {usual} as usual");
    assert_interruption_is_heard(&scene, &machine).await;
}

/// What is not known to be for nobody else is kept from nobody before AWS has described the groups.
#[tokio::test(start_paused = true)]
async fn a_lifecycle_action_under_anothers_hook_is_not_kept_hidden_before_the_groups_are_known() {
    let (mut scene, url) = scene_of(held_group(2, 300), config()).await;
    let machine = scene.first();
    scene.take_down().await;
    scene.world.aws.throttle_for(&[Operation::DescribeAutoScalingGroups], seconds(600));
    let detail = json!({
        "LifecycleActionToken": "0fa", "AutoScalingGroupName": "web", "LifecycleHookName": "snapshots",
        "EC2InstanceId": machine.instance, "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    });
    let kind = "EC2 Instance-terminate Lifecycle Action";
    let body = event("aws.autoscaling", kind, scene.world.clock.now(), &detail);
    scene.world.aws.put_message(&url, body).expect("there");
    scene.bring_back();
    scene.pass_some(seconds(300)).await;
    let (messages, received) = left(&scene.world, &url);
    assert!(messages == 1 && received >= 10, "{messages}, {received} times: it comes again and again");
}
