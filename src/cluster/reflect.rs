//! Keeps a store up to date with the API server by a watch.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::places::Places;
use crate::clock::backoff;
use crate::telemetry::{Outage, chain};

/// The pause after the first failure of a watch; it doubles ...
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// ... up to this. Shorter than `kube`'s default of 30 s: a drain that does not see the last exit holds an instance.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A watch that runs this long without a failure works: the pauses begin anew.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// A watch that fails does so at least this often, pauses included: after a longer time without a failure it had worked meanwhile, even if
/// there was no event to show it.
const FAILS_WITHIN: Duration = Duration::from_secs(90);

/// Where the events of a watch go.
pub trait Sink<K> {
    /// What is kept of an object.
    type Kept;
    /// Reduces an object to what is kept of it, at once: a list of thousands of Nodes is never held in full.
    fn reduce(&self, object: K) -> Self::Kept;
    /// An object exists or has changed.
    fn apply(&self, object: Self::Kept);
    /// An object is gone.
    fn delete(&self, object: Self::Kept);
    /// These are all objects.
    fn reset(&self, objects: Vec<Self::Kept>);
    /// A list is about to be requested. What is kept may be out of date until it is complete.
    fn listing(&self) {}
    /// The watch broke (what is kept may be out of date), or works again.
    fn connected(&self, _connected: bool) {}
}

/// Feeds `sink` from `events` for ever. A broken watch is retried; the store keeps what it has meanwhile.
pub async fn reflect<K, S>(events: impl Stream<Item = watcher::Result<Event<K>>> + Send, sink: &S)
where
    S: Sink<K>,
    K: kube::Resource<DynamicType: Default> + Clone + Debug + Send,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut events = std::pin::pin!(patiently(events));
    let mut listed = Vec::new();
    let mut outage = Outage::default();
    let mut is_behind = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // A list counts when it is complete.
                let is_partial = matches!(event, Event::Init | Event::InitApply(_));
                deliver(event, &mut listed, sink);
                if is_partial || !std::mem::take(&mut is_behind) {
                    continue;
                }
                if let Some(outage_seconds) = outage.recovered() {
                    tracing::info!(kind, outage_seconds, "the watch works again");
                }
                sink.connected(true);
            }
            Err(error) => {
                is_behind = true;
                sink.connected(false);
                let _ = outage.recovered_after(FAILS_WITHIN);
                if has_expired(&error) {
                    tracing::debug!(kind, "the watch has expired: listed anew");
                // Not at every try.
                } else if let Some(outage_seconds) = outage.failed() {
                    tracing::warn!(kind, outage_seconds, error = %chain(&error), "the watch broke and is retried; what was seen before stands");
                }
            }
        }
    }
}

/// Whether what changed since can no longer be told. That is in the way of things: the API server forgets, above all when it restarts.
///
/// Source: [410 Gone responses](https://kubernetes.io/docs/reference/using-api/api-concepts/#410-gone-responses).
pub fn has_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            status.code == 410
        }
        _ => false,
    }
}

/// Whether an event came from the API server. `Init` only says that a list is about to be requested.
fn brings_news<K>(event: &Event<K>) -> bool {
    !matches!(event, Event::Init)
}

/// The same events, with a growing pause after each failure in a row. `kube`'s own backoff takes the `Init` before each
/// try for a success, and would try ten times a second throughout an outage.
pub(super) fn patiently<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let state = (Box::pin(events), 0, None);
    futures::stream::unfold(state, async |(mut events, mut failures, pause)| {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let event = events.next().await?;
        let mut pause = None;
        if event.is_err() {
            failures = u32::saturating_add(failures, 1);
            pause = Some(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE));
        } else if event.as_ref().is_ok_and(brings_news) {
            failures = 0;
        }
        Some((event, (events, failures, pause)))
    })
}

