//! What the groups launch: launch templates, launch configurations and instance types, looked up in bulk and kept.
//!
//! - What cannot change is asked for once: pinned versions, launch configurations, instance types.
//! - The latest and default versions of all launch templates are read in one pass when first needed, whole; after
//!   that a pass begins every five minutes and takes one page a refresh, so that a refresh in a steady state costs at
//!   most one call more than it must.
//! - A failed call loses nothing: what was known before still serves. A type that EC2 has not told is the program's
//!   own table's to tell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;

use crate::aws::{
    Aws, AwsError, Launch, LaunchSpec, Override, Requirements, Revision, Source, TemplateId, TemplateRef,
    TemplateVersion, TypeInfo, type_table,
};
use crate::template::Market;

/// How old `$Latest` and `$Default` may get before the next pass begins: a template changes by a person's hand, and
/// the group launches what the new version says only from then on.
const PASS: Duration = Duration::from_mins(5);
/// How long a type or template that AWS does not have is left alone.
const MISSING: Duration = Duration::from_mins(5);
/// How long a list of matching types serves: AWS adds types every few weeks.
const MATCHES: Duration = Duration::from_hours(24);
/// Unknown versions that are asked for one by one; more begin a pass, which tells the latest and default ones of them.
const FEW: usize = 3;
/// Calls for single things that are under way at once.
const AT_ONCE: usize = 8;

/// All that is known of what groups launch.
#[derive(Debug, Default)]
pub(super) struct Library {
    /// The latest and default versions, as of the last finished pass.
    bulk: BTreeMap<TemplateRef, Arc<LaunchSpec>>,
    pass_ended: Option<Timestamp>,
    pass: Option<Pass>,
    /// Versions asked for one by one; none where AWS has none.
    single: BTreeMap<TemplateRef, Kept<Option<Arc<LaunchSpec>>>>,
    configurations: BTreeMap<String, Kept<Option<Arc<LaunchSpec>>>>,
    matches: BTreeMap<(String, bool), Kept<Vec<String>>>,
    types: BTreeMap<String, Kept<Option<Arc<TypeInfo>>>>,
    /// Whether EC2 is not asked for types.
    static_types: bool,
}

