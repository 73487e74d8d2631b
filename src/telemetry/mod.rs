//! Logs, traces, and what gauges have in common. Logs: on standard error, as text or JSON. Messages are constant, what they are about is in fields.
//! A thread of its own writes them: whoever reads them slowly, or not at all, keeps no heartbeat waiting.

pub mod gauges;
mod json;
pub mod traces;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Write as _};
use std::io;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tracing::subscriber::{SetGlobalDefaultError, set_global_default};
use tracing::{Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt as _;

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// In which shape.
    pub format: LogFormat,
    /// The least severe that are.
    pub level: Level,
}

/// The shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// At most this many lines wait to be written, some megabytes: a thousand nodes that leave at once have some dozen each.
const LINES_WAITING: usize = 8_192;

/// Counts the lines of the program's log that were dropped.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// The last words of a program are written within this time, or not at all.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Sends the logs of the whole program to standard error, panics as well, until what it returns is dropped. An error if that has been done
/// before.
pub fn init(options: LogOptions) -> Result<Logs, SetGlobalDefaultError> {
    let (writer, guard) = written_apart(io::stderr());
    let dropped = writer.error_counter();
    set_global_default(subscriber(options, writer))?;
    let _ = DROPPED.set(dropped);
    std::panic::set_hook(Box::new(|panic| {
        let words = panic.payload_as_str().unwrap_or("no message");
        let at = panic.location().map(tracing::field::display);
        let backtrace = Backtrace::capture();
        // Of many lines, for who has asked for it.
        let backtrace =
            (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(backtrace));
        tracing::error!(panic = words, at, backtrace, "a defect of ebbtide");
    }));
    Ok(Logs(Some(guard)))
}

/// The log of the whole program. When it is dropped, the last lines are written, if that does not take long.
#[derive(Debug)]
pub struct Logs(Option<WorkerGuard>);

impl Drop for Logs {
    fn drop(&mut self) {
        let guard = self.0.take();
        // It says on standard output if nobody reads, which may be the same pipe.
        at_last(move || drop(guard));
    }
}

/// Writes last words, unless nobody reads them.
pub fn at_last(write: impl FnOnce() + Send + 'static) {
    let (written, done) = mpsc::channel();
    std::thread::spawn(move || {
        write();
        let _ = written.send(());
    });
    let _ = done.recv_timeout(LAST_WORDS);
}

/// A writer that keeps nobody waiting: lines for which there is no room are dropped, and counted.
fn written_apart(to: impl io::Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_WAITING)
        .thread_name("log")
        .finish(to)
}

/// Registers the metric of lines that were dropped.
pub fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(DroppedLines));
}

#[derive(Debug)]
struct DroppedLines;

impl Collector for DroppedLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
        let help = "Lines of the log that were dropped because nobody reads it, or too slowly";
        let counter =
            encoder.encode_descriptor("ebbtide_log_lines_dropped", help, None, MetricType::Counter)?;
        ConstCounter::new(dropped as u64).encode(counter)
    }
}

/// What [`init`] installs, on any writer.
pub fn subscriber<W>(options: LogOptions, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    let layer = match options.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.fmt_fields(JsonFields::new()).event_format(json::Flat).boxed(),
    };
    tracing_subscriber::registry().with(filter(options.level)).with(layer)
}

/// The level is meant for this program. Libraries say what went wrong, and at `trace` more; never what passes through them.
fn filter(level: Level) -> Targets {
    let libraries = if level == Level::TRACE { Level::TRACE } else { level.min(Level::WARN) };
    // To `kube` every failed try is an error of its own. They all come back to us, who say it once an outage.
    let kube = if level == Level::TRACE { LevelFilter::INFO } else { LevelFilter::OFF };
    // To its watches, each try that is refused is a warning of its own as well. What they call an error is a defect.
    let watches = if level == Level::TRACE { LevelFilter::INFO } else { LevelFilter::ERROR };
    // Requests and answers are written there, some of them whole: with tokens, keys, and what STS answers.
    let carriers = LevelFilter::from_level(libraries.min(Level::INFO));
    Targets::new()
        .with_default(LevelFilter::from_level(libraries))
        .with_targets(["aws", "hyper", "h2", "tower", "tonic"].map(|target| (target, carriers)))
        .with_target("kube", carriers)
        .with_target("kube_client", kube)
        .with_target("kube_runtime", watches)
        .with_target("ebbtide", level)
}

