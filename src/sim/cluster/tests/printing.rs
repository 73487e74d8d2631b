//! What kubectl asks for beyond what the `kube` client does: tables, short names, the number of replicas.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::*;
use crate::sim::http::World as _;

/// What `kubectl get` accepts.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

async fn get(sim: &Sim, path: &str) -> Value {
    let request = http::Request::builder().uri(path).header(http::header::ACCEPT, TABLE);
    let answer = sim.cluster.call(request.body(Bytes::new()).unwrap()).await.unwrap();
    let mut body = answer.into_body();
    // Of a watch, its first line.
    let frame = body.frame().await.unwrap().unwrap();
    serde_json::from_slice(frame.data_ref().unwrap()).unwrap()
}

/// The cells of each row that are printed without `--output wide`.
fn printed(table: &Value) -> Vec<Vec<&str>> {
    let priorities: Vec<&Value> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|column| &column["priority"]).collect();
    let rows = table["rows"].as_array().unwrap().iter().map(|row| row["cells"].as_array().unwrap());
    rows.map(|cells| {
        let cells = cells.iter().zip(&priorities).filter(|(_, priority)| **priority == 0);
        cells.map(|(cell, _)| cell.as_str().unwrap()).collect()
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_and_pods_are_shown_as_rows_of_a_table() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("web").on("n1").exits_after(5));
    sim.running("web", 1).await;
    sim.cordon("n1").await;
    tokio::time::sleep(Duration::from_secs(75)).await;
    let nodes = get(&sim, "/api/v1/nodes").await;
    assert_eq!(printed(&nodes), [["n1", "Ready,SchedulingDisabled", "<none>", "77s", "v1.36.2"]]);
    assert_eq!(nodes["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    sim.pods().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    let pod = get(&sim, "/api/v1/namespaces/default/pods/web?includeObject=Object").await;
    assert_eq!(printed(&pod), [["web", "1/1", "Terminating", "0", "77s"]]);
    assert_eq!(pod["rows"][0]["object"]["spec"]["nodeName"], "n1");
    let watched = get(&sim, "/api/v1/nodes?watch=true&includeObject=None").await;
    assert_eq!((&watched["type"], &watched["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert_eq!(watched["object"]["rows"][0]["object"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn replicas_are_changed_through_their_scale() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("web", 1));
    sim.running("web", 1).await;
    let sets: Api<ReplicaSet> = Api::default_namespaced(sim.client.clone());
    let scale = sets.get_scale("web").await.unwrap();
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("app=web"));
    let two = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
    assert_eq!(
        sets.patch_scale("web", &PatchParams::default(), &two).await.unwrap().spec.unwrap().replicas,
        Some(2)
    );
    sim.running("web", 2).await;
    let mut old = sets.get_scale("web").await.unwrap();
    old.metadata.resource_version = scale.metadata.resource_version;
    assert_eq!(refused(sets.replace_scale("web", &PostParams::default(), &old).await).code, 409);
    let none = Patch::Merge(json!({ "spec": { "replicas": -1 } }));
    assert_eq!(refused(sets.patch_scale("web", &PatchParams::default(), &none).await).code, 422);
    assert_eq!(refused(sets.get_scale("gone").await).code, 404);
}

#[tokio::test(start_paused = true)]
async fn short_names_and_what_can_be_scaled_are_told() {
    let sim = sim();
    let apps = sim.client.list_api_group_resources("apps/v1").await.unwrap();
    let of = |name: &str| apps.resources.iter().find(|one| one.name == name).unwrap();
    assert_eq!(of("replicasets").short_names.as_deref(), Some(&["rs".to_owned()][..]));
    assert_eq!(of("replicasets").categories.as_deref(), Some(&["all".to_owned()][..]));
    assert_eq!(
        (
            of("replicasets/scale").kind.as_str(),
            apps.resources.iter().any(|one| one.name == "daemonsets/scale")
        ),
        ("Scale", false)
    );
}
