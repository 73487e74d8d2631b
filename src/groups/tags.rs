//! What a group's tags say of its nodes: cluster-autoscaler's `node-template` tags, in its spelling. Pure.
//!
//! A tag that cannot be read is left out and named; the group works without it.
//!
//! Source: [cluster-autoscaler on
//! AWS](https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/cloudprovider/aws#auto-discovery-setup).

use std::collections::BTreeMap;
use std::time::Duration;

const PREFIX: &str = "k8s.io/cluster-autoscaler/node-template/";

/// A taint as a tag has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintTag {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// `NoSchedule`, `NoExecute` or `PreferNoSchedule`.
    pub effect: String,
}

/// Options of cluster-autoscaler that a group sets for itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptionOverrides {
    /// `scaledownutilizationthreshold`, 0 to 1.
    pub scale_down_utilization_threshold: Option<f64>,
    /// `scaledowngpuutilizationthreshold`, 0 to 1.
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

/// Everything a group's tags say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTags {
    /// Labels of its nodes.
    pub labels: BTreeMap<String, String>,
    /// Taints of its nodes.
    pub taints: Vec<TaintTag>,
    /// Resources of its nodes, as Kubernetes quantities; they win over what was computed.
    pub resources: BTreeMap<String, String>,
    /// Options.
    pub options: OptionOverrides,
    /// Tags that could not be read, and why.
    pub unreadable: Vec<(String, &'static str)>,
}

/// Reads a group's tags.
pub fn read(tags: &BTreeMap<String, String>) -> NodeTags {
    let mut read = NodeTags::default();
    for (tag, value) in tags {
        let Some((kind, name)) = tag.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let result = match kind {
            _ if name.is_empty() => Err("the tag names nothing"),
            "label" => label(&mut read, name, value),
            "taint" => taint(&mut read, name, value),
            "resources" => resource(&mut read, name, value),
            "autoscaling-options" => option(&mut read.options, name, value),
            _ => continue,
        };
        if let Err(why) = result {
            read.unreadable.push((tag.clone(), why));
        }
    }
    read
}

fn label(read: &mut NodeTags, name: &str, value: &str) -> Result<(), &'static str> {
    let fits = |text: &str| {
        text.len() <= 63
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
            && (text.is_empty() || (text.starts_with(alphanumeric) && text.ends_with(alphanumeric)))
    };
    if !fits(value) {
        return Err("not a label value");
    }
    read.labels.insert(name.to_owned(), value.to_owned());
    Ok(())
}

fn alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

/// `VALUE:EFFECT`.
fn taint(read: &mut NodeTags, key: &str, text: &str) -> Result<(), &'static str> {
    let (value, effect) = text.rsplit_once(':').ok_or("expected VALUE:EFFECT")?;
    if !matches!(effect, "NoSchedule" | "NoExecute" | "PreferNoSchedule") {
        return Err("the effect is none of NoSchedule, NoExecute, PreferNoSchedule");
    }
    read.taints.push(TaintTag { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() });
    Ok(())
}

fn resource(read: &mut NodeTags, name: &str, value: &str) -> Result<(), &'static str> {
    if !is_quantity(value) {
        return Err("not a quantity");
    }
    read.resources.insert(name.to_owned(), value.to_owned());
    Ok(())
}

/// Digits, perhaps a fraction, and a suffix.
/// Source: [Quantity](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).
fn is_quantity(text: &str) -> bool {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffixes = ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    suffixes.contains(&&text[digits.len()..])
        && digits.parse::<f64>().is_ok_and(|n| n >= 0.0 && n.is_finite())
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
        _ => return Err("no such option"),
    }
    Ok(())
}

fn share(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or("not a number from 0 to 1")
}

fn boolean(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "neither true nor false")
}

/// A duration in Go's spelling, `1h30m`, `90s`, `1.5h`.
fn duration(text: &str) -> Result<Duration, &'static str> {
    const WRONG: &str = "not a duration such as 10m or 1h30m";
    let mut rest = text;
    let mut total = 0.0;
    if rest.is_empty() {
        return Err(WRONG);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(WRONG)?;
        let number: f64 = rest[..digits].parse().map_err(|_| WRONG)?;
        rest = &rest[digits..];
        let units = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += number
            * match &rest[..units] {
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                _ => return Err(WRONG),
            };
        rest = &rest[units..];
    }
    Duration::try_from_secs_f64(total).map_err(|_| WRONG)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> NodeTags {
        read(&pairs.iter().map(|(k, v)| (format!("{PREFIX}{k}"), (*v).to_owned())).collect())
    }

    #[test]
    fn labels_taints_resources_and_options_are_read() {
        let read = tags(&[
            ("label/example.com/team", "web"),
            ("taint/dedicated", "gpu:NoSchedule"),
            ("taint/empty", ":NoExecute"),
            ("resources/ephemeral-storage", "100Gi"),
            ("resources/example.com/license", "2"),
            ("autoscaling-options/scaledownutilizationthreshold", "0.7"),
            ("autoscaling-options/scaledownunneededtime", "1h30m"),
            ("autoscaling-options/ignoredaemonsetsutilization", "true"),
            ("something-else/x", "y"),
        ]);
        assert_eq!(read.unreadable, []);
        assert_eq!(read.labels["example.com/team"], "web");
        let taint = |key: &str, value: &str, effect: &str| TaintTag {
            key: key.into(),
            value: value.into(),
            effect: effect.into(),
        };
        assert_eq!(read.taints, [taint("dedicated", "gpu", "NoSchedule"), taint("empty", "", "NoExecute")]);
        assert_eq!(read.resources["ephemeral-storage"], "100Gi");
        assert_eq!(read.resources["example.com/license"], "2");
        assert_eq!(read.options.scale_down_utilization_threshold, Some(0.7));
        assert_eq!(read.options.scale_down_unneeded_time, Some(Duration::from_mins(90)));
        assert_eq!(read.options.ignore_daemon_sets_utilization, Some(true));
        assert_eq!(read.options.max_node_provision_time, None);
    }

    #[test]
    fn a_bad_tag_is_named_and_costs_only_itself() {
        let read = tags(&[
            ("label/a", "not a value"),
            ("label/b", "ok"),
            ("taint/c", "NoSchedule"),
            ("taint/d", "x:Sometimes"),
            ("resources/cpu", "many"),
            ("autoscaling-options/scaledownutilizationthreshold", "70%"),
            ("autoscaling-options/scaledownunneededtime", "ten minutes"),
            ("autoscaling-options/nosuch", "1"),
            ("label/", "x"),
        ]);
        assert_eq!(read.labels.len(), 1);
        assert_eq!((read.taints.len(), read.resources.len()), (0, 0));
        assert_eq!(read.options, OptionOverrides::default());
        assert_eq!(read.unreadable.len(), 8, "{:?}", read.unreadable);
    }

    proptest! {
        #[test]
        fn no_tag_makes_it_panic(kind in "(label|taint|resources|autoscaling-options)", name in ".{0,30}", value in ".{0,60}") {
            let _ = tags(&[(&format!("{kind}/{name}"), &value)]);
        }

        #[test]
        fn durations_add_up(h in 0..100u64, m in 0..60u64, s in 0..60u64) {
            prop_assert_eq!(duration(&format!("{h}h{m}m{s}s")), Ok(Duration::from_secs(h * 3_600 + m * 60 + s)));
        }
    }
}
