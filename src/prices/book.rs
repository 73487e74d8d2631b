//! What AWS has told of prices, and what a type costs as far as that and the table go. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelValue;
use serde::Serialize;

use super::fit::Parts;
use super::near::{self, Told};
use crate::aws::type_table;
use crate::clock::elapsed;

/// How long a price of AWS's is used while it cannot be read again. Spot prices move by some percent a week, On-Demand prices by
/// none in most years.
pub const KEPT: Duration = Duration::from_hours(7 * 24);

/// What a licence of Windows costs for each vCPU and hour, in USD: what AWS's prices of the two systems differ by for all
/// types that are neither burstable nor bare metal.
///
/// Source: [EC2 On-Demand pricing](https://aws.amazon.com/ec2/pricing/on-demand/).
const WINDOWS_A_VCPU: f64 = 0.046;

/// What it costs an hour for burstable types (same source): the size, that of `t2`, that of `t3` and `t3a`.
const WINDOWS_BURSTABLE: [(&str, f64, f64); 7] = [
    ("nano", 0.0023, 0.0046),
    ("micro", 0.0046, 0.0092),
    ("small", 0.009, 0.0184),
    ("medium", 0.018, 0.0184),
    ("large", 0.028, 0.0276),
    ("xlarge", 0.041, 0.0736),
    ("2xlarge", 0.062, 0.1472),
];

/// What a licence of Windows costs an hour for this type.
fn windows_licence(name: &str, vcpus: f64) -> f64 {
    let burstable = name.split_once('.').and_then(|(family, size)| {
        let (_, t2, t3) = WINDOWS_BURSTABLE.iter().find(|(name, ..)| *name == size)?;
        match family {
            "t2" => Some(*t2),
            "t3" | "t3a" => Some(*t3),
            _ => None,
        }
    });
    burstable.unwrap_or(WINDOWS_A_VCPU * vcpus)
}

/// The operating system of a node, as far as prices differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum System {
    /// Linux without a licence.
    #[default]
    Linux,
    /// Windows Server, licence included.
    Windows,
}

/// Where a price is from, the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, EncodeLabelValue)]
#[serde(rename_all = "lowercase")]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
pub enum Source {
    /// The group's tag.
    tag,
    /// EC2's history of spot prices.
    spot,
    /// The AWS Price List.
    list,
    /// The built-in table.
    table,
    /// The table, by another size of the family or another region.
    near,
    /// What its vCPUs, memory and GPUs cost in other machines.
    fit,
}

impl Source {
    pub(super) const ALL: [Self; 6] = [Self::tag, Self::spot, Self::list, Self::table, Self::near, Self::fit];
}

/// A price, and how it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// USD per hour.
    pub per_hour: f64,
    /// Where it is from; of several parts, the least sure.
    pub source: Source,
    /// When AWS told it; `None`: it did not.
    pub told_at: Option<Timestamp>,
}

/// A price as AWS told it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quote {
    /// USD per hour.
    pub per_hour: f64,
    /// When it was read.
    pub at: Timestamp,
}

/// Bytes in a GiB.
pub(super) const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// How big a node is, for a type that nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// vCPUs.
    pub vcpus: f64,
    /// Memory in GiB.
    pub gib: f64,
    /// GPUs.
    pub gpus: f64,
}

/// The kind of machine whose price is asked for.
pub type Kind = (String, System);

/// What AWS has told of prices in one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Book {
    /// On-Demand prices.
    pub on_demand: BTreeMap<Kind, Quote>,
    /// Spot prices by zone.
    pub spot: BTreeMap<Kind, BTreeMap<String, Quote>>,
    /// If On-Demand prices cannot be read.
    pub list_failing: Option<Failing>,
    /// If spot prices cannot be read.
    pub spot_failing: Option<Failing>,
}

/// Since when something cannot be read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Since then.
    pub since: Timestamp,
    /// AWS's words, the last time.
    pub words: String,
}

impl Failing {
    pub(super) fn note(failing: &mut Option<Self>, words: String, now: Timestamp) {
        let since = failing.as_ref().map_or(now, |failing| failing.since);
        *failing = Some(Self { since, words });
    }
}

impl Book {
    /// What an On-Demand instance costs; `None` if nothing is known that is like it.
    pub fn on_demand(&self, kind: &Kind, region: &str, size: Option<Size>, now: Timestamp) -> Option<Price> {
        let (name, system) = kind;
        if let Some(quote) = self.on_demand.get(kind).filter(|quote| is_fresh(quote, now)) {
            return Some(quote.price(Source::list));
        }
        let info = type_table::find(name);
        let known = near::on_demand(name, region).map(|told| match told {
            Told::Listed(price) => (price, Source::table),
            Told::Near(price) => (price, Source::near),
        });
        let fitted = || {
            let parts = Parts::of(region);
            let of_info = info.as_ref().map(|info| parts.price_of(info));
            let price = of_info.or_else(|| size.map(|size| parts.price(size.vcpus, size.gib, size.gpus)))?;
            (price > 0.0).then_some((price, Source::fit))
        };
        let (linux, source) = known.or_else(fitted)?;
        let licence = match system {
            System::Linux => 0.0,
            System::Windows => {
                let vcpus = info.as_ref().map(|info| info.vcpus as f64).or_else(|| Some(size?.vcpus));
                windows_licence(name, vcpus.unwrap_or_default())
            }
        };
        Some(Price { per_hour: linux + licence, source, told_at: None })
    }

