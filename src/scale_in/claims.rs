//! Which records to believe: anybody who may annotate a Node can write one. Pure.
//!
//! - Believed: what this worker wrote, and what another run of ebbtide presumably wrote: records found after a restart, or written while
//!   another process leads or this one is a dry run.
//! - Somebody else's record starts now, at draining, whatever it claims: no annotation skips a drain or makes a deadline pass. (A replica
//!   that accepts a scale-in writes just such a record.) Without an earlier record it counts as a request, unless its cause is
//!   cluster-autoscaler.
//! - A request over a record changes nothing: the scale-in is under way.
//! - The announced end of the machine, and when AWS was told to terminate it, outlive their record. Only another run's annotation takes
//!   them back, as that run may know that AWS refused.
//! - A moment in the future counts as now, as it stands for a past event. A moment that is new in another run's record is no earlier than
//!   when this run last saw it missing: machines' clocks differ.
//!
//! Deadlines are computed in [`super::limit`] from options, hook and notices, whatever limit the record claims.

use std::collections::{BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::node_patch::{self, Mark};
use super::record::{self, Annotation, Cause, End, Phase, Record, Release, Request, Written};
use crate::clock::later;
use crate::cluster::NodeView;
use crate::k8s::InstanceId;

/// How far back somebody else's record may date its request: the time it takes from the API server to us.
const ON_ITS_WAY: SignedDuration = SignedDuration::from_secs(5);

/// A watch that has shown what was before shows another run's record within this time. If a moment in the record is further back, that
/// run's clock is behind.
const SEEN_WITHIN: SignedDuration = SignedDuration::from_secs(1);

/// How many of our own writes are remembered: more than can be on their way to the API server at once.
const ON_THEIR_WAY: usize = 32;

/// A Node's annotation, and what is believed of it.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    written: Option<Annotation>,
    believed: Option<Written>,
    /// What this worker wrote last, or tried to.
    ours: VecDeque<String>,
    /// When the machine of the Node's instance ends, by the last believed record.
    told_end: Option<(InstanceId, End)>,
    /// When AWS was told to terminate the Node's instance, by a believed record or, where that is gone, its mark.
    told_termination: Option<(InstanceId, Timestamp)>,
    /// Which of these certainly had no effect, by the last believed record.
    void_termination: Option<Timestamp>,
    /// What has been put on the Node for its scale-in.
    marks: BTreeSet<Mark>,
    /// The deadline that an earlier run wrote, unless it is AWS's end of the machine, which may be called off.
    inherited: Option<Timestamp>,
    /// Whether the annotation was written, as far as can be told, by somebody other than a run of ebbtide.
    is_written_by_others: bool,
    /// Whether it was, and there was no record of the same instance before it.
    is_begun_by_others: bool,
    /// The record that somebody has taken off, or written something else over.
    overruled: Option<Record>,
    /// Whether something was written straight over it, rather than after it had been taken off.
    is_written_over: bool,
}

impl Claims {
    /// Notes that this is being written.
    pub fn write(&mut self, text: &str) {
        self.ours.retain(|ours| ours != text);
        self.ours.push_back(text.to_owned());
        if self.ours.len() > ON_THEIR_WAY {
            self.ours.pop_front();
        }
    }

