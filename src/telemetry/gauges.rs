//! What several rooms tell in the same way on the page of metrics.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

/// Writes a gauge without labels that is a time: `name` with `_seconds` behind it.
pub fn seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, time: Duration) -> fmt::Result {
    let gauge = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
    ConstGauge::new(time.as_secs_f64()).encode(gauge)
}

/// Registers a gauge without labels that is read at each scrape. While there is none, the page does not name it.
pub fn at_scrape<V: EncodeGaugeValue>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: impl Fn() -> Option<V> + Send + Sync + 'static,
) {
    registry.register_collector(Box::new(AtScrape(move |mut encoder: DescriptorEncoder<'_>| {
        let Some(value) = read() else { return Ok(()) };
        ConstGauge::new(value).encode(encoder.encode_descriptor(
            name,
            help,
            unit.as_ref(),
            MetricType::Gauge,
        )?)
    })));
}

/// Registers a gauge with labels that is read at each scrape.
pub fn family_at_scrape<L: EncodeLabelSet, V: EncodeGaugeValue>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: impl Fn() -> Vec<(L, V)> + Send + Sync + 'static,
) {
    registry.register_collector(Box::new(AtScrape(move |mut encoder: DescriptorEncoder<'_>| {
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        read()
            .into_iter()
            .try_for_each(|(labels, value)| ConstGauge::new(value).encode(family.encode_family(&labels)?))
    })));
}

struct AtScrape<F>(F);

impl<F> fmt::Debug for AtScrape<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtScrape").finish_non_exhaustive()
    }
}

impl<F: Fn(DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static> Collector for AtScrape<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0(encoder)
    }
}
