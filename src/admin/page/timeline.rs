//! The timeline of a scale-in, as SVG. All of a page share one axis, so that they can be compared.

use jiff::Timestamp;

use super::html::{Html, lasted};
use crate::clock::elapsed;
use crate::scale_in::status::{ScaleIn, Stage};

/// The least that an axis spans: a scale-in that has just begun is to be seen as short.
const SHORTEST: f64 = 60.0;

/// The share of the axis that lies ahead of now, in percent: for deadlines that come soon.
const AHEAD: f64 = 12.0;

/// From the beginning of the oldest scale-in to a little after now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    start: Timestamp,
    now: Timestamp,
    seconds: f64,
}

impl Axis {
    /// The axis of these scale-ins.
    pub(super) fn of(scale_ins: &[ScaleIn], now: Timestamp) -> Self {
        let start = scale_ins.iter().filter_map(|one| one.requested_at).min().unwrap_or(now).min(now);
        Self { start, now, seconds: elapsed(start, now).as_secs_f64().max(SHORTEST) }
    }

    /// Where a moment is, in percent; `None` if it lies beyond the end.
    fn place(self, at: Timestamp) -> Option<f64> {
        let percent = elapsed(self.start, at).as_secs_f64() / self.seconds * (100.0 - AHEAD);
        (percent <= 100.0).then_some(percent)
    }
}

/// Draws a scale-in's phases, now and its limits.
pub(super) fn draw(html: &mut Html, one: &ScaleIn, axis: Axis) {
    html.raw("<svg class=\"timeline\" role=\"img\" width=\"100%\" height=\"22\"><title>");
    let mut between = "";
    for stage in &one.stages {
        html.raw(between).text(stage.phase).raw(" for ").text(lasted(stage.seconds));
        between = ", ";
    }
    html.raw("</title><line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"11\" y2=\"11\"/>");
    for stage in &one.stages {
        bar(html, stage, axis);
    }
    mark(html, "now", axis.now, axis);
    for limit in [one.release_by, one.ends_at].into_iter().flatten() {
        mark(html, "limit", limit, axis);
    }
    html.raw("</svg>");
}

fn bar(html: &mut Html, stage: &Stage, axis: Axis) {
    let end = axis.place(stage.until.unwrap_or(axis.now)).unwrap_or(100.0);
    let Some(start) = axis.place(stage.since) else { return };
    html.raw("<rect class=\"").text(stage.phase).raw("\" rx=\"3\" y=\"4\" height=\"14\" x=\"").number(start);
    html.raw("%\" width=\"").number((end - start).max(0.4)).raw("%\"/>");
}

fn mark(html: &mut Html, class: &'static str, at: Timestamp, axis: Axis) {
    let Some(x) = axis.place(at) else { return };
    html.raw("<line class=\"").raw(class).raw("\" y1=\"0\" y2=\"22\" x1=\"").number(x).raw("%\" x2=\"");
    html.number(x).raw("%\"/>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_its_place_and_one_far_ahead_has_none() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let axis = Axis { start: at(0), now: at(88), seconds: 88.0 };
        assert_eq!(axis.place(at(44)), Some(44.0));
        assert_eq!(axis.place(at(-5)), Some(0.0), "before the start");
        assert_eq!((axis.place(at(88)), axis.place(at(101))), (Some(88.0), None));
        assert_eq!(axis.place(Timestamp::MAX), None);
    }
}
