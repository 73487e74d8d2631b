//! Looking at AWS in the background.
//!
//! One look at a time; each publishes a whole [`Snapshot`]. When one fails, the last good one stays, and the next
//! look comes soon. What does not change, or seldom, is kept between looks: instance types for ever, versions of launch
//! templates for ever, which version is the latest for a few minutes. No look asks for each group, save for those that
//! lack instances (why?) and two lifecycle hooks a look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_autoscaling::types::{AutoScalingGroup, LaunchTemplateSpecification};
use jiff::{SignedDuration, Timestamp};

use super::hooks::Hooks;
use super::selector::Selectors;
use super::tags::NodeTags;
use super::{Group, Groups, LaunchFailure, Snapshot, describe, failures, tags};
use crate::aws::{Aws, AwsError, InstanceType, LaunchTemplateVersion};
use crate::clock::Clock;
use crate::template::node::{Facts, build};
use crate::template::{Template, TemplateError};

/// How long `$Latest` and `$Default` are believed.
const VERSIONS_LIFE: SignedDuration = SignedDuration::from_mins(5);

/// Shortest time between two looks, however many changes of ours ask for one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// Pause after the first failed look of a row; doubled up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Hooks asked for with a look.
const HOOKS_A_LOOK: usize = 2;

/// Root volume of a launch template that does not say: what EKS's and Amazon Linux's images have.
const DEFAULT_VOLUME_GIB: i64 = 20;

/// Activities read to find out why a group lacks instances.
const ACTIVITIES: i32 = 20;

/// Looks at AWS.
#[derive(Debug)]
pub struct Discovery {
    aws: Aws,
    selectors: Selectors,
    groups: Arc<Groups>,
    hooks: Arc<Hooks>,
    clock: Clock,
    interval: Duration,
    kept: Kept,
}

/// What is kept between looks.
#[derive(Debug, Default)]
struct Kept {
    /// None for one that EC2 does not know.
    types: BTreeMap<String, Option<InstanceType>>,
    /// By id or name, and version as groups write it.
    versions: BTreeMap<(String, String), LaunchTemplateVersion>,
    current_since: Option<Timestamp>,
    /// Bad tags that were warned of.
    warned: BTreeSet<(String, String)>,
}

/// What a group launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Launch {
    types: Vec<String>,
    volume_gib: Option<i64>,
    spot: bool,
}

impl Discovery {
    /// Looks for the groups of `selectors` and publishes what it sees to `groups`.
    pub fn new(
        aws: Aws,
        selectors: Selectors,
        groups: Arc<Groups>,
        hooks: Arc<Hooks>,
        clock: Clock,
        interval: Duration,
    ) -> Self {
        Self { aws, selectors, groups, hooks, clock, interval, kept: Kept::default() }
    }

