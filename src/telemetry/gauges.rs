//! What several rooms tell in the same way on the page of metrics.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Writes a gauge without labels that is a time: `name` with `_seconds` behind it.
pub fn seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, time: Duration) -> fmt::Result {
    let gauge = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
    ConstGauge::new(time.as_secs_f64()).encode(gauge)
}