    /// Takes in the Node's annotation at `now`, by the record's clock. `from_another_run`: it is believed, as an earlier run, another
    /// leader or the ebbtide beside a dry run may have written it.
    pub fn see(&mut self, node: &NodeView, from_another_run: bool, now: Timestamp) {
        self.see_marks(node, now);
        let written = node.record.as_deref();
        if self.written.as_ref() == written {
            return;
        }
        let (before, is_over_that) = match self.believed.take() {
            Some(Written::Record(record)) => (Some(record), true),
            // Written again before the record is back.
            Some(Written::Request(_) | Written::Unreadable(_)) => (None, self.is_written_over),
            None => (None, false),
        };
        self.written = written.cloned();
        (self.is_written_by_others, self.is_begun_by_others) = (false, false);
        self.is_written_over = is_over_that;
        let overruled = before.clone().or_else(|| self.overruled.take());
        self.overruled = overruled.filter(|_| node_patch::has_our_taint(node));
        let Some(written) = written else { return self.ours.clear() };
        self.believed = Some(self.judge(written, before.as_ref(), node, from_another_run, now));
        let believed = self.believed.as_ref().and_then(Written::record);
        if believed.is_some() {
            self.overruled = None;
        }
        // A believed record without an end corrects one that had one: another replica may have believed somebody else's.
        if let Some(record) = believed.filter(|record| node.instance.as_ref() == Some(&record.instance)) {
            self.told_end = record.end().map(|end| (record.instance.clone(), end));
            if let Some(at) = record.terminate_at {
                self.told_termination = Some((record.instance.clone(), at));
                self.void_termination = record.void_termination;
            }
        }
    }

    /// Takes in what has been put on the Node. What was listed once is there as long as the record, or the taint.
    fn see_marks(&mut self, node: &NodeView, now: Timestamp) {
        let written = node.record.as_deref();
        if !node_patch::has_our_taint(node) {
            let is_requested = written.is_some_and(|it| matches!(it.written(), Written::Request(_)));
            if written.is_none() || is_requested && node.marks.is_none() {
                self.marks.clear();
            }
            // What is called off comes off together.
            self.overruled = None;
        }
        self.marks.extend(node_patch::of_scale_in(&node_patch::marks(node)));
        // The mark counts unless the record has the time itself, or is another instance's (a kubelet may have adopted its Node).
        let is_silent = |record: &Record| {
            record.terminate_at.is_none() && node.instance.as_ref() == Some(&record.instance)
        };
        if self.marks.contains(&Mark::Told) && written.and_then(Annotation::record).is_none_or(is_silent) {
            self.note_told(node, now);
        }
    }

    /// What to believe of a new annotation. `before`: the record that was believed until now.
    fn judge(
        &mut self,
        written: &Annotation,
        before: Option<&Record>,
        node: &NodeView,
        from_another_run: bool,
        now: Timestamp,
    ) -> Written {
        let is_ours = self.ours.iter().any(|ours| ours == written.text());
        let Some(claimed) = written.record().filter(|_| !is_ours) else { return written.written().clone() };
        if from_another_run {
            self.inherited = claimed.release_by.filter(|_| claimed.ends_at.is_none());
            return Written::Record(no_earlier_than_seen(claimed.not_ahead_of(now, now), before, now));
        }
        let unreadable = || record::unreadable(written.text());
        let is_of_this_machine = |record: &Record| node.instance.as_ref() == Some(&record.instance);
        // Of another machine over that of this one.
        if before.is_some_and(is_of_this_machine) && !is_of_this_machine(claimed) {
            return unreadable();
        }
        // Unknown words are a newer version's if the scale-in has begun or names its installation; a person is told that they mean nothing.
        if before.is_none() && claimed.installation.is_none() && written.has_unknown_words() {
            return unreadable();
        }
        self.is_written_by_others = true;
        self.is_begun_by_others = before.is_none_or(|before| before.instance != claimed.instance);
        let told_end = self.told_end(&claimed.instance).filter(|end| end.at > now).cloned();
        from_somebody(claimed, before, told_end, now).unwrap_or_else(unreadable)
    }

    /// Notes that AWS was told to terminate the Node's instance by a run before this one, some time before `now`.
    fn note_told(&mut self, node: &NodeView, now: Timestamp) {
        let Some(instance) = node.instance.clone() else { return };
        if self.told_termination.as_ref().is_none_or(|(told, _)| *told != instance) {
            self.told_termination = Some((instance, now));
        }
    }

    /// What is believed of the annotation.
    pub fn believed(&self) -> Option<&Written> {
        self.believed.as_ref()
    }

    /// What is believed of the annotation, if it is a record.
    pub fn record(&self) -> Option<&Record> {
        self.believed()?.record()
    }

    /// The same, if it is of this instance.
    pub fn record_of(&self, instance: &InstanceId) -> Option<&Record> {
        self.record().filter(|record| record.instance == *instance)
    }

