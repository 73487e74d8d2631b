//! Makes `src/prices/prices.tsv`.
//!
//! ```text
//! aws pricing get-products --service-code AmazonEC2 --output json --filters \
//!     Type=TERM_MATCH,Field=operatingSystem,Value=Linux Type=TERM_MATCH,Field=tenancy,Value=Shared > dump.json
//! cargo run --example prices -- src/prices/prices.tsv 'AWS Price List' 2026-08-01 dump.json
//! ```
//!
//! Reads that, or `libcloud/data/pricing.json` of wheels of apache-libcloud, which was scraped from the same list. The
//! scraper kept one of several products of a type: that of shared hardware, of dedicated hardware (up to 10 % dearer) or of a
//! reservation (zero). So zeros are left out, the least of several dumps counts, and where a size costs 4 to 15 % more than the
//! least of its family, per vCPU and with as much memory for each, its price is left out too: it is of dedicated hardware.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use ebbtide::aws::{Offer, type_table};
use ebbtide::prices::table::{self, Prices};
use serde_json::Value;

/// How much dearer dedicated hardware is.
const DEDICATED: std::ops::Range<f64> = 1.04..1.15;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [table, source, date, dumps @ ..] = &arguments[..] else {
        bail!("usage: prices TABLE SOURCE DATE DUMP...");
    };
    let mut prices = Prices::new();
    let mut is_mixed = false;
    for dump in dumps {
        let text = std::fs::read_to_string(dump).with_context(|| dump.clone())?;
        let dump: Value = serde_json::from_str(&text).with_context(|| format!("{dump} is no JSON"))?;
        is_mixed |= dump.get("compute").is_some();
        for (key, price) in offers(&dump) {
            let least = prices.entry(key).or_insert(price);
            *least = least.min(price);
        }
    }
    if is_mixed {
        leave_out_dedicated(&mut prices);
    }
    if prices.is_empty() {
        bail!("the dumps have no prices");
    }
    std::fs::write(table, table::render(&prices, source, date)).with_context(|| table.clone())
}

/// The prices of either form of a dump: of instance types (a family without a size is a host), in regions (not in local zones).
fn offers(dump: &Value) -> Prices {
    let by_type = dump.pointer("/compute/ec2_linux").and_then(Value::as_object).into_iter().flatten();
    let of_libcloud = by_type.flat_map(|(name, regions)| {
        let regions = regions.as_object().into_iter().flatten();
        regions.filter_map(move |(region, price)| Some(((name.clone(), region.clone()), number(price)?)))
    });
    let products = dump.get("PriceList").and_then(Value::as_array).into_iter().flatten();
    let of_aws = products
        .filter_map(|product| Offer::read(product.as_str()?))
        .filter(|offer| offer.operating_system == "Linux");
    let of_aws = of_aws.map(|offer| ((offer.instance_type, offer.region), offer.price));
    let is_instance = |(name, region): &(String, String)| {
        name.contains('.') && region.split('-').count() <= 4 && ends_in_number(region)
    };
    of_libcloud.chain(of_aws).filter(|(key, price)| *price > 0.0 && is_instance(key)).collect()
}

/// `us-gov-west-1`, and not `us-west-2-lax-1`.
fn ends_in_number(region: &str) -> bool {
    let numbers = region.split('-').filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.count() == 1
}

/// Libcloud has numbers, and numbers as texts.
fn number(price: &Value) -> Option<f64> {
    price.as_f64().or_else(|| price.as_str()?.parse().ok())
}

fn leave_out_dedicated(prices: &mut Prices) {
    /// The region, the family, and the memory for each vCPU.
    type Kin = (String, String, i64);
    let per_vcpu = |name: &str, region: &str, price: f64| -> Option<(Kin, f64)> {
        let info = type_table::find(name).filter(|info| info.accelerators.is_empty() && info.vcpus > 0)?;
        let family = name.split('.').next()?.to_owned();
        Some(((region.to_owned(), family, info.memory_mib / info.vcpus), price / info.vcpus as f64))
    };
    let mut least: BTreeMap<Kin, f64> = BTreeMap::new();
    for ((name, region), price) in &*prices {
        let Some((kin, unit)) = per_vcpu(name, region, *price) else { continue };
        let found = least.entry(kin).or_insert(unit);
        *found = found.min(unit);
    }
    prices.retain(|(name, region), price| {
        per_vcpu(name, region, *price).is_none_or(|(kin, unit)| !DEDICATED.contains(&(unit / least[&kin])))
    });
}