    /// What a spot instance costs: the mean over these zones, as far as they have a price.
    pub fn spot(&self, kind: &Kind, zones: &[&str], now: Timestamp) -> Option<Price> {
        let all = self.spot.get(kind)?;
        let found: Vec<&Quote> =
            zones.iter().filter_map(|zone| all.get(*zone)).filter(|quote| is_fresh(quote, now)).collect();
        let told_at = found.iter().map(|quote| quote.at).min();
        let sum: f64 = found.iter().map(|quote| quote.per_hour).sum();
        told_at.map(|_| Price { per_hour: sum / found.len() as f64, source: Source::spot, told_at })
    }
}

impl Quote {
    fn price(&self, source: Source) -> Price {
        Price { per_hour: self.per_hour, source, told_at: Some(self.at) }
    }
}

impl Price {
    /// So much of this one, and the rest of the other.
    #[must_use]
    pub fn mixed(self, share: f64, other: Self) -> Self {
        let told_at = match (self.told_at, other.told_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            _ => None,
        };
        Self {
            per_hour: self.per_hour * share + other.per_hour * (1.0 - share),
            source: self.source.max(other.source),
            told_at,
        }
    }
}

fn is_fresh(quote: &Quote, now: Timestamp) -> bool {
    elapsed(quote.at, now) <= KEPT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_750_000_000 + hours * 3_600).expect("in range")
    }

    fn kind(name: &str) -> Kind {
        (name.to_owned(), System::Linux)
    }

    fn told(per_hour: f64) -> Quote {
        Quote { per_hour, at: at(0) }
    }

    fn on_demand(book: &Book, name: &str, now: Timestamp) -> Option<(f64, Source)> {
        let size = Size { vcpus: 4.0, gib: 16.0, gpus: 0.0 };
        book.on_demand(&kind(name), "us-east-1", Some(size), now).map(|price| (price.per_hour, price.source))
    }

    #[test]
    fn a_price_is_aws_own_for_a_week_then_the_tables_and_never_none_for_want_of_data() {
        let book = Book { on_demand: [(kind("m5.large"), told(0.1))].into(), ..Book::default() };
        assert_eq!(on_demand(&book, "m5.large", at(7 * 24)), Some((0.1, Source::list)));
        assert_eq!(on_demand(&book, "m5.large", at(7 * 24 + 1)), Some((0.096, Source::table)));
        let (fitted, source) = on_demand(&book, "zz9.huge", at(0)).expect("by its size");
        assert_eq!(source, Source::fit);
        assert!((0.1..0.4).contains(&fitted), "{fitted}");
        assert_eq!(
            book.on_demand(&kind("zz9.huge"), "us-east-1", None, at(0)),
            None,
            "nothing is known of it"
        );
    }

    #[test]
    fn windows_costs_its_licence_for_each_vcpu_and_less_for_burstable_types() {
        for (name, expected) in
            [("m5.large", 0.188), ("t3.medium", 0.06), ("t3a.xlarge", 0.224), ("t2.medium", 0.0644)]
        {
            let kind = (name.to_owned(), System::Windows);
            let price = Book::default().on_demand(&kind, "us-east-1", None, at(0)).expect("a price");
            assert!((price.per_hour - expected).abs() < 1e-9, "{name}: {price:?}");
        }
    }

    #[test]
    fn a_spot_price_is_the_mean_over_the_zones_that_have_one() {
        let zones = BTreeMap::from([("a".to_owned(), told(0.02)), ("b".to_owned(), told(0.04))]);
        let book = Book { spot: [(kind("m5.large"), zones)].into(), ..Book::default() };
        let spot = |zones: &[&str], now| Some(book.spot(&kind("m5.large"), zones, now)?.per_hour);
        assert_eq!(spot(&["a"], at(1)), Some(0.02));
        assert_eq!(spot(&["a", "b", "c"], at(1)), Some(0.03));
        assert_eq!(spot(&["c"], at(1)), None);
        assert_eq!(spot(&["a"], at(7 * 24 + 1)), None, "too old");
        assert_eq!(book.spot(&kind("m5.xlarge"), &["a"], at(1)), None);
    }

    #[test]
    fn of_a_mixed_price_the_least_sure_part_is_told() {
        let spot = Price { per_hour: 0.03, source: Source::spot, told_at: Some(at(2)) };
        let table = Price { per_hour: 0.1, source: Source::table, told_at: None };
        let mixed = table.mixed(0.25, spot);
        assert_eq!((mixed.source, mixed.told_at), (Source::table, None));
        assert!((mixed.per_hour - 0.0475).abs() < 1e-12, "{mixed:?}");
    }
}
