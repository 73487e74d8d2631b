//! Selects groups by tags.

use std::collections::BTreeMap;

/// Selects the groups that have all these tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagSelector {
    /// Values by key; `None` matches any value.
    pub tags: BTreeMap<String, Option<String>>,
}

impl TagSelector {
    /// Whether a group with these tags is selected.
    pub fn matches(&self, tags: &BTreeMap<String, String>) -> bool {
        self.tags.iter().all(|(key, wanted)| {
            tags.get(key).is_some_and(|value| wanted.as_ref().is_none_or(|wanted| wanted == value))
        })
    }
}