/// The events of a watch that begins anew, with a list, after each failure and a pause that grows unless it had lasted for a while. A
/// watch resumed where it broke stays silent while nothing changes: nobody would know that it works again.
pub(super) fn anew_after_failures<K, W>(
    begin: impl Fn() -> W + Send,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    W: Stream<Item = watcher::Result<Event<K>>> + Send,
{
    let state = (Box::pin(begin()), begin, Instant::now(), 0, None);
    futures::stream::unfold(state, async |(mut events, begin, mut begun, mut failures, pause)| {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
            events.set(begin());
            begun = Instant::now();
        }
        let event = events.next().await?;
        let mut pause = None;
        if event.is_err() {
            failures = if begun.elapsed() < STABLE_AFTER { u32::saturating_add(failures, 1) } else { 1 };
            pause = Some(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE));
        }
        Some((event, (events, begin, begun, failures, pause)))
    })
}

/// The same events, with a place for each list (of one page), from before it is requested until its answer is there.
pub(super) fn in_turn<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    lists: Places,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let state = (Box::pin(events), lists, false);
    futures::stream::unfold(state, async |(mut events, lists, is_listing)| {
        let event = if is_listing { lists.call(events.next()).await } else { events.next().await }?;
        let is_listing = matches!(event, Ok(Event::Init));
        Some((event, (events, lists, is_listing)))
    })
}

/// Hands one event of a watch to the sink. `listed` collects a list until it is complete.
fn deliver<K, S: Sink<K>>(event: Event<K>, listed: &mut Vec<S::Kept>, sink: &S) {
    match event {
        Event::Init => {
            listed.clear();
            sink.listing();
        }
        Event::InitApply(object) => listed.push(sink.reduce(object)),
        Event::InitDone => sink.reset(std::mem::take(listed)),
        Event::Apply(object) => sink.apply(sink.reduce(object)),
        Event::Delete(object) => sink.delete(sink.reduce(object)),
    }
}

/// The objects of one kind, each reduced to what is needed.
#[derive(Debug)]
pub struct Store<V> {
    items: Mutex<BTreeMap<String, Arc<V>>>,
    version: watch::Sender<u64>,
    synced: watch::Sender<bool>,
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self { items: Mutex::default(), version: watch::Sender::new(0), synced: watch::Sender::new(false) }
    }
}

impl<V> Store<V> {
    /// Objects whose keys begin with `prefix` and that `wanted` accepts, by key.
    pub fn matching(&self, prefix: &str, wanted: impl Fn(&V) -> bool) -> Vec<Arc<V>> {
        let items = self.items.lock();
        let from = items.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let prefixed = from.take_while(|(key, _)| key.starts_with(prefix));
        prefixed.filter(|(_, value)| wanted(value)).map(|(_, value)| Arc::clone(value)).collect()
    }

    /// The object of this key.
    pub fn get(&self, key: &str) -> Option<Arc<V>> {
        self.items.lock().get(key).cloned()
    }

    /// How many objects `wanted` accepts.
    pub fn count(&self, wanted: impl Fn(&V) -> bool) -> usize {
        self.items.lock().values().filter(|value| wanted(value)).count()
    }

    /// Whether there is an object of this key.
    pub fn contains(&self, key: &str) -> bool {
        self.items.lock().contains_key(key)
    }

    /// Whether the first list is in.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Changes whenever the store does.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn touch(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}

/// How an object is reduced to what is kept of it.
pub trait Project<K>: Sized {
    /// What is kept of it.
    fn project(object: &K) -> Self;
    /// An object's key.
    fn key(object: &K) -> String;
}

impl<K: ResourceExt, V: Project<K> + PartialEq> Sink<K> for Store<V> {
    type Kept = (String, V);

    fn reduce(&self, object: K) -> Self::Kept {
        (V::key(&object), V::project(&object))
    }

    /// What is kept of an object seldom changes with it: the status of a DaemonSet does with each of its pods.
    fn apply(&self, (key, value): Self::Kept) {
        if self.items.lock().get(&key).is_some_and(|kept| **kept == value) {
            return;
        }
        self.items.lock().insert(key, Arc::new(value));
        self.touch();
    }

    fn delete(&self, (key, _): Self::Kept) {
        self.items.lock().remove(&key);
        self.touch();
    }

