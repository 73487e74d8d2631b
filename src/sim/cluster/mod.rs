//! A simulated Kubernetes cluster: an API server good enough for the real `kube` client, with a scheduler, controllers,
//! kubelets and log shippers behind it.
//!
//! ```text
//!  kube::Client ─▶ World::call ─▶ State::handle ─▶ route ─▶ api, watch, eviction ─▶ store ─▶ watches, journal
//!                                                                                    │
//!                Cluster::run ──▶ State::step  ◀── tasks (scheduler, workloads, …) ◀─┘
//! ```
//!
//! [`Cluster`] is a handle on one `State`, which is pure: requests and moments in, replies out. Time is
//! the clock's, so a paused runtime runs hours in milliseconds; the same seed gives the same history. Nothing waits
//! while it holds the lock. Kubelets and controllers do not go through HTTP and are not slowed down by faults.
//!
//! Not modelled: server-side apply and managed fields, admission webhooks, Deployments' and StatefulSets' controllers
//! (the objects exist), Jobs, preemption, spreading and pod affinity, preStop hooks and container restarts, the deletion of a namespace's content, the expiry of events. Requests take no
//! time unless a fault says so.

mod api;
mod containers;
mod deletion;
mod discovery;
mod disruption;
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
mod resources;
mod route;
mod rules;
mod scheduler;
mod selectors;
mod spec;
mod state;
mod status;
mod store;
mod timing;
mod volumes;
mod watch;
mod what_if;
mod workloads;

mod inspect;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::{Notify, mpsc, watch as signal};
use tokio_stream::wrappers::UnboundedReceiverStream;

use self::api::What;
use self::journal::Event as JournalEvent;
use self::nodes::Kubelet;
use self::resources::Resource;
use self::spec::Made;
use self::state::State;
use crate::clock::Clock;
use crate::sim::http::{Lost, Request, Response, World, kube_client, response};

pub use self::faults::Fault;
pub use self::journal::{By, Cut, Entry, Event, NodeChange};
pub use self::logs::Lines;
pub use self::names::Name;
pub use self::route::Verb;
pub use self::spec::{
    Bare, BudgetSpec, DaemonSetSpec, Everywhere, Fixture, NodeSpec, PodSpec, ReplicaSetSpec, Replicas, Taint,
    Workload, budget, daemon_set, node, pod, replica_set,
};
pub use self::timing::{Span, Timing};

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
    /// An empty cluster. Whoever owns it spawns [`Cluster::run`].
    pub fn new(clock: Clock, seed: u64) -> Self {
        let state = Mutex::new(State::new(clock.now(), seed));
        Self(Arc::new(Shared { state, wake: Notify::new(), clock }))
    }

    /// A real client on this cluster, without a socket in between.
    pub fn client(&self) -> kube::Client {
        kube_client(Arc::new(self.clone()))
    }

    /// Lets kubelets and controllers live, until dropped.
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

    /// Adds a node, a pod, a ReplicaSet, a DaemonSet or a budget; their namespace too, if it is missing. What is there
    /// under the same name is replaced, save for a Node, which its new machine adopts.
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

    /// The instance of a node is gone at this instant: its containers die, what they had not shipped is lost. The Node
    /// goes 5 s later, its pods another 2 s later.
    pub fn power_off(&self, node: &str) {
        self.change(|state| state.power_off(node));
    }

    /// Sets how long things take from now on. A new cluster has [`Timing::real`].
    pub fn set_timing(&self, timing: Timing) {
        self.change(|state| state.timing = timing);
    }

    /// The kubelet of a node dies: containers run on, nobody ends them, nobody tells of them.
    pub fn kill_kubelet(&self, node: &str) {
        self.change(|state| state.break_kubelet(node, Kubelet::Dead));
    }

    /// A node is cut off from the API server: its kubelet goes on with what it knows, and nothing is heard of it.
    pub fn partition(&self, node: &str) {
        self.change(|state| state.break_kubelet(node, Kubelet::CutOff));
    }

    /// The machine of a node hangs (a kernel panic): its containers end at this instant. To AWS it is still there.
    pub fn crash(&self, node: &str) {
        self.change(|state| state.break_kubelet(node, Kubelet::Crashed));
    }

    /// The kubelet of a node is started again, heard of again, or its machine has booted again.
    pub fn revive(&self, node: &str) {
        self.change(|state| state.revive(node));
    }

    /// Puts a namespace into the phase Terminating; its content stays.
    pub fn terminate_namespace(&self, name: &str) {
        self.change(|state| {
            state.ensure_namespace(name);
            let now = state.now;
            state.edit(Resource::Namespaces, &Name::cluster(name), |value| {
                value["metadata"]["deletionTimestamp"] = object::stamp(now);
                value["status"]["phase"] = json!("Terminating");
            });
        });
    }

    /// The next `requests` requests for `resource` (`"pods"`, `"pods/eviction"`) meet this fault.
    pub fn fail_next(&self, requests: u32, verb: Verb, resource: &str, fault: Fault) {
        self.change(|state| state.faults.add(requests, verb, resource, fault));
    }

    /// Takes back every fault of [`Cluster::fail_next`].
    pub fn no_more_faults(&self) {
        self.change(|state| state.faults.clear());
    }

    /// Connections to the API server break for so long, watches at once.
    pub fn api_down_for(&self, how_long: Duration) {
        self.change(|state| {
            state.faults.down_until(Some(state.now + how_long));
            state.watchers.clear();
        });
    }

    /// Connections to the API server break until [`Cluster::api_up`].
    pub fn api_down(&self) {
        self.change(|state| {
            state.faults.down_until(Some(Timestamp::MAX));
            state.watchers.clear();
        });
    }

    /// The API server can be reached again.
    pub fn api_up(&self) {
        self.change(|state| state.faults.down_until(None));
    }

    /// Ends every open watch, as an API server does that is restarted.
    pub fn close_watches(&self) {
        self.change(|state| state.watchers.clear());
    }

    /// Forgets history: a watch from any revision seen so far is answered with 410 Expired. Open watches go on.
    pub fn compact_history(&self) {
        self.change(|state| state.store.compact());
    }

    /// From now on RBAC refuses this, and access reviews say so.
    pub fn forbid(&self, verb: Verb, resource: &str) {
        self.change(|state| state.faults.forbid(verb, resource));
    }

    /// Everything that has happened.
    pub fn journal(&self) -> Vec<Entry> {
        self.read(|state| state.journal.entries().to_vec())
    }

    /// What happens from now on.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Entry> {
        self.change(|state| state.journal.subscribe())
    }

    /// Moves whenever an object or the journal does.
    pub fn changed(&self) -> signal::Receiver<u64> {
        self.read(|state| state.journal.changed())
    }

    /// Waits until `condition` holds, for `limit` at most; tells whether it came to hold.
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
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the state as it is now.
    fn read<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        state.step(self.0.clock.now());
        look(&mut state)
    }

    /// Changes the state, and lets the controllers know.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = self.read(change);
        self.0.wake.notify_one();
        result
    }
}

