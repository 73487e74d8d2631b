//! The whole simulated AWS as a pure, synchronous state: requests and scripts change it, and time does.
//!
//! The same seed, requests and moments give the same state. Nothing here waits or reads a clock. What is due is done
//! in the order of its moments, however late [`State::step`] is called, and before the request that comes in.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::eks::NodeGroupSpec;
use super::error::ApiError;
use super::faults::{Faults, Lose, Verdict};
use super::group::{Group, Instance};
use super::journal::{Event, Journal, Outcome};
use super::operation::{Operation, Service};
use super::query::Form;
use super::spec::LaunchConfigurationSpec;
use super::templates::{DEFAULT_IMAGE, Template};
use super::xml::Xml;
use super::{Behaviour, autoscaling, ec2, eks};
use crate::sim::http::{Lost, Request};
use crate::sim::span::Span;

const AUTO_SCALING_NAMESPACE: &str = "http://autoscaling.amazonaws.com/doc/2011-01-01/";
const EC2_NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// The account that everything belongs to.
pub(super) const ACCOUNT: &str = "123456789012";
/// The region that everything is in.
pub(super) const REGION: &str = "us-east-1";

/// An answer: what of HTTP a caller looks at, and an XML or JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The code of an error, where it is not in the body.
    pub error_type: Option<&'static str>,
    /// The document.
    pub body: String,
}

/// What a call comes to, in the language of its service.
enum Answer {
    Xml(Xml),
    Json(serde_json::Value),
}

/// Everything in the simulated AWS.
pub struct State {
    pub(super) groups: BTreeMap<String, Group>,
    /// EKS managed node groups, by cluster and name.
    pub(super) node_groups: BTreeMap<(String, String), NodeGroupSpec>,
    pub(super) shared: Shared,
    pub(super) faults: Faults,
    jitter: fastrand::Rng,
    requests: u64,
}

/// What groups have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) journal: Journal,
    /// By id.
    pub(super) templates: BTreeMap<String, Template>,
    /// Whether launch templates are shown one at a time only.
    pub(super) hides_templates: bool,
    /// Architectures of images, by id.
    pub(super) images: BTreeMap<String, &'static str>,
    /// By name.
    pub(super) configurations: BTreeMap<String, LaunchConfiguration>,
    /// Instances that are gone, and since when; EC2 shows them for a while.
    pub(super) past: BTreeMap<String, (Instance, Timestamp)>,
    /// Instances that run on outside of any group.
    pub(super) detached: BTreeMap<String, Instance>,
    /// How AWS behaves where its documents leave room.
    pub(super) behaviour: Behaviour,
    resources: fastrand::Rng,
    uuids: fastrand::Rng,
    times: fastrand::Rng,
    numbers: u64,
}

/// Keeps the stream of times apart from that of ids.
const TIMES: u64 = 0x7469_6d65_7300_0000;

/// A launch configuration.
#[derive(Debug)]
pub(super) struct LaunchConfiguration {
    pub(super) spec: LaunchConfigurationSpec,
    pub(super) created: Timestamp,
}

impl Shared {
    /// A number that is higher than all before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// How long something takes this time.
    pub(super) fn draw(&mut self, span: Span) -> Duration {
        span.draw(&mut self.times)
    }

    pub(super) fn instance_id(&mut self) -> String {
        format!("i-0{:016x}", self.resources.u64(..))
    }

    pub(super) fn template_id(&mut self) -> String {
        format!("lt-0{:016x}", self.resources.u64(..))
    }

    /// A private address out of 10.0.0.0/8.
    pub(super) fn address(&mut self) -> [u8; 4] {
        [10, self.resources.u8(..), self.resources.u8(..), self.resources.u8(1..)]
    }

    /// An id for what is neither instance nor template. These are drawn apart, so that they move no instance id.
    pub(super) fn uuid(&mut self) -> String {
        uuid(self.uuids.u128(..))
    }

    pub(super) fn bury(&mut self, instance: Instance, at: Timestamp) {
        self.past.insert(instance.id.clone(), (instance, at));
    }
}

