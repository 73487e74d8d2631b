//! What cluster-autoscaler's price expander buys by the prices that it is told: the whole program on the simulated worlds, and
//! beside it the stand-in, which computes as the real expander does.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_sdk_autoscaling::config::SharedCredentialsProvider;
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use ebbtide::aws::{AutoScalingGroup, Aws, Launch, Override};
use ebbtide::commands::{self, Style};
use ebbtide::config::{Config, Output, PriceSource};
use ebbtide::groups::{Group, Groups, Snapshot};
use ebbtide::prices::{Prices, Reader, Source, System, register_age};
use ebbtide::provider::expander::proto::{BestOptionsRequest, Option as Offered};
use ebbtide::provider::proto::{ExternalGrpcNode, PricingNodePriceRequest};
use ebbtide::sim::autoscaler::{Expander, Options, Version};
use ebbtide::sim::aws::{GroupSpec, Lose, MixedSpec, Operation, Refusal, Trouble, Which};
use ebbtide::sim::cluster::replica_set;
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use prometheus_client::registry::Registry;
use prost_types::Timestamp;
use serde_json::{Value, json};
use tracing::Level;

use crate::scene::{Loop, SOON, Scene, ZONE, eventually, group};

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

/// A group of m5.large of which so many percent, after so many, are On-Demand.
fn mixed(name: &str, base: u32, percentage: u32) -> GroupSpec {
    of_type(name, "m5.large").mixed(MixedSpec::of(["m5.large"]).on_demand(base, percentage))
}

fn by_aws() -> Config {
    Config { prices: Some(PriceSource::Aws), ..config() }
}

/// A world in which a spot m5.large costs so much.
fn spot_at(price: &str) -> World {
    let world = World::new(1);
    world.aws.set_spot_price("m5.large", ZONE, "0.09");
    world.aws.set_spot_price("m5.large", ZONE, price);
    world.aws.set_spot_price("m5.large", "us-east-1f", "9.99");
    world.aws.set_spot_price("p5.48xlarge", ZONE, "20");
    world
}

/// Three groups of the same machine: spot, On-Demand, and half of each.
fn three() -> [GroupSpec; 3] {
    [mixed("a-half", 0, 50), mixed("b-demand", 0, 100), mixed("c-spot", 0, 0)]
}

/// What the next node of a group costs for an hour.
async fn hourly(scene: &Scene, group: &str) -> f64 {
    let labels = [("node.kubernetes.io/instance-type".to_owned(), "m5.large".to_owned())].into();
    let node = ExternalGrpcNode {
        name: format!("template-node-for-{group}-1"),
        labels,
        ..ExternalGrpcNode::default()
    };
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let (start_timestamp, end_timestamp) = (at(0), at(3_600));
    let request =
        PricingNodePriceRequest { node: Some(node), start_timestamp, end_timestamp, ..Default::default() };
    scene.program.client().pricing_node_price(request).await.expect("a price").into_inner().price
}

async fn costs(scene: &Scene, group: &str, expected: f64) -> bool {
    let close = || async { (hourly(scene, group).await - expected).abs() < 1e-9 };
    eventually(Duration::from_mins(15), close).await
}

