//! Plays a scenario: the worlds, the program on them, and whatever happens, in virtual time. Returns what the worlds saw.
//!
//! Three acts: nodes and pods come up; things happen as the scenario says; everything that is broken is mended, what may rightly hold a
//! node for ever is taken away, and whatever is under way comes to its end.

mod addresses;
mod deeds;
mod drainers;
pub(crate) mod panics;
mod setting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::Aws;
use ebbtide::clock::signed;
use ebbtide::config::Config;
use ebbtide::provider::proto::NodeGroupTargetSizeRequest;
use ebbtide::sim::autoscaler::{self, Autoscaler, Client};
use ebbtide::sim::http::{Bearer, World as Service, aws_client, kube_client};
use ebbtide::sim::paused::{Switch, Way};
use ebbtide::sim::program::Program;
use ebbtide::sim::world::World;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::history::{Diary, End, History, Note};
use crate::scenario::{Deed, Happening, Scenario, What, Workload};

pub(crate) use self::deeds::RECORD;
pub(crate) use self::setting::{MANAGED, OURS};

/// How long nodes and pods may take to come up.
const COMES_UP: Duration = Duration::from_mins(10);

/// How long it may take after the last happening until nothing is under way, beside the longest grace: the hour in which silent nodes
/// do not count as lost where most are silent, ten minutes of EC2's, and a refresh.
const COMES_TO_REST: Duration = Duration::from_mins(75);

/// How long the longest hook of a scenario, of five minutes, holds an instance: a hundred times as long.
const LONGEST_HOLD: SignedDuration = SignedDuration::from_secs(100 * 300);

/// For how many seconds what lets nobody go may stand: the same limit of a hook, and some minutes.
const BLOCKED: u32 = 55 * 60;

/// How often it is looked whether something is under way.
const LOOK: Duration = Duration::from_secs(20);

/// How long nothing happens before the end is looked at: a refresh and the cloud controller.
const REST: Duration = Duration::from_secs(150);

/// How often TargetSize of each group is asked for. In step with nothing else.
const ASKED: Duration = Duration::from_secs(7);

/// How often cluster-autoscaler's connection ends, and comes to the next replica.
const RECONNECTS: u32 = 10 * 60;

/// The program's token at the API server.
const TOKEN: &str = "ebbtide";

/// A replica of the program.
struct Replica {
    config: Config,
    program: Option<Program>,
    /// What stops it, if it is ever stopped.
    switch: Option<Switch>,
}

impl Replica {
    fn is_paused(&self) -> bool {
        self.switch.as_ref().is_some_and(|switch| *switch.borrow())
    }
}

/// A scenario under way.
struct Stage {
    world: Arc<World>,
    scenario: Scenario,
    began: Timestamp,
    replicas: Vec<Replica>,
    autoscaler: Option<Autoscaler>,
    /// What earlier runs of it did.
    scanned: Vec<(Timestamp, autoscaler::Event)>,
    /// Whom cluster-autoscaler reaches.
    reached: Arc<Mutex<Option<Client>>>,
    /// The replica that it reaches if that runs.
    preferred: usize,
    diary: Diary,
    /// What is still to come by itself, by moment and order.
    later: BTreeMap<(Timestamp, usize), Later>,
    scheduled: usize,
    /// What cluster-autoscaler is doing.
    tasks: JoinSet<()>,
    /// The nodes that it drains: it takes none of them a second time meanwhile (`DeletionsInProgress`).
    in_progress: Arc<Mutex<BTreeSet<String>>>,
    /// Whoever else is at work.
    others: JoinSet<()>,
    /// Instances that nobody brings back.
    dead: BTreeSet<String>,
}

/// What follows from something that happened.
#[derive(Clone, Copy, Debug)]
enum Later {
    Start(usize),
    Resume(usize),
    AwsBack,
    Unthrottled,
    /// cluster-autoscaler comes to the next replica.
    Reconnects,
    /// Nothing holds a node for ever any more.
    Unblocked,
}

/// Plays a scenario to its end.
pub(crate) async fn play(scenario: Scenario) -> History {
    let mut stage = Stage::set(scenario);
    stage.come_up().await;
    stage.go_through().await;
    stage.mend().await;
    stage.come_to_rest().await;
    stage.end().await
}

