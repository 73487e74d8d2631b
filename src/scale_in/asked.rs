//! One run's memory of a pod: its evictions and deletions, and their outcome.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::record::Phase;
use super::tries::{Task, Tries, jittered};
use crate::clock::{backoff, signed};
use crate::cluster::{Answer, BudgetSeen};

/// Pause between tries of an eviction that a budget blocks, the same as in `kubectl drain`.
/// Source: [kubectl drain](https://github.com/kubernetes/kubectl/blob/master/pkg/drain/drain.go).
pub(super) const BLOCKED: SignedDuration = SignedDuration::from_secs(5);

/// Longest pause, where the budget is watched: the pod is tried at once when the budget has room. Hundreds of nodes blocked for hours
/// should cost the API server less than a `kubectl drain` of each.
const BLOCKED_FOR_LONG: SignedDuration = SignedDuration::from_secs(30);

/// This many 429 answers in a row that name no budget mean a webhook that never gives in: flow control lets a request in within fewer
/// tries.
const PUT_OFF_FOR_EVER_AFTER: u32 = 3;

/// Evictions granted this often, half a minute apart, had no effect if the watch still shows no deletion.
const IN_VAIN_AFTER: u32 = 3;

/// What people are told then.
const IN_VAIN: &str = "granted repeatedly, but the pod is not deleted: a webhook may make it a dry run";

/// The same where evictions are refused because the namespace is being deleted, and the pod with it.
const NAMESPACE_STAYS: &str = "its namespace is being deleted, but the pod is not: a webhook may refuse the namespace controller's request";

/// A pod whose namespace is being deleted is asked again after this time.
const GOING_ANYWAY: SignedDuration = SignedDuration::from_secs(30);

/// Why the API server did not evict a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Budgets that covered the pod.
    pub budgets: Vec<BudgetSeen>,
    /// The answer, for people.
    pub text: String,
    /// What prevented the eviction.
    pub by: Obstacle,
}

/// What keeps a pod from being evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A budget without room.
    Budget,
    /// Flow control or a webhook wants the request repeated a little later.
    Busy,
    /// Anything else.
    Other,
}

/// What is remembered of one pod.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Tries to evict it.
    pub eviction: Tries,
    /// Tries to delete it.
    pub deletion: Tries,
    /// Tries to set or take off its guard.
    pub guard: Tries,
    /// When it was asked to go.
    pub to_go: Option<Timestamp>,
    /// Why it was not evicted.
    pub refusal: Option<Refusal>,
    /// How often its eviction was granted, or needless.
    granted: u32,
    /// How often in a row it was put off.
    put_off: u32,
    /// The phases in which an Event has said that it goes.
    told: BTreeSet<Phase>,
}

impl Asked {
    /// Of a pod that was asked nothing.
    pub(super) const NOTHING: Self = Self {
        eviction: Tries::NONE,
        deletion: Tries::NONE,
        guard: Tries::NONE,
        to_go: None,
        refusal: None,
        granted: 0,
        put_off: 0,
        told: BTreeSet::new(),
    };

    /// Whether the last answer told how long to wait.
    pub fn is_put_off(&self) -> bool {
        self.put_off > 0
    }

    /// Whether it was put off more often in a row than flow control ever does.
    pub fn is_put_off_for_ever(&self) -> bool {
        self.put_off >= PUT_OFF_FOR_EVER_AFTER
    }

    /// Notes that an Event says in this phase that it goes. Returns whether that Event is the first in the phase.
    pub fn tell_in(&mut self, phase: Phase) -> bool {
        self.told.insert(phase)
    }

    /// Notes the API server's answer to the eviction, and the budgets that covered the pod when asked.
    pub fn note_eviction(&mut self, task: &Task, answer: Answer, budgets: Vec<BudgetSeen>, now: Timestamp) {
        let tries = self.eviction.failures;
        let jittered = |pause| jittered(pause, (task, tries));
        if !matches!(answer, Answer::Busy(..) | Answer::Unsent) {
            self.put_off = 0;
        }
        let (text, by, pause) = match answer {
            Answer::Going | Answer::Gone => {
                if answer == Answer::Going {
                    self.note_granted(IN_VAIN);
                } else {
                    self.refusal = None;
                }
                self.to_go = Some(now);
                return self.eviction.worked(now);
            }
            Answer::GoingAnyway => {
                // The namespace controller deletes the pod, but has not yet.
                self.note_granted(NAMESPACE_STAYS);
                return self.eviction.put_off(now, GOING_ANYWAY);
            }
            Answer::Busy(pause, text) => {
                self.put_off += 1;
                if !self.is_put_off_for_ever() {
                    // Wait as long as the answer says. An earlier refusal stands, but the room that its budgets seemed to have is taken.
                    if let Some(refusal) = &mut self.refusal {
                        refusal.budgets = budgets;
                    } else {
                        self.refusal = Some(Refusal { budgets, text, by: Obstacle::Busy });
                    }
                    return self.eviction.failed(now, pause);
                }
                // A webhook that says so for ever: no more often than a budget.
                (text, Obstacle::Busy, pause.max(jittered(BLOCKED)))
            }
            Answer::Blocked(text) => {
                let longest = if budgets.is_empty() { BLOCKED } else { BLOCKED_FOR_LONG };
                let pause = backoff(tries + 1, BLOCKED.unsigned_abs(), longest.unsigned_abs());
                (text, Obstacle::Budget, jittered(signed(pause)))
            }
            Answer::Unclear(text) => (text, Obstacle::Other, jittered(task.pause_after(tries + 1))),
            Answer::Unsent => return self.eviction.unsent(now, jittered(task.pause_after(tries + 1))),
        };
        self.refusal = Some(Refusal { budgets, text, by });
        self.eviction.failed(now, pause);
    }

    /// Notes an eviction that was granted, or needless; `in_vain`: what people are told if that has had no effect again and again.
    fn note_granted(&mut self, in_vain: &str) {
        self.granted += 1;
        let told = || Refusal { budgets: Vec::new(), text: in_vain.to_owned(), by: Obstacle::Other };
        self.refusal = (self.granted >= IN_VAIN_AFTER).then(told);
    }

    /// Notes the API server's answer to the deletion.
    pub fn note_deletion(&mut self, task: &Task, answer: Answer, now: Timestamp) {
        let tries = self.deletion.failures;
        let pause = || jittered(task.pause_after(tries + 1), (task, tries));
        match answer {
            Answer::Going | Answer::Gone | Answer::GoingAnyway => {
                (self.refusal, self.to_go) = (None, Some(now));
                self.deletion.worked(now);
            }
            Answer::Busy(pause, _) => self.deletion.failed(now, pause),
            Answer::Unsent => self.deletion.unsent(now, pause()),
            Answer::Blocked(text) | Answer::Unclear(text) => {
                self.refusal = Some(Refusal { budgets: Vec::new(), text, by: Obstacle::Other });
                self.deletion.failed(now, pause());
            }
        }
    }
}
