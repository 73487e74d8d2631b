//! Spot prices: what each type costs in each zone, since when.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html>

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::ec2::invalid_value;
use super::error::ApiError;
use super::handle::Aws;
use super::query::{Filter, Form, page, page_size};
use super::state::State;
use super::xml::Xml;

/// Changes of price, by type and zone, each with its moment.
pub(super) type SpotPrices = BTreeMap<(String, String), Vec<(Timestamp, String)>>;

impl Aws {
    /// From now on a spot instance of this type with Linux costs so much in this zone, in USD per hour.
    pub fn set_spot_price(&self, instance_type: &str, zone: &str, price: &str) {
        self.script(|state, now| {
            let changes =
                state.shared.spot_prices.entry((instance_type.to_owned(), zone.to_owned())).or_default();
            changes.push((now, price.to_owned()));
        });
    }
}

/// The changes since a moment, and the last one before it, which is in force then.
pub(super) fn describe(state: &State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxResults", 1000, 1000)?;
    let since = match form.get("StartTime") {
        Some(text) => text.parse().map_err(|_| invalid_value(format!("({text}) is not a valid date")))?,
        None => Timestamp::UNIX_EPOCH,
    };
    let types = form.list("InstanceType");
    let filters = Filter::all(form, "Filter", "Value");
    let known = ["instance-type", "availability-zone", "product-description"];
    if let Some(unknown) = filters.iter().find(|filter| !known.contains(&filter.name.as_str())) {
        return Err(invalid_value(format!("The filter '{}' is invalid", unknown.name)));
    }
    let passes = |name: &str, zone: &str| {
        let by_filter = filters.iter().all(|filter| match filter.name.as_str() {
            "instance-type" => filter.accepts(name),
            "availability-zone" => filter.accepts(zone),
            _ => filter.accepts(PRODUCT),
        });
        by_filter && (types.is_empty() || types.contains(&name))
    };
    let mut found = Vec::new();
    for ((name, zone), changes) in
        state.shared.spot_prices.iter().filter(|((name, zone), _)| passes(name, zone))
    {
        let in_force = changes.iter().rposition(|(at, _)| *at <= since).unwrap_or_default();
        for (n, (at, price)) in changes.iter().enumerate().skip(in_force).filter(|(_, (at, _))| *at <= now) {
            found.push((format!("{name} {zone} {n:06}"), (name, zone, *at, price)));
        }
    }
    let (found, next) = page(found, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("spotPriceHistorySet", "item", found, |xml, (name, zone, at, price)| {
            xml.text("instanceType", name)
                .text("productDescription", PRODUCT)
                .text("spotPrice", price)
                .time("timestamp", at)
                .text("availabilityZone", zone);
        })
        // Empty on the last page.
        .text("nextToken", next.unwrap_or_default());
    }))
}

const PRODUCT: &str = "Linux/UNIX";
