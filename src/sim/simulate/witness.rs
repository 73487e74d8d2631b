//! Prints the simulation's events as they happen, and remembers what the journals do not say.

use std::io::Write;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::{Mutex, MutexGuard};

use crate::sim::cluster::{Cluster, Event};
use crate::sim::report::{Facts, Happening, Machine, Program, Scene, Seconds, live};
use crate::sim::world::{POOL, World};

/// Watches the simulation.
#[derive(Debug)]
pub(super) struct Witness {
    tells: bool,
    facts: Mutex<Facts>,
}

impl Witness {
    /// A witness that prints as it goes, if it `tells`.
    pub(super) fn new(tells: bool) -> Self {
        Self { tells, facts: Mutex::default() }
    }

    /// Watches both worlds, for ever.
    pub(super) async fn watch(&self, world: &World) {
        let (mut aws, mut cluster) = (world.aws.subscribe(), world.cluster.subscribe());
        let start = world.clock.now();
        loop {
            tokio::select! {
                biased;
                Some(entry) = aws.recv() => self.tell(&entry, start),
                Some(entry) = cluster.recv() => {
                    self.learn(&world.cluster, &entry.what);
                    self.tell(&entry, start);
                }
                else => return,
            }
        }
    }

    /// A scene begins.
    pub(super) fn scene(&self, at: Timestamp, title: &str) {
        self.say(&format!("\n-- {title}"));
        self.facts().scenes.push(Scene { at, title: title.to_owned() });
    }

    /// Something happens to the program.
    pub(super) fn program(&self, at: Timestamp, what: Program) {
        let mut facts = self.facts();
        let start = facts.scenes.first().map_or(at, |scene| scene.at);
        facts.program.push((at, what));
        drop(facts);
        self.say(&format!("{:>7}  {}", Seconds::between(start, at), what.words()));
    }

    /// A scene, not the program, asks for this instance's termination.
    pub(super) fn asked_for(&self, instance: &str) {
        self.facts().asked_for.insert(instance.to_owned());
    }

    /// Everything it knows, at the end.
    pub(super) fn facts_at_the_end(&self, cluster: &Cluster) -> Facts {
        let mut facts = self.facts().clone();
        facts.lines = facts.nodes.keys().map(|node| (node.clone(), cluster.lines(node))).collect();
        facts
    }

    fn tell<'a>(&self, entry: impl Into<Happening<'a>>, start: Timestamp) {
        if let Some(line) = live(entry, start) {
            self.say(&line);
        }
    }

    fn say(&self, line: &str) {
        if self.tells {
            // A closed pipe ends the output; the verdict is still computed.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }

    fn learn(&self, cluster: &Cluster, event: &Event) {
        match event {
            Event::NodeRegistered { node } => {
                if let Some(machine) = cluster.node(node).as_ref().and_then(machine) {
                    self.facts().nodes.insert(node.clone(), machine);
                }
            }
            Event::PodScheduled { pod, .. } => {
                let owners = cluster.pod(pod.clone()).and_then(|pod| pod.metadata.owner_references);
                if owners.into_iter().flatten().any(|owner| owner.kind == "DaemonSet") {
                    self.facts().daemons.insert(pod.clone());
                }
            }
            _ => {}
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock()
    }
}

/// The instance of a node.
pub(super) fn machine(node: &Node) -> Option<Machine> {
    let instance = node.spec.as_ref()?.provider_id.as_ref()?.rsplit('/').next()?.to_owned();
    let group = node.metadata.labels.as_ref()?.get(POOL)?.clone();
    Some(Machine { instance, group })
}
