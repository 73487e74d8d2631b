//! Discovery: looks at AWS in the background and publishes what it saw.
//!
//! - One look at a time; whoever wants one sooner says so through [`Groups::refresh_soon`], and several wishes are one.
//! - The groups must be seen for a look to count, and are published as soon as they are: an instance that a hook holds
//!   must not wait for templates. Everything else (templates, failures, hooks, EKS) is best effort: what was known before
//!   stays, and a trouble is logged when it begins, every five minutes, and when it ends.
//! - The first look costs ceil(groups / 100) calls for each selector, ceil(launch templates / 200), ceil(types / 100),
//!   and one for each other thing that groups have of their own (pinned versions, sets of attributes). A later one
//!   costs ceil(groups / 100) for each selector, and in a steady state at most three more, and one for each group that
//!   gives instances back to its warm pool.
//! - Nothing here changes anything in AWS.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::failures::Shortages;
use super::hooks::Hooks;
use super::launch::{LaunchCache, Wanted};
use super::managed_node_groups::{Key, ManagedNodeGroups, NotAskedYet};
use super::poll_interval::{BREATH, next_look, retry_after, wished_look};
use super::selector::Selectors;
use super::{Group, Groups, Snapshot, warm_pools};
use crate::aws::{AutoScalingGroup, Aws, AwsError, Frozen, ManagedNodeGroup};
use crate::clock::{Clock, later};
use crate::k8s::GroupName;
use crate::telemetry::{Outage, chain};
use crate::template::tags::{self, BadTag, NodeTags};
use crate::template::{Facts, LearnedStore, Managed, Settings, Template, TemplateError};

/// Calls about single groups that a look makes, whatever the number of groups ...
const LOOK_UPS: usize = 2;
/// ... and how many of those may go to EKS. Hooks get the others: they are due with every look.
const LOOK_UPS_OF_EKS: usize = 1;
/// How long the first look waits for what was learned of nodes before the start. One read of a ConfigMap takes
/// milliseconds; an API server that has not answered after this is down, and cluster-autoscaler waits for the look.
const LEARNED_WITHIN: Duration = Duration::from_secs(2);

/// Keeps [`Groups`] up to date with AWS.
#[derive(Debug)]
pub struct Discovery {
    aws: Aws,
    selectors: Selectors,
    groups: Arc<Groups>,
    hooks: Arc<Hooks>,
    clock: Clock,
    interval: Duration,
    settings: Settings,
    learned: Option<Arc<LearnedStore>>,
    memory: Mutex<Memory>,
}

/// What one look leaves to the next.
#[derive(Debug, Default)]
struct Memory {
    has_looked: bool,
    facts: TemplateFacts,
    shortages: Shortages,
    /// Groups named by flag that were not there.
    absent: BTreeSet<GroupName>,
    /// Groups that this run has seen selected.
    selected: BTreeSet<GroupName>,
    /// Groups that are selected no more, and were warned about.
    left_behind: BTreeSet<GroupName>,
    /// Groups that are another cluster's, and were warned about.
    of_others: BTreeSet<GroupName>,
    /// Groups that give their instances weights, and were warned about.
    weighted: BTreeSet<GroupName>,
    /// Groups that AWS services operate, and were warned about.
    operated: BTreeSet<GroupName>,
    warm_pools: Trouble,
    activities: Trouble,
    hooks: Trouble,
}

/// What templates are made from.
#[derive(Debug, Default)]
struct TemplateFacts {
    cache: LaunchCache,
    node_groups: ManagedNodeGroups,
    /// Ids of zones by name, which never change.
    zone_ids: BTreeMap<String, String>,
    /// Bad tags that were warned about, by group.
    warned: BTreeSet<(GroupName, BadTag)>,
    /// The last template of each group that was made of all there is to know.
    last_templates: BTreeMap<GroupName, Arc<Template>>,
    templates: Trouble,
    eks: Trouble,
}

impl TemplateFacts {
    /// The group with its template, or with what stands in for one.
    fn with_template(&mut self, mut group: Group, told: Told) -> Group {
        if let Told::Certain(Ok(template)) = &told {
            self.last_templates.insert(group.asg.name.clone(), Arc::clone(template));
        } else {
            group.stand_in = self.last_templates.get(&group.asg.name).cloned();
        }
        match told {
            Told::Certain(template) => group.template = Some(template),
            Told::Without(computed) => group.stand_in = group.stand_in.or(computed),
        }
        group
    }
}

