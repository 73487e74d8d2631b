//! What the program needs the right to do in a cluster, and what a policy keeps others from.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use ebbtide::commands::check::needed;
use ebbtide::sim::cluster::{Cluster, EBBTIDE, Fault, Rights, Timing, Verb, budget, pod};
use ebbtide::sim::http::{Bearer, Lost, Request, Response, World as Service, kube_client};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::journal_queries::{is_asked, is_released};
use crate::leftovers::no_cloud_controller;
use crate::scene::{
    Cause, DS_EVICTION, Machine, RECORD, Scene, TO_BE_DELETED, config_with, held_group, seconds,
};

/// The API server as the bearer of a token sees it, and all that was asked of it: verb, group, resource, and the name where
/// there is one.
struct Caller {
    cluster: Bearer<Cluster>,
    asked: Arc<Mutex<BTreeSet<[String; 4]>>>,
}

#[async_trait]
impl Service for Caller {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        self.asked.lock().insert(question(&request));
        self.cluster.call(request).await
    }
}

fn client(cluster: Cluster, token: &str, asked: &Arc<Mutex<BTreeSet<[String; 4]>>>) -> kube::Client {
    kube_client(Arc::new(Caller { cluster: Bearer::of(token, cluster), asked: Arc::clone(asked) }))
}

/// A request as RBAC sees it.
fn question(request: &Request) -> [String; 4] {
    let parts: Vec<&str> = request.uri().path().split('/').filter(|part| !part.is_empty()).collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        other => panic!("{other:?}"),
    };
    let rest = if let ["namespaces", _, rest @ ..] = rest { rest } else { rest };
    let name = rest.get(1).copied().unwrap_or_default();
    let resource = rest.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, part)| *part);
    let resource: Vec<_> = resource.collect();
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let verb = match request.method().as_str() {
        "GET" if is_watch => "watch",
        "GET" if name.is_empty() => "list",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        other => panic!("{other}"),
    };
    [verb, group, &resource.join("/"), name].map(str::to_owned)
}

/// The rights of `deploy/base/rbac.yaml` and of what is optional beside it: verb, group, resource, and the name where it is limited to one.
fn rights() -> BTreeSet<[String; 4]> {
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.map(|text| text.as_str().expect("a text").to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    let files =
        [include_str!("../../deploy/base/rbac.yaml"), include_str!("../../deploy/rbac-delete-nodes.yaml")];
    for document in files.iter().flat_map(|file| file.split("\n---\n")) {
        let object: Value = serde_saphyr::from_str(document).expect("YAML");
        for rule in object["rules"].as_array().into_iter().flatten() {
            let mut names = texts(&rule["resourceNames"]);
            if names.is_empty() {
                names.push(String::new());
            }
            for verb in texts(&rule["verbs"]) {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for name in &names {
                            rights.insert([&verb, &group, &resource, name].map(Clone::clone));
                        }
                    }
                }
            }
        }
    }
    rights
}

