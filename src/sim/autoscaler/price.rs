//! The expander that `--expander=price` chooses: the option whose nodes cost least for what its pods would cost on machines that
//! fit exactly, with a liking for nodes of a size that suits the cluster's.
//!
//! Source: `expander/price/{price,preferred}.go`. Among equals the first is taken here, any there.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self, Pod};
use k8s_pb::api::core::v1 as pb;
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use prost::Message as _;
use serde_json::Value;

use super::Scan;
use super::scale_up::Candidate;
use super::templates::{Template, nodes};
use crate::k8s::quantity;
use crate::provider::proto::ExternalGrpcNode;

/// Added to both prices: half a core and 500 MiB.
const STABILISER: (&str, &str) = ("500m", "500Mi");
/// Unfitness of nodes with GPUs, whatever their size.
const GPU: f64 = 1_000.0;
/// Label of nodes with GPUs, as our provider names it.
const GPU_LABEL: &str = crate::template::devices::LABEL;

impl Scan<'_> {
    /// `BestOptions`: the number of the best candidate. An option whose nodes or pods have no price is passed over.
    pub(super) async fn best_by_price(
        &mut self,
        templates: &BTreeMap<String, Template>,
        coming: &[Value],
        options: &[Candidate],
    ) -> Option<usize> {
        let stabiliser = container(&[("cpu", STABILISER.0), ("memory", STABILISER.1)]);
        let stabiliser = spec_of(vec![stabiliser], Vec::new());
        // It goes on without.
        let stabiliser = self.provider.pod_price(&stabiliser, self.now).await.unwrap_or_default();
        let waiting = self.shared.cluster.without_a_place(coming);
        let mut best: Option<(usize, f64)> = None;
        'options: for (n, option) in options.iter().enumerate() {
            let Some(template) = templates.get(&option.group) else { continue };
            let node = next_node(&option.group, template);
            let Ok(node_price) = self.provider.node_price(&node, self.now).await else { continue };
            let new = nodes(template, &format!("new-{}", option.group), option.purchase.nodes);
            let left = self.shared.cluster.without_a_place(&[coming, &new].concat());
            let mut pods_price = 0.0;
            for name in waiting.iter().filter(|name| !left.contains(name)) {
                let Some(pod) = self.shared.cluster.pod(name.clone()) else { continue };
                let Ok(price) = self.provider.pod_price(&encoded(&pod), self.now).await else {
                    continue 'options;
                };
                pods_price += price;
            }
            let all_nodes = node_price * f64::from(option.purchase.nodes);
            let ratio = (all_nodes + stabiliser) / (pods_price + stabiliser);
            let score = ratio * unfitness(template, self.nodes.len(), option.purchase.nodes);
            if best.is_none_or(|(_, least)| score < least) {
                best = Some((n, score));
            }
        }
        best.map(|(n, _)| n)
    }
}

/// A group's next node as the provider is told it (`SanitizeNode`).
fn next_node(group: &str, template: &Template) -> ExternalGrpcNode {
    let labels = template["metadata"]["labels"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ExternalGrpcNode {
        name: format!("template-node-for-{group}-5577006791947779410"),
        provider_id: text(&template["spec"]["providerID"]),
        labels: labels.map(|(key, value)| (key.clone(), text(value))).collect(),
        ..ExternalGrpcNode::default()
    }
}

/// How far a node is from the size that a cluster of so many nodes wants, which counts less the more nodes are bought.
fn unfitness(template: &Template, cluster: usize, bought: i32) -> f64 {
    let figure = |name: &str| template["status"]["capacity"][name].as_str().and_then(quantity::parse);
    let has_gpu = !template["metadata"]["labels"][GPU_LABEL].is_null();
    if has_gpu || figure("nvidia.com/gpu").is_some_and(|gpus| gpus > 0.0) {
        return GPU;
    }
    // The size doubles whenever the cluster is three times as large.
    let wanted: f64 = match cluster {
        0..=2 => 1.0,
        3..=6 => 2.0,
        7..=20 => 4.0,
        21..=60 => 8.0,
        61..=200 => 16.0,
        _ => 32.0,
    };
    let cores = figure("cpu").unwrap_or_default();
    let unfitness = (wanted / cores).max(cores / wanted);
    (unfitness - 1.0) * (1.0 - (f64::from(bought - 1) / 15.0).tanh()) + 1.0
}

/// A pod as it is sent to the provider, as far as its requests go.
fn encoded(pod: &Pod) -> Vec<u8> {
    let spec = pod.spec.clone().unwrap_or_default();
    let told = |container: &v1::Container| {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.clone());
        let requests = requests.unwrap_or_default();
        let requests: Vec<_> =
            requests.iter().map(|(name, amount)| (name.as_str(), amount.0.as_str())).collect();
        pb::Container { restart_policy: container.restart_policy.clone(), ..self::container(&requests) }
    };
    let init = spec.init_containers.unwrap_or_default();
    spec_of(spec.containers.iter().map(told).collect(), init.iter().map(told).collect())
}

fn container(requests: &[(&str, &str)]) -> pb::Container {
    let amount = |&(name, text): &(&str, &str)| (name.to_owned(), Quantity { string: Some(text.to_owned()) });
    let resources = pb::ResourceRequirements {
        requests: requests.iter().map(amount).collect(),
        ..pb::ResourceRequirements::default()
    };
    pb::Container { resources: Some(resources), ..pb::Container::default() }
}

fn spec_of(containers: Vec<pb::Container>, init_containers: Vec<pb::Container>) -> Vec<u8> {
    let spec = pb::PodSpec { containers, init_containers, ..pb::PodSpec::default() };
    pb::Pod { spec: Some(spec), ..pb::Pod::default() }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_size_that_suits_the_cluster_is_fittest_and_counts_less_the_more_are_bought() {
        let node =
            |cpu: &str| json!({ "metadata": { "labels": {} }, "status": { "capacity": { "cpu": cpu } } });
        let fits = |cpu, cluster| unfitness(&node(cpu), cluster, 1);
        assert!((fits("2", 3) - 1.0).abs() < 1e-9);
        assert!((fits("8", 3) - 4.0).abs() < 1e-9);
        assert!((fits("1", 3) - 2.0).abs() < 1e-9);
        assert!((unfitness(&node("8"), 3, 100) - 1.0).abs() < 1e-3);
        let gpu = json!({ "metadata": { "labels": { GPU_LABEL: "nvidia-l4" } }, "status": { "capacity": { "cpu": "2" } } });
        assert!((unfitness(&gpu, 3, 1) - GPU).abs() < 1e-9);
    }
}
