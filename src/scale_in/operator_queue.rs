//! Limits how many scale-ins requested by annotation, for maintenance that is far away, or on AWS's advice go on at once in a group. The
//! others wait, oldest request first, notices last. Nodes to be replaced wait also for replacements that have not come: a group whose
//! launches fail is not emptied.
//!
//! Survives a restart: those under way are counted by their records, a request's annotation says since when it waits, and a notice stays in
//! its queue.

use std::cell::RefCell;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::action::Plan;
use super::context::{Shared, TurnsGiven, may_lose, primary};
use super::events;
use super::notices::{self, is_far};
use super::record::{Annotation, Cause, Record, Release, Written};
use super::situation::Situation;
use super::turn::{Ahead, Turn};
use crate::aws::{AutoScalingGroup, Instance, Lifecycle};
use crate::clock::later;
use crate::cluster::{NodeView, Nodes};
use crate::groups::Snapshot;
use crate::groups::sizes::launches_nothing;
use crate::k8s::{GroupName, InstanceId, NodeName};

/// A request that waits is looked at again after this time.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// A turn stands for this long without a record. A request whose Node cannot be written goes behind the others then.
const STANDS_FOR: SignedDuration = SignedDuration::from_secs(30);

/// Why a group launches nothing whose process for that somebody has suspended.
const SUSPENDED: &str = "process Launch is suspended";

/// Whether the request on this Node may be carried out now. Once it may, that stands until there is a record, or the request is
/// taken back or does not fit any more, for [`STANDS_FOR`] at most.
pub(super) fn turn(shared: &Shared, snapshot: Option<&Snapshot>, node: &NodeView) -> Turn {
    let never = Turn::Waits(Ahead::default());
    let Some((group, instance)) = snapshot.and_then(|snapshot| snapshot.place_of(node)) else { return never };
    if !shared.leadership.leads() {
        return never;
    }
    let queue = Queue {
        nodes: &shared.nodes,
        group: &group.asg,
        at_once: shared.settings.operator_at_once.of(size(&group.asg)),
        now: shared.clock.now(),
        cluster_now: shared.clock.cluster(),
        may_lose: RefCell::default(),
        may_wait: &|instance| {
            let (notices, now) = (shared.notices.about(instance), shared.clock.now());
            notices::may_wait(&notices, now) && notices::not_before(&notices, now).is_none()
        },
    };
    let launches_fail = || {
        let is_suspended = launches_nothing(&group.asg).then(|| SUSPENDED.to_owned());
        is_suspended.or_else(|| group.failure.as_ref().map(|failure| failure.code.clone()))
    };
    match queue.turn(node, &instance.id, &shared.turns_given) {
        Turn::Now => Turn::Now,
        Turn::Waits(ahead) => Turn::Waits(Ahead { launches_fail: launches_fail(), ..ahead }),
    }
}

/// How many nodes the group has.
pub(super) fn size(group: &AutoScalingGroup) -> usize {
    group.instances.iter().filter(|instance| instance.lifecycle.is_node()).count()
}

/// The requests of a group at one moment. Each of hundreds may look at all of them.
struct Queue<'a> {
    nodes: &'a Nodes,
    group: &'a AutoScalingGroup,
    /// How many go on at once.
    at_once: usize,
    now: Timestamp,
    cluster_now: Timestamp,
    /// Whether the group may lose an instance of this weight, as far as it has been asked: that goes through the group.
    may_lose: RefCell<BTreeMap<i32, bool>>,
    /// Whether a notice asks for a drain of the instance that may wait.
    may_wait: &'a dyn Fn(&InstanceId) -> bool,
}

/// What a Node says of a scale-in that takes a turn.
enum Says {
    Nothing,
    /// It waits, since this moment if that is said; `replaced`: the group is to launch another instance in its place.
    Waits {
        since: Option<Timestamp>,
        replaced: bool,
    },
    /// It does not fit, or waits for no turn.
    Other,
    /// It is under way.
    UnderWay,
}

