//! What the metrics tell of scale-ins, as a scrape has them.

use std::net::SocketAddr;
use std::sync::Arc;

use ebbtide::app::Outside;
use ebbtide::cluster::Cluster;
use ebbtide::config::Config;
use ebbtide::provider::{Incoming, Tls};
use ebbtide::scale_in::AtOnce;
use ebbtide::sim::aws::{
    Event as AwsEvent, GroupSpec, Operation, QueueSpec, ScheduledChange, TargetGroupSpec, TerminationCause,
};
use ebbtide::sim::cluster::{Event, Fault, Timing, Verb, budget, pod};
use ebbtide::sim::http::kube_client;
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tracing::Level;

use crate::absurd::Cursed;
use crate::journal_queries::{aws_moments, is_asked, moments};
use crate::scene::{EVER, RECORD, config_with, group, held_group, seconds};
use crate::status::get;

/// The program on a world, and where it tells how it does.
pub(crate) struct Watched {
    pub(crate) world: World,
    admin: SocketAddr,
    /// Its nodes, in order of their names.
    pub(crate) nodes: Vec<String>,
    _program: Program,
}

impl Watched {
    async fn on(group: GroupSpec, config: Config) -> Self {
        Self::of(World::plain(1), group, config).await
    }

    async fn of(world: World, group: GroupSpec, config: Config) -> Self {
        world.aws.add_group(group);
        Self::reached_by(world, config, Box::pin(futures::stream::pending()), None).await
    }

    /// On a world with a group `web`; these clients connect.
    pub(crate) async fn reached_by(
        world: World,
        config: Config,
        incoming: Incoming,
        tls: Option<Tls>,
    ) -> Self {
        Self::reached_by_all(world, config, incoming, tls, None).await
    }

    /// The same, with clients of the expander that show no certificate.
    pub(crate) async fn reached_by_all(
        world: World,
        config: Config,
        incoming: Incoming,
        tls: Option<Tls>,
        expander: Option<(Incoming, Tls)>,
    ) -> Self {
        let program = Program::start_in(&world, config, |outside| Outside {
            expander,
            cluster: Cluster::new(kube_client(Arc::new(Cursed(world.cluster.clone())))),
            incoming,
            tls,
            ..outside
        });
        let admin = program.admin().expect("a port");
        let size = world.aws.group("web").expect("the group").desired as usize;
        assert!(world.until(EVER, |w| w.cluster.node_names().len() == size).await);
        let nodes = world.cluster.node_names();
        Self { world, admin, nodes, _program: program }
    }

    pub(crate) async fn until(&self, holds: impl FnMut(&World) -> bool) {
        assert!(self.world.until(EVER, holds).await, "it never came to that");
    }

    /// What a scrape tells.
    pub(crate) async fn scrape(&self) -> String {
        get(self.admin, "/metrics").await
    }

    /// Scrapes until a series has at least this value.
    pub(crate) async fn until_it_tells(&self, series: &str, least: f64) {
        let told = async {
            while value(&self.scrape().await, series).is_none_or(|value| value < least) {
                tokio::time::sleep(seconds(5)).await;
            }
        };
        let told = tokio::time::timeout(EVER, told).await;
        assert!(told.is_ok(), "{series} never came to {least}: {}", self.scrape().await);
    }

    /// A person wants a node gone.
    async fn request_scale_in(&self, node: &str) {
        let nodes: Api<Node> = Api::all(self.world.cluster.client());
        let request = json!({ "metadata": { "annotations": { RECORD: "now" } } });
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(request)).await.expect("patched");
    }

    fn now(&self) -> jiff::Timestamp {
        self.world.clock.now()
    }
}

/// The value of a series, if the page has it.
pub(crate) fn value(page: &str, series: &str) -> Option<f64> {
    let of = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    page.lines().find_map(of)
}

