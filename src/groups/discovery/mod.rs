//! Discovery: refreshes in the background and publishes what it saw.
//!
//! - One refresh at a time. [`Groups::refresh_soon`] asks for one sooner; several such requests make one refresh.
//! - A refresh fails only if the groups cannot be described. They are published at once: an instance held by a hook
//!   must not wait for templates. Everything else (templates, failures, hooks, EKS) is best effort: what was known before
//!   stays, and an outage is logged when it begins, every five minutes, and when it ends.
//! - The first refresh costs ceil(groups / 100) calls for each selector, ceil(launch templates / 200), ceil(types / 100),
//!   and one for each other thing that groups have of their own (pinned versions, sets of attributes). A later one
//!   costs ceil(groups / 100) for each selector, and in a steady state at most three more, and one for each group that
//!   gives instances back to its warm pool.
//! - Nothing here changes anything in AWS.

mod launches;
mod on_record;
mod templates;
mod trouble;
mod warnings;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use self::launches::Launches;
use self::on_record::on_record;
use self::templates::Templates;
pub use self::warnings::Selection;
use self::warnings::Warnings;
use super::failures::{LaunchMetrics, Shortages};
use super::hooks::Hooks;
use super::poll_interval::{BREATH, next_refresh, requested_refresh, retry_after};
use super::selector::Selectors;
use super::{Group, Groups, Place, Snapshot, warm_pools};
use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance, Operation, PagesRead};
use crate::clock::{Clock, elapsed, later};
use crate::cluster::Nodes;
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::{Outage, chain};
use crate::template::{LearnedStore, Settings};

/// Calls about single groups in one refresh, however many groups there are ...
const LOOK_UPS: usize = 2;
/// ... and how many of them may go to EKS. The others are for hooks, which are due with every refresh.
const LOOK_UPS_OF_EKS: usize = 1;
/// Most activities of a group to read: 500 attempts have long shown what is wrong with it.
const ACTIVITIES: usize = 500;
/// Reading a group's activities takes no longer: with the shortest time-out that hooks have, a refresh is due every ten seconds.
const ACTIVITIES_WITHIN: Duration = Duration::from_secs(5);

/// Keeps [`Groups`] up to date with AWS.
#[derive(Debug)]
pub struct Discovery {
    aws: Aws,
    selectors: Selectors,
    groups: Arc<Groups>,
    hooks: Arc<Hooks>,
    nodes: Arc<Nodes>,
    clock: Clock,
    interval: Duration,
    installation: Option<String>,
    launch_metrics: LaunchMetrics,
    memory: Mutex<Memory>,
}

/// What refreshes leave to the next one.
#[derive(Debug, Default)]
struct Memory {
    has_refreshed: bool,
    templates: Templates,
    shortages: Shortages,
    launches: Launches,
    /// What the pages of the last refresh had on them.
    pages: PagesRead,
    /// The last description of each group.
    described: BTreeMap<GroupName, Arc<AutoScalingGroup>>,
    /// Where they have their instances, once that has been looked for.
    places: Option<Arc<HashMap<InstanceId, Place>>>,
    /// Groups that this run has seen selected.
    selected: BTreeSet<GroupName>,
    warnings: Warnings,
    warm_pools: Outage,
    /// How many warm pools have been asked for so far.
    pools_asked: usize,
    activities: Outage,
    hooks: Outage,
    on_record: Outage,
}

impl Discovery {
    /// Looks at the selected groups at least every `interval` and publishes to `groups`.
    pub fn new(
        aws: Aws,
        selectors: Selectors,
        groups: Arc<Groups>,
        hooks: Arc<Hooks>,
        nodes: Arc<Nodes>,
        clock: Clock,
        interval: Duration,
    ) -> Self {
        let (installation, memory) = (None, Mutex::default());
        let launch_metrics = LaunchMetrics::new(clock.clone());
        Self { aws, selectors, groups, hooks, nodes, clock, interval, installation, launch_metrics, memory }
    }

    /// Registers the metrics of launches.
    pub fn register(&self, registry: &mut Registry) {
        self.launch_metrics.register(registry);
    }

    /// For the installation of this name in records.
    #[must_use]
    pub fn of_installation(mut self, installation: Option<String>) -> Self {
        self.installation = installation;
        self
    }

    /// With these choices about templates.
    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Self {
        self.memory.get_mut().templates.set(settings);
        self
    }

    /// With templates that real nodes correct.
    #[must_use]
    pub fn with_learned(mut self, learned: Arc<LearnedStore>) -> Self {
        self.memory.get_mut().templates.learn_from(learned);
        self
    }

