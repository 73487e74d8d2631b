//! The simulated API server is held to what a real one was heard to answer.
//!
//! `kubernetes.json` has exchanges with a kube-apiserver 1.33.3, in their order. Each is put to the simulated one, whose
//! cluster is brought to where the real one was. Everything in the recorded answer must be in ours, save for what
//! [`DIFFERENT`] lists with its reason; what is listed and does not differ any more fails too.

mod compare;

use std::time::Duration;

use ebbtide::clock::Clock;
use ebbtide::sim::cluster::{Cluster, Rights, Timing, budget, node, pod};
use ebbtide::sim::http::{Request, World};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use compare::differences;

/// What our answers lack or say otherwise: exchange, where in the answer, why.
const DIFFERENT: [(u32, &str, &str); 24] = [
    (10, "/status/allocatable", MADE_UP),
    (10, "/status/capacity", MADE_UP),
    (10, "/status/daemonEndpoints", MADE_UP),
    (10, "/status/nodeInfo", MADE_UP),
    (15, "/status/containerStatuses", MADE_UP),
    (15, "/status/podIP", MADE_UP),
    (15, "/status/qosClass", UNREAD),
    (25, "/status/currentHealthy", "the recorded controller had looked at the budget once more by then"),
    (34, "/spec/containers", UNREAD),
    (34, "/spec/dnsPolicy", UNREAD),
    (34, "/spec/enableServiceLinks", UNREAD),
    (34, "/spec/preemptionPolicy", UNREAD),
    (34, "/spec/priority", "none is zero to whoever reads it"),
    (34, "/spec/schedulerName", UNREAD),
    (35, "/items/0/spec/containers", UNREAD),
    (35, "/items/0/spec/dnsPolicy", UNREAD),
    (35, "/items/0/spec/enableServiceLinks", UNREAD),
    (35, "/items/0/spec/preemptionPolicy", UNREAD),
    (35, "/items/0/spec/priority", "none is zero to whoever reads it"),
    (35, "/items/0/spec/schedulerName", UNREAD),
    (35, "/items/0/status/qosClass", UNREAD),
    (36, "/metadata/continue", OPAQUE),
    (37, "/message", OPAQUE),
    (39, "/object/message", "it names the oldest version there is, which is another one"),
];

/// Nodes and containers of the recording were made up by hand.
const MADE_UP: &str = "the recorded nodes and containers were made up, and say other things of themselves";
/// Defaults and derived fields that nobody here reads.
const UNREAD: &str = "nobody here reads it";
/// <https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks>
const OPAQUE: &str = "a token is of the server that made it; what it finds in somebody else's is its own";

/// Names that the recorded server drew, in the places of which any will do.
const DRAWN: [&str; 2] = ["e-mzkdl", "e-mwvzr"];

/// The token of nobody, and that of a user without a role.
const STRANGER: &str = "stranger";

