//! What AWS tells through a queue: everything is sooner, and nothing else changes.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::scale_in::Treatment;
use ebbtide::sim::aws::{
    Behaviour, Death, Delivery, Event, GroupSpec, LifecycleState, Operation, QueueSnapshot, QueueSpec,
    ScheduledChange, TerminationCause, Timing, Trouble, Which,
};
use ebbtide::sim::cluster::{By, budget, pod};
use ebbtide::sim::program::config;
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::commands::status_table;
use crate::journal_queries::{
    TERMINATE, a_hook_timed_out, asked, assert_nothing_lost, aws_moments, decrements, has_exited, in_phase,
    is_asked, is_released, notes, phase_at, records, released_at,
};
use crate::scene::{Cause, Machine, Scene, config_with, five_on_each, group, held_group, seconds, state};
use crate::status::{get, status};

/// The queue's URL, of a world whose events go there, and a configuration that reads it.
pub(crate) fn told(world: &World, config: Config) -> (String, Config) {
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
    world.aws.send_events_to(&queue);
    (queue.clone(), Config { queue_urls: vec![queue], ..config })
}

pub(crate) async fn scene_of(group: GroupSpec, config: Config) -> (Scene, String) {
    scene_on(World::new(1), group, config).await
}

/// AWS answers as quickly as it mostly does, and events come as soon as they mostly do.
async fn quick_scene_of(group: GroupSpec, config: Config) -> (Scene, String) {
    scene_on(World::plain(1), group, config).await
}

async fn scene_on(world: World, group: GroupSpec, config: Config) -> (Scene, String) {
    let (queue, config) = told(&world, config);
    (Scene::on(world, group, config).await, queue)
}

pub(crate) fn queue(world: &World, url: &str) -> QueueSnapshot {
    world.aws.queue(url).expect("a queue")
}

pub(crate) fn is_empty(world: &World, url: &str) -> bool {
    let queue = queue(world, url);
    queue.visible.is_empty() && queue.in_flight.is_empty()
}

pub(crate) fn is_cordoned(world: &World, machine: &Machine) -> bool {
    let node = world.cluster.node(&machine.name).expect("a Node");
    node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default()
}

/// The causes that were on record on the Node.
pub(crate) fn causes(world: &World, machine: &Machine) -> Vec<String> {
    let mut causes: Vec<String> = records(world, machine)
        .iter()
        .filter_map(|record| Some(record.split_once("\"cause\":\"")?.1.split_once('"')?.0.to_owned()))
        .collect();
    causes.dedup();
    causes
}

/// The hook is over before a description shows that it holds.
#[tokio::test(start_paused = true)]
async fn what_a_message_says_a_hook_of_thirty_seconds_holds_is_held_until_a_description_shows_it() {
    let (scene, _) = quick_scene_of(held_group(3, 30), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(100).exits_after(90)]).await;
    scene.pass_some(seconds(60)).await;
    let described = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(seconds(100));
    scene.world.aws.trouble(described, Trouble::Stale(seconds(45)));
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    assert!(!a_hook_timed_out(&scene.world));
    scene.assert_left_well(&machine);
}

/// For longer than the message counts.
#[tokio::test(start_paused = true)]
async fn what_a_message_says_our_hook_holds_is_held_for_as_long_as_aws_takes_heartbeats_and_describes_nothing()
 {
    let (scene, _) = quick_scene_of(held_group(3, 30), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(100).exits_after(90)]).await;
    scene.world.aws.throttle_for(&[Operation::DescribeAutoScalingGroups], seconds(900));
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    assert!(!a_hook_timed_out(&scene.world));
    scene.assert_left_well(&machine);
}

