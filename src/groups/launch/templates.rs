//! Launch template versions: what groups launch from.
//!
//! - The latest and default versions of all launch templates are read in one pass when first needed, whole; after that
//!   a pass begins every five minutes and takes one page a refresh. Only what some group refers to is asked for.
//! - What a pass does not tell (pinned versions, new templates) is read one by one, at most [`SINGLY`] a refresh; a
//!   pinned version once.
//! - Where AWS refuses a pass, all are read one by one, each again after five minutes at the earliest, and a pass is
//!   tried again every five minutes. That a later page is refused (its token may have grown too old) says nothing of the
//!   first: the pass is made once more, whole.
//! - A failed call loses nothing: what was known before still serves. Nor does a refresh that is dropped at an await:
//!   what was answered until then is kept, and the pass goes on where it was.
//! - What no group refers to is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;

use super::cache::{Cached, MISSING};
use crate::aws::{Aws, AwsError, LaunchSpec, TemplateAliases, TemplateId, TemplateRef, TemplateVersion};
use crate::clock::elapsed;

/// How old `$Latest` and `$Default` may get before they are read again: a template changes by a person's hand, and
/// the group launches what the new version says only from then on.
const PASS: Duration = Duration::from_mins(5);
/// Unknown versions that are asked for one by one; more begin a pass, which tells the latest and default ones of them.
const FEW: usize = 3;
/// Versions that are asked for one by one in a refresh: a quarter of what EC2 grants an account at once, which then
/// comes back within two seconds.
///
/// Source: [Request throttling for the EC2
/// API](https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html), non-mutating actions.
const SINGLY: usize = 25;
/// Calls for single versions that are under way at once.
const AT_ONCE: usize = 8;

/// All launch template versions that are known.
#[derive(Debug, Default)]
pub(super) struct Templates {
    /// The latest and default versions, as of the last finished pass.
    bulk: BTreeMap<TemplateRef, Arc<LaunchSpec>>,
    /// When a pass came to an end last, good or bad.
    pass_ended: Option<Timestamp>,
    pass: Option<Pass>,
    /// Whether the last pass was refused, or broke off: what it did not tell is read one by one for as long.
    refused: bool,
    /// Versions asked for one by one; none where AWS has none.
    single: BTreeMap<TemplateRef, Cached<Option<Arc<LaunchSpec>>>>,
    is_behind: bool,
    /// Whether the last refresh took a page of a pass.
    took_page: bool,
    /// How many calls were answered so far.
    answers: usize,
}

/// Why a pass came to nothing.
#[derive(Debug)]
enum Broken {
    /// The first page was refused.
    Refused,
    /// A later page was refused, of the second try too.
    Off(AwsError),
    /// AWS is busy or away.
    ForNow(AwsError),
}

/// A pass over all launch templates that is under way.
#[derive(Debug)]
struct Pass {
    aliases: TemplateAliases,
    versions: Vec<TemplateVersion>,
    next: Option<String>,
}

impl Pass {
    /// One that is yet to begin.
    fn over(refs: &BTreeSet<&TemplateRef>) -> Self {
        Self { aliases: aliases(refs), versions: Vec::new(), next: None }
    }
}

impl Templates {
    /// The version, if it is known.
    pub(super) fn get(&self, of: &TemplateRef) -> Option<&Arc<LaunchSpec>> {
        self.bulk.get(of).or_else(|| self.single.get(of)?.value.as_ref())
    }

    /// Whether versions that were never asked for are left to the next refresh, which is to come soon.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Whether the last refresh took a page of a pass over all templates.
    pub(super) fn took_page(&self) -> bool {
        self.took_page
    }

    /// How many calls were answered so far.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    /// Forgets single versions that nobody refers to.
    pub(super) fn retain(&mut self, refs: &BTreeSet<&TemplateRef>) {
        self.single.retain(|of, _| refs.contains(of));
    }

