//! Pods' runs: where, from when to when, and how they ended, from the cluster's journal.
//!
//! Invariant: a run ends once. A pod that was asked to go before its containers ran ends right then, because the journal has
//! no exit for it.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::bars::PodEnd;
use super::facts::Facts;
use crate::sim::cluster::{By, Cut, Entry, Event, Name};

/// One stay of a pod on a node.
#[derive(Clone, Debug)]
pub struct Run {
    /// The pod.
    pub pod: Name,
    /// Its node.
    pub node: String,
    /// Whether it stays until the instance goes.
    pub daemon: bool,
    /// When its containers began to run.
    pub from: Option<Timestamp>,
    /// The first time it was asked to go.
    pub asked: Option<Asked>,
    /// When and how it ended.
    pub end: Option<(Timestamp, PodEnd)>,
}

/// A pod was asked to go.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When.
    pub at: Timestamp,
    /// How.
    pub by: By,
    /// The grace, in seconds.
    pub grace: i64,
}

impl Run {
    /// Whether it is a workload whose containers ran.
    pub fn is_workload(&self) -> bool {
        !self.daemon && self.from.is_some()
    }

    /// Whether it had not ended by then.
    pub fn lasts_beyond(&self, moment: Timestamp) -> bool {
        self.end.is_none_or(|(end, _)| end > moment)
    }

    fn end(&mut self, at: Timestamp, how: PodEnd) {
        self.end.get_or_insert((at, how));
    }
}

/// All runs, in the order in which pods came to their nodes.
pub fn runs(cluster: &[Entry], facts: &Facts) -> Vec<Run> {
    let mut book = Book { facts, runs: Vec::new(), open: BTreeMap::new() };
    for entry in cluster {
        book.read(entry);
    }
    book.runs
}

struct Book<'a> {
    facts: &'a Facts,
    runs: Vec<Run>,
    open: BTreeMap<Name, usize>,
}

impl Book<'_> {
    fn read(&mut self, entry: &Entry) {
        let at = entry.at;
        match &entry.what {
            Event::PodScheduled { pod, node } => {
                if let Some(old) = self.close(pod) {
                    // Another pod with that name has taken its place.
                    let how = if old.from.is_some() { PodEnd::Removed } else { PodEnd::NeverRan };
                    old.end(at, how);
                }
                self.begin(pod, node);
            }
            // Once more where a machine came back.
            Event::PodRunning { pod, node } => drop(self.of(pod, node).from.get_or_insert(at)),
            Event::PodAsked { pod, by, grace, .. } => {
                let Some(run) = self.open.get(pod).and_then(|index| self.runs.get_mut(*index)) else {
                    return;
                };
                run.asked.get_or_insert(Asked { at, by: *by, grace: *grace });
                if run.from.is_none() {
                    run.end(at, PodEnd::NeverRan);
                    self.open.remove(pod);
                }
            }
            Event::PodExited { pod, node } => {
                self.of(pod, node).end(at, PodEnd::Exited);
                self.open.remove(pod);
            }
            Event::CutShort { pod, node, by } => {
                let how = match by {
                    Cut::GraceOver => PodEnd::GraceOver,
                    Cut::PowerOff => PodEnd::PowerOff,
                };
                self.of(pod, node).end(at, how);
                self.open.remove(pod);
            }
            Event::PoweredOff { node } => self.power_off(node, at),
            _ => {}
        }
    }

    /// DaemonSet pods end with their instance; workloads cut short have their own entries.
    fn power_off(&mut self, node: &str, at: Timestamp) {
        let here = self.runs.iter_mut().filter(|run| run.node == node && run.end.is_none());
        for run in here.filter(|run| !run.is_workload()) {
            run.end(at, if run.from.is_some() { PodEnd::WithInstance } else { PodEnd::NeverRan });
            self.open.remove(&run.pod);
        }
    }

    fn begin(&mut self, pod: &Name, node: &str) -> usize {
        let daemon = self.facts.is_daemon(pod);
        self.open.insert(pod.clone(), self.runs.len());
        self.runs.push(Run {
            pod: pod.clone(),
            node: node.to_owned(),
            daemon,
            from: None,
            asked: None,
            end: None,
        });
        self.runs.len() - 1
    }

    fn close(&mut self, pod: &Name) -> Option<&mut Run> {
        let index = self.open.remove(pod)?;
        self.runs.get_mut(index)
    }

    /// The pod's run, started now if the journal has not mentioned it before.
    fn of(&mut self, pod: &Name, node: &str) -> &mut Run {
        let index = match self.open.get(pod) {
            Some(index) => *index,
            None => self.begin(pod, node),
        };
        &mut self.runs[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_begins_once_though_its_machine_comes_back() {
        let (pod, node) = (Name::from("web"), "n1".to_owned());
        let at = |second| Timestamp::from_second(second).expect("in range");
        let running = Event::PodRunning { pod: pod.clone(), node: node.clone() };
        let journal = [
            Entry { at: at(1), what: Event::PodScheduled { pod, node } },
            Entry { at: at(2), what: running.clone() },
            Entry { at: at(60), what: running },
        ];
        assert_eq!(runs(&journal, &Facts::default())[0].from, Some(at(2)));
    }
}
