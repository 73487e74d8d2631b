//! Placeholders: names for the instances that a group misses, and whether they can be given up.
//!
//! cluster-autoscaler follows each name: it gives up one that is listed with an error at once, and any other after the
//! time that a node may take to come. So a name stands for one requested instance:
//! - names are numbers, given in the order of the requests. They restart at the number of live instances once all missing
//!   ones have come; until then none is given twice. In the loop in which cluster-autoscaler gives one up it may ask for
//!   another, and would take a reused name to be as old: so none is reused after a size was lowered;
//! - when an instance comes, the lowest number goes, the oldest request; when one is back that a look had left out, the number that
//!   it was given meanwhile;
//! - a placeholder that is given up goes by its own number.
//!
//! cluster-autoscaler may come to another replica every ten minutes, and follows a name for longer than that. Each replica counts
//! for itself, but from every look at the groups, so that their names mostly agree. Until all have come they may differ: if one was
//! given up (another replica takes it for the oldest), if instances left between two looks of one of them, and in a process that has
//! started since. Unknown names count as given up.
//!
//! A group whose size could not be lowered lists placeholders without errors for a while: with an error
//! cluster-autoscaler would ask again and again, and after `--max-node-provision-time` end its loop for all groups.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::aws::AutoScalingGroup;
use crate::clock::{Clock, elapsed, later, signed};
use crate::groups::{Group, Groups};
use crate::k8s::{GroupName, InstanceId};

/// How long placeholders have no errors after their group's size could not be lowered. One refused try costs
/// cluster-autoscaler a log line; several minutes of them in a row make it give up.
const AFTER_REFUSAL: Duration = Duration::from_mins(10);

/// The same if the reason may pass at any moment: AWS throttles, or has not answered in time. Until the placeholders bear errors
/// again, their pods wait for them, and no other group is tried; a few loops without errors are enough to restart cluster-autoscaler's
/// count of minutes.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// How long the replacement of an instance that has left counts as on its way. cluster-autoscaler gives up a scale-up after a quarter of
/// an hour, and from 1.36 on takes all of it back, however many of its instances have come: the rest is what the group itself has just
/// asked for. Where AWS has capacity, an instance is in the group within seconds.
///
/// Source: `updateScaleRequests` of
/// [`clusterstate.go`](https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/clusterstate/clusterstate.go).
const ON_ITS_WAY: Duration = Duration::from_mins(1);

/// An instance that a description has left out, and that is back within this, had not left: descriptions are eventually consistent, some
/// of them minutes old.
const COMES_BACK_WITHIN: Duration = Duration::from_mins(5);

/// Most placeholders of a group: the nodes of the largest cluster that Kubernetes is built for, and an answer of well under the
/// 4 MiB that cluster-autoscaler's client takes. Of a size beyond it, as somebody mistypes one, the rest has no names:
/// the target size counts it all the same.
///
/// Source: [Considerations for large clusters](https://kubernetes.io/docs/setup/best-practices/cluster-large/).
const MOST_LISTED: usize = 5_000;

/// Why a size could not be lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// For a reason that may be over at any moment.
    Passes,
    /// For one that somebody has to put right.
    Lasts,
}

/// The placeholders of all groups.
#[derive(Debug, Default)]
pub struct Placeholders(Mutex<BTreeMap<GroupName, OfGroup>>);

#[derive(Debug, Default)]
struct OfGroup {
    numbers: Numbers,
    without_errors_until: Option<Timestamp>,
}

impl OfGroup {
    /// Updates it: the group is like this now. One made anew under the name of another has nothing of that but the names it has been given,
    /// by which cluster-autoscaler may know missing instances of the other.
    fn follow(&mut self, group: &Arc<AutoScalingGroup>, now: Timestamp) {
        if self.numbers.seen.as_ref().is_some_and(|seen| group.is_another(seen)) {
            let next = self.numbers.next;
            let numbers = Numbers { next, was_lowered: true, ..Numbers::default() };
            *self = Self { numbers, ..Self::default() };
        }
        self.numbers.follow(group, now);
    }
}

/// An instance that a group misses.
#[derive(Debug, PartialEq)]
struct Missing {
    number: usize,
    /// Since when it has been missing, if it replaces one that has left.
    replaces_since: Option<Timestamp>,
}

