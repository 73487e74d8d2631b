//! What a dry run (`serve --dry-run`) would have done: told once in the log, counted, and shown on the status page.
//!
//! The adapters ask nobody: where writes go out, `aws` and `cluster` each refuse them in one place and note them here.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::Clock;

/// How many different things are remembered: what comes again is not logged again.
const REMEMBERED: usize = 2_000;

/// How many of them are shown.
const SHOWN: usize = 200;

/// Why a write was not sent, for errors and answers.
pub const WHY: &str = "this process runs with --dry-run and changes nothing";

/// Notes what would have been done. Clones share it.
#[derive(Clone, Debug)]
pub struct DryRun {
    clock: Clock,
    told: Arc<Mutex<VecDeque<Would>>>,
}

/// Something that would have been done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Would {
    /// What.
    pub what: String,
    /// When it would have been done first.
    pub first_at: Timestamp,
    /// When it would have been done last.
    pub last_at: Timestamp,
    /// How often: what is not done is tried again.
    pub times: u64,
}

impl DryRun {
    /// Nothing yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, told: Arc::default() }
    }

    /// Notes something that would have been done now, and logs what was not known yet.
    pub fn would(&self, what: impl Into<String>) {
        let (what, now) = (what.into(), self.clock.wall());
        let mut told = self.told.lock();
        let known = told.iter().position(|known| known.what == what).and_then(|at| told.remove(at));
        if let Some(known) = known {
            told.push_back(Would { last_at: now, times: known.times.saturating_add(1), ..known });
            return;
        }
        if told.len() == REMEMBERED {
            told.pop_front();
        }
        told.push_back(Would { what: what.clone(), first_at: now, last_at: now, times: 1 });
        drop(told);
        tracing::info!(would = what, "dry run: would have done this");
    }

    /// What came last, the latest first.
    pub fn recent(&self) -> Vec<Would> {
        let told = self.told.lock();
        told.iter().rev().take(SHOWN).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_comes_again_is_counted_and_no_more_than_so_much_is_remembered_or_shown() {
        let dry_run = DryRun::new(Clock::starting_at(Timestamp::UNIX_EPOCH));
        dry_run.would("terminate i-1");
        dry_run.would("terminate i-1");
        let [would] = &dry_run.recent()[..] else { panic!("one") };
        assert_eq!((would.what.as_str(), would.times), ("terminate i-1", 2));
        for n in (0..1_000).chain(0..1_000) {
            dry_run.would(format!("terminate i-{n}"));
        }
        let told = dry_run.recent();
        let first = (told.len(), told[0].what.as_str(), told[0].times);
        assert_eq!(first, (SHOWN, "terminate i-999", 2));
        for n in 0..10_000 {
            dry_run.would(format!("evict pod-{n}"));
        }
        assert_eq!(dry_run.told.lock().len(), REMEMBERED);
    }
}
