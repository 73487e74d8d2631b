//! What a scale-in of a node would do now: the plan of production, played through on a copy of what is known, until the
//! instance is released or nothing more happens by itself. Pure; nothing leaves the process.
//!
//! The copy assumes what makes waits longest: an evicted pod takes its whole grace; one that is overdue already never exits; a budget gives
//! no more room than it has now; pods with several budgets are refused for good. AWS and the API server answer at once.

mod data;
mod model;

use jiff::Timestamp;

pub use self::data::{
    BudgetPreview, End, Facts, Member, Place, PodPreview, PodTreatment, Preview, Step, What,
};
use self::model::Model;
use super::record::{Annotation, Cause, Record, Release, Request, Written};
use super::status::Wait;
use crate::cluster::NodeView;
use crate::groups::hooks::HookState;
use crate::groups::sizes::SizeError;

/// Plays a scale-in of the node through, from now on. One under way is carried on, and a person's request that waits is begun; else
/// `cause` begins one.
pub fn preview(facts: &Facts, cause: Cause, now: Timestamp) -> Preview {
    let node = NodeView::from(&facts.node);
    let under_way = node.scale_in().cloned();
    let request = request_on(&node);
    let (cause, release) =
        request.map_or((cause, Release::TerminateAndDecrement), |request| (Cause::Operator, request.release));
    let mut preview = Preview {
        node: node.name.clone(),
        instance: node.instance.clone(),
        group: facts.member().map(|member| member.group.clone()),
        cause: under_way.as_ref().map_or(cause, |record| record.cause),
        under_way: under_way.is_some(),
        notes: request.map(waits_for_its_turn).into_iter().chain(notes(facts)).collect(),
        pods: Vec::new(),
        steps: Vec::new(),
        end: End::Waits { waiting: Vec::new() },
    };
    let Some(instance) = node.instance.clone() else {
        preview.end =
            End::Refused { why: "the Node has no EC2 instance (no provider id of AWS's)".to_owned() };
        return preview;
    };
    let record = under_way.unwrap_or_else(|| {
        let group = facts.member().map(|member| member.group.clone()).unwrap_or_default();
        Record::new(cause, group, instance, release, now)
    });
    let refusal = refusal(facts, &record, preview.under_way);
    let mut model = Model::new(facts, record, now);
    preview.pods = model.pods();
    if let Some(why) = refusal {
        preview.end = End::Refused { why };
        return preview;
    }
    (preview.steps, preview.end) = model.play();
    preview
}

/// A person's request that has not become a scale-in yet.
fn request_on(node: &NodeView) -> Option<Request> {
    match node.record.as_deref().map(Annotation::written) {
        Some(Written::Request(request)) => Some(*request),
        _ => None,
    }
}

fn waits_for_its_turn(request: Request) -> String {
    let since = request.since.map(|since| format!(" since {since:.0}")).unwrap_or_default();
    format!(
        "a request by annotation waits on the Node{since}: this is what it comes to once its turn has come (--max-operator-scale-ins)"
    )
}

/// Why the scale-in would not begin.
fn refusal(facts: &Facts, record: &Record, under_way: bool) -> Option<String> {
    if matches!(facts.place, Place::Outside) && !under_way {
        return Some("its instance is in none of the selected groups: nothing would be done".to_owned());
    }
    let member = facts.member().filter(|_| !under_way)?;
    let is_asked_for = record.release == Release::TerminateAndDecrement
        || record.cause == Cause::Operator && member.is_kept();
    let why = member.removable.as_ref().err().filter(|_| is_asked_for && member.lifecycle.is_live())?;
    let refused =
        if record.cause == Cause::Operator { "the request is not met" } else { "DeleteNodes is refused" };
    let instead = match why {
        SizeError::BelowMin { .. } | SizeError::BelowMinUnits { .. } => {
            "; annotate the Node with ebbtide/scale-in=replace to have it replaced"
        }
        _ => "",
    };
    Some(format!("{why}: {refused}{instead}"))
}

fn notes(facts: &Facts) -> Vec<String> {
    let waits = facts.settings.wait_for_load_balancers;
    let load_balancers =
        waits.then_some("load balancers were not asked: the release waits until none reaches the node");
    of_place(&facts.place).into_iter().chain(load_balancers.map(str::to_owned)).collect()
}

/// What is not known of the group, or is not as usual.
fn of_place(place: &Place) -> Option<String> {
    let unknown = |why: &str| format!("{why}: no lifecycle hook and no limit of the group's own are assumed");
    let of_hooks = match place {
        Place::Unknown => return Some(unknown("AWS was not asked")),
        Place::Untold(error) => return Some(unknown(&format!("AWS was asked, and did not tell ({error})"))),
        Place::Outside => return Some(unknown("its instance is in none of the selected groups")),
        Place::In(member) => match &member.hook {
            HookState::Known(hooks) if hooks.ours.is_none() && hooks.others => {
                "somebody else's lifecycle hook is on the group: the node is drained before AWS is told"
            }
            HookState::Known(_) => return None,
            HookState::Unknown | HookState::Presumed(_) => {
                "AWS has not told of the group's lifecycle hooks: none is assumed"
            }
        },
    };
    Some(of_hooks.to_owned())
}

/// Which pods a scale-in under way waits for, as far as Nodes, pods and budgets tell. Where they do not, it says that only the leader
/// knows.
pub fn waiting(facts: &Facts, now: Timestamp) -> Vec<Wait> {
    let node = NodeView::from(&facts.node);
    let Some(record) = node.scale_in().cloned() else { return Vec::new() };
    Model::new(facts, record, now).waiting()
}

#[cfg(test)]
mod tests;
