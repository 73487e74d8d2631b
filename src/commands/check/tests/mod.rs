mod queues;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::facts::{Autoscalers, GroupFacts, RightFact};
use super::*;
use crate::aws::{AutoScalingGroup, AwsError, Frozen, Hook, Operation, QueueAttributes, WarmPool, Weights};
use crate::cluster::{DeployedContainer, LeaseHolder, PodName};
use crate::groups::discovery::Selection;
use crate::groups::hooks::TerminatingHooks;
use crate::provider::TlsProblem;
use crate::provider::tls::TlsFile;

/// A group with which everything is in order.
fn good_group() -> GroupFacts {
    let hook = Hook::new("ebbtide", "web", Duration::from_mins(5));
    let tags = [("k8s.io/cluster-autoscaler/enabled".to_owned(), "true".to_owned())].into();
    GroupFacts {
        asg: AutoScalingGroup { name: "web".into(), tags, ..AutoScalingGroup::default() },
        hooks: Some(TerminatingHooks { ours: Some(hook), ..TerminatingHooks::default() }),
        is_without_nodes: false,
        template_error: None,
        longest_grace: Some((Duration::from_secs(30), pod())),
        asking_us_alone: Vec::new(),
        unreadable: Vec::new(),
    }
}

fn pod() -> PodName {
    PodName { namespace: "shop".into(), name: "slow".into() }
}

