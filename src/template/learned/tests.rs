//! What nodes teach, and what they do not.

use k8s_openapi::api::core::v1::Taint as NodeTaint;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("in range")
}

fn revisions(version: u32) -> BTreeSet<Revision> {
    [Revision(format!("lt-1:{version}"))].into()
}

/// An `m5.large` that is Ready from the start of time, the `n`th of its group.
fn node(n: i64) -> NodeView {
    let labels = [
        (INSTANCE_TYPE, "m5.large"),
        ("kubernetes.io/hostname", &format!("host-{n}")),
        ("example.com/instance", &format!("the one called i-{n}")),
        ("team", "blue"),
    ];
    NodeView {
        name: format!("host-{n}"),
        instance: Some(format!("i-{n}")),
        labels: labels.into_iter().collect(),
        created: Some(at(n)),
        ready_since: Some(at(0)),
        capacity: figures("2", "7900000Ki", "29"),
        allocatable: figures("1930m", "7100000Ki", "29"),
        ..NodeView::default()
    }
}

fn figures(cpu: &str, memory: &str, pods: &str) -> Pairs {
    [("cpu", cpu), ("memory", memory), ("pods", pods), ("hugepages-2Mi", "0")].into_iter().collect()
}

fn labelled(mut node: NodeView, key: &str, value: &str) -> NodeView {
    node.labels = node.labels.iter().filter(|(known, _)| *known != key).chain([(key, value)]).collect();
    node
}

fn tainted(mut node: NodeView, key: &str) -> NodeView {
    let (key, effect) = (key.to_owned(), "NoSchedule".to_owned());
    node.taints.push(NodeTaint { key, effect, ..NodeTaint::default() });
    node
}

fn learned(known: Option<&Learned>, nodes: &[NodeView]) -> Option<Learned> {
    let nodes: Vec<_> = nodes.iter().cloned().map(Arc::new).collect();
    Learned::from(known, &revisions(1), None, &nodes, at(1000))
}

fn first(nodes: &[NodeView]) -> Learned {
    learned(None, nodes).expect("there are nodes")
}

fn keys(learned: &Learned) -> Vec<&str> {
    learned.labels.keys().map(String::as_str).collect()
}

#[test]
fn a_node_teaches_its_figures_and_labels_but_not_who_it_is() {
    let learned = first(&[node(1)]);
    let shown = &learned.types["m5.large"];
    assert_eq!((shown.capacity.cpu_millis, shown.allocatable.cpu_millis), (2000, 1930));
    assert_eq!((shown.capacity.memory_kib, shown.allocatable.memory_kib), (7_900_000, 7_100_000));
    assert!(shown.capacity.devices.is_empty(), "{shown:?}");
    assert_eq!(keys(&learned), ["team"]);
    assert_eq!(learned.last, "m5.large");
}

#[test]
fn the_last_node_of_a_type_is_right_beyond_the_noise() {
    let mut newest = node(2);
    newest.allocatable = figures("1930m", "7101000Ki", "29");
    let known = first(&[node(1)]);
    let same = learned(Some(&known), &[newest.clone(), node(1)]).expect("nodes");
    assert_eq!(same, known, "0.01 % are noise");
    newest.allocatable = figures("1930m", "6000000Ki", "110");
    let other = labelled(node(3), INSTANCE_TYPE, "m5.xlarge");
    let corrected = learned(Some(&known), &[newest, node(1), other]).expect("nodes");
    assert_eq!(corrected.types["m5.large"].allocatable.memory_kib, 6_000_000);
    assert_eq!(corrected.last, "m5.xlarge");
}

#[test]
fn a_label_is_learned_if_all_nodes_have_it_alike_and_always_had() {
    let both = [labelled(node(1), "rack", "a"), labelled(node(2), "rack", "b")];
    assert_eq!(keys(&first(&both)), ["team"]);
    assert_eq!(keys(&first(&[node(1), labelled(node(2), "odd", "x")])), ["team"]);
    // One after the other.
    let known = first(&both[..1]);
    assert_eq!(keys(&known), ["rack", "team"]);
    let known = learned(Some(&known), &both[1..]).expect("nodes");
    assert_eq!(keys(&known), ["team"]);
    let known = learned(Some(&known), &both[1..]).expect("nodes");
    assert_eq!(keys(&known), ["team"], "it does not come back");
    // One that an agent sets from now on.
    let known = learned(Some(&known), &[labelled(node(3), "gpu.product", "T4")]).expect("nodes");
    assert_eq!(keys(&known), ["gpu.product", "team"]);
}

