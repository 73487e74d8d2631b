//! Answers a request that has arrived: faults in force first, then the operation, on the groups' current or past state.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::error::ApiError;
use super::faults::{Lose, Verdict};
use super::group::{Group, Instance, before};
use super::journal::Outcome;
use super::operation::{Operation, Service};
use super::past::is_read;
use super::query::{Form, another_token, start_token};
use super::replies::{Answer, Reply, refusal, success, uuid};
use super::state::State;
use super::troubles::Trouble;
use super::xml::Xml;
use super::{HookSpec, autoscaling, ec2, eks, load_balancing, prices, sqs};
use crate::sim::http::{Lost, Request};

/// The state that a request is answered from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sight {
    /// How old it is.
    stale: Duration,
    /// A group or instance left out.
    without: Option<String>,
    /// Whether the first page is empty.
    empty_page: bool,
    /// Whether that leads to itself.
    same_token: bool,
    /// Whether nobody can read the answer.
    unreadable: bool,
    /// After how many hundredths of it the answer ends.
    ends_after: Option<u8>,
}

/// A request that has arrived, and what becomes of it.
pub(super) struct Admitted {
    id: String,
    form: Form,
    service: Service,
    operation: Operation,
    sight: Sight,
    verdict: Verdict,
}

impl Admitted {
    /// The queue in question.
    pub(super) fn queue(&self) -> &str {
        self.form.get("QueueUrl").unwrap_or_default()
    }
}

pub(super) fn read(request: &Request) -> Form {
    eks::form(request)
        .or_else(|| sqs::form(request))
        .or_else(|| prices::form(request))
        .unwrap_or_else(|| Form::of(request))
}

/// The service and operation of a request.
pub(super) fn addressed(form: &Form) -> (Service, Operation) {
    let service = Service::of_version(form.get("Version").unwrap_or_default());
    let action = form.get("Action").unwrap_or_default();
    let operation = service.map_or(Operation::Unknown, |service| Operation::of(service, action));
    (service.unwrap_or(Service::AutoScaling), operation)
}

impl State {
    /// Decides what becomes of a request that arrives now.
    pub(super) fn admit(&mut self, request: &Request, now: Timestamp) -> Admitted {
        self.answered += 1;
        let id = uuid(u128::from(self.answered));
        let form = read(request);
        let (service, operation) = addressed(&form);
        let mut sight = self.draw_sight(operation, now);
        let verdict = self.judge(service, operation, &form, &mut sight, now);
        Admitted { id, form, service, operation, sight, verdict }
    }

    /// How long a request waits for a message, if it does.
    pub(super) fn waits_until(&self, admitted: &Admitted, now: Timestamp) -> Option<Timestamp> {
        let Admitted { form, operation, verdict, .. } = admitted;
        let is_carried_out = match verdict {
            Verdict::Proceed => true,
            Verdict::Lose(side) | Verdict::Silence(side) => *side == Lose::AfterEffect,
            _ => false,
        };
        let is_poll = *operation == Operation::ReceiveMessage && is_carried_out && !admitted.sight.empty_page;
        is_poll.then(|| sqs::waits_until(self, form, now)).flatten()
    }

