//! The held instances, and what is due for each. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::since::{CLOCKS_DIFFER, Question};
use crate::aws::{AwsError, Instance, Lifecycle};
use crate::clock::{backoff, elapsed, later, signed, spread};
use crate::groups::Snapshot;
use crate::k8s::{GroupName, InstanceId};

/// A refresh that showed the instance not yet held gives the start of the hold only if it is no older than this. After an
/// outage of hours, a deadline that has only begun would seem to have passed.
const CLOSE_ENOUGH: Duration = Duration::from_mins(5);

/// An instance missing from refreshes is kept this long: two refreshes at the usual interval.
const MISSED_FOR: Duration = Duration::from_mins(2);

/// How long to wait for failing heartbeats: the time that was left when the first one failed, divided by this. The rest is for the node's
/// pods ...
const ENDS_AFTER_PART: i32 = 4;

/// ... but for no less than this.
const ENDS_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Heartbeats that AWS refuses for good are waited for no longer than the time that was left at the first one, divided by this: of a hook of a
/// minute, half a minute is left then, which the pods need.
const DENIED_FOR_PART: i32 = 3;

/// This long after it was shown as `Terminating`, or after AWS was told to end it, an instance counts as held even if no description says
/// so: descriptions are ten seconds apart and may be minutes old, and a heartbeat that comes too early does no harm. Half of the hook's
/// time-out where that is shorter.
pub(super) const UNSEEN_AFTER: Duration = Duration::from_secs(15);

/// What AWS does not take for a reason that passes by itself counts as failing after this time: until then it is only tried again.
pub(super) const FAILS_AFTER: Duration = Duration::from_secs(10);

/// A hook that holds an instance takes heartbeats this long after the instance is shown as held.
pub(super) const OPEN_BY_THEN: SignedDuration = SignedDuration::from_mins(1);

/// It is tried again after this part of what is left of the hold, or less by instance ...
const AGAIN_AFTER_PART: i32 = 32;

/// ... at the soonest, as the shortest hook has 15 s left by then ...
const AGAIN_AFTER: SignedDuration = SignedDuration::from_millis(500);

/// ... and at the latest.
const AGAIN_BY_THEN: SignedDuration = SignedDuration::from_secs(15);

/// A hold that was to lapse this long ago has lapsed, or another replica keeps it: that is as good as not urgent.
const LAPSED_FOR: SignedDuration = SignedDuration::from_secs(30);

/// Pause before asking again since when an instance is held. Deadlines are minutes at least.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// The same where AWS refuses for good, such as for lack of a right, or does not show it after a minute.
const REFUSED: SignedDuration = SignedDuration::from_mins(5);

/// If AWS has not said for this long when a hold began, the hold counts from when it was first seen.
const SAYS_BY_THEN: SignedDuration = SignedDuration::from_mins(1);

/// A held instance, or one that its group retains.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Held {
    pub(super) group: GroupName,
    /// State in which it is held.
    pub(super) lifecycle: Lifecycle,
    /// First and last time seen in that state.
    pub(super) seen: Timestamp,
    last_seen: Timestamp,
    /// When AWS began to hold it, if known ...
    pub(super) since: Option<Timestamp>,
    /// ... as AWS has said ...
    is_dated: bool,
    /// ... or at the latest, as AWS does not say ...
    pub(super) at_the_latest: bool,
    /// ... and when to ask if not; `None` while a question is under way.
    ask_at: Option<Timestamp>,
    /// How often that had no answer, in a row.
    unanswered: u32,
    pub(super) next: Timestamp,
    /// When the last step was answered: the pause until the next one counts from then.
    stepped: Option<Timestamp>,
    /// Whether no description has shown it held: there is none yet, or the last one is too old to tell.
    pub(super) is_presumed: bool,
    /// When the last heartbeat that AWS took was sent ...
    pub(super) renewed: Option<Timestamp>,
    /// ... and whether it has not said since that nothing holds the instance.
    pub(super) is_renewed: bool,
    /// Whether it has said so of any.
    was_refused: bool,
    /// Since when it takes none, and when its hold ends by that.
    failing: Option<(Timestamp, Timestamp)>,
    /// Whether the last one failed for a reason that does not pass by itself.
    is_denied: bool,
    in_flight: bool,
    /// Whether this run saw the instance join its group.
    pub(super) is_new: bool,
    /// When to let it go for lack of a Node; `None` while it has one, or that is unknown.
    let_go_at: Option<Timestamp>,
    /// What lets it go was sent; it is repeated at the usual pace.
    is_let_go: bool,
}

