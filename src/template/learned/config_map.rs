//! Stores what is learned of nodes in a ConfigMap, so that the template of a group at zero is right after a restart.
//!
//! Only the first poll waits for it, briefly: without API server or permission, nodes teach it again. Nothing is
//! written before the old content has been read.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Learned;
use super::store::LearnedStore;
use crate::clock::backoff;
use crate::cluster::{ApiError, Cluster, Leadership};
use crate::k8s::GroupName;
use crate::telemetry::{Outage, chain};

/// Key in the ConfigMap. The value is a JSON object with one member a group.
const KEY: &str = "templates.json";

/// Size limit in bytes: a ConfigMap takes 1 MiB including the rest of the object.
///
/// Source: [ConfigMaps](https://kubernetes.io/docs/concepts/configuration/configmap/#motivation).
const LIMIT: usize = 1_000_000;

/// Bounds of the pause between tries: a restarting API server is back within seconds, a permission takes a person.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(5);

/// Least time between two writes of up to a megabyte: in a growing cluster every poll learns something. Nodes teach
/// again what a kill loses.
const PAUSE: Duration = Duration::from_secs(30);

/// Most time between two writes: the ConfigMap may have been deleted.
const AGAIN: Duration = Duration::from_mins(10);

/// Reads the ConfigMap once, then writes it whenever something is learned. Never returns.
pub async fn keep(
    store: Arc<LearnedStore>,
    cluster: Cluster,
    leadership: Leadership,
    config_map: String,
) -> Infallible {
    let mut trouble = Trouble { config_map: &config_map, outage: Outage::default() };
    // Subscribed first, so that changes made during the read are written too.
    let mut versions = store.versions();
    loop {
        match cluster.config_map(&config_map).await {
            Ok(data) => {
                store.load(data.and_then(|data| read(data.get(KEY)?)).unwrap_or_default());
                trouble.ended();
                break;
            }
            Err(error) => {
                if matches!(error, ApiError::Refused(_)) {
                    // Without permission to read it, let the first poll go on.
                    store.load(BTreeMap::new());
                }
                trouble.pause("read", &error).await;
            }
        }
    }
    let mut next_write = Instant::now();
    loop {
        match tokio::time::timeout(AGAIN, versions.changed()).await {
            Err(_) if store.all().is_empty() => continue,
            // The sender lives in `store`, so this does not happen.
            Ok(Err(_)) => std::future::pending::<()>().await,
            Ok(Ok(())) | Err(_) => {}
        }
        tokio::time::sleep_until(next_write).await;
        loop {
            leadership.begun().await;
            versions.mark_unchanged();
            let data = BTreeMap::from([(KEY, written(&store))]);
            match cluster.write_config_map(&config_map, &data).await {
                // A dry run keeps it to itself.
                Ok(()) | Err(ApiError::DryRun) => break,
                Err(error) => trouble.pause("write", &error).await,
            }
        }
        trouble.ended();
        next_write = Instant::now() + PAUSE;
    }
}

/// Parses the value in the ConfigMap group by group, skipping damaged members; `None` if it is no JSON object.
pub fn read(text: &str) -> Option<BTreeMap<GroupName, Learned>> {
    let damaged = |group: Option<&str>, error: &str| {
        // An error quotes what it does not understand, however long, and the log escapes once more.
        let error: String = error.escape_debug().take(140).collect();
        let group: Option<String> = group.map(|group| group.escape_debug().take(255).collect());
        tracing::warn!(
            group,
            error,
            "learned template data in the ConfigMap is damaged: ignoring it until nodes show it again"
        );
    };
    // The text of each: as JSON values, a megabyte can take a hundred.
    let members: BTreeMap<String, &RawValue> =
        serde_json::from_str(text).map_err(|error| damaged(None, &error.to_string())).ok()?;
    let read = members.into_iter().filter_map(|(group, member)| {
        let learned =
            serde_json::from_str(member.get()).map_err(|error| damaged(Some(&group), &error.to_string()));
        Some((group.into(), learned.ok()?))
    });
    Some(read.collect())
}

/// The value for the ConfigMap: as much as fits. Groups that are selected no more are left out first, then those with nodes.
pub fn written(store: &LearnedStore) -> String {
    let mut members = Vec::new();
    let (mut size, mut left_out) = (2, 0);
    for (group, learned) in store.all() {
        let member =
            serde_json::to_string(&group).and_then(|key| Ok((key, serde_json::to_string(&*learned)?)));
        let Ok((key, value)) = member else { continue };
        let member = format!("{key}:{value}");
        if size + member.len() < LIMIT {
            size += member.len() + 2;
            members.push(member);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        tracing::warn!(
            left_out,
            "learned template data does not fit into one ConfigMap: some groups are left out"
        );
    }
    format!("{{{}}}", members.join(",\n"))
}

/// Paces and logs failed tries.
struct Trouble<'a> {
    config_map: &'a str,
    outage: Outage,
}

impl Trouble<'_> {
    async fn pause(&mut self, verb: &'static str, error: &ApiError) {
        if let Some(outage_seconds) = self.outage.failed() {
            tracing::warn!(
                config_map = self.config_map,
                verb,
                outage_seconds,
                error = %chain(error),
                "cannot keep learned template data in the ConfigMap"
            );
        }
        tokio::time::sleep(backoff(self.outage.failures(), FIRST_RETRY, LAST_RETRY)).await;
    }

    fn ended(&mut self) {
        if let Some(outage_seconds) = self.outage.recovered() {
            tracing::info!(
                config_map = self.config_map,
                outage_seconds,
                "learned template data is kept in the ConfigMap again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_member_costs_only_itself() {
        let text = r#"{"bad": {"labels": 7}, "good": {"last": "m5.large"}, "worse": 3}"#;
        let read = read(text).expect("an object");
        assert_eq!(read.into_values().map(|learned| learned.last).collect::<Vec<_>>(), ["m5.large"]);
        for text in ["", "{\"good\": ", "[]", "{} {}", "{\"a\" 1}", "{\"a\": 1", "{1: 1}"] {
            assert!(super::read(text).is_none(), "{text}");
        }
        assert!(super::read(" { } \n").is_some_and(|read| read.is_empty()));
    }
}
