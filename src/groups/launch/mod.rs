//! What the groups launch: launch templates, launch configurations and instance types, looked up in bulk and kept.
//!
//! - What cannot change is asked for once: pinned versions, launch configurations, images, instance types.
//! - A refresh in a steady state costs at most one call more than it must ([`templates`]).
//! - A failed call loses nothing: what was known before still serves. A type that EC2 has not told is the program's
//!   own table's to tell.

mod images;
mod templates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::images::Images;
use self::templates::Templates;
use crate::aws::{
    Aws, AwsError, Launch, LaunchSpec, Override, Requirements, Revision, Source, TemplateId, TemplateRef,
    TypeInfo, type_table,
};
use crate::clock::elapsed;
use crate::template::Market;

/// How long a type or template that AWS does not have is left alone.
const MISSING: Duration = Duration::from_mins(5);
/// How long a list of matching types serves: AWS adds types every few weeks.
const MATCHES: Duration = Duration::from_hours(24);

/// All that is known of what groups launch.
#[derive(Debug, Default)]
pub(super) struct Library {
    templates: Templates,
    images: Images,
    configurations: BTreeMap<String, Kept<Option<Arc<LaunchSpec>>>>,
    matches: BTreeMap<(String, bool), Kept<Vec<String>>>,
    types: BTreeMap<String, Kept<Option<Arc<TypeInfo>>>>,
    /// Whether EC2 is not asked for types.
    static_types: bool,
}

#[derive(Debug)]
struct Kept<T> {
    at: Timestamp,
    value: T,
}

/// What a group launches, looked up.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    /// The types it may launch, in its order of preference.
    pub(super) types: Vec<Arc<TypeInfo>>,
    /// Size of the root volume in GiB.
    pub(super) root_gib: Option<i32>,
    /// How it pays.
    pub(super) market: Option<Market>,
    /// Which versions of launch templates, or which launch configuration, that is.
    pub(super) revisions: BTreeSet<Revision>,
}

/// A group's wish, and whether its nodes are of arm64 as far as anything but its images says so. Where nothing does,
/// the image decides; attributes leave it open.
pub(super) type Wanted<'a> = (&'a Launch, Option<bool>);

impl Library {
    /// One that knows nothing yet; with `static_types` the table alone tells of types.
    pub(super) fn new(static_types: bool) -> Self {
        Self { static_types, ..Self::default() }
    }

    /// Looks up what is wanted and not known. The first error is told; everything else goes on.
    pub(super) async fn refresh(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let refs = wanted.iter().flat_map(|(launch, _)| launch.templates()).collect();
        let mut outcome = self.templates.refresh(aws, &refs, now).await;
        outcome = outcome.and(self.refresh_configurations(aws, wanted, now).await);
        outcome = outcome.and(self.refresh_images(aws, wanted, now).await);
        outcome = outcome.and(self.refresh_matches(aws, wanted, now).await);
        outcome.and(self.refresh_types(aws, wanted, now).await)
    }

    /// Whether something was left to the next refresh, so that it should come soon.
    pub(super) fn is_behind(&self) -> bool {
        self.templates.is_behind()
    }

    async fn refresh_configurations(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let names = wanted.iter().filter_map(|(launch, _)| match &launch.source {
            Some(Source::Configuration(name)) => Some(name),
            _ => None,
        });
        let names = unknown(names, &self.configurations, now);
        let found = aws.launch_configurations(&names).await?;
        keep(
            &mut self.configurations,
            names,
            found.into_iter().map(|(name, spec)| (name, Arc::new(spec))),
            now,
        );
        Ok(())
    }

    async fn refresh_images(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let untold = wanted.iter().filter(|(_, arm)| arm.is_none());
        let images: BTreeSet<String> = untold
            .flat_map(|(launch, _)| self.requirements(launch))
            .filter_map(|(_, image)| image.map(str::to_owned))
            .collect();
        self.images.refresh(aws, &images, now).await
    }

    async fn refresh_matches(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let mut asked: BTreeMap<(String, bool), Requirements> = BTreeMap::new();
        for &(launch, arm) in wanted {
            for (requirements, image) in self.requirements(launch) {
                let key = (requirements.key(), self.is_arm(arm, image));
                if self.matches.get(&key).is_none_or(|kept| elapsed(kept.at, now) >= MATCHES) {
                    asked.insert(key, requirements.clone());
                }
            }
        }
        for (key, requirements) in asked {
            let value = aws.instance_types_from_requirements(&requirements, key.1).await?;
            self.matches.insert(key, Kept { at: now, value });
        }
        Ok(())
    }

    async fn refresh_types(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), AwsError> {
        if self.static_types {
            return Ok(());
        }
        let names: BTreeSet<String> =
            wanted.iter().filter_map(|&wish| self.type_names(wish).ok()).flatten().collect();
        let names = unknown(names.iter(), &self.types, now);
        let found = aws.instance_types(&names).await?;
        keep(&mut self.types, names, found.into_iter().map(|info| (info.name.clone(), Arc::new(info))), now);
        Ok(())
    }

    /// Puts together what a group launches, or says what is missing.
    pub(super) fn resolve(&self, wish: Wanted<'_>) -> Result<Resolved, String> {
        let spec = self.source_spec(wish.0)?;
        let names = self.type_names(wish)?;
        let types: Vec<_> = names.iter().filter_map(|name| self.type_info(name)).collect();
        if types.is_empty() {
            return Err(match names.first() {
                Some(name) => format!("instance type {name} is not known"),
                None => "no instance type has the attributes that the group asks for".to_owned(),
            });
        }
        let others = wish.0.templates().filter_map(|of| self.templates.get(of));
        let revisions = others.map(|other| &other.revision).chain([&spec.revision]).cloned().collect();
        Ok(Resolved { types, root_gib: spec.root_gib, market: Market::of(wish.0, &spec), revisions })
    }

