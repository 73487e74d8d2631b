//! `/status` and `/status.json`: what an operator sees without reading code.

use std::net::SocketAddr;

use ebbtide::sim::aws::{LifecycleState, TargetGroupSpec};
use ebbtide::sim::cluster::{budget, pod};
use ebbtide::sim::program::{Program, config, second};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing::Level;

use crate::journal_queries::{TERMINATE, in_phase, is_asked, notes};
use crate::scene::{Cause, Scene, config_with, group, seconds};

/// What an admin endpoint answers.
pub(crate) async fn get(admin: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

pub(crate) async fn status(program: &Program) -> Value {
    let text = get(program.admin().expect("a loopback interface"), "/status.json").await;
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test(start_paused = true)]
async fn an_operator_sees_which_node_waits_for_which_pod_and_which_budget() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.world.cluster.add(budget("web").min_available(1));
    let patient = pod("batch").on(on).annotation("ebbtide/drain", "wait");
    scene.run([pod("web").on(on), patient, pod("slow").on(on).grace(300).exits_after(200)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(30)).await;

    let status = status(scene.program()).await;
    assert_eq!(status["leader"], json!({ "here": true, "name": "ebbtide-0" }));
    let [one] = &status["scaleIns"].as_array().expect("a list")[..] else { panic!("one: {status}") };
    let told =
        ["node", "instance", "group", "cause", "phase", "release", "releaseBy"].map(|key| one[key].clone());
    let release = "terminate-and-decrement";
    let expected = json!([on, machine.instance, "web", "autoscaler", "Draining", release, null]);
    assert_eq!(json!(told), expected);
    let mut waiting: Vec<_> = one["waiting"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|wait| json!([wait["pod"], wait["reason"], wait["budget"], wait["until"].is_string()]))
        .collect();
    waiting.sort_by_key(ToString::to_string);
    let expected = [
        json!(["default/batch", "patient", null, false]),
        json!(["default/slow", "exiting", null, true]),
        json!(["default/web", "budget", "default/web", false]),
    ];
    assert_eq!(waiting, expected);
    let [stage] = &one["stages"].as_array().expect("a list")[..] else { panic!("one: {one}") };
    assert_eq!((&stage["phase"], &stage["until"]), (&json!("Draining"), &Value::Null));
    assert!((29..=32).contains(&stage["seconds"].as_u64().expect("a number")), "{stage}");
    // The same words as in the Events.
    let note = notes(&scene.world, &machine, "ScaleInBlocked").remove(0);
    let blocked = one["waiting"].as_array().expect("a list").iter().find(|wait| wait["reason"] == "budget");
    let text = blocked.expect("one")["text"].as_str().expect("text").to_owned();
    assert!(note.contains(&text), "{note} has {text}");

    let group = &status["groups"][0];
    assert_eq!(group["aws"], json!({ "min": 0, "desired": 2, "max": 1_000 }));
    assert_eq!(group["told"], json!({ "min": 0, "desired": 1, "max": 999 }));
    assert_eq!((&group["live"], &group["leaving"], &group["missing"]), (&json!(2), &json!(1), &json!(0)));
    assert_eq!(group["template"]["instanceType"], "m5.large");
    assert_eq!(group["template"]["allocatable"]["cpu"], "2");
    assert_eq!(group["hook"]["state"], "none");
    let known = &status["known"];
    assert!(known["groupsAgeSeconds"].as_u64().expect("an age") <= 61, "{known}");
    assert!(known["groupsFresh"] == true && known["watchesAlive"] == true, "{known}");

    let page = get(scene.program().admin().expect("an address"), "/status").await;
    for text in [on, "default/web", "budget default/web", "asked not to be disturbed"] {
        assert!(page.contains(text), "{text} in {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_several_pods_that_exit_each_is_shown_as_gone_soon_after_its_exit() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let exiting = |name, seconds| pod(name).on(&machine.name).grace(900).exits_after(seconds);
    scene.run([exiting("early", 20), exiting("later", 40), exiting("last", 600)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    let waits_for = async || {
        let status = status(scene.program()).await;
        let waiting = status["scaleIns"][0]["waiting"].as_array().expect("a list").clone();
        waiting.iter().map(|wait| wait["pod"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    for (gone, left) in
        [("early", ["default/last", "default/later"].as_slice()), ("later", &["default/last"])]
    {
        scene.until(|w| w.cluster.pod(gone).is_none()).await;
        scene.pass_some(seconds(2)).await;
        assert_eq!(waits_for().await, left, "without {gone}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_that_ended_is_told_with_its_outcome_and_its_phases() {
    let scene = Scene::with(group(2)).await;
    let (first, second) = (scene.first(), scene.machines().remove(1));
    scene
        .run([
            pod("web").on(&first.name).exits_after(20),
            pod("api").on(&second.name).exits_after(600).grace(900),
        ])
        .await;
    scene.scale_in(&first, Cause::Autoscaler).await;
    scene.until_gone(&first).await;
    scene.scale_in(&second, Cause::Operator).await;
    scene.until(|w| is_asked(w, "api")).await;
    scene.annotate(&second, None).await;
    scene.pass_some(seconds(2)).await;

    let status = status(scene.program()).await;
    let ended = status["ended"].as_array().expect("a list");
    let [off, gone] = &ended[..] else { panic!("two: {status}") };
    assert_eq!((&gone["node"], &gone["outcome"]), (&json!(first.name), &json!("released")));
    let phases: Vec<_> =
        gone["stages"].as_array().expect("a list").iter().map(|s| s["phase"].clone()).collect();
    assert_eq!(phases, ["Draining", "Flushing", "Releasing"]);
    let drained = gone["stages"][0]["seconds"].as_u64().expect("a number");
    assert!((20..=22).contains(&drained), "{gone}");
    assert!(gone["stages"][1]["seconds"].as_u64() >= Some(5), "{gone}");
    assert_eq!((&off["node"], &off["outcome"]), (&json!(second.name), &json!("cancelled")));
}

/// Without a hook of ours, AWS is told after the drain.
#[tokio::test(start_paused = true)]
async fn a_scale_in_that_is_called_off_after_its_drain_is_told_as_cancelled_and_why() {
    for (by, why) in [("minimum", "minimum size"), ("person", "is gone"), ("detaching", "no longer in group")]
    {
        let (log, _guard) = captured::log(Level::INFO);
        let scene = Scene::with(group(2).size(1, 1_000, 2)).await;
        let [machine, other] = &scene.machines()[..] else { panic!("two nodes") };
        let other = other.instance.clone();
        match by {
            "minimum" => {
                scene.world.aws.before_next(TERMINATE, move |aws, now| aws.detach(&other, true, now));
            }
            _ => scene.world.aws.deny(TERMINATE, true),
        }
        scene.scale_in(machine, Cause::Autoscaler).await;
        scene.until(|w| w.aws.calls(TERMINATE) > 0).await;
        assert!(in_phase(&scene.world, machine, "Releasing"));
        match by {
            "person" => scene.annotate(machine, None).await,
            "detaching" => scene.world.aws.set_state(&machine.instance, LifecycleState::Detaching),
            _ => {}
        }
        scene.until(|w| !notes(w, machine, "ScaleInCancelled").is_empty()).await;
        scene.pass_some(seconds(2)).await;
        let status = status(scene.program()).await;
        let [ended] = &status["ended"].as_array().expect("a list")[..] else { panic!("one: {status}") };
        assert_eq!(ended["outcome"], "cancelled", "{by}: {ended}");
        assert!(ended["why"].as_str().is_some_and(|told| told.contains(why)), "{by}: {ended}");
        let log = log.text();
        let line = log.lines().find(|line| line.contains("scale-in ended")).expect("a line");
        assert!(line.contains("outcome=\"cancelled\"") && line.contains(why), "{by}: {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_its_turn_is_told_with_its_group() {
    let scene = Scene::with(group(2)).await;
    let (first, second) = (scene.first(), scene.machines().remove(1));
    scene.run([pod("web").on(&first.name).exits_after(600).grace(900)]).await;
    scene.scale_in(&first, Cause::Operator).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.scale_in(&second, Cause::Operator).await;
    scene.pass_some(seconds(10)).await;
    let status = status(scene.program()).await;
    let told = status["scaleIns"].as_array().expect("a list").iter();
    let told: Vec<_> = told.map(|one| [one["group"].as_str(), one["phase"].as_str()]).collect();
    assert_eq!(told, [[Some("web"), Some("Queued")], [Some("web"), Some("Draining")]], "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_lead_says_who_does_and_what_the_nodes_tell() {
    let scene = Scene::with(group(2)).await;
    let follower = Program::start(&scene.world, second(config()));
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(10)).await;
    let (told, known) = (status(&follower).await, status(scene.program()).await);
    assert_eq!(told["leader"]["here"], false);
    assert!(told["leader"]["name"].as_str().expect("a name").starts_with("ebbtide-0_"), "{told}");
    let [ours, theirs] = [&told, &known].map(|status| status["scaleIns"][0].clone());
    assert_eq!((&ours["node"], &ours["phase"]), (&theirs["node"], &theirs["phase"]));
    assert_eq!(ours["waiting"], Value::Null, "only the leader knows");
    assert_eq!(theirs["waiting"][0]["pod"], "default/web");
}

#[tokio::test(start_paused = true)]
async fn an_operator_sees_which_load_balancers_hold_a_release() {
    let world = World::new(1);
    world.aws.add_target_group(TargetGroupSpec::named("k8s-web").delay(120));
    let scene = Scene::on(world, group(2), config_with(|it| it.wait_for_load_balancers = true)).await;
    let machine = scene.first();
    // Until the controller has registered the nodes.
    scene.pass_some(seconds(30)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| notes(w, &machine, "ScaleInWaiting").iter().any(|note| note.contains("k8s-web"))).await;
    let one = &status(scene.program()).await["scaleIns"][0];
    assert_eq!((&one["phase"], &one["loadBalancers"]), (&json!("Flushing"), &json!(["k8s-web"])), "{one}");
    let page = get(scene.program().admin().expect("a loopback interface"), "/status").await;
    assert!(page.contains("waits for load balancers to let go of the instance: k8s-web"), "{page}");
}
