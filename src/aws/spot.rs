//! Spot prices.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::Filter;
use aws_smithy_types::DateTime;
use jiff::Timestamp;

use super::retry::LOOK_UP;
use super::{Aws, AwsError, Operation};

/// Prices in an answer of DescribeSpotPriceHistory.
///
/// Source: [DescribeSpotPriceHistory](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html).
const PRICES_A_CALL: i32 = 1000;
/// Types in a call: half of what a filter takes.
///
/// Source: [List and filter using the CLI and
/// API](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html#Filtering_Resources_CLI): 200 values.
const TYPES_A_PRICE_CALL: usize = 100;

/// The spot price of a type in a zone.
#[derive(Clone, Debug, PartialEq)]
pub struct SpotPrice {
    /// `m5.large`.
    pub instance_type: String,
    /// `us-east-1a`.
    pub zone: String,
    /// USD per hour.
    pub price: f64,
}

impl Aws {
    /// Whether EC2 tells spot prices in USD. In China it tells yuan, and does not say so.
    ///
    /// Source: [Pricing of AWS China](https://www.amazonaws.cn/en/ec2/pricing/).
    pub fn has_spot_prices(&self) -> bool {
        !self.region.starts_with("cn-")
    }

    /// The spot prices in force of these types in all zones, for a product as EC2 describes it (`Linux/UNIX`, `Windows`). Types by a
    /// filter, so that a type that EC2 does not know fails no other.
    ///
    /// EC2 tells what has changed since `now`, and before that the last change of each: the price in force. None where prices are not
    /// told in USD.
    pub async fn spot_prices(
        &self,
        types: &[String],
        product: &str,
        now: Timestamp,
    ) -> Result<Vec<SpotPrice>, AwsError> {
        if !self.has_spot_prices() {
            return Ok(Vec::new());
        }
        // Of several prices the latest counts.
        let mut found: BTreeMap<(String, String), (Option<DateTime>, f64)> = BTreeMap::new();
        let filter =
            |name: &str, values: Vec<String>| Filter::builder().name(name).set_values(Some(values)).build();
        for batch in types.chunks(TYPES_A_PRICE_CALL) {
            let call = self
                .ec2
                .describe_spot_price_history()
                .filters(filter("instance-type", batch.to_vec()))
                .product_descriptions(product)
                .start_time(DateTime::from_secs(now.as_second()))
                .max_results(PRICES_A_CALL);
            let send = |token| call.clone().set_next_token(token).send();
            self.pages(Operation::DescribeSpotPriceHistory, LOOK_UP, send, |page| {
                for one in page.spot_price_history.unwrap_or_default() {
                    let price = one.spot_price.and_then(|text| text.parse().ok());
                    let price = price.filter(|price: &f64| price.is_finite() && *price > 0.0);
                    let (Some(name), Some(zone), Some(price)) =
                        (one.instance_type, one.availability_zone, price)
                    else {
                        continue;
                    };
                    let latest = found.entry((name.as_str().to_owned(), zone)).or_insert((None, price));
                    if one.timestamp >= latest.0 {
                        *latest = (one.timestamp, price);
                    }
                }
                page.next_token
            })
            .await?;
        }
        Ok(found
            .into_iter()
            .map(|((instance_type, zone), (_, price))| SpotPrice { instance_type, zone, price })
            .collect())
    }
}
