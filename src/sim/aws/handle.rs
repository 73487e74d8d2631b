//! The handle on a simulated AWS: cheap to clone, keeps the state's time, speaks HTTP.
//!
//! Every read shows the state as of now. [`Aws::run`] makes things happen on time, for whoever follows the journal. The lock
//! is never held across an await.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, watch};

use super::behaviour::Behaviour;
use super::eks::NodeGroupSpec;
use super::group::{GroupSnapshot, InstanceSnapshot};
use super::journal::{Entry, TerminationCause};
use super::lifecycle::{HookSpec, LifecycleState};
use super::operation::Operation;
use super::power::Death;
use super::spec::{GroupSpec, LaunchConfigurationSpec, LaunchFailure};
use super::state::State;
use super::templates::{TemplateData, TemplateSpec};
use crate::clock::Clock;

/// A simulated AWS.
#[derive(Clone)]
pub struct Aws(Arc<Inner>);

struct Inner {
    kept: Mutex<Kept>,
    clock: Clock,
    /// Signals that something may be due earlier than before.
    moved: Notify,
}

struct Kept {
    state: State,
    /// [`State::next_due`], which looks at every instance, or the end of time; `None`: not asked since the state changed.
    due: Option<Timestamp>,
}

impl Kept {
    fn next_due(&mut self) -> Timestamp {
        *self.due.get_or_insert_with(|| self.state.next_due().unwrap_or(Timestamp::MAX))
    }

    /// Performs what is due by `now`.
    fn step(&mut self, now: Timestamp) {
        if self.next_due() <= now {
            self.state.step(now);
            self.due = None;
        }
    }
}

impl Aws {
    /// An empty AWS. The same seed and the same calls give the same ids.
    pub fn new(clock: Clock, seed: u64) -> Self {
        let kept = Mutex::new(Kept { state: State::new(seed), due: None });
        Self(Arc::new(Inner { kept, clock, moved: Notify::new() }))
    }

    /// Performs everything when it is due, for ever. The owner spawns it.
    pub async fn run(&self) {
        loop {
            let moved = self.0.moved.notified();
            let due = self.now().0.next_due();
            if due == Timestamp::MAX {
                moved.await;
                continue;
            }
            tokio::select! {
                () = self.0.clock.sleep_until(due) => self.look(|_| ()),
                () = moved => {}
            }
        }
    }

    /// Runs `act` on the state as of now.
    pub fn script<T>(&self, act: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        let result = self.with(|state, now| {
            state.past.keep(&state.groups, now);
            act(state, now)
        });
        self.0.moved.notify_one();
        result
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(super) fn look<T>(&self, see: impl FnOnce(&State) -> T) -> T {
        see(&self.now().0.state)
    }

    fn with<T>(&self, act: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        let (mut kept, now) = self.now();
        kept.due = None;
        let result = act(&mut kept.state, now);
        kept.state.follow(now);
        result
    }

    /// The state as of now.
    fn now(&self) -> (MutexGuard<'_, Kept>, Timestamp) {
        // A panic under the lock fails the test anyway; what others see then does not matter.
        let mut kept = self.0.kept.lock();
        let now = self.0.clock.now();
        kept.step(now);
        (kept, now)
    }
}

/// What exists at the start.
impl Aws {
    /// Sets the behaviour from now on. Existing groups keep their times.
    pub fn behave(&self, behaviour: Behaviour) {
        self.script(|state, _| {
            state.shared.behaviour = behaviour;
            state.past.reach(behaviour.stale.longest());
        });
    }

    /// Adds a group, or replaces one of the same name. It begins to launch.
    pub fn add_group(&self, spec: GroupSpec) {
        self.script(|state, now| state.add_group(spec, now));
    }

    /// Adds many groups at the same moment.
    pub fn add_groups(&self, specs: impl IntoIterator<Item = GroupSpec>) {
        self.script(|state, now| specs.into_iter().for_each(|spec| state.add_group(spec, now)));
    }

    /// Adds a launch template and returns its id.
    pub fn add_template(&self, spec: TemplateSpec) -> String {
        self.script(|state, now| state.add_template(spec, now))
    }

