//! The report as pictures: self-contained SVGs, for light and dark backgrounds.
//!
//! A panel for each node, and the verdict below; or each node by itself. No script, font or link, so they can be shown
//! anywhere. Sizes are in pixels of a picture [`WIDTH`] wide.

mod canvas;
mod panel;

use std::slice;

use self::canvas::Canvas;
use super::verdict::{Check, Number};
use super::{NodeReport, PodEnd, Report};

/// The width of a picture: GitHub shows it in a README without scaling.
const WIDTH: f64 = 830.0;
/// Margin around everything.
const MARGIN: f64 = 16.0;
/// The height of a line of text or of a pod's row.
const ROW: f64 = 18.0;

/// Colours by class, for light and dark backgrounds.
const STYLE: &str = "
text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 } .small { font-size: 11px } .end { text-anchor: end } .middle { text-anchor: middle }
.quiet { fill: #59636e } .good { fill: #1a7f37 } .bad { fill: #cf222e } .strong { font-weight: 600 }
.ground { fill: #ffffff } .panel { fill: #f6f8fa; stroke: #d1d9e0 } .grid { stroke: #d1d9e0 }
.workload { fill: #0969da } .daemon { fill: #2da44e } .leaving { fill: #e8b04b } .cut { fill: #cf222e }
.draining { fill: #ddf4ff } .flushing { fill: #dafbe1 } .releasing { fill: #eaeef2 }
.beat { fill: #bf3989 } .held { stroke: #bf3989; stroke-width: 1.5 } .killed { stroke: #cf222e } .restarted { stroke: #1a7f37 } .mark { stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9198a1 } .good { fill: #3fb950 } .bad { fill: #f85149 }
.ground { fill: #0d1117 } .panel { fill: #151b23; stroke: #3d444d } .grid { stroke: #3d444d }
.workload { fill: #4493f8 } .daemon { fill: #2ea043 } .leaving { fill: #d29922 } .cut { fill: #f85149 }
.draining { fill: #121d2f } .flushing { fill: #12261e } .releasing { fill: #262c36 }
.beat { fill: #db61a2 } .held { stroke: #db61a2 } .killed { stroke: #f85149 } .restarted { stroke: #3fb950 }
}
";

/// A picture of a node's scale-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its place among the scale-ins and its cause: `3-lifecycle-hook`.
    pub name: String,
    /// The SVG.
    pub svg: String,
}

/// A picture of each node.
pub fn pictures(report: &Report) -> Vec<Picture> {
    let picture = |(number, node): (usize, &NodeReport)| {
        let mut canvas = Canvas::default();
        let y = legend(&mut canvas, slice::from_ref(node), MARGIN + ROW / 2.0);
        let height = panel::panel(&mut canvas, node, y + ROW / 2.0) + MARGIN;
        let title =
            format!("A scale-in, cause {}: {}", node.cause, node.scene.as_deref().unwrap_or_default());
        let svg = document(canvas, height, &title);
        Picture { name: format!("{}-{}", number + 1, node.cause), svg }
    };
    report.nodes.iter().enumerate().map(picture).collect()
}

/// The whole report as a picture.
pub fn svg(report: &Report) -> String {
    let mut canvas = Canvas::default();
    let mut y = MARGIN + ROW;
    canvas.text(MARGIN, y, "title", "ebbtide simulate: how each node left");
    y = legend(&mut canvas, &report.nodes, y + ROW);
    for node in &report.nodes {
        y = panel::panel(&mut canvas, node, y + ROW / 2.0);
    }
    y = verdict(&mut canvas, report, y + ROW);
    let outcome = if report.verdict.passed() { "passed" } else { "failed" };
    let count = report.nodes.len();
    let title = format!("Timelines of {count} nodes that were scaled in; the verdict: {outcome}");
    document(canvas, y + MARGIN, &title)
}

fn document(canvas: Canvas, height: f64, title: &str) -> String {
    let title = canvas::clean(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<rect class=\"ground\" \
         width=\"{WIDTH}\" height=\"{height}\"/>\n{}</svg>\n",
        canvas.finish()
    )
}

/// What the colours mean that these nodes' panels have.
fn legend(canvas: &mut Canvas, nodes: &[NodeReport], y: f64) -> f64 {
    let is_cut = |node: &NodeReport| node.pods.iter().any(|pod| pod.end.is_some_and(PodEnd::is_cut_short));
    let entries = [
        ("workload", "workload runs", true),
        ("daemon", "DaemonSet pod runs", true),
        ("leaving", "asked to go, until it exits", true),
        ("cut", "cut short", nodes.iter().any(is_cut)),
        ("beat", "heartbeat of the hook", nodes.iter().any(|node| !node.heartbeats.is_empty())),
    ];
    let mut x = MARGIN;
    for (class, words, _) in entries.into_iter().filter(|(_, _, is_there)| *is_there) {
        canvas.rect([x, y - 9.0, 14.0, 9.0], class, None);
        canvas.text(x + 20.0, y, "small quiet", words);
        // About 6 pixels per letter, and some space.
        x += 40.0 + 6.0 * words.len() as f64;
    }
    y
}

fn verdict(canvas: &mut Canvas, report: &Report, mut y: f64) -> f64 {
    let passed = report.verdict.passed();
    let (words, class) =
        if passed { ("Verdict: passed", "title good") } else { ("Verdict: FAILED", "title bad") };
    y += ROW / 2.0;
    canvas.text(MARGIN, y, class, words);
    for check in &report.verdict.checks {
        y += ROW;
        let (mark, class) = if check.passed { ("✓", "good") } else { ("✗", "bad") };
        canvas.text(MARGIN, y, class, mark);
        canvas.text(MARGIN + 20.0, y, "", check.name);
        canvas.text(MARGIN + 420.0, y, "end strong", &found(check));
        canvas.text(MARGIN + 436.0, y, "quiet", &check.detail);
    }
    y
}

fn found(check: &Check) -> String {
    match check.found {
        Number::Count(count) => count.to_string(),
        Number::Span(Some(span)) => format!("{:.3} s", span.as_f64()),
        Number::Span(None) => "–".to_owned(),
    }
}
