//! Reading and writing objects.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, Namespace};
use k8s_openapi::api::events::v1::Event as NewEvent;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event as Notice, EventType, Recorder, Reporter};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use super::*;

fn config(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "a": "1" } })).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_created_has_an_identity_and_is_not_created_twice() {
    let sim = sim();
    let api: Api<ConfigMap> = Api::default_namespaced(sim.client.clone());
    let made = api.create(&PostParams::default(), &config("one")).await.unwrap();
    assert!(made.uid().is_some() && made.creation_timestamp().is_some() && made.resource_version().is_some());
    let again = refused(api.create(&PostParams::default(), &config("one")).await);
    assert_eq!((again.code, again.reason.as_str()), (409, "AlreadyExists"));
    assert_eq!(again.message, "configmaps \"one\" already exists");

    let mut nameless = config("");
    nameless.metadata.generate_name = Some("many-".to_owned());
    nameless.metadata.name = None;
    let made = api.create(&PostParams::default(), &nameless).await.unwrap();
    assert!(made.name_any().starts_with("many-") && made.name_any().len() == 10);
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_not_found_with_its_name_in_the_details() {
    let sim = sim();
    let status = refused(sim.nodes().get("n1").await);
    assert!(status.is_not_found());
    assert_eq!(status.message, "nodes \"n1\" not found");
    let details = status.details.unwrap();
    assert_eq!((details.name.as_str(), details.kind.as_str()), ("n1", "nodes"));
    let nowhere: Api<ConfigMap> = Api::namespaced(sim.client.clone(), "nowhere");
    let status = refused(nowhere.create(&PostParams::default(), &config("one")).await);
    assert_eq!(status.message, "namespaces \"nowhere\" not found");
}

#[tokio::test(start_paused = true)]
async fn of_two_writers_with_the_same_version_only_the_first_wins() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let read = sim.nodes().get("n1").await.unwrap();
    let version = read.resource_version().unwrap();
    let claim = |who: &str| {
        Patch::Merge(json!({ "metadata": { "resourceVersion": version, "annotations": { "owner": who } } }))
    };
    sim.nodes().patch("n1", &PatchParams::default(), &claim("first")).await.unwrap();
    let lost = refused(sim.nodes().patch("n1", &PatchParams::default(), &claim("second")).await);
    assert!(lost.is_conflict());
    assert!(lost.message.contains("the object has been modified"), "{}", lost.message);
    let lost = refused(sim.nodes().replace("n1", &PostParams::default(), &read).await);
    assert!(lost.is_conflict());
    assert_eq!(sim.cluster.node("n1").unwrap().annotations()["owner"], "first");

    let other_uid =
        Patch::Merge(json!({ "metadata": { "uid": "other", "annotations": { "owner": "third" } } }));
    let invalid = refused(sim.nodes().patch("n1", &PatchParams::default(), &other_uid).await);
    assert_eq!((invalid.code, invalid.reason.as_str()), (422, "Invalid"), "not a conflict");
}

