//! A group's own autoscaling options on top of cluster-autoscaler's defaults. Pure.
//!
//! Invariant: an answer with options has every option of the request, because the client takes a missing one for zero.
//! A group is answered without options if it overrides nothing or, unless a flag allows it, if the answer would set to zero an option
//! that the protocol does not carry.

use std::time::Duration;

use super::proto::{LegacyDuration, NodeGroupAutoscalingOptions};
use super::wire::Span;
use crate::template::tags::OptionOverrides;

/// The options to answer with; `None` if the defaults hold.
///
/// Also `None` if the request has no defaults: zeros would count (a node unneeded for 0 s goes at once). And for a
/// client that [loses its startup time](loses_startup_time), unless `zero_startup_time`: its nodes would count as
/// broken while they boot, it would buy others for the same pods, and stop at more than three.
pub fn answer(
    overrides: &OptionOverrides,
    defaults: Option<&NodeGroupAutoscalingOptions>,
    zero_startup_time: bool,
) -> Option<NodeGroupAutoscalingOptions> {
    if overrides.is_empty() {
        return None;
    }
    let mut options = *defaults?;
    if loses_startup_time(&options) && !zero_startup_time {
        return None;
    }
    let own = *overrides;
    set(&mut options.scale_down_utilization_threshold, own.scale_down_utilization_threshold);
    set(&mut options.scale_down_gpu_utilization_threshold, own.scale_down_gpu_utilization_threshold);
    set(&mut options.zero_or_max_node_scaling, own.zero_or_max_node_scaling);
    set(&mut options.ignore_daemon_sets_utilization, own.ignore_daemon_sets_utilization);
    set_span(
        &mut options.scale_down_unneeded_duration,
        &mut options.scale_down_unneeded_time,
        own.scale_down_unneeded_time,
    );
    set_span(
        &mut options.scale_down_unready_duration,
        &mut options.scale_down_unready_time,
        own.scale_down_unready_time,
    );
    set_span(
        &mut options.max_node_provision_duration,
        &mut options.max_node_provision_time,
        own.max_node_provision_time,
    );
    Some(options)
}

/// Whether the client has a MaxNodeStartupTime that it did not send, so that any answer with options sets it to 0:
/// cluster-autoscaler 1.35 and later, which speaks the new dialect only.
pub fn loses_startup_time(defaults: &NodeGroupAutoscalingOptions) -> bool {
    defaults.scale_down_unneeded_time.is_none() && defaults.max_node_startup_duration.is_none()
}

/// Whether the client may read five of the options only (cluster-autoscaler up to 1.32: it speaks the old dialect alone
/// and has not sent the others). It takes ignoreDaemonSetsUtilization and zeroOrMaxNodeScaling for false in any answer
/// with options.
///
/// Source: [kubernetes/autoscaler#7973](https://github.com/kubernetes/autoscaler/pull/7973).
pub fn may_drop_options(defaults: &NodeGroupAutoscalingOptions) -> bool {
    defaults.scale_down_unneeded_time.is_some()
        && defaults.scale_down_unneeded_duration.is_none()
        && !defaults.zero_or_max_node_scaling
        && !defaults.ignore_daemon_sets_utilization
}

fn set<T>(option: &mut T, own: Option<T>) {
    if let Some(own) = own {
        *option = own;
    }
}

