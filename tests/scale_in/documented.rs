//! docs/metrics.md is what a whole program tells: all of it, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ebbtide::clock::Clock;
use ebbtide::config::{Config, PriceSource};
use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{ExternalGrpcNode, NodeGroupsRequest, PricingNodePriceRequest};
use ebbtide::provider::{Io, Tls, TlsOptions};
use ebbtide::sim::aws::{GroupSpec, LaunchFailure, QueueSpec, TerminationCause};
use ebbtide::sim::cluster::{Event, budget, pod};
use ebbtide::sim::program::TAG;
use ebbtide::sim::world::World;
use ebbtide::slots::Peer;
use ebbtide::telemetry::captured;
use futures::StreamExt as _;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::DeleteParams;
use prost_types::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use tonic::transport::Endpoint;
use tracing::Level;

use crate::journal_queries::moments;
use crate::managed_hooks::managed;
use crate::metrics::Watched;
use crate::scene::group;
use crate::table::{Metric, Metrics, documented};

/// What is on pages: names with the endings that tables have, labels with the values that were seen.
fn told(pages: &[String]) -> Metrics {
    let mut metrics = Metrics::new();
    for page in pages {
        let mut current = (String::new(), String::new());
        for line in page.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
                let ending = match kind {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                current = (format!("{name}{ending}"), kind.to_owned());
            } else if line.starts_with("ebbtide_") {
                let metric = metrics.entry(current.0.clone()).or_default();
                metric.kind.clone_from(&current.1);
                for (label, value) in labels(line).filter(|(label, _)| *label != "le") {
                    metric.labels.entry(label.to_owned()).or_default().insert(value.to_owned());
                }
            }
        }
    }
    metrics
}

fn labels(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let inner = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map(|(inner, _)| inner);
    let pairs = inner.into_iter().flat_map(|inner| inner.split("\",")).filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (label, value) = pair.split_once("=\"").expect("a label");
        (label, value.trim_end_matches('"'))
    })
}

