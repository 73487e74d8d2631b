//! Spot prices: what each type costs in each zone, since when. The Price List: what each costs On-Demand, and other products
//! of the same type, as the real list has.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html>,
//! <https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html>

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::ec2::invalid_value;
use super::error::ApiError;
use super::handle::Aws;
use super::json;
use super::operation::Operation;
use super::query::{Filter, Form, page, page_size};
use super::state::{REGION, State};
use super::xml::Xml;
use crate::sim::http::Request;

/// Changes of price, by type and zone, each with its moment.
pub(super) type SpotPrices = BTreeMap<(String, String), Vec<(Timestamp, String)>>;

/// The version of the Price List's API; no request contains it.
pub(super) const VERSION: &str = "2017-10-15";

/// Prefix of the operation in its header.
const TARGET: &str = "AWSPriceListService.";

impl Aws {
    /// An instance of this type with Linux costs so much On-Demand, in USD per hour.
    pub fn list_price(&self, instance_type: &str, price: &str) {
        self.script(|state, _| state.shared.listed.insert(instance_type.to_owned(), price.to_owned()));
    }

    /// EC2 offers no instance of this type any more: it has neither a spot price nor one in the Price List.
    pub fn withdraw(&self, instance_type: &str) {
        self.script(|state, _| {
            state.shared.listed.remove(instance_type);
            state.shared.spot_prices.retain(|(name, _), _| name != instance_type);
        });
    }

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
    let (types, products) = (form.list("InstanceType"), form.list("ProductDescription"));
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
        by_filter
            && (types.is_empty() || types.contains(&name))
            && (products.is_empty() || products.contains(&PRODUCT))
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

/// The request as a form, if it is one to the Price List.
pub(super) fn form(request: &Request) -> Option<Form> {
    json::form(request, TARGET, VERSION)
}

/// The products that pass every filter, as texts of JSON.
pub(super) fn products(state: &State, operation: Operation, form: &Form) -> Result<Value, ApiError> {
    if operation != Operation::GetProducts {
        return Err(ApiError::unknown_path(form.get("Action").unwrap_or_default()));
    }
    if form.get("ServiceCode") != Some("AmazonEC2") {
        return Err(ApiError::client("InvalidParameterException", "Invalid service code"));
    }
    let size = page_size(form, "MaxResults", 100, 100)?;
    let filters = form.structures("Filters");
    let mut found = Vec::new();
    for (name, price) in &state.shared.listed {
        for (n, product) in of_type(name, price).into_iter().enumerate() {
            let attributes = &product["product"]["attributes"];
            let passes = filters.iter().all(|filter| {
                let field = filter.get("Field").unwrap_or_default();
                attributes[field].as_str() == filter.get("Value")
            });
            if passes {
                found.push((format!("{name} {n}"), product.to_string()));
            }
        }
    }
    let (found, next) = page(found, form.get("NextToken"), size)?;
    Ok(json!({ "FormatVersion": "aws_v1", "PriceList": found, "NextToken": next }))
}

/// What the list has of a type: on shared hardware, on dedicated hardware, and as a Capacity Reservation that nobody uses.
fn of_type(name: &str, price: &str) -> [Value; 3] {
    let product = |sku: &str, tenancy: &str, capacity: &str, price: &str| {
        let dimension = json!({
            "unit": "Hrs", "beginRange": "0", "endRange": "Inf", "appliesTo": [], "rateCode": format!("{sku}.A.B"),
            "description": format!("${price} per On Demand Linux {name} Instance Hour"), "pricePerUnit": { "USD": price },
        });
        json!({
            "product": { "productFamily": "Compute Instance", "sku": sku, "attributes": {
                "instanceType": name, "regionCode": REGION, "operatingSystem": "Linux", "tenancy": tenancy,
                "preInstalledSw": "NA", "capacitystatus": capacity, "licenseModel": "No License required",
                "servicecode": "AmazonEC2", "locationType": "AWS Region",
            } },
            "serviceCode": "AmazonEC2",
            "terms": { "OnDemand": { format!("{sku}.A"): {
                "sku": sku, "offerTermCode": "A", "termAttributes": {}, "effectiveDate": "2026-01-01T00:00:00Z",
                "priceDimensions": { format!("{sku}.A.B"): dimension },
            } } },
            "version": "20260101000000", "publicationDate": "2026-01-01T00:00:00Z",
        })
    };
    [
        product("DEDICATED", "Dedicated", "Used", "99.0000000000"),
        product("RESERVED", "Shared", "UnusedCapacityReservation", "0.0000000000"),
        product("SHARED", "Shared", "Used", price),
    ]
}