fn set_span(
    new: &mut Option<prost_types::Duration>,
    old: &mut Option<LegacyDuration>,
    own: Option<Duration>,
) {
    let span = own.map(Span::from).or_else(|| Span::read(new.as_ref(), old.as_ref())).unwrap_or_default();
    *new = Some(span.new_dialect());
    *old = Some(span.old_dialect());
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000_000;

    fn span(minutes: i64) -> Span {
        Span { nanos: minutes * MINUTE }
    }

    fn old_defaults() -> NodeGroupAutoscalingOptions {
        NodeGroupAutoscalingOptions {
            scale_down_utilization_threshold: 0.5,
            scale_down_gpu_utilization_threshold: 0.6,
            scale_down_unneeded_time: Some(span(10).old_dialect()),
            scale_down_unready_time: Some(span(20).old_dialect()),
            max_node_provision_time: Some(span(15).old_dialect()),
            ..NodeGroupAutoscalingOptions::default()
        }
    }

    fn new_defaults() -> NodeGroupAutoscalingOptions {
        NodeGroupAutoscalingOptions {
            scale_down_unneeded_time: None,
            scale_down_unready_time: None,
            max_node_provision_time: None,
            scale_down_unneeded_duration: Some(span(10).new_dialect()),
            scale_down_unready_duration: Some(span(20).new_dialect()),
            max_node_provision_duration: Some(span(15).new_dialect()),
            ..old_defaults()
        }
    }

    #[test]
    fn a_group_that_overrides_nothing_is_left_to_the_defaults() {
        assert_eq!(answer(&OptionOverrides::default(), Some(&new_defaults()), true), None);
    }

    #[test]
    fn zeros_are_never_made_up_for_defaults_that_were_not_sent() {
        let own = OptionOverrides { zero_or_max_node_scaling: Some(true), ..OptionOverrides::default() };
        assert_eq!(answer(&own, None, true), None);
    }

    #[test]
    fn one_override_keeps_all_other_defaults_and_is_written_in_both_dialects() {
        let own = OptionOverrides {
            scale_down_unneeded_time: Some(Duration::from_mins(3)),
            ..OptionOverrides::default()
        };
        for defaults in [old_defaults(), new_defaults()] {
            let expected = NodeGroupAutoscalingOptions {
                scale_down_unneeded_time: Some(span(3).old_dialect()),
                scale_down_unready_time: Some(span(20).old_dialect()),
                max_node_provision_time: Some(span(15).old_dialect()),
                scale_down_unneeded_duration: Some(span(3).new_dialect()),
                ..new_defaults()
            };
            assert_eq!(answer(&own, Some(&defaults), true), Some(expected));
        }
    }

    #[test]
    fn every_option_can_be_overridden() {
        let own = OptionOverrides {
            scale_down_utilization_threshold: Some(0.1),
            scale_down_gpu_utilization_threshold: Some(0.2),
            scale_down_unneeded_time: Some(Duration::from_mins(1)),
            scale_down_unready_time: Some(Duration::from_mins(2)),
            max_node_provision_time: Some(Duration::from_mins(3)),
            zero_or_max_node_scaling: Some(true),
            ignore_daemon_sets_utilization: Some(true),
        };
        let expected = NodeGroupAutoscalingOptions {
            scale_down_utilization_threshold: 0.1,
            scale_down_gpu_utilization_threshold: 0.2,
            scale_down_unneeded_time: Some(span(1).old_dialect()),
            scale_down_unready_time: Some(span(2).old_dialect()),
            max_node_provision_time: Some(span(3).old_dialect()),
            zero_or_max_node_scaling: true,
            ignore_daemon_sets_utilization: true,
            scale_down_unneeded_duration: Some(span(1).new_dialect()),
            scale_down_unready_duration: Some(span(2).new_dialect()),
            max_node_provision_duration: Some(span(3).new_dialect()),
            max_node_startup_duration: None,
            allow_non_atomic_scale_up_to_max: false,
        };
        assert_eq!(answer(&own, Some(&new_defaults()), true), Some(expected));
    }

    #[test]
    fn what_only_newer_clients_send_is_sent_back() {
        let own = OptionOverrides { zero_or_max_node_scaling: Some(true), ..OptionOverrides::default() };
        let defaults = NodeGroupAutoscalingOptions {
            max_node_startup_duration: Some(span(4).new_dialect()),
            allow_non_atomic_scale_up_to_max: true,
            ..new_defaults()
        };
        let options = answer(&own, Some(&defaults), false).expect("overridden");
        assert_eq!(options.max_node_startup_duration, Some(span(4).new_dialect()));
        assert!(options.allow_non_atomic_scale_up_to_max);
    }

    #[test]
    fn an_option_that_would_become_zero_keeps_all_from_being_told_unless_that_is_accepted() {
        let own = OptionOverrides { zero_or_max_node_scaling: Some(true), ..OptionOverrides::default() };
        assert_eq!(answer(&own, Some(&new_defaults()), false), None);
        assert!(answer(&own, Some(&new_defaults()), true).is_some());
        assert!(answer(&own, Some(&old_defaults()), false).is_some(), "it has no such option");
    }

    #[test]
    fn a_client_of_the_old_dialect_that_sends_no_more_than_five_options_may_read_no_more() {
        let both = NodeGroupAutoscalingOptions {
            scale_down_unneeded_duration: Some(span(10).new_dialect()),
            ..old_defaults()
        };
        let sent = NodeGroupAutoscalingOptions { ignore_daemon_sets_utilization: true, ..old_defaults() };
        let clients = [old_defaults(), both, sent, new_defaults()];
        assert_eq!(clients.map(|defaults| may_drop_options(&defaults)), [true, false, false, false]);
    }

    #[test]
    fn only_a_client_of_the_new_dialect_that_does_not_send_its_startup_time_loses_it() {
        let sent = NodeGroupAutoscalingOptions {
            max_node_startup_duration: Some(span(15).new_dialect()),
            ..new_defaults()
        };
        assert_eq!(
            [old_defaults(), new_defaults(), sent].map(|defaults| loses_startup_time(&defaults)),
            [false, true, false]
        );
    }
}
