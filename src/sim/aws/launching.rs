//! How instances come: decided, attempted, `Pending`, held by launching hooks, `InService`.
//!
//! A failed launch stays decided and is tried again; the desired capacity does not change.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html>

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::activity::{Activity, Status, launch_cause};
use super::group::{Group, Instance, Launch, Origin, Source, Try, after};
use super::instance_types;
use super::journal::{Event, TerminationCause};
use super::lifecycle::{LifecycleState, Transition};
use super::power::Power;
use super::spec::{LaunchFailure, MixedSpec, Override};
use super::state::Shared;

/// Least pause between attempts, so that time moves on.
const SHORTEST_RETRY: Duration = Duration::from_secs(1);

/// Launches made to fail.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) failure: LaunchFailure,
    /// How many more.
    pub(super) left: u32,
    /// In this zone only, if set.
    pub(super) zone: Option<String>,
}

/// What an instance is launched as.
struct Blueprint {
    instance_type: String,
    image: String,
    spot: bool,
    origin: Origin,
}

/// What AWS says that it does, before the instance is known.
///
/// <https://github.com/aws-samples/amazon-ec2-auto-scaling-group-examples/tree/main/features/warm-pools>; of launches into the
/// pool that fail nothing is published: the same, as of the others.
fn description(launch: &Launch) -> &'static str {
    if launch.warm { "Launching a new EC2 instance into warm pool" } else { "Launching a new EC2 instance" }
}

impl Group {
    /// Decides to launch an instance, in the zone with the fewest, as the group is to grow from one size to another.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html>, instance distribution
    pub(super) fn decide_launch(
        &mut self,
        shared: &mut Shared,
        replaces: Option<String>,
        sizes: (usize, usize),
        at: Timestamp,
    ) {
        let avoid = replaces.as_ref().and_then(|old| self.instances.get(old)).map(|old| old.zone.clone());
        let zone = self.emptiest_zone(avoid.as_deref());
        let cause = launch_cause(at, self.last_change.as_deref(), replaces.is_some(), sizes);
        let weighed = match replaces.as_ref().and_then(|old| self.instances.get(old)) {
            Some(old) => old.weight.map(|weight| (old.instance_type.clone(), weight)),
            None => self.next_weighed(),
        };
        let due = after(at, shared.draw(self.timing.launch));
        let launch = Launch { zone, weighed, due, replaces, cause, failed: false, trying: None, warm: false };
        self.launches.insert(shared.next_number(), launch);
    }

    /// Decides to launch an instance into the warm pool.
    pub(super) fn decide_warm_launch(&mut self, shared: &mut Shared, at: Timestamp) {
        self.decide_launch(shared, None, self.one_more(), at);
        if let Some(mut decided) = self.launches.last_entry() {
            decided.get_mut().warm = true;
        }
    }

    /// Attempts a decided launch.
    pub(super) fn attempt(&mut self, shared: &mut Shared, number: u64, at: Timestamp) {
        let Some(mut launch) = self.launches.remove(&number) else { return };
        if let Some(in_vain) = launch.trying.take() {
            return self.fail(shared, launch, in_vain, at);
        }
        if self.suspends("Launch") {
            return;
        }
        let Some(blueprint) = self.blueprint(shared, &launch) else {
            let failure = LaunchFailure::Other {
                code: "InvalidLaunchTemplateId.VersionNotFound".to_owned(),
                message: "You must use a valid fully-formed launch template.".to_owned(),
            };
            self.try_in_vain(shared, launch, usize::MAX, &failure, "", at);
            return;
        };
        if let Some((failure, left)) = self.failure_in(&launch.zone) {
            let tried =
                self.try_in_vain(shared, launch, left as usize, &failure, &blueprint.instance_type, at);
            return self.count_off(tried);
        }
        let warm = launch.warm;
        let id = self.place(shared, launch, blueprint, at);
        if warm {
            self.enter(shared, &id, LifecycleState::WarmedPending, at);
        }
        self.due(&id, after(at, shared.draw(self.timing.boot)));
    }

    /// The scripted failure of launches in this zone, and how many are to fail, if there is one.
    fn failure_in(&self, zone: &str) -> Option<(LaunchFailure, u32)> {
        let failing = self.failing.as_ref().filter(|f| f.zone.as_deref().is_none_or(|only| only == zone))?;
        Some((failing.failure.clone(), failing.left))
    }

