//! What a group lacks of what `--manage-lifecycle-hooks` asks for. Pure.
//!
//! - Retention comes before the hook: it decides the hook's default result. Where it cannot be had, the hook comes all the same.
//! - The default result is ABANDON only where the group keeps abandoned instances. Elsewhere it would save nothing, and skip the
//!   hooks of others that still hold the instance.
//! - Hooks of others are left alone: two hooks hold an instance until both are done. But if a time-out of another's counts as ABANDON,
//!   nothing is retained: an instance that its owner forgets would be kept, held again when it is ended, and kept again.
//! - The time-out of an existing hook changes only while it holds nothing: AWS holds an instance on the terms on which it began
//!   to, and its drain would go by the new ones.

use std::time::Duration;

use crate::aws::{AutoScalingGroup, Hook, Lifecycle};
use crate::groups::hooks::{HookState, TerminatingHooks};

/// What `--manage-lifecycle-hooks` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Managed {
    /// Heartbeat time-out of the hooks (`--hook-heartbeat`), in whole seconds.
    pub heartbeat: Duration,
    /// Whether groups are to keep instances whose hook times out.
    pub retain: bool,
}

/// The next call that a group needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its hooks are not known.
    LookUp,
    /// It is to keep abandoned instances.
    Retain,
    /// It is to have this hook, in place of one of the same name or of none.
    Put {
        /// As it is to be.
        hook: Hook,
        /// As it is.
        before: Option<Hook>,
    },
}

/// What the group needs next, if anything. `retains`: whether it keeps abandoned instances; `may_retain`: whether that may be asked
/// for now.
pub(super) fn next(
    managed: Managed,
    name: &str,
    group: &AutoScalingGroup,
    hooks: &HookState,
    (retains, may_retain): (bool, bool),
) -> Option<Step> {
    if group.frozen.is_some() {
        return None;
    }
    let HookState::Known(known) = hooks else { return Some(Step::LookUp) };
    let can_retain = can_retain(group, known);
    if managed.retain && may_retain && !retains && can_retain {
        return Some(Step::Retain);
    }
    let before = known.ours.clone();
    let as_before = before.clone().filter(|_| may_hold(group));
    let hook = as_before.unwrap_or_else(|| Hook::new(name, group.name.clone(), managed.heartbeat));
    let hook = Hook { abandons: retains && can_retain, ..hook };
    // The longest hold is AWS's to say.
    let is_so = |before: &Hook| {
        (before.heartbeat_timeout, before.abandons) == (hook.heartbeat_timeout, hook.abandons)
    };
    (!before.as_ref().is_some_and(is_so)).then_some(Step::Put { hook, before })
}

/// Whether a hook holds an instance of the group, or is about to.
fn may_hold(group: &AutoScalingGroup) -> bool {
    let mut states = group.instances.iter().map(|instance| instance.lifecycle);
    states.any(|state| state.is_held() || state == Lifecycle::Terminating)
}