impl Missing {
    /// Whether it replaces one that has left so lately that it comes by itself.
    fn is_on_its_way(&self, now: Timestamp) -> bool {
        self.replaces_since.is_some_and(|since| elapsed(since, now) < ON_ITS_WAY)
    }
}

/// The numbers of the instances that a group misses.
#[derive(Debug, Default)]
struct Numbers {
    /// The oldest first.
    open: Vec<Missing>,
    next: usize,
    /// The last look.
    seen: Option<Arc<AutoScalingGroup>>,
    /// Live instances that a look has left out altogether, and when. One that leaves is mostly seen leaving first.
    left_out: BTreeMap<InstanceId, Timestamp>,
    /// Those that are being given up.
    going: Vec<usize>,
    /// A number has gone without its instance.
    was_lowered: bool,
}

impl Numbers {
    /// Updates the numbers: the group is like this now.
    fn follow(&mut self, group: &Arc<AutoScalingGroup>, now: Timestamp) {
        let (live, missing) = (group.live().count(), group.missing().min(MOST_LISTED));
        let is_new = self.open.is_empty() && !self.was_lowered;
        self.next = if is_new { live } else { self.next.max(live) };
        let (came, back) = self.arrivals(group, now);
        let before = self.open.len();
        self.open.drain(..came.min(before));
        for _ in 0..back.min(self.open.len()) {
            // It was never missing, so the number that it was given goes, and not the oldest.
            let given = self.open.iter().rposition(|missing| missing.replaces_since.is_some());
            self.open.remove(given.unwrap_or_default());
        }
        self.was_lowered &= self.open.len() == before || !self.open.is_empty();
        for going in &self.going {
            if self.open.len() > missing {
                self.open.retain(|missing| missing.number != *going);
                self.was_lowered = true;
            }
        }
        let fewer = self.open.len().saturating_sub(missing);
        self.open.drain(..fewer);
        self.was_lowered |= fewer > 0;
        self.going.retain(|going| self.open.iter().any(|missing| missing.number == *going));
        let before = self.seen.as_ref().map_or(0, |seen| seen.desired);
        let mut asked_for = usize::try_from(group.desired.saturating_sub(before)).unwrap_or_default();
        while self.open.len() < missing {
            let replaces_since = (asked_for == 0).then_some(now);
            self.open.push(Missing { number: self.next, replaces_since });
            self.next += 1;
            asked_for = asked_for.saturating_sub(1);
        }
        self.seen = Some(Arc::clone(group));
    }

    /// How many live instances the last look did not show: those that have come, and those that are back, as an earlier one showed them.
    /// Most looks show what the last one did.
    fn arrivals(&mut self, group: &Arc<AutoScalingGroup>, now: Timestamp) -> (usize, usize) {
        let Some(seen) = self.seen.as_ref().filter(|seen| !Arc::ptr_eq(seen, group)) else { return (0, 0) };
        let before: BTreeSet<&InstanceId> = seen.live().map(|instance| &instance.id).collect();
        self.left_out.retain(|_, at| elapsed(*at, now) < COMES_BACK_WITHIN);
        let newcomers = group.live().filter(|instance| !before.contains(&instance.id));
        let (back, came): (Vec<_>, Vec<_>) =
            newcomers.partition(|instance| self.left_out.remove(&instance.id).is_some());
        let there: BTreeSet<&InstanceId> = group.instances.iter().map(|instance| &instance.id).collect();
        let left_out = before.difference(&there).map(|id| (InstanceId::clone(id), now));
        self.left_out.extend(left_out);
        (came.len(), back.len())
    }

    fn names(&self) -> Vec<usize> {
        self.open.iter().map(|missing| missing.number).collect()
    }
}

impl Placeholders {
    /// Counts by every look at the groups, whether or not cluster-autoscaler asks here. Never completes.
    pub async fn watch(this: Arc<Self>, groups: Arc<Groups>, clock: Clock) -> Infallible {
        groups.watch(|| this.count(&groups, clock.now())).await
    }

    fn count(&self, groups: &Groups, now: Timestamp) {
        let mut all = self.0.lock();
        let Some(snapshot) = groups.latest() else { return };
        all.retain(|name, _| snapshot.knows(name));
        for group in snapshot.groups.values() {
            all.entry(group.asg.name.clone()).or_default().follow(&group.asg, now);
        }
    }

