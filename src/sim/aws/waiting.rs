//! Lifecycle hooks at work: an instance is held until each of its hooks is completed or times out.
//!
//! Each hook has its own token and timer. CONTINUE leaves the other hooks in force, ABANDON ends them all. On the way in,
//! ABANDON terminates and replaces the instance. On the way out, both results terminate it, unless the group retains
//! abandoned instances. On a return to a warm pool and before a root volume is replaced, both let it go on. (For the return
//! that is observed: <https://github.com/radkawar/stackd>, testdata/aws/autoscaling/warm_pool_return_abandon_native.json.
//! For root volumes nothing is documented.)
//!
//! A hook's action can be completed only a while after the instance is shown as waiting, see
//! [`Timing::action`](super::timing::Timing).
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks-overview.html> and
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/completing-lifecycle-hooks.html>

use jiff::Timestamp;

use super::activity::Status;
use super::error::ApiError;
use super::group::{Group, Wait, after};
use super::journal::{Event, TerminationCause};
use super::lifecycle::{HookResult, LifecycleState, Transition};
use super::state::Shared;

/// How a caller names a lifecycle action.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named<'a> {
    Token(&'a str),
    Instance(&'a str),
}

impl Named<'_> {
    fn not_active(self) -> ApiError {
        ApiError::validation(match self {
            Named::Token(token) => format!("No active Lifecycle Action found with token {token}"),
            Named::Instance(id) => format!("No active Lifecycle Action found with instance ID {id}"),
        })
    }
}

impl Group {
    /// Holds an instance with all hooks for `transition`; false if there are none.
    pub(super) fn hold(
        &mut self,
        shared: &mut Shared,
        id: &str,
        transition: Transition,
        at: Timestamp,
    ) -> bool {
        let hooks = self.hooks.values().filter(|hook| hook.transition == transition);
        let waits: Vec<Wait> = hooks
            .map(|hook| Wait {
                hook: hook.name.clone(),
                transition,
                token: shared.uuid(),
                opens: after(at, shared.draw(self.timing.action)),
                heartbeat: hook.heartbeat,
                expires: after(at, hook.heartbeat),
                limit: after(at, hook.global_timeout()),
                default: hook.default,
            })
            .collect();
        let Some(instance) = self.instances.get_mut(id).filter(|_| !waits.is_empty()) else { return false };
        let Some(state) = instance.state.waiting() else { return false };
        instance.state = state;
        if let Some(activity) = self.activities.get_mut(&instance.activity) {
            activity.status = match transition {
                Transition::Launching => Status::MidLifecycleAction,
                Transition::Terminating => Status::MidTerminatingLifecycleAction,
            };
        }
        for wait in &waits {
            let (group, instance) = (self.name.clone(), id.to_owned());
            let (hook, token) = (wait.hook.clone(), wait.token.clone());
            shared.journal.record(at, Event::EnteredWait { group, instance, hook, token, transition });
        }
        instance.waits = waits;
        true
    }

    /// Restarts a hook's time-out, up to the global one.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RecordLifecycleActionHeartbeat.html>
    pub(super) fn heartbeat(
        &mut self,
        shared: &mut Shared,
        hook: &str,
        named: Named<'_>,
        at: Timestamp,
    ) -> Result<(), ApiError> {
        let id = self.waiting(hook, named, at)?;
        let waits = self.instances.get_mut(&id).map(|instance| &mut instance.waits);
        for wait in waits.into_iter().flatten().filter(|wait| wait.hook == hook) {
            wait.expires = after(at, wait.heartbeat).min(wait.limit);
            let (group, instance, until) = (self.name.clone(), id.clone(), wait.expires);
            shared.journal.record(at, Event::Heartbeat { group, instance, hook: hook.to_owned(), until });
        }
        Ok(())
    }

    /// Completes a hook.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html>
    pub(super) fn complete(
        &mut self,
        shared: &mut Shared,
        hook: &str,
        named: Named<'_>,
        result: HookResult,
        at: Timestamp,
    ) -> Result<(), ApiError> {
        let id = self.waiting(hook, named, at)?;
        let (group, instance) = (self.name.clone(), id.clone());
        shared.journal.record(at, Event::HookCompleted { group, instance, hook: hook.to_owned(), result });
        self.release(shared, &id, hook, result, at);
        Ok(())
    }

