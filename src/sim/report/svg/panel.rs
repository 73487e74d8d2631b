//! The panel of one node: phases as bands, a row for each pod, marks, and a time axis.

use std::fmt::Write as _;

use super::canvas::Canvas;
use super::{MARGIN, ROW, WIDTH};
use crate::scale_in::record::Phase;
use crate::sim::report::bars::{PodBar, PodEnd};
use crate::sim::report::facts::Program;
use crate::sim::report::node::{Kind, NodeReport};
use crate::sim::report::seconds::Seconds;
use crate::sim::report::short;
use crate::sim::report::text::heading;

/// Where pod names end and the time axis begins.
const LEFT: f64 = 180.0;
const RIGHT: f64 = WIDTH - MARGIN - 24.0;
const BAR: f64 = 10.0;

/// Intervals of ticks, in seconds; the first that gives few enough ticks is used.
const STEPS: [u32; 13] = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200];
const MOST_TICKS: f64 = 12.0;

/// Maps moments to pixels.
#[derive(Clone, Copy)]
struct Axis {
    seconds: f64,
}

impl Axis {
    fn x(self, at: Seconds) -> f64 {
        self.x_of(at.as_f64())
    }

    fn x_of(self, seconds: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (seconds / self.seconds).clamp(0.0, 1.0)
    }

    /// Spans beyond the largest interval get twelve ticks.
    fn step(self) -> f64 {
        let fits = |step: &f64| self.seconds / step <= MOST_TICKS;
        STEPS.into_iter().map(f64::from).find(fits).unwrap_or(self.seconds / MOST_TICKS)
    }
}

/// Draws a node from `top` down; returns where the panel ends.
pub(super) fn panel(canvas: &mut Canvas, node: &NodeReport, top: f64) -> f64 {
    let axis = Axis { seconds: node.span.as_f64().max(1.0) };
    let hook = if node.held_by_hook { ROW } else { 0.0 };
    let scene = if node.scene.is_some() { ROW } else { 0.0 };
    let rows = top + ROW * 2.5 + scene;
    let program = if node.program.is_empty() { 0.0 } else { ROW };
    let bottom = rows + ROW * node.pods.len() as f64 + hook + program;
    let end = bottom + ROW * 1.5;
    canvas.rect([MARGIN, top, WIDTH - 2.0 * MARGIN, end - top], "panel", None);
    canvas.text(
        MARGIN + 12.0,
        top + ROW,
        "strong",
        &heading(node).map(|part| part.trim().to_owned()).join(" · "),
    );
    if let Some(title) = &node.scene {
        canvas.text(MARGIN + 12.0, top + 2.0 * ROW, "small quiet", title);
    }
    bands(canvas, node, axis, rows - ROW, bottom);
    ticks(canvas, axis, rows, bottom);
    for (number, pod) in node.pods.iter().enumerate() {
        row(canvas, pod, node.span, axis, rows + ROW * number as f64);
    }
    if node.held_by_hook {
        held(canvas, node, axis, bottom - program - ROW / 2.0);
    }
    lives(canvas, node, axis, rows, bottom);
    end
}

/// The row of the program: when it was killed and when one was there again, across all rows.
fn lives(canvas: &mut Canvas, node: &NodeReport, axis: Axis, top: f64, bottom: f64) {
    let line = bottom - ROW / 2.0 + 4.0;
    if !node.program.is_empty() {
        canvas.text(LEFT - 10.0, line, "small quiet end", "ebbtide");
    }
    for mark in &node.program {
        let (class, words, side, gap) = match mark.what {
            Program::Killed => ("mark killed", "killed", "small quiet end", -3.0),
            Program::Restarted => ("mark restarted", "started", "small quiet", 3.0),
            Program::TookOver => ("mark restarted", "another leads", "small quiet", 3.0),
        };
        let x = axis.x(mark.at);
        canvas.upright(x, top, bottom, class);
        canvas.text(x + gap, line, side, words);
    }
}

