//! The report for a terminal: at most 100 columns, plain letters and a few box characters, optional colours.

use std::fmt::Write as _;

use super::Report;
use super::arrivals::Arrival;
use super::bars::PodBar;
use super::node::{Kind, Line, NodeReport, PhaseSpan};
use super::seconds::Seconds;
use super::short;
use super::verdict::{Number, Verdict};

/// The widest line.
pub(super) const WIDTH: usize = 100;

/// The cells of a bar: [`WIDTH`] less a pod's name and two numbers.
const CELLS: usize = 52;

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// The whole report. `colours`: whether it goes to a terminal.
pub fn text(report: &Report, colours: bool) -> String {
    let mut page = Page { out: String::new(), colours };
    page.scenes(report);
    page.arrivals(&report.arrivals);
    for node in &report.nodes {
        page.node(node);
    }
    page.verdict(&report.verdict);
    page.out
}

struct Page {
    out: String,
    colours: bool,
}

impl Page {
    fn line(&mut self, text: &str, colour: &str) {
        let text = short::fit(text.trim_end(), WIDTH);
        if self.colours && !colour.is_empty() && !text.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(self.out, "\u{1b}[{colour}m{text}\u{1b}[0m");
        } else {
            self.out.push_str(&text);
            self.out.push('\n');
        }
    }

    fn scenes(&mut self, report: &Report) {
        for scene in &report.scenes {
            self.line(&format!("{:>7}  {}", scene.at, scene.title), "");
        }
        if !report.scenes.is_empty() {
            self.line("", "");
        }
    }

    fn arrivals(&mut self, arrivals: &[Arrival]) {
        if arrivals.is_empty() {
            return;
        }
        self.line("Nodes that came up (seconds after the launch)", BOLD);
        let head = ["launched at", "in service", "registered", "first workload"];
        self.line(
            &format!("  {:<24}{:<14}{:>12}{:>12}{:>12}{:>16}", "", "", head[0], head[1], head[2], head[3]),
            DIM,
        );
        let shown = |at: Option<Seconds>| at.map_or("-".to_owned(), |at| at.to_string());
        for arrival in arrivals {
            let name = arrival.node.clone().unwrap_or_else(|| short::instance(&arrival.instance));
            let line = format!(
                "  {:<24}{:<14}{:>12}{:>12}{:>12}{:>16}",
                short::fit(&name, 23),
                short::fit(&arrival.group, 13),
                arrival.launched,
                shown(arrival.in_service),
                shown(arrival.registered),
                shown(arrival.first_workload),
            );
            self.line(&line, "");
        }
        self.line("", "");
    }

    fn node(&mut self, node: &NodeReport) {
        self.line(&heading(node).join("  "), BOLD);
        for line in &node.lines {
            self.line(&format!("{:>8}  {}", line.at, line.text), colour_of(line));
        }
        let end = node.span;
        if let Some(band) = band(&node.phases, end) {
            self.line(&format!("  {:<24} {band}", ""), DIM);
        }
        for pod in &node.pods {
            let cut = pod.end.is_some_and(super::PodEnd::is_cut_short);
            let colour = if cut { RED } else { "" };
            self.line(&bar_line(pod, end), colour);
        }
        self.line("", "");
    }

    fn verdict(&mut self, verdict: &Verdict) {
        let width = verdict.checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
        self.line(if verdict.passed() { "Verdict: passed" } else { "Verdict: FAILED" }, BOLD);
        for check in &verdict.checks {
            let found = match check.found {
                Number::Count(count) => count.to_string(),
                Number::Span(Some(span)) => format!("{:.3} s", span.as_f64()),
                Number::Span(None) => "-".to_owned(),
            };
            let (mark, colour) = if check.passed { ("ok  ", GREEN) } else { ("FAIL", RED) };
            self.line(&format!("  {mark}  {:<width$}{found:>9}  {}", check.name, check.detail), colour);
        }
    }
}

/// Node, cause and duration.
pub(super) fn heading(node: &NodeReport) -> [String; 5] {
    let hook = if node.held_by_hook { "hook" } else { "no hook" };
    [
        node.node.clone(),
        short::instance(&node.instance),
        format!("group {} ({hook})", node.group),
        format!("cause {}", node.cause),
        node.took.map_or("not gone".to_owned(), |took| format!("{:>8}", format!("{took} s"))),
    ]
}

fn colour_of(line: &Line) -> &'static str {
    match line.kind {
        kind if kind.is_bad() => RED,
        Kind::Refused | Kind::CallFailed | Kind::Program => YELLOW,
        Kind::Released | Kind::Phase => GREEN,
        Kind::Heartbeats | Kind::Said | Kind::Marked => DIM,
        _ => "",
    }
}

/// The cell in which a moment falls.
fn cell(at: Seconds, end: Seconds) -> usize {
    if end <= Seconds::default() {
        return 0;
    }
    let share = (at.as_f64() / end.as_f64()).clamp(0.0, 1.0);
    (share * CELLS as f64).round() as usize
}

/// `├ Draining ────┼ Flushing ─┤`
fn band(phases: &[PhaseSpan], end: Seconds) -> Option<String> {
    let (first, last) = (phases.first()?, phases.last()?);
    let mut band = " ".repeat(cell(first.from, end));
    for (number, span) in phases.iter().enumerate() {
        let room = cell(span.to, end) - cell(span.from, end).min(cell(span.to, end));
        let corner = if number == 0 { '├' } else { '┼' };
        let inside = room.saturating_sub(1);
        // Phases' names are ASCII: one byte per letter.
        let mut name = format!(" {} ", span.phase);
        if name.len() > inside {
            name = name.trim().chars().take(inside).collect();
        }
        if room > 0 {
            band.push(corner);
            band.extend(name.chars().chain(std::iter::repeat_n('─', inside - name.len())));
        }
    }
    if last.to > first.from {
        band.push('┤');
    }
    Some(band)
}

/// A pod: `━` runs, `░` was asked to go, `┤` exited, `X` was cut short, `▶` runs on.
fn bar_line(pod: &PodBar, end: Seconds) -> String {
    let from = cell(pod.from, end).min(CELLS - 1);
    let gone = cell(pod.gone.unwrap_or(end), end).max(from + 1);
    let asked = pod.asked.map_or(gone, |asked| cell(asked, end)).clamp(from, gone);
    let tip = match pod.end {
        None => '▶',
        Some(end) if end.is_cut_short() => 'X',
        Some(_) => '┤',
    };
    let mut bar = " ".repeat(from);
    bar.push_str(&"━".repeat(asked - from));
    bar.push_str(&"░".repeat(gone - asked));
    bar.pop();
    bar.push(tip);
    let bar = format!("{bar:<CELLS$}");
    let kind = if pod.daemon { "  DaemonSet" } else { "" };
    let gone = pod.gone.map_or("-".to_owned(), |gone| gone.to_string());
    format!("  {:<24} {bar} {gone:>7}{kind}", short::fit(&pod.pod, short::NAME))
}
