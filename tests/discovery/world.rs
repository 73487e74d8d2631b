//! A simulated AWS with a discovery on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::Aws;
use ebbtide::clock::Clock;
use ebbtide::groups::discovery::Discovery;
use ebbtide::groups::hooks::Hooks;
use ebbtide::groups::selector::Selectors;
use ebbtide::groups::{Groups, Snapshot};
use ebbtide::sim::aws::{Aws as SimulatedAws, Entry, Event, GroupSpec, Operation, Timing};
use ebbtide::sim::http::aws_client;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

pub(crate) const INTERVAL: Duration = Duration::from_mins(1);
pub(crate) const TAG: &str = "k8s.io/cluster-autoscaler/enabled";

pub(crate) struct World {
    pub(crate) sim: SimulatedAws,
    pub(crate) aws: Aws,
    pub(crate) clock: Clock,
    pub(crate) groups: Arc<Groups>,
    pub(crate) hooks: Arc<Hooks>,
    registry: Registry,
    tasks: JoinSet<()>,
}

/// A world with these groups, all of them settled.
pub(crate) async fn world(groups: impl IntoIterator<Item = GroupSpec>) -> World {
    let clock = Clock::starting_at(Timestamp::from_second(1_800_000_000).expect("in range"));
    let sim = SimulatedAws::new(clock.clone(), 1);
    let aws = Aws::at(aws_client(Arc::new(sim.clone())));
    let mut tasks = JoinSet::new();
    let running = sim.clone();
    tasks.spawn(async move { running.run().await });
    for group in groups {
        sim.add_group(group);
    }
    tokio::time::sleep(Duration::from_mins(2)).await;
    let hooks = Arc::new(Hooks::new(aws.clone(), "ebbtide", clock.clone()));
    let (groups, registry) = (Arc::new(Groups::new(Duration::from_mins(10))), Registry::default());
    World { sim, aws, clock, groups, hooks, registry, tasks }
}

/// A group that discovery is to find.
pub(crate) fn ours(name: &str) -> GroupSpec {
    GroupSpec::named(name).tag(TAG, "").timing(Timing::default()).already_running()
}

pub(crate) fn by_tag() -> Selectors {
    selectors(&[], &[&format!("asg:tag={TAG}")])
}

pub(crate) fn selectors(nodes: &[&str], discovery: &[&str]) -> Selectors {
    Selectors::parse(nodes, discovery).expect("well-formed")
}

impl World {
    pub(crate) fn discovery(&self, selectors: Selectors) -> Discovery {
        let (groups, hooks) = (Arc::clone(&self.groups), Arc::clone(&self.hooks));
        Discovery::new(
            self.aws.clone(),
            selectors,
            groups,
            hooks,
            Arc::default(),
            self.clock.clone(),
            INTERVAL,
        )
    }

    /// Starts the loop of discovery by tag.
    pub(crate) fn run(&mut self) {
        let discovery = self.discovery(by_tag());
        discovery.register(&mut self.registry);
        self.tasks.spawn(async move {
            discovery.run().await;
        });
    }

    /// What the loop's metrics tell.
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("writes to a string");
        text
    }

    /// Waits until the published view is as wanted, and complete.
    pub(crate) async fn until(&self, mut holds: impl FnMut(&Snapshot) -> bool) -> Arc<Snapshot> {
        let mut versions = self.groups.versions();
        loop {
            if let Some(snapshot) = self.groups.latest().filter(|view| view.is_complete && holds(view)) {
                return snapshot;
            }
            tokio::time::timeout(Duration::from_hours(1), versions.changed())
                .await
                .expect("the view is as wanted within an hour")
                .expect("the view goes on");
        }
    }

    /// Calls since the last time this was asked, by operation.
    pub(crate) fn calls_since(&self, seen: &mut usize) -> BTreeMap<Operation, usize> {
        let journal = self.sim.journal();
        let mut calls = BTreeMap::new();
        for Entry { what, .. } in &journal[*seen..] {
            if let Event::Called { operation, .. } = what {
                *calls.entry(*operation).or_default() += 1;
            }
        }
        *seen = journal.len();
        calls
    }
}