/// An instance that waits for its turn, as its Node [says](Says::Waits).
struct Waiting<'a> {
    instance: &'a InstanceId,
    node: NodeName,
    since: Option<Timestamp>,
    replaced: bool,
}

/// The Nodes of scale-ins that have had their turn, by instance.
type UnderWay<'a> = BTreeMap<&'a InstanceId, NodeName>;

impl Queue<'_> {
    /// How many of the group's instances have not come. Where sizes are units, there is no saying how many are missing: one at least.
    fn to_come(&self) -> usize {
        let units: i32 = self.group.live().map(|instance| self.group.weight(&instance.id)).sum();
        let lacks_units = self.group.is_weighted() && units < self.group.desired;
        let is_pending = |instance: &&Instance| instance.lifecycle == Lifecycle::Pending;
        self.group.missing()
            + usize::from(lacks_units)
            + self.group.instances.iter().filter(is_pending).count()
    }

    /// How many of these are still to be taken out of the group.
    fn to_leave(&self, under_way: &UnderWay<'_>) -> usize {
        let is_to_leave = |instance: &&Instance| {
            instance.lifecycle.is_live()
                && instance.lifecycle != Lifecycle::Pending
                && under_way.contains_key(&instance.id)
        };
        self.group.instances.iter().filter(is_to_leave).count()
    }

    fn turn(&self, node: &NodeView, id: &InstanceId, given: &TurnsGiven) -> Turn {
        // Other tasks wait for the lock: what takes long is done before.
        let (mut under_way, waiting) = self.census(id);
        let mut given = given.lock();
        let given = given.entry(self.group.name.clone()).or_default();
        self.keep_turns(given, id, &mut under_way);
        if given.get(id).is_some_and(|since| self.stands(*since)) {
            return Turn::Now;
        }
        // A node whose turn came to nothing goes behind nodes that have had none.
        let place = |id: &InstanceId, since: Option<Timestamp>| {
            (given.get(id).copied(), since.unwrap_or(self.cluster_now).min(self.cluster_now))
        };
        let mine = waiting.iter().find(|one| one.instance == id);
        // With launches that fail, what is replaced would empty the group, and holds nothing else up.
        let is_replaced = mine.is_none_or(|mine| mine.replaced);
        let to_come = self.to_come();
        // On their way out, or not replaced yet. A group that launches nothing replaces none.
        let away =
            if launches_nothing(self.group) { self.at_once } else { to_come + self.to_leave(&under_way) };
        let counts = |replaced: bool| is_replaced || !replaced || away < self.at_once;
        let mine = (place(id, mine.and_then(|mine| mine.since)), &node.name);
        let is_before = |one: &&Waiting<'_>| {
            let theirs = (place(one.instance, one.since), &one.node);
            !under_way.contains_key(one.instance) && counts(one.replaced) && theirs < mine
        };
        let before = waiting.iter().filter(is_before).count();
        let in_the_way = if is_replaced { under_way.len().max(away) } else { under_way.len() };
        if in_the_way + before < self.at_once {
            given.insert(id.clone(), self.now);
            return Turn::Now;
        }
        Turn::Waits(Ahead {
            at_once: self.at_once,
            under_way: under_way.len(),
            to_come: if is_replaced { to_come } else { 0 },
            nodes: under_way.into_values().collect(),
            before,
            launches_fail: None,
        })
    }

    /// What is under way beside this instance's scale-in, and what waits.
    fn census(&self, id: &InstanceId) -> (UnderWay<'_>, Vec<Waiting<'_>>) {
        let (mut under_way, mut waiting) = (UnderWay::new(), Vec::new());
        for instance in &self.group.instances {
            let Some((node, says)) = self.says(instance) else { continue };
            let instance = &instance.id;
            match says {
                Says::UnderWay if instance != id => {
                    under_way.insert(instance, node);
                }
                Says::Waits { since, replaced } => {
                    waiting.push(Waiting { instance, node, since, replaced });
                }
                Says::UnderWay | Says::Other | Says::Nothing => {}
            }
        }
        (under_way, waiting)
    }

    /// Keeps the turns that no record has followed yet. These few are looked at again: they may have got on since.
    fn keep_turns<'a>(
        &'a self,
        given: &mut BTreeMap<InstanceId, Timestamp>,
        id: &InstanceId,
        under_way: &mut UnderWay<'a>,
    ) {
        let before = std::mem::take(given);
        for instance in &self.group.instances {
            let Some(since) = before.get(&instance.id).copied() else { continue };
            let Some((node, says)) = self.says(instance) else { continue };
            let counts = match says {
                Says::Nothing => continue,
                Says::UnderWay => true,
                Says::Waits { .. } => self.stands(since),
                Says::Other => false,
            };
            if counts && instance.id != *id {
                under_way.insert(&instance.id, node);
            }
            if !matches!(says, Says::UnderWay) {
                given.insert(instance.id.clone(), since);
            }
        }
    }

    /// Whether a turn given at this moment stands.
    fn stands(&self, given: Timestamp) -> bool {
        later(given, STANDS_FOR) > self.now
    }

    /// What the Node of an instance says; `None` without one.
    fn says(&self, instance: &Instance) -> Option<(NodeName, Says)> {
        let node = primary(self.nodes, &instance.id)?;
        let says = match node.record.as_deref().map(Annotation::written) {
            Some(Written::Record(record)) if took_a_turn(record) => Says::UnderWay,
            Some(Written::Request(request))
                if instance.lifecycle.is_live()
                    && (request.release == Release::Terminate
                        || self.may_lose(&instance.id)
                        // At the minimum, it is replaced.
                        || (self.may_wait)(&instance.id)) =>
            {
                let replaced = request.release == Release::Terminate || !self.may_lose(&instance.id);
                Says::Waits { since: request.since, replaced }
            }
            Some(Written::Record(_) | Written::Request(_)) => Says::Other,
            Some(Written::Unreadable(_)) | None
                if instance.lifecycle.is_live()
                    && instance.lifecycle.is_node()
                    && (self.may_wait)(&instance.id) =>
            {
                Says::Waits { since: None, replaced: true }
            }
            Some(Written::Unreadable(_)) | None => Says::Nothing,
        };
        Some((node.name.clone(), says))
    }

    fn may_lose(&self, instance: &InstanceId) -> bool {
        let weight = self.group.weight(instance);
        let mut known = self.may_lose.borrow_mut();
        *known.entry(weight).or_insert_with(|| may_lose(self.nodes, self.group, instance))
    }
}

