//! Merges what was learned since the start with what an earlier run had learned.
//!
//! If both have seen settled nodes, the result is as if one run had seen them all; if only one has, it wins.

use super::{Given, Learned, sort, speak_for_all};
use crate::k8s::Taint;

impl Learned {
    /// What both runs have learned, if about the same launch templates or `self` has seen no node; else `self`, with what in `earlier`
    /// does not depend on them.
    #[must_use]
    pub fn merged(&self, earlier: &Self) -> Self {
        if !self.has_seen_nodes() {
            let mut merged = earlier.clone();
            if self.given != Given::default() {
                merged.remember(&self.answer_of_eks());
            }
            return merged;
        }
        let mut merged = self.clone();
        if self.revisions != earlier.revisions {
            merged.keep_of(earlier);
            return merged;
        }
        for (name, kib) in &earlier.memory {
            merged.memory.entry(name.clone()).or_insert(*kib);
        }
        for (name, figures) in &earlier.types {
            merged.types.entry(name.clone()).or_insert_with(|| figures.clone());
        }
        merged.varying.extend(earlier.varying.iter().cloned());
        self.merge_labels(earlier, &mut merged);
        merged.taints = self.merged_taints(earlier);
        merged.settled.extend(earlier.settled.iter().cloned());
        merged.given.labels.extend(earlier.given.labels.iter().cloned());
        merged.given.taints.extend(earlier.given.taints.iter().cloned());
        merged
    }

    fn merge_labels(&self, earlier: &Self, merged: &mut Self) {
        let speak_for_all = speak_for_all(&self.settled, &earlier.settled);
        merged.labels.clear();
        let others = earlier.labels.keys().filter(|key| !self.labels.contains_key(*key));
        for key in self.labels.keys().chain(others) {
            let (ours, theirs) = (self.labels.get(key), earlier.labels.get(key));
            let value = if self.given.labels.contains(key) {
                ours
            } else if earlier.given.labels.contains(key) || self.settled.is_empty() {
                theirs
            } else if earlier.settled.is_empty() {
                ours
            } else if ours.is_some() && theirs.is_some() && ours != theirs {
                merged.varying.insert(key.clone());
                None
            } else {
                ours.filter(|_| theirs.is_some() || speak_for_all)
            };
            let is_of_eks = self.given.labels.contains(key) || earlier.given.labels.contains(key);
            if let Some(value) = value.filter(|_| is_of_eks || !merged.varying.contains(key)) {
                merged.labels.insert(key.clone(), value.clone());
            }
        }
    }

    fn merged_taints(&self, earlier: &Self) -> Vec<Taint> {
        let is_in = |of: &Self, taint: &Taint| {
            of.taints.iter().any(|other| other.key == taint.key && other.effect == taint.effect)
        };
        let stays = |taint: &&Taint| {
            if self.given.taints.contains(&taint.key) {
                is_in(self, taint)
            } else if earlier.given.taints.contains(&taint.key) || self.settled.is_empty() {
                is_in(earlier, taint)
            } else {
                is_in(self, taint) && (earlier.settled.is_empty() || is_in(earlier, taint))
            }
        };
        let others = earlier.taints.iter().filter(|taint| !is_in(self, taint));
        let mut merged: Vec<_> = self.taints.iter().chain(others).filter(stays).cloned().collect();
        sort(&mut merged);
        merged
    }
}