    /// A group as it is now, with the numbers of its missing instances, the oldest first, of the first 5,000 at most.
    ///
    /// It is looked up here, so that no older look is counted after a newer one, as if instances had come once more.
    pub fn of<G: AsRef<Group>, E>(
        &self,
        now: Timestamp,
        look: impl FnOnce() -> Result<G, E>,
    ) -> Result<(G, Vec<usize>), E> {
        let mut all = self.0.lock();
        let found = look()?;
        let asg = &found.as_ref().asg;
        let known = all.entry(asg.name.clone()).or_default();
        known.follow(asg, now);
        let names = known.numbers.names();
        Ok((found, names))
    }

    /// The same numbers, the oldest first, without those that replace instances which have just left: they are on their way.
    pub fn not_on_their_way(&self, group: &GroupName, now: Timestamp) -> Vec<usize> {
        let all = self.0.lock();
        let open = all.get(group).into_iter().flat_map(|known| &known.numbers.open);
        open.filter(|missing| !missing.is_on_its_way(now)).map(|missing| missing.number).collect()
    }

    /// These are about to be given up. [`Placeholders::given_up`] or [`Placeholders::refused`] says how that ended.
    pub fn giving_up(&self, group: &GroupName, numbers: &[usize]) {
        if let Some(known) = self.0.lock().get_mut(group) {
            known.numbers.going = numbers.to_vec();
        }
    }

    /// They were given up.
    pub fn given_up(&self, group: &GroupName) {
        if let Some(known) = self.0.lock().get_mut(group) {
            let going = std::mem::take(&mut known.numbers.going);
            known.numbers.open.retain(|missing| !going.contains(&missing.number));
            known.numbers.was_lowered = true;
            known.without_errors_until = None;
        }
    }

    /// The group's size could not be lowered.
    pub fn refused(&self, group: &GroupName, why: Refusal, now: Timestamp) {
        let time = match why {
            Refusal::Passes => AFTER_FAILURE,
            Refusal::Lasts => AFTER_REFUSAL,
        };
        let mut all = self.0.lock();
        let known = all.entry(group.clone()).or_default();
        known.numbers.going.clear();
        known.without_errors_until = Some(later(now, signed(time)));
    }

