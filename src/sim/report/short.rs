//! Shortens names and texts.

use crate::sim::cluster::Name;

/// Longest pod name shown whole; a Deployment's pod has about 25 letters.
pub(super) const NAME: usize = 24;

/// A pod's name. A long one loses its middle: both ends tell pods apart.
pub(super) fn pod(name: &Name) -> String {
    middle(&name.to_string(), NAME)
}

/// An instance id without its middle.
pub(super) fn instance(id: &str) -> String {
    middle(id, 12)
}

fn middle(text: &str, room: usize) -> String {
    let count = text.chars().count();
    if count <= room {
        return text.to_owned();
    }
    let tail = (room - 1) / 3;
    let head: String = text.chars().take(room - 1 - tail).collect();
    let tail: String = text.chars().skip(count - tail).collect();
    format!("{head}…{tail}")
}

/// A text of at most `room` letters, on one line.
pub(super) fn fit(text: &str, room: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().count() <= room {
        return text;
    }
    let mut cut: String = text.chars().take(room.saturating_sub(1)).collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// `1 pod`, `2 pods`.
pub(super) fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}
