//! Shares the text of labels and resources between Nodes.
//!
//! A Node has some 25 labels and 15 quantities, nearly all of them equal on every Node of its group. [`Interner`] keeps
//! each pair once, so that a Node's map is a list of pointers; and each map of quantities once, as all Nodes of a type have the same.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// A small map of text, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TextMap(Arc<[Arc<Pair>]>);

/// A key and its value.
type Pair = (Box<str>, Box<str>);

impl TextMap {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|pair| (*pair.0).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|pair| (&*pair.0, &*pair.1))
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for TextMap {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        let sorted: BTreeMap<Box<str>, Box<str>> =
            pairs.into_iter().map(|(key, value)| (key.as_ref().into(), value.as_ref().into())).collect();
        Self(sorted.into_iter().map(Arc::new).collect())
    }
}

/// The shared pairs.
#[derive(Debug, Default)]
pub(super) struct Interner {
    known: HashSet<Arc<Pair>>,
    maps: HashSet<TextMap>,
    /// At this number, pairs and maps that nobody uses any more are removed.
    limit: usize,
}

/// Below this number, removing unused pairs is not worth it.
const FEW: usize = 1024;

impl Interner {
    /// Replaces `pairs` by the shared ones. Nothing is done to a map that is shared already.
    pub(super) fn share(&mut self, pairs: &mut TextMap) {
        for pair in Arc::get_mut(&mut pairs.0).into_iter().flatten() {
            match self.known.get(pair) {
                Some(known) => *pair = Arc::clone(known),
                None => {
                    self.known.insert(Arc::clone(pair));
                }
            }
        }
        if self.known.len() + self.maps.len() > self.limit.max(FEW) {
            // Maps first: they hold pairs.
            self.maps.retain(|map| Arc::strong_count(&map.0) > 1);
            self.known.retain(|pair| Arc::strong_count(pair) > 1);
            self.limit = 2 * (self.known.len() + self.maps.len());
        }
    }

    /// Replaces the whole map by a shared one.
    pub(super) fn share_whole(&mut self, pairs: &mut TextMap) {
        if let Some(known) = self.maps.get(pairs) {
            pairs.clone_from(known);
        } else {
            self.share(pairs);
            self.maps.insert(pairs.clone());
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
    fn a_map_that_many_have_is_kept_once_and_no_longer_than_it_is_used() {
        let mut words = Interner::default();
        let mut of = |cpu: usize| {
            let mut pairs: TextMap = [("cpu", cpu.to_string())].into_iter().collect();
            words.share_whole(&mut pairs);
            pairs
        };
        let (a, b) = (of(4), of(4));
        assert!(Arc::ptr_eq(&a.0, &b.0));
        for cpu in 0..10 * FEW {
            drop(of(cpu));
        }
        words.share(&mut [("one", "more")].into_iter().collect());
        assert!(words.maps.len() + words.known.len() <= 2 * FEW, "{}", words.maps.len());
        assert_eq!((a.get("cpu"), words.maps.contains(&a)), (Some("4"), true));
    }

    #[test]
    fn a_pair_is_kept_once_and_no_longer_than_it_is_used() {
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