/// What to send for a held instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Heartbeat,
    /// Completion of its hook.
    Complete,
    /// Termination: its group retains it, and no hook holds it.
    Terminate,
}

/// What says that AWS ends an instance, or holds it, whatever descriptions show.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldEvidence {
    /// Since when, if that is said.
    pub(super) since: Option<Timestamp>,
    /// After this time it counts as held.
    pub(super) held_after: Duration,
}

/// What becomes of a held instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Heartbeats hold it: it has a Node, or may have one, or the leader lets it go later.
    Held,
    /// Heartbeats hold it until this moment. Then its hook is completed.
    HeldUntil(Timestamp),
    /// Neither: another's hook holds it, or a launching hook, or the leader lets it go, or ours was completed, or nobody knows which
    /// Node is its own.
    LeftAlone,
}

impl Fate {
    /// When its hook is to be completed by us.
    pub(super) fn ends_at(self) -> Option<Timestamp> {
        match self {
            Self::HeldUntil(at) => Some(at),
            Self::Held | Self::LeftAlone => None,
        }
    }
}

/// A held instance of which a step is due, and what has come of the step.
#[derive(Default)]
pub(super) struct DueInstance {
    pub(super) group: GroupName,
    pub(super) instance: InstanceId,
    /// When AWS began to hold it, if known.
    pub(super) since: Option<Timestamp>,
    /// When the last heartbeat that AWS took was sent.
    pub(super) renewed: Option<Timestamp>,
    /// When one was sent of which AWS said that nothing held the instance.
    pub(super) too_early: Option<Timestamp>,
    /// When AWS holds it no longer if it takes none any more, if known.
    pub(super) ends: Option<Timestamp>,
    /// Since when steps for it have failed, if the last one did.
    pub(super) fails_since: Option<Timestamp>,
    /// Seen held for less than a minute: its hook may not be open yet.
    pub(super) is_new: bool,
    /// No description shows it held, and AWS has taken no heartbeat for it.
    pub(super) may_be_early: bool,
    /// Some hook holds it as it is terminated: a description shows that, or its record says so before there is one.
    pub(super) is_sure: bool,
}

/// Result of a call for a held instance.
pub(super) enum Done {
    /// A step was sent.
    Step {
        one: DueInstance,
        step: Step,
        /// The next is due after this time.
        pause: SignedDuration,
        /// Why AWS did not take it.
        error: Option<AwsError>,
    },
    /// AWS's answer since when these are held.
    Asked {
        group: GroupName,
        instances: Vec<InstanceId>,
        answer: Result<BTreeMap<InstanceId, Option<Timestamp>>, AwsError>,
    },
}

impl Held {
    /// One of which nothing is known but that it is held.
    fn new(group: &GroupName, lifecycle: Lifecycle, now: Timestamp) -> Self {
        Self {
            group: group.clone(),
            lifecycle,
            seen: now,
            last_seen: now,
            since: None,
            is_dated: false,
            at_the_latest: false,
            ask_at: None,
            unanswered: 0,
            next: now,
            stepped: None,
            is_presumed: false,
            renewed: None,
            is_renewed: false,
            was_refused: false,
            failing: None,
            is_denied: false,
            in_flight: false,
            is_new: false,
            let_go_at: None,
            is_let_go: false,
        }
    }