/// The object of `deploy/base/rbac.yaml` that the program writes.
async fn shipped(cluster: &Cluster) {
    let created = PostParams::default();
    let metadata = ObjectMeta { name: Some("ebbtide-templates".to_owned()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    Api::default_namespaced(cluster.client()).create(&created, &map).await.expect("created");
}

fn under_policies(cluster: &Cluster) {
    cluster.enforce_policies();
    cluster.add_user("ebbtide", EBBTIDE, Rights::ScaleIn);
    cluster.add_user("kubelet", "system:node:somewhere", Rights::Write);
    cluster.add_user("operator", "jane", Rights::ScaleIn);
}

#[tokio::test(start_paused = true)]
async fn the_program_asks_for_all_that_its_roles_allow_and_for_nothing_else() {
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&asked);
    let config = config_with(|it| {
        it.drain_timeout = Some(seconds(60));
        it.delete_node_after = Some(seconds(120));
    });
    let world = World::new(1);
    under_policies(&world.cluster);
    shipped(&world.cluster).await;
    let way = move |cluster| client(cluster, "ebbtide", &seen);
    let scene = Scene::made(world, held_group(3, 60), config, way).await;
    let [first, second, third] = &scene.machines()[..] else { panic!("three nodes") };
    // One that has to be deleted, and one that cluster-autoscaler may be about to drain.
    scene.world.cluster.add(budget("slow").max_unavailable(0));
    scene.run([pod("slow").on(first.name.as_str()).exits_after(5)]).await;
    scene.run([pod("quick").on(second.name.as_str()).exits_after(5)]).await;
    scene.taint(second, "DeletionCandidateOfClusterAutoscaler").await;
    scene.pass_some(seconds(30)).await;
    scene.scale_in(first, Cause::Operator).await;
    scene.remove::<k8s_openapi::api::apps::v1::DaemonSet>("shipper").await;
    scene.until_gone(first).await;
    // Somebody else writes the Node at the same moment, and the watch does not tell it soon: it is read afresh.
    scene.world.cluster.set_timing(Timing { watch_lag: Span::exactly(seconds(1)), ..Timing::brisk() });
    scene.world.cluster.fail_next(1, Verb::Patch, "nodes", Fault::Overtaken);
    scene.scale_in(second, Cause::Group).await;
    scene.until_gone(second).await;
    no_cloud_controller(&scene);
    scene.scale_in(third, Cause::Operator).await;
    scene.until_gone(third).await;
    let limited = |question: &[String; 4]| {
        let [verb, group, resource, name] = question;
        let by_name = ["configmaps", "leases"].contains(&resource.as_str());
        [verb.clone(), group.clone(), resource.clone(), if by_name { name.clone() } else { String::new() }]
    };
    let asked: BTreeSet<_> = asked.lock().iter().map(limited).collect();
    let mut rights = rights();
    assert!(rights.remove(&["scale-in", "", "nodes", ""].map(str::to_owned)), "asked of the policy");
    let too_much: Vec<_> = asked.difference(&rights).collect();
    assert!(too_much.is_empty(), "not allowed: {too_much:?}");
    let unused: Vec<_> = rights.difference(&asked).collect();
    assert!(unused.is_empty(), "not needed: {unused:?}");
}

#[test]
fn check_asks_for_the_rights_that_the_roles_give() {
    let config = config_with(|it| it.delete_node_after = Some(seconds(120)));
    let asked: BTreeSet<_> = needed(&config, "kube-system")
        .into_iter()
        .map(|needed| {
            let right = needed.right;
            let parts = [right.resource, right.subresource].map(str::to_owned);
            let resource =
                parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/");
            [right.verb.to_owned(), right.group.to_owned(), resource, right.name.to_owned()]
        })
        .collect();
    assert_eq!(asked, rights());
}

async fn patch_as(scene: &Scene, token: &str, machine: &Machine, status: bool, patch: &Value) -> u16 {
    let asked = Arc::default();
    let nodes: Api<Node> = Api::all(client(scene.world.cluster.clone(), token, &asked));
    let params = PatchParams::default();
    let answer = if status {
        nodes.patch_status(&machine.name, &params, &Patch::Merge(patch)).await
    } else {
        nodes.patch(&machine.name, &params, &Patch::Merge(patch)).await
    };
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_without_the_verb_scale_in_makes_the_program_end_a_machine() {
    let scene = Scene::with(held_group(3, 60)).await;
    under_policies(&scene.world.cluster);
    let machine = scene.first();
    scene.run([pod("web").on(machine.name.as_str())]).await;
    let wish = json!({ "metadata": { "annotations": { RECORD: "now" } } });
    for status in [false, true] {
        assert_eq!(patch_as(&scene, "kubelet", &machine, status, &wish).await, 403);
    }
    let heartbeat = json!({ "metadata": { "annotations": { "node.alpha.kubernetes.io/ttl": "5" } } });
    assert_eq!(
        patch_as(&scene, "kubelet", &machine, true, &heartbeat).await,
        200,
        "the rest of the Node is theirs"
    );
    scene.pass_some(seconds(120)).await;
    assert!(!is_asked(&scene.world, "web") && !is_released(&scene.world, &machine));
    assert_eq!(patch_as(&scene, "operator", &machine, false, &wish).await, 200);
    scene.until(|w| is_asked(w, "web")).await;
    // Nor does anybody without it take one back.
    let cancel = json!({ "metadata": { "annotations": { RECORD: null } } });
    assert_eq!(patch_as(&scene, "kubelet", &machine, false, &cancel).await, 403);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn the_programs_token_guards_pods_and_changes_nothing_else_of_them() {
    let scene = Scene::with(held_group(3, 60)).await;
    under_policies(&scene.world.cluster);
    scene.run([pod("web").on(scene.first().name.as_str())]).await;
    let asked = Arc::default();
    let pods: Api<Pod> = Api::default_namespaced(client(scene.world.cluster.clone(), "ebbtide", &asked));
    let code = async |patch: Value| {
        let answer = pods.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await;
        match answer {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(
        code(json!({ "metadata": { "annotations": { DS_EVICTION: "false", "ebbtide/guarded": "true" } } }))
            .await,
        200
    );
    assert_eq!(code(json!({ "spec": { "containers": [{ "name": "main", "image": "evil" }] } })).await, 403);
    assert_eq!(code(json!({ "metadata": { "labels": { "app": "stolen" } } })).await, 403);
    assert_eq!(code(json!({ "metadata": { "annotations": { TO_BE_DELETED: "1" } } })).await, 403);
    let of_status = async |patch: Value| {
        let answer = pods.patch_status("web", &PatchParams::default(), &Patch::Strategic(patch)).await;
        match answer {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{error}"),
        }
    };
    let condition =
        |kind: &str| json!({ "status": { "conditions": [{ "type": kind, "status": "Unknown" }] } });
    assert_eq!(of_status(condition("DisruptionTarget")).await, 200);
    assert_eq!(of_status(condition("Ready")).await, 403);
    assert_eq!(of_status(json!({ "status": { "phase": "Failed" } })).await, 403);
    assert_eq!(of_status(json!({ "status": { "podIP": "10.0.0.1" } })).await, 403);
    assert_eq!(of_status(json!({ "metadata": { "labels": { "app": "stolen" } } })).await, 403);
    assert_eq!(
        of_status(json!({ "metadata": { "annotations": { "ebbtide/guarded": "again" } } })).await,
        403
    );
}