/// A pass over all launch templates that is under way.
#[derive(Debug, Default)]
struct Pass {
    versions: Vec<TemplateVersion>,
    next: Option<String>,
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

/// A group's wish, with the architecture its tags tell (which attributes leave open).
pub(super) type Wanted<'a> = (&'a Launch, bool);

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
        let mut outcome = self.refresh_templates(aws, wanted, now).await;
        outcome = outcome.and(self.refresh_configurations(aws, wanted, now).await);
        outcome = outcome.and(self.refresh_matches(aws, wanted, now).await);
        outcome.and(self.refresh_types(aws, wanted, now).await)
    }

    async fn refresh_templates(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let refs: BTreeSet<&TemplateRef> = wanted.iter().flat_map(|(launch, _)| launch.templates()).collect();
        let unknown = refs.iter().filter(|of| self.is_unknown_version(of, now)).count();
        let mut outcome = Ok(());
        if unknown > FEW || refs.iter().any(|of| !of.is_pinned()) {
            outcome = match self.advance_pass(aws, unknown > FEW, now).await {
                // Not everybody may, or can, read all launch templates: then ours are read one by one, as often.
                Err(error) if !error.is_transient() => {
                    self.pass_ended = Some(now);
                    self.single.retain(|of, _| of.is_pinned());
                    Ok(())
                }
                outcome => outcome,
            };
        }
        self.keep_pinned(&refs, now);
        // What a first pass that did not come through would have told is not asked for one by one.
        let singly = |of: &&&TemplateRef| {
            (of.is_pinned() || self.pass_ended.is_some()) && self.is_unknown_version(of, now)
        };
        let missing: Vec<TemplateRef> = refs.iter().filter(singly).map(|&of| of.clone()).collect();
        let answers = futures::stream::iter(missing)
            .map(|of| async move {
                let found = aws.launch_template_version(&of).await;
                (of, found)
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        for (of, found) in answers {
            match found {
                Ok(found) => {
                    let value = found.map(|version| Arc::new(version.spec));
                    self.single.insert(of, Kept { at: now, value });
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Goes on with the pass that is under way, or begins one that is due: one page, or all that are left if it is the
    /// first or `whole` is asked for.
    async fn advance_pass(&mut self, aws: &Aws, whole: bool, now: Timestamp) -> Result<(), AwsError> {
        let whole = whole || self.pass_ended.is_none();
        let is_due = self.pass_ended.is_none_or(|ended| age(ended, now) >= PASS);
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None if is_due => Pass::default(),
            None => return Ok(()),
        };
        loop {
            // A token that has expired, or any other failure, starts the pass over with the next refresh.
            let page = aws.launch_template_page(pass.next.take()).await?;
            pass.versions.extend(page.versions);
            pass.next = page.next;
            if pass.next.is_none() {
                self.bulk = index(&pass.versions);
                self.pass_ended = Some(now);
                // What moves with a template is in the index now; what was asked for singly would never move.
                self.single.retain(|of, _| of.is_pinned());
                return Ok(());
            }
            if !whole {
                self.pass = Some(pass);
                return Ok(());
            }
        }
    }

    fn is_unknown_version(&self, of: &TemplateRef, now: Timestamp) -> bool {
        !self.bulk.contains_key(of) && is_unknown(self.single.get(of), now)
    }

    /// Keeps the pinned versions that a pass has told: they stay what they are when they are no longer the latest.
    fn keep_pinned(&mut self, refs: &BTreeSet<&TemplateRef>, now: Timestamp) {
        for &of in refs.iter().filter(|of| of.is_pinned()) {
            if let (Some(spec), false) = (self.bulk.get(of), self.single.contains_key(of)) {
                self.single.insert(of.clone(), Kept { at: now, value: Some(Arc::clone(spec)) });
            }
        }
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

    async fn refresh_matches(
        &mut self,
        aws: &Aws,
        wanted: &[Wanted<'_>],
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let mut asked: BTreeMap<(String, bool), Requirements> = BTreeMap::new();
        for &(launch, arm) in wanted {
            for requirements in self.requirements(launch) {
                let key = (requirements.key(), arm);
                if self.matches.get(&key).is_none_or(|kept| age(kept.at, now) >= MATCHES) {
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
        let others = wish.0.templates().filter_map(|of| self.known_spec(of));
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
            if let Some(name) = &line.instance_type {
                names.push(name.clone());
            } else if let Some(requirements) = &line.requirements {
                names.extend(self.matching(requirements, arm)?);
            } else if let Some(template) = &line.template {
                names.extend(self.spec_names(&*self.spec(template)?, arm)?);
            }
        }
        if names.is_empty() {
            names = self.spec_names(&base, arm)?;
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(names)
    }

    fn spec_names(&self, spec: &LaunchSpec, arm: bool) -> Result<Vec<String>, String> {
        match (&spec.instance_type, &spec.requirements) {
            (Some(name), _) => Ok(vec![name.clone()]),
            (None, Some(requirements)) => self.matching(requirements, arm),
            (None, None) => Err("the launch template names no instance type".to_owned()),
        }
    }

    fn matching(&self, requirements: &Requirements, arm: bool) -> Result<Vec<String>, String> {
        let kept = self.matches.get(&(requirements.key(), arm));
        kept.map(|kept| kept.value.clone()).ok_or_else(|| {
            "the instance types that have the attributes asked for are not known yet".to_owned()
        })
    }

    /// Every set of attributes that a group's types are chosen by.
    fn requirements<'a>(&'a self, launch: &'a Launch) -> impl Iterator<Item = &'a Requirements> {
        let of_lines = launch.overrides.iter().filter_map(|line| line.requirements.as_ref());
        let specs = launch.templates().filter_map(|of| self.known_spec(of));
        of_lines.chain(
            specs.filter(|spec| spec.instance_type.is_none()).filter_map(|spec| spec.requirements.as_ref()),
        )
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
        self.known_spec(of).cloned().ok_or_else(|| {
            let (TemplateId::Id(template) | TemplateId::Name(template)) = &of.template;
            format!("version {} of launch template {template} is not known", of.version)
        })
    }

    fn known_spec(&self, of: &TemplateRef) -> Option<&Arc<LaunchSpec>> {
        self.bulk.get(of).or_else(|| self.single.get(of)?.value.as_ref())
    }
}

/// Every way a group can refer to one of these versions (the latest and the default ones of all templates).
fn index(versions: &[TemplateVersion]) -> BTreeMap<TemplateRef, Arc<LaunchSpec>> {
    let mut latest: BTreeMap<&str, i64> = BTreeMap::new();
    for version in versions {
        let number = latest.entry(&version.id).or_default();
        *number = version.number.max(*number);
    }
    let mut index = BTreeMap::new();
    for version in versions {
        let spec = Arc::new(version.spec.clone());
        let mut names = vec![version.number.to_string()];
        names.extend(version.default.then(|| "$Default".to_owned()));
        names.extend((latest[version.id.as_str()] == version.number).then(|| "$Latest".to_owned()));
        for name in names {
            for template in [TemplateId::Id(version.id.clone()), TemplateId::Name(version.name.clone())] {
                index.insert(TemplateRef { template, version: name.clone() }, Arc::clone(&spec));
            }
        }
    }
    index
}

fn is_unknown<T>(kept: Option<&Kept<Option<T>>>, now: Timestamp) -> bool {
    kept.is_none_or(|kept| kept.value.is_none() && age(kept.at, now) >= MISSING)
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

fn age(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(id: &str, number: i64, default: bool, instance_type: &str) -> TemplateVersion {
        let spec = LaunchSpec { instance_type: Some(instance_type.to_owned()), ..LaunchSpec::default() };
        TemplateVersion { id: id.to_owned(), name: format!("name-of-{id}"), number, default, spec }
    }

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

    #[test]
    fn a_version_is_found_by_every_way_to_refer_to_it() {
        let index = index(&[
            version("lt-1", 3, false, "m5.large"),
            version("lt-1", 1, true, "c5.large"),
            version("lt-2", 7, true, "r5.large"),
        ]);
        let id = |id: &str| TemplateId::Id(id.to_owned());
        let name = |id: &str| TemplateId::Name(format!("name-of-{id}"));
        for (template, version, expected) in [
            (id("lt-1"), "$Latest", Some("m5.large")),
            (name("lt-1"), "$Latest", Some("m5.large")),
            (id("lt-1"), "$Default", Some("c5.large")),
            (id("lt-1"), "3", Some("m5.large")),
            (id("lt-1"), "1", Some("c5.large")),
            (id("lt-1"), "2", None),
            (name("lt-2"), "$Latest", Some("r5.large")),
            (id("lt-2"), "$Default", Some("r5.large")),
        ] {
            let of = TemplateRef { template, version: version.to_owned() };
            let found = index.get(&of).and_then(|spec| spec.instance_type.as_deref());
            assert_eq!(found, expected, "{of:?}");
        }
    }
}
