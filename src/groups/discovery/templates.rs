//! Looks up what templates are made of, and makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::trouble;
use crate::aws::{AutoScalingGroup, Aws, ManagedNodeGroup};
use crate::clock::elapsed;
use crate::groups::Group;
use crate::groups::launch::{LaunchCache, Resolved, Wanted};
use crate::groups::managed_node_groups::{Key, ManagedNodeGroups, NotAskedYet};
use crate::k8s::{GroupName, names};
use crate::telemetry::Outage;
use crate::template::learned::Learned;
use crate::template::tags::{self, BadTag, NodeTags};
use crate::template::{Candidate, Facts, LearnedStore, Managed, Settings, Template, TemplateError};

/// How long the first refresh waits for what earlier runs learned of nodes. One read of a ConfigMap takes milliseconds; an API
/// server that has not answered by then is down, and cluster-autoscaler waits for the refresh.
const LEARNED_WITHIN: Duration = Duration::from_secs(2);

/// How long nodes may have shown no device before somebody is told: device plugins are up within minutes.
const UNSHOWN_FOR: Duration = Duration::from_mins(30);

/// What templates are made of, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Templates {
    settings: Settings,
    learned: Option<Arc<LearnedStore>>,
    cache: LaunchCache,
    node_groups: ManagedNodeGroups,
    /// Ids of zones by name, which never change.
    zone_ids: BTreeMap<String, String>,
    /// Bad tags that were warned about, by group.
    warned: BTreeSet<(GroupName, BadTag)>,
    /// What was not known of overrides that were left out, by group.
    left_out: BTreeMap<GroupName, String>,
    /// Devices that groups' nodes have not shown: since when, and whether that was told.
    unshown: BTreeMap<(GroupName, String), (Timestamp, bool)>,
    /// The last complete template of each group, and what it was made of.
    last: BTreeMap<GroupName, (Input, Arc<Template>)>,
    launch_outage: Outage,
    eks_outage: Outage,
}

/// All that differs from template to template.
#[derive(Debug)]
struct Input {
    asg: Arc<AutoScalingGroup>,
    eks: Result<Option<Arc<ManagedNodeGroup>>, NotAskedYet>,
    resolved: Resolved,
    learned: Option<Arc<Learned>>,
    zone_id: Option<String>,
}

impl Input {
    /// Whether both make the same template. A refresh mostly finds what the one before found, which is kept once.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.asg, &other.asg)
            && self.eks == other.eks
            && self.resolved == other.resolved
            && self.learned.as_ref().map(Arc::as_ptr) == other.learned.as_ref().map(Arc::as_ptr)
            && self.zone_id == other.zone_id
    }
}

/// The template of a group.
#[derive(Debug)]
enum Made {
    /// Made of all there is to know.
    Complete(Result<(Input, Arc<Template>), TemplateError>),
    /// Something is still to be asked for; this is made without it, if it can be.
    Incomplete(Option<Arc<Template>>),
}

/// A group as one refresh sees it.
#[derive(Debug)]
struct Seen {
    group: Group,
    tags: NodeTags,
    /// What EKS says of its managed node group, if it belongs to one.
    eks: Result<Option<Arc<ManagedNodeGroup>>, NotAskedYet>,
}

impl Seen {
    /// What it launches, and whether that is arm64 as far as its tags or else EKS say.
    fn wanted(&self) -> Wanted<'_> {
        let of_eks = || self.eks.as_ref().ok()?.as_ref()?.is_arm();
        let of_tags = self.tags.labels.get(names::ARCH).map(|arch| arch == "arm64");
        (&self.group.asg.launch, of_tags.or_else(of_eks))
    }
}

impl Templates {
    pub(super) fn set(&mut self, settings: Settings) {
        self.settings = settings;
        self.cache = LaunchCache::new(settings.static_types);
    }

    pub(super) fn learn_from(&mut self, learned: Arc<LearnedStore>) {
        self.learned = Some(learned);
    }

    /// Waits a moment for what earlier runs learned. Without the API server a start goes on.
    pub(super) async fn learned(&self) {
        if let Some(learned) = &self.learned {
            let _ = tokio::time::timeout(LEARNED_WITHIN, learned.loaded()).await;
        }
    }

    /// At most so many managed node groups that are to be asked for.
    pub(super) fn due(&self, most: usize, now: Timestamp) -> Vec<Key> {
        self.node_groups.due(most, now)
    }

