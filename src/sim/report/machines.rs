//! Each instance's life, from AWS's journal.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::sim::aws::{Entry, Event, HookResult, LifecycleState, Power, TerminationCause, Transition};

/// An instance.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// Its group.
    pub group: String,
    /// When it was launched; `None` if before the journal.
    pub launched: Option<Timestamp>,
    /// When it was in service.
    pub in_service: Option<Timestamp>,
    /// The beginning of its termination.
    pub ending: Option<Ending>,
    /// Whether a hook ever held its termination.
    pub held: bool,
    /// When its termination was no longer held.
    pub released: Option<Timestamp>,
    /// When it was gone.
    pub gone: Option<Timestamp>,
    /// Hooks that timed out during its termination and ended it.
    pub timed_out: u64,
    /// Whether its group kept it then, machine and workloads.
    pub retained: bool,
    holds: BTreeSet<String>,
}

/// The beginning of an instance's termination.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// When.
    pub at: Timestamp,
    /// Why.
    pub cause: TerminationCause,
}

impl Life {
    fn let_go(&mut self, hook: &str, result: HookResult, at: Timestamp) {
        if self.ending.is_none() {
            return;
        }
        match result {
            HookResult::Continue => {
                self.holds.remove(hook);
            }
            HookResult::Abandon => self.holds.clear(),
        }
        if self.holds.is_empty() {
            self.released.get_or_insert(at);
        }
    }

    /// Whether it was in service when its termination began; so were instances older than the journal.
    pub fn was_in_service(&self) -> bool {
        self.in_service.is_some() || self.launched.is_none()
    }
}

/// The instances by id.
pub fn machines(aws: &[Entry]) -> BTreeMap<String, Life> {
    let mut all: BTreeMap<String, Life> = BTreeMap::new();
    for entry in aws {
        let at = entry.at;
        match &entry.what {
            Event::InstanceLaunched { group, instance, .. } => {
                of(&mut all, group, instance).launched = Some(at);
            }
            Event::InService { group, instance } => of(&mut all, group, instance).in_service = Some(at),
            Event::TerminationStarted { group, instance, cause, .. } => {
                let life = of(&mut all, group, instance);
                life.ending = Some(Ending { at, cause: *cause });
                // Unless a later entry says that a hook holds it. What its group ends by itself runs on until its machine is off.
                life.released = (*cause == TerminationCause::Request).then_some(at);
            }
            Event::Powered { group, instance, power: Power::ShuttingDown } => {
                let life = of(&mut all, group, instance);
                if life.ending.is_some() && !life.held {
                    life.released.get_or_insert(at);
                }
            }
            Event::EnteredWait { group, instance, hook, transition: Transition::Terminating, .. } => {
                let life = of(&mut all, group, instance);
                life.holds.insert(hook.clone());
                (life.held, life.released) = (true, None);
            }
            Event::HookCompleted { group, instance, hook, result } => {
                of(&mut all, group, instance).let_go(hook, *result, at);
            }
            Event::HookTimedOut { group, instance, hook, result } => {
                let life = of(&mut all, group, instance);
                life.timed_out += u64::from(life.ending.is_some());
                life.let_go(hook, *result, at);
            }
            Event::Entered { group, instance, state: LifecycleState::TerminatingRetained } => {
                let life = of(&mut all, group, instance);
                (life.retained, life.timed_out, life.released) = (true, 0, None);
            }
            Event::Terminated { group, instance } => {
                let life = of(&mut all, group, instance);
                life.gone = Some(at);
                life.released.get_or_insert(at);
            }
            _ => {}
        }
    }
    all
}

fn of<'a>(all: &'a mut BTreeMap<String, Life>, group: &str, instance: &str) -> &'a mut Life {
    let life = all.entry(instance.to_owned()).or_default();
    group.clone_into(&mut life.group);
    life
}
