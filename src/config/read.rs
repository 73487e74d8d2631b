//! Reads the value of one flag. An unusable text becomes a [`Problem`] and gives no value.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use tracing::Level;

use super::problem::Problem;
use super::values::PriceSource;
use crate::aws::MOST_PODS;
use crate::scale_in::{AtOnce, OnDeadline, Treatment};
use crate::telemetry::LogFormat;
use crate::template::MixedInstances;

/// No hypervisor keeps more than half of the memory: more is a typing error.
const SHARE: RangeInclusive<f64> = 0.0..=50.0;

pub(super) const TREATMENTS: [(&str, Treatment); 3] =
    [("drain", Treatment::Drain), ("cordon", Treatment::Cordon), ("nothing", Treatment::Nothing)];
pub(super) const ON_DEADLINE: [(&str, OnDeadline); 2] =
    [("delete", OnDeadline::Delete), ("wait", OnDeadline::Wait)];
pub(super) const MIXED_INSTANCES: [(&str, MixedInstances); 3] =
    [("min", MixedInstances::Min), ("first", MixedInstances::First), ("max", MixedInstances::Max)];
/// What `--manage-lifecycle-hooks` says of retaining instances; `None`: no hook is managed.
pub(super) const RETAIN: [(&str, Option<bool>); 5] =
    [("off", None), ("on", Some(false)), ("retain", Some(true)), ("false", None), ("true", Some(false))];
pub(super) const PRICES: [(&str, Option<PriceSource>); 3] =
    [("off", None), ("table", Some(PriceSource::Table)), ("aws", Some(PriceSource::Aws))];
pub(super) const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
pub(super) const LOG_LEVELS: [(&str, Level); 5] = [
    ("error", Level::ERROR),
    ("warn", Level::WARN),
    ("info", Level::INFO),
    ("debug", Level::DEBUG),
    ("trace", Level::TRACE),
];

/// The value; none, but a problem of the flag, if the text is unusable.
fn usable<T>(flag: &str, read: Result<T, String>, problems: &mut Vec<Problem>) -> Option<T> {
    read.map_err(|why| problems.push(Problem::new(flag, why))).ok()
}

/// What one of these words stands for.
pub(super) fn one_of<T: Copy>(
    flag: &str,
    text: &str,
    words: &[(&str, T)],
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let read = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    let why = || {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("{text:?} is none of {}", words.join(", "))
    };
    usable(flag, read.ok_or_else(why), problems)
}

pub(super) fn address(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<SocketAddr> {
    let why = |_| format!("{text:?} is no address and port, like 127.0.0.1:8086 or [::1]:8086");
    usable(flag, text.parse().map_err(why), problems)
}

pub(super) fn boolean(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<bool> {
    usable(flag, text.parse().map_err(|_| format!("{text:?} is neither true nor false")), problems)
}

pub(super) fn named(
    flag: &str,
    value: Option<String>,
    good: fn(&str) -> bool,
    shape: &str,
    problems: &mut Vec<Problem>,
) -> Option<String> {
    let value = value?;
    if !good(&value) {
        problems.push(Problem::new(flag, format!("{value:?} is not good: {shape}")));
    }
    Some(value)
}

pub(super) fn is_region(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// A tag's key has at most 128 characters, of which `kubernetes.io/cluster/` takes 22.
pub(super) fn is_cluster_name(text: &str) -> bool {
    (1..=106).contains(&text.chars().count()) && !text.contains(char::is_whitespace) && !text.contains('/')
}

pub(super) fn is_url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    })
}

/// Where TLS is not spoken.
pub(super) fn is_plain_url(text: &str) -> bool {
    is_url(text) && text.starts_with("http://")
}

pub(super) fn duration(
    flag: &str,
    text: &str,
    range: &RangeInclusive<Duration>,
    problems: &mut Vec<Problem>,
) -> Option<Duration> {
    let read = match humantime::parse_duration(text) {
        Ok(duration) if range.contains(&duration) => Ok(duration),
        Ok(_) => {
            let [least, most] = [range.start(), range.end()].map(|bound| humantime::format_duration(*bound));
            Err(format!("{text} is not between {least} and {most}"))
        }
        Err(error) => Err(format!("{text:?} is no duration like 90s, 10m or 48h: {error}")),
    };
    usable(flag, read, problems)
}

/// A share like `7.5%`, in hundredths of a percent.
pub(super) fn share(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<i64> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let read = percent.filter(|percent| SHARE.contains(percent));
    let why = || format!("{text:?} is no share from 0% to 50%, like 7.5%");
    usable(flag, read.ok_or_else(why), problems).map(|percent| (percent * 100.0).round() as i64)
}

pub(super) fn pods(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<i64> {
    let read = text.parse().ok().filter(|pods| (1..=MOST_PODS).contains(pods));
    let why = || format!("{text:?} is neither none nor a number from 1 to {MOST_PODS}");
    usable(flag, read.ok_or_else(why), problems)
}

/// The pause between things of which so many are to happen a second.
pub(super) fn rate(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<Duration> {
    let read = text.parse().ok().filter(|rate: &f64| (0.01..=1_000.0).contains(rate));
    let why = || format!("{text:?} is neither none nor a number from 0.01 to 1000");
    usable(flag, read.ok_or_else(why), problems).map(|rate| Duration::from_secs_f64(1.0 / rate))
}

/// A number from 1 up, or a share up to 100 %.
pub(super) fn at_once(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<AtOnce> {
    let read = match text.strip_suffix('%') {
        Some(percent) => percent
            .parse::<f64>()
            .ok()
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(|percent| AtOnce::Share((percent * 100.0).round() as u32)),
        None => text.parse().ok().filter(|number| *number > 0).map(AtOnce::Number),
    };
    let why = || format!("{text:?} is neither a number from 1 on nor a share from 0% to 100%");
    usable(flag, read.ok_or_else(why), problems)
}

/// Source: `LifecycleHookName` in
/// [PutLifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html).
pub(super) fn is_hook_name(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'/'))
}

/// Source: [DNS subdomain
/// names](https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names).
pub(super) fn is_object_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}