/// What can be said of a group's template.
#[derive(Debug)]
enum Told {
    /// It is made of all there is to know.
    Certain(Result<Arc<Template>, TemplateError>),
    /// Something is still to be asked for; this is made without it, where it can be made.
    Without(Option<Arc<Template>>),
}

/// A group as one look sees it.
#[derive(Debug)]
struct Seen {
    group: Group,
    tags: NodeTags,
    /// What EKS says of its managed node group, if it is of one.
    eks: Result<Option<Arc<ManagedNodeGroup>>, NotAskedYet>,
}

impl Seen {
    /// What it launches, and whether that is of arm64 as far as its tags or else EKS say.
    fn wanted(&self) -> Wanted<'_> {
        let of_eks = || self.eks.as_ref().ok()?.as_ref()?.is_arm();
        let of_tags = self.tags.labels.get("kubernetes.io/arch").map(|arch| arch == "arm64");
        (&self.group.asg.launch, of_tags.or_else(of_eks))
    }
}

impl Discovery {
    /// Looks at the selected groups every `interval`, or sooner, and publishes into `groups`.
    pub fn new(
        aws: Aws,
        selectors: Selectors,
        groups: Arc<Groups>,
        hooks: Arc<Hooks>,
        clock: Clock,
        interval: Duration,
    ) -> Self {
        let (settings, memory) = (Settings::default(), Mutex::default());
        Self { aws, selectors, groups, hooks, clock, interval, settings, learned: None, memory }
    }

