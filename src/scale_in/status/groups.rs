//! Node groups, as data for people.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::aws::{Frozen, Hook, Instance};
use crate::groups::hooks::HookState;
use crate::groups::sizes::{self, Leaves};
use crate::groups::{Group, LaunchFailure};
use crate::k8s::GroupName;
use crate::template::{Template, TemplateError};

/// A node group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Its name.
    pub name: GroupName,
    /// As AWS has them.
    pub aws: Sizes,
    /// As cluster-autoscaler is told them: without nodes that leave. `desired` is the target size.
    pub told: Sizes,
    /// Instances that live.
    pub live: usize,
    /// Live instances whose nodes leave.
    pub leaving: usize,
    /// Instances that AWS wants and has not launched.
    pub missing: usize,
    /// Why AWS refuses to change it.
    pub frozen: Option<String>,
    /// Scaling processes that somebody has suspended.
    pub suspended: Vec<String>,
    /// Whether its instances have weights: it is not grown then.
    pub weighted: bool,
    /// Why launches fail, if they do.
    pub launches: Option<LaunchFailure>,
    /// What a new node will be like; `null` while that is looked up.
    pub template: Option<TemplateStatus>,
    /// Our lifecycle hook.
    pub hook: HookStatus,
}

/// Sizes of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sizes {
    /// The least.
    pub min: i32,
    /// What is wanted.
    pub desired: i32,
    /// The most.
    pub max: i32,
}

/// What a new node will be like.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateStatus {
    /// Why there is none.
    pub error: Option<String>,
    /// The instance type that its labels name.
    pub instance_type: Option<String>,
    /// What it gives to pods.
    pub allocatable: BTreeMap<String, String>,
    /// What was computed less what the last real node gives, as a share of the latter; `null`: no node was seen.
    pub difference: Option<BTreeMap<&'static str, f64>>,
}

/// Our lifecycle hook of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HookStatus {
    /// `ours`, `none`, `presumed` (AWS does not answer) or `unknown`.
    pub state: &'static str,
    /// Its name.
    pub name: Option<String>,
    /// How long it holds an instance without a heartbeat.
    pub heartbeat_seconds: Option<u64>,
    /// How long it holds one at most.
    pub longest_hold_seconds: Option<u64>,
    /// What its time-out counts as.
    pub default_result: Option<&'static str>,
    /// Whether somebody else has a terminating hook on the group.
    pub others: bool,
}

impl GroupStatus {
    pub(super) fn of(group: &Group, hook: &HookState, leaves: impl Fn(&Instance) -> Leaves) -> Self {
        let asg = &group.asg;
        let (min, max) = sizes::limits(asg, &leaves);
        Self {
            name: asg.name.clone(),
            aws: Sizes { min: asg.min, desired: asg.desired, max: asg.max },
            told: Sizes { min, desired: sizes::target_size(asg, &leaves), max },
            live: asg.live().count(),
            leaving: asg.live().filter(|&instance| leaves(instance) != Leaves::No).count(),
            missing: asg.missing(),
            frozen: asg.frozen.as_ref().map(|frozen| match frozen {
                Frozen::OperatedBy(service) => format!("operated by {service}"),
                Frozen::Deleting => "being deleted".to_owned(),
            }),
            suspended: asg.suspended.iter().cloned().collect(),
            weighted: asg.is_weighted(),
            launches: group.failure.clone(),
            template: group.template.as_ref().map(TemplateStatus::of),
            hook: HookStatus::from(hook),
        }
    }
}

impl TemplateStatus {
    fn of(template: &Result<impl AsRef<Template>, TemplateError>) -> Self {
        let template = match template {
            Ok(template) => template.as_ref(),
            Err(error) => return Self { error: Some(error.to_string()), ..Self::default() },
        };
        let (instance_type, allocatable) = template.figures();
        let difference = template.difference.map(|difference| difference.shares().into());
        Self { error: None, instance_type, allocatable, difference }
    }
}

impl From<&HookState> for HookStatus {
    fn from(state: &HookState) -> Self {
        let of = |state, hook: &Hook, others| Self {
            state,
            name: Some(hook.name.clone()),
            heartbeat_seconds: Some(hook.heartbeat_timeout.as_secs()),
            longest_hold_seconds: Some(hook.global_timeout.as_secs()),
            default_result: Some(hook.default_result()),
            others,
        };
        match state {
            HookState::Unknown => Self { state: "unknown", ..Self::default() },
            HookState::Presumed(hook) => of("presumed", hook, false),
            HookState::Known(hooks) => match &hooks.ours {
                Some(hook) => of("ours", hook, hooks.others),
                None => Self { state: "none", others: hooks.others, ..Self::default() },
            },
        }
    }
}
