//! What a notice means for a node, and when its message may be deleted. Pure.

use jiff::{SignedDuration, Timestamp};

use super::{Expected, Noticed};
use crate::aws::{AutoScalingGroup, Lifecycle, News};
use crate::clock::later;
use crate::cluster::NodeView;
use crate::groups::hooks::HookState;
use crate::scale_in::cordon::covers;
use crate::scale_in::deadline::SAME_WITHIN;
use crate::scale_in::record::{Cause, End};
use crate::scale_in::settings::{Settings, Treatment};

/// From a spot interruption notice to the end of the instance.
///
/// Source: [Spot Instance interruption
/// notices](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
const SPOT: SignedDuration = SignedDuration::from_mins(2);

/// How long a rebalance recommendation counts. AWS names no end: it comes well before an interruption, or none follows.
const REBALANCE: SignedDuration = SignedDuration::from_hours(1);

/// How long a scheduled event of which AWS has told no end counts at least, after that was told.
const WITHOUT_END: SignedDuration = SignedDuration::from_hours(24);

/// Notices count for this long after what they announce: a machine that lives then was spared.
const SPARED: SignedDuration = SignedDuration::from_mins(10);

/// How long a lifecycle action counts that no refresh shows.
pub(super) const UNSHOWN: SignedDuration = SignedDuration::from_mins(5);

/// A notice about an instance of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The group should hold it under our hook: it is seen by a refresh.
    Held {
        /// Since when.
        since: Timestamp,
        /// When a notice that no refresh confirms is dropped.
        until: Timestamp,
    },
    /// It may have to go.
    Expected(Noticed),
}

/// When a notice of `at` has lapsed: it is of no use to anybody any more. All by one clock.
pub(super) fn lapses(news: &News, at: Timestamp) -> Timestamp {
    match news {
        News::SpotInterruption => later(later(at, SPOT), SPARED),
        News::LifecycleAction { .. } | News::OtherTransition | News::StateChange => later(at, SPARED),
        News::CapacityEnds(ends) => later(*ends, SPARED),
        News::RebalanceRecommendation => later(at, REBALANCE),
        // Degraded hardware is told of with a start long past, and fails on.
        News::ScheduledEvent { starts, ends, .. } => {
            let a_day = later(at, WITHOUT_END);
            later(ends.unwrap_or_else(|| starts.map_or(a_day, |starts| starts.max(a_day))), SPARED)
        }
    }
}

/// What a notice of `at`, received at `now`, means; `None`: nothing to do. Both by our clock.
pub(super) fn meaning(
    news: &News,
    at: Timestamp,
    group: &AutoScalingGroup,
    hook: &HookState,
    settings: &Settings,
    now: Timestamp,
) -> Option<Meaning> {
    // AWS's clock may be ahead of ours.
    let at = at.min(now);
    let until = lapses(news, at);
    let expected =
        |cause, treatment| Expected { cause, ends_at: None, treatment, is_advice: false, told_at: at, until };
    // One that lives after its end was spared, or our clock is wrong: drained, and not cut short.
    let drained_by = |cause, ends_at: Timestamp| Expected {
        ends_at: Some(ends_at).filter(|ends_at| *ends_at > now),
        ..expected(cause, Treatment::Drain)
    };
    let expected = match news {
        News::LifecycleAction { .. } => {
            // What it tells of long ago, any refresh has shown.
            let until = until.min(later(now, UNSHOWN));
            return (until > now).then_some(Meaning::Held { since: at, until });
        }
        News::OtherTransition => return None,
        News::SpotInterruption => drained_by(Cause::SpotInterruption, later(at, SPOT)),
        News::CapacityEnds(ends) => drained_by(Cause::CapacityEnd, *ends),
        // The group launches a replacement first, and then holds this one. Without a hook it just ends it: no time to wait for a turn.
        News::RebalanceRecommendation if group.rebalances_capacity && is_held(hook) => return None,
        News::RebalanceRecommendation => Expected {
            is_advice: !group.rebalances_capacity,
            ..expected(Cause::RebalanceRecommendation, settings.on_rebalance)
        },
        News::ScheduledEvent { is_over: true, event, .. } => {
            let at_least = later(now, UNSHOWN);
            // What announced the event may come again for as long as that counts.
            let until = if event.is_some() { until.max(at_least) } else { at_least };
            Expected { until, ..expected(Cause::ScheduledEvent, Treatment::Nothing) }
        }
        News::ScheduledEvent { starts, .. } => Expected {
            ends_at: starts.filter(|at| *at > now && settings.on_scheduled_event == Treatment::Drain),
            ..expected(Cause::ScheduledEvent, settings.on_scheduled_event)
        },
        News::StateChange => expected(Cause::StateChange, Treatment::Drain),
    };
    let is_call_off = matches!(news, News::ScheduledEvent { is_over: true, .. });
    let counts = expected.until > now && (is_call_off || expected.treatment != Treatment::Nothing);
    let (event, starts) = match news {
        News::ScheduledEvent { event, starts, .. } => (event.clone(), *starts),
        _ => (None, None),
    };
    let called_off = starts.filter(|_| is_call_off);
    counts.then_some(Meaning::Expected(Noticed { expected, event, called_off, not_before: None }))
}

