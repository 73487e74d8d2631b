//! Built-in table of On-Demand prices: `prices.tsv`, an instance type a line, a region a column.
//!
//! - Linux, shared tenancy, nothing pre-installed, in USD per hour.
//! - Look-ups search the embedded text; nothing is parsed ahead or kept.
//! - `cargo run --example prices` builds the file; `docs/prices.md` tells from what.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::aws::type_table::line_of;

const TABLE: &str = include_str!("prices.tsv");

/// Begins comment lines. Sorts before every name.
const COMMENT: char = '#';
/// Begins the line of the regions, the last comment.
const REGIONS: &str = "# type\t";
/// Begins the line that tells how old the prices are.
const DATE: &str = "# Date: ";

/// Prices by instance type and region.
pub type Prices = BTreeMap<(String, String), f64>;

/// The price of a type in a region, if the table has it.
pub fn find(instance_type: &str, region: &str) -> Option<f64> {
    find_in(TABLE, instance_type, region)
}

/// Types that have a price in a region, with it.
pub fn in_region(region: &str) -> impl Iterator<Item = (&'static str, f64)> {
    let column = column(TABLE, region);
    let lines = TABLE.lines().filter(|line| !line.starts_with(COMMENT));
    lines.filter_map(move |line| {
        let mut fields = line.split('\t');
        Some((fields.next()?, fields.nth(column?)?.parse().ok()?))
    })
}

/// The regions of the table.
pub fn regions() -> impl Iterator<Item = &'static str> {
    regions_of(TABLE)
}

/// The day of the newest prices in the table, `2025-03-02`.
pub fn date() -> &'static str {
    TABLE.lines().find_map(|line| line.strip_prefix(DATE)).unwrap_or_default()
}