    /// Puts the next step forward where the pause after the last one turns out to be shorter.
    pub(super) fn keep_pace(&mut self, pause: SignedDuration) {
        if let Some(stepped) = self.stepped {
            self.next = self.next.min(later(stepped, pause));
        }
    }

    /// What to send, if anything: nothing has to be done to keep a retained one.
    pub(super) fn step(&self, now: Timestamp) -> Option<Step> {
        match (self.lifecycle == Lifecycle::Retained, self.let_go_at.is_some_and(|at| at <= now)) {
            (false, false) => Some(Step::Heartbeat),
            (false, true) => Some(Step::Complete),
            (true, false) => None,
            (true, true) => Some(Step::Terminate),
        }
    }

    /// When the hold ends because AWS accepts no heartbeats, once that has lasted. If the hold is still seen after that end, another
    /// replica has renewed it.
    pub(super) fn ends(&self, now: Timestamp) -> Option<Timestamp> {
        let ((_, ends), sure) = (self.failing?, self.fails_surely_at()?);
        // The last try failed then, too: a process that was stopped has tried nothing meanwhile.
        let has_lasted = self.stepped.is_some_and(|failed| failed >= sure);
        (has_lasted && (sure..ends).contains(&now)).then_some(ends)
    }

    /// From when on failures count: a try that fails then or later.
    fn fails_surely_at(&self) -> Option<Timestamp> {
        let (first, ends) = self.failing?;
        let left = ends.duration_since(first);
        let lasts = if self.is_denied { ENDS_AFTER.min(left / DENIED_FOR_PART) } else { ENDS_AFTER };
        Some(later(first, lasts.max(left / ENDS_AFTER_PART)))
    }

    /// Since when heartbeats have failed, if the last one did.
    pub(super) fn fails_since(&self) -> Option<Timestamp> {
        self.failing.map(|(first, _)| first)
    }

    /// Whether AWS says that our hook does not hold it, and not because the hold has just begun.
    pub(super) fn is_not_ours(&self, now: Timestamp) -> bool {
        self.renewed.is_none() && self.was_refused && later(self.seen, OPEN_BY_THEN) <= now
    }

    /// Whether it may be held although a description shows it in this state (`None`: leaves it out): it may be older than the hold, which
    /// was seen, or renewed by an accepted heartbeat, since. A terminating instance does not come back.
    fn may_be_held_in(&self, shown: Option<Lifecycle>, now: Timestamp) -> bool {
        let may_be_older = match shown {
            // An unknown state may be one of the same hold.
            Some(Lifecycle::InService | Lifecycle::Terminating | Lifecycle::Unknown) => {
                self.lifecycle == Lifecycle::TerminatingWait && self.renewed.is_some()
            }
            Some(_) => false,
            None => true,
        };
        let last = self.renewed.map_or(self.last_seen, |renewed| renewed.max(self.last_seen));
        may_be_older && elapsed(last, now) <= MISSED_FOR
    }

    /// When AWS holds it no longer if it takes no more heartbeats, by what is known of the last one and the hook's time-out.
    pub(super) fn lapses(&self, timeout: Duration) -> Option<Timestamp> {
        self.renewed.or(self.since).map(|from| later(from, signed(timeout)))
    }

    /// Whether its hold limits the drain: it is seen, or a heartbeat was taken for it, or AWS answers nothing to tell.
    pub(super) fn counts(&self, now: Timestamp) -> bool {
        let has_failed = || self.fails_since().is_some_and(|first| elapsed(first, now) >= FAILS_AFTER);
        !self.is_presumed || self.renewed.is_some() || has_failed()
    }

    /// Notes that a refresh shows it held. What was presumed of the hold may be far from the truth.
    fn seen_held(&mut self, shown_at: Timestamp, now: Timestamp) {
        if !std::mem::take(&mut self.is_presumed) {
            return;
        }
        if self.renewed.is_none() {
            self.seen = now;
        }
        if !self.is_dated && self.since.is_some_and(|since| elapsed(since, shown_at) > CLOSE_ENOUGH) {
            (self.since, self.ask_at) = (None, Some(now));
        }
    }