/// Whether the scale-in waited for its turn, or might have.
fn took_a_turn(record: &Record) -> bool {
    match record.cause {
        Cause::Operator | Cause::RebalanceRecommendation => true,
        Cause::ScheduledEvent => record.ends_at.is_none() || is_far(record.ends_at, record.requested_at),
        _ => false,
    }
}

/// Makes a node wait: an Event says for whom.
pub(super) fn wait(s: &Situation<'_>, group: &GroupName, ahead: &Ahead, plan: &mut Plan) {
    s.announce(plan, events::queued(group, ahead));
    plan.wake(later(s.now, LOOK_AGAIN));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::cluster::Sink as _;
    use crate::k8s::names;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn id(n: usize) -> InstanceId {
        format!("i-{n}").into()
    }

    /// A group in which as many instances may go for good as `spare` says, with what is annotated on their Nodes.
    struct Requests {
        nodes: Nodes,
        group: AutoScalingGroup,
        given: TurnsGiven,
        /// Whose notices may wait.
        far: BTreeSet<InstanceId>,
    }

    impl Requests {
        fn of(annotated: &[&str], spare: i32) -> Self {
            let desired = i32::try_from(annotated.len()).expect("few");
            let instance = |n| Instance { id: id(n), lifecycle: Lifecycle::InService, ..Instance::default() };
            let group = AutoScalingGroup {
                name: "g".into(),
                min: desired - spare,
                max: desired,
                desired,
                instances: (0..annotated.len()).map(instance).collect(),
                ..AutoScalingGroup::default()
            };
            let requests =
                Self { nodes: Nodes::default(), group, given: TurnsGiven::default(), far: BTreeSet::new() };
            for (n, value) in annotated.iter().enumerate() {
                requests.annotate(n, value);
            }
            requests
        }

        fn annotate(&self, n: usize, value: &str) {
            let annotations = if value.is_empty() { json!({}) } else { json!({ names::RECORD: value }) };
            let node = json!({
                "metadata": { "name": format!("n{n}"), "uid": "u", "resourceVersion": "1", "annotations": annotations },
                "spec": { "providerID": format!("aws:///us-east-1a/i-{n}") },
            });
            let node = serde_json::from_value(node).expect("a Node");
            self.nodes.apply(self.nodes.reduce(node));
        }

        /// Whether the `n`-th has its turn, without the names of those that are under way.
        fn turn(&self, n: usize, second: i64) -> Turn {
            match self.whole_turn(n, second) {
                Turn::Waits(ahead) => Turn::Waits(Ahead { nodes: Vec::new(), ..ahead }),
                Turn::Now => Turn::Now,
            }
        }

        fn whole_turn(&self, n: usize, second: i64) -> Turn {
            let queue = Queue {
                nodes: &self.nodes,
                group: &self.group,
                at_once: 1,
                now: at(second),
                cluster_now: at(second),
                may_lose: RefCell::default(),
                may_wait: &|id| self.far.contains(id),
            };
            let node = self.nodes.get(&format!("n{n}")).expect("a Node");
            queue.turn(&node, &id(n), &self.given)
        }
    }

    const WAITS_FOR_ONE: Turn = Turn::waits(1, 0);

    /// Nothing is under way, and so many instances have not come.
    fn waits_for_instances(to_come: usize) -> Turn {
        Turn::Waits(Ahead { at_once: 1, to_come, ..Ahead::default() })
    }

    #[test]
    fn a_turn_without_a_record_stands_for_half_a_minute_and_goes_behind_the_others_then() {
        let since = |second| format!("now since {}", at(second));
        let requests = Requests::of(&[&since(0), &since(1), &since(2)], 3);
        assert_eq!([0, 1].map(|n| requests.turn(n, 10)), [Turn::Now, WAITS_FOR_ONE]);
        assert_eq!([0, 1].map(|n| requests.turn(n, 39)), [Turn::Now, Turn::waits(1, 0)]);
        assert_eq!(requests.turn(0, 40), Turn::waits(0, 2));
        assert_eq!([1, 0].map(|n| requests.turn(n, 40)), [Turn::Now, Turn::waits(1, 1)]);
        assert_eq!([2, 1].map(|n| requests.turn(n, 70)), [Turn::Now, Turn::waits(1, 1)]);
        requests.annotate(2, "");
        assert_eq!(requests.turn(0, 71), Turn::Now, "those that had one take turns");
    }

    #[test]
    fn a_waiting_request_names_the_nodes_under_way_by_a_record_or_a_turn_alone() {
        let record = Record::new(Cause::Operator, "g", "i-0", Release::Terminate, at(0));
        let record = crate::scale_in::record::write(&record);
        let requests = Requests::of(&["", "replace", "replace", "replace"], 4);
        let nodes = |n| match requests.whole_turn(n, 0) {
            Turn::Waits(ahead) => ahead.nodes,
            Turn::Now => panic!("it waits"),
        };
        assert_eq!(requests.turn(1, 0), Turn::Now);
        assert_eq!(nodes(2), ["n1"]);
        requests.annotate(0, &record);
        assert_eq!(nodes(2), ["n0", "n1"]);
    }

    #[test]
    fn a_turn_does_not_stand_when_the_request_is_taken_back_or_does_not_fit_any_more() {
        let mut requests = Requests::of(&["now", "replace"], 1);
        assert_eq!([0, 1].map(|n| requests.turn(n, 0)), [Turn::Now, WAITS_FOR_ONE]);
        requests.group.min = 2;
        assert_eq!(requests.turn(1, 1), Turn::Now);
        let requests = Requests::of(&["now", "replace"], 1);
        assert_eq!([0, 1].map(|n| requests.turn(n, 0)), [Turn::Now, WAITS_FOR_ONE]);
        requests.annotate(0, "");
        assert_eq!(requests.turn(1, 1), Turn::Now);
    }

    #[test]
    fn machines_with_maintenance_far_away_take_turns_after_the_requests_and_a_request_at_the_minimum_counts_then()
     {
        let since = format!("replace since {}", at(0));
        let mut requests = Requests::of(&["", &since, "", "now"], 0);
        requests.far = [id(0), id(2), id(3)].into();
        assert_eq!(requests.turn(0, 10), Turn::waits(0, 1));
        assert_eq!([1, 0].map(|n| requests.turn(n, 10)), [Turn::Now, WAITS_FOR_ONE]);
        assert_eq!(requests.turn(2, 10), Turn::waits(1, 1));
        assert_eq!(requests.turn(3, 10), Turn::waits(1, 2));
        requests.group.instances[0].lifecycle = Lifecycle::TerminatingProceed;
        requests.group.desired = 3;
        assert_eq!(requests.turn(2, 10), WAITS_FOR_ONE, "what goes anyway waits for no turn");
    }

    #[test]
    fn what_is_to_be_replaced_waits_for_the_replacements_of_others_and_what_is_not_does_not() {
        let mut requests = Requests::of(&["replace", ""], 1);
        // Nobody has had a turn yet.
        let turn = |requests: &Requests, n| {
            requests.given.lock().clear();
            requests.turn(n, 0)
        };
        assert_eq!(turn(&requests, 0), Turn::Now);
        requests.group.desired = 3;
        assert_eq!(turn(&requests, 0), waits_for_instances(1), "one is missing");
        let coming = Instance { id: id(9), lifecycle: Lifecycle::Pending, ..Instance::default() };
        requests.group.instances.push(coming);
        assert_eq!(turn(&requests, 0), waits_for_instances(1), "it is on its way");
        requests.annotate(1, "now");
        assert_eq!(
            turn(&requests, 1),
            Turn::Now,
            "nobody comes in its place, and it waits for nobody who does"
        );
        requests.annotate(1, "");
        requests.group.instances[2].lifecycle = Lifecycle::InService;
        assert_eq!(turn(&requests, 0), Turn::Now);
    }

    #[test]
    fn advice_and_maintenance_that_may_have_waited_count_as_under_way_and_nothing_else_does() {
        let day = |days: i64| Some(at(days * 86_400 + 1));
        for (cause, ends_at, counts) in [
            (Cause::Operator, None, true),
            (Cause::RebalanceRecommendation, None, true),
            (Cause::RebalanceRecommendation, Some(at(120)), true),
            (Cause::ScheduledEvent, day(1), true),
            (Cause::ScheduledEvent, None, true),
            (Cause::ScheduledEvent, Some(at(3_600)), false),
            (Cause::Autoscaler, day(14), false),
        ] {
            let record = Record { ends_at, ..Record::new(cause, "g", "i-0", Release::Terminate, at(0)) };
            assert_eq!(took_a_turn(&record), counts, "{cause} {ends_at:?}");
        }
    }

    #[test]
    fn a_turn_costs_as_much_as_the_group_has_instances() {
        let cost = |instances: usize| {
            let requests = Requests::of(&vec!["now"; instances], i32::try_from(instances).expect("few"));
            allocation_counter::measure(|| _ = requests.turn(0, 0)).count_total
        };
        let (some, many) = (cost(100), cost(500));
        assert!(many < 6 * some, "{some} allocations among 100, {many} among 500");
    }
}