    /// When AWS ends the machine of this instance, by a record that may have been written over or taken off since: the notice is
    /// not told again.
    pub fn told_end(&self, instance: &InstanceId) -> Option<&End> {
        self.told_end.as_ref().filter(|(told, _)| told == instance).map(|(_, end)| end)
    }

    /// The latest moment at which AWS was told to terminate this instance, by a record that may be gone by now, unless that had no
    /// effect.
    pub fn told_termination(&self, instance: &InstanceId) -> Option<Timestamp> {
        let told = self.told_termination.as_ref().filter(|(told, _)| told == instance).map(|(_, at)| *at);
        told.filter(|at| self.void_termination != Some(*at))
    }

    /// The record of this instance's scale-in that somebody has taken off, or written something else over.
    pub fn overruled(&self, instance: &InstanceId) -> Option<&Record> {
        self.overruled.as_ref().filter(|record| record.instance == *instance)
    }

    /// The same, if somebody has written a request over it, with no time between in which it was off.
    pub fn written_over(&self, instance: &InstanceId) -> Option<&Record> {
        let is_by_a_request = self.is_written_over && matches!(self.believed, Some(Written::Request(_)));
        self.overruled(instance).filter(|_| is_by_a_request)
    }

    /// What has been put on the Node for its scale-in, whatever it lists by now.
    pub(super) fn marks(&self) -> &BTreeSet<Mark> {
        &self.marks
    }

    /// The deadline that an earlier run of ebbtide wrote, which may have known what this one does not.
    pub fn inherited(&self) -> Option<Timestamp> {
        self.inherited
    }

    /// Whether the annotation was written, as far as can be told, by somebody other than a run of ebbtide.
    pub fn is_written_by_others(&self) -> bool {
        self.is_written_by_others
    }

    /// The record in the annotation, if something else is believed.
    pub fn not_believed(&self) -> Option<&Record> {
        let claimed = self.written.as_ref()?.record()?;
        (self.record() != Some(claimed)).then_some(claimed)
    }

    /// The same, if no run of ebbtide has written it.
    pub fn forged(&self) -> Option<&Record> {
        self.not_believed().filter(|_| self.is_written_by_others)
    }

    /// Whether the record's limit is somebody's word alone.
    pub fn is_limit_claimed(&self) -> bool {
        self.is_begun_by_others && self.not_believed().is_some()
    }
}

/// The record of another run. Moments that are new in it and lie well before `now` are set to `now`: this run has seen `before`, the record
/// without them.
fn no_earlier_than_seen(claimed: Record, before: Option<&Record>, now: Timestamp) -> Record {
    let Some(before) = before.filter(|before| before.instance == claimed.instance) else { return claimed };
    let seen = |at: Timestamp, before: Option<Timestamp>| match before {
        Some(before) if at <= before => before,
        _ if later(at, SEEN_WITHIN) < now => now,
        _ => at,
    };
    let same_phase_since = (claimed.phase == before.phase).then_some(before.phase_since);
    let terminate_at = claimed.terminate_at.map(|at| seen(at, before.terminate_at));
    let is_void = claimed.terminate_at.is_some() && claimed.told_at().is_none();
    Record {
        phase_since: seen(claimed.phase_since, same_phase_since),
        empty_since: claimed.empty_since.map(|at| seen(at, before.empty_since)),
        terminate_at,
        void_termination: terminate_at.filter(|_| is_void),
        ..claimed
    }
}