    /// With these choices about templates.
    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self.memory.get_mut().facts.cache = LaunchCache::new(settings.static_types);
        self
    }

    /// With templates that real nodes correct.
    #[must_use]
    pub fn with_learned(mut self, learned: Arc<LearnedStore>) -> Self {
        self.learned = Some(learned);
        self
    }

    /// Looks and publishes, for ever: at once, at every interval, soon after somebody wants it, and more often while
    /// [`poll_interval`](super::poll_interval) says so. While AWS does not answer it tries again after 1 s, then 2 s, and so on, and the last
    /// snapshot stays.
    pub async fn run(self) -> Infallible {
        let mut outage = Outage::default();
        let mut pace = self.interval;
        loop {
            let began = Instant::now();
            // What was changed until now is in the look that begins.
            let _ = self.groups.refresh_wanted().now_or_never();
            // Boxed: a look holds many calls at once, and whoever runs this need not carry their size.
            match Box::pin(self.look()).await {
                Ok(snapshot) => {
                    let failures = outage.failures();
                    if let Some(lasted) = outage.ends() {
                        tracing::info!(failures, lasted_seconds = lasted.as_secs(), "groups are seen again");
                    }
                    pace = next_look(&snapshot, self.hooks.knowledge(&snapshot), self.interval);
                    self.groups.publish(snapshot);
                    let due = began + pace;
                    tokio::select! {
                        // From one describing to the next: what is looked up besides puts no instance at risk.
                        () = tokio::time::sleep_until(due) => {}
                        () = self.groups.refresh_wanted() => {
                            tokio::time::sleep_until(wished_look(began, Instant::now()).min(due)).await;
                        }
                    }
                }
                Err(error) => {
                    if let Some(lasted) = outage.lasts() {
                        tracing::warn!(
                            lasts_seconds = lasted.as_secs(),
                            error = %chain(&error),
                            "groups cannot be seen, the last snapshot stays"
                        );
                    }
                    // No slower than the hooks allow: one may be about to time out unseen.
                    tokio::time::sleep(retry_after(outage.failures(), pace)).await;
                }
            }
            tokio::time::sleep_until(began + BREATH).await;
        }
    }

    /// Looks at AWS once. Sizes and states are published as soon as they are seen; the whole is given back. An error means
    /// that the groups themselves were not seen.
    pub async fn look(&self) -> Result<Snapshot, AwsError> {
        let mut memory = self.memory.lock().await;
        let now = self.clock.now();
        let mut described = self.describe().await?;
        self.look_again(&mut described).await?;
        self.add_left_behind(&mut described, &mut memory).await?;
        memory.note_absent(self.selectors.names().into_iter().filter(|name| !described.contains_key(name)));
        memory.note_of_others(described.values(), &self.selectors);
        described.retain(|name, _| !memory.of_others.contains(name));
        for group in described.values_mut() {
            self.selectors.tighten(group);
        }
        let outcome =
            warm_pools::add(&self.aws, self.groups.latest().as_deref(), described.values_mut()).await;
        memory.warm_pools.note("warm pools", outcome.err().as_ref());
        let states = memory.observe(described.values(), now);
        self.groups.publish_states(states.clone());

        // Not with the first look, for which everybody waits; the second comes soon.
        let is_first = !std::mem::replace(&mut memory.has_looked, true);
        if let Some(learned) = self.learned.as_ref().filter(|_| is_first) {
            // A start that finds the API server down goes on without.
            let _ = tokio::time::timeout(LEARNED_WITHIN, learned.loaded()).await;
        }
        let Memory { facts, shortages, activities, hooks, .. } = &mut *memory;
        let node_groups = facts.node_groups.due(LOOK_UPS_OF_EKS, now);
        let look_ups = LOOK_UPS - node_groups.len().min(LOOK_UPS_OF_EKS);
        let ((), groups, ()) = tokio::join!(
            self.explain_shortages(shortages, activities, &states),
            self.look_up_templates(facts, described, node_groups, now),
            async {
                if !is_first {
                    let outcome = self.hooks.refresh(&states, look_ups, now).await;
                    hooks.note("lifecycle hooks", outcome.err().as_ref());
                }
            },
        );
        let groups = groups.into_iter().map(|group| {
            let failure = memory.shortages.failure(&group.asg.name);
            Arc::new(Group { failure, ..group })
        });
        Ok(Snapshot::new(now, groups))
    }

    /// The groups with their templates and options, as far as AWS tells of them.
    async fn look_up_templates(
        &self,
        facts: &mut TemplateFacts,
        described: BTreeMap<GroupName, AutoScalingGroup>,
        node_groups: Vec<Key>,
        now: Timestamp,
    ) -> Vec<Group> {
        facts.node_groups.refresh(&self.aws, described.values(), node_groups, now).await;
        let trouble = facts.node_groups.trouble();
        facts.eks.note("EKS node groups", trouble.as_deref());
        let mut groups: Vec<Seen> = Vec::with_capacity(described.len());
        for asg in described.into_values() {
            facts.zone_ids.extend(asg.zone_ids.clone());
            let eks = Key::of(&asg).map_or(Ok(None), |key| facts.node_groups.get(&key));
            let (tags, bad) = match &eks {
                Ok(Some(node_group)) => tags::read_with(&asg.tags, &node_group.tags),
                _ => tags::read(&asg.tags),
            };
            facts.note_bad_tags(&asg.name, bad);
            let group = Group { asg, options: tags.options, ..Group::default() };
            groups.push(Seen { group, tags, eks });
        }

        let wanted: Vec<Wanted<'_>> = groups.iter().map(Seen::wanted).collect();
        let outcome = facts.cache.refresh(&self.aws, &wanted, now).await;
        facts.templates.note("launch templates and instance types", outcome.err().as_ref());
        let templates: Vec<_> = groups.iter().map(|seen| self.template(seen, facts, now)).collect();
        if let Some(learned) = &self.learned {
            let names: BTreeSet<&str> = groups.iter().map(|seen| seen.group.asg.name.as_str()).collect();
            learned.retain(|name| names.contains(name));
        }
        facts.last_templates.retain(|name, _| groups.iter().any(|seen| seen.group.asg.name == *name));
        groups.into_iter().zip(templates).map(|(seen, told)| facts.with_template(seen.group, told)).collect()
    }

    /// Every selected group, by name.
    async fn describe(&self) -> Result<BTreeMap<GroupName, AutoScalingGroup>, AwsError> {
        let names = self.selectors.names();
        let by_name = self.aws.describe_groups(&names);
        let by_tags =
            try_join_all(self.selectors.tagged().iter().map(|s| self.aws.describe_tagged_groups(s)));
        let (by_name, by_tags) = futures::try_join!(by_name, by_tags)?;
        let all = by_tags.into_iter().flatten().chain(by_name);
        Ok(all.map(|group| (group.name.clone(), group)).collect())
    }

    /// Looks again for groups that were there in the last look and are not in this one: pages are not of one moment, and
    /// answers may be from before.
    async fn look_again(
        &self,
        described: &mut BTreeMap<GroupName, AutoScalingGroup>,
    ) -> Result<(), AwsError> {
        let Some(view) = self.groups.latest() else { return Ok(()) };
        let missing = view.groups.keys().filter(|name| !described.contains_key(*name));
        let missing: Vec<GroupName> = missing.cloned().collect();
        let named = self.selectors.names();
        for found in self.aws.describe_groups(&missing).await? {
            let tagged = self.selectors.tagged().iter().any(|tags| tags.matches(&found.tags));
            if tagged || named.contains(&found.name) {
                described.insert(found.name.clone(), found);
            }
        }
        Ok(())
    }

    /// Adds groups that are selected no more (a person has taken a tag away) and have instances that leave: what is held is
    /// finished. After a restart the records on Nodes tell of them; of such a group nothing counts but the instances on
    /// record.
    async fn add_left_behind(
        &self,
        described: &mut BTreeMap<GroupName, AutoScalingGroup>,
        memory: &mut Memory,
    ) -> Result<(), AwsError> {
        memory.selected.extend(described.keys().cloned());
        let claims = self.groups.claims();
        let view = self.groups.latest();
        let seen = view.iter().flat_map(|view| view.groups.values());
        let names: BTreeSet<GroupName> = seen
            .filter(|group| group.asg.instances.iter().any(|instance| instance.lifecycle.is_terminating()))
            .map(|group| group.asg.name.clone())
            .chain(claims.keys().cloned())
            .filter(|name| !described.contains_key(name))
            .collect();
        let is_seen = |name: &GroupName| view.as_ref().is_some_and(|view| view.groups.contains_key(name));
        let (known, claimed): (Vec<GroupName>, Vec<GroupName>) = names.into_iter().partition(is_seen);
        let mut found = self.aws.describe_groups(&known).await?;
        match self.aws.describe_groups(&claimed).await {
            Ok(more) => found.extend(more),
            // A record is a claim: what it names may be no group at all, and costs the others nothing.
            Err(error) => {
                tracing::warn!(error = %chain(&error), "groups that only records on Nodes name could not be described");
            }
        }
        let mut left_behind = Vec::new();
        for mut group in found {
            if !memory.selected.contains(&group.name) {
                let claimed = claims.get(&group.name);
                group.instances.retain(|instance| {
                    instance.lifecycle.is_terminating()
                        && claimed.is_some_and(|claimed| claimed.contains(&instance.id))
                });
                if group.instances.is_empty() {
                    continue;
                }
            }
            // Nothing is changed in a group that is not ours any more.
            (group.min, group.max) = (group.desired, group.desired);
            left_behind.push(group.name.clone());
            described.insert(group.name.clone(), group);
        }
        memory.note_left_behind(&left_behind);
        Ok(())
    }

    /// The template of a group. A taint of EKS's that is not known yet would make cluster-autoscaler grow a group whose
    /// nodes its pods cannot use: what is computed without it only stands in while nodes are on their way.
    fn template(
        &self,
        seen: &Seen,
        TemplateFacts { cache, zone_ids, .. }: &TemplateFacts,
        now: Timestamp,
    ) -> Told {
        let Seen { group, tags, .. } = seen;
        let resolved = match cache.resolve(seen.wanted()) {
            Ok(resolved) => resolved,
            Err(_) if cache.is_behind() => return Told::Without(None),
            Err(missing) => return Told::Certain(Err(TemplateError::new(missing))),
        };
        let described = seen.eks.as_ref().map(Option::as_deref);
        let store = self.learned.as_ref().filter(|_| !tags.keep_computed);
        let learned = store.and_then(|store| match described {
            Ok(described) => store.learn(&group.asg, &resolved.revisions, described, now),
            Err(_) => store.known(&group.asg.name),
        });
        let types: Vec<_> = resolved.types.iter().map(Arc::as_ref).collect();
        let managed = |name| Managed { name, described: described.unwrap_or_default() };
        let facts = Facts {
            group: &group.asg.name,
            region: self.aws.region(),
            zones: &group.asg.zones,
            zone_id: group.asg.zones.first().and_then(|zone| zone_ids.get(zone)).map(String::as_str),
            types: &types,
            spec: &resolved.spec,
            market: resolved.market,
            eks: group.asg.tags.get("eks:nodegroup-name").map(|name| managed(name)),
            learned: learned.as_deref(),
            tags,
        };
        let template = Template::of(&facts, &self.settings).map(Arc::new);
        if described.is_ok() { Told::Certain(template) } else { Told::Without(template.ok()) }
    }

    /// Asks why groups are short, where that is due.
    async fn explain_shortages(&self, shortages: &mut Shortages, trouble: &mut Trouble, states: &Snapshot) {
        let now = states.taken_at;
        let due = shortages.due(now);
        if due.is_empty() {
            return;
        }
        // AWS dates them by its own clock, which is the wall's.
        let ahead = self.clock.ahead();
        let ask = async |group: &GroupName, since: Timestamp| {
            let mut activities = self.aws.scaling_activities(group, later(since, ahead)).await?;
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
                Ok(activities) => shortages.learn(&group.asg, now, &activities),
                Err(AwsError::NoSuchGroup { .. }) => shortages.learn(&group.asg, now, &[]),
                Err(error) => failed = Some(error),
            }
        }
        trouble.note("scaling activities", failed.as_ref());
    }
}