    /// Counts off so many failures of those that were scripted.
    fn count_off(&mut self, failed: usize) {
        self.failing = self.failing.take().and_then(|failing| {
            let left = failing.left.saturating_sub(failed as u32);
            (left > 0).then_some(Failing { left, ..failing })
        });
    }

    /// Starts an attempt that fails, at once or after a while. Launches that are of the same try fail with it, so that they are `most`
    /// at most. Returns how many they are.
    fn try_in_vain(
        &mut self,
        shared: &mut Shared,
        launch: Launch,
        most: usize,
        failure: &LaunchFailure,
        instance_type: &str,
        at: Timestamp,
    ) -> usize {
        let is_alone = !shared.behaviour.fails_at_once || launch.is_alone();
        let others = if is_alone { Vec::new() } else { self.take_others_of_try(&launch.zone, most - 1) };
        let (zone, description) = (launch.zone.clone(), description(&launch).to_owned());
        let mut cause = launch.cause.clone();
        let tried: Vec<_> = [launch].into_iter().chain(others).collect();
        if !is_alone {
            let from = self.capacity();
            let to = from + tried.iter().map(Launch::units).sum::<usize>();
            cause = launch_cause(at, self.last_change.as_deref(), false, (from, to));
        }
        let begun = Activity {
            id: shared.uuid(),
            group: self.name.clone(),
            description,
            cause,
            started: at,
            ended: None,
            status: Status::InProgress,
            message: None,
            zone: Some(zone.clone()),
        };
        let activity = shared.next_number();
        self.activities.insert(activity, begun);
        let message = failure.message(instance_type, &zone);
        let in_vain = Try { activity, code: failure.code().to_owned(), message };
        let takes = shared.draw(self.timing.failure);
        let count = tried.len();
        for mut launch in tried {
            if takes.is_zero() {
                self.fail(shared, launch, in_vain.clone(), at);
            } else {
                (launch.due, launch.trying) = (after(at, takes), Some(in_vain.clone()));
                self.launches.insert(shared.next_number(), launch);
            }
        }
        count
    }

    /// Takes up to `most` launches in this zone out of those that are decided.
    fn take_others_of_try(&mut self, zone: &str, most: usize) -> Vec<Launch> {
        let others = self.launches.iter().filter(|(_, other)| !other.is_alone() && other.zone == zone);
        let numbers: Vec<u64> = others.map(|(number, _)| *number).take(most).collect();
        numbers.iter().filter_map(|number| self.launches.remove(number)).collect()
    }

    fn fail(&mut self, shared: &mut Shared, launch: Launch, in_vain: Try, at: Timestamp) {
        let Try { activity, code, message } = in_vain;
        if let Some(activity) = self.activities.get_mut(&activity).filter(|tried| tried.ended.is_none()) {
            activity.fail(&format!("{message} Launching EC2 instance failed."), at);
        }
        let (group, zone) = (self.name.clone(), launch.zone.clone());
        shared.journal.record(at, Event::LaunchFailed { group, zone, code, message });
        let due = after(at, shared.draw(self.timing.retry).max(SHORTEST_RETRY));
        // The next attempt is in another zone:
        // <https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html>, instance distribution.
        let zone = self.emptiest_zone(Some(&launch.zone));
        self.launches.insert(shared.next_number(), Launch { due, zone, failed: true, ..launch });
    }

    /// Creates the instance of `launch`, `Pending` and with nothing due.
    fn place(&mut self, shared: &mut Shared, launch: Launch, blueprint: Blueprint, at: Timestamp) -> String {
        let id = shared.instance_id();
        let activity = shared.next_number();
        self.activities.insert(
            activity,
            Activity {
                id: shared.uuid(),
                group: self.name.clone(),
                description: format!("{}: {id}", description(&launch)),
                cause: launch.cause,
                started: at,
                ended: None,
                status: Status::PreInService,
                message: None,
                zone: Some(launch.zone.clone()),
            },
        );
        let Blueprint { instance_type, image, spot, origin } = blueprint;
        shared.journal.record(
            at,
            Event::InstanceLaunched {
                group: self.name.clone(),
                instance: id.clone(),
                zone: launch.zone.clone(),
                instance_type: instance_type.clone(),
            },
        );
        let instance = Instance {
            id: id.clone(),
            group: self.name.clone(),
            zone: launch.zone,
            instance_type,
            weight: launch.weighed.map(|(_, weight)| weight),
            image,
            spot,
            origin,
            address: shared.address(),
            tags: self.instance_tags(),
            launched: at,
            state: LifecycleState::Pending,
            healthy: true,
            protected: self.protect_new,
            waits: Vec::new(),
            due: None,
            activity,
            replaces: launch.replaces,
            power: Power::Pending,
        };
        shared.homes.insert(id.clone(), self.name.clone());
        self.instances.insert(id.clone(), instance);
        id
    }