impl Stage {
    async fn come_up(&mut self) {
        let nodes: usize = self.scenario.groups.iter().map(|group| group.nodes as usize).sum();
        let up = |world: &World| {
            world.cluster.node_names().iter().filter(|name| world.cluster.is_ready(name)).count() >= nodes
        };
        self.world.until(COMES_UP, up).await;
        self.began = self.world.clock.now();
        self.diary.note(self.began, Note::Began);
    }

    async fn go_through(&mut self) {
        for happening in self.scenario.happenings.clone() {
            let at = self.began + SignedDuration::from_secs(i64::from(happening.at));
            self.pass_until(at).await;
            self.happen(&happening.what).await;
        }
    }

    /// Lets time pass, and what was to happen later happen.
    async fn pass_until(&mut self, until: Timestamp) {
        while let Some(((at, _), _)) = self.later.first_key_value().filter(|((at, _), _)| *at <= until) {
            self.world.clock.sleep_until(*at).await;
            if let Some((_, later)) = self.later.pop_first() {
                self.follow(later).await;
            }
            self.look_at_replicas();
        }
        self.world.clock.sleep_until(until).await;
        self.look_at_replicas();
    }

    fn later(&mut self, after: u32, what: Later) {
        let at = self.world.clock.now() + SignedDuration::from_secs(i64::from(after));
        self.scheduled += 1;
        self.later.insert((at, self.scheduled), what);
    }

    async fn follow(&mut self, later: Later) {
        match later {
            Later::Start(n) => self.start(n),
            Later::Resume(n) => self.resume(n),
            Later::AwsBack => {
                self.world.aws.outage(false);
                self.diary.note(self.world.clock.now(), Note::AwsBack);
            }
            Later::Unthrottled => self.world.aws.throttle_share(0.0),
            Later::Reconnects => {
                self.preferred += 1;
                self.reach();
                self.later(RECONNECTS, Later::Reconnects);
            }
            Later::Unblocked => self.unblock(),
        }
        tokio::task::yield_now().await;
    }

    /// A replica that ended by itself is noted, and started again as a kubelet does.
    fn look_at_replicas(&mut self) {
        for n in 0..self.replicas.len() {
            if self.replicas[n].program.as_ref().is_some_and(Program::has_ended) {
                self.replicas[n].program = None;
                self.diary.note(self.world.clock.now(), Note::EndedByItself(n));
                self.start(n);
            }
        }
    }

    fn start(&mut self, n: usize) {
        if self.replicas[n].program.is_none() {
            self.replicas[n].program = Some(self.started(&self.replicas[n]));
            self.diary.note(self.world.clock.now(), Note::Started(n));
        }
        self.reach();
    }

    fn started(&self, replica: &Replica) -> Program {
        let world = &self.world;
        let cluster = Bearer::of(TOKEN, world.cluster.clone());
        let (aws, cluster): (Arc<dyn Service>, Arc<dyn Service>) = match &replica.switch {
            None => (Arc::new(world.aws.clone()), Arc::new(cluster)),
            Some(switch) => {
                switch.send_replace(false);
                (Way::to(world.aws.clone(), switch, None), Way::to(cluster, switch, None))
            }
        };
        let aws = Aws::at(aws_client(aws));
        Program::start_with(world, aws, kube_client(cluster), replica.config.clone())
    }

    /// A replica that was stopped goes on, if nobody has killed it meanwhile.
    fn resume(&mut self, n: usize) {
        let replica = &self.replicas[n];
        if replica.is_paused() && replica.program.is_some() {
            if let Some(switch) = &replica.switch {
                switch.send_replace(false);
            }
            self.diary.note(self.world.clock.now(), Note::Started(n));
        }
        self.reach();
    }

    /// cluster-autoscaler reaches the next replica that runs.
    fn reach(&self) {
        let all = self.replicas.len();
        let running = (0..all)
            .map(|n| &self.replicas[(self.preferred + n) % all])
            .filter(|replica| !replica.is_paused())
            .find_map(|replica| replica.program.as_ref());
        *self.reached.lock() = running.map(Program::client);
    }

    fn client(&self) -> Option<Client> {
        self.reached.lock().clone()
    }