/// Pages of a program that reads a queue, manages its hooks and drains a node on which a budget blocks.
async fn pages_of_a_scale_in() -> Vec<String> {
    let world = World::plain(1);
    world.aws.add_group(group(2).tag("kubernetes.io/cluster/prod", "owned"));
    world.aws.add_group(GroupSpec::named("dry").size(0, 9, 0).template("m5.large").tag(TAG, "true"));
    world.aws.fail_launches("dry", LaunchFailure::InsufficientCapacity, u32::MAX);
    world.aws.set_desired("dry", 1);
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
    world.aws.send_events_to(&queue);
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let client = futures::stream::iter([Ok((Box::new(theirs) as Box<dyn Io>, Peer::Local))]);
    let incoming = Box::pin(client.chain(futures::stream::pending()));
    world.aws.set_spot_price("m5.large", "us-east-1a", "0.04");
    world.aws.list_price("m5.large", "0.096");
    let prices = Some(PriceSource::Aws);
    let config = Config { queue_urls: vec![queue], prices, ..managed(false) };
    let scene = Watched::reached_by(world, config, incoming, None).await;
    let mut ours = Some(TokioIo::new(ours));
    let connector =
        tower::service_fn(move |_| std::future::ready(ours.take().ok_or(std::io::Error::other("once"))));
    let channel = Endpoint::from_static("http://ebbtide").connect_with_connector(connector).await;
    let mut client = CloudProviderClient::new(channel.expect("connected"));
    client.node_groups(NodeGroupsRequest {}).await.expect("answered");
    let labels = [("node.kubernetes.io/instance-type".to_owned(), "m5.large".to_owned())].into();
    let node = Some(ExternalGrpcNode { labels, ..ExternalGrpcNode::default() });
    let (start_timestamp, end_timestamp) =
        (Some(Timestamp::default()), Some(Timestamp { seconds: 1, nanos: 0 }));
    let asked = PricingNodePriceRequest { node, start_timestamp, end_timestamp, ..Default::default() };
    client.pricing_node_price(asked).await.expect("a price");
    scene.until_it_tells(r#"ebbtide_lifecycle_hook_changes_total{change="created",outcome="ok"}"#, 1.0).await;

    let (cluster, node) = (&scene.world.cluster, scene.nodes[0].as_str());
    cluster.add(budget("held").min_available(1)).add(pod("held").on(node)).add(pod("web").on(node));
    scene.until(|w| moments(w, |e| matches!(e, Event::PodRunning { .. })).len() == 2).await;
    let provider_id = cluster.node(node).and_then(|node| node.spec?.provider_id).expect("an instance");
    scene.world.aws.terminate(provider_id.rsplit('/').next().expect("its id"), TerminationCause::Rebalance);
    scene.until_it_tells(r#"ebbtide_scale_in_pods_blocked{budget="default/held"}"#, 1.0).await;
    scene.until_it_tells(r#"ebbtide_launch_failures_total{group="dry",class="out_of_resources"}"#, 1.0).await;
    scene.until_it_tells("ebbtide_scale_in_nearest_limit_seconds", 1.0).await;
    let blocked = scene.scrape().await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(cluster.client());
    budgets.delete("held", &DeleteParams::default()).await.expect("deleted");
    let ended = r#"ebbtide_scale_ins_ended_total{cause="lifecycle-hook",outcome="released"}"#;
    scene.until_it_tells(ended, 1.0).await;
    vec![blocked, scene.scrape().await]
}

/// A program that shows one certificate, which ends then, at both addresses. It has refused a client.
async fn with_tls(test: &str, ends: (i32, u8, u8)) -> Watched {
    let mut params = CertificateParams::new(vec!["ebbtide".to_owned()]).expect("a name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(ends.0, ends.1, ends.2);
    let key = KeyPair::generate().expect("a key");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&directory).expect("a directory");
    let (cert, key_file) = (directory.join("tls.crt"), directory.join("tls.key"));
    fs::write(&cert, params.self_signed(&key).expect("signed").pem()).expect("written");
    fs::write(&key_file, key.serialize_pem()).expect("written");
    let client_ca = Some(cert.clone());
    let options =
        TlsOptions { cert, key: key_file, client_ca, client_crl: None, allowed_clients: Vec::new() };
    let (ours, theirs) = tokio::io::duplex(1);
    drop(ours);
    let probe = futures::stream::iter([Ok((Box::new(theirs) as Box<dyn Io>, Peer::Local))]);
    let incoming = Box::pin(probe.chain(futures::stream::pending()));
    let world = World::plain(1);
    world.aws.add_group(group(1));
    let load = |options| Tls::load(options, Clock::system()).expect("good files");
    let of_expander = load(TlsOptions { client_ca: None, ..options.clone() });
    let expander = Some((futures::stream::pending().boxed(), of_expander));
    let config = ebbtide::sim::program::config();
    let scene = Watched::reached_by_all(world, config, incoming, Some(load(options)), expander).await;
    scene.until_it_tells(r#"ebbtide_tls_clients_refused_total{reason="went_away"}"#, 1.0).await;
    for file in ["certificate", "client_authority", "expander_certificate"] {
        let series = format!("ebbtide_tls_not_after_timestamp_seconds{{file=\"{file}\"}}");
        scene.until_it_tells(&series, 1.0).await;
    }
    scene
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_both_addresses_show_is_warned_about_once_before_it_ends() {
    let (log, _guard) = captured::log(Level::WARN);
    // The world begins with the year.
    let _scene = with_tls("ends-soon", (2026, 1, 8)).await;
    assert_eq!(log.text().matches("expires soon").count(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn the_tables_have_every_metric_of_the_program_with_its_labels_and_no_other() {
    let mut pages = pages_of_a_scale_in().await;
    pages.push(with_tls("documented", (4000, 1, 1)).await.scrape().await);
    let (documented, told) = (documented(), told(&pages));
    let names = |metrics: &Metrics| metrics.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&documented), names(&told), "left: documented, right: told");
    for (name, documented) in documented {
        let told = &told[&name];
        assert_eq!(documented.kind, told.kind, "{name}");
        let labels = |metric: &Metric| metric.labels.keys().cloned().collect::<Vec<_>>();
        assert_eq!(labels(&documented), labels(told), "{name}");
        for (label, values) in documented.labels.iter().filter(|(_, values)| !values.is_empty()) {
            let unknown: Vec<_> = told.labels[label].difference(values).collect();
            assert!(unknown.is_empty(), "{name}, {label}: {unknown:?}");
        }
    }
}