/// The beginning of that day.
pub fn as_of() -> Option<Timestamp> {
    Some(date().parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Renders the table; `source` says where the prices are from, `date` from which day.
pub fn render(prices: &Prices, source: &str, date: &str) -> String {
    let regions: BTreeSet<&str> = prices.keys().map(|(_, region)| region.as_str()).collect();
    let types: BTreeSet<&str> = prices.keys().map(|(name, _)| name.as_str()).collect();
    let mut table = format!(
        "{COMMENT} EC2 On-Demand prices, for where the Price List is not asked or does not answer: Linux, shared tenancy, USD per \
         hour.\n\
         {COMMENT} Nothing stands where a type is not offered or its price is not known.\n\
         {COMMENT} Source: {source}\n\
         {DATE}{date}\n\
         {COMMENT} Made by: cargo run --example prices -- src/prices/prices.tsv SOURCE DATE DUMP...\n\
         {COMMENT} DUMP is libcloud/data/pricing.json of a wheel of apache-libcloud, or what this prints: aws pricing get-products \
         --service-code AmazonEC2 --output json\n\
         {REGIONS}{}\n",
        regions.iter().copied().collect::<Vec<_>>().join("\t")
    );
    for name in types {
        let price = |region: &&str| prices.get(&(name.to_owned(), (*region).to_owned()));
        let fields: Vec<String> =
            regions.iter().map(|region| price(region).map(f64::to_string).unwrap_or_default()).collect();
        let _ = writeln!(table, "{name}\t{}", fields.join("\t"));
    }
    table
}

fn find_in(table: &str, instance_type: &str, region: &str) -> Option<f64> {
    let fields = line_of(table, instance_type)?;
    fields.split('\t').nth(1 + column(table, region)?)?.parse().ok()
}

fn column(table: &str, region: &str) -> Option<usize> {
    regions_of(table).position(|known| known == region)
}

fn regions_of(table: &str) -> impl Iterator<Item = &str> {
    table.lines().find_map(|line| line.strip_prefix(REGIONS)).into_iter().flat_map(|line| line.split('\t'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::aws::type_table;

    /// All prices of the file.
    fn all() -> Prices {
        let of = |region: &'static str| {
            in_region(region).map(move |(name, price)| ((name.to_owned(), region.to_owned()), price))
        };
        regions().flat_map(of).collect()
    }

    #[test]
    fn every_price_of_the_file_is_found_and_the_file_is_as_it_would_be_written() {
        let prices = all();
        assert!(prices.len() > 12_000, "{}", prices.len());
        for ((name, region), price) in &prices {
            assert_eq!(find(name, region), Some(*price), "{name} {region}");
            assert!((0.001..1_000.0).contains(price), "{name} {region} {price}");
        }
        let source =
            TABLE.lines().find_map(|line| line.strip_prefix("# Source: ")).expect("tells its source");
        assert_eq!(render(&prices, source, date()), TABLE);
        assert!(TABLE.len() < 200_000, "{} bytes are in the program", TABLE.len());
    }

    #[test]
    fn the_table_tells_its_day() {
        let day = format!("{}T00:00:00Z", date()).parse().expect("a moment");
        assert_eq!(as_of(), Some(day));
    }

    #[test]
    fn prices_that_aws_publishes_are_the_files() {
        for (name, region, price) in [
            ("m5.large", "us-east-1", 0.096),
            ("m5.large", "eu-central-1", 0.115),
            ("t3.medium", "us-east-1", 0.0416),
            ("a1.medium", "us-east-1", 0.0255),
            ("c7g.xlarge", "us-east-1", 0.145),
            ("p3.2xlarge", "us-east-1", 3.06),
            ("g4dn.xlarge", "us-east-1", 0.526),
        ] {
            assert_eq!(find(name, region), Some(price), "{name} {region}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for (name, region) in [
            ("m5.largest", "us-east-1"),
            ("m5.large", "mars-1"),
            ("", ""),
            ("# type", "us-east-1"),
            ("m5", "type"),
        ] {
            assert_eq!(find(name, region), None, "{name} {region}");
        }
        assert_eq!(in_region("mars-1").count(), 0);
        assert_eq!(find_in("", "m5.large", "us-east-1"), None);
    }

    /// Families whose sizes differ in the cores that are switched on, not in the machine: the smaller costs as much.
    const ONE_MACHINE: [&str; 3] = ["hpc7a", "hpc7g", "u-6tb1"];
    /// Their largest size has 36 vCPUs, the next 16 at half its price.
    const MORE_CORES: [&str; 2] = ["c4", "d2"];

    #[test]
    fn a_bigger_size_of_a_family_is_never_cheaper_per_vcpu_by_more_than_three_percent() {
        /// vCPUs, the price of each, and the name.
        type Size = (i64, f64, String);
        let mut sizes: BTreeMap<(String, &str), Vec<Size>> = BTreeMap::new();
        let prices = all();
        for ((name, region), price) in &prices {
            let Some(info) = type_table::find(name).filter(|info| info.accelerators.is_empty()) else {
                continue;
            };
            let family = name.split('.').next().unwrap_or_default();
            if !ONE_MACHINE.contains(&family) && !MORE_CORES.contains(&family) {
                let of_family = sizes.entry((family.to_owned(), region)).or_default();
                of_family.push((info.vcpus, price / info.vcpus as f64, name.clone()));
            }
        }
        assert!(sizes.len() > 1_000, "{}", sizes.len());
        for ((family, region), mut sizes) in sizes {
            sizes.sort_by_key(|(vcpus, ..)| *vcpus);
            for (n, (vcpus, per_vcpu, name)) in sizes.iter().enumerate() {
                let bigger = sizes[n..].iter().filter(|(more, ..)| more > vcpus);
                for (_, other, bigger) in bigger {
                    assert!(
                        other / per_vcpu > 0.97,
                        "{region} {family}: {name} {per_vcpu}, {bigger} {other}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_found_again(
            prices in prop::collection::btree_map(("[a-z][a-z0-9-]{0,5}\\.[a-z0-9]{1,5}", "[a-z]{2}-[a-z]{4}-[1-9]"), 0.0001..500.0_f64, 1..40),
        ) {
            let table = render(&prices, "here", "2026-01-01");
            for ((name, region), price) in &prices {
                prop_assert_eq!(find_in(&table, name, region), Some(*price));
                prop_assert_eq!(find_in(&table, &format!("{name}!"), region), None);
            }
        }
    }
}
