//! `/readyz`, `/metrics` and the log through outages, and the stop.

use std::sync::mpsc;
use std::time::Duration;

use ebbtide::app::block_on;
use ebbtide::config::Config;
use ebbtide::sim::cluster::{Fault, Verb};
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[test]
fn a_thread_that_hangs_does_not_hold_a_stop() {
    let (answer, question) = mpsc::channel::<()>();
    // As tokio refreshes names up.
    let hung = block_on(async {
        let look_up = tokio::task::spawn_blocking(move || question.recv());
        tokio::task::yield_now().await;
        !look_up.is_finished()
    });
    assert!(hung.expect("a runtime"));
    drop(answer);
}

/// What `/readyz` says, and a line of `/metrics`.
async fn look_in(admin: std::net::SocketAddr, metric: &str) -> (String, String) {
    let mut answers = [String::new(), String::new()];
    for (answer, path) in answers.iter_mut().zip(["/readyz", "/metrics"]) {
        let mut stream = TcpStream::connect(admin).await.expect("connected");
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        stream.read_to_string(answer).await.expect("answered");
    }
    let [ready, metrics] = answers;
    let line = metrics.lines().find(|line| line.starts_with(metric)).unwrap_or_default();
    (ready.lines().last().unwrap_or_default().to_owned(), line.to_owned())
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn readiness_turns_back_while_what_is_known_is_too_old_and_an_idle_cluster_is_not() {
    let world = World::plain(1);
    let program = Program::start(&world, config());
    let admin = program.admin().expect("a port");
    let ready = async || look_in(admin, "").await.0;
    pass(30).await;
    assert_eq!(ready().await, "ok");
    // Nothing happens for an hour: watches are idle, and alive.
    for _ in 0..60 {
        pass(60).await;
        assert_eq!(ready().await, "ok");
    }
    world.cluster.api_down();
    pass(100).await;
    assert_eq!(ready().await, "ok", "a short outage is none");
    pass(100).await;
    assert_eq!(ready().await, "not ready: nodes");
    world.cluster.api_up();
    pass(30).await;
    assert_eq!(ready().await, "ok");

    world.aws.outage(true);
    pass(500).await;
    assert_eq!(ready().await, "ok");
    let (_, age) = look_in(admin, "ebbtide_refresh_age_seconds").await;
    let age: f64 = age.rsplit(' ').next().and_then(|age| age.parse().ok()).expect("an age");
    assert!((450.0..620.0).contains(&age), "{age}");
    pass(160).await;
    assert_eq!(ready().await, "not ready: groups");
    world.aws.outage(false);
    pass(30).await;
    assert_eq!(ready().await, "ok");
}

/// A rollout of a version that lacks a right stops at its first pod.
#[tokio::test(start_paused = true)]
async fn a_program_without_the_right_to_a_watch_is_never_ready() {
    for resource in ["poddisruptionbudgets", "volumeattachments"] {
        let world = World::plain(1);
        world.cluster.forbid(Verb::Watch, resource);
        let program = Program::start(&world, config());
        let admin = program.admin().expect("a port");
        for _ in 0..30 {
            pass(1).await;
            assert_ne!(look_in(admin, "").await.0, "ok");
        }
        assert_eq!(look_in(admin, "").await.0, "not ready: watches");
    }
}

/// No answer to cluster-autoscaler needs another watch than that of Nodes.
#[tokio::test(start_paused = true)]
async fn a_program_that_loses_the_right_to_a_watch_stays_ready_as_long_as_it_sees_nodes() {
    for (resource, expected) in [
        ("nodes", "not ready: nodes"),
        ("poddisruptionbudgets", "ok"),
        ("daemonsets", "ok"),
        ("volumeattachments", "ok"),
    ] {
        let world = World::plain(1);
        let program = Program::start(&world, config());
        let admin = program.admin().expect("a port");
        pass(30).await;
        world.cluster.forbid(Verb::Watch, resource);
        pass(300).await;
        let age = format!("ebbtide_watch_age_seconds{{resource=\"{resource}\"}} ");
        let (ready, told) = look_in(admin, &age).await;
        let silence: f64 = told[age.len()..].parse().expect("an age");
        assert!(ready == expected && silence > 180.0, "{resource}: {ready}, {silence}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_start_lacks_is_told_once_and_not_what_was_lost_after_it() {
    let told = async |at_start: bool| {
        let (log, _guard) = captured::log(tracing::Level::WARN);
        let world = World::plain(1);
        world.aws.outage(at_start);
        let config = Config { snapshot_max_age: Duration::from_secs(10), ..config() };
        let _program = Program::start(&world, config);
        pass(15).await;
        world.aws.outage(true);
        pass(400).await;
        let text = log.text();
        assert!(at_start || text.contains("not ready any more"), "{text}");
        let lines = text.lines().filter(|line| line.contains("still not ready 30 s after the start"));
        lines.map(|line| line.contains("groups")).collect::<Vec<_>>()
    };
    assert_eq!((told(true).await, told(false).await), (vec![true], vec![]));
}

#[tokio::test(start_paused = true)]
async fn only_where_a_right_is_missing_the_log_names_the_roles_that_grant_it() {
    let told = async |trouble: fn(&World)| {
        let (log, _guard) = captured::log(tracing::Level::WARN);
        let world = World::plain(1);
        trouble(&world);
        let _program = Program::start(&world, config());
        pass(60).await;
        let text = log.text();
        assert!(text.contains("the Lease cannot be read or written"), "{text}");
        text.contains("grants the rights to it")
    };
    assert!(told(|world| world.cluster.forbid(Verb::Get, "leases")).await);
    assert!(!told(|world| world.cluster.expire_tokens_for(Duration::from_mins(2))).await);
    assert!(!told(|world| world.cluster.fail_next(100, Verb::Get, "leases", Fault::InternalError)).await);
}

#[tokio::test(start_paused = true)]
async fn only_a_former_leader_says_that_nothing_is_drained_for_want_of_the_lease() {
    let (log, _guard) = captured::log(tracing::Level::WARN);
    let told = |words: &str| log.text().lines().filter(|line| line.contains(words)).count();
    let world = World::plain(1);
    let leader = Program::start(&world, config());
    pass(30).await;
    world.cluster.forbid(Verb::Update, "leases");
    pass(4).await;
    assert_eq!((told("leads for ten seconds more"), told("has lost the lead")), (1, 0), "{}", log.text());
    pass(30).await;
    assert_eq!((told("leads for ten seconds more"), told("has lost the lead")), (1, 1), "{}", log.text());
    drop(leader);
    let _next = Program::start(&world, config());
    pass(60).await;
    assert_eq!((told("cannot lead meanwhile"), told("has lost the lead")), (1, 1), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn groups_that_were_never_seen_grow_old_from_the_start_on() {
    let world = World::plain(1);
    world.aws.outage(true);
    let program = Program::start(&world, config());
    let admin = program.admin().expect("a port");
    pass(700).await;
    let (ready, age) = look_in(admin, "ebbtide_refresh_age_seconds ").await;
    let age: f64 = age.rsplit(' ').next().and_then(|age| age.parse().ok()).expect("an age");
    assert!((690.0..720.0).contains(&age) && ready != "ok", "{age}, {ready}");
}

#[tokio::test(start_paused = true)]
async fn requests_and_watches_show_in_the_metrics() {
    let world = World::plain(1);
    let program = Program::start(&world, config());
    let admin = program.admin().expect("a port");
    pass(100).await;
    let listed = r#"ebbtide_api_requests_total{verb="list",resource="nodes",outcome="ok"} "#;
    assert!(!look_in(admin, listed).await.1.is_empty());
    let watch = r#"ebbtide_watch_age_seconds{resource="nodes"} "#;
    let age: f64 = look_in(admin, watch).await.1[watch.len()..].parse().expect("an age");
    assert!(age < 66.0, "{age}");
    assert_eq!(
        look_in(admin, "ebbtide_scale_in_oldest_age_seconds").await.1,
        "ebbtide_scale_in_oldest_age_seconds 0.0"
    );
    world.cluster.api_down();
    pass(100).await;
    let lost = r#"ebbtide_api_requests_total{verb="list",resource="nodes",outcome="unreachable"} "#;
    let lost_watch = lost.replace("list", "watch");
    let answers = [look_in(admin, lost).await.1, look_in(admin, &lost_watch).await.1];
    assert!(answers.iter().any(|line| !line.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn the_warning_of_an_outage_is_repeated_every_five_minutes() {
    let (log, _guard) = captured::log(tracing::Level::INFO);
    let world = World::plain(1);
    let _program = Program::start(&world, config());
    pass(30).await;
    world.aws.outage(true);
    world.cluster.api_down();
    pass(29 * 60).await;
    let count = |text: &str| log.text().matches(text).count();
    assert_eq!(count("cannot describe Auto Scaling groups"), 6, "{}", log.text());
    assert_eq!(count("the watch broke"), 6 * 4);
    world.aws.outage(false);
    world.cluster.api_up();
    pass(60).await;
    assert_eq!(count("Auto Scaling groups are described again"), 1);
}