#[test]
fn taints_are_learned_of_nodes_that_have_started_and_only_those_that_stay() {
    let start =
        ["node.kubernetes.io/not-ready", "ebs.csi.aws.com/agent-not-ready", names::DELETION_CANDIDATE];
    let node = start.into_iter().chain(["dedicated"]).fold(node(1), tainted);
    let keys = |learned: &Learned| learned.taints.iter().map(|t| t.key.clone()).collect::<Vec<_>>();
    assert_eq!(keys(&first(std::slice::from_ref(&node))), ["dedicated"]);
    assert_eq!(keys(&first(&[node.clone(), self::node(2)])), [""; 0]);
    let fresh = NodeView { ready_since: Some(at(950)), ..node };
    assert_eq!(keys(&first(&[fresh])), [""; 0]);
}

#[test]
fn what_a_node_lacks_at_first_is_not_taken_for_missing() {
    let with = |mut node: NodeView| {
        let more: Vec<_> = node.capacity.iter().chain([("nvidia.com/gpu", "4")]).collect();
        node.capacity = more.into_iter().collect();
        labelled(node, "gpu.product", "T4")
    };
    let known = first(&[with(node(1))]);
    let starting = NodeView { ready_since: Some(at(990)), ..node(2) };
    let same = learned(Some(&known), std::slice::from_ref(&starting)).expect("nodes");
    assert_eq!(same, known);
    let without = NodeView { ready_since: Some(at(900)), ..starting };
    let changed = learned(Some(&known), &[without]).expect("nodes");
    assert!(changed.types["m5.large"].capacity.devices.is_empty());
    assert_eq!(keys(&changed), ["team"]);
}

#[test]
fn another_launch_template_makes_it_forget_and_no_nodes_do_not() {
    let known = first(&[node(1)]);
    assert_eq!(learned(Some(&known), &[]), Some(known.clone()));
    assert_eq!(Learned::from(Some(&known), &revisions(2), None, &[], at(1000)), None);
}

#[test]
fn what_eks_gives_the_nodes_is_not_learned() {
    let node = Arc::new(tainted(tainted(node(1), "dedicated"), "own"));
    let taint = Taint { key: "dedicated".into(), value: String::new(), effect: "NoSchedule".into() };
    let team = ("team".to_owned(), "blue".to_owned());
    let given = NodeGroup { labels: [team].into(), taints: vec![taint], ..NodeGroup::default() };
    let learned = Learned::from(None, &revisions(1), Some(&given), &[node], at(1000)).expect("a node");
    assert_eq!(keys(&learned), [""; 0]);
    assert_eq!(learned.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["own"]);
}

#[test]
fn a_node_that_is_leaving_or_not_ready_teaches_nothing() {
    let leaving = NodeView { record: Some("{}".into()), ..node(1) };
    let taken = tainted(node(1), names::TO_BE_DELETED);
    let down = NodeView { ready_since: None, ..node(1) };
    for node in [leaving, taken, down] {
        assert_eq!(learned(None, &[node]), None);
    }
}

#[test]
fn only_the_type_that_was_seen_is_corrected_and_devices_that_were_computed_stay() {
    let computed = Figures {
        capacity: Resources {
            cpu_millis: 4000,
            devices: [("nvidia.com/gpu".to_owned(), 1)].into(),
            ..Resources::default()
        },
        ..Figures::default()
    };
    let learned = first(&[node(1)]);
    assert_eq!(learned.correct("m5.xlarge", computed.clone()), computed);
    let corrected = learned.correct("m5.large", computed);
    assert_eq!(corrected.capacity.cpu_millis, 2000);
    assert_eq!(corrected.capacity.devices["nvidia.com/gpu"], 1);
}

#[test]
fn it_is_read_back_as_it_was_written() {
    let learned = first(&[tainted(labelled(node(1), "rack", "a"), "dedicated")]);
    let text = serde_json::to_string(&learned).expect("is written");
    assert_eq!(serde_json::from_str::<Learned>(&text).expect("is read"), learned);
}