    /// Adds a version to the template called `name`.
    pub fn add_template_version(&self, name: &str, data: TemplateData) {
        self.script(|state, _| state.add_template_version(name, data));
    }

    /// Adds an image of this architecture (`x86_64`, `arm64`). The default image of templates exists already.
    pub fn add_image(&self, id: &str, architecture: &'static str) {
        self.script(|state, _| state.shared.images.insert(id.to_owned(), architecture));
    }

    /// Adds a launch configuration.
    pub fn add_launch_configuration(&self, spec: LaunchConfigurationSpec) {
        self.script(|state, now| state.add_launch_configuration(spec, now));
    }

    /// Adds an EKS managed node group, or replaces one of the same name.
    pub fn add_node_group(&self, spec: NodeGroupSpec) {
        self.script(|state, _| state.add_node_group(spec));
    }

    /// Removes a group with all its instances, without a journal entry.
    pub fn remove_group(&self, name: &str) {
        self.script(|state, now| state.remove_group(name, now));
    }

    /// Puts a tag on a group, or changes its value.
    pub fn tag_group(&self, group: &str, tag: &str, value: &str) {
        self.script(|state, _| state.tag_group(group, tag, value));
    }

    /// Removes a tag from a group.
    pub fn untag_group(&self, group: &str, tag: &str) {
        self.script(|state, _| state.untag_group(group, tag));
    }

    /// Adds an instance in any state, in which it stays. `None` without such a group.
    pub fn add_instance(&self, group: &str, state: LifecycleState) -> Option<String> {
        self.script(|world, now| world.add_instance(group, state, now))
    }

    /// The same with an id that a test calls it by.
    pub fn add_instance_as(&self, group: &str, id: &str, state: LifecycleState) {
        self.script(|world, now| {
            world.shared.next_id = Some(id.to_owned());
            world.add_instance(group, state, now)
        });
    }

    /// Puts an instance into a state, in which it stays; no hook holds it any more.
    pub fn set_state(&self, instance: &str, state: LifecycleState) {
        self.script(|world, now| world.set_state(instance, state, now));
    }
}

/// What happens to groups and instances.
impl Aws {
    /// Fails the group's next launches, this many times; `u32::MAX`: for ever, 0 ends it.
    pub fn fail_launches(&self, group: &str, failure: LaunchFailure, times: u32) {
        self.script(|state, _| state.fail_launches(group, failure, times));
    }

    /// The same in one zone.
    pub fn fail_launches_in(&self, group: &str, zone: &str, failure: LaunchFailure, times: u32) {
        self.script(|state, _| state.fail_launches_in(group, Some(zone), failure, times));
    }

    /// Fails the group's next launches after `Pending`, this many times: the instance never becomes healthy.
    pub fn fail_boots(&self, group: &str, times: u32) {
        self.script(|state, _| state.fail_boots(group, times));
    }

    /// A person detaches an instance, with or without a decrement.
    pub fn detach(&self, instance: &str, decrement: bool) {
        self.script(|state, now| state.detach(instance, decrement, now));
    }

    /// A person moves an instance to Standby, with or without a decrement.
    pub fn set_aside(&self, instance: &str, decrement: bool) {
        self.script(|state, now| state.set_aside(instance, decrement, now));
    }

    /// A person sets the desired capacity.
    pub fn set_desired(&self, group: &str, desired: u32) {
        self.script(|state, now| state.set_desired(group, desired, now));
    }

    /// An instance's machine dies. The group knows at once and replaces it; an instance held by a terminating hook stays
    /// held.
    pub fn kill_machine(&self, instance: &str, death: Death) {
        self.script(|state, now| state.kill_machine(instance, death, now));
    }

    /// Puts a hook on a group, or replaces one of the same name. Instances that are held already keep the old terms.
    pub fn put_hook(&self, group: &str, hook: HookSpec) {
        self.script(|state, _| state.put_hook(group, hook));
    }

    /// Suspends a process of a group (`Launch`, `Terminate`, …), or resumes it.
    pub fn suspend(&self, group: &str, process: &str, on: bool) {
        self.script(|state, now| state.suspend(group, process, on, now));
    }

    /// Removes a hook from a group and lets its instances go.
    pub fn delete_hook(&self, group: &str, hook: &str) {
        self.script(|state, now| state.delete_hook(group, hook, now));
    }

