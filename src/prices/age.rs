//! How old prices are, computed at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::book::Failing;
use super::{Labels, Prices, Source, table};
use crate::clock::{Clock, elapsed};

/// Registers `ebbtide_prices_age_seconds`, the age of each source's oldest price: a price that is not read again shows, whatever
/// others are. For a source without prices, the time since it could first not be read.
pub fn register_age(registry: &mut Registry, prices: Arc<Prices>, clock: Clock) {
    registry.register_collector(Box::new(Age { prices, clock }));
}

#[derive(Debug)]
struct Age {
    prices: Arc<Prices>,
    clock: Clock,
}

impl Collector for Age {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let book = self.prices.book();
        let since = |failing: &Option<Failing>| failing.as_ref().map(|failing| failing.since);
        let spot = book.spot.values().flat_map(BTreeMap::values).map(|quote| quote.at).min();
        let list = book.on_demand.values().map(|quote| quote.at).min();
        let oldest = [
            (Source::spot, spot.or_else(|| since(&book.spot_failing))),
            (Source::list, list.or_else(|| since(&book.list_failing))),
            (Source::table, table::as_of()),
        ];
        let mut family = encoder.encode_descriptor(
            "ebbtide_prices_age",
            "How old the oldest price of each source is",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        let now = self.clock.now();
        for (source, at) in oldest {
            // What was asked for nothing has no age.
            let Some(at) = at else { continue };
            let age = elapsed(at, now).as_secs_f64();
            ConstGauge::new(age).encode(family.encode_family(&Labels { source })?)?;
        }
        Ok(())
    }
}
