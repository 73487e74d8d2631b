//! What cluster-autoscaler's price expander buys by the prices that it is told: the whole program on the simulated worlds, and
//! beside it the stand-in, which computes as the real expander does.

use ebbtide::config::{Config, PriceSource};
use ebbtide::sim::autoscaler::{Expander, Options, Version};
use ebbtide::sim::aws::GroupSpec;
use ebbtide::sim::cluster::replica_set;
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;

use crate::scene::{Loop, SOON, Scene, group};

const BOTH: [Version; 2] = [Version::V1_30, Version::Core2026];

fn by_price(version: Version) -> Options {
    Options { expander: Expander::Price, ..Options::of(version) }
}

fn of_type(name: &str, instance_type: &str) -> GroupSpec {
    group(name, 0).template(instance_type)
}

/// Which group gets a node for a pod of half a core, and how many.
async fn bought(
    version: Version,
    config: Config,
    groups: impl IntoIterator<Item = GroupSpec>,
) -> Vec<(String, i32)> {
    let scene = Scene::configured(World::new(1), config, groups).await;
    let autoscaler = Loop::start(&scene, by_price(version));
    scene.world.cluster.add(replica_set("web", 1).cpu_millis(500));
    scene.world.until(SOON, |_| scene.running("web") == 1).await;
    autoscaler.bought().into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn the_cheapest_group_that_fits_grows() {
    let priced = Config { prices: Some(PriceSource::Table), ..config() };
    for version in BOTH {
        let groups = [
            of_type("a-memory", "r5.large"),
            of_type("b-plain", "m5.large"),
            of_type("c-compute", "c5.large"),
        ];
        assert_eq!(
            bought(version, priced.clone(), groups).await,
            [("c-compute".to_owned(), 1)],
            "{version:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_paid_for_already_grows_first() {
    let priced = Config { prices: Some(PriceSource::Table), ..config() };
    for version in BOTH {
        let reserved = of_type("a-memory", "r5.large").tag("ebbtide/price-per-hour", "0.04");
        let groups = [reserved, of_type("b-plain", "m5.large"), of_type("c-compute", "c5.large")];
        assert_eq!(
            bought(version, priced.clone(), groups).await,
            [("a-memory".to_owned(), 1)],
            "{version:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_prices_the_price_expander_buys_nothing() {
    let groups = [of_type("b-plain", "m5.large")];
    assert_eq!(bought(Version::V1_30, config(), groups).await, []);
}
