//! What is fed: each target is production's reader and what it feeds, with properties of its own.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ebbtide::aws::{
    AutoScalingGroup, Content, Instance, LaunchSpec, Lifecycle, TypeInfo, UserData, type_table,
};
use ebbtide::cluster::{Budget, Cordon, NodeView, Nodes, PodView, Sink as _, Store};
use ebbtide::config::{Command, Config};
use ebbtide::groups::hooks::{HookState, TerminatingHooks};
use ebbtide::groups::selector::Selectors;
use ebbtide::k8s::{ProviderId, quantity};
use ebbtide::scale_in::preview::{Facts, Member, Place, preview};
use ebbtide::scale_in::record::{self, Cause, Written};
use ebbtide::template::learned::config_map;
use ebbtide::template::tags::{self, NodeTags};
use ebbtide::template::{self, LearnedStore, Template};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Deserialize;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer};

use crate::rpc;
use crate::run::Told;
use crate::words::{FLAGS, LEARNED, NOTICE, OBJECTS, RECORD, RPC, TAGS, USER_DATA};

/// What is fed with inputs.
pub(crate) struct Target {
    /// Its name, and its folder's in the corpus.
    pub(crate) name: &'static str,
    /// The longest input that is let in.
    pub(crate) largest: usize,
    /// Characters of the longest line about an input.
    pub(crate) line: usize,
    /// Words that mean something to it.
    pub(crate) words: &'static [&'static str],
    /// Changed inputs in `cargo test`: some seconds without optimisation.
    pub(crate) usual: u64,
    /// Feeds it. An error is a property that does not hold.
    pub(crate) feed: fn(&[u8]) -> Result<Told, String>,
}

/// The largest annotation: all of an object's together have so many bytes at most.
const ANNOTATION: usize = 1 << 18;
/// The largest message of a queue, and of a ConfigMap.
const MEGABYTE: usize = 1 << 20;

/// What is written into a ConfigMap has fewer bytes: groups that do not fit are left out.
const CONFIG_MAP: usize = 1_000_000;

/// A short line, and one that has names of a group and of nodes, of 253 characters each, in it.
const LINE: usize = 300;
const NAMES: usize = 800;

/// One takes up to three milliseconds without optimisation, or ten times as long.
const QUICK: u64 = 2_000;
const SLOW: u64 = 200;

/// All of them.
pub(crate) const TARGETS: &[Target] = &[
    Target { name: "notices", largest: MEGABYTE + 1, line: LINE, words: NOTICE, usual: QUICK, feed: notices },
    Target { name: "tags", largest: 1 << 16, line: LINE, words: TAGS, usual: QUICK, feed: group_tags },
    Target {
        name: "provider-ids",
        largest: 1 << 12,
        line: LINE,
        words: &["aws:///", "i-", "i-placeholder-", "/"],
        usual: QUICK,
        feed: provider_ids,
    },
    Target {
        name: "types",
        largest: 1 << 16,
        line: LINE,
        words: &["\t", "\n", ";", ":", "-", "m5.large", "arm64", "prefixes"],
        usual: QUICK,
        feed: types,
    },
    Target { name: "rpc", largest: 4 << 20, line: NAMES, words: RPC, usual: QUICK, feed: rpc::feed },
    Target { name: "record", largest: ANNOTATION, line: LINE, words: RECORD, usual: QUICK, feed: records },
    Target { name: "cordon", largest: ANNOTATION, line: LINE, words: RECORD, usual: QUICK, feed: cordons },
    Target { name: "learned", largest: MEGABYTE, line: LINE, words: LEARNED, usual: QUICK, feed: learned },
    Target {
        name: "user-data",
        largest: 1 << 16,
        line: LINE,
        words: USER_DATA,
        usual: QUICK,
        feed: user_data,
    },
    Target { name: "flags", largest: 1 << 14, line: LINE, words: FLAGS, usual: SLOW, feed: flags },
    Target { name: "objects", largest: 1 << 16, line: LINE, words: OBJECTS, usual: SLOW, feed: objects },
];

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("in range")
}

/// As the SDK and `kube` give texts: what is no UTF-8 never comes.
fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

fn holds(what: bool, told: impl FnOnce() -> String) -> Result<(), String> {
    if what { Ok(()) } else { Err(told()) }
}

thread_local! {
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the fields of log lines, each as one.
struct Lines;

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Fields;
        impl Visit for Fields {
            fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
                LOG.with_borrow_mut(|log| log.push(format!("{value:?}")));
            }
        }
        event.record(&mut Fields);
    }
}

/// What was logged meanwhile.
fn logged(work: impl FnOnce()) -> Vec<String> {
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt as _;
    LOG.take();
    tracing::subscriber::with_default(
        tracing_subscriber::registry().with(Lines.with_filter(LevelFilter::INFO)),
        work,
    );
    LOG.take()
}

