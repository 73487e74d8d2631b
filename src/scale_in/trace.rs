//! The trace of a scale-in that has ended: itself, its phases, and in them what was asked of AWS and of pods.
//!
//! Made at the end, from what was kept of it: a scale-in lasts for hours and outlives processes. Its id comes from the instance and
//! the moment of the request, so that it is the same whoever tells it. Pure.

use jiff::Timestamp;

use super::history::{Ending, Past, Step, with_ends};
use crate::telemetry::traces::{Span, Trace, TraceId};

/// The trace of a scale-in.
pub(super) fn of(past: &Past) -> Trace {
    let record = &past.course.record;
    let id = TraceId::of(&format!("{} {}", record.instance.as_str(), record.requested_at));
    let stages = with_ends(&past.course.stages, past.at);
    let mut phases: Vec<Span> =
        stages.map(|(phase, since, until)| span(phase.as_str(), since, until)).collect();
    for step in &past.course.steps {
        // What was answered later than it was asked for belongs to the phase that asked.
        let at = phases.iter().rposition(|phase| phase.begin <= step.began).unwrap_or(0);
        if let Some(phase) = phases.get_mut(at) {
            add(phase, step);
        }
    }
    // Semantic conventions have names for the first three: https://opentelemetry.io/docs/specs/semconv/
    let mut attributes = vec![
        ("k8s.node.name", past.node.as_str().to_owned()),
        ("host.id", record.instance.as_str().to_owned()),
        ("cloud.provider", "aws".to_owned()),
        ("ebbtide.group", record.group.as_str().to_owned()),
        ("ebbtide.cause", record.cause.to_string()),
        ("ebbtide.release", record.release.as_str().to_owned()),
        ("ebbtide.outcome", past.outcome.as_str().to_owned()),
    ];
    attributes.extend(past.why().map(|why| ("ebbtide.why", why.to_owned())));
    let error = match past.outcome {
        Ending::Lost => Some("the Node went while pods still ran".to_owned()),
        Ending::CutShort => Some("time was up: workloads were deleted".to_owned()),
        Ending::Released | Ending::Returned | Ending::Cancelled => None,
    };
    let root = span("scale-in", record.requested_at, past.at);
    Trace { id, root: Span { attributes, error, children: phases, ..root } }
}

fn span(name: &str, begin: Timestamp, end: Timestamp) -> Span {
    Span {
        name: name.to_owned(),
        is_call: false,
        begin,
        end,
        attributes: Vec::new(),
        events: Vec::new(),
        error: None,
        children: Vec::new(),
    }
}

fn add(phase: &mut Span, step: &Step) {
    if let Some(pod) = &step.pod {
        let mut attributes =
            vec![("k8s.namespace.name", pod.namespace.to_string()), ("k8s.pod.name", pod.name.to_string())];
        attributes.extend(step.told.clone().map(|told| ("ebbtide.answer", told)));
        phase.events.push((step.began, step.name, attributes));
    } else {
        let call = span(step.name, step.began, step.ended);
        let attributes = vec![("rpc.system", "aws-api".to_owned()), ("rpc.method", step.name.to_owned())];
        phase.children.push(Span { is_call: true, attributes, error: step.told.clone(), ..call });
    }
}
