//! Values looked up by name, and when. Pure.
//!
//! - Found values are kept while a group refers to them; missing ones are asked for again after [`MISSING`].
//! - Only one call in a refresh may ask again for missing ones alone ([`Named::due`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::aws::{Aws, AwsError};
use crate::clock::elapsed;

/// How long until AWS is asked again for what it does not have or refuses to tell.
pub(super) const MISSING: Duration = Duration::from_mins(5);

/// What a refresh may do, and has done.
#[derive(Debug)]
pub(super) struct Round<'a> {
    pub(super) aws: &'a Aws,
    pub(super) now: Timestamp,
    /// Whether a call that could wait may still be made.
    pub(super) spare: bool,
    /// Calls answered so far.
    pub(super) answers: usize,
}

/// A value, and when AWS told it.
#[derive(Debug)]
pub(super) struct Cached<T> {
    pub(super) at: Timestamp,
    pub(super) value: T,
}

/// Values by name; `None` if AWS has none.
#[derive(Debug)]
pub(super) struct Named<T>(BTreeMap<String, Cached<Option<T>>>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Named<T> {
    /// The value of this name, if known.
    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.0.get(name)?.value.as_ref()
    }

    /// Whether AWS has answered for this name, even if it has none.
    pub(super) fn is_answered(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Forgets all other names, and tells which of these to ask for: new ones, and missing ones asked for long ago. If there are only missing ones, they use up
    /// `spare`, or wait if it is used up already.
    fn due(&mut self, names: &BTreeSet<String>, now: Timestamp, spare: &mut bool) -> Vec<String> {
        self.0.retain(|name, _| names.contains(name));
        let is_due = |name: &&String| {
            self.0.get(*name).is_none_or(|kept| kept.value.is_none() && elapsed(kept.at, now) >= MISSING)
        };
        let names: BTreeSet<&String> = names.iter().filter(is_due).collect();
        let only_again = names.iter().all(|name| self.is_answered(name));
        if only_again && !names.is_empty() && !std::mem::take(spare) {
            return Vec::new();
        }
        names.into_iter().cloned().collect()
    }

    /// Asks for all that is due, so many a call, and forgets all other names. Returns the first error. What is refused is missing, and the rest is
    /// asked for all the same; while AWS is busy or unreachable the rest waits.
    pub(super) async fn refresh<F: Future<Output = Result<Vec<(String, T)>, AwsError>>>(
        &mut self,
        names: &BTreeSet<String>,
        a_call: usize,
        round: &mut Round<'_>,
        ask: impl Fn(Vec<String>) -> F,
    ) -> Result<(), AwsError> {
        let mut outcome = Ok(());
        for batch in self.due(names, round.now, &mut round.spare).chunks(a_call) {
            match ask(batch.to_vec()).await {
                Ok(found) => {
                    self.keep(batch, found, round.now);
                    round.answers += 1;
                }
                Err(error) if error.is_transient() => return outcome.and(Err(error)),
                Err(error) => {
                    // A refusal will not change within a minute.
                    self.keep(batch, [], round.now);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Stores what was found; the rest of `asked` is missing.
    pub(super) fn keep(
        &mut self,
        asked: &[String],
        found: impl IntoIterator<Item = (String, T)>,
        now: Timestamp,
    ) {
        self.0.extend(asked.iter().map(|name| (name.clone(), Cached { at: now, value: None })));
        self.0.extend(found.into_iter().map(|(name, value)| (name, Cached { at: now, value: Some(value) })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("in range")
    }

    fn names<C: FromIterator<String>>(names: &[&str]) -> C {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_is_missing_is_asked_for_again_where_a_call_can_be_spared() {
        let mut known = Named::default();
        let all = names(&["gone", "there"]);
        let asked = known.due(&all, at(0), &mut false);
        assert_eq!(asked, names::<Vec<_>>(&["gone", "there"]), "new ones are never put off");
        known.keep(&asked, [("there".to_owned(), 1)], at(0));
        assert_eq!((known.get("there"), known.get("gone")), (Some(&1), None));
        let mut spare = true;
        assert_eq!(known.due(&all, at(299), &mut spare), names::<Vec<_>>(&[]));
        assert!(spare, "nothing was asked for");
        assert_eq!(known.due(&all, at(300), &mut false), names::<Vec<_>>(&[]));
        assert_eq!(known.due(&all, at(300), &mut spare), names::<Vec<_>>(&["gone"]));
        assert!(!spare);
        let with_new = names(&["gone", "new"]);
        let due = known.due(&with_new, at(300), &mut spare);
        assert_eq!(due, names::<Vec<_>>(&["gone", "new"]), "one call for both");
        assert_eq!(known.get("there"), None, "nothing refers to it");
    }
}
