//! Lifecycle hooks that ebbtide manages (`--manage-lifecycle-hooks`): every selected group has our hook, as configured.
//!
//! - Only groups shown to be this cluster's get it: by tags or name, as grown in this run, by what was learned of them, or by an
//!   instance's Node. Elsewhere nobody would complete the hook. Before the first Node there is nothing to drain.
//! - What a group lacks is a function of the last refresh and of [`Hooks`], in [`step`]; this loop makes the calls, and none while
//!   nothing is lacking.
//! - Only the leader writes. Two leaders would write the same.
//! - A few calls a second in all, groups with instances first: AWS throttles by account, and heartbeats need their share.
//! - A group that AWS refuses to change is tried again after longer and longer pauses, and holds no other up. So is a hook that never
//!   stays as it was put: somebody else keeps it otherwise.
//! - Nothing is ever taken away: a hook that is deleted lets go of what it holds.

mod metrics;
mod step;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::time::sleep;

use self::metrics::{Change, Metrics};
use self::step::Step;
pub use self::step::{Managed, can_retain};
use super::hooks::{HookState, Hooks};
use super::selector::Selectors;
use super::{Group, Groups, Snapshot};
use crate::aws::{AutoScalingGroup, Aws, AwsError, Hook};
use crate::clock::{Clock, backoff, later, signed};
use crate::cluster::{Leadership, Nodes};
use crate::k8s::GroupName;
use crate::telemetry::{Outage, chain};
use crate::template::LearnedStore;

/// Calls at once ...
const AT_ONCE: usize = 4;
/// ... and the pause after them.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a first refusal; it doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_mins(10);
/// How often it is checked whether a group has turned out to be ours.
const RECHECK: Duration = Duration::from_secs(5);
/// How long AWS may still show what was before a change of ours.
const LAG: Duration = Duration::from_secs(30);

/// What is known of the groups, shared with others.
#[derive(Clone, Debug)]
pub struct Known {
    /// Which are selected.
    pub selectors: Selectors,
    /// As AWS last described them.
    pub groups: Arc<Groups>,
    /// Their hooks.
    pub hooks: Arc<Hooks>,
    /// Nodes of their instances.
    pub nodes: Arc<Nodes>,
    /// What was learned of their nodes.
    pub learned: Arc<LearnedStore>,
}

/// Puts our hook on groups, and keeps it as configured.
#[derive(Debug)]
pub struct ManagedHooks {
    managed: Managed,
    aws: Aws,
    known: Known,
    clock: Clock,
    metrics: Metrics,
    by_group: BTreeMap<GroupName, Progress>,
}

/// How far a group is.
#[derive(Debug, Default)]
struct Progress {
    /// The group's ARN: another one of its name begins anew.
    arn: String,
    /// Whether it was shown to be this cluster's.
    is_ours: bool,
    retention: Attempts,
    hook: Attempts,
    /// When AWS last took it that the group is to retain, until a description shows it.
    retains_since: Option<Timestamp>,
    /// Whether this run has put or seen our hook: if it is missing, somebody has deleted it.
    had_hook: bool,
    /// The hook as put last, and how often in a row.
    put: Option<(Hook, u32)>,
    /// Whether the hooks known may be from before our last change of them, as answers of AWS lag: they are looked up once more
    /// before anything is repaired.
    may_be_stale: bool,
}

/// Calls of one kind about one group.
#[derive(Debug, Default)]
struct Attempts {
    outage: Outage,
    /// No call before.
    not_before: Option<Timestamp>,
}

impl Attempts {
    fn is_due(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    fn pause(&mut self, now: Timestamp, pause: Duration) {
        self.not_before = Some(later(now, signed(pause)));
    }
}

impl Known {
    /// Whether something shows that the group is this cluster's.
    fn is_ours(&self, group: &AutoScalingGroup) -> bool {
        self.selectors.is_of_our_cluster(&group.tags) == Some(true)
            || self.selectors.names().contains(&group.name)
            || self.groups.is_asked_for(&group.name)
            || self.learned.known(&group.name).is_some()
            || group.instances.iter().any(|instance| !self.nodes.of_instance(&instance.id).is_empty())
    }
}

impl ManagedHooks {
    /// Nothing is done before [`run`](Self::run).
    pub fn new(managed: Managed, aws: Aws, known: Known, clock: Clock) -> Self {
        Self { managed, aws, known, clock, metrics: Metrics::default(), by_group: BTreeMap::new() }
    }

