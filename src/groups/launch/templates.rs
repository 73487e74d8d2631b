//! Cache of launch template versions.
//!
//! - A pass reads the latest and default versions of all launch templates, whichever of the two groups refer to. The
//!   first is read whole; then one begins every five minutes and reads a page a refresh.
//! - Other versions (pinned, or of new templates) are read singly, at most [`SINGLY`] a refresh; a pinned one once.
//! - If AWS refuses a pass, all are read singly, each every five minutes at most, and a pass is tried again every five
//!   minutes. If only a later page is refused (its token may have expired), the pass is tried once more, whole.
//! - A failed call loses nothing: the last answer serves. Cancel safe: answers are kept, and the pass resumes where it
//!   was.
//! - Versions read singly are forgotten when no group refers to them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;

use super::cache::{Cached, MISSING, Round};
use crate::aws::{AwsError, LaunchSpec, TemplateAliases, TemplateId, TemplateRef, TemplateVersion};
use crate::clock::elapsed;

/// How old `$Latest` and `$Default` may get: templates are changed by hand, and groups launch the new version only from
/// then on.
const PASS: Duration = Duration::from_mins(5);
/// Unknown versions to read singly; more begin a pass, which tells the latest and default ones.
const FEW: usize = 3;
/// Versions read singly in a refresh: a quarter of the burst EC2 grants an account, refilled within two seconds.
///
/// Source: [Request throttling for the EC2
/// API](https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html), non-mutating actions.
const SINGLY: usize = 25;
/// Single reads in flight at once.
const AT_ONCE: usize = 8;

/// All known launch template versions.
#[derive(Debug, Default)]
pub(super) struct LaunchTemplates {
    /// The latest and default versions, from the last complete pass.
    bulk: BTreeMap<TemplateRef, Arc<LaunchSpec>>,
    /// When the last pass ended, well or badly.
    pass_ended: Option<Timestamp>,
    pass: Option<Pass>,
    /// Whether the last pass was refused or broke off: until one succeeds, versions are read singly.
    refused: bool,
    /// Versions read singly; `None` if AWS has no such version.
    single: BTreeMap<TemplateRef, Cached<Option<Arc<LaunchSpec>>>>,
    is_behind: bool,
}

/// Why a pass failed.
#[derive(Debug)]
enum Broken {
    /// The first page was refused.
    Refused,
    /// A later page was refused, on the second try too.
    Off(AwsError),
    /// AWS is busy or unreachable.
    ForNow(AwsError),
}

/// A pass in progress.
#[derive(Debug)]
struct Pass {
    aliases: TemplateAliases,
    versions: Vec<TemplateVersion>,
    next: Option<String>,
}

impl Pass {
    /// A pass that has not begun.
    fn over(refs: &BTreeSet<&TemplateRef>) -> Self {
        Self { aliases: aliases(refs), versions: Vec::new(), next: None }
    }
}

impl LaunchTemplates {
    /// The version, if it is known.
    pub(super) fn get(&self, of: &TemplateRef) -> Option<&Arc<LaunchSpec>> {
        self.bulk.get(of).or_else(|| self.single.get(of)?.value.as_ref())
    }

    /// Knows a version as if it had been read.
    #[cfg(test)]
    pub(super) fn know(&mut self, of: &TemplateRef, spec: Arc<LaunchSpec>) {
        self.bulk.insert(of.clone(), spec);
    }

