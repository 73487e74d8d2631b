//! A log line as one flat JSON object: the event's fields, and those of the spans around it, beside each other. So whatever is
//! about an instance has its id in the same place, be it the line's own or its span's.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes such lines. The spans' fields have to be kept as [`JsonFields`].
pub(super) struct Flat;

impl<S> FormatEvent<S, JsonFields> for Flat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line::default();
        for span in ctx.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<FormattedFields<JsonFields>>() {
                // An inner span and the event itself know better.
                line.0.extend(serde_json::from_str::<Map<_, _>>(fields).unwrap_or_default());
            }
        }
        event.record(&mut line);
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let metadata = event.metadata();
        let (level, target) = (metadata.level().as_str(), metadata.target());
        let whole = Whole { timestamp: &time, level, target, fields: &line.0 };
        writeln!(writer, "{}", serde_json::to_string(&whole).map_err(|_| fmt::Error)?)
    }
}

/// A line, in the order of its parts.
#[derive(Serialize)]
struct Whole<'a> {
    timestamp: &'a str,
    level: &'a str,
    target: &'a str,
    #[serde(flatten)]
    fields: &'a Map<String, Value>,
}

/// The fields of a line.
#[derive(Default)]
struct Line(Map<String, Value>);

impl Line {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().trim_start_matches("r#").to_owned(), value.into());
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}