    fn type_info(&self, name: &str) -> Option<Arc<TypeInfo>> {
        let told = self.types.get(name).and_then(|kept| kept.value.clone());
        told.or_else(|| type_table::find(name).map(Arc::new))
    }

    /// Names of the types a group may launch, in its order of preference.
    fn type_names(&self, (launch, arm): Wanted<'_>) -> Result<Vec<String>, String> {
        let base = self.source_spec(launch)?;
        let mut names = Vec::new();
        let lines: &[Override] = &launch.overrides;
        for line in lines {
            let own = line.template.as_ref().map(|template| self.spec(template)).transpose()?;
            if let Some(name) = &line.instance_type {
                names.push(name.clone());
            } else if let Some(requirements) = &line.requirements {
                let image = own.as_ref().unwrap_or(&base).image.as_deref();
                names.extend(self.matching(requirements, self.is_arm(arm, image))?);
            } else if let Some(own) = own {
                names.extend(self.spec_names(&own, arm)?);
            }
        }
        if names.is_empty() {
            names = self.spec_names(&base, arm)?;
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(names)
    }

    fn spec_names(&self, spec: &LaunchSpec, arm: Option<bool>) -> Result<Vec<String>, String> {
        match (&spec.instance_type, &spec.requirements) {
            (Some(name), _) => Ok(vec![name.clone()]),
            (None, Some(requirements)) => {
                self.matching(requirements, self.is_arm(arm, spec.image.as_deref()))
            }
            (None, None) => Err("the launch template names no instance type".to_owned()),
        }
    }

    fn matching(&self, requirements: &Requirements, arm: bool) -> Result<Vec<String>, String> {
        let kept = self.matches.get(&(requirements.key(), arm));
        kept.map(|kept| kept.value.clone()).ok_or_else(|| {
            "the instance types that have the attributes asked for are not known yet".to_owned()
        })
    }

    /// Every set of attributes that a group's types are chosen by, with the image they are for.
    fn requirements<'a>(
        &'a self,
        launch: &'a Launch,
    ) -> impl Iterator<Item = (&'a Requirements, Option<&'a str>)> {
        let image = |of: &TemplateRef| self.templates.get(of).and_then(|spec| spec.image.as_deref());
        let base = launch.templates().next().and_then(image);
        let of_lines = launch.overrides.iter().filter_map(move |line| {
            Some((line.requirements.as_ref()?, line.template.as_ref().map_or(base, image)))
        });
        let specs = launch.templates().filter_map(|of| self.templates.get(of));
        of_lines.chain(
            specs
                .filter(|spec| spec.instance_type.is_none())
                .filter_map(|spec| Some((spec.requirements.as_ref()?, spec.image.as_deref()))),
        )
    }

    /// Whether instances of an image are of arm64; x86_64, as most are, where nobody says.
    fn is_arm(&self, told: Option<bool>, image: Option<&str>) -> bool {
        told.or_else(|| self.images.is_arm(image?)).unwrap_or(false)
    }

    fn source_spec(&self, launch: &Launch) -> Result<Arc<LaunchSpec>, String> {
        match &launch.source {
            Some(Source::Template(of)) => self.spec(of),
            Some(Source::Configuration(name)) => self
                .configurations
                .get(name)
                .and_then(|kept| kept.value.clone())
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

fn is_unknown<T>(kept: Option<&Kept<Option<T>>>, now: Timestamp) -> bool {
    kept.is_none_or(|kept| kept.value.is_none() && elapsed(kept.at, now) >= MISSING)
}

fn unknown<'a, T>(
    names: impl Iterator<Item = &'a String>,
    known: &BTreeMap<String, Kept<Option<T>>>,
    now: Timestamp,
) -> Vec<String> {
    let names: BTreeSet<_> = names.filter(|&name| is_unknown(known.get(name), now)).collect();
    names.into_iter().cloned().collect()
}

/// Keeps what was found, and that the others were not.
fn keep<T>(
    known: &mut BTreeMap<String, Kept<Option<T>>>,
    asked: Vec<String>,
    found: impl Iterator<Item = (String, T)>,
    now: Timestamp,
) {
    known.extend(asked.into_iter().map(|name| (name, Kept { at: now, value: None })));
    known.extend(found.map(|(name, value)| (name, Kept { at: now, value: Some(value) })));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ec2_says_of_a_type_beats_the_table_which_serves_until_then() {
        let mut library = Library::default();
        let memory = |library: &Library, name| library.type_info(name).map(|info| info.memory_mib);
        assert_eq!((memory(&library, "m5.large"), memory(&library, "x99.huge")), (Some(8192), None));
        let asked = vec!["m5.large".to_owned(), "c5.large".to_owned()];
        let told = TypeInfo { memory_mib: 9000, ..TypeInfo::default() };
        let found = [("m5.large".to_owned(), Arc::new(told))];
        keep(&mut library.types, asked, found.into_iter(), Timestamp::UNIX_EPOCH);
        assert_eq!((memory(&library, "m5.large"), memory(&library, "c5.large")), (Some(9000), Some(4096)));
    }
}