    /// Whether the group's size could not be lowered lately.
    pub fn is_refused(&self, group: &GroupName, now: Timestamp) -> bool {
        let until = self.0.lock().get(group).and_then(|known| known.without_errors_until);
        until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::aws::{Instance, Lifecycle};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn of(placeholders: &Placeholders, group: &Group) -> Vec<usize> {
        let Ok((_, numbers)) = placeholders.of(NOW, || Ok::<_, Infallible>(Arc::new(group.clone())));
        numbers
    }

    /// A group in which these live and so many are missing.
    fn group(live: Range<usize>, missing: usize) -> Arc<AutoScalingGroup> {
        let desired = (live.len() + missing) as i32;
        let instance = |n| Instance {
            id: format!("i-{n}").into(),
            lifecycle: Lifecycle::InService,
            ..Instance::default()
        };
        let instances = live.map(instance).collect();
        Arc::new(AutoScalingGroup { desired, instances, ..AutoScalingGroup::default() })
    }

    #[test]
    fn a_number_stays_with_what_it_was_given_to() {
        let mut numbers = Numbers::default();
        let mut follow = |live, missing| {
            numbers.follow(&group(0..live, missing), NOW);
            numbers.names()
        };
        assert_eq!(follow(2, 1), [2]);
        assert_eq!(follow(2, 3), [2, 3, 4], "two more are asked for");
        assert_eq!(follow(3, 2), [3, 4], "one has come");
        assert_eq!(follow(4, 2), [4, 5], "one has come and one more is asked for");
        assert_eq!(follow(3, 2), [4, 5], "one has left for good");
        assert_eq!(follow(2, 3), [4, 5, 6], "one is to be replaced");
        assert_eq!(follow(2, 1), [6], "somebody wants fewer");
        assert_eq!(follow(2, 2), [6, 7], "a name is not given twice");
        assert_eq!(follow(4, 0), [0; 0]);
        assert_eq!(follow(3, 1), [3], "but after all have come");
        assert_eq!(follow(3, 0), [0; 0]);
        assert_eq!(follow(3, 1), [4], "and not after one was given up");
        assert_eq!(follow(3, 0), [0; 0]);
        assert_eq!(follow(2, 1), [5], "however long ago");
    }

    /// Or the number would be as old as that of one that has come, and given up in the place of another.
    #[test]
    fn a_newcomer_takes_a_number_though_another_left_meanwhile() {
        let (mut numbers, later) = (Numbers::default(), NOW + Duration::from_mins(15));
        numbers.follow(&group(0..3, 2), NOW);
        let open = |numbers: &Numbers| -> Vec<_> {
            numbers.open.iter().map(|missing| (missing.number, missing.replaces_since)).collect()
        };
        assert_eq!(open(&numbers), [(3, None), (4, None)]);
        numbers.follow(&group(1..4, 2), later);
        assert_eq!(open(&numbers), [(4, None), (5, Some(later))]);
        // Others leave and come.
        numbers.follow(&group(3..6, 2), later);
        assert_eq!(open(&numbers), [(6, Some(later)), (7, Some(later))]);
    }

    #[test]
    fn what_replaces_others_that_left_within_a_minute_is_on_its_way_and_nothing_that_somebody_asked_for() {
        let (placeholders, at) = (Placeholders::default(), |s| NOW + Duration::from_secs(s));
        let look = |now, live, missing| {
            let asg =
                AutoScalingGroup { name: "g".into(), ..AutoScalingGroup::clone(&group(0..live, missing)) };
            let seen = Arc::new(Group { asg: Arc::new(asg), ..Group::default() });
            placeholders.of(now, || Ok::<_, Infallible>(seen)).map(drop)
        };
        let late = |now| placeholders.not_on_their_way(&"g".into(), now);
        assert_eq!(late(NOW), [0; 0]);
        let Ok(()) = look(NOW, 4, 1);
        let Ok(()) = look(at(10), 4, 3);
        assert_eq!(late(at(10)), [4, 5, 6]);
        let Ok(()) = look(at(20), 3, 4);
        // Two more are asked for when another leaves.
        let Ok(()) = look(at(50), 2, 7);
        for (second, expected) in [
            (50, &[4, 5, 6, 8, 9][..]),
            (79, &[4, 5, 6, 8, 9]),
            (80, &[4, 5, 6, 7, 8, 9]),
            (109, &[4, 5, 6, 7, 8, 9]),
            (110, &[4, 5, 6, 7, 8, 9, 10]),
        ] {
            assert_eq!(late(at(second)), expected, "at {second}");
        }
    }

    /// Or the number that is left would be young, and what never comes be waited for once more.
    #[test]
    fn an_instance_that_one_look_has_left_out_takes_no_number_with_it_when_it_is_back() {
        let at = |second| NOW + Duration::from_secs(second);
        // After how many seconds it is back, and the number that is left.
        for (second, left) in [(10, 3), (299, 3), (300, 4)] {
            let mut numbers = Numbers::default();
            numbers.follow(&group(0..3, 1), NOW);
            numbers.follow(&group(0..2, 2), NOW);
            assert_eq!(numbers.names(), [3, 4]);
            numbers.follow(&group(0..3, 1), at(second));
            assert_eq!(numbers.names(), [left], "{second}");
        }
    }

    #[test]
    fn a_group_that_is_made_anew_has_nothing_of_the_one_that_had_its_name_but_gives_no_name_again() {
        let (placeholders, now) = (Placeholders::default(), NOW + Duration::from_mins(15));
        let look = |arn: &str, live, missing| {
            let asg = AutoScalingGroup { arn: arn.into(), ..AutoScalingGroup::clone(&group(live, missing)) };
            of(&placeholders, &Group { asg: Arc::new(asg), ..Group::default() })
        };
        assert_eq!(look("arn:1", 0..3, 2), [3, 4]);
        placeholders.refused(&"".into(), Refusal::Lasts, now);
        assert_eq!(look("arn:2", 0..0, 2), [5, 6]);
        assert!(!placeholders.is_refused(&"".into(), now));
        assert_eq!(look("arn:2", 5..6, 1), [6]);
    }

    /// Or one who looked before another did, and counts after that one, would see instances leave and come.
    #[test]
    fn a_group_is_looked_up_while_nobody_else_counts() {
        let placeholders = Placeholders::default();
        let looked = placeholders.of(NOW, || {
            assert!(placeholders.0.try_lock().is_none());
            Ok::<_, Infallible>(Arc::new(Group::default()))
        });
        assert!(looked.is_ok());
    }

    #[test]
    fn what_is_given_up_takes_no_other_along() {
        let placeholders = Placeholders::default();
        let mut group = Group {
            asg: Arc::new(AutoScalingGroup { name: "g".into(), desired: 3, ..AutoScalingGroup::default() }),
            ..Group::default()
        };
        assert_eq!(of(&placeholders, &group), [0, 1, 2]);
        placeholders.giving_up(&"g".into(), &[1]);
        assert_eq!(of(&placeholders, &group), [0, 1, 2], "not yet");
        // A look may come before the answer, and after it.
        Arc::make_mut(&mut group.asg).desired = 2;
        assert_eq!(of(&placeholders, &group), [0, 2]);
        placeholders.given_up(&"g".into());
        assert_eq!(of(&placeholders, &group), [0, 2]);
        placeholders.giving_up(&"g".into(), &[2]);
        placeholders.given_up(&"g".into());
        Arc::make_mut(&mut group.asg).desired = 1;
        assert_eq!(of(&placeholders, &group), [0]);
        // What was refused is given up by nobody.
        Arc::make_mut(&mut group.asg).desired = 2;
        assert_eq!(of(&placeholders, &group), [0, 3]);
        placeholders.giving_up(&"g".into(), &[3]);
        placeholders.refused(&"g".into(), Refusal::Passes, Timestamp::UNIX_EPOCH);
        Arc::make_mut(&mut group.asg).desired = 1;
        assert_eq!(of(&placeholders, &group), [3]);
    }

    #[test]
    fn a_size_that_somebody_mistyped_has_no_more_names_than_a_cluster_has_nodes() {
        let placeholders = Placeholders::default();
        let mut group = Group {
            asg: Arc::new(AutoScalingGroup {
                name: "g".into(),
                desired: i32::MAX,
                ..AutoScalingGroup::default()
            }),
            ..Group::default()
        };
        assert_eq!(of(&placeholders, &group), (0..5_000).collect::<Vec<_>>());
        placeholders.giving_up(&"g".into(), &[4_999]);
        placeholders.given_up(&"g".into());
        Arc::make_mut(&mut group.asg).desired -= 1;
        let listed = of(&placeholders, &group);
        assert_eq!((listed.len(), listed[4_999]), (5_000, 5_000), "the next one has a name now");
    }

    #[test]
    fn a_refusal_is_remembered_for_a_while_or_until_it_works() {
        let (placeholders, now) = (Placeholders::default(), Timestamp::UNIX_EPOCH);
        placeholders.refused(&"g".into(), Refusal::Lasts, now);
        assert!(placeholders.is_refused(&"g".into(), now + Duration::from_mins(9)));
        assert!(!placeholders.is_refused(&"h".into(), now));
        assert!(!placeholders.is_refused(&"g".into(), now + Duration::from_mins(10)));
        placeholders.refused(&"g".into(), Refusal::Passes, now);
        assert!(placeholders.is_refused(&"g".into(), now + Duration::from_secs(29)));
        assert!(!placeholders.is_refused(&"g".into(), now + Duration::from_secs(30)));
        placeholders.refused(&"g".into(), Refusal::Lasts, now);
        placeholders.given_up(&"g".into());
        assert!(!placeholders.is_refused(&"g".into(), now));
    }

    proptest! {
        #[test]
        fn there_are_as_many_numbers_as_are_missing_and_none_twice(
            refreshes in proptest::collection::vec((0..9usize, 0..9usize, 0..9usize), 1..30),
        ) {
            let mut numbers = Numbers::default();
            let mut gone = BTreeSet::new();
            for (first, live, missing) in refreshes {
                let before = numbers.names();
                if before.is_empty() {
                    gone.clear();
                }
                numbers.follow(&group(first..first + live, missing), NOW);
                let names = numbers.names();
                prop_assert_eq!(names.len(), missing);
                prop_assert!(names.is_sorted());
                gone.extend(before.into_iter().filter(|number| !names.contains(number)));
                prop_assert!(names.iter().all(|number| !gone.contains(number)));
            }
        }
    }
}
