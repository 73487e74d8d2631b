//! EventBridge: events about instances, and their delivery to a queue.
//!
//! Events are made from the journal (an instance held by a hook, a machine's state), or by a script: a Spot interruption, a
//! rebalance recommendation, a scheduled change of AWS Health's, the end of a Capacity Block. Some are lost, some come
//! twice, and their order is not kept.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html>,
//! <https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-delivery-level.html>

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::group::{Wait, after};
use super::handle::Aws;
use super::journal::{Entry, Event};
use super::lifecycle::{LifecycleState, Transition};
use super::power::{Death, Power};
use super::replies::uuid;
use super::state::{ACCOUNT, REGION, State};
use crate::sim::span::Span;

/// Separates the random numbers of events from all others.
const EVENTS: u64 = 0x6576_656e_7473_0000;
/// From the notice to the interruption.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html>
const INTERRUPTION: Duration = Duration::from_mins(2);
/// From the warning until a Capacity Block's instances are terminated, and until its end.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html>
const BLOCK_WARNING: Duration = Duration::from_mins(10);
const BLOCK_END: Duration = Duration::from_mins(40);

/// How events and messages are delivered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delivery {
    /// From the event to its message in the queue. Guessed: AWS says "near real time", and retries for a day.
    ///
    /// <https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-rule-retry-policy.html>
    pub way: Span,
    /// Share of events that are lost: Auto Scaling and EC2 emit them on a best-effort basis.
    pub lost: f64,
    /// Share of events that are delivered twice: EventBridge delivers at least once.
    pub doubled: f64,
    /// Share of deleted messages that SQS delivers again.
    ///
    /// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues-at-least-once-delivery.html>
    pub left: f64,
    /// Whether a queue hands out messages in random order: its order is best effort.
    ///
    /// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues.html>
    pub shuffled: bool,
}

impl Delivery {
    /// Each event once, in order, after 300 ms.
    pub const PLAIN: Self = Self {
        way: Span::exactly(Duration::from_millis(300)),
        lost: 0.0,
        doubled: 0.0,
        left: 0.0,
        shuffled: false,
    };

    /// As harsh as documented.
    pub const HARSH: Self = Self {
        way: Span::millis(200, 900).rarely(Duration::from_mins(1)),
        lost: 0.01,
        doubled: 0.05,
        left: 0.02,
        shuffled: true,
    };
}

/// A scheduled change of AWS Health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledChange {
    /// The last part of the event's ARN.
    pub id: String,
    /// The event type code, such as `AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED`.
    pub code: String,
    /// When it starts.
    pub starts: Timestamp,
    /// `upcoming`, `open` or `closed`.
    pub status: String,
}

/// EventBridge with one rule that sends all events to one queue.
#[derive(Debug)]
pub(super) struct EventBridge {
    /// The queue's URL.
    target: Option<String>,
    /// Number of journal entries already read.
    seen: usize,
    /// Queue and body, by arrival and order of sending.
    under_way: BTreeMap<(Timestamp, u64), (String, String)>,
    /// Instances with an event for state `terminated`.
    ended: BTreeSet<String>,
    /// When EC2 takes which machine back.
    taken_back: BTreeSet<(Timestamp, String)>,
    /// Capacity Reservations by instance.
    reservations: BTreeMap<String, String>,
    pub(super) dice: fastrand::Rng,
    numbers: u64,
}

impl EventBridge {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            target: None,
            seen: 0,
            under_way: BTreeMap::new(),
            ended: BTreeSet::new(),
            taken_back: BTreeSet::new(),
            reservations: BTreeMap::new(),
            dice: fastrand::Rng::with_seed(seed ^ EVENTS),
            numbers: 0,
        }
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let arrival = self.under_way.keys().next().map(|(at, _)| *at);
        arrival.into_iter().chain(self.taken_back.first().map(|(at, _)| *at)).min()
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn uuid(&mut self) -> String {
        uuid(self.dice.u128(..))
    }

    pub(super) fn reservation(&self, instance: &str) -> Option<&String> {
        self.reservations.get(instance)
    }
}

fn instance_arn(id: &str) -> String {
    format!("arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{id}")
}

impl State {
    /// Sends events for new journal entries.
    pub(super) fn announce(&mut self) {
        if self.events.target.is_none() {
            self.events.seen = self.shared.journal.entries().len();
            return;
        }
        while let Some(entry) = self.shared.journal.entries().get(self.events.seen).cloned() {
            self.events.seen += 1;
            self.announce_entry(entry);
        }
    }