    /// Answers a request now; `None` if the caller never hears of it.
    pub(super) fn answer(&mut self, admitted: Admitted, now: Timestamp) -> Option<Result<Reply, Lost>> {
        let Admitted { id, form, service, operation, sight, verdict } = admitted;
        // It waited for a message when the outage began.
        let is_late = self.faults.outage && verdict == Verdict::Proceed;
        let verdict = if is_late { Verdict::Lose(Lose::BeforeEffect) } else { verdict };
        let action = form.get("Action").unwrap_or_default();
        self.shared.journal.begin_call();
        let result = match verdict {
            Verdict::Lose(Lose::BeforeEffect) | Verdict::Silence(Lose::BeforeEffect) => None,
            Verdict::Refuse(refusal, Lose::BeforeEffect) => Some(Err(refusal.into())),
            Verdict::Refuse(refusal, Lose::AfterEffect) => {
                let _unheard = self.carry_out(service, operation, &form, &sight, now);
                Some(Err(refusal.into()))
            }
            Verdict::Throttle => Some(Err(ApiError::throttled(service))),
            Verdict::Deny => Some(Err(ApiError::denied(service, operation))),
            Verdict::Fail => Some(Err(ApiError::internal(service))),
            Verdict::Expire => Some(Err(ApiError::invalid_token())),
            Verdict::Proceed | Verdict::Lose(Lose::AfterEffect) | Verdict::Silence(Lose::AfterEffect) => {
                Some(self.carry_out(service, operation, &form, &sight, now))
            }
        };
        let outcome = match (&result, verdict) {
            (None, _) => Outcome::LostBefore,
            (
                _,
                Verdict::Lose(Lose::AfterEffect)
                | Verdict::Silence(Lose::AfterEffect)
                | Verdict::Refuse(_, Lose::AfterEffect),
            ) => Outcome::LostAfter,
            (Some(Ok(_)), _) => Outcome::Answered,
            (Some(Err(error)), _) => Outcome::Refused(error.code),
        };
        self.shared.journal.record_call(now, operation, form.arguments(), outcome);
        match (verdict, result) {
            (Verdict::Silence(_), _) => None,
            (Verdict::Lose(_), _) | (_, None) => Some(Err(Lost)),
            (_, Some(Ok(_))) if sight.unreadable => Some(Ok(Reply::xml(200, String::new()))),
            (_, Some(Ok(answer))) => {
                let mut reply = success(service, action, &answer, &id);
                if let Some(hundredths) = sight.ends_after {
                    reply.body.truncate(reply.body.len() * usize::from(hundredths) / 100);
                }
                Some(Ok(reply))
            }
            (_, Some(Err(error))) => Some(Ok(refusal(service, &error, &id))),
        }
    }

    /// Draws by chance what a description is answered from.
    fn draw_sight(&mut self, operation: Operation, now: Timestamp) -> Sight {
        if !is_read(operation) {
            return Sight::default();
        }
        let behaviour = self.shared.behaviour;
        let stale = self.shared.draw_way(behaviour.stale);
        let without = self.shared.happens(behaviour.gaps).then(|| {
            let all = self.groups.values().flat_map(|g| std::iter::once(&g.name).chain(g.instances.keys()));
            let all: Vec<String> = all.cloned().collect();
            all.get(self.shared.below(all.len())).cloned()
        });
        if without.is_some() {
            self.faults.troubles.gaps.push(now);
        }
        Sight { stale, without: without.flatten(), ..Sight::default() }
    }

    fn judge(
        &mut self,
        service: Service,
        operation: Operation,
        form: &Form,
        sight: &mut Sight,
        now: Timestamp,
    ) -> Verdict {
        match self.faults.troubles.take(operation, form, now) {
            Some(Trouble::Refused(refusal, side)) => return Verdict::Refuse(refusal, side),
            Some(Trouble::Lost(side)) => return Verdict::Lose(side),
            Some(Trouble::Silent(side)) => return Verdict::Silence(side),
            // What is written is written now.
            Some(Trouble::Stale(_) | Trouble::Without(_)) if !is_read(operation) => {}
            Some(Trouble::Stale(by)) => sight.stale = by,
            Some(Trouble::Without(name)) => sight.without = Some(name),
            Some(Trouble::EmptyPage) => sight.empty_page = true,
            Some(Trouble::SameToken) => (sight.empty_page, sight.same_token) = (true, true),
            Some(Trouble::Unreadable) => sight.unreadable = true,
            Some(Trouble::EndsAfter(hundredths)) => sight.ends_after = Some(hundredths),
            Some(Trouble::Late(_)) | None => {}
        }
        let verdict = self.faults.judge(operation, form.get("NextToken").is_some(), now, &mut self.jitter);
        let bucket = self.shared.behaviour.bucket.filter(|_| service == Service::AutoScaling);
        if verdict == Verdict::Proceed && bucket.is_some_and(|bucket| !self.bucket.take(bucket, now)) {
            return Verdict::Throttle;
        }
        if verdict == Verdict::Proceed && !self.permits(service, operation, form) {
            return Verdict::Deny;
        }
        verdict
    }

