//! What a pod requests, and so costs on a machine that fits exactly. Pure.

use std::collections::BTreeMap;

use k8s_pb::api::core::v1::{Container, Pod, PodSpec};
use k8s_pb::apimachinery::pkg::api::resource::Quantity;

use super::book::GIB;
pub use super::book::Size;
use crate::k8s::{names, quantity};

/// What the scheduler reserves for a pod: what it asks for as a whole (CPU and memory), else the sum over its containers, or what its
/// initialisation needs if that is more; and its overhead. What is no quantity counts as nothing.
///
/// Source: `PodRequests` in
/// [component-helpers](https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/component-helpers/resource/helpers.go).
pub fn requests(pod: &Pod) -> Size {
    let Some(spec) = &pod.spec else { return Size::default() };
    let of = |name: &str| {
        let overhead = quantity_in(&spec.overhead, name);
        let whole = spec
            .resources
            .as_ref()
            .filter(|whole| name != names::NVIDIA_GPU && whole.requests.contains_key(name));
        let own = whole.map_or_else(|| requested(spec, name), |whole| quantity_in(&whole.requests, name));
        own + overhead
    };
    Size { vcpus: of("cpu"), gib: of("memory") / GIB, gpus: of(names::NVIDIA_GPU) }
}

fn requested(spec: &PodSpec, name: &str) -> f64 {
    // Sidecars are init containers that go on; those that begin before an init container run beside it.
    let (mut sidecars, mut most) = (0.0, 0.0_f64);
    for container in &spec.init_containers {
        let own = of_container(container, name);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += own;
        } else {
            most = most.max(sidecars + own);
        }
    }
    let running: f64 = spec.containers.iter().map(|container| of_container(container, name)).sum();
    most.max(running + sidecars)
}

fn of_container(container: &Container, name: &str) -> f64 {
    container.resources.as_ref().map_or(0.0, |resources| quantity_in(&resources.requests, name))
}

fn quantity_in(all: &BTreeMap<String, Quantity>, name: &str) -> f64 {
    all.get(name).and_then(|found| quantity::parse(found.string.as_deref()?)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_pb::api::core::v1::ResourceRequirements;

    use super::*;

    fn container(cpu: &str, memory: &str) -> Container {
        let quantity = |text: &str| Quantity { string: Some(text.to_owned()) };
        let requests = [("cpu".to_owned(), quantity(cpu)), ("memory".to_owned(), quantity(memory))];
        let resources = ResourceRequirements { requests: requests.into(), ..ResourceRequirements::default() };
        Container { resources: Some(resources), ..Container::default() }
    }

    fn sidecar(cpu: &str, memory: &str) -> Container {
        Container { restart_policy: Some("Always".to_owned()), ..container(cpu, memory) }
    }

    fn pod(init_containers: Vec<Container>, containers: Vec<Container>) -> Pod {
        Pod { spec: Some(PodSpec { init_containers, containers, ..PodSpec::default() }), ..Pod::default() }
    }

    fn size(vcpus: f64, gib: f64) -> Size {
        Size { vcpus, gib, gpus: 0.0 }
    }

    #[test]
    fn a_pod_requests_what_the_scheduler_reserves_for_it() {
        let two = || vec![container("500m", "1Gi"), container("1", "3Gi")];
        assert_eq!(requests(&pod(vec![], two())), size(1.5, 4.0));
        assert_eq!(requests(&pod(vec![container("4", "1Gi")], two())), size(4.0, 4.0), "the most of either");
        assert_eq!(requests(&pod(vec![sidecar("1", "1Gi")], two())), size(2.5, 5.0), "a sidecar goes on");
        let beside = vec![sidecar("1", "1Gi"), container("3", "1Gi")];
        assert_eq!(requests(&pod(beside, two())), size(4.0, 5.0), "a sidecar runs beside what begins later");
    }

    #[test]
    fn what_a_pod_requests_as_a_whole_beats_its_containers() {
        let mut pod = pod(vec![sidecar("1", "1Gi")], vec![container("500m", "1Gi")]);
        let spec = pod.spec.as_mut().expect("it");
        spec.resources = container("4", "lots").resources;
        assert_eq!(requests(&pod), size(4.0, 0.0));
        let whole = pod.spec.as_mut().and_then(|spec| spec.resources.as_mut()).expect("it");
        whole.requests.remove("memory");
        assert_eq!(requests(&pod), size(4.0, 2.0), "of memory it says nothing");
    }

    #[test]
    fn a_pod_without_requests_or_without_sense_requests_nothing() {
        assert_eq!(requests(&Pod::default()), Size::default());
        assert_eq!(requests(&pod(vec![], vec![Container::default()])), Size::default());
        assert_eq!(requests(&pod(vec![], vec![container("-1", "lots")])), Size::default());
    }
}