#[tokio::test(start_paused = true)]
async fn a_lease_cannot_be_replaced_without_saying_which_version_is_meant() {
    let sim = sim();
    let api: Api<Lease> = Api::default_namespaced(sim.client.clone());
    let lease = json!({ "metadata": { "name": "ebbtide" }, "spec": { "holderIdentity": "a" } });
    let lease: Lease = serde_json::from_value(lease).unwrap();
    let made = api.create(&PostParams::default(), &lease).await.unwrap();
    let unconditional = refused(api.replace("ebbtide", &PostParams::default(), &lease).await);
    assert_eq!((unconditional.code, unconditional.reason.as_str()), (422, "Invalid"));
    api.replace("ebbtide", &PostParams::default(), &made).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_leaves_the_version_alone() {
    let sim = sim();
    sim.cluster.add(node("n1").label("a", "1"));
    let before = sim.cluster.revision();
    let same = Patch::Merge(json!({ "metadata": { "labels": { "a": "1" } } }));
    sim.nodes().patch("n1", &PatchParams::default(), &same).await.unwrap();
    assert_eq!(sim.cluster.revision(), before);
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_patch_changes_a_node_and_the_status_stays_what_it_was() {
    let sim = sim();
    sim.cluster.add(node("n1").taint("a", "1", "NoSchedule"));
    let params = PatchParams::default();
    let taints = json!([{ "key": "b", "effect": "NoSchedule" }]);
    let merge = Patch::Merge(json!({ "spec": { "taints": taints }, "status": { "conditions": [] } }));
    let patched = sim.nodes().patch("n1", &params, &merge).await.unwrap();
    assert_eq!(patched.spec.unwrap().taints.unwrap()[0].key, "b");
    assert!(!patched.status.unwrap().conditions.unwrap().is_empty());

    let operations = json!([
        { "op": "test", "path": "/spec/taints/0/key", "value": "b" },
        { "op": "add", "path": "/spec/unschedulable", "value": true },
    ]);
    let json_patch: Patch<Node> = Patch::Json(serde_json::from_value(operations).unwrap());
    let patched = sim.nodes().patch("n1", &params, &json_patch).await.unwrap();
    assert_eq!(patched.spec.unwrap().unschedulable, Some(true));
    let wrong = json!([{ "op": "test", "path": "/spec/taints/0/key", "value": "c" }]);
    let json_patch: Patch<Node> = Patch::Json(serde_json::from_value(wrong).unwrap());
    assert_eq!(refused(sim.nodes().patch("n1", &params, &json_patch).await).code, 422);

    let strategic =
        Patch::Strategic(json!({ "metadata": { "labels": { "x": "1" } }, "spec": { "taints": null } }));
    let patched = sim.nodes().patch("n1", &params, &strategic).await.unwrap();
    assert_eq!(patched.labels()["x"], "1");
    assert_eq!(patched.spec.unwrap().taints, None);

    let apply = Patch::Apply(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } }));
    let unsupported = refused(sim.nodes().patch("n1", &PatchParams::apply("test"), &apply).await);
    assert_eq!(unsupported.code, 415);
    let status =
        Patch::Strategic(json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }));
    let patched = sim.nodes().patch_status("n1", &params, &status).await.unwrap();
    assert_eq!(patched.status.unwrap().conditions.unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_a_real_server_would_refuse_is_refused() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let twice =
        json!([{ "key": "a", "effect": "NoSchedule" }, { "key": "a", "value": "2", "effect": "NoSchedule" }]);
    for wrong in [
        json!({ "metadata": { "labels": { "a": "not a label" } } }),
        json!({ "metadata": { "labels": { "a/b/c": "x" } } }),
        json!({ "spec": { "taints": [{ "key": "a", "effect": "Never" }] } }),
        json!({ "spec": { "taints": twice } }),
    ] {
        let status = refused(sim.nodes().patch("n1", &PatchParams::default(), &Patch::Merge(&wrong)).await);
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{wrong}");
    }
    let wrong_type = Patch::Merge(json!({ "spec": { "unschedulable": "yes" } }));
    assert_eq!(refused(sim.nodes().patch("n1", &PatchParams::default(), &wrong_type).await).code, 400);
}

#[tokio::test(start_paused = true)]
async fn a_list_comes_in_pages_of_one_state_even_while_it_changes() {
    let sim = sim();
    for n in 1..=5 {
        sim.cluster.add(node(&format!("n{n}")));
    }
    let first = sim.nodes().list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    sim.cluster.add(node("n0")).add(node("n3x"));
    sim.nodes().delete("n5", &kube::api::DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.clone().unwrap();
    let rest = sim.nodes().list(&ListParams::default().continue_token(&token)).await.unwrap();
    let names: Vec<String> = first.iter().chain(rest.iter()).map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, ["n1", "n2", "n3", "n4", "n5"]);
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);

    sim.cluster.compact_history();
    let expired = refused(sim.nodes().list(&ListParams::default().continue_token(&token)).await);
    assert_eq!((expired.code, expired.reason.as_str()), (410, "Expired"));
}

#[tokio::test(start_paused = true)]
async fn selectors_select_by_label_and_by_field() {
    let sim = sim();
    sim.cluster.add(node("n1").label("zone", "a")).add(node("n2").label("zone", "b")).add(node("n3"));
    sim.cluster.add(pod("web-1").on("n1")).add(pod("web-2").on("n2")).add(pod("kube-system/dns").on("n1"));
    sim.cordon("n2").await;
    let nodes = async |params: ListParams| -> Vec<String> {
        sim.nodes().list(&params).await.unwrap().iter().map(kube::ResourceExt::name_any).collect()
    };
    assert_eq!(nodes(ListParams::default().labels("zone in (a,b)")).await, ["n1", "n2"]);
    assert_eq!(nodes(ListParams::default().labels("zone!=a")).await, ["n2", "n3"]);
    assert_eq!(nodes(ListParams::default().labels("!zone")).await, ["n3"]);
    assert_eq!(nodes(ListParams::default().fields("spec.unschedulable=true")).await, ["n2"]);
    assert_eq!(nodes(ListParams::default().fields("metadata.name=n3")).await, ["n3"]);
    let all: Api<Pod> = Api::all(sim.client.clone());
    let on_n1 =
        all.list(&ListParams::default().fields("spec.nodeName=n1,status.phase=Pending")).await.unwrap();
    assert_eq!(on_n1.iter().map(kube::ResourceExt::name_any).collect::<Vec<_>>(), ["web-1", "dns"]);
    let unsupported = all.list(&ListParams::default().fields("spec.image=x")).await;
    assert_eq!(refused(unsupported).message, "field label not supported: spec.image");
}

