//! Cache of what groups launch: launch templates, launch configurations, images and instance types, read in bulk.
//!
//! - What cannot change is read once: pinned versions, launch configurations, images, instance types. It is forgotten
//!   when no group refers to it.
//! - A refresh in a steady state makes at most one call that could wait: a page of launch templates, or one old or
//!   missing item.
//! - A failed call loses nothing. Types that EC2 has not described come from the built-in table.
//! - A refresh takes at most [`LIMIT`] and keeps the answers it got. The step it was in goes last in the next one, so
//!   that a hanging call does not block the others.

mod attribute_selection;
mod cache;
mod images;
mod templates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::attribute_selection::AttributeSelection;
use self::cache::{Named, Round};
use self::images::Images;
use self::templates::LaunchTemplates;
use crate::aws::{
    Aws, AwsError, CONFIGURATIONS_A_CALL, Launch, LaunchSpec, Override, Requirements, Revision, Source,
    TYPES_A_CALL, TemplateId, TemplateRef, TypeInfo, type_table,
};
use crate::template::Market;

/// Time limit of a refresh: the view of the groups waits for it. Thousands of templates take a few seconds; the rest is
/// read at the next poll.
const LIMIT: Duration = Duration::from_secs(5);

/// All that is known of what groups launch.
#[derive(Debug, Default)]
pub(super) struct LaunchCache {
    templates: LaunchTemplates,
    images: Images,
    configurations: Named<Arc<LaunchSpec>>,
    selections: AttributeSelection,
    types: Named<Arc<TypeInfo>>,
    /// Whether types come from the built-in table only.
    static_types: bool,
    /// Whether AWS answered in the last refresh.
    has_moved: bool,
    /// The step in progress, or in which the last refresh ran out of time.
    under_way: Option<usize>,
}

/// A part of a refresh. Later steps need the answers of earlier ones.
#[derive(Clone, Copy, Debug)]
enum Step {
    Templates,
    Configurations,
    Images,
    AttributeSelection,
    Types,
}

const STEPS: [Step; 5] =
    [Step::Templates, Step::Configurations, Step::Images, Step::AttributeSelection, Step::Types];

/// Why a refresh is incomplete.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefreshError {
    /// A call failed; the others went on.
    #[error(transparent)]
    Failed(#[from] AwsError),
    /// AWS did not answer in time; the rest is left to the next refresh.
    #[error("no answer within {} s", LIMIT.as_secs())]
    TooSlow,
}

/// What a group launches, looked up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resolved {
    /// Types it may launch, in its order of preference, and what it launches each of them from.
    pub(super) types: Vec<(Arc<TypeInfo>, Vec<Arc<LaunchSpec>>)>,
    /// Names of all types that it may launch, also of those of which nothing is known.
    pub(super) names: Vec<String>,
    /// On-Demand or Spot, if it is one of the two.
    pub(super) market: Option<Market>,
    /// The launch template versions or launch configuration used.
    pub(super) revisions: BTreeSet<Revision>,
    /// Whether the first type is one of those that meet attributes: these have no order.
    pub(super) by_attributes: bool,
    /// What is not known of an override that is left out.
    pub(super) left_out: Option<String>,
}

/// What a group launches, and whether it is arm64; `None` if only the images can tell.
pub(super) type Wanted<'a> = (&'a Launch, Option<bool>);

/// Names of types in their order of preference, each with all that it is launched from.
type TypeNames = Vec<(String, Vec<Arc<LaunchSpec>>)>;

/// The types of a group, with the last two of [`Resolved`].
struct Types {
    named: TypeNames,
    by_attributes: bool,
    left_out: Option<String>,
}

impl LaunchCache {
    /// An empty cache. With `static_types`, types come from the built-in table only.
    pub(super) fn new(static_types: bool) -> Self {
        Self { static_types, ..Self::default() }
    }

    /// Looks up what is wanted and unknown, for at most [`LIMIT`], and forgets what is not wanted. Returns the first
    /// error; the other calls are made all the same.
    pub(super) async fn refresh(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), RefreshError> {
        // What was answered counts, also if time runs out.
        let mut round = Round { aws, now, spare: true, answers: 0 };
        let outcome = tokio::time::timeout(LIMIT, self.look_up(wanted, &mut round)).await;
        self.has_moved = round.answers > 0;
        Ok(outcome.map_err(|_| RefreshError::TooSlow)??)
    }

    /// Whether something waits for the next refresh, which should come soon. If EC2 is not answering, do not poll
    /// sooner.
    pub(super) fn is_behind(&self) -> bool {
        self.templates.is_behind() || self.under_way.is_some() && self.has_moved
    }

