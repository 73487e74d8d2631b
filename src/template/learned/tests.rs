//! What nodes teach, and what they do not.

use k8s_openapi::api::core::v1::Taint as NodeTaint;

use super::*;
use crate::cluster::TextMap;
use crate::template::capacity::Resources;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("in range")
}

fn revisions(version: u32) -> BTreeSet<Revision> {
    [Revision(format!("lt-1:{version}"))].into()
}

/// An `m5.large` that is Ready from the start of time, the `n`th of its group.
fn node(n: i64) -> NodeView {
    let labels = [
        (names::INSTANCE_TYPE, "m5.large"),
        ("kubernetes.io/hostname", &format!("host-{n}")),
        ("example.com/instance", &format!("the one called i-{n}")),
        ("team", "blue"),
    ];
    NodeView {
        name: format!("host-{n}").into(),
        instance: Some(format!("i-{n}").into()),
        labels: labels.into_iter().collect(),
        created: Some(at(n)),
        ready_since: Some(at(0)),
        capacity: figures("2", "7900000Ki", "29"),
        allocatable: figures("1930m", "7100000Ki", "29"),
        ..NodeView::default()
    }
}

fn figures(cpu: &str, memory: &str, pods: &str) -> TextMap {
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
    Learned::from(known, &revisions(1), &[], None, &nodes, at(1000))
}

fn first(nodes: &[NodeView]) -> Learned {
    learned(None, nodes).expect("there are nodes")
}

fn keys(learned: &Learned) -> Vec<&str> {
    learned.labels.keys().map(String::as_str).collect()
}

fn taint_keys(learned: &Learned) -> Vec<&str> {
    learned.taints.iter().map(|taint| taint.key.as_str()).collect()
}

const BOTH: [&str; 2] = ["m5.large", "m5.xlarge"];

/// The labels of a new node of a group of these types.
fn among<'a>(types: &[&str], learned: &'a Learned) -> Vec<&'a str> {
    learned.labels_among(types).map(|(key, _)| key.as_str()).collect()
}

#[test]
fn a_node_teaches_its_figures_and_labels_but_not_who_it_is() {
    let learned = first(&[node(1)]);
    let shown = &learned.types["m5.large"];
    assert_eq!((shown.capacity.cpu_millis, shown.allocatable.cpu_millis), (2000, 1930));
    assert_eq!((shown.capacity.memory_kib, shown.allocatable.memory_kib), (7_900_000, 7_100_000));
    // cluster-autoscaler finds only nodes similar that name the same resources.
    assert_eq!(shown.capacity.devices, [("hugepages-2Mi".to_owned(), 0)].into());
    assert_eq!(shown.allocatable.devices, shown.capacity.devices);
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
    let other = labelled(node(3), names::INSTANCE_TYPE, "m5.xlarge");
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
    assert_eq!(taint_keys(&first(std::slice::from_ref(&node))), ["dedicated"]);
    assert_eq!(taint_keys(&first(&[node.clone(), self::node(2)])), [""; 0]);
    let fresh = NodeView { ready_since: Some(at(950)), ..node };
    let known = first(&[fresh]);
    assert_eq!(taint_keys(&known), [""; 0]);
    let later = learned(Some(&known), &[tainted(self::node(1), "dedicated")]).expect("nodes");
    assert_eq!(taint_keys(&later), ["dedicated"], "the first that are settled count");
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
    assert_eq!(changed.types["m5.large"].capacity.devices.get("nvidia.com/gpu"), None);
    assert_eq!(keys(&changed), ["team"]);
}

