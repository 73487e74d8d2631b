//! What nodes and pods cost, for cluster-autoscaler's `--expander=price`.
//!
//! - Prices are USD per hour, On-Demand or spot, without volumes, traffic and taxes.
//! - An answer never waits for AWS, and fails only for an unknown type of unknown size: what AWS told ([`book`]) counts for a
//!   week, then the built-in [`table`], then what is [`near`], then what a vCPU, a GiB and a GPU cost elsewhere ([`fit`]).
//! - All of it is pure but [`Prices`], which holds what is known and counts what was asked.

mod age;
pub mod book;
pub mod fit;
pub mod near;
pub mod node;
pub mod pod;
mod reader;
pub mod table;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_pb::api::core::v1::Pod;
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

pub use age::register_age;
pub use book::{Book, Kind, Price, Source, System};
pub use node::PricedNode;
pub use reader::{Reader, listed_as, product};

use self::fit::Parts;

/// Most types of which the log tells that AWS has not told their price.
const TOLD_AT_MOST: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    source: Source,
}

/// What is known of prices. Any number of readers.
#[derive(Debug)]
pub struct Prices {
    region: String,
    /// What counts as well known: what is less sure is logged.
    sure: Source,
    book: RwLock<Arc<Book>>,
    /// Types that the log has told of.
    told: Mutex<BTreeSet<String>>,
    answers: Family<Labels, Counter>,
}

impl Prices {
    /// Prices in a region, of the table for now. `asks`: whether AWS will be asked for its own.
    pub fn of(region: impl Into<String>, asks: bool) -> Self {
        let answers: Family<Labels, Counter> = Family::default();
        // A rate needs a zero before the first one.
        for source in Source::ALL {
            drop(answers.get_or_create(&Labels { source }));
        }
        Self {
            region: region.into(),
            sure: if asks { Source::list } else { Source::table },
            book: RwLock::default(),
            told: Mutex::default(),
            answers,
        }
    }

    /// Registers `ebbtide_node_prices_total`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Prices of nodes that were asked for, by where they are from";
        registry.register("ebbtide_node_prices", help, self.answers.clone());
    }

    /// What AWS has told.
    pub fn book(&self) -> Arc<Book> {
        Arc::clone(&self.book.read())
    }

    /// Notes what AWS has told.
    fn learn(&self, change: impl FnOnce(&mut Book)) {
        change(Arc::make_mut(&mut self.book.write()));
    }

    /// Forgets what AWS has told of other kinds than these.
    fn forget_all_but(&self, wanted: &BTreeSet<Kind>) {
        let book = self.book();
        if book.spot.keys().chain(book.on_demand.keys()).any(|kind| !wanted.contains(kind)) {
            drop(book);
            self.learn(|book| {
                book.spot.retain(|kind, _| wanted.contains(kind));
                book.on_demand.retain(|kind, _| wanted.contains(kind));
            });
        }
    }

    /// The region.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// What a node costs an hour; `None` if nothing is known of it, not even its size.
    pub fn of_node(&self, node: &PricedNode<'_>, now: Timestamp) -> Option<Price> {
        let price = node.price(&self.book(), &self.region, now)?;
        self.answers.get_or_create(&Labels { source: price.source }).inc();
        if price.source > self.sure {
            self.tell(node.instance_type, &price);
        }
        Some(price)
    }

    /// What a pod costs an hour on a machine that fits exactly.
    pub fn of_pod(&self, pod: &Pod) -> f64 {
        let pod::Size { vcpus, gib, gpus } = pod::requests(pod);
        Parts::of(&self.region).price(vcpus, gib, gpus)
    }

    /// Logs once a type that its price is not known as well as it could be.
    fn tell(&self, instance_type: &str, price: &Price) {
        let mut told = self.told.lock();
        if told.len() < TOLD_AT_MOST && told.insert(instance_type.to_owned()) {
            let Price { per_hour, source, .. } = price;
            tracing::info!(
                instance_type,
                ?source,
                per_hour,
                "the price of this instance type is an estimate"
            );
        }
    }
}