/// The row of the hook: a line while it holds the instance, a dot for each heartbeat, and how it ended.
fn held(canvas: &mut Canvas, node: &NodeReport, axis: Axis, middle: f64) {
    canvas.text(LEFT - 10.0, middle + 4.0, "small quiet end", "lifecycle hook");
    let when = |kind| node.lines.iter().find(|line| line.kind == kind).map(|line| axis.x(line.at));
    let from = when(Kind::Held).unwrap_or(LEFT);
    let ends = [(Kind::TimedOut, "timed out"), (Kind::Released, "completed")];
    let end = ends.into_iter().find_map(|(kind, words)| Some((when(kind)?, words)));
    canvas.level(middle, from, end.map_or(RIGHT, |(to, _)| to), "held");
    for beat in &node.heartbeats {
        canvas.dot(axis.x(*beat), middle, "beat");
    }
    if let Some((to, words)) = end {
        canvas.upright(to, middle - 4.0, middle + 4.0, "held");
        canvas.text(to + 4.0, middle + 4.0, "small quiet", words);
    }
}

fn bands(canvas: &mut Canvas, node: &NodeReport, axis: Axis, top: f64, bottom: f64) {
    // Where the names before end.
    let mut taken = LEFT;
    for span in &node.phases {
        let (from, to) = (axis.x(span.from), axis.x(span.to));
        let class = match span.phase {
            Phase::Draining => "draining",
            Phase::Flushing => "flushing",
            Phase::Releasing => "releasing",
        };
        let told = format!("{} from {} s to {} s", span.phase, span.from, span.to);
        canvas.rect([from, top, to - from, bottom - top], class, Some(&told));
        let name = span.phase.to_string();
        // About 6.5 pixels per letter.
        let width = 6.5 * name.len() as f64;
        if to - from > width {
            canvas.text(from + 4.0, top + 13.0, "small quiet", &name);
            taken = from + 4.0 + width;
        } else if to - width > taken {
            // Too narrow: the name begins over the band before.
            canvas.text(to - 2.0, top + 13.0, "small quiet end", &name);
            taken = to;
        }
    }
}

fn ticks(canvas: &mut Canvas, axis: Axis, top: f64, bottom: f64) {
    let step = axis.step();
    let mut number = 0.0;
    while number * step <= axis.seconds {
        let x = axis.x_of(number * step);
        canvas.upright(x, top, bottom, "grid");
        canvas.text(x, bottom + 14.0, "small quiet middle", &format!("{:.0} s", number * step));
        number += 1.0;
    }
}

fn row(canvas: &mut Canvas, pod: &PodBar, span: Seconds, axis: Axis, top: f64) {
    canvas.text(LEFT - 10.0, top + 13.0, "small end", &short::fit(&pod.pod, 30));
    let gone = pod.gone.unwrap_or(span);
    let asked = pod.asked.unwrap_or(gone).min(gone).max(pod.from.min(gone));
    let (from, asked_at, to) = (axis.x(pod.from), axis.x(asked), axis.x(gone));
    let y = top + (ROW - BAR) / 2.0;
    let tooltip = tooltip(pod);
    let class = if pod.daemon { "daemon" } else { "workload" };
    canvas.rect([from, y, asked_at - from, BAR], class, Some(&tooltip));
    canvas.rect([asked_at, y, to - asked_at, BAR], "leaving", Some(&tooltip));
    if pod.end.is_some_and(PodEnd::is_cut_short) {
        canvas.rect([to - 2.0, y - 3.0, 4.0, BAR + 6.0], "cut", Some(&tooltip));
    }
}

/// The tooltip of a pod's row.
fn tooltip(pod: &PodBar) -> String {
    // Writing to a String cannot fail.
    let mut words = pod.pod.clone();
    if let (Some(asked), Some(grace)) = (pod.asked, pod.grace) {
        let _ = write!(words, ", asked at {asked} s (grace {grace} s)");
    }
    if let (Some(gone), Some(end)) = (pod.gone, pod.end) {
        let cut = if end.is_cut_short() { "cut short, " } else { "" };
        let _ = write!(words, ", at {gone} s {cut}{}", end.words());
    }
    words
}
