//! The instance types that match groups' attributes.
//!
//! - A new set of attributes is asked for at once; an old list is refreshed when the call can be spared, one a refresh.
//! - Sets fail independently. A refused one is left alone for [`MISSING`]; its last list serves meanwhile.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;

use super::cache::{MISSING, Round};
use crate::aws::{AwsError, Requirements};
use crate::clock::{later, signed};

/// How long a list of types serves: AWS adds types every few weeks.
const MATCHES: Duration = Duration::from_hours(24);
/// Sets asked for at once.
const AT_ONCE: usize = 8;

/// A set of attributes, and whether the image is arm64.
pub(super) type Key = (String, bool);

/// The types that match each set of attributes.
#[derive(Debug, Default)]
pub(super) struct AttributeSelection(BTreeMap<Key, Known>);

#[derive(Debug)]
struct Known {
    /// The types; `None` if AWS never told them.
    types: Option<Vec<String>>,
    /// When to ask for them again.
    due: Timestamp,
}

impl AttributeSelection {
    /// The types that match, if known.
    pub(super) fn get(&self, key: &Key) -> Option<&[String]> {
        self.0.get(key)?.types.as_deref()
    }

    /// Asks for what is due, and forgets all other keys. Returns the first error; the other calls are made all the same.
    pub(super) async fn refresh(
        &mut self,
        mut wanted: BTreeMap<Key, Requirements>,
        round: &mut Round<'_>,
    ) -> Result<(), AwsError> {
        self.0.retain(|key, _| wanted.contains_key(key));
        let (aws, now) = (round.aws, round.now);
        let due = self.due(wanted.keys(), now, &mut round.spare);
        let due: Vec<_> = due.into_iter().filter_map(|key| wanted.remove_entry(&key)).collect();
        let told = futures::stream::iter(due).map(|(key, requirements)| async move {
            let told = aws.instance_types_from_requirements(&requirements, key.1).await;
            (key, told)
        });
        let mut told = pin!(told.buffer_unordered(AT_ONCE));
        let mut outcome = Ok(());
        while let Some((key, told)) = told.next().await {
            round.answers += usize::from(told.is_ok());
            outcome = outcome.and(self.learn(key, told, now));
        }
        outcome
    }

    /// All new keys, or else the most overdue one if the call can be spared.
    fn due<'a>(&self, keys: impl Iterator<Item = &'a Key>, now: Timestamp, spare: &mut bool) -> Vec<Key> {
        let is_due = |key: &&Key| self.0.get(*key).is_none_or(|known| known.due <= now);
        let (old, new): (Vec<&Key>, Vec<&Key>) =
            keys.filter(is_due).partition(|&key| self.get(key).is_some());
        let oldest = old.into_iter().min_by_key(|&key| self.0.get(key).map(|known| known.due));
        let oldest = oldest.filter(|_| std::mem::take(spare));
        new.into_iter().chain(oldest).cloned().collect()
    }

    fn learn(
        &mut self,
        key: Key,
        told: Result<Vec<String>, AwsError>,
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let error = match told {
            Ok(types) => {
                self.0.insert(key, Known { types: Some(types), due: later(now, signed(MATCHES)) });
                return Ok(());
            }
            Err(error) => error,
        };
        // A refusal will not change within a minute.
        let due = if error.is_transient() { now } else { later(now, signed(MISSING)) };
        match self.0.get_mut(&key) {
            // Moved behind the other due keys, so that it does not block them.
            Some(known) => known.due = due,
            None if error.is_transient() => {}
            None => {
                self.0.insert(key, Known { types: None, due });
            }
        }
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::Operation;

    const DAY: i64 = 24 * 3600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("in range")
    }

    fn keys(names: &[&str]) -> Vec<Key> {
        names.iter().map(|&name| (name.to_owned(), false)).collect()
    }

    fn refused(code: &str) -> Result<Vec<String>, AwsError> {
        let operation = Operation::GetInstanceTypesFromInstanceRequirements;
        Err(AwsError::of_service(operation, 400, code, ""))
    }

    fn types(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    #[test]
    fn a_refused_set_is_left_alone_and_the_others_are_not() {
        let mut matches = AttributeSelection::default();
        let all = keys(&["a", "b", "c"]);
        assert_eq!(matches.due(all.iter(), at(0), &mut false), all, "all at once");
        let _ = matches.learn(all[0].clone(), refused("InvalidParameterValue"), at(0));
        let _ = matches.learn(all[1].clone(), refused("RequestLimitExceeded"), at(0));
        let _ = matches.learn(all[2].clone(), Ok(types("m5.large")), at(0));
        assert_eq!(matches.due(all.iter(), at(1), &mut false), keys(&["b"]));
        assert_eq!(matches.due(all.iter(), at(300), &mut false), keys(&["a", "b"]));
    }

    #[test]
    fn old_lists_are_refreshed_one_a_refresh_and_serve_until_then() {
        let mut matches = AttributeSelection::default();
        let all = keys(&["a", "b", "c"]);
        for key in &all {
            matches.learn(key.clone(), Ok(types("m5.large")), at(0)).expect("learned");
        }
        assert_eq!(matches.due(all.iter(), at(DAY - 1), &mut true), keys(&[]));
        assert_eq!(matches.due(all.iter(), at(DAY), &mut false), keys(&[]), "no call to spare");
        let mut spare = true;
        assert_eq!(matches.due(all.iter(), at(DAY), &mut spare), keys(&["a"]));
        assert!(!spare);
        for code in ["RequestLimitExceeded", "InvalidParameterValue"] {
            let _ = matches.learn(all[0].clone(), refused(code), at(DAY + 60));
            assert_eq!(matches.get(&all[0]), Some(&types("m5.large")[..]), "{code}");
            assert_eq!(matches.due(all.iter(), at(DAY + 60), &mut true), keys(&["b"]), "{code}: its turn");
        }
    }
}