#[expect(clippy::unnecessary_wraps, reason = "as every target")]
fn notices(input: &[u8]) -> Result<Told, String> {
    Ok(match Content::read(&text(input), Timestamp::UNIX_EPOCH) {
        Content::Notices(notices) => {
            let lines = notices.iter().take(3).map(|notice| format!("{:?}", notice.about)).collect();
            Told { accepted: true, lines }
        }
        Content::Nothing(line) | Content::Malformed(line) => Told { accepted: false, lines: vec![line] },
    })
}

/// Templates of a group with these tags, types and lessons, for each way to choose among its types.
fn templates(
    tags: &NodeTags,
    types: &[&TypeInfo],
    learned: Option<&template::learned::Learned>,
) -> Result<(), String> {
    let (zones, specs) = (["z1".to_owned()], [Arc::new(LaunchSpec::default())]);
    let types: Vec<_> = types.iter().map(|info| template::Candidate { info, specs: &specs }).collect();
    let facts = template::Facts {
        group: "web",
        region: "us-east-1",
        zones: &zones,
        zone_id: None,
        types: &types,
        market: None,
        eks: None,
        learned,
        tags,
    };
    for mixed in [template::MixedInstances::Min, template::MixedInstances::Max] {
        let settings = template::Settings { mixed, ..template::Settings::default() };
        let Ok(template) = Template::of(&facts, &settings) else { continue };
        for (resource, figure) in template.figures().1 {
            let read = quantity::parse(&figure);
            holds(read.is_some_and(f64::is_finite), || format!("{resource} is {figure:.100}"))?;
        }
    }
    Ok(())
}

/// `KEY=VALUE`, one a line.
fn group_tags(input: &[u8]) -> Result<Told, String> {
    let text = text(input);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pairs: BTreeMap<_, _> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let (read, bad) = tags::read(&pairs);
    let _ = (
        tags::drain_timeout(&pairs),
        Selectors::default().of_cluster(Some("a".into())).is_of_our_cluster(&pairs),
    );
    let info = type_table::find("g4dn.xlarge").ok_or("in the table")?;
    templates(&read, &[&info], None)?;
    Ok(Told { accepted: bad.is_empty(), lines: bad.iter().map(|tag| tag.expected.to_owned()).collect() })
}

fn provider_ids(input: &[u8]) -> Result<Told, String> {
    match text(input).parse::<ProviderId>() {
        Ok(id) => {
            let again = id.to_string().parse::<ProviderId>();
            holds(again == Ok(id.clone()), || format!("{id} is read as {again:?}"))?;
            Ok(Told { accepted: true, lines: vec![] })
        }
        Err(error) => Ok(Told { accepted: false, lines: vec![error.to_string()] }),
    }
}

/// A table, as an operator's own build may have it, and a name from AWS in front of it.
fn types(input: &[u8]) -> Result<Told, String> {
    let text = text(input);
    let (name, table) = text.split_once('\n').unwrap_or((&text, ""));
    let _ = type_table::find(name);
    let Some(info) = type_table::find_in(table, name) else { return Ok(Told::default()) };
    let rendered = type_table::render(vec![info.clone()], "here");
    let again = type_table::find_in(&rendered, name);
    holds(again.as_ref() == Some(&info), || format!("{info:?} is read as {again:?}"))?;
    templates(&NodeTags::default(), &[&info], None)?;
    Ok(Told { accepted: true, lines: vec![] })
}

fn records(input: &[u8]) -> Result<Told, String> {
    match record::read(&text(input)) {
        Written::Record(read) => {
            let again = record::read(&record::write(&read));
            holds(again == Written::Record(read.clone()), || format!("{read:?} is read as {again:?}"))?;
            Ok(Told { accepted: true, lines: vec![] })
        }
        Written::Request(request) => {
            let since = request.since.unwrap_or_else(now).round(jiff::Unit::Second).unwrap_or_else(|_| now());
            let again = record::read(&request.waiting(since));
            let expected = Written::Request(record::Request { since: Some(since), ..request });
            holds(again == expected, || format!("{request:?} is read as {again:?}"))?;
            Ok(Told { accepted: true, lines: vec!["a request".to_owned()] })
        }
        Written::Unreadable(text) => {
            holds(text.chars().count() <= 100, || format!("{} bytes are kept", text.len()))?;
            Ok(Told::default())
        }
    }
}

fn cordons(input: &[u8]) -> Result<Told, String> {
    let read = Cordon::read(&text(input));
    let again = Cordon::read(&read.write());
    holds(again == read, || format!("{read:?} is read as {again:?}"))?;
    Ok(Told { accepted: read.until() > Timestamp::UNIX_EPOCH, lines: vec![] })
}

