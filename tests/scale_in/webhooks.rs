//! Admission webhooks that hang and are passed over when their time is up (`failurePolicy: Ignore`): every write that they are asked
//! about takes so long, and then it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide::sim::cluster::{Cluster, Name, Verb, budget, pod};
use ebbtide::sim::http::{Lost, Request, Response, World as Service, kube_client};
use ebbtide::sim::program::Program;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;
use tracing::Level;

use crate::journal_queries::{decrements, graces, is_asked, notes};
use crate::replicas::other;
use crate::scene::{Cause, Scene, config_with, five_on_each, group, held_group, seconds};

/// A webhook that hangs, while it is there.
#[derive(Clone)]
struct Hang {
    is_there: Arc<AtomicBool>,
    /// The requests that it is asked about.
    about: fn(&Request) -> bool,
    takes: Duration,
}

impl Hang {
    fn of(about: fn(&Request) -> bool, takes: Duration) -> Self {
        Self { is_there: Arc::default(), about, takes }
    }

    fn begin(&self) {
        self.is_there.store(true, Ordering::Relaxed);
    }

    fn way(&self) -> impl Fn(Cluster) -> kube::Client + 'static {
        let hang = self.clone();
        move |cluster| kube_client(Arc::new(Hung { cluster, hang: hang.clone() }))
    }
}

/// The API server with that webhook. Who does not wait for its answer has asked for nothing: with its client gone, the API server gives
/// up.
///
/// Source: [the admission plugin](https://github.com/kubernetes/apiserver/blob/master/pkg/admission/plugin/webhook/mutating/dispatcher.go).
struct Hung {
    cluster: Cluster,
    hang: Hang,
}

