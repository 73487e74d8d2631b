//! Scripted changes to the simulated AWS from behind its API.
//!
//! The handle has the same functions without `now`. On the state they serve effects that run in the middle of a call (see
//! [`State::before_next`]).

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::faults::Effect;
use super::group::{Group, Source};
use super::journal::TerminationCause;
use super::launching::Failing;
use super::lifecycle::{HookSpec, LifecycleState};
use super::operation::Operation;
use super::power::{Death, Power};
use super::spec::{GroupSpec, LaunchConfigurationSpec, LaunchFailure, LaunchSource};
use super::state::{LaunchConfiguration, State};
use super::templates::{Template, TemplateSpec};

/// Shortest heartbeat time-out, so that time moves on.
const SHORTEST_HEARTBEAT: u64 = 1;

impl State {
    /// Adds a launch template and returns its id.
    pub fn add_template(&mut self, spec: TemplateSpec, now: Timestamp) -> String {
        let id = self.shared.template_id();
        self.shared.templates.insert(id.clone(), Template { id: id.clone(), spec, created: now });
        id
    }

    /// Adds a version to the template called `name`.
    pub fn add_template_version(&mut self, name: &str, data: super::TemplateData) {
        let found = self.shared.templates.values_mut().find(|template| template.spec.name == name);
        if let Some(template) = found {
            template.spec.versions.push(data);
        }
    }

    /// Adds a launch configuration.
    pub fn add_launch_configuration(&mut self, spec: LaunchConfigurationSpec, now: Timestamp) {
        let configuration = LaunchConfiguration { spec, created: now };
        self.shared.configurations.insert(configuration.spec.name.clone(), configuration);
    }

    /// Adds a group, or replaces one of the same name; it starts to launch.
    pub fn add_group(&mut self, spec: GroupSpec, now: Timestamp) {
        let source = match spec.source {
            LaunchSource::Configuration(name) => Source::Configuration(name),
            LaunchSource::Own(data) => {
                let name = spec.name.clone();
                let id = self.add_template(TemplateSpec::named(&name).version(*data), now);
                Source::Template { id, name, version: "1".to_owned() }
            }
            LaunchSource::Template { name, version } => {
                let found = self.shared.templates.values().find(|template| template.spec.name == name);
                let id = found.map(|template| template.id.clone()).unwrap_or_default();
                Source::Template { id, name, version }
            }
        };
        let hook = |hook: HookSpec| {
            let heartbeat = hook.heartbeat.as_secs().max(SHORTEST_HEARTBEAT);
            (hook.name.clone(), hook.heartbeat(heartbeat))
        };
        let mut group = Group {
            name: spec.name.clone(),
            uuid: self.shared.uuid(),
            min: spec.min,
            max: spec.max,
            desired: spec.desired,
            zones: spec.zones,
            source,
            mixed: spec.mixed,
            tags: spec.tags,
            hooks: spec.hooks.into_iter().map(hook).collect(),
            suspended: spec.suspended,
            protect_new: spec.protect_new,
            cooldown: spec.cooldown,
            timing: spec.timing.map_or(self.shared.behaviour.timing, |timing| *timing),
            created: now,
            instances: BTreeMap::new(),
            launches: BTreeMap::new(),
            activities: BTreeMap::new(),
            failing: None,
            failing_boots: 0,
            replacing: BTreeMap::new(),
            refresh: None,
            last_change: None,
            last_activity_end: None,
            blocked: false,
            looks_at: None,
            balances_at: None,
            policies: *spec.policies,
            deleting: None,
        };
        if spec.running {
            let mut launched = true;
            while launched && group.capacity() < spec.desired as usize {
                launched = group.launch_now(&mut self.shared, LifecycleState::InService, now).is_some();
            }
            group.last_activity_end = None;
        }
        group.settle(&mut self.shared, now);
        self.groups.insert(spec.name, group);
    }

    /// Removes a group with all its instances, without a journal entry.
    pub fn remove_group(&mut self, name: &str, now: Timestamp) {
        let group = self.groups.remove(name);
        for (_, mut instance) in group.map(|group| group.instances).unwrap_or_default() {
            instance.state = LifecycleState::Terminated;
            self.shared.bury(instance, now);
        }
    }