    /// Looks up what is referred to and not known, or not known well enough. The first error is told; everything else
    /// goes on.
    pub(super) async fn refresh(
        &mut self,
        aws: &Aws,
        refs: &BTreeSet<&TemplateRef>,
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let unknown = refs.iter().filter(|of| !self.bulk.contains_key(of) && self.is_due(of, now)).count();
        let mut outcome = Ok(());
        self.took_page = false;
        if unknown > FEW || refs.iter().any(|of| !of.is_pinned()) {
            outcome = match self.advance_pass(aws, refs, unknown > FEW, now).await {
                Ok(()) => Ok(()),
                // Not everybody may, or can, read all launch templates.
                Err(Broken::Refused) => {
                    self.note_refusal(refs, now);
                    Ok(())
                }
                Err(Broken::Off(error)) => {
                    (self.pass_ended, self.refused) = (Some(now), true);
                    Err(error)
                }
                Err(Broken::ForNow(error)) => Err(error),
            };
        }
        self.keep_pinned(refs, now);
        outcome.and(self.read_singly(aws, refs, now).await)
    }

    async fn read_singly(
        &mut self,
        aws: &Aws,
        refs: &BTreeSet<&TemplateRef>,
        now: Timestamp,
    ) -> Result<(), AwsError> {
        // What a first pass that did not come through would have told is not asked for one by one.
        let singly = |of: &&&TemplateRef| {
            (of.is_pinned() || self.pass_ended.is_some())
                && !self.bulk.contains_key(**of)
                && self.is_due(of, now)
        };
        let mut due: Vec<&TemplateRef> = refs.iter().filter(singly).copied().collect();
        // Those never asked for come first (`None` is least).
        due.sort_by_key(|&of| self.single.get(of).map(|kept| kept.at));
        let is_behind = due.get(SINGLY).is_some_and(|&of| !self.single.contains_key(of));
        let due: Vec<TemplateRef> = due.into_iter().take(SINGLY).cloned().collect();
        let found = futures::stream::iter(due).map(|of| async move {
            let found = aws.launch_template_version(&of).await;
            (of, found)
        });
        let mut found = pin!(found.buffer_unordered(AT_ONCE));
        let mut outcome = Ok(());
        while let Some((of, found)) = found.next().await {
            match found {
                Ok(found) => {
                    self.answers += 1;
                    let value = found.map(|version| Arc::new(version.spec));
                    self.single.insert(of, Cached { at: now, value });
                }
                Err(error) => {
                    // What AWS refuses it refuses again a minute later.
                    if !error.is_transient() {
                        self.single.entry(of).or_insert(Cached { at: now, value: None }).at = now;
                    }
                    outcome = outcome.and(Err(error));
                }
            }
        }
        // An EC2 that is busy or away is not to be asked any sooner.
        self.is_behind = is_behind && outcome.is_ok();
        outcome
    }

    /// Whether a version that no pass tells is to be asked for.
    fn is_due(&self, of: &TemplateRef, now: Timestamp) -> bool {
        self.single.get(of).is_none_or(|kept| {
            let moves = self.refused && !of.is_pinned();
            let lasts = if kept.value.is_none() { MISSING } else { PASS };
            (kept.value.is_none() || moves) && elapsed(kept.at, now) >= lasts
        })
    }

    /// Goes on with the pass that is under way, or begins one that is due: one page, or all that are left if it is the
    /// first or `whole` is asked for.
    async fn advance_pass(
        &mut self,
        aws: &Aws,
        refs: &BTreeSet<&TemplateRef>,
        whole: bool,
        now: Timestamp,
    ) -> Result<(), Broken> {
        let mut whole = whole || self.pass_ended.is_none();
        let is_due = self.pass_ended.is_none_or(|ended| elapsed(ended, now) >= PASS);
        if self.pass.is_none() && !is_due {
            return Ok(());
        }
        let mut is_second_try = false;
        loop {
            // It stays where it is while a page is awaited: whoever waits for us may give up.
            let pass = self.pass.get_or_insert_with(|| Pass::over(refs));
            self.took_page = true;
            let page = match aws.launch_template_page(pass.aliases, pass.next.clone()).await {
                Ok(page) => page,
                Err(error) => {
                    let was_first = pass.next.is_none();
                    self.pass = None;
                    match error {
                        error if error.is_transient() => return Err(Broken::ForNow(error)),
                        _ if was_first => return Err(Broken::Refused),
                        error if is_second_try => return Err(Broken::Off(error)),
                        _ => (is_second_try, whole) = (true, true),
                    }
                    continue;
                }
            };
            self.answers += 1;
            pass.versions.extend(page.versions);
            pass.next = page.next;
            if pass.next.is_none() {
                self.bulk = index(&pass.versions, pass.aliases);
                (self.pass, self.pass_ended, self.refused) = (None, Some(now), false);
                // What moves with a template is in the index now; what was asked for singly would never move.
                self.single.retain(|of, _| of.is_pinned());
                return Ok(());
            }
            if !whole {
                return Ok(());
            }
        }
    }