    /// Registers `ebbtide_lifecycle_hook_changes_total`.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Makes the calls that groups need while this process leads, for ever.
    pub async fn run(mut self, leadership: Leadership) -> Infallible {
        let (mut views, mut versions) = (self.known.groups.versions(), self.known.hooks.versions());
        loop {
            leadership.begun().await;
            // What changes from here on wakes us.
            views.mark_unchanged();
            versions.mark_unchanged();
            let now = self.clock.now();
            let due = self.known.groups.latest().map(|view| self.due(&view, now)).unwrap_or_default();
            if due.is_empty() {
                let next = self.next_try(now);
                tokio::select! {
                    // The senders live as long as `self`.
                    _ = views.changed() => {}
                    _ = versions.changed() => {}
                    () = self.clock.sleep_until(next), if next < Timestamp::MAX => {}
                }
                continue;
            }
            let calls = due.into_iter().map(async |(group, step)| {
                let outcome = self.perform(&group, &step).await;
                (group, step, outcome)
            });
            for (group, step, outcome) in join_all(calls).await {
                self.note(&group, step, outcome);
            }
            sleep(PAUSE).await;
        }
    }

    /// The next calls, no more than [`AT_ONCE`].
    fn due(&mut self, view: &Snapshot, now: Timestamp) -> Vec<(GroupName, Step)> {
        self.by_group
            .retain(|name, known| view.groups.get(name).is_some_and(|group| group.asg.arn == known.arn));
        let mut due = Vec::new();
        // Another cluster's is in the view only for what of it is on record here.
        let selectors = &self.known.selectors;
        let is_selected =
            |asg: &AutoScalingGroup| selectors.selects(asg) && !selectors.is_of_another_cluster(asg);
        for group in view.groups.values().filter(|group| is_selected(&group.asg)) {
            let is_ours = self.known.is_ours(&group.asg);
            let progress = self.by_group.entry(group.asg.name.clone()).or_default();
            progress.arn.clone_from(&group.asg.arn);
            progress.is_ours |= is_ours;
            if !progress.is_ours {
                continue;
            }
            if !progress.look_at_retention(&group.asg, view.taken_at, now) {
                self.metrics.count(Change::retention, false);
            }
            if let Some(step) = progress.step(self.managed, &self.known.hooks, group, now) {
                due.push((group.asg.instances.is_empty(), step, group.asg.name.clone()));
            }
        }
        // Groups with instances first; within either kind, look-ups last.
        due.sort_by_key(|(is_empty, step, name)| (*is_empty, *step == Step::LookUp, name.clone()));
        due.into_iter().take(AT_ONCE).map(|(_, step, name)| (name, step)).collect()
    }

    /// When a call that was put off is due, or it is time to check again whether a group is ours.
    fn next_try(&self, now: Timestamp) -> Timestamp {
        let attempts = self.by_group.values().flat_map(|group| [&group.retention, &group.hook]);
        let put_off = attempts.filter_map(|attempts| attempts.not_before).filter(|at| *at > now);
        let is_unsure = self.by_group.values().any(|group| !group.is_ours);
        let recheck = is_unsure.then(|| later(now, signed(RECHECK)));
        put_off.chain(recheck).min().unwrap_or(Timestamp::MAX)
    }

    async fn perform(&self, group: &GroupName, step: &Step) -> Result<(), AwsError> {
        match step {
            Step::LookUp => self.known.hooks.of_now(group).await.map(drop),
            Step::Retain => self.aws.retain_abandoned(group).await,
            Step::Put { hook, .. } => self.known.hooks.put(hook.clone()).await,
        }
    }

    /// Notes what became of a call, and says so.
    fn note(&mut self, group: &GroupName, step: Step, outcome: Result<(), AwsError>) {
        let now = self.clock.now();
        let progress = self.by_group.entry(group.clone()).or_default();
        let change = match &step {
            Step::LookUp => None,
            Step::Retain => Some(Change::retention),
            Step::Put { before: None, .. } if !progress.had_hook => Some(Change::created),
            Step::Put { .. } => Some(Change::repaired),
        };
        // A dry run has told what it would have changed, and nothing has failed.
        let is_dry = matches!(outcome, Err(AwsError::DryRun { .. }));
        if let Some(change) = change.filter(|_| !is_dry) {
            self.metrics.count(change, outcome.is_ok());
        }
        let attempts = progress.attempts(&step);
        match outcome {
            Ok(()) => {
                // That the group retains, a description shows.
                if step != Step::Retain {
                    attempts.outage.recovered();
                }
                attempts.not_before = None;
                if change.is_some() {
                    // AWS may show the state before for a while; that is no reason to do it again.
                    let again = progress.puts_again(&step);
                    progress.attempts(&step).pause(now, backoff(again, LAG, LONGEST_RETRY));
                }
                progress.changed(group, step, now);
            }
            // It has gone, as the next refresh will show, or has just come and AWS does not show it everywhere yet.
            Err(AwsError::NoSuchGroup { .. }) => attempts.pause(now, FIRST_RETRY),
            Err(AwsError::DryRun { .. }) => attempts.pause(now, LONGEST_RETRY),
            Err(error) => attempts.refused(group, &step, &error, now),
        }
    }
}

impl Progress {
    /// What the group needs and may be asked for now.
    fn step(&mut self, managed: Managed, hooks: &Hooks, group: &Group, now: Timestamp) -> Option<Step> {
        let state = hooks.state(&group.asg.name);
        self.had_hook |= matches!(&state, HookState::Known(known) if known.ours.is_some());
        let is_taken = self.retains_since.is_some();
        // Who has taken it before without effect is not believed again.
        let is_believed = is_taken && self.retention.outage.failures() == 0;
        let retention = (group.asg.retains || is_believed, !is_taken && self.retention.is_due(now));
        let step = step::next(managed, hooks.name(), &group.asg, &state, retention)?;
        match step {
            Step::Retain => Some(step),
            _ if !self.hook.is_due(now) => None,
            Step::Put { .. } if self.may_be_stale => Some(Step::LookUp),
            step => Some(step),
        }
    }