    /// Looks for ever: at once, then every interval, as soon as somebody asks, and often enough for the hooks.
    pub async fn run(mut self) {
        let mut failures = 0u32;
        loop {
            let pause = match self.look().await {
                Ok(snapshot) => {
                    if std::mem::take(&mut failures) > 0 {
                        tracing::info!("looking at AWS works again");
                    }
                    let stale = self.hooks.stalest(&snapshot, HOOKS_A_LOOK);
                    let pause = self.hooks.pace(&snapshot, self.interval);
                    self.groups.publish(snapshot);
                    self.learn_hooks(&stale).await;
                    pause
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(error = %error, "could not look at AWS; the last look stands");
                    }
                    failures += 1;
                    (FIRST_RETRY * 2u32.pow((failures - 1).min(10))).min(self.interval)
                }
            };
            let groups = Arc::clone(&self.groups);
            // At least this long, then until somebody asks or the time has come.
            tokio::time::sleep(SHORTEST_PAUSE.min(pause)).await;
            tokio::select! {
                biased;
                () = groups.refresh_wanted(), if failures == 0 => {}
                () = tokio::time::sleep(pause.saturating_sub(SHORTEST_PAUSE)) => {}
            }
        }
    }

    async fn learn_hooks(&self, groups: &[String]) {
        for group in groups {
            if let Err(error) = self.hooks.ask(group, self.clock.now()).await {
                tracing::debug!(group, error = %error, "could not look up the group's lifecycle hooks");
            }
        }
    }

    /// One look.
    pub async fn look(&mut self) -> Result<Snapshot, AwsError> {
        let began = self.clock.now();
        let mut raw: BTreeMap<String, AutoScalingGroup> = BTreeMap::new();
        for read in self.selectors.reads() {
            for group in self.aws.describe_groups(&read).await? {
                if let Some(name) = group.auto_scaling_group_name() {
                    raw.insert(name.to_owned(), group);
                }
            }
        }
        let launches = self.launches(&raw, began).await;
        self.learn_types(launches.values().flatten().flat_map(|launch| launch.types.iter())).await;
        let mut groups = Vec::new();
        for (name, raw) in &raw {
            let mut group = describe::read(raw, self.selectors.by_name.get(name).copied());
            let tags = tags::read(&group.tags);
            self.warn_of(name, &tags);
            group.template = Some(self.template(&group, &tags, launches.get(name)));
            group.failure = self.failure(&group).await;
            group.options = tags.options;
            groups.push(Arc::new(group));
        }
        Ok(Snapshot::new(began, groups))
    }

    fn warn_of(&mut self, group: &str, tags: &NodeTags) {
        for (tag, why) in &tags.unreadable {
            if self.kept.warned.insert((group.to_owned(), tag.clone())) {
                tracing::warn!(group, tag, why, "a tag of the group cannot be read and is left out");
            }
        }
    }

    /// Why a group has fewer instances than it should. Never asked of one that has them all.
    async fn failure(&self, group: &Group) -> Option<LaunchFailure> {
        if group.live().count() as i64 >= i64::from(group.desired) {
            return None;
        }
        match self.aws.activities(&group.name, ACTIVITIES).await {
            Ok(activities) => failures::failure(&activities),
            Err(error) => {
                tracing::warn!(group = group.name, error = %error, "could not read the group's scaling activities");
                None
            }
        }
    }

    fn template(
        &self,
        group: &Group,
        tags: &NodeTags,
        launch: Option<&Option<Launch>>,
    ) -> Result<Arc<Template>, TemplateError> {
        let Some(Some(launch)) = launch else {
            return Err(TemplateError(Arc::from("what the group launches is not known")));
        };
        let types: Vec<InstanceType> =
            launch.types.iter().filter_map(|name| self.kept.types.get(name).cloned().flatten()).collect();
        build(&Facts {
            group: &group.name,
            region: self.aws.region(),
            zone: group.zones.first().map_or("", String::as_str),
            types: &types,
            volume_gib: launch.volume_gib.unwrap_or(DEFAULT_VOLUME_GIB),
            spot: launch.spot,
            tags,
        })
        .map(Arc::new)
    }

    /// What each group launches; none where that could not be found out.
    async fn launches(
        &mut self,
        groups: &BTreeMap<String, AutoScalingGroup>,
        now: Timestamp,
    ) -> BTreeMap<String, Option<Launch>> {
        let templates: Vec<&LaunchTemplateSpecification> = groups.values().filter_map(template_of).collect();
        self.learn_versions(&templates, now).await;
        let names: Vec<String> =
            groups.values().filter_map(|g| g.launch_configuration_name()).map(str::to_owned).collect();
        let mut configurations = BTreeMap::new();
        if !names.is_empty() {
            match self.aws.launch_configurations(&names).await {
                Ok(found) => {
                    configurations.extend(found.into_iter().map(|found| (found.name.clone(), found)));
                }
                Err(error) => tracing::warn!(error = %error, "could not read launch configurations"),
            }
        }
        groups
            .iter()
            .map(|(name, group)| {
                let launch = if let Some(specification) = template_of(group) {
                    let version = key_of(specification).and_then(|key| self.kept.versions.get(&key));
                    version.map(|version| from_template(group, version))
                } else {
                    let configuration = group.launch_configuration_name().and_then(|n| configurations.get(n));
                    configuration.map(|found| Launch {
                        types: vec![found.instance_type.clone()],
                        volume_gib: found.volume_gib,
                        spot: found.spot,
                    })
                };
                (name.clone(), launch)
            })
            .collect()
    }

    async fn learn_versions(&mut self, wanted: &[&LaunchTemplateSpecification], now: Timestamp) {
        let keys: BTreeSet<_> = wanted.iter().filter_map(|s| key_of(s)).collect();
        let moving = |version: &str| version == "$Latest" || version == "$Default";
        let unknown = keys.iter().any(|key| !self.kept.versions.contains_key(key));
        let expired = self.kept.current_since.is_none_or(|since| since + VERSIONS_LIFE <= now);
        if unknown || (expired && keys.iter().any(|(_, version)| moving(version))) {
            self.kept.current_since = Some(now);
            match self.aws.current_launch_template_versions().await {
                Ok(versions) => self.keep_current(&versions),
                Err(error) => tracing::warn!(error = %error, "could not read launch templates"),
            }
        }
        // Those that groups pin, and all where the bulk read is refused.
        let pinned = keys.iter().filter(|key| !self.kept.versions.contains_key(*key));
        let aws = &self.aws;
        let reads = pinned.map(|(id, version)| async move {
            ((id.clone(), version.clone()), aws.launch_template_version(id, version).await)
        });
        for (key, result) in futures::future::join_all(reads).await {
            match result {
                Ok(Some(version)) => drop(self.kept.versions.insert(key, version)),
                Ok(None) => tracing::warn!(
                    launch_template = key.0,
                    version = key.1,
                    "no such launch template version"
                ),
                Err(error) => {
                    tracing::warn!(launch_template = key.0, version = key.1, error = %error, "could not read a launch template");
                }
            }
        }
    }

    /// Keeps the versions that were read under every key a group may have for them.
    fn keep_current(&mut self, versions: &[LaunchTemplateVersion]) {
        let mut latest: BTreeMap<&str, i64> = BTreeMap::new();
        for version in versions {
            let newest = latest.entry(&version.id).or_default();
            *newest = version.version.max(*newest);
        }
        for version in versions {
            let mut names = vec![version.version.to_string()];
            if version.is_default {
                names.push("$Default".to_owned());
            }
            if latest.get(version.id.as_str()) == Some(&version.version) {
                names.push("$Latest".to_owned());
            }
            for name in names {
                self.kept.versions.insert((version.id.clone(), name), version.clone());
            }
        }
    }

    async fn learn_types(&mut self, wanted: impl Iterator<Item = &String>) {
        let unknown: BTreeSet<String> =
            wanted.filter(|name| !name.is_empty() && !self.kept.types.contains_key(*name)).cloned().collect();
        if unknown.is_empty() {
            return;
        }
        let names: Vec<String> = unknown.into_iter().collect();
        match self.aws.instance_types(&names).await {
            Ok(found) => {
                self.kept.types.extend(names.into_iter().map(|name| (name, None)));
                self.kept.types.extend(found.into_iter().map(|found| (found.name.clone(), Some(found))));
            }
            Err(error) => tracing::warn!(error = %error, "could not read instance types"),
        }
    }
}