    /// Has a group terminate instances whose hook is abandoned, not keep them.
    pub fn stop_retaining(&self, group: &str) {
        self.script(|state, _| state.stop_retaining(group));
    }

    /// Begins to delete a group with all its instances. It refuses changes until it is gone.
    pub fn delete_group(&self, name: &str) {
        self.script(|state, now| state.delete_group(name, now));
    }

    /// Puts an instance into service at once: one being launched, or else an extra one, for which the group then terminates
    /// another by its policy.
    pub fn launch_now(&self, group: &str) -> Option<String> {
        self.script(|state, now| state.launch_now(group, now))
    }

    /// The group terminates an instance at once and launches another.
    pub fn terminate(&self, instance: &str, cause: TerminationCause) {
        self.script(|state, now| state.terminate(instance, cause, now));
    }

    /// Gives this instance's address, and with it its Node's name, to the next instance.
    pub fn reuse_address(&self, instance: &str) {
        self.script(|state, _| state.reuse_address(instance));
    }

    /// An instance's health checks fail from now on.
    pub fn fail_health_check(&self, instance: &str) {
        self.script(|state, now| state.fail_health_check(instance, now));
    }

    /// The group replaces an instance to balance its zones, the new one first. False for an instance that is protected from
    /// scale-in or on its way out.
    pub fn rebalance(&self, instance: &str) -> bool {
        self.script(|state, now| state.rebalance(instance, now))
    }

    /// The group replaces an instance of its fullest zone. Returns which.
    pub fn rebalance_group(&self, group: &str) -> Option<String> {
        self.script(|state, now| state.rebalance_group(group, now))
    }

    /// The group replaces all its instances, one at a time.
    pub fn refresh(&self, group: &str) {
        self.script(|state, now| state.refresh(group, now));
    }

    /// The group replaces the root volumes of all its instances, one at a time. Does nothing in a group with a warm
    /// pool.
    pub fn replace_root_volumes(&self, group: &str) {
        self.script(|state, now| state.replace_root_volumes(group, now));
    }

    /// Runs `effect` when the next call of `operation` arrives, before its effect.
    pub fn before_next(
        &self,
        operation: Operation,
        effect: impl FnOnce(&mut State, Timestamp) + Send + 'static,
    ) {
        self.script(|state, _| state.before_next(operation, effect));
    }

    /// Runs `effect` after the effect of the next call of `operation`, before its answer is sent.
    pub fn after_next(
        &self,
        operation: Operation,
        effect: impl FnOnce(&mut State, Timestamp) + Send + 'static,
    ) {
        self.script(|state, _| state.after_next(operation, effect));
    }
}

/// What a test can read.
impl Aws {
    /// The group as of now.
    pub fn group(&self, name: &str) -> Option<GroupSnapshot> {
        self.look(|state| state.groups.get(name).map(super::group::Group::snapshot))
    }

    /// The instance as of now; `Terminated` if it is gone.
    pub fn instance(&self, id: &str) -> Option<InstanceSnapshot> {
        self.look(|state| {
            let past = || state.shared.past.get(id).map(|(instance, _)| instance);
            state.instance(id).or_else(past).map(super::group::Instance::snapshot)
        })
    }

    /// The whole journal.
    pub fn journal(&self) -> Vec<Entry> {
        self.look(|state| state.shared.journal.entries().to_vec())
    }

    /// How often `operation` was called, including lost and refused calls.
    pub fn calls(&self, operation: Operation) -> usize {
        self.look(|state| state.shared.journal.calls(operation))
    }

    /// The journal's entries from now on.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Entry> {
        self.with(|state, _| state.shared.journal.subscribe())
    }

    /// The number of journal entries; changes with each new one.
    pub fn changed(&self) -> watch::Receiver<usize> {
        self.look(|state| state.shared.journal.changed())
    }

    /// Waits until `holds` is true; checked after each change. Needs [`Aws::run`] for whatever takes time.
    pub async fn until(&self, mut holds: impl FnMut(&Self) -> bool) {
        let mut changed = self.changed();
        while !holds(self) {
            // Cannot fail: the sender lives in the state, as long as `self`.
            let _ = changed.changed().await;
        }
    }
}