    fn announce_entry(&mut self, Entry { at, what }: Entry) {
        match what {
            Event::EnteredWait { group, instance, hook, token, transition } => {
                self.lifecycle_action(at, &group, &instance, &hook, &token, transition);
            }
            Event::Powered { instance, power, .. } => self.state_change(&instance, power, at),
            Event::Terminated { instance, .. } => self.state_change(&instance, Power::Terminated, at),
            _ => {}
        }
    }

    /// Sends a lifecycle action, dated when it can be completed.
    fn lifecycle_action(
        &mut self,
        at: Timestamp,
        group: &str,
        instance: &str,
        hook: &str,
        token: &str,
        transition: Transition,
    ) {
        let held = self.instance(instance);
        let wait = held.and_then(|held| held.waits.iter().find(|wait| wait.token == token));
        let opens = wait.map_or(at, |wait: &Wait| wait.opens);
        let state = held.map(|held| held.state);
        let (kind, name, origin, destination) = match (transition, state) {
            (Transition::Launching, Some(LifecycleState::WarmedPendingWait)) => {
                ("EC2 Instance-launch Lifecycle Action", "LAUNCHING", "EC2", "WarmPool")
            }
            (Transition::Launching, _) => {
                ("EC2 Instance-launch Lifecycle Action", "LAUNCHING", "EC2", "AutoScalingGroup")
            }
            (Transition::Terminating, Some(LifecycleState::WarmedPendingWait)) => {
                ("EC2 Instance-terminate Lifecycle Action", "TERMINATING", "AutoScalingGroup", "WarmPool")
            }
            (Transition::Terminating, Some(LifecycleState::WarmedTerminatingWait)) => {
                ("EC2 Instance-terminate Lifecycle Action", "TERMINATING", "WarmPool", "EC2")
            }
            (Transition::Terminating, _) => {
                ("EC2 Instance-terminate Lifecycle Action", "TERMINATING", "AutoScalingGroup", "EC2")
            }
        };
        let arn =
            format!("arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:0:autoScalingGroupName/{group}");
        let detail = json!({
            "LifecycleActionToken": token,
            "AutoScalingGroupName": group,
            "LifecycleHookName": hook,
            "EC2InstanceId": instance,
            "LifecycleTransition": format!("autoscaling:EC2_INSTANCE_{name}"),
            "Origin": origin,
            "Destination": destination,
        });
        self.tell("aws.autoscaling", kind, &[arn], &detail, opens);
    }

    /// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html>
    fn state_change(&mut self, instance: &str, power: Power, at: Timestamp) {
        if power == Power::Terminated && !self.events.ended.insert(instance.to_owned()) {
            return;
        }
        let detail = json!({ "instance-id": instance, "state": power.name() });
        let arn = instance_arn(instance);
        self.tell("aws.ec2", "EC2 Instance State-change Notification", &[arn], &detail, at);
    }

    /// Sends an event, in EventBridge's envelope, on its way to the queue.
    fn tell(&mut self, source: &str, kind: &str, resources: &[String], detail: &Value, at: Timestamp) {
        let Some(target) = self.events.target.clone() else { return };
        let delivery = self.shared.behaviour.delivery;
        let id = self.events.uuid();
        let written = at.checked_add(self.shared.ahead).unwrap_or(at);
        let body = json!({
            "version": "0",
            "id": id,
            "detail-type": kind,
            "source": source,
            "account": ACCOUNT,
            "time": written.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "region": REGION,
            "resources": resources,
            "detail": detail,
        })
        .to_string();
        let mut copies = 1;
        if delivery.lost > 0.0 && self.events.dice.f64() < delivery.lost {
            copies = 0;
        } else if delivery.doubled > 0.0 && self.events.dice.f64() < delivery.doubled {
            copies = 2;
        }
        for _ in 0..copies {
            let arrives = after(at, delivery.way.draw(&mut self.events.dice));
            let number = self.events.next_number();
            self.events.under_way.insert((arrives, number), (target.clone(), body.clone()));
        }
    }