/// Limits log lines that anybody outside can cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct RateLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// Counts a line. Returns how many were suppressed since the last one if it is due: one in `every`.
    pub(crate) fn allow(&mut self, every: Duration) -> Option<u64> {
        if self.last.is_some_and(|last| last.elapsed() < every) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// How often it is said that an outage goes on.
const REMIND_EVERY: Duration = Duration::from_mins(5);

/// Something that does not work for a while: told when that begins, every five minutes while it lasts, and when it ends.
#[derive(Clone, Debug, Default)]
pub struct Outage {
    began: Option<Instant>,
    failed_last: Option<Instant>,
    failures: u32,
    lines: RateLimit,
}

impl Outage {
    /// Counts a failure. Returns for how many seconds the outage has lasted if a line is due: at its begin, then every five
    /// minutes.
    pub(crate) fn failed(&mut self) -> Option<u64> {
        self.failures = self.failures.saturating_add(1);
        self.failed_last = Some(Instant::now());
        let lasted = self.began.get_or_insert_with(Instant::now).elapsed();
        self.lines.allow(REMIND_EVERY).map(|_| lasted.as_secs())
    }

    /// Failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Ends the outage. Returns for how many seconds it lasted; `None` if there was none.
    pub(crate) fn recovered(&mut self) -> Option<u64> {
        std::mem::take(self).began.map(|began| began.elapsed().as_secs())
    }

    /// The same once the last failure is longer ago than this: a shorter time without one proves nothing.
    pub(crate) fn recovered_after(&mut self, stable: Duration) -> Option<u64> {
        let is_stable = self.failed_last.is_some_and(|failed| failed.elapsed() > stable);
        if is_stable { self.recovered() } else { None }
    }
}

/// An error with everything under it, in one line. A source whose text is in the line already is left out.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let text = source.to_string();
        if !line.contains(&text) {
            let _ = write!(line, ": {text}");
        }
        next = source.source();
    }
    line
}

/// The text in at most `room` bytes: one that does not fit is cut, and ends in an ellipsis.
pub(crate) fn cut(text: &str, room: usize) -> String {
    if text.len() <= room {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(room - '…'.len_utf8())])
}

/// What tests read of the log, and of the metrics.
#[cfg(any(test, feature = "simulate"))]
pub mod captured {
    use std::sync::{Arc, LazyLock};

    use parking_lot::Mutex;
    #[cfg(test)]
    use prometheus_client::{encoding::text::encode, registry::Registry};
    use tracing::Dispatch;
    use tracing::subscriber::NoSubscriber;

    use super::{LogFormat, LogOptions, io, subscriber};

    /// A writer that keeps what is written.
    #[derive(Clone, Debug, Default)]
    pub struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        /// All that was written so far.
        pub fn text(&self) -> String {
            let bytes = self.0.lock();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The groups that a log warns of, in its order. Every warning must name one.
    #[cfg(test)]
    pub(crate) fn warned_groups(log: &Log) -> Vec<String> {
        let text = log.text();
        let warnings = text.lines().filter(|line| line.contains("WARN"));
        let group = |line: &str| Some(line.split_once("group=\"")?.1.split_once('"')?.0.to_owned());
        warnings.map(|line| group(line).expect("a warning names its group")).collect()
    }

    /// The page of these metrics.
    #[cfg(test)]
    pub(crate) fn page(register: impl FnOnce(&mut Registry)) -> String {
        let (mut registry, mut page) = (Registry::default(), String::new());
        register(&mut registry);
        encode(&mut page, &registry).expect("writes to a string");
        page
    }

    /// A second subscriber, which hears nothing. While there is one alone, a line that another thread is the first to reach is
    /// off for all threads: `tracing` asks only the subscriber of that thread, which has none.
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

    /// The log of this thread from now on, as the program writes it at this level.
    pub fn log(level: tracing::Level) -> (Log, tracing::subscriber::DefaultGuard) {
        log_as(LogFormat::Text, level)
    }

    /// The same in another shape.
    pub fn log_as(format: LogFormat, level: tracing::Level) -> (Log, tracing::subscriber::DefaultGuard) {
        LazyLock::force(&SECOND);
        let log = Log::default();
        let writer = log.clone();
        let subscriber = subscriber(LogOptions { format, level }, move || writer.clone());
        (log, tracing::subscriber::set_default(subscriber))
    }
}

#[cfg(test)]
mod tests {
    use super::captured::Log;
    use super::*;