#[derive(Deserialize)]
struct Transcript {
    exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exchange {
    n: u32,
    what: String,
    method: String,
    path: String,
    #[serde(default)]
    query: serde_json::Map<String, Value>,
    #[serde(default)]
    body: Value,
    #[serde(default)]
    content_type: Option<String>,
    status: u16,
    answer: Value,
}

/// The simulated cluster, and what was learnt of it on the way.
struct Replay {
    cluster: Cluster,
    /// The Lease as it was before and after the last write.
    leases: [Value; 2],
    _alive: JoinSet<()>,
}

impl Replay {
    async fn begin() -> Self {
        let cluster = Cluster::new(Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a moment")), 1);
        cluster.set_timing(Timing::brisk());
        let mut alive = JoinSet::new();
        let living = cluster.clone();
        alive.spawn(async move { living.run().await });
        let labelled = |name: &str| {
            node(name)
                .label("node.kubernetes.io/instance-type", "m5.large")
                .label("topology.kubernetes.io/region", "us-east-1")
                .label("topology.kubernetes.io/zone", "us-east-1a")
                .cpu(2)
                .memory_mib(7 * 1024)
        };
        cluster.add(labelled("n1").provider_id("aws:///us-east-1a/i-1")).add(labelled("n2"));
        for (name, grace) in [
            ("a", 30),
            ("b", 30),
            ("c", 30),
            ("d", 30),
            ("e", 30),
            ("f", 30),
            ("g", 60),
            ("h", 9_000_000_000_000_000_000_i64),
        ] {
            let exits = if name == "g" { 50 } else { 3 };
            let spec = pod(name).on("n1").grace(grace).exits_after(exits);
            cluster.add(spec.annotation("lab/exit-after", &exits.to_string()));
        }
        cluster.add(pod("doomed/x").on("n1"));
        cluster.add(budget("tight").selects("app", "c").max_unavailable(0));
        for name in ["one", "two"] {
            cluster.add(budget(name).selects("app", "d").min_available(1));
        }
        cluster.add(budget("room").selects("app", "e").min_available(0));
        cluster.add_user(STRANGER, "system:serviceaccount:default:x", Rights::None);
        tokio::time::sleep(Duration::from_secs(10)).await;
        Self { cluster, leases: [Value::Null, Value::Null], _alive: alive }
    }

    /// What happened between the exchanges.
    async fn before(&self, n: u32) {
        match n {
            26 => {
                // Who is first, the controller or the eviction, was a race; the controller won.
                self.cluster.add(budget("late").selects("app", "f").min_available(0));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            27 => self.cluster.terminate_namespace("doomed"),
            35 => tokio::time::sleep(Duration::from_millis(100)).await,
            39 => self.cluster.compact_history(),
            _ => {}
        }
    }

    /// The body of an exchange, with the ids, versions and moments that are meant.
    fn body(&self, exchange: &Exchange) -> Vec<u8> {
        let (n, name) = (exchange.n, exchange.path.split('/').nth(6).unwrap_or_default());
        let body = match n {
            2 => json!({ "metadata": { "resourceVersion": "1", "annotations": { "a": "b" } } }),
            43 => with_holder(&self.leases[1]),
            44 => with_holder(&self.leases[0]),
            45 => json!({ "metadata": { "name": "big" }, "data": { "x": "x".repeat(1024 * 1024 + 10) } }),
            47 => json!({
                "metadata": { "generateName": "e-" }, "eventTime": "2026-01-01T00:00:00.000000Z",
                "reportingController": "ebbtide", "reportingInstance": "x", "action": "ScaleIn", "reason": "R",
                "type": "Normal", "regarding": { "kind": "Node", "name": "n1" }, "note": "n".repeat(1_025),
            }),
            _ => exchange.body.clone(),
        };
        if body.is_null() {
            return Vec::new();
        }
        let uid = match n {
            14 | 29 | 30 => self.uid(name),
            _ => "00000000-0000-0000-0000-000000000000".to_owned(),
        };
        let text = body.to_string().replace("\"UID\"", &format!("\"{uid}\""));
        text.replace("\"TIME\"", "\"2026-01-01T00:00:00.000000Z\"").into_bytes()
    }

    fn uid(&self, pod: &str) -> String {
        self.cluster.pod(pod).and_then(|pod| pod.metadata.uid).unwrap_or_default()
    }

    async fn ask(&self, exchange: &Exchange) -> (u16, Value) {
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(exchange.query.iter().map(|(key, value)| (key, value.as_str().unwrap_or_default())))
            .finish();
        let mut request = http::Request::builder()
            .method(exchange.method.as_str())
            .uri(format!("{}?{query}", exchange.path));
        if let Some(content_type) = &exchange.content_type {
            request = request.header(http::header::CONTENT_TYPE, content_type);
        }
        let token = match exchange.n {
            50 => Some("nobody"),
            51 => Some(STRANGER),
            _ => None,
        };
        if let Some(token) = token {
            request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request: Request = request.body(self.body(exchange).into()).expect("a request");
        let response = self.cluster.call(request).await.expect("an answer");
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let frame = body.frame().await.expect("a body").expect("a frame");
        let bytes = frame.into_data().expect("data");
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }
}

fn with_holder(lease: &Value) -> Value {
    let mut lease = lease.clone();
    lease["spec"]["holderIdentity"] = json!("b");
    lease
}

#[tokio::test(start_paused = true)]
async fn the_simulated_api_server_answers_as_a_real_one_was_heard_to() {
    let recorded =
        DRAWN.iter().fold(include_str!("kubernetes.json").to_owned(), |text, name| text.replace(name, "UID"));
    let transcript: Transcript = serde_json::from_str(&recorded).expect("the recorded exchanges");
    assert_eq!(transcript.exchanges.len(), 51);
    let mut replay = Replay::begin().await;
    let mut unexpected = Vec::new();
    let mut unseen = DIFFERENT.to_vec();
    for exchange in &transcript.exchanges {
        replay.before(exchange.n).await;
        let (status, answer) = replay.ask(exchange).await;
        if exchange.path.contains("/leases") && status < 300 {
            replay.leases = [replay.leases[1].clone(), answer.clone()];
        }
        let mut found = Vec::new();
        if status != exchange.status {
            found.push(("/status code".to_owned(), format!("{status} for {}", exchange.status)));
        }
        // A watch is recorded as the list of its events.
        let expected = match &exchange.answer {
            Value::Array(events) => &events[0],
            answer => answer,
        };
        differences(expected, &answer, "", &mut found);
        for (path, how) in found {
            let lists = |(n, listed, _): &(u32, &str, &str)| *n == exchange.n && path.starts_with(listed);
            unseen.retain(|one| !lists(one));
            if !DIFFERENT.iter().any(lists) {
                unexpected.push(format!("{} ({}) {path}: {how}", exchange.n, exchange.what));
            }
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    assert_eq!(unseen, [], "listed, and not different");
}
