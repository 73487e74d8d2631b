//! Reading a group out of AWS's description of it. Pure.

use std::collections::BTreeMap;

use aws_sdk_autoscaling::types::AutoScalingGroup;

use super::{Group, Instance, Lifecycle};

/// Reads a group. `bounds` tighten its limits.
pub fn read(raw: &AutoScalingGroup, bounds: Option<(i32, i32)>) -> Group {
    let (min, max) = (raw.min_size().unwrap_or_default(), raw.max_size().unwrap_or_default());
    let (low, high) = bounds.unwrap_or((min, max));
    Group {
        name: raw.auto_scaling_group_name().unwrap_or_default().to_owned(),
        min: min.max(low),
        max: max.min(high),
        desired: raw.desired_capacity().unwrap_or_default(),
        instances: raw.instances().iter().filter_map(instance).collect(),
        zones: raw.availability_zones().to_vec(),
        suspended: raw
            .suspended_processes()
            .iter()
            .filter_map(|p| p.process_name())
            .map(Into::into)
            .collect(),
        tags: raw
            .tags()
            .iter()
            .filter_map(|tag| Some((tag.key()?.to_owned(), tag.value().unwrap_or_default().to_owned())))
            .collect::<BTreeMap<_, _>>(),
        ..Group::default()
    }
}

/// None for instances that are no nodes (a warm pool's).
fn instance(raw: &aws_sdk_autoscaling::types::Instance) -> Option<Instance> {
    let lifecycle = Lifecycle::parse(raw.lifecycle_state().map(|state| state.as_str()).unwrap_or_default());
    lifecycle.is_node().then(|| Instance {
        id: raw.instance_id().unwrap_or_default().to_owned(),
        zone: raw.availability_zone().unwrap_or_default().to_owned(),
        lifecycle,
        protected: raw.protected_from_scale_in().unwrap_or_default(),
    })
}
