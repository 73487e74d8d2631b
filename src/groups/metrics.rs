//! How old what is known of the groups is: `ebbtide_look_age_seconds`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::Groups;
use crate::clock::{Clock, elapsed};

/// Registers it.
pub fn register(registry: &mut Registry, groups: Arc<Groups>, clock: Clock) {
    registry.register_collector(Box::new(Age { groups, clock }));
}

#[derive(Debug)]
struct Age {
    groups: Arc<Groups>,
    clock: Clock,
}

impl Collector for Age {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Before the first look there is none whose age could be told.
        let Some(view) = self.groups.latest() else { return Ok(()) };
        let gauge = encoder.encode_descriptor(
            "ebbtide_look_age",
            "How long ago the last successful look at the groups in AWS began",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        ConstGauge::new(elapsed(view.taken_at, self.clock.now()).as_secs_f64()).encode(gauge)
    }
}
