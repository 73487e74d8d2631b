//! Root volumes replaced under running instances: a strategy of instance refresh.
//!
//! Terminating hooks hold the instance first (`ReplacingRootVolume:Wait`); then it restarts from its new volume and returns
//! to service. It counts as capacity throughout, and nothing is launched in its place.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/replace-root-volume.html>

use jiff::Timestamp;

use super::group::{Group, after};
use super::journal::Event;
use super::lifecycle::{LifecycleState, Transition};
use super::state::Shared;

impl Group {
    /// Starts to replace an instance's root volume; false if it is not in service, or the group has a warm pool.
    pub(super) fn begin_volume(&mut self, shared: &mut Shared, id: &str, at: Timestamp) -> bool {
        let serves = self.instances.get(id).is_some_and(|i| i.state == LifecycleState::InService);
        if !serves || self.policies.warm_pool.is_some() {
            return false;
        }
        self.enter(shared, id, LifecycleState::ReplacingRootVolume, at);
        match self.policies.deregistration + shared.draw(self.timing.deregister) {
            none if none.is_zero() => self.take_volume(shared, id, at),
            takes => self.due(id, after(at, takes)),
        }
        true
    }

    /// `ReplacingRootVolume` is over: hooks hold the instance, if any.
    pub(super) fn take_volume(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        if !self.hold(shared, id, Transition::Terminating, at) {
            self.replace_volume(shared, id, at);
        }
    }

    /// No hook holds the instance any more.
    pub(super) fn replace_volume(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        self.enter(shared, id, LifecycleState::ReplacingRootVolumeProceed, at);
        let (group, instance) = (self.name.clone(), id.to_owned());
        shared.journal.record(at, Event::Rebooted { group, instance });
        self.due(id, after(at, shared.draw(self.timing.volume)));
    }

    /// The instance runs from its new volume; its health is checked before it is in service.
    pub(super) fn give_volume(&mut self, shared: &mut Shared, id: &str, at: Timestamp) {
        self.enter(shared, id, LifecycleState::RootVolumeReplaced, at);
        self.due(id, after(at, shared.draw(self.timing.volume)));
    }
}