    /// Refreshes and publishes, for ever: at once, at every interval, soon after somebody asks for it, and more often while
    /// [`poll_interval`](super::poll_interval) says so. While AWS does not answer, tries again after 1 s, 2 s and so on, and the
    /// last snapshot stays.
    pub async fn run(self) -> Infallible {
        let mut outage = Outage::default();
        let mut pause = self.interval;
        loop {
            let (began, at) = (Instant::now(), self.clock.now());
            // The refresh that begins now shows what was changed before.
            let _ = self.groups.refresh_wanted().now_or_never();
            // Boxed: the future of a refresh is large.
            let refreshed = Box::pin(self.refresh()).await;
            self.groups.note_refresh(at, refreshed.is_ok());
            match refreshed {
                Ok(snapshot) => {
                    let failures = outage.failures();
                    if let Some(outage_seconds) = outage.recovered() {
                        tracing::info!(failures, outage_seconds, "Auto Scaling groups are described again");
                    }
                    pause = next_refresh(&snapshot, self.hooks.knowledge(&snapshot), self.interval);
                    self.groups.publish(snapshot);
                    let requested = async {
                        self.groups.refresh_wanted().await;
                        tokio::time::sleep_until(requested_refresh(began, Instant::now())).await;
                    };
                    tokio::select! {
                        // Counted from the beginning of this refresh: slow look-ups after the groups must put no instance at risk.
                        () = tokio::time::sleep_until(began + pause) => {}
                        () = requested => {}
                        () = self.groups.refresh_wanted_at_once() => {}
                    }
                }
                Err(error) => {
                    if let Some(outage_seconds) = outage.failed() {
                        let age = |snapshot: Arc<Snapshot>| elapsed(snapshot.taken_at, self.clock.now());
                        tracing::warn!(
                            outage_seconds,
                            snapshot_age_seconds = self.groups.latest().map(|last| age(last).as_secs()),
                            error = %chain(&error),
                            "cannot describe Auto Scaling groups: the last description, if any, stays in use"
                        );
                    }
                    // No later than hooks allow: one may be about to time out.
                    tokio::time::sleep(retry_after(outage.failures(), pause)).await;
                }
            }
            tokio::time::sleep_until(began + BREATH).await;
        }
    }

    /// Looks at AWS once. Publishes sizes and states as soon as they are known, and returns the whole.
    ///
    /// # Errors
    /// The groups could not be described.
    pub async fn refresh(&self) -> Result<Snapshot, AwsError> {
        let mut memory = self.memory.lock().await;
        let (now, asked_at) = (self.clock.now(), self.clock.wall());
        memory.pages.begin();
        let mut described = self.describe(&memory.pages).await?;
        let unselected = self.describe_missing(&mut described, &memory.pages).await?;
        memory.warnings.note_unselected(unselected.into_iter());
        let named = self.selectors.names().into_iter();
        memory.warnings.note_absent(named.filter(|name| !described.contains_key(name)));
        let of_others = memory.warnings.note_of_others(described.values().map(Arc::as_ref), &self.selectors);
        described.retain(|name, _| !of_others.contains(name));
        self.add_left_behind(&mut described, &mut memory).await?;
        memory.warnings.note_selected(described.keys());
        for name in self.selectors.names() {
            if let Some(group) = described.get_mut(&name) {
                self.selectors.tighten(Arc::make_mut(group));
            }
        }
        let (before, pools) = (self.groups.latest(), described.values_mut());
        let outcome = warm_pools::add(&self.aws, before.as_deref(), pools, &mut memory.pools_asked).await;
        trouble::note(&mut memory.warm_pools, "warm pools", outcome.err().as_ref());
        for name in memory.made_anew(&described) {
            self.hooks.forget(name);
            memory.shortages.forget(name);
        }
        let (described, has_launched) = memory.remember(described);
        if has_launched {
            self.launch_metrics.came(now);
        }
        let states = self.groups.publish_states(Snapshot { asked_at, ..memory.observe(&described, now) });

        // Everybody waits for the first refresh: it asks for no hooks. The second one comes soon.
        let is_first = !std::mem::replace(&mut memory.has_refreshed, true);
        if is_first {
            memory.templates.learned().await;
        }
        let Memory { templates, shortages, launches, activities, hooks, .. } = &mut *memory;
        let node_groups = templates.due(LOOK_UPS_OF_EKS, now);
        let look_ups = LOOK_UPS - node_groups.len().min(LOOK_UPS_OF_EKS);
        let ((), groups, ()) = tokio::join!(
            self.explain_shortages(shortages, launches, activities, &states),
            templates.look_up(&self.aws, described, node_groups, (now, self.clock.cluster())),
            async {
                if !is_first {
                    let outcome = self.hooks.refresh(&states, look_ups, now).await;
                    trouble::note(hooks, "lifecycle hooks", outcome.err().as_ref());
                }
            },
        );
        let explained = groups.into_iter().map(|group| {
            let failure = memory.shortages.failure(&group.asg.name);
            Group { failure, ..group }
        });
        let explained: Vec<Group> = explained.collect();
        memory.launches.note(&explained, &self.launch_metrics);
        Ok(states.completed(explained))
    }