fn autoscaler(args: &[&str]) -> DeployedContainer {
    DeployedContainer {
        deployment: "kube-system/cluster-autoscaler".into(),
        image: "registry/cluster-autoscaler:v1.30.2".into(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
    }
}

const GOOD: [&str; 3] = [
    "--cloud-provider=externalgrpc",
    "--daemonset-eviction-for-occupied-nodes=false",
    "--node-info-cache-expire-time=10m",
];

/// As deploy/aws makes it.
fn good_queue() -> QueueAttributes {
    let condition = json!({ "ArnEquals": { "aws:SourceArn": "arn:aws:events:us-east-1:1:rule/ebbtide" } });
    let statement = json!({
        "Effect": "Allow", "Principal": { "Service": "events.amazonaws.com" }, "Action": "sqs:SendMessage",
        "Condition": condition,
    });
    QueueAttributes {
        policy: json!({ "Statement": [statement] }),
        receives: Some(1_000),
        retention: Some(Duration::from_hours(14 * 24)),
        ..QueueAttributes::default()
    }
}

fn queue(attributes: Result<QueueAttributes, AwsError>) -> QueueFacts {
    QueueFacts { url: "https://sqs.us-east-1.amazonaws.com/1/ebbtide".into(), attributes }
}

fn held(namespace: &str, holder: &str) -> LeaseHolder {
    LeaseHolder { namespace: namespace.into(), name: "ebbtide".into(), holder: holder.into() }
}

fn good() -> Facts {
    Facts {
        rights: vec![RightFact { right: "patch nodes".into(), need: Need::Always, allowed: Ok(true) }],
        denied: Vec::new(),
        identity: None,
        writes: Vec::new(),
        aws_error: None,
        may_tag: Some(true),
        groups: vec![good_group()],
        selection: Selection::default(),
        unidentified: Vec::new(),
        without_their_gpus: Vec::new(),
        graces: Ok(()),
        load_balancers: Ok(()),
        prices: Ok(()),
        queues: vec![queue(Ok(good_queue()))],
        autoscalers: Autoscalers::Seen(vec![autoscaler(&GOOD)]),
        lease_name: Some("ebbtide".into()),
        lease: Ok(held("kube-system", "ebbtide-0_0123456789abcdef")),
        // The second is cluster-autoscaler's, in a pod of ours.
        leases: Some(vec![
            held("kube-system", "ebbtide-0_0123456789abcdef"),
            held("shop", ""),
            held("other", "ebbtide-7d4b9c6f5-x2x9k"),
        ]),
        tls: Vec::new(),
        lifecycle_hook: "ebbtide".into(),
        flush: Duration::from_secs(5),
        drain_timeout: None,
    }
}

fn report(facts: &Facts) -> Report {
    Report::of(facts)
}

#[test]
fn where_all_is_well_nothing_is_found() {
    let report = report(&good());
    assert_eq!((report.findings.as_slice(), report.exit_code()), (&[][..], 0));
    assert_eq!(
        report.render(Output::Table, Style::default()),
        "0 errors, 0 warnings, 0 notes\ngroups selected (1): web\n"
    );
}

#[test]
fn nothing_is_found_where_nodes_are_not_gathered() {
    for interval in ["0", "0s", "0h0m0.0s"] {
        let interval = format!("--node-deletion-batcher-interval={interval}");
        let args = [&GOOD[..], &[interval.as_str()]].concat();
        let facts = Facts { autoscalers: Autoscalers::Seen(vec![autoscaler(&args)]), ..good() };
        assert_eq!(report(&facts).findings, [], "{args:?}");
    }
}

#[test]
fn nothing_is_found_where_as_many_long_drains_as_may_be_leave_room_for_other_nodes() {
    for (drains, in_all) in [(10, "--max-scale-down-parallelism=11"), (9, "")] {
        let drains = format!("--max-drain-parallelism={drains}");
        let args = [&GOOD[..], &["--max-graceful-termination-sec=172800", drains.as_str(), in_all]].concat();
        let facts = Facts { autoscalers: Autoscalers::Seen(vec![autoscaler(&args)]), ..good() };
        assert_eq!(report(&facts).findings, [], "{args:?}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table: one row a finding")]
fn each_thing_that_is_wrong_is_found_with_its_severity_and_a_fix() {
    let group = |change: &dyn Fn(&mut GroupFacts)| {
        let mut group = good_group();
        change(&mut group);
        Facts { groups: vec![group], ..good() }
    };
    let hook = |change: &dyn Fn(&mut Hook)| {
        group(&|group| change(group.hooks.as_mut().and_then(|hooks| hooks.ours.as_mut()).expect("ours")))
    };
    let mut retains = hook(&|h| h.abandons = false);
    retains.groups[0].asg.retains = true;
    let pooled = |abandons| {
        let mut facts = hook(&|h| h.abandons = abandons);
        facts.groups[0].asg.retains = true;
        facts.groups[0].asg.warm_pool = Some(WarmPool { reuses: false });
        facts
    };
    let with_args =
        |args: &[&str]| Facts { autoscalers: Autoscalers::Seen(vec![autoscaler(args)]), ..good() };
    let flags = |more: &[&str]| with_args(&[&GOOD[..], more].concat());
    let right = |need, allowed| {
        let right = RightFact { right: "create pods/eviction".into(), need, allowed };
        Facts { rights: vec![right], ..good() }
    };
    let tls = |problem: &dyn Fn(TlsFile, PathBuf, String) -> TlsProblem| {
        let problem = problem(TlsFile::Cert, "/tls.crt".into(), "it has expired".into());
        Facts { tls: vec![problem], ..good() }
    };
    let only = |name: &str| [name.into()].into();
    let unreachable = || AwsError::of_service(Operation::DescribeTargetGroups, 503, "Unavailable", "");
    let long = Some((Duration::from_hours(1), pod()));
    let table: Vec<(&str, Facts, &str, Severity, &str)> = vec![
        ("a right", right(Need::Always, Ok(false)), "rbac", Severity::Error, "pods/eviction"),
        ("an optional right", right(Need::Optional("x"), Ok(false)), "rbac", Severity::Note, "pods/eviction"),
        ("no answer", right(Need::Always, Err("down".into())), "rbac", Severity::Error, "down"),
        (
            "IAM",
            Facts { denied: vec![Operation::DescribeImages], ..good() },
            "iam",
            Severity::Error,
            "ec2:DescribeImages",
        ),
        ("tagging", Facts { may_tag: Some(false), ..good() }, "iam", Severity::Error, "ec2:CreateTags"),
        ("no groups", Facts { groups: Vec::new(), ..good() }, "groups", Severity::Error, "no group"),
        (
            "groups that go only",
            Facts { selection: Selection { left_behind: only("web"), ..Selection::default() }, ..good() },
            "groups",
            Severity::Error,
            "no group",
        ),
        (
            "an absent group",
            Facts { selection: Selection { absent: only("nope"), ..Selection::default() }, ..good() },
            "groups",
            Severity::Error,
            "nope is named by --nodes and does not exist",
        ),
        (
            "another cluster's",
            Facts { selection: Selection { of_others: only("green"), ..Selection::default() }, ..good() },
            "groups",
            Severity::Warning,
            "green selected, but the tags name another cluster",
        ),
        (
            "no hook",
            group(&|g| g.hooks = Some(TerminatingHooks::default())),
            "hooks",
            Severity::Warning,
            "does not wait for its drain",
        ),
        ("hooks unknown", group(&|g| g.hooks = None), "hooks", Severity::Warning, "could not be read"),
        (
            "another's",
            group(&|g| g.hooks.as_mut().expect("hooks").others = true),
            "hooks",
            Severity::Note,
            "somebody else",
        ),
        (
            "short",
            hook(&|h| *h = Hook::new("ebbtide", "web", Duration::from_secs(0))),
            "hooks",
            Severity::Warning,
            "shop/slow",
        ),
        ("retains", retains, "hooks", Severity::Warning, "retains"),
        (
            "another's that abandons",
            group(&|g| g.hooks.as_mut().expect("hooks").others_abandon = true),
            "hooks",
            Severity::Warning,
            "ends ours as well",
        ),
        (
            "another's that abandons in a group that retains",
            group(&|g| {
                g.asg.retains = true;
                let hooks = g.hooks.as_mut().expect("hooks");
                hooks.others_abandon = true;
                hooks.ours.as_mut().expect("ours").abandons = true;
            }),
            "hooks",
            Severity::Warning,
            "kept again",
        ),
        ("a pool that retains", pooled(true), "hooks", Severity::Warning, "warm pool"),
        ("a pool", pooled(false), "hooks", Severity::Note, "warm pool"),
        (
            "weights",
            group(&|g| g.asg.weights = Some(Weights::default())),
            "groups",
            Severity::Warning,
            "weights",
        ),
        (
            "suspended",
            group(&|g| g.asg.suspended = ["Launch".to_owned()].into()),
            "groups",
            Severity::Warning,
            "Launch",
        ),
        (
            "health checks",
            group(&|g| g.asg.ends_unhealthy_targets = true),
            "groups",
            Severity::Warning,
            "10256",
        ),
        ("deleting", group(&|g| g.asg.frozen = Some(Frozen::Deleting)), "groups", Severity::Note, "deleted"),
        ("no tag", group(&|g| g.asg.tags.clear()), "tags", Severity::Warning, "no tag"),
        (
            "Terraform's tag",
            group(&|g| {
                g.asg.tags = [("k8s.io/cluster-autoscaler/prod".to_owned(), "owned".to_owned())].into();
            }),
            "tags",
            Severity::Note,
            "Terraform's role does not",
        ),
        (
            "bad tag",
            group(&|g| drop(g.asg.tags.insert("ebbtide/drain-timeout".into(), "soon".into()))),
            "tags",
            Severity::Warning,
            "soon",
        ),
        (
            "template",
            group(&|g| g.template_error = Some("no type".into())),
            "templates",
            Severity::Warning,
            "no type",
        ),
        (
            "limit",
            Facts { drain_timeout: Some(Duration::from_secs(20)), ..good() },
            "deadlines",
            Severity::Warning,
            "20s",
        ),
        (
            "in-tree",
            with_args(&["--cloud-provider", "aws"]),
            "cluster-autoscaler",
            Severity::Warning,
            "externalgrpc",
        ),
        (
            "DaemonSets",
            with_args(&[GOOD[0], GOOD[2]]),
            "cluster-autoscaler",
            Severity::Warning,
            "together with",
        ),
        (
            "one at a time",
            flags(&["--max-graceful-termination-sec=172800"]),
            "cluster-autoscaler",
            Severity::Warning,
            "no other node",
        ),
        (
            "no room beside drains",
            flags(&["--max-graceful-termination-sec=172800", "--max-drain-parallelism=10"]),
            "cluster-autoscaler",
            Severity::Warning,
            "not even an empty one",
        ),
        (
            "no room beside drains, older",
            flags(&[
                "--max-graceful-termination-sec=601",
                "--max-drain-parallelism=4",
                "--max-empty-bulk-delete=4",
            ]),
            "cluster-autoscaler",
            Severity::Warning,
            "scales in 4 nodes at a time",
        ),
        (
            "batches",
            flags(&["--node-deletion-batcher-interval=1m30s"]),
            "cluster-autoscaler",
            Severity::Warning,
            "costs all of them",
        ),
        ("old nodes", with_args(&GOOD[..2]), "cluster-autoscaler", Severity::Note, "its last node"),
        (
            "empty",
            flags(&["--daemonset-eviction-for-empty-nodes"]),
            "cluster-autoscaler",
            Severity::Warning,
            "empty",
        ),
        (
            "grace",
            Facts { groups: vec![GroupFacts { longest_grace: long, ..good_group() }], ..good() },
            "cluster-autoscaler",
            Severity::Warning,
            "600 s",
        ),
        (
            "priorities",
            flags(&["--drain-priority-config=0:30"]),
            "cluster-autoscaler",
            Severity::Warning,
            "of their priority",
        ),
        (
            "undisturbed",
            Facts { groups: vec![GroupFacts { asking_us_alone: vec![pod()], ..good_group() }], ..good() },
            "cluster-autoscaler",
            Severity::Warning,
            "pod shop/slow (and 0 more)",
        ),
        (
            "wishes",
            Facts {
                groups: vec![GroupFacts { unreadable: vec![(pod(), "ebbtide/drain")], ..good_group() }],
                ..good()
            },
            "pods",
            Severity::Warning,
            "pod shop/slow has an invalid value in ebbtide/drain",
        ),
        (
            "graces",
            Facts { graces: Err("the API server did not answer in time".into()), ..good() },
            "deadlines",
            Severity::Warning,
            "could not be read",
        ),
        (
            "force",
            flags(&["--force-delete-failed-nodes=true"]),
            "cluster-autoscaler",
            Severity::Note,
            "minimum",
        ),
        (
            "balance",
            flags(&["--balance-similar-node-groups"]),
            "cluster-autoscaler",
            Severity::Warning,
            "zone",
        ),
        (
            "unseen",
            Facts { autoscalers: Autoscalers::Unknown("403".into()), ..good() },
            "cluster-autoscaler",
            Severity::Note,
            "403",
        ),
        (
            "a machine elsewhere",
            Facts { unidentified: vec!["n1".into()], ..good() },
            "provider ids",
            Severity::Note,
            "in no group",
        ),
        (
            "no provider ids",
            Facts { unidentified: vec!["n1".into()], ..group(&|g| g.is_without_nodes = true) },
            "provider ids",
            Severity::Error,
            "any instance of web",
        ),
        (
            "a GPU node of no group whose device plugin is down",
            Facts {
                without_their_gpus: vec!["n1".into(), "n2".into()],
                autoscalers: Autoscalers::Seen(vec![DeployedContainer {
                    image: "registry/cluster-autoscaler:v1.35.0".into(),
                    ..autoscaler(&GOOD)
                }]),
                ..good()
            },
            "cluster-autoscaler",
            Severity::Warning,
            "(and 1 more)",
        ),
        (
            "the same, with a cluster-autoscaler that does not mind",
            Facts { without_their_gpus: vec!["n1".into()], ..good() },
            "cluster-autoscaler",
            Severity::Note,
            "offers no GPU",
        ),
        ("no Lease", Facts { lease: Err("404".into()), ..good() }, "lease", Severity::Error, "404"),
        (
            "nobody",
            Facts { lease: Ok(held("kube-system", "")), ..good() },
            "lease",
            Severity::Warning,
            "nobody",
        ),
        (
            "two",
            Facts { leases: Some(vec![held("other", "drains-9_00c0ffee00c0ffee")]), ..good() },
            "lease",
            Severity::Warning,
            "other/ebbtide",
        ),
        ("force", group(&|g| g.asg.force_deletable = true), "groups", Severity::Note, "web can be deleted"),
        (
            "balancers",
            Facts { load_balancers: Err(unreachable()), ..good() },
            "aws",
            Severity::Error,
            "DescribeTargetGroups",
        ),
        (
            "prices",
            Facts { prices: Err(unreachable()), ..good() },
            "aws",
            Severity::Warning,
            "the built-in table stands in",
        ),
        (
            "TLS",
            tls(&|file, path, why| TlsProblem::Untimely { file, path, why }),
            "tls",
            Severity::Error,
            "expired",
        ),
        (
            "TLS soon",
            tls(&|file, path, _| TlsProblem::Ends { file, path, end: jiff::Timestamp::UNIX_EPOCH }),
            "tls",
            Severity::Warning,
            "1970",
        ),
    ];
    for (what, facts, check, severity, word) in table {
        one_is_found(what, &facts, check, severity, word);
    }
}

fn one_is_found(what: &str, facts: &Facts, check: &str, severity: Severity, word: &str) {
    let found = report(facts);
    let [finding] = &found.findings[..] else { panic!("{what}: one: {:#?}", found.findings) };
    assert_eq!((finding.check, finding.severity), (check, severity), "{what}: {finding:?}");
    let code = [2, 1, 0][severity as usize];
    assert_eq!(found.exit_code(), code, "{what}");
    assert!(format!("{} {}", finding.subject, finding.text).contains(word), "{what}: {finding:?}");
    assert!(!finding.fix.is_empty(), "{what}");
    assert!(found.render(Output::Table, Style::default()).contains(&finding.fix), "{what}");
}

#[test]
fn what_cannot_be_tried_is_told_as_a_simulation_of_iam() {
    let mut group = good_group();
    group.asg.arn = "arn:aws:autoscaling:us-east-1:1:autoScalingGroup:u:autoScalingGroupName/web".into();
    let label = "k8s.io/cluster-autoscaler/node-template/label/a";
    group.asg.tags.insert(label.to_owned(), "b".to_owned());
    let facts = Facts {
        identity: Some("arn:aws:sts::1:assumed-role/ebbtide/pod".into()),
        writes: vec![Operation::SetDesiredCapacity, Operation::DeleteMessageBatch, Operation::ReceiveMessage],
        groups: vec![group],
        queues: vec![queue(Ok(QueueAttributes {
            arn: "arn:aws:sqs:us-east-1:1:ebbtide".into(),
            ..good_queue()
        }))],
        ..good()
    };
    let report = report(&facts);
    let [of_queue, of_group] = &report.findings[..] else { panic!("two: {report:#?}") };
    assert_eq!(report.exit_code(), 0);
    let shared = "aws iam simulate-principal-policy --policy-source-arn arn:aws:iam::1:role/ebbtide --resource-arns 'arn:aws:";
    for (finding, expected) in [
        (
            of_group,
            "autoscaling:us-east-1:1:autoScalingGroup:u:autoScalingGroupName/web' --action-names autoscaling:SetDesiredCapacity \
             --context-entries 'ContextKeyName=aws:ResourceTag/k8s.io/cluster-autoscaler/enabled,ContextKeyValues=true,\
             ContextKeyType=string' --query",
        ),
        (of_queue, "sqs:us-east-1:1:ebbtide' --action-names sqs:DeleteMessage sqs:ReceiveMessage --query"),
    ] {
        let rest = finding.fix.strip_prefix(shared).unwrap_or_else(|| panic!("{finding:?}"));
        assert!(rest.starts_with(expected), "{finding:?}");
    }
}

#[test]
fn the_hook_that_is_proposed_keeps_what_the_group_does_when_it_times_out() {
    let pool = Some(WarmPool { reuses: false });
    for (retains, warm_pool, result) in
        [(false, None, "CONTINUE"), (true, None, "ABANDON"), (true, pool, "CONTINUE")]
    {
        let asg = AutoScalingGroup { warm_pool, retains, ..good_group().asg };
        let hooks = Some(TerminatingHooks::default());
        let facts = Facts { groups: vec![GroupFacts { asg, hooks, ..good_group() }], ..good() };
        let fixes: Vec<_> = findings(&facts).into_iter().map(|finding| finding.fix).collect();
        let wanted =
            format!("--heartbeat-timeout 300 --default-result {result}, or --manage-lifecycle-hooks");
        assert!(fixes.iter().any(|fix| fix.ends_with(&wanted)), "{fixes:?}");
    }
}

#[test]
fn a_version_is_read_off_the_image() {
    let told = |image: &str| {
        let container = DeployedContainer { image: image.into(), ..autoscaler(&GOOD) };
        let facts = Facts { autoscalers: Autoscalers::Seen(vec![container]), ..good() };
        findings(&facts).first().map(|finding| finding.severity)
    };
    assert_eq!(told("r/cluster-autoscaler:v1.33.0@sha256:abc"), None);
    assert_eq!(told("r/cluster-autoscaler:1.29.5"), Some(Severity::Warning));
    assert_eq!(told("r/cluster-autoscaler:latest"), Some(Severity::Note));
}
