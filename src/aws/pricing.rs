//! The call to the AWS Price List.

use aws_sdk_pricing::types::{Filter, FilterType};

use super::price_list::{ATTRIBUTES, Offer};
use super::retry::LOOK_UP;
use super::{Aws, AwsError, Operation};

/// Products in an answer of GetProducts.
///
/// Source: [GetProducts](https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html).
const PRODUCTS_A_CALL: i32 = 100;

impl Aws {
    /// Whether a Price List in USD answers to the credentials of the region: not those of GovCloud, China, the European Sovereign Cloud
    /// and the secret regions, which are partitions of their own.
    pub fn has_price_list(&self) -> bool {
        !["us-gov-", "us-iso", "eu-iso", "eusc-", "cn-"].iter().any(|apart| self.region.starts_with(apart))
    }

    /// What an instance of this type costs On-Demand in the region, in USD per hour, with an operating system as the Price List
    /// calls it; `None` if it is not listed.
    pub async fn on_demand_price(
        &self,
        instance_type: &str,
        operating_system: &str,
    ) -> Result<Option<f64>, AwsError> {
        let own = [
            ("regionCode", self.region.as_str()),
            ("instanceType", instance_type),
            ("operatingSystem", operating_system),
        ];
        let filter = |(field, value)| {
            Filter::builder().r#type(FilterType::TermMatch).field(field).value(value).build()
        };
        let filters =
            own.into_iter().chain(ATTRIBUTES).filter_map(|pair| filter(pair).ok()).collect::<Vec<_>>();
        let is_asked_for = |offer: &Offer| {
            offer.region == self.region
                && offer.instance_type == instance_type
                && offer.operating_system == operating_system
        };
        let call = self
            .pricing
            .get_products()
            .service_code("AmazonEC2")
            .set_filters(Some(filters))
            .max_results(PRODUCTS_A_CALL);
        let send = |token| call.clone().set_next_token(token).send();
        let mut found = None;
        self.pages(Operation::GetProducts, LOOK_UP, send, |page| {
            let products = page.price_list.unwrap_or_default();
            found = products.iter().filter_map(|product| Offer::read(product)).find(is_asked_for);
            page.next_token.filter(|_| found.is_none())
        })
        .await?;
        Ok(found.map(|offer| offer.price))
    }
}
