//! The whole simulated AWS as pure, synchronous state, changed by requests, scripts and time.
//!
//! The same seed, requests and moments give the same state. Nothing here waits or reads a clock. Whatever is due happens in
//! order of time, however late [`State::step`] is called, and before the next request.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Behaviour;
use super::bucket::Level;
use super::eks::NodeGroupSpec;
use super::error::ApiError;
use super::events::EventBridge;
use super::faults::Faults;
use super::group::{Group, Instance};
use super::journal::{Event, Journal};
use super::load_balancing::TargetGroup;
use super::past::Past;
use super::permissions::Permissions;
use super::prices::SpotPrices;
use super::queues::Queue;
use super::replies::uuid;
use super::requests::{Poll, Requests};
use super::spec::LaunchConfigurationSpec;
use super::templates::{DEFAULT_IMAGE, Template};
use crate::sim::span::Span;

pub(super) const ACCOUNT: &str = "123456789012";
pub(super) const REGION: &str = "us-east-1";

/// Everything in the simulated AWS.
pub struct State {
    pub(super) groups: BTreeMap<String, Group>,
    /// EKS managed node groups, by cluster and name.
    pub(super) node_groups: BTreeMap<(String, String), NodeGroupSpec>,
    pub(super) shared: Shared,
    pub(super) faults: Faults,
    /// What the caller may do; `None`: anything.
    pub(super) permissions: Option<Permissions>,
    pub(super) past: Past,
    pub(super) requests: Requests,
    /// Receives that wait for a message.
    pub(super) polls: Vec<Poll>,
    /// SQS queues, by URL.
    pub(super) queues: BTreeMap<String, Queue>,
    pub(super) events: EventBridge,
    /// Target groups of load balancers, by ARN.
    pub(super) target_groups: BTreeMap<String, TargetGroup>,
    /// Requests answered so far.
    pub(super) answered: u64,
    pub(super) bucket: Level,
    pub(super) jitter: fastrand::Rng,
}

/// What all groups share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) journal: Journal,
    /// Launch templates by id.
    pub(super) templates: BTreeMap<String, Template>,
    /// Whether launch templates can be described only one at a time.
    pub(super) hides_templates: bool,
    /// An element that descriptions of groups leave out.
    pub(super) left_out: Option<&'static str>,
    /// Architectures of images, by id.
    pub(super) images: BTreeMap<String, &'static str>,
    /// Launch configurations by name.
    pub(super) configurations: BTreeMap<String, LaunchConfiguration>,
    /// What spot instances cost.
    pub(super) spot_prices: SpotPrices,
    /// What the Price List has, by type.
    pub(super) listed: BTreeMap<String, String>,
    /// The group that each instance was launched by.
    pub(super) homes: HashMap<String, String>,
    /// Terminated instances and when they ended; EC2 shows them for a while.
    pub(super) past: BTreeMap<String, (Instance, Timestamp)>,
    /// Instances outside any group.
    pub(super) detached: BTreeMap<String, Instance>,
    /// How AWS behaves where its documents leave room.
    pub(super) behaviour: Behaviour,
    /// How far AWS's clock is ahead.
    pub(super) ahead: SignedDuration,
    /// An address that the next instance gets.
    pub(super) free_address: Option<[u8; 4]>,
    /// The id that the next instance gets.
    pub(super) next_id: Option<String>,
    /// The addresses given out so far.
    addresses: HashSet<[u8; 4]>,
    resources: fastrand::Rng,
    uuids: fastrand::Rng,
    times: fastrand::Rng,
    ways: fastrand::Rng,
    numbers: u64,
}

/// Seeds the random stream of times, apart from that of ids.
const TIMES: u64 = 0x7469_6d65_7300_0000;
/// Seeds the random stream of requests' fates, apart from both.
const WAYS: u64 = 0x7761_7973_0000_0000;

#[derive(Debug)]
pub(super) struct LaunchConfiguration {
    pub(super) spec: LaunchConfigurationSpec,
    pub(super) created: Timestamp,
}

impl Shared {
    /// The next higher number.
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Draws how long something takes.
    pub(super) fn draw(&mut self, span: Span) -> Duration {
        span.draw(&mut self.times)
    }

    /// Draws a time for a request, from the requests' own stream.
    pub(super) fn draw_way(&mut self, span: Span) -> Duration {
        span.draw(&mut self.ways)
    }