#[tokio::test(start_paused = true)]
async fn what_a_drain_asks_for_and_waits_for_is_counted() {
    let scene = Watched::on(held_group(2, 600), config()).await;
    let (world, name) = (&scene.world, scene.nodes[0].as_str());
    let on = |pod_name: &str| pod(pod_name).on(name);
    world.cluster.add(budget("held").min_available(1));
    world.cluster.add(budget("twice").min_available(1)).add(budget("too").selects("app", "twice"));
    world.cluster.add(on("web").grace(50_000).exits_after(40_000));
    world.cluster.add(on("held")).add(on("twice")).add(on("patient").annotation("ebbtide/drain", "wait"));
    scene.until(|w| moments(w, |e| matches!(e, Event::PodRunning { .. })).len() == 4).await;
    let before = scene.scrape().await;
    assert_eq!(value(&before, "ebbtide_scale_in_oldest_age_seconds"), Some(0.0));
    assert_eq!(value(&before, "ebbtide_scale_in_panics_total"), Some(0.0));
    assert!(!before.contains("ebbtide_scale_ins{"), "{before}");

    let node = world.cluster.node(name).expect("there");
    let provider_id = node.spec.and_then(|spec| spec.provider_id).expect("an instance");
    world.aws.terminate(provider_id.rsplit('/').next().expect("its id"), TerminationCause::Rebalance);
    scene.until(|w| is_asked(w, "web")).await;
    let asked_at = scene.now();
    let beats = |w: &World| aws_moments(w, |e| matches!(e, AwsEvent::Heartbeat { .. })).len();
    scene.until(|w| beats(w) >= 3).await;
    // Time runs on while the page is on its way.
    let (least, since) = (beats(world), scene.now().duration_since(asked_at).as_secs_f64());
    let page = scene.scrape().await;
    let told = |series: &str| value(&page, series).unwrap_or_else(|| panic!("{series} in {page}"));
    assert_eq!(value(&page, r#"ebbtide_scale_ins{cause="lifecycle-hook",phase="Draining"}"#), Some(1.0));
    for why in ["exiting", "budget", "refused", "patient"] {
        assert_eq!(
            value(&page, &format!(r#"ebbtide_scale_in_pods_waiting{{reason="{why}"}}"#)),
            Some(1.0),
            "{why}"
        );
    }
    let asked =
        |answer| told(&format!(r#"ebbtide_pod_removal_requests_total{{call="eviction",answer="{answer}"}}"#));
    assert!((1.0..2.0).contains(&asked("going")), "{page}");
    let refused = moments(world, |e| matches!(e, Event::EvictionRefused { .. })).len() as f64;
    assert!(asked("blocked") >= 2.0 && asked("unclear") >= 2.0, "{page}");
    assert!(asked("blocked") + asked("unclear") <= refused, "{page}");
    let beaten = told(r#"ebbtide_lifecycle_heartbeats_total{group="web",outcome="ok"}"#);
    assert!((least as f64..=beats(world) as f64).contains(&beaten), "{beaten}, {least} at the least");
    let age = told("ebbtide_scale_in_oldest_age_seconds");
    let by_now = scene.now().duration_since(asked_at).as_secs_f64();
    assert!(
        (since..=by_now + 10.0).contains(&age),
        "{age} s, {since} to {by_now} s after the first eviction"
    );

    // One that AWS throttles now and then is no failure.
    world.aws.throttle_next(Operation::RecordLifecycleActionHeartbeat, 1);
    scene.until_it_tells(r#"ebbtide_lifecycle_heartbeats_total{group="web",outcome="retried"}"#, 1.0).await;
    let taken = beats(world);
    scene.until(|w| beats(w) > taken).await;
    let failed = r#"ebbtide_lifecycle_heartbeats_total{group="web",outcome="failed"}"#;
    assert_eq!(value(&scene.scrape().await, failed), Some(0.0));
    world.aws.deny(Operation::RecordLifecycleActionHeartbeat, true);
    scene.until_it_tells(failed, 2.0).await;
}

#[tokio::test(start_paused = true)]
async fn how_soon_a_long_drain_deletes_pods_is_told_once_half_of_the_time_until_then_is_over() {
    const LEFT: &str = "ebbtide_scale_in_nearest_limit_seconds";
    // A hundred heartbeats of half a minute, of which the pod's grace takes ten; a limit of twenty minutes is somebody's choice.
    for (drain_timeout, is_told) in [(None, true), (Some(seconds(1_200)), false)] {
        let scene = Watched::on(held_group(2, 30), config_with(|it| it.drain_timeout = drain_timeout)).await;
        let (world, name) = (&scene.world, scene.nodes[0].as_str());
        world.cluster.add(pod("patient").on(name).grace(600).annotation("ebbtide/drain", "wait"));
        scene.until(|w| !moments(w, |e| matches!(e, Event::PodRunning { .. })).is_empty()).await;
        scene.request_scale_in(name).await;
        scene.until(|w| !aws_moments(w, |e| matches!(e, AwsEvent::EnteredWait { .. })).is_empty()).await;
        tokio::time::sleep(seconds(1_105)).await;
        assert_eq!(value(&scene.scrape().await, LEFT), None);
        tokio::time::sleep(seconds(120)).await;
        let left = value(&scene.scrape().await, LEFT);
        assert_eq!(left.is_some(), is_told, "{left:?}");
        assert!(left.is_none_or(|left| (1_050.0..1_180.0).contains(&left)), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_that_ended_is_told_with_its_phases_and_the_margins_of_its_heartbeats() {
    let scene = Watched::on(held_group(2, 600), config()).await;
    let (world, name) = (&scene.world, scene.nodes[0].as_str());
    world.cluster.add(pod("web").on(name).grace(4_000).exits_after(3_000));
    scene.until(|w| !moments(w, |e| matches!(e, Event::PodRunning { .. })).is_empty()).await;
    scene.request_scale_in(name).await;
    let ended = r#"ebbtide_scale_ins_ended_total{cause="operator",outcome="released"}"#;
    scene.until_it_tells(ended, 1.0).await;
    let page = scene.scrape().await;
    let told = |series: &str| value(&page, series).unwrap_or_else(|| panic!("{series} in {page}"));
    for (phase, seconds) in [("Draining", 3_000.0..3_060.0), ("Flushing", 5.0..8.0)] {
        let of = |part: &str| {
            told(&format!(r#"ebbtide_scale_in_phase_duration_seconds_{part}{{phase="{phase}"}}"#))
        };
        assert!((of("count") - 1.0).abs() < 0.1, "{phase}");
        assert!(seconds.contains(&of("sum")), "{phase} took {}", of("sum"));
    }
    assert_eq!(value(&page, "ebbtide_scale_in_exit_to_release_seconds_count"), Some(1.0));
    assert!((5.0..10.0).contains(&told("ebbtide_scale_in_exit_to_release_seconds_sum")), "{page}");
    let beats = told("ebbtide_lifecycle_heartbeat_margin_seconds_count");
    assert!(beats >= 8.0, "{beats}");
    let at_most = |le| told(&format!(r#"ebbtide_lifecycle_heartbeat_margin_seconds_bucket{{le="{le}"}}"#));
    assert_eq!((at_most("150.0"), at_most("600.0")), (0.0, beats), "about half of the time-out is left");
    assert!(told("ebbtide_lifecycle_heartbeat_margin_seconds_sum") / beats >= 290.0, "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_that_a_person_calls_off_is_told_as_cancelled() {
    let scene = Watched::on(group(2), config()).await;
    let (cluster, name) = (&scene.world.cluster, scene.nodes[0].as_str());
    cluster.add(pod("web").on(name).grace(50_000).exits_after(40_000));
    scene.until(|w| !moments(w, |e| matches!(e, Event::PodRunning { .. })).is_empty()).await;
    scene.request_scale_in(name).await;
    scene.until(|w| is_asked(w, "web")).await;
    let nodes: Api<Node> = Api::all(cluster.client());
    let none = json!({ "metadata": { "annotations": { RECORD: null } } });
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(none)).await.expect("patched");
    let ended = r#"ebbtide_scale_ins_ended_total{cause="operator",outcome="cancelled"}"#;
    scene.until_it_tells(ended, 1.0).await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_and_defects_are_counted() {
    let config = config_with(|it| it.operator_at_once = AtOnce::Number(1));
    let scene = Watched::on(group(3), config).await;
    for (name, node) in ["cursed", "web"].iter().zip(&scene.nodes) {
        scene.world.cluster.add(pod(*name).on(node).grace(50_000).exits_after(40_000));
    }
    scene.until(|w| moments(w, |e| matches!(e, Event::PodRunning { .. })).len() == 2).await;
    for node in &scene.nodes[..2] {
        scene.request_scale_in(node).await;
    }
    // The work on the first node panics, again and again, and the other waits for that.
    scene.until_it_tells("ebbtide_scale_in_panics_total", 2.0).await;
    let page = scene.scrape().await;
    let under_way =
        |phase| value(&page, &format!(r#"ebbtide_scale_ins{{cause="operator",phase="{phase}"}}"#));
    assert_eq!((under_way("Draining"), under_way("Queued")), (Some(1.0), Some(1.0)), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_api_server_and_the_deletions_at_the_deadline_are_counted() {
    let config = config_with(|it| it.drain_timeout = Some(seconds(1_200)));
    let scene = Watched::on(group(2), config).await;
    let (cluster, name) = (&scene.world.cluster, scene.nodes[0].as_str());
    cluster.add(budget("held").min_available(1)).add(pod("held").on(name));
    scene.until(|w| !moments(w, |e| matches!(e, Event::PodRunning { .. })).is_empty()).await;
    let busy = Fault::TooManyRequests { retry_after_seconds: 20 };
    cluster.fail_next(2, Verb::Create, "pods/eviction", busy);
    scene.request_scale_in(name).await;
    for (series, least) in [
        (r#"ebbtide_scale_in_pods_waiting{reason="queued"}"#, 1.0),
        (r#"ebbtide_pod_removal_requests_total{call="eviction",answer="busy"}"#, 2.0),
        (r#"ebbtide_pod_removal_requests_total{call="deletion",answer="going"}"#, 1.0),
        (r#"ebbtide_scale_ins_ended_total{cause="operator",outcome="cut_short"}"#, 1.0),
    ] {
        scene.until_it_tells(series, least).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_overdue_and_one_that_is_gone_before_it_is_asked_are_counted() {
    let scene = Watched::on(group(2), config()).await;
    let (cluster, name) = (&scene.world.cluster, scene.nodes[0].as_str());
    // A container runtime that does not say what has become of a container.
    let exit_noticed = Span::exactly(seconds(50_000));
    cluster.set_timing(Timing { exit_noticed, ..Timing::real() });
    cluster.add(budget("held").min_available(1)).add(pod("held").on(name)).add(pod("web").on(name).grace(30));
    scene.until(|w| moments(w, |e| matches!(e, Event::PodRunning { .. })).len() == 2).await;
    scene.request_scale_in(name).await;
    for series in [
        r#"ebbtide_pod_removal_requests_total{call="eviction",answer="blocked"}"#,
        r#"ebbtide_scale_in_pods_waiting{reason="overdue"}"#,
    ] {
        scene.until_it_tells(series, 1.0).await;
    }
    // It hears of no change any more, and asks again for a pod that somebody has deleted.
    cluster.silence_watches();
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    pods.delete("held", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    scene.until_it_tells(r#"ebbtide_pod_removal_requests_total{call="eviction",answer="gone"}"#, 1.0).await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_their_record_are_counted_with_their_age() {
    let world = World::plain(1);
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
    world.aws.send_events_to(&queue);
    let config = Config { queue_urls: vec![queue.clone()], ..config() };
    let watched = Watched::of(world, held_group(2, 60), config).await;
    let waiting = "ebbtide_queue_messages{queue=\"ebbtide\"}";
    let oldest = "ebbtide_queue_oldest_message_age_seconds{queue=\"ebbtide\"}";
    // Out of service, the instance is its operator's: the message waits.
    let id = watched.world.aws.group("web").expect("the group").instances[0].id.clone();
    watched.world.aws.set_aside(&id, false);
    tokio::time::sleep(seconds(120)).await;
    let change = ScheduledChange {
        id: "one".into(),
        code: "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED".into(),
        starts: watched.world.clock.now() + jiff::SignedDuration::from_hours(24),
        status: "upcoming".into(),
    };
    watched.world.aws.schedule_change(&change, &[&id]);
    watched.until_it_tells(waiting, 1.0).await;
    tokio::time::sleep(seconds(600)).await;
    let page = watched.scrape().await;
    let age = value(&page, oldest).expect("an age");
    assert!((600.0..=660.0).contains(&age), "{age}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_its_group_ends_without_a_hook_is_told_and_counted_once() {
    // Its load balancers let go of it first, so that a refresh sees it on its way.
    let watched = Watched::on(group(2).deregistering_for(120), config()).await;
    let undrained = "ebbtide_nodes_undrained_total";
    assert_eq!(value(&watched.scrape().await, undrained), Some(0.0));
    let node = watched.nodes[0].clone();
    watched.world.cluster.add(pod("web").on(&node).grace(600).exits_after(500));
    tokio::time::sleep(seconds(30)).await;
    let of_node = |w: &World| {
        w.aws.group("web").expect("the group").instances.into_iter().find(|i| i.private_dns_name() == node)
    };
    let instance = of_node(&watched.world).expect("in the group");
    watched.world.aws.terminate(&instance.id, TerminationCause::Rebalance);
    watched.until_it_tells(undrained, 1.0).await;
    watched.until(|w| !w.cluster.has_node(&node)).await;
    assert_eq!(value(&watched.scrape().await, undrained), Some(1.0));
    let told =
        |event: &Event| matches!(event, Event::KubernetesEvent { reason, .. } if reason == "ScaleInNotHeld");
    assert_eq!(watched.world.cluster.count(|entry| told(&entry.what)), 1);
}

#[tokio::test(start_paused = true)]
async fn groups_that_come_and_go_and_that_there_are_none_is_told() {
    let (log, _guard) = captured::log(Level::INFO);
    let watched = Watched::on(group(2), config()).await;
    assert_eq!(value(&watched.scrape().await, "ebbtide_groups"), Some(1.0));
    assert!(log.text().contains("the group is selected"), "{}", log.text());
    watched.world.aws.untag_group("web", ebbtide::sim::program::TAG);
    tokio::time::sleep(seconds(480)).await;
    assert_eq!(value(&watched.scrape().await, "ebbtide_groups"), Some(0.0));
    let text = log.text();
    assert_eq!(text.matches("the group's tags do not select it any more").count(), 1, "{text}");
    assert_eq!(text.matches("no Auto Scaling group is selected").count(), 2, "every five minutes: {text}");
}

#[tokio::test(start_paused = true)]
async fn scale_ins_that_load_balancers_hold_are_counted() {
    let world = World::plain(1);
    world.aws.add_target_group(TargetGroupSpec::named("k8s-web").delay(120));
    let config = config_with(|it| it.wait_for_load_balancers = true);
    let watched = Watched::of(world, group(2), config).await;
    let held = "ebbtide_scale_ins_held_by_load_balancers";
    assert_eq!(value(&watched.scrape().await, held), Some(0.0));
    // Until the controller has registered the nodes.
    tokio::time::sleep(seconds(30)).await;
    watched.request_scale_in(&watched.nodes[0]).await;
    watched.until_it_tells(held, 1.0).await;
    let node = watched.nodes[0].clone();
    watched.until(|w| !w.cluster.has_node(&node)).await;
    assert_eq!(value(&watched.scrape().await, held), Some(0.0));
}
