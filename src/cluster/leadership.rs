//! Whether this process may write: the outcome of the election, for everybody who asks.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::telemetry::gauges::at_scrape;

/// Who may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not known (any more).
    Unknown,
    /// We, without an election.
    Alone,
    /// We, until the first of these moments. Our own clock stands still while the machine sleeps, so the wall clock
    /// counts too.
    Leads {
        /// On our clock.
        until: Timestamp,
        /// On the wall's.
        wall: Timestamp,
    },
    /// Another process.
    Follows {
        /// Its identity.
        holder: String,
    },
}

/// Whether this process may write. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    standing: Arc<watch::Sender<Standing>>,
    hand_over: Arc<Notify>,
    clock: Clock,
    /// When leading began last.
    since: Arc<Mutex<Timestamp>>,
}

impl Leadership {
    /// Without an election: leads.
    pub fn alone(clock: Clock) -> Self {
        Self::of(Standing::Alone, clock)
    }

    /// Before an election: does not lead.
    pub fn unknown(clock: Clock) -> Self {
        Self::of(Standing::Unknown, clock)
    }

    fn of(standing: Standing, clock: Clock) -> Self {
        let since = Arc::new(Mutex::new(clock.now()));
        Self { standing: Arc::new(watch::Sender::new(standing)), hand_over: Arc::default(), clock, since }
    }

    /// Whether this process may write now. Ask right before each write.
    pub fn leads(&self) -> bool {
        self.is_leading(&self.standing.borrow())
    }

    fn is_leading(&self, standing: &Standing) -> bool {
        match *standing {
            Standing::Alone => true,
            Standing::Leads { until, wall } => self.clock.now() < until && self.clock.wall() < wall,
            Standing::Unknown | Standing::Follows { .. } => false,
        }
    }

    /// Whether it leads without an election.
    pub fn is_alone(&self) -> bool {
        *self.standing.borrow() == Standing::Alone
    }

    /// Since when it leads, if it does, by our clock.
    pub fn leads_since(&self) -> Timestamp {
        *self.since.lock()
    }

    /// Changes when leading begins or ends, not with every renewal.
    pub fn changes(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Waits until this process leads.
    pub async fn begun(&self) {
        let mut changes = self.changes();
        while !self.leads() {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Asks for another process to lead. Without an election nothing happens.
    pub fn hand_over(&self) {
        self.hand_over.notify_one();
    }

    /// Waits until somebody asks for that.
    pub(super) async fn hand_over_wanted(&self) {
        self.hand_over.notified().await;
    }

    /// Waits until it is known who leads.
    pub async fn known(&self) {
        // The sender lives in `self`.
        let _ = self.changes().wait_for(|standing| *standing != Standing::Unknown).await;
    }

    /// Registers whether it leads.
    pub fn register(&self, registry: &mut Registry) {
        let leadership = self.clone();
        let help = "Whether this process holds the Lease: only then it drains and releases nodes";
        at_scrape(registry, "ebbtide_leader", help, None, move || Some(i64::from(leadership.leads())));
    }

    pub(super) fn set(&self, standing: Standing) {
        self.standing.send_if_modified(|before| {
            // A renewal that came too late is a new beginning.
            let goes_on = self.is_leading(before) && self.is_leading(&standing);
            let changed = *before != standing && !goes_on;
            match &standing {
                _ if !changed => {}
                Standing::Follows { holder } => tracing::info!(
                    holder,
                    "another process leads: this one answers cluster-autoscaler and drains nothing"
                ),
                Standing::Leads { .. } => {
                    *self.since.lock() = self.clock.now();
                    tracing::info!("this process leads: it drains and releases nodes");
                }
                Standing::Alone | Standing::Unknown => {}
            }
            *before = standing;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::SignedDuration;

    use super::*;
    use crate::clock::later;

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_comes_too_late_is_told_as_a_beginning() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let leadership = Leadership::unknown(clock.clone());
        let mut changes = leadership.changes();
        let trust = SignedDuration::from_secs(8);
        let renew = || {
            let (until, wall) = (later(clock.now(), trust), later(clock.wall(), trust));
            leadership.set(Standing::Leads { until, wall });
        };
        renew();
        assert!(leadership.leads() && changes.has_changed().expect("there"));
        changes.mark_unchanged();
        tokio::time::advance(Duration::from_secs(3)).await;
        renew();
        assert!(!changes.has_changed().expect("there"), "in time");
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!leadership.leads());
        renew();
        assert!(leadership.leads() && changes.has_changed().expect("there"), "too late");
        changes.mark_unchanged();
        clock.step(SignedDuration::from_secs(60));
        assert!(!leadership.leads(), "the machine slept");
    }
}