#[test]
fn another_launch_template_makes_it_forget_all_but_memory_and_no_nodes_do_not() {
    let known = first(&[node(1)]);
    assert_eq!(learned(Some(&known), &[]), Some(known.clone()));
    let look = |known: &Learned, version: u32, nodes: &[Arc<NodeView>]| {
        Learned::from(Some(known), &revisions(version), &[], None, nodes, at(1000)).expect("memory is known")
    };
    // Of no revision: an older version would take it for what nodes of this one have shown.
    let memory_only = Learned { memory: [("m5.large".to_owned(), 7_900_000)].into(), ..Learned::default() };
    let second = look(&known, 2, &[]);
    assert_eq!((&second, second.has_seen_nodes()), (&memory_only, false));
    let third = look(&second, 3, &[]);
    assert_eq!(third.memory, memory_only.memory, "a version that was never launched");
    // Its first node teaches like any first node, and what it shows is kept in turn.
    let mut other = node(2);
    other.capacity = figures("2", "7800000Ki", "29");
    let anew = look(&third, 3, &[Arc::new(NodeView { ready_since: Some(at(990)), ..other })]);
    assert_eq!((keys(&anew), anew.has_seen_nodes()), (vec!["team"], true));
    assert_eq!(anew.types["m5.large"].capacity.memory_kib, 7_800_000);
    assert_eq!(look(&anew, 4, &[]).memory_kib("m5.large"), Some(7_800_000));
    // A group whose nodes have shown none has nothing to keep.
    let unknown = Learned { types: BTreeMap::new(), ..known };
    assert_eq!(Learned::from(Some(&unknown), &revisions(2), &[], None, &[], at(1000)), None);
}

/// What EKS says of a node group with one label and these taints.
fn eks(label: (&str, &str), taints: &[&str]) -> ManagedNodeGroup {
    let taint = |key: &&str| {
        let (key, effect) = ((*key).to_owned(), "NoSchedule".to_owned());
        Taint { key, effect, value: "eks".to_owned() }
    };
    ManagedNodeGroup {
        labels: [(label.0.to_owned(), label.1.to_owned())].into(),
        taints: taints.iter().map(taint).collect(),
        ..ManagedNodeGroup::default()
    }
}

#[test]
fn eks_and_not_nodes_teaches_what_it_gives_and_its_last_answer_is_remembered() {
    let nodes = [Arc::new(tainted(tainted(node(1), "dedicated"), "own"))];
    let look = |known: Option<&Learned>, given: Option<&ManagedNodeGroup>, nodes: &[Arc<NodeView>]| {
        Learned::from(known, &revisions(1), &[], given, nodes, at(1000)).expect("a node was seen")
    };
    let known = look(None, Some(&eks(("team", "red"), &["dedicated"])), &nodes);
    assert_eq!((known.labels["team"].as_str(), taint_keys(&known)), ("red", vec!["dedicated", "own"]));
    assert_eq!(look(Some(&known), None, &nodes), known, "it is silent");
    assert_eq!(look(Some(&known), None, &[]), known);
    // It answers otherwise, be the group at zero: also with a taint that no node has shown.
    for nodes in [&nodes[..], &[]] {
        let other = look(Some(&known), Some(&eks(("tier", "web"), &["gpu"])), nodes);
        assert_eq!((keys(&other), taint_keys(&other)), (vec!["tier"], vec!["gpu", "own"]));
        assert_eq!(look(Some(&other), None, nodes), other, "nodes do not bring back what EKS has taken off");
    }
}

#[test]
fn the_last_answer_of_eks_is_kept_without_any_node_and_over_another_launch_template() {
    let look = |known: Option<&Learned>, version: u32, given: Option<&ManagedNodeGroup>, nodes: &[_]| {
        Learned::from(known, &revisions(version), &[], given, nodes, at(1000))
    };
    let says = |learned: &Learned, labels: &[&str], taints: &[&str]| {
        assert_eq!((keys(learned), taint_keys(learned)), (labels.to_vec(), taints.to_vec()));
    };
    let red = eks(("tier", "red"), &["dedicated"]);
    // Of a group that never had a node.
    let never = look(None, 1, Some(&red), &[]).expect("EKS has answered");
    assert!(!never.has_seen_nodes() && never.revisions.is_empty());
    for version in [1, 2] {
        assert_eq!(look(Some(&never), version, None, &[]).as_ref(), Some(&never), "EKS is silent");
    }
    // Of one whose nodes have shown more, at zero by now.
    let nodes = [Arc::new(tainted(node(1), "own"))];
    let seen = look(Some(&never), 1, None, &nodes).expect("a node was seen");
    says(&seen, &["team", "tier"], &["dedicated", "own"]);
    let second = look(Some(&seen), 2, None, &[]).expect("EKS has answered");
    says(&second, &["tier"], &["dedicated"]);
    let third = look(Some(&second), 3, Some(&eks(("tier", "blue"), &[])), &[]).expect("EKS answers");
    assert_eq!((third.labels["tier"].as_str(), third.taints.len()), ("blue", 0));
    assert_eq!(third.given.labels.len() + third.given.taints.len(), 2, "no more than two answers say");
    // It is loaded when EKS has answered, or has not, and nodes were seen or not.
    let blue = look(None, 1, Some(&eks(("tier", "blue"), &[])), &[]).expect("EKS answers");
    let merged = blue.merged(&seen);
    says(&merged, &["team", "tier"], &["own"]);
    assert_eq!((merged.labels["tier"].as_str(), &merged.revisions), ("blue", &revisions(1)));
    let unanswered = look(None, 2, None, &nodes).expect("a node was seen");
    says(&unanswered.merged(&seen), &["team", "tier"], &["dedicated", "own"]);
    says(&unanswered.merged(&never), &["team", "tier"], &["dedicated", "own"]);
}

