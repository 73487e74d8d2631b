//! Two programs at a time: one holds the Lease and scales in, the other waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::cluster::Candidate;
use ebbtide::config::Config;
use ebbtide::groups::selector::Selectors;
use ebbtide::k8s::names;
use ebbtide::sim::aws::Operation;
use ebbtide::sim::cluster::{Cluster, Event, Fault, NodeChange, Verb, budget, daemon_set, pod};
use ebbtide::sim::http::{Lost, Request, Response, World as Service, aws_client, kube_client};
use ebbtide::sim::program::{Program, config, second};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;
use tracing::Level;

use crate::journal_queries::{
    TERMINATE, asked, decrements, eviction_requests, has_exited, in_phase, is_asked, is_released, last_exit,
    moments, notes, phase_at, released_at,
};
use crate::metrics::value;
use crate::notices::{causes, is_cordoned, told};
use crate::scene::{Cause, Machine, Scene, group, held_group, seconds};
use crate::status::get;

/// The configuration of the program in another pod.
pub(crate) fn other() -> Config {
    second(config())
}

fn holder(scene: &Scene) -> String {
    let lease: Lease = scene.world.cluster.get("ebbtide").expect("a Lease");
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    // The rest is a word by chance.
    holder.split('_').next().unwrap_or_default().to_owned()
}

/// Two programs, the first of which leads, and a node with two workloads.
async fn two() -> (Scene, Program, Machine) {
    let scene = Scene::with(held_group(3, 60)).await;
    let second = Program::start(&scene.world, other());
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.run([pod("web").on(on).exits_after(20), pod("api").on(on).grace(90).exits_after(60)]).await;
    assert_eq!(holder(&scene), "ebbtide-0");
    (scene, second, machine)
}

