//! Many nodes at once.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::clock::Clock;
use ebbtide::cluster::{About, Answer, ApiError, Cluster, DrainState, NodeView, PodName};
use ebbtide::groups::hooks::{HookState, Hooks};
use ebbtide::k8s::GroupName;
use ebbtide::sim::aws::{Aws as SimulatedAws, Event, GroupSpec, Operation, TerminationCause};
use ebbtide::sim::cluster::{Event as ClusterEvent, Verb, pod};
use ebbtide::sim::http::{Lost, Request, Response, World, aws_client, kube_client, response};
use futures::StreamExt as _;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::journal_queries::{TERMINATE, asked, assert_nothing_lost, aws_moments, decrements, moments};
use crate::scene::{Scene, five_on_each, group, held_group};

#[tokio::test(start_paused = true)]
async fn forty_nodes_that_the_group_takes_out_at_once_leave_in_time() {
    let scene = Scene::with(held_group(40, 120)).await;
    let machines = scene.machines();
    scene.run(five_on_each(&machines)).await;
    for machine in &machines {
        scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    }
    scene
        .until(|w| {
            let names = w.cluster.node_names();
            machines.iter().all(|machine| !names.contains(&machine.name))
        })
        .await;
    let refreshes =
        |e: &Event| matches!(e, Event::Called { operation: Operation::DescribeAutoScalingGroups, .. });
    let held = aws_moments(&scene.world, |e| matches!(e, Event::EnteredWait { .. }));
    let held = *held.last().expect("held");
    let seen = *aws_moments(&scene.world, refreshes).iter().find(|at| **at >= held).expect("a refresh");
    let asked = asked(&scene.world, "web-");
    assert_eq!(asked.len(), 200);
    let slowest = asked.iter().map(|(at, ..)| at.duration_since(seen)).max().expect("asked");
    assert!(slowest <= SignedDuration::from_secs(5), "the last one after {slowest}");
    assert_nothing_lost(&scene.world);
    for machine in &machines {
        scene.assert_left_well(machine);
    }
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (0, 0));
    // Where somebody else has written a Node first, the watch tells; but this world's watches lag, now and then by a second.
    let reads = moments(&scene.world, |e| {
        matches!(e, ClusterEvent::Request { verb: Verb::Get, resource: "nodes", .. })
    });
    assert!(reads.len() <= machines.len() / 10, "{} reads of Nodes", reads.len());
}

#[tokio::test(start_paused = true)]
async fn three_hundred_drains_at_once_ask_every_pod_within_five_seconds() {
    let scene = Scene::with(group(300)).await;
    let machines = scene.machines();
    scene
        .run(
            machines
                .iter()
                .enumerate()
                .map(|(n, machine)| pod(format!("web-{n}").as_str()).on(&machine.name).exits_after(20)),
        )
        .await;
    let requested = scene.world.clock.now();
    scene.delete(&machines).await.expect("accepted");
    assert_eq!(scene.target().await.expect("answered"), 0);
    scene.until(|w| w.cluster.node_names().is_empty()).await;
    let asked = asked(&scene.world, "web-");
    assert_eq!(asked.len(), 300);
    let slowest = asked.iter().map(|(at, ..)| at.duration_since(requested)).max().expect("asked");
    assert!(slowest <= SignedDuration::from_secs(5), "the last one after {slowest}");
    assert_nothing_lost(&scene.world);
    // AWS throttles so many at once: some are asked for again.
    assert_eq!(decrements(&scene.world), 300);
}

/// An API server that takes its time, and counts what it does at once.
#[derive(Default)]
struct Slow {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl World for Slow {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        sleep(Duration::from_secs(2)).await;
        self.now.fetch_sub(1, Ordering::Relaxed);
        let answer = if request.uri().path().ends_with("/events") {
            r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{},"eventTime":null}"#
        } else {
            r#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#
        };
        Ok(response(200, "application/json", answer))
    }
}