    fn written(format: LogFormat, level: Level, log: impl FnOnce()) -> String {
        let buffer = Log::default();
        let writer = buffer.clone();
        let subscriber = subscriber(LogOptions { format, level }, move || writer.clone());
        tracing::subscriber::with_default(subscriber, log);
        buffer.text()
    }

    /// Whatever is written there waits for ever.
    struct Full;

    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            loop {
                std::thread::park();
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_keeps_nobody_waiting() {
        let (writer, guard) = written_apart(Full);
        let dropped = writer.error_counter();
        let options = LogOptions { format: LogFormat::Text, level: Level::INFO };
        tracing::subscriber::with_default(subscriber(options, writer), || {
            for line in 0..LINES_WAITING + 11 {
                tracing::info!(line, "as after another");
            }
        });
        // The first may be on its way.
        assert!((10..=11).contains(&dropped.dropped_lines()), "{}", dropped.dropped_lines());
        // Would wait for the last lines.
        std::mem::forget(guard);
    }

    #[test]
    fn json_is_one_flat_object_with_the_fields_of_the_line_and_of_its_spans() {
        let line = written(LogFormat::Json, Level::INFO, || {
            let instance = tracing::field::Empty;
            let span = tracing::info_span!("scale_in", node = "n1", instance);
            let _entered = span.enter();
            span.record("instance", "i-1");
            tracing::info!(node = "n2", pod = %"a/\"b\"", grace = 30_u64, due = true, "eviction asked for");
        });
        let mut value: serde_json::Value = serde_json::from_str(&line).expect("one JSON object");
        assert!(value["timestamp"].take().as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        let expected = serde_json::json!({
            "timestamp": null, "level": "INFO", "target": "ebbtide::telemetry::tests", "message": "eviction asked for",
            "node": "n2", "instance": "i-1", "pod": "a/\"b\"", "grace": 30, "due": true,
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn the_level_is_for_this_program_and_libraries_only_warn() {
        let log = || {
            tracing::debug!("ours");
            tracing::info!(target: "hyper", "chatter");
            tracing::warn!(target: "rustls", "trouble");
            tracing::warn!(target: "kube_client::client", "each try");
            tracing::warn!(target: "kube_runtime::watcher", "each try");
        };
        let has = |level| {
            let text = written(LogFormat::Text, level, log);
            ["ours", "chatter", "trouble", "each try"].map(|word| text.contains(word))
        };
        assert_eq!(has(Level::ERROR), [false, false, false, false]);
        assert_eq!(has(Level::INFO), [false, false, true, false]);
        assert_eq!(has(Level::DEBUG), [true, false, true, false]);
        assert_eq!(has(Level::TRACE), [true, true, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_told_when_it_begins_every_five_minutes_and_when_it_ends() {
        let mut outage = Outage::default();
        assert_eq!(outage.recovered(), None);
        let mut told = Vec::new();
        for _ in 0..700 {
            told.extend(outage.failed());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((told, outage.failures()), (vec![0, 300, 600], 700));
        assert_eq!(outage.recovered(), Some(700));
        assert_eq!(outage.failed(), Some(0), "another one is told at once");
        assert_eq!(outage.failures(), 1);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(outage.recovered_after(Duration::from_secs(30)), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(outage.recovered_after(Duration::from_secs(30)), Some(31));
    }
}