fn learned(input: &[u8]) -> Result<Told, String> {
    let text = text(input);
    let mut read = None;
    let lines = logged(|| read = config_map::read(&text));
    let Some(read) = read else { return Ok(Told { accepted: false, lines }) };
    let store = LearnedStore::new(Arc::new(Nodes::default()));
    store.load(read.clone());
    let again = config_map::read(&config_map::written(&store)).unwrap_or_default();
    holds(again.iter().all(|(group, learned)| read.get(group) == Some(learned)), || {
        "what is written is not what was read".to_owned()
    })?;
    let size = serde_json::to_string(&read).map_err(|error| error.to_string())?.len() + 2 * read.len();
    holds(again.len() == read.len() || size > CONFIG_MAP, || "a group that fits was left out".to_owned())?;
    let node: NodeView = (&serde_json::from_value::<Node>(serde_json::json!({
        "metadata": { "name": "n-1", "labels": { "node.kubernetes.io/instance-type": "m5.large", "team": "blue" } },
        "spec": { "providerID": "aws:///z1/i-1" },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "capacity": { "cpu": "2", "memory": "8Gi" },
        },
    }))
    .map_err(|error| error.to_string())?)
        .into();
    let nodes = Nodes::default();
    nodes.apply(node);
    let store = LearnedStore::new(Arc::new(nodes));
    store.load(read.clone());
    for (name, learned) in read.iter().take(20) {
        let instance = Instance { id: "i-1".into(), lifecycle: Lifecycle::InService, ..Instance::default() };
        let group =
            AutoScalingGroup { name: name.clone(), instances: vec![instance], ..AutoScalingGroup::default() };
        let _ = store.learn(&Arc::new(group), &learned.revisions, &[], None, now());
        let types: Vec<_> = learned.types.keys().take(20).filter_map(|name| type_table::find(name)).collect();
        templates(&NodeTags::default(), &types.iter().collect::<Vec<_>>(), Some(learned))?;
    }
    Ok(Told { accepted: lines.is_empty(), lines })
}

/// As it stands and as EC2 has it, in Base64.
fn user_data(input: &[u8]) -> Result<Told, String> {
    let raw = UserData::read(Some(&text(input)));
    let read = UserData::read(Some(&aws_smithy_types::base64::encode(input)));
    let accepted = raw != UserData::default() || read != UserData::default();
    holds(read.max_pods.is_none_or(|pods| (1..=2_000).contains(&pods)), || format!("{read:?}"))?;
    Ok(Told {
        accepted,
        lines: vec![format!("{} {} {}", read.max_pods.is_some(), read.local_raid0, read.bottlerocket)],
    })
}

/// Arguments, one a line; and the command line of a container's first process, beside `check`.
#[expect(clippy::unnecessary_wraps, reason = "as every target")]
fn flags(input: &[u8]) -> Result<Told, String> {
    let text = text(input);
    let args = std::iter::once("ebbtide").chain(text.split('\n')).map(Into::into);
    let given = Config::parse(args, |_| None, || input.to_vec());
    let beside = Config::parse(["ebbtide", "check"].map(Into::into), |_| None, || input.to_vec());
    let told = |read: Result<Command, ebbtide::config::Problems>| match read {
        Ok(_) => (true, vec![]),
        Err(problems) => (false, problems.all.iter().map(ToString::to_string).collect()),
    };
    let ((accepted, mut lines), (also, more)) = (told(given), told(beside));
    lines.extend(more);
    Ok(Told { accepted: accepted || also, lines })
}

/// What the API server may have of a node.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Objects {
    node: Node,
    pods: Vec<Pod>,
    budgets: Vec<PodDisruptionBudget>,
}

/// A Node, pods and budgets, and a scale-in of the node to its end.
#[expect(clippy::unnecessary_wraps, reason = "as every target")]
fn objects(input: &[u8]) -> Result<Told, String> {
    let Ok(objects) = serde_json::from_slice::<Objects>(input) else { return Ok(Told::default()) };
    let budgets = Store::<Budget>::default();
    for budget in objects.budgets {
        budgets.apply(budgets.reduce(budget));
    }
    let record = NodeView::from(&objects.node).record;
    let facts = Facts {
        node: objects.node,
        pods: objects.pods.iter().take(5).map(PodView::from).collect(),
        budgets: Arc::new(budgets),
        daemon_sets: Some(BTreeSet::from(["ds".to_owned()])),
        attachments: 0,
        place: Place::In(Member {
            group: "web".into(),
            lifecycle: Lifecycle::InService,
            hook: HookState::Known(TerminatingHooks::default()),
            drain_timeout: Some(tags::DrainTimeout::After(std::time::Duration::from_mins(5))),
            removable: Ok(()),
        }),
        settings: ebbtide::scale_in::Settings::default(),
    };
    let told = preview(&facts, Cause::Operator, now());
    // Its lines have names in them, which the API server keeps short.
    let ended = std::mem::discriminant(&told.end);
    let accepted = record.is_some_and(|record| record.record().is_some());
    Ok(Told { accepted, lines: vec![format!("{ended:?} {}", told.steps.len().min(9))] })
}