/// Whether a hook holds what the group ends, unless AWS has said that none does.
fn is_held(hook: &HookState) -> bool {
    !matches!(hook, HookState::Known(hooks) if hooks.are_none())
}

impl Meaning {
    /// Whether it closes the node.
    pub(super) fn closes(&self) -> bool {
        matches!(self, Self::Expected(notice) if notice.expected.treatment == Treatment::Cordon)
    }

    /// Whether the drain that it asks for may wait for its turn, or it asks for nothing any more.
    pub(super) fn may_wait(&self, now: Timestamp) -> bool {
        self.is_call_off() || matches!(self, Self::Expected(notice) if notice.expected.may_wait(now))
    }

    /// Whether it calls off what another message has announced.
    pub(super) fn is_call_off(&self) -> bool {
        matches!(self, Self::Expected(notice) if notice.is_call_off())
    }

    /// When it has lapsed.
    fn until(&self) -> Timestamp {
        match self {
            Self::Held { until, .. } => *until,
            Self::Expected(notice) => notice.expected.until,
        }
    }
}

impl Expected {
    /// Whether the machine has started since AWS told that it stops, by a Node whose clock is `ahead` of ours.
    pub(in crate::scale_in) fn is_refuted_by(&self, node: &NodeView, ahead: SignedDuration) -> bool {
        let told_at = later(self.told_at, ahead);
        self.cause == Cause::StateChange && node.ready_since.is_some_and(|since| since > told_at)
    }
}

/// Whether the node is closed, by somebody else or by us because of this notice.
fn is_closed_for(node: &NodeView, notice: &Noticed, ahead: SignedDuration) -> bool {
    node.unschedulable && node.cordon.as_ref().is_none_or(|cordon| covers(cordon, notice, ahead))
}

/// What is known of a notice's instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// Now.
    pub(super) now: Timestamp,
    /// How far the clock of what is written on Nodes is ahead of ours.
    pub(super) ahead: SignedDuration,
    /// Its state; `None`: it is in no group of ours.
    pub(super) lifecycle: Option<Lifecycle>,
    /// The hooks of its group.
    pub(super) hook: &'a HookState,
    /// Its primary Node.
    pub(super) node: Option<&'a NodeView>,
    /// It had a Node, which has gone.
    pub(super) has_gone: bool,
}