    /// What the last refresh has made of the flags that select groups.
    pub async fn selection(&self) -> Selection {
        self.memory.lock().await.warnings.selection()
    }

    /// Every selected group, by name.
    async fn describe(
        &self,
        pages: &PagesRead,
    ) -> Result<BTreeMap<GroupName, Arc<AutoScalingGroup>>, AwsError> {
        let names = self.selectors.names();
        // One that is refused in whatever words is missing, and does not take the others with it.
        let by_name = self.aws.describe_groups_left(&names, pages);
        let tagged = self.selectors.tagged().iter();
        let by_tags = try_join_all(tagged.map(|tags| self.aws.describe_tagged_groups(tags, pages)));
        let (by_name, by_tags) = futures::try_join!(by_name, by_tags)?;
        let all = by_tags.into_iter().flatten().chain(by_name);
        let all: BTreeMap<_, _> = all.map(|group| (group.name.clone(), group)).collect();
        if all.is_empty() {
            // Whoever refuses all of them does not tell that none is there.
            self.aws.describe_groups(&names).await?;
        }
        Ok(all)
    }

    /// Describes groups by name that were in the last refresh and are missing now: pages are not of one moment, and answers may be
    /// old. Returns those that exist and are not selected any more.
    async fn describe_missing(
        &self,
        described: &mut BTreeMap<GroupName, Arc<AutoScalingGroup>>,
        pages: &PagesRead,
    ) -> Result<Vec<GroupName>, AwsError> {
        let Some(view) = self.groups.latest() else { return Ok(Vec::new()) };
        let missing = view.groups.keys().filter(|name| !described.contains_key(*name));
        let missing: Vec<GroupName> = missing.cloned().collect();
        let mut unselected = Vec::new();
        for found in self.aws.describe_groups_left(&missing, pages).await? {
            if self.selectors.selects(&found) {
                described.insert(found.name.clone(), found);
            } else {
                unselected.push(found.name.clone());
            }
        }
        Ok(unselected)
    }

    /// Adds groups that are no longer selected (a person has removed a tag, or given another --cluster-name) but have instances on their
    /// way out, or held by a hook: those are finished. After a restart, records on Nodes name the groups. Of a group known only so, and of
    /// one that names another cluster by now, only the instances on record count.
    async fn add_left_behind(
        &self,
        described: &mut BTreeMap<GroupName, Arc<AutoScalingGroup>>,
        memory: &mut Memory,
    ) -> Result<(), AwsError> {
        memory.selected.extend(described.keys().cloned());
        let on_record = on_record(&self.nodes, self.installation.as_deref());
        let is_going = |instance: &Instance| instance.lifecycle.is_leaving() || instance.lifecycle.is_held();
        let view = self.groups.latest();
        let seen = view.iter().flat_map(|view| view.groups.values());
        let names: BTreeSet<GroupName> = seen
            .filter(|group| group.asg.instances.iter().any(is_going))
            .map(|group| group.asg.name.clone())
            .chain(on_record.keys().cloned())
            .filter(|name| !described.contains_key(name))
            .collect();
        let is_seen = |name: &GroupName| view.as_ref().is_some_and(|view| view.groups.contains_key(name));
        let (known, unseen): (Vec<GroupName>, Vec<GroupName>) = names.into_iter().partition(is_seen);
        let mut found = self.aws.describe_groups_left(&known, &memory.pages).await?;
        // Anybody who may annotate a Node can name a group: what AWS makes of it must not fail the refresh, nor hold it up.
        let of_records = self.aws.describe_groups_left_now(&unseen).await;
        trouble::note(
            &mut memory.on_record,
            "groups that only records on Nodes name",
            of_records.as_ref().err(),
        );
        found.extend(of_records.into_iter().flatten());
        let mut left_behind = Vec::new();
        for group in found {
            let mut group = Arc::unwrap_or_clone(group);
            let is_of_another = self.selectors.is_of_another_cluster(&group);
            if is_of_another || !memory.selected.contains(&group.name) {
                let leaving = on_record.get(&group.name);
                group.instances.retain(|instance| {
                    is_going(instance) && leaving.is_some_and(|leaving| leaving.contains(&instance.id))
                });
                if group.instances.is_empty() {
                    continue;
                }
                // What else it should have is none of cluster-autoscaler's business.
                group.desired = group.live().count() as i32;
            }
            // Its size is no longer ours to change.
            (group.min, group.max) = (group.desired, group.desired);
            left_behind.push(group.name.clone());
            described.insert(group.name.clone(), Arc::new(group));
        }
        memory.warnings.note_left_behind(left_behind.into_iter());
        Ok(())
    }