    /// Starts to delete a group with all its instances, as DeleteAutoScalingGroup with `ForceDelete` does.
    pub fn delete_group(&mut self, name: &str, now: Timestamp) {
        if let Ok((group, shared)) = self.group_mut(name) {
            group.delete(shared, now);
        }
    }

    /// Puts a hook on a group, or replaces one of the same name. Instances already held keep the old terms.
    pub fn put_hook(&mut self, group: &str, hook: HookSpec) {
        if let Some(group) = self.groups.get_mut(group) {
            group.hooks.insert(hook.name.clone(), hook);
        }
    }

    /// Suspends a process of a group (`Launch`, `Terminate`, …), or resumes it.
    pub fn suspend(&mut self, group: &str, process: &str, on: bool, now: Timestamp) {
        if let Ok((group, shared)) = self.group_mut(group) {
            if on {
                group.suspended.insert(process.to_owned());
            } else {
                group.suspended.remove(process);
            }
            group.settle(shared, now);
        }
    }

    /// Removes a hook from a group and lets its instances go.
    pub fn delete_hook(&mut self, group: &str, hook: &str, now: Timestamp) {
        if let Ok((group, shared)) = self.group_mut(group) {
            group.delete_hook(shared, hook, now);
            group.settle(shared, now);
        }
    }

    /// Has a group terminate instances whose hook is abandoned, not keep them.
    pub fn stop_retaining(&mut self, group: &str) {
        if let Some(group) = self.groups.get_mut(group) {
            group.policies.retains = false;
        }
    }

    /// Puts a tag on a group, or changes its value.
    pub fn tag_group(&mut self, group: &str, tag: &str, value: &str) {
        if let Some(group) = self.groups.get_mut(group) {
            group.tags.insert(tag.to_owned(), (value.to_owned(), true));
        }
    }

    /// Removes a tag from a group.
    pub fn untag_group(&mut self, group: &str, tag: &str) {
        if let Some(group) = self.groups.get_mut(group) {
            group.tags.retain(|key, _| key != tag);
        }
    }

    /// Fails the group's next launches, this many times, in any zone.
    pub fn fail_launches(&mut self, group: &str, failure: LaunchFailure, times: u32) {
        self.fail_launches_in(group, None, failure, times);
    }

    /// Fails the group's next launches, this many times; in this zone only, if one is named.
    pub fn fail_launches_in(&mut self, group: &str, zone: Option<&str>, failure: LaunchFailure, times: u32) {
        if let Some(group) = self.groups.get_mut(group) {
            let zone = zone.map(str::to_owned);
            group.failing = (times > 0).then_some(Failing { failure, left: times, zone });
        }
    }

    /// Fails the group's next launches after `Pending`, this many times: the instance never becomes healthy.
    pub fn fail_boots(&mut self, group: &str, times: u32) {
        if let Some(group) = self.groups.get_mut(group) {
            group.failing_boots = times;
        }
    }

    /// A person detaches an instance, with or without a decrement.
    pub fn detach(&mut self, instance: &str, decrement: bool, now: Timestamp) {
        if let Some((group, shared)) = self.group_of_mut(instance) {
            group.detach(shared, instance, decrement, now);
            group.settle(shared, now);
        }
    }

    /// A person moves an instance to Standby, with or without a decrement.
    pub fn set_aside(&mut self, instance: &str, decrement: bool, now: Timestamp) {
        if let Some((group, shared)) = self.group_of_mut(instance) {
            group.set_aside(shared, instance, decrement, now);
            group.settle(shared, now);
        }
    }

    /// A person sets the desired capacity.
    pub fn set_desired(&mut self, group: &str, desired: u32, now: Timestamp) {
        if let Ok((group, shared)) = self.group_mut(group) {
            let why = "a user request explicitly set group desired capacity";
            group.want(shared, desired, Operation::SetDesiredCapacity, why, now);
            group.settle(shared, now);
        }
    }

    /// An instance's machine dies. The group learns of it at once.
    pub fn kill_machine(&mut self, instance: &str, death: Death, now: Timestamp) {
        if let Some((group, shared)) = self.group_of_mut(instance) {
            group.kill(shared, instance, death, now);
        }
    }