/// Somebody else's record, put back to its beginning, with what only we can know from `before`. `None` if only the record claims that the
/// group took the instance out. Without `before` it is a request, unless its cause is cluster-autoscaler.
fn from_somebody(
    claimed: &Record,
    before: Option<&Record>,
    told_end: Option<End>,
    now: Timestamp,
) -> Option<Written> {
    let before = before.filter(|before| before.instance == claimed.instance);
    // A notice comes to us, not to others.
    let end = before.and_then(Record::end).or(told_end);
    let claimed = claimed.not_ahead_of(now, now).ending(end);
    let not_before = before.map_or(later(now, -ON_ITS_WAY), |before| before.requested_at);
    let release = match (before.map(|before| before.release), claimed.release) {
        (before, Release::LeftToGroup) => before?,
        (Some(Release::LeftToGroup), _) => Release::LeftToGroup,
        (_, claimed) => claimed,
    };
    if before.is_none() && claimed.cause != Cause::Autoscaler {
        return Some(Written::Request(Request { release, since: None }));
    }
    Some(Written::Record(Record {
        release,
        phase: Phase::Draining,
        phase_since: now,
        empty_since: None,
        // Nobody brings a limit back that was moved.
        release_by: before.map_or(claimed.release_by, |before| before.release_by),
        limited_since: before.and_then(|before| before.limited_since),
        // Only who has seen the hook knows.
        heartbeat_timeout_seconds: before.and_then(|before| before.heartbeat_timeout_seconds),
        requested_at: claimed.requested_at.max(not_before),
        group: before.map_or(claimed.group, |before| before.group.clone()),
        terminate_at: claimed.terminate_at.max(before.and_then(|before| before.terminate_at)),
        void_termination: before.and_then(|before| before.void_termination),
        more: before.map(|before| before.more.clone()).unwrap_or_default(),
        ..claimed
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn record(requested: i64) -> Record {
        Record::new(Cause::Autoscaler, "g", "i-1", Release::TerminateAndDecrement, at(requested))
    }

    /// The Node of `i-1` with this annotation.
    fn node(text: &str) -> NodeView {
        NodeView { instance: Some("i-1".into()), record: Some(Box::new(text.into())), ..NodeView::default() }
    }

    fn written(record: &Record) -> NodeView {
        node(&record::write(record))
    }

    #[test]
    fn what_aws_was_told_of_the_machine_before_is_not_said_of_the_one_that_adopts_its_node() {
        let old = Record { instance: "i-old".into(), terminate_at: Some(at(0)), ..record(0) };
        let adopted = NodeView { marks: Some("taint,told".into()), ..written(&old) };
        let mut claims = Claims::default();
        claims.see(&adopted, true, at(10));
        assert_eq!(claims.told_termination(&"i-1".into()), None);
        // Where nothing says of which machine it was, it may be this one.
        claims.see(&NodeView { record: None, ..adopted }, true, at(20));
        assert_eq!(claims.told_termination(&"i-1".into()), Some(at(20)));
        // By its own record, which does not say when, it was; by that of another, whether or not that says so, it was not.
        for (instance, told) in [("i-1", Some(at(10))), ("i-old", None)] {
            let silent = Record { instance: instance.into(), ..record(0) };
            let mut claims = Claims::default();
            claims.see(&NodeView { marks: Some("taint,told".into()), ..written(&silent) }, true, at(10));
            assert_eq!(claims.told_termination(&"i-1".into()), told, "{instance}");
        }
    }

    #[test]
    fn what_was_put_on_is_known_while_there_is_a_record_though_somebody_takes_list_and_taint_off() {
        let mut claims = Claims::default();
        claims.see(&NodeView { marks: Some("cordon,taint".into()), ..written(&record(0)) }, true, at(0));
        claims.see(&written(&record(0)), true, at(10));
        assert!(claims.marks().contains(&Mark::Cordon));
        claims.see(&node("now"), true, at(20));
        assert!(claims.marks().is_empty(), "a person's word on a Node that nothing is on any more");
    }

    fn seen(claims: &mut Claims, record: &Record, from_another_run: bool, now: i64) -> Record {
        claims.see(&written(record), from_another_run, at(now));
        claims.record().unwrap_or_else(|| panic!("{:?}", claims.believed())).clone()
    }

    /// A record as far along as can be.
    fn far(now: i64) -> Record {
        Record {
            phase: Phase::Releasing,
            phase_since: at(now),
            empty_since: Some(at(now)),
            terminate_at: Some(at(now)),
            ..record(now)
        }
    }

    #[test]
    fn what_we_wrote_or_an_earlier_run_did_is_believed() {
        let mut claims = Claims::default();
        assert_eq!(seen(&mut claims, &far(-500), true, 0), far(-500));
        let next = Record { phase: Phase::Flushing, ..far(-500) };
        claims.write(&record::write(&next));
        assert_eq!(seen(&mut claims, &next, false, 10), next);
        assert_eq!(claims.not_believed(), None);
        assert_eq!((claims.record_of(&"i-1".into()), claims.record_of(&"i-2".into())), (Some(&next), None));
    }

    #[test]
    fn what_another_run_notes_by_a_clock_that_is_behind_was_not_before_this_one_saw_it_missing() {
        let mut claims = Claims::default();
        seen(&mut claims, &record(-60), true, 0);
        let flushing = Record {
            phase: Phase::Flushing,
            phase_since: at(-40),
            empty_since: Some(at(-40)),
            ..record(-60)
        };
        let believed = seen(&mut claims, &flushing, true, 20);
        assert_eq!((believed.phase_since, believed.empty_since), (at(20), Some(at(20))));
        let limited = Record { release_by: Some(at(900)), ..flushing.clone() };
        assert_eq!(seen(&mut claims, &limited, true, 30).phase_since, at(20), "and stays so");
        let told =
            Record { phase: Phase::Releasing, phase_since: at(-20), terminate_at: Some(at(-20)), ..limited };
        let believed = seen(&mut claims, &told, true, 40);
        assert_eq!((believed.phase_since, believed.terminate_at), (at(40), Some(at(40))));
        assert_eq!((believed.empty_since, claims.forged()), (Some(at(20)), None));
        let again = Record { terminate_at: Some(at(400)), ..believed };
        assert_eq!(seen(&mut claims, &again, true, 400).terminate_at, Some(at(400)), "it is told once more");
        // The watch is no slower than that.
        let mut claims = Claims::default();
        seen(&mut claims, &record(-60), true, 0);
        assert_eq!(seen(&mut claims, &flushing, true, -39), flushing);
        // One that finds it so has nothing to go by.
        assert_eq!(seen(&mut Claims::default(), &flushing, true, 20), flushing);
    }

    #[test]
    fn what_somebody_writes_over_a_record_of_this_machine_about_another_means_nothing() {
        let mut claims = Claims::default();
        seen(&mut claims, &record(-60), true, 0);
        let of_another = Record { instance: "i-2".into(), ..record(-60) };
        claims.see(&written(&of_another), false, at(10));
        assert!(matches!(claims.believed(), Some(Written::Unreadable(_))), "{:?}", claims.believed());
        // A kubelet may have adopted the Node of another machine.
        let mut claims = Claims::default();
        assert_eq!(seen(&mut claims, &of_another, true, 0), of_another);
    }

    #[test]
    fn a_limit_is_inherited_from_an_earlier_run_unless_aws_may_call_it_off() {
        let limited = |ends_at: Option<i64>| Record {
            release_by: Some(at(900)),
            ends_at: ends_at.map(at),
            ..record(-500)
        };
        let inherited = |record: &Record, from_another_run: bool| {
            let mut claims = Claims::default();
            seen(&mut claims, record, from_another_run, 0);
            claims.inherited()
        };
        assert_eq!(inherited(&limited(None), true), Some(at(900)));
        assert_eq!((inherited(&limited(None), false), inherited(&limited(Some(900)), true)), (None, None));
    }

    #[test]
    fn of_what_we_try_to_write_no_more_is_kept_than_can_be_on_its_way() {
        let mut claims = Claims::default();
        let tried = |n| Record { phase: Phase::Flushing, ..far(n) };
        for n in 0..10_000 {
            claims.write(&record::write(&tried(n)));
        }
        assert_eq!(claims.ours.len(), ON_THEIR_WAY);
        assert_eq!(seen(&mut claims, &tried(9_990), false, 20_000), tried(9_990));
        assert_eq!(seen(&mut claims, &tried(1), false, 20_000).phase, Phase::Draining, "of somebody's");
    }

    #[test]
    fn what_somebody_else_writes_begins_at_the_beginning_and_now() {
        let mut claims = Claims::default();
        let begun = seen(&mut claims, &far(-500), false, 0);
        assert_eq!((begun.phase, begun.phase_since, begun.empty_since), (Phase::Draining, at(0), None));
        assert_eq!(begun.requested_at, at(-5));
        assert_eq!(begun.terminate_at, Some(at(-500)), "it may have been told");
        assert_eq!(claims.not_believed(), Some(&far(-500)));
    }

    #[test]
    fn a_scale_in_just_accepted_is_believed_as_it_is() {
        let mut claims = Claims::default();
        assert_eq!(seen(&mut claims, &record(-1), false, 0), Record { phase_since: at(0), ..record(-1) });
    }

    #[test]
    fn over_a_record_of_ours_neither_group_nor_what_aws_was_told_is_forgotten() {
        let mut claims = Claims::default();
        let limited = Record { ends_at: Some(at(500)), limited_since: Some(at(-60)), ..far(-100) };
        seen(&mut claims, &limited, true, 0);
        let forged = Record { group: "other".into(), terminate_at: None, ..record(-90_000) };
        let believed = seen(&mut claims, &forged, false, 10);
        assert_eq!((believed.group.as_str(), believed.requested_at), ("g", at(-100)));
        assert_eq!(believed.terminate_at, Some(at(-100)));
        assert_eq!((believed.ends_at, believed.limited_since), (Some(at(500)), Some(at(-60))));
    }

    #[test]
    fn an_end_that_was_told_outlives_its_record_until_a_believed_one_says_otherwise() {
        let instance = InstanceId::from("i-1");
        let ends = |second: Option<i64>| Record { ends_at: second.map(at), ..record(-100) };
        let mut claims = Claims::default();
        seen(&mut claims, &ends(Some(500)), true, 0);
        claims.see(&node("now"), false, at(10));
        assert_eq!(claims.told_end(&instance).map(|end| end.at), Some(at(500)));
        assert_eq!(seen(&mut claims, &record(15), false, 20).ends_at, Some(at(500)), "cluster-autoscaler's");
        claims.see(&node("now"), false, at(490));
        let late = seen(&mut claims, &record(500), false, 500);
        assert_eq!((late.ends_at, claims.told_end(&instance)), (None, None), "it was spared");
        // Somebody's was believed where nobody led; who led has corrected it.
        seen(&mut claims, &ends(Some(500)), true, 0);
        seen(&mut claims, &ends(None), true, 10);
        assert_eq!(claims.told_end(&instance), None);
        // A record of another instance's is void.
        seen(&mut claims, &ends(Some(500)), true, 0);
        seen(&mut claims, &Record { instance: "i-2".into(), ..ends(Some(50)) }, true, 10);
        assert_eq!(claims.told_end(&instance).map(|end| end.at), Some(at(500)));
    }

    #[test]
    fn what_a_newer_version_has_added_is_kept_from_its_record_and_taken_from_nobody_else() {
        let with = |words: &[&str]| Record {
            more: words.iter().map(|word| ((*word).to_owned(), true.into())).collect(),
            ..record(0)
        };
        let mut claims = Claims::default();
        seen(&mut claims, &with(&["added"]), true, 0);
        assert_eq!(seen(&mut claims, &with(&["made-up"]), false, 10).more, with(&["added"]).more);
    }

    #[test]
    fn that_a_termination_had_no_effect_is_known_from_another_run_and_taken_from_nobody_else() {
        let void = |at| Record { terminate_at: Some(at), void_termination: Some(at), ..record(0) };
        for (first_seen, from_another_run, told) in
            [(40, true, None), (10, true, None), (40, false, Some(at(30)))]
        {
            let mut claims = Claims::default();
            seen(&mut claims, &Record { terminate_at: Some(at(30)), ..record(0) }, true, 0);
            let believed = seen(&mut claims, &void(at(30)), from_another_run, first_seen);
            let instance = InstanceId::from("i-1");
            let told = told.map(|at: Timestamp| at.min(believed.terminate_at.expect("noted")));
            assert_eq!((believed.told_at(), claims.told_termination(&instance)), (told, told));
            // The mark alone does not say so.
            claims.see(
                &NodeView { marks: Some("taint,told".into()), ..node("now") },
                from_another_run,
                at(50),
            );
            assert_eq!(claims.told_termination(&instance), told);
        }
        // The clock of who wrote it is behind.
        let mut claims = Claims::default();
        seen(&mut claims, &record(0), true, 0);
        let believed = seen(&mut claims, &void(at(-20)), true, 40);
        assert_eq!((believed.terminate_at, believed.told_at()), (Some(at(40)), None));
    }

    #[test]
    fn a_word_that_nobody_knows_is_a_newer_versions_in_what_another_run_has_left_and_a_typing_error_else() {
        let text = record::write(&record(0)).replace("terminate-and-decrement", "terminat");
        let believed = |before: Option<Record>, from_another_run| {
            let mut claims = Claims::default();
            if let Some(before) = before {
                seen(&mut claims, &before, true, 0);
            }
            claims.see(&node(&text), from_another_run, at(10));
            claims.record().is_some()
        };
        assert!(believed(None, true) && believed(Some(record(0)), false));
        assert!(!believed(None, false));
        let of_ours = Record { installation: Some("kube-system/ebbtide".to_owned()), ..record(0) };
        let text = record::write(&of_ours).replace("terminate-and-decrement", "terminat");
        let mut claims = Claims::default();
        claims.see(&node(&text), false, at(10));
        assert!(claims.record().is_some(), "a follower has accepted it");
    }

    #[test]
    fn a_record_that_is_not_cluster_autoscalers_is_a_request() {
        for cause in [Cause::Operator, Cause::LifecycleHook] {
            let mut claims = Claims::default();
            let forged = Record { cause, release: Release::Terminate, ..far(-10) };
            claims.see(&written(&forged), false, at(0));
            let request = Request { release: Release::Terminate, since: None };
            assert_eq!(claims.believed(), Some(&Written::Request(request)));
        }
    }

    #[test]
    fn whether_the_group_has_taken_an_instance_out_is_not_believed() {
        let taken_out = Record { release: Release::LeftToGroup, ..far(-100) };
        let mut claims = Claims::default();
        claims.see(&written(&taken_out), false, at(0));
        assert!(matches!(claims.believed(), Some(Written::Unreadable(_))));
        // A record of one instance says nothing about another.
        let mut claims = Claims::default();
        seen(&mut claims, &taken_out, true, 0);
        let other = Record { instance: "i-2".into(), ..taken_out.clone() };
        claims.see(&written(&other), false, at(10));
        assert!(matches!(claims.believed(), Some(Written::Unreadable(_))));
        let taken_out = Record { heartbeat_timeout_seconds: Some(300), ..taken_out };
        let mut claims = Claims::default();
        seen(&mut claims, &taken_out, true, 0);
        let forged = Record { heartbeat_timeout_seconds: Some(30), ..far(-10) };
        let kept = seen(&mut claims, &forged, false, 10);
        assert_eq!((kept.release, kept.heartbeat_timeout_seconds), (Release::LeftToGroup, Some(300)));
    }

    #[test]
    fn what_has_not_happened_yet_happens_now_and_only_once() {
        let ahead = Record { limited_since: Some(at(90_000)), ..far(90_000) };
        for from_another_run in [true, false] {
            let mut claims = Claims::default();
            seen(&mut claims, &ahead, from_another_run, 0);
            let believed = seen(&mut claims, &ahead, from_another_run, 50);
            assert_eq!(believed.phase_since, at(0), "{from_another_run}");
            // What somebody else claims of these counts for nothing.
            let since = from_another_run.then(|| at(0));
            assert_eq!((believed.limited_since, believed.empty_since), (since, since), "{from_another_run}");
            assert_eq!(
                (believed.requested_at, believed.terminate_at),
                (at(0), Some(at(0))),
                "{from_another_run}"
            );
        }
    }
}