    /// Notes when AWS says that it began to hold it; `None`: it does not say.
    fn began(&mut self, since: Option<Timestamp>) {
        let seen = later(self.seen, -CLOCKS_DIFFER);
        (self.since, self.is_dated, self.at_the_latest) =
            (Some(since.unwrap_or(seen)), since.is_some(), since.is_none());
    }

    /// Whether the next step is due.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.next <= now && !self.in_flight
    }

    /// Notes that a step is being sent.
    pub(super) fn begin(&mut self, step: Step) {
        (self.in_flight, self.is_let_go) = (true, step != Step::Heartbeat);
    }

    /// When something is due for it.
    pub(super) fn wakes_at(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> + use<> {
        let ask_at = self.ask_at.filter(|_| self.counts(now));
        (!self.in_flight).then_some(self.next).into_iter().chain(ask_at)
    }

    /// Sets when to let it go; `None`: keep it. Returns whether it was to be kept before, and is not any more.
    pub(super) fn plan_to_let_go(&mut self, at: Option<Timestamp>, now: Timestamp) -> bool {
        let is_new = at.is_some() && self.let_go_at.is_none();
        self.let_go_at = at;
        match at {
            // What is long due has waited for nobody yet: hundreds would be overdue at once.
            Some(at) if !self.is_let_go => self.next = self.next.min(at.max(now)),
            Some(_) => {}
            None => self.is_let_go = false,
        }
        is_new
    }
}

/// Instances that this run saw join their groups, or begin to leave them.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    joined: BTreeSet<InstanceId>,
    /// Those shown as `Terminating`, and since when.
    terminating: BTreeMap<InstanceId, Timestamp>,
    /// Those that refreshes leave out, and since when: they need not have gone.
    left_out: BTreeMap<InstanceId, Timestamp>,
}

impl Sightings {
    /// Adds instances that the refresh before did not show, though it showed their group.
    pub(super) fn observe(&mut self, before: Option<&Snapshot>, snapshot: &Snapshot) {
        let (shown, now) = (&snapshot.by_instance, snapshot.taken_at);
        if let Some(before) = before.filter(|before| !before.has_places_of(snapshot)) {
            let come = shown.iter().filter(|(instance, place)| {
                let is_missing = !before.by_instance.contains_key(*instance);
                is_missing
                    && before.groups.contains_key(&place.group)
                    && !self.left_out.contains_key(*instance)
            });
            self.joined.extend(come.map(|(instance, _)| instance.clone()));
            let gone = before.by_instance.keys().filter(|instance| !shown.contains_key(*instance));
            self.left_out.extend(gone.map(|instance| (instance.clone(), now)));
        }
        let all = snapshot.groups.values().flat_map(|group| &group.asg.instances);
        let terminating = all.filter(|instance| instance.lifecycle == Lifecycle::Terminating);
        self.terminating = terminating
            .map(|Instance { id, .. }| (id.clone(), self.terminating.get(id).copied().unwrap_or(now)))
            .collect();
        self.left_out
            .retain(|instance, since| !shown.contains_key(instance) && elapsed(*since, now) <= MISSED_FOR);
        self.joined.retain(|instance| shown.contains_key(instance) || self.left_out.contains_key(instance));
    }
}