    /// Whether some versions never read wait for the next refresh, which should come soon.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Reads what is unknown or out of date, and forgets single versions that no group refers to. Returns the first error; the other calls are made all the same.
    pub(super) async fn refresh(
        &mut self,
        refs: &BTreeSet<&TemplateRef>,
        round: &mut Round<'_>,
    ) -> Result<(), AwsError> {
        let now = round.now;
        self.single.retain(|of, _| refs.contains(of));
        let unknown = refs.iter().filter(|of| !self.bulk.contains_key(of) && self.is_due(of, now)).count();
        let mut outcome = Ok(());
        if unknown > FEW || refs.iter().any(|of| !of.is_pinned()) {
            outcome = match self.advance_pass(refs, unknown > FEW, round).await {
                Ok(()) => Ok(()),
                // Reading all launch templates may be forbidden or unsupported.
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
        outcome.and(self.read_singly(refs, round).await)
    }

    async fn read_singly(
        &mut self,
        refs: &BTreeSet<&TemplateRef>,
        round: &mut Round<'_>,
    ) -> Result<(), AwsError> {
        let (aws, now) = (round.aws, round.now);
        // Until a first pass has ended, `$Latest` and `$Default` are left to it.
        let singly = |of: &&&TemplateRef| {
            (of.is_pinned() || self.pass_ended.is_some())
                && !self.bulk.contains_key(**of)
                && self.is_due(of, now)
        };
        let mut due: Vec<&TemplateRef> = refs.iter().filter(singly).copied().collect();
        // Versions never read sort first (`None` is least).
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
                    round.answers += 1;
                    let value = found.map(|version| Arc::new(version.spec));
                    self.single.insert(of, Cached { at: now, value });
                }
                Err(error) => {
                    // A refusal will not change within a minute.
                    if !error.is_transient() {
                        self.single.entry(of).or_insert(Cached { at: now, value: None }).at = now;
                    }
                    outcome = outcome.and(Err(error));
                }
            }
        }
        // If EC2 is not answering, do not poll sooner.
        self.is_behind = is_behind && outcome.is_ok();
        outcome
    }

    /// Whether a version that no pass tells should be read.
    fn is_due(&self, of: &TemplateRef, now: Timestamp) -> bool {
        self.single.get(of).is_none_or(|kept| {
            let moves = self.refused && !of.is_pinned();
            let lasts = if kept.value.is_none() { MISSING } else { PASS };
            (kept.value.is_none() || moves) && elapsed(kept.at, now) >= lasts
        })
    }

    /// Continues the pass in progress or begins one that is due. Reads one page, or all that remain if it is the first
    /// pass or `whole` is set.
    async fn advance_pass(
        &mut self,
        refs: &BTreeSet<&TemplateRef>,
        whole: bool,
        round: &mut Round<'_>,
    ) -> Result<(), Broken> {
        let mut whole = whole || self.pass_ended.is_none();
        let is_due = self.pass_ended.is_none_or(|ended| elapsed(ended, round.now) >= PASS);
        if self.pass.is_none() && !is_due {
            return Ok(());
        }
        let mut is_second_try = false;
        loop {
            // Cancel safe: the pass stays in `self` while a page is awaited.
            let pass = self.pass.get_or_insert_with(|| Pass::over(refs));
            round.spare = false;
            let page = match round.aws.launch_template_page(pass.aliases, pass.next.clone()).await {
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
            round.answers += 1;
            pass.versions.extend(page.versions);
            pass.next = page.next;
            if pass.next.is_none() {
                self.bulk = index(&pass.versions, pass.aliases);
                (self.pass, self.pass_ended, self.refused) = (None, Some(round.now), false);
                // `bulk` now has `$Latest` and `$Default`; single copies would never be refreshed.
                self.single.retain(|of, _| of.is_pinned());
                return Ok(());
            }
            if !whole {
                return Ok(());
            }
        }
    }

    /// Versions are read singly from now on; answers of earlier passes serve until then.
    fn note_refusal(&mut self, refs: &BTreeSet<&TemplateRef>, now: Timestamp) {
        (self.pass_ended, self.refused) = (Some(now), true);
        for (of, value) in std::mem::take(&mut self.bulk) {
            if refs.contains(&of) {
                self.single.entry(of).or_insert(Cached { at: now, value: Some(value) });
            }
        }
    }

    /// Keeps the pinned versions that a pass told, for when they are no longer the latest.
    fn keep_pinned(&mut self, refs: &BTreeSet<&TemplateRef>, now: Timestamp) {
        for &of in refs.iter().filter(|of| of.is_pinned()) {
            if let (Some(spec), false) = (self.bulk.get(of), self.single.contains_key(of)) {
                self.single.insert(of.clone(), Cached { at: now, value: Some(Arc::clone(spec)) });
            }
        }
    }
}

/// The aliases referred to; both if there are only numbers, as either may match one.
fn aliases(refs: &BTreeSet<&TemplateRef>) -> TemplateAliases {
    let has = |alias: &str| refs.iter().any(|of| of.version == alias);
    match (has("$Latest"), has("$Default")) {
        (true, false) => TemplateAliases::Latest,
        (false, true) => TemplateAliases::Default,
        _ => TemplateAliases::Both,
    }
}

/// All references that these versions answer, if they are all that have these aliases.
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