    /// From now on all are read one by one; what passes have told serves until then.
    fn note_refusal(&mut self, refs: &BTreeSet<&TemplateRef>, now: Timestamp) {
        (self.pass_ended, self.refused) = (Some(now), true);
        for (of, value) in std::mem::take(&mut self.bulk) {
            if refs.contains(&of) {
                self.single.entry(of).or_insert(Cached { at: now, value: Some(value) });
            }
        }
    }

    /// Keeps the pinned versions that a pass has told: they stay what they are when they are no longer the latest.
    fn keep_pinned(&mut self, refs: &BTreeSet<&TemplateRef>, now: Timestamp) {
        for &of in refs.iter().filter(|of| of.is_pinned()) {
            if let (Some(spec), false) = (self.bulk.get(of), self.single.contains_key(of)) {
                self.single.insert(of.clone(), Cached { at: now, value: Some(Arc::clone(spec)) });
            }
        }
    }
}

/// Those that are referred to; both, if only numbers are: they may be told as one of them.
fn aliases(refs: &BTreeSet<&TemplateRef>) -> TemplateAliases {
    let has = |alias: &str| refs.iter().any(|of| of.version == alias);
    match (has("$Latest"), has("$Default")) {
        (true, false) => TemplateAliases::Latest,
        (false, true) => TemplateAliases::Default,
        _ => TemplateAliases::Both,
    }
}

/// Every way a group can refer to one of these versions, which are all that have these aliases.
fn index(versions: &[TemplateVersion], aliases: TemplateAliases) -> BTreeMap<TemplateRef, Arc<LaunchSpec>> {
    let mut latest: BTreeMap<&str, i64> = BTreeMap::new();
    if aliases != TemplateAliases::Default {
        for version in versions {
            let number = latest.entry(&version.id).or_default();
            *number = version.number.max(*number);
        }
    }
    let mut index = BTreeMap::new();
    for version in versions {
        let spec = Arc::new(version.spec.clone());
        let mut names = vec![version.number.to_string()];
        names.extend(version.default.then(|| "$Default".to_owned()));
        names
            .extend((latest.get(version.id.as_str()) == Some(&version.number)).then(|| "$Latest".to_owned()));
        for name in names {
            for template in [TemplateId::Id(version.id.clone()), TemplateId::Name(version.name.clone())] {
                index.insert(TemplateRef { template, version: name.clone() }, Arc::clone(&spec));
            }
        }
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(id: &str, number: i64, default: bool, instance_type: &str) -> TemplateVersion {
        let spec = LaunchSpec { instance_type: Some(instance_type.to_owned()), ..LaunchSpec::default() };
        TemplateVersion { id: id.to_owned(), name: format!("name-of-{id}"), number, default, spec }
    }

    #[test]
    fn a_version_is_found_by_every_way_to_refer_to_it() {
        let versions = [
            version("lt-1", 3, false, "m5.large"),
            version("lt-1", 1, true, "c5.large"),
            version("lt-2", 7, true, "r5.large"),
        ];
        let index = index(&versions, TemplateAliases::Both);
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

    #[test]
    fn what_was_not_asked_for_is_not_told() {
        let of = |alias: &str| TemplateRef { template: TemplateId::Id("lt-1".into()), version: alias.into() };
        let only = [version("lt-1", 1, true, "c5.large")];
        assert!(!index(&only, TemplateAliases::Default).contains_key(&of("$Latest")));
        assert!(index(&only, TemplateAliases::Latest).contains_key(&of("$Default")), "it says that it is");
    }
}