/// Updates `held` from the last refresh. If the refresh before showed an instance not held, the hold began no earlier than that. `lasts`:
/// the time-out of our hook on a group, if it is known to have one; `said`: what says that AWS ends instances. Returns when more of them
/// count as held, unless a refresh comes first.
pub(super) fn observe(
    held: &mut BTreeMap<InstanceId, Held>,
    before: Option<&Snapshot>,
    snapshot: &Snapshot,
    sightings: &Sightings,
    lasts: impl Fn(&GroupName) -> Option<Duration>,
    said: &BTreeMap<InstanceId, HoldEvidence>,
    now: Timestamp,
) -> Option<Timestamp> {
    let mut next: Option<Timestamp> = None;
    let mut waiting: BTreeMap<&InstanceId, (&GroupName, Lifecycle, Option<HoldEvidence>)> = BTreeMap::new();
    for group in snapshot.groups.values() {
        for instance in &group.asg.instances {
            let said = said.get(&instance.id).copied();
            let said = match instance.lifecycle {
                Lifecycle::Terminating => {
                    let shown = sightings.terminating.get(&instance.id).copied().unwrap_or(snapshot.taken_at);
                    let since = said.and_then(|said| said.since).into_iter().chain([shown]).min();
                    Some(HoldEvidence {
                        since,
                        held_after: said.map_or(UNSEEN_AFTER, |said| said.held_after),
                    })
                }
                Lifecycle::InService => said,
                _ => None,
            };
            let presumed = said.and_then(|said| Some((said, lasts(&group.asg.name)?)));
            let held_from = presumed.map(|(said, lasts)| {
                said.since.map_or(now, |since| later(since, signed(said.held_after.min(lasts / 2))))
            });
            let lifecycle = match held_from {
                Some(from) if from <= now => Lifecycle::TerminatingWait,
                _ => instance.lifecycle,
            };
            next = next.into_iter().chain(held_from.filter(|from| *from > now)).min();
            if lifecycle.is_held() || lifecycle == Lifecycle::Retained {
                waiting.insert(&instance.id, (&group.asg.name, lifecycle, presumed.map(|(said, _)| said)));
            }
        }
    }
    held.retain(|instance, held| match waiting.get(instance) {
        Some((_, lifecycle, _)) => *lifecycle == held.lifecycle,
        None => held.may_be_held_in(snapshot.instance(instance).map(|(_, shown)| shown.lifecycle), now),
    });
    for (instance, (group, lifecycle, presumed)) in waiting {
        let is_presumed = presumed.is_some();
        let entry = held.entry(instance.into()).and_modify(|held| {
            held.last_seen = now;
            if !is_presumed {
                held.seen_held(snapshot.taken_at, now);
            }
        });
        entry.or_insert_with(|| {
            let at_large = before.and_then(|before| {
                let (_, instance) = before.instance(instance)?;
                (!instance.lifecycle.is_held()).then_some(before.taken_at)
            });
            let since = presumed.map_or(at_large, |said| said.since);
            let since = since.filter(|since| elapsed(*since, snapshot.taken_at) <= CLOSE_ENOUGH);
            let ask_at = (since.is_none() && lifecycle.is_held()).then_some(now);
            let is_new = sightings.joined.contains(instance);
            Held { since, ask_at, is_presumed, is_new, ..Held::new(group, lifecycle, now) }
        });
    }
    next
}

/// Adds an instance that the record of its Node says is held, while no description has come.
pub(super) fn presume(
    held: &mut BTreeMap<InstanceId, Held>,
    instance: &InstanceId,
    group: &GroupName,
    now: Timestamp,
) {
    let entry = held.entry(instance.clone()).and_modify(|held| held.last_seen = now);
    entry.or_insert_with(|| Held {
        ask_at: Some(now),
        is_presumed: true,
        ..Held::new(group, Lifecycle::TerminatingWait, now)
    });
}

/// The questions due since when instances are held, by group: one call answers for all of a group. Those of so many groups at most are then
/// under way, and whoever has waited for too long is not asked first.
pub(super) fn questions_due(
    held: &mut BTreeMap<InstanceId, Held>,
    most: usize,
    now: Timestamp,
) -> BTreeMap<GroupName, Vec<Question>> {
    let mut due: BTreeMap<GroupName, Vec<Question>> = BTreeMap::new();
    for (instance, held) in held {
        if held.since.is_none() && held.counts(now) && later(held.seen, SAYS_BY_THEN) <= now {
            held.began(None);
        }
        let has_room = due.len() < most || due.contains_key(&held.group);
        if has_room && held.counts(now) && held.ask_at.take_if(|at| *at <= now).is_some() {
            let question =
                Question { instance: instance.clone(), lifecycle: held.lifecycle, seen: held.seen };
            due.entry(held.group.clone()).or_default().push(question);
        }
    }
    due
}