impl State {
    /// An AWS with nothing in it.
    pub fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        Self {
            groups: BTreeMap::new(),
            node_groups: BTreeMap::new(),
            shared: Shared {
                journal: Journal::new(),
                templates: BTreeMap::new(),
                hides_templates: false,
                images: BTreeMap::from([(DEFAULT_IMAGE.to_owned(), "x86_64")]),
                configurations: BTreeMap::new(),
                past: BTreeMap::new(),
                detached: BTreeMap::new(),
                behaviour: Behaviour::PLAIN,
                resources: rng.fork(),
                uuids: rng.fork(),
                times: fastrand::Rng::with_seed(seed ^ TIMES),
                numbers: 0,
            },
            faults: Faults::default(),
            jitter: rng,
            requests: 0,
        }
    }

    /// The first moment at which something happens by itself.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.groups.values().filter_map(Group::next_due).min()
    }

    /// Does everything that is due by `now`, each at its own moment.
    pub fn step(&mut self, now: Timestamp) {
        while let Some(due) = self.next_due().filter(|due| *due <= now) {
            for group in self.groups.values_mut().filter(|group| group.next_due() == Some(due)) {
                group.advance(&mut self.shared, due);
            }
            let gone: Vec<String> =
                self.groups.values().filter(|g| g.is_gone(due)).map(|g| g.name.clone()).collect();
            for group in gone {
                self.groups.remove(&group);
                self.shared.journal.record(due, Event::GroupDeleted { group });
            }
        }
    }

    /// How long the request travels, there and back.
    pub(super) fn draw_latency(&mut self, request: &Request) -> Duration {
        self.faults.draw_latency(addressed(&read(request)).1, &mut self.jitter)
    }

    /// Whether the request is one that nobody answers.
    pub(super) fn hangs(&self, request: &Request) -> bool {
        self.faults.hangs(addressed(&read(request)).1)
    }

    /// Answers a request, or loses it.
    pub fn apply(&mut self, request: &Request, now: Timestamp) -> Result<Reply, Lost> {
        self.step(now);
        self.requests += 1;
        let id = uuid(u128::from(self.requests));
        let form = read(request);
        let (service, operation) = addressed(&form);
        let action = form.get("Action").unwrap_or_default();

        let verdict = self.faults.judge(operation, form.get("NextToken").is_some(), now, &mut self.jitter);
        self.shared.journal.begin_call();
        let result = match verdict {
            Verdict::Lose(Lose::BeforeEffect) => None,
            Verdict::Refuse(refusal, Lose::BeforeEffect) => Some(Err(refusal.into())),
            Verdict::Refuse(refusal, Lose::AfterEffect) => {
                let _unheard = self.carry_out(service, operation, &form, now);
                Some(Err(refusal.into()))
            }
            Verdict::Throttle => Some(Err(ApiError::throttled(service))),
            Verdict::Deny => Some(Err(ApiError::denied(service, operation))),
            Verdict::Fail => Some(Err(ApiError::internal(service))),
            Verdict::Expire => Some(Err(ApiError::invalid_token())),
            Verdict::Proceed | Verdict::Lose(Lose::AfterEffect) => {
                Some(self.carry_out(service, operation, &form, now))
            }
        };
        let outcome = match (&result, verdict) {
            (None, _) => Outcome::LostBefore,
            (_, Verdict::Lose(Lose::AfterEffect) | Verdict::Refuse(_, Lose::AfterEffect)) => {
                Outcome::LostAfter
            }
            (Some(Ok(_)), _) => Outcome::Answered,
            (Some(Err(error)), _) => Outcome::Refused(error.code),
        };
        let lost = matches!(verdict, Verdict::Lose(_));
        self.shared.journal.record_call(now, operation, form.arguments(), outcome);
        match result.filter(|_| !lost) {
            None => Err(Lost),
            Some(Ok(answer)) => Ok(success(service, action, &answer, &id)),
            Some(Err(error)) => Ok(refusal(service, &error, &id)),
        }
    }

    fn carry_out(
        &mut self,
        service: Service,
        operation: Operation,
        form: &Form,
        now: Timestamp,
    ) -> Result<Answer, ApiError> {
        for effect in self.faults.take_before(operation) {
            effect(self, now);
        }
        let result = match service {
            Service::AutoScaling => autoscaling::dispatch(self, operation, form, now).map(Answer::Xml),
            Service::Ec2 => ec2::dispatch(self, operation, form, now).map(Answer::Xml),
            Service::Eks => eks::dispatch(self, operation, form).map(Answer::Json),
        };
        for effect in self.faults.take_after(operation) {
            effect(self, now);
        }
        result
    }

    /// The group called `name`, and what groups share.
    pub(super) fn group_mut(&mut self, name: &str) -> Result<(&mut Group, &mut Shared), ApiError> {
        let group = self.groups.get_mut(name).ok_or_else(|| ApiError::no_such_group(name))?;
        Ok((group, &mut self.shared))
    }

    /// The group called `name`, to be changed, which it may refuse, and what groups share.
    pub(super) fn changing(&mut self, name: &str) -> Result<(&mut Group, &mut Shared), ApiError> {
        let (group, shared) = self.group_mut(name)?;
        group.changeable()?;
        Ok((group, shared))
    }

    /// The group that has the instance, and what groups share.
    pub(super) fn group_of_mut(&mut self, instance: &str) -> Option<(&mut Group, &mut Shared)> {
        let group = self.groups.values_mut().find(|group| group.instances.contains_key(instance))?;
        Some((group, &mut self.shared))
    }

    /// The instance, wherever it is, to be changed in what its group does not look at.
    pub(super) fn instance_mut(&mut self, id: &str) -> Option<&mut Instance> {
        let of_group = self.groups.values_mut().find_map(|group| group.instances.get_mut(id));
        of_group.or_else(|| self.shared.detached.get_mut(id))
    }

    /// The instance, wherever it is.
    pub(super) fn instance(&self, id: &str) -> Option<&Instance> {
        let of_group = self.groups.values().find_map(|group| group.instances.get(id));
        of_group.or_else(|| self.shared.detached.get(id))
    }
}