/// Pods that this is asked of a thousand at a time, and the most that were asked at once.
async fn most_at_once<T>(ask: impl AsyncFn(Cluster, PodName) -> T) -> (Vec<T>, usize) {
    let world = Arc::new(Slow::default());
    let cluster = Cluster::new(kube_client(Arc::clone(&world) as Arc<dyn World>));
    let pod = |n| PodName { namespace: "default".into(), name: format!("web-{n}").into() };
    let answers = join_all((0..1_000).map(|n| ask(cluster.clone(), pod(n)))).await;
    (answers, world.most.load(Ordering::Relaxed))
}

/// Thousands of pods may meet one deadline, and each deletion has a connection of its own.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_deletions_fifty_are_under_way_at_once_and_none_is_given_up() {
    let (answers, most) =
        most_at_once(async |cluster, pod| cluster.delete_pod(&pod, "uid", None, || true).await).await;
    assert!(answers.iter().all(|answer| *answer == Answer::Going));
    assert_eq!(most, 50);
}

/// Before a deletion there is a second for it.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_conditions_of_pods_a_hundred_are_written_at_once_beside_the_deletions_of_others() {
    let note = async |cluster: Cluster, pod: PodName| {
        let at = Timestamp::UNIX_EPOCH;
        cluster.note_disruption(&pod, "uid", "time is up", at).await.is_ok()
    };
    assert_eq!(most_at_once(note).await.1, 100);
    let both = async |cluster: Cluster, pod: PodName| {
        tokio::join!(cluster.delete_pod(&pod, "uid", None, || true), note(cluster.clone(), pod.clone())).1
    };
    assert_eq!(most_at_once(both).await.1, 150);
}

/// Those whose last call is near wait for no rate.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_evictions_a_hundred_are_under_way_at_once_and_none_is_given_up() {
    let (answers, most) =
        most_at_once(async |cluster, pod| cluster.evict(&pod, "uid", None, || true).await).await;
    assert!(answers.iter().all(|answer| *answer == Answer::Going));
    assert_eq!(most, 100);
}

/// Their watches break all at once when an API server restarts, and the Lease's renewals go the same way as their lists.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_nodes_the_pods_of_twenty_are_listed_at_once() {
    let watched = async |cluster: Cluster, PodName { name, .. }: PodName| {
        let mut events = pin!(cluster.pods_on(&name));
        let (_begun, listed) = (events.next().await, events.next().await);
        listed.is_some()
    };
    let (answers, most) = most_at_once(watched).await;
    assert!(answers.iter().all(|answered| *answered));
    assert_eq!(most, 20);
    let (_, most) = most_at_once(async |cluster, pod| cluster.list_pods_now(&pod.name).await.is_ok()).await;
    assert_eq!(most, 20);
}

/// Until its turn comes, the scale-in may be called off, or another process lead.
#[tokio::test(start_paused = true)]
async fn what_is_not_wanted_any_more_when_its_turn_comes_is_not_sent() {
    let going = |answers: &[Answer]| answers.iter().filter(|answer| **answer == Answer::Going).count();
    let until = |began: Instant| move || began.elapsed() < Duration::from_secs(3);
    // Fifty at once, each for two seconds.
    let wanted = until(Instant::now());
    let ask = async |cluster: Cluster, pod| cluster.delete_pod(&pod, "uid", None, wanted).await;
    assert_eq!(going(&most_at_once(ask).await.0), 100);
    // A hundred at once.
    let wanted = until(Instant::now());
    let ask = async |cluster: Cluster, pod| cluster.evict(&pod, "uid", None, wanted).await;
    assert_eq!(going(&most_at_once(ask).await.0), 200);
    let wanted = until(Instant::now());
    let patch = json!({});
    let ask = async |cluster: Cluster, PodName { name, .. }: PodName| {
        matches!(cluster.patch_node(&name, &patch, wanted).await, Err(ApiError::Unwanted))
    };
    assert_eq!(most_at_once(ask).await.0.into_iter().filter(|unsent| *unsent).count(), 800);
}

/// Hundreds of nodes that leave at once have thousands of DaemonSet pods to guard.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_annotations_fifty_are_under_way_at_once_and_none_is_given_up() {
    let guarded = json!({ "ebbtide/guarded": "true" });
    let (answers, most) =
        most_at_once(async |cluster, pod| cluster.annotate_pod(&pod, "uid", &guarded).await).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(most, 50);
}

