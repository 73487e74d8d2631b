//! PodDisruptionBudgets.

use serde_json::{Value, json};

use super::{Fixture, Made};
use crate::sim::cluster::names::Name;
use crate::sim::cluster::resources::Resource;

/// A PodDisruptionBudget; see [`budget`].
#[derive(Clone, Debug)]
#[must_use]
pub struct BudgetSpec {
    name: Name,
    spec: Value,
}

/// A budget for the pods labelled `app: NAME`.
pub fn budget(name: impl Into<Name>) -> BudgetSpec {
    let name = name.into();
    let spec = json!({ "selector": { "matchLabels": { "app": name.name } } });
    BudgetSpec { name, spec }
}

impl BudgetSpec {
    /// For the pods with this label instead.
    pub fn selects(mut self, key: &str, value: &str) -> Self {
        let mut labels = json!({});
        labels[key] = json!(value);
        self.spec["selector"] = json!({ "matchLabels": labels });
        self
    }

    /// `minAvailable`, a number.
    pub fn min_available(mut self, pods: u32) -> Self {
        self.spec["minAvailable"] = json!(pods);
        self
    }

    /// `minAvailable`, a percentage.
    pub fn min_available_percent(mut self, percent: u32) -> Self {
        self.spec["minAvailable"] = json!(format!("{percent}%"));
        self
    }

    /// `maxUnavailable`, a number.
    pub fn max_unavailable(mut self, pods: u32) -> Self {
        self.spec["maxUnavailable"] = json!(pods);
        self
    }

    /// `maxUnavailable`, a percentage.
    pub fn max_unavailable_percent(mut self, percent: u32) -> Self {
        self.spec["maxUnavailable"] = json!(format!("{percent}%"));
        self
    }

    /// Unready pods may always be evicted.
    pub fn always_allows_unhealthy(mut self) -> Self {
        self.spec["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        self
    }
}

impl From<BudgetSpec> for Fixture {
    fn from(spec: BudgetSpec) -> Self {
        let budget = json!({ "metadata": { "generation": 1 }, "spec": spec.spec, "status": {} });
        Self(Made::Object(Resource::Budgets, spec.name, budget))
    }
}