    /// The groups with their templates and options, as far as AWS tells, at `now` by our clock and `cluster_now` by the cluster's.
    pub(super) async fn look_up(
        &mut self,
        aws: &Aws,
        described: Vec<Arc<AutoScalingGroup>>,
        due: Vec<Key>,
        (now, cluster_now): (Timestamp, Timestamp),
    ) -> Vec<Group> {
        self.node_groups.refresh(aws, described.iter().map(Arc::as_ref), due, now).await;
        let failed = self.node_groups.trouble();
        trouble::note(&mut self.eks_outage, "EKS node groups", failed.as_deref());
        let groups: Vec<Seen> = described.into_iter().map(|asg| self.seen(asg)).collect();

        let wanted: Vec<Wanted<'_>> = groups.iter().map(Seen::wanted).collect();
        let outcome = self.cache.refresh(aws, &wanted, now).await;
        trouble::note(&mut self.launch_outage, "launch templates and instance types", outcome.err().as_ref());
        let resolved: Vec<_> = groups.iter().map(|seen| self.cache.resolve(seen.wanted())).collect();
        for (seen, resolved) in groups.iter().zip(&resolved) {
            self.note_left_out(&seen.group.asg.name, resolved.as_ref().ok());
        }
        let made = groups.iter().zip(resolved);
        let made: Vec<_> =
            made.map(|(seen, resolved)| self.template(seen, resolved, aws.region(), cluster_now)).collect();
        let names: BTreeSet<GroupName> = groups.iter().map(|seen| seen.group.asg.name.clone()).collect();
        if let Some(learned) = &self.learned {
            learned.shown(&names, cluster_now);
        }
        self.last.retain(|name, _| names.contains(name));
        self.left_out.retain(|name, _| names.contains(name));
        self.unshown.retain(|(name, _), _| names.contains(name));
        self.warned.retain(|(name, _)| names.contains(name));
        groups.into_iter().zip(made).map(|(seen, made)| self.with_template(seen.group, made, now)).collect()
    }

    fn seen(&mut self, asg: Arc<AutoScalingGroup>) -> Seen {
        self.zone_ids.extend(asg.zone_ids.clone());
        let eks = Key::of(&asg).map_or(Ok(None), |key| self.node_groups.get(&key));
        let (tags, bad) = match &eks {
            Ok(Some(node_group)) => tags::read_with(&asg.tags, &node_group.tags),
            _ => tags::read(&asg.tags),
        };
        self.note_bad_tags(&asg.name, bad);
        Seen { group: Group { asg, options: tags.options, ..Group::default() }, tags, eks }
    }

