//! Memory and descriptors over time.

use std::time::Duration;

use crate::child::Look;

/// What the last quarter may have over the second, which is after the program has warmed up.
const GROWTH: f64 = 1.05;
/// Connections come and go.
const DESCRIPTORS: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Look>);

impl Samples {
    pub(crate) fn add(&mut self, at: Duration, look: Look, told: &str) {
        if self.0.len().is_multiple_of(6) {
            println!(
                "{:>5} s  {:>6} KiB  {:>3} descriptors  {told}",
                at.as_secs(),
                look.rss,
                look.descriptors
            );
        }
        self.0.push(look);
    }

    /// Whether the last quarter is as the second.
    pub(crate) fn are_flat(&self) -> bool {
        let quarters: Vec<(u64, usize)> = self
            .0
            .chunks(self.0.len().div_ceil(4).max(1))
            .map(|quarter| (rss(quarter), descriptors(quarter)))
            .collect();
        println!("medians of quarters, KiB and descriptors: {quarters:?}");
        let [_, second, _, last] = quarters[..] else { return false };
        println!("last / second: {:.3}", last.0 as f64 / second.0 as f64);
        last.0 as f64 <= second.0 as f64 * GROWTH && last.1 <= second.1 + DESCRIPTORS
    }
}

fn rss(looks: &[Look]) -> u64 {
    median(looks.iter().map(|look| look.rss))
}

fn descriptors(looks: &[Look]) -> usize {
    median(looks.iter().map(|look| look.descriptors))
}

fn median<T: Ord + Copy + Default>(of: impl Iterator<Item = T>) -> T {
    let mut all: Vec<T> = of.collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}
