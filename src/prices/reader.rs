//! Reads AWS's prices in the background, of the types that the groups launch.
//!
//! What fails is tried again a minute later (an On-Demand price ten) and harms nothing else: prices read before stay in use.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::book::{Failing, Kind, Quote, System};
use super::{Prices, node};
use crate::aws::{Aws, AwsError, SpotPrice};
use crate::clock::{Clock, elapsed, later, signed};
use crate::groups::Groups;
use crate::telemetry::{Outage, chain};

/// How often spot prices are read. They change slowly, several times a day at most.
///
/// Source: [Spot Instance pricing history](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-instances-history.html):
/// prices "are adjusted gradually based on long-term trends".
const EVERY: Duration = Duration::from_mins(10);
/// How often On-Demand prices are read: most stay the same for years.
const DAILY: Duration = Duration::from_hours(24);
/// How often it is looked for types that have not been read: of a new group, or after a failure.
const LOOK: Duration = Duration::from_mins(1);
/// The same while the groups are not known yet.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Reads prices for as long as the program runs.
#[derive(Debug)]
pub struct Reader {
    aws: Aws,
    groups: Arc<Groups>,
    prices: Arc<Prices>,
    clock: Clock,
    /// When each kind's spot price was read.
    read: BTreeMap<Kind, Timestamp>,
    /// When each kind's On-Demand price was read.
    listed: BTreeMap<Kind, Timestamp>,
    outage: Outage,
    list_outage: Outage,
}

impl Reader {
    /// Reads for these groups into these prices.
    pub fn new(aws: Aws, groups: Arc<Groups>, prices: Arc<Prices>, clock: Clock) -> Self {
        if !aws.has_spot_prices() {
            tracing::warn!(
                region = aws.region(),
                "AWS's prices are not told in USD in this region: us-east-1 prices are used, unless a tag gives one"
            );
        }
        let (read, listed, outage, list_outage) = Default::default();
        Self { aws, groups, prices, clock, read, listed, outage, list_outage }
    }

    /// Reads for ever.
    pub async fn run(mut self) -> Infallible {
        loop {
            self.refresh().await;
            tokio::time::sleep(if self.read.is_empty() { FIRST_LOOK } else { LOOK }).await;
        }
    }

    /// Reads what is due.
    pub async fn refresh(&mut self) {
        let Some(view) = self.groups.latest().filter(|view| view.is_complete) else { return };
        let now = self.clock.now();
        let wanted: BTreeSet<Kind> = view.groups.values().flat_map(|group| node::kinds(group)).collect();
        self.read.retain(|kind, _| wanted.contains(kind));
        self.prices.forget_all_but(&wanted);
        let is_due = |kind: &Kind| self.read.get(kind).is_none_or(|at| elapsed(*at, now) >= EVERY);
        let mut due: BTreeMap<System, Vec<String>> = BTreeMap::new();
        for (name, system) in wanted.iter().filter(|kind| is_due(kind)) {
            due.entry(*system).or_default().push(name.clone());
        }
        for (system, types) in due {
            let told = Box::pin(self.aws.spot_prices(&types, product(system), now)).await;
            self.take(system, types, told, now);
        }
        if self.aws.has_price_list() {
            self.read_list(wanted, now).await;
        }
    }

    /// Reads On-Demand prices, one type a call: a call for all types of a region would have ten thousands of products.
    async fn read_list(&mut self, wanted: BTreeSet<Kind>, now: Timestamp) {
        self.listed.retain(|kind, _| wanted.contains(kind));
        let is_due = |kind: &Kind| self.listed.get(kind).is_none_or(|at| elapsed(*at, now) >= DAILY);
        let due: Vec<Kind> = wanted.into_iter().filter(is_due).collect();
        for kind in due {
            match Box::pin(self.aws.on_demand_price(&kind.0, listed_as(kind.1))).await {
                Ok(price) => {
                    let quote = price.map(|per_hour| (kind.clone(), Quote { per_hour, at: now }));
                    self.prices.learn(|book| {
                        book.on_demand.remove(&kind);
                        book.on_demand.extend(quote);
                        book.list_failing = None;
                    });
                    self.listed.insert(kind, now);
                    if self.list_outage.recovered().is_some() {
                        tracing::info!("the Price List is read again");
                    }
                }
                // The rest a minute later, as it would fare no better now; this one after them, as it may be the cause.
                Err(error) => {
                    self.prices.learn(|book| Failing::note(&mut book.list_failing, chain(&error), now));
                    self.listed.insert(kind, due_after(EVERY, DAILY, now));
                    if let Some(outage_seconds) = self.list_outage.failed() {
                        tracing::warn!(outage_seconds, error = %chain(&error), "the Price List could not be read: On-Demand prices known before, or the built-in table, are used");
                    }
                    return;
                }
            }
        }
    }

    fn take(
        &mut self,
        system: System,
        types: Vec<String>,
        told: Result<Vec<SpotPrice>, AwsError>,
        now: Timestamp,
    ) {
        match told {
            Ok(found) => {
                let mut by_kind: BTreeMap<Kind, BTreeMap<String, Quote>> = BTreeMap::new();
                for SpotPrice { instance_type, zone, price } in found {
                    let zones = by_kind.entry((instance_type, system)).or_default();
                    zones.insert(zone, Quote { per_hour: price, at: now });
                }
                let asked: BTreeSet<Kind> = types.into_iter().map(|name| (name, system)).collect();
                self.prices.learn(|book| {
                    // EC2 gives no price of a type that it no longer offers.
                    book.spot.retain(|kind, _| !asked.contains(kind));
                    book.spot.extend(by_kind);
                    book.spot_failing = None;
                });
                self.read.extend(asked.into_iter().map(|kind| (kind, now)));
                if self.outage.recovered().is_some() {
                    tracing::info!("spot prices are read again");
                }
            }
            Err(error) => {
                self.prices.learn(|book| Failing::note(&mut book.spot_failing, chain(&error), now));
                // Soon again, and not every second.
                self.read.extend(types.into_iter().map(|name| ((name, system), due_after(LOOK, EVERY, now))));
                if let Some(outage_seconds) = self.outage.failed() {
                    tracing::warn!(outage_seconds, error = %chain(&error), "spot prices could not be read: those known before are used");
                }
            }
        }
    }
}

/// The reading to note for what is read `every` so often, so that it is due again after `pause`.
fn due_after(pause: Duration, every: Duration, now: Timestamp) -> Timestamp {
    later(now, signed(pause) - signed(every))
}

/// The Price List's name of an operating system.
pub fn listed_as(system: System) -> &'static str {
    match system {
        System::Linux => "Linux",
        System::Windows => "Windows",
    }
}

/// EC2's description of a spot instance's operating system.
///
/// Source: [SpotPrice](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_SpotPrice.html).
pub fn product(system: System) -> &'static str {
    match system {
        System::Linux => "Linux/UNIX",
        System::Windows => "Windows",
    }
}
