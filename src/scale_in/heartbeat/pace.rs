//! When steps for held instances begin that are due: at once if they are few, otherwise one after the other, those first that have the
//! least time. All callers of an account share what AWS takes: hundreds at once, as after a restart, would leave nothing for sizes. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::clock::{later, signed};

/// At most this many are under way, save for those that cannot wait.
const AT_ONCE: usize = 20;

/// Where more are due, one begins this long after the other, or as many as it takes for all to begin in time.
const APART: SignedDuration = SignedDuration::from_millis(100);

/// A step that is due can wait for this part of what is left of the hold ...
const WAITS_FOR_PART: i32 = 5;

/// ... and for this long.
const WAITS_AT_MOST: SignedDuration = SignedDuration::from_secs(30);

/// When a step begins at the latest that is due at `due`, for a hold that lapses at `lapses`, if that is known, and has this time-out. No
/// more is left than when a heartbeat is due: what is known may be too good. And no less where nothing is known, or the hold outlasts what
/// is: whoever sent heartbeats until now did so in time.
pub(super) fn begins_by(due: Timestamp, lapses: Option<Timestamp>, timeout: Duration) -> Timestamp {
    let half = signed(timeout / 2);
    let left = lapses.map(|lapses| lapses.duration_since(due)).filter(SignedDuration::is_positive);
    later(due, (left.unwrap_or(half).min(half) / WAITS_FOR_PART).min(WAITS_AT_MOST))
}

/// How many steps are under way, and when the last one began.
#[derive(Debug, Default)]
pub(super) struct Pace {
    under_way: usize,
    begun: Option<Timestamp>,
}

impl Pace {
    /// How many of these steps begin now, and when the next one does, unless one under way ends before. They are in the order of when they
    /// begin at the latest.
    pub(super) fn begin(&mut self, due: &[Timestamp], now: Timestamp) -> (usize, Option<Timestamp>) {
        let free = AT_ONCE.saturating_sub(self.under_way);
        let is_turn = self.begun.is_none_or(|begun| later(begun, APART) <= now);
        let begin = match due.len() {
            all if all <= free => all,
            _ if is_turn => needed(due, now).min(free).max(late(due, now)),
            _ => late(due, now),
        };
        self.under_way += begin;
        self.begun = if begin > 0 { Some(now) } else { self.begun };
        let turn = self.begun.map(|begun| later(begun, APART)).filter(|_| begin < free);
        (begin, due.get(begin).map(|by| turn.map_or(*by, |turn| turn.min(*by))))
    }

    /// Notes that one has ended.
    pub(super) fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
}

/// How many of them cannot wait any longer.
fn late(due: &[Timestamp], now: Timestamp) -> usize {
    due.partition_point(|by| *by <= now)
}

/// How many of them are to begin now so that all begin in time, at a steady pace.
fn needed(due: &[Timestamp], now: Timestamp) -> usize {
    let at_once = |(by, nth): (&Timestamp, u32)| {
        let turns = by.duration_since(now).as_secs_f64() / APART.as_secs_f64();
        (f64::from(nth) / turns.max(1.0)).ceil() as usize
    };
    due.iter().zip(1..).map(at_once).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_millis(millis)
    }

    /// When each of these begins that are due from the start on, in milliseconds, if each then takes so long.
    fn begun(mut due: Vec<i64>, takes: i64) -> Vec<i64> {
        let (mut pace, mut begun, mut now) = (Pace::default(), Vec::new(), 0);
        while !due.is_empty() {
            let by: Vec<_> = due.iter().map(|by| at(*by)).collect();
            let (many, turn) = pace.begin(&by, at(now));
            begun.extend(due.drain(..many).map(|_| now));
            let ends = begun.iter().map(|begun| begun + takes).filter(|ends| *ends > now).min();
            let turn = turn.map(|turn| turn.duration_since(at(0)).as_millis() as i64);
            assert!(turn.is_some() || due.is_empty(), "nobody is forgotten");
            let next = turn.into_iter().chain(ends).min().expect("something happens");
            assert!(next > now, "{next} after {now}");
            now = next;
            (0..begun.iter().filter(|begun| *begun + takes == now).count()).for_each(|_| pace.ended());
        }
        begun
    }

    #[test]
    fn few_begin_at_once_and_many_in_turn_and_each_in_time() {
        // How many, by when they are to begin, how long each takes, and how many begin in a second at the most.
        for (many, by, takes, at_most) in [
            (20, 3_000, 200, 20),
            (21, 3_000, 200, 21),
            (300, 30_000, 200, 30),
            (100, 6_000, 200, 39),
            (100, 3_000, 200, 60),
            (3_000, 30_000, 100, 130),
            (30, 300, 200, 30),
            (1, 0, 200, 1),
        ] {
            let begun = begun(vec![by; many], takes);
            assert!(begun.iter().all(|at| *at <= by), "{many} by {by}: {begun:?}");
            let in_second = |from: i64| begun.iter().filter(|at| (from..from + 1_000).contains(*at)).count();
            let most = begun.iter().map(|from| in_second(*from)).max().expect("one");
            assert!(most <= at_most, "{many} by {by}: {most} in a second");
        }
    }

    #[test]
    fn those_with_the_least_time_begin_first_and_do_not_hurry_the_others() {
        let due = [vec![300; 10], vec![30_000; 290]].concat();
        let begun = begun(due, 200);
        assert!(begun[..10].iter().all(|at| *at <= 300), "{:?}", &begun[..10]);
        assert!(begun[40] >= 2_000 && begun[299] <= 30_000, "{begun:?}");
    }

    #[test]
    fn one_that_cannot_wait_begins_though_as_many_as_may_be_are_under_way_and_hang() {
        let begun = begun([vec![100; 20], vec![3_000; 40]].concat(), 1_000_000);
        assert!(begun.iter().all(|at| *at <= 3_000), "{begun:?}");
        assert_eq!(begun.iter().filter(|at| **at < 3_000).count(), AT_ONCE);
    }

    #[test]
    fn a_step_waits_for_a_tenth_of_the_time_out_at_most_and_less_where_less_is_left() {
        let by = |lapses: Option<i64>, timeout| {
            let by = begins_by(at(10_000), lapses.map(at), Duration::from_secs(timeout));
            by.duration_since(at(10_000)).as_millis()
        };
        for (lapses, timeout, waits) in [
            (None, 300, 30_000),
            (None, 30, 3_000),
            (None, 3, 300),
            (None, 7_200, 30_000),
            (Some(310_000), 300, 30_000),
            (Some(160_000), 300, 30_000),
            (Some(60_000), 300, 10_000),
            (Some(11_000), 300, 200),
            (Some(10_000), 300, 30_000),
            (Some(0), 300, 30_000),
        ] {
            assert_eq!(by(lapses, timeout), waits, "{lapses:?} of {timeout}");
        }
    }
}