    /// Asks why groups are short of instances, where that is due.
    async fn explain_shortages(
        &self,
        shortages: &mut Shortages,
        launches: &mut Launches,
        outage: &mut Outage,
        states: &Snapshot,
    ) {
        let now = states.taken_at;
        let due = shortages.due(now);
        if due.is_empty() {
            return;
        }
        let late = |elapsed| AwsError::unreachable(Operation::DescribeScalingActivities, elapsed);
        // AWS dates activities by its own clock.
        let ahead = self.clock.aws_ahead();
        let ask = async |group: &GroupName, since: Timestamp| {
            let activities = self.aws.scaling_activities(group, later(since, ahead), ACTIVITIES, |_| false);
            let mut activities = timeout(ACTIVITIES_WITHIN, activities).await.map_err(late)??;
            for activity in &mut activities {
                activity.started = later(activity.started, -ahead);
            }
            Ok(activities)
        };
        let asked = due.iter().map(|(group, since)| ask(group, *since));
        let answers = join_all(asked).await;
        let mut failed = None;
        for ((group, _), answer) in due.iter().zip(answers) {
            let Some(group) = states.groups.get(group) else { continue };
            match answer {
                Ok(activities) => {
                    launches.count(&group.asg.name, &activities, &self.launch_metrics);
                    shortages.learn(&group.asg, now, &activities);
                }
                Err(AwsError::NoSuchGroup { .. }) => shortages.learn(&group.asg, now, &[]),
                Err(error) => failed = Some(error),
            }
        }
        trouble::note(outage, "scaling activities", failed.as_ref());
    }
}

impl Memory {
    /// Names that are another group's than in the last refresh: that one was deleted meanwhile.
    fn made_anew<'a>(&self, described: &'a BTreeMap<GroupName, Arc<AutoScalingGroup>>) -> Vec<&'a GroupName> {
        let is_another = |group: &AutoScalingGroup| {
            self.described.get(&group.name).is_some_and(|known| group.is_another(known))
        };
        described.iter().filter(|(_, group)| is_another(group)).map(|(name, _)| name).collect()
    }

    /// Keeps the descriptions for the next refresh, unchanged ones once. Returns them, and whether an instance has come into a group that
    /// was there before.
    fn remember(
        &mut self,
        described: BTreeMap<GroupName, Arc<AutoScalingGroup>>,
    ) -> (Vec<Arc<AutoScalingGroup>>, bool) {
        let mut before = std::mem::take(&mut self.described);
        let (mut is_same, mut has_launched) = (before.len() == described.len(), false);
        let again = described.into_iter().map(|(name, group)| {
            let known = before.remove(&name);
            let same = known.as_ref().filter(|known| Arc::ptr_eq(known, &group) || **known == group).cloned();
            is_same &= same.is_some();
            has_launched |= same.is_none() && known.is_some_and(|known| has_another(&group, &known));
            (name, same.unwrap_or(group))
        });
        self.described = again.collect();
        self.places = self.places.take().filter(|_| is_same);
        (self.described.values().cloned().collect(), has_launched)
    }

    /// Notes the groups as described, and returns what is known of them so far.
    fn observe(&mut self, groups: &[Arc<AutoScalingGroup>], now: Timestamp) -> Snapshot {
        let weighted = groups.iter().filter(|group| group.is_weighted());
        self.warnings.note_weighted(weighted.map(|group| group.name.clone()));
        self.warnings.note_operated(groups.iter().map(Arc::as_ref));
        let groups = groups.iter().map(|asg| Arc::new(Group { asg: Arc::clone(asg), ..Group::default() }));
        let mut states = Snapshot::placed(now, groups, self.places.take());
        self.places = Some(Arc::clone(&states.by_instance));
        self.shortages.observe(&states);
        for (name, group) in &mut states.groups {
            if let Some(failure) = self.shortages.failure(name) {
                Arc::make_mut(group).failure = Some(failure);
            }
        }
        states
    }
}

/// Whether an instance lives in the group that did not live in it before.
fn has_another(group: &AutoScalingGroup, before: &AutoScalingGroup) -> bool {
    let before: BTreeSet<&InstanceId> = before.live().map(|instance| &instance.id).collect();
    group.live().any(|instance| !before.contains(&instance.id))
}