impl State {
    /// Adds an object from outside the API.
    fn install(&mut self, resource: Resource, name: &Name, mut value: serde_json::Value) {
        self.ensure_namespace(&name.namespace);
        self.remove(resource, name);
        let mut metadata = self.new_metadata(name);
        if let (Some(owned), Some(given)) = (metadata.as_object_mut(), value["metadata"].as_object_mut()) {
            owned.append(given);
        }
        value["metadata"] = metadata;
        if let Some(owners) = value["metadata"]["ownerReferences"].as_array().cloned() {
            for (index, owner) in owners.iter().enumerate() {
                let uid = self.uid_of_owner(&name.namespace, owner);
                value["metadata"]["ownerReferences"][index]["uid"] = json!(uid);
            }
        } else if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("ownerReferences");
        }
        let node = object::text(&value, &["spec", "nodeName"]).map(str::to_owned);
        rules::default(resource, &mut value);
        self.put(resource, value);
        if let Some(node) = node {
            self.note(JournalEvent::PodScheduled { pod: name.clone(), node });
        }
    }

    fn uid_of_owner(&mut self, namespace: &str, owner: &serde_json::Value) -> String {
        let part = |key| object::text(owner, &[key]).unwrap_or_default();
        let group = part("apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
        let resource = resources::ROWS.iter().find(|kind| kind.kind == part("kind") && kind.group == group);
        let found = resource.and_then(|kind| {
            let namespace = if kind.namespaced { namespace } else { "" };
            self.store.get(kind.resource, &Name::new(namespace, part("name")))
        });
        match found {
            Some(owner) => owner.uid().to_owned(),
            None => self.new_uid(),
        }
    }
}

#[async_trait]
impl World for Cluster {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let now = self.0.clock.now();
        let reply = self.lock().handle(&request, now);
        self.0.wake.notify_one();
        if !reply.delay.is_zero() {
            tokio::time::sleep(reply.delay).await;
        }
        match reply.what {
            What::Lost => Err(Lost),
            What::Whole { code, content_type, retry_after, body } => {
                let mut whole = response(code, content_type, body);
                if let Some(seconds) = retry_after {
                    whole.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
                }
                Ok(whole)
            }
            What::Stream(lines) => {
                let frames = UnboundedReceiverStream::new(lines).map(|line| Ok(Frame::data(line)));
                let mut stream = http::Response::new(StreamBody::new(frames).boxed_unsync());
                let json = http::HeaderValue::from_static("application/json");
                stream.headers_mut().insert(http::header::CONTENT_TYPE, json);
                Ok(stream)
            }
        }
    }
}
