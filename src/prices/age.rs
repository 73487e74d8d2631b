//! How old prices are, computed at each scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_client::registry::{Registry, Unit};

use super::book::Failing;
use super::{Labels, Prices, Source, table};
use crate::clock::{Clock, elapsed};
use crate::telemetry::gauges::family_at_scrape;

/// Registers `ebbtide_prices_age_seconds`, the age of each source's oldest price: a price that is not read again shows, whatever
/// others are. For a source without prices, the time since it could first not be read.
pub fn register_age(registry: &mut Registry, prices: Arc<Prices>, clock: Clock) {
    let help = "How old the oldest price of each source is";
    family_at_scrape(registry, "ebbtide_prices_age", help, Some(Unit::Seconds), move || {
        let book = prices.book();
        let since = |failing: &Option<Failing>| failing.as_ref().map(|failing| failing.since);
        let spot = book.spot.values().flat_map(BTreeMap::values).map(|quote| quote.at).min();
        let list = book.on_demand.values().map(|quote| quote.at).min();
        let oldest = [
            (Source::spot, spot.or_else(|| since(&book.spot_failing))),
            (Source::list, list.or_else(|| since(&book.list_failing))),
            (Source::table, table::as_of()),
        ];
        let now = clock.now();
        // What was asked for nothing has no age.
        let told = oldest.into_iter().filter_map(|(source, at)| Some((Labels { source }, at?)));
        told.map(|(labels, at)| (labels, elapsed(at, now).as_secs_f64())).collect()
    });
}