#[async_trait]
impl Service for Hung {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        if self.hang.is_there.load(Ordering::Relaxed) && (self.hang.about)(&request) {
            tokio::time::sleep(self.hang.takes).await;
        }
        self.cluster.call(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_leads_on_though_every_write_of_its_lease_takes_four_seconds() {
    for replicas in [1, 2] {
        let (log, _guard) = captured::log(Level::INFO);
        let writes =
            |request: &Request| request.method() == "PUT" && request.uri().path().contains("/leases/");
        let hang = Hang::of(writes, Duration::from_millis(4_010));
        let scene = Scene::behind(held_group(3, 60), hang.way()).await;
        let second = || Program::start_behind(&scene.world, hang.way()(scene.world.cluster.clone()), other());
        let _second = (replicas == 2).then(second);
        let machine = scene.first();
        scene.run([pod("web").on(machine.name.as_str()).exits_after(20)]).await;
        hang.begin();
        scene.pass_some(seconds(600)).await;
        let text = log.text();
        assert!(!text.contains("the Lease cannot be read or written"), "{text}");
        assert_eq!(text.matches("this process leads").count(), 1, "{text}");
        scene.scale_in(&machine, Cause::Group).await;
        let is_gone = scene.world.until(seconds(600), |w| !w.cluster.has_node(&machine.name)).await;
        assert!(is_gone, "{}", log.text());
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_candidate_counts_from_when_the_lease_was_read_however_long_the_request_took() {
    for tenths in (0..60).step_by(3) {
        let reads =
            |request: &Request| request.method() == "GET" && request.uri().path().contains("/leases/");
        // As flow control has a request wait in its queue.
        let hang = Hang::of(reads, Duration::from_millis(4_800));
        let mut scene = Scene::with(group(1)).await;
        let client = hang.way()(scene.world.cluster.clone());
        let _second = Program::start_behind(&scene.world, client, other());
        hang.begin();
        scene.pass_some(Duration::from_millis(30_000 + 100 * tenths)).await;
        let lease =
            |w: &World| w.cluster.get::<Lease>("ebbtide").and_then(|lease| lease.spec).expect("a Lease");
        let before = lease(&scene.world);
        scene.take_down().await;
        hang.is_there.store(false, Ordering::Relaxed);
        scene.until(|w| lease(w).holder_identity != before.holder_identity).await;
        let [renewed, taken] =
            [before.renew_time, lease(&scene.world).acquire_time].map(|at| at.expect("written").0);
        let silent = taken.duration_since(renewed);
        assert!(silent >= SignedDuration::from_secs(13), "taken after {silent}");
    }
}

/// The time that a webhook has by default, and what the API server takes to notice that it is over.
const DEFAULT: Duration = Duration::from_millis(10_005);

#[tokio::test(start_paused = true)]
async fn pods_whose_evictions_take_as_long_as_a_webhook_may_leave_within_a_minute() {
    let hang = Hang::of(|request| request.uri().path().ends_with("/eviction"), DEFAULT);
    let scene = Scene::behind(held_group(2, 60), hang.way()).await;
    let machine = scene.first();
    let pods = ["web-1", "web-2", "web-3"].map(|name| pod(name).on(&machine.name).grace(60).exits_after(30));
    scene.run(pods).await;
    hang.begin();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    let leave = scene.world.until(seconds(60), |w| graces(w, "web-").len() == 3).await;
    assert!(leave, "nobody was asked in a minute");
    scene.until_gone(&machine).await;
    assert_eq!(graces(&scene.world, "web-"), [60; 3]);
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_at_the_deadline_that_takes_as_long_as_a_webhook_may_leaves_the_grace_whole() {
    let deletes = |request: &Request| request.method() == "DELETE" && request.uri().path().contains("/pods/");
    let hang = Hang::of(deletes, DEFAULT);
    let config = config_with(|it| it.drain_timeout = Some(seconds(300)));
    let scene = Scene::made(World::new(1), group(2), config, hang.way()).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    hang.begin();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    let leaves = scene.world.until(seconds(300), |w| is_asked(w, "web")).await;
    assert!(leaves, "nobody was asked by the deadline");
    scene.until_gone(&machine).await;
    assert_eq!(graces(&scene.world, "web"), [60]);
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_every_write_takes_as_long_as_a_webhook_may_is_scaled_in() {
    let writes = |request: &Request| request.method() == "PATCH" && request.uri().path().contains("/nodes/");
    let hang = Hang::of(writes, DEFAULT);
    let scene = Scene::behind(held_group(2, 60), hang.way()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    hang.begin();
    scene.scale_in(&machine, Cause::Operator).await;
    let is_gone = scene.world.until(seconds(600), |w| !w.cluster.has_node(&machine.name)).await;
    assert!(is_gone, "not within ten minutes");
    scene.assert_left_well(&machine);
}

/// cluster-autoscaler hears of no answer in time, and asks again later.
#[tokio::test(start_paused = true)]
async fn a_record_that_takes_as_long_as_a_webhook_may_is_written_though_the_rpc_is_over() {
    let writes = |request: &Request| request.method() == "PATCH" && request.uri().path().contains("/nodes/");
    let hang = Hang::of(writes, DEFAULT);
    let scene = Scene::behind(held_group(4, 60).size(1, 10, 4), hang.way()).await;
    let mut machines = scene.machines();
    machines.truncate(3);
    scene.run(five_on_each(&machines)).await;
    hang.begin();
    // One call a node, as cluster-autoscaler has it: nobody waits for another one's record. What is asked for again meanwhile counts once.
    for _ in 0..2 {
        let asked = machines.iter().map(|machine| scene.delete(std::slice::from_ref(machine)));
        for refused in futures::future::join_all(asked).await {
            let refused = refused.expect_err("no answer in time");
            assert!(
                refused.message().contains("recording the scale-in was not answered in time"),
                "{refused}"
            );
        }
    }
    scene.pass_some(seconds(60)).await;
    scene.delete(&machines).await.expect("under way");
    for machine in &machines {
        scene.until_gone(machine).await;
        scene.assert_left_well(machine);
    }
    assert_eq!(decrements(&scene.world), 3);
}

/// Nothing is on record of it, so nobody is asked to leave.
#[tokio::test(start_paused = true)]
async fn a_node_that_a_webhook_lets_nobody_write_is_told_with_the_webhooks_words() {
    let (log, _guard) = captured::log(Level::INFO);
    let lines = |words: &str| log.text().matches(words).count();
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
    scene.world.cluster.deny(Verb::Patch, "nodes", Name::cluster(&machine.name));
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(240)).await;
    let told = notes(&scene.world, &machine, "ScaleInNotWritten");
    assert!(told.len() == 1 && told[0].contains("denied the request"), "{told:?}");
    assert_eq!(lines("the Node could not be written"), 1, "{}", log.text());
    scene.world.cluster.no_more_faults();
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(lines("the Node can be written again"), 1, "{}", log.text());
    assert_eq!(notes(&scene.world, &machine, "ScaleInNotWritten").len(), 1);
}

/// The API server with a webhook that takes the cordon out of every write of a Node.
struct Stripped(Cluster);

#[async_trait]
impl Service for Stripped {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let (parts, mut body) = request.into_parts();
        if parts.method == "PATCH" && parts.uri.path().starts_with("/api/v1/nodes/") {
            let mut patch: Value = serde_json::from_slice(&body).expect("a patch");
            if let Some(spec) = patch["spec"].as_object_mut() {
                spec.remove("unschedulable");
            }
            body = patch.to_string().into();
        }
        self.0.call(Request::from_parts(parts, body)).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_writes_do_not_stay_is_written_ever_more_seldom_and_that_is_said_once() {
    let (log, _guard) = captured::log(Level::INFO);
    let scene = Scene::behind(held_group(2, 60), |cluster| kube_client(Arc::new(Stripped(cluster)))).await;
    let machine = scene.first();
    scene
        .run([pod("web").on(&machine.name).grace(60).exits_after(30).annotation("ebbtide/drain", "wait")])
        .await;
    let before = scene.world.cluster.requests(Verb::Patch, "nodes");
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(60)).await;
    let writes = scene.world.cluster.requests(Verb::Patch, "nodes") - before;
    assert!(writes <= 30, "{writes} in a minute");
    let text = log.text();
    assert_eq!(text.matches("writes to the Node are overwritten").count(), 1, "{text}");
}
