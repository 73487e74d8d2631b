//! A scenario that fails is made smaller: fewer happenings, workloads, nodes, groups, replicas, as long as the same invariant fails.

use crate::run::played;
use crate::scenario::{Scenario, What};

/// A scenario is played no more often than this.
const TRIES: usize = 150;

/// The smallest scenario found that still violates `invariant`.
pub(crate) fn shrink(scenario: &Scenario, invariant: &str) -> Scenario {
    let mut best = scenario.clone();
    let mut tries = 0;
    loop {
        let smaller = candidates(&best).into_iter().find(|candidate| {
            tries += 1;
            tries <= TRIES && fails(candidate, invariant)
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

fn fails(scenario: &Scenario, invariant: &str) -> bool {
    played(scenario.clone()).1.iter().any(|(name, _)| *name == invariant)
}

/// Scenarios with one part less, the most promising first.
fn candidates(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut without = |change: &dyn Fn(&mut Scenario)| {
        let mut smaller = scenario.clone();
        change(&mut smaller);
        all.push(smaller);
    };
    for n in 0..scenario.happenings.len() {
        without(&|smaller| drop(smaller.happenings.remove(n)));
    }
    for workload in &scenario.workloads {
        without(&|smaller| {
            smaller.workloads.retain(|other| other.name != workload.name);
            smaller
                .happenings
                .retain(|other| !matches!(&other.what, What::Comes(name) if *name == workload.name));
        });
    }
    if scenario.groups.len() > 1 {
        // A place beyond the last group is nobody's.
        without(&|smaller| smaller.groups.truncate(smaller.groups.len() - 1));
    }
    for (n, _) in scenario.groups.iter().enumerate().filter(|(_, group)| group.nodes > 1) {
        without(&|smaller| {
            let group = &mut smaller.groups[n];
            group.nodes -= 1;
            group.min = group.min.min(group.nodes);
        });
    }
    for (n, _) in scenario.workloads.iter().enumerate().filter(|(_, workload)| workload.pods > 1) {
        without(&|smaller| smaller.workloads[n].pods -= 1);
    }
    if scenario.program.replicas > 1 {
        without(&|smaller| smaller.program.replicas = 1);
    }
    if scenario.autoscaler.is_some() {
        without(&|smaller| smaller.autoscaler = None);
    }
    all
}