#[tokio::test(start_paused = true)]
async fn metadata_can_be_read_alone() {
    let sim = sim();
    sim.cluster.add(node("n1").label("zone", "a"));
    let one = sim.nodes().get_metadata("n1").await.unwrap();
    assert_eq!(one.labels()["zone"], "a");
    let all = sim.nodes().list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(all.items.len(), 1);
    let kind = all.items[0].types.as_ref().unwrap();
    assert_eq!((kind.kind.as_str(), kind.api_version.as_str()), ("PartialObjectMetadata", "meta.k8s.io/v1"));
}

#[tokio::test(start_paused = true)]
async fn a_recorded_event_is_seen_at_both_addresses_and_in_the_journal() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let recorder = Recorder::new(sim.client.clone(), Reporter::from("ebbtide"));
    let regarding = sim.nodes().get("n1").await.unwrap().object_ref(&());
    let notice = |note: &str| Notice {
        type_: EventType::Normal,
        reason: "Draining".to_owned(),
        note: Some(note.to_owned()),
        action: "ScaleIn".to_owned(),
        secondary: None,
    };
    recorder.publish(&notice("3 pods to go"), &regarding).await.unwrap();
    recorder.publish(&notice("3 pods to go"), &regarding).await.unwrap();
    let new: Api<NewEvent> = Api::default_namespaced(sim.client.clone());
    let new = new.list(&ListParams::default().fields("regarding.name=n1")).await.unwrap();
    assert_eq!(new.items[0].series.as_ref().unwrap().count, 2);
    let core: Api<CoreEvent> = Api::default_namespaced(sim.client.clone());
    let core = core.list(&ListParams::default().fields("involvedObject.name=n1")).await.unwrap();
    assert_eq!(core.items[0].message.as_deref(), Some("3 pods to go"));
    assert_eq!(core.items[0].involved_object.kind.as_deref(), Some("Node"));
    assert!(sim.cluster.happened(|event| matches!(event, Event::KubernetesEvent { regarding, reason, note }
        if regarding == "Node/n1" && reason == "Draining" && note == "3 pods to go")));

    // Longer than a note may be.
    let other = Notice { reason: "Flushing".to_owned(), ..notice(&"x".repeat(1025)) };
    assert_eq!(refused(recorder.publish(&other, &regarding).await).code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let before = sim.cluster.revision();
    let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    let shown = sim.nodes().patch("n1", &PatchParams::default().dry_run(), &cordon).await.unwrap();
    assert_eq!(shown.spec.unwrap().unschedulable, Some(true));
    assert_eq!(sim.cluster.revision(), before);
}

#[tokio::test(start_paused = true)]
async fn the_server_says_what_it_is_and_what_it_serves() {
    let sim = sim();
    assert_eq!(sim.client.apiserver_version().await.unwrap().minor, "36");
    let groups = sim.client.list_api_groups().await.unwrap();
    assert!(groups.groups.iter().any(|group| group.name == "policy"));
    let core = sim.client.list_core_api_resources("v1").await.unwrap();
    assert!(core.resources.iter().any(|resource| resource.name == "pods/eviction"));
    let namespaces: Api<Namespace> = Api::all(sim.client.clone());
    assert!(namespaces.get("default").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn node_changes_that_matter_are_in_the_journal() {
    let sim = sim();
    sim.cluster.add(node("n1").label("old", "1"));
    let patch = json!({
        "metadata": { "annotations": { "ebbtide/scale-in": "{}" }, "labels": { "old": null } },
        "spec": { "unschedulable": true, "taints": [{ "key": "t", "value": "1", "effect": "NoSchedule" }] },
    });
    sim.nodes().patch("n1", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let tainted =
        NodeChange::Tainted { key: "t".to_owned(), value: "1".to_owned(), effect: "NoSchedule".to_owned() };
    let expected = [
        NodeChange::Unschedulable(true),
        tainted,
        NodeChange::Annotated("ebbtide/scale-in".to_owned(), "{}".to_owned()),
        NodeChange::LabelRemoved("old".to_owned()),
    ];
    assert!(sim.cluster.happened(|event| matches!(event, Event::NodeChanged { node, changes }
        if node == "n1" && *changes == expected)));
    assert_eq!(sim.cluster.requests(Verb::Patch, "nodes"), 1);
}
