//! A simulated Kubernetes cluster: an API server for the real `kube` client, with a scheduler, controllers, kubelets and log
//! shippers.
//!
//! ```text
//!  kube::Client ─▶ World::call ─▶ State::send ─▶ api ─▶ verbs, watch, eviction ─▶ store ─▶ watches, journal
//!                                                                                    │
//!                Cluster::run ──▶ State::step  ◀── tasks (scheduler, workloads, …) ◀─┘
//! ```
//!
//! [`Cluster`] is a handle on a pure `State`: requests and moments in, replies out. Time is the clock's, so a paused runtime
//! runs hours in milliseconds; the same seed gives the same history. The lock is never held across an await. Kubelets and
//! controllers do not use HTTP, so faults do not slow them down.
//!
//! Not modelled: server-side apply and managed fields, admission webhooks that change objects, the Deployment controller
//! (the objects exist), preemption, spreading and pod affinity, container restarts, deletion of a namespace's content,
//! expiry of events.

mod api;
mod containers;
mod daemon_sets;
mod deletion;
mod discovery;
mod disruption;
mod eks_node;
mod eviction;
mod faults;
mod fit;
mod health;
mod journal;
mod kubelet;
mod logs;
mod names;
mod nodes;
mod object;
mod patch;
mod policies;
mod queue;
mod reactions;
mod requests;
mod resources;
mod route;
mod rules;
mod scale;
mod scheduler;
mod script;
mod selectors;
mod spec;
mod state;
mod status;
mod store;
mod table;
mod timing;
mod verbs;
mod volumes;
mod watch;
mod what_if;
mod workloads;

mod inspect;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, watch as signal};

use self::spec::Made;
use self::state::State;
use crate::clock::Clock;
use crate::sim::http::kube_client;

pub use self::faults::Fault;
pub use self::journal::{By, Cut, Entry, Event, NodeChange};
pub use self::logs::Lines;
pub use self::names::Name;
pub use self::policies::{EBBTIDE, Rights};
pub use self::route::Verb;
pub use self::script::Backup;
pub use self::spec::{
    Bare, BudgetSpec, Completions, DaemonSetSpec, Everywhere, Fixture, JobSpec, NodeSpec, Ordinals, PodSpec,
    ReplicaSetSpec, Replicas, StatefulSetSpec, Taint, Workload, budget, daemon_set, job, node, pod,
    replica_set, stateful_set,
};
pub use self::timing::Timing;

/// A handle on a simulated cluster; clones are the same cluster.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}

struct Shared {
    state: Mutex<State>,
    wake: Notify,
    clock: Clock,
}

impl Cluster {
    /// An empty cluster. The owner spawns [`Cluster::run`].
    pub fn new(clock: Clock, seed: u64) -> Self {
        let state = Mutex::new(State::new(clock.now(), seed));
        Self(Arc::new(Shared { state, wake: Notify::new(), clock }))
    }

    /// A real client of this cluster, without a socket.
    pub fn client(&self) -> kube::Client {
        kube_client(Arc::new(self.clone()))
    }

    /// Runs kubelets and controllers, until dropped.
    pub async fn run(&self) {
        loop {
            let woken = self.0.wake.notified();
            let due = {
                let mut state = self.lock();
                state.step(self.0.clock.now());
                state.next_due()
            };
            match due {
                Some(due) => tokio::select! {
                    () = woken => {}
                    () = self.0.clock.sleep_until(due) => {}
                },
                None => woken.await,
            }
        }
    }

    /// Adds a node, a pod, a workload or a budget, and its namespace if missing. An object of the same name is replaced; a
    /// Node is adopted by its new machine.
    pub fn add(&self, fixture: impl Into<Fixture>) -> &Self {
        let Fixture(made) = fixture.into();
        self.change(|state| match made {
            Made::Machine(spec) => state.start_machine(spec),
            Made::Object(resource, name, value) => state.install(resource, &name, value),
        });
        self
    }

    /// Starts a machine whose Node registers after its boot time.
    pub fn register_node(&self, spec: NodeSpec) {
        self.add(spec);
    }

    /// The whole journal.
    pub fn journal(&self) -> Vec<Entry> {
        self.read(|state| state.journal.entries().to_vec())
    }

    /// The journal's entries from now on.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Entry> {
        self.change(|state| state.journal.subscribe())
    }

    /// Changes whenever an object or the journal does.
    pub fn changed(&self) -> signal::Receiver<u64> {
        self.read(|state| state.journal.changed())
    }

    /// Waits until `condition` holds, at most `limit`. Returns whether it did.
    pub async fn until(&self, limit: Duration, mut condition: impl FnMut(&Self) -> bool) -> bool {
        let mut changed = self.changed();
        let holds = async {
            while !condition(self) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, holds).await.is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Reads the state as of now.
    fn read<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        state.step(self.0.clock.now());
        look(&mut state)
    }

    /// Changes the state and wakes the controllers.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = self.read(change);
        self.0.wake.notify_one();
        result
    }
}