    /// Waits until nothing has been on its way out for a while.
    async fn come_to_rest(&mut self) {
        let longest = SignedDuration::from_secs(self.scenario.longest_grace());
        let blocked = if self.scenario.stays_blocked { BLOCKED } else { 0 };
        // What has a grace without an end on a machine that is dead, or whose Node was deleted, goes with that, when a hook cannot hold it
        // any longer.
        let has_no_end = |workload: &Workload| workload.grace == i64::MAX;
        let is_deletion = |happening: &Happening| matches!(happening.what, What::Person(Deed::DeleteNode, _));
        let is_gone = !self.dead.is_empty() || self.scenario.happenings.iter().any(is_deletion);
        let is_held = is_gone && self.scenario.workloads.iter().any(has_no_end);
        let until = self.world.clock.now()
            + signed(COMES_TO_REST)
            + longest
            + SignedDuration::from_secs(i64::from(blocked))
            + if is_held { LONGEST_HOLD } else { SignedDuration::ZERO };
        let mut busy_at = self.world.clock.now();
        loop {
            let now = self.world.clock.now();
            if self.is_busy() {
                busy_at = now;
                self.let_go().await;
            }
            if now >= until || now >= busy_at + signed(REST) {
                return;
            }
            self.pass_until(now + signed(LOOK)).await;
        }
    }

    fn is_busy(&self) -> bool {
        let world = &self.world;
        let rests = |node: &Node| {
            let instance = deeds::machine(node).and_then(|machine| world.aws.instance(&machine.instance));
            instance.is_some_and(|instance| instance.state.is_warm())
        };
        let leaves = |name: &String| {
            world.cluster.node(name).is_some_and(|node| deeds::is_leaving(&node) && !rests(&node))
        };
        let busy = |group: &crate::scenario::Group| {
            world.aws.group(group.name).is_some_and(|group| {
                let settled = |i: &&ebbtide::sim::aws::InstanceSnapshot| {
                    i.state == ebbtide::sim::aws::LifecycleState::InService || i.state.is_warm()
                };
                group.launches > 0 || !group.instances.iter().all(|instance| settled(&instance))
            })
        };
        world.cluster.node_names().iter().any(leaves) || self.scenario.groups.iter().any(busy)
    }

    /// Somebody asks for the target sizes all the time.
    fn ask_for_targets(&mut self) {
        let (reached, diary, clock) =
            (Arc::clone(&self.reached), self.diary.clone(), self.world.clock.clone());
        let groups: Vec<&str> = self.scenario.groups.iter().map(|group| group.name).collect();
        self.others.spawn(async move {
            loop {
                tokio::time::sleep(ASKED).await;
                let client = reached.lock().clone();
                let Some(mut client) = client else { continue };
                for group in &groups {
                    let answer = target_size(&mut client, group).await;
                    diary.note(clock.now(), Note::Told((*group).to_owned(), answer));
                }
            }
        });
    }

    /// TargetSize of every group, as cluster-autoscaler would be told now.
    async fn targets(&self) -> BTreeMap<String, Result<i32, String>> {
        let mut targets = BTreeMap::new();
        let Some(mut client) = self.client() else { return targets };
        for group in &self.scenario.groups {
            targets.insert(group.name.to_owned(), target_size(&mut client, group.name).await);
        }
        targets
    }

    async fn end(mut self) -> History {
        self.tasks.shutdown().await;
        self.others.shutdown().await;
        let targets = self.targets().await;
        let world = &self.world;
        let nodes = world.cluster.node_names().iter().filter_map(|name| world.cluster.node(name)).collect();
        let groups = self.scenario.groups.iter().filter_map(|group| world.aws.group(group.name)).collect();
        let hits = [world.aws.hits(), world.cluster.hits()];
        let end = End { at: world.clock.now(), nodes, groups, targets, hits, gaps: world.aws.gaps() };
        for replica in &mut self.replicas {
            if let Some(program) = replica.program.take() {
                program.kill().await;
            }
        }
        for words in panics::taken() {
            self.diary.note(end.at, Note::Panicked(words));
        }
        self.scanned.extend(self.autoscaler.iter().flat_map(Autoscaler::journal));
        History::of(self.scenario, &self.world, self.scanned, &self.diary, end)
    }
}

async fn target_size(client: &mut Client, group: &str) -> Result<i32, String> {
    let answer = client.node_group_target_size(NodeGroupTargetSizeRequest { id: group.to_owned() }).await;
    answer.map(|answer| answer.into_inner().target_size).map_err(|status| status.to_string())
}