#[test]
fn what_eks_gives_holds_for_all_types_of_a_group() {
    let known = Learned::from(
        None,
        &revisions(1),
        &[],
        Some(&eks(("team", "red"), &[])),
        &[Arc::new(labelled(node(1), "rack", "a"))],
        at(1000),
    );
    assert_eq!(among(&BOTH, &known.expect("a node was seen")), ["team"]);
}

#[test]
fn a_taint_that_comes_later_is_not_learned_and_one_that_goes_does_not_come_back() {
    let registered = || tainted(tainted(node(1), "dedicated"), "licence");
    let known = first(&[registered()]);
    assert_eq!(taint_keys(&known), ["dedicated", "licence"]);
    let by_hand = learned(Some(&known), &[tainted(registered(), "debug")]).expect("nodes");
    assert_eq!(taint_keys(&by_hand), ["dedicated", "licence"]);
    let taken = learned(Some(&by_hand), &[tainted(node(2), "dedicated"), registered()]).expect("nodes");
    assert_eq!(taint_keys(&taken), ["dedicated"]);
    let again = learned(Some(&taken), &[registered()]).expect("nodes");
    assert_eq!(taint_keys(&again), ["dedicated"]);
    // Nodes without any are an answer too.
    let known = first(&[node(1)]);
    assert_eq!(taint_keys(&learned(Some(&known), &[registered()]).expect("nodes")), [""; 0]);
    let anew = Learned::from(Some(&again), &revisions(2), &[], None, &[Arc::new(registered())], at(1000));
    assert_eq!(taint_keys(&anew.expect("nodes")), ["dedicated", "licence"]);
}

#[test]
fn a_label_that_tells_of_a_place_is_not_learned() {
    let places = [
        ("topology.kubernetes.io/zone", "eu-west-1a"),
        ("topology.k8s.aws/zone-id", "euw1-az2"),
        ("topology.k8s.aws/network-node-layer-1", "nn-0"),
        ("example.com/zone", "eu-west-1a"),
        ("example.com/az", "euw1-az2"),
        ("example.com/site", "eu-west-1a-north"),
    ];
    let node = places.into_iter().fold(node(1), |node, (key, value)| labelled(node, key, value));
    assert_eq!(keys(&first(&[node])), ["example.com/site", "team"]);
}

#[test]
fn labels_of_a_group_of_several_types_are_those_that_two_of_them_have() {
    let large = |labels: &[&str]| labels.iter().fold(node(1), |node, key| labelled(node, key, "x"));
    let xlarge = |labels: &[&str]| labelled(large(labels), names::INSTANCE_TYPE, "m5.xlarge");
    let known = first(&[large(&["both", "large"])]);
    assert_eq!(among(&["m5.large"], &known), ["both", "large", "team"]);
    assert_eq!(among(&BOTH, &known), [""; 0]);
    let known = learned(Some(&known), &[xlarge(&["both", "xlarge"])]).expect("nodes");
    assert_eq!(among(&BOTH, &known), ["both", "team"], "the m5.large that is gone did not have the other");
    // What both have at one time is the group's.
    let nodes = [large(&["both", "new"]), xlarge(&["both", "new"])];
    assert_eq!(among(&BOTH, &learned(Some(&known), &nodes).expect("nodes")), ["both", "new", "team"]);
}

