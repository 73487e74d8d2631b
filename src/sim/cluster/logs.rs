//! Log lines: how many each pod writes, and which have left the node.
//!
//! Nothing happens line by line. The lines that a node has written by a moment follow from its pods' starts and ends. A
//! running shipper has shipped everything written up to its lag ago; it reads files, so a new shipper continues, after its
//! lag, where the last stopped. Invariant: `shipped + lost <= written`, and equal once the node is off.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::object::Object;

/// Defaults of `sim/lines-per-second`, `sim/last-lines` and `sim/ship-lag-seconds`.
const LINES_PER_SECOND: f64 = 1.0;
const LAST_LINES: u64 = 5;
const SHIP_LAG: Duration = Duration::from_secs(2);

/// The lines of a node's workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Written on the node so far.
    pub written: u64,
    /// Sent on by a log shipper.
    pub shipped: u64,
    /// Lost with the instance.
    pub lost: u64,
}

#[derive(Default)]
pub(super) struct NodeLogs {
    writers: BTreeMap<String, Writer>,
    /// Lines of containers that ended with their machine, in pods that have started again since.
    earlier: u64,
    shippers: BTreeMap<String, Shipper>,
    shipped: u64,
    lost: u64,
}

struct Shipper {
    since: Timestamp,
    lag: Duration,
}

struct Writer {
    since: Timestamp,
    per_second: f64,
    /// When it ended, and the lines it wrote at that moment.
    end: Option<(Timestamp, u64)>,
}

impl Writer {
    fn written_by(&self, moment: Timestamp) -> u64 {
        let end = self.end.map_or(moment, |(end, _)| end.min(moment));
        let ran = end.duration_since(self.since).as_secs_f64().max(0.0);
        let last = self.end.filter(|(end, _)| *end <= moment).map_or(0, |(_, last)| last);
        (ran * self.per_second) as u64 + last
    }
}

impl NodeLogs {
    /// A container starts. Only workloads' lines count, not those of DaemonSet pods.
    pub(super) fn started(&mut self, pod: &Object, now: Timestamp) {
        let uid = pod.pod().uid.clone();
        if pod.annotation("sim/log-shipper") == Some("true") {
            self.settle(now);
            let lag = pod.seconds("sim/ship-lag-seconds").unwrap_or(SHIP_LAG);
            self.shippers.insert(uid, Shipper { since: now, lag });
        } else if !pod.pod().daemon {
            let per_second = pod.annotation("sim/lines-per-second").and_then(|rate| rate.parse().ok());
            let per_second = per_second.unwrap_or(LINES_PER_SECOND);
            let before = self.writers.insert(uid, Writer { since: now, per_second, end: None });
            self.earlier += before.map_or(0, |writer| writer.written_by(now));
        }
    }

    /// A container exits by itself: a workload writes its last lines, a shipper sends what there is.
    pub(super) fn exited(&mut self, pod: &Object, now: Timestamp) {
        let uid = &pod.pod().uid;
        if let Some(writer) = self.writers.get_mut(uid) {
            let last = pod.annotation("sim/last-lines").and_then(|lines| lines.parse().ok());
            writer.end = Some((now, last.unwrap_or(LAST_LINES)));
        }
        if self.shippers.remove(uid).is_some() {
            self.ship(self.written_by(now));
        }
    }

    /// A container is killed: no last lines, nothing sent.
    pub(super) fn killed(&mut self, uid: &str, now: Timestamp) {
        self.settle(now);
        self.shippers.remove(uid);
        if let Some(writer) = self.writers.get_mut(uid) {
            writer.end = Some((now, 0));
        }
    }

    /// The machine is gone with all lines still on it. Returns their number.
    pub(super) fn power_off(&mut self, now: Timestamp) -> u64 {
        self.settle(now);
        self.shippers.clear();
        let lost = self.written_by(now) - self.shipped - self.lost;
        self.lost += lost;
        lost
    }

    /// The counts at a moment.
    pub(super) fn lines(&mut self, now: Timestamp) -> Lines {
        self.settle(now);
        Lines { written: self.written_by(now), shipped: self.shipped, lost: self.lost }
    }

    fn written_by(&self, moment: Timestamp) -> u64 {
        self.earlier + self.writers.values().map(|writer| writer.written_by(moment)).sum::<u64>()
    }

    /// Counts what running shippers have sent by now.
    fn settle(&mut self, now: Timestamp) {
        let reads_on = self.shippers.values().filter(|shipper| shipper.since + shipper.lag <= now);
        if let Some(lag) = reads_on.map(|shipper| shipper.lag).min() {
            self.ship(self.written_by(now - lag));
        }
    }

    fn ship(&mut self, written: u64) {
        self.shipped = self.shipped.max(written.saturating_sub(self.lost));
    }
}