/// An Event for each pod that is asked to go, and a storage of Events that has trouble of its own.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_events_of_pods_twenty_are_under_way_at_once_and_others_do_not_wait_for_them() {
    let ask = async |cluster: Cluster, pod: PodName| {
        let of_pod = cluster.announce(About::Pod(&pod, "uid"), "R", "text", false, Timestamp::UNIX_EPOCH);
        if *pod.name == *"web-999" {
            let of_another = About::ConfigMap(&pod, "uid");
            let other = cluster.announce(of_another, "R", "text", false, Timestamp::UNIX_EPOCH);
            let (of_pod, other) = tokio::join!(of_pod, other);
            other.expect("published");
            return of_pod;
        }
        of_pod.await
    };
    let began = Instant::now();
    let (answers, most) = most_at_once(ask).await;
    assert_eq!(most, 21);
    // Five times twenty in the ten seconds that an Event is worth. A pod's is for people, and tried once.
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 100);
    assert!(answers.iter().all(|answer| matches!(answer, Ok(()) | Err(ApiError::TimedOut))));
    assert_eq!(began.elapsed(), Duration::from_secs(10));
}

/// For others too, and a webhook may hang for them.
#[tokio::test(start_paused = true)]
async fn of_the_conditions_of_a_thousand_nodes_twenty_are_written_at_once() {
    let ask = async |cluster: Cluster, PodName { name, .. }: PodName| {
        let node = NodeView { name: (&*name).into(), ..NodeView::default() };
        cluster.report_drain(&node, DrainState::InProgress, Timestamp::UNIX_EPOCH).await.is_ok()
    };
    assert_eq!(most_at_once(ask).await.1, 20);
}

/// A webhook may hang for each.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_nodes_a_hundred_are_changed_or_looked_up_at_once_and_none_is_given_up() {
    let ask = async |cluster: Cluster, PodName { name, .. }: PodName| {
        let patch = json!({ "metadata": { "name": *name } });
        let node = NodeView { name: (&*name).into(), ..NodeView::default() };
        let (changed, _, deleted) = tokio::join!(
            cluster.patch_node(&name, &patch, || true),
            cluster.get_node(&name),
            cluster.delete_node(&node)
        );
        (changed.map(drop), deleted.map(drop))
    };
    let (answers, most) = most_at_once(ask).await;
    let (changed, deleted): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
    let outcomes = changed.into_iter().chain(deleted);
    let is_given_up = |outcome: &Result<(), ApiError>| matches!(outcome, Err(ApiError::TimedOut));
    assert_eq!(outcomes.filter(is_given_up).count(), 0);
    assert_eq!(most, 100);
}

/// AWS, which takes its time, and how much it does at once.
struct SlowAws {
    aws: SimulatedAws,
    slow: Slow,
}

#[async_trait]
impl World for SlowAws {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let (answer, _) = tokio::join!(self.aws.call(request), self.slow.call(http::Request::default()));
        answer
    }
}

/// The hooks of every group with nodes that go, as after a restart.
#[tokio::test(start_paused = true)]
async fn of_the_hooks_of_a_hundred_groups_twenty_are_looked_up_at_once() {
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000));
    let aws = SimulatedAws::new(clock.clone(), 1);
    let names: Vec<GroupName> = (0..100).map(|n| format!("group-{n}").into()).collect();
    aws.add_groups(names.iter().map(|name| GroupSpec::named(&**name)));
    let slow = Arc::new(SlowAws { aws, slow: Slow::default() });
    let hooks =
        Hooks::new(Aws::at(aws_client(Arc::clone(&slow) as Arc<dyn World>)), "ebbtide", clock.clone());
    for name in &names {
        hooks.want(name, clock.now());
    }
    assert!(tokio::time::timeout(Duration::from_secs(11), hooks.run()).await.is_err(), "it runs for ever");
    assert!(
        names.iter().all(|name| matches!(hooks.state(name), HookState::Known(_))),
        "two seconds for twenty"
    );
    assert_eq!(slow.slow.most.load(Ordering::Relaxed), 20);
}