/// The hold begins while nobody runs, and AWS describes no groups when somebody does again.
#[tokio::test(start_paused = true)]
async fn what_a_message_says_our_hook_holds_is_held_before_the_groups_are_known() {
    let (mut scene, queue) = quick_scene_of(held_group(3, 45), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(100).exits_after(90)]).await;
    scene.take_down().await;
    scene.world.aws.throttle_for(&[Operation::DescribeAutoScalingGroups], seconds(900));
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(6)).await;
    scene.bring_back();
    scene.until_gone(&machine).await;
    assert!(!a_hook_timed_out(&scene.world));
    scene.assert_left_well(&machine);
    scene.until(|w| is_empty(w, &queue)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifecycle_action_is_followed_by_the_first_eviction_at_once() {
    let (scene, queue) = quick_scene_of(held_group(3, 300), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    let sent = world_sent(&scene.world, &queue, "Lifecycle Action");
    let (first, ..) = asked(&scene.world, "web")[0];
    let after = first.duration_since(sent);
    // A refresh would come a second after the message.
    assert!(after <= SignedDuration::from_millis(500), "{after} after the message came");
    scene.assert_left_well(&machine);
    scene.until(|w| is_empty(w, &queue)).await;
}

/// When the first message with these words came into the queue.
fn world_sent(world: &World, url: &str, words: &str) -> Timestamp {
    let all = queue(world, url);
    let deleted = all.deleted.iter().map(|(_, message)| message);
    let mut such = all.visible.iter().chain(&all.in_flight).chain(deleted);
    such.find(|message| message.body.contains(words)).expect("such a message").sent
}

#[tokio::test(start_paused = true)]
async fn a_message_is_deleted_only_after_its_record_is_on_the_node() {
    let (scene, url) = scene_of(held_group(1, 300), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.until(|w| is_empty(w, &url)).await;
    let begun = phase_at(&scene.world, &machine, "Draining");
    for (deleted, message) in queue(&scene.world, &url).deleted {
        if message.body.contains(&machine.instance) && message.body.contains("Lifecycle Action") {
            assert!(deleted > begun, "{deleted} {begun}: {}", message.body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn forty_nodes_that_the_group_ends_at_once_are_evicted_within_two_seconds_of_the_messages() {
    let (scene, url) = quick_scene_of(held_group(40, 300), config()).await;
    let machines = scene.machines();
    scene.run(five_on_each(&machines)).await;
    for machine in &machines {
        scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    }
    scene.until(|w| machines.iter().all(|machine| !w.cluster.has_node(&machine.name))).await;
    let sent = world_sent(&scene.world, &url, "Lifecycle Action");
    let asked = asked(&scene.world, "web-");
    assert_eq!(asked.len(), 200);
    let slowest = asked.iter().map(|(at, ..)| at.duration_since(sent)).max().expect("asked");
    assert!(slowest <= SignedDuration::from_secs(2), "the last one after {slowest}");
    assert_nothing_lost(&scene.world);
}

/// Also where AWS's clock is minutes off.
#[tokio::test(start_paused = true)]
async fn an_interrupted_spot_instance_is_left_within_its_two_minutes() {
    for (has_hook, minutes) in [(false, 0), (true, 0), (false, -10), (true, 10)] {
        let group = if has_hook { held_group(2, 300) } else { group(2) };
        let (scene, url) = scene_of(group, config()).await;
        let machine = scene.first();
        scene.world.aws.set_clock_ahead(SignedDuration::from_mins(minutes));
        scene.pass_some(seconds(120)).await;
        scene
            .run([pod("slow").on(&machine.name).grace(600).exits_after(500), pod("quick").on(&machine.name)])
            .await;
        let told = scene.world.clock.now();
        scene.world.aws.interrupt_spot(&machine.instance);
        scene.until_released(&machine).await;
        let graces: Vec<i64> = asked(&scene.world, "slow").iter().map(|(.., grace)| *grace).collect();
        assert!((100..=110).contains(&graces[0]), "hook: {has_hook}, clock {minutes}: {graces:?}");
        let took = released_at(&scene.world, &machine).duration_since(told);
        assert!(took <= SignedDuration::from_secs(120), "hook: {has_hook}, clock {minutes}: {took}");
        scene.until(|w| is_empty(w, &url)).await;
    }
}

/// The message is deleted once the end is on record, and nobody sends it again.
#[tokio::test(start_paused = true)]
async fn an_instance_interrupted_while_it_is_held_for_its_root_volume_leaves_for_good() {
    let (scene, _) = quick_scene_of(held_group(1, 60).timing(Timing::QUICK), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(10)]).await;
    scene.world.aws.replace_root_volumes("web");
    scene.until(|w| is_asked(w, "web")).await;
    let told = scene.world.clock.now();
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until(|w| state(w, &machine) == Some(LifecycleState::InService)).await;
    scene.until(|w| w.aws.calls(TERMINATE) > 0).await;
    let took = scene.world.clock.now().duration_since(told);
    assert!(took < SignedDuration::from_secs(120), "before AWS ends the machine: {took}");
    assert_eq!(decrements(&scene.world), 0, "a replacement comes");
    scene.until_gone(&machine).await;
    assert!(notes(&scene.world, &machine, "ScaleInReturned").is_empty(), "it was never opened");
    assert_nothing_lost(&scene.world);
}

/// cluster-autoscaler would buy another one for what is evicted: it knows only by the size that a node is to come.
#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_there_before_its_predecessor_has_left_is_in_the_target_size() {
    let timing = Timing { boot: Span::seconds(80, 80), ..Timing::QUICK };
    let (scene, _) = quick_scene_of(group(2).timing(timing).rebalancing_capacity(), config()).await;
    let machine = scene.first();
    scene.run([pod("slow").on(&machine.name).grace(600).exits_after(500)]).await;
    let live = |w: &World| {
        w.aws.group("web").expect("the group").instances.iter().filter(|i| i.state.counts()).count()
    };
    scene.world.aws.recommend_rebalance(&machine.instance);
    scene.until(|w| live(w) == 3).await;
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until(|w| is_asked(w, "slow")).await;
    scene.until_target(2).await;
    assert_eq!(live(&scene.world), 3, "while both are there");
    scene.target_stays(2, |w| !w.cluster.has_node(&machine.name)).await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_lost_doubled_late_and_out_of_order_change_nothing_but_the_time() {
    let chaos = Delivery { lost: 0.3, doubled: 0.5, left: 0.3, ..Delivery::HARSH };
    let silence = Delivery { lost: 1.0, ..Delivery::PLAIN };
    for (seed, delivery) in [(1, chaos), (2, chaos), (3, silence)] {
        let world = World::new(seed);
        world.aws.behave(Behaviour { delivery, ..Behaviour::HARSH });
        let (_, config) = told(&world, config());
        let scene = Scene::on(world, held_group(6, 120), config).await;
        let machines = scene.machines();
        let pods = machines.iter().enumerate();
        scene
            .run(pods.map(|(n, m)| pod(format!("web-{n}").as_str()).on(&m.name).grace(60).exits_after(40)))
            .await;
        for machine in &machines {
            scene.scale_in(machine, Cause::Group).await;
        }
        scene.until(|w| machines.iter().all(|m| !w.cluster.has_node(&m.name))).await;
        assert_eq!(asked(&scene.world, "web-").len(), 6, "seed {seed}: each once");
        for machine in &machines {
            scene.assert_left_well(machine);
        }
        assert_nothing_lost(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_messages_are_deleted_and_those_about_others_left_alone() {
    let (log, _guard) = captured::log(tracing::Level::WARN);
    let (scene, url) = scene_of(group(1), config()).await;
    let foreign = r#"{"detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2",
        "time":"2026-01-01T00:00:00Z","detail":{"instance-id":"i-00000000000000bad","instance-action":"terminate"}}"#;
    let malformed = [r#"{"detail-type":"EC2 Spot Instance Interruption Warning"}"#, "", "[1]", "\u{7f}"];
    for body in malformed {
        scene.world.aws.put_message(&url, body).expect("there");
    }
    scene.world.aws.put_message(&url, foreign).expect("there");
    let deleted =
        |w: &World, body: &str| queue(w, &url).deleted.iter().any(|(_, message)| message.body == body);
    scene.until(|w| malformed.iter().all(|body| deleted(w, body))).await;
    let told = "message deleted: not a notice from AWS";
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains(told)).collect();
    assert!(lines.len() == 1 && lines[0].contains(" message_id="), "{text}");
    scene.pass_some(Duration::from_mins(5)).await;
    assert!(!deleted(&scene.world, foreign));
    let all = queue(&scene.world, &url);
    let left: Vec<_> = all.visible.iter().chain(&all.in_flight).collect();
    assert_eq!(left.len(), 1);
    assert!(left[0].received >= 3, "it comes again, for whoever it is for: {}", left[0].received);
}

/// Lines that find no room are dropped, and with them those of drains.
#[tokio::test(start_paused = true)]
async fn what_anybody_may_send_without_end_is_told_in_a_line_a_minute() {
    let (log, _guard) = captured::log(tracing::Level::INFO);
    let (scene, url) = scene_of(group(20), config()).await;
    let machines = scene.machines();
    let send = |count: usize| {
        for machine in machines.iter().cycle().take(count) {
            scene.world.aws.put_message(&url, "{}").expect("there");
            scene.world.aws.recommend_rebalance(&machine.instance);
        }
    };
    let lines = |told: &str| {
        let text = log.text();
        text.lines().filter(|line| line.contains(told)).map(str::to_owned).collect::<Vec<_>>()
    };
    let floods = ["message deleted: not a notice from AWS", "notice ignored: enough nodes of the group"];
    send(200);
    scene.pass_some(seconds(50)).await;
    assert_eq!(floods.map(|told| lines(told).len()), [1, 1]);
    scene.pass_some(seconds(20)).await;
    send(20);
    scene.pass_some(seconds(30)).await;
    for told in floods.map(lines) {
        assert_eq!(told.len(), 2, "{told:#?}");
        let suppressed = told[1].split("suppressed=").nth(1).and_then(|rest| rest.split(' ').next());
        let suppressed = suppressed.and_then(|count| count.parse::<u32>().ok());
        assert!(suppressed.is_some_and(|count| count > 100), "{told:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_queue_cannot_be_read_refreshes_go_on_and_one_line_says_so() {
    let (log, _captured) = captured::log(tracing::Level::INFO);
    let (scene, url) = scene_of(held_group(1, 120), config()).await;
    scene.world.aws.deny(Operation::ReceiveMessage, true);
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_released(&machine).await;
    let lines = log.text().lines().filter(|line| line.contains("queue of notices cannot be read")).count();
    assert_eq!(lines, 1);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    scene.world.aws.deny(Operation::ReceiveMessage, false);
    scene.until(|w| is_empty(w, &url)).await;
    assert!(log.text().contains("the queue of notices can be read again"));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_was_never_read_is_not_told_as_one_that_was() {
    let world = World::new(1);
    world.aws.deny(Operation::ReceiveMessage, true);
    let (scene, _url) = scene_on(world, group(1), config()).await;
    scene.pass_some(Duration::from_mins(1)).await;
    let queue = &status(scene.program()).await["queues"][0];
    assert!(queue["readAgeSeconds"].is_null() && queue["error"].as_str().is_some(), "{queue}");
    let tried = queue["readingForSeconds"].as_u64().expect("a time");
    assert!(tried >= 60, "{queue}");
    scene.world.aws.deny(Operation::ReceiveMessage, false);
    scene.pass_some(Duration::from_mins(2)).await;
    let queue = &status(scene.program()).await["queues"][0];
    assert!(
        queue["readAgeSeconds"].as_u64().is_some_and(|age| age < 60) && queue["error"].is_null(),
        "{queue}"
    );
    assert!(queue["readingForSeconds"].as_u64() >= Some(tried + 120), "{queue}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_does_not_wait_for_a_message_is_asked_once_a_second_and_a_notice_is_heard() {
    let (scene, _url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    let at_once = Which::of(&[Operation::ReceiveMessage]).lasting(Duration::from_mins(1));
    scene.world.aws.trouble(at_once, Trouble::EmptyPage);
    let before = scene.world.aws.calls(Operation::ReceiveMessage);
    scene.pass_some(Duration::from_mins(1)).await;
    let asked = scene.world.aws.calls(Operation::ReceiveMessage) - before;
    assert!((40..=61).contains(&asked), "{asked}");
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until(|w| is_asked(w, "web")).await;
}

#[tokio::test(start_paused = true)]
async fn a_notice_behind_those_of_a_whole_account_is_heard_while_there_is_time() {
    let (scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    scene.world.aws.delay_some(&[Operation::ReceiveMessage], 1.0, seconds(1), seconds(1));
    for n in 0..600 {
        let stopped = format!(
            r#"{{"detail-type":"EC2 Instance State-change Notification","source":"aws.ec2","account":"111122223333",
                "time":"{}","region":"us-east-1","resources":[],"detail":{{"instance-id":"i-{n:017x}","state":"stopping"}}}}"#,
            scene.world.clock.now()
        );
        scene.world.aws.put_message(&url, stopped).expect("there");
    }
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.pass_some(seconds(40)).await;
    assert!(is_asked(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_was_read_and_not_recorded_is_told_again_after_a_kill() {
    let (mut scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    let receives = scene.world.aws.calls(Operation::ReceiveMessage);
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until(|w| !queue(w, &url).in_flight.is_empty()).await;
    assert!(!in_phase(&scene.world, &machine, "Draining"), "received, and no record yet ({receives})");
    scene.kill().await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.until_released(&machine).await;
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_instance_that_somebody_detaches_is_drained_all_the_same() {
    for state in [LifecycleState::Detaching, LifecycleState::Detached] {
        let (scene, url) = quick_scene_of(group(2), config()).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(30).exits_after(20)]).await;
        scene.world.aws.interrupt_spot(&machine.instance);
        scene.until(|w| in_phase(w, &machine, "Draining")).await;
        scene.world.aws.set_state(&machine.instance, state);
        scene.until(|w| is_asked(w, "web")).await;
        assert!(is_cordoned(&scene.world, &machine), "{state:?}");
        let [(_, by, grace)] = asked(&scene.world, "web")[..] else { panic!("asked once: {state:?}") };
        assert_eq!((by, grace), (By::Delete, 30), "{state:?}");
        scene.until(|w| has_exited(w, "web")).await;
        scene.until(|w| in_phase(w, &machine, "Releasing")).await;
        assert_eq!(scene.world.aws.calls(TERMINATE), 0, "{state:?}");
        scene.until(|w| is_empty(w, &url)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_interruption_that_is_told_while_the_api_server_is_away_is_drained_in_what_is_left_of_its_time() {
    let (scene, url) = quick_scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("slow").on(&machine.name).grace(600).exits_after(500)]).await;
    let told = scene.world.clock.now();
    scene.world.cluster.api_down_for(Duration::from_mins(1));
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until_released(&machine).await;
    let (at, _, grace) = asked(&scene.world, "slow")[0];
    let late = at.duration_since(told).as_secs();
    assert!((60..75).contains(&late), "{late}");
    // 120 s less what has passed, 5 s to flush, 5 s of margin and 1 s to kill and report.
    assert!((109 - late - 3..=109 - late).contains(&grace), "{grace} s after {late} s");
    let took = released_at(&scene.world, &machine).duration_since(told);
    assert!(took <= SignedDuration::from_secs(120), "{took}");
    scene.until(|w| is_empty(w, &url)).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_somebody_stops_is_closed_at_once_and_replaced_by_its_group_alone() {
    let (scene, url) = quick_scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.world.aws.kill_machine(&machine.instance, Death::Stopped);
    scene.until(|w| in_phase(w, &machine, "Draining")).await;
    assert!(is_cordoned(&scene.world, &machine));
    scene.until_gone(&machine).await;
    assert_eq!(
        (causes(&scene.world, &machine)[0].as_str(), scene.world.aws.calls(TERMINATE)),
        ("state-change", 0)
    );
    scene.until(|w| is_empty(w, &url)).await;
}

#[tokio::test(start_paused = true)]
async fn that_a_machine_stops_counts_though_the_last_description_leaves_it_out() {
    // Its group does not look after it.
    let (scene, url) = quick_scene_of(group(2).suspended("ReplaceUnhealthy"), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    let left_out = Trouble::Without(machine.instance.clone());
    let describe = Which::of(&[Operation::DescribeAutoScalingGroups]);
    scene.world.aws.trouble(describe.lasting(seconds(75)), left_out);
    scene.pass_some(seconds(65)).await;
    scene.world.aws.kill_machine(&machine.instance, Death::Stopped);
    scene.pass_some(seconds(120)).await;
    assert_eq!(causes(&scene.world, &machine), ["state-change"]);
    assert!(is_empty(&scene.world, &url));
}

#[tokio::test(start_paused = true)]
async fn a_recommended_rebalance_closes_the_node_for_an_hour_and_drains_nothing() {
    let (scene, url) = scene_of(group(1), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.world.aws.recommend_rebalance(&machine.instance);
    scene.until(|w| is_cordoned(w, &machine)).await;
    let closed = scene.world.clock.now();
    scene.until(|w| is_empty(w, &url)).await;
    scene.until(|w| !is_cordoned(w, &machine)).await;
    let lasted = scene.world.clock.now().duration_since(closed);
    assert!((SignedDuration::from_mins(59)..SignedDuration::from_mins(61)).contains(&lasted), "{lasted}");
    assert!(!is_asked(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn recommendations_for_a_whole_group_close_a_tenth_of_its_nodes() {
    for (size, closed) in [(2, 1), (20, 2)] {
        let (scene, url) = scene_of(group(size), config()).await;
        for machine in scene.machines() {
            scene.world.aws.recommend_rebalance(&machine.instance);
        }
        scene.until(|w| is_empty(w, &url)).await;
        scene.pass_some(seconds(120)).await;
        let are_closed = |scene: &Scene| {
            scene.machines().iter().filter(|machine| is_cordoned(&scene.world, machine)).count()
        };
        assert_eq!(are_closed(&scene), closed);
        // Said again for one that is closed, it is no other.
        let again = scene.machines().into_iter().find(|machine| is_cordoned(&scene.world, machine));
        scene.pass_some(seconds(1_800)).await;
        scene.world.aws.recommend_rebalance(&again.expect("closed").instance);
        scene.pass_some(seconds(2_400)).await;
        assert_eq!(are_closed(&scene), 1, "prolonged");
    }
}

/// cluster-autoscaler would buy another group in place of what is closed.
#[tokio::test(start_paused = true)]
async fn an_event_weeks_ahead_that_names_a_whole_group_closes_a_tenth_of_its_nodes() {
    let config = config_with(|it| it.on_scheduled_event = Treatment::Cordon);
    let (scene, url) = scene_of(group(20), config).await;
    let machines = scene.machines();
    let change = |status: &str| ScheduledChange {
        id: "retire-1".into(),
        code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".into(),
        starts: scene.world.clock.now() + SignedDuration::from_hours(14 * 24),
        status: status.into(),
    };
    let closed = || machines.iter().filter(|machine| is_cordoned(&scene.world, machine)).collect::<Vec<_>>();
    announce(&scene.world, &change("upcoming"), &machines);
    scene.pass_some(seconds(60)).await;
    assert!(is_empty(&scene.world, &url));
    assert_eq!(closed().len(), 2);
    let open = machines.iter().find(|machine| !closed().contains(machine)).expect("one");
    scene.world.aws.recommend_rebalance(&open.instance);
    scene.pass_some(seconds(60)).await;
    assert_eq!(closed().len(), 2, "whatever they are closed for");
    announce(&scene.world, &change("closed"), &machines);
    scene.pass_some(seconds(60)).await;
    assert_eq!(closed().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_deleted_once_its_node_is_closed_whatever_the_wall_clock_was_set_to() {
    for by in [SignedDuration::from_mins(-2), SignedDuration::from_mins(2)] {
        let (scene, url) = scene_of(group(1), config()).await;
        let machine = scene.first();
        scene.step_clock(by);
        scene.world.aws.recommend_rebalance(&machine.instance);
        scene.until(|w| is_cordoned(w, &machine)).await;
        let closed = scene.world.clock.now();
        scene.until(|w| is_empty(w, &url)).await;
        let after = scene.world.clock.now().duration_since(closed);
        assert!(after <= SignedDuration::from_mins(1), "{after} after the cordon, with a step of {by}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_recommendation_is_the_groups_affair_where_it_rebalances_capacity_and_can_mean_a_drain() {
    let config = config_with(|it| it.on_rebalance = Treatment::Drain);
    let (scene, _) = scene_of(held_group(2, 300).rebalancing_capacity(), config.clone()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.world.aws.recommend_rebalance(&machine.instance);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(causes(&scene.world, &machine), ["lifecycle-hook"]);

    // Without a hook the group ends it as soon as the replacement is there, and nothing holds it.
    for group in [group(2), group(2).rebalancing_capacity()] {
        let (scene, _) = scene_of(group, config.clone()).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name)]).await;
        scene.world.aws.recommend_rebalance(&machine.instance);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        let sizes = aws_moments(&scene.world, |e| matches!(e, Event::DesiredChanged { .. }));
        assert_eq!(sizes, [], "a replacement comes");
        assert_eq!(causes(&scene.world, &machine), ["rebalance-recommendation"]);
    }
}

#[tokio::test(start_paused = true)]
async fn recommendations_for_a_whole_group_drain_a_tenth_of_it_at_once_and_an_interruption_waits_for_nobody()
{
    let (scene, url) = scene_of(group(20), config_with(|it| it.on_rebalance = Treatment::Drain)).await;
    let machines = scene.machines();
    scene.world.cluster.add(budget("web").max_unavailable(0));
    for machine in &machines {
        scene.run([pod(machine.name.as_str()).label("app", "web").on(&machine.name)]).await;
        scene.world.aws.recommend_rebalance(&machine.instance);
    }
    scene.pass_some(Duration::from_mins(5)).await;
    assert_eq!(under_way(&scene.world, &machines), 2);
    let waits = machines.iter().find(|machine| causes(&scene.world, machine).is_empty()).expect("one");
    scene.world.aws.interrupt_spot(&waits.instance);
    scene.pass_some(seconds(10)).await;
    assert_eq!(causes(&scene.world, waits), ["spot-interruption"]);
    // The others' have lapsed.
    scene.until(|w| is_empty(w, &url)).await;
    let drained = machines.iter().filter(|machine| !causes(&scene.world, machine).is_empty()).count();
    assert_eq!(drained, 3);
}

#[tokio::test(start_paused = true)]
async fn scheduled_maintenance_is_a_drain_or_a_cordon_that_ends_when_it_is_called_off() {
    let change = |world: &World, status: &str| ScheduledChange {
        id: "retire-1".into(),
        code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".into(),
        starts: world.clock.now() + SignedDuration::from_hours(24),
        status: status.into(),
    };
    let (scene, _) = scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.world.aws.schedule_change(&change(&scene.world, "upcoming"), &[&machine.instance]);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);

    let config = config_with(|it| it.on_scheduled_event = Treatment::Cordon);
    let (scene, url) = scene_of(group(2), config).await;
    let machine = scene.first();
    scene.world.aws.schedule_change(&change(&scene.world, "upcoming"), &[&machine.instance]);
    scene.until(|w| is_cordoned(w, &machine)).await;
    scene.until(|w| is_empty(w, &url)).await;
    scene.world.aws.schedule_change(&change(&scene.world, "closed"), &[&machine.instance]);
    scene.until(|w| !is_cordoned(w, &machine)).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_closed_for_maintenance_is_told_for_as_long_as_it_is() {
    let config = config_with(|it| it.on_scheduled_event = Treatment::Cordon);
    let (scene, _) = scene_of(group(2), config).await;
    let machine = scene.first();
    let change = |status: &str| ScheduledChange {
        id: "retire-1".into(),
        code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".into(),
        starts: scene.world.clock.now() + SignedDuration::from_hours(24),
        status: status.into(),
    };
    let gauge = async || {
        let page = get(scene.program().admin().expect("an address"), "/metrics").await;
        let series = "ebbtide_nodes_cordoned{cause=\"scheduled-event\"} ";
        page.split(series).nth(1).and_then(|rest| rest.lines().next()).map(str::to_owned)
    };
    assert_eq!(gauge().await.as_deref(), Some("0"));
    scene.world.aws.schedule_change(&change("upcoming"), &[&machine.instance]);
    scene.until(|w| is_cordoned(w, &machine)).await;
    // Long after its Event.
    scene.pass_some(Duration::from_hours(3)).await;
    let told = &status(scene.program()).await["cordoned"];
    let one = &told[0];
    assert_eq!((&one["node"], &one["causes"]), (&json!(machine.name), &json!(["scheduled-event"])), "{told}");
    let until = one["until"].as_str().expect("a moment");
    let table = status_table(&scene).await;
    let row = table.lines().last().unwrap_or_default();
    assert!(
        row.starts_with(&machine.name) && row.contains(&until[..19]) && row.ends_with("scheduled-event"),
        "{table}"
    );
    assert_eq!(gauge().await.as_deref(), Some("1"));
    scene.world.aws.schedule_change(&change("closed"), &[&machine.instance]);
    scene.until(|w| !is_cordoned(w, &machine)).await;
    // Until its watch has told.
    scene.pass_some(seconds(2)).await;
    assert_eq!(status(scene.program()).await["cordoned"], json!([]));
    assert_eq!(status_table(&scene).await, "no scale-in is under way\n");
    assert_eq!(gauge().await.as_deref(), Some("0"));
}

/// Maintenance of six of twenty machines that is so far away, each with a pod that takes long to exit.
async fn six_of_twenty(away: SignedDuration) -> (Scene, String, Vec<Machine>, ScheduledChange) {
    let (scene, url) = scene_of(group(20), config()).await;
    let machines: Vec<Machine> = scene.machines().into_iter().take(6).collect();
    for machine in &machines {
        let name = format!("web-{}", machine.name);
        scene
            .run([pod(name.as_str()).label("app", "web").on(&machine.name).grace(120).exits_after(90)])
            .await;
    }
    let change = ScheduledChange {
        id: "retire-1".into(),
        code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".into(),
        starts: scene.world.clock.now() + away,
        status: "upcoming".into(),
    };
    announce(&scene.world, &change, &machines);
    (scene, url, machines, change)
}

fn announce(world: &World, change: &ScheduledChange, machines: &[Machine]) {
    let instances: Vec<&str> = machines.iter().map(|machine| machine.instance.as_str()).collect();
    world.aws.schedule_change(change, &instances);
}

/// How many of them are being drained or released.
pub(crate) fn under_way(world: &World, machines: &[Machine]) -> usize {
    let is = |machine: &&Machine| !causes(world, machine).is_empty() && !is_released(world, machine);
    machines.iter().filter(is).count()
}

#[tokio::test(start_paused = true)]
async fn of_machines_whose_maintenance_is_weeks_away_a_tenth_of_the_group_is_drained_at_once() {
    for killed in [false, true] {
        let (mut scene, url, machines, _) = six_of_twenty(SignedDuration::from_hours(14 * 24)).await;
        let told = |w: &World| machines.iter().any(|machine| !notes(w, machine, "ScaleInQueued").is_empty());
        scene.until(told).await;
        if killed {
            scene.kill().await;
        }
        let most = scene.most_at_once(&machines, under_way).await;
        assert_eq!(most, 2, "killed: {killed}");
        for machine in &machines {
            assert_eq!(causes(&scene.world, machine), ["scheduled-event"]);
        }
        scene.until(|w| is_empty(w, &url)).await;
        assert_nothing_lost(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn machines_whose_maintenance_is_hours_away_wait_for_nobody() {
    let (scene, _, machines, _) = six_of_twenty(SignedDuration::from_hours(23)).await;
    scene.until(|w| under_way(w, &machines) == 6).await;
}

#[tokio::test(start_paused = true)]
async fn maintenance_that_stuck_drains_make_wait_is_answered_a_day_before_it_comes() {
    let (scene, _, machines, _) = six_of_twenty(SignedDuration::from_hours(25)).await;
    scene.world.cluster.add(budget("web").max_unavailable(0));
    scene.until(|w| under_way(w, &machines) == 2).await;
    scene.pass_some(Duration::from_mins(50)).await;
    assert_eq!(under_way(&scene.world, &machines), 2);
    scene.pass_some(Duration::from_mins(12)).await;
    assert_eq!(under_way(&scene.world, &machines), 6);
}

/// AWS tells of degraded hardware as of an open event that has begun, and of no end.
#[tokio::test(start_paused = true)]
async fn a_machine_on_hardware_that_has_failed_for_an_hour_is_drained_without_a_limit() {
    let (scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
    let change = ScheduledChange {
        id: "one".into(),
        code: "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED".into(),
        starts: scene.world.clock.now() - SignedDuration::from_hours(1),
        status: "open".into(),
    };
    announce(&scene.world, &change, std::slice::from_ref(&machine));
    scene.until_gone(&machine).await;
    assert_eq!(causes(&scene.world, &machine), ["scheduled-event"]);
    scene.assert_left_well(&machine);
    scene.until(|w| is_empty(w, &url)).await;
}

/// Nobody else hears of it.
#[tokio::test(start_paused = true)]
async fn a_notice_that_has_lapsed_when_it_comes_is_told_of_where_it_is_about_a_node() {
    let (log, _guard) = captured::log(tracing::Level::INFO);
    let (scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    let long_ago = scene.world.clock.now() - SignedDuration::from_hours(2);
    for instance in [machine.instance.as_str(), "i-00000000000000bad"] {
        let event = json!({
            "source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification",
            "time": long_ago.to_string(), "detail": { "instance-id": instance, "state": "stopping" },
        });
        scene.world.aws.put_message(&url, event.to_string()).expect("there");
    }
    scene.until(|w| is_empty(w, &url) && queue(w, &url).deleted.len() >= 2).await;
    let text = log.text();
    let told: Vec<_> = text.lines().filter(|line| line.contains("notice ignored: it has lapsed")).collect();
    assert!(told.len() == 1 && told[0].contains(&machine.instance), "{text}");
    assert_eq!(causes(&scene.world, &machine), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn maintenance_that_is_called_off_while_machines_wait_drains_these_no_more() {
    let (scene, _, machines, change) = six_of_twenty(SignedDuration::from_hours(14 * 24)).await;
    scene.until(|w| under_way(w, &machines) == 2).await;
    announce(&scene.world, &ScheduledChange { status: "closed".into(), ..change }, &machines);
    scene.pass_some(Duration::from_hours(1)).await;
    let drained = machines.iter().filter(|machine| !causes(&scene.world, machine).is_empty()).count();
    assert_eq!(drained, 2);
}

#[tokio::test(start_paused = true)]
async fn machines_whose_maintenance_is_moved_while_they_wait_go_on_waiting_for_their_turns() {
    let (scene, _, machines, change) = six_of_twenty(SignedDuration::from_hours(25)).await;
    scene.world.cluster.add(budget("web").max_unavailable(0));
    scene.until(|w| under_way(w, &machines) == 2).await;
    announce(&scene.world, &ScheduledChange { starts: in_two_weeks(&scene.world), ..change }, &machines);
    scene.pass_some(Duration::from_hours(2)).await;
    assert_eq!(under_way(&scene.world, &machines), 2);
}

fn in_two_weeks(world: &World) -> Timestamp {
    world.clock.now() + SignedDuration::from_hours(14 * 24)
}

/// Maintenance in two hours of a machine with a pod that a budget keeps.
async fn one_that_a_budget_keeps() -> (Scene, String, Machine, ScheduledChange) {
    let (scene, url) = scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").max_unavailable(0));
    scene.run([pod("web").label("app", "web").on(&machine.name).grace(30)]).await;
    let change = ScheduledChange {
        id: "one".into(),
        code: "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED".into(),
        starts: scene.world.clock.now() + SignedDuration::from_hours(2),
        status: "upcoming".into(),
    };
    announce(&scene.world, &change, std::slice::from_ref(&machine));
    scene.until(|w| !causes(w, &machine).is_empty() && is_empty(w, &url)).await;
    (scene, url, machine, change)
}

/// Also where the ebbtide that has begun it is gone when AWS moves it.
#[tokio::test(start_paused = true)]
async fn a_drain_under_way_for_maintenance_that_is_moved_ends_by_the_new_start() {
    for killed in [false, true] {
        let (mut scene, url, machine, change) = one_that_a_budget_keeps().await;
        if killed {
            scene.kill().await;
        }
        let moved = ScheduledChange { starts: in_two_weeks(&scene.world), ..change };
        announce(&scene.world, &moved, std::slice::from_ref(&machine));
        scene.pass_some(Duration::from_mins(5)).await;
        assert!(is_empty(&scene.world, &url), "killed: {killed}");
        let ends = format!("\"endsAt\":\"{}", moved.starts.strftime("%Y-%m-%dT%H:%M"));
        let record = records(&scene.world, &machine).pop().expect("a record");
        assert!(record.contains(&ends), "killed: {killed}, {ends}: {record}");
        scene.pass_some(Duration::from_hours(3)).await;
        assert!(!has_exited(&scene.world, "web"), "killed: {killed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_under_way_for_maintenance_that_is_moved_closer_ends_sooner() {
    let (scene, _, machine, change) = one_that_a_budget_keeps().await;
    let moved = ScheduledChange { starts: scene.world.clock.now() + SignedDuration::from_mins(30), ..change };
    announce(&scene.world, &moved, std::slice::from_ref(&machine));
    scene.pass_some(Duration::from_mins(31)).await;
    assert!(has_exited(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn a_request_on_a_node_whose_maintenance_is_weeks_away_waits_for_its_turn_as_any() {
    let (scene, _, machines, _) = six_of_twenty(SignedDuration::from_hours(14 * 24)).await;
    for machine in &machines {
        scene.annotate(machine, Some("replace")).await;
    }
    let most = scene.most_at_once(&machines, under_way).await;
    assert_eq!(most, 2);
}

#[tokio::test(start_paused = true)]
async fn the_call_off_of_one_event_lifts_no_cordon_of_another() {
    let config = config_with(|it| it.on_scheduled_event = Treatment::Cordon);
    let (scene, url) = scene_of(group(2), config).await;
    let machine = scene.first();
    let change = |id: &str, hours: i64, status: &str| ScheduledChange {
        id: id.into(),
        code: "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED".into(),
        starts: scene.world.clock.now() + SignedDuration::from_hours(hours),
        status: status.into(),
    };
    for (id, hours) in [("one", 2), ("two", 24)] {
        scene.world.aws.schedule_change(&change(id, hours, "upcoming"), &[&machine.instance]);
        scene.until(|w| is_cordoned(w, &machine)).await;
        scene.until(|w| is_empty(w, &url)).await;
    }
    scene.world.aws.schedule_change(&change("two", 24, "closed"), &[&machine.instance]);
    scene.pass_some(seconds(60)).await;
    assert!(is_cordoned(&scene.world, &machine), "the first still comes");
    scene.world.aws.schedule_change(&change("one", 2, "closed"), &[&machine.instance]);
    scene.until(|w| !is_cordoned(w, &machine)).await;
    assert_eq!(causes(&scene.world, &machine), [""; 0], "nothing was drained");
    // The call-offs, for as long as the events would have counted.
    assert_eq!(queue(&scene.world, &url).visible.len() + queue(&scene.world, &url).in_flight.len(), 2);
    scene.pass_some(Duration::from_hours(26)).await;
    assert!(is_empty(&scene.world, &url));
}