#[test]
fn what_an_earlier_run_knew_is_added_to_what_was_seen_since() {
    let rack = |value: &str| tainted(labelled(node(1), "rack", value), "dedicated");
    let mut earlier = first(&[tainted(rack("a"), "licence")]);
    earlier.varying.insert("shelf".into());
    earlier.types.insert("m5.xlarge".into(), Figures::default());
    let since = first(&[labelled(tainted(rack("b"), "debug"), "shelf", "1")]);
    let merged = since.merged(&earlier);
    assert_eq!((keys(&merged), taint_keys(&merged)), (vec!["team"], vec!["dedicated"]));
    assert_eq!(merged.varying.iter().collect::<Vec<_>>(), ["rack", "shelf"]);
    assert_eq!(merged.types.keys().collect::<Vec<_>>(), ["m5.large", "m5.xlarge"]);
    assert_eq!(merged.types["m5.large"], since.types["m5.large"]);
    earlier.types.insert("m5.xlarge".into(), since.types["m5.large"].clone());
    let of_another = Learned { revisions: revisions(2), ..earlier };
    let memory = ["m5.large", "m5.xlarge"].map(|name| (name.to_owned(), 7_900_000)).into();
    assert_eq!(since.merged(&of_another), Learned { memory, ..since.clone() });
}

#[test]
fn nodes_that_have_just_started_do_not_change_what_an_earlier_run_knew() {
    let earlier = first(&[tainted(labelled(node(1), "rack", "a"), "dedicated")]);
    let starting = first(&[NodeView { ready_since: Some(at(990)), ..labelled(node(2), "odd", "x") }]);
    let merged = starting.merged(&earlier);
    assert_eq!((keys(&merged), taint_keys(&merged)), (vec!["rack", "team"], vec!["dedicated"]));
    assert_eq!(merged.settled, earlier.settled);
    let merged = earlier.merged(&starting);
    assert_eq!((keys(&merged), taint_keys(&merged)), (vec!["rack", "team"], vec!["dedicated"]));
}

#[test]
fn the_last_answer_of_eks_survives_until_it_answers_again() {
    let nodes = [Arc::new(tainted(node(1), "own"))];
    let look = |given: Option<&ManagedNodeGroup>| {
        Learned::from(None, &revisions(1), &[], given, &nodes, at(1000)).expect("a node was seen")
    };
    let (earlier, since) = (look(Some(&eks(("tier", "web"), &["gpu"]))), look(None));
    let merged = since.merged(&earlier);
    assert_eq!((keys(&merged), taint_keys(&merged)), (vec!["team", "tier"], vec!["gpu", "own"]));
    let answered = look(Some(&eks(("tier", "new"), &[]))).merged(&earlier);
    assert_eq!(answered.labels["tier"], "new");
}

