//! Puts the status together from what the rooms know.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{AutoscalerDrain, Cordoned, Ended, GroupStatus, Known, Leader, Notice, Queue, ScaleIn, Status};
use crate::clock::{elapsed, later};
use crate::cluster::{NodeView, Standing};
use crate::dry_run::DryRun;
use crate::k8s::InstanceId;
use crate::scale_in::context::{Shared, leaves};
use crate::scale_in::notices::together;

impl Status {
    /// What this process knows now.
    pub fn of(shared: &Shared) -> Self {
        let (now, cluster_now) = (shared.clock.now(), shared.clock.cluster());
        let nodes = shared.nodes.all();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            at: cluster_now,
            dry_run: shared.dry_run.as_ref().map(DryRun::recent),
            leader: leader(shared),
            known: known(shared, now),
            scale_ins: scale_ins(shared, cluster_now),
            autoscaler_drains: AutoscalerDrain::among(nodes.iter().map(AsRef::as_ref)),
            cordoned: Cordoned::among(nodes.iter().map(AsRef::as_ref)),
            ended: shared.history.ended().iter().map(Ended::of).collect(),
            groups: groups(shared),
            queues: queues(shared, now),
            notices: notices(shared),
        }
    }
}

fn leader(shared: &Shared) -> Leader {
    let here = shared.leadership.leads();
    let ours = || shared.own_pod.as_ref().map(|pod| pod.name.to_string());
    let name = match shared.leadership.changes().borrow().clone() {
        Standing::Follows { holder } => Some(holder),
        Standing::Alone | Standing::Leads { .. } => ours().filter(|_| here),
        Standing::Unknown => None,
    };
    Leader { here, name }
}

fn known(shared: &Shared, now: Timestamp) -> Known {
    let age = |at| elapsed(at, now).as_secs();
    Known {
        groups_age_seconds: shared.groups.latest().map(|snapshot| age(snapshot.taken_at)),
        groups_fresh: shared.groups.fresh(now).is_ok(),
        listed: BTreeMap::from([
            ("nodes", shared.nodes.is_synced()),
            ("poddisruptionbudgets", shared.budgets.is_synced()),
            ("daemonsets", shared.daemon_sets.is_synced()),
            ("volumeattachments", shared.attachments.is_synced()),
        ]),
        watch_silence_seconds: shared.cluster.silence().as_secs(),
        watches_alive: shared.cluster.is_watching(),
    }
}

fn scale_ins(shared: &Shared, now: Timestamp) -> Vec<ScaleIn> {
    let board = shared.progress.all();
    let nodes = shared.nodes.all();
    let snapshot = shared.groups.latest();
    let group_of = |instance: &InstanceId| {
        snapshot.as_ref()?.instance(instance).map(|(group, _)| group.asg.name.clone())
    };
    let of = |node: &NodeView| {
        let Some(record) = node.scale_in() else {
            let group = node.instance.as_ref().and_then(group_of);
            return ScaleIn::of(node, now).map(|requested| ScaleIn { group, ..requested });
        };
        let stages = shared.history.stages(&node.name, record);
        let told = ScaleIn::of_record(node, record, &stages, now);
        Some(match board.get(&node.name) {
            Some(progress) => told.with_progress(progress, shared.settings.patience_ends(record)),
            None => told,
        })
    };
    let mut all: Vec<ScaleIn> = nodes.iter().filter_map(|node| of(node)).collect();
    all.sort_by_key(|one| (one.requested_at.is_none(), one.requested_at));
    all
}

fn groups(shared: &Shared) -> Vec<GroupStatus> {
    let Some(snapshot) = shared.groups.latest() else { return Vec::new() };
    let described = || Some(later(snapshot.taken_at, shared.clock.cluster_ahead()));
    let told = snapshot.groups.values().map(|group| {
        let name = &group.asg.name;
        GroupStatus::of(group, &shared.hooks.state(name), |instance| {
            leaves(&shared.nodes, name, instance, described)
        })
    });
    told.collect()
}

fn queues(shared: &Shared, now: Timestamp) -> Vec<Queue> {
    let age = |at| elapsed(at, now).as_secs();
    let of = |url: &String| {
        let reading = shared.notices.reading(url);
        Queue {
            url: url.clone(),
            reading_for_seconds: reading.as_ref().map(|reading| age(reading.began)),
            read_age_seconds: reading.as_ref().and_then(|reading| reading.answered.map(age)),
            error: reading.and_then(|reading| reading.error),
        }
    };
    shared.queues.iter().map(of).collect()
}

fn notices(shared: &Shared) -> Vec<Notice> {
    let ahead: SignedDuration = shared.clock.cluster_ahead();
    let of = |instance| {
        let expected = together(&shared.notices.about(&instance))?;
        let ends_at = expected.ends_at.map(|at| later(at, ahead));
        Some(Notice { instance, cause: expected.cause, ends_at })
    };
    shared.notices.instances().into_iter().filter_map(of).collect()
}