#[tokio::test(start_paused = true)]
async fn spot_is_bought_while_it_is_cheap_and_on_demand_when_it_is_dear() {
    for version in BOTH {
        for (price, expected) in [("0.035", "c-spot"), ("0.31", "b-demand")] {
            let scene = Scene::configured(spot_at(price), by_aws(), three()).await;
            assert!(costs(&scene, "c-spot", price.parse().expect("a number")).await);
            let autoscaler = Loop::start(&scene, by_price(version));
            scene.world.cluster.add(replica_set("web", 1).cpu_millis(500));
            assert!(scene.world.until(SOON, |_| scene.running("web") == 1).await);
            assert_eq!(autoscaler.bought(), [(expected.to_owned(), 1)].into(), "{version:?} {price}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_of_both_costs_what_its_distribution_says() {
    let groups = three().into_iter().chain([mixed("d-base", 1, 0)]);
    let scene = Scene::configured(spot_at("0.036"), by_aws(), groups).await;
    assert!(costs(&scene, "c-spot", 0.036).await);
    assert!((hourly(&scene, "a-half").await - 0.066).abs() < 1e-9);
    assert!((hourly(&scene, "b-demand").await - 0.096).abs() < 1e-9);
    assert!((hourly(&scene, "d-base").await - 0.096).abs() < 1e-9, "the first is On-Demand");
}

#[tokio::test(start_paused = true)]
async fn a_new_spot_price_is_told_within_minutes_and_one_that_cannot_be_read_again_is_kept() {
    let scene = Scene::configured(spot_at("0.04"), by_aws(), three()).await;
    assert!(costs(&scene, "c-spot", 0.04).await);
    scene.world.aws.set_spot_price("m5.large", ZONE, "0.05");
    assert!(costs(&scene, "c-spot", 0.05).await);
    scene.world.aws.deny(Operation::DescribeSpotPriceHistory, true);
    scene.world.aws.set_spot_price("m5.large", ZONE, "0.06");
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert!((hourly(&scene, "c-spot").await - 0.05).abs() < 1e-9, "the last that is known");
    scene.world.aws.deny(Operation::DescribeSpotPriceHistory, false);
    assert!(costs(&scene, "c-spot", 0.06).await);
}

#[tokio::test(start_paused = true)]
async fn yuan_are_not_taken_for_dollars() {
    let world = spot_at("0.28");
    let groups = Arc::new(Groups::new(Duration::from_mins(10)));
    let prices = Arc::new(Prices::of("us-east-1", true));
    // Spot prices, and how often it is warned of them.
    let told = async |region| {
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static(region))
            .credentials_provider(SharedCredentialsProvider::new(Credentials::from_keys("id", "key", None)))
            .http_client(aws_client(Arc::new(world.aws.clone())))
            .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
            .build();
        let aws = Aws::new(&config).expect("a region");
        let found = aws.spot_prices(&["m5.large".to_owned()], "Linux/UNIX", world.clock.now()).await;
        let found = found.expect("answered");
        let found: Vec<_> = found.iter().filter(|one| one.zone == ZONE).map(|one| one.price).collect();
        let (log, _guard) = captured::log(Level::WARN);
        drop(Reader::new(aws, Arc::clone(&groups), Arc::clone(&prices), world.clock.clone()));
        (found, log.text().matches("told in USD").count())
    };
    assert_eq!(told("us-east-1").await, (vec![0.28], 0));
    assert_eq!(told("cn-north-1").await, (vec![], 1));
}

/// A snapshot of a group that launches these types.
fn launches(world: &World, types: &[&str]) -> Snapshot {
    let of_type = |kind: &&str| Override { instance_type: Some((*kind).to_owned()), ..Override::default() };
    let launch = Launch { overrides: types.iter().map(of_type).collect(), ..Launch::default() };
    let asg = AutoScalingGroup { name: "web".into(), launch, ..AutoScalingGroup::default() };
    Snapshot::new(world.clock.now(), [Arc::new(Group { asg: Arc::new(asg), ..Group::default() })])
}

/// What reads the prices of these types, the prices, and the groups.
fn reads(world: &World, types: &[&str]) -> (Reader, Arc<Prices>, Arc<Groups>) {
    let groups = Arc::new(Groups::new(Duration::from_mins(10)));
    groups.publish(launches(world, types));
    let prices = Arc::new(Prices::of("us-east-1", true));
    let aws = Aws::at(aws_client(Arc::new(world.aws.clone())));
    let reader = Reader::new(aws, Arc::clone(&groups), Arc::clone(&prices), world.clock.clone());
    (reader, prices, groups)
}

/// The age of each source's prices in seconds, as `/metrics` tells it.
fn ages(registry: &Registry) -> BTreeMap<String, f64> {
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, registry).expect("writes to a string");
    let series = page.lines().filter_map(|line| line.strip_prefix("ebbtide_prices_age_seconds{source=\""));
    let parsed = series.filter_map(|rest| rest.split_once("\"} "));
    parsed.map(|(source, age)| (source.to_owned(), age.parse().expect("a number"))).collect()
}

#[tokio::test(start_paused = true)]
async fn prices_grow_older_while_they_cannot_be_read_and_go_when_nobody_needs_them_or_aws_has_them_no_more() {
    let world = spot_at("0.04");
    world.aws.list_price("m5.large", "0.1");
    let (mut reader, prices, groups) = reads(&world, &[]);
    let mut registry = Registry::default();
    register_age(&mut registry, prices, world.clock.clone());
    let sources = || ages(&registry).into_keys().collect::<Vec<_>>();
    assert_eq!(sources(), ["table"], "AWS has told nothing yet");

    groups.publish(launches(&world, &["m5.large"]));
    reader.refresh().await;
    let told = ages(&registry);
    assert!(told["spot"] < 60.0 && told["list"] < 60.0 && told["table"] > 86_400.0, "{told:?}");
    let both = [Operation::DescribeSpotPriceHistory, Operation::GetProducts];
    let deny = |is_denied| both.iter().for_each(|operation| world.aws.deny(*operation, is_denied));
    deny(true);
    for _ in 0..72 {
        tokio::time::sleep(Duration::from_hours(1)).await;
        reader.refresh().await;
    }
    let older = ages(&registry);
    for source in ["spot", "list", "table"] {
        assert!((older[source] - told[source] - 3.0 * 86_400.0).abs() < 600.0, "{source}: {older:?}");
    }

    deny(false);
    world.aws.withdraw("m5.large");
    tokio::time::sleep(Duration::from_hours(1)).await;
    reader.refresh().await;
    assert_eq!(sources(), ["table"], "AWS says that there is none");

    world.aws.set_spot_price("m5.large", ZONE, "0.04");
    world.aws.list_price("m5.large", "0.1");
    tokio::time::sleep(Duration::from_hours(25)).await;
    reader.refresh().await;
    assert_eq!(sources(), ["list", "spot", "table"]);
    groups.publish(launches(&world, &["c5.large"]));
    reader.refresh().await;
    assert_eq!(sources(), ["table"], "nobody launches it");
}

#[tokio::test(start_paused = true)]
async fn prices_that_were_never_read_grow_older_from_the_first_refusal_on() {
    let world = spot_at("0.04");
    world.aws.deny(Operation::DescribeSpotPriceHistory, true);
    let (mut reader, prices, groups) = reads(&world, &["m5.large"]);
    let mut registry = Registry::default();
    register_age(&mut registry, prices, world.clock.clone());
    groups.publish(launches(&world, &["m5.large"]));
    for _ in 0..72 {
        reader.refresh().await;
        tokio::time::sleep(Duration::from_hours(1)).await;
    }
    let told = ages(&registry);
    assert!((told["spot"] - 3.0 * 86_400.0).abs() < 600.0, "{told:?}");
    world.aws.deny(Operation::DescribeSpotPriceHistory, false);
    reader.refresh().await;
    let told = ages(&registry);
    assert!(told["spot"] < 600.0, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn empty_pages_throttling_and_silence_cost_a_minute_at_most() {
    let throttled = Refusal { code: "RequestLimitExceeded", status: 503, message: "Request limit exceeded." };
    for trouble in [
        Trouble::EmptyPage,
        Trouble::Refused(throttled, Lose::BeforeEffect),
        Trouble::Silent(Lose::BeforeEffect),
    ] {
        let world = spot_at("0.04");
        world.aws.trouble(Which::of(&[Operation::DescribeSpotPriceHistory]).times(3), trouble.clone());
        let scene = Scene::configured(world, by_aws(), three()).await;
        assert!(costs(&scene, "c-spot", 0.04).await, "{trouble:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_types_are_asked_for_at_once_and_seldom() {
    let groups =
        (0..30).map(|n| of_type(&format!("g{n:02}"), if n % 2 == 0 { "m5.large" } else { "c5.large" }));
    let world = World::plain(1);
    world.aws.set_spot_price("m5.large", ZONE, "0.04");
    let scene = Scene::configured(world, by_aws(), groups).await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    let calls = scene.world.aws.calls(Operation::DescribeSpotPriceHistory);
    assert!((6..=8).contains(&calls), "one each ten minutes: {calls}");
}

#[tokio::test(start_paused = true)]
async fn the_command_shows_what_the_program_answers() {
    let tagged = of_type("d-paid", "r5.large").tag("ebbtide/price-per-hour", "0.04");
    let scene = Scene::configured(spot_at("0.036"), by_aws(), three().into_iter().chain([tagged])).await;
    assert!(costs(&scene, "c-spot", 0.036).await);
    let aws = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    let report = commands::prices::look(&aws, &by_aws(), false, &scene.world.clock).await.expect("looked");
    assert_eq!(report.choice, None);
    for one in &report.groups {
        let per_hour = one.per_hour.expect("a price");
        assert!((per_hour - hourly(&scene, &one.name).await).abs() < 1e-9, "{one:?}");
        assert!(one.per_vcpu.is_some_and(|price| price > per_hour / 2.1), "{one:?}");
    }
    let shown: Vec<_> =
        report.groups.iter().map(|one| (one.name.as_str(), one.source, one.spot_share)).collect();
    let expected = [
        ("a-half", Some(Source::table), 0.5),
        ("b-demand", Some(Source::table), 0.0),
        ("c-spot", Some(Source::spot), 1.0),
        ("d-paid", Some(Source::tag), 0.0),
    ];
    assert_eq!(shown, expected);
    let text = commands::prices::render(&report, Output::Table, Style::default());
    assert!(text.contains("c-spot     m5.large   100 %   0.0360"), "{text}");
    assert!(text.contains("Pods in us-east-1: 0.0333 a vCPU"), "{text}");
    let json: Value =
        serde_json::from_str(&commands::prices::render(&report, Output::Json, Style::default()))
            .expect("JSON");
    assert_eq!((&json["groups"][2]["source"], &json["notes"]), (&json!("spot"), &json!([])), "{json:#}");
}

#[tokio::test(start_paused = true)]
async fn the_command_says_which_prices_aws_refuses() {
    let scene = Scene::configured(spot_at("0.036"), by_aws(), three()).await;
    scene.world.aws.deny(Operation::DescribeSpotPriceHistory, true);
    scene.world.aws.deny(Operation::GetProducts, true);
    let aws = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    let report = commands::prices::look(&aws, &by_aws(), false, &scene.world.clock).await.expect("looked");
    let text = commands::prices::render(&report, Output::Table, Style::default());
    for part in
        ["Note: spot prices could not be read", "Note: the Price List could not be read", "not authorized"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_command_explains_which_group_the_expander_would_grow() {
    let groups = [of_type("dear", "m5.2xlarge"), of_type("cheap", "m5.large"), of_type("near", "m5a.xlarge")];
    let policy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("explained-policy");
    fs::write(&policy, "capacity\nprice 10%\n").expect("written");
    let config = Config { prices: Some(PriceSource::Table), expander_policy: Some(policy), ..config() };
    let scene = Scene::configured(World::new(1), config.clone(), groups).await;
    let aws = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    let report = commands::prices::look(&aws, &config, true, &scene.world.clock).await.expect("looked");
    let text = commands::prices::render(&report, Output::Table, Style::default());
    let json: Value =
        serde_json::from_str(&commands::prices::render(&report, Output::Json, Style::default()))
            .expect("JSON");
    assert_eq!(json["choice"]["best"], json!(["cheap"]), "{json:#}");
    let decided = json!([{ "criterion": "price", "left": 1 }]);
    assert_eq!(json["choice"]["decidedBy"], decided, "{json:#}");
    for part in [
        "The expander would grow cheap: price leaves 1.\n  cheap: 1 nodes for 1 pods, 0.0960 USD/h a pod",
        "\n  dear: 1 nodes for 1 pods, 0.3840 USD/h a pod",
        "Not known here: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // As the running program answers.
    let option = |name: &str| Offered { node_group_id: name.to_owned(), node_count: 1, ..Offered::default() };
    let asked = BestOptionsRequest { options: ["dear", "cheap", "near"].map(option).to_vec() };
    let answer = scene.program.expander().best_options(asked).await.expect("answered").into_inner();
    assert_eq!(answer.options.iter().map(|option| &option.node_group_id[..]).collect::<Vec<_>>(), ["cheap"]);
}

#[tokio::test(start_paused = true)]
async fn the_price_list_beats_the_table_and_what_it_has_of_other_products_counts_for_nothing() {
    let world = World::new(1);
    world.aws.list_price("m5.large", "0.0800000000");
    let groups = [of_type("b-plain", "m5.large"), of_type("c-compute", "c5.large")];
    let scene = Scene::configured(world, by_aws(), groups).await;
    assert!(costs(&scene, "b-plain", 0.08).await);
    // Dearer by the table is cheaper by the list.
    let autoscaler = Loop::start(&scene, by_price(Version::V1_30));
    scene.world.cluster.add(replica_set("web", 1).cpu_millis(500));
    assert!(scene.world.until(SOON, |_| scene.running("web") == 1).await);
    assert_eq!(autoscaler.bought(), [("b-plain".to_owned(), 1)].into());
}

#[tokio::test(start_paused = true)]
async fn the_price_list_is_read_once_a_day() {
    let world = spot_at("0.04");
    world.aws.list_price("m5.large", "0.08");
    let (mut reader, prices, _groups) = reads(&world, &["m5.large"]);
    let told = || prices.book().on_demand[&("m5.large".to_owned(), System::Linux)].per_hour;
    reader.refresh().await;
    world.aws.list_price("m5.large", "0.07");
    for (hours, expected, calls) in [(23, 0.08, 1), (2, 0.07, 2)] {
        tokio::time::sleep(Duration::from_hours(hours)).await;
        reader.refresh().await;
        assert!((told() - expected).abs() < 1e-9, "{hours} h later: {}", told());
        assert_eq!(world.aws.calls(Operation::GetProducts), calls, "{hours} h later");
    }
}

#[tokio::test(start_paused = true)]
async fn a_price_list_that_is_denied_or_silent_costs_spot_prices_and_the_table_nothing() {
    for trouble in [true, false] {
        let world = spot_at("0.04");
        world.aws.list_price("m5.large", "0.0800000000");
        if trouble {
            let silence = Which::of(&[Operation::GetProducts]).lasting(Duration::from_hours(2));
            world.aws.trouble(silence, Trouble::Silent(Lose::BeforeEffect));
        } else {
            world.aws.deny(Operation::GetProducts, true);
        }
        let scene = Scene::configured(world, by_aws(), three()).await;
        assert!(costs(&scene, "c-spot", 0.04).await);
        assert!((hourly(&scene, "b-demand").await - 0.096).abs() < 1e-9);
        tokio::time::sleep(Duration::from_hours(2)).await;
        scene.world.aws.deny(Operation::GetProducts, false);
        assert!(costs(&scene, "b-demand", 0.08).await);
    }
}