    /// Creates an instance in `state` at once, without hooks, in place of a decided launch if there is one.
    pub(super) fn launch_now(
        &mut self,
        shared: &mut Shared,
        state: LifecycleState,
        at: Timestamp,
    ) -> Option<String> {
        let first = self.launches.iter().find(|(_, launch)| !launch.warm).map(|(number, _)| *number);
        let decided = first.filter(|_| state.counts()).and_then(|number| self.launches.remove_entry(&number));
        let launch = decided.map_or_else(
            || Launch {
                zone: self.emptiest_zone(None),
                weighed: self.next_weighed(),
                due: at,
                replaces: None,
                cause: launch_cause(at, self.last_change.as_deref(), false, self.one_more()),
                failed: false,
                trying: None,
                warm: false,
            },
            |(_, launch)| launch,
        );
        let blueprint = self.blueprint(shared, &launch)?;
        let id = self.place(shared, launch, blueprint, at);
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.switch(shared, Power::implied(state), at);
        }
        if state == LifecycleState::InService {
            self.enter_service(shared, &id, at);
        } else {
            self.enter(shared, &id, state, at);
        }
        Some(id)
    }

    /// The instance has booted: launching hooks hold it, or it is in service. Its machine runs in either case.
    ///
    /// <https://github.com/aws/aws-node-termination-handler/issues/292>: nodes join while `Pending:Wait`.
    pub(super) fn boot(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        if let Some(left) = self.failing_boots.checked_sub(1) {
            self.failing_boots = left;
            return self.terminate(shared, id, TerminationCause::LaunchFailed, false, at);
        }
        instance.switch(shared, Power::Running, at);
        if !self.hold(shared, id, Transition::Launching, at) {
            self.enter_service(shared, id, at);
        }
    }

    pub(super) fn enter_service(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        instance.state = LifecycleState::InService;
        let replaced = instance.replaces.take();
        if let Some(activity) = self.activities.get_mut(&instance.activity) {
            activity.end(Status::Successful, at);
        }
        self.last_activity_end = Some(at);
        shared.journal.record(at, Event::InService { group: self.name.clone(), instance: id.to_owned() });
        if let Some(old) = replaced
            && let Some(cause) = self.replacing.remove(&old)
            && self.counted().any(|instance| instance.id == old)
            // The group stays as large as it is until the process is resumed:
            // <https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html>
            && !self.suspends("Terminate")
        {
            self.terminate(shared, &old, cause, false, at);
        }
    }

    fn blueprint(&self, shared: &Shared, launch: &Launch) -> Option<Blueprint> {
        let spot_override = self.mixed.as_ref().map(|mixed| self.next_is_spot(mixed));
        match &self.source {
            Source::Configuration(name) => {
                let configuration = shared.configurations.get(name)?;
                Some(Blueprint {
                    instance_type: configuration.spec.instance_type.clone(),
                    image: configuration.spec.image.clone(),
                    spot: configuration.spec.spot_price.is_some(),
                    origin: Origin::Configuration(name.clone()),
                })
            }
            Source::Template { id, name, version } => {
                let weighed = launch.weighed.as_ref().map(|(name, _)| name.clone());
                let by_policy = weighed.or_else(|| self.mixed.as_ref().and_then(first_type));
                let own = by_policy.as_ref().and_then(|chosen| self.own_template(shared, chosen));
                let (id, name, version) = own.unwrap_or((id, name, version));
                let template = shared.templates.get(id)?;
                let version = template.resolve(version)?;
                let data = template.data(version)?;
                let by_requirements =
                    || data.requirements.as_ref().and_then(|wanted| first_meeting(|t| wanted.met_by(t)));
                Some(Blueprint {
                    image: self.mixed.as_ref().and_then(own_image).unwrap_or(&data.image).clone(),
                    instance_type: by_policy
                        .or_else(|| data.instance_type.clone())
                        .or_else(by_requirements)?,
                    spot: spot_override.unwrap_or(data.spot),
                    origin: Origin::Template { id: id.clone(), name: name.clone(), version },
                })
            }
        }
    }

    /// Id, name and version of the launch template that an override has for this type.
    fn own_template<'a>(
        &'a self,
        shared: &'a Shared,
        instance_type: &str,
    ) -> Option<(&'a String, &'a String, &'a String)> {
        let (name, version) =
            self.mixed.iter().flat_map(|mixed| &mixed.overrides).find_map(|one| match one {
                Override::Type { name, template: Some((own, version)), .. } if name == instance_type => {
                    Some((own, version))
                }
                _ => None,
            })?;
        let (id, _) = shared.templates.iter().find(|(_, template)| template.spec.name == *name)?;
        Some((id, name, version))
    }

    /// The next launch of a policy with weights: instances until the desired capacity is reached, or exceeded if none fits.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-weighting.html>. Which one AWS chooses
    /// depends on the allocation strategy and on what is to be had.
    fn next_weighed(&self) -> Option<(String, u32)> {
        let lines = self.mixed.iter().flat_map(|mixed| &mixed.overrides).filter_map(|one| match one {
            Override::Type { name, weight, .. } => Some((name.clone(), (*weight)?)),
            Override::Requirements { .. } => None,
        });
        let lines: Vec<_> = lines.collect();
        let missing = (self.desired as usize).saturating_sub(self.capacity());
        lines.iter().find(|(_, weight)| *weight as usize <= missing).or(lines.first()).cloned()
    }

    /// Whether the next launch is Spot: On-Demand up to the base, then enough to keep the percentage.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_InstancesDistribution.html>
    fn next_is_spot(&self, mixed: &MixedSpec) -> bool {
        let count = self.counted().count();
        let on_demand = self.counted().filter(|instance| !instance.spot).count();
        let base = mixed.on_demand_base as usize;
        let beyond = (count + 1).saturating_sub(base);
        on_demand >= base + (beyond * mixed.on_demand_percentage as usize).div_ceil(100)
    }

    fn instance_tags(&self) -> BTreeMap<String, String> {
        let mut tags: BTreeMap<_, _> = self
            .tags
            .iter()
            .filter(|(_, (_, propagate))| *propagate)
            .map(|(key, (value, _))| (key.clone(), value.clone()))
            .collect();
        // <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-tagging.html>
        tags.insert("aws:autoscaling:groupName".to_owned(), self.name.clone());
        tags
    }

    /// The zone with the fewest instances, the first among equals; not `avoid`, if there is another.
    fn emptiest_zone(&self, avoid: Option<&str>) -> String {
        let load = |zone: &&String| {
            let there = self.counted().map(|i| &i.zone).filter(|z| z == zone).count();
            let coming =
                self.launches.values().filter(|launch| launch.zone == **zone && !launch.warm).count();
            (Some(zone.as_str()) == avoid, there + coming)
        };
        self.zones.iter().min_by_key(load).cloned().unwrap_or_default()
    }
}

/// The image of a policy that asks for attributes, if it has one of its own.
fn own_image(mixed: &MixedSpec) -> Option<&String> {
    mixed.overrides.iter().find_map(|one| match one {
        Override::Type { .. } => None,
        Override::Requirements { image, .. } => image.as_ref(),
    })
}

fn first_type(mixed: &MixedSpec) -> Option<String> {
    mixed.overrides.iter().find_map(|one| match one {
        Override::Type { name, .. } => Some(name.clone()),
        Override::Requirements { wanted, .. } => first_meeting(|candidate| wanted.met_by(candidate)),
    })
}

fn first_meeting(accepts: impl Fn(&instance_types::InstanceType) -> bool) -> Option<String> {
    instance_types::TYPES.iter().find(|candidate| accepts(candidate)).map(|found| found.name.to_owned())
}