impl Memory {
    /// Takes note of the groups as they are described, and gives back what is known of them so far.
    fn observe<'a>(
        &mut self,
        groups: impl Iterator<Item = &'a AutoScalingGroup> + Clone,
        now: Timestamp,
    ) -> Snapshot {
        self.note_weighted(
            groups.clone().filter(|group| group.is_weighted()).map(|group| group.name.clone()),
        );
        self.note_operated(groups.clone());
        let mut states =
            Snapshot::new(now, groups.map(|asg| Arc::new(Group { asg: asg.clone(), ..Group::default() })));
        self.shortages.observe(&states);
        for (name, group) in &mut states.groups {
            if let Some(failure) = self.shortages.failure(name) {
                Arc::make_mut(group).failure = Some(failure);
            }
        }
        states
    }

    fn note_absent(&mut self, names: impl Iterator<Item = GroupName>) {
        let absent: BTreeSet<GroupName> = names.collect();
        for group in absent.difference(&self.absent) {
            tracing::warn!(group = group.as_str(), "a group named by --nodes does not exist");
        }
        self.absent = absent;
    }

    /// Warns of each group that is another cluster's by its tags once. Its instances have no Nodes here: they would be ended
    /// as ones that never joined.
    fn note_of_others<'a>(
        &mut self,
        groups: impl Iterator<Item = &'a AutoScalingGroup>,
        selectors: &Selectors,
    ) {
        let of_others = groups.filter(|group| selectors.is_of_our_cluster(&group.tags) == Some(false));
        let of_others: BTreeSet<GroupName> = of_others.map(|group| group.name.clone()).collect();
        for group in of_others.difference(&self.of_others) {
            tracing::warn!(
                group = group.as_str(),
                "the group is selected, but its tags name another cluster: it is left out. --cluster-name is the name of ours"
            );
        }
        self.of_others = of_others;
    }

    /// Warns of each group that is selected no more once.
    fn note_left_behind(&mut self, groups: &[GroupName]) {
        let groups: BTreeSet<GroupName> = groups.iter().cloned().collect();
        for group in groups.difference(&self.left_behind) {
            tracing::warn!(
                group = group.as_str(),
                "the group is selected no more: what leaves it is finished, nothing else is done"
            );
        }
        self.left_behind = groups;
    }

    /// Warns of each group that an AWS service operates once; one that none operates any more may do so again.
    fn note_operated<'a>(&mut self, groups: impl Iterator<Item = &'a AutoScalingGroup>) {
        let mut operated = BTreeSet::new();
        for group in groups {
            let Some(Frozen::OperatedBy(principal)) = &group.frozen else { continue };
            if !self.operated.contains(&group.name) {
                tracing::warn!(
                    group = group.name.as_str(),
                    operator = principal,
                    "the group is managed by an AWS service, which alone may change it: it is neither grown nor shrunk"
                );
            }
            operated.insert(group.name.clone());
        }
        self.operated = operated;
    }

    /// Warns of each group that gives weights once; one that gives none may do so again.
    fn note_weighted(&mut self, groups: impl Iterator<Item = GroupName>) {
        let weighted: BTreeSet<GroupName> = groups.collect();
        for group in weighted.difference(&self.weighted) {
            tracing::warn!(
                group = group.as_str(),
                "the group gives its instances weights: its sizes are units, so it is not grown; its nodes can be \
                 scaled in"
            );
        }
        self.weighted = weighted;
    }
}

