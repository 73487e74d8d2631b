//! Metrics computed from the groups at each scrape: how many there are, age of the snapshot, and how far templates are from real nodes.

use std::sync::Arc;

use prometheus_client::registry::{Registry, Unit};

use super::{Group, Groups};
use crate::clock::{Clock, elapsed};
use crate::telemetry::gauges::{at_scrape, family_at_scrape};

/// Registers all of them.
pub fn register(registry: &mut Registry, groups: Arc<Groups>, clock: Clock) {
    let seen = Arc::clone(&groups);
    at_scrape(
        registry,
        "ebbtide_groups",
        "Node groups, by the last refresh: Auto Scaling groups that flags and tags select",
        None,
        move || Some(i64::try_from(seen.latest()?.groups.len()).unwrap_or(i64::MAX)),
    );
    let seen = Arc::clone(&groups);
    family_at_scrape(
        registry,
        "ebbtide_template_difference_ratio",
        "What was computed for a group's next node to give to pods, less what its last real node gives, as a share of \
         the latter",
        None,
        move || template_differences(&seen),
    );
    // A refresh that never succeeds grows old as well.
    let (since, limit) = (clock.now(), groups.max_age().as_secs_f64());
    at_scrape(
        registry,
        "ebbtide_refresh_age",
        "How long ago the last successful refresh began, or the process if there was none",
        Some(Unit::Seconds),
        move || {
            let seen = groups.latest().map_or(since, |view| view.taken_at);
            Some(elapsed(seen, clock.now()).as_secs_f64())
        },
    );
    at_scrape(
        registry,
        "ebbtide_refresh_age_limit",
        "Age from which on the last refresh is too old to answer from: cluster-autoscaler gets UNAVAILABLE",
        Some(Unit::Seconds),
        move || Some(limit),
    );
}

fn template_differences(groups: &Groups) -> Vec<([(&'static str, String); 2], f64)> {
    let snapshot = groups.latest();
    let of_group = |group: &Arc<Group>| {
        let difference = group.template.as_ref()?.as_ref().ok()?.difference?;
        let group = group.asg.name.to_string();
        Some(
            difference
                .shares()
                .map(|(name, share)| ([("group", group.clone()), ("resource", name.to_owned())], share)),
        )
    };
    let all = snapshot.iter().flat_map(|snapshot| snapshot.groups.values());
    all.filter_map(of_group).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::aws::AutoScalingGroup;
    use crate::groups::Snapshot;
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
        let text = captured::page(|registry| register(registry, groups, Clock::system()));
        let memory = r#"ebbtide_template_difference_ratio{group="web",resource="memory"} 0.05"#;
        assert!(text.contains(memory), "{text}");
        assert_eq!(text.matches("group=\"web\"").count(), 4);
        assert!(!text.contains("\"new\""), "{text}");
    }
}
