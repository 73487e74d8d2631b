//! How many launches fail, and since when none has come.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::clock::{Clock, elapsed};
use crate::k8s::GroupName;
use crate::telemetry::gauges::at_scrape;

/// What is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Class {
    out_of_resources,
    other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    group: String,
    class: Class,
}

/// Counts launches.
#[derive(Clone, Debug)]
pub struct LaunchMetrics {
    failures: Family<Labels, Counter>,
    /// When an instance came last; before the first, when the process began.
    came: Arc<Mutex<Timestamp>>,
    clock: Clock,
}

impl LaunchMetrics {
    /// None so far.
    pub fn new(clock: Clock) -> Self {
        Self { failures: Family::default(), came: Arc::new(Mutex::new(clock.now())), clock }
    }

    /// Registers them.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ebbtide_launch_failures",
            "Scaling activities that failed to launch one instance or several, by group and by whether capacity or quota is lacking",
            self.failures.clone(),
        );
        let (came, clock) = (Arc::clone(&self.came), self.clock.clone());
        at_scrape(
            registry,
            "ebbtide_launch_age",
            "Time since a refresh last showed a new instance in a group, or since the process started",
            Some(Unit::Seconds),
            move || Some(elapsed(*came.lock(), clock.now()).as_secs_f64()),
        );
    }

    /// Counts a failed launch.
    pub(crate) fn failed(&self, group: &GroupName, out_of_resources: bool) {
        let class = if out_of_resources { Class::out_of_resources } else { Class::other };
        self.failures.get_or_create(&Labels { group: group.to_string(), class }).inc();
    }

    /// Drops what is counted of a group that is not there any more.
    pub(crate) fn forget(&self, group: &GroupName) {
        for class in [Class::out_of_resources, Class::other] {
            self.failures.remove(&Labels { group: group.to_string(), class });
        }
    }

    /// Notes that an instance has come.
    pub(crate) fn came(&self, now: Timestamp) {
        *self.came.lock() = now;
    }
}
