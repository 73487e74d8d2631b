//! Tags of every kind, good and bad.

use proptest::prelude::*;

use super::*;

fn read_one(key: &str, value: &str) -> (NodeTags, Vec<BadTag>) {
    read(&BTreeMap::from([(format!("{PREFIX}{key}"), value.to_owned())]))
}

#[test]
fn tags_of_every_kind_are_read() {
    let tags = [
        ("label/team", "blue"),
        ("label/example.com/empty", ""),
        ("label/our-team.example/x", "y"),
        ("taint/dedicated", "true:NoSchedule"),
        ("taint/example.com/gone", ":NoExecute"),
        ("resources/ephemeral-storage", "100G"),
        ("resources/example.com/fpga", "2"),
        ("autoscaling-options/scaledownutilizationthreshold", "0.65"),
        ("autoscaling-options/scaledowngpuutilizationthreshold", "0"),
        ("autoscaling-options/scaledownunneededtime", "10m0s"),
        ("autoscaling-options/scaledownunreadytime", "1.5h"),
        ("autoscaling-options/maxnodeprovisiontime", "900s"),
        ("autoscaling-options/zeroormaxnodescaling", "true"),
        ("autoscaling-options/ignoredaemonsetsutilization", "F"),
    ]
    .map(|(key, value)| (format!("{PREFIX}{key}"), value.to_owned()));
    let (read, bad) = read(&tags.into_iter().chain([("Name".to_owned(), "x".to_owned())]).collect());
    assert_eq!(bad, []);
    assert_eq!(read.labels["team"], "blue");
    assert_eq!(read.labels["example.com/empty"], "");
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.into(),
        value: value.into(),
        effect: effect.into(),
    };
    assert_eq!(
        read.taints,
        [taint("dedicated", "true", "NoSchedule"), taint("example.com/gone", "", "NoExecute")]
    );
    assert_eq!(read.resources["ephemeral-storage"], "100G");
    assert_eq!(read.resources["example.com/fpga"], "2");
    assert_eq!(
        read.options,
        OptionOverrides {
            scale_down_utilization_threshold: Some(0.65),
            scale_down_gpu_utilization_threshold: Some(0.0),
            scale_down_unneeded_time: Some(Duration::from_mins(10)),
            scale_down_unready_time: Some(Duration::from_mins(90)),
            max_node_provision_time: Some(Duration::from_mins(15)),
            zero_or_max_node_scaling: Some(true),
            ignore_daemon_sets_utilization: Some(false),
        }
    );
}

#[test]
fn the_longest_time_of_a_drain_is_spelled_as_the_flag_is() {
    let minutes = |n| Some(DrainTimeout::After(Duration::from_mins(n)));
    let table = [
        ("none", Some(DrainTimeout::Never)),
        ("1m", minutes(1)),
        ("1h 30m", minutes(90)),
        ("30days", minutes(30 * 24 * 60)),
        ("59s", None),
        ("31days", None),
        ("-5m", None),
        ("10", None),
        ("", None),
        ("never", None),
    ];
    for (text, expected) in table {
        let tags = BTreeMap::from([("ebbtide/drain-timeout".to_owned(), text.to_owned())]);
        assert_eq!(drain_timeout(&tags), expected, "{text:?}");
        let reported: Vec<_> = read(&tags).1.into_iter().map(|tag| tag.key).collect();
        assert_eq!(reported.is_empty(), expected.is_some(), "{text:?}: {reported:?}");
    }
    assert_eq!(drain_timeout(&BTreeMap::new()), None);
}

#[test]
fn a_price_is_a_number_of_dollars_an_hour_that_can_be_meant() {
    let table = [
        ("0", Some(0.0)),
        ("0.0416", Some(0.0416)),
        ("10000", Some(10_000.0)),
        ("10000.01", None),
        ("-0.01", None),
        ("NaN", None),
        ("$1", None),
        ("", None),
    ];
    for (text, expected) in table {
        let tags = BTreeMap::from([(PRICE.to_owned(), text.to_owned())]);
        assert_eq!(price_per_hour(&tags), expected, "{text:?}");
        let bad = read(&tags).1;
        assert_eq!(bad.is_empty(), expected.is_some(), "{text:?}: {bad:?}");
    }
    assert_eq!(price_per_hour(&BTreeMap::new()), None);
}

#[test]
fn a_duration_has_every_unit_of_gos() {
    let table = [
        ("1500ns", Duration::from_nanos(1_500)),
        ("2us", Duration::from_micros(2)),
        ("2µs", Duration::from_micros(2)),
        ("2μs", Duration::from_micros(2)),
        ("3ms", Duration::from_millis(3)),
        ("+1h2m3s", Duration::from_secs(3_723)),
        ("0", Duration::ZERO),
        ("2562047h", Duration::from_hours(2_562_047)),
    ];
    for (text, expected) in table {
        let (read, bad) = read_one("autoscaling-options/scaledownunneededtime", text);
        assert_eq!((read.options.scale_down_unneeded_time, bad), (Some(expected), vec![]), "{text}");
        assert!(!read.options.is_empty(), "{text}");
    }
    assert!(read_one("label/team", "blue").0.options.is_empty());
}