    /// Notes and logs whether the group retains, as AWS has accepted. Returns `false` if that turned out to have no effect.
    fn look_at_retention(&mut self, group: &AutoScalingGroup, seen: Timestamp, now: Timestamp) -> bool {
        let name = group.name.as_str();
        if group.retains {
            self.retention.outage.recovered();
            if self.retains_since.take().is_some() {
                tracing::info!(group = name, "the group now keeps instances whose lifecycle hook times out");
            }
            return true;
        }
        if self.retains_since.take_if(|since| seen >= later(*since, signed(LAG))).is_none() {
            return true;
        }
        if let Some(outage_seconds) = self.retention.failed(now) {
            tracing::warn!(
                group = name,
                outage_seconds,
                "AWS accepted that the group keeps instances whose lifecycle hook times out, but does not show it: \
                 assuming that it terminates them"
            );
        }
        false
    }

    fn attempts(&mut self, step: &Step) -> &mut Attempts {
        if *step == Step::Retain { &mut self.retention } else { &mut self.hook }
    }

    /// Counts a change: how often the same hook was put by now; 1 for anything else.
    fn puts_again(&mut self, step: &Step) -> u32 {
        let Step::Put { hook, .. } = step else { return 1 };
        let before = self.put.take().filter(|(before, _)| before == hook);
        let again = before.map_or(1, |(_, times)| times.saturating_add(1));
        self.put = Some((hook.clone(), again));
        again
    }

    /// Notes that a change is made, and says so.
    fn changed(&mut self, group: &GroupName, step: Step, now: Timestamp) {
        let group = group.as_str();
        match step {
            Step::LookUp => self.may_be_stale = false,
            Step::Retain => self.retains_since = Some(now),
            Step::Put { hook, before } => {
                self.may_be_stale = true;
                let (heartbeat_seconds, result) = (hook.heartbeat_timeout.as_secs(), hook.default_result());
                let was_deleted = before.is_none() && std::mem::replace(&mut self.had_hook, true);
                let hook = hook.name.as_str();
                if let Some(before) = &before {
                    tracing::info!(
                        group,
                        hook,
                        heartbeat_seconds,
                        result,
                        before_seconds = before.heartbeat_timeout.as_secs(),
                        before_result = before.default_result(),
                        "the group's lifecycle hook was not as configured: corrected"
                    );
                } else if was_deleted {
                    tracing::warn!(
                        group,
                        hook,
                        heartbeat_seconds,
                        result,
                        "somebody had deleted the group's lifecycle hook: created again"
                    );
                } else {
                    tracing::info!(
                        group,
                        hook,
                        heartbeat_seconds,
                        result,
                        "the group had no lifecycle hook of ours: created"
                    );
                }
            }
        }
    }
}

impl Attempts {
    /// Puts the next call off after one without effect. Returns how long that has been so, if that is to be told.
    fn failed(&mut self, now: Timestamp) -> Option<u64> {
        let outage_seconds = self.outage.failed();
        self.pause(now, backoff(self.outage.failures(), FIRST_RETRY, LONGEST_RETRY));
        outage_seconds
    }

    /// Notes that AWS refuses a call, or does not answer, and says so.
    fn refused(&mut self, group: &GroupName, step: &Step, error: &AwsError, now: Timestamp) {
        let Some(outage_seconds) = self.failed(now) else { return };
        let (group, error) = (group.as_str(), chain(error));
        match step {
            Step::Retain => tracing::warn!(
                group,
                outage_seconds,
                error,
                "cannot have the group keep instances whose lifecycle hook times out: it terminates them"
            ),
            Step::LookUp | Step::Put { .. } => tracing::warn!(
                group,
                outage_seconds,
                error,
                "cannot give the group its lifecycle hook as configured: where it has none, its own terminations go undrained"
            ),
        }
    }
}