fn read(request: &Request) -> Form {
    eks::form(request).unwrap_or_else(|| Form::of(request))
}

/// What a request is for.
fn addressed(form: &Form) -> (Service, Operation) {
    let service = Service::of_version(form.get("Version").unwrap_or_default());
    let action = form.get("Action").unwrap_or_default();
    let operation = service.map_or(Operation::Unknown, |service| Operation::of(service, action));
    (service.unwrap_or(Service::AutoScaling), operation)
}

impl Reply {
    fn xml(status: u16, body: String) -> Self {
        Self { status, content_type: "text/xml", error_type: None, body }
    }

    fn json(status: u16, error_type: Option<&'static str>, body: &serde_json::Value) -> Self {
        Self { status, content_type: "application/json", error_type, body: body.to_string() }
    }
}

fn success(service: Service, action: &str, answer: &Answer, id: &str) -> Reply {
    let root = format!("{action}Response");
    let body = match answer {
        Answer::Json(body) => return Reply::json(200, None, body),
        Answer::Xml(body) if service == Service::Ec2 => Xml::document(&root, EC2_NAMESPACE, |xml| {
            xml.text("requestId", id).append(body);
        }),
        Answer::Xml(body) => Xml::document(&root, AUTO_SCALING_NAMESPACE, |xml| {
            xml.inside(&format!("{action}Result"), |xml| {
                xml.append(body);
            })
            .inside("ResponseMetadata", |xml| {
                xml.text("RequestId", id);
            });
        }),
    };
    Reply::xml(200, body)
}

fn refusal(service: Service, error: &ApiError, id: &str) -> Reply {
    let body = match service {
        Service::AutoScaling => Xml::document("ErrorResponse", AUTO_SCALING_NAMESPACE, |xml| {
            xml.inside("Error", |xml| {
                xml.text("Type", if error.status < 500 { "Sender" } else { "Receiver" })
                    .text("Code", error.code)
                    .text("Message", &error.message);
            })
            .text("RequestId", id);
        }),
        Service::Ec2 => Xml::document("Response", "", |xml| {
            xml.list("Errors", "Error", [error], |xml, error| {
                xml.text("Code", error.code).text("Message", &error.message);
            })
            .text("RequestID", id);
        }),
        Service::Eks => {
            let body = serde_json::json!({ "message": error.message });
            return Reply::json(error.status, Some(error.code), &body);
        }
    };
    Reply::xml(error.status, body)
}

fn uuid(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