    fn reset(&self, objects: Vec<Self::Kept>) {
        *self.items.lock() = objects.into_iter().map(|(key, value)| (key, Arc::new(value))).collect();
        self.synced.send_replace(true);
        self.touch();
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::core::Status;
    use tokio::time::Instant;
    use tracing::Level;

    use super::*;
    use crate::telemetry::captured;

    #[derive(Default)]
    struct Told(Mutex<Vec<&'static str>>);

    impl Sink<Node> for Told {
        type Kept = ();
        fn reduce(&self, _: Node) {}
        fn apply(&self, (): ()) {}
        fn delete(&self, (): ()) {}
        fn reset(&self, _: Vec<()>) {
            self.0.lock().push("listed");
        }
        fn connected(&self, connected: bool) {
            self.0.lock().push(if connected { "connected" } else { "broken" });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_out_of_date_until_a_list_is_whole() {
        let told = Told::default();
        let list = [Ok(Event::Init), Ok(Event::InitApply(Node::default())), Ok(Event::InitDone)];
        reflect(futures::stream::iter([failed()].into_iter().chain(list)), &told).await;
        assert_eq!(*told.0.lock(), ["broken", "listed", "connected"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_has_expired_is_listed_anew_without_a_warning() {
        let (log, _guard) = captured::log(Level::INFO);
        let status = |code| Box::new(Status { code, ..Status::default() });
        let list = || [Ok(Event::Init), Ok(Event::InitDone)];
        for (error, warns) in [
            (watcher::Error::WatchError(status(410)), false),
            (watcher::Error::WatchStartFailed(kube::Error::Api(status(410))), false),
            (watcher::Error::WatchError(status(500)), true),
        ] {
            let told = Told::default();
            reflect(futures::stream::iter([Err(error)].into_iter().chain(list())), &told).await;
            assert_eq!(*told.0.lock(), ["broken", "listed", "connected"]);
            assert_eq!(!log.text().is_empty(), warns, "{}", log.text());
        }
    }

    /// As that of volume attachments: of renewals and bookmarks nothing is heard.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_breaks_after_a_quarter_of_an_hour_without_an_event_has_not_been_broken_as_long() {
        let (log, _guard) = captured::log(Level::INFO);
        let breaks = futures::stream::iter([0, 5, 900]).then(async |after| {
            tokio::time::sleep(Duration::from_secs(after)).await;
            failed()
        });
        reflect(breaks, &Told::default()).await;
        let text = log.text();
        assert_eq!(
            (text.matches("the watch broke").count(), text.matches("outage_seconds=0").count()),
            (2, 2),
            "{text}"
        );
    }

    fn failed() -> watcher::Result<Event<Node>> {
        Err(watcher::Error::NoResourceVersion)
    }

    #[tokio::test(start_paused = true)]
    async fn lists_take_turns_and_one_that_hangs_keeps_its_place_for_ten_seconds() {
        let (lists, began) = (Places::new(1), Instant::now());
        let listed_at = async |takes: u64| {
            let answer = async move {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                Ok(Event::<Node>::InitDone)
            };
            let events = futures::stream::iter([Ok(Event::Init)]).chain(futures::stream::once(answer));
            let mut events = std::pin::pin!(in_turn(events, lists.clone()));
            while events.next().await.is_some() {}
            began.elapsed().as_secs()
        };
        assert_eq!(futures::join!(listed_at(1), listed_at(60), listed_at(1)), (1, 61, 12));
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_down_is_asked_every_few_seconds_and_at_once_when_it_is_back() {
        let outage = (0..20).flat_map(|_| [Ok(Event::Init), failed()]);
        let back = [Ok(Event::Init), Ok(Event::InitDone), failed(), Ok(Event::Init)];
        let mut events = std::pin::pin!(patiently(futures::stream::iter(outage.chain(back))));
        let began = Instant::now();
        let mut moments = Vec::new();
        while events.next().await.is_some() {
            moments.push(began.elapsed());
        }
        // Twenty tries: 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 3.2 s, then 5 s each.
        let up = moments[40];
        assert!((Duration::from_secs(70)..Duration::from_secs(80)).contains(&up), "{up:?}");
        assert!(moments[43] <= up + Duration::from_millis(100), "an answer ends the outage");
    }
}