#[test]
fn a_node_that_is_leaving_cordoned_or_not_ready_teaches_nothing() {
    let leaving = NodeView { record: Some(Box::new("{}".into())), ..node(1) };
    let taken = tainted(node(1), names::TO_BE_DELETED);
    let down = NodeView { ready_since: None, ..node(1) };
    let cordoned = NodeView { unschedulable: true, ..node(1) };
    for node in [leaving, taken, down, cordoned] {
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
fn a_device_that_has_failed_on_the_last_node_is_not_missing_on_the_next_one() {
    let gpus = |capacity: i64, allocatable: i64| {
        let of = |count: i64| Resources {
            devices: [("nvidia.com/gpu".to_owned(), count)].into(),
            ..Resources::default()
        };
        Figures { capacity: of(capacity), allocatable: of(allocatable) }
    };
    for (shown, expected) in
        [((8, 7), (8, 8)), ((4, 4), (4, 4)), ((8, 8), (8, 8)), ((32, 32), (32, 32)), ((32, 28), (32, 28))]
    {
        let types = [("p4d.24xlarge".to_owned(), gpus(shown.0, shown.1))].into();
        let learned = Learned { types, ..Learned::default() };
        let corrected = learned.correct("p4d.24xlarge", gpus(8, 8));
        assert_eq!(corrected, gpus(expected.0, expected.1), "{shown:?}");
    }
}

/// The controller gives a node fewer than the formula where its subnet has fewer.
#[test]
fn addresses_of_windows_nodes_are_as_many_as_the_last_node_shows() {
    let addresses = |count: i64| Figures {
        allocatable: Resources {
            devices: [("vpc.amazonaws.com/PrivateIPv4Address".to_owned(), count)].into(),
            ..Resources::default()
        },
        ..Figures::default()
    };
    let learned = Learned { types: [("m5.large".to_owned(), addresses(7))].into(), ..Learned::default() };
    assert_eq!(learned.correct("m5.large", addresses(9)), addresses(7));
}

#[test]
fn it_is_read_back_as_it_was_written() {
    let learned = first(&[tainted(labelled(node(1), "rack", "a"), "dedicated")]);
    let text = serde_json::to_string(&learned).expect("is written");
    assert!(!text.contains("memory\":{"), "as older versions write it: {text}");
    assert_eq!(serde_json::from_str::<Learned>(&text).expect("is read"), learned);
    let memory = [("m5.large".to_owned(), 7_900_000)].into();
    let learned = Learned { memory, ..learned };
    let text = serde_json::to_string(&learned).expect("is written");
    assert_eq!(serde_json::from_str::<Learned>(&text).expect("is read"), learned);
}

#[test]
fn what_one_type_has_shown_is_not_told_of_another_that_took_its_place() {
    let settled = |types: &[&str]| Learned {
        labels: [("gpu.product".to_owned(), "T4".to_owned()), ("tier".to_owned(), "web".to_owned())].into(),
        given: Given { labels: ["tier".to_owned()].into(), ..Given::default() },
        settled: types.iter().map(|&name| name.to_owned()).collect(),
        ..Learned::default()
    };
    for (of, launched, speak) in [
        (&["g4dn.xlarge"][..], &["g4dn.xlarge"][..], true),
        (&["g4dn.xlarge"], &["g5.xlarge"], false),
        (&["g4dn.xlarge", "g5.xlarge"], &["g5.xlarge"], true),
        (&["g4dn.xlarge", "g5.xlarge"], &["g5.xlarge", "g6.xlarge"], true),
        (&["g4dn.xlarge"], &["g4dn.xlarge", "g5.xlarge"], false),
        (&["g4dn.xlarge", "g4dn.2xlarge"], &["g5.xlarge", "g5.2xlarge"], false),
        (&["g4dn.xlarge", "k3s"], &["g5.xlarge", "g5.2xlarge"], true),
        (&[], &["g5.xlarge"], true),
        (&["k3s"], &["g5.xlarge"], true),
        (&[""], &["g5.xlarge"], true),
    ] {
        let expected = if speak { &["gpu.product", "tier"][..] } else { &["tier"] };
        assert_eq!(among(launched, &settled(of)), expected, "{of:?} {launched:?}");
    }
}

#[test]
fn nodes_of_a_type_that_took_anothers_place_teach_as_if_there_had_been_no_other() {
    let of = |n: i64, name: &str, gpu: &str| {
        tainted(labelled(labelled(node(n), names::INSTANCE_TYPE, name), "gpu.product", gpu), gpu)
    };
    let look = |known: Option<&Learned>, types: &[&str], nodes: &[NodeView]| {
        let nodes: Vec<_> = nodes.iter().cloned().map(Arc::new).collect();
        let eks = eks(("tier", "web"), &["eks"]);
        Learned::from(known, &revisions(1), types, Some(&eks), &nodes, at(1000)).expect("nodes")
    };
    let (old, new) = (of(1, "g4dn.xlarge", "T4"), of(2, "g5.xlarge", "A10G"));
    let known = look(None, &["g4dn.xlarge"], std::slice::from_ref(&old));
    // While the group has nodes of both, and after.
    for nodes in [&[old.clone(), new.clone()][..], std::slice::from_ref(&new)] {
        let learned = look(Some(&known), &["g5.xlarge"], nodes);
        assert_eq!(learned.labels["gpu.product"], "A10G");
        assert_eq!((learned.labels["tier"].as_str(), learned.varying.len()), ("web", 0));
        assert_eq!(taint_keys(&learned), ["A10G", "eks"]);
        assert_eq!(learned.settled, ["g5.xlarge".to_owned()].into());
        assert!(learned.types.contains_key("g4dn.xlarge"), "figures are the type's");
        assert_eq!(among(&["g5.xlarge"], &look(Some(&learned), &["g5.xlarge"], &[])).len(), 3);
    }
    // Until one of the new type has settled, and while one of the old is launched still, nothing is forgotten.
    assert_eq!(look(Some(&known), &["g5.xlarge"], std::slice::from_ref(&old)), known);
    let both = look(Some(&known), &["g4dn.xlarge", "g5.xlarge"], &[old, new]);
    assert!(both.varying.contains("gpu.product"));
}