    fn carry_out(
        &mut self,
        service: Service,
        operation: Operation,
        form: &Form,
        sight: &Sight,
        now: Timestamp,
    ) -> Result<Answer, ApiError> {
        self.past.keep(&self.groups, now);
        for effect in self.faults.take_before(operation) {
            effect(self, now);
        }
        let result = if let Some(page) =
            sight.empty_page.then(|| empty_page(operation, form, sight.same_token)).flatten()
        {
            Ok(page)
        } else {
            let then = before(now, sight.stale);
            if !sight.stale.is_zero() {
                self.past.swap(&mut self.groups, then);
            }
            let missing = sight.without.as_ref().and_then(|name| self.take_out(name));
            let result = match service {
                Service::AutoScaling => autoscaling::dispatch(self, operation, form, now).map(Answer::Xml),
                Service::Ec2 => ec2::dispatch(self, operation, form, now).map(Answer::Xml),
                Service::Eks => eks::dispatch(self, operation, form).map(Answer::Json),
                Service::LoadBalancing => {
                    load_balancing::dispatch(self, operation, form, now).map(Answer::Xml)
                }
                Service::Pricing => prices::products(self, operation, form).map(Answer::Json),
                Service::Sqs => sqs::dispatch(self, operation, form, now).map(Answer::Json),
            };
            if let Some(missing) = missing {
                self.put_back(missing);
            }
            if !sight.stale.is_zero() {
                self.past.swap(&mut self.groups, then);
            }
            result
        };
        for effect in self.faults.take_after(operation) {
            effect(self, now);
        }
        result
    }

    fn take_out(&mut self, name: &str) -> Option<Missing> {
        if let Some(group) = self.groups.remove(name) {
            return Some(Missing::Group(Box::new(group)));
        }
        if let Some((group, _)) = self.group_of_mut(name) {
            return group.instances.remove(name).map(Box::new).map(Missing::Instance);
        }
        let groups = self.groups.iter_mut();
        let hooks = groups.filter_map(|(group, state)| Some((group.clone(), state.hooks.remove(name)?)));
        Some(Missing::Hooks(hooks.collect()))
    }

    fn put_back(&mut self, missing: Missing) {
        match missing {
            Missing::Group(group) => drop(self.groups.insert(group.name.clone(), *group)),
            Missing::Instance(instance) => {
                if let Some(group) = self.groups.get_mut(&instance.group) {
                    group.instances.insert(instance.id.clone(), *instance);
                }
            }
            Missing::Hooks(hooks) => {
                for (group, hook) in hooks {
                    if let Some(group) = self.groups.get_mut(&group) {
                        group.hooks.insert(hook.name.clone(), hook);
                    }
                }
            }
        }
    }
}

/// What an answer leaves out.
enum Missing {
    Group(Box<Group>),
    Instance(Box<Instance>),
    /// By their groups' names.
    Hooks(Vec<(String, HookSpec)>),
}

/// An empty page, with a token for the page that was asked for, the same one if so told; of a queue, no message.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html#api-pagination>: "fewer than the maximum, or even
/// no results".
fn empty_page(operation: Operation, form: &Form, same_token: bool) -> Option<Answer> {
    let (list, token) = match operation {
        Operation::DescribeAutoScalingGroups => ("AutoScalingGroups", "NextToken"),
        Operation::DescribeAutoScalingInstances => ("AutoScalingInstances", "NextToken"),
        Operation::DescribeScalingActivities => ("Activities", "NextToken"),
        Operation::DescribeLaunchConfigurations => ("LaunchConfigurations", "NextToken"),
        Operation::DescribeWarmPool => ("Instances", "NextToken"),
        Operation::DescribeTags => ("tagSet", "nextToken"),
        Operation::DescribeInstanceTypes => ("instanceTypeSet", "nextToken"),
        Operation::DescribeLaunchTemplateVersions => ("launchTemplateVersionSet", "nextToken"),
        Operation::DescribeSpotPriceHistory => ("spotPriceHistorySet", "nextToken"),
        Operation::ReceiveMessage => return Some(Answer::Json(json!({}))),
        _ => return None,
    };
    let here = match form.get("NextToken") {
        None => start_token(),
        Some(token) if same_token => token.to_owned(),
        Some(token) => another_token(token),
    };
    Some(Answer::Xml(Xml::build(|xml| {
        xml.inside(list, |_| {}).text(token, here);
    })))
}
