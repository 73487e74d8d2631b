//! How a node's scale-in goes on, as its record on the Node shows: which phases ended, and how it ended. Pure.
//!
//! The record's own moments count, so that a restart or another leader changes no duration.

use std::time::Duration;

use jiff::Timestamp;

use super::record::{Cause, Phase, Record};
use crate::clock::elapsed;

/// How a scale-in ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// The Node is gone after its instance was released.
    Released,
    /// The same, after workloads were deleted because time was up.
    CutShort,
    /// The Node went while workloads or DaemonSet pods still ran.
    Lost,
    /// The Node is in use again after its release: a new root volume, back from the warm pool, or another machine's now.
    Returned,
    /// It was called off: by a person, by the group's minimum, by detaching the instance.
    Cancelled,
}

impl Ending {
    pub(super) const ALL: [Self; 5] =
        [Self::Released, Self::CutShort, Self::Lost, Self::Returned, Self::Cancelled];

    /// Spelling in metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::CutShort => "cut_short",
            Self::Lost => "lost",
            Self::Returned => "returned",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// A phase, after so long.
    Phase(Phase, Duration),
    /// The scale-in.
    ScaleIn(Cause, Ending),
}

/// What was seen of a Node's scale-in last.
#[derive(Debug, Default)]
pub(super) struct Progress {
    record: Option<Record>,
    /// Workloads were deleted because time was up.
    is_cut_short: bool,
    /// Its release is known already.
    is_released: bool,
}

impl Progress {
    /// What has ended, now that the Node has this record, or is gone. `wall`: now by the clock of those who write records.
    pub(super) fn see(&mut self, record: Option<&Record>, is_gone: bool, wall: Timestamp) -> Vec<Ended> {
        if self.record.as_ref() == record {
            return Vec::new();
        }
        let Some(before) = std::mem::replace(&mut self.record, record.cloned()) else { return Vec::new() };
        let phase = |until| Ended::Phase(before.phase, elapsed(before.phase_since, until));
        match record {
            Some(record) if is_same(&before, record) && record.phase == before.phase => Vec::new(),
            Some(record) if is_same(&before, record) => vec![phase(record.phase_since)],
            _ => {
                let ending = match (before.phase, is_gone) {
                    (Phase::Releasing, true) if self.is_cut_short => Ending::CutShort,
                    (Phase::Releasing, true) => Ending::Released,
                    (Phase::Releasing, false) => Ending::Returned,
                    (Phase::Draining | Phase::Flushing, true) => Ending::Lost,
                    (Phase::Draining | Phase::Flushing, false) => Ending::Cancelled,
                };
                (self.is_cut_short, self.is_released) = (false, false);
                vec![phase(wall), Ended::ScaleIn(before.cause, ending)]
            }
        }
    }

    /// Workloads are deleted because time is up.
    pub(super) fn cut_short(&mut self) {
        self.is_cut_short = true;
    }

    /// AWS has been told to end the instance. How long ago the last workload exited, the first time this is said.
    pub(super) fn release(&mut self, wall: Timestamp) -> Option<Duration> {
        let record = self.record.as_ref().filter(|record| record.phase == Phase::Releasing)?;
        let is_new = !std::mem::replace(&mut self.is_released, true);
        record.empty_since.filter(|_| is_new).map(|exit| elapsed(exit, wall))
    }
}

/// Whether both are of the same scale-in.
fn is_same(one: &Record, other: &Record) -> bool {
    one.instance == other.instance && one.requested_at == other.requested_at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale_in::record::Release;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn begun() -> Record {
        Record::new(Cause::Autoscaler, "web", "i-1", Release::Terminate, at(100))
    }

    fn releasing() -> Record {
        Record { empty_since: Some(at(160)), ..begun().entering(Phase::Flushing, at(160)) }
            .entering(Phase::Releasing, at(170))
    }

    #[test]
    fn each_phase_is_told_when_it_ends_and_the_scale_in_with_the_last() {
        let mut progress = Progress::default();
        assert_eq!(progress.see(Some(&begun()), false, at(101)), []);
        assert_eq!(progress.see(Some(&begun()), false, at(110)), []);
        let flushing = begun().entering(Phase::Flushing, at(160));
        let told = progress.see(Some(&flushing), false, at(161));
        assert_eq!(told, [Ended::Phase(Phase::Draining, seconds(60))]);
        let told = progress.see(Some(&releasing()), false, at(171));
        assert_eq!(told, [Ended::Phase(Phase::Flushing, seconds(10))]);
        assert_eq!(progress.release(at(172)), Some(seconds(12)));
        assert_eq!(progress.release(at(173)), None, "AWS is told twice");
        let end = Ended::ScaleIn(Cause::Autoscaler, Ending::Released);
        assert_eq!(progress.see(None, true, at(200)), [Ended::Phase(Phase::Releasing, seconds(30)), end]);
        assert_eq!(progress.see(None, true, at(201)), []);
    }

    #[test]
    fn the_last_phase_and_what_became_of_the_node_say_how_it_ended() {
        use Ending::{Cancelled, CutShort, Lost, Released, Returned};
        let ending = |record: &Record, is_cut_short, is_gone| {
            let mut progress = Progress::default();
            progress.see(Some(record), false, at(180));
            if is_cut_short {
                progress.cut_short();
            }
            match progress.see(None, is_gone, at(200))[..] {
                [Ended::Phase(..), Ended::ScaleIn(_, ending)] => ending,
                ref other => panic!("{other:?}"),
            }
        };
        assert_eq!(ending(&releasing(), false, true), Released);
        assert_eq!(ending(&releasing(), true, true), CutShort);
        assert_eq!(ending(&releasing(), false, false), Returned);
        assert_eq!(ending(&begun(), false, true), Lost);
        assert_eq!(ending(&begun(), false, false), Cancelled);
    }

    #[test]
    fn a_scale_in_that_follows_another_ends_it() {
        let mut progress = Progress::default();
        progress.see(Some(&begun()), false, at(101));
        let next = Record { requested_at: at(150), ..begun() };
        let told = progress.see(Some(&next), false, at(151));
        assert_eq!(told[1..], [Ended::ScaleIn(Cause::Autoscaler, Ending::Cancelled)]);
    }

    #[test]
    fn while_draining_under_a_hook_a_termination_is_no_release() {
        let mut progress = Progress::default();
        progress.see(Some(&begun()), false, at(101));
        assert_eq!(progress.release(at(102)), None);
    }
}
