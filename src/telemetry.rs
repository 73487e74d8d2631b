//! Logs: on standard error, as text or JSON. Messages are constant, what they are about is in fields.

use std::fmt::Write as _;
use std::io;

use tracing::subscriber::{SetGlobalDefaultError, set_global_default};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::config::{LogFormat, LogOptions};

/// Sends the logs of the whole program to standard error. An error if that has been done before.
pub fn init(options: LogOptions) -> Result<(), SetGlobalDefaultError> {
    set_global_default(subscriber(options, io::stderr))
}

/// What [`init`] installs, on any writer.
pub fn subscriber<W>(options: LogOptions, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    let layer = match options.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter(options.level)).with(layer)
}

/// The level is meant for this program. Libraries say what went wrong, and at `trace` everything.
fn filter(level: Level) -> Targets {
    let libraries = if level == Level::TRACE { Level::TRACE } else { level.min(Level::WARN) };
    // To `kube` every failed try is an error of its own. They all come back to us, who say it once an outage.
    let kube = if level == Level::TRACE { LevelFilter::TRACE } else { LevelFilter::OFF };
    Targets::new()
        .with_default(LevelFilter::from_level(libraries))
        .with_target("kube_client", kube)
        .with_target("ebbtide", level)
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(format: LogFormat, level: Level, log: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(LogOptions { format, level }, move || writer.clone());
        tracing::subscriber::with_default(subscriber, log);
        let bytes = buffer.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8(bytes).expect("logs are text")
    }

    #[test]
    fn json_has_the_message_and_its_fields() {
        let line = written(LogFormat::Json, Level::INFO, || tracing::info!(node = "n1", "scale-in accepted"));
        let value: serde_json::Value = serde_json::from_str(&line).expect("one JSON object");
        assert_eq!((&value["message"], &value["node"]), (&"scale-in accepted".into(), &"n1".into()));
    }

    #[test]
    fn the_level_is_for_this_program_and_libraries_only_warn() {
        let log = || {
            tracing::debug!("ours");
            tracing::info!(target: "hyper", "chatter");
            tracing::warn!(target: "rustls", "trouble");
            tracing::warn!(target: "kube_client::client", "eof");
        };
        let has = |level| {
            let text = written(LogFormat::Text, level, log);
            ["ours", "chatter", "trouble"].map(|word| text.contains(word))
        };
        assert_eq!(has(Level::ERROR), [false, false, false]);
        assert_eq!(has(Level::INFO), [false, false, true]);
        assert_eq!(has(Level::DEBUG), [true, false, true]);
        assert_eq!(has(Level::TRACE), [true, true, true]);
    }
}
