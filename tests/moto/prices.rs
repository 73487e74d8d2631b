//! Spot prices as moto tells them; it has no Price List.

use ebbtide::aws::Aws;
use jiff::Timestamp;

/// moto knows nothing of time and of operating systems here: every type has one price in each zone.
#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
#[expect(clippy::disallowed_methods, reason = "tests/moto.sh says where moto is")]
async fn spot_prices_are_read_in_every_zone_and_a_type_that_is_not_known_has_none() {
    let endpoint = std::env::var("EBBTIDE_MOTO_ENDPOINT").expect("run tests/moto.sh");
    let aws = Aws::connect(Some("us-east-1"), Some(&endpoint), None).await.expect("a region");
    let types = ["m5.large", "no.such", "c5.large"].map(str::to_owned);
    let now = Timestamp::from_second(1_800_000_000).expect("in range");
    let prices = aws.spot_prices(&types, "Linux/UNIX", now).await.expect("prices");
    for (name, known) in [("m5.large", true), ("c5.large", true), ("no.such", false)] {
        let zones: Vec<_> =
            prices.iter().filter(|one| one.instance_type == name).map(|one| &one.zone).collect();
        assert_eq!(zones.len() > 2, known, "{name} {zones:?}");
    }
    assert!(prices.iter().all(|one| one.price > 0.0 && one.zone.starts_with("us-east-1")), "{prices:?}");
}
