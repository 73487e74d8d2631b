//! Shares the text of labels and resources between Nodes.
//!
//! A Node has some 25 labels and 15 quantities, nearly all of them equal on every Node of its group. [`Interner`] keeps
//! each text once, so that a Node's map is a list of pointers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// A small map of text, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextMap(Box<[(Arc<str>, Arc<str>)]>);

impl TextMap {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for TextMap {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        let sorted: BTreeMap<Arc<str>, Arc<str>> =
            pairs.into_iter().map(|(key, value)| (key.as_ref().into(), value.as_ref().into())).collect();
        Self(sorted.into_iter().collect())
    }
}

/// The shared texts.
#[derive(Debug, Default)]
pub(super) struct Interner {
    known: HashSet<Arc<str>>,
    /// At this number, texts that nobody uses any more are removed.
    limit: usize,
}

/// Below this number, removing unused texts is not worth it.
const FEW: usize = 1024;

impl Interner {
    /// Replaces the texts of `pairs` by the shared ones.
    pub(super) fn share(&mut self, pairs: &mut TextMap) {
        for (key, value) in &mut pairs.0 {
            for text in [key, value] {
                match self.known.get(text) {
                    Some(known) => *text = Arc::clone(known),
                    None => {
                        self.known.insert(Arc::clone(text));
                    }
                }
            }
        }
        if self.known.len() > self.limit.max(FEW) {
            self.known.retain(|text| Arc::strong_count(text) > 1);
            self.limit = 2 * self.known.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_found_by_its_key() {
        let pairs: TextMap = [("b", "2"), ("a", "1"), ("c", "3")].into_iter().collect();
        assert_eq!((pairs.get("a"), pairs.get("c"), pairs.get("d")), (Some("1"), Some("3"), None));
        assert_eq!(pairs.iter().map(|(key, _)| key).collect::<String>(), "abc");
    }

    #[test]
    fn a_text_is_kept_once_and_no_longer_than_it_is_used() {
        let mut words = Interner::default();
        let mut of = |n: usize| {
            let mut pairs: TextMap =
                [("name", format!("node-{n}")), ("pool", "web".to_owned())].into_iter().collect();
            words.share(&mut pairs);
            pairs
        };
        let (a, b) = (of(1), of(2));
        assert!(std::ptr::eq(a.get("pool").unwrap_or_default(), b.get("pool").unwrap_or_default()));
        for n in 0..10 * FEW {
            drop(of(n));
        }
        assert!(words.known.len() <= 2 * FEW, "{}", words.known.len());
        assert_eq!(a.get("name"), Some("node-1"));
    }
}