fn template_of(group: &AutoScalingGroup) -> Option<&LaunchTemplateSpecification> {
    let mixed = group
        .mixed_instances_policy()
        .and_then(|policy| policy.launch_template()?.launch_template_specification());
    mixed.or_else(|| group.launch_template())
}

/// Id and version of a launch template; groups without a version mean the default one.
fn key_of(specification: &LaunchTemplateSpecification) -> Option<(String, String)> {
    let id = specification.launch_template_id()?.to_owned();
    Some((id, specification.version().unwrap_or("$Default").to_owned()))
}

fn from_template(group: &AutoScalingGroup, version: &LaunchTemplateVersion) -> Launch {
    let overrides = group
        .mixed_instances_policy()
        .and_then(|policy| policy.launch_template())
        .map(|template| template.overrides())
        .unwrap_or_default();
    let mut types: Vec<String> =
        overrides.iter().filter_map(|o| o.instance_type()).map(str::to_owned).collect();
    if types.is_empty() {
        types.extend(version.instance_type.clone());
    }
    let spot_above_base =
        group.mixed_instances_policy().and_then(|policy| policy.instances_distribution()).is_some_and(|d| {
            d.on_demand_percentage_above_base_capacity() == Some(0)
                && d.on_demand_base_capacity().unwrap_or_default() == 0
        });
    Launch { types, volume_gib: version.volume_gib, spot: version.spot || spot_above_base }
}