impl TemplateFacts {
    /// Warns of each bad tag once; one that is set right may be got wrong again.
    fn note_bad_tags(&mut self, group: &str, bad: Vec<BadTag>) {
        self.warned.retain(|(warned, tag)| warned != group || bad.contains(tag));
        for tag in bad {
            if self.warned.insert((group.into(), tag.clone())) {
                let BadTag { key, value, expected } = tag;
                tracing::warn!(group, tag = key, value, expected, "a tag of the group is left out");
            }
        }
    }
}

/// Something that can fail without failing a look.
#[derive(Debug, Default)]
struct Trouble(Outage);

impl Trouble {
    fn note(&mut self, what: &'static str, error: Option<&impl Error>) {
        match error {
            Some(error) => {
                if let Some(lasted) = self.0.lasts() {
                    let lasts_seconds = lasted.as_secs();
                    tracing::warn!(what, lasts_seconds, error = %chain(error), "cannot be looked up, what was known stays");
                }
            }
            None => {
                if self.0.ends().is_some() {
                    tracing::info!(what, "can be looked up again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;
    use crate::telemetry::captured::{self, Log};

    /// The groups that the log warns of, in its order.
    fn warned_of(log: &Log) -> Vec<String> {
        let text = log.text();
        let warnings = text.lines().filter(|line| line.contains("WARN"));
        let group = |line: &str| Some(line.split_once("group=\"")?.1.split_once('"')?.0.to_owned());
        warnings.map(|line| group(line).expect("a warning names its group")).collect()
    }

    #[test]
    fn a_weighted_group_is_warned_of_once_and_again_after_it_was_not() {
        let (log, _guard) = captured::log(Level::WARN);
        let mut memory = Memory::default();
        for groups in [&["g"][..], &["g", "h"], &["h"], &["g", "h"]] {
            memory.note_weighted(groups.iter().map(|group| (*group).into()));
        }
        assert_eq!(warned_of(&log), ["g", "h", "g"]);
    }

    #[test]
    fn a_group_that_a_service_operates_is_warned_of_once_and_again_after_it_was_not() {
        let frozen = |name: &str, frozen| AutoScalingGroup {
            name: name.into(),
            frozen: Some(frozen),
            ..AutoScalingGroup::default()
        };
        let operated = |name| frozen(name, Frozen::OperatedBy("ecs.amazonaws.com".into()));
        let deleted = frozen("d", Frozen::Deleting);
        let (log, _guard) = captured::log(Level::WARN);
        let mut memory = Memory::default();
        for groups in [&["g"][..], &["g", "h"], &["h"], &["g", "h"]] {
            let groups: Vec<_> = groups.iter().map(|name| operated(name)).chain([deleted.clone()]).collect();
            memory.note_operated(groups.iter());
        }
        assert_eq!(warned_of(&log), ["g", "h", "g"]);
        assert!(log.text().contains("ecs.amazonaws.com"));
    }

    #[test]
    fn a_bad_tag_is_warned_of_once_and_again_after_it_was_right() {
        let bad = || vec![BadTag { key: "k".into(), value: "v".into(), expected: "x" }];
        let (log, _guard) = captured::log(Level::WARN);
        let mut facts = TemplateFacts::default();
        for (group, tags) in
            [("g", bad()), ("h", bad()), ("g", bad()), ("g", vec![]), ("h", bad()), ("g", bad())]
        {
            facts.note_bad_tags(group, tags);
        }
        assert_eq!(warned_of(&log), ["g", "h", "g"]);
        assert!(log.text().contains("tag=\"k\" value=\"v\""), "{}", log.text());
    }
}
