//! How the queues are read, for the metrics. Only the process that reads them knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::clock::{Clock, elapsed};

/// The queues, by URL.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<BTreeMap<String, Queue>>);

#[derive(Clone, Debug)]
struct Queue {
    reading: Reading,
    /// Messages whose records are not written yet, and when AWS wrote the oldest of them, by our clock.
    messages: usize,
    oldest: Option<Timestamp>,
}

/// How the reading of a queue goes.
#[derive(Clone, Debug)]
pub(in crate::scale_in) struct Reading {
    /// When it began.
    pub began: Timestamp,
    /// When AWS last answered a read; `None`: it has not.
    pub answered: Option<Timestamp>,
    /// What it has said since, or why nothing came.
    pub error: Option<String>,
}

impl Queues {
    /// Its reading begins.
    pub(super) fn begin(&self, url: &str, now: Timestamp) {
        let reading = Reading { began: now, answered: None, error: None };
        self.0.lock().insert(url.to_owned(), Queue { reading, messages: 0, oldest: None });
    }

    /// AWS has answered a read.
    pub(super) fn read(&self, url: &str, now: Timestamp) {
        if let Some(queue) = self.0.lock().get_mut(url) {
            (queue.reading.answered, queue.reading.error) = (Some(now), None);
        }
    }

    /// A read has failed.
    pub(super) fn failed(&self, url: &str, error: String) {
        if let Some(queue) = self.0.lock().get_mut(url) {
            queue.reading.error = Some(error);
        }
    }

    /// How its reading goes; `None` if another process reads it.
    pub(super) fn reading(&self, url: &str) -> Option<Reading> {
        self.0.lock().get(url).map(|queue| queue.reading.clone())
    }

    /// So many of its messages wait for their records.
    pub(super) fn wait(&self, url: &str, messages: usize, oldest: Option<Timestamp>) {
        if let Some(queue) = self.0.lock().get_mut(url) {
            (queue.messages, queue.oldest) = (messages, oldest);
        }
    }

    /// Another process reads it.
    pub(super) fn forget(&self, url: &str) {
        self.0.lock().remove(url);
    }
}

/// Registers `ebbtide_queue_read_age_seconds`, `ebbtide_queue_messages` and `ebbtide_queue_oldest_message_age_seconds`.
pub(super) fn register(queues: Arc<Queues>, registry: &mut Registry, clock: Clock) {
    registry.register_collector(Box::new(Status { queues, clock }));
}

#[derive(Debug)]
struct Status {
    queues: Arc<Queues>,
    clock: Clock,
}

impl Collector for Status {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (queues, now) = (self.queues.0.lock().clone(), self.clock.now());
        if queues.is_empty() {
            return Ok(());
        }
        let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: &dyn Fn(&Queue) -> f64| {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for (url, queue) in &queues {
                let labels = [("queue", name_of(url))];
                ConstGauge::new(value(queue)).encode(family.encode_family(&labels)?)?;
            }
            Ok(())
        };
        let age = |since| elapsed(since, now).as_secs_f64();
        gauge(
            "ebbtide_queue_read_age",
            "How long ago a queue of notices was last read, or since its reading began",
            Some(&Unit::Seconds),
            &|queue| age(queue.reading.answered.unwrap_or(queue.reading.began)),
        )?;
        gauge(
            "ebbtide_queue_messages",
            "Messages read from a queue whose scale-ins or cordons are not yet on record",
            None,
            &|queue| queue.messages as f64,
        )?;
        gauge(
            "ebbtide_queue_oldest_message_age",
            "How long ago AWS wrote the oldest of these messages that may not wait for its turn; 0 if there is none",
            Some(&Unit::Seconds),
            &|queue| queue.oldest.map_or(0.0, age),
        )
    }
}

/// A queue's name in metrics: the last part of its URL. The rest has the account's number.
pub fn name_of(url: &str) -> &str {
    url.trim_end_matches('/').rsplit('/').next().unwrap_or(url)
}