/// Whether the message may be deleted: what it is for is on the Node, or there is nothing to be done any more.
pub(super) fn is_settled(meaning: &Meaning, facts: &Facts<'_>) -> bool {
    // One refresh may leave an instance out.
    let Some(lifecycle) = facts.lifecycle else { return facts.has_gone || meaning.until() <= facts.now };
    let record = facts.node.and_then(NodeView::scale_in);
    // What only others' hooks hold is theirs to drain. What no hook will hold is drained while it is `Terminating`.
    let is_others = matches!(facts.hook, HookState::Known(hooks)
        if hooks.ours.is_none() && (hooks.others || lifecycle != Lifecycle::Terminating));
    // Out of service (`Standby`) it may come back.
    let is_leaving = !lifecycle.is_live() && lifecycle != Lifecycle::Standby;
    match meaning {
        Meaning::Held { until, .. } => {
            let is_seen = is_leaving && facts.node.is_none();
            record.is_some() || is_seen || *until <= facts.now
        }
        Meaning::Expected(notice) => {
            let expected = &notice.expected;
            let Some(node) = facts.node else { return is_leaving || expected.until <= facts.now };
            let is_done = match expected.treatment {
                Treatment::Drain => record.is_some_and(|record| {
                    expected.ends_at.is_none_or(|end| {
                        let written = record.end().map(|end| End { at: later(end.at, -facts.ahead), ..end });
                        written.is_some_and(|written| {
                            written.at <= later(end, SAME_WITHIN) && !notice.takes_back(&written)
                        })
                    })
                }),
                Treatment::Cordon => record.is_some() || is_closed_for(node, notice, facts.ahead),
                // What it calls off may come again, and later.
                Treatment::Nothing => false,
            };
            let is_refuted = expected.is_refuted_by(node, facts.ahead);
            // The warm pool stops its machines, and starts them when they are wanted: told late, the stop is over. Out of service,
            // whoever works on it stops it.
            let is_theirs = expected.cause == Cause::StateChange
                && matches!(lifecycle, Lifecycle::Warmed | Lifecycle::Standby);
            is_done || is_refuted || is_theirs || expected.until <= facts.now || is_leaving && is_others
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::aws::Hook;
    use crate::cluster::{Cordon, CordonReason};
    use crate::groups::hooks::TerminatingHooks;
    use crate::scale_in::record::{self, Record, Release};
    use crate::scale_in::tests::{settings, spot};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn scheduled(starts: Option<i64>, ends: Option<i64>, is_over: bool) -> News {
        News::ScheduledEvent { event: None, starts: starts.map(at), ends: ends.map(at), is_over }
    }

    /// Of a notice of second 0 that is received after so many seconds.
    fn told(news: &News, received: i64, group: &AutoScalingGroup) -> Option<Expected> {
        match meaning(news, at(0), group, &HookState::Unknown, &settings(), at(received))? {
            Meaning::Expected(notice) => Some(notice.expected),
            held @ Meaning::Held { .. } => panic!("{held:?}"),
        }
    }

    #[test]
    fn each_notice_has_its_cause_its_treatment_and_its_end() {
        use Treatment::{Cordon, Drain, Nothing};
        let group = AutoScalingGroup::default();
        let table = [
            (News::SpotInterruption, Cause::SpotInterruption, Drain, Some(120), 720),
            (News::CapacityEnds(at(600)), Cause::CapacityEnd, Drain, Some(600), 1_200),
            (News::RebalanceRecommendation, Cause::RebalanceRecommendation, Cordon, None, 3_600),
            (scheduled(Some(900), Some(1_800), false), Cause::ScheduledEvent, Drain, Some(900), 2_400),
            (scheduled(Some(900), None, false), Cause::ScheduledEvent, Drain, Some(900), 87_000),
            (scheduled(Some(90_000), None, false), Cause::ScheduledEvent, Drain, Some(90_000), 90_600),
            (scheduled(Some(-3_600), None, false), Cause::ScheduledEvent, Drain, None, 87_000),
            (scheduled(None, None, false), Cause::ScheduledEvent, Drain, None, 87_000),
            (scheduled(None, None, true), Cause::ScheduledEvent, Nothing, None, 301),
            (News::StateChange, Cause::StateChange, Drain, None, 600),
        ];
        for (news, cause, treatment, ends_at, until) in table {
            let (ends_at, is_advice) = (ends_at.map(at), cause == Cause::RebalanceRecommendation);
            let expected =
                Expected { cause, treatment, is_advice, ends_at, told_at: at(0), until: at(until) };
            assert_eq!(told(&news, 1, &group), Some(expected), "{news:?}");
        }
    }

    #[test]
    fn what_has_passed_what_the_group_does_itself_and_what_is_not_wanted_asks_for_nothing() {
        let group = AutoScalingGroup::default();
        let late = told(&News::SpotInterruption, 719, &group).expect("drained");
        assert_eq!((late.until, late.ends_at), (at(720), None), "and not cut short");
        let begun = told(&scheduled(Some(-60), Some(1_800), false), 1, &group).expect("drained");
        assert_eq!((begun.until, begun.ends_at), (at(2_400), None), "and not cut short");
        assert_eq!(told(&News::SpotInterruption, 720, &group), None, "it was spared, or is long gone");
        let rebalances = AutoScalingGroup { rebalances_capacity: true, ..group.clone() };
        let told_beside = |hooks| {
            let (news, hooks) = (News::RebalanceRecommendation, HookState::Known(hooks));
            meaning(&news, at(0), &rebalances, &hooks, &settings(), at(1))
        };
        let none = TerminatingHooks::default();
        let ours = TerminatingHooks {
            ours: Some(Hook::new("ebbtide", "g", Duration::from_mins(5))),
            ..none.clone()
        };
        assert_eq!(told_beside(TerminatingHooks { others: true, ..none.clone() }), None);
        assert_eq!(told_beside(ours), None);
        assert!(
            matches!(told_beside(none), Some(Meaning::Expected(notice)) if !notice.expected.is_advice),
            "nothing holds what the group ends"
        );
        assert_eq!(told(&News::RebalanceRecommendation, 1, &rebalances), None, "AWS has not said");
        assert!(told(&News::SpotInterruption, 1, &rebalances).is_some());
        let cordons = Settings { on_scheduled_event: Treatment::Cordon, ..settings() };
        let cordon =
            meaning(&scheduled(Some(900), None, false), at(0), &group, &HookState::Unknown, &cordons, at(1));
        assert!(
            matches!(&cordon, Some(Meaning::Expected(notice)) if notice.expected.ends_at.is_none()),
            "{cordon:?}"
        );
        let settings = Settings { on_rebalance: Treatment::Nothing, ..settings() };
        assert_eq!(
            meaning(&News::RebalanceRecommendation, at(0), &group, &HookState::Unknown, &settings, at(1)),
            None
        );
    }

    #[test]
    fn a_clock_of_awss_that_is_ahead_gives_no_more_time() {
        let group = AutoScalingGroup::default();
        let late = meaning(&News::SpotInterruption, at(90), &group, &HookState::Unknown, &settings(), at(0));
        assert!(
            matches!(&late, Some(Meaning::Expected(notice)) if notice.expected.ends_at == Some(at(120))),
            "{late:?}"
        );
    }

    fn node(record: Option<&Record>, cordon: Option<Cordon>) -> NodeView {
        let record = record.map(|record| Box::new(record::write(record).as_str().into()));
        NodeView { instance: Some("i-1".into()), record, cordon, ..NodeView::default() }
    }

    fn is_settled_with(meaning: &Meaning, lifecycle: Lifecycle, node: Option<&NodeView>, ours: bool) -> bool {
        let hook = ours.then(|| Hook::new("ebbtide", "g", Duration::from_mins(1)));
        let hooks = TerminatingHooks { ours: hook, others: !ours, ..TerminatingHooks::default() };
        is_settled_under(hooks, meaning, lifecycle, node)
    }

    fn is_settled_under(
        hooks: TerminatingHooks,
        meaning: &Meaning,
        lifecycle: Lifecycle,
        node: Option<&NodeView>,
    ) -> bool {
        let hook = HookState::Known(hooks);
        let facts = Facts {
            now: at(10),
            ahead: SignedDuration::ZERO,
            lifecycle: Some(lifecycle),
            hook: &hook,
            node,
            has_gone: false,
        };
        is_settled(meaning, &facts)
    }

    #[test]
    fn a_message_is_deleted_once_its_record_is_on_the_node_and_no_sooner() {
        use Lifecycle::{InService, Standby, TerminatingWait};
        let bare = node(None, None);
        let begun = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
        let limited = |second| Record { ends_at: Some(at(second)), ..begun.clone() };
        let spot = Expected { until: at(720), ..spot(120) };
        let spot =
            Meaning::Expected(Noticed { expected: spot, event: None, called_off: None, not_before: None });
        let moved = |event: &str| {
            let Meaning::Expected(notice) = spot.clone() else { panic!("{spot:?}") };
            Meaning::Expected(Noticed { event: Some(event.to_owned()), ..notice })
        };
        let of_event = Record { event: Some("a".to_owned()), ..limited(0) };
        for (event, is_done) in [("a", false), ("b", true)] {
            let is_so = is_settled_with(&moved(event), InService, Some(&node(Some(&of_event), None)), true);
            assert_eq!(is_so, is_done, "the record has an earlier end: {event}");
        }
        let held = Meaning::Held { since: at(0), until: at(300) };
        let table = [
            (&spot, InService, Some(bare.clone()), false, "no record"),
            (&spot, InService, None, false, "no Node yet: it may join"),
            (&spot, TerminatingWait, None, true, "no Node, and none will join"),
            (&spot, Standby, None, false, "out of service, from which it may come back"),
            (&spot, InService, Some(node(Some(&begun), None)), false, "a record without the end"),
            (&spot, InService, Some(node(Some(&limited(121)), None)), true, "the end is on record"),
            (&spot, InService, Some(node(Some(&limited(200)), None)), false, "a later end is"),
            (&held, InService, Some(bare.clone()), false, "not seen yet"),
            (&held, TerminatingWait, Some(bare.clone()), false, "seen, and no record"),
            (&held, TerminatingWait, Some(node(Some(&begun), None)), true, "on record"),
            (&held, TerminatingWait, None, true, "no Node: heartbeats have begun"),
        ];
        for (meaning, lifecycle, node, expected, what) in table {
            assert_eq!(is_settled_with(meaning, lifecycle, node.as_ref(), true), expected, "{what}");
        }
        assert!(
            is_settled_with(&spot, TerminatingWait, Some(&bare), false),
            "another's hook: its owner drains"
        );
        assert!(
            !is_settled_with(&spot, Standby, Some(&bare), false),
            "no hook of ours, and it may come back"
        );
        for (lifecycle, node, expected, what) in [
            (Lifecycle::Terminating, bare.clone(), false, "it is about to be drained"),
            (Lifecycle::Terminating, node(Some(&begun), None), false, "its drain has not heard of the end"),
            (Lifecycle::Terminating, node(Some(&limited(120)), None), true, "the end is on record"),
            (Lifecycle::Warmed, bare.clone(), true, "in the pool it is no node"),
        ] {
            let is_so = is_settled_under(TerminatingHooks::default(), &spot, lifecycle, Some(&node));
            assert_eq!(is_so, expected, "no hook: {what}");
        }
        let stops = Expected {
            cause: Cause::StateChange,
            ends_at: None,
            treatment: Treatment::Drain,
            is_advice: false,
            told_at: at(0),
            until: at(600),
        };
        let stops =
            Meaning::Expected(Noticed { expected: stops, event: None, called_off: None, not_before: None });
        assert!(is_settled_with(&stops, Lifecycle::Warmed, Some(&bare), true), "the warm pool's own doing");
        assert!(!is_settled_with(&stops, InService, Some(&bare), true), "it runs workloads");
        assert!(!is_settled_with(&stops, Lifecycle::WarmPending, Some(&bare), true), "it may have run some");
        let facts = |has_gone, now| Facts {
            now: at(now),
            ahead: SignedDuration::ZERO,
            lifecycle: None,
            hook: &HookState::Unknown,
            node: None,
            has_gone,
        };
        assert!(!is_settled(&spot, &facts(false, 10)), "one refresh may leave it out");
        assert!(is_settled(&spot, &facts(true, 10)) && is_settled(&spot, &facts(false, 720)));
        let late = Meaning::Held { since: at(0), until: at(10) };
        assert!(is_settled_with(&late, InService, Some(&bare), true), "no refresh has shown it");
    }

    #[test]
    fn a_machine_that_has_started_since_is_not_drained_because_it_stopped() {
        let until = later(at(0), SPARED);
        let (treatment, is_advice) = (Treatment::Drain, false);
        let stops = |cause| Expected { cause, ends_at: None, treatment, is_advice, told_at: at(0), until };
        let since = |second| NodeView { ready_since: Some(at(second)), ..node(None, None) };
        let (same, ahead) = (SignedDuration::ZERO, SignedDuration::from_mins(2));
        assert!(stops(Cause::StateChange).is_refuted_by(&since(1), same));
        assert!(!stops(Cause::StateChange).is_refuted_by(&since(-1), same));
        assert!(stops(Cause::StateChange).is_refuted_by(&since(121), ahead));
        assert!(!stops(Cause::StateChange).is_refuted_by(&since(119), ahead));
        assert!(!stops(Cause::SpotInterruption).is_refuted_by(&since(1), same));
    }

    #[test]
    fn a_notice_about_others_lapses_for_everybody() {
        for (news, seconds) in [
            (News::SpotInterruption, 720),
            (News::StateChange, 600),
            (News::CapacityEnds(at(60)), 660),
            (News::RebalanceRecommendation, 3_600),
            (scheduled(Some(900), Some(1_800), false), 2_400),
            (scheduled(Some(900), None, false), 87_000),
            (scheduled(Some(-90_000), None, false), 87_000),
            (scheduled(Some(90_000), None, false), 90_600),
        ] {
            assert_eq!(lapses(&news, at(0)), at(seconds), "{news:?}");
        }
    }

    /// A cordon for a scheduled event.
    fn cordon(until: Timestamp, event: Option<&str>) -> Option<Cordon> {
        let event = event.map(str::to_owned);
        Cordon::of(vec![CordonReason { cause: Cause::ScheduledEvent, until, event }])
    }

    #[test]
    fn a_cordon_is_settled_when_it_is_on_and_a_call_off_only_when_it_has_lapsed() {
        let until = at(3_600);
        let closed = |until, event| NodeView { unschedulable: true, ..node(None, cordon(until, event)) };
        let (on, short, others) =
            (closed(until, Some("a")), closed(at(1_800), Some("a")), closed(until, Some("b")));
        let (unnamed, off) = (closed(until, None), node(None, None));
        let by_hand = NodeView { unschedulable: true, ..node(None, None) };
        let is_settled = |treatment, node: &NodeView| {
            let cause = Cause::ScheduledEvent;
            let expected =
                Expected { cause, ends_at: None, treatment, is_advice: false, told_at: at(0), until };
            let meaning = Meaning::Expected(Noticed {
                expected,
                event: Some("a".into()),
                called_off: None,
                not_before: None,
            });
            is_settled_with(&meaning, Lifecycle::InService, Some(node), true)
        };
        for (node, is_on) in [
            (&on, true),
            (&short, false),
            (&others, false),
            (&unnamed, false),
            (&off, false),
            (&by_hand, true),
        ] {
            assert_eq!(is_settled(Treatment::Cordon, node), is_on, "{:?}", node.cordon);
            assert!(
                !is_settled(Treatment::Nothing, node),
                "what it calls off may come again: {:?}",
                node.cordon
            );
        }
    }
}
