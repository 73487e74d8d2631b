//! The time-outs by which AWS holds instances.

use super::*;

/// Time-outs, and when each was seen last and missing first.
type Had = &'static [(u64, i64, i64)];

#[test]
fn a_hold_has_the_shortest_time_out_that_the_hook_may_have_had_when_it_began() {
    let at = |second: i64| Timestamp::from_second(second).expect("in range");
    let hook = |seconds: u64| Hook::new("ours", "web", Duration::from_secs(seconds));
    let known = |earlier: Had| Known {
        looked_at: at(10_000),
        first: at(0),
        hooks: Vec::new(),
        earlier: earlier
            .iter()
            .map(|&(timeout, seen, gone)| Earlier {
                timeout: Duration::from_secs(timeout),
                seen: at(seen),
                gone: at(gone),
            })
            .collect(),
    };
    let table: [(&str, Had, u64, i64, u64); 7] = [
        ("never changed", &[], 60, 1_000, 60),
        ("before the hold", &[(300, 900, 960)], 60, 1_000, 60),
        ("at its beginning, to a longer one", &[(60, 1_100, 1_160)], 300, 1_000, 60),
        ("at its beginning, to a shorter one", &[(300, 1_100, 1_160)], 60, 1_000, 60),
        ("long after it began", &[(300, 2_000, 2_060)], 60, 1_000, 300),
        (
            "to another and back",
            &[(300, 2_000, 2_060), (3_600, 3_000, 3_060), (300, 4_000, 4_060)],
            3_600,
            1_000,
            300,
        ),
        (
            "the same, later",
            &[(300, 2_000, 2_060), (3_600, 3_000, 3_060), (300, 4_000, 4_060)],
            3_600,
            2_500,
            3_600,
        ),
    ];
    for (case, earlier, now, since, expected) in table {
        let held = known(earlier).as_of(hook(now), Some(HoldStart { since: at(since), timeout: None }));
        assert_eq!(held.heartbeat_timeout, Duration::from_secs(expected), "{case}");
    }
    assert_eq!(known(table[4].1).as_of(hook(60), None), hook(60));
    // When this run saw the hook first, what is noted, what the hook has now, what counts.
    for (first, noted, now, expected) in [
        (2_000, Some(60), 300, 60),
        (2_000, Some(300), 60, 300),
        (2_000, None, 300, 300),
        (1_100, Some(300), 60, 60),
        (1_100, Some(60), 300, 60),
        (900, Some(300), 60, 60),
        (2_000, Some(1), 300, 30),
        (2_000, Some(10), 10, 10),
        (2_000, Some(1), 10, 10),
        (2_000, Some(40), 10, 40),
        (2_000, Some(1_000_000), 300, 7_200),
    ] {
        let known = Known { first: at(first), ..known(&[]) };
        let began = HoldStart { since: at(1_000), timeout: noted.map(Duration::from_secs) };
        assert_eq!(known.as_of(hook(now), Some(began)), hook(expected), "{first} {noted:?} {now}");
    }
}
