//! Answers cluster-autoscaler's question which group is to grow, and says why.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::events::note;
use super::policy::{Choice, Criterion, Policy, choose, explain, names};
use super::proto::expander_server::Expander as Rpcs;
use super::proto::{BestOptionsRequest, BestOptionsResponse, Option as Offered};
use super::standing::{Known, standings};
use crate::clock::Clock;
use crate::prices::{PricedNode, Prices};
use crate::scale_in::Shared;
use crate::slots::Slots;
use crate::telemetry::{RateLimit, chain};
use crate::words::words;

/// How far back interruptions count.
const A_DAY: Duration = Duration::from_hours(24);
/// Questions at once, and of one peer. The cluster-autoscaler that leads asks one at a time; a new question takes the place of its peer's
/// last one, which nobody waits for any more.
const AT_ONCE: usize = 2;
const OF_A_PEER: usize = 1;
/// Least time between two lines of the log: anybody may ask. cluster-autoscaler does so once a loop, every ten seconds.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Bytes of the names of a question's groups. An answer has them again, and waits in memory for a client that does not read it.
const NAMES: usize = 256 << 10;

/// The gRPC expander.
pub struct Expander {
    shared: Arc<Shared>,
    /// `None`: nothing is known of prices.
    prices: Option<Arc<Prices>>,
    file: Option<PathBuf>,
    /// The policy that could be read last, and why a newer one could not.
    policy: Mutex<(Policy, Option<String>)>,
    answers: Family<Labelled, Counter>,
    places: Arc<Slots>,
    lines: Mutex<RateLimit>,
    /// What the last of these lines says.
    choices: watch::Sender<String>,
}

impl std::fmt::Debug for Expander {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expander").field("file", &self.file).finish_non_exhaustive()
    }
}

words! {
    /// What an answer was decided by: the last criterion that left something out. As the metric has it.
    DecidedBy {
        Capacity = "capacity",
        Price = "price",
        Interruptions = "interruptions",
        ZoneBalance = "zone_balance",
        FewestNodes = "fewest_nodes",
        Nothing = "nothing",
    }
}

impl DecidedBy {
    fn of(choice: &Choice) -> Self {
        match choice.decided.last().map(|(criterion, _)| criterion) {
            Some(Criterion::Capacity) => Self::Capacity,
            Some(Criterion::Price) => Self::Price,
            Some(Criterion::Interruptions) => Self::Interruptions,
            Some(Criterion::ZoneBalance) => Self::ZoneBalance,
            Some(Criterion::FewestNodes) => Self::FewestNodes,
            None => Self::Nothing,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labelled {
    decided_by: DecidedBy,
}

impl Expander {
    /// An expander of the shared groups, with a policy from this file; `None`: the default one.
    pub fn new(shared: Arc<Shared>, file: Option<PathBuf>, registry: &mut Registry) -> Self {
        let answers: Family<Labelled, Counter> = Family::default();
        // A rate needs a zero before the first one.
        for decided_by in DecidedBy::ALL {
            drop(answers.get_or_create(&Labelled { decided_by }));
        }
        let help = "Answers to cluster-autoscaler's question which group is to grow, by the last criterion that left one out";
        registry.register("ebbtide_expander_answers", help, answers.clone());
        Self {
            shared,
            prices: None,
            file,
            policy: Mutex::default(),
            answers,
            places: Slots::new(AT_ONCE, OF_A_PEER),
            lines: Mutex::default(),
            choices: watch::Sender::default(),
        }
    }

    /// Knows what nodes cost.
    #[must_use]
    pub fn with_prices(mut self, prices: Option<Arc<Prices>>) -> Self {
        self.prices = prices;
        self
    }

    /// The places for questions, at whichever address they are asked.
    pub(super) fn places(&self) -> Arc<Slots> {
        Arc::clone(&self.places)
    }

    /// Its clock.
    pub(in crate::provider) fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    /// Its choices as the log has them: the last one, at most one a second.
    pub fn choices(&self) -> watch::Receiver<String> {
        self.choices.subscribe()
    }

    /// The policy as its file is now, or was when it could last be read.
    async fn policy(&self) -> Policy {
        let read = match &self.file {
            Some(path) => tokio::fs::read_to_string(path)
                .await
                .map_err(|error| chain(&error))
                .and_then(|text| text.parse().map_err(|error| chain(&error))),
            None => Ok(Policy::default()),
        };
        let mut known = self.policy.lock();
        match read {
            Ok(policy) => *known = (policy, None),
            Err(error) if known.1.as_ref() != Some(&error) => {
                tracing::warn!(
                    error,
                    "the expander's policy cannot be read: the last one that could is used"
                );
                known.1 = Some(error);
            }
            Err(_) => {}
        }
        known.0.clone()
    }

    fn choose(&self, options: &[Offered], policy: &Policy, now: Timestamp) -> Vec<usize> {
        let Some(snapshot) = self.shared.groups.latest() else { return (0..options.len()).collect() };
        let price = |node: &PricedNode<'_>| Some(self.prices.as_ref()?.of_node(node, now)?.per_hour);
        let known = Known {
            snapshot: &snapshot,
            refused: self.shared.groups.failed_launches().refused(now),
            interruptions: self.shared.history.interruptions(self.shared.clock.cluster() - A_DAY),
            price: &price,
        };
        let options = standings(options, &known);
        let choice = choose(policy, &options);
        let mut lines = self.lines.lock();
        if let Some(suppressed) = lines.allow(TELL_EVERY) {
            let decided_by = choice.decided.last().map_or("nothing", |(criterion, _)| criterion.as_str());
            let (best, why) = (names(&options, &choice), explain(&options, &choice));
            self.choices.send_replace(note(&best, decided_by, options.len(), &why));
            tracing::info!(
                best,
                decided_by,
                options = options.len(),
                why,
                suppressed,
                "which group is to grow; `suppressed` more since the last such line"
            );
        }
        self.answers.get_or_create(&Labelled { decided_by: DecidedBy::of(&choice) }).inc();
        choice.best
    }
}

#[tonic::async_trait]
impl Rpcs for Expander {
    async fn best_options(
        &self,
        request: Request<BestOptionsRequest>,
    ) -> Result<Response<BestOptionsResponse>, Status> {
        let mut options = request.into_inner().options;
        if options.iter().map(|option| option.node_group_id.len()).sum::<usize>() > NAMES {
            let text = format!(
                "the groups' names have more than {NAMES} bytes: cluster-autoscaler's next expander is to choose"
            );
            return Err(Status::resource_exhausted(text));
        }
        let policy = self.policy().await;
        let best = self.choose(&options, &policy, self.shared.clock.now());
        let take = |at: usize| {
            let option = std::mem::take(options.get_mut(at)?);
            // Its pods are the caller's own: it reads nothing but the name.
            Some(Offered { pod: Vec::new(), pod_bytes: Vec::new(), ..option })
        };
        let options = best.into_iter().filter_map(take).collect();
        Ok(Response::new(BestOptionsResponse { options }))
    }
}
