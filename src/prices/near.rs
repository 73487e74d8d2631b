//! The price of a type that the table does not have: by its family, by another region, by its size. Pure.

use super::fit::{BASE_REGION, Parts};
use super::table;
use crate::aws::{TypeInfo, type_table};

/// What a type costs On-Demand as far as the table can tell, and how it tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Told {
    /// The table has it.
    Listed(f64),
    /// Another size of its family, per vCPU or accelerator; or the same in [`BASE_REGION`].
    Near(f64),
}

impl Told {
    /// USD per hour.
    pub fn price(self) -> f64 {
        match self {
            Self::Listed(price) | Self::Near(price) => price,
        }
    }
}

/// What a type costs On-Demand in a region; `None` if nothing in the table is like it.
pub fn on_demand(instance_type: &str, region: &str) -> Option<Told> {
    let listed = table::find(instance_type, region).map(Told::Listed);
    listed.or_else(|| {
        let elsewhere =
            |region| table::find(instance_type, region).or_else(|| by_family(instance_type, region));
        let near = by_family(instance_type, region).or_else(|| {
            // Regions differ by what a vCPU and a GiB cost there.
            let (here, base) = (Parts::of(region), Parts::of(BASE_REGION));
            elsewhere(BASE_REGION).map(|price| price * here.price(1.0, 4.0, 0.0) / base.price(1.0, 4.0, 0.0))
        });
        near.map(Told::Near)
    })
}

/// By the nearest size of the family that has a price, per unit.
fn by_family(instance_type: &str, region: &str) -> Option<f64> {
    let wanted = type_table::find(instance_type)?;
    let family = instance_type.split_once('.')?.0;
    let kin =
        table::in_region(region).filter(|(name, _)| name.split_once('.').is_some_and(|(of, _)| of == family));
    let sizes = kin.filter_map(|(name, price)| Some((type_table::find(name)?, price)));
    let ratios = sizes.filter_map(|(info, price)| {
        let ratio = units(&wanted) / units(&info);
        ratio.is_finite().then_some((ratio, price))
    });
    let (ratio, price) = ratios.min_by(|(a, _), (b, _)| a.ln().abs().total_cmp(&b.ln().abs()))?;
    Some(price * ratio)
}

/// What a family's sizes are priced by: burstable ones by memory, those with accelerators by these, all others by vCPUs.
fn units(info: &TypeInfo) -> f64 {
    let chips: i64 = info.accelerators.iter().map(|one| one.count).sum();
    let units = if info.name.starts_with('t') && chips == 0 {
        info.memory_mib
    } else if chips > 0 {
        chips
    } else {
        info.vcpus
    };
    units as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(instance_type: &str, region: &str) -> Option<f64> {
        let told = on_demand(instance_type, region)?;
        assert!(matches!(told, Told::Near(_)), "{instance_type} {region} {told:?}");
        Some(told.price())
    }

    #[test]
    fn another_size_of_the_family_tells_as_much_as_the_type_itself_to_within_a_tenth() {
        let (mut compared, mut off) = (0, 0);
        for (name, price) in table::in_region("us-east-1") {
            let Some(info) = type_table::find(name).filter(|info| info.accelerators.is_empty()) else {
                continue;
            };
            let others: Vec<_> = table::in_region("us-east-1").filter(|(other, _)| *other != name).collect();
            let family = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
            let kin = others.iter().filter(|(other, _)| family(other) == family(name));
            let sizes = kin.filter_map(|(other, price)| Some((type_table::find(other)?, *price)));
            let Some((other, known)) = sizes.min_by(|(a, _), (b, _)| {
                let far = |other: &TypeInfo| (units(&info) / units(other)).ln().abs();
                far(a).total_cmp(&far(b))
            }) else {
                continue;
            };
            compared += 1;
            let told = known * units(&info) / units(&other);
            off += usize::from((told / price - 1.0).abs() > 0.1);
        }
        assert!(compared > 400, "{compared}");
        assert!(off * 20 < compared, "{off} of {compared}");
    }

    #[test]
    fn what_the_table_lacks_in_a_region_is_priced_by_its_family_or_by_another_region() {
        let missing = |region: &str| {
            let has = |name: &str| table::find(name, region).is_some();
            type_table::names()
                .filter(|name| !has(name))
                .find(|name| by_family(name, region).is_some())
                .map(str::to_owned)
        };
        let name = missing("us-east-1").expect("the table has gaps");
        let price = near(&name, "us-east-1").expect("a price");
        assert!((0.001..500.0).contains(&price), "{name} {price}");
        let elsewhere = near("m5.large", "mars-1").expect("a price");
        assert!((elsewhere - 0.096).abs() < 1e-9, "a region nobody knows is the base region");
    }

    #[test]
    fn a_type_that_nobody_knows_has_no_price_here() {
        for name in ["zz9.large", "m5", "", "m5.enormous"] {
            assert_eq!(on_demand(name, "us-east-1"), None, "{name}");
        }
    }
}
