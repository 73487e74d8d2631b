//! Reads why a launch was tried.

/// What AWS writes before the capacity that the group had and the one that it wanted.
const INCREASING: &str = "increasing the capacity from ";

/// For how many instances the try was: AWS ends the cause with "…, increasing the capacity from 0 to 10.", whether or not there is an
/// activity for each of them. One if it does not say.
pub(super) fn tried(cause: &str) -> usize {
    increase(cause).unwrap_or(1)
}

fn increase(cause: &str) -> Option<usize> {
    let (_, capacities) = cause.rsplit_once(INCREASING)?;
    let (from, rest) = capacities.split_once(" to ")?;
    let to = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    to.parse::<usize>().ok()?.checked_sub(from.parse().ok()?).filter(|more| *more > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cause_tells_for_how_many_instances_a_try_was() {
        let table = [
            (
                "At 2026-01-01T00:00:00Z a user request explicitly set group desired capacity changing the desired \
                 capacity from 2 to 12.  At 2026-01-01T00:00:02Z an instance was started in response to a difference \
                 between desired and actual capacity, increasing the capacity from 2 to 12.",
                10,
            ),
            ("increasing the capacity from 0 to 5.  At noon, increasing the capacity from 3 to 5", 2),
            ("increasing the capacity from 5 to 6.", 1),
            ("increasing the capacity from 5 to 5.", 1),
            ("increasing the capacity from 9 to 5.", 1),
            ("increasing the capacity from 0 to many.", 1),
            ("increasing the capacity from none to 5.", 1),
            ("increasing the capacity from 0 to 99999999999999999999999.", 1),
            ("increasing the capacity from 0", 1),
            ("increasing the capacity from ", 1),
            (
                "At 2026-01-01T00:00:00Z instances were launched to balance instances in zones with other zones \
                 resulting in more than desired number of instances in the group.",
                1,
            ),
            ("", 1),
        ];
        for (cause, expected) in table {
            assert_eq!(tried(cause), expected, "{cause}");
        }
    }

    proptest! {
        #[test]
        fn no_cause_makes_it_panic(before in ".*", from in ".*", to in ".*") {
            let cause = format!("{before}{INCREASING}{from} to {to}");
            prop_assert!([tried(&before), tried(&cause)].iter().all(|&instances| instances > 0));
        }

        #[test]
        fn whatever_two_capacities_are_told_they_are_understood(from in 0_usize..1_000, more in 1_usize..1_000) {
            let cause = format!("x, {INCREASING}{from} to {}.", from + more);
            prop_assert_eq!(tried(&cause), more);
        }
    }
}