    /// Whether something that happens to this share of requests happens now.
    pub(super) fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.ways.f64() < share
    }

    /// A number below `most`, from the requests' stream.
    pub(super) fn below(&mut self, most: usize) -> usize {
        self.ways.usize(..most.max(1))
    }

    pub(super) fn instance_id(&mut self) -> String {
        let drawn = format!("i-0{:016x}", self.resources.u64(..));
        self.next_id.take().unwrap_or(drawn)
    }

    pub(super) fn template_id(&mut self) -> String {
        format!("lt-0{:016x}", self.resources.u64(..))
    }

    /// A private address in 10.0.0.0/8: a released one if there is one, else one that nobody had.
    pub(super) fn address(&mut self) -> [u8; 4] {
        if let Some(free) = self.free_address.take() {
            return free;
        }
        loop {
            let address = [10, self.resources.u8(..), self.resources.u8(..), self.resources.u8(1..)];
            if self.addresses.insert(address) {
                return address;
            }
        }
    }

    /// An id other than an instance's or template's, from a stream of its own, so that instance ids do not shift.
    pub(super) fn uuid(&mut self) -> String {
        uuid(self.uuids.u128(..))
    }

    pub(super) fn bury(&mut self, instance: Instance, at: Timestamp) {
        self.past.insert(instance.id.clone(), (instance, at));
    }
}

impl State {
    /// An empty AWS.
    pub fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        Self {
            groups: BTreeMap::new(),
            node_groups: BTreeMap::new(),
            shared: Shared {
                journal: Journal::new(),
                templates: BTreeMap::new(),
                hides_templates: false,
                left_out: None,
                images: BTreeMap::from([(DEFAULT_IMAGE.to_owned(), "x86_64")]),
                configurations: BTreeMap::new(),
                spot_prices: SpotPrices::new(),
                listed: BTreeMap::new(),
                homes: HashMap::new(),
                past: BTreeMap::new(),
                detached: BTreeMap::new(),
                behaviour: Behaviour::PLAIN,
                ahead: SignedDuration::ZERO,
                free_address: None,
                next_id: None,
                addresses: HashSet::new(),
                resources: rng.fork(),
                uuids: rng.fork(),
                times: fastrand::Rng::with_seed(seed ^ TIMES),
                ways: fastrand::Rng::with_seed(seed ^ WAYS),
                numbers: 0,
            },
            faults: Faults::default(),
            permissions: None,
            past: Past::default(),
            requests: Requests::default(),
            polls: Vec::new(),
            queues: BTreeMap::new(),
            events: EventBridge::new(seed),
            target_groups: BTreeMap::new(),
            answered: 0,
            bucket: Level::default(),
            jitter: rng,
        }
    }

    /// When time next changes something.
    pub fn next_due(&self) -> Option<Timestamp> {
        let groups = self.groups.values().filter_map(Group::next_due);
        groups.chain(self.requests.next_due()).chain(self.events.next_due()).chain(self.next_poll()).min()
    }

    /// Performs everything due by `now`, each at its own moment.
    pub fn step(&mut self, now: Timestamp) {
        while let Some(due) = self.next_due().filter(|due| *due <= now) {
            self.past.keep(&self.groups, due);
            for group in self.groups.values_mut().filter(|group| group.next_due() == Some(due)) {
                group.advance(&mut self.shared, due);
            }
            let gone: Vec<String> =
                self.groups.values().filter(|g| g.is_gone(due)).map(|g| g.name.clone()).collect();
            for group in gone {
                self.groups.remove(&group);
                self.shared.journal.record(due, Event::GroupDeleted { group });
            }
            self.receive(due);
            self.follow(due);
        }
    }

    /// Does what follows from a change: AWS tells of it, and polls get their messages.
    pub(super) fn follow(&mut self, now: Timestamp) {
        self.take_back(now);
        self.announce();
        self.deliver(now);
        self.answer_polls(now);
    }

    /// The group called `name`, and what groups share.
    pub(super) fn group_mut(&mut self, name: &str) -> Result<(&mut Group, &mut Shared), ApiError> {
        let group = self.groups.get_mut(name).ok_or_else(|| ApiError::no_such_group(name))?;
        Ok((group, &mut self.shared))
    }

    /// The group called `name` if it can be changed, and what groups share.
    pub(super) fn changing(&mut self, name: &str) -> Result<(&mut Group, &mut Shared), ApiError> {
        let (group, shared) = self.group_mut(name)?;
        group.changeable()?;
        Ok((group, shared))
    }

    /// The group that has the instance, and what groups share.
    pub(super) fn group_of_mut(&mut self, instance: &str) -> Option<(&mut Group, &mut Shared)> {
        let group = self.groups.get_mut(self.shared.homes.get(instance)?)?;
        group.instances.contains_key(instance).then_some((group, &mut self.shared))
    }

    /// The instance, wherever it is; for changes that its group does not see.
    pub(super) fn instance_mut(&mut self, id: &str) -> Option<&mut Instance> {
        let home = self.shared.homes.get(id).and_then(|name| self.groups.get_mut(name));
        home.and_then(|group| group.instances.get_mut(id)).or_else(|| self.shared.detached.get_mut(id))
    }

    /// The instance, wherever it is.
    pub(super) fn instance(&self, id: &str) -> Option<&Instance> {
        let home = self.shared.homes.get(id).and_then(|name| self.groups.get(name));
        home.and_then(|group| group.instances.get(id)).or_else(|| self.shared.detached.get(id))
    }
}