    /// Cancel safe.
    async fn look_up(&mut self, wanted: &[Wanted<'_>], round: &mut Round<'_>) -> Result<(), AwsError> {
        let aws = round.aws;
        let mut outcome = Ok(());
        let others = self.under_way.map_or(STEPS.len(), |cut| cut + 1);
        for index in (others..STEPS.len()).chain(0..STEPS.len()) {
            self.under_way = Some(index);
            outcome = outcome.and(match STEPS[index] {
                Step::Templates => {
                    let refs = wanted.iter().flat_map(|(launch, _)| launch.templates()).collect();
                    self.templates.refresh(&refs, round).await
                }
                Step::Configurations => {
                    let names = configurations(wanted).cloned().collect();
                    let ask = |batch: Vec<String>| async move {
                        let found = aws.launch_configurations(&batch).await?;
                        Ok(found.into_iter().map(|(name, spec)| (name, Arc::new(spec))).collect())
                    };
                    self.configurations.refresh(&names, CONFIGURATIONS_A_CALL, round, ask).await
                }
                Step::Images => self.images.refresh(self.images_of(wanted), round).await,
                Step::AttributeSelection => self.selections.refresh(self.selections_of(wanted), round).await,
                Step::Types if self.static_types => Ok(()),
                Step::Types => {
                    let ask = |batch: Vec<String>| async move {
                        let found = aws.instance_types(&batch).await?;
                        Ok(found.into_iter().map(|info| (info.name.clone(), Arc::new(info))).collect())
                    };
                    self.types.refresh(&self.types_of(wanted), TYPES_A_CALL, round, ask).await
                }
            });
        }
        self.under_way = None;
        outcome
    }

    /// Images whose architecture must be known.
    fn images_of(&self, wanted: &[Wanted<'_>]) -> BTreeSet<String> {
        let untold = wanted.iter().filter(|(_, arm)| arm.is_none());
        untold
            .flat_map(|(launch, _)| self.requirements(launch))
            .filter_map(|(_, image)| image.map(str::to_owned))
            .collect()
    }

    /// Attributes to select types by, where the architecture is known.
    fn selections_of(&self, wanted: &[Wanted<'_>]) -> BTreeMap<attribute_selection::Key, Requirements> {
        let mut all = BTreeMap::new();
        for &(launch, arm) in wanted {
            for (requirements, image) in self.requirements(launch) {
                if let Ok(arm) = self.is_arm(arm, image) {
                    all.entry((requirements.key(), arm)).or_insert_with(|| requirements.clone());
                }
            }
        }
        all
    }

    /// Types that groups may launch, as far as known.
    fn types_of(&self, wanted: &[Wanted<'_>]) -> BTreeSet<String> {
        let types = wanted.iter().filter_map(|&wish| self.type_names(wish).ok());
        types.flat_map(|types| types.named).map(|(name, _)| name).collect()
    }

    /// What a group launches, or what is missing.
    pub(super) fn resolve(&self, wish: Wanted<'_>) -> Result<Resolved, String> {
        let spec = self.source_spec(wish.0)?;
        let Types { named, by_attributes, left_out } = self.type_names(wish)?;
        let known = |(name, specs): &(String, Vec<_>)| Some((self.type_info(name)?, specs.clone()));
        let types: Vec<_> = named.iter().filter_map(known).collect();
        if types.is_empty() {
            return Err(match named.first() {
                Some((name, _)) => format!("instance type {name} is not known"),
                None => "no instance type has the attributes that the group asks for".to_owned(),
            });
        }
        let others = wish.0.templates().filter_map(|of| self.templates.get(of));
        let names = named.iter().map(|(name, _)| name.clone()).collect();
        let revisions = others.map(|other| &other.revision).chain([&spec.revision]).cloned().collect();
        let market = Market::of(wish.0, &spec);
        Ok(Resolved { types, names, market, revisions, by_attributes, left_out })
    }

    fn type_info(&self, name: &str) -> Option<Arc<TypeInfo>> {
        let told = self.types.get(name).cloned();
        told.or_else(|| type_table::find(name).map(Arc::new))
    }

    /// Names of the types a group may launch, in its order of preference, and what each is launched from: the launch
    /// template of its override, else the group's own. A type may be in several overrides. An override of which nothing is known is left out
    /// if another one tells.
    fn type_names(&self, (launch, arm): Wanted<'_>) -> Result<Types, String> {
        let base = self.source_spec(launch)?;
        let (mut pairs, mut by_attributes, mut left_out) = (Vec::new(), None, None);
        for line in &launch.overrides {
            let (spec, names) = match self.line(line, &base, arm) {
                Ok(told) => told,
                Err(missing) => {
                    left_out.get_or_insert(missing);
                    continue;
                }
            };
            if !names.is_empty() {
                let names_none = line.requirements.is_some() || spec.instance_type.is_none();
                by_attributes.get_or_insert(line.instance_type.is_none() && names_none);
            }
            pairs.extend(names.into_iter().map(|name| (name, Arc::clone(&spec))));
        }
        if pairs.is_empty() {
            if let Some(missing) = left_out {
                return Err(missing);
            }
            let names = self.spec_names(&base, base.image.as_deref(), arm)?;
            pairs.extend(names.into_iter().map(|name| (name, Arc::clone(&base))));
        }
        let by_attributes = by_attributes.unwrap_or(base.instance_type.is_none());
        Ok(Types { named: by_type(pairs), by_attributes, left_out })
    }

    /// What an override launches from, and which types.
    fn line(
        &self,
        line: &Override,
        base: &Arc<LaunchSpec>,
        arm: Option<bool>,
    ) -> Result<(Arc<LaunchSpec>, Vec<String>), String> {
        let own = line.template.as_ref().map(|template| self.spec(template)).transpose()?;
        let spec = own.as_ref().unwrap_or(base);
        let image = line.image.as_ref().or(spec.image.as_ref()).map(String::as_str);
        let names = if let Some(name) = &line.instance_type {
            vec![name.clone()]
        } else if let Some(requirements) = &line.requirements {
            self.matching(requirements, self.is_arm(arm, image)?)?.to_vec()
        } else if own.is_some() {
            self.spec_names(spec, image, arm)?
        } else {
            Vec::new()
        };
        Ok((Arc::clone(spec), names))
    }

    fn spec_names(
        &self,
        spec: &LaunchSpec,
        image: Option<&str>,
        arm: Option<bool>,
    ) -> Result<Vec<String>, String> {
        match (&spec.instance_type, &spec.requirements) {
            (Some(name), _) => Ok(vec![name.clone()]),
            (None, Some(requirements)) => {
                let arm = self.is_arm(arm, image)?;
                Ok(self.matching(requirements, arm)?.to_vec())
            }
            (None, None) => Err("the launch template names no instance type".to_owned()),
        }
    }

    fn matching(&self, requirements: &Requirements, arm: bool) -> Result<&[String], String> {
        self.selections.get(&(requirements.key(), arm)).ok_or_else(|| {
            "the instance types that have the attributes asked for are not known yet".to_owned()
        })
    }

    /// Each set of attributes that selects the group's types, with its image if known.
    fn requirements<'a>(
        &'a self,
        launch: &'a Launch,
    ) -> impl Iterator<Item = (&'a Requirements, Option<&'a str>)> {
        let image = |of: &TemplateRef| self.templates.get(of).map(|spec| spec.image.as_deref());
        let base = launch.templates().next().map_or(Some(None), image);
        let of_lines = launch.overrides.iter().filter_map(move |line| {
            let of_own = || {
                let own = self.templates.get(line.template.as_ref()?)?;
                own.requirements.as_ref().filter(|_| own.instance_type.is_none())
            };
            let image = || line.template.as_ref().map_or(base, image);
            let requirements = line.requirements.as_ref().or_else(of_own)?;
            Some((requirements, line.image.as_deref().map(Some).or_else(image)?))
        });
        let specs = launch.templates().filter_map(|of| self.templates.get(of));
        of_lines.chain(
            specs
                .filter(|spec| spec.instance_type.is_none())
                .filter_map(|spec| Some((spec.requirements.as_ref()?, spec.image.as_deref()))),
        )
    }

    /// Whether an image is arm64; x86_64 if nobody can tell.
    fn is_arm(&self, told: Option<bool>, image: Option<&str>) -> Result<bool, String> {
        match (told, image) {
            (Some(told), _) => Ok(told),
            (None, None) => Ok(false),
            (None, Some(image)) => self
                .images
                .is_arm(image)
                .ok_or_else(|| format!("the architecture of image {image} is not known yet")),
        }
    }

    fn source_spec(&self, launch: &Launch) -> Result<Arc<LaunchSpec>, String> {
        match &launch.source {
            Some(Source::Template(of)) => self.spec(of),
            Some(Source::Configuration(name)) => self
                .configurations
                .get(name)
                .cloned()
                .ok_or_else(|| format!("launch configuration {name} is not known")),
            None => Err("the group has neither a launch template nor a launch configuration".to_owned()),
        }
    }

    fn spec(&self, of: &TemplateRef) -> Result<Arc<LaunchSpec>, String> {
        self.templates.get(of).cloned().ok_or_else(|| {
            let (TemplateId::Id(template) | TemplateId::Name(template)) = &of.template;
            format!("version {} of launch template {template} is not known", of.version)
        })
    }
}

/// Each type once, where it came first, with all that it is launched from.
fn by_type(pairs: Vec<(String, Arc<LaunchSpec>)>) -> TypeNames {
    let mut all = TypeNames::new();
    let mut places = BTreeMap::new();
    for (name, spec) in pairs {
        let place = *places.entry(name.clone()).or_insert(all.len());
        match all.get_mut(place) {
            Some((_, specs)) if specs.contains(&spec) => {}
            Some((_, specs)) => specs.push(spec),
            None => all.push((name, vec![spec])),
        }
    }
    all
}

/// Names of the launch configurations in use.
fn configurations<'a>(wanted: &[Wanted<'a>]) -> impl Iterator<Item = &'a String> {
    wanted.iter().filter_map(|(launch, _)| match &launch.source {
        Some(Source::Configuration(name)) => Some(name),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_launched_from_what_its_overrides_say_and_else_from_the_groups_own() {
        let mut cache = LaunchCache::default();
        let name = "base".to_owned();
        let spec = |revision: &str| {
            Arc::new(LaunchSpec { revision: Revision(revision.into()), ..LaunchSpec::default() })
        };
        cache.configurations.keep(&[], [(name.clone(), spec("base"))], Timestamp::UNIX_EPOCH);
        let own = TemplateRef { template: TemplateId::Id("lt-1".into()), version: "1".into() };
        cache.templates.know(&own, spec("own"));
        let line = |instance_type: &str, template: Option<&TemplateRef>| Override {
            instance_type: Some(instance_type.to_owned()),
            template: template.cloned(),
            ..Override::default()
        };
        let overrides = vec![
            line("m5.large", None),
            line("c5.large", Some(&own)),
            line("m5.large", Some(&own)),
            line("m5.large", None),
        ];
        let launch = Launch { source: Some(Source::Configuration(name)), overrides, ..Launch::default() };
        let resolved = cache.resolve((&launch, None)).expect("all is known");
        let types: Vec<_> = resolved
            .types
            .iter()
            .map(|(info, specs)| {
                let specs: Vec<_> = specs.iter().map(|spec| spec.revision.0.as_str()).collect();
                (info.name.as_str(), specs)
            })
            .collect();
        assert_eq!(types, [("m5.large", vec!["base", "own"]), ("c5.large", vec!["own"])]);
    }

    #[test]
    fn an_override_of_which_nothing_is_known_is_left_out_if_another_one_tells() {
        let mut cache = LaunchCache::default();
        let name = "base".to_owned();
        cache.configurations.keep(
            &[],
            [(name.clone(), Arc::new(LaunchSpec::default()))],
            Timestamp::UNIX_EPOCH,
        );
        let gone = TemplateRef { template: TemplateId::Id("lt-gone".into()), version: "3".into() };
        let any = aws_sdk_autoscaling::types::InstanceRequirements::builder().build();
        let line = |instance_type: Option<&str>, template: Option<&TemplateRef>| Override {
            instance_type: instance_type.map(str::to_owned),
            requirements: instance_type.is_none().then(|| Requirements::of_group(&any)),
            template: template.cloned(),
            ..Override::default()
        };
        let resolve = |overrides| {
            let source = Some(Source::Configuration(name.clone()));
            cache.resolve((&Launch { source, overrides, ..Launch::default() }, None))
        };
        let unknown = "version 3 of launch template lt-gone is not known";
        for first in [line(Some("c5.large"), Some(&gone)), line(None, Some(&gone)), line(None, None)] {
            let resolved = resolve(vec![first.clone(), line(Some("m5.large"), None)]).expect("one tells");
            let types: Vec<_> = resolved.types.iter().map(|(info, _)| info.name.as_str()).collect();
            assert_eq!((types, resolved.by_attributes), (vec!["m5.large"], false), "{first:?}");
            let missing = resolved.left_out.expect("is told");
            assert_eq!(missing == unknown, first.template.is_some(), "{missing}");
            assert_eq!(resolve(vec![first]).expect_err("none tells"), missing);
        }
        assert_eq!(resolve(vec![line(Some("m5.large"), None)]).map(|resolved| resolved.left_out), Ok(None));
    }

    #[test]
    fn what_ec2_says_of_a_type_beats_the_table_which_serves_until_then() {
        let mut cache = LaunchCache::default();
        let memory = |cache: &LaunchCache, name| cache.type_info(name).map(|info| info.memory_mib);
        assert_eq!((memory(&cache, "m5.large"), memory(&cache, "x99.huge")), (Some(8192), None));
        let asked = vec!["m5.large".to_owned(), "c5.large".to_owned()];
        let told = TypeInfo { memory_mib: 9000, ..TypeInfo::default() };
        let found = [("m5.large".to_owned(), Arc::new(told))];
        cache.types.keep(&asked, found, Timestamp::UNIX_EPOCH);
        assert_eq!((memory(&cache, "m5.large"), memory(&cache, "c5.large")), (Some(9000), Some(4096)));
    }
}
