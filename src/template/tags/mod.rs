//! What a group's tags say of its nodes and its autoscaling, in cluster-autoscaler's spelling. Pure.
//!
//! `k8s.io/cluster-autoscaler/node-template/{label,taint,resources,autoscaling-options}/…`, as in cluster-autoscaler's
//! [README for
//! AWS](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/README.md#auto-discovery-setup).
//! Invalid tags are left out and reported; the others count.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::aws::MOST_PODS;
use crate::k8s::{Taint, quantity};

/// What the keys of all tags of a template begin with.
pub const PREFIX: &str = "k8s.io/cluster-autoscaler/node-template/";

/// Whether prefix delegation is on. cluster-autoscaler has no tag for this.
const PREFIX_DELEGATION: &str = "ebbtide/prefix-delegation";
/// Pods a node takes, if not the number that EKS computes.
const MAX_PODS: &str = "ebbtide/max-pods";
/// Whether real nodes correct the template.
const LEARNED_TEMPLATE: &str = "ebbtide/learned-template";

/// Longest time of a scale-in of the group's nodes.
const DRAIN_TIMEOUT: &str = "ebbtide/drain-timeout";

/// What a node of the group costs an hour, whatever AWS's lists say: a reservation, a savings plan, a price of one's own.
const PRICE: &str = "ebbtide/price-per-hour";

/// In USD. More is a typing error: the dearest type costs some hundreds.
const PRICES: RangeInclusive<f64> = 0.0..=10_000.0;

/// At least: less leaves workloads nothing beside the flush. At most: longer than any hook can hold an instance.
const DRAIN: RangeInclusive<Duration> = Duration::from_mins(1)..=Duration::from_hours(30 * 24);

/// What a group's tags say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTags {
    /// Node labels.
    pub labels: BTreeMap<String, String>,
    /// Node taints.
    pub taints: Vec<Taint>,
    /// Node resources, as Kubernetes quantities; they beat computed ones.
    pub resources: BTreeMap<String, String>,
    /// Whether prefix delegation is on.
    pub prefix_delegation: bool,
    /// Whether the template stays as computed, whatever real nodes show.
    pub keep_computed: bool,
    /// Pods a node takes; beats the computed number, and `resources` beats it.
    pub max_pods: Option<i64>,
    /// The group's own autoscaling options.
    pub options: OptionOverrides,
}

/// A group's own autoscaling options; cluster-autoscaler decides the rest.
///
/// Names are those of cluster-autoscaler's
/// [config/const.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/config/const.go).
/// `zeroormaxnodescaling` and `maxnodeprovisiontime` are in the protocol, but its own AWS provider reads neither.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OptionOverrides {
    /// `scaledownutilizationthreshold`, a share from 0 on.
    pub scale_down_utilization_threshold: Option<f64>,
    /// `scaledowngpuutilizationthreshold`, a share from 0 on.
    pub scale_down_gpu_utilization_threshold: Option<f64>,
    /// `scaledownunneededtime`.
    pub scale_down_unneeded_time: Option<Duration>,
    /// `scaledownunreadytime`.
    pub scale_down_unready_time: Option<Duration>,
    /// `maxnodeprovisiontime`.
    pub max_node_provision_time: Option<Duration>,
    /// `zeroormaxnodescaling`.
    pub zero_or_max_node_scaling: Option<bool>,
    /// `ignoredaemonsetsutilization`.
    pub ignore_daemon_sets_utilization: Option<bool>,
}

impl OptionOverrides {
    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An invalid tag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadTag {
    /// The tag's key.
    pub key: String,
    /// The tag's value.
    pub value: String,
    /// What a valid value looks like.
    pub expected: &'static str,
}

/// Parses a group's tags. Returns what they say, and the invalid ones.
pub fn read(tags: &BTreeMap<String, String>) -> (NodeTags, Vec<BadTag>) {
    let (mut read, mut bad) = (NodeTags::default(), Vec::new());
    for (key, value) in tags {
        let outcome = match key.as_str() {
            PREFIX_DELEGATION => boolean(value).map(|on| read.prefix_delegation = on),
            LEARNED_TEMPLATE => boolean(value).map(|on| read.keep_computed = !on),
            MAX_PODS => pods(value).map(|pods| read.max_pods = Some(pods)),
            // Read by the scale-in, which does not wait for templates.
            DRAIN_TIMEOUT => limit(value).map(drop),
            // Read where prices are told.
            PRICE => price(value).map(drop),
            _ => match key.strip_prefix(PREFIX) {
                Some(rest) => {
                    let (kind, name) = rest.split_once('/').unwrap_or((rest, ""));
                    node_template(&mut read, kind, name, value)
                }
                None => continue,
            },
        };
        if let Err(expected) = outcome {
            bad.push(BadTag { key: key.clone(), value: value.clone(), expected });
        }
    }
    (read, bad)
}

/// As [`read`], plus the resource tags of its EKS managed node group; the group's own win. cluster-autoscaler's own AWS
/// provider reads those too, and none of a node group's other tags.
pub fn read_with(
    tags: &BTreeMap<String, String>,
    of_node_group: &BTreeMap<String, String>,
) -> (NodeTags, Vec<BadTag>) {
    let is_resource = |key: &str| key.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with("resources/"));
    let mut all: BTreeMap<_, _> = of_node_group.clone();
    all.retain(|key, _| is_resource(key));
    all.extend(tags.clone());
    read(&all)
}