/// Whether retention does no harm. What a warm pool retains is no node: nobody would drain and end it.
pub fn can_retain(group: &AutoScalingGroup, hooks: &TerminatingHooks) -> bool {
    group.warm_pool.is_none() && !hooks.others_abandon
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{Frozen, Instance, WarmPool};

    const FIVE_MINUTES: Duration = Duration::from_mins(5);
    const ON: Managed = Managed { heartbeat: FIVE_MINUTES, retain: false };
    const RETAIN: Managed = Managed { heartbeat: FIVE_MINUTES, retain: true };

    fn group() -> AutoScalingGroup {
        AutoScalingGroup { name: "web".into(), ..AutoScalingGroup::default() }
    }

    fn hook(heartbeat: Duration, abandons: bool) -> Hook {
        Hook { abandons, ..Hook::new("ebbtide", "web", heartbeat) }
    }

    fn known(ours: Option<Hook>, others: bool) -> HookState {
        HookState::Known(TerminatingHooks { ours, others, ..TerminatingHooks::default() })
    }

    fn step(managed: Managed, hooks: &HookState, retention: (bool, bool)) -> Option<Step> {
        next(managed, "ebbtide", &group(), hooks, retention)
    }

    fn put(hook: Hook, before: Option<Hook>) -> Step {
        Step::Put { hook, before }
    }

    #[test]
    fn a_group_without_our_hook_gets_it_whoever_else_has_one() {
        for others in [false, true] {
            let hooks = known(None, others);
            assert_eq!(step(ON, &hooks, (false, true)), Some(put(hook(FIVE_MINUTES, false), None)));
        }
        assert_eq!(step(ON, &known(Some(hook(FIVE_MINUTES, false)), true), (false, true)), None);
    }

    #[test]
    fn a_hook_is_not_put_again_for_a_longest_hold_that_aws_has_its_own_way() {
        let shorter = Hook { global_timeout: Duration::from_mins(20), ..hook(FIVE_MINUTES, false) };
        assert_eq!(step(ON, &known(Some(shorter), false), (false, true)), None);
    }

    #[test]
    fn a_hook_of_a_group_with_a_warm_pool_abandons_nobody_though_the_group_retains() {
        let pooled = AutoScalingGroup { warm_pool: Some(WarmPool { reuses: false }), ..group() };
        let abandons = hook(FIVE_MINUTES, true);
        let next = next(ON, "ebbtide", &pooled, &known(Some(abandons.clone()), false), (true, true));
        assert_eq!(next, Some(put(hook(FIVE_MINUTES, false), Some(abandons))));
    }

    #[test]
    fn nothing_is_retained_beside_a_hook_of_another_whose_time_out_abandons() {
        let beside = |others_abandon, ours: bool| {
            let ours = ours.then(|| hook(FIVE_MINUTES, others_abandon));
            HookState::Known(TerminatingHooks { ours, others: true, others_abandon })
        };
        assert_eq!(step(RETAIN, &beside(false, false), (false, true)), Some(Step::Retain));
        assert_eq!(
            step(RETAIN, &beside(true, false), (false, true)),
            Some(put(hook(FIVE_MINUTES, false), None))
        );
        let abandons = Some(hook(FIVE_MINUTES, true));
        assert_eq!(
            step(RETAIN, &beside(true, true), (true, true)),
            Some(put(hook(FIVE_MINUTES, false), abandons))
        );
    }

    #[test]
    fn what_is_not_known_is_looked_up_first() {
        for hooks in [HookState::Unknown, HookState::Presumed(hook(FIVE_MINUTES, false))] {
            assert_eq!(step(ON, &hooks, (false, true)), Some(Step::LookUp));
        }
    }

    #[test]
    fn a_hook_of_ours_that_differs_is_put_right() {
        for other in [hook(Duration::from_hours(1), false), hook(FIVE_MINUTES, true)] {
            let hooks = known(Some(other.clone()), false);
            assert_eq!(step(ON, &hooks, (false, true)), Some(put(hook(FIVE_MINUTES, false), Some(other))));
        }
    }

    #[test]
    fn the_time_out_of_a_hook_that_is_there_stays_while_it_may_hold_an_instance() {
        let table = [
            (Lifecycle::InService, false),
            (Lifecycle::Terminating, true),
            (Lifecycle::TerminatingWait, true),
            (Lifecycle::WarmPendingWait, true),
            (Lifecycle::TerminatingProceed, false),
            (Lifecycle::Retained, false),
        ];
        for (lifecycle, stays) in table {
            let one = Instance {
                id: "i-1".into(),
                zone: "z".into(),
                lifecycle,
                protected: false,
                unhealthy: false,
                launched_from: None,
            };
            let group = AutoScalingGroup { instances: vec![one], ..group() };
            let step = |before: Option<Hook>, retains| {
                next(ON, "ebbtide", &group, &known(before, false), (retains, true))
            };
            for other in [Duration::from_mins(1), Duration::from_mins(30)] {
                let before = Some(hook(other, false));
                let right = put(hook(FIVE_MINUTES, false), before.clone());
                assert_eq!(step(before.clone(), false), (!stays).then_some(right), "{lifecycle:?}");
                let timeout = if stays { other } else { FIVE_MINUTES };
                assert_eq!(
                    step(before.clone(), true),
                    Some(put(hook(timeout, true), before)),
                    "{lifecycle:?}"
                );
            }
            assert_eq!(step(None, false), Some(put(hook(FIVE_MINUTES, false), None)), "{lifecycle:?}");
        }
    }

    #[test]
    fn the_time_out_abandons_where_the_group_retains_whoever_said_so() {
        let hooks = known(None, false);
        assert_eq!(step(ON, &hooks, (true, true)), Some(put(hook(FIVE_MINUTES, true), None)));
        assert_eq!(step(RETAIN, &hooks, (true, true)), Some(put(hook(FIVE_MINUTES, true), None)));
    }

    #[test]
    fn retention_comes_first_and_its_refusal_does_not_keep_the_hook_off() {
        let hooks = known(None, false);
        assert_eq!(step(RETAIN, &hooks, (false, true)), Some(Step::Retain));
        assert_eq!(step(RETAIN, &hooks, (false, false)), Some(put(hook(FIVE_MINUTES, false), None)));
    }

    #[test]
    fn a_warm_pool_gets_no_retention_and_its_group_a_hook() {
        let group = AutoScalingGroup { warm_pool: Some(WarmPool { reuses: false }), ..group() };
        let step = next(RETAIN, "ebbtide", &group, &known(None, false), (false, true));
        assert_eq!(step, Some(put(hook(FIVE_MINUTES, false), None)));
    }

    #[test]
    fn a_group_that_refuses_changes_is_left_alone() {
        for frozen in [Frozen::Deleting, Frozen::OperatedBy("eks.amazonaws.com".into())] {
            let group = AutoScalingGroup { frozen: Some(frozen), ..group() };
            assert_eq!(next(RETAIN, "ebbtide", &group, &known(None, false), (false, true)), None);
        }
    }
}