/// Notes the result of a call.
pub(super) fn hear(held: &mut BTreeMap<InstanceId, Held>, done: Done, now: Timestamp) {
    match done {
        Done::Step { one: DueInstance { instance, renewed, too_early, ends, .. }, pause, error, .. } => {
            if let Some(held) = held.get_mut(&instance) {
                held.is_renewed = too_early.is_none() && (held.is_renewed || held.renewed != renewed);
                held.renewed = renewed;
                held.was_refused |= too_early.is_some();
                if held.is_presumed && renewed.is_none() {
                    held.since = too_early.or(held.since);
                }
                let first = held.failing.map_or(now, |(first, _)| first);
                held.is_denied = error.as_ref().is_some_and(|error| !error.is_transient());
                held.failing = error.and(ends).map(|ends| (first, ends));
                held.in_flight = false;
                held.stepped = Some(now);
                // The rest of the hold is for the pods: no time of it is lost between two tries.
                let decides = held.fails_surely_at().filter(|at| *at > now);
                let next = later(now, pause);
                held.next = decides.map_or(next, |at| at.min(next));
            }
        }
        Done::Asked { answer: Ok(since), .. } => {
            for (instance, since) in since {
                if let Some(held) = held.get_mut(&instance) {
                    held.began(since);
                    held.unanswered = 0;
                    if since.is_none() {
                        let is_late = later(held.seen, SAYS_BY_THEN) <= now;
                        held.ask_at = Some(later(now, if is_late { REFUSED } else { ASK_AGAIN }));
                    }
                }
            }
        }
        Done::Asked { instances, answer: Err(error), .. } => {
            for instance in instances {
                if let Some(held) = held.get_mut(&instance) {
                    held.unanswered += 1;
                    let pause = backoff(held.unanswered, ASK_AGAIN.unsigned_abs(), REFUSED.unsigned_abs());
                    let pause = if error.is_transient() { signed(pause) } else { REFUSED };
                    held.ask_at = Some(later(now, pause));
                    if !error.is_transient() || later(held.seen, SAYS_BY_THEN) <= now {
                        held.began(None);
                    }
                }
            }
        }
    }
}

/// The pause after a step that AWS did not take for a reason that passes by itself, when the hold lapses at `ends` if that is known.
pub(super) fn again_after(
    ends: Option<Timestamp>,
    timeout: Duration,
    instance: &InstanceId,
    now: Timestamp,
) -> SignedDuration {
    let longest = match ends.map(|ends| ends.duration_since(now)) {
        Some(left) if left <= -LAPSED_FOR => AGAIN_BY_THEN,
        Some(left) if left.is_positive() => left / AGAIN_AFTER_PART,
        _ => signed(timeout / 2) / AGAIN_AFTER_PART,
    };
    let longest = longest.clamp(AGAIN_AFTER, AGAIN_BY_THEN);
    longest - portion(longest / 2, instance)
}

/// A fraction of `of`: always the same for an instance, mostly different between instances.
fn portion(of: SignedDuration, instance: &InstanceId) -> SignedDuration {
    let thousandths = i32::try_from(spread(instance) % 1_000).unwrap_or_default();
    of / 1_000 * thousandths
}

/// Pause between heartbeats: two fifths to half of the time-out, so that instances held at the same moment spread out.
pub(super) fn interval(timeout: Duration, instance: &InstanceId) -> SignedDuration {
    let half = signed(timeout / 2);
    half - portion(half / 5, instance)
}

#[cfg(test)]
mod tests;
