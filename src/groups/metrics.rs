//! Metrics computed from the groups at each scrape: how many there are, age of the snapshot, and how far templates are from real nodes.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Groups;
use crate::clock::{Clock, elapsed};
use crate::telemetry::gauges;

/// Registers all collectors.
pub fn register(registry: &mut Registry, groups: Arc<Groups>, clock: Clock) {
    registry.register_collector(Box::new(Selected(Arc::clone(&groups))));
    registry.register_collector(Box::new(TemplateDifferences(Arc::clone(&groups))));
    let since = clock.now();
    registry.register_collector(Box::new(Age { groups, clock, since }));
}

#[derive(Debug)]
struct Selected(Arc<Groups>);

impl Collector for Selected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(snapshot) = self.0.latest() else { return Ok(()) };
        let gauge = encoder.encode_descriptor(
            "ebbtide_groups",
            "Node groups, by the last refresh: Auto Scaling groups that flags and tags select",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::try_from(snapshot.groups.len()).unwrap_or(i64::MAX)).encode(gauge)
    }
}

#[derive(Debug)]
struct Age {
    groups: Arc<Groups>,
    clock: Clock,
    /// When the process began: a refresh that never succeeds grows old as well.
    since: Timestamp,
}

impl Collector for Age {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let seen = self.groups.latest().map_or(self.since, |view| view.taken_at);
        gauges::seconds(
            &mut encoder,
            "ebbtide_refresh_age",
            "How long ago the last successful refresh began, or the process if there was none",
            elapsed(seen, self.clock.now()),
        )?;
        gauges::seconds(
            &mut encoder,
            "ebbtide_refresh_age_limit",
            "Age from which on the last refresh is too old to answer from: cluster-autoscaler gets UNAVAILABLE",
            self.groups.max_age(),
        )
    }
}

#[derive(Debug)]
struct TemplateDifferences(Arc<Groups>);

impl Collector for TemplateDifferences {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "ebbtide_template_difference_ratio",
            "What was computed for a group's next node to give to pods, less what its last real node gives, as a share of \
             the latter",
            None,
            MetricType::Gauge,
        )?;
        let snapshot = self.0.latest();
        for group in snapshot.iter().flat_map(|snapshot| snapshot.groups.values()) {
            let Some(difference) = group.template.as_ref().and_then(|t| t.as_ref().ok()?.difference) else {
                continue;
            };
            for (resource, share) in [
                ("cpu", difference.cpu),
                ("memory", difference.memory),
                ("pods", difference.pods),
                ("ephemeral-storage", difference.storage),
            ] {
                let labels = [("group", group.asg.name.as_str()), ("resource", resource)];
                ConstGauge::new(share).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::aws::AutoScalingGroup;
    use crate::groups::{Group, Snapshot};
    use crate::telemetry::captured;
    use crate::template::{Difference, Template};

    #[test]
    fn a_group_with_a_real_node_has_a_difference_for_each_resource() {
        let groups = Arc::new(Groups::new(Duration::from_mins(10)));
        let group = |name: &str, difference| {
            let template = Template { difference, ..Template::default() };
            let template = Some(Ok(Arc::new(template)));
            Arc::new(Group {
                asg: Arc::new(AutoScalingGroup { name: name.into(), ..AutoScalingGroup::default() }),
                template,
                ..Group::default()
            })
        };
        let seen = Difference { memory: 0.05, ..Difference::default() };
        groups.publish(Snapshot::new(Timestamp::UNIX_EPOCH, [group("new", None), group("web", Some(seen))]));
        let text =
            captured::page(|registry| registry.register_collector(Box::new(TemplateDifferences(groups))));
        let memory = r#"ebbtide_template_difference_ratio{group="web",resource="memory"} 0.05"#;
        assert!(text.contains(memory), "{text}");
        assert_eq!(text.matches("group=\"web\"").count(), 4);
        assert!(!text.contains("new"), "{text}");
    }
}
