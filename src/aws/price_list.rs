//! What the AWS Price List says of EC2 instances. Pure.

use serde_json::Value;

/// The region whose Price List tells of this one. There are few, and they all tell of every region of theirs.
///
/// Source: [AWS Price List endpoints](https://docs.aws.amazon.com/general/latest/gr/billing.html).
pub(super) fn served_by(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("ap") => "ap-south-1",
        Some("af" | "eu" | "il" | "me") => "eu-central-1",
        _ => "us-east-1",
    }
}

/// A price of the Price List: of an instance type in a region, by the hour.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// `m5.large`.
    pub instance_type: String,
    /// `us-east-1`.
    pub region: String,
    /// `Linux`, `Windows`.
    pub operating_system: String,
    /// USD per hour.
    pub price: f64,
}

/// Attributes of the products that a group launches On-Demand: on shared hardware, with nothing pre-installed, no licence of
/// the customer's own, and no Capacity Reservation (which has products of its own, at a price of zero or for dedicated ones).
///
/// Source: [GetProducts](https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html),
/// and its answers.
pub const ATTRIBUTES: [(&str, &str); 4] = [
    ("tenancy", "Shared"),
    ("preInstalledSw", "NA"),
    ("capacitystatus", "Used"),
    ("licenseModel", "No License required"),
];

impl Offer {
    /// Reads a product of GetProducts; `None` if it is none that a group launches On-Demand, or has no price in USD.
    pub fn read(product: &str) -> Option<Self> {
        let product: Value = serde_json::from_str(product).ok()?;
        let attributes = product.pointer("/product/attributes")?;
        let text = |name: &str| attributes.get(name).and_then(Value::as_str).map(str::to_owned);
        if ATTRIBUTES.iter().any(|(name, value)| text(name).is_some_and(|found| found != *value)) {
            return None;
        }
        let terms = product.pointer("/terms/OnDemand")?.as_object()?.values();
        let dimensions = terms.filter_map(|term| term.get("priceDimensions")?.as_object());
        let hourly = dimensions.flat_map(|all| all.values()).filter(|one| one["unit"] == "Hrs");
        let mut prices = hourly.filter_map(|one| one.pointer("/pricePerUnit/USD")?.as_str()?.parse().ok());
        Some(Self {
            instance_type: text("instanceType")?,
            region: text("regionCode")?,
            operating_system: text("operatingSystem")?,
            // A price of zero is that of a reservation.
            price: prices.find(|price: &f64| price.is_finite() && *price > 0.0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn product(attributes: &Value, price: &Value) -> String {
        let mut all = json!({
            "instanceType": "m5.large", "regionCode": "us-east-1", "operatingSystem": "Linux", "tenancy": "Shared",
            "preInstalledSw": "NA", "capacitystatus": "Used", "licenseModel": "No License required", "vcpu": "2",
        });
        for (name, value) in attributes.as_object().expect("attributes") {
            all[name] = value.clone();
        }
        json!({
            "product": { "productFamily": "Compute Instance", "attributes": all, "sku": "A" },
            "serviceCode": "AmazonEC2",
            "terms": { "OnDemand": { "A.B": { "priceDimensions": { "A.B.C": {
                "unit": "Hrs", "beginRange": "0", "endRange": "Inf", "pricePerUnit": price, "rateCode": "A.B.C",
            } }, "sku": "A", "termAttributes": {} } }, "Reserved": {} },
        })
        .to_string()
    }

    #[test]
    fn a_region_is_told_of_by_a_price_list_of_its_part_of_the_world() {
        for (region, by) in [
            ("us-west-2", "us-east-1"),
            ("sa-east-1", "us-east-1"),
            ("eu-west-3", "eu-central-1"),
            ("me-south-1", "eu-central-1"),
            ("ap-northeast-1", "ap-south-1"),
            ("", "us-east-1"),
        ] {
            assert_eq!(served_by(region), by, "{region}");
        }
    }

    #[test]
    fn a_product_that_a_group_launches_has_its_price() {
        let read = Offer::read(&product(&json!({}), &json!({ "USD": "0.0960000000" }))).expect("an offer");
        let Offer { instance_type, region, operating_system, price } = read;
        assert_eq!((&*instance_type, &*region, &*operating_system), ("m5.large", "us-east-1", "Linux"));
        assert!((price - 0.096).abs() < 1e-9);
    }

    #[test]
    fn a_product_of_another_kind_has_none() {
        let usd = json!({ "USD": "0.1" });
        for (attributes, price) in [
            (json!({ "tenancy": "Dedicated" }), &usd),
            (json!({ "tenancy": "Host" }), &usd),
            (json!({ "preInstalledSw": "SQL Web" }), &usd),
            (json!({ "capacitystatus": "UnusedCapacityReservation" }), &usd),
            (json!({ "licenseModel": "Bring your own license" }), &usd),
            (json!({}), &json!({ "USD": "0.0000000000" })),
            (json!({}), &json!({ "CNY": "1.0" })),
            (json!({}), &json!({ "USD": "NaN" })),
            (json!({}), &json!({ "USD": "-1" })),
            (json!({}), &json!(7)),
        ] {
            assert_eq!(Offer::read(&product(&attributes, price)), None, "{attributes} {price}");
        }
        for text in ["", "{}", "[]", r#"{"product":{"attributes":{}},"terms":{"OnDemand":[]}}"#] {
            assert_eq!(Offer::read(text), None, "{text}");
        }
    }
}