fn node_template(read: &mut NodeTags, kind: &str, name: &str, value: &str) -> Result<(), &'static str> {
    match kind {
        "label" => {
            label(name, value)?;
            read.labels.insert(name.to_owned(), value.to_owned());
        }
        "taint" => read.taints.push(taint(name, value)?),
        "resources" => {
            resource(name, value)?;
            read.resources.insert(name.to_owned(), value.to_owned());
        }
        "autoscaling-options" => option(&mut read.options, name, value)?,
        _ => return Err("one of label, taint, resources, autoscaling-options"),
    }
    Ok(())
}

/// The longest time of a scale-in of the group's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainTimeout {
    /// There is none.
    Never,
    /// This long from the request to the release.
    After(Duration),
}

/// What a group's tags say of it; `None`: nothing, or nothing that can be read, which [`read`] reports.
pub fn drain_timeout(tags: &BTreeMap<String, String>) -> Option<DrainTimeout> {
    tags.get(DRAIN_TIMEOUT).and_then(|text| limit(text).ok())
}

/// What a group's tags say that a node of it costs an hour, in USD; `None`: nothing, or nothing that can be read, which [`read`]
/// reports.
pub fn price_per_hour(tags: &BTreeMap<String, String>) -> Option<f64> {
    tags.get(PRICE).and_then(|text| price(text).ok())
}

fn price(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|price| PRICES.contains(price)).ok_or("USD per hour, a number from 0 to 10000")
}

/// As the flag `--drain-timeout` is spelled.
fn limit(text: &str) -> Result<DrainTimeout, &'static str> {
    if text == "none" {
        return Ok(DrainTimeout::Never);
    }
    let duration = humantime::parse_duration(text).ok().filter(|duration| DRAIN.contains(duration));
    duration.map(DrainTimeout::After).ok_or("none, or a duration from 1m to 30days")
}

fn pods(text: &str) -> Result<i64, &'static str> {
    text.parse().ok().filter(|pods| (1..=MOST_PODS).contains(pods)).ok_or("a number from 1 to 2000")
}

fn label(key: &str, value: &str) -> Result<(), &'static str> {
    if !is_qualified_name(key) {
        Err("a label key as Kubernetes allows it")
    } else if !is_label_value(value) {
        Err("a label value as Kubernetes allows it")
    } else {
        Ok(())
    }
}

fn taint(key: &str, value: &str) -> Result<Taint, &'static str> {
    let (value, effect) = value.rsplit_once(':').ok_or("VALUE:EFFECT")?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err("an effect of NoSchedule, PreferNoSchedule or NoExecute");
    }
    if !is_qualified_name(key) || !is_label_value(value) {
        return Err("a taint key and value as Kubernetes allows them");
    }
    Ok(Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
}

fn resource(name: &str, value: &str) -> Result<(), &'static str> {
    if !is_qualified_name(name) {
        Err("a resource name as Kubernetes allows it")
    } else if quantity::parse(value).is_none() {
        Err("a Kubernetes quantity")
    } else {
        Ok(())
    }
}

fn option(options: &mut OptionOverrides, name: &str, value: &str) -> Result<(), &'static str> {
    match name {
        "scaledownutilizationthreshold" => options.scale_down_utilization_threshold = Some(share(value)?),
        "scaledowngpuutilizationthreshold" => {
            options.scale_down_gpu_utilization_threshold = Some(share(value)?);
        }
        "scaledownunneededtime" => options.scale_down_unneeded_time = Some(duration(value)?),
        "scaledownunreadytime" => options.scale_down_unready_time = Some(duration(value)?),
        "maxnodeprovisiontime" => options.max_node_provision_time = Some(duration(value)?),
        "zeroormaxnodescaling" => options.zero_or_max_node_scaling = Some(boolean(value)?),
        "ignoredaemonsetsutilization" => options.ignore_daemon_sets_utilization = Some(boolean(value)?),
        "maxnodestartuptime" => return Err("nothing: the protocol cannot carry this option"),
        _ => return Err("an autoscaling option that cluster-autoscaler knows"),
    }
    Ok(())
}

fn share(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share: &f64| share.is_finite() && *share >= 0.0).ok_or("a number from 0 on")
}

/// As Go's [strconv.ParseBool](https://pkg.go.dev/strconv#ParseBool).
fn boolean(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("true or false"),
    }
}

/// As Go's [time.ParseDuration](https://pkg.go.dev/time#ParseDuration), without negative ones.
fn duration(text: &str) -> Result<Duration, &'static str> {
    const EXPECTED: &str = "a duration such as 10m0s";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(EXPECTED);
    }
    let mut seconds = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(EXPECTED)?;
        let number: f64 = rest[..digits].parse().map_err(|_| EXPECTED)?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(EXPECTED),
        };
        seconds += number * unit;
        rest = &rest[letters..];
    }
    // Durations of Go and of the protocol end at 2^63 nanoseconds.
    if seconds >= i64::MAX as f64 / 1e9 {
        return Err(EXPECTED);
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| EXPECTED)
}

/// Whether the text is a valid key of a label, taint or resource: a name with an optional DNS prefix.
///
/// Source: [Labels and Selectors](https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set).
fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let dns = |prefix: &str| {
        prefix.len() <= 253
            && prefix
                .split('.')
                .all(|part| is_framed(part, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), |b| b == b'-'))
    };
    prefix.is_none_or(dns) && name.len() <= 63 && is_word(name)
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || text.len() <= 63 && is_word(text)
}

fn is_word(text: &str) -> bool {
    is_framed(text, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.'))
}

/// Whether the text starts and ends with `edge` characters and has only `edge` or `inner` ones between.
fn is_framed(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|&b| edge(b))
        && bytes.last().is_some_and(|&b| edge(b))
        && bytes.iter().all(|&b| edge(b) || inner(b))
}