    /// Puts an instance into service at once: one being launched, or else an extra one, for which the group then terminates
    /// another by its policy.
    pub fn launch_now(&mut self, group: &str, now: Timestamp) -> Option<String> {
        self.add_instance(group, LifecycleState::InService, now)
    }

    /// Adds an instance in any state at once.
    pub fn add_instance(&mut self, group: &str, state: LifecycleState, now: Timestamp) -> Option<String> {
        let (group, shared) = self.group_mut(group).ok()?;
        let id = group.launch_now(shared, state, now);
        group.settle(shared, now);
        id
    }

    /// Puts an instance into a state, in which it stays; no hook holds it any more.
    pub fn set_state(&mut self, instance: &str, state: LifecycleState, now: Timestamp) {
        let Some((group, shared)) = self.group_of_mut(instance) else { return };
        if let Some(found) = group.instances.get_mut(instance) {
            (found.due, found.replaces) = (None, None);
            found.waits.clear();
            found.switch(shared, Power::implied(state), now);
        }
        group.enter(shared, instance, state, now);
        group.settle(shared, now);
    }

    /// The group terminates an instance at once and launches another.
    pub fn terminate(&mut self, instance: &str, cause: TerminationCause, now: Timestamp) {
        if let Some((group, shared)) = self.group_of_mut(instance) {
            group.terminate(shared, instance, cause, false, now);
            group.settle(shared, now);
        }
    }

    /// Gives this instance's address, and with it its Node's name, to the next instance.
    ///
    /// <https://docs.aws.amazon.com/vpc/latest/userguide/vpc-ip-addressing.html>: an address is released when its instance
    /// terminates; small subnets reuse it soon.
    pub fn reuse_address(&mut self, instance: &str) {
        let past = self.shared.past.get(instance).map(|(instance, _)| instance.address);
        self.shared.free_address = self.instance(instance).map(|instance| instance.address).or(past);
    }

    /// An instance's health checks fail from now on.
    pub fn fail_health_check(&mut self, instance: &str, now: Timestamp) {
        if let Some((group, shared)) = self.group_of_mut(instance) {
            if let Some(found) = group.instances.get_mut(instance) {
                found.healthy = false;
            }
            group.settle(shared, now);
        }
    }

    /// The group replaces an instance to balance its zones, the new one first. False for an instance that is protected from
    /// scale-in or on its way out.
    pub fn rebalance(&mut self, instance: &str, now: Timestamp) -> bool {
        let Some((group, shared)) = self.group_of_mut(instance) else { return false };
        let accepted = group.rebalance(instance);
        group.settle(shared, now);
        accepted
    }

    /// The group replaces an instance of its fullest zone. Returns which.
    pub fn rebalance_group(&mut self, group: &str, now: Timestamp) -> Option<String> {
        let (group, shared) = self.group_mut(group).ok()?;
        let victim = group.rebalance_victim().filter(|victim| group.rebalance(victim));
        group.settle(shared, now);
        victim
    }

    /// The group replaces all its instances, one at a time.
    pub fn refresh(&mut self, group: &str, now: Timestamp) {
        if let Ok((group, shared)) = self.group_mut(group) {
            group.start_refresh(false);
            group.settle(shared, now);
        }
    }

    /// The group replaces the root volumes of all its instances, one at a time; not in a group with a warm pool.
    pub fn replace_root_volumes(&mut self, group: &str, now: Timestamp) {
        if let Ok((group, shared)) = self.group_mut(group) {
            group.start_refresh(true);
            group.settle(shared, now);
        }
    }

    /// Runs `effect` when the next call of `operation` arrives, before its effect.
    pub fn before_next(
        &mut self,
        operation: Operation,
        effect: impl FnOnce(&mut State, Timestamp) + Send + 'static,
    ) {
        self.faults.before_next(operation, Box::new(effect) as Effect);
    }

    /// Runs `effect` after the effect of the next call of `operation`, before its answer is sent.
    pub fn after_next(
        &mut self,
        operation: Operation,
        effect: impl FnOnce(&mut State, Timestamp) + Send + 'static,
    ) {
        self.faults.after_next(operation, Box::new(effect) as Effect);
    }
}