#[tokio::test(start_paused = true)]
async fn of_two_programs_one_scales_in() {
    for cause in [Cause::Autoscaler, Cause::Group, Cause::Operator] {
        let (scene, _second, machine) = two().await;
        scene.scale_in(&machine, cause).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(eviction_requests(&scene.world).len(), 2, "each workload is asked once");
        assert!(scene.world.aws.calls(TERMINATE) <= 1);
        assert_eq!(holder(&scene), "ebbtide-0");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_accepted_by_one_is_done_by_the_other() {
    let (scene, second, machine) = two().await;
    let mut client = second.client();
    let node = ebbtide::provider::proto::ExternalGrpcNode {
        provider_id: machine.provider_id().to_owned(),
        name: machine.name.clone(),
        ..Default::default()
    };
    let request =
        ebbtide::provider::proto::NodeGroupDeleteNodesRequest { id: "web".into(), nodes: vec![node] };
    client.node_group_delete_nodes(request).await.expect("accepted");
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    let begun = notes(&scene.world, &machine, "ScaleInDraining");
    assert!(begun.len() == 1 && begun[0].contains("cause autoscaler"), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn another_takes_over_within_15_s_of_a_kill() {
    let (mut scene, _second, machine) = two().await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "api")).await;
    scene.take_down().await;
    let killed = scene.world.clock.now();
    scene.until(|_| holder(&scene) == "ebbtide-1").await;
    let after = scene.world.clock.now().duration_since(killed);
    assert!(after <= SignedDuration::from_secs(15), "{after:#}");
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn another_takes_over_within_2_s_of_a_stop() {
    let (mut scene, _second, machine) = two().await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "api")).await;
    scene.stop_for_good().await;
    let stopped = scene.world.clock.now();
    assert_eq!(holder(&scene), "", "it was given back");
    scene.until(|_| holder(&scene) == "ebbtide-1").await;
    let after = scene.world.clock.now().duration_since(stopped);
    assert!(after <= SignedDuration::from_secs(2), "{after:#}");
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

/// A webhook that is asked about an eviction, or AWS, answers when it is too late for whoever asked.
#[tokio::test(start_paused = true)]
async fn another_takes_over_within_2_s_of_a_sigterm_though_a_call_is_under_way() {
    for is_aws_slow in [false, true] {
        let (mut scene, _second, machine) = two().await;
        if is_aws_slow {
            scene.world.aws.delay_some(&[TERMINATE], 1.0, seconds(16), seconds(16));
        } else {
            let slow = Fault::Slow(seconds(60));
            scene.world.cluster.fail_next(1, Verb::Create, "pods/eviction", slow);
        }
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene
            .until(|w| if is_aws_slow { w.aws.calls(TERMINATE) > 0 } else { !w.cluster.hits().is_empty() })
            .await;
        let (stopped, stopping) = (scene.world.clock.now(), scene.stopping());
        tokio::join!(stopping, async {
            scene.until(|_| holder(&scene) == "ebbtide-1").await;
            let after = scene.world.clock.now().duration_since(stopped);
            assert!(after <= SignedDuration::from_millis(2_100), "{after:#}, AWS is slow: {is_aws_slow}");
        });
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_own_node_goes_hands_over_before_its_pod_is_asked_and_tries_so_more_than_once() {
    for failures in [0, 2] {
        let (scene, _second, machine) = two().await;
        let other_node = scene.machines().remove(1);
        scene.run([pod("ebbtide-0").on(&machine.name), pod("ebbtide-1").on(&other_node.name)]).await;
        let (log, _guard) = captured::log(Level::INFO);
        scene.scale_in(&machine, Cause::Group).await;
        let words = "giving up the Lease";
        scene.until(|_| log.text().contains(words)).await;
        if failures > 0 {
            scene.world.cluster.fail_next(failures, Verb::Update, "leases", Fault::RequestLost);
        }
        scene.until(|_| holder(&scene) == "ebbtide-1").await;
        assert!(!is_asked(&scene.world, "ebbtide-0"), "not by itself");
        let (text, cannot) = (log.text(), "the Lease cannot be read or written");
        let failed = text.split("gave the Lease back").next().is_some_and(|before| before.contains(cannot));
        assert_eq!(failed, failures > 0, "{text}");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(holder(&scene), "ebbtide-1", "and it keeps it");
    }
}

/// As in a rollout: nobody would lead before it has expired.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_taking_a_stop_has_cut_off_is_given_back() {
    let (mut scene, second, _machine) = two().await;
    scene.stop_for_good().await;
    let slow = Fault::Slow(seconds(3));
    scene.world.cluster.fail_next(1, Verb::Update, "leases", slow);
    scene.until(|_| holder(&scene) == "ebbtide-1").await;
    second.stop().await.expect("in good order");
    assert_eq!(holder(&scene), "");
}

/// Another installation, with a Lease and groups of its own.
fn another(scene: &Scene) -> Program {
    let election = config().election.map(|candidate| Candidate { lease: "another".into(), ..candidate });
    let selectors = Selectors::parse([""; 0], ["asg:tag=of-another"]).expect("well-formed");
    Program::start(&scene.world, Config { election, selectors, ..other() })
}

/// The same, which has led for a while.
async fn another_that_leads(scene: &Scene) -> Program {
    let another = another(scene);
    scene.pass_some(seconds(120)).await;
    another
}

#[tokio::test(start_paused = true)]
async fn two_installations_in_a_cluster_leave_each_others_nodes_alone() {
    for cause in [Cause::Group, Cause::Autoscaler, Cause::Operator] {
        let scene = Scene::with(held_group(3, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        let _another = another(&scene);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(notes(&scene.world, &machine, "ScaleInNotBelieved"), [""; 0]);
        assert_eq!(notes(&scene.world, &machine, "ScaleInFlushing").len(), 1);
        assert!(scene.world.aws.calls(TERMINATE) <= 1);
    }
}

/// How often something that ebbtide has written on the Node was taken off.
fn taken_off(world: &World, machine: &Machine) -> usize {
    let is_ours = |change: &NodeChange| matches!(change, NodeChange::AnnotationRemoved(key) if key.starts_with("ebbtide/"));
    let such = |e: &Event| matches!(e, Event::NodeChanged { node, changes } if *node == machine.name && changes.iter().any(is_ours));
    moments(world, such).len()
}

#[tokio::test(start_paused = true)]
async fn a_request_that_another_installation_sees_first_is_carried_out_by_the_one_whose_group_it_is() {
    let scene = Scene::with(held_group(3, 60)).await;
    let _another = another_that_leads(&scene).await;
    let machines = &scene.machines()[..2];
    for (n, machine) in machines.iter().enumerate() {
        scene.run([pod(&*format!("web-{n}")).on(&machine.name).grace(300).exits_after(200)]).await;
    }
    // The second one waits for its turn.
    for machine in machines {
        scene.scale_in(machine, Cause::Operator).await;
    }
    for machine in machines {
        scene.until_gone(machine).await;
        scene.assert_left_well(machine);
        assert_eq!(notes(&scene.world, machine, "ScaleInDraining").len(), 1);
        assert_eq!(
            (notes(&scene.world, machine, "ScaleInNotPossible"), taken_off(&scene.world, machine)),
            (vec![], 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_guards_of_a_candidate_of_another_installation_stay_and_its_scale_in_is_not_called_off() {
    let scene = Scene::with(group(3)).await;
    let _another = another_that_leads(&scene).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
    scene.taint(&machine, "DeletionCandidateOfClusterAutoscaler").await;
    let guards = |w: &World| {
        w.cluster
            .count(|entry| matches!(&entry.what, Event::Request { verb: Verb::Patch, resource: "pods", .. }))
    };
    scene.until(|w| guards(w) > 0).await;
    scene.pass_some(seconds(600)).await;
    assert_eq!((guards(&scene.world), taken_off(&scene.world, &machine)), (1, 0));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(notes(&scene.world, &machine, "ScaleInCancelled"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_annotations_are_taken_off_is_opened_and_told_of_by_the_installation_whose_group_it_is()
{
    let scene = Scene::with(group(3)).await;
    let _another = another_that_leads(&scene).await;
    for (n, machine) in scene.machines().iter().enumerate() {
        let name = format!("web-{n}");
        scene.run([pod(&*name).on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(machine, Cause::Operator).await;
        scene.until(|w| is_asked(w, &name)).await;
        let both = json!({ names::RECORD: null, names::MARKS: null });
        scene.patch_node(machine, json!({ "metadata": { "annotations": both } })).await;
        let is_open = |w: &World| {
            let spec = w.cluster.node(&machine.name).and_then(|node| node.spec).unwrap_or_default();
            !spec.unschedulable.unwrap_or_default() && spec.taints.unwrap_or_default().is_empty()
        };
        assert!(scene.world.until(seconds(30), is_open).await, "{n}");
        assert_eq!(notes(&scene.world, machine, "ScaleInCancelled").len(), 1, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_interruption_after_a_recommendation_is_left_to_the_installation_whose_group_it_is() {
    let world = World::new(1);
    let (_, config) = told(&world, config());
    let scene = Scene::on(world, held_group(3, 60), config).await;
    let _another = another_that_leads(&scene).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(40)]).await;
    scene.world.aws.recommend_rebalance(&machine.instance);
    scene.until(|w| is_cordoned(w, &machine)).await;
    scene.pass_some(seconds(120)).await;
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until_gone(&machine).await;
    assert!(has_exited(&scene.world, "web"));
    assert_eq!(notes(&scene.world, &machine, "ScaleInDraining").len(), 1);
    assert_eq!(
        (causes(&scene.world, &machine), taken_off(&scene.world, &machine)),
        (vec!["spot-interruption".to_owned()], 0)
    );
}

/// Its small calls still work: it would keep the Lease, and see nothing of what the other accepts.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_watches_are_dead_lets_another_lead() {
    let are_dead = Arc::new(AtomicBool::new(false));
    let way = {
        let are_dead = Arc::clone(&are_dead);
        move |cluster| kube_client(Arc::new(Deaf { cluster, of: "", is: Arc::clone(&are_dead) }))
    };
    let scene = Scene::behind(held_group(3, 60), way).await;
    let _second = Program::start(&scene.world, other());
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    are_dead.store(true, Ordering::Relaxed);
    scene.world.cluster.close_watches();
    let began = scene.world.clock.now();
    scene.until(|_| holder(&scene) == "ebbtide-1").await;
    let after = scene.world.clock.now().duration_since(began);
    assert!(after <= SignedDuration::from_secs(200), "{after:#}");
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

/// It has not got the Lease blind, as from one that has lost the same right: the other can see.
#[tokio::test(start_paused = true)]
async fn a_new_leader_whose_watches_die_lets_another_lead_as_soon() {
    for of in ["", "poddisruptionbudgets"] {
        let are_dead = Arc::new(AtomicBool::new(false));
        let mut scene = Scene::with(held_group(3, 60)).await;
        let deaf = Deaf { cluster: scene.world.cluster.clone(), of, is: Arc::clone(&are_dead) };
        let _second = Program::start_behind(&scene.world, kube_client(Arc::new(deaf)), other());
        scene.pass_some(seconds(20)).await;
        scene.take_down().await;
        scene.until(|_| holder(&scene) == "ebbtide-1").await;
        scene.pass_some(seconds(5)).await;
        are_dead.store(true, Ordering::Relaxed);
        scene.world.cluster.close_watches();
        let began = scene.world.clock.now();
        scene.bring_back();
        scene.until(|_| holder(&scene) == "ebbtide-0").await;
        let after = scene.world.clock.now().duration_since(began);
        assert!(after <= SignedDuration::from_secs(240), "{of}: {after:#}");
    }
}

/// Both are as blind, and no answer to cluster-autoscaler needs what they cannot see.
#[tokio::test(start_paused = true)]
async fn a_right_to_a_watch_that_is_lost_leaves_both_ready_and_the_lease_where_it_is() {
    for resource in ["poddisruptionbudgets", "daemonsets", "volumeattachments"] {
        let (log, _guard) = captured::log(Level::WARN);
        let scene = Scene::with(held_group(3, 60)).await;
        let second = Program::start(&scene.world, other());
        scene.pass_some(seconds(30)).await;
        scene.world.cluster.forbid(Verb::Watch, resource);
        let (mut holders, mut last) = (vec![holder(&scene)], String::new());
        for passed in 0..1_000 {
            scene.pass_some(seconds(1)).await;
            let now = holder(&scene);
            if !now.is_empty() && holders.last() != Some(&now) {
                holders.push(now);
            }
            if passed % 10 == 0 {
                for program in [scene.program(), &second] {
                    let admin = program.admin().expect("a loopback interface");
                    assert_eq!(get(admin, "/readyz").await, "ok\n", "{resource}");
                    last = get(admin, "/metrics").await;
                }
            }
        }
        assert!(holders.len() <= 2, "{resource}: {holders:?}");
        let silence = value(&last, &format!(r#"ebbtide_watch_age_seconds{{resource="{resource}"}}"#));
        assert!(silence.is_some_and(|silence| silence > 900.0), "{resource}: {silence:?}");
        assert!(log.text().contains("the watch broke"), "{}", log.text());
        assert!(!log.text().contains("not ready any more"), "{}", log.text());
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

/// An API server that takes up no watch, or none of these resources.
struct Deaf {
    cluster: Cluster,
    of: &'static str,
    is: Arc<AtomicBool>,
}

#[async_trait]
impl Service for Deaf {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if is_watch && request.uri().path().contains(self.of) && self.is.load(Ordering::Relaxed) {
            return Err(Lost);
        }
        self.cluster.call(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_alone_drains_its_own_node_too() {
    let scene = Scene::with(held_group(3, 60)).await;
    let machine = scene.first();
    scene.run([pod("ebbtide-0").on(&machine.name), pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    let at = |name| asked(&scene.world, name)[0].0;
    assert!(at("ebbtide-0") > at("web"), "its own pod last");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_own_node_a_person_wants_gone_keeps_its_termination_from_nobody() {
    for alone in [true, false] {
        let scene = Scene::with(held_group(3, 300)).await;
        let machine = scene.first();
        let _second = (!alone).then(|| Program::start(&scene.world, other()));
        scene.run([pod("ebbtide-0").on(&machine.name), pod("web").on(&machine.name).exits_after(20)]).await;
        let asked_at = scene.world.clock.now();
        scene.scale_in(&machine, Cause::Operator).await;
        scene.until(|w| w.aws.calls(TERMINATE) > 0).await;
        let after = scene.world.clock.now().duration_since(asked_at);
        assert!(after <= SignedDuration::from_secs(30), "alone: {alone}, {after:#}");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(scene.world.aws.calls(TERMINATE), 1);
    }
}

/// The way of one program to the API server or to AWS, which can be cut: it fails at once then, or nothing is ever heard.
struct Cable<T> {
    to: T,
    cut: Arc<AtomicBool>,
    is_silent: bool,
}

#[async_trait]
impl<T: Service> Service for Cable<T> {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        if self.cut.load(Ordering::Relaxed) {
            if self.is_silent {
                std::future::pending::<()>().await;
            }
            return Err(Lost);
        }
        self.to.call(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_has_lost_the_api_server_ends_nothing_that_another_works_on() {
    let cut = Arc::new(AtomicBool::new(false));
    let cable = Arc::clone(&cut);
    let way = move |cluster| {
        kube_client(Arc::new(Cable { to: cluster, cut: Arc::clone(&cable), is_silent: false }))
    };
    let scene = Scene::behind(held_group(3, 60), way).await;
    let _second = Program::start(&scene.world, other());
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.run([pod("web").on(on).exits_after(20), pod("api").on(on).grace(90).exits_after(60)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "api")).await;
    cut.store(true, Ordering::Relaxed);
    // What it last saw of the cluster stays true for it; its evictions and releases do not come a second time.
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(holder(&scene), "ebbtide-1");
    assert_eq!(scene.world.aws.calls(TERMINATE), 1);
    assert_eq!(eviction_requests(&scene.world).len(), 2);
    cut.store(false, Ordering::Relaxed);
    scene.pass_some(seconds(60)).await;
    assert_eq!((holder(&scene).as_str(), scene.world.aws.calls(TERMINATE)), ("ebbtide-1", 1));
}

/// Has another program lead, whose way to AWS can be cut.
async fn led_by_one_on_a_cable(scene: &mut Scene, is_silent: bool) -> (Program, Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let aws = Cable { to: scene.world.aws.clone(), cut: Arc::clone(&cut), is_silent };
    let aws = Aws::at(aws_client(Arc::new(aws)));
    let second = Program::start_with(&scene.world, aws, scene.world.cluster.client(), other());
    scene.take_down().await;
    scene.until(|_| holder(scene) == "ebbtide-1").await;
    scene.bring_back();
    scene.ready().await;
    (second, cut)
}

#[tokio::test(start_paused = true)]
async fn one_that_has_lost_aws_lets_another_lead() {
    for is_silent in [false, true] {
        let mut scene = Scene::with(held_group(3, 60)).await;
        let (_second, cut) = led_by_one_on_a_cable(&mut scene, is_silent).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(60)]).await;
        cut.store(true, Ordering::Relaxed);
        scene.scale_in(&machine, Cause::Group).await;
        let began = scene.world.clock.now();
        scene.until(|_| holder(&scene) == "ebbtide-0").await;
        let after = scene.world.clock.now().duration_since(began);
        assert!(after <= SignedDuration::from_secs(105), "{after:#}, silent: {is_silent}");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        scene.pass_some(seconds(600)).await;
        assert_eq!(holder(&scene), "ebbtide-0", "and AWS answers it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_alone_is_cut_off_from_aws_overrides_no_budget_for_want_of_heartbeats() {
    for is_silent in [false, true] {
        let mut scene = Scene::with(held_group(3, 300)).await;
        let (second, cut) = led_by_one_on_a_cable(&mut scene, is_silent).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(200).exits_after(10)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        let beats = |n| move |w: &World| w.aws.calls(Operation::RecordLifecycleActionHeartbeat) >= n;
        // One of each program, and the next ones.
        scene.until(beats(2)).await;
        let first = scene.world.clock.now();
        scene.until(beats(4)).await;
        let pause = scene.world.clock.now().duration_since(first) - SignedDuration::from_secs(5);
        scene.pass_some(pause.unsigned_abs()).await;
        assert_eq!(holder(&scene), "ebbtide-1");
        cut.store(true, Ordering::Relaxed);
        scene.pass_some(seconds(900)).await;
        assert_eq!(holder(&scene), "ebbtide-0");
        assert!(asked(&scene.world, "web").is_empty(), "silent: {is_silent}");
        // The other has renewed the hold: none of the heartbeats that come through again is late.
        cut.store(false, Ordering::Relaxed);
        scene.pass_some(seconds(200)).await;
        let page = get(second.admin().expect("a loopback interface"), "/metrics").await;
        let late = value(&page, r#"ebbtide_lifecycle_heartbeat_margin_seconds_bucket{le="5.0"}"#);
        let last = value(&page, "ebbtide_lifecycle_heartbeat_margin_seconds_count");
        assert!(late == Some(0.0) && last.is_some_and(|last| last > 2.0), "{late:?} of {last:?}");
        scene.remove::<PodDisruptionBudget>("web").await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn where_aws_answers_nobody_the_lead_goes_round_slowly_and_comes_back() {
    let scene = Scene::with(held_group(3, 60)).await;
    let _second = Program::start(&scene.world, other());
    let transitions = || {
        let lease =
            scene.world.cluster.get::<Lease>("ebbtide").and_then(|lease| lease.spec).expect("a Lease");
        lease.lease_transitions.unwrap_or_default()
    };
    let before = transitions();
    scene.world.aws.throttle_for(&[Operation::DescribeAutoScalingGroups], seconds(1_800));
    scene.pass_some(seconds(1_800)).await;
    let changes = transitions() - before;
    assert!((2..=6).contains(&changes), "{changes}");
}

#[tokio::test(start_paused = true)]
async fn without_the_lease_nobody_is_asked_and_nothing_ends_and_an_instance_is_held() {
    let scene = Scene::with(held_group(3, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(machine.name.as_str()).exits_after(20)]).await;
    scene.world.cluster.fail_next(
        u32::MAX,
        Verb::Update,
        "leases",
        Fault::EtcdTimedOut { took_effect: false },
    );
    scene.pass_some(seconds(11)).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(600)).await;
    assert!(!is_asked(&scene.world, "web") && !is_released(&scene.world, &machine));
    scene.world.cluster.no_more_faults();
    scene.until(|w| has_exited(w, "web")).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

/// An admission webhook may refuse it so, or somebody may write it all the time.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_writes_all_meet_a_conflict_is_tried_once_a_second_and_that_is_said() {
    let (log, _guard) = captured::log(Level::INFO);
    let cannot = "the Lease cannot be read or written";
    let scene = Scene::with(held_group(3, 60)).await;
    scene.world.cluster.fail_next(1, Verb::Update, "leases", Fault::Overtaken);
    scene.pass_some(seconds(10)).await;
    assert!(!log.text().contains(cannot), "once is nothing: {}", log.text());
    scene.world.cluster.fail_next(u32::MAX, Verb::Update, "leases", Fault::Overtaken);
    let writes = || scene.world.cluster.requests(Verb::Update, "leases");
    let before = writes();
    scene.pass_some(seconds(60)).await;
    let tries = writes() - before;
    assert!((40..=65).contains(&tries), "{tries} in a minute");
    assert_eq!(log.text().matches(cannot).count(), 1, "{}", log.text());
    assert!(log.text().contains("this process has lost the lead"), "{}", log.text());
    scene.world.cluster.no_more_faults();
    scene.pass_some(seconds(5)).await;
    assert_eq!(log.text().matches("the Lease can be read and written again").count(), 1, "{}", log.text());
    assert_eq!(log.text().matches("this process leads: it drains").count(), 2, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_api_server_delays_a_release_by_no_more_than_a_second_after_it() {
    let scene = Scene::with(held_group(3, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(machine.name.as_str()).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.cluster.api_down_for(seconds(120));
    scene.until(|w| is_released(w, &machine)).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    let flushed = phase_at(&scene.world, &machine, "Flushing") + SignedDuration::from_secs(5);
    let late = released_at(&scene.world, &machine).duration_since(flushed);
    assert!(late <= SignedDuration::from_secs(1), "{late:#}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_deletes_is_made_again_and_its_holder_goes_on() {
    let (mut scene, _second, machine) = two().await;
    for _ in 0..4 {
        scene.remove::<Lease>("ebbtide").await;
        scene.until(|w| w.cluster.get::<Lease>("ebbtide").is_some()).await;
        assert_eq!(holder(&scene), "ebbtide-0", "the other may not know better");
        scene.pass_some(seconds(7)).await;
    }
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "api")).await;
    scene.remove::<Lease>("ebbtide").await;
    scene.take_down().await;
    let killed = scene.world.clock.now();
    scene.until(|w| w.cluster.get::<Lease>("ebbtide").is_some()).await;
    assert_eq!(holder(&scene), "ebbtide-1");
    let after = scene.world.clock.now().duration_since(killed);
    assert!(after <= SignedDuration::from_secs(15), "{after:#}");
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn two_processes_that_are_told_one_name_do_not_both_lead() {
    let (scene, _second, machine) = two().await;
    // A copied manifest: the third believes that it is the first one's pod, started again.
    let _third = Program::start(&scene.world, config());
    scene.pass_some(seconds(30)).await;
    let lease = || scene.world.cluster.get::<Lease>("ebbtide").and_then(|lease| lease.spec).expect("a Lease");
    let (transitions, settled) = (lease().lease_transitions, lease().holder_identity);
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(eviction_requests(&scene.world).len(), 2, "each workload is asked once");
    assert_eq!(
        (lease().lease_transitions, lease().holder_identity),
        (transitions, settled),
        "nobody takes it back"
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_held_though_the_leader_dies_while_the_api_server_is_away() {
    let (mut scene, _second, machine) = two().await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "api")).await;
    scene.world.cluster.api_down();
    scene.take_down().await;
    scene.pass_some(seconds(600)).await;
    assert!(!is_released(&scene.world, &machine) && !crate::journal_queries::a_hook_timed_out(&scene.world));
    scene.world.cluster.api_up();
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_the_right_to_the_lease_says_so_in_advance() {
    let scene = Scene::with(held_group(3, 60)).await;
    let before = scene.world.cluster.requests(Verb::Update, "leases");
    let second = Program::start(&scene.world, other());
    scene.pass_some(seconds(2)).await;
    assert!(scene.world.cluster.requests(Verb::Update, "leases") > before, "a rehearsal");
    assert_eq!(holder(&scene), "ebbtide-0");
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_one_with_a_clock_that_is_behind_has_begun_is_whole_with_the_next() {
    let (mut scene, second, machine) = two().await;
    scene.run([daemon_set("agent").annotation("ebbtide/flush-seconds", "60")]).await;
    scene.step_clock(SignedDuration::from_mins(-2));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    scene.take_down().await;
    scene.until_gone(&machine).await;
    let flushed = released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
    assert!(flushed >= SignedDuration::from_secs(60), "{flushed}");
    assert_eq!(notes(&scene.world, &machine, "ScaleInNotBelieved"), [""; 0]);
    drop(second);
}

/// It is a workload, as nobody would make it anew. Whoever does not lead looks nothing up.
#[tokio::test(start_paused = true)]
async fn the_next_leader_waits_for_the_orphan_of_a_deleted_daemon_set_though_that_takes_seconds_to_look_up() {
    let (mut scene, second, machine) = two().await;
    let orphan = pod("orphan").on(&machine.name).owned_by("DaemonSet", "deleted");
    scene.run([orphan.grace(400).exits_after(350)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| has_exited(w, "web") && has_exited(w, "api")).await;
    scene.pass_some(seconds(30)).await;
    scene.world.cluster.fail_next(1, Verb::Get, "daemonsets", Fault::Slow(seconds(8)));
    scene.take_down().await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert!(has_exited(&scene.world, "orphan"));
    drop(second);
}