#[test]
fn of_a_node_groups_tags_only_resources_count_and_the_groups_own_win() {
    let tags = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|&(key, value)| (format!("{PREFIX}{key}"), value.to_owned())).collect()
    };
    let own = tags(&[("resources/cpu", "3")]);
    let of_node_group = [
        ("resources/cpu", "4"),
        ("resources/example.com/fpga", "1"),
        ("resources/memory", "much"),
        ("label/team", "x"),
    ];
    let (read, bad) = read_with(&own, &tags(&of_node_group));
    assert_eq!((read.resources["cpu"].as_str(), read.resources["example.com/fpga"].as_str()), ("3", "1"));
    assert!(read.labels.is_empty());
    assert_eq!(bad.len(), 1, "{bad:?}");
}

#[test]
fn a_bad_tag_is_left_out_and_reported() {
    for (key, value) in [
        ("label/team", "dark blue"),
        ("label/", "x"),
        ("label/UPPER.example/x", "y"),
        ("label/our_team.example/x", "y"),
        ("label/team", "-blue"),
        ("label/team", "blue-"),
        ("taint/-dedicated", "true:NoSchedule"),
        ("taint/dedicated", "dark blue:NoSchedule"),
        ("taint/dedicated", "NoSchedule"),
        ("taint/dedicated", "true:Sometimes"),
        ("resources/cpu", "-1"),
        ("resources/cpu", "many"),
        ("autoscaling-options/scaledownunneededtime", "10"),
        ("autoscaling-options/scaledownunneededtime", "-10m"),
        ("autoscaling-options/scaledownunneededtime", "2562048h"),
        ("autoscaling-options/scaledownutilizationthreshold", "NaN"),
        ("autoscaling-options/scaledownutilizationthreshold", "inf"),
        ("autoscaling-options/scaledownutilizationthreshold", "-1"),
        ("autoscaling-options/zeroormaxnodescaling", "yes"),
        ("autoscaling-options/maxnodestartuptime", "10m"),
        ("autoscaling-options/somethingelse", "1"),
        ("lable/team", "blue"),
        ("label", "blue"),
        ("", "blue"),
    ] {
        let (read, bad) = read_one(key, value);
        assert_eq!(read, NodeTags::default(), "{key}={value}");
        assert_eq!(bad.len(), 1, "{key}={value}");
    }
}

#[test]
fn an_option_that_the_protocol_cannot_carry_is_told_apart_from_one_that_nobody_knows() {
    let expected = |option: &str| {
        let (_, bad) = read_one(&format!("autoscaling-options/{option}"), "10m");
        bad[0].expected
    };
    assert!(expected("maxnodestartuptime").starts_with("nothing:"));
    assert_ne!(expected("maxnodestartuptime"), expected("somethingelse"));
}

#[test]
fn what_ebbtide_alone_reads_is_spelled_without_cluster_autoscalers_prefix() {
    let one = |key: &str, value: &str| read(&BTreeMap::from([(key.to_owned(), value.to_owned())]));
    let (on, max) = (one(PREFIX_DELEGATION, "true"), one(MAX_PODS, "110"));
    assert_eq!((on.0.prefix_delegation, on.1), (true, vec![]));
    assert_eq!((max.0.max_pods, max.1), (Some(110), vec![]));
    let computed = one(LEARNED_TEMPLATE, "false");
    assert_eq!((computed.0.keep_computed, computed.1), (true, vec![]));
    for (key, value) in [
        (PREFIX_DELEGATION, "yes"),
        (PREFIX_DELEGATION, ""),
        (LEARNED_TEMPLATE, "no"),
        (MAX_PODS, "0"),
        (MAX_PODS, "2001"),
        (MAX_PODS, "-5"),
        (MAX_PODS, "many"),
    ] {
        let (read, bad) = one(key, value);
        assert_eq!((read, bad.len()), (NodeTags::default(), 1), "{key}={value}");
    }
    assert_eq!(one("ebbtide/something-else", "x").1, []);
}

proptest! {
    #[test]
    fn no_tag_makes_it_panic(kind in "label|taint|resources|autoscaling-options|other", name in ".*", value in ".*") {
        let _ = read_one(&format!("{kind}/{name}"), &value);
    }

    #[test]
    fn no_option_value_makes_it_panic(value in "[0-9.a-zµ+-]{0,12}") {
        let _ = read_one("autoscaling-options/scaledownunneededtime", &value);
    }

    #[test]
    fn a_duration_as_go_prints_it_is_read_back(hours in 0..1000u64, minutes in 0..60u64, seconds in 0..60u64) {
        let (read, _) =
            read_one("autoscaling-options/scaledownunneededtime", &format!("{hours}h{minutes}m{seconds}s"));
        let whole = Duration::from_secs(hours * 3600 + minutes * 60 + seconds);
        prop_assert_eq!(read.options.scale_down_unneeded_time, Some(whole));
    }
}