    /// Makes a group's template. Without EKS's taints, cluster-autoscaler would grow a group for pods that cannot use its
    /// nodes: a template made before they are known only stands in while nodes are on their way.
    ///
    /// Nodes teach about everything that a group launches: while some of that is not known, they teach nothing.
    fn template(
        &self,
        seen: &Seen,
        resolved: Result<Resolved, String>,
        region: &str,
        cluster_now: Timestamp,
    ) -> Made {
        let Seen { group, tags, .. } = seen;
        let is_behind = self.cache.is_behind();
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(_) if is_behind => return Made::Incomplete(None),
            Err(missing) => return Made::Complete(Err(TemplateError::new(missing))),
        };
        let described = seen.eks.as_ref().map(Option::as_deref);
        let is_incomplete = described.is_err() || is_behind && resolved.left_out.is_some();
        let store = self.learned.as_ref().filter(|_| !tags.keep_computed);
        let names: Vec<&str> = resolved.names.iter().map(String::as_str).collect();
        let learned = store.and_then(|store| match described {
            Ok(described) if resolved.left_out.is_none() => {
                store.learn(&group.asg, &resolved.revisions, &names, described, cluster_now)
            }
            _ => store.known(&group.asg.name),
        });
        let zone_id = group.asg.zones.first().and_then(|zone| self.zone_ids.get(zone)).cloned();
        let input = Input { asg: Arc::clone(&group.asg), eks: seen.eks.clone(), resolved, learned, zone_id };
        let template = match self.last.get(&group.asg.name) {
            Some((same, template)) if same.is(&input) => Ok(Arc::clone(template)),
            _ => self.made_of(&input, tags, region),
        };
        if is_incomplete {
            return Made::Incomplete(template.ok());
        }
        Made::Complete(template.map(|template| (input, template)))
    }

    /// The template that this input makes; `tags` are those of the group and of EKS.
    fn made_of(&self, input: &Input, tags: &NodeTags, region: &str) -> Result<Arc<Template>, TemplateError> {
        let Input { asg, eks, resolved, learned, zone_id } = input;
        let types: Vec<_> = resolved.types.iter().map(|(info, specs)| Candidate { info, specs }).collect();
        let key = Key::of(asg);
        let described = eks.as_ref().ok().and_then(Option::as_deref);
        let facts = Facts {
            group: &asg.name,
            region,
            zones: &asg.zones,
            zone_id: zone_id.as_deref(),
            types: &types,
            market: resolved.market,
            eks: key.as_ref().map(|key| Managed { name: key.name(), described }),
            learned: learned.as_deref(),
            tags,
        };
        let settings = if resolved.by_attributes { self.settings.of_attributes() } else { self.settings };
        Template::of(&facts, &settings).map(Arc::new)
    }

    /// The group with its template, or with what stands in for one.
    fn with_template(&mut self, mut group: Group, made: Made, now: Timestamp) -> Group {
        let name = group.asg.name.clone();
        let last = self.last.get(&name).map(|(_, template)| Arc::clone(template));
        match made {
            Made::Complete(Ok((input, template))) => {
                self.note_unshown(&name, &template.unshown, now);
                self.last.insert(name, (input, Arc::clone(&template)));
                group.template = Some(Ok(template));
            }
            Made::Complete(Err(error)) => (group.template, group.stand_in) = (Some(Err(error)), last),
            Made::Incomplete(template) => group.stand_in = last.or(template),
        }
        group
    }

    /// Warns once of an override that is left out, and again if it was known meanwhile. What is only waited for is not told.
    fn note_left_out(&mut self, group: &GroupName, resolved: Option<&Resolved>) {
        let Some(resolved) = resolved.filter(|_| !self.cache.is_behind()) else { return };
        let Some(missing) = &resolved.left_out else {
            self.left_out.remove(group);
            return;
        };
        if self.left_out.get(group) != Some(missing) {
            self.left_out.insert(group.clone(), missing.clone());
            tracing::warn!(
                group = group.as_str(),
                missing,
                "an override of the group's mixed instances policy is unknown, and is left out of its template"
            );
        }
    }

    /// Warns once of a device that nodes have not shown for long: cluster-autoscaler buys for pods that ask for it, and none fits.
    fn note_unshown(&mut self, group: &GroupName, unshown: &BTreeSet<String>, now: Timestamp) {
        self.unshown.retain(|(name, device), _| name != group || unshown.contains(device));
        for device in unshown {
            let known = self.unshown.entry((group.clone(), device.clone()));
            let (since, is_told) = known.or_insert((now, false));
            if !*is_told && elapsed(*since, now) >= UNSHOWN_FOR {
                *is_told = true;
                tracing::warn!(
                    group = group.as_str(),
                    device,
                    tag = format!("{}resources/{device}", tags::PREFIX),
                    "the group's nodes lack a device that EC2 lists for their type: the template still has it. \
                     If they are meant to lack it, set the tag to 0"
                );
            }
        }
    }

    /// Warns of each bad tag once, and again if it was right meanwhile.
    fn note_bad_tags(&mut self, group: &str, bad: Vec<BadTag>) {
        self.warned.retain(|(warned, tag)| warned != group || bad.contains(tag));
        for tag in bad {
            if self.warned.insert((group.into(), tag.clone())) {
                let BadTag { key, value, expected } = tag;
                tracing::warn!(
                    group,
                    tag = key,
                    value,
                    expected,
                    "a tag of the group is invalid and ignored"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;
    use crate::telemetry::captured::{self, warned_groups};

    #[test]
    fn a_device_that_nodes_do_not_show_is_told_once_after_half_an_hour_and_again_after_they_did() {
        let (log, _guard) = captured::log(Level::WARN);
        let mut templates = Templates::default();
        let at = |minute: i64| Timestamp::from_second(60 * minute).expect("in range");
        let (neuron, none) = (BTreeSet::from(["aws.amazon.com/neuron".to_owned()]), BTreeSet::new());
        let mut look = |minute, unshown| {
            templates.note_unshown(&"g".into(), unshown, at(minute));
            templates.note_unshown(&"h".into(), &none, at(minute));
            warned_groups(&log).len()
        };
        assert_eq!([0, 29, 30, 99].map(|minute| look(minute, &neuron)), [0, 0, 1, 1]);
        assert_eq!(
            (look(100, &none), look(101, &neuron), look(130, &neuron), look(131, &neuron)),
            (1, 1, 1, 2)
        );
        let tag = "tag=\"k8s.io/cluster-autoscaler/node-template/resources/aws.amazon.com/neuron\"";
        assert!(log.text().contains(tag), "{}", log.text());
    }

    #[test]
    fn a_bad_tag_is_warned_of_once_and_again_after_it_was_right() {
        let bad = || vec![BadTag { key: "k".into(), value: "v".into(), expected: "x" }];
        let (log, _guard) = captured::log(Level::WARN);
        let mut templates = Templates::default();
        for (group, tags) in
            [("g", bad()), ("h", bad()), ("g", bad()), ("g", vec![]), ("h", bad()), ("g", bad())]
        {
            templates.note_bad_tags(group, tags);
        }
        assert_eq!(warned_groups(&log), ["g", "h", "g"]);
        assert!(log.text().contains("tag=\"k\" value=\"v\""), "{}", log.text());
    }
}