    /// Lets go of what a deleted hook holds: instances leaving with CONTINUE, instances entering with ABANDON.
    ///
    /// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DeleteLifecycleHook.html>
    pub(super) fn delete_hook(&mut self, shared: &mut Shared, hook: &str, at: Timestamp) -> bool {
        let Some(removed) = self.hooks.remove(hook) else { return false };
        let result = match removed.transition {
            Transition::Launching => HookResult::Abandon,
            Transition::Terminating => HookResult::Continue,
        };
        let held = self.instances.values().filter(|i| i.waits.iter().any(|wait| wait.hook == hook));
        for id in held.map(|i| i.id.clone()).collect::<Vec<_>>() {
            let (group, instance) = (self.name.clone(), id.clone());
            let event = Event::HookCompleted { group, instance, hook: hook.to_owned(), result };
            shared.journal.record(at, event);
            self.release(shared, &id, hook, result, at);
        }
        true
    }

    /// Ends the hooks that timed out.
    pub(super) fn expire_waits(&mut self, shared: &mut Shared, at: Timestamp) {
        let expired: Vec<(String, String, HookResult)> = self
            .instances
            .values()
            .flat_map(|i| i.waits.iter().map(|wait| (i.id.clone(), wait)))
            .filter(|(_, wait)| wait.expires <= at)
            .map(|(id, wait)| (id, wait.hook.clone(), wait.default))
            .collect();
        for (id, hook, result) in expired {
            let held = self.instances.get(&id).is_some_and(|i| i.waits.iter().any(|wait| wait.hook == hook));
            if !held {
                // Ended by the ABANDON of another hook that timed out with it.
                continue;
            }
            let (group, instance) = (self.name.clone(), id.clone());
            shared.journal.record(at, Event::HookTimedOut { group, instance, hook: hook.clone(), result });
            self.release(shared, &id, &hook, result, at);
        }
    }

    fn release(&mut self, shared: &mut Shared, id: &str, hook: &str, result: HookResult, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        let Some(ended) = instance.waits.iter().position(|wait| wait.hook == hook) else { return };
        let ended = instance.waits.remove(ended);
        let abandoned = result == HookResult::Abandon;
        if abandoned {
            instance.waits.clear();
        }
        if !instance.waits.is_empty() {
            return;
        }
        let state = instance.state;
        if ended.transition == Transition::Launching && abandoned {
            return self.terminate(shared, id, TerminationCause::LaunchAbandoned, false, at);
        }
        let retained = state.retained().filter(|_| abandoned && self.policies.retains);
        if let Some(retained) = retained.filter(|_| ended.transition == Transition::Terminating) {
            return self.retain(shared, id, retained, &ended.token, at);
        }
        match state {
            LifecycleState::TerminatingWait => {
                self.shut_down(shared, id, LifecycleState::TerminatingProceed, at);
            }
            LifecycleState::WarmedTerminatingWait => {
                self.shut_down(shared, id, LifecycleState::WarmedTerminatingProceed, at);
            }
            LifecycleState::PendingWait => {
                instance.state = LifecycleState::PendingProceed;
                self.enter_service(shared, id, at);
            }
            LifecycleState::WarmedPendingWait => self.cool(shared, id, at),
            LifecycleState::ReplacingRootVolumeWait => self.replace_volume(shared, id, at),
            _ => {}
        }
    }

    /// The instance that `hook` holds under this name, if its action can be completed by now.
    fn waiting(&self, hook: &str, named: Named<'_>, at: Timestamp) -> Result<String, ApiError> {
        self.instances
            .values()
            .find(|instance| {
                instance.waits.iter().any(|wait| {
                    wait.hook == hook
                        && wait.opens <= at
                        && match named {
                            Named::Token(token) => wait.token == token,
                            Named::Instance(id) => instance.id == id,
                        }
                })
            })
            .map(|instance| instance.id.clone())
            .ok_or_else(|| named.not_active())
    }
}
