//! A scenario that fails is made smaller as long as it fails: half of what happens goes first, then ever smaller parts, then whatever
//! makes the rest special.

use crate::generate;
use crate::scenario::{Budget, Cause, Flags, Group, GroupCause, Happening, Scenario, What, Workload};

/// A scenario is tried no more often than this.
const TRIES: usize = 300;

/// The smallest scenario found that still fails.
pub(crate) fn shrink(scenario: &Scenario, fails: impl FnMut(&Scenario) -> bool) -> Scenario {
    let mut search = Search { best: scenario.clone(), left: TRIES, fails };
    loop {
        let before = search.best.clone();
        search.without_parts(|scenario| &mut scenario.happenings);
        search.without_parts(|scenario| &mut scenario.workloads);
        search.with_fewer_groups();
        search.with_smaller_numbers();
        search.plainer();
        if search.best == before || search.left == 0 {
            return search.best;
        }
    }
}

struct Search<F> {
    best: Scenario,
    /// How many tries are left.
    left: usize,
    fails: F,
}

impl<F: FnMut(&Scenario) -> bool> Search<F> {
    /// Takes a change of the scenario if it fails all the same. Returns whether it does.
    fn takes(&mut self, change: impl FnOnce(&mut Scenario)) -> bool {
        let mut smaller = self.best.clone();
        change(&mut smaller);
        tidy(&mut smaller);
        if smaller == self.best || self.left == 0 {
            return false;
        }
        self.left -= 1;
        let fails = (self.fails)(&smaller);
        if fails {
            self.best = smaller;
        }
        fails
    }

    /// Leaves out parts of a list: halves, quarters, and single ones in the end.
    fn without_parts<T>(&mut self, list: fn(&mut Scenario) -> &mut Vec<T>) {
        let mut size = list(&mut self.best).len().div_ceil(2);
        while size > 0 {
            let mut from = 0;
            while from < list(&mut self.best).len() {
                let is_taken = self.takes(|smaller| {
                    let list = list(smaller);
                    let to = list.len().min(from + size);
                    list.drain(from..to);
                });
                from += if is_taken { 0 } else { size };
            }
            size /= 2;
        }
    }

    fn with_fewer_groups(&mut self) {
        for n in (0..self.best.groups.len()).rev() {
            if self.best.groups.len() > 1 {
                self.takes(|smaller| without_group(smaller, n));
            }
        }
    }

    fn with_smaller_numbers(&mut self) {
        for n in 0..numbers(&mut self.best).len() {
            loop {
                let now = *numbers(&mut self.best)[n];
                let smaller = [1, now / 2, now - 1].into_iter().filter(|number| (1..now).contains(number));
                if !smaller.into_iter().any(|number| self.takes(|smaller| *numbers(smaller)[n] = number)) {
                    break;
                }
            }
        }
    }

    /// Makes what is left as plain as it can be.
    fn plainer(&mut self) {
        self.takes(|smaller| smaller.autoscaler = None);
        self.takes(|smaller| smaller.reuses_addresses = false);
        self.takes(|smaller| smaller.stays_blocked = false);
        self.takes(|smaller| smaller.is_hasty = false);
        for plain in FLAGS {
            self.takes(|smaller| plain(&mut smaller.program));
        }
        for n in 0..self.best.groups.len() {
            for plain in GROUPS {
                self.takes(|smaller| plain(&mut smaller.groups[n]));
            }
        }
        for n in 0..self.best.workloads.len() {
            for plain in WORKLOADS {
                self.takes(|smaller| plain(&mut smaller.workloads[n]));
            }
        }
    }
}

const FLAGS: &[fn(&mut Flags)] = &[
    |flags| flags.replicas = 1,
    |flags| flags.drain_timeout = None,
    |flags| flags.waits_at_deadline = false,
    |flags| flags.patience = None,
    |flags| flags.flush = 5,
    |flags| flags.has_queue = false,
    |flags| flags.drains_on_rebalance = false,
    |flags| flags.manages_hooks = false,
];

const GROUPS: &[fn(&mut Group)] = &[
    |group| group.min = 0,
    |group| group.zones = 1,
    |group| group.foreign = None,
    |group| group.retains = false,
    |group| group.warm_pool = false,
    |group| group.weighs = false,
    |group| group.is_spot = false,
    |group| group.launches_first = false,
    |group| group.deregisters = 0,
];