    /// Puts events that have arrived by now into their queue.
    pub(super) fn deliver(&mut self, now: Timestamp) {
        while let Some(entry) = self.events.under_way.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((arrives, _), (queue, body)) = entry.remove_entry();
            self.put_message(&queue, body, arrives);
        }
    }

    /// Takes back the machines that are due.
    pub(super) fn take_back(&mut self, now: Timestamp) {
        while self.events.taken_back.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((at, instance)) = self.events.taken_back.pop_first() {
                self.kill_machine(&instance, Death::Interrupted, at);
            }
        }
    }

    /// EC2 gives notice of a Spot interruption, and takes the machine two minutes later.
    pub fn interrupt_spot(&mut self, instance: &str, now: Timestamp) {
        let detail = json!({ "instance-id": instance, "instance-action": "terminate" });
        let kind = "EC2 Spot Instance Interruption Warning";
        self.tell("aws.ec2", kind, &[format!("arn:aws:ec2:{REGION}a:instance/{instance}")], &detail, now);
        self.events.taken_back.insert((after(now, INTERRUPTION), instance.to_owned()));
    }

    /// EC2 recommends to replace a Spot instance. A group with Capacity Rebalancing does.
    ///
    /// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html>
    pub fn recommend_rebalance(&mut self, instance: &str, now: Timestamp) {
        let detail = json!({ "instance-id": instance });
        let arn = instance_arn(instance);
        self.tell("aws.ec2", "EC2 Instance Rebalance Recommendation", &[arn], &detail, now);
        if self.group_of_mut(instance).is_some_and(|(group, _)| group.policies.rebalances_capacity) {
            self.rebalance(instance, now);
        }
    }

    /// AWS Health announces a scheduled change; nothing happens to the instances.
    ///
    /// <https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html>
    pub fn schedule_change(&mut self, change: &ScheduledChange, instances: &[&str], now: Timestamp) {
        let entities: Vec<Value> = instances
            .iter()
            .map(|id| json!({ "entityValue": instance_arn(id), "status": "PENDING" }))
            .collect();
        let detail = json!({
            "eventArn": format!("arn:aws:health:{REGION}::event/EC2/{}/{}", change.code, change.id),
            "service": "EC2",
            "eventTypeCode": change.code,
            "eventTypeCategory": "scheduledChange",
            "eventScopeCode": "ACCOUNT_SPECIFIC",
            "communicationId": format!("{}-1", change.id),
            "startTime": change.starts.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(),
            "statusCode": change.status,
            "eventRegion": REGION,
            "affectedEntities": entities,
            "affectedAccount": ACCOUNT,
            "page": "1",
            "totalPages": "1",
            "backupEvent": "false",
        });
        let arns: Vec<String> = instances.iter().map(|id| instance_arn(id)).collect();
        self.tell("aws.health", "AWS Health Event", &arns, &detail, now);
    }

    /// EC2 warns that a Capacity Block ends, and terminates its machines ten minutes later.
    pub fn end_capacity_block(&mut self, reservation: &str, now: Timestamp) {
        let end = after(now, BLOCK_END).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let detail = json!({ "capacity-reservation-id": reservation, "end-date": end });
        let arn = format!("arn:aws:ec2:{REGION}:{ACCOUNT}:capacity-reservation/{reservation}");
        self.tell("aws.ec2", "Capacity Block Reservation Expiration Warning", &[arn], &detail, now);
        let at = after(now, BLOCK_WARNING);
        let inside = self.events.reservations.iter().filter(|(_, within)| *within == reservation);
        let inside: Vec<_> = inside.map(|(instance, _)| (at, instance.clone())).collect();
        self.events.taken_back.extend(inside);
    }
}

/// Events.
impl Aws {
    /// EventBridge sends all events of instances to this queue from now on.
    pub fn send_events_to(&self, queue: &str) {
        self.script(|state, _| {
            state.announce();
            state.events.target = Some(queue.to_owned());
        });
    }

    /// EC2 gives notice of a Spot interruption, and takes the machine two minutes later.
    pub fn interrupt_spot(&self, instance: &str) {
        self.script(|state, now| state.interrupt_spot(instance, now));
    }

    /// EC2 recommends to replace a Spot instance. A group with Capacity Rebalancing does.
    pub fn recommend_rebalance(&self, instance: &str) {
        self.script(|state, now| state.recommend_rebalance(instance, now));
    }

    /// AWS Health announces a scheduled change; nothing happens to the instances.
    pub fn schedule_change(&self, change: &ScheduledChange, instances: &[&str]) {
        self.script(|state, now| state.schedule_change(change, instances, now));
    }

    /// Puts an instance into a Capacity Reservation.
    pub fn reserve(&self, instance: &str, reservation: &str) {
        self.script(|state, _| state.events.reservations.insert(instance.to_owned(), reservation.to_owned()));
    }

    /// EC2 warns that a Capacity Block ends, and terminates its machines ten minutes later.
    pub fn end_capacity_block(&self, reservation: &str) {
        self.script(|state, now| state.end_capacity_block(reservation, now));
    }
}
