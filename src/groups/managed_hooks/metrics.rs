//! Metrics of hooks that ebbtide manages.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
pub(super) enum Change {
    created,
    repaired,
    retention,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Outcome {
    ok,
    failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    change: Change,
    outcome: Outcome,
}

/// Counts changes of groups.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics(Family<Labels, Counter>);

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "ebbtide_lifecycle_hook_changes",
            "What --manage-lifecycle-hooks has changed of groups: hooks created and repaired, retention set",
            self.0.clone(),
        );
    }

    pub(super) fn count(&self, change: Change, is_ok: bool) {
        let outcome = if is_ok { Outcome::ok } else { Outcome::failed };
        self.0.get_or_create(&Labels { change, outcome }).inc();
    }
}