const WORKLOADS: &[fn(&mut Workload)] = &[
    |workload| workload.budget = None,
    |workload| workload.priority = None,
    |workload| workload.is_patient = false,
    |workload| workload.tolerates_all = false,
    |workload| workload.has_finalizer = false,
    |workload| workload.pre_stop = 0,
    |workload| workload.order = None,
    |workload| workload.is_postponed = false,
    |workload| {
        workload.grace = 30;
        workload.exits = workload.exits.min(10);
    },
];

/// Numbers that are one at the least.
fn numbers(scenario: &mut Scenario) -> Vec<&mut u32> {
    let nodes = scenario.groups.iter_mut().map(|group| &mut group.nodes);
    nodes.chain(scenario.workloads.iter_mut().map(|workload| &mut workload.pods)).collect()
}

/// Leaves out what is about something that is not there any more.
fn tidy(scenario: &mut Scenario) {
    for group in &mut scenario.groups {
        group.min = group.min.min(group.nodes);
    }
    let workloads = &scenario.workloads;
    scenario.happenings.retain(|happening| match &happening.what {
        What::Comes(name) => workloads.iter().any(|workload| workload.name == *name),
        _ => true,
    });
}

/// Leaves out a group with all that is about it. Those after it are one place further to the front.
fn without_group(scenario: &mut Scenario, n: usize) {
    scenario.groups.remove(n);
    scenario.workloads.retain(|workload| workload.comes_to != Some(n));
    scenario.happenings.retain(|happening| !matches!(happening.what, What::Group(_, place) if place == n));
    let places = scenario.happenings.iter_mut().filter_map(|happening| match &mut happening.what {
        What::Group(_, place) => Some(place),
        _ => None,
    });
    let comes_to = scenario.workloads.iter_mut().filter_map(|workload| workload.comes_to.as_mut());
    for place in places.chain(comes_to).filter(|place| **place > n) {
        *place -= 1;
    }
}

/// A sentence, and whether it is true.
pub(crate) type Fact = (&'static str, fn() -> bool);

/// What must be true of it, on scenarios that nobody plays.
pub(crate) const FACTS: &[Fact] = &[
    ("of a large scenario that fails for a cause and a workload, these are left", || {
        let has_both = |scenario: &Scenario| {
            let is_interrupted = |what: &What| matches!(what, What::Cause(Cause::Spot, _));
            let blocks = |workload: &Workload| workload.budget == Some(Budget::Blocks);
            scenario.happenings.iter().any(|happening| is_interrupted(&happening.what))
                && scenario.workloads.iter().any(blocks)
        };
        let large = large().find(has_both).expect("some seed has both");
        let least = shrink(&large, has_both);
        has_both(&least)
            && (least.happenings.len(), least.workloads.len(), least.groups.len()) == (1, 1, 1)
            && (least.groups[0].nodes, least.workloads[0].pods, least.program.replicas) == (1, 1, 1)
            && least.autoscaler.is_none()
            && least.workloads[0].priority.is_none()
    }),
    ("what fails for two things far apart keeps both", || {
        let large = large().next().expect("some seed is large");
        let (first, last) = (large.happenings.first().cloned(), large.happenings.last().cloned());
        let has_both = |scenario: &Scenario| {
            let has =
                |one: &Option<Happening>| scenario.happenings.iter().any(|other| one.as_ref() == Some(other));
            has(&first) && has(&last)
        };
        shrink(&large, has_both).happenings.len() == 2
    }),
    ("a group goes with what is about it, and those after it are still meant", || {
        let refreshes = |scenario: &Scenario| {
            scenario.happenings.iter().any(|happening| match happening.what {
                What::Group(GroupCause::Refresh, place) => {
                    scenario.groups.get(place).is_some_and(|group| group.name == "batch")
                }
                _ => false,
            })
        };
        let large = large().find(refreshes).expect("some seed refreshes it");
        let least = shrink(&large, refreshes);
        least.groups.len() == 1 && least.happenings.len() == 1 && refreshes(&least)
    }),
    ("what fails for no reason any more stays as it was, and is not tried for ever", || {
        let large = large().next().expect("some seed is large");
        let mut tries = 0;
        let least = shrink(&large, |_| {
            tries += 1;
            false
        });
        least == large && tries <= TRIES
    }),
];

/// Scenarios of many groups, nodes and happenings.
fn large() -> impl Iterator<Item = Scenario> {
    (0..).map(generate::scenario).filter(|scenario| scenario.groups.len() > 3)
}
